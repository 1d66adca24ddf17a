//! Reading metadata batches back into an image: the records of `__cluster_metadata` and of its
//! snapshots. Pure; never touches the disk.

use super::image::{ApplyError, Image};
use super::record::{MetadataRecord, RecordError};
use crate::types::{LeaderEpoch, Offset};
use crate::wire::batch::{Batch, BatchError, BatchView, Batches};
use bytes::Bytes;

/// Inflated size of one stored batch; the controller's own are far smaller.
const INFLATED_MAX: usize = 64 << 20;
/// Where a batch says its magic, and the only one there is in a metadata log.
const MAGIC_AT: usize = 16;
const MAGIC: u8 = 2;

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
    /// Each leader epoch with the offset at which it began.
    epochs: Vec<(LeaderEpoch, Offset)>,
}

impl Replay {
    /// Goes on behind a snapshot that holds everything below `end`.
    pub fn from_snapshot(
        bytes: Bytes,
        end: Offset,
        epoch: LeaderEpoch,
    ) -> Result<Replay, ReplayError> {
        let mut replay = Replay::default();
        let length = bytes.len() as u64;
        let read = replay.batches(bytes)?;
        if read < length {
            let needed = length as usize;
            let source = BatchError::Partial {
                needed,
                available: read as usize,
            };
            return Err(ReplayError::Batch {
                position: read,
                source,
            });
        }
        // Offsets inside a snapshot count its records; what stands for the log is its end.
        replay.image.set_offset(end.0 - 1);
        replay.next_offset = end;
        replay.epochs = vec![(epoch, Offset::ZERO)];
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

    /// Applies one segment's batches; returns how many bytes of it are whole batches. What is
    /// behind is the write that a crash cut short: every batch was synced before the next was
    /// written, so only the last can be torn. Damage before a whole batch is an error.
    pub fn batches(&mut self, bytes: Bytes) -> Result<u64, ReplayError> {
        let mut position = 0;
        for batch in Batches::new(bytes.clone()) {
            let source = match batch {
                Ok(batch) => match batch.check_crc() {
                    Ok(()) => {
                        self.batch(&batch, position)?;
                        position += batch.total_size() as u64;
                        continue;
                    }
                    Err(source) => source,
                },
                Err(source) => source,
            };
            let behind = bytes.slice(position as usize + 1..);
            return match holds_a_batch(&behind, self.next_offset) {
                true => Err(ReplayError::Batch { position, source }),
                false => Ok(position),
            };
        }
        let behind = bytes.slice((position as usize + 1).min(bytes.len())..);
        if holds_a_batch(&behind, self.next_offset) {
            let source = BatchError::Partial {
                needed: bytes.len() + 1,
                available: bytes.len(),
            };
            return Err(ReplayError::Batch { position, source });
        }
        Ok(position)
    }

    fn batch(&mut self, batch: &Batch, position: u64) -> Result<(), ReplayError> {
        // A segment may begin below the snapshot it is read behind.
        if batch.last_offset() < self.next_offset {
            return Ok(());
        }
        if batch.base_offset() != self.next_offset {
            let (expected, found) = (self.next_offset, batch.base_offset());
            return Err(ReplayError::Gap {
                position,
                expected,
                found,
            });
        }
        let epoch = batch.partition_leader_epoch();
        if self.epochs.last().is_none_or(|(last, _)| epoch > *last) {
            self.epochs.push((epoch, batch.base_offset()));
        }
        if !batch.is_control() {
            let bad = |source| ReplayError::Batch { position, source };
            for record in batch.records(INFLATED_MAX).map_err(bad)? {
                let record = record.map_err(bad)?;
                let offset = record.offset.0;
                let record = MetadataRecord::decode(record.value.unwrap_or_default())
                    .map_err(|source| ReplayError::Record { offset, source })?;
                self.apply(offset, &record)?;
            }
        }
        self.next_offset = batch.last_offset().next();
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

    pub fn epochs(&self) -> &[(LeaderEpoch, Offset)] {
        &self.epochs
    }

    /// The image; and whether the log ends inside a transaction, which then has not happened and
    /// must be aborted in the log.
    pub fn finish(self) -> (Image, bool) {
        match self.before_transaction {
            Some(before) => (before, true),
            None => (self.image, false),
        }
    }
}

/// Whether a whole batch that could follow in the log stands anywhere in `bytes`.
fn holds_a_batch(bytes: &[u8], next_offset: Offset) -> bool {
    let candidates = bytes
        .iter()
        .enumerate()
        .skip(MAGIC_AT)
        .filter(|(_, byte)| **byte == MAGIC);
    candidates
        .map(|(at, _)| &bytes[at - MAGIC_AT..])
        .any(|rest| {
            BatchView::parse(rest).is_ok_and(|(batch, _)| {
                batch.base_offset() >= next_offset && batch.check_crc().is_ok()
            })
        })
}
