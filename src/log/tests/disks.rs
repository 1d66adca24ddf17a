//! Log directories on a simulated disk that fails or is slow: while logs are opened, and one of
//! several.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::*;
use crate::rt;
use crate::rt::sim::{Disk, Fault, NodeHandle, World};

const FIRST: &str = "/first";
const SECOND: &str = "/second";
const LIMIT: Duration = Duration::from_secs(60);

fn open_in(dir: &str, partition: i32) -> LogOpen {
    LogOpen {
        partition,
        ..open_of(Path::new(dir), small_segments())
    }
}

/// Runs `life` as one process to its end.
fn live<F>(world: &World, node: &NodeHandle, life: impl Fn() -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let life = Rc::new(life);
    node.start(1, move |executor| {
        let life = life.clone();
        async move {
            if !executor.is_control() {
                life().await;
            }
        }
    });
    assert!(world.run_to_end(LIMIT), "the process hangs");
}

/// Fills a log with 40 batches and ends without closing it.
async fn fill() {
    crate::rt::fs::create_dir_all(FIRST).await.unwrap();
    let shard = LogShard::new(ShardLimits::default());
    let (log, _) = Log::open(&shard, open_in(FIRST, 0)).await.unwrap();
    for _ in 0..40 {
        append(&log, 2, 300);
    }
    log.flush().await.unwrap();
    log.abandon().await;
}

#[test]
fn a_disk_that_cannot_be_read_during_recovery_costs_no_record() {
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..40 {
        let world = World::new(seed);
        let node = world.add_node("broker");
        live(&world, &node, fill);
        // Some reads fail, early or late: a log is opened whole or not at all.
        node.disk().fail_reads(Fault::OneIn(2 + seed));
        let failed = Rc::new(Cell::new(false));
        let told = failed.clone();
        live(&world, &node, move || {
            let told = told.clone();
            async move {
                let shard = LogShard::new(ShardLimits::default());
                match Log::open(&shard, open_in(FIRST, 0)).await {
                    Ok((log, report)) => {
                        assert_eq!((log.log_end(), &report.cuts[..]), (Offset(80), &[][..]));
                        log.abandon().await;
                    }
                    Err(LogError::Storage(failure)) => {
                        assert!(failure.path.starts_with(FIRST), "{failure}");
                        told.set(true);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        });
        refused += u32::from(failed.get());
        opened += u32::from(!failed.get());
        node.disk().heal();
        live(&world, &node, || async {
            let shard = LogShard::new(ShardLimits::default());
            let (log, report) = Log::open(&shard, open_in(FIRST, 0)).await.unwrap();
            assert_eq!((log.log_end(), &report.cuts[..]), (Offset(80), &[][..]));
            assert_eq!(read_all(&log, Offset(0)).await.len(), 40);
        });
    }
    assert!(
        refused > 0 && opened > 0,
        "{refused} refused, {opened} opened"
    );
}

#[test]
fn of_two_directories_the_failed_one_takes_only_its_own_logs() {
    for seed in 0..30 {
        let world = World::new(seed);
        let node = world.add_node("broker");
        node.disk().limit_faults_to(SECOND);
        let fault = Fault::OneIn(20);
        match seed % 2 {
            0 => node.disk().fail_writes(fault),
            _ => node.disk().fail_syncs(fault),
        }
        let failures = Rc::new(RefCell::new(Vec::new()));
        let told = failures.clone();
        live(&world, &node, move || two_directories(told.clone()));
        assert_eq!(*failures.borrow(), [Path::new(SECOND)], "seed {seed}");
    }
}

/// Appends to three logs of either directory until one directory fails, and on.
async fn two_directories(failures: Rc<RefCell<Vec<PathBuf>>>) {
    let told = failures.clone();
    let shard = LogShard::new(ShardLimits::default());
    let manager = LogManager::new(shard, ManagerSettings::default(), move |dir, _| {
        told.borrow_mut().push(dir.to_owned());
    });
    let mut config = small_segments();
    config.flush_messages = 1;
    let mut logs = Vec::new();
    for (at, dir) in [FIRST, SECOND, FIRST, SECOND, FIRST, SECOND]
        .into_iter()
        .enumerate()
    {
        // Also the making of a directory may fail.
        let made = crate::rt::fs::create_dir_all(dir).await;
        let mut open = open_in(dir, at as i32);
        open.config = config.clone();
        match manager.open(open).await {
            Ok((log, _)) => logs.push((dir, log)),
            Err(error) => {
                assert!(dir == SECOND, "{made:?} {error}");
                manager.fail_directory(Path::new(dir), &error);
            }
        }
    }
    for _ in 0..100 {
        for (dir, log) in &logs {
            let bytes = batch_of(&[NOW_MS], 200);
            let Ok(appended) = log.append_as_leader(bytes, as_leader()) else {
                assert_eq!(*dir, SECOND);
                continue;
            };
            let counted = log.wait_counted(appended.last_offset.next()).await;
            assert!(counted.is_ok() || *dir == SECOND, "{counted:?}");
        }
    }
    assert!(manager.failure_of(Path::new(SECOND)).is_some());
    assert!(manager.failure_of(Path::new(FIRST)).is_none());
    for (dir, log) in &logs {
        assert_eq!(log.is_offline(), *dir == SECOND);
        if *dir == FIRST {
            assert_eq!(log.log_end(), Offset(100));
            assert_eq!(log.durable(), Offset(100));
        }
    }
    // Nothing is opened there any more, and what is deleted is only forgotten.
    assert!(manager.open(open_in(SECOND, 9)).await.is_err());
    for (_, log) in &logs {
        manager.delete(log.topic(), log.partition()).await.unwrap();
    }
    for (dir, closed) in manager.close_all().await {
        assert!(closed.is_ok(), "{dir:?}");
    }
}

#[test]
fn a_slow_directory_delays_no_flush_of_another() {
    // By segments, and by the journal.
    for (seed, logs, journal_bytes) in [(1, 1, 0), (2, 5, 0), (3, 5, 1 << 20), (4, 8, 1 << 20)] {
        let world = World::new(seed);
        let node = world.add_node("broker");
        let disk = Rc::new(node.disk());
        live(&world, &node, move || {
            beside_a_slow_one(disk.clone(), logs, journal_bytes)
        });
    }
}

/// Of `logs` logs in either directory those in the second wait for seconds, and the others for none
/// of them.
async fn beside_a_slow_one(disk: Rc<Disk>, logs: i32, journal_bytes: u64) {
    let shard = LogShard::new(ShardLimits {
        journal_bytes,
        ..ShardLimits::default()
    });
    let (mut quick, mut slow) = (Vec::new(), Vec::new());
    for (dir, opened) in [(FIRST, &mut quick), (SECOND, &mut slow)] {
        crate::rt::fs::create_dir_all(dir).await.unwrap();
        for partition in 0..logs {
            let mut open = open_in(dir, partition);
            open.config.flush_messages = 1;
            opened.push(Log::open(&shard, open).await.unwrap().0);
        }
    }
    let acknowledged = |logs: &[Rc<Log>]| {
        let appended = logs.iter().map(|log| {
            let last = append(log, 1, 300).last_offset;
            let log = log.clone();
            async move { log.wait_counted(last.next()).await.unwrap() }
        });
        rt::join_all(appended.collect::<Vec<_>>())
    };
    // Until the journals are made.
    for _ in 0..20 {
        acknowledged(&quick).await;
        acknowledged(&slow).await;
    }
    assert_eq!(shard.flush_stats().journal_frames > 0, journal_bytes > 0);
    disk.limit_faults_to(SECOND);
    disk.set_slowness(1_000);
    let begun = rt::now();
    let are_slow = Rc::new(Cell::new(true));
    let over = are_slow.clone();
    let waits = acknowledged(&slow);
    let slow_ones = rt::spawn(async move {
        waits.await;
        over.set(false);
    });
    let mut longest = Duration::ZERO;
    while are_slow.get() {
        let asked = rt::now();
        acknowledged(&quick).await;
        longest = longest.max(rt::now().since(asked));
        rt::sleep(Duration::from_millis(20)).await;
    }
    slow_ones.await;
    let slow_took = rt::now().since(begun);
    disk.heal();
    assert!(
        longest < Duration::from_millis(50) && slow_took > Duration::from_millis(500),
        "{longest:?}, {slow_took:?}"
    );
    for log in quick.iter().chain(&slow) {
        log.close().await.unwrap();
    }
}
