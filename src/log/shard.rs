//! Owns what the logs of one shard share: the recent-batch cache, the pieces read ahead, the index
//! memory bound, the flush rounds, and whom to tell when a directory fails. One per shard, on that shard. It never
//! knows which partitions exist: the manager does.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use crate::rt::sync::Semaphore;

use super::append_stats::{AppendCounters, AppendStats};
use super::cache::{LogKey, RecentBatches};
use super::error::LogError;
use super::flush::{FlushLimits, FlushStats, Flusher};
use super::index_files::IndexBudget;
use super::journal::{Journals, ShardJournals};
use super::read_ahead::{ColdReadLimits, ReadAhead, ReadAheadStats};
use super::write_queue::WriteLimits;
use super::writer::SHARD_WRITES_IN_FLIGHT_MAX;

/// Called with the log directory (the parent of the partition's) and the failure.
type OnFailure = Rc<dyn Fn(&Path, &LogError)>;

/// Each keeps a file open while it writes, and they all wait for the same few threads: thousands of
/// partitions that begin to be written in one moment must not use up the descriptors.
const PERSISTS_AT_ONCE: u64 = 16;

/// Bounds of what the logs of a shard share.
#[derive(Clone, Copy, Debug)]
pub struct ShardLimits {
    /// Recent batches kept in memory. 64 MiB hold more than half a second of 100 MB/s, longer
    /// than a follower or a tailing consumer stays away.
    pub recent_batch_bytes: u64,
    /// A read of less is not answered as a range of its file: looking for the range's end costs as
    /// much as copying it.
    pub range_bytes_min: u64,
    /// Indexes of sealed segments kept in memory. 64 MiB hold those of some 13 GiB of log.
    pub sealed_index_bytes: u64,
    /// Size of the journal in each log directory. 64 MiB take some 600 rounds of a hundred small
    /// batches, so that the flushes behind them cost little. 0: no journal. Whoever has one must
    /// hand over what [`Journals::read`] finds before the next life opens a log.
    pub journal_bytes: u64,
    /// Pieces of old segments held for readers that go through them in order. A reader takes
    /// three MiB: one on its way to the client, one to be sent next, one being read. 64 MiB serve
    /// 21 readers apart from each other at full speed; more go on without read-ahead.
    pub read_ahead_bytes: u64,
    pub writes: WriteLimits,
    pub flushes: FlushLimits,
    pub cold_reads: ColdReadLimits,
}

impl Default for ShardLimits {
    fn default() -> ShardLimits {
        ShardLimits {
            recent_batch_bytes: 64 << 20,
            range_bytes_min: 64 << 10,
            sealed_index_bytes: 64 << 20,
            journal_bytes: 0,
            read_ahead_bytes: 64 << 20,
            writes: WriteLimits::default(),
            flushes: FlushLimits::default(),
            cold_reads: ColdReadLimits::default(),
        }
    }
}

/// What the logs of one shard share.
pub struct LogShard {
    pub(super) recent: RecentBatches,
    pub(super) range_bytes_min: u64,
    pub(super) ahead: Rc<ReadAhead>,
    pub(super) index_budget: IndexBudget,
    pub(super) flusher: Rc<Flusher>,
    pub(super) journals: Rc<ShardJournals>,
    pub(super) write_limits: WriteLimits,
    pub(super) flush_limits: FlushLimits,
    pub(super) appends: Rc<AppendCounters>,
    /// O_DIRECT writes that may be in flight, over all logs.
    pub(super) writes: Semaphore,
    /// Logs whose indexes and epochs may be written behind at once.
    pub(super) persists: Semaphore,
    next_key: Cell<LogKey>,
    on_failure: RefCell<Option<OnFailure>>,
}

impl LogShard {
    pub fn new(limits: ShardLimits) -> Rc<LogShard> {
        let journals = Rc::new(ShardJournals::new(limits.journal_bytes));
        let flusher = Flusher::new(journals.clone(), limits.flushes);
        Rc::new(LogShard {
            recent: RecentBatches::new(limits.recent_batch_bytes),
            range_bytes_min: limits.range_bytes_min,
            ahead: ReadAhead::new(limits.read_ahead_bytes, limits.cold_reads, flusher.clone()),
            index_budget: IndexBudget::new(limits.sealed_index_bytes),
            flusher,
            journals,
            write_limits: limits.writes,
            flush_limits: limits.flushes,
            appends: Rc::default(),
            writes: Semaphore::new(SHARD_WRITES_IN_FLIGHT_MAX),
            persists: Semaphore::new(PERSISTS_AT_ONCE),
            next_key: Cell::new(0),
            on_failure: RefCell::new(None),
        })
    }

    /// Registers who is told that a log directory failed (at most one; the last one set).
    pub fn on_failure(&self, tell: impl Fn(&Path, &LogError) + 'static) {
        *self.on_failure.borrow_mut() = Some(Rc::new(tell));
    }

    /// What the journals of a directory said, before a log of it is opened.
    pub fn found_journals(&self, log_dir: &Path, journals: Arc<Journals>) {
        self.journals.found(log_dir, journals);
    }

    /// Bytes of recent batches held now.
    pub fn recent_batch_bytes(&self) -> u64 {
        self.recent.bytes()
    }

    /// Counters of the reads from the device.
    pub fn read_ahead_stats(&self) -> ReadAheadStats {
        self.ahead.stats()
    }

    /// Counters of the flush rounds.
    pub fn flush_stats(&self) -> FlushStats {
        self.flusher.stats()
    }

    /// Counters of the appends.
    pub fn append_stats(&self) -> AppendStats {
        self.appends.get()
    }

    #[cfg(test)]
    pub(crate) fn count_for_test(&self, batches: u64, bytes: u64) {
        self.appends.wrote(bytes, batches);
    }

    pub(super) fn next_key(&self) -> LogKey {
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        key
    }

    pub(super) fn report_failure(&self, log_dir: &Path, error: &LogError) {
        let tell = self.on_failure.borrow().clone();
        if let Some(tell) = tell {
            tell(log_dir, error);
        }
    }
}
