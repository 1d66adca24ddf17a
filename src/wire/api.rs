//! Which APIs there are, at which versions, on which listener, and the headers around them.
//! Facts of the schemas; what a broker advertises beyond them (the minimum of Produce, forwarded
//! APIs, telemetry) is decided by whoever answers ApiVersions.

use std::fmt;

pub use super::messages::APIS;

/// The number of an API (protocol: `request_api_key`, int16); may be one that does not exist.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiKey(pub i16);

/// What the schemas say about one API. Version ranges are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiInfo {
    pub key: i16,
    /// As Kafka's request log prints it, e.g. `OFFSET_COMMIT`.
    pub name: &'static str,
    pub min_version: i16,
    /// The last version the codec knows.
    pub max_version: i16,
    /// The last version that is spoken without `unstable.api.versions.enable`.
    pub max_stable_version: i16,
    pub request_flexible_from: Option<i16>,
    pub response_flexible_from: Option<i16>,
    pub on_broker: bool,
    pub on_controller: bool,
}

/// Who listens: brokers and controllers speak different sets of APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    Broker,
    Controller,
}

impl ApiKey {
    pub fn info(self) -> Option<&'static ApiInfo> {
        APIS.binary_search_by_key(&self.0, |api| api.key)
            .ok()
            .map(|i| &APIS[i])
    }

    /// As Kafka's request log prints it; `UNKNOWN` for a key that does not exist.
    pub fn name(self) -> &'static str {
        self.info().map_or("UNKNOWN", |api| api.name)
    }

    /// The versions spoken on such a listener; `None` if the API is not.
    pub fn versions(self, on: ListenerKind, unstable: bool) -> Option<(i16, i16)> {
        self.info().and_then(|api| api.versions(on, unstable))
    }
}

impl ApiInfo {
    pub fn api_key(&self) -> ApiKey {
        ApiKey(self.key)
    }

    /// The versions spoken on such a listener; `None` if the API is not.
    pub fn versions(&self, on: ListenerKind, unstable: bool) -> Option<(i16, i16)> {
        let there = match on {
            ListenerKind::Broker => self.on_broker,
            ListenerKind::Controller => self.on_controller,
        };
        let last = if unstable {
            self.max_version
        } else {
            self.max_stable_version
        };
        (there && self.min_version <= last).then_some((self.min_version, last))
    }
}

/// The APIs of such a listener with their versions, by rising key.
pub fn advertised(on: ListenerKind, unstable: bool) -> impl Iterator<Item = (ApiKey, i16, i16)> {
    APIS.iter().filter_map(move |api| {
        api.versions(on, unstable)
            .map(|(first, last)| (ApiKey(api.key), first, last))
    })
}

/// The header version of a request; `None` if there is no such API. Any `version` has one, also
/// those that are not known: an ApiVersions request from the future must be answered.
pub fn request_header_version(key: ApiKey, version: i16) -> Option<i16> {
    let flexible = key
        .info()?
        .request_flexible_from
        .is_some_and(|from| version >= from);
    Some(if flexible { 2 } else { 1 })
}

/// The header version of a response; `None` if there is no such API. ApiVersions always has the
/// old header, so that a client can read the answer before it knows what the broker speaks.
pub fn response_header_version(key: ApiKey, version: i16) -> Option<i16> {
    let flexible = key
        .info()?
        .response_flexible_from
        .is_some_and(|from| version >= from);
    Some(if flexible && key != ApiKey::API_VERSIONS {
        1
    } else {
        0
    })
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_broker_and_a_controller_speak_is_what_kafka_4_4_speaks() {
        for (key, broker, controller) in [
            (ApiKey::PRODUCE, Some((3, 13)), None),
            (ApiKey::FETCH, Some((4, 18)), Some((4, 18))),
            (ApiKey::LIST_OFFSETS, Some((1, 11)), None),
            (ApiKey::METADATA, Some((0, 13)), None),
            (ApiKey::OFFSET_COMMIT, Some((2, 10)), None),
            (ApiKey::OFFSET_FETCH, Some((1, 10)), None),
            (ApiKey::API_VERSIONS, Some((0, 5)), Some((0, 5))),
            (ApiKey::INIT_PRODUCER_ID, Some((0, 5)), None),
            (ApiKey::WRITE_TXN_MARKERS, Some((1, 2)), None),
            (ApiKey::TXN_OFFSET_COMMIT, Some((0, 6)), None),
            (ApiKey::DELETE_GROUPS, Some((0, 3)), None),
            (ApiKey::VOTE, None, Some((0, 2))),
            (ApiKey::ALTER_PARTITION, None, Some((2, 3))),
            (ApiKey::ENVELOPE, None, Some((0, 0))),
            (ApiKey::FETCH_SNAPSHOT, None, Some((0, 1))),
            (ApiKey::BROKER_HEARTBEAT, None, Some((0, 2))),
            (ApiKey::SHARE_FETCH, Some((1, 2)), None),
            (ApiKey::STREAMS_GROUP_HEARTBEAT, Some((0, 1)), None),
            (ApiKey(94), Some((0, 0)), Some((0, 0))),
            (ApiKey(4), None, None),
            (ApiKey(95), None, None),
            (ApiKey(-1), None, None),
        ] {
            assert_eq!(
                key.versions(ListenerKind::Broker, false),
                broker,
                "{key:?} on a broker"
            );
            assert_eq!(
                key.versions(ListenerKind::Controller, false),
                controller,
                "{key:?} on a controller"
            );
        }
        assert_eq!(
            ApiKey::INIT_PRODUCER_ID.versions(ListenerKind::Broker, true),
            Some((0, 6))
        );
    }

    #[test]
    fn apis_are_named_as_the_request_log_names_them() {
        assert_eq!(ApiKey(0).name(), "PRODUCE");
        assert_eq!(ApiKey(23).name(), "OFFSET_FOR_LEADER_EPOCH");
        assert_eq!(ApiKey(73).name(), "ASSIGN_REPLICAS_TO_DIRS");
        assert_eq!(ApiKey(5).name(), "UNKNOWN");
    }

    #[test]
    fn the_answer_to_api_versions_keeps_the_old_header() {
        assert_eq!(response_header_version(ApiKey::API_VERSIONS, 5), Some(0));
        assert_eq!(request_header_version(ApiKey::API_VERSIONS, 5), Some(2));
        assert_eq!(request_header_version(ApiKey::API_VERSIONS, 2), Some(1));
        assert_eq!(
            request_header_version(ApiKey::API_VERSIONS, i16::MAX),
            Some(2)
        );
        assert_eq!(response_header_version(ApiKey::PRODUCE, 9), Some(1));
        assert_eq!(response_header_version(ApiKey::PRODUCE, 8), Some(0));
        assert_eq!(request_header_version(ApiKey(7), 0), None);
        // Never flexible.
        assert_eq!(request_header_version(ApiKey::SASL_HANDSHAKE, 1), Some(1));
        assert_eq!(response_header_version(ApiKey::SASL_HANDSHAKE, 1), Some(0));
    }
}
