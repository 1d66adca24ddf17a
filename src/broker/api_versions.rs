//! ApiVersions (key 18, v0-5): what this broker speaks, and the features the cluster runs with.
//! Runs on the connection's shard.

use super::apis;
use super::request::Context;
use crate::cluster::features;
use crate::wire::api::ApiKey;
use crate::wire::messages::api_versions_request::ApiVersionsRequest;
use crate::wire::messages::api_versions_response::{
    ApiVersion, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey,
};
use crate::wire::{ErrorCode, Message, Str};
use std::rc::Rc;

/// First version whose client says what software it is (KIP-511).
const SOFTWARE_VERSION: i16 = 3;
/// Before this version a feature whose minimum is 0 is left out (KAFKA-17492).
const ZERO_MINIMUM_VERSION: i16 = 4;
/// First version whose client says which broker it believes to have reached (KIP-1242).
const IDENTITY_VERSION: i16 = 5;

pub fn handle(context: &Rc<Context>, request: ApiVersionsRequest) -> ApiVersionsResponse {
    if context.version >= SOFTWARE_VERSION {
        let named = is_software_word(&request.client_software_name)
            && is_software_word(&request.client_software_version);
        if !named {
            return refused(ErrorCode::INVALID_REQUEST);
        }
        context.peer.set_software(
            &request.client_software_name,
            &request.client_software_version,
        );
    }
    if context.version >= IDENTITY_VERSION
        && let Err(error) = check_identity(context, &request)
    {
        return refused(error);
    }
    let image = context.shard.image();
    let mut response = ApiVersionsResponse {
        api_keys: versions(),
        finalized_features_epoch: image.offset(),
        ..Default::default()
    };
    for feature in features::SUPPORTED {
        if feature.min == 0 && context.version < ZERO_MINIMUM_VERSION {
            continue;
        }
        response.supported_features.push(SupportedFeatureKey {
            name: Str::from_static(feature.name),
            min_version: feature.min,
            max_version: feature.max,
            ..Default::default()
        });
    }
    for (name, level) in image.finalized_features() {
        response.finalized_features.push(FinalizedFeatureKey {
            name: Str::from(name),
            max_version_level: level,
            min_version_level: level,
            ..Default::default()
        });
    }
    response
}

/// The answer to a version we do not have: in version 0, with the versions we do have.
pub fn unsupported() -> ApiVersionsResponse {
    let own = ApiVersion {
        api_key: ApiKey::API_VERSIONS.0,
        min_version: ApiVersionsRequest::MIN_VERSION,
        max_version: ApiVersionsRequest::MAX_VERSION,
        ..Default::default()
    };
    ApiVersionsResponse {
        error_code: ErrorCode::UNSUPPORTED_VERSION.0,
        api_keys: vec![own],
        ..Default::default()
    }
}

fn refused(error: ErrorCode) -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: error.0,
        ..Default::default()
    }
}

fn versions() -> Vec<ApiVersion> {
    apis::SERVED
        .iter()
        .filter_map(|key| {
            let range = apis::advertised(*key)?;
            Some(ApiVersion {
                api_key: key.0,
                min_version: *range.start(),
                max_version: *range.end(),
                ..Default::default()
            })
        })
        .collect()
}

/// Letters and digits, with `.` and `-` inside: what Kafka accepts as a software name or version.
fn is_software_word(text: &str) -> bool {
    let end = |c: u8| c.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    end(*first) && end(*last) && bytes.iter().all(|c| end(*c) || *c == b'.' || *c == b'-')
}

/// Cluster and node come both or not at all; a client that has reached another broker than it
/// believes must bootstrap anew.
fn check_identity(context: &Context, request: &ApiVersionsRequest) -> Result<(), ErrorCode> {
    let facts = &context.shard.node;
    match (&request.cluster_id, request.node_id) {
        (None, -1) => Ok(()),
        (Some(cluster), node) if node >= 0 => {
            if **cluster == *facts.cluster_id && node == facts.node.0 {
                Ok(())
            } else {
                Err(ErrorCode::REBOOTSTRAP_REQUIRED)
            }
        }
        _ => Err(ErrorCode::INVALID_REQUEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn produce_is_advertised_from_zero_but_served_from_three() {
        let produce = versions().into_iter().find(|api| api.api_key == 0).unwrap();
        assert_eq!((produce.min_version, produce.max_version), (0, 13));
        assert_eq!(apis::served(ApiKey::PRODUCE), Some(3..=13));
    }

    #[test]
    fn software_names_are_checked_as_kafka_does() {
        assert!(is_software_word("apache-kafka-java"));
        assert!(is_software_word("2.12.1"));
        for bad in ["", "-a", "a-", "a b", "a/b"] {
            assert!(!is_software_word(bad), "{bad:?}");
        }
    }
}
