//! JoinGroup (versions 0-9): who may come in, under which id, and what it means for the
//! generation. Part of the shard state machine on the core of the group's partition. How a join
//! phase ends is `rebalance`'s.

use bytes::Bytes;

use super::appends::Continuation;
use super::effects::{Call, Effects, Parked, ReplyToken};
use super::group::{Group, GroupState};
use super::member::{Member, Protocol};
use super::rebalance::refuse_parked;
use super::records;
use super::refusal::{self, fits};
use super::shard_state::GroupCoordinatorShard;
use super::step::Step;
use super::timers::Deadline;
use crate::wire::messages::join_group_request::JoinGroupRequest;
use crate::wire::messages::join_group_response::JoinGroupResponse;
use crate::wire::{ErrorCode, Str};

/// From this version on, a dynamic member must come with the id that it is given first.
const MEMBER_ID_REQUIRED_FROM: i16 = 4;
/// A member id is the client id, a dash and a UUID; a longer client id is cut so that the whole
/// stays within a protocol string.
const CLIENT_ID_BYTES_MAX: usize = 32_000;

/// A join request, with everything copied out of the frame that a member keeps.
pub(super) struct Join {
    pub(super) member_id: Str,
    pub(super) instance: Option<Str>,
    pub(super) protocol_type: Str,
    pub(super) protocols: Vec<Protocol>,
    pub(super) rebalance_timeout_ms: i32,
    pub(super) session_timeout_ms: i32,
    pub(super) parked: Parked,
}

impl GroupCoordinatorShard {
    /// Answers `token` at once (an error, MEMBER_ID_REQUIRED, the running generation) or when the
    /// join phase ends.
    pub fn join_group(
        &mut self,
        call: &Call<'_>,
        request: JoinGroupRequest,
        token: ReplyToken,
    ) -> Effects {
        let mut out = Effects::new();
        let parked = Parked {
            token,
            version: call.version,
        };
        let refuse = |error: ErrorCode, member_id: &Str, out: &mut Effects| {
            out.push(parked.join_reply(refusal::join_group(
                error,
                member_id.clone(),
                call.version,
            )));
        };
        if request.group_id.is_empty() {
            refuse(ErrorCode::INVALID_GROUP_ID, &request.member_id, &mut out);
            return out;
        }
        let session_range =
            self.settings.min_session_timeout_ms..=self.settings.max_session_timeout_ms;
        if !session_range.contains(&request.session_timeout_ms) {
            refuse(
                ErrorCode::INVALID_SESSION_TIMEOUT,
                &request.member_id,
                &mut out,
            );
            return out;
        }
        if let Some(error) = self.refusal() {
            refuse(error, &Str::default(), &mut out);
            return out;
        }
        let is_long = request.protocols.len() > self.limits.protocols_per_member;
        if is_long || !request_fits(call, &request) {
            refuse(ErrorCode::INVALID_REQUEST, &request.member_id, &mut out);
            return out;
        }
        if self.foreign.contains_key(&request.group_id) {
            refuse(
                ErrorCode::INCONSISTENT_GROUP_PROTOCOL,
                &Str::default(),
                &mut out,
            );
            return out;
        }
        let is_unknown_member = request.member_id.is_empty();
        let has_group = self.groups.contains_key(&request.group_id);
        if !has_group {
            if !is_unknown_member {
                refuse(ErrorCode::UNKNOWN_MEMBER_ID, &request.member_id, &mut out);
                return out;
            }
            if request.protocol_type.is_empty() || request.protocols.is_empty() {
                // Refused below as well; here before a group is made for nothing.
                refuse(
                    ErrorCode::INCONSISTENT_GROUP_PROTOCOL,
                    &Str::default(),
                    &mut out,
                );
                return out;
            }
            if self.groups.len() >= self.limits.groups {
                refuse(ErrorCode::GROUP_MAX_SIZE_REACHED, &Str::default(), &mut out);
                return out;
            }
            let id = request.group_id.detached();
            let birth = self.next_birth();
            self.groups
                .insert(id.clone(), Group::new(id, birth, call.clock.wall_ms));
        }
        let (groups, mut step) = self.step(call.clock, &mut out);
        let Some(group) = groups.get_mut(&request.group_id) else {
            return out;
        };
        group.join(call, Join::new(request, parked), &mut step);
        if !has_group {
            // The group exists from here on, whatever becomes of its first member.
            group.appends_in_flight += 1;
            let record = records::new_group_metadata(group);
            step.append(
                vec![record],
                None,
                Continuation::NewGroup {
                    group: group.reference(),
                },
            );
        }
        out
    }
}

/// False if a string is longer than records and responses can carry; malformed UTF-8 grows when
/// it is decoded.
fn request_fits(call: &Call<'_>, request: &JoinGroupRequest) -> bool {
    fits(&request.group_id)
        && fits(&request.protocol_type)
        && fits(call.client_host)
        && request
            .group_instance_id
            .as_deref()
            .is_none_or(|id| id.len() <= CLIENT_ID_BYTES_MAX)
        && request
            .protocols
            .iter()
            .all(|protocol| fits(&protocol.name))
}

impl Join {
    fn new(request: JoinGroupRequest, parked: Parked) -> Join {
        let protocols = request
            .protocols
            .iter()
            .map(|protocol| Protocol {
                name: protocol.name.detached(),
                metadata: Bytes::copy_from_slice(&protocol.metadata),
            })
            .collect();
        // Version 0 has no rebalance timeout; the session timeout served as both.
        let rebalance_timeout_ms = match parked.version {
            0 => request.session_timeout_ms,
            _ => request.rebalance_timeout_ms,
        };
        Join {
            member_id: request.member_id.detached(),
            instance: request.group_instance_id.map(|id| id.detached()),
            protocol_type: request.protocol_type.detached(),
            protocols,
            rebalance_timeout_ms,
            session_timeout_ms: request.session_timeout_ms,
            parked,
        }
    }

    fn refuse(&self, error: ErrorCode, member_id: Str, step: &mut Step<'_>) {
        step.out.push(self.parked.join_reply(refusal::join_group(
            error,
            member_id,
            self.parked.version,
        )));
    }
}

impl Group {
    fn join(&mut self, call: &Call<'_>, join: Join, step: &mut Step<'_>) {
        if !self.accepts(&join.member_id, step) {
            join.refuse(ErrorCode::GROUP_MAX_SIZE_REACHED, Str::default(), step);
            self.drop_pending(&join.member_id, step);
            self.drop_member(&join.member_id, step);
            // Perhaps the rest of the group was waiting for just this one.
            self.maybe_complete_join(step);
        } else if !self.supports(&join.protocol_type, &join.protocols) {
            let member_id = join.member_id.clone();
            join.refuse(ErrorCode::INCONSISTENT_GROUP_PROTOCOL, member_id, step);
        } else if join.member_id.is_empty() {
            self.join_unknown(call, join, step);
        } else {
            self.join_known(call, join, step);
        }
    }

    /// `group.max.size`. During a join phase those who have arrived count, so that a group above
    /// a lowered limit loses those who come last.
    fn accepts(&self, member_id: &str, step: &Step<'_>) -> bool {
        let max_size = step.settings.max_size;
        match self.state() {
            GroupState::Empty => true,
            GroupState::PreparingRebalance => {
                self.member(member_id)
                    .is_some_and(|member| member.join.is_some())
                    || self.awaiting_join() < max_size
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                self.has_member(member_id) || self.len() < max_size
            }
        }
    }

    fn join_unknown(&mut self, call: &Call<'_>, join: Join, step: &mut Step<'_>) {
        let prefix = join.instance.as_deref().unwrap_or(call.client_id);
        let member_id = new_member_id(prefix, call.random);
        if let Some(instance) = &join.instance {
            match self.static_member(instance).cloned() {
                Some(old) => self.swap_static_member(join, &old, member_id, step),
                None => self.admit(call, join, member_id, step),
            }
        } else if call.version >= MEMBER_ID_REQUIRED_FROM {
            if self.pending_join.len() >= step.limits.pending_members_per_group {
                join.refuse(ErrorCode::GROUP_MAX_SIZE_REACHED, Str::default(), step);
                return;
            }
            let deadline = Deadline::Session {
                group: self.id.clone(),
                member: member_id.clone(),
            };
            let timer = step
                .timers
                .insert(step.after_ms(join.session_timeout_ms), deadline);
            self.pending_join.insert(member_id.clone(), timer);
            join.refuse(ErrorCode::MEMBER_ID_REQUIRED, member_id, step);
        } else {
            self.admit(call, join, member_id, step);
        }
    }

    fn join_known(&mut self, call: &Call<'_>, join: Join, step: &mut Step<'_>) {
        let member_id = join.member_id.clone();
        if self.pending_join.contains_key(&member_id) {
            if join.instance.is_some() {
                // Such an id was never given to a static member.
                join.refuse(ErrorCode::UNKNOWN_SERVER_ERROR, member_id, step);
                return;
            }
            self.drop_pending(&member_id, step);
            self.admit(call, join, member_id, step);
            return;
        }
        if let Err(error) = self.validate_member(&member_id, join.instance.as_deref()) {
            let response = JoinGroupResponse {
                error_code: error.0,
                member_id,
                ..Default::default()
            };
            step.out.push(join.parked.join_reply(response));
            return;
        }
        let is_leader = self.is_leader(&member_id);
        let is_unchanged = self
            .member(&member_id)
            .is_some_and(|member| member.protocols == join.protocols);
        match self.state() {
            GroupState::CompletingRebalance if is_unchanged => {
                // It seems to have missed the answer to its first request.
                let members = if is_leader { self.member_list() } else { Vec::new() };
                let response = self.join_response(&member_id, members);
                step.out.push(join.parked.join_reply(response));
            }
            GroupState::Stable if is_unchanged && !is_leader => {
                let response = self.join_response(&member_id, Vec::new());
                step.out.push(join.parked.join_reply(response));
            }
            GroupState::PreparingRebalance
            | GroupState::CompletingRebalance
            // A leader that joins again wants a new assignment though no metadata changed.
            | GroupState::Stable => {
                self.rejoin(join, &member_id, step);
                self.rebalance(step);
            }
            GroupState::Empty => join.refuse(ErrorCode::UNKNOWN_MEMBER_ID, member_id, step),
        }
    }

    /// Parks the request in an existing member, with what it now says.
    pub(super) fn rejoin(&mut self, join: Join, member_id: &str, step: &mut Step<'_>) {
        let superseded = self.update_member(
            member_id,
            join.protocols,
            join.rebalance_timeout_ms,
            join.session_timeout_ms,
            Some(join.parked),
        );
        // The older request came over a connection that its client has given up.
        let error = ErrorCode::REBALANCE_IN_PROGRESS;
        refuse_parked(superseded, None, error, Str::from(member_id), step);
    }

    /// Adds a member and rebalances.
    fn admit(&mut self, call: &Call<'_>, join: Join, member_id: Str, step: &mut Step<'_>) {
        if self.is_initial_join_phase() {
            self.new_member_added = true;
        }
        if self.len() == 0 {
            self.protocol_type = Some(join.protocol_type);
        }
        self.add(Member {
            id: member_id.clone(),
            instance: join.instance,
            client_id: Str::from(cut(call.client_id)),
            client_host: Str::from(call.client_host),
            rebalance_timeout_ms: join.rebalance_timeout_ms,
            session_timeout_ms: join.session_timeout_ms,
            protocols: join.protocols,
            assignment: Bytes::new(),
            join: Some(join.parked),
            sync: None,
            is_new: true,
            deadline: step.clock.now,
            timer: None,
        });
        // Without its id it cannot send heartbeats; the time is for clients that went away.
        self.keep_alive_for(&member_id, step.settings.new_member_join_timeout_ms, step);
        self.rebalance(step);
    }
}

/// The client id (or instance id), a dash and a random UUID of version 4.
fn new_member_id(prefix: &str, random: u128) -> Str {
    let bits = (random & !(0xf000 << 64) & !(0b11 << 62)) | (0x4000 << 64) | (0b10 << 62);
    Str::from(format!(
        "{}-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        cut(prefix),
        (bits >> 96) as u32,
        (bits >> 80) as u16,
        (bits >> 64) as u16,
        (bits >> 48) as u16,
        bits as u64 & 0xffff_ffff_ffff,
    ))
}

fn cut(client_id: &str) -> &str {
    let mut end = client_id.len().min(CLIENT_ID_BYTES_MAX);
    while !client_id.is_char_boundary(end) {
        end -= 1;
    }
    &client_id[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_ids_have_the_form_clients_know() {
        assert_eq!(
            new_member_id("rdkafka", u128::MAX),
            "rdkafka-ffffffff-ffff-4fff-bfff-ffffffffffff"
        );
        assert_eq!(
            new_member_id("", 0),
            "-00000000-0000-4000-8000-000000000000"
        );
    }

    #[test]
    fn an_endless_client_id_still_makes_an_id_that_fits_the_wire() {
        let id = new_member_id(&"\u{20ac}".repeat(20_000), 1);
        assert!(id.len() <= 32_767);
    }
}
