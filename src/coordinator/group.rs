//! A classic group: its state, members, leader and protocol votes, and the rules between them.
//! Part of the shard state machine on the core of the group's partition. It sets no timers and
//! sends nothing: that is `rebalance`.

use std::collections::BTreeSet;
use std::fmt;

use ahash::{AHashMap, RandomState};
use bytes::Bytes;
use indexmap::{IndexMap, IndexSet};

use super::member::{Member, Protocol};
use super::timers::TimerId;
use crate::wire::{ErrorCode, Str};

/// The protocol type of consumers; only its metadata is understood here, and only for expiring
/// offsets.
pub(super) const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

/// The states of a classic group. There is no Dead state to be in: a dead group is one that is
/// not in the map, and is described as `Dead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupState {
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
}

impl GroupState {
    pub(super) const DEAD_NAME: &'static str = "Dead";

    pub(super) fn name(self) -> &'static str {
        match self {
            GroupState::Empty => "Empty",
            GroupState::PreparingRebalance => "PreparingRebalance",
            GroupState::CompletingRebalance => "CompletingRebalance",
            GroupState::Stable => "Stable",
        }
    }

    fn may_follow(self, before: GroupState) -> bool {
        use GroupState::{CompletingRebalance, Empty, PreparingRebalance, Stable};
        match self {
            Empty | CompletingRebalance => before == PreparingRebalance,
            PreparingRebalance => before != PreparingRebalance,
            Stable => before == CompletingRebalance,
        }
    }
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The running timer of a join phase.
#[derive(Clone, Copy, Debug)]
pub(super) enum JoinTimer {
    /// First join phase of an empty group: waits `delay_ms`, and again while members arrive and
    /// `remaining_ms` lasts.
    Initial {
        timer: TimerId,
        delay_ms: i32,
        remaining_ms: i32,
    },
    /// Ends after the rebalance timeout.
    Rebalance { timer: TimerId },
}

/// Names one life of a group: an id may be deleted and made again while an append is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupRef {
    pub(super) id: Str,
    birth: u64,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: Str,
    /// Unique in the shard.
    birth: u64,
    state: GroupState,
    previous: GroupState,
    /// Wall clock of the last change of state; `None` in records older than value version 2.
    pub(super) state_since_ms: Option<i64>,
    /// `None` for a group that only stores offsets.
    pub(super) protocol_type: Option<Str>,
    pub(super) protocol_name: Option<Str>,
    pub(super) generation: i32,
    pub(super) leader: Option<Str>,
    /// In an order that depends only on what happened, so that a choice among members is the same
    /// in a replay.
    pub(super) members: IndexMap<Str, Member, RandomState>,
    /// Instance id to member id.
    static_members: AHashMap<Str, Str>,
    /// Ids given out with MEMBER_ID_REQUIRED, with their session timers.
    pub(super) pending_join: IndexMap<Str, TimerId, RandomState>,
    awaiting_join: usize,
    /// How many members support a protocol.
    pub(super) supported: AHashMap<Str, usize>,
    pub(super) pending_sync: IndexSet<Str, RandomState>,
    /// Topics of all members of a stable consumer group; `None` if that is not known.
    pub(super) subscribed_topics: Option<BTreeSet<Str>>,
    pub(super) new_member_added: bool,
    pub(super) join_timer: Option<JoinTimer>,
    pub(super) sync_timer: Option<TimerId>,
    /// A record of it is in the log. Until then it is not listed, and is forgotten if its first
    /// record is lost.
    pub(super) is_durable: bool,
    pub(super) appends_in_flight: usize,
    /// The generation whose assignment is being stored.
    pub(super) storing_assignment_of: Option<i32>,
}

impl Group {
    pub(super) fn new(id: Str, birth: u64, wall_ms: i64) -> Group {
        Group {
            id,
            birth,
            state: GroupState::Empty,
            previous: GroupState::Empty,
            state_since_ms: Some(wall_ms),
            protocol_type: None,
            protocol_name: None,
            generation: 0,
            leader: None,
            members: IndexMap::default(),
            static_members: AHashMap::new(),
            pending_join: IndexMap::default(),
            awaiting_join: 0,
            supported: AHashMap::new(),
            pending_sync: IndexSet::default(),
            subscribed_topics: None,
            new_member_added: false,
            join_timer: None,
            sync_timer: None,
            is_durable: false,
            appends_in_flight: 0,
            storing_assignment_of: None,
        }
    }

    /// A group as a record describes it: Stable with members, Empty without.
    pub(super) fn restored(id: Str, birth: u64, members: Vec<Member>) -> Group {
        let mut group = Group::new(id, birth, 0);
        group.is_durable = true;
        for member in members {
            group.state = GroupState::Stable;
            group.add(member);
        }
        group
    }

    pub(super) fn reference(&self) -> GroupRef {
        GroupRef {
            id: self.id.clone(),
            birth: self.birth,
        }
    }

    pub(super) fn is(&self, reference: &GroupRef) -> bool {
        self.birth == reference.birth
    }

    pub(super) fn state(&self) -> GroupState {
        self.state
    }

    pub(super) fn is_in(&self, state: GroupState) -> bool {
        self.state == state
    }

    /// True in the join phase that began with an empty group; only its timer ends it.
    pub(super) fn is_initial_join_phase(&self) -> bool {
        self.state == GroupState::PreparingRebalance && self.previous == GroupState::Empty
    }

    pub(super) fn transition(&mut self, to: GroupState, wall_ms: i64) {
        assert!(
            to.may_follow(self.state),
            "group {} cannot go from {} to {to}",
            self.id,
            self.state
        );
        self.previous = self.state;
        self.state = to;
        self.state_since_ms = Some(wall_ms);
    }

    // ---- members

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn has_member(&self, id: &str) -> bool {
        self.members.contains_key(id)
    }

    pub(super) fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    pub(super) fn member_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.members.get_mut(id)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub(super) fn member_ids(&self) -> Vec<Str> {
        self.members.keys().cloned().collect()
    }

    pub(super) fn is_leader(&self, member: &str) -> bool {
        self.leader.as_deref() == Some(member)
    }

    pub(super) fn static_member(&self, instance: &str) -> Option<&Str> {
        self.static_members.get(instance)
    }

    pub(super) fn awaiting_join(&self) -> usize {
        self.awaiting_join
    }

    pub(super) fn have_all_joined(&self) -> bool {
        self.members.len() == self.awaiting_join && self.pending_join.is_empty()
    }

    /// Milliseconds; the longest of the members'.
    pub(super) fn rebalance_timeout_ms(&self) -> i32 {
        self.members
            .values()
            .map(|member| member.rebalance_timeout_ms)
            .max()
            .unwrap_or(0)
            .max(0)
    }

    /// Adds a member whose protocols fit; the first one names the protocol type and leads.
    pub(super) fn add(&mut self, member: Member) {
        if let Some(instance) = &member.instance {
            self.static_members
                .insert(instance.clone(), member.id.clone());
        }
        if self.leader.is_none() {
            self.leader = Some(member.id.clone());
        }
        self.pending_join.swap_remove(&member.id);
        self.count_protocols(&member.protocols, true);
        self.awaiting_join += usize::from(member.join.is_some());
        if let Some(replaced) = self.members.insert(member.id.clone(), member) {
            // Only a record that names one member twice can do this.
            self.count_protocols(&replaced.protocols, false);
            self.awaiting_join -= usize::from(replaced.join.is_some());
        }
    }

    /// Takes a member out, with whatever is parked in it; the first of the others leads if it led.
    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        let member = self.members.swap_remove(id)?;
        self.count_protocols(&member.protocols, false);
        self.awaiting_join -= usize::from(member.join.is_some());
        if let Some(instance) = &member.instance
            && self
                .static_members
                .get(instance)
                .is_some_and(|owner| **owner == *id)
        {
            self.static_members.remove(instance);
        }
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        self.pending_sync.swap_remove(id);
        Some(member)
    }

    /// Takes every member out at once.
    pub(super) fn take_members(&mut self) -> Vec<Member> {
        self.static_members.clear();
        self.supported.clear();
        self.pending_sync.clear();
        self.leader = None;
        self.awaiting_join = 0;
        std::mem::take(&mut self.members).into_values().collect()
    }

    /// Gives the member `old` the id `new`, keeping its place; nothing is parked in it any more.
    /// Returns the parked requests of the old id.
    pub(super) fn rename(&mut self, old: &str, new: Str) -> Option<Member> {
        let index = self.members.get_index_of(old)?;
        let mut fresh = self.members.swap_remove(old)?;
        let fenced = Member {
            id: fresh.id.clone(),
            instance: fresh.instance.clone(),
            client_id: fresh.client_id.clone(),
            client_host: fresh.client_host.clone(),
            protocols: Vec::new(),
            assignment: Bytes::new(),
            join: fresh.join.take(),
            sync: fresh.sync.take(),
            timer: fresh.timer.take(),
            ..fresh
        };
        self.awaiting_join -= usize::from(fenced.join.is_some());
        fresh.id = new.clone();
        fresh.is_new = false;
        if let Some(instance) = &fresh.instance {
            self.static_members.insert(instance.clone(), new.clone());
        }
        self.members.insert(new.clone(), fresh);
        self.members.swap_indices(index, self.members.len() - 1);
        if self.is_leader(old) {
            self.leader = Some(new.clone());
        }
        // The new self was told of a generation whose assignment is known: nobody waits for it.
        self.pending_sync.swap_remove(old);
        Some(fenced)
    }

    /// Replaces what a member said when it joined. Returns the JoinGroup it had parked.
    pub(super) fn update_member(
        &mut self,
        id: &str,
        protocols: Vec<Protocol>,
        rebalance_timeout_ms: i32,
        session_timeout_ms: i32,
        join: Option<super::effects::Parked>,
    ) -> Option<super::effects::Parked> {
        let member = self.members.get_mut(id)?;
        let before = std::mem::replace(&mut member.protocols, protocols);
        let after = member.protocols.clone();
        member.rebalance_timeout_ms = rebalance_timeout_ms;
        member.session_timeout_ms = session_timeout_ms;
        let superseded = std::mem::replace(&mut member.join, join);
        self.awaiting_join -= usize::from(superseded.is_some());
        self.awaiting_join += usize::from(join.is_some());
        self.count_protocols(&before, false);
        self.count_protocols(&after, true);
        superseded
    }

    /// Takes the parked JoinGroup out of a member in order to answer it.
    pub(super) fn take_join(&mut self, id: &str) -> Option<super::effects::Parked> {
        let parked = self.members.get_mut(id)?.join.take()?;
        self.awaiting_join -= 1;
        Some(parked)
    }

    /// Makes a member that has joined the leader if the present one has not. False if nobody has.
    pub(super) fn elect_joined_leader(&mut self) -> bool {
        let Some(leader) = &self.leader else {
            return false;
        };
        if self
            .members
            .get(leader)
            .is_some_and(|member| member.join.is_some())
        {
            return true;
        }
        let joined = self.members.values().find(|member| member.join.is_some());
        let Some(joined) = joined.map(|member| member.id.clone()) else {
            return false;
        };
        self.leader = Some(joined);
        true
    }

    /// Fences a stale owner of an instance id and refuses unknown members, in this order.
    pub(super) fn validate_member(
        &self,
        id: &str,
        instance: Option<&str>,
    ) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.static_members.get(instance) {
                None => return Err(ErrorCode::UNKNOWN_MEMBER_ID),
                Some(owner) if **owner != *id => return Err(ErrorCode::FENCED_INSTANCE_ID),
                Some(_) => {}
            }
        }
        if self.has_member(id) {
            Ok(())
        } else {
            Err(ErrorCode::UNKNOWN_MEMBER_ID)
        }
    }

    /// Begins the next generation: Empty without members, else waiting for the assignment.
    pub(super) fn begin_generation(&mut self, wall_ms: i64) {
        self.generation = self.generation.wrapping_add(1).max(0);
        self.protocol_name = self.select_protocol();
        self.subscribed_topics = self.read_subscriptions();
        let next = if self.members.is_empty() {
            GroupState::Empty
        } else {
            GroupState::CompletingRebalance
        };
        self.transition(next, wall_ms);
        self.pending_sync.clear();
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let awaiting = self
            .members
            .values()
            .filter(|member| member.join.is_some())
            .count();
        assert_eq!(
            awaiting, self.awaiting_join,
            "joined members are miscounted: {self:?}"
        );
        for (instance, owner) in &self.static_members {
            let member = self.members.get(owner);
            assert_eq!(
                member.and_then(|m| m.instance.as_ref()),
                Some(instance),
                "{self:?}"
            );
        }
        for member in self.members.values() {
            for name in super::member::distinct_names(&member.protocols) {
                assert!(self.supported.contains_key(name), "{self:?}");
            }
        }
        if let Some(leader) = &self.leader {
            assert!(
                self.members.contains_key(leader),
                "the leader is no member: {self:?}"
            );
        }
        assert_eq!(self.leader.is_none(), self.members.is_empty(), "{self:?}");
        assert_eq!(
            self.state == GroupState::Empty,
            self.members.is_empty() && self.state != GroupState::PreparingRebalance,
            "{self:?}"
        );
        for pending in self.pending_sync.iter() {
            assert!(self.members.contains_key(pending), "{self:?}");
        }
    }
}
