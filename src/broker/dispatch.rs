//! From a frame to the code that answers it: decodes the header and the body, finds the API, and
//! encodes what it answers. Runs on the connection's shard. What an API does is in its own file.

use super::reply::Reply;
use super::request::{Context, Peer};
use super::*;
use crate::rt::Instant;
use crate::shard::Shard;
use crate::wire::api::ApiKey;
use crate::wire::frame::RequestFrame;
use crate::wire::messages::alter_client_quotas_request::AlterClientQuotasRequest;
use crate::wire::messages::alter_partition_reassignments_request::AlterPartitionReassignmentsRequest;
use crate::wire::messages::api_versions_request::ApiVersionsRequest;
use crate::wire::messages::describe_quorum_request::DescribeQuorumRequest;
use crate::wire::messages::elect_leaders_request::ElectLeadersRequest;
use crate::wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsRequest;
use crate::wire::messages::unregister_broker_request::UnregisterBrokerRequest;
use crate::wire::messages::unregister_controller_request::UnregisterControllerRequest;
use crate::wire::messages::update_features_request::UpdateFeaturesRequest;
use crate::wire::{Message, Reader};
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A request that has been started.
pub enum Started {
    /// Its answer.
    Done(Reply),
    /// Its answer follows; the next request may start.
    Waiting(Pin<Box<dyn Future<Output = Reply>>>),
    /// It cannot be answered: the connection is to be closed, as Kafka does.
    Close,
}

/// Starts the request in `frame`, which had arrived whole at `received`. Requests of one
/// connection are started one after the other.
pub async fn start(shard: &Rc<Shard>, peer: &Rc<Peer>, frame: Bytes, received: Instant) -> Started {
    let size = frame.len();
    match begin(shard, peer, frame, received) {
        Ok((context, body)) => {
            shard.metrics().on_request(&context, size);
            route(context, body).await
        }
        Err(reason) => {
            tracing::debug!(peer = %peer.remote, reason, "request refused, connection closed");
            Started::Close
        }
    }
}

/// Decodes the header. An unknown API, or a version it does not have, cannot be answered; only
/// ApiVersions is told which versions there are.
fn begin(
    shard: &Rc<Shard>,
    peer: &Rc<Peer>,
    frame: Bytes,
    received: Instant,
) -> Result<(Rc<Context>, Reader), &'static str> {
    let size = frame.len();
    let RequestFrame {
        key,
        version,
        correlation_id,
        client_id,
        body,
    } = RequestFrame::open(frame).map_err(|_| "bad header")?;
    let range = apis::served(key).ok_or("unknown API key")?;
    if !range.contains(&version) && key != ApiKey::API_VERSIONS {
        return Err("unsupported version");
    }
    let context = Context::new(
        shard.clone(),
        peer.clone(),
        key,
        version,
        correlation_id,
        client_id,
        size,
        received,
    );
    Ok((context, body))
}

async fn route(context: Rc<Context>, body: Reader) -> Started {
    let c = context.clone();
    match context.key {
        ApiKey::PRODUCE => start_produce(context, body).await,
        ApiKey::FETCH => run(c, body, fetch::handle).await,
        ApiKey::LIST_OFFSETS => run(c, body, list_offsets::handle).await,
        ApiKey::METADATA => run(c, body, metadata::handle).await,
        ApiKey::OFFSET_COMMIT => run(c, body, groups::offset_commit).await,
        ApiKey::OFFSET_FETCH => run(c, body, groups::offset_fetch).await,
        ApiKey::FIND_COORDINATOR => run(c, body, find_coordinator::handle).await,
        ApiKey::JOIN_GROUP => run(c, body, groups::join).await,
        ApiKey::HEARTBEAT => run(c, body, groups::heartbeat).await,
        ApiKey::LEAVE_GROUP => run(c, body, groups::leave).await,
        ApiKey::SYNC_GROUP => run(c, body, groups::sync).await,
        ApiKey::DESCRIBE_GROUPS => run(c, body, groups::describe).await,
        ApiKey::LIST_GROUPS => run(c, body, groups::list).await,
        ApiKey::API_VERSIONS => start_api_versions(c, body),
        ApiKey::CREATE_TOPICS => run(c, body, topics::create).await,
        ApiKey::DELETE_TOPICS => run(c, body, topics::delete).await,
        ApiKey::DELETE_RECORDS => run(c, body, delete_records::handle).await,
        ApiKey::INIT_PRODUCER_ID => run(c, body, producers::init).await,
        ApiKey::OFFSET_FOR_LEADER_EPOCH => run(c, body, leader_epochs::handle).await,
        ApiKey::ADD_PARTITIONS_TO_TXN => run(c, body, transactions::add_partitions).await,
        ApiKey::ADD_OFFSETS_TO_TXN => run(c, body, transactions::add_offsets).await,
        ApiKey::END_TXN => run(c, body, transactions::end).await,
        ApiKey::WRITE_TXN_MARKERS => run(c, body, markers::handle).await,
        ApiKey::TXN_OFFSET_COMMIT => run(c, body, txn_offset_commit::handle).await,
        ApiKey::DESCRIBE_CONFIGS => run(c, body, configs::describe).await,
        ApiKey::ALTER_CONFIGS => run(c, body, configs::alter).await,
        ApiKey::ALTER_REPLICA_LOG_DIRS => run(c, body, alter_log_dirs::handle).await,
        ApiKey::DESCRIBE_LOG_DIRS => run(c, body, log_dirs::handle).await,
        ApiKey::CREATE_PARTITIONS => run(c, body, topics::create_partitions).await,
        ApiKey::ELECT_LEADERS => run(c, body, forwarded::handle::<ElectLeadersRequest>).await,
        ApiKey::ALTER_PARTITION_REASSIGNMENTS => {
            run(
                c,
                body,
                forwarded::handle::<AlterPartitionReassignmentsRequest>,
            )
            .await
        }
        ApiKey::DESCRIBE_CLIENT_QUOTAS => run(c, body, client_quotas::describe).await,
        ApiKey::ALTER_CLIENT_QUOTAS => {
            run(c, body, forwarded::handle::<AlterClientQuotasRequest>).await
        }
        ApiKey::LIST_PARTITION_REASSIGNMENTS => {
            run(
                c,
                body,
                forwarded::handle::<ListPartitionReassignmentsRequest>,
            )
            .await
        }
        ApiKey::DESCRIBE_QUORUM => run(c, body, forwarded::handle::<DescribeQuorumRequest>).await,
        ApiKey::UPDATE_FEATURES => run(c, body, forwarded::handle::<UpdateFeaturesRequest>).await,
        ApiKey::UNREGISTER_BROKER => {
            run(c, body, forwarded::handle::<UnregisterBrokerRequest>).await
        }
        ApiKey::UNREGISTER_CONTROLLER => {
            run(c, body, forwarded::handle::<UnregisterControllerRequest>).await
        }
        ApiKey::DELETE_GROUPS => run(c, body, groups::delete).await,
        ApiKey::INCREMENTAL_ALTER_CONFIGS => run(c, body, configs::incremental_alter).await,
        ApiKey::OFFSET_DELETE => run(c, body, groups::offset_delete).await,
        ApiKey::DESCRIBE_CLUSTER => run(c, body, describe_cluster::handle).await,
        ApiKey::DESCRIBE_PRODUCERS => run(c, body, producers::describe).await,
        ApiKey::DESCRIBE_TRANSACTIONS => run(c, body, transactions::describe).await,
        ApiKey::LIST_TRANSACTIONS => run(c, body, transactions::list).await,
        ApiKey::LIST_CONFIG_RESOURCES => run(c, body, configs::list_resources).await,
        ApiKey::DESCRIBE_TOPIC_PARTITIONS => run(c, body, describe_topic_partitions::handle).await,
        _ => Started::Close,
    }
}

/// Decodes the body, lets `answer` answer, encodes.
async fn run<Q, R, F>(
    context: Rc<Context>,
    body: Reader,
    answer: impl FnOnce(Rc<Context>, Q) -> F,
) -> Started
where
    Q: Message,
    R: Message,
    F: Future<Output = R>,
{
    let Some((request, json)) = decode::<Q>(&context, body) else {
        return Started::Close;
    };
    let response = answer(context.clone(), request).await;
    context.complete();
    Started::Done(encode(&context, &response, json))
}

async fn start_produce(context: Rc<Context>, body: Reader) -> Started {
    let Some((request, json)) = decode(&context, body) else {
        return Started::Close;
    };
    Started::Waiting(produce::start(context, request, json).await)
}

/// An ApiVersions request of a version we do not have is answered in version 0, with the error
/// and the versions we do have.
fn start_api_versions(context: Rc<Context>, body: Reader) -> Started {
    let known = (ApiVersionsRequest::MIN_VERSION..=ApiVersionsRequest::MAX_VERSION)
        .contains(&context.version);
    if !known {
        let response = api_versions::unsupported();
        context.complete();
        return match Reply::encode_as(&context, &response, 0) {
            Ok(reply) => Started::Done(reply),
            Err(_) => Started::Close,
        };
    }
    let Some((request, json)) = decode(&context, body) else {
        return Started::Close;
    };
    let response = api_versions::handle(&context, request);
    context.complete();
    Started::Done(encode(&context, &response, json))
}

/// The body, and its JSON if the request log wants it.
fn decode<Q: Message>(
    context: &Context,
    mut body: Reader,
) -> Option<(Q, Option<serde_json::Value>)> {
    match Q::decode(&mut body, context.version) {
        Ok(request) => {
            let json = context
                .shard
                .request_log_on()
                .then(|| request.to_json(context.version));
            Some((request, json))
        }
        Err(error) => {
            tracing::debug!(
                peer = %context.peer.remote, api = context.key.name(), version = context.version, %error,
                "request could not be decoded, connection closed"
            );
            None
        }
    }
}

/// Encodes an answer. What cannot be encoded is a bug of ours: the client sees a closed
/// connection instead of a wrong answer.
pub fn encode<R: Message>(
    context: &Rc<Context>,
    response: &R,
    request: Option<serde_json::Value>,
) -> Reply {
    match Reply::encode(context, response, request) {
        Ok(reply) => reply,
        Err(error) => {
            tracing::error!(api = context.key.name(), version = context.version, %error, "answer could not be encoded");
            Reply::none(context, true, None)
        }
    }
}
