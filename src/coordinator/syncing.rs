//! SyncGroup (0-5) and Heartbeat (0-4). Part of the shard state machine on the core of the
//! group's partition. A heartbeat looks two maps up and moves one number.

use ahash::AHashMap;
use bytes::Bytes;

use super::appends::Continuation;
use super::effects::{Call, Effects, Parked, ReplyToken};
use super::group::{Group, GroupState};
use super::rebalance::refuse_parked;
use super::records;
use super::refusal;
use super::shard_state::{GroupCoordinatorShard, Phase};
use super::step::Step;
use crate::wire::messages::heartbeat_request::HeartbeatRequest;
use crate::wire::messages::heartbeat_response::HeartbeatResponse;
use crate::wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use crate::wire::{ErrorCode, Str};

/// From this version on, protocol type and name must be given.
const PROTOCOL_REQUIRED_FROM: i16 = 5;

impl GroupCoordinatorShard {
    /// Answers `token` at once with an error or the assignment of a stable group, or once the
    /// leader's assignment is stored.
    pub fn sync_group(
        &mut self,
        call: &Call<'_>,
        request: SyncGroupRequest,
        token: ReplyToken,
    ) -> Effects {
        let mut out = Effects::new();
        let parked = Parked {
            token,
            version: call.version,
        };
        let lacks_protocol = request.protocol_type.is_none() || request.protocol_name.is_none();
        let refusal_now = if call.version >= PROTOCOL_REQUIRED_FROM && lacks_protocol {
            Some(ErrorCode::INCONSISTENT_GROUP_PROTOCOL)
        } else if request.group_id.is_empty() {
            Some(ErrorCode::INVALID_GROUP_ID)
        } else {
            self.refusal()
        };
        if let Some(error) = refusal_now {
            out.push(parked.sync_reply(refusal::sync_group(error)));
            return out;
        }
        let (groups, mut step) = self.step(call.clock, &mut out);
        match groups.get_mut(&request.group_id) {
            Some(group) => group.sync(request, parked, &mut step),
            None => {
                step.out
                    .push(parked.sync_reply(refusal::sync_group(ErrorCode::UNKNOWN_MEMBER_ID)));
            }
        }
        out
    }

    /// A heartbeat while the shard loads is answered without an error: nothing is known that
    /// could be wrong.
    pub fn heartbeat(&mut self, call: &Call<'_>, request: &HeartbeatRequest) -> HeartbeatResponse {
        let error = if request.group_id.is_empty() {
            ErrorCode::INVALID_GROUP_ID
        } else {
            match self.phase {
                Phase::Loading => ErrorCode::NONE,
                Phase::Unloaded => ErrorCode::NOT_COORDINATOR,
                Phase::Active => self.heartbeat_error(call, request),
            }
        };
        HeartbeatResponse {
            error_code: error.0,
            ..Default::default()
        }
    }

    fn heartbeat_error(&mut self, call: &Call<'_>, request: &HeartbeatRequest) -> ErrorCode {
        let mut out = Effects::new();
        let (groups, mut step) = self.step(call.clock, &mut out);
        let Some(group) = groups.get_mut(&request.group_id) else {
            return ErrorCode::UNKNOWN_MEMBER_ID;
        };
        let instance = request.group_instance_id.as_deref();
        if let Err(error) = group.validate_member(&request.member_id, instance) {
            return error;
        }
        if request.generation_id != group.generation {
            return ErrorCode::ILLEGAL_GENERATION;
        }
        group.keep_alive(&request.member_id, &mut step);
        match group.state() {
            GroupState::Empty => ErrorCode::UNKNOWN_MEMBER_ID,
            GroupState::PreparingRebalance => ErrorCode::REBALANCE_IN_PROGRESS,
            GroupState::CompletingRebalance | GroupState::Stable => ErrorCode::NONE,
        }
    }
}

impl Group {
    fn sync(&mut self, request: SyncGroupRequest, parked: Parked, step: &mut Step<'_>) {
        let refuse = |error: ErrorCode, step: &mut Step<'_>| {
            step.out.push(parked.sync_reply(refusal::sync_group(error)));
        };
        let member_id = &request.member_id;
        if let Err(error) = self.validate_member(member_id, request.group_instance_id.as_deref()) {
            return refuse(error, step);
        }
        if request.generation_id != self.generation {
            return refuse(ErrorCode::ILLEGAL_GENERATION, step);
        }
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol_name, &self.protocol_name)
        {
            return refuse(ErrorCode::INCONSISTENT_GROUP_PROTOCOL, step);
        }
        match self.state() {
            GroupState::Empty => refuse(ErrorCode::UNKNOWN_MEMBER_ID, step),
            GroupState::PreparingRebalance => refuse(ErrorCode::REBALANCE_IN_PROGRESS, step),
            GroupState::Stable => {
                self.synced(member_id, step);
                step.out
                    .push(parked.sync_reply(self.sync_response(member_id)));
            }
            GroupState::CompletingRebalance => {
                self.synced(member_id, step);
                if let Some(member) = self.member_mut(member_id) {
                    let superseded = member.sync.replace(parked);
                    let error = ErrorCode::REBALANCE_IN_PROGRESS;
                    refuse_parked(None, superseded, error, Str::default(), step);
                }
                // A leader that asks again while its assignment is being stored just waits.
                if self.is_leader(member_id) && self.storing_assignment_of.is_none() {
                    self.store_assignment(request.assignments, step);
                }
            }
        }
    }

    /// Members that the leader forgot get an empty assignment; strangers are left out.
    fn store_assignment(
        &mut self,
        assignments: Vec<SyncGroupRequestAssignment>,
        step: &mut Step<'_>,
    ) {
        let assignment: AHashMap<Str, Bytes> = assignments
            .into_iter()
            .filter_map(|entry| {
                let member = self.member(&entry.member_id)?;
                Some((member.id.clone(), Bytes::copy_from_slice(&entry.assignment)))
            })
            .collect();
        let record = records::group_metadata(self, |member| {
            assignment.get(&member.id).cloned().unwrap_or_default()
        });
        self.storing_assignment_of = Some(self.generation);
        self.appends_in_flight += 1;
        let then = Continuation::Assignment {
            group: self.reference(),
            generation: self.generation,
            assignment,
        };
        step.append(vec![record], None, then);
    }

    /// The assignment of `generation` is in the log, or is not going to be.
    pub(super) fn assignment_stored(
        &mut self,
        generation: i32,
        assignment: &AHashMap<Str, Bytes>,
        error: Option<ErrorCode>,
        step: &mut Step<'_>,
    ) {
        if self.storing_assignment_of == Some(generation) {
            self.storing_assignment_of = None;
        }
        if !self.is_in(GroupState::CompletingRebalance) || generation != self.generation {
            // The group has moved on: somebody joined, left or timed out.
            return;
        }
        match error {
            None => self.assign(assignment, step),
            Some(error) => {
                self.reset_assignment(error, step);
                self.prepare_rebalance(step);
            }
        }
    }
}

/// A name that is given on both sides and is not the same.
fn differs(theirs: &Option<Str>, ours: &Option<Str>) -> bool {
    matches!((theirs, ours), (Some(theirs), Some(ours)) if theirs != ours)
}
