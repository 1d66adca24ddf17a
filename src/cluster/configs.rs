//! What the controller decides about settings: IncrementalAlterConfigs and AlterConfigs, for
//! topics, brokers and groups. Pure: the image and the request in; records and answers out.

use super::image::{ConfigMap, Image, ResourceType};
use super::record::MetadataRecord;
use crate::config::definition::{check, items};
use crate::config::layers::{Layers, is_dynamic};
use crate::config::{BrokerConfig, Kind, broker_definition, topic_definition};
use crate::wire::messages::alter_configs_request::AlterConfigsRequest;
use crate::wire::messages::alter_configs_response::{AlterConfigsResourceResponse, AlterConfigsResponse};
use crate::wire::messages::config_record::ConfigRecord;
use crate::wire::messages::incremental_alter_configs_request::IncrementalAlterConfigsRequest;
use crate::wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse as IncrementalResourceResponse, IncrementalAlterConfigsResponse,
};
use crate::wire::{ErrorCode, Str};
use std::collections::BTreeMap;

/// What one entry does (IncrementalAlterConfigs' config_operation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigOp {
    Set,
    Delete,
    Append,
    Subtract,
}

/// One entry of a change.
#[derive(Clone, Debug)]
pub struct ConfigChange {
    pub name: String,
    pub op: ConfigOp,
    pub value: Option<String>,
}

impl ConfigChange {
    pub fn set(name: &str, value: Option<&str>) -> ConfigChange {
        ConfigChange { name: name.to_owned(), op: ConfigOp::Set, value: value.map(str::to_owned) }
    }
}

/// The layers below topics, as the image has them for one broker.
pub fn layers<'a>(image: &'a Image, config: &'a BrokerConfig) -> Layers<'a> {
    Layers {
        config,
        broker: image.config(ResourceType::BROKER, &config.node_id.0.to_string()),
        cluster: image.config(ResourceType::BROKER, ""),
    }
}

/// The settings of a resource after `changes` (with `replace`: nothing of before stays), or why
/// they cannot be.
pub fn alter_resource(
    image: &Image,
    config: &BrokerConfig,
    kind: ResourceType,
    name: &str,
    changes: &[ConfigChange],
    replace: bool,
) -> Result<ConfigMap, (ErrorCode, String)> {
    let before = image.config(kind, name).cloned().unwrap_or_default();
    let mut after = if replace { ConfigMap::new() } else { before };
    for (at, change) in changes.iter().enumerate() {
        if changes[..at].iter().any(|other| other.name == change.name) {
            return Err((ErrorCode::INVALID_REQUEST, format!("Error due to duplicate config keys: {}", change.name)));
        }
        let expected = allowed(kind, &change.name)
            .ok_or_else(|| (ErrorCode::INVALID_CONFIG, format!("Unknown {} config name: {}", kind_name(kind), change.name)))?;
        if kind == ResourceType::BROKER && !is_dynamic(&change.name) {
            return Err((ErrorCode::INVALID_REQUEST, format!("Cannot update these configs dynamically: {}", change.name)));
        }
        let inherited = || match kind {
            ResourceType::TOPIC => layers(image, config).topic_value(&change.name, &ConfigMap::new()),
            _ => config.value(&change.name).unwrap_or_default().to_owned(),
        };
        apply(&mut after, change, expected, inherited)?;
    }
    for (name, value) in &after {
        if let Some(expected) = allowed(kind, name) {
            check(name, expected, value).map_err(|bad| (ErrorCode::INVALID_CONFIG, bad.to_string()))?;
        }
    }
    if kind == ResourceType::TOPIC {
        check_topic_together(image, config, &after)?;
    }
    Ok(after)
}

fn kind_name(kind: ResourceType) -> &'static str {
    match kind {
        ResourceType::TOPIC => "topic",
        ResourceType::BROKER => "broker",
        ResourceType::GROUP => "group",
        _ => "resource",
    }
}

fn allowed(kind: ResourceType, name: &str) -> Option<Kind> {
    match kind {
        ResourceType::TOPIC => topic_definition(name).map(|definition| definition.kind),
        ResourceType::BROKER => broker_definition(name).map(|definition| definition.kind),
        _ => None,
    }
}

fn apply(
    after: &mut ConfigMap,
    change: &ConfigChange,
    expected: Kind,
    inherited: impl FnOnce() -> String,
) -> Result<(), (ErrorCode, String)> {
    let name = &change.name;
    let is_list = expected.is_list();
    match (change.op, &change.value) {
        (ConfigOp::Delete, _) => {
            after.remove(name);
        }
        (ConfigOp::Set, Some(value)) => {
            after.insert(name.clone(), value.trim().to_owned());
        }
        (_, None) => {
            return Err((ErrorCode::INVALID_CONFIG, format!("Null value not supported for : {name}")));
        }
        (ConfigOp::Append | ConfigOp::Subtract, Some(_)) if !is_list => {
            return Err((
                ErrorCode::INVALID_CONFIG,
                format!("Can't {:?} to key {name} because its type is not LIST.", change.op).to_lowercase().replacen("can't", "Can't", 1),
            ));
        }
        (op, Some(value)) => {
            let current = after.get(name).cloned().unwrap_or_else(inherited);
            let mut list: Vec<&str> = items(&current).collect();
            if op == ConfigOp::Append {
                let new: Vec<&str> = items(value).filter(|item| !list.contains(item)).collect();
                list.extend(new);
            } else {
                list.retain(|item| !items(value).any(|gone| gone == *item));
            }
            after.insert(name.clone(), list.join(","));
        }
    }
    Ok(())
}

/// What no single value shows.
fn check_topic_together(
    image: &Image,
    config: &BrokerConfig,
    topic: &ConfigMap,
) -> Result<(), (ErrorCode, String)> {
    let layers = layers(image, config);
    let long = |name: &str| layers.topic_value(name, topic).parse::<i64>().unwrap_or(0);
    let invalid = |why: String| Err((ErrorCode::INVALID_CONFIG, why));
    if long("min.compaction.lag.ms") > long("max.compaction.lag.ms") {
        return invalid(format!(
            "conflict topic config setting min.compaction.lag.ms ({}) > max.compaction.lag.ms ({})",
            long("min.compaction.lag.ms"),
            long("max.compaction.lag.ms")
        ));
    }
    if layers.topic_value("remote.storage.enable", topic).eq_ignore_ascii_case("true") {
        return invalid("Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.".into());
    }
    Ok(())
}

/// The records that bring a resource's settings from `before` to `after`.
pub fn difference(kind: ResourceType, name: &str, before: &ConfigMap, after: &ConfigMap) -> Vec<MetadataRecord> {
    let removed = before.keys().filter(|key| !after.contains_key(*key)).map(|key| (key, None));
    let changed = after
        .iter()
        .filter(|(key, value)| before.get(*key) != Some(*value))
        .map(|(key, value)| (key, Some(Str::from(value))));
    changed
        .chain(removed)
        .map(|(key, value)| {
            MetadataRecord::from(ConfigRecord {
                resource_type: kind.0,
                resource_name: Str::from(name),
                name: Str::from(key),
                value,
                ..Default::default()
            })
        })
        .collect()
}

/// The records of a new resource's settings.
pub fn set_records(kind: ResourceType, name: &str, settings: &BTreeMap<String, String>) -> Vec<MetadataRecord> {
    difference(kind, name, &ConfigMap::new(), settings)
}

/// One resource of a request: decides, and adds its records.
fn alter_one(
    image: &Image,
    config: &BrokerConfig,
    kind: ResourceType,
    name: &str,
    changes: &[ConfigChange],
    replace: bool,
    records: &mut Vec<MetadataRecord>,
) -> (ErrorCode, Option<Str>) {
    let known = match kind {
        ResourceType::TOPIC => image.topic_by_name(name).is_some(),
        ResourceType::BROKER => name.is_empty() || name.parse::<i32>().is_ok(),
        _ => {
            let why = format!("Unsupported resource type {}.", kind.0);
            return (ErrorCode::INVALID_REQUEST, Some(Str::from(why)));
        }
    };
    if !known {
        let error = if kind == ResourceType::TOPIC {
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        } else {
            ErrorCode::INVALID_REQUEST
        };
        return (error, Some(Str::from(format!("The {} '{name}' does not exist.", kind_name(kind)))));
    }
    match alter_resource(image, config, kind, name, changes, replace) {
        Ok(after) => {
            let before = image.config(kind, name).cloned().unwrap_or_default();
            records.extend(difference(kind, name, &before, &after));
            (ErrorCode::NONE, None)
        }
        Err((error, why)) => (error, Some(Str::from(why))),
    }
}

pub fn incremental_alter(
    image: &Image,
    config: &BrokerConfig,
    request: &IncrementalAlterConfigsRequest,
) -> (Vec<MetadataRecord>, IncrementalAlterConfigsResponse) {
    let mut records = Vec::new();
    let mut response = IncrementalAlterConfigsResponse::default();
    for resource in &request.resources {
        let mut changes = Vec::with_capacity(resource.configs.len());
        let mut unknown = None;
        for entry in &resource.configs {
            let op = match entry.config_operation {
                0 => ConfigOp::Set,
                1 => ConfigOp::Delete,
                2 => ConfigOp::Append,
                3 => ConfigOp::Subtract,
                other => {
                    unknown = Some(other);
                    continue;
                }
            };
            let value = entry.value.as_ref().map(Str::to_string);
            changes.push(ConfigChange { name: entry.name.to_string(), op, value });
        }
        let (error, message) = match unknown {
            Some(op) => (ErrorCode::INVALID_REQUEST, Some(Str::from(format!("Unknown operation type {op}.")))),
            None => alter_one(
                image,
                config,
                ResourceType(resource.resource_type),
                &resource.resource_name,
                &changes,
                false,
                &mut records,
            ),
        };
        response.responses.push(IncrementalResourceResponse {
            error_code: error.0,
            error_message: message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            ..Default::default()
        });
    }
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
    for resource in &request.resources {
        let changes: Vec<ConfigChange> = resource
            .configs
            .iter()
            .map(|entry| ConfigChange::set(&entry.name, entry.value.as_deref()))
            .collect();
        let (error, message) = alter_one(
            image,
            config,
            ResourceType(resource.resource_type),
            &resource.resource_name,
            &changes,
            true,
            &mut records,
        );
        response.responses.push(AlterConfigsResourceResponse {
            error_code: error.0,
            error_message: message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            ..Default::default()
        });
    }
    if request.validate_only {
        records.clear();
    }
    (records, response)
}
