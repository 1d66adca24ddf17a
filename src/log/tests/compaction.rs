//! A compacted log in the simulated world: killed, without power, on a disk that fails or fills
//! up, at any moment of a pass. Afterwards the last value of every key that was promised is there,
//! nothing is invented, and the next pass works.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::cleaning::{Seen, clean, compacted, last_values, read_records, settle};
use super::lives::{self, Faults, LIVES, Lives};
use super::*;
use crate::log::cleaner::{Cleaner, CleanerSettings};
use crate::log::journal::{JOURNAL_BYTES_MIN, Journals};
use crate::rt::sim::World;
use crate::wire::codec::Codec;

const LOG_DIR: &str = "/data";
const PARTITION_DIR: &str = "/data/orders-3";

/// What the test knows of the log, over all its lives.
struct Known {
    rng: RefCell<fastrand::Rng>,
    config: RefCell<LogConfig>,
    settings: CleanerSettings,
    /// Every record of the log's history, by offset; the last offset of each batch beside it.
    sent: RefCell<Vec<(Seen, i64)>>,
    /// The batch that a failed write refused, whose bytes may have landed all the same.
    refused: RefCell<Vec<(Seen, i64)>>,
    /// What must survive a kill of the process, and a power loss.
    written: Cell<i64>,
    durable: Cell<i64>,
    /// The directory's checkpoints.
    recovery_point: Cell<i64>,
    first_dirty: Cell<Option<Offset>>,
    lives: Cell<usize>,
    power_lost: Cell<bool>,
    /// The disk may fail: a read may, too.
    faults: Cell<bool>,
    passes: Cell<u64>,
    offline: Cell<u64>,
    /// The pass of [`one_pass`] has begun, has ended.
    begun: Cell<bool>,
    ended: Cell<bool>,
    checked: Cell<u64>,
}

impl Known {
    fn new(seed: u64) -> Known {
        let mut rng = fastrand::Rng::with_seed(seed);
        let config = LogConfig {
            segment_io: if rng.bool() {
                SegmentIo::Direct
            } else {
                SegmentIo::Buffered
            },
            flush_messages: if rng.bool() { 1 } else { i64::MAX },
            segment_bytes: rng.u32(1500..8000),
            delete_retention_ms: rng.i64(0..20),
            ..compacted()
        };
        let settings = CleanerSettings {
            io_buffer_bytes: rng.usize(1..16_000),
            dedupe_bytes: rng.u64(10..200) * 24,
            ..CleanerSettings::default()
        };
        Known {
            rng: RefCell::new(rng),
            config: RefCell::new(config),
            settings,
            sent: RefCell::default(),
            refused: RefCell::default(),
            written: Cell::new(0),
            durable: Cell::new(0),
            recovery_point: Cell::new(0),
            first_dirty: Cell::new(None),
            lives: Cell::new(0),
            power_lost: Cell::new(false),
            faults: Cell::new(false),
            passes: Cell::new(0),
            offline: Cell::new(0),
            begun: Cell::new(false),
            ended: Cell::new(false),
            checked: Cell::new(0),
        }
    }

    fn rng<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.rng.borrow_mut())
    }

    /// The log tells how far it is; from here on that is a promise.
    fn note(&self, log: &Log) {
        self.written.set(self.written.get().max(log.written().0));
        self.durable.set(self.durable.get().max(log.durable().0));
    }

    fn note_checkpoints(&self, log: &Log) {
        let facts = log.checkpoint_facts();
        self.recovery_point.set(facts.recovery_point.0);
        self.first_dirty.set(facts.first_dirty);
    }

    /// Opens the log and holds it against what is known.
    async fn open_and_check(&self) -> Option<Rc<Log>> {
        crate::rt::fs::create_dir_all(LOG_DIR).await.ok()?;
        crate::rt::fs::sync_dir("/").await.ok()?;
        let shard = LogShard::new(ShardLimits {
            recent_batch_bytes: if self.rng(|rng| rng.bool()) { 0 } else { 9000 },
            journal_bytes: JOURNAL_BYTES_MIN,
            ..ShardLimits::default()
        });
        let journals = Arc::new(Journals::read(Path::new(LOG_DIR)).await.ok()?);
        shard.found_journals(Path::new(LOG_DIR), journals.clone());
        let mut open = open_of(Path::new(LOG_DIR), self.config.borrow().clone());
        open.recovery_point = Offset(self.recovery_point.get());
        open.first_dirty = self.first_dirty.get();
        let (log, report) = Log::open(&shard, open).await.ok()?;
        journals.started().await.ok()?;
        let must = if self.power_lost.get() {
            self.durable.get()
        } else {
            self.written.get()
        };
        let end = log.log_end().0;
        assert!(
            end >= must,
            "log ends at {end}, {must} was promised: {report:?}"
        );
        self.sent.borrow_mut().retain(|(_, last)| *last < end);
        self.check(&log, &report).await;
        self.written.set(end);
        self.durable.set(self.durable.get().min(end));
        self.note(&log);
        self.power_lost.set(false);
        Some(log)
    }

    /// Reads the whole log. Nobody appends meanwhile, but a pass may be under way.
    async fn check(&self, log: &Log, report: &RecoveryReport) {
        let found = read_records(log).await;
        let refused = self.refused.take().into_iter();
        let landed = refused.filter(|(record, _)| found.contains(record));
        self.sent.borrow_mut().extend(landed);
        let sent: BTreeMap<i64, Seen> = self
            .sent
            .borrow()
            .iter()
            .map(|(record, _)| (record.offset, record.clone()))
            .collect();
        let mut before = -1;
        for record in &found {
            assert!(record.offset > before, "offsets go back at {record:?}");
            before = record.offset;
            assert_eq!(Some(record), sent.get(&record.offset), "{report:?}");
        }
        let all: Vec<Seen> = sent.into_values().collect();
        assert_eq!(
            last_values(&found),
            last_values(&all),
            "{report:?} {:?}",
            super::cleaning::segments_of(log)
        );
        self.checked.set(self.checked.get() + 1);
    }

    fn append(&self, log: &Log) -> Option<Offset> {
        let mut builder = BatchBuilder::new();
        builder.codec = if self.rng(|rng| rng.u8(..3) == 0) {
            Codec::Lz4
        } else {
            Codec::None
        };
        let mut records = Vec::new();
        for _ in 0..self.rng(|rng| rng.usize(1..5)) {
            let key = self.rng(|rng| vec![b'a' + rng.u8(..9)]);
            let value =
                self.rng(|rng| (rng.u8(..5) > 0).then(|| vec![rng.u8(..); rng.usize(1..300)]));
            let timestamp = crate::rt::wall_ms();
            builder
                .append(timestamp, Some(&key), value.as_deref(), &[])
                .unwrap();
            records.push(Seen {
                offset: 0,
                timestamp,
                key: Some(key),
                value,
                aborted: false,
            });
        }
        let how = AppendAs {
            leader_epoch: LeaderEpoch(1),
            ..AppendAs::new(Origin::Client, 13, crate::rt::wall_ms())
        };
        let base = log.log_end().0;
        let Ok(appended) = log.append_as_leader(builder.build().unwrap(), how) else {
            let last = base + records.len() as i64 - 1;
            let records = (base..).zip(records).filter(|_| log.is_offline());
            let refused = records.map(|(offset, record)| (Seen { offset, ..record }, last));
            *self.refused.borrow_mut() = refused.collect();
            return None;
        };
        let (first, last) = (appended.first_offset.0, appended.last_offset.0);
        let mut sent = self.sent.borrow_mut();
        // What a full disk refused is not in the log any more.
        sent.retain(|(record, _)| record.offset < first);
        for (delta, record) in records.into_iter().enumerate() {
            let offset = first + delta as i64;
            sent.push((Seen { offset, ..record }, last));
        }
        drop(sent);
        self.note(log);
        Some(appended.last_offset.next())
    }

    async fn live(self: Rc<Self>) {
        self.lives.set(self.lives.get() + 1);
        let Some(log) = self.open_and_check().await else {
            return;
        };
        let cleaner = Rc::new(Cleaner::new(self.settings));
        if self.lives.get() > LIVES {
            return self.last_life(&cleaner, &log).await;
        }
        let (known, cleaned) = (self.clone(), log.clone());
        drop(crate::rt::spawn(async move {
            loop {
                let logs = std::slice::from_ref(&cleaned);
                let pass = cleaner.clean_dirtiest(logs, &|log| log.counted()).await;
                let count = known.passes.get() + u64::from(pass.is_some());
                known.passes.set(count);
                crate::rt::sleep(Duration::from_micros(300)).await;
            }
        }));
        while self.step(&log).await {}
    }

    /// One thing that may happen to a log; false when the log is offline.
    async fn step(&self, log: &Log) -> bool {
        match self.rng(|rng| rng.u32(..100)) {
            0..=64 => match self.append(log) {
                Some(end) if self.rng(|rng| rng.u8(..4) == 0) => {
                    let counted = log.wait_counted(end).await;
                    if counted.is_ok() && log.durability().waits_for_flush() {
                        assert!(log.durable() >= end);
                    }
                    self.note(log);
                }
                Some(_) => {}
                None if log.is_offline() => {
                    self.offline.set(self.offline.get() + 1);
                    return false;
                }
                None => crate::rt::sleep(Duration::from_millis(1)).await,
            },
            65..=69 => {
                let _ = log.flush().await;
                self.note(log);
            }
            70..=74 => self.note_checkpoints(log),
            75..=79 => log.roll(crate::rt::wall_ms()),
            80..=82 => {
                log.writer_idle().await;
                if log.check_usable().is_ok() && log.written() == log.log_end() {
                    let end = log.log_end().0;
                    self.sent.borrow_mut().retain(|(_, last)| *last < end);
                    if !self.faults.get() {
                        self.check(log, &RecoveryReport::default()).await;
                    }
                }
            }
            _ => crate::rt::sleep(Duration::from_micros(300)).await,
        }
        true
    }

    /// On a healthy disk everything works again.
    async fn last_life(&self, cleaner: &Cleaner, log: &Rc<Log>) {
        for _ in 0..30 {
            self.append(log).expect("the disk is healthy");
        }
        settle(log).await;
        let mut passes = 0;
        while clean(cleaner, log).await {
            passes += 1;
        }
        assert!(passes > 0, "nothing to clean below {}", log.log_end());
        self.check(log, &RecoveryReport::default()).await;
        let found = read_records(log).await;
        let first_dirty = log.first_dirty().expect("a pass has ended").0;
        let clean = found.iter().filter(|record| record.offset < first_dirty);
        let mut keys: Vec<_> = clean.map(|record| record.key.clone()).collect();
        let all = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), all, "one record of each key");
        self.ended.set(true);
    }
}

/// One seed: several lives, each ended as the seed says.
fn lives(seed: u64, faults: bool) -> Rc<Known> {
    let world = World::new(seed);
    let known = Rc::new(Known::new(seed));
    known.faults.set(faults);
    let node = world.add_node("broker");
    let lives = Lives {
        rng: &known.rng,
        faults: faults.then_some(Faults {
            syncs_one_in: 20,
            writes_one_in: 60,
            room: 20_000,
            mends: false,
        }),
        length: 500..300_000,
        power_lost: &known.power_lost,
    };
    let in_node = known.clone();
    lives.live(&world, &node, move || {
        let known = in_node.clone();
        async move { known.live().await }
    });
    assert!(world.run_until(Duration::from_secs(20), || known.ended.get()));
    assert_eq!(known.lives.get(), LIVES + 1);
    known
}

fn run(faults: bool) {
    let mut sums = [0; 3];
    for seed in seeds(25) {
        let known = lives(seed, faults);
        let counts = [&known.passes, &known.checked, &known.offline];
        sums.iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum += count.get());
    }
    println!("passes, whole reads, offline: {sums:?}");
    assert!(sums[0] > 0);
}

#[test]
fn kills_and_power_losses_while_compacting_cost_no_last_value() {
    run(false);
}

#[test]
fn faults_while_compacting_cost_no_last_value() {
    run(true);
}

/// A log that is the same for the same seed, then one pass over it.
async fn one_pass(known: Rc<Known>) {
    known.lives.set(known.lives.get() + 1);
    let log = known.open_and_check().await.expect("the disk is healthy");
    let cleaner = Cleaner::new(known.settings);
    if known.lives.get() > 1 {
        return known.last_life(&cleaner, &log).await;
    }
    for _ in 0..60 {
        let end = known.append(&log).expect("the disk is healthy");
        log.wait_counted(end).await.expect("the disk is healthy");
        known.note(&log);
    }
    settle(&log).await;
    known.note(&log);
    known.note_checkpoints(&log);
    known.begun.set(true);
    let cleaned = clean(&cleaner, &log).await;
    assert!(cleaned);
    known.ended.set(true);
    std::future::pending::<()>().await;
}

/// Ends the process or the power after each step of a pass, from its first to its last.
fn at_every_moment(power: bool) {
    let mut leftovers: BTreeMap<String, usize> = BTreeMap::new();
    let seed = seeds(1).next().unwrap_or_default();
    let mut steps = fastrand::Rng::with_seed(seed);
    let mut moment = 0;
    loop {
        moment += steps.u64(100..900);
        println!("HIGHWATER_SEED={seed}, {moment} us into the pass");
        let world = World::new(seed);
        let known = Rc::new(Known::new(seed));
        // Kept together, so that several segments become one.
        known.config.borrow_mut().segment_bytes = 4000;
        let node = world.add_node("broker");
        let in_node = known.clone();
        lives::start(&node, move || one_pass(in_node.clone()));
        assert!(world.run_until(Duration::from_secs(20), || known.begun.get()));
        world.run_for(Duration::from_micros(moment));
        let over = known.ended.get();
        known.ended.set(false);
        known.power_lost.set(power);
        if power {
            node.lose_power();
        } else {
            node.kill();
        }
        for name in node.disk().list(PARTITION_DIR).unwrap_or_default() {
            if let Some((_, suffix)) = name.split_once('.') {
                *leftovers.entry(suffix.to_owned()).or_default() += 1;
            }
        }
        node.restart();
        assert!(world.run_until(Duration::from_secs(20), || known.ended.get()));
        if over {
            break;
        }
    }
    println!("{leftovers:?}");
    for suffix in ["log.cleaned", "log.swap", "index.swap"] {
        assert!(leftovers.contains_key(suffix), "no moment with {suffix}");
    }
}

#[test]
fn a_kill_at_any_moment_of_a_pass_is_recovered() {
    at_every_moment(false);
}

#[test]
fn a_power_loss_at_any_moment_of_a_pass_is_recovered() {
    at_every_moment(true);
}
