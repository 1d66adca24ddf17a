//! Walking forward: bytes into batches, a batch into records.
//!
//! Owns the two iterators and where they stop. Pure, any core. Never yields anything behind the
//! first thing that is not what it should be.

use bytes::Bytes;

use super::{Batch, BatchError, BatchView, TimestampType};
use crate::types::Offset;
use crate::wire::record::{RecordRef, RecordView};

/// Cuts bytes into batches. Ends at the end of the bytes or at a partial tail, which
/// [`rest`](Self::rest) then holds; yields an error once where the bytes are no batch.
pub struct Batches {
    rest: Bytes,
    failed: bool,
}

impl Batches {
    pub fn new(bytes: Bytes) -> Batches {
        Batches {
            rest: bytes,
            failed: false,
        }
    }

    /// What has not been cut yet.
    pub fn rest(&self) -> &Bytes {
        &self.rest
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match Batch::parse(&self.rest) {
            Ok((batch, rest)) => {
                self.rest = rest;
                Some(Ok(batch))
            }
            Err(error) if error.is_partial() => None,
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// Iterates over the records of one batch; ends after the first error.
pub struct RecordIter {
    body: Bytes,
    at: usize,
    index: i32,
    count: i32,
    failed: bool,
    base_offset: Offset,
    base_timestamp: i64,
    append_time: Option<i64>,
}

impl RecordIter {
    /// Iterates over the `count` records of `batch` in `body`, its inflated body.
    pub(super) fn new(batch: BatchView<'_>, count: i32, body: Bytes) -> RecordIter {
        let append_time = match batch.timestamp_type() {
            TimestampType::CreateTime => None,
            TimestampType::LogAppendTime => Some(batch.max_timestamp()),
        };
        RecordIter {
            body,
            at: 0,
            index: 0,
            count,
            failed: false,
            base_offset: batch.base_offset(),
            base_timestamp: batch.base_timestamp(),
            append_time,
        }
    }

    fn read(&mut self) -> Result<RecordView, BatchError> {
        let rest = &self.body[self.at..];
        if rest.is_empty() {
            return Err(BatchError::RecordCount {
                declared: self.count,
                found: self.index,
            });
        }
        let (record, tail) = RecordRef::read(rest).map_err(|reason| BatchError::Record {
            index: self.index,
            reason,
        })?;
        self.at = self.body.len() - tail.len();
        self.index += 1;
        let mut view = RecordView::share(&record, &self.body);
        view.offset = Offset(
            self.base_offset
                .0
                .wrapping_add(i64::from(record.offset_delta)),
        );
        view.timestamp = self
            .append_time
            .unwrap_or_else(|| self.base_timestamp.wrapping_add(record.timestamp_delta));
        Ok(view)
    }
}

impl Iterator for RecordIter {
    type Item = Result<RecordView, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        if self.index < self.count {
            let record = self.read();
            self.failed = record.is_err();
            return Some(record);
        }
        self.failed = true;
        match self.body.len() - self.at {
            0 => None,
            bytes => Some(Err(BatchError::RecordsLeftOver {
                declared: self.count,
                bytes,
            })),
        }
    }
}
