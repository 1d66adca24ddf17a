//! Three nodes as real processes, each broker and controller: what is acknowledged stays, whoever
//! is killed, stopped or restarted.
//!
//! `HIGHWATER_KILLS` says how often nodes are killed in the loops (6).
#![allow(clippy::unwrap_used)]

mod support;

use highwater::wire::ErrorCode;
use std::process::Command;
use std::time::{Duration, Instant};
use support::client::Client;
use support::cluster::Cluster;
use support::load::{Load, PATIENCE};

const PARTITIONS: i32 = 3;
/// Faster than Kafka's, so that a test sees a failover in seconds.
const QUICK: [&str; 5] = [
    // Not so short that a node on a busy machine is taken for dead.
    "broker.session.timeout.ms=4000",
    "broker.heartbeat.interval.ms=200",
    "replica.lag.time.max.ms=3000",
    "num.partitions=3",
    "offsets.topic.num.partitions=1",
];

fn kills() -> usize {
    std::env::var("HIGHWATER_KILLS").map_or(6, |text| text.parse().unwrap())
}

/// A cluster with a topic on all three nodes that wants two of them in sync.
fn cluster_with_topic(settings: &[&str]) -> Cluster {
    let settings: Vec<&str> = QUICK.iter().chain(settings).copied().collect();
    let mut cluster = Cluster::start(3, &settings);
    let address = cluster.node(1).address;
    let mut client = Client::connect(address);
    client.create_replicated("t", PARTITIONS, 3, &[("min.insync.replicas", "2")]);
    // Each leader hears of the topic by its own metadata, a little before or after the others.
    for partition in 0..PARTITIONS {
        wait_for("the partitions are led", || {
            let Some(leader) = client.partitions("t").get(&partition).map(|p| p.leader_id) else {
                return false;
            };
            if leader < 0 {
                return false;
            }
            let address = cluster.node(leader).address;
            Client::connect(address).list_offset("t", partition, -2) == Ok(0)
        });
    }
    cluster
}

fn wait_for(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < deadline, "waited too long for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The leader of a partition of "t" as one node knows it.
fn leader(cluster: &mut Cluster, ask: i32, partition: i32) -> i32 {
    let address = cluster.node(ask).address;
    Client::connect(address).partitions("t")[&partition].leader_id
}

#[test]
fn a_record_is_acknowledged_after_its_followers_have_fetched_it() {
    let mut cluster = cluster_with_topic(&["highwater.request.log=true"]);
    let (leader_id, mut client, offset) = cluster.produce_at_leader(1, "t", b"one");
    assert_eq!(offset, 0);
    let (records, high_watermark) = client.fetch("t", 0, 0).unwrap();
    assert_eq!((records.len(), high_watermark), (1, 1));
    // The leader's own log of requests proves the hops: both followers fetched with offset 1
    // named, for only that tells the leader that they have the record.
    wait_for("fetches of both followers", || {
        let fetches = cluster.node(leader_id).request_log("FETCH");
        let followers: std::collections::BTreeSet<i64> = fetches
            .iter()
            .filter_map(|line| {
                let request = &line["request"];
                let replica = request["replicaState"]["replicaId"].as_i64()?;
                let moved = request.to_string().contains("\"fetchOffset\":1,");
                (replica >= 0 && moved).then_some(replica)
            })
            .collect();
        followers.len() == 2
    });
}

#[test]
fn nothing_acknowledged_is_lost_when_nodes_are_killed() {
    let mut cluster = cluster_with_topic(&[]);
    let bootstrap = cluster.bootstrap();
    let load = Load::new(&bootstrap, "t", PARTITIONS);
    let total = load.run(|| {
        for kill in 0..kills() {
            load.goes_on(load.done());
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..500)));
            let ask = 1 + kill as i32 % 3;
            let victim = leader(&mut cluster, ask, kill as i32 % PARTITIONS);
            let victim = if victim < 0 { ask } else { victim };
            cluster.node(victim).kill();
            let before = load.done();
            load.goes_on(before);
            cluster.node(victim).restart();
            wait_for("the killed node is in sync again", || {
                let address = cluster.node(victim).address;
                let partitions = Client::connect(address).partitions("t");
                partitions.values().all(|p| p.isr_nodes.len() == 3)
            });
        }
    });
    load.verify(&bootstrap, total);
}

#[test]
fn a_rolling_restart_loses_nothing() {
    let mut cluster = cluster_with_topic(&[]);
    let bootstrap = cluster.bootstrap();
    let load = Load::new(&bootstrap, "t", PARTITIONS);
    let total = load.run(|| {
        for node in 1..=3 {
            load.goes_on(load.done());
            cluster.node(node).stop();
            load.goes_on(load.done());
            cluster.node(node).restart();
            wait_for("the restarted node is in sync again", || {
                let address = cluster.node(node).address;
                let partitions = Client::connect(address).partitions("t");
                partitions.values().all(|p| p.isr_nodes.len() == 3)
            });
        }
    });
    load.verify(&bootstrap, total);
}

#[test]
fn a_stopped_follower_leaves_the_set_and_no_longer_holds_back_the_others() {
    let mut cluster = cluster_with_topic(&[]);
    let (leader_id, mut client, offset) = cluster.produce_at_leader(1, "t", b"with all three");
    assert_eq!(offset, 0);
    let follower = 1 + leader_id % 3;
    let pid = cluster.node(follower).pid();
    signal("STOP", pid);
    // Waits for the follower until it leaves the set: then two are enough.
    let waited = client.produce("t", 0, b"without one");
    signal("CONT", pid);
    assert_eq!(waited, Ok(1));
    wait_for("the follower is back", || {
        client.partitions("t")[&0].isr_nodes.len() == 3
    });
}

#[test]
fn a_leader_that_stands_still_loses_its_place_and_nothing_that_it_acknowledged() {
    let mut cluster = cluster_with_topic(&[]);
    let bootstrap = cluster.bootstrap();
    let load = Load::new(&bootstrap, "t", PARTITIONS);
    let total = load.run(|| {
        for partition in 0..PARTITIONS {
            load.goes_on(load.done());
            let mut old = -1;
            wait_for("one leads", || {
                old = leader(&mut cluster, 1, partition);
                old >= 0
            });
            let pid = cluster.node(old).pid();
            let other = 1 + old % 3;
            signal("STOP", pid);
            wait_for("another leads", || {
                let next = leader(&mut cluster, other, partition);
                next >= 0 && next != old
            });
            load.goes_on(load.done());
            // It wakes up as a leader that nobody follows any more.
            signal("CONT", pid);
            wait_for("it follows", || {
                let address = cluster.node(other).address;
                let partitions = Client::connect(address).partitions("t");
                partitions.values().all(|p| p.isr_nodes.len() == 3)
            });
        }
    });
    load.verify(&bootstrap, total);
}

#[test]
fn brokers_that_are_no_controllers_follow_one_that_is() {
    let mut cluster = Cluster::start_with(3, 1, &QUICK);
    let address = cluster.node(3).address;
    let mut client = Client::connect(address);
    client.create_replicated("t", PARTITIONS, 3, &[("min.insync.replicas", "3")]);
    wait_for("all replicas in sync", || {
        let partitions = client.partitions("t");
        partitions.len() == PARTITIONS as usize
            && partitions.values().all(|p| p.isr_nodes.len() == 3)
    });
    let bootstrap = cluster.bootstrap();
    let load = Load::new(&bootstrap, "t", PARTITIONS);
    let total = load.run(|| {
        for node in [2, 3] {
            load.goes_on(load.done());
            cluster.node(node).kill();
            cluster.node(node).restart();
        }
        // The controller's log is all there is of the metadata: it must stand a kill as well.
        cluster.node(1).kill();
        cluster.node(1).restart();
        load.goes_on(load.done());
    });
    load.verify(&bootstrap, total);
}

#[test]
fn too_few_in_sync_refuse_what_must_be_on_two() {
    let mut cluster = cluster_with_topic(&[]);
    let (leader_id, mut client, offset) = cluster.produce_at_leader(1, "t", b"one");
    assert_eq!(offset, 0);
    // With the controllers' majority alive only one broker may be gone; the other follower stops
    // being a replica by being stopped, not killed.
    let others: Vec<i32> = (1..=3).filter(|id| *id != leader_id).collect();
    let pids: Vec<u32> = others.iter().map(|id| cluster.node(*id).pid()).collect();
    signal("STOP", pids[0]);
    wait_for("one has left", || {
        client.partitions("t")[&0].isr_nodes.len() == 2
    });
    signal("STOP", pids[1]);
    // Nobody can shrink the set without a controller: the produce waits and times out.
    let refused = client.produce("t", 0, b"two").unwrap_err();
    let expected = [
        ErrorCode::REQUEST_TIMED_OUT,
        ErrorCode::NOT_ENOUGH_REPLICAS,
        ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ];
    assert!(expected.contains(&refused), "{refused}");
    let (_, high_watermark) = client.fetch("t", 0, 0).unwrap();
    assert_eq!(high_watermark, 1, "nobody else has the second record");
    pids.iter().for_each(|pid| signal("CONT", *pid));
    wait_for("all are back", || {
        client.partitions("t")[&0].isr_nodes.len() == 3
    });
}

/// Returns when a process that is to stop has stopped: until one thread has taken the signal, the
/// others go on, and a follower may fetch once more.
fn signal(name: &str, pid: u32) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
    if name == "STOP" {
        let is_stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ")
                .is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        wait_for("it has stopped", || {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            tasks.flatten().all(is_stopped)
        });
    }
}
