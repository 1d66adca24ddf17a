//! The log of a coordinator: the partition of `__consumer_offsets` or `__transaction_state` that
//! keeps its state. Appends through the replica room like any producer with acks=all, waits for
//! the high watermark, and reads everything back when a coordinator begins. Runs on the
//! partition's shard. Knows no record.

use super::Shard;
use crate::log::{AppendAs, LogError};
use crate::replica::delayed::{DelayedProduce, Need, ProducePart};
use crate::replica::partition::Partition;
use crate::rt;
use crate::rt::sync::oneshot;
use crate::types::{LeaderEpoch, Offset};
use crate::wire::ErrorCode;
use crate::wire::batch::{Batch, BatchError, Batches};
use bytes::Bytes;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Read at once while loading (`offsets.load.buffer.size`,
/// `transaction.state.log.load.buffer.size`).
const LOAD_BYTES: u64 = 5 << 20;
/// How long an operation is kept in the purgatory before it is put there again: whoever waits for
/// a coordinator's answer has given up long before.
const WAIT_STEP: Duration = Duration::from_secs(3600);

const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The pause before a partition is read back again that could not be read, or of which not all
/// counts yet. A disk may be full, and the tail of a log be cut, for a while.
pub const RELOAD_PAUSE: Duration = Duration::from_secs(1);

/// See the module's words.
pub struct CoordinatorLog {
    shard: Weak<Shard>,
    pub partition: Rc<Partition>,
}

/// What an append has come to so far.
#[derive(Clone, Copy, Debug)]
pub enum Stored {
    Known(Result<Offset, ErrorCode>),
    /// It waits for the high watermark.
    Waiting {
        base: Offset,
        required: Offset,
        epoch: LeaderEpoch,
    },
}

/// Why loading stopped. `E` is what the coordinator says of a record.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E: std::error::Error> {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("a stored batch is damaged: {0}")]
    Damaged(#[from] BatchError),
    #[error("{0}")]
    Replay(E),
}

impl CoordinatorLog {
    pub fn new(shard: &Rc<Shard>, partition: Rc<Partition>) -> CoordinatorLog {
        CoordinatorLog {
            shard: Rc::downgrade(shard),
            partition,
        }
    }

    pub fn shard(&self) -> Option<Rc<Shard>> {
        self.shard.upgrade()
    }

    pub fn is_empty(&self) -> bool {
        let log = &self.partition.log;
        log.log_start() == log.log_end()
    }

    /// Appends one batch, with acks=all.
    pub fn append(&self, batch: Bytes, how: AppendAs) -> Stored {
        let Some(shard) = self.shard.upgrade() else {
            return Stored::Known(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        };
        match self.partition.append(batch, how, true) {
            Ok(appended) => {
                shard.progressed(&self.partition);
                let (base, required) = (appended.first_offset, appended.last_offset.next());
                let epoch = self.partition.leader_epoch();
                let outcome = self
                    .partition
                    .produce_outcome(Need::Committed, epoch, required);
                match outcome.map(of_record) {
                    Some(Ok(())) => Stored::Known(Ok(base)),
                    Some(Err(error)) => Stored::Known(Err(error)),
                    None => Stored::Waiting {
                        base,
                        required,
                        epoch,
                    },
                }
            }
            Err(error) => Stored::Known(Err(error.code)),
        }
    }

    /// Waits until the high watermark has reached `required`, however long that takes.
    ///
    /// # Errors
    /// It never will under `epoch`: leadership or the log is gone.
    pub async fn committed(&self, required: Offset, epoch: LeaderEpoch) -> Result<(), ErrorCode> {
        loop {
            let shard = self
                .shard
                .upgrade()
                .ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?;
            let (done, told) = oneshot::channel();
            let mut operation = DelayedProduce {
                need: Need::Committed,
                parts: vec![ProducePart {
                    partition: self.partition.clone(),
                    epoch,
                    required,
                    outcome: None,
                    slot: 0,
                }],
                done: Some(done),
            };
            if operation.is_satisfied() {
                operation.answer();
            } else {
                shard.park_produce(operation, WAIT_STEP);
            }
            drop(shard);
            match told
                .await
                .ok()
                .and_then(|outcomes| outcomes.first().copied())
            {
                // The purgatory's own limits; at its fullest it says so at once.
                Some((_, ErrorCode::REQUEST_TIMED_OUT)) => rt::sleep(RETRY_PAUSE).await,
                Some((_, error)) => return of_record(error),
                None => return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            }
        }
    }

    /// Hands every batch below the log end to `replay`; yields to the ring between reads. The
    /// number of batches, and the log end.
    pub async fn read_back<E: std::error::Error>(
        &self,
        mut replay: impl FnMut(&Batch) -> Result<(), E>,
    ) -> Result<(u64, Offset), LoadError<E>> {
        let log = &self.partition.log;
        let end = log.log_end();
        // What a leader before this one sent last may not be on the disk yet.
        log.wait_counted(end).await?;
        let mut at = log.log_start();
        let mut batches = 0;
        while at < end {
            let read = log.read(at, end, LOAD_BYTES, true).await?;
            let before = at;
            for part in Batches::new(read.records.to_bytes()) {
                let batch = part?;
                replay(&batch).map_err(LoadError::Replay)?;
                at = at.max(batch.last_offset().next());
                batches += 1;
            }
            if at == before {
                break;
            }
        }
        Ok((batches, end))
    }
}

impl<E: std::error::Error> LoadError<E> {
    /// Whether it may be otherwise a moment later: what is stored stays as it is.
    pub fn passes(&self) -> bool {
        matches!(self, LoadError::Log(_))
    }
}

/// What a produce's outcome says of a coordinator's record. Below the high watermark it counts,
/// and the next coordinator acts on it, whatever has become of the in-sync set since.
fn of_record(outcome: ErrorCode) -> Result<(), ErrorCode> {
    match outcome {
        ErrorCode::NONE | ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND => Ok(()),
        error => Err(error),
    }
}
