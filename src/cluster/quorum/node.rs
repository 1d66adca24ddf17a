//! One voter of the quorum: the task that gives the consensus its ticks, writes what it wants
//! written, and sends what it wants sent, in that order; and the ways in from the other tasks of
//! the control executor. Decides nothing itself.

use super::core::{Contact, Core, ELECTION_TICKS, Work};
use super::serve::Observers;
use super::state::{self, ElectionState};
use super::tail::Tail;
use crate::cluster::image::Image;
use crate::cluster::metadata_log::{
    Base, Damage, MetadataLog, MetadataLogError, MetadataLogSettings,
};
use crate::cluster::snapshot::{self, SnapshotId};
use crate::config::BrokerConfig;
use crate::rt;
use crate::rt::sync::{Event, Notify, Permit, Semaphore};
use crate::types::{LeaderEpoch, NodeId, Offset};
use bytes::Bytes;
use raft::eraftpb::Message;
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long a full disk is left alone before what has to be written is tried again.
const NO_SPACE_PAUSE: Duration = Duration::from_secs(1);
/// A voter that starts stands for election within this part of the election timeout, if no leader
/// has spoken by then. Those that follow a leader refuse it.
const FIRST_ELECTION_PART: u32 = 4;

/// What a voter is given.
#[derive(Clone, Debug)]
pub struct QuorumSettings {
    pub node: NodeId,
    /// All of them, this one too, by id.
    pub voters: Vec<NodeId>,
    /// Silence after which a voter stands for election: `controller.quorum.election.timeout.ms`, or
    /// `controller.quorum.fetch.timeout.ms` if that is shorter.
    pub election_timeout: Duration,
    pub log: MetadataLogSettings,
}

impl QuorumSettings {
    pub fn of(config: &BrokerConfig) -> QuorumSettings {
        let mut voters: Vec<NodeId> = config.quorum.voters.iter().map(|voter| voter.id).collect();
        if voters.is_empty() {
            voters.push(config.node_id);
        }
        voters.sort_unstable();
        let millis = |name, default: u64| {
            let text = config.value(name).unwrap_or_default();
            text.trim().parse().unwrap_or(default)
        };
        let election = millis("controller.quorum.election.timeout.ms", 1000);
        let fetch = millis("controller.quorum.fetch.timeout.ms", 2000);
        QuorumSettings {
            node: config.node_id,
            voters,
            election_timeout: Duration::from_millis(election.min(fetch).max(ELECTION_TICKS)),
            log: MetadataLogSettings::of(config),
        }
    }

    /// Whether one node is the whole quorum.
    pub fn is_alone(&self) -> bool {
        self.voters == [self.node]
    }
}

type Send = Box<dyn Fn(NodeId, Bytes)>;
type Publish = Box<dyn Fn(Arc<Image>)>;
type OnFailure = Box<dyn Fn(&MetadataLogError)>;

/// The newest snapshot, and when it was made or found.
#[derive(Clone, Copy, Debug)]
struct Made {
    base: Base,
    at_ms: i64,
}

/// See the module's words.
pub struct Quorum {
    settings: QuorumSettings,
    home: PathBuf,
    core: RefCell<Core>,
    tail: Rc<RefCell<Tail>>,
    log: LogCell,
    made: Cell<Made>,
    wake: Notify,
    /// Rung when something is applied, when the leader changes, and when this node has failed.
    changed: Event,
    send: RefCell<Option<Send>>,
    publish: RefCell<Option<Publish>>,
    on_failure: RefCell<Option<OnFailure>>,
    failed: Cell<bool>,
    observers: Observers,
    /// Set once the way to the other voters is open.
    cluster_id: RefCell<Option<String>>,
    /// What was last told about the leader.
    told: Cell<(Option<NodeId>, LeaderEpoch, bool)>,
    /// The index up to which was applied then.
    told_applied: Cell<u64>,
}

impl Quorum {
    /// Opens the metadata log under `dir` and takes part. A voter that is alone leads when this
    /// returns, with all it had applied; others find their leader in time.
    pub async fn start(
        dir: &Path,
        settings: QuorumSettings,
    ) -> Result<Rc<Quorum>, MetadataLogError> {
        let mut opened = MetadataLog::open(dir, settings.log.clone(), Damage::Fatal).await?;
        // One that is alone writes its first batch at once, and syncs all by that.
        if !settings.is_alone() {
            opened.log.sync().await?;
        }
        let home = opened.log.home().to_owned();
        let mut saved = state::read(&home).await?;
        if opened.log.last_epoch() > saved.epoch {
            saved = ElectionState {
                epoch: opened.log.last_epoch(),
                voted: None,
            };
        }
        let base = opened.base;
        let mut tail = Tail::new(base, &settings.voters, Core::hard_state(saved, base));
        for batch in opened.tail {
            let term = batch.partition_leader_epoch().0 as u64;
            let end = batch.last_offset().next();
            tail.push(term, end, batch.into_bytes());
        }
        let tail = Rc::new(RefCell::new(tail));
        let core = Core::new(
            settings.node,
            &settings.voters,
            tail.clone(),
            opened.replay,
            saved,
            rt::random_below,
        )?;
        let told = core.leader();
        let quorum = Rc::new(Quorum {
            settings,
            home,
            core: RefCell::new(core),
            tail,
            log: LogCell::new(opened.log),
            made: Cell::new(Made {
                base,
                at_ms: rt::wall_ms(),
            }),
            wake: Notify::new(),
            changed: Event::new(),
            send: RefCell::new(None),
            publish: RefCell::new(None),
            on_failure: RefCell::new(None),
            failed: Cell::new(false),
            observers: Observers::default(),
            cluster_id: RefCell::new(None),
            told: Cell::new((told.0, told.1, false)),
            told_applied: Cell::new(base.index),
        });
        if quorum.settings.is_alone() {
            quorum.core.borrow_mut().campaign()?;
            quorum.work(false).await?;
        }
        rt::spawn(run(Rc::downgrade(&quorum)));
        Ok(quorum)
    }

    /// Registers the way to the other voters: what cannot be sent may be lost.
    pub fn on_send(&self, send: impl Fn(NodeId, Bytes) + 'static) {
        *self.send.borrow_mut() = Some(Box::new(send));
    }

    /// Registers who is given each new image, in order.
    pub fn on_publish(&self, publish: impl Fn(Arc<Image>) + 'static) {
        *self.publish.borrow_mut() = Some(Box::new(publish));
    }

    /// Registers who is told that this node cannot go on.
    pub fn on_failure(&self, tell: impl Fn(&MetadataLogError) + 'static) {
        *self.on_failure.borrow_mut() = Some(Box::new(tell));
    }

    /// The cluster this quorum is of: who asks for another is refused.
    pub fn set_cluster_id(&self, id: &str) {
        *self.cluster_id.borrow_mut() = Some(id.to_owned());
    }

    pub fn cluster_id(&self) -> Option<String> {
        self.cluster_id.borrow().clone()
    }

    pub(super) fn observers(&self) -> &Observers {
        &self.observers
    }

    pub fn settings(&self) -> &QuorumSettings {
        &self.settings
    }

    /// What is committed and applied here.
    pub fn image(&self) -> Arc<Image> {
        self.core.borrow().image()
    }

    /// The epoch in which this node is the active controller.
    pub fn active_epoch(&self) -> Option<LeaderEpoch> {
        match self.failed.get() {
            true => None,
            false => self.core.borrow().active_epoch(),
        }
    }

    /// The leader and the epoch, as far as this node knows.
    pub fn leader(&self) -> (Option<NodeId>, LeaderEpoch) {
        let (leader, epoch) = self.core.borrow().leader();
        match self.failed.get() && leader == Some(self.settings.node) {
            true => (None, epoch),
            false => (leader, epoch),
        }
    }

    /// Rung whenever something is applied, or the leader changes, or this node fails.
    pub fn changed(&self) -> &Event {
        &self.changed
    }

    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Whether the committed log ends inside a transaction.
    pub fn in_transaction(&self) -> bool {
        self.core.borrow().replay().in_transaction()
    }

    /// The offset behind what is committed and applied here.
    pub fn committed(&self) -> Offset {
        self.core.borrow().applied_end()
    }

    /// The voters, how far their logs reach, and when they were heard.
    pub fn progress(&self) -> Vec<(NodeId, Option<Offset>, Option<Contact>)> {
        let core = self.core.borrow();
        let contact = |node: NodeId| core.contacts().get(&node).copied();
        core.log_ends()
            .into_iter()
            .map(|(node, end)| (node, end, contact(node)))
            .collect()
    }

    /// Takes in what another voter sent.
    pub fn receive(&self, bytes: Bytes) {
        if self.failed.get() {
            return;
        }
        let received = self.core.borrow_mut().receive(bytes, rt::wall_ms());
        match received {
            Ok(()) => self.wake.notify_one(),
            Err(error) => self.fail(&error),
        }
    }

    /// Adds the batches that `build` makes, given the offset of their first record and the epoch, to
    /// the log; `size` is about how many bytes they will have. Returns when they are committed and
    /// applied.
    ///
    /// # Errors
    /// [`MetadataLogError::LeadershipLost`] if that is not known; with every other error nothing has
    /// happened.
    pub async fn propose(
        &self,
        size: u64,
        build: impl FnOnce(Offset, LeaderEpoch) -> Result<Vec<Bytes>, MetadataLogError>,
    ) -> Result<(), MetadataLogError> {
        if self.failed.get() {
            return Err(MetadataLogError::Failed);
        }
        // Without room it is refused now: what is once in the log has to be written.
        self.log.lock().await.get()?.reserve(size).await?;
        let told = self.core.borrow_mut().propose(build)?;
        self.wake.notify_one();
        told.await.unwrap_or(Err(MetadataLogError::Failed))
    }

    /// Waits until everything in this leader's log is applied, so that a decision sees all that was
    /// decided before.
    ///
    /// # Errors
    /// This node is not the active controller.
    pub async fn settled(&self) -> Result<LeaderEpoch, MetadataLogError> {
        loop {
            if self.failed.get() {
                return Err(MetadataLogError::Failed);
            }
            let changed = self.changed.wait();
            {
                let core = self.core.borrow();
                let epoch = core.active_epoch().ok_or(MetadataLogError::NotLeader)?;
                if core.has_applied_all() {
                    return Ok(epoch);
                }
            }
            changed.await;
        }
    }

    /// The offset of the next record of this leader's log.
    pub fn next_offset(&self) -> Offset {
        self.core.borrow().next_offset()
    }

    /// Hands leadership over, if this node leads and another voter can; waits until it has, at most
    /// an election timeout.
    pub async fn resign(&self) {
        if self.settings.is_alone() || !self.core.borrow().is_leader() {
            return;
        }
        if let Err(error) = self.core.borrow_mut().resign() {
            return self.fail(&error);
        }
        self.wake.notify_one();
        let over = async {
            while self.core.borrow().is_leader() && !self.failed.get() {
                self.changed.wait().await;
            }
        };
        let _ = rt::timeout(self.settings.election_timeout, over).await;
    }

    /// The log's files, for who reads what is not in memory.
    pub async fn log(&self) -> LogGuard {
        self.log.lock().await
    }

    pub(super) fn tail(&self) -> &Rc<RefCell<Tail>> {
        &self.tail
    }

    /// Does all there is to do.
    async fn work(&self, patient: bool) -> Result<(), MetadataLogError> {
        loop {
            let work = self.core.borrow_mut().take_work()?;
            let Some(work) = work else {
                self.publish_new();
                return Ok(());
            };
            self.publish_new();
            self.send(&work.send_now);
            loop {
                match self.write(&work).await {
                    Ok(()) => break,
                    Err(error) if patient && error.is_no_space() => {
                        tracing::error!(%error, "no space for the metadata log: this controller waits");
                        rt::sleep(NO_SPACE_PAUSE).await;
                    }
                    Err(error) => return Err(error),
                }
            }
            self.core.borrow_mut().done(&work)?;
            self.send(&work.send_then);
            if let Some((base, _)) = work.snapshot {
                self.made.set(Made {
                    base,
                    at_ms: rt::wall_ms(),
                });
            }
        }
    }

    /// Writes what has to be on disk before anybody is told of it. Done again from the begin after
    /// a lack of space.
    async fn write(&self, work: &Work) -> Result<(), MetadataLogError> {
        if let Some(state) = work.state {
            let leader = match self.core.borrow().is_leader() {
                true => Some(self.settings.node),
                false => None,
            };
            state::write(&self.home, state, leader, &self.settings.voters).await?;
        }
        if work.snapshot.is_none() && work.append.is_empty() {
            return Ok(());
        }
        let mut guard = self.log.lock().await;
        let log = guard.get()?;
        if let Some((base, bytes)) = &work.snapshot {
            let id = SnapshotId {
                end: base.end,
                epoch: base.epoch,
            };
            log.install_snapshot(id, bytes.clone(), Some(base.index))
                .await?;
        }
        if let Some(offset) = work.truncate {
            log.truncate_to(offset).await?;
        }
        log.append(&work.append, true).await
    }

    fn send(&self, messages: &[Message]) {
        let send = self.send.borrow();
        let Some(send) = &*send else { return };
        for message in messages {
            let encoded = self.core.borrow().encode(message);
            if let Some((to, bytes)) = encoded {
                send(to, bytes);
            }
        }
    }

    fn publish_new(&self) {
        let (image, told, applied) = {
            let mut core = self.core.borrow_mut();
            let is_new = std::mem::take(&mut core.is_image_new);
            let (leader, epoch) = core.leader();
            let told = (leader, epoch, core.active_epoch().is_some());
            (is_new.then(|| core.image()), told, core.applied())
        };
        let is_elsewhere = told != self.told.replace(told);
        let is_further = applied != self.told_applied.replace(applied);
        if is_elsewhere {
            let (leader, epoch, active) = told;
            tracing::info!(
                leader = leader.map(|node| node.0),
                epoch = epoch.0,
                active,
                "controller quorum"
            );
        }
        if let (Some(image), Some(publish)) = (image, &*self.publish.borrow()) {
            publish(image);
        }
        // Not for every heartbeat: all fetches that wait are woken by it.
        if is_elsewhere || is_further {
            self.changed.notify_all();
        }
    }

    /// Nothing is done any more.
    pub fn fail(&self, error: &MetadataLogError) {
        if self.failed.replace(true) {
            return;
        }
        tracing::error!(%error, "this controller cannot go on");
        self.core.borrow_mut().fail();
        self.changed.notify_all();
        self.wake.notify_one();
        if let Some(tell) = &*self.on_failure.borrow() {
            tell(error);
        }
    }

    /// Makes a snapshot if one is due, and loads one if a voter needs it.
    async fn keep_up(&self) -> Result<(), MetadataLogError> {
        if let Some((base, image)) = self.due() {
            self.make_snapshot(base, &image).await?;
        }
        if self.tail.borrow().wants_snapshot {
            let base = self.made.get().base;
            let id = SnapshotId {
                end: base.end,
                epoch: base.epoch,
            };
            let path = self.log.lock().await.get()?.snapshot_path(id);
            match rt::fs::read(&path).await {
                Ok(bytes) => self.core.borrow().loaded(base, &bytes),
                Err(source) => {
                    let what = "cannot read";
                    return Err(MetadataLogError::Io { what, path, source });
                }
            }
        }
        Ok(())
    }

    fn due(&self) -> Option<(Base, Arc<Image>)> {
        let core = self.core.borrow();
        let (made, now) = (self.made.get(), rt::wall_ms());
        let log = self.log.peek();
        let is_due = log
            .as_ref()
            .is_some_and(|log| log.is_snapshot_due(core.bytes_since_snapshot, made.at_ms, now));
        if !is_due || core.replay().in_transaction() {
            return None;
        }
        let base = self.tail.borrow().base_at(core.applied())?;
        Some((base, core.image()))
    }

    async fn make_snapshot(&self, base: Base, image: &Image) -> Result<(), MetadataLogError> {
        let id = SnapshotId {
            end: base.end,
            epoch: base.epoch,
        };
        let bytes = snapshot::encode(&image.records(), id, rt::wall_ms())?;
        tracing::info!(end = %id.end, epoch = id.epoch.0, bytes = bytes.len(), "metadata snapshot");
        let mut guard = self.log.lock().await;
        let written = guard
            .get()?
            .write_snapshot(id, bytes, Some(base.index))
            .await;
        let before = self.made.get().base;
        match written {
            Ok(()) => {
                self.tail.borrow_mut().forget_before(before);
                self.made.set(Made {
                    base,
                    at_ms: rt::wall_ms(),
                });
            }
            // The next one is due later: without space there is no hurry.
            Err(error) if error.is_no_space() => {
                tracing::warn!(%error, "no space for a metadata snapshot");
                let at_ms = rt::wall_ms();
                self.made.set(Made {
                    at_ms,
                    ..self.made.get()
                });
            }
            Err(error) => return Err(error),
        }
        self.core.borrow_mut().bytes_since_snapshot = 0;
        Ok(())
    }
}

impl Drop for Quorum {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// The task: ends with the quorum, or when it fails.
async fn run(quorum: std::rc::Weak<Quorum>) {
    let Some(first) = quorum.upgrade() else {
        return;
    };
    let is_alone = first.settings.is_alone();
    let timeout = first.settings.election_timeout;
    let wake = first.wake.clone();
    drop(first);
    let tick = timeout / ELECTION_TICKS as u32;
    let mut next_tick = rt::now() + tick;
    let soon = rt::random_below((timeout / FIRST_ELECTION_PART).as_micros() as u64 + 1);
    let mut first_election = Some(rt::now() + Duration::from_micros(soon));
    loop {
        let Some(quorum) = quorum.upgrade() else {
            return;
        };
        let result = async {
            quorum.work(true).await?;
            quorum.keep_up().await
        };
        let mut result = result.await;
        // Late ticks are left out: a node that was held up is not to think that time was silent.
        if result.is_ok() && !is_alone && rt::now() >= next_tick {
            next_tick = rt::now() + tick;
            result = quorum.core.borrow_mut().tick();
            quorum.wake.notify_one();
        }
        if result.is_ok() && first_election.is_some_and(|at| rt::now() >= at) {
            first_election = None;
            result = quorum.core.borrow_mut().campaign();
            quorum.wake.notify_one();
        }
        if let Err(error) = result {
            quorum.fail(&error);
        }
        if quorum.failed.get() {
            return;
        }
        drop(quorum);
        if is_alone {
            wake.notified().await;
        } else {
            let until = first_election.map_or(next_tick, |at| at.min(next_tick));
            rt::select2(wake.notified(), rt::sleep_until(until)).await;
        }
    }
}

/// The log's files, used by one at a time.
struct LogCell {
    log: Rc<RefCell<Option<MetadataLog>>>,
    turn: Semaphore,
}

impl LogCell {
    fn new(log: MetadataLog) -> LogCell {
        LogCell {
            log: Rc::new(RefCell::new(Some(log))),
            turn: Semaphore::new(1),
        }
    }

    async fn lock(&self) -> LogGuard {
        let turn = self.turn.acquire(1).await;
        LogGuard {
            log: self.log.borrow_mut().take(),
            back: self.log.clone(),
            _turn: turn,
        }
    }

    fn peek(&self) -> std::cell::Ref<'_, Option<MetadataLog>> {
        self.log.borrow()
    }
}

/// The log, until this is dropped.
pub struct LogGuard {
    log: Option<MetadataLog>,
    back: Rc<RefCell<Option<MetadataLog>>>,
    _turn: Permit,
}

impl LogGuard {
    pub fn get(&mut self) -> Result<&mut MetadataLog, MetadataLogError> {
        self.log.as_mut().ok_or(MetadataLogError::Failed)
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        *self.back.borrow_mut() = self.log.take();
    }
}
