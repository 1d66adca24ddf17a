//! Owns one partition replica's log: its segments, watermarks, producer state, leader epochs and
//! whether it is still usable. On the shard that owns the partition. It never knows who leads,
//! who replicates, or what a client asked for.
//!
//! What may run at the same time: appends and cached reads are synchronous and see a consistent
//! log; one writer task per log writes what could not be written at once, in order; flushes run
//! in the shard's rounds; roll completion, truncation, retention and closing take the log's
//! `upkeep` permit, so only one of them changes files at a time. No borrow is held across an
//! await.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use crate::rt::sync::{Event, Semaphore};
use crate::types::{LeaderEpoch, Offset, PartitionId, Uuid};

use super::cache::LogKey;
use super::config::{Durability, LogConfig};
use super::dir::CheckpointFacts;
use super::error::{LogError, StorageFailure};
use super::flush::{Covered, FlushPlan};
use super::flush_interval::FlushInterval;
use super::flush_rounds::FlushRounds;
use super::journal::Pending;
use super::leader_epochs::{EpochEntry, LeaderEpochs};
use super::names;
use super::producers::{ProducerLimits, Producers};
use super::segment::Segment;
use super::shard::LogShard;
use super::watermarks::Watermarks;
use super::write_queue::WriteQueue;

/// Whether a log takes calls.
#[derive(Clone, Debug)]
pub(super) enum Status {
    Open,
    /// Its tail is being cut: reads go on below the cut, appends are refused.
    Truncating,
    /// The storage failed. For good.
    Offline(LogError),
    Closed,
}

/// One partition replica's log.
pub struct Log {
    topic: String,
    partition: i32,
    key: LogKey,
    pub(super) shard: Rc<LogShard>,
    pub(super) state: RefCell<LogState>,
    /// Serialises whatever changes the set of files.
    pub(super) upkeep: Semaphore,
    /// Rung whenever `written` or `durable` moved, the tail was cut, or the log went offline.
    pub(super) progress: Event,
    on_progress: RefCell<Option<Rc<dyn Fn()>>>,
    /// Flushes under way, which know the directory by its name.
    flushes: Cell<usize>,
    /// The directory gets another name: no flush begins.
    renaming: Cell<bool>,
    /// It takes back what a journal of an earlier life says, and tells the new one nothing: until it is
    /// flushed the old one is to be read again as it is.
    pub(super) taking_back: Cell<bool>,
    /// As the note in the directory names them.
    pub(super) settled_journals: RefCell<BTreeSet<Uuid>>,
    this: Weak<Log>,
}

pub(super) struct LogState {
    pub dir: Rc<PathBuf>,
    /// Those of the log directory.
    pub rounds: Rc<FlushRounds>,
    pub topic_id: Uuid,
    pub config: Rc<LogConfig>,
    pub status: Status,
    pub marks: Watermarks,
    pub segments: BTreeMap<Offset, Rc<Segment>>,
    /// Gone from the log, but their files may still come back after a power loss: what is flushed
    /// behind them counts only if they are whole as well.
    pub doomed: VecDeque<Rc<Segment>>,
    pub producers: Producers,
    pub producer_limits: ProducerLimits,
    pub epochs: LeaderEpochs,
    pub queue: WriteQueue,
    /// What the journal could tell in place of a flush.
    pub pending: Pending,
    /// Grows with every cut of the tail: what was read or flushed across a cut is not believed.
    pub generation: u64,
    /// Counts the files made in the directory, and how many of them a directory sync covers.
    pub files_made: u64,
    pub files_synced: u64,
    /// What `flush.messages` above 1 asks for.
    pub interval: FlushInterval,
    /// Batches appended since the last round, for the flush counters.
    pub unflushed_batches: u64,
    pub last_flush_ms: i64,
    /// Someone waits for the segments to be flushed up to here, whatever the durability row.
    pub flush_wanted: Offset,
    /// The last write found no space.
    pub space_short: bool,
    /// Appends are taken but not written: see [`Log::hold_writes`].
    pub held: bool,
    /// The copy of another log that it is to replace; nobody reads it.
    pub is_future: bool,
    /// The leader-epoch checkpoint on disk is behind memory.
    pub epochs_unwritten: bool,
    /// Sealed segments below this were seen to be on the disk as a whole: a place to look from.
    pub synced_below: Cell<Offset>,
    /// Those past `durable` that were found at an unclean start: see [`Log::write_again`].
    pub unproven: Vec<Rc<Segment>>,
    /// A task that persists index entries or epochs is on its way.
    pub persisting: bool,
    /// Compaction has cleaned what lies below; `None` before the first pass.
    pub first_dirty: Option<Offset>,
    /// The tail is about to be cut: no checkpoint may vouch for anything above this.
    pub vouch_max: Option<Offset>,
    /// The highest recovery point or first dirty offset that a checkpoint on disk may name.
    pub vouched: Cell<Offset>,
}

/// What `Log` is built from once everything was loaded.
pub(super) struct LogParts {
    pub topic: String,
    pub partition: i32,
    pub shard: Rc<LogShard>,
    pub settled_journals: BTreeSet<Uuid>,
    pub state: LogState,
}

impl Log {
    pub(super) fn from_parts(parts: LogParts) -> Rc<Log> {
        Rc::new_cyclic(|this| Log {
            topic: parts.topic,
            partition: parts.partition,
            key: parts.shard.next_key(),
            shard: parts.shard,
            state: RefCell::new(parts.state),
            upkeep: Semaphore::new(1),
            progress: Event::new(),
            on_progress: RefCell::new(None),
            flushes: Cell::new(0),
            renaming: Cell::new(false),
            taking_back: Cell::new(false),
            settled_journals: RefCell::new(parts.settled_journals),
            this: this.clone(),
        })
    }

    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub fn partition(&self) -> i32 {
        self.partition
    }

    pub fn topic_id(&self) -> Uuid {
        self.state.borrow().topic_id
    }

    pub fn id(&self) -> PartitionId {
        PartitionId {
            topic: self.topic_id(),
            index: self.partition(),
        }
    }

    /// The partition's directory (it changes name when the partition is deleted).
    pub fn dir(&self) -> Rc<PathBuf> {
        self.state.borrow().dir.clone()
    }

    pub fn config(&self) -> Rc<LogConfig> {
        self.state.borrow().config.clone()
    }

    /// Takes effect from the next append on; a change of segment I/O from the next segment on.
    pub fn update_config(&self, config: LogConfig) {
        let mut state = self.state.borrow_mut();
        if !config.durability().waits_for_flush() {
            state.pending.clear();
        }
        state.config = Rc::new(config);
    }

    /// What the producer state runs with.
    pub fn producer_limits(&self) -> ProducerLimits {
        self.state.borrow().producer_limits
    }

    /// Takes effect from the next batch or expiry on.
    pub fn set_producer_limits(&self, limits: ProducerLimits) {
        let mut state = self.state.borrow_mut();
        state.producer_limits = limits;
        state.producers.set_limits(limits);
    }

    /// First offset that may be read.
    pub fn log_start(&self) -> Offset {
        self.state.borrow().marks.log_start()
    }

    /// Next offset to be assigned (log end offset, LEO).
    pub fn log_end(&self) -> Offset {
        self.state.borrow().marks.log_end()
    }

    /// Below this the writes have completed. Readers never see past it.
    pub fn written(&self) -> Offset {
        self.state.borrow().marks.written()
    }

    /// Below this an fdatasync has succeeded, of the segments or of the shard's journal.
    pub fn durable(&self) -> Offset {
        self.state.borrow().marks.durable()
    }

    pub fn watermarks(&self) -> Watermarks {
        self.state.borrow().marks
    }

    /// The durability row that holds now.
    pub fn durability(&self) -> Durability {
        self.state.borrow().config.durability()
    }

    /// Up to where this replica may count records as its own: `durable` where the durability row
    /// waits for the flush, `written` otherwise, unless `flush.messages` was reached.
    pub fn counted(&self) -> Offset {
        let state = self.state.borrow();
        if state.config.durability().waits_for_flush() {
            state.marks.durable()
        } else {
            state.interval.acknowledged(&state.marks)
        }
    }

    pub fn is_offline(&self) -> bool {
        matches!(self.state.borrow().status, Status::Offline(_))
    }

    /// Why the log is offline, if it is.
    pub fn failure(&self) -> Option<LogError> {
        match &self.state.borrow().status {
            Status::Offline(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Bytes over all segments (Kafka's `Size` metric; `DescribeLogDirs`).
    pub fn size_bytes(&self) -> u64 {
        self.state
            .borrow()
            .segments
            .values()
            .map(|segment| segment.size())
            .sum()
    }

    pub fn segment_count(&self) -> usize {
        self.state.borrow().segments.len()
    }

    /// Bytes appended that the disk has not taken yet: what a caller may want to wait for before
    /// it appends more.
    pub fn backlog_bytes(&self) -> u64 {
        self.state.borrow().queue.bytes()
    }

    /// Registers who is told that `written` or `durable` moved, that the tail was cut, or that
    /// the log went offline. Called from the log's own tasks, never from inside an append, and
    /// with no borrow of the log held. The last one registered counts.
    pub fn on_progress(&self, tell: impl Fn() + 'static) {
        *self.on_progress.borrow_mut() = Some(Rc::new(tell));
    }

    /// Waits until the log moved in any of the ways `on_progress` names.
    pub async fn progressed(&self) {
        self.progress.wait().await;
    }

    /// Waits until this replica counts every record below `offset`.
    ///
    /// # Errors
    /// The log went offline, was closed, or lost its tail before that.
    pub async fn wait_counted(&self, offset: Offset) -> Result<(), LogError> {
        loop {
            self.check_usable()?;
            if self.counted() >= offset {
                return Ok(());
            }
            if self.log_end() < offset {
                return Err(self.range_error(offset));
            }
            self.progress.wait().await;
        }
    }

    /// Makes everything appended so far durable in the segments themselves.
    ///
    /// # Errors
    /// The log is or goes offline, is closed, or loses its tail (no space) before that.
    pub async fn flush(&self) -> Result<(), LogError> {
        let target = self.log_end();
        loop {
            self.check_usable()?;
            {
                let mut state = self.state.borrow_mut();
                if state.marks.in_segments() >= target {
                    return Ok(());
                }
                if state.marks.log_end() < target {
                    drop(state);
                    return Err(self.range_error(target));
                }
                state.flush_wanted = state.flush_wanted.max(target);
            }
            self.request_flush();
            self.progress.wait().await;
        }
    }

    /// What the directory's checkpoints say of this log.
    pub fn checkpoint_facts(&self) -> CheckpointFacts {
        let state = self.state.borrow();
        let first_base = state.segments.keys().next().copied().unwrap_or_default();
        let log_start = state.marks.log_start();
        CheckpointFacts {
            topic: self.topic.clone(),
            partition: self.partition,
            recovery_point: state.vouch_for(state.recovery_point()),
            log_start: (log_start > first_base).then_some(log_start),
            first_dirty: state.first_dirty.map(|dirty| state.vouch_for(dirty)),
        }
    }

    /// The epoch of the last record, as Kafka's leader-epoch cache knows it.
    pub fn latest_epoch(&self) -> Option<LeaderEpoch> {
        self.state.borrow().epochs.latest().map(|entry| entry.epoch)
    }

    pub(super) fn key(&self) -> LogKey {
        self.key
    }

    pub(super) fn rc(&self) -> Rc<Log> {
        self.this
            .upgrade()
            .expect("a method runs on a log that someone holds by Rc")
    }

    pub(super) fn state(&self) -> Ref<'_, LogState> {
        self.state.borrow()
    }

    pub(super) fn state_mut(&self) -> RefMut<'_, LogState> {
        self.state.borrow_mut()
    }

    pub(super) fn check_usable(&self) -> Result<(), LogError> {
        match &self.state.borrow().status {
            Status::Open | Status::Truncating => Ok(()),
            Status::Offline(error) => Err(error.clone()),
            Status::Closed => Err(LogError::Closed),
        }
    }

    pub(super) fn range_error(&self, offset: Offset) -> LogError {
        let state = self.state.borrow();
        LogError::OutOfRange {
            offset,
            log_start: state.marks.log_start(),
            log_end: state.marks.log_end(),
        }
    }

    /// Tells whoever waits that the log moved.
    pub(super) fn announce(&self) {
        self.progress.notify_all();
        let tell = self.on_progress.borrow().clone();
        if let Some(tell) = tell {
            tell();
        }
    }

    /// The storage failed: the log is offline for good, nothing is retried.
    pub(super) fn fail(&self, what: &'static str, source: io::Error) -> LogError {
        self.fail_with(StorageFailure {
            what,
            path: self.dir().to_path_buf(),
            source: Arc::new(source),
        })
    }

    pub(super) fn fail_with(&self, failure: StorageFailure) -> LogError {
        let error = LogError::Offline(failure);
        {
            let mut state = self.state.borrow_mut();
            if let Status::Offline(first) = &state.status {
                return first.clone();
            }
            tracing::error!(topic = %self.topic, partition = self.partition, %error, "log offline");
            state.status = Status::Offline(error.clone());
            state.queue.clear();
            state.pending.clear();
        }
        self.shard.recent.forget(self.key);
        self.announce();
        if let Some(log_dir) = self.dir().parent() {
            self.shard.report_failure(log_dir, &error);
        }
        error
    }

    /// A read failed. A disk that cannot be read costs its directory, as in Kafka; anything else
    /// that a read may fail with does not.
    pub fn give_up_after(&self, error: &LogError) {
        if let LogError::Storage(failure) = error
            && failure.source.kind() != io::ErrorKind::NotFound
        {
            self.fail_with(failure.clone());
        }
    }

    /// Another log of the same directory failed: this one goes with it. False if it was offline
    /// or closed already.
    pub fn take_offline(&self, cause: &LogError) -> bool {
        {
            let mut state = self.state.borrow_mut();
            if matches!(state.status, Status::Offline(_) | Status::Closed) {
                return false;
            }
            state.status = Status::Offline(cause.clone());
            state.queue.clear();
            state.pending.clear();
        }
        self.shard.recent.forget(self.key);
        self.announce();
        true
    }

    /// Flushes what is written now, as a part of a round; the number of files synced. A failure
    /// takes the log offline.
    pub(super) async fn flush_written(&self, gate: &Rc<Semaphore>, alone: bool) -> u64 {
        // Not counted below: it waits for a permit that whoever stops flushes may hold.
        if self.is_unproven()
            && let Err(error) = self.write_again().await
        {
            self.fail("write", error);
            return 0;
        }
        while self.renaming.get() && self.check_usable().is_ok() {
            self.progress.wait().await;
        }
        self.flushes.set(self.flushes.get() + 1);
        let files = self.flush_planned(gate, alone).await;
        self.flushes.set(self.flushes.get() - 1);
        if self.renaming.get() {
            self.progress.notify_all();
        }
        files
    }

    /// Before the directory gets another name: returns when no flush is under way, and none begins
    /// until [`Log::resume_flushes`].
    pub(super) async fn stop_flushes(&self) {
        self.renaming.set(true);
        while self.flushes.get() > 0 {
            self.progress.wait().await;
        }
    }

    /// The directory has its name. What was to be flushed meanwhile is flushed now.
    pub(super) fn resume_flushes(&self) {
        self.renaming.set(false);
        self.progress.notify_all();
        if self.check_usable().is_ok() && self.state.borrow().owes_flush() {
            self.request_flush();
        }
    }

    /// The flush rounds that cover this log.
    pub(super) fn rounds(&self) -> Rc<FlushRounds> {
        self.state.borrow().rounds.clone()
    }

    /// Puts the log into the next flush round.
    pub(super) fn request_flush(&self) {
        self.state.borrow().rounds.request(&self.rc());
    }

    async fn flush_planned(&self, gate: &Rc<Semaphore>, alone: bool) -> u64 {
        let Some(plan) = self.plan_flush() else {
            return 0;
        };
        match plan.execute(self, gate, alone).await {
            Ok(files) => {
                self.finish_flush(&plan);
                files
            }
            Err(error) => {
                self.fail("fdatasync", error);
                0
            }
        }
    }

    fn plan_flush(&self) -> Option<FlushPlan> {
        let mut state = self.state.borrow_mut();
        let upto = state.marks.written();
        if !matches!(state.status, Status::Open | Status::Truncating) {
            return None;
        }
        if upto <= state.recovery_point() {
            return None;
        }
        let first = state.floor_base(state.recovery_point());
        let live = state.segments.range(first..);
        let live = live.filter(|(base, _)| **base < upto).map(|(_, s)| s);
        let segments = state
            .doomed
            .iter()
            .chain(live)
            .filter(|segment| !segment.is_synced())
            .filter_map(|segment| {
                // A file that still has reserved space behind its data, or is just being given some,
                // is synced again once that is cut: else the space comes back after a power loss,
                // as a tail of zeros.
                let whole = segment.is_sealed()
                    && !segment.is_preallocating()
                    && segment.written() == segment.size()
                    && segment.file_len() == segment.size();
                Some(Covered {
                    segment: segment.clone(),
                    file: segment.handles()?.writer,
                    written: segment.written(),
                    whole,
                })
            })
            .collect();
        state.interval.planned(upto);
        Some(FlushPlan {
            segments,
            sync_dir: state.files_made > state.files_synced,
            files_made: state.files_made,
            upto,
            generation: state.generation,
        })
    }

    fn finish_flush(&self, plan: &FlushPlan) {
        {
            let mut state = self.state.borrow_mut();
            state.files_synced = state.files_synced.max(plan.files_made);
            // What was cut and written again since the plan was made is not what was flushed. And
            // where another flush of the same file has failed meanwhile, this one's success says
            // nothing: the kernel tells of a lost page once.
            let is_usable = matches!(state.status, Status::Open | Status::Truncating);
            if state.generation != plan.generation || !is_usable {
                return;
            }
            state.marks.flushed_to(plan.upto);
            let durable = state.marks.durable();
            state.pending.flushed_to(durable);
            state.last_flush_ms = crate::rt::wall_ms();
        }
        self.announce();
    }
}

impl LogState {
    pub(super) fn active(&self) -> &Rc<Segment> {
        let (_, segment) = self
            .segments
            .last_key_value()
            .expect("a log has at least one segment");
        segment
    }

    /// Whether the leader-epoch checkpoint must follow. An epoch in which nothing was written yet
    /// is not worth a write: every start drops it again.
    pub(super) fn owes_epochs(&self) -> bool {
        let has_records = |latest: EpochEntry| latest.start_offset < self.marks.log_end();
        self.epochs_unwritten && self.epochs.latest().is_none_or(has_records)
    }

    /// Base of the segment whose range holds `offset`; of the first one for anything before it.
    pub(super) fn floor_base(&self, offset: Offset) -> Offset {
        let floor = self.segments.range(..=offset).next_back();
        let first = self.segments.first_key_value();
        floor.or(first).map(|(base, _)| *base).unwrap_or_default()
    }

    /// End of the segment at `base`: the next one's base, or the log's end.
    pub(super) fn end_of(&self, base: Offset) -> Offset {
        let next = self.segments.range(base.next()..).next();
        next.map_or(self.marks.log_end(), |(next, _)| *next)
    }

    /// Where a recovery must begin to check: nothing below needs it. A sealed segment holds it
    /// back until all of its files, the cuts of their reserved space included, are on the disk.
    pub(super) fn recovery_point(&self) -> Offset {
        let durable = self.marks.in_segments();
        let from = self.floor_base(durable.min(self.synced_below.get()));
        let unsynced = self
            .segments
            .range(from..)
            .take_while(|(base, _)| **base < durable)
            .find(|(_, segment)| segment.is_sealed() && !segment.is_settled());
        let point = unsynced.map_or(durable, |(base, _)| *base);
        // The active segment is not sealed yet: it has to be looked at again once it is.
        self.synced_below.set(point.min(self.active().base()));
        point
    }

    /// An offset for the directory's checkpoints, below which a recovery will believe this log.
    fn vouch_for(&self, offset: Offset) -> Offset {
        let offset = self.vouch_max.map_or(offset, |max| max.min(offset));
        self.vouched.set(self.vouched.get().max(offset));
        offset
    }

    /// Whether some flush is owed for what is written now.
    pub(super) fn owes_flush(&self) -> bool {
        let wanted = self.flush_wanted > self.marks.in_segments();
        let due = self.config.durability().waits_for_flush() || self.interval.is_due();
        wanted || due && self.marks.written() > self.marks.durable()
    }
}

/// Path of a partition's directory under a log directory.
pub(super) fn partition_path(log_dir: &std::path::Path, topic: &str, partition: i32) -> PathBuf {
    log_dir.join(names::partition_dir(topic, partition))
}
