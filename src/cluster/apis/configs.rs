//! Settings: AlterConfigs (key 33, v0-2) and IncrementalAlterConfigs (44, v0-1); quotas:
//! AlterClientQuotas (49, v0-1).

use crate::cluster::client_quotas;
use crate::cluster::config_admin;
use crate::cluster::controller::Controller;
use crate::wire::ErrorCode;
use crate::wire::messages::alter_client_quotas_request::AlterClientQuotasRequest;
use crate::wire::messages::alter_client_quotas_response::AlterClientQuotasResponse;
use crate::wire::messages::alter_configs_request::AlterConfigsRequest;
use crate::wire::messages::alter_configs_response::{
    AlterConfigsResourceResponse, AlterConfigsResponse,
};
use crate::wire::messages::incremental_alter_configs_request::IncrementalAlterConfigsRequest;
use crate::wire::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse as IncrementalResourceResponse, IncrementalAlterConfigsResponse,
};
use std::rc::Rc;

pub(super) async fn incremental_alter(
    controller: &Rc<Controller>,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let decided = controller
        .change(|image| config_admin::incremental_alter(image, &controller.config, &request));
    decided
        .await
        .unwrap_or_else(|error| not_changed(&request, super::unavailable(&error)))
}

/// The answer when no controller could decide.
pub fn not_changed(
    request: &IncrementalAlterConfigsRequest,
    error: ErrorCode,
) -> IncrementalAlterConfigsResponse {
    let resources = request.resources.iter();
    IncrementalAlterConfigsResponse {
        responses: resources
            .map(|resource| IncrementalResourceResponse {
                error_code: error.0,
                resource_type: resource.resource_type,
                resource_name: resource.resource_name.clone(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

pub(super) async fn alter_quotas(
    controller: &Rc<Controller>,
    request: AlterClientQuotasRequest,
) -> AlterClientQuotasResponse {
    let decided = controller.change(|image| client_quotas::alter(image, &request));
    decided
        .await
        .unwrap_or_else(|error| client_quotas::all_refused(&request, super::unavailable(&error)))
}

pub(super) async fn alter(
    controller: &Rc<Controller>,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let decided =
        controller.change(|image| config_admin::alter(image, &controller.config, &request));
    decided
        .await
        .unwrap_or_else(|error| not_replaced(&request, super::unavailable(&error)))
}

/// The answer when no controller could decide.
pub fn not_replaced(request: &AlterConfigsRequest, error: ErrorCode) -> AlterConfigsResponse {
    let resources = request.resources.iter();
    AlterConfigsResponse {
        responses: resources
            .map(|resource| AlterConfigsResourceResponse {
                error_code: error.0,
                resource_type: resource.resource_type,
                resource_name: resource.resource_name.clone(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}
