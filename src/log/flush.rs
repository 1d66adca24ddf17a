//! Owns the flush rounds of a shard: all logs that want a flush while a round is under way are
//! covered together by the next one. On the shard that owns the logs. A log that asks during a
//! round is never counted into it: its bytes may have come after the round's fdatasync began.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use crate::rt;
use crate::rt::fs::File;
use crate::rt::sync::Semaphore;
use crate::types::Offset;

use super::cache::LogKey;
use super::log::Log;
use super::segment::Segment;

/// Flushes in flight at once: half a ring's submission entries, so that reads and network keep
/// their share.
const FLUSHES_IN_FLIGHT_MAX: u64 = 64;

/// Counters of a shard's flush rounds, for metrics and benches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushStats {
    pub rounds: u64,
    /// Logs over all rounds.
    pub logs: u64,
    /// fdatasync calls over all rounds.
    pub files: u64,
}

/// Collects the logs that want a flush and runs the rounds.
#[derive(Default)]
pub struct Flusher {
    /// Logs for the next round, in key order so that a simulated run repeats.
    waiting: RefCell<BTreeMap<LogKey, Rc<Log>>>,
    running: Cell<bool>,
    stats: Cell<FlushStats>,
}

/// What one log needs flushed, and what that makes durable.
pub(super) struct FlushPlan {
    /// Segments whose written bytes are covered, oldest first.
    pub segments: Vec<(Rc<Segment>, File, bool)>,
    /// A segment file was created since the directory was last synced.
    pub sync_dir: bool,
    pub files_made: u64,
    pub upto: Offset,
    pub generation: u64,
}

impl Flusher {
    /// Puts `log` into the next round. Starts the round task if none runs; that task begins after
    /// the caller yields, so whatever is appended in the same turn shares the round.
    pub fn request(self: &Rc<Self>, log: Rc<Log>) {
        self.waiting.borrow_mut().insert(log.key(), log);
        if !self.running.replace(true) {
            let flusher = self.clone();
            drop(rt::spawn(async move { flusher.run().await }));
        }
    }

    pub fn stats(&self) -> FlushStats {
        self.stats.get()
    }

    async fn run(&self) {
        loop {
            let round = std::mem::take(&mut *self.waiting.borrow_mut());
            if round.is_empty() {
                self.running.set(false);
                return;
            }
            self.count(|stats| {
                stats.rounds += 1;
                stats.logs += round.len() as u64;
            });
            let gate = Rc::new(Semaphore::new(FLUSHES_IN_FLIGHT_MAX));
            // A lone log, the usual case at low load, is flushed right here.
            if round.len() == 1 {
                for log in round.into_values() {
                    let files = log.flush_written(&gate).await;
                    self.count(|stats| stats.files += files);
                }
                continue;
            }
            let mut tasks = Vec::with_capacity(round.len());
            for log in round.into_values() {
                let gate = gate.clone();
                tasks.push(rt::spawn(async move { log.flush_written(&gate).await }));
            }
            for task in tasks {
                let files = task.await;
                self.count(|stats| stats.files += files);
            }
        }
    }

    fn count(&self, add: impl FnOnce(&mut FlushStats)) {
        let mut stats = self.stats.get();
        add(&mut stats);
        self.stats.set(stats);
    }
}

impl FlushPlan {
    /// Runs the plan; the number of files synced.
    pub(super) async fn execute(&self, log: &Log, gate: &Rc<Semaphore>) -> io::Result<u64> {
        let mut files = 0;
        for (segment, file, whole) in &self.segments {
            let permit = gate.acquire(1).await;
            file.sync_data().await?;
            drop(permit);
            files += 1;
            // `whole`: the segment was sealed and written when planned, nothing can follow.
            if *whole {
                segment.mark_synced();
            }
        }
        if self.sync_dir {
            rt::fs::sync_dir(log.dir().as_path()).await?;
        }
        Ok(files)
    }
}
