//! Owns the way of appended bytes into segment files: what is written on the spot, what is queued
//! and merged, and what happens when the disk refuses. One writer task per log at most, on the
//! log's shard; it lives only while there is something queued.
//!
//! Nothing is ever appended into a buffer in flight: a queued batch is immutable, and O_DIRECT
//! blocks are composed anew for every write, the partial last block from a copy.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::rt;
use crate::rt::fs::AlignedBuf;
use crate::types::Offset;

use super::config::SegmentIo;
use super::error::{LogError, StorageFailure};
use super::log::{Log, LogState, Status};
use super::segment::{Segment, SegmentHandles};

/// Largest write made on the executor itself: at some 4 GB/s into the page cache this is about
/// 60 us, which every other task of the shard waits for. Larger ones go through the ring.
const WRITE_NOW_BYTES_MAX: usize = 256 << 10;

/// Largest merged write: enough to run the device at full speed, small enough that the first
/// batch in it does not wait long for the last.
const MERGED_BYTES_MAX: usize = 1 << 20;

/// Bytes a log may have queued before appends are refused: a device that takes 100 MB/s has then
/// fallen more than a second behind.
pub(super) const QUEUE_BYTES_MAX: u64 = 128 << 20;

/// How far ahead of the data a segment file is extended where flushes would otherwise journal
/// every change of its length: half of what it holds, within these bounds, so that a thousand
/// small partitions do not reserve a disk between them.
const PREALLOCATE_BYTES_MIN: u64 = 256 << 10;
const PREALLOCATE_BYTES_MAX: u64 = 16 << 20;

/// Parts of one vectored write the kernel takes.
const VECTOR_PARTS_MAX: usize = 1024;

/// Memory and file alignment of O_DIRECT writes.
const BLOCK_BYTES: u64 = 4096;

/// Batches appended but not yet written.
#[derive(Default)]
pub(super) struct WriteQueue {
    pending: VecDeque<PendingWrite>,
    bytes: u64,
    /// The writer task is alive (it may be between two writes).
    running: bool,
    /// The file may hold the remains of a refused write past the written end.
    dirty_tail: bool,
    /// O_DIRECT only: the bytes of the active segment's last, partial block.
    partial_block: Vec<u8>,
}

pub(super) struct PendingWrite {
    pub segment: Rc<Segment>,
    pub position: u64,
    pub parts: SmallVec<[Bytes; 2]>,
    pub size: u32,
    pub last: Offset,
}

/// How an append's bytes left the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteNow {
    /// In the page cache.
    Done,
    /// Not tried: it must go through the queue.
    Queue,
}

enum Step {
    /// Nothing left; the task ends.
    Done,
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
    Write(MergedWrite),
}

struct MergedWrite {
    segment: Rc<Segment>,
    handles: SegmentHandles,
    position: u64,
    parts: Vec<Bytes>,
    size: u64,
    upto: Offset,
    /// O_DIRECT: what precedes `position` in its block.
    partial_block: Vec<u8>,
}

impl WriteQueue {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && !self.running
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.bytes = 0;
    }

    pub(super) fn push(&mut self, write: PendingWrite) {
        self.bytes += u64::from(write.size);
        self.pending.push_back(write);
    }

    pub(super) fn mark_dirty_tail(&mut self) {
        self.dirty_tail = true;
    }

    /// The file was cut to its data.
    pub(super) fn clean_tail(&mut self) {
        self.dirty_tail = false;
    }

    /// Where the active segment ends inside a block, after opening or cutting it.
    pub(super) fn set_partial_block(&mut self, bytes: Vec<u8>) {
        self.partial_block = bytes;
    }
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
        if size > WRITE_NOW_BYTES_MAX || !state.queue.is_idle() || state.queue.dirty_tail {
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
            state.queue.dirty_tail = true;
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
        while !state.queue.running && !state.queue.dirty_tail {
            let Some(segment) = state
                .queue
                .pending
                .front()
                .map(|front| front.segment.clone())
            else {
                break;
            };
            let Some(handles) = segment.handles().filter(|h| h.io == SegmentIo::Buffered) else {
                break;
            };
            if state.queue.front_bytes() > WRITE_NOW_BYTES_MAX as u64 {
                break;
            }
            let write = state.queue.merge_front(segment, handles);
            let written = write_parts(
                &write.handles,
                write.position,
                &write.parts,
                write.size as usize,
            );
            match written {
                Ok(()) => {
                    write.segment.written_to(write.position + write.size);
                    state.marks.written_to(write.upto);
                }
                Err(error) if is_no_space(&error) => {
                    // Until the tail is cut nothing may be appended behind it.
                    state.status = Status::Truncating;
                    let log = self.rc();
                    drop(rt::spawn(async move { log.lose_unwritten(error).await }));
                    return Ok(());
                }
                Err(error) => {
                    return Err(LogError::Offline(StorageFailure {
                        what: "write",
                        path: state.dir.to_path_buf(),
                        source: Arc::new(error),
                    }));
                }
            }
        }
        if state.queue.pending.is_empty() {
            self.after_write(state);
        } else {
            self.wake_writer(state);
        }
        Ok(())
    }

    /// Sees to it that what is queued gets written.
    pub(super) fn wake_writer(&self, state: &mut LogState) {
        if !state.queue.running {
            state.queue.running = true;
            let log = self.rc();
            drop(rt::spawn(async move { log.run_writer().await }));
        }
    }

    /// Waits until nothing is queued or in flight.
    pub(super) async fn writer_idle(&self) {
        while !self.state().queue.is_idle() {
            self.progress.wait().await;
        }
    }

    async fn run_writer(self: Rc<Self>) {
        loop {
            let step = self.next_step(&mut self.state_mut());
            let outcome = match step {
                Step::Done => break,
                Step::Open { segment, previous } => self.open_segment(segment, previous).await,
                Step::Cut { segment, handles } => {
                    let outcome = handles.writer.set_len(segment.written()).await;
                    if outcome.is_ok() {
                        segment.file_resized(segment.written());
                        self.state_mut().queue.dirty_tail = false;
                    }
                    outcome
                }
                Step::Write(write) => self.write_merged(write).await,
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

    fn next_step(&self, state: &mut LogState) -> Step {
        if matches!(state.status, Status::Offline(_) | Status::Closed) {
            state.queue.running = false;
            state.queue.clear();
            return Step::Done;
        }
        let segment = match state.queue.pending.front() {
            Some(front) => front.segment.clone(),
            None => state.active().clone(),
        };
        let Some(handles) = segment.handles() else {
            let base = segment.base();
            let previous = state
                .segments
                .range(..base)
                .next_back()
                .map(|(_, s)| s.clone());
            return Step::Open { segment, previous };
        };
        if state.queue.pending.is_empty() {
            state.queue.running = false;
            return Step::Done;
        }
        if state.queue.dirty_tail {
            return Step::Cut { segment, handles };
        }
        Step::Write(state.queue.merge_front(segment, handles))
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
            state.queue.partial_block.clear();
        }
        if config.preallocate && segment.begin_preallocation() {
            let log = self.rc();
            drop(rt::spawn(async move {
                log.preallocate(segment, u64::from(config.segment_bytes))
                    .await;
            }));
        }
        // The completion of the roll waits for the files.
        self.progress.notify_all();
        Ok(())
    }

    async fn write_merged(&self, mut write: MergedWrite) -> io::Result<()> {
        match write.handles.io {
            SegmentIo::Buffered => {
                let parts = std::mem::take(&mut write.parts);
                write
                    .handles
                    .writer
                    .write_all_at(write.position, parts)
                    .await?;
            }
            SegmentIo::Direct => self.write_direct(&write).await?,
        }
        self.wrote(&write);
        Ok(())
    }

    /// Writes whole blocks: the partial block before the data, the data, zeros up to the next
    /// boundary. Composed in a buffer of its own, which nobody touches while it is in flight.
    async fn write_direct(&self, write: &MergedWrite) -> io::Result<()> {
        let block_start = write.position - write.partial_block.len() as u64;
        debug_assert!(block_start.is_multiple_of(BLOCK_BYTES));
        let filled = write.partial_block.len() + write.size as usize;
        let mut buffer = AlignedBuf::zeroed(filled.next_multiple_of(BLOCK_BYTES as usize));
        let bytes = &mut buffer[..];
        bytes[..write.partial_block.len()].copy_from_slice(&write.partial_block);
        let mut at = write.partial_block.len();
        for part in &write.parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let tail = bytes[filled - filled % BLOCK_BYTES as usize..filled].to_vec();
        let end = block_start + bytes.len() as u64;
        write
            .handles
            .writer
            .write_aligned_at(block_start, buffer)
            .await
            .0?;
        if end > write.segment.file_len() {
            write.segment.file_resized(end);
        }
        self.state_mut().queue.partial_block = tail;
        Ok(())
    }

    fn wrote(&self, write: &MergedWrite) {
        {
            let mut state = self.state_mut();
            write.segment.written_to(write.position + write.size);
            state.marks.written_to(write.upto);
            self.after_write(&mut state);
        }
        self.announce();
    }

    /// What follows a completed write, on the spot or queued: a flush where one is owed, file
    /// space ahead, index entries behind.
    pub(super) fn after_write(&self, state: &mut LogState) {
        if state.owes_flush() {
            self.shard.flusher.request(self.rc());
        }
        let active = state.active().clone();
        let extend = state.config.durability().waits_for_flush()
            || active
                .handles()
                .is_some_and(|handles| handles.io == SegmentIo::Direct);
        let ahead = active.file_len().saturating_sub(active.size());
        let reserve = (active.size() / 2).clamp(PREALLOCATE_BYTES_MIN, PREALLOCATE_BYTES_MAX);
        if extend && ahead < reserve / 2 && active.begin_preallocation() {
            let log = self.rc();
            let target = (active.size() + reserve)
                .min(u64::from(state.config.segment_bytes).max(active.size()));
            drop(rt::spawn(
                async move { log.preallocate(active, target).await },
            ));
        }
        self.persist_behind(state);
    }

    /// Extends a segment file ahead of its data. A refusal is no failure: the data may still fit.
    async fn preallocate(self: Rc<Self>, segment: Rc<Segment>, target: u64) {
        if let Some(handles) = segment.handles()
            && !segment.is_sealed()
            && target > segment.file_len()
        {
            match handles.writer.preallocate(target, false).await {
                Ok(()) => segment.file_resized(target.max(segment.file_len())),
                Err(error) => {
                    tracing::debug!(dir = %self.dir().display(), %error, "no preallocation");
                    segment.refuse_preallocation();
                }
            }
        }
        segment.end_preallocation();
    }
}

impl WriteQueue {
    /// Bytes that the next merged write would have.
    fn front_bytes(&self) -> u64 {
        let Some(front) = self.pending.front() else {
            return 0;
        };
        let same = self
            .pending
            .iter()
            .take_while(|w| Rc::ptr_eq(&w.segment, &front.segment));
        same.map(|write| u64::from(write.size)).sum()
    }

    /// Takes the front batches that lie side by side in `segment`, up to the merge bound.
    fn merge_front(&mut self, segment: Rc<Segment>, handles: SegmentHandles) -> MergedWrite {
        let position = self.pending.front().map_or(0, |front| front.position);
        let mut write = MergedWrite {
            handles,
            position,
            parts: Vec::new(),
            size: 0,
            upto: Offset::ZERO,
            partial_block: self.partial_block.clone(),
            segment,
        };
        while let Some(front) = self.pending.front() {
            let fits =
                write.size == 0 || write.size as usize + front.size as usize <= MERGED_BYTES_MAX;
            if !fits || !Rc::ptr_eq(&front.segment, &write.segment) {
                break;
            }
            let Some(front) = self.pending.pop_front() else {
                break;
            };
            debug_assert_eq!(front.position, write.position + write.size);
            write.size += u64::from(front.size);
            write.upto = front.last.next();
            write.parts.extend(front.parts);
            self.bytes -= u64::from(front.size);
        }
        write
    }
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

/// The file system is full (or a quota is).
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
