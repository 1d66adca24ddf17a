//! A producer's transactions, with the names and the behaviour of Kafka's own.
//!
//! One executor. Joins the states of the transaction with the batches: nothing leaves that the
//! transaction does not hold, all is settled before its end, and what an abort finds unsent is
//! dropped.

use super::error::ClientError;
use super::group_coordinator::CommittedOffset;
use super::producer::Producer;
use super::sender::{Shared, tell};
use super::topic_partition::TopicPartition;
use super::transaction_offsets::GroupMetadata;
use super::transactions::Transactions;
use crate::rt;

impl Producer {
    fn transactions(&self) -> Result<&Transactions, ClientError> {
        let missing = || ClientError::Invalid("transactions need transactional.id".to_owned());
        self.shared().transactions.as_ref().ok_or_else(missing)
    }

    /// Takes the transactional id over, once before the first transaction: what an earlier
    /// producer of the same id left open is aborted, and that producer is fenced.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] without `transactional.id`; the coordinator's refusal. When
    /// `max.block.ms` has passed it may be tried again.
    pub async fn init_transactions(&self) -> Result<(), ClientError> {
        let shared = self.shared();
        let deadline = rt::now() + shared.config.block_max;
        let identity = self.transactions()?.init(deadline).await?;
        shared.outbox.borrow_mut().renew_identity(identity);
        Ok(())
    }

    /// Opens a transaction, to which all that is sent from now on belongs.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] if this is not the time; the error that the producer is in.
    pub fn begin_transaction(&self) -> Result<(), ClientError> {
        self.transactions()?.with(|state| state.begin())
    }

    /// Makes offsets part of the transaction: they are the group's when it is committed.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] without an open transaction; the coordinators' refusal, after
    /// which the transaction can only be aborted.
    pub async fn send_offsets_to_transaction(
        &self,
        offsets: &[(TopicPartition, CommittedOffset)],
        group: &GroupMetadata,
    ) -> Result<(), ClientError> {
        let deadline = rt::now() + self.shared().config.block_max;
        self.transactions()?
            .send_offsets(offsets, group, deadline)
            .await
    }

    /// Sends what was given to the transaction, waits until it is settled, and commits.
    ///
    /// # Errors
    /// Of the first record that was not delivered, or the coordinator's refusal: the transaction
    /// is to be aborted then. When `max.block.ms` has passed it may be tried again.
    pub async fn commit_transaction(&self) -> Result<(), ClientError> {
        self.end_transaction(true).await
    }

    /// Drops what was not sent, waits for what is on its way, and aborts.
    ///
    /// # Errors
    /// The coordinator's refusal. When `max.block.ms` has passed it may be tried again.
    pub async fn abort_transaction(&self) -> Result<(), ClientError> {
        self.end_transaction(false).await
    }

    async fn end_transaction(&self, committed: bool) -> Result<(), ClientError> {
        let shared = self.shared();
        let transactions = self.transactions()?;
        transactions.with(|state| state.finish(committed))?;
        self.flush().await;
        let deadline = rt::now() + shared.config.block_max;
        let identity = transactions.end(deadline).await?;
        shared.outbox.borrow_mut().renew_identity(identity);
        Ok(())
    }
}

/// Before anything is sent: gives up what may not leave any more, and tells the coordinator of
/// partitions where it must be told.
pub(super) async fn admit(shared: &Shared) {
    let Some(transactions) = &shared.transactions else {
        return;
    };
    loop {
        if let Err(error) = transactions.with(|state| state.check_leaving()) {
            let given_up = shared.outbox.borrow_mut().give_up_all(&error);
            tell(shared, given_up);
            return;
        }
        let missing = {
            let outbox = shared.outbox.borrow();
            transactions.with(|state| state.missing(outbox.accumulator.active()))
        };
        if missing.is_empty() {
            return;
        }
        let deadline = rt::now() + shared.config.delivery_timeout;
        // A refusal is in the states: the batches are given up above.
        let _ = transactions.add(missing, deadline).await;
    }
}
