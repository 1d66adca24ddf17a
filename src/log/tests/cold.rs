//! Reading what is not in memory: pieces read ahead, their bound, and what may not be served from
//! them.

use super::*;
use crate::log::read_ahead::PIECE_BYTES;

/// Written past the page cache, so that every read of it goes to the device.
fn cold_segments(segment_bytes: u32) -> LogConfig {
    LogConfig {
        segment_io: SegmentIo::Direct,
        segment_bytes,
        ..LogConfig::default()
    }
}

fn limits(read_ahead_bytes: u64) -> ShardLimits {
    ShardLimits {
        recent_batch_bytes: 0,
        read_ahead_bytes,
        ..ShardLimits::default()
    }
}

/// Appends `count` batches of 10 kB, each with contents of its own.
async fn fill(log: &Log, from: usize, count: usize) {
    for at in from..from + count {
        let mut builder = BatchBuilder::new();
        let value = vec![at as u8; 10_000 + at % 97];
        builder
            .append(NOW_MS + at as i64, None, Some(&value), &[])
            .unwrap();
        log.append_as_leader(builder.build().unwrap(), as_leader())
            .unwrap();
    }
    log.wait_counted(log.log_end()).await.unwrap();
}

/// Reads in order like a consumer and checks each record; the number of reads it took.
async fn consume(log: &Log, from: i64, max_bytes: u64) -> usize {
    let (mut next, mut reads) = (from, 0);
    while Offset(next) < log.log_end() {
        let outcome = log
            .read(Offset(next), log.log_end(), max_bytes, true)
            .await
            .unwrap();
        for batch in batches(&outcome) {
            batch.check_crc().unwrap();
            assert_eq!(batch.base_offset(), Offset(next));
            assert_eq!(batch.body()[100], next as u8);
            next += 1;
        }
        assert_eq!(outcome.upper_bound, Offset(next));
        reads += 1;
        // As a client's round trip would.
        crate::rt::yield_now().await;
    }
    reads
}

#[test]
fn a_reader_of_old_segments_is_fed_by_pieces_and_no_byte_is_read_twice() {
    on_shard(|dir| async move {
        let shard = LogShard::new(limits(64 << 20));
        let (log, _) = open(&shard, &dir, cold_segments(3 << 20)).await;
        fill(&log, 0, 1200).await;
        for (runs, max_bytes) in [100_000, 300_000, 1 << 20, 50 << 20]
            .into_iter()
            .enumerate()
        {
            let before = shard.read_ahead_stats();
            consume(&log, 0, max_bytes).await;
            let after = shard.read_ahead_stats();
            assert!(after.lone_reads <= before.lone_reads + 1, "{after:?}");
            // The pieces of the last run may still be there.
            let pieces = (after.pieces - before.pieces) as usize;
            let most = log.size_bytes() as usize / PIECE_BYTES + 2 * log.segment_count();
            assert!(pieces <= most, "{pieces} pieces of at most {most}");
            assert!(runs > 0 || pieces * PIECE_BYTES + (1 << 20) >= log.size_bytes() as usize);
        }
        assert_eq!(shard.read_ahead_stats().declined, 0);
    });
}

#[test]
fn readers_of_one_partition_share_pieces() {
    on_shard(|dir| async move {
        let shard = LogShard::new(limits(64 << 20));
        let (log, _) = open(&shard, &dir, cold_segments(1 << 30)).await;
        fill(&log, 0, 1000).await;
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                let log = log.clone();
                crate::rt::spawn(async move { consume(&log, 20 * reader, 400_000).await })
            })
            .collect();
        for reader in readers {
            reader.await;
        }
        let stats = shard.read_ahead_stats();
        assert!(stats.lone_reads <= 4, "{stats:?}");
        let alone = log.size_bytes() / PIECE_BYTES as u64 + 2;
        // Each may begin with a piece of its own before it meets the others'.
        assert!(stats.pieces <= alone + 4, "{stats:?}, one reader: {alone}");
    });
}

#[test]
fn the_memory_for_pieces_is_bounded_and_reads_go_on_without() {
    on_shard(|dir| async move {
        for limit in [0, 3 << 20] {
            let shard = LogShard::new(limits(limit));
            let mut logs = Vec::new();
            for at in 0..4 {
                let dir = dir.join(format!("{limit}-{at}"));
                std::fs::create_dir(&dir).unwrap();
                let (log, _) = open(&shard, &dir, cold_segments(1 << 30)).await;
                fill(&log, 0, 300).await;
                logs.push(log);
            }
            let readers: Vec<_> = logs
                .iter()
                .map(|log| {
                    let log = log.clone();
                    crate::rt::spawn(async move { consume(&log, 0, 200_000).await })
                })
                .collect();
            let watch_shard = shard.clone();
            let watch = crate::rt::spawn(async move {
                let mut most = 0;
                for _ in 0..200 {
                    most = most.max(watch_shard.read_ahead_stats().bytes);
                    crate::rt::yield_now().await;
                }
                most
            });
            for reader in readers {
                reader.await;
            }
            assert!(watch.await <= limit);
            let stats = shard.read_ahead_stats();
            assert!(stats.declined > 0 && stats.lone_reads > 4, "{stats:?}");
            assert_eq!(stats.pieces == 0, limit == 0, "{stats:?}");
        }
    });
}

#[test]
fn what_a_cut_replaced_is_not_served_from_a_piece() {
    on_shard(|dir| async move {
        let shard = LogShard::new(limits(64 << 20));
        let (log, _) = open(&shard, &dir, cold_segments(1 << 30)).await;
        fill(&log, 0, 300).await;
        consume(&log, 0, 100_000).await;
        assert!(shard.read_ahead_stats().bytes > 0);
        log.truncate_to(Offset(150)).await.unwrap();
        for at in 0..100 {
            let bytes = batch_of(&[NOW_MS + at], 9_000 + at as usize);
            log.append_as_leader(bytes, as_leader()).unwrap();
        }
        log.wait_counted(log.log_end()).await.unwrap();
        let want: Vec<(i64, i64)> = (0..250).map(|at| (at, at)).collect();
        assert_eq!(read_all(&log, Offset(0)).await, want);
        let read = log.read(Offset(150), log.log_end(), 1, true).await.unwrap();
        assert_eq!(batches(&read)[0].total_size(), batch_of(&[0], 9_000).len());
    });
}

#[test]
fn a_batch_larger_than_a_piece_is_read_whole_also_when_it_is_cold() {
    on_shard(|dir| async move {
        let shard = LogShard::new(limits(8 << 20));
        let config = LogConfig {
            max_message_bytes: 16 << 20,
            ..cold_segments(1 << 30)
        };
        let (log, _) = open(&shard, &dir, config).await;
        let mut want = Vec::new();
        for size in [10, 3 << 20, 500_000, 5 << 20, 20, 2 << 20] {
            let appended = append(&log, 1, size);
            want.push((appended.first_offset.0, appended.last_offset.0));
        }
        log.wait_counted(log.log_end()).await.unwrap();
        assert_eq!(read_all(&log, Offset(0)).await, want);
        let cut = log
            .read(Offset(1), log.log_end(), 1000, false)
            .await
            .unwrap();
        assert!(cut.records.is_empty());
    });
}
