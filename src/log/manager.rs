//! Owns which logs a shard has open and what must happen to them from time to time: retention,
//! producer expiry, flushes by time, removal of deleted partitions, failure of a directory. One
//! per shard, on that shard. It never writes a checkpoint file: those belong to a directory that
//! all shards share; each log tells its facts as plain data, and the directory's owner writes them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::rt;
use crate::rt::sync::Event;
use crate::types::Offset;

use super::cleaner::{Cleaner, CleanerSettings};
use super::error::LogError;
use super::log::Log;
use super::open::{LogOpen, RecoveryReport};
use super::shard::LogShard;

/// Logs opened or closed at once: enough to keep a device busy, few enough that their reads do
/// not thrash it.
const OPEN_AT_ONCE: usize = 16;

/// Shortest pause between two looks at `flush.ms`.
const FLUSH_TICK_MIN: Duration = Duration::from_millis(10);

/// Shortest pause between two looks for a log to clean, whatever `log.cleaner.backoff.ms` says.
const CLEANER_PAUSE_MIN: Duration = Duration::from_millis(100);

/// Longest pause: a log whose `flush.ms` was set is found after this.
const FLUSH_TICK_MAX: Duration = Duration::from_secs(1);

/// How often what is done.
#[derive(Clone, Copy, Debug)]
pub struct ManagerSettings {
    /// `log.retention.check.interval.ms`.
    pub retention_check: Duration,
    /// Before the first retention pass (`log.initial.task.delay.ms`).
    pub initial_delay: Duration,
    /// `producer.id.expiration.check.interval.ms`.
    pub producer_expiration_check: Duration,
    pub cleaner: CleanerSettings,
}

impl Default for ManagerSettings {
    fn default() -> ManagerSettings {
        ManagerSettings {
            retention_check: Duration::from_secs(300),
            initial_delay: Duration::from_secs(30),
            producer_expiration_check: Duration::from_secs(600),
            cleaner: CleanerSettings::default(),
        }
    }
}

/// Does `work` for each of `items`, as many at once as [`OPEN_AT_ONCE`]; the outcomes in their
/// order. Few tasks that take turns: ten thousand that wait would take 50 MiB.
async fn side_by_side<T, R, F>(items: Vec<T>, work: impl Fn(T) -> F + Clone + 'static) -> Vec<R>
where
    T: 'static,
    R: 'static,
    F: Future<Output = R> + 'static,
{
    let count = items.len();
    let left = Rc::new(RefCell::new(items.into_iter().enumerate()));
    let tasks: Vec<_> = (0..count.min(OPEN_AT_ONCE))
        .map(|_| {
            let (left, work) = (left.clone(), work.clone());
            rt::spawn(async move {
                let mut done = Vec::new();
                loop {
                    let next = left.borrow_mut().next();
                    let Some((at, item)) = next else {
                        return done;
                    };
                    done.push((at, work(item).await));
                }
            })
        })
        .collect();
    let mut done = Vec::with_capacity(count);
    for task in tasks {
        done.append(&mut task.await);
    }
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

type Key = (String, i32);

/// Answers a log's high watermark, which only replication knows.
pub type HighWatermarkOf = Rc<dyn Fn(&Log) -> Offset>;

/// The logs of one shard.
pub struct LogManager {
    shard: Rc<LogShard>,
    settings: ManagerSettings,
    logs: RefCell<BTreeMap<Key, Rc<Log>>>,
    /// Copies of logs that are to take their place in another directory; at most one of each.
    futures: RefCell<BTreeMap<Key, Rc<Log>>>,
    /// Log directories that failed, each with what took it offline.
    offline_dirs: RefCell<BTreeMap<PathBuf, LogError>>,
    tell: Box<dyn Fn(&Path, &LogError)>,
    cleaner: Cleaner,
    stopped: Event,
    stopping: std::cell::Cell<bool>,
}

impl LogManager {
    /// Directory failures reported by any log take all logs of that directory offline; `tell` is
    /// told once per directory.
    pub fn new(
        shard: Rc<LogShard>,
        settings: ManagerSettings,
        tell: impl Fn(&Path, &LogError) + 'static,
    ) -> Rc<LogManager> {
        let manager = Rc::new(LogManager {
            shard: shard.clone(),
            settings,
            logs: RefCell::default(),
            futures: RefCell::default(),
            offline_dirs: RefCell::default(),
            tell: Box::new(tell),
            cleaner: Cleaner::new(settings.cleaner),
            stopped: Event::new(),
            stopping: std::cell::Cell::new(false),
        });
        let weak = Rc::downgrade(&manager);
        shard.on_failure(move |log_dir, error| {
            if let Some(manager) = weak.upgrade() {
                manager.fail_directory(log_dir, error);
            }
        });
        manager
    }

    pub fn shard(&self) -> &Rc<LogShard> {
        &self.shard
    }

    /// Who compacts the logs of this shard.
    pub fn cleaner(&self) -> &Cleaner {
        &self.cleaner
    }

    /// Opens (or creates) a partition's log, or returns the one that is open.
    pub async fn open(&self, open: LogOpen) -> Result<(Rc<Log>, RecoveryReport), LogError> {
        let key = (open.topic.clone(), open.partition);
        if let Some(log) = self.get(&key.0, key.1) {
            return Ok((log, RecoveryReport::default()));
        }
        let log_dir = open.log_dir.clone();
        if let Some(cause) = self.failure_of(&log_dir) {
            return Err(cause);
        }
        let (log, report) = Log::open(&self.shard, open).await?;
        self.logs.borrow_mut().insert(key, log.clone());
        // The directory may have failed while this was under way.
        if let Some(cause) = self.failure_of(&log_dir) {
            log.take_offline(&cause);
        }
        Ok((log, report))
    }

    /// Opens, or creates, the copy of a partition's log that is to take its place, in the
    /// directory `name`.
    pub async fn open_future(
        &self,
        open: LogOpen,
        name: &str,
    ) -> Result<(Rc<Log>, RecoveryReport), LogError> {
        let key = (open.topic.clone(), open.partition);
        let log_dir = open.log_dir.clone();
        if let Some(cause) = self.failure_of(&log_dir) {
            return Err(cause);
        }
        let (log, report) = Log::open_future(&self.shard, open, name).await?;
        self.futures.borrow_mut().insert(key, log.clone());
        if let Some(cause) = self.failure_of(&log_dir) {
            log.take_offline(&cause);
        }
        Ok((log, report))
    }

    /// The copy of a partition's log that is to take its place, if there is one.
    pub fn future(&self, topic: &str, partition: i32) -> Option<Rc<Log>> {
        let key = (topic.to_owned(), partition);
        self.futures.borrow().get(&key).cloned()
    }

    /// Deletes the copy of a partition's log, or, after it has taken the log's place, what it has
    /// the files of now.
    pub async fn delete_future(&self, topic: &str, partition: i32) -> Result<(), LogError> {
        let Some(log) = self.future(topic, partition) else {
            return Ok(());
        };
        let outcome = doom(&log).await;
        self.futures
            .borrow_mut()
            .remove(&(topic.to_owned(), partition));
        outcome
    }

    /// Opens many logs side by side, as at start-up; in the order asked.
    pub async fn open_all(
        self: &Rc<Self>,
        opens: Vec<LogOpen>,
    ) -> Vec<Result<(Rc<Log>, RecoveryReport), LogError>> {
        let manager = self.clone();
        let open = move |open| {
            let manager = manager.clone();
            async move { manager.open(open).await }
        };
        side_by_side(opens, open).await
    }

    pub fn get(&self, topic: &str, partition: i32) -> Option<Rc<Log>> {
        self.logs
            .borrow()
            .get(&(topic.to_owned(), partition))
            .cloned()
    }

    /// All logs, by name.
    pub fn logs(&self) -> Vec<Rc<Log>> {
        self.logs.borrow().values().cloned().collect()
    }

    /// Takes a partition's log out of service and removes its files after
    /// `file.delete.delay.ms`. The name is free for a new log when this returns.
    ///
    /// A log that is offline is only forgotten: its directory is not touched any more, and is set
    /// aside by the start that finds it.
    pub async fn delete(&self, topic: &str, partition: i32) -> Result<(), LogError> {
        let Some(log) = self
            .logs
            .borrow_mut()
            .remove(&(topic.to_owned(), partition))
        else {
            return Ok(());
        };
        self.cleaner.leave(&log).await;
        doom(&log).await
    }

    /// Starts the periodic work of this shard; it ends with [`LogManager::stop`].
    pub fn start(self: &Rc<Self>, high_watermark: HighWatermarkOf) {
        let settings = self.settings;
        let (manager, marks) = (self.clone(), high_watermark.clone());
        drop(rt::spawn(async move { manager.keep_clean(marks).await }));
        let manager = self.clone();
        drop(rt::spawn(async move {
            let mut pause = settings.initial_delay.min(settings.retention_check);
            while manager.pause(pause).await {
                pause = settings.retention_check;
                manager
                    .apply_retention(rt::wall_ms(), &high_watermark)
                    .await;
            }
        }));
        let manager = self.clone();
        drop(rt::spawn(async move {
            while manager.pause(settings.producer_expiration_check).await {
                for log in manager.logs() {
                    log.expire_producers(rt::wall_ms());
                }
            }
        }));
        let manager = self.clone();
        drop(rt::spawn(async move {
            while manager.pause(manager.flush_tick()).await {
                for log in manager.logs() {
                    log.flush_if_due(rt::wall_ms());
                }
            }
        }));
    }

    /// Compacts log after log, the dirtiest first; rests when none is worth it.
    async fn keep_clean(&self, high_watermark: HighWatermarkOf) {
        // Never without a pause, or the looking alone would keep the shard busy.
        let backoff = || self.cleaner.settings().backoff.max(CLEANER_PAUSE_MIN);
        let mut pause = backoff();
        while self.pause(pause).await {
            let logs = self.logs();
            let cleaned = self.cleaner.clean_dirtiest(&logs, &*high_watermark).await;
            pause = cleaned.map_or_else(backoff, |_| Duration::ZERO);
        }
    }

    /// One retention pass over all logs, a breath between them.
    pub async fn apply_retention(&self, now_ms: i64, high_watermark: &HighWatermarkOf) {
        for log in self.logs() {
            log.apply_retention(now_ms, high_watermark(&log));
            rt::yield_now().await;
        }
    }

    /// Ends the periodic work.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.stopped.notify_all();
    }

    /// Closes every log. Answers the directories of which all logs closed cleanly: only these may
    /// be marked clean.
    pub async fn close_all(&self) -> BTreeMap<PathBuf, Result<(), LogError>> {
        self.stop();
        self.cleaner.stop().await;
        let logs = std::mem::take(&mut *self.logs.borrow_mut());
        let futures = std::mem::take(&mut *self.futures.borrow_mut());
        let close = |log: Rc<Log>| async move {
            let log_dir = log.dir().parent().map(Path::to_owned).unwrap_or_default();
            (log_dir, log.close().await)
        };
        let logs = logs.into_values().chain(futures.into_values()).collect();
        let mut closed: BTreeMap<PathBuf, Result<(), LogError>> = BTreeMap::new();
        for (log_dir, outcome) in side_by_side(logs, close).await {
            let all = closed.entry(log_dir).or_insert(Ok(()));
            if all.is_ok() {
                *all = outcome;
            }
        }
        self.end_journals(&mut closed).await;
        closed
    }

    /// Removes the journals of directories whose logs all closed: nothing may be left for a start
    /// to take back.
    async fn end_journals(&self, closed: &mut BTreeMap<PathBuf, Result<(), LogError>>) {
        for log_dir in self.shard.flusher.dirs() {
            let outcome = closed.entry(log_dir.clone()).or_insert(Ok(()));
            if outcome.is_ok()
                && let Err(error) = self.shard.flusher.end(&log_dir).await
            {
                *outcome = Err(LogError::storage("remove the journal", log_dir, error));
            }
        }
    }

    /// A log directory failed under this shard: all its logs go offline, and who registered is
    /// told, once.
    pub fn fail_directory(&self, log_dir: &Path, cause: &LogError) {
        if self.take_directory_offline(log_dir, cause) {
            (self.tell)(log_dir, cause);
        }
    }

    /// What took a log directory offline, if it is.
    pub fn failure_of(&self, log_dir: &Path) -> Option<LogError> {
        self.offline_dirs.borrow().get(log_dir).cloned()
    }

    /// The log directories that are offline.
    pub fn offline_dirs(&self) -> BTreeMap<PathBuf, LogError> {
        self.offline_dirs.borrow().clone()
    }

    /// Takes every log of a directory offline; false if that was done before. Whoever is told of
    /// failures is not told of this one: it comes from there.
    pub fn take_directory_offline(&self, log_dir: &Path, cause: &LogError) -> bool {
        {
            let mut offline = self.offline_dirs.borrow_mut();
            if offline.contains_key(log_dir) {
                return false;
            }
            offline.insert(log_dir.to_owned(), cause.clone());
        }
        let futures: Vec<Rc<Log>> = self.futures.borrow().values().cloned().collect();
        for log in self.logs().into_iter().chain(futures) {
            if log.dir().parent() == Some(log_dir) {
                log.take_offline(cause);
            }
        }
        true
    }

    fn flush_tick(&self) -> Duration {
        let logs = self.logs.borrow();
        let shortest = logs
            .values()
            .map(|log| log.config().flush_ms)
            .min()
            .unwrap_or(i64::MAX);
        let half = Duration::from_millis(shortest.max(0) as u64 / 2);
        half.clamp(FLUSH_TICK_MIN, FLUSH_TICK_MAX)
    }

    /// Sleeps; false when the manager was stopped.
    async fn pause(&self, pause: Duration) -> bool {
        if !self.stopping.get() {
            rt::select2(rt::sleep(pause), self.stopped.wait()).await;
        }
        !self.stopping.get()
    }
}

/// Gives a log's directory its doomed name and removes it after `file.delete.delay.ms`. One that
/// is offline is not touched.
async fn doom(log: &Rc<Log>) -> Result<(), LogError> {
    if log.is_offline() {
        return Ok(());
    }
    log.mark_deleted().await?;
    let log = log.clone();
    let delay = Duration::from_millis(log.config().file_delete_delay_ms.max(0) as u64);
    drop(rt::spawn(async move {
        rt::sleep(delay).await;
        if let Err(error) = log.delete_files(delay).await {
            // The next start removes it.
            tracing::warn!(dir = %log.dir().display(), %error, "deleted partition not removed");
        }
    }));
    Ok(())
}
