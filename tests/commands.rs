//! The binary's commands as a person or a script runs them: child processes against a broker.

mod support;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use support::Broker;

/// How long a command may try; a broker that listens answers at once.
const API_TIMEOUT: [&str; 2] = ["--api-timeout-ms", "10000"];

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn lines(&self) -> Vec<&str> {
        self.out.lines().collect()
    }

    fn succeeded(self) -> Ran {
        assert_eq!(self.code, Some(0), "failed with: {}", self.err);
        self
    }

    /// It failed and said why, in one line.
    fn failed(self, why: &str) {
        assert_eq!(self.code, Some(1), "printed: {}{}", self.out, self.err);
        assert_eq!(
            self.err.lines().count(),
            1,
            "more than one line: {}",
            self.err
        );
        assert!(
            self.err.starts_with("highwater: ") && self.err.contains(why),
            "{}",
            self.err
        );
        assert_eq!(self.out, "");
    }
}

fn run_with_input(arguments: &[&str], input: &str) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_highwater"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    // A command that fails early does not read its input.
    let _ = child
        .stdin
        .take()
        .expect("it is piped")
        .write_all(input.as_bytes());
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ran {
        code: status.code(),
        out: text(stdout),
        err: text(stderr),
    }
}

/// A broker that makes no topic by itself.
struct Cluster(Broker);

impl Cluster {
    fn start() -> Cluster {
        Cluster(Broker::start(&["auto.create.topics.enable=false"]))
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with_input(arguments, "")
    }

    fn run_with_input(&self, arguments: &[&str], input: &str) -> Ran {
        let bootstrap = self.0.bootstrap();
        let all = [arguments, &["--bootstrap-server", &bootstrap], &API_TIMEOUT].concat();
        run_with_input(&all, input)
    }

    fn create(&self, topic: &str, partitions: &str) {
        let arguments = [
            "topics",
            "create",
            "--topic",
            topic,
            "--partitions",
            partitions,
            "--replication-factor",
            "1",
        ];
        let ran = self.run(&arguments).succeeded();
        assert_eq!(ran.out, format!("Created topic {topic}.\n"));
    }

    fn produce(&self, arguments: &[&str], input: &str) -> Ran {
        self.run_with_input(&[&["produce"], arguments].concat(), input)
    }

    /// The columns of every line below the header.
    fn rows(&self, arguments: &[&str]) -> Vec<Vec<String>> {
        let ran = self.run(arguments).succeeded();
        let rows = ran.out.lines().skip(1);
        rows.map(|row| row.split_whitespace().map(str::to_owned).collect())
            .collect()
    }

    /// (partition, committed, end, lag) of the group.
    fn progress(&self, group: &str) -> Vec<[String; 4]> {
        let rows = self.rows(&["groups", "describe", "--group", group]);
        rows.into_iter()
            .map(|row| {
                [
                    row[2].clone(),
                    row[3].clone(),
                    row[4].clone(),
                    row[5].clone(),
                ]
            })
            .collect()
    }
}

#[test]
fn records_that_were_produced_are_consumed_and_their_group_has_no_lag() {
    let cluster = Cluster::start();
    cluster.create("orders", "2");
    let input: String = (0..50).map(|i| format!("k{}:value {i}\n", i % 7)).collect();
    let produced = cluster
        .produce(
            &["--topic", "orders", "--key-separator", ":", "--verbose"],
            &input,
        )
        .succeeded();
    assert_eq!(produced.lines().len(), 50);
    assert_eq!(produced.err, "");

    let arguments = [
        "consume",
        "--topic",
        "orders",
        "--group",
        "billing",
        "--from-beginning",
        "--max-messages",
        "50",
        "--timeout-ms",
        "20000",
        "--print-key",
        "--key-separator",
        ":",
    ];
    let consumed = cluster.run(&arguments).succeeded();
    assert_eq!(consumed.err, "Processed a total of 50 messages\n");
    let mut got = consumed.lines();
    let mut want: Vec<&str> = input.lines().collect();
    // Of one key the order is kept; between partitions there is none.
    for key in 0..7 {
        let of_key = |lines: &[&str]| -> Vec<String> {
            let prefix = format!("k{key}:");
            lines
                .iter()
                .filter(|l| l.starts_with(&prefix))
                .map(|l| (*l).to_owned())
                .collect()
        };
        assert_eq!(of_key(&got), of_key(&want));
    }
    got.sort_unstable();
    want.sort_unstable();
    assert_eq!(got, want);

    let progress = cluster.progress("billing");
    let ends: i64 = progress
        .iter()
        .map(|row| row[2].parse::<i64>().unwrap())
        .sum();
    assert_eq!(ends, 50);
    assert!(
        progress.iter().all(|row| row[1] == row[2] && row[3] == "0"),
        "{progress:?}"
    );
    assert_eq!(cluster.rows(&["groups", "list"])[0][0], "billing");

    let reset = [
        "groups",
        "reset",
        "--group",
        "billing",
        "--topic",
        "orders",
        "--to-offset",
        "3",
    ];
    cluster.run(&reset).succeeded();
    assert_eq!(
        cluster.progress("billing"),
        progress,
        "reset without being told to execute"
    );
    cluster
        .run(&[&reset[..], &["--execute"]].concat())
        .succeeded();
    assert!(cluster.progress("billing").iter().all(|row| row[1] == "3"));
    // Only what the group has not read since.
    let arguments = [
        "consume",
        "--topic",
        "orders",
        "--group",
        "billing",
        "--timeout-ms",
        "20000",
        "--max-messages",
        "44",
    ];
    assert_eq!(cluster.run(&arguments).succeeded().lines().len(), 44);
    assert!(cluster.progress("billing").iter().all(|row| row[3] == "0"));

    cluster
        .run(&["groups", "delete", "--group", "billing"])
        .succeeded();
    cluster
        .run(&["groups", "describe", "--group", "billing"])
        .failed("billing");
}

#[test]
fn no_more_than_the_printed_records_are_committed() {
    let cluster = Cluster::start();
    cluster.create("one", "1");
    cluster
        .produce(&["--topic", "one"], "a\nb\nc\nd\ne")
        .succeeded();
    let consume = |max| {
        let arguments = [
            "consume",
            "--topic",
            "one",
            "--group",
            "g",
            "--from-beginning",
            "--timeout-ms",
            "20000",
            "--max-messages",
            max,
            "--print-offset",
        ];
        cluster.run(&arguments).succeeded().out
    };
    assert_eq!(consume("2"), "Offset:0\ta\nOffset:1\tb\n");
    assert_eq!(cluster.progress("g")[0][1], "2");
    assert_eq!(consume("3"), "Offset:2\tc\nOffset:3\td\nOffset:4\te\n");
}

#[test]
fn the_dumped_log_shows_what_was_produced() {
    let cluster = Cluster::start();
    cluster.create("dumped", "1");
    for (input, codec) in [("k1=first\nk2=second\n", "none"), ("k3=\n", "zstd")] {
        let arguments = [
            "--topic",
            "dumped",
            "--key-separator",
            "=",
            "--compression-type",
            codec,
            // Both lines are in one batch; it ends with the input.
            "--linger-ms",
            "5000",
            "--header",
            "source=test",
        ];
        let ran = cluster.produce(&arguments, input).succeeded();
        assert_eq!(ran.out + &ran.err, "", "produce prints errors only");
    }
    let dir = cluster.0.partition_dir("dumped", 0);
    let file = |extension: &str| dir.join(format!("00000000000000000000.{extension}"));
    let files: Vec<String> = ["log", "index", "timeindex"]
        .map(|e| file(e).display().to_string())
        .to_vec();
    let dump = run_with_input(
        &["dump-log", "--print-data-log", "--files", &files.join(",")],
        "",
    )
    .succeeded();
    assert_eq!(dump.err, "");
    let batches: Vec<&str> = dump
        .out
        .lines()
        .filter(|l| l.starts_with("baseOffset: "))
        .collect();
    assert_eq!(batches.len(), 2, "{}", dump.out);
    assert!(batches[0].starts_with("baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 0 "));
    assert!(batches[1].starts_with("baseOffset: 2 lastOffset: 2 count: 1 "));
    assert!(batches[1].contains(" compresscodec: zstd "));
    assert!(
        batches
            .iter()
            .all(|batch| batch.ends_with(" isvalid: true"))
    );
    let records: Vec<&str> = dump
        .out
        .lines()
        .filter(|l| l.starts_with("| offset: "))
        .collect();
    assert_eq!(records.len(), 3);
    assert!(records[0].ends_with("headerKeys: [source] key: k1 payload: first"));
    assert!(
        records[1].starts_with("| offset: 1 ") && records[1].ends_with("key: k2 payload: second")
    );
    assert!(
        records[2].ends_with(
            "keySize: 2 valueSize: 0 sequence: 0 headerKeys: [source] key: k3 payload: "
        )
    );
    assert!(dump.out.contains("index is empty."), "{}", dump.out);

    let missing = dir.join("00000000000000000009.log").display().to_string();
    let ran = run_with_input(&["dump-log", "--files", &missing], "");
    assert_eq!(
        (ran.code, ran.err.lines().count()),
        (Some(1), 1),
        "{}",
        ran.err
    );
}

#[test]
fn topics_and_settings_are_changed_and_shown() {
    let cluster = Cluster::start();
    cluster.create("t", "1");
    cluster.create("u", "1");
    cluster
        .run(&["topics", "alter", "--topic", "t", "--partitions", "3"])
        .succeeded();
    let entity = ["--entity-type", "topics", "--entity-name", "t"];
    let change = [
        "configs",
        "alter",
        "--add-config",
        "cleanup.policy=[compact,delete],retention.ms=5",
    ];
    cluster.run(&[&change[..], &entity].concat()).succeeded();
    let shown = cluster
        .run(&["topics", "describe", "--topic", "t"])
        .succeeded();
    let lines = shown.lines();
    assert_eq!(lines.len(), 4, "{}", shown.out);
    assert!(lines[0].contains("PartitionCount: 3\tReplicationFactor: 1\t"));
    assert!(
        lines[0].contains("cleanup.policy=compact,delete") && lines[0].contains("retention.ms=5")
    );
    assert_eq!(
        lines[3],
        "\tTopic: t\tPartition: 2\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
    );

    cluster
        .run(
            &[
                &["configs", "alter", "--delete-config", "cleanup.policy"],
                &entity[..],
            ]
            .concat(),
        )
        .succeeded();
    let shown = cluster
        .run(&[&["configs", "describe"], &entity[..]].concat())
        .succeeded();
    let want = "Dynamic configs for topic t are:\n  retention.ms=5 sensitive=false \
                synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5}\n";
    assert_eq!(shown.out, want);
    let broker = [
        "configs",
        "describe",
        "--entity-type",
        "brokers",
        "--entity-name",
        "1",
        "--all",
    ];
    let shown = cluster.run(&broker).succeeded();
    assert!(shown.out.contains(
        "\n  auto.create.topics.enable=false sensitive=false synonyms={STATIC_BROKER_CONFIG:"
    ));

    cluster
        .run(&["topics", "delete", "--topic", "t"])
        .succeeded();
    assert_eq!(cluster.run(&["topics", "list"]).succeeded().out, "u\n");
}

#[test]
fn only_what_is_in_trouble_or_has_settings_of_its_own_is_described() {
    let cluster = Cluster::start();
    cluster.create("plain", "2");
    cluster.create("own", "1");
    let arguments = ["configs", "alter", "--add-config", "retention.ms=5"];
    let entity = ["--entity-type", "topics", "--entity-name", "own"];
    cluster.run(&[&arguments[..], &entity].concat()).succeeded();
    let described = |only: &[&str]| {
        let all = [&["topics", "describe", "--exclude-internal"], only].concat();
        cluster.run(&all).succeeded().out
    };
    let own = described(&["--topics-with-overrides"]);
    // A setting that all brokers have in common counts too, as for Kafka's tool.
    assert!(own.lines().all(|line| line.starts_with("Topic: ")), "{own}");
    let of_own = own.lines().find(|line| line.starts_with("Topic: own\t"));
    assert!(
        of_own.is_some_and(|line| line.contains("retention.ms=5")),
        "{own}"
    );
    // One replica in sync of one, and one is asked for at the least.
    for only in [
        "--under-replicated-partitions",
        "--under-min-isr-partitions",
        "--unavailable-partitions",
    ] {
        assert_eq!(described(&[only]), "");
    }
    let at_min = described(&["--at-min-isr-partitions"]);
    assert_eq!(at_min.lines().count(), 3, "{at_min}");
    assert!(
        at_min.starts_with("\tTopic: own\tPartition: 0\tLeader: 1\t"),
        "{at_min}"
    );
}

#[test]
fn the_cluster_is_named_and_its_brokers_are_listed() {
    let cluster = Cluster::start();
    let id = cluster.run(&["cluster", "id"]).succeeded().out;
    let id = id.strip_prefix("Cluster ID: ").expect("its id").trim_end();
    assert_eq!(id.len(), 22, "{id}");
    let port = cluster.0.address.port().to_string();
    let list = ["cluster", "list-endpoints"];
    assert_eq!(
        cluster.rows(&list),
        [["1", "127.0.0.1", &port, "null", "broker"]]
    );
    let rows = cluster.rows(&[&list[..], &["--include-fenced-brokers"]].concat());
    assert_eq!(
        rows,
        [["1", "127.0.0.1", &port, "null", "unfenced", "broker"]]
    );
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    let cluster = Cluster::start();
    cluster.create("t", "1");
    cluster
        .run(&["topics", "create", "--topic", "t"])
        .failed("TOPIC_ALREADY_EXISTS");
    cluster
        .run(&["topics", "create", "--topic", "t", "--if-not-exists"])
        .succeeded();
    for action in [
        &["describe"][..],
        &["delete"],
        &["alter", "--partitions", "2"],
    ] {
        let arguments = [&["topics"], action, &["--topic", "nope"]].concat();
        cluster
            .run(&arguments)
            .failed("topic 'nope' does not exist");
    }
    cluster
        .run(&["topics", "alter", "--topic", "t", "--partitions", "1"])
        .failed("INVALID_PARTITIONS");
    cluster
        .run(&["consume", "--topic", "nope"])
        .failed("topic 'nope' does not exist");
    let entity = ["--entity-type", "topics", "--entity-name", "nope"];
    cluster
        .run(&[&["configs", "describe"], &entity[..]].concat())
        .failed("topic 'nope' does not exist");
    let entity = [
        "--entity-type",
        "topics",
        "--entity-name",
        "t",
        "--add-config",
        "no.such.key=1",
    ];
    cluster
        .run(&[&["configs", "alter"], &entity[..]].concat())
        .failed("no.such.key");
    cluster
        .produce(&["--topic", "t", "--key-separator", ":"], "k:v\nneither\n")
        .failed("no key separator in line 2");

    let bootstrap = cluster.0.bootstrap();
    let impatient = ["--bootstrap-server", &bootstrap, "--api-timeout-ms", "5000"];
    let produce = [&["produce", "--topic", "nope"], &impatient[..]].concat();
    run_with_input(&produce, "a\n").failed("UNKNOWN_TOPIC_OR_PARTITION");
    // Nobody listens on port 1.
    let nowhere = [
        "topics",
        "list",
        "--bootstrap-server",
        "127.0.0.1:1",
        "--api-timeout-ms",
        "300",
    ];
    run_with_input(&nowhere, "").failed("no broker can be reached");
}

#[test]
fn every_command_has_an_example_in_its_help() {
    let commands = [
        &["serve"][..],
        &["topics", "list"],
        &["topics", "create"],
        &["topics", "describe"],
        &["topics", "alter"],
        &["topics", "delete"],
        &["configs", "describe"],
        &["configs", "alter"],
        &["produce"],
        &["consume"],
        &["groups", "list"],
        &["groups", "describe"],
        &["groups", "delete"],
        &["groups", "reset"],
        &["dump-log"],
        &["quorum", "status"],
        &["quorum", "replication"],
        &["cluster", "id"],
        &["cluster", "list-endpoints"],
        &["cluster", "unregister"],
        &["reassign", "execute"],
        &["reassign", "verify"],
        &["reassign", "list"],
        &["reassign", "generate"],
        &["log-dirs", "describe"],
        &["elect"],
    ];
    for command in commands {
        let ran = run_with_input(&[command, &["--help"]].concat(), "").succeeded();
        let example = format!("Example:\n  highwater {}", command.join(" "));
        // What is produced in the example comes from a pipe.
        let piped = format!("| highwater {}", command.join(" "));
        assert!(
            ran.out.contains(&example) || ran.out.contains(&piped),
            "{}",
            ran.out
        );
    }
}
