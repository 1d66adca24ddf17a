//! CreateTopics (key 19, v2-7), DeleteTopics (20, v1-6), CreatePartitions (37, v0-3), and topics
//! that the broker makes by itself. The controller decides; the answer waits until every shard has
//! the change. Runs on the connection's shard.

use super::request::Context;
use crate::cluster::controller::dice;
use crate::cluster::{Image, MetadataRecord, OFFSETS_TOPIC, topic_admin};
use crate::config::BrokerConfig;
use crate::shard::mesh::LocalFuture;
use crate::wire::messages::create_partitions_request::CreatePartitionsRequest;
use crate::wire::messages::create_partitions_response::{
    CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use crate::wire::messages::create_topics_request::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use crate::wire::messages::create_topics_response::{CreatableTopicResult, CreateTopicsResponse};
use crate::wire::messages::delete_topics_request::DeleteTopicsRequest;
use crate::wire::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;
use std::time::Duration;

/// How long a change the broker makes by itself may take.
const OWN_CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Has the controller decide `decide`, and waits until the shards have its outcome. The errors are
/// NOT_CONTROLLER (the controller has stopped or cannot write) and REQUEST_TIMED_OUT (the change is
/// made, not every shard has it yet).
pub(super) async fn change<R: Send + 'static>(
    context: &Rc<Context>,
    timeout: Duration,
    decide: impl FnOnce(&Image, &BrokerConfig) -> (Vec<MetadataRecord>, R) + Send + 'static,
) -> Result<R, ErrorCode> {
    let shard = &context.shard;
    context.parked();
    let answered = shard
        .mesh()
        .call_control(
            shard.control_place(),
            move |control| -> LocalFuture<Result<R, ErrorCode>> {
                Box::pin(async move {
                    let config = control.node.config.clone();
                    let Some(controller) = &control.controller else {
                        return Err(ErrorCode::NOT_CONTROLLER);
                    };
                    let decided = controller.change(|image| decide(image, &config)).await;
                    let answer = decided.map_err(|error| {
                        tracing::error!(%error, "metadata could not be changed");
                        ErrorCode::NOT_CONTROLLER
                    })?;
                    match crate::rt::timeout(timeout, control.applied()).await {
                        Ok(()) => Ok(answer),
                        Err(_) => Err(ErrorCode::REQUEST_TIMED_OUT),
                    }
                })
            },
        )
        .await;
    answered.unwrap_or(Err(ErrorCode::NOT_CONTROLLER))
}

fn millis(timeout_ms: i32) -> Duration {
    Duration::from_millis(timeout_ms.max(0) as u64)
}

pub async fn create(context: Rc<Context>, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let timeout = millis(request.timeout_ms);
    let names: Vec<Str> = request
        .topics
        .iter()
        .map(|topic| topic.name.clone())
        .collect();
    let decided = change(&context, timeout, move |image, config| {
        dice(|dice| topic_admin::create_topics(image, config, &request, dice))
    })
    .await;
    decided.unwrap_or_else(|error| CreateTopicsResponse {
        topics: names
            .into_iter()
            .map(|name| CreatableTopicResult {
                name,
                error_code: error.0,
                error_message: Some(Str::from_static(error.message())),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    })
}

pub async fn delete(context: Rc<Context>, request: DeleteTopicsRequest) -> DeleteTopicsResponse {
    let timeout = millis(request.timeout_ms);
    let version = context.version;
    let asked = request.clone();
    let decided = change(&context, timeout, move |image, config| {
        topic_admin::delete_topics(image, config, &request, version)
    })
    .await;
    decided.unwrap_or_else(|error| {
        let by_name = asked
            .topic_names
            .into_iter()
            .map(|name| (Some(name), Default::default()));
        let by_id = asked
            .topics
            .into_iter()
            .map(|topic| (topic.name, topic.topic_id));
        DeleteTopicsResponse {
            responses: by_name
                .chain(by_id)
                .map(|(name, topic_id)| DeletableTopicResult {
                    name,
                    topic_id,
                    error_code: error.0,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }
    })
}

pub async fn create_partitions(
    context: Rc<Context>,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let timeout = millis(request.timeout_ms);
    let names: Vec<Str> = request
        .topics
        .iter()
        .map(|topic| topic.name.clone())
        .collect();
    let decided = change(&context, timeout, move |image, _| {
        dice(|dice| topic_admin::create_partitions(image, &request, dice))
    })
    .await;
    decided.unwrap_or_else(|error| CreatePartitionsResponse {
        results: names
            .into_iter()
            .map(|name| CreatePartitionsTopicResult {
                name,
                error_code: error.0,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    })
}

/// Makes a topic that a client's Metadata request asked for.
pub(super) async fn create_automatically(context: &Rc<Context>, name: &Str) -> ErrorCode {
    if name == OFFSETS_TOPIC {
        return create_internal(context, OFFSETS_TOPIC).await;
    }
    let topic = CreatableTopic {
        name: name.clone(),
        num_partitions: -1,
        replication_factor: -1,
        ..Default::default()
    };
    create_one(context, topic).await
}

/// Makes a topic of the broker's own, with the settings Kafka gives it.
pub(super) async fn create_internal(context: &Rc<Context>, name: &'static str) -> ErrorCode {
    let config = &context.shard.node.config;
    // A cluster of one node cannot hold three replicas; Kafka would refuse, which helps nobody.
    let alive = context
        .shard
        .image()
        .brokers()
        .filter(|broker| !broker.fenced)
        .count();
    let factor = (config.offsets_topic_replication_factor as usize).min(alive.max(1));
    let set = |name: &'static str, value: String| CreatableTopicConfig {
        name: Str::from_static(name),
        value: Some(Str::from(value)),
        ..Default::default()
    };
    let topic = CreatableTopic {
        name: Str::from_static(name),
        num_partitions: config.offsets_topic_num_partitions,
        replication_factor: factor as i16,
        configs: vec![
            set("cleanup.policy", "compact".into()),
            set("compression.type", "producer".into()),
            set(
                "segment.bytes",
                config.offsets_topic_segment_bytes.to_string(),
            ),
        ],
        ..Default::default()
    };
    create_one(context, topic).await
}

async fn create_one(context: &Rc<Context>, topic: CreatableTopic) -> ErrorCode {
    let request = CreateTopicsRequest {
        topics: vec![topic],
        ..Default::default()
    };
    let decided = change(context, OWN_CHANGE_TIMEOUT, move |image, config| {
        dice(|dice| topic_admin::create_topics(image, config, &request, dice))
    })
    .await;
    match decided {
        Ok(response) => response
            .topics
            .first()
            .map_or(ErrorCode::UNKNOWN_SERVER_ERROR, |result| {
                ErrorCode(result.error_code)
            }),
        Err(error) => error,
    }
}
