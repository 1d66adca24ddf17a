//! Offsets of a group as part of a producer's transaction: they are the group's when it is
//! committed.
//!
//! One executor. Speaks to both coordinators, the transaction's and the group's; what an answer
//! means the states decide.

use std::time::Duration;

use super::error::{ClientError, check};
use super::group_coordinator::{CommittedOffset, Committer, GroupCoordinator};
use super::sequences::Identity;
use super::topic_partition::TopicPartition;
use super::transaction::Step;
use super::transactions::{Transactions, worst};
use crate::rt::Instant;
use crate::wire::Str;
use crate::wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use crate::wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};

/// With later versions the group coordinator adds its offsets to the transaction itself.
const COMMIT_OFFSETS_EXPLICIT_LAST: i16 = 4;
/// Later versions use the ids of topics.
const COMMIT_OFFSETS_BY_NAME_LAST: i16 = 5;

/// Who commits offsets within a transaction: what a consumer says of itself as a member of its
/// group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMetadata {
    pub(super) group: Str,
    pub(super) committer: Committer,
}

impl GroupMetadata {
    /// A group whose members are not asked for, as a consumer with assigned partitions has.
    pub fn new(group: &str) -> GroupMetadata {
        GroupMetadata {
            group: Str::from(group),
            committer: Committer::simple(),
        }
    }
}

impl Transactions {
    /// Makes offsets of a group part of the transaction.
    ///
    /// # Errors
    /// The refusal of either coordinator; the transaction can only be aborted then.
    pub(crate) async fn send_offsets(
        &self,
        offsets: &[(TopicPartition, CommittedOffset)],
        group: &GroupMetadata,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let _turn = self.turn.acquire(1).await;
        self.with(|state| state.check_open())?;
        if offsets.is_empty() {
            return Ok(());
        }
        let identity = self.identity()?;
        let implicit = self.with(|state| state.is_implicit());
        let last = if implicit {
            // The group coordinator may have told ours also if its answer does not come.
            self.with(|state| state.offsets_added());
            COMMIT_OFFSETS_BY_NAME_LAST
        } else {
            self.add_offsets(identity, &group.group, deadline).await?;
            COMMIT_OFFSETS_EXPLICIT_LAST
        };
        let request = TxnOffsetCommitRequest {
            transactional_id: self.id().clone(),
            group_id: group.group.clone(),
            producer_id: identity.id,
            producer_epoch: identity.epoch,
            generation_id_or_member_epoch: group.committer.generation,
            member_id: group.committer.member_id.clone(),
            group_instance_id: group.committer.instance_id.clone(),
            topics: topics_of(offsets),
            ..TxnOffsetCommitRequest::default()
        };
        let coordinator = GroupCoordinator::new(self.cluster.clone(), group.group.clone());
        self.repeat(Step::CommitOffsets, deadline, async || {
            let answer = coordinator.call(&request, last, Duration::ZERO).await?;
            let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
            let code = worst(partitions.map(|partition| partition.error_code));
            let checked = check(code, || self.what("TXN_OFFSET_COMMIT"));
            checked.inspect_err(|error| coordinator.doubt(error))
        })
        .await
    }

    async fn add_offsets(
        &self,
        identity: Identity,
        group: &Str,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let request = AddOffsetsToTxnRequest {
            transactional_id: self.id().clone(),
            producer_id: identity.id,
            producer_epoch: identity.epoch,
            group_id: group.clone(),
            ..AddOffsetsToTxnRequest::default()
        };
        self.repeat(Step::AddOffsets, deadline, async || {
            let (answer, _) = self.call(&request, i16::MAX).await?;
            check(answer.error_code, || self.what("ADD_OFFSETS_TO_TXN"))
        })
        .await?;
        self.with(|state| state.offsets_added());
        Ok(())
    }
}

fn topics_of(offsets: &[(TopicPartition, CommittedOffset)]) -> Vec<TxnOffsetCommitRequestTopic> {
    let mut topics: Vec<TxnOffsetCommitRequestTopic> = Vec::new();
    for (key, committed) in offsets {
        let partition = TxnOffsetCommitRequestPartition {
            partition_index: key.partition,
            committed_offset: committed.offset.0,
            committed_leader_epoch: committed.leader_epoch.0,
            committed_metadata: Some(committed.metadata.as_str().into()),
            ..TxnOffsetCommitRequestPartition::default()
        };
        match topics.iter_mut().find(|topic| topic.name == key.topic) {
            Some(topic) => topic.partitions.push(partition),
            None => topics.push(TxnOffsetCommitRequestTopic {
                name: key.topic.clone(),
                partitions: vec![partition],
                ..TxnOffsetCommitRequestTopic::default()
            }),
        }
    }
    topics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_go_by_topic() {
        let offset = |topic: &str, partition, at| {
            let key = TopicPartition::new(topic.into(), partition);
            (key, CommittedOffset::new(crate::types::Offset(at)))
        };
        let topics = topics_of(&[offset("a", 0, 5), offset("b", 1, 6), offset("a", 2, 7)]);
        let names: Vec<&str> = topics.iter().map(|topic| topic.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let of_a = topics[0].partitions.iter();
        let of_a: Vec<_> = of_a
            .map(|p| (p.partition_index, p.committed_offset))
            .collect();
        assert_eq!(of_a, [(0, 5), (2, 7)]);
    }
}
