//! Owns one segment of a log: its file handles, its size, its indexes in memory and what of them
//! is already on disk. On the log's shard. It never decides when to roll a log or to delete a
//! segment, and never writes log bytes: the appender does.
//!
//! The active segment's indexes are always in memory. A sealed segment's are read when a lookup
//! wants them and dropped again under the shard's index bound (`IndexBudget`).

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

use crate::rt::fs::{File, OpenOptions};
use crate::rt::sync::Event;
use crate::types::Offset;

use super::config::{LogConfig, SegmentIo};
use super::index::{NO_TIMESTAMP, OFFSET_ENTRY_BYTES, OffsetIndex, TIME_ENTRY_BYTES, TimeIndex};
use super::names::{FileKind, segment_file};
use super::txn_index::{AbortedTxn, TxnIndex};
use super::write_queue::BLOCK_BYTES;

/// Largest position a segment may reach: positions in the index are signed 32-bit in Kafka.
pub const SEGMENT_BYTES_MAX: u64 = i32::MAX as u64;

/// What a segment needs to know of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchExtent {
    pub base: Offset,
    pub last: Offset,
    pub max_timestamp: i64,
    pub size: u32,
}

/// Sizes and largest offset of an append, for the roll decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    pub size: u64,
    pub last: Offset,
    pub max_timestamp: i64,
}

/// Handles of an open segment file. With O_DIRECT appends the reads still go through the page
/// cache, by a handle of their own.
#[derive(Clone)]
pub struct SegmentHandles {
    pub reader: File,
    pub writer: File,
    pub io: SegmentIo,
}

/// One segment.
pub struct Segment {
    base: Offset,
    handles: RefCell<Option<SegmentHandles>>,
    state: RefCell<State>,
    /// Everything of a sealed segment has reached the disk.
    synced: Cell<bool>,
    /// Bytes that a flush of this life has covered.
    flushed: Cell<u64>,
    /// The index files of a sealed segment are whole, cut to size and on the disk.
    index_files_whole: Cell<bool>,
    /// As a clean stop left it: nothing was appended, cut, reserved or written behind since.
    untouched: Cell<bool>,
    /// Its indexes were made again from its batches in this life.
    reindexed: Cell<bool>,
    /// A compacted segment has taken its place: the index files of its name are not its own.
    replaced: Cell<bool>,
    preallocation: Cell<Preallocation>,
    /// Zeros are being written ahead from here on.
    zeros_from: Cell<u64>,
    /// A write waits for space.
    space_awaited: Cell<bool>,
    /// Rung when an extension of the file ended, or made some of its space usable.
    preallocation_moved: Event,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Preallocation {
    Idle,
    Running,
    /// The file system would not; not asked again for this segment.
    Refused,
}

struct State {
    /// Bytes appended, written or not.
    size: u64,
    /// Bytes whose write has completed.
    written: u64,
    /// Length of the file, preallocation included.
    file_len: u64,
    created_ms: i64,
    jitter_ms: i64,
    /// Largest timestamp of the first batch; what `segment.ms` counts from.
    first_timestamp: Option<i64>,
    max_timestamp: i64,
    max_timestamp_offset: Offset,
    bytes_since_entry: u64,
    sealed: bool,
    indexes: Option<Indexes>,
    txns: TxnIndex,
    txns_unwritten: bool,
}

#[derive(Clone)]
struct Indexes {
    offsets: OffsetIndex,
    times: TimeIndex,
    /// Entries that are in the files already.
    persisted: (usize, usize),
    /// The files may hold entries past `persisted` that are not ours any more.
    stale_tail: bool,
    /// Counts the cuts, so that a write of entries that a cut overtook is not believed.
    cuts: u64,
    max_entries: (usize, usize),
}

/// How a segment stands at load time.
pub struct Loaded {
    pub base: Offset,
    pub size: u64,
    pub file_len: u64,
    pub now_ms: i64,
    pub jitter_ms: i64,
}

impl Segment {
    /// A new, empty active segment; its files are made by the appender.
    pub fn create(base: Offset, now_ms: i64, jitter_ms: i64, config: &LogConfig) -> Segment {
        let loaded = Loaded {
            base,
            size: 0,
            file_len: 0,
            now_ms,
            jitter_ms,
        };
        let segment = Segment::load(loaded);
        segment.reset_indexes(config);
        segment
    }

    /// A segment found on disk; indexes and handles follow.
    pub fn load(loaded: Loaded) -> Segment {
        Segment {
            base: loaded.base,
            handles: RefCell::new(None),
            synced: Cell::new(false),
            flushed: Cell::new(0),
            index_files_whole: Cell::new(false),
            untouched: Cell::new(false),
            reindexed: Cell::new(false),
            replaced: Cell::new(false),
            preallocation: Cell::new(Preallocation::Idle),
            zeros_from: Cell::new(u64::MAX),
            space_awaited: Cell::new(false),
            preallocation_moved: Event::new(),
            state: RefCell::new(State {
                size: loaded.size,
                written: loaded.size,
                file_len: loaded.file_len,
                created_ms: loaded.now_ms,
                jitter_ms: loaded.jitter_ms,
                first_timestamp: None,
                max_timestamp: NO_TIMESTAMP,
                max_timestamp_offset: loaded.base,
                bytes_since_entry: 0,
                sealed: false,
                indexes: None,
                txns: TxnIndex::default(),
                txns_unwritten: false,
            }),
        }
    }

    pub fn base(&self) -> Offset {
        self.base
    }

    pub fn size(&self) -> u64 {
        self.state.borrow().size
    }

    pub fn written(&self) -> u64 {
        self.state.borrow().written
    }

    pub fn file_len(&self) -> u64 {
        self.state.borrow().file_len
    }

    pub fn is_sealed(&self) -> bool {
        self.state.borrow().sealed
    }

    pub fn is_synced(&self) -> bool {
        self.synced.get()
    }

    pub fn mark_synced(&self) {
        self.synced.set(true);
    }

    /// A sealed segment that a later start may take as it is, without looking at its batches.
    pub fn is_settled(&self) -> bool {
        self.synced.get() && self.index_files_whole.get()
    }

    /// Found whole when the log was opened.
    pub fn mark_settled(&self) {
        self.synced.set(true);
        self.index_files_whole.set(true);
    }

    /// Found as a clean stop left it, the active segment too.
    pub fn mark_untouched(&self) {
        self.untouched.set(true);
    }

    /// Whether its files are still what a clean stop left: closing it has nothing to do.
    pub fn is_untouched(&self) -> bool {
        self.untouched.get()
    }

    /// A compacted segment has taken its place in the log.
    pub fn mark_replaced(&self) {
        self.replaced.set(true);
    }

    pub fn is_replaced(&self) -> bool {
        self.replaced.get()
    }

    /// The largest timestamp of the first batch, if that is known.
    pub fn first_timestamp(&self) -> Option<i64> {
        self.state.borrow().first_timestamp
    }

    /// (largest timestamp, last offset of the batch that holds it); (-1, base) when empty.
    pub fn max_timestamp(&self) -> (i64, Offset) {
        let state = self.state.borrow();
        (state.max_timestamp, state.max_timestamp_offset)
    }

    /// What retention by time counts from: the largest timestamp, else the creation time.
    pub fn retention_timestamp(&self) -> i64 {
        let state = self.state.borrow();
        if state.max_timestamp >= 0 {
            state.max_timestamp
        } else {
            state.created_ms
        }
    }

    pub fn handles(&self) -> Option<SegmentHandles> {
        self.handles.borrow().clone()
    }

    pub fn set_handles(&self, handles: SegmentHandles) {
        *self.handles.borrow_mut() = Some(handles);
    }

    /// Kafka's roll rules for an append of `incoming` to this active segment.
    pub fn should_roll(&self, incoming: &Incoming, config: &LogConfig, now_ms: i64) -> bool {
        let state = self.state.borrow();
        let waited_ms = match state.first_timestamp {
            Some(first) if first >= 0 => incoming.max_timestamp.saturating_sub(first),
            _ => now_ms.saturating_sub(state.created_ms),
        };
        let full = state.indexes.as_ref().is_some_and(|indexes| {
            // The time index keeps its last slot for the closing entry.
            indexes.offsets.len() >= indexes.max_entries.0
                || indexes.times.len() >= indexes.max_entries.1 - 1
        });
        state.size + incoming.size > u64::from(config.segment_bytes)
            || state.size + incoming.size > SEGMENT_BYTES_MAX
            || (state.size > 0 && waited_ms > config.roll_after_ms(state.jitter_ms))
            || full
            || !self.has_place_for(incoming.last)
    }

    /// Whether an index entry of this segment can name the offset.
    pub fn has_place_for(&self, offset: Offset) -> bool {
        offset >= self.base && offset.since(self.base) <= i32::MAX as u64
    }

    /// Enters a batch at the end and returns its position. The bytes are the appender's to write.
    pub fn append(&self, batch: &BatchExtent, index_interval_bytes: u32) -> u64 {
        let mut state = self.state.borrow_mut();
        let position = state.size;
        assert!(
            !state.sealed && position + u64::from(batch.size) <= SEGMENT_BYTES_MAX,
            "segment {} (size {position}, sealed {}) cannot take {batch:?}",
            self.base,
            state.sealed
        );
        state.first_timestamp.get_or_insert(batch.max_timestamp);
        if batch.max_timestamp > state.max_timestamp {
            state.max_timestamp = batch.max_timestamp;
            state.max_timestamp_offset = batch.last;
        }
        if state.bytes_since_entry > u64::from(index_interval_bytes) {
            let largest = (state.max_timestamp, state.max_timestamp_offset);
            if let Some(indexes) = state.indexes.as_mut() {
                indexes.offsets.append(batch.last, position as u32);
                indexes.times.maybe_append(largest.0, largest.1);
            }
            state.bytes_since_entry = 0;
        }
        state.bytes_since_entry += u64::from(batch.size);
        state.size += u64::from(batch.size);
        self.synced.set(false);
        self.untouched.set(false);
        position
    }

    /// The appender completed a write up to `position`.
    pub fn written_to(&self, position: u64) {
        let mut state = self.state.borrow_mut();
        assert!(position >= state.written && position <= state.size);
        state.written = position;
        state.file_len = state.file_len.max(position);
    }

    /// A flush has covered all bytes up to `position`.
    pub fn flushed_to(&self, position: u64) {
        self.flushed.set(self.flushed.get().max(position));
    }

    /// What is written and not flushed, if all of it lies in a block that is on the device already.
    pub fn rest_of_block(&self) -> Option<Range<u64>> {
        let (from, to) = (self.flushed.get(), self.written());
        let block = from / BLOCK_BYTES;
        let begun = !from.is_multiple_of(BLOCK_BYTES);
        (begun && from < to && (to - 1) / BLOCK_BYTES == block).then_some(from..to)
    }

    /// The file is `len` bytes long now (preallocated or trimmed).
    pub fn file_resized(&self, len: u64) {
        self.untouched.set(false);
        self.state.borrow_mut().file_len = len;
    }

    /// Claims the right to extend the file; false if that is under way or was refused.
    pub fn begin_preallocation(&self) -> bool {
        let idle = self.preallocation.get() == Preallocation::Idle;
        if idle {
            self.untouched.set(false);
            self.preallocation.set(Preallocation::Running);
        }
        idle
    }

    /// The file may get longer at any moment, also a sealed segment's: the extension began before.
    pub fn is_preallocating(&self) -> bool {
        self.preallocation.get() == Preallocation::Running
    }

    pub fn end_preallocation(&self) {
        if self.preallocation.get() == Preallocation::Running {
            self.preallocation.set(Preallocation::Idle);
        }
        self.space_awaited.set(false);
        self.preallocation_moved.notify_all();
    }

    pub fn refuse_preallocation(&self) {
        self.preallocation.set(Preallocation::Refused);
    }

    /// Whether a write of blocks up to `end` should wait for space: for the zeros ahead of it, or
    /// for an extension of the file that can still be had.
    pub fn lacks_space(&self, end: u64) -> bool {
        end > self.space_end()
            && match self.preallocation.get() {
                Preallocation::Running => true,
                Preallocation::Idle => !self.is_sealed(),
                Preallocation::Refused => false,
            }
    }

    /// Up to where data may be written without changing the file's length or meeting the zeros
    /// that are written ahead.
    pub fn space_end(&self) -> u64 {
        self.file_len().min(self.zeros_from.get())
    }

    /// From here on zeros are written; data stays below.
    pub fn begin_zeros(&self, from: u64) {
        self.zeros_from.set(from);
        self.preallocation_moved.notify_all();
    }

    pub fn zeros_reach(&self, position: u64) {
        self.zeros_from.set(position);
        self.preallocation_moved.notify_all();
    }

    /// No zeros are in flight; what is left unwritten of the reserved space may be used too.
    pub fn end_zeros(&self) {
        self.zeros_from.set(u64::MAX);
    }

    pub fn space_is_awaited(&self) -> bool {
        self.space_awaited.get()
    }

    /// Waits until no extension of the file is in flight: a trim must come after it.
    pub async fn preallocation_settled(&self) {
        while self.preallocation.get() == Preallocation::Running {
            self.preallocation_moved().await;
        }
    }

    /// Waits until the extension under way has ended or made some space usable.
    pub async fn preallocation_moved(&self) {
        if self.preallocation.get() == Preallocation::Running {
            self.space_awaited.set(true);
            self.preallocation_moved.wait().await;
        }
    }

    /// Adds an aborted transaction.
    pub fn append_aborted(&self, txn: AbortedTxn) {
        self.untouched.set(false);
        let mut state = self.state.borrow_mut();
        state.txns.append(txn);
        state.txns_unwritten = true;
    }

    /// Visits aborted transactions; true when no later segment can hold one that matters.
    pub fn collect_aborted(&self, from: Offset, upper: Offset, to: &mut Vec<AbortedTxn>) -> bool {
        self.state.borrow().txns.collect(from, upper, to)
    }

    /// Where a scan for `offset` must begin; `None` if the indexes are not in memory.
    pub fn floor_position(&self, offset: Offset) -> Option<u64> {
        let state = self.state.borrow();
        let indexes = state.indexes.as_ref()?;
        Some(u64::from(indexes.offsets.lookup(offset).1))
    }

    /// The last batch known to begin at or before `position` whose offsets are all below `upper`.
    pub fn indexed_position(&self, position: u64, upper: Offset) -> Option<u64> {
        let state = self.state.borrow();
        let found = state.indexes.as_ref()?.offsets.last_within(position, upper);
        found.map(u64::from)
    }

    /// Where a scan for the first record with a timestamp of at least `target` begins: an offset
    /// that no such record lies before. `None` if the indexes are not in memory.
    ///
    /// The time index gets an entry only where the largest timestamp has grown, so between two
    /// entries there may be much of the log. But both indexes are entered at the same batches:
    /// if the largest timestamp first reached `target` between two time entries, it did so after
    /// the offset entry before the later of them. From there the scan passes one index interval
    /// and a batch at most.
    pub fn floor_offset_by_time(&self, target: i64) -> Option<Offset> {
        let state = self.state.borrow();
        let indexes = state.indexes.as_ref()?;
        // The entry strictly below the target: records that share its timestamp come before it.
        let floor = indexes.times.lookup(target.saturating_sub(1)).1;
        let reached_by = match indexes.times.ceiling(target) {
            Some((_, offset)) => offset,
            // Only since the last entry.
            None => Offset(i64::MAX),
        };
        let entry = indexes.offsets.lookup(Offset(reached_by.0 - 1)).0;
        Some(floor.max(entry))
    }

    pub fn indexes_resident(&self) -> bool {
        self.state.borrow().indexes.is_some()
    }

    /// Starts the indexes over (new segment, or before recovery scans it).
    pub fn reset_indexes(&self, config: &LogConfig) {
        self.untouched.set(false);
        let mut state = self.state.borrow_mut();
        state.indexes = Some(Indexes {
            offsets: OffsetIndex::new(self.base),
            times: TimeIndex::new(self.base),
            persisted: (0, 0),
            stale_tail: true,
            cuts: state.indexes.as_ref().map_or(0, |old| old.cuts + 1),
            max_entries: max_entries(config),
        });
        state.txns = TxnIndex::default();
        state.txns_unwritten = true;
        state.first_timestamp = None;
        state.max_timestamp = NO_TIMESTAMP;
        state.max_timestamp_offset = self.base;
        state.bytes_since_entry = 0;
    }

    /// Before recovery re-enters every batch that it finds good: the size starts at zero again.
    pub fn rewind_for_recovery(&self, config: &LogConfig) {
        self.reset_indexes(config);
        let mut state = self.state.borrow_mut();
        state.size = 0;
        self.flushed.set(0);
        state.written = 0;
        state.sealed = false;
        self.synced.set(false);
        self.index_files_whole.set(false);
    }

    /// Takes over indexes read from their files.
    pub fn adopt_indexes(&self, offsets: OffsetIndex, times: TimeIndex, config: &LogConfig) {
        let mut state = self.state.borrow_mut();
        let persisted = (offsets.len(), times.len());
        if let Some((timestamp, offset)) = times.last()
            && timestamp > state.max_timestamp
        {
            state.max_timestamp = timestamp;
            state.max_timestamp_offset = offset;
        }
        state.indexes = Some(Indexes {
            offsets,
            times,
            persisted,
            stale_tail: false,
            cuts: 0,
            max_entries: max_entries(config),
        });
    }

    /// Takes over the indexes that `made` got from the same batches, from `all` of them unless some
    /// are damaged. No file has them yet.
    pub fn adopt_made_indexes(&self, made: &Segment, all: bool) {
        self.reindexed.set(true);
        self.untouched.set(false);
        self.index_files_whole.set(false);
        let mut made = made.state.borrow_mut();
        let mut state = self.state.borrow_mut();
        if all {
            state.max_timestamp = made.max_timestamp;
            state.max_timestamp_offset = made.max_timestamp_offset;
        }
        let cuts = state.indexes.as_ref().map_or(0, |old| old.cuts + 1);
        state.indexes = made.indexes.take().map(|made| Indexes { cuts, ..made });
    }

    pub fn is_reindexed(&self) -> bool {
        self.reindexed.get()
    }

    pub fn adopt_txns(&self, txns: TxnIndex) {
        let mut state = self.state.borrow_mut();
        state.txns = txns;
        state.txns_unwritten = false;
    }

    pub fn has_aborted(&self) -> bool {
        !self.state.borrow().txns.is_empty()
    }

    /// Before the aborted transactions of the whole segment are entered again.
    pub fn start_txns_over(&self) {
        let mut state = self.state.borrow_mut();
        state.txns = TxnIndex::default();
        state.txns_unwritten = true;
    }

    /// The largest timestamp as the last time-index entry gives it (a sealed segment at load).
    pub fn adopt_max_timestamp(&self, timestamp: i64, offset: Offset) {
        let mut state = self.state.borrow_mut();
        state.max_timestamp = timestamp;
        state.max_timestamp_offset = offset;
    }

    pub fn adopt_first_timestamp(&self, timestamp: i64) {
        self.state.borrow_mut().first_timestamp = Some(timestamp);
    }

    /// A batch past the last index entry, seen while loading: only the largest timestamp and the
    /// distance to the next entry follow from it.
    pub fn observe_tail_batch(&self, batch: &BatchExtent) {
        let mut state = self.state.borrow_mut();
        if batch.max_timestamp > state.max_timestamp {
            state.max_timestamp = batch.max_timestamp;
            state.max_timestamp_offset = batch.last;
        }
        state.bytes_since_entry += u64::from(batch.size);
    }

    /// Closes the segment for appends: the closing time entry is made.
    pub fn seal(&self) {
        let mut state = self.state.borrow_mut();
        let largest = (state.max_timestamp, state.max_timestamp_offset);
        if let Some(indexes) = state.indexes.as_mut() {
            indexes.times.maybe_append(largest.0, largest.1);
        }
        state.sealed = true;
    }

    /// Makes the last segment left by a truncation the active one again.
    pub fn unseal(&self) {
        self.state.borrow_mut().sealed = false;
        self.index_files_whole.set(false);
    }

    /// Cuts everything at or past `offset`, which begins at `position`. The indexes must be in
    /// memory. `tail` are the batches between the last index entry that stays and the cut.
    pub fn cut(&self, offset: Offset, position: u64, tail: &[BatchExtent], config: &LogConfig) {
        self.untouched.set(false);
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        state.size = state.size.min(position);
        self.flushed.set(self.flushed.get().min(position));
        state.written = state.written.min(position);
        state.txns.truncate_to(offset);
        state.txns_unwritten = true;
        if let Some(indexes) = state.indexes.as_mut() {
            indexes.offsets.truncate_to(offset);
            indexes.times.truncate_to(offset);
            indexes.persisted.0 = indexes.persisted.0.min(indexes.offsets.len());
            indexes.persisted.1 = indexes.persisted.1.min(indexes.times.len());
            indexes.stale_tail = true;
            indexes.cuts += 1;
            indexes.max_entries = max_entries(config);
            let largest = indexes.times.last().unwrap_or((NO_TIMESTAMP, self.base));
            state.max_timestamp = largest.0;
            state.max_timestamp_offset = largest.1;
        }
        state.bytes_since_entry = 0;
        if state.size == 0 {
            state.first_timestamp = None;
        }
        drop(guard);
        for batch in tail {
            self.observe_tail_batch(batch);
        }
        self.synced.set(false);
    }

    /// Index entries that no file has yet.
    pub fn unpersisted_entries(&self) -> usize {
        let state = self.state.borrow();
        state.indexes.as_ref().map_or(0, |indexes| {
            indexes.offsets.len() + indexes.times.len() - indexes.persisted.0 - indexes.persisted.1
        })
    }

    /// The index files hold what memory holds, and nothing else.
    pub fn indexes_persisted(&self) -> bool {
        let state = self.state.borrow();
        let whole = state.indexes.as_ref().is_none_or(|indexes| {
            !indexes.stale_tail && indexes.persisted == (indexes.offsets.len(), indexes.times.len())
        });
        whole && !state.txns_unwritten
    }

    /// Drops a sealed segment's indexes from memory, if the files have all of them.
    pub(super) fn unload_indexes(&self) {
        if self.is_sealed() && self.indexes_persisted() {
            self.state.borrow_mut().indexes = None;
        }
    }

    pub(super) fn index_bytes(&self) -> u64 {
        let state = self.state.borrow();
        state.indexes.as_ref().map_or(0, |indexes| {
            (indexes.offsets.len() * OFFSET_ENTRY_BYTES + indexes.times.len() * TIME_ENTRY_BYTES)
                as u64
        })
    }

    /// Brings the index files up to date with memory; with `trim` also cuts their preallocated
    /// tail. Calls for one segment must not overlap (the log serialises them).
    pub async fn persist_indexes(&self, dir: &Path, trim: bool) -> io::Result<()> {
        self.untouched.set(false);
        let Some(plan) = self.plan_persist() else {
            return Ok(());
        };
        let kinds = [FileKind::OffsetIndex, FileKind::TimeIndex];
        let entry_bytes = [OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES];
        for (slot, kind) in kinds.into_iter().enumerate() {
            let part = &plan.parts[slot];
            let path = dir.join(segment_file(self.base, kind));
            let file = File::open(&path, OpenOptions::CREATE).await?;
            let first = (part.first * entry_bytes[slot]) as u64;
            if plan.stale_tail {
                file.set_len(first).await?;
            }
            let end = first + part.bytes.len() as u64;
            if !trim {
                file.set_len(end.max((part.max_entries * entry_bytes[slot]) as u64))
                    .await?;
            }
            if !part.bytes.is_empty() {
                file.write_all_at(first, vec![Bytes::from(part.bytes.clone())])
                    .await?;
            }
            if trim {
                file.set_len(end).await?;
                file.sync_data().await?;
            }
        }
        if let Some(bytes) = &plan.txns {
            self.persist_txns(dir, bytes).await?;
        }
        let whole = self.finish_persist(&plan);
        self.index_files_whole
            .set(whole && trim && self.is_sealed());
        Ok(())
    }

    async fn persist_txns(&self, dir: &Path, bytes: &[u8]) -> io::Result<()> {
        let path = dir.join(segment_file(self.base, FileKind::TxnIndex));
        if bytes.is_empty() {
            return match crate::rt::fs::remove_file(&path).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let file = File::open(&path, OpenOptions::CREATE.truncate()).await?;
        file.write_all_at(0, vec![Bytes::copy_from_slice(bytes)])
            .await?;
        file.sync_data().await
    }

    fn plan_persist(&self) -> Option<PersistPlan> {
        let state = self.state.borrow();
        let indexes = state.indexes.as_ref()?;
        Some(PersistPlan {
            cuts: indexes.cuts,
            stale_tail: indexes.stale_tail,
            parts: [
                PersistPart {
                    first: indexes.persisted.0,
                    bytes: indexes.offsets.encode_from(indexes.persisted.0),
                    max_entries: indexes.max_entries.0,
                },
                PersistPart {
                    first: indexes.persisted.1,
                    bytes: indexes.times.encode_from(indexes.persisted.1),
                    max_entries: indexes.max_entries.1,
                },
            ],
            txns: state.txns_unwritten.then(|| state.txns.encode()),
        })
    }

    /// True if nothing was cut or added since the plan was made.
    fn finish_persist(&self, plan: &PersistPlan) -> bool {
        let mut state = self.state.borrow_mut();
        if plan
            .txns
            .as_ref()
            .is_some_and(|bytes| *bytes == state.txns.encode())
        {
            state.txns_unwritten = false;
        }
        let Some(indexes) = state.indexes.as_mut() else {
            return false;
        };
        if indexes.cuts != plan.cuts {
            return false;
        }
        indexes.persisted = (
            plan.parts[0].first + plan.parts[0].bytes.len() / OFFSET_ENTRY_BYTES,
            plan.parts[1].first + plan.parts[1].bytes.len() / TIME_ENTRY_BYTES,
        );
        indexes.stale_tail = false;
        indexes.persisted == (indexes.offsets.len(), indexes.times.len())
    }
}

struct PersistPlan {
    cuts: u64,
    stale_tail: bool,
    parts: [PersistPart; 2],
    txns: Option<Vec<u8>>,
}

struct PersistPart {
    first: usize,
    bytes: Vec<u8>,
    max_entries: usize,
}

fn max_entries(config: &LogConfig) -> (usize, usize) {
    (
        config.max_index_entries(OFFSET_ENTRY_BYTES as u32),
        config.max_index_entries(TIME_ENTRY_BYTES as u32),
    )
}
