//! Owns what a shard reads from the device for readers that walk through old segments: pieces of
//! segment files, shared by all readers of a partition, the next one on its way while the client
//! takes in the last; and the places where reads ended, by which such a reader is known. On the
//! shard that owns the logs. It never holds what lies in the page cache, and never decides what of
//! a piece may be read: the log does.
//!
//! A piece belongs to one segment object and one generation of its log. What a cut or compaction
//! puts in its place is another, so nothing has to be told: the old pieces are never found again
//! and leave when they are idle.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;

use crate::rt;
use crate::rt::fs::{AlignedBuf, File, ReadBuffer, ReadBuffers};
use crate::rt::sync::{Event, Semaphore, Wait};
use crate::types::Offset;

use super::cache::LogKey;
use super::flush::Flusher;
use super::segment::Segment;

/// One read from the device. Half of it reaches two thirds of the speed, twice as much brings
/// nothing; it is also what consumers fetch by default.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Bounds of the reads from the device. `highwater tune disk` measures them.
#[derive(Clone, Copy, Debug)]
pub struct ColdReadLimits {
    /// Cold reads of one shard at the device at once. Two keep it busy; every further one only
    /// stands in the way of a flush.
    pub in_flight_max: u64,
    /// While flush rounds go on, somebody waits for each of their writes. Then there is one read
    /// at a time, in requests of this size that begin in the gaps between rounds: what a flush may
    /// wait for.
    pub bytes_beside_flushes: usize,
}

impl Default for ColdReadLimits {
    fn default() -> ColdReadLimits {
        ColdReadLimits {
            in_flight_max: 2,
            bytes_beside_flushes: 256 << 10,
        }
    }
}

/// Pieces that nobody has asked for this long go: their reader has left.
const IDLE: Duration = Duration::from_secs(5);

/// Ends of reads remembered, the oldest leaves first: some consumers and partitions more than the
/// default bound of memory has pieces for.
const ENDS_MAX: usize = 512;

/// A part of a segment file that may be read.
#[derive(Clone)]
pub(super) struct Source {
    pub segment: Rc<Segment>,
    pub generation: u64,
    pub file: File,
    /// Nothing is read at or past this position.
    pub end: u64,
}

/// What there is of a segment at a position.
pub(super) enum Look {
    /// Bytes from the position on.
    Ready(Bytes),
    /// They are on their way; look again after this.
    Loading(Wait),
    Missing,
}

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadAheadStats {
    /// Pieces read from the device for readers in sequence.
    pub pieces: u64,
    /// Reads from the device for one reader only: not in sequence, or no memory for a piece.
    pub lone_reads: u64,
    /// Pieces that were not read ahead because the memory was used up.
    pub declined: u64,
    /// Bytes of pieces held now, those on their way to clients included.
    pub bytes: u64,
}

/// The pieces and ends of one shard.
pub(super) struct ReadAhead {
    buffers: ReadBuffers,
    limits: ColdReadLimits,
    device: Semaphore,
    flusher: Rc<Flusher>,
    inner: RefCell<Inner>,
    this: Weak<ReadAhead>,
}

#[derive(Default)]
struct Inner {
    pieces: Vec<Piece>,
    next_id: u64,
    ends: HashMap<(LogKey, Offset), ReadEnd, ahash::RandomState>,
    ends_order: VecDeque<(LogKey, Offset)>,
    /// The task that drops idle pieces is alive.
    sweeping: bool,
    stats: ReadAheadStats,
}

struct Piece {
    id: u64,
    segment: Weak<Segment>,
    generation: u64,
    start: u64,
    end: u64,
    state: State,
    used_at: rt::Instant,
    /// A reader has gone past its end.
    passed: bool,
}

enum State {
    Loading(Event),
    Ready(Bytes),
}

struct ReadEnd {
    segment: Weak<Segment>,
    generation: u64,
    position: u64,
}

impl ReadAhead {
    /// Holds at most `limit_bytes` of pieces; with less than two pieces nothing is read ahead.
    pub(super) fn new(
        limit_bytes: u64,
        limits: ColdReadLimits,
        flusher: Rc<Flusher>,
    ) -> Rc<ReadAhead> {
        let pieces_max = limit_bytes / PIECE_BYTES as u64;
        let pieces_max = if pieces_max < 2 { 0 } else { pieces_max };
        Rc::new_cyclic(|this| ReadAhead {
            buffers: ReadBuffers::new(PIECE_BYTES, pieces_max as usize),
            limits,
            device: Semaphore::new(limits.in_flight_max),
            flusher,
            inner: RefCell::default(),
            this: this.clone(),
        })
    }

    pub(super) fn stats(&self) -> ReadAheadStats {
        ReadAheadStats {
            bytes: self.buffers.bytes_out(),
            ..self.inner.borrow().stats
        }
    }

    /// Whether a read has ended before `offset`, and if that was in this segment, where.
    pub(super) fn ended_before(
        &self,
        log: LogKey,
        offset: Offset,
        segment: &Rc<Segment>,
        generation: u64,
    ) -> (bool, Option<u64>) {
        let inner = self.inner.borrow();
        let Some(end) = inner.ends.get(&(log, offset)) else {
            return (false, None);
        };
        let here = end.generation == generation && is(&end.segment, segment);
        (true, here.then_some(end.position))
    }

    /// A read ended at `position`, and the next one of its reader begins at `offset`.
    pub(super) fn note_end(&self, log: LogKey, offset: Offset, source: &Source, position: u64) {
        let mut inner = self.inner.borrow_mut();
        let end = ReadEnd {
            segment: Rc::downgrade(&source.segment),
            generation: source.generation,
            position,
        };
        if inner.ends.insert((log, offset), end).is_none() {
            inner.ends_order.push_back((log, offset));
        }
        if inner.ends_order.len() > ENDS_MAX
            && let Some(oldest) = inner.ends_order.pop_front()
        {
            inner.ends.remove(&oldest);
        }
        for piece in &mut inner.pieces {
            piece.passed |= piece.end <= position && piece.is_of(source);
        }
    }

    pub(super) fn look(&self, source: &Source, at: u64) -> Look {
        let mut inner = self.inner.borrow_mut();
        let Some(piece) = inner.covering(source, at) else {
            return Look::Missing;
        };
        piece.used_at = rt::now();
        match &piece.state {
            State::Loading(loaded) => Look::Loading(loaded.wait()),
            State::Ready(bytes) => Look::Ready(bytes.slice((at - piece.start) as usize..)),
        }
    }

    /// Sees to it that a piece from `at` on is there or on its way; false if there is no memory
    /// for it.
    pub(super) fn fetch(&self, source: &Source, at: u64) -> bool {
        if self.inner.borrow_mut().covering(source, at).is_some() {
            return true;
        }
        let start = align_down(at);
        let wanted = (source.end - start).min(PIECE_BYTES as u64) as usize;
        let Some(mut buffer) = self.take_buffer(wanted) else {
            self.inner.borrow_mut().stats.declined += 1;
            return false;
        };
        let id = {
            let mut inner = self.inner.borrow_mut();
            // Up to where the next piece begins, so that readers out of step come to share.
            let next = inner.pieces.iter().filter(|p| p.is_of(source));
            let next = next.map(|p| p.start).filter(|start| *start > at).min();
            let end = (start + PIECE_BYTES as u64).min(source.end);
            let end = next.map_or(end, |next| end.min(next));
            buffer.shorten((end - start) as usize);
            let id = inner.next_id;
            inner.next_id += 1;
            inner.stats.pieces += 1;
            inner.pieces.push(Piece {
                id,
                segment: Rc::downgrade(&source.segment),
                generation: source.generation,
                start,
                end,
                state: State::Loading(Event::new()),
                used_at: rt::now(),
                passed: false,
            });
            id
        };
        let (this, file) = (self.rc(), source.file.clone());
        drop(rt::spawn(async move {
            this.load(id, &file, start, buffer).await;
        }));
        self.sweep();
        true
    }

    async fn load(&self, id: u64, file: &File, start: u64, buffer: ReadBuffer) {
        let (read, buffer) = self.read_device(file, start, buffer).await;
        let mut inner = self.inner.borrow_mut();
        let Some(slot) = inner.pieces.iter().position(|piece| piece.id == id) else {
            return;
        };
        let piece = &mut inner.pieces[slot];
        let len = match &read {
            Ok(read) => (piece.end - piece.start).min(*read as u64),
            Err(_) => 0,
        };
        piece.end = piece.start + len;
        let ready = State::Ready(buffer.freeze(0..len as usize));
        let State::Loading(loaded) = std::mem::replace(&mut piece.state, ready) else {
            return;
        };
        if len == 0 {
            // Whoever waits reads for itself, and meets the error if it is one.
            inner.pieces.swap_remove(slot);
        }
        drop(inner);
        loaded.notify_all();
    }

    /// Bytes for one reader, at most a piece; fewer than `len` also where the start is not aligned.
    pub(super) async fn read_alone(
        &self,
        source: &Source,
        at: u64,
        len: usize,
    ) -> io::Result<Bytes> {
        self.inner.borrow_mut().stats.lone_reads += 1;
        let start = align_down(at);
        let skip = (at - start) as usize;
        let most = (source.end - start).min((skip + len.min(PIECE_BYTES)) as u64) as usize;
        let buffer = ReadBuffer::lone(most);
        let (read, buffer) = self.read_device(&source.file, start, buffer).await;
        let end = read?.min(most);
        Ok(buffer.freeze(skip.min(end)..end))
    }

    async fn read_device(
        &self,
        file: &File,
        start: u64,
        mut buffer: ReadBuffer,
    ) -> (io::Result<usize>, ReadBuffer) {
        let request_bytes = self.limits.bytes_beside_flushes.max(1);
        let request_bytes = request_bytes.next_multiple_of(AlignedBuf::ALIGN);
        if !self.flusher.goes_on() {
            let _turn = self.device.acquire(1).await;
            let whole = 0..buffer.len();
            return file.read_past_cache(start, buffer, whole).await;
        }
        let _turn = self.device.acquire(self.limits.in_flight_max).await;
        let mut done = 0;
        while done < buffer.len() {
            let end = buffer.len().min(done + request_bytes);
            self.flusher.gap().await;
            let at = start + done as u64;
            let (read, back) = file.read_past_cache(at, buffer, done..end).await;
            buffer = back;
            match read {
                Ok(read) => done += read,
                Err(error) => return (Err(error), buffer),
            }
            if done < end {
                break;
            }
        }
        (Ok(done), buffer)
    }

    /// A free buffer; for that, pieces leave that their readers have passed, the one longest
    /// unused first. Never one that was read ahead and not asked for yet: with more readers than
    /// memory each would drop what the others are about to need, and everything would be read
    /// twice.
    fn take_buffer(&self, len: usize) -> Option<ReadBuffer> {
        loop {
            if let Some(buffer) = self.buffers.take(len) {
                return Some(buffer);
            }
            let dropped = {
                let mut inner = self.inner.borrow_mut();
                let ready = inner.pieces.iter().enumerate().filter(|(_, piece)| {
                    let unwanted = piece.passed || piece.segment.strong_count() == 0;
                    unwanted && matches!(piece.state, State::Ready(_))
                });
                let (slot, _) = ready.min_by_key(|(_, piece)| piece.used_at)?;
                inner.pieces.swap_remove(slot)
            };
            // Its memory comes home now, unless a client is still being sent some of it.
            drop(dropped);
        }
    }

    /// Starts the task that drops idle pieces and ends with the last of them.
    fn sweep(&self) {
        if std::mem::replace(&mut self.inner.borrow_mut().sweeping, true) {
            return;
        }
        let this = self.rc();
        drop(rt::spawn(async move {
            loop {
                rt::sleep(IDLE).await;
                let now = rt::now();
                let mut inner = this.inner.borrow_mut();
                inner.pieces.retain(|piece| {
                    matches!(piece.state, State::Loading(_)) || now.since(piece.used_at) < IDLE
                });
                if inner.pieces.is_empty() {
                    inner.sweeping = false;
                    this.buffers.release_free();
                    return;
                }
            }
        }));
    }

    fn rc(&self) -> Rc<ReadAhead> {
        self.this
            .upgrade()
            .expect("a method runs on something that someone holds by Rc")
    }
}

impl Inner {
    fn covering(&mut self, source: &Source, at: u64) -> Option<&mut Piece> {
        self.pieces
            .iter_mut()
            .find(|piece| piece.start <= at && at < piece.end && piece.is_of(source))
    }
}

impl Piece {
    fn is_of(&self, source: &Source) -> bool {
        self.generation == source.generation && is(&self.segment, &source.segment)
    }
}

fn is(weak: &Weak<Segment>, segment: &Rc<Segment>) -> bool {
    std::ptr::eq(weak.as_ptr(), Rc::as_ptr(segment))
}

fn align_down(position: u64) -> u64 {
    position - position % AlignedBuf::ALIGN as u64
}
