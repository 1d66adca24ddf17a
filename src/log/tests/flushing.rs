//! `flush.messages` above 1 and `flush.ms`: when a log is flushed, and which acknowledgements wait.

use super::cleaning::in_world;
use super::*;
use crate::rt;
use std::time::Duration;

#[test]
fn the_append_that_reaches_flush_messages_is_acknowledged_by_the_flush() {
    in_world(3, |dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let config = LogConfig {
            flush_messages: 10,
            ..LogConfig::default()
        };
        let (log, _) = open(&shard, &dir, config).await;
        for round in 0..5 {
            let base = 10 * round;
            append(&log, 4, 100);
            log.wait_counted(Offset(base + 4)).await.unwrap();
            assert_eq!(log.durable(), Offset(base));
            append(&log, 6, 100);
            log.writer_idle().await;
            assert_eq!(log.written(), Offset(base + 10));
            assert_eq!(log.counted(), Offset(base + 4));
            log.wait_counted(Offset(base + 10)).await.unwrap();
            assert_eq!(log.durable(), Offset(base + 10));
        }
        assert_eq!(shard.flush_stats().rounds, 5);
        log.close().await.unwrap();
    });
}

#[test]
fn what_is_older_than_flush_ms_is_flushed() {
    in_world(4, |dir| async move {
        let shard = LogShard::new(ShardLimits::default());
        let manager = LogManager::new(shard, ManagerSettings::default(), |_, _| {});
        manager.start(Rc::new(|_| Offset(0)));
        let mut logs = Vec::new();
        for (partition, flush_ms) in [(0, i64::MAX), (1, 3_000)] {
            let config = LogConfig {
                flush_ms,
                ..LogConfig::default()
            };
            let open = LogOpen {
                partition,
                now_ms: rt::wall_ms(),
                ..open_of(&dir, config)
            };
            logs.push(manager.open(open).await.unwrap().0);
        }
        for log in &logs {
            append(log, 1, 100);
        }
        rt::sleep(Duration::from_millis(2_500)).await;
        assert!(logs.iter().all(|log| log.durable() == Offset(0)));
        assert!(logs.iter().all(|log| log.counted() == Offset(1)));
        rt::sleep(Duration::from_millis(3_500)).await;
        let durable: Vec<i64> = logs.iter().map(|log| log.durable().0).collect();
        assert_eq!(durable, [0, 1]);
        manager.close_all().await;
    });
}
