//! What the producer state says of a batch.
//!
//! Owns the verdicts, the errors with their protocol codes, and the shapes of what is reported.
//! Values only, no decisions: those are in `producers` and `entry`.

use crate::log::txn_index::AbortedTxn;
use crate::types::Offset;
use crate::wire::ErrorCode;

/// What a leader may do with a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Append it, then [`apply`](Producers::apply) it.
    New,
    /// It is in the log already; answer success with these offsets and write nothing.
    Duplicate {
        first_offset: Offset,
        last_offset: Offset,
        /// Of the batch in the log, milliseconds.
        timestamp: i64,
    },
}

/// Why a leader must refuse a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProducerError {
    #[error(
        "out of order sequence number for producer {producer_id}: {first} (incoming), \
         {last} (current end)"
    )]
    SequenceGap {
        producer_id: i64,
        first: i32,
        last: i32,
    },
    #[error(
        "invalid sequence number for new epoch of producer {producer_id}: {epoch} (request \
         epoch), {first} (sequence), {current_epoch} (current epoch)"
    )]
    SequenceOfNewEpoch {
        producer_id: i64,
        epoch: i16,
        first: i32,
        current_epoch: i16,
    },
    #[error(
        "out of order sequence number for producer {producer_id}: {first} (incoming), {lowest} \
         (earliest seen while its transaction was verified)"
    )]
    SequenceBeyondVerified {
        producer_id: i64,
        first: i32,
        lowest: i32,
    },
    #[error(
        "invalid sequence number for producer {producer_id}: {first}; a transactions v2 producer \
         without state here starts at 0"
    )]
    SequenceWithoutState { producer_id: i64, first: i32 },
    #[error("epoch {epoch} of producer {producer_id} is behind the last seen epoch {current}")]
    StaleEpoch {
        producer_id: i64,
        epoch: i16,
        current: i16,
    },
    #[error("producer {producer_id} wrote outside of its open transaction")]
    NotInTransaction { producer_id: i64 },
    #[error("the batch of producer {producer_id} is not part of an ongoing transaction")]
    NotVerified { producer_id: i64 },
    #[error(
        "coordinator epoch {epoch} of the marker for producer {producer_id} is behind {current}"
    )]
    CoordinatorFenced {
        producer_id: i64,
        epoch: i32,
        current: i32,
    },
    #[error("the partition has {0} producers with open transactions, which is its limit")]
    TooManyProducers(usize),
}

impl ProducerError {
    /// The protocol's error for it.
    pub fn code(&self) -> ErrorCode {
        match self {
            ProducerError::SequenceGap { .. }
            | ProducerError::SequenceOfNewEpoch { .. }
            | ProducerError::SequenceBeyondVerified { .. }
            | ProducerError::SequenceWithoutState { .. } => ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
            ProducerError::StaleEpoch { .. } => ErrorCode::INVALID_PRODUCER_EPOCH,
            ProducerError::NotInTransaction { .. } | ProducerError::NotVerified { .. } => {
                ErrorCode::INVALID_TXN_STATE
            }
            ProducerError::CoordinatorFenced { .. } => ErrorCode::TRANSACTION_COORDINATOR_FENCED,
            ProducerError::TooManyProducers(_) => ErrorCode::THROTTLING_QUOTA_EXCEEDED,
        }
    }
}

/// A transaction that a marker ended, as the transaction index records it if it was aborted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletedTxn {
    pub producer_id: i64,
    pub first_offset: Offset,
    /// The marker's own offset.
    pub last_offset: Offset,
    pub aborted: bool,
    /// The last stable offset with this transaction out of the way.
    pub last_stable_offset: Offset,
}

impl CompletedTxn {
    /// The row it adds to the transaction index; a committed one adds none.
    pub fn aborted_row(&self) -> Option<AbortedTxn> {
        self.aborted.then_some(AbortedTxn {
            producer_id: self.producer_id,
            first_offset: self.first_offset,
            last_offset: self.last_offset,
            last_stable_offset: self.last_stable_offset,
        })
    }
}

/// One line of a DescribeProducers answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerDescription {
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub last_sequence: i32,
    pub last_timestamp: i64,
    pub coordinator_epoch: i32,
    /// -1 when no transaction is open.
    pub current_txn_start_offset: i64,
}

/// Proof that the transaction coordinator has been asked about a transaction on this partition.
/// Each verification has its own, so that an answer to an earlier one proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct VerificationGuard(pub(super) u64);

impl VerificationGuard {
    /// No verification: right for batches without transaction and for transactions that are open
    /// on the partition already.
    pub const NONE: VerificationGuard = VerificationGuard(0);

    pub fn is_none(self) -> bool {
        self == VerificationGuard::NONE
    }
}
