//! Brokers as the metadata log registers them. Plain values of the image.

use crate::types::{BrokerEpoch, NodeId, Uuid};
use crate::wire::Str;
use crate::wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;
use crate::wire::messages::register_broker_record::RegisterBrokerRecord;

/// One listener of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub listener: String,
    pub host: String,
    pub port: u16,
    /// 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL.
    pub security_protocol: i16,
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
}

impl Broker {
    pub fn from_record(record: &RegisterBrokerRecord) -> Broker {
        Broker {
            id: NodeId(record.broker_id),
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
    }

    /// Host and port on a listener.
    pub fn endpoint(&self, listener: &str) -> Option<(&str, u16)> {
        self.endpoints
            .iter()
            .find(|endpoint| endpoint.listener == listener)
            .map(|endpoint| (endpoint.host.as_str(), endpoint.port))
    }
}
