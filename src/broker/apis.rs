//! The APIs that this broker serves, each at every version that Apache Kafka 4.4 advertises. An
//! API stands here only when it works.

use crate::wire::api::{ApiKey, ListenerKind};
use std::ops::RangeInclusive;

/// In the order of their keys.
pub const SERVED: &[ApiKey] = &[
    ApiKey::PRODUCE,
    ApiKey::FETCH,
    ApiKey::LIST_OFFSETS,
    ApiKey::METADATA,
    ApiKey::OFFSET_COMMIT,
    ApiKey::OFFSET_FETCH,
    ApiKey::FIND_COORDINATOR,
    ApiKey::JOIN_GROUP,
    ApiKey::HEARTBEAT,
    ApiKey::LEAVE_GROUP,
    ApiKey::SYNC_GROUP,
    ApiKey::DESCRIBE_GROUPS,
    ApiKey::LIST_GROUPS,
    ApiKey::API_VERSIONS,
    ApiKey::CREATE_TOPICS,
    ApiKey::DELETE_TOPICS,
    ApiKey::DELETE_RECORDS,
    ApiKey::INIT_PRODUCER_ID,
    ApiKey::OFFSET_FOR_LEADER_EPOCH,
    ApiKey::ADD_PARTITIONS_TO_TXN,
    ApiKey::ADD_OFFSETS_TO_TXN,
    ApiKey::END_TXN,
    ApiKey::WRITE_TXN_MARKERS,
    ApiKey::TXN_OFFSET_COMMIT,
    ApiKey::DESCRIBE_CONFIGS,
    ApiKey::ALTER_CONFIGS,
    ApiKey::ALTER_REPLICA_LOG_DIRS,
    ApiKey::DESCRIBE_LOG_DIRS,
    ApiKey::CREATE_PARTITIONS,
    ApiKey::DELETE_GROUPS,
    ApiKey::ELECT_LEADERS,
    ApiKey::INCREMENTAL_ALTER_CONFIGS,
    ApiKey::ALTER_PARTITION_REASSIGNMENTS,
    ApiKey::LIST_PARTITION_REASSIGNMENTS,
    ApiKey::OFFSET_DELETE,
    ApiKey::DESCRIBE_CLIENT_QUOTAS,
    ApiKey::ALTER_CLIENT_QUOTAS,
    ApiKey::DESCRIBE_QUORUM,
    ApiKey::UPDATE_FEATURES,
    ApiKey::DESCRIBE_CLUSTER,
    ApiKey::DESCRIBE_PRODUCERS,
    ApiKey::UNREGISTER_BROKER,
    ApiKey::DESCRIBE_TRANSACTIONS,
    ApiKey::LIST_TRANSACTIONS,
    ApiKey::LIST_CONFIG_RESOURCES,
    ApiKey::DESCRIBE_TOPIC_PARTITIONS,
    ApiKey::UNREGISTER_CONTROLLER,
];

/// The versions accepted on the wire, if the API is served.
pub fn served(key: ApiKey) -> Option<RangeInclusive<i16>> {
    if !SERVED.contains(&key) {
        return None;
    }
    let (first, last) = key.versions(ListenerKind::Broker, false)?;
    Some(first..=last)
}

/// The range told to clients. Produce says 0: librdkafka before 2.4 takes a broker without
/// Produce 0 for one without its message format (KAFKA-18659); it never sends it.
pub fn advertised(key: ApiKey) -> Option<RangeInclusive<i16>> {
    let range = served(key)?;
    Some(if key == ApiKey::PRODUCE {
        0..=*range.end()
    } else {
        range
    })
}
