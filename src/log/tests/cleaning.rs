//! Compaction of whole logs in the simulated world, against a plain list of the records that were
//! appended: what may go, what must stay, and what readers see meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::log::cleaner::{Cleaner, CleanerSettings};
use crate::log::producers::{BatchFacts, Producers};
use crate::rt::sim::World;
use crate::wire::batch_builder::end_txn_marker;
use crate::wire::codec::Codec;

/// Runs a test on a shard of a simulated node, with a log directory on its disk.
pub(super) fn in_world<F>(seed: u64, test: impl Fn(PathBuf) -> F + Clone + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let world = World::new(seed);
    let node = world.add_node("broker");
    let done = Rc::new(std::cell::Cell::new(false));
    let ended = done.clone();
    node.start(1, move |executor| {
        let (test, ended) = (test.clone(), ended.clone());
        async move {
            if !executor.is_control() {
                crate::rt::fs::create_dir_all("/data").await.unwrap();
                test(PathBuf::from("/data")).await;
                ended.set(true);
            }
        }
    });
    assert!(world.run_until(Duration::from_secs(3600), || done.get()));
}

/// A shard that flushes segments: these tests close logs, not directories.
pub(super) fn shard() -> Rc<LogShard> {
    LogShard::new(ShardLimits {
        journal_bytes: 0,
        ..ShardLimits::default()
    })
}

pub(super) fn compacted() -> LogConfig {
    LogConfig {
        compact: true,
        delete: false,
        min_cleanable_dirty_ratio: 0.0,
        delete_retention_ms: 1000,
        segment_bytes: 3000,
        ..small_segments()
    }
}

/// A cleaner with small buffers, so that small logs take many pieces.
pub(super) fn cleaner() -> Cleaner {
    Cleaner::new(CleanerSettings {
        io_buffer_bytes: 8 << 10,
        ..CleanerSettings::default()
    })
}

pub(super) async fn open_compacted(dir: &Path, config: LogConfig) -> Rc<Log> {
    let shard = shard();
    let mut open = open_of(dir, config);
    open.producer_limits.verify_transactions = false;
    Log::open(&shard, open).await.unwrap().0
}

/// A record as a reader sees it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub offset: i64,
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub aborted: bool,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.value.as_deref().map(short);
        let key = self.key.as_deref().map(String::from_utf8_lossy);
        write!(f, "{}: {key:?}={value:?}", self.offset)
    }
}

/// A value in so many characters that a failure can be read.
fn short(value: &[u8]) -> String {
    format!("{:?}*{}", value.first(), value.len())
}

/// (base, bytes) of every segment.
pub(super) fn segments_of(log: &Log) -> Vec<(i64, u64)> {
    let state = log.state();
    let segments = state.segments.values();
    segments
        .map(|segment| (segment.base().0, segment.size()))
        .collect()
}

/// Every data record below the log end, as `read_committed` tells the aborted ones apart.
pub(super) async fn read_records(log: &Log) -> Vec<Seen> {
    log.writer_idle().await;
    let end = log.log_end();
    let mut seen = Vec::new();
    let mut next = log.log_start();
    let mut aborted: BTreeSet<i64> = BTreeSet::new();
    while next < end {
        let outcome = log.read(next, end, 700, true).await.unwrap();
        let mut rows = log.aborted_transactions(next, outcome.upper_bound);
        rows.sort_by_key(|row| row.1);
        assert!(
            !outcome.records.is_empty(),
            "nothing at {next} below {end}: {:?}",
            segments_of(log)
        );
        for batch in batches(&outcome) {
            batch.check_crc().unwrap();
            rows.retain(|(id, first)| {
                let begins = *first <= batch.last_offset().0;
                if begins {
                    aborted.insert(*id);
                }
                !begins
            });
            if batch.is_control() {
                aborted.remove(&batch.producer_id());
                continue;
            }
            let gone = batch.is_transactional() && aborted.contains(&batch.producer_id());
            for record in batch.records(1 << 20).unwrap() {
                let record = record.unwrap();
                seen.push(Seen {
                    offset: record.offset.0,
                    timestamp: record.timestamp,
                    key: record.key.map(|key| key.to_vec()),
                    value: record.value.map(|value| value.to_vec()),
                    aborted: gone,
                });
            }
        }
        assert!(outcome.upper_bound > next);
        next = outcome.upper_bound;
        // What is aborted is told anew with every read.
        aborted.clear();
    }
    seen
}

/// The last value of each key that a `read_committed` reader is left with.
pub(super) fn last_values(records: &[Seen]) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for record in records.iter().filter(|record| !record.aborted) {
        match (&record.key, &record.value) {
            (Some(key), Some(value)) => {
                let key = String::from_utf8_lossy(key).into_owned();
                values.insert(key, short(value));
            }
            (Some(key), None) => {
                values.remove(&*String::from_utf8_lossy(key));
            }
            (None, _) => {}
        }
    }
    values
}

/// One pass, whatever the dirty ratio, with everything committed; whether there was one.
pub(super) async fn clean(cleaner: &Cleaner, log: &Rc<Log>) -> bool {
    let cleaned = cleaner
        .clean_dirtiest(std::slice::from_ref(log), &|log| log.log_end())
        .await;
    cleaned.is_some()
}

pub(super) fn records_of(records: &[(&[u8], Option<&[u8]>)], codec: Codec) -> Bytes {
    let mut builder = BatchBuilder::new().with_codec(codec, None);
    for (key, value) in records {
        builder
            .append(crate::rt::wall_ms(), Some(key), *value, &[])
            .unwrap();
    }
    builder.build().unwrap()
}

pub(super) fn produce(log: &Log, records: &[(&[u8], Option<&[u8]>)]) -> Appended {
    append_bytes(log, records_of(records, Codec::None), Origin::Client)
}

pub(super) fn append_bytes(log: &Log, bytes: Bytes, origin: Origin) -> Appended {
    let how = AppendAs {
        leader_epoch: LeaderEpoch(1),
        ..AppendAs::new(origin, 13, crate::rt::wall_ms())
    };
    log.append_as_leader(bytes, how).unwrap()
}

/// Ends the active segment and waits until it is complete.
pub(super) async fn settle(log: &Log) {
    log.roll(crate::rt::wall_ms());
    log.writer_idle().await;
    let unsettled = || {
        let state = log.state();
        let mut segments = state.segments.values();
        segments.any(|segment| segment.is_sealed() && !segment.is_settled())
    };
    log.flush().await.unwrap();
    while unsettled() {
        crate::rt::sleep(Duration::from_millis(5)).await;
    }
}

const PRODUCERS: i64 = 4;

/// A random history, compacted again and again.
struct History {
    rng: fastrand::Rng,
    log: Rc<Log>,
    cleaner: Cleaner,
    appended: Vec<Seen>,
    sequences: [i32; PRODUCERS as usize],
    /// By transactional producer: indexes into `appended` of the open transaction's records.
    open: BTreeMap<i64, Vec<usize>>,
}

impl History {
    fn key(&mut self) -> Vec<u8> {
        format!("k{}", self.rng.u8(..12)).into_bytes()
    }

    /// A batch of any kind but control.
    fn produce(&mut self) {
        let count = self.rng.usize(1..6);
        let codec = *self.rng.choice(&Codec::ALL).unwrap();
        let mut builder = BatchBuilder::new().with_codec(codec, None);
        // Producers 0 and 1 are idempotent, 2 and 3 transactional, the others neither.
        let id = self.rng.i64(0..PRODUCERS + 2);
        if id < PRODUCERS {
            let sequence = &mut self.sequences[id as usize];
            builder = builder.with_producer(id, 0, *sequence);
            *sequence += count as i32;
            builder.transactional = id >= 2;
        }
        // Without keys only while the topic is not compacted yet.
        let keyless = self.rng.u8(..10) == 0;
        let base = self.log.log_end().0;
        let now_ms = crate::rt::wall_ms();
        for delta in 0..count {
            let key = (!keyless).then(|| self.key());
            let value = (self.rng.u8(..4) > 0).then(|| vec![b'v'; self.rng.usize(..80)]);
            let timestamp = now_ms + self.rng.i64(-500..500);
            builder
                .append(timestamp, key.as_deref(), value.as_deref(), &[])
                .unwrap();
            if (2..PRODUCERS).contains(&id) {
                self.open.entry(id).or_default().push(self.appended.len());
            }
            self.appended.push(Seen {
                offset: base + delta as i64,
                timestamp,
                key,
                value,
                aborted: false,
            });
        }
        let compact = self.log.config().as_ref().clone();
        self.log.update_config(LogConfig {
            compact: false,
            ..compact.clone()
        });
        let appended = append_bytes(&self.log, builder.build().unwrap(), Origin::Client);
        self.log.update_config(compact);
        assert_eq!(appended.first_offset.0, base);
    }

    fn end_transaction(&mut self, id: i64) {
        let Some(records) = self.open.remove(&id) else {
            return;
        };
        let commit = self.rng.bool();
        let marker = end_txn_marker(id, 0, commit, 0, crate::rt::wall_ms()).unwrap();
        append_bytes(&self.log, marker, Origin::Coordinator);
        for at in records {
            self.appended[at].aborted = !commit;
        }
    }

    async fn check(&mut self) {
        let open: BTreeSet<usize> = self.open.values().flatten().copied().collect();
        let decided: Vec<Seen> = self
            .appended
            .iter()
            .enumerate()
            .filter(|(at, _)| !open.contains(at))
            .map(|(_, record)| record.clone())
            .collect();
        let found = read_records(&self.log).await;
        let known: BTreeMap<i64, &Seen> = self
            .appended
            .iter()
            .map(|record| (record.offset, record))
            .collect();
        for record in &found {
            assert_eq!(
                Some(&record),
                known.get(&record.offset),
                "what stays stays as it was"
            );
        }
        let unread: BTreeSet<i64> = open.iter().map(|at| self.appended[*at].offset).collect();
        let decided_found: Vec<Seen> = found
            .iter()
            .filter(|record| !unread.contains(&record.offset))
            .cloned()
            .collect();
        assert_eq!(last_values(&decided_found), last_values(&decided));
        let Some(first_dirty) = self.log.first_dirty() else {
            return;
        };
        let mut clean = BTreeSet::new();
        for record in found.iter().filter(|record| record.offset < first_dirty.0) {
            assert!(!record.aborted, "data of an aborted transaction stayed");
            let key = record.key.clone().expect("a record without key stayed");
            assert!(
                clean.insert(key),
                "two records of one key below the dirty part"
            );
        }
    }

    /// What a replay of the log says of its producers is what the log knew.
    async fn check_producers(&self) {
        let mut replayed = Producers::new(i64::MAX);
        let mut next = self.log.log_start();
        while next < self.log.log_end() {
            let outcome = self
                .log
                .read(next, self.log.log_end(), 700, true)
                .await
                .unwrap();
            for batch in batches(&outcome) {
                replayed.apply(&BatchFacts::of(&batch).unwrap());
            }
            next = outcome.upper_bound;
        }
        for (id, next) in self.sequences.iter().enumerate() {
            let last = |producers: &Producers| {
                producers
                    .entry(id as i64)
                    .map(|entry| (entry.last_sequence(), entry.producer_epoch))
            };
            let live = last(&self.log.state().producers);
            assert_eq!(last(&replayed), live, "producer {id}");
            if let Some((sequence, _)) = live {
                assert_eq!(sequence + 1, *next);
            }
        }
    }
}

async fn history(seed: u64, dir: PathBuf) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let config = LogConfig {
        segment_bytes: rng.u32(1500..6000),
        delete_retention_ms: rng.i64(0..3000),
        ..compacted()
    };
    let cleaner = Cleaner::new(CleanerSettings {
        io_buffer_bytes: rng.usize(1..20_000),
        dedupe_bytes: rng.u64(2..40) * 24,
        ..CleanerSettings::default()
    });
    let log = open_compacted(&dir, config.clone()).await;
    let mut history = History {
        rng,
        log,
        cleaner,
        appended: Vec::new(),
        sequences: [0; 4],
        open: BTreeMap::new(),
    };
    let mut passes = 0;
    for _ in 0..12 {
        for _ in 0..history.rng.usize(1..40) {
            match history.rng.u8(..10) {
                0 => history.end_transaction(2),
                1 => history.end_transaction(3),
                _ => history.produce(),
            }
        }
        if history.rng.bool() {
            settle(&history.log).await;
        }
        let end = history.log.log_end();
        while clean(&history.cleaner, &history.log).await {
            passes += 1;
            assert!(history.log.first_dirty() <= Some(history.log.log_end()));
            history.check().await;
        }
        assert_eq!(history.log.log_end(), end);
        history.check().await;
        history.check_producers().await;
        if history.rng.u8(..4) == 0 {
            let first_dirty = history.log.first_dirty();
            history.log.close().await.unwrap();
            let shard = shard();
            let mut open = open_of(&dir, config.clone());
            open.producer_limits.verify_transactions = false;
            open.clean_shutdown = history.rng.bool();
            if history.rng.bool() {
                open.recovery_point = end;
            }
            open.first_dirty = first_dirty;
            let (log, report) = Log::open(&shard, open).await.unwrap();
            assert!(report.cuts.is_empty() && report.segments_deleted.is_empty());
            assert_eq!((log.log_end(), log.first_dirty()), (end, first_dirty));
            history.log = log;
            history.check().await;
            history.check_producers().await;
        }
        crate::rt::sleep(Duration::from_millis(history.rng.u64(..2000))).await;
    }
    assert!(passes > 0);
}

#[test]
fn histories_keep_the_last_value_of_every_key_and_nothing_is_invented() {
    for seed in seeds(30) {
        in_world(seed, move |dir| history(seed, dir));
    }
}

#[test]
fn a_segment_that_was_sealed_at_the_recovery_point_settles_after_a_restart_without_new_records() {
    let seed = 500656988841050609;
    in_world(seed, move |dir| history(seed, dir));
}

/// A log whose sealed segments hold `rounds` versions of a few keys.
pub(super) async fn versions(dir: &Path, config: LogConfig, rounds: u8) -> Rc<Log> {
    let log = open_compacted(dir, config).await;
    for round in 0..rounds {
        for key in [b"a", b"b", b"c"] {
            produce(&log, &[(key, Some(&[round; 150]))]);
        }
    }
    settle(&log).await;
    log
}

pub(super) fn names_in(dir: &Path) -> impl Future<Output = Vec<String>> + use<> {
    let dir = dir.join("orders-3");
    async move {
        let entries = crate::rt::fs::read_dir(&dir).await.unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    }
}

#[test]
fn small_segments_become_one_and_nothing_is_left_beside_it() {
    in_world(1, |dir| async move {
        let log = versions(&dir, compacted(), 40).await;
        let before = log.segment_count();
        let (size, end) = (log.size_bytes(), log.log_end());
        assert!(before > 5);
        assert!(clean(&cleaner(), &log).await);
        assert_eq!(log.first_dirty(), Some(log.state().active().base()));
        // What was read at once fits into far fewer segments at the next pass.
        produce(&log, &[(b"d", None)]);
        settle(&log).await;
        assert!(clean(&cleaner(), &log).await);
        assert_eq!(log.segment_count(), 2);
        assert!(log.size_bytes() < size / 5 && log.log_end() > end);
        crate::rt::sleep(Duration::from_millis(100)).await;
        let passing = [".deleted", ".cleaned", ".swap"];
        let names = names_in(&dir).await;
        let left = names
            .iter()
            .filter(|name| passing.iter().any(|suffix| name.ends_with(suffix)));
        assert_eq!(left.count(), 0, "{names:?}");
        let logs = names.iter().filter(|name| name.ends_with(".log")).count();
        assert_eq!(logs, 2, "{names:?}");
    });
}

#[test]
fn a_reader_in_the_middle_of_a_swap_misses_nothing() {
    in_world(2, |dir| async move {
        // No recent batches: every read takes the files.
        let log = versions(&dir, compacted(), 60).await;
        log.shard.recent.forget(log.key());
        let want = last_values(&read_records(&log).await);
        let done = Rc::new(std::cell::Cell::new(false));
        let mut readers = Vec::new();
        for at in 0..8u64 {
            let (log, done, want) = (log.clone(), done.clone(), want.clone());
            readers.push(crate::rt::spawn(async move {
                let mut reads = 0;
                crate::rt::sleep(Duration::from_micros(at * 130)).await;
                while !done.get() {
                    assert_eq!(last_values(&read_records(&log).await), want);
                    let oldest = log.offset_for_timestamp(0).await.unwrap();
                    assert!(oldest.is_some());
                    reads += 1;
                }
                reads
            }));
        }
        let cleaner = cleaner();
        for _ in 0..4 {
            assert!(clean(&cleaner, &log).await);
            produce(&log, &[(b"a", Some(&[59; 150]))]);
            settle(&log).await;
        }
        done.set(true);
        for reader in readers {
            assert!(reader.await > 0);
        }
    });
}

#[test]
fn old_segments_do_not_take_the_new_index_for_their_own() {
    in_world(3, |dir| async move {
        let log = versions(&dir, compacted(), 40).await;
        let old: Vec<_> = log.state().segments.values().cloned().collect();
        let last = old[0].max_timestamp().1;
        assert!(clean(&cleaner(), &log).await);
        assert!(old[0].is_replaced() && !old.last().unwrap().is_replaced());
        log.load_indexes(&old[0]).await.unwrap();
        assert!(old[0].floor_position(last).unwrap() < old[0].size());
        let handles = old[0].handles().unwrap();
        let bytes = handles.reader.read_at(0, 61).await.unwrap();
        assert_eq!(bytes.len(), 61, "who has it open may finish");
    });
}

#[test]
fn a_log_that_is_cut_under_a_pass_is_left_as_it_is() {
    in_world(4, |dir| async move {
        let log = versions(&dir, compacted(), 60).await;
        let cleaner = Rc::new(cleaner());
        let (running, cleaned) = (cleaner.clone(), log.clone());
        let pass = crate::rt::spawn(async move { clean(&running, &cleaned).await });
        crate::rt::sleep(Duration::from_micros(300)).await;
        log.truncate_to(Offset(20)).await.unwrap();
        assert!(!pass.await);
        assert_eq!(log.log_end(), Offset(20));
        assert!(!cleaner.is_uncleanable(&log));
        let seen: Vec<i64> = read_records(&log).await.iter().map(|s| s.offset).collect();
        assert_eq!(seen, (0..20).collect::<Vec<_>>());
        for at in 0..60 {
            produce(&log, &[(b"a", Some(&[at; 100]))]);
        }
        settle(&log).await;
        assert!(clean(&cleaner, &log).await);
        assert_eq!(last_values(&read_records(&log).await).len(), 3);
    });
}

#[test]
fn what_was_clean_is_dirty_again_where_the_tail_was_cut() {
    in_world(5, |dir| async move {
        let log = versions(&dir, compacted(), 40).await;
        assert!(clean(&cleaner(), &log).await);
        assert!(log.first_dirty() > Some(Offset(50)));
        // No flush has been told of, and yet a checkpoint vouches for what lies behind the cut.
        assert!(log.checkpoint_facts().first_dirty > Some(Offset(50)));
        assert!(log.lower_checkpoints(Offset(50)));
        let lowered = log.checkpoint_facts();
        assert!(lowered.recovery_point <= Offset(50));
        assert!(lowered.first_dirty <= Some(Offset(50)));
        log.truncate_to(Offset(50)).await.unwrap();
        log.free_checkpoints(true);
        assert!(log.first_dirty() <= Some(Offset(50)));
        assert!(!log.lower_checkpoints(Offset(50)));
        log.free_checkpoints(false);
        log.truncate_fully_and_start_at(Offset(500)).await.unwrap();
        assert_eq!(log.first_dirty(), None);
    });
}

#[test]
fn retention_under_a_pass_wins() {
    in_world(6, |dir| async move {
        let config = LogConfig {
            delete: true,
            retention_bytes: 3000,
            ..compacted()
        };
        let log = versions(&dir, config, 60).await;
        let cleaner = Rc::new(cleaner());
        let (running, cleaned) = (cleaner.clone(), log.clone());
        let pass = crate::rt::spawn(async move { clean(&running, &cleaned).await });
        crate::rt::sleep(Duration::from_micros(300)).await;
        let report = log.apply_retention(crate::rt::wall_ms(), log.log_end());
        assert!(!report.deleted.is_empty());
        let start = log.log_start();
        assert!(start > Offset::ZERO);
        assert!(!pass.await, "its segments are gone");
        // The next one takes what is left.
        settle(&log).await;
        while clean(&cleaner, &log).await {}
        assert_eq!(log.log_start(), start);
        assert!(
            read_records(&log)
                .await
                .iter()
                .all(|seen| seen.offset >= start.0)
        );
        assert!(!cleaner.is_uncleanable(&log));
    });
}

#[test]
fn compact_and_delete_work_together() {
    in_world(7, |dir| async move {
        let config = LogConfig {
            delete: true,
            retention_ms: 3_600_000,
            ..compacted()
        };
        let log = versions(&dir, config, 40).await;
        assert!(clean(&cleaner(), &log).await);
        let now_ms = crate::rt::wall_ms();
        let kept = log.apply_retention(now_ms, log.log_end());
        assert!(kept.deleted.is_empty(), "nothing is old");
        let gone = log.apply_retention(now_ms + 4_000_000, log.log_end());
        assert!(
            !gone.deleted.is_empty(),
            "a compacted segment grows old too"
        );
        assert_eq!(log.log_start(), log.log_end());
    });
}

#[test]
fn a_pass_leaves_a_log_that_is_deleted() {
    in_world(8, |dir| async move {
        let manager = LogManager::new(shard(), ManagerSettings::default(), |_, _| {
            panic!("nothing has failed")
        });
        let (log, _) = manager.open(open_of(&dir, compacted())).await.unwrap();
        for round in 0..60u8 {
            produce(&log, &[(b"a", Some(&[round; 150]))]);
        }
        settle(&log).await;
        let (running, cleaned) = (manager.clone(), log.clone());
        let pass = crate::rt::spawn(async move { clean(running.cleaner(), &cleaned).await });
        crate::rt::sleep(Duration::from_micros(300)).await;
        manager.delete("orders", 3).await.unwrap();
        assert!(!pass.await);
        // The name belongs to somebody else from now on.
        let (next, _) = manager.open(open_of(&dir, compacted())).await.unwrap();
        produce(&next, &[(b"x", Some(b"1"))]);
        crate::rt::sleep(Duration::from_secs(5)).await;
        let names = names_in(&dir).await;
        assert!(
            !names.iter().any(|name| name.ends_with(".cleaned")),
            "{names:?}"
        );
        assert_eq!(read_records(&next).await.len(), 1);
    });
}
