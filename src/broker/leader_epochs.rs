//! OffsetForLeaderEpoch (key 23, v2-4): where an epoch ends in the leader's log (KIP-101, KIP-320).
//! Runs on the connection's shard; the owners of the partitions answer.

use super::request::Context;
use crate::types::{LeaderEpoch, PartitionId};
use crate::wire::ErrorCode;
use crate::wire::messages::offset_for_leader_epoch_request::OffsetForLeaderEpochRequest;
use crate::wire::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult,
};
use std::rc::Rc;

pub async fn handle(
    context: Rc<Context>,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let mut response = OffsetForLeaderEpochResponse::default();
    let mut questions = Vec::new();
    let mut places = Vec::new();
    for topic in request.topics {
        let known = context.shard.topic_id(&topic.topic);
        let mut answers = Vec::with_capacity(topic.partitions.len());
        for partition in topic.partitions {
            let mut answer = EpochEndOffset {
                partition: partition.partition,
                ..Default::default()
            };
            match known {
                Some(id) => {
                    places.push((response.topics.len(), answers.len()));
                    questions.push((
                        PartitionId {
                            topic: id,
                            index: partition.partition,
                        },
                        (partition.current_leader_epoch, partition.leader_epoch),
                    ));
                }
                None => answer.error_code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.0,
            }
            answers.push(answer);
        }
        response.topics.push(OffsetForLeaderTopicResult {
            topic: topic.topic,
            partitions: answers,
            ..Default::default()
        });
    }
    let answers = context
        .shard
        .ask_owners(questions, |_, partition, (current, wanted)| {
            Box::pin(async move {
                partition.check_epoch(current, true)?;
                Ok(partition.log.end_offset_for_epoch(LeaderEpoch(wanted)))
            })
        })
        .await;
    for ((topic, slot), answer) in places.into_iter().zip(answers) {
        let place = &mut response.topics[topic].partitions[slot];
        match answer {
            Ok(Some((epoch, end))) => {
                place.leader_epoch = epoch.0;
                place.end_offset = end.0;
            }
            // An epoch this log has never seen.
            Ok(None) => {}
            Err(error) => place.error_code = error.0,
        }
    }
    response
}
