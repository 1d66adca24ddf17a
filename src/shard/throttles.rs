//! The replication throttles of a shard: its share of the broker's rates for what it leads and
//! follows, and for what it moves between log directories. Runs on the shard. How a rate is kept is decided by [`crate::replica::throttle`].

use super::Shard;
use crate::config::layers::Layers;
use crate::replica::partition::Partition;
use crate::replica::throttle::{Throttle, is_throttled};
use crate::rt;
use std::cell::RefCell;

/// The sides of replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Leader,
    Follower,
}

/// See the module's words.
#[derive(Default)]
pub struct Throttles {
    leader: RefCell<Throttle>,
    follower: RefCell<Throttle>,
    moves: RefCell<Throttle>,
}

impl Throttles {
    fn of(&self, side: Side) -> &RefCell<Throttle> {
        match side {
            Side::Leader => &self.leader,
            Side::Follower => &self.follower,
        }
    }
}

impl Shard {
    /// Takes the broker's rates, as the metadata has them now.
    pub(super) fn set_throttle_rates(&self, layers: &Layers<'_>) {
        let Throttles {
            leader,
            follower,
            moves,
        } = &self.throttles;
        for (throttle, name) in [
            (leader, "leader.replication.throttled.rate"),
            (follower, "follower.replication.throttled.rate"),
            (moves, "replica.alter.log.dirs.io.max.bytes.per.second"),
        ] {
            let rate = layers.broker_value(name).trim().parse::<u64>().ok();
            let rate = rate.filter(|rate| *rate < i64::MAX as u64);
            let share = rate.map(|rate| (rate / self.shards() as u64).max(1));
            throttle.borrow_mut().set_rate(share);
        }
    }

    /// Takes what the topic's settings say of a partition.
    pub(super) fn set_throttled(&self, partition: &Partition, leader: &str, follower: &str) {
        let (index, node) = (partition.id.index, self.node.node.0);
        partition.set_throttled(
            is_throttled(leader, index, node),
            is_throttled(follower, index, node),
        );
    }

    /// Whether copying a partition is to wait.
    pub(super) fn is_held_up(&self, partition: &Partition, side: Side) -> bool {
        partition.is_throttled(side == Side::Leader) && {
            let mut throttle = self.throttles.of(side).borrow_mut();
            throttle.is_exceeded(rt::now())
        }
    }

    /// Whether copying from one log directory to another is to wait.
    pub(super) fn are_moves_held_up(&self) -> bool {
        let mut throttle = self.throttles.moves.borrow_mut();
        throttle.is_exceeded(rt::now())
    }

    /// Bytes were copied from one log directory to another.
    pub(super) fn count_moved(&self, bytes: usize) {
        let mut throttle = self.throttles.moves.borrow_mut();
        throttle.record(bytes as u64, rt::now());
    }

    /// Bytes of a partition were copied.
    pub(super) fn count_copied(&self, partition: &Partition, side: Side, bytes: usize) {
        if partition.is_throttled(side == Side::Leader) {
            let mut throttle = self.throttles.of(side).borrow_mut();
            throttle.record(bytes as u64, rt::now());
        }
    }
}
