//! The follower's side of an incremental fetch session (KIP-227): what the leader knows of our
//! partitions, so that a request names only what has changed. Pure; one for each connection to a
//! leader. Never looks at an answer's partitions.

use super::follower::Asked;
use super::session::INITIAL;
use crate::types::PartitionId;
use crate::wire::ErrorCode;
use ahash::AHashMap;

/// One request within the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRequest {
    pub id: i32,
    pub epoch: i32,
    pub named: Vec<(PartitionId, Asked)>,
    pub forgotten: Vec<PartitionId>,
}

/// See the module's words.
#[derive(Debug, Default)]
pub struct FetchSession {
    /// 0: there is none.
    id: i32,
    epoch: i32,
    /// What the leader knows once the request under way is answered.
    known: AHashMap<PartitionId, Asked>,
}

impl FetchSession {
    pub fn new() -> FetchSession {
        FetchSession::default()
    }

    /// The request that makes the leader know exactly `wanted`.
    pub fn request(&mut self, wanted: &[(PartitionId, Asked)]) -> SessionRequest {
        let is_full = self.epoch == INITIAL;
        if is_full {
            self.known.clear();
        }
        let mut named = Vec::new();
        for (id, asked) in wanted {
            if self.known.insert(*id, *asked) != Some(*asked) {
                named.push((*id, *asked));
            }
        }
        let mut forgotten = Vec::new();
        if self.known.len() > wanted.len() {
            let kept: ahash::AHashSet<PartitionId> = wanted.iter().map(|(id, _)| *id).collect();
            let gone = self.known.keys().filter(|id| !kept.contains(id));
            forgotten.extend(gone.copied());
            forgotten.sort_unstable();
            self.known.retain(|id, _| kept.contains(id));
        }
        SessionRequest {
            id: self.id,
            epoch: self.epoch,
            named,
            forgotten,
        }
    }

    /// What was asked of a partition in the request under way.
    pub fn asked(&self, id: PartitionId) -> Option<Asked> {
        self.known.get(&id).copied()
    }

    /// Takes the head of an answer. False if its partitions are not to be looked at.
    pub fn on_answer(&mut self, error: ErrorCode, id: i32) -> bool {
        match error {
            ErrorCode::NONE => {}
            ErrorCode::FETCH_SESSION_ID_NOT_FOUND => {
                self.begin_anew(0);
                return false;
            }
            _ => {
                self.begin_anew(self.id);
                return false;
            }
        }
        if self.epoch == INITIAL {
            // Without a session every request is a full one.
            self.id = id;
            self.epoch = i32::from(id != 0);
            return true;
        }
        if id != self.id {
            // The session is gone, but what was read is good.
            self.begin_anew(0);
            return true;
        }
        self.epoch = if self.epoch == i32::MAX {
            1
        } else {
            self.epoch + 1
        };
        true
    }

    /// The next request is a full one; it ends session `id`, if there is one.
    fn begin_anew(&mut self, id: i32) {
        self.id = id;
        self.epoch = INITIAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LeaderEpoch, Offset, Uuid};

    fn part(index: i32, from: i64) -> (PartitionId, Asked) {
        let id = PartitionId {
            topic: Uuid::from_halves(1, 1),
            index,
        };
        let asked = Asked {
            epoch: LeaderEpoch(1),
            from: Offset(from),
            last_epoch: LeaderEpoch(1),
            log_start: Offset(0),
        };
        (id, asked)
    }

    #[test]
    fn only_what_changed_is_named_and_what_left_is_forgotten() {
        let mut session = FetchSession::new();
        let all = [part(0, 0), part(1, 0), part(2, 0)];
        let first = session.request(&all);
        assert_eq!((first.id, first.epoch), (0, 0));
        assert_eq!(first.named, all);
        assert!(session.on_answer(ErrorCode::NONE, 77));
        let next = session.request(&[part(0, 5), part(1, 0)]);
        assert_eq!((next.id, next.epoch), (77, 1));
        assert_eq!(next.named, [part(0, 5)]);
        assert_eq!(next.forgotten, [part(2, 0).0]);
        assert!(session.on_answer(ErrorCode::NONE, 77));
        let quiet = session.request(&[part(0, 5), part(1, 0)]);
        assert_eq!(quiet.epoch, 2);
        assert!(quiet.named.is_empty() && quiet.forgotten.is_empty());
    }

    #[test]
    fn a_session_that_ended_begins_with_everything() {
        for (error, id, good) in [
            (ErrorCode::FETCH_SESSION_ID_NOT_FOUND, 0, false),
            (ErrorCode::INVALID_FETCH_SESSION_EPOCH, 77, false),
            (ErrorCode::NONE, 0, true),
        ] {
            let mut session = FetchSession::new();
            session.request(&[part(0, 0)]);
            session.on_answer(ErrorCode::NONE, 77);
            session.request(&[part(0, 1)]);
            let answered = if error == ErrorCode::NONE { 0 } else { id };
            assert_eq!(session.on_answer(error, answered), good);
            let next = session.request(&[part(0, 1)]);
            assert_eq!((next.id, next.epoch), (id, 0), "{error:?}");
            assert_eq!(next.named, [part(0, 1)]);
        }
    }

    #[test]
    fn a_leader_without_room_for_sessions_is_asked_for_everything_each_time() {
        let mut session = FetchSession::new();
        for _ in 0..3 {
            let request = session.request(&[part(0, 1)]);
            assert_eq!((request.id, request.epoch, request.named.len()), (0, 0, 1));
            assert!(session.on_answer(ErrorCode::NONE, 0));
        }
    }
}
