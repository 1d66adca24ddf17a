//! Whole answers that carry one error, for when no coordinator can be asked: the partition is
//! elsewhere (NOT_COORDINATOR), is loading (COORDINATOR_LOAD_IN_PROGRESS), does not exist yet
//! (COORDINATOR_NOT_AVAILABLE), or the client may not. Pure; each has the shape that Kafka gives
//! it at the request's version.

use crate::wire::messages::delete_groups_response::DeletableGroupResult;
use crate::wire::messages::describe_groups_response::DescribedGroup;
use crate::wire::messages::heartbeat_response::HeartbeatResponse;
use crate::wire::messages::join_group_response::JoinGroupResponse;
use crate::wire::messages::leave_group_response::LeaveGroupResponse;
use crate::wire::messages::list_groups_response::ListGroupsResponse;
use crate::wire::messages::offset_commit_request::OffsetCommitRequest;
use crate::wire::messages::offset_commit_response::{
    OffsetCommitResponse, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use crate::wire::messages::offset_delete_response::OffsetDeleteResponse;
use crate::wire::messages::offset_fetch_request::OffsetFetchRequestGroup;
use crate::wire::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use crate::wire::messages::sync_group_response::SyncGroupResponse;
use crate::wire::messages::txn_offset_commit_request::TxnOffsetCommitRequest;
use crate::wire::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponse, TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use crate::wire::{ErrorCode, Str};

/// The longest string the protocol can carry, in bytes.
const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// Whether the text can be written again. What a client sent within the limit can come out above
/// it, because malformed UTF-8 is replaced by longer characters.
pub(super) fn fits(text: &str) -> bool {
    text.len() <= STRING_BYTES_MAX
}

/// From version 7 on, the name of no protocol is null, before it is "".
pub fn join_group(error: ErrorCode, member_id: Str, version: i16) -> JoinGroupResponse {
    JoinGroupResponse {
        error_code: error.0,
        member_id,
        protocol_name: (version < 7).then(Str::default),
        ..Default::default()
    }
}

pub fn sync_group(error: ErrorCode) -> SyncGroupResponse {
    SyncGroupResponse {
        error_code: error.0,
        ..Default::default()
    }
}

pub fn heartbeat(error: ErrorCode) -> HeartbeatResponse {
    // Members do not lose their place because a coordinator is still reading its log.
    let error = match error {
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS => ErrorCode::NONE,
        other => other,
    };
    HeartbeatResponse {
        error_code: error.0,
        ..Default::default()
    }
}

pub fn leave_group(error: ErrorCode) -> LeaveGroupResponse {
    LeaveGroupResponse {
        error_code: error.0,
        ..Default::default()
    }
}

pub fn offset_commit(request: &OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse {
    let topics = request
        .topics
        .iter()
        .map(|topic| OffsetCommitResponseTopic {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: topic
                .partitions
                .iter()
                .map(|partition| OffsetCommitResponsePartition {
                    partition_index: partition.partition_index,
                    error_code: error.0,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        });
    OffsetCommitResponse {
        topics: topics.collect(),
        ..Default::default()
    }
}

pub fn txn_offset_commit(
    request: &TxnOffsetCommitRequest,
    error: ErrorCode,
) -> TxnOffsetCommitResponse {
    let topics = request
        .topics
        .iter()
        .map(|topic| TxnOffsetCommitResponseTopic {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: topic
                .partitions
                .iter()
                .map(|partition| TxnOffsetCommitResponsePartition {
                    partition_index: partition.partition_index,
                    error_code: error.0,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        });
    TxnOffsetCommitResponse {
        topics: topics.collect(),
        ..Default::default()
    }
}

/// One group's part of an OffsetFetch answer. Before version 2 an error can only stand beside
/// each partition.
pub fn offset_fetch_group(
    group: &OffsetFetchRequestGroup,
    error: ErrorCode,
    version: i16,
) -> OffsetFetchResponseGroup {
    let mut response = OffsetFetchResponseGroup {
        group_id: group.group_id.clone(),
        ..Default::default()
    };
    if version >= 2 {
        response.error_code = error.0;
        return response;
    }
    for topic in group.topics.iter().flatten() {
        response.topics.push(OffsetFetchResponseTopics {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partitions: topic
                .partition_indexes
                .iter()
                .map(|partition| offset_fetch_partition(*partition, error))
                .collect(),
            ..Default::default()
        });
    }
    response
}

/// No offset, with an error or without.
pub(super) fn offset_fetch_partition(
    partition_index: i32,
    error: ErrorCode,
) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: -1,
        committed_leader_epoch: -1,
        metadata: Some(Str::default()),
        error_code: error.0,
        ..Default::default()
    }
}

pub fn offset_delete(error: ErrorCode) -> OffsetDeleteResponse {
    OffsetDeleteResponse {
        error_code: error.0,
        ..Default::default()
    }
}

pub fn list_groups(error: ErrorCode) -> ListGroupsResponse {
    ListGroupsResponse {
        error_code: error.0,
        ..Default::default()
    }
}

pub fn describe_groups(groups: &[Str], error: ErrorCode) -> Vec<DescribedGroup> {
    groups
        .iter()
        .map(|group| DescribedGroup {
            group_id: group.clone(),
            error_code: error.0,
            ..Default::default()
        })
        .collect()
}

pub fn delete_groups(groups: &[Str], error: ErrorCode) -> Vec<DeletableGroupResult> {
    groups
        .iter()
        .map(|group| DeletableGroupResult {
            group_id: group.clone(),
            error_code: error.0,
            ..Default::default()
        })
        .collect()
}
