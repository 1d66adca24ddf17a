//! Owns how batches enter a log: a leader's append, which judges and numbers them, and a
//! follower's, which takes them as they are. On the log's shard; synchronous. It never waits: what
//! cannot be written on the spot goes to the writer, and `written` says when it is there.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use crate::types::{LeaderEpoch, Offset};
use crate::wire::ErrorCode;
use crate::wire::batch::{Batch, SplitBatch};

use super::cache::CachedBatch;
use super::error::LogError;
use super::log::{Log, LogState, Status};
use super::producers::{BatchFacts, Verdict, VerificationGuard};
use super::segment::{BatchExtent, Incoming};
use super::txn_index::AbortedTxn;
use super::validator::{
    self, Origin, Rejected, ReplicatedError, ValidationRules, check_replicated, check_wire,
};
use super::write_queue::{PendingWrite, QUEUE_BYTES_MAX};
use super::writer::WriteNow;

/// Batches up to this size are copied into one piece with their new header, so that a cached
/// batch keeps no request frame alive; beyond it the copy (10 GB/s) would cost more than the
/// second part of a vectored write.
const COPY_BYTES_MAX: usize = 32 << 10;

/// How a leader appends.
#[derive(Clone, Copy, Debug)]
pub struct AppendAs {
    pub origin: Origin,
    /// Version of the Produce request; what it may carry depends on it.
    pub version: i16,
    pub now_ms: i64,
    pub leader_epoch: LeaderEpoch,
    /// Proof that the batch's transaction was verified with its coordinator.
    pub guard: VerificationGuard,
    /// Of a WriteTxnMarkers request; 0 elsewhere.
    pub transaction_version: i16,
}

impl AppendAs {
    /// No transaction, epoch unknown: the replica layer fills these in.
    pub fn new(origin: Origin, version: i16, now_ms: i64) -> AppendAs {
        AppendAs {
            origin,
            version,
            now_ms,
            leader_epoch: LeaderEpoch::UNKNOWN,
            guard: VerificationGuard::NONE,
            transaction_version: 0,
        }
    }
}

/// What an append did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    pub first_offset: Offset,
    pub last_offset: Offset,
    /// For the response: the broker's time where the topic says LogAppendTime (or the stored
    /// batch's, for a duplicate), else -1. Milliseconds.
    pub append_time_ms: i64,
    pub log_start: Offset,
    /// The batch was in the log already; nothing was written.
    pub duplicate: bool,
}

/// Why nothing was appended, as the produce response says it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {}", message.as_deref().unwrap_or("append refused"))]
pub struct AppendError {
    pub code: ErrorCode,
    /// Index of the record in its batch, and why it was refused.
    pub record_errors: Vec<(i32, Option<String>)>,
    pub message: Option<String>,
}

impl AppendError {
    pub fn code(code: ErrorCode) -> AppendError {
        AppendError {
            code,
            record_errors: Vec::new(),
            message: None,
        }
    }

    fn with_message(code: ErrorCode, message: impl ToString) -> AppendError {
        AppendError {
            message: Some(message.to_string()),
            ..AppendError::code(code)
        }
    }
}

impl From<Rejected> for AppendError {
    fn from(rejected: Rejected) -> AppendError {
        let record_errors = rejected.record_errors.into_iter();
        AppendError {
            code: rejected.error,
            record_errors: record_errors
                .map(|e| (e.batch_index, Some(e.message)))
                .collect(),
            message: Some(rejected.message),
        }
    }
}

/// Why a follower's append did not happen.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Replicated(#[from] ReplicatedError),
    /// The log is empty and the first batch begins below its start, or (in a leader that has
    /// compacted what came before) further on than an index entry of its segment could say: restart
    /// the log there (`truncate_fully_and_start_at`) and append again.
    #[error("the log must start over at {0}")]
    StartOver(Offset),
}

/// What a follower's append did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// One past the last offset appended.
    pub log_end: Offset,
    pub bytes: u64,
    /// Batches of an epoch above the fetched one were left out; fetch again.
    pub of_newer_epoch: bool,
}

impl Log {
    /// Appends the one batch of a produce request (or of a coordinator): validates it, answers a
    /// repeated one with its first offsets, assigns offset and epoch, and hands the bytes to the
    /// disk. On return the batch is in the log up to `log_end`; whether it is written yet is for
    /// `written` to say.
    ///
    /// # Errors
    /// Kafka's error code for the partition, with record errors where single records are to
    /// blame. Nothing was appended.
    pub fn append_as_leader(&self, records: Bytes, how: AppendAs) -> Result<Appended, AppendError> {
        self.check_appendable()?;
        let batch = check_wire(Some(&records), how.version)?;
        let rules = self.validation_rules();
        let name = format_args!("{}-{}", self.topic(), self.partition());
        let validated = validator::validate(&batch, &name, how.origin, &rules, how.now_ms)?;
        let size = validated.batch.total_size();
        let segment_bytes = self.config().segment_bytes as usize;
        if size > segment_bytes {
            return Err(AppendError::with_message(
                ErrorCode::RECORD_LIST_TOO_LARGE,
                format_args!(
                    "Message batch size is {size} bytes in append to partition {name}, which \
                     exceeds the maximum configured segment size of {segment_bytes}."
                ),
            ));
        }
        let mut split = validated.batch;
        let outcome = self.append_numbered(&mut split, &how, validated.append_time);
        match outcome {
            Ok(appended) => Ok(appended),
            Err(Refusal::Append(error)) => Err(error),
            Err(Refusal::Storage(error)) => {
                if let LogError::Offline(failure) = &error {
                    self.fail_with(failure.clone());
                }
                Err(AppendError::with_message(
                    ErrorCode::KAFKA_STORAGE_ERROR,
                    error,
                ))
            }
        }
    }

    fn append_numbered(
        &self,
        split: &mut SplitBatch,
        how: &AppendAs,
        append_time: Option<i64>,
    ) -> Result<Appended, Refusal> {
        let mut guard = self.state_mut();
        let state = &mut *guard;
        let base = state.marks.log_end();
        split.set_base_offset(base);
        split.set_partition_leader_epoch(how.leader_epoch);
        let facts = BatchFacts::of_split(split).map_err(|error| {
            Refusal::Append(AppendError::with_message(ErrorCode::INVALID_RECORD, error))
        })?;
        let verdict = state
            .producers
            .check(&facts, how.origin, how.guard, how.transaction_version)
            .map_err(|error| Refusal::Append(AppendError::with_message(error.code(), error)))?;
        if let Verdict::Duplicate {
            first_offset,
            last_offset,
            timestamp,
        } = verdict
        {
            return Ok(Appended {
                first_offset,
                last_offset,
                append_time_ms: timestamp,
                log_start: state.marks.log_start(),
                duplicate: true,
            });
        }
        let extent = BatchExtent {
            base,
            last: facts.last_offset,
            max_timestamp: facts.max_timestamp,
            size: split.total_size() as u32,
        };
        let incoming = Incoming {
            size: u64::from(extent.size),
            last: extent.last,
            max_timestamp: extent.max_timestamp,
        };
        self.roll_if_due(state, &incoming, base, how.now_ms);
        let parts = in_parts(split);
        let written = self
            .write_now(state, &parts, extent.size as usize)
            .map_err(Refusal::Storage)?;
        let row = state
            .producers
            .apply(&facts)
            .and_then(|ended| ended.aborted_row());
        self.enter(state, &extent, row, how.leader_epoch, parts, written);
        if written == WriteNow::Done {
            self.after_write(state);
        } else {
            self.wake_writer(state);
        }
        Ok(Appended {
            first_offset: base,
            last_offset: extent.last,
            append_time_ms: append_time.unwrap_or(-1),
            log_start: state.marks.log_start(),
            duplicate: false,
        })
    }

    /// Appends what a follower fetched at its log end under `epoch`, as the leader wrote it.
    ///
    /// # Errors
    /// Nothing was appended: broken or misplaced batches, a log that must start over first, or
    /// the storage.
    pub fn append_as_follower(
        &self,
        records: Bytes,
        epoch: LeaderEpoch,
        now_ms: i64,
    ) -> Result<Followed, FollowError> {
        let (log_end, is_empty) = {
            let state = self.state();
            match &state.status {
                Status::Open => {}
                Status::Offline(error) => return Err(error.clone().into()),
                Status::Truncating | Status::Closed => return Err(LogError::Closed.into()),
            }
            (
                state.marks.log_end(),
                state.marks.log_start() == state.marks.log_end(),
            )
        };
        let replicated = check_replicated(records, log_end, is_empty, epoch)?;
        if let Some(first) = replicated.batches.first() {
            let (base, last) = (first.base_offset(), first.last_offset());
            let is_too_far = || {
                let state = self.state();
                state.active().size() == 0 && !state.active().has_place_for(last)
            };
            if base < log_end || is_empty && is_too_far() {
                return Err(FollowError::StartOver(base));
            }
        }
        let mut bytes = 0;
        let outcome = {
            let mut guard = self.state_mut();
            let state = &mut *guard;
            for batch in replicated.batches {
                bytes += batch.total_size() as u64;
                self.follow(state, batch, now_ms);
            }
            self.write_queue_now(state)
        };
        if let Err(LogError::Offline(failure)) = outcome {
            return Err(self.fail_with(failure).into());
        }
        Ok(Followed {
            log_end: self.log_end(),
            bytes,
            of_newer_epoch: replicated.of_newer_epoch,
        })
    }

    fn follow(&self, state: &mut LogState, batch: Batch, now_ms: i64) {
        let extent = super::recover::extent_of(&batch);
        let incoming = Incoming {
            size: u64::from(extent.size),
            last: extent.last,
            max_timestamp: extent.max_timestamp,
        };
        // A gap before the batch (a compacted leader) belongs to the segment of the batch, so that
        // no recovery takes it for a loss; unless it is too wide for one.
        let end = state.marks.log_end();
        let fits = extent.last.since(end) <= i32::MAX as u64;
        let first = if fits { end } else { extent.base };
        self.roll_if_due(state, &incoming, first, now_ms);
        let row = state.producers.replay(&batch);
        let epoch = batch.partition_leader_epoch();
        let parts = SmallVec::from_iter([batch.into_bytes()]);
        self.enter(state, &extent, row, epoch, parts, WriteNow::Queue);
    }

    /// Takes a batch into everything that follows from it. Its bytes are written, or queued here.
    fn enter(
        &self,
        state: &mut LogState,
        extent: &BatchExtent,
        aborted: Option<AbortedTxn>,
        epoch: LeaderEpoch,
        parts: SmallVec<[Bytes; 2]>,
        written: WriteNow,
    ) {
        let active = state.active().clone();
        let position = active.append(extent, state.config.index_interval_bytes);
        if let Some(row) = aborted {
            active.append_aborted(row);
        }
        if state
            .epochs
            .latest()
            .is_none_or(|latest| epoch > latest.epoch)
        {
            state.epochs_unwritten |= state.epochs.assign(epoch, extent.base);
        }
        state.marks.appended_to(extent.last.next());
        self.shard.appends.count(|stats| {
            stats.batches += 1;
            stats.bytes_appended += u64::from(extent.size);
        });
        let (end, messages) = (extent.last.next(), state.config.flush_messages);
        state
            .interval
            .appended(extent.base, end, messages, &state.marks);
        state.unflushed_batches += 1;
        if state.config.durability().waits_for_flush() && self.shard.journals.is_on() {
            let (end, size) = (extent.last.next(), u64::from(extent.size));
            state.pending.push(extent.base, end, parts.clone(), size);
        }
        if written == WriteNow::Done {
            active.written_to(position + u64::from(extent.size));
            state.marks.written_to(extent.last.next());
        } else {
            state.queue.push(PendingWrite {
                segment: active.clone(),
                position,
                parts: parts.clone(),
                head: SmallVec::new(),
                size: extent.size,
                last: extent.last,
            });
        }
        if state.is_future {
            return;
        }
        let cached = CachedBatch {
            base: extent.base,
            last: extent.last,
            segment: active.base(),
            position,
            size: extent.size,
            parts,
        };
        self.shard.recent.insert(self.key(), cached);
    }

    fn check_appendable(&self) -> Result<(), AppendError> {
        let state = self.state();
        let refused = |why: &dyn ToString| {
            AppendError::with_message(ErrorCode::KAFKA_STORAGE_ERROR, why.to_string())
        };
        match &state.status {
            Status::Open => {}
            Status::Truncating => return Err(refused(&"the log's tail is being cut")),
            Status::Offline(error) => return Err(refused(error)),
            Status::Closed => {
                return Err(AppendError::code(ErrorCode::NOT_LEADER_OR_FOLLOWER));
            }
        }
        if state.queue.bytes() > QUEUE_BYTES_MAX {
            return Err(refused(&"the disk is too far behind"));
        }
        Ok(())
    }

    fn validation_rules(&self) -> ValidationRules {
        let config = self.config();
        ValidationRules {
            max_message_bytes: config.max_message_bytes as usize,
            compacted: config.compact,
            timestamp_type: config.timestamp_type,
            before_max_ms: config.timestamp_before_max_ms,
            after_max_ms: config.timestamp_after_max_ms,
            compression: config.compression,
            compression_level: config.compression_level,
            record_bytes_max: config.max_decompressed_message_bytes as usize,
            inflated_bytes_max: config.inflated_batch_bytes as usize,
        }
    }
}

enum Refusal {
    Append(AppendError),
    Storage(LogError),
}

fn in_parts(split: &SplitBatch) -> SmallVec<[Bytes; 2]> {
    if split.total_size() <= COPY_BYTES_MAX {
        let mut whole = BytesMut::with_capacity(split.total_size());
        split.copy_to(&mut whole);
        SmallVec::from_iter([whole.freeze()])
    } else {
        SmallVec::from_iter(split.parts())
    }
}
