//! DeleteRecords (key 21, v0-2): moves the log start offset (KIP-107). Runs on the connection's
//! shard; the owners of the partitions answer.

use super::request::Context;
use crate::types::{Offset, PartitionId};
use crate::wire::ErrorCode;
use crate::wire::messages::delete_records_request::DeleteRecordsRequest;
use crate::wire::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use std::rc::Rc;

/// "Up to the high watermark".
const TO_HIGH_WATERMARK: i64 = -1;

pub async fn handle(context: Rc<Context>, request: DeleteRecordsRequest) -> DeleteRecordsResponse {
    let mut response = DeleteRecordsResponse::default();
    let mut questions = Vec::new();
    let mut places = Vec::new();
    for topic in request.topics {
        let known = context
            .shard
            .image()
            .topic_by_name(&topic.name)
            .map(|known| known.id);
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
    let answers = context
        .shard
        .ask_owners(questions, |shard, partition, wanted| {
            Box::pin(async move {
                if !partition.is_leader() {
                    return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
                }
                if !partition.log.config().delete {
                    return Err(ErrorCode::POLICY_VIOLATION);
                }
                let high_watermark = partition.bounds().high_watermark;
                let to = if wanted == TO_HIGH_WATERMARK { high_watermark } else { Offset(wanted) };
                if to > high_watermark || to.0 < 0 {
                    return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
                }
                if let Err(error) = partition.log.delete_records_to(to) {
                    tracing::error!(topic = %partition.topic, partition = partition.id.index, %error, "records could not be deleted");
                    return Err(ErrorCode::KAFKA_STORAGE_ERROR);
                }
                shard.progressed(&partition);
                Ok(partition.log.log_start())
            })
        })
        .await;
    for ((topic, slot), answer) in places.into_iter().zip(answers) {
        let place = &mut response.topics[topic].partitions[slot];
        match answer {
            Ok(low_watermark) => place.low_watermark = low_watermark.0,
            Err(error) => place.error_code = error.0,
        }
    }
    response
}
