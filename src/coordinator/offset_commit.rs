//! OffsetCommit (2-10) and TxnOffsetCommit (0-6). Part of the shard state machine on the core of
//! the group's partition. Whether a topic exists and may be used is asked
//! of the caller's metadata; whether a transaction is open was verified by the caller.

use super::appends::Change;
use super::effects::{Call, Effect, Effects, Producer, ReplyToken, Response};
use super::group::{Group, GroupState};
use super::offsets::OffsetAndMetadata;
use super::refusal::{self, fits};
use super::shard_state::GroupCoordinatorShard;
use crate::log::VerificationGuard;
use crate::types::Uuid;
use crate::wire::messages::offset_commit_request::OffsetCommitRequest;
use crate::wire::messages::offset_commit_response::{
    OffsetCommitResponse, OffsetCommitResponsePartition,
};
use crate::wire::messages::txn_offset_commit_request::TxnOffsetCommitRequest;
use crate::wire::messages::txn_offset_commit_response::TxnOffsetCommitResponsePartition;
use crate::wire::{ErrorCode, Str};

/// From this version of OffsetCommit on, GROUP_ID_NOT_FOUND is understood.
const COMMIT_GROUP_NOT_FOUND_FROM: i16 = 9;
/// From this version of OffsetCommit on, topics are named by id.
const COMMIT_TOPIC_IDS_FROM: i16 = 10;
/// From this version of TxnOffsetCommit on, both (KIP-1319).
const TXN_COMMIT_TOPIC_IDS_FROM: i16 = 6;

/// What the caller's metadata image says about topics.
pub trait TopicLookup {
    fn topic_id(&self, name: &str) -> Option<Uuid>;
    fn topic_name(&self, id: Uuid) -> Option<Str>;
    fn has_partition(&self, name: &str, partition: i32) -> bool;
    /// Whether the client may READ the topic (commit, delete offsets).
    fn may_read(&self, _name: &str) -> bool {
        true
    }
    /// Whether the client may DESCRIBE the topic (fetch offsets).
    fn may_describe(&self, _name: &str) -> bool {
        true
    }
}

/// Whether a TxnOffsetCommit has anything to write, so that its transaction is worth verifying.
pub fn writes_offsets(
    request: &TxnOffsetCommitRequest,
    topics: &dyn TopicLookup,
    version: i16,
) -> bool {
    let by_id = version >= TXN_COMMIT_TOPIC_IDS_FROM;
    !request.group_id.is_empty()
        && request.topics.iter().any(|topic| {
            let resolved = resolve(topics, &topic.name, topic.topic_id, by_id);
            let mut partitions = topic.partitions.iter();
            partitions.any(|p| judge(topics, &resolved, p.partition_index) == ErrorCode::NONE)
        })
}

/// Who commits, as both kinds of request say it.
struct Committer<'a> {
    group_id: &'a Str,
    member_id: &'a str,
    instance: Option<&'a str>,
    generation: i32,
    is_transactional: bool,
    /// What an unknown group is called at this version.
    group_not_found: ErrorCode,
}

/// A partition's commit, or why there is none.
struct Commit<'a> {
    partition: i32,
    offset: i64,
    leader_epoch: i32,
    metadata: Option<&'a Str>,
}

impl GroupCoordinatorShard {
    /// Answers `token` once the offsets are stored, or at once with the error of each partition.
    pub fn offset_commit(
        &mut self,
        call: &Call<'_>,
        request: OffsetCommitRequest,
        topics: &dyn TopicLookup,
        token: ReplyToken,
    ) -> Effects {
        let mut out = Effects::new();
        let by_id = call.version >= COMMIT_TOPIC_IDS_FROM;
        let mut response = refusal::offset_commit(&request, ErrorCode::NONE);
        let mut names = Vec::with_capacity(request.topics.len());
        for (topic, answer) in request.topics.iter().zip(&mut response.topics) {
            let resolved = resolve(topics, &topic.name, topic.topic_id, by_id);
            judge_topic(topics, &resolved, &mut answer.partitions);
            if let Ok((name, id)) = &resolved {
                answer.name = name.clone();
                answer.topic_id = *id;
            }
            names.push(resolved.ok());
        }
        if has_accepted(&response) {
            let committer = Committer {
                group_id: &request.group_id,
                member_id: &request.member_id,
                instance: request.group_instance_id.as_deref(),
                generation: request.generation_id_or_member_epoch,
                is_transactional: false,
                group_not_found: match call.version {
                    COMMIT_GROUP_NOT_FOUND_FROM.. => ErrorCode::GROUP_ID_NOT_FOUND,
                    _ => ErrorCode::ILLEGAL_GENERATION,
                },
            };
            let refused = self
                .refusal()
                .or_else(|| self.admit_commit(call, &committer).err());
            if let Some(error) = refused {
                let mut response = Response::OffsetCommit(response);
                response.fail(error);
                out.push(Effect::Reply(token, response));
                return out;
            }
        }
        let wall_ms = call.clock.wall_ms;
        let expire_ms = (request.retention_time_ms != -1)
            .then(|| wall_ms.saturating_add(request.retention_time_ms));
        let group = request.group_id.detached();
        let mut changes = Vec::new();
        let mut room = self.room_for_offsets(&group);
        for ((topic, answer), resolved) in
            request.topics.iter().zip(&mut response.topics).zip(&names)
        {
            let Some((name, id)) = resolved else { continue };
            let name = name.detached();
            for (partition, answer) in topic.partitions.iter().zip(&mut answer.partitions) {
                if answer.error_code != ErrorCode::NONE.0 {
                    continue;
                }
                let commit = Commit {
                    partition: partition.partition_index,
                    offset: partition.committed_offset,
                    leader_epoch: partition.committed_leader_epoch,
                    metadata: partition.committed_metadata.as_ref(),
                };
                match self.make_change(&group, &name, *id, commit, wall_ms, expire_ms, &mut room) {
                    Ok(change) => changes.push(change),
                    Err(error) => answer.error_code = error.0,
                }
            }
        }
        let reply = Some((token, Response::OffsetCommit(response)));
        self.write(changes, None, true, reply, call.clock, &mut out);
        out
    }

    /// The same inside a producer's transaction: the offsets show when its marker is written.
    /// `guard` is what the caller has verified the transaction with.
    pub fn txn_offset_commit(
        &mut self,
        call: &Call<'_>,
        request: TxnOffsetCommitRequest,
        guard: VerificationGuard,
        topics: &dyn TopicLookup,
        token: ReplyToken,
    ) -> Effects {
        let mut out = Effects::new();
        let by_id = call.version >= TXN_COMMIT_TOPIC_IDS_FROM;
        let mut response = refusal::txn_offset_commit(&request, ErrorCode::NONE);
        let mut names = Vec::with_capacity(request.topics.len());
        let mut is_any_accepted = false;
        for (topic, answer) in request.topics.iter().zip(&mut response.topics) {
            let resolved = resolve(topics, &topic.name, topic.topic_id, by_id);
            judge_txn_topic(topics, &resolved, &mut answer.partitions);
            is_any_accepted |= answer
                .partitions
                .iter()
                .any(|partition| partition.error_code == 0);
            names.push(resolved.ok());
        }
        if is_any_accepted {
            let committer = Committer {
                group_id: &request.group_id,
                member_id: &request.member_id,
                instance: request.group_instance_id.as_deref(),
                generation: request.generation_id_or_member_epoch,
                is_transactional: true,
                group_not_found: match call.version {
                    TXN_COMMIT_TOPIC_IDS_FROM.. => ErrorCode::GROUP_ID_NOT_FOUND,
                    _ => ErrorCode::ILLEGAL_GENERATION,
                },
            };
            let refused = if request.group_id.is_empty() {
                Some(ErrorCode::INVALID_GROUP_ID)
            } else {
                self.refusal()
                    .or_else(|| self.admit_commit(call, &committer).err())
            };
            if let Some(error) = refused {
                let mut response = Response::TxnOffsetCommit(response);
                response.fail(error);
                out.push(Effect::Reply(token, response));
                return out;
            }
        }
        let group = request.group_id.detached();
        let mut changes = Vec::new();
        let mut room = self.room_for_offsets(&group);
        for ((topic, answer), resolved) in
            request.topics.iter().zip(&mut response.topics).zip(&names)
        {
            let Some((name, id)) = resolved else { continue };
            let name = name.detached();
            for (partition, answer) in topic.partitions.iter().zip(&mut answer.partitions) {
                if answer.error_code != ErrorCode::NONE.0 {
                    continue;
                }
                let commit = Commit {
                    partition: partition.partition_index,
                    offset: partition.committed_offset,
                    leader_epoch: partition.committed_leader_epoch,
                    metadata: partition.committed_metadata.as_ref(),
                };
                let wall_ms = call.clock.wall_ms;
                match self.make_change(&group, &name, *id, commit, wall_ms, None, &mut room) {
                    Ok(change) => changes.push(change),
                    Err(error) => answer.error_code = error.0,
                }
            }
        }
        let producer = Producer {
            id: request.producer_id,
            epoch: request.producer_epoch,
            guard,
        };
        let reply = Some((token, Response::TxnOffsetCommit(response)));
        self.write(changes, Some(producer), true, reply, call.clock, &mut out);
        out
    }

    /// Whether the group lets the committer commit. A member that commits is alive.
    fn admit_commit(&mut self, call: &Call<'_>, who: &Committer<'_>) -> Result<(), ErrorCode> {
        let fits_record = fits(who.group_id);
        if !fits_record {
            return Err(ErrorCode::INVALID_REQUEST);
        }
        if self.foreign.contains_key(who.group_id) {
            return Err(ErrorCode::UNKNOWN_MEMBER_ID);
        }
        let is_full = self.groups.len() >= self.limits.groups;
        let mut out = Effects::new();
        let (groups, mut step) = self.step(call.clock, &mut out);
        let Some(group) = groups.get_mut(who.group_id) else {
            // A consumer that assigns its partitions itself, or an administrator: the offsets
            // make a group without members.
            return match who.generation {
                0.. => Err(who.group_not_found),
                _ if is_full => Err(ErrorCode::POLICY_VIOLATION),
                _ => Ok(()),
            };
        };
        group.validate_commit(who)?;
        let keeps_session = matches!(
            group.state(),
            GroupState::Stable | GroupState::PreparingRebalance
        );
        if keeps_session && !who.is_transactional {
            group.keep_alive(who.member_id, &mut step);
        }
        Ok(())
    }

    fn room_for_offsets(&self, group: &str) -> usize {
        let used = self.offsets.count(group) + self.offsets.in_flight_count(group);
        self.limits.offsets_per_group.saturating_sub(used)
    }

    #[allow(clippy::too_many_arguments)]
    fn make_change(
        &self,
        group: &Str,
        topic: &Str,
        topic_id: Uuid,
        commit: Commit<'_>,
        wall_ms: i64,
        expire_ms: Option<i64>,
        room: &mut usize,
    ) -> Result<Change, ErrorCode> {
        let metadata = commit.metadata.map(Str::detached).unwrap_or_default();
        let units = metadata.encode_utf16().count();
        if units > self.settings.offset_metadata_max_size || !fits(&metadata) {
            return Err(ErrorCode::OFFSET_METADATA_TOO_LARGE);
        }
        if self.offsets.get(group, topic, commit.partition).is_none() {
            *room = room.checked_sub(1).ok_or(ErrorCode::POLICY_VIOLATION)?;
        }
        Ok(Change::CommitOffset {
            group: group.clone(),
            topic: topic.clone(),
            partition: commit.partition,
            value: OffsetAndMetadata {
                offset: commit.offset,
                leader_epoch: commit.leader_epoch.max(-1),
                metadata,
                commit_ms: wall_ms,
                expire_ms,
                topic_id,
                record_offset: -1,
            },
        })
    }
}

impl Group {
    fn validate_commit(&self, who: &Committer<'_>) -> Result<(), ErrorCode> {
        if who.generation < 0 && self.is_in(GroupState::Empty) {
            return Ok(());
        }
        if who.generation >= 0 || !who.member_id.is_empty() || who.instance.is_some() {
            self.validate_member(who.member_id, who.instance)?;
            if who.generation != self.generation {
                return Err(ErrorCode::ILLEGAL_GENERATION);
            }
        } else if !who.is_transactional {
            // A stranger's commit would move the members' positions.
            return Err(ErrorCode::UNKNOWN_MEMBER_ID);
        }
        if !who.is_transactional && self.is_in(GroupState::CompletingRebalance) {
            // A member of the new generation that does not yet know what it owns.
            return Err(ErrorCode::REBALANCE_IN_PROGRESS);
        }
        Ok(())
    }
}

/// A topic's name and id, or the error of all of its partitions.
fn resolve(
    topics: &dyn TopicLookup,
    name: &Str,
    id: Uuid,
    by_id: bool,
) -> Result<(Str, Uuid), ErrorCode> {
    let (name, id) = if by_id {
        (
            topics.topic_name(id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?,
            Some(id),
        )
    } else {
        (name.clone(), topics.topic_id(name))
    };
    if !topics.may_read(&name) {
        return Err(ErrorCode::TOPIC_AUTHORIZATION_FAILED);
    }
    let id = id.ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    Ok((name, id))
}

type Resolved = Result<(Str, Uuid), ErrorCode>;

fn judge(topics: &dyn TopicLookup, resolved: &Resolved, partition: i32) -> ErrorCode {
    match resolved {
        Err(error) => *error,
        Ok((name, _)) if !topics.has_partition(name, partition) => {
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        }
        Ok(_) => ErrorCode::NONE,
    }
}

fn judge_topic(
    topics: &dyn TopicLookup,
    resolved: &Resolved,
    answers: &mut [OffsetCommitResponsePartition],
) {
    for answer in answers {
        answer.error_code = judge(topics, resolved, answer.partition_index).0;
    }
}

fn judge_txn_topic(
    topics: &dyn TopicLookup,
    resolved: &Resolved,
    answers: &mut [TxnOffsetCommitResponsePartition],
) {
    for answer in answers {
        answer.error_code = judge(topics, resolved, answer.partition_index).0;
    }
}

fn has_accepted(response: &OffsetCommitResponse) -> bool {
    let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
    partitions.any(|partition| partition.error_code == ErrorCode::NONE.0)
}
