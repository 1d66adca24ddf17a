//! kill -9, again and again, under the load of idempotent producers, in each row of the
//! durability table: every record that was sent is there exactly once, in order, and where its
//! acknowledgement said.
//!
//! `HIGHWATER_KILLS` says how often each row is killed (10).
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;
use support::load::Load;
use support::{Broker, fixed_port};

const PARTITIONS: i32 = 4;

fn survives(settings: &[&str]) {
    let kills: usize = std::env::var("HIGHWATER_KILLS").map_or(10, |text| text.parse().unwrap());
    let listener = format!("listeners=PLAINTEXT://127.0.0.1:{}", fixed_port());
    let partitions = format!("num.partitions={PARTITIONS}");
    let mut all = vec![
        &*listener,
        &*partitions,
        // Many segments, and recovery points on the way.
        "log.segment.bytes=1048576",
        "log.flush.offset.checkpoint.interval.ms=50",
        "replica.high.watermark.checkpoint.interval.ms=50",
        // For the group of the reader.
        "offsets.topic.num.partitions=1",
    ];
    all.extend(settings);
    let mut broker = Broker::start(&all);
    let load = Load::new(&broker.bootstrap(), "t", PARTITIONS);
    let mut at_kills = Vec::new();
    let total = load.run(|| {
        for _ in 0..kills {
            // Every kill falls into a load: the producers have found the broker again.
            load.goes_on(at_kills.last().copied().unwrap_or(0));
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..150)));
            broker.kill();
            at_kills.push(load.done());
            broker.restart();
        }
    });
    println!("{total} sent, acknowledged at each kill: {at_kills:?}");
    load.verify(&broker.bootstrap(), total);
}

#[test]
fn acknowledged_from_the_page_cache() {
    survives(&[]);
}

#[test]
fn acknowledged_after_a_flush() {
    survives(&["log.flush.interval.messages=1"]);
}

#[test]
fn acknowledged_by_direct_writes() {
    survives(&["highwater.segment.io=direct"]);
}

#[test]
fn acknowledged_by_direct_writes_after_a_flush() {
    survives(&[
        "highwater.segment.io=direct",
        "log.flush.interval.messages=1",
    ]);
}
