//! What the controller decides about topics: create, delete, grow. Pure: the image, the request
//! and random numbers in; records and answers out. Never writes.

use super::configs::{ConfigChange, alter_resource};
use super::image::{Image, ResourceType};
use super::placement;
use super::record::MetadataRecord;
use super::topics::{Topic, check_topic_name, names_collide};
use crate::config::BrokerConfig;
use crate::types::{NodeId, Uuid};
use crate::wire::messages::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use crate::wire::messages::create_partitions_response::{
    CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use crate::wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use crate::wire::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse,
};
use crate::wire::messages::delete_topics_request::DeleteTopicsRequest;
use crate::wire::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use crate::wire::messages::partition_record::PartitionRecord;
use crate::wire::messages::remove_topic_record::RemoveTopicRecord;
use crate::wire::messages::topic_record::TopicRecord;
use crate::wire::{ErrorCode, Str};
use ahash::{AHashMap, AHashSet};
use std::collections::BTreeMap;

/// Partitions that one request may make, as Kafka limits them.
const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;
/// First versions: several answers to DeleteTopics can say why (5), topics by id (6).
const DELETE_MESSAGE_VERSION: i16 = 5;
const DELETE_BY_ID_VERSION: i16 = 6;

/// An error with what to tell the client.
type Refusal = (ErrorCode, Option<String>);

fn refuse<T>(error: ErrorCode, message: impl Into<String>) -> Result<T, Refusal> {
    Err((error, Some(message.into())))
}

/// Random input of a decision.
pub struct Dice<'a>(pub &'a mut dyn FnMut() -> u64);

impl Dice<'_> {
    fn roll(&mut self) -> u64 {
        (self.0)()
    }

    /// An id that does not begin with a dash and is none of the reserved ones.
    pub fn uuid(&mut self) -> Uuid {
        loop {
            let id = Uuid::from_halves(self.roll(), self.roll());
            let reserved = id.0[..15].iter().all(|byte| *byte == 0);
            if !reserved && !id.to_string().starts_with('-') {
                return id;
            }
        }
    }
}

struct NewTopic {
    id: Uuid,
    partitions: Vec<Vec<NodeId>>,
    factor: i16,
    configs: BTreeMap<String, String>,
}

pub fn create_topics(
    image: &Image,
    config: &BrokerConfig,
    request: &CreateTopicsRequest,
    mut dice: Dice<'_>,
) -> (Vec<MetadataRecord>, CreateTopicsResponse) {
    let mut times: AHashMap<&Str, usize> = AHashMap::new();
    for topic in &request.topics {
        *times.entry(&topic.name).or_default() += 1;
    }
    let mut records = Vec::new();
    let mut response = CreateTopicsResponse::default();
    let mut new_names: Vec<Str> = Vec::new();
    let mut made = 0;
    for topic in &request.topics {
        let mut result = CreatableTopicResult { name: topic.name.clone(), ..Default::default() };
        let decided = if times.get(&topic.name).is_some_and(|times| *times > 1) {
            refuse(ErrorCode::INVALID_REQUEST, "Duplicate topic name.")
        } else {
            decide_topic(image, config, topic, &new_names, made, &mut dice)
        };
        match decided {
            Ok(new) => {
                made += new.partitions.len();
                new_names.push(topic.name.clone());
                result.topic_id = new.id;
                result.num_partitions = new.partitions.len() as i32;
                result.replication_factor = new.factor;
                result.configs = Some(told_configs(config, image, &new.configs));
                if request.validate_only {
                    result.topic_id = Uuid::ZERO;
                } else {
                    records.extend(topic_records(&topic.name, &new));
                }
            }
            Err((error, message)) => {
                result.error_code = error.0;
                result.error_message = message.map(Str::from);
                result.num_partitions = -1;
                result.replication_factor = -1;
            }
        }
        if !response.topics.iter().any(|told| told.name == result.name) {
            response.topics.push(result);
        }
    }
    (records, response)
}

fn decide_topic(
    image: &Image,
    config: &BrokerConfig,
    topic: &CreatableTopic,
    new_names: &[Str],
    made: usize,
    dice: &mut Dice<'_>,
) -> Result<NewTopic, Refusal> {
    check_topic_name(&topic.name).or_else(|why| refuse(ErrorCode::INVALID_TOPIC_EXCEPTION, why))?;
    if image.topic_by_name(&topic.name).is_some() {
        return refuse(
            ErrorCode::TOPIC_ALREADY_EXISTS,
            format!("Topic '{}' already exists.", topic.name),
        );
    }
    let taken = image.topics().map(|known| &known.name).chain(new_names);
    if let Some(other) = taken.into_iter().find(|other| names_collide(other, &topic.name)) {
        return refuse(
            ErrorCode::INVALID_TOPIC_EXCEPTION,
            format!("Topic '{}' collides with existing topic: {other}", topic.name),
        );
    }
    let changes: Vec<ConfigChange> = topic
        .configs
        .iter()
        .map(|entry| ConfigChange::set(&entry.name, entry.value.as_deref()))
        .collect();
    let configs = alter_resource(image, config, ResourceType::TOPIC, &topic.name, &changes, false)
        .map_err(|(error, message)| (error, Some(message)))?;
    let partitions = if topic.assignments.is_empty() {
        automatic(image, config, topic, made, dice)?
    } else {
        manual(image, topic)?
    };
    let factor = partitions.first().map_or(0, Vec::len) as i16;
    Ok(NewTopic { id: dice.uuid(), partitions, factor, configs })
}

fn automatic(
    image: &Image,
    config: &BrokerConfig,
    topic: &CreatableTopic,
    made: usize,
    dice: &mut Dice<'_>,
) -> Result<Vec<Vec<NodeId>>, Refusal> {
    if topic.replication_factor == 0 || topic.replication_factor < -1 {
        return refuse(
            ErrorCode::INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        );
    }
    if topic.num_partitions == 0 || topic.num_partitions < -1 {
        return refuse(
            ErrorCode::INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        );
    }
    let count = if topic.num_partitions == -1 { config.num_partitions } else { topic.num_partitions };
    let factor = match topic.replication_factor {
        -1 => config.default_replication_factor,
        factor => factor,
    };
    check_total(made + count as usize)?;
    let factor = usize::try_from(factor).unwrap_or(0);
    placement::place(image, 0, count, factor, dice.roll())
        .map_err(|error| (ErrorCode::INVALID_REPLICATION_FACTOR, Some(error.to_string())))
}

fn check_total(partitions: usize) -> Result<(), Refusal> {
    if partitions > PARTITIONS_PER_REQUEST_MAX {
        return refuse(
            ErrorCode::POLICY_VIOLATION,
            format!("Excessively large number of partitions per request: more than {PARTITIONS_PER_REQUEST_MAX}."),
        );
    }
    Ok(())
}

fn manual(image: &Image, topic: &CreatableTopic) -> Result<Vec<Vec<NodeId>>, Refusal> {
    if topic.replication_factor != -1 {
        return refuse(
            ErrorCode::INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        );
    }
    if topic.num_partitions != -1 {
        return refuse(
            ErrorCode::INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        );
    }
    let mut partitions: BTreeMap<i32, Vec<NodeId>> = BTreeMap::new();
    for assignment in &topic.assignments {
        let replicas = check_replicas(image, &assignment.broker_ids)?;
        if partitions.insert(assignment.partition_index, replicas).is_some() {
            return refuse(
                ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                format!("Found multiple manual partition assignments for partition {}", assignment.partition_index),
            );
        }
    }
    check_total(partitions.len())?;
    let consecutive = partitions.keys().enumerate().all(|(at, index)| at as i32 == *index);
    if !consecutive {
        return refuse(
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        );
    }
    let partitions: Vec<_> = partitions.into_values().collect();
    same_factor(&partitions)?;
    Ok(partitions)
}

fn same_factor(partitions: &[Vec<NodeId>]) -> Result<(), Refusal> {
    let factor = partitions.first().map_or(0, Vec::len);
    if partitions.iter().any(|replicas| replicas.len() != factor) {
        return refuse(
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes partitions with different replication factors.",
        );
    }
    Ok(())
}

fn check_replicas(image: &Image, ids: &[i32]) -> Result<Vec<NodeId>, Refusal> {
    if ids.is_empty() {
        return refuse(
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list.",
        );
    }
    let mut seen = AHashSet::new();
    for id in ids {
        if !seen.insert(*id) {
            return refuse(
                ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                format!("The manual partition assignment includes the broker {id} more than once."),
            );
        }
        if image.broker(NodeId(*id)).is_none() {
            return refuse(
                ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                format!("The manual partition assignment includes broker {id}, but no such broker is registered."),
            );
        }
    }
    Ok(ids.iter().map(|id| NodeId(*id)).collect())
}

/// The settings a new topic has, as CreateTopics v5 tells them (KIP-525).
fn told_configs(
    config: &BrokerConfig,
    image: &Image,
    overrides: &BTreeMap<String, String>,
) -> Vec<CreatableTopicConfigs> {
    super::configs::layers(image, config)
        .describe_topic(overrides)
        .into_iter()
        .map(|entry| CreatableTopicConfigs {
            name: Str::from(entry.name),
            value: entry.value.map(Str::from),
            read_only: entry.read_only,
            config_source: entry.source,
            is_sensitive: entry.sensitive,
            ..Default::default()
        })
        .collect()
}

fn topic_records(name: &Str, new: &NewTopic) -> Vec<MetadataRecord> {
    let mut records = vec![MetadataRecord::from(TopicRecord {
        name: name.detached(),
        topic_id: new.id,
        ..Default::default()
    })];
    records.extend(super::configs::set_records(ResourceType::TOPIC, name, &new.configs));
    for (index, replicas) in new.partitions.iter().enumerate() {
        records.push(partition_record(new.id, index as i32, replicas));
    }
    records
}

fn partition_record(topic_id: Uuid, partition_id: i32, replicas: &[NodeId]) -> MetadataRecord {
    let ids: Vec<i32> = replicas.iter().map(|node| node.0).collect();
    MetadataRecord::from(PartitionRecord {
        partition_id,
        topic_id,
        leader: ids.first().copied().unwrap_or(-1),
        isr: ids.clone(),
        directories: vec![UNASSIGNED_DIRECTORY; ids.len()],
        replicas: ids,
        leader_epoch: 0,
        partition_epoch: 0,
        ..Default::default()
    })
}

/// Directory id of a replica whose broker has not placed it yet (KIP-858).
const UNASSIGNED_DIRECTORY: Uuid = Uuid::from_halves(0, 1);

pub fn delete_topics(
    image: &Image,
    config: &BrokerConfig,
    request: &DeleteTopicsRequest,
    version: i16,
) -> (Vec<MetadataRecord>, DeleteTopicsResponse) {
    let mut records = Vec::new();
    let mut response = DeleteTopicsResponse::default();
    let asked: Vec<(Option<Str>, Uuid)> = if version >= DELETE_BY_ID_VERSION {
        request.topics.iter().map(|topic| (topic.name.clone(), topic.topic_id)).collect()
    } else {
        request.topic_names.iter().map(|name| (Some(name.clone()), Uuid::ZERO)).collect()
    };
    let mut doomed = AHashSet::new();
    for (name, id) in asked {
        let mut result =
            DeletableTopicResult { name: name.clone(), topic_id: id, ..Default::default() };
        match decide_deletion(image, config, name.as_ref(), id, &doomed) {
            Ok(topic) => {
                doomed.insert(topic.id);
                result.name = Some(topic.name.clone());
                result.topic_id = topic.id;
                records.push(MetadataRecord::from(RemoveTopicRecord {
                    topic_id: topic.id,
                    ..Default::default()
                }));
            }
            Err((error, message)) => {
                result.error_code = error.0;
                if version >= DELETE_MESSAGE_VERSION {
                    result.error_message = message.map(Str::from);
                }
            }
        }
        response.responses.push(result);
    }
    (records, response)
}

fn decide_deletion<'a>(
    image: &'a Image,
    config: &BrokerConfig,
    name: Option<&Str>,
    id: Uuid,
    doomed: &AHashSet<Uuid>,
) -> Result<&'a Topic, Refusal> {
    if !config.delete_topic_enable {
        return refuse(ErrorCode::TOPIC_DELETION_DISABLED, "Topic deletion is disabled.");
    }
    let topic = match (name, id.is_zero()) {
        (Some(_), false) => {
            return refuse(
                ErrorCode::INVALID_REQUEST,
                "You may not specify both topic name and topic id.",
            );
        }
        (None, true) => {
            return refuse(ErrorCode::INVALID_REQUEST, "Neither topic name nor id were specified.");
        }
        (Some(name), true) => image.topic_by_name(name).ok_or((
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.message().to_owned()),
        ))?,
        (None, false) => image.topic_by_id(id).ok_or((
            ErrorCode::UNKNOWN_TOPIC_ID,
            Some(ErrorCode::UNKNOWN_TOPIC_ID.message().to_owned()),
        ))?,
    };
    if doomed.contains(&topic.id) {
        return refuse(ErrorCode::INVALID_REQUEST, "Duplicate topic in the request.");
    }
    Ok(topic)
}

pub fn create_partitions(
    image: &Image,
    request: &CreatePartitionsRequest,
    mut dice: Dice<'_>,
) -> (Vec<MetadataRecord>, CreatePartitionsResponse) {
    let mut records = Vec::new();
    let mut response = CreatePartitionsResponse::default();
    for (at, topic) in request.topics.iter().enumerate() {
        let again = request.topics[..at].iter().any(|other| other.name == topic.name);
        let decided = if again {
            refuse(ErrorCode::INVALID_REQUEST, "Duplicate topic name.")
        } else {
            decide_growth(image, topic, &mut dice)
        };
        let mut result =
            CreatePartitionsTopicResult { name: topic.name.clone(), ..Default::default() };
        match decided {
            Ok(new) if !request.validate_only => records.extend(new),
            Ok(_) => {}
            Err((error, message)) => {
                result.error_code = error.0;
                result.error_message = message.map(Str::from);
            }
        }
        response.results.push(result);
    }
    (records, response)
}

fn decide_growth(
    image: &Image,
    topic: &CreatePartitionsTopic,
    dice: &mut Dice<'_>,
) -> Result<Vec<MetadataRecord>, Refusal> {
    let Some(known) = image.topic_by_name(&topic.name) else {
        return Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, None));
    };
    let have = known.partition_count();
    if topic.count == have {
        return refuse(ErrorCode::INVALID_PARTITIONS, format!("Topic already has {have} partition(s)."));
    }
    if topic.count < have {
        return refuse(
            ErrorCode::INVALID_PARTITIONS,
            format!("The topic {} currently has {have} partition(s); {} would not be an increase.", topic.name, topic.count),
        );
    }
    let more = topic.count - have;
    check_total(more as usize)?;
    let factor = known.partition(0).map_or(1, |partition| partition.replicas.len());
    let placed = match &topic.assignments {
        Some(assignments) => {
            if assignments.len() != more as usize {
                return refuse(
                    ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                    format!("Attempted to add {more} additional partition(s), but only {} assignment(s) were specified.", assignments.len()),
                );
            }
            let placed: Vec<_> = assignments
                .iter()
                .map(|assignment| check_replicas(image, &assignment.broker_ids))
                .collect::<Result<_, _>>()?;
            if placed.iter().any(|replicas| replicas.len() != factor) {
                return refuse(
                    ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                    "The manual partition assignment does not have the topic's replication factor.",
                );
            }
            placed
        }
        None => placement::place(image, have, more, factor, dice.roll())
            .map_err(|error| (ErrorCode::INVALID_REPLICATION_FACTOR, Some(error.to_string())))?,
    };
    Ok(placed
        .iter()
        .enumerate()
        .map(|(at, replicas)| partition_record(known.id, have + at as i32, replicas))
        .collect())
}
