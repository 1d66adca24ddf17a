//! CreateTopics (key 19, v2-7), DeleteTopics (20, v1-6), CreatePartitions (37, v0-3), and topics
//! that the broker makes by itself. The controller decides; the answer waits until every shard has
//! the change. Runs on the connection's shard.

use super::request::Context;
use crate::client::Exchange;
use crate::cluster::apis::Asker;
use crate::cluster::apis::topics::{not_created, not_deleted, not_grown};
use crate::cluster::{OFFSETS_TOPIC, TRANSACTIONS_TOPIC};
use crate::wire::messages::create_partitions_request::CreatePartitionsRequest;
use crate::wire::messages::create_partitions_response::CreatePartitionsResponse;
use crate::wire::messages::create_topics_request::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use crate::wire::messages::create_topics_response::CreateTopicsResponse;
use crate::wire::messages::delete_topics_request::DeleteTopicsRequest;
use crate::wire::messages::delete_topics_response::DeleteTopicsResponse;
use crate::wire::{ErrorCode, Message, Str};
use std::rc::Rc;
use std::time::Duration;

/// How long a change the broker makes by itself may take.
const OWN_CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends a request on to the active controller, and waits until the shards here have what it
/// changed. The errors are those of [`Control::forward`](crate::shard::control::Control::forward).
pub(super) async fn forward<Q: Exchange>(
    context: &Rc<Context>,
    version: i16,
    request: &Q,
    timeout: Duration,
) -> Result<Q::Response, ErrorCode> {
    context.parked();
    let bad = |error: &dyn std::fmt::Display| {
        tracing::error!(api = Q::NAME, version, %error, "request could not be forwarded");
        ErrorCode::UNKNOWN_SERVER_ERROR
    };
    let body = request.to_bytes(version).map_err(|error| bad(&error))?;
    let asker = Asker {
        client_id: context.client_id.detached(),
        host: context.peer.client_host(),
    };
    let answer = context
        .shard
        .forward(asker, Q::KEY, version, body, timeout)
        .await?;
    Q::Response::from_bytes(answer, version).map_err(|error| bad(&error))
}

fn millis(timeout_ms: i32) -> Duration {
    Duration::from_millis(timeout_ms.max(0) as u64)
}

pub async fn create(context: Rc<Context>, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let timeout = millis(request.timeout_ms);
    forward(&context, context.version, &request, timeout)
        .await
        .unwrap_or_else(|error| not_created(&request, error))
}

pub async fn delete(context: Rc<Context>, request: DeleteTopicsRequest) -> DeleteTopicsResponse {
    let timeout = millis(request.timeout_ms);
    forward(&context, context.version, &request, timeout)
        .await
        .unwrap_or_else(|error| not_deleted(&request, error))
}

pub async fn create_partitions(
    context: Rc<Context>,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let timeout = millis(request.timeout_ms);
    forward(&context, context.version, &request, timeout)
        .await
        .unwrap_or_else(|error| not_grown(&request, error))
}

/// Makes a topic that a client's Metadata request asked for.
pub(super) async fn create_automatically(context: &Rc<Context>, name: &Str) -> ErrorCode {
    for internal in [OFFSETS_TOPIC, TRANSACTIONS_TOPIC] {
        if name == internal {
            return create_internal(context, internal).await;
        }
    }
    let topic = CreatableTopic {
        name: name.clone(),
        num_partitions: -1,
        replication_factor: -1,
        ..Default::default()
    };
    create_one(context, topic).await
}

/// Makes a topic of the broker's own (the offsets topic or the transaction state topic), with the
/// settings Kafka gives it.
pub(super) async fn create_internal(context: &Rc<Context>, name: &'static str) -> ErrorCode {
    let config = &context.shard.node.config;
    let (num_partitions, replicas, mut configs) = match name {
        TRANSACTIONS_TOPIC => (
            config.transaction_topic_num_partitions,
            config.transaction_topic_replication_factor,
            vec![
                ("compression.type", "uncompressed".to_owned()),
                (
                    "segment.bytes",
                    config.transaction_topic_segment_bytes.to_string(),
                ),
                (
                    "min.insync.replicas",
                    config.transaction_topic_min_isr.to_string(),
                ),
                ("unclean.leader.election.enable", "false".to_owned()),
            ],
        ),
        _ => (
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            vec![
                ("compression.type", "producer".to_owned()),
                (
                    "segment.bytes",
                    config.offsets_topic_segment_bytes.to_string(),
                ),
            ],
        ),
    };
    configs.push(("cleanup.policy", "compact".to_owned()));
    // As many replicas as Kafka makes, or none: with fewer because a broker was not up yet the
    // topic would stay so for good. Only a node that nobody can join makes do with itself.
    let alone = config.quorum.is_alone(config.node_id) && config.quorum.listeners.is_empty();
    let topic = CreatableTopic {
        name: Str::from_static(name),
        num_partitions,
        replication_factor: if alone { 1 } else { replicas },
        configs: configs
            .into_iter()
            .map(|(name, value)| CreatableTopicConfig {
                name: Str::from_static(name),
                value: Some(Str::from(value)),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    create_one(context, topic).await
}

async fn create_one(context: &Rc<Context>, topic: CreatableTopic) -> ErrorCode {
    let request = CreateTopicsRequest {
        topics: vec![topic],
        ..Default::default()
    };
    let version = CreateTopicsRequest::MAX_VERSION;
    let decided = forward(context, version, &request, OWN_CHANGE_TIMEOUT).await;
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
