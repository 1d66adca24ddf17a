//! Batches of transactions that are not open on their partition: before one is appended, the
//! transaction's coordinator is asked whether the partition is in the transaction, or told to add
//! it (KIP-890), so that no batch can be left behind by a transaction that has ended already. Runs
//! on the shard that owns the partitions. Where the transaction is open there, nobody is asked and
//! nothing here costs a produce more than a look.
//!
//! Order: while a batch waits for the coordinator, the next ones of its producer on that partition
//! line up behind it. Nothing else has to wait: sequences are a producer's own.

use super::Shard;
use super::append::{AppendPart, AppendRequest, Produced, Round, append_as};
use super::questions::{Question, Questions};
use crate::log::VerificationGuard;
use crate::replica::partition::Partition;
use crate::rt;
use crate::rt::sync::oneshot;
use crate::types::PartitionId;
use crate::wire::batch::{BatchView, NO_PRODUCER_ID, NO_SEQUENCE};
use crate::wire::{ErrorCode, Str};
use ahash::AHashMap;
use indexmap::IndexSet;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// First Produce version that understands TRANSACTION_ABORTABLE.
const PRODUCE_ABORTABLE_FROM: i16 = 11;
/// First Produce version whose partitions the broker adds to the transaction (transactions v2).
const PRODUCE_ADDS_FROM: i16 = 12;
/// The same of TxnOffsetCommit.
const COMMIT_ABORTABLE_FROM: i16 = 4;
const COMMIT_ADDS_FROM: i16 = 5;

/// A batch with the transactional bit, as its header says who wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionalBatch {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
}

impl TransactionalBatch {
    /// `None` if the first batch is not transactional, or none at all: the append says so.
    pub fn of(records: &[u8]) -> Option<TransactionalBatch> {
        let (batch, _) = BatchView::parse(records).ok()?;
        batch.is_transactional().then(|| TransactionalBatch {
            producer_id: batch.producer_id(),
            producer_epoch: batch.producer_epoch(),
            base_sequence: batch.base_sequence(),
        })
    }

    fn has_producer(&self) -> bool {
        self.producer_id > NO_PRODUCER_ID
    }
}

/// The transactional batches of one request must be of one transaction.
#[derive(Debug)]
pub struct OneProducer {
    has_transactional_id: bool,
    is_anonymous: bool,
    producer: Option<(i64, i16)>,
    is_mixed: bool,
}

impl OneProducer {
    pub fn new(has_transactional_id: bool) -> OneProducer {
        OneProducer {
            has_transactional_id,
            is_anonymous: false,
            producer: None,
            is_mixed: false,
        }
    }

    /// Takes a batch of the request; `counts` unless its partition is refused anyway.
    pub fn saw(&mut self, batch: &TransactionalBatch, counts: bool) {
        self.is_anonymous |= !self.has_transactional_id;
        if counts && batch.has_producer() {
            let producer = (batch.producer_id, batch.producer_epoch);
            self.is_mixed |= *self.producer.get_or_insert(producer) != producer;
        }
    }

    /// The error of every partition of the request.
    pub fn refusal(&self) -> Option<ErrorCode> {
        match self {
            // Without an id nobody could have allowed it.
            OneProducer {
                is_anonymous: true, ..
            } => Some(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            OneProducer { is_mixed: true, .. } => Some(ErrorCode::INVALID_PRODUCER_ID_MAPPING),
            _ => None,
        }
    }
}

/// What a client of some version wants of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Whether the partitions are in the transaction.
    Verify,
    /// The same, and the client knows what to do with TRANSACTION_ABORTABLE.
    VerifyOrAbort,
    /// To add them to it (transactions v2).
    Add,
}

impl Asking {
    pub fn of_produce(version: i16) -> Asking {
        match version {
            PRODUCE_ADDS_FROM.. => Asking::Add,
            PRODUCE_ABORTABLE_FROM.. => Asking::VerifyOrAbort,
            _ => Asking::Verify,
        }
    }

    pub fn of_txn_offset_commit(version: i16) -> Asking {
        match version {
            COMMIT_ADDS_FROM.. => Asking::Add,
            COMMIT_ABORTABLE_FROM.. => Asking::VerifyOrAbort,
            _ => Asking::Verify,
        }
    }

    /// The coordinator's word on a partition as this client is to hear it.
    fn heard(self, error: ErrorCode) -> ErrorCode {
        match error {
            ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
            ErrorCode::TRANSACTION_ABORTABLE if self == Asking::Verify => {
                ErrorCode::INVALID_TXN_STATE
            }
            error => error,
        }
    }

    /// The answer to a produce that could not be verified. Old clients do not expect what may be
    /// wrong with a coordinator; NOT_ENOUGH_REPLICAS they repeat, without asking for metadata.
    fn refused(self, error: ErrorCode) -> Produced {
        let unable = || Produced {
            message: Some(format!(
                "Unable to verify the partition has been added to the transaction. Underlying \
                 error: {error}"
            )),
            ..Produced::error(ErrorCode::NOT_ENOUGH_REPLICAS)
        };
        match error {
            ErrorCode::INVALID_TXN_STATE => Produced {
                message: Some("Partition was not added to the transaction".to_owned()),
                ..Produced::error(error)
            },
            ErrorCode::CONCURRENT_TRANSACTIONS if self != Asking::Add => unable(),
            ErrorCode::NETWORK_EXCEPTION
            | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode::COORDINATOR_NOT_AVAILABLE
            | ErrorCode::NOT_COORDINATOR
            // Another partition was asked for in the same breath, and is not known there yet.
            | ErrorCode::OPERATION_NOT_ATTEMPTED => unable(),
            error => Produced::error(error),
        }
    }
}

/// The transaction that batches say they belong to.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub transactional_id: Str,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub asking: Asking,
}

/// A producer on a partition.
type LineKey = (PartitionId, i64);

/// What a shard verifies.
pub(super) struct Verifications {
    /// `transaction.partition.verification.enable`.
    enabled: Cell<bool>,
    /// The last of those in line, by producer and partition. As many as there are requests in
    /// progress that wait for a coordinator; their memory permits bound them.
    lines: RefCell<AHashMap<LineKey, Last>>,
    tickets: Cell<u64>,
    pub(super) questions: Questions,
}

/// The end of a line.
struct Last {
    ticket: u64,
    gone: oneshot::Receiver<()>,
}

impl Default for Verifications {
    fn default() -> Verifications {
        Verifications {
            enabled: Cell::new(true),
            lines: RefCell::default(),
            tickets: Cell::new(0),
            questions: Questions::default(),
        }
    }
}

impl Verifications {
    pub(super) fn set_enabled(&self, enabled: bool) {
        self.enabled.set(enabled);
    }

    /// Whether a client that asks so is verified at all: adding is never left out.
    fn is_asked(&self, asking: Asking) -> bool {
        self.enabled.get() || asking == Asking::Add
    }

    fn has_line(&self, key: &LineKey) -> bool {
        self.lines.borrow().contains_key(key)
    }

    fn line_up(&self, key: LineKey) -> (u64, Option<oneshot::Receiver<()>>, oneshot::Sender<()>) {
        let ticket = self.tickets.get();
        self.tickets.set(ticket + 1);
        let (leaves, gone) = oneshot::channel();
        let before = self.lines.borrow_mut().insert(key, Last { ticket, gone });
        (ticket, before.map(|last| last.gone), leaves)
    }

    fn leave(&self, key: &LineKey, ticket: u64) {
        let mut lines = self.lines.borrow_mut();
        if lines.get(key).is_some_and(|last| last.ticket == ticket) {
            lines.remove(key);
        }
    }
}

/// A request's place in a producer's line; whoever is behind it goes on when it is dropped.
struct Turn {
    shard: Rc<Shard>,
    key: LineKey,
    ticket: u64,
    before: Option<oneshot::Receiver<()>>,
    _leaves: oneshot::Sender<()>,
}

impl Turn {
    fn take(shard: &Rc<Shard>, key: LineKey) -> Turn {
        let (ticket, before, leaves) = shard.verifications.line_up(key);
        Turn {
            shard: shard.clone(),
            key,
            ticket,
            before,
            _leaves: leaves,
        }
    }

    async fn come(&mut self) {
        if let Some(before) = self.before.take() {
            // It says nothing, it goes away.
            let _ = before.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.shard.verifications.leave(&self.key, self.ticket);
    }
}

impl Shard {
    /// Whether a batch has to wait for its transaction's coordinator, or behind one that does.
    pub(super) fn must_verify(
        &self,
        request: &AppendRequest,
        part: &AppendPart,
        partition: &Partition,
    ) -> bool {
        let Some(batch) = part.transactional.filter(TransactionalBatch::has_producer) else {
            return false;
        };
        let asking = Asking::of_produce(request.version);
        if request.transactional_id.is_none() || !self.verifications.is_asked(asking) {
            return false;
        }
        let (id, epoch) = (batch.producer_id, batch.producer_epoch);
        let is_open = partition.log.has_open_transaction(id, epoch);
        !is_open || self.verifications.has_line(&(part.partition, id))
    }

    /// Appends batches that must be verified first, once they are; gives their answers.
    pub(super) fn append_when_verified(
        self: &Rc<Self>,
        request: AppendRequest,
        parts: Vec<(Rc<Partition>, AppendPart)>,
    ) -> rt::Task<Vec<(usize, Produced)>> {
        // A partition named twice does not wait for itself.
        let keys: IndexSet<LineKey> = parts
            .iter()
            .filter_map(|(_, part)| Some((part.partition, part.transactional?.producer_id)))
            .collect();
        let mut turns: Vec<Turn> = keys.into_iter().map(|key| Turn::take(self, key)).collect();
        let shard = self.clone();
        rt::spawn(async move {
            for turn in &mut turns {
                turn.come().await;
            }
            let guards = shard.verify_produce(&request, &parts).await;
            let mut round = Round::new(request.acks, parts.len());
            for ((partition, part), guard) in parts.into_iter().zip(guards) {
                match guard {
                    Ok(guard) => {
                        let records = part.records.unwrap_or_default();
                        let how = append_as(&request, guard);
                        round.append(&shard, partition, part.slot, records, how);
                    }
                    Err(refused) => round.refuse(part.slot, refused),
                }
            }
            drop(turns);
            round.acknowledged(&shard, request.timeout).await
        })
    }

    /// The guards of a request's batches, all of one producer.
    async fn verify_produce(
        self: &Rc<Self>,
        request: &AppendRequest,
        parts: &[(Rc<Partition>, AppendPart)],
    ) -> Vec<Result<VerificationGuard, Produced>> {
        let asking = Asking::of_produce(request.version);
        let batch = parts.iter().find_map(|(_, part)| part.transactional);
        let (Some(batch), Some(transactional_id)) = (batch, &request.transactional_id) else {
            return vec![Ok(VerificationGuard::NONE); parts.len()];
        };
        let transaction = Transaction {
            transactional_id: transactional_id.clone(),
            producer_id: batch.producer_id,
            producer_epoch: batch.producer_epoch,
            asking,
        };
        let targets: Vec<(Rc<Partition>, i32)> = parts
            .iter()
            .map(|(partition, part)| {
                let sequence = part.transactional.map_or(NO_SEQUENCE, |b| b.base_sequence);
                (partition.clone(), sequence)
            })
            .collect();
        let outcomes = self.verify_patiently(&transaction, &targets).await;
        let told = |outcome: Result<_, _>| outcome.map_err(|error| asking.refused(error));
        outcomes.into_iter().map(told).collect()
    }

    /// A transaction that has just ended may still be completed by its coordinator: who adds
    /// partitions to the next one tries again for a while.
    async fn verify_patiently(
        self: &Rc<Self>,
        transaction: &Transaction,
        targets: &[(Rc<Partition>, i32)],
    ) -> Vec<Result<VerificationGuard, ErrorCode>> {
        let adds = transaction.asking == Asking::Add;
        let is_early = |outcomes: &Vec<_>| adds && outcomes.iter().any(is_concurrent);
        self.patiently(is_early, async || self.verify(transaction, targets).await)
            .await
    }

    /// The guard for a batch of `transaction` that a coordinator of this shard is about to append
    /// to `partition`, or the error of the partition or of the transaction's coordinator.
    pub async fn verify_commit(
        self: &Rc<Self>,
        transaction: &Transaction,
        partition: &Rc<Partition>,
    ) -> Result<VerificationGuard, ErrorCode> {
        if !self.verifications.is_asked(transaction.asking) {
            return Ok(VerificationGuard::NONE);
        }
        let target = (partition.clone(), NO_SEQUENCE);
        let mut outcomes = self.verify_patiently(transaction, &[target]).await;
        outcomes.pop().unwrap_or(Ok(VerificationGuard::NONE))
    }

    /// Starts the verification on each partition, then asks the coordinator about those where the
    /// transaction is not open.
    async fn verify(
        self: &Rc<Self>,
        transaction: &Transaction,
        targets: &[(Rc<Partition>, i32)],
    ) -> Vec<Result<VerificationGuard, ErrorCode>> {
        let mut outcomes: Vec<_> = targets
            .iter()
            .map(|(partition, sequence)| start(partition, transaction, *sequence))
            .collect();
        let asked: Vec<usize> = (0..outcomes.len())
            .filter(|at| outcomes[*at].is_ok_and(|guard| !guard.is_none()))
            .collect();
        if asked.is_empty() {
            return outcomes;
        }
        let named = |at: &usize| (targets[*at].0.topic.clone(), targets[*at].0.id.index);
        let question = Question {
            transactional_id: transaction.transactional_id.clone(),
            producer_id: transaction.producer_id,
            producer_epoch: transaction.producer_epoch,
            adds: transaction.asking == Asking::Add,
            partitions: asked.iter().map(named).collect(),
        };
        let errors = self.ask_about_transaction(question).await;
        for (at, error) in asked.into_iter().zip(errors) {
            let error = transaction.asking.heard(error);
            if error != ErrorCode::NONE {
                outcomes[at] = Err(error);
            }
        }
        outcomes
    }
}

fn is_concurrent(outcome: &Result<VerificationGuard, ErrorCode>) -> bool {
    *outcome == Err(ErrorCode::CONCURRENT_TRANSACTIONS)
}

fn start(
    partition: &Partition,
    transaction: &Transaction,
    sequence: i32,
) -> Result<VerificationGuard, ErrorCode> {
    partition.check_epoch(-1, true)?;
    let started = partition.log.start_verification(
        transaction.producer_id,
        transaction.producer_epoch,
        sequence,
        transaction.asking == Asking::Add,
        rt::wall_ms(),
    );
    started.map_err(|error| error.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::batch_builder::BatchBuilder;

    fn batch(producer_id: i64, epoch: i16, transactional: bool) -> bytes::Bytes {
        let mut builder = BatchBuilder::new().with_producer(producer_id, epoch, 4);
        builder.transactional = transactional;
        builder.append(0, None, Some(b"x"), &[]).unwrap();
        builder.build().unwrap()
    }

    #[test]
    fn an_ordinary_batch_is_never_taken_for_a_transactional_one() {
        assert_eq!(TransactionalBatch::of(&batch(7, 1, false)), None);
        assert_eq!(TransactionalBatch::of(b"no batch"), None);
        let seen = TransactionalBatch::of(&batch(7, 1, true));
        let expected = TransactionalBatch {
            producer_id: 7,
            producer_epoch: 1,
            base_sequence: 4,
        };
        assert_eq!(seen, Some(expected));
    }

    #[test]
    fn batches_of_two_transactions_or_of_none_do_not_get_in_by_one_request() {
        let of = |id, epoch| TransactionalBatch {
            producer_id: id,
            producer_epoch: epoch,
            base_sequence: 0,
        };
        let verdict = |named, batches: &[(TransactionalBatch, bool)]| {
            let mut one = OneProducer::new(named);
            for (batch, counts) in batches {
                one.saw(batch, *counts);
            }
            one.refusal()
        };
        let mapping = Some(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
        assert_eq!(verdict(true, &[(of(7, 1), true), (of(7, 1), true)]), None);
        assert_eq!(verdict(true, &[(of(7, 1), true), (of(8, 1), false)]), None);
        assert_eq!(
            verdict(true, &[(of(7, 1), true), (of(8, 1), true)]),
            mapping
        );
        assert_eq!(
            verdict(true, &[(of(7, 1), true), (of(7, 2), true)]),
            mapping
        );
        let unauthorized = Some(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED);
        assert_eq!(verdict(false, &[(of(7, 1), false)]), unauthorized);
        assert_eq!(verdict(false, &[]), None);
    }

    #[test]
    fn what_a_client_hears_of_the_coordinator_is_what_its_version_can_act_on() {
        let told = |version, error| {
            let asking = Asking::of_produce(version);
            asking.refused(asking.heard(error)).error
        };
        for version in [9, 11, 12] {
            for error in [
                ErrorCode::NETWORK_EXCEPTION,
                ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode::COORDINATOR_NOT_AVAILABLE,
                ErrorCode::NOT_COORDINATOR,
            ] {
                assert_eq!(told(version, error), ErrorCode::NOT_ENOUGH_REPLICAS);
            }
            assert_eq!(
                told(version, ErrorCode::PRODUCER_FENCED),
                ErrorCode::INVALID_PRODUCER_EPOCH
            );
            assert_eq!(
                told(version, ErrorCode::INVALID_PRODUCER_ID_MAPPING),
                ErrorCode::INVALID_PRODUCER_ID_MAPPING
            );
        }
        let busy = ErrorCode::CONCURRENT_TRANSACTIONS;
        assert_eq!(told(11, busy), ErrorCode::NOT_ENOUGH_REPLICAS);
        assert_eq!(told(12, busy), busy);
        let abortable = ErrorCode::TRANSACTION_ABORTABLE;
        assert_eq!(told(10, abortable), ErrorCode::INVALID_TXN_STATE);
        assert_eq!(told(11, abortable), abortable);
        let commit = Asking::of_txn_offset_commit;
        assert_eq!(commit(3).heard(abortable), ErrorCode::INVALID_TXN_STATE);
        assert_eq!(commit(4).heard(abortable), abortable);
        assert_eq!((commit(4), commit(5)), (Asking::VerifyOrAbort, Asking::Add));
    }

    #[test]
    fn who_lines_up_waits_for_the_one_before_and_leaves_no_line_behind() {
        let verifications = Verifications::default();
        let id = PartitionId {
            topic: crate::types::Uuid::from_halves(1, 2),
            index: 0,
        };
        let (first, before_first, leaves) = verifications.line_up((id, 7));
        assert!(before_first.is_none() && verifications.has_line(&(id, 7)));
        let (second, before_second, _) = verifications.line_up((id, 7));
        assert!(before_second.is_some());
        assert!(!verifications.has_line(&(id, 8)));
        verifications.leave(&(id, 7), first);
        drop(leaves);
        assert!(
            verifications.has_line(&(id, 7)),
            "one is still in the line of those who come"
        );
        verifications.leave(&(id, 7), second);
        assert!(!verifications.has_line(&(id, 7)));
    }
}
