//! Changing a batch: the fields a leader fills in, with the checksum kept right.
//!
//! Owns the setters, in place and on a header split off its records. Pure, any core. Never touches
//! the records.

use bytes::{Bytes, BytesMut};

use super::{
    ATTRIBUTE_CODEC, ATTRIBUTE_CONTROL, ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL, ATTRIBUTES_AT, Batch, BatchView, CRC_AT, EPOCH_AT, HEADER_BYTES,
    LENGTH_AT, LOG_OVERHEAD, MAGIC_AT, MAX_TIMESTAMP_AT, NO_PRODUCER_ID, NO_SEQUENCE,
    TimestampType, i16_at, i32_at, i64_at, increment_sequence,
};
use crate::types::{LeaderEpoch, Offset};
use crate::wire::codec::Codec;

/// A batch in two parts: a header of its own and shared records. What a leader changes in a batch
/// (offset, epoch, timestamp) changes here, without a copy of the records.
#[derive(Clone, PartialEq, Eq)]
pub struct SplitBatch {
    header: [u8; HEADER_BYTES],
    body: Bytes,
}

impl SplitBatch {
    pub(super) fn new(batch: BatchView<'_>, body: Bytes) -> SplitBatch {
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&batch.as_bytes()[..HEADER_BYTES]);
        SplitBatch { header, body }
    }

    header_getters!();

    fn head(&self) -> &[u8] {
        &self.header
    }

    /// Outside the checksum.
    pub fn set_base_offset(&mut self, offset: Offset) {
        set_base_offset(&mut self.header, offset);
    }

    /// Outside the checksum.
    pub fn set_partition_leader_epoch(&mut self, epoch: LeaderEpoch) {
        set_partition_leader_epoch(&mut self.header, epoch);
    }

    /// Inside the checksum, which is computed anew unless nothing changes.
    pub fn set_max_timestamp(&mut self, kind: TimestampType, timestamp: i64) {
        if (self.timestamp_type(), self.max_timestamp()) == (kind, timestamp) {
            return;
        }
        put_timestamp(&mut self.header, kind, timestamp);
        let crc = crc32c::crc32c(&self.header[ATTRIBUTES_AT..]);
        let crc = crc32c::crc32c_append(crc, &self.body);
        put_crc(&mut self.header, crc);
    }

    /// The two parts in order: 61 bytes copied, the records shared.
    pub fn parts(&self) -> [Bytes; 2] {
        [Bytes::copy_from_slice(&self.header), self.body.clone()]
    }

    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Appends the whole batch to `out`.
    pub fn copy_to(&self, out: &mut BytesMut) {
        out.reserve(self.total_size());
        out.extend_from_slice(&self.header);
        out.extend_from_slice(&self.body);
    }

    /// The batch in one piece, copied.
    pub fn to_batch(&self) -> Batch {
        let mut out = BytesMut::new();
        self.copy_to(&mut out);
        Batch(out.freeze())
    }
}

impl std::fmt::Debug for SplitBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        BatchView(&self.header).fmt(f)
    }
}

/// Sets the base offset of the batch at the start of `batch`; outside the checksum.
///
/// # Panics
/// If `batch` is shorter than a header; so do the two setters below.
pub fn set_base_offset(batch: &mut [u8], offset: Offset) {
    batch[..8].copy_from_slice(&offset.0.to_be_bytes());
}

/// Sets the leader epoch of the batch at the start of `batch`; outside the checksum.
pub fn set_partition_leader_epoch(batch: &mut [u8], epoch: LeaderEpoch) {
    batch[EPOCH_AT..EPOCH_AT + 4].copy_from_slice(&epoch.0.to_be_bytes());
}

/// Sets the largest timestamp and its type, and computes the checksum anew unless nothing
/// changes. `batch` is exactly one batch.
pub fn set_max_timestamp(batch: &mut [u8], kind: TimestampType, timestamp: i64) {
    let view = BatchView(batch);
    if (view.timestamp_type(), view.max_timestamp()) == (kind, timestamp) {
        return;
    }
    put_timestamp(batch, kind, timestamp);
    let crc = crc32c::crc32c(&batch[ATTRIBUTES_AT..]);
    put_crc(batch, crc);
}

fn put_timestamp(header: &mut [u8], kind: TimestampType, timestamp: i64) {
    let attributes = match kind {
        TimestampType::CreateTime => i16_at(header, ATTRIBUTES_AT) & !ATTRIBUTE_LOG_APPEND_TIME,
        TimestampType::LogAppendTime => i16_at(header, ATTRIBUTES_AT) | ATTRIBUTE_LOG_APPEND_TIME,
    };
    header[ATTRIBUTES_AT..ATTRIBUTES_AT + 2].copy_from_slice(&attributes.to_be_bytes());
    header[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8].copy_from_slice(&timestamp.to_be_bytes());
}

fn put_crc(header: &mut [u8], crc: u32) {
    header[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
}

/// Computes the checksum of exactly one batch and stores it.
pub(crate) fn seal(batch: &mut [u8]) {
    let crc = crc32c::crc32c(&batch[ATTRIBUTES_AT..]);
    put_crc(batch, crc);
}
