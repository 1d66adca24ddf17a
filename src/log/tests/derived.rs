//! What follows from a log's batches and is lost or damaged: indexes, aborted transactions, leader
//! epochs. It is made again, and costs nothing else.

use super::*;
use crate::wire::batch_builder::end_txn_marker;
use std::fs;

fn without_cache() -> Rc<LogShard> {
    LogShard::new(ShardLimits {
        recent_batch_bytes: 0,
        ..ShardLimits::default()
    })
}

fn opened(dir: &Path) -> LogOpen {
    let mut open = open_of(dir, small_segments());
    open.producer_limits.verify_transactions = false;
    open
}

fn after_clean_stop(dir: &Path) -> LogOpen {
    LogOpen {
        clean_shutdown: true,
        ..opened(dir)
    }
}

/// A log of 100 batches with two records each, stopped cleanly.
async fn stopped(shard: &Rc<LogShard>, dir: &Path) -> Rc<Log> {
    let (log, _) = open(shard, dir, small_segments()).await;
    for _ in 0..100 {
        append(&log, 2, 100);
    }
    log.close().await.unwrap();
    log
}

#[test]
fn garbage_or_missing_indexes_are_rebuilt_also_after_a_clean_stop() {
    on_shard(|dir| async move {
        let shard = without_cache();
        let log = stopped(&shard, &dir).await;
        let want: Vec<(i64, i64)> = (0..100).map(|i| (2 * i, 2 * i + 1)).collect();
        let good: Vec<Vec<u8>> = files(&log, "index")
            .iter()
            .map(|path| fs::read(path).unwrap())
            .collect();
        for damage in 0..4 {
            let index = &files(&log, "index")[1];
            let time = files(&log, "timeindex").pop().unwrap();
            match damage {
                0 => fs::remove_file(index).unwrap(),
                1 => fs::write(index, b"garbage").unwrap(),
                2 => fs::write(&time, [0xff; 24]).unwrap(),
                _ => fs::remove_file(time).unwrap(),
            }
            let reopen = after_clean_stop(&dir);
            let (log, report) = Log::open(&shard, reopen).await.unwrap();
            assert!(report.segments_checked > 0 && report.cuts.is_empty());
            assert_eq!(read_all(&log, Offset(0)).await, want);
            log.close().await.unwrap();
            let rebuilt: Vec<Vec<u8>> = files(&log, "index")
                .iter()
                .map(|path| fs::read(path).unwrap())
                .collect();
            assert_eq!(rebuilt, good, "a rebuilt index is the index");
        }
    });
}

#[test]
fn indexes_of_sealed_segments_that_turn_out_wrong_are_made_again_and_cost_nothing() {
    on_shard(|dir| async move {
        let shard = without_cache();
        let (log, _) = open(&shard, &dir, small_segments()).await;
        // Two records a batch, a time of their own for each.
        let fill = |log: &Log| {
            while log.log_end() < Offset(200) {
                let time = NOW_MS + log.log_end().0 / 2;
                let bytes = batch_of(&[time, time], 100);
                log.append_as_leader(bytes, as_leader()).unwrap();
            }
        };
        fill(&log);
        log.close().await.unwrap();
        let want: Vec<(i64, i64)> = (0..100).map(|i| (2 * i, 2 * i + 1)).collect();
        let paths = |kind| files(&log, kind)[1].clone();
        let (index, times) = (paths("index"), paths("timeindex"));
        let good = (fs::read(&index).unwrap(), fs::read(&times).unwrap());
        let base: i64 = index
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        let size = fs::metadata(paths("log")).unwrap().len();
        let entries = good.0.len() / 8;
        assert!(entries > 2);
        let damages: [(&str, fn(&mut Vec<u8>, &mut Vec<u8>, u64)); 6] = [
            ("not in order", |index, _, _| index.reverse()),
            ("times not in order", |_, times, _| {
                times[..24].rotate_left(12)
            }),
            ("noise", |index, _, _| {
                index.iter_mut().for_each(|byte| *byte = fastrand::u8(..));
            }),
            ("past the end", |index, _, size| {
                let at = index.len() - 4;
                index[at..].copy_from_slice(&(size as u32 + 5).to_be_bytes());
            }),
            ("into the middle of batches", |index, _, _| {
                index.chunks_exact_mut(8).for_each(|entry| entry[7] += 1);
            }),
            ("entries missing", |index, _, _| index.truncate(8)),
        ];
        for (what, damage) in damages {
            for use_of_it in 0..4 {
                let (mut offsets, mut stamps) = good.clone();
                damage(&mut offsets, &mut stamps, size);
                fs::write(&index, &offsets).unwrap();
                fs::write(&times, &stamps).unwrap();
                let reopen = after_clean_stop(&dir);
                let (log, report) = Log::open(&shard, reopen).await.unwrap();
                assert_eq!(report.segments_checked, 0, "{what}");
                let inside = Offset(base / 2 * 2 + 2 * entries as i64);
                let first_read = |from| {
                    let log = log.clone();
                    async move {
                        let outcome = log.read(from, Offset(200), 1, true).await.unwrap();
                        outcome.position.unwrap().offset
                    }
                };
                match use_of_it {
                    0 => {
                        for at in base..log.log_end().0 {
                            assert_eq!(first_read(Offset(at)).await.0, at / 2 * 2, "{what}");
                        }
                    }
                    1 => {
                        let time = NOW_MS + inside.0 / 2;
                        let found = log.offset_for_timestamp(time).await.unwrap();
                        assert_eq!(found.unwrap().offset, inside, "{what}");
                    }
                    2 => {
                        let (one, two) = (first_read(inside), first_read(inside));
                        let found = futures_lite::future::zip(one, two).await;
                        assert_eq!(found, (inside, inside), "{what}");
                    }
                    _ => {
                        log.truncate_to(inside).await.unwrap();
                        assert_eq!(log.log_end(), inside, "{what}");
                        fill(&log);
                    }
                }
                assert_eq!(read_all(&log, Offset(0)).await, want, "{what}, {use_of_it}");
                log.close().await.unwrap();
                if what != "entries missing" {
                    assert_eq!(fs::read(&index).unwrap(), good.0, "{what}, {use_of_it}");
                }
            }
        }
    });
}

#[test]
fn a_lost_index_puts_no_other_segment_at_risk() {
    on_shard(|dir| async move {
        let shard = without_cache();
        let log = stopped(&shard, &dir).await;
        let (paths, indexes) = (files(&log, "log"), files(&log, "index"));
        assert!(paths.len() > 5);
        // Damage that nobody has met yet, far behind.
        let mut rotten = fs::read(&paths[3]).unwrap();
        let middle = rotten.len() / 2;
        rotten[middle] ^= 4;
        fs::write(&paths[3], &rotten).unwrap();
        let good = fs::read(&indexes[1]).unwrap();
        fs::remove_file(&indexes[1]).unwrap();
        let (log, report) = Log::open(&shard, after_clean_stop(&dir)).await.unwrap();
        assert_eq!(report.segments_checked, 1);
        assert!(report.cuts.is_empty() && report.segments_deleted.is_empty());
        assert_eq!((log.log_start(), log.log_end()), (Offset(0), Offset(200)));
        assert_eq!(files(&log, "log"), paths);
        assert_eq!(fs::read(&indexes[1]).unwrap(), good);
        assert_eq!(fs::read(&paths[3]).unwrap(), rotten);
        log.close().await.unwrap();
    });
}

/// A log with aborted transactions, some of which begin in one segment and end in another, stopped
/// cleanly.
async fn stopped_with_aborted(shard: &Rc<LogShard>, dir: &Path) -> Rc<Log> {
    let (log, _) = Log::open(shard, opened(dir)).await.unwrap();
    // Some begin in one segment and end in another.
    for round in 0..60u8 {
        let mut builder = BatchBuilder::new().with_producer(7, 0, i32::from(round));
        builder.transactional = true;
        let value = [round; 150];
        builder.append(NOW_MS, None, Some(&value), &[]).unwrap();
        let batch = builder.build().unwrap();
        log.append_as_leader(batch, as_leader()).unwrap();
        if round % 3 == 2 {
            let marker = end_txn_marker(7, 0, round % 2 == 0, 0, NOW_MS).unwrap();
            let as_coordinator = AppendAs {
                origin: Origin::Coordinator,
                ..as_leader()
            };
            log.append_as_leader(marker, as_coordinator).unwrap();
        }
    }
    log.close().await.unwrap();
    log
}

#[test]
fn aborted_transactions_are_read_from_the_batches_where_their_index_is_damaged() {
    on_shard(|dir| async move {
        let shard = without_cache();
        let log = stopped_with_aborted(&shard, &dir).await;
        let end = log.log_end();
        let want = log.aborted_transactions(Offset(0), end);
        assert!(want.len() > 5);
        let indexes = files(&log, "txnindex");
        assert!(indexes.len() > 2);
        for index in &indexes {
            let good = fs::read(index).unwrap();
            for snapshots_too in [false, true] {
                fs::write(index, b"garbage").unwrap();
                if snapshots_too {
                    for snapshot in files(&log, "snapshot") {
                        fs::remove_file(snapshot).unwrap();
                    }
                }
                let (log, report) = Log::open(&shard, after_clean_stop(&dir)).await.unwrap();
                assert_eq!((report.segments_checked, log.log_end()), (1, end));
                assert_eq!(log.aborted_transactions(Offset(0), end), want);
                assert_eq!(fs::read(index).unwrap(), good);
                log.close().await.unwrap();
            }
        }
    });
}

#[test]
fn a_damaged_batch_costs_no_aborted_transaction_behind_it_where_the_index_is_lost() {
    on_shard(|dir| async move {
        let shard = without_cache();
        let log = stopped_with_aborted(&shard, &dir).await;
        let want = log.aborted_transactions(Offset(0), log.log_end());
        let path = files(&log, "txnindex")[1].with_extension("log");
        let mut bytes = fs::read(&path).unwrap();
        // In its first batch.
        bytes[100] ^= 4;
        fs::write(&path, &bytes).unwrap();
        fs::remove_file(path.with_extension("index")).unwrap();
        let (log, report) = Log::open(&shard, after_clean_stop(&dir)).await.unwrap();
        assert_eq!(report.segments_checked, 1);
        let found = log.aborted_transactions(Offset(0), log.log_end());
        assert_eq!(found, want);
        log.close().await.unwrap();
    });
}

#[test]
fn leader_epochs_are_read_from_the_batches_where_their_checkpoint_is_damaged() {
    on_shard(|dir| async move {
        let shard = without_cache();
        let (log, _) = open(&shard, &dir, small_segments()).await;
        for round in 0..100 {
            let leader = AppendAs {
                leader_epoch: LeaderEpoch(3 + round / 30),
                ..as_leader()
            };
            let batch = batch_of(&[NOW_MS], 100);
            log.append_as_leader(batch, leader).unwrap();
        }
        log.close().await.unwrap();
        let file = log.dir().join(names::LEADER_EPOCH_CHECKPOINT);
        let good = fs::read_to_string(&file).unwrap();
        assert_eq!(good, "0\n4\n3 0\n4 30\n5 60\n6 90\n");
        fs::write(&file, "0\nmany\n").unwrap();
        let (log, report) = Log::open(&shard, after_clean_stop(&dir)).await.unwrap();
        assert_eq!(report.segments_checked, 0);
        for (offset, epoch) in [(0, 3), (29, 3), (30, 4), (99, 6)] {
            let found = log.epoch_for_offset(Offset(offset));
            assert_eq!(found, Some(LeaderEpoch(epoch)), "{offset}");
        }
        log.close().await.unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), good);
    });
}
