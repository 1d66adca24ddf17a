//! What a crash, a bit flip or somebody else's hands leave behind.

use super::*;
use crate::rt;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime};

async fn filled(shard: &Rc<LogShard>, dir: &Path, batches: usize) -> Rc<Log> {
    let (log, _) = open(shard, dir, small_segments()).await;
    for _ in 0..batches {
        append(&log, 2, 100);
    }
    log.abandon().await;
    log
}

#[test]
fn a_tail_torn_at_any_byte_costs_only_the_torn_batch() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let log = filled(&shard, &dir, 6).await;
        let path = files(&log, "log").pop().unwrap();
        let whole = fs::read(&path).unwrap();
        let batch = whole.len() / 6;
        for keep in (whole.len() - 2 * batch..=whole.len()).rev() {
            fs::write(&path, &whole[..keep]).unwrap();
            let (log, report) = open(&shard, &dir, small_segments()).await;
            let batches = keep / batch;
            assert_eq!(log.log_end(), Offset(2 * batches as i64), "cut at {keep}");
            // A tail of zeros is what reserved space looks like: no damage is reported for it.
            let torn = whole[batches * batch..keep].iter().any(|&byte| byte != 0);
            assert_eq!(report.cuts.len(), usize::from(torn));
            assert_eq!(fs::metadata(&path).unwrap().len(), (batches * batch) as u64);
            let appended = append(&log, 1, 5);
            assert_eq!(appended.first_offset, Offset(2 * batches as i64));
            assert_eq!(read_all(&log, Offset(0)).await.len(), batches + 1);
            log.abandon().await;
        }
    });
}

#[test]
fn a_flipped_bit_ends_the_log_there_and_later_segments_go() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let log = filled(&shard, &dir, 100).await;
        let paths = files(&log, "log");
        assert!(paths.len() > 3);
        let mut bytes = fs::read(&paths[1]).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(&paths[1], &bytes).unwrap();
        let (log, report) = open(&shard, &dir, small_segments()).await;
        assert_eq!(report.cuts.len(), 1);
        assert_eq!(report.segments_deleted.len(), paths.len() - 2);
        assert_eq!(log.segment_count(), 2);
        let cut = &report.cuts[0];
        assert!(cut.position <= middle as u64 && cut.position + 400 > middle as u64);
        assert_eq!(cut.bytes, bytes.len() as u64 - cut.position);
        assert_eq!(
            read_all(&log, Offset(0)).await.last().unwrap().1 + 1,
            log.log_end().0
        );
        assert_eq!(append(&log, 1, 5).first_offset.next(), log.log_end());
    });
}

#[test]
fn garbage_or_missing_indexes_are_rebuilt_also_after_a_clean_stop() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits {
            recent_batch_bytes: 0,
            ..ShardLimits::default()
        });
        let (log, _) = open(&shard, &dir, small_segments()).await;
        for _ in 0..100 {
            append(&log, 2, 100);
        }
        log.close().await.unwrap();
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
            let mut reopen = open_of(&dir, small_segments());
            reopen.clean_shutdown = true;
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
        let shard = LogShard::new(ShardLimits {
            recent_batch_bytes: 0,
            ..ShardLimits::default()
        });
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
                let mut reopen = open_of(&dir, small_segments());
                reopen.clean_shutdown = true;
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
fn a_clean_stop_is_believed_and_leaves_trimmed_indexes() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, small_segments()).await;
        for _ in 0..50 {
            append(&log, 2, 100);
        }
        log.close().await.unwrap();
        for path in files(&log, "index") {
            assert!(fs::metadata(path).unwrap().len() < 1000);
        }
        assert_eq!(
            files(&log, "snapshot").last().unwrap().file_stem().unwrap(),
            "00000000000000000100"
        );
        let mut reopen = open_of(&dir, small_segments());
        reopen.clean_shutdown = true;
        let (log, report) = Log::open(&shard, reopen.clone()).await.unwrap();
        assert_eq!((report.segments_checked, log.log_end()), (0, Offset(100)));
        assert_eq!(log.durable(), Offset(100));
        log.abandon().await;
        // Without the marker only the segment of the recovery point is read.
        reopen.clean_shutdown = false;
        reopen.recovery_point = Offset(100);
        let (log, report) = Log::open(&shard, reopen).await.unwrap();
        assert_eq!((report.segments_checked, log.log_end()), (1, Offset(100)));
    });
}

#[test]
fn a_segment_that_a_cut_opens_again_rolls_by_the_time_of_its_first_batch() {
    on_shard(|dir| async move {
        let config = || LogConfig {
            segment_ms: 1000,
            ..LogConfig::default()
        };
        let at = |log: &Log, after_ms| {
            let batch = batch_of(&[NOW_MS + after_ms], 100);
            log.append_as_leader(batch, as_leader()).unwrap();
        };
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, config()).await;
        at(&log, 0);
        at(&log, 0);
        log.roll(NOW_MS);
        at(&log, 0);
        log.close().await.unwrap();
        let open = LogOpen {
            clean_shutdown: true,
            recovery_point: log.log_end(),
            ..open_of(&dir, config())
        };
        let (log, _) = Log::open(&shard, open).await.unwrap();
        log.truncate_to(Offset(1)).await.unwrap();
        assert_eq!(log.segment_count(), 1);
        at(&log, 600);
        assert_eq!(log.segment_count(), 1);
        at(&log, 1200);
        assert_eq!(log.segment_count(), 2);
    });
}

#[test]
fn leftovers_of_an_interrupted_compaction_are_put_right() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let log = filled(&shard, &dir, 60).await;
        let paths = files(&log, "log");
        let dir_of = log.dir();
        // A complete compaction output for the first two segments, and an incomplete one.
        let mut merged = fs::read(&paths[0]).unwrap();
        merged.extend(fs::read(&paths[1]).unwrap());
        fs::write(dir_of.join("00000000000000000000.log.swap"), &merged).unwrap();
        fs::write(dir_of.join("00000000000000000000.index.swap"), b"").unwrap();
        fs::write(dir_of.join("00000000000000000100.log.cleaned"), b"half").unwrap();
        fs::write(dir_of.join("00000000000000000001.log.deleted"), b"old").unwrap();
        fs::write(dir_of.join("00000000000000000007.index"), b"orphan").unwrap();
        let (log, report) = open(&shard, &dir, small_segments()).await;
        assert!(report.cuts.is_empty());
        assert_eq!(log.segment_count(), paths.len() - 1);
        assert_eq!(read_all(&log, Offset(0)).await.len(), 60);
        for entry in fs::read_dir(dir_of.as_path()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(
                !name.ends_with(".swap") && !name.ends_with(".cleaned"),
                "{name}"
            );
            assert!(!name.ends_with(".deleted") && !name.starts_with("00000000000000000007"));
        }
    });
}

#[test]
fn another_topics_directory_is_not_taken_over() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        filled(&shard, &dir, 1).await;
        let mut other = open_of(&dir, small_segments());
        other.topic_id = Uuid::from_halves(8, 8);
        let error = Log::open(&shard, other).await.err().unwrap();
        assert!(matches!(error, LogError::TopicId { .. }));
    });
}

#[test]
fn a_log_that_ends_before_its_start_starts_over() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        filled(&shard, &dir, 10).await;
        let mut reopen = open_of(&dir, small_segments());
        reopen.log_start = Some(Offset(500));
        let (log, _) = Log::open(&shard, reopen).await.unwrap();
        assert_eq!((log.log_start(), log.log_end()), (Offset(500), Offset(500)));
        assert_eq!(append(&log, 1, 1).first_offset, Offset(500));
    });
}

/// What a partition's directory holds, with the times of the last changes.
fn state_of(dir: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let entries = std::fs::read_dir(dir).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let changed = |path: PathBuf| {
        let changed = std::fs::metadata(&path).unwrap().modified().unwrap();
        (path, changed)
    };
    paths.chain([dir.to_owned()]).map(changed).collect()
}

#[test]
fn stopping_a_log_that_nothing_was_written_to_changes_nothing_on_the_disk() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        for _ in 0..20 {
            append(&log, 3, 500);
        }
        let end = log.log_end();
        log.close().await.unwrap();
        let clean = || LogOpen {
            clean_shutdown: true,
            recovery_point: end,
            ..open_of(&dir, LogConfig::default())
        };
        let before = state_of(&log.dir());
        let (log, report) = Log::open(&shard, clean()).await.unwrap();
        assert_eq!(report.segments_checked, 0);
        log.start_epoch(LeaderEpoch(9));
        log.close().await.unwrap();
        assert_eq!(state_of(&log.dir()), before);
        let (log, _) = Log::open(&shard, clean()).await.unwrap();
        assert_eq!(log.latest_epoch(), Some(LeaderEpoch(1)));
        assert_eq!(read_all(&log, Offset(0)).await.len(), 20);
        // What is written after such a life is closed as ever.
        append(&log, 3, 500);
        log.close().await.unwrap();
        assert_ne!(state_of(&log.dir()), before);
        let clean = LogOpen {
            recovery_point: end,
            ..clean()
        };
        let (log, report) = Log::open(&shard, clean).await.unwrap();
        assert_eq!(report.segments_checked, 0);
        assert_eq!(read_all(&log, Offset(0)).await.len(), 21);
        log.close().await.unwrap();
    });
}

#[test]
fn an_epoch_reaches_the_disk_with_its_first_record() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        let file = log.dir().join(names::LEADER_EPOCH_CHECKPOINT);
        log.start_epoch(LeaderEpoch(1));
        rt::sleep(Duration::from_millis(20)).await;
        assert!(!file.exists());
        append(&log, 1, 10);
        while !file.exists() {
            rt::sleep(Duration::from_millis(1)).await;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text, "0\n1\n1 0\n");
        log.close().await.unwrap();
    });
}
