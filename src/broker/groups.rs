//! The classic group APIs: each goes to the coordinator of the group's partition of
//! `__consumer_offsets`, on the shard that owns it. Runs on the connection's shard; decides
//! nothing about groups.

use super::request::Context;
use crate::cluster::{Image, OFFSETS_TOPIC};
use crate::coordinator::{
    Call, Effects, GroupCoordinatorShard, ReplyToken, Response, TopicLookup, assemble_offset_fetch,
    groups_of_offset_fetch, refusal,
};
use crate::observe::hop::{self, Hop, What};
use crate::shard::Shard;
use crate::shard::groups::{Caller, Coordinator};
use crate::shard::mesh::LocalFuture;
use crate::types::{PartitionId, Uuid};
use crate::wire::messages::delete_groups_request::DeleteGroupsRequest;
use crate::wire::messages::delete_groups_response::DeleteGroupsResponse;
use crate::wire::messages::describe_groups_request::DescribeGroupsRequest;
use crate::wire::messages::describe_groups_response::DescribeGroupsResponse;
use crate::wire::messages::heartbeat_request::HeartbeatRequest;
use crate::wire::messages::heartbeat_response::HeartbeatResponse;
use crate::wire::messages::join_group_request::JoinGroupRequest;
use crate::wire::messages::join_group_response::JoinGroupResponse;
use crate::wire::messages::leave_group_request::LeaveGroupRequest;
use crate::wire::messages::leave_group_response::LeaveGroupResponse;
use crate::wire::messages::list_groups_request::ListGroupsRequest;
use crate::wire::messages::list_groups_response::ListGroupsResponse;
use crate::wire::messages::offset_commit_request::OffsetCommitRequest;
use crate::wire::messages::offset_commit_response::OffsetCommitResponse;
use crate::wire::messages::offset_delete_request::OffsetDeleteRequest;
use crate::wire::messages::offset_delete_response::OffsetDeleteResponse;
use crate::wire::messages::offset_fetch_request::OffsetFetchRequest;
use crate::wire::messages::offset_fetch_response::OffsetFetchResponse;
use crate::wire::messages::sync_group_request::SyncGroupRequest;
use crate::wire::messages::sync_group_response::SyncGroupResponse;
use crate::wire::{ErrorCode, Str};
use ahash::AHashSet;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// What the metadata says of topics, as a coordinator asks it.
pub(super) struct Topics(pub(super) Arc<Image>);

impl TopicLookup for Topics {
    fn topic_id(&self, name: &str) -> Option<Uuid> {
        self.0.topic_by_name(name).map(|topic| topic.id)
    }

    fn topic_name(&self, id: Uuid) -> Option<Str> {
        self.0.topic_by_id(id).map(|topic| topic.name.clone())
    }

    fn has_partition(&self, name: &str, partition: i32) -> bool {
        self.0
            .topic_by_name(name)
            .is_some_and(|topic| topic.has_partition(partition))
    }
}

pub(super) fn caller(context: &Context) -> Caller {
    Caller {
        version: context.version,
        client_id: context.client_id.to_string(),
        client_host: context.peer.client_host(),
    }
}

/// The offsets partition of a group.
pub(super) fn partition_of(shard: &Shard, group: &str) -> Result<PartitionId, ErrorCode> {
    shard.coordinator_partition(OFFSETS_TOPIC, group)
}

/// Runs `job` with the coordinator of `group`, on the shard that owns it, and waits for its answer.
pub(super) async fn with_coordinator<F>(
    context: &Rc<Context>,
    group: &Str,
    job: impl FnOnce(Rc<Shard>, Rc<Coordinator>) -> F + Send + 'static,
) -> Result<Response, ErrorCode>
where
    F: Future<Output = Result<Response, ErrorCode>> + 'static,
{
    let shard = &context.shard;
    let partition = partition_of(shard, group)?;
    context.parked();
    let job = move |shard: Rc<Shard>| -> LocalFuture<Result<Response, ErrorCode>> {
        match shard.groups.coordinator(partition.index) {
            Some(coordinator) => Box::pin(job(shard, coordinator)),
            None => Box::pin(std::future::ready(Err(ErrorCode::NOT_COORDINATOR))),
        }
    };
    let answered = shard.clone().on(shard.owner(partition), job).await;
    answered.unwrap_or(Err(ErrorCode::NOT_COORDINATOR))
}

/// Runs a command on the coordinator of `group` and waits for its answer.
async fn command(
    context: &Rc<Context>,
    group: &Str,
    run: impl FnOnce(&mut GroupCoordinatorShard, &Call<'_>, ReplyToken) -> Effects + Send + 'static,
) -> Result<Response, ErrorCode> {
    let caller = caller(context);
    with_coordinator(context, group, move |_, coordinator| async move {
        coordinator
            .command(|state, token| run(state, &caller.call(), token))
            .await
    })
    .await
}

/// Asks the coordinator of a partition something that it answers at once.
async fn ask<R: Send + 'static>(
    context: &Rc<Context>,
    partition: PartitionId,
    run: impl FnOnce(&mut GroupCoordinatorShard, &Call<'_>) -> R + Send + 'static,
) -> Result<R, ErrorCode> {
    let shard = &context.shard;
    let caller = caller(context);
    let answered = shard
        .clone()
        .on(
            shard.owner(partition),
            move |shard| -> LocalFuture<Result<R, ErrorCode>> {
                let answer = match shard.groups.coordinator(partition.index) {
                    Some(coordinator) => Ok(coordinator.ask(|state| run(state, &caller.call()))),
                    None => Err(ErrorCode::NOT_COORDINATOR),
                };
                Box::pin(std::future::ready(answer))
            },
        )
        .await;
    answered.unwrap_or(Err(ErrorCode::NOT_COORDINATOR))
}

pub async fn join(context: Rc<Context>, request: JoinGroupRequest) -> JoinGroupResponse {
    let (group, member) = (request.group_id.clone(), request.member_id.clone());
    let version = context.version;
    match command(&context, &group, |state, call, token| {
        state.join_group(call, request, token)
    })
    .await
    {
        Ok(Response::JoinGroup(response)) => response,
        Ok(_) => refusal::join_group(ErrorCode::UNKNOWN_SERVER_ERROR, member, version),
        Err(error) => refusal::join_group(error, member, version),
    }
}

pub async fn sync(context: Rc<Context>, request: SyncGroupRequest) -> SyncGroupResponse {
    let group = request.group_id.clone();
    match command(&context, &group, |state, call, token| {
        state.sync_group(call, request, token)
    })
    .await
    {
        Ok(Response::SyncGroup(response)) => response,
        Ok(_) => refusal::sync_group(ErrorCode::UNKNOWN_SERVER_ERROR),
        Err(error) => refusal::sync_group(error),
    }
}

pub async fn heartbeat(context: Rc<Context>, request: HeartbeatRequest) -> HeartbeatResponse {
    let answered = match partition_of(&context.shard, &request.group_id) {
        Ok(partition) => {
            ask(&context, partition, move |state, call| {
                state.heartbeat(call, &request)
            })
            .await
        }
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(refusal::heartbeat)
}

pub async fn leave(context: Rc<Context>, request: LeaveGroupRequest) -> LeaveGroupResponse {
    let group = request.group_id.clone();
    match command(&context, &group, |state, call, token| {
        state.leave_group(call, request, token)
    })
    .await
    {
        Ok(Response::LeaveGroup(response)) => response,
        Ok(_) => refusal::leave_group(ErrorCode::UNKNOWN_SERVER_ERROR),
        Err(error) => refusal::leave_group(error),
    }
}

pub async fn offset_commit(
    context: Rc<Context>,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let group = request.group_id.clone();
    let received = context.timeline.received;
    hop::record(|| Hop::new(What::CommitReceived, &group, -1).at(received));
    let topics = Topics(context.shard.image());
    let asked = request.clone();
    let answered = command(&context, &group, move |state, call, token| {
        state.offset_commit(call, request, &topics, token)
    })
    .await;
    hop::record(|| Hop::new(What::CommitAnswered, &group, -1));
    match answered {
        Ok(Response::OffsetCommit(response)) => response,
        Ok(_) => refusal::offset_commit(&asked, ErrorCode::UNKNOWN_SERVER_ERROR),
        Err(error) => refusal::offset_commit(&asked, error),
    }
}

pub async fn offset_fetch(
    context: Rc<Context>,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    let version = context.version;
    let require_stable = request.require_stable;
    let mut answers = Vec::new();
    for group in groups_of_offset_fetch(request, version) {
        let topics = Topics(context.shard.image());
        let asked = group.clone();
        let answered = match partition_of(&context.shard, &group.group_id) {
            Ok(partition) => {
                ask(&context, partition, move |state, _| {
                    state.offset_fetch(&group, require_stable, &topics, version)
                })
                .await
            }
            Err(error) => Err(error),
        };
        answers.push(
            answered.unwrap_or_else(|error| refusal::offset_fetch_group(&asked, error, version)),
        );
    }
    assemble_offset_fetch(answers, version)
}

pub async fn offset_delete(
    context: Rc<Context>,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let group = request.group_id.clone();
    let topics = Topics(context.shard.image());
    let answered = command(&context, &group, move |state, call, token| {
        state.offset_delete(call, request, &topics, token)
    })
    .await;
    match answered {
        Ok(Response::OffsetDelete(response)) => response,
        Ok(_) => refusal::offset_delete(ErrorCode::UNKNOWN_SERVER_ERROR),
        Err(error) => refusal::offset_delete(error),
    }
}

/// Groups by the partition of the offsets topic they live in, with their place in the request.
type ByPartition = BTreeMap<PartitionId, Vec<(usize, Str)>>;

fn by_partition(shard: &Shard, groups: &[Str]) -> (ByPartition, Vec<(usize, ErrorCode)>) {
    let mut placed = ByPartition::new();
    let mut refused = Vec::new();
    for (place, group) in groups.iter().enumerate() {
        match partition_of(shard, group) {
            Ok(partition) => placed
                .entry(partition)
                .or_default()
                .push((place, group.clone())),
            Err(error) => refused.push((place, error)),
        }
    }
    (placed, refused)
}

pub async fn describe(
    context: Rc<Context>,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let version = context.version;
    let (placed, refused) = by_partition(&context.shard, &request.groups);
    let mut groups: Vec<_> = refusal::describe_groups(&request.groups, ErrorCode::NOT_COORDINATOR);
    for (place, error) in refused {
        groups[place].error_code = error.0;
    }
    for (partition, asked) in placed {
        let (places, ids): (Vec<usize>, Vec<Str>) = asked.into_iter().unzip();
        let described = {
            let ids = ids.clone();
            ask(&context, partition, move |state, _| {
                state.describe_groups(&ids, version)
            })
            .await
        };
        let described = described.unwrap_or_else(|error| refusal::describe_groups(&ids, error));
        for (place, group) in places.into_iter().zip(described) {
            groups[place] = group;
        }
    }
    DescribeGroupsResponse {
        groups,
        ..Default::default()
    }
}

pub async fn delete(
    context: Rc<Context>,
    mut request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let mut seen = AHashSet::new();
    request
        .groups_names
        .retain(|group| seen.insert(group.clone()));
    let (placed, refused) = by_partition(&context.shard, &request.groups_names);
    let mut results = refusal::delete_groups(&request.groups_names, ErrorCode::NOT_COORDINATOR);
    for (place, error) in refused {
        results[place].error_code = error.0;
    }
    for asked in placed.into_values() {
        let (places, ids): (Vec<usize>, Vec<Str>) = asked.into_iter().unzip();
        let Some(first) = ids.first().cloned() else {
            continue;
        };
        let named = ids.clone();
        let answered = command(&context, &first, move |state, call, token| {
            state.delete_groups(call, &named, token)
        })
        .await;
        let deleted = match answered {
            Ok(Response::DeleteGroups(deleted)) => deleted,
            Ok(_) => refusal::delete_groups(&ids, ErrorCode::UNKNOWN_SERVER_ERROR),
            Err(error) => refusal::delete_groups(&ids, error),
        };
        for (place, result) in places.into_iter().zip(deleted) {
            results[place] = result;
        }
    }
    DeleteGroupsResponse {
        results,
        ..Default::default()
    }
}

pub async fn list(context: Rc<Context>, request: ListGroupsRequest) -> ListGroupsResponse {
    let (states, types) = (request.states_filter, request.types_filter);
    let answers = context
        .shard
        .ask_all(move |shard| {
            let listed: Result<Vec<_>, ErrorCode> = shard
                .groups
                .all()
                .into_iter()
                .map(|coordinator| coordinator.ask(|state| state.list_groups(&states, &types)))
                .collect();
            Box::pin(std::future::ready(
                listed.map(|lists| lists.into_iter().flatten().collect::<Vec<_>>()),
            ))
        })
        .await;
    let mut response = ListGroupsResponse::default();
    for answer in answers {
        match answer.unwrap_or(Err(ErrorCode::NOT_COORDINATOR)) {
            Ok(listed) => response.groups.extend(listed),
            Err(error) => response.error_code = error.0,
        }
    }
    response
}
