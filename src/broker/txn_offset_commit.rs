//! TxnOffsetCommit (key 28, v0-6): a producer commits a group's offsets inside its transaction. The
//! group's coordinator writes them once the transaction's coordinator has confirmed it (from v5 on:
//! has added the offsets partition to it). Decides nothing about groups.

use super::groups::{Topics, caller, with_coordinator};
use super::request::Context;
use crate::coordinator::{Response, append_error_to_response_error, refusal, writes_offsets};
use crate::log::VerificationGuard;
use crate::shard::verification::{Asking, Transaction};
use crate::wire::ErrorCode;
use crate::wire::messages::txn_offset_commit_request::TxnOffsetCommitRequest;
use crate::wire::messages::txn_offset_commit_response::TxnOffsetCommitResponse;
use std::rc::Rc;

/// Producers before this version do not expect that a coordinator loads (KAFKA-7296).
const LOADING_UNDERSTOOD_FROM: i16 = 2;

pub async fn handle(
    context: Rc<Context>,
    request: TxnOffsetCommitRequest,
) -> TxnOffsetCommitResponse {
    let asked = request.clone();
    let answered = commit(&context, request).await;
    let mut response = match answered {
        Ok(Response::TxnOffsetCommit(response)) => response,
        Ok(_) => refusal::txn_offset_commit(&asked, ErrorCode::UNKNOWN_SERVER_ERROR),
        Err(error) => refusal::txn_offset_commit(&asked, error),
    };
    if context.version < LOADING_UNDERSTOOD_FROM {
        hide_loading(&mut response);
    }
    response
}

/// Runs on the connection's shard; what is verified and written, on that of the offsets partition.
async fn commit(
    context: &Rc<Context>,
    request: TxnOffsetCommitRequest,
) -> Result<Response, ErrorCode> {
    let caller = caller(context);
    let topics = Topics(context.shard.image());
    // What is refused as a whole is answered without asking anybody.
    let is_verified = writes_offsets(&request, &topics, context.version);
    let transaction = Transaction {
        transactional_id: request.transactional_id.clone(),
        producer_id: request.producer_id,
        producer_epoch: request.producer_epoch,
        asking: Asking::of_txn_offset_commit(context.version),
    };
    let group = request.group_id.clone();
    with_coordinator(context, &group, move |shard, coordinator| async move {
        let guard = match is_verified {
            true => shard
                .verify_commit(&transaction, coordinator.partition())
                .await
                .map_err(append_error_to_response_error)?,
            false => VerificationGuard::NONE,
        };
        coordinator
            .command(|state, token| {
                state.txn_offset_commit(&caller.call(), request, guard, &topics, token)
            })
            .await
    })
    .await
}

fn hide_loading(response: &mut TxnOffsetCommitResponse) {
    for partition in response.topics.iter_mut().flat_map(|t| &mut t.partitions) {
        if partition.error_code == ErrorCode::COORDINATOR_LOAD_IN_PROGRESS.0 {
            partition.error_code = ErrorCode::COORDINATOR_NOT_AVAILABLE.0;
        }
    }
}
