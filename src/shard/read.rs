//! Fetch as the owner of the partitions sees it: read each partition up to what the reader may
//! see, and tell a waiting fetch when enough has become readable. Runs on the shard that owns the
//! partitions; reached by a function call or by a message. Never talks to a client.

use super::Shard;
use super::mesh::{Gone, LocalFuture, Place};
use crate::log::LogError;
use crate::replica::delayed::{DelayedFetch, FetchPart, Isolation};
use crate::replica::partition::{Bounds, Partition};
use crate::rt::sync::oneshot;
use crate::types::{LeaderEpoch, Offset, PartitionId};
use crate::wire::{ErrorCode, Records};
use std::rc::Rc;
use std::time::Duration;

/// The part of a Fetch request that concerns every partition.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
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
        self.error != ErrorCode::NONE || self.diverging.is_some()
    }
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
        let slots: Vec<usize> = parts.iter().map(|part| part.slot).collect();
        let answered = self
            .mesh()
            .call_shard(owner, move |shard: Rc<Shard>| -> LocalFuture<Vec<Read>> {
                Box::pin(shard.read(request, parts))
            })
            .await;
        answered.unwrap_or_else(|Gone| {
            slots
                .into_iter()
                .map(|slot| Read::error(slot, ErrorCode::NOT_LEADER_OR_FOLLOWER))
                .collect()
        })
    }

    async fn read(self: Rc<Self>, request: ReadRequest, parts: Vec<ReadPart>) -> Vec<Read> {
        let mut left = request.max_bytes;
        let mut found = false;
        let mut answers = Vec::with_capacity(parts.len());
        for part in parts {
            let read = match self.partition(part.partition) {
                Some(partition) => read_one(&partition, &request, &part, left, !found).await,
                None => Read::error(part.slot, self.missing(part.partition)),
            };
            let bytes = read.records.len() as u64;
            found |= bytes > 0;
            left = left.saturating_sub(bytes);
            answers.push(read);
        }
        answers
    }

    /// Waits until `need` bytes are readable over `parts`, one of them has only an error to give,
    /// or `timeout` passes.
    pub async fn watch_on(
        self: &Rc<Self>,
        owner: Place,
        token: WatchToken,
        isolation: Isolation,
        parts: Vec<ReadPart>,
        need: u64,
        timeout: Duration,
    ) {
        if owner == self.place() {
            return self
                .clone()
                .watch(token, isolation, parts, need, timeout)
                .await;
        }
        // A shard that has shut down has nothing more to tell.
        let _ = self
            .mesh()
            .call_shard(owner, move |shard: Rc<Shard>| -> LocalFuture<()> {
                Box::pin(shard.watch(token, isolation, parts, need, timeout))
            })
            .await;
    }

    async fn watch(
        self: Rc<Self>,
        token: WatchToken,
        isolation: Isolation,
        parts: Vec<ReadPart>,
        need: u64,
        timeout: Duration,
    ) {
        let (done, told) = oneshot::channel();
        let mut operation = DelayedFetch {
            isolation,
            parts: Vec::with_capacity(parts.len()),
            need,
            done: Some(done),
        };
        for part in parts {
            let Some(partition) = self.partition(part.partition) else {
                return;
            };
            operation.parts.push(FetchPart {
                epoch: partition.leader_epoch(),
                partition,
                from: Offset(part.from),
                max_bytes: part.max_bytes.max(0) as u64,
            });
        }
        if operation.is_satisfied() {
            return;
        }
        self.park_fetch(token, operation, timeout);
        // Dropped without a word only at shutdown.
        let _ = told.await;
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

async fn read_one(
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
    if let Err(error) = partition.check_epoch(part.current_leader_epoch) {
        return Read::error(slot, error);
    }
    let bounds = partition.bounds();
    let from = Offset(part.from);
    if part.last_fetched_epoch >= 0 {
        match diverging(partition, part, &bounds) {
            Ok(None) => {}
            Ok(Some(diverging)) => {
                return Read {
                    diverging: Some(diverging),
                    ..Read::empty(slot, &bounds)
                };
            }
            Err(error) => return Read::error(slot, error),
        }
    }
    if from < bounds.log_start || from > bounds.log_end {
        return Read::error(slot, ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    // The end is taken before the read: what becomes readable meanwhile wakes the watch instead.
    let end = partition.readable_end(request.isolation);
    let mut answer = Read::empty(slot, &bounds);
    let committed = request.isolation == Isolation::LastStable;
    answer.aborted = committed.then(Vec::new);
    if from >= end {
        return answer;
    }
    let limit = left.min(part.max_bytes.max(0) as u64);
    match partition.log.read(from, end, limit, min_one).await {
        Ok(outcome) => {
            if committed {
                answer.aborted = Some(
                    partition
                        .log
                        .aborted_transactions(from, outcome.upper_bound),
                );
            }
            answer.records = outcome.records;
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

/// Where the reader's log leaves this one, if it does (KIP-595, also for consumers by KIP-320).
fn diverging(
    partition: &Partition,
    part: &ReadPart,
    bounds: &Bounds,
) -> Result<Option<(i32, i64)>, ErrorCode> {
    let end = partition
        .log
        .end_offset_for_epoch(LeaderEpoch(part.last_fetched_epoch));
    let Some((epoch, end)) = end else {
        return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
    };
    if part.from < bounds.log_start.0 {
        return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    if epoch.0 < part.last_fetched_epoch || end.0 < part.from {
        return Ok(Some((epoch.0, end.0)));
    }
    Ok(None)
}
