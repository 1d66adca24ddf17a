//! Owns which log directories of a shard have flush rounds, what all of them count, and the moments
//! without one. On the shard that owns the logs. Directories have rounds of their own
//! ([`FlushRounds`]), so that a slow device delays nobody on another one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::rt;
use crate::rt::fs::File;
use crate::rt::sync::{Event, Semaphore};
use crate::types::Offset;

use super::flush_rounds::FlushRounds;
use super::journal::{DirJournal, ShardJournals};
use super::log::Log;
use super::segment::Segment;

/// Bounds of the flush rounds and where they turn from one way to the other. The device decides
/// what is best: `highwater tune disk` measures it.
#[derive(Clone, Copy, Debug)]
pub struct FlushLimits {
    /// Segment flushes of a directory in flight at once: half a ring's submission entries, so that
    /// reads and network keep their share.
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

/// What goes on in the rounds of all directories.
#[derive(Default)]
pub(super) struct Pulse {
    /// Series of rounds under way.
    under_way: Cell<usize>,
    /// When the last of them ended, and whom to tell of the next such end.
    ended_at: Cell<Option<rt::Instant>>,
    ended: Event,
    stats: Cell<FlushStats>,
}

impl Pulse {
    /// Round will follow round now, until [`Pulse::rest`].
    pub fn begin(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    /// A round has ended, and none of its kind follows.
    pub fn rest(&self) {
        self.under_way.set(self.under_way.get() - 1);
        self.ended_at.set(Some(rt::now()));
        self.ended.notify_all();
    }

    pub fn count(&self, add: impl FnOnce(&mut FlushStats)) {
        let mut stats = self.stats.get();
        add(&mut stats);
        self.stats.set(stats);
    }
}

/// The flush rounds of a shard, by log directory.
pub struct Flusher {
    dirs: RefCell<BTreeMap<PathBuf, Rc<FlushRounds>>>,
    pulse: Rc<Pulse>,
    journals: Rc<ShardJournals>,
    limits: FlushLimits,
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
            dirs: RefCell::default(),
            pulse: Rc::default(),
            journals,
            limits,
        })
    }

    /// The rounds of a log directory.
    pub fn rounds_of(&self, log_dir: &Path) -> Rc<FlushRounds> {
        if let Some(rounds) = self.dirs.borrow().get(log_dir) {
            return rounds.clone();
        }
        let journal = DirJournal::new(&self.journals, log_dir);
        let rounds = FlushRounds::new(journal, self.pulse.clone(), self.limits);
        let mut dirs = self.dirs.borrow_mut();
        dirs.insert(log_dir.to_owned(), rounds.clone());
        rounds
    }

    /// Directories in which a log was opened.
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.dirs.borrow().keys().cloned().collect()
    }

    /// Ends the journal of a directory, all of whose logs are closed.
    ///
    /// # Errors
    /// The file cannot be removed: the directory is not cleanly closed.
    pub async fn end(&self, log_dir: &Path) -> io::Result<()> {
        let rounds = self.dirs.borrow_mut().remove(log_dir);
        match rounds {
            Some(rounds) => rounds.journal().end().await,
            None => Ok(()),
        }
    }

    pub fn stats(&self) -> FlushStats {
        self.pulse.stats.get()
    }

    /// Whether rounds are under way or were a moment ago: somebody waits for each of their writes,
    /// so whoever else wants the device keeps its requests small.
    pub fn goes_on(&self) -> bool {
        let recent = |at| rt::now().since(at) < GOES_ON;
        self.is_under_way() || self.pulse.ended_at.get().is_some_and(recent)
    }

    /// Waits for a moment without a round, but not for ever. What takes the device for a while
    /// begins in such a gap: a flush behind it would wait for all of it. Rounds of every directory
    /// count: two may lie on one device.
    pub async fn gap(&self) {
        if !self.is_under_way() {
            return;
        }
        let gap = async {
            while self.is_under_way() {
                self.pulse.ended.wait().await;
            }
        };
        let _ = rt::timeout(GAP_WAIT_MAX, gap).await;
    }

    fn is_under_way(&self) -> bool {
        self.pulse.under_way.get() > 0
    }
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
