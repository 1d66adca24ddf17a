//! DescribeConfigs (key 32, v1-4), AlterConfigs (33, v0-2), IncrementalAlterConfigs (44, v0-1),
//! ListConfigResources (74, v0-1).
//! Describing reads the image on the connection's shard; changes are the controller's to decide.

use super::request::Context;
use super::topics::change;
use crate::cluster::{ResourceType, config_admin};
use crate::config::{Described, Synonym};
use crate::wire::messages::alter_configs_request::AlterConfigsRequest;
use crate::wire::messages::alter_configs_response::{
    AlterConfigsResourceResponse, AlterConfigsResponse,
};
use crate::wire::messages::describe_configs_request::{
    DescribeConfigsRequest, DescribeConfigsResource,
};
use crate::wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult,
    DescribeConfigsSynonym,
};
use crate::wire::messages::incremental_alter_configs_request::IncrementalAlterConfigsRequest;
use crate::wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse as IncrementalResourceResponse, IncrementalAlterConfigsResponse,
};
use crate::wire::messages::list_config_resources_request::ListConfigResourcesRequest;
use crate::wire::messages::list_config_resources_response::ListConfigResourcesResponse;
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;
use std::time::Duration;

/// A change of settings has no time-out of its own in the protocol.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);

pub async fn describe(
    context: Rc<Context>,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let results = request
        .resources
        .iter()
        .map(|resource| {
            let mut result = DescribeConfigsResult {
                resource_type: resource.resource_type,
                resource_name: resource.resource_name.clone(),
                ..Default::default()
            };
            match describe_resource(&context, resource) {
                Ok(described) => {
                    result.configs = described
                        .into_iter()
                        .filter(|entry| match &resource.configuration_keys {
                            Some(keys) => keys.iter().any(|key| **key == *entry.name),
                            None => true,
                        })
                        .map(|entry| told(entry, &request))
                        .collect();
                }
                Err((error, message)) => {
                    result.error_code = error.0;
                    result.error_message = Some(Str::from(message));
                }
            }
            result
        })
        .collect();
    DescribeConfigsResponse {
        results,
        ..Default::default()
    }
}

fn describe_resource(
    context: &Context,
    resource: &DescribeConfigsResource,
) -> Result<Vec<Described>, (ErrorCode, String)> {
    let kind = ResourceType(resource.resource_type);
    config_admin::describe(
        &context.shard.image(),
        &context.shard.node.config,
        kind,
        &resource.resource_name,
    )
}

fn told(entry: Described, request: &DescribeConfigsRequest) -> DescribeConfigsResourceResult {
    let synonyms = if request.include_synonyms {
        entry.synonyms
    } else {
        Vec::new()
    };
    DescribeConfigsResourceResult {
        name: Str::from_static(entry.name),
        value: entry.value.map(Str::from),
        read_only: entry.read_only,
        config_source: entry.source,
        is_sensitive: entry.sensitive,
        synonyms: synonyms
            .into_iter()
            .map(
                |Synonym {
                     name,
                     value,
                     source,
                 }| DescribeConfigsSynonym {
                    name: Str::from(name),
                    value: value.map(Str::from),
                    source,
                    ..Default::default()
                },
            )
            .collect(),
        config_type: entry.kind,
        documentation: request
            .include_documentation
            .then(|| Str::from_static(entry.doc)),
        ..Default::default()
    }
}

pub async fn incremental_alter(
    context: Rc<Context>,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let asked = request.clone();
    let decided = change(&context, CHANGE_TIMEOUT, move |image, config| {
        config_admin::incremental_alter(image, config, &request)
    })
    .await;
    decided.unwrap_or_else(|error| IncrementalAlterConfigsResponse {
        responses: asked
            .resources
            .into_iter()
            .map(|resource| IncrementalResourceResponse {
                error_code: error.0,
                resource_type: resource.resource_type,
                resource_name: resource.resource_name,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    })
}

pub async fn alter(context: Rc<Context>, request: AlterConfigsRequest) -> AlterConfigsResponse {
    let asked = request.clone();
    let decided = change(&context, CHANGE_TIMEOUT, move |image, config| {
        config_admin::alter(image, config, &request)
    })
    .await;
    decided.unwrap_or_else(|error| AlterConfigsResponse {
        responses: asked
            .resources
            .into_iter()
            .map(|resource| AlterConfigsResourceResponse {
                error_code: error.0,
                resource_type: resource.resource_type,
                resource_name: resource.resource_name,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    })
}

pub async fn list_resources(
    context: Rc<Context>,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    let image = context.shard.image();
    let config = &context.shard.node.config;
    config_admin::list_resources(&image, config, &request, context.version)
}
