//! Question: what do consumers that catch up from the disk do to a producer beside them on the
//! same shard, and how fast are they against the device?
//!
//! A broker of one shard, as a process. One producer sends 2,000 batches of one 1 KiB record a
//! second, open loop: latency counts from the moment a batch was due. Beside it 0, 1 and 4
//! consumers, each on a partition of its own (and 4 on one partition), fetch old records as fast
//! as they can, 1 MiB a fetch; the page cache does not hold them. The phases take turns several
//! times and the medians over the rounds are printed, once with acknowledgements from the page
//! cache and once with `flush.messages=1`.
//!
//! Floors, in the same run: O_DIRECT reads of 1 MiB through the same files, one and two at a time.
//! Consumer threads run at the lowest priority and the producer's at a high one (if it may), all off the
//! shard's core: they stand for other machines, and shall not fight over this one's cores.
//! On a machine that others use meanwhile, `HIGHWATER_BENCH_REALTIME=1` lets the shard and the
//! producer run before everything else (SCHED_FIFO).
//! The data lies under `HIGHWATER_BENCH_DIR`, or the temporary directory; its size in MiB is
//! `HIGHWATER_BENCH_COLD_MIB`, the length of a phase in seconds `HIGHWATER_BENCH_SECONDS`, and more
//! settings of the broker `HIGHWATER_BENCH_SETTINGS`.
//!
//! Last result (2 virtual cores with nothing else on them, ext4, kernel 6.18; medians of 5 rounds of 3 s,
//! from when a batch was due). Device: 1295 MB/s one at a time, 1352 MB/s two at a time.
//!
//! | beside | page cache: p50 / p99 / p99.9 us | p99 ratio | cold MB/s | flushed: p50 / p99 / p99.9 us | p99 ratio | cold MB/s |
//! |---|---|---|---|---|---|---|
//! | nobody | 158 / 315 / 3018 | 1 | | 283 / 650 / 4325 | 1 | |
//! | 1 consumer | 155 / 279 / 2780 | 0.89 | 1460 | 316 / 858 / 4100 | 1.32 | 805 |
//! | 4 consumers | 143 / 242 / 2345 | 0.90 | 2228 | 336 / 949 / 3780 | 1.48 | 971 |
//! | 4 on one partition | 141 / 241 / 1597 | 0.77 | 2112 | 317 / 883 / 4437 | 1.52 | 2013 |
//!
//! The target is a ratio of 1.5. In a run before, flushed acknowledgements alone had a p99 of 502 us, and the
//! ratios 1.80, 1.85 and 2.05. Reads begin in the gaps between flush rounds and pay for it. While the kernel's
//! flush threads had the shard's core the last row was 2907 us. More than the device's speed is what four
//! consumers share. From when a batch was sent the ratios are 0.8 to 0.9, flushed 1.5 to 1.8: before the clients
//! were kept off the shard's core, that of one consumer was 4.4, for they waited there.
#![allow(clippy::unwrap_used)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::alloc::{Layout, alloc_zeroed};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

use highwater::wire::batch::BatchView;
use highwater::wire::batch_builder::BatchBuilder;
use highwater::wire::messages::create_topics_request::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use highwater::wire::messages::create_topics_response::CreateTopicsResponse;
use highwater::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use highwater::wire::messages::fetch_response::FetchResponse;
use highwater::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use highwater::wire::messages::produce_response::ProduceResponse;
use highwater::wire::{Message, Records, Writer};

use support::Broker;
use support::raw::Raw;

const PARTITIONS: i32 = 4;
const RATE_PER_SECOND: u32 = 2000;
const ROUNDS: usize = 5;
const FETCH_BYTES: i32 = 1 << 20;
const PIECE_BYTES: usize = 1 << 20;
const PRODUCE_VERSION: i16 = 9;
const FETCH_VERSION: i16 = 12;
/// Not counted: connections are made, and the first segments' pages come in.
const WARM_UP: Duration = Duration::from_millis(500);

fn setting(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok().and_then(|text| text.parse().ok());
    given.unwrap_or(default)
}

fn batch(records: usize) -> Bytes {
    let mut builder = BatchBuilder::new();
    let value: Vec<u8> = (0..1000).map(|_| fastrand::u8(..)).collect();
    for _ in 0..records {
        builder
            .append(highwater::rt::wall_ms(), None, Some(&value), &[])
            .unwrap();
    }
    builder.build().unwrap()
}

fn produce_request(topic: &str, partition: i32, records: Bytes) -> ProduceRequest {
    ProduceRequest {
        acks: 1,
        timeout_ms: 30_000,
        topic_data: vec![TopicProduceData {
            name: topic.into(),
            partition_data: vec![PartitionProduceData {
                index: partition,
                records: Some(Records::from(records)),
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn create(raw: &mut Raw, topic: &str, partitions: i32, configs: &[(&str, &str)]) {
    let request = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: topic.into(),
            num_partitions: partitions,
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
    assert_eq!(answer.topics[0].error_code, 0, "{:?}", answer.topics[0]);
}

fn fill(raw: &mut Raw, bytes: u64) {
    let records = batch(64);
    let each = bytes / PARTITIONS as u64;
    for partition in 0..PARTITIONS {
        let mut filled = 0;
        while filled < each {
            let request = produce_request("cold", partition, records.clone());
            let answer: ProduceResponse = raw.call(&request, PRODUCE_VERSION);
            assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
            filled += records.len() as u64;
        }
    }
}

fn segments(broker: &Broker) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for partition in 0..PARTITIONS {
        for entry in std::fs::read_dir(broker.partition_dir("cold", partition)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "log") {
                found.push(path);
            }
        }
    }
    found
}

/// Forgets the files' pages, so that the next read goes to the device.
fn drop_pages(paths: &[PathBuf]) {
    for path in paths {
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        #[allow(unsafe_code)]
        // SAFETY: advice on a descriptor that is open for the length of the call.
        let answer =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(answer, 0);
    }
}

/// Before everything else that runs on this machine: for one that others use at the same time.
fn run_first(thread: &str) {
    if std::env::var_os("HIGHWATER_BENCH_REALTIME").is_some() {
        let status = std::process::Command::new("chrt")
            .args(["-f", "-p", "10", thread])
            .status();
        assert!(status.is_ok_and(|status| status.success()), "chrt refused");
    }
}

fn thread_id() -> String {
    #[allow(unsafe_code)]
    // SAFETY: a plain question.
    let id = unsafe { libc::gettid() };
    id.to_string()
}

fn shard_threads(pid: u32) -> Vec<String> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap().path();
        let name = std::fs::read_to_string(task.join("comm")).unwrap();
        if name.starts_with("shard-") {
            found.push(task.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found
}

fn set_niceness(nice: i32) {
    #[allow(unsafe_code)]
    // SAFETY: plain integers; 0 is the calling thread. May be refused, then it stays as it was.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, nice);
    }
}

/// Off the first core, which is the shard's: a thread of a client that the scheduler puts there waits
/// for the shard's slice to end, some milliseconds, while other cores are idle.
fn leave_the_shards_core() {
    #[allow(unsafe_code)]
    // SAFETY: the set is plain memory of the size that is told; 0 is the calling thread. May be refused,
    // as on a machine of one core, then it stays as it was.
    unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &mut cores) == 0 && libc::CPU_COUNT(&cores) > 1 {
            libc::CPU_CLR(0, &mut cores);
            libc::sched_setaffinity(0, size, &cores);
        }
    }
}

/// Sequential O_DIRECT reads, `at_once` threads taking turns; bytes a second.
fn floor(paths: &[PathBuf], at_once: usize, limit: Duration) -> f64 {
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let total = AtomicU64::new(0);
    let files: Vec<(File, u64)> = paths.iter().map(|path| direct(path)).collect();
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                let layout = Layout::from_size_align(PIECE_BYTES, 4096).unwrap();
                #[allow(unsafe_code)]
                // SAFETY: the layout has a positive size; the memory is used as zeroed bytes and
                // is left to the process, which ends with the bench.
                let buffer =
                    unsafe { std::slice::from_raw_parts_mut(alloc_zeroed(layout), PIECE_BYTES) };
                while begun.elapsed() < limit {
                    let mut at = next.fetch_add(1, Ordering::Relaxed);
                    let file = files.iter().find(|(_, pieces)| {
                        let here = at < *pieces;
                        if !here {
                            at -= pieces;
                        }
                        here
                    });
                    let Some((file, _)) = file else {
                        next.store(0, Ordering::Relaxed);
                        continue;
                    };
                    file.read_exact_at(buffer, at * PIECE_BYTES as u64).unwrap();
                    total.fetch_add(PIECE_BYTES as u64, Ordering::Relaxed);
                }
            });
        }
    });
    total.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

fn direct(path: &Path) -> (File, u64) {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap();
    let pieces = file.metadata().unwrap().len() / PIECE_BYTES as u64;
    (file, pieces)
}

fn consume(address: SocketAddr, partition: i32, from: f64, stop: &AtomicBool, bytes: &AtomicU64) {
    set_niceness(19);
    leave_the_shards_core();
    let mut raw = Raw::connect(address);
    let (mut offset, mut end) = (0, None);
    while !stop.load(Ordering::Relaxed) {
        let request = FetchRequest {
            max_wait_ms: 100,
            min_bytes: 1,
            max_bytes: 50 << 20,
            topics: vec![FetchTopic {
                topic: "cold".into(),
                partitions: vec![FetchPartition {
                    partition,
                    fetch_offset: offset,
                    partition_max_bytes: FETCH_BYTES,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer: FetchResponse = raw.call(&request, FETCH_VERSION);
        let read = &answer.responses[0].partitions[0];
        assert_eq!(read.error_code, 0);
        if end.is_none() {
            // Not all from the same place, unless that is the question.
            end = Some(read.high_watermark);
            offset = (read.high_watermark as f64 * from) as i64;
            continue;
        }
        let records = read
            .records
            .as_ref()
            .map(Records::to_bytes)
            .unwrap_or_default();
        let mut rest = &records[..];
        while let Ok((batch, behind)) = BatchView::parse(rest) {
            offset = batch.last_offset().next().0;
            rest = behind;
        }
        bytes.fetch_add(records.len() as u64, Ordering::Relaxed);
        if records.is_empty() {
            offset = 0;
        }
    }
}

/// Nanoseconds from when a request was due, and from when it was sent: they differ where the sending
/// thread found no core, which is this process's fault, for it never waits for the broker.
#[derive(Default)]
struct Latencies {
    due: Vec<u64>,
    sent: Vec<u64>,
}

/// Sends at the rate for as long as told.
fn produce(address: SocketAddr, topic: &str, length: Duration) -> Latencies {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answers = stream.try_clone().unwrap();
    let mut writer = Writer::new();
    let request = produce_request(topic, 0, batch(1));
    request.encode(&mut writer, PRODUCE_VERSION).unwrap();
    let body = writer.into_bytes();
    let mut frame = Vec::new();
    frame.extend(0i32.to_be_bytes());
    frame.extend(ProduceRequest::API_KEY.to_be_bytes());
    frame.extend(PRODUCE_VERSION.to_be_bytes());
    frame.extend(0i32.to_be_bytes());
    frame.extend(5i16.to_be_bytes());
    frame.extend(b"bench\0");
    frame.extend(&body[..]);
    let size = frame.len() as i32 - 4;
    frame[..4].copy_from_slice(&size.to_be_bytes());

    let interval = Duration::from_secs(1) / RATE_PER_SECOND;
    let count = (length.as_nanos() / interval.as_nanos()) as u32;
    let begun = Instant::now() + Duration::from_millis(50);
    let sent: Arc<Vec<AtomicU64>> = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
    let sends = sent.clone();
    let reader = thread::spawn(move || {
        set_niceness(-10);
        leave_the_shards_core();
        run_first(&thread_id());
        let mut latencies = Latencies::default();
        let mut answer = Vec::new();
        for at in 0..count {
            let mut size = [0; 4];
            answers.read_exact(&mut size).unwrap();
            answer.resize(u32::from_be_bytes(size) as usize, 0);
            answers.read_exact(&mut answer).unwrap();
            let due = begun + interval * at;
            if due.duration_since(begun) >= WARM_UP {
                let now = begun.elapsed().as_nanos() as u64;
                latencies.due.push(due.elapsed().as_nanos() as u64);
                let sent = sends[at as usize].load(Ordering::Acquire);
                latencies.sent.push(now - sent);
            }
        }
        latencies
    });
    set_niceness(-10);
    leave_the_shards_core();
    run_first(&thread_id());
    for at in 0..count {
        let due = begun + interval * at;
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            thread::sleep(early);
        }
        let now = begun.elapsed().as_nanos() as u64;
        sent[at as usize].store(now, Ordering::Release);
        stream.write_all(&frame).unwrap();
    }
    reader.join().unwrap()
}

#[derive(Clone, Copy)]
struct Phase {
    name: &'static str,
    consumers: i32,
    one_partition: bool,
}

const PHASES: [Phase; 4] = [
    Phase {
        name: "nobody",
        consumers: 0,
        one_partition: false,
    },
    Phase {
        name: "1 consumer",
        consumers: 1,
        one_partition: false,
    },
    Phase {
        name: "4 consumers",
        consumers: 4,
        one_partition: false,
    },
    Phase {
        name: "4 on one partition",
        consumers: 4,
        one_partition: true,
    },
];

struct Measured {
    /// Microseconds at 50, 99 and 99.9%, from when a request was due and from when it was sent.
    due: [f64; 3],
    sent: [f64; 3],
    cold_rate: f64,
}

fn run(address: SocketAddr, topic: &'static str, phase: Phase, length: Duration) -> Measured {
    let stop = Arc::new(AtomicBool::new(false));
    let bytes = Arc::new(AtomicU64::new(0));
    let consumers: Vec<_> = (0..phase.consumers)
        .map(|at| {
            let (stop, bytes) = (stop.clone(), bytes.clone());
            let partition = if phase.one_partition { 0 } else { at };
            let from = if phase.one_partition {
                0.0
            } else {
                fastrand::f64()
            };
            thread::spawn(move || consume(address, partition, from, &stop, &bytes))
        })
        .collect();
    thread::sleep(WARM_UP);
    let before = bytes.load(Ordering::Relaxed);
    let begun = Instant::now();
    // A thread of its own, because a priority once raised stays.
    let mut latencies = thread::spawn(move || produce(address, topic, length + WARM_UP))
        .join()
        .unwrap();
    let read = bytes.load(Ordering::Relaxed) - before;
    let took = begun.elapsed();
    stop.store(true, Ordering::Relaxed);
    consumers.into_iter().for_each(|c| c.join().unwrap());
    let quantiles = |latencies: &mut Vec<u64>| {
        latencies.sort_unstable();
        let last = (latencies.len() - 1) as f64;
        [0.5, 0.99, 0.999].map(|share| latencies[(last * share) as usize] as f64 / 1e3)
    };
    Measured {
        due: quantiles(&mut latencies.due),
        sent: quantiles(&mut latencies.sent),
        cold_rate: read as f64 / took.as_secs_f64(),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let cold_bytes = setting("HIGHWATER_BENCH_COLD_MIB", 2048) << 20;
    let length = Duration::from_secs(setting("HIGHWATER_BENCH_SECONDS", 4));
    if let Some(dir) = std::env::var_os("HIGHWATER_BENCH_DIR") {
        #[allow(unsafe_code)]
        // SAFETY: no other thread runs yet.
        unsafe {
            std::env::set_var("TMPDIR", dir);
        }
    }
    let more = std::env::var("HIGHWATER_BENCH_SETTINGS").unwrap_or_default();
    let mut settings = vec!["highwater.shards=1", "log.segment.bytes=268435456"];
    settings.extend(more.split_whitespace());
    let mut broker = Broker::start(&settings);
    let mut raw = Raw::connect(broker.address);
    shard_threads(broker.pid())
        .iter()
        .for_each(|id| run_first(id));
    create(&mut raw, "hot", 1, &[]);
    create(&mut raw, "flushed", 1, &[("flush.messages", "1")]);
    create(&mut raw, "cold", PARTITIONS, &[]);
    fill(&mut raw, cold_bytes);
    let paths = segments(&broker);
    drop_pages(&paths);
    println!(
        "device, O_DIRECT reads of 1 MiB: {:.0} MB/s one at a time, {:.0} MB/s two at a time",
        floor(&paths, 1, length) / 1e6,
        floor(&paths, 2, length) / 1e6
    );
    for (topic, row) in [("hot", "page cache"), ("flushed", "flush.messages=1")] {
        let mut measured: Vec<Vec<Measured>> = PHASES.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (phase, results) in PHASES.iter().zip(&mut measured) {
                drop_pages(&paths);
                results.push(run(broker.address, topic, *phase, length));
            }
        }
        println!(
            "{row}: beside | from due: p50 / p99 / p99.9 us | p99 ratio | from sent: p50 / p99 / p99.9 us | p99 ratio | cold MB/s"
        );
        let show = |of: &dyn Fn(&Measured) -> [f64; 3], results: &[Measured]| {
            let [p50, p99, p999] =
                [0, 1, 2].map(|at| median(results.iter().map(|m| of(m)[at]).collect()));
            let ratios = results.iter().zip(&measured[0]);
            let ratio = median(ratios.map(|(m, alone)| of(m)[1] / of(alone)[1]).collect());
            format!("{p50:.0} / {p99:.0} / {p999:.0} | {ratio:.2}")
        };
        for (phase, results) in PHASES.iter().zip(&measured) {
            println!(
                "{} | {} | {} | {:.0}",
                phase.name,
                show(&|m| m.due, results),
                show(&|m| m.sent, results),
                median(results.iter().map(|m| m.cold_rate).collect()) / 1e6
            );
        }
    }
    broker.stop();
}
