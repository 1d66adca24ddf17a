//! Reads a partition of `__consumer_offsets` from its start to its end into the state machine.
//! Runs on the partition's shard; yields to the ring between reads.

use super::groups::Coordinator;
use crate::coordinator::ReplayError;
use crate::log::LogError;
use crate::wire::batch::{BatchError, Batches};
use std::rc::Rc;

/// Read at once while loading (`offsets.load.buffer.size`).
const LOAD_BYTES: u64 = 5 << 20;

/// Why loading stopped.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("a stored batch is damaged: {0}")]
    Damaged(#[from] BatchError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// Replays every batch below the log end.
pub async fn load(coordinator: &Rc<Coordinator>) -> Result<(), LoadError> {
    let log = &coordinator.partition.log;
    let end = log.log_end();
    // What a leader before this one sent last may not be on the disk yet.
    log.wait_counted(end).await?;
    let mut at = log.log_start();
    let mut batches = 0u64;
    while at < end {
        let read = log.read(at, end, LOAD_BYTES, true).await?;
        let before = at;
        for part in Batches::new(read.records.to_bytes()) {
            let batch = part?;
            coordinator.replay(|state| state.replay_batch(&batch))?;
            at = at.max(batch.last_offset().next());
            batches += 1;
        }
        if at == before {
            break;
        }
    }
    if batches > 0 {
        tracing::info!(
            partition = coordinator.partition.id.index,
            batches,
            "groups loaded"
        );
    }
    Ok(())
}
