//! Owns how batches enter the offset map: the records of the dirty part of a log that have a key
//! and are not of an aborted transaction. Pure; it moves between the shard and the threads that
//! compute for it. It never looks at what lies before the dirty part.

use super::super::validator::STORED_INFLATED_BYTES_MAX;
use super::filter::control_kind;
use super::offset_map::OffsetMap;
use super::transactions::CleanedTransactions;
use crate::types::Offset;
use crate::wire::batch::{BatchError, BatchView};
use crate::wire::record::RecordRef;

/// Fills a map.
pub struct MapBuild {
    pub map: OffsetMap,
    transactions: CleanedTransactions,
    /// First dirty offset.
    from: Offset,
    scratch: Vec<u8>,
}

impl MapBuild {
    /// `transactions` are those that reach past `from`.
    pub fn new(map: OffsetMap, transactions: CleanedTransactions, from: Offset) -> MapBuild {
        MapBuild {
            map,
            transactions,
            from,
            scratch: Vec::new(),
        }
    }

    /// Takes whole batches in the order of the log. True if the map is full: it covers what it
    /// says it covers, and nothing more may be added.
    ///
    /// # Errors
    /// A damaged batch.
    pub fn take(&mut self, mut piece: &[u8]) -> Result<bool, BatchError> {
        while !piece.is_empty() {
            let (batch, rest) = BatchView::parse(piece)?;
            piece = rest;
            if batch.last_offset() < self.from {
                continue;
            }
            batch.check_crc()?;
            if self.take_batch(batch)? {
                return Ok(true);
            }
            self.map.covers(batch.last_offset());
        }
        Ok(false)
    }

    fn take_batch(&mut self, batch: BatchView<'_>) -> Result<bool, BatchError> {
        let (id, last_offset) = (batch.producer_id(), batch.last_offset());
        if batch.is_control() {
            let empty = batch.record_count() == 0;
            self.transactions
                .on_control(id, control_kind(batch)?, last_offset, empty);
            return Ok(false);
        }
        if self
            .transactions
            .on_data(id, batch.is_transactional(), last_offset)
        {
            return Ok(false);
        }
        let mut rest = batch.inflate(STORED_INFLATED_BYTES_MAX, &mut self.scratch)?;
        for index in 0..batch.record_count() {
            let (record, tail) =
                RecordRef::read(rest).map_err(|reason| BatchError::Record { index, reason })?;
            rest = tail;
            let offset = Offset(batch.base_offset().0 + i64::from(record.offset_delta));
            let Some(key) = record.key.filter(|_| offset >= self.from) else {
                continue;
            };
            if self.map.is_full() {
                return Ok(true);
            }
            if self.map.latest().is_some_and(|latest| offset <= latest) {
                let reason = "its offset is not past the one before it";
                return Err(BatchError::Record { index, reason });
            }
            self.map.put(key, offset);
        }
        Ok(false)
    }
}
