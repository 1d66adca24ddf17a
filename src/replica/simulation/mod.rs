//! Replicas of one partition that exchange fetches through the leader's and follower's decisions,
//! with a controller that is a model of Kafka's rules: random crashes with and without loss of
//! what was not counted, elections from the in-sync set, late metadata, lost and reordered
//! messages. No committed record is lost or changed, replicas are the same below the high
//! watermark, which never goes back within an epoch.

mod model;
mod world;

use super::mutation::{self, Mutation};
use crate::simulation::seeds;
use world::World;

const STEPS: usize = 2000;

fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.settle();
    world
}

#[test]
fn nothing_committed_is_lost_and_replicas_agree_below_the_high_watermark() {
    let mut sums = [0; 5];
    for seed in seeds(20) {
        let world = run(seed);
        let counts = [
            world.committed.len(),
            world.elections,
            world.cuts,
            world.grown,
            world.shrunk,
        ];
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    println!("committed, elections, cuts, grown, shrunk: {sums:?}");
}

/// The checks find each fault that is put in.
#[test]
fn every_mutation_is_found() {
    let mut missed = Vec::new();
    for mutation in [
        Mutation::CommitAlone,
        Mutation::KeepDivergence,
        Mutation::ShrinkUnasked,
    ] {
        mutation::set(Some(mutation));
        let found = (0..100).find(|seed| std::panic::catch_unwind(|| run(*seed)).is_err());
        mutation::set(None);
        match found {
            Some(seed) => println!("{mutation:?} is found by seed {seed}"),
            None => missed.push(mutation),
        }
    }
    assert_eq!(missed, []);
}
