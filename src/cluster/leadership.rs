//! Who leads what when a node that is its own cluster starts again. Pure: the image in, records
//! out. Elections among several brokers are not decided here.

use super::image::Image;
use super::record::MetadataRecord;
use super::topics::PartitionRegistration;
use crate::types::{NodeId, Uuid};
use crate::wire::messages::partition_change_record::PartitionChangeRecord;

/// The changes by which `node` leads again every partition that it may lead: those it led and,
/// where nobody leads, those whose in-sync, eligible or last known eligible replica it is. Each begins a new leader
/// epoch: what was not synced before the stop may be gone, and offsets that are given out again
/// must be told apart from those that were lost (KIP-101).
pub fn resumed(image: &Image, node: NodeId) -> Vec<MetadataRecord> {
    image
        .topics()
        .flat_map(|topic| {
            topic
                .partitions()
                .map(move |(index, partition)| (topic.id, index, partition))
        })
        .filter_map(|(topic, index, partition)| resume(topic, index, partition, node))
        .collect()
}

fn resume(
    topic_id: Uuid,
    partition_id: i32,
    partition: &PartitionRegistration,
    node: NodeId,
) -> Option<MetadataRecord> {
    let is_leader = partition.leader == node;
    let in_sync = partition.isr.contains(&node);
    let eligible = partition.isr.is_empty()
        && (partition.elr.contains(&node) || partition.last_known_elr == [node]);
    if !is_leader && !(partition.leader.0 < 0 && (in_sync || eligible)) {
        return None;
    }
    let mut change = PartitionChangeRecord {
        partition_id,
        topic_id,
        leader: node.0,
        ..Default::default()
    };
    if !in_sync {
        change.isr = Some(vec![node.0]);
        change.eligible_leader_replicas = Some(
            partition
                .elr
                .iter()
                .filter(|id| **id != node)
                .map(|id| id.0)
                .collect(),
        );
        change.last_known_elr = Some(Vec::new());
    }
    Some(MetadataRecord::from(change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LeaderEpoch, PartitionEpoch};
    use crate::wire::messages::partition_record::PartitionRecord;
    use crate::wire::messages::topic_record::TopicRecord;

    fn image(partitions: &[(i32, &[i32], &[i32])]) -> Image {
        let mut image = Image::default();
        let topic_id = Uuid::from_halves(0, 77);
        let topic = TopicRecord {
            name: "t".into(),
            topic_id,
            ..Default::default()
        };
        image.apply(0, &MetadataRecord::from(topic)).unwrap();
        for (index, (leader, isr, elr)) in partitions.iter().enumerate() {
            let record = PartitionRecord {
                partition_id: index as i32,
                topic_id,
                leader: *leader,
                replicas: vec![1, 2],
                isr: isr.to_vec(),
                eligible_leader_replicas: Some(elr.to_vec()),
                leader_epoch: 4,
                partition_epoch: 9,
                ..Default::default()
            };
            image
                .apply(1 + index as i64, &MetadataRecord::from(record))
                .unwrap();
        }
        image
    }

    #[test]
    fn records_lost_in_a_crash_are_told_apart_by_a_new_leader_epoch() {
        let mut image = image(&[
            (1, &[1], &[]),
            (-1, &[1, 2], &[]),
            (-1, &[], &[1, 2]),
            (2, &[2, 1], &[]),
        ]);
        for (at, record) in resumed(&image, NodeId(1)).iter().enumerate() {
            image.apply(10 + at as i64, record).unwrap();
        }
        let topic = image.topic_by_name("t").unwrap();
        for index in 0..3 {
            let partition = topic.partition(index).unwrap();
            assert_eq!(partition.leader, NodeId(1), "{index}");
            assert_eq!(partition.leader_epoch, LeaderEpoch(5), "{index}");
            assert_eq!(partition.partition_epoch, PartitionEpoch(10), "{index}");
            assert!(partition.isr.contains(&NodeId(1)), "{index}");
        }
        assert_eq!(topic.partition(2).unwrap().elr, [NodeId(2)]);
        let others = topic.partition(3).unwrap();
        assert_eq!(
            (others.leader, others.leader_epoch),
            (NodeId(2), LeaderEpoch(4))
        );
    }
}
