//! The throttles of a reassignment: which replicas count against which rate, as Kafka's tool sets
//! and clears them. Pure but for the setting.

use std::collections::{BTreeMap, BTreeSet};

use super::Failure;
use super::partition_file::Assignment;
use crate::client::{Admin, AlterOp, ConfigResource, Reassignment, TopicPartition};
use crate::types::NodeId;

const LEADER_RATE: &str = "leader.replication.throttled.rate";
const FOLLOWER_RATE: &str = "follower.replication.throttled.rate";
pub(super) const ALTER_LOG_DIRS_RATE: &str = "replica.alter.log.dirs.io.max.bytes.per.second";
const LEADER_REPLICAS: &str = "leader.replication.throttled.replicas";
const FOLLOWER_REPLICAS: &str = "follower.replication.throttled.replicas";

/// Who copies a partition from whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Move {
    sources: BTreeSet<NodeId>,
    destinations: BTreeSet<NodeId>,
}

/// All copying that goes on, by partition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Moves(BTreeMap<TopicPartition, Move>);

impl Moves {
    /// What goes on already and what comes with `wanted`, where the replicas are at `current` now.
    pub(super) fn new(
        ongoing: &BTreeMap<TopicPartition, Reassignment>,
        wanted: &Assignment,
        current: &Assignment,
    ) -> Moves {
        let mut moves = BTreeMap::new();
        for (key, reassignment) in ongoing {
            let destinations: BTreeSet<NodeId> = reassignment.adding.iter().copied().collect();
            let all = reassignment.replicas.iter().copied();
            let sources = all.filter(|node| !destinations.contains(node)).collect();
            let moving = Move {
                sources,
                destinations,
            };
            moves.insert(key.clone(), moving);
        }
        for (key, replicas) in wanted {
            let moving: &mut Move = moves.entry(key.clone()).or_insert_with(|| Move {
                sources: current.get(key).into_iter().flatten().copied().collect(),
                destinations: BTreeSet::new(),
            });
            let all = replicas.iter().copied();
            moving.destinations = all.filter(|n| !moving.sources.contains(n)).collect();
        }
        Moves(moves)
    }

    fn brokers(&self) -> BTreeSet<NodeId> {
        let all = self.0.values();
        all.flat_map(|moving| moving.sources.iter().chain(&moving.destinations))
            .copied()
            .collect()
    }

    /// `partition:broker` of the sources and of the destinations, by topic.
    fn replicas(&self) -> BTreeMap<&str, (Vec<String>, Vec<String>)> {
        let mut topics: BTreeMap<&str, (Vec<String>, Vec<String>)> = BTreeMap::new();
        for (key, moving) in &self.0 {
            let pair = |node: &NodeId| format!("{}:{}", key.partition, node.0);
            let topic = topics.entry(key.topic.as_str()).or_default();
            topic.0.extend(moving.sources.iter().map(pair));
            topic.1.extend(moving.destinations.iter().map(pair));
        }
        topics
    }

    /// Lets the copying take at most `rate` bytes a second on each broker.
    pub(super) async fn throttle(&self, admin: &Admin, rate: u64) -> Result<(), Failure> {
        let rate = || AlterOp::Set(rate.to_string());
        for node in self.brokers() {
            let broker = ConfigResource::Broker(Some(node));
            let changes = [(LEADER_RATE, rate()), (FOLLOWER_RATE, rate())];
            admin.alter_configs(&broker, &changes).await?;
        }
        for (topic, (sources, destinations)) in self.replicas() {
            let topic = ConfigResource::Topic(topic.to_owned());
            let changes = [
                (LEADER_REPLICAS, AlterOp::Set(sources.join(","))),
                (FOLLOWER_REPLICAS, AlterOp::Set(destinations.join(","))),
            ];
            admin.alter_configs(&topic, &changes).await?;
        }
        Ok(())
    }
}

/// Takes the throttles off these brokers and topics.
pub(super) async fn clear(
    admin: &Admin,
    brokers: &BTreeSet<NodeId>,
    topics: &BTreeSet<String>,
) -> Result<(), Failure> {
    fn off<const N: usize>(names: [&'static str; N]) -> [(&'static str, AlterOp); N] {
        names.map(|name| (name, AlterOp::Delete))
    }
    for node in brokers {
        let broker = ConfigResource::Broker(Some(*node));
        let changes = off([LEADER_RATE, FOLLOWER_RATE, ALTER_LOG_DIRS_RATE]);
        admin.alter_configs(&broker, &changes).await?;
    }
    for topic in topics {
        let topic = ConfigResource::Topic(topic.clone());
        let changes = off([LEADER_REPLICAS, FOLLOWER_REPLICAS]);
        admin.alter_configs(&topic, &changes).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[i32]) -> Vec<NodeId> {
        ids.iter().map(|id| NodeId(*id)).collect()
    }

    fn assignment(parts: &[(i32, &[i32])]) -> Assignment {
        let part =
            |(index, ids): &(i32, &[i32])| (TopicPartition::new("t".into(), *index), nodes(ids));
        parts.iter().map(part).collect()
    }

    #[test]
    fn all_current_replicas_are_sources_and_only_new_ones_destinations() {
        let current = assignment(&[(0, &[1, 2]), (1, &[2, 3])]);
        let wanted = assignment(&[(0, &[2, 4]), (1, &[3, 2])]);
        let moves = Moves::new(&BTreeMap::new(), &wanted, &current);
        let replicas = moves.replicas();
        assert_eq!(replicas["t"].0.join(","), "0:1,0:2,1:2,1:3");
        assert_eq!(replicas["t"].1.join(","), "0:4");
        let brokers: Vec<i32> = moves.brokers().iter().map(|node| node.0).collect();
        assert_eq!(brokers, [1, 2, 3, 4]);
    }

    #[test]
    fn what_moves_already_keeps_its_sources_and_counts_too() {
        let ongoing = |index, adding: &[i32]| {
            let reassignment = Reassignment {
                replicas: nodes(&[1, 2, 3]),
                adding: nodes(adding),
                removing: nodes(&[1]),
            };
            (TopicPartition::new("t".into(), index), reassignment)
        };
        let ongoing = BTreeMap::from([ongoing(0, &[3]), ongoing(5, &[2, 3])]);
        let wanted = assignment(&[(0, &[2, 3, 4])]);
        let moves = Moves::new(&ongoing, &wanted, &assignment(&[(0, &[1, 2, 3])]));
        let replicas = moves.replicas();
        assert_eq!(replicas["t"].0.join(","), "0:1,0:2,5:1");
        assert_eq!(replicas["t"].1.join(","), "0:3,0:4,5:2,5:3");
    }
}
