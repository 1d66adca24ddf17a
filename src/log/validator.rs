//! The judge of what may enter a partition's log.
//!
//! Owns Kafka's checks of a produced batch, in Kafka's order, with Kafka's error codes: first what
//! the wire allows ([`check_wire`]), then what the topic allows ([`validate`]), and for a follower
//! what a leader may have sent ([`check_replicated`]). Runs on the partition's shard; pure. Never
//! assigns an offset, never copies the records of a batch that may stay as it is.
//!
//! The order matters to clients, which see only the first failure: number of batches and magic,
//! base offset, size, checksum, offset range and count, control bit, sequence, then every record
//! (key, timestamp), then recompression and the size after it.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;

use bytes::Bytes;

use crate::types::Offset;
use crate::wire::ErrorCode;
use crate::wire::batch::{
    Batch, BatchError, Batches, HEADER_BYTES, NO_TIMESTAMP, SplitBatch, TimestampType,
};
use crate::wire::batch_builder::{BatchBuilder, BuildError};
use crate::wire::codec::{Codec, CodecError};
use crate::wire::record::{self, RecordRef};

#[path = "replicated.rs"]
mod replicated;

pub use replicated::{Replicated, ReplicatedError, check_replicated};

/// What a producer's compressed batch may inflate to unless it is set otherwise: 64 times the
/// default `max.message.bytes`, beyond what the codecs reach on anything but constant data. One batch
/// is inflated at a time on a core, so this is also what validation may cost a core in memory.
pub const INFLATED_BYTES_DEFAULT: usize = 64 << 20;
/// What a batch that lies in a log may inflate to, and the most that can be set for producers: a
/// leader of another make may have taken it.
pub const STORED_INFLATED_BYTES_MAX: usize = 1 << 30;
/// Inflate memory kept for the next batch; more is given back. Covers a full batch of the default
/// size at the common ratios.
const SCRATCH_BYTES_KEPT: usize = 8 << 20;
/// Record errors reported one by one; Kafka reports all, and a batch can hold a million.
const RECORD_ERRORS_MAX: usize = 100;
/// The first Produce version that may carry zstd (KIP-110).
const PRODUCE_VERSION_WITH_ZSTD: i16 = 7;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Who appends. What is checked depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// A Produce request.
    Client,
    /// A group, transaction or share coordinator of this broker.
    Coordinator,
    /// The metadata log's leader, whose batches carry their offsets and epoch already.
    RaftLeader,
    /// A follower's fetch; the leader has judged.
    Replication,
}

/// What a topic demands of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValidationRules {
    /// `max.message.bytes`, whole batches.
    pub max_message_bytes: usize,
    /// `cleanup.policy` contains `compact`.
    pub compacted: bool,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`.
    pub before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub after_max_ms: i64,
    /// `compression.type`; `None` is `producer`: whatever the producer chose.
    pub compression: Option<Codec>,
    /// The level for `compression`; `None` is the codec's default.
    pub compression_level: Option<i32>,
    /// `max.decompressed.message.bytes`: what a record of a compressed batch may inflate to.
    pub record_bytes_max: usize,
    /// What a batch may inflate to.
    pub inflated_bytes_max: usize,
}

impl Default for ValidationRules {
    /// Apache Kafka 4.4's defaults.
    fn default() -> Self {
        ValidationRules {
            max_message_bytes: (1 << 20) + 12,
            compacted: false,
            timestamp_type: TimestampType::CreateTime,
            before_max_ms: i64::MAX,
            after_max_ms: 60 * 60 * 1000,
            compression: None,
            compression_level: None,
            record_bytes_max: i32::MAX as usize,
            inflated_bytes_max: INFLATED_BYTES_DEFAULT,
        }
    }
}

/// A batch that may be appended, complete but for base offset and leader epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Validated {
    /// The batch as it goes into the log. Its records are the caller's bytes unless
    /// [`rewritten`](Self::rewritten).
    pub batch: SplitBatch,
    /// Offsets the batch takes, at least 1; the last record's is the base offset plus this minus 1.
    pub offsets: i32,
    /// The largest timestamp, milliseconds; -1 if no record has one.
    pub max_timestamp: i64,
    /// The offset of the first record with that timestamp, from the base offset; the last offset
    /// where the records were not looked at.
    pub max_timestamp_delta: i32,
    /// For the response's LogAppendTimeMs: set only where the topic says LogAppendTime.
    pub append_time: Option<i64>,
    /// Bytes of the records uncompressed.
    pub inflated_bytes: usize,
    /// The records were compressed anew or renumbered.
    pub rewritten: bool,
}

/// One record that is the reason of a rejection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordError {
    /// The record's index in its batch.
    pub batch_index: i32,
    pub message: String,
}

/// Why a batch may not be appended, as the produce response reports it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Rejected {
    pub error: ErrorCode,
    pub record_errors: Vec<RecordError>,
    pub message: String,
}

impl Rejected {
    fn new(error: ErrorCode, message: impl fmt::Display) -> Rejected {
        Rejected {
            error,
            record_errors: Vec::new(),
            message: message.to_string(),
        }
    }

    fn invalid(message: impl fmt::Display) -> Rejected {
        Rejected::new(ErrorCode::INVALID_RECORD, message)
    }
}

/// What the protocol demands of the records of one partition in a Produce request of `version`:
/// exactly one batch, of magic 2, compressed as the version knows. A partial batch behind it is
/// dropped. The batch shares `records`' memory.
pub fn check_wire(records: Option<&Bytes>, version: i16) -> Result<Batch, Rejected> {
    let none = || {
        Rejected::invalid(format_args!(
            "Produce requests with version {version} must have at least one record batch per \
             partition"
        ))
    };
    let mut batches = Batches::new(records.ok_or_else(none)?.clone());
    let first = match batches.next().ok_or_else(none)? {
        Ok(first) => first,
        Err(BatchError::Magic(0 | 1)) => {
            return Err(Rejected::invalid(format_args!(
                "Produce requests with version {version} are only allowed to contain record \
                 batches with magic version 2"
            )));
        }
        Err(error) => return Err(Rejected::new(ErrorCode::CORRUPT_MESSAGE, error)),
    };
    if version < PRODUCE_VERSION_WITH_ZSTD && first.codec() == Some(Codec::Zstd) {
        return Err(Rejected::new(
            ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
            format_args!(
                "Produce requests with version {version} are not allowed to use ZStandard \
                 compression"
            ),
        ));
    }
    match batches.next() {
        None => Ok(first),
        Some(Ok(_) | Err(BatchError::Magic(0 | 1))) => Err(Rejected::invalid(format_args!(
            "Produce requests with version {version} are only allowed to contain exactly one \
             record batch per partition"
        ))),
        Some(Err(error)) => Err(Rejected::new(ErrorCode::CORRUPT_MESSAGE, error)),
    }
}

/// Judges a batch a leader is about to append, and makes it what the topic wants. `partition` is
/// the name for messages; `now_ms` the wall clock. Batches of the metadata log's leader carry
/// their offsets and stay as they are; only size and checksum are looked at.
pub fn validate(
    batch: &Batch,
    partition: &dyn fmt::Display,
    origin: Origin,
    rules: &ValidationRules,
    now_ms: i64,
) -> Result<Validated, Rejected> {
    let judge = Judge {
        batch,
        partition,
        origin,
        rules,
        now_ms,
    };
    SCRATCH.with_borrow_mut(|scratch| {
        let verdict = judge.validate(scratch);
        if scratch.capacity() > SCRATCH_BYTES_KEPT {
            *scratch = Vec::new();
        }
        verdict
    })
}

struct Judge<'a> {
    batch: &'a Batch,
    partition: &'a dyn fmt::Display,
    origin: Origin,
    rules: &'a ValidationRules,
    now_ms: i64,
}

/// What a walk over the records found.
struct Walk {
    max_timestamp: i64,
    max_timestamp_delta: i32,
    /// Every record is one offset behind the one before it, from the base on.
    consecutive: bool,
    errors: Vec<RecordError>,
    error_count: usize,
    /// A record was refused for its timestamp, which then names the whole batch's error.
    timestamp_error: bool,
}

impl Walk {
    #[cold]
    fn refuse(&mut self, index: i32, message: String) {
        self.error_count += 1;
        if self.errors.len() < RECORD_ERRORS_MAX {
            self.errors.push(RecordError {
                batch_index: index,
                message,
            });
        }
    }
}

impl Judge<'_> {
    fn validate(&self, scratch: &mut Vec<u8>) -> Result<Validated, Rejected> {
        self.check_envelope()?;
        if matches!(self.origin, Origin::RaftLeader | Origin::Replication) {
            return Ok(self.as_given());
        }
        let source = self.check_header()?;
        let body = self
            .batch
            .view()
            .inflate(self.rules.inflated_bytes_max, scratch)
            .map_err(|error| self.unreadable(error))?;
        let walk = self.walk(body)?;
        if walk.error_count > 0 {
            return Err(self.refused(walk));
        }
        let append_time = match self.rules.timestamp_type {
            TimestampType::CreateTime => None,
            TimestampType::LogAppendTime => Some(self.now_ms),
        };
        let target = self.rules.compression.unwrap_or(source);
        // Control batches are not compressed on the way in.
        let recompress = target != source && !(self.batch.is_control() && source == Codec::None);
        let rewritten = recompress || !walk.consecutive;
        let (max_timestamp, max_timestamp_delta) = match append_time {
            None => (walk.max_timestamp, walk.max_timestamp_delta),
            Some(now_ms) => (now_ms, 0),
        };
        let batch = if rewritten {
            let target = if recompress { target } else { source };
            self.rewrite(body, target, append_time)?
        } else {
            let mut batch = self.batch.split();
            batch.set_max_timestamp(self.rules.timestamp_type, max_timestamp);
            batch
        };
        Ok(Validated {
            offsets: batch.last_offset_delta() + 1,
            batch,
            max_timestamp,
            max_timestamp_delta,
            append_time,
            inflated_bytes: HEADER_BYTES + body.len(),
            rewritten,
        })
    }

    /// A batch whose author has decided everything about it, offsets included.
    fn as_given(&self) -> Validated {
        let batch = self.batch.split();
        Validated {
            offsets: batch.last_offset_delta().saturating_add(1),
            max_timestamp: batch.max_timestamp(),
            max_timestamp_delta: batch.last_offset_delta(),
            append_time: None,
            inflated_bytes: batch.total_size(),
            rewritten: false,
            batch,
        }
    }

    /// What is checked before the batch's meaning is: where it says it starts, its size, its
    /// checksum.
    fn check_envelope(&self) -> Result<(), Rejected> {
        let (batch, partition) = (self.batch, self.partition);
        if self.origin == Origin::Client && batch.base_offset() != Offset::ZERO {
            return Err(Rejected::invalid(format_args!(
                "The baseOffset of the record batch in the append to {partition} should be 0, but \
                 it is {}",
                batch.base_offset()
            )));
        }
        self.check_size(batch.total_size())?;
        batch.check_crc().map_err(|_| {
            Rejected::new(
                ErrorCode::CORRUPT_MESSAGE,
                format_args!(
                    "Record is corrupt (stored crc = {}) in topic partition {partition}.",
                    batch.crc()
                ),
            )
        })
    }

    fn check_size(&self, bytes: usize) -> Result<(), Rejected> {
        let max = self.rules.max_message_bytes;
        if bytes <= max {
            return Ok(());
        }
        let message = format_args!(
            "The record batch size in the append to {} is {bytes} bytes which exceeds the maximum \
             configured value of {max}.",
            self.partition
        );
        Err(Rejected::new(ErrorCode::MESSAGE_TOO_LARGE, message))
    }

    /// What a client's header must say; the codec if it names one.
    fn check_header(&self) -> Result<Codec, Rejected> {
        let (batch, partition) = (self.batch, self.partition);
        let codec = batch.codec().ok_or_else(|| {
            Rejected::new(
                ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
                format_args!("Unknown compression type in topic partition {partition}"),
            )
        })?;
        if self.origin != Origin::Client {
            return Ok(codec);
        }
        let (base, last) = (batch.base_offset(), batch.last_offset());
        let span = i64::from(batch.last_offset_delta()) + 1;
        let count = i64::from(batch.record_count());
        if span <= 0 {
            return Err(Rejected::invalid(format_args!(
                "Batch has an invalid offset range: [{base}, {last}] in topic partition {partition}"
            )));
        }
        if count <= 0 {
            return Err(Rejected::invalid(format_args!(
                "Invalid reported count for record batch: {count} in topic partition {partition}"
            )));
        }
        if span != count {
            return Err(Rejected::invalid(format_args!(
                "Inconsistent batch offset range [{base}, {last}] and count of records {count} in \
                 topic partition {partition}"
            )));
        }
        if batch.is_control() {
            return Err(Rejected::invalid(format_args!(
                "Clients are not allowed to write control records in topic partition {partition}"
            )));
        }
        if batch.has_producer_id() && batch.base_sequence() < 0 {
            return Err(Rejected::invalid(format_args!(
                "Invalid sequence number {} in record batch with producerId {} in topic partition \
                 {partition}",
                batch.base_sequence(),
                batch.producer_id()
            )));
        }
        Ok(codec)
    }

    fn walk(&self, body: &[u8]) -> Result<Walk, Rejected> {
        let batch = self.batch;
        let base_timestamp = batch.base_timestamp();
        // A batch stamped with LogAppendTime gives all its records that one time.
        let stamped = batch.timestamp_type() == TimestampType::LogAppendTime;
        let stamp = stamped.then(|| batch.max_timestamp());
        let mut walk = Walk {
            max_timestamp: NO_TIMESTAMP,
            max_timestamp_delta: 0,
            consecutive: batch.last_offset_delta() == batch.record_count().wrapping_sub(1),
            errors: Vec::new(),
            error_count: 0,
            timestamp_error: false,
        };
        let window = self.window();
        let mut largest = 0;
        let visit = |index: i32, record: RecordRef<'_>| {
            largest = largest.max(record.size);
            let own = || base_timestamp.wrapping_add(record.timestamp_delta);
            let timestamp = stamp.unwrap_or_else(own);
            if timestamp > walk.max_timestamp {
                (walk.max_timestamp, walk.max_timestamp_delta) = (timestamp, index);
            }
            walk.consecutive &= record.offset_delta == index;
            if self.rules.compacted && record.key.is_none() {
                walk.refuse(index, self.no_key());
            } else if let Some(message) = self.check_timestamp(&record, timestamp, &window, stamped)
            {
                walk.timestamp_error = true;
                walk.refuse(index, message);
            }
        };
        record::walk(body, batch.record_count(), visit).map_err(|error| self.unreadable(error))?;
        let max = self.rules.record_bytes_max;
        if largest > max && batch.codec() != Some(Codec::None) {
            return Err(Rejected::invalid(format_args!(
                "Invalid record size: {largest} exceeds the configured maximum record size of {max}."
            )));
        }
        Ok(walk)
    }

    #[cold]
    fn no_key(&self) -> String {
        let partition = self.partition;
        format!("Compacted topic cannot accept message without key in topic partition {partition}")
    }

    /// The timestamps a CreateTime topic takes now.
    fn window(&self) -> RangeInclusive<i64> {
        let earliest = self.now_ms.saturating_sub(self.rules.before_max_ms);
        earliest..=self.now_ms.saturating_add(self.rules.after_max_ms)
    }

    /// Why the record's timestamp is refused, if it is.
    fn check_timestamp(
        &self,
        record: &RecordRef<'_>,
        timestamp: i64,
        window: &RangeInclusive<i64>,
        stamped: bool,
    ) -> Option<String> {
        if self.rules.timestamp_type == TimestampType::CreateTime && timestamp != NO_TIMESTAMP {
            return (!window.contains(&timestamp)).then(|| {
                format!(
                    "Timestamp {timestamp} of message with offset {} is out of range. The \
                     timestamp should be within [{}, {}]",
                    record.offset_delta,
                    window.start(),
                    window.end()
                )
            });
        }
        stamped.then(|| {
            format!(
                "Invalid timestamp type in message with offset {}. Producer should not set \
                 timestamp type to LogAppendTime.",
                record.offset_delta
            )
        })
    }

    #[cold]
    fn refused(&self, walk: Walk) -> Rejected {
        let (error, message) = if walk.timestamp_error {
            let message = "One or more records have been rejected due to invalid timestamp";
            (ErrorCode::INVALID_TIMESTAMP, message.to_owned())
        } else {
            let first: Vec<&str> = walk.errors.iter().take(3).map(|e| &e.message[..]).collect();
            let message = format!(
                "One or more records have been rejected due to {} record errors in total, and \
                 only showing the first three errors at most: {}",
                walk.error_count,
                first.join("; ")
            );
            (ErrorCode::INVALID_RECORD, message)
        };
        Rejected {
            error,
            record_errors: walk.errors,
            message,
        }
    }

    /// The batch's checksum is right, so whoever made it made it wrong: sending it again is of no
    /// use, and the error says so.
    #[cold]
    fn unreadable(&self, error: BatchError) -> Rejected {
        let code = match error {
            BatchError::Codec(CodecError::TooLarge { .. }) => ErrorCode::MESSAGE_TOO_LARGE,
            BatchError::UnknownCodec(_) => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
            _ => ErrorCode::INVALID_RECORD,
        };
        let partition = self.partition;
        Rejected::new(code, format_args!("{error} in topic partition {partition}"))
    }

    /// Builds the batch anew: same records, producer and flags, consecutive offsets, the target
    /// codec.
    fn rewrite(
        &self,
        body: &[u8],
        codec: Codec,
        append_time: Option<i64>,
    ) -> Result<SplitBatch, Rejected> {
        let batch = self.batch;
        let mut builder = BatchBuilder::new()
            .with_codec(codec, self.rules.compression_level)
            .with_producer(
                batch.producer_id(),
                batch.producer_epoch(),
                batch.base_sequence(),
            );
        builder.transactional = batch.is_transactional();
        builder.control = batch.is_control();
        builder.append_time = append_time;
        let stamped = batch.timestamp_type() == TimestampType::LogAppendTime;
        let mut failed = None;
        let visit = |index: i32, record: RecordRef<'_>| {
            let timestamp = match stamped {
                true => batch.max_timestamp(),
                false => batch.base_timestamp().wrapping_add(record.timestamp_delta),
            };
            let (key, value) = (record.key, record.value);
            let appended = builder.append_at(index, timestamp, key, value, record.headers());
            failed = failed.take().or(appended.err());
        };
        record::walk(body, batch.record_count(), visit).map_err(|error| self.unreadable(error))?;
        let built = match failed {
            None => builder.build(),
            Some(error) => Err(error),
        };
        let bytes = built.map_err(|error| self.unbuildable(error))?;
        self.check_size(bytes.len())?;
        let (batch, _) = Batch::parse(&bytes).map_err(|error| self.unreadable(error))?;
        Ok(batch.split())
    }

    #[cold]
    fn unbuildable(&self, error: BuildError) -> Rejected {
        let code = match error {
            BuildError::TooLarge => ErrorCode::MESSAGE_TOO_LARGE,
            BuildError::Empty | BuildError::OffsetOrder { .. } => ErrorCode::INVALID_RECORD,
            BuildError::Codec(_) => ErrorCode::UNKNOWN_SERVER_ERROR,
        };
        let partition = self.partition;
        Rejected::new(code, format_args!("{error} in topic partition {partition}"))
    }
}

#[cfg(test)]
#[path = "validator_tests.rs"]
mod tests;
