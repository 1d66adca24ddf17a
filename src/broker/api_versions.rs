//! ApiVersions (key 18, v0-5): what this broker speaks, and the features the cluster runs with.
//! Runs on the connection's shard.

use super::apis;
use super::request::Context;
use crate::cluster::apis::features::{check_identity, is_software_word, told};
use crate::wire::api::ApiKey;
use crate::wire::messages::api_versions_request::ApiVersionsRequest;
use crate::wire::messages::api_versions_response::{ApiVersion, ApiVersionsResponse};
use crate::wire::{ErrorCode, Message};
use std::rc::Rc;

/// First version whose client says what software it is (KIP-511).
const SOFTWARE_VERSION: i16 = 3;
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
    let facts = &context.shard.node;
    if context.version >= IDENTITY_VERSION
        && let Err(error) = check_identity(&request, &facts.cluster_id, facts.node)
    {
        return refused(error);
    }
    let image = context.shard.image();
    ApiVersionsResponse {
        api_keys: versions(),
        ..told(&image, context.version)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn produce_is_advertised_from_zero_but_served_from_three() {
        let produce = versions().into_iter().find(|api| api.api_key == 0).unwrap();
        assert_eq!((produce.min_version, produce.max_version), (0, 13));
        assert_eq!(apis::served(ApiKey::PRODUCE), Some(3..=13));
    }
}
