//! LeaveGroup (0-5): one member, or from version 3 several, static ones by instance id alone.
//! Part of the shard state machine on the core of the group's partition.

use super::effects::{Call, Effects, ReplyToken, Response};
use super::group::{Group, GroupState};
use super::refusal;
use super::shard_state::GroupCoordinatorShard;
use super::step::Step;
use crate::wire::ErrorCode;
use crate::wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use crate::wire::messages::leave_group_response::{LeaveGroupResponse, MemberResponse};

/// From this version on, members leave in a batch and are answered one by one.
const BATCH_FROM: i16 = 3;

impl GroupCoordinatorShard {
    /// Answers `token` at once, or, if the group is left without members, once that is stored.
    pub fn leave_group(
        &mut self,
        call: &Call<'_>,
        request: LeaveGroupRequest,
        token: ReplyToken,
    ) -> Effects {
        let mut out = Effects::new();
        let early = if request.group_id.is_empty() {
            Some(ErrorCode::INVALID_GROUP_ID)
        } else {
            self.refusal()
        };
        if let Some(error) = early {
            let response = Response::LeaveGroup(refusal::leave_group(error));
            out.push(super::effects::Effect::Reply(token, response));
            return out;
        }
        let leavers = if call.version >= BATCH_FROM {
            request.members
        } else {
            vec![MemberIdentity {
                member_id: request.member_id,
                ..Default::default()
            }]
        };
        let (groups, mut step) = self.step(call.clock, &mut out);
        let members = match groups.get_mut(&request.group_id) {
            Some(group) => group.leave(leavers, &mut step),
            None => leavers
                .into_iter()
                .map(|leaver| answer(leaver, ErrorCode::UNKNOWN_MEMBER_ID))
                .collect(),
        };
        step.reply_when_stored(token, Response::LeaveGroup(shape(members, call.version)));
        out
    }
}

impl Group {
    fn leave(&mut self, leavers: Vec<MemberIdentity>, step: &mut Step<'_>) -> Vec<MemberResponse> {
        let mut answers = Vec::new();
        let mut has_left = false;
        for leaver in leavers {
            let outcome = self.leave_one(&leaver, step);
            has_left |= outcome.is_ok();
            answers.push(answer(leaver, outcome.err().unwrap_or(ErrorCode::NONE)));
        }
        if has_left {
            match self.state() {
                GroupState::Stable | GroupState::CompletingRebalance => {
                    self.prepare_rebalance(step)
                }
                GroupState::PreparingRebalance => self.maybe_complete_join(step),
                GroupState::Empty => {}
            }
        }
        answers
    }

    fn leave_one(&mut self, leaver: &MemberIdentity, step: &mut Step<'_>) -> Result<(), ErrorCode> {
        let instance = leaver.group_instance_id.as_deref();
        if leaver.member_id.is_empty() {
            // An administrator removes a static member whose member id is not known.
            let owner = instance
                .and_then(|instance| self.static_member(instance))
                .cloned();
            let owner = owner.ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?;
            self.drop_member(&owner, step);
            return Ok(());
        }
        if self.drop_pending(&leaver.member_id, step) {
            return Ok(());
        }
        self.validate_member(&leaver.member_id, instance)?;
        self.drop_member(&leaver.member_id, step);
        Ok(())
    }
}

fn answer(leaver: MemberIdentity, error: ErrorCode) -> MemberResponse {
    MemberResponse {
        member_id: leaver.member_id,
        group_instance_id: leaver.group_instance_id,
        error_code: error.0,
        ..Default::default()
    }
}

/// Before batches, the one member's error is the response's.
fn shape(members: Vec<MemberResponse>, version: i16) -> LeaveGroupResponse {
    if version >= BATCH_FROM {
        return LeaveGroupResponse {
            members,
            ..Default::default()
        };
    }
    let error_code = members
        .first()
        .map_or(ErrorCode::NONE.0, |member| member.error_code);
    LeaveGroupResponse {
        error_code,
        ..Default::default()
    }
}
