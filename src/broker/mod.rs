//! How each request is answered with the rooms below: one file an API family. Runs on the
//! connection's shard; what a partition, a group or the controller must decide is asked of its
//! owner by message. Never touches a socket or a file.

mod alter_log_dirs;
pub mod api_versions;
pub mod apis;
mod client_quotas;
pub mod configs;
pub mod delete_records;
pub mod describe_cluster;
pub mod describe_topic_partitions;
mod dispatch;
pub mod fetch;
pub mod find_coordinator;
pub mod forwarded;
pub mod groups;
pub mod leader_epochs;
pub mod list_offsets;
pub mod log_dirs;
pub mod markers;
pub mod metadata;
pub mod produce;
pub mod producers;
mod reply;
mod request;
mod steering;
pub mod topics;
pub mod transactions;
pub mod txn_offset_commit;

pub use dispatch::{Started, encode, start};
pub use reply::{Logged, Reply};
pub use request::{ClientSoftware, Context, Peer, Timeline, ms_between};
pub use steering::Steering;
