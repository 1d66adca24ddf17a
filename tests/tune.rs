//! `highwater tune` as a person or a script runs it, the disk profile from measuring to a broker that
//! lives by it, and the files of `tuning/` with a real broker.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use support::Broker;
use support::client::Client;

fn tune(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_highwater"))
        .arg("tune")
        .args(arguments)
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line in which a command that failed says why.
fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("highwater: "), "{said}");
    said
}

/// A directory on the disk that the build lies on: `/tmp` may be memory.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn put(home: &Path, path: &str, text: &str) {
    let path = home.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// All files below a directory.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            found.extend(files(&path));
        } else if kind.is_file() {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// A made-up host that wants some changes.
fn made_up() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("proc/sys/vm/swappiness", "60\n"),
        ("proc/sys/vm/dirty_ratio", "20\n"),
        ("proc/sys/vm/dirty_bytes", "0\n"),
        ("proc/sys/vm/dirty_background_ratio", "10\n"),
        ("proc/sys/vm/dirty_background_bytes", "0\n"),
        ("proc/sys/net/core/somaxconn", "128\n"),
        ("proc/sys/net/ipv4/tcp_max_syn_backlog", "128\n"),
        ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t65536\n"),
        ("proc/sys/net/ipv4/tcp_slow_start_after_idle", "1\n"),
        ("proc/sys/kernel/osrelease", "6.18.0\n"),
    ] {
        put(home.path(), path, text);
    }
    home
}

#[test]
fn this_host_is_judged_in_words_and_as_json() {
    let text = tune(&["--profile", "latency"]);
    let json = tune(&["--profile", "latency", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(told["schema"], "highwater.tune/1");
    let findings = told["findings"].as_array().unwrap();
    assert!(findings.len() > 25, "{findings:?}");
    for finding in findings {
        let state = finding["state"].as_str().unwrap();
        assert!(["good", "advice", "problem", "unseen"].contains(&state));
        assert!(!finding["found"].as_str().unwrap().is_empty(), "{finding}");
        assert!(!finding["why"].as_str().unwrap().is_empty(), "{finding}");
    }
    let kernel = findings.iter().find(|f| f["check"] == "kernel").unwrap();
    let running = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(kernel["found"], running.trim());
    let problems = told["problems"].as_u64().unwrap();
    assert_eq!(json.status.code(), Some(i32::from(problems > 0)));
    assert_eq!(text.status.code(), json.status.code());
    let words = out(&text);
    assert!(words.starts_with("STATE"), "{words}");
    assert!(words.contains(&format!("{problems} problem")), "{words}");
}

#[test]
fn a_problem_ends_with_one_and_a_line() {
    let home = made_up();
    put(home.path(), "proc/sys/kernel/io_uring_disabled", "2\n");
    let root = home.path().to_str().unwrap();
    let output = tune(&["--root", root]);
    assert!(failed(&output).contains("there is a problem"));
    assert!(out(&output).contains("sysctl -w kernel.io_uring_disabled=0"));
    let output = tune(&["--profile", "best"]);
    assert_eq!(output.status.code(), Some(2), "a usage error");
}

#[test]
fn a_dry_run_writes_nothing_apply_writes_it_and_revert_puts_all_back() {
    let home = made_up();
    let root = home.path().to_str().unwrap();
    let before = files(home.path());
    let revert = on_disk();
    let file = revert.path().join("revert.json");
    let file = file.to_str().unwrap();
    let how = [
        "--root",
        root,
        "--profile",
        "latency",
        "--revert-file",
        file,
    ];
    let with = |what: &'static str| tune(&[&how[..], &[what]].concat());

    let dry = with("--dry-run");
    assert!(dry.status.success());
    let planned = out(&dry);
    let line = planned.lines().find(|line| line.contains("swappiness"));
    let words: Vec<&str> = line.unwrap().split_whitespace().take(3).collect();
    assert_eq!(words, vec!["/proc/sys/vm/swappiness", "60", "1"]);
    assert_eq!(files(home.path()), before);

    let applied = with("--apply");
    assert!(applied.status.success(), "{applied:?}");
    let at = |path: &str| fs::read_to_string(home.path().join(path)).unwrap();
    assert_eq!(at("proc/sys/vm/swappiness").trim(), "1");
    assert_eq!(at("proc/sys/vm/dirty_ratio").trim(), "40");
    assert_eq!(
        at("proc/sys/net/ipv4/tcp_wmem").trim(),
        "4096 16384 4194304"
    );
    assert_eq!(out(&with("--dry-run")), "nothing to change\n");

    let reverted = tune(&["--root", root, "--revert", file]);
    assert!(reverted.status.success(), "{reverted:?}");
    for (path, text) in &before {
        let now = fs::read_to_string(path).unwrap();
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let was = String::from_utf8(text.clone()).unwrap();
        assert_eq!(words(&now), words(&was), "{}", path.display());
    }
    assert!(!Path::new(file).exists());
    let again = tune(&["--root", root, "--revert", file]);
    assert!(failed(&again).contains("revert.json"));
}

#[test]
fn one_check_alone_is_applied() {
    let home = made_up();
    let root = home.path().to_str().unwrap();
    let file = home.path().join("revert.json");
    let how = [
        "--root",
        root,
        "--revert-file",
        file.to_str().unwrap(),
        "--apply",
    ];
    let output = tune(&[&how[..], &["--only", "swappiness"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(out(&output).lines().count(), 2);
    let dirty = home.path().join("proc/sys/vm/dirty_ratio");
    assert_eq!(fs::read_to_string(dirty).unwrap(), "20\n");
    let output = tune(&[&how[..], &["--only", "swapiness"]].concat());
    assert!(failed(&output).contains("no check 'swapiness'"));
}

#[test]
fn a_process_that_is_not_there_is_not_said_to_be_without_problems() {
    let home = made_up();
    let root = home.path().to_str().unwrap();
    for (pid, what) in [("999999999", &["--json"][..]), ("7", &["--root", root])] {
        let output = tune(&[&["--pid", pid], what].concat());
        assert!(failed(&output).contains(&format!("no process {pid} under /")));
        assert_eq!(out(&output), "");
    }
    let own = std::process::id().to_string();
    let output = tune(&["--pid", &own, "--only", "max map count"]);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn taking_back_does_not_seem_to_take_one_check_alone() {
    for other in [&["--only", "swappiness"][..], &["--apply"], &["--dry-run"]] {
        let output = tune(&[&["--revert", "/nowhere/revert.json"], other].concat());
        assert_eq!(output.status.code(), Some(2), "a usage error: {other:?}");
    }
}

#[test]
fn a_write_that_fails_is_told_and_does_not_stop_the_others() {
    let home = made_up();
    let dir = home.path().join("sys/devices/system/cpu/cpufreq/policy0");
    fs::create_dir_all(&dir).unwrap();
    // A file of the kernel that takes no write from anybody.
    symlink("/proc/version", dir.join("scaling_governor")).unwrap();
    let file = home.path().join("run/revert.json");
    let root = home.path().to_str().unwrap();
    let file = file.to_str().unwrap();
    let output = tune(&["--root", root, "--apply", "--json", "--revert-file", file]);
    assert!(failed(&output).contains("could not be changed"));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let changes = told["changes"].as_array().unwrap();
    let failures: Vec<_> = changes.iter().filter(|c| !c["failure"].is_null()).collect();
    assert_eq!(failures.len(), 1);
    assert!(
        failures[0]["path"]
            .as_str()
            .unwrap()
            .ends_with("scaling_governor")
    );
    assert!(changes.len() > 3);
    let swappiness = home.path().join("proc/sys/vm/swappiness");
    assert_eq!(fs::read_to_string(swappiness).unwrap().trim(), "1");
    assert!(tune(&["--root", root, "--revert", file]).status.success());
}

#[test]
fn the_sysctl_file_is_what_the_checks_want() {
    let (made_up, home) = (made_up(), made_up());
    let text = fs::read_to_string(tuning("99-highwater.conf")).unwrap();
    let mut count = 0;
    // Those in force, and those that are comments until `tune` advises them.
    let settings = text
        .lines()
        .map(|line| line.strip_prefix('#').unwrap_or(line))
        .filter(|line| line.starts_with("net.") || line.starts_with("vm."));
    for line in settings {
        let (key, value) = line.split_once(" = ").unwrap();
        let path = format!("proc/sys/{}", key.replace('.', "/"));
        assert!(home.path().join(&path).exists(), "no check looks at {key}");
        put(home.path(), &path, value);
        count += 1;
    }
    assert_eq!(count, 8);
    let root = home.path().to_str().unwrap();
    let dry = tune(&[
        "--root",
        made_up.path().to_str().unwrap(),
        "--profile",
        "latency",
        "--dry-run",
    ]);
    let planned = out(&dry);
    let planned = planned
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().next());
    for path in planned.flatten() {
        let key = path.trim_start_matches("/proc/sys/").replace('/', ".");
        assert!(
            text.contains(&format!("{key} = ")),
            "not in the file: {key}"
        );
    }
    let output = tune(&["--root", root, "--profile", "latency", "--dry-run"]);
    assert_eq!(out(&output), "nothing to change\n");
}

#[test]
fn a_kernel_that_has_more_by_itself_is_not_given_less_by_the_sysctl_file() {
    let text = fs::read_to_string(tuning("99-highwater.conf")).unwrap();
    for key in ["somaxconn", "tcp_max_syn_backlog", "tcp_rmem", "tcp_wmem"] {
        let mut lines = text
            .lines()
            .filter(|line| line.contains(&format!(".{key} = ")));
        assert!(lines.all(|line| line.starts_with('#')), "{key}");
    }
}

fn tuning(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tuning")
        .join(file)
}

/// A broker with a property file, killed when dropped.
struct WithFile(Child);

impl WithFile {
    fn start(config: &Path, data: &Path) -> (WithFile, SocketAddr) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_highwater"))
            .args(["serve", "--config", config.to_str().unwrap()])
            .args(["--set", "listeners=PLAINTEXT://127.0.0.1:0"])
            .args(["--set", &format!("log.dirs={}", data.display())])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let broker = WithFile(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready PLAINTEXT=");
        let address = address.unwrap_or_else(|| panic!("{config:?} does not start: {line}"));
        (broker, address.parse().unwrap())
    }
}

impl Drop for WithFile {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_broker_starts_with_each_profile_and_takes_and_gives_a_record() {
    for profile in ["latency", "throughput", "durable"] {
        let home = on_disk();
        let config = tuning(&format!("{profile}.properties"));
        let (_broker, address) = WithFile::start(&config, &home.path().join("data"));
        let mut client = Client::connect(address);
        client.create_topic("t", 1, &[]);
        assert_eq!(client.produce("t", 0, b"one"), Ok(0), "{profile}");
        let (records, high_watermark) = client.fetch("t", 0, 0).unwrap();
        assert_eq!(high_watermark, 1, "{profile}");
        assert_eq!(&records[0].1[..], b"one", "{profile}");
    }
}

#[test]
fn systemd_has_nothing_against_the_unit() {
    let there = Command::new("systemd-analyze").arg("--version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        eprintln!("no systemd-analyze here: the unit was not looked at");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(tuning("highwater.service")).unwrap();
    let path = "/usr/local/bin/highwater";
    assert!(unit.contains(&format!("ExecStart={path} serve ")));
    let unit = unit.replace(path, env!("CARGO_BIN_EXE_highwater"));
    let file = home.path().join("highwater.service");
    fs::write(&file, unit).unwrap();
    let verify = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&file)
        .output();
    let verify = verify.unwrap();
    assert!(verify.status.success(), "{verify:?}");
    assert!(verify.stderr.is_empty(), "{verify:?}");
}

#[test]
fn every_line_of_a_profile_says_why() {
    for profile in ["latency", "throughput", "durable"] {
        let text = fs::read_to_string(tuning(&format!("{profile}.properties"))).unwrap();
        let blocks = text.split("\n\n").filter(|block| {
            block
                .lines()
                .any(|line| !line.starts_with('#') && line.contains('='))
        });
        for block in blocks {
            assert!(block.trim_start().starts_with("# "), "{profile}: {block}");
        }
    }
}

/// Metrics of a broker by name, over all shards.
fn metric(port: u16, name: &str) -> f64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let lines = page.lines().filter(|line| line.starts_with(name));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

#[test]
fn a_disk_is_measured_and_a_broker_starts_with_what_was_found() {
    let home = on_disk();
    let profile = home.path().join("disk.properties");
    let dir = home.path().to_str().unwrap();
    let file = profile.to_str().unwrap();
    let small = [
        "disk",
        "--dir",
        dir,
        "--size",
        "64",
        "--seconds",
        "1",
        "--accept-noise",
    ];
    let output = tune(&[&small[..], &["--output", file, "--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["limits"].as_object().unwrap().len(), 8, "{told}");
    for figure in told["figures"].as_array().unwrap() {
        assert!(figure["operations"].as_u64().unwrap() > 0, "{figure}");
        assert!(
            figure["bytes_per_second"].as_f64().unwrap() > 0.0,
            "{figure}"
        );
    }
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "the measured files are gone: {left:?}");

    let broker = Broker::start(&[&format!("highwater.disk.profile={file}")]);
    let logs = &told["limits"]["highwater.journal.logs.min"];
    let log = broker.log_text();
    assert!(log.contains("disk profile read"), "{log}");
    assert!(
        log.contains(&format!("highwater.journal.logs.min={logs}")),
        "{log}"
    );
    let mut client = Client::connect(broker.address);
    client.create_topic("t", 1, &[]);
    assert_eq!(client.produce("t", 0, b"one"), Ok(0));
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_the_measurement() {
    let home = on_disk();
    let dir = home.path().to_str().unwrap();
    let absent = home.path().join("absent/disk.properties");
    for file in [absent.to_str().unwrap(), dir] {
        let how = ["disk", "--dir", dir, "--seconds", "3600", "--output", file];
        assert!(failed(&tune(&how)).contains(&format!("{file}: ")));
    }
    assert_eq!(files(home.path()).len(), 0);
}

#[test]
fn a_measurement_that_fails_leaves_the_output_as_it_was() {
    let home = on_disk();
    let kept = home.path().join("kept");
    fs::write(&kept, "figures of last week\n").unwrap();
    let new = home.path().join("new");
    for file in [&kept, &new] {
        let file = file.to_str().unwrap();
        let output = tune(&["disk", "--dir", "/nowhere/at/all", "--output", file]);
        assert!(failed(&output).contains("/nowhere/at/all: "));
    }
    assert_eq!(fs::read_to_string(&kept).unwrap(), "figures of last week\n");
    assert!(!new.exists());
}

#[test]
fn a_measured_directory_that_is_left_is_told() {
    let home = on_disk();
    let mut child = Command::new(env!("CARGO_BIN_EXE_highwater"))
        .args(["tune", "disk", "--size", "64", "--dir"])
        .arg(home.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let scratch = home.path().join(format!("highwater-tune-{}", child.id()));
    // It has made its first file, and stands still meanwhile: what it meets next is the file in its
    // place, never that there is nothing.
    let first = scratch.join("device");
    while !first.exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let signal = |name: &str| {
        let pid = child.id().to_string();
        let status = Command::new("kill").args([name, &pid]).status();
        assert!(status.unwrap().success());
    };
    signal("-STOP");
    // A file in its place ends the measurement, and cannot be removed as a directory.
    fs::rename(&scratch, home.path().join("moved")).unwrap();
    fs::write(&scratch, "").unwrap();
    signal("-CONT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    let told = format!("highwater: {} is left: ", scratch.display());
    assert!(said.contains(&told), "{said}");
}

#[test]
fn a_profile_decides_where_a_flush_goes_and_a_setting_decides_against_it() {
    let home = on_disk();
    let profile = home.path().join("disk.properties");
    let text = "profile.format=highwater.disk/1\nhighwater.journal.logs.min=1\n";
    fs::write(&profile, text).unwrap();
    let named = format!("highwater.disk.profile={}", profile.display());
    for (own, by_journal) in [(None, true), (Some("highwater.journal.logs.min=3"), false)] {
        let port = support::fixed_port();
        let metrics = format!("highwater.metrics.listener=127.0.0.1:{port}");
        let mut settings = vec![
            named.as_str(),
            metrics.as_str(),
            "log.flush.interval.messages=1",
        ];
        settings.extend(own);
        let broker = Broker::start(&settings);
        let mut client = Client::connect(broker.address);
        client.create_topic("t", 1, &[]);
        // A journal is made behind the first round that wants one.
        let frames = || metric(port, "highwater_log_journal_frames_total{");
        let mut count = 0;
        while count < 40 || (by_journal && frames() == 0.0 && count < 20_000) {
            client.produce("t", 0, b"one").unwrap();
            count += 1;
        }
        assert_eq!(frames() > 0.0, by_journal, "{own:?} after {count} records");
    }
}

#[test]
fn a_broker_does_not_start_with_what_is_no_profile_and_names_the_line() {
    let home = on_disk();
    let profile = home.path().join("disk.properties");
    for (bytes, line) in [
        (&b"\xff\xfe\x00garbage"[..], 1),
        (
            b"profile.format=highwater.disk/1\n\nhighwater.write.bytes=lots\n",
            3,
        ),
        (b"profile.format=highwater.disk/1\nnode.id=7\n", 2),
    ] {
        fs::write(&profile, bytes).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_highwater"))
            .args(["serve", "--set", "listeners=PLAINTEXT://127.0.0.1:0"])
            .args([
                "--set",
                &format!("log.dirs={}", home.path().join("data").display()),
            ])
            .args([
                "--set",
                &format!("highwater.disk.profile={}", profile.display()),
            ])
            .output()
            .unwrap();
        let said = failed(&output);
        assert!(
            said.contains(&format!("disk.properties:{line}: ")),
            "{said}"
        );
    }
}

#[test]
fn a_directory_that_cannot_be_measured_is_told() {
    let output = tune(&["disk", "--dir", "/nowhere/at/all", "--size", "64"]);
    assert!(failed(&output).contains("/nowhere/at/all: "));
}
