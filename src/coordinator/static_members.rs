//! Static members (`group.instance.id`): one that comes back takes the place of its former self,
//! whose requests are fenced, and a stable group goes on without a rebalance. Part of the shard
//! state machine on the core of the group's partition.

use super::appends::{Continuation, StaticSwap};
use super::group::{Group, GroupState};
use super::joining::Join;
use super::rebalance::refuse_parked;
use super::records;
use super::step::Step;
use crate::wire::messages::join_group_response::JoinGroupResponse;
use crate::wire::{ErrorCode, Str};

/// From this version on, a static member that leads can be told to skip the assignment (KIP-814).
const SKIP_ASSIGNMENT_FROM: i16 = 9;

impl Group {
    /// A static member has come back without an id: it takes the place of its former self, and
    /// in a stable group there is no rebalance if the protocol stays the same.
    pub(super) fn swap_static_member(
        &mut self,
        join: Join,
        old: &Str,
        new: Str,
        step: &mut Step<'_>,
    ) {
        let leader_before = self.leader.clone().unwrap_or_default();
        let Some(instance) = join.instance.clone() else {
            return;
        };
        self.rename_and_fence(old, new.clone(), step);
        let Some(member) = self.member(&new) else {
            return;
        };
        let swap = StaticSwap {
            group: self.reference(),
            instance,
            old_member: old.clone(),
            new_member: new.clone(),
            old_protocols: member.protocols.clone(),
            old_rebalance_timeout_ms: member.rebalance_timeout_ms,
            old_session_timeout_ms: member.session_timeout_ms,
            leader: leader_before,
            token: join.parked.token,
            version: join.parked.version,
        };
        self.keep_alive(&new, step);
        self.rejoin(join, &new, step);
        match self.state() {
            GroupState::Stable if self.select_protocol() == self.protocol_name => {
                let record = records::group_metadata(self, |member| member.assignment.clone());
                self.appends_in_flight += 1;
                step.append(vec![record], None, Continuation::StaticMember(swap));
            }
            // The leader may have been told of the old id already.
            GroupState::Stable | GroupState::CompletingRebalance => self.prepare_rebalance(step),
            GroupState::PreparingRebalance | GroupState::Empty => self.maybe_complete_join(step),
        }
    }

    fn rename_and_fence(&mut self, old: &str, new: Str, step: &mut Step<'_>) {
        let Some(fenced) = self.rename(old, new) else {
            return;
        };
        if let Some(timer) = fenced.timer {
            step.timers.cancel(timer);
        }
        if let Some(parked) = fenced.join {
            let response = JoinGroupResponse {
                error_code: ErrorCode::FENCED_INSTANCE_ID.0,
                member_id: fenced.id,
                ..Default::default()
            };
            step.out.push(parked.join_reply(response));
        }
        let error = ErrorCode::FENCED_INSTANCE_ID;
        refuse_parked(None, fenced.sync, error, Str::default(), step);
    }

    /// The record of a static member's new id is in the log, or is not going to be.
    pub(super) fn static_swap_stored(
        &mut self,
        swap: StaticSwap,
        error: Option<ErrorCode>,
        step: &mut Step<'_>,
    ) {
        let still_waits = self
            .member(&swap.new_member)
            .is_some_and(|member| member.join.is_some_and(|parked| parked.token == swap.token));
        let parked = if still_waits {
            self.take_join(&swap.new_member)
        } else {
            None
        };
        let Some(error) = error else {
            let Some(parked) = parked else { return };
            let is_leader = self.is_leader(&swap.new_member);
            let tells_leader = swap.version >= SKIP_ASSIGNMENT_FROM;
            let members = if is_leader && tells_leader {
                self.member_list()
            } else {
                Vec::new()
            };
            let mut response = self.join_response(&swap.new_member, members);
            if tells_leader {
                response.skip_assignment = is_leader;
            } else {
                // An old client that found itself to be the leader would assign anew; under its
                // former id it is not.
                response.leader = swap.leader;
            }
            step.out.push(parked.join_reply(response));
            return;
        };
        if self
            .static_member(&swap.instance)
            .is_some_and(|owner| *owner == swap.new_member)
        {
            let superseded = self.update_member(
                &swap.new_member,
                swap.old_protocols,
                swap.old_rebalance_timeout_ms,
                swap.old_session_timeout_ms,
                None,
            );
            refuse_parked(superseded, None, error, Str::default(), step);
            self.rename_and_fence(&swap.new_member, swap.old_member.clone(), step);
            self.keep_alive(&swap.old_member, step);
        }
        if let Some(parked) = parked {
            let mut response = self.join_response(&Str::default(), Vec::new());
            response.leader = swap.leader;
            response.error_code = error.0;
            step.out.push(parked.join_reply(response));
        }
    }
}
