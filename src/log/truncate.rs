//! Owns every shortening of a log from its end: a follower that leaves a diverging history, a
//! log that starts over, and the tail that a full disk would not take. On the log's shard, under
//! the `upkeep` permit. Appends are refused while it runs; reads go on below the cut.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use crate::rt;
use crate::rt::sync::Permit;
use crate::types::Offset;
use crate::wire::ErrorCode;

use super::config::LogConfig;
use super::error::LogError;
use super::flush_interval::FlushInterval;
use super::journal::Change;
use super::leftovers;
use super::log::{Log, LogState, Status};
use super::names::{self, FileKind, FileState};
use super::open::draw_jitter;
use super::producers::Producers;
use super::rebuild::{Rebuild, list_snapshots};
use super::recover::extent_of;
use super::scan::{ScanError, Scanner};
use super::segment::{BatchExtent, Segment};
use super::unlink::Doomed;
use super::write_queue::is_no_space;

/// Where a segment is cut.
struct CutPoint {
    offset: Offset,
    position: u64,
    /// The data ends before `offset`, which is the log start inside the batch that was cut.
    hole: bool,
    /// Batches that stay behind the last index entry that stays.
    tail: Vec<BatchExtent>,
}

impl Log {
    /// Cuts everything at or past `offset`. A batch that reaches across it goes as a whole, and
    /// the log ends where it began. No effect if the log ends there already.
    ///
    /// Whoever calls this sees to it that the checkpoints on disk vouch for nothing above that
    /// before, see [`Log::lower_checkpoints`]: what lies below them is believed.
    ///
    /// # Errors
    /// `OutOfRange` below the log start; the storage; `NoSpace` as
    /// [`Log::truncate_fully_and_start_at`].
    pub async fn truncate_to(&self, offset: Offset) -> Result<(), LogError> {
        self.check_usable()?;
        if offset < self.log_start() {
            return Err(self.range_error(offset));
        }
        if offset >= self.log_end() {
            self.forget_empty_epochs();
            return Ok(());
        }
        let permit = self.stop_writing().await?;
        // A full disk may have cut more meanwhile.
        let offset = offset.min(self.log_end());
        self.begin_cut(offset);
        // Before the files change: what was cut may not be raised by what the journal told of it.
        if let Err(error) = self.tell_journal(offset, Change::Cut).await {
            drop(permit);
            self.go_with_journal(&error);
            return Err(error);
        }
        let outcome = self.cut_tail(offset).await;
        drop(permit);
        let hole = matches!(outcome, Ok(true));
        self.end_cut(outcome.map(drop))?;
        if hole {
            // Nothing that may be read is left, and the next batch would stand behind a hole,
            // which a recovery takes for a loss.
            return self.truncate_fully_and_start_at(self.log_start()).await;
        }
        Ok(())
    }

    /// Deletes everything and lets the log start at `offset`, which may be anywhere.
    ///
    /// # Errors
    /// The storage; `NoSpace` where a full disk keeps a journal of an earlier life that would raise
    /// again what is cut.
    pub async fn truncate_fully_and_start_at(&self, offset: Offset) -> Result<(), LogError> {
        self.check_usable()?;
        let _permit = self.stop_writing().await?;
        // Nothing that was there before may be told behind the change.
        self.state_mut().pending.clear();
        // Before anything else changes: a journal that cannot be told, on a full disk, must find the
        // log and its files as they were.
        if let Err(error) = self.tell_journal(offset, Change::StartOver).await {
            self.go_with_journal(&error);
            return Err(error);
        }
        let removed = {
            let mut state = self.state_mut();
            state.status = Status::Truncating;
            state.generation += 1;
            state.synced_below.set(Offset::ZERO);
            state.queue.clear();
            state.producers.reset(offset);
            state.epochs.clear();
            state.epochs_unwritten = true;
            state.marks = super::watermarks::Watermarks::starting_at(offset);
            state.interval = FlushInterval::from(offset);
            // Those that retention gave up and has not removed yet go first: a hole behind them
            // would look like a loss.
            let live = std::mem::take(&mut state.segments).into_values();
            let removed: Vec<Rc<Segment>> = state.doomed.drain(..).chain(live).collect();
            state.first_dirty = None;
            let jitter = draw_jitter(&state.config);
            let segment = Segment::create(offset, rt::wall_ms(), jitter, &state.config);
            state.segments.insert(offset, Rc::new(segment));
            removed
        };
        self.shard.recent.forget(self.key());
        let outcome = async {
            self.doom_segments(&removed).await?;
            for snapshot in list_snapshots(&self.dir()).await? {
                let name = names::segment_file(snapshot, FileKind::Snapshot);
                leftovers::remove(&self.dir().join(name)).await?;
            }
            let (active, dir, config) = self.active_dir_config();
            // Without space the writer makes them, before the first byte.
            self.tolerate_no_space(active.open_files(&dir, config.segment_io).await)?;
            // Where the log begins now must survive the power, also if the checkpoint finds no room.
            rt::fs::sync_dir(dir.as_path()).await?;
            self.state_mut().files_made += 1;
            self.load_partial_block().await?;
            self.tolerate_no_space(self.write_epochs().await)
        };
        let outcome = outcome.await;
        self.end_cut(outcome)
    }

    /// A journal that has failed takes its directory with it, this log at once: it has begun to
    /// forget what its file still holds, and another cut would find nothing left to do.
    pub(super) fn go_with_journal(&self, error: &LogError) {
        if matches!(error, LogError::Offline(_)) {
            self.take_offline(error);
        }
    }

    /// Before a cut at `offset`, or with 0 before the log starts over: from here on no checkpoint
    /// names a recovery point, or a first dirty offset, above the segment that is cut. True if one
    /// on disk may do so: they must be written before the cut. Until [`Log::free_checkpoints`].
    pub fn lower_checkpoints(&self, offset: Offset) -> bool {
        let mut state = self.state_mut();
        // The batch that a cut falls back to begins no earlier than its segment.
        let max = state.floor_base(offset).min(offset);
        state.vouch_max = Some(max);
        state.vouched.get() > max
    }

    /// The cut is done, or is off. `written` says that the checkpoints on disk were lowered.
    pub fn free_checkpoints(&self, written: bool) {
        let mut state = self.state_mut();
        let max = state.vouch_max.take();
        if let Some(max) = max.filter(|_| written) {
            state.vouched.set(max);
        }
    }

    /// Epochs in which nothing was written stand at the log's end: a cut there takes them along.
    /// This replica may have led in one that no other knows.
    fn forget_empty_epochs(&self) {
        let mut state = self.state_mut();
        let end = state.marks.log_end();
        if state.epochs.truncate_from_end(end) {
            state.epochs_unwritten = true;
            self.persist_behind(&mut state);
        }
    }

    /// Takes the log for a cut: nothing is appended any more, and what was is on the disk or, on
    /// a full one, lost.
    async fn stop_writing(&self) -> Result<Permit, LogError> {
        let permit = self.upkeep.acquire(1).await;
        self.check_usable()?;
        self.leave_old_journals().await?;
        self.check_usable()?;
        self.state_mut().status = Status::Truncating;
        self.writer_idle().await;
        self.check_usable()?;
        Ok(permit)
    }

    /// Moves the log start: records below `offset` are never read again, and segments wholly
    /// below it go with the next retention (DeleteRecords, a follower's leader's log start).
    ///
    /// # Errors
    /// `OutOfRange` past the log end. Moving it back is no error and does nothing.
    pub fn delete_records_to(&self, offset: Offset) -> Result<Offset, LogError> {
        self.check_usable()?;
        if offset > self.log_end() {
            return Err(self.range_error(offset));
        }
        let mut moved = false;
        {
            let mut state = self.state_mut();
            if offset > state.marks.log_start() {
                self.move_log_start(&mut state, offset);
                moved = true;
            }
        }
        if moved {
            self.tell_journal_behind(offset);
        }
        Ok(self.log_start())
    }

    /// The error of an append that ended at `required` and is not in the log any more: the disk
    /// was full and the tail had to be cut.
    pub fn lost_since(&self, required: Offset) -> Option<ErrorCode> {
        (required > self.log_end()).then_some(ErrorCode::KAFKA_STORAGE_ERROR)
    }

    pub(super) fn move_log_start(&self, state: &mut super::log::LogState, offset: Offset) {
        state.marks.start_moved_to(offset);
        state.producers.on_log_start(offset);
        state.epochs_unwritten |= state.epochs.truncate_from_start(offset);
        self.persist_behind(state);
    }

    /// The disk is full: what is queued or half written is not in the log. Called by the writer.
    pub(super) async fn lose_unwritten(&self, error: io::Error) {
        let (written, told) = {
            let mut state = self.state_mut();
            if !matches!(state.status, Status::Open | Status::Truncating) {
                return;
            }
            state.queue.clear();
            state.queue.mark_dirty_tail();
            let told = std::mem::replace(&mut state.space_short, true);
            (state.marks.written(), told)
        };
        // Once until there is space again: producers try at their full rate.
        if !told {
            tracing::error!(dir = %self.dir().display(), %error, log_end = %written, "no space: appends are refused");
        }
        self.begin_cut(written);
        let generation = self.state().generation;
        let _permit = self.upkeep.acquire(1).await;
        // Another cut that came first has taken this tail along.
        if self.check_usable().is_ok() && self.state().generation == generation {
            let outcome = self.cut_tail(written).await;
            // Offline if even that failed; the callers of this task have nobody to tell.
            let _ = self.end_cut(outcome.map(drop));
        }
    }

    fn begin_cut(&self, offset: Offset) {
        {
            let mut state = self.state_mut();
            state.status = Status::Truncating;
            state.lower_end(offset);
        }
        self.shard.recent.truncate(self.key(), offset);
        self.announce();
    }

    fn end_cut(&self, outcome: io::Result<()>) -> Result<(), LogError> {
        if let Err(error) = outcome {
            return Err(self.fail("truncate", error));
        }
        {
            let mut state = self.state_mut();
            if matches!(state.status, Status::Truncating) {
                state.status = Status::Open;
            }
            if state.owes_flush() {
                state.rounds.request(&self.rc());
            }
        }
        self.announce();
        self.check_usable()
    }

    /// Cuts segments, indexes, epochs and producer state. The watermarks are lowered already.
    /// True if what is left ends before the log start.
    async fn cut_tail(&self, offset: Offset) -> io::Result<bool> {
        let (segment, later, dir, config) = {
            let state = self.state();
            let base = state.floor_base(offset);
            let segment = state.segments.get(&base).cloned();
            let later: Vec<Rc<Segment>> = state
                .segments
                .range(base.next()..)
                .map(|(_, s)| s.clone())
                .collect();
            (segment, later, state.dir.clone(), state.config.clone())
        };
        let Some(segment) = segment else {
            return Ok(false);
        };
        self.doom_segments(&later).await?;
        {
            let mut state = self.state_mut();
            for segment in &later {
                state.segments.remove(&segment.base());
            }
        }
        // First, because only a sealed segment's indexes leave memory for those of others.
        segment.unseal();
        self.load_or_make_indexes(&segment).await?;
        let cut = self.find_cut(&segment, offset).await?;
        segment.cut(cut.offset, cut.position, &cut.tail, &config);
        self.resize(&segment, cut.position).await?;
        segment.find_first_timestamp().await?;
        {
            let mut state = self.state_mut();
            // A flush begun since the cut began saw the file, and perhaps the end, as they were.
            state.lower_end(cut.offset);
            state.epochs_unwritten |= state.epochs.truncate_from_end(cut.offset);
        }
        self.rebuild_producers(cut.offset).await?;
        self.load_partial_block().await?;
        if segment.handles().is_some() {
            self.tolerate_no_space(segment.persist_indexes(&dir, false).await)?;
        }
        self.tolerate_no_space(self.write_epochs().await)?;
        Ok(cut.hole)
    }

    async fn resize(&self, segment: &Segment, position: u64) -> io::Result<()> {
        if let Some(handles) = segment.handles() {
            segment.preallocation_settled().await;
            handles.reader.set_len(position).await?;
            segment.file_resized(position);
            // Before anything is appended: what is cut may not come back after a power loss and
            // stand behind, or instead of, what was written since.
            handles.reader.sync_data().await?;
        }
        self.state_mut().queue.clean_tail();
        Ok(())
    }

    /// What can be written again later, or rebuilt, does not take a log offline on a full disk.
    pub(super) fn tolerate_no_space(&self, outcome: io::Result<()>) -> io::Result<()> {
        match outcome {
            Err(error) if is_no_space(&error) => {
                self.state_mut().epochs_unwritten = true;
                Ok(())
            }
            other => other,
        }
    }

    async fn find_cut(&self, segment: &Rc<Segment>, offset: Offset) -> io::Result<CutPoint> {
        let mut cut = CutPoint {
            offset,
            position: segment.written(),
            hole: false,
            tail: Vec::new(),
        };
        let Some(handles) = segment.handles() else {
            cut.position = 0;
            return Ok(cut);
        };
        let floor_of =
            |segment: &Segment| segment.floor_position(Offset(offset.0 - 1)).unwrap_or(0);
        let mut floor = floor_of(segment);
        let mut scanner = Scanner::short(handles.reader.clone(), floor, segment.written());
        loop {
            match scanner.next().await {
                Ok(Some((position, batch))) if batch.last_offset() >= offset => {
                    // Never below the log start, also where a batch reaches across it.
                    let base = batch.base_offset();
                    cut.offset = offset.min(base).max(self.log_start());
                    cut.hole = base < cut.offset;
                    cut.position = position;
                    return Ok(cut);
                }
                Ok(Some((_, batch))) => cut.tail.push(extent_of(&batch)),
                Ok(None) => return Ok(cut),
                Err(ScanError::Io(error)) => return Err(error),
                Err(ScanError::Damaged { .. })
                    if floor > 0 && cut.tail.is_empty() && !segment.is_reindexed() =>
                {
                    let why = "they lead to where no batch begins";
                    self.make_indexes(segment, why).await?;
                    floor = floor_of(segment);
                    scanner = Scanner::short(handles.reader.clone(), floor, segment.written());
                }
                Err(ScanError::Damaged { position, error }) => {
                    // Everything from here on is cut anyway, or cannot be told apart from it.
                    tracing::warn!(dir = %self.dir().display(), position, %error, "damage at the cut");
                    let end = cut.tail.last().map(|batch| batch.last.next());
                    cut.offset = end.unwrap_or(offset).max(self.log_start());
                    cut.position = position;
                    return Ok(cut);
                }
            }
        }
    }

    async fn rebuild_producers(&self, end: Offset) -> io::Result<()> {
        let (dir, segments, limits, unchanged) = {
            let state = self.state();
            let segments: Vec<Rc<Segment>> = state.segments.values().cloned().collect();
            let unchanged = state.producers.end_offset() <= end;
            (
                state.dir.clone(),
                segments,
                state.producer_limits,
                unchanged,
            )
        };
        if unchanged {
            return Ok(());
        }
        let mut producers = Producers::with_limits(limits);
        let rebuild = Rebuild {
            dir: &dir,
            snapshots: list_snapshots(&dir).await?,
            segments: &segments,
            end,
            now_ms: rt::wall_ms(),
        };
        rebuild.run(&mut producers).await?;
        self.state_mut().producers = producers;
        Ok(())
    }

    /// Renames the files of segments that left the log to `.deleted` and unlinks them after
    /// `file.delete.delay.ms`: whoever reads one at this moment may finish.
    pub(super) async fn doom_segments(&self, segments: &[Rc<Segment>]) -> io::Result<()> {
        let files: Vec<(Offset, FileKind)> = segments
            .iter()
            .flat_map(|segment| FileKind::ALL.map(|kind| (segment.base(), kind)))
            .collect();
        self.doom_files(&files, segments).await
    }

    /// The same for single files of segments; `whole` are those whose records are among them.
    pub(super) async fn doom_files(
        &self,
        files: &[(Offset, FileKind)],
        whole: &[Rc<Segment>],
    ) -> io::Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let (_, dir, config) = self.active_dir_config();
        let mut doomed = Doomed::default();
        for segment in whole {
            if let Some(handles) = segment.handles() {
                doomed.keep_open(handles.reader, segment.file_len());
            }
        }
        for (base, kind) in files {
            let from = dir.join(names::segment_file(*base, *kind));
            let to = dir.join(names::segment_file_in_state(
                *base,
                *kind,
                FileState::Deleted,
            ));
            match rt::fs::rename(&from, &to).await {
                Ok(()) => doomed.add(to),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // A new name may take a block that a full disk has not got. Whoever reads the
                // file has it open.
                Err(error) if is_no_space(&error) => {
                    leftovers::remove(&from).await?;
                    doomed.let_go();
                }
                Err(error) => return Err(error),
            }
        }
        rt::fs::sync_dir(dir.as_path()).await?;
        // Nobody reads a copy, whose directory gets another name when it takes its log's place.
        let delay_ms = match self.state().is_future {
            true => 0,
            false => config.file_delete_delay_ms.max(0) as u64,
        };
        let delay = Duration::from_millis(delay_ms);
        let flusher = self.shard.flusher.clone();
        drop(rt::spawn(doomed.remove_after(delay, flusher)));
        Ok(())
    }

    fn active_dir_config(&self) -> (Rc<Segment>, Rc<std::path::PathBuf>, Rc<LogConfig>) {
        let state = self.state();
        (
            state.active().clone(),
            state.dir.clone(),
            state.config.clone(),
        )
    }
}

impl LogState {
    /// The log ends at `offset`. No flush or read that is under way says anything about what is
    /// written there from now on.
    fn lower_end(&mut self, offset: Offset) {
        self.generation += 1;
        self.marks.truncated_to(offset);
        self.pending.cut(offset);
        self.interval.cut(offset, &self.marks);
        self.synced_below.set(offset.min(self.synced_below.get()));
        self.first_dirty = self.first_dirty.map(|dirty| dirty.min(offset));
    }
}
