//! Journals of an earlier life on a full disk: what a log took from them and what it could not take
//! yet, what was cut while they stayed, and when they go.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use super::lives::start;
use super::owed::{LOG_DIR, in_one_life, open_in};
use super::*;
use crate::log::journal::Journals;
use crate::rt::sim::{Disk, NodeHandle, World};
use crate::types::PartitionId;

const LOGS: i32 = 5;

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

/// Every log gets a batch, and all of them count.
async fn round(logs: &[Rc<Log>]) {
    for log in logs {
        append(log, 2, 900);
    }
    for log in logs {
        log.wait_counted(log.log_end()).await.unwrap();
    }
}

/// Ends of the logs; not before some of them were made durable by a frame only.
async fn fill(io: SegmentIo, ends: &RefCell<Vec<Offset>>) {
    crate::rt::fs::create_dir_all(LOG_DIR).await.unwrap();
    crate::rt::fs::sync_dir("/").await.unwrap();
    let (shard, logs) = open_all(io).await.unwrap();
    for _ in 0..60 {
        round(&logs).await;
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

#[test]
fn what_a_journal_told_is_flushed_before_it_goes_also_if_the_topic_asks_for_no_flush_any_more() {
    for seed in 0..20 {
        let world = World::new(seed);
        let node = world.add_node("broker");
        let ends = Rc::new(RefCell::new(Vec::new()));
        let life = Rc::new(Cell::new(0));
        let (known, lives) = (ends.clone(), life.clone());
        start(&node, move || {
            let (known, lives) = (known.clone(), lives.clone());
            async move {
                if known.borrow().is_empty() {
                    fill(SegmentIo::Buffered, &known).await;
                    return std::future::pending().await;
                }
                let (shard, journals) = begin().await;
                let mut found = Vec::new();
                for partition in 0..LOGS {
                    let mut open = open_in(partition, SegmentIo::Buffered);
                    open.config.flush_messages = i64::MAX;
                    found.push(Log::open(&shard, open).await.unwrap().0.log_end());
                }
                assert!(found >= *known.borrow(), "{found:?} {known:?}");
                journals.started().await.unwrap();
                lives.set(lives.get() + 1);
                std::future::pending().await
            }
        });
        let all = || ends.borrow().first() == Some(&Offset(120));
        assert!(world.run_until(Duration::from_secs(60), all), "{ends:?}");
        // The page cache stays, so that nothing is taken back; then it goes.
        node.kill();
        for lives in 1..=2 {
            node.restart();
            let opened = || life.get() == lives;
            assert!(
                world.run_until(Duration::from_secs(60), opened),
                "seed {seed}"
            );
            node.lose_power();
        }
    }
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
/// opened on a full disk while others are at work, without a journal.
async fn begin_late(disk: &Disk, room: u64) -> bool {
    let (shard, _) = begin().await;
    let mut logs = Vec::new();
    for partition in 1..LOGS {
        let open = open_in(partition, SegmentIo::Buffered);
        logs.push(Log::open(&shard, open).await.unwrap().0);
    }
    for _ in 0..10 {
        for log in &logs {
            append(log, 1, 900);
        }
        for log in &logs {
            log.wait_counted(log.log_end()).await.unwrap();
        }
        crate::rt::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(shard.flush_stats().journal_frames, 0, "two journals");
    remove_segments(0).await;
    disk.set_capacity(Some(disk.used() + room));
    let opened = Log::open(&shard, open_in(0, SegmentIo::Buffered)).await;
    opened.is_err_and(|error| error.is_no_space())
}

async fn remove_segments(partition: i32) {
    let dir = Path::new(LOG_DIR).join(format!("orders-{partition}"));
    for entry in crate::rt::fs::read_dir(&dir).await.unwrap() {
        if entry.name.starts_with("00") {
            crate::rt::fs::remove_file(dir.join(&entry.name))
                .await
                .unwrap();
        }
    }
    crate::rt::fs::sync_dir(&dir).await.unwrap();
}

#[test]
fn no_new_journal_is_made_beside_an_old_one_of_which_a_log_has_taken_back_in_vain() {
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

/// All logs have frames; the first one starts over in between, the second where it ends.
async fn fill_over() {
    crate::rt::fs::create_dir_all(LOG_DIR).await.unwrap();
    crate::rt::fs::sync_dir("/").await.unwrap();
    let (shard, logs) = open_all(SegmentIo::Buffered).await.unwrap();
    while shard.flush_stats().journal_frames < 5 {
        round(&logs).await;
        crate::rt::sleep(Duration::from_millis(20)).await;
    }
    // Of the second, too, all that counts is in frames.
    for (log, start) in [(&logs[0], Offset(7000)), (&logs[1], logs[1].log_end())] {
        log.truncate_fully_and_start_at(start).await.unwrap();
    }
    for _ in 0..20 {
        round(&logs).await;
    }
}

/// The logs on a disk without room for the second one, whose files were lost; `None` if it found room.
async fn all_but_the_second(
    disk: &Disk,
    room: u64,
) -> Option<(Rc<LogShard>, Arc<Journals>, Vec<Rc<Log>>)> {
    let (shard, journals) = begin().await;
    let mut logs = Vec::new();
    for partition in [0, 2, 3, 4] {
        let open = open_in(partition, SegmentIo::Buffered);
        logs.push(Log::open(&shard, open).await.unwrap().0);
    }
    remove_segments(1).await;
    disk.set_capacity(Some(disk.used() + room));
    let open = open_in(1, SegmentIo::Buffered);
    let id = PartitionId {
        topic: open.topic_id,
        index: 1,
    };
    let opened = Log::open(&shard, open).await;
    if opened.is_ok() {
        return None;
    }
    journals.expect(id);
    Some((shard, journals, logs))
}

/// Begins a log anew at 20, if need be with a little more room; whether that was needed.
async fn start_lower(log: &Rc<Log>, disk: &Disk) -> bool {
    let before = log.log_end();
    let begun = log.truncate_fully_and_start_at(Offset(20)).await;
    let refused = begun.is_err_and(|error| error.is_no_space());
    if refused {
        assert_eq!(log.log_end(), before, "nothing was cut");
        give_room(disk);
        log.truncate_fully_and_start_at(Offset(20)).await.unwrap();
    }
    // Where a batch that the journal has continues it.
    append(log, 2, 100);
    log.flush().await.unwrap();
    refused
}

fn give_room(disk: &Disk) {
    disk.set_capacity(Some(disk.used() + (16 << 10)));
}

/// Two logs start over below what the old journal says, the first of them while others are still being
/// opened, and one goes and comes back empty.
async fn another_history(disk: &Disk, room: u64) -> Option<u32> {
    let (shard, journals, logs) = all_but_the_second(disk, room).await?;
    let mut refused = u32::from(start_lower(&logs[1], disk).await);
    journals.started().await.unwrap();
    refused += u32::from(start_lower(&logs[0], disk).await);
    logs[2].mark_deleted().await.unwrap();
    logs[2].delete_files(Duration::ZERO).await.unwrap();
    let again = || Log::open(&shard, open_in(3, SegmentIo::Buffered));
    let log = match again().await {
        Ok((log, _)) => log,
        Err(error) => {
            assert!(error.is_no_space(), "{error}");
            give_room(disk);
            again().await.unwrap().0
        }
    };
    assert_eq!(log.log_end(), Offset(0));
    Some(refused)
}

fn check_other_history(logs: [&Rc<Log>; 3]) {
    let range = |log: &Rc<Log>| (log.log_start(), log.log_end());
    let lower = (Offset(20), Offset(22));
    let ranges = logs.map(range);
    assert_eq!(ranges, [lower, lower, (Offset(0), Offset(0))]);
}

#[test]
fn an_old_journal_that_stays_for_one_log_raises_nothing_that_was_cut_of_others_since() {
    let (mut late, refused) = (0, Rc::new(Cell::new(0)));
    for seed in 0..30 {
        let world = World::new(seed);
        let node = world.add_node("broker");
        let (life, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let was_late = Rc::new(Cell::new(false));
        let (disk, lives, told) = (node.disk(), life.clone(), done.clone());
        let (kept, refusals) = (was_late.clone(), refused.clone());
        start(&node, move || {
            let (disk, lives, told) = (disk.clone(), lives.clone(), told.clone());
            let (kept, refusals) = (kept.clone(), refusals.clone());
            async move {
                lives.set(lives.get() + 1);
                match lives.get() {
                    1 => fill_over().await,
                    2 => {
                        let count = another_history(&disk, 997 * seed).await;
                        kept.set(count.is_some());
                        refusals.set(refusals.get() + count.unwrap_or_default());
                    }
                    3 if kept.get() => {
                        let (_, journals, logs) = all_but_the_second(&disk, 0).await.unwrap();
                        journals.started().await.unwrap();
                        check_other_history([&logs[0], &logs[1], &logs[2]]);
                    }
                    4 if kept.get() => {
                        let (shard, journals) = begin().await;
                        let mut logs = Vec::new();
                        for partition in 0..LOGS {
                            let open = open_in(partition, SegmentIo::Buffered);
                            logs.push(Log::open(&shard, open).await.unwrap().0);
                        }
                        check_other_history([&logs[0], &logs[2], &logs[3]]);
                        assert_eq!(logs[1].log_end(), logs[4].log_end());
                        journals.started().await.unwrap();
                    }
                    _ if kept.get() => {
                        let (_, logs) = open_all(SegmentIo::Buffered).await.unwrap();
                        check_other_history([&logs[0], &logs[2], &logs[3]]);
                        for partition in 0..LOGS {
                            let dir = format!("{LOG_DIR}/orders-{partition}");
                            let entries = crate::rt::fs::read_dir(&dir).await.unwrap();
                            let mut names = entries.iter().map(|entry| &entry.name);
                            assert!(!names.any(|name| name.contains("journals")), "{dir}");
                        }
                    }
                    _ => {}
                }
                told.set(lives.get());
                std::future::pending().await
            }
        });
        for lives in 1..=5 {
            let ended = || done.get() == lives;
            assert!(
                world.run_until(Duration::from_secs(60), ended),
                "seed {seed}"
            );
            if seed % 2 == 0 {
                node.kill();
            } else {
                node.lose_power();
            }
            node.disk().heal();
            node.restart();
        }
        late += u32::from(was_late.get());
    }
    let refused = refused.get();
    assert!(
        late > 5 && refused > 0 && refused < 2 * late,
        "{late} {refused}"
    );
}

#[test]
fn a_journal_that_a_full_disk_refused_is_made_once_there_is_room() {
    in_one_life(5, |disk| async move {
        let (shard, logs) = open_all(SegmentIo::Buffered).await.unwrap();
        disk.set_capacity(Some(disk.used() + (4 << 20)));
        for _ in 0..10 {
            round(&logs).await;
        }
        crate::rt::sleep(Duration::from_secs(1)).await;
        disk.heal();
        for _ in 0..10 {
            round(&logs).await;
        }
        assert_eq!(shard.flush_stats().journal_frames, 0, "it was refused");
        crate::rt::sleep(Duration::from_secs(60)).await;
        while shard.flush_stats().journal_frames == 0 {
            round(&logs).await;
            crate::rt::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn a_log_whose_beginning_is_damaged_does_not_begin_where_the_journal_does() {
    let (mut lost, mut whole) = (0, 0);
    for seed in 0..20 {
        let world = World::new(seed);
        let node = world.add_node("broker");
        let ends = Rc::new(RefCell::new(Vec::new()));
        let found = Rc::new(Cell::new(None));
        let (known, told) = (ends.clone(), found.clone());
        start(&node, move || {
            let (known, told) = (known.clone(), told.clone());
            async move {
                if known.borrow().is_empty() {
                    fill(SegmentIo::Buffered, &known).await;
                } else {
                    let (_, logs) = open_all(SegmentIo::Buffered).await.unwrap();
                    told.set(Some((logs[0].log_start(), logs[0].log_end())));
                    assert_eq!(logs[1].log_end(), Offset(120));
                }
                std::future::pending().await
            }
        });
        let all = || ends.borrow().first() == Some(&Offset(120));
        assert!(world.run_until(Duration::from_secs(60), all), "{ends:?}");
        node.kill();
        let first = format!("{LOG_DIR}/orders-0/00000000000000000000.log");
        assert!(node.disk().corrupt(first, 100, b"damage"));
        node.restart();
        let opened = || found.get().is_some();
        assert!(world.run_until(Duration::from_secs(60), opened));
        match found.get() {
            Some((Offset(0), Offset(0))) => lost += 1,
            Some((Offset(0), Offset(120))) => whole += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    println!("{lost} lost what no journal had, {whole} did not");
    assert!(lost > 0);
}

/// A partition leaves with a batch that is not flushed yet and comes back under the same id, empty.
async fn leave_and_come_back(shard: &Rc<LogShard>, logs: &[Rc<Log>], pause: Duration) {
    for log in logs {
        append(log, 2, 900);
    }
    crate::rt::sleep(pause).await;
    append(&logs[0], 2, 900);
    logs[0].mark_deleted().await.unwrap();
    logs[0].delete_files(Duration::ZERO).await.unwrap();
    let (again, _) = Log::open(shard, open_in(0, SegmentIo::Buffered))
        .await
        .unwrap();
    assert_eq!(again.log_end(), Offset(0));
    round(&logs[1..]).await;
}

#[test]
fn a_partition_that_left_with_unflushed_batches_and_came_back_does_not_get_them_from_the_journal() {
    for seed in 0..60 {
        let world = World::new(seed);
        let node = world.add_node("broker");
        let life = Rc::new(Cell::new(0));
        let lives = life.clone();
        start(&node, move || {
            let lives = lives.clone();
            async move {
                if lives.get() == 0 {
                    crate::rt::fs::create_dir_all(LOG_DIR).await.unwrap();
                    crate::rt::fs::sync_dir("/").await.unwrap();
                    let (shard, logs) = open_all(SegmentIo::Buffered).await.unwrap();
                    for _ in 0..20 {
                        round(&logs).await;
                    }
                    assert!(shard.flush_stats().journal_frames > 0);
                    let pause = Duration::from_micros(seed * 20);
                    leave_and_come_back(&shard, &logs, pause).await;
                } else {
                    let (_, logs) = open_all(SegmentIo::Buffered).await.unwrap();
                    let first = &logs[0];
                    assert_eq!((first.log_start(), first.log_end()), (Offset(0), Offset(0)));
                }
                lives.set(lives.get() + 1);
                std::future::pending().await
            }
        });
        for count in 1..=2 {
            let lived = || life.get() == count;
            assert!(
                world.run_until(Duration::from_secs(60), lived),
                "seed {seed}"
            );
            node.kill();
            node.restart();
        }
    }
}
