//! Committed offsets of the groups of one shard, by group, topic and partition; offsets pending
//! in open transactions; and which partitions have a commit or removal under way. Part of the
//! shard state machine. It decides nothing about groups or requests.

use std::collections::{BTreeMap, BTreeSet};

use ahash::AHashMap;

use crate::types::Uuid;
use crate::wire::Str;

/// A committed offset as `OffsetCommitValue` stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetAndMetadata {
    pub offset: i64,
    /// -1 if the client did not say.
    pub leader_epoch: i32,
    pub metadata: Str,
    /// Wall clock of the commit, in milliseconds.
    pub commit_ms: i64,
    /// Set by an explicit retention time (OffsetCommit v2-4).
    pub expire_ms: Option<i64>,
    /// Zero if the record does not have it.
    pub topic_id: Uuid,
    /// Where the record stands in the offsets partition; decides between a transactional and a
    /// plain commit of the same partition. -1 while it is not written.
    pub record_offset: i64,
}

/// Offsets of one group in the order of topic names and partitions.
#[derive(Debug, Default)]
pub(super) struct GroupOffsets {
    topics: BTreeMap<Str, BTreeMap<i32, OffsetAndMetadata>>,
    count: usize,
}

impl GroupOffsets {
    pub(super) fn get(&self, topic: &str, partition: i32) -> Option<&OffsetAndMetadata> {
        self.topics.get(topic)?.get(&partition)
    }

    pub(super) fn topics(&self) -> impl Iterator<Item = (&Str, &BTreeMap<i32, OffsetAndMetadata>)> {
        self.topics.iter()
    }

    fn put(&mut self, topic: &Str, partition: i32, value: OffsetAndMetadata) {
        let partitions = match self.topics.get_mut(topic) {
            Some(partitions) => partitions,
            None => self.topics.entry(topic.clone()).or_default(),
        };
        if partitions.insert(partition, value).is_none() {
            self.count += 1;
        }
    }

    fn remove(&mut self, topic: &str, partition: i32) -> Option<OffsetAndMetadata> {
        let partitions = self.topics.get_mut(topic)?;
        let removed = partitions.remove(&partition)?;
        if partitions.is_empty() {
            self.topics.remove(topic);
        }
        self.count -= 1;
        Some(removed)
    }
}

type PartitionKey = (Str, i32);

#[derive(Debug, Default)]
pub(super) struct Offsets {
    groups: AHashMap<Str, GroupOffsets>,
    /// By producer id: commits whose transaction is open.
    pending: BTreeMap<i64, BTreeMap<Str, GroupOffsets>>,
    /// The same by group and partition: the producers whose transaction is open there.
    open: AHashMap<Str, BTreeMap<PartitionKey, BTreeSet<i64>>>,
    /// Number of records under way, by group and partition.
    in_flight: AHashMap<Str, BTreeMap<PartitionKey, usize>>,
}

impl Offsets {
    pub(super) fn of_group(&self, group: &str) -> Option<&GroupOffsets> {
        self.groups.get(group)
    }

    pub(super) fn get(
        &self,
        group: &str,
        topic: &str,
        partition: i32,
    ) -> Option<&OffsetAndMetadata> {
        self.groups.get(group)?.get(topic, partition)
    }

    /// Partitions of the group with a committed offset.
    pub(super) fn count(&self, group: &str) -> usize {
        self.groups.get(group).map_or(0, |offsets| offsets.count)
    }

    pub(super) fn has_open_transaction(&self, group: &str) -> bool {
        self.open.contains_key(group)
    }

    pub(super) fn is_pending(&self, group: &str, topic: &str, partition: i32) -> bool {
        self.open
            .get(group)
            .is_some_and(|partitions| partitions.contains_key(&(Str::from(topic), partition)))
    }

    pub(super) fn is_in_flight(&self, group: &str, topic: &str, partition: i32) -> bool {
        self.in_flight
            .get(group)
            .is_some_and(|partitions| partitions.contains_key(&(Str::from(topic), partition)))
    }

    pub(super) fn has_in_flight(&self, group: &str) -> bool {
        self.in_flight.contains_key(group)
    }

    pub(super) fn in_flight_count(&self, group: &str) -> usize {
        self.in_flight.get(group).map_or(0, BTreeMap::len)
    }

    /// Everything of a group that a tombstone has to cover: committed, pending or under way.
    pub(super) fn all_partitions(&self, group: &str) -> BTreeSet<PartitionKey> {
        let committed = self.groups.get(group).into_iter().flat_map(|offsets| {
            offsets.topics.iter().flat_map(|(topic, partitions)| {
                partitions
                    .keys()
                    .map(|partition| (topic.clone(), *partition))
            })
        });
        let open = self
            .open
            .get(group)
            .into_iter()
            .flat_map(|keys| keys.keys().cloned());
        let in_flight = self
            .in_flight
            .get(group)
            .into_iter()
            .flat_map(|keys| keys.keys().cloned());
        committed.chain(open).chain(in_flight).collect()
    }

    /// True if a tombstone has something to remove.
    pub(super) fn knows(&self, group: &str, topic: &str, partition: i32) -> bool {
        self.get(group, topic, partition).is_some()
            || self.is_pending(group, topic, partition)
            || self.is_in_flight(group, topic, partition)
    }

    /// Groups with anything of the topic, in id order, and the partitions whose topic id is `id`
    /// or unknown.
    pub(super) fn of_topic(&self, topic: &str, id: Uuid) -> BTreeSet<(Str, i32)> {
        let matches = |value: &OffsetAndMetadata| value.topic_id.is_zero() || value.topic_id == id;
        let mut found = BTreeSet::new();
        let mut collect = |group: &Str, offsets: &GroupOffsets| {
            if let Some(partitions) = offsets.topics.get(topic) {
                for (partition, value) in partitions {
                    if matches(value) {
                        found.insert((group.clone(), *partition));
                    }
                }
            }
        };
        for (group, offsets) in &self.groups {
            collect(group, offsets);
        }
        for (group, offsets) in self.pending.values().flatten() {
            collect(group, offsets);
        }
        found
    }

    pub(super) fn begin(&mut self, group: &Str, topic: &Str, partition: i32) {
        *self
            .in_flight
            .entry(group.clone())
            .or_default()
            .entry((topic.clone(), partition))
            .or_default() += 1;
    }

    pub(super) fn end(&mut self, group: &Str, topic: &Str, partition: i32) {
        let Some(partitions) = self.in_flight.get_mut(group) else {
            return;
        };
        let key = (topic.clone(), partition);
        if let Some(count) = partitions.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                partitions.remove(&key);
            }
        }
        if partitions.is_empty() {
            self.in_flight.remove(group);
        }
    }

    /// Stores a commit; `value.record_offset` tells where it stands. An older record never
    /// replaces a newer one.
    pub(super) fn commit(
        &mut self,
        group: &Str,
        topic: &Str,
        partition: i32,
        value: OffsetAndMetadata,
    ) {
        let offsets = match self.groups.get_mut(group) {
            Some(offsets) => offsets,
            None => self.groups.entry(group.clone()).or_default(),
        };
        let is_newer = offsets
            .get(topic, partition)
            .is_none_or(|existing| value.record_offset >= existing.record_offset);
        if is_newer {
            offsets.put(topic, partition, value);
        }
    }

    pub(super) fn commit_pending(
        &mut self,
        producer_id: i64,
        group: &Str,
        topic: &Str,
        partition: i32,
        value: OffsetAndMetadata,
    ) {
        self.pending
            .entry(producer_id)
            .or_default()
            .entry(group.clone())
            .or_default()
            .put(topic, partition, value);
        self.open
            .entry(group.clone())
            .or_default()
            .entry((topic.clone(), partition))
            .or_default()
            .insert(producer_id);
    }

    /// A tombstone: takes the committed offset and every pending one of the partition.
    pub(super) fn remove(&mut self, group: &Str, topic: &Str, partition: i32) {
        if let Some(offsets) = self.groups.get_mut(group) {
            offsets.remove(topic, partition);
            if offsets.topics.is_empty() {
                self.groups.remove(group);
            }
        }
        let key = (topic.clone(), partition);
        let Some(open) = self.open.get_mut(group) else {
            return;
        };
        for producer_id in open.remove(&key).into_iter().flatten() {
            if let Some(groups) = self.pending.get_mut(&producer_id) {
                if let Some(offsets) = groups.get_mut(group) {
                    offsets.remove(topic, partition);
                    if offsets.topics.is_empty() {
                        groups.remove(group);
                    }
                }
                if groups.is_empty() {
                    self.pending.remove(&producer_id);
                }
            }
        }
        if open.is_empty() {
            self.open.remove(group);
        }
    }

    /// The end marker of a producer's transaction.
    pub(super) fn complete_transaction(&mut self, producer_id: i64, committed: bool) {
        for (group, offsets) in self.pending.remove(&producer_id).into_iter().flatten() {
            for (topic, partitions) in offsets.topics {
                for (partition, value) in partitions {
                    self.close(&group, &topic, partition, producer_id);
                    if committed {
                        self.commit(&group, &topic, partition, value);
                    }
                }
            }
        }
    }

    fn close(&mut self, group: &Str, topic: &Str, partition: i32, producer_id: i64) {
        let Some(open) = self.open.get_mut(group) else {
            return;
        };
        let key = (topic.clone(), partition);
        if let Some(producers) = open.get_mut(&key) {
            producers.remove(&producer_id);
            if producers.is_empty() {
                open.remove(&key);
            }
        }
        if open.is_empty() {
            self.open.remove(group);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Offsets::default();
    }
}
