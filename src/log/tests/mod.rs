//! Tests of a whole log on a real directory, on the ring.

mod cleaner_upkeep;
mod cleaning;
mod cold;
mod compaction;
mod derived;
mod disks;
mod flushing;
mod history;
mod in_place;
mod journal;
mod lives;
mod manager;
mod old_journals;
mod owed;
mod power;
mod reading;
mod recovery;
mod retaining;
mod rolling;
mod unlinking;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;

use crate::rt::{RingPlan, run_ring};
pub(super) use crate::simulation::seeds;
use crate::types::{LeaderEpoch, Offset, Uuid};
use crate::wire::Records;
use crate::wire::batch::Batch;
use crate::wire::batch_builder::BatchBuilder;

use super::log::Status;
use super::*;

pub(super) const NOW_MS: i64 = 1_700_000_000_000;

/// Runs a test on a shard of its own with an empty log directory.
pub(super) fn on_shard<F>(test: impl Fn(PathBuf) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    run_ring(RingPlan::default(), move |executor| {
        let (test, path) = (test.clone(), path.clone());
        async move {
            if !executor.is_control() {
                test(path).await;
            }
        }
    })
    .unwrap();
}

pub(super) fn open_of(dir: &Path, config: LogConfig) -> LogOpen {
    LogOpen {
        log_dir: dir.to_owned(),
        topic: "orders".into(),
        partition: 3,
        topic_id: Uuid::from_halves(7, 7),
        config,
        clean_shutdown: false,
        recovery_point: Offset::ZERO,
        first_dirty: None,
        log_start: None,
        now_ms: NOW_MS,
        producer_limits: ProducerLimits::default(),
    }
}

pub(super) async fn open(
    shard: &Rc<LogShard>,
    dir: &Path,
    config: LogConfig,
) -> (Rc<Log>, RecoveryReport) {
    Log::open(shard, open_of(dir, config)).await.unwrap()
}

pub(super) fn small_segments() -> LogConfig {
    LogConfig {
        segment_bytes: 4096,
        index_interval_bytes: 200,
        file_delete_delay_ms: 0,
        ..LogConfig::default()
    }
}

/// So that a few small batches are several writes in flight.
pub(super) fn small_writes() -> WriteLimits {
    WriteLimits {
        merged_bytes_max: 6000,
        beside_bytes_min: 0,
        ..WriteLimits::default()
    }
}

/// One batch with the given records' timestamps and values of `value_bytes` each.
pub(super) fn batch_of(timestamps: &[i64], value_bytes: usize) -> Bytes {
    builder_of(timestamps, value_bytes).build().unwrap()
}

pub(super) fn builder_of(timestamps: &[i64], value_bytes: usize) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    for (at, timestamp) in timestamps.iter().enumerate() {
        let value = vec![at as u8; value_bytes];
        builder
            .append(*timestamp, Some(b"key"), Some(&value), &[])
            .unwrap();
    }
    builder
}

pub(super) fn as_leader() -> AppendAs {
    AppendAs {
        leader_epoch: LeaderEpoch(1),
        ..AppendAs::new(Origin::Client, 13, NOW_MS)
    }
}

/// Appends a batch of `count` records; its offsets.
pub(super) fn append(log: &Log, count: usize, value_bytes: usize) -> Appended {
    log.append_as_leader(batch_of(&vec![NOW_MS; count], value_bytes), as_leader())
        .unwrap()
}

/// Reads everything from `from` on, one read after the other, in place where that goes; (base, last)
/// of each batch.
pub(super) async fn read_all(log: &Log, from: Offset) -> Vec<(i64, i64)> {
    let mut found = Vec::new();
    let mut next = from;
    while next < log.log_end() {
        log.writer_idle().await;
        let outcome = match log.range_of(next, log.log_end(), 2000, 1).await.unwrap() {
            Some(outcome) => fetched(outcome).await,
            None => log.read(next, log.log_end(), 2000, true).await.unwrap(),
        };
        assert!(
            !outcome.records.is_empty(),
            "nothing at {next} below {}",
            log.log_end()
        );
        for batch in batches(&outcome) {
            batch.check_crc().unwrap();
            found.push((batch.base_offset().0, batch.last_offset().0));
        }
        assert!(outcome.upper_bound > next);
        next = outcome.upper_bound;
    }
    found
}

/// With the bytes of its file in memory.
pub(super) async fn fetched(outcome: ReadOutcome) -> ReadOutcome {
    let mut records = Records::new();
    if let Some(range) = outcome.records.file() {
        records.push(range.read_cold(0, range.len()).await.unwrap());
    }
    for part in outcome.records.parts() {
        records.push(part.clone());
    }
    assert_eq!(records.len(), outcome.records.len());
    ReadOutcome { records, ..outcome }
}

pub(super) fn batches(outcome: &ReadOutcome) -> Vec<Batch> {
    let mut rest = outcome.records.to_bytes();
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let (batch, tail) = Batch::parse(&rest).unwrap();
        batches.push(batch);
        rest = tail;
    }
    batches
}

impl Log {
    /// Ends a log as a killed process does: what is written stays, nothing more is done.
    pub(super) async fn abandon(&self) {
        self.writer_idle().await;
        let _permit = self.upkeep.acquire(1).await;
        let segments: Vec<_> = self.state().segments.values().cloned().collect();
        for segment in segments {
            // A real kill ends these with the process.
            segment.preallocation_settled().await;
        }
        self.state_mut().status = Status::Closed;
        self.shard.recent.forget(self.key());
    }
}

/// Paths of the files with this extension, ascending.
pub(super) fn files(log: &Log, extension: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(log.dir().as_path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    found.sort();
    found
}
