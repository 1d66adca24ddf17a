//! One partition's replica on its shard: its role, leader or follower, beside the log. Owned by
//! one shard; everybody else sends that shard a message. Never talks to a client.

use super::delayed::{Isolation, Need};
use super::follower::Follower;
use super::in_sync::{Altered, Outcome, Proposal};
use super::leader::{
    FetchRefused, FollowerFetch, Leader, LeaderSettings, LocalLog, Registered, Term,
};
use super::mutation::{self, Mutation};
use crate::log::{AppendAs, AppendError, Appended, Log};
use crate::observe::hop::{self, Hop, What};
use crate::rt;
use crate::rt::sync::{Event, Semaphore};
use crate::types::{LeaderEpoch, NodeId, Offset, PartitionEpoch, PartitionId};
use crate::wire::{ErrorCode, Str};
use bytes::Bytes;
use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;

/// What a replica does for its partition.
#[derive(Debug)]
enum Role {
    Leader(Leader),
    /// Also while there is no leader.
    Follower(Follower),
}

/// A partition this shard holds a replica of.
pub struct Partition {
    pub id: PartitionId,
    pub topic: Str,
    pub log: Rc<Log>,
    /// Taken by whoever cuts the log, and by whoever changes the role: no leader begins its epoch
    /// on a log that is being cut.
    pub turn: Semaphore,
    role: RefCell<Role>,
    settings: Cell<LeaderSettings>,
    /// A leader without interruption since this epoch.
    led_since: Cell<LeaderEpoch>,
    /// While this replica does not lead.
    epoch: Cell<PartitionEpoch>,
    /// Set when the replica is deleted: operations that still hold the partition end with an error.
    gone: Cell<bool>,
    /// Copying it is throttled: as its leader, as its follower.
    throttled: Cell<(bool, bool)>,
    /// A follower may have moved its log start.
    low_watermark: Event,
}

/// What a reader gets told about a partition's offsets beside the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub log_start: Offset,
    pub high_watermark: Offset,
    pub last_stable: Offset,
    pub log_end: Offset,
}

/// What a follower's fetch has brought about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchNews {
    /// The high watermark may move.
    pub moved: bool,
    /// The controller is to be asked to take the follower into the in-sync set.
    pub proposed: bool,
}

impl Partition {
    /// A replica that has no role yet: it follows nobody. `high_watermark` is the checkpointed one,
    /// clamped to the log.
    pub fn new(
        id: PartitionId,
        topic: Str,
        log: Rc<Log>,
        settings: LeaderSettings,
        high_watermark: Offset,
    ) -> Rc<Partition> {
        let follower = Follower::new(LeaderEpoch::UNKNOWN, None, high_watermark);
        Rc::new(Partition {
            id,
            topic,
            log,
            turn: Semaphore::new(1),
            role: RefCell::new(Role::Follower(follower)),
            settings: Cell::new(settings),
            led_since: Cell::new(LeaderEpoch::UNKNOWN),
            epoch: Cell::new(PartitionEpoch(-1)),
            gone: Cell::new(false),
            throttled: Cell::new((false, false)),
            low_watermark: Event::new(),
        })
    }

    /// The leader's decisions, if this replica leads.
    pub fn leader(&self) -> Option<Ref<'_, Leader>> {
        Ref::filter_map(self.role.borrow(), |role| match role {
            Role::Leader(leader) => Some(leader),
            Role::Follower(_) => None,
        })
        .ok()
    }

    fn leader_mut(&self) -> Option<RefMut<'_, Leader>> {
        RefMut::filter_map(self.role.borrow_mut(), |role| match role {
            Role::Leader(leader) => Some(leader),
            Role::Follower(_) => None,
        })
        .ok()
    }

    /// Runs `run` on the follower's decisions, if this replica follows. Not to be held across an
    /// await.
    pub fn as_follower<R>(&self, run: impl FnOnce(&mut Follower, &Log) -> R) -> Option<R> {
        match &mut *self.role.borrow_mut() {
            Role::Follower(follower) if !self.gone.get() => Some(run(follower, &self.log)),
            _ => None,
        }
    }

    pub fn is_leader(&self) -> bool {
        matches!(&*self.role.borrow(), Role::Leader(_)) && !self.gone.get()
    }

    /// Whether this replica follows a leader.
    pub fn is_following(&self) -> bool {
        match &*self.role.borrow() {
            Role::Follower(follower) => follower.leader().is_some() && !self.gone.get(),
            Role::Leader(_) => false,
        }
    }

    pub fn leader_epoch(&self) -> LeaderEpoch {
        match &*self.role.borrow() {
            Role::Leader(leader) => leader.epoch(),
            Role::Follower(follower) => follower.epoch(),
        }
    }

    pub fn partition_epoch(&self) -> PartitionEpoch {
        match &*self.role.borrow() {
            Role::Leader(leader) => leader.partition_epoch(),
            Role::Follower(_) => self.epoch.get(),
        }
    }

    pub fn high_watermark(&self) -> Offset {
        match &*self.role.borrow() {
            Role::Leader(leader) => leader.high_watermark(),
            Role::Follower(follower) => follower.high_watermark(),
        }
    }

    pub fn set_min_in_sync(&self, min_in_sync: usize) {
        self.settings.set(LeaderSettings {
            min_in_sync,
            ..self.settings.get()
        });
        if let Some(mut leader) = self.leader_mut() {
            leader.set_min_in_sync(min_in_sync);
        }
    }

    pub fn set_throttled(&self, as_leader: bool, as_follower: bool) {
        self.throttled.set((as_leader, as_follower));
    }

    pub fn is_throttled(&self, as_leader: bool) -> bool {
        let (leader, follower) = self.throttled.get();
        if as_leader { leader } else { follower }
    }

    /// Whether a follower of this leader is in sync.
    pub fn has_in_sync(&self, id: NodeId) -> bool {
        self.leader()
            .is_some_and(|leader| leader.in_sync().contains(&id))
    }

    /// Leads from here on, with what the log holds; the epoch's start is noted before anything is
    /// appended. The caller holds `turn`. True if the leadership is a new one: another may have led
    /// since, and what was waited for is answered as lost.
    pub fn lead(&self, mut term: Term, registered: impl Fn(NodeId) -> Option<Registered>) -> bool {
        self.log.start_epoch(term.epoch);
        term.start = self.log.log_end();
        let now = rt::now();
        let mut role = self.role.borrow_mut();
        match &mut *role {
            Role::Leader(leader) => {
                let is_new = term.epoch.0 != leader.epoch().0 + 1;
                if is_new {
                    self.led_since.set(term.epoch);
                }
                leader.renew(term, now);
                leader.set_registered(registered);
                is_new
            }
            Role::Follower(follower) => {
                self.led_since.set(term.epoch);
                let high_watermark = follower
                    .high_watermark()
                    .clamp(self.log.log_start(), term.start);
                let mut leader = Leader::new(self.settings.get(), term, high_watermark, now);
                leader.set_registered(registered);
                *role = Role::Leader(leader);
                true
            }
        }
    }

    /// Follows from here on; `leader` is `None` while there is none. True if it led before.
    pub fn follow(
        &self,
        epoch: LeaderEpoch,
        partition_epoch: PartitionEpoch,
        leader: Option<NodeId>,
    ) -> bool {
        let high_watermark = self.high_watermark();
        self.epoch.set(partition_epoch);
        let follower = Follower::new(epoch, leader, high_watermark);
        let before = self.role.replace(Role::Follower(follower));
        self.low_watermark.notify_all();
        matches!(before, Role::Leader(_))
    }

    /// The metadata of this leader epoch has moved on. True if a leader's in-sync set may have.
    pub fn on_metadata(
        &self,
        replicas: &[NodeId],
        in_sync: &[NodeId],
        partition_epoch: PartitionEpoch,
        registered: impl Fn(NodeId) -> Option<Registered>,
    ) -> bool {
        match &mut *self.role.borrow_mut() {
            Role::Leader(leader) => {
                let news = leader.on_metadata(replicas, in_sync, partition_epoch);
                if news {
                    leader.set_registered(registered);
                }
                news
            }
            Role::Follower(_) => {
                self.epoch.set(self.epoch.get().max(partition_epoch));
                false
            }
        }
    }

    /// The metadata says something new of the brokers.
    pub fn set_registered(&self, registered: impl Fn(NodeId) -> Option<Registered>) {
        if let Some(mut leader) = self.leader_mut() {
            leader.set_registered(registered);
            drop(leader);
            self.low_watermark.notify_all();
        }
    }

    /// The replica is deleted; whoever waits here is answered with NOT_LEADER_OR_FOLLOWER.
    pub fn mark_gone(&self) {
        self.gone.set(true);
        self.low_watermark.notify_all();
    }

    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Checks the epoch a client believes in (KIP-320); -1 asks for no check. With `leader_only`
    /// a follower does not answer.
    pub fn check_epoch(&self, believed: i32, leader_only: bool) -> Result<(), ErrorCode> {
        // Whoever leads it by now: what is asked of this replica, its disk does not give.
        if self.log.is_offline() {
            return Err(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        if self.gone.get() {
            return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        }
        let epoch = self.leader_epoch().0;
        if believed >= 0 && believed < epoch {
            Err(ErrorCode::FENCED_LEADER_EPOCH)
        } else if believed > epoch {
            Err(ErrorCode::UNKNOWN_LEADER_EPOCH)
        } else if leader_only && !self.is_leader() {
            Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)
        } else {
            Ok(())
        }
    }

    /// Appends a produce request's batch. With `need_enough` (acks=all) nothing is written while
    /// the in-sync set is below the minimum.
    pub fn append(
        &self,
        records: Bytes,
        mut how: AppendAs,
        need_enough: bool,
    ) -> Result<Appended, AppendError> {
        let not_leader = || AppendError::code(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        if self.log.is_offline() {
            return Err(AppendError::code(ErrorCode::KAFKA_STORAGE_ERROR));
        }
        if self.gone.get() {
            return Err(not_leader());
        }
        {
            let leader = self.leader().ok_or_else(not_leader)?;
            if need_enough && !leader.has_enough_in_sync() {
                return Err(AppendError::code(ErrorCode::NOT_ENOUGH_REPLICAS));
            }
            how.leader_epoch = leader.epoch();
        }
        let appended = self.log.append_as_leader(records, how)?;
        hop::record(|| self.hop(What::LeaderAppend).offset(appended.first_offset.0));
        Ok(appended)
    }

    /// Up to where the log counts in its durability row.
    fn counted(&self) -> Offset {
        match mutation::is_on(Mutation::CountUnflushed) {
            true => self.log.written(),
            false => self.log.counted(),
        }
    }

    /// Takes the log's progress into a leader's high watermark; true if it moved.
    pub fn advance(&self) -> bool {
        let Some(mut leader) = self.leader_mut() else {
            return false;
        };
        let log = LocalLog {
            start: self.log.log_start(),
            counted: self.counted(),
            end: self.log.log_end(),
        };
        let before = leader.high_watermark();
        let moved = leader.advance(log, rt::now).is_some();
        drop(leader);
        if moved {
            hop::record(|| self.hop(What::HighWatermark).offset(before.0));
        }
        moved
    }

    /// A hop of a record here, with where the log ends and what is committed now.
    pub fn hop(&self, what: What) -> Hop {
        let hop = Hop::new(what, &self.topic, self.id.index);
        hop.log(self.log.log_end().0, self.high_watermark().0)
    }

    /// A follower has fetched from its log end, a position that this log can serve.
    ///
    /// # Errors
    /// It is none of ours, or this replica does not lead.
    pub fn on_follower_fetch(&self, fetch: &FollowerFetch) -> Result<FetchNews, FetchRefused> {
        let Some(mut leader) = self.leader_mut() else {
            return Err(FetchRefused::NotAssigned);
        };
        let moved = leader.on_fetch(fetch, rt::now())?;
        let proposed = leader.propose_growth(fetch.replica);
        drop(leader);
        if moved {
            self.low_watermark.notify_all();
        }
        Ok(FetchNews { moved, proposed })
    }

    /// Proposes to let go of members of the in-sync set that have fallen behind. True if the
    /// controller is to be asked.
    pub fn propose_shrink(&self) -> bool {
        let end = self.log.log_end();
        self.leader_mut()
            .is_some_and(|mut leader| !leader.is_alone() && leader.propose_shrink(end, rt::now()))
    }

    /// The change of the in-sync set on its way, as it is sent.
    pub fn proposal(&self, local_epoch: i64) -> Option<Proposal> {
        self.leader()?.proposal(local_epoch)
    }

    /// The controller's answer to a proposal.
    pub fn on_altered(&self, proposal: &Proposal, answer: &Result<Altered, ErrorCode>) -> Outcome {
        self.leader_mut().map_or(Outcome::Stale, |mut leader| {
            leader.on_altered(proposal, answer)
        })
    }

    /// The lowest log start of all live replicas, if this one leads.
    pub fn low_watermark(&self) -> Option<Offset> {
        let start = self.log.log_start();
        (!self.gone.get()).then(|| Some(self.leader()?.low_watermark(start)))?
    }

    /// Waits until [`Partition::low_watermark`] may have moved.
    pub async fn low_watermark_moved(&self) {
        self.low_watermark.wait().await;
    }

    /// Whether "latest" is settled for consumers.
    pub fn is_latest_known(&self) -> bool {
        self.leader().is_none_or(|leader| leader.is_latest_known())
    }

    pub fn bounds(&self) -> Bounds {
        let high_watermark = self.high_watermark();
        Bounds {
            log_start: self.log.log_start(),
            high_watermark,
            last_stable: self.log.last_stable_offset(high_watermark),
            log_end: self.log.log_end(),
        }
    }

    /// One past the last offset that a reader of this isolation may read now.
    pub fn readable_end(&self, isolation: Isolation) -> Offset {
        match isolation {
            // What is not written yet cannot be read.
            Isolation::LogEnd => self.log.written(),
            Isolation::HighWatermark => self.high_watermark(),
            Isolation::LastStable => self.bounds().last_stable,
        }
    }

    /// The outcome of a produced batch, once there is one.
    pub fn produce_outcome(
        &self,
        need: Need,
        epoch: LeaderEpoch,
        required: Offset,
    ) -> Option<ErrorCode> {
        if self.log.is_offline() {
            return Some(ErrorCode::KAFKA_STORAGE_ERROR);
        }
        // Another epoch of the same leader changes nothing for what it has appended.
        let led = |_: &Ref<'_, Leader>| !self.gone.get() && epoch >= self.led_since.get();
        let Some(leader) = self.leader().filter(led) else {
            return Some(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        };
        if let Some(code) = self.log.lost_since(required) {
            return Some(code);
        }
        match need {
            Need::Counted if self.counted() >= required => Some(ErrorCode::NONE),
            Need::Committed if leader.high_watermark() >= required => {
                Some(if leader.is_well_replicated() {
                    ErrorCode::NONE
                } else {
                    ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND
                })
            }
            _ => None,
        }
    }

    /// Bytes a waiting fetch could read now; `None` when it can only get an error.
    pub fn readable_bytes(
        &self,
        isolation: Isolation,
        epoch: LeaderEpoch,
        from: Offset,
    ) -> Option<u64> {
        if self.gone.get() || self.log.is_offline() || self.leader_epoch() != epoch {
            return None;
        }
        let end = self.readable_end(isolation);
        if from < self.log.log_start() || from > self.log.log_end() {
            return None;
        }
        if from >= end {
            return Some(0);
        }
        Some(self.log.bytes_between(from, end))
    }
}
