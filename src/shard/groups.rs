//! The group coordinators of one shard: one state machine for each partition of
//! `__consumer_offsets` that the shard owns. Carries out what the state machine asks for: answers,
//! appends, and being woken when time is up. Decides nothing about groups itself.

use super::Shard;
use super::coordinator_log::{CoordinatorLog, RELOAD_PAUSE, Stored};
use crate::config::BrokerConfig;
use crate::coordinator::{
    AppendId, Call, Clock, CoordinatorRecord, Effect, Effects, GroupCoordinatorShard, GroupLimits,
    GroupSettings, Producer, ReplyToken, Response,
};
use crate::log::{AppendAs, Origin};
use crate::replica::partition::Partition;
use crate::rt::sync::{Notify, oneshot};
use crate::rt::{self, Instant};
use crate::types::{Offset, PartitionId};
use crate::wire::ErrorCode;
use crate::wire::batch_builder::{BatchBuilder, BuildError};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// The coordinators of one shard, by partition of the offsets topic.
pub struct Groups {
    settings: GroupSettings,
    limits: GroupLimits,
    /// `offsets.commit.timeout.ms`.
    commit_timeout: Duration,
    /// In the order of the partitions, so that answers over all of them repeat in a replay.
    by_partition: RefCell<BTreeMap<i32, Rc<Coordinator>>>,
}

/// One partition's coordinator with what it needs from the shard.
pub struct Coordinator {
    log: CoordinatorLog,
    state: RefCell<GroupCoordinatorShard>,
    /// In the order in which they began to wait: that of their wake-ups when the coordinator goes.
    waiting: RefCell<BTreeMap<ReplyToken, oneshot::Sender<Response>>>,
    tokens: Cell<u64>,
    /// Appends whose outcome has not been reported yet, oldest first.
    appends: RefCell<VecDeque<Append>>,
    /// The oldest one has left the queue and is waited for.
    reporting: Cell<bool>,
    appended: Notify,
    /// The deadline the timer sleeps for.
    armed: Cell<Option<Instant>>,
    rearm: Notify,
    stopped: Cell<bool>,
    commit_timeout: Duration,
}

struct Append {
    then: Then,
    stored: Stored,
}

/// Who hears of an append's outcome.
enum Then {
    /// The state machine.
    Report(AppendId),
    /// It was a transaction's marker.
    Complete(Ended),
}

/// A transaction that a marker ends.
struct Ended {
    producer_id: i64,
    committed: bool,
    told: oneshot::Sender<Result<(), ErrorCode>>,
}

impl Groups {
    pub fn new(config: &BrokerConfig) -> Groups {
        let settings = GroupSettings {
            min_session_timeout_ms: config.group_min_session_timeout_ms,
            max_session_timeout_ms: config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms: config.group_initial_rebalance_delay_ms,
            max_size: config.group_max_size,
            offset_metadata_max_size: config.offset_metadata_max_bytes,
            offsets_retention_ms: config.offsets_retention_ms,
            offsets_retention_check_interval_ms: config.offsets_retention_check_interval_ms,
            ..GroupSettings::default()
        };
        Groups {
            settings,
            limits: GroupLimits::default(),
            commit_timeout: Duration::from_millis(config.offsets_commit_timeout_ms),
            by_partition: RefCell::new(BTreeMap::new()),
        }
    }

    /// The coordinator of one partition, if the shard has it.
    pub fn coordinator(&self, partition: i32) -> Option<Rc<Coordinator>> {
        self.by_partition.borrow().get(&partition).cloned()
    }

    pub fn all(&self) -> Vec<Rc<Coordinator>> {
        self.by_partition.borrow().values().cloned().collect()
    }

    /// Becomes the coordinator of a partition: answers "loading" until its records are read.
    pub fn take(&self, shard: &Rc<Shard>, partition: Rc<Partition>) {
        let state = GroupCoordinatorShard::new(self.settings.clone(), self.limits.clone());
        let index = partition.id.index;
        let coordinator = Rc::new(Coordinator {
            log: CoordinatorLog::new(shard, partition),
            state: RefCell::new(state),
            waiting: RefCell::new(BTreeMap::new()),
            tokens: Cell::new(0),
            appends: RefCell::new(VecDeque::new()),
            reporting: Cell::new(false),
            appended: Notify::new(),
            armed: Cell::new(None),
            rearm: Notify::new(),
            stopped: Cell::new(false),
            commit_timeout: self.commit_timeout,
        });
        let before = self
            .by_partition
            .borrow_mut()
            .insert(index, coordinator.clone());
        if let Some(before) = before {
            before.tell(GroupCoordinatorShard::unload);
            before.stop();
        }
        if coordinator.log.is_empty() {
            // Nothing to read: the first client of a new offsets topic is not told to come back.
            coordinator.begin();
            return;
        }
        rt::spawn(async move {
            let loaded = coordinator
                .log
                .read_back(|batch| coordinator.state.borrow_mut().replay_batch(batch))
                .await;
            match loaded {
                Ok((batches, _)) => {
                    if batches > 0 {
                        tracing::info!(partition = index, batches, "groups loaded");
                    }
                    coordinator.begin();
                }
                Err(error) => {
                    // What cannot be read cannot be coordinated; clients are told to look elsewhere.
                    tracing::error!(partition = index, %error, "groups could not be loaded");
                    coordinator.tell(GroupCoordinatorShard::unload);
                    if error.passes() {
                        coordinator.load_again().await;
                    }
                }
            }
        });
    }

    /// Gives a partition up: whoever waits is answered NOT_COORDINATOR. One of the same index of a
    /// topic that was made anew stays.
    pub fn release(&self, partition: PartitionId) {
        let mut by_partition = self.by_partition.borrow_mut();
        let entry = by_partition.get(&partition.index);
        if entry.is_some_and(|entry| entry.partition().id == partition) {
            let coordinator = by_partition.remove(&partition.index);
            drop(by_partition);
            if let Some(coordinator) = coordinator {
                coordinator.tell(GroupCoordinatorShard::unload);
                coordinator.stop();
            }
        }
    }
}

/// Both clocks now.
pub fn clock() -> Clock {
    Clock {
        now: rt::now(),
        wall_ms: rt::wall_ms(),
    }
}

impl Coordinator {
    /// The partition that keeps its groups.
    pub fn partition(&self) -> &Rc<Partition> {
        &self.log.partition
    }

    /// Gives a command to the state machine and waits for its answer.
    pub async fn command(
        self: &Rc<Self>,
        run: impl FnOnce(&mut GroupCoordinatorShard, ReplyToken) -> Effects,
    ) -> Result<Response, ErrorCode> {
        let token = ReplyToken(self.tokens.get());
        self.tokens.set(token.0 + 1);
        let (answered, answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(token, answered);
        let effects = run(&mut self.state.borrow_mut(), token);
        self.carry_out(effects);
        answer.await.map_err(|_| ErrorCode::NOT_COORDINATOR)
    }

    /// Asks the state machine something that it answers at once.
    pub fn ask<R>(self: &Rc<Self>, run: impl FnOnce(&mut GroupCoordinatorShard) -> R) -> R {
        let answer = run(&mut self.state.borrow_mut());
        self.rearm();
        answer
    }

    /// Gives the state machine news that nobody waits for.
    pub fn tell(self: &Rc<Self>, run: impl FnOnce(&mut GroupCoordinatorShard) -> Effects) {
        let effects = run(&mut self.state.borrow_mut());
        self.carry_out(effects);
    }

    /// Another coordinator of the partition tries after a pause, if the shard still has this one.
    async fn load_again(self: &Rc<Self>) {
        rt::sleep(RELOAD_PAUSE).await;
        if let Some(shard) = self.log.shard()
            && !self.stopped.get()
        {
            shard.groups.take(&shard, self.partition().clone());
        }
    }

    /// Everything is loaded: commands are taken from now on.
    fn begin(self: &Rc<Self>) {
        let effects = self.state.borrow_mut().finish_loading(clock());
        self.carry_out(effects);
        rt::spawn(self.clone().report_appends());
        rt::spawn(self.clone().run_timer());
    }

    /// Does what the state machine asked for, in order, until it asks for nothing more.
    fn carry_out(self: &Rc<Self>, effects: Effects) {
        let mut todo: VecDeque<Effect> = effects.into_iter().collect();
        while let Some(effect) = todo.pop_front() {
            match effect {
                Effect::Reply(token, response) => {
                    let waiter = self.waiting.borrow_mut().remove(&token);
                    if let Some(waiter) = waiter {
                        // Its connection may have closed.
                        let _ = waiter.send(response);
                    }
                }
                Effect::Append {
                    records,
                    producer,
                    then,
                } => match self.append(&records, producer) {
                    Stored::Known(outcome) if self.has_reported_all() => {
                        let outcome = outcome.map(|base| base.0);
                        let mut state = self.state.borrow_mut();
                        todo.extend(state.append_done(then, outcome, clock()));
                    }
                    stored => self.report_later(Then::Report(then), stored),
                },
            }
        }
        self.rearm();
    }

    /// Nothing that was appended before waits to be reported.
    fn has_reported_all(&self) -> bool {
        self.appends.borrow().is_empty() && !self.reporting.get()
    }

    fn report_later(&self, then: Then, stored: Stored) {
        self.appends.borrow_mut().push_back(Append { then, stored });
        self.appended.notify_one();
    }

    /// Appends a transaction's marker to the offsets partition; what the transaction committed
    /// shows, or is dropped, once the marker is committed. The future it gives waits for that.
    ///
    /// While the records are read nothing is appended: what was read before the marker came would
    /// never hear of it. The transaction's coordinator asks again.
    pub fn end_transaction(
        self: &Rc<Self>,
        producer_id: i64,
        committed: bool,
        marker: Bytes,
        how: AppendAs,
    ) -> oneshot::Receiver<Result<(), ErrorCode>> {
        let (told, outcome) = oneshot::channel();
        let ended = Ended {
            producer_id,
            committed,
            told,
        };
        let refusal = self.state.borrow().refusal();
        let stored = match refusal {
            None => self.log.append(marker, how),
            Some(error) => Stored::Known(Err(error)),
        };
        match stored {
            // It is not in the log, so nothing has to come before it.
            Stored::Known(Err(error)) => ended.tell(Err(error)),
            Stored::Known(Ok(_)) if self.has_reported_all() => self.complete(ended, Ok(())),
            stored => self.report_later(Then::Complete(ended), stored),
        }
        outcome
    }

    /// The outcome of a marker is known, and that of everything before it.
    fn complete(&self, ended: Ended, outcome: Result<(), ErrorCode>) {
        if outcome.is_ok() {
            let (producer_id, committed) = (ended.producer_id, ended.committed);
            let mut state = self.state.borrow_mut();
            state.complete_transaction(producer_id, committed);
        }
        ended.tell(outcome);
    }

    /// Appends the records as one batch to the offsets partition.
    fn append(&self, records: &[CoordinatorRecord], producer: Option<Producer>) -> Stored {
        let now_ms = rt::wall_ms();
        let batch = match build(records, producer, now_ms) {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!(partition = self.log.partition.id.index, %error, "group records do not fit a batch");
                return Stored::Known(Err(ErrorCode::RECORD_LIST_TOO_LARGE));
            }
        };
        let mut how = AppendAs::new(Origin::Coordinator, i16::MAX, now_ms);
        if let Some(producer) = producer {
            how.guard = producer.guard;
        }
        self.log.append(batch, how)
    }

    /// Reports outcomes in the order of the appends, as they become known.
    async fn report_appends(self: Rc<Self>) {
        loop {
            let next = self.appends.borrow_mut().pop_front();
            let Some(append) = next else {
                if self.stopped.get() {
                    return;
                }
                self.appended.notified().await;
                continue;
            };
            self.reporting.set(true);
            let outcome = self.outcome_of(&append).await;
            self.reporting.set(false);
            match append.then {
                Then::Report(id) => {
                    let outcome = outcome.map(|base| base.0);
                    self.tell(|state| state.append_done(id, outcome, clock()));
                }
                Then::Complete(ended) => self.complete(ended, outcome.map(|_| ())),
            }
        }
    }

    /// Waits until the high watermark has passed an append; after the commit time-out its clients
    /// are told, and the wait goes on. Who writes a marker has a time-out of its own.
    async fn outcome_of(self: &Rc<Self>, append: &Append) -> Result<Offset, ErrorCode> {
        let (base, required, epoch) = match append.stored {
            Stored::Known(outcome) => return outcome,
            Stored::Waiting {
                base,
                required,
                epoch,
            } => (base, required, epoch),
        };
        let mut committed = std::pin::pin!(self.log.committed(required, epoch));
        let outcome = match rt::select2(committed.as_mut(), rt::sleep(self.commit_timeout)).await {
            rt::Either2::First(outcome) => outcome,
            rt::Either2::Second(()) => {
                if let Then::Report(id) = append.then {
                    self.tell(|state| state.append_timed_out(id, clock()));
                }
                committed.await
            }
        };
        outcome.map(|()| base)
    }

    fn rearm(&self) {
        let next = self.state.borrow().next_deadline();
        if let Some(next) = next
            && self.armed.get().is_none_or(|armed| next < armed)
        {
            self.armed.set(Some(next));
            self.rearm.notify_one();
        }
    }

    async fn run_timer(self: Rc<Self>) {
        while !self.stopped.get() {
            let next = self.state.borrow().next_deadline();
            self.armed.set(next);
            rt::select2(rt::sleep_until_opt(next), self.rearm.notified()).await;
            let due = self
                .state
                .borrow()
                .next_deadline()
                .is_some_and(|next| next <= rt::now());
            if due {
                let effects = self.state.borrow_mut().on_tick(clock());
                self.carry_out(effects);
            }
        }
    }

    fn stop(&self) {
        self.stopped.set(true);
        self.rearm.notify_one();
        self.appended.notify_one();
    }
}

impl Ended {
    fn tell(self, outcome: Result<(), ErrorCode>) {
        // Whoever asked may have given up.
        let _ = self.told.send(outcome);
    }
}

fn build(
    records: &[CoordinatorRecord],
    producer: Option<Producer>,
    now_ms: i64,
) -> Result<Bytes, BuildError> {
    let mut batch = BatchBuilder::new();
    if let Some(producer) = producer {
        batch.producer_id = producer.id;
        batch.producer_epoch = producer.epoch;
        batch.base_sequence = 0;
        batch.transactional = true;
    }
    for record in records {
        batch.append(now_ms, Some(&record.key), record.value.as_deref(), &[])?;
    }
    batch.build()
}

/// What a request says of itself to a group coordinator; sent along with it.
#[derive(Clone, Debug)]
pub struct Caller {
    pub version: i16,
    pub client_id: String,
    pub client_host: String,
}

impl Caller {
    /// The call as the state machine takes it, at this moment.
    pub fn call(&self) -> Call<'_> {
        Call {
            version: self.version,
            client_id: &self.client_id,
            client_host: &self.client_host,
            clock: clock(),
            random: (u128::from(rt::random_u64()) << 64) | u128::from(rt::random_u64()),
        }
    }
}
