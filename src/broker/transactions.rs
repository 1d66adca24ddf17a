//! The transaction APIs of clients and of partitions' leaders: InitProducerId with a transactional
//! id, AddPartitionsToTxn (key 24, v0-5), AddOffsetsToTxn (25, v0-4), EndTxn (26, v0-5),
//! ListTransactions (66, v0-2) and DescribeTransactions (65). Each goes to the coordinator of the
//! transactional id, on the shard that owns it. Runs on the connection's shard; decides nothing
//! about transactions.

use super::request::Context;
use crate::cluster::OFFSETS_TOPIC;
use crate::coordinator::transactions::{
    Answer, ListFilter, Partitions, Producer, State, TransactionVersion,
};
use crate::wire::coordinator_record::TRANSACTION_STATES;
use crate::wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use crate::wire::messages::add_offsets_to_txn_response::AddOffsetsToTxnResponse;
use crate::wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction,
};
use crate::wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
};
use crate::wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use crate::wire::messages::describe_transactions_response::{
    DescribeTransactionsResponse, TopicData, TransactionState,
};
use crate::wire::messages::end_txn_request::EndTxnRequest;
use crate::wire::messages::end_txn_response::EndTxnResponse;
use crate::wire::messages::init_producer_id_request::InitProducerIdRequest;
use crate::wire::messages::list_transactions_request::ListTransactionsRequest;
use crate::wire::messages::list_transactions_response::{
    ListTransactionsResponse, TransactionState as ListedState,
};
use crate::wire::{ErrorCode, Str};
use regex::Regex;
use std::rc::Rc;

/// The first versions that know PRODUCER_FENCED (KIP-588).
const INIT_FENCED_VERSION: i16 = 4;
const FENCED_VERSION: i16 = 2;
/// From here on AddPartitionsToTxn is for many transactions, sent by brokers for their clients with
/// transactions v2 (KIP-890).
const BATCHED_VERSION: i16 = 4;
/// EndTxn of a client with transactions v2.
const V2_END_VERSION: i16 = 5;

/// A client that does not know PRODUCER_FENCED is told what it was told before.
fn fenced_as(error: ErrorCode, version: i16, known_from: i16) -> ErrorCode {
    match error {
        ErrorCode::PRODUCER_FENCED if version < known_from => ErrorCode::INVALID_PRODUCER_EPOCH,
        error => error,
    }
}

fn version_of(context: &Context, v2_from: i16) -> TransactionVersion {
    match context.version >= v2_from {
        true => TransactionVersion::V2,
        false => TransactionVersion::V0,
    }
}

/// A producer's id and epoch under its transactional id.
pub(super) async fn init(
    context: &Rc<Context>,
    request: InitProducerIdRequest,
) -> Result<Producer, ErrorCode> {
    let id = request.transactional_id.unwrap_or_default();
    if id.is_empty() {
        return Err(ErrorCode::INVALID_REQUEST);
    }
    let expected = match (request.producer_id, request.producer_epoch) {
        (-1, -1) => None,
        (-1, _) | (_, -1) => return Err(ErrorCode::INVALID_REQUEST),
        (id, epoch) => Some(Producer { id, epoch }),
    };
    context.parked();
    let timeout_ms = request.transaction_timeout_ms;
    let is_early = |answer: &Result<Answer, ErrorCode>| {
        let concurrent = ErrorCode::CONCURRENT_TRANSACTIONS;
        answer.is_ok_and(|answer| answer.error == concurrent)
    };
    let shard = &context.shard;
    let ask = async || {
        let id = id.clone();
        shard
            .init_transactional_producer(id, timeout_ms, expected)
            .await
    };
    let answer = shard.patiently(is_early, ask).await?;
    match fenced_as(answer.error, context.version, INIT_FENCED_VERSION) {
        ErrorCode::NONE => Ok(answer.producer),
        error => Err(error),
    }
}

pub async fn add_partitions(
    context: Rc<Context>,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    context.parked();
    let version = version_of(&context, BATCHED_VERSION);
    if context.version >= BATCHED_VERSION {
        let mut results = Vec::with_capacity(request.transactions.len());
        for transaction in request.transactions {
            let added = context.shard.add_or_verify(transaction, version);
            results.push(added.await);
        }
        return AddPartitionsToTxnResponse {
            results_by_transaction: results,
            ..Default::default()
        };
    }
    let transaction = AddPartitionsToTxnTransaction {
        transactional_id: request.v3_and_below_transactional_id,
        producer_id: request.v3_and_below_producer_id,
        producer_epoch: request.v3_and_below_producer_epoch,
        verify_only: false,
        topics: request.v3_and_below_topics,
        ..Default::default()
    };
    // The next transaction of a client that has just ended one: brokers have patience of their own.
    let is_early = |result: &AddPartitionsToTxnResult| {
        let topics = result.topic_results.iter();
        let mut partitions = topics.flat_map(|topic| &topic.results_by_partition);
        let concurrent = ErrorCode::CONCURRENT_TRANSACTIONS.0;
        partitions.any(|partition| partition.partition_error_code == concurrent)
    };
    let shard = &context.shard;
    let ask = async || shard.add_or_verify(transaction.clone(), version).await;
    let mut result = shard.patiently(is_early, ask).await;
    for topic in &mut result.topic_results {
        for partition in &mut topic.results_by_partition {
            let error = ErrorCode(partition.partition_error_code);
            partition.partition_error_code = fenced_as(error, context.version, FENCED_VERSION).0;
        }
    }
    AddPartitionsToTxnResponse {
        results_by_topic_v3_and_below: result.topic_results,
        ..Default::default()
    }
}

pub async fn add_offsets(
    context: Rc<Context>,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse {
    let shard = &context.shard;
    let error = match shard.coordinator_partition(OFFSETS_TOPIC, &request.group_id) {
        Ok(partition) => {
            let topic = Str::from_static(OFFSETS_TOPIC);
            let partitions = Partitions::from_iter([(&topic, partition.index)]);
            let producer = Producer {
                id: request.producer_id,
                epoch: request.producer_epoch,
            };
            context.parked();
            let id = request.transactional_id;
            let version = TransactionVersion::V0;
            let is_early = |error: &ErrorCode| *error == ErrorCode::CONCURRENT_TRANSACTIONS;
            let ask = async || {
                let (id, partitions) = (id.clone(), partitions.clone());
                let added = shard
                    .add_partitions_to_transaction(id, producer, partitions, version)
                    .await;
                match added.as_deref() {
                    Ok([(_, _, error), ..]) => *error,
                    Ok([]) => ErrorCode::UNKNOWN_SERVER_ERROR,
                    Err(error) => *error,
                }
            };
            shard.patiently(is_early, ask).await
        }
        Err(error) => error,
    };
    AddOffsetsToTxnResponse {
        error_code: fenced_as(error, context.version, FENCED_VERSION).0,
        ..Default::default()
    }
}

pub async fn end(context: Rc<Context>, request: EndTxnRequest) -> EndTxnResponse {
    context.parked();
    let producer = Producer {
        id: request.producer_id,
        epoch: request.producer_epoch,
    };
    let id = request.transactional_id;
    let version = version_of(&context, V2_END_VERSION);
    let answered = context
        .shard
        .end_transaction(id, producer, request.committed, version)
        .await;
    let (error, producer) = match answered {
        Ok(answer) => (answer.error, answer.producer),
        Err(error) => (error, Producer::NONE),
    };
    EndTxnResponse {
        error_code: fenced_as(error, context.version, FENCED_VERSION).0,
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        ..Default::default()
    }
}

pub async fn list(
    context: Rc<Context>,
    request: ListTransactionsRequest,
) -> ListTransactionsResponse {
    let mut response = ListTransactionsResponse::default();
    let mut states = Vec::new();
    let of_all_states = request.state_filters.is_empty();
    for name in request.state_filters {
        match State::of_name(&name) {
            Some(state) => states.push(state),
            // Kafka's coordinator has states that it never stores; here nothing is in them.
            None if TRANSACTION_STATES.contains(&&*name) => {}
            None => response.unknown_state_filters.push(name),
        }
    }
    if states.is_empty() && !of_all_states {
        return response;
    }
    let pattern = request.transactional_id_pattern.filter(|p| !p.is_empty());
    // The whole id has to match.
    let pattern = pattern.map(|pattern| Regex::new(&format!("^(?:{})$", &*pattern)));
    let pattern = match pattern.transpose() {
        Ok(pattern) => pattern,
        Err(_) => {
            response.error_code = ErrorCode::INVALID_REGULAR_EXPRESSION.0;
            return response;
        }
    };
    let filter = ListFilter {
        states,
        producer_ids: request.producer_id_filters,
        duration_ms: request.duration_filter,
        pattern,
    };
    match context.shard.list_transactions(filter).await {
        Ok(all) => {
            response.transaction_states = all
                .into_iter()
                .map(|listed| ListedState {
                    transactional_id: listed.transactional_id,
                    producer_id: listed.producer_id,
                    transaction_state: Str::from_static(listed.state.name()),
                    ..Default::default()
                })
                .collect();
        }
        Err(error) => response.error_code = error.0,
    }
    response
}

pub async fn describe(
    context: Rc<Context>,
    request: DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    let mut response = DescribeTransactionsResponse::default();
    for transactional_id in request.transactional_ids {
        let described = match transactional_id.is_empty() {
            true => Err(ErrorCode::INVALID_REQUEST),
            false => {
                let id = transactional_id.clone();
                context.shard.describe_transaction(id).await
            }
        };
        response.transaction_states.push(match described {
            Ok(transaction) => TransactionState {
                transactional_id,
                transaction_state: Str::from_static(transaction.state.name()),
                transaction_timeout_ms: transaction.timeout_ms,
                transaction_start_time_ms: transaction.start_ms,
                producer_id: transaction.producer_id,
                producer_epoch: transaction.epoch,
                topics: transaction
                    .partitions
                    .topics()
                    .map(|(topic, partitions)| TopicData {
                        topic: topic.clone(),
                        partitions,
                        ..Default::default()
                    })
                    .collect(),
                ..Default::default()
            },
            Err(error) => TransactionState {
                error_code: error.0,
                transactional_id,
                ..Default::default()
            },
        });
    }
    response
}
