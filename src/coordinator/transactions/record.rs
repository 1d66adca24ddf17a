//! The records of `__transaction_state` as bytes: what Kafka 4.4 writes, and any version it may
//! have left behind. Pure.

use bytes::Bytes;

use super::partitions::Partitions;
use super::state::State;
use super::transaction::{NO_PRODUCER_EPOCH, Transaction, TransactionVersion};
use crate::coordinator::CoordinatorRecord;
use crate::wire::messages::TransactionRecord;
use crate::wire::messages::transaction_log_key::TransactionLogKey;
use crate::wire::messages::transaction_log_value::{PartitionsSchema, TransactionLogValue};
use crate::wire::{DecodeError, EncodeError, Str};

/// Why a stored record cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("transactional id {id} has the unknown state {state}")]
    UnknownState { id: Str, state: i8 },
}

/// The record of a transactional id; `None` removes it. `flexible`: the cluster's
/// `transaction.version` is 1 or higher, so that every coordinator reads the tagged fields.
///
/// # Errors
/// The id or a topic's name is longer than the protocol allows.
pub fn write(
    id: &Str,
    transaction: Option<&Transaction>,
    flexible: bool,
) -> Result<CoordinatorRecord, EncodeError> {
    let key = TransactionLogKey {
        transactional_id: id.clone(),
        ..Default::default()
    };
    let record = TransactionRecord::TransactionLog(key, transaction.map(value_of));
    let (key, value) = record.encode(i16::from(flexible))?;
    Ok(CoordinatorRecord { key, value })
}

fn value_of(transaction: &Transaction) -> TransactionLogValue {
    let partitions = transaction.partitions.topics();
    let partitions = partitions.map(|(topic, partition_ids)| PartitionsSchema {
        topic: topic.clone(),
        partition_ids,
        ..Default::default()
    });
    TransactionLogValue {
        producer_id: transaction.producer_id,
        previous_producer_id: transaction.previous_producer_id,
        next_producer_id: transaction.next_producer_id,
        producer_epoch: transaction.epoch,
        transaction_timeout_ms: transaction.timeout_ms,
        transaction_status: transaction.state as i8,
        // Kafka leaves the list out where there is no transaction.
        transaction_partitions: match transaction.state {
            State::Empty => None,
            _ => Some(partitions.collect()),
        },
        transaction_last_update_timestamp_ms: transaction.last_update_ms,
        transaction_start_timestamp_ms: transaction.start_ms,
        client_transaction_version: transaction.client_version.0,
        ..Default::default()
    }
}

/// A stored record: the transactional id, and what it is set to; `None` for a removed one.
pub fn read(key: Bytes, value: Option<Bytes>) -> Result<(Str, Option<Transaction>), RecordError> {
    let TransactionRecord::TransactionLog(key, value) = TransactionRecord::decode(key, value)?;
    let id = key.transactional_id.detached();
    let Some(value) = value else {
        return Ok((id, None));
    };
    let Some(state) = State::of_number(value.transaction_status) else {
        return Err(RecordError::UnknownState {
            id,
            state: value.transaction_status,
        });
    };
    let topics = value.transaction_partitions.iter().flatten();
    let partitions: Partitions = topics
        .flat_map(|topic| {
            topic
                .partition_ids
                .iter()
                .map(|index| (&topic.topic, *index))
        })
        .collect();
    let transaction = Transaction {
        producer_id: value.producer_id,
        previous_producer_id: value.previous_producer_id,
        next_producer_id: value.next_producer_id,
        epoch: value.producer_epoch,
        last_epoch: NO_PRODUCER_EPOCH,
        timeout_ms: value.transaction_timeout_ms,
        state,
        partitions,
        start_ms: value.transaction_start_timestamp_ms,
        last_update_ms: value.transaction_last_update_timestamp_ms,
        client_version: TransactionVersion(value.client_transaction_version),
    };
    Ok((id, Some(transaction)))
}
