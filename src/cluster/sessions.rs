//! What the active controller knows of brokers besides the log: when each was heard of last, how
//! far it has applied the metadata, whether it is on its way out. Kept in memory only; a new active
//! controller begins with fresh sessions for all. Pure: time comes as an argument.

use super::brokers::Broker;
use super::image::Image;
use crate::rt::Instant;
use crate::types::{BrokerEpoch, NodeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Expired sessions are looked for this many times in one session's time.
const CHECKS_PER_TIMEOUT: u32 = 8;

/// One broker's session. There are at most as many as registered brokers.
#[derive(Clone, Copy, Debug)]
struct Session {
    epoch: BrokerEpoch,
    /// It runs out when nothing has come for the time-out since then.
    since: Instant,
    /// Something has come from this incarnation; until then the session does not keep others from
    /// registering under the same id.
    is_heard: bool,
    /// The highest metadata offset it has applied; -1: not known.
    applied: i64,
    /// The metadata offset that all others must have applied before it may stop.
    stops_after: Option<i64>,
}

/// See the module's words.
#[derive(Debug)]
pub struct Sessions {
    timeout: Duration,
    sessions: BTreeMap<NodeId, Session>,
    /// How many times this controller has become active.
    terms: u64,
}

impl Sessions {
    pub fn new(timeout: Duration) -> Sessions {
        Sessions {
            timeout,
            sessions: BTreeMap::new(),
            terms: 0,
        }
    }

    /// How often [`expired`](Self::expired) wants to be asked.
    pub fn check_interval(&self) -> Duration {
        (self.timeout / CHECKS_PER_TIMEOUT).max(Duration::from_millis(1))
    }

    /// This controller becomes active: every broker that is not fenced has a fresh session. The
    /// broker in this process, `own`, is not taken for alive before it says so: if its registration
    /// is of an earlier life, that life has ended, and it need not wait for its own session to
    /// run out.
    pub fn begin(&mut self, image: &Image, own: NodeId, now: Instant) {
        self.terms += 1;
        self.sessions = image
            .brokers()
            .filter(|broker| !broker.fenced)
            .map(|broker| {
                let session = Session {
                    is_heard: broker.id != own,
                    ..Session::new(broker, now)
                };
                (broker.id, session)
            })
            .collect();
    }

    /// Which time this controller is active now.
    pub fn term(&self) -> u64 {
        self.terms
    }

    /// Whether the registered incarnation of a broker is known to be alive.
    pub fn is_alive(&self, broker: &Broker, now: Instant) -> bool {
        self.sessions.get(&broker.id).is_some_and(|session| {
            session.epoch == broker.epoch
                && session.is_heard
                && now.since(session.since) <= self.timeout
        })
    }

    /// A heartbeat has come, and waits for its turn: it is not the broker's fault if that takes long.
    pub fn arrived(&mut self, broker: &Broker, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&broker.id)
            && session.epoch == broker.epoch
        {
            session.since = now;
        }
    }

    /// A registered broker is heard of.
    pub fn heard(&mut self, broker: &Broker, applied: i64, now: Instant) {
        let session = self
            .sessions
            .entry(broker.id)
            .or_insert_with(|| Session::new(broker, now));
        if session.epoch != broker.epoch {
            *session = Session::new(broker, now);
        }
        session.since = now;
        session.is_heard = true;
        session.applied = applied;
    }

    /// A new incarnation registers, or the broker is taken off the list.
    pub fn forget(&mut self, node: NodeId) {
        self.sessions.remove(&node);
    }

    /// The broker has left its leaderships by the change at `offset`; a second word counts less.
    pub fn stops_after(&mut self, node: NodeId, offset: i64) {
        if let Some(session) = self.sessions.get_mut(&node) {
            session.stops_after.get_or_insert(offset);
        }
    }

    /// The broker is fenced: on its next word it may stop at once.
    pub fn fenced(&mut self, node: NodeId) {
        if let Some(session) = self.sessions.get_mut(&node) {
            session.stops_after = None;
        }
    }

    /// Where the log stood when the broker began its controlled shutdown.
    pub fn stopping_since(&self, broker: &Broker) -> Option<i64> {
        let session = self.sessions.get(&broker.id)?;
        session
            .stops_after
            .filter(|_| session.epoch == broker.epoch && !broker.fenced)
    }

    /// The least offset that the brokers that take part have applied.
    pub fn applied_by_all(&self, image: &Image) -> i64 {
        image
            .brokers()
            .filter(|broker| broker.is_active() && self.stopping_since(broker).is_none())
            .map(|broker| self.applied(broker))
            .min()
            .unwrap_or(i64::MAX)
    }

    fn applied(&self, broker: &Broker) -> i64 {
        self.sessions
            .get(&broker.id)
            .filter(|session| session.epoch == broker.epoch)
            .map_or(-1, |session| session.applied)
    }

    /// This process has been late by `late` to do what was due: it may not have heard those who
    /// spoke. If that was long, all have a new session.
    pub fn was_late(&mut self, late: Duration, now: Instant) {
        if late > self.timeout / 2 {
            tracing::warn!(
                ?late,
                "the controller stood still, all brokers have new sessions"
            );
            let sessions = self.sessions.values_mut();
            sessions.for_each(|session| session.since = now);
        }
    }

    /// A broker that is not fenced and has not been heard of for too long; one at a time, so that
    /// the next is looked at with the leaders that follow from this one.
    pub fn expired(&mut self, image: &Image, now: Instant) -> Option<NodeId> {
        let timeout = self.timeout;
        self.sessions.retain(|id, session| {
            let known = image.broker(*id);
            known.is_some_and(|broker| broker.epoch == session.epoch)
        });
        // One without a session has registered and was never heard of, or the log says that it is
        // not fenced though nobody unfenced it here.
        for broker in image.brokers().filter(|broker| !broker.fenced) {
            let new = || Session {
                is_heard: false,
                ..Session::new(broker, now)
            };
            self.sessions.entry(broker.id).or_insert_with(new);
        }
        let late = self.sessions.iter().find(|(id, session)| {
            now.since(session.since) > timeout
                && image.broker(**id).is_some_and(|broker| !broker.fenced)
        });
        late.map(|(id, _)| *id)
    }
}

impl Session {
    fn new(broker: &Broker, now: Instant) -> Session {
        Session {
            epoch: broker.epoch,
            since: now,
            is_heard: true,
            applied: -1,
            stops_after: None,
        }
    }
}
