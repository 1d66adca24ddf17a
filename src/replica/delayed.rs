//! The operations that wait in a shard's purgatory: a produce for the offsets it needs, a fetch
//! for the bytes it wants. Each answers exactly once through its one-shot channel. Never answers a
//! client itself, never reads a log.

use super::partition::Partition;
use crate::rt::sync::oneshot;
use crate::types::{LeaderEpoch, Offset, PartitionId};
use crate::wire::ErrorCode;
use std::rc::Rc;

/// What a produced batch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// acks=1: this replica counts the batch, by its durability row.
    Counted,
    /// acks=all: the high watermark covers the batch.
    Committed,
}

/// One partition of a waiting produce.
pub struct ProducePart {
    pub partition: Rc<Partition>,
    pub epoch: LeaderEpoch,
    /// One past the batch's last offset.
    pub required: Offset,
    /// Filled once known: the partition's outcome.
    pub outcome: Option<ErrorCode>,
    /// Which answer of the request this is.
    pub slot: usize,
}

/// A produce whose answer waits for its slowest partition.
pub struct DelayedProduce {
    pub need: Need,
    pub parts: Vec<ProducePart>,
    pub done: Option<oneshot::Sender<Vec<(usize, ErrorCode)>>>,
}

impl DelayedProduce {
    /// Looks at the partitions again; true when each has an outcome.
    pub fn is_satisfied(&mut self) -> bool {
        let need = self.need;
        let mut all = true;
        for part in &mut self.parts {
            if part.outcome.is_none() {
                part.outcome = part
                    .partition
                    .produce_outcome(need, part.epoch, part.required);
            }
            all &= part.outcome.is_some();
        }
        all
    }

    /// Answers; a partition without an outcome has timed out.
    pub fn answer(mut self) {
        let outcomes = self
            .parts
            .iter()
            .map(|part| {
                (
                    part.slot,
                    part.outcome.unwrap_or(ErrorCode::REQUEST_TIMED_OUT),
                )
            })
            .collect();
        if let Some(done) = self.done.take() {
            // The connection may have closed meanwhile; the records stay.
            let _ = done.send(outcomes);
        }
    }
}

/// How far a reader may read (Fetch's isolation_level, or a follower).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// A follower or debugging consumer: to the log end.
    LogEnd,
    /// `read_uncommitted`: to the high watermark.
    HighWatermark,
    /// `read_committed`: to the last stable offset.
    LastStable,
}

/// One partition that a waiting fetch watches.
pub struct FetchPart {
    pub partition: Rc<Partition>,
    pub epoch: LeaderEpoch,
    pub from: Offset,
    pub max_bytes: u64,
}

/// A fetch that waits for bytes on the partitions of one shard.
pub struct DelayedFetch {
    pub isolation: Isolation,
    pub parts: Vec<FetchPart>,
    /// Bytes that must become readable on this shard.
    pub need: u64,
    pub done: Option<oneshot::Sender<()>>,
}

impl DelayedFetch {
    /// True when enough bytes are readable, or a partition can only answer with an error now.
    pub fn is_satisfied(&mut self) -> bool {
        let mut readable = 0;
        for part in &self.parts {
            match part
                .partition
                .readable_bytes(self.isolation, part.epoch, part.from)
            {
                None => return true,
                Some(bytes) => readable += bytes.min(part.max_bytes),
            }
            if readable >= self.need {
                return true;
            }
        }
        false
    }

    pub fn answer(mut self) {
        if let Some(done) = self.done.take() {
            // The fetch may have been answered by another shard's partitions already.
            let _ = done.send(());
        }
    }
}

/// The keys an operation is watched under: one for each partition.
pub type Key = PartitionId;
