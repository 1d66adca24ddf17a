//! The transaction coordinators of one shard: one state machine for each partition of
//! `__transaction_state` that the shard owns. Carries out what the state machine asks for:
//! answers, appends, markers, and looking round from time to time. Decides nothing about
//! transactions itself.

use super::Shard;
use super::coordinator_log::{CoordinatorLog, Stored};
use super::mesh::LocalFuture;
use crate::cluster::{Image, TRANSACTION_VERSION, TRANSACTIONS_TOPIC};
use crate::config::BrokerConfig;
use crate::coordinator::transactions::{
    Answer, AppendId, Effect, Effects, ListFilter, Listed, NeedsProducerId, Partitions, Producer,
    Transaction, TransactionCoordinatorShard, TransactionLimits, TransactionSettings,
    TransactionVersion,
};
use crate::coordinator::{CoordinatorRecord, ReplyToken, partition_for};
use crate::log::{AppendAs, Origin};
use crate::observe::transaction_metrics::TransactionCounts;
use crate::replica::mutation::{self, Mutation};
use crate::replica::partition::Partition;
use crate::rt;
use crate::rt::sync::{Event, oneshot};
use crate::types::PartitionId;
use crate::wire::batch_builder::BatchBuilder;
use crate::wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use crate::wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use crate::wire::{ErrorCode, Str};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long a producer waits for a record of its transaction before it is told to ask again.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a record is appended again whose append failed in a way that passes.
const APPEND_PAUSE: Duration = Duration::from_millis(100);

/// The transaction coordinators of one shard, by partition of the transaction state topic.
pub struct Transactions {
    settings: TransactionSettings,
    limits: TransactionLimits,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
    abort_interval: Duration,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`.
    remove_interval: Duration,
    /// In the order of the partitions, so that answers over all of them repeat in a replay.
    by_partition: RefCell<BTreeMap<i32, Rc<TransactionCoordinator>>>,
}

/// One partition's coordinator with what it needs from the shard.
pub struct TransactionCoordinator {
    pub(super) log: CoordinatorLog,
    state: RefCell<TransactionCoordinatorShard>,
    waiting: RefCell<BTreeMap<ReplyToken, oneshot::Sender<Answer>>>,
    tokens: Cell<u64>,
    stopped: Cell<bool>,
    stop: Event,
}

impl Transactions {
    pub fn new(config: &BrokerConfig) -> Transactions {
        Transactions {
            settings: TransactionSettings {
                max_timeout_ms: config.transaction_max_timeout_ms,
                id_expiration_ms: config.transactional_id_expiration_ms,
            },
            limits: TransactionLimits::default(),
            abort_interval: Duration::from_millis(config.transaction_abort_interval_ms),
            remove_interval: Duration::from_millis(config.transaction_remove_interval_ms),
            by_partition: RefCell::new(BTreeMap::new()),
        }
    }

    /// The coordinator of one partition, if the shard has it.
    pub fn coordinator(&self, partition: i32) -> Option<Rc<TransactionCoordinator>> {
        self.by_partition.borrow().get(&partition).cloned()
    }

    pub fn all(&self) -> Vec<Rc<TransactionCoordinator>> {
        self.by_partition.borrow().values().cloned().collect()
    }

    /// Becomes the coordinator of a partition: answers "loading" until its records are read and
    /// all of them count.
    pub fn take(&self, shard: &Rc<Shard>, partition: Rc<Partition>) {
        let state = TransactionCoordinatorShard::new(self.settings.clone(), self.limits.clone());
        let index = partition.id.index;
        let coordinator = Rc::new(TransactionCoordinator {
            log: CoordinatorLog::new(shard, partition),
            state: RefCell::new(state),
            waiting: RefCell::new(BTreeMap::new()),
            tokens: Cell::new(0),
            stopped: Cell::new(false),
            stop: Event::new(),
        });
        coordinator.on_image(&shard.image());
        self.by_partition
            .borrow_mut()
            .insert(index, coordinator.clone());
        let (abort, remove) = (self.abort_interval, self.remove_interval);
        if coordinator.log.is_empty() {
            // Nothing to read: the first client of a new topic is not told to come back.
            coordinator.begin(abort, remove);
            return;
        }
        rt::spawn(async move {
            if coordinator.load().await {
                coordinator.begin(abort, remove);
            }
        });
    }

    /// Gives a partition up: whoever waits is answered NOT_COORDINATOR.
    pub fn release(&self, partition: i32) {
        let coordinator = self.by_partition.borrow_mut().remove(&partition);
        if let Some(coordinator) = coordinator {
            coordinator.tell(TransactionCoordinatorShard::unload);
            coordinator.stopped.set(true);
            coordinator.stop.notify_all();
        }
    }

    /// What the shard has of transactions now, for its gauges.
    pub fn counts(&self) -> TransactionCounts {
        let mut counts = TransactionCounts::default();
        for coordinator in self.by_partition.borrow().values() {
            let (ids, ongoing, completing) = coordinator.state.borrow().counts();
            counts.ids += ids as u64;
            counts.ongoing += ongoing as u64;
            counts.completing += completing as u64;
        }
        counts
    }

    /// The metadata has changed.
    pub fn on_image(&self, image: &Image) {
        for coordinator in self.by_partition.borrow().values() {
            coordinator.on_image(image);
        }
    }
}

impl TransactionCoordinator {
    /// Whether the shard has given the partition up.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Waits until the shard gives the partition up.
    pub(super) async fn stopped(&self) {
        while !self.stopped.get() {
            self.stop.wait().await;
        }
    }

    /// The epoch under which it decides: that of its partition's leadership.
    pub(super) fn epoch(&self) -> i32 {
        self.log.partition.leader_epoch().0
    }

    /// Gives a command to the state machine, with a producer id if it asks for one, and waits for
    /// its answer.
    pub async fn command(
        self: &Rc<Self>,
        mut run: impl FnMut(
            &mut TransactionCoordinatorShard,
            Option<i64>,
            ReplyToken,
        ) -> Result<Effects, NeedsProducerId>,
    ) -> Result<Answer, ErrorCode> {
        let token = ReplyToken(self.tokens.get());
        self.tokens.set(token.0 + 1);
        let (answered, answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(token, answered);
        let mut fresh = None;
        loop {
            let effects = run(&mut self.state.borrow_mut(), fresh, token);
            match (effects, self.log.shard()) {
                (Ok(effects), _) => {
                    self.carry_out(effects);
                    break;
                }
                (Err(NeedsProducerId), Some(shard)) => match shard.next_producer_id().await {
                    Ok(id) => fresh = Some(id),
                    Err(error) => {
                        self.waiting.borrow_mut().remove(&token);
                        return Err(error);
                    }
                },
                (Err(NeedsProducerId), None) => return Err(ErrorCode::NOT_COORDINATOR),
            }
        }
        answer.await.map_err(|_| ErrorCode::NOT_COORDINATOR)
    }

    /// Asks the state machine something that it answers at once.
    pub fn ask<R>(&self, run: impl FnOnce(&TransactionCoordinatorShard) -> R) -> R {
        run(&self.state.borrow())
    }

    /// Gives the state machine news that nobody waits for.
    pub(super) fn tell(
        self: &Rc<Self>,
        run: impl FnOnce(&mut TransactionCoordinatorShard) -> Effects,
    ) {
        let effects = run(&mut self.state.borrow_mut());
        self.carry_out(effects);
    }

    fn on_image(&self, image: &Image) {
        let flexible = image.feature(TRANSACTION_VERSION) >= 1;
        self.state.borrow_mut().set_flexible_records(flexible);
    }

    /// Reads the partition back. False if it cannot be coordinated.
    async fn load(self: &Rc<Self>) -> bool {
        let epoch = self.log.partition.leader_epoch();
        let loaded = self
            .log
            .read_back(|batch| self.state.borrow_mut().replay_batch(batch))
            .await;
        let index = self.log.partition.id.index;
        match loaded {
            Ok((batches, end)) => {
                // A decision that may still be lost is not acted on: another coordinator would
                // decide again, and otherwise.
                let counts = self.log.committed(end, epoch).await.is_ok();
                if counts && batches > 0 {
                    tracing::info!(partition = index, batches, "transactions loaded");
                }
                counts
            }
            Err(error) => {
                // What cannot be read cannot be coordinated; clients are told to look elsewhere.
                tracing::error!(partition = index, %error, "transactions could not be loaded");
                self.tell(TransactionCoordinatorShard::unload);
                false
            }
        }
    }

    /// Everything is loaded: commands are taken from now on.
    fn begin(self: &Rc<Self>, abort_interval: Duration, remove_interval: Duration) {
        self.tell(|state| state.finish_loading(rt::wall_ms()));
        rt::spawn(
            self.clone()
                .look_round(abort_interval, TransactionCoordinatorShard::abort_timed_out),
        );
        rt::spawn(
            self.clone()
                .look_round(remove_interval, TransactionCoordinatorShard::remove_expired),
        );
    }

    async fn look_round(
        self: Rc<Self>,
        interval: Duration,
        run: fn(&mut TransactionCoordinatorShard, usize, i64) -> (Effects, Option<usize>),
    ) {
        while !self.stopped.get() {
            rt::select2(rt::sleep(interval), self.stop.wait()).await;
            let mut from = Some(0);
            while let Some(at) = from {
                let (effects, next) = run(&mut self.state.borrow_mut(), at, rt::wall_ms());
                self.carry_out(effects);
                from = next;
                rt::yield_now().await;
            }
        }
    }

    /// Does what the state machine asked for, in order.
    fn carry_out(self: &Rc<Self>, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Reply(token, answer) => {
                    let waiter = self.waiting.borrow_mut().remove(&token);
                    if let Some(waiter) = waiter {
                        // Its connection may have closed.
                        let _ = waiter.send(answer);
                    }
                }
                Effect::Append { record, then } => {
                    let stored = self.append(&record);
                    rt::spawn(self.clone().report(then, stored));
                }
                Effect::AppendLater { record, then } => {
                    let this = self.clone();
                    rt::spawn(async move {
                        rt::select2(rt::sleep(APPEND_PAUSE), this.stop.wait()).await;
                        if !this.stopped.get() {
                            let stored = this.append(&record);
                            this.report(then, stored).await;
                        }
                    });
                }
                Effect::WriteMarkers(_) if mutation::is_on(Mutation::LeaveDecided) => {}
                Effect::WriteMarkers(markers) => {
                    if let Some(shard) = self.log.shard() {
                        rt::spawn(shard.write_all_markers(self.clone(), markers));
                    }
                }
            }
        }
    }

    fn append(&self, record: &CoordinatorRecord) -> Stored {
        let now_ms = rt::wall_ms();
        let mut batch = BatchBuilder::new();
        let appended = batch
            .append(now_ms, Some(&record.key), record.value.as_deref(), &[])
            .and_then(|()| batch.build());
        match appended {
            Ok(batch) => {
                let how = AppendAs::new(Origin::Coordinator, i16::MAX, now_ms);
                self.log.append(batch, how)
            }
            Err(error) => {
                tracing::error!(partition = self.log.partition.id.index, %error, "a transaction's record does not fit a batch");
                Stored::Known(Err(ErrorCode::RECORD_LIST_TOO_LARGE))
            }
        }
    }

    /// Reports an append's outcome when it is known; whoever waits for it is told before, if that
    /// takes too long.
    async fn report(self: Rc<Self>, append: AppendId, stored: Stored) {
        let outcome = match stored {
            Stored::Known(outcome) => outcome.map(|_| ()),
            Stored::Waiting { .. } if mutation::is_on(Mutation::DecideUnstored) => Ok(()),
            Stored::Waiting {
                required, epoch, ..
            } => {
                let mut committed = std::pin::pin!(self.log.committed(required, epoch));
                match rt::select2(committed.as_mut(), rt::sleep(APPEND_TIMEOUT)).await {
                    rt::Either2::First(outcome) => outcome,
                    rt::Either2::Second(()) => {
                        self.tell(|state| state.append_timed_out(append));
                        committed.await
                    }
                }
            }
        };
        self.tell(|state| state.append_done(append, outcome, rt::wall_ms()));
    }
}

impl Shard {
    /// The partition of a coordinator's topic that a key belongs to; before the topic exists no
    /// coordinator is available.
    pub fn coordinator_partition(&self, topic: &str, key: &str) -> Result<PartitionId, ErrorCode> {
        let image = self.image();
        let topic = image
            .topic_by_name(topic)
            .ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?;
        Ok(PartitionId {
            topic: topic.id,
            index: partition_for(key, topic.partition_count()),
        })
    }

    /// Runs `job` with the coordinator of a transactional id, on the shard that owns it.
    async fn with_coordinator_of<R: Send + 'static>(
        self: &Rc<Self>,
        id: &str,
        job: impl FnOnce(Rc<TransactionCoordinator>) -> LocalFuture<Result<R, ErrorCode>>
        + Send
        + 'static,
    ) -> Result<R, ErrorCode> {
        let partition = self.coordinator_partition(TRANSACTIONS_TOPIC, id)?;
        let run = move |shard: Rc<Shard>| -> LocalFuture<Result<R, ErrorCode>> {
            match shard.transactions.coordinator(partition.index) {
                Some(coordinator) => job(coordinator),
                None => Box::pin(std::future::ready(Err(ErrorCode::NOT_COORDINATOR))),
            }
        };
        let answered = self.clone().on(self.owner(partition), run).await;
        answered.unwrap_or(Err(ErrorCode::NOT_COORDINATOR))
    }

    /// Gives a producer its id and epoch under a transactional id.
    pub async fn init_transactional_producer(
        self: &Rc<Self>,
        id: Str,
        timeout_ms: i32,
        expected: Option<Producer>,
    ) -> Result<Answer, ErrorCode> {
        let key = id.clone();
        self.with_coordinator_of(&key, move |coordinator| {
            Box::pin(async move {
                coordinator
                    .command(|state, fresh, token| {
                        let now_ms = rt::wall_ms();
                        state.init_producer_id(&id, timeout_ms, expected, fresh, now_ms, token)
                    })
                    .await
            })
        })
        .await
    }

    /// Ends a producer's transaction.
    pub async fn end_transaction(
        self: &Rc<Self>,
        id: Str,
        producer: Producer,
        commit: bool,
        version: TransactionVersion,
    ) -> Result<Answer, ErrorCode> {
        let key = id.clone();
        self.with_coordinator_of(&key, move |coordinator| {
            Box::pin(async move {
                coordinator
                    .command(|state, fresh, token| {
                        let now_ms = rt::wall_ms();
                        state.end(&id, producer, commit, version, fresh, now_ms, token)
                    })
                    .await
            })
        })
        .await
    }

    /// Adds partitions to a producer's transaction; the first ones open it.
    pub async fn add_partitions_to_transaction(
        self: &Rc<Self>,
        id: Str,
        producer: Producer,
        partitions: Partitions,
        version: TransactionVersion,
    ) -> ErrorCode {
        let key = id.clone();
        let answered = self
            .with_coordinator_of(&key, move |coordinator| {
                Box::pin(async move {
                    coordinator
                        .command(|state, _, token| {
                            let now_ms = rt::wall_ms();
                            Ok(state.add_partitions(
                                &id,
                                producer,
                                &partitions,
                                version,
                                now_ms,
                                token,
                            ))
                        })
                        .await
                })
            })
            .await;
        answered.map_or_else(|error| error, |answer| answer.error)
    }

    /// Adds partitions to a transaction that this broker coordinates, or only looks whether they
    /// are in it (`verify_only`): what a partition's leader asks before it appends.
    pub async fn add_or_verify(
        self: &Rc<Self>,
        transaction: AddPartitionsToTxnTransaction,
        version: TransactionVersion,
    ) -> AddPartitionsToTxnResult {
        let id = transaction.transactional_id.clone();
        let producer = Producer {
            id: transaction.producer_id,
            epoch: transaction.producer_epoch,
        };
        let topics = transaction.topics.iter();
        let partitions: Partitions = topics
            .flat_map(|topic| topic.partitions.iter().map(|index| (&topic.name, *index)))
            .collect();
        if !transaction.verify_only {
            let error = self
                .add_partitions_to_transaction(id, producer, partitions, version)
                .await;
            return not_added(transaction, error);
        }
        let key = id.clone();
        let verified = self
            .with_coordinator_of(&key, move |coordinator| {
                let verdicts =
                    coordinator.ask(|state| state.verify_partitions(&id, producer, &partitions));
                Box::pin(std::future::ready(Ok(verdicts)))
            })
            .await;
        match verified {
            Ok(verdicts) => {
                let verdicts: BTreeMap<(Str, i32), ErrorCode> = verdicts
                    .into_iter()
                    .map(|(topic, index, error)| ((topic, index), error))
                    .collect();
                result_of(transaction, |topic, index| {
                    let verdict = verdicts.get(&(topic.clone(), index));
                    verdict.copied().unwrap_or(ErrorCode::UNKNOWN_SERVER_ERROR)
                })
            }
            Err(error) => not_added(transaction, error),
        }
    }

    /// A transactional id as its coordinator has it.
    pub async fn describe_transaction(self: &Rc<Self>, id: Str) -> Result<Transaction, ErrorCode> {
        let key = id.clone();
        self.with_coordinator_of(&key, move |coordinator| {
            let described = coordinator.ask(|state| state.describe(&id));
            Box::pin(std::future::ready(described))
        })
        .await
    }

    /// The transactional ids that this broker coordinates.
    pub async fn list_transactions(
        self: &Rc<Self>,
        filter: ListFilter,
    ) -> Result<Vec<Listed>, ErrorCode> {
        let answers = self
            .ask_all(move |shard| {
                let now_ms = rt::wall_ms();
                let listed: Result<Vec<_>, ErrorCode> = shard
                    .transactions
                    .all()
                    .into_iter()
                    .map(|coordinator| coordinator.ask(|state| state.list(&filter, now_ms)))
                    .collect();
                Box::pin(std::future::ready(listed))
            })
            .await;
        let mut all = Vec::new();
        for answer in answers {
            let listed = answer.unwrap_or(Err(ErrorCode::NOT_COORDINATOR))?;
            all.extend(listed.into_iter().flatten());
        }
        Ok(all)
    }
}

/// The answer that gives every partition the same error.
pub fn not_added(
    transaction: AddPartitionsToTxnTransaction,
    error: ErrorCode,
) -> AddPartitionsToTxnResult {
    result_of(transaction, |_, _| error)
}

fn result_of(
    transaction: AddPartitionsToTxnTransaction,
    error: impl Fn(&Str, i32) -> ErrorCode,
) -> AddPartitionsToTxnResult {
    let topic_results = transaction
        .topics
        .into_iter()
        .map(|topic| AddPartitionsToTxnTopicResult {
            results_by_partition: topic
                .partitions
                .into_iter()
                .map(|partition_index| AddPartitionsToTxnPartitionResult {
                    partition_index,
                    partition_error_code: error(&topic.name, partition_index).0,
                    ..Default::default()
                })
                .collect(),
            name: topic.name,
            ..Default::default()
        })
        .collect();
    AddPartitionsToTxnResult {
        transactional_id: transaction.transactional_id,
        topic_results,
        ..Default::default()
    }
}
