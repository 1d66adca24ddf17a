//! Incremental fetch sessions (KIP-227): what a session remembers of its partitions, so that a
//! Fetch names only what changed and an answer carries only what is new. Pure; one cache a shard,
//! for the connections of that shard. Never reads a partition.

use crate::rt::Instant;
use crate::types::{PartitionId, Uuid};
use crate::wire::{ErrorCode, Str};
use ahash::AHashMap;
use indexmap::IndexMap;
use std::time::Duration;

/// Epoch of a request outside any session.
pub const SESSIONLESS: i32 = -1;
/// Epoch of a request that opens a session.
pub const INITIAL: i32 = 0;
/// A session idle for longer may be evicted for a new one.
const EVICTION_AGE: Duration = Duration::from_secs(120);

/// A fetched partition: what the request named it by, and the other if the metadata had it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SessionKey {
    pub topic: Str,
    pub id: PartitionId,
}

impl SessionKey {
    /// What the request named it by alone. The other may come to be known while a session lasts:
    /// it must not make another partition of the same.
    fn named(&self, uses_ids: bool) -> SessionKey {
        let mut named = self.clone();
        match uses_ids {
            true => named.topic = Str::default(),
            false => named.id.topic = Uuid::ZERO,
        }
        named
    }
}

/// One partition of a session: the request's values and what the last answer said.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionPart {
    pub key: SessionKey,
    pub fetch_offset: i64,
    pub current_leader_epoch: i32,
    pub last_fetched_epoch: i32,
    pub log_start_offset: i64,
    pub max_bytes: i32,
    /// The high watermark and log start last told; -1 makes the next answer carry them.
    told_high_watermark: i64,
    told_log_start: i64,
}

impl SessionPart {
    pub fn new(
        key: SessionKey,
        fetch_offset: i64,
        current_leader_epoch: i32,
        last_fetched_epoch: i32,
        log_start_offset: i64,
        max_bytes: i32,
    ) -> SessionPart {
        SessionPart {
            key,
            fetch_offset,
            current_leader_epoch,
            last_fetched_epoch,
            log_start_offset,
            max_bytes,
            told_high_watermark: -1,
            told_log_start: -1,
        }
    }
}

/// What an answer says of one partition, as far as the session cares.
pub struct Told {
    pub error: ErrorCode,
    pub has_records: bool,
    pub high_watermark: i64,
    pub log_start: i64,
    /// A diverging epoch or preferred replica: always told.
    pub notable: bool,
}

struct Session {
    epoch: i32,
    uses_ids: bool,
    privileged: bool,
    /// By what the requests name them by, see [`SessionKey::named`].
    parts: IndexMap<SessionKey, SessionPart, ahash::RandomState>,
    created: Instant,
    used: Instant,
}

/// The sessions of one shard.
pub struct Sessions {
    slots: usize,
    by_id: AHashMap<i32, Session>,
}

/// What a Fetch request is within its session.
pub enum Opened {
    /// Outside a session: the request's own partitions, a full answer.
    Sessionless(Vec<SessionPart>),
    /// A new session (or 0 when the cache is full): a full answer.
    Full {
        session: i32,
        parts: Vec<SessionPart>,
    },
    /// The session's partitions after the request's changes; only news is answered.
    Incremental {
        session: i32,
        parts: Vec<SessionPart>,
    },
}

impl Sessions {
    /// `slots`: this shard's share of `max.incremental.fetch.session.cache.slots`.
    pub fn new(slots: usize) -> Sessions {
        Sessions {
            slots,
            by_id: AHashMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Partitions remembered over all sessions.
    pub fn partitions(&self) -> usize {
        self.by_id.values().map(|session| session.parts.len()).sum()
    }

    /// Places a request in its session. `uses_ids` is true from Fetch v13 on; `fresh_id` gives
    /// random positive ids.
    #[allow(clippy::too_many_arguments)]
    pub fn open(
        &mut self,
        id: i32,
        epoch: i32,
        uses_ids: bool,
        privileged: bool,
        named: Vec<SessionPart>,
        forgotten: &[SessionKey],
        now: Instant,
        mut fresh_id: impl FnMut() -> i32,
    ) -> Result<Opened, ErrorCode> {
        if epoch == SESSIONLESS || epoch == INITIAL {
            // A full request ends the session it names.
            self.by_id.remove(&id);
            if epoch == SESSIONLESS {
                return Ok(Opened::Sessionless(named));
            }
            if named.is_empty() {
                return Ok(Opened::Full {
                    session: 0,
                    parts: named,
                });
            }
            if !self.make_room(named.len(), privileged, now) {
                return Ok(Opened::Full {
                    session: 0,
                    parts: named,
                });
            }
            let session = std::iter::repeat_with(&mut fresh_id)
                .find(|id| *id > 0 && !self.by_id.contains_key(id))
                .unwrap_or(0);
            let parts = named
                .iter()
                .map(|part| (part.key.named(uses_ids), part.clone()))
                .collect();
            self.by_id.insert(
                session,
                Session {
                    epoch: 1,
                    uses_ids,
                    privileged,
                    parts,
                    created: now,
                    used: now,
                },
            );
            return Ok(Opened::Full {
                session,
                parts: named,
            });
        }
        let session = self
            .by_id
            .get_mut(&id)
            .ok_or(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)?;
        if session.uses_ids != uses_ids {
            return Err(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR);
        }
        if session.epoch != epoch {
            return Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        session.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        session.used = now;
        for part in named {
            let key = part.key.named(uses_ids);
            match session.parts.get_mut(&key) {
                Some(known) => {
                    let (high_watermark, log_start) =
                        (known.told_high_watermark, known.told_log_start);
                    *known = part;
                    known.told_high_watermark = high_watermark;
                    known.told_log_start = log_start;
                }
                None => {
                    session.parts.insert(key, part);
                }
            }
        }
        for key in forgotten {
            session.parts.shift_remove(&key.named(uses_ids));
        }
        let parts: Vec<_> = session.parts.values().cloned().collect();
        if parts.is_empty() {
            self.by_id.remove(&id);
            return Ok(Opened::Sessionless(parts));
        }
        Ok(Opened::Incremental { session: id, parts })
    }

    /// Whether the answer of an incremental request must name this partition.
    pub fn is_news(part: &SessionPart, told: &Told) -> bool {
        told.has_records
            || told.notable
            || told.error != ErrorCode::NONE
            || told.high_watermark != part.told_high_watermark
            || told.log_start != part.told_log_start
    }

    /// Remembers what was told, and moves a partition that had records behind the others, so that
    /// none starves when answers are full.
    pub fn told(&mut self, id: i32, key: &SessionKey, told: &Told) {
        let Some(session) = self.by_id.get_mut(&id) else {
            return;
        };
        let key = key.named(session.uses_ids);
        let Some(index) = session.parts.get_index_of(&key) else {
            return;
        };
        let part = &mut session.parts[index];
        if told.error == ErrorCode::NONE {
            part.told_high_watermark = told.high_watermark;
            part.told_log_start = told.log_start;
        } else {
            part.told_high_watermark = -1;
        }
        if told.has_records {
            let last = session.parts.len() - 1;
            session.parts.move_index(index, last);
        }
    }

    /// Frees a slot if there is none, by Kafka's order: the longest idle, then a consumer for a
    /// follower, then a smaller one that has had its time.
    fn make_room(&mut self, size: usize, privileged: bool, now: Instant) -> bool {
        if self.by_id.len() < self.slots {
            return true;
        }
        let evictable = self
            .by_id
            .iter()
            .filter(|(_, old)| {
                now.since(old.used) > EVICTION_AGE
                    || (privileged && !old.privileged)
                    || (privileged == old.privileged
                        && old.parts.len() < size
                        && now.since(old.created) > EVICTION_AGE)
            })
            .min_by_key(|(_, old)| old.used)
            .map(|(id, _)| *id);
        match evictable {
            Some(id) => self.by_id.remove(&id).is_some(),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Uuid;

    fn part(index: i32, offset: i64) -> SessionPart {
        let key = SessionKey {
            topic: Str::from_static("t"),
            id: PartitionId {
                topic: Uuid::from_halves(7, 7),
                index,
            },
        };
        SessionPart::new(key, offset, -1, -1, -1, 1000)
    }

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    fn quiet(high_watermark: i64) -> Told {
        Told {
            error: ErrorCode::NONE,
            has_records: false,
            high_watermark,
            log_start: 0,
            notable: false,
        }
    }

    fn open_new(sessions: &mut Sessions, id: i32, parts: Vec<SessionPart>, now: Instant) -> i32 {
        match sessions
            .open(0, INITIAL, true, false, parts, &[], now, || id)
            .unwrap()
        {
            Opened::Full { session, .. } => session,
            _ => panic!("not a full answer"),
        }
    }

    #[test]
    fn an_incremental_answer_names_only_news() {
        let mut sessions = Sessions::new(10);
        let id = open_new(&mut sessions, 9, vec![part(0, 5), part(1, 5)], at(0));
        let key = part(0, 5).key;
        sessions.told(id, &key, &quiet(5));
        let Opened::Incremental { parts, .. } = sessions
            .open(id, 1, true, false, vec![part(1, 6)], &[], at(1), || 1)
            .unwrap()
        else {
            panic!("not incremental")
        };
        assert_eq!(parts.len(), 2);
        assert!(!Sessions::is_news(&parts[0], &quiet(5)));
        assert!(Sessions::is_news(&parts[0], &quiet(6)));
        assert!(Sessions::is_news(&parts[1], &quiet(5)), "never told before");
        assert_eq!(parts[1].fetch_offset, 6);
    }

    #[test]
    fn a_topic_that_comes_to_be_known_in_a_session_is_still_the_same() {
        // By id before the metadata has the name, then with it; and by name before it has the id.
        for uses_ids in [true, false] {
            let whole = part(0, 6);
            let mut early = part(0, 5);
            match uses_ids {
                true => early.key.topic = Str::default(),
                false => early.key.id.topic = Uuid::ZERO,
            }
            let mut sessions = Sessions::new(10);
            let mut open = |id, epoch, part: &SessionPart| {
                let named = vec![part.clone()];
                let opened = sessions.open(id, epoch, uses_ids, true, named, &[], at(0), || 9);
                match opened.unwrap() {
                    Opened::Full { session, .. } => (session, Vec::new()),
                    Opened::Incremental { session, parts } => (session, parts),
                    Opened::Sessionless(_) => panic!("no session"),
                }
            };
            let (id, _) = open(0, INITIAL, &early);
            let (_, parts) = open(id, 1, &whole);
            assert_eq!(parts.len(), 1, "one partition, not two");
            assert_eq!((&parts[0].key, parts[0].fetch_offset), (&whole.key, 6));
            sessions.told(id, &whole.key, &quiet(6));
            let forgotten = [early.key];
            let left = sessions.open(
                id,
                2,
                uses_ids,
                true,
                vec![part(1, 0)],
                &forgotten,
                at(0),
                || 9,
            );
            let Opened::Incremental { parts, .. } = left.unwrap() else {
                panic!("not incremental")
            };
            assert_eq!(parts.len(), 1);
            assert_eq!(parts[0].key.id.index, 1);
        }
    }

    #[test]
    fn a_wrong_epoch_or_id_kind_is_refused() {
        let mut sessions = Sessions::new(10);
        let id = open_new(&mut sessions, 9, vec![part(0, 0)], at(0));
        let refused = |sessions: &mut Sessions, id, epoch, ids| {
            sessions
                .open(id, epoch, ids, false, vec![], &[], at(0), || 1)
                .err()
        };
        assert_eq!(
            refused(&mut sessions, id, 2, true),
            Some(ErrorCode::INVALID_FETCH_SESSION_EPOCH)
        );
        assert_eq!(
            refused(&mut sessions, id, 1, false),
            Some(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR)
        );
        assert_eq!(
            refused(&mut sessions, 77, 1, true),
            Some(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)
        );
    }

    #[test]
    fn a_full_cache_answers_without_a_session_until_one_has_idled() {
        let mut sessions = Sessions::new(1);
        let first = open_new(&mut sessions, 9, vec![part(0, 0)], at(0));
        assert_eq!(open_new(&mut sessions, 10, vec![part(0, 0)], at(60)), 0);
        assert_eq!(open_new(&mut sessions, 10, vec![part(0, 0)], at(200)), 10);
        assert_ne!(first, 0);
        assert_eq!(sessions.len(), 1);
    }

    #[test]
    fn a_partition_with_records_moves_behind_the_others() {
        let mut sessions = Sessions::new(10);
        let id = open_new(&mut sessions, 9, vec![part(0, 0), part(1, 0)], at(0));
        let mut told = quiet(5);
        told.has_records = true;
        sessions.told(id, &part(0, 0).key, &told);
        let Opened::Incremental { parts, .. } = sessions
            .open(id, 1, true, false, vec![], &[], at(1), || 1)
            .unwrap()
        else {
            panic!("not incremental")
        };
        assert_eq!(parts[0].key.id.index, 1);
    }

    #[test]
    fn forgetting_every_partition_ends_the_session() {
        let mut sessions = Sessions::new(10);
        let id = open_new(&mut sessions, 9, vec![part(0, 0)], at(0));
        let forgotten = [part(0, 0).key];
        sessions
            .open(id, 1, true, false, vec![], &forgotten, at(1), || 1)
            .unwrap();
        assert!(sessions.is_empty());
    }
}
