//! `highwater topics`: topics and their partitions.

use clap::{Args, Subcommand};

use super::bootstrap::{Bootstrap, existing_topic};
use super::describe_topics::Describe;
use super::key_value::key_value;
use super::{Failure, print, run};
use crate::client::NewTopic;

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
