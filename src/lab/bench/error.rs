//! Why a run of the load tool did not take place. Trouble during the load is counted instead.

use std::io;

use crate::client::ClientError;
use crate::rt::RunError;

/// One line for a person.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The plan contradicts itself.
    #[error("{0}")]
    Invalid(String),
    /// Before the load began.
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("topic '{0}' does not exist; --partitions lets it be made")]
    NoTopic(String),
    #[error("topic '{topic}' has {found} partitions, not {wanted}")]
    OtherTopic {
        topic: String,
        found: usize,
        wanted: i32,
    },
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// Everything that was sent was refused.
    #[error("not one of {records} records was acknowledged: {reason}")]
    NothingAcknowledged { records: u64, reason: String },
}
