//! InitProducerId with a transactional id: a producer takes the id over, with an epoch that no
//! other has had. Part of the partition's state machine. What it does to a producer before it:
//! that one's open transaction is aborted first, under an epoch that nobody was ever given.

use super::effects::{Answer, Effects};
use super::partition_state::{Entry, Then, TransactionCoordinatorShard};
use super::state::State;
use super::transaction::{NO_PRODUCER_EPOCH, Producer, Transaction, is_exhausted};
use crate::coordinator::ReplyToken;
use crate::wire::{ErrorCode, Str};

/// The command needs a producer id that no producer of the cluster has: get one and ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsProducerId;

impl TransactionCoordinatorShard {
    /// `expected`: the id and epoch that the producer has and goes on from, after an error
    /// (KIP-360). `fresh` is a new producer id, if the caller has been told to get one.
    pub fn init_producer_id(
        &mut self,
        id: &Str,
        timeout_ms: i32,
        expected: Option<Producer>,
        fresh: Option<i64>,
        now_ms: i64,
        token: ReplyToken,
    ) -> Result<Effects, NeedsProducerId> {
        let mut out = Effects::default();
        let refusal = self.refusal().or_else(|| {
            let fits = (1..=self.settings.max_timeout_ms).contains(&timeout_ms);
            if id.is_empty() {
                Some(ErrorCode::INVALID_REQUEST)
            } else {
                (!fits).then_some(ErrorCode::INVALID_TRANSACTION_TIMEOUT)
            }
        });
        if let Some(error) = refusal {
            out.reply(token, Answer::refused(error));
            return Ok(out);
        }
        if !self.ids.contains_key(id) {
            if self.ids.len() >= self.limits.ids {
                out.reply(token, Answer::refused(ErrorCode::POLICY_VIOLATION));
                return Ok(out);
            }
            let producer_id = fresh.ok_or(NeedsProducerId)?;
            let entry = Entry {
                now: Transaction::new(producer_id, timeout_ms, now_ms),
                pending: None,
                fence_failed: false,
            };
            self.ids.insert(id.detached(), entry);
        }
        let Some(entry) = self.ids.get(id) else {
            return Ok(out);
        };
        match judge(entry, expected) {
            Err(error) => out.reply(token, Answer::refused(error)),
            Ok(Way::AbortFirst) => self.fence(id, now_ms, Some(token), &mut out),
            Ok(Way::NewProducerId) => {
                let producer_id = fresh.ok_or(NeedsProducerId)?;
                let keep_last = expected.is_some();
                let target = entry
                    .now
                    .rotated(producer_id, keep_last, timeout_ms, now_ms);
                self.store(id, Some(target), Then::Tell, Some(token), &mut out);
            }
            Ok(Way::Epoch { epoch, last_epoch }) => {
                let target = entry.now.initialized(epoch, last_epoch, timeout_ms, now_ms);
                self.store(id, Some(target), Then::Tell, Some(token), &mut out);
            }
        }
        Ok(out)
    }
}

/// How a producer takes a transactional id over.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    Epoch { epoch: i16, last_epoch: i16 },
    NewProducerId,
    AbortFirst,
}

fn judge(entry: &Entry, expected: Option<Producer>) -> Result<Way, ErrorCode> {
    let now = &entry.now;
    if entry.pending.is_some() {
        return Err(ErrorCode::CONCURRENT_TRANSACTIONS);
    }
    if let Some(expected) = expected {
        let is_new = now.epoch == NO_PRODUCER_EPOCH;
        let is_current = expected.id == now.producer_id;
        let was_before = expected.id == now.previous_producer_id && is_exhausted(expected.epoch);
        if !is_new && !is_current && !was_before {
            return Err(ErrorCode::PRODUCER_FENCED);
        }
    }
    match now.state {
        State::PrepareCommit | State::PrepareAbort => Err(ErrorCode::CONCURRENT_TRANSACTIONS),
        State::Ongoing => Ok(Way::AbortFirst),
        State::Empty | State::CompleteCommit | State::CompleteAbort => {
            if now.is_exhausted() && expected.is_none_or(|expected| expected.epoch == now.epoch) {
                return Ok(Way::NewProducerId);
            }
            next_epoch(now, expected)
        }
    }
}

fn next_epoch(now: &Transaction, expected: Option<Producer>) -> Result<Way, ErrorCode> {
    let Some(expected) = expected else {
        return Ok(Way::Epoch {
            epoch: now.epoch + 1,
            // Whoever had an epoch before has none to go on from.
            last_epoch: NO_PRODUCER_EPOCH,
        });
    };
    let goes_on = now.epoch == NO_PRODUCER_EPOCH || expected.epoch == now.epoch;
    if goes_on && !now.is_exhausted() {
        Ok(Way::Epoch {
            epoch: now.epoch + 1,
            last_epoch: now.epoch,
        })
    } else if expected.epoch == now.last_epoch && now.last_epoch != NO_PRODUCER_EPOCH {
        // The answer to the same request was lost.
        Ok(Way::Epoch {
            epoch: now.epoch,
            last_epoch: now.last_epoch,
        })
    } else {
        Err(ErrorCode::PRODUCER_FENCED)
    }
}
