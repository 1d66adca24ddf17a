//! Owns the cleaner of a shard: which of its logs a pass works on now, which are left alone, and
//! how it is doing. One per shard, on that shard, one pass at a time. It never decides what a pass
//! does to a log.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use super::super::cache::LogKey;
use super::super::log::Log;
use super::choice::{ChoiceRules, Cleanable, cleanable, dirtiest};
use super::pass::{Pass, PassError, PassReport};
use super::settings::CleanerSettings;
use super::stats::CleanerStats;
use super::watch::PassWatch;
use crate::rt;
use crate::rt::sync::Event;
use crate::types::Offset;

/// For how long a log is left alone that a full disk did not let clean: as long as retention,
/// which may make room, needs to come round.
const NO_SPACE_PAUSE_MS: i64 = 300_000;

/// The cleaner of one shard.
#[derive(Default)]
pub struct Cleaner {
    settings: Cell<CleanerSettings>,
    stats: Cell<CleanerStats>,
    /// The log that a pass works on.
    running: RefCell<Option<(LogKey, Rc<PassWatch>)>>,
    stopped: Cell<bool>,
    left: Event,
    /// Logs that failed to clean. They keep the key for life; a start tries again.
    uncleanable: RefCell<BTreeSet<LogKey>>,
    /// Logs that are left alone until then, wall clock in milliseconds.
    paused: RefCell<BTreeMap<LogKey, i64>>,
    /// Logs that are on their way to another directory.
    moving: RefCell<BTreeSet<LogKey>>,
}

impl Cleaner {
    pub fn new(settings: CleanerSettings) -> Cleaner {
        Cleaner {
            settings: Cell::new(settings),
            ..Cleaner::default()
        }
    }

    pub fn settings(&self) -> CleanerSettings {
        self.settings.get()
    }

    /// Takes effect with the next pass.
    pub fn set_settings(&self, settings: CleanerSettings) {
        self.settings.set(settings);
    }

    pub fn stats(&self) -> CleanerStats {
        self.stats.get()
    }

    /// Cleans the dirtiest of `logs` that is worth it. `None` if none is, or its pass did not get
    /// through.
    pub async fn clean_dirtiest(
        &self,
        logs: &[Rc<Log>],
        high_watermark: &dyn Fn(&Log) -> Offset,
    ) -> Option<(Rc<Log>, PassReport)> {
        if self.stopped.get() || !self.settings.get().enabled {
            return None;
        }
        let now_ms = rt::wall_ms();
        self.forget_gone(logs, now_ms);
        let candidates = self.candidates(logs, high_watermark, now_ms).await;
        self.note_look(logs, &candidates, now_ms);
        let ready = candidates
            .iter()
            .filter(|(log, ..)| !self.is_left_alone(log));
        let (log, cleanable) = dirtiest(ready.map(|(log, what, rules)| (log, *what, *rules)))?;
        let report = self.clean(log, cleanable).await?;
        Some((log.clone(), report))
    }

    /// Tells a pass over `log` to give up and waits until it has.
    pub async fn leave(&self, log: &Log) {
        self.tell_to_leave(Some(log.key()));
        while self.works_on(log.key()) {
            self.left.wait().await;
        }
    }

    /// Leaves `log` alone while it is copied to another directory; returns when no pass over it
    /// runs any more.
    pub async fn pause_for_move(&self, log: &Log) {
        self.moving.borrow_mut().insert(log.key());
        self.leave(log).await;
    }

    /// The copying is over.
    pub fn resume_after_move(&self, log: &Log) {
        self.moving.borrow_mut().remove(&log.key());
    }

    /// Ends the cleaner for good; returns when no pass runs any more.
    pub async fn stop(&self) {
        self.stopped.set(true);
        self.tell_to_leave(None);
        while self.running.borrow().is_some() {
            self.left.wait().await;
        }
    }

    /// Whether this log failed to clean.
    pub fn is_uncleanable(&self, log: &Log) -> bool {
        self.uncleanable.borrow().contains(&log.key())
    }

    async fn candidates(
        &self,
        logs: &[Rc<Log>],
        high_watermark: &dyn Fn(&Log) -> Offset,
        now_ms: i64,
    ) -> Vec<(Rc<Log>, Cleanable, ChoiceRules)> {
        let mut found = Vec::new();
        for log in logs {
            if !log.config().compact || log.segment_count() < 2 || log.check_usable().is_err() {
                continue;
            }
            match log.choice_facts(high_watermark(log)).await {
                Ok(facts) => {
                    let rules = log.choice_rules();
                    found.push((log.clone(), cleanable(&facts, &rules, now_ms), rules));
                }
                Err(error) => self.give_up(log, &error),
            }
            rt::yield_now().await;
        }
        found
    }

    async fn clean(&self, log: &Rc<Log>, cleanable: Cleanable) -> Option<PassReport> {
        if self.stopped.get() || log.check_usable().is_err() {
            return None;
        }
        let watch = Rc::new(PassWatch::default());
        *self.running.borrow_mut() = Some((log.key(), watch.clone()));
        let outcome = Pass::new(log, self.settings.get(), &watch)
            .run(cleanable)
            .await;
        *self.running.borrow_mut() = None;
        self.left.notify_all();
        match outcome {
            Ok(report) => {
                self.change_stats(|stats| stats.count(&report));
                tracing::info!(
                    topic = log.topic(), partition = log.partition(),
                    read = report.bytes_read, written = report.bytes_written,
                    records_read = report.records_read, records_kept = report.records_kept,
                    segments_before = report.segments_before,
                    segments_after = report.segments_after, first_dirty = %report.first_dirty,
                    took_ms = report.took.as_millis() as u64, "log compacted"
                );
                Some(report)
            }
            Err(PassError::Abandoned) => {
                tracing::debug!(
                    topic = log.topic(),
                    partition = log.partition(),
                    "compaction given up"
                );
                None
            }
            Err(PassError::NoSpace(error)) => {
                tracing::warn!(topic = log.topic(), partition = log.partition(), %error, "log not compacted for lack of space");
                let until = rt::wall_ms().saturating_add(NO_SPACE_PAUSE_MS);
                self.paused.borrow_mut().insert(log.key(), until);
                None
            }
            Err(PassError::Log(error)) => {
                self.give_up(log, &error);
                None
            }
        }
    }

    fn give_up(&self, log: &Log, error: &super::super::LogError) {
        if self.uncleanable.borrow_mut().insert(log.key()) {
            tracing::error!(topic = log.topic(), partition = log.partition(), %error, "log cannot be compacted and is left alone from now on");
        }
    }

    fn is_left_alone(&self, log: &Log) -> bool {
        self.moving.borrow().contains(&log.key())
            || self.is_uncleanable(log)
            || self.paused.borrow().contains_key(&log.key())
    }

    fn forget_gone(&self, logs: &[Rc<Log>], now_ms: i64) {
        let there: BTreeSet<LogKey> = logs.iter().map(|log| log.key()).collect();
        self.uncleanable
            .borrow_mut()
            .retain(|key| there.contains(key));
        self.paused
            .borrow_mut()
            .retain(|key, until| there.contains(key) && *until > now_ms);
    }

    fn note_look(
        &self,
        logs: &[Rc<Log>],
        candidates: &[(Rc<Log>, Cleanable, ChoiceRules)],
        now_ms: i64,
    ) {
        let uncleanable = self.uncleanable.borrow();
        let left_alone = logs.iter().filter(|log| uncleanable.contains(&log.key()));
        let bytes = left_alone.map(|log| log.size_bytes()).sum();
        let ratios = candidates.iter().map(|(_, what, _)| what.dirty_ratio());
        let overdue_ms = candidates.iter().map(|(_, what, _)| what.overdue_ms).max();
        self.change_stats(|stats| {
            stats.max_dirty_ratio = ratios.fold(0.0, f64::max);
            stats.max_overdue = Duration::from_millis(overdue_ms.unwrap_or(0).max(0) as u64);
            stats.last_look_ms = now_ms;
            stats.uncleanable_partitions = uncleanable.len();
            stats.uncleanable_bytes = bytes;
        });
    }

    fn change_stats(&self, change: impl FnOnce(&mut CleanerStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    fn works_on(&self, key: LogKey) -> bool {
        self.running
            .borrow()
            .as_ref()
            .is_some_and(|(running, _)| *running == key)
    }

    fn tell_to_leave(&self, key: Option<LogKey>) {
        if let Some((running, watch)) = &*self.running.borrow()
            && key.is_none_or(|key| key == *running)
        {
            watch.tell_to_leave();
        }
    }
}
