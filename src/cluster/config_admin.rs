//! What the controller decides about whole requests for settings: IncrementalAlterConfigs (key 44),
//! AlterConfigs (33), DescribeConfigs (32), ListConfigResources (74). Pure: the image and the
//! request in; records and answers out. What one resource may have is in `configs`.

use super::configs::{ConfigChange, ConfigOp, Refusal, alter_resource, difference, layers};
use super::features::ELIGIBLE_LEADER_REPLICAS;
use super::image::{Image, ResourceType};
use super::record::MetadataRecord;
use super::topics::check_topic_name;
use crate::config::layers::describe_client_metrics;
use crate::config::{BrokerConfig, Described};
use crate::types::NodeId;
use crate::wire::messages::alter_configs_request::AlterConfigsRequest;
use crate::wire::messages::alter_configs_response::{
    AlterConfigsResourceResponse, AlterConfigsResponse,
};
use crate::wire::messages::clear_elr_record::ClearElrRecord;
use crate::wire::messages::incremental_alter_configs_request::IncrementalAlterConfigsRequest;
use crate::wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse as IncrementalResourceResponse, IncrementalAlterConfigsResponse,
};
use crate::wire::messages::list_config_resources_request::ListConfigResourcesRequest;
use crate::wire::messages::list_config_resources_response::{
    ConfigResource, ListConfigResourcesResponse,
};
use crate::wire::{ErrorCode, Str};

/// DescribeConfigs' source of a logger's level.
const LOGGER_SOURCE: i8 = 6;

fn refuse<T>(error: ErrorCode, why: impl Into<String>) -> Result<T, Refusal> {
    Err((error, why.into()))
}

/// Whether `name` is a resource whose settings may be changed here.
fn check_resource(
    image: &Image,
    config: &BrokerConfig,
    kind: ResourceType,
    name: &str,
) -> Result<(), Refusal> {
    match kind {
        ResourceType::TOPIC if name.is_empty() => refuse(
            ErrorCode::INVALID_REQUEST,
            "Default topic resources are not allowed.",
        ),
        ResourceType::TOPIC if image.topic_by_name(name).is_none() => refuse(
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            format!("The topic '{name}' does not exist."),
        ),
        ResourceType::BROKER if !name.is_empty() => match name.parse::<i32>() {
            Ok(id) if id == config.node_id.0 || image.is_node(NodeId(id)) => Ok(()),
            Ok(id) => refuse(
                ErrorCode::BROKER_ID_NOT_REGISTERED,
                format!("No node with id {id} found."),
            ),
            Err(_) => refuse(
                ErrorCode::INVALID_REQUEST,
                format!("Invalid broker name {name}"),
            ),
        },
        ResourceType::GROUP if name.is_empty() => refuse(
            ErrorCode::INVALID_REQUEST,
            "Default group resources are not allowed.",
        ),
        ResourceType::CLIENT_METRICS if name.is_empty() => refuse(
            ErrorCode::INVALID_REQUEST,
            "Subscription name can't be empty",
        ),
        ResourceType::TOPIC
        | ResourceType::BROKER
        | ResourceType::GROUP
        | ResourceType::CLIENT_METRICS => Ok(()),
        ResourceType::BROKER_LOGGER => refuse(
            ErrorCode::INVALID_CONFIG,
            "Levels of loggers are set by highwater.log.level only.",
        ),
        other => refuse(
            ErrorCode::INVALID_REQUEST,
            format!("Unknown resource type {}", other.0),
        ),
    }
}

/// What a broker refuses before it asks the controller: settings of single brokers are changed by
/// a request to that broker.
pub fn check_addressee(
    config: &BrokerConfig,
    kind: ResourceType,
    name: &str,
) -> Result<(), Refusal> {
    if kind != ResourceType::BROKER || name.is_empty() {
        return Ok(());
    }
    let own = config.node_id.0;
    match name.parse::<i32>() {
        Ok(id) if id == own => Ok(()),
        Ok(id) => refuse(
            ErrorCode::INVALID_REQUEST,
            format!("Unexpected broker id, expected {own}, but received {id}"),
        ),
        Err(_) => refuse(
            ErrorCode::INVALID_REQUEST,
            format!("Node id must be an integer, but it is: {name}"),
        ),
    }
}

/// What no change may have, whatever it is about.
fn check_changes(changes: &[ConfigChange]) -> Result<(), Refusal> {
    let nulls: Vec<&str> = changes
        .iter()
        .filter(|change| change.op != ConfigOp::Delete && change.value.is_none())
        .map(|change| change.name.as_str())
        .collect();
    if !nulls.is_empty() {
        return refuse(
            ErrorCode::INVALID_REQUEST,
            format!("Null value not supported for : {}", nulls.join(",")),
        );
    }
    let mut names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return refuse(
            ErrorCode::INVALID_REQUEST,
            "Error due to duplicate config keys",
        );
    }
    Ok(())
}

/// One resource of a request: its records.
fn alter_one(
    image: &Image,
    config: &BrokerConfig,
    (kind, name): (ResourceType, &str),
    changes: &[ConfigChange],
    replace: bool,
) -> Result<Vec<MetadataRecord>, Refusal> {
    check_changes(changes)?;
    check_resource(image, config, kind, name)?;
    let after = alter_resource(image, config, kind, name, changes, replace)?;
    let before = image.config(kind, name).cloned().unwrap_or_default();
    Ok(difference(kind, name, &before, &after))
}

/// Resources that a request names more than once, all of which are refused.
fn repeated<'a>(resources: impl Iterator<Item = (i8, &'a str)>) -> Vec<(i8, &'a str)> {
    let mut all: Vec<(i8, &str)> = resources.collect();
    all.sort_unstable();
    let mut twice: Vec<_> = all
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
        .collect();
    twice.dedup();
    twice
}

fn only_once<'a>(twice: &[(i8, &'a str)], resource: (i8, &'a str)) -> Result<(), Refusal> {
    match twice.contains(&resource) {
        true => refuse(
            ErrorCode::INVALID_REQUEST,
            "Each resource must appear at most once.",
        ),
        false => Ok(()),
    }
}

/// An outcome as responses have it; collects the records.
fn settle(
    decided: Result<Vec<MetadataRecord>, Refusal>,
    records: &mut Vec<MetadataRecord>,
) -> (i16, Option<Str>) {
    match decided {
        Ok(new) => {
            records.extend(new);
            (ErrorCode::NONE.0, None)
        }
        Err((error, why)) => (error.0, Some(Str::from(why))),
    }
}

pub fn incremental_alter(
    image: &Image,
    config: &BrokerConfig,
    request: &IncrementalAlterConfigsRequest,
) -> (Vec<MetadataRecord>, IncrementalAlterConfigsResponse) {
    let mut records = Vec::new();
    let mut response = IncrementalAlterConfigsResponse::default();
    let twice = repeated(
        request
            .resources
            .iter()
            .map(|one| (one.resource_type, &*one.resource_name)),
    );
    for resource in &request.resources {
        let name = &*resource.resource_name;
        let changes = resource.configs.iter().map(|entry| {
            let op = match entry.config_operation {
                0 => ConfigOp::Set,
                1 => ConfigOp::Delete,
                2 => ConfigOp::Append,
                3 => ConfigOp::Subtract,
                other => {
                    return refuse(
                        ErrorCode::INVALID_REQUEST,
                        format!("Unknown operation type {other}."),
                    );
                }
            };
            let value = entry.value.as_ref().map(Str::to_string);
            Ok(ConfigChange {
                name: entry.name.to_string(),
                op,
                value,
            })
        });
        let decided = only_once(&twice, (resource.resource_type, name)).and_then(|()| {
            let changes: Vec<ConfigChange> = changes.collect::<Result<_, _>>()?;
            alter_one(
                image,
                config,
                (ResourceType(resource.resource_type), name),
                &changes,
                false,
            )
        });
        let (error_code, error_message) = settle(decided, &mut records);
        response.responses.push(IncrementalResourceResponse {
            error_code,
            error_message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            ..Default::default()
        });
    }
    clear_eligible(image, &mut records);
    if request.validate_only {
        records.clear();
    }
    (records, response)
}

pub fn alter(
    image: &Image,
    config: &BrokerConfig,
    request: &AlterConfigsRequest,
) -> (Vec<MetadataRecord>, AlterConfigsResponse) {
    let mut records = Vec::new();
    let mut response = AlterConfigsResponse::default();
    let twice = repeated(
        request
            .resources
            .iter()
            .map(|one| (one.resource_type, &*one.resource_name)),
    );
    for resource in &request.resources {
        let name = &*resource.resource_name;
        let changes: Vec<ConfigChange> = resource
            .configs
            .iter()
            .map(|entry| ConfigChange::set(&entry.name, entry.value.as_deref()))
            .collect();
        let decided = only_once(&twice, (resource.resource_type, name)).and_then(|()| {
            alter_one(
                image,
                config,
                (ResourceType(resource.resource_type), name),
                &changes,
                true,
            )
        });
        let (error_code, error_message) = settle(decided, &mut records);
        response.responses.push(AlterConfigsResourceResponse {
            error_code,
            error_message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            ..Default::default()
        });
    }
    clear_eligible(image, &mut records);
    if request.validate_only {
        records.clear();
    }
    (records, response)
}

/// With another `min.insync.replicas` other replicas would have been eligible: who was, is
/// forgotten.
fn clear_eligible(image: &Image, records: &mut Vec<MetadataRecord>) {
    if image.feature(ELIGIBLE_LEADER_REPLICAS) == 0 {
        return;
    }
    let mut cleared = Vec::new();
    for record in &*records {
        if let MetadataRecord::Config(config) = record
            && *config.name == *"min.insync.replicas"
        {
            let topic_name = match ResourceType(config.resource_type) {
                ResourceType::TOPIC => config.resource_name.clone(),
                _ => Str::default(),
            };
            cleared.push(MetadataRecord::from(ClearElrRecord {
                topic_name,
                ..Default::default()
            }));
        }
    }
    records.extend(cleared);
}

/// All settings of a resource as DescribeConfigs tells them.
pub fn describe(
    image: &Image,
    config: &BrokerConfig,
    kind: ResourceType,
    name: &str,
) -> Result<Vec<Described>, Refusal> {
    let own = || image.config(kind, name).cloned().unwrap_or_default();
    let layers = layers(image, config);
    match kind {
        ResourceType::TOPIC => {
            check_topic_name(name).map_err(|why| (ErrorCode::INVALID_TOPIC_EXCEPTION, why))?;
            match image.topic_by_name(name) {
                Some(_) => Ok(layers.describe_topic(&own())),
                None => refuse(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ""),
            }
        }
        // Without a name: what is set for all brokers.
        ResourceType::BROKER if name.is_empty() => Ok(layers.describe_cluster()),
        ResourceType::BROKER => {
            let expected = format!("{} or empty string,", config.node_id.0);
            check_own(config, name, &expected).map(|()| layers.describe_broker())
        }
        ResourceType::BROKER_LOGGER if name.is_empty() => {
            refuse(ErrorCode::INVALID_REQUEST, "Broker id must not be empty")
        }
        ResourceType::BROKER_LOGGER => check_own(config, name, &config.node_id.0.to_string())
            .map(|()| vec![root_logger(config)]),
        ResourceType::GROUP if name.is_empty() => {
            refuse(ErrorCode::INVALID_REQUEST, "Group name must not be empty")
        }
        ResourceType::GROUP => Ok(layers.describe_group(&own())),
        ResourceType::CLIENT_METRICS if name.is_empty() => refuse(
            ErrorCode::INVALID_REQUEST,
            "Client metrics subscription name must not be empty",
        ),
        ResourceType::CLIENT_METRICS => Ok(describe_client_metrics(&own())),
        other => refuse(
            ErrorCode::INVALID_REQUEST,
            format!("Unsupported resource type: {}", other.0),
        ),
    }
}

fn check_own(config: &BrokerConfig, name: &str, expected: &str) -> Result<(), Refusal> {
    match name.parse::<i32>() {
        Ok(id) if id == config.node_id.0 => Ok(()),
        Ok(id) => refuse(
            ErrorCode::INVALID_REQUEST,
            format!("Unexpected broker id, expected {expected} but received {id}"),
        ),
        Err(_) => refuse(
            ErrorCode::INVALID_REQUEST,
            format!("Broker id must be an integer, but it is: {name}"),
        ),
    }
}

/// The one level of logs, as Kafka tells the level of its root logger.
fn root_logger(config: &BrokerConfig) -> Described {
    Described {
        name: "root",
        value: Some(config.log_level.to_ascii_uppercase()),
        read_only: true,
        sensitive: false,
        source: LOGGER_SOURCE,
        kind: 0,
        doc: "The level of all logs; see highwater.log.level.",
        synonyms: Vec::new(),
    }
}

/// Every resource that has settings, and every topic, broker and logger; `types` empty: all types.
pub fn list_resources(
    image: &Image,
    config: &BrokerConfig,
    request: &ListConfigResourcesRequest,
    version: i16,
) -> ListConfigResourcesResponse {
    let mut response = ListConfigResourcesResponse::default();
    let all = [
        ResourceType::GROUP,
        ResourceType::CLIENT_METRICS,
        ResourceType::BROKER_LOGGER,
        ResourceType::BROKER,
        ResourceType::TOPIC,
    ];
    // Version 0 asks for client-metrics subscriptions and nothing else.
    let asked: Vec<ResourceType> = match (version, request.resource_types.as_slice()) {
        (0, _) => vec![ResourceType::CLIENT_METRICS],
        (_, []) => all.to_vec(),
        (_, types) => types.iter().map(|kind| ResourceType(*kind)).collect(),
    };
    if asked.iter().any(|kind| !all.contains(kind)) {
        response.error_code = ErrorCode::UNSUPPORTED_VERSION.0;
        return response;
    }
    for kind in all.into_iter().filter(|kind| asked.contains(kind)) {
        let names: Vec<Str> = match kind {
            ResourceType::TOPIC => image.topics().map(|topic| topic.name.clone()).collect(),
            ResourceType::BROKER => image
                .brokers()
                .map(|broker| Str::from(broker.id.0.to_string()))
                .collect(),
            ResourceType::BROKER_LOGGER => vec![Str::from(config.node_id.0.to_string())],
            _ => {
                let named = image.configs().filter(|((of, _), _)| *of == kind);
                named.map(|((_, name), _)| Str::from(name)).collect()
            }
        };
        response
            .config_resources
            .extend(names.into_iter().map(|resource_name| ConfigResource {
                resource_name,
                resource_type: kind.0,
                ..Default::default()
            }));
    }
    response
}
