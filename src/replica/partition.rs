//! One partition's replica on its shard: the leader's decisions beside the log. Owned by one
//! shard; everybody else sends that shard a message. Never talks to a client.

use super::delayed::{Isolation, Need};
use super::leader::Leader;
use crate::log::{AppendAs, AppendError, Appended, Log};
use crate::types::{LeaderEpoch, NodeId, Offset, PartitionEpoch, PartitionId};
use crate::wire::{ErrorCode, Str};
use bytes::Bytes;
use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

/// A partition this shard holds a replica of.
pub struct Partition {
    pub id: PartitionId,
    pub topic: Str,
    pub log: Rc<Log>,
    leader: RefCell<Leader>,
    epoch: Cell<PartitionEpoch>,
    /// Set when the topic is deleted: operations that still hold the partition end with an error.
    gone: Cell<bool>,
}

/// What a reader gets told about a partition's offsets beside the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub log_start: Offset,
    pub high_watermark: Offset,
    pub last_stable: Offset,
    pub log_end: Offset,
}

impl Partition {
    pub fn new(
        id: PartitionId,
        topic: Str,
        log: Rc<Log>,
        leader: Leader,
        epoch: PartitionEpoch,
    ) -> Rc<Partition> {
        Rc::new(Partition {
            id,
            topic,
            log,
            leader: RefCell::new(leader),
            epoch: Cell::new(epoch),
            gone: Cell::new(false),
        })
    }

    pub fn leader(&self) -> Ref<'_, Leader> {
        self.leader.borrow()
    }

    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.leader.borrow().epoch()
    }

    pub fn partition_epoch(&self) -> PartitionEpoch {
        self.epoch.get()
    }

    pub fn in_sync(&self) -> Vec<NodeId> {
        self.leader.borrow().in_sync().to_vec()
    }

    pub fn set_min_in_sync(&self, min_in_sync: usize) {
        self.leader.borrow_mut().set_min_in_sync(min_in_sync);
    }

    /// The topic is deleted; whoever waits here is answered with NOT_LEADER_OR_FOLLOWER.
    pub fn mark_gone(&self) {
        self.gone.set(true);
    }

    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Checks the epoch a client believes in (KIP-320); -1 asks for no check.
    pub fn check_epoch(&self, believed: i32) -> Result<(), ErrorCode> {
        if self.gone.get() {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        if believed < 0 {
            return Ok(());
        }
        let epoch = self.leader_epoch().0;
        if believed < epoch {
            Err(ErrorCode::FENCED_LEADER_EPOCH)
        } else if believed > epoch {
            Err(ErrorCode::UNKNOWN_LEADER_EPOCH)
        } else {
            Ok(())
        }
    }

    /// Appends a produce request's batch. With `need_enough` (acks=all) nothing is written while
    /// the in-sync set is below the minimum.
    pub fn append(
        &self,
        records: Bytes,
        mut how: AppendAs,
        need_enough: bool,
    ) -> Result<Appended, AppendError> {
        if self.gone.get() {
            return Err(AppendError::code(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        }
        {
            let leader = self.leader.borrow();
            if need_enough && !leader.has_enough_in_sync() {
                return Err(AppendError::code(ErrorCode::NOT_ENOUGH_REPLICAS));
            }
            how.leader_epoch = leader.epoch();
        }
        self.log.append_as_leader(records, how)
    }

    /// Takes the log's progress into the high watermark; true if it moved.
    pub fn advance(&self) -> bool {
        self.leader
            .borrow_mut()
            .on_local_progress(self.log.log_start(), self.log.counted(), self.log.log_end())
            .is_some()
    }

    pub fn bounds(&self) -> Bounds {
        let high_watermark = self.leader.borrow().high_watermark();
        Bounds {
            log_start: self.log.log_start(),
            high_watermark,
            last_stable: self.log.last_stable_offset(high_watermark),
            log_end: self.log.log_end(),
        }
    }

    /// One past the last offset that a reader of this isolation may see.
    pub fn readable_end(&self, isolation: Isolation) -> Offset {
        let bounds = self.bounds();
        match isolation {
            Isolation::LogEnd => bounds.log_end,
            Isolation::HighWatermark => bounds.high_watermark,
            Isolation::LastStable => bounds.last_stable,
        }
    }

    /// The outcome of a produced batch, once there is one.
    pub fn produce_outcome(
        &self,
        need: Need,
        epoch: LeaderEpoch,
        required: Offset,
    ) -> Option<ErrorCode> {
        if self.log.is_offline() {
            return Some(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let leader = self.leader.borrow();
        if self.gone.get() || leader.epoch() != epoch {
            return Some(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        if let Some(code) = self.log.lost_since(required) {
            return Some(code);
        }
        match need {
            Need::Counted if self.log.counted() >= required => Some(ErrorCode::NONE),
            Need::Committed if leader.high_watermark() >= required => {
                Some(if leader.has_enough_in_sync() {
                    ErrorCode::NONE
                } else {
                    ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND
                })
            }
            _ => None,
        }
    }

    /// Bytes a waiting fetch could read now; `None` when it can only get an error.
    pub fn readable_bytes(
        &self,
        isolation: Isolation,
        epoch: LeaderEpoch,
        from: Offset,
    ) -> Option<u64> {
        if self.gone.get() || self.log.is_offline() || self.leader_epoch() != epoch {
            return None;
        }
        let end = self.readable_end(isolation);
        if from < self.log.log_start() || from > self.log.log_end() {
            return None;
        }
        if from >= end {
            return Some(0);
        }
        Some(self.log.bytes_between(from, end))
    }
}
