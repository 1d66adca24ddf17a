//! ListOffsets (key 2, v1-11): the offset for a timestamp, or one of the special ones. Runs on
//! the connection's shard; the owners of the partitions answer.

use super::request::Context;
use crate::replica::delayed::Isolation;
use crate::replica::partition::Partition;
use crate::types::{LeaderEpoch, Offset, PartitionId};
use crate::wire::ErrorCode;
use crate::wire::messages::list_offsets_request::ListOffsetsRequest;
use crate::wire::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use ahash::AHashSet;
use std::rc::Rc;

/// The special timestamps, with the first version that has each.
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// The record with the largest timestamp (KIP-734).
const MAX_TIMESTAMP: i64 = -3;
/// The earliest on this broker's own disk (KIP-405).
const EARLIEST_LOCAL: i64 = -4;
/// The latest in tiered storage (KIP-1005).
const LATEST_TIERED: i64 = -5;
/// The earliest that waits to be tiered (KIP-1023).
const EARLIEST_PENDING_UPLOAD: i64 = -6;

/// First version that tells the epoch of the offset (KIP-320).
const LEADER_EPOCH_VERSION: i16 = 4;
/// Before this version "not known yet" is told as LEADER_NOT_AVAILABLE.
const OFFSET_NOT_AVAILABLE_VERSION: i16 = 5;

#[derive(Clone, Copy)]
struct Question {
    timestamp: i64,
    current_leader_epoch: i32,
    isolation: Isolation,
    /// A debugging consumer may ask a follower.
    leader_only: bool,
    version: i16,
}

struct Answer {
    timestamp: i64,
    offset: i64,
    leader_epoch: i32,
}

const UNKNOWN: Answer = Answer {
    timestamp: -1,
    offset: -1,
    leader_epoch: -1,
};

pub async fn handle(context: Rc<Context>, request: ListOffsetsRequest) -> ListOffsetsResponse {
    let isolation = match (request.replica_id, request.isolation_level) {
        (-1, 1) => Isolation::LastStable,
        (-1, _) => Isolation::HighWatermark,
        _ => Isolation::LogEnd,
    };
    let mut response = ListOffsetsResponse::default();
    let mut seen = AHashSet::new();
    let mut twice = AHashSet::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let key = (topic.name.clone(), partition.partition_index);
            if !seen.insert(key.clone()) {
                twice.insert(key);
            }
        }
    }
    let mut questions = Vec::new();
    let mut places = Vec::new();
    for topic in request.topics {
        let known = context.shard.topic_id(&topic.name);
        let mut answers = Vec::with_capacity(topic.partitions.len());
        for partition in topic.partitions {
            let index = partition.partition_index;
            let mut answer = ListOffsetsPartitionResponse {
                partition_index: index,
                ..Default::default()
            };
            let refused = if twice.contains(&(topic.name.clone(), index)) {
                Some(ErrorCode::INVALID_REQUEST)
            } else if !is_known(partition.timestamp, context.version) {
                Some(ErrorCode::UNSUPPORTED_VERSION)
            } else if known.is_none() {
                Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
            } else {
                None
            };
            match (refused, known) {
                (Some(error), _) => answer.error_code = error.0,
                (None, Some(id)) => {
                    places.push((response.topics.len(), answers.len()));
                    questions.push((
                        PartitionId { topic: id, index },
                        Question {
                            timestamp: partition.timestamp,
                            current_leader_epoch: partition.current_leader_epoch,
                            isolation,
                            leader_only: request.replica_id != -2,
                            version: context.version,
                        },
                    ));
                }
                (None, None) => answer.error_code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.0,
            }
            answers.push(answer);
        }
        response.topics.push(ListOffsetsTopicResponse {
            name: topic.name,
            partitions: answers,
            ..Default::default()
        });
    }
    let answers = context
        .shard
        .ask_owners(questions, |_, partition, question| {
            Box::pin(async move { look_up(&partition, question).await })
        })
        .await;
    for ((topic, slot), answer) in places.into_iter().zip(answers) {
        let place = &mut response.topics[topic].partitions[slot];
        match answer {
            Ok(answer) => {
                place.timestamp = answer.timestamp;
                place.offset = answer.offset;
                if context.version >= LEADER_EPOCH_VERSION {
                    place.leader_epoch = answer.leader_epoch;
                }
            }
            Err(error) => place.error_code = error.0,
        }
    }
    response
}

/// Special timestamps are told apart by the version that knows them.
fn is_known(timestamp: i64, version: i16) -> bool {
    match timestamp {
        MAX_TIMESTAMP => version >= 7,
        EARLIEST_LOCAL => version >= 8,
        LATEST_TIERED => version >= 9,
        EARLIEST_PENDING_UPLOAD => version >= 11,
        other => other >= EARLIEST,
    }
}

async fn look_up(partition: &Partition, question: Question) -> Result<Answer, ErrorCode> {
    if partition.log.is_offline() {
        return Err(ErrorCode::KAFKA_STORAGE_ERROR);
    }
    partition.check_epoch(question.current_leader_epoch, question.leader_only)?;
    let end = match question.isolation {
        Isolation::LogEnd => partition.log.log_end(),
        isolation => partition.readable_end(isolation),
    };
    let at = |offset: Offset| Answer {
        timestamp: -1,
        offset: offset.0,
        leader_epoch: partition
            .log
            .epoch_for_offset(offset)
            .unwrap_or(LeaderEpoch::UNKNOWN)
            .0,
    };
    let settled = question.isolation == Isolation::LogEnd || partition.is_latest_known();
    match question.timestamp {
        // Nothing is tiered here: the earliest is always local, and no upload is pending.
        EARLIEST | EARLIEST_LOCAL => Ok(at(partition.log.log_start())),
        EARLIEST_PENDING_UPLOAD | LATEST_TIERED => Ok(UNKNOWN),
        LATEST if settled => Ok(Answer {
            leader_epoch: partition.leader_epoch().0,
            ..at(end)
        }),
        _ if !settled => Err(if question.version >= OFFSET_NOT_AVAILABLE_VERSION {
            ErrorCode::OFFSET_NOT_AVAILABLE
        } else {
            ErrorCode::LEADER_NOT_AVAILABLE
        }),
        timestamp => {
            let found = if timestamp == MAX_TIMESTAMP {
                partition.log.max_timestamp_offset().await
            } else {
                partition.log.offset_for_timestamp(timestamp).await
            };
            match found {
                Ok(Some(found)) if found.offset < end => Ok(Answer {
                    timestamp: found.timestamp,
                    ..at(found.offset)
                }),
                // A hit at or past the readable end is not told.
                Ok(_) => Ok(UNKNOWN),
                Err(error) => {
                    tracing::error!(topic = %partition.topic, partition = partition.id.index, %error, "look-up by time failed");
                    partition.log.give_up_after(&error);
                    Err(ErrorCode::KAFKA_STORAGE_ERROR)
                }
            }
        }
    }
}
