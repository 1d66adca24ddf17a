//! Retention against Kafka's rules, said once more and in Kafka's way: three walks from the oldest
//! segment on, one for each reason, each as far as that reason reaches.

use super::*;
use crate::rt;

/// A segment as the rules see it.
#[derive(Clone, Debug)]
struct Fact {
    base: i64,
    end: i64,
    size: u64,
    time: i64,
}

fn facts(log: &Log) -> Vec<Fact> {
    let state = log.state();
    let segments = state.segments.values();
    segments
        .map(|segment| Fact {
            base: segment.base().0,
            end: state.end_of(segment.base()).0,
            size: segment.size(),
            time: segment.retention_timestamp(),
        })
        .collect()
}

/// Bases of what goes (UnifiedLog.deleteOldSegments).
fn expected(log: &Log, config: &LogConfig, now_ms: i64, high_watermark: i64) -> Vec<i64> {
    let mut left = facts(log);
    let start = log.log_start().0;
    let mut gone = Vec::new();
    let mut walk = |left: &mut Vec<Fact>, lets_go: &mut dyn FnMut(&Fact, Option<&Fact>) -> bool| {
        while let Some(first) = left.first().cloned() {
            let is_last = left.len() == 1;
            let below = first.end <= high_watermark;
            if !below || is_last && first.size == 0 || !lets_go(&first, left.get(1)) {
                return;
            }
            gone.push(first.base);
            left.remove(0);
        }
    };
    walk(&mut left, &mut |_, next| {
        next.is_some_and(|next| next.base <= start)
    });
    if config.delete && config.retention_bytes >= 0 {
        let size: u64 = left.iter().map(|fact| fact.size).sum();
        let mut surplus = size as i64 - config.retention_bytes;
        if surplus >= 0 {
            walk(&mut left, &mut |fact, _| {
                let goes = surplus - fact.size as i64 >= 0;
                if goes {
                    surplus -= fact.size as i64;
                }
                goes
            });
        }
    }
    if config.delete && config.retention_ms >= 0 {
        walk(&mut left, &mut |fact, _| {
            now_ms - fact.time > config.retention_ms
        });
    }
    gone
}

#[test]
fn retention_gives_up_what_kafka_would() {
    let mut causes = std::collections::BTreeMap::new();
    for seed in seeds(20) {
        let found = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let told = found.clone();
        on_shard(move |dir| {
            let told = told.clone();
            async move {
                let mut rng = fastrand::Rng::with_seed(seed);
                let config = LogConfig {
                    delete: rng.u32(..5) > 0,
                    retention_ms: [-1, 0, 1000, 60_000][rng.usize(..4)],
                    retention_bytes: [-1, 0, 4000, 20_000][rng.usize(..4)],
                    segment_bytes: rng.u32(1000..5000),
                    ..small_segments()
                };
                let shard = LogShard::new(ShardLimits::default());
                let (log, _) = open(&shard, &dir, config.clone()).await;
                for _ in 0..12 {
                    for _ in 0..rng.usize(1..12) {
                        // Times go back and forth, as producers' clocks do.
                        let time = NOW_MS - rng.i64(0..120_000);
                        let bytes = batch_of(&[time], rng.usize(1..900));
                        log.append_as_leader(bytes, as_leader()).unwrap();
                    }
                    log.flush().await.unwrap();
                    let end = log.log_end().0;
                    let high_watermark = match rng.u32(..3) {
                        0 => rng.i64(log.log_start().0..=end),
                        _ => end,
                    };
                    if rng.u32(..4) == 0 && high_watermark > log.log_start().0 {
                        let to = rng.i64(log.log_start().0..=high_watermark);
                        log.delete_records_to(Offset(to)).unwrap();
                    }
                    let now_ms = NOW_MS + rng.i64(0..2000);
                    let want = expected(&log, &config, now_ms, high_watermark);
                    let before = facts(&log);
                    let report = log.apply_retention(now_ms, Offset(high_watermark));
                    let bases: Vec<i64> = report.deleted.iter().map(|one| one.0.0).collect();
                    assert_eq!(bases, want, "seed {seed}, {config:?}, {before:?}");
                    let mut told = told.lock().unwrap();
                    told.extend(report.deleted.iter().map(|one| format!("{:?}", one.2)));
                }
            }
        });
        for cause in found.lock().unwrap().drain(..) {
            *causes.entry(cause).or_insert(0) += 1;
        }
    }
    assert!(causes.len() == 3, "{causes:?}");
}

#[test]
fn an_empty_segment_that_kafkas_compaction_left_does_not_end_retention() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let config = LogConfig {
            retention_ms: 1000,
            ..small_segments()
        };
        let (log, _) = open(&shard, &dir, config.clone()).await;
        for _ in 0..100 {
            append(&log, 2, 100);
        }
        log.close().await.unwrap();
        // All its records had gone.
        for kind in ["log", "index", "timeindex"] {
            std::fs::write(&files(&log, kind)[0], b"").unwrap();
        }
        let mut reopen = open_of(&dir, config.clone());
        reopen.clean_shutdown = true;
        let (log, _) = Log::open(&shard, reopen).await.unwrap();
        let (now_ms, end) = (rt::wall_ms() + 60_000, log.log_end().0);
        let want = expected(&log, &config, now_ms, end);
        assert!(want.len() > 3 && want[0] == 0);
        let report = log.apply_retention(now_ms, Offset(end));
        let bases: Vec<i64> = report.deleted.iter().map(|one| one.0.0).collect();
        assert_eq!(bases, want);
    });
}
