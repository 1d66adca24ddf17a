//! Question: what does one flushed acknowledgement cost when one small batch arrives for each of N
//! partitions of a shard, and which way do the flush rounds take?
//!
//! One batch of 1 KiB is appended to each of N logs with `flush.messages=1`, then all of them are
//! waited for: a round. Beside it, in the same run and turn by turn: the same with the journal
//! switched off (every round flushes segments), and the floor, `pwrite` + `fdatasync` of N
//! preallocated files one after the other. Medians over all rounds; no client, no network.
//! The data lies under `HIGHWATER_BENCH_DIR`, or the temporary directory; some 1.2 GB at N=1000.
//! Last result: in `tuning/README.md`, with what follows from it.
//!
//! Not criterion: it would time one way after the other, and a shared device drifts in between.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use highwater::log::{
    AppendAs, FlushStats, Log, LogConfig, LogOpen, LogShard, Origin, ProducerLimits, SegmentIo,
    ShardLimits,
};
use highwater::rt::{RingPlan, run_ring, wall_ms};
use highwater::types::{LeaderEpoch, Offset, Uuid};
use highwater::wire::batch_builder::BatchBuilder;

const TURNS: usize = 3;
/// Rounds in a turn, and rounds before them that are not counted (the journal is made in these).
const ROUNDS: [(usize, usize); 4] = [(1, 300), (10, 150), (100, 40), (1000, 8)];
const WARM_UP: usize = 5;
const PREALLOCATED: u64 = 1 << 20;

#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    io: SegmentIo,
    journal_bytes: u64,
}

const WAYS: [Way; 4] = [
    Way {
        name: "buffered, segments only",
        io: SegmentIo::Buffered,
        journal_bytes: 0,
    },
    Way {
        name: "buffered",
        io: SegmentIo::Buffered,
        journal_bytes: 64 << 20,
    },
    Way {
        name: "direct, segments only",
        io: SegmentIo::Direct,
        journal_bytes: 0,
    },
    Way {
        name: "direct",
        io: SegmentIo::Direct,
        journal_bytes: 64 << 20,
    },
];

fn batch() -> Bytes {
    let mut builder = BatchBuilder::new();
    builder
        .append(wall_ms(), None, Some(&[7; 950]), &[])
        .expect("a small record fits");
    builder.build().expect("the batch has records")
}

/// The floor: N files, written and flushed one after the other.
fn bare(dir: &Path, logs: usize, rounds: usize) -> Vec<Duration> {
    let bytes = batch();
    let files: Vec<File> = (0..logs)
        .map(|at| {
            let file =
                File::create(dir.join(format!("bare-{at}"))).expect("the directory is writable");
            file.set_len(PREALLOCATED).expect("a sparse file is free");
            file.write_all_at(&vec![0; PREALLOCATED as usize], 0)
                .expect("the disk takes it");
            file.sync_all().expect("the disk takes it");
            file
        })
        .collect();
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let position = (round * bytes.len()) as u64 % (PREALLOCATED - bytes.len() as u64);
        let begun = Instant::now();
        for file in &files {
            file.write_all_at(&bytes, position)
                .expect("the disk takes it");
            file.sync_data().expect("the disk takes it");
        }
        times.push(begun.elapsed());
    }
    times
}

/// Times of `rounds` rounds over `logs` logs, and what the flush rounds did in them.
fn broker(
    dir: &Path,
    logs: usize,
    rounds: usize,
    way: Way,
) -> (Vec<Duration>, FlushStats, FlushStats) {
    let (sender, receiver) = mpsc::channel();
    let log_dir = dir.to_owned();
    run_ring(RingPlan::default(), move |executor| {
        let (sender, log_dir) = (sender.clone(), log_dir.clone());
        async move {
            if !executor.is_control() {
                let answer = rounds_on_shard(log_dir, logs, rounds, way).await;
                sender.send(answer).expect("the bench waits");
            }
        }
    })
    .expect("the ring runs");
    receiver.recv().expect("the shard has answered")
}

async fn rounds_on_shard(
    log_dir: PathBuf,
    logs: usize,
    rounds: usize,
    way: Way,
) -> (Vec<Duration>, FlushStats, FlushStats) {
    let shard = LogShard::new(ShardLimits {
        journal_bytes: way.journal_bytes,
        ..ShardLimits::default()
    });
    let mut open = Vec::with_capacity(logs);
    for partition in 0..logs {
        let how = LogOpen {
            log_dir: log_dir.clone(),
            topic: "bench".into(),
            partition: partition as i32,
            topic_id: Uuid::from_halves(1, 1),
            config: LogConfig {
                segment_io: way.io,
                flush_messages: 1,
                ..LogConfig::default()
            },
            clean_shutdown: true,
            recovery_point: Offset::ZERO,
            first_dirty: None,
            log_start: None,
            now_ms: wall_ms(),
            producer_limits: ProducerLimits::default(),
        };
        open.push(Log::open(&shard, how).await.expect("an empty log opens").0);
    }
    for _ in 0..WARM_UP {
        round(&open).await;
        highwater::rt::sleep(Duration::from_millis(40)).await;
    }
    let before = shard.flush_stats();
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        round(&open).await;
        times.push(begun.elapsed());
    }
    (times, before, shard.flush_stats())
}

/// Appends one batch to each log and waits until all of them count.
async fn round(logs: &[Rc<Log>]) {
    let bytes = batch();
    let mut ends = Vec::with_capacity(logs.len());
    for log in logs {
        let how = AppendAs {
            leader_epoch: LeaderEpoch(0),
            ..AppendAs::new(Origin::Client, 13, wall_ms())
        };
        let appended = log
            .append_as_leader(bytes.clone(), how)
            .expect("it is valid");
        ends.push(appended.last_offset.next());
    }
    for (log, end) in logs.iter().zip(ends) {
        if log.counted() < end {
            log.wait_counted(end).await.expect("the disk takes it");
        }
    }
}

fn quantile(times: &mut [Duration], quantile: f64) -> f64 {
    times.sort();
    let at = ((times.len() - 1) as f64 * quantile).round() as usize;
    times[at].as_secs_f64() * 1e6
}

fn main() {
    // `cargo test --benches` and `cargo bench -- --test` only ask whether it starts.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let base =
        std::env::var_os("HIGHWATER_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    println!(
        "| partitions | way | round p50 us | p99 us | acks/s | against one fdatasync per batch | files flushed, frames written per round |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (logs, rounds) in ROUNDS {
        let mut floor = Vec::new();
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); WAYS.len()];
        let mut counts = [(0.0, 0.0); WAYS.len()];
        for _ in 0..TURNS {
            let dir = tempfile::tempdir_in(&base).expect("the bench directory is writable");
            floor.extend(bare(dir.path(), logs, rounds));
            for (at, way) in WAYS.into_iter().enumerate() {
                let dir = tempfile::tempdir_in(&base).expect("the bench directory is writable");
                let (taken, before, after) = broker(dir.path(), logs, rounds, way);
                times[at].extend(taken);
                let all = (TURNS * rounds) as f64;
                counts[at].0 += (after.files - before.files) as f64 / all;
                counts[at].1 += (after.journal_frames - before.journal_frames) as f64 / all;
            }
        }
        let bare = quantile(&mut floor, 0.5);
        let acks = |us: f64| logs as f64 / us * 1e6;
        println!(
            "| {logs} | pwrite + fdatasync each | {bare:.0} | {:.0} | {:.0} | 1 | |",
            quantile(&mut floor, 0.99),
            acks(bare)
        );
        for (at, way) in WAYS.into_iter().enumerate() {
            let p50 = quantile(&mut times[at], 0.5);
            println!(
                "| {logs} | {} | {p50:.0} | {:.0} | {:.0} | {:.2} | {:.1}, {:.1} |",
                way.name,
                quantile(&mut times[at], 0.99),
                acks(p50),
                bare / p50,
                counts[at].0,
                counts[at].1
            );
        }
    }
}
