//! The transaction coordinators of one shard: one state machine for each partition of
//! `__transaction_state` that the shard owns. Carries out what the state machine asks for:
//! answers, appends, markers, and looking round from time to time. Decides nothing about
//! transactions itself.

use super::Shard;
use super::coordinator_log::{CoordinatorLog, RELOAD_PAUSE, Stored};
use crate::cluster::{Image, TRANSACTION_VERSION};
use crate::config::BrokerConfig;
use crate::coordinator::transactions::{
    Answer, AppendId, Effect, Effects, Markers, NeedsProducerId, Partitions,
    TransactionCoordinatorShard, TransactionLimits, TransactionSettings,
};
use crate::coordinator::{CoordinatorRecord, ReplyToken};
use crate::log::{AppendAs, Origin};
use crate::observe::transaction_metrics::TransactionCounts;
use crate::replica::mutation::{self, Mutation};
use crate::replica::partition::Partition;
use crate::rt;
use crate::rt::sync::{Event, oneshot};
use crate::types::PartitionId;
use crate::wire::ErrorCode;
use crate::wire::batch_builder::BatchBuilder;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long a producer waits for a record of its transaction before it is told to ask again.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause before a record is appended again whose append failed; each further one is twice
/// as long, up to 32 of it.
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
        let before = self
            .by_partition
            .borrow_mut()
            .insert(index, coordinator.clone());
        if let Some(before) = before {
            before.stop();
        }
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

    /// Gives a partition up: whoever waits is answered NOT_COORDINATOR. One of the same index of a
    /// topic that was made anew stays.
    pub fn release(&self, partition: PartitionId) {
        let mut by_partition = self.by_partition.borrow_mut();
        let entry = by_partition.get(&partition.index);
        if entry.is_some_and(|entry| entry.log.partition.id == partition) {
            let coordinator = by_partition.remove(&partition.index);
            drop(by_partition);
            if let Some(coordinator) = coordinator {
                coordinator.stop();
            }
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

    /// These partitions of a transaction need no marker any more.
    pub(super) fn written(self: &Rc<Self>, markers: &Markers, partitions: &Partitions) {
        if !partitions.is_empty() {
            self.tell(|state| {
                let id = &markers.transactional_id;
                state.markers_written(id, markers.producer, partitions, rt::wall_ms())
            });
        }
    }

    /// Those of the partitions that the metadata of this shard does not have.
    pub(super) fn missing(&self, partitions: &Partitions) -> Partitions {
        let image = self.log.shard().map(|shard| shard.image());
        let is_missing = |name: &str, index: i32| {
            let topic = image.as_ref().and_then(|image| image.topic_by_name(name));
            !topic.is_some_and(|topic| topic.has_partition(index))
        };
        let all = partitions.iter();
        all.filter(|(name, index)| is_missing(name, *index))
            .collect()
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
                (Err(NeedsProducerId), None) => {
                    self.waiting.borrow_mut().remove(&token);
                    return Err(ErrorCode::NOT_COORDINATOR);
                }
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

    /// Reads the partition back, again if that fails in a way that passes. False if it cannot be
    /// coordinated.
    async fn load(self: &Rc<Self>) -> bool {
        let index = self.log.partition.id.index;
        while !self.stopped.get() {
            let epoch = self.log.partition.leader_epoch();
            let loaded = self
                .log
                .read_back(|batch| self.state.borrow_mut().replay_batch(batch))
                .await;
            match loaded {
                Ok((batches, end)) => {
                    // A decision that may still be lost is not acted on: another coordinator would
                    // decide again, and otherwise.
                    match self.log.committed(end, epoch).await {
                        Ok(()) => {
                            tracing::debug!(partition = index, batches, "transactions loaded");
                            return true;
                        }
                        Err(error) => {
                            tracing::warn!(
                                partition = index,
                                error = error.name(),
                                "not all of the transactions counts"
                            );
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(partition = index, %error, "transactions could not be loaded");
                    if !error.passes() {
                        // What cannot be read cannot be coordinated; clients look elsewhere.
                        self.tell(TransactionCoordinatorShard::unload);
                        return false;
                    }
                }
            }
            rt::select2(rt::sleep(RELOAD_PAUSE), self.stop.wait()).await;
            self.state.borrow_mut().start_over();
        }
        false
    }

    /// The shard has given the partition up.
    fn stop(self: &Rc<Self>) {
        self.tell(TransactionCoordinatorShard::unload);
        self.stopped.set(true);
        self.stop.notify_all();
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
                Effect::AppendLater {
                    record,
                    then,
                    failures,
                } => {
                    let this = self.clone();
                    let pause = APPEND_PAUSE * 2_u32.pow(failures.clamp(1, 6) - 1);
                    rt::spawn(async move {
                        rt::select2(rt::sleep(pause), this.stop.wait()).await;
                        if !this.stopped.get() {
                            let stored = this.append(&record);
                            this.report(then, stored).await;
                        }
                    });
                }
                Effect::WriteMarkers(_) if mutation::is_on(Mutation::LeaveDecided) => {}
                Effect::WriteMarkers(markers) => {
                    if let Some(shard) = self.log.shard() {
                        let all = markers.partitions.clone();
                        let coordinator = self.clone();
                        let markers = Rc::new(markers);
                        rt::spawn(shard.write_markers_until_done(coordinator, markers, all));
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
