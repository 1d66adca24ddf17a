//! The cluster as a client sees it: brokers, topics, partitions and their leaders.
//!
//! Pure; a value that is replaced, never changed in place. Takes Metadata responses and never goes
//! back to an older leader epoch (KIP-320).

use ahash::AHashMap;

use crate::types::{LeaderEpoch, NodeId, Uuid};
use crate::wire::messages::metadata_response::{
    MetadataResponse, MetadataResponsePartition, MetadataResponseTopic,
};
use crate::wire::{ErrorCode, Str};

/// A broker's address on the listener that the client uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerView {
    pub node: NodeId,
    pub host: String,
    pub port: u16,
    pub rack: Option<String>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    pub index: i32,
    /// `None` while there is no leader.
    pub leader: Option<NodeId>,
    pub leader_epoch: LeaderEpoch,
    pub replicas: Vec<NodeId>,
    pub in_sync: Vec<NodeId>,
    pub offline: Vec<NodeId>,
}

/// One topic that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicView {
    pub name: Str,
    /// Zero where the broker does not know topic ids.
    pub id: Uuid,
    pub internal: bool,
    /// By index, without gaps.
    pub partitions: Vec<PartitionView>,
}

impl TopicView {
    pub fn partition(&self, index: i32) -> Option<&PartitionView> {
        self.partitions.get(usize::try_from(index).ok()?)
    }
}

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    pub cluster_id: Option<String>,
    pub controller: Option<NodeId>,
    /// By node id.
    pub brokers: Vec<BrokerView>,
    topics: AHashMap<Str, TopicView>,
    names: AHashMap<Uuid, Str>,
    errors: AHashMap<Str, ErrorCode>,
}

impl ClusterView {
    pub fn broker(&self, node: NodeId) -> Option<&BrokerView> {
        let at = self
            .brokers
            .binary_search_by_key(&node, |broker| broker.node)
            .ok()?;
        Some(&self.brokers[at])
    }

    pub fn topic(&self, name: &str) -> Option<&TopicView> {
        self.topics.get(name)
    }

    pub fn topics(&self) -> impl Iterator<Item = &TopicView> {
        self.topics.values()
    }

    /// The topic with this id.
    pub fn name_of(&self, id: Uuid) -> Option<&Str> {
        self.names.get(&id)
    }

    /// Why the cluster did not describe a topic when it was asked last.
    pub fn error_of(&self, topic: &str) -> Option<ErrorCode> {
        self.errors.get(topic).copied()
    }

    pub fn leader_of(&self, topic: &str, partition: i32) -> Option<NodeId> {
        self.topic(topic)?.partition(partition)?.leader
    }

    /// This view after `answer`. Topics that were asked for are replaced, those the answer does not
    /// name stay; with `all_topics` the answer names every topic there is.
    pub fn updated(&self, answer: &MetadataResponse, all_topics: bool) -> ClusterView {
        let mut next = if all_topics {
            ClusterView::default()
        } else {
            self.clone()
        };
        next.cluster_id = answer.cluster_id.as_ref().map(|id| id.as_str().to_owned());
        next.controller = Some(NodeId(answer.controller_id)).filter(|node| node.0 >= 0);
        next.brokers = answer
            .brokers
            .iter()
            .filter_map(|broker| {
                Some(BrokerView {
                    node: NodeId(broker.node_id),
                    host: broker.host.as_str().to_owned(),
                    port: u16::try_from(broker.port).ok()?,
                    rack: broker.rack.as_ref().map(|rack| rack.as_str().to_owned()),
                })
            })
            .collect();
        next.brokers.sort_by_key(|broker| broker.node);
        next.brokers.dedup_by_key(|broker| broker.node);
        for topic in &answer.topics {
            // A topic that is asked for by id and does not exist has no name.
            let Some(name) = &topic.name else { continue };
            let name = name.detached();
            match ErrorCode(topic.error_code) {
                ErrorCode::NONE => {
                    next.errors.remove(&name);
                    let view = read_topic(name.clone(), topic, self.topic(&name));
                    if !view.id.is_zero() {
                        next.names.insert(view.id, name.clone());
                    }
                    if let Some(old) = next.topics.insert(name, view.clone())
                        && old.id != view.id
                    {
                        next.names.remove(&old.id);
                    }
                }
                error => {
                    // Trouble that passes does not make us forget where the leaders were.
                    let gone =
                        error == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION || !error.is_retriable();
                    if gone && let Some(old) = next.topics.remove(&name) {
                        next.names.remove(&old.id);
                    }
                    next.errors.insert(name, error);
                }
            }
        }
        next
    }
}

fn read_topic(name: Str, topic: &MetadataResponseTopic, before: Option<&TopicView>) -> TopicView {
    // Epochs of a topic that was made anew say nothing about each other.
    let before = before.filter(|before| before.id == topic.topic_id);
    let mut partitions: Vec<PartitionView> = topic
        .partitions
        .iter()
        .map(|partition| {
            let known = before.and_then(|before| before.partition(partition.partition_index));
            read_partition(partition, known)
        })
        .collect();
    partitions.sort_by_key(|partition| partition.index);
    // Looked up by position: what is behind a gap cannot be.
    let whole = (0..)
        .zip(&partitions)
        .take_while(|(at, p)| p.index == *at)
        .count();
    partitions.truncate(whole);
    TopicView {
        name,
        id: topic.topic_id,
        internal: topic.is_internal,
        partitions,
    }
}

fn read_partition(
    partition: &MetadataResponsePartition,
    known: Option<&PartitionView>,
) -> PartitionView {
    let epoch = LeaderEpoch(partition.leader_epoch);
    if let Some(known) = known
        && epoch.0 >= 0
        && epoch < known.leader_epoch
    {
        return known.clone();
    }
    let nodes = |ids: &[i32]| ids.iter().map(|id| NodeId(*id)).collect();
    PartitionView {
        index: partition.partition_index,
        leader: Some(NodeId(partition.leader_id)).filter(|node| node.0 >= 0),
        leader_epoch: epoch,
        replicas: nodes(&partition.replica_nodes),
        in_sync: nodes(&partition.isr_nodes),
        offline: nodes(&partition.offline_replicas),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: u64, leaders: &[(i32, i32)]) -> MetadataResponse {
        let partitions = (0..)
            .zip(leaders)
            .map(
                |(partition_index, (leader_id, leader_epoch))| MetadataResponsePartition {
                    partition_index,
                    leader_id: *leader_id,
                    leader_epoch: *leader_epoch,
                    ..Default::default()
                },
            )
            .collect();
        let topic = MetadataResponseTopic {
            name: Some("orders".into()),
            topic_id: Uuid::from_halves(0, id),
            partitions,
            ..Default::default()
        };
        MetadataResponse {
            topics: vec![topic],
            ..Default::default()
        }
    }

    #[test]
    fn an_older_leader_epoch_does_not_replace_a_newer_one() {
        let view = ClusterView::default().updated(&answer(7, &[(1, 5), (2, 5)]), false);
        let view = view.updated(&answer(7, &[(3, 4), (3, 6)]), false);
        assert_eq!(view.leader_of("orders", 0), Some(NodeId(1)));
        assert_eq!(view.leader_of("orders", 1), Some(NodeId(3)));
    }

    #[test]
    fn a_topic_made_anew_starts_from_its_own_epochs() {
        let view = ClusterView::default().updated(&answer(7, &[(1, 5)]), false);
        let view = view.updated(&answer(8, &[(2, 0)]), false);
        assert_eq!(view.leader_of("orders", 0), Some(NodeId(2)));
        assert_eq!(view.name_of(Uuid::from_halves(0, 7)), None);
        assert_eq!(
            view.name_of(Uuid::from_halves(0, 8)),
            Some(&Str::from("orders"))
        );
    }

    #[test]
    fn a_passing_error_keeps_the_leaders_and_a_deletion_forgets_them() {
        let view = ClusterView::default().updated(&answer(7, &[(1, 5)]), false);
        let mut failed = answer(7, &[]);
        failed.topics[0].error_code = ErrorCode::LEADER_NOT_AVAILABLE.0;
        let view = view.updated(&failed, false);
        assert_eq!(view.leader_of("orders", 0), Some(NodeId(1)));
        failed.topics[0].error_code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.0;
        let view = view.updated(&failed, false);
        assert_eq!(view.leader_of("orders", 0), None);
        assert_eq!(
            view.error_of("orders"),
            Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
        );
    }

    #[test]
    fn a_partition_without_leader_has_none() {
        let view = ClusterView::default().updated(&answer(7, &[(-1, 5)]), false);
        assert_eq!(view.leader_of("orders", 0), None);
        assert_eq!(view.leader_of("orders", 1), None);
        assert_eq!(view.leader_of("orders", -1), None);
    }
}
