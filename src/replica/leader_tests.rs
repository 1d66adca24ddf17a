//! A leader's decisions, table by table.

use super::*;

const LAG: Duration = Duration::from_secs(30);

fn at(seconds: u64) -> Instant {
    Instant(seconds * 1_000_000_000)
}

fn ids(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().map(|id| NodeId(*id)).collect()
}

fn term(replicas: &[i32], in_sync: &[i32]) -> Term {
    Term {
        epoch: LeaderEpoch(3),
        partition_epoch: PartitionEpoch(10),
        replicas: ids(replicas),
        in_sync: ids(in_sync),
        start: Offset(10),
    }
}

fn registered(id: NodeId) -> Option<Registered> {
    Some(Registered {
        epoch: 100 + i64::from(id.0),
        alive: true,
        eligible: true,
    })
}

/// Node 1 leads from offset 10 on, with high watermark 5.
fn leader(replicas: &[i32], in_sync: &[i32], min_in_sync: usize) -> Leader {
    let settings = LeaderSettings {
        local: NodeId(1),
        min_in_sync,
        lag_max: LAG,
    };
    let mut leader = Leader::new(settings, term(replicas, in_sync), Offset(5), at(0));
    leader.set_registered(registered);
    leader
}

fn log(start: i64, counted: i64, end: i64) -> LocalLog {
    LocalLog {
        start: Offset(start),
        counted: Offset(counted),
        end: Offset(end),
    }
}

fn fetch(leader: &mut Leader, id: i32, from: i64, leader_end: i64, now: u64) -> bool {
    let fetch = FollowerFetch {
        replica: NodeId(id),
        broker_epoch: 100 + i64::from(id),
        from: Offset(from),
        log_start: Offset(0),
        leader_end: Offset(leader_end),
    };
    leader.on_fetch(&fetch, at(now)).unwrap()
}

#[test]
fn latest_is_unknown_until_the_epoch_start_is_committed() {
    let mut leader = leader(&[1], &[1], 1);
    assert!(!leader.is_latest_known());
    let moved = leader.advance(log(0, 10, 12), || unreachable!("there is no follower"));
    assert_eq!(moved, Some(Offset(10)));
    assert!(leader.is_latest_known());
}

#[test]
fn high_watermark_stands_still_below_the_minimum() {
    let mut leader = leader(&[1, 2], &[1], 2);
    assert!(!leader.has_enough_in_sync());
    assert_eq!(leader.advance(log(0, 12, 12), || at(0)), None);
    assert_eq!(leader.high_watermark(), Offset(5));
    // More than there are replicas cannot be wanted.
    leader.set_min_in_sync(7);
    assert_eq!(leader.effective_min_in_sync(), 2);
}

#[test]
fn high_watermark_never_counts_what_is_not_durable_yet() {
    let mut leader = leader(&[1], &[1], 1);
    assert_eq!(leader.advance(log(0, 7, 12), || at(0)), Some(Offset(7)));
    assert_eq!(leader.advance(log(0, 6, 12), || at(0)), None);
    assert_eq!(leader.high_watermark(), Offset(7));
}

#[test]
fn deleting_records_carries_the_high_watermark_along() {
    let mut leader = leader(&[1, 2], &[1], 2);
    assert_eq!(leader.advance(log(8, 12, 12), || at(0)), Some(Offset(8)));
}

#[test]
fn high_watermark_is_what_every_member_has_and_never_goes_back() {
    let mut leader = leader(&[1, 2, 3], &[1, 2, 3], 2);
    assert_eq!(leader.advance(log(0, 20, 20), || at(1)), None, "unheard of");
    fetch(&mut leader, 2, 15, 20, 1);
    assert_eq!(leader.advance(log(0, 20, 20), || at(1)), None);
    fetch(&mut leader, 3, 12, 20, 1);
    assert_eq!(leader.advance(log(0, 20, 20), || at(1)), Some(Offset(12)));
    // A member that comes back with less holds it, but does not take it back.
    fetch(&mut leader, 2, 9, 20, 2);
    assert_eq!(leader.advance(log(0, 20, 20), || at(2)), None);
    assert_eq!(leader.high_watermark(), Offset(12));
    fetch(&mut leader, 2, 20, 20, 2);
    fetch(&mut leader, 3, 20, 20, 2);
    // Our own disk is the slowest.
    assert_eq!(leader.advance(log(0, 13, 20), || at(2)), Some(Offset(13)));
}

#[test]
fn who_is_about_to_join_is_waited_for_and_who_was_left_behind_is_not() {
    let mut leader = leader(&[1, 2, 3], &[1, 2], 2);
    fetch(&mut leader, 2, 20, 20, 1);
    assert_eq!(leader.advance(log(0, 20, 20), || at(1)), Some(Offset(20)));
    fetch(&mut leader, 3, 20, 20, 2);
    // Caught up and eligible: the next append waits for it.
    fetch(&mut leader, 2, 21, 21, 3);
    assert_eq!(leader.advance(log(0, 21, 21), || at(3)), None);
    assert_eq!(
        leader.advance(log(0, 21, 21), || at(40)),
        Some(Offset(21)),
        "not for longer than the lag time"
    );
}

#[test]
fn a_replica_joins_when_it_has_what_is_committed_and_what_the_epoch_began_with() {
    let mut leader = leader(&[1, 2, 3], &[1, 2], 1);
    fetch(&mut leader, 3, 9, 12, 1);
    assert!(!leader.propose_growth(NodeId(3)), "below the epoch's start");
    fetch(&mut leader, 3, 10, 12, 1);
    assert!(leader.propose_growth(NodeId(3)));
    assert!(!leader.propose_growth(NodeId(3)), "one at a time");
    let proposal = leader.proposal(101).unwrap();
    assert_eq!(
        proposal.members,
        [(NodeId(1), 101), (NodeId(2), -1), (NodeId(3), 103)]
    );
    // Until it is known, both count.
    fetch(&mut leader, 2, 12, 12, 1);
    assert_eq!(leader.advance(log(0, 12, 12), || at(99)), Some(Offset(10)));
}

#[test]
fn a_replica_of_a_broker_that_is_not_to_be_trusted_does_not_join() {
    for (case, joins) in [
        (Some((103, true)), true),
        (Some((103, false)), false),
        (Some((102, true)), false),
        (None, false),
    ] {
        let mut leader = leader(&[1, 2, 3], &[1, 2], 1);
        fetch(&mut leader, 3, 12, 12, 1);
        leader.set_registered(|_| {
            case.map(|(epoch, eligible)| Registered {
                epoch,
                alive: true,
                eligible,
            })
        });
        assert_eq!(leader.propose_growth(NodeId(3)), joins, "{case:?}");
    }
}

#[test]
fn fetches_of_strangers_and_of_former_lives_count_for_nothing() {
    let mut leader = leader(&[1, 2], &[1, 2], 1);
    let mut fetch = FollowerFetch {
        replica: NodeId(9),
        broker_epoch: 109,
        from: Offset(10),
        log_start: Offset(0),
        leader_end: Offset(10),
    };
    assert_eq!(
        leader.on_fetch(&fetch, at(0)),
        Err(FetchRefused::NotAssigned)
    );
    fetch.replica = NodeId(2);
    fetch.broker_epoch = 101;
    assert_eq!(
        leader.on_fetch(&fetch, at(0)),
        Err(FetchRefused::StaleBroker)
    );
    fetch.broker_epoch = -1;
    assert_eq!(leader.on_fetch(&fetch, at(0)), Ok(true));
    assert_eq!(leader.on_fetch(&fetch, at(0)), Ok(false));
}

#[test]
fn a_member_leaves_after_the_lag_time_whether_it_is_silent_or_slow() {
    let mut leader = leader(&[1, 2, 3], &[1, 2, 3], 1);
    fetch(&mut leader, 2, 20, 20, 1);
    // It always has what there was at its fetch before: behind, but not falling behind.
    for second in 1..60 {
        let from = 20 + second as i64;
        fetch(&mut leader, 2, from, from + 1, second);
    }
    assert!(leader.propose_shrink(Offset(100), at(60)));
    let proposal = leader.proposal(101).unwrap();
    assert_eq!(proposal.members, [(NodeId(1), 101), (NodeId(2), 102)]);
    assert!(
        !leader.propose_shrink(Offset(100), at(200)),
        "one at a time"
    );
}

#[test]
fn a_silent_member_that_has_everything_stays() {
    let mut leader = leader(&[1, 2], &[1, 2], 1);
    fetch(&mut leader, 2, 20, 20, 1);
    assert!(!leader.propose_shrink(Offset(20), at(500)));
    assert!(leader.propose_shrink(Offset(21), at(500)));
}

#[test]
fn a_shrunken_set_counts_once_it_is_committed() {
    let mut leader = leader(&[1, 2], &[1, 2], 1);
    assert!(leader.propose_shrink(Offset(20), at(31)));
    assert_eq!(leader.advance(log(0, 20, 20), || at(31)), None);
    let proposal = leader.proposal(101).unwrap();
    let altered = Altered {
        leader_epoch: LeaderEpoch(3),
        partition_epoch: PartitionEpoch(11),
        in_sync: ids(&[1]),
    };
    assert_eq!(
        leader.on_altered(&proposal, &Ok(altered)),
        Outcome::Committed
    );
    assert_eq!(leader.advance(log(0, 20, 20), || at(31)), Some(Offset(20)));
    assert_eq!(leader.partition_epoch(), PartitionEpoch(11));
}

#[test]
fn another_epoch_of_the_same_leader_keeps_what_followers_said_only_if_nobody_led_between() {
    for (epoch, known) in [(4, true), (5, false)] {
        let mut leader = leader(&[1, 2], &[1, 2], 1);
        fetch(&mut leader, 2, 12, 12, 1);
        let term = Term {
            epoch: LeaderEpoch(epoch),
            start: Offset(12),
            ..term(&[1, 2], &[1, 2])
        };
        leader.renew(term, at(2));
        let moved = leader.advance(log(0, 12, 12), || at(2));
        assert_eq!(moved.is_some(), known, "{epoch}");
    }
}

#[test]
fn records_are_deleted_once_every_live_replica_has_deleted_them() {
    let mut leader = leader(&[1, 2, 3], &[1, 2], 1);
    assert_eq!(leader.low_watermark(Offset(7)), Offset::UNKNOWN);
    fetch(&mut leader, 2, 12, 12, 1);
    leader.set_registered(|id| {
        registered(id).map(|broker| Registered {
            alive: id == NodeId(2),
            ..broker
        })
    });
    assert_eq!(
        leader.low_watermark(Offset(7)),
        Offset(0),
        "the dead one does not count"
    );
}
