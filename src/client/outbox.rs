//! A producer's batches with everything that is decided about them: what may leave, what an answer
//! means, what is numbered anew, what is given up.
//!
//! Pure: takes the time and the randomness, sends nothing, wakes nobody. Joins the accumulator, the
//! sequences and the verdict; the sender does what this says.

use std::rc::Rc;
use std::time::Duration;

use super::accumulator::{Accumulator, Ready};
use super::backoff::Backoff;
use super::config::ProducerConfig;
use super::delivery::{Acked, BatchOutcome};
use super::error::ClientError;
use super::pending_batch::PendingBatch;
use super::sequences::{Identity, Sequences};
use super::topic_partition::TopicPartition;
use super::verdict::{Attempt, Verdict, judge};
use crate::rt::Instant;
use crate::types::{NodeId, Offset};
use crate::wire::ErrorCode;

/// What came back for a batch: from the broker, or from what kept it from answering.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) code: ErrorCode,
    pub(super) base_offset: Option<Offset>,
    pub(super) append_time: Option<i64>,
    pub(super) message: String,
    /// Errors of single records, by position in the batch.
    pub(super) record_errors: Vec<(i32, String)>,
}

impl Answer {
    /// No word about the records but a code.
    pub(super) fn failed(code: ErrorCode, message: String) -> Answer {
        Answer {
            code,
            base_offset: None,
            append_time: None,
            message,
            record_errors: Vec::new(),
        }
    }
}

/// A batch whose fate is known; the caller tells those who wait.
pub(super) struct Settled {
    outcome: Rc<BatchOutcome>,
    result: Result<Acked, ClientError>,
    record_errors: Vec<(i32, String)>,
    /// Gives its share of `buffer.memory` back when it is dropped.
    batch: PendingBatch,
}

impl Settled {
    fn new(batch: PendingBatch, result: Result<Acked, ClientError>) -> Settled {
        Settled {
            outcome: batch.outcome.clone(),
            result,
            record_errors: Vec::new(),
            batch,
        }
    }

    /// Why it was given up, and whether it had its number by then; `None` if it was delivered.
    pub(super) fn failure(&self) -> Option<(&ClientError, bool)> {
        let error = self.result.as_ref().err()?;
        Some((error, self.batch.sequence.is_some()))
    }

    /// Wakes those who wait. Not under a borrow of the outbox.
    pub(super) fn tell(self) {
        self.outcome.settle(self.result, self.record_errors);
    }
}

/// What an answer led to.
#[derive(Default)]
pub(super) struct Judged {
    pub(super) settled: Vec<Settled>,
    /// The batch will be sent again, and its leader may be another by then.
    pub(super) refresh: bool,
}

/// See the module's words.
pub(super) struct Outbox {
    pub(super) accumulator: Accumulator,
    /// `None` without idempotence.
    sequences: Option<Sequences>,
    /// The identity comes from the transaction coordinator, and only a transaction's end mends a
    /// gap in the numbers.
    transactional: bool,
    retries: u32,
    delivery_timeout: Duration,
    retry_backoff: Backoff,
}

impl Outbox {
    pub(super) fn new(config: &ProducerConfig) -> Outbox {
        Outbox {
            accumulator: Accumulator::new(config),
            sequences: config.idempotence.then(Sequences::default),
            transactional: config.transactional_id.is_some(),
            retries: config.retries,
            delivery_timeout: config.delivery_timeout,
            retry_backoff: config.client.retry_backoff,
        }
    }

    /// Whether a producer id must be asked for before anything can leave.
    pub(super) fn needs_identity(&self) -> bool {
        self.sequences
            .as_ref()
            .is_some_and(Sequences::needs_identity)
            && !self.transactional
            && self.accumulator.unsettled() > 0
    }

    pub(super) fn set_identity(&mut self, identity: Identity) {
        if let Some(sequences) = &mut self.sequences {
            sequences.set_identity(identity);
        }
    }

    /// See [`Sequences::renew_identity`].
    pub(super) fn renew_identity(&mut self, identity: Identity) {
        if let Some(sequences) = &mut self.sequences {
            sequences.renew_identity(identity);
        }
    }

    /// See [`Accumulator::ready`].
    pub(super) fn ready(
        &self,
        now: Instant,
        hurry: bool,
        leader: impl Fn(&TopicPartition) -> Option<NodeId>,
    ) -> Ready {
        self.accumulator
            .ready(now, hurry, self.sequences.as_ref(), leader)
    }

    /// See [`Accumulator::drain`].
    pub(super) fn drain(
        &mut self,
        node: NodeId,
        now: Instant,
        hurry: bool,
        leader: impl Fn(&TopicPartition) -> Option<NodeId>,
    ) -> Vec<PendingBatch> {
        self.accumulator
            .drain(node, now, hurry, self.sequences.as_mut(), leader)
    }

    /// Takes in what came back for a batch that was on the wire.
    pub(super) fn judge(
        &mut self,
        mut batch: PendingBatch,
        answer: Answer,
        now: Instant,
        random: u64,
    ) -> Judged {
        let key = batch.key.clone();
        let place = batch
            .sequence
            .and_then(|sequence| self.sequences.as_ref()?.place(&batch.key, sequence));
        let attempt = Attempt {
            retried: batch.attempts.saturating_sub(1),
            retries: self.retries,
            expired: batch.created + self.delivery_timeout <= now,
            place,
            transactional: self.transactional,
        };
        let verdict = judge(answer.code, attempt);
        let mut judged = Judged::default();
        match verdict {
            Verdict::Delivered { known_offset } => {
                if let (Some(sequences), Some(sequence)) = (&mut self.sequences, batch.sequence) {
                    sequences.acked(&key, sequence, batch.records);
                }
                let acked = Acked {
                    base_offset: answer.base_offset.filter(|_| known_offset),
                    append_time: answer.append_time,
                };
                judged.settled.push(self.settle(batch, Ok(acked)));
            }
            Verdict::Retry { .. } | Verdict::RetryAnew => {
                tracing::debug!(batch = %key, error = %answer.code, batch.attempts, "retrying");
                if leaves_doubt(answer.code) {
                    batch.in_doubt = Some(answer.code);
                }
                batch.retry_at = now + self.retry_backoff.delay(batch.attempts, random);
                if verdict == Verdict::RetryAnew {
                    self.restart(&batch);
                }
                judged.refresh = verdict == Verdict::Retry { refresh: true };
                self.accumulator.put_back(batch);
            }
            Verdict::Fail => {
                self.restart(&batch);
                let what = format!("produce to {key}");
                let error = ClientError::broker(what, answer.code, &answer.message);
                let mut settled = self.settle(batch, Err(error));
                settled.record_errors = answer.record_errors;
                judged.settled.push(settled);
            }
        }
        self.accumulator.came_back(&key);
        judged.settled.extend(self.restart_if_quiet(&key));
        judged
    }

    /// Gives up the queued batches whose `delivery.timeout.ms` is over.
    pub(super) fn expire(&mut self, now: Instant, error: &ClientError) -> Vec<Settled> {
        let expired = self.accumulator.expire(now);
        self.give_up(expired, error)
    }

    /// Gives up everything that is queued.
    pub(super) fn give_up_all(&mut self, error: &ClientError) -> Vec<Settled> {
        let all = self.accumulator.take_all();
        self.give_up(all, error)
    }

    fn give_up(&mut self, batches: Vec<PendingBatch>, error: &ClientError) -> Vec<Settled> {
        let mut settled = Vec::with_capacity(batches.len());
        for batch in batches {
            self.restart(&batch);
            let key = batch.key.clone();
            settled.push(self.settle(batch, Err(error.clone())));
            settled.extend(self.restart_if_quiet(&key));
        }
        settled
    }

    fn settle(&mut self, batch: PendingBatch, result: Result<Acked, ClientError>) -> Settled {
        self.accumulator.settled(&batch);
        Settled::new(batch, result)
    }

    /// The batch's number will not be used: the partition's count starts anew.
    fn restart(&mut self, batch: &PendingBatch) {
        if self.transactional {
            return;
        }
        if let (Some(sequences), Some(sequence)) = (&mut self.sequences, batch.sequence) {
            sequences.restart(&batch.key, sequence);
        }
    }

    /// With nothing on the wire a partition that must restart does so. A batch that may be in the
    /// log already cannot be sent under a new number without being there twice: it is given up.
    fn restart_if_quiet(&mut self, key: &TopicPartition) -> Vec<Settled> {
        let Some(sequences) = self.sequences.as_mut() else {
            return Vec::new();
        };
        if !sequences.is_restarting(key) || self.accumulator.on_wire(key) > 0 {
            return Vec::new();
        }
        sequences.restarted(key);
        let doubtful = self.accumulator.renumber(key);
        let give_up = |batch: PendingBatch| {
            let code = batch.in_doubt.unwrap_or_default();
            let text = "whether it was written is not known, and a batch before it was given up";
            let error = ClientError::broker(format!("produce to {key}"), code, text);
            self.settle(batch, Err(error))
        };
        doubtful.into_iter().map(give_up).collect()
    }
}

/// Errors after which the records may be in the log all the same.
fn leaves_doubt(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NETWORK_EXCEPTION
            | ErrorCode::REQUEST_TIMED_OUT
            // Leadership may have gone while the records waited for followers that have them.
            | ErrorCode::NOT_LEADER_OR_FOLLOWER
            | ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode::KAFKA_STORAGE_ERROR
    )
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox")
            .field("queues", &self.accumulator)
            .field("sequences", &self.sequences)
            .finish()
    }
}
