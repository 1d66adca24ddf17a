//! What the leader of a partition knows and decides: how far each follower is, the in-sync set and
//! the high watermark. Pure; one value per led partition, on the partition's shard. Never touches
//! the log.
//!
//! The watermark chain, asserted at every change:
//! `log_start <= high_watermark <= log_end`, and the high watermark never moves back within an
//! epoch.

use super::in_sync::{Altered, InSync, Outcome, Proposal};
use super::mutation::{self, Mutation};
use crate::rt::Instant;
use crate::types::{LeaderEpoch, NodeId, Offset, PartitionEpoch};
use crate::wire::ErrorCode;
use std::time::Duration;

/// What the metadata says of a follower's broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    pub epoch: i64,
    /// Not fenced.
    pub alive: bool,
    /// It may be in the in-sync set: neither fenced nor shutting down.
    pub eligible: bool,
}

/// How far a follower is, as far as its fetches have told in this epoch.
#[derive(Clone, Debug)]
pub struct Remote {
    pub id: NodeId,
    /// -1 before its first fetch.
    pub log_start: Offset,
    /// -1 before its first fetch.
    pub log_end: Offset,
    /// When it last had all that the leader had.
    caught_up: Option<Instant>,
    /// Its last fetch, and the leader's log end then.
    last_fetch: Option<(Instant, Offset)>,
    /// Its broker's epoch as it said itself; `None` before its first fetch.
    broker_epoch: Option<i64>,
    registered: Option<Registered>,
}

/// One fetch of a follower, at the position that it has reached.
#[derive(Clone, Copy, Debug)]
pub struct FollowerFetch {
    pub replica: NodeId,
    /// -1 if the request cannot say it.
    pub broker_epoch: i64,
    pub from: Offset,
    pub log_start: Offset,
    /// The leader's log end at this fetch.
    pub leader_end: Offset,
}

/// Why a fetch tells nothing about a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchRefused {
    /// No replica of this partition.
    NotAssigned,
    /// Of an earlier life of its broker.
    StaleBroker,
}

/// The leader's own log at one moment.
#[derive(Clone, Copy, Debug)]
pub struct LocalLog {
    pub start: Offset,
    /// The end of what the durability row counts.
    pub counted: Offset,
    pub end: Offset,
}

/// What a leader begins an epoch with.
#[derive(Clone, Debug)]
pub struct Term {
    pub epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    pub replicas: Vec<NodeId>,
    pub in_sync: Vec<NodeId>,
    /// The log end now. Until the high watermark has passed it, what consumers may know as
    /// "latest" is not settled (KIP-207).
    pub start: Offset,
}

/// What does not change with an epoch.
#[derive(Clone, Copy, Debug)]
pub struct LeaderSettings {
    pub local: NodeId,
    pub min_in_sync: usize,
    /// `replica.lag.time.max.ms`.
    pub lag_max: Duration,
}

/// Leader state of one partition.
#[derive(Debug, Clone)]
pub struct Leader {
    settings: LeaderSettings,
    epoch: LeaderEpoch,
    epoch_start: Offset,
    replicas: Vec<NodeId>,
    remotes: Vec<Remote>,
    in_sync: InSync,
    high_watermark: Offset,
}

impl Remote {
    fn unknown(id: NodeId) -> Remote {
        Remote {
            id,
            log_start: Offset::UNKNOWN,
            log_end: Offset::UNKNOWN,
            caught_up: None,
            last_fetch: None,
            broker_epoch: None,
            registered: None,
        }
    }

    fn is_caught_up(&self, leader_end: Offset, now: Instant, lag_max: Duration) -> bool {
        let recently = |at| now.since(at) <= lag_max;
        self.log_end == leader_end || self.caught_up.is_some_and(recently)
    }

    /// Whether the controller would take it into the set.
    fn is_eligible(&self) -> bool {
        let Some(registered) = self.registered else {
            return false;
        };
        let same_life = |epoch| epoch == -1 || epoch == registered.epoch;
        registered.eligible && self.broker_epoch.is_some_and(same_life)
    }

    /// When it last had all that the leader had.
    pub fn caught_up_at(&self) -> Option<Instant> {
        self.caught_up
    }
}

impl Leader {
    /// A leader that takes over with what its log holds. `high_watermark` is what this replica
    /// knew before, clamped to the log. Followers in the set get the benefit of the doubt for one
    /// lag time.
    pub fn new(
        settings: LeaderSettings,
        term: Term,
        high_watermark: Offset,
        now: Instant,
    ) -> Leader {
        assert!(
            high_watermark <= term.start,
            "high watermark {high_watermark} beyond the log end {} at the start of {:?}",
            term.start,
            term.epoch
        );
        let mut leader = Leader {
            settings,
            epoch: term.epoch,
            epoch_start: term.start,
            replicas: Vec::new(),
            remotes: Vec::new(),
            in_sync: InSync::new(term.in_sync, term.partition_epoch),
            high_watermark,
        };
        leader.set_replicas(term.replicas);
        for remote in &mut leader.remotes {
            let is_in = leader.in_sync.committed().contains(&remote.id);
            remote.caught_up = is_in.then_some(now);
        }
        leader
    }

    /// The same leader begins another epoch. What is known of the followers holds on if nobody
    /// else can have led in between.
    pub fn renew(&mut self, term: Term, now: Instant) {
        let successive = term.epoch.0 == self.epoch.0 + 1;
        self.epoch = term.epoch;
        self.epoch_start = term.start;
        self.in_sync = InSync::new(term.in_sync, term.partition_epoch);
        self.set_replicas(term.replicas);
        for remote in &mut self.remotes {
            let is_in = self.in_sync.committed().contains(&remote.id);
            if !successive {
                remote.log_end = Offset::UNKNOWN;
                remote.log_start = Offset::UNKNOWN;
            }
            remote.caught_up = is_in.then_some(now);
            remote.last_fetch = is_in.then_some((now, term.start));
        }
    }

    fn set_replicas(&mut self, replicas: Vec<NodeId>) {
        let local = self.settings.local;
        self.remotes.retain(|remote| replicas.contains(&remote.id));
        for id in replicas.iter().filter(|id| **id != local) {
            if !self.remotes.iter().any(|remote| remote.id == *id) {
                self.remotes.push(Remote::unknown(*id));
            }
        }
        self.replicas = replicas;
    }

    pub fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    pub fn partition_epoch(&self) -> PartitionEpoch {
        self.in_sync.partition_epoch()
    }

    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// The committed in-sync set.
    pub fn in_sync(&self) -> &[NodeId] {
        self.in_sync.committed()
    }

    pub fn replicas(&self) -> &[NodeId] {
        &self.replicas
    }

    pub fn remotes(&self) -> &[Remote] {
        &self.remotes
    }

    /// Whether there are no followers.
    pub fn is_alone(&self) -> bool {
        self.remotes.is_empty()
    }

    /// `min.insync.replicas`, but never more than there are replicas (KIP-966).
    pub fn effective_min_in_sync(&self) -> usize {
        self.settings.min_in_sync.min(self.replicas.len()).max(1)
    }

    pub fn set_min_in_sync(&mut self, min_in_sync: usize) {
        self.settings.min_in_sync = min_in_sync;
    }

    /// Takes what the metadata says of the followers' brokers.
    pub fn set_registered(&mut self, of: impl Fn(NodeId) -> Option<Registered>) {
        for remote in &mut self.remotes {
            remote.registered = of(remote.id);
        }
    }

    /// Whether an acks=all produce may be appended now.
    pub fn has_enough_in_sync(&self) -> bool {
        self.in_sync.committed().len() >= self.effective_min_in_sync()
    }

    /// Whether what the high watermark covers was acknowledged by enough replicas.
    pub fn is_well_replicated(&self) -> bool {
        self.in_sync.maximal().len() >= self.effective_min_in_sync()
    }

    /// Whether "latest" is settled for consumers: everything of earlier epochs is committed.
    pub fn is_latest_known(&self) -> bool {
        self.high_watermark >= self.epoch_start
    }

    /// The lowest log start over this replica and the followers that are alive; -1 while one of
    /// them is not known (DeleteRecords waits for it).
    pub fn low_watermark(&self, local_start: Offset) -> Offset {
        let alive = |remote: &&Remote| remote.registered.is_some_and(|broker| broker.alive);
        let starts = self.remotes.iter().filter(alive).map(|r| r.log_start);
        starts.min().map_or(local_start, |min| min.min(local_start))
    }

    /// A follower has fetched from its log end, which `log` can serve. True if that is news of how
    /// far it is.
    ///
    /// # Errors
    /// The fetch is not one of a follower of this partition.
    pub fn on_fetch(&mut self, fetch: &FollowerFetch, now: Instant) -> Result<bool, FetchRefused> {
        let remotes = &mut self.remotes;
        let remote = remotes
            .iter_mut()
            .find(|remote| remote.id == fetch.replica)
            .ok_or(FetchRefused::NotAssigned)?;
        let registered = remote.registered.map(|broker| broker.epoch);
        if fetch.broker_epoch != -1 && registered.is_some_and(|epoch| fetch.broker_epoch < epoch) {
            return Err(FetchRefused::StaleBroker);
        }
        if fetch.from >= fetch.leader_end {
            remote.caught_up = remote.caught_up.max(Some(now));
        } else if let Some((at, end)) = remote.last_fetch
            && fetch.from >= end
        {
            // It had all there was at its last fetch.
            remote.caught_up = remote.caught_up.max(Some(at));
        }
        let moved = remote.log_end != fetch.from || remote.log_start != fetch.log_start;
        remote.log_end = fetch.from;
        remote.log_start = fetch.log_start;
        remote.last_fetch = Some((now, fetch.leader_end));
        remote.broker_epoch = Some(fetch.broker_epoch);
        Ok(moved)
    }

    /// Proposes to take a follower into the set if it belongs there now. True if the controller is
    /// to be asked.
    pub fn propose_growth(&mut self, id: NodeId) -> bool {
        if self.in_sync.is_pending() || self.in_sync.committed().contains(&id) {
            return false;
        }
        let Some(remote) = self.remotes.iter().find(|remote| remote.id == id) else {
            return false;
        };
        let is_level = remote.log_end >= self.high_watermark && remote.log_end >= self.epoch_start;
        if !is_level || !remote.is_eligible() {
            return false;
        }
        self.in_sync.grow(id);
        true
    }

    /// Proposes to let go of the members that have fallen behind for too long. True if the
    /// controller is to be asked.
    pub fn propose_shrink(&mut self, log_end: Offset, now: Instant) -> bool {
        if self.in_sync.is_pending() {
            return false;
        }
        let lag_max = self.settings.lag_max;
        let behind: Vec<NodeId> = self
            .remotes
            .iter()
            .filter(|remote| self.in_sync.committed().contains(&remote.id))
            .filter(|remote| !remote.is_caught_up(log_end, now, lag_max))
            .map(|remote| remote.id)
            .collect();
        if behind.is_empty() {
            return false;
        }
        let members = self.in_sync.shrink(&behind).to_vec();
        if mutation::is_on(Mutation::ShrinkUnasked) {
            let epoch = self.in_sync.partition_epoch();
            self.in_sync = InSync::new(members, epoch);
        }
        true
    }

    /// The change of the set on its way, as it is sent; `local_epoch` is this broker's own.
    pub fn proposal(&self, local_epoch: i64) -> Option<Proposal> {
        self.in_sync.proposal(self.epoch, |id| {
            if id == self.settings.local {
                return local_epoch;
            }
            let remote = self.remotes.iter().find(|remote| remote.id == id);
            remote.and_then(|remote| remote.broker_epoch).unwrap_or(-1)
        })
    }

    /// The controller's answer to a proposal.
    pub fn on_altered(
        &mut self,
        proposal: &Proposal,
        answer: &Result<Altered, ErrorCode>,
    ) -> Outcome {
        self.in_sync.on_answer(proposal, self.epoch, answer)
    }

    /// The metadata of this epoch has moved on. False if it is not newer than what is known.
    pub fn on_metadata(
        &mut self,
        replicas: &[NodeId],
        in_sync: &[NodeId],
        partition_epoch: PartitionEpoch,
    ) -> bool {
        if !self.in_sync.on_metadata(in_sync, partition_epoch) {
            return false;
        }
        if self.replicas != replicas {
            self.set_replicas(replicas.to_vec());
        }
        true
    }

    /// The leader's own log or a follower may have moved. Returns the new high watermark if it
    /// moved. `now` is asked for only where there are followers.
    pub fn advance(&mut self, log: LocalLog, now: impl FnOnce() -> Instant) -> Option<Offset> {
        assert!(
            log.start <= log.end && log.counted <= log.end,
            "log start {}, counted {}, log end {} are out of order",
            log.start,
            log.counted,
            log.end
        );
        // Below the minimum the high watermark stands still, also for acks=1 data (KIP-966).
        let committed = if !self.has_enough_in_sync() {
            self.high_watermark
        } else if self.remotes.is_empty() || mutation::is_on(Mutation::CommitAlone) {
            log.counted
        } else {
            self.committed(&log, now())
        };
        let next = committed.max(log.start).max(self.high_watermark);
        assert!(
            next <= log.end,
            "high watermark {next} beyond the log end {}",
            log.end
        );
        if next > self.high_watermark {
            self.high_watermark = next;
            Some(next)
        } else {
            None
        }
    }

    /// What all have that count: this replica by its durability row, every follower that is in the
    /// set or may be, and those that are about to be.
    fn committed(&self, log: &LocalLog, now: Instant) -> Offset {
        let maximal = self.in_sync.maximal();
        let lag_max = self.settings.lag_max;
        let mut committed = log.counted;
        for remote in self.remotes.iter().filter(|r| r.log_end < log.counted) {
            let counts = maximal.contains(&remote.id)
                || remote.is_caught_up(log.end, now, lag_max) && remote.is_eligible();
            if counts {
                committed = committed.min(remote.log_end);
            }
        }
        committed
    }
}

#[cfg(test)]
#[path = "leader_tests.rs"]
mod tests;
