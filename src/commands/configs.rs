//! `highwater configs`: the settings of topics, brokers and groups.

use std::fmt::Write;

use clap::{Args, Subcommand, ValueEnum};

use super::bootstrap::{Bootstrap, existing_topic};
use super::key_value::settings;
use super::{Failure, print, run};
use crate::client::{Admin, AlterOp, ConfigEntry, ConfigResource, ConfigSource};
use crate::types::NodeId;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater configs alter --bootstrap-server 127.0.0.1:9092 --entity-type topics \\\n    --entity-name orders --add-config retention.ms=3600000,cleanup.policy=[compact,delete]"
)]
pub struct Configs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print settings with the places where their values come from.
    Describe(Describe),
    /// Change some settings and leave the others.
    Alter(Alter),
}

#[derive(Args)]
struct Entity {
    /// Whose settings.
    #[arg(long)]
    entity_type: EntityType,
    /// The topic, the broker's id or the group.
    #[arg(long, value_name = "NAME", required_unless_present = "entity_default")]
    entity_name: Option<String>,
    /// The default of all brokers.
    #[arg(long, conflicts_with = "entity_name")]
    entity_default: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EntityType {
    Topics,
    Brokers,
    Groups,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater configs describe --bootstrap-server 127.0.0.1:9092 --entity-type brokers --entity-name 1 --all"
)]
struct Describe {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[command(flatten)]
    entity: Entity,
    /// Also what nobody has set for this entity.
    #[arg(long)]
    all: bool,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater configs alter --bootstrap-server 127.0.0.1:9092 --entity-type topics \\\n    --entity-name orders --add-config retention.ms=3600000 --delete-config segment.ms"
)]
struct Alter {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[command(flatten)]
    entity: Entity,
    /// Settings with new values, separated by commas; a list of values in brackets.
    #[arg(
        long,
        value_name = "KEY=VALUE[,...]",
        required_unless_present = "delete_config"
    )]
    add_config: Option<String>,
    /// Settings that go back to their defaults, separated by commas.
    #[arg(long, value_name = "KEY[,...]", value_delimiter = ',')]
    delete_config: Vec<String>,
}

impl Configs {
    pub fn run(self) -> Result<(), Failure> {
        print(&run::run(move || async move {
            match self.action {
                Action::Describe(describe) => describe.text().await,
                Action::Alter(alter) => alter.text().await,
            }
        })?)
    }
}

impl Entity {
    /// The entity as a resource and in words.
    async fn find(&self, admin: &Admin) -> Result<(ConfigResource, String), Failure> {
        match (self.entity_type, &self.entity_name) {
            (EntityType::Topics, Some(name)) => {
                existing_topic(admin, name).await?;
                Ok((ConfigResource::Topic(name.clone()), format!("topic {name}")))
            }
            (EntityType::Brokers, Some(name)) => {
                let node = name.parse().map(NodeId);
                let node = node.map_err(|_| format!("'{name}' is not the id of a broker"))?;
                let view = admin.topics().await?;
                if view.broker(node).is_none() {
                    return Err(format!("broker {name} is not part of the cluster").into());
                }
                Ok((ConfigResource::Broker(Some(node)), format!("broker {name}")))
            }
            (EntityType::Brokers, None) => Ok((
                ConfigResource::Broker(None),
                "brokers in the cluster".to_owned(),
            )),
            (EntityType::Groups, Some(name)) => {
                Ok((ConfigResource::Group(name.clone()), format!("group {name}")))
            }
            (_, None) => Err("only brokers have a default entity".into()),
        }
    }
}

impl Describe {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        let (resource, words) = self.entity.find(&admin).await?;
        let mut entries = admin.describe_configs(&resource, &[]).await?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let own = match resource {
            ConfigResource::Topic(_) => ConfigSource::Topic,
            ConfigResource::Group(_) => ConfigSource::Group,
            ConfigResource::Broker(None) => ConfigSource::DynamicDefaultBroker,
            _ => ConfigSource::DynamicBroker,
        };
        if !self.all {
            // What is set for all brokers holds for this one too; topics only inherit it.
            let shared = matches!(resource, ConfigResource::Broker(_));
            let is_own =
                |source| source == own || (shared && source == ConfigSource::DynamicDefaultBroker);
            let set =
                |entry: &ConfigEntry| entry.synonyms.iter().any(|synonym| is_own(synonym.source));
            entries.retain(|entry| is_own(entry.source) || set(entry));
        }
        let which = match (self.all, self.entity.entity_default) {
            (true, _) => "All",
            (false, true) => "Default",
            (false, false) => "Dynamic",
        };
        let mut text = format!("{which} configs for {words} are:\n");
        for entry in &entries {
            line(&mut text, entry)?;
        }
        Ok(text)
    }
}

impl Alter {
    async fn text(self) -> Result<String, Failure> {
        let added = self
            .add_config
            .as_deref()
            .map(settings)
            .transpose()?
            .unwrap_or_default();
        let admin = self.bootstrap.admin().await?;
        let (resource, words) = self.entity.find(&admin).await?;
        let set = added
            .iter()
            .map(|(key, value)| (key.as_str(), AlterOp::Set(value.clone())));
        let deleted = self
            .delete_config
            .iter()
            .map(|key| (key.as_str(), AlterOp::Delete));
        let changes: Vec<(&str, AlterOp)> = set.chain(deleted).collect();
        admin.alter_configs(&resource, &changes).await?;
        Ok(format!("Completed updating config for {words}.\n"))
    }
}

/// A setting, as Kafka's tool writes it.
fn line(text: &mut String, entry: &ConfigEntry) -> std::fmt::Result {
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "null".to_owned());
    let synonyms = entry.synonyms.iter().map(|synonym| {
        format!(
            "{}:{}={}",
            synonym.source.name(),
            synonym.name,
            shown(&synonym.value)
        )
    });
    writeln!(
        text,
        "  {}={} sensitive={} synonyms={{{}}}",
        entry.name,
        shown(&entry.value),
        entry.sensitive,
        synonyms.collect::<Vec<_>>().join(", "),
    )
}
