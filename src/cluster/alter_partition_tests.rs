//! AlterPartition against a table: what is asked, what is answered, what is written.

use super::*;
use crate::cluster::test_kit::{Model, TOPIC, nodes};
use crate::types::Uuid;
use crate::wire::messages::partition_record::PartitionRecord;
use asked::{AlterPartitionRequest, BrokerState, PartitionData as Wanted, TopicData as AskedTopic};

fn wanted(model: &Model, isr: &[i32]) -> Wanted {
    Wanted {
        partition_index: 0,
        leader_epoch: 5,
        partition_epoch: 10,
        new_isr_with_epochs: isr
            .iter()
            .map(|id| BrokerState {
                broker_id: *id,
                broker_epoch: model.image.broker(NodeId(*id)).map_or(0, |one| one.epoch.0),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

fn request(model: &Model, sender: i32, wanted: Wanted) -> AlterPartitionRequest {
    AlterPartitionRequest {
        broker_id: sender,
        broker_epoch: model.epoch(sender),
        topics: vec![AskedTopic {
            topic_id: TOPIC,
            partitions: vec![wanted],
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn ask(model: &Model, request: &AlterPartitionRequest) -> (usize, PartitionData) {
    let (records, response) = decide(&model.image, &model.config, request, 3);
    assert_eq!(response.error_code, 0);
    (records.len(), response.topics[0].partitions[0].clone())
}

#[test]
fn every_check_in_its_order() {
    let mut model = Model::with_brokers(5);
    model.partition(&[1, 2, 3, 4], &[1, 2], 1);
    model.partition_as(PartitionRecord {
        replicas: vec![1, 2],
        isr: vec![1],
        leader: 1,
        leader_recovery_state: 1,
        ..Default::default()
    });
    model.broker(4, true);
    type Set = fn(&mut Wanted);
    let table: &[(ErrorCode, i32, &[i32], Set)] = &[
        (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, 1, &[1, 2], |w| {
            w.partition_index = 9
        }),
        // Later checks would also refuse these: the first one decides.
        (ErrorCode::NOT_CONTROLLER, 2, &[7], |w| w.leader_epoch = 6),
        (ErrorCode::NOT_CONTROLLER, 2, &[7], |w| {
            (w.leader_epoch, w.partition_epoch) = (4, 11);
        }),
        (ErrorCode::FENCED_LEADER_EPOCH, 2, &[7], |w| {
            w.leader_epoch = 4
        }),
        (ErrorCode::INVALID_REQUEST, 2, &[1, 2], |w| {
            w.partition_epoch = 9
        }),
        (ErrorCode::INVALID_UPDATE_VERSION, 1, &[7], |w| {
            w.partition_epoch = 9
        }),
        (ErrorCode::INVALID_REQUEST, 1, &[1, 5], |_| {}),
        (ErrorCode::INVALID_REQUEST, 1, &[1, 2, 2], |_| {}),
        (ErrorCode::INVALID_REQUEST, 1, &[2, 3], |_| {}),
        (ErrorCode::INVALID_REQUEST, 1, &[], |_| {}),
        (ErrorCode::INVALID_REQUEST, 1, &[1, 2], |w| {
            w.leader_recovery_state = 1
        }),
        (ErrorCode::INVALID_REQUEST, 1, &[1], |w| {
            w.leader_recovery_state = 1
        }),
        (ErrorCode::INVALID_REQUEST, 1, &[1, 2], |w| {
            (w.partition_index, w.leader_recovery_state) = (1, 1);
        }),
        (ErrorCode::INELIGIBLE_REPLICA, 1, &[1, 4], |_| {}),
        (ErrorCode::INELIGIBLE_REPLICA, 1, &[1, 2], |w| {
            w.new_isr_with_epochs[1].broker_epoch += 1;
        }),
        (ErrorCode::NONE, 1, &[1, 2, 3], |w| {
            w.new_isr_with_epochs[2].broker_epoch = ANY_EPOCH;
        }),
        (ErrorCode::NONE, 1, &[1], |_| {}),
    ];
    for (at, (error, sender, isr, set)) in table.iter().enumerate() {
        let mut wanted = wanted(&model, isr);
        set(&mut wanted);
        let (records, told) = ask(&model, &request(&model, *sender, wanted));
        assert_eq!(ErrorCode(told.error_code), *error, "case {at}");
        assert_eq!(records, usize::from(!error.is_error()), "case {at}");
        if !error.is_error() {
            assert_eq!(told.isr, *isr, "case {at}");
            assert_eq!((told.leader_id, told.leader_epoch), (1, 5), "case {at}");
            assert_eq!(told.partition_epoch, 11, "case {at}");
        }
    }
}

#[test]
fn a_broker_of_an_old_epoch_is_refused_as_a_whole() {
    let mut model = Model::with_brokers(2);
    model.partition(&[1, 2], &[1, 2], 1);
    let mut stale = request(&model, 1, wanted(&model, &[1]));
    stale.broker_epoch -= 1;
    let (records, told) = decide(&model.image, &model.config, &stale, 3);
    assert_eq!(
        (records.len(), told.error_code, told.topics.len()),
        (0, 77, 0)
    );
    let mut unknown = request(&model, 1, wanted(&model, &[1]));
    unknown.topics[0].topic_id = Uuid::from_halves(0, 1234);
    let (records, told) = ask(&model, &unknown);
    assert_eq!((records, told.error_code), (0, 100));
}

#[test]
fn in_version_2_members_have_no_epochs() {
    let mut model = Model::with_brokers(2);
    model.partition(&[1, 2], &[1], 1);
    let mut old = request(&model, 1, wanted(&model, &[]));
    old.topics[0].partitions[0].new_isr = vec![1, 2];
    let (records, told) = decide(&model.image, &model.config, &old, 2);
    assert_eq!(
        (records.len(), told.topics[0].partitions[0].error_code),
        (1, 0)
    );
}

#[test]
fn the_same_set_again_writes_nothing_and_is_no_error() {
    let mut model = Model::with_brokers(2);
    model.partition(&[1, 2], &[1, 2], 1);
    let (records, told) = ask(&model, &request(&model, 1, wanted(&model, &[1, 2])));
    assert_eq!((records, told.error_code, told.partition_epoch), (0, 0, 10));
}

#[test]
fn a_member_in_controlled_shutdown_is_not_eligible() {
    let mut model = Model::with_brokers(2);
    model.partition(&[1, 2], &[1], 1);
    let records = crate::cluster::fencing::records_of(&model.image, &model.config, |draft| {
        crate::cluster::fencing::shut_down(draft, NodeId(2));
    });
    model.apply(&records);
    let (_, told) = ask(&model, &request(&model, 1, wanted(&model, &[1, 2])));
    assert_eq!(ErrorCode(told.error_code), ErrorCode::INELIGIBLE_REPLICA);
}

#[test]
fn the_end_of_a_reassignment_moves_the_leader_and_says_so() {
    let mut model = Model::with_brokers(4);
    model.partition_as(PartitionRecord {
        replicas: vec![4, 2, 1],
        isr: vec![1, 2],
        leader: 1,
        adding_replicas: vec![4],
        removing_replicas: vec![1],
        ..Default::default()
    });
    let wanted = wanted(&model, &[1, 2, 4]);
    let (records, told) = decide(&model.image, &model.config, &request(&model, 1, wanted), 3);
    let told = &told.topics[0].partitions[0];
    assert_eq!(ErrorCode(told.error_code), ErrorCode::NEW_LEADER_ELECTED);
    model.apply(&records);
    let after = model.of(0);
    assert_eq!(
        (after.leader, &after.replicas),
        (NodeId(4), &nodes(&[4, 2]))
    );
}

#[test]
fn two_changes_of_one_partition_in_a_request_do_not_overlook_each_other() {
    let mut model = Model::with_brokers(3);
    model.partition(&[1, 2, 3], &[1], 1);
    let mut twice = request(&model, 1, wanted(&model, &[1, 2]));
    twice.topics[0].partitions.push(wanted(&model, &[1, 3]));
    let (records, told) = decide(&model.image, &model.config, &twice, 3);
    let codes: Vec<i16> = told.topics[0]
        .partitions
        .iter()
        .map(|one| one.error_code)
        .collect();
    assert_eq!((records.len(), codes), (1, vec![0, 95]));
}
