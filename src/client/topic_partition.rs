//! A partition by the name of its topic: how clients speak of partitions.

use std::fmt;

use crate::wire::Str;

/// `topic-partition`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    pub topic: Str,
    pub partition: i32,
}

impl TopicPartition {
    pub fn new(topic: Str, partition: i32) -> TopicPartition {
        TopicPartition { topic, partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
