//! The load tool as a child process against a broker as a child process: what it says was
//! acknowledged is what the broker's log holds. No figure of speed is judged here.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use highwater::lab::histogram::Histogram;
use highwater::lab::result::{BenchResult, Latency, LatencyKind, Run, SCHEMA};
use support::Broker;
use support::client::Client;

const LATEST: i64 = -1;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater"))
        .arg("bench")
        .args(arguments)
        .output()
        .expect("the binary can be run")
}

/// Runs the load and reads its document back.
fn load(broker: &Broker, arguments: &[&str]) -> BenchResult {
    let home = tempfile::tempdir().unwrap();
    let json = home.path().join("result.json");
    let bootstrap = broker.bootstrap();
    let mut all = vec!["--bootstrap-server", &bootstrap, "--no-floors", "--json"];
    all.push(json.to_str().unwrap());
    all.extend(arguments);
    let output = bench(&all);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("PRODUCED"), "{table}");
    read(&json)
}

fn read(json: &Path) -> BenchResult {
    let result: BenchResult =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(result.schema, SCHEMA);
    result
}

fn only(result: &BenchResult) -> &Run {
    assert_eq!(result.runs.len(), 1);
    &result.runs[0]
}

fn latency(run: &Run, kind: LatencyKind) -> &Latency {
    run.latencies.iter().find(|one| one.kind == kind).unwrap()
}

/// How many records the log holds.
fn in_the_log(broker: &Broker, topic: &str, partitions: i32) -> u64 {
    let mut client = Client::connect(broker.address);
    let ends = (0..partitions).map(|at| client.list_offset(topic, at, LATEST).unwrap());
    ends.sum::<i64>() as u64
}

#[test]
fn what_a_closed_loop_had_acknowledged_is_in_the_log() {
    let broker = Broker::start(&[]);
    let result = load(
        &broker,
        &[
            "--topic",
            "closed",
            "--partitions",
            "3",
            "--producers",
            "3",
            "--warm-up",
            "0",
            "--duration",
            "1",
            "--record-size",
            "uniform:10:400",
            "--threads",
            "2",
            "--compression-type",
            "lz4",
            "--content",
            "text",
            "--acks",
            "1",
            "--broker-pid",
            &broker.pid().to_string(),
        ],
    );
    let run = only(&result);
    let produced = run.produced.as_ref().unwrap();
    assert!(produced.records > 0);
    assert_eq!(produced.errors, 0, "{:?}", run.warnings);
    assert_eq!(produced.records, in_the_log(&broker, "closed", 3));
    // Every partition had its share.
    let mut client = Client::connect(broker.address);
    for partition in 0..3 {
        assert!(client.list_offset("closed", partition, LATEST).unwrap() > 0);
    }
    let latency = latency(run, LatencyKind::Produce);
    assert_eq!(latency.samples, produced.records);
    let histogram = Histogram::decode(&latency.histogram).unwrap();
    assert_eq!(histogram.samples(), produced.records);
    assert_eq!(run.brokers[0].pid, broker.pid());
    assert!(run.brokers[0].cpu_seconds > 0.0 && run.tool.cpu_seconds > 0.0);
    assert_eq!(run.options["compression"], "lz4");
}

#[test]
fn an_open_loop_sends_what_its_schedule_says() {
    let broker = Broker::start(&[]);
    for arrivals in ["fixed", "poisson"] {
        let result = load(
            &broker,
            &[
                "--topic",
                arrivals,
                "--partitions",
                "2",
                "--rate",
                "500",
                "--arrivals",
                arrivals,
                "--producers",
                "2",
                "--warm-up",
                "0.5",
                "--duration",
                "2",
                "--keys",
                "zipf:100",
                "--enable-idempotence",
            ],
        );
        let run = only(&result);
        let produced = run.produced.as_ref().unwrap();
        assert_eq!(produced.errors, 0, "{:?}", run.warnings);
        match arrivals {
            "fixed" => assert_eq!(produced.records, 1_000),
            // Eight standard deviations.
            _ => assert!(
                (747..1_253).contains(&produced.records),
                "{}",
                produced.records
            ),
        }
        // The warm-up is in the log and in no figure.
        let held = in_the_log(&broker, arrivals, 2);
        assert!(held > produced.records, "{held}");
        if arrivals == "fixed" {
            assert_eq!(held, 1_250);
        }
        assert_eq!(latency(run, LatencyKind::Produce).samples, produced.records);
        assert_eq!(run.over_time.len(), 2);
        assert_eq!(run.options["rate"], 500.0);
    }
}

#[test]
fn consumers_receive_every_measured_record_and_know_when_it_was_due() {
    let broker = Broker::start(&[]);
    for (topic, sessions) in [("with", None), ("without", Some("--no-fetch-sessions"))] {
        let mut arguments = vec![
            "--topic",
            topic,
            "--partitions",
            "4",
            "--rate",
            "400",
            "--consumers",
            "2",
            "--warm-up",
            "0.5",
            "--duration",
            "1.5",
            "--record-size",
            "64",
            "--check-crc",
            "--fetch-max-wait-ms",
            "100",
        ];
        arguments.extend(sessions);
        let result = load(&broker, &arguments);
        let run = only(&result);
        let (produced, consumed) = (
            run.produced.as_ref().unwrap(),
            run.consumed.as_ref().unwrap(),
        );
        assert_eq!(produced.records, 600);
        assert_eq!(consumed.records, produced.records, "{:?}", run.warnings);
        assert_eq!(consumed.bytes, produced.bytes);
        let (sent, received) = (
            latency(run, LatencyKind::Produce),
            latency(run, LatencyKind::EndToEnd),
        );
        assert_eq!(received.samples, 600);
        // Nothing can be received before it was due, nor before the shortest way to the log.
        assert!(received.max_us > 0 && sent.max_us > 0);
    }
}

#[test]
fn consumers_alone_read_what_is_there_again_and_again() {
    let broker = Broker::start(&[]);
    let filled = load(
        &broker,
        &[
            "--topic",
            "full",
            "--partitions",
            "2",
            "--warm-up",
            "0",
            "--duration",
            "0.5",
            "--acks",
            "1",
        ],
    );
    let held = in_the_log(&broker, "full", 2);
    assert_eq!(only(&filled).produced.as_ref().unwrap().records, held);
    let result = load(
        &broker,
        &[
            "--topic",
            "full",
            "--producers",
            "0",
            "--consumers",
            "2",
            "--from-beginning",
            "--rewind",
            "--warm-up",
            "0",
            "--duration",
            "2",
        ],
    );
    let run = only(&result);
    let consumed = run.consumed.as_ref().unwrap();
    assert!(consumed.records > 0 && run.produced.is_none());
    // Values of 1,024 bytes without keys.
    assert_eq!(consumed.bytes, consumed.records * 1024);
    assert!(latency(run, LatencyKind::Fetch).samples > 0);
}

#[test]
fn without_acks_records_arrive_all_the_same() {
    let broker = Broker::start(&[]);
    let result = load(
        &broker,
        &[
            "--topic",
            "blind",
            "--partitions",
            "1",
            "--rate",
            "300",
            "--acks",
            "0",
            "--consumers",
            "1",
            "--warm-up",
            "0",
            "--duration",
            "1",
            "--record-size",
            "100",
            "--delete-topic",
        ],
    );
    let run = only(&result);
    assert_eq!(run.produced.as_ref().unwrap().records, 300);
    assert_eq!(run.consumed.as_ref().unwrap().records, 300);
    let mut client = Client::connect(broker.address);
    assert!(
        client.partitions("blind").is_empty(),
        "the topic was to be deleted"
    );
}

#[test]
fn a_sweep_ends_where_the_goal_is_missed_and_compares_with_itself() {
    let broker = Broker::start(&[]);
    let home = tempfile::tempdir().unwrap();
    let (json, html) = (home.path().join("a.json"), home.path().join("a.html"));
    let bootstrap = broker.bootstrap();
    // No broker answers within a microsecond: the first rate is the last.
    let output = bench(&[
        "--bootstrap-server",
        &bootstrap,
        "--partitions",
        "1",
        "--sweep",
        "100,200",
        "--p99-ms",
        "0.001",
        "--warm-up",
        "0",
        "--duration",
        "0.5",
        "--json",
        json.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
        "--floors-seconds",
        "0.2",
        "--quiet",
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("100/s: not kept"), "{said}");
    let result = read(&json);
    assert_eq!(only(&result).name, "100/s");
    assert!(!result.floors.is_empty() && result.host.logical_cpus > 0);
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && page.contains("100/s"));
    let json = json.to_str().unwrap();
    let output = bench(&["compare", json, json]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("100/s"));
}

#[test]
fn a_search_ends_with_the_highest_rate_that_is_kept() {
    let broker = Broker::start(&[]);
    let result = load(
        &broker,
        &[
            "--partitions",
            "1",
            "--search",
            "--rate",
            "200",
            "--p99-ms",
            "2000",
            "--acks",
            "1",
            "--warm-up",
            "0",
            "--duration",
            "0.2",
            "--drain",
            "2",
            "--quiet",
        ],
    );
    let kept: Vec<&str> = result.runs.iter().map(|run| run.name.as_str()).collect();
    let best = kept.iter().filter(|name| name.ends_with("(highest kept)"));
    assert_eq!(best.count(), 1, "{kept:?}");
    assert!(kept.len() > 1, "{kept:?}");
}

#[test]
fn a_load_that_comes_to_nothing_leaves_an_earlier_result_alone() {
    let home = tempfile::tempdir().unwrap();
    let (old, new) = (home.path().join("old.json"), home.path().join("new.html"));
    std::fs::write(&old, "an earlier result").unwrap();
    let (json, html) = (old.to_str().unwrap(), new.to_str().unwrap());
    refused(&[
        "--bootstrap-server",
        "127.0.0.1:1",
        "--api-timeout-ms",
        "200",
        "--no-floors",
        "--quiet",
        "--json",
        json,
        "--html",
        html,
    ]);
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "an earlier result");
    assert!(!new.exists());
}

/// It failed, and said why in one line.
fn refused(arguments: &[&str]) -> String {
    let output = bench(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.starts_with("highwater: ") && output.stdout.is_empty(),
        "{said}"
    );
    said
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let broker = Broker::start(&[]);
    let bootstrap = broker.bootstrap();
    let at = [
        "--bootstrap-server",
        &bootstrap,
        "--no-floors",
        "--duration",
        "0.2",
    ];
    let with = |more: &[&str]| refused(&[&at[..], more].concat());
    let said = with(&["--topic", "nosuch"]);
    assert!(said.contains("topic 'nosuch' does not exist"), "{said}");
    let said = with(&["--enable-idempotence", "--acks", "1"]);
    assert!(said.contains("idempotence needs acks=all"), "{said}");
    let said = with(&["--producers", "0"]);
    assert!(said.contains("nothing to do"), "{said}");
    let said = with(&["--rate", "0"]);
    assert!(said.contains("a rate of 0"), "{said}");
    let said = with(&["--consumers", "1", "--record-size", "8"]);
    assert!(
        said.contains("end-to-end latency needs at least 16"),
        "{said}"
    );
    let said = with(&["--partitions", "1", "--broker-pid", "4294967295"]);
    assert!(said.contains("4294967295"), "{said}");
    let said = with(&["--partitions", "1", "--json", "/nonexistent/x.json"]);
    assert!(said.contains("/nonexistent/x.json"), "{said}");
    let transactional = |more: &[&str]| with(&[&["--transactional-id", "id"], more].concat());
    let said = transactional(&["--acks", "1"]);
    assert!(said.contains("transactions need acks=all"), "{said}");
    let said = transactional(&["--transaction-records", "0"]);
    assert!(said.contains("a transaction of nothing"), "{said}");
    let said = transactional(&["--transaction-abort-percent", "101"]);
    assert!(said.contains("from 0 to 100"), "{said}");
    let said = transactional(&["--transaction-timeout-ms", "3000"]);
    assert!(
        said.contains("3000 ms would be aborted by their timeout"),
        "{said}"
    );
    let said = transactional(&["--producers", "0", "--consumers", "1"]);
    assert!(said.contains("those of producers"), "{said}");
    let said = transactional(&["--consumers", "1", "--isolation-level", "read_uncommitted"]);
    assert!(said.contains("read_committed"), "{said}");
    // Without an id they would mean nothing.
    let output = bench(&[&at[..], &["--transaction-records", "5"]].concat());
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("--transactional-id"), "{said}");
    let mut client = Client::connect(broker.address);
    client.create_topic("three", 3, &[]);
    let said = with(&["--topic", "three", "--partitions", "4"]);
    assert!(said.contains("has 3 partitions, not 4"), "{said}");
    let said = refused(&["compare", "/nonexistent/a.json", "/nonexistent/b.json"]);
    assert!(said.contains("/nonexistent/a.json"), "{said}");
}

#[test]
fn a_broker_that_is_not_there_is_told() {
    // A port that nothing listens on: bound and given back.
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let address = format!("127.0.0.1:{port}");
    let said = refused(&[
        "--bootstrap-server",
        &address,
        "--no-floors",
        "--api-timeout-ms",
        "1000",
    ]);
    assert!(
        said.contains("no broker can be reached") && said.contains(&address),
        "{said}"
    );
}

#[test]
fn records_that_the_broker_refuses_are_errors_not_silence() {
    let broker = Broker::start(&[]);
    let mut client = Client::connect(broker.address);
    client.create_topic("small", 1, &[("max.message.bytes", "1000")]);
    let bootstrap = broker.bootstrap();
    // Nothing fits: not a result but a failure.
    let said = refused(&[
        "--bootstrap-server",
        &bootstrap,
        "--no-floors",
        "--quiet",
        "--topic",
        "small",
        "--duration",
        "0.5",
        "--warm-up",
        "0",
        "--rate",
        "50",
        "--record-size",
        "2000",
    ]);
    assert!(
        said.contains("was acknowledged") && said.contains("MESSAGE_TOO_LARGE"),
        "{said}"
    );
    // Some do: those that do not are counted.
    let result = load(
        &broker,
        &[
            "--topic",
            "small",
            "--warm-up",
            "0",
            "--duration",
            "1",
            "--rate",
            "200",
            "--record-size",
            "100*1,2000*1",
            "--batch-records",
            "1",
            "--enable-idempotence",
            "--in-flight",
            "3",
        ],
    );
    let run = only(&result);
    let produced = run.produced.as_ref().unwrap();
    assert!(produced.errors > 0 && produced.records > 0);
    assert_eq!(
        produced.errors + produced.records,
        200,
        "{:?}",
        run.warnings
    );
    assert_eq!(produced.records, in_the_log(&broker, "small", 1));
    assert!(
        run.warnings
            .iter()
            .any(|text| text.contains("MESSAGE_TOO_LARGE")),
        "{:?}",
        run.warnings
    );
}

/// How many records a consumer is shown of the whole topic. One that sees fewer than wanted may
/// only have been held up: another waits longer.
fn visible(broker: &Broker, topic: &str, isolation: &str, wanted: u64) -> u64 {
    let shown = |silence_ms: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_highwater"))
            .args(["consume", "--bootstrap-server", &broker.bootstrap()])
            .args(["--topic", topic, "--from-beginning", "--no-value"])
            .args(["--print-offset", "--isolation-level", isolation])
            .args(["--timeout-ms", silence_ms])
            .output()
            .expect("the binary can be run");
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().lines().count() as u64
    };
    match shown("3000") {
        fewer if fewer < wanted => shown("15000"),
        count => count,
    }
}

#[test]
fn consumers_see_what_transactions_have_committed_and_nothing_else() {
    let broker = Broker::start(&[]);
    for (topic, percent) in [("committed", "0"), ("aborted", "30")] {
        let result = load(
            &broker,
            &[
                "--topic",
                topic,
                "--partitions",
                "3",
                "--producers",
                "2",
                "--consumers",
                "1",
                "--rate",
                "1000",
                "--warm-up",
                "0",
                "--duration",
                "2",
                "--drain",
                "30",
                "--record-size",
                "64",
                "--transactional-id",
                topic,
                "--transaction-records",
                "25",
                "--transaction-abort-percent",
                percent,
            ],
        );
        let run = only(&result);
        let produced = run.produced.as_ref().unwrap();
        assert_eq!(produced.errors, 0, "{:?}", run.warnings);
        assert_eq!(produced.records, 2_000);
        let all = run.transactions.unwrap();
        assert_eq!((all.begun, all.committed + all.aborted), (80, 80));
        assert_eq!(all.aborted == 0, percent == "0");
        assert_eq!(all.records_committed, 25 * all.committed);
        assert_eq!(all.records_aborted, 25 * all.aborted);
        let received = run.consumed.as_ref().unwrap().records;
        assert_eq!(received, all.records_committed, "{:?}", run.warnings);
        assert_eq!(latency(run, LatencyKind::Produce).samples, 2_000);
        assert_eq!(latency(run, LatencyKind::Commit).samples, all.committed);
        let committed = visible(&broker, topic, "read_committed", all.records_committed);
        assert_eq!(committed, all.records_committed);
        assert_eq!(visible(&broker, topic, "read_uncommitted", 2_000), 2_000);
    }
}

#[test]
fn a_broker_that_is_killed_and_comes_back_loses_no_count() {
    let port = support::fixed_port();
    let listener = format!("listeners=PLAINTEXT://127.0.0.1:{port}");
    let mut broker = Broker::start(&[&listener]);
    let home = tempfile::tempdir().unwrap();
    let json = home.path().join("result.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_highwater"))
        .args([
            "bench",
            "--bootstrap-server",
            &broker.bootstrap(),
            "--topic",
            "t",
            "--partitions",
            "2",
            "--rate",
            "200",
            "--warm-up",
            "0",
            "--duration",
            "4",
            "--drain",
            "30",
            "--no-floors",
            "--enable-idempotence",
            "--quiet",
            "--json",
        ])
        .arg(&json)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // In the middle of the load, however long it took to begin.
    let mut client = Client::connect(broker.address);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let ends = (0..2).map(|at| client.list_offset("t", at, LATEST).unwrap_or(0));
        if ends.sum::<i64>() > 200 {
            break;
        }
        assert!(Instant::now() < deadline, "the load does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    broker.kill();
    broker.restart();
    assert!(child.wait().unwrap().success());
    let result = read(&json);
    let run = only(&result);
    let produced = run.produced.as_ref().unwrap();
    // Acknowledged records outlive the process: the page cache has them.
    assert_eq!(
        produced.records + produced.errors,
        800,
        "{:?}",
        run.warnings
    );
    assert_eq!(produced.errors, 0, "{:?}", run.warnings);
    assert_eq!(in_the_log(&broker, "t", 2), 800);
}
