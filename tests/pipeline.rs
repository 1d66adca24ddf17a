//! The claims about one record's way through one broker, each a test named after the claim, with
//! stock librdkafka on the outside and the request log and the files on the inside.
#![allow(clippy::unwrap_used)]

mod support;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::time::{Duration, Instant};
use support::Broker;
use support::raw::Raw;

const REQUEST_LOG: &str = "highwater.request.log=true";
const WAIT: Duration = Duration::from_secs(90);
/// One file to make for the groups, not fifty.
const GROUPS: &str = "offsets.topic.num.partitions=1";

fn producer(broker: &Broker, acks: &str) -> BaseProducer {
    ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .set("acks", acks)
        .set("client.id", format!("producer-{acks}"))
        .create()
        .unwrap()
}

fn send(producer: &BaseProducer, topic: &str, value: &str) {
    producer
        .send(BaseRecord::<(), str>::to(topic).payload(value))
        .map_err(|(e, _)| e)
        .unwrap();
    producer.flush(WAIT).unwrap();
}

fn consumer(broker: &Broker, group: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap()
}

/// The next record's value and offset.
fn next(consumer: &BaseConsumer) -> (String, i64) {
    let deadline = Instant::now() + WAIT;
    while Instant::now() < deadline {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => {
                let value = message.payload().unwrap_or_default().to_vec();
                return (String::from_utf8(value).unwrap(), message.offset());
            }
            // A lost connection or a late answer: librdkafka tries again.
            Some(Err(error)) => eprintln!("{error}"),
            None => {}
        }
    }
    panic!("no record within {WAIT:?}");
}

/// Waits until the request log has `count` lines that `pick` accepts.
fn logged(
    broker: &Broker,
    api: &str,
    count: usize,
    pick: impl Fn(&serde_json::Value) -> bool,
) -> Vec<serde_json::Value> {
    let deadline = Instant::now() + WAIT;
    loop {
        let lines: Vec<_> = broker.request_log(api).into_iter().filter(&pick).collect();
        if lines.len() >= count {
            return lines;
        }
        assert!(
            Instant::now() < deadline,
            "{} of {count} {api} lines",
            lines.len()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn acks_all_is_minus_one_on_the_wire_and_base_offset_is_the_same_in_answer_and_file() {
    let broker = Broker::start(&[REQUEST_LOG]);
    let all = producer(&broker, "all");
    send(&all, "demo", "hello-acks-all");
    let line = logged(&broker, "PRODUCE", 1, |_| true).remove(0);
    assert_eq!(line["request"]["acks"], -1);
    let answer = &line["response"]["responses"][0]["partitionResponses"][0];
    assert_eq!(answer["errorCode"], 0);
    assert_eq!(answer["baseOffset"], 0);
    let size = line["request"]["topicData"][0]["partitionData"][0]["recordsSizeInBytes"]
        .as_u64()
        .unwrap();
    let file = broker
        .partition_dir("demo", 0)
        .join("00000000000000000000.log");
    let bytes = std::fs::read(file).unwrap();
    assert_eq!(
        bytes.len() as u64,
        size,
        "the segment holds the batch that was sent"
    );
    assert_eq!(i64::from_be_bytes(bytes[..8].try_into().unwrap()), 0);
    assert!(bytes.windows(14).any(|window| window == b"hello-acks-all"));
}

#[test]
fn acks_zero_gets_no_answer_at_all_and_acks_one_gets_a_real_one() {
    let broker = Broker::start(&[REQUEST_LOG]);
    send(&producer(&broker, "0"), "demo", "nobody answers");
    let zero = logged(&broker, "PRODUCE", 1, |line| line["request"]["acks"] == 0).remove(0);
    assert_eq!(zero["response"], "");
    send(&producer(&broker, "1"), "demo", "somebody answers");
    let one = logged(&broker, "PRODUCE", 1, |line| line["request"]["acks"] == 1).remove(0);
    assert_eq!(
        one["response"]["responses"][0]["partitionResponses"][0]["baseOffset"],
        1
    );
}

#[test]
fn a_fetch_says_the_high_watermark_that_bounds_it() {
    let broker = Broker::start(&[REQUEST_LOG, GROUPS]);
    send(&producer(&broker, "all"), "demo", "bounded");
    let consumer = consumer(&broker, "readers");
    consumer.subscribe(&["demo"]).unwrap();
    assert_eq!(next(&consumer), ("bounded".into(), 0));
    let has_records = |line: &serde_json::Value| {
        line["response"]["responses"][0]["partitions"][0]["recordsSizeInBytes"].as_u64() > Some(0)
    };
    let line = logged(&broker, "FETCH", 1, has_records).remove(0);
    assert_eq!(
        line["request"]["topics"][0]["partitions"][0]["fetchOffset"],
        0
    );
    assert_eq!(
        line["response"]["responses"][0]["partitions"][0]["highWatermark"],
        1
    );
}

#[test]
fn a_committed_offset_is_where_the_next_consumer_resumes() {
    let mut broker = Broker::start(&[REQUEST_LOG, GROUPS]);
    let all = producer(&broker, "all");
    send(&all, "demo", "first");
    send(&all, "demo", "second");
    {
        let consumer = consumer(&broker, "resume");
        consumer.subscribe(&["demo"]).unwrap();
        let deadline = Instant::now() + WAIT;
        loop {
            assert!(Instant::now() < deadline);
            match consumer.poll(Duration::from_millis(200)) {
                Some(Ok(message)) => {
                    assert_eq!(message.offset(), 0);
                    consumer.commit_message(&message, CommitMode::Sync).unwrap();
                    break;
                }
                Some(Err(error)) => eprintln!("{error}"),
                None => {}
            }
        }
    }
    let line = logged(&broker, "OFFSET_COMMIT", 1, |_| true).remove(0);
    let partition = &line["request"]["topics"][0]["partitions"][0];
    assert_eq!(partition["committedOffset"], 1, "processed 0, resume at 1");
    broker.stop();
    broker.restart();
    let consumer = consumer(&broker, "resume");
    consumer.subscribe(&["demo"]).unwrap();
    assert_eq!(next(&consumer), ("second".into(), 1));
}

#[test]
fn max_wait_is_a_real_long_poll_on_the_broker() {
    use highwater::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
    use highwater::wire::messages::fetch_response::FetchResponse;
    use highwater::wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
    use highwater::wire::messages::metadata_response::MetadataResponse;
    let broker = Broker::start(&[REQUEST_LOG]);
    send(&producer(&broker, "all"), "idle", "one");
    let mut raw = Raw::connect(broker.address);
    let metadata: MetadataResponse = raw.call(
        &MetadataRequest {
            topics: Some(vec![MetadataRequestTopic {
                name: Some("idle".into()),
                ..Default::default()
            }]),
            ..Default::default()
        },
        13,
    );
    let topic_id = metadata.topics[0].topic_id;
    let fetch = FetchRequest {
        max_wait_ms: 3000,
        min_bytes: 1_000_000,
        topics: vec![FetchTopic {
            topic_id,
            partitions: vec![FetchPartition {
                partition: 0,
                fetch_offset: 1,
                partition_max_bytes: 1 << 20,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let begun = Instant::now();
    let answer: FetchResponse = raw.call(&fetch, 17);
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_millis(2990),
        "answered early: {took:?}"
    );
    let partition = &answer.responses[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    assert_eq!(partition.high_watermark, 1);
    assert_eq!(
        partition
            .records
            .as_ref()
            .map_or(0, |records| records.len()),
        0
    );
    let line = logged(&broker, "FETCH", 1, |line| {
        line["request"]["maxWaitMs"] == 3000
    })
    .remove(0);
    assert!(line["totalTimeMs"].as_f64().unwrap() >= 2990.0);
    assert!(
        line["remoteTimeMs"].as_f64().unwrap() >= 2900.0,
        "it waited, it did not work: {line}"
    );
}

#[test]
fn a_deleted_topics_files_go_later() {
    use rdkafka::admin::{AdminClient, AdminOptions};
    let broker = Broker::start(&["log.segment.delete.delay.ms=10000"]);
    send(&producer(&broker, "all"), "doomed", "short life");
    let admin: AdminClient<_> = ClientConfig::new()
        .set("bootstrap.servers", broker.bootstrap())
        .create()
        .unwrap();
    let deleted =
        futures_lite::future::block_on(admin.delete_topics(&["doomed"], &AdminOptions::new()));
    assert_eq!(deleted.unwrap(), vec![Ok("doomed".to_owned())]);
    assert!(
        !broker.partition_dir("doomed", 0).exists(),
        "renamed at once"
    );
    let remains = || {
        std::fs::read_dir(&broker.data)
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .any(|name| name.starts_with("doomed-0.") && name.ends_with("-delete"))
    };
    assert!(remains(), "the files wait for log.segment.delete.delay.ms");
    let deadline = Instant::now() + WAIT;
    while remains() {
        assert!(Instant::now() < deadline, "the files never went");
        std::thread::sleep(Duration::from_millis(50));
    }
}
