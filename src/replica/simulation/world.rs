//! The simulated world: nodes, their messages, time, and a controller by Kafka's rules.

use super::model::{Batch, ModelLog, Registration};
use crate::replica::follower::{Answer, Asked, Follower, Step};
use crate::replica::history::{History, Position, divergence};
use crate::replica::in_sync::{Altered, Outcome, Proposal};
use crate::replica::leader::{FetchRefused, FollowerFetch, Leader, LeaderSettings, LocalLog, Term};
use crate::rt::Instant;
use crate::types::{LeaderEpoch, NodeId, Offset, PartitionEpoch};
use crate::wire::ErrorCode;
use std::collections::BTreeMap;
use std::time::Duration;

const LAG: Duration = Duration::from_millis(60);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Messages on their way; what comes on top is lost.
const MESSAGES_MAX: usize = 40;

#[derive(Debug)]
enum Role {
    Down,
    Leader(Box<Leader>),
    Follower(Follower),
}

#[derive(Debug)]
struct Node {
    id: NodeId,
    log: ModelLog,
    role: Role,
    high_watermark: i64,
    broker_epoch: i64,
    /// How many of the controller's registrations it has seen.
    seen: usize,
    fetching: bool,
    /// A proposal is with the controller.
    asking: bool,
}

#[derive(Clone, Debug)]
enum Message {
    Fetch {
        from: NodeId,
        to: NodeId,
        asked: Asked,
        broker_epoch: i64,
    },
    Fetched {
        to: NodeId,
        asked: Asked,
        answer: Answer,
        batches: Vec<Batch>,
        broker_epoch: i64,
    },
    Alter {
        from: NodeId,
        broker_epoch: i64,
        proposal: Proposal,
    },
    Altered {
        to: NodeId,
        broker_epoch: i64,
        proposal: Proposal,
        answer: Result<Altered, ErrorCode>,
    },
}

pub(super) struct World {
    rng: fastrand::Rng,
    now: Instant,
    nodes: Vec<Node>,
    min_in_sync: usize,
    registrations: Vec<Registration>,
    messages: Vec<Message>,
    /// By offset: the batch that some leader's high watermark has covered.
    pub committed: BTreeMap<i64, u64>,
    /// The furthest high watermark of each epoch.
    marks: BTreeMap<i32, i64>,
    ids: u64,
    broker_epochs: i64,
    steps: usize,
    pub elections: usize,
    pub cuts: usize,
    pub grown: usize,
    pub shrunk: usize,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = rng.usize(3..=5);
        let nodes = (0..count).map(|at| Node {
            id: NodeId(at as i32),
            log: ModelLog::default(),
            role: Role::Follower(Follower::new(LeaderEpoch::UNKNOWN, None, Offset::ZERO)),
            high_watermark: 0,
            broker_epoch: at as i64,
            seen: 0,
            fetching: false,
            asking: false,
        });
        let nodes: Vec<Node> = nodes.collect();
        let first = Registration {
            in_sync: nodes.iter().map(|node| node.id).collect(),
            leader: Some(NodeId(0)),
            epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            brokers: nodes.iter().map(|node| (node.broker_epoch, true)).collect(),
        };
        World {
            min_in_sync: rng.usize(1..=2),
            rng,
            now: Instant(1_000_000_000),
            broker_epochs: count as i64,
            nodes,
            registrations: vec![first],
            messages: Vec::new(),
            committed: BTreeMap::new(),
            marks: BTreeMap::new(),
            ids: 0,
            steps: 0,
            elections: 0,
            cuts: 0,
            grown: 0,
            shrunk: 0,
        }
    }

    fn latest(&self) -> &Registration {
        self.registrations.last().unwrap()
    }

    fn register(&mut self, change: impl FnOnce(&mut Registration)) {
        let mut next = self.latest().clone();
        change(&mut next);
        next.partition_epoch.0 += 1;
        self.registrations.push(next);
    }

    fn any_node(&mut self) -> usize {
        self.rng.usize(0..self.nodes.len())
    }

    pub fn step(&mut self) {
        self.now += Duration::from_millis(self.rng.u64(0..8));
        match self.rng.u32(0..1000) {
            0..=399 => self.deliver(),
            400..=599 => {
                let at = self.any_node();
                self.fetch(at);
            }
            600..=719 => {
                let at = self.any_node();
                self.produce(at);
            }
            720..=819 => {
                let at = self.any_node();
                self.count(at);
            }
            820..=919 => {
                let at = self.any_node();
                self.learn(at);
            }
            920..=949 => {
                let at = self.any_node();
                self.shrink(at);
            }
            950..=953 => {
                let at = self.any_node();
                self.crash(at);
            }
            954..=973 => {
                let at = self.any_node();
                self.start(at);
            }
            974..=975 => self.elect(true),
            976..=980 => {
                let at = self.any_node();
                self.delete(at);
            }
            981..=995 if !self.messages.is_empty() => {
                let at = self.rng.usize(0..self.messages.len());
                let lost = self.messages.swap_remove(at);
                self.lost(&lost);
            }
            _ => {}
        }
        self.steps += 1;
        if self.steps.is_multiple_of(4) {
            self.check();
        }
    }

    /// A message will never come: its sender gives up waiting.
    fn lost(&mut self, message: &Message) {
        match message {
            Message::Fetch { from, .. } => self.nodes[from.0 as usize].fetching = false,
            Message::Fetched {
                to, broker_epoch, ..
            } => {
                let node = &mut self.nodes[to.0 as usize];
                node.fetching &= node.broker_epoch != *broker_epoch;
            }
            Message::Alter {
                from, broker_epoch, ..
            }
            | Message::Altered {
                to: from,
                broker_epoch,
                ..
            } => {
                // The request is sent again until metadata settles it.
                let node = &mut self.nodes[from.0 as usize];
                if node.broker_epoch == *broker_epoch {
                    node.asking = false;
                }
            }
        }
    }

    fn send(&mut self, message: Message) {
        if self.messages.len() < MESSAGES_MAX {
            self.messages.push(message);
        } else {
            self.lost(&message);
        }
    }

    fn deliver(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.messages.len());
        match self.messages.swap_remove(at) {
            Message::Fetch {
                from,
                to,
                asked,
                broker_epoch,
            } => self.serve(from, to, asked, broker_epoch),
            Message::Fetched {
                to,
                asked,
                answer,
                batches,
                broker_epoch,
            } => self.fetched(to, asked, answer, batches, broker_epoch),
            Message::Alter {
                from,
                broker_epoch,
                proposal,
            } => self.alter(from, broker_epoch, proposal),
            Message::Altered {
                to,
                broker_epoch,
                proposal,
                answer,
            } => {
                let now = self.now;
                let node = &mut self.nodes[to.0 as usize];
                if node.broker_epoch != broker_epoch {
                    return;
                }
                node.asking = false;
                if let Role::Leader(leader) = &mut node.role
                    && leader.on_altered(&proposal, &answer) == Outcome::Committed
                {
                    if proposal.grows {
                        self.grown += 1;
                    } else {
                        self.shrunk += 1;
                    }
                }
                self.advance(to, now);
            }
        }
    }

    fn produce(&mut self, at: usize) {
        let count = self.rng.i64(1..4);
        self.ids += 1;
        let (id, now) = (self.ids, self.now);
        let node = &mut self.nodes[at];
        let Role::Leader(leader) = &node.role else {
            return;
        };
        if !leader.has_enough_in_sync() && self.rng.bool() {
            return;
        }
        let batch = Batch {
            base: node.log.end,
            end: node.log.end + count,
            epoch: leader.epoch().0,
            id,
        };
        node.log.append(batch);
        self.advance(NodeId(at as i32), now);
    }

    /// The disk has taken some or all of what was appended.
    fn count(&mut self, at: usize) {
        let all = self.rng.bool();
        let node = &mut self.nodes[at];
        if matches!(node.role, Role::Down) {
            return;
        }
        let ends = node.log.batches.iter().map(|batch| batch.end);
        let mut ahead = ends.filter(|end| *end > node.log.counted);
        let next = if all {
            Some(node.log.end)
        } else {
            ahead.next()
        };
        node.log.counted = next.unwrap_or(node.log.counted).max(node.log.counted);
        self.advance(NodeId(at as i32), self.now);
    }

    fn advance(&mut self, id: NodeId, now: Instant) {
        let node = &mut self.nodes[id.0 as usize];
        let Role::Leader(leader) = &mut node.role else {
            return;
        };
        let local = LocalLog {
            start: Offset(node.log.start),
            counted: Offset(node.log.counted),
            end: Offset(node.log.end),
        };
        leader.advance(local, || now);
        let (epoch, mark) = (leader.epoch().0, leader.high_watermark().0);
        node.high_watermark = mark;
        // What this leader has shown before it shows again.
        let shown = self.marks.get(&epoch).copied().unwrap_or(0);
        let known = self.marks.entry(epoch).or_insert(mark);
        assert!(mark >= *known, "high watermark went back in epoch {epoch}");
        *known = mark.max(*known);
        for offset in node.log.start.max(shown)..mark {
            let batch = node.log.at(offset).unwrap_or_else(|| {
                panic!("node {id:?} has nothing at {offset} below its high watermark {mark}")
            });
            let before = *self.committed.entry(offset).or_insert(batch.id);
            assert_eq!(before, batch.id, "offset {offset} was committed twice");
        }
    }

    fn fetch(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        if node.fetching {
            return;
        }
        let Role::Follower(follower) = &mut node.role else {
            return;
        };
        let Some(leader) = follower.leader().filter(|_| follower.pause(now).is_none()) else {
            return;
        };
        let Some(asked) = follower.ask(&node.log, Offset(node.log.counted)) else {
            return;
        };
        node.fetching = true;
        let message = Message::Fetch {
            from: node.id,
            to: leader,
            asked,
            broker_epoch: node.broker_epoch,
        };
        self.send(message);
    }

    fn serve(&mut self, from: NodeId, to: NodeId, asked: Asked, broker_epoch: i64) {
        let (now, most) = (self.now, self.rng.usize(1..5));
        let node = &mut self.nodes[to.0 as usize];
        let mut proposed = false;
        let log = &node.log;
        let mut batches = Vec::new();
        let mut diverging = None;
        let answered = match &mut node.role {
            Role::Leader(leader) if leader.epoch() == asked.epoch => {
                let position = Position {
                    from: asked.from,
                    last_epoch: asked.last_epoch,
                };
                divergence(log, position).and_then(|found| {
                    diverging = found;
                    if found.is_some() {
                        return Ok(());
                    }
                    let fetch = FollowerFetch {
                        replica: from,
                        broker_epoch,
                        from: asked.from,
                        log_start: asked.log_start,
                        leader_end: log.log_end(),
                    };
                    leader
                        .on_fetch(&fetch, now)
                        .map_err(|refused| match refused {
                            FetchRefused::NotAssigned => ErrorCode::UNKNOWN_LEADER_EPOCH,
                            FetchRefused::StaleBroker => ErrorCode::NOT_LEADER_OR_FOLLOWER,
                        })?;
                    proposed = leader.propose_growth(from);
                    batches = log.read(asked.from.0, most);
                    Ok(())
                })
            }
            Role::Leader(leader) if leader.epoch() > asked.epoch => {
                Err(ErrorCode::FENCED_LEADER_EPOCH)
            }
            Role::Leader(_) => Err(ErrorCode::UNKNOWN_LEADER_EPOCH),
            _ => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        };
        let log_start = Offset(log.start);
        self.advance(to, now);
        if proposed {
            self.ask(to.0 as usize);
        }
        let answer = Answer {
            error: answered.err().unwrap_or(ErrorCode::NONE),
            high_watermark: Offset(self.nodes[to.0 as usize].high_watermark),
            log_start,
            diverging,
        };
        self.send(Message::Fetched {
            to: from,
            asked,
            answer,
            batches,
            broker_epoch,
        });
    }

    fn fetched(
        &mut self,
        to: NodeId,
        asked: Asked,
        answer: Answer,
        batches: Vec<Batch>,
        broker_epoch: i64,
    ) {
        let now = self.now;
        let at = to.0 as usize;
        if self.nodes[at].broker_epoch != broker_epoch {
            return;
        }
        let node = &mut self.nodes[at];
        node.fetching = false;
        let Role::Follower(follower) = &mut node.role else {
            return;
        };
        let mut step = follower.on_answer(&asked, &answer, &node.log, now, PAUSE_MAX);
        if step == Step::AskLatest {
            step = self.ask_bounds(at);
        }
        let node = &mut self.nodes[at];
        let Role::Follower(follower) = &mut node.role else {
            return;
        };
        match step {
            Step::Append => {
                for batch in batches {
                    if batch.epoch > asked.epoch.0 {
                        break;
                    }
                    if batch.base < node.log.end {
                        let start_over =
                            follower.on_straddling(Offset(batch.base), &answer, &node.log);
                        assert!(start_over.is_some(), "{batch:?} again: {:?}", node.log);
                        node.log.start_over(batch.base);
                    }
                    node.log.append(batch);
                }
                let (_, start) = follower.settle(&answer, &node.log);
                node.log.move_start(start.0);
            }
            Step::Truncate(offset) => {
                node.log.truncate(offset.0);
                follower.on_log_changed(&node.log);
                self.cuts += 1;
            }
            Step::StartOver(offset) => {
                node.log.start_over(offset.0);
                follower.on_log_changed(&node.log);
            }
            _ => {}
        }
        node.high_watermark = follower.high_watermark().0;
    }

    /// ListOffsets, twice, of a leader that can be reached.
    fn ask_bounds(&mut self, at: usize) -> Step {
        let Role::Follower(follower) = &self.nodes[at].role else {
            return Step::Ignore;
        };
        let leader = &self.nodes[follower.leader().map_or(at, |id| id.0 as usize)];
        match &leader.role {
            Role::Leader(led) if led.epoch() == follower.epoch() => {}
            _ => return Step::FetchAgain,
        }
        let log = &self.nodes[at].log;
        match follower.on_latest(Offset(leader.log.end), log) {
            Step::AskEarliest => follower.on_earliest(Offset(leader.log.start), log),
            step => step,
        }
    }

    fn shrink(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let end = Offset(node.log.end);
        if let Role::Leader(leader) = &mut node.role {
            leader.propose_shrink(end, now);
            self.ask(at);
            self.advance(NodeId(at as i32), now);
        }
    }

    /// Sends the proposal there is, if none is with the controller.
    fn ask(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Role::Leader(leader) = &node.role else {
            return;
        };
        if let Some(proposal) = leader.proposal(node.broker_epoch).filter(|_| !node.asking) {
            node.asking = true;
            let message = Message::Alter {
                from: node.id,
                broker_epoch: node.broker_epoch,
                proposal,
            };
            self.send(message);
        }
    }

    /// The controller's rules (KIP-497, KIP-903).
    fn alter(&mut self, from: NodeId, broker_epoch: i64, proposal: Proposal) {
        let now = self.latest();
        let trusted = proposal.members.iter().all(|(id, epoch)| {
            let (registered, alive) = now.brokers[id.0 as usize];
            alive && (*epoch == -1 || *epoch == registered)
        });
        let answer = if broker_epoch != now.brokers[from.0 as usize].0 {
            Err(ErrorCode::STALE_BROKER_EPOCH)
        } else if proposal.leader_epoch > now.epoch
            || proposal.partition_epoch > now.partition_epoch
        {
            Err(ErrorCode::NOT_CONTROLLER)
        } else if proposal.leader_epoch < now.epoch {
            Err(ErrorCode::FENCED_LEADER_EPOCH)
        } else if now.leader != Some(from) {
            Err(ErrorCode::INVALID_REQUEST)
        } else if proposal.partition_epoch < now.partition_epoch {
            Err(ErrorCode::INVALID_UPDATE_VERSION)
        } else if !trusted {
            Err(ErrorCode::INELIGIBLE_REPLICA)
        } else {
            let members = proposal.members.iter().map(|(id, _)| *id).collect();
            self.register(|next| next.in_sync = members);
            let now = self.latest();
            let altered = Altered {
                leader_epoch: now.epoch,
                partition_epoch: now.partition_epoch,
                in_sync: now.in_sync.clone(),
            };
            if self.rng.u32(0..5) == 0 {
                // The leader never hears of it.
                self.crash(from.0 as usize);
            }
            Ok(altered)
        };
        self.send(Message::Altered {
            to: from,
            broker_epoch,
            proposal,
            answer,
        });
    }

    /// A node hears of some or all of the metadata that is new to it.
    fn learn(&mut self, at: usize) {
        let (now, newest) = (self.now, self.registrations.len());
        let node = &mut self.nodes[at];
        if node.seen == newest || matches!(node.role, Role::Down) {
            return;
        }
        node.seen = self.rng.usize(node.seen + 1..=newest);
        let image = self.registrations[node.seen - 1].clone();
        let (known, known_partition) = match &node.role {
            Role::Leader(leader) => (leader.epoch(), leader.partition_epoch()),
            Role::Follower(follower) => (follower.epoch(), PartitionEpoch(-1)),
            Role::Down => return,
        };
        if let Role::Leader(leader) = &mut node.role {
            leader.set_registered(|id| image.registered(id));
        }
        if image.epoch < known {
            return;
        }
        if image.epoch == known {
            if let Role::Leader(leader) = &mut node.role
                && image.partition_epoch > known_partition
            {
                let replicas = leader.replicas().to_vec();
                leader.on_metadata(&replicas, &image.in_sync, image.partition_epoch);
            }
            return self.advance(NodeId(at as i32), now);
        }
        if image.leader != Some(node.id) {
            let mark = Offset(node.high_watermark);
            node.role = Role::Follower(Follower::new(image.epoch, image.leader, mark));
            return;
        }
        node.log.epochs.assign(image.epoch, Offset(node.log.end));
        let term = Term {
            epoch: image.epoch,
            partition_epoch: image.partition_epoch,
            replicas: (0..image.brokers.len() as i32).map(NodeId).collect(),
            in_sync: image.in_sync.clone(),
            start: Offset(node.log.end),
        };
        if let Role::Leader(leader) = &mut node.role {
            leader.renew(term, now);
        } else {
            let settings = LeaderSettings {
                local: node.id,
                min_in_sync: self.min_in_sync,
                lag_max: LAG,
            };
            let mark = Offset(node.high_watermark.clamp(node.log.start, node.log.end));
            node.role = Role::Leader(Box::new(Leader::new(settings, term, mark, now)));
        }
        if let Role::Leader(leader) = &mut node.role {
            leader.set_registered(|id| image.registered(id));
        }
        if image.epoch == self.latest().epoch {
            let end = self.nodes[at].log.end;
            let lost = self.committed.range(end..).next();
            assert_eq!(lost, None, "the new leader {at} ends at {end}");
        }
        self.advance(NodeId(at as i32), now);
    }

    /// A node dies; with its power what it does not count goes too. Its checkpointed high
    /// watermark may be old.
    fn crash(&mut self, at: usize) {
        let (power, old) = (self.rng.bool(), self.rng.bool());
        let node = &mut self.nodes[at];
        if matches!(node.role, Role::Down) {
            return;
        }
        node.role = Role::Down;
        node.fetching = false;
        node.asking = false;
        if power {
            node.log.truncate(node.log.counted);
        }
        node.log.counted = node.log.end;
        if old {
            node.high_watermark = self.rng.i64(0..=node.high_watermark);
        }
        let node = &mut self.nodes[at];
        node.high_watermark = node.high_watermark.clamp(node.log.start, node.log.end);
        let id = node.id;
        self.register(|next| {
            next.brokers[id.0 as usize].1 = false;
            // The last member stays.
            if next.in_sync.len() > 1 {
                next.in_sync.retain(|member| *member != id);
            }
        });
        if self.latest().leader == Some(id) {
            self.elect(false);
        }
    }

    fn start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !matches!(node.role, Role::Down) {
            return;
        }
        self.broker_epochs += 1;
        let epoch = self.broker_epochs;
        node.broker_epoch = epoch;
        let mark = Offset(node.high_watermark);
        node.role = Role::Follower(Follower::new(LeaderEpoch::UNKNOWN, None, mark));
        self.register(|next| next.brokers[at] = (epoch, true));
        // A broker acts on no metadata that is older than its own registration.
        self.nodes[at].seen = self.registrations.len() - 1;
        if self.latest().leader.is_none() {
            self.elect(false);
        }
    }

    /// Elects a live member of the in-sync set; `anew` also when there is a leader.
    fn elect(&mut self, anew: bool) {
        let now = self.latest();
        if anew && now.leader.is_none() {
            return;
        }
        let members = now.in_sync.iter().copied();
        let live: Vec<NodeId> = members.filter(|id| now.is_alive(*id)).collect();
        let leader = self.rng.choice(live);
        self.elections += 1;
        self.register(|next| {
            next.leader = leader;
            next.epoch.0 += 1;
        });
    }

    fn delete(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if matches!(node.role, Role::Leader(_)) {
            let to = self.rng.i64(node.log.start..=node.high_watermark);
            node.log.move_start(to);
        }
    }

    /// Whoever may be read from shows nothing but what is committed.
    fn check(&self) {
        for node in &self.nodes {
            for offset in node.log.start..node.high_watermark {
                let found = node.log.at(offset).map(|batch| batch.id);
                assert_eq!(
                    found,
                    self.committed.get(&offset).copied(),
                    "node {:?} at {offset}, high watermark {}, {:?}",
                    node.id,
                    node.high_watermark,
                    node.role
                );
            }
        }
    }

    /// Everybody lives and every message arrives: all become the same, with all that was committed.
    pub fn settle(&mut self) {
        for round in 0..4000 {
            self.now += Duration::from_millis(5);
            for at in 0..self.nodes.len() {
                self.start(at);
                self.learn(at);
                self.count(at);
                self.fetch(at);
                if round % 10 == 0 {
                    self.shrink(at);
                }
                self.ask(at);
            }
            for _ in 0..self.messages.len() {
                self.deliver();
            }
            self.check();
        }
        let leader = self.latest().leader.expect("everybody is alive");
        let led = &self.nodes[leader.0 as usize];
        assert_eq!(
            self.latest().in_sync.len(),
            self.nodes.len(),
            "not everybody is in sync: {:?}",
            self.latest()
        );
        for node in &self.nodes {
            let role = &node.role;
            assert_eq!(node.log.end, led.log.end, "{:?} {role:?}", node.id);
            assert_eq!(node.high_watermark, led.log.end, "{:?} {role:?}", node.id);
            for (offset, id) in self.committed.range(node.log.start..) {
                let found = node.log.at(*offset).map(|batch| batch.id);
                assert_eq!(found, Some(*id), "{:?} at {offset}", node.id);
            }
        }
    }
}
