//! Produce as the owner of the partitions sees it: append each batch, then wait until each has
//! what acks asks for. Runs on the shard that owns the partitions; reached by a function call or
//! by a message. Never talks to a client.

use super::Shard;
use super::mesh::{LocalFuture, Place};
use super::verification::TransactionalBatch;
use crate::log::{AppendAs, AppendError, Appended, Origin, VerificationGuard};
use crate::replica::delayed::{DelayedProduce, Need, ProducePart};
use crate::replica::partition::Partition;
use crate::rt;
use crate::rt::sync::oneshot;
use crate::types::PartitionId;
use crate::wire::{ErrorCode, Str};
use bytes::Bytes;
use std::rc::Rc;
use std::time::Duration;

/// The part of a Produce request that concerns every partition.
#[derive(Clone, Debug)]
pub struct AppendRequest {
    /// -1, 0 or 1.
    pub acks: i16,
    /// The request's version: zstd is refused below 7.
    pub version: i16,
    /// How long acks=all may wait.
    pub timeout: Duration,
    /// Of a transactional producer.
    pub transactional_id: Option<Str>,
}

/// One partition's batch.
pub struct AppendPart {
    /// Which answer of the request this is.
    pub slot: usize,
    pub partition: PartitionId,
    pub records: Option<Bytes>,
    /// Set if the batch belongs to a transaction.
    pub transactional: Option<TransactionalBatch>,
}

/// The outcome for one partition, as the response carries it.
#[derive(Clone, Debug)]
pub struct Produced {
    pub error: ErrorCode,
    pub base_offset: i64,
    pub log_append_time_ms: i64,
    pub log_start_offset: i64,
    pub record_errors: Vec<(i32, Option<String>)>,
    pub message: Option<String>,
}

impl Produced {
    pub fn error(error: ErrorCode) -> Produced {
        Produced {
            error,
            base_offset: -1,
            log_append_time_ms: -1,
            log_start_offset: -1,
            record_errors: Vec::new(),
            message: None,
        }
    }

    fn refused(error: AppendError) -> Produced {
        Produced {
            record_errors: error.record_errors,
            message: error.message,
            ..Produced::error(error.code)
        }
    }

    fn appended(appended: &Appended) -> Produced {
        Produced {
            error: ErrorCode::NONE,
            base_offset: appended.first_offset.0,
            log_append_time_ms: appended.append_time_ms,
            log_start_offset: appended.log_start.0,
            record_errors: Vec::new(),
            message: None,
        }
    }
}

/// The batches of one request on this shard: which are appended, and what came of the others.
pub(super) struct Round {
    acks: i16,
    answers: Vec<(usize, Produced)>,
    waiting: Vec<ProducePart>,
}

impl Round {
    pub(super) fn new(acks: i16, parts: usize) -> Round {
        Round {
            acks,
            answers: Vec::with_capacity(parts),
            waiting: Vec::new(),
        }
    }

    pub(super) fn refuse(&mut self, slot: usize, refused: Produced) {
        self.answers.push((slot, refused));
    }

    /// Appends one batch now.
    pub(super) fn append(
        &mut self,
        shard: &Rc<Shard>,
        partition: Rc<Partition>,
        slot: usize,
        records: Bytes,
        how: AppendAs,
    ) {
        match partition.append(records, how, self.acks == -1) {
            Ok(appended) => {
                self.answers.push((slot, Produced::appended(&appended)));
                shard.progressed(&partition);
                if self.acks != 0 {
                    self.waiting.push(ProducePart {
                        epoch: partition.leader_epoch(),
                        required: appended.last_offset.next(),
                        outcome: None,
                        slot,
                        partition,
                    });
                }
            }
            Err(error) => self.refuse(slot, Produced::refused(error)),
        }
    }

    /// Waits for what acks asks for; the operation is parked before this returns.
    pub(super) fn acknowledged(
        self,
        shard: &Shard,
        timeout: Duration,
    ) -> LocalFuture<Vec<(usize, Produced)>> {
        let mut answers = self.answers;
        let need = if self.acks == -1 {
            Need::Committed
        } else {
            Need::Counted
        };
        let mut operation = DelayedProduce {
            need,
            parts: self.waiting,
            done: None,
        };
        if operation.is_satisfied() {
            settle(
                &mut answers,
                operation
                    .parts
                    .iter()
                    .filter_map(|part| Some((part.slot, part.outcome?))),
            );
            return Box::pin(std::future::ready(answers));
        }
        let (done, outcomes) = oneshot::channel();
        operation.done = Some(done);
        // acks=1 waits for this host's own disk only, which has no time-out in the protocol; the
        // request's time-out bounds it all the same, so that a stuck device is reported.
        shard.park_produce(operation, timeout);
        Box::pin(async move {
            match outcomes.await {
                Ok(outcomes) => settle(&mut answers, outcomes.into_iter()),
                Err(_) => answers.iter_mut().for_each(|(_, produced)| {
                    if produced.error == ErrorCode::NONE {
                        *produced = Produced::error(ErrorCode::NOT_LEADER_OR_FOLLOWER);
                    }
                }),
            }
            answers
        })
    }
}

impl Shard {
    /// Appends on the owning shard. When this returns, the batches are appended or in the owner's
    /// lane, before whatever is sent to it next; the future it gives waits for acknowledgement.
    /// Batches whose transaction has first to be verified are appended later, still before the
    /// next ones of their producer (see [`super::verification`]).
    pub async fn append_on(
        self: &Rc<Self>,
        owner: Place,
        request: AppendRequest,
        parts: Vec<AppendPart>,
    ) -> LocalFuture<Vec<(usize, Produced)>> {
        if owner == self.place() {
            return self.append(request, parts);
        }
        let slots: Vec<usize> = parts.iter().map(|part| part.slot).collect();
        let sent = self
            .mesh()
            .send_shard(owner, move |shard: Rc<Shard>| shard.append(request, parts))
            .await;
        Box::pin(async move {
            let answered = match sent {
                Ok(pending) => pending.wait().await,
                Err(gone) => Err(gone),
            };
            answered.unwrap_or_else(|_gone| {
                slots
                    .into_iter()
                    .map(|slot| (slot, Produced::error(ErrorCode::NOT_LEADER_OR_FOLLOWER)))
                    .collect()
            })
        })
    }

    /// Appends a client's batches now, in order; the future waits for what acks asks for.
    pub fn append(
        self: &Rc<Self>,
        request: AppendRequest,
        parts: Vec<AppendPart>,
    ) -> LocalFuture<Vec<(usize, Produced)>> {
        let how = append_as(&request, VerificationGuard::NONE);
        let mut round = Round::new(request.acks, parts.len());
        let mut unverified = Vec::new();
        for part in parts {
            let Some(partition) = self.partition(part.partition) else {
                let error = if self.unserved.contains(part.partition) {
                    ErrorCode::KAFKA_STORAGE_ERROR
                } else {
                    ErrorCode::NOT_LEADER_OR_FOLLOWER
                };
                round.refuse(part.slot, Produced::error(error));
                continue;
            };
            if self.must_verify(&request, &part, &partition) {
                unverified.push((partition, part));
                continue;
            }
            let records = part.records.unwrap_or_default();
            round.append(self, partition, part.slot, records, how);
        }
        let appended = round.acknowledged(self, request.timeout);
        if unverified.is_empty() {
            return appended;
        }
        let verified = self.append_when_verified(request, unverified);
        Box::pin(async move {
            let mut answers = appended.await;
            answers.extend(verified.await);
            answers
        })
    }

    /// A partition's log or high watermark may have moved: whoever waits for it looks again.
    pub fn progressed(self: &Rc<Self>, partition: &Rc<Partition>) {
        let moved = partition.advance();
        self.check_waiting(partition.id, moved);
    }
}

/// How a batch of a Produce request is appended.
pub(super) fn append_as(request: &AppendRequest, guard: VerificationGuard) -> AppendAs {
    AppendAs {
        guard,
        ..AppendAs::new(Origin::Client, request.version, rt::wall_ms())
    }
}

fn settle(answers: &mut [(usize, Produced)], outcomes: impl Iterator<Item = (usize, ErrorCode)>) {
    for (slot, outcome) in outcomes {
        if outcome == ErrorCode::NONE {
            continue;
        }
        if let Some((_, produced)) = answers.iter_mut().find(|(answer, _)| *answer == slot) {
            // Kafka keeps the assigned offset beside a time-out; only the error changes.
            produced.error = outcome;
        }
    }
}
