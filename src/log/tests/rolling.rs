//! When an active segment makes room for the next one, as Kafka does it.

use super::*;
use crate::log::segment::{BatchExtent, Incoming, Segment};

const HOUR_MS: i64 = 3_600_000;

fn batch(base: i64, max_timestamp: i64, size: u32) -> BatchExtent {
    BatchExtent {
        base: Offset(base),
        last: Offset(base),
        max_timestamp,
        size,
    }
}

fn incoming(offset: i64, max_timestamp: i64, size: u64) -> Incoming {
    Incoming {
        size,
        last: Offset(offset),
        max_timestamp,
    }
}

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 1000,
        segment_ms: HOUR_MS,
        ..LogConfig::default()
    }
}

#[test]
fn a_segment_rolls_before_it_is_larger_than_segment_bytes() {
    let segment = Segment::create(Offset(0), NOW_MS, 0, &config());
    segment.append(&batch(0, NOW_MS, 600), 4096);
    let rolls = |size| segment.should_roll(&incoming(1, NOW_MS, size), &config(), NOW_MS);
    assert!(!rolls(400) && rolls(401));
}

#[test]
fn a_segment_rolls_by_the_times_of_its_records_less_the_jitter() {
    let segment = Segment::create(Offset(0), NOW_MS, 1000, &config());
    // However long it has been empty.
    let late = NOW_MS + 10 * HOUR_MS;
    assert!(!segment.should_roll(&incoming(0, NOW_MS, 10), &config(), late));
    segment.append(&batch(0, NOW_MS, 10), 4096);
    // By what the records say, not by the clock.
    let rolls = |stamp| segment.should_roll(&incoming(1, stamp, 10), &config(), NOW_MS);
    let bound = NOW_MS + HOUR_MS - 1000;
    assert!(!rolls(bound) && rolls(bound + 1));
    // By the clock where they say nothing.
    let untimed = Segment::create(Offset(0), NOW_MS, 0, &config());
    untimed.append(&batch(0, -1, 10), 4096);
    let rolls = |now| untimed.should_roll(&incoming(1, -1, 10), &config(), now);
    assert!(!rolls(NOW_MS + HOUR_MS) && rolls(NOW_MS + HOUR_MS + 1));
}

#[test]
fn a_segment_rolls_when_an_index_is_full() {
    let config = LogConfig {
        segment_bytes: 1 << 30,
        // Five entries of the offset index; three of the time index, one of which closes it.
        segment_index_bytes: 40,
        ..config()
    };
    for (stamps_grow, entries) in [(false, 5), (true, 2)] {
        let segment = Segment::create(Offset(0), NOW_MS, 0, &config);
        let stamp = |at: i64| if stamps_grow { NOW_MS + at } else { NOW_MS };
        let mut appended = 0;
        while !segment.should_roll(&incoming(appended, stamp(appended), 10), &config, NOW_MS) {
            segment.append(&batch(appended, stamp(appended), 10), 0);
            appended += 1;
        }
        // The first batch gets no entry.
        assert_eq!(appended, entries + 1, "{stamps_grow}");
    }
}

#[test]
fn a_segment_rolls_before_an_offset_that_its_index_cannot_name() {
    let segment = Segment::create(Offset(7), NOW_MS, 0, &config());
    segment.append(&batch(7, NOW_MS, 10), 4096);
    let rolls = |offset| segment.should_roll(&incoming(offset, NOW_MS, 10), &config(), NOW_MS);
    let last = 7 + i64::from(i32::MAX);
    assert!(!rolls(last) && rolls(last + 1));
}

#[test]
fn the_jitter_is_below_its_bound_and_not_always_the_same() {
    on_shard(|_| async move {
        let config = LogConfig {
            segment_jitter_ms: 1000,
            ..config()
        };
        let drawn: Vec<i64> = (0..100)
            .map(|_| crate::log::open::draw_jitter(&config))
            .collect();
        assert!(drawn.iter().all(|jitter| (0..1000).contains(jitter)));
        assert!(drawn.iter().any(|jitter| *jitter != drawn[0]));
    });
}
