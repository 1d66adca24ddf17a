//! Every setting once: Kafka's names, types, defaults and limits, and our own beside them. Plain
//! values, read at start or taken from the metadata image; any core. Never reads a clock or acts.
//!
//! * [`properties`] reads property files, keeping file and line for messages;
//! * [`definition`] what a setting is: type, default, limits; checks one value;
//! * [`broker_table`], [`other_table`], [`topic_table`], [`group_table`] the settings there are;
//! * [`broker`] the settings of this broker, typed;
//! * [`disk_profile`] what was measured of a device, as defaults for its limits;
//! * [`quorum`] what the node is, and where its controllers are;
//! * [`layers`] which value holds where several layers say something, and how tools are told.

pub mod broker;
mod broker_table;
pub mod definition;
pub mod disk_profile;
mod group_table;
pub mod layers;
pub mod listeners;
mod other_table;
pub mod properties;
pub mod quorum;
mod topic_table;

pub use broker::{BrokerConfig, ConfigError};
pub use broker_table::{broker_definition, broker_definitions, listener_setting};
pub use definition::{Definition, Kind, Update};
pub use group_table::{
    GroupDefinition, client_metrics_definition, client_metrics_definitions, group_definition,
    group_definitions,
};
pub use layers::{Described, Synonym};
pub use topic_table::{TopicDefinition, topic_definition, topic_definitions};
