//! Question: what does an append cost in each durability row, from validated bytes to the point
//! where the replica counts them, alone and with many outstanding, and how far is that from the
//! bare device?
//!
//! Each cell is `log / floor`, both in microseconds. With one batch outstanding it is the median
//! time of a batch; with 16 or 64 it is the time of the whole run divided by the batches, so that
//! merged writes and shared flushes show. Floors, in the same run and in turn with the log:
//!
//! - buffered: `pwrite` at the end of a file; flushed: and one `fdatasync` per so many outstanding
//! - direct: an O_DIRECT write of whole blocks into a file full of zeros, by a plain thread (one
//!   outstanding) or by as many tasks on the ring; flushed: and one `fdatasync` per so many
//! - CRC-32C of the same bytes, because the leader checks every batch
//!
//! Run with `cargo bench --bench append [-- 1KiB]`; the data lies under `HIGHWATER_BENCH_DIR`, or
//! the temporary directory. `HIGHWATER_BENCH_ROUNDS` rounds (5), of which the median is taken.
//! `HIGHWATER_BENCH_IN_FLIGHT` and `HIGHWATER_BENCH_BESIDE` try other bounds of the writer.
//!
//! Last result (2 virtual cores with a load of 12 to 24 beside it, ext4, kernel 6.18; three rounds;
//! a flush takes 0.3 to 6 ms here from one run to the next, so the flushed cells say little alone):
//!
//! | batch | outstanding | buffered | flushed | direct | direct flushed |
//! |---|---|---|---|---|---|
//! | 1 KiB | 1 | 1.4 / 0.7 | 1747 / 1156 | 55 / 32 | 108 / 4170 |
//! | 1 KiB | 16 | 2.2 / 1.3 | 188 / 430 | 21 / 32 | 216 / 214 |
//! | 1 KiB | 64 | 2.1 / 1.2 | 34 / 113 | 36 / 27 | 31 / 61 |
//! | 16 KiB | 1 | 16 / 8 | 3946 / 4008 | 61 / 35 | 6490 / 5001 |
//! | 16 KiB | 16 | 41 / 57 | 177 / 308 | 24 / 37 | 160 / 173 |
//! | 16 KiB | 64 | 30 / 41 | 38 / 117 | 18 / 31 | 71 / 94 |
//! | 1 MiB | 1 | 244 / 186 | 2856 / 5079 | 490 / 275 | 544 / 3996 |
//! | 1 MiB | 16 | 873 / 739 | 1287 / 1325 | 673 / 2197 | 907 / 1525 |
//! | 1 MiB | 64 | 1165 / 752 | 1431 / 1672 | 1965 / 1508 | 615 / 1274 |
//!
//! CRC-32C: 0.09, 0.6 and 32 us. 1 KiB direct, alone: 5.3 bytes written per byte (whole blocks, and
//! zeros ahead); 16 outstanding: 16 batches a write, 1.8 bytes per byte. Of 2048 writes one waited
//! for space. With small batches going beside the write in flight too (`BESIDE=0`), 16 KiB x 16
//! direct took 80 / 69 instead of 24 / 37: waiting and merging is better for them.
//! The 1 MiB cells with many outstanding prove nothing: a second run gave 2245 / 857 for 16 and
//! 1295 / 1286 for 64, and with one write in flight (`IN_FLIGHT=1`) it was 1128 / 627 and 2120 / 970.
//!
//! What the writer's bounds rest on: single writes on the ring, p50 in microseconds by the number
//! in flight, into a file that each write makes longer, into reserved (unwritten) space, and over
//! zeros (2 virtual cores with a load of 10 beside it, ext4, kernel 6.18; differences below a third
//! mean nothing; a plain thread's O_DIRECT write of 4 KiB took 45):
//!
//! | write | in flight | longer | reserved | zeros |
//! |---|---|---|---|---|
//! | 4 KiB | 1 | 58 | 76 | 54 |
//! | 4 KiB | 4 | 164 | 208 | 114 |
//! | 4 KiB | 8 | 373 | 348 | 123 |
//! | 16 KiB | 1 | 85 | 60 | 77 |
//! | 16 KiB | 4 | 259 | 185 | 107 |
//! | 16 KiB | 8 | 268 | 251 | 129 |
//! | 1 MiB | 1 | 544 | 419 | 275 |
//! | 1 MiB | 4 | 1642 | 1447 | 1005 |
//! | 1 MiB | 8 | 3537 | 2668 | 3017 |
//!
//! Time per write of 1 MiB over zeros: 467 alone, 324 with four in flight, 585 with eight. Writing
//! the zeros themselves takes 450 to 600 a MiB.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::VecDeque;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use highwater::log::{
    AppendAs, AppendStats, Log, LogConfig, LogOpen, LogShard, Origin, ProducerLimits, SegmentIo,
    ShardLimits, WriteLimits,
};
use highwater::rt::fs::AlignedBuf;
use highwater::rt::{self, RingPlan, run_ring, wall_ms};
use highwater::types::{LeaderEpoch, Offset, Uuid};
use highwater::wire::batch_builder::BatchBuilder;

const SIZES: [(&str, usize); 3] = [("1KiB", 1 << 10), ("16KiB", 16 << 10), ("1MiB", 1 << 20)];
const DEPTHS: [usize; 3] = [1, 16, 64];
const BLOCK: usize = 4096;
/// Bytes that one run writes at most, and batches.
const RUN_BYTES: usize = 96 << 20;
const RUN_BATCHES: usize = 2048;
const RUN_FLUSHES: usize = 128;

/// What one run of so many batches took.
#[derive(Clone, Copy)]
struct Took {
    median: Duration,
    per_batch: Duration,
}

impl Took {
    fn of(mut each: Vec<Duration>, whole: Duration) -> Took {
        each.sort_unstable();
        Took {
            median: each[each.len() / 2],
            per_batch: whole / each.len() as u32,
        }
    }

    fn shown(self, depth: usize) -> f64 {
        let time = if depth == 1 {
            self.median
        } else {
            self.per_batch
        };
        time.as_secs_f64() * 1e6
    }
}

/// One durability row.
#[derive(Clone, Copy)]
struct Row {
    io: SegmentIo,
    flush: bool,
}

const ROWS: [Row; 4] = [
    Row {
        io: SegmentIo::Buffered,
        flush: false,
    },
    Row {
        io: SegmentIo::Buffered,
        flush: true,
    },
    Row {
        io: SegmentIo::Direct,
        flush: false,
    },
    Row {
        io: SegmentIo::Direct,
        flush: true,
    },
];

fn bench_dir() -> tempfile::TempDir {
    match std::env::var_os("HIGHWATER_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).expect("HIGHWATER_BENCH_DIR is a directory"),
        None => tempfile::tempdir().expect("there is a temporary directory"),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
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

fn batches_of(size: usize, depth: usize, row: Row) -> usize {
    let bound = if row.flush {
        RUN_FLUSHES * depth
    } else {
        RUN_BATCHES
    };
    bound.min(RUN_BYTES / size).max(2 * depth)
}

fn limits() -> ShardLimits {
    let mut writes = WriteLimits::default();
    if let Some(in_flight) = number("HIGHWATER_BENCH_IN_FLIGHT") {
        writes.in_flight_max = in_flight as usize;
    }
    if let Some(beside) = number("HIGHWATER_BENCH_BESIDE") {
        writes.beside_bytes_min = beside;
    }
    ShardLimits {
        writes,
        ..ShardLimits::default()
    }
}

async fn open_log(shard: &Rc<LogShard>, log_dir: PathBuf, row: Row) -> Rc<Log> {
    let config = LogConfig {
        segment_io: row.io,
        flush_messages: if row.flush { 1 } else { i64::MAX },
        max_message_bytes: 2 << 20,
        ..LogConfig::default()
    };
    let open = LogOpen {
        log_dir,
        topic: "bench".into(),
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
    Log::open(shard, open).await.expect("an empty log opens").0
}

/// Appends `count` batches, `depth` of them outstanding, each until it counts.
async fn append(dir: &Path, row: Row, bytes: &Bytes, depth: usize) -> (Took, AppendStats) {
    let log_dir = dir.join("log");
    std::fs::create_dir_all(&log_dir).expect("the bench directory is writable");
    let shard = LogShard::new(limits());
    let log = open_log(&shard, log_dir.clone(), row).await;
    let count = batches_of(bytes.len(), depth, row);
    let mut outstanding: VecDeque<(Offset, Instant)> = VecDeque::new();
    let mut each = Vec::with_capacity(count);
    let mut appended = 0;
    let begun = Instant::now();
    while each.len() < count {
        while outstanding.len() < depth && appended < count {
            let how = AppendAs {
                leader_epoch: LeaderEpoch(0),
                ..AppendAs::new(Origin::Client, 13, wall_ms())
            };
            let since = Instant::now();
            let done = log
                .append_as_leader(bytes.clone(), how)
                .expect("it is valid");
            outstanding.push_back((done.last_offset.next(), since));
            appended += 1;
        }
        if let Some((end, _)) = outstanding.front()
            && log.counted() < *end
        {
            log.wait_counted(*end).await.expect("the disk takes it");
        }
        while outstanding
            .front()
            .is_some_and(|(end, _)| *end <= log.counted())
        {
            each.extend(outstanding.pop_front().map(|(_, since)| since.elapsed()));
        }
    }
    let took = Took::of(each, begun.elapsed());
    log.close().await.expect("the disk takes it");
    drop(std::fs::remove_dir_all(&log_dir));
    (took, shard.append_stats())
}

fn plain(dir: &Path, bytes: &[u8], count: usize, flush_every: Option<usize>) -> Took {
    let path = dir.join("plain");
    let file = File::create(&path).expect("the bench directory is writable");
    let mut each = Vec::with_capacity(count);
    let begun = Instant::now();
    for at in 0..count {
        let since = Instant::now();
        file.write_all_at(bytes, (at * bytes.len()) as u64)
            .expect("the disk takes it");
        if flush_every.is_some_and(|every| (at + 1) % every == 0) {
            file.sync_data().expect("the disk takes it");
        }
        each.push(since.elapsed());
    }
    let took = Took::of(each, begun.elapsed());
    drop(std::fs::remove_file(path));
    took
}

/// A file of zeros on the disk.
fn zeros(path: &Path, len: usize) {
    let file = File::create(path).expect("the bench directory is writable");
    let zeros = vec![0; 1 << 20];
    for at in 0..len.div_ceil(zeros.len()) {
        file.write_all_at(&zeros, (at * zeros.len()) as u64)
            .expect("the disk takes it");
    }
    file.sync_all().expect("the disk takes it");
}

fn direct_by_thread(path: &Path, len: usize, count: usize, flush: bool) -> Took {
    let layout = Layout::from_size_align(len, BLOCK).expect("a block is a power of two");
    #[allow(unsafe_code)]
    // SAFETY: the layout has a positive size; the memory is used as `len` zeroed bytes and is left
    // to the process, which ends with the bench.
    let buffer = unsafe { std::slice::from_raw_parts(alloc_zeroed(layout), len) };
    let file = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .expect("the file system takes O_DIRECT");
    let mut each = Vec::with_capacity(count);
    let begun = Instant::now();
    for at in 0..count {
        let since = Instant::now();
        file.write_all_at(buffer, (at * len) as u64)
            .expect("the disk takes it");
        if flush {
            file.sync_data().expect("the disk takes it");
        }
        each.push(since.elapsed());
    }
    Took::of(each, begun.elapsed())
}

async fn direct_on_the_ring(
    path: &Path,
    len: usize,
    count: usize,
    depth: usize,
    flush: bool,
) -> Took {
    let how = rt::fs::OpenOptions::READ_WRITE.direct();
    let file = rt::fs::File::open(path, how).await.expect("it is there");
    let mut tasks: VecDeque<rt::Task<Duration>> = VecDeque::new();
    let mut each = Vec::with_capacity(count);
    let begun = Instant::now();
    for at in 0..count {
        if tasks.len() == depth
            && let Some(task) = tasks.pop_front()
        {
            each.push(task.await);
        }
        let writer = file.clone();
        tasks.push_back(rt::spawn(async move {
            let since = Instant::now();
            let buffer = AlignedBuf::gathered(&[&vec![7; len]]);
            let written = writer.write_aligned_at((at * len) as u64, buffer).await.0;
            written.expect("the disk takes it");
            since.elapsed()
        }));
        if flush && (at + 1) % depth == 0 {
            for task in tasks.drain(..) {
                each.push(task.await);
            }
            file.sync_data().await.expect("the disk takes it");
        }
    }
    for task in tasks {
        each.push(task.await);
    }
    Took::of(each, begun.elapsed())
}

async fn floor(dir: &Path, row: Row, bytes: &Bytes, depth: usize) -> Took {
    let count = batches_of(bytes.len(), depth, row);
    if row.io == SegmentIo::Buffered {
        let (dir, bytes) = (dir.to_owned(), bytes.clone());
        let flush_every = row.flush.then_some(depth);
        return rt::spawn_blocking(move || plain(&dir, &bytes, count, flush_every)).await;
    }
    let path = dir.join("direct");
    let len = bytes.len().next_multiple_of(BLOCK);
    let made = path.clone();
    rt::spawn_blocking(move || zeros(&made, count * len)).await;
    let took = if depth == 1 {
        let (path, flush) = (path.clone(), row.flush);
        rt::spawn_blocking(move || direct_by_thread(&path, len, count, flush)).await
    } else {
        direct_on_the_ring(&path, len, count, depth, row.flush).await
    };
    drop(std::fs::remove_file(path));
    took
}

fn crc(bytes: &Bytes) -> f64 {
    let rounds = (64 << 20) / bytes.len() as u32;
    let begun = Instant::now();
    for _ in 0..rounds {
        black_box(crc32c::crc32c(black_box(bytes)));
    }
    (begun.elapsed() / rounds).as_secs_f64() * 1e6
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn table(dir: &Path, filter: Option<&str>, rounds: usize) {
    println!("| batch | outstanding | buffered | flushed | direct | direct flushed |");
    println!("|---|---|---|---|---|---|");
    let mut notes = Vec::new();
    for (name, size) in SIZES {
        if filter.is_some_and(|filter| !name.contains(filter)) {
            continue;
        }
        let bytes = batch(size);
        notes.push(format!("{name}: CRC-32C {:.2} us", crc(&bytes)));
        for depth in DEPTHS {
            let mut cells = Vec::new();
            for row in ROWS {
                let (mut log, mut bare) = (Vec::new(), Vec::new());
                let mut stats = AppendStats::default();
                for _ in 0..rounds {
                    let (took, counted) = append(dir, row, &bytes, depth).await;
                    log.push(took.shown(depth));
                    bare.push(floor(dir, row, &bytes, depth).await.shown(depth));
                    stats = counted;
                }
                cells.push(format!(
                    "{:.1} / {:.1}",
                    median(&mut log),
                    median(&mut bare)
                ));
                if row.io == SegmentIo::Direct {
                    notes.push(format!(
                        "{name} x {depth}{}: {:.1} batches a write, {:.2} bytes written per byte, \
                         {} waits for space",
                        if row.flush { ", flushed" } else { "" },
                        stats.batches as f64 / stats.writes.max(1) as f64,
                        stats.amplification(),
                        stats.space_waits
                    ));
                }
            }
            println!("| {name} | {depth} | {} |", cells.join(" | "));
        }
    }
    println!();
    notes.iter().for_each(|note| println!("{note}"));
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Without --bench (cargo test) only that it runs is of interest.
    let benched = args.iter().any(|arg| arg == "--bench");
    let rounds = if benched {
        number("HIGHWATER_BENCH_ROUNDS").unwrap_or(5) as usize
    } else {
        1
    };
    let asked = args.iter().find(|arg| !arg.starts_with("--")).cloned();
    let filter = if benched {
        asked
    } else {
        Some("16KiB".to_owned())
    };
    let dir = bench_dir();
    let path = dir.path().to_owned();
    run_ring(RingPlan::default(), move |executor| {
        let (path, filter) = (path.clone(), filter.clone());
        async move {
            if !executor.is_control() {
                table(&path, filter.as_deref(), rounds.max(1)).await;
            }
        }
    })
    .expect("the ring runs");
}
