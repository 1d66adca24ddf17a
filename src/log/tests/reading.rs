//! Appending, reading and looking up on one log.

use super::*;
use crate::wire::ErrorCode;

#[test]
fn a_batch_written_on_the_spot_is_readable_at_once_and_from_the_disk() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        let first = append(&log, 3, 10);
        assert_eq!(
            (first.first_offset, first.last_offset),
            (Offset(0), Offset(2))
        );
        assert_eq!(
            log.written(),
            log.log_end(),
            "buffered appends are written on return"
        );
        let second = append(&log, 2, 100_000);
        assert_eq!(second.first_offset, Offset(3));
        let cached = log.read(Offset(0), Offset(5), 1 << 20, true).await.unwrap();
        assert_eq!(batches(&cached).len(), 2);
        assert_eq!(batches(&cached)[0].partition_leader_epoch(), LeaderEpoch(1));
        shard.recent.forget(log.key());
        let cold = log.read(Offset(1), Offset(5), 1 << 20, true).await.unwrap();
        assert_eq!(cold.records, cached.records);
        assert_eq!(cold.position.unwrap().offset, Offset(0));
        assert_eq!(cold.upper_bound, Offset(5));
        let bytes = std::fs::read(&files(&log, "log")[0]).unwrap();
        assert_eq!(bytes, cold.records.to_bytes());
    });
}

#[test]
fn a_read_never_cuts_a_batch_nor_passes_the_upper_bound() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        for _ in 0..3 {
            append(&log, 2, 50_000);
        }
        for cold in [false, true] {
            if cold {
                shard.recent.forget(log.key());
            }
            let none = log.read(Offset(0), Offset(6), 10, false).await.unwrap();
            assert!(none.records.is_empty());
            let one = log.read(Offset(0), Offset(6), 10, true).await.unwrap();
            assert_eq!(one.upper_bound, Offset(2));
            let two = log
                .read(Offset(0), Offset(6), 250_000, false)
                .await
                .unwrap();
            assert_eq!(two.upper_bound, Offset(4));
            let bounded = log.read(Offset(0), Offset(5), 1 << 20, true).await.unwrap();
            assert_eq!(
                bounded.upper_bound,
                Offset(4),
                "the third batch reaches past the bound"
            );
            let empty = log.read(Offset(6), Offset(6), 1 << 20, true).await.unwrap();
            assert!(empty.records.is_empty());
            let error = log.read(Offset(7), Offset(7), 1, true).await.unwrap_err();
            assert!(matches!(error, LogError::OutOfRange { .. }));
        }
    });
}

#[test]
fn a_repeated_batch_of_an_idempotent_producer_is_answered_with_its_first_offsets() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        append(&log, 5, 10);
        let bytes = builder_of(&[NOW_MS; 3], 10)
            .with_producer(77, 0, 0)
            .build()
            .unwrap();
        let first = log.append_as_leader(bytes.clone(), as_leader()).unwrap();
        let again = log.append_as_leader(bytes.clone(), as_leader()).unwrap();
        assert!(again.duplicate && !first.duplicate);
        assert_eq!(again.first_offset, first.first_offset);
        assert_eq!(log.log_end(), Offset(8));
        // Also after a clean stop and after a crash.
        log.close().await.unwrap();
        let mut reopen = open_of(&dir, LogConfig::default());
        reopen.clean_shutdown = true;
        let (log, _) = Log::open(&shard, reopen).await.unwrap();
        assert_eq!(log.log_end(), Offset(8));
        assert!(
            log.append_as_leader(bytes.clone(), as_leader())
                .unwrap()
                .duplicate
        );
        log.abandon().await;
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        assert!(log.append_as_leader(bytes, as_leader()).unwrap().duplicate);
        let gap = builder_of(&[NOW_MS], 10)
            .with_producer(77, 0, 9)
            .build()
            .unwrap();
        let error = log.append_as_leader(gap, as_leader()).unwrap_err();
        assert_eq!(error.code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    });
}

#[test]
fn offsets_are_found_by_time_over_segments_and_inside_batches() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits {
            recent_batch_bytes: 0,
            ..ShardLimits::default()
        });
        let (log, _) = open(&shard, &dir, small_segments()).await;
        let mut stamps = Vec::new();
        for step in 0..200i64 {
            let times = [NOW_MS + step * 10, NOW_MS + step * 10 + 5];
            stamps.extend(times);
            log.append_as_leader(batch_of(&times, 20), as_leader())
                .unwrap();
        }
        log.writer_idle().await;
        assert!(log.segment_count() > 3);
        for target in (NOW_MS - 3..NOW_MS + 2005).step_by(3) {
            let want = stamps.iter().position(|stamp| *stamp >= target);
            let found = log.offset_for_timestamp(target).await.unwrap();
            assert_eq!(found.map(|f| f.offset.0 as usize), want, "target {target}");
            assert_eq!(found.map(|f| f.timestamp), want.map(|at| stamps[at]));
        }
        let largest = log.max_timestamp_offset().await.unwrap().unwrap();
        assert_eq!(
            (largest.offset, largest.timestamp),
            (Offset(399), NOW_MS + 1995)
        );
    });
}

#[test]
fn a_look_up_by_time_scans_one_index_interval_however_long_time_stood_still() {
    on_shard(|dir| async move {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let shard = LogShard::new(ShardLimits::default());
        let config = LogConfig {
            index_interval_bytes: 1000,
            segment_bytes: 100_000,
            ..LogConfig::default()
        };
        let (log, _) = open(&shard, &dir, config).await;
        let (mut now, mut stamps) = (NOW_MS, Vec::new());
        for _ in 0..1500 {
            if rng.u8(..) < 5 {
                now += rng.i64(1..1000);
            }
            // Late records do not raise the largest timestamp.
            let stamp = now - if rng.bool() { rng.i64(0..3000) } else { 0 };
            stamps.push(stamp);
            log.append_as_leader(batch_of(&[stamp], 150), as_leader())
                .unwrap();
        }
        log.writer_idle().await;
        for at in 0..stamps.len() {
            let target = stamps[at] + rng.i64(-1..2);
            let want = stamps.iter().position(|stamp| *stamp >= target);
            let found = log.offset_for_timestamp(target).await.unwrap();
            assert_eq!(found.map(|f| f.offset.0 as usize), want, "target {target}");
            let Some(want) = want.map(|at| Offset(at as i64)) else {
                continue;
            };
            let state = log.state();
            let segment = &state.segments[&state.floor_base(want)];
            let floor = segment.floor_offset_by_time(target).unwrap();
            let batches = want.0 - floor.0;
            assert!((0..=8).contains(&batches), "{batches} batches to {want}");
        }
        let largest = log.max_timestamp_offset().await.unwrap().unwrap();
        let first = stamps.iter().position(|stamp| *stamp == largest.timestamp);
        assert_eq!(Some(&largest.timestamp), stamps.iter().max());
        assert_eq!(Some(largest.offset.0 as usize), first);
    });
}

#[test]
fn with_flush_messages_one_nothing_counts_before_it_is_flushed() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let config = LogConfig {
            flush_messages: 1,
            ..LogConfig::default()
        };
        let (log, _) = open(&shard, &dir, config).await;
        assert_eq!(log.durability(), Durability::PageCacheFlushed);
        for _ in 0..10 {
            append(&log, 1, 100);
        }
        assert_eq!(log.written(), Offset(10));
        assert_eq!(log.counted(), Offset(0));
        log.wait_counted(Offset(10)).await.unwrap();
        assert_eq!(log.durable(), Offset(10));
        assert_eq!(
            shard.flush_stats().rounds,
            1,
            "ten appends of one turn share a flush"
        );
    });
}

#[test]
fn writing_back_is_begun_only_in_a_block_that_was_flushed_before() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        let segment = log.state().active().clone();
        assert_eq!(segment.rest_of_block(), None, "nothing is written");
        append(&log, 1, 100);
        assert_eq!(
            segment.rest_of_block(),
            None,
            "the block is not on the device"
        );
        log.flush().await.unwrap();
        let first = segment.written();
        assert_eq!(segment.rest_of_block(), None, "all of it is flushed");
        append(&log, 1, 100);
        let second = segment.written();
        assert_eq!(segment.rest_of_block(), Some(first..second));
        append(&log, 1, 4096);
        assert_eq!(
            segment.rest_of_block(),
            None,
            "some of it lies in a new block"
        );
        log.flush().await.unwrap();
        log.truncate_to(Offset(1)).await.unwrap();
        assert_eq!(segment.rest_of_block(), None);
        append(&log, 1, 50);
        assert_eq!(segment.rest_of_block(), Some(first..segment.written()));
    });
}

#[test]
fn direct_appends_give_the_same_file_as_buffered_ones() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits {
            recent_batch_bytes: 0,
            ..ShardLimits::default()
        });
        let config = LogConfig {
            segment_io: SegmentIo::Direct,
            segment_bytes: 200_000,
            ..LogConfig::default()
        };
        let (log, _) = open(&shard, &dir, config.clone()).await;
        let mut want = Vec::new();
        for size in [10, 5000, 1, 4096, 70_000, 3, 60_000, 90_000, 17] {
            let appended = append(&log, 1, size);
            want.push((appended.first_offset.0, appended.last_offset.0));
            if size % 2 == 0 {
                log.wait_counted(log.log_end()).await.unwrap();
            }
        }
        log.wait_counted(log.log_end()).await.unwrap();
        assert_eq!(read_all(&log, Offset(0)).await, want);
        log.abandon().await;
        let (log, report) = open(&shard, &dir, config.clone()).await;
        assert_eq!(report.cuts, vec![], "reserved space is no damage");
        assert_eq!(read_all(&log, Offset(0)).await, want);
        let appended = append(&log, 1, 100);
        want.push((appended.first_offset.0, appended.last_offset.0));
        log.wait_counted(log.log_end()).await.unwrap();
        assert_eq!(read_all(&log, Offset(0)).await, want);
        let size = log.size_bytes();
        log.close().await.unwrap();
        let on_disk: u64 = files(&log, "log")
            .iter()
            .map(|f| std::fs::metadata(f).unwrap().len())
            .sum();
        assert_eq!(on_disk, size, "a clean stop leaves no padding");
    });
}

#[test]
fn retention_keeps_what_is_above_the_high_watermark() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let config = LogConfig {
            retention_bytes: 5000,
            retention_ms: -1,
            ..small_segments()
        };
        let (log, _) = open(&shard, &dir, config).await;
        for _ in 0..100 {
            append(&log, 2, 100);
        }
        log.writer_idle().await;
        let before = log.size_bytes();
        assert!(log.apply_retention(NOW_MS, Offset(0)).deleted.is_empty());
        let report = log.apply_retention(NOW_MS, log.log_end());
        assert!(report.deleted.iter().all(|d| d.2 == RetentionCause::Size));
        assert_eq!(log.size_bytes(), before - report.bytes());
        assert!(log.size_bytes() >= 5000 && log.size_bytes() < 5000 + 4096);
        assert!(log.log_start() > Offset(0));
        let error = log
            .read(Offset(0), log.log_end(), 1, true)
            .await
            .unwrap_err();
        assert!(matches!(error, LogError::OutOfRange { .. }));
        let found = read_all(&log, log.log_start()).await;
        assert_eq!(found.first().unwrap().0, log.log_start().0);

        let config = LogConfig {
            retention_ms: 1000,
            ..small_segments()
        };
        log.update_config(config);
        let end = log.log_end();
        let report = log.apply_retention(NOW_MS + 2000, end);
        assert!(report.deleted.iter().all(|d| d.2 == RetentionCause::Time));
        assert_eq!(
            (log.log_start(), log.size_bytes()),
            (end, 0),
            "the active segment went too"
        );
        assert_eq!(append(&log, 1, 10).first_offset, end);
    });
}

#[test]
fn a_reader_whose_index_retention_took_away_gets_no_storage_error() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits {
            sealed_index_bytes: 0,
            ..ShardLimits::default()
        });
        let config = LogConfig {
            retention_ms: 1000,
            ..small_segments()
        };
        let (log, _) = open(&shard, &dir, config).await;
        for _ in 0..100 {
            append(&log, 2, 100);
        }
        log.flush().await.unwrap();
        // Rolls are completed in any order, and the one that was last keeps its index.
        let unloaded = || {
            let state = log.state();
            let mut segments = state.segments.values();
            let found = segments.find(|s| s.is_sealed() && !s.indexes_resident());
            found.cloned()
        };
        let unloaded = loop {
            match unloaded() {
                Some(segment) => break segment,
                None => crate::rt::sleep(std::time::Duration::from_millis(1)).await,
            }
        };
        log.apply_retention(NOW_MS + 2000, log.log_end());
        while !log.state().doomed.is_empty() {
            crate::rt::sleep(std::time::Duration::from_millis(1)).await;
        }
        log.load_indexes(&unloaded).await.unwrap();
        let read = log.read(Offset(0), log.log_end(), 1, true).await;
        assert!(matches!(read, Err(LogError::OutOfRange { .. })));
        assert!(!log.is_offline());
    });
}

#[test]
fn a_follower_takes_batches_as_the_leader_wrote_them() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (leader, _) = open(&shard, &dir, small_segments()).await;
        for _ in 0..60 {
            append(&leader, 2, 100);
        }
        leader.writer_idle().await;
        let follower_dir = dir.join("follower");
        std::fs::create_dir(&follower_dir).unwrap();
        let (follower, _) = open(&shard, &follower_dir, small_segments()).await;
        while follower.log_end() < leader.log_end() {
            let from = follower.log_end();
            let read = leader
                .read(from, leader.log_end(), 3000, true)
                .await
                .unwrap();
            let epoch = LeaderEpoch(1);
            follower
                .append_as_follower(read.records.to_bytes(), epoch, NOW_MS)
                .unwrap();
        }
        follower.writer_idle().await;
        assert_eq!(
            read_all(&follower, Offset(0)).await,
            read_all(&leader, Offset(0)).await
        );
        let concat = |log: &Log| -> Vec<u8> {
            files(log, "log")
                .iter()
                .flat_map(|f| std::fs::read(f).unwrap())
                .collect()
        };
        assert_eq!(concat(&follower), concat(&leader));
        assert_eq!(
            follower.end_offset_for_epoch(LeaderEpoch(1)),
            Some((LeaderEpoch(1), Offset(120)))
        );
    });
}

#[test]
fn deleted_partitions_leave_under_their_doomed_name() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        append(&log, 1, 10);
        log.mark_deleted().await.unwrap();
        let name = log.dir().file_name().unwrap().to_str().unwrap().to_owned();
        assert!(
            name.starts_with("orders-3.") && name.ends_with("-delete"),
            "{name}"
        );
        let error = log
            .append_as_leader(batch_of(&[NOW_MS], 1), as_leader())
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::NOT_LEADER_OR_FOLLOWER);
        // A new incarnation of the partition may be created meanwhile.
        let (again, _) = open(&shard, &dir, LogConfig::default()).await;
        assert_eq!(again.log_end(), Offset(0));
        log.delete_files(std::time::Duration::ZERO).await.unwrap();
        assert!(!log.dir().exists());
    });
}

#[test]
fn a_change_of_segment_io_holds_from_the_next_segment_on_and_over_a_restart() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits {
            recent_batch_bytes: 0,
            ..ShardLimits::default()
        });
        let of = |segment_io| LogConfig {
            segment_io,
            segment_bytes: 20_000,
            ..LogConfig::default()
        };
        let kinds = |log: &Log| -> Vec<SegmentIo> {
            let state = log.state();
            let handles = state.segments.values().filter_map(|s| s.handles());
            handles.map(|handles| handles.io).collect()
        };
        let (log, _) = open(&shard, &dir, of(SegmentIo::Buffered)).await;
        let mut want = Vec::new();
        // Appends once, then until there are so many segments.
        let mut fill = async |log: &Rc<Log>, segments: usize| {
            loop {
                let appended = append(log, 2, 700);
                want.push((appended.first_offset.0, appended.last_offset.0));
                if log.segment_count() >= segments {
                    break;
                }
            }
            log.wait_counted(log.log_end()).await.unwrap();
            log.writer_idle().await;
            assert_eq!(read_all(log, Offset(0)).await, want, "across both kinds");
        };
        fill(&log, 2).await;
        // As IncrementalAlterConfigs does it: the open segment stays what it is.
        log.update_config(of(SegmentIo::Direct));
        fill(&log, 2).await;
        use SegmentIo::{Buffered, Direct};
        assert_eq!(kinds(&log), [Buffered, Buffered]);
        fill(&log, 4).await;
        assert_eq!(kinds(&log), [Buffered, Buffered, Direct, Direct]);
        log.update_config(of(SegmentIo::Buffered));
        fill(&log, 5).await;
        assert_eq!(kinds(&log)[3..], [Direct, Buffered]);
        // The open segment is taken up in the other way after a crash, and after a clean stop.
        log.abandon().await;
        let (log, report) = open(&shard, &dir, of(SegmentIo::Direct)).await;
        assert_eq!(report.cuts, vec![]);
        fill(&log, 6).await;
        assert_eq!(kinds(&log)[4..], [Direct, Direct]);
        log.close().await.unwrap();
        let mut again = open_of(&dir, of(SegmentIo::Buffered));
        again.clean_shutdown = true;
        let (log, _) = Log::open(&shard, again).await.unwrap();
        fill(&log, 7).await;
        assert_eq!(kinds(&log)[5..], [Buffered, Buffered]);
        log.close().await.unwrap();
    });
}
