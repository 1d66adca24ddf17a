//! Question: what does an append cost in each durability row, from validated bytes to the point
//! where the replica counts them, and how far is that from the bare device?
//!
//! Floors, in the same run: `pwrite` into the page cache; `pwrite` + `fdatasync`; an O_DIRECT
//! write of whole blocks, without and with `fdatasync`; CRC-32C of the same bytes (the leader
//! checks every batch). One batch at a time, so no merging helps.
//! The data lies under `HIGHWATER_BENCH_DIR`, or the temporary directory.
//!
//! Last result (2 virtual cores with a load of 10 beside it, ext4, kernel 6.18; medians; only the
//! ratios within a line mean anything):
//!
//! | batch | buffered / pwrite | flushed / pwrite + fdatasync | direct / O_DIRECT | CRC-32C |
//! |---|---|---|---|---|
//! | 1 KiB | 8.3 / 1.9 us | 1.9 / 0.9 ms | 0.58 / 0.05 ms | 0.06 us |
//! | 16 KiB | 23 / 30 us | 1.9 / 1.6 ms | 1.3 / 0.09 ms | 3.2 us |
//! | 1 MiB | 0.64 / 0.68 ms | 10 / 4.2 ms | 14 / 0.7 ms | 89 us |

use std::alloc::{Layout, alloc_zeroed};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use highwater::log::{
    AppendAs, Log, LogConfig, LogOpen, LogShard, Origin, ProducerLimits, SegmentIo, ShardLimits,
};
use highwater::rt::{RingPlan, run_ring, wall_ms};
use highwater::types::{LeaderEpoch, Offset, Uuid};
use highwater::wire::batch_builder::BatchBuilder;

const SIZES: [(&str, usize); 3] = [("1KiB", 1 << 10), ("16KiB", 16 << 10), ("1MiB", 1 << 20)];
const BLOCK: usize = 4096;

fn bench_dir() -> tempfile::TempDir {
    match std::env::var_os("HIGHWATER_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).expect("HIGHWATER_BENCH_DIR is a directory"),
        None => tempfile::tempdir().expect("there is a temporary directory"),
    }
}

fn batch(size: usize) -> Bytes {
    let mut builder = BatchBuilder::new();
    let value = vec![7u8; size.min(1000)];
    for _ in 0..(size / value.len()).max(1) {
        builder
            .append(wall_ms(), None, Some(&value), &[])
            .expect("a small record fits");
    }
    builder.build().expect("the batch has records")
}

fn config(io: SegmentIo, flush_messages: i64) -> LogConfig {
    LogConfig {
        segment_io: io,
        flush_messages,
        max_message_bytes: 2 << 20,
        ..LogConfig::default()
    }
}

/// Appends `count` batches one after the other, each until it counts; the time that took.
fn append(dir: &Path, config: LogConfig, bytes: Bytes, count: u64) -> Duration {
    let (sender, receiver) = mpsc::channel();
    let log_dir: PathBuf = dir.join(format!("run-{}", fastrand::u64(..)));
    let made = log_dir.clone();
    run_ring(RingPlan::default(), move |executor| {
        let (sender, config) = (sender.clone(), config.clone());
        let (bytes, log_dir) = (bytes.clone(), log_dir.clone());
        async move {
            if executor.is_control() {
                return;
            }
            std::fs::create_dir_all(&log_dir).expect("the bench directory is writable");
            let shard = LogShard::new(ShardLimits::default());
            let open = LogOpen {
                log_dir,
                topic: "bench".into(),
                partition: 0,
                topic_id: Uuid::from_halves(1, 1),
                config,
                clean_shutdown: false,
                recovery_point: Offset::ZERO,
                log_start: None,
                now_ms: wall_ms(),
                producer_limits: ProducerLimits::default(),
            };
            let (log, _) = Log::open(&shard, open).await.expect("an empty log opens");
            let begun = Instant::now();
            for _ in 0..count {
                let how = AppendAs {
                    leader_epoch: LeaderEpoch(0),
                    ..AppendAs::new(Origin::Client, 13, wall_ms())
                };
                let appended = log
                    .append_as_leader(bytes.clone(), how)
                    .expect("it is valid");
                let end = appended.last_offset.next();
                if log.counted() < end {
                    log.wait_counted(end).await.expect("the disk takes it");
                }
            }
            sender.send(begun.elapsed()).expect("the bench waits");
        }
    })
    .expect("the ring runs");
    let _ = std::fs::remove_dir_all(made);
    receiver.recv().expect("the shard has answered")
}

fn plain(dir: &Path, bytes: &[u8], count: u64, flush: bool) -> Duration {
    let file = File::create(dir.join("plain")).expect("the bench directory is writable");
    let begun = Instant::now();
    for at in 0..count {
        // Within a gibibyte, as a segment is.
        let position = (at * bytes.len() as u64) % (1 << 30);
        file.write_all_at(bytes, position)
            .expect("the disk takes it");
        if flush {
            file.sync_data().expect("the disk takes it");
        }
    }
    begun.elapsed()
}

fn direct(dir: &Path, size: usize, count: u64, flush: bool) -> Duration {
    let len = size.next_multiple_of(BLOCK);
    let layout = Layout::from_size_align(len, BLOCK).expect("a block is a power of two");
    #[allow(unsafe_code)]
    // SAFETY: the layout has a positive size; the memory is used as `len` zeroed bytes and is left
    // to the process, which ends with the bench.
    let buffer = unsafe { std::slice::from_raw_parts(alloc_zeroed(layout), len) };
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(dir.join("direct"))
        .expect("the file system takes O_DIRECT");
    let begun = Instant::now();
    for at in 0..count {
        let position = (at * len as u64) % (1 << 30);
        file.write_all_at(buffer, position)
            .expect("the disk takes it");
        if flush {
            file.sync_data().expect("the disk takes it");
        }
    }
    begun.elapsed()
}

fn appends(criterion: &mut Criterion) {
    let dir = bench_dir();
    for (name, size) in SIZES {
        let bytes = batch(size);
        let mut group = criterion.benchmark_group(format!("append {name}"));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(300));
        group.measurement_time(Duration::from_secs(2));
        let rows = [
            ("buffered", SegmentIo::Buffered, i64::MAX),
            ("buffered flushed", SegmentIo::Buffered, 1),
            ("direct", SegmentIo::Direct, i64::MAX),
            ("direct flushed", SegmentIo::Direct, 1),
        ];
        for (row, io, flush) in rows {
            group.bench_function(BenchmarkId::new("log", row), |bench| {
                bench.iter_custom(|n| append(dir.path(), config(io, flush), bytes.clone(), n));
            });
        }
        for (row, flush) in [("pwrite", false), ("pwrite fdatasync", true)] {
            group.bench_function(BenchmarkId::new("floor", row), |bench| {
                bench.iter_custom(|n| plain(dir.path(), &bytes, n, flush));
            });
        }
        for (row, flush) in [("O_DIRECT", false), ("O_DIRECT fdatasync", true)] {
            group.bench_function(BenchmarkId::new("floor", row), |bench| {
                bench.iter_custom(|n| direct(dir.path(), bytes.len(), n, flush));
            });
        }
        group.bench_function(BenchmarkId::new("floor", "crc32c"), |bench| {
            bench.iter(|| crc32c::crc32c(black_box(&bytes)));
        });
        group.finish();
    }
}

criterion_group!(benches, appends);
criterion_main!(benches);
