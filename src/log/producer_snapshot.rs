//! The bytes of a producer snapshot, `%020d.snapshot` in a partition's directory.
//!
//! Pure. Layout, big-endian (source: Kafka's ProducerSnapshot message, version 1): int16 version,
//! uint32 CRC-32C of everything behind it, int32 count, and per producer int64 id, int16 epoch,
//! int32 last sequence, int64 last offset, int32 offset delta, int64 timestamp, int32 coordinator
//! epoch, int64 first offset of the open transaction (-1 none). Only the last batch of each
//! producer is kept, so after a reload only that one's duplicates are recognised.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::entry::{BatchMeta, ProducerEntry};
use crate::types::Offset;

const VERSION: i16 = 1;
const CRC_AT: usize = 2;
const COVERED_AT: usize = 6;
const ENTRIES_AT: usize = 10;
const ENTRY_BYTES: usize = 46;

/// Why a snapshot cannot be used. The log deletes it and takes the next older one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("the producer snapshot has version {0}, only 1 is known")]
    Version(i16),
    #[error("the producer snapshot is corrupt (stored crc = {stored}, computed crc = {computed})")]
    Crc { stored: u32, computed: u32 },
    #[error("the producer snapshot declares {declared} producers in {bytes} bytes")]
    Length { declared: i32, bytes: usize },
}

/// Encodes the entries in the order given.
pub(super) fn encode<'a>(
    entries: impl ExactSizeIterator<Item = (i64, &'a ProducerEntry)>,
) -> Bytes {
    let mut out = BytesMut::with_capacity(ENTRIES_AT + entries.len() * ENTRY_BYTES);
    out.put_i16(VERSION);
    out.put_u32(0); // The checksum, once everything it covers is there.
    out.put_i32(i32::try_from(entries.len()).expect("the table's limit is far below 2^31"));
    for (id, entry) in entries {
        let last = entry.last_batch();
        out.put_i64(id);
        out.put_i16(entry.producer_epoch);
        out.put_i32(entry.last_sequence());
        out.put_i64(last.map_or(-1, |batch| batch.last_offset.0));
        out.put_i32(last.map_or(0, |batch| batch.offset_delta));
        out.put_i64(entry.last_timestamp);
        out.put_i32(entry.coordinator_epoch);
        out.put_i64(entry.txn_first_offset.map_or(-1, |offset| offset.0));
    }
    let crc = crc32c::crc32c(&out[COVERED_AT..]);
    out[CRC_AT..COVERED_AT].copy_from_slice(&crc.to_be_bytes());
    out.freeze()
}

/// Decodes a snapshot file.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<(i64, ProducerEntry)>, SnapshotError> {
    let short = SnapshotError::Length {
        declared: 0,
        bytes: bytes.len(),
    };
    let mut header = bytes.get(..ENTRIES_AT).ok_or(short)?;
    let version = header.get_i16();
    if version != VERSION {
        return Err(SnapshotError::Version(version));
    }
    let (stored, computed) = (header.get_u32(), crc32c::crc32c(&bytes[COVERED_AT..]));
    if stored != computed {
        return Err(SnapshotError::Crc { stored, computed });
    }
    let declared = header.get_i32();
    let entries = &bytes[ENTRIES_AT..];
    if i64::from(declared) * ENTRY_BYTES as i64 != entries.len() as i64 {
        return Err(SnapshotError::Length {
            declared,
            bytes: bytes.len(),
        });
    }
    Ok(entries
        .chunks_exact(ENTRY_BYTES)
        .map(decode_entry)
        .collect())
}

fn decode_entry(mut bytes: &[u8]) -> (i64, ProducerEntry) {
    let id = bytes.get_i64();
    let producer_epoch = bytes.get_i16();
    let last_sequence = bytes.get_i32();
    let last_offset = Offset(bytes.get_i64());
    let offset_delta = bytes.get_i32();
    let timestamp = bytes.get_i64();
    let coordinator_epoch = bytes.get_i32();
    let txn_first_offset = Offset(bytes.get_i64());
    let mut entry = ProducerEntry {
        producer_epoch,
        coordinator_epoch,
        last_timestamp: timestamp,
        txn_first_offset: (txn_first_offset.0 >= 0).then_some(txn_first_offset),
        ..ProducerEntry::default()
    };
    if last_offset.0 >= 0 {
        entry.remember(BatchMeta {
            last_sequence,
            last_offset,
            offset_delta,
            timestamp,
        });
    }
    (id, entry)
}
