//! ListTransactions (key 66) and DescribeTransactions (key 65): this broker coordinates no
//! transactions yet, and says so truthfully. Runs on the connection's shard.

use super::request::Context;
use crate::wire::ErrorCode;
use crate::wire::coordinator_record::TRANSACTION_STATES;
use crate::wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use crate::wire::messages::describe_transactions_response::{
    DescribeTransactionsResponse, TransactionState,
};
use crate::wire::messages::list_transactions_request::ListTransactionsRequest;
use crate::wire::messages::list_transactions_response::ListTransactionsResponse;
use std::rc::Rc;

pub async fn list(_: Rc<Context>, request: ListTransactionsRequest) -> ListTransactionsResponse {
    let unknown_state_filters = request
        .state_filters
        .into_iter()
        .filter(|state| !TRANSACTION_STATES.contains(&&**state))
        .collect();
    ListTransactionsResponse {
        unknown_state_filters,
        ..Default::default()
    }
}

pub async fn describe(
    _: Rc<Context>,
    request: DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    let transaction_states = request
        .transactional_ids
        .into_iter()
        .map(|transactional_id| TransactionState {
            error_code: ErrorCode::TRANSACTIONAL_ID_NOT_FOUND.0,
            transactional_id,
            ..Default::default()
        })
        .collect();
    DescribeTransactionsResponse {
        transaction_states,
        ..Default::default()
    }
}
