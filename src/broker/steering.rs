//! Where a connection had better be: the shard that owns what its client writes and reads. A
//! request that arrives on another core than its partition's wakes that core, and its answer wakes
//! this one again: twice more than it needs, which is most of what a request costs while there are
//! few. Pure, one value for each connection, on its shard. Never moves anything itself.

use crate::shard::mesh::Place;
use std::cell::Cell;

/// Requests in a row that must all belong to one other shard before a connection moves there: a
/// move costs about as much as twenty of them.
const MOVE_AFTER: u32 = 64;
/// Moves of one connection at most; each takes twice as many requests as the one before, so that a
/// client that changes its mind all the time is left alone.
const MOVES_MAX: u32 = 6;

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub struct Steering {
    /// The one shard that the latest requests in a row belonged to.
    owner: Cell<Option<Place>>,
    in_a_row: Cell<u32>,
    moves: Cell<u32>,
    /// Something of the connection is kept on its shard.
    stays: Cell<bool>,
}

impl Steering {
    /// For a connection that has moved `moves` times.
    pub fn after_moves(moves: u32) -> Steering {
        Steering {
            moves: Cell::new(moves),
            ..Steering::default()
        }
    }

    pub fn moves(&self) -> u32 {
        self.moves.get()
    }

    /// A request's partitions belong to `owners`.
    pub fn saw(&self, mut owners: impl Iterator<Item = Place>) {
        let only = match (owners.next(), owners.next()) {
            (Some(owner), None) => Some(owner),
            _ => None,
        };
        let same = only.is_some() && self.owner.get() == only;
        let before = if same { self.in_a_row.get() } else { 0 };
        self.owner.set(only);
        self.in_a_row.set(before.saturating_add(1));
    }

    /// From here on the connection stays where it is.
    pub fn stay(&self) {
        self.stays.set(true);
    }

    /// The shard to which a connection on `here` should move, if any.
    pub fn wanted(&self, here: Place) -> Option<Place> {
        let moves = self.moves.get();
        let tried = self.in_a_row.get() >= MOVE_AFTER << moves.min(MOVES_MAX);
        let owner = self.owner.get().filter(|owner| *owner != here)?;
        (tried && moves < MOVES_MAX && !self.stays.get()).then_some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(steering: &Steering, owners: &[Place], times: u32) {
        for _ in 0..times {
            steering.saw(owners.iter().copied());
        }
    }

    #[test]
    fn it_moves_where_all_of_many_requests_in_a_row_belong() {
        let steering = Steering::default();
        see(&steering, &[1], MOVE_AFTER - 1);
        assert_eq!(steering.wanted(0), None);
        see(&steering, &[1], 1);
        assert_eq!(steering.wanted(0), Some(1));
        assert_eq!(steering.wanted(1), None, "it is there");
    }

    #[test]
    fn a_request_of_two_shards_or_of_none_begins_the_count_anew() {
        for others in [&[0, 1][..], &[], &[2]] {
            let steering = Steering::default();
            see(&steering, &[1], MOVE_AFTER - 1);
            see(&steering, others, 1);
            see(&steering, &[1], MOVE_AFTER - 1);
            assert_eq!(steering.wanted(0), None);
            see(&steering, &[1], 1);
            assert_eq!(steering.wanted(0), Some(1));
        }
    }

    #[test]
    fn whoever_moves_often_stays_in_the_end() {
        let mut before = 0;
        for moves in 0..MOVES_MAX {
            let steering = Steering::after_moves(moves);
            let mut needed = 0;
            while steering.wanted(0).is_none() {
                see(&steering, &[1], 1);
                needed += 1;
            }
            assert!(needed > before);
            before = needed;
        }
        let steering = Steering::after_moves(MOVES_MAX);
        see(&steering, &[1], 2 * before);
        assert_eq!(steering.wanted(0), None);
        let steering = Steering::default();
        steering.stay();
        see(&steering, &[1], 2 * before);
        assert_eq!(steering.wanted(0), None);
    }
}
