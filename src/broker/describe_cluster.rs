//! DescribeCluster (key 60, v0-2): the cluster's id, its controller and its brokers. Runs on the
//! connection's shard.

use super::metadata::{OPERATIONS_NOT_TOLD, controller};
use super::request::Context;
use crate::wire::messages::describe_cluster_request::DescribeClusterRequest;
use crate::wire::messages::describe_cluster_response::{
    DescribeClusterBroker, DescribeClusterResponse,
};
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

/// What a request asks about (endpoint_type): brokers on a broker's listener.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;
/// First version that may ask for fenced brokers (KIP-1073).
const FENCED_VERSION: i16 = 2;

pub async fn handle(
    context: Rc<Context>,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    let refused = |error: ErrorCode, message: &'static str| DescribeClusterResponse {
        error_code: error.0,
        error_message: Some(Str::from_static(message)),
        ..Default::default()
    };
    match request.endpoint_type {
        BROKERS => {}
        CONTROLLERS => {
            return refused(
                ErrorCode::MISMATCHED_ENDPOINT_TYPE,
                "The request was sent to an endpoint of the wrong type.",
            );
        }
        _ => {
            return refused(
                ErrorCode::UNSUPPORTED_ENDPOINT_TYPE,
                "Unsupported endpoint type.",
            );
        }
    }
    let image = context.shard.image();
    let fenced_too = context.version >= FENCED_VERSION && request.include_fenced_brokers;
    let brokers = image
        .brokers()
        .filter(|broker| fenced_too || !broker.fenced)
        .filter_map(|broker| {
            let (host, port) = broker.endpoint(&context.peer.listener)?;
            Some(DescribeClusterBroker {
                broker_id: broker.id.0,
                host: Str::from(host),
                port: i32::from(port),
                rack: broker.rack.clone(),
                is_fenced: broker.fenced,
                ..Default::default()
            })
        })
        .collect();
    DescribeClusterResponse {
        endpoint_type: request.endpoint_type,
        cluster_id: Str::from(context.shard.node.cluster_id.as_str()),
        controller_id: controller(&context, &image),
        brokers,
        cluster_authorized_operations: OPERATIONS_NOT_TOLD,
        ..Default::default()
    }
}
