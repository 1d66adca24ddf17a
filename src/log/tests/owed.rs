//! What a log owes on a full disk, after a restart, in another directory and in odd places: nothing
//! of it may be forgotten.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::lives::start;
use super::*;
use crate::rt::sim::{Disk, World};

pub(super) const LOG_DIR: &str = "/data";

pub(super) fn open_in(partition: i32, io: SegmentIo) -> LogOpen {
    let config = LogConfig {
        segment_io: io,
        flush_messages: 1,
        segment_bytes: 1 << 20,
        ..small_segments()
    };
    LogOpen {
        partition,
        ..open_of(Path::new(LOG_DIR), config)
    }
}

/// Runs `life` to its end, as the one process of a node with an empty log directory.
pub(super) fn in_one_life<F>(seed: u64, life: impl Fn(Disk) -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let world = World::new(seed);
    let node = world.add_node("broker");
    let done = Rc::new(Cell::new(false));
    let (disk, told, life) = (node.disk(), done.clone(), Rc::new(life));
    start(&node, move || {
        let (disk, told, life) = (disk.clone(), told.clone(), life.clone());
        async move {
            crate::rt::fs::create_dir_all(LOG_DIR).await.unwrap();
            life(disk).await;
            told.set(true);
        }
    });
    let ended = world.run_until(Duration::from_secs(120), || done.get());
    assert!(ended, "seed {seed}");
}

#[test]
fn an_epoch_that_a_full_disk_refused_is_written_once_there_is_room() {
    for seed in 0..20 {
        in_one_life(seed, move |disk| async move {
            let shard = LogShard::new(ShardLimits::default());
            let open = || open_in(0, SegmentIo::Buffered);
            let (log, _) = Log::open(&shard, open()).await.unwrap();
            append(&log, 1, 100);
            log.flush().await.unwrap();
            let newer = AppendAs {
                leader_epoch: LeaderEpoch(5),
                ..as_leader()
            };
            let bytes = batch_of(&[NOW_MS], 100);
            log.append_as_leader(bytes, newer).unwrap();
            // Before the task that writes the checkpoint runs.
            disk.set_capacity(Some(disk.used()));
            crate::rt::sleep(Duration::from_secs(1)).await;
            disk.heal();
            // So that no look at the log's tail finds where the epoch began.
            for _ in 0..20 {
                let bytes = batch_of(&[NOW_MS], 100);
                log.append_as_leader(bytes, newer).unwrap();
            }
            log.close().await.unwrap();
            let clean = LogOpen {
                clean_shutdown: true,
                recovery_point: Offset(22),
                ..open()
            };
            let (log, _) = Log::open(&shard, clean).await.unwrap();
            let found = (log.log_end(), log.end_offset_for_epoch(LeaderEpoch(1)));
            let ended = Some((LeaderEpoch(1), Offset(1)));
            assert_eq!(found, (Offset(22), ended), "seed {seed}");
        });
    }
}

#[test]
fn a_roll_that_a_full_disk_refused_is_completed_once_there_is_room() {
    in_one_life(3, |disk| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, Path::new(LOG_DIR), small_segments()).await;
        append(&log, 5, 300);
        log.flush().await.unwrap();
        log.roll(NOW_MS);
        // Before the task that completes it runs.
        disk.set_capacity(Some(disk.used()));
        crate::rt::sleep(Duration::from_secs(1)).await;
        assert!(!log.is_settled(), "the disk is full");
        disk.heal();
        crate::rt::sleep(Duration::from_secs(10)).await;
        assert!(log.is_settled());
    });
}

#[test]
fn a_log_whose_last_batch_is_half_written_moves_as_a_whole() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits {
            writes: small_writes(),
            ..ShardLimits::default()
        });
        let config = LogConfig {
            segment_io: SegmentIo::Direct,
            segment_bytes: 1 << 20,
            ..LogConfig::default()
        };
        let (from, to) = (dir.join("a"), dir.join("b"));
        for dir in [&from, &to] {
            std::fs::create_dir(dir).unwrap();
        }
        let (log, _) = open(&shard, &from, config.clone()).await;
        let name = names::future_dir(log.topic(), log.partition(), Uuid::from_halves(5, 6));
        let (copy, _) = Log::open_future(&shard, open_of(&to, config), &name)
            .await
            .unwrap();
        for round in 0..20 {
            for _ in 0..30 {
                append(&log, 1, 700 + 97 * round);
            }
            crate::rt::yield_now().await;
        }
        let held = log.hold_writes().await.unwrap();
        append(&log, 1, 50);
        while copy.log_end() < log.written() {
            let outcome = log
                .read(copy.log_end(), log.written(), 1 << 20, true)
                .await
                .unwrap();
            for batch in batches(&outcome) {
                copy.append_as_follower(batch.into_bytes(), LeaderEpoch(1), NOW_MS)
                    .unwrap();
            }
        }
        copy.flush().await.unwrap();
        let waited = log.log_end().0 - log.written().0;
        assert!(waited > 1, "nothing waited");
        copy.take_place_of(&held).await.unwrap();
        drop(held);
        log.flush().await.unwrap();
        assert_eq!(log.log_end(), Offset(601));
        assert_eq!(read_all(&log, Offset(0)).await.len(), 601);
        assert!(log.dir().starts_with(&to));
    });
}

#[test]
fn an_empty_log_starts_over_at_a_batch_that_its_segment_does_not_reach() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let (log, _) = open(&shard, &dir, small_segments()).await;
        let far: i64 = 3_000_000_000;
        for at in 0..20 {
            let mut bytes = batch_of(&[NOW_MS], 300).to_vec();
            bytes[..8].copy_from_slice(&(far + at).to_be_bytes());
            let append = || log.append_as_follower(bytes.clone().into(), LeaderEpoch(1), NOW_MS);
            match append() {
                Err(FollowError::StartOver(first)) => {
                    assert_eq!((at, first), (0, Offset(far)));
                    log.truncate_fully_and_start_at(first).await.unwrap();
                    append().unwrap();
                }
                appended => assert_eq!(appended.unwrap().log_end, Offset(far + at + 1)),
            }
        }
        log.close().await.unwrap();
        let (log, report) = open(&shard, &dir, small_segments()).await;
        assert_eq!(
            (log.log_end(), &report.cuts[..]),
            (Offset(far + 20), &[][..])
        );
        assert_eq!(read_all(&log, Offset(far)).await.len(), 20);
    });
}

#[test]
fn a_log_that_may_keep_no_byte_gives_up_its_last_segment_too() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let config = LogConfig {
            retention_bytes: 0,
            retention_ms: -1,
            ..small_segments()
        };
        let (log, _) = open(&shard, &dir, config).await;
        for _ in 0..20 {
            append(&log, 1, 600);
        }
        log.flush().await.unwrap();
        assert!(log.segment_count() > 2);
        let deadline = Instant::now() + Duration::from_secs(30);
        while log.log_start() < log.log_end() {
            assert!(Instant::now() < deadline, "{:?}", log.watermarks());
            log.apply_retention(NOW_MS, log.log_end());
            crate::rt::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(log.log_end(), Offset(20));
        assert_eq!(append(&log, 1, 10).last_offset, Offset(20));
    });
}

#[test]
fn a_restart_does_not_make_records_without_a_time_young_again() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let config = LogConfig {
            retention_ms: 3_600_000,
            ..small_segments()
        };
        let (log, _) = open(&shard, &dir, config.clone()).await;
        for _ in 0..30 {
            log.append_as_leader(batch_of(&[-1], 600), as_leader())
                .unwrap();
        }
        log.close().await.unwrap();
        let now = std::time::SystemTime::now();
        let mut files = 0;
        for entry in std::fs::read_dir(log.dir().as_path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "log") {
                let file = std::fs::File::options().write(true).open(path).unwrap();
                file.set_modified(now - Duration::from_secs(7200)).unwrap();
                files += 1;
            }
        }
        assert!(files > 2);
        let now_ms = crate::rt::wall_ms();
        let again = LogOpen {
            now_ms,
            clean_shutdown: true,
            recovery_point: Offset(30),
            ..open_of(&dir, config)
        };
        let (log, _) = Log::open(&shard, again).await.unwrap();
        let report = log.apply_retention(now_ms, log.log_end());
        assert_eq!(report.deleted.len(), files - 1, "all that had rolled");
    });
}
