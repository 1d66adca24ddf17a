//! Owns the way of appended bytes into segment files: what is written on the spot, what is queued,
//! and when the next write may begin. One writer task per log at most, on the log's shard; it
//! lives only while there is something it can begin, O_DIRECT writes then go on in tasks of their
//! own (see `direct`). What is merged, and what may be in flight together, the write queue knows.

use std::io::{self, IoSlice};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::rt;
use crate::rt::fs::{File, OpenOptions};
use crate::rt::sync::Permit;

use super::config::SegmentIo;
use super::error::{LogError, StorageFailure};
use super::log::{Log, LogState, Status};
use super::names::{FileKind, segment_file};
use super::segment::{Segment, SegmentHandles};
use super::write_queue::{DirectWrite, MergedWrite, is_no_space};

/// Largest write made inside an append: at some 4 GB/s into the page cache this is about 60 us, which
/// every other task of the shard waits for. Larger ones are queued and written by a task of their own,
/// which lets others run after every MiB.
const WRITE_NOW_BYTES_MAX: usize = 256 << 10;

/// Parts of one vectored write the kernel takes.
const VECTOR_PARTS_MAX: usize = 1024;

/// O_DIRECT writes in flight over all logs of a shard: half of a ring's submission entries, so
/// that reads and network keep their share.
pub(super) const SHARD_WRITES_IN_FLIGHT_MAX: u64 = 64;

/// How an append's bytes left the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteNow {
    /// In the page cache.
    Done,
    /// Not tried: it must go through the queue.
    Queue,
}

enum Step {
    /// Nothing can begin now; the task ends.
    Rest,
    /// Create the segment's files, after the one before it was trimmed.
    Open {
        segment: Rc<Segment>,
        previous: Option<Rc<Segment>>,
    },
    /// Cut what a refused write may have left.
    Cut {
        segment: Rc<Segment>,
        handles: SegmentHandles,
    },
    /// Space for an O_DIRECT write is to be reserved first.
    Space {
        segment: Rc<Segment>,
        end: u64,
    },
    /// The shard has many writes in flight: wait for one's turn.
    Permit,
    Buffered(MergedWrite, SegmentHandles),
    Direct(DirectWrite),
}

impl Log {
    /// Tries to write a batch at the end of the active segment right here, before the log's state
    /// takes it in. Only when nothing is queued or in flight, so that `written` stays the log end.
    ///
    /// # Errors
    /// The write failed. The log is offline, or (no space) unharmed.
    pub(super) fn write_now(
        &self,
        state: &mut LogState,
        parts: &[Bytes],
        size: usize,
    ) -> Result<WriteNow, LogError> {
        let waits = state.held || !state.queue.is_idle() || state.queue.has_dirty_tail();
        if size > WRITE_NOW_BYTES_MAX || waits {
            return Ok(WriteNow::Queue);
        }
        let Some(handles) = state.active().handles() else {
            return Ok(WriteNow::Queue);
        };
        if handles.io == SegmentIo::Direct {
            return Ok(WriteNow::Queue);
        }
        let position = state.active().size();
        let Err(error) = write_parts(&handles, position, parts, size) else {
            self.shard.appends.wrote(size as u64, 1);
            return Ok(WriteNow::Done);
        };
        let no_space = is_no_space(&error);
        let failure = StorageFailure {
            what: "write",
            path: state.dir.to_path_buf(),
            source: Arc::new(error),
        };
        if no_space {
            // Part of the batch may be in the file; it is cut before the next write.
            state.queue.mark_dirty_tail();
            return Err(LogError::NoSpace(failure));
        }
        Err(LogError::Offline(failure))
    }

    /// Tries to write what was just queued right here; what remains is the writer's.
    ///
    /// # Errors
    /// The write failed for good; the caller takes the log offline. On a full disk the tail is cut
    /// behind, as if the writer had met it.
    pub(super) fn write_queue_now(&self, state: &mut LogState) -> Result<(), LogError> {
        while !state.held
            && !state.queue.running
            && state.queue.in_flight() == 0
            && !state.queue.has_dirty_tail()
            && state.queue.front_bytes() <= WRITE_NOW_BYTES_MAX as u64
        {
            let Some(handles) = state
                .queue
                .front_segment()
                .and_then(|segment| segment.handles())
                .filter(|handles| handles.io == SegmentIo::Buffered)
            else {
                break;
            };
            let Some(write) = state.queue.merge_front() else {
                break;
            };
            let size = write.size as usize;
            match write_parts(&handles, write.position, &write.parts, size) {
                Ok(()) => {
                    state.queue.written_on_the_spot(&write);
                    write.segment.written_to(write.reached.end);
                    state.marks.written_to(write.reached.upto);
                }
                Err(error) if is_no_space(&error) => {
                    state.queue.written_nothing(&write);
                    // Until the tail is cut nothing may be appended behind it.
                    state.status = Status::Truncating;
                    let log = self.rc();
                    drop(rt::spawn(async move { log.lose_unwritten(error).await }));
                    return Ok(());
                }
                Err(error) => {
                    state.queue.written_nothing(&write);
                    return Err(LogError::Offline(StorageFailure {
                        what: "write",
                        path: state.dir.to_path_buf(),
                        source: Arc::new(error),
                    }));
                }
            }
        }
        if !state.queue.has_pending() {
            self.after_write(state);
        } else {
            self.wake_writer(state);
        }
        Ok(())
    }

    /// Sees to it that what is queued gets written.
    pub(super) fn wake_writer(&self, state: &mut LogState) {
        if !state.held && !state.queue.running && !waits_for_flights(state) {
            state.queue.running = true;
            let log = self.rc();
            drop(rt::spawn(async move { log.run_writer().await }));
        }
    }

    /// The same after a write has ended, where nothing may be left to do.
    pub(super) fn wake_writer_for_more(&self, state: &mut LogState) {
        if state.queue.has_pending() || state.active().handles().is_none() {
            self.wake_writer(state);
        }
    }

    /// Waits until nothing is queued or in flight.
    pub(super) async fn writer_idle(&self) {
        while !self.state().queue.is_idle() {
            self.progress.wait().await;
        }
    }

    async fn run_writer(self: Rc<Self>) {
        let mut permit = None;
        loop {
            let step = self.next_step(&mut self.state_mut(), permit.is_some());
            if !matches!(step, Step::Direct(_)) {
                // Not kept over a wait: the zeros it may wait for need one too.
                permit = None;
            }
            let outcome = match step {
                Step::Rest => break,
                Step::Open { segment, previous } => self.open_segment(segment, previous).await,
                Step::Cut { segment, handles } => self.cut_dirty_tail(&segment, &handles).await,
                Step::Space { segment, end } => {
                    self.space_for(&segment, end).await;
                    Ok(())
                }
                Step::Permit => {
                    permit = Some(self.shard.writes.acquire(1).await);
                    Ok(())
                }
                Step::Buffered(write, handles) => self.write_buffered(write, &handles).await,
                Step::Direct(direct) => {
                    self.begin_flight(direct, permit.take());
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                self.state_mut().queue.running = false;
                if is_no_space(&error) {
                    self.lose_unwritten(error).await;
                } else {
                    self.fail("write", error);
                }
                return;
            }
        }
        // Whoever waits for an idle writer looks again.
        self.progress.notify_all();
    }

    fn begin_flight(&self, direct: DirectWrite, permit: Option<Permit>) {
        let log = self.rc();
        drop(rt::spawn(async move { log.fly(direct, permit).await }));
    }

    fn next_step(&self, state: &mut LogState, permitted: bool) -> Step {
        if matches!(state.status, Status::Offline(_) | Status::Closed) {
            state.queue.clear();
        }
        match self.find_step(state, permitted) {
            Some(step) => step,
            None => {
                state.queue.running = false;
                Step::Rest
            }
        }
    }

    /// What to do next; `None` if there is nothing, or if the end of a write in flight decides.
    fn find_step(&self, state: &mut LogState, permitted: bool) -> Option<Step> {
        let ended = matches!(state.status, Status::Offline(_) | Status::Closed);
        if ended || state.held || waits_for_flights(state) {
            return None;
        }
        let segment = state
            .queue
            .front_segment()
            .unwrap_or(state.active())
            .clone();
        let Some(handles) = segment.handles() else {
            let previous = state.segments.range(..segment.base()).next_back();
            let previous = previous.map(|(_, segment)| segment.clone());
            return Some(Step::Open { segment, previous });
        };
        if !state.queue.has_pending() {
            return None;
        }
        if state.queue.has_dirty_tail() {
            return Some(Step::Cut { segment, handles });
        }
        if handles.io == SegmentIo::Buffered {
            let write = state.queue.merge_front()?;
            return Some(Step::Buffered(write, handles));
        }
        let end = state.queue.front_end();
        if segment.lacks_space(end) {
            return Some(Step::Space { segment, end });
        }
        if !permitted {
            return Some(Step::Permit);
        }
        state.queue.take_direct().map(Step::Direct)
    }

    async fn open_segment(
        &self,
        segment: Rc<Segment>,
        previous: Option<Rc<Segment>>,
    ) -> io::Result<()> {
        // Trimmed before anything follows it: a zero tail in the middle of a log would look like
        // damage to a recovery.
        if let Some(previous) = previous
            && let Some(handles) = previous.handles()
        {
            trim(&previous, &handles).await?;
        }
        let (dir, config) = {
            let state = self.state();
            (state.dir.clone(), state.config.clone())
        };
        segment.open_files(&dir, config.segment_io).await?;
        {
            let mut state = self.state_mut();
            state.files_made += 1;
            state.queue.set_partial_block(Vec::new());
        }
        if config.preallocate && segment.begin_preallocation() {
            let log = self.rc();
            drop(rt::spawn(async move {
                log.preallocate(segment, u64::from(config.segment_bytes), false)
                    .await;
            }));
        }
        // The completion of the roll waits for the files.
        self.progress.notify_all();
        Ok(())
    }

    async fn cut_dirty_tail(&self, segment: &Segment, handles: &SegmentHandles) -> io::Result<()> {
        handles.writer.set_len(segment.written()).await?;
        segment.file_resized(segment.written());
        self.state_mut().queue.clean_tail();
        Ok(())
    }

    async fn write_buffered(&self, write: MergedWrite, handles: &SegmentHandles) -> io::Result<()> {
        let written = handles
            .writer
            .write_all_at(write.position, write.parts.clone())
            .await;
        {
            let mut state = self.state_mut();
            if let Err(error) = written {
                state.queue.written_nothing(&write);
                return Err(error);
            }
            state.queue.written_on_the_spot(&write);
            if matches!(state.status, Status::Offline(_) | Status::Closed) {
                return Ok(());
            }
            write.segment.written_to(write.reached.end);
            state.marks.written_to(write.reached.upto);
            self.after_write(&mut state);
        }
        self.announce();
        Ok(())
    }

    /// What follows a completed write, on the spot or queued: a flush where one is owed, file
    /// space ahead, index entries behind.
    pub(super) fn after_write(&self, state: &mut LogState) {
        if std::mem::take(&mut state.space_short) {
            tracing::info!(dir = %state.dir.display(), "space again: appends are taken");
        }
        if state.owes_flush() {
            state.rounds.request(&self.rc());
        }
        self.extend_ahead(state);
        self.persist_behind(state);
    }
}

impl Segment {
    /// Opens the log file (creating it where it is missing) for the given kind of I/O.
    pub async fn open_files(&self, dir: &Path, mut io: SegmentIo) -> io::Result<()> {
        let path = dir.join(segment_file(self.base(), FileKind::Log));
        let reader = File::open(&path, OpenOptions::CREATE).await?;
        let writer = match io {
            SegmentIo::Buffered => reader.clone(),
            SegmentIo::Direct => match File::open(&path, OpenOptions::READ_WRITE.direct()).await {
                // A topic may ask for what the file system of its directory has not: the record is as
                // safe through the page cache.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    tracing::warn!(file = %path.display(), "no O_DIRECT here, written through the page cache");
                    io = SegmentIo::Buffered;
                    reader.clone()
                }
                opened => opened?,
            },
        };
        self.set_handles(SegmentHandles { reader, writer, io });
        Ok(())
    }
}

/// Whether the end of a write in flight decides what can begin next. It wakes the writer.
fn waits_for_flights(state: &LogState) -> bool {
    if state.queue.is_refused() {
        return true;
    }
    // A segment is made once the one before it is written, and cut to that.
    let next = state.queue.front_segment().unwrap_or(state.active());
    let opens = next.handles().is_none();
    state.queue.in_flight() > 0 && (opens || state.queue.must_wait())
}

/// Writes all parts at `position` into the page cache, on the spot.
fn write_parts(
    handles: &SegmentHandles,
    position: u64,
    parts: &[Bytes],
    size: usize,
) -> io::Result<()> {
    let mut slices: SmallVec<[IoSlice<'_>; 16]> =
        parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    let mut done = 0;
    while done < size {
        let next = rest.len().min(VECTOR_PARTS_MAX);
        match handles
            .writer
            .write_now(position + done as u64, &rest[..next])
        {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                done += count;
                IoSlice::advance_slices(&mut rest, count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Cuts a segment file to its data.
pub(super) async fn trim(segment: &Segment, handles: &SegmentHandles) -> io::Result<()> {
    segment.preallocation_settled().await;
    let len = segment.written();
    if segment.file_len() != len {
        handles.writer.set_len(len).await?;
        segment.file_resized(len);
    }
    Ok(())
}
