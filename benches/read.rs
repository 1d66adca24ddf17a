//! Question: what does a fetch of 64 KiB and of 1 MiB cost from the recent batches, from the page
//! cache and from the disk, in order and scattered, and how far is that from the bare read?
//!
//! Floors, in the same run: `pread` of the same length from the page cache and, after
//! `posix_fadvise(DONTNEED)`, from the device; O_DIRECT reads of the device into one buffer. The
//! time to drop pages is not counted. In order, the log reads ahead: what is counted is what the
//! fetch waits for. The shard goes through its reactor between two fetches, as for a client; that
//! is not counted.
//! The data lies under `HIGHWATER_BENCH_DIR`, or the temporary directory.
//!
//! Last result (2 virtual cores with nothing else on them, ext4, kernel 6.18; medians). "In order" is
//! ahead of the device: what the log has read meanwhile is not waited for.
//!
//! | fetch | recent batches | page cache / pread hot | disk in order / scattered | pread cold / O_DIRECT |
//! |---|---|---|---|---|
//! | 64 KiB | 1.7 us | 8.4 / 2.9 us | 45 / 134 us | 257 / 62 us |
//! | 1 MiB | 14 us | 737 / 213 us | 685 / 807 us | 1171 / 777 us |
//!
//! In order a fetch of 1 MiB takes 88% of a bare O_DIRECT read, scattered 104%. The fetch of 1 MiB from
//! the page cache is what a first fetch pays, for new memory; the ones that follow are not read at all
//! (`log::in_place`).

use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use highwater::log::{
    AppendAs, Log, LogConfig, LogOpen, LogShard, Origin, ProducerLimits, ShardLimits,
};
use highwater::rt::{RingPlan, run_ring, wall_ms, yield_now};
use highwater::types::{LeaderEpoch, Offset, Uuid};
use highwater::wire::batch_builder::BatchBuilder;

const LOG_BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;
const RECORDS_PER_BATCH: usize = 16;
const SEGMENT_FILE: &str = "bench-0/00000000000000000000.log";

/// Less than the log, so that a second time through it is as cold as the first.
const READ_AHEAD_BYTES: u64 = 8 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    RecentBatches,
    PageCache,
    DiskInOrder,
    DiskScattered,
}

/// Forgets the file's pages, so that the next read goes to the device.
fn drop_pages(file: &File) {
    file.sync_all().expect("the disk takes it");
    #[allow(unsafe_code)]
    // SAFETY: advice on a descriptor that is open for the length of the call.
    let answer = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(answer, 0);
}

fn open(log_dir: &Path) -> LogOpen {
    LogOpen {
        log_dir: log_dir.to_owned(),
        topic: "bench".into(),
        partition: 0,
        topic_id: Uuid::from_halves(1, 1),
        config: LogConfig::default(),
        clean_shutdown: true,
        recovery_point: Offset::ZERO,
        first_dirty: None,
        log_start: None,
        now_ms: wall_ms(),
        producer_limits: ProducerLimits::default(),
    }
}

fn append(log: &Log, value: &[u8]) -> u64 {
    let mut builder = BatchBuilder::new();
    for _ in 0..RECORDS_PER_BATCH {
        builder
            .append(wall_ms(), None, Some(value), &[])
            .expect("a small record fits");
    }
    let bytes = builder.build().expect("the batch has records");
    let size = bytes.len() as u64;
    let how = AppendAs {
        leader_epoch: LeaderEpoch(0),
        ..AppendAs::new(Origin::Client, 13, wall_ms())
    };
    log.append_as_leader(bytes, how).expect("it is valid");
    size
}

/// Reads `count` ranges of `len` bytes one after the other through the log.
fn reads(log_dir: &Path, from: From, len: u64, count: u64) -> Duration {
    let (sender, receiver) = mpsc::channel();
    let log_dir = log_dir.to_owned();
    run_ring(RingPlan::default(), move |executor| {
        let (sender, log_dir) = (sender.clone(), log_dir.clone());
        async move {
            if executor.is_control() {
                return;
            }
            let recent_batch_bytes = if from == From::RecentBatches {
                2 * LOG_BYTES
            } else {
                0
            };
            let shard = LogShard::new(ShardLimits {
                recent_batch_bytes,
                read_ahead_bytes: READ_AHEAD_BYTES,
                ..ShardLimits::default()
            });
            let (log, _) = Log::open(&shard, open(&log_dir))
                .await
                .expect("the log opens");
            let value = [7u8; 1000];
            let mut filled = log.size_bytes();
            while filled < LOG_BYTES
                || (from == From::RecentBatches && shard.recent_batch_bytes() < LOG_BYTES)
            {
                filled += append(&log, &value);
            }
            let start = if from == From::RecentBatches {
                // Only what this run appended is among the recent batches.
                Offset(log.log_end().0 - (LOG_BYTES / 1024) as i64)
            } else {
                Offset::ZERO
            };
            let file = File::open(log_dir.join(SEGMENT_FILE)).expect("the segment is there");
            if matches!(from, From::DiskInOrder | From::DiskScattered) {
                drop_pages(&file);
            }
            let (mut next, mut spent) = (start, Duration::ZERO);
            for _ in 0..count {
                yield_now().await;
                let begun = Instant::now();
                let outcome = log
                    .read(next, log.log_end(), len, true)
                    .await
                    .expect("it is there");
                spent += begun.elapsed();
                black_box(outcome.records.len());
                let room = log.log_end().0 - 2048;
                next = match from {
                    From::DiskScattered => Offset(fastrand::i64(start.0..room)),
                    _ if outcome.upper_bound.0 > room => start,
                    _ => outcome.upper_bound,
                };
            }
            log.close().await.expect("the disk takes it");
            sender.send(spent).expect("the bench waits");
        }
    })
    .expect("the ring runs");
    receiver.recv().expect("the shard has answered")
}

fn floor(file: &File, len: u64, cold: bool, count: u64) -> Duration {
    let size = file.metadata().expect("the segment is there").len();
    let (mut at, mut spent) = (0, Duration::ZERO);
    for _ in 0..count {
        if cold {
            drop_pages(file);
        }
        let begun = Instant::now();
        // Allocated anew as a fetch must: the bytes leave with the answer.
        let mut buffer = vec![0; len as usize];
        file.read_exact_at(&mut buffer, at).expect("it is there");
        black_box(&buffer);
        spent += begun.elapsed();
        at = if at + 2 * len > size { 0 } else { at + len };
    }
    spent
}

/// O_DIRECT reads into one buffer, at random places like a scattered fetch.
fn direct_floor(path: &Path, len: u64, count: u64) -> Duration {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("the file system takes O_DIRECT");
    let blocks = (file.metadata().expect("it is there").len() - len) / BLOCK;
    let mut buffer = vec![0; (len + BLOCK) as usize];
    let start = buffer.as_ptr().align_offset(BLOCK as usize);
    let buffer = &mut buffer[start..start + len as usize];
    let begun = Instant::now();
    for _ in 0..count {
        let at = fastrand::u64(..blocks) * BLOCK;
        file.read_exact_at(buffer, at).expect("it is there");
        black_box(&buffer);
    }
    begun.elapsed()
}

fn fetches(criterion: &mut Criterion) {
    let dir = match std::env::var_os("HIGHWATER_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).expect("HIGHWATER_BENCH_DIR is a directory"),
        None => tempfile::tempdir().expect("there is a temporary directory"),
    };
    reads(dir.path(), From::PageCache, 1, 1);
    let file = File::open(dir.path().join(SEGMENT_FILE)).expect("the segment is there");
    for (name, len) in [("64KiB", 64 << 10), ("1MiB", 1 << 20)] {
        let mut group = criterion.benchmark_group(format!("read {name}"));
        group.throughput(Throughput::Bytes(len));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(300));
        group.measurement_time(Duration::from_secs(2));
        for (row, from) in [
            ("page cache", From::PageCache),
            ("disk in order", From::DiskInOrder),
            ("disk scattered", From::DiskScattered),
        ] {
            group.bench_function(BenchmarkId::new("log", row), |bench| {
                bench.iter_custom(|n| reads(dir.path(), from, len, n));
            });
        }
        for (row, cold) in [("pread hot", false), ("pread cold", true)] {
            group.bench_function(BenchmarkId::new("floor", row), |bench| {
                bench.iter_custom(|n| floor(&file, len, cold, n));
            });
        }
        group.bench_function(BenchmarkId::new("floor", "O_DIRECT"), |bench| {
            bench.iter_custom(|n| direct_floor(&dir.path().join(SEGMENT_FILE), len, n));
        });
        group.bench_function(BenchmarkId::new("log", "recent batches"), |bench| {
            bench.iter_custom(|n| reads(dir.path(), From::RecentBatches, len, n));
        });
        group.finish();
    }
}

criterion_group!(benches, fetches);
criterion_main!(benches);
