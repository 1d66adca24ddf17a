//! What a partition remembers of one producer, and what it can tell from a batch about it.
//!
//! Owns the rules of idempotence for a single producer: epochs, sequences, duplicates among its
//! last batches, its open transaction (KIP-98, KIP-360, KIP-890). Lives on the partition's shard;
//! pure. Never knows other producers; that is `producers`.

use smallvec::SmallVec;

use crate::types::Offset;
use crate::wire::batch::{
    Batch, BatchError, BatchView, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, SplitBatch,
    decrement_sequence,
};
use crate::wire::batch_builder::{ControlType, end_txn_coordinator_epoch};
use crate::wire::record::RecordRef;

/// Batches remembered per producer, so that a duplicate of any of them is recognised: the most a
/// Java producer has in flight per connection with idempotence on.
pub const BATCHES_KEPT: usize = 5;

/// The decision an end-transaction marker carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndTxn {
    pub commit: bool,
    pub coordinator_epoch: i32,
    /// Milliseconds.
    pub timestamp: i64,
}

/// What a batch is to the producer state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchContent {
    Data,
    Marker(EndTxn),
    /// A control batch that ends no transaction, or whose record compaction has removed.
    OtherControl,
}

/// What the producer state needs to know of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchFacts {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub last_sequence: i32,
    pub base_offset: Offset,
    pub last_offset: Offset,
    /// Milliseconds.
    pub max_timestamp: i64,
    pub transactional: bool,
    pub content: BatchContent,
}

macro_rules! facts {
    ($batch:expr, $content:expr) => {
        BatchFacts {
            producer_id: $batch.producer_id(),
            producer_epoch: $batch.producer_epoch(),
            base_sequence: $batch.base_sequence(),
            last_sequence: $batch.last_sequence(),
            base_offset: $batch.base_offset(),
            last_offset: $batch.last_offset(),
            max_timestamp: $batch.max_timestamp(),
            transactional: $batch.is_transactional(),
            content: $content,
        }
    };
}

impl BatchFacts {
    /// Reads a batch, and the marker in it if it is a control batch of a producer.
    pub fn of(batch: &Batch) -> Result<BatchFacts, BatchError> {
        BatchFacts::of_view(batch.view())
    }

    pub fn of_view(batch: BatchView<'_>) -> Result<BatchFacts, BatchError> {
        let content = match batch.is_control() {
            false => BatchContent::Data,
            true => read_control(batch)?,
        };
        Ok(facts!(batch, content))
    }

    /// The same of a batch whose header a leader has just filled in.
    pub fn of_split(batch: &SplitBatch) -> Result<BatchFacts, BatchError> {
        match batch.is_control() {
            false => Ok(facts!(batch, BatchContent::Data)),
            // Markers are small and rare; putting one together costs nothing that matters.
            true => BatchFacts::of(&batch.to_batch()),
        }
    }

    pub fn has_producer(&self) -> bool {
        self.producer_id >= 0
    }
}

/// The largest control record body that is looked into; real ones are some ten bytes.
const CONTROL_BODY_MAX: usize = 64 * 1024;

fn read_control(batch: BatchView<'_>) -> Result<BatchContent, BatchError> {
    let mut marker = None;
    let mut scratch = Vec::new();
    let base = batch.base_timestamp();
    batch.walk(CONTROL_BODY_MAX, &mut scratch, |index, record| {
        if index == 0 {
            marker = read_marker(&record, base);
        }
    })?;
    Ok(marker.map_or(BatchContent::OtherControl, BatchContent::Marker))
}

fn read_marker(record: &RecordRef<'_>, base_timestamp: i64) -> Option<EndTxn> {
    let commit = match ControlType::of_key(record.key?)? {
        ControlType::Commit => true,
        ControlType::Abort => false,
        _ => return None,
    };
    Some(EndTxn {
        commit,
        coordinator_epoch: end_txn_coordinator_epoch(record.value?)?,
        timestamp: base_timestamp.wrapping_add(record.timestamp_delta),
    })
}

/// One remembered batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchMeta {
    pub last_sequence: i32,
    pub last_offset: Offset,
    /// Last offset minus first offset.
    pub offset_delta: i32,
    /// Milliseconds.
    pub timestamp: i64,
}

impl BatchMeta {
    pub fn first_sequence(&self) -> i32 {
        decrement_sequence(self.last_sequence, self.offset_delta)
    }

    pub fn first_offset(&self) -> Offset {
        Offset(
            self.last_offset
                .0
                .saturating_sub(i64::from(self.offset_delta)),
        )
    }
}

/// Why a batch does not continue what its producer wrote before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SequenceFault {
    /// A new epoch starts at sequence 0.
    NewEpoch { current_epoch: i16 },
    /// The same epoch continues behind the last sequence.
    Gap { last: i32 },
}

/// What is remembered of one producer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProducerEntry {
    /// -1 while unknown.
    pub producer_epoch: i16,
    /// Of the last marker; -1 while unknown.
    pub coordinator_epoch: i32,
    /// Of the last batch or marker, milliseconds; expiry counts from it.
    pub last_timestamp: i64,
    /// The first offset of the open transaction.
    pub txn_first_offset: Option<Offset>,
    /// The last batches of this epoch, oldest first.
    pub(super) batches: SmallVec<[BatchMeta; BATCHES_KEPT]>,
}

impl Default for ProducerEntry {
    fn default() -> Self {
        ProducerEntry {
            producer_epoch: NO_PRODUCER_EPOCH,
            coordinator_epoch: -1,
            last_timestamp: NO_TIMESTAMP,
            txn_first_offset: None,
            batches: SmallVec::new(),
        }
    }
}

impl ProducerEntry {
    /// The remembered batches, oldest first.
    pub fn batches(&self) -> &[BatchMeta] {
        &self.batches
    }

    pub fn last_batch(&self) -> Option<&BatchMeta> {
        self.batches.last()
    }

    /// -1 when no batch of this epoch is remembered.
    pub fn last_sequence(&self) -> i32 {
        self.last_batch()
            .map_or(NO_SEQUENCE, |batch| batch.last_sequence)
    }

    pub(super) fn has_open_txn(&self, epoch: i16) -> bool {
        self.txn_first_offset.is_some() && self.producer_epoch == epoch
    }

    /// The remembered batch that `facts` repeats: same epoch, same first and last sequence.
    pub(super) fn duplicate_of(&self, facts: &BatchFacts) -> Option<&BatchMeta> {
        if facts.producer_epoch != self.producer_epoch {
            return None;
        }
        let wanted = (facts.base_sequence, facts.last_sequence);
        let mut batches = self.batches.iter();
        batches.find(|batch| (batch.first_sequence(), batch.last_sequence) == wanted)
    }

    /// Whether `facts` starts where it must. A producer of unknown epoch, whose records retention
    /// may have removed, may start anywhere.
    pub(super) fn check_sequence(&self, facts: &BatchFacts) -> Result<(), SequenceFault> {
        let first = facts.base_sequence;
        if self.producer_epoch == NO_PRODUCER_EPOCH {
            return Ok(());
        }
        if facts.producer_epoch != self.producer_epoch {
            return match first {
                0 => Ok(()),
                _ => Err(SequenceFault::NewEpoch {
                    current_epoch: self.producer_epoch,
                }),
            };
        }
        let last = self.last_sequence();
        let follows = i64::from(first) == i64::from(last) + 1;
        match follows || (first == 0 && last == i32::MAX) {
            true => Ok(()),
            false => Err(SequenceFault::Gap { last }),
        }
    }

    fn move_to_epoch(&mut self, epoch: i16) {
        if self.producer_epoch != epoch {
            self.producer_epoch = epoch;
            self.batches.clear();
        }
    }

    /// Remembers a data batch; the first offset of the transaction it opens, if it does.
    pub(super) fn add_batch(&mut self, facts: &BatchFacts) -> Option<Offset> {
        self.move_to_epoch(facts.producer_epoch);
        let delta = facts.last_offset.0.saturating_sub(facts.base_offset.0);
        self.remember(BatchMeta {
            last_sequence: facts.last_sequence,
            last_offset: facts.last_offset,
            offset_delta: i32::try_from(delta).unwrap_or(i32::MAX),
            timestamp: facts.max_timestamp,
        });
        self.last_timestamp = facts.max_timestamp;
        if !facts.transactional || self.txn_first_offset.is_some() {
            return None;
        }
        self.txn_first_offset = Some(facts.base_offset);
        self.txn_first_offset
    }

    pub(super) fn remember(&mut self, batch: BatchMeta) {
        if self.batches.len() == BATCHES_KEPT {
            self.batches.remove(0);
        }
        self.batches.push(batch);
    }

    /// Takes a marker; the first offset of the transaction it ends, if one was open.
    pub(super) fn end_txn(&mut self, epoch: i16, marker: &EndTxn) -> Option<Offset> {
        self.move_to_epoch(epoch);
        self.coordinator_epoch = marker.coordinator_epoch;
        self.last_timestamp = marker.timestamp;
        self.txn_first_offset.take()
    }
}
