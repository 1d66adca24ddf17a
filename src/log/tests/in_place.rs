//! Reading in place: what is named is what a read returns, and only what may be.

use super::*;

/// What readers of different appetites get, each in order: where every answer ended, and how many
/// of them were ranges of a file.
async fn walk(log: &Log, settled: Offset, max_bytes: u64) -> (Vec<(i64, i64)>, usize) {
    let (mut found, mut in_place) = (Vec::new(), 0);
    let mut next = Offset::ZERO;
    while next < settled {
        let named = log.read_in_place(next, settled, max_bytes).await.unwrap();
        let outcome = match named {
            Some(outcome) => {
                in_place += 1;
                assert!(outcome.records.len() as u64 <= max_bytes);
                fetched(outcome).await
            }
            None => log.read(next, settled, max_bytes, true).await.unwrap(),
        };
        let batches = batches(&outcome);
        if batches.is_empty() {
            // The next batch is not whole below the end.
            break;
        }
        for batch in &batches {
            batch.check_crc().unwrap();
            found.push((batch.base_offset().0, batch.last_offset().0));
        }
        let last = batches.last().map(|batch| batch.last_offset());
        assert_eq!(last.unwrap().next(), outcome.upper_bound);
        assert!(outcome.upper_bound <= settled);
        next = outcome.upper_bound;
    }
    (found, in_place)
}

fn limits(recent_batch_bytes: u64) -> ShardLimits {
    ShardLimits {
        recent_batch_bytes,
        sealed_index_bytes: 0,
        ..ShardLimits::default()
    }
}

#[test]
fn what_is_named_in_place_is_what_a_read_returns() {
    on_shard(|dir| async move {
        let shard = LogShard::new(limits(0));
        let config = LogConfig {
            segment_bytes: 3 << 20,
            ..LogConfig::default()
        };
        let (log, _) = open(&shard, &dir, config).await;
        let mut want = Vec::new();
        for at in 0..900 {
            let appended = append(&log, 1 + at % 3, 3_000 + at % 97);
            want.push((appended.first_offset.0, appended.last_offset.0));
        }
        log.wait_counted(log.log_end()).await.unwrap();
        assert!(log.segment_count() > 1);
        for max_bytes in [70_000, 300_000, 1 << 20, 50 << 20] {
            let (found, in_place) = walk(&log, log.log_end(), max_bytes).await;
            assert_eq!(found, want, "at most {max_bytes}");
            assert!(in_place > 0, "at most {max_bytes}");
        }
    });
}

#[test]
fn nothing_that_may_still_be_cut_off_is_named() {
    on_shard(|dir| async move {
        let shard = LogShard::new(limits(0));
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        for _ in 0..300 {
            append(&log, 2, 2_000);
        }
        log.wait_counted(log.log_end()).await.unwrap();
        for settled in [60, 150, 299, 300, 598] {
            let (found, _) = walk(&log, Offset(settled), 1 << 20).await;
            // A batch of two that begins below and ends above is not there either.
            assert_eq!(found.last(), Some(&(settled / 2 * 2 - 2, settled / 2 * 2 - 1)));
        }
    });
}

#[test]
fn recent_batches_are_not_looked_for_in_the_file() {
    on_shard(|dir| async move {
        let shard = LogShard::new(limits(64 << 20));
        let (log, _) = open(&shard, &dir, LogConfig::default()).await;
        for _ in 0..100 {
            append(&log, 1, 4_000);
        }
        log.wait_counted(log.log_end()).await.unwrap();
        let (found, in_place) = walk(&log, log.log_end(), 1 << 20).await;
        assert_eq!((found.len(), in_place), (100, 0));
    });
}
