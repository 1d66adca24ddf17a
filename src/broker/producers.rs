//! Producer ids: InitProducerId (key 22, v0-5), DescribeProducers (key 61). Ids come in blocks from
//! the controller, one block a shard at a time; those of transactional producers from their
//! coordinator.

use super::request::Context;
use super::transactions;
use crate::coordinator::transactions::Producer;
use crate::types::PartitionId;
use crate::wire::messages::describe_producers_request::DescribeProducersRequest;
use crate::wire::messages::describe_producers_response::{
    DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};
use crate::wire::messages::init_producer_id_request::InitProducerIdRequest;
use crate::wire::messages::init_producer_id_response::InitProducerIdResponse;
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

pub async fn init(context: Rc<Context>, request: InitProducerIdRequest) -> InitProducerIdResponse {
    let given = match request.transactional_id {
        Some(_) => transactions::init(&context, request).await,
        None => context
            .shard
            .next_producer_id()
            .await
            .map(|id| Producer { id, epoch: 0 }),
    };
    match given {
        Ok(producer) => InitProducerIdResponse {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            ..Default::default()
        },
        Err(error) => InitProducerIdResponse {
            error_code: error.0,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        },
    }
}

pub async fn describe(
    context: Rc<Context>,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let mut response = DescribeProducersResponse::default();
    let mut questions = Vec::new();
    let mut places = Vec::new();
    for topic in request.topics {
        let known = context.shard.topic_id(&topic.name);
        let mut answers = Vec::with_capacity(topic.partition_indexes.len());
        for index in topic.partition_indexes {
            let mut answer = PartitionResponse {
                partition_index: index,
                ..Default::default()
            };
            match known {
                Some(id) => {
                    places.push((response.topics.len(), answers.len()));
                    questions.push((PartitionId { topic: id, index }, ()));
                }
                None => fail(&mut answer, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
            }
            answers.push(answer);
        }
        response.topics.push(TopicResponse {
            name: topic.name,
            partitions: answers,
            ..Default::default()
        });
    }
    let answers = context
        .shard
        .ask_owners(questions, |_, partition, ()| {
            Box::pin(async move { Ok(partition.log.describe_producers()) })
        })
        .await;
    for ((topic, slot), answer) in places.into_iter().zip(answers) {
        let place = &mut response.topics[topic].partitions[slot];
        match answer {
            Ok(producers) => {
                place.active_producers = producers
                    .into_iter()
                    .map(|producer| ProducerState {
                        producer_id: producer.producer_id,
                        producer_epoch: i32::from(producer.producer_epoch),
                        last_sequence: producer.last_sequence,
                        last_timestamp: producer.last_timestamp,
                        coordinator_epoch: producer.coordinator_epoch,
                        current_txn_start_offset: producer.current_txn_start_offset,
                        ..Default::default()
                    })
                    .collect();
            }
            Err(error) => fail(place, error),
        }
    }
    response
}

fn fail(answer: &mut PartitionResponse, error: ErrorCode) {
    answer.error_code = error.0;
    answer.error_message = Some(Str::from_static(error.message()));
}
