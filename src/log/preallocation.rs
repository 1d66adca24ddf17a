//! Owns the space of a segment file ahead of its data, so that neither a flush has to journal a
//! change of the file's length nor an O_DIRECT write to change it. On the log's shard, in a task
//! of its own; a write waits for it only when it has outrun it.
//!
//! Reserved space is unwritten extents: the first O_DIRECT write into them is handed to a kernel
//! thread and its completion changes metadata, which the next flush must journal. Where the writes
//! are small enough for that to be felt, zeros are written ahead over it (benches/append.rs). Data
//! and zeros never meet: data stays below [`Segment::space_end`], zeros above.

use std::io;
use std::rc::Rc;

use crate::rt;
use crate::rt::fs::AlignedBuf;

use super::config::SegmentIo;
use super::log::{Log, LogState, Status};
use super::segment::{Segment, SegmentHandles};
use super::write_queue::is_no_space;

/// How far ahead of the data a segment file is extended: half of what it holds, within these
/// bounds, so that a thousand small partitions do not reserve a disk between them.
const PREALLOCATE_BYTES_MIN: u64 = 256 << 10;
const PREALLOCATE_BYTES_MAX: u64 = 16 << 20;

/// Mean bytes of an O_DIRECT write up to which zeros are written ahead. Below it the zeros are a
/// small part of what the device writes anyway, partial blocks being written again and again;
/// above it they would take a good part of its bandwidth for a few percent of the time.
const ZERO_AHEAD_WRITE_BYTES_MAX: u64 = 64 << 10;

/// Zeros per write: a few hundred microseconds of a device, which is what a write that outran
/// them waits.
const ZERO_BYTES: u64 = 256 << 10;

impl Log {
    /// Extends the active segment's file where the data comes near its end, if the row asks for
    /// it.
    pub(super) fn extend_ahead(&self, state: &LogState) {
        let active = state.active();
        let direct = active
            .handles()
            .is_some_and(|handles| handles.io == SegmentIo::Direct);
        let ahead = active.file_len().saturating_sub(active.size());
        let wanted = direct || state.config.durability().waits_for_flush();
        if wanted && ahead < reserve_of(active) / 2 && active.begin_preallocation() {
            let target = self.target_of(state, active);
            let zeros = direct && state.queue.mean_write_bytes() <= ZERO_AHEAD_WRITE_BYTES_MAX;
            let (log, segment) = (self.rc(), active.clone());
            drop(rt::spawn(async move {
                log.preallocate(segment, target, zeros).await;
            }));
        }
    }

    fn target_of(&self, state: &LogState, segment: &Segment) -> u64 {
        let size = segment.size();
        let bound = u64::from(state.config.segment_bytes).max(size);
        (size + reserve_of(segment)).min(bound)
    }

    /// Waits until an O_DIRECT write up to `end` changes no length any more, or the file system
    /// has refused to reserve space.
    pub(super) async fn space_for(&self, segment: &Rc<Segment>, end: u64) {
        self.shard.appends.count(|stats| stats.space_waits += 1);
        if segment.begin_preallocation() {
            let target = self.target_of(&self.state(), segment).max(end);
            let log = self.rc();
            log.preallocate(segment.clone(), target, false).await;
        } else {
            segment.preallocation_moved().await;
        }
    }

    /// Extends a segment file ahead of its data; the caller has claimed the right to. A refusal
    /// is no failure: the data may still fit.
    pub(super) async fn preallocate(
        self: Rc<Self>,
        segment: Rc<Segment>,
        target: u64,
        zeros: bool,
    ) {
        let from = segment.file_len();
        if let Some(handles) = segment.handles()
            && !segment.is_sealed()
            && target > from
        {
            match handles.writer.preallocate(target, false).await {
                Ok(()) => {
                    segment.file_resized(target.max(segment.file_len()));
                    if zeros {
                        self.zero_ahead(&segment, &handles, from, target).await;
                    }
                }
                Err(error) => {
                    tracing::debug!(dir = %self.dir().display(), %error, "no preallocation");
                    segment.refuse_preallocation();
                }
            }
        }
        segment.end_preallocation();
    }

    /// Writes zeros over the reserved space in `[from, to)`, until a write has to wait for it.
    async fn zero_ahead(&self, segment: &Segment, handles: &SegmentHandles, from: u64, to: u64) {
        let align = AlignedBuf::ALIGN as u64;
        let mut at = from.next_multiple_of(align);
        segment.begin_zeros(at);
        let mut buffer = AlignedBuf::zeroed(ZERO_BYTES as usize);
        while at + ZERO_BYTES <= to && !segment.space_is_awaited() && self.takes_zeros(segment) {
            let permit = self.shard.writes.acquire(1).await;
            let (written, back) = handles.writer.write_aligned_at(at, buffer).await;
            drop(permit);
            buffer = back;
            match written {
                Ok(()) => {
                    at += ZERO_BYTES;
                    segment.zeros_reach(at);
                    let count = |stats: &mut super::AppendStats| stats.bytes_zeroed += ZERO_BYTES;
                    self.shard.appends.count(count);
                }
                Err(error) if is_no_space(&error) => break,
                Err(error) => {
                    self.zeros_failed(error);
                    break;
                }
            }
        }
        segment.end_zeros();
    }

    fn takes_zeros(&self, segment: &Segment) -> bool {
        !segment.is_sealed() && matches!(self.state().status, Status::Open)
    }

    fn zeros_failed(&self, error: io::Error) {
        self.fail("write ahead", error);
    }
}

fn reserve_of(segment: &Segment) -> u64 {
    (segment.size() / 2).clamp(PREALLOCATE_BYTES_MIN, PREALLOCATE_BYTES_MAX)
}
