//! DescribeTopicPartitions (key 75, v0): topics with their partitions, in pages (KIP-966). Runs
//! on the connection's shard.

use super::metadata::OPERATIONS_NOT_TOLD;
use super::request::Context;
use crate::cluster::{Image, Topic, is_internal_topic};
use crate::types::NodeId;
use crate::wire::messages::describe_topic_partitions_request::DescribeTopicPartitionsRequest;
use crate::wire::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

/// `max.request.partition.size.limit`: partitions in one answer.
const PARTITIONS_MAX: usize = 2000;

pub async fn handle(
    context: Rc<Context>,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let image = context.shard.image();
    let cursor = request.cursor.as_ref();
    let all = request.topics.is_empty();
    let mut names: Vec<Str> = if all {
        image.topics().map(|topic| topic.name.clone()).collect()
    } else {
        request
            .topics
            .iter()
            .map(|topic| topic.name.clone())
            .collect()
    };
    names.sort();
    names.dedup();
    if let Some(cursor) = cursor {
        names.retain(|name| *name >= cursor.topic_name);
    }
    let mut left = (request.response_partition_limit.max(1) as usize).min(PARTITIONS_MAX);
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names {
        let first = match cursor {
            Some(cursor) if cursor.topic_name == name => cursor.partition_index.max(0),
            _ => 0,
        };
        if left == 0 {
            response.next_cursor = Some(Cursor {
                topic_name: name,
                partition_index: first,
                ..Default::default()
            });
            break;
        }
        let Some(topic) = image.topic_by_name(&name) else {
            if !all {
                response.topics.push(unknown(name));
            }
            continue;
        };
        let partitions: Vec<_> = topic
            .partitions()
            .filter(|(index, _)| *index >= first)
            .take(left)
            .collect();
        left -= partitions.len();
        let next = first + partitions.len() as i32;
        response.topics.push(describe(&image, topic, partitions));
        if next < topic.partition_count() {
            response.next_cursor = Some(Cursor {
                topic_name: name,
                partition_index: next,
                ..Default::default()
            });
            break;
        }
    }
    response
}

fn unknown(name: Str) -> DescribeTopicPartitionsResponseTopic {
    let error = match crate::cluster::check_topic_name(&name) {
        Ok(()) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        Err(_) => ErrorCode::INVALID_TOPIC_EXCEPTION,
    };
    DescribeTopicPartitionsResponseTopic {
        error_code: error.0,
        is_internal: is_internal_topic(&name),
        name: Some(name),
        topic_authorized_operations: OPERATIONS_NOT_TOLD,
        ..Default::default()
    }
}

fn describe(
    image: &Image,
    topic: &Topic,
    partitions: Vec<(i32, &crate::cluster::PartitionRegistration)>,
) -> DescribeTopicPartitionsResponseTopic {
    let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<_>>();
    let partitions = partitions
        .into_iter()
        .map(
            |(index, partition)| DescribeTopicPartitionsResponsePartition {
                partition_index: index,
                leader_id: partition.leader.0,
                leader_epoch: partition.leader_epoch.0,
                replica_nodes: ids(&partition.replicas),
                isr_nodes: ids(&partition.isr),
                eligible_leader_replicas: Some(ids(&partition.elr)),
                last_known_elr: Some(ids(&partition.last_known_elr)),
                offline_replicas: partition
                    .replicas
                    .iter()
                    .filter(|node| image.is_replica_offline(partition, **node))
                    .map(|node| node.0)
                    .collect(),
                ..Default::default()
            },
        )
        .collect();
    DescribeTopicPartitionsResponseTopic {
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: is_internal_topic(&topic.name),
        partitions,
        topic_authorized_operations: OPERATIONS_NOT_TOLD,
        ..Default::default()
    }
}
