//! Question: how fast does a broker recover after a crash, from cold files to open logs, and how
//! far is that from the device?
//!
//! Every partition's log is opened without the marker of a clean stop and without a recovery
//! point, so every batch of every segment is read, checked (CRC-32C), indexed anew and taken into
//! producer state: one producer a partition, idempotent, batches of 16 KiB. The logs are opened
//! over all shards at once, as at a broker's start. Floor, in the same run, before and after each
//! recovery: the same files, cold again, read one after the other by one thread (1 MiB a read).
//!
//! `HIGHWATER_RECOVERY_GIB` (1), `HIGHWATER_RECOVERY_PARTITIONS` (8) and `HIGHWATER_BENCH_DIR` (the
//! temporary directory) say what and where; files are cold by posix_fadvise(DONTNEED), and by
//! /proc/sys/vm/drop_caches where that may be written.
//!
//! Last result (2 virtual cores with a load of 15 beside it, ext4, kernel 6.18; rounds differ by
//! half on such a machine, so only the medians of one run mean anything):
//!
//! | log | partitions | read | recovery | of the floor |
//! |---|---|---|---|---|
//! | 10 GiB | 8 | 484 MB/s | 493 MB/s | 102 % |
//! | 1 GiB | 8 | 503 MB/s | 407 MB/s | 81 % |
//!
//! Processor time in user space, the making of the files and three recoveries together: 4.4 s for
//! the 10 GiB, which is less than 0.14 s for each GiB recovered. The device is what it waits for.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use highwater::log::{
    LogConfig, LogManager, LogOpen, LogShard, ManagerSettings, ProducerLimits, ShardLimits,
};
use highwater::rt::{RingPlan, run_ring, wall_ms};
use highwater::types::{Offset, Uuid};
use highwater::wire::batch_builder::BatchBuilder;

const ROUNDS: usize = 3;
const BATCH_BYTES: usize = 16 << 10;
const SEGMENT_BYTES: u64 = 1 << 30;
const READ_BYTES: usize = 1 << 20;
const TOPIC: &str = "bench";

fn setting(name: &str, default: f64) -> f64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// Writes one partition of about `bytes`; the files of it.
fn write_partition(dir: &Path, partition: usize, bytes: u64) -> (Vec<PathBuf>, u64) {
    let home = dir.join(format!("{TOPIC}-{partition}"));
    std::fs::create_dir_all(&home).expect("the bench directory is writable");
    let mut random = fastrand::Rng::with_seed(partition as u64);
    let mut value = vec![0; 1000];
    let (mut offset, mut sequence) = (0i64, 0i32);
    let (mut files, mut written) = (Vec::new(), 0);
    let mut file: Option<(File, u64)> = None;
    // One batch is built and then stamped anew: the generator must not be the slowest part.
    let mut builder = BatchBuilder::new().with_producer(1000 + partition as i64, 0, 0);
    let mut records = 0i32;
    while builder.estimated_size() < BATCH_BYTES {
        random.fill(&mut value);
        builder
            .append(wall_ms(), None, Some(&value), &[])
            .expect("a small record fits");
        records += 1;
    }
    let mut batch = BytesMut::from(&builder.build().expect("it has records")[..]);
    while written < bytes {
        batch[..8].copy_from_slice(&offset.to_be_bytes());
        batch[53..57].copy_from_slice(&sequence.to_be_bytes());
        let crc = crc32c::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        let (open, length) = match file.take() {
            Some(open) if open.1 + batch.len() as u64 <= SEGMENT_BYTES => open,
            _ => {
                let path = home.join(format!("{offset:020}.log"));
                files.push(path.clone());
                (
                    File::create(path).expect("the bench directory is writable"),
                    0,
                )
            }
        };
        let mut open = open;
        open.write_all(&batch).expect("the disk takes it");
        file = Some((open, length + batch.len() as u64));
        written += batch.len() as u64;
        offset += i64::from(records);
        sequence = (i64::from(sequence) + i64::from(records)).rem_euclid(1 << 31) as i32;
    }
    (files, written)
}

/// Puts the files out of the page cache.
fn chill(files: &[PathBuf]) {
    for path in files {
        let file = File::open(path).expect("it is there");
        file.sync_all().expect("the disk takes it");
        #[allow(unsafe_code)]
        // SAFETY: a plain system call on an open descriptor; no memory is handed over.
        let code =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(code, 0);
    }
    // Where this is not allowed, the files alone have to do.
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
}

/// One thread reads the files one after the other.
fn read_in_order(files: &[PathBuf]) -> Duration {
    let mut buffer = vec![0; READ_BYTES];
    let begun = Instant::now();
    for path in files {
        let file = File::open(path).expect("it is there");
        let mut at = 0;
        loop {
            let read = file.read_at(&mut buffer, at).expect("the disk gives it");
            if read == 0 {
                break;
            }
            at += read as u64;
        }
    }
    begun.elapsed()
}

/// Opens all logs over the shards; the time until the last one is open.
fn recover(dir: &Path, partitions: usize, shards: usize, bytes: u64) -> Duration {
    let checked = Arc::new(Mutex::new(0));
    let sum = checked.clone();
    let log_dir = dir.to_owned();
    let ends: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let ended = ends.clone();
    let begun = Instant::now();
    let plan = RingPlan {
        shards,
        pin: true,
        spin: None,
    };
    run_ring(plan, move |executor| {
        let (log_dir, sum, ended) = (log_dir.clone(), sum.clone(), ended.clone());
        async move {
            if executor.is_control() {
                return;
            }
            let shard = LogShard::new(ShardLimits::default());
            let manager = LogManager::new(shard, ManagerSettings::default(), |_, error| {
                panic!("{error}");
            });
            let opens = (0..partitions)
                .filter(|partition| partition % shards == executor.index)
                .map(|partition| LogOpen {
                    log_dir: log_dir.clone(),
                    topic: TOPIC.into(),
                    partition: partition as i32,
                    topic_id: Uuid::ZERO,
                    config: LogConfig::default(),
                    clean_shutdown: false,
                    recovery_point: Offset::ZERO,
                    first_dirty: None,
                    log_start: None,
                    now_ms: wall_ms(),
                    producer_limits: ProducerLimits::default(),
                })
                .collect();
            for opened in manager.open_all(opens).await {
                let (_, report) = opened.expect("the log opens");
                assert!(report.cuts.is_empty(), "{report:?}");
                *sum.lock().unwrap_or_else(PoisonError::into_inner) += report.bytes_checked;
            }
            ended
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Instant::now());
        }
    })
    .expect("the ring runs");
    assert_eq!(
        *checked.lock().unwrap_or_else(PoisonError::into_inner),
        bytes
    );
    let ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
    ends.iter()
        .max()
        .expect("a shard ran")
        .duration_since(begun)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn main() {
    let total = (setting("HIGHWATER_RECOVERY_GIB", 1.0) * f64::from(1 << 30)) as u64;
    let partitions = setting("HIGHWATER_RECOVERY_PARTITIONS", 8.0) as usize;
    let shards = std::thread::available_parallelism().map_or(1, usize::from);
    let dir = match std::env::var_os("HIGHWATER_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).expect("HIGHWATER_BENCH_DIR is a directory"),
        None => tempfile::tempdir().expect("there is a temporary directory"),
    };
    let each = total / partitions as u64;
    let made: Vec<_> = (0..partitions)
        .map(|partition| write_partition(dir.path(), partition, each))
        .collect();
    let bytes = made.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let files: Vec<PathBuf> = made.into_iter().flat_map(|(files, _)| files).collect();
    println!(
        "{bytes} bytes in {partitions} partitions, {} segments, {shards} shards",
        files.len()
    );
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e6;
    let (mut floors, mut times) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        chill(&files);
        floors.push(read_in_order(&files));
        chill(&files);
        times.push(recover(dir.path(), partitions, shards, bytes));
        println!(
            "round {round}: read {:.0} MB/s, recovery {:.0} MB/s",
            rate(floors[round]),
            rate(times[round])
        );
    }
    let (floor, time) = (median(&mut floors), median(&mut times));
    println!(
        "medians: read {:.0} MB/s, recovery {:.0} MB/s, {:.0} % of the floor",
        rate(floor),
        rate(time),
        100.0 * floor.as_secs_f64() / time.as_secs_f64()
    );
}
