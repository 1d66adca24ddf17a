//! Brokers that come and go, against what Kafka's controller writes.

use super::*;
use crate::cluster::test_kit::{Model, directory, part};

fn run(model: &mut Model, decide: impl FnOnce(&mut Draft<'_>)) -> usize {
    let records = records_of(&model.image, &model.config, decide);
    model.apply(&records);
    records.len()
}

fn n(id: i32) -> NodeId {
    NodeId(id)
}

#[test]
fn a_fenced_broker_leads_nothing_and_is_in_no_set() {
    let mut model = Model::with_brokers(3);
    model.partition(&[1, 2, 3], &[1, 2, 3], 1);
    model.partition(&[2, 1], &[2, 1], 2);
    model.partition(&[1], &[1], 1);
    assert_eq!(run(&mut model, |draft| fence(draft, n(1))), 4);
    assert_eq!(model.told(0), (2, vec![2, 3], vec![]));
    assert_eq!(model.told(1), (2, vec![2], vec![]));
    assert_eq!(model.of(1).leader_epoch.0, 5);
    // The only one in sync: it stays there, for nobody else has the records.
    assert_eq!(model.told(2), (-1, vec![1], vec![]));
    assert!(model.image.broker(n(1)).unwrap().fenced);
    assert_eq!(run(&mut model, |draft| fence(draft, n(1))), 0);
    assert_eq!(run(&mut model, |draft| unfence(draft, n(1))), 2);
    assert_eq!(model.told(2), (1, vec![1], vec![]));
    assert_eq!(model.of(2).leader_epoch.0, 7, "none, then again the same");
}

#[test]
fn unclean_leaders_only_where_they_are_allowed() {
    let mut model = Model::with_brokers(2);
    model.partition(&[1, 2], &[1], 1);
    run(&mut model, |draft| fence(draft, n(1)));
    assert_eq!(model.told(0), (-1, vec![1], vec![]));
    assert_eq!(run(&mut model, |draft| elect_unclean(draft, 10)), 0);
    model.set(true, "unclean.leader.election.enable", "true");
    assert_eq!(run(&mut model, |draft| elect_unclean(draft, 0)), 0);
    assert_eq!(run(&mut model, |draft| elect_unclean(draft, 10)), 1);
    assert_eq!(model.told(0), (2, vec![2], vec![]));
    assert_eq!(model.of(0).leader_recovery_state, 1);
    assert_eq!(run(&mut model, |draft| elect_unclean(draft, 10)), 0);
    // At once when it is allowed already.
    model.partition(&[2, 1], &[2], 2);
    run(&mut model, |draft| unfence(draft, n(1)));
    run(&mut model, |draft| fence(draft, n(2)));
    assert_eq!(model.told(1), (1, vec![1], vec![]));
}

#[test]
fn a_controlled_shutdown_moves_leaders_before_the_broker_is_fenced() {
    let mut model = Model::with_brokers(2);
    model.partition(&[1, 2], &[1, 2], 1);
    model.partition(&[1], &[1], 1);
    assert_eq!(run(&mut model, |draft| shut_down(draft, n(1))), 3);
    assert_eq!(model.told(0), (2, vec![2], vec![]));
    assert_eq!(model.told(1), (-1, vec![1], vec![]));
    let broker = model.image.broker(n(1)).unwrap();
    assert!(broker.in_controlled_shutdown && !broker.fenced);
    assert_eq!(run(&mut model, |draft| shut_down(draft, n(1))), 0);
}

#[test]
fn an_unclean_stop_is_told_apart_where_eligible_replicas_are_kept() {
    for (was_clean, eligible, expected) in [
        (true, true, (2, vec![2], vec![1])),
        (false, true, (2, vec![2], vec![])),
        (true, false, (2, vec![2], vec![])),
        (false, false, (2, vec![2], vec![])),
    ] {
        let mut model = Model::with_brokers(2);
        if eligible {
            model = model.with_eligible();
        }
        model.set(false, "min.insync.replicas", "2");
        model.partition(&[1, 2], &[1, 2], 1);
        run(&mut model, |draft| end_incarnation(draft, n(1), was_clean));
        assert_eq!(
            model.told(0),
            expected,
            "clean {was_clean}, eligible {eligible}"
        );
    }
}

#[test]
fn a_broker_that_comes_back_uncleanly_is_struck_from_the_eligible_ones() {
    let mut model = Model::with_brokers(2).with_eligible();
    model.set(false, "min.insync.replicas", "2");
    model.partition(&[1, 2], &[1, 2], 1);
    run(&mut model, |draft| fence(draft, n(2)));
    run(&mut model, |draft| fence(draft, n(1)));
    assert_eq!(model.told(0), (-1, vec![], vec![2, 1]));
    run(&mut model, |draft| end_incarnation(draft, n(2), false));
    assert_eq!(model.told(0), (-1, vec![], vec![1]));
    run(&mut model, |draft| unfence(draft, n(2)));
    assert_eq!(model.told(0).0, -1, "it may lack records");
    run(&mut model, |draft| unfence(draft, n(1)));
    assert_eq!(model.told(0), (1, vec![1], vec![]));
    assert_eq!(model.of(0).leader_recovery_state, 0);
}

#[test]
fn a_lone_broker_that_was_killed_leads_again_as_the_last_known_leader() {
    let mut model = Model::with_brokers(1).with_eligible();
    model.partition(&[1], &[1], 1);
    run(&mut model, |draft| end_incarnation(draft, n(1), false));
    assert_eq!(model.told(0), (-1, vec![], vec![]));
    model.broker(1, true);
    run(&mut model, |draft| unfence(draft, n(1)));
    assert_eq!(model.told(0), (1, vec![1], vec![]));
    assert_eq!(model.of(0).leader_epoch.0, 7);
}

#[test]
fn a_lost_directory_costs_only_what_lies_in_it() {
    let mut model = Model::with_brokers(2);
    let (kept, lost) = (directory(1), directory(9));
    model.partition(&[1, 2], &[1, 2], 1);
    let other = model.partition(&[1, 2], &[1, 2], 1);
    let mut records = records_of(&model.image, &model.config, |draft| {
        draft.change(part(other), &as_registered, |change| {
            change.directories.push((n(1), lost));
        });
    });
    let mut both = registration_change(&model.image, n(1));
    both.log_dirs = vec![kept, lost];
    records.push(MetadataRecord::from(both));
    model.apply(&records);
    assert_eq!(
        run(&mut model, |draft| lose_directories(draft, n(1), &[lost])),
        2
    );
    assert_eq!(model.told(0), (1, vec![1, 2], vec![]));
    assert_eq!(model.told(1), (2, vec![2], vec![]));
    assert_eq!(model.image.broker(n(1)).unwrap().log_dirs, [kept]);
    assert_eq!(
        run(&mut model, |draft| lose_directories(draft, n(1), &[lost])),
        0
    );
    // While the directory is offline its replica does not lead, whoever asks.
    let records = records_of(&model.image, &model.config, |draft| {
        elect_preferred(draft, 9)
    });
    assert!(records.is_empty());
}

#[test]
fn preferred_leaders_take_their_partitions_back() {
    let mut model = Model::with_brokers(3);
    model.partition(&[1, 2], &[2, 1], 2);
    model.partition(&[1, 2], &[2], 2);
    model.partition(&[3, 2], &[2, 3], 2);
    assert_eq!(run(&mut model, |draft| elect_preferred(draft, 1)), 1);
    assert_eq!(run(&mut model, |draft| elect_preferred(draft, 9)), 1);
    assert_eq!(model.told(0).0, 1);
    assert_eq!(model.told(1).0, 2, "its first replica is not in sync");
    assert_eq!(model.told(2).0, 3);
}

#[test]
fn an_unregistered_broker_is_in_no_set_any_more() {
    let mut model = Model::with_brokers(2).with_eligible();
    model.set(false, "min.insync.replicas", "2");
    model.partition(&[1, 2], &[1, 2], 1);
    run(&mut model, |draft| unregister(draft, n(1)));
    assert_eq!(model.told(0), (2, vec![2], vec![]));
    assert!(model.image.broker(n(1)).is_none());
}

#[test]
fn cordoned_directories_are_written_when_they_change() {
    let mut model = Model::with_brokers(1);
    let dirs = [directory(1)];
    assert_eq!(run(&mut model, |draft| cordon(draft, n(1), None)), 0);
    assert_eq!(run(&mut model, |draft| cordon(draft, n(1), Some(&dirs))), 1);
    assert_eq!(run(&mut model, |draft| cordon(draft, n(1), Some(&dirs))), 0);
    assert!(!model.image.broker(n(1)).unwrap().takes_new_replicas());
    assert_eq!(run(&mut model, |draft| cordon(draft, n(1), Some(&[]))), 1);
    assert!(model.image.broker(n(1)).unwrap().takes_new_replicas());
}
