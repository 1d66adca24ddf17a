//! The admin's view of configurations: of topics, brokers and groups.

use std::time::Duration;

use super::admin::{Admin, unanswered};
use super::error::{ClientError, check_with};
use crate::types::NodeId;
use crate::wire::messages::describe_configs_request::{
    DescribeConfigsRequest, DescribeConfigsResource,
};
use crate::wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

/// Whose configuration (protocol: `resource_type` and `resource_name`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigResource {
    Topic(String),
    /// A broker's own; `None` is the default of all brokers.
    Broker(Option<NodeId>),
    BrokerLogger(NodeId),
    ClientMetrics(String),
    Group(String),
}

impl ConfigResource {
    fn wire(&self) -> (i8, String) {
        match self {
            ConfigResource::Topic(name) => (2, name.clone()),
            ConfigResource::Broker(node) => {
                (4, node.map(|node| node.0.to_string()).unwrap_or_default())
            }
            ConfigResource::BrokerLogger(node) => (8, node.0.to_string()),
            ConfigResource::ClientMetrics(name) => (16, name.clone()),
            ConfigResource::Group(name) => (32, name.clone()),
        }
    }

    /// The broker that alone can answer for it.
    fn node(&self) -> Option<NodeId> {
        match self {
            ConfigResource::Broker(node) => *node,
            ConfigResource::BrokerLogger(node) => Some(*node),
            _ => None,
        }
    }
}

/// Where a value comes from (protocol: `config_source`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigSource {
    Topic,
    DynamicBroker,
    DynamicDefaultBroker,
    StaticBroker,
    Default,
    BrokerLogger,
    ClientMetrics,
    Group,
    Unknown,
}

impl ConfigSource {
    fn read(source: i8) -> ConfigSource {
        match source {
            1 => ConfigSource::Topic,
            2 => ConfigSource::DynamicBroker,
            3 => ConfigSource::DynamicDefaultBroker,
            4 => ConfigSource::StaticBroker,
            5 => ConfigSource::Default,
            6 => ConfigSource::BrokerLogger,
            7 => ConfigSource::ClientMetrics,
            8 => ConfigSource::Group,
            _ => ConfigSource::Unknown,
        }
    }

    /// As Kafka's tools print it.
    pub fn name(self) -> &'static str {
        match self {
            ConfigSource::Topic => "DYNAMIC_TOPIC_CONFIG",
            ConfigSource::DynamicBroker => "DYNAMIC_BROKER_CONFIG",
            ConfigSource::DynamicDefaultBroker => "DYNAMIC_DEFAULT_BROKER_CONFIG",
            ConfigSource::StaticBroker => "STATIC_BROKER_CONFIG",
            ConfigSource::Default => "DEFAULT_CONFIG",
            ConfigSource::BrokerLogger => "DYNAMIC_BROKER_LOGGER_CONFIG",
            ConfigSource::ClientMetrics => "DYNAMIC_CLIENT_METRICS_CONFIG",
            ConfigSource::Group => "DYNAMIC_GROUP_CONFIG",
            ConfigSource::Unknown => "UNKNOWN",
        }
    }
}

/// One setting with its value and where that comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    pub name: String,
    /// `None` for a null value, and for a sensitive one.
    pub value: Option<String>,
    pub source: ConfigSource,
    pub read_only: bool,
    pub sensitive: bool,
    /// All values that are set for it, the effective one first.
    pub synonyms: Vec<ConfigSynonym>,
}

/// A value that is set somewhere for a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSynonym {
    pub name: String,
    pub value: Option<String>,
    pub source: ConfigSource,
}

/// A change of one setting (protocol: `config_operation`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlterOp {
    Set(String),
    /// Back to the default.
    Delete,
    /// Adds to a list.
    Append(String),
    /// Takes out of a list.
    Subtract(String),
}

impl Admin {
    /// The settings of a resource; `names` empty means all.
    pub async fn describe_configs(
        &self,
        resource: &ConfigResource,
        names: &[&str],
    ) -> Result<Vec<ConfigEntry>, ClientError> {
        let (resource_type, resource_name) = resource.wire();
        let request = DescribeConfigsRequest {
            resources: vec![DescribeConfigsResource {
                resource_type,
                resource_name: resource_name.into(),
                configuration_keys: (!names.is_empty())
                    .then(|| names.iter().map(|name| (*name).into()).collect()),
                ..DescribeConfigsResource::default()
            }],
            include_synonyms: true,
            ..DescribeConfigsRequest::default()
        };
        self.retry(async || {
            let answer = match resource.node() {
                Some(node) => self.cluster.call_node(node, &request).await?,
                None => self.cluster.call_any(&request, Duration::ZERO).await?,
            };
            let result = answer
                .results
                .first()
                .ok_or_else(|| unanswered("DESCRIBE_CONFIGS"))?;
            check_with(result.error_code, result.error_message.as_deref(), || {
                format!("settings of {resource:?}")
            })?;
            let text = |value: &Option<crate::wire::Str>| {
                value.as_ref().map(|value| value.as_str().to_owned())
            };
            let entries = result.configs.iter().map(|config| ConfigEntry {
                name: config.name.as_str().to_owned(),
                value: text(&config.value),
                source: ConfigSource::read(config.config_source),
                read_only: config.read_only,
                sensitive: config.is_sensitive,
                synonyms: config
                    .synonyms
                    .iter()
                    .map(|synonym| ConfigSynonym {
                        name: synonym.name.as_str().to_owned(),
                        value: text(&synonym.value),
                        source: ConfigSource::read(synonym.source),
                    })
                    .collect(),
            });
            Ok(entries.collect())
        })
        .await
    }

    /// Changes some settings of a resource and leaves the others (KIP-339).
    pub async fn alter_configs(
        &self,
        resource: &ConfigResource,
        changes: &[(&str, AlterOp)],
    ) -> Result<(), ClientError> {
        let (resource_type, resource_name) = resource.wire();
        let configs = changes.iter().map(|(name, op)| {
            let (config_operation, value) = match op {
                AlterOp::Set(value) => (0, Some(value)),
                AlterOp::Delete => (1, None),
                AlterOp::Append(value) => (2, Some(value)),
                AlterOp::Subtract(value) => (3, Some(value)),
            };
            AlterableConfig {
                name: (*name).into(),
                config_operation,
                value: value.map(|value| value.as_str().into()),
                ..AlterableConfig::default()
            }
        });
        let request = IncrementalAlterConfigsRequest {
            resources: vec![AlterConfigsResource {
                resource_type,
                resource_name: resource_name.into(),
                configs: configs.collect(),
                ..AlterConfigsResource::default()
            }],
            validate_only: false,
            ..IncrementalAlterConfigsRequest::default()
        };
        self.retry(async || {
            let answer = match resource.node() {
                Some(node) => self.cluster.call_node(node, &request).await?,
                None => self.cluster.call_any(&request, Duration::ZERO).await?,
            };
            let result = answer
                .responses
                .first()
                .ok_or_else(|| unanswered("INCREMENTAL_ALTER_CONFIGS"))?;
            check_with(result.error_code, result.error_message.as_deref(), || {
                format!("settings of {resource:?}")
            })
        })
        .await
    }
}
