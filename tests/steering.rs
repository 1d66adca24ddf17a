//! The promise that a connection moves to the shard that owns what its client writes, and that the
//! client sees nothing of it: every request is answered once, in order, and nothing is written twice.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use highwater::wire::batch_builder::BatchBuilder;
use highwater::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use highwater::wire::messages::produce_response::ProduceResponse;
use highwater::wire::{Message, Records, Writer};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::Broker;
use support::client::Client;
use support::raw::Raw;

const VERSION: i16 = 9;
/// Requests on their way at a time, sent in one piece: some wait in the broker when it moves.
const ON_THE_WAY: usize = 5;

fn body(partition: i32) -> Bytes {
    let mut builder = BatchBuilder::new();
    builder.append(1, None, Some(b"value"), &[]).unwrap();
    let request = ProduceRequest {
        acks: 1,
        timeout_ms: 10_000,
        topic_data: vec![TopicProduceData {
            name: "t".into(),
            partition_data: vec![PartitionProduceData {
                index: partition,
                records: Some(Records::from(builder.build().unwrap())),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut writer = Writer::new();
    request.encode(&mut writer, VERSION).unwrap();
    writer.into_bytes()
}

/// Produces `count` batches of one record, and checks that they lie behind each other from `next` on.
fn produce(raw: &mut Raw, partition: i32, next: &mut i64, count: usize) {
    let body = body(partition);
    for _ in 0..count / ON_THE_WAY {
        let sent: Vec<i32> = (0..ON_THE_WAY)
            .map(|_| raw.send_body(0, VERSION, &body))
            .collect();
        for sent in sent {
            let (answered, response) = raw.read::<ProduceResponse>(VERSION);
            assert_eq!(sent, answered, "answers come in order");
            let told = &response.responses[0].partition_responses[0];
            assert_eq!((told.error_code, told.base_offset), (0, *next));
            *next += 1;
        }
    }
}

/// The shards that have a connection.
fn shards_with_connections(port: u16) -> Vec<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let gauges = page
        .lines()
        .filter(|line| line.starts_with("highwater_connections{"));
    gauges
        .filter(|line| line.ends_with(" 1"))
        .map(str::to_owned)
        .collect()
}

/// The shard with the one connection, once the broker has noticed that others are gone.
fn place_of_the_connection(port: u16) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let mut shards = shards_with_connections(port);
        if shards.len() == 1 {
            return shards.remove(0);
        }
        assert!(Instant::now() < deadline, "{shards:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_connection_follows_the_partition_that_it_writes_to() {
    let port = support::fixed_port();
    let metrics = format!("highwater.metrics.listener=127.0.0.1:{port}");
    let mut broker = Broker::start(&["highwater.shards=2", &metrics]);
    Client::connect(broker.address).create_topic("t", 2, &[]);
    let mut raw = Raw::connect(broker.address);
    let mut ends = [0, 0];
    let mut places = Vec::new();
    // Two partitions that follow each other lie on different shards.
    for (partition, count) in [(0, 200), (1, 300), (0, 500)] {
        produce(&mut raw, partition, &mut ends[partition as usize], count);
        places.push(place_of_the_connection(port));
    }
    assert_eq!(places[0], places[2]);
    assert_ne!(places[0], places[1]);
    drop(raw);
    let mut client = Client::connect(broker.address);
    for (partition, end) in ends.into_iter().enumerate() {
        let found = client.read_all("t", partition as i32);
        let offsets: Vec<i64> = found.into_keys().collect();
        assert_eq!(offsets, Vec::from_iter(0..end));
    }
    broker.stop();
}
