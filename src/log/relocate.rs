//! Owns how the copy of a log in another directory takes the log's place (KIP-113): the log stays
//! the same object to all who hold it, its files become those of the copy. On the log's shard,
//! under the `upkeep` permits of both. It never decides when, and never copies.
//!
//! The copy counts from the moment its directory bears the partition's name on the disk; until
//! then the log is where it was. Appends go on meanwhile, but none is written, so none is
//! acknowledged that only one of the two would have.

use std::io;
use std::path::Path;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use crate::rt;
use crate::rt::sync::Permit;
use crate::types::{LeaderEpoch, Offset};

use super::error::LogError;
use super::log::{Log, Status, partition_path};
use super::producers::Producers;

/// A log whose appends wait. They are written once this is dropped.
pub struct HeldWrites {
    log: Rc<Log>,
    _permit: Permit,
}

/// How an attempt to take a log's place ended without success.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Nothing has changed on the disk.
    #[error("the copy is not ready")]
    NotReady,
    /// The copy's directory may bear the partition's name by now. It has failed.
    #[error(transparent)]
    Unsure(LogError),
}

impl Drop for HeldWrites {
    fn drop(&mut self) {
        let mut state = self.log.state_mut();
        state.held = false;
        self.log.wake_writer_for_more(&mut state);
    }
}

impl Log {
    /// Lets what is appended from here on wait in memory, and returns once everything before is
    /// written: `written` stands still. Nothing else changes the files meanwhile.
    ///
    /// # Errors
    /// The log is not open.
    pub async fn hold_writes(&self) -> Result<HeldWrites, LogError> {
        let permit = self.upkeep.acquire(1).await;
        self.check_usable()?;
        self.state_mut().held = true;
        let held = HeldWrites {
            log: self.rc(),
            _permit: permit,
        };
        loop {
            let moved = {
                let state = self.state();
                if !state.queue.running && state.queue.in_flight() == 0 {
                    break;
                }
                self.progress.wait()
            };
            moved.await;
        }
        match self.state().status {
            Status::Open => Ok(held),
            _ => Err(LogError::Closed),
        }
    }

    /// Whether what an unclean start found has still to be written again before a flush covers it.
    pub fn is_unproven(&self) -> bool {
        !self.state().unproven.is_empty()
    }

    /// Whether all that a roll leaves to be done behind is done, so that the files are whole.
    pub fn is_settled(&self) -> bool {
        let state = self.state();
        let mut sealed = state.segments.values().filter(|one| one.is_sealed());
        sealed.all(|segment| segment.is_settled())
    }

    /// Takes the place of `current`, whose writes are held and of which this log has everything
    /// that is written, flushed. Afterwards `current` lies where this one lay, and this one, with
    /// the old files, is to be deleted.
    ///
    /// # Errors
    /// See [`PlaceError`]; `current` goes on where it is.
    pub async fn take_place_of(&self, current: &HeldWrites) -> Result<(), PlaceError> {
        let current = &current.log;
        let _permit = self.upkeep.acquire(1).await;
        self.writer_idle().await;
        let ready = {
            let (new, old) = (self.state(), current.state());
            matches!(new.status, Status::Open)
                && matches!(old.status, Status::Open)
                && new.marks.in_segments() == new.marks.log_end()
                && new.marks.log_end() == old.marks.written()
        };
        if !ready || !self.is_settled() {
            return Err(PlaceError::NotReady);
        }
        // Epochs in which nothing was written are known to the log only.
        {
            let mut new = self.state_mut();
            new.epochs = current.state().epochs.clone();
            let end = new.marks.log_end();
            new.epochs.truncate_from_end(end);
            new.epochs_unwritten = true;
        }
        self.stop_flushes().await;
        current.stop_flushes().await;
        let placed = self.rename_and_adopt(current).await;
        self.resume_flushes();
        current.resume_flushes();
        placed
    }

    async fn rename_and_adopt(&self, current: &Rc<Log>) -> Result<(), PlaceError> {
        let from = self.dir();
        let to = from
            .parent()
            .map(|log_dir| partition_path(log_dir, self.topic(), self.partition()));
        let to = to.unwrap_or_else(|| from.to_path_buf());
        let renamed = async {
            self.write_epochs().await?;
            rename_dir(&from, &to).await
        };
        if let Err(error) = renamed.await {
            return Err(PlaceError::Unsure(self.fail("rename", error)));
        }
        self.state_mut().dir = Rc::new(to);
        current.adopt(self);
        Ok(())
    }

    /// The copy's files become this log's, whose waiting appends go behind them.
    fn adopt(&self, copy: &Log) {
        let (end, waiting) = {
            let mut guard = self.state_mut();
            let mut other = copy.state_mut();
            let (old, new) = (&mut *guard, &mut *other);
            let mut waiting = BytesMut::new();
            for write in old.queue.waiting() {
                // Of a batch that is half written nothing counts, and nothing was copied.
                let parts = write.head.iter().chain(&write.parts);
                parts.for_each(|part| waiting.extend_from_slice(part));
            }
            let end = old.marks.log_end();
            old.queue.clear();
            new.generation = old.generation.max(new.generation) + 1;
            new.is_future = false;
            new.config = old.config.clone();
            new.first_dirty = old.first_dirty;
            // The copy's directory was told the log's first dirty offset.
            new.vouched.set(new.vouched.get().max(old.vouched.get()));
            new.flush_wanted = old.flush_wanted.max(new.flush_wanted);
            // Tasks of the one log and of the other.
            std::mem::swap(&mut new.persisting, &mut old.persisting);
            if old.marks.log_start() > new.marks.log_start() {
                let start = old.marks.log_start().min(new.marks.log_end());
                new.marks.start_moved_to(start);
                new.epochs.truncate_from_start(start);
            }
            std::mem::swap(old, new);
            // Those of the log that is given up now.
            new.held = false;
            new.generation += 1;
            (end, waiting.freeze())
        };
        self.shard.recent.forget(self.key());
        self.shard.recent.forget(copy.key());
        // Its producers and epochs know more than what can be read out of records.
        let (producers, epochs) = {
            let mut old = copy.state_mut();
            let limits = old.producer_limits;
            let nothing = Producers::with_limits(limits);
            let producers = std::mem::replace(&mut old.producers, nothing);
            (producers, old.epochs.clone())
        };
        let appended = self.append_again(waiting, end);
        {
            let mut state = self.state_mut();
            let snapshot = state.producers.snapshot_offset();
            state.producers = producers;
            state.producers.snapshot_lies_at(snapshot);
            state.epochs = epochs;
            state.epochs_unwritten = true;
            self.persist_behind(&mut state);
            if state.owes_flush() {
                state.rounds.request(&self.rc());
            }
        }
        if let Err(error) = appended {
            self.fail("append after a move", error);
        }
        self.announce();
    }

    /// Nothing of it was acknowledged.
    fn append_again(&self, waiting: Bytes, end: Offset) -> io::Result<()> {
        if !waiting.is_empty() {
            let any = LeaderEpoch(i32::MAX);
            self.append_as_follower(waiting, any, rt::wall_ms())
                .map_err(io::Error::other)?;
        }
        match self.log_end() == end {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "log ends at {} instead of {end}",
                self.log_end()
            ))),
        }
    }
}

/// Gives a directory another name beside the old one, durably.
pub(super) async fn rename_dir(from: &Path, to: &Path) -> io::Result<()> {
    rt::fs::rename(from, to).await?;
    match to.parent() {
        Some(parent) => rt::fs::sync_dir(parent).await,
        None => Ok(()),
    }
}
