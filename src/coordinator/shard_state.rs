//! The state of one partition of `__consumer_offsets`: the classic groups and committed offsets
//! that live there. Runs on the core that owns the partition, synchronously: a command gives
//! effects, an append's outcome gives more. It never waits, writes, reads a clock or asks for
//! randomness; requests that must wait are kept as tokens.
//!
//! A change that is stored becomes visible when its record is in the log below the high
//! watermark ([`GroupCoordinatorShard::append_done`]); before that, removals and commits under
//! way are remembered so that later commands of the same shard take them into account.

use ahash::{AHashMap, RandomState};
use indexmap::IndexMap;
use smallvec::SmallVec;

use super::appends::{Appends, Change, Continuation, append_error_to_response_error};
use super::effects::{AppendId, Clock, Effects, Producer, ReplyToken, Response};
use super::group::Group;
use super::offsets::Offsets;
use super::records::{self, ForeignKind};
use super::settings::{GroupLimits, GroupSettings};
use super::step::Step;
use super::timers::{Deadline, TimerId, Timers};
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

/// See the module's words.
#[derive(Debug)]
pub struct GroupCoordinatorShard {
    pub(super) settings: GroupSettings,
    pub(super) limits: GroupLimits,
    pub(super) phase: Phase,
    /// In the order of creation, so that walks over it repeat in a replay.
    pub(super) groups: IndexMap<Str, Group, RandomState>,
    /// Groups whose tombstone is under way: gone for commands, still there for readers.
    pub(super) removing: IndexMap<Str, Group, RandomState>,
    /// Groups of other protocols. Their records are left alone.
    pub(super) foreign: AHashMap<Str, ForeignKind>,
    pub(super) offsets: Offsets,
    pub(super) timers: Timers,
    pub(super) appends: Appends,
    pub(super) retention_timer: Option<TimerId>,
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
            retention_timer: None,
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

    /// All records were replayed: sessions start anew and commands are accepted.
    pub fn finish_loading(&mut self, clock: Clock) -> Effects {
        assert_eq!(self.phase, Phase::Loading, "a coordinator shard loads once");
        self.phase = Phase::Active;
        let mut out = Effects::new();
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
        self.retention_timer = None;
        out
    }

    // ---- time

    /// When [`GroupCoordinatorShard::on_tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Carries out everything that is due at `clock.now`.
    pub fn on_tick(&mut self, clock: Clock) -> Effects {
        let mut out = Effects::new();
        while let Some(deadline) = self.timers.pop_due(clock.now) {
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
                    self.retention_timer = None;
                    self.expire_offsets(clock, &mut out);
                    self.arm_retention(clock);
                }
            }
        }
        out
    }

    fn arm_retention(&mut self, clock: Clock) {
        // At least a millisecond, or a sweep would follow itself within one tick.
        let interval_ms = self.settings.offsets_retention_check_interval_ms.max(1) as u64;
        let at = clock.now + std::time::Duration::from_millis(interval_ms);
        self.retention_timer = Some(self.timers.insert(at, Deadline::Retention));
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
                    if let Some(restored) = self.removing.swap_remove(&group) {
                        self.groups.entry(group).or_insert(restored);
                    }
                }
                (None, Change::CommitOffset { .. } | Change::RemoveOffset { .. }) => {}
            }
        }
    }

    /// Asks for the changes to be written, in batches of `limits.tombstones_per_append` if
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
        let per_append = if atomic {
            changes.len().max(1)
        } else {
            self.limits.tombstones_per_append.max(1)
        };
        let mut ids: SmallVec<[AppendId; 1]> = SmallVec::new();
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let batch: Vec<Change> = changes.by_ref().take(per_append).collect();
            let mut to_append = Vec::with_capacity(batch.len());
            for change in &batch {
                to_append.push(match change {
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
                    Change::RemoveGroup { group } => records::group_tombstone(group),
                });
            }
            let producer_id = producer.map_or(-1, |producer| producer.id);
            let (_, mut step) = self.step(clock, out);
            let then = Continuation::Changes {
                changes: batch,
                producer_id,
            };
            ids.push(step.append(to_append, producer, then));
        }
        match reply {
            Some((token, response)) if ids.is_empty() => {
                out.push(super::effects::Effect::Reply(token, response));
            }
            Some((token, response)) => self.appends.hold(&ids, token, response),
            None => {}
        }
    }

    // ---- groups

    pub(super) fn next_birth(&mut self) -> u64 {
        self.next_birth += 1;
        self.next_birth
    }

    /// Takes an empty group out of the commands' sight while its tombstone is written.
    pub(super) fn begin_removing(&mut self, id: &Str, clock: Clock, out: &mut Effects) {
        let Some(mut group) = self.groups.shift_remove(id) else {
            return;
        };
        let (_, mut step) = self.step(clock, out);
        group.disband(ErrorCode::UNKNOWN_MEMBER_ID, &mut step);
        self.removing.insert(id.clone(), group);
    }

    /// The group as a reader may see it: stored, and not yet removed.
    pub(super) fn readable(&self, id: &str) -> Option<&Group> {
        let group = self.groups.get(id).filter(|group| group.is_durable);
        group.or_else(|| self.removing.get(id).filter(|group| group.is_durable))
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
                groups.shift_remove(&id.id);
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
