//! The logs of a shard together, and their directory.

use super::*;
use crate::log::checkpoint::OffsetMap;
use crate::log::dir::{CleanShutdown, DirError, LogDir, MetaProperties};
use crate::log::names::PartitionDir;
use crate::types::NodeId;
use std::time::{Duration, Instant};

fn open_partition(dir: &Path, partition: i32) -> LogOpen {
    LogOpen {
        partition,
        ..open_of(dir, small_segments())
    }
}

#[test]
fn a_directory_is_stopped_cleanly_and_found_as_it_was_left() {
    on_shard(|dir| async move {
        let log_dir = Rc::new(LogDir::lock(&dir).await.unwrap());
        assert!(matches!(
            LogDir::lock(&dir).await,
            Err(DirError::Locked { .. })
        ));
        assert_eq!(log_dir.read_meta().await.unwrap(), None);
        let meta = MetaProperties::generate("cluster".into(), NodeId(4));
        log_dir.write_meta(&meta).await.unwrap();
        assert_eq!(log_dir.take_clean_marker().await.unwrap(), None);
        let shard = LogShard::new(ShardLimits::default());
        let manager = LogManager::new(shard, ManagerSettings::default(), |_, _| {});
        let opens = (0..5)
            .map(|partition| open_partition(&dir, partition))
            .collect();
        for opened in manager.open_all(opens).await {
            let (log, _) = opened.unwrap();
            for _ in 0..=log.partition() {
                append(&log, 2, 300);
            }
        }
        manager
            .get("orders", 4)
            .unwrap()
            .delete_records_to(Offset(3))
            .unwrap();
        for log in manager.logs() {
            log.flush().await.unwrap();
        }
        let logs = manager.logs();
        let facts = logs.iter().map(|log| log.checkpoint_facts());
        log_dir.write_log_checkpoints(facts).await.unwrap();
        let marks: OffsetMap = logs
            .iter()
            .map(|log| ((log.topic().to_owned(), log.partition()), log.log_end()))
            .collect();
        log_dir.write_high_watermarks(&marks).await.unwrap();
        let closed = manager.close_all().await;
        assert!(closed[&dir].is_ok());
        log_dir.write_clean_marker(17).await.unwrap();
        drop((logs, manager));
        drop(log_dir);

        let log_dir = LogDir::lock(&dir).await.unwrap();
        assert_eq!(log_dir.read_meta().await.unwrap(), Some(meta));
        let marker = log_dir.take_clean_marker().await.unwrap();
        assert_eq!(
            marker,
            Some(CleanShutdown {
                broker_epoch: Some(17)
            })
        );
        assert_eq!(
            log_dir.take_clean_marker().await.unwrap(),
            None,
            "gone before logs are opened"
        );
        let found = log_dir.read_checkpoints().await.unwrap();
        assert_eq!(found.recovery_point[&("orders".to_owned(), 4)], Offset(10));
        assert_eq!(found.high_watermark[&("orders".to_owned(), 0)], Offset(2));
        assert_eq!(
            found.log_start.len(),
            1,
            "only logs that start inside a segment are listed"
        );
        assert_eq!(found.log_start[&("orders".to_owned(), 4)], Offset(3));
        let partitions = log_dir.partitions().await.unwrap();
        assert_eq!(partitions.len(), 5);
        let want = PartitionDir::Live {
            topic: "orders".into(),
            partition: 0,
        };
        assert_eq!(partitions[0].1, want);
        assert_eq!(
            log_dir
                .topic_ids_of(&["orders-0".to_owned()])
                .await
                .unwrap()[0],
            Some(Uuid::from_halves(7, 7))
        );
        let stray = log_dir.make_stray("orders", 0).await.unwrap();
        assert!(stray.ends_with("-stray") && dir.join(stray).is_dir());
    });
}

#[test]
fn a_deleted_partition_is_renamed_at_once_and_removed_later() {
    on_shard(|dir| async move {
        let log_dir = LogDir::lock(&dir).await.unwrap();
        let shard = LogShard::new(ShardLimits::default());
        let manager = LogManager::new(shard, ManagerSettings::default(), |_, _| {});
        let mut open = open_partition(&dir, 0);
        open.config.file_delete_delay_ms = 2000;
        let (log, _) = manager.open(open).await.unwrap();
        append(&log, 1, 10);
        manager.delete("orders", 0).await.unwrap();
        assert!(manager.get("orders", 0).is_none());
        let left = log_dir.partitions().await.unwrap();
        assert_eq!(
            left.iter().map(|d| d.1.clone()).collect::<Vec<_>>(),
            vec![PartitionDir::Delete]
        );
        let deadline = Instant::now() + Duration::from_secs(60);
        while !log_dir.partitions().await.unwrap().is_empty() {
            assert!(Instant::now() < deadline, "it never went");
            crate::rt::sleep(Duration::from_millis(20)).await;
        }
        // What a stop left behind goes at the next start.
        std::fs::create_dir(dir.join(format!("x-0.{}-delete", "0f".repeat(16)))).unwrap();
        assert_eq!(log_dir.remove_doomed().await.unwrap(), 1);
    });
}

#[test]
fn a_failed_directory_takes_all_its_logs_offline_and_is_reported_once() {
    on_shard(|dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let told = Rc::new(std::cell::Cell::new(0));
        let count = told.clone();
        let manager = LogManager::new(shard, ManagerSettings::default(), move |_, _| {
            count.set(count.get() + 1)
        });
        let (first, _) = manager.open(open_partition(&dir, 0)).await.unwrap();
        let (second, _) = manager.open(open_partition(&dir, 1)).await.unwrap();
        append(&first, 1, 10);
        // The directory vanishes under the log; the next segment cannot be made.
        std::fs::remove_dir_all(&dir).unwrap();
        first.roll(NOW_MS);
        let refused = first.append_as_leader(batch_of(&[NOW_MS], 10), as_leader());
        let lost = refused.unwrap().last_offset.next();
        assert!(matches!(
            first.wait_counted(lost).await,
            Err(LogError::Offline(_))
        ));
        assert!(first.is_offline() && second.is_offline());
        assert_eq!(told.get(), 1);
        let error = second
            .append_as_leader(batch_of(&[NOW_MS], 10), as_leader())
            .unwrap_err();
        assert_eq!(error.code, crate::wire::ErrorCode::KAFKA_STORAGE_ERROR);
        assert!(matches!(first.flush().await, Err(LogError::Offline(_))));
        let closed = manager.close_all().await;
        assert!(closed.values().all(|outcome| outcome.is_err()));
    });
}
