//! The cluster's metadata: Kafka's metadata records in a real `__cluster_metadata` log, the image
//! they add up to, and the controller that decides new ones. The controller runs on the control
//! executor; images go to the shards as messages.
//!
//! * [`record`], [`metadata_log`], [`replay`], [`snapshot`] the records and their log;
//! * [`image`], [`topics`], [`brokers`], [`features`] what they add up to, [`feature_admin`] and at which
//!   levels;
//! * [`quorum`] what is agreed on among controllers, and by whom;
//! * [`controller`] decide, propose, apply, publish;
//! * [`registration`], [`heartbeat`], [`sessions`], [`fencing`] brokers that come and go;
//! * [`partition_change`], [`alter_partition`], [`elect_leaders`], [`reassignment`],
//!   [`dir_assignment`] who is in sync, who leads and where replicas go, with [`draft`];
//! * [`periodic`] what the active controller does by itself;
//! * [`topic_admin`], [`config_admin`], [`configs`], [`placement`], [`assignment`],
//!   [`directories`] the decisions, with [`dice`] for what is random.

mod alter_partition;
pub mod apis;
mod assignment;
mod brokers;
pub mod client_quotas;
pub mod config_admin;
pub mod configs;
pub mod controller;
pub mod dice;
mod dir_assignment;
pub mod directories;
mod draft;
mod elect_leaders;
mod feature_admin;
pub mod features;
mod fencing;
mod heartbeat;
mod image;
#[cfg(test)]
mod invariants_tests;
pub mod life;
pub mod link;
mod metadata_log;
mod partition_change;
pub mod periodic;
mod placement;
pub mod quorum;
mod reassignment;
mod record;
mod registration;
mod replay;
mod sessions;
mod snapshot;
#[cfg(test)]
mod test_kit;
pub mod topic_admin;
mod topics;

pub use brokers::{Broker, Endpoint, FeatureRange};
pub use features::TRANSACTION_VERSION;
pub use image::{ApplyError, ConfigMap, Image, ResourceType};
pub use metadata_log::{METADATA_TOPIC_ID, MetadataLogError, MetadataLogSettings};
pub use record::{MetadataRecord, RecordError};
pub use replay::ReplayError;
pub use topics::{
    OFFSETS_TOPIC, PartitionRegistration, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC, Topic,
    check_topic_name, is_internal_topic, names_collide,
};

/// Writes what a new cluster begins with into the metadata log directory of one of its controllers.
pub async fn format(metadata_dir: &std::path::Path) -> Result<(), MetadataLogError> {
    let home = metadata_dir.join(crate::log::names::METADATA_TOPIC_DIR);
    crate::rt::fs::create_dir_all(&home)
        .await
        .map_err(|source| MetadataLogError::Io {
            what: "cannot create",
            path: home.clone(),
            source,
        })?;
    metadata_log::bootstrap(metadata_dir, features::initial())
        .await
        .map(|_| ())
}
