//! `highwater lab durability`, the real binary: brokers that are killed, power that is lost in the
//! simulator, and a document that says what each row costs and loses. The promise under test is
//! that it tells the truth: a row that must lose says so, and a row that must not says zero.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(["lab", "durability"]).args(arguments);
    command.output().expect("the binary can be run")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The losses of the row with this acks and flush, by one kind of event.
fn losses<'a>(document: &'a Value, acks: &str, flush: &str, event: &str) -> &'a Value {
    let rows = document["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| {
        let configuration = &row["configuration"];
        configuration["acks"] == acks && configuration["flush"] == flush
    });
    &row.unwrap_or_else(|| panic!("no row acks={acks} flush={flush}"))["losses"][event]
}

#[test]
fn a_small_lab_measures_kills_and_simulates_and_tells_the_truth() {
    let home = tempfile::tempdir().unwrap();
    let output = home.path().join("durability");
    let done = lab(&[
        "--quick",
        // So that one slow flush is not all that is measured.
        "--seconds",
        "6",
        "--seeds",
        "4",
        "--rows",
        "acks=1,brokers=1,io=buffered,flush=os",
        "--rows",
        "acks=all,brokers=1,io=buffered,flush=1",
        "--output",
        output.to_str().unwrap(),
    ]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let table = text(&done.stdout);
    assert!(table.contains("LOST: KILL -9"), "{table}");

    let document: Value = serde_json::from_str(&read(&output.join("durability.json"))).unwrap();
    assert_eq!(document["schema"], "highwater.durability/1");
    assert!(document["host"].is_object());
    assert!(document["floors"].is_array());
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let rate = row["throughput"]["records_per_second"].as_f64();
        assert!(rate.is_some_and(|rate| rate > 0.0), "{row}");
        assert!(row["percentiles"]["samples"].as_u64() > Some(0), "{row}");
        assert!(row["meaning"].as_str().is_some_and(|text| !text.is_empty()));
        for event in [
            "process_kill",
            "one_host_power_loss",
            "all_hosts_power_loss",
        ] {
            let losses = &row["losses"][event];
            assert!(losses["events"].as_u64() > Some(0), "{event}: {row}");
            assert!(losses["acknowledged_records"].as_u64() > Some(0), "{row}");
        }
        // Written bytes survive the process, in every row.
        assert_eq!(row["losses"]["process_kill"]["lost_records"], 0, "{row}");
    }
    let unflushed = losses(&document, "1", "os", "all_hosts_power_loss");
    assert!(unflushed["lost_records"].as_u64() > Some(0), "{unflushed}");
    assert!(unflushed["loss_probability_upper_bound"].is_null());
    let flushed = losses(&document, "all", "flush.messages=1", "all_hosts_power_loss");
    assert_eq!(flushed["lost_records"], 0, "{flushed}");
    assert!(flushed["loss_probability_upper_bound"].as_f64() > Some(0.0));
    assert!(losses(&document, "all", "flush.messages=1", "process_kill")["source"] == "processes");

    let page = read(&output.join("durability.html"));
    assert!(page.contains("<svg") && page.contains("acks=all, 1 broker, buffered"));
    assert!(!page.contains("src=\"http"), "it needs nothing but itself");

    // The brokers' data is gone.
    let mut left: Vec<String> = std::fs::read_dir(&output)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["durability.html", "durability.json"]);
}

#[test]
fn brokers_that_do_not_start_cost_nobody_the_rows_that_were_measured() {
    let home = tempfile::tempdir().unwrap();
    let bin = home.path().join("kafka/bin");
    std::fs::create_dir_all(&bin).unwrap();
    for (name, does) in [
        ("kafka-storage.sh", "exit 0"),
        (
            "kafka-server-start.sh",
            "echo 'there is <no> java' >&2; exit 1",
        ),
    ] {
        let script = bin.join(name);
        std::fs::write(&script, format!("#!/bin/sh\n{does}\n")).unwrap();
        std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    }
    let output = home.path().join("durability");
    let done = lab(&[
        "--quick",
        "--seconds",
        "6",
        "--seeds",
        "1",
        "--kafka-home",
        home.path().join("kafka").to_str().unwrap(),
        "--rows",
        "acks=1,brokers=1,io=buffered,flush=os",
        "--output",
        output.to_str().unwrap(),
    ]);
    assert_eq!(done.status.code(), Some(1));
    let told = text(&done.stderr);
    assert!(told.contains("1 of 2 rows were not measured"), "{told}");

    let document: Value = serde_json::from_str(&read(&output.join("durability.json"))).unwrap();
    let (measured, without) = (&document["rows"][0], &document["rows"][1]);
    assert!(measured["throughput"]["records"].as_u64() > Some(0));
    assert_eq!(without["configuration"]["system"], "kafka");
    assert!(without["throughput"].is_null() && without["percentiles"].is_null());
    assert_eq!(without["losses"]["process_kill"]["events"], 0);
    let why = without["warnings"][0].as_str().unwrap();
    assert!(why.contains("kafka: 1 broker(s) did not start"), "{why}");
    let warnings = document["warnings"].as_array().unwrap();
    assert!(
        warnings
            .iter()
            .any(|text| text == "1 of 2 rows were not measured; each says why"),
        "{warnings:?}"
    );
    let page = read(&output.join("durability.html"));
    assert!(
        page.contains("there is &lt;no&gt; java"),
        "the row says why"
    );
}

#[test]
fn what_cannot_be_done_is_said_in_one_line_before_anything_starts() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let not_a_directory = file.to_str().unwrap();
    let empty = home.path().to_str().unwrap();
    for (arguments, said) in [
        (["--output", not_a_directory], "--output"),
        (["--data", not_a_directory], "--data"),
        (["--kafka-home", empty], "kafka-server-start.sh"),
        (["--rows", "acks=2"], "acks=0|1|all"),
        (["--rows", "system=kafka"], "without --kafka-home"),
        (["--seconds", "0"], "--seconds"),
    ] {
        let done = lab(&arguments);
        assert!(!done.status.success(), "{arguments:?}");
        let told = text(&done.stderr);
        assert!(told.contains(said), "{arguments:?}: {told}");
        assert_eq!(told.trim_end().lines().count(), 1, "{told}");
        assert!(done.stdout.is_empty());
    }
}
