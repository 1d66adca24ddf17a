//! The admin's part in client quotas: describe and change them. On the admin's executor.

use super::admin::{Admin, unanswered};
use super::error::{ClientError, check_with};
use crate::wire::Str;
use crate::wire::messages::alter_client_quotas_request as alter;
use crate::wire::messages::describe_client_quotas_request as describe;
use std::collections::BTreeMap;
use std::time::Duration;

/// Entity types (`user`, `client-id`, `ip`) with names; `None` is the default of a type.
pub type QuotaEntity = BTreeMap<String, Option<String>>;

/// The quotas of one entity.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedQuotas {
    pub entity: QuotaEntity,
    pub values: BTreeMap<String, f64>,
}

/// What a description is asked for of one entity type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaFilter {
    Name(String),
    Default,
    Any,
}

impl Admin {
    /// The quotas of the entities that have all these types; with `strict` only these.
    pub async fn describe_quotas(
        &self,
        filter: &[(&str, QuotaFilter)],
        strict: bool,
    ) -> Result<Vec<DescribedQuotas>, ClientError> {
        let components = filter.iter().map(|(kind, filter)| {
            let (match_type, name) = match filter {
                QuotaFilter::Name(name) => (0, Some(Str::from(name))),
                QuotaFilter::Default => (1, None),
                QuotaFilter::Any => (2, None),
            };
            describe::ComponentData {
                entity_type: (*kind).into(),
                match_type,
                r#match: name,
                ..Default::default()
            }
        });
        let request = describe::DescribeClientQuotasRequest {
            components: components.collect(),
            strict,
            ..Default::default()
        };
        self.retry(async || {
            let answer = self.cluster.call_any(&request, Duration::ZERO).await?;
            check_with(answer.error_code, answer.error_message.as_deref(), || {
                "describing quotas".to_owned()
            })?;
            let entries = answer.entries.unwrap_or_default();
            let told = entries.iter().map(|entry| {
                let parts = entry.entity.iter();
                let values = entry.values.iter();
                DescribedQuotas {
                    entity: parts
                        .map(|part| {
                            let name = part.entity_name.as_ref().map(Str::to_string);
                            (part.entity_type.to_string(), name)
                        })
                        .collect(),
                    values: values
                        .map(|value| (value.key.to_string(), value.value))
                        .collect(),
                }
            });
            Ok(told.collect())
        })
        .await
    }

    /// Sets quotas of an entity, or removes those without a value.
    pub async fn alter_quotas(
        &self,
        entity: &QuotaEntity,
        changes: &[(&str, Option<f64>)],
    ) -> Result<(), ClientError> {
        let parts = entity.iter().map(|(kind, name)| alter::EntityData {
            entity_type: kind.into(),
            entity_name: name.as_ref().map(Str::from),
            ..Default::default()
        });
        let ops = changes.iter().map(|(key, value)| alter::OpData {
            key: (*key).into(),
            value: value.unwrap_or_default(),
            remove: value.is_none(),
            ..Default::default()
        });
        let request = alter::AlterClientQuotasRequest {
            entries: vec![alter::EntryData {
                entity: parts.collect(),
                ops: ops.collect(),
                ..Default::default()
            }],
            ..Default::default()
        };
        self.retry(async || {
            let answer = self.cluster.call_any(&request, Duration::ZERO).await?;
            let entry = answer
                .entries
                .first()
                .ok_or_else(|| unanswered("ALTER_CLIENT_QUOTAS"))?;
            check_with(entry.error_code, entry.error_message.as_deref(), || {
                "changing quotas".to_owned()
            })
        })
        .await
    }
}
