//! Which log directory of a broker holds a replica (KIP-858). Pure: the image in, where
//! replicas are and belong out. What a lost directory does to leaders is [`super::fencing`]'s.
//!
//! New replicas go where the broker holds the fewest. A replica whose directory is offline has no
//! leader here: its records are on that disk, and an empty log in another place is not them.

use super::image::Image;
use super::topics::PartitionRegistration;
use crate::types::{NodeId, PartitionId, Uuid};
use ahash::{AHashMap, AHashSet};

/// Directory id of a replica whose broker has not placed it yet.
pub const UNASSIGNED: Uuid = Uuid::from_halves(0, 1);
/// Directory id of a replica whose directory its broker has lost.
pub const LOST: Uuid = Uuid::from_halves(0, 2);
/// Ids below this many are Kafka's own; none of them names a directory.
const RESERVED_IDS: u8 = 100;

/// Whether an id names a directory, and not one of Kafka's special states.
pub fn is_directory(id: Uuid) -> bool {
    id.0[..15].iter().any(|&byte| byte != 0) || id.0[15] >= RESERVED_IDS
}

/// How many replicas each directory holds; grows with every choice.
pub(super) struct Placement<'a> {
    image: &'a Image,
    held: Option<AHashMap<Uuid, usize>>,
}

impl<'a> Placement<'a> {
    pub(super) fn new(image: &'a Image) -> Placement<'a> {
        Placement { image, held: None }
    }

    /// The directory of a new replica on `node`: of those online the one with the fewest.
    pub(super) fn choose(&mut self, node: NodeId) -> Uuid {
        let Some(broker) = self.image.broker(node) else {
            return UNASSIGNED;
        };
        let uncordoned: Vec<Uuid> = broker
            .log_dirs
            .iter()
            .copied()
            .filter(|dir| !broker.cordoned_dirs.contains(dir))
            .collect();
        match (&broker.log_dirs[..], &uncordoned[..]) {
            ([], _) => UNASSIGNED,
            ([only], _) | (_, [only]) => *only,
            (all, []) => self.roomiest(all),
            (_, several) => self.roomiest(several),
        }
    }

    /// Of these directories the one with the fewest replicas; the first of equals.
    fn roomiest(&mut self, directories: &[Uuid]) -> Uuid {
        let image = self.image;
        let held = self.held.get_or_insert_with(|| {
            let mut held = AHashMap::new();
            for topic in image.topics() {
                for id in topic.partitions().flat_map(|(_, p)| &p.directories) {
                    *held.entry(*id).or_default() += 1;
                }
            }
            held
        });
        let chosen = directories
            .iter()
            .min_by_key(|id| held.get(*id).copied().unwrap_or(0))
            .copied()
            .unwrap_or(UNASSIGNED);
        *held.entry(chosen).or_default() += 1;
        chosen
    }
}

/// The directories of a node as it found them at its start.
pub struct Found<'a> {
    pub node: NodeId,
    /// Ids of those online.
    pub online: &'a [Uuid],
    /// Some directory could not be read: what is not found may be there.
    pub some_offline: bool,
    /// Where each partition lies, by topic name and index.
    pub partitions: &'a AHashMap<(String, i32), Uuid>,
    /// Those that were on their way to another directory, and lie in one that is offline: the
    /// controller may believe that they have arrived.
    pub hidden: &'a AHashSet<(String, i32)>,
}

/// What a node must tell the controller at its start: the directory of each partition that is not
/// registered where it lies, and of those that lie nowhere and are placed now. What may lie in an
/// offline directory is left as it is registered.
pub fn settle(image: &Image, found: &Found<'_>) -> Vec<(PartitionId, Uuid)> {
    let mut placement = Placement::new(image);
    let mut assigned = Vec::new();
    for topic in image.topics() {
        for (index, partition) in topic.partitions() {
            if !partition.replicas.contains(&found.node) {
                continue;
            }
            let registered = partition.directory(found.node);
            let key = (topic.name.to_string(), index);
            let placed = match found.partitions.get(&key) {
                Some(id) => Some(*id),
                None if found.hidden.contains(&key) => Some(LOST),
                None if found.online.contains(&registered) => Some(registered),
                None if found.some_offline => None,
                None => Some(placement.roomiest(found.online)),
            };
            let id = PartitionId {
                topic: topic.id,
                index,
            };
            assigned.extend(placed.filter(|dir| *dir != registered).map(|dir| (id, dir)));
        }
    }
    assigned
}

impl PartitionRegistration {
    /// The directory of the replica on `node`; unassigned where the record names none.
    pub fn directory(&self, node: NodeId) -> Uuid {
        let at = self.replicas.iter().position(|id| *id == node);
        at.and_then(|at| self.directories.get(at))
            .copied()
            .unwrap_or(UNASSIGNED)
    }
}

impl Image {
    /// Whether a replica can serve nobody: its broker is not there, or its directory is offline.
    pub fn is_replica_offline(&self, partition: &PartitionRegistration, node: NodeId) -> bool {
        self.broker(node)
            .filter(|broker| !broker.fenced)
            .is_none_or(|broker| !broker.has_online_dir(partition.directory(node)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::MetadataRecord;
    use crate::wire::messages::partition_record::PartitionRecord;
    use crate::wire::messages::register_broker_record::RegisterBrokerRecord;
    use crate::wire::messages::topic_record::TopicRecord;

    const A: Uuid = Uuid::from_halves(7, 1);
    const B: Uuid = Uuid::from_halves(7, 2);
    const C: Uuid = Uuid::from_halves(7, 3);
    const NODE: NodeId = NodeId(1);
    const TOPIC: Uuid = Uuid::from_halves(0, 77);

    /// One topic whose partitions lie in these directories.
    fn image(log_dirs: &[Uuid], directories: &[Uuid]) -> Image {
        let mut image = Image::default();
        let mut records = vec![
            MetadataRecord::from(RegisterBrokerRecord {
                broker_id: NODE.0,
                log_dirs: log_dirs.to_vec(),
                fenced: false,
                ..Default::default()
            }),
            MetadataRecord::from(TopicRecord {
                name: "t".into(),
                topic_id: TOPIC,
                ..Default::default()
            }),
        ];
        for (index, directory) in directories.iter().enumerate() {
            records.push(MetadataRecord::from(PartitionRecord {
                partition_id: index as i32,
                topic_id: TOPIC,
                leader: NODE.0,
                replicas: vec![NODE.0],
                isr: vec![NODE.0],
                directories: vec![*directory],
                ..Default::default()
            }));
        }
        apply(&mut image, &records);
        image
    }

    fn apply(image: &mut Image, records: &[MetadataRecord]) {
        for record in records {
            image.apply(image.offset() + 1, record).unwrap();
        }
    }

    #[test]
    fn new_replicas_go_where_the_fewest_are() {
        let image = image(&[A, B, C], &[A, A, B]);
        let mut placement = Placement::new(&image);
        let chosen: Vec<Uuid> = (0..6).map(|_| placement.choose(NODE)).collect();
        assert_eq!(chosen, [C, B, C, A, B, C]);
        assert_eq!(placement.choose(NodeId(9)), UNASSIGNED);
    }

    #[test]
    fn a_start_registers_partitions_where_they_lie_and_guesses_nothing() {
        let image = image(&[A, B], &[A, A, B, UNASSIGNED]);
        let lies: AHashMap<(String, i32), Uuid> =
            [(("t".to_owned(), 0), A), (("t".to_owned(), 1), B)].into();
        let none = AHashSet::new();
        let hidden = AHashSet::from([("t".to_owned(), 0), ("t".to_owned(), 2)]);
        let told = |some_offline| {
            let found = Found {
                node: NODE,
                online: &[A, C],
                some_offline,
                partitions: &lies,
                hidden: if some_offline { &hidden } else { &none },
            };
            let told = settle(&image, &found).into_iter();
            told.map(|(id, dir)| (id.index, dir)).collect::<Vec<_>>()
        };
        // Partition 2 was in a directory that cannot be read now, on its way to another; so may 3
        // have been.
        assert_eq!(told(true), [(1, B), (2, LOST)], "moved by hand");
        // The disk was replaced: nothing is hidden anywhere, so they begin anew.
        assert_eq!(told(false), [(1, B), (2, C), (3, C)]);
    }
}
