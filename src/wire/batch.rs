//! A magic v2 record batch as bytes: what its 61-byte header says, in place.
//!
//! Owns the layout of the header, its checksum, and the cut of a byte stream into batches. Pure,
//! any core. Never copies records, never inflates more than the caller's limit, never panics on
//! what it reads; a batch that was parsed has a whole header and exactly its declared length.
//!
//! Layout, big-endian (source: KIP-98 message format): 0 baseOffset i64, 8 batchLength i32 (bytes
//! after this field), 12 partitionLeaderEpoch i32, 16 magic i8, 17 crc u32 (CRC-32C of 21..end),
//! 21 attributes i16, 23 lastOffsetDelta i32, 27 baseTimestamp i64, 35 maxTimestamp i64,
//! 43 producerId i64, 51 producerEpoch i16, 53 baseSequence i32, 57 recordCount i32, 61 records.

use bytes::Bytes;

use crate::types::{LeaderEpoch, Offset};
use crate::wire::codec::{self, Codec, CodecError};
use crate::wire::record::{self, RecordRef};

/// Bytes of a batch before its records: the smallest batch.
pub const HEADER_BYTES: usize = 61;
/// Base offset and length: the bytes that `batchLength` does not count.
pub const LOG_OVERHEAD: usize = 12;
/// The only record format this broker stores.
pub const MAGIC_V2: i8 = 2;
pub const NO_PRODUCER_ID: i64 = -1;
pub const NO_PRODUCER_EPOCH: i16 = -1;
pub const NO_SEQUENCE: i32 = -1;
/// "No timestamp", milliseconds.
pub const NO_TIMESTAMP: i64 = -1;

/// Everything up to and including the magic byte has the same layout in every format version.
const HEADER_BYTES_TO_MAGIC: usize = 17;
/// The smallest message of format v0, below which a length is corrupt in any version.
const LENGTH_MIN_ANY_MAGIC: i32 = 14;
const LENGTH_AT: usize = 8;
const EPOCH_AT: usize = 12;
const MAGIC_AT: usize = 16;
const CRC_AT: usize = 17;
const ATTRIBUTES_AT: usize = 21;
const MAX_TIMESTAMP_AT: usize = 35;

pub(crate) const ATTRIBUTE_CODEC: i16 = 0x07;
pub(crate) const ATTRIBUTE_LOG_APPEND_TIME: i16 = 0x08;
pub(crate) const ATTRIBUTE_TRANSACTIONAL: i16 = 0x10;
pub(crate) const ATTRIBUTE_CONTROL: i16 = 0x20;
pub(crate) const ATTRIBUTE_DELETE_HORIZON: i16 = 0x40;

/// `message.timestamp.type`, and bit 3 of a batch's attributes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TimestampType {
    #[default]
    CreateTime,
    LogAppendTime,
}

/// Why bytes are not a batch, or its records not records.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the batch does: a cut tail, not damage.
    #[error("the batch needs {needed} bytes but only {available} are there")]
    Partial { needed: usize, available: usize },
    /// The declared length cannot hold a batch.
    #[error("the batch length {length} is below the minimum of its format")]
    TooSmall { length: i32 },
    /// Formats 0 and 1 are older than Kafka 4 accepts; any other number is damage.
    #[error("the batch has magic {0}, not 2")]
    Magic(i8),
    #[error("the batch is corrupt (stored crc = {stored}, computed crc = {computed})")]
    Crc { stored: u32, computed: u32 },
    /// Attribute bits 0-2 hold an id that no codec has.
    #[error("the batch names codec {0}, which does not exist")]
    UnknownCodec(u8),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("record {index} is malformed: {reason}")]
    Record { index: i32, reason: &'static str },
    #[error("the batch declares {declared} records but ends after {found}")]
    RecordCount { declared: i32, found: i32 },
    #[error("{bytes} bytes are left over behind the declared {declared} records")]
    RecordsLeftOver { declared: i32, bytes: usize },
    #[error("the batch declares {0} records")]
    NegativeRecordCount(i32),
}

impl BatchError {
    /// Whether more bytes could make it whole.
    pub fn is_partial(&self) -> bool {
        matches!(self, BatchError::Partial { .. })
    }
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    i64::from_be_bytes(field)
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    i32::from_be_bytes(field)
}

fn i16_at(bytes: &[u8], at: usize) -> i16 {
    i16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The header getters, the same on every form a batch comes in; its `head` borrows at least the
/// first 61 bytes.
macro_rules! header_getters {
    () => {
        pub fn base_offset(&self) -> Offset {
            Offset(i64_at(self.head(), 0))
        }

        /// Bytes after the length field, as stored.
        pub fn batch_length(&self) -> i32 {
            i32_at(self.head(), LENGTH_AT)
        }

        /// Bytes of the whole batch, header included.
        pub fn total_size(&self) -> usize {
            // A parsed batch has a positive length.
            LOG_OVERHEAD + self.batch_length() as usize
        }

        pub fn partition_leader_epoch(&self) -> LeaderEpoch {
            LeaderEpoch(i32_at(self.head(), EPOCH_AT))
        }

        pub fn magic(&self) -> i8 {
            self.head()[MAGIC_AT] as i8
        }

        /// The stored CRC-32C, unverified.
        pub fn crc(&self) -> u32 {
            i32_at(self.head(), CRC_AT) as u32
        }

        pub fn attributes(&self) -> i16 {
            i16_at(self.head(), ATTRIBUTES_AT)
        }

        pub fn last_offset_delta(&self) -> i32 {
            i32_at(self.head(), 23)
        }

        /// The base offset plus the last delta; wraps on nonsense rather than panicking.
        pub fn last_offset(&self) -> Offset {
            Offset(
                self.base_offset()
                    .0
                    .wrapping_add(i64::from(self.last_offset_delta())),
            )
        }

        /// Milliseconds. With [`delete_horizon`](Self::delete_horizon) set it is that instead.
        pub fn base_timestamp(&self) -> i64 {
            i64_at(self.head(), 27)
        }

        /// Milliseconds; with LogAppendTime the timestamp of every record.
        pub fn max_timestamp(&self) -> i64 {
            i64_at(self.head(), MAX_TIMESTAMP_AT)
        }

        pub fn producer_id(&self) -> i64 {
            i64_at(self.head(), 43)
        }

        pub fn has_producer_id(&self) -> bool {
            self.producer_id() > NO_PRODUCER_ID
        }

        pub fn producer_epoch(&self) -> i16 {
            i16_at(self.head(), 51)
        }

        pub fn base_sequence(&self) -> i32 {
            i32_at(self.head(), 53)
        }

        /// The sequence of the last record, wrapping from 2^31-1 to 0; -1 without sequences.
        pub fn last_sequence(&self) -> i32 {
            match self.base_sequence() {
                NO_SEQUENCE => NO_SEQUENCE,
                base => increment_sequence(base, self.last_offset_delta()),
            }
        }

        /// Records the batch declares. After compaction it may be less than its offsets span.
        pub fn record_count(&self) -> i32 {
            i32_at(self.head(), 57)
        }

        /// The codec of the records; `None` for an id that does not exist.
        pub fn codec(&self) -> Option<Codec> {
            Codec::from_id((self.attributes() & ATTRIBUTE_CODEC) as u8)
        }

        pub fn timestamp_type(&self) -> TimestampType {
            match self.attributes() & ATTRIBUTE_LOG_APPEND_TIME {
                0 => TimestampType::CreateTime,
                _ => TimestampType::LogAppendTime,
            }
        }

        pub fn is_transactional(&self) -> bool {
            self.attributes() & ATTRIBUTE_TRANSACTIONAL != 0
        }

        pub fn is_control(&self) -> bool {
            self.attributes() & ATTRIBUTE_CONTROL != 0
        }

        /// When compaction may drop the batch's tombstones and markers (KIP-534), milliseconds.
        pub fn delete_horizon(&self) -> Option<i64> {
            (self.attributes() & ATTRIBUTE_DELETE_HORIZON != 0).then(|| self.base_timestamp())
        }
    };
}

// The forms below use the getters, so they stand behind them.
#[path = "batch_iter.rs"]
mod iter;
#[path = "batch_split.rs"]
mod split;

pub use iter::{Batches, RecordIter};
pub(crate) use split::seal;
pub use split::{SplitBatch, set_base_offset, set_max_timestamp, set_partition_leader_epoch};

/// `sequence` moved `by` records on, wrapping from 2^31-1 to 0. Negative steps give nonsense, not
/// a panic.
pub fn increment_sequence(sequence: i32, by: i32) -> i32 {
    sequence.wrapping_add(by) & i32::MAX
}

/// `sequence` moved `by` records back, wrapping from 0 to 2^31-1.
pub fn decrement_sequence(sequence: i32, by: i32) -> i32 {
    sequence.wrapping_sub(by) & i32::MAX
}

/// A batch borrowed from bytes; exactly its own length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BatchView<'a>(&'a [u8]);

impl<'a> BatchView<'a> {
    /// Cuts the first batch off `bytes` and returns it with the rest. Checks lengths and magic,
    /// nothing else: a parsed batch may still fail [`check_crc`](Self::check_crc).
    pub fn parse(bytes: &'a [u8]) -> Result<(BatchView<'a>, &'a [u8]), BatchError> {
        let available = bytes.len();
        let partial = |needed| BatchError::Partial { needed, available };
        if available < LOG_OVERHEAD {
            return Err(partial(LOG_OVERHEAD));
        }
        let length = i32_at(bytes, LENGTH_AT);
        if length < LENGTH_MIN_ANY_MAGIC {
            return Err(BatchError::TooSmall { length });
        }
        if available < HEADER_BYTES_TO_MAGIC {
            return Err(partial(HEADER_BYTES_TO_MAGIC));
        }
        let magic = bytes[MAGIC_AT] as i8;
        if magic != MAGIC_V2 {
            return Err(BatchError::Magic(magic));
        }
        let total = LOG_OVERHEAD + length as usize;
        if total < HEADER_BYTES {
            return Err(BatchError::TooSmall { length });
        }
        let (batch, rest) = bytes
            .split_at_checked(total)
            .ok_or_else(|| partial(total))?;
        Ok((BatchView(batch), rest))
    }

    header_getters!();

    fn head(&self) -> &[u8] {
        self.0
    }

    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Compares the stored CRC-32C with that of bytes 21..end.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        let (stored, computed) = (self.crc(), crc32c::crc32c(&self.0[ATTRIBUTES_AT..]));
        match stored == computed {
            true => Ok(()),
            false => Err(BatchError::Crc { stored, computed }),
        }
    }

    /// The records as stored: compressed if the batch is.
    pub fn body(&self) -> &'a [u8] {
        &self.0[HEADER_BYTES..]
    }

    /// Visits every record in order and checks that they fill the body exactly. `scratch` receives
    /// the inflated body of a compressed batch, at most `limit` bytes of it; an uncompressed batch
    /// is walked where it lies. Allocates nothing per record.
    pub fn walk<'s>(
        &self,
        limit: usize,
        scratch: &'s mut Vec<u8>,
        visit: impl FnMut(i32, RecordRef<'s>),
    ) -> Result<(), BatchError>
    where
        'a: 's,
    {
        record::walk(self.inflate(limit, scratch)?, self.count()?, visit)
    }

    /// The records uncompressed: the body itself, or its inflated form in `scratch`.
    pub fn inflate<'s>(
        &self,
        limit: usize,
        scratch: &'s mut Vec<u8>,
    ) -> Result<&'s [u8], BatchError>
    where
        'a: 's,
    {
        match self.known_codec()? {
            Codec::None => Ok(self.body()),
            codec => {
                codec::decompress_into(codec, self.body(), limit, scratch)?;
                Ok(scratch)
            }
        }
    }

    fn known_codec(&self) -> Result<Codec, BatchError> {
        self.codec()
            .ok_or_else(|| BatchError::UnknownCodec((self.attributes() & ATTRIBUTE_CODEC) as u8))
    }

    fn count(&self) -> Result<i32, BatchError> {
        match self.record_count() {
            count if count < 0 => Err(BatchError::NegativeRecordCount(count)),
            count => Ok(count),
        }
    }
}

impl std::fmt::Debug for BatchView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("base_offset", &self.base_offset())
            .field("last_offset", &self.last_offset())
            .field("leader_epoch", &self.partition_leader_epoch().0)
            .field("records", &self.record_count())
            .field("bytes", &self.total_size())
            .field("attributes", &format_args!("{:#04x}", self.attributes()))
            .field("producer_id", &self.producer_id())
            .field("producer_epoch", &self.producer_epoch())
            .field("base_sequence", &self.base_sequence())
            .field("max_timestamp", &self.max_timestamp())
            .finish()
    }
}

/// A batch that owns a share of the memory it lies in; exactly its own length.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch(Bytes);

impl Batch {
    /// Cuts the first batch off `bytes`, as [`BatchView::parse`] does, and returns it with the rest.
    pub fn parse(bytes: &Bytes) -> Result<(Batch, Bytes), BatchError> {
        let (view, _) = BatchView::parse(bytes)?;
        let total = view.total_size();
        Ok((Batch(bytes.slice(..total)), bytes.slice(total..)))
    }

    header_getters!();

    fn head(&self) -> &[u8] {
        &self.0
    }

    pub fn view(&self) -> BatchView<'_> {
        BatchView(&self.0)
    }

    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    pub fn check_crc(&self) -> Result<(), BatchError> {
        self.view().check_crc()
    }

    /// The records as stored: compressed if the batch is.
    pub fn body(&self) -> Bytes {
        self.0.slice(HEADER_BYTES..)
    }

    /// Iterates over the records, which share this batch's memory, or that of its body inflated
    /// once into at most `limit` bytes.
    pub fn records(&self, limit: usize) -> Result<RecordIter, BatchError> {
        let view = self.view();
        let body = match view.known_codec()? {
            Codec::None => self.body(),
            codec => codec::decompress(codec, view.body(), limit)?,
        };
        Ok(RecordIter::new(view, view.count()?, body))
    }

    /// Takes the header off into memory of its own, so that it can change while the records stay
    /// where they are.
    pub fn split(&self) -> SplitBatch {
        SplitBatch::new(self.view(), self.body())
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.view().fmt(f)
    }
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
