//! BrokerRegistration (key 62, v0-4): which brokers may join, and what an earlier incarnation
//! leaves behind. Pure: the image, the sessions and the request in; records and the answer out.

use super::brokers::Broker;
use super::directories::is_directory;
use super::draft::Draft;
use super::features::METADATA_VERSION;
use super::fencing;
use super::image::Image;
use super::record::MetadataRecord;
use super::sessions::Sessions;
use crate::config::BrokerConfig;
use crate::rt::Instant;
use crate::types::{NodeId, Offset, Uuid};
use crate::wire::ErrorCode;
use crate::wire::messages::broker_registration_request::{BrokerRegistrationRequest, Feature};
use crate::wire::messages::broker_registration_response::BrokerRegistrationResponse;
use crate::wire::messages::register_broker_record::{
    BrokerEndpoint, BrokerFeature, RegisterBrokerRecord,
};
use ahash::AHashSet;

/// First version in which a broker says how its last life ended.
const CLEAN_SHUTDOWN_VERSION: i16 = 3;
/// Kafka keeps this one outside the metadata features; it is the quorum's own.
const KRAFT_VERSION: &str = "kraft.version";

/// What a registration is decided with.
pub(super) struct Asked<'a> {
    pub cluster_id: &'a str,
    pub version: i16,
    pub request: &'a BrokerRegistrationRequest,
}

pub(super) fn refused(error: ErrorCode) -> BrokerRegistrationResponse {
    BrokerRegistrationResponse {
        error_code: error.0,
        ..Default::default()
    }
}

/// `next_offset`: where the change will stand in the log; the epoch of a new incarnation.
pub(super) fn decide(
    image: &Image,
    config: &BrokerConfig,
    sessions: &mut Sessions,
    (now, next_offset): (Instant, Offset),
    asked: &Asked<'_>,
) -> (Vec<MetadataRecord>, BrokerRegistrationResponse) {
    let request = asked.request;
    let node = NodeId(request.broker_id);
    let existing = image.broker(node);
    if let Err((error, why)) = check(image, sessions, now, asked, existing) {
        tracing::warn!(broker = node.0, %error, why, "broker not registered");
        return (Vec::new(), refused(error));
    }
    let mut record = RegisterBrokerRecord {
        broker_id: node.0,
        incarnation_id: request.incarnation_id,
        broker_epoch: next_offset.0,
        end_points: request
            .listeners
            .iter()
            .map(|listener| BrokerEndpoint {
                name: listener.name.detached(),
                host: listener.host.detached(),
                port: listener.port,
                security_protocol: listener.security_protocol,
                ..Default::default()
            })
            .collect(),
        features: request
            .features
            .iter()
            .map(|feature| BrokerFeature {
                name: feature.name.detached(),
                min_supported_version: feature.min_supported_version,
                max_supported_version: feature.max_supported_version,
                ..Default::default()
            })
            .collect(),
        rack: request.rack.as_ref().map(|rack| rack.detached()),
        log_dirs: request.log_dirs.clone(),
        ..Default::default()
    };
    let mut draft = Draft::new(image, config);
    match existing.filter(|broker| broker.incarnation == request.incarnation_id) {
        Some(same) => {
            record.broker_epoch = same.epoch.0;
            record.fenced = same.fenced;
            record.in_controlled_shutdown = same.in_controlled_shutdown;
            if !same.cordoned_dirs.is_empty() {
                record.cordoned_log_dirs = Some(same.cordoned_dirs.clone());
            }
        }
        None => {
            // Only the epoch of the registered life, written when that life had closed all its
            // logs, proves a clean stop.
            let was_clean = asked.version >= CLEAN_SHUTDOWN_VERSION
                && existing.is_some_and(|broker| broker.epoch.0 == request.previous_broker_epoch);
            fencing::end_incarnation(&mut draft, node, was_clean);
            sessions.forget(node);
        }
    }
    let broker_epoch = record.broker_epoch;
    draft.push(record);
    let response = BrokerRegistrationResponse {
        broker_epoch,
        ..Default::default()
    };
    (draft.into_records(), response)
}

/// Kafka's checks, in its order.
fn check(
    image: &Image,
    sessions: &Sessions,
    now: Instant,
    asked: &Asked<'_>,
    existing: Option<&Broker>,
) -> Result<(), (ErrorCode, String)> {
    let request = asked.request;
    let refuse = |error: ErrorCode, why: String| Err((error, why));
    if *request.cluster_id != *asked.cluster_id {
        return refuse(
            ErrorCode::INCONSISTENT_CLUSTER_ID,
            format!(
                "expected cluster id {}, but got {}",
                asked.cluster_id, request.cluster_id
            ),
        );
    }
    if let Some(broker) = existing
        && broker.incarnation != request.incarnation_id
        && sessions.is_alive(broker, now)
    {
        return refuse(
            ErrorCode::DUPLICATE_BROKER_REGISTRATION,
            "another broker is registered under this id; after a restart this resolves itself when the earlier session has run out".into(),
        );
    }
    if request.is_migrating_zk_broker {
        return refuse(
            ErrorCode::BROKER_ID_NOT_REGISTERED,
            "brokers that migrate from ZooKeeper are not registered".into(),
        );
    }
    check_directories(image, NodeId(request.broker_id), &request.log_dirs)?;
    let declared = |name: &str| {
        request
            .features
            .iter()
            .find(|feature| *feature.name == *name)
    };
    for feature in &request.features {
        check_feature(image, feature)?;
    }
    if declared(METADATA_VERSION).is_none() {
        return refuse(
            ErrorCode::INVALID_REGISTRATION,
            format!("the request's features do not contain {METADATA_VERSION}"),
        );
    }
    for (name, _) in image.finalized_features() {
        if declared(name).is_none() && name != KRAFT_VERSION {
            let without = Feature {
                name: name.into(),
                ..Default::default()
            };
            check_feature(image, &without)?;
        }
    }
    Ok(())
}

fn check_directories(
    image: &Image,
    node: NodeId,
    directories: &[Uuid],
) -> Result<(), (ErrorCode, String)> {
    let refuse = |why: String| Err((ErrorCode::INVALID_REGISTRATION, why));
    if directories.is_empty() {
        return refuse("the request names no log directory".into());
    }
    if directories.iter().any(|id| !is_directory(*id)) {
        return refuse("the request has a reserved directory id".into());
    }
    let mut seen = AHashSet::new();
    if !directories.iter().all(|id| seen.insert(*id)) {
        return refuse("the request names a directory id twice".into());
    }
    for other in image.brokers().filter(|broker| broker.id != node) {
        if let Some(taken) = other.log_dirs.iter().find(|id| seen.contains(*id)) {
            return refuse(format!(
                "broker {} is registered with directory {taken} already",
                other.id.0
            ));
        }
    }
    Ok(())
}

fn check_feature(image: &Image, feature: &Feature) -> Result<(), (ErrorCode, String)> {
    if *feature.name == *KRAFT_VERSION {
        return Ok(());
    }
    let level = image.feature(&feature.name);
    if (feature.min_supported_version..=feature.max_supported_version).contains(&level) {
        return Ok(());
    }
    let why = format!(
        "the broker does not support level {level} of {}, but {} to {}",
        feature.name, feature.min_supported_version, feature.max_supported_version
    );
    Err((ErrorCode::UNSUPPORTED_VERSION, why))
}

#[cfg(test)]
#[path = "registration_tests.rs"]
mod tests;
