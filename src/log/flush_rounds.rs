//! Owns the flush rounds of one log directory on one shard: all logs that want a flush while a round
//! is under way are covered together by the next one. On the shard that owns the logs. A log that
//! asks during a round is never counted into it: its bytes may have come after the round's fdatasync
//! began.
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
use std::rc::{Rc, Weak};

use crate::rt;
use crate::rt::sync::Semaphore;

use super::cache::LogKey;
use super::flush::{FlushLimits, Pulse};
use super::journal::{DirJournal, JournalPart};
use super::log::Log;

/// In key order, so that a simulated run repeats. Logs own their rounds, so rounds do not own them.
type Logs = BTreeMap<LogKey, Weak<Log>>;

/// Collects the logs of a directory that want a flush and runs the rounds.
pub(super) struct FlushRounds {
    /// Logs for the next round.
    waiting: RefCell<Logs>,
    running: Cell<bool>,
    /// Logs for the next round of segment flushes.
    by_segment: RefCell<Logs>,
    segments_running: Cell<bool>,
    journal: Rc<DirJournal>,
    pulse: Rc<Pulse>,
    limits: FlushLimits,
}

impl FlushRounds {
    pub fn new(journal: Rc<DirJournal>, pulse: Rc<Pulse>, limits: FlushLimits) -> Rc<FlushRounds> {
        Rc::new(FlushRounds {
            waiting: RefCell::default(),
            running: Cell::new(false),
            by_segment: RefCell::default(),
            segments_running: Cell::new(false),
            journal,
            pulse,
            limits,
        })
    }

    pub fn journal(&self) -> &Rc<DirJournal> {
        &self.journal
    }

    /// Puts `log` into the next round. Starts the round task if none runs; that task begins after
    /// the caller yields, so whatever is appended in the same turn shares the round.
    pub fn request(self: &Rc<Self>, log: &Rc<Log>) {
        self.waiting
            .borrow_mut()
            .insert(log.key(), Rc::downgrade(log));
        self.wake();
    }

    /// Sees to it that a round looks at the journal's changes.
    pub fn wake(self: &Rc<Self>) {
        if !self.running.replace(true) {
            self.pulse.begin();
            let rounds = self.clone();
            drop(rt::spawn(async move { rounds.run().await }));
        }
    }

    async fn run(self: Rc<Self>) {
        loop {
            let round = take(&self.waiting);
            if round.is_empty() && !self.journal.has_changes() {
                self.running.set(false);
                self.pulse.rest();
                return;
            }
            let parts = self.choose(round);
            if parts.is_empty() && !self.journal.has_changes() {
                continue;
            }
            let begun = rt::now();
            let logs = parts.len() as u64;
            let batches: u64 = parts.iter().map(|part| part.log.take_batches()).sum();
            let bytes = self.journal.write(parts).await;
            self.pulse.count(|stats| {
                stats.rounds += 1;
                stats.logs += logs;
                stats.batches += batches;
                stats.journal_frames += 1;
                stats.journal_bytes += bytes;
                stats.time += rt::now().since(begun);
            });
        }
    }

    /// What of a round goes into the journal's next frame; the others are on their way to the
    /// segments when this returns.
    fn choose(self: &Rc<Self>, round: Vec<Rc<Log>>) -> Vec<JournalPart> {
        let many =
            |logs: usize| logs >= self.limits.journal_logs_min || self.segments_running.get();
        let mut parts = Vec::new();
        let may_take_part = many(round.len());
        for log in round {
            if !Rc::ptr_eq(&log.rounds(), self) {
                // It has moved to another directory since.
                log.request_flush();
            } else if let Some(part) = may_take_part.then(|| log.journal_part()).flatten() {
                parts.push(part);
            } else {
                self.flush_by_segment(&log);
            }
        }
        // Where nobody goes by the journal none is made.
        let wanted = !parts.is_empty() && many(parts.len());
        let taken = if wanted && self.journal.is_ready() {
            self.journal.room_for(&parts)
        } else {
            0
        };
        for part in parts.drain(taken..) {
            self.flush_by_segment(&part.log);
        }
        if !self.by_segment.borrow().is_empty() && !self.segments_running.replace(true) {
            self.pulse.begin();
            let rounds = self.clone();
            drop(rt::spawn(async move { rounds.run_segments().await }));
        }
        parts
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
                self.segments_running.set(false);
                self.pulse.rest();
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
            self.pulse.count(|stats| {
                stats.rounds += 1;
                stats.logs += logs;
                stats.batches += batches;
                stats.files += files;
                stats.time += rt::now().since(begun);
            });
        }
    }
}

/// The logs of `waiting` that are still there; none waits any more.
fn take(waiting: &RefCell<Logs>) -> Vec<Rc<Log>> {
    let waiting = std::mem::take(&mut *waiting.borrow_mut());
    waiting.values().filter_map(Weak::upgrade).collect()
}
