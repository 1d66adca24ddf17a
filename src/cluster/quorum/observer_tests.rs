//! What an observer makes of answers.

use super::*;
use crate::wire::batch_builder::{ControlType, control_batch};
use crate::wire::messages::fetch_response::{
    FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use crate::wire::messages::fetch_snapshot_response as snapshot;
use crate::wire::records::Records;

fn target(id: i32) -> Target {
    Target {
        id: Some(NodeId(id)),
        host: format!("c{id}"),
        port: 9093,
    }
}

fn observer() -> Observer {
    let known = vec![target(1), target(2), target(3)];
    Observer::new(
        NodeId(7),
        Uuid::from_halves(1, 1),
        "abc",
        known,
        LeaderEpoch(0),
        0,
    )
}

fn log(end: i64, epoch: i32) -> LogFacts {
    LogFacts {
        end: Offset(end),
        last_epoch: LeaderEpoch(epoch),
    }
}

fn batch(at: i64, epoch: i32) -> Bytes {
    let change = [(ControlType::LeaderChange, &b"x"[..])];
    control_batch(Offset(at), LeaderEpoch(epoch), 0, &change).unwrap()
}

fn response(leader: i32, epoch: i32, change: impl FnOnce(&mut PartitionData)) -> FetchResponse {
    let mut partition = PartitionData {
        current_leader: LeaderIdAndEpoch {
            leader_id: leader,
            leader_epoch: epoch,
            ..Default::default()
        },
        ..Default::default()
    };
    change(&mut partition);
    FetchResponse {
        responses: vec![FetchableTopicResponse {
            partitions: vec![partition],
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn asked(observer: &Observer, facts: LogFacts) -> FetchPartition {
    match observer.next(facts) {
        Ask::Fetch(request) => request.topics[0].partitions[0].clone(),
        Ask::Snapshot(_) => panic!("a snapshot is asked for"),
    }
}

#[test]
fn the_leader_is_learnt_from_whoever_answers_and_asked_from_then_on() {
    let mut observer = observer();
    assert_eq!(observer.target(), Some(&target(1)));
    assert_eq!(observer.unanswered(), Step::Pause);
    assert_eq!(observer.target(), Some(&target(2)));
    let refused = |leader, epoch| {
        response(leader, epoch, |partition| {
            partition.error_code = ErrorCode::UNKNOWN_LEADER_EPOCH.0;
        })
    };
    let mut other = refused(9, 4);
    other.node_endpoints.push(NodeEndpoint {
        node_id: 9,
        host: "far".into(),
        port: 1234,
        ..Default::default()
    });
    assert_eq!(observer.fetched(&other, log(0, 0)), Ok(Step::Pause));
    let far = Target {
        id: Some(NodeId(9)),
        host: "far".into(),
        port: 1234,
    };
    assert_eq!(observer.leader(), (Some(&far), LeaderEpoch(4)));
    let partition = asked(&observer, log(5, 2));
    assert_eq!(
        (
            partition.current_leader_epoch,
            partition.fetch_offset,
            partition.last_fetched_epoch
        ),
        (4, 5, 2)
    );
    assert_eq!(partition.high_watermark, -1);
    // Without endpoints the settings name the host; without a leader the others are asked.
    assert_eq!(observer.fetched(&refused(3, 5), log(0, 0)), Ok(Step::Pause));
    assert_eq!(observer.target(), Some(&target(3)));
    assert_eq!(
        observer.fetched(&refused(-1, 6), log(0, 0)),
        Ok(Step::Pause)
    );
    assert_eq!(observer.leader(), (None, LeaderEpoch(6)));
    assert_eq!(observer.target(), Some(&target(3)));
    // What an old leader says is not listened to.
    let old = response(1, 5, |partition| {
        partition.high_watermark = 1;
        partition.records = Some(Records::from(batch(0, 5)));
    });
    assert_eq!(observer.fetched(&old, log(0, 0)), Ok(Step::Pause));
    assert_eq!(
        (observer.leader().0, observer.high_watermark()),
        (None, None)
    );
}

#[test]
fn batches_are_taken_and_only_what_is_committed_counts() {
    let mut observer = observer();
    let bytes = [batch(3, 1), batch(4, 1), batch(5, 1)].concat();
    let cut = Bytes::from(bytes).slice(..batch(0, 1).len() * 5 / 2);
    let answer = response(1, 1, |partition| {
        partition.high_watermark = 4;
        partition.records = Some(Records::from(cut));
    });
    let Ok(Step::Append(batches)) = observer.fetched(&answer, log(3, 1)) else {
        panic!("not appended");
    };
    let offsets: Vec<_> = batches.iter().map(|batch| batch.base_offset().0).collect();
    assert_eq!(offsets, [3, 4]);
    assert_eq!(observer.high_watermark(), Some(Offset(4)));
    // The leader's watermark may be ahead of what is here, and never goes back.
    let ahead = |mark| response(1, 1, |partition| partition.high_watermark = mark);
    assert_eq!(observer.fetched(&ahead(90), log(5, 1)), Ok(Step::Again));
    assert_eq!(observer.high_watermark(), Some(Offset(5)));
    assert_eq!(observer.fetched(&ahead(-1), log(5, 1)), Ok(Step::Again));
    assert_eq!(observer.fetched(&ahead(2), log(5, 1)), Ok(Step::Again));
    assert_eq!(observer.high_watermark(), Some(Offset(5)));
    assert_eq!(asked(&observer, log(5, 1)).high_watermark, 5);
    for wrong in [batch(9, 1), Bytes::from_static(&[0; 80])] {
        let gap = response(1, 1, |partition| {
            partition.records = Some(Records::from(wrong));
        });
        assert_eq!(observer.fetched(&gap, log(5, 1)), Ok(Step::Pause));
    }
    let mut broken = batch(5, 1).to_vec();
    broken[62] ^= 1;
    let broken = response(1, 1, |partition| {
        partition.records = Some(Records::from(Bytes::from(broken)));
    });
    assert_eq!(observer.fetched(&broken, log(5, 1)), Ok(Step::Pause));
}

#[test]
fn what_parts_from_the_leader_is_cut_off_but_never_what_was_committed() {
    let mut observer = observer();
    let parts = |end| {
        response(1, 3, |partition| {
            partition.diverging_epoch.epoch = 1;
            partition.diverging_epoch.end_offset = end;
        })
    };
    assert_eq!(
        observer.fetched(&parts(6), log(9, 2)),
        Ok(Step::Truncate(Offset(6)))
    );
    let committed = response(1, 3, |partition| partition.high_watermark = 6);
    assert_eq!(observer.fetched(&committed, log(6, 1)), Ok(Step::Again));
    assert_eq!(
        observer.fetched(&parts(5), log(6, 1)),
        Err(ObserverError::Committed(Offset(5)))
    );
    let other = FetchResponse {
        error_code: ErrorCode::INCONSISTENT_CLUSTER_ID.0,
        ..Default::default()
    };
    assert_eq!(
        observer.fetched(&other, log(6, 1)),
        Err(ObserverError::Cluster)
    );
}

#[test]
fn a_snapshot_is_fetched_piece_by_piece_and_begun_again_when_it_goes() {
    let mut observer = observer();
    let told = response(1, 3, |partition| {
        partition.snapshot_id.end_offset = 40;
        partition.snapshot_id.epoch = 2;
    });
    let piece = |position, bytes: &'static [u8], error: ErrorCode| {
        let mut partition = snapshot::PartitionSnapshot {
            error_code: error.0,
            size: 7,
            position,
            unaligned_records: Records::from(Bytes::from_static(bytes)),
            ..Default::default()
        };
        (
            partition.snapshot_id.end_offset,
            partition.snapshot_id.epoch,
        ) = (40, 2);
        (
            partition.current_leader.leader_id,
            partition.current_leader.leader_epoch,
        ) = (1, 3);
        FetchSnapshotResponse {
            topics: vec![snapshot::TopicSnapshot {
                partitions: vec![partition],
                ..Default::default()
            }],
            ..Default::default()
        }
    };
    let position = |observer: &Observer| match observer.next(log(0, 0)) {
        Ask::Snapshot(request) => Some(request.topics[0].partitions[0].position),
        Ask::Fetch(_) => None,
    };
    assert_eq!(observer.fetched(&told, log(0, 0)), Ok(Step::Again));
    assert_eq!(position(&observer), Some(0));
    let first = piece(0, b"abcd", ErrorCode::NONE);
    assert_eq!(observer.snapshot_fetched(&first), Ok(Step::Again));
    assert_eq!(position(&observer), Some(4));
    // Gone: a Fetch tells which there is now.
    let gone = piece(4, b"", ErrorCode::SNAPSHOT_NOT_FOUND);
    assert_eq!(observer.snapshot_fetched(&gone), Ok(Step::Pause));
    assert_eq!(position(&observer), None);
    assert_eq!(observer.fetched(&told, log(0, 0)), Ok(Step::Again));
    assert_eq!(observer.snapshot_fetched(&first), Ok(Step::Again));
    let last = piece(4, b"efg", ErrorCode::NONE);
    let id = SnapshotId {
        end: Offset(40),
        epoch: LeaderEpoch(2),
    };
    assert_eq!(
        observer.snapshot_fetched(&last),
        Ok(Step::Install(id, Bytes::from_static(b"abcdefg")))
    );
    assert_eq!(observer.high_watermark(), Some(Offset(40)));
    assert_eq!(position(&observer), None);
    // What does not follow is not taken.
    assert_eq!(observer.fetched(&told, log(0, 0)), Ok(Step::Again));
    assert_eq!(observer.snapshot_fetched(&last), Ok(Step::Pause));
    assert_eq!(position(&observer), None);
}
