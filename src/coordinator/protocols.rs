//! Which assignment protocol a group uses, which topics its members read, and how a group and its
//! members are described. Pure reading of a [`Group`], but for the counts of its protocols; part
//! of the shard state machine.

use std::collections::BTreeSet;

use ahash::RandomState;
use indexmap::IndexMap;

use super::group::{CONSUMER_PROTOCOL_TYPE, Group, GroupState};
use super::member::{Protocol, distinct_names};
use super::subscription;
use crate::wire::Str;
use crate::wire::messages::describe_groups_response::DescribedGroupMember;
use crate::wire::messages::join_group_response::JoinGroupResponseMember;

impl Group {
    pub(super) fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE)
    }

    pub(super) fn count_protocols(&mut self, protocols: &[Protocol], joined: bool) {
        for name in distinct_names(protocols) {
            let count = self.supported.entry(name.clone()).or_default();
            if joined {
                *count += 1;
            } else {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.supported.remove(name);
                }
            }
        }
    }

    fn is_supported_by_all(&self, protocol: &str) -> bool {
        self.supported.get(protocol).copied().unwrap_or(0) == self.members.len()
    }

    /// Whether a member with these protocols can be in the group.
    pub(super) fn supports(&self, protocol_type: &str, protocols: &[Protocol]) -> bool {
        if self.state() == GroupState::Empty {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols
                .iter()
                .any(|protocol| self.is_supported_by_all(&protocol.name))
    }

    /// The protocol with the most votes; each member votes for the first of its own that all
    /// support. Between equals the one that was voted for first.
    pub(super) fn select_protocol(&self) -> Option<Str> {
        let mut votes: IndexMap<&Str, usize, RandomState> = IndexMap::default();
        for member in self.members.values() {
            if let Some(name) = member.vote(|name| self.is_supported_by_all(name)) {
                *votes.entry(name).or_default() += 1;
            }
        }
        let most = votes.values().copied().max()?;
        votes
            .iter()
            .find(|(_, count)| **count == most)
            .map(|(name, _)| (*name).clone())
    }

    /// Topics the members subscribe to, from their metadata for the selected protocol.
    pub(super) fn read_subscriptions(&self) -> Option<BTreeSet<Str>> {
        if !self.uses_consumer_protocol() {
            return None;
        }
        if self.members.is_empty() {
            return Some(BTreeSet::new());
        }
        let protocol = self.protocol_name.as_deref()?;
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            subscription::read_topics(&member.metadata(protocol), &mut topics)?;
        }
        Some(topics)
    }

    /// A consumer group whose subscriptions cannot be read counts as subscribed to everything.
    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        match &self.subscribed_topics {
            Some(topics) => topics.contains(topic),
            None => self.uses_consumer_protocol(),
        }
    }

    /// What the leader is told about the members.
    pub(super) fn member_list(&self) -> Vec<JoinGroupResponseMember> {
        let protocol = self.protocol_name.as_deref().unwrap_or_default();
        self.members
            .values()
            .map(|member| JoinGroupResponseMember {
                member_id: member.id.clone(),
                group_instance_id: member.instance.clone(),
                metadata: member.metadata(protocol),
                ..Default::default()
            })
            .collect()
    }

    /// Metadata is told only of a stable group, whose protocol is settled.
    pub(super) fn described_members(&self) -> Vec<DescribedGroupMember> {
        let protocol = match self.state() {
            GroupState::Stable => self.protocol_name.as_deref(),
            _ => None,
        };
        self.members
            .values()
            .map(|member| DescribedGroupMember {
                member_id: member.id.clone(),
                group_instance_id: member.instance.clone(),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                member_metadata: protocol
                    .map(|name| member.metadata(name))
                    .unwrap_or_default(),
                member_assignment: member.assignment.clone(),
                ..Default::default()
            })
            .collect()
    }
}
