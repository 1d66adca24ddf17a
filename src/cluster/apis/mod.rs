//! How the active controller answers requests: decode, decide on the image, write, answer. Runs on
//! the control executor. Brokers reach it through the controller's listener, through an Envelope
//! that another broker forwards, or, in the same process, by a call; all three end here, so that
//! none can do what the others cannot.
//!
//! What is decided stands in the pure files of this room; a file here only ties a request to it.

mod brokers;
pub mod configs;
mod controllers;
mod envelope;
pub mod features;
mod partitions;
pub(super) mod producer_ids;
pub mod topics;

use super::controller::Controller;
use super::metadata_log::MetadataLogError;
use super::quorum::{peers, serve};
use crate::wire::api::{ApiKey, ListenerKind};
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

/// What is answered here, each at every version that Apache Kafka 4.4 has on a controller's
/// listener. By key.
pub const SERVED: &[ApiKey] = &[
    ApiKey::FETCH,
    ApiKey::API_VERSIONS,
    ApiKey::CREATE_TOPICS,
    ApiKey::DELETE_TOPICS,
    ApiKey::ALTER_CONFIGS,
    ApiKey::CREATE_PARTITIONS,
    ApiKey::ELECT_LEADERS,
    ApiKey::INCREMENTAL_ALTER_CONFIGS,
    ApiKey::ALTER_PARTITION_REASSIGNMENTS,
    ApiKey::LIST_PARTITION_REASSIGNMENTS,
    ApiKey::ALTER_CLIENT_QUOTAS,
    ApiKey::DESCRIBE_QUORUM,
    ApiKey::ALTER_PARTITION,
    ApiKey::UPDATE_FEATURES,
    ApiKey::ENVELOPE,
    ApiKey::FETCH_SNAPSHOT,
    ApiKey::DESCRIBE_CLUSTER,
    ApiKey::BROKER_REGISTRATION,
    ApiKey::BROKER_HEARTBEAT,
    ApiKey::UNREGISTER_BROKER,
    ApiKey::ALLOCATE_PRODUCER_IDS,
    ApiKey::CONTROLLER_REGISTRATION,
    ApiKey::ASSIGN_REPLICAS_TO_DIRS,
    ApiKey::UNREGISTER_CONTROLLER,
];

/// Answers one request with the body of its response; `None` if it cannot be answered (an API or a
/// version the controller does not have, a body that cannot be decoded): its connection is to be
/// closed.
pub async fn answer(
    controller: &Rc<Controller>,
    _asker: &Asker,
    key: ApiKey,
    version: i16,
    body: Reader,
) -> Option<Bytes> {
    let (c, v) = (controller, version);
    // Between voters of our own kind, and in no table of Kafka's.
    if key == peers::VOTER_MESSAGE {
        return peers::receive_frame(c.quorum(), body);
    }
    let (first, last) = key.versions(ListenerKind::Controller, false)?;
    if !(first..=last).contains(&version) {
        return None;
    }
    match key {
        ApiKey::API_VERSIONS => at_once(v, body, |q| features::api_versions(c, v, &q)),
        ApiKey::CREATE_TOPICS => run(v, body, |q| topics::create(c, q)).await,
        ApiKey::DELETE_TOPICS => run(v, body, |q| topics::delete(c, v, q)).await,
        ApiKey::ALTER_CONFIGS => run(v, body, |q| configs::alter(c, q)).await,
        ApiKey::ALTER_CLIENT_QUOTAS => run(v, body, |q| configs::alter_quotas(c, q)).await,
        ApiKey::CREATE_PARTITIONS => run(v, body, |q| topics::create_partitions(c, q)).await,
        ApiKey::ELECT_LEADERS => run(v, body, |q| partitions::elect(c, q)).await,
        ApiKey::INCREMENTAL_ALTER_CONFIGS => {
            run(v, body, |q| configs::incremental_alter(c, q)).await
        }
        ApiKey::ALTER_PARTITION_REASSIGNMENTS => run(v, body, |q| partitions::reassign(c, q)).await,
        ApiKey::LIST_PARTITION_REASSIGNMENTS => {
            at_once(v, body, |q| partitions::list_reassignments(c, &q))
        }
        ApiKey::ALTER_PARTITION => run(v, body, |q| partitions::alter(c, v, q)).await,
        ApiKey::UPDATE_FEATURES => run(v, body, |q| features::update(c, v, q)).await,
        ApiKey::ENVELOPE => run(v, body, |q| envelope::open(c, q)).await,
        ApiKey::DESCRIBE_CLUSTER => at_once(v, body, |q| controllers::describe_cluster(c, v, &q)),
        ApiKey::BROKER_REGISTRATION => run(v, body, |q| brokers::register(c, v, q)).await,
        ApiKey::BROKER_HEARTBEAT => run(v, body, |q| brokers::heartbeat(c, q)).await,
        ApiKey::UNREGISTER_BROKER => run(v, body, |q| brokers::unregister(c, q)).await,
        ApiKey::ALLOCATE_PRODUCER_IDS => run(v, body, |q| producer_ids::allocate(c, q)).await,
        ApiKey::CONTROLLER_REGISTRATION => run(v, body, |q| controllers::register(c, q)).await,
        ApiKey::ASSIGN_REPLICAS_TO_DIRS => run(v, body, |q| partitions::assign_to_dirs(c, q)).await,
        ApiKey::UNREGISTER_CONTROLLER => run(v, body, |q| controllers::unregister(c, q)).await,
        ApiKey::FETCH => run(v, body, |q| serve::fetch(c, q, v)).await,
        ApiKey::FETCH_SNAPSHOT => run(v, body, |q| serve::fetch_snapshot(c, q)).await,
        ApiKey::DESCRIBE_QUORUM => at_once(v, body, |q| serve::describe_quorum(c, &q)),
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
    body: Reader,
    answer: impl FnOnce(Q) -> F,
) -> Option<Bytes> {
    let response = answer(decode(version, body)?).await;
    encode(version, &response)
}

fn at_once<Q: Message, R: Message>(
    version: i16,
    body: Reader,
    answer: impl FnOnce(Q) -> R,
) -> Option<Bytes> {
    encode(version, &answer(decode(version, body)?))
}

fn decode<Q: Message>(version: i16, mut body: Reader) -> Option<Q> {
    let decoded = Q::decode(&mut body, version).inspect_err(|error| {
        tracing::debug!(api = Q::NAME, version, %error, "request could not be decoded");
    });
    decoded.ok()
}

fn encode<R: Message>(version: i16, response: &R) -> Option<Bytes> {
    let encoded = response.to_bytes(version).inspect_err(|error| {
        tracing::error!(api = R::NAME, version, %error, "answer could not be encoded");
    });
    encoded.ok()
}
