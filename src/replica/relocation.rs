//! A replica on its way from one log directory of its broker to another (KIP-113): what the copy
//! does next. Pure. The copy follows the log as a follower follows its leader, and the log knows
//! no more of it than a leader of a consumer. Never touches a file, never asks the controller.
//!
//! The controller hears of the new directory before the copy takes the log's place (KIP-858), or a
//! directory that fails right afterwards would be one in which it knows no replica.

use std::cmp::Ordering;

use super::history::{History, Position, divergence};
use crate::types::{LeaderEpoch, Offset};

/// The copy is near enough to tell the controller, and to take the log's place, when it lacks no
/// more than this: what the log's writes are held up for in the end.
pub const NEAR_BYTES: u64 = 1 << 20;
/// Copied between two flushes of the copy: the last one, with the log's writes held, is short.
pub const FLUSH_BYTES: u64 = 64 << 20;

/// What the controller knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    /// The directory that the log lies in.
    There,
    /// That of the copy; the log has to take it, or it must be told otherwise.
    Here,
}

/// See the module's words.
#[derive(Clone, Debug)]
pub struct Relocation {
    registered: Registered,
    unflushed: u64,
}

/// How log and copy are now.
#[derive(Clone, Copy, Debug)]
pub struct Lacks {
    /// Up to where the log is written.
    pub written: Offset,
    /// Bytes from the copy's end to there.
    pub bytes: u64,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Cut the copy: the log has not got what lies behind.
    Cut(Offset),
    /// Begin the copy anew: the log begins behind its end.
    StartOver(Offset),
    /// The log has given up what lies before.
    StartAt(Offset),
    /// Copy from here on.
    Copy(Offset),
    Flush,
    /// Tell the controller in which directory the replica is about to lie.
    Register,
    /// Let the copy take the log's place.
    Swap,
}

impl Default for Relocation {
    fn default() -> Relocation {
        Relocation {
            registered: Registered::There,
            unflushed: 0,
        }
    }
}

impl Relocation {
    /// What the copy must do before it can be looked at how near it is; `None` if it has a prefix
    /// of the log.
    pub fn follow(&self, log: &impl History, copy: &impl History) -> Option<Move> {
        let (start, end) = (copy.log_start(), copy.log_end());
        if end < log.log_start() {
            return Some(Move::StartOver(log.log_start()));
        }
        let position = Position {
            from: end,
            last_epoch: copy.latest_epoch().unwrap_or(LeaderEpoch::UNKNOWN),
        };
        let cut = match divergence(log, position) {
            Ok(None) => None,
            // As a follower: the copy may have left the log before this epoch.
            Ok(Some((epoch, log_leaves))) => {
                let own = copy.end_of(epoch).map_or(log_leaves, |(_, end)| end);
                Some(log_leaves.min(own).min(end))
            }
            Err(_) => Some(end.min(log.log_end())),
        };
        match cut {
            Some(to) if to < start || to < log.log_start() => {
                return Some(Move::StartOver(log.log_start()));
            }
            // Nothing to cut, and yet another history: the log does not know the copy's epoch.
            Some(to) if to == end => return Some(Move::StartOver(log.log_start())),
            Some(to) => return Some(Move::Cut(to)),
            None => {}
        }
        match start.cmp(&log.log_start()) {
            Ordering::Less => Some(Move::StartAt(log.log_start())),
            Ordering::Equal => None,
            // It lacks the log's beginning.
            Ordering::Greater => Some(Move::StartOver(log.log_start())),
        }
    }

    /// What a copy with a prefix of the log does next; `None` if it has all there is and the rest
    /// is up to others.
    pub fn next(&self, copy_end: Offset, lacks: Lacks) -> Move {
        if self.unflushed >= FLUSH_BYTES {
            return Move::Flush;
        }
        if copy_end < lacks.written && lacks.bytes > NEAR_BYTES {
            return Move::Copy(copy_end);
        }
        match self.registered {
            Registered::There => Move::Register,
            Registered::Here => Move::Swap,
        }
    }

    pub fn copied(&mut self, bytes: u64) {
        self.unflushed += bytes;
    }

    pub fn flushed(&mut self) {
        self.unflushed = 0;
    }

    /// The controller has the copy's directory down.
    pub fn registered(&mut self) {
        self.registered = Registered::Here;
    }

    /// Whether the controller must be told that the replica stays where it is, should the move end
    /// now.
    pub fn must_take_back(&self) -> bool {
        self.registered == Registered::Here
    }
}

/// Where a replica is found at a start, and what is left of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remains<'a> {
    /// Places (among the online directories) in which a directory bears the partition's name.
    pub named: &'a [usize],
    /// Places with a copy on its way.
    pub copies: &'a [usize],
    /// The place that the controller has down for it, if it is one of these.
    pub registered: Option<usize>,
    /// Some directory cannot be read: what is not found may be there.
    pub some_offline: bool,
}

/// What a start makes of it: one log, and at most one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The place of the log. `None`: nowhere here.
    pub log: Option<usize>,
    /// A copy that becomes the log: there is no other.
    pub promote: Option<usize>,
    /// Logs to set aside: the move had got to its end but for their removal.
    pub aside: Vec<usize>,
    /// The copy that goes on.
    pub resume: Option<usize>,
    /// Copies to delete.
    pub delete: Vec<usize>,
}

impl Remains<'_> {
    pub fn verdict(&self) -> Verdict {
        let mut verdict = Verdict::default();
        let prefer = |places: &[usize]| {
            let registered = self.registered.filter(|place| places.contains(place));
            registered.or(places.first().copied())
        };
        verdict.log = prefer(self.named);
        verdict.aside = self.named.to_vec();
        verdict.aside.retain(|place| Some(*place) != verdict.log);
        if verdict.log.is_none() {
            if self.some_offline {
                // The log may be there, and have more than the copy.
                return verdict;
            }
            verdict.promote = prefer(self.copies);
        } else {
            let mut elsewhere = self.copies.to_vec();
            elsewhere.retain(|place| !self.named.contains(place));
            verdict.resume = prefer(&elsewhere);
        }
        let kept = verdict.promote.or(verdict.resume);
        verdict.delete = self.copies.to_vec();
        verdict.delete.retain(|place| Some(*place) != kept);
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::model::Bare;
    use super::*;

    fn bare(start: i64, end: i64, epochs: &[(i32, i64)]) -> Bare {
        Bare {
            start: Offset(start),
            ..Bare::new(end, epochs)
        }
    }

    #[test]
    fn a_copy_follows_what_becomes_of_the_log() {
        let move_of = |log: &Bare, copy: &Bare| Relocation::default().follow(log, copy);
        let log = bare(10, 50, &[(1, 10), (3, 30)]);
        assert_eq!(move_of(&log, &bare(10, 20, &[(1, 10)])), None);
        assert_eq!(move_of(&log, &bare(10, 50, &[(1, 10), (3, 30)])), None);
        // Begun anew where the log begins, or told that it begins later.
        assert_eq!(
            move_of(&log, &bare(0, 5, &[(1, 0)])),
            Some(Move::StartOver(Offset(10)))
        );
        assert_eq!(
            move_of(&log, &bare(0, 20, &[(1, 0)])),
            Some(Move::StartAt(Offset(10)))
        );
        // The log was cut, and has grown in another epoch since.
        assert_eq!(
            move_of(&log, &bare(10, 60, &[(1, 10), (3, 30)])),
            Some(Move::Cut(Offset(50)))
        );
        assert_eq!(
            move_of(&log, &bare(10, 45, &[(1, 10), (2, 25)])),
            Some(Move::Cut(Offset(25)))
        );
        assert_eq!(
            move_of(&log, &bare(10, 45, &[(1, 10)])),
            Some(Move::Cut(Offset(30)))
        );
        // Cut to nothing, or of another history from its beginning on.
        assert_eq!(
            move_of(&bare(10, 10, &[]), &bare(10, 45, &[(1, 10)])),
            Some(Move::Cut(Offset(10)))
        );
    }

    #[test]
    fn the_controller_hears_of_the_move_when_the_copy_is_near_and_before_it_takes_the_place() {
        let mut relocation = Relocation::default();
        let far = Lacks {
            written: Offset(100),
            bytes: NEAR_BYTES + 1,
        };
        let near = Lacks {
            written: Offset(100),
            bytes: NEAR_BYTES,
        };
        assert_eq!(relocation.next(Offset(7), far), Move::Copy(Offset(7)));
        assert_eq!(relocation.next(Offset(99), near), Move::Register);
        assert!(!relocation.must_take_back());
        relocation.registered();
        assert!(relocation.must_take_back());
        assert_eq!(
            relocation.next(Offset(9), far),
            Move::Copy(Offset(9)),
            "fallen back"
        );
        assert_eq!(relocation.next(Offset(99), near), Move::Swap);
        relocation.copied(FLUSH_BYTES);
        assert_eq!(relocation.next(Offset(99), near), Move::Flush);
        relocation.flushed();
        assert_eq!(relocation.next(Offset(100), near), Move::Swap);
    }

    #[test]
    fn a_start_finds_one_log_whatever_was_left() {
        let judge = |named: &[usize], copies: &[usize], registered, some_offline| {
            let remains = Remains {
                named,
                copies,
                registered,
                some_offline,
            };
            let v = remains.verdict();
            (v.log, v.promote, v.aside, v.resume, v.delete)
        };
        // On its way, whatever the controller thinks already.
        let resumed = (Some(0), None, vec![], Some(1), vec![]);
        assert_eq!(judge(&[0], &[1], Some(0), false), resumed);
        assert_eq!(judge(&[0], &[1], Some(1), false), resumed);
        assert_eq!(judge(&[0], &[1], Some(1), true), resumed);
        // Between the two renames: the controller was told before.
        let done = (Some(1), None, vec![0], None, vec![]);
        assert_eq!(judge(&[0, 1], &[], Some(1), false), done);
        // Of two copies the one that the controller knows; none beside the log itself.
        let one = (Some(0), None, vec![], Some(2), vec![0, 1]);
        assert_eq!(judge(&[0], &[0, 1, 2], Some(2), false), one);
        // The log is on a disk that cannot be read, or on one that is no more.
        assert_eq!(
            judge(&[], &[1], Some(1), true),
            (None, None, vec![], None, vec![])
        );
        let promoted = (None, Some(1), vec![], None, vec![]);
        assert_eq!(judge(&[], &[1], None, false), promoted);
        assert_eq!(
            judge(&[], &[], None, false),
            (None, None, vec![], None, vec![])
        );
    }
}
