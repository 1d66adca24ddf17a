//! The in-sync set of a led partition: what the controller has committed, and the one change that
//! may be on its way there. Pure. Decides what an answer of AlterPartition means (KIP-497, KIP-903);
//! never who belongs into the set.

use crate::types::{LeaderEpoch, NodeId, PartitionEpoch};
use crate::wire::ErrorCode;

/// A change that was asked for and has no answer yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending {
    /// Tells an answer of this proposal from one of an earlier one.
    serial: u64,
    members: Vec<NodeId>,
    grows: bool,
}

/// What is sent to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    pub serial: u64,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    /// Each with the epoch of its broker's registration, -1 where that is not known.
    pub members: Vec<(NodeId, i64)>,
    pub grows: bool,
}

/// What the controller says of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Altered {
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    pub in_sync: Vec<NodeId>,
}

/// What is to be done after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The set has changed.
    Committed,
    /// The proposal is off; another may follow.
    Reverted,
    /// The same proposal is to be sent again.
    Retry,
    /// Only newer metadata can tell what holds now.
    AwaitMetadata,
    /// The answer is of a proposal that nobody waits for any more.
    Stale,
}

/// See the module's words.
#[derive(Clone, Debug)]
pub struct InSync {
    committed: Vec<NodeId>,
    partition_epoch: PartitionEpoch,
    pending: Option<Pending>,
    serials: u64,
}

impl InSync {
    pub fn new(committed: Vec<NodeId>, partition_epoch: PartitionEpoch) -> InSync {
        InSync {
            committed,
            partition_epoch,
            pending: None,
            serials: 0,
        }
    }

    /// What the controller has committed.
    pub fn committed(&self) -> &[NodeId] {
        &self.committed
    }

    pub fn partition_epoch(&self) -> PartitionEpoch {
        self.partition_epoch
    }

    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The set that counts for acknowledgements: whoever is in it or may be in it. A replica on
    /// its way in may be elected before we hear of it; one on its way out counts until it is out.
    pub fn maximal(&self) -> &[NodeId] {
        match &self.pending {
            Some(pending) if pending.grows => &pending.members,
            _ => &self.committed,
        }
    }

    /// Proposes the set with `id` in it.
    pub fn grow(&mut self, id: NodeId) -> &[NodeId] {
        let mut members = self.committed.clone();
        members.push(id);
        self.propose(members, true)
    }

    /// Proposes the set without `gone`.
    pub fn shrink(&mut self, gone: &[NodeId]) -> &[NodeId] {
        let mut members = self.committed.clone();
        members.retain(|id| !gone.contains(id));
        self.propose(members, false)
    }

    fn propose(&mut self, members: Vec<NodeId>, grows: bool) -> &[NodeId] {
        assert!(self.pending.is_none(), "two changes of an in-sync set");
        self.serials += 1;
        let pending = Pending {
            serial: self.serials,
            members,
            grows,
        };
        &self.pending.insert(pending).members
    }

    /// The change on its way, as it is sent. `epoch_of` gives the epochs of the brokers.
    pub fn proposal(
        &self,
        leader_epoch: LeaderEpoch,
        epoch_of: impl Fn(NodeId) -> i64,
    ) -> Option<Proposal> {
        let pending = self.pending.as_ref()?;
        let members = pending.members.iter().map(|id| (*id, epoch_of(*id)));
        Some(Proposal {
            serial: pending.serial,
            leader_epoch,
            partition_epoch: self.partition_epoch,
            members: members.collect(),
            grows: pending.grows,
        })
    }

    /// The controller's answer to a proposal of a leader that is still in `leader_epoch`.
    pub fn on_answer(
        &mut self,
        proposal: &Proposal,
        leader_epoch: LeaderEpoch,
        answer: &Result<Altered, ErrorCode>,
    ) -> Outcome {
        let waits = self.pending.as_ref();
        if waits.is_none_or(|pending| pending.serial != proposal.serial)
            || proposal.leader_epoch != leader_epoch
        {
            return Outcome::Stale;
        }
        match answer {
            Ok(altered) if altered.leader_epoch != leader_epoch => Outcome::AwaitMetadata,
            Ok(altered) if altered.partition_epoch < self.partition_epoch => Outcome::AwaitMetadata,
            Ok(altered) => {
                // With the epoch unchanged there was nothing to change: it is committed as well.
                self.committed.clone_from(&altered.in_sync);
                self.partition_epoch = altered.partition_epoch;
                self.pending = None;
                Outcome::Committed
            }
            Err(error) => match *error {
                ErrorCode::OPERATION_NOT_ATTEMPTED | ErrorCode::INELIGIBLE_REPLICA => {
                    self.pending = None;
                    Outcome::Reverted
                }
                ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
                | ErrorCode::UNKNOWN_TOPIC_ID
                | ErrorCode::FENCED_LEADER_EPOCH
                | ErrorCode::INVALID_UPDATE_VERSION
                | ErrorCode::INVALID_REQUEST
                | ErrorCode::NEW_LEADER_ELECTED => Outcome::AwaitMetadata,
                _ => Outcome::Retry,
            },
        }
    }

    /// The metadata says what is committed. False if it is not newer than what is known.
    pub fn on_metadata(&mut self, committed: &[NodeId], partition_epoch: PartitionEpoch) -> bool {
        if partition_epoch <= self.partition_epoch {
            return false;
        }
        self.committed = committed.to_vec();
        self.partition_epoch = partition_epoch;
        self.pending = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[i32]) -> Vec<NodeId> {
        ids.iter().map(|id| NodeId(*id)).collect()
    }

    fn growing() -> (InSync, Proposal) {
        let mut set = InSync::new(ids(&[1, 2]), PartitionEpoch(5));
        set.grow(NodeId(3));
        let proposal = set.proposal(LeaderEpoch(7), |id| i64::from(id.0) * 10);
        (set, proposal.unwrap())
    }

    fn altered(leader: i32, partition: i32) -> Result<Altered, ErrorCode> {
        Ok(Altered {
            leader_epoch: LeaderEpoch(leader),
            partition_epoch: PartitionEpoch(partition),
            in_sync: ids(&[1, 2, 3]),
        })
    }

    #[test]
    fn whoever_may_be_in_the_set_counts() {
        let (mut set, proposal) = growing();
        assert_eq!(
            proposal.members,
            [(NodeId(1), 10), (NodeId(2), 20), (NodeId(3), 30)]
        );
        assert_eq!(set.maximal(), ids(&[1, 2, 3]));
        assert_eq!(set.committed(), ids(&[1, 2]));
        assert!(set.on_metadata(&ids(&[1, 2]), PartitionEpoch(6)));
        set.shrink(&ids(&[2]));
        assert_eq!(set.maximal(), ids(&[1, 2]));
    }

    #[test]
    fn each_answer_has_its_meaning() {
        for (answer, outcome, pending, maximal) in [
            (altered(7, 6), Outcome::Committed, false, 3),
            (altered(7, 5), Outcome::Committed, false, 3),
            (altered(7, 4), Outcome::AwaitMetadata, true, 3),
            (altered(8, 6), Outcome::AwaitMetadata, true, 3),
            (
                Err(ErrorCode::INELIGIBLE_REPLICA),
                Outcome::Reverted,
                false,
                2,
            ),
            (
                Err(ErrorCode::OPERATION_NOT_ATTEMPTED),
                Outcome::Reverted,
                false,
                2,
            ),
            (
                Err(ErrorCode::NEW_LEADER_ELECTED),
                Outcome::AwaitMetadata,
                true,
                3,
            ),
            (
                Err(ErrorCode::INVALID_UPDATE_VERSION),
                Outcome::AwaitMetadata,
                true,
                3,
            ),
            (
                Err(ErrorCode::FENCED_LEADER_EPOCH),
                Outcome::AwaitMetadata,
                true,
                3,
            ),
            (Err(ErrorCode::NOT_CONTROLLER), Outcome::Retry, true, 3),
        ] {
            let (mut set, proposal) = growing();
            let found = set.on_answer(&proposal, LeaderEpoch(7), &answer);
            assert_eq!(found, outcome, "{answer:?}");
            assert_eq!(set.is_pending(), pending, "{answer:?}");
            assert_eq!(set.maximal().len(), maximal, "{answer:?}");
        }
    }

    #[test]
    fn an_answer_that_metadata_has_overtaken_changes_nothing() {
        let (mut set, proposal) = growing();
        assert!(set.on_metadata(&ids(&[1]), PartitionEpoch(9)));
        assert!(!set.on_metadata(&ids(&[1, 2]), PartitionEpoch(8)));
        assert_eq!(
            set.on_answer(&proposal, LeaderEpoch(7), &altered(7, 6)),
            Outcome::Stale
        );
        assert_eq!(set.committed(), ids(&[1]));
        // Nor does one of a proposal before the last.
        set.grow(NodeId(2));
        assert_eq!(
            set.on_answer(&proposal, LeaderEpoch(7), &altered(7, 10)),
            Outcome::Stale
        );
        assert!(set.is_pending());
    }
}
