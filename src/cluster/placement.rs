//! Where the replicas of new partitions go: round robin over the live brokers from a random
//! start, spreading over racks where the brokers have them. Pure.

use super::image::Image;
use crate::types::NodeId;

/// Why replicas cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Unable to replicate the partition {wanted} time(s): The target replication factor of {wanted} cannot be reached because only {have} broker(s) are registered or some brokers have all their log directories cordoned."
)]
pub struct TooFewBrokers {
    pub wanted: usize,
    pub have: usize,
}

/// The replicas of each of `partitions` partitions, the preferred leader first. `seed` is random,
/// so that topics do not all begin at the same broker; `first` is the index of the first one.
pub fn place(
    image: &Image,
    first: i32,
    partitions: i32,
    factor: usize,
    seed: u64,
) -> Result<Vec<Vec<NodeId>>, TooFewBrokers> {
    let brokers = by_rack(image);
    if factor == 0 || factor > brokers.len() {
        return Err(TooFewBrokers {
            wanted: factor,
            have: brokers.len(),
        });
    }
    let start = seed as usize % brokers.len();
    let placed = (first..first + partitions)
        .map(|index| {
            let leader = start.wrapping_add(index as usize);
            (0..factor)
                .map(|replica| brokers[(leader + replica) % brokers.len()])
                .collect()
        })
        .collect();
    Ok(placed)
}

/// The live brokers, racks taking turns, so that neighbours in the list are in different racks
/// while there are racks left.
fn by_rack(image: &Image) -> Vec<NodeId> {
    let mut racks: std::collections::BTreeMap<Option<&str>, std::collections::VecDeque<NodeId>> =
        std::collections::BTreeMap::new();
    for broker in image
        .brokers()
        .filter(|broker| !broker.fenced && !broker.in_controlled_shutdown)
    {
        racks
            .entry(broker.rack.as_deref())
            .or_default()
            .push_back(broker.id);
    }
    let mut order = Vec::new();
    while !racks.is_empty() {
        racks.retain(|_, brokers| {
            order.extend(brokers.pop_front());
            !brokers.is_empty()
        });
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::MetadataRecord;
    use crate::wire::messages::register_broker_record::RegisterBrokerRecord;

    fn image(racks: &[&str]) -> Image {
        let mut image = Image::default();
        for (id, rack) in racks.iter().enumerate() {
            let record = RegisterBrokerRecord {
                broker_id: id as i32,
                rack: Some((*rack).into()),
                fenced: false,
                ..Default::default()
            };
            image
                .apply(id as i64, &MetadataRecord::from(record))
                .unwrap();
        }
        image
    }

    #[test]
    fn leaders_go_round_and_replicas_of_a_partition_are_in_different_racks() {
        let image = image(&["a", "a", "b", "b", "c", "c"]);
        let placed = place(&image, 0, 6, 3, 0).unwrap();
        let leaders: std::collections::BTreeSet<_> =
            placed.iter().map(|replicas| replicas[0]).collect();
        assert_eq!(leaders.len(), 6);
        for replicas in &placed {
            let racks: std::collections::BTreeSet<_> = replicas
                .iter()
                .map(|id| image.broker(*id).unwrap().rack.clone())
                .collect();
            assert_eq!(racks.len(), 3, "{replicas:?}");
        }
    }

    #[test]
    fn more_replicas_than_brokers_are_refused() {
        let error = place(&image(&["a"]), 0, 1, 2, 0).unwrap_err();
        assert_eq!(error, TooFewBrokers { wanted: 2, have: 1 });
    }
}
