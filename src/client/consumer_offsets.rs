//! A consumer's committed offsets: by hand, and every `auto.commit.interval.ms`.

use std::rc::Rc;

use super::consumer::{Consumer, Mode};
use super::error::ClientError;
use super::group_coordinator::{CommittedOffset, Committer, GroupCoordinator};
use super::topic_partition::TopicPartition;
use super::transaction_offsets::GroupMetadata;
use crate::rt;

impl Consumer {
    fn consumed(&self) -> Vec<(TopicPartition, CommittedOffset)> {
        let consumed = self.fetcher.assignment.borrow().consumed();
        let committed = |(key, offset, leader_epoch)| {
            (
                key,
                CommittedOffset {
                    offset,
                    leader_epoch,
                    metadata: String::new(),
                },
            )
        };
        consumed.into_iter().map(committed).collect()
    }

    fn committer(&self) -> Committer {
        match &self.mode {
            Mode::Subscribed { membership, .. } => membership.committer(),
            Mode::Assigned(_) => Committer::simple(),
        }
    }

    /// What this consumer is in its group, for offsets that a producer commits in a transaction.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] without `group.id`.
    pub fn group_metadata(&self) -> Result<GroupMetadata, ClientError> {
        Ok(GroupMetadata {
            group: self.coordinator()?.group.clone(),
            committer: self.committer(),
        })
    }

    /// Commits what poll has returned so far.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] without `group.id`; the broker's refusal.
    pub async fn commit(&self) -> Result<(), ClientError> {
        self.commit_offsets(&self.consumed()).await
    }

    /// Commits these offsets.
    pub async fn commit_offsets(
        &self,
        offsets: &[(TopicPartition, CommittedOffset)],
    ) -> Result<(), ClientError> {
        let coordinator = self.coordinator()?;
        if offsets.is_empty() {
            return Ok(());
        }
        let deadline = rt::now() + self.config().client.api_timeout;
        let _turn = self.commits.acquire(1).await;
        let committer = self.committer();
        self.cluster()
            .retry_until(deadline, async || {
                coordinator.commit(&committer, offsets).await
            })
            .await
    }

    /// The group's committed offsets of these partitions; those without one are left out.
    pub async fn committed(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<Vec<(TopicPartition, CommittedOffset)>, ClientError> {
        let coordinator = self.coordinator()?;
        let deadline = rt::now() + self.config().client.api_timeout;
        self.cluster()
            .retry_until(deadline, async || {
                coordinator.committed(Some(partitions), false).await
            })
            .await
    }

    fn coordinator(&self) -> Result<&GroupCoordinator, ClientError> {
        let missing = || ClientError::Invalid("offsets need group.id".to_owned());
        self.mode.coordinator().map(Rc::as_ref).ok_or_else(missing)
    }

    /// Commits beside the application if `auto.commit.interval.ms` has passed.
    pub(super) fn auto_commit(&mut self) {
        let Some(every) = self.config().auto_commit else {
            return;
        };
        let due = self.committed_at + every <= rt::now();
        if !due {
            return;
        }
        self.committed_at = rt::now();
        // Taken before the task begins: a commit by hand that comes next must not overtake it.
        let Some(turn) = self.commits.try_acquire(1) else {
            return;
        };
        let offsets = self.consumed();
        if offsets.is_empty() {
            return;
        }
        let committer = self.committer();
        let Some(coordinator) = self.mode.coordinator().cloned() else {
            return;
        };
        drop(rt::spawn(async move {
            let _turn = turn;
            // The next one carries these offsets too.
            if let Err(error) = coordinator.commit(&committer, &offsets).await {
                tracing::debug!(%error, "automatic commit failed");
            }
        }));
    }
}
