//! Builds a magic v2 record batch, control batches included.
//!
//! Owns the batch's records until they are built, and the rules of the header they get (base
//! timestamp = the first record's, largest timestamp, offset deltas, sequence). Pure, any core.
//! Used by whoever writes records of its own: the client, the coordinators, the metadata log, and
//! a leader that recompresses. Never assigns offsets: the log does that in the header.

use bytes::{BufMut, Bytes};

use crate::types::{LeaderEpoch, Offset};
use crate::wire::batch::{
    ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_TRANSACTIONAL, HEADER_BYTES,
    LOG_OVERHEAD, MAGIC_V2, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, seal,
};
use crate::wire::codec::{self, Codec, CodecError};
use crate::wire::record;

/// A header of a record: key and nullable value. Keys may repeat.
pub type Header<'a> = (&'a [u8], Option<&'a [u8]>);

/// The largest batch the format can hold: its length is an int32 that leaves out 12 bytes.
/// Everything here stays below it, so no length field can overflow.
const BATCH_BYTES_MAX: usize = i32::MAX as usize;

/// Why a record or a batch could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A batch without records has no meaning outside compaction.
    #[error("a batch needs at least one record")]
    Empty,
    /// Offsets of a batch only grow.
    #[error("offset delta {delta} does not come after {last}")]
    OffsetOrder { delta: i32, last: i32 },
    /// The batch would exceed what the format can describe.
    #[error("the batch would be larger than the format allows")]
    TooLarge,
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Collects records and makes them a batch. The public fields are the header's and may be set
/// until [`build`](Self::build); the default is a plain, uncompressed batch at offset 0.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    pub base_offset: Offset,
    pub leader_epoch: LeaderEpoch,
    pub codec: Codec,
    /// The codec's own scale; `None` is its default.
    pub level: Option<i32>,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub transactional: bool,
    pub control: bool,
    /// With LogAppendTime this is the timestamp of every record, milliseconds.
    pub append_time: Option<i64>,
    /// Room for the header, so that the batch need not move when it gets it, then the records.
    bytes: Vec<u8>,
    count: i32,
    last_offset_delta: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        BatchBuilder {
            base_offset: Offset::ZERO,
            leader_epoch: LeaderEpoch::UNKNOWN,
            codec: Codec::None,
            level: None,
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            base_sequence: NO_SEQUENCE,
            transactional: false,
            control: false,
            append_time: None,
            bytes: Vec::new(),
            count: 0,
            last_offset_delta: -1,
            base_timestamp: NO_TIMESTAMP,
            max_timestamp: NO_TIMESTAMP,
        }
    }
}

impl BatchBuilder {
    pub fn new() -> BatchBuilder {
        BatchBuilder::default()
    }

    /// Makes room for a batch of `bytes` at once, for callers that know about how large it gets.
    pub fn with_capacity(mut self, bytes: usize) -> BatchBuilder {
        self.bytes.reserve(bytes.min(BATCH_BYTES_MAX));
        self
    }

    /// Builds in `buffer`, whose contents are dropped: for callers that make one batch after the
    /// other.
    pub fn with_buffer(mut self, mut buffer: Vec<u8>) -> BatchBuilder {
        buffer.clear();
        self.bytes = buffer;
        self
    }

    /// Sets how [`build`](Self::build) compresses the records.
    pub fn with_codec(mut self, codec: Codec, level: Option<i32>) -> BatchBuilder {
        (self.codec, self.level) = (codec, level);
        self
    }

    /// Makes it a batch of an idempotent producer: `base_sequence` counts its first record.
    pub fn with_producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> BatchBuilder {
        (self.producer_id, self.producer_epoch) = (id, epoch);
        self.base_sequence = base_sequence;
        self
    }

    /// Appends a record at the next offset. `timestamp` in milliseconds, -1 for none.
    pub fn append(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) -> Result<(), BuildError> {
        let delta = self
            .last_offset_delta
            .checked_add(1)
            .ok_or(BuildError::TooLarge)?;
        self.append_at(delta, timestamp, key, value, headers.iter().copied())
    }

    /// Appends a record `offset_delta` offsets behind the base; deltas grow but may leave gaps.
    pub fn append_at<'h>(
        &mut self,
        offset_delta: i32,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = Header<'h>> + Clone,
    ) -> Result<(), BuildError> {
        if offset_delta <= self.last_offset_delta {
            return Err(BuildError::OffsetOrder {
                delta: offset_delta,
                last: self.last_offset_delta,
            });
        }
        let size = record::size_bound(key, value, headers.clone());
        if self.estimated_size() + size > BATCH_BYTES_MAX {
            return Err(BuildError::TooLarge);
        }
        if self.count == 0 {
            self.base_timestamp = timestamp;
            self.bytes.resize(HEADER_BYTES, 0);
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        let timestamp_delta = timestamp.wrapping_sub(self.base_timestamp);
        let out = &mut self.bytes;
        record::write(out, timestamp_delta, offset_delta, key, value, headers);
        self.last_offset_delta = offset_delta;
        self.count += 1;
        Ok(())
    }

    /// Records appended so far.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the batch were it built now: exact without compression, and what it is before
    /// compression otherwise.
    pub fn estimated_size(&self) -> usize {
        self.bytes.len().max(HEADER_BYTES)
    }

    /// [`estimated_size`](Self::estimated_size) after one more record, never too small.
    pub fn size_with(
        &self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) -> usize {
        self.estimated_size() + record::size_bound(key, value, headers.iter().copied())
    }

    /// The batch, sealed with its checksum.
    pub fn build(self) -> Result<Bytes, BuildError> {
        if self.count == 0 {
            return Err(BuildError::Empty);
        }
        let mut attributes = i16::from(self.codec.id());
        let flags = [
            (self.append_time.is_some(), ATTRIBUTE_LOG_APPEND_TIME),
            (self.transactional, ATTRIBUTE_TRANSACTIONAL),
            (self.control, ATTRIBUTE_CONTROL),
        ];
        for (set, bit) in flags {
            attributes |= if set { bit } else { 0 };
        }
        let mut out = match self.codec {
            Codec::None => self.bytes,
            codec => {
                let records = &self.bytes[HEADER_BYTES..];
                let mut out = Vec::with_capacity(HEADER_BYTES + records.len() / 2 + 64);
                out.resize(HEADER_BYTES, 0);
                codec::compress_into(codec, self.level, records, &mut out)?;
                out
            }
        };
        if out.len() > BATCH_BYTES_MAX {
            return Err(BuildError::TooLarge);
        }
        let length = (out.len() - LOG_OVERHEAD) as i32;
        let mut header = &mut out[..HEADER_BYTES];
        header.put_i64(self.base_offset.0);
        header.put_i32(length);
        header.put_i32(self.leader_epoch.0);
        header.put_i8(MAGIC_V2);
        header.put_u32(0); // The checksum, once everything it covers is there.
        header.put_i16(attributes);
        header.put_i32(self.last_offset_delta);
        header.put_i64(self.base_timestamp);
        header.put_i64(self.append_time.unwrap_or(self.max_timestamp));
        header.put_i64(self.producer_id);
        header.put_i16(self.producer_epoch);
        header.put_i32(self.base_sequence);
        header.put_i32(self.count);
        seal(&mut out);
        Ok(Bytes::from(out))
    }
}

/// What a control record says; its key is int16 version (0) and this number as int16.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(i16)]
pub enum ControlType {
    Abort = 0,
    Commit = 1,
    LeaderChange = 2,
    SnapshotHeader = 3,
    SnapshotFooter = 4,
    KRaftVersion = 5,
    KRaftVoters = 6,
}

impl ControlType {
    const ALL: [ControlType; 7] = [
        ControlType::Abort,
        ControlType::Commit,
        ControlType::LeaderChange,
        ControlType::SnapshotHeader,
        ControlType::SnapshotFooter,
        ControlType::KRaftVersion,
        ControlType::KRaftVoters,
    ];

    /// The key of a control record of this type.
    pub fn key(self) -> [u8; 4] {
        [0, 0, 0, self as u8]
    }

    /// The type a control record's key names; `None` for one not known here. Later key versions
    /// only append, so the version is not looked at.
    pub fn of_key(key: &[u8]) -> Option<ControlType> {
        let (_version, rest) = key.split_first_chunk::<2>()?;
        let kind = i16::from_be_bytes(*rest.first_chunk()?);
        let index = usize::try_from(kind).ok()?;
        ControlType::ALL.get(index).copied()
    }
}

/// The value of an end-transaction marker (EndTxnMarker, version 0): int16 version, int32
/// coordinator epoch.
pub fn end_txn_value(coordinator_epoch: i32) -> [u8; 6] {
    let epoch = coordinator_epoch.to_be_bytes();
    [0, 0, epoch[0], epoch[1], epoch[2], epoch[3]]
}

/// The coordinator epoch in an end-transaction marker's value; `None` if it is cut short or of a
/// version below 0.
pub fn end_txn_coordinator_epoch(value: &[u8]) -> Option<i32> {
    let (version, rest) = value.split_first_chunk::<2>()?;
    if i16::from_be_bytes(*version) < 0 {
        return None;
    }
    Some(i32::from_be_bytes(*rest.first_chunk()?))
}

/// The marker that ends a transaction of producer `id` on one partition, at offset 0.
pub fn end_txn_marker(
    producer_id: i64,
    producer_epoch: i16,
    commit: bool,
    coordinator_epoch: i32,
    timestamp: i64,
) -> Result<Bytes, BuildError> {
    let kind = if commit {
        ControlType::Commit
    } else {
        ControlType::Abort
    };
    let mut builder = BatchBuilder::new().with_producer(producer_id, producer_epoch, NO_SEQUENCE);
    builder.transactional = true;
    builder.control = true;
    let value = end_txn_value(coordinator_epoch);
    builder.append(timestamp, Some(&kind.key()), Some(&value), &[])?;
    builder.build()
}

/// A control batch of the metadata log: one record per `(type, encoded message)`, for instance the
/// LeaderChangeMessage that opens an epoch.
pub fn control_batch(
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    timestamp: i64,
    records: &[(ControlType, &[u8])],
) -> Result<Bytes, BuildError> {
    let mut builder = BatchBuilder::new();
    (builder.base_offset, builder.leader_epoch) = (base_offset, leader_epoch);
    builder.control = true;
    for (kind, value) in records {
        builder.append(timestamp, Some(&kind.key()), Some(value), &[])?;
    }
    builder.build()
}
