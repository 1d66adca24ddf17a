//! What one producer has to send: batches by partition, requests by broker, and what becomes of
//! them.
//!
//! Pure; one executor. Due records wait in the schedule, which costs nothing, until there is
//! room in the buffer. A batch that cannot leave goes on growing until it is full. In the closed
//! loop records are due when a request can be sent. Never drops a record silently: each is
//! acknowledged, failed, or counted as unsent.

use std::collections::VecDeque;
use std::sync::Arc;

use super::batch::{Batch, Identity, Spares};
use super::content::Values;
use super::keys::{KEY_BYTES, KeySource};
use super::plan::Plan;
use super::samples::Samples;
use super::schedule::Schedule;
use super::transaction::Cycle;
use crate::client::{ClusterView, partition_for_key};
use crate::types::NodeId;
use crate::wire::ErrorCode;
use crate::wire::batch::increment_sequence;

/// `retry.backoff.ms`.
const RETRY_BACKOFF: u64 = 100_000_000;
/// How often what depends on long time-outs is looked at.
const LOOK_EVERY: u64 = 250_000_000;
/// What a record takes beside key and value at most: lengths, deltas, attributes.
const RECORD_OVERHEAD: usize = 26;

/// A request on its way.
pub(super) struct Request {
    pub(super) correlation: i32,
    sent: u64,
    pub(super) batches: Vec<(usize, Batch)>,
}

/// A leader.
pub(super) struct Broker {
    pub(super) node: NodeId,
    /// There is a connection.
    pub(super) up: bool,
    next_correlation: i32,
    /// Partitions with an open batch, in the order of their first records.
    opened: VecDeque<usize>,
    /// Partitions with closed batches.
    ready: VecDeque<usize>,
    in_flight: VecDeque<Request>,
}

#[derive(Default)]
struct Partition {
    broker: Option<usize>,
    open: Option<Batch>,
    /// Closed batches in their order.
    closed: VecDeque<Batch>,
    /// Stands in its broker's `ready`.
    is_ready: bool,
    in_flight: usize,
    /// A batch came back: nothing leaves until all have, so that their order is kept.
    came_back: bool,
    not_before: u64,
    next_sequence: i32,
}

impl Partition {
    /// Whether nothing may leave now, because something came back.
    fn is_held(&self, now: u64) -> bool {
        self.not_before > now || (self.came_back && self.in_flight > 0)
    }
}

/// The next record, drawn but not made.
#[derive(Clone, Copy)]
struct Drawn {
    key: Option<[u8; KEY_BYTES]>,
    size: usize,
}

impl Drawn {
    fn payload(&self) -> usize {
        self.size + self.key.map_or(0, |_| KEY_BYTES)
    }
}

/// What the caller has to do beside sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    pub(super) refresh: bool,
    pub(super) identity: bool,
}

pub(super) struct Outgoing {
    plan: Arc<Plan>,
    schedule: Option<Schedule>,
    keys: KeySource,
    values: Values,
    random: fastrand::Rng,
    drawn: Option<Drawn>,
    partitions: Vec<Partition>,
    pub(super) brokers: Vec<Broker>,
    spares: Spares,
    identity: Option<Identity>,
    /// Without transactions there is none.
    pub(super) cycle: Option<Cycle>,
    /// Payload that is open, closed or in flight.
    buffered: usize,
    batches_made: u64,
    sticky: usize,
    /// At the end of the last step a record that became due could have left.
    waits_for_records: bool,
    refresh: bool,
    looked_at: u64,
}

impl Outgoing {
    /// `stamp` is the run's number, for values that carry their due time.
    pub(super) fn new(
        plan: Arc<Plan>,
        view: &ClusterView,
        stamp: Option<u64>,
        seed: u64,
    ) -> Outgoing {
        let mut random = fastrand::Rng::with_seed(seed);
        let compressed = plan.codec != crate::wire::codec::Codec::None;
        let values = Values::new(
            plan.content,
            plan.sizes.max(),
            compressed,
            stamp,
            &mut random,
        );
        let mut outgoing = Outgoing {
            schedule: None,
            keys: KeySource::new(plan.keys),
            values,
            drawn: None,
            partitions: Vec::new(),
            brokers: Vec::new(),
            spares: Spares::new(
                plan.codec,
                plan.level,
                plan.batch_bytes.max(plan.sizes.max() + 512),
                plan.transactions.is_some(),
            ),
            identity: None,
            cycle: plan
                .transactions
                .as_ref()
                .map(|plan| Cycle::new(plan, seed)),
            buffered: 0,
            batches_made: 0,
            sticky: random.usize(..1 << 20),
            waits_for_records: true,
            refresh: false,
            looked_at: 0,
            random,
            plan,
        };
        outgoing.lead(view);
        outgoing
    }

    /// The schedule of the open loop, once the start is known.
    pub(super) fn begin(&mut self, schedule: Option<Schedule>) {
        self.schedule = schedule;
    }

    /// Takes the leaders from a view of the cluster.
    pub(super) fn lead(&mut self, view: &ClusterView) {
        let Some(topic) = view.topic(&self.plan.topic) else {
            return;
        };
        while self.partitions.len() < topic.partitions.len() {
            self.partitions.push(Partition::default());
        }
        for (partition, seen) in self.partitions.iter_mut().zip(&topic.partitions) {
            partition.broker = seen.leader.map(|leader| {
                let known = self.brokers.iter().position(|broker| broker.node == leader);
                known.unwrap_or_else(|| {
                    self.brokers.push(Broker {
                        node: leader,
                        up: false,
                        next_correlation: 0,
                        opened: VecDeque::new(),
                        ready: VecDeque::new(),
                        in_flight: VecDeque::new(),
                    });
                    self.brokers.len() - 1
                })
            });
        }
        for broker in &mut self.brokers {
            broker.opened.clear();
            broker.ready.clear();
        }
        let mut opened: Vec<(u64, usize)> = Vec::new();
        for (at, partition) in self.partitions.iter_mut().enumerate() {
            if let Some(batch) = &partition.open {
                opened.push((batch.opened, at));
            }
            partition.is_ready = false;
            if let Some(broker) = partition.broker
                && !partition.closed.is_empty()
            {
                partition.is_ready = true;
                self.brokers[broker].ready.push_back(at);
            }
        }
        opened.sort_unstable();
        for (_, at) in opened {
            if let Some(broker) = self.partitions[at].broker {
                self.brokers[broker].opened.push_back(at);
            }
        }
    }

    /// An idempotent producer got its identity: numbers begin anew.
    pub(super) fn identify(&mut self, identity: Identity) {
        self.identity = Some(identity);
        for partition in &mut self.partitions {
            partition.next_sequence = 0;
        }
    }

    pub(super) fn wishes(&mut self) -> Wishes {
        let leaderless = self.partitions.iter().all(|p| p.broker.is_none());
        let idle = self
            .brokers
            .iter()
            .all(|broker| broker.in_flight.is_empty());
        Wishes {
            refresh: std::mem::take(&mut self.refresh) || leaderless,
            // That of a transaction comes with it.
            identity: self.plan.idempotence
                && self.cycle.is_none()
                && self.identity.is_none()
                && idle,
        }
    }

    /// Brokers that lead something and have no connection.
    pub(super) fn unconnected(&self) -> impl Iterator<Item = usize> + '_ {
        let leads = |at: usize| self.partitions.iter().any(|p| p.broker == Some(at));
        (0..self.brokers.len()).filter(move |at| !self.brokers[*at].up && leads(*at))
    }

    /// Whether nothing is left to make or to settle.
    pub(super) fn is_finished(&self, now: u64, end: u64) -> bool {
        let cycle = self.cycle.as_ref();
        let between = cycle.is_none_or(|cycle| cycle.is_idle());
        let dead = cycle.is_some_and(Cycle::is_dead);
        dead || (between && self.is_made(now, end) && self.is_settled())
    }

    /// Whether no record will follow.
    fn is_made(&self, now: u64, end: u64) -> bool {
        match &self.schedule {
            Some(schedule) => schedule.next_due() >= end,
            None => now >= end,
        }
    }

    fn is_settled(&self) -> bool {
        self.buffered == 0 && self.brokers.iter().all(|b| b.in_flight.is_empty())
    }

    // ------------------------------------------------------------------------ making records

    /// Makes what is due (open loop) or what can be sent at once (closed loop).
    pub(super) fn make(&mut self, now: u64, now_ms: i64, samples: &Samples) {
        let end = samples.window().to;
        match self.schedule.take() {
            Some(mut schedule) => {
                let mut came_to = self.waits_for_records;
                while self.buffered < self.plan.buffer_bytes
                    && self.takes_records(now)
                    && schedule.next_due() <= now.min(end.saturating_sub(1))
                {
                    let due = schedule.take();
                    if std::mem::take(&mut came_to) {
                        samples.came_to(due, now);
                    }
                    let drawn = self.draw();
                    let at = self.place(&drawn);
                    self.append(at, drawn, due, now, now_ms);
                }
                self.schedule = Some(schedule);
            }
            None if now < end => {
                for broker in 0..self.brokers.len() {
                    self.fill(broker, now, now_ms);
                }
            }
            None => {}
        }
    }

    fn draw(&mut self) -> Drawn {
        self.drawn.take().unwrap_or_else(|| Drawn {
            key: self.keys.sample(&mut self.random),
            size: self.plan.sizes.sample(&mut self.random),
        })
    }

    /// The partition of a record: its key's, or the one whose batch is open, or the next one that
    /// has a leader.
    fn place(&mut self, drawn: &Drawn) -> usize {
        if let Some(key) = &drawn.key {
            return partition_for_key(key, self.partitions.len()) as usize;
        }
        let count = self.partitions.len();
        self.sticky %= count;
        let open = self.partitions[self.sticky].open.as_ref();
        if open.is_some_and(|batch| !self.is_full(batch, drawn)) {
            return self.sticky;
        }
        self.next_sticky(None);
        self.sticky
    }

    /// Moves on to the next partition that has a leader (or this leader).
    fn next_sticky(&mut self, broker: Option<usize>) -> bool {
        let count = self.partitions.len();
        for step in 1..=count {
            let at = (self.sticky + step) % count;
            let leader = self.partitions[at].broker;
            if leader.is_some() && (broker.is_none() || leader == broker) {
                self.sticky = at;
                return true;
            }
        }
        false
    }

    fn is_full(&self, batch: &Batch, drawn: &Drawn) -> bool {
        let record = drawn.payload() + RECORD_OVERHEAD;
        batch.is_full_for(self.plan.batch_bytes, record, self.plan.batch_records)
    }

    fn append(&mut self, at: usize, drawn: Drawn, due: u64, now: u64, now_ms: i64) {
        let full = match &self.partitions[at].open {
            Some(batch) => self.is_full(batch, &drawn),
            None => false,
        };
        if full {
            self.close(at);
        }
        let partition = &mut self.partitions[at];
        if partition.open.is_none() {
            partition.open = Some(self.spares.batch(now));
            if let Some(broker) = partition.broker {
                self.brokers[broker].opened.push_back(at);
            }
        }
        let Some(batch) = &mut partition.open else {
            return;
        };
        let key = drawn.key.as_ref().map(|key| &key[..]);
        let appended = self.values.next(drawn.size, due, |value| {
            batch.append(now_ms, due, key, value)
        });
        debug_assert!(appended.is_ok(), "sizes are bounded by the plan");
        self.buffered += drawn.payload();
        if let Some(cycle) = &mut self.cycle {
            cycle.made(at, due, now);
        }
        let by_count = self.plan.batch_records;
        if batch.size() >= self.plan.batch_bytes
            || by_count.is_some_and(|max| batch.records() >= max)
        {
            self.close(at);
        }
    }

    /// Closes the open batch of a partition: it may leave.
    fn close(&mut self, at: usize) {
        let partition = &mut self.partitions[at];
        let Some(mut batch) = partition.open.take() else {
            return;
        };
        self.batches_made += 1;
        batch.order = self.batches_made;
        partition.closed.push_back(batch);
        if let Some(broker) = partition.broker {
            let broker = &mut self.brokers[broker];
            if let Some(place) = broker.opened.iter().position(|one| *one == at) {
                broker.opened.remove(place);
            }
            if !partition.is_ready {
                partition.is_ready = true;
                broker.ready.push_back(at);
            }
        }
    }

    /// The closed loop: as many batches as the broker can be sent now.
    fn fill(&mut self, broker: usize, now: u64, now_ms: i64) {
        let room = |outgoing: &Outgoing| {
            let one = &outgoing.brokers[broker];
            let free = outgoing.plan.in_flight.saturating_sub(one.in_flight.len());
            let waiting = one
                .ready
                .iter()
                .map(|at| outgoing.partitions[*at].closed.len());
            one.up
                && waiting.sum::<usize>() < free * outgoing.plan.batches_per_request
                && outgoing.buffered < outgoing.plan.buffer_bytes
                && outgoing.takes_records(now)
        };
        while room(self) {
            let drawn = self.draw();
            if drawn.key.is_none() {
                self.drawn = Some(drawn);
                if !self.next_sticky(Some(broker)) {
                    return;
                }
                self.fill_batch(self.sticky, now, now_ms);
                continue;
            }
            // With keys one batch's worth of records, wherever they belong.
            self.drawn = Some(drawn);
            let (mut bytes, mut records) = (0, 0);
            while bytes < self.plan.batch_bytes
                && self.takes_records(now)
                && self.plan.batch_records.is_none_or(|max| records < max)
            {
                let drawn = self.draw();
                bytes += drawn.payload() + RECORD_OVERHEAD;
                records += 1;
                let at = self.place(&drawn);
                self.append(at, drawn, now, now, now_ms);
            }
            for one in 0..self.brokers.len() {
                while let Some(at) = self.brokers[one].opened.front().copied() {
                    self.close(at);
                }
            }
        }
    }

    fn fill_batch(&mut self, at: usize, now: u64, now_ms: i64) {
        let before = self.batches_made;
        loop {
            let drawn = self.draw();
            let full = self.partitions[at].open.as_ref();
            if full.is_some_and(|batch| self.is_full(batch, &drawn)) {
                self.drawn = Some(drawn);
                self.close(at);
            } else {
                self.append(at, drawn, now, now, now_ms);
            }
            // What is open then leaves with the end of the transaction.
            if self.batches_made > before || !self.takes_records(now) {
                return;
            }
        }
    }

    // ----------------------------------------------------------------------------- sending

    /// The next request for a broker: its partitions and batches, numbered and not sealed.
    pub(super) fn next_request(&mut self, broker: usize, now: u64) -> Option<&mut Request> {
        let linger = self.plan.linger.as_nanos() as u64;
        let one = &self.brokers[broker];
        if !one.up || one.in_flight.len() >= self.plan.in_flight || !self.may_number() {
            return None;
        }
        let wanted = self.plan.batches_per_request;
        let ready = one.ready.iter();
        let mut sendable = ready
            .filter(|at| !self.partitions[**at].is_held(now))
            .count();
        while sendable < wanted
            && let Some(at) = self.brokers[broker].opened.front().copied()
        {
            let opened = self.partitions[at].open.as_ref().map(|batch| batch.opened);
            if opened.is_some_and(|opened| opened.saturating_add(linger) > now) {
                break;
            }
            let partition = &self.partitions[at];
            sendable += usize::from(!partition.is_ready && !partition.is_held(now));
            self.close(at);
        }
        let mut batches: Vec<(usize, Batch)> = Vec::new();
        for _ in 0..self.brokers[broker].ready.len() {
            if batches.len() >= wanted {
                break;
            }
            let Some(at) = self.brokers[broker].ready.pop_front() else {
                break;
            };
            let partition = &mut self.partitions[at];
            if partition.is_held(now) {
                self.brokers[broker].ready.push_back(at);
                continue;
            }
            partition.came_back = false;
            let Some(mut batch) = partition.closed.pop_front() else {
                partition.is_ready = false;
                continue;
            };
            if let Some(identity) = self.identity
                && batch.sequence.is_none_or(|(whose, _)| whose != identity)
            {
                batch.number(identity, partition.next_sequence);
                partition.next_sequence =
                    increment_sequence(partition.next_sequence, batch.records() as i32);
            }
            batch.attempts += 1;
            partition.in_flight += 1;
            partition.is_ready = !partition.closed.is_empty();
            if partition.is_ready {
                self.brokers[broker].ready.push_back(at);
            }
            batches.push((at, batch));
        }
        if batches.is_empty() {
            return None;
        }
        let one = &mut self.brokers[broker];
        let correlation = one.next_correlation;
        one.next_correlation = correlation.wrapping_add(1);
        one.in_flight.push_back(Request {
            correlation,
            sent: now,
            batches,
        });
        one.in_flight.back_mut()
    }

    /// When to look again. `None`: when something happens.
    pub(super) fn next_look(&mut self, now: u64, end: u64) -> Option<u64> {
        let has_room = self
            .brokers
            .iter()
            .any(|one| one.up && one.in_flight.len() < self.plan.in_flight);
        self.waits_for_records =
            has_room && self.takes_records(now) && self.buffered < self.plan.buffer_bytes;
        let mut look = self.looked_at + LOOK_EVERY;
        look = look.min(self.cycle.as_ref().and_then(Cycle::ends_at).unwrap_or(look));
        if let Some(schedule) = &self.schedule
            && self.takes_records(now)
            && self.buffered < self.plan.buffer_bytes
            && schedule.next_due() < end
        {
            look = look.min(schedule.next_due());
        }
        let linger = self.plan.linger.as_nanos() as u64;
        let may_send = self.may_number();
        for broker in &self.brokers {
            if !may_send || !broker.up || broker.in_flight.len() >= self.plan.in_flight {
                continue;
            }
            if let Some(at) = broker.opened.front()
                && let Some(batch) = &self.partitions[*at].open
            {
                look = look.min(batch.opened.saturating_add(linger));
            }
            for at in &broker.ready {
                let partition = &self.partitions[*at];
                if partition.not_before > now {
                    look = look.min(partition.not_before);
                }
            }
        }
        Some(look.max(now))
    }

    // ---------------------------------------------------------------------------- settling

    /// The oldest request of a broker was answered (or, without acks, written): `code` gives each
    /// partition's outcome. Returns how many measured records were acknowledged, or `None` if
    /// `correlation` is not that request's.
    pub(super) fn settle(
        &mut self,
        broker: usize,
        correlation: Option<i32>,
        at: u64,
        samples: &Samples,
        code: impl Fn(i32) -> ErrorCode,
    ) -> Option<u64> {
        let front = self.brokers[broker].in_flight.front()?;
        if correlation.is_some_and(|id| id != front.correlation) {
            return None;
        }
        let request = self.brokers[broker].in_flight.pop_front()?;
        Some(self.end_request(request, at, samples, code))
    }

    fn end_request(
        &mut self,
        request: Request,
        at: u64,
        samples: &Samples,
        code: impl Fn(i32) -> ErrorCode,
    ) -> u64 {
        let mut measured = 0;
        for (partition, batch) in request.batches {
            self.partitions[partition].in_flight -= 1;
            let code = code(partition as i32);
            measured += self.judge(partition, batch, code, at, samples);
        }
        measured
    }

    fn judge(
        &mut self,
        at: usize,
        batch: Batch,
        code: ErrorCode,
        now: u64,
        samples: &Samples,
    ) -> u64 {
        let numbered = batch.sequence.is_some();
        let delivered =
            code == ErrorCode::NONE || (numbered && code == ErrorCode::DUPLICATE_SEQUENCE_NUMBER);
        if delivered {
            self.buffered -= batch.payload as usize;
            let measured = samples.acknowledged(&batch.due, batch.payload, now);
            self.spares.give_back(batch);
            return measured;
        }
        let expired = now >= batch.opened + self.plan.delivery_timeout.as_nanos() as u64;
        // An earlier batch came back or failed: the broker refuses what comes after the gap.
        let outdated = batch.sequence.map(|(whose, _)| whose) != self.identity;
        let after_gap = numbered
            && code == ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER
            && (self.partitions[at].came_back || outdated);
        if (code.is_retriable() || after_gap) && !expired {
            samples.resent(batch.records(), format!("sent again after {}", code.name()));
            self.refresh |= !after_gap;
            let partition = &mut self.partitions[at];
            partition.came_back = true;
            partition.not_before = now + RETRY_BACKOFF;
            let place = partition
                .closed
                .partition_point(|other| other.order < batch.order);
            partition.closed.insert(place, batch);
            if let Some(broker) = partition.broker
                && !partition.is_ready
            {
                partition.is_ready = true;
                self.brokers[broker].ready.push_back(at);
            }
            return 0;
        }
        if let Some(cycle) = &mut self.cycle {
            cycle.fail(code);
        } else if numbered {
            // Its numbers are missing now: what follows needs a new identity.
            self.identity = None;
        }
        self.fail(batch, now, samples, format!("failed with {}", code.name()));
        0
    }

    fn fail(&mut self, batch: Batch, now: u64, samples: &Samples, why: String) {
        self.buffered -= batch.payload as usize;
        samples.failed(&batch.due, now, why);
        self.spares.give_back(batch);
    }

    /// The connection to a broker ended: what was in flight may or may not be in the log.
    pub(super) fn lose(&mut self, broker: usize, now: u64, samples: &Samples) {
        self.brokers[broker].up = false;
        self.refresh = true;
        let lost = std::mem::take(&mut self.brokers[broker].in_flight);
        for request in lost {
            self.end_request(request, now, samples, |_| ErrorCode::NETWORK_EXCEPTION);
        }
    }

    /// Gives up what is older than the delivery time-out. Returns brokers whose oldest request is
    /// older than the request time-out: their connections are to be ended.
    pub(super) fn expire(&mut self, now: u64, samples: &Samples) -> Vec<usize> {
        if now < self.looked_at + LOOK_EVERY {
            return Vec::new();
        }
        self.looked_at = now;
        let delivery = self.plan.delivery_timeout.as_nanos() as u64;
        for at in 0..self.partitions.len() {
            while let Some(batch) = self.partitions[at].closed.front()
                && batch.opened + delivery <= now
            {
                if let Some(batch) = self.partitions[at].closed.pop_front() {
                    if let Some(cycle) = &mut self.cycle {
                        cycle.fail(ErrorCode::REQUEST_TIMED_OUT);
                    } else if batch.sequence.is_some() {
                        self.identity = None;
                    }
                    self.fail(batch, now, samples, "not delivered in time".to_owned());
                }
            }
        }
        let patience = self.plan.request_timeout.as_nanos() as u64;
        let late = |broker: &Broker| {
            let oldest = broker.in_flight.front();
            oldest.is_some_and(|request| request.sent + patience <= now)
        };
        (0..self.brokers.len())
            .filter(|at| late(&self.brokers[*at]))
            .collect()
    }

    /// The run is over: what is not settled has failed, what was due and not made is unsent.
    pub(super) fn give_up(&mut self, now: u64, samples: &Samples) {
        let mut left: Vec<Batch> = Vec::new();
        for broker in &mut self.brokers {
            let requests = std::mem::take(&mut broker.in_flight);
            left.extend(requests.into_iter().flat_map(|r| r.batches).map(|(_, b)| b));
        }
        for partition in &mut self.partitions {
            left.extend(partition.open.take());
            left.extend(std::mem::take(&mut partition.closed));
        }
        for batch in left {
            self.fail(
                batch,
                now,
                samples,
                "not settled when the run ended".to_owned(),
            );
        }
        if let Some(schedule) = &mut self.schedule {
            let mut unsent = 0;
            while schedule.next_due() < samples.window().to {
                unsent += u64::from(samples.window().measures(schedule.take()));
            }
            samples.unsent(unsent);
        }
    }
}

#[path = "outgoing_transactions.rs"]
mod transactions;

#[cfg(test)]
#[path = "outgoing_tests.rs"]
mod tests;
