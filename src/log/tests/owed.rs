//! What a log owes on a full disk, after a restart, in another directory and in odd places: nothing
//! of it may be forgotten.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use super::lives::start;
use super::*;
use crate::log::journal::Journals;
use crate::rt::sim::{Disk, NodeHandle, World};
use crate::types::PartitionId;

const LOG_DIR: &str = "/data";
const LOGS: i32 = 5;

fn open_in(partition: i32, io: SegmentIo) -> LogOpen {
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

async fn begin() -> (Rc<LogShard>, Arc<Journals>) {
    let shard = LogShard::new(ShardLimits {
        journal_bytes: 8 << 20,
        ..ShardLimits::default()
    });
    let journals = Arc::new(Journals::read(Path::new(LOG_DIR)).await.unwrap());
    shard.found_journals(Path::new(LOG_DIR), journals.clone());
    (shard, journals)
}

async fn open_all(io: SegmentIo) -> Result<(Rc<LogShard>, Vec<Rc<Log>>), LogError> {
    let (shard, _) = begin().await;
    let mut logs = Vec::new();
    for partition in 0..LOGS {
        logs.push(Log::open(&shard, open_in(partition, io)).await?.0);
    }
    Ok((shard, logs))
}

/// Ends of the logs; not before some of them were made durable by a frame only.
async fn fill(io: SegmentIo, ends: &RefCell<Vec<Offset>>) {
    crate::rt::fs::create_dir_all(LOG_DIR).await.unwrap();
    crate::rt::fs::sync_dir("/").await.unwrap();
    let (shard, logs) = open_all(io).await.unwrap();
    for _ in 0..60 {
        for log in &logs {
            append(log, 2, 900);
        }
        for log in &logs {
            log.wait_counted(log.log_end()).await.unwrap();
        }
        *ends.borrow_mut() = logs.iter().map(|log| log.log_end()).collect();
    }
    assert!(shard.flush_stats().journal_frames > 10);
}

/// Once all logs are filled: the power goes, and comes back with only so much room on the disk.
fn restart_when_filled(world: &World, node: &NodeHandle, ends: &RefCell<Vec<Offset>>, room: u64) {
    let all = || ends.borrow().first() == Some(&Offset(120));
    assert!(world.run_until(Duration::from_secs(60), all), "{ends:?}");
    node.lose_power();
    let disk = node.disk();
    disk.set_capacity(Some(disk.used() + room));
    node.restart();
}

#[test]
fn what_does_not_fit_when_the_journal_is_taken_back_is_taken_back_later() {
    let mut short = 0;
    for seed in 0..40 {
        let io = [SegmentIo::Buffered, SegmentIo::Direct][seed as usize % 2];
        let world = World::new(seed);
        let node = world.add_node("broker");
        let ends = Rc::new(RefCell::new(Vec::new()));
        let life = Rc::new(Cell::new(0));
        let refused = Rc::new(Cell::new(false));
        let (known, lives, told) = (ends.clone(), life.clone(), refused.clone());
        start(&node, move || {
            let (known, lives, told) = (known.clone(), lives.clone(), told.clone());
            async move {
                lives.set(lives.get() + 1);
                if lives.get() == 1 {
                    fill(io, &known).await;
                    return std::future::pending().await;
                }
                match open_all(io).await {
                    Ok((_, logs)) => {
                        let found: Vec<Offset> = logs.iter().map(|log| log.log_end()).collect();
                        assert!(found >= *known.borrow(), "{found:?} {known:?}");
                        if lives.get() == 3 {
                            for log in &logs {
                                assert_eq!(read_all(log, Offset(0)).await.len(), 60);
                            }
                            lives.set(4);
                        }
                    }
                    Err(error) => {
                        assert!(lives.get() == 2 && error.is_no_space(), "{error}");
                        told.set(true);
                    }
                }
                std::future::pending().await
            }
        });
        restart_when_filled(&world, &node, &ends, 997 * seed);
        world.run_for(Duration::from_secs(5));
        node.lose_power();
        node.disk().heal();
        node.restart();
        let found = || life.get() == 4;
        assert!(
            world.run_until(Duration::from_secs(60), found),
            "seed {seed}"
        );
        short += u32::from(refused.get());
    }
    assert!(short > 5, "only {short} found the disk full");
}

/// As a shard does: what finds no room now is opened when there is some.
async fn open_as_there_is_room(io: SegmentIo, disk: &Disk, ends: &[Offset]) -> usize {
    let journal_files = async || {
        let entries = crate::rt::fs::read_dir(LOG_DIR).await.unwrap();
        let names = entries.iter().map(|entry| &entry.name);
        names.filter(|name| name.contains("journal")).count()
    };
    let (shard, journals) = begin().await;
    let mut logs = Vec::new();
    let mut late = Vec::new();
    for partition in 0..LOGS {
        match Log::open(&shard, open_in(partition, io)).await {
            Ok((log, _)) => logs.push(log),
            Err(error) => {
                assert!(error.is_no_space(), "{error}");
                journals.expect(PartitionId {
                    topic: open_in(partition, io).topic_id,
                    index: partition,
                });
                late.push(partition);
            }
        }
    }
    journals.started().await.unwrap();
    assert_eq!(journal_files().await > 0, !late.is_empty());
    disk.heal();
    for partition in &late {
        journals.remove_if_settled().await.unwrap();
        assert!(
            journal_files().await > 0,
            "{partition} has not been taken back"
        );
        let (log, _) = Log::open(&shard, open_in(*partition, io)).await.unwrap();
        logs.push(log);
    }
    journals.remove_if_settled().await.unwrap();
    assert_eq!(journal_files().await, 0);
    for log in &logs {
        assert!(log.log_end() >= ends[log.partition() as usize]);
        assert_eq!(read_all(log, Offset(0)).await.len(), 60);
    }
    late.len()
}

#[test]
fn a_log_that_found_no_room_takes_the_journal_back_in_the_same_life() {
    let mut late = 0;
    for seed in 0..40 {
        let io = [SegmentIo::Buffered, SegmentIo::Direct][seed as usize % 2];
        let world = World::new(seed);
        let node = world.add_node("broker");
        let ends = Rc::new(RefCell::new(Vec::new()));
        let opened = Rc::new(Cell::new(None));
        let (disk, known, told) = (node.disk(), ends.clone(), opened.clone());
        start(&node, move || {
            let (disk, known, told) = (disk.clone(), known.clone(), told.clone());
            async move {
                if known.borrow().is_empty() {
                    fill(io, &known).await;
                } else {
                    let ends = known.borrow().clone();
                    told.set(Some(open_as_there_is_room(io, &disk, &ends).await));
                }
                std::future::pending().await
            }
        });
        restart_when_filled(&world, &node, &ends, 997 * seed);
        let done = || opened.get().is_some();
        assert!(
            world.run_until(Duration::from_secs(60), done),
            "seed {seed}"
        );
        late += opened.get().unwrap_or_default();
    }
    assert!(late > 5, "only {late} found the disk full");
}

/// A log that started over at 7000 and got batches that only frames have, with its files gone: it is
/// opened on a full disk while a new journal is at work.
async fn begin_late(disk: &Disk, room: u64) -> bool {
    let (shard, _) = begin().await;
    let mut logs = Vec::new();
    for partition in 1..LOGS {
        let open = open_in(partition, SegmentIo::Buffered);
        logs.push(Log::open(&shard, open).await.unwrap().0);
    }
    while shard.flush_stats().journal_frames == 0 {
        for log in &logs {
            append(log, 1, 900);
        }
        for log in &logs {
            log.wait_counted(log.log_end()).await.unwrap();
        }
        crate::rt::sleep(Duration::from_millis(20)).await;
    }
    let dir = open_dir(0);
    for entry in crate::rt::fs::read_dir(&dir).await.unwrap() {
        if entry.name.starts_with("00") {
            crate::rt::fs::remove_file(dir.join(&entry.name))
                .await
                .unwrap();
        }
    }
    crate::rt::fs::sync_dir(&dir).await.unwrap();
    disk.set_capacity(Some(disk.used() + room));
    let opened = Log::open(&shard, open_in(0, SegmentIo::Buffered)).await;
    opened.is_err_and(|error| error.is_no_space())
}

fn open_dir(partition: i32) -> std::path::PathBuf {
    Path::new(LOG_DIR).join(format!("orders-{partition}"))
}

#[test]
fn taking_back_in_vain_tells_the_new_journal_nothing_of_it() {
    let mut refused = 0;
    for seed in 0..30 {
        let world = World::new(seed);
        let node = world.add_node("broker");
        let life = Rc::new(Cell::new(0));
        let done = Rc::new(Cell::new(0));
        let (disk, lives, told) = (node.disk(), life.clone(), done.clone());
        start(&node, move || {
            let (disk, lives, told) = (disk.clone(), lives.clone(), told.clone());
            async move {
                lives.set(lives.get() + 1);
                match lives.get() {
                    1 => fill_over().await,
                    2 => {
                        if begin_late(&disk, 997 * seed).await {
                            told.set(1);
                        }
                    }
                    _ => {
                        let (_, logs) = open_all(SegmentIo::Buffered).await.unwrap();
                        let first = &logs[0];
                        assert_eq!(first.log_start(), Offset(7000));
                        assert_eq!(first.log_end(), Offset(7040));
                        assert_eq!(read_all(first, Offset(7000)).await.len(), 20);
                    }
                }
                lives.set(lives.get() + 10);
                std::future::pending().await
            }
        });
        let reaches = |count| world.run_until(Duration::from_secs(60), || life.get() == count);
        assert!(reaches(11), "seed {seed}");
        life.set(1);
        node.kill();
        node.restart();
        assert!(reaches(12), "seed {seed}");
        life.set(2);
        refused += done.replace(0);
        node.kill();
        node.disk().heal();
        node.restart();
        assert!(reaches(13), "seed {seed}");
    }
    assert!(refused > 5, "only {refused} found the disk full");
}

/// All logs have frames; the first one starts over in between.
async fn fill_over() {
    crate::rt::fs::create_dir_all(LOG_DIR).await.unwrap();
    crate::rt::fs::sync_dir("/").await.unwrap();
    let (shard, logs) = open_all(SegmentIo::Buffered).await.unwrap();
    let round = async || {
        for log in &logs {
            append(log, 2, 900);
        }
        for log in &logs {
            log.wait_counted(log.log_end()).await.unwrap();
        }
    };
    while shard.flush_stats().journal_frames < 5 {
        round().await;
        crate::rt::sleep(Duration::from_millis(20)).await;
    }
    logs[0]
        .truncate_fully_and_start_at(Offset(7000))
        .await
        .unwrap();
    for _ in 0..20 {
        round().await;
    }
}

/// Runs `life` to its end, as the one process of a node with an empty log directory.
fn in_one_life<F>(seed: u64, life: impl Fn(Disk) -> F + 'static)
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
    let ended = world.run_until(Duration::from_secs(60), || done.get());
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
        let mut rounds = 0;
        while log.log_start() < log.log_end() {
            rounds += 1;
            assert!(rounds < 100, "{:?}", log.watermarks());
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
