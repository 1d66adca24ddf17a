//! The sequence numbers of an idempotent producer (KIP-98, KIP-360): what makes a retry a
//! duplicate that the broker can see, and a lost batch a gap that it refuses.
//!
//! Pure. Per partition the records count up from 0 under one producer id and epoch. When a batch is
//! given up its place in the count cannot be filled, so the partition starts again at 0 under a
//! higher epoch, once nothing of it is on the wire.

use std::collections::VecDeque;

use ahash::AHashMap;

use super::topic_partition::TopicPartition;
use crate::wire::batch::{decrement_sequence, increment_sequence};

/// Batches of one partition without an acknowledgement: brokers remember this many.
pub const BATCHES_IN_FLIGHT_MAX: usize = 5;

/// A producer id with its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub id: i64,
    pub epoch: i16,
}

/// The place of a batch in its partition's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub identity: Identity,
    /// Of its first record.
    pub base: i32,
}

/// Where an unsettled batch stands among the acknowledged ones of its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Everything before it is acknowledged.
    Next,
    /// Something before it is not.
    Later,
    /// Something behind it is acknowledged already.
    Passed,
}

#[derive(Debug)]
struct Partition {
    identity: Identity,
    next: i32,
    last_acked: Option<i32>,
    /// Base sequences of batches sent and not settled, rising; also those that wait for a retry.
    unsettled: VecDeque<i32>,
    /// A batch was given up: nothing is sent until all that is on the wire has come back.
    restarting: bool,
}

/// See the module's words.
#[derive(Debug, Default)]
pub struct Sequences {
    identity: Option<Identity>,
    partitions: AHashMap<TopicPartition, Partition>,
}

impl Sequences {
    /// Whether a producer id must be asked for before anything can be sent.
    pub fn needs_identity(&self) -> bool {
        self.identity.is_none()
    }

    /// The broker's answer to InitProducerId.
    pub fn set_identity(&mut self, identity: Identity) {
        self.identity = Some(identity);
    }

    #[cfg(test)]
    fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// A transaction has ended, with nothing unsettled, and the next one has this identity. Under
    /// another than before the numbers begin anew.
    pub fn renew_identity(&mut self, identity: Identity) {
        if self.identity != Some(identity) {
            self.partitions.clear();
            self.identity = Some(identity);
        }
    }

    /// Whether the first batch in the partition's queue may go out now: `sequence` is what it got
    /// when it was sent before, `None` if it is new.
    pub fn may_send(&self, key: &TopicPartition, sequence: Option<Sequence>) -> bool {
        let Some(identity) = self.identity else {
            return false;
        };
        let Some(partition) = self.partitions.get(key) else {
            return true;
        };
        if partition.restarting {
            return false;
        }
        match sequence {
            // A retry overtakes nothing: it goes when everything before it is settled.
            Some(sequence) => partition.unsettled.front() == Some(&sequence.base),
            None if partition.identity != identity => partition.unsettled.is_empty(),
            // A broker that knows nothing of a producer takes any number for its first. Until it
            // has acknowledged one, a second batch could overtake a first that failed.
            None if partition.last_acked.is_none() => partition.unsettled.is_empty(),
            None => partition.unsettled.len() < BATCHES_IN_FLIGHT_MAX,
        }
    }

    /// Gives a new batch of `records` its place. Call after [`Sequences::may_send`] said so.
    pub fn assign(&mut self, key: &TopicPartition, records: i32) -> Option<Sequence> {
        let identity = self.identity?;
        let fresh = || Partition {
            identity,
            next: 0,
            last_acked: None,
            unsettled: VecDeque::new(),
            restarting: false,
        };
        let partition = self.partitions.entry(key.clone()).or_insert_with(fresh);
        if partition.identity != identity {
            debug_assert!(
                partition.unsettled.is_empty(),
                "an identity changes between batches"
            );
            *partition = fresh();
        }
        let base = partition.next;
        partition.next = increment_sequence(base, records);
        partition.unsettled.push_back(base);
        Some(Sequence { identity, base })
    }

    /// The batch was acknowledged.
    pub fn acked(&mut self, key: &TopicPartition, sequence: Sequence, records: i32) {
        if let Some(partition) = self.current(key, sequence) {
            partition.unsettled.retain(|base| *base != sequence.base);
            partition.last_acked = Some(increment_sequence(sequence.base, records - 1));
        }
    }

    /// Where an unsettled batch stands; `None` if its identity is not the partition's any more.
    pub fn place(&self, key: &TopicPartition, sequence: Sequence) -> Option<Place> {
        let partition = self.partitions.get(key)?;
        if partition.identity != sequence.identity {
            return None;
        }
        let last = partition.last_acked.unwrap_or(decrement_sequence(0, 1));
        // The count wraps; half of it is ahead, half behind. Never more than a few batches are out.
        let ahead = sequence.base.wrapping_sub(increment_sequence(last, 1)) & i32::MAX;
        Some(match ahead {
            0 => Place::Next,
            ahead if ahead < 1 << 30 => Place::Later,
            _ => Place::Passed,
        })
    }

    /// The batch is given up, or must be numbered anew: the partition's count has a gap. Raises
    /// the epoch; at its end a new producer id is needed.
    pub fn restart(&mut self, key: &TopicPartition, sequence: Sequence) {
        let Some(partition) = self.current(key, sequence) else {
            return;
        };
        partition.restarting = true;
        // Whoever raised it first did it for all.
        if self.identity == Some(sequence.identity) {
            let Identity { id, epoch } = sequence.identity;
            self.identity = epoch.checked_add(1).map(|epoch| Identity { id, epoch });
        }
    }

    pub fn is_restarting(&self, key: &TopicPartition) -> bool {
        self.partitions
            .get(key)
            .is_some_and(|partition| partition.restarting)
    }

    /// Nothing of a restarting partition is on the wire any more: its batches are numbered anew.
    pub fn restarted(&mut self, key: &TopicPartition) {
        self.partitions.remove(key);
    }

    fn current(&mut self, key: &TopicPartition, sequence: Sequence) -> Option<&mut Partition> {
        self.partitions
            .get_mut(key)
            .filter(|partition| partition.identity == sequence.identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Identity = Identity { id: 9, epoch: 0 };

    fn key(partition: i32) -> TopicPartition {
        TopicPartition::new("t".into(), partition)
    }

    fn sequences() -> Sequences {
        let mut sequences = Sequences::default();
        sequences.set_identity(ONE);
        sequences
    }

    #[test]
    fn nothing_is_sent_without_a_producer_id() {
        assert!(!Sequences::default().may_send(&key(0), None));
        assert_eq!(Sequences::default().assign(&key(0), 1), None);
    }

    #[test]
    fn partitions_count_on_their_own_and_no_more_than_five_batches_are_out() {
        let mut s = sequences();
        let first = s.assign(&key(0), 10).unwrap();
        s.acked(&key(0), first, 10);
        for n in 1..6 {
            assert!(s.may_send(&key(0), None));
            assert_eq!(s.assign(&key(0), 10).map(|s| s.base), Some(n * 10));
        }
        assert!(!s.may_send(&key(0), None));
        assert_eq!(s.assign(&key(1), 10).map(|s| s.base), Some(0));
        s.acked(
            &key(0),
            Sequence {
                identity: ONE,
                base: 10,
            },
            10,
        );
        assert!(s.may_send(&key(0), None));
    }

    #[test]
    fn a_second_batch_does_not_overtake_the_first_at_a_broker_that_knows_neither() {
        let mut s = sequences();
        let first = s.assign(&key(0), 3).unwrap();
        assert!(!s.may_send(&key(0), None));
        s.acked(&key(0), first, 3);
        assert!(s.may_send(&key(0), None));
    }

    #[test]
    fn a_retry_waits_for_everything_before_it() {
        let mut s = sequences();
        let first = s.assign(&key(0), 3).unwrap();
        let second = s.assign(&key(0), 2).unwrap();
        assert!(!s.may_send(&key(0), Some(second)));
        assert!(s.may_send(&key(0), Some(first)));
        assert_eq!(s.place(&key(0), first), Some(Place::Next));
        assert_eq!(s.place(&key(0), second), Some(Place::Later));
        s.acked(&key(0), first, 3);
        assert!(s.may_send(&key(0), Some(second)));
        assert_eq!(s.place(&key(0), second), Some(Place::Next));
        s.acked(&key(0), second, 2);
        assert_eq!(s.place(&key(0), first), Some(Place::Passed));
    }

    #[test]
    fn a_gap_restarts_the_count_under_a_higher_epoch_when_the_wire_is_quiet() {
        let mut s = sequences();
        let lost = s.assign(&key(0), 3).unwrap();
        let behind = s.assign(&key(0), 2).unwrap();
        let other = s.assign(&key(1), 2).unwrap();
        s.restart(&key(0), lost);
        s.restart(&key(0), behind);
        let two = Identity { id: 9, epoch: 1 };
        assert_eq!(s.identity(), Some(two), "raised once");
        assert!(s.is_restarting(&key(0)) && !s.may_send(&key(0), None));
        s.restarted(&key(0));
        assert_eq!(
            s.assign(&key(0), 2),
            Some(Sequence {
                identity: two,
                base: 0
            })
        );
        // The other partition ends what it has under the old epoch first.
        assert!(!s.may_send(&key(1), None));
        assert!(s.may_send(&key(1), Some(other)));
        s.acked(&key(1), other, 2);
        assert_eq!(
            s.assign(&key(1), 2),
            Some(Sequence {
                identity: two,
                base: 0
            })
        );
        // A late answer to the old epoch changes nothing.
        s.acked(&key(0), behind, 2);
        assert_eq!(s.place(&key(0), behind), None);
    }

    #[test]
    fn a_transaction_goes_on_counting_unless_its_identity_is_another() {
        let mut s = sequences();
        let first = s.assign(&key(0), 3).unwrap();
        s.acked(&key(0), first, 3);
        s.renew_identity(ONE);
        assert_eq!(s.assign(&key(0), 2).map(|s| s.base), Some(3));
        // Given up, which only the end of the transaction mends.
        let two = Identity { id: 9, epoch: 1 };
        s.renew_identity(two);
        assert!(s.may_send(&key(0), None));
        let base = 0;
        let identity = two;
        assert_eq!(s.assign(&key(0), 2), Some(Sequence { identity, base }));
    }

    #[test]
    fn the_last_epoch_asks_for_a_new_producer_id() {
        let mut s = Sequences::default();
        s.set_identity(Identity {
            id: 9,
            epoch: i16::MAX,
        });
        let lost = s.assign(&key(0), 1).unwrap();
        s.restart(&key(0), lost);
        assert!(s.needs_identity());
    }

    #[test]
    fn the_count_wraps_as_the_broker_expects() {
        let mut s = sequences();
        let first = s.assign(&key(0), i32::MAX).unwrap();
        s.acked(&key(0), first, i32::MAX);
        let second = s.assign(&key(0), 2).unwrap();
        assert_eq!(second.base, i32::MAX);
        assert_eq!(s.place(&key(0), second), Some(Place::Next));
        s.acked(&key(0), second, 2);
        let third = s.assign(&key(0), 1).unwrap();
        assert_eq!(third.base, 1);
        assert_eq!(s.place(&key(0), third), Some(Place::Next));
        assert_eq!(s.place(&key(0), second), Some(Place::Passed));
    }
}
