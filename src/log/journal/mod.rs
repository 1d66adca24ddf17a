//! The redo journal of a shard: what makes one flushed acknowledgement over a hundred partitions
//! cost one write and one fdatasync instead of a hundred.
//!
//! A flush round over many logs with little in each writes all of it as one frame into the journal
//! of their directory; that makes it durable. The segments are written as always and flushed
//! behind, at leisure, and only then are the journal's frames given up. After an unclean stop each
//! log takes back from the journal what its segments lack.
//!
//! | part | what it owns |
//! |---|---|
//! | `frame` | the bytes of one round |
//! | `file` | one journal file, its free room, the write that counts |
//! | `pending`, `part` | what a log has that no flush covers yet, and what it tells of itself |
//! | `dir_journal` | the journal of one directory: making it, what waits for the next frame, flushing behind |
//! | `left` | after an unclean stop: reading journals, who has not taken back yet, removing them |
//! | `replay` | taking back what a log lacks |
//! | `settled` | a log's note that old journals say nothing of it any more |
//!
//! Rules: whatever shortens a log or moves its start is told too, and waits until the frame that
//! tells it is durable, so that a replay never raises what was cut or deleted. A journal that could
//! not be written is never used again: its directory is offline. While a journal of an earlier life
//! stays, no log that it tells of is cut without a note of that in its own directory: on a disk too full
//! for such a note the cut waits. Kafka never sees a journal: a clean
//! stop flushes every segment and removes the file.

mod dir_journal;
mod file;
mod frame;
mod left;
mod part;
mod pending;
mod replay;
pub(super) mod settled;

pub(super) use dir_journal::DirJournal;
pub use file::JOURNAL_BYTES_MIN;
pub(super) use frame::Change;
pub use left::Journals;
pub(super) use part::JournalPart;
pub(super) use pending::Pending;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the journals of one shard have in common.
#[derive(Default)]
pub struct ShardJournals {
    /// Size of each; 0: no journal, every round flushes segments.
    bytes: u64,
    /// What an earlier life left, by log directory.
    left: RefCell<BTreeMap<PathBuf, Arc<Journals>>>,
}

impl ShardJournals {
    pub fn new(bytes: u64) -> ShardJournals {
        ShardJournals {
            bytes,
            ..ShardJournals::default()
        }
    }

    /// What the journals in `log_dir` said, before a log of it is opened.
    pub fn found(&self, log_dir: &Path, journals: Arc<Journals>) {
        self.left.borrow_mut().insert(log_dir.to_owned(), journals);
    }

    pub(super) fn left_in(&self, log_dir: &Path) -> Option<Arc<Journals>> {
        self.left.borrow().get(log_dir).cloned()
    }

    /// Whether logs should keep what no flush covers.
    pub(super) fn is_on(&self) -> bool {
        self.bytes > 0
    }
}
