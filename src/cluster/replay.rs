//! Reading metadata batches back into an image: the records of `__cluster_metadata` and of its
//! snapshots. Pure; never touches the disk.

use super::image::{ApplyError, Image};
use super::record::{MetadataRecord, RecordError};
use crate::types::Offset;
use crate::wire::batch::{Batch, BatchError, Batches};
use bytes::Bytes;

/// Inflated size of one stored batch; the controller's own are far smaller.
const INFLATED_MAX: usize = 64 << 20;

/// Why batches are not a metadata log.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("position {position}: {source}")]
    Batch { position: u64, source: BatchError },
    #[error("position {position}: offset {found} where {expected} was expected")]
    Gap {
        position: u64,
        expected: Offset,
        found: Offset,
    },
    #[error("offset {offset}: {source}")]
    Record { offset: i64, source: RecordError },
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// What has been read so far.
#[derive(Default)]
pub struct Replay {
    image: Image,
    /// The image before the transaction that is open (KIP-868).
    before_transaction: Option<Image>,
    next_offset: Offset,
}

impl Replay {
    /// Goes on behind a snapshot that holds everything below `end`.
    pub fn from_snapshot(bytes: Bytes, end: Offset) -> Result<Replay, ReplayError> {
        let mut replay = Replay::default();
        replay.batches(bytes)?;
        // Offsets inside a snapshot count its records; what stands for the log is its end.
        replay.image.set_offset(end.0 - 1);
        replay.next_offset = end;
        Ok(replay)
    }

    /// The records of a snapshot, as they are.
    pub fn records(bytes: Bytes) -> Result<Vec<MetadataRecord>, ReplayError> {
        let mut records = Vec::new();
        let mut position = 0;
        for batch in Batches::new(bytes) {
            let bad = |source| ReplayError::Batch { position, source };
            let batch = batch.map_err(bad)?;
            batch.check_crc().map_err(bad)?;
            if !batch.is_control() {
                for record in batch.records(INFLATED_MAX).map_err(bad)? {
                    let record = record.map_err(bad)?;
                    let offset = record.offset.0;
                    let record = MetadataRecord::decode(record.value.unwrap_or_default())
                        .map_err(|source| ReplayError::Record { offset, source })?;
                    records.push(record);
                }
            }
            position += batch.total_size() as u64;
        }
        Ok(records)
    }

    /// Applies batches that follow one another; all of `bytes` must be whole batches.
    fn batches(&mut self, bytes: Bytes) -> Result<(), ReplayError> {
        let length = bytes.len();
        let mut position = 0;
        for batch in Batches::new(bytes) {
            let bad = |source| ReplayError::Batch { position, source };
            let batch = batch.map_err(bad)?;
            batch.check_crc().map_err(bad)?;
            self.batch(&batch)?;
            position += batch.total_size() as u64;
        }
        if position < length as u64 {
            let source = BatchError::Partial {
                needed: length + 1,
                available: length,
            };
            return Err(ReplayError::Batch { position, source });
        }
        Ok(())
    }

    /// Applies the batch that comes next; its checksum has been verified.
    pub fn batch(&mut self, batch: &Batch) -> Result<(), ReplayError> {
        if batch.base_offset() != self.next_offset {
            return Err(ReplayError::Gap {
                position: 0,
                expected: self.next_offset,
                found: batch.base_offset(),
            });
        }
        if !batch.is_control() {
            let bad = |source| ReplayError::Batch {
                position: 0,
                source,
            };
            for record in batch.records(INFLATED_MAX).map_err(bad)? {
                let record = record.map_err(bad)?;
                let offset = record.offset.0;
                let record = MetadataRecord::decode(record.value.unwrap_or_default())
                    .map_err(|source| ReplayError::Record { offset, source })?;
                self.apply(offset, &record)?;
            }
        }
        self.next_offset = batch.last_offset().next();
        self.image.set_offset(self.next_offset.0 - 1);
        Ok(())
    }

    fn apply(&mut self, offset: i64, record: &MetadataRecord) -> Result<(), ReplayError> {
        match record {
            MetadataRecord::BeginTransaction(_) => {
                self.before_transaction = Some(self.image.clone())
            }
            MetadataRecord::EndTransaction(_) => self.before_transaction = None,
            MetadataRecord::AbortTransaction(_) => {
                if let Some(before) = self.before_transaction.take() {
                    self.image = before;
                }
            }
            _ => {}
        }
        self.image.apply(offset, record)?;
        Ok(())
    }

    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// The image, and that before the transaction while one is open: it may not happen.
    pub fn image(&self) -> &Image {
        self.before_transaction.as_ref().unwrap_or(&self.image)
    }

    /// Whether the log ends inside a transaction so far.
    pub fn in_transaction(&self) -> bool {
        self.before_transaction.is_some()
    }
}
