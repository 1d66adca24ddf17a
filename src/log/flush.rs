//! Owns the flush rounds of a shard: all logs that want a flush while a round is under way are
//! covered together by the next one. On the shard that owns the logs. A log that asks during a
//! round is never counted into it: its bytes may have come after the round's fdatasync began.
//!
//! A round takes the cheaper of two ways for each log: a frame of the directory's journal, or the
//! log's segments. Rounds of the two ways run side by side, so that a large batch on its way to a
//! segment delays nobody who goes by the journal.
//!
//! By segment go: a log whose durability row does not wait for the flush, one that was asked for
//! its segments (close, a recovery), one with more to flush than the journal takes (the bytes would
//! cost more, and twice), everything while fewer than [`FlushLimits::journal_logs_min`] logs are in
//! the round (flushing one file costs the same either way), and everything while there is no journal
//! or no room in it. `tuning/` has the measurements.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

use crate::rt;
use crate::rt::fs::File;
use crate::rt::sync::{Event, Semaphore};
use crate::types::Offset;

use super::cache::LogKey;
use super::journal::{DirJournal, JournalPart, ShardJournals};
use super::log::Log;
use super::segment::Segment;

/// Bounds of the flush rounds and where they turn from one way to the other. The device decides
/// what is best: `highwater tune disk` measures it.
#[derive(Clone, Copy, Debug)]
pub struct FlushLimits {
    /// Segment flushes in flight at once: half a ring's submission entries, so that reads and
    /// network keep their share.
    pub segments_in_flight_max: u64,
    /// Logs in a round from which on one frame is cheaper than a flush of each one's segment.
    pub journal_logs_min: usize,
    /// Most that one log may put into a frame. Beyond some 64 KiB the bytes cost more than the
    /// flush of one more file. At most half a frame.
    pub journal_log_bytes_max: u64,
}

impl Default for FlushLimits {
    fn default() -> FlushLimits {
        FlushLimits {
            segments_in_flight_max: 64,
            journal_logs_min: 3,
            journal_log_bytes_max: 64 << 10,
        }
    }
}

/// How long after a flush round the next one is expected.
const GOES_ON: Duration = Duration::from_millis(100);

/// How long work behind the flushes lets them go first. Where round follows round without a gap it
/// still gets 200 requests a second to the device.
const GAP_WAIT_MAX: Duration = Duration::from_millis(5);

/// Counters of a shard's flush rounds, for metrics and benches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushStats {
    /// Rounds of both ways.
    pub rounds: u64,
    /// Logs over all rounds.
    pub logs: u64,
    /// Batches that the rounds made durable: each has a producer (or a follower) waiting.
    pub batches: u64,
    /// fdatasync calls on segments over all rounds.
    pub files: u64,
    /// Frames written to journals, and their bytes.
    pub journal_frames: u64,
    pub journal_bytes: u64,
    /// Time spent in rounds; those of the two ways may overlap.
    pub time: Duration,
}

type Logs = BTreeMap<LogKey, Weak<Log>>;

/// What goes into the next frame of each journal; a shard has few directories.
type Frames = Vec<(Rc<DirJournal>, Vec<JournalPart>)>;

/// Collects the logs that want a flush and runs the rounds.
pub struct Flusher {
    /// Logs for the next round, in key order so that a simulated run repeats. They own the shard's
    /// flusher, so it does not own them.
    waiting: RefCell<Logs>,
    running: Cell<bool>,
    /// Logs for the next round of segment flushes.
    by_segment: RefCell<Logs>,
    segments_running: Cell<bool>,
    /// When the last round ended that nothing followed, and whom to tell of the next such end.
    ended_at: Cell<Option<rt::Instant>>,
    ended: Event,
    journals: Rc<ShardJournals>,
    limits: FlushLimits,
    stats: Cell<FlushStats>,
}

/// What one log needs flushed, and what that makes durable.
pub(super) struct FlushPlan {
    /// Segments whose written bytes are covered, oldest first.
    pub segments: Vec<Covered>,
    /// A segment file was created since the directory was last synced.
    pub sync_dir: bool,
    pub files_made: u64,
    pub upto: Offset,
    pub generation: u64,
}

/// A segment that a flush covers.
pub(super) struct Covered {
    pub segment: Rc<Segment>,
    pub file: File,
    /// Bytes that were written when the flush was planned.
    pub written: u64,
    /// It was sealed and all of it written then.
    pub whole: bool,
}

impl Flusher {
    pub fn new(journals: Rc<ShardJournals>, limits: FlushLimits) -> Rc<Flusher> {
        Rc::new(Flusher {
            waiting: RefCell::default(),
            running: Cell::new(false),
            by_segment: RefCell::default(),
            segments_running: Cell::new(false),
            ended_at: Cell::new(None),
            ended: Event::new(),
            journals,
            limits,
            stats: Cell::default(),
        })
    }

    /// Puts `log` into the next round. Starts the round task if none runs; that task begins after
    /// the caller yields, so whatever is appended in the same turn shares the round.
    pub fn request(self: &Rc<Self>, log: Rc<Log>) {
        self.waiting
            .borrow_mut()
            .insert(log.key(), Rc::downgrade(&log));
        self.wake();
    }

    /// Sees to it that a round looks at the journals' changes.
    pub fn wake(self: &Rc<Self>) {
        if !self.running.replace(true) {
            let flusher = self.clone();
            drop(rt::spawn(async move { flusher.run().await }));
        }
    }

    pub fn stats(&self) -> FlushStats {
        self.stats.get()
    }

    /// Whether rounds are under way or were a moment ago: somebody waits for each of their writes,
    /// so whoever else wants the device keeps its requests small.
    pub(super) fn goes_on(&self) -> bool {
        let recent = |at| rt::now().since(at) < GOES_ON;
        self.is_under_way() || self.ended_at.get().is_some_and(recent)
    }

    /// Waits for a moment without a round, but not for ever. What takes the device for a while
    /// begins in such a gap: a flush behind it would wait for all of it.
    pub(super) async fn gap(&self) {
        if !self.is_under_way() {
            return;
        }
        let gap = async {
            while self.is_under_way() {
                self.ended.wait().await;
            }
        };
        let _ = rt::timeout(GAP_WAIT_MAX, gap).await;
    }

    fn is_under_way(&self) -> bool {
        self.running.get() || self.segments_running.get()
    }

    /// A round has ended, and none of its kind follows.
    fn rest(&self, running: &Cell<bool>) {
        running.set(false);
        self.ended_at.set(Some(rt::now()));
        self.ended.notify_all();
    }

    async fn run(self: Rc<Self>) {
        loop {
            let round = take(&self.waiting);
            let changed = self.journals.with_changes();
            if round.is_empty() && changed.is_empty() {
                self.rest(&self.running);
                return;
            }
            let mut frames = self.choose(round);
            for journal in changed {
                parts_of(&mut frames, journal);
            }
            if frames.is_empty() {
                continue;
            }
            let begun = rt::now();
            let logs: usize = frames.iter().map(|(_, parts)| parts.len()).sum();
            let parts = frames.iter().flat_map(|(_, parts)| parts);
            let batches = parts.map(|part| part.log.take_batches());
            let batches: u64 = batches.sum();
            let count = frames.len() as u64;
            let writes = frames
                .into_iter()
                .map(|(journal, parts)| async move { journal.write(parts).await });
            let bytes: u64 = rt::join_all(writes).await.into_iter().sum();
            self.count(|stats| {
                stats.rounds += 1;
                stats.logs += logs as u64;
                stats.batches += batches;
                stats.journal_frames += count;
                stats.journal_bytes += bytes;
                stats.time += rt::now().since(begun);
            });
        }
    }

    /// Which logs of a round go into which directory's next frame; the others are on their way to
    /// the segments when this returns.
    fn choose(self: &Rc<Self>, round: Vec<Rc<Log>>) -> Frames {
        let mut frames = Frames::new();
        let few = round.len() < self.limits.journal_logs_min && !self.segments_running.get();
        for log in round {
            let part = if few || !self.journals.is_on() {
                None
            } else {
                log.journal_part()
            };
            match part {
                Some((journal, part)) => parts_of(&mut frames, journal).push(part),
                None => self.flush_by_segment(&log),
            }
        }
        for (journal, parts) in &mut frames {
            let enough = parts.len() >= self.limits.journal_logs_min || self.segments_running.get();
            let taken = if enough && journal.is_ready() {
                journal.room_for(parts)
            } else {
                0
            };
            for part in parts.drain(taken..) {
                self.flush_by_segment(&part.log);
            }
        }
        frames.retain(|(_, parts)| !parts.is_empty());
        if !self.by_segment.borrow().is_empty() && !self.segments_running.replace(true) {
            let flusher = self.clone();
            drop(rt::spawn(async move { flusher.run_segments().await }));
        }
        frames
    }

    fn flush_by_segment(&self, log: &Rc<Log>) {
        self.by_segment
            .borrow_mut()
            .insert(log.key(), Rc::downgrade(log));
    }

    async fn run_segments(self: Rc<Self>) {
        loop {
            let round = take(&self.by_segment);
            if round.is_empty() {
                self.rest(&self.segments_running);
                return;
            }
            let begun = rt::now();
            let logs = round.len() as u64;
            let batches: u64 = round.iter().map(|log| log.take_batches()).sum();
            let gate = Rc::new(Semaphore::new(self.limits.segments_in_flight_max));
            let mut files = 0;
            if round.len() == 1 {
                // A lone log, the usual case at low load, is flushed right here.
                for log in round {
                    files += log.flush_written(&gate, true).await;
                }
            } else {
                let mut tasks = Vec::with_capacity(round.len());
                for log in round {
                    let gate = gate.clone();
                    tasks.push(rt::spawn(
                        async move { log.flush_written(&gate, false).await },
                    ));
                }
                for task in tasks {
                    files += task.await;
                }
            }
            self.count(|stats| {
                stats.rounds += 1;
                stats.logs += logs;
                stats.batches += batches;
                stats.files += files;
                stats.time += rt::now().since(begun);
            });
        }
    }

    fn count(&self, add: impl FnOnce(&mut FlushStats)) {
        let mut stats = self.stats.get();
        add(&mut stats);
        self.stats.set(stats);
    }
}

fn parts_of(frames: &mut Frames, journal: Rc<DirJournal>) -> &mut Vec<JournalPart> {
    let known = frames.iter().position(|(j, _)| Rc::ptr_eq(j, &journal));
    let at = known.unwrap_or_else(|| {
        frames.push((journal, Vec::new()));
        frames.len() - 1
    });
    &mut frames[at].1
}

/// The logs of `waiting` that are still there; none waits any more.
fn take(waiting: &RefCell<Logs>) -> Vec<Rc<Log>> {
    let waiting = std::mem::take(&mut *waiting.borrow_mut());
    waiting.values().filter_map(Weak::upgrade).collect()
}

impl FlushPlan {
    /// Runs the plan; the number of files synced. `alone`: nothing else is flushed meanwhile, and
    /// somebody waits for it.
    pub(super) async fn execute(
        &self,
        log: &Log,
        gate: &Rc<Semaphore>,
        alone: bool,
    ) -> io::Result<u64> {
        let mut files = 0;
        for covered in &self.segments {
            let permit = gate.acquire(1).await;
            // Some 13 us of the shard, worth it for one file: the device is at work while a thread of
            // the kernel wakes up to wait for it (benches/README.md).
            if alone && let Some(range) = covered.segment.rest_of_block() {
                covered.file.begin_write_back(range)?;
            }
            covered.file.sync_data().await?;
            drop(permit);
            files += 1;
            // Unless a cut has come between.
            if log.state().generation == self.generation {
                covered.segment.flushed_to(covered.written);
                if covered.whole {
                    covered.segment.mark_synced();
                }
            }
        }
        if self.sync_dir {
            rt::fs::sync_dir(log.dir().as_path()).await?;
        }
        Ok(files)
    }
}
