//! What a consumer reads: its partitions, where it stands in each, and what was fetched for them.
//!
//! Pure. Owns positions and buffers; decides which partitions need an offset, which may be fetched,
//! and which records come next.

use indexmap::IndexMap;

use super::fetched::{ConsumerRecord, Fetched};
use super::list_offsets::OffsetSpec;
use super::topic_partition::TopicPartition;
use crate::types::{LeaderEpoch, Offset};
use crate::wire::batch::BatchError;

/// Where a consumer stands in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// The committed offset is to be asked for.
    Unknown,
    /// An offset is to be looked up; `None`: by `auto.offset.reset`.
    Lookup(Option<OffsetSpec>),
    /// The next record to hand out.
    At(Offset),
}

struct Partition {
    position: Position,
    /// Of the last record that was handed out, for the commit.
    leader_epoch: LeaderEpoch,
    paused: bool,
    fetching: bool,
    fetched: Option<Fetched>,
    /// Changes when the position is set from outside, so that a fetch under way is not taken.
    stamp: u64,
    high_watermark: Option<Offset>,
}

/// See the module's words.
#[derive(Default)]
pub(super) struct Assignment {
    partitions: IndexMap<TopicPartition, Partition>,
    stamp: u64,
    /// Which partition is served first next time.
    turn: usize,
}

/// A fetch that may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fetchable {
    pub(super) key: TopicPartition,
    pub(super) offset: Offset,
    pub(super) stamp: u64,
}

impl Assignment {
    pub(super) fn keys(&self) -> Vec<TopicPartition> {
        self.partitions.keys().cloned().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Replaces the partitions; those that stay keep their positions and buffers.
    pub(super) fn replace(&mut self, keys: &[TopicPartition]) {
        let mut before = std::mem::take(&mut self.partitions);
        for key in keys {
            let kept = before.swap_remove(key);
            let partition = kept.unwrap_or_else(|| self.fresh());
            self.partitions.insert(key.clone(), partition);
        }
        self.turn = 0;
    }

    fn fresh(&mut self) -> Partition {
        self.stamp += 1;
        Partition {
            position: Position::Unknown,
            leader_epoch: LeaderEpoch::UNKNOWN,
            paused: false,
            fetching: false,
            fetched: None,
            stamp: self.stamp,
            high_watermark: None,
        }
    }

    /// Sets where to go on; what was fetched or is under way is forgotten. False if the partition
    /// is not assigned.
    pub(super) fn set(&mut self, key: &TopicPartition, position: Position) -> bool {
        self.stamp += 1;
        let Some(partition) = self.partitions.get_mut(key) else {
            return false;
        };
        partition.position = position;
        partition.fetched = None;
        partition.fetching = false;
        partition.leader_epoch = LeaderEpoch::UNKNOWN;
        partition.stamp = self.stamp;
        true
    }

    /// [`Assignment::set`] unless the position was set, or the partition given away, since it had
    /// this stamp.
    pub(super) fn resolve(&mut self, key: &TopicPartition, stamp: u64, to: Position) {
        if self
            .partitions
            .get(key)
            .is_some_and(|partition| partition.stamp == stamp)
        {
            self.set(key, to);
        }
    }

    pub(super) fn pause(&mut self, key: &TopicPartition, paused: bool) -> bool {
        let partition = self.partitions.get_mut(key);
        partition
            .map(|partition| partition.paused = paused)
            .is_some()
    }

    pub(super) fn position(&self, key: &TopicPartition) -> Option<Position> {
        self.partitions.get(key).map(|partition| partition.position)
    }

    pub(super) fn high_watermark(&self, key: &TopicPartition) -> Option<Offset> {
        self.partitions.get(key)?.high_watermark
    }

    /// Partitions whose committed offset is to be asked for, with their stamps.
    pub(super) fn unknown(&self) -> Vec<(TopicPartition, u64)> {
        let unknown = self
            .partitions
            .iter()
            .filter(|(_, p)| p.position == Position::Unknown);
        unknown
            .map(|(key, partition)| (key.clone(), partition.stamp))
            .collect()
    }

    /// Partitions whose offset is to be looked up, with their stamps.
    pub(super) fn lookups(&self) -> Vec<(TopicPartition, u64, Option<OffsetSpec>)> {
        let lookups = self.partitions.iter();
        let lookups = lookups.filter_map(|(key, partition)| match partition.position {
            Position::Lookup(spec) => Some((key.clone(), partition.stamp, spec)),
            _ => None,
        });
        lookups.collect()
    }

    /// Whether a partition has no position yet.
    pub(super) fn lacks_positions(&self) -> bool {
        self.partitions
            .values()
            .any(|partition| !matches!(partition.position, Position::At(_)))
    }

    /// What has been handed out, to be committed.
    pub(super) fn consumed(&self) -> Vec<(TopicPartition, Offset, LeaderEpoch)> {
        let consumed =
            self.partitions
                .iter()
                .filter_map(|(key, partition)| match partition.position {
                    Position::At(offset) => Some((key.clone(), offset, partition.leader_epoch)),
                    _ => None,
                });
        consumed.collect()
    }

    /// Partitions with a position, nothing buffered and no fetch under way.
    pub(super) fn fetchable(&self) -> Vec<Fetchable> {
        let fetchable = self.partitions.iter().filter_map(|(key, partition)| {
            let idle = !partition.paused && !partition.fetching && partition.fetched.is_none();
            match partition.position {
                Position::At(offset) if idle => Some(Fetchable {
                    key: key.clone(),
                    offset,
                    stamp: partition.stamp,
                }),
                _ => None,
            }
        });
        fetchable.collect()
    }

    /// The fetch is under way.
    pub(super) fn begin(&mut self, fetch: &Fetchable) {
        if let Some(partition) = self.current(fetch) {
            partition.fetching = true;
        }
    }

    /// The fetch has ended, with or without records. False if its position is out of date.
    pub(super) fn end(&mut self, fetch: &Fetchable, fetched: Option<(Fetched, Offset)>) -> bool {
        let Some(partition) = self.current(fetch) else {
            return false;
        };
        partition.fetching = false;
        if let Some((fetched, high_watermark)) = fetched {
            partition.fetched = Some(fetched);
            partition.high_watermark = Some(high_watermark);
        }
        true
    }

    fn current(&mut self, fetch: &Fetchable) -> Option<&mut Partition> {
        let partition = self.partitions.get_mut(&fetch.key)?;
        (partition.stamp == fetch.stamp).then_some(partition)
    }

    /// Takes up to `max` records, as many as there are of one partition before the next.
    ///
    /// # Errors
    /// A damaged batch, if nothing comes before it; the position stays there.
    pub(super) fn take(&mut self, max: usize) -> Result<Vec<ConsumerRecord>, BatchError> {
        let mut records = Vec::new();
        let count = self.partitions.len();
        let start = self.turn;
        for at in (0..count).map(|step| (start + step) % count.max(1)) {
            let Some((_, partition)) = self.partitions.get_index_mut(at) else {
                break;
            };
            if partition.paused {
                continue;
            }
            let Some(fetched) = &mut partition.fetched else {
                continue;
            };
            while records.len() < max {
                match fetched.next() {
                    Ok(Some(record)) => {
                        partition.position = Position::At(record.offset.next());
                        partition.leader_epoch = record.leader_epoch;
                        records.push(record);
                    }
                    Ok(None) => {
                        partition.position = Position::At(fetched.position());
                        partition.fetched = None;
                        self.turn = at + 1;
                        break;
                    }
                    Err(error) if records.is_empty() => {
                        partition.fetched = None;
                        return Err(error);
                    }
                    Err(_) => {
                        // Fetched again, and reported when it is the first thing found.
                        partition.fetched = None;
                        break;
                    }
                }
            }
            if records.len() >= max {
                break;
            }
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::batch_builder::BatchBuilder;

    fn key(partition: i32) -> TopicPartition {
        TopicPartition::new("t".into(), partition)
    }

    fn fetched(partition: i32, base: i64, count: i32) -> Fetched {
        let mut builder = BatchBuilder::new();
        builder.base_offset = Offset(base);
        for _ in 0..count {
            builder.append(0, None, Some(b"v"), &[]).unwrap();
        }
        Fetched::new(
            key(partition),
            Offset(base),
            builder.build().unwrap(),
            None,
            true,
        )
    }

    fn at(assignment: &mut Assignment, partition: i32, offset: i64) -> Fetchable {
        assignment.set(&key(partition), Position::At(Offset(offset)));
        let fetch = assignment
            .fetchable()
            .into_iter()
            .find(|f| f.key == key(partition))
            .unwrap();
        assignment.begin(&fetch);
        fetch
    }

    #[test]
    fn a_fetch_that_a_seek_overtook_is_dropped() {
        let mut a = Assignment::default();
        a.replace(&[key(0)]);
        let fetch = at(&mut a, 0, 5);
        assert_eq!(a.fetchable(), []);
        a.set(&key(0), Position::At(Offset(9)));
        assert!(!a.end(&fetch, Some((fetched(0, 5, 3), Offset(8)))));
        assert_eq!(a.take(10).unwrap(), []);
        assert_eq!(a.fetchable()[0].offset, Offset(9));
    }

    #[test]
    fn partitions_that_stay_in_a_rebalance_keep_their_place() {
        let mut a = Assignment::default();
        a.replace(&[key(0), key(1)]);
        let fetch = at(&mut a, 1, 7);
        assert!(a.end(&fetch, Some((fetched(1, 7, 2), Offset(9)))));
        a.replace(&[key(1), key(2)]);
        assert_eq!(
            a.unknown()
                .into_iter()
                .map(|(key, _)| key)
                .collect::<Vec<_>>(),
            [key(2)]
        );
        let offsets: Vec<i64> = a.take(10).unwrap().iter().map(|r| r.offset.0).collect();
        assert_eq!(offsets, [7, 8]);
        assert_eq!(a.position(&key(1)), Some(Position::At(Offset(9))));
        assert_eq!(a.high_watermark(&key(1)), Some(Offset(9)));
    }

    #[test]
    fn an_offset_found_before_a_partition_was_given_away_is_not_used_when_it_is_back() {
        let mut a = Assignment::default();
        a.replace(&[key(0)]);
        let (_, stamp) = a.unknown().remove(0);
        a.replace(&[]);
        a.replace(&[key(0)]);
        a.resolve(&key(0), stamp, Position::At(Offset(3)));
        assert_eq!(a.position(&key(0)), Some(Position::Unknown));
        assert!(a.lacks_positions());
        let (_, stamp) = a.unknown().remove(0);
        a.resolve(&key(0), stamp, Position::At(Offset(4)));
        assert_eq!(a.position(&key(0)), Some(Position::At(Offset(4))));
    }

    #[test]
    fn a_full_partition_does_not_starve_the_next() {
        let mut a = Assignment::default();
        a.replace(&[key(0), key(1)]);
        for partition in [0, 1] {
            let fetch = at(&mut a, partition, 0);
            a.end(&fetch, Some((fetched(partition, 0, 4), Offset(4))));
        }
        let mut seen = Vec::new();
        loop {
            let records = a.take(3).unwrap();
            if records.is_empty() {
                break;
            }
            seen.extend(records.iter().map(|r| (r.partition, r.offset.0)));
        }
        seen.sort_unstable();
        let expected: Vec<(i32, i64)> = (0..2)
            .flat_map(|partition| (0..4).map(move |offset| (partition, offset)))
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_paused_partition_hands_out_and_fetches_nothing() {
        let mut a = Assignment::default();
        a.replace(&[key(0)]);
        let fetch = at(&mut a, 0, 0);
        a.end(&fetch, Some((fetched(0, 0, 2), Offset(2))));
        a.pause(&key(0), true);
        assert_eq!(a.take(10).unwrap(), []);
        a.pause(&key(0), false);
        assert_eq!(a.take(10).unwrap().len(), 2);
        a.pause(&key(0), true);
        assert_eq!(a.fetchable(), []);
    }
}
