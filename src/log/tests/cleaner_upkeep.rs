//! The cleaner as a manager runs it: in the background, at its rate, past damage, over restarts.

use std::time::Duration;

use super::cleaning::*;
use super::*;
use crate::log::cleaner::{Cleaner, CleanerSettings};
use crate::wire::batch_builder::end_txn_marker;

#[test]
fn a_manager_cleans_in_the_background_and_stops_before_it_closes() {
    in_world(9, |dir| async move {
        let settings = ManagerSettings {
            cleaner: CleanerSettings {
                backoff: Duration::from_millis(200),
                ..CleanerSettings::default()
            },
            ..ManagerSettings::default()
        };
        let shard = shard();
        let manager = LogManager::new(shard, settings, |_, _| {});
        let config = LogConfig {
            min_cleanable_dirty_ratio: 0.5,
            ..compacted()
        };
        let (log, _) = manager.open(open_of(&dir, config)).await.unwrap();
        manager.start(Rc::new(|log| log.counted()));
        for round in 0..60u8 {
            produce(&log, &[(b"a", Some(&[round; 150]))]);
        }
        settle(&log).await;
        crate::rt::sleep(Duration::from_secs(2)).await;
        let stats = manager.cleaner().stats();
        assert_eq!(stats.passes, 1, "once, then nothing is dirty: {stats:?}");
        assert!(stats.bytes_read > stats.bytes_written && stats.bytes_written > 0);
        assert!(stats.recopy_percent() > 0.0 && stats.recopy_percent() < 50.0);
        assert_eq!(read_records(&log).await.len(), 1);
        let closed = manager.close_all().await;
        assert!(closed.values().all(Result::is_ok));
    });
}

#[test]
fn a_damaged_log_is_left_alone_and_counted() {
    in_world(10, |dir| async move {
        let log = versions(&dir, compacted(), 40).await;
        let path = dir.join("orders-3/00000000000000000000.log");
        let file = crate::rt::fs::File::open(&path, crate::rt::fs::OpenOptions::READ_WRITE);
        let file = file.await.unwrap();
        file.write_all_at(100, vec![Bytes::from_static(b"rot")])
            .await
            .unwrap();
        let cleaner = cleaner();
        assert!(!clean(&cleaner, &log).await);
        assert!(cleaner.is_uncleanable(&log) && !log.is_offline());
        assert!(!clean(&cleaner, &log).await);
        let stats = cleaner.stats();
        assert_eq!(stats.uncleanable_partitions, 1);
        assert!(stats.uncleanable_bytes > 0 && stats.passes == 0);
        let names = names_in(&dir).await;
        assert!(
            !names.iter().any(|name| name.ends_with(".cleaned")),
            "{names:?}"
        );
    });
}

#[test]
fn a_pass_keeps_to_its_rate() {
    in_world(11, |dir| async move {
        let log = versions(&dir, compacted(), 40).await;
        let bytes = log.size_bytes();
        let slow = Cleaner::new(CleanerSettings {
            io_bytes_per_second: bytes as f64,
            ..CleanerSettings::default()
        });
        let begun = crate::rt::now();
        assert!(clean(&slow, &log).await);
        // Read for the map, read again, and a little written: a second each.
        let took = crate::rt::now().since(begun);
        assert!(took > Duration::from_millis(1900), "{took:?}");
        assert!(took < Duration::from_secs(4), "{took:?}");
    });
}

#[test]
fn a_stopped_cleaner_does_not_wait_for_its_rate() {
    in_world(12, |dir| async move {
        let log = versions(&dir, compacted(), 40).await;
        let slow = Rc::new(Cleaner::new(CleanerSettings {
            io_bytes_per_second: 1.0,
            ..CleanerSettings::default()
        }));
        let (running, cleaned) = (slow.clone(), log.clone());
        let pass = crate::rt::spawn(async move { clean(&running, &cleaned).await });
        crate::rt::sleep(Duration::from_millis(10)).await;
        let begun = crate::rt::now();
        slow.stop().await;
        assert!(crate::rt::now().since(begun) < Duration::from_secs(1));
        assert!(!pass.await && !clean(&slow, &log).await);
    });
}

#[test]
fn nothing_past_the_high_watermark_or_an_open_transaction_is_cleaned() {
    in_world(13, |dir| async move {
        let log = versions(&dir, compacted(), 20).await;
        let mut builder = BatchBuilder::new().with_producer(2, 0, 0);
        builder.transactional = true;
        builder.append(NOW_MS, Some(b"a"), Some(b"t"), &[]).unwrap();
        let open = append_bytes(&log, builder.build().unwrap(), Origin::Client);
        for round in 0..20 {
            produce(&log, &[(b"a", Some(&[round; 150]))]);
        }
        settle(&log).await;
        let cleaner = cleaner();
        let logs = [log.clone()];
        let none = cleaner.clean_dirtiest(&logs, &|_| Offset(0)).await;
        assert!(none.is_none());
        assert!(clean(&cleaner, &log).await);
        assert!(log.first_dirty() <= Some(open.first_offset));
        let offsets: Vec<i64> = read_records(&log).await.iter().map(|s| s.offset).collect();
        let past: Vec<i64> = (open.first_offset.0..log.log_end().0).collect();
        assert!(offsets.ends_with(&past));
        append_bytes(
            &log,
            end_txn_marker(2, 0, true, 0, NOW_MS).unwrap(),
            Origin::Coordinator,
        );
        assert!(clean(&cleaner, &log).await);
        assert!(log.first_dirty() > Some(open.first_offset));
    });
}

#[test]
fn a_compacted_log_rolls_in_time_for_its_longest_lag() {
    let config = LogConfig {
        max_compaction_lag_ms: 1000,
        ..compacted()
    };
    assert_eq!(config.roll_after_ms(0), 1000);
    let plain = LogConfig {
        compact: false,
        ..config
    };
    assert_eq!(plain.roll_after_ms(0), plain.segment_ms);
}

#[test]
fn the_longest_lag_forces_a_pass_also_after_a_restart() {
    in_world(14, |dir| async move {
        let config = LogConfig {
            min_cleanable_dirty_ratio: 0.99,
            max_compaction_lag_ms: 60_000,
            ..compacted()
        };
        let log = versions(&dir, config.clone(), 40).await;
        log.set_first_dirty(Offset(50));
        log.close().await.unwrap();
        let shard = shard();
        let mut open = open_of(&dir, config);
        open.clean_shutdown = true;
        let (log, _) = Log::open(&shard, open).await.unwrap();
        log.set_first_dirty(Offset(50));
        let cleaner = cleaner();
        assert!(!clean(&cleaner, &log).await, "the dirty share is small");
        crate::rt::sleep(Duration::from_secs(61)).await;
        assert!(clean(&cleaner, &log).await);
        assert!(cleaner.stats().max_overdue > Duration::ZERO);
    });
}

#[test]
fn the_cleaner_checkpoint_of_a_directory_has_kafkas_form_and_is_read_at_start() {
    in_world(15, |dir| async move {
        let log_dir = crate::log::dir::LogDir::lock(&dir).await.unwrap();
        let log = versions(&dir, compacted(), 40).await;
        log_dir
            .write_log_checkpoints([log.checkpoint_facts()])
            .await
            .unwrap();
        let path = dir.join(crate::log::checkpoint::CLEANER);
        assert_eq!(&crate::rt::fs::read(&path).await.unwrap()[..], b"0\n0\n");
        assert!(clean(&cleaner(), &log).await);
        let first_dirty = log.first_dirty().unwrap();
        log_dir
            .write_log_checkpoints([log.checkpoint_facts()])
            .await
            .unwrap();
        let text = crate::rt::fs::read(&path).await.unwrap();
        assert_eq!(
            &text[..],
            format!("0\n1\norders 3 {first_dirty}\n").as_bytes()
        );
        let read = log_dir.read_checkpoints().await.unwrap();
        assert_eq!(read.cleaner[&("orders".to_owned(), 3)], first_dirty);
    });
}

#[test]
fn a_cleaned_log_recovers_under_any_policy_as_if_nothing_were_missing() {
    in_world(16, |dir| async move {
        let log = versions(&dir, compacted(), 60).await;
        assert!(clean(&cleaner(), &log).await);
        let (before, end) = (read_records(&log).await, log.log_end());
        let segments = log.segment_count();
        log.close().await.unwrap();
        // The recovery point is lost, and the topic is not compacted any more.
        let shard = shard();
        let config = LogConfig {
            compact: false,
            delete: true,
            ..compacted()
        };
        let (log, report) = Log::open(&shard, open_of(&dir, config)).await.unwrap();
        assert_eq!(report.segments_checked, segments);
        assert!(report.segments_deleted.is_empty() && report.cuts.is_empty());
        assert_eq!(log.log_end(), end);
        assert_eq!(read_records(&log).await, before);
    });
}
