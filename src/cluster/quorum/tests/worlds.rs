//! Random worlds.

use super::kit::Cluster;
use crate::rt::sim::Fault;
use crate::simulation::seeds;
use crate::wire::messages::describe_quorum_request::{
    DescribeQuorumRequest, PartitionData, TopicData,
};
use crate::wire::messages::describe_quorum_response::DescribeQuorumResponse;
use std::time::Duration;

/// Snapshots after a few hundred changes, small segments, little kept.
const SMALL: &str = "metadata.log.max.record.bytes.between.snapshots=6000\n\
                     metadata.max.retention.bytes=1\n";

#[test]
fn three_elect_a_leader_in_two_seconds_and_agree() {
    let (mut elected, mut late) = (0_usize, 0);
    for seed in seeds(20) {
        let cluster = Cluster::start(seed, 3, "");
        let in_time = Duration::from_secs(2);
        elected += 1;
        if !cluster
            .world
            .run_until(in_time, || cluster.active().is_some())
        {
            // Votes are split now and then, by chance, and cast again.
            late += 1;
            let ok = cluster
                .world
                .run_until(in_time, || cluster.active().is_some());
            assert!(ok, "seed {seed}");
        }
        cluster.converge();
        cluster.check_all();
    }
    assert!(
        late <= usize::div_ceil(elected, 100),
        "{late} of {elected} took longer"
    );
}

#[test]
fn another_leads_soon_after_the_leader_has_gone_and_it_comes_back() {
    for seed in seeds(20) {
        let cluster = Cluster::start(seed, 3, SMALL);
        cluster.converge();
        let first = cluster.active().unwrap();
        cluster.nodes[first].lose_power();
        let ok = cluster.world.run_until(Duration::from_secs(5), || {
            cluster.active().is_some_and(|node| node != first)
        });
        assert!(ok, "seed {seed}");
        cluster.world.run_for(Duration::from_secs(12));
        cluster.converge();
        cluster.check_all();
        let home = "/data/__cluster_metadata-0";
        let names = cluster.nodes[first].disk().list(home).unwrap();
        let begin = names.iter().find(|name| name.ends_with(".log")).unwrap();
        assert_ne!(begin, "00000000000000000000.log", "it was sent a snapshot");
    }
}

#[test]
fn voters_agree_over_their_listeners_and_do_without_one_that_is_cut_off() {
    for seed in seeds(5) {
        let cluster = Cluster::start_wired(seed, 3, SMALL);
        let (world, network) = (&cluster.world, cluster.world.network());
        for _ in 0..3 {
            let ok = world.run_until(Duration::from_secs(5), || cluster.active().is_some());
            assert!(ok, "seed {seed}");
            let first = cluster.active().unwrap();
            network.isolate(first);
            let ok = world.run_until(Duration::from_secs(5), || {
                let leaders = (0..3).filter(|node| *node != first);
                let mut others = leaders.filter_map(|node| cluster.controller(node));
                others.any(|it| it.is_active())
            });
            assert!(ok, "seed {seed}");
            network.heal_all();
            world.run_for(Duration::from_secs(4));
        }
        let last = cluster.active().unwrap();
        cluster.nodes[(last + 1) % 3].lose_power();
        world.run_for(Duration::from_secs(8));
        cluster.converge();
        cluster.check_all();
    }
}

#[test]
fn the_quorum_is_described_as_it_is_and_only_by_its_leader() {
    let mut cluster = Cluster::start(seeds(1).next().unwrap(), 3, "");
    cluster.add_observer("");
    cluster.converge();
    // The observer asks for what comes next.
    cluster.world.run_for(Duration::from_secs(1));
    let request = DescribeQuorumRequest {
        topics: vec![TopicData {
            topic_name: "__cluster_metadata".into(),
            partitions: vec![PartitionData::default()],
            ..Default::default()
        }],
        ..Default::default()
    };
    let leader = cluster.active().unwrap();
    for node in 0..3 {
        let response: DescribeQuorumResponse = cluster.ask(node, &request);
        let partition = &response.topics[0].partitions[0];
        if node != leader {
            assert_eq!(partition.error_code, 6, "NOT_LEADER_OR_FOLLOWER");
            continue;
        }
        assert_eq!(
            (partition.error_code, partition.leader_id),
            (0, leader as i32)
        );
        let voters: Vec<_> = partition
            .current_voters
            .iter()
            .map(|it| it.replica_id)
            .collect();
        assert_eq!(voters, [0, 1, 2]);
        let all = partition.current_voters.iter().chain(&partition.observers);
        for replica in all {
            let behind = partition.high_watermark - replica.log_end_offset;
            assert!((-5..50).contains(&behind), "{replica:?}");
            assert!(replica.last_fetch_timestamp > 0, "{replica:?}");
            assert!(replica.last_caught_up_timestamp > 0, "{replica:?}");
        }
        let observers: Vec<_> = partition.observers.iter().map(|it| it.replica_id).collect();
        assert_eq!(observers, [3]);
        assert_eq!(response.nodes[1].listeners[0].port, 9093);
    }
}

fn chaos(seed: u64, voters: i32, observers: i32) {
    let mut cluster = Cluster::start(seed, voters, SMALL);
    for _ in 0..observers {
        cluster.add_observer(SMALL);
    }
    let voters = voters + observers;
    let (world, mail) = (cluster.world.clone(), cluster.mail.clone());
    let pick = |bound: i32| world.random_below(bound as u64) as i32;
    for _ in 0..40 {
        world.run_for(Duration::from_millis(world.random_below(1500)));
        cluster.seen.check();
        let node = cluster.nodes[pick(voters) as usize].clone();
        let what = pick(14);
        if std::env::var("QUORUM_TRACE").is_ok() {
            let state: Vec<_> = cluster
                .controllers()
                .iter()
                .map(|it| (it.quorum().leader(), it.quorum().committed()))
                .collect();
            println!(
                "{:?} action {what} on {}: {state:?}",
                world.elapsed(),
                node.id()
            );
        }
        match what {
            0 | 1 => node.kill(),
            2 | 3 => node.lose_power(),
            4..=6 => {
                for node in cluster.nodes.iter().filter(|node| !node.is_running()) {
                    node.restart();
                }
            }
            7 => mail.cut(pick(voters), pick(voters)),
            8 => {
                let alone = pick(voters);
                for other in 0..voters {
                    mail.cut(alone, other);
                    mail.cut(other, alone);
                }
            }
            9 => mail.heal(),
            10 => {
                mail.lost_one_in.set(3 + world.random_below(20));
                mail.delay_ms_max.set(world.random_below(400));
            }
            11 => node
                .disk()
                .set_capacity(Some(node.disk().used() + world.random_below(3000))),
            12 => {
                node.disk().set_slowness(1 + world.random_below(60));
                node.disk().set_short_writes(world.random_below(4));
            }
            _ => match pick(3) {
                0 => node.disk().fail_syncs(Fault::OneIn(20)),
                _ => node.disk().heal(),
            },
        }
    }
    cluster.converge();
    cluster.check_all();
}

#[test]
fn three_controllers_keep_what_they_acknowledged_whatever_happens() {
    for seed in seeds(15) {
        chaos(seed, 3, 0);
    }
}

#[test]
fn five_controllers_keep_what_they_acknowledged_whatever_happens() {
    for seed in seeds(8) {
        chaos(seed, 5, 0);
    }
}

#[test]
fn one_controller_alone_keeps_what_it_acknowledged_whatever_happens() {
    for seed in seeds(15) {
        chaos(seed, 1, 0);
    }
}

#[test]
fn observers_have_the_image_of_the_controllers_whatever_happens() {
    for seed in seeds(10) {
        chaos(seed, 3, 2);
    }
}
