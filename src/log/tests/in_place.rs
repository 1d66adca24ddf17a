//! Reading in place: what is named is what a read returns, and only what may be.

use super::*;

/// What readers of different appetites get, each in order: where every answer ended, and how many
/// of them were ranges of a file.
async fn walk(
    log: &Log,
    upper: Offset,
    settled: Offset,
    max_bytes: u64,
) -> (Vec<(i64, i64)>, usize) {
    let (mut found, mut in_place) = (Vec::new(), 0);
    let mut next = Offset::ZERO;
    while next < upper {
        let named = log
            .read_in_place(next, upper, settled, max_bytes)
            .await
            .unwrap();
        let outcome = match named {
            Some(outcome) => {
                in_place += 1;
                assert!(outcome.records.len() as u64 <= max_bytes);
                let range = outcome.records.file().unwrap().len();
                let outcome = fetched(outcome).await;
                let named = Records::from(outcome.records.to_bytes().slice(..range));
                let named = ReadOutcome {
                    records: named,
                    ..outcome.clone()
                };
                for batch in batches(&named) {
                    assert!(batch.last_offset() < settled);
                }
                outcome
            }
            None => log.read(next, upper, max_bytes, true).await.unwrap(),
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
        assert!(outcome.upper_bound <= upper);
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

async fn filled(
    shard: &Rc<LogShard>,
    dir: &Path,
    batches: usize,
    records: usize,
    value_bytes: usize,
) -> Rc<Log> {
    let (log, _) = open(shard, dir, LogConfig::default()).await;
    for _ in 0..batches {
        append(&log, records, value_bytes);
    }
    log.wait_counted(log.log_end()).await.unwrap();
    log
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
            let (found, in_place) = walk(&log, log.log_end(), log.log_end(), max_bytes).await;
            assert_eq!(found, want, "at most {max_bytes}");
            assert!(in_place > 0, "at most {max_bytes}");
        }
    });
}

#[test]
fn nothing_that_may_still_be_cut_off_is_named() {
    on_shard(|dir| async move {
        let shard = LogShard::new(limits(0));
        let log = filled(&shard, &dir, 300, 2, 2_000).await;
        for settled in [0, 60, 150, 299, 300, 598] {
            let (found, in_place) = walk(&log, Offset(settled), log.log_end(), 1 << 20).await;
            // A batch of two that begins below and ends above is not there either.
            let last = (settled > 0).then(|| (settled / 2 * 2 - 2, settled / 2 * 2 - 1));
            assert_eq!(found.last(), last.as_ref());
            let (found, named) = walk(&log, log.log_end(), Offset(settled), 1 << 20).await;
            assert_eq!((found.len(), named), (300, in_place), "{settled}");
        }
    });
}

#[test]
fn a_range_is_answered_along_with_the_recent_batches_behind_it() {
    on_shard(|dir| async move {
        let shard = LogShard::new(limits(300_000));
        let log = filled(&shard, &dir, 200, 1, 4_000).await;
        let end = log.log_end();
        for from in [0, 130, 140] {
            // Where no read has ended and nothing is recent, it is read once.
            let (at, settled) = (Offset(from), Offset(180));
            if from == 130 {
                log.read(Offset(0), at, 8 << 20, true).await.unwrap();
            }
            let outcome = log.read_in_place(at, end, settled, 8 << 20).await.unwrap();
            let outcome = outcome.unwrap_or_else(|| panic!("nothing in place from {from}"));
            let named = outcome.records.file().unwrap().len();
            assert!(named < outcome.records.len(), "no recent batch from {from}");
            assert_eq!(outcome.upper_bound, end);
            let batches = batches(&fetched(outcome).await);
            let bases: Vec<i64> = batches.iter().map(|batch| batch.base_offset().0).collect();
            assert_eq!(bases, (from..200).collect::<Vec<i64>>());
        }
    });
}
