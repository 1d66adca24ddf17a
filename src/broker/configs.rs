//! DescribeConfigs (key 32, v1-4), AlterConfigs (33, v0-2), IncrementalAlterConfigs (44, v0-1),
//! ListConfigResources (74, v0-1).
//! Describing reads the image on the connection's shard; changes are the controller's to decide.

use super::request::Context;
use super::topics::forward;
use crate::cluster::apis::configs::{not_changed, not_replaced};
use crate::cluster::config_admin::check_addressee;
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
    mut request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let refused = take_foreign(&context, &mut request.resources, |resource| {
        (resource.resource_type, &resource.resource_name)
    });
    let refused = refused
        .into_iter()
        .map(|(error, why, resource)| IncrementalResourceResponse {
            error_code: error.0,
            error_message: Some(Str::from(why)),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
            ..Default::default()
        });
    let mut response = IncrementalAlterConfigsResponse::default();
    if !request.resources.is_empty() {
        response = forward(&context, context.version, &request, CHANGE_TIMEOUT)
            .await
            .unwrap_or_else(|error| not_changed(&request, error));
    }
    response.responses.extend(refused);
    response
}

pub async fn alter(context: Rc<Context>, mut request: AlterConfigsRequest) -> AlterConfigsResponse {
    let refused = take_foreign(&context, &mut request.resources, |resource| {
        (resource.resource_type, &resource.resource_name)
    });
    let refused = refused
        .into_iter()
        .map(|(error, why, resource)| AlterConfigsResourceResponse {
            error_code: error.0,
            error_message: Some(Str::from(why)),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
            ..Default::default()
        });
    let mut response = AlterConfigsResponse::default();
    if !request.resources.is_empty() {
        response = forward(&context, context.version, &request, CHANGE_TIMEOUT)
            .await
            .unwrap_or_else(|error| not_replaced(&request, error));
    }
    response.responses.extend(refused);
    response
}

/// Takes out of a request the resources that another broker is to be asked for; why.
fn take_foreign<T>(
    context: &Context,
    resources: &mut Vec<T>,
    named: impl Fn(&T) -> (i8, &Str),
) -> Vec<(ErrorCode, String, T)> {
    let config = &context.shard.node.config;
    let (mut own, mut foreign) = (Vec::new(), Vec::new());
    for resource in resources.drain(..) {
        let (kind, name) = named(&resource);
        match check_addressee(config, ResourceType(kind), name) {
            Ok(()) => own.push(resource),
            Err((error, why)) => foreign.push((error, why, resource)),
        }
    }
    *resources = own;
    foreign
}

pub async fn list_resources(
    context: Rc<Context>,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    let image = context.shard.image();
    let config = &context.shard.node.config;
    config_admin::list_resources(&image, config, &request, context.version)
}
