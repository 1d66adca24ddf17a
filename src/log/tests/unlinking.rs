//! The space of deleted segments, given back piece by piece.

use std::time::Duration;

use super::cleaning::in_world;
use super::*;
use crate::rt::fs::{File, OpenOptions, exists};

const PIECE: u64 = 512 << 10;

async fn filled(dir: &Path, delay: Duration) -> Rc<Log> {
    let config = LogConfig {
        segment_bytes: 20 << 20,
        file_delete_delay_ms: delay.as_millis() as i64,
        retention_ms: -1,
        ..LogConfig::default()
    };
    let (log, _) = open(&LogShard::new(ShardLimits::default()), dir, config).await;
    for _ in 0..60 {
        append(&log, 1, 900_000);
        log.wait_counted(log.log_end()).await.unwrap();
    }
    assert!(log.segment_count() > 2);
    log
}

/// The lengths that the first segment's file has had since it was doomed, until its name is gone
/// and nothing changes any more.
async fn lengths(log: &Log, delay: Duration) -> Vec<u64> {
    let dir = log.dir();
    let name = dir.join("00000000000000000000.log");
    let file = File::open(&name, OpenOptions::READ).await.unwrap();
    let end = log.log_end();
    log.delete_records_to(Offset(end.0 - 1)).unwrap();
    log.apply_retention(NOW_MS, end);
    let doomed = dir.join("00000000000000000000.log.deleted");
    while !exists(&doomed).await.unwrap() {
        crate::rt::sleep(Duration::from_millis(1)).await;
    }
    let mut seen = vec![file.len().unwrap()];
    let mut gone_for = 0;
    while gone_for < 200 {
        let len = file.len().unwrap();
        if seen.last() != Some(&len) {
            seen.push(len);
        }
        gone_for += u32::from(!exists(&doomed).await.unwrap());
        crate::rt::sleep(Duration::from_millis(1)).await;
        if gone_for == 0 && seen.len() > 1 {
            panic!("cut before its name was gone, {delay:?} after");
        }
    }
    seen
}

#[test]
fn a_deleted_segment_gives_its_space_back_in_pieces_once_its_readers_had_their_time() {
    in_world(1, |dir| async move {
        let delay = Duration::from_secs(60);
        let log = filled(&dir, delay).await;
        let begun = crate::rt::now();
        let seen = lengths(&log, delay).await;
        assert!(crate::rt::now().since(begun) >= delay);
        assert!(seen.len() > 3 && seen[0] > 15 << 20, "{seen:?}");
        for pair in seen.windows(2) {
            assert!(pair[0] - pair[1] <= PIECE, "{seen:?}");
        }
        assert!(*seen.last().unwrap() <= PIECE, "{seen:?}");
    });
}

#[test]
fn without_a_delay_a_reader_keeps_what_it_has_open() {
    in_world(2, |dir| async move {
        let log = filled(&dir, Duration::ZERO).await;
        let file = log.dir().join("00000000000000000000.log");
        let open = File::open(&file, OpenOptions::READ).await.unwrap();
        let (len, end) = (open.len().unwrap(), log.log_end());
        log.delete_records_to(Offset(end.0 - 1)).unwrap();
        log.apply_retention(NOW_MS, end);
        crate::rt::sleep(Duration::from_secs(5)).await;
        assert!(!exists(&file).await.unwrap());
        assert_eq!(open.len().unwrap(), len);
    });
}
