//! How the active controller answers requests: decode, decide on the image, write, answer. Runs on
//! the control executor. Brokers reach it through the controller's listener, through an Envelope
//! that another broker forwards, or, in the same process, by a call; all three end here, so that
//! none can do what the others cannot.
//!
//! What is decided stands in the pure files of this room; a file here only ties a request to it.

pub(super) mod producer_ids;

use super::controller::Controller;
use crate::wire::api::ApiKey;
use crate::wire::{Message, Reader, Str};
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
    match key {
        ApiKey::ALLOCATE_PRODUCER_IDS => {
            run(version, body, |request| {
                producer_ids::allocate(controller, request)
            })
            .await
        }
        _ => None,
    }
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
