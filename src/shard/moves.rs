//! Moves replicas of this shard from one log directory to another while they lead or follow
//! (KIP-113). One task for each move, on the shard; pieces are copied one at a time over all moves.
//! What a copy does next is decided by [`crate::replica::relocation`]; how it takes the log's
//! place, by the log room.

use super::Shard;
use super::apply::DirFacts;
use super::control::Control;
use super::mesh::LocalFuture;
use crate::log::names;
use crate::log::{FollowError, HeldWrites, Log, LogError, LogOpen, PlaceError};
use crate::replica::partition::Partition;
use crate::replica::relocation::{Lacks, Move, Relocation};
use crate::rt;
use crate::rt::sync::{Event, Notify, Semaphore};
use crate::types::{LeaderEpoch, Offset, PartitionId, Uuid};
use crate::wire::ErrorCode;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Copied at once: as much as a follower fetches of a partition.
const PIECE_BYTES: u64 = 1 << 20;
/// How long a move waits before its throttle is looked at again.
const THROTTLE_PAUSE: Duration = Duration::from_millis(200);
/// Pause before the controller is told again of a directory.
const TELL_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a copy that was not whole yet tries again to take the log's place.
const SWAP_PAUSE: Duration = Duration::from_millis(20);
/// How long a copy may take to have done what a roll leaves to be done, at the end while the log's
/// writes wait. A log that rolls all the time would otherwise never find its copy done with it.
const SETTLE_MAX: Duration = Duration::from_secs(1);
const SETTLE_PAUSE: Duration = Duration::from_millis(2);
/// How often a copy gives up segments that the log has given up.
const RETENTION_PAUSE: Duration = Duration::from_secs(10);
/// Replicas for which a directory may be asked before they are here. A tool that moves replicas to
/// this broker asks for each of them once.
const PREFERRED_MAX: usize = 10_000;
/// Longest directory name a file system takes.
const NAME_BYTES_MAX: usize = 255;

/// The moves of a shard.
pub(super) struct Moves {
    under_way: RefCell<BTreeMap<PartitionId, Rc<Moving>>>,
    /// Where replicas are to be made that are not here yet.
    preferred: RefCell<BTreeMap<PartitionId, PathBuf>>,
    /// One request at a time.
    asked: Semaphore,
    /// One piece in memory.
    copying: Semaphore,
}

impl Default for Moves {
    fn default() -> Moves {
        Moves {
            under_way: RefCell::default(),
            preferred: RefCell::default(),
            asked: Semaphore::new(1),
            copying: Semaphore::new(1),
        }
    }
}

/// One replica on its way.
struct Moving {
    partition: Rc<Partition>,
    copy: Rc<Log>,
    to: PathBuf,
    to_id: Uuid,
    cancelled: Cell<bool>,
    wake: Notify,
    over: Cell<bool>,
    ended: Event,
}

/// Why a move ends before the copy has taken the log's place.
enum Stop {
    /// Nobody wants it any more: the copy goes.
    Cancelled,
    /// The process ends: the next start goes on.
    Draining,
    /// The directory of the log, or of the copy, has failed.
    Failed,
}

impl Moving {
    fn log(&self) -> &Rc<Log> {
        &self.partition.log
    }

    fn cancel(&self) {
        self.cancelled.set(true);
        self.wake.notify_one();
    }

    async fn ended(&self) {
        while !self.over.get() {
            self.ended.wait().await;
        }
    }
}

fn dir_of(log: &Log) -> PathBuf {
    log.dir().parent().map(Path::to_owned).unwrap_or_default()
}

impl Shard {
    /// Has a replica lie in `dir` from some time on: begins a move, ends one that goes elsewhere,
    /// or notes where a replica is to be made that is not here yet.
    ///
    /// # Errors
    /// As Kafka's, among them REPLICA_NOT_AVAILABLE for a replica that is not here yet.
    pub async fn alter_log_dir(
        self: &Rc<Self>,
        id: PartitionId,
        dir: PathBuf,
    ) -> Result<(), ErrorCode> {
        let _asked = self.moves.asked.acquire(1).await;
        if self.logs.failure_of(&dir).is_some() {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let Some(partition) = self.partition(id) else {
            if self.missing(id) != ErrorCode::NOT_LEADER_OR_FOLLOWER {
                return Err(self.missing(id));
            }
            let mut preferred = self.moves.preferred.borrow_mut();
            if preferred.len() < PREFERRED_MAX || preferred.contains_key(&id) {
                preferred.insert(id, dir);
            }
            return Err(ErrorCode::REPLICA_NOT_AVAILABLE);
        };
        if partition.log.is_offline() {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let moving = self.moves.under_way.borrow().get(&id).cloned();
        if let Some(moving) = moving {
            if moving.to == dir {
                return Ok(());
            }
            moving.cancel();
            moving.ended().await;
        }
        if dir_of(&partition.log) == dir {
            return Ok(());
        }
        // As in Kafka: or a copy might be made twice, once in the directory that is offline now.
        if !self.logs.offline_dirs().is_empty() {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let facts = self.dirs.online.iter().find(|facts| facts.path == dir);
        let facts = facts.ok_or(ErrorCode::KAFKA_STORAGE_ERROR)?;
        let unique = crate::log::dir::random_id();
        let name = names::future_dir(&partition.topic, id.index, unique);
        if names::partition_dir(&partition.topic, id.index).len() + 40 > NAME_BYTES_MAX {
            return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
        }
        self.begin_move(&partition, facts, &name, true)
            .await
            .map_err(|_| ErrorCode::KAFKA_STORAGE_ERROR)
    }

    /// Where a replica is to be made, if somebody has asked for a directory.
    pub(super) fn preferred_dir(&self, id: PartitionId) -> Option<PathBuf> {
        self.moves.preferred.borrow().get(&id).cloned()
    }

    pub(super) fn forget_preferred(&self, id: PartitionId) {
        self.moves.preferred.borrow_mut().remove(&id);
    }

    /// Goes on with what a start found of a move.
    pub(super) async fn resume_move(self: &Rc<Self>, partition: &Rc<Partition>) {
        let key = (partition.topic.to_string(), partition.id.index);
        let of_topic = partition.id.topic;
        let found = self.dirs.online.iter().find_map(|facts| {
            let (topic, name) = facts.futures.get(&key)?;
            (*topic == of_topic).then_some((facts, name))
        });
        let Some((facts, name)) = found else { return };
        if facts.path == dir_of(&partition.log) || self.moves.is_moving(partition.id) {
            return;
        }
        // Its directory is offline by now if that failed; the log serves where it is.
        if let Err(error) = self.begin_move(partition, facts, name, false).await {
            tracing::error!(topic = %key.0, partition = key.1, %error, "move not resumed");
        }
    }

    async fn begin_move(
        self: &Rc<Self>,
        partition: &Rc<Partition>,
        to: &DirFacts,
        name: &str,
        is_new: bool,
    ) -> Result<(), LogError> {
        let log = &partition.log;
        let key = (partition.topic.to_string(), partition.id.index);
        let checkpointed = |map: &crate::log::checkpoint::OffsetMap| map.get(&key).copied();
        let recovery_point = checkpointed(&to.checkpoints.recovery_point);
        let log_start = checkpointed(&to.checkpoints.log_start);
        let open = LogOpen {
            log_dir: to.path.clone(),
            topic: key.0.clone(),
            partition: key.1,
            topic_id: partition.id.topic,
            config: (*log.config()).clone(),
            clean_shutdown: to.clean || is_new,
            recovery_point: recovery_point.filter(|_| !is_new).unwrap_or(Offset::ZERO),
            // A copy has no holes of its own.
            first_dirty: None,
            log_start: log_start.filter(|_| !is_new),
            now_ms: rt::wall_ms(),
            producer_limits: log.producer_limits(),
        };
        let opened = self.logs.open_future(open, name).await;
        let (copy, _) = opened.inspect_err(|error| {
            if !error.is_no_space() {
                self.logs.fail_directory(&to.path, error);
            }
        })?;
        tracing::info!(
            topic = %key.0, partition = key.1, from = %dir_of(log).display(),
            to = %to.path.display(), at = copy.log_end().0, "replica moves to another log directory"
        );
        let moving = Rc::new(Moving {
            partition: partition.clone(),
            copy,
            to: to.path.clone(),
            to_id: to.id,
            cancelled: Cell::new(false),
            wake: Notify::new(),
            over: Cell::new(false),
            ended: Event::new(),
        });
        self.moves
            .under_way
            .borrow_mut()
            .insert(partition.id, moving.clone());
        let shard = self.clone();
        rt::spawn(async move { shard.run_move(moving).await });
        Ok(())
    }

    /// Ends the move of a partition that is deleted.
    pub(super) async fn end_move(&self, id: PartitionId) {
        self.forget_preferred(id);
        let moving = self.moves.under_way.borrow().get(&id).cloned();
        if let Some(moving) = moving {
            moving.cancel();
            moving.ended().await;
        }
    }

    /// The copy that a partition is moved by.
    pub fn future_of(&self, partition: &Partition) -> Option<Rc<Log>> {
        let moves = self.moves.under_way.borrow();
        let moving = moves.get(&partition.id)?;
        (!moving.over.get() && moving.copy.dir() != partition.log.dir())
            .then(|| moving.copy.clone())
            .filter(|copy| dir_of(copy) == moving.to)
    }

    async fn run_move(self: Rc<Self>, moving: Rc<Moving>) {
        let (topic, index) = (moving.partition.topic.clone(), moving.partition.id.index);
        self.logs.cleaner().pause_for_move(moving.log()).await;
        let mut state = Relocation::default();
        let begun = rt::now();
        let outcome = self.move_log(&moving, &mut state).await;
        let from = dir_of(moving.log());
        match &outcome {
            Ok(()) => {
                tracing::info!(
                    topic = %topic, partition = index, to = %moving.to.display(),
                    took_ms = rt::now().since(begun).as_millis() as u64, "replica has moved"
                );
            }
            Err(Stop::Cancelled) => {
                tracing::info!(topic = %topic, partition = index, stays = %from.display(), "move ended before it was done");
            }
            Err(Stop::Failed) => {
                tracing::error!(topic = %topic, partition = index, stays = %from.display(), "move ended by a failure");
            }
            Err(Stop::Draining) => {}
        }
        if state.must_take_back() && outcome.is_err() && !matches!(outcome, Err(Stop::Draining)) {
            self.tell_stays(&moving).await;
        }
        // The copy, or by now what it has replaced. Left where it is for the next start.
        let kept = matches!(outcome, Err(Stop::Draining)) || moving.log().is_offline();
        if !kept && let Err(error) = self.logs.delete_future(&topic, index).await {
            tracing::error!(topic = %topic, partition = index, %error, "directory cannot be doomed");
        }
        self.logs.cleaner().resume_after_move(moving.log());
        self.moves
            .under_way
            .borrow_mut()
            .remove(&moving.partition.id);
        if outcome.is_ok() {
            // What the new directory says of the log must not be less than the old one said.
            self.write_checkpoints().await;
        }
        moving.over.set(true);
        moving.ended.notify_all();
    }

    async fn move_log(
        self: &Rc<Self>,
        moving: &Rc<Moving>,
        state: &mut Relocation,
    ) -> Result<(), Stop> {
        // What an earlier life of the directory knew of the partition is not of this copy.
        self.write_checkpoints().await;
        let (log, copy) = (moving.log(), &moving.copy);
        let mut retention_at = rt::now() + RETENTION_PAUSE;
        loop {
            self.check_move(moving)?;
            if rt::now() >= retention_at {
                copy.apply_retention(i64::MIN, copy.log_start());
                retention_at = rt::now() + RETENTION_PAUSE;
            }
            let next = state.follow(&**log, &**copy);
            let lacks = lacks(log, copy);
            let next = next.unwrap_or_else(|| state.next(copy.log_end(), lacks));
            tracing::debug!(topic = %moving.partition.topic, partition = moving.partition.id.index, ?next, ?lacks, "move");
            match next {
                Move::Flush => {
                    copy.flush().await.map_err(|_| Stop::Failed)?;
                    state.flushed();
                }
                Move::Register => match self.tell_dir(moving, moving.to_id).await {
                    true => state.registered(),
                    false => self.rest(moving, TELL_PAUSE).await,
                },
                Move::Swap => match self.swap(moving, state).await? {
                    true => return Ok(()),
                    false => self.rest(moving, SWAP_PAUSE).await,
                },
                Move::Copy(_) if self.are_moves_held_up() => {
                    self.rest(moving, THROTTLE_PAUSE).await;
                }
                step => {
                    if !self.step(moving, state, step).await? {
                        self.rest(moving, SWAP_PAUSE).await;
                    }
                }
            }
        }
    }

    fn check_move(&self, moving: &Moving) -> Result<(), Stop> {
        if moving.partition.is_gone() || moving.cancelled.get() {
            Err(Stop::Cancelled)
        } else if self.is_draining() {
            Err(Stop::Draining)
        } else if moving.log().is_offline() || moving.copy.is_offline() {
            Err(Stop::Failed)
        } else {
            Ok(())
        }
    }

    async fn rest(&self, moving: &Moving, pause: Duration) {
        let woken = moving.wake.notified();
        rt::select3(rt::sleep(pause), woken, self.drained()).await;
    }

    /// Brings the copy one step nearer to the log; false if it could not be done now.
    async fn step(
        self: &Rc<Self>,
        moving: &Moving,
        state: &mut Relocation,
        step: Move,
    ) -> Result<bool, Stop> {
        let copy = &moving.copy;
        let before = (copy.log_start(), copy.log_end());
        let done = match step {
            Move::Cut(to) => self.cut_copy(copy, to, false).await,
            Move::StartOver(at) => self.cut_copy(copy, at, true).await,
            Move::StartAt(at) => copy.delete_records_to(at.min(copy.log_end())).map(drop),
            Move::Copy(from) => self.copy_piece(moving, state, from).await,
            Move::Flush | Move::Register | Move::Swap => Ok(()),
        };
        match done {
            // The log was cut or begun anew meanwhile: looked at again.
            Ok(()) | Err(LogError::OutOfRange { .. }) => {
                Ok(before != (copy.log_start(), copy.log_end()))
            }
            Err(error) => {
                self.check_move(moving)?;
                if matches!(error, LogError::Closed) || error.is_no_space() {
                    // Its tail is being cut, perhaps for lack of space.
                    self.rest(moving, TELL_PAUSE).await;
                    return Ok(false);
                }
                tracing::error!(topic = %moving.partition.topic, partition = moving.partition.id.index, %error, "move not continued");
                Err(Stop::Failed)
            }
        }
    }

    /// As a follower's log is cut: what the checkpoint says of it is lowered first.
    async fn cut_copy(&self, copy: &Rc<Log>, to: Offset, start_over: bool) -> Result<(), LogError> {
        let at = if start_over { Offset::ZERO } else { to };
        let must_write = copy.lower_checkpoints(at);
        let written = !must_write || self.write_checkpoints_of(copy).await;
        let outcome = match (written, start_over) {
            (false, _) => Ok(()),
            (true, true) => copy.truncate_fully_and_start_at(to).await,
            (true, false) => copy.truncate_to(to).await,
        };
        copy.free_checkpoints(written && must_write);
        outcome
    }

    async fn copy_piece(
        &self,
        moving: &Moving,
        state: &mut Relocation,
        from: Offset,
    ) -> Result<(), LogError> {
        let (log, copy) = (moving.log(), &moving.copy);
        let _piece = self.moves.copying.acquire(1).await;
        let read = log.read(from, log.written(), PIECE_BYTES, true).await;
        let records = match read {
            Ok(outcome) => outcome.records,
            Err(error) => {
                log.give_up_after(&error);
                return Err(error);
            }
        };
        if records.is_empty() {
            return Ok(());
        }
        let size = records.len();
        let records = records.to_bytes();
        let any = LeaderEpoch(i32::MAX);
        let append = || copy.append_as_follower(records.clone(), any, rt::wall_ms());
        let appended = match append() {
            // The log begins within its first batch.
            Err(FollowError::StartOver(first)) => {
                copy.truncate_fully_and_start_at(first).await?;
                append()
            }
            appended => appended,
        };
        match appended {
            Ok(_) => {}
            Err(FollowError::Log(error)) => return Err(error),
            Err(error) => {
                let error = std::io::Error::other(error);
                return Err(LogError::storage("copy", copy.dir().to_path_buf(), error));
            }
        }
        state.copied(size as u64);
        self.count_moved(size);
        while copy.written() < copy.log_end() && !copy.is_offline() {
            copy.progressed().await;
        }
        Ok(())
    }

    /// Lets the copy take the log's place; false if it cannot yet.
    async fn swap(
        self: &Rc<Self>,
        moving: &Rc<Moving>,
        state: &mut Relocation,
    ) -> Result<bool, Stop> {
        let (log, copy) = (moving.log(), &moving.copy);
        copy.flush().await.map_err(|_| Stop::Failed)?;
        state.flushed();
        if !settled(copy).await? || !self.write_checkpoints_of(copy).await {
            return Ok(false);
        }
        // A flush that must first write again what an unclean start found waits for the permit that
        // is held below, and the copy's flush would wait behind it.
        if log.is_unproven() {
            log.flush().await.map_err(|_| Stop::Failed)?;
        }
        // Nobody cuts the log or changes its role meanwhile.
        let _turn = moving.partition.turn.acquire(1).await;
        self.check_move(moving)?;
        let Ok(held) = log.hold_writes().await else {
            return Ok(false);
        };
        loop {
            self.check_move(moving)?;
            match state.follow(&**log, &**copy) {
                None => {}
                Some(step @ Move::StartAt(_)) => drop(self.step(moving, state, step).await?),
                Some(_) => return Ok(false),
            }
            if copy.log_end() >= log.written() {
                break;
            }
            let step = Move::Copy(copy.log_end());
            if !self.step(moving, state, step).await? {
                return Ok(false);
            }
        }
        copy.flush().await.map_err(|_| Stop::Failed)?;
        // What was copied last may have begun a segment.
        if !settled(copy).await? {
            return Ok(false);
        }
        match copy.take_place_of(&held).await {
            Ok(()) => {
                drop(held);
                self.progressed(&moving.partition);
                Ok(true)
            }
            Err(PlaceError::NotReady) => Ok(false),
            Err(PlaceError::Unsure(error)) => {
                tracing::error!(topic = %moving.partition.topic, partition = moving.partition.id.index, %error, "copy could not take the log's place");
                self.stay(moving, held).await;
                Err(Stop::Failed)
            }
        }
    }

    /// Both directories may bear the partition's name now, and a start believes the one that the
    /// controller has down. Nothing is acknowledged before that is the one that goes on.
    async fn stay(&self, moving: &Rc<Moving>, held: HeldWrites) {
        self.tell_stays(moving).await;
        drop(held);
    }

    async fn tell_stays(&self, moving: &Rc<Moving>) {
        let dir = dir_of(moving.log());
        let facts = self.dirs.online.iter().find(|facts| facts.path == dir);
        let Some(id) = facts.map(|facts| facts.id) else {
            return;
        };
        while !self.is_draining() && !moving.partition.is_gone() {
            if self.tell_dir(moving, id).await {
                return;
            }
            rt::select2(rt::sleep(TELL_PAUSE), self.drained()).await;
        }
    }

    async fn tell_dir(&self, moving: &Moving, dir: Uuid) -> bool {
        let id = moving.partition.id;
        let tell = move |control: Rc<Control>| -> LocalFuture<bool> {
            Box::pin(async move { control.assign_once(&[(id, dir)]).await })
        };
        let told = self.mesh().call_control(self.control_place(), tell).await;
        told.unwrap_or(false)
    }
}

/// Waits until everything behind the copy's last roll is done; false if that takes too long.
async fn settled(copy: &Log) -> Result<bool, Stop> {
    let deadline = rt::now() + SETTLE_MAX;
    loop {
        copy.settle().await.map_err(|_| Stop::Failed)?;
        if copy.is_settled() || rt::now() >= deadline {
            return Ok(copy.is_settled());
        }
        rt::sleep(SETTLE_PAUSE).await;
    }
}

impl Moves {
    pub(super) fn is_moving(&self, id: PartitionId) -> bool {
        self.under_way.borrow().contains_key(&id)
    }
}

fn lacks(log: &Log, copy: &Log) -> Lacks {
    let written = log.written();
    Lacks {
        written,
        bytes: log.bytes_between(copy.log_end(), written),
    }
}
