//! One core: the partitions it owns, what waits for them, and its lanes to the other cores. One
//! `Shard` an executor; everything in it belongs to that executor alone.
//!
//! * [`mesh`] the lanes: calls between executors, by message;
//! * [`append`], [`read`] produce and fetch as the owner of the partitions sees them;
//! * [`gather`] questions to the owners of many partitions;
//! * [`waiting`] the purgatories and the timer that drives them;
//! * [`budget`] the memory its requests may hold;
//! * [`connections`] which connections there are, and when each last moved;
//! * [`apply`] makes the shard's replicas follow the metadata image, `roles` gives them theirs;
//! * `in_sync` the in-sync sets of what the shard leads;
//! * `fetcher` the followers' fetchers, `cut` their cuts, `throttles` how fast both sides copy;
//! * `moves` replicas on their way to another log directory;
//! * [`groups`] the group coordinators of the offsets partitions it owns;
//! * [`transactions`] the transaction coordinators of the transaction state partitions it owns,
//!   [`transaction_calls`] the way to them, `marker_sender` what they tell the partitions;
//! * `coordinator_log` how coordinators keep their state in their partition;
//! * [`verification`] batches whose transaction its coordinator is asked about first, and
//!   `questions` how it is asked;
//! * [`markers`] the ends of transactions in the partitions it owns;
//! * [`peers`] its connections to the other brokers;
//! * [`producer_ids`] the shard's block of producer ids;
//! * [`quotas`] what clients have produced and consumed, against their quotas;
//! * [`upkeep`] its timer, gauges and checkpoint facts;
//! * [`directories`] the log directories of the process;
//! * [`control`] the executor beside the shards that owns the metadata;
//! * [`lifeline`] registers the broker and keeps its heartbeats going.

pub mod append;
pub mod apply;
pub mod budget;
pub mod connections;
pub mod control;
mod coordinator_log;
mod cut;
pub mod directories;
mod fetcher;
pub mod gather;
pub mod groups;
mod in_sync;
mod lifeline;
mod marker_sender;
pub mod markers;
pub mod mesh;
mod moves;
pub mod peers;
pub mod producer_ids;
mod questions;
pub mod quotas;
pub mod read;
mod roles;
mod throttles;
pub mod transaction_calls;
pub mod transactions;
pub mod upkeep;
pub mod verification;
pub mod waiting;

mod state;

pub use lifeline::{Advertised, Registration};
pub use state::{NodeFacts, Shard, ShardSettings};
