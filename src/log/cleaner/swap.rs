//! Owns the moment a compacted segment takes the place of those it was made from, on disk and in
//! memory. On the log's shard, under the log's `upkeep` permit. It never reads or writes records.
//!
//! Order on disk, a directory sync after each step, so that a stop anywhere leaves what
//! `leftovers` can finish or undo:
//! 1. the indexes become `.swap`, then the log: from here on the new segment is complete;
//! 2. the old segments become `.deleted`;
//! 3. the log takes its live name, then the indexes (a `.swap` log would take live indexes of its
//!    base for old ones).
//!
//! In memory the segments change between 1 and 2, in one step. Whoever reads an old segment at
//! that moment has it open and may finish; it looks again for what it did not find there.

use std::io;
use std::path::Path;
use std::rc::Rc;

use super::super::error::LogError;
use super::super::flush::Flusher;
use super::super::log::{Log, LogState, Status};
use super::super::names::{self, FileKind, FileState};
use super::super::segment::Segment;
use super::super::write_queue::is_no_space;
use super::pass::PassError;
use crate::rt;
use crate::types::Offset;

/// What lies beside a log file; Kafka's cleaner makes no snapshot.
const INDEXES: [FileKind; 3] = [
    FileKind::OffsetIndex,
    FileKind::TimeIndex,
    FileKind::TxnIndex,
];

impl Log {
    /// Puts `new`, made from `old` when the log was at `generation`, in their place.
    ///
    /// # Errors
    /// `Abandoned` if the log has changed since, `NoSpace` if there was no room for the new
    /// names: nothing has happened then. Any other failure takes the log offline.
    pub(super) async fn swap_cleaned(
        &self,
        old: &[Rc<Segment>],
        new: &Rc<Segment>,
        generation: u64,
    ) -> Result<(), PassError> {
        let _permit = self.upkeep.acquire(1).await;
        let dir = self.dir();
        let base = new.base();
        let flusher = &self.shard.flusher;
        if !self.is_in_place(old, generation) {
            return Err(PassError::Abandoned);
        }
        if let Err(error) = stage(&dir, base, flusher).await {
            if is_no_space(&error) {
                unstage(&dir, base)
                    .await
                    .map_err(|error| self.lost(error))?;
                return Err(PassError::NoSpace(error));
            }
            return Err(self.lost(error));
        }
        // Retention needs no permit to give up segments.
        if !self.replace(old, new, generation) {
            unstage(&dir, base)
                .await
                .map_err(|error| self.lost(error))?;
            return Err(PassError::Abandoned);
        }
        let outcome = async {
            let mut gone = Vec::new();
            for segment in old {
                for kind in FileKind::ALL {
                    // A snapshot at the base of a segment that stays is still of use.
                    if kind != FileKind::Snapshot || segment.base() != base {
                        gone.push((segment.base(), kind));
                    }
                }
            }
            self.doom_files(&gone, old).await?;
            go_live(&dir, base, flusher).await
        };
        outcome.await.map_err(|error| self.lost(error))?;
        self.shard.index_budget.charge(new);
        Ok(())
    }

    fn lost(&self, error: io::Error) -> PassError {
        PassError::Log(self.fail("swap in a compacted segment", error))
    }

    /// Whether the log still is what the pass has read.
    pub(super) fn is_in_place(&self, segments: &[Rc<Segment>], generation: u64) -> bool {
        is_in_place(&self.state(), segments, generation)
    }

    fn replace(&self, old: &[Rc<Segment>], new: &Rc<Segment>, generation: u64) -> bool {
        let end = {
            let mut state = self.state_mut();
            if !is_in_place(&state, old, generation) {
                return false;
            }
            let last = old.last().map_or(new.base(), |last| last.base());
            let end = state.end_of(last);
            for segment in old {
                segment.mark_replaced();
                state.segments.remove(&segment.base());
            }
            state.segments.insert(new.base(), new.clone());
            end
        };
        // Its positions are those of the old segments, and so is its data of aborted transactions.
        self.shard.recent.forget_below(self.key(), end);
        true
    }

    /// Until where the log was cleaned; `None` if it never was.
    pub fn first_dirty(&self) -> Option<Offset> {
        self.state().first_dirty
    }

    /// From the directory's cleaner checkpoint, or after a pass.
    pub fn set_first_dirty(&self, offset: Offset) {
        self.state_mut().first_dirty = Some(offset);
    }
}

fn is_in_place(state: &LogState, segments: &[Rc<Segment>], generation: u64) -> bool {
    matches!(state.status, Status::Open)
        && state.generation == generation
        && segments.iter().all(|segment| {
            let there = state.segments.get(&segment.base());
            there.is_some_and(|there| Rc::ptr_eq(there, segment))
        })
}

async fn rename(
    dir: &Path,
    base: Offset,
    kind: FileKind,
    from: FileState,
    to: FileState,
) -> io::Result<()> {
    let name = |state| dir.join(names::segment_file_in_state(base, kind, state));
    match rt::fs::rename(&name(from), &name(to)).await {
        // There is no index of transactions where there are none.
        Err(error) if error.kind() == io::ErrorKind::NotFound && kind == FileKind::TxnIndex => {
            Ok(())
        }
        other => other,
    }
}

async fn stage(dir: &Path, base: Offset, flusher: &Flusher) -> io::Result<()> {
    for kind in INDEXES {
        rename(dir, base, kind, FileState::Cleaned, FileState::Swap).await?;
    }
    sync_dir(dir, flusher).await?;
    rename(
        dir,
        base,
        FileKind::Log,
        FileState::Cleaned,
        FileState::Swap,
    )
    .await?;
    sync_dir(dir, flusher).await
}

/// Takes the new segment back, its log first: alone it would be taken for complete.
async fn unstage(dir: &Path, base: Offset) -> io::Result<()> {
    for kind in [&[FileKind::Log][..], &INDEXES].concat() {
        for state in [FileState::Swap, FileState::Cleaned] {
            let path = dir.join(names::segment_file_in_state(base, kind, state));
            super::super::leftovers::remove(&path).await?;
        }
    }
    rt::fs::sync_dir(dir).await
}

async fn go_live(dir: &Path, base: Offset, flusher: &Flusher) -> io::Result<()> {
    rename(dir, base, FileKind::Log, FileState::Swap, FileState::Live).await?;
    sync_dir(dir, flusher).await?;
    for kind in INDEXES {
        rename(dir, base, kind, FileState::Swap, FileState::Live).await?;
    }
    sync_dir(dir, flusher).await
}

/// Nobody waits for it, but a flush might wait behind it.
async fn sync_dir(dir: &Path, flusher: &Flusher) -> io::Result<()> {
    flusher.gap().await;
    rt::fs::sync_dir(dir).await
}

impl From<LogError> for PassError {
    fn from(error: LogError) -> PassError {
        PassError::Log(error)
    }
}
