//! `highwater configs`: the settings of topics, brokers and groups, and the quotas of clients.

use std::fmt::Write;

use clap::{Args, Subcommand, ValueEnum};

use super::bootstrap::{Bootstrap, existing_topic};
use super::key_value::settings;
use super::quota_entity::{self, QuotaEntityArgs};
use super::{Failure, print, run};
use crate::client::{Admin, AlterOp, ConfigEntry, ConfigResource, ConfigSource, QuotaEntity};
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
    #[arg(long, required_unless_present_any = ["user", "user_defaults", "client", "client_defaults"])]
    entity_type: Option<EntityType>,
    /// The topic, the broker's id, the group, the user or the client id.
    #[arg(long, value_name = "NAME")]
    entity_name: Option<String>,
    /// The default of all brokers, users or clients.
    #[arg(long, conflicts_with = "entity_name")]
    entity_default: bool,
    #[command(flatten)]
    quota: QuotaEntityArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EntityType {
    Topics,
    Brokers,
    Groups,
    Users,
    Clients,
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
        let kind = self
            .entity_type
            .ok_or("whose settings? --entity-type is missing")?;
        match (kind, &self.entity_name) {
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
            (EntityType::Brokers, None) if self.entity_default => Ok((
                ConfigResource::Broker(None),
                "brokers in the cluster".to_owned(),
            )),
            (EntityType::Groups, Some(name)) => {
                Ok((ConfigResource::Group(name.clone()), format!("group {name}")))
            }
            (_, None) if self.entity_default => Err("only brokers have a default entity".into()),
            (_, None) => Err("whose settings? --entity-name is missing".into()),
            (EntityType::Users | EntityType::Clients, _) => Err("these have quotas only".into()),
        }
    }

    /// The entity whose quotas are meant, if they are.
    fn quota_entity(&self) -> Option<QuotaEntity> {
        let name = || self.entity_name.clone();
        match self.entity_type {
            Some(EntityType::Users) => Some(quota_entity::users(name())),
            Some(EntityType::Clients) => Some(quota_entity::clients(name())),
            _ => self.quota.entity(),
        }
    }

    /// `--entity-type users` without a name: all of them.
    fn is_open(&self) -> bool {
        self.entity_type.is_some() && self.entity_name.is_none() && !self.entity_default
    }
}

impl Describe {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        if let Some(entity) = self.entity.quota_entity() {
            return match self.entity.is_open() {
                true => quota_entity::describe_all(&admin, &entity).await,
                false => quota_entity::describe(&admin, &entity).await,
            };
        }
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
        if let Some(entity) = self.entity.quota_entity() {
            if self.entity.is_open() {
                return Err("whose quotas? --entity-name or --entity-default is missing".into());
            }
            return quota_entity::alter(&admin, &entity, &added, &self.delete_config).await;
        }
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
