//! Random histories of a small cluster: brokers are registered, fenced, lost and found, leaders
//! change in-sync sets, partitions are reassigned; after every step what must always hold, holds.

use super::alter_partition;
use super::fencing::{self, records_of};
use super::heartbeat;
use super::image::Image;
use super::reassignment;
use super::record::MetadataRecord;
use super::registration;
use super::test_kit::{Model, TOPIC, directory};
use super::topics::PartitionRegistration;
use crate::types::{NodeId, Offset, Uuid};
use crate::wire::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use crate::wire::messages::alter_partition_request::{
    AlterPartitionRequest, BrokerState, PartitionData, TopicData,
};
use crate::wire::messages::broker_heartbeat_request::BrokerHeartbeatRequest;
use crate::wire::messages::broker_registration_request::{BrokerRegistrationRequest, Feature};
use std::time::Duration;

const BROKERS: i32 = 5;
const STEPS: usize = 300;

/// xorshift: enough to choose steps, and the same on every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn broker(&mut self) -> i32 {
        self.below(BROKERS as u64) as i32 + 1
    }

    fn some(&mut self, from: &[NodeId]) -> Vec<NodeId> {
        let mut some = from.to_vec();
        some.retain(|_| self.below(3) > 0);
        some
    }
}

struct World {
    model: Model,
    rng: Rng,
    /// Incarnations so far.
    lives: u64,
    unclean_allowed: bool,
}

impl World {
    fn step(&mut self) -> Vec<MetadataRecord> {
        let id = self.rng.broker();
        let model = &self.model;
        let registered = model.image.broker(NodeId(id)).is_some();
        match self.rng.below(12) {
            0 | 1 => self.register(id),
            2..=5 if registered => self.beat(id),
            6..=8 => self.alter(),
            9 if registered => records_of(&model.image, &model.config, |draft| {
                fencing::fence(draft, NodeId(id));
            }),
            10 => records_of(&model.image, &model.config, |draft| {
                fencing::elect_preferred(draft, 100);
                fencing::elect_unclean(draft, 100);
            }),
            11 => self.reassign(),
            _ => Vec::new(),
        }
    }

    fn register(&mut self, id: i32) -> Vec<MetadataRecord> {
        self.lives += 1;
        let model = &mut self.model;
        let known = model.image.broker(NodeId(id)).map(|broker| broker.epoch.0);
        let was_clean = self.rng.below(2) == 0;
        let features = model
            .image
            .finalized_features()
            .map(|(name, level)| Feature {
                name: name.into(),
                min_supported_version: level,
                max_supported_version: level,
                ..Default::default()
            });
        let request = BrokerRegistrationRequest {
            broker_id: id,
            cluster_id: "c".into(),
            incarnation_id: Uuid::from_halves(3, self.lives),
            features: features.collect(),
            log_dirs: vec![directory(id), directory(id + 100)],
            previous_broker_epoch: known.filter(|_| was_clean).unwrap_or(-1),
            ..Default::default()
        };
        let asked = registration::Asked {
            cluster_id: "c",
            version: 4,
            request: &request,
        };
        let at = (model.now, Offset(model.image.offset() + 1));
        registration::decide(&model.image, &model.config, &mut model.sessions, at, &asked).0
    }

    fn beat(&mut self, id: i32) -> Vec<MetadataRecord> {
        let (rng, model) = (&mut self.rng, &mut self.model);
        let request = BrokerHeartbeatRequest {
            broker_id: id,
            broker_epoch: model.epoch(id),
            current_metadata_offset: model.image.offset() - rng.below(2) as i64,
            want_fence: rng.below(10) == 0,
            want_shut_down: rng.below(6) == 0,
            offline_log_dirs: match rng.below(8) {
                0 => vec![directory(id + 100)],
                _ => Vec::new(),
            },
            ..Default::default()
        };
        let outcome = heartbeat::decide(
            &model.image,
            &model.config,
            &mut model.sessions,
            model.now,
            &request,
        );
        if outcome.is_stopping {
            model.sessions.stops_after(NodeId(id), model.image.offset());
        }
        outcome.records
    }

    /// The leader of a partition asks for some in-sync set.
    fn alter(&mut self) -> Vec<MetadataRecord> {
        let index = self.rng.below(self.model.image.partition_count() as u64) as i32;
        let partition = self.model.of(index).clone();
        let leader = partition.leader;
        let Some(sender) = self.model.image.broker(leader) else {
            return Vec::new();
        };
        let epoch = sender.epoch.0;
        let recovering = partition.leader_recovery_state == 1 && self.rng.below(2) == 0;
        let mut isr = self.rng.some(&partition.replicas);
        if !isr.contains(&leader) {
            isr.push(leader);
        }
        let request = AlterPartitionRequest {
            broker_id: leader.0,
            broker_epoch: epoch,
            topics: vec![TopicData {
                topic_id: TOPIC,
                partitions: vec![PartitionData {
                    partition_index: index,
                    leader_epoch: partition.leader_epoch.0,
                    partition_epoch: partition.partition_epoch.0,
                    leader_recovery_state: i8::from(recovering),
                    new_isr_with_epochs: isr
                        .iter()
                        .map(|id| BrokerState {
                            broker_id: id.0,
                            broker_epoch: -1,
                            ..Default::default()
                        })
                        .collect(),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        alter_partition::decide(&self.model.image, &self.model.config, &request, 3).0
    }

    fn reassign(&mut self) -> Vec<MetadataRecord> {
        let count = self.model.image.partition_count() as u64;
        let partition_index = self.rng.below(count) as i32;
        let mut wanted: Vec<i32> = (1..=BROKERS).collect();
        for at in (1..wanted.len()).rev() {
            wanted.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        wanted.truncate(self.rng.below(3) as usize + 1);
        let replicas = (self.rng.below(3) > 0).then_some(wanted);
        let request = AlterPartitionReassignmentsRequest {
            topics: vec![ReassignableTopic {
                name: "t".into(),
                partitions: vec![ReassignablePartition {
                    partition_index,
                    replicas,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        reassignment::decide(&self.model.image, &self.model.config, &request).0
    }
}

fn check(before: &Image, after: &Image, unclean_allowed: bool, told: &str) {
    let eligible = after.feature("eligible.leader.replicas.version") > 0;
    for (index, now) in after.topic_by_id(TOPIC).unwrap().partitions() {
        let then = before.topic_by_id(TOPIC).unwrap().partition(index).unwrap();
        let told = format!("{told}, partition {index}:\n{then:?}\n{now:?}");
        let within = |some: &[NodeId]| some.iter().all(|id| now.replicas.contains(id));
        let unique = |some: &[NodeId]| {
            let mut ids = some.to_vec();
            ids.sort_unstable();
            ids.dedup();
            ids.len() == some.len()
        };
        assert!(within(&now.isr) && within(&now.elr), "{told}");
        assert!(
            unique(&now.replicas) && unique(&now.isr) && unique(&now.elr),
            "{told}"
        );
        assert_eq!(now.directories.len(), now.replicas.len(), "{told}");
        assert!(!now.isr.iter().any(|id| now.elr.contains(id)), "{told}");
        assert!(
            eligible || (now.elr.is_empty() && !now.isr.is_empty()),
            "{told}"
        );
        assert!(now.elr.is_empty() || now.isr.len() < 2, "{told}");
        if now.leader.0 >= 0 {
            assert!(now.isr.contains(&now.leader), "{told}");
            let broker = after.broker(now.leader).unwrap();
            let is_new = now.leader != then.leader;
            assert!(!is_new || broker.is_active(), "{told}");
            assert!(!broker.fenced, "a fenced leader: {told}");
            assert!(broker.has_online_dir(now.directory(now.leader)), "{told}");
        }
        if eligible {
            for id in &now.isr {
                assert!(after.broker(*id).is_some_and(|one| !one.fenced), "{told}");
            }
        }
        check_epochs(then, now, &told);
        check_leader(then, now, unclean_allowed, &told);
    }
}

fn check_epochs(then: &PartitionRegistration, now: &PartitionRegistration, told: &str) {
    let steps = now.partition_epoch.0 - then.partition_epoch.0;
    assert!((0..=2).contains(&steps), "{told}");
    assert_eq!(steps == 0, then == now, "{told}");
    let leaders = now.leader_epoch.0 - then.leader_epoch.0;
    assert!((0..=steps).contains(&leaders), "{told}");
    if now.leader != then.leader {
        assert!(leaders > 0, "{told}");
    }
}

/// A new leader was in sync or eligible; the last known one when nobody else was left; anybody
/// only where it is allowed.
fn check_leader(
    then: &PartitionRegistration,
    now: &PartitionRegistration,
    unclean_allowed: bool,
    told: &str,
) {
    if now.leader.0 < 0 || now.leader == then.leader {
        return;
    }
    let had = |some: &[NodeId]| some.contains(&now.leader);
    let clean =
        had(&then.isr) || (had(&then.elr) && then.isr.iter().all(|id| !now.isr.contains(id)));
    let joined = now.replicas.len() < then.replicas.len() || then.is_reassigning();
    let last_known = then.last_known_elr == [now.leader] && then.isr.is_empty();
    assert!(clean || joined || last_known || unclean_allowed, "{told}");
    if !clean && !joined {
        assert_eq!(now.leader_recovery_state, 1, "{told}");
        assert_eq!(now.isr, [now.leader], "{told}");
    }
}

#[derive(Debug, Default)]
struct Seen {
    leaders: usize,
    /// Leaders that came from the eligible replicas.
    eligible: usize,
    recovering: usize,
    /// Reassignments that came to their end.
    reassigned: usize,
}

impl Seen {
    fn count(&mut self, before: &Image, after: &Image) {
        for (index, now) in after.topic_by_id(TOPIC).unwrap().partitions() {
            let then = before.topic_by_id(TOPIC).unwrap().partition(index).unwrap();
            self.reassigned += usize::from(then.is_reassigning() && !now.is_reassigning());
            if now.leader != then.leader && now.leader.0 >= 0 {
                self.leaders += 1;
                self.eligible += usize::from(then.elr.contains(&now.leader));
                self.recovering += usize::from(now.leader_recovery_state == 1);
            }
        }
    }
}

#[test]
fn what_must_always_hold_holds_after_every_step() {
    let mut seen = Seen::default();
    for seed in 1..=120u64 {
        let mut model = Model::with_brokers(BROKERS);
        if seed % 2 == 0 {
            model = model.with_eligible();
        }
        let unclean_allowed = seed % 3 == 0;
        model.set(false, "min.insync.replicas", "2");
        if unclean_allowed {
            model.set(false, "unclean.leader.election.enable", "true");
        }
        for replicas in [[1, 2, 3], [2, 3, 4], [5, 1, 4]] {
            model.partition(&replicas, &replicas, replicas[0]);
        }
        model.partition(&[3], &[3], 3);
        let mut world = World {
            model,
            rng: Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            lives: 100,
            unclean_allowed,
        };
        for step in 0..STEPS {
            world.model.now += Duration::from_millis(world.rng.below(3000));
            let before = world.model.image.clone();
            let records = world.step();
            world.model.apply(&records);
            let told = format!("seed {seed}, step {step}, {records:?}");
            check(&before, &world.model.image, world.unclean_allowed, &told);
            seen.count(&before, &world.model.image);
        }
    }
    // The histories must have had something to check.
    assert!(
        seen.leaders > 1000 && seen.eligible > 100 && seen.recovering > 100,
        "{seen:?}"
    );
}
