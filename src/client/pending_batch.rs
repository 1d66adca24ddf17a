//! One batch of a producer, from its first record to its settlement.
//!
//! Pure. Owns the records and what was sent of them: a retry sends the same bytes, unless the batch
//! is numbered anew.

use std::rc::Rc;

use bytes::Bytes;

use super::delivery::{BatchOutcome, Delivery};
use super::producer_record::ProducerRecord;
use super::sequences::Sequence;
use super::topic_partition::TopicPartition;
use crate::rt::Instant;
use crate::rt::sync::Permit;
use crate::wire::ErrorCode;
use crate::wire::batch::Batch;
use crate::wire::batch_builder::{BatchBuilder, BuildError, Header};

/// A batch that collects records or waits to be sent.
pub(super) struct PendingBatch {
    /// Rises with every batch.
    pub(super) id: u64,
    pub(super) key: TopicPartition,
    /// Until it is built.
    pub(super) builder: Option<BatchBuilder>,
    /// What was sent and with which number, so that a retry sends the same bytes.
    pub(super) built: Option<(Bytes, Option<Sequence>)>,
    pub(super) sequence: Option<Sequence>,
    /// Bytes before compression.
    pub(super) size: usize,
    pub(super) outcome: Rc<BatchOutcome>,
    pub(super) created: Instant,
    /// Times it was sent.
    pub(super) attempts: u32,
    pub(super) retry_at: Instant,
    /// Set once an attempt ended without the broker saying what became of it: the records may be
    /// in the log.
    pub(super) in_doubt: Option<ErrorCode>,
    pub(super) records: i32,
    /// Its share of `buffer.memory`, given back with it.
    pub(super) _memory: Option<Permit>,
}

impl PendingBatch {
    /// [`PendingBatch::size`] after one more record; more than any limit once it is built.
    pub(super) fn size_with(&self, record: &ProducerRecord, headers: &[Header<'_>]) -> usize {
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        self.builder
            .as_ref()
            .map_or(usize::MAX, |builder| builder.size_with(key, value, headers))
    }

    /// Appends a record to a batch that is not built.
    pub(super) fn push(
        &mut self,
        record: &ProducerRecord,
        headers: &[Header<'_>],
        timestamp: i64,
    ) -> Result<Delivery, BuildError> {
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        if let Some(builder) = &mut self.builder {
            builder.append(timestamp, key, value, headers)?;
            self.size = builder.estimated_size();
        }
        let index = self.records;
        self.records += 1;
        Ok(Delivery {
            outcome: self.outcome.clone(),
            index,
            timestamp,
        })
    }

    /// The batch as it goes out; the same bytes every time unless its number has changed.
    pub(super) fn build(&mut self) -> Result<Bytes, BuildError> {
        let builder = match (&self.built, self.builder.take()) {
            (Some((bytes, stamped)), _) if *stamped == self.sequence => return Ok(bytes.clone()),
            // Numbered anew, which is rare: the records are taken out of what was sent.
            (Some((bytes, _)), _) => reopen(bytes)?,
            (None, builder) => builder.unwrap_or_default(),
        };
        let builder = match self.sequence {
            Some(Sequence { identity, base }) => {
                builder.with_producer(identity.id, identity.epoch, base)
            }
            None => builder,
        };
        let bytes = builder.build()?;
        self.built = Some((bytes.clone(), self.sequence));
        Ok(bytes)
    }
}

/// A builder with the records and the codec of a batch of ours.
fn reopen(bytes: &Bytes) -> Result<BatchBuilder, BuildError> {
    let (batch, _) = Batch::parse(bytes).map_err(|_| BuildError::Empty)?;
    let codec = batch.codec().unwrap_or_default();
    let mut builder = BatchBuilder::new().with_codec(codec, None);
    // Written here, so it inflates to what it was: below the largest batch there can be.
    let records = batch
        .records(i32::MAX as usize)
        .map_err(|_| BuildError::Empty)?;
    for record in records {
        let record = record.map_err(|_| BuildError::Empty)?;
        let headers: Vec<_> = record.headers().collect();
        let headers: Vec<Header<'_>> = headers
            .iter()
            .map(|(key, value)| (&key[..], value.as_deref()))
            .collect();
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        builder.append(record.timestamp, key, value, &headers)?;
    }
    Ok(builder)
}
