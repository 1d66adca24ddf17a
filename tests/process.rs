//! The broker as a process: what it refuses to start with, the limits on connections, metrics, and
//! the way down.
#![allow(clippy::unwrap_used)]

mod support;

use highwater::wire::Message;
use highwater::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use highwater::wire::messages::fetch_response::FetchResponse;
use highwater::wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use highwater::wire::messages::metadata_response::MetadataResponse;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};
use support::Broker;
use support::raw::Raw;

/// Runs `serve` with settings that must fail; the one line it says.
fn refused(settings: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command
        .arg("serve")
        .args(["--set", &format!("log.dirs={}", home.path().display())]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{settings:?} started");
    assert!(output.stdout.is_empty(), "{settings:?} said it is ready");
    let said = String::from_utf8(output.stderr).unwrap();
    said.lines().last().unwrap_or_default().to_owned()
}

fn metadata(raw: &mut Raw, topic: &str) -> MetadataResponse {
    let topics = vec![MetadataRequestTopic {
        name: Some(topic.into()),
        ..Default::default()
    }];
    raw.call(
        &MetadataRequest {
            topics: Some(topics),
            ..Default::default()
        },
        12,
    )
}

#[test]
fn whoever_connects_to_a_broker_that_has_just_started_is_told_of_it() {
    let port = support::fixed_port();
    let mut broker = Broker::start(&[&format!("listeners=PLAINTEXT://127.0.0.1:{port}")]);
    for start in 0..8 {
        broker.kill();
        let early = std::thread::spawn(move || {
            // Connected before the broker serves: this is the first request that it answers. The
            // listener of the one before may be there for a moment.
            let address = ([127, 0, 0, 1], port).into();
            loop {
                let connected = Raw::try_connect(address);
                let answered = connected.and_then(|mut raw| {
                    raw.try_send(&MetadataRequest::default(), 12)?;
                    raw.read_frame()
                });
                match answered {
                    Ok(frame) => break frame,
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        broker.restart();
        // Behind the correlation id and the tags of the header.
        let body = early.join().unwrap().slice(5..);
        let told = MetadataResponse::from_bytes(body, 12).unwrap();
        // A client that hears of no broker gives up those that it knew.
        assert_eq!(told.brokers.len(), 1, "start {start}");
    }
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let said = refused(&[&format!("listeners=PLAINTEXT://{address}")]);
    assert!(said.contains(&address.to_string()), "{said}");
}

#[test]
fn a_port_of_another_broker_of_ours_is_in_use_too() {
    let other = Broker::start(&[]);
    let said = refused(&[&format!("listeners=PLAINTEXT://{}", other.address)]);
    assert!(said.contains(&other.address.to_string()), "{said}");
}

#[test]
fn a_directory_of_a_running_broker_is_locked() {
    let running = Broker::start(&[]);
    let said = refused(&[
        "listeners=PLAINTEXT://127.0.0.1:0",
        &format!("log.dirs={}", running.data.display()),
    ]);
    assert!(said.contains("in use by another process"), "{said}");
}

#[test]
fn a_mistake_in_a_setting_is_told_in_one_line() {
    let said = refused(&["num.partitons=3"]);
    assert!(said.contains("did you mean 'num.partitions'"), "{said}");
    let said = refused(&["highwater.journal.bytes=1000000"]);
    assert!(said.contains("at least 4194304"), "{said}");
    let said = refused(&["num.partitions=none"]);
    assert!(said.contains("Not a number of type INT"), "{said}");
    let said = refused(&["listeners=SSL://127.0.0.1:0"]);
    assert!(said.contains("TLS and SASL are not available"), "{said}");
}

#[test]
fn the_door_keeps_to_its_limits_and_gives_places_back() {
    let broker = Broker::start(&["max.connections.per.ip=2"]);
    let mut first = Raw::connect(broker.address);
    let mut second = Raw::connect(broker.address);
    assert_eq!(metadata(&mut first, "a").brokers.len(), 1);
    assert_eq!(metadata(&mut second, "a").brokers.len(), 1);
    assert!(Raw::connect(broker.address).is_closed_by_peer());
    drop(first);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut again = Raw::connect(broker.address);
        // A refused connection may be closed before the request is written or after it.
        let sent = again.try_send(&MetadataRequest::default(), 12);
        if sent.is_ok() && again.read_frame().is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "the place was never given back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_silent_connection_is_closed_and_a_busy_one_is_not() {
    // Long enough for the busy one not to be silent when the test stands still.
    let broker = Broker::start(&["connections.max.idle.ms=5000"]);
    let mut busy = Raw::connect(broker.address);
    // Makes the topic, which takes its time.
    metadata(&mut busy, "a");
    let mut silent = Raw::connect(broker.address);
    let moment = Duration::from_millis(100);
    silent.stream.set_read_timeout(Some(moment)).unwrap();
    let begun = Instant::now();
    let mut closed = false;
    // The busy one lives well beyond the limit.
    while !closed || begun.elapsed() < Duration::from_millis(7500) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it stays open");
        metadata(&mut busy, "a");
        if closed {
            std::thread::sleep(moment);
        } else {
            closed = silent.is_closed_by_peer();
        }
    }
    metadata(&mut busy, "a");
}

#[test]
fn a_peer_that_reads_no_answers_costs_nobody_else() {
    let broker = Broker::start(&[]);
    // Makes the topic, which takes its time.
    metadata(&mut Raw::connect(broker.address), "a");
    let mut deaf = Raw::connect(broker.address);
    deaf.stream
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let mut request = Vec::new();
    for id in 0..64i32 {
        // ApiVersions v0: eight bytes of header, an empty client id.
        request.extend(10i32.to_be_bytes());
        request.extend([0, 18, 0, 0]);
        request.extend(id.to_be_bytes());
        request.extend([0, 0]);
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) && deaf.stream.write_all(&request).is_ok() {}
    let mut other = Raw::connect(broker.address);
    let begun = Instant::now();
    assert_eq!(metadata(&mut other, "a").brokers.len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_stop_answers_the_requests_under_way_first() {
    let port = support::fixed_port();
    let mut broker = Broker::start(&[&format!("highwater.metrics.listener=127.0.0.1:{port}")]);
    let mut raw = Raw::connect(broker.address);
    let topic_id = metadata(&mut raw, "t").topics[0].topic_id;
    let fetch = FetchRequest {
        max_wait_ms: 60_000,
        min_bytes: 1,
        topics: vec![FetchTopic {
            topic_id,
            partitions: vec![FetchPartition {
                partition_max_bytes: 1000,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let sent = raw.send(&fetch, 17);
    let deadline = Instant::now() + Duration::from_secs(30);
    let waits = || {
        let page = scrape(port, "/metrics");
        let mut shards = page
            .lines()
            .filter(|line| line.starts_with("highwater_purgatory_fetch{"));
        shards.any(|line| !line.ends_with(" 0"))
    };
    while !waits() {
        assert!(Instant::now() < deadline, "the fetch does not wait");
        std::thread::sleep(Duration::from_millis(20));
    }
    let begun = Instant::now();
    broker.stop();
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "the long poll held the stop up"
    );
    let (answered, response): (i32, FetchResponse) = raw.read(17);
    assert_eq!((answered, response.error_code), (sent, 0));
    assert!(raw.is_closed_by_peer());
    assert!(broker.data.join(".kafka_cleanshutdown").exists());
}

#[test]
fn metrics_count_what_was_asked_and_how_far_the_log_is() {
    let port = support::fixed_port();
    let broker = Broker::start(&[&format!("highwater.metrics.listener=127.0.0.1:{port}")]);
    let mut raw = Raw::connect(broker.address);
    metadata(&mut raw, "counted");
    let page = scrape(port, "/metrics");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let counted = |start: &str| page.lines().filter(|line| line.starts_with(start)).count();
    assert!(counted("highwater_requests_total{") > 0, "{page}");
    assert!(counted("highwater_request_stage_seconds_bucket{") > 0);
    assert!(
        page.contains("highwater_high_watermark{topic=\"counted\",partition=\"0\"} 0"),
        "{page}"
    );
    assert!(scrape(port, "/other").starts_with("HTTP/1.1 404"));
}

fn scrape(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}
