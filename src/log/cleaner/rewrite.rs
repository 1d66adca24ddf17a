//! Owns how a batch is written anew with fewer records: base offset, last offset delta, producer
//! fields, leader epoch, timestamp type and codec stay as they were. Pure. It never decides which
//! records stay.
//!
//! Record bytes are copied as they lie: their offset and timestamp deltas count from a base that
//! does not move. Only where a delete horizon is set, which takes the place of the base timestamp
//! (KIP-534), the timestamp deltas are written anew.

use std::ops::Range;

use bytes::BufMut;

use crate::wire::batch::{
    ATTRIBUTE_CODEC, ATTRIBUTE_DELETE_HORIZON, BatchError, BatchView, HEADER_BYTES, LOG_OVERHEAD,
    NO_TIMESTAMP, TimestampType, seal,
};
use crate::wire::codec::{self, Codec};
use crate::wire::record::{self, RecordRef};

const LENGTH_AT: usize = 8;
const ATTRIBUTES_AT: usize = 21;
const BASE_TIMESTAMP_AT: usize = 27;
const MAX_TIMESTAMP_AT: usize = 35;
const COUNT_AT: usize = 57;

/// The records of a batch that stay, as they lie in its inflated body.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub ranges: Vec<Range<usize>>,
    /// Largest timestamp among them.
    pub max_timestamp: i64,
}

/// Appends the batch with the selected records (at least one) to `out`; with `horizon` that is its
/// delete horizon from now on, otherwise it keeps the one it has.
///
/// # Errors
/// A selected range is no record, or the codec refuses.
pub fn write_selected(
    batch: BatchView<'_>,
    body: &[u8],
    selection: &Selection,
    horizon: Option<i64>,
    out: &mut Vec<u8>,
) -> Result<(), BatchError> {
    let mut records = Vec::with_capacity(selection.ranges.iter().map(|range| range.len()).sum());
    for range in &selection.ranges {
        let raw = &body[range.clone()];
        match horizon {
            None => records.extend_from_slice(raw),
            Some(horizon) => move_base(raw, batch.base_timestamp(), horizon, &mut records)?,
        }
    }
    let start = out.len();
    out.extend_from_slice(&batch.as_bytes()[..HEADER_BYTES]);
    match batch.codec().unwrap_or_default() {
        Codec::None => out.extend_from_slice(&records),
        codec => codec::compress_into(codec, None, &records, out)?,
    }
    let mut attributes = batch.attributes();
    let mut base_timestamp = batch.base_timestamp();
    if let Some(horizon) = horizon {
        attributes |= ATTRIBUTE_DELETE_HORIZON;
        base_timestamp = horizon;
    }
    let max_timestamp = match batch.timestamp_type() {
        TimestampType::LogAppendTime => batch.max_timestamp(),
        TimestampType::CreateTime => selection.max_timestamp,
    };
    let count = selection.ranges.len() as i32;
    finish(
        &mut out[start..],
        attributes,
        base_timestamp,
        max_timestamp,
        count,
    );
    Ok(())
}

/// Appends the batch without any record: its offsets, producer and epoch stay known.
pub fn write_empty(batch: BatchView<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&batch.as_bytes()[..HEADER_BYTES]);
    let attributes = batch.attributes() & !(ATTRIBUTE_CODEC | ATTRIBUTE_DELETE_HORIZON);
    finish(
        &mut out[start..],
        attributes,
        NO_TIMESTAMP,
        batch.max_timestamp(),
        0,
    );
}

fn move_base(raw: &[u8], from: i64, to: i64, out: &mut Vec<u8>) -> Result<(), BatchError> {
    let (record, _) =
        RecordRef::read(raw).map_err(|reason| BatchError::Record { index: 0, reason })?;
    let timestamp = from.wrapping_add(record.timestamp_delta);
    record::write(
        out,
        timestamp.wrapping_sub(to),
        record.offset_delta,
        record.key,
        record.value,
        record.headers(),
    );
    Ok(())
}

fn finish(batch: &mut [u8], attributes: i16, base_timestamp: i64, max_timestamp: i64, count: i32) {
    let length = (batch.len() - LOG_OVERHEAD) as i32;
    (&mut batch[LENGTH_AT..]).put_i32(length);
    (&mut batch[ATTRIBUTES_AT..]).put_i16(attributes);
    (&mut batch[BASE_TIMESTAMP_AT..]).put_i64(base_timestamp);
    (&mut batch[MAX_TIMESTAMP_AT..]).put_i64(max_timestamp);
    (&mut batch[COUNT_AT..]).put_i32(count);
    seal(batch);
}
