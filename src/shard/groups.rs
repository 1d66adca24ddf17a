//! The group coordinators of one shard: one state machine for each partition of
//! `__consumer_offsets` that the shard owns. Carries out what the state machine asks for: answers,
//! appends, and being woken when time is up. Decides nothing about groups itself.

use super::Shard;
use crate::config::BrokerConfig;
use crate::coordinator::{
    AppendId, Call, Clock, CoordinatorRecord, Effect, Effects, GroupCoordinatorShard, GroupLimits,
    GroupSettings, Producer, ReplyToken, Response,
};
use crate::log::{AppendAs, Origin};
use crate::replica::delayed::{DelayedProduce, Need, ProducePart};
use crate::replica::partition::Partition;
use crate::rt::sync::{Notify, oneshot};
use crate::rt::{self, Instant};
use crate::types::{LeaderEpoch, Offset};
use crate::wire::ErrorCode;
use crate::wire::batch_builder::{BatchBuilder, BuildError};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// An append to the offsets topic is given up by its clients long before this; it bounds only
/// how long the operation is kept.
const APPEND_PATIENCE: Duration = Duration::from_secs(3600);

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
    shard: Weak<Shard>,
    pub partition: Rc<Partition>,
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
    outcome: Outcome,
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

enum Outcome {
    Known(Result<i64, ErrorCode>),
    /// Waits for the high watermark.
    Waiting {
        base: Offset,
        required: Offset,
        epoch: LeaderEpoch,
    },
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
        let coordinator = Rc::new(Coordinator {
            shard: Rc::downgrade(shard),
            partition: partition.clone(),
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
        self.by_partition
            .borrow_mut()
            .insert(partition.id.index, coordinator.clone());
        let log = &partition.log;
        if log.log_start() == log.log_end() {
            // Nothing to read: the first client of a new offsets topic is not told to come back.
            coordinator.begin();
            return;
        }
        rt::spawn(async move {
            if let Err(error) = super::group_load::load(&coordinator).await {
                // What cannot be read cannot be coordinated; clients are told to look elsewhere.
                tracing::error!(partition = coordinator.partition.id.index, %error, "groups could not be loaded");
                let effects = coordinator.state.borrow_mut().unload();
                coordinator.carry_out(effects);
                return;
            }
            coordinator.begin();
        });
    }

    /// Gives a partition up: whoever waits is answered NOT_COORDINATOR.
    pub fn release(&self, partition: i32) {
        let coordinator = self.by_partition.borrow_mut().remove(&partition);
        if let Some(coordinator) = coordinator {
            let effects = coordinator.state.borrow_mut().unload();
            coordinator.carry_out(effects);
            coordinator.stop();
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

    /// Replays one record while loading.
    pub(super) fn replay<R>(&self, run: impl FnOnce(&mut GroupCoordinatorShard) -> R) -> R {
        run(&mut self.state.borrow_mut())
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
                } => {
                    let outcome = self.append(&records, producer);
                    match outcome {
                        Outcome::Known(outcome) if self.has_reported_all() => {
                            todo.extend(self.state.borrow_mut().append_done(
                                then,
                                outcome,
                                clock(),
                            ));
                        }
                        outcome => self.report_later(Then::Report(then), outcome),
                    }
                }
            }
        }
        self.rearm();
    }

    /// Nothing that was appended before waits to be reported.
    fn has_reported_all(&self) -> bool {
        self.appends.borrow().is_empty() && !self.reporting.get()
    }

    fn report_later(&self, then: Then, outcome: Outcome) {
        self.appends
            .borrow_mut()
            .push_back(Append { then, outcome });
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
        match refusal.map_or_else(
            || self.append_batch(marker, how),
            |e| Outcome::Known(Err(e)),
        ) {
            // It is not in the log, so nothing has to come before it.
            Outcome::Known(Err(error)) if !is_in_log(error) => ended.tell(Err(error)),
            Outcome::Known(outcome) if self.has_reported_all() => self.complete(ended, outcome),
            outcome => self.report_later(Then::Complete(ended), outcome),
        }
        outcome
    }

    /// The outcome of a marker is known, and that of everything before it.
    fn complete(&self, ended: Ended, outcome: Result<i64, ErrorCode>) {
        let outcome = match outcome {
            Err(error) if !is_in_log(error) => Err(error),
            // Committed, whatever has become of the in-sync set since.
            _ => {
                let (producer_id, committed) = (ended.producer_id, ended.committed);
                let mut state = self.state.borrow_mut();
                state.complete_transaction(producer_id, committed);
                Ok(())
            }
        };
        ended.tell(outcome);
    }

    /// Appends the records as one batch to the offsets partition.
    fn append(&self, records: &[CoordinatorRecord], producer: Option<Producer>) -> Outcome {
        let now_ms = rt::wall_ms();
        let batch = match build(records, producer, now_ms) {
            Ok(batch) => batch,
            Err(error) => {
                tracing::error!(partition = self.partition.id.index, %error, "group records do not fit a batch");
                return Outcome::Known(Err(ErrorCode::RECORD_LIST_TOO_LARGE));
            }
        };
        let mut how = AppendAs::new(Origin::Coordinator, i16::MAX, now_ms);
        if let Some(producer) = producer {
            how.guard = producer.guard;
        }
        self.append_batch(batch, how)
    }

    fn append_batch(&self, batch: Bytes, how: AppendAs) -> Outcome {
        let Some(shard) = self.shard.upgrade() else {
            return Outcome::Known(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        };
        match self.partition.append(batch, how, true) {
            Ok(appended) => {
                shard.progressed(&self.partition);
                let (base, required) = (appended.first_offset, appended.last_offset.next());
                let epoch = self.partition.leader_epoch();
                match self
                    .partition
                    .produce_outcome(Need::Committed, epoch, required)
                {
                    Some(ErrorCode::NONE) => Outcome::Known(Ok(base.0)),
                    Some(error) => Outcome::Known(Err(error)),
                    None => Outcome::Waiting {
                        base,
                        required,
                        epoch,
                    },
                }
            }
            Err(error) => Outcome::Known(Err(error.code)),
        }
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
            let outcome = match append.outcome {
                Outcome::Known(outcome) => outcome,
                Outcome::Waiting {
                    base,
                    required,
                    epoch,
                } => self
                    .committed(&append.then, required, epoch)
                    .await
                    .map(|()| base.0),
            };
            self.reporting.set(false);
            match append.then {
                Then::Report(id) => {
                    let effects = self.state.borrow_mut().append_done(id, outcome, clock());
                    self.carry_out(effects);
                }
                Then::Complete(ended) => self.complete(ended, outcome),
            }
        }
    }

    /// Waits until the high watermark has passed an append; after the commit time-out its clients
    /// are told, and the wait goes on. Who writes a marker has a time-out of its own.
    async fn committed(
        self: &Rc<Self>,
        then: &Then,
        required: Offset,
        epoch: LeaderEpoch,
    ) -> Result<(), ErrorCode> {
        let shard = self
            .shard
            .upgrade()
            .ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?;
        let (done, told) = oneshot::channel();
        let part = ProducePart {
            partition: self.partition.clone(),
            epoch,
            required,
            outcome: None,
            slot: 0,
        };
        let mut operation = DelayedProduce {
            need: Need::Committed,
            parts: vec![part],
            done: Some(done),
        };
        if operation.is_satisfied() {
            operation.answer();
        } else {
            shard.park_produce(operation, APPEND_PATIENCE);
        }
        drop(shard);
        let mut told = std::pin::pin!(told);
        let outcomes = match rt::select2(told.as_mut(), rt::sleep(self.commit_timeout)).await {
            rt::Either2::First(outcomes) => outcomes,
            rt::Either2::Second(()) => {
                if let Then::Report(id) = then {
                    let effects = self.state.borrow_mut().append_timed_out(*id, clock());
                    self.carry_out(effects);
                }
                told.await
            }
        };
        match outcomes.ok().and_then(|outcomes| outcomes.first().copied()) {
            Some((_, ErrorCode::NONE)) => Ok(()),
            Some((_, error)) => Err(error),
            None => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        }
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

/// Whether an append that ended with this error is in the log, below the high watermark.
fn is_in_log(error: ErrorCode) -> bool {
    error == ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND
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
