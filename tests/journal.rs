//! The flush journal in the real process: what it alone holds comes back, and Kafka never sees it.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use highwater::wire::Records;
use highwater::wire::batch_builder::BatchBuilder;
use highwater::wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use highwater::wire::messages::create_topics_response::CreateTopicsResponse;
use highwater::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use highwater::wire::messages::produce_response::ProduceResponse;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message as _;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use support::Broker;
use support::raw::Raw;

const TOPIC: &str = "orders";
const PARTITIONS: i32 = 10;
const WAIT: Duration = Duration::from_secs(30);

fn create_topic(raw: &mut Raw) {
    let request = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: TOPIC.into(),
            num_partitions: PARTITIONS,
            replication_factor: 1,
            ..Default::default()
        }],
        timeout_ms: 20_000,
        ..Default::default()
    };
    let answer: CreateTopicsResponse = raw.call(&request, 7);
    assert_eq!(answer.topics[0].error_code, 0, "{answer:?}");
}

/// One record to each partition in one request, acknowledged after a flush.
fn round(raw: &mut Raw, at: usize) {
    let data = (0..PARTITIONS).map(|index| {
        let mut batch = BatchBuilder::new();
        let value = format!("{index}/{at}");
        batch
            .append(1_700_000_000_000, None, Some(value.as_bytes()), &[])
            .unwrap();
        PartitionProduceData {
            index,
            records: Some(Records::from(batch.build().unwrap())),
            ..Default::default()
        }
    });
    let request = ProduceRequest {
        acks: -1,
        timeout_ms: 20_000,
        topic_data: vec![TopicProduceData {
            name: TOPIC.into(),
            partition_data: data.collect(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let answer: ProduceResponse = raw.call(&request, 9);
    for partition in &answer.responses[0].partition_responses {
        assert_eq!(partition.error_code, 0, "{partition:?}");
        assert_eq!(partition.base_offset, at as i64);
    }
}

fn journals(data: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data).unwrap().map(|e| e.unwrap().path());
    let named = entries.filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("highwater-journal-")
    });
    named.collect()
}

/// Cuts a partition's only segment behind its first `batches` batches, as a host without power
/// leaves it that flushed no more than these.
fn lose_tail(dir: &Path, batches: usize) {
    let path = dir.join("00000000000000000000.log");
    let bytes = std::fs::read(&path).unwrap();
    let mut position = 0;
    for _ in 0..batches {
        let length = i32::from_be_bytes(bytes[position + 8..position + 12].try_into().unwrap());
        position += 12 + length as usize;
    }
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(position as u64).unwrap();
}

fn values(broker: &Broker) -> Vec<Vec<String>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .set("group.id", "reader")
        .create()
        .unwrap();
    let mut all = Vec::new();
    for partition in 0..PARTITIONS {
        let (low, high) = consumer.fetch_watermarks(TOPIC, partition, WAIT).unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(TOPIC, partition, Offset::Offset(low))
            .unwrap();
        consumer.assign(&list).unwrap();
        let (mut found, deadline) = (Vec::new(), Instant::now() + WAIT);
        while (found.len() as i64) < high - low && Instant::now() < deadline {
            if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                found.push(String::from_utf8(message.payload().unwrap().to_vec()).unwrap());
            }
        }
        all.push(found);
    }
    all
}

#[test]
fn what_only_the_journal_holds_comes_back_and_a_clean_stop_leaves_no_journal() {
    let mut broker = Broker::start(&[
        "log.flush.interval.messages=1",
        "highwater.shards=1",
        "highwater.journal.bytes=4194304",
    ]);
    let mut raw = Raw::connect(broker.address);
    create_topic(&mut raw);
    let mut rounds = 0;
    let deadline = Instant::now() + WAIT;
    while !broker.log_text().contains("journal made") {
        assert!(Instant::now() < deadline, "no journal was made");
        round(&mut raw, rounds);
        rounds += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    let in_segments = rounds;
    for _ in 0..7 {
        round(&mut raw, rounds);
        rounds += 1;
    }
    broker.kill();
    let left = journals(&broker.data);
    assert_eq!(left.len(), 1, "{left:?}");
    for partition in 0..PARTITIONS {
        lose_tail(&broker.partition_dir(TOPIC, partition), in_segments);
    }

    broker.restart();
    let want: Vec<Vec<String>> = (0..PARTITIONS)
        .map(|partition| (0..rounds).map(|at| format!("{partition}/{at}")).collect())
        .collect();
    assert_eq!(values(&broker), want);
    assert_eq!(journals(&broker.data), Vec::<PathBuf>::new());
    let mut raw = Raw::connect(broker.address);
    round(&mut raw, rounds);
    broker.stop();
    assert_eq!(journals(&broker.data), Vec::<PathBuf>::new());
}
