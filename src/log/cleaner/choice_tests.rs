//! Which log is cleaned, and how far: one test a rule.

use super::*;

const NOW_MS: i64 = 1_000_000;

/// Segments of 10 offsets and 100 bytes each; the last one is active.
fn log(segments: usize) -> LogFacts {
    let facts = |at: usize| SegmentFacts {
        base: Offset(at as i64 * 10),
        bytes: 100,
        largest_timestamp: NOW_MS - 1000,
        first_timestamp: Some(NOW_MS - 2000),
        settled: true,
    };
    LogFacts {
        segments: (0..segments).map(facts).collect(),
        log_start: Offset(0),
        log_end: Offset(segments as i64 * 10),
        last_stable: Offset(segments as i64 * 10),
        first_dirty: None,
    }
}

fn rules() -> ChoiceRules {
    ChoiceRules {
        min_dirty_ratio: 0.5,
        min_lag_ms: 0,
        max_lag_ms: i64::MAX,
    }
}

fn end(log: &LogFacts) -> i64 {
    cleanable(log, &rules(), NOW_MS).end.0
}

#[test]
fn the_active_segment_is_never_cleaned() {
    let all = cleanable(&log(4), &rules(), NOW_MS);
    assert_eq!((all.first_dirty, all.end), (Offset(0), Offset(30)));
    assert_eq!((all.clean_bytes, all.dirty_bytes), (0, 300));
    let alone = cleanable(&log(1), &rules(), NOW_MS);
    assert_eq!((alone.end, alone.dirty_bytes), (Offset(0), 0));
    assert!(!alone.is_due(&rules()));
}

#[test]
fn nothing_past_an_open_transaction_or_the_high_watermark_is_cleaned() {
    let mut log = log(4);
    log.last_stable = Offset(25);
    assert_eq!(end(&log), 20, "not even the part of a segment before it");
    log.last_stable = Offset(20);
    assert_eq!(end(&log), 20);
    log.last_stable = Offset(0);
    assert_eq!(end(&log), 0);
}

#[test]
fn a_segment_that_is_still_being_written_is_not_cleaned() {
    let mut log = log(4);
    log.segments[1].settled = false;
    assert_eq!(end(&log), 10);
}

#[test]
fn what_is_younger_than_min_compaction_lag_stays() {
    let mut log = log(4);
    log.segments[2].largest_timestamp = NOW_MS - 10;
    let lag = |min_lag_ms| ChoiceRules {
        min_lag_ms,
        ..rules()
    };
    assert_eq!(cleanable(&log, &lag(500), NOW_MS).end, Offset(20));
    assert_eq!(cleanable(&log, &lag(10), NOW_MS).end, Offset(30));
    assert_eq!(cleanable(&log, &lag(0), NOW_MS).end, Offset(30));
    // What is clean already may be young: it was cleaned under another setting.
    log.segments[0].largest_timestamp = NOW_MS;
    log.first_dirty = Some(Offset(10));
    assert_eq!(cleanable(&log, &lag(500), NOW_MS).end, Offset(20));
}

#[test]
fn a_log_is_cleaned_when_its_dirty_share_is_above_the_least() {
    let mut log = log(5);
    log.first_dirty = Some(Offset(20));
    let half = cleanable(&log, &rules(), NOW_MS);
    assert_eq!(half.dirty_ratio(), 0.5);
    assert!(!half.is_due(&rules()), "above, not at");
    log.first_dirty = Some(Offset(10));
    assert!(cleanable(&log, &rules(), NOW_MS).is_due(&rules()));
    let always = ChoiceRules {
        min_dirty_ratio: 0.0,
        ..rules()
    };
    log.first_dirty = Some(Offset(40));
    let clean = cleanable(&log, &always, NOW_MS);
    assert_eq!((clean.clean_bytes, clean.dirty_bytes), (400, 0));
    assert!(!clean.is_due(&always), "nothing to gain");
}

#[test]
fn a_record_that_waited_for_max_compaction_lag_forces_a_pass() {
    let mut log = log(5);
    log.first_dirty = Some(Offset(30));
    let lag = |max_lag_ms| ChoiceRules {
        max_lag_ms,
        ..rules()
    };
    let overdue = cleanable(&log, &lag(1500), NOW_MS);
    assert_eq!(overdue.overdue_ms, 500);
    assert!(overdue.is_due(&lag(1500)));
    assert!(!cleanable(&log, &lag(2000), NOW_MS).is_due(&lag(2000)));
    // Only what is dirty waits.
    log.segments[3].first_timestamp = Some(NOW_MS);
    assert_eq!(cleanable(&log, &lag(1500), NOW_MS).overdue_ms, 0);
    // Forced, but nothing of it may be cleaned.
    log.segments[3].first_timestamp = Some(1);
    log.last_stable = Offset(30);
    let held = cleanable(&log, &lag(1500), NOW_MS);
    assert!(held.overdue_ms > 0 && !held.is_due(&lag(1500)));
}

#[test]
fn a_checkpoint_outside_the_log_makes_all_of_it_dirty() {
    let mut log = log(4);
    log.log_start = Offset(5);
    for (checkpoint, first_dirty) in [(4, 5), (5, 5), (40, 40), (41, 5)] {
        log.first_dirty = Some(Offset(checkpoint));
        let found = cleanable(&log, &rules(), NOW_MS).first_dirty.0;
        assert_eq!(found, first_dirty, "checkpoint {checkpoint}");
    }
}

#[test]
fn a_segment_that_was_cleaned_in_part_is_dirty() {
    let mut log = log(4);
    log.first_dirty = Some(Offset(15));
    let part = cleanable(&log, &rules(), NOW_MS);
    assert_eq!((part.clean_bytes, part.dirty_bytes), (100, 200));
}

#[test]
fn the_dirtiest_log_comes_first() {
    let with = |clean_bytes, dirty_bytes, overdue_ms| Cleanable {
        first_dirty: Offset(0),
        end: Offset(10),
        clean_bytes,
        dirty_bytes,
        overdue_ms,
    };
    let logs = [
        ("small", with(10, 90, 0)),
        ("large", with(4000, 6000, 0)),
        ("clean", with(90, 10, 0)),
        ("forced", with(90, 10, 1)),
    ];
    let choose = |logs: &[(&'static str, Cleanable)]| {
        let all = logs.iter().map(|(name, what)| (name, *what, rules()));
        dirtiest(all).map(|(name, _)| *name)
    };
    assert_eq!(choose(&logs), Some("small"));
    assert_eq!(choose(&logs[1..]), Some("large"));
    assert_eq!(choose(&logs[2..]), Some("forced"));
    assert_eq!(choose(&logs[2..3]), None);
}
