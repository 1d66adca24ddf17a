//! What the controller decides about topics: create, delete, grow. Pure: the image, the request
//! and random numbers in; records and answers out. Never writes.

use super::assignment::{check_replicas, partition_record};
use super::configs::{ConfigChange, alter_resource};
pub use super::dice::Dice;
use super::directories::Placement;
use super::image::{Image, ResourceType};
use super::placement;
use super::record::MetadataRecord;
use super::topics::{METADATA_TOPIC, Topic, check_topic_name, names_collide};
use crate::config::BrokerConfig;
use crate::types::{NodeId, Uuid};
use crate::wire::messages::create_partitions_request::{
    CreatePartitionsRequest, CreatePartitionsTopic,
};
use crate::wire::messages::create_partitions_response::{
    CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use crate::wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use crate::wire::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse,
};
use crate::wire::messages::delete_topics_request::DeleteTopicsRequest;
use crate::wire::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use crate::wire::messages::remove_topic_record::RemoveTopicRecord;
use crate::wire::messages::topic_record::TopicRecord;
use crate::wire::{ErrorCode, Str};
use ahash::AHashSet;
use std::collections::BTreeMap;

/// Partitions that one request may make, as Kafka limits them.
const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;
/// First versions: several answers to DeleteTopics can say why (5), topics by id (6).
const DELETE_MESSAGE_VERSION: i16 = 5;
const DELETE_BY_ID_VERSION: i16 = 6;

/// An error with what to tell the client.
pub(super) type Refusal = (ErrorCode, Option<String>);

pub(super) fn refuse<T>(error: ErrorCode, message: impl Into<String>) -> Result<T, Refusal> {
    Err((error, Some(message.into())))
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
    let twice = repeated(request.topics.iter().map(|topic| &topic.name));
    let mut records = Vec::new();
    let mut response = CreateTopicsResponse::default();
    let mut new_names: Vec<Str> = Vec::new();
    let mut placement = Placement::new(image);
    let too_many = wanted_partitions(config, request) > PARTITIONS_PER_REQUEST_MAX;
    for topic in &request.topics {
        if response.topics.iter().any(|told| told.name == topic.name) {
            continue;
        }
        let decided = if too_many {
            refuse(
                ErrorCode::POLICY_VIOLATION,
                "Excessively large number of partitions per request.",
            )
        } else if twice.contains(&topic.name) {
            refuse(ErrorCode::INVALID_REQUEST, "Duplicate topic name.")
        } else {
            decide_topic(image, config, topic, &new_names, &mut dice)
        };
        let mut result = CreatableTopicResult {
            name: topic.name.clone(),
            configs: Some(Vec::new()),
            ..Default::default()
        };
        match decided {
            Ok(new) => {
                new_names.push(topic.name.clone());
                result.topic_id = new.id;
                result.num_partitions = new.partitions.len() as i32;
                result.replication_factor = new.factor;
                result.configs = Some(told_configs(config, image, &new.configs));
                records.extend(topic_records(image, &topic.name, &new, &mut placement));
            }
            Err((error, message)) => {
                result.error_code = error.0;
                result.error_message = message.map(Str::from);
                result.num_partitions = -1;
                result.replication_factor = -1;
            }
        }
        response.topics.push(result);
    }
    if request.validate_only {
        records.clear();
    }
    (records, response)
}

/// What a request names more than once: it is refused as a whole.
fn repeated<T: Eq + std::hash::Hash + Clone>(all: impl Iterator<Item = T>) -> AHashSet<T> {
    let mut seen = AHashSet::new();
    all.filter(|one| !seen.insert(one.clone())).collect()
}

/// Partitions that a request would make, whether it can be granted or not.
fn wanted_partitions(config: &BrokerConfig, request: &CreateTopicsRequest) -> usize {
    let of = |topic: &CreatableTopic| match (topic.assignments.len(), topic.num_partitions) {
        (0, -1) => config.num_partitions.max(0) as usize,
        (0, count) => count.max(0) as usize,
        (assigned, _) => assigned,
    };
    request.topics.iter().map(of).fold(0, usize::saturating_add)
}

fn decide_topic(
    image: &Image,
    config: &BrokerConfig,
    topic: &CreatableTopic,
    new_names: &[Str],
    dice: &mut Dice<'_>,
) -> Result<NewTopic, Refusal> {
    if *topic.name == *METADATA_TOPIC {
        return refuse(
            ErrorCode::INVALID_REQUEST,
            format!("Creation of internal topic {METADATA_TOPIC} is prohibited."),
        );
    }
    check_topic_name(&topic.name).or_else(|why| refuse(ErrorCode::INVALID_TOPIC_EXCEPTION, why))?;
    if image.topic_by_name(&topic.name).is_some() {
        return refuse(
            ErrorCode::TOPIC_ALREADY_EXISTS,
            format!("Topic '{}' already exists.", topic.name),
        );
    }
    let taken = image.topics().map(|known| &known.name).chain(new_names);
    if let Some(other) = taken
        .into_iter()
        .find(|other| names_collide(other, &topic.name))
    {
        return refuse(
            ErrorCode::INVALID_TOPIC_EXCEPTION,
            format!(
                "Topic '{}' collides with existing topic: {other}",
                topic.name
            ),
        );
    }
    let nulls: Vec<&str> = topic
        .configs
        .iter()
        .filter(|entry| entry.value.is_none())
        .map(|entry| &*entry.name)
        .collect();
    if !nulls.is_empty() {
        let why = format!(
            "Null value not supported for topic configs: {}",
            nulls.join(",")
        );
        return refuse(ErrorCode::INVALID_CONFIG, why);
    }
    let changes: Vec<ConfigChange> = topic
        .configs
        .iter()
        .map(|entry| ConfigChange::set(&entry.name, entry.value.as_deref()))
        .collect();
    let configs = alter_resource(
        image,
        config,
        ResourceType::TOPIC,
        &topic.name,
        &changes,
        false,
    )
    .map_err(|(error, message)| (error, Some(message)))?;
    let partitions = if topic.assignments.is_empty() {
        automatic(image, config, topic, dice)?
    } else {
        manual(image, topic)?
    };
    let factor = partitions.first().map_or(0, Vec::len) as i16;
    Ok(NewTopic {
        id: dice.uuid(),
        partitions,
        factor,
        configs,
    })
}

fn automatic(
    image: &Image,
    config: &BrokerConfig,
    topic: &CreatableTopic,
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
    let count = if topic.num_partitions == -1 {
        config.num_partitions
    } else {
        topic.num_partitions
    };
    let factor = match topic.replication_factor {
        -1 => config.default_replication_factor,
        factor => factor,
    };
    let factor = usize::try_from(factor).unwrap_or(0);
    placement::place(image, count, factor, dice.roll()).map_err(|error| {
        let why = format!("Unable to replicate the partition {factor} time(s): {error}");
        (ErrorCode::INVALID_REPLICATION_FACTOR, Some(why))
    })
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
        let factor = partitions.values().next().map(Vec::len);
        let replicas = check_replicas(
            image,
            assignment.partition_index,
            &assignment.broker_ids,
            factor,
        )?;
        if partitions
            .insert(assignment.partition_index, replicas)
            .is_some()
        {
            return refuse(
                ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                format!(
                    "Found multiple manual partition assignments for partition {}",
                    assignment.partition_index
                ),
            );
        }
    }
    let consecutive = partitions
        .keys()
        .enumerate()
        .all(|(at, index)| at as i32 == *index);
    if !consecutive {
        return refuse(
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        );
    }
    Ok(partitions.into_values().collect())
}

/// The settings a new topic has, as CreateTopics v5 tells them (KIP-525).
fn told_configs(
    config: &BrokerConfig,
    image: &Image,
    overrides: &BTreeMap<String, String>,
) -> Vec<CreatableTopicConfigs> {
    super::configs::layers(image, config)
        .describe_new_topic(overrides)
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

fn topic_records(
    image: &Image,
    name: &Str,
    new: &NewTopic,
    placement: &mut Placement<'_>,
) -> Vec<MetadataRecord> {
    let mut records = vec![MetadataRecord::from(TopicRecord {
        name: name.detached(),
        topic_id: new.id,
        ..Default::default()
    })];
    records.extend(super::configs::set_records(
        ResourceType::TOPIC,
        name,
        &new.configs,
    ));
    for (index, replicas) in new.partitions.iter().enumerate() {
        let index = index as i32;
        records.push(partition_record(image, new.id, index, replicas, placement));
    }
    records
}

pub fn delete_topics(
    image: &Image,
    config: &BrokerConfig,
    request: &DeleteTopicsRequest,
    version: i16,
) -> (Vec<MetadataRecord>, DeleteTopicsResponse) {
    let mut records = Vec::new();
    let mut response = DeleteTopicsResponse::default();
    let asked: Vec<(Option<Str>, Uuid)> = if version >= DELETE_BY_ID_VERSION {
        request
            .topics
            .iter()
            .map(|topic| (topic.name.clone(), topic.topic_id))
            .collect()
    } else {
        request
            .topic_names
            .iter()
            .map(|name| (Some(name.clone()), Uuid::ZERO))
            .collect()
    };
    let names_twice = repeated(asked.iter().filter_map(|(name, _)| name.as_ref()));
    let ids_twice = repeated(asked.iter().map(|(_, id)| *id).filter(|id| !id.is_zero()));
    let mut done: AHashSet<(Option<Str>, Uuid)> = AHashSet::new();
    for (name, id) in &asked {
        if !done.insert((name.clone(), *id)) {
            continue;
        }
        let decided = match name {
            Some(name) if names_twice.contains(name) => {
                refuse(ErrorCode::INVALID_REQUEST, "Duplicate topic name.")
            }
            _ if ids_twice.contains(id) => {
                refuse(ErrorCode::INVALID_REQUEST, "Duplicate topic id.")
            }
            _ => decide_deletion(image, config, name.as_ref(), *id).and_then(|topic| {
                if name.is_some() && asked.iter().any(|(_, other)| *other == topic.id) {
                    let why = "The provided topic name maps to an ID that was already supplied.";
                    return refuse(ErrorCode::INVALID_REQUEST, why);
                }
                Ok(topic)
            }),
        };
        let mut result = DeletableTopicResult {
            name: name.clone(),
            topic_id: *id,
            ..Default::default()
        };
        match decided {
            Ok(topic) => {
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
) -> Result<&'a Topic, Refusal> {
    if !config.delete_topic_enable {
        return refuse(
            ErrorCode::TOPIC_DELETION_DISABLED,
            "Topic deletion is disabled.",
        );
    }
    let topic = match (name, id.is_zero()) {
        (Some(_), false) => {
            return refuse(
                ErrorCode::INVALID_REQUEST,
                "You may not specify both topic name and topic id.",
            );
        }
        (None, true) => {
            return refuse(
                ErrorCode::INVALID_REQUEST,
                "Neither topic name nor id were specified.",
            );
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
    Ok(topic)
}

pub fn create_partitions(
    image: &Image,
    request: &CreatePartitionsRequest,
    mut dice: Dice<'_>,
) -> (Vec<MetadataRecord>, CreatePartitionsResponse) {
    let mut records = Vec::new();
    let mut response = CreatePartitionsResponse::default();
    let twice = repeated(request.topics.iter().map(|topic| &topic.name));
    let mut placement = Placement::new(image);
    for topic in &request.topics {
        if response
            .results
            .iter()
            .any(|told: &CreatePartitionsTopicResult| told.name == topic.name)
        {
            continue;
        }
        let decided = if twice.contains(&topic.name) {
            refuse(ErrorCode::INVALID_REQUEST, "Duplicate topic name.")
        } else {
            decide_growth(image, topic, &mut dice, &mut placement)
        };
        let mut result = CreatePartitionsTopicResult {
            name: topic.name.clone(),
            ..Default::default()
        };
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
    placement: &mut Placement<'_>,
) -> Result<Vec<MetadataRecord>, Refusal> {
    let Some(known) = image.topic_by_name(&topic.name) else {
        return Err((ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, None));
    };
    let have = known.partition_count();
    if topic.count == have {
        return refuse(
            ErrorCode::INVALID_PARTITIONS,
            format!("Topic already has {have} partition(s)."),
        );
    }
    if topic.count < have {
        return refuse(
            ErrorCode::INVALID_PARTITIONS,
            format!(
                "The topic {} currently has {have} partition(s); {} would not be an increase.",
                topic.name, topic.count
            ),
        );
    }
    let more = topic.count - have;
    if more as usize > PARTITIONS_PER_REQUEST_MAX {
        let why = "Excessively large number of additional partitions per request.";
        return refuse(ErrorCode::POLICY_VIOLATION, why);
    }
    let factor = known
        .partition(0)
        .map_or(1, |partition| partition.replicas.len());
    let placed = match &topic.assignments {
        Some(assignments) => {
            if assignments.len() != more as usize {
                return refuse(
                    ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                    format!(
                        "Attempted to add {more} additional partition(s), but only {} assignment(s) were specified.",
                        assignments.len()
                    ),
                );
            }
            assignments
                .iter()
                .zip(have..)
                .map(|(assignment, index)| {
                    check_replicas(image, index, &assignment.broker_ids, Some(factor))
                })
                .collect::<Result<Vec<_>, _>>()?
        }
        None => placement::place(image, more, factor, dice.roll()).map_err(|error| {
            (
                ErrorCode::INVALID_REPLICATION_FACTOR,
                Some(error.to_string()),
            )
        })?,
    };
    Ok(placed
        .iter()
        .zip(have..)
        .map(|(replicas, index)| partition_record(image, known.id, index, replicas, placement))
        .collect())
}

#[cfg(test)]
#[path = "topic_admin_tests.rs"]
mod tests;
