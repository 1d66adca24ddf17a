//! The state of one partition of `__transaction_state`: the transactional ids that live there.
//! Runs on the core that owns the partition, synchronously: a command gives effects, an append's
//! outcome and written markers give more. It never waits, writes, reads a clock or makes ids;
//! requests that must wait are kept as tokens.
//!
//! A transactional id has at most one step under way. The step shows when its record is below the
//! high watermark ([`TransactionCoordinatorShard::append_done`]), whatever time that takes: a
//! producer that was told it took too long asks again and is answered CONCURRENT_TRANSACTIONS
//! until the outcome is known, for the record may yet count.

use ahash::{AHashMap, RandomState};
use indexmap::IndexMap;

use super::effects::{Answer, AppendId, Effect, Effects, Markers};
use super::partitions::Partitions;
use super::record::{self, RecordError};
use super::state::State;
use super::transaction::{Producer, Transaction};
use crate::coordinator::ReplyToken;
use crate::wire::batch::{Batch, BatchError};
use crate::wire::{ErrorCode, Str};

/// The most a compressed batch may inflate to while loading, as in the group coordinator.
const INFLATED_BATCH_BYTES_MAX: usize = 128 << 20;

/// What Kafka calls the transaction coordinator's configuration, in Kafka's units and with its
/// defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionSettings {
    /// `transaction.max.timeout.ms`.
    pub max_timeout_ms: i32,
    /// `transactional.id.expiration.ms`.
    pub id_expiration_ms: i64,
}

impl Default for TransactionSettings {
    fn default() -> Self {
        TransactionSettings {
            max_timeout_ms: 900_000,
            id_expiration_ms: 7 * 24 * 60 * 60 * 1_000,
        }
    }
}

/// Bounds that Kafka does not have. Each is far above honest use and exists so that a client
/// cannot grow a shard's memory without end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionLimits {
    /// Transactional ids in one partition: some 300 bytes each. Over it, InitProducerId of a new
    /// id is answered POLICY_VIOLATION.
    pub ids: usize,
    /// Ids that are looked at, some 50 µs, before the shard does something else.
    pub ids_per_step: usize,
    /// Of those, ids that are ended or removed because it is time: each is an append.
    pub due_per_step: usize,
}

impl Default for TransactionLimits {
    fn default() -> Self {
        TransactionLimits {
            ids: 200_000,
            ids_per_step: 1_000,
            due_per_step: 50,
        }
    }
}

/// Whether the partition's coordinator may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Records are being replayed; commands are answered COORDINATOR_LOAD_IN_PROGRESS.
    Loading,
    Active,
    /// Leadership has gone; commands are answered NOT_COORDINATOR.
    Unloaded,
}

/// Why a stored batch cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("offset {offset}: {error}")]
    Record { offset: i64, error: RecordError },
    #[error(transparent)]
    Batch(#[from] BatchError),
}

/// One transactional id with what is under way for it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) now: Transaction,
    pub(super) pending: Option<Pending>,
    /// The producer was fenced here and the record of it failed: its epoch is used up already.
    pub(super) fence_failed: bool,
}

/// What a transactional id is on its way to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// A record is being stored.
    Storing,
    /// The end is decided and told to the partitions.
    Completing,
}

/// What happens when a record is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The producer, or its new partitions.
    Tell,
    /// The end is decided: the markers follow. With `fence` nobody else was asking for it than
    /// the coordinator itself, and whoever waits is to try again.
    WriteMarkers { fence: bool },
    /// All markers are written.
    Complete,
    /// The id is gone.
    Remove,
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) id: Str,
    target: Option<Transaction>,
    then: Then,
    waiting: Option<ReplyToken>,
    failures: u32,
}

/// See the module's words.
#[derive(Debug)]
pub struct TransactionCoordinatorShard {
    pub(super) settings: TransactionSettings,
    pub(super) limits: TransactionLimits,
    pub(super) phase: Phase,
    /// The finalized level of `transaction.version` lets records have tagged fields.
    flexible_records: bool,
    /// In an order that depends only on what happened, so that walks over it repeat in a replay.
    pub(super) ids: IndexMap<Str, Entry, RandomState>,
    /// Ids whose transaction is open, and whose transaction is decided and not over.
    ongoing: usize,
    completing: usize,
    /// At most one for each id.
    in_flight: AHashMap<AppendId, InFlight>,
    next_append: u64,
}

impl TransactionCoordinatorShard {
    /// An empty shard that waits for the records of its partition.
    pub fn new(
        settings: TransactionSettings,
        limits: TransactionLimits,
    ) -> TransactionCoordinatorShard {
        TransactionCoordinatorShard {
            settings,
            limits,
            phase: Phase::Loading,
            flexible_records: false,
            ids: IndexMap::default(),
            ongoing: 0,
            completing: 0,
            in_flight: AHashMap::new(),
            next_append: 0,
        }
    }

    /// The error that answers every command now, if there is one.
    pub fn refusal(&self) -> Option<ErrorCode> {
        match self.phase {
            Phase::Loading => Some(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            Phase::Active => None,
            Phase::Unloaded => Some(ErrorCode::NOT_COORDINATOR),
        }
    }

    /// A transactional id that a producer's request names.
    pub(super) fn entry_of(&self, id: &str) -> Result<&Entry, ErrorCode> {
        if id.is_empty() {
            return Err(ErrorCode::INVALID_REQUEST);
        }
        self.refusal().map_or(Ok(()), Err)?;
        let entry = self.ids.get(id);
        entry.ok_or(ErrorCode::INVALID_PRODUCER_ID_MAPPING)
    }

    /// Whether records may have tagged fields: every coordinator of the cluster reads them.
    pub fn set_flexible_records(&mut self, flexible: bool) {
        self.flexible_records = flexible;
    }

    /// Transactional ids, those whose transaction is open, and those whose transaction is decided
    /// and not over: figures for metrics.
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.ids.len(), self.ongoing, self.completing)
    }

    /// Keeps the counts as an id goes from one state, if it had one, to another, if it stays.
    fn count(&mut self, before: Option<State>, after: Option<State>) {
        let ongoing = |state: Option<State>| usize::from(state == Some(State::Ongoing));
        let completing = |state: Option<State>| usize::from(state.is_some_and(State::is_prepared));
        self.ongoing = self.ongoing + ongoing(after) - ongoing(before);
        self.completing = self.completing + completing(after) - completing(before);
    }

    // ---- life

    /// Replays one stored batch while loading. Without effect if leadership was lost meanwhile.
    ///
    /// # Errors
    /// A record that cannot be read: the partition cannot be coordinated, for what it says may
    /// be that a transaction is decided.
    pub fn replay_batch(&mut self, batch: &Batch) -> Result<(), ReplayError> {
        let view = batch.view();
        if view.is_control() || self.phase != Phase::Loading {
            return Ok(());
        }
        for item in batch.records(INFLATED_BATCH_BYTES_MAX)? {
            let item = item?;
            let Some(key) = item.key else { continue };
            let (id, transaction) =
                record::read(key, item.value).map_err(|error| ReplayError::Record {
                    offset: item.offset.0,
                    error,
                })?;
            let after = transaction.as_ref().map(|now| now.state);
            let before = match transaction {
                Some(now) => {
                    let entry = Entry {
                        now,
                        pending: None,
                        fence_failed: false,
                    };
                    self.ids.insert(id, entry)
                }
                None => self.ids.swap_remove(&id),
            };
            self.count(before.map(|entry| entry.now.state), after);
        }
        Ok(())
    }

    /// Forgets what was replayed: it is about to be read again.
    pub fn start_over(&mut self) {
        if self.phase == Phase::Loading {
            self.ids.clear();
            (self.ongoing, self.completing) = (0, 0);
        }
    }

    /// All records were replayed, and all of them count: commands are accepted, and the markers of
    /// what was decided are written, again if need be. Without effect if leadership was lost
    /// meanwhile.
    pub fn finish_loading(&mut self, now_ms: i64) -> Effects {
        let mut out = Effects::default();
        if self.phase == Phase::Unloaded {
            return out;
        }
        assert_eq!(self.phase, Phase::Loading, "a coordinator loads once");
        self.phase = Phase::Active;
        let decided: Vec<Str> = self
            .ids
            .iter()
            .filter(|(_, entry)| entry.now.state.is_prepared())
            .map(|(id, _)| id.clone())
            .collect();
        for id in decided {
            self.begin_markers(&id, now_ms, &mut out);
        }
        out
    }

    /// Leadership is lost: everything that waits is answered NOT_COORDINATOR. Appends and markers
    /// reported after this have no effect.
    pub fn unload(&mut self) -> Effects {
        let mut out = Effects::default();
        self.phase = Phase::Unloaded;
        self.ids.clear();
        (self.ongoing, self.completing) = (0, 0);
        let mut waiting: Vec<_> = self.in_flight.drain().collect();
        waiting.sort_unstable_by_key(|(id, _)| *id);
        for (_, in_flight) in waiting {
            if let Some(token) = in_flight.waiting {
                out.reply(token, Answer::refused(ErrorCode::NOT_COORDINATOR));
            }
        }
        out
    }

    // ---- steps

    /// Asks for the record of a step to be stored. The step is under way from here on.
    pub(super) fn store(
        &mut self,
        id: &Str,
        target: Option<Transaction>,
        then: Then,
        waiting: Option<ReplyToken>,
        out: &mut Effects,
    ) {
        let record = match record::write(id, target.as_ref(), self.flexible_records) {
            Ok(record) => record,
            Err(_) => {
                // Ids and names come from requests, where they are as short as in records.
                if let Some(token) = waiting {
                    out.reply(token, Answer::refused(ErrorCode::UNKNOWN_SERVER_ERROR));
                }
                return;
            }
        };
        if let Some(entry) = self.ids.get_mut(id) {
            entry.pending = Some(match then {
                Then::Complete => Pending::Completing,
                _ => Pending::Storing,
            });
        }
        let append = AppendId(self.next_append);
        self.next_append += 1;
        self.in_flight.insert(
            append,
            InFlight {
                id: id.clone(),
                target,
                then,
                waiting,
                failures: 0,
            },
        );
        out.push(Effect::Append {
            record,
            then: append,
        });
    }

    /// Reports the outcome of an append: the high watermark has passed it, or nothing of it will
    /// ever count.
    pub fn append_done(
        &mut self,
        append: AppendId,
        outcome: Result<(), ErrorCode>,
        now_ms: i64,
    ) -> Effects {
        let mut out = Effects::default();
        if self.phase != Phase::Active {
            return out;
        }
        let Some(in_flight) = self.in_flight.remove(&append) else {
            return out;
        };
        match outcome {
            Ok(()) => self.stored(in_flight, now_ms, &mut out),
            Err(error) => self.not_stored(append, in_flight, told(error), &mut out),
        }
        out
    }

    fn stored(&mut self, step: InFlight, now_ms: i64, out: &mut Effects) {
        let InFlight {
            id,
            target,
            then,
            waiting,
            ..
        } = step;
        let Some(target) = target else {
            let gone = self.ids.swap_remove(&id);
            self.count(gone.map(|entry| entry.now.state), None);
            return;
        };
        let Some(entry) = self.ids.get(&id) else {
            return;
        };
        self.count(Some(entry.now.state), Some(target.state));
        let Some(entry) = self.ids.get_mut(&id) else {
            return;
        };
        let mut answer = Answer::ok(target.producer_id, target.epoch);
        entry.now = target;
        entry.pending = None;
        match then {
            Then::WriteMarkers { fence } => {
                entry.fence_failed = false;
                let end = entry.now.completed(now_ms);
                answer = match fence {
                    true => Answer::refused(ErrorCode::CONCURRENT_TRANSACTIONS),
                    false => Answer::ok(end.producer_id, end.epoch),
                };
                self.begin_markers(&id, now_ms, out);
            }
            Then::Tell | Then::Complete | Then::Remove => {}
        }
        if let Some(token) = waiting {
            out.reply(token, answer);
        }
    }

    fn not_stored(
        &mut self,
        append: AppendId,
        step: InFlight,
        error: ErrorCode,
        out: &mut Effects,
    ) {
        if let Some(token) = step.waiting {
            out.reply(token, Answer::refused(error));
        }
        let Some(entry) = self.ids.get_mut(&step.id) else {
            return;
        };
        if step.then == Then::Complete {
            // The transaction is over on every partition and only its own record is missing, which
            // nobody asks for again. Where leadership is gone, unloading ends this.
            let record = record::write(&step.id, step.target.as_ref(), self.flexible_records);
            if let Ok(record) = record {
                let failures = step.failures + 1;
                self.in_flight.insert(append, InFlight { failures, ..step });
                out.push(Effect::AppendLater {
                    record,
                    then: append,
                    failures,
                });
                return;
            }
        }
        entry.pending = None;
        if step.then == (Then::WriteMarkers { fence: true }) {
            entry.fence_failed = true;
        }
        // A producer that was never stored does not exist.
        if entry.now.epoch == super::transaction::NO_PRODUCER_EPOCH {
            self.ids.swap_remove(&step.id);
        }
    }

    /// An append takes longer than its producer will wait: whoever waits for it is told. The step
    /// still shows when [`TransactionCoordinatorShard::append_done`] reports success later.
    pub fn append_timed_out(&mut self, append: AppendId) -> Effects {
        let mut out = Effects::default();
        let waiting = self
            .in_flight
            .get_mut(&append)
            .and_then(|step| step.waiting.take());
        if let Some(token) = waiting {
            let error = ErrorCode::COORDINATOR_NOT_AVAILABLE;
            out.reply(token, Answer::refused(error));
        }
        out
    }

    // ---- markers

    /// Tells the partitions of a decided transaction how it ends.
    fn begin_markers(&mut self, id: &Str, now_ms: i64, out: &mut Effects) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        entry.pending = Some(Pending::Completing);
        let now = &entry.now;
        if now.partitions.is_empty() {
            self.complete(id, now_ms, out);
            return;
        }
        out.push(Effect::WriteMarkers(Markers {
            transactional_id: id.clone(),
            producer: Producer {
                id: now.producer_id,
                epoch: now.epoch,
            },
            commit: now.state == State::PrepareCommit,
            transaction_version: now.client_version.0 as i8,
            partitions: now.partitions.clone(),
        }));
    }

    /// These partitions of a transaction have their marker, or are gone and need none. The last
    /// ones complete it.
    pub fn markers_written(
        &mut self,
        id: &Str,
        producer: Producer,
        written: &Partitions,
        now_ms: i64,
    ) -> Effects {
        let mut out = Effects::default();
        let Some(entry) = self.ids.get_mut(id) else {
            return out;
        };
        let now = &mut entry.now;
        let is_it = now.state.is_prepared()
            && (now.producer_id, now.epoch) == (producer.id, producer.epoch)
            && entry.pending == Some(Pending::Completing)
            && !now.partitions.is_empty();
        if !is_it {
            return out;
        }
        for (topic, index) in written.iter() {
            now.partitions.remove(topic, index);
        }
        if now.partitions.is_empty() {
            self.complete(id, now_ms, &mut out);
        }
        out
    }

    fn complete(&mut self, id: &Str, now_ms: i64, out: &mut Effects) {
        if let Some(entry) = self.ids.get(id) {
            let target = entry.now.completed(now_ms);
            self.store(id, Some(target), Then::Complete, None, out);
        }
    }
}

/// The error that a producer is told when the transaction state topic refused an append: what is
/// right about that partition would mislead it about its own.
fn told(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        | ErrorCode::NOT_ENOUGH_REPLICAS
        | ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND
        | ErrorCode::REQUEST_TIMED_OUT => ErrorCode::COORDINATOR_NOT_AVAILABLE,
        ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::KAFKA_STORAGE_ERROR => {
            ErrorCode::NOT_COORDINATOR
        }
        ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE => {
            ErrorCode::UNKNOWN_SERVER_ERROR
        }
        other => other,
    }
}
