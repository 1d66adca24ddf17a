//! One member of a classic group: what it told us, what it was given, and which of its requests
//! are parked. Part of the shard state machine on the core of the group's partition; it never
//! answers a request itself.

use bytes::Bytes;

use super::effects::Parked;
use super::timers::TimerId;
use crate::rt::Instant;
use crate::wire::Str;

/// An assignment protocol a member supports, with metadata that only the members understand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Protocol {
    pub(super) name: Str,
    pub(super) metadata: Bytes,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: Str,
    /// `group.instance.id` of a static member.
    pub(super) instance: Option<Str>,
    pub(super) client_id: Str,
    /// As Java prints an address: `/127.0.0.1`.
    pub(super) client_host: Str,
    pub(super) rebalance_timeout_ms: i32,
    pub(super) session_timeout_ms: i32,
    /// In the member's order of preference.
    pub(super) protocols: Vec<Protocol>,
    pub(super) assignment: Bytes,
    pub(super) join: Option<Parked>,
    pub(super) sync: Option<Parked>,
    /// Joined for the first time and not yet answered: it does not know its id, so that it can
    /// expire while its JoinGroup is parked.
    pub(super) is_new: bool,
    /// When the session ends. A heartbeat moves only this; the timer finds out when it fires.
    pub(super) deadline: Instant,
    pub(super) timer: Option<TimerId>,
}

impl Member {
    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols
            .iter()
            .find(|candidate| &*candidate.name == protocol)
            .map(|candidate| candidate.metadata.clone())
            .unwrap_or_default()
    }

    /// The first of its protocols that every member supports.
    pub(super) fn vote(&self, is_candidate: impl Fn(&str) -> bool) -> Option<&Str> {
        self.protocols
            .iter()
            .map(|protocol| &protocol.name)
            .find(|name| is_candidate(name))
    }

    /// True while a parked request proves that the member is alive.
    pub(super) fn satisfies_heartbeat(&self) -> bool {
        !self.is_new && (self.join.is_some() || self.sync.is_some())
    }
}

/// Protocol names of a list in order, without repetitions: a list that names one protocol twice
/// must not count as two members that support it.
pub(super) fn distinct_names(protocols: &[Protocol]) -> impl Iterator<Item = &Str> {
    protocols
        .iter()
        .enumerate()
        .filter_map(|(index, protocol)| {
            let repeated = protocols[..index]
                .iter()
                .any(|earlier| earlier.name == protocol.name);
            (!repeated).then_some(&protocol.name)
        })
}
