//! The consensus and what is applied of it: raft's state machine with the log's tail, the image that
//! committed batches add up to, and who waits for which. Synchronous: the node gives it ticks and
//! messages and does the work it asks for. Never touches a file or a socket.

use super::admit::{Known, Verdict, admit, batch_of, snapshot_data, snapshot_parts};
use super::codec::{self, CodecError};
use super::state::ElectionState;
use super::tail::{Shared, Tail, node_id, raft_id};
use crate::cluster::image::Image;
use crate::cluster::metadata_log::{Base, MetadataLogError};
use crate::cluster::replay::Replay;
use crate::rt::sync::oneshot;
use crate::types::{LeaderEpoch, NodeId, Offset};
use crate::wire::Message as _;
use crate::wire::batch_builder::{ControlType, control_batch};
use crate::wire::messages::leader_change_message::{LeaderChangeMessage, Voter};
use bytes::Bytes;
use raft::eraftpb::{Entry, HardState, Message, MessageType};
use raft::{ProgressState, RawNode, SnapshotStatus, StateRole};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Ticks of an election timeout: fine enough that two voters seldom wait equally long.
pub const ELECTION_TICKS: u64 = 20;
/// A voter waits for 1 to 1.6 election timeouts before it stands for election.
const ELECTION_TICKS_MAX: u64 = 32;
const HEARTBEAT_TICKS: usize = 2;
/// Bytes of batches in one message, if there is more than one (1 MiB, as Kafka's fetches).
const MESSAGE_BYTES: u64 = 1 << 20;
/// Messages with batches on their way to one voter; with the bytes of each the memory of a slow one.
const IN_FLIGHT_MAX: usize = 32;
/// Messages that wait for the disk. Beyond it what arrives is dropped: the sender repeats it.
const WAITING_MESSAGES_MAX: usize = 1024;
/// Ticks after which a snapshot that a voter was sent counts as lost.
const SNAPSHOT_TICKS: u32 = 200;

/// What the node has to do, in this order: send, write, send, and then tell that it is done.
#[derive(Default)]
pub struct Work {
    number: u64,
    pub send_now: Vec<Message>,
    pub state: Option<ElectionState>,
    pub snapshot: Option<(Base, Bytes)>,
    /// Everything from this offset on is cut off before.
    pub truncate: Option<Offset>,
    pub append: Vec<Bytes>,
    pub send_then: Vec<Message>,
}

/// When a voter was last heard, and when it last had all, in milliseconds of wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contact {
    pub heard_ms: i64,
    pub caught_up_ms: i64,
}

struct Waiting {
    index: u64,
    term: u64,
    tell: oneshot::Sender<Result<(), MetadataLogError>>,
}

/// See the module's words.
pub struct Core {
    node: NodeId,
    voters: Vec<NodeId>,
    raw: RawNode<Shared>,
    tail: Rc<RefCell<Tail>>,
    replay: Replay,
    image: Arc<Image>,
    applied: u64,
    /// The batch by which this node's own term begins, while it leads.
    term_start: Option<u64>,
    /// Term and vote as they are on disk: nothing newer is told to anybody.
    saved: ElectionState,
    /// The role for which the election timeout was drawn.
    drawn_for: (u64, StateRole),
    granted: BTreeSet<NodeId>,
    waiting: Vec<Waiting>,
    contacts: BTreeMap<NodeId, Contact>,
    /// Ticks since a snapshot was sent, by voter.
    snapshots_sent: BTreeMap<u64, u32>,
    /// Bytes applied since the newest snapshot.
    pub bytes_since_snapshot: u64,
    /// An image that has not been published.
    pub is_image_new: bool,
    random: fn(u64) -> u64,
}

impl Core {
    pub fn new(
        node: NodeId,
        voters: &[NodeId],
        tail: Rc<RefCell<Tail>>,
        replay: Replay,
        saved: ElectionState,
        random: fn(u64) -> u64,
    ) -> Result<Core, MetadataLogError> {
        let applied = tail.borrow().base().index;
        let config = raft::Config {
            id: raft_id(node),
            election_tick: ELECTION_TICKS as usize,
            min_election_tick: ELECTION_TICKS as usize,
            max_election_tick: ELECTION_TICKS_MAX as usize,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied,
            max_size_per_msg: MESSAGE_BYTES,
            max_inflight_msgs: IN_FLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = RawNode::new(&config, Shared(tail.clone()), &logger)?;
        let image = Arc::new(replay.image().clone());
        let mut core = Core {
            node,
            voters: voters.to_vec(),
            raw,
            tail,
            replay,
            image,
            applied,
            term_start: None,
            saved,
            drawn_for: (u64::MAX, StateRole::Follower),
            granted: BTreeSet::new(),
            waiting: Vec::new(),
            contacts: BTreeMap::new(),
            snapshots_sent: BTreeMap::new(),
            bytes_since_snapshot: 0,
            is_image_new: false,
            random,
        };
        core.noticed()?;
        Ok(core)
    }

    /// The state that raft begins with.
    pub fn hard_state(saved: ElectionState, base: Base) -> HardState {
        HardState {
            term: saved.epoch.0 as u64,
            vote: saved.voted.map_or(0, raft_id),
            commit: base.index,
            ..Default::default()
        }
    }

    pub fn image(&self) -> Arc<Image> {
        self.image.clone()
    }

    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The offset behind the last applied batch: what may be served.
    pub fn applied_end(&self) -> Offset {
        self.replay.next_offset()
    }

    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// The term in which this node leads with everything applied that was committed before.
    pub fn active_epoch(&self) -> Option<LeaderEpoch> {
        let begun = self.term_start.is_some_and(|start| self.applied >= start);
        (self.is_leader() && begun).then_some(self.saved.epoch)
    }

    /// The leader and the epoch, as far as they may be told.
    pub fn leader(&self) -> (Option<NodeId>, LeaderEpoch) {
        let is_saved = self.raw.raft.term == self.saved.epoch.0 as u64;
        let leader = node_id(self.raw.raft.leader_id).filter(|_| is_saved);
        (leader, self.saved.epoch)
    }

    pub fn contacts(&self) -> &BTreeMap<NodeId, Contact> {
        &self.contacts
    }

    /// How far each voter's log is known to reach.
    pub fn log_ends(&self) -> Vec<(NodeId, Option<Offset>)> {
        let tail = self.tail.borrow();
        let end = |voter: &NodeId| match *voter == self.node {
            true => Some(tail.next_offset()),
            false => {
                let progress = self.raw.raft.prs().get(raft_id(*voter))?;
                tail.end_of(progress.matched)
            }
        };
        self.voters
            .iter()
            .map(|voter| (*voter, end(voter)))
            .collect()
    }

    pub fn tick(&mut self) -> Result<(), MetadataLogError> {
        self.raw.tick();
        for ticks in self.snapshots_sent.values_mut() {
            *ticks += 1;
        }
        let progress = self.raw.raft.prs();
        let is_sending = |id: &u64| {
            let found = progress.get(*id);
            found.is_some_and(|found| found.state == ProgressState::Snapshot)
        };
        self.snapshots_sent.retain(|id, _| is_sending(id));
        let lost: Vec<u64> = self
            .snapshots_sent
            .iter()
            .filter(|(_, ticks)| **ticks > SNAPSHOT_TICKS)
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            self.snapshots_sent.remove(&id);
            self.raw.report_snapshot(id, SnapshotStatus::Failure);
        }
        if self.snapshots_sent.is_empty() {
            let mut tail = self.tail.borrow_mut();
            if !tail.wants_snapshot {
                tail.loaded = None;
            }
        }
        self.noticed()
    }

    /// Stands for election now, if there is no leader.
    pub fn campaign(&mut self) -> Result<(), MetadataLogError> {
        if self.raw.raft.leader_id == 0 && self.raw.raft.state == StateRole::Follower {
            self.raw.campaign().map_err(broken)?;
        }
        self.noticed()
    }

    /// Hands leadership to the voter whose log reaches furthest.
    pub fn resign(&mut self) -> Result<(), MetadataLogError> {
        let own = raft_id(self.node);
        let others = self.raw.raft.prs().iter().filter(|(id, _)| **id != own);
        let best = others.max_by_key(|(id, progress)| (progress.matched, **id));
        if let (true, Some(best)) = (self.is_leader(), best.map(|(id, _)| *id)) {
            self.raw.transfer_leader(best);
        }
        self.noticed()
    }

    /// Takes a message of another voter in.
    ///
    /// # Errors
    /// The logs contradict each other, and this node must not go on.
    pub fn receive(&mut self, bytes: Bytes, now_ms: i64) -> Result<(), MetadataLogError> {
        if self.raw.raft.msgs.len() > WAITING_MESSAGES_MAX {
            return Ok(());
        }
        let decoded = codec::decode(bytes, self.tail.borrow().conf_state());
        let mut received = match decoded {
            Ok(received) => received,
            Err(error) => {
                dropped(&error);
                return Ok(());
            }
        };
        let from = node_id(received.message.from);
        let verdict = {
            let known = Known {
                tail: &self.tail.borrow(),
                own_id: raft_id(self.node),
                is_voter: from.is_some_and(|from| self.voters.contains(&from)),
                term: self.raw.raft.term,
                committed: self.raw.raft.raft_log.committed,
                last_index: self.raw.raft.raft_log.last_index(),
            };
            admit(&mut received, &known)?
        };
        if let Verdict::Drop(why) = verdict {
            tracing::debug!(why, "a message of another controller is dropped");
            return Ok(());
        }
        let Some(from) = from else {
            return Ok(());
        };
        let message = received.message;
        let kind = message.get_msg_type();
        if kind == MessageType::MsgRequestVoteResponse
            && !message.reject
            && message.term == self.raw.raft.term
        {
            self.granted.insert(from);
        }
        if kind == MessageType::MsgAppendResponse && message.reject {
            self.forget_lost_log(&message);
        }
        let answers = matches!(
            kind,
            MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse
        );
        // What is not for this role or term is no error.
        let _ = self.raw.step(message);
        self.noticed()?;
        if answers && self.is_leader() {
            let last = self.raw.raft.raft_log.last_index();
            let matched = self.raw.raft.prs().get(raft_id(from));
            let has_all = matched.is_some_and(|progress| progress.matched >= last);
            let contact = self.contacts.entry(from).or_insert(Contact {
                heard_ms: now_ms,
                caught_up_ms: -1,
            });
            contact.heard_ms = now_ms;
            if has_all {
                contact.caught_up_ms = now_ms;
            }
        }
        Ok(())
    }

    /// A voter says that it lacks what it once acknowledged: its disk was emptied. It is sent all
    /// from where its log ends; a late refusal has the same effect and costs only that.
    fn forget_lost_log(&mut self, message: &Message) {
        if self.raw.raft.state != StateRole::Leader || message.term != self.raw.raft.term {
            return;
        }
        if let Some(progress) = self.raw.raft.mut_prs().get_mut(message.from)
            && message.reject_hint < progress.matched
        {
            progress.matched = 0;
            progress.become_probe();
        }
    }

    /// Adds what `build` makes, given the offset and the epoch, to the log. The receiver is told
    /// when all of it is committed and applied.
    ///
    /// # Errors
    /// This node is not the active controller, or `build` fails.
    pub fn propose(
        &mut self,
        build: impl FnOnce(Offset, LeaderEpoch) -> Result<Vec<Bytes>, MetadataLogError>,
    ) -> Result<oneshot::Receiver<Result<(), MetadataLogError>>, MetadataLogError> {
        let epoch = self.active_epoch().ok_or(MetadataLogError::NotLeader)?;
        for bytes in build(self.next_offset(), epoch)? {
            let proposed = self.raw.propose(Vec::new(), bytes.into());
            proposed.map_err(|_| MetadataLogError::NotLeader)?;
        }
        self.noticed()?;
        let (tell, told) = oneshot::channel();
        let (index, term) = (self.raw.raft.raft_log.last_index(), self.raw.raft.term);
        self.waiting.push(Waiting { index, term, tell });
        Ok(told)
    }

    /// Whether all of the log is applied: decisions are made on all that was decided before.
    pub fn has_applied_all(&self) -> bool {
        self.applied == self.raw.raft.raft_log.last_index()
    }

    /// The offset of the next record that is added to the log.
    pub fn next_offset(&self) -> Offset {
        let unstable = self.raw.raft.raft_log.unstable_entries().last();
        let end = unstable.and_then(|entry| batch_of(&entry.data));
        match end {
            Some(batch) => batch.last_offset().next(),
            None => self.tail.borrow().next_offset(),
        }
    }

    /// After every call of raft: draws election timeouts from our own source, for raft's is not
    /// the simulator's; begins a term that was won; gives up what waits when leadership is gone.
    fn noticed(&mut self) -> Result<(), MetadataLogError> {
        let raft = &mut self.raw.raft;
        let role = (raft.term, raft.state);
        if role != self.drawn_for {
            if role.0 != self.drawn_for.0 {
                self.granted.clear();
            }
            self.drawn_for = role;
            let drawn = ELECTION_TICKS + (self.random)(ELECTION_TICKS_MAX - ELECTION_TICKS);
            raft.set_randomized_election_timeout(drawn as usize);
        }
        if raft.state != StateRole::Leader {
            self.term_start = None;
            self.contacts.clear();
            for waiting in self.waiting.drain(..) {
                let _ = waiting.tell.send(Err(MetadataLogError::LeadershipLost));
            }
        } else if self.term_start.is_none() {
            self.begin_term()?;
        }
        Ok(())
    }

    /// Raft has appended the empty entry of a term this node leads: it becomes the LEADER_CHANGE
    /// batch, in the log and in the messages that carry it already.
    fn begin_term(&mut self) -> Result<(), MetadataLogError> {
        let offset = self.tail.borrow().next_offset();
        let epoch = LeaderEpoch(self.raw.raft.term as i32);
        let voter = |node: &NodeId| Voter {
            voter_id: node.0,
            ..Default::default()
        };
        let mut granted = self.granted.clone();
        granted.insert(self.node);
        let message = LeaderChangeMessage {
            version: 0,
            leader_id: self.node.0,
            voters: self.voters.iter().map(voter).collect(),
            granting_voters: granted.iter().map(voter).collect(),
            ..Default::default()
        };
        let value = message.to_bytes(0)?;
        let change = [(ControlType::LeaderChange, &value[..])];
        let batch = control_batch(offset, epoch, crate::rt::wall_ms(), &change)?;
        let raft = &mut self.raw.raft;
        self.term_start = Some(raft.raft_log.last_index());
        let unstable = &mut raft.r.raft_log.unstable;
        let mut grown = 0;
        for entry in unstable
            .entries
            .iter_mut()
            .filter(|entry| entry.data.is_empty())
        {
            entry.data = batch.clone();
            grown += batch.len();
        }
        unstable.entries_size += grown;
        for message in &mut raft.msgs {
            let entries = message.mut_entries().iter_mut();
            for entry in entries.filter(|entry| entry.data.is_empty()) {
                entry.data = batch.clone();
            }
        }
        Ok(())
    }

    /// What has to be done next, if anything. Batches that are committed are applied at once.
    pub fn take_work(&mut self) -> Result<Option<Work>, MetadataLogError> {
        if !self.raw.has_ready() {
            return Ok(None);
        }
        let mut ready = self.raw.ready();
        let mut work = Work {
            number: ready.number(),
            send_now: ready.take_messages(),
            ..Work::default()
        };
        if let Some(state) = ready.hs() {
            let state = ElectionState {
                epoch: LeaderEpoch(state.term as i32),
                voted: node_id(state.vote),
            };
            work.state = (state != self.saved).then_some(state);
        }
        if !ready.snapshot().is_empty() {
            let snapshot = ready.snapshot();
            let meta = snapshot.get_metadata();
            let (end, bytes) = snapshot_parts(&snapshot.data)
                .ok_or_else(|| MetadataLogError::Divergence("a snapshot is cut short".into()))?;
            let base = Base {
                end,
                epoch: LeaderEpoch(meta.term as i32),
                index: meta.index,
            };
            self.tail.borrow_mut().reset(base);
            work.snapshot = Some((base, bytes));
        }
        let entries = ready.take_entries();
        self.store(&entries, &mut work)?;
        work.send_then = ready.take_persisted_messages();
        let committed = ready.take_committed_entries();
        self.raw.advance_append_async(ready);
        self.apply(committed)?;
        for message in work.send_now.iter().chain(&work.send_then) {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.snapshots_sent.insert(message.to, 0);
            }
        }
        self.noticed()?;
        Ok(Some(work))
    }

    fn store(&mut self, entries: &[Entry], work: &mut Work) -> Result<(), MetadataLogError> {
        let mut tail = self.tail.borrow_mut();
        let Some(first) = entries.first() else {
            return Ok(());
        };
        if first.index <= tail.last_index() {
            work.truncate = tail.end_of(first.index - 1);
            if work.truncate.is_none() {
                let what = format!("batch {} cannot be replaced", first.index);
                return Err(MetadataLogError::Divergence(what));
            }
            tail.truncate(first.index - 1);
        }
        for entry in entries {
            let batch = batch_of(&entry.data);
            let batch = batch.ok_or_else(|| {
                MetadataLogError::Divergence(format!("entry {} is no batch", entry.index))
            })?;
            if batch.base_offset() != tail.next_offset() {
                return Err(MetadataLogError::Divergence(format!(
                    "batch {} begins at offset {}, not {}",
                    entry.index,
                    batch.base_offset(),
                    tail.next_offset()
                )));
            }
            tail.push(entry.term, batch.last_offset().next(), entry.data.clone());
            work.append.push(entry.data.clone());
        }
        Ok(())
    }

    /// The work is done: all of it is on disk.
    pub fn done(&mut self, work: &Work) -> Result<(), MetadataLogError> {
        if let Some(state) = work.state {
            self.saved = state;
        }
        self.raw.on_persist_ready(work.number);
        if let Some((base, bytes)) = &work.snapshot {
            let replay = Replay::from_snapshot(bytes.clone(), base.end);
            self.replay = replay.map_err(|source| MetadataLogError::Replay {
                path: "snapshot".into(),
                source,
            })?;
            self.applied = base.index;
            self.bytes_since_snapshot = 0;
            self.raw.advance_apply_to(base.index);
            self.new_image();
        }
        self.noticed()
    }

    fn apply(&mut self, committed: Vec<Entry>) -> Result<(), MetadataLogError> {
        let Some(last) = committed.last().map(|entry| entry.index) else {
            return Ok(());
        };
        for entry in committed {
            let batch = batch_of(&entry.data).ok_or_else(|| {
                MetadataLogError::Divergence(format!("entry {} is no batch", entry.index))
            })?;
            self.replay
                .batch(&batch)
                .map_err(|source| MetadataLogError::Replay {
                    path: "__cluster_metadata".into(),
                    source,
                })?;
            self.applied = entry.index;
            self.bytes_since_snapshot += entry.data.len() as u64;
        }
        self.raw.advance_apply_to(last);
        self.new_image();
        let (applied, tail) = (self.applied, self.tail.borrow());
        let mut at = 0;
        while at < self.waiting.len() {
            if self.waiting[at].index > applied {
                at += 1;
                continue;
            }
            let waiting = self.waiting.swap_remove(at);
            let result = match tail.term_of(waiting.index) {
                Some(term) if term == waiting.term => Ok(()),
                _ => Err(MetadataLogError::LeadershipLost),
            };
            let _ = waiting.tell.send(result);
        }
        Ok(())
    }

    fn new_image(&mut self) {
        if !self.replay.in_transaction() && self.replay.image().offset() != self.image.offset() {
            self.image = Arc::new(self.replay.image().clone());
            self.is_image_new = true;
        }
    }

    /// A message as bytes.
    pub fn encode(&self, message: &Message) -> Option<(NodeId, Bytes)> {
        let end = match message.get_msg_type() {
            MessageType::MsgAppend => self.tail.borrow().end_of(message.index),
            _ => None,
        };
        Some((node_id(message.to)?, codec::encode(message, end)?))
    }

    /// A snapshot's contents for a voter that lacks what was before.
    pub fn loaded(&self, base: Base, bytes: &[u8]) {
        let mut tail = self.tail.borrow_mut();
        tail.wants_snapshot = false;
        tail.loaded = Some(super::tail::Loaded {
            base,
            bytes: snapshot_data(base.end, bytes),
        });
    }

    /// Gives up everything that waits: nothing is written any more.
    pub fn fail(&mut self) {
        for waiting in self.waiting.drain(..) {
            let _ = waiting.tell.send(Err(MetadataLogError::Failed));
        }
    }
}

fn dropped(error: &CodecError) {
    tracing::warn!(%error, "a message of another controller cannot be read");
}

fn broken(error: raft::Error) -> MetadataLogError {
    MetadataLogError::Divergence(error.to_string())
}

impl From<raft::Error> for MetadataLogError {
    fn from(error: raft::Error) -> MetadataLogError {
        broken(error)
    }
}
