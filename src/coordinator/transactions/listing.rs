//! ListTransactions and DescribeTransactions of one partition. Part of the partition's state
//! machine; changes nothing.

use super::partition_state::TransactionCoordinatorShard;
use super::state::State;
use super::transaction::{NO_PRODUCER_EPOCH, Transaction};
use crate::wire::{ErrorCode, Str};
use regex::Regex;

/// What ListTransactions asks for. Empty lists let everything through.
#[derive(Clone, Debug, Default)]
pub struct ListFilter {
    pub states: Vec<State>,
    pub producer_ids: Vec<i64>,
    /// Only transactions open for longer than this; negative: all.
    pub duration_ms: i64,
    /// The whole id matches it (KIP-1152).
    pub pattern: Option<Regex>,
}

/// One line of a ListTransactions answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub transactional_id: Str,
    pub producer_id: i64,
    pub state: State,
}

impl TransactionCoordinatorShard {
    pub fn list(&self, filter: &ListFilter, now_ms: i64) -> Result<Vec<Listed>, ErrorCode> {
        self.refusal().map_or(Ok(()), Err)?;
        let wanted = |id: &Str, now: &Transaction| {
            let is_long = now_ms.saturating_sub(now.start_ms) > filter.duration_ms;
            now.epoch != NO_PRODUCER_EPOCH
                && (filter.states.is_empty() || filter.states.contains(&now.state))
                && (filter.producer_ids.is_empty()
                    || filter.producer_ids.contains(&now.producer_id))
                && (filter.duration_ms < 0 || is_long)
                && filter
                    .pattern
                    .as_ref()
                    .is_none_or(|pattern| pattern.is_match(id))
        };
        Ok(self
            .ids
            .iter()
            .filter(|(id, entry)| wanted(id, &entry.now))
            .map(|(id, entry)| Listed {
                transactional_id: id.clone(),
                producer_id: entry.now.producer_id,
                state: entry.now.state,
            })
            .collect())
    }

    /// A transactional id as it stands.
    pub fn describe(&self, id: &str) -> Result<Transaction, ErrorCode> {
        self.refusal().map_or(Ok(()), Err)?;
        self.ids
            .get(id)
            .filter(|entry| entry.now.epoch != NO_PRODUCER_EPOCH)
            .map(|entry| entry.now.clone())
            .ok_or(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND)
    }
}
