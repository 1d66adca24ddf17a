//! A shard with its surroundings: a log that appends or refuses, a clock that only tests move,
//! and a check that every token is answered once.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use super::super::subscription;
use super::super::*;
use crate::rt::Instant;
use crate::types::Uuid;
use crate::wire::messages::heartbeat_request::HeartbeatRequest;
use crate::wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use crate::wire::messages::join_group_response::JoinGroupResponse;
use crate::wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use crate::wire::messages::leave_group_response::LeaveGroupResponse;
use crate::wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use crate::wire::messages::offset_commit_response::OffsetCommitResponse;
use crate::wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use crate::wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use crate::wire::messages::sync_group_response::SyncGroupResponse;
use crate::wire::{ErrorCode, Str};

pub(super) const GROUP: &str = "readers";
pub(super) const SESSION_MS: i32 = 10_000;
pub(super) const REBALANCE_MS: i32 = 60_000;
pub(super) const START_WALL_MS: i64 = 1_700_000_000_000;

/// Topics named in tests: every partition below 100 exists unless the topic starts with "no-".
#[derive(Default)]
pub(super) struct Topics;

pub(super) fn topic_id(name: &str) -> Uuid {
    Uuid::from_halves(7, u64::from(java_string_hash(name) as u32))
}

impl TopicLookup for Topics {
    fn topic_id(&self, name: &str) -> Option<Uuid> {
        (!name.starts_with("no-")).then(|| topic_id(name))
    }

    fn topic_name(&self, id: Uuid) -> Option<Str> {
        ["orders", "clicks"]
            .into_iter()
            .find(|name| topic_id(name) == id)
            .map(Str::from)
    }

    fn has_partition(&self, name: &str, partition: i32) -> bool {
        self.topic_id(name).is_some() && (0..100).contains(&partition)
    }

    fn may_read(&self, name: &str) -> bool {
        name != "secret"
    }

    fn may_describe(&self, name: &str) -> bool {
        name != "secret"
    }
}

/// What the log does with an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogMode {
    /// It is stored before the command returns.
    Immediate,
    /// It is stored, and reported when the test says so.
    Held,
    /// Nothing is stored.
    Refusing(ErrorCode),
}

pub(super) struct World {
    pub(super) shard: GroupCoordinatorShard,
    pub(super) clock: Clock,
    pub(super) log: Vec<(CoordinatorRecord, i64)>,
    pub(super) mode: LogMode,
    pub(super) held: VecDeque<(AppendId, Result<i64, ErrorCode>)>,
    replies: BTreeMap<ReplyToken, Response>,
    pub(super) answered: usize,
    next_token: u64,
    random: u128,
}

impl World {
    pub(super) fn new() -> World {
        World::with(GroupSettings::default(), GroupLimits::default())
    }

    pub(super) fn with(settings: GroupSettings, limits: GroupLimits) -> World {
        let mut world = World {
            shard: GroupCoordinatorShard::new(settings, limits),
            clock: Clock {
                now: Instant(0) + Duration::from_secs(1_000),
                wall_ms: START_WALL_MS,
            },
            log: Vec::new(),
            mode: LogMode::Immediate,
            held: VecDeque::new(),
            replies: BTreeMap::new(),
            answered: 0,
            next_token: 0,
            random: 0,
        };
        let effects = world.shard.finish_loading(world.clock);
        world.carry_out(effects);
        world
    }

    /// The same log read by a new process, at the same moment.
    pub(super) fn restarted(&self) -> World {
        let mut world = World::new();
        world.shard =
            GroupCoordinatorShard::new(self.shard.settings.clone(), self.shard.limits.clone());
        world.clock = self.clock;
        world.log = self.log.clone();
        world.random = self.random + 1_000_000;
        for (offset, (record, producer)) in self.log.iter().enumerate() {
            let value = record.value.as_ref();
            world
                .shard
                .replay_record(offset as i64, *producer, &record.key, value)
                .unwrap();
        }
        let effects = world.shard.finish_loading(world.clock);
        world.carry_out(effects);
        world
    }

    pub(super) fn carry_out(&mut self, effects: Effects) {
        let mut queue: VecDeque<Effect> = effects.into_iter().collect();
        while let Some(effect) = queue.pop_front() {
            match effect {
                Effect::Reply(token, response) => {
                    self.answered += 1;
                    assert!(token.0 < self.next_token, "an answer to nothing: {token:?}");
                    let twice = self.replies.insert(token, response);
                    assert!(twice.is_none(), "{token:?} was answered twice");
                }
                Effect::Append {
                    records,
                    producer,
                    then,
                } => {
                    assert!(!records.is_empty());
                    let outcome = match self.mode {
                        LogMode::Refusing(error) => Err(error),
                        LogMode::Immediate | LogMode::Held => {
                            let base = self.log.len() as i64;
                            let id = producer.map_or(-1, |producer| producer.id);
                            self.log
                                .extend(records.into_iter().map(|record| (record, id)));
                            Ok(base)
                        }
                    };
                    // Outcomes are reported in the order of the appends.
                    self.held.push_back((then, outcome));
                    if self.mode != LogMode::Held {
                        while let Some((id, outcome)) = self.held.pop_front() {
                            queue.extend(self.shard.append_done(id, outcome, self.clock));
                        }
                    }
                }
            }
        }
        for group in self.shard.groups.values() {
            group.check();
        }
    }

    /// Reports the outcomes of held appends, in order.
    pub(super) fn release(&mut self) {
        while let Some((id, outcome)) = self.held.pop_front() {
            let effects = self.shard.append_done(id, outcome, self.clock);
            self.carry_out(effects);
        }
    }

    /// Lets time pass, carrying out every deadline at its own moment.
    pub(super) fn advance_ms(&mut self, ms: u64) {
        let end = self.clock.now + Duration::from_millis(ms);
        while let Some(due) = self.shard.next_deadline().filter(|due| *due <= end) {
            self.move_to(due.max(self.clock.now));
            let effects = self.shard.on_tick(self.clock);
            self.carry_out(effects);
        }
        self.move_to(end);
    }

    fn move_to(&mut self, now: Instant) {
        self.clock.wall_ms += now.since(self.clock.now).as_millis() as i64;
        self.clock.now = now;
    }

    pub(super) fn token(&mut self) -> ReplyToken {
        self.next_token += 1;
        ReplyToken(self.next_token - 1)
    }

    pub(super) fn asked(&self) -> usize {
        self.next_token as usize
    }

    pub(super) fn call(&mut self, version: i16) -> Call<'static> {
        self.random += 1;
        Call {
            version,
            client_id: "client",
            client_host: "/127.0.0.1",
            clock: self.clock,
            // Odd multiples of an odd number: no two are alike in any 122 of their bits.
            random: (self.random << 1 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
        }
    }

    pub(super) fn answer(&mut self, token: ReplyToken) -> Option<Response> {
        self.replies.remove(&token)
    }

    pub(super) fn state(&self) -> &'static str {
        self.shard
            .group_summary(GROUP)
            .map_or("Dead", |(_, state, _)| state)
    }

    pub(super) fn generation(&self) -> i32 {
        self.shard
            .group_summary(GROUP)
            .map_or(-1, |(generation, _, _)| generation)
    }

    // ---- requests

    pub(super) fn send_join(&mut self, version: i16, request: JoinGroupRequest) -> ReplyToken {
        let token = self.token();
        let call = self.call(version);
        let effects = self.shard.join_group(&call, request, token);
        self.carry_out(effects);
        token
    }

    pub(super) fn join(&mut self, member: &str) -> ReplyToken {
        self.send_join(9, join_request(member))
    }

    pub(super) fn joined(&mut self, token: ReplyToken) -> JoinGroupResponse {
        match self.answer(token) {
            Some(Response::JoinGroup(response)) => response,
            other => panic!("{token:?} is not a join that was answered: {other:?}"),
        }
    }

    /// An id from MEMBER_ID_REQUIRED.
    pub(super) fn new_id(&mut self) -> Str {
        let token = self.join("");
        let response = self.joined(token);
        assert_eq!(response.error_code, ErrorCode::MEMBER_ID_REQUIRED.0);
        response.member_id
    }

    pub(super) fn sync(
        &mut self,
        member: &str,
        generation: i32,
        assignments: &[(&str, &str)],
    ) -> ReplyToken {
        let token = self.token();
        let call = self.call(5);
        let request = SyncGroupRequest {
            assignments: assignments
                .iter()
                .map(|(member, assignment)| SyncGroupRequestAssignment {
                    member_id: Str::from(*member),
                    assignment: Bytes::copy_from_slice(assignment.as_bytes()),
                    ..Default::default()
                })
                .collect(),
            ..sync_request(member, generation)
        };
        let effects = self.shard.sync_group(&call, request, token);
        self.carry_out(effects);
        token
    }

    pub(super) fn synced(&mut self, token: ReplyToken) -> SyncGroupResponse {
        match self.answer(token) {
            Some(Response::SyncGroup(response)) => response,
            other => panic!("{token:?} is not a sync that was answered: {other:?}"),
        }
    }

    pub(super) fn heartbeat(&mut self, member: &str, generation: i32) -> ErrorCode {
        let call = self.call(4);
        let request = HeartbeatRequest {
            group_id: Str::from(GROUP),
            member_id: Str::from(member),
            generation_id: generation,
            ..Default::default()
        };
        ErrorCode(self.shard.heartbeat(&call, &request).error_code)
    }

    pub(super) fn send_leave(&mut self, members: &[(&str, Option<&str>)]) -> ReplyToken {
        let token = self.token();
        let call = self.call(5);
        let request = LeaveGroupRequest {
            group_id: Str::from(GROUP),
            members: members
                .iter()
                .map(|(member, instance)| MemberIdentity {
                    member_id: Str::from(*member),
                    group_instance_id: instance.map(Str::from),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let effects = self.shard.leave_group(&call, request, token);
        self.carry_out(effects);
        token
    }

    pub(super) fn leave(&mut self, members: &[(&str, Option<&str>)]) -> LeaveGroupResponse {
        let token = self.send_leave(members);
        match self.answer(token) {
            Some(Response::LeaveGroup(response)) => response,
            other => panic!("{token:?} is not a leave that was answered: {other:?}"),
        }
    }

    pub(super) fn send_commit(&mut self, version: i16, request: OffsetCommitRequest) -> ReplyToken {
        let token = self.token();
        let call = self.call(version);
        let effects = self.shard.offset_commit(&call, request, &Topics, token);
        self.carry_out(effects);
        token
    }

    pub(super) fn committed(&mut self, token: ReplyToken) -> OffsetCommitResponse {
        match self.answer(token) {
            Some(Response::OffsetCommit(response)) => response,
            other => panic!("{token:?} is not a commit that was answered: {other:?}"),
        }
    }

    /// Commits one offset of partition 0 and gives its error.
    pub(super) fn commit(
        &mut self,
        member: &str,
        generation: i32,
        topic: &str,
        offset: i64,
    ) -> ErrorCode {
        let token = self.send_commit(9, commit_request(member, generation, topic, offset));
        ErrorCode(self.committed(token).topics[0].partitions[0].error_code)
    }

    /// The offset of partition 0, -1 if there is none.
    pub(super) fn fetch(&self, group: &str, topic: &str) -> i64 {
        self.fetch_partition(group, topic, false).0
    }

    pub(super) fn fetch_partition(
        &self,
        group: &str,
        topic: &str,
        stable: bool,
    ) -> (i64, ErrorCode) {
        let request = OffsetFetchRequestGroup {
            group_id: Str::from(group),
            topics: Some(vec![OffsetFetchRequestTopics {
                name: Str::from(topic),
                partition_indexes: vec![0],
                ..Default::default()
            }]),
            ..Default::default()
        };
        let response = self.shard.offset_fetch(&request, stable, &Topics, 8);
        assert_eq!(response.error_code, 0);
        let partition = &response.topics[0].partitions[0];
        (partition.committed_offset, ErrorCode(partition.error_code))
    }

    // ---- groups

    /// Two members, stable, with assignments "a" and "b".
    pub(super) fn two_stable_members(&mut self) -> (Str, Str) {
        let (first, second) = (self.new_id(), self.new_id());
        let joins = [self.join(&first), self.join(&second)];
        // The second one extends the delay.
        self.advance_ms(6_000);
        let generation = self.joined(joins[0]).generation_id;
        assert_eq!(self.joined(joins[1]).generation_id, generation);
        let follower = self.sync(&second, generation, &[]);
        let leader = self.sync(&first, generation, &[(&first, "a"), (&second, "b")]);
        assert_eq!(self.synced(leader).assignment, "a");
        assert_eq!(self.synced(follower).assignment, "b");
        assert_eq!(self.state(), "Stable");
        (first, second)
    }
}

pub(super) fn protocols(names: &[&str], topics: &[&str]) -> Vec<JoinGroupRequestProtocol> {
    names
        .iter()
        .map(|name| JoinGroupRequestProtocol {
            name: Str::from(*name),
            metadata: subscription::write_for_tests(topics),
            ..Default::default()
        })
        .collect()
}

pub(super) fn join_request(member: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: Str::from(GROUP),
        session_timeout_ms: SESSION_MS,
        rebalance_timeout_ms: REBALANCE_MS,
        member_id: Str::from(member),
        protocol_type: Str::from("consumer"),
        protocols: protocols(&["range"], &["orders"]),
        ..Default::default()
    }
}

pub(super) fn static_join(member: &str, instance: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_instance_id: Some(Str::from(instance)),
        ..join_request(member)
    }
}

pub(super) fn sync_request(member: &str, generation: i32) -> SyncGroupRequest {
    SyncGroupRequest {
        group_id: Str::from(GROUP),
        generation_id: generation,
        member_id: Str::from(member),
        protocol_type: Some(Str::from("consumer")),
        protocol_name: Some(Str::from("range")),
        ..Default::default()
    }
}

pub(super) fn commit_request(
    member: &str,
    generation: i32,
    topic: &str,
    offset: i64,
) -> OffsetCommitRequest {
    OffsetCommitRequest {
        group_id: Str::from(GROUP),
        generation_id_or_member_epoch: generation,
        member_id: Str::from(member),
        topics: vec![OffsetCommitRequestTopic {
            name: Str::from(topic),
            topic_id: topic_id(topic),
            partitions: vec![OffsetCommitRequestPartition {
                partition_index: 0,
                committed_offset: offset,
                committed_metadata: Some(Str::from("note")),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

impl World {
    pub(super) fn carry_out_unload(&mut self) {
        let effects = self.shard.unload();
        self.carry_out(effects);
    }
}
