//! What the controller decides about the settings of one resource: topic, broker, group or
//! client-metrics subscription. Pure: the image and the changes in; settings and records out. What
//! whole requests ask is in `config_admin`.

use super::features::ELIGIBLE_LEADER_REPLICAS;
use super::image::{ConfigMap, Image, ResourceType};
use super::record::MetadataRecord;
use crate::config::broker::{check_dedupe_buffer, check_time};
use crate::config::definition::{check, items};
use crate::config::layers::Layers;
use crate::config::{
    BrokerConfig, Kind, Update, broker_definition, client_metrics_definition, group_definition,
    topic_definition,
};
use crate::wire::messages::config_record::ConfigRecord;
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
        ConfigChange {
            name: name.to_owned(),
            op: ConfigOp::Set,
            value: value.map(str::to_owned),
        }
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

/// Why a change is refused, in Kafka's words.
pub type Refusal = (ErrorCode, String);

fn refuse<T>(error: ErrorCode, why: impl Into<String>) -> Result<T, Refusal> {
    Err((error, why.into()))
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
) -> Result<ConfigMap, Refusal> {
    let before = image.config(kind, name).cloned().unwrap_or_default();
    let mut after = if replace { ConfigMap::new() } else { before };
    for change in changes {
        apply(&mut after, change, known(kind, &change.name))?;
    }
    if kind == ResourceType::TOPIC {
        check_topic(image, config, &after)?;
    } else if kind == ResourceType::GROUP {
        check_group(image, config, &after)?;
    } else if kind == ResourceType::CLIENT_METRICS {
        check_client_metrics(&after)?;
    } else {
        check_broker(image, name, changes, replace)?;
        check_cleaner(image, config, &after)?;
    }
    Ok(after)
}

/// Type and default of a setting.
fn known(kind: ResourceType, name: &str) -> Option<(Kind, &'static str)> {
    match kind {
        ResourceType::TOPIC => topic_definition(name).map(|known| (known.kind, known.default)),
        ResourceType::BROKER => {
            broker_definition(name).map(|known| (known.kind, known.default.unwrap_or_default()))
        }
        ResourceType::GROUP => group_definition(name).map(|known| (known.kind, known.default)),
        ResourceType::CLIENT_METRICS => {
            client_metrics_definition(name).map(|known| (known.kind, known.default))
        }
        _ => None,
    }
}

fn apply(
    after: &mut ConfigMap,
    change: &ConfigChange,
    known: Option<(Kind, &'static str)>,
) -> Result<(), Refusal> {
    let name = &change.name;
    let value = change.value.as_deref().unwrap_or_default();
    match (change.op, known) {
        (ConfigOp::Delete, _) => {
            after.remove(name);
        }
        (ConfigOp::Set, _) => {
            after.insert(name.clone(), value.trim().to_owned());
        }
        (op, Some((kind, default))) if kind.is_list() => {
            let current = after.get(name).map_or(default, String::as_str);
            let mut list: Vec<&str> = items(current).collect();
            if op == ConfigOp::Append {
                let new: Vec<&str> = items(value).filter(|item| !list.contains(item)).collect();
                list.extend(new);
            } else {
                list.retain(|item| !items(value).any(|gone| gone == *item));
            }
            let list = list.join(",");
            after.insert(name.clone(), list);
        }
        (op, _) => {
            let op = if op == ConfigOp::Append {
                "APPEND"
            } else {
                "SUBTRACT"
            };
            return refuse(
                ErrorCode::INVALID_CONFIG,
                format!("Can't {op} to key {name} because its type is not LIST."),
            );
        }
    }
    Ok(())
}

fn check_values(
    kind: ResourceType,
    what: &str,
    error: ErrorCode,
    values: &ConfigMap,
) -> Result<(), Refusal> {
    for (name, value) in values {
        let Some((expected, _)) = known(kind, name) else {
            return refuse(error, format!("Unknown {what}: {name}"));
        };
        check(name, expected, value).map_err(|bad| (ErrorCode::INVALID_CONFIG, bad.to_string()))?;
    }
    Ok(())
}

fn check_topic(image: &Image, config: &BrokerConfig, topic: &ConfigMap) -> Result<(), Refusal> {
    check_values(
        ResourceType::TOPIC,
        "topic config name",
        ErrorCode::INVALID_CONFIG,
        topic,
    )?;
    let layers = layers(image, config);
    let long = |name: &str| {
        layers
            .topic_value(name, topic)
            .trim()
            .parse::<i64>()
            .unwrap_or(0)
    };
    let (least, most) = (long("min.compaction.lag.ms"), long("max.compaction.lag.ms"));
    if least > most {
        return refuse(
            ErrorCode::INVALID_CONFIG,
            format!(
                "conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
            ),
        );
    }
    if layers
        .topic_value("remote.storage.enable", topic)
        .eq_ignore_ascii_case("true")
    {
        return refuse(
            ErrorCode::INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
        );
    }
    Ok(())
}

fn check_group(image: &Image, config: &BrokerConfig, group: &ConfigMap) -> Result<(), Refusal> {
    check_values(
        ResourceType::GROUP,
        "group config name",
        ErrorCode::INVALID_CONFIG,
        group,
    )?;
    let layers = layers(image, config);
    let bound = |name: &str, none: i64| {
        layers
            .broker_value(name)
            .trim()
            .parse::<i64>()
            .unwrap_or(none)
    };
    for (name, value) in group {
        let Some(definition) = group_definition(name) else {
            continue;
        };
        let Ok(value) = value.trim().parse::<i64>() else {
            continue;
        };
        let (least, most) = (
            bound(definition.least, i64::MIN),
            bound(definition.most, i64::MAX),
        );
        if value < least || value > most {
            let why = match (definition.least, definition.most) {
                ("", _) => format!("{name} must be at most {most}."),
                (_, "") => format!("{name} must be at least {least}."),
                _ => format!("{name} must be in the range {least} to {most} inclusive."),
            };
            return refuse(ErrorCode::INVALID_CONFIG, why);
        }
    }
    Ok(())
}

/// KIP-714: pushes are at least 100 ms and at most an hour apart.
const PUSH_INTERVAL_MS: std::ops::RangeInclusive<i64> = 100..=3_600_000;
/// KIP-714: what a subscription may select clients by.
const SELECTORS: [&str; 6] = [
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

fn check_client_metrics(subscription: &ConfigMap) -> Result<(), Refusal> {
    let what = "client metrics configuration";
    check_values(
        ResourceType::CLIENT_METRICS,
        what,
        ErrorCode::INVALID_REQUEST,
        subscription,
    )?;
    if let Some(interval) = subscription.get("interval.ms")
        && !interval
            .parse()
            .is_ok_and(|interval| PUSH_INTERVAL_MS.contains(&interval))
    {
        let why = format!(
            "Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
        );
        return refuse(ErrorCode::INVALID_REQUEST, why);
    }
    for pattern in items(subscription.get("match").map_or("", String::as_str)) {
        let selects = pattern
            .split_once('=')
            .is_some_and(|(selector, _)| SELECTORS.contains(&selector.trim()));
        if !selects {
            return refuse(
                ErrorCode::INVALID_CONFIG,
                format!("Illegal client matching pattern: {pattern}"),
            );
        }
    }
    Ok(())
}

/// What the settings of the cleaner must be together, `after` this change.
fn check_cleaner(image: &Image, config: &BrokerConfig, after: &ConfigMap) -> Result<(), Refusal> {
    let layers = layers(image, config);
    let number = |name: &str| {
        let text = after.get(name).cloned();
        let text = text.unwrap_or_else(|| layers.broker_value(name));
        text.trim().parse::<i64>().unwrap_or(0)
    };
    let dedupe = "log.cleaner.dedupe.buffer.size";
    if !after.contains_key(dedupe) && !after.contains_key("log.cleaner.threads") {
        return Ok(());
    }
    check_dedupe_buffer(number(dedupe), number("log.cleaner.threads"))
        .map_err(|why| (ErrorCode::INVALID_REQUEST, why))
}

fn check_broker(
    image: &Image,
    name: &str,
    changes: &[ConfigChange],
    replace: bool,
) -> Result<(), Refusal> {
    let of = |which: fn(Update) -> bool| -> Vec<&str> {
        let changed = changes
            .iter()
            .filter(|change| change.op != ConfigOp::Delete);
        let unfit = changed.filter(|change| {
            broker_definition(&change.name).is_none_or(|known| which(known.update))
        });
        unfit.map(|change| change.name.as_str()).collect()
    };
    let fixed = of(|update| update == Update::Never);
    if !fixed.is_empty() {
        let why = format!(
            "Cannot update these configs dynamically: [{}]",
            fixed.join(", ")
        );
        return refuse(ErrorCode::INVALID_REQUEST, why);
    }
    let single = of(|update| update == Update::PerBroker);
    if name.is_empty() && !single.is_empty() {
        let why = format!(
            "Cannot update these configs at default cluster level, broker id must be specified: [{}]",
            single.join(", ")
        );
        return refuse(ErrorCode::INVALID_REQUEST, why);
    }
    for change in changes.iter().filter(|change| change.op == ConfigOp::Set) {
        let (Some(known), Some(value)) = (broker_definition(&change.name), &change.value) else {
            continue;
        };
        check(known.name, known.kind, value)
            .map_err(|bad| (ErrorCode::INVALID_REQUEST, bad.to_string()))?;
        check_time(known.name, value).map_err(|why| (ErrorCode::INVALID_REQUEST, why))?;
    }
    check_eligible_leader_replicas(image, name, changes, replace)
}

/// With eligible leader replicas (KIP-966) `min.insync.replicas` must be the same on all brokers:
/// it is then set for the cluster and for no single broker.
fn check_eligible_leader_replicas(
    image: &Image,
    name: &str,
    changes: &[ConfigChange],
    replace: bool,
) -> Result<(), Refusal> {
    let on = image
        .finalized_features()
        .any(|(feature, level)| feature == ELIGIBLE_LEADER_REPLICAS && level > 0);
    if !on {
        return Ok(());
    }
    let change = changes
        .iter()
        .find(|change| change.name == "min.insync.replicas");
    if name.is_empty() {
        let removed = change.map_or(replace, |change| change.op == ConfigOp::Delete);
        if removed {
            let why = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.";
            return refuse(ErrorCode::INVALID_CONFIG, why);
        }
    } else if change.is_some() {
        let why = "Broker-level min.insync.replicas cannot be altered while ELR is enabled.";
        return refuse(ErrorCode::INVALID_CONFIG, why);
    }
    Ok(())
}

/// The records that bring a resource's settings from `before` to `after`.
pub fn difference(
    kind: ResourceType,
    name: &str,
    before: &ConfigMap,
    after: &ConfigMap,
) -> Vec<MetadataRecord> {
    let removed = before
        .keys()
        .filter(|key| !after.contains_key(*key))
        .map(|key| (key, None));
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
pub fn set_records(
    kind: ResourceType,
    name: &str,
    settings: &BTreeMap<String, String>,
) -> Vec<MetadataRecord> {
    difference(kind, name, &ConfigMap::new(), settings)
}

#[cfg(test)]
#[path = "configs_tests.rs"]
mod tests;
