//! One change of a partition, against a table of what Kafka's controller does.

use super::*;
use crate::types::{LeaderEpoch, PartitionEpoch};
use crate::wire::messages::partition_record::PartitionRecord;

fn nodes(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().map(|id| NodeId(*id)).collect()
}

fn partition(replicas: &[i32], isr: &[i32], leader: i32) -> PartitionRegistration {
    PartitionRegistration::from_record(&PartitionRecord {
        replicas: replicas.to_vec(),
        isr: isr.to_vec(),
        leader,
        leader_epoch: 5,
        partition_epoch: 10,
        ..Default::default()
    })
}

/// Changes with these brokers alive; the partition afterwards.
fn changed(
    before: &PartitionRegistration,
    alive: &[i32],
    (min_in_sync, keeps_eligible): (usize, bool),
    set: impl FnOnce(&mut PartitionChange<'_>),
) -> Option<PartitionRegistration> {
    let may_lead = |node: NodeId, _| alive.contains(&node.0);
    let rules = Rules {
        may_lead: &may_lead,
        min_in_sync,
        keeps_eligible,
    };
    let mut change = PartitionChange::of(before);
    set(&mut change);
    let record = change.record(Uuid::from_halves(1, 1), 0, &rules)?;
    Some(before.after(&record))
}

const PLAIN: (usize, bool) = (1, false);

#[test]
fn nothing_to_change_writes_nothing() {
    let before = partition(&[1, 2, 3], &[1, 2], 1);
    assert!(changed(&before, &[1, 2, 3], PLAIN, |_| {}).is_none());
    assert!(changed(&before, &[1, 2, 3], (2, true), |_| {}).is_none());
}

#[test]
fn leaders_come_from_the_in_sync_set_in_the_order_of_replicas() {
    let before = partition(&[3, 2, 1], &[1, 2], 1);
    let after = changed(&before, &[2, 3], PLAIN, |change| change.isr = nodes(&[2])).unwrap();
    assert_eq!(
        (after.leader, &after.isr[..]),
        (NodeId(2), &nodes(&[2])[..])
    );
    assert_eq!(after.leader_epoch, LeaderEpoch(6));
    assert_eq!(after.partition_epoch, PartitionEpoch(11));
    // Nobody in sync is alive: no leader, and without eligible replicas the set is kept.
    let after = changed(&before, &[3], PLAIN, |change| change.isr = Vec::new()).unwrap();
    assert_eq!(
        (after.leader, &after.isr[..]),
        (NO_LEADER, &nodes(&[1, 2])[..])
    );
    // Unclean: the first that lives, alone, in recovery.
    let after = changed(&before, &[3], PLAIN, |change| {
        change.isr = Vec::new();
        change.election = Election::Unclean;
    });
    let after = after.unwrap();
    assert_eq!(
        (after.leader, &after.isr[..]),
        (NodeId(3), &nodes(&[3])[..])
    );
    assert_eq!(after.leader_recovery_state, RECOVERING);
}

#[test]
fn a_shrunken_in_sync_set_does_not_begin_a_leader_epoch() {
    let before = partition(&[1, 2, 3], &[1, 2, 3], 1);
    let after = changed(&before, &[1, 2, 3], PLAIN, |change| {
        change.isr = nodes(&[1, 2]);
    });
    let after = after.unwrap();
    assert_eq!(after.leader_epoch, LeaderEpoch(5));
    assert_eq!(after.partition_epoch, PartitionEpoch(11));
}

#[test]
fn the_preferred_replica_leads_again_when_it_can() {
    let before = partition(&[3, 2, 1], &[1, 2, 3], 1);
    let preferred = |change: &mut PartitionChange<'_>| change.election = Election::Preferred;
    let after = changed(&before, &[1, 2, 3], PLAIN, preferred).unwrap();
    assert_eq!(after.leader, NodeId(3));
    assert!(changed(&before, &[1, 2], PLAIN, preferred).is_none());
}

#[test]
fn eligible_replicas_are_kept_below_the_least_and_forgotten_above() {
    let with = (2, true);
    let before = partition(&[1, 2, 3], &[1, 2, 3], 1);
    // Three to two: still enough.
    let two = changed(&before, &[1, 2], with, |change| change.isr = nodes(&[1, 2])).unwrap();
    assert!(two.elr.is_empty());
    let one = changed(&two, &[1], with, |change| change.isr = nodes(&[1])).unwrap();
    assert_eq!(one.elr, nodes(&[2]));
    let none = changed(&one, &[], with, |change| change.isr = Vec::new()).unwrap();
    assert_eq!((none.leader, none.isr.len()), (NO_LEADER, 0));
    assert_eq!(none.elr, nodes(&[2, 1]));
    assert_eq!(none.last_known_elr, nodes(&[1]));
    // Broker 3 left while two were in sync: it may lack records, and does not lead.
    assert!(changed(&none, &[3], with, |_| {}).is_none());
    let back = changed(&none, &[2, 3], with, |_| {}).unwrap();
    assert_eq!((back.leader, &back.isr[..]), (NodeId(2), &nodes(&[2])[..]));
    assert_eq!(back.elr, nodes(&[1]));
    assert!(back.last_known_elr.is_empty());
    assert_eq!(back.leader_recovery_state, RECOVERED);
    let all = changed(&back, &[1, 2, 3], with, |change| {
        change.isr = nodes(&[2, 1])
    })
    .unwrap();
    assert!(all.elr.is_empty());
}

#[test]
fn an_unclean_stop_costs_eligibility_and_the_last_known_leader_comes_back() {
    let with = (1, true);
    let before = partition(&[1, 2], &[1], 1);
    let gone = changed(&before, &[2], with, |change| {
        change.isr = Vec::new();
        change.unclean_shutdown = Some(NodeId(1));
    });
    let gone = gone.unwrap();
    assert_eq!(
        (gone.leader, gone.isr.len(), gone.elr.len()),
        (NO_LEADER, 0, 0)
    );
    assert_eq!(gone.last_known_elr, nodes(&[1]));
    assert!(changed(&gone, &[2], with, |_| {}).is_none());
    let back = changed(&gone, &[1, 2], with, |_| {}).unwrap();
    assert_eq!((back.leader, &back.isr[..]), (NodeId(1), &nodes(&[1])[..]));
    assert_eq!(back.leader_recovery_state, RECOVERING);
    assert!(back.last_known_elr.is_empty());
    let recovered = changed(&back, &[1, 2], with, |change| {
        change.isr = nodes(&[1, 2]);
        change.recovery_state = RECOVERED;
    });
    assert_eq!(recovered.unwrap().leader_recovery_state, RECOVERED);
}

#[test]
fn a_reassignment_ends_when_the_new_replicas_are_in_sync() {
    let mut before = partition(&[4, 2, 3, 1], &[1, 2, 3], 1);
    before.adding = nodes(&[4]);
    before.removing = nodes(&[1]);
    let all = [1, 2, 3, 4];
    assert!(changed(&before, &all, PLAIN, |_| {}).is_none());
    let after = changed(&before, &all, PLAIN, |change| {
        change.isr = nodes(&[1, 2, 3, 4]);
    });
    let after = after.unwrap();
    assert_eq!(after.replicas, nodes(&[4, 2, 3]));
    assert_eq!(after.isr, nodes(&[2, 3, 4]));
    assert!(after.adding.is_empty() && after.removing.is_empty());
    assert_eq!(
        (after.leader, after.leader_epoch),
        (NodeId(4), LeaderEpoch(6))
    );
    // The leader stays: a new leader epoch all the same, for a replica has gone.
    let mut before = partition(&[1, 2, 3], &[1, 2], 1);
    before.removing = nodes(&[3]);
    let after = changed(&before, &all, PLAIN, |_| {}).unwrap();
    assert_eq!(after.replicas, nodes(&[1, 2]));
    assert_eq!(
        (after.leader, after.leader_epoch),
        (NodeId(1), LeaderEpoch(6))
    );
}

#[test]
fn fewer_replicas_are_reached_only_when_all_that_stay_are_in_sync() {
    let mut before = partition(&[2, 3, 4, 5, 0, 1], &[0, 1], 0);
    before.removing = nodes(&[0, 1]);
    before.adding = nodes(&[5]);
    let all = [0, 1, 2, 3, 4, 5];
    let waits = changed(&before, &all, PLAIN, |change| {
        change.isr = nodes(&[0, 1, 5])
    })
    .unwrap();
    assert!(waits.is_reassigning());
    let ends = changed(&before, &all, PLAIN, |change| {
        change.isr = nodes(&[0, 1, 2, 3, 4, 5]);
    });
    assert!(!ends.unwrap().is_reassigning());
}

#[test]
fn a_directory_is_written_for_a_replica_that_gets_one() {
    let before = partition(&[1, 2], &[1], 1);
    let dir = Uuid::from_halves(3, 500);
    let after = changed(&before, &[1], PLAIN, |change| {
        change.directories.push((NodeId(2), dir));
    });
    assert_eq!(after.unwrap().directory(NodeId(2)), dir);
}
