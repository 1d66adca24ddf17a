//! OffsetFetch (1-10). One request may ask for many groups, which live in many shards: this file
//! splits a request into groups, answers one group from its shard, and puts the answer together.
//! Reads only; runs on the core of the group's partition (the splitting on any).

use super::offset_commit::TopicLookup;
use super::offsets::OffsetAndMetadata;
use super::refusal::{self, offset_fetch_partition};
use super::shard_state::GroupCoordinatorShard;
use crate::types::Uuid;
use crate::wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use crate::wire::messages::offset_fetch_response::{
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use crate::wire::{ErrorCode, Str};

/// From this version on, a request names groups in a list.
const GROUPS_FROM: i16 = 8;
/// From this version on, topics are named by id.
const TOPIC_IDS_FROM: i16 = 10;

/// The groups of a request, each to be answered by the shard of its partition. A request before
/// version 8 asks for one.
pub fn groups_of_offset_fetch(
    request: OffsetFetchRequest,
    version: i16,
) -> Vec<OffsetFetchRequestGroup> {
    if version >= GROUPS_FROM {
        return request.groups;
    }
    let topics = request.topics.map(|topics| {
        topics
            .into_iter()
            .map(|topic| OffsetFetchRequestTopics {
                name: topic.name,
                partition_indexes: topic.partition_indexes,
                ..Default::default()
            })
            .collect()
    });
    vec![OffsetFetchRequestGroup {
        group_id: request.group_id,
        topics,
        ..Default::default()
    }]
}

/// The answer from the groups' answers, in the order of the request.
pub fn assemble_offset_fetch(
    groups: Vec<OffsetFetchResponseGroup>,
    version: i16,
) -> OffsetFetchResponse {
    if version >= GROUPS_FROM {
        return OffsetFetchResponse {
            groups,
            ..Default::default()
        };
    }
    let Some(group) = groups.into_iter().next() else {
        return OffsetFetchResponse::default();
    };
    let topics = group
        .topics
        .into_iter()
        .map(|topic| OffsetFetchResponseTopic {
            name: topic.name,
            partitions: topic
                .partitions
                .into_iter()
                .map(|partition| OffsetFetchResponsePartition {
                    partition_index: partition.partition_index,
                    committed_offset: partition.committed_offset,
                    committed_leader_epoch: partition.committed_leader_epoch,
                    metadata: partition.metadata,
                    error_code: partition.error_code,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        });
    OffsetFetchResponse {
        topics: topics.collect(),
        error_code: group.error_code,
        ..Default::default()
    }
}

impl GroupCoordinatorShard {
    /// The committed offsets of one group. A group or partition that is not known has offset -1
    /// and no error. With `require_stable`, a partition with an open transaction or a commit
    /// under way is answered UNSTABLE_OFFSET_COMMIT, which clients try again.
    pub fn offset_fetch(
        &self,
        request: &OffsetFetchRequestGroup,
        require_stable: bool,
        topics: &dyn TopicLookup,
        version: i16,
    ) -> OffsetFetchResponseGroup {
        if let Some(error) = self.refusal() {
            return refusal::offset_fetch_group(request, error, version);
        }
        let mut response = OffsetFetchResponseGroup {
            group_id: request.group_id.clone(),
            ..Default::default()
        };
        response.topics = match &request.topics {
            Some(asked) => {
                self.fetch_some(&request.group_id, asked, require_stable, topics, version)
            }
            None => self.fetch_all(&request.group_id, require_stable, topics, version),
        };
        response
    }

    fn fetch_some(
        &self,
        group: &Str,
        asked: &[OffsetFetchRequestTopics],
        require_stable: bool,
        topics: &dyn TopicLookup,
        version: i16,
    ) -> Vec<OffsetFetchResponseTopics> {
        let mut answers = Vec::with_capacity(asked.len());
        for topic in asked {
            let name = if version >= TOPIC_IDS_FROM {
                topics
                    .topic_name(topic.topic_id)
                    .ok_or(ErrorCode::UNKNOWN_TOPIC_ID)
            } else {
                Ok(topic.name.clone())
            };
            let name = name.and_then(|name| match topics.may_describe(&name) {
                true => Ok(name),
                false => Err(ErrorCode::TOPIC_AUTHORIZATION_FAILED),
            });
            let partitions = topic.partition_indexes.iter().map(|partition| match &name {
                Err(error) => offset_fetch_partition(*partition, *error),
                Ok(name) if require_stable && self.is_unstable(group, name, *partition) => {
                    offset_fetch_partition(*partition, ErrorCode::UNSTABLE_OFFSET_COMMIT)
                }
                Ok(name) => match self.offsets.get(group, name, *partition) {
                    Some(value) if is_of_topic(value, topic.topic_id) => present(*partition, value),
                    _ => offset_fetch_partition(*partition, ErrorCode::NONE),
                },
            });
            answers.push(OffsetFetchResponseTopics {
                partitions: partitions.collect(),
                name: topic.name.clone(),
                topic_id: topic.topic_id,
                ..Default::default()
            });
        }
        answers
    }

    fn fetch_all(
        &self,
        group: &Str,
        require_stable: bool,
        topics: &dyn TopicLookup,
        version: i16,
    ) -> Vec<OffsetFetchResponseTopics> {
        let mut answers = Vec::new();
        for (name, partitions) in self
            .offsets
            .of_group(group)
            .into_iter()
            .flat_map(|o| o.topics())
        {
            if !topics.may_describe(name) {
                continue;
            }
            let topic_id = match topics.topic_id(name) {
                Some(id) => id,
                // Without an id there is no way to say which topic it is.
                None if version >= TOPIC_IDS_FROM => continue,
                None => Uuid::ZERO,
            };
            let partitions = partitions.iter().map(|(partition, value)| {
                if require_stable && self.is_unstable(group, name, *partition) {
                    offset_fetch_partition(*partition, ErrorCode::UNSTABLE_OFFSET_COMMIT)
                } else {
                    present(*partition, value)
                }
            });
            answers.push(OffsetFetchResponseTopics {
                partitions: partitions.collect(),
                name: name.clone(),
                topic_id,
                ..Default::default()
            });
        }
        answers
    }

    fn is_unstable(&self, group: &str, topic: &str, partition: i32) -> bool {
        self.offsets.is_pending(group, topic, partition)
            || self.offsets.is_in_flight(group, topic, partition)
    }
}

/// An offset that was committed for another topic of the same name is not this topic's.
fn is_of_topic(value: &OffsetAndMetadata, asked: Uuid) -> bool {
    value.topic_id.is_zero() || asked.is_zero() || value.topic_id == asked
}

fn present(partition_index: i32, value: &OffsetAndMetadata) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: value.offset,
        committed_leader_epoch: value.leader_epoch,
        metadata: Some(value.metadata.clone()),
        ..Default::default()
    }
}
