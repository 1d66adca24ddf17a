//! Owns a log's side of the journal: its part of the next frame, what it does when that frame is
//! durable, and the changes it has to tell. On the log's shard. It never writes: flush rounds do.

use std::rc::Rc;

use crate::rt;
use crate::rt::sync::Semaphore;
use crate::types::Offset;

use super::super::error::LogError;
use super::super::log::{Log, Status};
use super::frame::Change;
use super::pending::Unflushed;

/// What a log has to tell in a frame.
pub(in crate::log) struct JournalPart {
    pub log: Rc<Log>,
    pub generation: u64,
    pub unflushed: Unflushed,
}

impl Log {
    /// The log's part of the next frame of its directory's journal; `None` where its segments must
    /// be flushed instead.
    pub(in crate::log) fn journal_part(&self) -> Option<JournalPart> {
        let state = self.state();
        let segments_wanted =
            state.flush_wanted > state.marks.in_segments() || !state.unproven.is_empty();
        let takes_part = matches!(state.status, Status::Open | Status::Truncating)
            && state.config.durability().waits_for_flush();
        if segments_wanted || !takes_part || !state.rounds.journal().is_on() {
            return None;
        }
        let unflushed = state
            .pending
            .between(state.marks.durable(), state.marks.written())?;
        Some(JournalPart {
            log: self.rc(),
            generation: state.generation,
            unflushed,
        })
    }

    /// A frame with everything below `upto` is durable.
    pub(in crate::log) fn journaled(&self, generation: u64, upto: Offset) {
        {
            let mut state = self.state_mut();
            // What was cut and written again since is not what was told.
            if state.generation != generation {
                return;
            }
            state.marks.journaled_to(upto);
            let durable = state.marks.durable();
            state.pending.flushed_to(durable);
            state.last_flush_ms = rt::wall_ms();
        }
        self.announce();
    }

    /// Batches appended since they were last counted into a round.
    pub(in crate::log) fn take_batches(&self) -> u64 {
        std::mem::take(&mut self.state_mut().unflushed_batches)
    }

    /// Flushes segments until they hold everything below `upto` that was not cut since.
    ///
    /// # Errors
    /// Why the log went offline before that.
    pub(in crate::log) async fn flush_segments_to(
        &self,
        upto: Offset,
        gate: &Rc<Semaphore>,
    ) -> Result<(), LogError> {
        loop {
            {
                let state = self.state();
                match &state.status {
                    Status::Offline(error) => return Err(error.clone()),
                    // Closed with everything flushed, or deleted.
                    Status::Closed => return Ok(()),
                    Status::Open | Status::Truncating => {}
                }
                if state.marks.in_segments() >= upto.min(state.marks.durable()) {
                    return Ok(());
                }
            }
            self.flush_written(gate, false).await;
        }
    }

    /// Tells the journal, if a frame may hold something of this log, that its tail is cut or its
    /// start moved; returns when that is durable.
    ///
    /// # Errors
    /// The journal failed: the log is offline.
    pub(in crate::log) async fn tell_journal(
        &self,
        offset: Offset,
        change: Change,
    ) -> Result<(), LogError> {
        if self.taking_back.get() {
            return Ok(());
        }
        let rounds = self.rounds();
        match rounds.journal().hand_over(self.rc(), offset, change) {
            Ok(None) => Ok(()),
            Ok(Some(change)) => {
                rounds.wake();
                rounds.journal().told(change).await
            }
            Err(failure) => Err(self.fail_with(failure)),
        }
    }

    /// As [`Log::tell_journal`] for a log start that moved, without waiting: it is durable before
    /// whatever is acknowledged next by the journal.
    pub(in crate::log) fn tell_journal_behind(&self, offset: Offset) {
        if self.taking_back.get() {
            return;
        }
        let rounds = self.rounds();
        match rounds
            .journal()
            .hand_over(self.rc(), offset, Change::LogStart)
        {
            Ok(None) => {}
            Ok(Some(_)) => rounds.wake(),
            Err(failure) => drop(self.fail_with(failure)),
        }
    }
}
