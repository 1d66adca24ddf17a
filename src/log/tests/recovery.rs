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
    for segment_io in [SegmentIo::Buffered, SegmentIo::Direct] {
        for flush_messages in [1, i64::MAX] {
            on_shard(move |dir| torn_at_any_byte(dir, segment_io, flush_messages));
        }
    }
}

async fn torn_at_any_byte(dir: PathBuf, segment_io: SegmentIo, flush_messages: i64) {
    let shard = LogShard::new(ShardLimits::default());
    let config = LogConfig {
        segment_io,
        flush_messages,
        ..small_segments()
    };
    let (log, _) = open(&shard, &dir, config.clone()).await;
    for _ in 0..6 {
        append(&log, 2, 100);
    }
    log.abandon().await;
    let path = files(&log, "log").pop().unwrap();
    let mut whole = fs::read(&path).unwrap();
    // Without the space that is reserved behind them.
    whole.truncate(log.size_bytes() as usize);
    let batch = whole.len() / 6;
    // What follows from two batches follows from one, at less time where each start flushes.
    let batches_cut = if config.reserves_space() { 1 } else { 2 };
    for keep in (whole.len() - batches_cut * batch..=whole.len()).rev() {
        fs::write(&path, &whole[..keep]).unwrap();
        let (log, report) = open(&shard, &dir, config.clone()).await;
        let batches = keep / batch;
        assert_eq!(log.log_end(), Offset(2 * batches as i64), "cut at {keep}");
        // A tail of zeros is what reserved space looks like, where the row reserves any.
        let mut left = whole[batches * batch..keep].iter();
        let torn = match config.reserves_space() {
            true => left.any(|&byte| byte != 0),
            false => left.next().is_some(),
        };
        assert_eq!(report.cuts.len(), usize::from(torn), "cut at {keep}");
        let appended = append(&log, 1, 5);
        assert_eq!(appended.first_offset, Offset(2 * batches as i64));
        assert_eq!(read_all(&log, Offset(0)).await.len(), batches + 1);
        log.abandon().await;
    }
}

#[test]
fn zeros_behind_the_last_batch_are_a_loss_only_where_no_space_is_reserved() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let flushed = LogConfig {
            flush_messages: 1,
            ..small_segments()
        };
        for (config, is_loss) in [(small_segments(), true), (flushed, false)] {
            let log = filled(&shard, &dir, 6).await;
            let path = files(&log, "log").pop().unwrap();
            let len = fs::metadata(&path).unwrap().len();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_len(len + 5000).unwrap();
            let (log, report) = open(&shard, &dir, config).await;
            let bytes: Vec<u64> = report.cuts.iter().map(|cut| cut.bytes).collect();
            assert_eq!(bytes, if is_loss { vec![5000] } else { vec![] });
            assert_eq!(log.log_end().0 % 12, 0);
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
fn a_hole_where_a_cleaner_has_been_is_no_loss() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, small_segments()).await;
        for _ in 0..60 {
            append(&log, 2, 100);
        }
        log.close().await.unwrap();
        // Kafka's cleaner leaves no segment where it keeps no record.
        let logs = files(&log, "log");
        assert!(logs.len() > 3);
        for extension in ["log", "index", "timeindex"] {
            fs::remove_file(logs[1].with_extension(extension)).unwrap();
        }
        let base_of = |path: &Path| -> i64 {
            let stem = path.file_stem().unwrap().to_str().unwrap();
            stem.parse().unwrap()
        };
        let (cleaned, end) = (Offset(base_of(&logs[2])), log.log_end());
        let reopen = |first_dirty| {
            let mut open = open_of(&dir, small_segments());
            open.config.compact = true;
            open.first_dirty = first_dirty;
            open
        };
        // No recovery point is known.
        let (log, report) = Log::open(&shard, reopen(Some(cleaned))).await.unwrap();
        assert!(report.segments_deleted.is_empty());
        assert_eq!((log.log_end(), log.segment_count()), (end, logs.len() - 1));
        log.abandon().await;
        let (log, report) = Log::open(&shard, reopen(None)).await.unwrap();
        assert_eq!(report.segments_deleted.len(), logs.len() - 2);
        assert_eq!(log.log_end(), Offset(base_of(&logs[1])));
        log.abandon().await;
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
