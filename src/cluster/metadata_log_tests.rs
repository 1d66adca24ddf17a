//! The metadata log on a real directory, on the ring: reload, torn tails, damage, transactions,
//! snapshots.

use super::*;
use crate::rt::{RingPlan, run_ring};
use crate::wire::messages::topic_record::TopicRecord;
use std::future::Future;

const NODE: NodeId = NodeId(1);
const NOW_MS: i64 = 1_700_000_000_000;

fn on_ring<F>(test: impl Fn(PathBuf) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    run_ring(RingPlan::default(), move |executor| {
        let (test, path) = (test.clone(), path.clone());
        async move {
            if executor.is_control() {
                test(path).await;
            }
        }
    })
    .unwrap();
}

fn topic(id: u64) -> MetadataRecord {
    MetadataRecord::from(TopicRecord {
        name: format!("t{id}").into(),
        topic_id: Uuid::from_halves(7, id),
        ..Default::default()
    })
}

fn segment(dir: &Path) -> PathBuf {
    dir.join("__cluster_metadata-0/00000000000000000000.log")
}

/// A log with `count` topics, one batch each; gives the position of each batch's end.
async fn filled(dir: &Path, count: u64) -> Vec<u64> {
    let (mut log, _) = MetadataLog::open(dir, NODE).await.unwrap();
    let mut ends = vec![log.position];
    for id in 0..count {
        log.append(&[topic(id)], NOW_MS).await.unwrap();
        ends.push(log.position);
    }
    ends
}

#[test]
fn a_restart_finds_every_record_and_begins_a_new_epoch() {
    on_ring(|dir| async move {
        filled(&dir, 3).await;
        let (log, image) = MetadataLog::open(&dir, NODE).await.unwrap();
        assert_eq!(image.topics().count(), 3);
        assert_eq!(image.offset(), 3);
        // Two leader changes and three records.
        assert_eq!((log.next_offset(), log.epoch), (Offset(5), LeaderEpoch(2)));
        let home = dir.join(METADATA_TOPIC_DIR);
        let read = |name: &str| std::fs::read_to_string(home.join(name)).unwrap();
        assert_eq!(read("leader-epoch-checkpoint"), "0\n2\n1 0\n2 4\n");
        assert_eq!(
            read("partition.metadata"),
            "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
        );
        assert!(read("quorum-state").contains("\"leaderEpoch\":2"));
    });
}

#[test]
fn a_write_that_a_crash_cut_anywhere_is_removed_and_nothing_else() {
    on_ring(|dir| async move {
        let ends = filled(&dir, 2).await;
        let whole = std::fs::read(segment(&dir)).unwrap();
        let kept = ends[1] as usize;
        for cut in kept..whole.len() {
            // Cut off, and cut off with the length already there (zeros).
            for zeros in [0, whole.len() - cut] {
                let mut bytes = whole[..cut].to_vec();
                bytes.resize(cut + zeros, 0);
                if bytes == whole {
                    continue; // what was cut were zeros
                }
                std::fs::write(segment(&dir), &bytes).unwrap();
                let (log, image) = MetadataLog::open(&dir, NODE).await.unwrap();
                assert_eq!(image.topics().count(), 1, "cut at {cut}, {zeros} zeros");
                assert_eq!(log.next_offset(), Offset(3), "cut at {cut}, {zeros} zeros");
                let bytes = std::fs::read(segment(&dir)).unwrap();
                assert_eq!(bytes[..kept], whole[..kept], "cut at {cut}, {zeros} zeros");
            }
        }
    });
}

#[test]
fn damage_before_a_whole_batch_stops_the_start_instead_of_losing_what_is_behind() {
    on_ring(|dir| async move {
        let ends = filled(&dir, 2).await;
        let whole = std::fs::read(segment(&dir)).unwrap();
        for at in [
            ends[0] as usize + 9,
            ends[0] as usize + 16,
            ends[0] as usize + 40,
            ends[1] as usize - 1,
        ] {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x41;
            std::fs::write(segment(&dir), &bytes).unwrap();
            let error = MetadataLog::open(&dir, NODE).await.map(|_| ()).unwrap_err();
            assert!(
                matches!(error, MetadataLogError::Replay { .. }),
                "damage at {at}: {error}"
            );
            assert_eq!(
                std::fs::read(segment(&dir)).unwrap(),
                bytes,
                "the file is left as it is"
            );
        }
    });
}

#[test]
fn a_transaction_that_was_not_ended_has_not_happened() {
    on_ring(|dir| async move {
        let (mut log, _) = MetadataLog::open(&dir, NODE).await.unwrap();
        let begin = || MetadataRecord::from(BeginTransactionRecord::default());
        let end = MetadataRecord::from(EndTransactionRecord::default());
        log.append(&[begin(), topic(1), end], NOW_MS).await.unwrap();
        log.append(&[begin(), topic(2)], NOW_MS).await.unwrap();
        drop(log);
        for _ in 0..2 {
            let (_, image) = MetadataLog::open(&dir, NODE).await.unwrap();
            let names: Vec<_> = image.topics().map(|topic| topic.name.to_string()).collect();
            assert_eq!(names, ["t1"]);
        }
        let (mut log, _) = MetadataLog::open(&dir, NODE).await.unwrap();
        log.append(&[topic(3)], NOW_MS).await.unwrap();
        let (_, image) = MetadataLog::open(&dir, NODE).await.unwrap();
        assert_eq!(
            image.topics().count(),
            2,
            "the abort in the log ends the old transaction"
        );
    });
}

#[test]
fn a_change_of_more_records_than_a_batch_holds_is_one_transaction() {
    on_ring(|dir| async move {
        let (mut log, _) = MetadataLog::open(&dir, NODE).await.unwrap();
        let many: Vec<MetadataRecord> = (0..RECORDS_PER_BATCH_MAX as u64 + 1).map(topic).collect();
        let framed = MetadataLog::framed(many.clone());
        assert_eq!(framed.len(), many.len() + 2);
        let first = log.append(&framed, NOW_MS).await.unwrap();
        assert_eq!(
            (first, log.next_offset()),
            (Offset(1), Offset(1 + framed.len() as i64))
        );
        let before = log.position;
        drop(log);
        let (_, image) = MetadataLog::open(&dir, NODE).await.unwrap();
        assert_eq!(image.topics().count(), many.len());
        // The second of its batches is lost: the whole change is.
        let bytes = std::fs::read(segment(&dir)).unwrap();
        std::fs::write(segment(&dir), &bytes[..before as usize - 1]).unwrap();
        let (_, image) = MetadataLog::open(&dir, NODE).await.unwrap();
        assert_eq!(image.topics().count(), 0);
    });
}

#[test]
fn what_is_before_the_first_segment_comes_from_the_newest_snapshot() {
    on_ring(|dir| async move {
        filled(&dir, 4).await;
        let home = dir.join(METADATA_TOPIC_DIR);
        let bytes = std::fs::read(segment(&dir)).unwrap();
        // Offsets 0 to 2 (a leader change, two topics) go; a snapshot holds them.
        let mut rest = Bytes::from(bytes);
        for _ in 0..3 {
            let (_, behind) = crate::wire::batch::Batch::parse(&rest).unwrap();
            rest = behind;
        }
        std::fs::remove_file(segment(&dir)).unwrap();
        std::fs::write(home.join("00000000000000000003.log"), &rest).unwrap();
        let error = MetadataLog::open(&dir, NODE).await.map(|_| ()).unwrap_err();
        assert!(
            matches!(
                error,
                MetadataLogError::NoSnapshot {
                    begin: Offset(3),
                    ..
                }
            ),
            "{error}"
        );

        let id = SnapshotId {
            end: Offset(3),
            epoch: LeaderEpoch(1),
        };
        let snapshot = snapshot::encode(&[topic(0), topic(1)], id, NOW_MS).unwrap();
        std::fs::write(home.join(id.file_name()), &snapshot).unwrap();
        let (log, image) = MetadataLog::open(&dir, NODE).await.unwrap();
        assert_eq!(image.topics().count(), 4);
        assert_eq!(log.next_offset(), Offset(6));
        assert!(log.path.ends_with("00000000000000000003.log"));
    });
}

#[test]
fn a_hole_in_the_offsets_is_not_read_over() {
    on_ring(|dir| async move {
        let ends = filled(&dir, 2).await;
        let mut bytes = std::fs::read(segment(&dir)).unwrap();
        bytes.drain(ends[0] as usize..ends[1] as usize);
        std::fs::write(segment(&dir), &bytes).unwrap();
        let error = MetadataLog::open(&dir, NODE).await.map(|_| ()).unwrap_err();
        let gap = matches!(
            error,
            MetadataLogError::Replay {
                source: ReplayError::Gap {
                    found: Offset(2),
                    expected: Offset(1),
                    ..
                },
                ..
            }
        );
        assert!(gap, "{error}");
    });
}
