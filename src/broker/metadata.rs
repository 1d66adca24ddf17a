//! Metadata (key 3, v0-13): the brokers, and the partitions of topics with their leaders; makes
//! topics that clients ask for, where that is allowed. Runs on the connection's shard.

use super::request::Context;
use super::topics;
use crate::cluster::{Image, Topic, is_internal_topic};
use crate::types::{NodeId, Uuid};
use crate::wire::messages::metadata_request::MetadataRequest;
use crate::wire::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

/// First version that may ask by topic id, and is told about unknown ids (KIP-516).
const TOPIC_ID_VERSION: i16 = 10;
/// Operations are not told where no authorizer runs (KIP-430).
pub(super) const OPERATIONS_NOT_TOLD: i32 = i32::MIN;

pub async fn handle(context: Rc<Context>, request: MetadataRequest) -> MetadataResponse {
    let mut topics = Vec::new();
    match &request.topics {
        // Version 0 asks for all topics with an empty list, later ones with null.
        None => all(&context, &mut topics),
        Some(asked) if asked.is_empty() && context.version == 0 => all(&context, &mut topics),
        Some(asked) => {
            let mut missing = Vec::new();
            for topic in asked {
                let image = context.shard.image();
                match &topic.name {
                    Some(name)
                        if context.version < TOPIC_ID_VERSION || topic.topic_id.is_zero() =>
                    {
                        if let Some(known) = image.topic_by_name(name) {
                            topics.push(describe(&image, known));
                        } else {
                            missing.push((topics.len(), name.clone()));
                            let error = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
                            topics.push(unknown(Some(name.clone()), Uuid::ZERO, error));
                        }
                    }
                    _ => match image.topic_by_id(topic.topic_id) {
                        Some(known) => topics.push(describe(&image, known)),
                        None => {
                            topics.push(unknown(None, topic.topic_id, ErrorCode::UNKNOWN_TOPIC_ID))
                        }
                    },
                }
            }
            // Version 0 to 3 have no say in it and always allow it.
            let allowed = context.version < 4 || request.allow_auto_topic_creation;
            create_missing(&context, &mut topics, missing, allowed).await;
        }
    }
    let image = context.shard.image();
    let brokers = image
        .endpoints(&context.peer.listener)
        .map(|(id, host, port, rack)| MetadataResponseBroker {
            node_id: id.0,
            host: Str::from(host),
            port: i32::from(port),
            rack: rack.map(Str::from),
            ..Default::default()
        })
        .collect();
    MetadataResponse {
        brokers,
        cluster_id: Some(Str::from(context.shard.node.cluster_id.as_str())),
        controller_id: controller(&context, &image),
        topics,
        cluster_authorized_operations: OPERATIONS_NOT_TOLD,
        ..Default::default()
    }
}

/// Clients may send to any broker what is for the controller: it is forwarded. So any live broker
/// will do; this one is at hand.
pub(super) fn controller(context: &Context, image: &Image) -> i32 {
    let own = context.shard.node.node;
    let alive = image
        .endpoints(&context.peer.listener)
        .any(|(id, ..)| id == own);
    if alive { own.0 } else { -1 }
}

fn all(context: &Context, topics: &mut Vec<MetadataResponseTopic>) {
    let image = context.shard.image();
    topics.extend(image.topics().map(|topic| describe(&image, topic)));
}

/// Makes the topics that are missing, or says why each is not there.
async fn create_missing(
    context: &Rc<Context>,
    topics: &mut [MetadataResponseTopic],
    missing: Vec<(usize, Str)>,
    allowed: bool,
) {
    if missing.is_empty() {
        return;
    }
    let auto_create = allowed && context.shard.node.config.auto_create_topics_enable;
    for (place, name) in missing {
        if let Err(error) = crate::cluster::check_topic_name(&name) {
            tracing::debug!(%name, %error, "metadata asked for an impossible topic");
            topics[place].error_code = ErrorCode::INVALID_TOPIC_EXCEPTION.0;
            continue;
        }
        if !auto_create {
            continue;
        }
        context.parked();
        let error = topics::create_automatically(context, &name).await;
        let image = context.shard.image();
        match image.topic_by_name(&name) {
            Some(known) => topics[place] = describe(&image, known),
            // Kafka answers that the topic is on its way: clients ask again.
            None if error == ErrorCode::NONE || error == ErrorCode::TOPIC_ALREADY_EXISTS => {
                topics[place].error_code = ErrorCode::LEADER_NOT_AVAILABLE.0;
            }
            None => topics[place].error_code = error.0,
        }
    }
}

fn unknown(name: Option<Str>, topic_id: Uuid, error: ErrorCode) -> MetadataResponseTopic {
    let is_internal = name.as_deref().is_some_and(is_internal_topic);
    MetadataResponseTopic {
        error_code: error.0,
        name,
        topic_id,
        is_internal,
        topic_authorized_operations: OPERATIONS_NOT_TOLD,
        ..Default::default()
    }
}

fn describe(image: &Image, topic: &Topic) -> MetadataResponseTopic {
    let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<_>>();
    let partitions = topic
        .partitions()
        .map(|(index, partition)| {
            let offline = partition
                .replicas
                .iter()
                .filter(|node| image.is_replica_offline(partition, **node));
            let alive_leader = partition.leader.0 >= 0 && image.is_alive(partition.leader);
            MetadataResponsePartition {
                error_code: if alive_leader {
                    ErrorCode::NONE.0
                } else {
                    ErrorCode::LEADER_NOT_AVAILABLE.0
                },
                partition_index: index,
                leader_id: if alive_leader { partition.leader.0 } else { -1 },
                leader_epoch: partition.leader_epoch.0,
                replica_nodes: ids(&partition.replicas),
                isr_nodes: ids(&partition.isr),
                offline_replicas: offline.map(|node| node.0).collect(),
                ..Default::default()
            }
        })
        .collect();
    MetadataResponseTopic {
        name: Some(topic.name.clone()),
        topic_id: topic.id,
        is_internal: is_internal_topic(&topic.name),
        partitions,
        topic_authorized_operations: OPERATIONS_NOT_TOLD,
        ..Default::default()
    }
}
