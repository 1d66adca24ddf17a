//! Owns what can go wrong with a log, as types a caller can act on. Pure, any core.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::types::{Offset, Uuid};

use super::write_queue::is_no_space;

/// A failure of the storage under a log. Cheap to clone because every later call of an
/// offline log answers with the one that took it offline.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what} of {}: {source}", path.display())]
pub struct StorageFailure {
    /// "write", "fdatasync", ...
    pub what: &'static str,
    pub path: PathBuf,
    #[source]
    pub source: Arc<io::Error>,
}

/// Why a log call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// A write or flush failed earlier (or just now). The directory is offline; nothing is ever
    /// retried. On the wire: KAFKA_STORAGE_ERROR.
    #[error("log is offline: {0}")]
    Offline(StorageFailure),
    /// The file system is full. What was not written is not in the log; the log goes on when
    /// there is space again. On the wire: KAFKA_STORAGE_ERROR.
    #[error("no space left: {0}")]
    NoSpace(StorageFailure),
    /// A call that needs the disk failed without harm to what is stored.
    #[error("storage: {0}")]
    Storage(StorageFailure),
    /// `from` is outside `[log_start, log_end]`. On the wire: OFFSET_OUT_OF_RANGE.
    #[error("offset {offset} is out of range [{log_start}, {log_end}]")]
    OutOfRange {
        offset: Offset,
        log_start: Offset,
        log_end: Offset,
    },
    /// The directory belongs to another incarnation of the topic. On the wire:
    /// INCONSISTENT_TOPIC_ID.
    #[error("partition.metadata says topic id {found}, expected {expected}")]
    TopicId { expected: Uuid, found: Uuid },
    /// Stored bytes are not what they were when they were written. On the wire:
    /// CORRUPT_MESSAGE, or KAFKA_STORAGE_ERROR for a read.
    #[error("{}: damaged at position {position}: {what}", path.display())]
    Damaged {
        path: PathBuf,
        position: u64,
        what: String,
    },
    /// The log was closed or deleted, or a truncation is under way.
    #[error("log is closed")]
    Closed,
}

/// The same error, saying which file it is about.
pub(super) fn about(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl LogError {
    /// The file system is full: what was asked for may be had once there is space again.
    pub fn is_no_space(&self) -> bool {
        match self {
            LogError::NoSpace(_) => true,
            LogError::Storage(failure) | LogError::Offline(failure) => is_no_space(&failure.source),
            _ => false,
        }
    }

    /// As a failure of the storage at `path`.
    pub(super) fn into_failure(self, path: &Path) -> StorageFailure {
        match self {
            LogError::Offline(failure)
            | LogError::NoSpace(failure)
            | LogError::Storage(failure) => failure,
            other => StorageFailure {
                what: "use",
                path: path.to_owned(),
                source: Arc::new(io::Error::other(other)),
            },
        }
    }

    /// As an error of the kind that it comes from, so that a full disk stays one.
    pub(super) fn into_io(self) -> io::Error {
        let kind = match &self {
            LogError::Offline(failure)
            | LogError::NoSpace(failure)
            | LogError::Storage(failure) => failure.source.kind(),
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }

    pub fn storage(what: &'static str, path: PathBuf, source: io::Error) -> LogError {
        LogError::Storage(StorageFailure {
            what,
            path,
            source: Arc::new(source),
        })
    }
}
