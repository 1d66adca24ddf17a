//! The producers of one partition: duplicates, sequences, epochs and transactions.
//!
//! Owns the partition's producer state, its snapshot bytes, its open transactions (and with them
//! the first unstable offset) and the transactions under verification. Lives on the partition's
//! shard; pure: it decides, the log writes. Followers and recovery replay batches with
//! [`apply`](Producers::apply) and check nothing; a leader calls
//! [`check`](Producers::check) first. Never touches a file or a clock.
//!
//! Sources: KIP-98 (idempotence, transactions), KIP-360 (producers of unknown state), KIP-447,
//! KIP-890 (verification, epoch bump per transaction).

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::cleaner::filter::LastRecord;
use super::txn_index::AbortedTxn;
use super::validator::Origin;
use crate::types::Offset;
use crate::wire::batch::Batch;

#[path = "producer_entry.rs"]
mod entry;
#[path = "producer_snapshot.rs"]
mod snapshot;
#[path = "producer_verdict.rs"]
mod verdict;

pub use entry::{BATCHES_KEPT, BatchContent, BatchFacts, BatchMeta, EndTxn, ProducerEntry};
pub use snapshot::SnapshotError;
pub use verdict::{CompletedTxn, ProducerDescription, ProducerError, Verdict, VerificationGuard};

use entry::SequenceFault;

/// Producers remembered per partition, some 250 bytes each: 16 MiB at the most. At the limit the
/// longest silent ones without an open transaction are forgotten early, as if they had expired.
pub const PRODUCERS_MAX: usize = 65_536;
/// What is forgotten at once at that limit, so that the search for the oldest is paid once in so
/// many new producers.
const EVICTION_SHARE: usize = 16;
/// A transaction open for this much longer than the longest timeout allows has been left hanging.
const LATE_TXN_MS: i64 = 5 * 60 * 1000;

/// The configuration that concerns producer state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerLimits {
    /// `producer.id.expiration.ms`.
    pub expiration_ms: i64,
    /// `transaction.partition.verification.enable`.
    pub verify_transactions: bool,
    pub producers_max: usize,
}

impl Default for ProducerLimits {
    fn default() -> Self {
        ProducerLimits {
            expiration_ms: 24 * 60 * 60 * 1000,
            verify_transactions: true,
            producers_max: PRODUCERS_MAX,
        }
    }
}

/// A transaction the coordinator is being asked about.
#[derive(Clone, Copy, Debug)]
struct Verification {
    guard: VerificationGuard,
    started_ms: i64,
    /// The lowest sequence seen while verifying: a higher one may not get in first, or the lower
    /// one would be out of order for ever.
    lowest_sequence: i32,
    epoch: i16,
    /// The producer speaks transactions v2, whose every transaction starts at sequence 0.
    epoch_bump: bool,
}

/// The producers of one partition.
#[derive(Clone, Debug)]
pub struct Producers {
    limits: ProducerLimits,
    /// At most `producers_max`, except on a follower of a leader with a higher limit.
    producers: HashMap<i64, ProducerEntry, ahash::RandomState>,
    /// At most `producers_max`.
    verifications: HashMap<i64, Verification, ahash::RandomState>,
    guards_given: u64,
    /// First offset and producer of every open transaction.
    ongoing: BTreeMap<Offset, i64>,
    /// First offset and marker offset of transactions whose marker is not below the high
    /// watermark yet. No more than there are markers in the unreplicated tail of the log.
    unreplicated: BTreeMap<Offset, Offset>,
    end_offset: Offset,
    snapshot_offset: Offset,
}

impl Producers {
    /// No producers, for an empty log or one to be replayed from its start.
    pub fn new(expiration_ms: i64) -> Producers {
        Producers::with_limits(ProducerLimits {
            expiration_ms,
            ..ProducerLimits::default()
        })
    }

    /// The producers of the snapshot taken at `offset`, from which the log is then replayed.
    /// Those that expired meanwhile are left out.
    pub fn from_snapshot(
        bytes: &[u8],
        offset: Offset,
        expiration_ms: i64,
        now_ms: i64,
    ) -> Result<Producers, SnapshotError> {
        let mut producers = Producers::new(expiration_ms);
        producers.load(bytes, offset, now_ms)?;
        Ok(producers)
    }

    pub fn with_limits(limits: ProducerLimits) -> Producers {
        Producers {
            limits,
            producers: HashMap::default(),
            verifications: HashMap::default(),
            guards_given: 0,
            ongoing: BTreeMap::new(),
            unreplicated: BTreeMap::new(),
            end_offset: Offset::ZERO,
            snapshot_offset: Offset::ZERO,
        }
    }

    /// Takes new limits; they hold from the next batch or expiry on.
    pub fn set_limits(&mut self, limits: ProducerLimits) {
        self.limits = limits;
    }

    /// Judges a batch about to be appended at `facts.base_offset`, in Kafka's order: duplicate,
    /// transaction, epoch, sequence. `transaction_version` is that of the WriteTxnMarkers request
    /// (0 where there is none). Changes nothing.
    pub fn check(
        &self,
        facts: &BatchFacts,
        origin: Origin,
        guard: VerificationGuard,
        transaction_version: i16,
    ) -> Result<Verdict, ProducerError> {
        if !facts.has_producer() || origin == Origin::Replication {
            return Ok(Verdict::New);
        }
        let known = self.producers.get(&facts.producer_id);
        if origin == Origin::Client
            && let Some(batch) = known.and_then(|entry| entry.duplicate_of(facts))
        {
            return Ok(Verdict::Duplicate {
                first_offset: batch.first_offset(),
                last_offset: batch.last_offset,
                timestamp: batch.timestamp,
            });
        }
        self.check_transaction(facts, known, origin, guard)?;
        match &facts.content {
            BatchContent::Data => self.check_data(facts, known, origin)?,
            BatchContent::Marker(marker) => {
                if let Some(entry) = known {
                    check_marker(facts, marker, entry, transaction_version)?;
                }
            }
            BatchContent::OtherControl => {}
        }
        if known.is_none()
            && self.producers.len() >= self.limits.producers_max
            && self.ongoing.len() >= self.producers.len()
        {
            return Err(ProducerError::TooManyProducers(self.producers.len()));
        }
        Ok(Verdict::New)
    }

    /// A transactional batch belongs to a transaction that is open here, or to one that the
    /// coordinator has just confirmed.
    fn check_transaction(
        &self,
        facts: &BatchFacts,
        known: Option<&ProducerEntry>,
        origin: Origin,
        guard: VerificationGuard,
    ) -> Result<(), ProducerError> {
        let asked = matches!(origin, Origin::Client | Origin::Coordinator);
        if !asked
            || !facts.transactional
            || known.is_some_and(|entry| entry.has_open_txn(facts.producer_epoch))
        {
            return Ok(());
        }
        // The epoch comes first: a stale producer can recover, a lost transaction cannot.
        check_epoch(facts, known)?;
        if !self.limits.verify_transactions || facts.content != BatchContent::Data {
            return Ok(());
        }
        let current = self.verifications.get(&facts.producer_id);
        match current.is_some_and(|current| current.guard == guard) {
            true => Ok(()),
            false => Err(ProducerError::NotVerified {
                producer_id: facts.producer_id,
            }),
        }
    }

    fn check_data(
        &self,
        facts: &BatchFacts,
        known: Option<&ProducerEntry>,
        origin: Origin,
    ) -> Result<(), ProducerError> {
        check_epoch(facts, known)?;
        let (producer_id, first) = (facts.producer_id, facts.base_sequence);
        if origin == Origin::Client {
            if let Some(verification) = self.verifications.get(&producer_id) {
                let stateless = known.is_none_or(|entry| entry.batches().is_empty());
                if verification.epoch_bump && first != 0 && stateless {
                    return Err(ProducerError::SequenceWithoutState { producer_id, first });
                }
                let lowest = verification.lowest_sequence;
                if first > lowest {
                    return Err(ProducerError::SequenceBeyondVerified {
                        producer_id,
                        first,
                        lowest,
                    });
                }
            }
            match known.map_or(Ok(()), |entry| entry.check_sequence(facts)) {
                Ok(()) => {}
                Err(SequenceFault::Gap { last }) => {
                    return Err(ProducerError::SequenceGap {
                        producer_id,
                        first,
                        last,
                    });
                }
                Err(SequenceFault::NewEpoch { current_epoch }) => {
                    let epoch = facts.producer_epoch;
                    return Err(ProducerError::SequenceOfNewEpoch {
                        producer_id,
                        epoch,
                        first,
                        current_epoch,
                    });
                }
            }
        }
        let open = known.is_some_and(|entry| entry.txn_first_offset.is_some());
        match open && !facts.transactional {
            true => Err(ProducerError::NotInTransaction { producer_id }),
            false => Ok(()),
        }
    }

    /// Takes a batch that is in the log now. Returns the transaction it ended, if it did.
    /// Batches are applied in log order, each once.
    pub fn apply(&mut self, facts: &BatchFacts) -> Option<CompletedTxn> {
        self.end_offset = facts.last_offset.next();
        if !facts.has_producer() || facts.content == BatchContent::OtherControl {
            return None;
        }
        if facts.transactional {
            self.settle_verification(facts);
        }
        if !self.producers.contains_key(&facts.producer_id) {
            self.make_room();
        }
        let entry = self.producers.entry(facts.producer_id).or_default();
        match &facts.content {
            BatchContent::Data => {
                if let Some(first) = entry.add_batch(facts) {
                    self.ongoing.insert(first, facts.producer_id);
                }
                None
            }
            BatchContent::Marker(marker) => {
                let first_offset = entry.end_txn(facts.producer_epoch, marker)?;
                self.ongoing.remove(&first_offset);
                self.unreplicated.insert(first_offset, facts.base_offset);
                let next_open = self.ongoing.first_key_value().map(|(first, _)| *first);
                Some(CompletedTxn {
                    producer_id: facts.producer_id,
                    first_offset,
                    last_offset: facts.base_offset,
                    aborted: !marker.commit,
                    last_stable_offset: next_open.unwrap_or(facts.base_offset.next()),
                })
            }
            BatchContent::OtherControl => None,
        }
    }

    /// A transaction has opened here or ended: what was verified before proves nothing any more.
    /// But a marker that comes a second time is of the transaction before the one that is verified
    /// now, if each has an epoch of its own; that one it does not touch.
    fn settle_verification(&mut self, facts: &BatchFacts) {
        let is_later = |current: &Verification| {
            let is_marker = matches!(facts.content, BatchContent::Marker(_));
            is_marker && current.epoch_bump && current.epoch >= facts.producer_epoch
        };
        let current = self.verifications.get(&facts.producer_id);
        if current.is_some_and(|current| !is_later(current)) {
            self.verifications.remove(&facts.producer_id);
        }
    }

    /// [`apply`](Self::apply) for a batch that the log holds already, as recovery and followers
    /// meet it: the row it adds to the transaction index. A control record that cannot be read is
    /// passed over, as no replay can mend it.
    pub fn replay(&mut self, batch: &Batch) -> Option<AbortedTxn> {
        match BatchFacts::of(batch) {
            Ok(facts) => self.apply(&facts)?.aborted_row(),
            Err(_) => {
                self.end_offset = batch.last_offset().next();
                None
            }
        }
    }

    fn make_room(&mut self) {
        if self.producers.len() < self.limits.producers_max {
            return;
        }
        let idle = self
            .producers
            .iter()
            .filter(|(_, entry)| entry.txn_first_offset.is_none());
        let mut idle: Vec<_> = idle
            .map(|(id, entry)| (entry.last_timestamp, *id))
            .collect();
        idle.sort_unstable();
        let share = (self.limits.producers_max / EVICTION_SHARE).max(1);
        for (_, id) in idle.into_iter().take(share) {
            self.producers.remove(&id);
        }
    }

    /// Forgets the oldest verifications at the limit: made-up producers must not keep the others
    /// out. One that is forgotten while its coordinator is asked is refused and tried again.
    fn make_room_to_verify(&mut self) {
        if self.verifications.len() < self.limits.producers_max {
            return;
        }
        let all = self.verifications.iter();
        let mut all: Vec<_> = all.map(|(id, one)| (one.guard.0, *id)).collect();
        all.sort_unstable();
        let share = (self.limits.producers_max / EVICTION_SHARE).max(1);
        for (_, id) in all.into_iter().take(share) {
            self.verifications.remove(&id);
        }
    }

    /// Starts (or finds) the verification of the transaction that a batch of `producer_id` starting
    /// at `sequence` belongs to. [`VerificationGuard::NONE`] means that the transaction is open
    /// here and nobody need be asked. `epoch_bump`: the producer speaks transactions v2.
    pub fn start_verification(
        &mut self,
        producer_id: i64,
        epoch: i16,
        sequence: i32,
        epoch_bump: bool,
        now_ms: i64,
    ) -> Result<VerificationGuard, ProducerError> {
        if let Some(entry) = self.producers.get(&producer_id) {
            let current = entry.producer_epoch;
            if epoch < current {
                return Err(ProducerError::StaleEpoch {
                    producer_id,
                    epoch,
                    current,
                });
            }
            if entry.has_open_txn(epoch) {
                return Ok(VerificationGuard::NONE);
            }
        }
        if !self.verifications.contains_key(&producer_id) {
            self.make_room_to_verify();
        }
        let guards_given = &mut self.guards_given;
        let verification = self.verifications.entry(producer_id).or_insert_with(|| {
            *guards_given += 1;
            Verification {
                guard: VerificationGuard(*guards_given),
                started_ms: now_ms,
                lowest_sequence: sequence,
                epoch,
                epoch_bump,
            }
        });
        if epoch == verification.epoch {
            verification.lowest_sequence = verification.lowest_sequence.min(sequence);
        } else if epoch > verification.epoch {
            (verification.epoch, verification.lowest_sequence) = (epoch, sequence);
        }
        Ok(verification.guard)
    }

    /// Whether a transaction of this producer and epoch is open on the partition.
    pub fn has_open_txn(&self, producer_id: i64, epoch: i16) -> bool {
        self.producers
            .get(&producer_id)
            .is_some_and(|entry| entry.has_open_txn(epoch))
    }

    /// The first offset whose fate is not known everywhere: of an open transaction, or of one
    /// whose marker is not below the high watermark. The last stable offset is the lower of this
    /// and the high watermark.
    pub fn first_unstable_offset(&self) -> Option<Offset> {
        let undecided = self.first_undecided_offset();
        let unreplicated = self.unreplicated.first_key_value().map(|(first, _)| *first);
        undecided.into_iter().chain(unreplicated).min()
    }

    /// The first offset of the oldest open transaction; compaction must not pass it.
    pub fn first_undecided_offset(&self) -> Option<Offset> {
        self.ongoing.first_key_value().map(|(first, _)| *first)
    }

    /// The high watermark moved: markers below it are known everywhere.
    pub fn on_high_watermark(&mut self, high_watermark: Offset) {
        self.unreplicated
            .retain(|_, marker| *marker >= high_watermark);
    }

    /// The log start moved.
    pub fn on_log_start(&mut self, log_start: Offset) {
        self.on_high_watermark(log_start);
        self.end_offset = self.end_offset.max(log_start);
    }

    /// Whether the oldest open transaction has been silent for longer than any may.
    pub fn has_late_txn(&self, now_ms: i64, max_txn_timeout_ms: i64) -> bool {
        let oldest = self.ongoing.values().next();
        let entry = oldest.and_then(|id| self.producers.get(id));
        entry.is_some_and(|entry| {
            let silent = now_ms.saturating_sub(entry.last_timestamp);
            entry.last_timestamp > 0 && silent > max_txn_timeout_ms.saturating_add(LATE_TXN_MS)
        })
    }

    /// Forgets producers silent for `producer.id.expiration.ms`, unless a transaction of theirs is
    /// open, and verifications as old.
    pub fn expire(&mut self, now_ms: i64) {
        let expiration = self.limits.expiration_ms;
        self.producers
            .retain(|_, entry| !is_expired(entry, now_ms, expiration));
        let age = |started: i64| now_ms.saturating_sub(started);
        self.verifications
            .retain(|_, verification| age(verification.started_ms) < expiration);
    }

    /// Forgets everything: the log is to be replayed from its start.
    pub fn clear(&mut self) {
        self.reset(Offset::ZERO);
    }

    /// Forgets everything: the log is to be replayed from `start`.
    pub fn reset(&mut self, start: Offset) {
        self.producers.clear();
        self.ongoing.clear();
        self.unreplicated.clear();
        (self.end_offset, self.snapshot_offset) = (start, start);
    }

    /// Replaces the state by that of the snapshot taken at `offset`, from which the log is then
    /// replayed. On an error nothing changes.
    pub fn load(&mut self, bytes: &[u8], offset: Offset, now_ms: i64) -> Result<(), SnapshotError> {
        let entries = snapshot::decode(bytes)?;
        self.reset(offset);
        for (id, entry) in entries {
            if is_expired(&entry, now_ms, self.limits.expiration_ms) {
                continue;
            }
            if let Some(first) = entry.txn_first_offset {
                self.ongoing.insert(first, id);
            }
            self.producers.insert(id, entry);
        }
        Ok(())
    }

    /// The snapshot file as of [`end_offset`](Self::end_offset), which names it.
    pub fn encode_snapshot(&self) -> Bytes {
        let mut entries: Vec<_> = self
            .producers
            .iter()
            .map(|(id, entry)| (*id, entry))
            .collect();
        entries.sort_unstable_by_key(|(id, _)| *id);
        snapshot::encode(entries.into_iter())
    }

    /// Whether a snapshot now would say anything the last one does not.
    pub fn needs_snapshot(&self) -> bool {
        self.end_offset > self.snapshot_offset
    }

    /// The snapshot of `offset` is in its file.
    pub fn on_snapshot_taken(&mut self, offset: Offset) {
        self.snapshot_offset = self.snapshot_offset.max(offset);
    }

    /// The offset behind the last applied batch.
    pub fn end_offset(&self) -> Offset {
        self.end_offset
    }

    /// The snapshots of another directory count from here on, the last of which is of `offset`.
    pub fn snapshot_lies_at(&mut self, offset: Offset) {
        self.snapshot_offset = offset.min(self.end_offset);
    }

    /// Where the last snapshot stands.
    pub fn snapshot_offset(&self) -> Offset {
        self.snapshot_offset
    }

    /// The last trace of each producer in the log, for compaction to leave.
    pub fn last_records(&self) -> HashMap<i64, LastRecord> {
        let trace = |(id, entry): (&i64, &ProducerEntry)| {
            let data_offset = entry.last_batch().map(|batch| batch.last_offset);
            let epoch = entry.producer_epoch;
            (*id, LastRecord { epoch, data_offset })
        };
        self.producers.iter().map(trace).collect()
    }

    pub fn entry(&self, producer_id: i64) -> Option<&ProducerEntry> {
        self.producers.get(&producer_id)
    }

    pub fn len(&self) -> usize {
        self.producers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// All producers in the order of their ids, as DescribeProducers lists them.
    pub fn describe(&self) -> Vec<ProducerDescription> {
        let describe = |(id, entry): (&i64, &ProducerEntry)| ProducerDescription {
            producer_id: *id,
            producer_epoch: entry.producer_epoch,
            last_sequence: entry.last_sequence(),
            last_timestamp: entry.last_timestamp,
            coordinator_epoch: entry.coordinator_epoch,
            current_txn_start_offset: entry.txn_first_offset.map_or(-1, |offset| offset.0),
        };
        let mut all: Vec<_> = self.producers.iter().map(describe).collect();
        all.sort_unstable_by_key(|producer| producer.producer_id);
        all
    }
}

fn is_expired(entry: &ProducerEntry, now_ms: i64, expiration_ms: i64) -> bool {
    let silent = now_ms.saturating_sub(entry.last_timestamp);
    entry.txn_first_offset.is_none() && silent >= expiration_ms
}

fn stale(facts: &BatchFacts, current: i16) -> ProducerError {
    ProducerError::StaleEpoch {
        producer_id: facts.producer_id,
        epoch: facts.producer_epoch,
        current,
    }
}

fn check_epoch(facts: &BatchFacts, known: Option<&ProducerEntry>) -> Result<(), ProducerError> {
    match known {
        Some(entry) if facts.producer_epoch < entry.producer_epoch => {
            Err(stale(facts, entry.producer_epoch))
        }
        _ => Ok(()),
    }
}

/// Under transactions v2 a marker carries an epoch above that of the transaction it ends; only a
/// repeated marker, whose transaction has ended, may carry the current one (KAFKA-19999), and a
/// producer whose epochs are used up has no other. Before v2 the current epoch is the right one.
fn check_marker(
    facts: &BatchFacts,
    marker: &EndTxn,
    entry: &ProducerEntry,
    transaction_version: i16,
) -> Result<(), ProducerError> {
    let (epoch, current) = (facts.producer_epoch, entry.producer_epoch);
    let must_be_above =
        transaction_version >= 2 && entry.txn_first_offset.is_some() && epoch != i16::MAX;
    if epoch < current || (epoch == current && must_be_above) {
        return Err(stale(facts, current));
    }
    if marker.coordinator_epoch < entry.coordinator_epoch {
        return Err(ProducerError::CoordinatorFenced {
            producer_id: facts.producer_id,
            epoch: marker.coordinator_epoch,
            current: entry.coordinator_epoch,
        });
    }
    Ok(())
}

#[cfg(test)]
#[path = "producers_tests.rs"]
mod tests;
