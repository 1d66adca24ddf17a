//! Question: what does it cost a core to decode the requests of the record path and to encode
//! their answers, by the number of partitions in them, and how far is that from touching the same
//! bytes once?
//!
//! Floor, in the same run: a copy of the frame's bytes (`floor/copy`), for what every decoder reads
//! and every encoder writes. Records are not in it, because neither side copies them: a frame of
//! 64 KiB batches costs what one of empty batches costs, and `produce/...x64KiB` shows whether
//! that is so.
//! Run: `cargo bench --bench codec`. Versions are the newest that the broker serves.
//!
//! Last result (2 virtual cores with nothing else on them, kernel 6.18): of 1, 16 and 256 partitions with
//! a batch of 1 KiB each a ProduceRequest is decoded in 0.12, 0.87 and 12.4 us, its answer encoded in
//! 0.14, 0.33 and 2.0 us; a FetchRequest decoded in 0.11, 0.37 and 3.9 us, its answer with 64 KiB each
//! encoded (not copied) in 0.20, 1.9 and 36 us. A copy of the 1,564 bytes of the first takes 0.011 us.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use highwater::broker::apis;
use highwater::types::Uuid;
use highwater::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use highwater::wire::messages::fetch_response::{
    FetchResponse, FetchableTopicResponse, PartitionData,
};
use highwater::wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use highwater::wire::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use highwater::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use highwater::wire::messages::produce_response::{
    PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use highwater::wire::{ApiKey, Message, Reader, Records, Str, Writer};

/// Partitions of one topic in a message.
const PARTITIONS: [i32; 3] = [1, 16, 256];

fn version(key: i16) -> i16 {
    let served = apis::served(ApiKey(key)).expect("the broker serves it");
    *served.end()
}

fn topic() -> (Str, Uuid) {
    (Str::from("orders"), Uuid::from_halves(7, 11))
}

fn produce_request(partitions: i32, batch_bytes: usize) -> ProduceRequest {
    let batch = Bytes::from(vec![7; batch_bytes]);
    let (name, topic_id) = topic();
    // Newer versions name the topic by its id only, older ones by its name only.
    let by_id = version(ProduceRequest::API_KEY) >= 13;
    ProduceRequest {
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![TopicProduceData {
            name: if by_id { Str::default() } else { name },
            topic_id: if by_id { topic_id } else { Uuid::ZERO },
            partition_data: (0..partitions)
                .map(|index| PartitionProduceData {
                    index,
                    records: Some(Records::from(batch.clone())),
                    ..PartitionProduceData::default()
                })
                .collect(),
            ..TopicProduceData::default()
        }],
        ..ProduceRequest::default()
    }
}

fn produce_response(partitions: i32) -> ProduceResponse {
    let (name, topic_id) = topic();
    let by_id = version(ProduceRequest::API_KEY) >= 13;
    ProduceResponse {
        responses: vec![TopicProduceResponse {
            name: if by_id { Str::default() } else { name },
            topic_id: if by_id { topic_id } else { Uuid::ZERO },
            partition_responses: (0..partitions)
                .map(|index| PartitionProduceResponse {
                    index,
                    base_offset: 1_000_000,
                    log_append_time_ms: -1,
                    ..PartitionProduceResponse::default()
                })
                .collect(),
            ..TopicProduceResponse::default()
        }],
        ..ProduceResponse::default()
    }
}

fn fetch_request(partitions: i32) -> FetchRequest {
    FetchRequest {
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_epoch: -1,
        topics: vec![FetchTopic {
            topic_id: topic().1,
            partitions: (0..partitions)
                .map(|partition| FetchPartition {
                    partition,
                    current_leader_epoch: 3,
                    fetch_offset: 1_000_000,
                    partition_max_bytes: 1 << 20,
                    ..FetchPartition::default()
                })
                .collect(),
            ..FetchTopic::default()
        }],
        ..FetchRequest::default()
    }
}

fn fetch_response(partitions: i32, batch_bytes: usize) -> FetchResponse {
    let batch = Bytes::from(vec![7; batch_bytes]);
    FetchResponse {
        responses: vec![FetchableTopicResponse {
            topic_id: topic().1,
            partitions: (0..partitions)
                .map(|partition_index| PartitionData {
                    partition_index,
                    high_watermark: 1_000_016,
                    last_stable_offset: 1_000_016,
                    records: Some(Records::from(batch.clone())),
                    ..PartitionData::default()
                })
                .collect(),
            ..FetchableTopicResponse::default()
        }],
        ..FetchResponse::default()
    }
}

fn metadata_response(partitions: i32) -> MetadataResponse {
    let (name, topic_id) = topic();
    let broker = |node_id: i32| MetadataResponseBroker {
        node_id,
        host: Str::from("broker.example.net"),
        port: 9092,
        ..MetadataResponseBroker::default()
    };
    MetadataResponse {
        brokers: (1..=3).map(broker).collect(),
        cluster_id: Some(Str::from("abcdefghijklmnopqrstuv")),
        controller_id: 1,
        topics: vec![MetadataResponseTopic {
            name: Some(name),
            topic_id,
            partitions: (0..partitions)
                .map(|partition_index| MetadataResponsePartition {
                    partition_index,
                    leader_id: 1 + partition_index % 3,
                    leader_epoch: 4,
                    replica_nodes: vec![1, 2, 3],
                    isr_nodes: vec![1, 2, 3],
                    ..MetadataResponsePartition::default()
                })
                .collect(),
            ..MetadataResponseTopic::default()
        }],
        ..MetadataResponse::default()
    }
}

fn decode<M: Message>(c: &mut Criterion, id: &str, message: &M) {
    let version = version(M::API_KEY);
    let frame = message.to_bytes(version).expect("it is valid");
    c.bench_function(&format!("decode {}/{id}", M::NAME), |b| {
        b.iter(|| {
            let mut reader = Reader::new(black_box(frame.clone()));
            M::decode(&mut reader, version).expect("it was encoded")
        });
    });
}

fn encode<M: Message>(c: &mut Criterion, id: &str, message: &M) {
    let version = version(M::API_KEY);
    c.bench_function(&format!("encode {}/{id}", M::NAME), |b| {
        b.iter(|| {
            let mut writer = Writer::new();
            let encoded = black_box(message).encode(&mut writer, version);
            encoded.expect("it is valid");
            writer.finish()
        });
    });
}

fn floor(c: &mut Criterion) {
    let mut group = c.benchmark_group("floor");
    for partitions in PARTITIONS {
        let request = produce_request(partitions, 0);
        let frame = request.to_bytes(version(ProduceRequest::API_KEY));
        let frame = frame.expect("it is valid");
        let mut copy = vec![0; frame.len()];
        group.bench_function(BenchmarkId::new("copy", frame.len()), |b| {
            b.iter(|| {
                copy.copy_from_slice(black_box(&frame));
                black_box(copy[0])
            });
        });
    }
}

fn produce(c: &mut Criterion) {
    for partitions in PARTITIONS {
        for (name, batch) in [("0", 0), ("1KiB", 1 << 10), ("64KiB", 64 << 10)] {
            let id = format!("{partitions}x{name}");
            decode(c, &id, &produce_request(partitions, batch));
        }
        encode(c, &partitions.to_string(), &produce_response(partitions));
    }
}

fn fetch(c: &mut Criterion) {
    for partitions in PARTITIONS {
        decode(c, &partitions.to_string(), &fetch_request(partitions));
        for (name, batch) in [("0", 0), ("64KiB", 64 << 10)] {
            let id = format!("{partitions}x{name}");
            encode(c, &id, &fetch_response(partitions, batch));
        }
    }
}

fn metadata(c: &mut Criterion) {
    let request = MetadataRequest {
        topics: Some(vec![MetadataRequestTopic {
            name: Some(topic().0),
            ..MetadataRequestTopic::default()
        }]),
        ..MetadataRequest::default()
    };
    decode(c, "1", &request);
    for partitions in PARTITIONS {
        encode(c, &partitions.to_string(), &metadata_response(partitions));
    }
}

criterion_group!(benches, floor, produce, fetch, metadata);
criterion_main!(benches);
