//! Questions: how many bytes a second does a compaction pass get through, how far is that from
//! reading and writing the same bytes one after the other, and what does a pass on a shard do to
//! the latency of appends on the same shard (target: at most twice the p99 without)?
//!
//! Floor, in the same run: the input read with `pread` in 256 KiB pieces, once for the map and
//! once for the copy, and as many bytes as the pass has written written with `pwrite` and flushed.
//! Appends are 1 KiB batches every 500 us, timed from when they were due (open loop).
//! The data lies under `HIGHWATER_BENCH_DIR`, or the temporary directory.
//!
//! Last result (2 virtual cores with nothing else on them, ext4 mounted with `discard`, kernel 6.18): a
//! pass over 128 MiB of which every tenth record stays takes 0.58 GiB/s (the floor, all in the page
//! cache, 6.6), one of which all stay 0.43 (1.43), with lz4 0.66 (these with glibc's allocator). Passes
//! without a throttle beside appends, medians of five turns, the range of single turns behind them:
//!
//! | appends | alone p50 / p99 us | beside passes | p99 ratio |
//! |---|---|---|---|
//! | buffered | 40 / 106 | 38 / 140 | 1.3 (0.6 to 7.5) |
//! | buffered, flushed | 144 / 569 | 209 / 780 | 1.4 (0.4 to 6.7) |
//!
//! The device is uneven: the flushed appends alone had a p99 of 315 to 1841 us, beside passes of 692 to
//! 2107. Flushes begin before the pass's, but one that comes while a segment is being swapped in waits for
//! the file system's transactions; some seven segments a second are, for they have 16 MiB. Before the space
//! of replaced segments was given back in pieces the p99 was 22000 us, with pieces of 4 MiB 1407 (buffered
//! 274). A rate (`log.cleaner.io.max.bytes.per.second`) spreads passes out; what it is worth was not
//! measured.

use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};

use highwater::log::{
    AppendAs, Cleaner, CleanerSettings, Log, LogConfig, LogOpen, LogShard, Origin, ProducerLimits,
    ShardLimits,
};
use highwater::rt::{self, RingPlan, run_ring, wall_ms};
use highwater::types::{LeaderEpoch, Offset, Uuid};
use highwater::wire::batch_builder::BatchBuilder;
use highwater::wire::codec::Codec;

/// The broker's allocator: what a pass gives back and asks for again makes a difference.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Bytes of a log before compaction.
const LOG_BYTES: u64 = 128 << 20;
const VALUE_BYTES: usize = 1000;
const BATCH_RECORDS: usize = 16;
const PIECE: usize = 256 << 10;

/// How long appends are timed, with and without a pass beside them.
const APPENDING: Duration = Duration::from_secs(5);
const APPEND_EVERY: Duration = Duration::from_micros(500);

fn bench_dir() -> tempfile::TempDir {
    match std::env::var_os("HIGHWATER_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).expect("HIGHWATER_BENCH_DIR is a directory"),
        None => tempfile::tempdir().expect("there is a temporary directory"),
    }
}

/// Runs `work` on a shard and returns its answer.
fn on_shard<T, F>(work: impl Fn() -> F + Clone + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (sender, receiver) = mpsc::channel();
    run_ring(RingPlan::default(), move |executor| {
        let (sender, work) = (sender.clone(), work.clone());
        async move {
            if !executor.is_control() {
                sender.send(work().await).expect("the bench waits");
            }
        }
    })
    .expect("the ring runs");
    receiver.recv().expect("the shard has answered")
}

async fn open(shard: &Rc<LogShard>, dir: &Path, topic: &str, config: LogConfig) -> Rc<Log> {
    std::fs::create_dir_all(dir).expect("the bench directory is writable");
    let open = LogOpen {
        log_dir: dir.to_owned(),
        topic: topic.into(),
        partition: 0,
        topic_id: Uuid::from_halves(1, 1),
        config,
        clean_shutdown: false,
        recovery_point: Offset::ZERO,
        first_dirty: None,
        log_start: None,
        now_ms: wall_ms(),
        producer_limits: ProducerLimits::default(),
    };
    let (log, _) = Log::open(shard, open).await.expect("an empty log opens");
    log
}

fn compacted() -> LogConfig {
    LogConfig {
        compact: true,
        delete: false,
        min_cleanable_dirty_ratio: 0.0,
        segment_bytes: 16 << 20,
        // What a pass has replaced goes while the next ones run.
        file_delete_delay_ms: 1000,
        ..LogConfig::default()
    }
}

fn as_leader() -> AppendAs {
    AppendAs {
        leader_epoch: LeaderEpoch(0),
        ..AppendAs::new(Origin::Client, 13, wall_ms())
    }
}

/// Fills a log with records of `keys` keys, in turn, and completes its segments.
async fn fill(log: &Rc<Log>, keys: u64, codec: Codec) {
    let mut value = vec![0u8; VALUE_BYTES];
    let mut next = 0u64;
    while next * (VALUE_BYTES as u64) < LOG_BYTES {
        let mut builder = BatchBuilder::new().with_codec(codec, None);
        for _ in 0..BATCH_RECORDS {
            // Half of each value is noise, so that a codec has something to do and to gain.
            fastrand::Rng::with_seed(next).fill(&mut value[..VALUE_BYTES / 2]);
            let key = format!("key-{:012}", next % keys);
            builder
                .append(wall_ms(), Some(key.as_bytes()), Some(&value), &[])
                .expect("a small record fits");
            next += 1;
        }
        let bytes = builder.build().expect("the batch has records");
        log.append_as_leader(bytes, as_leader())
            .expect("it is valid");
        if log.backlog_bytes() > 8 << 20 {
            log.flush().await.expect("the disk takes it");
        }
    }
    log.roll(wall_ms());
    log.flush().await.expect("the disk takes it");
}

#[derive(Clone, Copy)]
struct Passed {
    took: Duration,
    input: u64,
    written: u64,
}

/// One pass over a fresh log.
fn pass(dir: &Path, keys: u64, codec: Codec) -> Passed {
    let log_dir: PathBuf = dir.join(format!("run-{}", fastrand::u64(..)));
    let made = log_dir.clone();
    let passed = on_shard(move || {
        let log_dir = log_dir.clone();
        async move {
            let shard = LogShard::new(ShardLimits::default());
            let log = open(&shard, &log_dir, "state", compacted()).await;
            fill(&log, keys, codec).await;
            let input = log.size_bytes();
            let cleaner = Cleaner::new(CleanerSettings::default());
            // The last segments are being completed.
            rt::sleep(Duration::from_millis(500)).await;
            let logs = [log.clone()];
            let cleaned = cleaner.clean_dirtiest(&logs, &|log| log.log_end()).await;
            let (_, report) = cleaned.expect("there is something to clean");
            Passed {
                took: report.took,
                input,
                written: report.bytes_written,
            }
        }
    });
    let _ = std::fs::remove_dir_all(made);
    passed
}

/// Reads as many bytes twice and writes as many once.
fn floor(dir: &Path, passed: Passed) -> Duration {
    let (input, output) = (dir.join("input"), dir.join("output"));
    let chunk = vec![7u8; PIECE];
    let write = |path: &Path, bytes: u64| {
        let file = File::create(path).expect("the bench directory is writable");
        let mut at = 0;
        while at < bytes {
            file.write_all_at(&chunk, at).expect("the disk takes it");
            at += PIECE as u64;
        }
        file.sync_data().expect("the disk takes it");
    };
    write(&input, passed.input);
    let begun = Instant::now();
    let file = File::open(&input).expect("it was just made");
    let mut piece = vec![0u8; PIECE];
    for _ in 0..2 {
        let mut at = 0;
        while at < passed.input {
            at += file.read_at(&mut piece, at).expect("it is there") as u64;
        }
    }
    write(&output, passed.written);
    begun.elapsed()
}

fn passes(criterion: &mut Criterion) {
    let dir = bench_dir();
    let records = LOG_BYTES / VALUE_BYTES as u64;
    let mut group = criterion.benchmark_group("compaction pass");
    group.throughput(Throughput::Bytes(LOG_BYTES));
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(1))
        .measurement_time(Duration::from_secs(1));
    let cases = [
        ("every 10th stays", records / 10, Codec::None),
        ("all stay", records, Codec::None),
        ("every 10th stays, lz4", records / 10, Codec::Lz4),
    ];
    for (name, keys, codec) in cases {
        let last = std::cell::Cell::new(None);
        group.bench_function(BenchmarkId::new("pass", name), |bench| {
            bench.iter_custom(|n| {
                let all = (0..n).map(|_| pass(dir.path(), keys, codec));
                all.map(|passed| {
                    last.set(Some(passed));
                    passed.took
                })
                .sum()
            });
        });
        if let Some(passed) = last.get() {
            group.bench_function(BenchmarkId::new("floor", name), |bench| {
                bench.iter_custom(|n| (0..n).map(|_| floor(dir.path(), passed)).sum());
            });
        }
    }
    group.finish();
}

/// Appends at a steady rate; how late each was counted after it was due, sorted.
async fn appends(log: &Rc<Log>, bytes: Bytes) -> Vec<Duration> {
    let begun = rt::now();
    let count = APPENDING.as_micros() / APPEND_EVERY.as_micros();
    let mut waits = Vec::with_capacity(count as usize);
    for at in 0..count as u32 {
        let due = begun.saturating_add(APPEND_EVERY * at);
        rt::sleep_until(due).await;
        let appended = log
            .append_as_leader(bytes.clone(), as_leader())
            .expect("it is valid");
        let end = appended.last_offset.next();
        if log.counted() < end {
            log.wait_counted(end).await.expect("the disk takes it");
        }
        waits.push(rt::now().since(due));
    }
    waits.sort();
    waits
}

/// Waits of appends without and with passes beside them, and the passes' bytes a second.
fn beside(dir: &Path, flush_messages: i64) -> (Vec<Duration>, Vec<Duration>, f64) {
    let log_dir: PathBuf = dir.join(format!("run-{}", fastrand::u64(..)));
    let made = log_dir.clone();
    let told = on_shard(move || {
        let log_dir = log_dir.clone();
        async move {
            let shard = LogShard::new(ShardLimits::default());
            let state = open(&shard, &log_dir, "state", compacted()).await;
            fill(&state, u64::MAX, Codec::None).await;
            let config = LogConfig {
                flush_messages,
                ..LogConfig::default()
            };
            let log = open(&shard, &log_dir, "orders", config).await;
            let mut builder = BatchBuilder::new();
            builder
                .append(wall_ms(), None, Some(&[7; 1000]), &[])
                .expect("a small record fits");
            let bytes = builder.build().expect("it has a record");
            rt::sleep(Duration::from_millis(500)).await;
            let alone = appends(&log, bytes.clone()).await;
            let cleaner = Rc::new(Cleaner::new(CleanerSettings::default()));
            let (running, cleaned) = (cleaner.clone(), state.clone());
            let begun = Instant::now();
            drop(rt::spawn(async move {
                let logs = [cleaned.clone()];
                // All of it is dirty again after every pass.
                while running
                    .clean_dirtiest(&logs, &|log| log.log_end())
                    .await
                    .is_some()
                {
                    cleaned.set_first_dirty(Offset::ZERO);
                }
            }));
            let compacting = appends(&log, bytes).await;
            let took = begun.elapsed().as_secs_f64();
            cleaner.stop().await;
            let stats = cleaner.stats();
            let rate = (stats.bytes_read + stats.bytes_written) as f64 / took;
            (alone, compacting, rate)
        }
    });
    let _ = std::fs::remove_dir_all(made);
    told
}

fn latencies() {
    let dir = bench_dir();
    println!("appends of 1 KiB every 500 us, due to counted, us: p50 / p99 / p99.9");
    for (row, flush_messages) in [("buffered", i64::MAX), ("buffered flushed", 1)] {
        let (alone, compacting, rate) = beside(dir.path(), flush_messages);
        let at = |waits: &[Duration], share: f64| {
            waits[((waits.len() - 1) as f64 * share) as usize].as_micros()
        };
        for (name, waits) in [("alone", &alone), ("compacting", &compacting)] {
            println!(
                "{row:17} {name:11} {:6} / {:6} / {:6}",
                at(waits, 0.5),
                at(waits, 0.99),
                at(waits, 0.999)
            );
        }
        println!(
            "{row:17} p99 ratio {:.2}, passes read and wrote {:.0} MB/s",
            at(&compacting, 0.99) as f64 / at(&alone, 0.99).max(1) as f64,
            rate / 1e6
        );
    }
}

criterion_group!(benches, passes);

fn main() {
    latencies();
    benches();
    Criterion::default().configure_from_args().final_summary();
}
