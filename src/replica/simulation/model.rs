//! The simulation's logs, and what its controller commits.

use crate::log::leader_epochs::LeaderEpochs;
use crate::replica::history::History;
use crate::replica::leader::Registered;
use crate::types::{LeaderEpoch, NodeId, Offset, PartitionEpoch};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub base: i64,
    /// One past the last offset.
    pub end: i64,
    pub epoch: i32,
    pub id: u64,
}

/// A log in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelLog {
    pub start: i64,
    pub end: i64,
    pub counted: i64,
    pub batches: Vec<Batch>,
    pub epochs: LeaderEpochs,
}

impl ModelLog {
    pub fn append(&mut self, batch: Batch) {
        assert!(batch.base >= self.end, "{batch:?} at {}", self.end);
        let newer = self.epochs.latest_epoch().is_none_or(|e| batch.epoch > e.0);
        if newer {
            self.epochs
                .assign(LeaderEpoch(batch.epoch), Offset(batch.base));
        }
        self.end = batch.end;
        self.batches.push(batch);
    }

    pub fn truncate(&mut self, to: i64) {
        let mut to = to.min(self.end);
        if let Some(batch) = self.batches.iter().find(|b| b.base < to && b.end > to) {
            to = batch.base;
        }
        self.batches.retain(|batch| batch.end <= to);
        self.end = to;
        if to < self.start {
            // The log start lay inside the batch that went.
            return self.start_over(self.start);
        }
        self.counted = self.counted.min(to);
        self.epochs.truncate_from_end(Offset(to));
    }

    pub fn start_over(&mut self, at: i64) {
        *self = ModelLog {
            start: at,
            end: at,
            counted: at,
            ..ModelLog::default()
        };
    }

    pub fn move_start(&mut self, to: i64) {
        if to > self.start {
            self.start = to;
            self.epochs.truncate_from_start(Offset(to));
            self.batches.retain(|batch| batch.end > to);
        }
    }

    pub fn read(&self, from: i64, most: usize) -> Vec<Batch> {
        let found = self.batches.iter().filter(|batch| batch.end > from);
        found.take(most).cloned().collect()
    }

    pub fn at(&self, offset: i64) -> Option<&Batch> {
        let at = self.batches.partition_point(|batch| batch.end <= offset);
        self.batches.get(at).filter(|batch| batch.base <= offset)
    }
}

impl History for ModelLog {
    fn log_start(&self) -> Offset {
        Offset(self.start)
    }

    fn log_end(&self) -> Offset {
        Offset(self.end)
    }

    fn latest_epoch(&self) -> Option<LeaderEpoch> {
        self.epochs.latest_epoch()
    }

    fn end_of(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        let end = self.epochs.end_offset_for(epoch, self.log_end())?;
        Some((end.epoch, end.end_offset))
    }
}

/// What the controller has committed, at one moment.
#[derive(Clone, Debug)]
pub(super) struct Registration {
    pub in_sync: Vec<NodeId>,
    pub leader: Option<NodeId>,
    pub epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    /// By node: broker epoch, and whether it is alive.
    pub brokers: Vec<(i64, bool)>,
}

impl Registration {
    pub fn registered(&self, id: NodeId) -> Option<Registered> {
        let (epoch, alive) = *self.brokers.get(id.0 as usize)?;
        Some(Registered {
            epoch,
            alive,
            eligible: alive,
        })
    }

    pub fn is_alive(&self, id: NodeId) -> bool {
        self.brokers[id.0 as usize].1
    }
}
