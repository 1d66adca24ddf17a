//! The commands that show and change a cluster, as a person or a script runs them, against three
//! nodes as real processes; and the trace of one record through them.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::cluster::Cluster;

const PATIENCE: Duration = Duration::from_secs(120);

/// What a command that succeeded has printed.
fn run_with_input(arguments: &[&str], input: &str) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = ran(arguments, input);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(stdout), text(stderr));
    assert!(status.success(), "{arguments:?} failed: {err}{out}");
    out
}

fn ran(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_highwater"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that needs none of it may have ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Runs a command on a cluster until it succeeds with the output that is wanted: each node hears
/// of a change by its own metadata, a little before or after the others.
fn until(bootstrap: &str, arguments: &[&str], wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + PATIENCE;
    let all = [arguments, &["--bootstrap-server", bootstrap]].concat();
    loop {
        let done = ran(&all, "");
        let out = String::from_utf8(done.stdout).unwrap();
        if done.status.success() && wanted(&out) {
            return out;
        }
        let why = String::from_utf8_lossy(&done.stderr);
        assert!(
            Instant::now() < deadline,
            "{arguments:?} still prints {out}{why}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The value behind a name at the beginning of a line.
fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim()
}

/// The voters' listeners, as the quorum's status tells them.
fn controllers(status: &str) -> Vec<String> {
    let marks = status.split("CONTROLLER://").skip(1);
    let address = |rest: &str| rest.split('"').next().unwrap().to_owned();
    marks.map(address).collect()
}

#[test]
fn the_quorum_is_the_same_whether_a_broker_or_a_controller_is_asked() {
    let cluster = Cluster::start(3, &[]);
    let bootstrap = cluster.bootstrap();
    let status = until(&bootstrap, &["quorum", "status"], |text| {
        field(text, "MaxFollowerLag:") == "0"
    });
    assert_eq!(field(&status, "ClusterId:").len(), 22);
    let leader = field(&status, "LeaderId:").to_owned();
    assert!(["1", "2", "3"].contains(&leader.as_str()), "{status}");
    for id in 1..=3 {
        let voters = field(&status, "CurrentVoters:");
        assert!(voters.contains(&format!("{{\"id\": {id}")), "{status}");
    }
    let addresses = controllers(&status);
    assert_eq!(addresses.len(), 3, "{status}");
    // Whichever controller is asked, the one that leads answers.
    for address in &addresses {
        let arguments = ["quorum", "status", "--bootstrap-controller", address];
        let told = run_with_input(&arguments, "");
        assert_eq!(field(&told, "LeaderId:"), leader);
        assert_eq!(field(&told, "ClusterId:"), field(&status, "ClusterId:"));
    }
    let table = until(&bootstrap, &["quorum", "replication"], |text| {
        text.lines()
            .skip(1)
            .all(|line| line.split_whitespace().nth(3) == Some("0"))
    });
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert_eq!(
        (rows[0][0], rows[0][6]),
        (leader.as_str(), "Leader"),
        "{table}"
    );
    assert!(rows[1..].iter().all(|row| row[6] == "Follower"), "{table}");
    let listed = until(&bootstrap, &["cluster", "list-endpoints"], |text| {
        text.lines().count() == 4
    });
    assert!(listed.contains(" rack-3 broker"), "{listed}");
    let gone = [
        "cluster",
        "unregister",
        "--id",
        "9",
        "--bootstrap-server",
        &bootstrap,
    ];
    let refused = ran(&gone, "");
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && why.contains("BROKER_ID_NOT_REGISTERED"),
        "{why}"
    );
}

/// Makes the topic t of one partition on two of three nodes; their ids, once one leads.
fn replicas_of_new_topic(bootstrap: &str, describe: &[&str]) -> Vec<i32> {
    let create = ["topics", "create", "--topic", "t", "--partitions", "1"];
    let more = ["--replication-factor", "2", "--bootstrap-server", bootstrap];
    run_with_input(&[&create[..], &more].concat(), "");
    let shown = until(bootstrap, describe, |text| {
        text.contains("\tLeader: ") && !text.contains("Leader: none")
    });
    let replicas = shown.split("\tReplicas: ").nth(1);
    let replicas = replicas.and_then(|rest| rest.split('\t').next()).unwrap();
    replicas.split(',').map(|id| id.parse().unwrap()).collect()
}

/// Moves t-0 to other replicas; what the command printed when it began.
fn reassign(bootstrap: &str, target: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("moves.json");
    let text = format!(
        r#"{{"version":1,"partitions":[{{"topic":"t","partition":0,"replicas":[{target}]}}]}}"#
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let with_file = |action| ["reassign", action, "--reassignment-json-file", file];
    let started = until(bootstrap, &with_file("execute"), |_| true);
    assert!(
        started.contains("Successfully started partition reassignment for t-0"),
        "{started}"
    );
    until(bootstrap, &with_file("verify"), |text| {
        text.contains("Reassignment of partition t-0 is completed.")
    });
    started
}

#[test]
fn a_replica_taken_away_while_its_broker_was_down_is_set_aside_when_it_is_back() {
    let mut cluster = Cluster::start(3, &["auto.create.topics.enable=false"]);
    let bootstrap = cluster.bootstrap();
    let replicas = replicas_of_new_topic(&bootstrap, &["topics", "describe", "--topic", "t"]);
    let produce = ["produce", "--topic", "t", "--bootstrap-server", &bootstrap];
    run_with_input(&produce, "a\nb\nc\n");
    let fresh = (1..=3).find(|id| !replicas.contains(id)).unwrap();
    let gone = cluster.node(replicas[1]);
    let live = gone.partition_dir("t", 0);
    let home = live.parent().unwrap().to_owned();
    assert!(live.is_dir());
    gone.kill();
    reassign(&bootstrap, &format!("{},{fresh}", replicas[0]));
    cluster.node(replicas[1]).restart();
    let names = std::fs::read_dir(&home).unwrap();
    let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.any(|name| name.starts_with("t-0.") && name.ends_with("-stray")));
    assert!(!live.exists());
    let consume = ["consume", "--topic", "t", "--from-beginning"];
    let some = ["--max-messages", "3", "--bootstrap-server", &bootstrap];
    let read = run_with_input(&[&consume[..], &some].concat(), "");
    assert_eq!(read, "a\nb\nc\n");
}

#[test]
fn a_partition_moves_to_other_replicas_and_its_preferred_leader_is_elected() {
    let cluster = Cluster::start(3, &["auto.create.topics.enable=false"]);
    let bootstrap = cluster.bootstrap();
    let describe = ["topics", "describe", "--topic", "t"];
    let replicas = replicas_of_new_topic(&bootstrap, &describe);
    let produce = ["produce", "--topic", "t", "--bootstrap-server", &bootstrap];
    run_with_input(&produce, "a\nb\nc\n");

    // To the node that has nothing of it, and to the second one.
    let fresh = (1..=3).find(|id| !replicas.contains(id)).unwrap();
    let target = format!("{fresh},{}", replicas[1]);
    let started = reassign(&bootstrap, &target);
    let back = format!(r#""replicas":[{},{}]"#, replicas[0], replicas[1]);
    assert!(started.contains(&back), "no way back in {started}");
    until(&bootstrap, &["reassign", "list"], |text| {
        text == "No partition reassignments found.\n"
    });
    until(&bootstrap, &describe, |text| {
        text.contains(&format!("\tReplicas: {target}\t"))
    });

    let elect = [
        "elect",
        "--election-type",
        "preferred",
        "--topic",
        "t",
        "--partition",
        "0",
    ];
    until(&bootstrap, &elect, |text| {
        text.contains("for partitions t-0") || text.contains("elected for partitions t-0")
    });
    until(&bootstrap, &describe, |text| {
        text.contains(&format!("\tLeader: {fresh}\t"))
    });
    let consume = [
        "consume",
        "--topic",
        "t",
        "--from-beginning",
        "--max-messages",
        "3",
    ];
    let read = ["--timeout-ms", "20000", "--bootstrap-server", &bootstrap];
    let records = run_with_input(&[&consume[..], &read].concat(), "");
    assert_eq!(records, "a\nb\nc\n", "what the moved partition has");
}

/// What every trace shows, in this order.
const STORY: [&str; 7] = [
    "batch sent",
    "LEO 1, HW 0",
    "high watermark 0 -> 1",
    "acknowledged ",
    "offset commit sent",
    "committed ",
    "lag 0",
];

fn assert_story(text: &str) {
    let mut rest = text;
    for part in STORY {
        let at = rest.find(part);
        let at = at.unwrap_or_else(|| panic!("no {part:?} in its place in {text}"));
        rest = &rest[at..];
    }
    let followers = text.matches(" arrives  ").count();
    assert!(followers >= 3, "{text}");
}

#[test]
fn one_record_is_traced_through_three_brokers_and_shown_as_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (page, hops) = (file("trace.html"), file("hops.json"));
    let arguments = [
        "trace", "--html", &page, "--hops", &hops, "--value", "<one>",
    ];
    let out = run_with_input(&arguments, "");
    assert_story(&out[out.find("WHERE").unwrap()..]);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    assert!(html.contains("<svg") && html.contains("&lt;one&gt;"));
    let lines = std::fs::read_to_string(&hops).unwrap();
    assert!(lines.lines().count() >= 32, "{lines}");
}

#[test]
fn a_trace_goes_through_brokers_that_run_already_step_by_step() {
    let cluster = Cluster::start(
        3,
        &["highwater.log.format=json", "highwater.log.level=trace"],
    );
    let bootstrap = cluster.bootstrap();
    let mut arguments = vec!["trace", "--step", "--bootstrap-server", &bootstrap];
    let logs = cluster
        .nodes
        .iter()
        .map(|node| node.log.display().to_string());
    let logs: Vec<String> = logs.collect();
    for log in &logs {
        arguments.extend(["--broker-log", log]);
    }
    let out = run_with_input(&arguments, &"\n".repeat(40));
    assert!(out.contains("1/32  ") && out.contains("32/32  "), "{out}");
    for part in ["[LEO 1, HW 0]", "high watermark 0 -> 1", ": lag 0 ["] {
        assert!(out.contains(part), "{part} in {out}");
    }
    // It was made for the trace.
    until(
        &bootstrap,
        &["topics", "list", "--exclude-internal"],
        |text| !text.contains("highwater-trace"),
    );
}
