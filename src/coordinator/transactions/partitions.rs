//! The set of partitions that a transaction has touched. A value; in the order of names and
//! indexes, so that what is done with all of them repeats in a replay.

use std::collections::{BTreeMap, BTreeSet};

use crate::wire::Str;

/// See the module's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partitions {
    by_topic: BTreeMap<Str, BTreeSet<i32>>,
}

impl Partitions {
    pub fn is_empty(&self) -> bool {
        self.by_topic.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_topic.values().map(BTreeSet::len).sum()
    }

    pub fn contains(&self, topic: &str, index: i32) -> bool {
        self.by_topic
            .get(topic)
            .is_some_and(|indexes| indexes.contains(&index))
    }

    pub fn contains_all(&self, other: &Partitions) -> bool {
        other
            .iter()
            .all(|(topic, index)| self.contains(topic, index))
    }

    pub fn insert(&mut self, topic: &Str, index: i32) {
        match self.by_topic.get_mut(topic) {
            Some(indexes) => {
                indexes.insert(index);
            }
            None => {
                let indexes = BTreeSet::from([index]);
                // A name that was cut out of a request must not keep the whole request alive.
                self.by_topic.insert(topic.detached(), indexes);
            }
        }
    }

    pub fn extend(&mut self, other: &Partitions) {
        for (topic, index) in other.iter() {
            self.insert(topic, index);
        }
    }

    /// True if it was there.
    pub fn remove(&mut self, topic: &str, index: i32) -> bool {
        let Some(indexes) = self.by_topic.get_mut(topic) else {
            return false;
        };
        let was_there = indexes.remove(&index);
        if indexes.is_empty() {
            self.by_topic.remove(topic);
        }
        was_there
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Str, i32)> {
        self.by_topic
            .iter()
            .flat_map(|(topic, indexes)| indexes.iter().map(move |index| (topic, *index)))
    }

    pub fn topics(&self) -> impl Iterator<Item = (&Str, Vec<i32>)> {
        self.by_topic
            .iter()
            .map(|(topic, indexes)| (topic, indexes.iter().copied().collect()))
    }
}

impl<'a> FromIterator<(&'a Str, i32)> for Partitions {
    fn from_iter<I: IntoIterator<Item = (&'a Str, i32)>>(all: I) -> Partitions {
        let mut partitions = Partitions::default();
        for (topic, index) in all {
            partitions.insert(topic, index);
        }
        partitions
    }
}
