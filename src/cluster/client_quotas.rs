//! Client quotas: AlterClientQuotas (key 49, v0-1), DescribeClientQuotas (48, v0-1), and which
//! quota holds for a client. Pure: the image and the request in; records, answers, tables out.
//!
//! Only what brokers keep is taken: the byte rates of producers and consumers. A quota that would
//! be stored and hold nobody back is refused.

use super::image::Image;
use super::record::MetadataRecord;
use crate::wire::messages::alter_client_quotas_request as alter;
use crate::wire::messages::alter_client_quotas_response as altered;
use crate::wire::messages::client_quota_record as record;
use crate::wire::messages::describe_client_quotas_request as describe;
use crate::wire::messages::describe_client_quotas_response as described;
use crate::wire::{ErrorCode, Str};
use std::collections::BTreeMap;

const USER: &str = "user";
const CLIENT_ID: &str = "client-id";
const IP: &str = "ip";

pub const PRODUCER_BYTE_RATE: &str = "producer_byte_rate";
pub const CONSUMER_BYTE_RATE: &str = "consumer_byte_rate";
/// Kafka's other quotas, of users and clients, and of addresses.
const NOT_KEPT: [&str; 2] = ["request_percentage", "controller_mutation_rate"];
const NOT_KEPT_OF_IP: &str = "connection_creation_rate";

/// How far from a whole number a rate may be.
const FRACTION_MAX: f64 = 1e-6;

/// Match types of DescribeClientQuotas.
const EXACT: i8 = 0;
const DEFAULT: i8 = 1;
const ANY: i8 = 2;

/// Entity types with names; `None` is the default of a type.
pub type Entity = BTreeMap<Str, Option<Str>>;

type Refusal = (ErrorCode, String);

fn invalid<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err((ErrorCode::INVALID_REQUEST, why.into()))
}

/// An entity as records and requests have it, whatever its order there.
pub fn entity_of<'a>(parts: impl Iterator<Item = (&'a Str, &'a Option<Str>)>) -> Entity {
    parts
        .map(|(kind, name)| (kind.clone(), name.clone()))
        .collect()
}

/// The entity of a record.
pub(super) fn of(quota: &record::ClientQuotaRecord) -> Entity {
    let parts = quota.entity.iter();
    entity_of(parts.map(|part| (&part.entity_type, &part.entity_name)))
}

impl Image {
    /// Every entity with its quotas.
    pub fn client_quotas(&self) -> BTreeMap<Entity, BTreeMap<Str, f64>> {
        let mut all: BTreeMap<Entity, BTreeMap<Str, f64>> = BTreeMap::new();
        for quota in self.quota_records() {
            let quotas = all.entry(of(quota)).or_default();
            quotas.insert(quota.key.clone(), quota.value);
        }
        all
    }
}

fn check_entity(parts: &[alter::EntityData]) -> Result<Entity, Refusal> {
    let entity = entity_of(
        parts
            .iter()
            .map(|part| (&part.entity_type, &part.entity_name)),
    );
    if parts.is_empty() {
        return invalid("Invalid empty client quota entity");
    }
    if entity.len() < parts.len() {
        return invalid("Client quota entity names a type more than once");
    }
    for (kind, name) in &entity {
        if ![USER, CLIENT_ID, IP].contains(&&**kind) {
            return invalid(format!("Unhandled client quota entity type: {kind}"));
        }
        if name.as_ref().is_some_and(|name| name.is_empty()) {
            return invalid(format!("Empty {kind} not supported"));
        }
    }
    if entity.contains_key(IP) && entity.len() > 1 {
        return invalid(format!("Invalid quota entity combination: {entity:?}"));
    }
    Ok(entity)
}

fn check_value(entity: &Entity, key: &str, value: f64) -> Result<(), Refusal> {
    let of_ip = entity.contains_key(IP);
    let known = match key {
        PRODUCER_BYTE_RATE | CONSUMER_BYTE_RATE => !of_ip,
        NOT_KEPT_OF_IP if of_ip => return not_kept(key),
        other if NOT_KEPT.contains(&other) && !of_ip => return not_kept(key),
        _ => false,
    };
    if !known {
        return invalid(format!("Invalid configuration key {key}"));
    }
    if value.is_nan() || value <= 0.0 {
        return invalid(format!("Quota {key} must be greater than 0"));
    }
    if value > i64::MAX as f64 {
        return invalid(format!("Proposed value for {key} is too large for a LONG."));
    }
    if (value % 1.0).abs() > FRACTION_MAX {
        return invalid(format!("{key} cannot be a fractional value."));
    }
    Ok(())
}

fn not_kept(key: &str) -> Result<(), Refusal> {
    invalid(format!("Quota {key} is not enforced by this broker"))
}

/// One entity's changes as records.
fn alter_one(image: &Image, entry: &alter::EntryData) -> Result<Vec<MetadataRecord>, Refusal> {
    let entity = check_entity(&entry.entity)?;
    let quotas = image.client_quotas();
    let current = quotas.get(&entity);
    let mut records = Vec::new();
    for op in &entry.ops {
        let before = current.and_then(|current| current.get(&op.key)).copied();
        let changes = if op.remove {
            before.is_some()
        } else {
            check_value(&entity, &op.key, op.value)?;
            before != Some(op.value)
        };
        if changes {
            let parts = entity.iter().map(|(kind, name)| record::EntityData {
                entity_type: kind.clone(),
                entity_name: name.clone(),
                ..Default::default()
            });
            records.push(MetadataRecord::from(record::ClientQuotaRecord {
                entity: parts.collect(),
                key: op.key.clone(),
                value: if op.remove { 0.0 } else { op.value },
                remove: op.remove,
                ..Default::default()
            }));
        }
    }
    Ok(records)
}

/// The answer where every entity has the same outcome.
pub fn all_refused(
    request: &alter::AlterClientQuotasRequest,
    error: ErrorCode,
) -> altered::AlterClientQuotasResponse {
    let entries = request.entries.iter();
    altered::AlterClientQuotasResponse {
        entries: entries
            .map(|entry| answer(entry, Err((error, error.message().to_owned()))))
            .collect(),
        ..Default::default()
    }
}

fn answer(entry: &alter::EntryData, outcome: Result<(), Refusal>) -> altered::EntryData {
    let (code, why) = match outcome {
        Ok(()) => (ErrorCode::NONE, None),
        Err((code, why)) => (code, Some(Str::from(why))),
    };
    let parts = entry.entity.iter().map(|part| altered::EntityData {
        entity_type: part.entity_type.clone(),
        entity_name: part.entity_name.clone(),
        ..Default::default()
    });
    altered::EntryData {
        error_code: code.0,
        error_message: why,
        entity: parts.collect(),
        ..Default::default()
    }
}

pub fn alter(
    image: &Image,
    request: &alter::AlterClientQuotasRequest,
) -> (Vec<MetadataRecord>, altered::AlterClientQuotasResponse) {
    let mut records = Vec::new();
    let mut response = altered::AlterClientQuotasResponse::default();
    for (at, entry) in request.entries.iter().enumerate() {
        let named = |entry: &alter::EntryData| {
            entity_of(
                entry
                    .entity
                    .iter()
                    .map(|part| (&part.entity_type, &part.entity_name)),
            )
        };
        let twice = request.entries[..at]
            .iter()
            .any(|one| named(one) == named(entry));
        let outcome = match twice {
            true => invalid("The entity appears more than once"),
            false => alter_one(image, entry),
        };
        response
            .entries
            .push(answer(entry, outcome.map(|new| records.extend(new))));
    }
    if request.validate_only {
        records.clear();
    }
    (records, response)
}

/// What a filter wants of one entity type.
enum Wanted {
    Name(Option<Str>),
    Any,
}

fn filter(
    request: &describe::DescribeClientQuotasRequest,
) -> Result<BTreeMap<Str, Wanted>, Refusal> {
    let mut wanted = BTreeMap::new();
    for component in &request.components {
        let kind = &component.entity_type;
        if kind.is_empty() {
            return invalid("Unexpected empty filter component entity type.");
        }
        if ![USER, CLIENT_ID, IP].contains(&&**kind) {
            let why = format!("Custom entity type {kind} not supported");
            return Err((ErrorCode::UNSUPPORTED_VERSION, why));
        }
        let one = match (component.match_type, &component.r#match) {
            (EXACT, Some(name)) => Wanted::Name(Some(name.clone())),
            (EXACT, None) => {
                return invalid(
                    "Request specified MATCH_TYPE_EXACT, but set match string to null.",
                );
            }
            (DEFAULT, None) => Wanted::Name(None),
            (ANY, None) => Wanted::Any,
            (DEFAULT | ANY, Some(_)) => {
                return invalid(
                    "Request specified a match type without a name, but set match string.",
                );
            }
            (other, _) => return invalid(format!("Unknown match type {other}")),
        };
        if wanted.insert(kind.clone(), one).is_some() {
            return invalid(format!(
                "Entity type {kind} cannot appear more than once in the filter."
            ));
        }
    }
    if wanted.contains_key(IP) && wanted.len() > 1 {
        return invalid("Invalid entity filter component combination.");
    }
    Ok(wanted)
}

pub fn describe(
    image: &Image,
    request: &describe::DescribeClientQuotasRequest,
) -> described::DescribeClientQuotasResponse {
    let wanted = match filter(request) {
        Ok(wanted) => wanted,
        Err((code, why)) => {
            return described::DescribeClientQuotasResponse {
                error_code: code.0,
                error_message: Some(Str::from(why)),
                entries: None,
                ..Default::default()
            };
        }
    };
    let matches = |entity: &Entity| {
        let mut wanted_types = wanted.iter();
        let all = wanted_types.all(|(kind, wanted)| match (entity.get(kind), wanted) {
            (Some(name), Wanted::Name(wanted)) => name == wanted,
            (Some(_), Wanted::Any) => true,
            (None, _) => false,
        });
        all && (!request.strict || entity.len() == wanted.len())
    };
    let found = image.client_quotas().into_iter();
    let entries = found
        .filter(|(entity, _)| matches(entity))
        .map(|(entity, values)| described::EntryData {
            entity: entity
                .into_iter()
                .map(|(entity_type, entity_name)| described::EntityData {
                    entity_type,
                    entity_name,
                    ..Default::default()
                })
                .collect(),
            values: values
                .into_iter()
                .map(|(key, value)| described::ValueData {
                    key,
                    value,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        });
    described::DescribeClientQuotasResponse {
        entries: Some(entries.collect()),
        ..Default::default()
    }
}

/// Who shares a quota: a user, a client id, or the two together ("" where it does not matter).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sharer {
    pub user: Str,
    pub client: Str,
}

/// The quotas of one key, looked up by client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuotaTable {
    limits: BTreeMap<Entity, f64>,
}

impl QuotaTable {
    pub fn new(image: &Image, key: &str) -> QuotaTable {
        let all = image.client_quotas().into_iter();
        QuotaTable {
            limits: all
                .filter_map(|(entity, quotas)| Some((entity, *quotas.get(key)?)))
                .collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// The quota that holds for a client, bytes a second, and who shares it: the most special one.
    pub fn find(&self, user: &str, client: &str) -> Option<(f64, Sharer)> {
        let named = |name: &str| Some(Some(Str::from(name)));
        let default = Some(None);
        let (user_named, client_named) = (named(user), named(client));
        for (of_user, of_client) in [
            (&user_named, &client_named),
            (&user_named, &default),
            (&user_named, &None),
            (&default, &client_named),
            (&default, &default),
            (&default, &None),
            (&None, &client_named),
            (&None, &default),
        ] {
            let parts = [(USER, of_user), (CLIENT_ID, of_client)];
            let entity: Entity = parts
                .into_iter()
                .filter_map(|(kind, name)| Some((Str::from_static(kind), name.clone()?)))
                .collect();
            if let Some(limit) = self.limits.get(&entity) {
                let or_none = |part: &Option<Option<Str>>, name: &str| match part {
                    Some(_) => Str::from(name),
                    None => Str::default(),
                };
                let sharer = Sharer {
                    user: or_none(of_user, user),
                    client: or_none(of_client, client),
                };
                return Some((*limit, sharer));
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "client_quotas_tests.rs"]
mod tests;
