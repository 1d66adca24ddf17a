//! Topics and their partitions as the metadata log registers them. Plain values of the image.

use crate::types::{LeaderEpoch, NodeId, PartitionEpoch, Uuid};
use crate::wire::Str;
use crate::wire::messages::partition_change_record::PartitionChangeRecord;
use crate::wire::messages::partition_record::PartitionRecord;

/// PartitionChangeRecord.leader: the leader stays.
pub(super) const NO_LEADER_CHANGE: i32 = -2;
/// Topics of the broker's own.
pub const OFFSETS_TOPIC: &str = "__consumer_offsets";
pub const TRANSACTIONS_TOPIC: &str = "__transaction_state";
/// The metadata log's own name; no topic may have it.
pub const METADATA_TOPIC: &str = "__cluster_metadata";
pub const SHARE_STATE_TOPIC: &str = "__share_group_state";
/// The longest topic name: directory names append `-<partition>` and stay within 255 bytes.
const NAME_MAX: usize = 249;

/// Whether a topic is the broker's own: clients may read it, not write it.
pub fn is_internal_topic(name: &str) -> bool {
    [OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC].contains(&name)
}

/// Whether a name can be a topic's; says why not as Kafka does.
pub fn check_topic_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("Topic name is invalid: the empty string is not allowed".into());
    }
    if name == "." || name == ".." {
        return Err(format!("Topic name is invalid: '{name}' is not allowed"));
    }
    if name.len() > NAME_MAX {
        return Err(format!(
            "Topic name is invalid: the length of '{name}' is longer than the max allowed length {NAME_MAX}"
        ));
    }
    if !name
        .bytes()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'))
    {
        return Err(format!(
            "Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
        ));
    }
    Ok(())
}

/// Two names collide when they differ only in '.' and '_': their metrics would be the same.
pub fn names_collide(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .all(|(a, b)| a == b || (matches!(a, b'.' | b'_') && matches!(b, b'.' | b'_')))
}

/// One partition (PartitionRecord with the changes since).
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionRegistration {
    pub replicas: Vec<NodeId>,
    /// The in-sync replicas.
    pub isr: Vec<NodeId>,
    pub removing: Vec<NodeId>,
    pub adding: Vec<NodeId>,
    /// -1 while there is none.
    pub leader: NodeId,
    pub leader_recovery_state: i8,
    pub leader_epoch: LeaderEpoch,
    pub partition_epoch: PartitionEpoch,
    /// One a replica.
    pub directories: Vec<Uuid>,
    /// Eligible leader replicas (KIP-966).
    pub elr: Vec<NodeId>,
    pub last_known_elr: Vec<NodeId>,
}

/// One topic.
#[derive(Clone, Debug, PartialEq)]
pub struct Topic {
    pub name: Str,
    pub id: Uuid,
    /// By index; `None` only while the records of a new topic are being applied.
    partitions: Vec<Option<PartitionRegistration>>,
}

fn nodes(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().map(|id| NodeId(*id)).collect()
}

impl PartitionRegistration {
    pub fn from_record(record: &PartitionRecord) -> PartitionRegistration {
        PartitionRegistration {
            replicas: nodes(&record.replicas),
            isr: nodes(&record.isr),
            removing: nodes(&record.removing_replicas),
            adding: nodes(&record.adding_replicas),
            leader: NodeId(record.leader),
            leader_recovery_state: record.leader_recovery_state,
            leader_epoch: LeaderEpoch(record.leader_epoch),
            partition_epoch: PartitionEpoch(record.partition_epoch),
            directories: record.directories.clone(),
            elr: nodes(
                record
                    .eligible_leader_replicas
                    .as_deref()
                    .unwrap_or_default(),
            ),
            last_known_elr: nodes(record.last_known_elr.as_deref().unwrap_or_default()),
        }
    }

    /// The record that registers the partition as it is now.
    pub fn to_record(&self, topic_id: Uuid, partition_id: i32) -> PartitionRecord {
        let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<_>>();
        let some = |nodes: &[NodeId]| (!nodes.is_empty()).then(|| ids(nodes));
        PartitionRecord {
            partition_id,
            topic_id,
            replicas: ids(&self.replicas),
            isr: ids(&self.isr),
            removing_replicas: ids(&self.removing),
            adding_replicas: ids(&self.adding),
            leader: self.leader.0,
            leader_recovery_state: self.leader_recovery_state,
            leader_epoch: self.leader_epoch.0,
            partition_epoch: self.partition_epoch.0,
            directories: self.directories.clone(),
            eligible_leader_replicas: some(&self.elr),
            last_known_elr: some(&self.last_known_elr),
            ..Default::default()
        }
    }

    /// The partition epoch always grows by one; the leader epoch with every mention of a leader,
    /// even of the same one.
    pub(super) fn change(&mut self, change: &PartitionChangeRecord) {
        let set = |field: &mut Vec<NodeId>, value: &Option<Vec<i32>>| {
            if let Some(ids) = value {
                *field = nodes(ids);
            }
        };
        set(&mut self.isr, &change.isr);
        set(&mut self.replicas, &change.replicas);
        set(&mut self.removing, &change.removing_replicas);
        set(&mut self.adding, &change.adding_replicas);
        set(&mut self.elr, &change.eligible_leader_replicas);
        set(&mut self.last_known_elr, &change.last_known_elr);
        if let Some(directories) = &change.directories {
            self.directories.clone_from(directories);
        }
        if change.leader != NO_LEADER_CHANGE {
            self.leader = NodeId(change.leader);
            self.leader_epoch = LeaderEpoch(self.leader_epoch.0 + 1);
        }
        if change.leader_recovery_state >= 0 {
            self.leader_recovery_state = change.leader_recovery_state;
        }
        self.partition_epoch = PartitionEpoch(self.partition_epoch.0 + 1);
    }
}

impl Topic {
    pub fn new(name: Str, id: Uuid) -> Topic {
        Topic {
            name,
            id,
            partitions: Vec::new(),
        }
    }

    pub fn partition_count(&self) -> i32 {
        self.partitions.len() as i32
    }

    pub fn partition(&self, index: i32) -> Option<&PartitionRegistration> {
        self.partitions.get(usize::try_from(index).ok()?)?.as_ref()
    }

    pub fn has_partition(&self, index: i32) -> bool {
        self.partition(index).is_some()
    }

    /// By index.
    pub fn partitions(&self) -> impl Iterator<Item = (i32, &PartitionRegistration)> {
        self.partitions
            .iter()
            .enumerate()
            .filter_map(|(index, partition)| Some((index as i32, partition.as_ref()?)))
    }

    pub(super) fn set(&mut self, index: i32, registration: PartitionRegistration) {
        let index = index.max(0) as usize;
        if self.partitions.len() <= index {
            self.partitions.resize(index + 1, None);
        }
        self.partitions[index] = Some(registration);
    }

    pub(super) fn change(&mut self, change: &PartitionChangeRecord) -> Result<(), String> {
        let index = usize::try_from(change.partition_id).unwrap_or(usize::MAX);
        match self.partitions.get_mut(index).and_then(Option::as_mut) {
            Some(partition) => {
                partition.change(change);
                Ok(())
            }
            None => Err(format!(
                "no partition {} of {}",
                change.partition_id, self.name
            )),
        }
    }

    pub(super) fn clear_elr(&mut self) {
        for partition in self.partitions.iter_mut().flatten() {
            if !partition.elr.is_empty() || !partition.last_known_elr.is_empty() {
                partition.elr.clear();
                partition.last_known_elr.clear();
                partition.partition_epoch = PartitionEpoch(partition.partition_epoch.0 + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_mentioned_again_still_begins_a_new_epoch() {
        let mut topic = Topic::new("t".into(), Uuid::from_halves(0, 9));
        let record = PartitionRecord {
            leader: 1,
            leader_epoch: 4,
            partition_epoch: 7,
            ..Default::default()
        };
        topic.set(0, PartitionRegistration::from_record(&record));
        let same = PartitionChangeRecord {
            partition_id: 0,
            leader: 1,
            ..Default::default()
        };
        topic.change(&same).unwrap();
        let other = PartitionChangeRecord {
            partition_id: 0,
            isr: Some(vec![1]),
            ..Default::default()
        };
        topic.change(&other).unwrap();
        let partition = topic.partition(0).unwrap();
        assert_eq!(partition.leader_epoch, LeaderEpoch(5));
        assert_eq!(partition.partition_epoch, PartitionEpoch(9));
        assert!(
            topic
                .change(&PartitionChangeRecord {
                    partition_id: 3,
                    ..Default::default()
                })
                .is_err()
        );
    }

    #[test]
    fn impossible_topic_names_are_refused() {
        for bad in ["", ".", "..", "a b", "a/b", "ü", &"x".repeat(250)] {
            assert!(check_topic_name(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "A.b_c-9", &"x".repeat(249)] {
            assert!(check_topic_name(good).is_ok(), "{good:?}");
        }
        assert!(names_collide("a.b_c", "a_b.c") && !names_collide("a.b", "a-b"));
    }
}
