//! `highwater groups reset`: sets the committed offsets of a group that nobody is a member of.

use std::collections::BTreeMap;

use clap::Args;

use super::Failure;
use super::bootstrap::{Bootstrap, existing_topic};
use super::groups::listed;
use super::table::Table;
use crate::client::{Admin, ClientError, CommittedOffset, OffsetSpec, TopicPartition};
use crate::types::Offset;
use crate::wire::ErrorCode;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater groups reset --bootstrap-server 127.0.0.1:9092 --group billing \\\n    --topic orders:0,1 --to-offset 42 --execute"
)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["to_earliest", "to_latest", "to_offset"]))]
#[command(group = clap::ArgGroup::new("scope").required(true).args(["topic", "all_topics"]))]
pub(super) struct Reset {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[arg(long)]
    group: String,
    /// A topic, or some of its partitions; may be given several times.
    #[arg(long, value_name = "TOPIC[:PARTITION,...]")]
    topic: Vec<String>,
    /// All partitions that the group has an offset of.
    #[arg(long)]
    all_topics: bool,
    /// To the oldest record that is kept.
    #[arg(long)]
    to_earliest: bool,
    /// To the next record that will be written.
    #[arg(long)]
    to_latest: bool,
    /// To this offset, or the nearest that the log has.
    #[arg(long, value_name = "N")]
    to_offset: Option<i64>,
    /// Do it; without, only print what would be done.
    #[arg(long)]
    execute: bool,
}

impl Reset {
    pub(super) async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        self.refuse_active_group(&admin).await?;
        let partitions = self.partitions(&admin).await?;
        if partitions.is_empty() {
            return Err(format!("group '{}' has no committed offsets", self.group).into());
        }
        let targets = self.targets(&admin, &partitions).await?;
        if self.execute {
            let offsets: Vec<_> = targets
                .iter()
                .map(|(key, offset)| (key.clone(), CommittedOffset::new(*offset)))
                .collect();
            admin.alter_group_offsets(&self.group, &offsets).await?;
        }
        let mut table = Table::new(&["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]);
        for (key, offset) in &targets {
            table.row(vec![
                self.group.clone(),
                key.topic.to_string(),
                key.partition.to_string(),
                offset.to_string(),
            ]);
        }
        Ok(table.text())
    }

    /// Members would overwrite what is set here. A group that does not exist yet is fine.
    async fn refuse_active_group(&self, admin: &Admin) -> Result<(), Failure> {
        match admin.describe_group(&self.group).await {
            Ok(group) if group.members.is_empty() => Ok(()),
            Ok(group) => {
                let state = group.state;
                Err(format!("group '{}' has members, its state is {state}", self.group).into())
            }
            Err(ClientError::Broker {
                code: ErrorCode::GROUP_ID_NOT_FOUND,
                ..
            }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn partitions(&self, admin: &Admin) -> Result<Vec<TopicPartition>, Failure> {
        if self.all_topics {
            let committed = admin.group_offsets(&self.group).await?;
            return Ok(committed.into_iter().map(|(key, _)| key).collect());
        }
        let mut partitions = Vec::new();
        for scope in &self.topic {
            let (name, some) = parse_scope(scope)?;
            let topic = existing_topic(admin, name).await?;
            let all = || {
                topic
                    .partitions
                    .iter()
                    .map(|partition| partition.index)
                    .collect()
            };
            for index in some.unwrap_or_else(all) {
                if topic.partition(index).is_none() {
                    return Err(format!("topic '{name}' has no partition {index}").into());
                }
                partitions.push(TopicPartition::new(topic.name.clone(), index));
            }
        }
        partitions.sort();
        partitions.dedup();
        Ok(partitions)
    }

    async fn targets(
        &self,
        admin: &Admin,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, Offset>, Failure> {
        let all = |spec| {
            partitions
                .iter()
                .map(|key| (key.clone(), spec))
                .collect::<Vec<_>>()
        };
        let Some(wanted) = self.to_offset else {
            let spec = if self.to_earliest {
                OffsetSpec::Earliest
            } else {
                OffsetSpec::Latest
            };
            return listed(admin, &all(spec)).await;
        };
        let starts = listed(admin, &all(OffsetSpec::Earliest)).await?;
        let ends = listed(admin, &all(OffsetSpec::Latest)).await?;
        let nearest = |(key, start): (TopicPartition, Offset)| {
            let end = ends.get(&key).copied().unwrap_or(start);
            (key, Offset(wanted.max(start.0).min(end.0)))
        };
        Ok(starts.into_iter().map(nearest).collect())
    }
}

/// `topic` or `topic:0,1`.
fn parse_scope(scope: &str) -> Result<(&str, Option<Vec<i32>>), String> {
    let Some((name, list)) = scope.split_once(':') else {
        return Ok((scope, None));
    };
    let numbers = list.split(',').map(|number| number.trim().parse::<i32>());
    let numbers = numbers.collect::<Result<Vec<_>, _>>();
    numbers
        .map(|numbers| (name, Some(numbers)))
        .map_err(|_| format!("'{scope}' does not have the form TOPIC[:PARTITION,...]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_after_a_topic_are_read_and_nonsense_is_refused() {
        assert_eq!(parse_scope("t"), Ok(("t", None)));
        assert_eq!(parse_scope("t:0, 2"), Ok(("t", Some(vec![0, 2]))));
        assert!(parse_scope("t:").is_err());
        assert!(parse_scope("t:x").is_err());
    }
}
