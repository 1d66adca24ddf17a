//! Owns what happens behind a log's appends: completing a roll, persisting index entries and
//! leader epochs, flushing by time, closing, and removing the files of a deleted partition. On
//! the log's shard, in tasks of its own; all of it under the log's `upkeep` permit. No append
//! ever waits for it.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;

use crate::rt;
use crate::rt::fs::{File, OpenOptions};
use crate::rt::sync::Semaphore;
use crate::types::Offset;

use super::config::SegmentIo;
use super::dir::random_id;
use super::error::LogError;
use super::journal::Change;
use super::log::{Log, LogState, Status};
use super::names::{self, FileKind};
use super::open::draw_jitter;
use super::segment::{Incoming, Segment};
use super::unlink;
use super::write_queue::{BLOCK_BYTES, is_no_space};
use super::writer::trim;

/// Index entries that may wait in memory before they are written behind: some 256 KiB of log at
/// the default interval, and one write instead of 64.
const PERSIST_ENTRIES: usize = 128;

/// How long what a full disk refused waits before it is tried again.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(5);

impl Log {
    /// Rolls to a new segment if an append of `incoming`, which begins at `first`, demands it.
    pub(super) fn roll_if_due(
        &self,
        state: &mut LogState,
        incoming: &Incoming,
        first: Offset,
        now_ms: i64,
    ) {
        let active = state.active();
        if active.size() > 0 && active.should_roll(incoming, &state.config, now_ms) {
            self.roll_at(state, first, now_ms);
        }
    }

    /// Makes `base` the start of a new active segment. Its files are made by the writer before
    /// its first byte is written; the old one is completed behind.
    pub(super) fn roll_at(&self, state: &mut LogState, base: Offset, now_ms: i64) {
        let old = state.active().clone();
        assert!(
            base > old.base(),
            "roll of {} at {} to {base}",
            self.topic(),
            old.base()
        );
        old.seal();
        let jitter = draw_jitter(&state.config);
        let segment = Rc::new(Segment::create(base, now_ms, jitter, &state.config));
        state.segments.insert(base, segment);
        let snapshot = state.producers.encode_snapshot();
        let log = self.rc();
        drop(rt::spawn(async move {
            log.complete_roll(old, base, snapshot).await
        }));
        self.wake_writer(state);
    }

    /// Rolls now, whatever the rules say. Does nothing to an empty active segment.
    pub fn roll(&self, now_ms: i64) {
        let mut state = self.state_mut();
        if matches!(state.status, Status::Open) && state.active().size() > 0 {
            let base = state.marks.log_end();
            self.roll_at(&mut state, base, now_ms);
        }
    }

    /// Flushes sealed segments that no flush will come for, because nothing is owed any more: they
    /// hold the recovery point back and are never compacted before.
    pub async fn settle(&self) -> Result<(), LogError> {
        let unsettled = {
            let state = self.state();
            state.recovery_point() < state.marks.in_segments()
        };
        if unsettled {
            self.flush_written(&Rc::new(Semaphore::new(1)), false).await;
        }
        self.check_usable()
    }

    /// Ends a log whose opening has failed. Nothing of it may go on: another try opens its files anew.
    pub(super) async fn give_up(&self) {
        {
            let mut state = self.state_mut();
            if !matches!(state.status, Status::Offline(_)) {
                state.status = Status::Closed;
            }
            state.queue.clear();
            state.pending.clear();
        }
        self.announce();
        self.writer_idle().await;
        let _permit = self.upkeep.acquire(1).await;
        self.stop_flushes().await;
        let segments: Vec<Rc<Segment>> = self.state().segments.values().cloned().collect();
        for segment in segments {
            segment.preallocation_settled().await;
        }
        self.shard.recent.forget(self.key());
    }

    async fn complete_roll(self: Rc<Self>, old: Rc<Segment>, base: Offset, snapshot: Bytes) {
        // The writer cuts the old file to its data before it makes the new one.
        while self.check_usable().is_ok() && self.awaits_files(base) {
            self.progress.wait().await;
        }
        loop {
            let permit = self.upkeep.acquire(1).await;
            let stands = {
                let state = self.state();
                let live = state.segments.get(&old.base());
                let is_old = live.is_some_and(|live| Rc::ptr_eq(live, &old));
                is_old && state.segments.contains_key(&base)
            };
            if !stands || self.check_usable().is_err() {
                return;
            }
            let dir = self.dir();
            let outcome = async {
                let _turn = self.shard.persists.acquire(1).await;
                self.write_snapshot(&dir, base, snapshot.clone()).await?;
                old.persist_indexes(&dir, true).await
            };
            match outcome.await {
                Ok(()) => break,
                Err(error) if is_no_space(&error) => {
                    // Until then the recovery point stays, and nothing here is compacted.
                    tracing::warn!(dir = %dir.display(), %error, "roll not completed for lack of space");
                }
                Err(error) => {
                    self.fail("complete a roll", error);
                    return;
                }
            }
            drop(permit);
            rt::sleep(NO_SPACE_PAUSE).await;
        }
        self.shard.index_budget.charge(&old);
        // So that the recovery point moves past the old segment. Not in the shard's rounds: up to
        // a whole segment may be dirty, and acknowledgements would wait for it.
        self.flush_written(&Rc::new(Semaphore::new(1)), false).await;
    }

    fn awaits_files(&self, base: Offset) -> bool {
        let state = self.state();
        let segment = state.segments.get(&base);
        segment.is_some_and(|segment| segment.handles().is_none())
    }

    async fn write_snapshot(&self, dir: &Path, at: Offset, bytes: Bytes) -> io::Result<()> {
        let path = dir.join(names::segment_file(at, FileKind::Snapshot));
        let file = File::open(&path, OpenOptions::CREATE.truncate()).await?;
        file.write_all_at(0, vec![bytes]).await?;
        file.sync_data().await?;
        self.state_mut().producers.on_snapshot_taken(at);
        Ok(())
    }

    /// A refusal for lack of space costs only what can be rebuilt; anything else is the disk's end.
    fn background_failure(&self, what: &'static str, error: io::Error) {
        if is_no_space(&error) {
            tracing::warn!(dir = %self.dir().display(), what, %error, "not done for lack of space");
        } else {
            self.fail(what, error);
        }
    }

    /// Starts a task that writes index entries and epochs behind, if enough have gathered.
    pub(super) fn persist_behind(&self, state: &mut LogState) {
        let due = state.active().unpersisted_entries() >= PERSIST_ENTRIES || state.owes_epochs();
        if due && !state.persisting {
            state.persisting = true;
            let log = self.rc();
            drop(rt::spawn(async move {
                if let Err(error) = log.persist().await {
                    log.background_failure("persist indexes", error);
                }
                log.state_mut().persisting = false;
            }));
        }
    }

    async fn persist(&self) -> io::Result<()> {
        let _permit = self.upkeep.acquire(1).await;
        if self.check_usable().is_err() {
            return Ok(());
        }
        let (active, dir) = {
            let state = self.state();
            (state.active().clone(), state.dir.clone())
        };
        let _turn = self.shard.persists.acquire(1).await;
        if active.handles().is_some() {
            active.persist_indexes(&dir, false).await?;
        }
        self.write_epochs().await
    }

    /// Writes the leader-epoch checkpoint if it is behind.
    pub(super) async fn write_epochs(&self) -> io::Result<()> {
        let (path, text) = {
            let mut state = self.state_mut();
            if !std::mem::take(&mut state.epochs_unwritten) {
                return Ok(());
            }
            (
                state.dir.join(names::LEADER_EPOCH_CHECKPOINT),
                state.epochs.encode(),
            )
        };
        let written = rt::fs::write_atomic(&path, text.into_bytes()).await;
        // On a full disk it is owed still, and no clean stop comes without it.
        self.state_mut().epochs_unwritten |= written.is_err();
        written
    }

    /// Where an O_DIRECT segment ends inside a block, that block is rewritten by the next append.
    pub(super) async fn load_partial_block(&self) -> io::Result<()> {
        let active = self.state().active().clone();
        let Some(handles) = active.handles() else {
            return Ok(());
        };
        let bytes = if handles.io == SegmentIo::Direct {
            let size = active.size();
            let partial = size % BLOCK_BYTES;
            handles
                .reader
                .read_at(size - partial, partial as usize)
                .await?
                .to_vec()
        } else {
            Vec::new()
        };
        self.state_mut().queue.set_partial_block(bytes);
        Ok(())
    }

    /// Asks for a flush if `flush.ms` has passed with something unflushed.
    pub fn flush_if_due(&self, now_ms: i64) {
        let due = {
            let state = self.state();
            let waited = now_ms.saturating_sub(state.last_flush_ms);
            state.marks.durable() < state.marks.written() && waited >= state.config.flush_ms
        };
        if due {
            self.request_flush();
        }
    }

    /// Forgets expired producer ids.
    pub fn expire_producers(&self, now_ms: i64) {
        self.state_mut().producers.expire(now_ms);
    }

    /// Writes out and flushes everything, so that the next start can trust it. The log takes no
    /// calls afterwards.
    ///
    /// # Errors
    /// The log was or went offline; then the directory must not be marked clean.
    pub async fn close(&self) -> Result<(), LogError> {
        self.check_usable()?;
        let _permit = loop {
            self.writer_idle().await;
            self.flush().await?;
            let permit = self.upkeep.acquire(1).await;
            self.check_usable()?;
            let mut state = self.state_mut();
            // Appended to while this waited: once more, so that all of it is closed.
            if state.queue.is_idle() && state.marks.in_segments() == state.marks.log_end() {
                // Nothing is appended to files that are being closed.
                state.status = Status::Truncating;
                break permit;
            }
        };
        let (dir, segments, end, snapshot) = {
            let state = self.state();
            let segments: Vec<Rc<Segment>> = state.segments.values().cloned().collect();
            let snapshot = state
                .producers
                .needs_snapshot()
                .then(|| state.producers.encode_snapshot());
            (state.dir.clone(), segments, state.marks.log_end(), snapshot)
        };
        // From here on nothing is appended: a follower's fetch may still be on its way.
        self.state_mut().status = Status::Closed;
        self.close_files(&dir, &segments, end, snapshot)
            .await
            .map_err(|error| self.fail("close", error))?;
        self.shard.recent.forget(self.key());
        self.announce();
        Ok(())
    }

    async fn close_files(
        &self,
        dir: &Path,
        segments: &[Rc<Segment>],
        end: Offset,
        snapshot: Option<Bytes>,
    ) -> io::Result<()> {
        let mut touched = false;
        for segment in segments {
            let Some(handles) = segment.handles() else {
                continue;
            };
            if segment.is_untouched() {
                continue;
            }
            if segment.is_sealed() && segment.indexes_persisted() && segment.is_synced() {
                continue;
            }
            touched = true;
            trim(segment, &handles).await?;
            segment.seal();
            segment.persist_indexes(dir, true).await?;
            handles.writer.sync_data().await?;
        }
        if let Some(bytes) = snapshot {
            self.write_snapshot(dir, end, bytes).await?;
            touched = true;
        }
        if self.state().owes_epochs() {
            self.write_epochs().await?;
        }
        if touched {
            rt::fs::sync_dir(dir).await?;
        }
        Ok(())
    }

    /// Stops the log and renames its directory to `<topic>-<partition>.<32 hex>-delete`. Reads
    /// and appends are refused from here on; the files go with [`Log::delete_files`].
    pub async fn mark_deleted(&self) -> Result<(), LogError> {
        if let Err(error @ LogError::Closed) = self.check_usable() {
            return Err(error);
        }
        let _permit = self.upkeep.acquire(1).await;
        self.writer_idle().await;
        {
            // Nothing of this log may be told behind the change below.
            let mut state = self.state_mut();
            if matches!(state.status, Status::Open) {
                state.status = Status::Truncating;
            }
            state.pending.clear();
        }
        // A partition that comes back under the same id must not get the old records.
        if let Err(error) = self.tell_journal(Offset::ZERO, Change::StartOver).await {
            self.go_with_journal(&error);
            return Err(error);
        }
        self.stop_flushes().await;
        let dir = self.dir();
        let name = names::delete_dir(self.topic(), self.partition(), random_id());
        let doomed = dir.with_file_name(name);
        let renamed = match rt::fs::rename(dir.as_path(), &doomed).await {
            // A new name may take a block that a full disk has not got; then the files go now.
            Err(error) if is_no_space(&error) => {
                rt::fs::remove_dir_all(dir.as_path())
                    .await
                    .map_err(|error| self.fail("remove", error))?;
                false
            }
            Err(error) => return Err(self.fail("rename", error)),
            Ok(()) => true,
        };
        if let Some(log_dir) = dir.parent() {
            rt::fs::sync_dir(log_dir)
                .await
                .map_err(|error| self.fail("sync", error))?;
        }
        {
            let mut state = self.state_mut();
            if renamed {
                state.dir = Rc::new(doomed);
            }
            state.status = Status::Closed;
            state.queue.clear();
            state.pending.clear();
        }
        self.shard.recent.forget(self.key());
        self.announce();
        Ok(())
    }

    /// Removes the directory of a log that was marked deleted.
    pub async fn delete_files(&self, delay: Duration) -> Result<(), LogError> {
        let dir = self.dir();
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        if names::parse_partition_dir(&name) != Some(names::PartitionDir::Delete) {
            // Gone already, and the name may be another log's by now.
            return Ok(());
        }
        match unlink::remove_dir(dir.as_path(), delay, &self.shard.flusher).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.storage_error("remove", error))
            }
            _ => Ok(()),
        }
    }
}
