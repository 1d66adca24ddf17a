//! `highwater reassign generate`: a plan that spreads topics over brokers, and what there is now,
//! in the form that `reassign execute` takes. As Kafka's kafka-reassign-partitions: the racks take
//! turns, and so do the brokers within them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::bootstrap::Bootstrap;
use super::partition_file::{Assignment, parse_topics, write_assignment};
use crate::client::TopicPartition;
use crate::rt;
use crate::types::NodeId;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater reassign generate --bootstrap-server 127.0.0.1:9092 \\\n    --topics-to-move-json-file topics.json --broker-list 1,2,3"
)]
pub(super) struct Generate {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// {"version":1,"topics":[{"topic":"orders"}]}
    #[arg(long, value_name = "FILE")]
    topics_to_move_json_file: PathBuf,
    /// The brokers that shall have the replicas.
    #[arg(long, value_name = "ID[,...]", value_delimiter = ',', required = true)]
    broker_list: Vec<i32>,
    /// Do not look at the brokers' racks.
    #[arg(long)]
    disable_rack_aware: bool,
}

impl Generate {
    pub(super) async fn text(self) -> Result<String, Failure> {
        let topics = parse_topics(&super::read_file(&self.topics_to_move_json_file)?)?;
        let ids: BTreeSet<NodeId> = self.broker_list.iter().copied().map(NodeId).collect();
        if ids.len() < self.broker_list.len() {
            return Err("Broker list contains duplicate entries".into());
        }
        let admin = self.bootstrap.admin().await?;
        let view = admin.topics().await?;
        let mut brokers = Vec::with_capacity(ids.len());
        for id in ids {
            let broker = view
                .broker(id)
                .ok_or_else(|| format!("Unknown broker id {}", id.0))?;
            let rack = broker.rack.clone();
            brokers.push((id, rack.filter(|_| !self.disable_rack_aware)));
        }
        let with_rack = brokers.iter().filter(|(_, rack)| rack.is_some()).count();
        if with_rack > 0 && with_rack < brokers.len() {
            return Err(
                "Not all brokers have rack information. Add --disable-rack-aware in command line \
                 to make replica assignment without rack information."
                    .into(),
            );
        }
        let mut current = Assignment::new();
        for name in &topics {
            let topic = view.topic(name);
            let topic = topic.ok_or_else(|| format!("Topic {name} not found."))?;
            for partition in &topic.partitions {
                let key = TopicPartition::new(topic.name.clone(), partition.index);
                current.insert(key, partition.replicas.clone());
            }
        }
        let mut proposed = Assignment::new();
        for name in &topics {
            let of_topic = current.iter().filter(|(key, _)| *key.topic == **name);
            let of_topic: Vec<_> = of_topic.collect();
            let factor = of_topic.first().map_or(0, |(_, replicas)| replicas.len());
            let start = rt::random_below(brokers.len() as u64) as usize;
            let placed = spread(&brokers, of_topic.len(), factor, start)?;
            let keys = of_topic.into_iter().map(|(key, _)| key.clone());
            proposed.extend(keys.zip(placed));
        }
        Ok(format!(
            "Current partition replica assignment\n{}\n\nProposed partition reassignment \
             configuration\n{}\n",
            write_assignment(&current),
            write_assignment(&proposed)
        ))
    }
}

/// The replicas of each partition. Brokers without a rack are a rack each.
fn spread(
    brokers: &[(NodeId, Option<String>)],
    partitions: usize,
    factor: usize,
    start: usize,
) -> Result<Vec<Vec<NodeId>>, Failure> {
    if factor > brokers.len() {
        return Err(format!(
            "The target replication factor of {factor} cannot be reached because only {} \
             broker(s) are registered.",
            brokers.len()
        )
        .into());
    }
    let mut racks: BTreeMap<String, Vec<NodeId>> = BTreeMap::new();
    for (node, rack) in brokers {
        let rack = rack.clone().unwrap_or_else(|| format!("\0{:010}", node.0));
        racks.entry(rack).or_default().push(*node);
    }
    // The racks alternate, so that neighbours are in different ones.
    let longest = racks.values().map(Vec::len).max().unwrap_or_default();
    let mut ring: Vec<(usize, NodeId)> = Vec::with_capacity(brokers.len());
    for at in 0..longest {
        let each = racks.values().enumerate();
        ring.extend(each.filter_map(|(rack, nodes)| Some((rack, *nodes.get(at)?))));
    }
    let mut placed = Vec::with_capacity(partitions);
    for partition in 0..partitions {
        // Each time round the followers are others.
        let shift = partition / ring.len();
        let mut order: Vec<(usize, NodeId)> = ring.clone();
        order.rotate_left((partition + start) % ring.len());
        let len = order.len().max(2) - 1;
        order[1..].rotate_left(shift % len);
        let mut used = BTreeSet::new();
        // First one of each rack, then whoever is left.
        let (mut first, mut rest) = (Vec::new(), Vec::new());
        for (rack, node) in order {
            match used.insert(rack) {
                true => first.push(node),
                false => rest.push(node),
            }
        }
        first.extend(rest);
        first.truncate(factor);
        placed.push(first);
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_spread_over_brokers_and_over_racks_first() {
        let brokers = |racks: &[Option<&str>]| -> Vec<(NodeId, Option<String>)> {
            let each = racks.iter().enumerate();
            each.map(|(at, rack)| (NodeId(at as i32 + 1), rack.map(str::to_owned)))
                .collect()
        };
        let counts = |placed: &[Vec<NodeId>], leaders: bool| {
            let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
            for replicas in placed {
                let shown = if leaders { 1 } else { replicas.len() };
                for node in &replicas[..shown] {
                    *counts.entry(node.0).or_default() += 1;
                }
            }
            counts.into_values().collect::<Vec<_>>()
        };
        let plain = spread(&brokers(&[None; 4]), 12, 3, 1).unwrap();
        assert_eq!(counts(&plain, true), [3; 4]);
        assert_eq!(counts(&plain, false), [9; 4]);
        let racks = [
            Some("a"),
            Some("a"),
            Some("b"),
            Some("b"),
            Some("c"),
            Some("c"),
        ];
        let aware = spread(&brokers(&racks), 12, 3, 0).unwrap();
        assert_eq!(counts(&aware, true), [2; 6]);
        for replicas in &aware {
            let held: BTreeSet<_> = replicas.iter().map(|n| racks[n.0 as usize - 1]).collect();
            assert_eq!(held.len(), 3, "{replicas:?}");
        }
        assert!(spread(&brokers(&[None; 2]), 1, 3, 0).is_err());
    }
}
