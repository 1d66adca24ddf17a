//! The rebalance of a classic group: join phase, sync phase, sessions, and the timers of all
//! three. Part of the shard state machine on the core of the group's partition. It takes no
//! requests (see `joining`, `syncing`, `leaving`) and appends only what a generation needs.

use ahash::AHashMap;
use bytes::Bytes;

use super::appends::Continuation;
use super::effects::Parked;
use super::group::{Group, GroupState, JoinTimer};
use super::records;
use super::step::Step;
use super::timers::Deadline;
use crate::wire::messages::join_group_response::JoinGroupResponse;
use crate::wire::messages::sync_group_response::SyncGroupResponse;
use crate::wire::{ErrorCode, Str};

/// A group none of whose members came waits at least this long for the next look: a client may
/// say that its rebalance timeout is 0, and the timer would come back at once, for ever.
const ABSENT_GROUP_WAIT_MS_MIN: i32 = 1_000;

impl Group {
    // ---- sessions

    /// Gives a member `timeout_ms` from now. As a rule this moves a number and leaves the timer
    /// alone, which looks again when it fires; only a deadline earlier than the timer moves it.
    pub(super) fn keep_alive_for(&mut self, member: &str, timeout_ms: i32, step: &mut Step<'_>) {
        let Some(member) = self.members.get_mut(member) else {
            return;
        };
        member.deadline = step.after_ms(timeout_ms);
        if let Some(timer) = member.timer {
            if timer.at <= member.deadline {
                return;
            }
            step.timers.cancel(timer);
        }
        let deadline = Deadline::Session {
            group: self.id.clone(),
            member: member.id.clone(),
        };
        member.timer = Some(step.timers.insert(member.deadline, deadline));
    }

    /// Gives a member its session timeout from now.
    pub(super) fn keep_alive(&mut self, member: &str, step: &mut Step<'_>) {
        if let Some(timeout_ms) = self.member(member).map(|member| member.session_timeout_ms) {
            self.keep_alive_for(member, timeout_ms, step);
        }
    }

    /// The session timer of a member or pending member has fired.
    pub(super) fn session_timer_fired(&mut self, id: &str, step: &mut Step<'_>) {
        if self.pending_join.swap_remove(id).is_some() {
            if self.is_in(GroupState::PreparingRebalance) && self.have_all_joined() {
                self.complete_join(step);
            }
            return;
        }
        let group = self.id.clone();
        let Some(member) = self.member_mut(id) else {
            return;
        };
        member.timer = None;
        if member.deadline > step.clock.now {
            let deadline = Deadline::Session {
                group,
                member: member.id.clone(),
            };
            member.timer = Some(step.timers.insert(member.deadline, deadline));
            return;
        }
        if member.satisfies_heartbeat() {
            // Armed again when what is parked is answered.
            return;
        }
        self.drop_member(id, step);
        match self.state() {
            GroupState::Stable | GroupState::CompletingRebalance => self.prepare_rebalance(step),
            GroupState::PreparingRebalance if self.have_all_joined() => self.complete_join(step),
            GroupState::PreparingRebalance | GroupState::Empty => {}
        }
    }

    /// Removes a member, its timer, and answers what it has parked: it shall join anew.
    pub(super) fn drop_member(&mut self, id: &str, step: &mut Step<'_>) {
        let Some(member) = self.remove(id) else {
            return;
        };
        if let Some(timer) = member.timer {
            step.timers.cancel(timer);
        }
        refuse_parked(
            member.join,
            member.sync,
            ErrorCode::UNKNOWN_MEMBER_ID,
            Str::default(),
            step,
        );
    }

    pub(super) fn drop_pending(&mut self, id: &str, step: &mut Step<'_>) -> bool {
        let Some(timer) = self.pending_join.swap_remove(id) else {
            return false;
        };
        step.timers.cancel(timer);
        true
    }

    // ---- join phase

    /// Starts a rebalance if none is under way, else sees whether the one under way can end.
    pub(super) fn rebalance(&mut self, step: &mut Step<'_>) {
        if self.is_in(GroupState::PreparingRebalance) {
            self.maybe_complete_join(step);
        } else {
            self.prepare_rebalance(step);
        }
    }

    pub(super) fn prepare_rebalance(&mut self, step: &mut Step<'_>) {
        if self.is_in(GroupState::CompletingRebalance) {
            self.reset_assignment(ErrorCode::REBALANCE_IN_PROGRESS, step);
        }
        self.cancel_sync_timer(step);
        self.storing_assignment_of = None;
        let is_initial = self.is_in(GroupState::Empty);
        self.transition(GroupState::PreparingRebalance, step.clock.wall_ms);
        if is_initial {
            let delay_ms = step.settings.initial_rebalance_delay_ms.max(0);
            let remaining_ms = (self.rebalance_timeout_ms() - delay_ms).max(0);
            self.arm_initial_join(delay_ms, remaining_ms, step);
        } else if self.have_all_joined() {
            self.complete_join(step);
        } else {
            self.arm_join(self.rebalance_timeout_ms(), step);
        }
    }

    /// Ends the join phase if everybody is in; the first one of a group waits for its timer.
    pub(super) fn maybe_complete_join(&mut self, step: &mut Step<'_>) {
        if self.is_in(GroupState::PreparingRebalance)
            && !self.is_initial_join_phase()
            && self.have_all_joined()
        {
            self.complete_join(step);
        }
    }

    pub(super) fn join_timer_fired(&mut self, step: &mut Step<'_>) {
        let Some(timer) = self.join_timer.take() else {
            return;
        };
        match timer {
            JoinTimer::Initial {
                delay_ms,
                remaining_ms,
                ..
            } if self.new_member_added && remaining_ms != 0 => {
                self.new_member_added = false;
                let next_ms = step
                    .settings
                    .initial_rebalance_delay_ms
                    .max(0)
                    .min(remaining_ms);
                self.arm_initial_join(next_ms, (remaining_ms - delay_ms).max(0), step);
            }
            JoinTimer::Initial { .. } | JoinTimer::Rebalance { .. } => self.complete_join(step),
        }
    }

    fn arm_initial_join(&mut self, delay_ms: i32, remaining_ms: i32, step: &mut Step<'_>) {
        self.cancel_join_timer(step);
        let deadline = Deadline::Join {
            group: self.id.clone(),
        };
        let timer = step.timers.insert(step.after_ms(delay_ms), deadline);
        self.join_timer = Some(JoinTimer::Initial {
            timer,
            delay_ms,
            remaining_ms,
        });
    }

    fn arm_join(&mut self, wait_ms: i32, step: &mut Step<'_>) {
        self.cancel_join_timer(step);
        let deadline = Deadline::Join {
            group: self.id.clone(),
        };
        let timer = step.timers.insert(step.after_ms(wait_ms), deadline);
        self.join_timer = Some(JoinTimer::Rebalance { timer });
    }

    fn cancel_join_timer(&mut self, step: &mut Step<'_>) {
        if let Some(JoinTimer::Initial { timer, .. } | JoinTimer::Rebalance { timer }) =
            self.join_timer.take()
        {
            step.timers.cancel(timer);
        }
    }

    /// Ends the join phase with those who came: removes the dynamic members who did not, settles
    /// leader, protocol and generation, and answers every JoinGroup.
    pub(super) fn complete_join(&mut self, step: &mut Step<'_>) {
        assert!(
            self.is_in(GroupState::PreparingRebalance),
            "join phase of group {} ends in state {}",
            self.id,
            self.state()
        );
        self.cancel_join_timer(step);
        let absent: Vec<Str> = self
            .members()
            .filter(|member| member.join.is_none() && member.instance.is_none())
            .map(|member| member.id.clone())
            .collect();
        for id in absent {
            self.drop_member(&id, step);
        }
        if !self.elect_joined_leader() && self.len() > 0 {
            // Static members alone, none of them here: wait until their sessions end.
            let wait_ms = self.rebalance_timeout_ms().max(ABSENT_GROUP_WAIT_MS_MIN);
            self.arm_join(wait_ms, step);
            return;
        }
        self.new_member_added = false;
        self.begin_generation(step.clock.wall_ms);
        if self.is_in(GroupState::Empty) {
            let record = records::group_metadata(self, |_| Bytes::new());
            self.appends_in_flight += 1;
            step.append(
                vec![record],
                None,
                Continuation::EmptyGroup {
                    group: self.reference(),
                },
            );
            return;
        }
        let member_list = self.member_list();
        for id in self.member_ids() {
            let members = if self.is_leader(&id) {
                member_list.clone()
            } else {
                Vec::new()
            };
            if let Some(parked) = self.take_join(&id) {
                let response = self.join_response(&id, members);
                step.out.push(parked.join_reply(response));
            }
            self.keep_alive(&id, step);
            if let Some(member) = self.member_mut(&id) {
                member.is_new = false;
            }
            self.pending_sync.insert(id);
        }
        let deadline = Deadline::Sync {
            group: self.id.clone(),
        };
        self.sync_timer = Some(
            step.timers
                .insert(step.after_ms(self.rebalance_timeout_ms()), deadline),
        );
    }

    /// The present generation as a member is told of it.
    pub(super) fn join_response(
        &self,
        member: &Str,
        members: Vec<crate::wire::messages::join_group_response::JoinGroupResponseMember>,
    ) -> JoinGroupResponse {
        JoinGroupResponse {
            generation_id: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            member_id: member.clone(),
            members,
            ..Default::default()
        }
    }

    // ---- sync phase

    fn cancel_sync_timer(&mut self, step: &mut Step<'_>) {
        self.pending_sync.clear();
        if let Some(timer) = self.sync_timer.take() {
            step.timers.cancel(timer);
        }
    }

    /// A member has sent SyncGroup: nobody has to wait for it.
    pub(super) fn synced(&mut self, id: &str, step: &mut Step<'_>) {
        self.pending_sync.swap_remove(id);
        if self.pending_sync.is_empty() {
            self.cancel_sync_timer(step);
        }
    }

    /// Removes the members that joined this generation and then did not ask for their part.
    pub(super) fn sync_timer_fired(&mut self, step: &mut Step<'_>) {
        self.sync_timer = None;
        let in_sync_phase = matches!(
            self.state(),
            GroupState::CompletingRebalance | GroupState::Stable
        );
        if !in_sync_phase || self.pending_sync.is_empty() {
            return;
        }
        for id in std::mem::take(&mut self.pending_sync) {
            self.drop_member(&id, step);
        }
        self.prepare_rebalance(step);
    }

    /// Hands out the leader's assignment; the group is stable.
    pub(super) fn assign(&mut self, assignment: &AHashMap<Str, Bytes>, step: &mut Step<'_>) {
        for id in self.member_ids() {
            if let Some(member) = self.member_mut(&id) {
                member.assignment = assignment.get(&id).cloned().unwrap_or_default();
            }
        }
        self.answer_syncs(ErrorCode::NONE, step);
        self.transition(GroupState::Stable, step.clock.wall_ms);
    }

    /// Takes assignments back and answers the parked SyncGroups with `error`.
    pub(super) fn reset_assignment(&mut self, error: ErrorCode, step: &mut Step<'_>) {
        for id in self.member_ids() {
            if let Some(member) = self.member_mut(&id) {
                member.assignment = Bytes::new();
            }
        }
        self.answer_syncs(error, step);
    }

    fn answer_syncs(&mut self, error: ErrorCode, step: &mut Step<'_>) {
        for id in self.member_ids() {
            let Some(parked) = self.member_mut(&id).and_then(|member| member.sync.take()) else {
                continue;
            };
            let response = if error == ErrorCode::NONE {
                self.sync_response(&id)
            } else {
                SyncGroupResponse {
                    error_code: error.0,
                    ..Default::default()
                }
            };
            step.out.push(parked.sync_reply(response));
            // Its session timer may have fired unheeded while the request was parked.
            self.keep_alive(&id, step);
        }
    }

    pub(super) fn sync_response(&self, member: &str) -> SyncGroupResponse {
        SyncGroupResponse {
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol_name.clone(),
            assignment: self
                .member(member)
                .map(|m| m.assignment.clone())
                .unwrap_or_default(),
            ..Default::default()
        }
    }

    // ---- the end

    /// Answers everything that is parked and cancels every timer; the group goes away.
    pub(super) fn disband(&mut self, error: ErrorCode, step: &mut Step<'_>) {
        self.cancel_join_timer(step);
        self.cancel_sync_timer(step);
        for (_, timer) in std::mem::take(&mut self.pending_join) {
            step.timers.cancel(timer);
        }
        for member in self.take_members() {
            if let Some(timer) = member.timer {
                step.timers.cancel(timer);
            }
            refuse_parked(member.join, member.sync, error, member.id, step);
        }
    }

    /// Sets the session timers of a group that was read from the log.
    pub(super) fn resume(&mut self, step: &mut Step<'_>) {
        for id in self.member_ids() {
            self.keep_alive(&id, step);
        }
        if self.len() > step.settings.max_size && !self.is_in(GroupState::PreparingRebalance) {
            // The limit was lowered; a rebalance lets members commit before some are refused.
            self.prepare_rebalance(step);
        }
    }
}

/// Answers a member's parked requests with an error; `member_id` is what its JoinGroup is told.
pub(super) fn refuse_parked(
    join: Option<Parked>,
    sync: Option<Parked>,
    error: ErrorCode,
    member_id: Str,
    step: &mut Step<'_>,
) {
    if let Some(parked) = join {
        let response = JoinGroupResponse {
            error_code: error.0,
            member_id,
            ..Default::default()
        };
        step.out.push(parked.join_reply(response));
    }
    if let Some(parked) = sync {
        let response = SyncGroupResponse {
            error_code: error.0,
            ..Default::default()
        };
        step.out.push(parked.sync_reply(response));
    }
}
