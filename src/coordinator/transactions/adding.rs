//! AddPartitionsToTxn and AddOffsetsToTxn: a transaction opens with its first partitions and grows
//! with further ones; and the question of partitions' leaders whether it has them. Part of the
//! partition's state machine.

use super::effects::{Answer, Effects};
use super::partition_state::{Then, TransactionCoordinatorShard};
use super::partitions::Partitions;
use super::state::State;
use super::transaction::{Producer, TransactionVersion};
use crate::coordinator::ReplyToken;
use crate::wire::{ErrorCode, Str};

impl TransactionCoordinatorShard {
    /// The producer is about to write to these partitions (AddPartitionsToTxn, AddOffsetsToTxn).
    pub fn add_partitions(
        &mut self,
        id: &Str,
        producer: Producer,
        partitions: &Partitions,
        version: TransactionVersion,
        now_ms: i64,
        token: ReplyToken,
    ) -> Effects {
        let mut out = Effects::default();
        match self.judge_addition(id, producer, partitions) {
            Err(error) => out.reply(token, Answer::refused(error)),
            Ok(false) => out.reply(token, Answer::ok(producer.id, producer.epoch)),
            Ok(true) => {
                let target = self
                    .ids
                    .get(id)
                    .map(|entry| entry.now.adding(partitions, version, now_ms));
                self.store(id, target, Then::Tell, Some(token), &mut out);
            }
        }
        out
    }

    /// Whether the addition is new.
    fn judge_addition(
        &self,
        id: &Str,
        producer: Producer,
        partitions: &Partitions,
    ) -> Result<bool, ErrorCode> {
        let entry = self.entry_of(id)?;
        let now = &entry.now;
        if entry.pending.is_some() {
            return Err(ErrorCode::CONCURRENT_TRANSACTIONS);
        }
        now.check_producer(producer)?;
        if now.state.is_prepared() {
            return Err(ErrorCode::CONCURRENT_TRANSACTIONS);
        }
        let is_known = now.state == State::Ongoing && now.partitions.contains_all(partitions);
        Ok(!is_known)
    }

    /// Whether the producer's transaction has these partitions: what a partition's leader asks
    /// before it takes the first batch. What is under way is not looked at, for the append is
    /// judged once more by the partition's own state.
    pub fn verify_partitions(
        &self,
        id: &Str,
        producer: Producer,
        partitions: &Partitions,
    ) -> Vec<(Str, i32, ErrorCode)> {
        let verdict = || {
            let entry = self.entry_of(id)?;
            entry.now.check_producer(producer)?;
            if entry.now.state.is_prepared() {
                return Err(ErrorCode::CONCURRENT_TRANSACTIONS);
            }
            Ok(&entry.now.partitions)
        };
        let verdict = verdict();
        let judged = partitions.iter().map(|(topic, index)| {
            let error = match &verdict {
                Err(error) => *error,
                Ok(known) if known.contains(topic, index) => ErrorCode::NONE,
                Ok(_) => ErrorCode::TRANSACTION_ABORTABLE,
            };
            (topic.clone(), index, error)
        });
        judged.collect()
    }
}
