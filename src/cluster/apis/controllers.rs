//! Controllers: ControllerRegistration (key 70, v0), UnregisterController (94, v0), and
//! DescribeCluster (60, v0-2) on a controller's listener.

use crate::cluster::controller::Controller;
use crate::cluster::features::METADATA_VERSION;
use crate::cluster::record::MetadataRecord;
use crate::types::NodeId;
use crate::wire::messages::controller_registration_request::ControllerRegistrationRequest;
use crate::wire::messages::controller_registration_response::ControllerRegistrationResponse;
use crate::wire::messages::describe_cluster_request::DescribeClusterRequest;
use crate::wire::messages::describe_cluster_response::{
    DescribeClusterBroker, DescribeClusterResponse,
};
use crate::wire::messages::register_controller_record::{
    ControllerEndpoint, ControllerFeature, RegisterControllerRecord,
};
use crate::wire::messages::unregister_controller_record::UnregisterControllerRecord;
use crate::wire::messages::unregister_controller_request::UnregisterControllerRequest;
use crate::wire::messages::unregister_controller_response::UnregisterControllerResponse;
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

/// The first metadata.version that has a record of it.
const UNREGISTRATION_LEVEL: i16 = 33;
/// What a request asks about (endpoint_type): controllers on a controller's listener.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

pub async fn register(
    controller: &Rc<Controller>,
    request: ControllerRegistrationRequest,
) -> ControllerRegistrationResponse {
    let record = RegisterControllerRecord {
        controller_id: request.controller_id,
        incarnation_id: request.incarnation_id,
        end_points: request
            .listeners
            .iter()
            .map(|listener| ControllerEndpoint {
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
            .map(|feature| ControllerFeature {
                name: feature.name.detached(),
                min_supported_version: feature.min_supported_version,
                max_supported_version: feature.max_supported_version,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    let decided = controller.change(|_| (vec![MetadataRecord::from(record)], ()));
    match decided.await {
        Ok(()) => ControllerRegistrationResponse::default(),
        Err(error) => {
            let error = super::unavailable(&error);
            ControllerRegistrationResponse {
                error_code: error.0,
                error_message: Some(Str::from_static(error.message())),
                ..Default::default()
            }
        }
    }
}

pub async fn unregister(
    controller: &Rc<Controller>,
    request: UnregisterControllerRequest,
) -> UnregisterControllerResponse {
    let refused = |error: ErrorCode, why: String| UnregisterControllerResponse {
        error_code: error.0,
        error_message: Some(Str::from(why)),
        ..Default::default()
    };
    let id = request.controller_id;
    let decided = controller.change(|image| {
        if image.feature(METADATA_VERSION) < UNREGISTRATION_LEVEL {
            let why =
                "The current MetadataVersion is too old to support controller unregistration.";
            let told = refused(ErrorCode::UNSUPPORTED_VERSION, why.into());
            return (Vec::new(), told);
        }
        if image.controller(NodeId(id)).is_none() {
            let why = format!("Controller ID {id} is not currently registered.");
            let told = refused(ErrorCode::CONTROLLER_ID_NOT_REGISTERED, why);
            return (Vec::new(), told);
        }
        let record = UnregisterControllerRecord {
            controller_id: id,
            ..Default::default()
        };
        let told = UnregisterControllerResponse::default();
        (vec![MetadataRecord::from(record)], told)
    });
    decided.await.unwrap_or_else(|error| {
        let error = super::unavailable(&error);
        refused(error, error.message().to_owned())
    })
}

/// The controllers, on the listener by which brokers reach them.
pub fn describe_cluster(
    controller: &Controller,
    version: i16,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    let refused = |error: ErrorCode, why: String| DescribeClusterResponse {
        // Version 0 does not have the endpoint types' errors.
        error_code: match version {
            0 => ErrorCode::INVALID_REQUEST.0,
            _ => error.0,
        },
        error_message: Some(Str::from(why)),
        ..Default::default()
    };
    match request.endpoint_type {
        CONTROLLERS => {}
        BROKERS => {
            return refused(
                ErrorCode::MISMATCHED_ENDPOINT_TYPE,
                "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER".into(),
            );
        }
        other => {
            return refused(
                ErrorCode::UNSUPPORTED_ENDPOINT_TYPE,
                format!("Unsupported endpoint type {other}"),
            );
        }
    }
    let image = controller.image();
    let quorum = &controller.config.quorum;
    let listener = quorum.listener_names.first();
    let at = |broker_id: i32, host: Str, port: u16| DescribeClusterBroker {
        broker_id,
        host,
        port: i32::from(port),
        ..Default::default()
    };
    let mut brokers: Vec<_> = image
        .controllers()
        .filter_map(|one| {
            let mut points = one.end_points.iter();
            let point = points.find(|point| listener.is_some_and(|name| *point.name == **name))?;
            Some(at(one.controller_id, point.host.clone(), point.port))
        })
        .collect();
    // A voter whose registration is not there yet listens where the quorum reaches it.
    for voter in &quorum.voters {
        if image.controller(voter.id).is_none() {
            brokers.push(at(voter.id.0, voter.host.as_str().into(), voter.port));
        }
    }
    brokers.sort_by_key(|one| one.broker_id);
    // Whichever controller is asked tells who leads.
    let (leader, _) = controller.quorum().leader();
    DescribeClusterResponse {
        endpoint_type: CONTROLLERS,
        cluster_id: Str::from(controller.cluster_id()),
        controller_id: leader.map_or(-1, |leader| leader.0),
        brokers,
        ..Default::default()
    }
}
