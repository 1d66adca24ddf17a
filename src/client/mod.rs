//! Our own client: producer, consumer and admin in async Rust on the runtime room, used by the
//! commands, the load tool, the tests and the followers.
//!
//! One executor; nothing here is `Send`. What decides (batching, sequences, retries, partitioning,
//! assignment) is pure and tested by itself; what waits goes through `rt`. Knows the broker only
//! by its protocol.

mod aborted;
mod accumulator;
mod admin;
mod admin_configs;
mod admin_groups;
mod admin_log_dirs;
mod admin_partitions;
mod admin_quorum;
mod admin_quotas;
mod assignment;
mod assignor;
mod backoff;
mod cluster;
pub mod config;
pub(crate) mod connection;
mod consumer;
mod consumer_offsets;
mod consumer_protocol;
mod controllers;
mod delivery;
mod error;
mod exchange;
mod fetched;
mod fetcher;
mod group_coordinator;
mod list_offsets;
mod membership;
mod metadata;
mod outbox;
#[cfg(test)]
mod outbox_tests;
mod partitioner;
mod pending_batch;
mod positions;
mod producer;
mod producer_record;
mod producer_transactions;
mod sender;
mod sequences;
mod topic_partition;
mod transaction;
mod transaction_offsets;
mod transactions;
mod verdict;
mod versions;

pub(crate) use aborted::Aborted;
pub use admin::{Admin, CreatedTopic, LogDir, NewTopic, ReplicaInDir};
pub use admin_configs::{AlterOp, ConfigEntry, ConfigResource, ConfigSource, ConfigSynonym};
pub use admin_groups::{DescribedGroup, DescribedMember, ListedGroup};
pub use admin_partitions::{
    DescribedTopic, Election, EligibleReplicas, PartitionOutcomes, Reassignment,
};
pub use admin_quorum::{QuorumEndpoint, QuorumNode, QuorumReplica, QuorumView};
pub use admin_quotas::{DescribedQuotas, QuotaEntity, QuotaFilter};
pub use backoff::Backoff;
pub use cluster::{Cluster, CoordinatorKind};
pub use config::{
    Acks, Assignor, ClientConfig, ConsumerConfig, Isolation, OffsetReset, ProducerConfig,
};
pub use connection::{Connection, Sent};
pub use consumer::Consumer;
pub use controllers::Controllers;
pub use delivery::{Delivery, RecordMetadata};
pub use error::ClientError;
pub use exchange::Exchange;
pub use fetched::ConsumerRecord;
pub use group_coordinator::CommittedOffset;
pub use list_offsets::{ListedOffset, ListedOffsets, OffsetSpec};
pub use metadata::{BrokerView, ClusterView, PartitionView, TopicView};
pub use partitioner::{StickyPartitioner, murmur2, partition_for_key};
pub use producer::Producer;
pub use producer_record::ProducerRecord;
pub use topic_partition::TopicPartition;
pub use transaction_offsets::GroupMetadata;
pub(crate) use transactions::Transactions;
pub use versions::Versions;
