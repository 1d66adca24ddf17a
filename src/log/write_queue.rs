//! Owns the batches of one log between append and disk: those that wait, merged into writes when
//! their turn comes, and the writes in flight, whose completions count in order only. On the
//! log's shard, part of the log's state; synchronous. It never touches a file.
//!
//! Two writes in flight never cover the same O_DIRECT block. A write that more is queued behind
//! takes along what fills its last block, and the next one begins at the boundary. What arrives
//! later and begins in the last block of a write in flight waits for it, merging meanwhile, if it
//! is small; a large one goes beside it from the next boundary on, and the block between them
//! (its *seam*) is written again once the earlier write has ended.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use bytes::{Buf, Bytes};
use smallvec::SmallVec;

use crate::rt::sync::Event;
use crate::types::Offset;

use super::append_stats::AppendCounters;
use super::segment::Segment;

/// Memory and file alignment of O_DIRECT writes.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// Bytes a log may have queued or in flight before appends are refused: a device that takes
/// 100 MB/s has then fallen more than a second behind.
pub(super) const QUEUE_BYTES_MAX: u64 = 128 << 20;

/// Bounds of the writes of one log.
#[derive(Clone, Copy, Debug)]
pub struct WriteLimits {
    /// Largest merged write. 1 MiB is enough to run the device at full speed, and small enough
    /// that the first batch in it does not wait long for the last.
    pub merged_bytes_max: u64,
    /// O_DIRECT writes in flight. With four of the largest a device is busy (benches/append.rs);
    /// more would only lengthen the wait of whoever comes next.
    pub in_flight_max: usize,
    /// Bytes that make an O_DIRECT write go beside the one whose last block it begins in. Below
    /// 64 KiB the seam, a write of its own behind the one before, takes as long as the write that
    /// waits, and what waits merges. Chosen by the times of single writes in benches/append.rs.
    pub beside_bytes_min: u64,
}

impl Default for WriteLimits {
    fn default() -> WriteLimits {
        WriteLimits {
            merged_bytes_max: 1 << 20,
            in_flight_max: 4,
            beside_bytes_min: 64 << 10,
        }
    }
}

/// Batches appended but not yet written.
pub(super) struct WriteQueue {
    pending: VecDeque<PendingWrite>,
    /// Queued or in flight.
    bytes: u64,
    /// Oldest first.
    in_flight: VecDeque<Flight>,
    next_flight: u64,
    /// The disk was full for one of the writes in flight; nothing is written any more until the
    /// others have ended and the tail was cut.
    refused: Option<io::Error>,
    /// The writer task is alive (it may be between two writes).
    pub(super) running: bool,
    /// The file may hold the remains of a refused write past the written end.
    dirty_tail: bool,
    /// O_DIRECT only: the bytes of the active segment's last, partial block, as the last write
    /// that was composed leaves it.
    partial_block: Vec<u8>,
    /// Bytes of an O_DIRECT write, averaged over the last ones.
    mean_write_bytes: u64,
    limits: WriteLimits,
    counters: Rc<AppendCounters>,
}

pub(super) struct PendingWrite {
    pub segment: Rc<Segment>,
    pub position: u64,
    pub parts: SmallVec<[Bytes; 2]>,
    /// What of the batch went with the write before, to the end of that one's last block.
    pub head: SmallVec<[Bytes; 2]>,
    pub size: u32,
    pub last: Offset,
}

/// A write that was given to the disk.
struct Flight {
    id: u64,
    reached: Reached,
    bytes: u64,
    state: FlightState,
    /// Told when its last block is on the disk or never will be.
    last_block: Rc<LastBlock>,
}

#[derive(PartialEq, Eq)]
enum FlightState {
    UnderWay,
    Done,
    Failed,
}

/// How far a log is written once a write and all before it are done.
#[derive(Clone)]
pub(super) struct Reached {
    pub segment: Rc<Segment>,
    /// End of the last whole batch in the segment.
    pub end: u64,
    pub upto: Offset,
}

/// The turn of whoever writes the last block of a write again.
#[derive(Default)]
pub(super) struct LastBlock {
    ended: Cell<Option<bool>>,
    event: Event,
}

impl LastBlock {
    pub(super) fn end(&self, good: bool) {
        self.ended.set(Some(good));
        self.event.notify_all();
    }

    /// Waits until the block is free again; false if its write failed.
    pub(super) async fn ended(&self) -> bool {
        loop {
            match self.ended.get() {
                Some(good) => return good,
                None => self.event.wait().await,
            }
        }
    }
}

/// Batches side by side, as one write.
pub(super) struct MergedWrite {
    pub segment: Rc<Segment>,
    pub position: u64,
    pub parts: Vec<Bytes>,
    /// Bytes of `parts`; may reach into the batch after `reached`.
    pub size: u64,
    pub batches: u64,
    pub reached: Reached,
}

/// An O_DIRECT write with its place among those in flight.
pub(super) struct DirectWrite {
    pub id: u64,
    pub write: MergedWrite,
    /// What precedes the data in its first block.
    pub head: Vec<u8>,
    /// The first block is the last one of this write in flight.
    pub beside: Option<Rc<LastBlock>>,
    pub last_block: Rc<LastBlock>,
}

/// How a write in flight ended.
pub(super) enum Outcome {
    Done,
    Failed(io::Error),
    /// The block it shares with the write before was not written: that one failed, and tells why.
    Orphaned,
}

/// What the end of a write brought about.
#[derive(Default)]
pub(super) struct Ended {
    /// Writes that count now, in order.
    pub reached: SmallVec<[Reached; 4]>,
    /// The disk was full for this one; the tail from it on is lost once all have ended.
    pub refused: bool,
    /// All have ended after a refusal, which was this.
    pub lost: Option<io::Error>,
    /// The storage failed.
    pub failure: Option<io::Error>,
}

impl WriteQueue {
    pub(super) fn new(limits: WriteLimits, counters: Rc<AppendCounters>) -> WriteQueue {
        WriteQueue {
            pending: VecDeque::new(),
            bytes: 0,
            in_flight: VecDeque::new(),
            next_flight: 0,
            refused: None,
            running: false,
            dirty_tail: false,
            partial_block: Vec::new(),
            mean_write_bytes: 0,
            limits,
            counters,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty() && !self.running && self.in_flight.is_empty()
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn front_segment(&self) -> Option<&Rc<Segment>> {
        self.pending.front().map(|front| &front.segment)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Nothing that waits may be written before the others in flight have ended and the tail was
    /// cut.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    pub(super) fn has_dirty_tail(&self) -> bool {
        self.dirty_tail
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

    /// Forgets what waits. What is in flight ends as it ends.
    pub(super) fn clear(&mut self) {
        let waiting: u64 = self.pending.drain(..).map(|w| u64::from(w.size)).sum();
        self.took(waiting);
    }

    /// What waits, oldest first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &PendingWrite> {
        self.pending.iter()
    }

    pub(super) fn push(&mut self, write: PendingWrite) {
        let size = u64::from(write.size);
        self.bytes += size;
        self.counters.count(|stats| stats.behind_bytes += size);
        self.pending.push_back(write);
    }

    fn took(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.counters.count(|stats| stats.behind_bytes -= bytes);
    }

    /// Bytes that the next merged write would have, had it no bound.
    pub(super) fn front_bytes(&self) -> u64 {
        let Some(front) = self.pending.front() else {
            return 0;
        };
        let same = self
            .pending
            .iter()
            .take_while(|w| Rc::ptr_eq(&w.segment, &front.segment));
        same.map(|write| u64::from(write.size)).sum()
    }

    /// End of the blocks that the next O_DIRECT write may cover.
    pub(super) fn front_end(&self) -> u64 {
        let front = self.pending.front();
        let from = front.map_or(0, |front| front.position);
        let first = front.map_or(0, |front| u64::from(front.size));
        let size = self
            .front_bytes()
            .min(first.max(self.limits.merged_bytes_max) + BLOCK_BYTES);
        (from + size).next_multiple_of(BLOCK_BYTES)
    }

    pub(super) fn mean_write_bytes(&self) -> u64 {
        self.mean_write_bytes
    }

    /// Whether the next O_DIRECT write has to wait for one in flight.
    pub(super) fn must_wait(&self) -> bool {
        if self.in_flight.is_empty() {
            return false;
        }
        let position = self.pending.front().map_or(0, |front| front.position);
        let shared = !position.is_multiple_of(BLOCK_BYTES);
        self.in_flight.len() >= self.limits.in_flight_max
            || (shared && self.front_bytes() < BLOCK_BYTES + self.limits.beside_bytes_min)
    }

    /// Takes the front batches that lie side by side, up to the merge bound.
    pub(super) fn merge_front(&mut self) -> Option<MergedWrite> {
        let front = self.pending.front()?;
        let segment = front.segment.clone();
        let mut write = MergedWrite {
            position: front.position,
            parts: Vec::new(),
            size: 0,
            batches: 0,
            reached: Reached {
                segment: segment.clone(),
                end: front.position,
                upto: Offset::ZERO,
            },
            segment,
        };
        while let Some(front) = self.pending.front() {
            let merged = write.size + u64::from(front.size);
            let fits = write.size == 0 || merged <= self.limits.merged_bytes_max;
            if !fits || !Rc::ptr_eq(&front.segment, &write.segment) {
                break;
            }
            let Some(front) = self.pending.pop_front() else {
                break;
            };
            debug_assert_eq!(front.position, write.position + write.size);
            write.size += u64::from(front.size);
            write.batches += 1;
            write.parts.extend(front.parts);
            write.reached.end = write.position + write.size;
            write.reached.upto = front.last.next();
        }
        Some(write)
    }

    /// The written batches of a write that was made on the spot leave the queue.
    pub(super) fn written_on_the_spot(&mut self, write: &MergedWrite) {
        self.took(write.size);
        self.counters.wrote(write.size, write.batches);
    }

    /// So do those of a write that failed; the caller sees to what follows.
    pub(super) fn written_nothing(&mut self, write: &MergedWrite) {
        self.took(write.size);
    }

    /// Takes the next O_DIRECT write and enters it among those in flight.
    pub(super) fn take_direct(&mut self) -> Option<DirectWrite> {
        let mut write = self.merge_front()?;
        self.fill_last_block(&mut write);
        self.mean_write_bytes = (self.mean_write_bytes * 7 + write.size) / 8;
        let head = std::mem::take(&mut self.partial_block);
        debug_assert_eq!(head.len() as u64, write.position % BLOCK_BYTES);
        let before = self.in_flight.back().filter(|_| !head.is_empty());
        let beside = before.map(|before| before.last_block.clone());
        self.partial_block = last_block_of(&head, &write);
        let direct = DirectWrite {
            id: self.next_flight,
            head,
            beside,
            last_block: Rc::default(),
            write,
        };
        self.next_flight += 1;
        self.in_flight.push_back(Flight {
            id: direct.id,
            reached: direct.write.reached.clone(),
            bytes: direct.write.size,
            state: FlightState::UnderWay,
            last_block: direct.last_block.clone(),
        });
        self.counters.count(|stats| stats.in_flight += 1);
        Some(direct)
    }

    /// Where the merge bound ended a write inside a block, the batch that follows fills it: then
    /// the next write begins at the boundary and needs not wait.
    fn fill_last_block(&mut self, write: &mut MergedWrite) {
        let end = write.position + write.size;
        let room = (end.next_multiple_of(BLOCK_BYTES) - end) as u32;
        let Some(front) = self.pending.front_mut() else {
            return;
        };
        if room == 0 || front.size <= room || !Rc::ptr_eq(&front.segment, &write.segment) {
            return;
        }
        let mut left = room as usize;
        front.position += u64::from(room);
        front.size -= room;
        for part in &mut front.parts {
            let piece = part.len().min(left);
            write.parts.push(part.slice(..piece));
            front.head.push(part.slice(..piece));
            part.advance(piece);
            left -= piece;
        }
        front.parts.retain(|part| !part.is_empty());
        write.size += u64::from(room);
    }

    /// A write in flight ended. Whatever comes after a failed one counts never, also if it
    /// succeeded.
    pub(super) fn ended(&mut self, id: u64, outcome: Outcome) -> Ended {
        let mut ended = Ended::default();
        let Some(flight) = self.in_flight.iter_mut().find(|flight| flight.id == id) else {
            return ended;
        };
        flight.state = match outcome {
            Outcome::Done => FlightState::Done,
            Outcome::Failed(_) | Outcome::Orphaned => FlightState::Failed,
        };
        self.counters.count(|stats| stats.in_flight -= 1);
        match outcome {
            Outcome::Failed(error) if is_no_space(&error) => {
                ended.refused = true;
                self.refused.get_or_insert(error);
            }
            Outcome::Failed(error) => ended.failure = Some(error),
            Outcome::Done | Outcome::Orphaned => {}
        }
        while let Some(front) = self.in_flight.front()
            && front.state == FlightState::Done
        {
            let bytes = front.bytes;
            if let Some(front) = self.in_flight.pop_front() {
                ended.reached.push(front.reached);
            }
            self.took(bytes);
        }
        let all_ended = self
            .in_flight
            .iter()
            .all(|flight| flight.state != FlightState::UnderWay);
        if all_ended {
            let lost: u64 = self.in_flight.drain(..).map(|flight| flight.bytes).sum();
            self.took(lost);
            ended.lost = self.refused.take();
        }
        ended
    }
}

impl Drop for WriteQueue {
    fn drop(&mut self) {
        // The shard's gauges outlive the log.
        self.counters.count(|stats| {
            stats.behind_bytes -= self.bytes;
            let under_way = |flight: &&Flight| flight.state == FlightState::UnderWay;
            stats.in_flight -= self.in_flight.iter().filter(under_way).count() as u64;
        });
    }
}

/// The bytes of the partial block that a segment ends in after `write`.
fn last_block_of(head: &[u8], write: &MergedWrite) -> Vec<u8> {
    let end = write.position + write.size;
    let mut wanted = (end % BLOCK_BYTES) as usize;
    let mut pieces: SmallVec<[&[u8]; 8]> = SmallVec::new();
    for part in write.parts.iter().rev() {
        let piece = &part[part.len() - part.len().min(wanted)..];
        wanted -= piece.len();
        pieces.push(piece);
        if wanted == 0 {
            break;
        }
    }
    // The data did not even fill the block it begins in.
    pieces.push(&head[head.len() - wanted.min(head.len())..]);
    pieces
        .iter()
        .rev()
        .flat_map(|piece| piece.iter().copied())
        .collect()
}

/// The file system is full (or a quota is).
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogConfig;

    const KIB: u32 = 1024;
    const NONE: Vec<i64> = Vec::new();

    fn queue() -> (WriteQueue, Rc<Segment>, Rc<AppendCounters>) {
        let counters = Rc::new(AppendCounters::default());
        let queue = WriteQueue::new(WriteLimits::default(), counters.clone());
        let segment = Segment::create(Offset(0), 0, 0, &LogConfig::default());
        (queue, Rc::new(segment), counters)
    }

    /// Queues batches of these sizes, one record each, from `first` on.
    fn push(queue: &mut WriteQueue, segment: &Rc<Segment>, first: i64, at: u64, sizes: &[u32]) {
        let mut position = at;
        for (record, size) in (first..).zip(sizes.iter().copied()) {
            queue.push(PendingWrite {
                segment: segment.clone(),
                position,
                parts: SmallVec::from_iter([Bytes::from(vec![record as u8; size as usize])]),
                head: SmallVec::new(),
                size,
                last: Offset(record),
            });
            position += u64::from(size);
        }
    }

    fn upto(ended: &Ended) -> Vec<i64> {
        ended.reached.iter().map(|reached| reached.upto.0).collect()
    }

    fn failed(code: i32) -> Outcome {
        Outcome::Failed(io::Error::from_raw_os_error(code))
    }

    #[test]
    fn completions_count_in_order_whatever_order_they_come_in() {
        let (mut queue, segment, counters) = queue();
        let mib = 1024 * KIB;
        push(&mut queue, &segment, 0, 0, &[mib, mib, mib, mib, mib]);
        let ids: Vec<u64> = (0..4)
            .map(|_| queue.take_direct().expect("more is queued").id)
            .collect();
        assert!(queue.must_wait(), "four are in flight");
        assert_eq!(upto(&queue.ended(ids[2], Outcome::Done)), NONE);
        assert_eq!(upto(&queue.ended(ids[0], Outcome::Done)), vec![1]);
        assert!(!queue.must_wait());
        assert_eq!(upto(&queue.ended(ids[1], Outcome::Done)), vec![2, 3]);
        assert_eq!(queue.bytes(), 2 * u64::from(mib));
        assert_eq!(counters.get().in_flight, 1);
        assert_eq!(upto(&queue.ended(ids[3], Outcome::Done)), vec![4]);
        assert!(!queue.is_idle());
    }

    #[test]
    fn on_a_full_disk_the_tail_goes_from_the_first_refused_write_on_once_all_have_ended() {
        let (mut queue, segment, counters) = queue();
        let mib = 1024 * KIB;
        push(&mut queue, &segment, 0, 0, &[mib, mib, mib, mib]);
        let ids: Vec<u64> = (0..4)
            .map(|_| queue.take_direct().expect("more is queued").id)
            .collect();
        let second = queue.ended(ids[1], failed(libc::ENOSPC));
        assert!(second.refused && second.lost.is_none() && queue.is_refused());
        assert_eq!(upto(&queue.ended(ids[3], Outcome::Done)), NONE);
        assert_eq!(upto(&queue.ended(ids[0], Outcome::Done)), vec![1]);
        assert!(!queue.is_idle());
        let last = queue.ended(ids[2], failed(libc::ENOSPC));
        assert_eq!(upto(&last), NONE, "what came after the refused one is lost");
        assert!(last.lost.is_some());
        assert!(queue.is_idle() && !queue.is_refused());
        assert_eq!((queue.bytes(), counters.get().behind_bytes), (0, 0));
    }

    #[test]
    fn a_failure_in_the_middle_ends_what_counts_for_good() {
        let (mut queue, segment, _) = queue();
        let mib = 1024 * KIB;
        push(&mut queue, &segment, 0, 0, &[mib, mib, mib]);
        let ids: Vec<u64> = (0..3)
            .map(|_| queue.take_direct().expect("more is queued").id)
            .collect();
        assert!(queue.ended(ids[1], failed(libc::EIO)).failure.is_some());
        assert_eq!(upto(&queue.ended(ids[2], Outcome::Done)), NONE);
        assert_eq!(upto(&queue.ended(ids[0], Outcome::Done)), vec![1]);
        assert!(queue.is_idle());
    }

    #[test]
    fn two_writes_in_flight_never_cover_the_same_block() {
        let (mut queue, segment, _) = queue();
        let big = 1024 * KIB + 100;
        push(&mut queue, &segment, 0, 0, &[10, 300 * KIB, big, big, 20]);
        let position = 10 + 300 * u64::from(KIB) + 2 * u64::from(big);
        let first = queue.take_direct().expect("queued");
        assert_eq!((first.write.position, first.write.batches), (0, 2));
        assert_eq!(
            first.write.size % BLOCK_BYTES,
            0,
            "filled by the third batch"
        );
        assert_eq!(first.write.reached.end, 10 + 300 * u64::from(KIB));
        let second = queue.take_direct().expect("queued");
        assert_eq!(second.write.position, first.write.size);
        assert!(second.beside.is_none() && second.head.is_empty());
        assert_eq!(second.write.reached.upto, Offset(3));
        let third = queue.take_direct().expect("queued");
        assert_eq!(
            third.write.reached.upto,
            Offset(5),
            "with the last, small one"
        );
        // A small batch waits for the block that the third write ends in, a large one does not.
        push(&mut queue, &segment, 5, position + 20, &[30]);
        assert!(queue.must_wait());
        push(&mut queue, &segment, 6, position + 50, &[200 * KIB]);
        assert!(!queue.must_wait());
        let fourth = queue.take_direct().expect("queued");
        assert!(
            fourth
                .beside
                .is_some_and(|before| Rc::ptr_eq(&before, &third.last_block))
        );
        let end = (position + 20) % BLOCK_BYTES;
        assert_eq!(fourth.head.len() as u64, end);
        assert!(fourth.head.ends_with(&[4; 20]));
    }
}
