//! How the active controller answers requests: decode, decide on the image, write, answer. Runs on
//! the control executor. Brokers reach it through the controller's listener, through an Envelope
//! that another broker forwards, or, in the same process, by a call; all three end here, so that
//! none can do what the others cannot.
//!
//! What is decided stands in the pure files of this room; a file here only ties a request to it.

mod brokers;
pub mod configs;
mod partitions;
pub(super) mod producer_ids;
pub mod topics;

use super::controller::Controller;
use super::metadata_log::MetadataLogError;
use crate::wire::api::ApiKey;
use crate::wire::{ErrorCode, Message, Reader, Str};
use bytes::Bytes;
use std::future::Future;
use std::rc::Rc;

/// Who asks.
#[derive(Clone, Debug)]
pub struct Asker {
    pub client_id: Str,
    /// Kafka's form of the client's host: a slash and the address.
    pub host: String,
}

/// Answers one request with the body of its response; `None` if it cannot be answered (an API the
/// controller does not have, a body that cannot be decoded): its connection is to be closed.
pub async fn answer(
    controller: &Rc<Controller>,
    _asker: &Asker,
    key: ApiKey,
    version: i16,
    body: Reader,
) -> Option<Bytes> {
    let c = controller;
    match key {
        ApiKey::CREATE_TOPICS => run(version, body, |request| topics::create(c, request)).await,
        ApiKey::DELETE_TOPICS => {
            run(version, body, |request| topics::delete(c, version, request)).await
        }
        ApiKey::CREATE_PARTITIONS => {
            run(version, body, |request| {
                topics::create_partitions(c, request)
            })
            .await
        }
        ApiKey::ALTER_CONFIGS => run(version, body, |request| configs::alter(c, request)).await,
        ApiKey::INCREMENTAL_ALTER_CONFIGS => {
            run(version, body, |request| {
                configs::incremental_alter(c, request)
            })
            .await
        }
        ApiKey::ALTER_PARTITION => {
            run(version, body, |request| {
                partitions::alter(c, version, request)
            })
            .await
        }
        ApiKey::BROKER_REGISTRATION => {
            run(version, body, |request| {
                brokers::register(c, version, request)
            })
            .await
        }
        ApiKey::BROKER_HEARTBEAT => {
            run(version, body, |request| brokers::heartbeat(c, request)).await
        }
        ApiKey::UNREGISTER_BROKER => {
            run(version, body, |request| brokers::unregister(c, request)).await
        }
        ApiKey::ALLOCATE_PRODUCER_IDS => {
            run(version, body, |request| producer_ids::allocate(c, request)).await
        }
        _ => None,
    }
}

/// Nothing can be decided here: another controller may be active.
fn unavailable(error: &MetadataLogError) -> ErrorCode {
    tracing::warn!(%error, "metadata could not be changed");
    ErrorCode::NOT_CONTROLLER
}

async fn run<Q: Message, R: Message, F: Future<Output = R>>(
    version: i16,
    mut body: Reader,
    answer: impl FnOnce(Q) -> F,
) -> Option<Bytes> {
    let request = match Q::decode(&mut body, version) {
        Ok(request) => request,
        Err(error) => {
            tracing::debug!(api = Q::NAME, version, %error, "request could not be decoded");
            return None;
        }
    };
    let response = answer(request).await;
    match response.to_bytes(version) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            tracing::error!(api = Q::NAME, version, %error, "answer could not be encoded");
            None
        }
    }
}
