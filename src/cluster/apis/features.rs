//! Features and versions: UpdateFeatures (key 57, v0-2), and ApiVersions (18, v0-5) on a
//! controller's listener.

use super::SERVED;
use crate::cluster::Image;
use crate::cluster::controller::Controller;
use crate::cluster::{feature_admin, features};
use crate::types::NodeId;
use crate::wire::api::ListenerKind;
use crate::wire::messages::api_versions_request::ApiVersionsRequest;
use crate::wire::messages::api_versions_response::{
    ApiVersion, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey,
};
use crate::wire::messages::update_features_request::UpdateFeaturesRequest;
use crate::wire::messages::update_features_response::UpdateFeaturesResponse;
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

/// First version whose client says what software it is (KIP-511).
const SOFTWARE_VERSION: i16 = 3;
/// Before this version a feature whose minimum is 0 is left out (KAFKA-17492).
const ZERO_MINIMUM_VERSION: i16 = 4;
/// First version whose client says which node it believes to have reached (KIP-1242).
const IDENTITY_VERSION: i16 = 5;

pub async fn update(
    controller: &Rc<Controller>,
    version: i16,
    request: UpdateFeaturesRequest,
) -> UpdateFeaturesResponse {
    let decided = controller
        .change(|image| feature_admin::decide(image, &controller.config, &request, version));
    decided.await.unwrap_or_else(|error| {
        let error = super::unavailable(&error);
        feature_admin::refused(error, error.message().to_owned())
    })
}

/// What this controller answers, active or not.
pub fn api_versions(
    controller: &Controller,
    version: i16,
    request: &ApiVersionsRequest,
) -> ApiVersionsResponse {
    let is_named = is_software_word(&request.client_software_name)
        && is_software_word(&request.client_software_version);
    if version >= SOFTWARE_VERSION && !is_named {
        return refused(ErrorCode::INVALID_REQUEST);
    }
    let (cluster_id, node) = (controller.cluster_id(), controller.config.node_id);
    if version >= IDENTITY_VERSION
        && let Err(error) = check_identity(request, &cluster_id, node)
    {
        return refused(error);
    }
    let mut response = told(&controller.image(), version);
    response.api_keys = SERVED
        .iter()
        .filter_map(|key| {
            let (min_version, max_version) = key.versions(ListenerKind::Controller, false)?;
            Some(ApiVersion {
                api_key: key.0,
                min_version,
                max_version,
                ..Default::default()
            })
        })
        .collect();
    response
}

fn refused(error: ErrorCode) -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: error.0,
        ..Default::default()
    }
}

/// The features, as an answer in `version` tells them; no APIs yet.
pub fn told(image: &Image, version: i16) -> ApiVersionsResponse {
    let mut response = ApiVersionsResponse {
        finalized_features_epoch: image.offset(),
        ..Default::default()
    };
    for feature in features::SUPPORTED {
        if feature.min == 0 && version < ZERO_MINIMUM_VERSION {
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

/// Cluster and node come both or not at all; a client that has reached another node than it
/// believes must bootstrap anew.
pub fn check_identity(
    request: &ApiVersionsRequest,
    cluster_id: &str,
    own: NodeId,
) -> Result<(), ErrorCode> {
    match (&request.cluster_id, request.node_id) {
        (None, -1) => Ok(()),
        (Some(cluster), node) if node >= 0 => {
            if **cluster == *cluster_id && node == own.0 {
                Ok(())
            } else {
                Err(ErrorCode::REBOOTSTRAP_REQUIRED)
            }
        }
        _ => Err(ErrorCode::INVALID_REQUEST),
    }
}

/// Letters and digits, with `.` and `-` inside: what Kafka accepts as a software name or version.
pub fn is_software_word(text: &str) -> bool {
    let end = |c: u8| c.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    end(*first) && end(*last) && bytes.iter().all(|c| end(*c) || *c == b'.' || *c == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_words_are_those_kafka_accepts() {
        assert!(is_software_word("apache-kafka-java"));
        assert!(is_software_word("2.12.1"));
        for bad in ["", "-a", "a-", "a b", "a/b"] {
            assert!(!is_software_word(bad), "{bad:?}");
        }
    }
}
