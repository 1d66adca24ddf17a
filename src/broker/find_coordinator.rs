//! FindCoordinator (key 10, v0-6): which broker coordinates a group or a transactional id. The
//! topic that keeps them is made at the first question. Runs on the connection's shard.

use super::request::Context;
use super::topics;
use crate::cluster::{OFFSETS_TOPIC, TRANSACTIONS_TOPIC};
use crate::wire::messages::find_coordinator_request::FindCoordinatorRequest;
use crate::wire::messages::find_coordinator_response::{Coordinator, FindCoordinatorResponse};
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

/// What a key names (FindCoordinator's key_type).
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE: i8 = 2;
/// First version that asks for several keys (KIP-699).
const BATCH_VERSION: i16 = 4;
/// First version that may ask for a share coordinator (KIP-932).
const SHARE_VERSION: i16 = 6;

pub async fn handle(
    context: Rc<Context>,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    if context.version < BATCH_VERSION {
        let found = find(&context, request.key_type, request.key).await;
        return FindCoordinatorResponse {
            error_code: found.error_code,
            error_message: found.error_message,
            node_id: found.node_id,
            host: found.host,
            port: found.port,
            ..Default::default()
        };
    }
    let mut coordinators = Vec::with_capacity(request.coordinator_keys.len());
    for key in request.coordinator_keys {
        coordinators.push(find(&context, request.key_type, key).await);
    }
    FindCoordinatorResponse {
        coordinators,
        ..Default::default()
    }
}

async fn find(context: &Rc<Context>, kind: i8, key: Str) -> Coordinator {
    let topic = match kind {
        GROUP => OFFSETS_TOPIC,
        TRANSACTION => TRANSACTIONS_TOPIC,
        // No share coordinator runs here.
        SHARE if context.version >= SHARE_VERSION => {
            return refused(key, ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        _ => return refused(key, ErrorCode::INVALID_REQUEST),
    };
    if context.shard.coordinator_partition(topic, &key).is_err() {
        context.parked();
        // Another request may be making it; either way it is there afterwards or not available.
        topics::create_internal(context, topic).await;
    }
    let Ok(partition) = context.shard.coordinator_partition(topic, &key) else {
        return refused(key, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    };
    let image = context.shard.image();
    let leader = image
        .leader(partition.topic, partition.index)
        .map(|(leader, _)| leader);
    let endpoint = image
        .endpoints(&context.peer.listener)
        .find(|(id, ..)| Some(*id) == leader);
    match endpoint {
        Some((id, host, port, _)) => Coordinator {
            key,
            node_id: id.0,
            host: Str::from(host),
            port: i32::from(port),
            ..Default::default()
        },
        None => refused(key, ErrorCode::COORDINATOR_NOT_AVAILABLE),
    }
}

fn refused(key: Str, error: ErrorCode) -> Coordinator {
    Coordinator {
        key,
        node_id: -1,
        port: -1,
        error_code: error.0,
        error_message: Some(Str::from_static(error.message())),
        ..Default::default()
    }
}
