//! What a leader tells followers, strangers and consumers elsewhere, on three real nodes: each in a
//! rack of its own.
#![allow(clippy::unwrap_used)]

mod support;

use highwater::types::Uuid;
use highwater::wire::ErrorCode;
use highwater::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use highwater::wire::messages::fetch_response::{FetchResponse, PartitionData};
use highwater::wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use highwater::wire::messages::list_offsets_response::ListOffsetsResponse;
use highwater::wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use highwater::wire::messages::metadata_response::MetadataResponse;
use std::time::{Duration, Instant};
use support::client::Client;
use support::cluster::Cluster;
use support::raw::Raw;

const PATIENCE: Duration = Duration::from_secs(60);
const FETCH_VERSION: i16 = 17;

struct Three {
    cluster: Cluster,
    topic: Uuid,
    leader: i32,
    epoch: i32,
}

fn three(settings: &[&str]) -> Three {
    let mut cluster = Cluster::start(3, settings);
    let address = cluster.node(1).address;
    Client::connect(address).create_replicated("t", 1, 3, &[("min.insync.replicas", "2")]);
    let deadline = Instant::now() + PATIENCE;
    // Every node must know it: the tests ask all of them.
    let mut found = None;
    for node in 1..=3 {
        found = loop {
            assert!(Instant::now() < deadline, "the topic is not ready");
            std::thread::sleep(Duration::from_millis(20));
            let known = describe(&mut cluster, node);
            if known.is_some() {
                break known;
            }
        };
    }
    let (topic, leader, epoch) = found.unwrap();
    Three {
        cluster,
        topic,
        leader,
        epoch,
    }
}

/// Topic id, leader and its epoch, once all three are in sync.
fn describe(cluster: &mut Cluster, node: i32) -> Option<(Uuid, i32, i32)> {
    let request = MetadataRequest {
        topics: Some(vec![MetadataRequestTopic {
            name: Some("t".into()),
            ..Default::default()
        }]),
        ..Default::default()
    };
    let answer: MetadataResponse = Raw::connect(cluster.node(node).address).call(&request, 12);
    let topic = answer.topics.first()?;
    let partition = topic.partitions.first()?;
    let ready = partition.leader_id > 0 && partition.isr_nodes.len() == 3;
    ready.then_some((topic.topic_id, partition.leader_id, partition.leader_epoch))
}

struct Ask {
    replica: i32,
    broker_epoch: i64,
    epoch: i32,
    from: i64,
    rack: &'static str,
}

const CONSUMER: Ask = Ask {
    replica: -1,
    broker_epoch: -1,
    epoch: -1,
    from: 0,
    rack: "",
};

fn fetch(three: &mut Three, node: i32, ask: Ask) -> PartitionData {
    let mut request = FetchRequest {
        max_bytes: 1 << 20,
        min_bytes: 1,
        rack_id: ask.rack.into(),
        topics: vec![FetchTopic {
            topic_id: three.topic,
            partitions: vec![FetchPartition {
                current_leader_epoch: ask.epoch,
                fetch_offset: ask.from,
                partition_max_bytes: 1 << 20,
                log_start_offset: 0,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    request.replica_state.replica_id = ask.replica;
    request.replica_state.replica_epoch = ask.broker_epoch;
    let mut raw = Raw::connect(three.cluster.node(node).address);
    let mut answer: FetchResponse = raw.call(&request, FETCH_VERSION);
    assert_eq!(answer.error_code, 0);
    answer.responses[0].partitions.remove(0)
}

fn latest(three: &mut Three, node: i32, replica: i32) -> Result<i64, ErrorCode> {
    let request = ListOffsetsRequest {
        replica_id: replica,
        topics: vec![ListOffsetsTopic {
            name: "t".into(),
            partitions: vec![ListOffsetsPartition {
                current_leader_epoch: -1,
                timestamp: -1,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut raw = Raw::connect(three.cluster.node(node).address);
    let answer: ListOffsetsResponse = raw.call(&request, 7);
    let part = &answer.topics[0].partitions[0];
    match ErrorCode(part.error_code) {
        ErrorCode::NONE => Ok(part.offset),
        error => Err(error),
    }
}

fn wait_for(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < deadline, "waited too long for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_leader_answers_everybody_by_who_asks() {
    let mut three =
        three(&["replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"]);
    let (leader, follower) = (three.leader, 1 + three.leader % 3);
    let epoch = three.epoch;
    let mut client = Client::connect(three.cluster.node(leader).address);
    for value in [b"one", b"two"] {
        client.produce("t", 0, value).unwrap();
    }
    let error = |data: PartitionData| ErrorCode(data.error_code);

    // Strangers, and followers of another life or another epoch, are no followers.
    let stranger = Ask {
        replica: 9,
        epoch,
        ..CONSUMER
    };
    let unknown = fetch(&mut three, leader, stranger);
    assert_eq!(error(unknown), ErrorCode::UNKNOWN_LEADER_EPOCH);
    let former_life = Ask {
        replica: follower,
        broker_epoch: 0,
        epoch,
        ..CONSUMER
    };
    let stale = fetch(&mut three, leader, former_life);
    assert_eq!(error(stale), ErrorCode::NOT_LEADER_OR_FOLLOWER);
    let ahead = Ask {
        epoch: epoch + 1,
        ..CONSUMER
    };
    let ahead = fetch(&mut three, leader, ahead);
    assert_eq!(error(ahead), ErrorCode::UNKNOWN_LEADER_EPOCH);
    let of_follower = Ask {
        replica: leader,
        epoch,
        ..CONSUMER
    };
    let refused = fetch(&mut three, follower, of_follower);
    assert_eq!(error(refused), ErrorCode::NOT_LEADER_OR_FOLLOWER);

    // A consumer elsewhere is sent to the replica in its rack, which shows it what is committed.
    let racks = ["rack-1", "rack-2", "rack-3"];
    let sent = fetch(
        &mut three,
        leader,
        Ask {
            rack: racks[follower as usize - 1],
            ..CONSUMER
        },
    );
    assert_eq!(sent.preferred_read_replica, follower);
    assert!(sent.records.unwrap_or_default().is_empty());
    for rack in [racks[leader as usize - 1], "elsewhere", ""] {
        let kept = fetch(&mut three, leader, Ask { rack, ..CONSUMER });
        assert_eq!(kept.preferred_read_replica, -1, "{rack}");
        assert!(!kept.records.unwrap_or_default().is_empty(), "{rack}");
    }
    wait_for("the follower knows what is committed", || {
        let read = fetch(&mut three, follower, CONSUMER);
        assert_eq!(read.error_code, 0);
        let all = read.high_watermark == 2;
        assert_eq!(all, !read.records.unwrap_or_default().is_empty() && all);
        all
    });

    // Offsets are the leader's to tell, but to those who look for trouble.
    assert_eq!(latest(&mut three, leader, -1), Ok(2));
    assert_eq!(latest(&mut three, leader, follower), Ok(2));
    assert_eq!(
        latest(&mut three, follower, -1),
        Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)
    );
    assert_eq!(latest(&mut three, follower, -2), Ok(2));

    // Records are deleted when they are gone on all replicas.
    client.delete_records("t", 0, 1).unwrap();
    for node in 1..=3 {
        let read = fetch(&mut three, node, CONSUMER);
        assert_eq!(error(read), ErrorCode::OFFSET_OUT_OF_RANGE, "{node}");
        let rest = fetch(
            &mut three,
            node,
            Ask {
                from: 1,
                ..CONSUMER
            },
        );
        assert_eq!(rest.log_start_offset, 1, "{node}");
    }
}

/// Bytes that a broker of one shard may copy in a second.
const RATE: usize = 200_000;
/// As in Kafka a rate counts over ten seconds, which may be used up at once; and what one answer
/// brings beyond.
const AT_ONCE: usize = 10 * RATE + (1 << 20);

#[test]
fn throttles_hold_the_catching_up_of_a_follower_to_their_rate() {
    for side in ["leader", "follower"] {
        let rate = format!("{side}.replication.throttled.rate={RATE}");
        let mut three = three(&[&rate, "highwater.shards=1", "replica.lag.time.max.ms=2000"]);
        let (leader, follower) = (three.leader, 1 + three.leader % 3);
        let mut client = Client::connect(three.cluster.node(leader).address);
        let replicas = format!("{side}.replication.throttled.replicas");
        client.set_topic("t", &replicas, "*");
        three.cluster.node(follower).kill();
        let value = [7; 100_000];
        let seconds = 4;
        let count = (AT_ONCE + seconds * RATE) / value.len();
        for _ in 0..count {
            client.produce("t", 0, &value).unwrap();
        }
        let in_sync = |three: &mut Three| {
            let told = client_of(three, leader).partitions("t");
            told[&0].isr_nodes.contains(&follower)
        };
        wait_for("the follower is out of sync", || !in_sync(&mut three));
        three.cluster.node(follower).restart();
        let begun = Instant::now();
        wait_for("the follower is in sync", || in_sync(&mut three));
        let took = begun.elapsed();
        // A slow host only makes it longer.
        assert!(
            took >= Duration::from_secs(seconds as u64),
            "{side}: {took:?}"
        );
        println!("{side}: {} bytes in {took:?}", count * value.len());
    }
}

fn client_of(three: &mut Three, node: i32) -> Client {
    Client::connect(three.cluster.node(node).address)
}
