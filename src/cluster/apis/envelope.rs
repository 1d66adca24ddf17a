//! Envelope (key 58, v0): a request that a broker forwards for a client (KIP-590). It is opened,
//! answered as any other, and its answer goes back in another envelope.

use super::{Asker, SERVED, answer};
use crate::cluster::controller::Controller;
use crate::wire::api::{ApiKey, ListenerKind};
use crate::wire::frame::{RequestFrame, response_bytes};
use crate::wire::messages::default_principal_data::DefaultPrincipalData;
use crate::wire::messages::envelope_request::EnvelopeRequest;
use crate::wire::messages::envelope_response::EnvelopeResponse;
use crate::wire::{ErrorCode, Message, Reader};
use bytes::Bytes;
use std::net::IpAddr;
use std::rc::Rc;

/// What a broker may send on for a client, of what is answered here.
const FORWARDABLE: &[ApiKey] = &[
    ApiKey::CREATE_TOPICS,
    ApiKey::DELETE_TOPICS,
    ApiKey::ALTER_CONFIGS,
    ApiKey::CREATE_PARTITIONS,
    ApiKey::ELECT_LEADERS,
    ApiKey::INCREMENTAL_ALTER_CONFIGS,
    ApiKey::ALTER_PARTITION_REASSIGNMENTS,
    ApiKey::LIST_PARTITION_REASSIGNMENTS,
    ApiKey::DESCRIBE_QUORUM,
    ApiKey::UPDATE_FEATURES,
    ApiKey::UNREGISTER_BROKER,
    ApiKey::ALLOCATE_PRODUCER_IDS,
    ApiKey::UNREGISTER_CONTROLLER,
];

pub async fn open(controller: &Rc<Controller>, request: EnvelopeRequest) -> EnvelopeResponse {
    match open_inner(controller, request).await {
        Ok(response_data) => EnvelopeResponse {
            response_data: Some(response_data),
            ..Default::default()
        },
        Err(error) => EnvelopeResponse {
            error_code: error.0,
            ..Default::default()
        },
    }
}

async fn open_inner(
    controller: &Rc<Controller>,
    request: EnvelopeRequest,
) -> Result<Bytes, ErrorCode> {
    // Nothing is authorized yet, but a principal that cannot be read is never taken for one.
    principal(request.request_principal)?;
    let address = match request.client_host_address.len() {
        4 => <[u8; 4]>::try_from(&request.client_host_address[..]).map(IpAddr::from),
        _ => <[u8; 16]>::try_from(&request.client_host_address[..]).map(IpAddr::from),
    };
    let address = address.map_err(|_| ErrorCode::INVALID_REQUEST)?;
    let unreadable = ErrorCode::UNSUPPORTED_VERSION;
    let RequestFrame {
        key,
        version,
        correlation_id,
        client_id,
        body,
    } = RequestFrame::open(request.request_data).map_err(|_| unreadable)?;
    if !FORWARDABLE.contains(&key) {
        return Err(ErrorCode::INVALID_REQUEST);
    }
    let range = key.versions(ListenerKind::Controller, false);
    let is_known = range.is_some_and(|(first, last)| (first..=last).contains(&version));
    if !SERVED.contains(&key) || !is_known {
        return Err(unreadable);
    }
    if !controller.is_active() {
        return Err(ErrorCode::NOT_CONTROLLER);
    }
    let asker = Asker {
        client_id,
        host: format!("/{address}"),
    };
    // Boxed, for answering may open envelopes; never one in another, which cannot be forwarded.
    let answered: std::pin::Pin<Box<dyn Future<Output = Option<Bytes>> + '_>> =
        Box::pin(answer(controller, &asker, key, version, body));
    let body = answered.await.ok_or(unreadable)?;
    response_bytes(key, version, correlation_id, &body).map_err(|_| ErrorCode::UNKNOWN_SERVER_ERROR)
}

/// Kafka's own form of a principal: a version, then the message of that version.
fn principal(data: Option<Bytes>) -> Result<DefaultPrincipalData, ErrorCode> {
    let unreadable = |_| ErrorCode::PRINCIPAL_DESERIALIZATION_FAILURE;
    let mut reader = Reader::new(data.unwrap_or_default());
    let version = reader.i16("version").map_err(unreadable)?;
    DefaultPrincipalData::decode(&mut reader, version).map_err(unreadable)
}

#[cfg(test)]
#[path = "envelope_tests.rs"]
mod tests;
