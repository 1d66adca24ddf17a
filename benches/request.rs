//! Question: what does a whole request cost a shard, from its frame in memory to the bytes of its
//! answer, without any socket: Produce with acks=1 (buffered), Fetch of what was just written,
//! Metadata and ApiVersions?
//!
//! A broker of one shard in this process; the requests are handed to the shard's own dispatch, one
//! after the other, each awaited. What a client pays beyond this is the socket.
//! Floor, in the same run: CRC-32C of the batch and a `pwrite` of it at the end of a file, which a
//! buffered produce cannot leave out; for Fetch there is none (its bytes are in memory, and are not
//! copied).
//! Run: `cargo bench --bench request`. The data lies under `HIGHWATER_BENCH_DIR`, or the temporary
//! directory: topics are deleted when they hold 128 MiB.
//!
//! Last result (2 virtual cores with nothing else on them, kernel 6.18): Produce of one batch of 100
//! bytes 2.5 us (floor 0.68), of 1 KiB 3.6 us (1.3), of 16 of 1 KiB 13.5 us (9.2); Fetch of 64 KiB 5.3
//! us; Metadata of one topic 0.68 us, ApiVersions 1.7 us.

use std::fs::File;
use std::hint::black_box;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use highwater::broker::{self, Peer, Started};
use highwater::config::BrokerConfig;
use highwater::rt::net::Piece;
use highwater::rt::{self, lane};
use highwater::server::{self, Seen};
use highwater::shard::Shard;
use highwater::wire::batch_builder::BatchBuilder;
use highwater::wire::frame::{open_response, request_bytes};
use highwater::wire::messages::api_versions_request::ApiVersionsRequest;
use highwater::wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use highwater::wire::messages::delete_topics_request::DeleteTopicsRequest;
use highwater::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use highwater::wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use highwater::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use highwater::wire::messages::produce_response::ProduceResponse;
use highwater::wire::{ApiKey, Message, Str};

/// Versions that name topics by their names, and that common clients speak.
const PRODUCE: i16 = 9;
const FETCH: i16 = 12;
const METADATA: i16 = 12;
const API_VERSIONS: i16 = 3;
const CREATE_TOPICS: i16 = 5;
const DELETE_TOPICS: i16 = 5;

/// A topic is replaced by a new one when it has grown to this.
const TOPIC_BYTES_MAX: u64 = 128 << 20;
/// Bytes that a fetch asks for.
const FETCH_BYTES: i32 = 64 << 10;

#[derive(Clone)]
enum What {
    Produce(Bytes),
    Fetch,
    Metadata,
    ApiVersions,
}

struct Order {
    what: What,
    rounds: u64,
    answer: mpsc::Sender<Duration>,
}

/// A running broker and the way to its shard.
struct Broker {
    orders: mpsc::Sender<Order>,
    stop: lane::LaneSender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Broker {
    fn start(dir: &Path) -> Broker {
        let sets = [
            "listeners=PLAINTEXT://127.0.0.1:0".to_owned(),
            format!("log.dirs={}", dir.display()),
            "highwater.shards=1".to_owned(),
            "log.segment.delete.delay.ms=0".to_owned(),
        ];
        let config = BrokerConfig::load(None, &sets).expect("the settings are valid");
        let (stop, stopped) = lane::pair(1);
        let (orders, inbox) = mpsc::channel::<Order>();
        let inbox = Arc::new(Mutex::new(inbox));
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let seen = move |seen: Seen<'_>| match seen {
                Seen::Shard(shard) => {
                    rt::spawn(serve(shard.clone(), inbox.clone()));
                }
                Seen::Ready(_) => ready.send(()).expect("the bench waits"),
                Seen::Control(_) => {}
            };
            server::run_until(config, stopped, seen).expect("the broker runs");
        });
        is_ready.recv().expect("the broker starts");
        Broker {
            orders,
            stop,
            thread,
        }
    }

    fn timed(&self, what: &What, rounds: u64) -> Duration {
        let (answer, result) = mpsc::channel();
        let order = Order {
            what: what.clone(),
            rounds,
            answer,
        };
        self.orders.send(order).expect("the shard runs");
        result.recv().expect("the shard answers")
    }

    fn end(self) {
        drop(self.orders);
        self.stop.try_send(()).expect("it was not told before");
        self.thread.join().expect("no panic");
    }
}

/// On the shard: does what is ordered until nobody can order any more.
async fn serve(shard: Rc<Shard>, inbox: Arc<Mutex<mpsc::Receiver<Order>>>) {
    let address: SocketAddr = "127.0.0.1:9".parse().expect("an address");
    let peer = Rc::new(Peer::new(1, "PLAINTEXT".into(), address, address));
    let mut client = Client {
        shard,
        peer,
        topics: 0,
        filled: u64::MAX,
    };
    loop {
        let inbox = inbox.clone();
        let order = rt::blocking(move || inbox.lock().expect("one reader").recv().ok());
        let Some(order) = order.await else { return };
        let took = client.run(&order.what, order.rounds).await;
        order.answer.send(took).expect("the bench waits");
    }
}

struct Client {
    shard: Rc<Shard>,
    peer: Rc<Peer>,
    topics: u64,
    /// Bytes in the newest topic.
    filled: u64,
}

impl Client {
    async fn run(&mut self, what: &What, rounds: u64) -> Duration {
        let (mut left, mut took) = (rounds, Duration::ZERO);
        while left > 0 {
            if self.filled >= TOPIC_BYTES_MAX {
                self.new_topic().await;
            }
            let frame = self.frame_of(what);
            let grows = match what {
                What::Produce(batch) => batch.len() as u64,
                _ => 0,
            };
            let room = (TOPIC_BYTES_MAX - self.filled).div_ceil(grows.max(1));
            let now = if grows > 0 { left.min(room) } else { left };
            let answer = joined(self.call(frame.clone()).await);
            match what {
                What::Produce(_) => assert_eq!(error_of(answer), 0),
                What::Fetch => assert!(answer.len() > FETCH_BYTES as usize / 2),
                What::Metadata | What::ApiVersions => assert!(answer.len() > 20),
            }
            let begun = Instant::now();
            for _ in 0..now {
                black_box(self.call(frame.clone()).await);
            }
            took += begun.elapsed();
            self.filled += (now + 1) * grows;
            left -= now;
        }
        took
    }

    /// One request and its answer, as a connection would see it to its socket.
    async fn call(&self, frame: Bytes) -> Vec<Piece> {
        let received = rt::now();
        let mut reply = match broker::start(&self.shard, &self.peer, frame, received).await {
            Started::Done(reply) => reply,
            Started::Waiting(later) => later.await,
            Started::Close => panic!("the request is refused"),
        };
        let bytes = reply.take_bytes();
        let now = rt::now();
        reply.left(now, now);
        bytes
    }

    fn topic(&self) -> Str {
        Str::from(format!("bench-{}", self.topics))
    }

    fn frame_of(&self, what: &What) -> Bytes {
        match what {
            What::Produce(batch) => frame(&produce(self.topic(), batch.clone()), PRODUCE),
            What::Fetch => frame(&fetch(self.topic()), FETCH),
            What::Metadata => {
                let topic = MetadataRequestTopic {
                    name: Some(self.topic()),
                    ..MetadataRequestTopic::default()
                };
                let request = MetadataRequest {
                    topics: Some(vec![topic]),
                    ..MetadataRequest::default()
                };
                frame(&request, METADATA)
            }
            What::ApiVersions => {
                let request = ApiVersionsRequest {
                    client_software_name: Str::from("bench"),
                    client_software_version: Str::from("1"),
                    ..ApiVersionsRequest::default()
                };
                frame(&request, API_VERSIONS)
            }
        }
    }

    /// Leaves the old topic and fills a new one with enough for a fetch.
    async fn new_topic(&mut self) {
        if self.topics > 0 {
            let request = DeleteTopicsRequest {
                topic_names: vec![self.topic()],
                timeout_ms: 30_000,
                ..DeleteTopicsRequest::default()
            };
            self.call(frame(&request, DELETE_TOPICS)).await;
        }
        self.topics += 1;
        let topic = CreatableTopic {
            name: self.topic(),
            num_partitions: 1,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest {
            topics: vec![topic],
            timeout_ms: 30_000,
            ..CreateTopicsRequest::default()
        };
        self.call(frame(&request, CREATE_TOPICS)).await;
        let batch = batch(16, 1000);
        let mut appended = 0;
        while appended < 16 {
            let request = produce(self.topic(), batch.clone());
            let answer = joined(self.call(frame(&request, PRODUCE)).await);
            match error_of(answer) {
                0 => appended += 1,
                // The leader is not there yet.
                _ => rt::sleep(Duration::from_millis(10)).await,
            }
        }
        self.filled = appended * batch.len() as u64;
    }
}

/// The error code in the answer to a produce of one partition.
fn error_of(answer: Vec<u8>) -> i16 {
    let body = Bytes::from(answer).slice(4..);
    let opened = open_response(ApiKey::PRODUCE, PRODUCE, body).expect("an answer");
    let response = ProduceResponse::from_bytes(opened.1, PRODUCE).expect("an answer");
    response.responses[0].partition_responses[0].error_code
}

fn frame<M: Message>(request: &M, version: i16) -> Bytes {
    let body = request.to_bytes(version).expect("it is valid");
    let key = ApiKey(M::API_KEY);
    request_bytes(key, version, 7, &Str::from("bench"), &body).expect("it is valid")
}

fn produce(topic: Str, batch: Bytes) -> ProduceRequest {
    let partition = PartitionProduceData {
        records: Some(batch.into()),
        ..PartitionProduceData::default()
    };
    let topic = TopicProduceData {
        name: topic,
        partition_data: vec![partition],
        ..TopicProduceData::default()
    };
    ProduceRequest {
        acks: 1,
        timeout_ms: 30_000,
        topic_data: vec![topic],
        ..ProduceRequest::default()
    }
}

fn fetch(topic: Str) -> FetchRequest {
    let partition = FetchPartition {
        current_leader_epoch: -1,
        partition_max_bytes: FETCH_BYTES,
        ..FetchPartition::default()
    };
    let topic = FetchTopic {
        topic,
        partitions: vec![partition],
        ..FetchTopic::default()
    };
    FetchRequest {
        replica_id: -1,
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 50 << 20,
        session_epoch: -1,
        topics: vec![topic],
        ..FetchRequest::default()
    }
}

fn batch(records: usize, bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        let appended = builder.append(rt::wall_ms(), None, Some(&vec![7; bytes]), &[]);
        appended.expect("a small record fits");
    }
    builder.build().expect("the batch has records")
}

fn bench_dir() -> tempfile::TempDir {
    match std::env::var_os("HIGHWATER_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).expect("HIGHWATER_BENCH_DIR is a directory"),
        None => tempfile::tempdir().expect("there is a temporary directory"),
    }
}

fn floor(dir: &Path, batch: &[u8], rounds: u64) -> Duration {
    let path = dir.join("floor");
    let file = File::create(&path).expect("the bench directory is writable");
    let begun = Instant::now();
    for at in 0..rounds {
        black_box(crc32c::crc32c(black_box(batch)));
        let position = at * batch.len() as u64 % TOPIC_BYTES_MAX;
        file.write_all_at(batch, position)
            .expect("the disk takes it");
    }
    let took = begun.elapsed();
    drop(std::fs::remove_file(path));
    took
}

fn requests(c: &mut Criterion) {
    let dir = bench_dir();
    let log_dir = dir.path().join("log");
    std::fs::create_dir_all(&log_dir).expect("the bench directory is writable");
    let broker = Broker::start(&log_dir);
    let shapes = [
        ("1x100B", 1, 100),
        ("1x1KiB", 1, 1024),
        ("16x1KiB", 16, 1024),
    ];
    let mut group = c.benchmark_group("request");
    for (id, records, bytes) in shapes {
        let batch = batch(records, bytes);
        let what = What::Produce(batch.clone());
        group.bench_function(BenchmarkId::new("Produce", id), |b| {
            b.iter_custom(|rounds| broker.timed(&what, rounds));
        });
        group.bench_function(BenchmarkId::new("floor crc+pwrite", id), |b| {
            b.iter_custom(|rounds| floor(dir.path(), &batch, rounds));
        });
    }
    for (name, what) in [
        ("Fetch/64KiB", What::Fetch),
        ("Metadata/1", What::Metadata),
        ("ApiVersions", What::ApiVersions),
    ] {
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| broker.timed(&what, rounds));
        });
    }
    group.finish();
    broker.end();
}

/// What of an answer is in memory: all but records that are sent from their file.
fn joined(pieces: Vec<Piece>) -> Vec<u8> {
    let bytes = pieces.iter().filter_map(|piece| match piece {
        Piece::Bytes(bytes) => Some(&bytes[..]),
        Piece::File(_) => None,
    });
    bytes.collect::<Vec<_>>().concat()
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = requests
}
criterion_main!(benches);
