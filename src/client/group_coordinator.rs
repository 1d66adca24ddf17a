//! The way to the broker that coordinates one group, and the group's committed offsets there.
//!
//! One executor. Remembers which broker it is until told that it is not; never retries.

use std::cell::Cell;
use std::time::Duration;

use super::cluster::{Cluster, CoordinatorKind};
use super::error::{ClientError, check};
use super::exchange::Exchange;
use super::topic_partition::TopicPartition;
use crate::types::{LeaderEpoch, NodeId, Offset};
use crate::wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use crate::wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use crate::wire::{ErrorCode, Str};

/// Versions up to this name topics; later ones use ids.
const OFFSETS_BY_NAME_LAST: i16 = 9;
/// From this version on an OffsetFetch asks for several groups.
const OFFSET_FETCH_GROUPS_FIRST: i16 = 8;

/// An offset that a group has committed, or is to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The next record to read.
    pub offset: Offset,
    pub leader_epoch: LeaderEpoch,
    pub metadata: String,
}

impl CommittedOffset {
    pub fn new(offset: Offset) -> CommittedOffset {
        CommittedOffset {
            offset,
            leader_epoch: LeaderEpoch::UNKNOWN,
            metadata: String::new(),
        }
    }
}

/// Who commits: the empty member and generation -1 for a consumer outside of the group's protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Committer {
    pub(super) generation: i32,
    pub(super) member_id: Str,
    pub(super) instance_id: Option<Str>,
}

impl Committer {
    pub(super) fn simple() -> Committer {
        Committer {
            generation: -1,
            member_id: Str::default(),
            instance_id: None,
        }
    }
}

/// Topic, partition, error, offset, leader epoch and metadata of an OffsetFetch answer.
type Row<'a> = (&'a Str, i32, i16, i64, i32, &'a Option<Str>);

/// See the module's words.
pub(super) struct GroupCoordinator {
    pub(super) cluster: Cluster,
    pub(super) group: Str,
    node: Cell<Option<NodeId>>,
}

impl GroupCoordinator {
    pub(super) fn new(cluster: Cluster, group: Str) -> GroupCoordinator {
        GroupCoordinator {
            cluster,
            group,
            node: Cell::new(None),
        }
    }

    pub(super) async fn node(&self) -> Result<NodeId, ClientError> {
        if let Some(node) = self.node.get() {
            return Ok(node);
        }
        let node = self
            .cluster
            .find_coordinator(CoordinatorKind::Group, &self.group)
            .await?;
        self.node.set(Some(node));
        Ok(node)
    }

    /// Forgets the broker if `error` says that it does not coordinate, or cannot be reached.
    pub(super) fn doubt(&self, error: &ClientError) {
        let lost = match error {
            ClientError::Broker { code, .. } => matches!(
                *code,
                ErrorCode::NOT_COORDINATOR | ErrorCode::COORDINATOR_NOT_AVAILABLE
            ),
            error => error.is_retriable(),
        };
        if lost {
            self.node.set(None);
        }
    }

    /// Sends to the coordinator at no later version than `last`. Errors inside of the answer are
    /// the caller's to see, and to [`GroupCoordinator::doubt`].
    pub(super) async fn call<R: Exchange>(
        &self,
        request: &R,
        last: i16,
        extra: Duration,
    ) -> Result<R::Response, ClientError> {
        let limit = self.cluster.config().request_timeout + extra;
        let result = async {
            let node = self.node().await?;
            self.cluster
                .coordinator(node)
                .await?
                .call_up_to(request, last, limit)
                .await
        }
        .await;
        result.inspect_err(|error| self.doubt(error))
    }

    /// Commits offsets; the first partition's error is the result.
    pub(super) async fn commit(
        &self,
        committer: &Committer,
        offsets: &[(TopicPartition, CommittedOffset)],
    ) -> Result<(), ClientError> {
        let mut topics: Vec<OffsetCommitRequestTopic> = Vec::new();
        for (key, committed) in offsets {
            let at = topics.iter().position(|topic| topic.name == key.topic);
            let at = at.unwrap_or_else(|| {
                topics.push(OffsetCommitRequestTopic {
                    name: key.topic.clone(),
                    ..OffsetCommitRequestTopic::default()
                });
                topics.len() - 1
            });
            topics[at].partitions.push(OffsetCommitRequestPartition {
                partition_index: key.partition,
                committed_offset: committed.offset.0,
                committed_leader_epoch: committed.leader_epoch.0,
                committed_metadata: Some(committed.metadata.as_str().into()),
                ..OffsetCommitRequestPartition::default()
            });
        }
        let request = OffsetCommitRequest {
            group_id: self.group.clone(),
            generation_id_or_member_epoch: committer.generation,
            member_id: committer.member_id.clone(),
            group_instance_id: committer.instance_id.clone(),
            topics,
            ..OffsetCommitRequest::default()
        };
        let answer = self
            .call(&request, OFFSETS_BY_NAME_LAST, Duration::ZERO)
            .await?;
        for topic in &answer.topics {
            for partition in &topic.partitions {
                check(partition.error_code, || {
                    format!("commit of {}-{}", topic.name, partition.partition_index)
                })
                .inspect_err(|error| self.doubt(error))?;
            }
        }
        Ok(())
    }

    /// The committed offsets of `partitions` (`None`: of all that have one). Partitions without
    /// one are left out.
    pub(super) async fn committed(
        &self,
        partitions: Option<&[TopicPartition]>,
        stable: bool,
    ) -> Result<Vec<(TopicPartition, CommittedOffset)>, ClientError> {
        let mut by_topic: Vec<(Str, Vec<i32>)> = Vec::new();
        for key in partitions.unwrap_or_default() {
            match by_topic.iter_mut().find(|(topic, _)| *topic == key.topic) {
                Some((_, indexes)) => indexes.push(key.partition),
                None => by_topic.push((key.topic.clone(), vec![key.partition])),
            }
        }
        let node = self.node().await?;
        let connection = self
            .cluster
            .coordinator(node)
            .await
            .inspect_err(|error| self.doubt(error))?;
        // Version 2 is the first that can ask for all.
        let first = if partitions.is_none() { 2 } else { 1 };
        let version = connection
            .versions()
            .choose::<OffsetFetchRequest>(first, OFFSETS_BY_NAME_LAST)?;
        let mut request = OffsetFetchRequest {
            require_stable: stable && version >= 7,
            ..OffsetFetchRequest::default()
        };
        if version >= OFFSET_FETCH_GROUPS_FIRST {
            let topic = |(name, partition_indexes)| OffsetFetchRequestTopics {
                name,
                partition_indexes,
                ..OffsetFetchRequestTopics::default()
            };
            request.groups = vec![OffsetFetchRequestGroup {
                group_id: self.group.clone(),
                topics: partitions.map(|_| by_topic.into_iter().map(topic).collect()),
                ..OffsetFetchRequestGroup::default()
            }];
        } else {
            let topic = |(name, partition_indexes)| OffsetFetchRequestTopic {
                name,
                partition_indexes,
                ..OffsetFetchRequestTopic::default()
            };
            request.group_id = self.group.clone();
            request.topics = partitions.map(|_| by_topic.into_iter().map(topic).collect());
        }
        let limit = self.cluster.config().request_timeout;
        let answer = connection
            .start(&request, version)?
            .answer::<OffsetFetchRequest>(limit)
            .await
            .inspect_err(|error| self.doubt(error))?;
        let what = || format!("offsets of group {}", self.group);
        // Whichever shape the answer has.
        let mut rows: Vec<Row<'_>> = Vec::new();
        if let Some(group) = answer.groups.first() {
            check(group.error_code, what).inspect_err(|error| self.doubt(error))?;
            for topic in &group.topics {
                rows.extend(topic.partitions.iter().map(|p| {
                    let (offset, epoch) = (p.committed_offset, p.committed_leader_epoch);
                    (
                        &topic.name,
                        p.partition_index,
                        p.error_code,
                        offset,
                        epoch,
                        &p.metadata,
                    )
                }));
            }
        } else {
            check(answer.error_code, what).inspect_err(|error| self.doubt(error))?;
            for topic in &answer.topics {
                rows.extend(topic.partitions.iter().map(|p| {
                    let (offset, epoch) = (p.committed_offset, p.committed_leader_epoch);
                    (
                        &topic.name,
                        p.partition_index,
                        p.error_code,
                        offset,
                        epoch,
                        &p.metadata,
                    )
                }));
            }
        }
        let mut found = Vec::new();
        for (topic, partition, error, offset, epoch, metadata) in rows {
            check(error, || format!("committed offset of {topic}-{partition}"))
                .inspect_err(|error| self.doubt(error))?;
            if offset >= 0 {
                let committed = CommittedOffset {
                    offset: Offset(offset),
                    leader_epoch: LeaderEpoch(epoch),
                    metadata: metadata
                        .as_ref()
                        .map(|m| m.as_str().to_owned())
                        .unwrap_or_default(),
                };
                found.push((TopicPartition::new(topic.detached(), partition), committed));
            }
        }
        Ok(found)
    }
}
