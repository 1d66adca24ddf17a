//! Measuring through the broker's own ring, on one executor of this process: what the device does
//! with what the log does to it. Not in a broker.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use crate::rt::fs::{AlignedBuf, File, OpenOptions, ReadBuffer};
use crate::rt::sync::Semaphore;
use crate::rt::{self, ExecutorIndex, RingPlan};

use super::figure::{Figure, Turn, Way, What};
use super::plain::{OPERATIONS_MAX, TURNS, noise};

const MIB: u64 = 1 << 20;

/// Streams: what, bytes of a request, requests under way.
const STREAMS: [(What, u64, u32); 12] = [
    (What::Write, 64 << 10, 4),
    (What::Write, 256 << 10, 4),
    (What::Write, MIB, 1),
    (What::Write, MIB, 2),
    (What::Write, MIB, 4),
    (What::Write, MIB, 8),
    (What::Write, 4 * MIB, 4),
    (What::WriteFlush, 4 << 10, 1),
    (What::Read, MIB, 1),
    (What::Read, MIB, 2),
    (What::Read, MIB, 4),
    (What::Mixed, MIB, 4),
];
/// Files of the rounds that are measured both ways.
const ROUNDS: [u32; 6] = [1, 2, 3, 4, 8, 16];
/// Flushes side by side of a round over all files.
const LIMITS: [u32; 4] = [4, 16, 32, 64];
const FILES: usize = 64;
const FILE_BYTES: u64 = MIB;
/// What each file gets in a round: a batch of a small record or some.
const BATCH_BYTES: u64 = 1024;
/// A journal entry and the frame's header, roughly.
const ENTRY_BYTES: u64 = 36;
const HEADER_BYTES: u64 = 48;

pub(super) const MEASUREMENTS: u32 = (STREAMS.len() + 2 * ROUNDS.len() + LIMITS.len()) as u32;

pub(super) fn measure(
    dir: &Path,
    file: &Path,
    bytes: u64,
    slice: Duration,
) -> io::Result<Vec<Figure>> {
    let (dir, file) = (dir.to_owned(), file.to_owned());
    on_ring(move || all(dir.clone(), file.clone(), bytes, slice))
}

/// Free bytes of the file system that holds `dir`.
pub(super) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let dir = dir.to_owned();
    let space = on_ring(move || {
        let dir = dir.clone();
        async move { rt::fs::space(dir).await }
    })?;
    Ok(space.free)
}

/// Runs a future on an executor of its own and waits for what it comes to.
fn on_ring<T, F>(work: impl Fn() -> F + Clone + Send + 'static) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + 'static,
{
    let (sender, receiver) = mpsc::channel();
    rt::run_ring(RingPlan::default(), move |executor: ExecutorIndex| {
        let (sender, work) = (sender.clone(), work.clone());
        async move {
            if !executor.is_control() {
                // The receiver lives until the ring has ended.
                let _ = sender.send(work().await);
            }
        }
    })
    .map_err(io::Error::other)?;
    receiver
        .recv()
        .map_err(|_| io::Error::other("the executor gave no answer"))?
}

async fn all(dir: PathBuf, file: PathBuf, bytes: u64, slice: Duration) -> io::Result<Vec<Figure>> {
    let slice = slice / TURNS;
    let files = Files::make(&dir).await?;
    let mut streams = vec![Vec::new(); STREAMS.len()];
    let mut rounds = vec![(Vec::new(), Vec::new()); ROUNDS.len()];
    let mut limited = vec![Vec::new(); LIMITS.len()];
    for _ in 0..TURNS {
        for ((what, size, depth), turns) in STREAMS.iter().zip(&mut streams) {
            turns.push(stream(&file, bytes, *what, *size, *depth, slice).await?);
        }
        for (count, (by_segment, by_journal)) in ROUNDS.iter().zip(&mut rounds) {
            // One after the other, so that a drift meets both.
            let (mut segment, mut journal) = (Turn::default(), Turn::default());
            let begun = rt::now();
            while segment.times.is_empty() || goes_on(begun, 2 * slice, &segment) {
                segment.add(files.by_segment(*count as usize, (*count).into()).await?);
                journal.add(files.by_journal(*count as usize).await?);
            }
            by_segment.push(segment);
            by_journal.push(journal);
        }
        for (limit, turns) in LIMITS.iter().zip(&mut limited) {
            let mut turn = Turn::default();
            let begun = rt::now();
            while turn.times.is_empty() || goes_on(begun, slice, &turn) {
                turn.add(files.by_segment(FILES, (*limit).into()).await?);
            }
            turns.push(turn);
        }
    }
    let ring =
        |what, bytes, depth, turns: &[Turn]| Figure::of(what, Way::Ring, bytes, depth, turns);
    let mut figures = Vec::new();
    for ((what, size, depth), turns) in STREAMS.iter().zip(&streams) {
        figures.push(ring(*what, *size, *depth, turns));
    }
    for (count, (segment, journal)) in ROUNDS.iter().zip(&rounds) {
        figures.push(ring(What::RoundBySegment, BATCH_BYTES, *count, segment));
        figures.push(ring(What::RoundByJournal, BATCH_BYTES, *count, journal));
    }
    for (limit, turns) in LIMITS.iter().zip(&limited) {
        figures.push(ring(What::RoundLimited, BATCH_BYTES, *limit, turns));
    }
    Ok(figures)
}

fn goes_on(begun: rt::Instant, slice: Duration, turn: &Turn) -> bool {
    rt::now().since(begun) < slice && turn.times.len() < OPERATIONS_MAX
}

/// What the tasks of a stream share.
struct Stream {
    what: What,
    size: u64,
    /// Requests that fit into the file.
    places: u64,
    next: Cell<u64>,
    times: RefCell<Vec<Duration>>,
    until: rt::Instant,
}

impl Stream {
    /// Where the next request goes; `None` at the end of the time. The first one of all always has
    /// a place, so that there is a figure.
    fn place(&self) -> Option<u64> {
        let next = self.next.get();
        let over = rt::now() >= self.until || next >= OPERATIONS_MAX as u64;
        if over && next > 0 {
            return None;
        }
        self.next.set(next + 1);
        Some(next % self.places * self.size)
    }

    async fn write(&self, file: &File, mut buf: AlignedBuf) -> io::Result<()> {
        while let Some(at) = self.place() {
            let begun = rt::now();
            let (written, back) = file.write_aligned_at(at, buf).await;
            buf = back;
            written?;
            if self.what == What::WriteFlush {
                file.sync_data().await?;
            }
            self.times.borrow_mut().push(rt::now().since(begun));
        }
        Ok(())
    }

    async fn read(&self, file: &File, mut buf: ReadBuffer) -> io::Result<()> {
        while let Some(at) = self.place() {
            let begun = rt::now();
            let part = 0..self.size as usize;
            let (read, back) = file.read_past_cache(at, buf, part).await;
            buf = back;
            read?;
            self.times.borrow_mut().push(rt::now().since(begun));
        }
        Ok(())
    }
}

async fn stream(
    path: &Path,
    bytes: u64,
    what: What,
    size: u64,
    depth: u32,
    slice: Duration,
) -> io::Result<Turn> {
    let direct = File::open(path, OpenOptions::READ_WRITE.direct()).await?;
    // Cold reads go by a descriptor of the page cache's kind, as those of segments do.
    let buffered = File::open(path, OpenOptions::READ).await?;
    let begun = rt::now();
    let shared = Rc::new(Stream {
        what,
        size,
        places: (bytes / size).max(1),
        next: Cell::new(0),
        times: RefCell::default(),
        until: begun.saturating_add(slice),
    });
    let data = noise(size as usize);
    let mut tasks = Vec::new();
    for turn in 0..depth {
        let shared = shared.clone();
        let reads = what == What::Read || (what == What::Mixed && turn % 2 == 0);
        tasks.push(if reads {
            let file = buffered.clone();
            let buf = ReadBuffer::lone(size as usize);
            rt::spawn(async move { shared.read(&file, buf).await })
        } else {
            let file = direct.clone();
            let buf = AlignedBuf::gathered(&[data.as_ref()]);
            rt::spawn(async move { shared.write(&file, buf).await })
        });
    }
    for task in tasks {
        task.await?;
    }
    let took = rt::now().since(begun);
    let times = shared.times.take();
    Ok(Turn { times, took })
}

/// Segments and a journal of the usual shape: blocks written, data inside.
struct Files {
    segments: Vec<File>,
    journal: File,
    data: Vec<u8>,
    round: Cell<u64>,
}

impl Files {
    async fn make(dir: &Path) -> io::Result<Files> {
        let zeros = bytes::Bytes::from(vec![0; FILE_BYTES as usize]);
        let mut segments = Vec::with_capacity(FILES);
        for at in 0..FILES {
            let path = dir.join(format!("segment-{at}"));
            let file = File::open(path, OpenOptions::CREATE_NEW).await?;
            file.write_all_at(0, vec![zeros.clone()]).await?;
            file.sync_all().await?;
            segments.push(file);
        }
        let path = dir.join("journal");
        let journal = File::open(path, OpenOptions::CREATE_NEW.direct()).await?;
        let buf = AlignedBuf::zeroed(FILE_BYTES as usize);
        journal.write_aligned_at(0, buf).await.0?;
        journal.sync_all().await?;
        Ok(Files {
            segments,
            journal,
            data: noise(BATCH_BYTES as usize).as_ref()[..BATCH_BYTES as usize].to_vec(),
            round: Cell::new(0),
        })
    }

    /// Writes a batch into the page cache for each of the first files.
    fn append(&self, count: usize) -> io::Result<()> {
        let round = self.round.get();
        self.round.set(round + 1);
        let at = round * BATCH_BYTES % (FILE_BYTES - BATCH_BYTES);
        for file in &self.segments[..count] {
            file.write_now(at, &[io::IoSlice::new(&self.data)])?;
        }
        Ok(())
    }

    async fn by_segment(&self, count: usize, limit: u64) -> io::Result<Duration> {
        self.append(count)?;
        let begun = rt::now();
        if let ([file], 1) = (&self.segments[..count], limit) {
            file.sync_data().await?;
            return Ok(rt::now().since(begun));
        }
        let gate = Rc::new(Semaphore::new(limit));
        let tasks: Vec<_> = self.segments[..count]
            .iter()
            .map(|file| {
                let (file, gate) = (file.clone(), gate.clone());
                rt::spawn(async move {
                    let _turn = gate.acquire(1).await;
                    file.sync_data().await
                })
            })
            .collect();
        for task in tasks {
            task.await?;
        }
        Ok(rt::now().since(begun))
    }

    async fn by_journal(&self, count: usize) -> io::Result<Duration> {
        self.append(count)?;
        let begun = rt::now();
        let bytes = HEADER_BYTES + count as u64 * (ENTRY_BYTES + BATCH_BYTES);
        let pieces = vec![&self.data[..]; (bytes / BATCH_BYTES) as usize + 1];
        let buf = AlignedBuf::gathered(&pieces);
        let len = buf.len() as u64;
        let places = FILE_BYTES / len;
        let at = self.round.get() % places * len;
        self.journal.write_aligned_at(at, buf).await.0?;
        self.journal.sync_data().await?;
        Ok(rt::now().since(begun))
    }
}
