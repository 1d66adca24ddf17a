//! Fetch as the owner of the partitions sees it: read each partition up to what the reader may
//! see, and tell a waiting fetch when enough has become readable. Runs on the shard that owns the
//! partitions; reached by a function call or by a message. Never talks to a client.

use super::Shard;
use super::mesh::{Gone, LocalFuture, Place};
use super::throttles::Side;
use crate::log::LogError;
use crate::replica::delayed::{DelayedFetch, FetchPart, Isolation};
use crate::replica::history::{Position, divergence};
use crate::replica::leader::{FetchRefused, FollowerFetch};
use crate::replica::partition::{Bounds, Partition};
use crate::rt::sync::oneshot;
use crate::types::{LeaderEpoch, NodeId, Offset, PartitionId};
use crate::wire::{ErrorCode, Records, Str};
use std::rc::Rc;
use std::time::Duration;

/// Who reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Reader {
    /// A client that takes records from leaders only.
    OfLeaders,
    /// A client that may be sent to a replica in its rack, and reads from followers (KIP-392).
    OfAny { rack: Str },
    /// A follower. Its first read of a request tells how far it is.
    Follower { id: NodeId, epoch: i64, first: bool },
}

/// The part of a Fetch request that concerns every partition.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    pub reader: Reader,
    pub isolation: Isolation,
    /// Bytes for all partitions of this shard together; the first batch found is returned whole
    /// even when it is larger.
    pub max_bytes: u64,
}

/// One partition of a Fetch request.
#[derive(Clone, Copy, Debug)]
pub struct ReadPart {
    /// Which partition of the request this is.
    pub slot: usize,
    pub partition: PartitionId,
    pub from: i64,
    pub current_leader_epoch: i32,
    pub last_fetched_epoch: i32,
    /// The reader's own, if it is a follower.
    pub log_start: i64,
    pub max_bytes: i32,
}

/// What one partition answers.
#[derive(Debug)]
pub struct Read {
    pub slot: usize,
    pub error: ErrorCode,
    pub high_watermark: i64,
    pub last_stable: i64,
    pub log_start: i64,
    pub records: Records,
    /// (producer id, first offset) of aborted transactions; only for `read_committed`.
    pub aborted: Option<Vec<(i64, i64)>>,
    /// (epoch, end offset) where the reader's log leaves this one (KIP-595).
    pub diverging: Option<(i32, i64)>,
    /// The replica that the reader had better ask (KIP-392).
    pub preferred: Option<NodeId>,
}

impl Read {
    pub fn error(slot: usize, error: ErrorCode) -> Read {
        Read {
            slot,
            error,
            high_watermark: -1,
            last_stable: -1,
            log_start: -1,
            records: Records::default(),
            aborted: None,
            diverging: None,
            preferred: None,
        }
    }

    fn empty(slot: usize, bounds: &Bounds) -> Read {
        Read {
            high_watermark: bounds.high_watermark.0,
            last_stable: bounds.last_stable.0,
            log_start: bounds.log_start.0,
            ..Read::error(slot, ErrorCode::NONE)
        }
    }

    /// Whether the fetch must be answered at once, whatever its minimum.
    pub fn is_urgent(&self) -> bool {
        self.error != ErrorCode::NONE || self.diverging.is_some() || self.preferred.is_some()
    }
}

fn slots_of(parts: &[ReadPart]) -> Vec<usize> {
    parts.iter().map(|part| part.slot).collect()
}

/// What there is to say of partitions whose shard has shut down.
fn lost(slots: Vec<usize>) -> Vec<Read> {
    let error = ErrorCode::NOT_LEADER_OR_FOLLOWER;
    let reads = slots.into_iter().map(|slot| Read::error(slot, error));
    reads.collect()
}

/// Names one waiting fetch over all shards: the connection's shard and its count there.
pub type WatchToken = (Place, u64);

impl Shard {
    pub async fn read_on(
        self: &Rc<Self>,
        owner: Place,
        request: ReadRequest,
        parts: Vec<ReadPart>,
    ) -> Vec<Read> {
        if owner == self.place() {
            return self.clone().read(request, parts).await;
        }
        let slots = slots_of(&parts);
        let answered = self
            .mesh()
            .call_shard(owner, move |shard: Rc<Shard>| -> LocalFuture<Vec<Read>> {
                Box::pin(shard.read(request, parts))
            })
            .await;
        answered.unwrap_or_else(|Gone| lost(slots))
    }

    async fn read(self: Rc<Self>, request: ReadRequest, parts: Vec<ReadPart>) -> Vec<Read> {
        let mut left = request.max_bytes;
        let mut found = false;
        let mut answers = Vec::with_capacity(parts.len());
        for part in parts {
            let read = match self.partition(part.partition) {
                Some(partition) => {
                    self.read_one(&partition, &request, &part, left, !found)
                        .await
                }
                None => Read::error(part.slot, self.missing(part.partition)),
            };
            let bytes = read.records.len() as u64;
            found |= bytes > 0;
            left = left.saturating_sub(bytes);
            answers.push(read);
        }
        answers
    }

    /// Reads once `need` bytes are readable over `parts`, one of them has only an error to give, or
    /// `timeout` has passed. Nothing after [`Shard::unwatch_on`].
    pub async fn read_later_on(
        self: &Rc<Self>,
        owner: Place,
        token: WatchToken,
        request: ReadRequest,
        parts: Vec<ReadPart>,
        need: u64,
        timeout: Duration,
    ) -> Vec<Read> {
        if owner == self.place() {
            return self
                .clone()
                .read_later(token, request, parts, need, timeout)
                .await;
        }
        let slots = slots_of(&parts);
        let answered = self
            .mesh()
            .call_shard(owner, move |shard: Rc<Shard>| -> LocalFuture<Vec<Read>> {
                Box::pin(shard.read_later(token, request, parts, need, timeout))
            })
            .await;
        answered.unwrap_or_else(|Gone| lost(slots))
    }

    async fn read_later(
        self: Rc<Self>,
        token: WatchToken,
        request: ReadRequest,
        parts: Vec<ReadPart>,
        need: u64,
        timeout: Duration,
    ) -> Vec<Read> {
        if let Some(mut operation) = self.delayed_fetch(&request, &parts, need)
            && !operation.is_satisfied()
        {
            let (done, told) = oneshot::channel();
            let operation = DelayedFetch {
                done: Some(done),
                ..operation
            };
            self.park_fetch(token, operation, timeout);
            if told.await.is_err() {
                // Not wanted any more, or the shard stops.
                return Vec::new();
            }
        }
        self.read(request, parts).await
    }

    /// What a fetch waits for; `None` if a partition has gone, so that there is nothing to wait for.
    fn delayed_fetch(
        &self,
        request: &ReadRequest,
        parts: &[ReadPart],
        need: u64,
    ) -> Option<DelayedFetch> {
        let mut operation = DelayedFetch {
            isolation: request.isolation,
            parts: Vec::with_capacity(parts.len()),
            need,
            done: None,
        };
        for part in parts {
            let partition = self.partition(part.partition)?;
            if self.must_wait(&partition, &request.reader) {
                continue;
            }
            operation.parts.push(FetchPart {
                epoch: partition.leader_epoch(),
                partition,
                from: Offset(part.from),
                max_bytes: part.max_bytes.max(0) as u64,
            });
        }
        Some(operation)
    }

    /// Ends a watch that is not needed any more.
    pub async fn unwatch_on(self: &Rc<Self>, owner: Place, token: WatchToken) {
        if owner == self.place() {
            return self.unpark_fetch(token);
        }
        let _ = self
            .mesh()
            .send_shard(owner, move |shard: Rc<Shard>| -> LocalFuture<()> {
                shard.unpark_fetch(token);
                Box::pin(std::future::ready(()))
            })
            .await;
    }
}

impl Shard {
    async fn read_one(
        self: &Rc<Self>,
        partition: &Rc<Partition>,
        request: &ReadRequest,
        part: &ReadPart,
        left: u64,
        min_one: bool,
    ) -> Read {
        let slot = part.slot;
        if partition.log.is_offline() {
            return Read::error(slot, ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let leader_only = !matches!(request.reader, Reader::OfAny { .. });
        if let Err(error) = partition.check_epoch(part.current_leader_epoch, leader_only) {
            return Read::error(slot, error);
        }
        let from = Offset(part.from);
        let position = Position {
            from,
            last_epoch: LeaderEpoch(part.last_fetched_epoch),
        };
        match divergence(&*partition.log, position) {
            Ok(None) => {}
            Ok(Some((epoch, end))) => {
                return Read {
                    diverging: Some((epoch.0, end.0)),
                    ..Read::empty(slot, &partition.bounds())
                };
            }
            Err(error) => return Read::error(slot, error),
        }
        match &request.reader {
            Reader::Follower { id, epoch, first } => {
                if let Err(error) = self.note_follower(partition, *id, *epoch, *first, part) {
                    return Read::error(slot, error);
                }
            }
            Reader::OfAny { rack } => {
                if let Some(preferred) = self.preferred_replica(partition, rack, from) {
                    return Read {
                        preferred: Some(preferred),
                        ..Read::empty(slot, &partition.bounds())
                    };
                }
            }
            Reader::OfLeaders => {}
        }
        // The end is taken before the read: what becomes readable meanwhile wakes the watch instead.
        let bounds = partition.bounds();
        let end = partition.readable_end(request.isolation);
        let mut answer = Read::empty(slot, &bounds);
        let committed = request.isolation == Isolation::LastStable;
        answer.aborted = committed.then(Vec::new);
        if from >= end || self.must_wait(partition, &request.reader) {
            return answer;
        }
        let limit = left.min(part.max_bytes.max(0) as u64);
        let (log, settled) = (&partition.log, bounds.high_watermark);
        let read = match log.read_in_place(from, end, settled, limit).await {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) => log.read(from, end, limit, min_one).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(outcome) => {
                if committed {
                    answer.aborted = Some(
                        partition
                            .log
                            .aborted_transactions(from, outcome.upper_bound),
                    );
                }
                answer.records = outcome.records;
                if matches!(request.reader, Reader::Follower { .. }) {
                    self.count_copied(partition, Side::Leader, answer.records.len());
                }
                answer
            }
            Err(LogError::OutOfRange { .. }) => Read::error(slot, ErrorCode::OFFSET_OUT_OF_RANGE),
            Err(error) => {
                tracing::error!(topic = %partition.topic, partition = partition.id.index, %error, "read failed");
                partition.log.give_up_after(&error);
                Read::error(slot, ErrorCode::KAFKA_STORAGE_ERROR)
            }
        }
    }

    /// Whether a follower that is not in sync is held up by the leader's throttle.
    fn must_wait(&self, partition: &Partition, reader: &Reader) -> bool {
        match reader {
            Reader::Follower { id, .. } => {
                self.is_held_up(partition, Side::Leader) && !partition.has_in_sync(*id)
            }
            _ => false,
        }
    }

    /// A follower has come as far as it fetches from; told once a request.
    fn note_follower(
        self: &Rc<Self>,
        partition: &Rc<Partition>,
        replica: NodeId,
        broker_epoch: i64,
        first: bool,
        part: &ReadPart,
    ) -> Result<(), ErrorCode> {
        if !first {
            return Ok(());
        }
        let fetch = FollowerFetch {
            replica,
            broker_epoch,
            from: Offset(part.from),
            log_start: Offset(part.log_start),
            leader_end: partition.log.log_end(),
        };
        let news = partition
            .on_follower_fetch(&fetch)
            .map_err(|refused| match refused {
                // The leader may only not have heard of it yet.
                FetchRefused::NotAssigned if part.current_leader_epoch >= 0 => {
                    ErrorCode::UNKNOWN_LEADER_EPOCH
                }
                FetchRefused::NotAssigned | FetchRefused::StaleBroker => {
                    ErrorCode::NOT_LEADER_OR_FOLLOWER
                }
            })?;
        if news.proposed {
            self.ask_in_sync(partition);
        }
        if news.moved && partition.advance() {
            self.check_waiting(partition.id, true);
        }
        Ok(())
    }

    /// The replica that a consumer in `rack` had better read from: the one furthest ahead of those
    /// in its rack that have what it wants. `None` for this one.
    fn preferred_replica(&self, partition: &Partition, rack: &Str, from: Offset) -> Option<NodeId> {
        if !self.node.config.rack_aware_replicas || rack.is_empty() {
            return None;
        }
        let leader = partition.leader()?;
        let image = self.image();
        let in_rack = |id: NodeId| {
            let broker = image.broker(id).filter(|broker| !broker.fenced);
            broker.is_some_and(|broker| broker.rack.as_ref() == Some(rack))
        };
        if in_rack(self.node.node) {
            return None;
        }
        let candidates = leader.remotes().iter().filter(|remote| {
            leader.in_sync().contains(&remote.id)
                && remote.log_end >= from
                && remote.log_start <= from
                && in_rack(remote.id)
        });
        candidates
            .max_by_key(|remote| (remote.log_end, remote.caught_up_at()))
            .map(|remote| remote.id)
    }
}
