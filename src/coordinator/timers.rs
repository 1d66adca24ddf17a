//! The deadlines of one coordinator shard, in order. Owned by the shard state machine on the core
//! of its partition. It never reads a clock and never fires by itself: the owner asks for what is
//! due. Equal deadlines come out in the order in which they were set, so that a replayed history
//! takes the same path.

use std::collections::BTreeMap;

use crate::rt::Instant;
use crate::wire::Str;

/// What a deadline is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// A member (or a pending member id) was not heard of for its session timeout.
    Session { group: Str, member: Str },
    /// The join phase of a group ends.
    Join { group: Str },
    /// Members that have not sent SyncGroup are removed.
    Sync { group: Str },
    /// Time to look for expired offsets.
    Retention,
}

/// Names one deadline for cancelling; unique in a shard's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimerId {
    pub(super) at: Instant,
    sequence: u64,
}

/// At most one session deadline per member and pending member, two per group, one per shard: as
/// bounded as the groups are.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeMap<TimerId, Deadline>,
    next_sequence: u64,
}

impl Timers {
    pub(super) fn insert(&mut self, at: Instant, deadline: Deadline) -> TimerId {
        let id = TimerId {
            at,
            sequence: self.next_sequence,
        };
        self.next_sequence += 1;
        self.queue.insert(id, deadline);
        id
    }

    pub(super) fn cancel(&mut self, id: TimerId) {
        self.queue.remove(&id);
    }

    /// The earliest deadline that `now` has reached.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Deadline> {
        let entry = self.queue.first_entry()?;
        (entry.key().at <= now).then(|| entry.remove())
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|(id, _)| id.at)
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}
