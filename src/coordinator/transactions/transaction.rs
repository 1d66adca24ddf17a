//! One transactional id as it is stored: its producer, its epoch, and its transaction; and what
//! it becomes by each step. A value: a step gives the next one and changes nothing.
//!
//! Transactions v2 (KIP-890) give the producer a new epoch with every transaction that ends, so
//! that a late batch of an earlier one can be told from a batch of this one.

use super::partitions::Partitions;
use super::state::State;
use crate::wire::ErrorCode;

/// No producer id: the producer's first, or none before this one.
pub const NO_PRODUCER_ID: i64 = -1;
/// No producer epoch, as in a transactional id just made.
pub const NO_PRODUCER_EPOCH: i16 = -1;
/// The last epoch that a client gets to see; the one above it is left for fencing it.
const LAST_EPOCH: i16 = i16::MAX - 1;

/// The level of the feature `transaction.version` that a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionVersion(pub i16);

impl TransactionVersion {
    /// The protocol of KIP-98, whether or not the coordinator stores flexible records (level 1).
    pub const V0: TransactionVersion = TransactionVersion(0);
    /// An epoch for each transaction, and partitions added by producing to them (KIP-890).
    pub const V2: TransactionVersion = TransactionVersion(2);

    /// Every transaction has an epoch of its own.
    pub fn bumps_epochs(self) -> bool {
        self >= TransactionVersion::V2
    }
}

/// A producer as it names itself in requests and batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    pub id: i64,
    pub epoch: i16,
}

impl Producer {
    /// Beside an error.
    pub const NONE: Producer = Producer {
        id: NO_PRODUCER_ID,
        epoch: NO_PRODUCER_EPOCH,
    };
}

/// See the module's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub producer_id: i64,
    /// The id before this one; a producer whose request was lost still uses it.
    pub previous_producer_id: i64,
    /// The id that follows when a transaction that is about to end has used the last epoch.
    pub next_producer_id: i64,
    pub epoch: i16,
    /// The epoch the producer had before the last change, for its repeated requests. Not stored.
    pub last_epoch: i16,
    pub timeout_ms: i32,
    pub state: State,
    pub partitions: Partitions,
    /// Milliseconds since 1970; -1 while there is no transaction.
    pub start_ms: i64,
    pub last_update_ms: i64,
    pub client_version: TransactionVersion,
}

impl Transaction {
    /// A transactional id that was never used.
    pub fn new(producer_id: i64, timeout_ms: i32, now_ms: i64) -> Transaction {
        Transaction {
            producer_id,
            previous_producer_id: NO_PRODUCER_ID,
            next_producer_id: NO_PRODUCER_ID,
            epoch: NO_PRODUCER_EPOCH,
            last_epoch: NO_PRODUCER_EPOCH,
            timeout_ms,
            state: State::Empty,
            partitions: Partitions::default(),
            start_ms: -1,
            last_update_ms: now_ms,
            client_version: TransactionVersion::V0,
        }
    }

    /// Whether `producer` is the one that has the transactional id now.
    pub fn check_producer(&self, producer: Producer) -> Result<(), ErrorCode> {
        if producer.id != self.producer_id {
            Err(ErrorCode::INVALID_PRODUCER_ID_MAPPING)
        } else if producer.epoch != self.epoch || is_nobodys(producer.epoch) {
            Err(ErrorCode::PRODUCER_FENCED)
        } else {
            Ok(())
        }
    }

    /// Whether the producer id has no epoch left for a client.
    pub fn is_exhausted(&self) -> bool {
        is_exhausted(self.epoch)
    }

    /// A producer begins, or goes on after an error, with another epoch.
    pub fn initialized(
        &self,
        epoch: i16,
        last_epoch: i16,
        timeout_ms: i32,
        now_ms: i64,
    ) -> Transaction {
        Transaction {
            previous_producer_id: self.producer_id,
            epoch,
            last_epoch,
            timeout_ms,
            state: State::Empty,
            partitions: Partitions::default(),
            start_ms: -1,
            last_update_ms: now_ms,
            ..self.clone()
        }
    }

    /// The same with a new producer id, for the epochs of the old one are used up.
    pub fn rotated(
        &self,
        producer_id: i64,
        keep_last_epoch: bool,
        timeout_ms: i32,
        now_ms: i64,
    ) -> Transaction {
        let last_epoch = match keep_last_epoch {
            true => self.epoch,
            false => NO_PRODUCER_EPOCH,
        };
        Transaction {
            producer_id,
            next_producer_id: NO_PRODUCER_ID,
            ..self.initialized(0, last_epoch, timeout_ms, now_ms)
        }
    }

    /// The transaction touches more partitions; the first ones open it.
    pub fn adding(
        &self,
        partitions: &Partitions,
        version: TransactionVersion,
        now_ms: i64,
    ) -> Transaction {
        let mut next = Transaction {
            previous_producer_id: self.producer_id,
            state: State::Ongoing,
            start_ms: self.start_at(now_ms),
            last_update_ms: now_ms,
            client_version: version,
            ..self.clone()
        };
        next.partitions.extend(partitions);
        next
    }

    /// When the transaction that goes on, or begins, at `now_ms` has begun.
    fn start_at(&self, now_ms: i64) -> i64 {
        match self.state {
            State::Ongoing => self.start_ms,
            _ => now_ms,
        }
    }

    /// The producer is shut out: nothing of its epoch is taken any more. Its transaction is still
    /// to be aborted.
    pub fn fenced(&self) -> Transaction {
        Transaction {
            epoch: self.epoch + 1,
            last_epoch: NO_PRODUCER_EPOCH,
            ..self.clone()
        }
    }

    /// The end is decided. `bump`: the producer gets a new epoch by it; `next_producer_id` is its
    /// new id if there is no epoch left.
    pub fn prepared(
        &self,
        commit: bool,
        version: TransactionVersion,
        bump: bool,
        next_producer_id: i64,
        now_ms: i64,
    ) -> Transaction {
        let (epoch, last_epoch) = match bump {
            true => (self.epoch + 1, self.epoch),
            false => (self.epoch, self.last_epoch),
        };
        Transaction {
            previous_producer_id: self.producer_id,
            next_producer_id,
            epoch,
            last_epoch,
            state: match commit {
                true => State::PrepareCommit,
                false => State::PrepareAbort,
            },
            // With v2 a transaction may be aborted that has touched nothing.
            start_ms: self.start_at(now_ms),
            last_update_ms: now_ms,
            client_version: version,
            ..self.clone()
        }
    }

    /// All partitions know the end.
    pub fn completed(&self, now_ms: i64) -> Transaction {
        let rotates = self.client_version.bumps_epochs() && self.next_producer_id != NO_PRODUCER_ID;
        let (producer_id, epoch) = match rotates {
            true => (self.next_producer_id, 0),
            false => (self.producer_id, self.epoch),
        };
        Transaction {
            producer_id,
            previous_producer_id: self.producer_id,
            next_producer_id: NO_PRODUCER_ID,
            epoch,
            state: match self.state {
                State::PrepareCommit => State::CompleteCommit,
                _ => State::CompleteAbort,
            },
            partitions: Partitions::default(),
            last_update_ms: now_ms,
            ..self.clone()
        }
    }

    /// Whether the transaction has been open for longer than its producer allows.
    pub fn has_timed_out(&self, now_ms: i64) -> bool {
        self.state == State::Ongoing
            && self.start_ms.saturating_add(i64::from(self.timeout_ms)) < now_ms
    }
}

/// Whether a producer names the epoch behind the last one, which is for fencing it and is given to
/// nobody.
pub fn is_nobodys(epoch: i16) -> bool {
    epoch > LAST_EPOCH
}

/// Whether a client's epoch is the last one.
pub fn is_exhausted(epoch: i16) -> bool {
    epoch >= LAST_EPOCH
}
