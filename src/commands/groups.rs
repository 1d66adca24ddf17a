//! `highwater groups`: consumer groups, their members and how far they have read.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};

use super::bootstrap::Bootstrap;
use super::reset_offsets::Reset;
use super::table::Table;
use super::{Failure, print, run};
use crate::client::{
    Admin, DescribedGroup, DescribedMember, Isolation, ListedOffset, OffsetSpec, TopicPartition,
};
use crate::types::Offset;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater groups describe --bootstrap-server 127.0.0.1:9092 --group billing"
)]
pub struct Groups {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the groups of all brokers.
    List(List),
    /// Print what a group has read and what is left, or its members.
    Describe(Describe),
    /// Delete a group without members, with its offsets.
    Delete(Delete),
    /// Let a group without members go on somewhere else.
    Reset(Reset),
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater groups list --bootstrap-server 127.0.0.1:9092 --state Stable,Empty"
)]
struct List {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// Only groups in these states, comma-separated.
    #[arg(long, value_name = "STATE[,...]", value_delimiter = ',')]
    state: Vec<String>,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater groups describe --bootstrap-server 127.0.0.1:9092 --group billing --members"
)]
struct Describe {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[arg(long)]
    group: String,
    /// Members and how many partitions each has, instead of offsets.
    #[arg(long, conflicts_with = "state")]
    members: bool,
    /// State, assignor and coordinator, instead of offsets.
    #[arg(long)]
    state: bool,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater groups delete --bootstrap-server 127.0.0.1:9092 --group billing"
)]
struct Delete {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[arg(long)]
    group: String,
}

impl Groups {
    pub fn run(self) -> Result<(), Failure> {
        print(&run::run(move || self.action.text())?)
    }
}

impl Action {
    async fn text(self) -> Result<String, Failure> {
        match self {
            Action::List(list) => list.text().await,
            Action::Describe(describe) => describe.text().await,
            Action::Delete(delete) => delete.text().await,
            Action::Reset(reset) => reset.text().await,
        }
    }
}

impl List {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        let states: Vec<&str> = self.state.iter().map(String::as_str).collect();
        let mut table = Table::new(&["GROUP", "TYPE", "PROTOCOL", "STATE", "COORDINATOR"]);
        for group in admin.list_groups(&states).await? {
            table.row(vec![
                group.group_id,
                group.group_type,
                group.protocol_type,
                group.state,
                group.coordinator.0.to_string(),
            ]);
        }
        Ok(table.text())
    }
}

impl Describe {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        let group = admin.describe_group(&self.group).await?;
        // Older brokers describe a group that they do not know as dead.
        if group.state == DEAD {
            return Err(format!("group '{}' does not exist", self.group).into());
        }
        let table = if self.members {
            members(&group)
        } else if self.state {
            state(&group)
        } else {
            offsets(&admin, &group).await?
        };
        Ok(table.text())
    }
}

const DEAD: &str = "Dead";

fn members(group: &DescribedGroup) -> Table {
    let mut table = Table::new(&[
        "GROUP",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
        "#PARTITIONS",
        "ASSIGNMENT",
    ]);
    for member in &group.members {
        let assigned: Vec<String> = member
            .assigned
            .iter()
            .map(TopicPartition::to_string)
            .collect();
        table.row(vec![
            group.group_id.clone(),
            member.member_id.clone(),
            member.client_host.clone(),
            member.client_id.clone(),
            assigned.len().to_string(),
            assigned.join(","),
        ]);
    }
    table
}

fn state(group: &DescribedGroup) -> Table {
    let mut table = Table::new(&[
        "GROUP",
        "COORDINATOR",
        "ASSIGNMENT-STRATEGY",
        "STATE",
        "#MEMBERS",
    ]);
    table.row(vec![
        group.group_id.clone(),
        group.coordinator.0.to_string(),
        group.protocol.clone(),
        group.state.clone(),
        group.members.len().to_string(),
    ]);
    table
}

/// A row for every partition with a committed offset or a member that reads it.
async fn offsets(admin: &Admin, group: &DescribedGroup) -> Result<Table, Failure> {
    let mut partitions: BTreeMap<TopicPartition, (Option<Offset>, Option<&DescribedMember>)> =
        BTreeMap::new();
    for (key, committed) in admin.group_offsets(&group.group_id).await? {
        partitions.entry(key).or_default().0 = Some(committed.offset);
    }
    for member in &group.members {
        for key in &member.assigned {
            partitions.entry(key.clone()).or_default().1 = Some(member);
        }
    }
    let ends = ends(admin, partitions.keys()).await?;
    let mut table = Table::new(&[
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ]);
    for (key, (committed, member)) in &partitions {
        let end = ends.get(key).copied();
        let lag = end
            .zip(*committed)
            .map(|(end, committed)| end.0 - committed.0);
        let number = |number: Option<i64>| number.map(|n| n.to_string()).unwrap_or_default();
        let of = |field: fn(&DescribedMember) -> &String| {
            member
                .map(|member| field(member).clone())
                .unwrap_or_default()
        };
        table.row(vec![
            group.group_id.clone(),
            key.topic.to_string(),
            key.partition.to_string(),
            number(committed.map(|offset| offset.0)),
            number(end.map(|offset| offset.0)),
            number(lag),
            of(|member| &member.member_id),
            of(|member| &member.client_host),
            of(|member| &member.client_id),
        ]);
    }
    Ok(table)
}

/// The log ends of those partitions whose topics still exist.
async fn ends(
    admin: &Admin,
    partitions: impl Iterator<Item = &TopicPartition>,
) -> Result<BTreeMap<TopicPartition, Offset>, Failure> {
    let view = admin.topics().await?;
    let led = partitions.filter(|key| view.leader_of(&key.topic, key.partition).is_some());
    let wanted: Vec<_> = led.map(|key| (key.clone(), OffsetSpec::Latest)).collect();
    listed(admin, &wanted).await
}

/// The offsets that the leaders say; an error of any is an error.
pub(super) async fn listed(
    admin: &Admin,
    wanted: &[(TopicPartition, OffsetSpec)],
) -> Result<BTreeMap<TopicPartition, Offset>, Failure> {
    let mut found = BTreeMap::new();
    for (key, result) in admin
        .list_offsets(wanted, Isolation::ReadUncommitted)
        .await?
    {
        let ListedOffset { offset, .. } =
            result.map_err(|code| Failure::from(format!("offset of {key}: {code}")))?;
        found.extend(offset.map(|offset| (key, offset)));
    }
    Ok(found)
}

impl Delete {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        admin.delete_group(&self.group).await?;
        Ok(format!(
            "Deletion of requested consumer groups ('{}') was successful.\n",
            self.group
        ))
    }
}
