//! What the leader of a partition knows and decides: its epoch, the in-sync set and the high
//! watermark. Pure; one value per led partition, on the partition's shard. Never touches the log.
//!
//! The watermark chain, asserted at every change:
//! `log_start <= high_watermark <= log_end`, and the high watermark never moves back within an
//! epoch.

use crate::types::{LeaderEpoch, NodeId, Offset};

/// Leader state of one partition, within one leader epoch.
#[derive(Debug, Clone)]
pub struct Leader {
    epoch: LeaderEpoch,
    /// Where this epoch began: until the high watermark has passed it, what consumers may know as
    /// "latest" is not settled (KIP-207).
    epoch_start: Offset,
    local: NodeId,
    replicas: Vec<NodeId>,
    in_sync: Vec<NodeId>,
    min_in_sync: usize,
    high_watermark: Offset,
}

impl Leader {
    /// A leader that takes over with what its log holds. `high_watermark` is the checkpointed
    /// one, already clamped to the log.
    pub fn new(
        epoch: LeaderEpoch,
        epoch_start: Offset,
        local: NodeId,
        replicas: Vec<NodeId>,
        in_sync: Vec<NodeId>,
        min_in_sync: usize,
        high_watermark: Offset,
    ) -> Leader {
        assert!(
            high_watermark <= epoch_start,
            "high watermark {high_watermark} beyond the log end {epoch_start} at the start of {epoch:?}"
        );
        Leader {
            epoch,
            epoch_start,
            local,
            replicas,
            in_sync,
            min_in_sync,
            high_watermark,
        }
    }

    pub fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    pub fn in_sync(&self) -> &[NodeId] {
        &self.in_sync
    }

    pub fn replicas(&self) -> &[NodeId] {
        &self.replicas
    }

    /// `min.insync.replicas`, but never more than there are replicas (KIP-966).
    pub fn effective_min_in_sync(&self) -> usize {
        self.min_in_sync.min(self.replicas.len()).max(1)
    }

    pub fn set_min_in_sync(&mut self, min_in_sync: usize) {
        self.min_in_sync = min_in_sync;
    }

    /// Whether an acks=all produce may be appended now.
    pub fn has_enough_in_sync(&self) -> bool {
        self.in_sync.len() >= self.effective_min_in_sync()
    }

    /// Whether "latest" is settled for consumers: everything of earlier epochs is committed.
    pub fn is_latest_known(&self) -> bool {
        self.high_watermark >= self.epoch_start
    }

    /// The leader's own log has moved: `counted` is the end of what its durability row counts,
    /// `log_start` the first offset kept. Returns the new high watermark if it moved.
    pub fn on_local_progress(
        &mut self,
        log_start: Offset,
        counted: Offset,
        log_end: Offset,
    ) -> Option<Offset> {
        assert!(
            log_start <= log_end && counted <= log_end,
            "log start {log_start}, counted {counted}, log end {log_end} are out of order"
        );
        // Below the minimum the high watermark stands still, also for acks=1 data (KIP-966).
        let committed = if self.has_enough_in_sync() && self.in_sync == [self.local] {
            counted
        } else {
            self.high_watermark
        };
        let next = committed.max(log_start).max(self.high_watermark);
        assert!(
            next <= log_end,
            "high watermark {next} beyond the log end {log_end}"
        );
        if next > self.high_watermark {
            self.high_watermark = next;
            Some(next)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(in_sync: &[i32], min: usize) -> Leader {
        Leader::new(
            LeaderEpoch(3),
            Offset(10),
            NodeId(1),
            vec![NodeId(1), NodeId(2)],
            in_sync.iter().map(|id| NodeId(*id)).collect(),
            min,
            Offset(5),
        )
    }

    #[test]
    fn latest_is_unknown_until_the_epoch_start_is_committed() {
        let mut leader = leader(&[1], 1);
        assert!(!leader.is_latest_known());
        assert_eq!(
            leader.on_local_progress(Offset(0), Offset(10), Offset(12)),
            Some(Offset(10))
        );
        assert!(leader.is_latest_known());
    }

    #[test]
    fn high_watermark_stands_still_below_the_minimum() {
        let mut leader = leader(&[1], 2);
        assert!(!leader.has_enough_in_sync());
        assert_eq!(
            leader.on_local_progress(Offset(0), Offset(12), Offset(12)),
            None
        );
        assert_eq!(leader.high_watermark(), Offset(5));
    }

    #[test]
    fn high_watermark_never_counts_what_is_not_durable_yet() {
        let mut leader = leader(&[1], 1);
        assert_eq!(
            leader.on_local_progress(Offset(0), Offset(7), Offset(12)),
            Some(Offset(7))
        );
        assert_eq!(
            leader.on_local_progress(Offset(0), Offset(6), Offset(12)),
            None
        );
        assert_eq!(leader.high_watermark(), Offset(7));
    }

    #[test]
    fn deleting_records_carries_the_high_watermark_along() {
        let mut leader = leader(&[1], 2);
        assert_eq!(
            leader.on_local_progress(Offset(8), Offset(12), Offset(12)),
            Some(Offset(8))
        );
    }
}
