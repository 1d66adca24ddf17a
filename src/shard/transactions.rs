//! The transaction coordinators of one shard. Runs on the shard.

use super::Shard;
use crate::wire::ErrorCode;
use crate::wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use crate::wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use std::rc::Rc;

impl Shard {
    /// Adds partitions to transactions that this broker coordinates, or only looks whether they
    /// are in them (`verify_only`). Whoever leads a partition asks this before it appends.
    pub async fn add_partitions_to_transactions(
        self: &Rc<Self>,
        transactions: Vec<AddPartitionsToTxnTransaction>,
    ) -> Vec<AddPartitionsToTxnResult> {
        transactions
            .into_iter()
            .map(|transaction| not_added(transaction, ErrorCode::COORDINATOR_NOT_AVAILABLE))
            .collect()
    }
}

/// The answer that gives every partition the same error.
pub fn not_added(
    transaction: AddPartitionsToTxnTransaction,
    error: ErrorCode,
) -> AddPartitionsToTxnResult {
    AddPartitionsToTxnResult {
        transactional_id: transaction.transactional_id,
        topic_results: transaction
            .topics
            .into_iter()
            .map(|topic| AddPartitionsToTxnTopicResult {
                name: topic.name,
                results_by_partition: topic
                    .partitions
                    .into_iter()
                    .map(|partition_index| AddPartitionsToTxnPartitionResult {
                        partition_index,
                        partition_error_code: error.0,
                        ..Default::default()
                    })
                    .collect(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}
