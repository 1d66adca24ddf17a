//! Brokers as the metadata log registers them. Plain values of the image.

use super::directories::{LOST, is_directory};
use crate::types::{BrokerEpoch, NodeId, Uuid};
use crate::wire::Str;
use crate::wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;
use crate::wire::messages::register_broker_record::{
    BrokerEndpoint, BrokerFeature, RegisterBrokerRecord,
};

/// One listener of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub listener: String,
    pub host: String,
    pub port: u16,
    /// 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL.
    pub security_protocol: i16,
}

/// The levels of a feature that a node supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureRange {
    pub name: String,
    pub min: i16,
    pub max: i16,
}

/// One registered broker.
#[derive(Clone, Debug, PartialEq)]
pub struct Broker {
    pub id: NodeId,
    /// The offset of its registration.
    pub epoch: BrokerEpoch,
    /// One life of its process.
    pub incarnation: Uuid,
    pub endpoints: Vec<Endpoint>,
    pub rack: Option<Str>,
    /// A fenced broker leads nothing and is in no in-sync set.
    pub fenced: bool,
    pub in_controlled_shutdown: bool,
    pub log_dirs: Vec<Uuid>,
    /// Directories that take no new replicas (KIP-1066).
    pub cordoned_dirs: Vec<Uuid>,
    pub features: Vec<FeatureRange>,
    /// Where its registration stands in the log: what a broker must have applied to be caught up.
    pub registered_at: i64,
}

impl Broker {
    /// The registration that stands at `offset`. Offsets inside a snapshot count its own records;
    /// the epoch, given out just before the record was written, is then the better word.
    pub fn from_record(record: &RegisterBrokerRecord, offset: i64) -> Broker {
        Broker {
            id: NodeId(record.broker_id),
            registered_at: offset.max(record.broker_epoch),
            epoch: BrokerEpoch(record.broker_epoch),
            incarnation: record.incarnation_id,
            endpoints: record
                .end_points
                .iter()
                .map(|point| Endpoint {
                    listener: point.name.to_string(),
                    host: point.host.to_string(),
                    port: point.port,
                    security_protocol: point.security_protocol,
                })
                .collect(),
            rack: record.rack.as_ref().map(Str::detached),
            fenced: record.fenced,
            in_controlled_shutdown: record.in_controlled_shutdown,
            log_dirs: record.log_dirs.clone(),
            cordoned_dirs: record.cordoned_log_dirs.clone().unwrap_or_default(),
            features: record
                .features
                .iter()
                .map(|feature| FeatureRange {
                    name: feature.name.to_string(),
                    min: feature.min_supported_version,
                    max: feature.max_supported_version,
                })
                .collect(),
        }
    }

    /// The record that registers the broker as it is now.
    pub fn to_record(&self) -> RegisterBrokerRecord {
        let end_points = self.endpoints.iter().map(|point| BrokerEndpoint {
            name: Str::from(point.listener.as_str()),
            host: Str::from(point.host.as_str()),
            port: point.port,
            security_protocol: point.security_protocol,
            ..Default::default()
        });
        let features = self.features.iter().map(|feature| BrokerFeature {
            name: Str::from(feature.name.as_str()),
            min_supported_version: feature.min,
            max_supported_version: feature.max,
            ..Default::default()
        });
        RegisterBrokerRecord {
            broker_id: self.id.0,
            incarnation_id: self.incarnation,
            broker_epoch: self.epoch.0,
            end_points: end_points.collect(),
            features: features.collect(),
            rack: self.rack.clone(),
            fenced: self.fenced,
            in_controlled_shutdown: self.in_controlled_shutdown,
            log_dirs: self.log_dirs.clone(),
            cordoned_log_dirs: (!self.cordoned_dirs.is_empty()).then(|| self.cordoned_dirs.clone()),
            ..Default::default()
        }
    }

    pub(super) fn change(&mut self, change: &BrokerRegistrationChangeRecord) {
        match change.fenced {
            1 => self.fenced = true,
            -1 => self.fenced = false,
            _ => {}
        }
        if change.in_controlled_shutdown == 1 {
            self.in_controlled_shutdown = true;
        }
        if !change.log_dirs.is_empty() {
            self.log_dirs.clone_from(&change.log_dirs);
        }
        if let Some(cordoned) = &change.cordoned_log_dirs {
            self.cordoned_dirs.clone_from(cordoned);
        }
    }

    /// Whether it takes part: not fenced and not shutting down.
    pub fn is_active(&self) -> bool {
        !self.fenced && !self.in_controlled_shutdown
    }

    /// Whether a replica in `directory` can be served. What the broker has not placed yet counts
    /// as online, and so does everything on a broker that does not tell its directories.
    pub fn has_online_dir(&self, directory: Uuid) -> bool {
        directory != LOST
            && (!is_directory(directory)
                || self.log_dirs.is_empty()
                || self.log_dirs.contains(&directory))
    }

    /// Whether new replicas may be placed on it.
    pub fn takes_new_replicas(&self) -> bool {
        self.log_dirs.is_empty()
            || self
                .log_dirs
                .iter()
                .any(|dir| !self.cordoned_dirs.contains(dir))
    }

    /// Host and port on a listener.
    pub fn endpoint(&self, listener: &str) -> Option<(&str, u16)> {
        self.endpoints
            .iter()
            .find(|endpoint| endpoint.listener == listener)
            .map(|endpoint| (endpoint.host.as_str(), endpoint.port))
    }
}
