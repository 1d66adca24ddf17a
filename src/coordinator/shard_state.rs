//! The state of one partition of `__consumer_offsets`: the classic groups and committed offsets
//! that live there. Runs on the core that owns the partition, synchronously: a command gives
//! effects, an append's outcome gives more. It never waits, writes, reads a clock or asks for
//! randomness; requests that must wait are kept as tokens.
//!
//! A change that is stored becomes visible when its record is in the log below the high
//! watermark ([`GroupCoordinatorShard::append_done`]); before that, removals and commits under
//! way are remembered so that later commands of the same shard take them into account.

use std::time::Duration;

use ahash::{AHashMap, RandomState};
use indexmap::IndexMap;
use smallvec::SmallVec;

use super::appends::{Appends, Change, Continuation, append_error_to_response_error};
use super::effects::{AppendId, Clock, CoordinatorRecord, Effects, Producer, ReplyToken, Response};
use super::group::{Group, GroupRef};
use super::offsets::Offsets;
use super::records::{self, ForeignKind};
use super::settings::{GroupLimits, GroupSettings};
use super::step::Step;
use super::timers::{Deadline, Timers};
use crate::rt::Instant;
use crate::wire::{ErrorCode, Str};

/// Whether the shard may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Records are being replayed; commands are answered COORDINATOR_LOAD_IN_PROGRESS.
    Loading,
    Active,
    /// Leadership has gone; commands are answered NOT_COORDINATOR.
    Unloaded,
}

/// Deadlines that one tick carries out: about 2.5 µs each when a member is removed, so that ten
/// thousand sessions that end together do not hold the core for 25 ms.
const DEADLINES_PER_TICK: usize = 1_000;
/// Between two steps of a retention sweep, so that requests pass in between.
const SWEEP_STEP_MS: u64 = 1;

/// See the module's words.
#[derive(Debug)]
pub struct GroupCoordinatorShard {
    pub(super) settings: GroupSettings,
    pub(super) limits: GroupLimits,
    pub(super) phase: Phase,
    /// In an order that depends only on what happened, so that walks over it repeat in a replay.
    pub(super) groups: IndexMap<Str, Group, RandomState>,
    /// Groups whose tombstone is under way: gone for commands, still there for readers. An id has
    /// several lives here if it was made and removed again meanwhile.
    pub(super) removing: IndexMap<Str, Vec<Group>, RandomState>,
    /// Groups of other protocols. Their records are left alone.
    pub(super) foreign: AHashMap<Str, ForeignKind>,
    pub(super) offsets: Offsets,
    pub(super) timers: Timers,
    pub(super) appends: Appends,
    /// The sweep under way has still to look at the groups before this index; 0 between sweeps.
    pub(super) sweep_from: usize,
    next_birth: u64,
}

impl GroupCoordinatorShard {
    /// An empty shard that waits for the records of its partition.
    pub fn new(settings: GroupSettings, limits: GroupLimits) -> GroupCoordinatorShard {
        GroupCoordinatorShard {
            settings,
            limits,
            phase: Phase::Loading,
            groups: IndexMap::default(),
            removing: IndexMap::default(),
            foreign: AHashMap::new(),
            offsets: Offsets::default(),
            timers: Timers::default(),
            appends: Appends::default(),
            sweep_from: 0,
            next_birth: 0,
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The error that answers every command now, if there is one.
    pub fn refusal(&self) -> Option<ErrorCode> {
        match self.phase {
            Phase::Loading => Some(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            Phase::Active => None,
            Phase::Unloaded => Some(ErrorCode::NOT_COORDINATOR),
        }
    }

    /// New settings; running timers keep the times they were set for.
    pub fn set_settings(&mut self, settings: GroupSettings) {
        self.settings = settings;
    }

    /// Groups, including those that only store offsets.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Deadlines and appends under way: figures for metrics.
    pub fn work_in_progress(&self) -> (usize, usize) {
        (self.timers.len(), self.appends.len())
    }

    // ---- life

    /// All records were replayed: sessions start anew and commands are accepted. Without effect if
    /// leadership was lost meanwhile.
    pub fn finish_loading(&mut self, clock: Clock) -> Effects {
        assert_ne!(self.phase, Phase::Active, "a coordinator shard loads once");
        let mut out = Effects::new();
        if self.phase == Phase::Unloaded {
            return out;
        }
        self.phase = Phase::Active;
        let (groups, mut step) = self.step(clock, &mut out);
        for group in groups.values_mut() {
            group.resume(&mut step);
        }
        self.arm_retention(clock);
        out
    }

    /// Leadership is lost: everything that waits is answered NOT_COORDINATOR. Appends reported
    /// after this have no effect.
    pub fn unload(&mut self) -> Effects {
        let mut out = Effects::new();
        self.phase = Phase::Unloaded;
        let mut groups = std::mem::take(&mut self.groups);
        // No deadline matters any more, so neither does the moment.
        let clock = Clock {
            now: Instant::default(),
            wall_ms: 0,
        };
        let (_, mut step) = self.step(clock, &mut out);
        for group in groups.values_mut() {
            group.disband(ErrorCode::NOT_COORDINATOR, &mut step);
        }
        self.removing.clear();
        self.appends.abandon(ErrorCode::NOT_COORDINATOR, &mut out);
        self.offsets.clear();
        self.foreign.clear();
        self.timers.clear();
        out
    }

    // ---- time

    /// When [`GroupCoordinatorShard::on_tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Carries out what is due at `clock.now`, up to a thousand deadlines: if there is more,
    /// [`GroupCoordinatorShard::next_deadline`] still lies in the past.
    pub fn on_tick(&mut self, clock: Clock) -> Effects {
        let mut out = Effects::new();
        for _ in 0..DEADLINES_PER_TICK {
            let Some(deadline) = self.timers.pop_due(clock.now) else {
                break;
            };
            let (groups, mut step) = self.step(clock, &mut out);
            match deadline {
                Deadline::Session { group, member } => {
                    if let Some(group) = groups.get_mut(&group) {
                        group.session_timer_fired(&member, &mut step);
                    }
                }
                Deadline::Join { group } => {
                    if let Some(group) = groups.get_mut(&group) {
                        group.join_timer_fired(&mut step);
                    }
                }
                Deadline::Sync { group } => {
                    if let Some(group) = groups.get_mut(&group) {
                        group.sync_timer_fired(&mut step);
                    }
                }
                Deadline::Retention => {
                    if self.sweep_from == 0 {
                        self.sweep_from = self.groups.len();
                    }
                    self.sweep_step(clock, &mut out);
                    self.arm_retention(clock);
                }
            }
        }
        out
    }

    /// Sets the time of the next sweep, or of the next step of the one under way.
    fn arm_retention(&mut self, clock: Clock) {
        let wait_ms = match self.sweep_from {
            // At least a millisecond, or a sweep would follow itself within one tick.
            0 => self.settings.offsets_retention_check_interval_ms.max(1) as u64,
            _ => SWEEP_STEP_MS,
        };
        let at = clock.now + Duration::from_millis(wait_ms);
        self.timers.insert(at, Deadline::Retention);
    }

    // ---- appends

    /// Reports the outcome of an append: the offset of its first record once the high watermark
    /// has passed it, or the error of the replica room if nothing was written. Outcomes come in
    /// the order of the appends.
    pub fn append_done(
        &mut self,
        id: AppendId,
        outcome: Result<i64, ErrorCode>,
        clock: Clock,
    ) -> Effects {
        let mut out = Effects::new();
        let Some(finished) = self.appends.finish(id) else {
            return out;
        };
        let error = outcome.err().map(append_error_to_response_error);
        match finished.then {
            Continuation::Changes {
                changes,
                producer_id,
            } => {
                self.finish_changes(changes, producer_id, outcome.ok());
            }
            then => {
                let (groups, mut step) = self.step(clock, &mut out);
                finish_group_append(groups, then, error, &mut step);
            }
        }
        self.appends.release(finished.tickets, error, &mut out);
        out
    }

    /// An append takes longer than `offsets.commit.timeout.ms`. Whoever waits for it is told
    /// (REQUEST_TIMED_OUT becomes COORDINATOR_NOT_AVAILABLE); its changes still become visible
    /// when [`GroupCoordinatorShard::append_done`] reports success later.
    pub fn append_timed_out(&mut self, id: AppendId, clock: Clock) -> Effects {
        let mut out = Effects::new();
        let error = append_error_to_response_error(ErrorCode::REQUEST_TIMED_OUT);
        let Some(then) = self.appends.give_up_waiting(id, error, &mut out) else {
            return out;
        };
        let group = match then {
            Continuation::Assignment { group, .. } => group.clone(),
            Continuation::StaticMember(swap) => swap.group.clone(),
            _ => return out,
        };
        let given_up = std::mem::replace(then, Continuation::Settled { group });
        let (groups, mut step) = self.step(clock, &mut out);
        if let Some(group) = given_up.group().and_then(|group| groups.get_mut(&group.id)) {
            // The record is still under way.
            group.appends_in_flight += 1;
        }
        finish_group_append(groups, given_up, Some(error), &mut step);
        out
    }

    /// Makes the changes of an append that succeeded at `base_offset`, or forgets them.
    fn finish_changes(&mut self, changes: Vec<Change>, producer_id: i64, base_offset: Option<i64>) {
        for (index, change) in changes.into_iter().enumerate() {
            if let Change::CommitOffset {
                group,
                topic,
                partition,
                ..
            }
            | Change::RemoveOffset {
                group,
                topic,
                partition,
            } = &change
            {
                self.offsets.end(group, topic, *partition);
            }
            match (base_offset, change) {
                (Some(base), change) => self.apply(change, producer_id, base + index as i64),
                (None, Change::RemoveGroup { group }) => {
                    // The tombstone is not in the log; the group is back unless it was made anew.
                    if let Some(restored) = self.take_removing(&group) {
                        self.groups.entry(group.id).or_insert(restored);
                    }
                }
                (None, Change::CommitOffset { .. } | Change::RemoveOffset { .. }) => {}
            }
        }
    }

    /// Asks for the changes to be written, in several batches within the limits of tombstones if
    /// `atomic` is false, and answers when all are.
    pub(super) fn write(
        &mut self,
        changes: Vec<Change>,
        producer: Option<Producer>,
        atomic: bool,
        reply: Option<(ReplyToken, Response)>,
        clock: Clock,
        out: &mut Effects,
    ) {
        let mut ids: SmallVec<[AppendId; 1]> = SmallVec::new();
        let mut to_append = Vec::new();
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut changes = changes.into_iter().peekable();
        while let Some(change) = changes.next() {
            let record = self.begin_change(&change);
            bytes += record.key.len();
            to_append.push(record);
            batch.push(change);
            let is_full = !atomic
                && (batch.len() >= self.limits.tombstones_per_append
                    || bytes >= self.limits.tombstone_bytes_per_append);
            if is_full || changes.peek().is_none() {
                bytes = 0;
                let then = Continuation::Changes {
                    changes: std::mem::take(&mut batch),
                    producer_id: producer.map_or(-1, |producer| producer.id),
                };
                let (_, mut step) = self.step(clock, out);
                ids.push(step.append(std::mem::take(&mut to_append), producer, then));
            }
        }
        match reply {
            Some((token, response)) if ids.is_empty() => {
                out.push(super::effects::Effect::Reply(token, response));
            }
            Some((token, response)) => self.appends.hold(&ids, token, response),
            None => {}
        }
    }

    /// The record of a change, which is under way from now on.
    fn begin_change(&mut self, change: &Change) -> CoordinatorRecord {
        match change {
            Change::CommitOffset {
                group,
                topic,
                partition,
                value,
            } => {
                self.offsets.begin(group, topic, *partition);
                records::offset_commit(group, topic, *partition, value)
            }
            Change::RemoveOffset {
                group,
                topic,
                partition,
            } => {
                self.offsets.begin(group, topic, *partition);
                records::offset_tombstone(group, topic, *partition)
            }
            Change::RemoveGroup { group } => records::group_tombstone(&group.id),
        }
    }

    // ---- groups

    pub(super) fn next_birth(&mut self) -> u64 {
        self.next_birth += 1;
        self.next_birth
    }

    /// Takes an empty group out of the commands' sight, and gives the change that will take it
    /// out of the readers' when it is written.
    pub(super) fn begin_removing(
        &mut self,
        id: &Str,
        clock: Clock,
        out: &mut Effects,
    ) -> Option<Change> {
        let mut group = self.groups.swap_remove(id)?;
        let (_, mut step) = self.step(clock, out);
        group.disband(ErrorCode::UNKNOWN_MEMBER_ID, &mut step);
        let reference = group.reference();
        self.removing.entry(id.clone()).or_default().push(group);
        Some(Change::RemoveGroup { group: reference })
    }

    /// Takes one life of a group out of those that are being removed.
    pub(super) fn take_removing(&mut self, group: &GroupRef) -> Option<Group> {
        let lives = self.removing.get_mut(&group.id)?;
        let index = lives.iter().position(|life| life.is(group))?;
        let life = lives.remove(index);
        if lives.is_empty() {
            self.removing.swap_remove(&group.id);
        }
        Some(life)
    }

    /// The group as a reader may see it: stored, and not yet removed.
    pub(super) fn readable(&self, id: &str) -> Option<&Group> {
        let group = self.groups.get(id).filter(|group| group.is_durable);
        group.or_else(|| {
            let lives = self.removing.get(id)?;
            lives.last().filter(|group| group.is_durable)
        })
    }

    /// Borrows the groups and, apart from them, what a step may touch.
    pub(super) fn step<'a>(
        &'a mut self,
        clock: Clock,
        out: &'a mut Effects,
    ) -> (&'a mut IndexMap<Str, Group, RandomState>, Step<'a>) {
        let step = Step {
            settings: &self.settings,
            limits: &self.limits,
            clock,
            timers: &mut self.timers,
            appends: &mut self.appends,
            out,
            asked: SmallVec::new(),
        };
        (&mut self.groups, step)
    }
}

/// Finishes an append that was about a group and its members.
fn finish_group_append(
    groups: &mut IndexMap<Str, Group, RandomState>,
    then: Continuation,
    error: Option<ErrorCode>,
    step: &mut Step<'_>,
) {
    let Some(reference) = then.group() else {
        return;
    };
    let Some(group) = groups.get_mut(&reference.id) else {
        return;
    };
    if !group.is(reference) {
        return;
    }
    group.appends_in_flight = group.appends_in_flight.saturating_sub(1);
    group.is_durable |= error.is_none();
    match (then, error) {
        (
            Continuation::Assignment {
                generation,
                assignment,
                ..
            },
            error,
        ) => {
            group.assignment_stored(generation, &assignment, error, step);
        }
        (Continuation::StaticMember(swap), error) => group.static_swap_stored(swap, error, step),
        (Continuation::NewGroup { group: id }, Some(error)) => {
            if !group.is_durable && group.appends_in_flight == 0 {
                group.disband(error, step);
                groups.swap_remove(&id.id);
            }
        }
        (
            Continuation::NewGroup { .. }
            | Continuation::EmptyGroup { .. }
            | Continuation::Settled { .. }
            | Continuation::Changes { .. },
            _,
        ) => {}
    }
}
