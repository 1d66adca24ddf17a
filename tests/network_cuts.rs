//! Three and four nodes as real processes whose network is cut: a leader from its followers, a
//! broker from the controllers, one way only. What is acknowledged stays, nobody alone acknowledges
//! what must be on two, no consumer sees a record that disappears.
//!
//! `HIGHWATER_CUTS` says how often the network is cut in the loop (6).
#![allow(clippy::unwrap_used)]

mod support;

use highwater::wire::ErrorCode;
use std::time::{Duration, Instant};
use support::client::Client;
use support::cluster::Cluster;
use support::load::{Load, PATIENCE};
use support::wires::Plane;

/// As many as nodes at most: each leads one.
const PARTITIONS: i32 = 4;
/// Faster than Kafka's, so that a test sees a failover in seconds.
const QUICK: [&str; 4] = [
    // Not so short that a node on a busy machine is taken for dead.
    "broker.session.timeout.ms=4000",
    "broker.heartbeat.interval.ms=200",
    "replica.lag.time.max.ms=2000",
    "offsets.topic.num.partitions=1",
];

fn wait_for(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < deadline, "waited too long for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A cluster over wires, with a topic on three nodes that wants two of them in sync.
fn cluster_with_topic(nodes: usize, controllers: usize) -> Cluster {
    let mut cluster = Cluster::start_wired(nodes, controllers, &QUICK);
    let address = cluster.node(1).address;
    let mut client = Client::connect(address);
    client.create_replicated("t", PARTITIONS, 3, &[("min.insync.replicas", "2")]);
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

/// The leader of a partition and the number of its replicas in sync, as one node knows them.
fn known(cluster: &mut Cluster, ask: i32, partition: i32) -> (i32, usize) {
    let address = cluster.node(ask).address;
    let partition = Client::connect(address).partitions("t")[&partition].clone();
    (partition.leader_id, partition.isr_nodes.len())
}

fn is_whole(cluster: &mut Cluster, ask: i32) -> bool {
    let address = cluster.node(ask).address;
    let partitions = Client::connect(address).partitions("t");
    partitions.values().all(|p| p.isr_nodes.len() == 3)
}

/// What a leader may say that cannot have a record on two nodes.
fn is_no_acknowledgement(outcome: Result<i64, ErrorCode>) -> bool {
    let refusals = [
        ErrorCode::REQUEST_TIMED_OUT,
        ErrorCode::NOT_ENOUGH_REPLICAS,
        ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode::NOT_LEADER_OR_FOLLOWER,
    ];
    outcome.is_err_and(|error| refusals.contains(&error))
}

#[test]
fn a_leader_cut_off_from_the_others_acknowledges_nothing_alone() {
    let mut cluster = cluster_with_topic(3, 3);
    let (old, mut to_old, offset) = cluster.produce_at_leader(1, "t", b"with all");
    assert_eq!(offset, 0);
    let others: Vec<i32> = (1..=3).filter(|id| *id != old).collect();
    let passed = |cluster: &Cluster| {
        let ways = others.iter().map(|other| (*other, old));
        ways.map(|(from, to)| cluster.wires().passed(from, to))
            .sum::<u64>()
    };
    assert!(passed(&cluster) > 0, "the nodes do not talk over the wires");
    others
        .iter()
        .for_each(|other| cluster.wires().cut(old, *other));
    let at_cut = passed(&cluster);
    assert!(is_no_acknowledgement(to_old.produce("t", 0, b"alone")));
    // Its readers see no further than what the others have, whoever it takes itself for.
    if let Ok((records, high_watermark)) = to_old.fetch("t", 0, 0) {
        assert_eq!((records.len(), high_watermark), (1, 1));
    }
    wait_for("another leads", || {
        let (leader, _) = known(&mut cluster, others[0], 0);
        leader >= 0 && leader != old
    });
    assert_eq!(
        passed(&cluster),
        at_cut,
        "a cut that lets something through"
    );
    let (new, mut to_new, offset) = cluster.produce_at_leader(others[0], "t", b"without it");
    assert_eq!(offset, 1);
    cluster.wires().heal();
    wait_for("the old leader follows", || is_whole(&mut cluster, new));
    // What it had alone is cut off; what the others acknowledged is in its place.
    let (records, high_watermark) = to_new.fetch("t", 0, 0).unwrap();
    assert_eq!((records.len(), high_watermark), (2, 2));
    let replica = |node: i32, cluster: &mut Cluster| {
        let dir = cluster.node(node).partition_dir("t", 0);
        let mut bytes = std::fs::read(dir.join(format!("{:020}.log", 0))).unwrap();
        // Space reserved for what is to come.
        let end = bytes.iter().rposition(|byte| *byte != 0);
        bytes.truncate(end.map_or(0, |end| end + 1));
        bytes
    };
    for node in 1..=3 {
        cluster.node(node).kill();
    }
    let first = replica(1, &mut cluster);
    let has = |text: &[u8]| first.windows(text.len()).any(|window| window == text);
    assert!(has(b"without it") && !has(b"alone"));
    assert!(replica(2, &mut cluster) == first && replica(3, &mut cluster) == first);
}

#[test]
fn a_leader_cut_off_from_the_controllers_alone_loses_its_place() {
    let mut cluster = cluster_with_topic(4, 3);
    // Some replica is on the node that is no controller; it is to lead there.
    let mut partition = 0;
    wait_for("the fourth node leads a partition", || {
        let of_four = (0..PARTITIONS).find(|at| known(&mut cluster, 1, *at).0 == 4);
        partition = of_four.unwrap_or(0);
        of_four.is_some()
    });
    let bootstrap = cluster.bootstrap();
    let load = Load::watched(&bootstrap, "t", PARTITIONS);
    let total = load.run(|| {
        load.goes_on(load.done());
        for controller in 1..=3 {
            let wires = cluster.wires();
            wires.cut_one_way(4, controller, Plane::Control);
            wires.cut_one_way(controller, 4, Plane::Control);
        }
        for ask in 1..=3 {
            wait_for("another leads", || {
                let (leader, _) = known(&mut cluster, ask, partition);
                leader >= 0 && leader != 4
            });
        }
        // Whoever knows of the new leader asks the old one no more, a moment later.
        std::thread::sleep(Duration::from_secs(3));
        let address = cluster.node(4).address;
        let mut to_old = Client::connect(address);
        assert!(is_no_acknowledgement(to_old.produce(
            "t",
            partition,
            b"0 99999999 .."
        )));
        // Clients that ask the old leader who leads are told what it believes: they go on for
        // certain when it knows better.
        cluster.wires().heal();
        wait_for("it is back", || is_whole(&mut cluster, 1));
        load.goes_on(load.done());
    });
    load.verify(&bootstrap, total);
    assert!(load.seen() > 0, "nobody read along");
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_seen_disappears_while_the_network_is_cut() {
    let cuts = std::env::var("HIGHWATER_CUTS").map_or(6, |text| text.parse().unwrap());
    let mut cluster = cluster_with_topic(3, 3);
    let bootstrap = cluster.bootstrap();
    let load = Load::watched(&bootstrap, "t", PARTITIONS);
    let total = load.run(|| {
        for cut in 0..cuts {
            load.goes_on(load.done());
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..500)));
            let (leader, _) = known(&mut cluster, 1 + cut % 3, cut % PARTITIONS);
            let victim = if leader < 0 { 1 } else { leader };
            let others = (1..=3).filter(|other| *other != victim);
            for other in others {
                let wires = cluster.wires();
                for plane in [Plane::Data, Plane::Control] {
                    match cut % 3 {
                        // It is heard and hears nothing, is deaf or dumb, or both.
                        0 => wires.cut(victim, other),
                        1 => wires.cut_one_way(other, victim, plane),
                        _ => wires.cut_one_way(victim, other, plane),
                    }
                }
            }
            // Long enough for sessions to end and for replicas to leave the set.
            std::thread::sleep(Duration::from_millis(fastrand::u64(4500..8000)));
            cluster.wires().heal();
            wait_for("all are in sync again", || is_whole(&mut cluster, victim));
        }
        load.goes_on(load.done());
    });
    load.verify(&bootstrap, total);
    assert!(load.seen() > 0, "nobody read along");
}
