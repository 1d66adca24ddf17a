//! Bad input against the running broker: each gets the protocol's error or a closed connection,
//! and the broker stays up and serves others.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::{BufMut, Bytes, BytesMut};
use highwater::wire::ErrorCode;
use highwater::wire::Records;
use highwater::wire::messages::api_versions_response::ApiVersionsResponse;
use highwater::wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use highwater::wire::messages::create_topics_response::CreateTopicsResponse;
use highwater::wire::messages::metadata_request::MetadataRequest;
use highwater::wire::messages::metadata_response::MetadataResponse;
use highwater::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use highwater::wire::messages::produce_response::{PartitionProduceResponse, ProduceResponse};
use std::time::Duration;
use support::Broker;
use support::raw::Raw;

const PRODUCE: i16 = 0;
const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;

/// The broker answers an honest request on a fresh connection.
fn assert_serves(broker: &mut Broker) {
    assert!(broker.is_running(), "the broker died");
    let mut raw = Raw::connect(broker.address);
    let answer: MetadataResponse = raw.call(&MetadataRequest::default(), 12);
    assert_eq!(answer.brokers.len(), 1);
}

fn with_topic(broker: &Broker, configs: &[(&str, &str)]) -> Raw {
    use highwater::wire::messages::create_topics_request::CreatableTopicConfig;
    let mut raw = Raw::connect(broker.address);
    let request = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: "t".into(),
            num_partitions: 1,
            replication_factor: 1,
            configs: configs
                .iter()
                .map(|(name, value)| CreatableTopicConfig {
                    name: (*name).into(),
                    value: Some((*value).into()),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }],
        timeout_ms: 10_000,
        ..Default::default()
    };
    let answer: CreateTopicsResponse = raw.call(&request, 7);
    assert_eq!(
        answer.topics[0].error_code, 0,
        "{:?}",
        answer.topics[0].error_message
    );
    raw
}

/// A good batch of `values`, uncompressed.
fn batch(values: &[&[u8]]) -> BytesMut {
    let mut records = BytesMut::new();
    for (delta, value) in values.iter().enumerate() {
        let mut record = BytesMut::new();
        record.put_u8(0);
        put_varint(&mut record, 0);
        put_varint(&mut record, delta as i64);
        put_varint(&mut record, -1);
        put_varint(&mut record, value.len() as i64);
        record.put_slice(value);
        put_varint(&mut record, 0);
        put_varint(&mut records, record.len() as i64);
        records.put_slice(&record);
    }
    sealed(2, 0, values.len() as i32, &records)
}

fn sealed(magic: i8, attributes: i16, count: i32, records: &[u8]) -> BytesMut {
    let now = 1_790_000_000_000;
    let mut body = BytesMut::new();
    body.put_i16(attributes);
    body.put_i32(count - 1);
    body.put_i64(now);
    body.put_i64(now);
    body.put_i64(-1);
    body.put_i16(-1);
    body.put_i32(-1);
    body.put_i32(count);
    body.put_slice(records);
    let mut batch = BytesMut::new();
    batch.put_i64(0);
    batch.put_i32(body.len() as i32 + 9);
    batch.put_i32(-1);
    batch.put_i8(magic);
    batch.put_u32(crc32c::crc32c(&body));
    batch.put_slice(&body);
    batch
}

fn put_varint(to: &mut BytesMut, value: i64) {
    let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
    while zigzag >= 0x80 {
        to.put_u8(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    to.put_u8(zigzag as u8);
}

fn produce(raw: &mut Raw, records: Bytes) -> PartitionProduceResponse {
    let request = ProduceRequest {
        acks: -1,
        timeout_ms: 5000,
        topic_data: vec![TopicProduceData {
            name: "t".into(),
            partition_data: vec![PartitionProduceData {
                index: 0,
                records: Some(Records::from(records)),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let answer: ProduceResponse = raw.call(&request, 9);
    answer.responses[0].partition_responses[0].clone()
}

fn error_of(raw: &mut Raw, records: Bytes) -> ErrorCode {
    ErrorCode(produce(raw, records).error_code)
}

#[test]
fn a_torn_frame_closes_only_its_own_connection() {
    let mut broker = Broker::start(&[]);
    let mut raw = Raw::connect(broker.address);
    raw.send_bytes(&100i32.to_be_bytes());
    raw.send_bytes(&[0; 40]);
    drop(raw);
    assert_serves(&mut broker);
}

#[test]
fn impossible_frame_sizes_close_the_connection_before_anything_is_allocated() {
    let mut broker = Broker::start(&["socket.request.max.bytes=100000"]);
    for size in [-1, i32::MIN, i32::MAX, 100_001] {
        let mut raw = Raw::connect(broker.address);
        raw.send_bytes(&size.to_be_bytes());
        assert!(raw.is_closed_by_peer(), "size {size}");
    }
    assert_serves(&mut broker);
}

#[test]
fn a_frame_of_no_bytes_closes_the_connection() {
    let mut broker = Broker::start(&[]);
    let mut raw = Raw::connect(broker.address);
    raw.send_bytes(&0i32.to_be_bytes());
    assert!(raw.is_closed_by_peer());
    assert_serves(&mut broker);
}

#[test]
fn an_unknown_api_key_closes_the_connection() {
    let mut broker = Broker::start(&[]);
    for key in [-1, 4, 999, i16::MAX] {
        let mut raw = Raw::connect(broker.address);
        raw.send_body(key, 0, &[]);
        assert!(raw.is_closed_by_peer(), "key {key}");
    }
    assert_serves(&mut broker);
}

#[test]
fn a_version_that_is_too_low_or_too_high_closes_the_connection() {
    let mut broker = Broker::start(&[]);
    for (key, version) in [(PRODUCE, 2), (PRODUCE, 99), (METADATA, -1), (METADATA, 99)] {
        let mut raw = Raw::connect(broker.address);
        raw.send_body(key, version, &[0; 16]);
        assert!(raw.is_closed_by_peer(), "key {key} version {version}");
    }
    assert_serves(&mut broker);
}

#[test]
fn an_api_versions_request_from_the_future_learns_what_there_is() {
    let broker = Broker::start(&[]);
    let mut raw = Raw::connect(broker.address);
    raw.send_body(API_VERSIONS, 99, &[]);
    let (_, answer): (i32, ApiVersionsResponse) = raw.read(0);
    assert_eq!(ErrorCode(answer.error_code), ErrorCode::UNSUPPORTED_VERSION);
    assert_eq!(answer.api_keys.len(), 1);
    assert_eq!(answer.api_keys[0].api_key, API_VERSIONS);
}

#[test]
fn huge_and_negative_counts_in_tiny_frames_close_the_connection() {
    let mut broker = Broker::start(&[]);
    // An array count of a non-flexible and of a flexible Metadata request, and lengths inside.
    let legacy: Vec<Vec<u8>> = [i32::MAX, -2, i32::MIN]
        .iter()
        .map(|n| n.to_be_bytes().to_vec())
        .collect();
    for body in &legacy {
        let mut raw = Raw::connect(broker.address);
        raw.send_body(METADATA, 4, body);
        assert!(raw.is_closed_by_peer(), "{body:?}");
    }
    let flexible: [&[u8]; 3] = [
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[2, 0xff, 0xff, 0xff, 0xff, 0x0f],
    ];
    for body in flexible {
        let mut raw = Raw::connect(broker.address);
        raw.send_body(METADATA, 12, body);
        assert!(raw.is_closed_by_peer(), "{body:?}");
    }
    // Produce v9: topics, partitions, records, each level with a length beyond the frame.
    let huge: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0x07];
    let prefix: &[u8] = &[0, 0xff, 0xff, 0, 0, 0x10, 0];
    let levels: [&[u8]; 3] = [&[], &[2, 2, b't'], &[2, 2, b't', 2, 0, 0, 0, 0]];
    for level in levels {
        let mut raw = Raw::connect(broker.address);
        raw.send_body(PRODUCE, 9, &[prefix, level, huge].concat());
        assert!(raw.is_closed_by_peer(), "{level:?}");
    }
    assert_serves(&mut broker);
}

#[test]
fn a_wrong_crc_is_a_corrupt_message() {
    let mut broker = Broker::start(&[]);
    let mut raw = with_topic(&broker, &[]);
    let mut bad = batch(&[b"value"]);
    let last = bad.len() - 1;
    bad[last] ^= 1;
    assert_eq!(error_of(&mut raw, bad.freeze()), ErrorCode::CORRUPT_MESSAGE);
    assert_eq!(
        error_of(&mut raw, batch(&[b"value"]).freeze()),
        ErrorCode::NONE
    );
    assert_serves(&mut broker);
}

#[test]
fn a_batch_that_is_cut_short_writes_nothing() {
    let broker = Broker::start(&[]);
    let mut raw = with_topic(&broker, &[]);
    let good = batch(&[b"value"]).freeze();
    for cut in [1, 12, 60, good.len() - 1] {
        let error = error_of(&mut raw, good.slice(..cut));
        assert_ne!(error, ErrorCode::NONE, "cut at {cut}");
    }
    assert_eq!(produce(&mut raw, good).base_offset, 0);
}

#[test]
fn a_record_count_that_disagrees_is_an_invalid_record() {
    let broker = Broker::start(&[]);
    let mut raw = with_topic(&broker, &[]);
    let good = batch(&[b"one", b"two"]);
    for count in [0, 1, 3, i32::MAX, -1] {
        let bad = sealed(2, 0, count, &good[61..]).freeze();
        let error = error_of(&mut raw, bad);
        assert!(
            [ErrorCode::INVALID_RECORD, ErrorCode::CORRUPT_MESSAGE].contains(&error),
            "count {count}: {}",
            error.name()
        );
    }
    assert_eq!(produce(&mut raw, good.freeze()).base_offset, 0);
}

#[test]
fn two_batches_in_one_partition_are_an_invalid_record() {
    let broker = Broker::start(&[]);
    let mut raw = with_topic(&broker, &[]);
    let mut two = batch(&[b"one"]);
    two.put_slice(&batch(&[b"two"]));
    assert_eq!(error_of(&mut raw, two.freeze()), ErrorCode::INVALID_RECORD);
}

#[test]
fn old_message_formats_are_an_invalid_record() {
    let broker = Broker::start(&[]);
    let mut raw = with_topic(&broker, &[]);
    for magic in [0, 1] {
        let bad = sealed(magic, 0, 1, &batch(&[b"v"])[61..]).freeze();
        assert_eq!(
            error_of(&mut raw, bad),
            ErrorCode::INVALID_RECORD,
            "magic {magic}"
        );
    }
}

#[test]
fn an_unknown_codec_is_refused() {
    let broker = Broker::start(&[]);
    let mut raw = with_topic(&broker, &[]);
    for codec in [5, 6, 7] {
        let error = error_of(
            &mut raw,
            sealed(2, codec, 1, &batch(&[b"v"])[61..]).freeze(),
        );
        assert_ne!(error, ErrorCode::NONE, "codec {codec}");
    }
}

#[test]
fn a_decompression_bomb_is_refused_and_costs_little() {
    let mut broker = Broker::start(&[]);
    let mut raw = with_topic(&broker, &[("max.message.bytes", "10000000")]);
    let zeros = vec![0; 64 << 20];
    let mut bomb = Vec::new();
    for _ in 0..16 {
        bomb.extend(zstd::stream::encode_all(&zeros[..], 1).unwrap());
    }
    let error = error_of(&mut raw, sealed(2, 4, 1, &bomb).freeze());
    assert_ne!(error, ErrorCode::NONE);
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap();
    let peak_kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
        .unwrap();
    assert!(
        peak_kib < 600 << 10,
        "peak of {peak_kib} KiB for a gibibyte of zeros"
    );
    assert_serves(&mut broker);
}

#[test]
fn a_thousand_half_sent_frames_do_not_keep_others_from_being_served() {
    let mut broker = Broker::start(&[]);
    let mut halves = Vec::new();
    for _ in 0..1000 {
        let mut raw = Raw::connect(broker.address);
        raw.send_bytes(&1_000_000i32.to_be_bytes());
        raw.send_bytes(&[0; 100]);
        halves.push(raw);
    }
    assert_serves(&mut broker);
    let mut raw = with_topic(&broker, &[]);
    raw.stream
        .set_read_timeout(Some(Duration::from_secs(15)))
        .unwrap();
    assert_eq!(
        error_of(&mut raw, batch(&[&[7; 500_000]]).freeze()),
        ErrorCode::NONE
    );
}
