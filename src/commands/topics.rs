//! `highwater topics`: topics and their partitions.

use std::fmt::Write;

use clap::{Args, Subcommand};

use super::bootstrap::{Bootstrap, existing_topic};
use super::key_value::key_value;
use super::{Failure, print, run};
use crate::client::{Admin, ConfigResource, ConfigSource, NewTopic, PartitionView, TopicView};
use crate::types::NodeId;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater topics create --bootstrap-server 127.0.0.1:9092 --topic orders \\\n    --partitions 6 --replication-factor 3 --config retention.ms=86400000"
)]
pub struct Topics {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the names of all topics.
    List(List),
    /// Make a topic.
    Create(Create),
    /// Print partitions, leaders, replicas and settings.
    Describe(Describe),
    /// Let a topic grow to more partitions.
    Alter(Alter),
    /// Delete a topic with its records.
    Delete(Delete),
}

#[derive(Args)]
#[command(after_help = "Example:\n  highwater topics list --bootstrap-server 127.0.0.1:9092")]
struct List {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// Leave out the cluster's own topics.
    #[arg(long)]
    exclude_internal: bool,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater topics create --bootstrap-server 127.0.0.1:9092 --topic orders --partitions 6"
)]
struct Create {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[arg(long)]
    topic: String,
    /// Left out: the broker's num.partitions.
    #[arg(long, value_name = "N")]
    partitions: Option<i32>,
    /// Left out: the broker's default.replication.factor.
    #[arg(long, value_name = "N")]
    replication_factor: Option<i16>,
    /// A setting of the topic; may be given several times.
    #[arg(long = "config", value_name = "KEY=VALUE", value_parser = key_value)]
    configs: Vec<(String, String)>,
    /// Do nothing where the topic exists.
    #[arg(long)]
    if_not_exists: bool,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater topics describe --bootstrap-server 127.0.0.1:9092 --topic orders"
)]
struct Describe {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// Left out: all topics.
    #[arg(long)]
    topic: Option<String>,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater topics alter --bootstrap-server 127.0.0.1:9092 --topic orders --partitions 12"
)]
struct Alter {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[arg(long)]
    topic: String,
    /// How many there shall be, counting those that exist.
    #[arg(long, value_name = "N")]
    partitions: i32,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater topics delete --bootstrap-server 127.0.0.1:9092 --topic orders"
)]
struct Delete {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[arg(long)]
    topic: String,
    /// Do nothing where the topic does not exist.
    #[arg(long)]
    if_exists: bool,
}

impl Topics {
    pub fn run(self) -> Result<(), Failure> {
        print(&run::run(move || self.action.text())?)
    }
}

impl Action {
    async fn text(self) -> Result<String, Failure> {
        match self {
            Action::List(list) => list.text().await,
            Action::Create(create) => create.text().await,
            Action::Describe(describe) => describe.text().await,
            Action::Alter(alter) => alter.text().await,
            Action::Delete(delete) => delete.text().await,
        }
    }
}

impl List {
    async fn text(self) -> Result<String, Failure> {
        let view = self.bootstrap.admin().await?.topics().await?;
        let shown = view
            .topics()
            .filter(|topic| !(self.exclude_internal && topic.internal));
        let mut names: Vec<String> = shown.map(|topic| format!("{}\n", topic.name)).collect();
        names.sort();
        Ok(names.concat())
    }
}

impl Create {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        if self.if_not_exists && admin.topics().await?.topic(&self.topic).is_some() {
            return Ok(String::new());
        }
        let topic = NewTopic {
            name: self.topic,
            partitions: self.partitions,
            replication_factor: self.replication_factor,
            assignment: Vec::new(),
            configs: self.configs,
        };
        admin.create_topic(&topic, false).await?;
        Ok(format!("Created topic {}.\n", topic.name))
    }
}

impl Describe {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        let mut topics = match &self.topic {
            Some(name) => vec![existing_topic(&admin, name).await?],
            None => admin.topics().await?.topics().cloned().collect(),
        };
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        let mut text = String::new();
        for topic in &topics {
            let settings = settings(&admin, topic).await?;
            describe(&mut text, topic, &settings)?;
        }
        Ok(text)
    }
}

impl Alter {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        existing_topic(&admin, &self.topic).await?;
        admin
            .create_partitions(&self.topic, self.partitions)
            .await?;
        Ok(String::new())
    }
}

impl Delete {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        if self.if_exists && admin.topics().await?.topic(&self.topic).is_none() {
            return Ok(String::new());
        }
        existing_topic(&admin, &self.topic).await?;
        admin.delete_topic(&self.topic).await?;
        Ok(String::new())
    }
}

/// What is not Kafka's default, as `key=value,key=value`.
async fn settings(admin: &Admin, topic: &TopicView) -> Result<String, Failure> {
    let resource = ConfigResource::Topic(topic.name.to_string());
    let mut entries = admin.describe_configs(&resource, &[]).await?;
    entries.retain(|entry| entry.source != ConfigSource::Default);
    let pair = |entry: &crate::client::ConfigEntry| {
        format!(
            "{}={}",
            entry.name,
            entry.value.as_deref().unwrap_or_default()
        )
    };
    Ok(entries.iter().map(pair).collect::<Vec<_>>().join(","))
}

/// One line for the topic and one for each partition, as Kafka's tool writes them.
fn describe(text: &mut String, topic: &TopicView, settings: &str) -> std::fmt::Result {
    let name = &topic.name;
    let replicas = topic
        .partitions
        .first()
        .map_or(0, |partition| partition.replicas.len());
    writeln!(
        text,
        "Topic: {name}\tTopicId: {}\tPartitionCount: {}\tReplicationFactor: {replicas}\tConfigs: {settings}",
        topic.id,
        topic.partitions.len(),
    )?;
    let mut partitions: Vec<&PartitionView> = topic.partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.index);
    for partition in partitions {
        let leader = partition
            .leader
            .map_or_else(|| "none".to_owned(), |node| node.0.to_string());
        writeln!(
            text,
            "\tTopic: {name}\tPartition: {}\tLeader: {leader}\tReplicas: {}\tIsr: {}",
            partition.index,
            nodes(&partition.replicas),
            nodes(&partition.in_sync),
        )?;
    }
    Ok(())
}

fn nodes(nodes: &[NodeId]) -> String {
    nodes
        .iter()
        .map(|node| node.0.to_string())
        .collect::<Vec<_>>()
        .join(",")
}
