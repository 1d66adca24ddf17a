//! `highwater topics describe`: topics and partitions as Kafka's tool prints them, all of them or
//! only those in trouble.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use clap::Args;

use super::Failure;
use super::bootstrap::{Bootstrap, existing_topic};
use crate::client::{
    Admin, ClientError, ConfigEntry, ConfigResource, ConfigSource, DescribedTopic,
    EligibleReplicas, PartitionView, Reassignment, TopicPartition,
};
use crate::types::NodeId;
use crate::wire::Str;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater topics describe --bootstrap-server 127.0.0.1:9092 --topic orders"
)]
pub(super) struct Describe {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// Left out: all topics.
    #[arg(long)]
    topic: Option<String>,
    /// Leave out the cluster's own topics.
    #[arg(long)]
    exclude_internal: bool,
    #[command(flatten)]
    only: Only,
}

/// What is printed; without any of these everything is.
#[derive(Args, Default)]
#[group(multiple = false)]
struct Only {
    /// Only partitions that have fewer replicas in sync than they have replicas.
    #[arg(long)]
    under_replicated_partitions: bool,
    /// Only partitions with fewer replicas in sync than min.insync.replicas, or without a leader.
    #[arg(long)]
    under_min_isr_partitions: bool,
    /// Only partitions with exactly min.insync.replicas in sync.
    #[arg(long)]
    at_min_isr_partitions: bool,
    /// Only partitions without a live leader.
    #[arg(long)]
    unavailable_partitions: bool,
    /// Only topics with settings of their own, without their partitions.
    #[arg(long)]
    topics_with_overrides: bool,
}

impl Only {
    fn some_partitions(&self) -> bool {
        self.under_replicated_partitions
            || self.under_min_isr_partitions
            || self.at_min_isr_partitions
            || self.unavailable_partitions
    }

    fn needs_configs(&self) -> bool {
        !self.under_replicated_partitions && !self.unavailable_partitions
    }

    /// Whether the line of this partition is printed.
    fn shows(&self, partition: &Line<'_>, min_in_sync: usize, live: &BTreeSet<NodeId>) -> bool {
        let in_sync = partition.view.in_sync.len();
        let leader = partition.view.leader;
        if self.under_replicated_partitions {
            in_sync < partition.wanted_replicas()
        } else if self.under_min_isr_partitions {
            leader.is_none() || in_sync < min_in_sync
        } else if self.at_min_isr_partitions {
            in_sync == min_in_sync
        } else if self.unavailable_partitions {
            leader.is_none_or(|leader| !live.contains(&leader))
        } else {
            !self.topics_with_overrides
        }
    }
}

impl Describe {
    pub(super) async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        let mut topics = match &self.topic {
            Some(name) => {
                existing_topic(&admin, name).await?;
                let name = Str::from(name.as_str());
                admin.describe_topics(Some(&[name])).await?
            }
            None => admin.describe_topics(None).await?,
        };
        topics.retain(|topic| !(self.exclude_internal && topic.view.internal));
        let live = match self.only.unavailable_partitions {
            true => live_brokers(&admin).await?,
            false => BTreeSet::new(),
        };
        let moving = reassignments(&admin).await?;
        let mut text = String::new();
        for topic in &topics {
            let entries = match self.only.needs_configs() {
                true => {
                    let resource = ConfigResource::Topic(topic.view.name.to_string());
                    admin.describe_configs(&resource, &[]).await?
                }
                false => Vec::new(),
            };
            describe(&mut text, topic, &entries, &moving, &self.only, &live)?;
        }
        Ok(text)
    }
}

async fn live_brokers(admin: &Admin) -> Result<BTreeSet<NodeId>, Failure> {
    let cluster = admin.describe_cluster(false).await?;
    let brokers = cluster.brokers.iter();
    Ok(brokers.map(|broker| NodeId(broker.broker_id)).collect())
}

type Moving = BTreeMap<TopicPartition, Reassignment>;

/// Whoever cannot tell of reassignments is described without.
async fn reassignments(admin: &Admin) -> Result<Moving, Failure> {
    match admin.list_reassignments(None).await {
        Err(ClientError::UnsupportedVersion { .. }) => Ok(Moving::new()),
        listed => Ok(listed?),
    }
}

/// A line for the topic and one for each partition that is to be shown.
fn describe(
    text: &mut String,
    topic: &DescribedTopic,
    entries: &[ConfigEntry],
    moving: &Moving,
    only: &Only,
    live: &BTreeSet<NodeId>,
) -> Result<(), Failure> {
    let view = &topic.view;
    let nothing = EligibleReplicas::default();
    let lines = view.partitions.iter().enumerate().map(|(at, partition)| {
        let key = TopicPartition::new(view.name.clone(), partition.index);
        Line {
            topic: &view.name,
            view: partition,
            elr: topic.elr.get(at).unwrap_or(&nothing),
            moving: moving.get(&key),
        }
    });
    let lines: Vec<Line<'_>> = lines.collect();
    let own: Vec<&ConfigEntry> = entries
        .iter()
        .filter(|entry| entry.source != ConfigSource::Default)
        .collect();
    let with_topic = !only.some_partitions();
    if with_topic && !(only.topics_with_overrides && own.is_empty()) {
        let pair = |entry: &&ConfigEntry| {
            let value = entry.value.as_deref().unwrap_or_default();
            format!("{}={value}", entry.name)
        };
        writeln!(
            text,
            "Topic: {}\tTopicId: {}\tPartitionCount: {}\tReplicationFactor: {}\tConfigs: {}",
            view.name,
            view.id,
            lines.len(),
            lines.first().map_or(0, Line::wanted_replicas),
            own.iter().map(pair).collect::<Vec<_>>().join(","),
        )?;
    }
    let min_in_sync = match only.under_min_isr_partitions || only.at_min_isr_partitions {
        true => min_in_sync(entries).ok_or_else(|| {
            format!(
                "the cluster does not tell min.insync.replicas of topic {}",
                view.name
            )
        })?,
        false => 0,
    };
    for line in &lines {
        if only.shows(line, min_in_sync, live) {
            line.write(text)?;
        }
    }
    Ok(())
}

fn min_in_sync(entries: &[ConfigEntry]) -> Option<usize> {
    let entry = entries.iter().find(|e| e.name == "min.insync.replicas")?;
    entry.value.as_deref()?.parse().ok()
}

/// What the line of a partition is made of.
struct Line<'a> {
    topic: &'a Str,
    view: &'a PartitionView,
    elr: &'a EligibleReplicas,
    moving: Option<&'a Reassignment>,
}

impl Line<'_> {
    /// How many there shall be: replicas that are being added do not count yet.
    fn wanted_replicas(&self) -> usize {
        let adding = match self.moving {
            Some(moving) => moving.adding.len(),
            None => 0,
        };
        self.view.replicas.len().saturating_sub(adding)
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let view = self.view;
        let leader = match view.leader {
            Some(node) => node.0.to_string(),
            None => "none".to_owned(),
        };
        write!(
            text,
            "\tTopic: {}\tPartition: {}\tLeader: {leader}\tReplicas: {}\tIsr: {}",
            self.topic,
            view.index,
            nodes(&view.replicas),
            nodes(&view.in_sync),
        )?;
        if let Some(moving) = self.moving {
            write!(
                text,
                "\tAdding Replicas: {}\tRemoving Replicas: {}",
                nodes(&moving.adding),
                nodes(&moving.removing),
            )?;
        }
        let known = |replicas: &Option<Vec<NodeId>>| match replicas {
            Some(replicas) => nodes(replicas),
            None => "N/A".to_owned(),
        };
        writeln!(
            text,
            "\tElr: {}\tLastKnownElr: {}",
            known(&self.elr.eligible),
            known(&self.elr.last_known),
        )
    }
}

/// As Kafka's tools list nodes.
pub(super) fn nodes(nodes: &[NodeId]) -> String {
    let ids: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    ids.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::TopicView;
    use crate::types::{LeaderEpoch, Uuid};

    fn ids(ids: &[i32]) -> Vec<NodeId> {
        ids.iter().map(|id| NodeId(*id)).collect()
    }

    /// Partition 0 is well, 1 has the minimum in sync, 2 has less and a leader that is gone, 3 has
    /// no leader, 4 is being moved.
    fn topic() -> DescribedTopic {
        let partition =
            |index, leader: Option<i32>, replicas: &[i32], in_sync: &[i32]| PartitionView {
                index,
                leader: leader.map(NodeId),
                leader_epoch: LeaderEpoch(0),
                replicas: ids(replicas),
                in_sync: ids(in_sync),
                offline: Vec::new(),
            };
        let mut elr = vec![EligibleReplicas::default(); 5];
        elr[3] = EligibleReplicas {
            eligible: Some(ids(&[2, 3])),
            last_known: Some(Vec::new()),
        };
        DescribedTopic {
            view: TopicView {
                name: "t".into(),
                id: Uuid::from_halves(0, 1),
                internal: false,
                partitions: vec![
                    partition(0, Some(1), &[1, 2, 3], &[1, 2, 3]),
                    partition(1, Some(2), &[2, 3, 1], &[2, 3]),
                    partition(2, Some(9), &[9, 1, 2], &[9]),
                    partition(3, None, &[1, 2, 3], &[1]),
                    partition(4, Some(1), &[4, 1, 2, 3], &[1, 2, 3]),
                ],
            },
            elr,
        }
    }

    fn entry(name: &str, value: &str, source: ConfigSource) -> ConfigEntry {
        ConfigEntry {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            source,
            read_only: false,
            sensitive: false,
            synonyms: Vec::new(),
        }
    }

    fn described(only: Only) -> String {
        let entries = [
            entry("min.insync.replicas", "2", ConfigSource::Topic),
            entry("retention.ms", "5", ConfigSource::Default),
        ];
        let moving = Reassignment {
            replicas: ids(&[4, 1, 2, 3]),
            adding: ids(&[4]),
            removing: ids(&[3]),
        };
        let moving = Moving::from([(TopicPartition::new("t".into(), 4), moving)]);
        let live = ids(&[1, 2, 3, 4]).into_iter().collect();
        let mut text = String::new();
        describe(&mut text, &topic(), &entries, &moving, &only, &live).unwrap();
        text
    }

    fn shown(only: Only) -> Vec<i32> {
        let text = described(only);
        let index = |line: &str| {
            let part = line.split("\tPartition: ").nth(1)?;
            part.split('\t').next()?.parse().ok()
        };
        text.lines().map(|line| index(line).unwrap()).collect()
    }

    #[test]
    fn everything_is_printed_as_kafkas_tool_prints_it() {
        let text = described(Only::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "Topic: t\tTopicId: AAAAAAAAAAAAAAAAAAAAAQ\tPartitionCount: 5\t\
             ReplicationFactor: 3\tConfigs: min.insync.replicas=2"
        );
        assert_eq!(
            lines[1],
            "\tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2,3\tIsr: 1,2,3\tElr: N/A\tLastKnownElr: N/A"
        );
        assert_eq!(
            lines[4],
            "\tTopic: t\tPartition: 3\tLeader: none\tReplicas: 1,2,3\tIsr: 1\tElr: 2,3\tLastKnownElr: "
        );
        assert_eq!(
            lines[5],
            "\tTopic: t\tPartition: 4\tLeader: 1\tReplicas: 4,1,2,3\tIsr: 1,2,3\tAdding Replicas: 4\t\
             Removing Replicas: 3\tElr: N/A\tLastKnownElr: N/A"
        );
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn only_partitions_in_the_trouble_that_was_asked_for_are_printed() {
        let under_replicated = Only {
            under_replicated_partitions: true,
            ..Only::default()
        };
        assert_eq!(shown(under_replicated), [1, 2, 3]);
        let under_min = Only {
            under_min_isr_partitions: true,
            ..Only::default()
        };
        assert_eq!(shown(under_min), [2, 3]);
        let at_min = Only {
            at_min_isr_partitions: true,
            ..Only::default()
        };
        assert_eq!(shown(at_min), [1]);
        let unavailable = Only {
            unavailable_partitions: true,
            ..Only::default()
        };
        assert_eq!(shown(unavailable), [2, 3]);
    }

    #[test]
    fn topics_without_settings_of_their_own_are_left_out_where_those_were_asked_for() {
        let only = || Only {
            topics_with_overrides: true,
            ..Only::default()
        };
        let text = described(only());
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.ends_with("Configs: min.insync.replicas=2\n"));
        let mut text = String::new();
        let defaults = [entry("retention.ms", "5", ConfigSource::Default)];
        let (moving, live) = (Moving::new(), BTreeSet::new());
        describe(&mut text, &topic(), &defaults, &moving, &only(), &live).unwrap();
        assert_eq!(text, "");
    }
}
