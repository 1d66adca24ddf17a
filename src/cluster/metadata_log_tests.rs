//! The metadata log on a real directory, on the ring: reload, torn tails, damage, truncation,
//! segments, snapshots, reading.

use super::*;
use crate::cluster::image::Image;
use crate::cluster::record::MetadataRecord;
use crate::cluster::snapshot;
use crate::cluster::test_kit::on_ring;
use crate::log::names::METADATA_TOPIC_DIR;
use crate::wire::batch_builder::BatchBuilder;
use crate::wire::messages::topic_record::TopicRecord;

const NOW_MS: i64 = 1_700_000_000_000;

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

fn settings() -> MetadataLogSettings {
    MetadataLogSettings {
        segment_bytes: 1 << 30,
        segment_ms: i64::MAX,
        snapshot_bytes: 1 << 20,
        snapshot_interval_ms: 0,
        retention_bytes: -1,
        retention_ms: -1,
    }
}

/// The log and the image that it adds up to.
async fn open_with(
    dir: &Path,
    settings: MetadataLogSettings,
) -> Result<(Opened, Image), MetadataLogError> {
    let mut opened = MetadataLog::open(dir, settings, Damage::Fatal).await?;
    for batch in &opened.tail {
        opened.replay.batch(batch).unwrap();
    }
    assert_eq!(opened.replay.next_offset(), opened.log.next_offset());
    let image = opened.replay.image().clone();
    Ok((opened, image))
}

async fn open(dir: &Path) -> Result<(MetadataLog, Image), MetadataLogError> {
    let (opened, image) = open_with(dir, settings()).await?;
    Ok((opened.log, image))
}

fn batch(log: &MetadataLog, epoch: i32, records: &[MetadataRecord]) -> Bytes {
    batch_at(log.next_offset(), epoch, records)
}

fn batch_at(offset: Offset, epoch: i32, records: &[MetadataRecord]) -> Bytes {
    let mut batch = BatchBuilder::new();
    (batch.base_offset, batch.leader_epoch) = (offset, LeaderEpoch(epoch));
    for record in records {
        let value = record.encode().unwrap();
        batch.append(NOW_MS, None, Some(&value), &[]).unwrap();
    }
    batch.build().unwrap()
}

async fn add(log: &mut MetadataLog, epoch: i32, id: u64) {
    let batch = batch(log, epoch, &[topic(id)]);
    log.append(&[batch], true).await.unwrap();
}

fn position(log: &MetadataLog) -> u64 {
    log.segments.last().unwrap().size
}

/// A log with `count` topics, one batch each; gives the position of each batch's end.
async fn filled(dir: &Path, count: u64) -> Vec<u64> {
    let (mut log, _) = open(dir).await.unwrap();
    let mut ends = vec![position(&log)];
    for id in 0..count {
        add(&mut log, 1, id).await;
        ends.push(position(&log));
    }
    ends
}

#[test]
fn a_restart_finds_every_record() {
    on_ring(|dir| async move {
        filled(&dir, 3).await;
        let (mut log, image) = open(&dir).await.unwrap();
        assert_eq!(image.topics().count(), 3);
        assert_eq!((image.offset(), log.next_offset()), (2, Offset(3)));
        add(&mut log, 2, 9).await;
        let home = dir.join(METADATA_TOPIC_DIR);
        let read = |name: &str| std::fs::read_to_string(home.join(name)).unwrap();
        assert_eq!(read("leader-epoch-checkpoint"), "0\n2\n1 0\n2 3\n");
        assert_eq!(
            read("partition.metadata"),
            "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
        );
        let end = |epoch| log.end_offset_for_epoch(LeaderEpoch(epoch));
        assert_eq!(end(0), None);
        assert_eq!(end(1), Some((LeaderEpoch(1), Offset(3))));
        assert_eq!(end(7), Some((LeaderEpoch(2), Offset(4))));
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
                let (log, image) = open(&dir).await.unwrap();
                assert_eq!(image.topics().count(), 1, "cut at {cut}, {zeros} zeros");
                assert_eq!(log.next_offset(), Offset(1), "cut at {cut}, {zeros} zeros");
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
            let error = open(&dir).await.map(|_| ()).unwrap_err();
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
fn what_is_before_the_first_segment_comes_from_the_newest_snapshot() {
    on_ring(|dir| async move {
        filled(&dir, 4).await;
        let home = dir.join(METADATA_TOPIC_DIR);
        let bytes = std::fs::read(segment(&dir)).unwrap();
        // Offsets 0 to 2 go; a snapshot holds them.
        let mut rest = Bytes::from(bytes);
        for _ in 0..3 {
            let (_, behind) = crate::wire::batch::Batch::parse(&rest).unwrap();
            rest = behind;
        }
        std::fs::remove_file(segment(&dir)).unwrap();
        std::fs::write(home.join("00000000000000000003.log"), &rest).unwrap();
        let error = open(&dir).await.map(|_| ()).unwrap_err();
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
        let records = [topic(0), topic(1), topic(2)];
        let snapshot = snapshot::encode(&records, id, NOW_MS).unwrap();
        std::fs::write(home.join(id.file_name()), &snapshot).unwrap();
        for _ in 0..2 {
            // No sidecar says how many batches were before, as with Kafka's: the end does, for good.
            let (opened, image) = open_with(&dir, settings()).await.unwrap();
            assert_eq!(image.topics().count(), 4);
            assert_eq!((opened.base.index, opened.tail.len()), (3, 1));
            assert_eq!(opened.log.next_offset(), Offset(4));
            assert_eq!(opened.log.start_offset(), Offset(3));
        }
    });
}

#[test]
fn a_hole_in_the_offsets_is_not_read_over() {
    on_ring(|dir| async move {
        let ends = filled(&dir, 3).await;
        let mut bytes = std::fs::read(segment(&dir)).unwrap();
        bytes.drain(ends[1] as usize..ends[2] as usize);
        std::fs::write(segment(&dir), &bytes).unwrap();
        let error = open(&dir).await.map(|_| ()).unwrap_err();
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

#[test]
fn several_batches_written_at_once_may_be_torn_anywhere_and_no_batch_before_or_after() {
    on_ring(|dir| async move {
        let (mut log, _) = open(&dir).await.unwrap();
        add(&mut log, 1, 0).await;
        let mut batches = Vec::new();
        for at in 1..4 {
            batches.push(batch_at(Offset(at), 1, &[topic(at as u64)]));
        }
        let begin = position(&log) as usize;
        log.append(&batches, true).await.unwrap();
        drop(log);
        let whole = std::fs::read(segment(&dir)).unwrap();
        let mut torn = whole.clone();
        torn[begin + 10..begin + 50].fill(0);
        std::fs::write(segment(&dir), &torn).unwrap();
        let (mut log, image) = open(&dir).await.unwrap();
        assert_eq!((image.topics().count(), log.next_offset()), (1, Offset(1)));
        // Written again and one more: now the same damage is damage.
        log.append(&batches, true).await.unwrap();
        add(&mut log, 1, 4).await;
        drop(log);
        let mut torn = std::fs::read(segment(&dir)).unwrap();
        torn[begin + 10..begin + 50].fill(0);
        std::fs::write(segment(&dir), &torn).unwrap();
        assert!(open(&dir).await.is_err());
        // An observer gets it again from its leader.
        let opened = MetadataLog::open(&dir, settings(), Damage::FetchedAgain).await;
        assert_eq!(opened.unwrap().log.next_offset(), Offset(1));
    });
}

#[test]
fn a_cut_takes_everything_from_an_offset_on_over_segments() {
    on_ring(|dir| async move {
        let small = MetadataLogSettings {
            segment_bytes: 400,
            ..settings()
        };
        let (opened, _) = open_with(&dir, small.clone()).await.unwrap();
        let mut log = opened.log;
        for id in 0..30 {
            add(&mut log, 1 + id as i32 / 10, id).await;
        }
        assert!(log.segments.len() > 5, "{}", log.segments.len());
        let error = log
            .append(&[batch_at(Offset(7), 9, &[topic(7)])], true)
            .await;
        assert!(matches!(error, Err(MetadataLogError::Divergence(_))));
        for keep in [25, 11, 10] {
            log.truncate_to(Offset(keep)).await.unwrap();
            assert_eq!(log.next_offset(), Offset(keep));
            let (reopened, image) = open_with(&dir, small.clone()).await.unwrap();
            assert_eq!(image.topics().count() as i64, keep);
            assert_eq!(reopened.log.segments.len(), log.segments.len());
            assert_eq!(reopened.log.epochs, log.epochs);
        }
        add(&mut log, 5, 77).await;
        let (_, image) = open_with(&dir, small).await.unwrap();
        assert_eq!(image.topics().count(), 11);
        assert_eq!(
            log.epochs,
            [(LeaderEpoch(1), Offset(0)), (LeaderEpoch(5), Offset(10))]
        );
    });
}

#[test]
fn reading_gives_whole_batches_from_the_one_that_holds_the_offset() {
    on_ring(|dir| async move {
        let small = MetadataLogSettings {
            segment_bytes: 40_000,
            ..settings()
        };
        let (opened, _) = open_with(&dir, small).await.unwrap();
        let mut log = opened.log;
        let mut bytes = Vec::new();
        for id in 0..900u64 {
            let records = [topic(2 * id), topic(2 * id + 1)];
            let batch = batch(&log, 1, &records);
            bytes.push(batch.clone());
            log.append(&[batch], id % 100 == 0).await.unwrap();
        }
        assert!(log.segments.len() > 2);
        for at in [0usize, 1, 250, 251, 899] {
            let offset = Offset(2 * at as i64 + 1);
            let end = log.next_offset();
            let one = log.read(offset, end, 1).run().await.unwrap();
            assert_eq!(one, bytes[at], "{at}");
            let some = log.read(offset, end, 3 * one.len()).run().await.unwrap();
            assert!(bytes[at..].concat().starts_with(&some), "{at}");
            assert!(some.len() >= one.len());
            let until = Offset(2 * at as i64 + 2);
            let committed = log.read(offset, until, 1 << 20).run().await.unwrap();
            assert_eq!(committed, bytes[at], "{at}");
        }
        let end = log.next_offset();
        assert!(log.read(end, end, 10).run().await.unwrap().is_empty());
    });
}

#[test]
fn snapshots_end_segments_and_what_they_replace_goes_by_the_limits() {
    on_ring(|dir| async move {
        let limits = MetadataLogSettings {
            retention_bytes: 1,
            ..settings()
        };
        let (opened, _) = open_with(&dir, limits.clone()).await.unwrap();
        let mut log = opened.log;
        let mut records = Vec::new();
        for id in 0..12u64 {
            add(&mut log, 1 + id as i32 / 5, id).await;
            records.push(topic(id));
            if id % 3 == 2 {
                let (end, epoch) = (log.next_offset(), log.last_epoch());
                let id_ = SnapshotId { end, epoch };
                let bytes = snapshot::encode(&records, id_, NOW_MS).unwrap();
                log.write_snapshot(id_, bytes, Some(id + 1)).await.unwrap();
            }
        }
        add(&mut log, 3, 12).await;
        assert_eq!(log.snapshots.len(), 2, "two are always kept");
        assert_eq!(log.start_offset(), Offset(9), "the log begins at the older");
        let (mut opened, image) = open_with(&dir, limits).await.unwrap();
        assert_eq!(image.topics().count(), 13);
        assert_eq!((opened.base.index, opened.base.end), (12, Offset(12)));
        assert_eq!(opened.log.epochs, log.epochs);
        let newest = opened.log.newest_snapshot().unwrap();
        // A leader's snapshot replaces everything.
        let id = SnapshotId {
            end: Offset(50),
            epoch: LeaderEpoch(8),
        };
        let bytes = snapshot::encode(&records, id, NOW_MS).unwrap();
        opened
            .log
            .install_snapshot(id, bytes, Some(40))
            .await
            .unwrap();
        assert!(opened.log.snapshot_bytes(newest).is_some());
        add(&mut opened.log, 8, 99).await;
        drop(opened);
        let (opened, image) = open_with(&dir, settings()).await.unwrap();
        assert_eq!((opened.base.index, opened.tail.len()), (40, 1));
        assert_eq!((image.topics().count(), image.offset()), (13, 50));
        assert_eq!(
            opened.log.end_offset_for_epoch(LeaderEpoch(8)),
            Some((LeaderEpoch(8), Offset(51)))
        );
        assert_eq!(opened.log.end_offset_for_epoch(LeaderEpoch(7)), None);
    });
}

#[test]
fn a_log_that_contradicts_its_newest_snapshot_was_being_replaced_by_it() {
    on_ring(|dir| async move {
        filled(&dir, 6).await;
        let home = dir.join(METADATA_TOPIC_DIR);
        // The log reaches further, but with an epoch that lost.
        let id = SnapshotId {
            end: Offset(4),
            epoch: LeaderEpoch(2),
        };
        let bytes = snapshot::encode(&[topic(70)], id, NOW_MS).unwrap();
        std::fs::write(home.join(id.file_name()), &bytes).unwrap();
        let (opened, image) = open_with(&dir, settings()).await.unwrap();
        assert_eq!(
            (opened.log.start_offset(), opened.tail.len()),
            (Offset(4), 0)
        );
        assert_eq!(image.topics().count(), 1);
        assert!(!segment(&dir).exists());
    });
}
