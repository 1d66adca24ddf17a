//! The part of `highwater configs` that is about the quotas of users and clients, as Kafka's
//! kafka-configs has it.

use std::fmt::Write;

use clap::Args;

use super::Failure;
use crate::client::{Admin, DescribedQuotas, QuotaEntity, QuotaFilter};

const USER: &str = "user";
const CLIENT: &str = "client-id";

/// Whose quotas, beside `--entity-type` and `--entity-name`.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct QuotaEntityArgs {
    /// The user whose quotas these are.
    #[arg(long, value_name = "NAME", conflicts_with = "user_defaults")]
    user: Option<String>,
    /// The quotas of all users that have none of their own.
    #[arg(long)]
    user_defaults: bool,
    /// The client id whose quotas these are.
    #[arg(long, value_name = "ID", conflicts_with = "client_defaults")]
    client: Option<String>,
    /// The quotas of all client ids that have none of their own.
    #[arg(long)]
    client_defaults: bool,
}

impl QuotaEntityArgs {
    /// The entity, if any of the arguments is there.
    pub(super) fn entity(&self) -> Option<QuotaEntity> {
        let mut entity = QuotaEntity::new();
        for (kind, name, default) in [
            (USER, &self.user, self.user_defaults),
            (CLIENT, &self.client, self.client_defaults),
        ] {
            if name.is_some() || default {
                entity.insert(kind.to_owned(), name.clone());
            }
        }
        (!entity.is_empty()).then_some(entity)
    }
}

/// The entity of `--entity-type users` or `clients`; `None` as the name is the default.
pub(super) fn users(name: Option<String>) -> QuotaEntity {
    QuotaEntity::from([(USER.to_owned(), name)])
}

pub(super) fn clients(name: Option<String>) -> QuotaEntity {
    QuotaEntity::from([(CLIENT.to_owned(), name)])
}

/// The quotas of this entity.
pub(super) async fn describe(admin: &Admin, entity: &QuotaEntity) -> Result<String, Failure> {
    let filter: Vec<(&str, QuotaFilter)> = entity
        .iter()
        .map(|(kind, name)| {
            let named = name.clone().map_or(QuotaFilter::Default, QuotaFilter::Name);
            (kind.as_str(), named)
        })
        .collect();
    text(&admin.describe_quotas(&filter, true).await?)
}

/// The quotas of all users, or of all client ids.
pub(super) async fn describe_all(admin: &Admin, of: &QuotaEntity) -> Result<String, Failure> {
    let kinds = of.keys().map(|kind| (kind.as_str(), QuotaFilter::Any));
    let kinds: Vec<_> = kinds.collect();
    text(&admin.describe_quotas(&kinds, true).await?)
}

fn text(found: &[DescribedQuotas]) -> Result<String, Failure> {
    let mut text = String::new();
    for quotas in found {
        let values = quotas.values.iter();
        let values: Vec<String> = values
            .map(|(key, value)| format!("{key}={value:?}"))
            .collect();
        let entity = words(&quotas.entity);
        writeln!(text, "Quota configs for {entity} are {}", values.join(", "))?;
    }
    Ok(text)
}

/// An entity as Kafka's tool names it.
pub(super) fn words(entity: &QuotaEntity) -> String {
    let part = |(kind, what): (&str, &str)| {
        let name = entity.get(kind)?;
        Some(match name {
            Some(name) => format!("{what} '{name}'"),
            None => format!("the default {what}"),
        })
    };
    let parts = [(USER, "user-principal"), (CLIENT, CLIENT)];
    let parts: Vec<String> = parts.into_iter().filter_map(part).collect();
    parts.join(", ")
}

/// Sets and removes quotas.
pub(super) async fn alter(
    admin: &Admin,
    entity: &QuotaEntity,
    set: &[(String, String)],
    removed: &[String],
) -> Result<String, Failure> {
    let mut changes: Vec<(&str, Option<f64>)> = Vec::new();
    for (key, value) in set {
        let value = value
            .parse()
            .map_err(|_| format!("{key}: '{value}' is not a number"))?;
        changes.push((key, Some(value)));
    }
    changes.extend(removed.iter().map(|key| (key.as_str(), None)));
    admin.alter_quotas(entity, &changes).await?;
    Ok(format!(
        "Completed updating config for {}.\n",
        words(entity)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_are_named_as_kafkas_tool_names_them() {
        let args = QuotaEntityArgs {
            user: Some("bob".to_owned()),
            client_defaults: true,
            ..Default::default()
        };
        let entity = args.entity().unwrap();
        assert_eq!(
            words(&entity),
            "user-principal 'bob', the default client-id"
        );
        assert_eq!(words(&clients(Some("c".to_owned()))), "client-id 'c'");
        assert_eq!(QuotaEntityArgs::default().entity(), None);
        let quotas = DescribedQuotas {
            entity: users(None),
            values: [("producer_byte_rate".to_owned(), 1024.0)].into(),
        };
        assert_eq!(
            text(&[quotas]).unwrap(),
            "Quota configs for the default user-principal are producer_byte_rate=1024.0\n"
        );
    }
}
