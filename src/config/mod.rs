//! Every setting once: Kafka's names, types, defaults and limits, and our own beside them. Plain
//! values, read at start or taken from the metadata image; any core. Never reads a clock or acts.
//!
//! * [`properties`] reads property files, keeping file and line for messages;
//! * [`definition`] what a setting is: type, default, limits; checks one value;
//! * [`broker_table`], [`topic_table`] the settings there are;
//! * [`broker`] the settings of this broker, typed;
//! * [`layers`] which value holds where several layers say something, and how tools are told.

pub mod broker;
mod broker_table;
pub mod definition;
pub mod layers;
pub mod listeners;
pub mod properties;
mod topic_table;

pub use broker::{BrokerConfig, ConfigError};
pub use broker_table::{broker_definition, broker_definitions};
pub use definition::{Definition, Kind};
pub use layers::{Described, Synonym};
pub use topic_table::{TopicDefinition, topic_definition, topic_definitions};
