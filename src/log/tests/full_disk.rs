//! A file system that is full, for real. Needs a small one that may be filled:
//! `mount -t tmpfs -o size=8m none DIR; LOG_SMALL_FS=DIR cargo test -- --ignored full`.

use super::*;
use crate::wire::ErrorCode;
use std::time::Duration;

fn small_fs() -> PathBuf {
    let base =
        PathBuf::from(std::env::var("LOG_SMALL_FS").expect("LOG_SMALL_FS names a directory"));
    let dir = base.join("full");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    dir
}

async fn fill_and_go_on(config: LogConfig) {
    let dir = small_fs();
    let shard = LogShard::new(ShardLimits {
        recent_batch_bytes: 0,
        ..ShardLimits::default()
    });
    let (log, _) = open(&shard, &dir, config.clone()).await;
    let mut acknowledged = Vec::new();
    let mut refused = 0;
    for _ in 0..500 {
        match log.append_as_leader(batch_of(&[NOW_MS], 100_000), as_leader()) {
            Ok(appended) => match log.wait_counted(appended.last_offset.next()).await {
                Ok(()) => acknowledged.push((appended.first_offset.0, appended.last_offset.0)),
                Err(_) => refused += 1,
            },
            Err(error) => {
                assert_eq!(error.code, ErrorCode::KAFKA_STORAGE_ERROR);
                refused += 1;
                crate::rt::sleep(Duration::from_millis(1)).await;
            }
        }
        assert!(!log.is_offline(), "{:?}", log.failure());
        if refused > 20 {
            break;
        }
    }
    assert!(
        refused > 20 && acknowledged.len() > 10,
        "{refused} {}",
        acknowledged.len()
    );
    assert_eq!(log.log_end().0, acknowledged.len() as i64);
    assert_eq!(read_all(&log, Offset(0)).await, acknowledged);
    // Space comes back.
    while log
        .apply_retention(NOW_MS + config.retention_ms + 1, Offset(25))
        .deleted
        .is_empty()
    {
        assert!(!log.is_offline(), "{:?}", log.failure());
        crate::rt::sleep(Duration::from_millis(1)).await;
    }
    let start = log.log_start();
    let deadline = crate::rt::now();
    loop {
        if let Ok(appended) = log.append_as_leader(batch_of(&[NOW_MS], 100_000), as_leader())
            && log.wait_counted(appended.last_offset.next()).await.is_ok()
        {
            acknowledged.push((appended.first_offset.0, appended.last_offset.0));
            break;
        }
        assert!(
            deadline.elapsed() < Duration::from_secs(5),
            "the log does not go on: {:?}",
            log.failure()
        );
        crate::rt::sleep(Duration::from_millis(10)).await;
    }
    let want: Vec<(i64, i64)> = acknowledged
        .iter()
        .copied()
        .filter(|batch| batch.0 >= start.0)
        .collect();
    assert_eq!(read_all(&log, start).await, want);
    log.abandon().await;
    let (log, report) = open(&shard, &dir, config).await;
    assert_eq!(report.cuts, vec![]);
    assert_eq!(read_all(&log, log.log_start()).await, want);
    drop(log);
}

fn two_batches_a_segment() -> LogConfig {
    LogConfig {
        segment_bytes: 250_000,
        ..small_segments()
    }
}

#[test]
#[ignore = "needs LOG_SMALL_FS"]
fn a_full_disk_refuses_without_losing_and_goes_on_when_there_is_space() {
    on_shard(|_| fill_and_go_on(two_batches_a_segment()));
}

#[test]
#[ignore = "needs LOG_SMALL_FS"]
fn a_full_disk_with_flushed_acknowledgements_refuses_and_goes_on() {
    on_shard(|_| {
        fill_and_go_on(LogConfig {
            flush_messages: 1,
            ..two_batches_a_segment()
        })
    });
}
