//! EndTxn, and the end that the coordinator itself brings about: a producer that is replaced, or
//! that is silent for too long, is fenced and its transaction aborted. Part of the partition's
//! state machine.

use super::effects::{Answer, Effects};
use super::init::NeedsProducerId;
use super::partition_state::{Then, TransactionCoordinatorShard};
use super::state::State;
use super::transaction::{
    NO_PRODUCER_ID, Producer, Transaction, TransactionVersion, is_exhausted, is_nobodys,
};
use crate::coordinator::ReplyToken;
use crate::wire::{ErrorCode, Str};

/// What an EndTxn of a producer comes to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Refused(ErrorCode),
    /// It was done before and its answer lost.
    Done,
    /// Decide the end.
    End,
}

impl TransactionCoordinatorShard {
    /// `fresh` is a new producer id, if the caller has been told to get one.
    pub fn end(
        &mut self,
        id: &Str,
        producer: Producer,
        commit: bool,
        version: TransactionVersion,
        fresh: Option<i64>,
        now_ms: i64,
        token: ReplyToken,
    ) -> Result<Effects, NeedsProducerId> {
        let mut out = Effects::default();
        let entry = match self.entry_of(id) {
            Ok(entry) => entry,
            Err(error) => {
                out.reply(token, Answer::refused(error));
                return Ok(out);
            }
        };
        let now = &entry.now;
        let concurrent = Verdict::Refused(ErrorCode::CONCURRENT_TRANSACTIONS);
        let verdict = match (entry.pending.is_some(), version.bumps_epochs()) {
            // First of all: what is under way may be a new producer id that the producer has
            // been told already.
            (true, true) => concurrent,
            (false, true) => judge_v2(now, producer, commit),
            (is_pending, false) => match (now.check_producer(producer), is_pending) {
                (Err(error), _) => Verdict::Refused(error),
                (Ok(()), true) => concurrent,
                (Ok(()), false) => judge(now, commit),
            },
        };
        match verdict {
            Verdict::Refused(error) => out.reply(token, Answer::refused(error)),
            Verdict::Done => out.reply(token, Answer::ok(now.producer_id, now.epoch)),
            Verdict::End => {
                let bump = version.bumps_epochs();
                let next_producer_id = match bump && now.is_exhausted() {
                    true => fresh.ok_or(NeedsProducerId)?,
                    false => NO_PRODUCER_ID,
                };
                let version = match bump {
                    true => version,
                    false => TransactionVersion::V0,
                };
                let target = now.prepared(commit, version, bump, next_producer_id, now_ms);
                let then = Then::WriteMarkers { fence: false };
                self.store(id, Some(target), then, Some(token), &mut out);
            }
        }
        Ok(out)
    }

    /// Shuts the producer of an open transaction out and aborts it. Whoever waits is told to try
    /// again, for the epoch that aborts is nobody's.
    pub(super) fn fence(
        &mut self,
        id: &Str,
        now_ms: i64,
        waiting: Option<ReplyToken>,
        out: &mut Effects,
    ) {
        let Some(entry) = self.ids.get_mut(id) else {
            return;
        };
        if !entry.fence_failed {
            entry.now = entry.now.fenced();
        }
        let version = entry.now.client_version;
        let target = entry
            .now
            .prepared(false, version, false, NO_PRODUCER_ID, now_ms);
        let then = Then::WriteMarkers { fence: true };
        self.store(id, Some(target), then, waiting, out);
    }
}

/// What a client whose epoch stays the same over its transactions may do with this one.
fn judge(now: &Transaction, commit: bool) -> Verdict {
    match (now.state, commit) {
        (State::Ongoing, _) => Verdict::End,
        (State::CompleteCommit, true) | (State::CompleteAbort, false) => Verdict::Done,
        (State::PrepareCommit, true) | (State::PrepareAbort, false) => {
            Verdict::Refused(ErrorCode::CONCURRENT_TRANSACTIONS)
        }
        _ => Verdict::Refused(ErrorCode::INVALID_TXN_STATE),
    }
}

/// A client that gets a new epoch with each end (KIP-890): the same request twice is known by the
/// epoch it was sent with.
fn judge_v2(now: &Transaction, producer: Producer, commit: bool) -> Verdict {
    let is_now = producer.epoch == now.epoch;
    let was_bumped = !is_nobodys(now.epoch) && now.epoch - 1 == producer.epoch;
    let was_rotated =
        producer.id == now.previous_producer_id && is_exhausted(producer.epoch) && now.epoch == 0;
    if producer.id != now.producer_id && !was_rotated {
        return Verdict::Refused(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    }
    let is_valid = match now.state {
        State::Ongoing | State::Empty => is_now,
        State::PrepareCommit | State::PrepareAbort => was_bumped,
        State::CompleteCommit | State::CompleteAbort => is_now || was_bumped || was_rotated,
    };
    if !is_valid || is_nobodys(producer.epoch) {
        return Verdict::Refused(ErrorCode::PRODUCER_FENCED);
    }
    let is_repeated = was_bumped || was_rotated;
    match (now.state, commit) {
        (State::Ongoing, _) => Verdict::End,
        (State::CompleteCommit, true) | (State::CompleteAbort, false) if is_repeated => {
            Verdict::Done
        }
        (State::PrepareCommit, true) | (State::PrepareAbort, false) => {
            Verdict::Refused(ErrorCode::CONCURRENT_TRANSACTIONS)
        }
        // A transaction that has touched nothing may be aborted: the producer cannot know whether
        // what it sent has arrived.
        (State::Empty | State::CompleteCommit | State::CompleteAbort, false) if !is_repeated => {
            Verdict::End
        }
        _ => Verdict::Refused(ErrorCode::INVALID_TXN_STATE),
    }
}
