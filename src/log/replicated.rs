//! What a follower may append of the records a leader sent.
//!
//! Owns the checks between a Fetch answer and a follower's log. Runs on the partition's shard;
//! pure. Never judges what the leader has judged: batches keep offsets, epochs and contents.

use bytes::Bytes;

use crate::types::{LeaderEpoch, Offset};
use crate::wire::batch::{Batch, BatchError, Batches};

/// What a follower may append of a leader's answer.
#[derive(Clone, Debug, Default)]
pub struct Replicated {
    /// The batches in order, checked; a partial one at the end is left out.
    pub batches: Vec<Batch>,
    /// Batches from the first one on whose epoch is above the one that was fetched with. They may
    /// be a later leader's and are fetched again (KAFKA-18723).
    pub of_newer_epoch: bool,
}

/// Why a leader's answer cannot be appended.
#[derive(Debug, thiserror::Error)]
pub enum ReplicatedError {
    #[error("the leader sent a broken batch behind offset {behind}: {error}")]
    Broken { behind: Offset, error: BatchError },
    #[error("the leader sent offset {found} where {expected} or a later one was due")]
    Order { expected: Offset, found: Offset },
}

/// Checks the records a follower fetched at its log end `next` under `epoch`: each batch whole
/// with a right checksum, offsets growing from batch to batch. Batches keep offsets and epochs as
/// the leader gave them. The first batch may begin below `next` only if the log is empty and
/// `next` lies inside it, as after DeleteRecords on the leader; the log then restarts where that
/// batch begins.
pub fn check_replicated(
    records: Bytes,
    next: Offset,
    log_is_empty: bool,
    epoch: LeaderEpoch,
) -> Result<Replicated, ReplicatedError> {
    let mut replicated = Replicated::default();
    let mut expected = next;
    for batch in Batches::new(records) {
        let broken = |error| ReplicatedError::Broken {
            behind: expected,
            error,
        };
        let batch = batch.map_err(broken)?;
        batch.check_crc().map_err(broken)?;
        if batch.partition_leader_epoch() > epoch {
            replicated.of_newer_epoch = true;
            break;
        }
        let straddles = log_is_empty && replicated.batches.is_empty();
        let found = if straddles {
            batch.last_offset()
        } else {
            batch.base_offset()
        };
        if found < expected || batch.last_offset_delta() < 0 {
            return Err(ReplicatedError::Order { expected, found });
        }
        expected = Offset(batch.last_offset().0.saturating_add(1));
        replicated.batches.push(batch);
    }
    Ok(replicated)
}
