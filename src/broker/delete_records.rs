//! DeleteRecords (key 21, v0-2): moves the log start offset (KIP-107). Runs on the connection's
//! shard; the owners of the partitions answer, once all live replicas have moved theirs.

use super::request::Context;
use crate::replica::partition::Partition;
use crate::rt::{self, Instant};
use crate::shard::Shard;
use crate::types::{Offset, PartitionId};
use crate::wire::ErrorCode;
use crate::wire::messages::delete_records_request::DeleteRecordsRequest;
use crate::wire::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use std::rc::Rc;
use std::time::Duration;

/// "Up to the high watermark".
const TO_HIGH_WATERMARK: i64 = -1;

pub async fn handle(context: Rc<Context>, request: DeleteRecordsRequest) -> DeleteRecordsResponse {
    let mut response = DeleteRecordsResponse::default();
    let mut questions = Vec::new();
    let mut places = Vec::new();
    for topic in request.topics {
        let known = context.shard.topic_id(&topic.name);
        let internal = crate::cluster::is_internal_topic(&topic.name);
        let mut answers = Vec::with_capacity(topic.partitions.len());
        for partition in topic.partitions {
            let mut answer = DeleteRecordsPartitionResult {
                partition_index: partition.partition_index,
                low_watermark: -1,
                ..Default::default()
            };
            match known {
                Some(_) if internal => answer.error_code = ErrorCode::INVALID_TOPIC_EXCEPTION.0,
                Some(id) => {
                    places.push((response.topics.len(), answers.len()));
                    let partition_id = PartitionId {
                        topic: id,
                        index: partition.partition_index,
                    };
                    questions.push((partition_id, partition.offset));
                }
                None => answer.error_code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.0,
            }
            answers.push(answer);
        }
        response.topics.push(DeleteRecordsTopicResult {
            name: topic.name,
            partitions: answers,
            ..Default::default()
        });
    }
    let deadline = rt::now() + Duration::from_millis(request.timeout_ms.max(0) as u64);
    let ids: Vec<PartitionId> = questions.iter().map(|(id, _)| *id).collect();
    let shard = &context.shard;
    let deleted = shard
        .ask_owners(questions, |shard, partition, wanted| {
            Box::pin(std::future::ready(delete(&shard, &partition, wanted)))
        })
        .await;
    // First all are deleted here, then all are waited for.
    let mut waits = Vec::new();
    let mut waited_for = Vec::new();
    for (at, deleted) in deleted.iter().enumerate() {
        if let Ok(deleted) = deleted
            && deleted.low_watermark < deleted.to
        {
            waits.push((ids[at], deleted.to));
            waited_for.push(at);
        }
    }
    let mut answers: Vec<Result<Waited, ErrorCode>> = deleted
        .into_iter()
        .map(|deleted| {
            deleted.map(|deleted| Waited {
                low_watermark: deleted.low_watermark,
                error: ErrorCode::NONE,
            })
        })
        .collect();
    if !waits.is_empty() {
        context.parked();
        let waited = shard
            .ask_owners(waits, move |shard, partition, to| {
                Box::pin(wait(shard, partition, to, deadline))
            })
            .await;
        for (at, waited) in waited_for.into_iter().zip(waited) {
            answers[at] = waited;
        }
    }
    for ((topic, slot), answer) in places.into_iter().zip(answers) {
        let place = &mut response.topics[topic].partitions[slot];
        match answer {
            Ok(waited) => {
                place.low_watermark = waited.low_watermark.0;
                place.error_code = waited.error.0;
            }
            Err(error) => place.error_code = error.0,
        }
    }
    response
}

struct Deleted {
    to: Offset,
    /// The lowest log start of all live replicas.
    low_watermark: Offset,
}

struct Waited {
    low_watermark: Offset,
    error: ErrorCode,
}

/// Moves the leader's log start; followers move theirs when their next fetch is answered.
fn delete(shard: &Rc<Shard>, partition: &Rc<Partition>, wanted: i64) -> Result<Deleted, ErrorCode> {
    partition.check_epoch(-1, true)?;
    let config = partition.log.config();
    // Under neither policy nothing goes but by this.
    if config.compact && !config.delete {
        return Err(ErrorCode::POLICY_VIOLATION);
    }
    let high_watermark = partition.high_watermark();
    let to = if wanted == TO_HIGH_WATERMARK {
        high_watermark
    } else {
        Offset(wanted)
    };
    if to > high_watermark || to.0 < 0 {
        return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    if let Err(error) = partition.log.delete_records_to(to) {
        tracing::error!(topic = %partition.topic, partition = partition.id.index, %error, "records could not be deleted");
        return Err(ErrorCode::KAFKA_STORAGE_ERROR);
    }
    shard.progressed(partition);
    let low_watermark = partition.low_watermark();
    let low_watermark = low_watermark.ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?;
    Ok(Deleted { to, low_watermark })
}

/// Waits until every live replica has deleted what lies below `to`.
async fn wait(
    shard: Rc<Shard>,
    partition: Rc<Partition>,
    to: Offset,
    deadline: Instant,
) -> Result<Waited, ErrorCode> {
    loop {
        let low_watermark = partition
            .low_watermark()
            .ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?;
        let done = |error| Waited {
            low_watermark,
            error,
        };
        if low_watermark >= to {
            return Ok(done(ErrorCode::NONE));
        }
        if rt::now() >= deadline || shard.is_draining() {
            return Ok(done(ErrorCode::REQUEST_TIMED_OUT));
        }
        let moved = partition.low_watermark_moved();
        rt::select3(moved, rt::sleep_until(deadline), shard.drained()).await;
    }
}
