//! Reassignments: begun, replaced, undone and ended, against a table.

use super::*;
use crate::cluster::fencing::{self, records_of};
use crate::cluster::test_kit::{Model, TOPIC, directory, nodes};
use crate::wire::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use crate::wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;

fn request(index: i32, replicas: Option<&[i32]>) -> AlterPartitionReassignmentsRequest {
    AlterPartitionReassignmentsRequest {
        topics: vec![ReassignableTopic {
            name: "t".into(),
            partitions: vec![ReassignablePartition {
                partition_index: index,
                replicas: replicas.map(<[i32]>::to_vec),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn run(model: &mut Model, request: &AlterPartitionReassignmentsRequest) -> (ErrorCode, usize) {
    let (records, response) = decide(&model.image, &model.config, request);
    model.apply(&records);
    let told = &response.responses[0].partitions[0];
    assert_eq!(told.error_message.is_some(), told.error_code != 0);
    (ErrorCode(told.error_code), records.len())
}

/// Replicas, adding, removing.
fn told(model: &Model) -> [Vec<i32>; 3] {
    let partition = model.of(0);
    [&partition.replicas, &partition.adding, &partition.removing]
        .map(|list| list.iter().map(|id| id.0).collect())
}

fn in_sync(model: &mut Model, isr: &[i32]) {
    let mut draft = Draft::new(&model.image, &model.config);
    let id = PartitionId {
        topic: TOPIC,
        index: 0,
    };
    draft.change(id, &as_registered, |change| change.isr = nodes(isr));
    let records = draft.into_records();
    model.apply(&records);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut model = Model::with_brokers(4);
    model.partition(&[1, 2], &[1, 2], 1);
    let mut other = request(0, Some(&[1, 2]));
    other.topics[0].name = "nope".into();
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    assert_eq!(run(&mut model, &other), (unknown, 0));
    assert_eq!(run(&mut model, &request(7, Some(&[1, 2]))), (unknown, 0));
    for bad in [&[][..], &[1, 1], &[1, 9], &[-1]] {
        let told = run(&mut model, &request(0, Some(bad)));
        assert_eq!(told, (ErrorCode::INVALID_REPLICA_ASSIGNMENT, 0), "{bad:?}");
    }
    let none = ErrorCode::NO_REASSIGNMENT_IN_PROGRESS;
    assert_eq!(run(&mut model, &request(0, None)), (none, 0));
    let mut fixed = request(0, Some(&[1, 2, 3]));
    fixed.allow_replication_factor_change = false;
    let factor = ErrorCode::INVALID_REPLICATION_FACTOR;
    assert_eq!(run(&mut model, &fixed), (factor, 0));
    assert_eq!(
        run(&mut model, &request(0, Some(&[1, 2]))),
        (ErrorCode::NONE, 0)
    );
}

#[test]
fn replicas_are_added_first_and_removed_when_the_new_ones_are_in_sync() {
    let mut model = Model::with_brokers(4);
    model.partition(&[1, 2], &[1, 2], 1);
    assert_eq!(
        run(&mut model, &request(0, Some(&[3, 4]))),
        (ErrorCode::NONE, 1)
    );
    assert_eq!(told(&model), [vec![3, 4, 1, 2], vec![3, 4], vec![1, 2]]);
    assert_eq!(model.of(0).directory(NodeId(3)), directory(3));
    assert_eq!(model.of(0).leader_epoch.0, 5, "nobody has gone yet");
    in_sync(&mut model, &[1, 2, 3]);
    assert!(model.of(0).is_reassigning());
    in_sync(&mut model, &[1, 2, 3, 4]);
    assert_eq!(told(&model), [vec![3, 4], vec![], vec![]]);
    assert_eq!(model.told(0), (3, vec![3, 4], vec![]));
}

#[test]
fn another_order_or_fewer_replicas_are_there_at_once() {
    let mut model = Model::with_brokers(3);
    model.partition(&[1, 2, 3], &[1, 2, 3], 1);
    run(&mut model, &request(0, Some(&[2, 1, 3])));
    assert_eq!(told(&model), [vec![2, 1, 3], vec![], vec![]]);
    assert_eq!((model.told(0).0, model.of(0).leader_epoch.0), (1, 5));
    run(&mut model, &request(0, Some(&[2, 1])));
    assert_eq!(told(&model), [vec![2, 1], vec![], vec![]]);
    assert_eq!((model.told(0).0, model.of(0).leader_epoch.0), (1, 6));
}

#[test]
fn one_that_is_replaced_can_still_be_undone() {
    let mut model = Model::with_brokers(5);
    model.partition(&[1, 2], &[1, 2], 1);
    run(&mut model, &request(0, Some(&[1, 3])));
    in_sync(&mut model, &[1, 2]);
    run(&mut model, &request(0, Some(&[1, 4])));
    assert_eq!(told(&model), [vec![1, 4, 2, 3], vec![3, 4], vec![2, 3]]);
    let mut undone = Model {
        image: model.image.clone(),
        ..Model::with_brokers(5)
    };
    assert_eq!(run(&mut undone, &request(0, None)), (ErrorCode::NONE, 1));
    assert_eq!(told(&undone), [vec![1, 2], vec![], vec![]]);
    // Or ended: what was added before and is not wanted any more goes with the others.
    in_sync(&mut model, &[1, 2, 4]);
    assert_eq!(told(&model), [vec![1, 4], vec![], vec![]]);
}

#[test]
fn back_to_the_original_replicas_ends_by_itself() {
    let mut model = Model::with_brokers(3);
    model.partition(&[1, 2], &[1, 2], 1);
    run(&mut model, &request(0, Some(&[1, 3])));
    run(&mut model, &request(0, Some(&[1, 2])));
    assert_eq!(told(&model), [vec![1, 2], vec![], vec![]]);
}

#[test]
fn undoing_takes_the_added_replicas_out_and_moves_their_leader() {
    let mut model = Model::with_brokers(3);
    model.partition(&[1, 2], &[1, 2], 1);
    run(&mut model, &request(0, Some(&[3, 1])));
    run(&mut model, &request(0, Some(&[3, 2, 1])));
    in_sync(&mut model, &[1, 2]);
    assert_eq!(told(&model)[1], [3]);
    run(&mut model, &request(0, None));
    assert_eq!(told(&model), [vec![2, 1], vec![], vec![]]);
    assert_eq!(model.told(0), (1, vec![1, 2], vec![]));
}

#[test]
fn undoing_never_elects_an_unclean_leader_unless_it_is_allowed() {
    let mut model = Model::with_brokers(4);
    model.partition(&[1, 2], &[1, 2], 1);
    run(&mut model, &request(0, Some(&[3, 4])));
    in_sync(&mut model, &[1, 3]);
    let fenced = records_of(&model.image, &model.config, |draft| {
        fencing::fence(draft, NodeId(1));
    });
    model.apply(&fenced);
    assert_eq!(model.told(0), (3, vec![3], vec![]));
    let refused = ErrorCode::INVALID_REPLICA_ASSIGNMENT;
    assert_eq!(run(&mut model, &request(0, None)), (refused, 0));
    model.set(true, "unclean.leader.election.enable", "true");
    assert_eq!(run(&mut model, &request(0, None)), (ErrorCode::NONE, 1));
    // Broker 1 is fenced, broker 2 lives.
    assert_eq!(model.told(0), (2, vec![2], vec![]));
    assert_eq!(model.of(0).leader_recovery_state, RECOVERING);
}

#[test]
fn what_is_under_way_is_listed() {
    let mut model = Model::with_brokers(3);
    for _ in 0..2 {
        model.partition(&[1, 2], &[1, 2], 1);
    }
    run(&mut model, &request(1, Some(&[1, 3])));
    let all = list(&model.image, &ListPartitionReassignmentsRequest::default());
    assert_eq!(all.topics.len(), 1);
    let only = &all.topics[0].partitions[..];
    assert_eq!((only.len(), only[0].partition_index), (1, 1));
    assert_eq!(only[0].adding_replicas, [3]);
    assert_eq!(only[0].removing_replicas, [2]);
    let asked = |name: &str, index| ListPartitionReassignmentsRequest {
        topics: Some(vec![ListPartitionReassignmentsTopics {
            name: name.into(),
            partition_indexes: vec![index],
            ..Default::default()
        }]),
        ..Default::default()
    };
    assert_eq!(list(&model.image, &asked("t", 1)).topics.len(), 1);
    assert!(list(&model.image, &asked("t", 0)).topics.is_empty());
    assert!(list(&model.image, &asked("x", 1)).topics.is_empty());
}
