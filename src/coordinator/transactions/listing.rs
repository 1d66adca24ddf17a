//! ListTransactions and DescribeTransactions of one partition. Part of the partition's state
//! machine; changes nothing.

use super::partition_state::{Phase, TransactionCoordinatorShard};
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

impl ListFilter {
    fn takes(&self, id: &str, now: &Transaction, now_ms: i64) -> bool {
        let is_long = now_ms.saturating_sub(now.start_ms) > self.duration_ms;
        now.epoch != NO_PRODUCER_EPOCH
            && (self.states.is_empty() || self.states.contains(&now.state))
            && (self.producer_ids.is_empty() || self.producer_ids.contains(&now.producer_id))
            && (self.duration_ms < 0 || is_long)
            && self.pattern.as_ref().is_none_or(|p| p.is_match(id))
    }
}

/// One line of a ListTransactions answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub transactional_id: Str,
    pub producer_id: i64,
    pub state: State,
}

impl TransactionCoordinatorShard {
    /// Those of the ids from the `from`th on that `filter` lets through. With them comes where to go
    /// on, if that is not the end.
    pub fn list(
        &self,
        filter: &ListFilter,
        from: usize,
        now_ms: i64,
    ) -> Result<(Vec<Listed>, Option<usize>), ErrorCode> {
        match self.phase {
            Phase::Loading => return Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            Phase::Active => {}
            // It coordinates nothing: that keeps nobody from being told of the others.
            Phase::Unloaded => return Ok((Vec::new(), None)),
        }
        let end = from.saturating_add(self.limits.ids_per_step);
        let (from, to) = (from.min(self.ids.len()), end.min(self.ids.len()));
        let listed = self.ids[from..to]
            .iter()
            .filter(|(id, entry)| filter.takes(id, &entry.now, now_ms))
            .map(|(id, entry)| Listed {
                transactional_id: id.clone(),
                producer_id: entry.now.producer_id,
                state: entry.now.state,
            });
        Ok((listed.collect(), (to < self.ids.len()).then_some(to)))
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
