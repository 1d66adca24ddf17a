//! Where the replicas of new partitions go. Pure.
//!
//! As Kafka's placer: the racks take turns and the brokers within a rack, from a random start; the
//! first replica is on a broker that takes part, the others also on fenced ones, for they come
//! back; a broker that shuts down or whose directories are all cordoned gets none. After as many
//! partitions as there are brokers that take part the order is shuffled, so that the same brokers
//! do not always hold the same partitions together.

use super::image::Image;
use crate::types::NodeId;
use std::collections::BTreeMap;

/// Why replicas cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("Invalid replication factor {0}: the replication factor must be positive.")]
    NotPositive(usize),
    #[error("All brokers are currently fenced, or have all their log directories cordoned.")]
    AllFenced,
    #[error(
        "The target replication factor of {wanted} cannot be reached because only {have} broker(s) are registered or some brokers have all their log directories cordoned."
    )]
    TooFew { wanted: usize, have: usize },
}

/// The replicas of each of `partitions` partitions, the preferred leader first. `seed` is random,
/// so that topics do not all begin at the same broker.
pub fn place(
    image: &Image,
    partitions: i32,
    factor: usize,
    seed: u64,
) -> Result<Vec<Vec<NodeId>>, PlacementError> {
    let mut placer = Placer::new(image, seed);
    if factor == 0 {
        return Err(PlacementError::NotPositive(factor));
    }
    if placer.alive == 0 {
        return Err(PlacementError::AllFenced);
    }
    if factor > placer.brokers {
        return Err(PlacementError::TooFew {
            wanted: factor,
            have: placer.brokers,
        });
    }
    Ok((0..partitions).map(|_| placer.next(factor)).collect())
}

/// Brokers that take turns: each round begins one further, and gives each broker once.
#[derive(Default)]
struct Turns {
    brokers: Vec<NodeId>,
    offset: usize,
    given: usize,
}

impl Turns {
    fn begin_round(&mut self) {
        self.given = 0;
        self.offset = (self.offset + 1) % self.brokers.len().max(1);
    }

    fn next(&mut self) -> Option<NodeId> {
        let at = (self.given < self.brokers.len())
            .then(|| (self.given + self.offset) % self.brokers.len())?;
        self.given += 1;
        Some(self.brokers[at])
    }
}

#[derive(Default)]
struct Rack {
    alive: Turns,
    fenced: Turns,
}

struct Placer {
    racks: Vec<Rack>,
    /// Brokers that replicas may be placed on, and those of them that take part.
    brokers: usize,
    alive: usize,
    /// The rack that the next partition begins with.
    first_rack: usize,
    rounds: usize,
    random: SplitMix,
}

impl Placer {
    fn new(image: &Image, seed: u64) -> Placer {
        let mut by_name: BTreeMap<Option<&str>, Rack> = BTreeMap::new();
        let (mut brokers, mut alive) = (0, 0);
        for broker in image.brokers() {
            if broker.in_controlled_shutdown || !broker.takes_new_replicas() {
                continue;
            }
            let rack = by_name.entry(broker.rack.as_deref()).or_default();
            brokers += 1;
            if broker.fenced {
                rack.fenced.brokers.push(broker.id);
            } else {
                alive += 1;
                rack.alive.brokers.push(broker.id);
            }
        }
        let mut placer = Placer {
            racks: by_name.into_values().collect(),
            brokers,
            alive,
            first_rack: 0,
            rounds: 0,
            random: SplitMix(seed),
        };
        placer.first_rack = placer.random.below(placer.racks.len());
        for turns in placer.racks.iter_mut().flat_map(Rack::turns) {
            turns.offset = placer.random.below(turns.brokers.len());
        }
        placer
    }

    fn next(&mut self, factor: usize) -> Vec<NodeId> {
        if self.rounds == self.alive && self.alive > 1 {
            self.shuffle();
            self.rounds = 0;
        }
        self.racks
            .iter_mut()
            .flat_map(Rack::turns)
            .for_each(Turns::begin_round);
        let count = self.racks.len();
        let mut replicas = Vec::with_capacity(factor);
        // The leader: from the first rack that has a broker that takes part.
        let turn = self.first_rack;
        let leaders = (0..count).map(|step| (turn + step) % count);
        let mut leaders_rack = leaders
            .clone()
            .find(|rack| !self.racks[*rack].alive.brokers.is_empty());
        replicas.extend(leaders_rack.and_then(|rack| self.racks[rack].alive.next()));
        // The others: rack by rack, the leader's not again before all have had their turn.
        let mut barren = 0;
        let mut rack = turn;
        while replicas.len() < factor && barren <= count {
            if leaders_rack == Some(rack) {
                leaders_rack = None;
            } else if let Some(broker) = self.racks[rack].next() {
                replicas.push(broker);
                barren = 0;
            } else {
                barren += 1;
            }
            rack = (rack + 1) % count;
        }
        self.rounds += 1;
        self.first_rack = (turn + 1) % count;
        replicas
    }

    fn shuffle(&mut self) {
        self.random.shuffle(&mut self.racks);
        for rack in &mut self.racks {
            for turns in rack.turns() {
                self.random.shuffle(&mut turns.brokers);
            }
        }
    }
}

impl Rack {
    fn turns(&mut self) -> [&mut Turns; 2] {
        [&mut self.alive, &mut self.fenced]
    }

    fn next(&mut self) -> Option<NodeId> {
        self.alive.next().or_else(|| self.fenced.next())
    }
}

/// A small generator: one random seed is enough for a whole placement.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::MetadataRecord;
    use crate::wire::messages::register_broker_record::RegisterBrokerRecord;
    use std::collections::BTreeSet;

    /// One broker each: rack and whether it is fenced.
    fn image(brokers: &[(&str, bool)]) -> Image {
        let mut image = Image::default();
        for (id, (rack, fenced)) in brokers.iter().enumerate() {
            let record = RegisterBrokerRecord {
                broker_id: id as i32,
                rack: Some((*rack).into()),
                fenced: *fenced,
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
        let racks = ["a", "a", "b", "b", "c", "c"].map(|rack| (rack, false));
        let image = image(&racks);
        for seed in 0..200 {
            let placed = place(&image, 24, 3, seed).unwrap();
            let leaders: BTreeSet<_> = placed[..6].iter().map(|replicas| replicas[0]).collect();
            assert!(leaders.len() >= 5, "seed {seed}: {placed:?}");
            for replicas in &placed {
                let racks: BTreeSet<_> = replicas
                    .iter()
                    .map(|id| image.broker(*id).unwrap().rack.clone())
                    .collect();
                assert_eq!(racks.len(), 3, "{replicas:?}");
            }
            // More replicas than racks: still every broker once.
            for replicas in place(&image, 12, 6, seed).unwrap() {
                assert_eq!(replicas.iter().collect::<BTreeSet<_>>().len(), 6);
            }
        }
    }

    #[test]
    fn load_is_even_over_many_partitions() {
        let image = image(&[("a", false), ("b", false), ("c", false)]);
        let placed = place(&image, 300, 2, 9).unwrap();
        for id in 0..3 {
            let held = placed
                .iter()
                .filter(|one| one.contains(&NodeId(id)))
                .count();
            let led = placed.iter().filter(|one| one[0] == NodeId(id)).count();
            assert!((150..=250).contains(&held), "{id} holds {held}");
            assert!((80..=120).contains(&led), "{id} leads {led}");
        }
    }

    #[test]
    fn fenced_brokers_get_replicas_last_and_never_the_first() {
        let image = image(&[("a", true), ("b", false), ("c", false)]);
        for seed in 0..50 {
            for replicas in place(&image, 4, 3, seed).unwrap() {
                assert_ne!(replicas[0], NodeId(0));
                assert!(replicas.contains(&NodeId(0)));
            }
        }
    }

    #[test]
    fn what_cannot_be_placed_is_refused() {
        let one = image(&[("a", false)]);
        let too_few = PlacementError::TooFew { wanted: 2, have: 1 };
        assert_eq!(place(&one, 1, 2, 0), Err(too_few));
        assert_eq!(place(&one, 1, 0, 0), Err(PlacementError::NotPositive(0)));
        let fenced = image(&[("a", true), ("b", true)]);
        assert_eq!(place(&fenced, 1, 1, 0), Err(PlacementError::AllFenced));
        assert_eq!(
            place(&Image::default(), 1, 1, 0),
            Err(PlacementError::AllFenced)
        );
    }
}
