//! Several log directories, of which some fail: their partitions answer KAFKA_STORAGE_ERROR, the
//! rest goes on; without one that can be used the broker ends and says why.
#![allow(clippy::unwrap_used)]

mod support;

use highwater::wire::ErrorCode;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::Broker;
use support::client::Client;

const STORAGE: ErrorCode = ErrorCode::KAFKA_STORAGE_ERROR;
const PATIENCE: Duration = Duration::from_secs(120);

/// Two log directories beside each other; the metadata log is in the first.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        Home {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A directory vanishes, as a mount that comes off does: what is open stays so.
    fn lose(&self, name: &str) {
        let gone = self.path(&format!("{name}-gone"));
        std::fs::rename(self.path(name), gone).unwrap();
    }

    fn setting(&self) -> String {
        format!(
            "log.dirs={},{}",
            self.path("a").display(),
            self.path("b").display()
        )
    }

    fn start(&self, settings: &[&str]) -> Broker {
        let dirs = self.setting();
        let mut all = vec![
            &*dirs,
            "log.segment.bytes=1048576",
            "replica.high.watermark.checkpoint.interval.ms=100",
        ];
        all.extend(settings);
        Broker::start(&all)
    }

    /// Runs a broker that must not start; its last line.
    fn refused(&self) -> String {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_highwater"))
            .args(["serve", "--set", &self.setting()])
            .args(["--set", "listeners=PLAINTEXT://127.0.0.1:0"])
            .output()
            .unwrap();
        assert!(!output.status.success(), "it started");
        let said = String::from_utf8(output.stderr).unwrap();
        said.lines().last().unwrap_or_default().to_owned()
    }

    /// The partitions of a topic that lie in a directory.
    fn held(&self, name: &str, topic: &str) -> BTreeSet<i32> {
        partitions_in(&self.path(name), topic)
    }
}

fn partitions_in(dir: &Path, topic: &str) -> BTreeSet<i32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter_map(|name| name.strip_prefix(&format!("{topic}-"))?.parse().ok())
        .collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How a client sees a partition whose directory is offline.
fn assert_offline(client: &mut Client, topic: &str, partition: i32) {
    assert_eq!(client.produce(topic, partition, b"x"), Err(STORAGE));
    assert_eq!(client.fetch(topic, partition, 0).err(), Some(STORAGE));
    assert_eq!(client.list_offset(topic, partition, -1), Err(STORAGE));
    assert_eq!(client.delete_records(topic, partition, 0), Err(STORAGE));
    let told = &client.partitions(topic)[&partition];
    assert_eq!(told.leader_id, -1);
    assert_eq!(ErrorCode(told.error_code), ErrorCode::LEADER_NOT_AVAILABLE);
    assert_eq!(told.offline_replicas, told.replica_nodes);
}

fn scrape(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn a_directory_that_vanishes_takes_its_partitions_and_nothing_else() {
    let home = Home::new();
    let port = support::fixed_port();
    let metrics = format!("highwater.metrics.listener=127.0.0.1:{port}");
    let mut broker = home.start(&[&metrics]);
    let mut client = Client::connect(broker.address);
    client.create_topic("t", 6, &[]);
    let (in_a, in_b) = (home.held("a", "t"), home.held("b", "t"));
    assert_eq!((in_a.len(), in_b.len()), (3, 3), "the fewest come first");
    for partition in 0..6 {
        assert_eq!(client.produce("t", partition, b"before"), Ok(0));
    }
    assert!(scrape(port).contains("highwater_offline_log_directory_count 0"));
    home.lose("b");
    // The next checkpoint finds out, under no load at all.
    until("b is offline", || {
        client.log_dirs()[home.path("b").to_str().unwrap()] == (STORAGE, 0)
    });
    for partition in &in_b {
        until("the partition has no leader", || {
            client.partitions("t")[partition].leader_id == -1
        });
        assert_offline(&mut client, "t", *partition);
    }
    for partition in &in_a {
        assert_eq!(client.produce("t", *partition, b"after"), Ok(1));
        assert_eq!(client.read_all("t", *partition).len(), 2);
        assert_eq!(client.partitions("t")[partition].error_code, 0);
    }
    let dirs = client.log_dirs();
    assert_eq!(dirs[home.path("a").to_str().unwrap()], (ErrorCode::NONE, 3));
    let page = scrape(port);
    assert!(
        page.contains("highwater_offline_log_directory_count 1"),
        "{page}"
    );
    // What is new goes where there is a disk.
    client.create_topic("new", 4, &[]);
    for partition in 0..4 {
        assert_eq!(client.produce("new", partition, b"x"), Ok(0));
    }
    assert_eq!(home.held("a", "new").len(), 4);
    broker.stop();
    assert!(home.path("a").join(".kafka_cleanshutdown").exists());
    assert!(
        !home.path("b").exists(),
        "a dead directory is not written to"
    );
}

#[test]
fn a_directory_that_cannot_be_used_at_the_start_is_offline_and_its_records_wait_there() {
    let home = Home::new();
    let mut broker = home.start(&[]);
    let mut client = Client::connect(broker.address);
    client.create_topic("t", 4, &[]);
    for partition in 0..4 {
        for n in 0..10 {
            assert_eq!(client.produce("t", partition, b"kept"), Ok(n));
        }
    }
    let (in_a, in_b) = (home.held("a", "t"), home.held("b", "t"));
    broker.stop();
    // No directory at all in its place; an identity that nobody can read; one file of one
    // partition that is none; an identity of another cluster's format.
    for damage in 0..4 {
        let aside = home.path("aside");
        let meta = home.path("b").join("meta.properties");
        let first = in_b.iter().next().unwrap();
        let topic_id = home.path("b").join(format!("t-{first}/partition.metadata"));
        let segment = home
            .path("b")
            .join(format!("t-{first}/00000000000000000000.log"));
        let (damaged, undo): (PathBuf, Box<dyn Fn()>) = match damage {
            0 => {
                std::fs::rename(home.path("b"), &aside).unwrap();
                std::fs::write(home.path("b"), b"no directory").unwrap();
                let b = home.path("b");
                (
                    home.path("b"),
                    Box::new(move || {
                        std::fs::remove_file(&b).unwrap();
                        std::fs::rename(&aside, &b).unwrap();
                    }),
                )
            }
            1 => replace(&meta, b"\xff\xfe garbage"),
            2 => replace(&topic_id, b"version: 0\ntopic_id: nonsense"),
            _ => {
                std::fs::rename(&segment, &aside).unwrap();
                std::fs::create_dir(&segment).unwrap();
                let path = segment.clone();
                (
                    home.path("b").join(format!("t-{first}")),
                    Box::new(move || {
                        std::fs::remove_dir(&path).unwrap();
                        std::fs::rename(&aside, &path).unwrap();
                    }),
                )
            }
        };
        let mut broker = home.start(&[]);
        let mut client = Client::connect(broker.address);
        let said = broker.log_text();
        let line = said
            .lines()
            .rfind(|line| line.contains("log directory is offline"));
        let line = line.unwrap_or_else(|| panic!("{damage}: nobody says why:\n{said}"));
        assert!(line.contains(damaged.to_str().unwrap()), "{damage}: {line}");
        for partition in &in_b {
            assert_offline(&mut client, "t", *partition);
        }
        for partition in &in_a {
            assert_eq!(client.read_all("t", *partition).len(), 10);
        }
        client.create_topic(&format!("new-{damage}"), 2, &[]);
        assert_eq!(home.held("a", &format!("new-{damage}")).len(), 2);
        broker.stop();
        undo();
    }
    let mut broker = home.start(&[]);
    let mut client = Client::connect(broker.address);
    for partition in 0..4 {
        assert_eq!(client.read_all("t", partition).len(), 10);
        assert_eq!(client.produce("t", partition, b"more"), Ok(10));
    }
    broker.stop();
}

/// Puts other bytes into a file; how to undo that.
fn replace(path: &Path, bytes: &[u8]) -> (PathBuf, Box<dyn Fn()>) {
    let before = std::fs::read(path).unwrap();
    std::fs::write(path, bytes).unwrap();
    let back = path.to_owned();
    (
        path.to_owned(),
        Box::new(move || std::fs::write(&back, &before).unwrap()),
    )
}

#[test]
fn without_the_metadata_logs_directory_the_broker_ends_and_says_why() {
    let home = Home::new();
    let mut broker = home.start(&[]);
    let mut client = Client::connect(broker.address);
    client.create_topic("t", 2, &[]);
    home.lose("a");
    let status = broker.end();
    assert_eq!(status.code(), Some(1));
    let said = broker.log_text();
    let last = said.lines().last().unwrap();
    let want = format!(
        "metadata log directory {} has failed",
        home.path("a").display()
    );
    assert!(last.contains(&want), "{last}");
    // The other directory was closed in good order.
    assert!(
        home.path("b").join(".kafka_cleanshutdown").exists(),
        "{said}"
    );
}

#[test]
fn without_any_directory_the_broker_ends_and_says_why() {
    let home = Home::new();
    let apart = format!("metadata.log.dir={}", home.path("m").display());
    let mut broker = home.start(&[&apart]);
    let mut client = Client::connect(broker.address);
    client.create_topic("t", 2, &[]);
    home.lose("a");
    home.lose("b");
    let status = broker.end();
    assert_eq!(status.code(), Some(1));
    let said = broker.log_text();
    let last = said.lines().last().unwrap();
    let (a, b) = (home.path("a"), home.path("b"));
    let want = format!(
        "all log dirs in {}, {} have failed",
        a.display(),
        b.display()
    );
    assert!(last.contains(&want), "{last}");
}

#[test]
fn a_broker_without_a_usable_directory_does_not_start() {
    let home = Home::new();
    let mut broker = home.start(&[]);
    broker.stop();
    let meta = home.path("a").join("meta.properties");
    let (_, undo) = replace(&meta, b"garbage");
    let said = home.refused();
    assert!(said.contains("metadata log directory"), "{said}");
    assert!(said.contains(meta.to_str().unwrap()), "{said}");
    undo();
    // Two directories that say they are the same one.
    std::fs::copy(&meta, home.path("b").join("meta.properties")).unwrap();
    let said = home.refused();
    assert!(said.contains("also that of another directory"), "{said}");
}

#[test]
fn a_topic_made_anew_under_an_old_name_does_not_begin_where_the_old_one_began() {
    // What the checkpoints said at the start was of the topic that is deleted now.
    let mut broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    let mut client = Client::connect(broker.address);
    client.create_topic("orders", 1, &[]);
    for at in 0..5 {
        assert_eq!(client.produce("orders", 0, b"old"), Ok(at));
    }
    client.delete_records("orders", 0, 3).unwrap();
    broker.stop();
    broker.restart();
    let mut client = Client::connect(broker.address);
    assert_eq!(client.list_offset("orders", 0, -2), Ok(3));
    client.delete_topic("orders");
    client.create_topic("orders", 1, &[]);
    assert_eq!(client.list_offset("orders", 0, -2), Ok(0));
    assert_eq!(client.produce("orders", 0, b"new"), Ok(0));
    // Nor after a kill: what the files say then must not be of the deleted topic either.
    broker.kill();
    broker.restart();
    let mut client = Client::connect(broker.address);
    assert_eq!(client.list_offset("orders", 0, -2), Ok(0));
    assert_eq!(client.list_offset("orders", 0, -1), Ok(1));
}

#[test]
fn a_recovery_that_ends_below_its_recovery_point_lowers_it_before_anything_is_appended() {
    let mut broker = Broker::start(&[]);
    let mut client = Client::connect(broker.address);
    client.create_topic("orders", 1, &[]);
    for at in 0..5 {
        assert_eq!(client.produce("orders", 0, b"value"), Ok(at));
    }
    broker.kill();
    // As after damage to what was flushed long ago.
    let partition = broker.partition_dir("orders", 0);
    let file = partition
        .parent()
        .unwrap()
        .join("recovery-point-offset-checkpoint");
    std::fs::write(&file, "0\n1\norders 0 1000\n").unwrap();
    broker.restart();
    let mut client = Client::connect(broker.address);
    assert_eq!(client.list_offset("orders", 0, -1), Ok(5));
    let said = std::fs::read_to_string(&file).unwrap();
    let point = said.lines().find_map(|line| line.strip_prefix("orders 0 "));
    let point: i64 = point.unwrap().parse().unwrap();
    assert!(point <= 5, "{said}");
}

#[test]
fn a_topic_made_anew_at_once_has_nothing_of_the_old_one_on_any_shard() {
    let broker = Broker::start(&["highwater.shards=2", "log.segment.delete.delay.ms=0"]);
    let mut client = Client::connect(broker.address);
    client.create_topic("orders", 3, &[]);
    for _ in 0..15 {
        for partition in 0..3 {
            assert_eq!(client.produce("orders", partition, b"one"), Ok(0));
            assert_eq!(client.produce("orders", partition, b"two"), Ok(1));
        }
        // The shards may take both as one change of the metadata.
        client.delete_topic("orders");
        client.create_topic("orders", 3, &[]);
    }
}

/// Where a partition lies, and where it is on its way to.
fn places(home: &Home, topic: &str, partition: i32) -> (Vec<&'static str>, Vec<&'static str>) {
    let holds = |name: &str, what: &dyn Fn(&str) -> bool| {
        let entries = std::fs::read_dir(home.path(name)).into_iter().flatten();
        let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.any(|name| what(&name))
    };
    let own = format!("{topic}-{partition}");
    let copy = |name: &str| name.starts_with(&format!("{own}.")) && name.ends_with("-future");
    let all = ["a", "b"].into_iter();
    let lies = all.clone().filter(|dir| holds(dir, &|name| name == own));
    let comes = all.filter(|dir| holds(dir, &copy));
    (lies.collect(), comes.collect())
}

#[test]
fn a_replica_moves_to_another_directory_and_says_why_it_does_not() {
    let home = Home::new();
    // So slow that a move is seen, and given up, before it is done.
    let mut broker = home.start(&[
        "replica.alter.log.dirs.io.max.bytes.per.second=20000",
        "log.segment.delete.delay.ms=0",
    ]);
    let mut client = Client::connect(broker.address);
    client.create_topic("t", 2, &[]);
    let (from, to) = match places(&home, "t", 0).0[0] {
        "a" => ("a", "b"),
        _ => ("b", "a"),
    };
    let value = [7; 100_000];
    for at in 0..60 {
        assert_eq!(client.produce("t", 0, &value), Ok(at));
    }
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let (there, back) = (path(to), path(from));
    for (topic, partition, dir, told) in [
        ("t", 0, "/nowhere", ErrorCode::LOG_DIR_NOT_FOUND),
        ("u", 0, &*there, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 9, &*there, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, &*back, ErrorCode::NONE),
        ("t", 0, &*there, ErrorCode::NONE),
    ] {
        assert_eq!(client.alter_log_dir(topic, partition, dir), told, "{dir}");
    }
    // Seen on its way, and given up.
    until("the copy has begun", || {
        places(&home, "t", 0) == (vec![from], vec![to])
    });
    let lag = client.future_lag("t", 0);
    assert!(lag.is_some_and(|lag| lag > 0), "{lag:?}");
    assert_eq!(client.alter_log_dir("t", 0, &back), ErrorCode::NONE);
    assert_eq!(places(&home, "t", 0), (vec![from], vec![]));
    assert_eq!(client.future_lag("t", 0), None);
    // Over a kill and an orderly stop, both in the middle of it.
    assert_eq!(client.alter_log_dir("t", 0, &there), ErrorCode::NONE);
    for kill in [true, false] {
        until("the copy has begun", || {
            places(&home, "t", 0) == (vec![from], vec![to])
        });
        match kill {
            true => broker.kill(),
            false => broker.stop(),
        }
        broker.restart();
        client = Client::connect(broker.address);
        assert_eq!(client.produce("t", 0, b"more"), Ok(60 + i64::from(!kill)));
    }
    until("the copy goes on", || client.future_lag("t", 0).is_some());
    client.set_broker(
        1,
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "100000000",
    );
    until("it has moved", || {
        places(&home, "t", 0) == (vec![to], vec![])
    });
    assert_eq!(client.produce("t", 0, b"there"), Ok(62));
    assert_eq!(client.read_all("t", 0).len(), 63);
    broker.kill();
    broker.restart();
    let mut client = Client::connect(broker.address);
    assert_eq!(client.read_all("t", 0).len(), 63);
    assert_eq!(places(&home, "t", 0), (vec![to], vec![]));
}

#[test]
fn nothing_is_lost_of_what_is_written_while_replicas_move_and_the_broker_is_killed() {
    let home = Home::new();
    let port = support::fixed_port();
    let listeners = format!("listeners=PLAINTEXT://127.0.0.1:{port}");
    let mut broker = home.start(&[&listeners, "log.segment.delete.delay.ms=0"]);
    Client::connect(broker.address).create_topic("t", 3, &[]);
    let load = support::load::Load::slow(&broker.bootstrap(), "t", 3);
    let mut moved = 0;
    let sent = load.run(|| {
        for round in 0..8 {
            let mut client = Client::connect(broker.address);
            let before: Vec<_> = (0..3).map(|index| places(&home, "t", index).0).collect();
            for (index, lies) in before.iter().enumerate() {
                let to = if lies == &["a"] { "b" } else { "a" };
                let dir = home.path(to).to_str().unwrap().to_owned();
                let told = client.alter_log_dir("t", index as i32, &dir);
                assert_eq!(told, ErrorCode::NONE);
            }
            if round % 2 == 0 {
                // Anywhere within the moves.
                std::thread::sleep(Duration::from_millis(fastrand::u64(..150)));
                broker.kill();
                broker.restart();
            }
            until("all have moved", || {
                (0..3).all(|index| {
                    let (lies, comes) = places(&home, "t", index as i32);
                    lies.len() == 1 && comes.is_empty() && lies != before[index]
                })
            });
            moved += 3;
            load.goes_on(load.done());
        }
    });
    load.verify(&broker.bootstrap(), sent);
    println!("{sent} records over {moved} moves");
    broker.stop();
}
