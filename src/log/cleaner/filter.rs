//! Owns what of each batch of a log a pass keeps. Pure; it moves between the shard and the threads
//! that compute for it. It never reads or writes a file.
//!
//! The rules are Kafka's:
//! * of each key the last record stays; records without a key go; what lies past the offsets that
//!   the map covers stays as it is;
//! * a tombstone stays for `delete.retention.ms` after it was first cleaned: then the batch gets
//!   its delete horizon;
//! * data of aborted transactions goes; an end marker goes once no data of its transaction is
//!   left and a delete horizon has passed since that was first seen;
//! * the last batch of each producer stays, empty if need be, so that sequence checks and fencing
//!   survive;
//! * a batch that goes on the caller's word (`must_stay`) loses its records only. The pass gives it
//!   for the last batch of each segment it writes, so that every segment ends where the next one
//!   begins and no recovery takes a hole for a loss.

use std::collections::HashMap;

use super::super::segment::BatchExtent;
use super::super::txn_index::AbortedTxn;
use super::super::validator::STORED_INFLATED_BYTES_MAX;
use super::offset_map::OffsetMap;
use super::rewrite::{Selection, write_empty, write_selected};
use super::transactions::CleanedTransactions;
use crate::types::Offset;
use crate::wire::batch::{BatchError, BatchView};
use crate::wire::batch_builder::ControlType;
use crate::wire::record::RecordRef;

/// The last trace of a producer in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastRecord {
    pub epoch: i16,
    /// `None` if it is a marker.
    pub data_offset: Option<Offset>,
}

/// What a pass keeps by.
pub struct Filter {
    pub map: OffsetMap,
    pub transactions: CleanedTransactions,
    pub producers: HashMap<i64, LastRecord>,
    pub now_ms: i64,
    pub delete_retention_ms: i64,
    scratch: Vec<u8>,
}

/// What came of some batches: their bytes, and what the segment must know of them.
#[derive(Debug, Default)]
pub struct Kept {
    pub bytes: Vec<u8>,
    pub batches: Vec<BatchExtent>,
    /// Rows of the transaction index that stay.
    pub rows: Vec<AbortedTxn>,
    pub records_read: u64,
    pub records_kept: u64,
}

/// What is known of a batch before its records are looked at.
struct BatchRule {
    /// All of its records go.
    discard: bool,
    /// It stays even without records.
    keep_empty: bool,
    /// A marker whose transaction has left no data: the time until it may go begins.
    marks_empty_txn: bool,
}

impl Filter {
    pub fn new(
        map: OffsetMap,
        transactions: CleanedTransactions,
        producers: HashMap<i64, LastRecord>,
        now_ms: i64,
        delete_retention_ms: i64,
    ) -> Filter {
        Filter {
            map,
            transactions,
            producers,
            now_ms,
            delete_retention_ms,
            scratch: Vec::new(),
        }
    }

    /// Cleans whole batches, in the order of the log. With `last_stays` the last of them is not
    /// lost, whatever becomes of its records.
    ///
    /// # Errors
    /// A damaged batch; it is never written anew with a checksum that says otherwise.
    pub fn clean(&mut self, mut piece: &[u8], last_stays: bool) -> Result<Kept, BatchError> {
        let mut kept = Kept::default();
        kept.bytes.reserve(piece.len());
        while !piece.is_empty() {
            let (batch, rest) = BatchView::parse(piece)?;
            batch.check_crc()?;
            self.clean_batch(batch, last_stays && rest.is_empty(), &mut kept)?;
            piece = rest;
        }
        Ok(kept)
    }

    fn clean_batch(
        &mut self,
        batch: BatchView<'_>,
        must_stay: bool,
        kept: &mut Kept,
    ) -> Result<(), BatchError> {
        let rule = self.rule(batch, must_stay, kept)?;
        let count = batch.record_count().max(0) as u64;
        kept.records_read += count;
        if rule.discard && !rule.keep_empty {
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let written = self.write(batch, &rule, &mut scratch, kept);
        self.scratch = scratch;
        if let Some((stay, max_timestamp, start)) = written? {
            kept.records_kept += stay as u64;
            kept.batches.push(BatchExtent {
                base: batch.base_offset(),
                last: batch.last_offset(),
                max_timestamp,
                size: (kept.bytes.len() - start) as u32,
            });
        }
        Ok(())
    }

    fn rule(
        &mut self,
        batch: BatchView<'_>,
        must_stay: bool,
        kept: &mut Kept,
    ) -> Result<BatchRule, BatchError> {
        let last_offset = batch.last_offset();
        let id = batch.producer_id();
        let may_go = if batch.is_control() {
            let kind = control_kind(batch)?;
            let empty = batch.record_count() == 0;
            let verdict = self.transactions.on_control(id, kind, last_offset, empty);
            kept.rows.extend(verdict.row);
            verdict.may_go
        } else {
            self.transactions
                .on_data(id, batch.is_transactional(), last_offset)
        };
        let horizon_passed = batch
            .delete_horizon()
            .is_some_and(|horizon| horizon <= self.now_ms);
        let discard = may_go && (!batch.is_control() || horizon_passed);
        Ok(BatchRule {
            discard,
            keep_empty: must_stay || (batch.has_producer_id() && self.is_last_of_producer(batch)),
            marks_empty_txn: may_go && batch.is_control(),
        })
    }

    fn is_last_of_producer(&self, batch: BatchView<'_>) -> bool {
        self.producers
            .get(&batch.producer_id())
            .is_some_and(|last| match last.data_offset {
                Some(offset) => batch.last_offset() == offset,
                None => batch.is_control() && batch.producer_epoch() == last.epoch,
            })
    }

    /// Writes what stays of the batch; records that stay, their largest timestamp, and where in
    /// the output the batch begins. `None` if nothing stays.
    fn write(
        &self,
        batch: BatchView<'_>,
        rule: &BatchRule,
        scratch: &mut Vec<u8>,
        kept: &mut Kept,
    ) -> Result<Option<(usize, i64, usize)>, BatchError> {
        let start = kept.bytes.len();
        let body = batch.inflate(STORED_INFLATED_BYTES_MAX, scratch)?;
        let mut selection = Selection {
            max_timestamp: i64::MIN,
            ..Selection::default()
        };
        let mut tombstones = false;
        let declared = batch.record_count();
        let mut rest = body;
        for index in 0..declared {
            let at = body.len() - rest.len();
            let (record, tail) =
                RecordRef::read(rest).map_err(|reason| BatchError::Record { index, reason })?;
            rest = tail;
            if rule.discard || !self.record_stays(batch, &record) {
                continue;
            }
            tombstones |= record.value.is_none();
            let timestamp = batch.base_timestamp().wrapping_add(record.timestamp_delta);
            selection.max_timestamp = selection.max_timestamp.max(timestamp);
            selection.ranges.push(at..body.len() - rest.len());
        }
        if !rest.is_empty() {
            return Err(BatchError::RecordsLeftOver {
                declared,
                bytes: rest.len(),
            });
        }
        let stay = selection.ranges.len();
        if stay == 0 {
            if !rule.keep_empty {
                return Ok(None);
            }
            write_empty(batch, &mut kept.bytes);
            return Ok(Some((0, batch.max_timestamp(), start)));
        }
        let begins_to_wait =
            (tombstones || rule.marks_empty_txn) && batch.delete_horizon().is_none();
        if stay as i32 == declared && !begins_to_wait {
            kept.bytes.extend_from_slice(batch.as_bytes());
            return Ok(Some((stay, batch.max_timestamp(), start)));
        }
        let horizon = begins_to_wait.then(|| self.now_ms.saturating_add(self.delete_retention_ms));
        write_selected(batch, body, &selection, horizon, &mut kept.bytes)?;
        let (written, _) = BatchView::parse(&kept.bytes[start..])?;
        Ok(Some((stay, written.max_timestamp(), start)))
    }

    fn record_stays(&self, batch: BatchView<'_>, record: &RecordRef<'_>) -> bool {
        if batch.is_control() {
            return true;
        }
        let offset = Offset(batch.base_offset().0 + i64::from(record.offset_delta));
        if self.map.latest() < Some(offset) {
            return true;
        }
        let Some(key) = record.key else {
            return false;
        };
        let is_last = self.map.get(key).is_none_or(|last| offset >= last);
        // A batch without a horizon holds no tombstone that was cleaned before.
        let waits = || {
            batch
                .delete_horizon()
                .is_none_or(|horizon| self.now_ms < horizon)
        };
        is_last && (record.value.is_some() || waits())
    }
}

/// What the record of a control batch says; `None` if it has none or it is not known here.
pub fn control_kind(batch: BatchView<'_>) -> Result<Option<ControlType>, BatchError> {
    // Control batches hold some ten bytes and are never compressed by anybody.
    const CONTROL_BODY_MAX: usize = 64 << 10;
    let mut kind = None;
    let mut scratch = Vec::new();
    batch.walk(CONTROL_BODY_MAX, &mut scratch, |index, record| {
        if index == 0 {
            kind = record.key.and_then(ControlType::of_key);
        }
    })?;
    Ok(kind)
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
