//! Offsets by time, and the special ones: where a log begins and ends.
//!
//! One executor. Asks each leader once; what a leader cannot say is an error of that partition.

use std::collections::HashSet;

use super::cluster::Cluster;
use super::config::Isolation;
use super::error::ClientError;
use super::topic_partition::TopicPartition;
use crate::types::{LeaderEpoch, NodeId, Offset};
use crate::wire::ErrorCode;
use crate::wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};

/// Which offset to look for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OffsetSpec {
    /// The end of the log, as far as the isolation level lets a consumer read.
    Latest,
    /// Where the log begins.
    Earliest,
    /// The record with the largest timestamp (KIP-734).
    MaxTimestamp,
    /// Where the log begins on local disks (KIP-405).
    EarliestLocal,
    /// The last offset in tiered storage (KIP-1005).
    LatestTiered,
    /// The first record at or after this many milliseconds since the epoch.
    Timestamp(i64),
}

impl OffsetSpec {
    /// As the protocol writes it, with the first version that knows it.
    fn wire(self) -> (i64, i16) {
        match self {
            OffsetSpec::Latest => (-1, 1),
            OffsetSpec::Earliest => (-2, 1),
            OffsetSpec::MaxTimestamp => (-3, 7),
            OffsetSpec::EarliestLocal => (-4, 8),
            OffsetSpec::LatestTiered => (-5, 9),
            OffsetSpec::Timestamp(at) => (at.max(0), 1),
        }
    }
}

/// A leader's answer. No offset means that no record fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedOffset {
    pub offset: Option<Offset>,
    /// Milliseconds since the epoch, -1 where it was not asked for.
    pub timestamp: i64,
    pub leader_epoch: LeaderEpoch,
}

/// One result for each partition and spec that was asked, in no particular order.
pub type ListedOffsets = Vec<(TopicPartition, Result<ListedOffset, ErrorCode>)>;

/// Asks the leaders. Partitions without a known leader get LEADER_NOT_AVAILABLE; those of a leader
/// that did not answer NETWORK_EXCEPTION.
pub(super) async fn list_offsets(
    cluster: &Cluster,
    wanted: &[(TopicPartition, OffsetSpec)],
    isolation: Isolation,
) -> Result<ListedOffsets, ClientError> {
    let mut results: ListedOffsets = Vec::with_capacity(wanted.len());
    let mut rest: Vec<&(TopicPartition, OffsetSpec)> = wanted.iter().collect();
    // A request may name a partition once: what is asked twice of it takes two rounds.
    while !rest.is_empty() {
        let mut seen = HashSet::new();
        let (round, later): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|(key, _)| seen.insert(key.clone()));
        ask_leaders(cluster, &round, isolation, &mut results).await?;
        rest = later;
    }
    Ok(results)
}

async fn ask_leaders(
    cluster: &Cluster,
    wanted: &[&(TopicPartition, OffsetSpec)],
    isolation: Isolation,
    results: &mut ListedOffsets,
) -> Result<(), ClientError> {
    let view = cluster.view();
    let mut by_leader: Vec<(NodeId, Vec<&(TopicPartition, OffsetSpec)>)> = Vec::new();
    for entry in wanted {
        let (key, _) = entry;
        let Some(leader) = view.leader_of(&key.topic, key.partition) else {
            results.push((key.clone(), Err(ErrorCode::LEADER_NOT_AVAILABLE)));
            continue;
        };
        match by_leader.iter_mut().find(|(node, _)| *node == leader) {
            Some((_, entries)) => entries.push(entry),
            None => by_leader.push((leader, vec![entry])),
        }
    }
    for (leader, entries) in by_leader {
        match ask(cluster, leader, &entries, isolation).await {
            Ok(listed) => results.extend(listed),
            Err(error) if error.is_retriable() => {
                let failed = entries
                    .iter()
                    .map(|(key, _)| (key.clone(), Err(error.code())));
                results.extend(failed);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn ask(
    cluster: &Cluster,
    leader: NodeId,
    entries: &[&(TopicPartition, OffsetSpec)],
    isolation: Isolation,
) -> Result<ListedOffsets, ClientError> {
    let view = cluster.view();
    let mut topics: Vec<ListOffsetsTopic> = Vec::new();
    let mut first = 1;
    for (key, spec) in entries {
        let (timestamp, since) = spec.wire();
        first = first.max(since);
        let epoch = view
            .topic(&key.topic)
            .and_then(|topic| topic.partition(key.partition));
        let partition = ListOffsetsPartition {
            partition_index: key.partition,
            current_leader_epoch: epoch.map_or(-1, |partition| partition.leader_epoch.0),
            timestamp,
            ..ListOffsetsPartition::default()
        };
        match topics.iter_mut().find(|topic| topic.name == key.topic) {
            Some(topic) => topic.partitions.push(partition),
            None => topics.push(ListOffsetsTopic {
                name: key.topic.clone(),
                partitions: vec![partition],
                ..ListOffsetsTopic::default()
            }),
        }
    }
    let limit = cluster.config().request_timeout;
    let request = ListOffsetsRequest {
        replica_id: -1,
        isolation_level: isolation as i8,
        topics,
        timeout_ms: i32::try_from(limit.as_millis()).unwrap_or(i32::MAX),
        ..ListOffsetsRequest::default()
    };
    let connection = cluster.node(leader).await?;
    // Version 2 brought the isolation level; before it there were no transactions to hide.
    let version = connection
        .versions()
        .choose::<ListOffsetsRequest>(first, i16::MAX)?;
    if version < 2 && isolation == Isolation::ReadCommitted {
        return Err(ClientError::UnsupportedVersion {
            api: "LIST_OFFSETS",
        });
    }
    let answer = connection
        .start(&request, version)?
        .answer::<ListOffsetsRequest>(limit)
        .await?;
    let mut listed = Vec::new();
    for topic in &answer.topics {
        for partition in &topic.partitions {
            let key = TopicPartition::new(topic.name.detached(), partition.partition_index);
            let result = match ErrorCode(partition.error_code) {
                ErrorCode::NONE => Ok(ListedOffset {
                    offset: Some(Offset(partition.offset)).filter(|offset| offset.0 >= 0),
                    timestamp: partition.timestamp,
                    leader_epoch: LeaderEpoch(partition.leader_epoch),
                }),
                error => Err(error),
            };
            listed.push((key, result));
        }
    }
    Ok(listed)
}
