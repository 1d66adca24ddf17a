//! What members of a consumer group tell each other through the coordinator, which does not look
//! inside: subscriptions and assignments (protocol type `consumer`).
//!
//! Pure. An int16 version, then the message of that version.

use bytes::{BufMut, Bytes, BytesMut};

use super::error::ClientError;
use super::topic_partition::TopicPartition;
use crate::wire::messages::consumer_protocol_assignment::{
    ConsumerProtocolAssignment, TopicPartition as AssignedTopic,
};
use crate::wire::messages::consumer_protocol_subscription::{
    ConsumerProtocolSubscription, TopicPartition as OwnedTopic,
};
use crate::wire::{Message, Reader, Str};

/// The protocol type of consumers.
pub const PROTOCOL_TYPE: &str = "consumer";
/// What is written; readers of older versions ignore what follows the fields they know.
const WRITTEN: i16 = 1;

/// A subscription to `topics` of a member that holds `owned`.
pub(super) fn subscription(topics: &[Str], owned: &[TopicPartition]) -> Result<Bytes, ClientError> {
    let owned = by_topic(owned)
        .into_iter()
        .map(|(topic, partitions)| OwnedTopic {
            topic,
            partitions,
            ..OwnedTopic::default()
        });
    let message = ConsumerProtocolSubscription {
        topics: topics.to_vec(),
        owned_partitions: owned.collect(),
        ..ConsumerProtocolSubscription::default()
    };
    write(&message)
}

/// The topics of a member's subscription.
pub(super) fn subscribed_topics(bytes: &Bytes) -> Result<Vec<Str>, ClientError> {
    let subscription: ConsumerProtocolSubscription = read(bytes)?;
    Ok(subscription.topics.iter().map(Str::detached).collect())
}

pub(super) fn assignment(partitions: &[TopicPartition]) -> Result<Bytes, ClientError> {
    let assigned = by_topic(partitions)
        .into_iter()
        .map(|(topic, partitions)| AssignedTopic {
            topic,
            partitions,
            ..AssignedTopic::default()
        });
    let message = ConsumerProtocolAssignment {
        assigned_partitions: assigned.collect(),
        ..ConsumerProtocolAssignment::default()
    };
    write(&message)
}

/// The partitions of an assignment; no bytes at all is none.
pub(super) fn assigned_partitions(bytes: &Bytes) -> Result<Vec<TopicPartition>, ClientError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let assignment: ConsumerProtocolAssignment = read(bytes)?;
    let mut partitions = Vec::new();
    for assigned in &assignment.assigned_partitions {
        let topic = assigned.topic.detached();
        partitions.extend(
            assigned
                .partitions
                .iter()
                .map(|index| TopicPartition::new(topic.clone(), *index)),
        );
    }
    Ok(partitions)
}

fn by_topic(partitions: &[TopicPartition]) -> Vec<(Str, Vec<i32>)> {
    let mut topics: Vec<(Str, Vec<i32>)> = Vec::new();
    for key in partitions {
        match topics.iter_mut().find(|(topic, _)| *topic == key.topic) {
            Some((_, indexes)) => indexes.push(key.partition),
            None => topics.push((key.topic.clone(), vec![key.partition])),
        }
    }
    topics
}

fn write<M: Message>(message: &M) -> Result<Bytes, ClientError> {
    let body = message.to_bytes(WRITTEN)?;
    let mut out = BytesMut::with_capacity(2 + body.len());
    out.put_i16(WRITTEN);
    out.extend_from_slice(&body);
    Ok(out.freeze())
}

/// Reads any version: of one that is newer than ours the part that we know.
fn read<M: Message>(bytes: &Bytes) -> Result<M, ClientError> {
    let mut r = Reader::new(bytes.clone());
    let version = r.i16("version")?;
    Ok(M::decode(&mut r, version.min(M::MAX_VERSION))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partitions() -> Vec<TopicPartition> {
        [("a", 0), ("b", 2), ("a", 1)]
            .map(|(topic, partition)| TopicPartition::new(topic.into(), partition))
            .to_vec()
    }

    #[test]
    fn what_one_member_writes_another_reads() {
        let topics = [Str::from("a"), Str::from("b")];
        let bytes = subscription(&topics, &partitions()).unwrap();
        assert_eq!(subscribed_topics(&bytes).unwrap(), topics);
        let mut read = assigned_partitions(&assignment(&partitions()).unwrap()).unwrap();
        read.sort();
        let mut expected = partitions();
        expected.sort();
        assert_eq!(read, expected);
        assert_eq!(assigned_partitions(&Bytes::new()).unwrap(), []);
    }

    #[test]
    fn java_bytes_are_read_and_newer_versions_are_read_as_far_as_known() {
        // Version 0: one topic "orders" with partitions 0 and 3, user data null.
        let mut java = vec![0, 0, 0, 0, 0, 1, 0, 6];
        java.extend_from_slice(b"orders");
        java.extend_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 255, 255, 255, 255]);
        let orders = |partition| TopicPartition::new("orders".into(), partition);
        let bytes = Bytes::from(java.clone());
        assert_eq!(assigned_partitions(&bytes).unwrap(), [orders(0), orders(3)]);
        java[1] = 9;
        java.extend_from_slice(&[1, 2, 3]);
        let bytes = Bytes::from(java);
        assert_eq!(assigned_partitions(&bytes).unwrap(), [orders(0), orders(3)]);
    }

    #[test]
    fn another_members_garbage_is_an_error() {
        for garbage in [
            &b"\x00"[..],
            b"\xff\xff\0\0",
            b"\0\0\x7f\xff\xff\xff",
            b"\0\x01\0\0\0\x01",
        ] {
            assert!(
                subscribed_topics(&Bytes::from_static(garbage)).is_err(),
                "{garbage:?}"
            );
        }
    }
}
