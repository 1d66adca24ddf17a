//! Owns the journal of one log directory on one shard: whether there is a file, the changes that
//! wait for the next frame, and flushing the segments behind so that frames can be given up. Writes
//! of frames come one at a time from the shard's flush rounds.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use crate::rt;
use crate::rt::Instant;
use crate::rt::sync::{Event, Semaphore};
use crate::types::Offset;

use super::super::cache::LogKey;
use super::super::error::{LogError, StorageFailure};
use super::super::log::Log;
use super::super::write_queue::is_no_space;
use super::ShardJournals;
use super::file::{Head, JournalFile};
use super::frame::{Change, ENTRY_BYTES, Entry, FRAME_BYTES_MAX, HEADER_BYTES};
use super::left::Journals;
use super::part::JournalPart;

/// Segment files flushed at once behind the journal: few, since acknowledgements share the device
/// with them.
const BEHIND_IN_FLIGHT_MAX: u64 = 8;

/// Changes told in one frame; the rest waits for the next.
const CHANGES_MAX: usize = 1024;

/// What is left of a frame for batches when every change of it is taken.
const CHANGES_BYTES_MAX: u64 = (CHANGES_MAX * ENTRY_BYTES) as u64;

/// A file system that would not give the space is asked again when this many times as much is free.
const ROOM_TIMES: u64 = 4;

/// Pause before a file system that would not give the space is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// A log's tail was cut or its start moved.
struct Told {
    log: Rc<Log>,
    entry: Entry,
}

/// Frames to be given up: up to where, and what they tell.
struct Behind {
    head: Head,
    logs: Vec<(LogKey, Rc<Log>, Offset)>,
}

enum State {
    Absent,
    Making,
    Ready(Rc<JournalFile>),
    /// The file system would not give the space; when it was asked. `None` if it was not for lack of
    /// space: not asked again.
    Refused(Option<Instant>),
    /// The directory is closed.
    Ended,
    Failed(StorageFailure),
}

/// The journal of one directory.
pub(in crate::log) struct DirJournal {
    log_dir: PathBuf,
    /// What an earlier life left in the directory.
    left: Option<Arc<Journals>>,
    bytes: u64,
    state: RefCell<State>,
    changes: RefCell<VecDeque<Told>>,
    /// Changes handed over, and how many of them are durable.
    handed: Cell<u64>,
    durable: Cell<u64>,
    moved: Event,
    /// Logs with something in a frame that their segments may lack, and up to where. A log that is
    /// gone was closed or deleted: it lacks nothing.
    unflushed: RefCell<BTreeMap<LogKey, (Weak<Log>, Offset)>>,
    flushing: Cell<bool>,
    /// A file is on its way.
    making: Cell<bool>,
}

impl DirJournal {
    pub fn new(shard: &ShardJournals, log_dir: &Path) -> Rc<DirJournal> {
        Rc::new(DirJournal {
            log_dir: log_dir.to_owned(),
            left: shard.left_in(log_dir),
            bytes: shard.bytes,
            state: RefCell::new(State::Absent),
            changes: RefCell::default(),
            handed: Cell::new(0),
            durable: Cell::new(0),
            moved: Event::new(),
            unflushed: RefCell::default(),
            flushing: Cell::new(false),
            making: Cell::new(false),
        })
    }

    fn file(&self) -> Option<Rc<JournalFile>> {
        match &*self.state.borrow() {
            State::Ready(file) => Some(file.clone()),
            _ => None,
        }
    }

    pub fn has_changes(&self) -> bool {
        !self.changes.borrow().is_empty()
    }

    /// Whether there may ever be a file.
    pub fn is_on(&self) -> bool {
        self.bytes > 0
    }

    /// Whether frames can be written. Starts making the file where there is none: rounds until
    /// then flush segments.
    pub fn is_ready(self: &Rc<Self>) -> bool {
        if self.is_on() && self.should_make() {
            let before = std::mem::replace(&mut *self.state.borrow_mut(), State::Making);
            let was_refused = matches!(before, State::Refused(_));
            let journal = self.clone();
            self.making.set(true);
            drop(rt::spawn(async move {
                journal.make(was_refused).await;
                journal.making.set(false);
                journal.moved.notify_all();
            }));
        }
        matches!(*self.state.borrow(), State::Ready(_))
    }

    fn should_make(&self) -> bool {
        let may_be_made = match &*self.state.borrow() {
            State::Absent => true,
            State::Refused(Some(when)) => rt::now().since(*when) >= ASK_AGAIN,
            State::Refused(None) => false,
            State::Making | State::Ready(_) | State::Failed(_) | State::Ended => false,
        };
        // Never beside old ones: a log that takes back from them would be told of in part, and one
        // that waits for room goes first.
        let left = self.left.as_ref();
        may_be_made && left.is_none_or(|left| left.are_gone() && left.begin_making())
    }

    async fn make(&self, was_refused: bool) {
        let left = self.left.as_ref();
        let was_full = was_refused || left.is_some_and(|left| left.was_any_late());
        let turn = left.map_or(0, |left| left.turn()) + 1;
        let made = match rt::fs::space(&self.log_dir).await {
            // Not the last that the logs have.
            Ok(space) if was_full && space.free / ROOM_TIMES < self.bytes => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => JournalFile::create(&self.log_dir, turn, self.bytes).await,
        };
        left.inspect(|left| left.end_making());
        let dir = self.log_dir.display();
        if !matches!(*self.state.borrow(), State::Making) {
            // The directory was closed meanwhile. What cannot be removed tells nothing, and the next
            // start removes it.
            if let Ok(file) = made {
                let _ = file.remove().await;
            }
            return;
        }
        *self.state.borrow_mut() = match made {
            Ok(file) => {
                tracing::info!(%dir, bytes = file.size(), "journal made");
                State::Ready(Rc::new(file))
            }
            Err(error) => {
                // Nothing was acknowledged by it. If the disk is broken the logs will say so.
                if !was_refused || !is_no_space(&error) {
                    tracing::warn!(%dir, %error, "no journal: every flush goes to the segments");
                }
                State::Refused(is_no_space(&error).then(rt::now))
            }
        };
    }

    /// How many of these parts the next frame can take, from the first on.
    pub fn room_for(&self, parts: &[JournalPart]) -> usize {
        let Some(file) = self.file() else { return 0 };
        let mut bytes = HEADER_BYTES as u64 + CHANGES_BYTES_MAX;
        let mut taken = 0;
        for part in parts {
            bytes += ENTRY_BYTES as u64 + part.unflushed.size;
            if bytes > FRAME_BYTES_MAX || !file.has_room(bytes) {
                break;
            }
            taken += 1;
        }
        taken
    }

    /// Hands over a change of a log for the next frame; what to give [`DirJournal::told`].
    /// `None` if no frame of this journal can have told anything of the log.
    ///
    /// # Errors
    /// The journal failed: what it told cannot be taken back.
    pub fn hand_over(
        &self,
        log: Rc<Log>,
        offset: Offset,
        change: Change,
    ) -> Result<Option<u64>, StorageFailure> {
        match &*self.state.borrow() {
            State::Ready(_) => {}
            State::Failed(failure) => return Err(failure.clone()),
            State::Absent | State::Making | State::Refused(_) | State::Ended => return Ok(None),
        }
        let entry = Entry {
            partition: log.id(),
            offset,
            change,
        };
        self.changes.borrow_mut().push_back(Told { log, entry });
        self.handed.set(self.handed.get() + 1);
        Ok(Some(self.handed.get()))
    }

    /// Waits until the change is durable.
    ///
    /// # Errors
    /// The journal failed.
    pub async fn told(&self, change: u64) -> Result<(), LogError> {
        loop {
            if let State::Failed(failure) = &*self.state.borrow() {
                return Err(LogError::Offline(failure.clone()));
            }
            if self.durable.get() >= change {
                return Ok(());
            }
            if matches!(*self.state.borrow(), State::Ended) {
                return Err(LogError::Closed);
            }
            self.moved.wait().await;
        }
    }

    /// Writes one frame with the changes that wait and with `parts`, and tells their logs; the
    /// frame's bytes. A failure takes the logs, and with them the directory, offline.
    pub async fn write(self: &Rc<Self>, parts: Vec<JournalPart>) -> u64 {
        let Some(file) = self.file() else {
            self.changes.borrow_mut().clear();
            return 0;
        };
        let changes: Vec<Told> = {
            let mut changes = self.changes.borrow_mut();
            let count = changes.len().min(CHANGES_MAX);
            changes.drain(..count).collect()
        };
        let mut entries: Vec<Entry> = Vec::with_capacity(changes.len() + parts.len());
        entries.extend(changes.iter().map(|told| told.entry.clone()));
        entries.extend(parts.iter().map(|part| Entry {
            partition: part.log.id(),
            offset: part.unflushed.from,
            change: Change::Batches(part.unflushed.parts.clone()),
        }));
        if parts.is_empty() {
            // A change alone may find the journal full: what is in it must go to the segments.
            while !file.has_room(super::frame::frame_size(&entries)) {
                let flushed = self.flush_behind(&file, self.behind(&file)).await;
                if !matches!(*self.state.borrow(), State::Ready(_)) {
                    return 0;
                }
                if let Err(error) = flushed {
                    // The frames will never be given up, so the change can never be told.
                    self.fail(error.into_failure(&self.log_dir), &changes, &parts);
                    return 0;
                }
            }
        }
        let written = match file.write(&entries).await {
            Ok(written) => written,
            Err(error) => {
                let failure = StorageFailure {
                    what: "journal write",
                    path: self.log_dir.clone(),
                    source: Arc::new(error),
                };
                self.fail(failure, &changes, &parts);
                return 0;
            }
        };
        self.durable.set(self.durable.get() + changes.len() as u64);
        self.moved.notify_all();
        for part in parts {
            let upto = part.unflushed.upto;
            self.unflushed
                .borrow_mut()
                .insert(part.log.key(), (Rc::downgrade(&part.log), upto));
            part.log.journaled(part.generation, upto);
        }
        if file.live_bytes() > file.size() / 2 && !self.flushing.replace(true) {
            let (journal, behind) = (self.clone(), self.behind(&file));
            drop(rt::spawn(async move {
                // The log that failed has told its directory.
                let _ = journal.flush_behind(&file, behind).await;
                journal.flushing.set(false);
            }));
        }
        written
    }

    fn fail(&self, failure: StorageFailure, changes: &[Told], parts: &[JournalPart]) {
        *self.state.borrow_mut() = State::Failed(failure.clone());
        self.changes.borrow_mut().clear();
        let told = std::mem::take(&mut *self.unflushed.borrow_mut());
        let logs = changes.iter().map(|told| &told.log);
        let logs = logs.chain(parts.iter().map(|part| &part.log));
        for log in logs {
            log.fail_with(failure.clone());
        }
        for (log, _) in told.into_values() {
            if let Some(log) = log.upgrade() {
                log.fail_with(failure.clone());
            }
        }
        self.moved.notify_all();
    }

    /// What the frames up to now tell. Taken in one step with the last of them: of a frame that is
    /// on its way the logs are not known yet, and it must not be given up with these.
    fn behind(&self, file: &JournalFile) -> Behind {
        let mut unflushed = self.unflushed.borrow_mut();
        unflushed.retain(|_, (log, _)| log.strong_count() > 0);
        let logs = unflushed.iter();
        let logs = logs.filter_map(|(key, (log, upto))| Some((*key, log.upgrade()?, *upto)));
        Behind {
            head: file.head(),
            logs: logs.collect(),
        }
    }

    /// Flushes the segments of the logs that frames told something of, then gives these frames up.
    ///
    /// # Errors
    /// Why a log cannot be flushed. It is offline, its directory with it, and keeps its frames.
    async fn flush_behind(&self, file: &JournalFile, behind: Behind) -> Result<(), LogError> {
        let gate = Rc::new(Semaphore::new(BEHIND_IN_FLIGHT_MAX));
        let mut tasks = Vec::with_capacity(behind.logs.len());
        for (key, log, upto) in behind.logs {
            let gate = gate.clone();
            let task = rt::spawn(async move { log.flush_segments_to(upto, &gate).await });
            tasks.push((key, upto, task));
        }
        let mut outcome = Ok(());
        for (key, upto, task) in tasks {
            match task.await {
                Ok(()) => {
                    let mut unflushed = self.unflushed.borrow_mut();
                    if unflushed.get(&key).is_some_and(|(_, last)| *last == upto) {
                        unflushed.remove(&key);
                    }
                }
                Err(error) => outcome = Err(error),
            }
        }
        if outcome.is_ok() {
            file.release(behind.head);
        }
        outcome
    }

    /// Ends the journal of a directory whose logs are closed.
    pub async fn end(&self) -> io::Result<()> {
        let state = std::mem::replace(&mut *self.state.borrow_mut(), State::Ended);
        self.unflushed.borrow_mut().clear();
        self.changes.borrow_mut().clear();
        self.moved.notify_all();
        // It is removed by who makes it: before the process may end.
        while self.making.get() {
            self.moved.wait().await;
        }
        match state {
            State::Ready(file) => file.remove().await,
            State::Failed(failure) => Err(io::Error::new(failure.source.kind(), failure)),
            State::Absent | State::Making | State::Refused(_) | State::Ended => Ok(()),
        }
    }
}
