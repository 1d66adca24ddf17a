//! Many logs of one shard with a small journal in the simulated world: killed, without power, cut,
//! reset, rolled, on a disk that fails or fills up. What a flush row acknowledged is there
//! afterwards, and what was cut or deleted is not raised by what the journal told of it.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use super::cleaning::in_world;
use super::lives::{Faults, LIVES, Lives, Sent};
use super::*;
use crate::log::journal::Journals;
use crate::rt::sim::World;
use crate::types::PartitionId;

const LOG_DIR: &str = "/data";
const LOGS: usize = 6;
/// So small that frames go round it many times.
const JOURNAL_BYTES: u64 = 256 << 10;

/// What the test knows of one log, over all its lives.
struct Book {
    partition: i32,
    config: LogConfig,
    sent: RefCell<Vec<Sent>>,
    written: Cell<i64>,
    durable: Cell<i64>,
    recovery_point: Cell<i64>,
    /// The highest log start there ever was. A move of it may be forgotten, as in Kafka, and be
    /// found again in a frame that was given up but not overwritten.
    log_start: Cell<i64>,
    /// A cut to here, or a start over at here, was under way when the process ended.
    cutting: Cell<Option<i64>>,
    resetting: Cell<Option<i64>>,
    /// The storage refused it; it may be in the file all the same, as any unanswered append may.
    refused: RefCell<Option<Sent>>,
    /// What was done last, for a failure's message.
    done: RefCell<Vec<String>>,
}

struct Shelf {
    rng: RefCell<fastrand::Rng>,
    books: Vec<Book>,
    power_lost: Cell<bool>,
    clean: Cell<bool>,
    lives: Cell<usize>,
    frames: Cell<u64>,
    taken_back: Cell<u64>,
    cuts: Cell<u64>,
    offline: Cell<u64>,
}

impl Book {
    fn id(&self) -> PartitionId {
        PartitionId {
            topic: Uuid::from_halves(7, 7),
            index: self.partition,
        }
    }

    fn open(&self, clean: bool) -> LogOpen {
        LogOpen {
            partition: self.partition,
            topic_id: self.id().topic,
            clean_shutdown: clean,
            recovery_point: Offset(self.recovery_point.get()),
            ..open_of(Path::new(LOG_DIR), self.config.clone())
        }
    }

    fn did(&self, what: impl std::fmt::Display, log: &Log) {
        let marks = log.watermarks();
        self.done.borrow_mut().push(format!("{what}: {marks:?}"));
    }

    fn last_done(&self) -> String {
        let done = self.done.borrow();
        done[done.len().saturating_sub(30)..].join("\n")
    }

    fn note(&self, log: &Log) {
        self.written.set(self.written.get().max(log.written().0));
        self.durable.set(self.durable.get().max(log.durable().0));
    }

    /// `dirty_lost`: what was not flushed may be gone, with the power or by a failed flush.
    async fn check(&self, log: &Log, report: &RecoveryReport, dirty_lost: bool) {
        let end = log.log_end().0;
        if let Some(start) = self.resetting.take() {
            if log.log_start().0 == start && end == start {
                self.start_over(start);
            } else {
                self.written.set(0);
                self.durable.set(0);
            }
            // Its oldest segments may be gone.
            self.log_start
                .set(self.log_start.get().max(log.log_start().0));
        }
        if let Some(to) = self.cutting.take() {
            let to = self.floor_of(to);
            self.written.set(self.written.get().min(to));
            self.durable.set(self.durable.get().min(to));
        }
        let must = if dirty_lost {
            self.durable.get()
        } else {
            self.written.get()
        };
        let name = self.partition;
        assert!(
            end >= must,
            "{name}: log ends at {end}, {must} was promised: {report:?}\n{}",
            self.last_done()
        );
        assert!(
            log.log_start().0 <= self.log_start.get(),
            "{name}: log starts at {}: {report:?}\n{}",
            log.log_start(),
            self.last_done()
        );
        let from = log.log_start();
        let Some(found) = found_in(log, from).await else {
            return;
        };
        let sent: Vec<Sent> = {
            let mut sent = self.sent.borrow_mut();
            if let Some(refused) = self.refused.take()
                && found.contains(&(refused.base, refused.last))
            {
                sent.push(refused);
            }
            sent.retain(|batch| batch.last < end);
            let live = sent.iter().filter(|batch| batch.last >= from.0);
            live.cloned().collect()
        };
        let known: Vec<(i64, i64)> = sent.iter().map(|b| (b.base, b.last)).collect();
        assert_eq!(found, known, "{name}: {report:?}\n{}", self.last_done());
        for batch in sent {
            let read = log.read(Offset(batch.base.max(from.0)), Offset(end), 1, true);
            let Ok(read) = read.await else {
                assert!(log.is_offline());
                return;
            };
            assert_eq!(batches(&read)[0].body(), batch.body, "{name}: {batch:?}");
        }
        self.did(
            format_args!("opened, what was dirty lost {dirty_lost}"),
            log,
        );
        self.written.set(end);
        self.durable.set(self.durable.get().min(end));
        self.note(log);
    }

    /// Where a cut at `to` falls: a batch that reaches across it goes as a whole.
    fn floor_of(&self, to: i64) -> i64 {
        let sent = self.sent.borrow();
        let across = sent.iter().find(|b| b.base < to && b.last >= to);
        across.map_or(to, |batch| batch.base)
    }

    fn start_over(&self, start: i64) {
        self.sent.borrow_mut().clear();
        self.written.set(start);
        self.durable.set(start);
        self.log_start.set(start);
        self.recovery_point.set(0);
    }

    fn append(&self, log: &Log, count: usize, size: usize) -> Option<Offset> {
        let bytes = batch_of(&vec![NOW_MS; count], size);
        let base = log.log_end().0;
        let Ok(appended) = log.append_as_leader(bytes.clone(), as_leader()) else {
            *self.refused.borrow_mut() = Some(Sent::of(base, count, &bytes));
            return None;
        };
        self.refused.take();
        let mut sent = self.sent.borrow_mut();
        sent.retain(|batch| batch.last < appended.first_offset.0);
        sent.push(Sent::of(appended.first_offset.0, count, &bytes));
        self.did("append", log);
        self.note(log);
        Some(appended.last_offset.next())
    }
}

/// (base, last) of every batch from `from` on; `None` if the disk failed meanwhile.
async fn found_in(log: &Log, from: Offset) -> Option<Vec<(i64, i64)>> {
    let (mut found, mut next) = (Vec::new(), from);
    while next < log.log_end() {
        log.writer_idle().await;
        let Ok(outcome) = log.read(next, log.log_end(), 2000, true).await else {
            assert!(log.is_offline());
            return None;
        };
        assert!(outcome.upper_bound > next);
        for batch in batches(&outcome) {
            batch.check_crc().unwrap();
            found.push((batch.base_offset().0, batch.last_offset().0));
        }
        next = outcome.upper_bound;
    }
    Some(found)
}

impl Shelf {
    fn new(seed: u64) -> Shelf {
        let mut rng = fastrand::Rng::with_seed(seed);
        let books = (0..LOGS).map(|at| {
            let config = LogConfig {
                segment_io: if rng.u32(..4) == 0 {
                    SegmentIo::Direct
                } else {
                    SegmentIo::Buffered
                },
                flush_messages: if rng.u32(..6) == 0 { i64::MAX } else { 1 },
                segment_bytes: rng.u32(20_000..200_000),
                retention_ms: -1,
                ..small_segments()
            };
            Book {
                partition: at as i32,
                config,
                sent: RefCell::default(),
                written: Cell::new(0),
                durable: Cell::new(0),
                recovery_point: Cell::new(0),
                log_start: Cell::new(0),
                cutting: Cell::new(None),
                resetting: Cell::new(None),
                refused: RefCell::default(),
                done: RefCell::default(),
            }
        });
        let books = books.collect();
        Shelf {
            rng: RefCell::new(rng),
            books,
            power_lost: Cell::new(false),
            clean: Cell::new(false),
            lives: Cell::new(0),
            frames: Cell::new(0),
            taken_back: Cell::new(0),
            cuts: Cell::new(0),
            offline: Cell::new(0),
        }
    }

    fn rng<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.rng.borrow_mut())
    }

    async fn open_all(&self) -> Option<(Rc<LogShard>, Vec<Rc<Log>>)> {
        crate::rt::fs::create_dir_all(LOG_DIR).await.ok()?;
        crate::rt::fs::sync_dir("/").await.ok()?;
        let shard = LogShard::new(ShardLimits {
            recent_batch_bytes: 0,
            journal_bytes: JOURNAL_BYTES,
            ..ShardLimits::default()
        });
        let journals = std::sync::Arc::new(Journals::read(Path::new(LOG_DIR)).await.ok()?);
        let clean = self.clean.take();
        // A file that could not be made may be there, and come back with the power: it tells nothing.
        let mut books = self.books.iter();
        let tells = books.any(|book| journals.mentions(book.id()));
        assert!(!clean || !tells, "a clean stop leaves nothing to tell");
        shard.found_journals(Path::new(LOG_DIR), journals.clone());
        let mut logs = Vec::new();
        for book in &self.books {
            let (log, report) = Log::open(&shard, book.open(clean)).await.ok()?;
            self.taken_back
                .set(self.taken_back.get() + report.bytes_taken_back);
            book.check(&log, &report, self.power_lost.get()).await;
            logs.push(log);
        }
        journals.started().await.ok()?;
        self.power_lost.set(false);
        Some((shard, logs))
    }

    async fn live(self: Rc<Self>) {
        self.lives.set(self.lives.get() + 1);
        let Some((shard, logs)) = self.open_all().await else {
            return;
        };
        let close_after = self.rng(|rng| rng.u64(..200_000));
        let stop = Rc::new(Cell::new(false));
        let mut tasks = Vec::new();
        for (at, log) in logs.iter().enumerate() {
            let (shelf, log, stop) = (self.clone(), log.clone(), stop.clone());
            tasks.push(crate::rt::spawn(async move {
                while !stop.get() && shelf.step(&shelf.books[at], &log).await {}
            }));
        }
        crate::rt::sleep(Duration::from_micros(close_after)).await;
        stop.set(true);
        for task in tasks {
            task.await;
        }
        self.frames
            .set(self.frames.get() + shard.flush_stats().journal_frames);
        let mut closed = true;
        for (log, book) in logs.iter().zip(&self.books) {
            closed &= log.close().await.is_ok();
            book.note(log);
        }
        // As the manager does: a log that did not close may need what the journal tells.
        if closed {
            let ended = shard.flusher.end(Path::new(LOG_DIR)).await;
            self.clean.set(ended.is_ok());
        }
    }

    /// One step of one log; false when it is over with it.
    async fn step(&self, book: &Book, log: &Rc<Log>) -> bool {
        // A cut that only the page cache knew may be undone by a power loss: that is not the
        // journal's matter.
        let kinds = if book.config.durability().waits_for_flush() {
            100
        } else {
            79
        };
        match self.rng(|rng| rng.u32(..kinds)) {
            0..=69 => {
                let large = self.rng(|rng| rng.u32(..50)) == 0;
                let size = if large { 20_000 } else { 900 };
                let (count, size) = self.rng(|rng| (rng.usize(1..4), rng.usize(..size)));
                match book.append(log, count, size) {
                    Some(end) if self.rng(|rng| rng.u32(..4)) > 0 => {
                        let counted = log.wait_counted(end).await;
                        assert!(counted.is_err() || log.counted() >= end);
                        book.did("counted", log);
                        book.note(log);
                    }
                    Some(_) => {}
                    None if log.is_offline() => {
                        self.offline.set(self.offline.get() + 1);
                        assert!(log.flush().await.is_err(), "a fault is never hidden");
                        return false;
                    }
                    None => crate::rt::sleep(Duration::from_millis(1)).await,
                }
            }
            70..=72 => {
                let _ = log.flush().await;
                book.did("flushed", log);
                book.note(log);
            }
            73..=75 => {
                let point = log.checkpoint_facts().recovery_point.0;
                assert!(point <= log.watermarks().in_segments().0);
                book.recovery_point.set(point);
            }
            76..=78 => {
                log.roll(NOW_MS);
                book.did("rolled", log);
            }
            79..=81 => {
                let to = self.rng(|rng| rng.i64(log.log_start().0..=log.log_end().0));
                book.cutting.set(Some(to));
                // The checkpoint must say so before the cut, and for where it really falls: below a
                // recovery point that is too high nobody looks again.
                let floor = book.floor_of(to);
                book.recovery_point
                    .set(book.recovery_point.get().min(floor));
                book.did(format_args!("cut to {to} ..."), log);
                if log.truncate_to(Offset(to)).await.is_err() {
                    return !log.is_offline();
                }
                book.did("... cut", log);
                self.cuts.set(self.cuts.get() + 1);
                book.cutting.set(None);
                let end = log.log_end().0;
                book.sent.borrow_mut().retain(|batch| batch.last < end);
                book.written.set(book.written.get().min(end));
                book.durable.set(book.durable.get().min(end));
            }
            82 => {
                let at = log.log_end().0 + self.rng(|rng| rng.i64(0..50));
                book.resetting.set(Some(at));
                book.recovery_point.set(0);
                book.durable.set(0);
                book.written.set(0);
                book.did(format_args!("start over at {at} ..."), log);
                if log.truncate_fully_and_start_at(Offset(at)).await.is_err() {
                    return !log.is_offline();
                }
                book.resetting.set(None);
                book.did("... started over", log);
                book.start_over(at);
            }
            83 => {
                let to = self.rng(|rng| rng.i64(log.log_start().0..=log.log_end().0));
                if log.delete_records_to(Offset(to)).is_ok() {
                    book.log_start.set(book.log_start.get().max(to));
                    log.apply_retention(NOW_MS, log.log_end());
                    book.did(format_args!("deleted to {to}"), log);
                }
            }
            _ => crate::rt::sleep(Duration::from_micros(100)).await,
        }
        true
    }
}

fn lives(seed: u64, faults: bool) -> Rc<Shelf> {
    let world = World::new(seed);
    let shelf = Rc::new(Shelf::new(seed));
    let node = world.add_node("broker");
    let lives = Lives {
        rng: &shelf.rng,
        faults: faults.then_some(Faults {
            syncs_one_in: 60,
            writes_one_in: 200,
            room: 3 * JOURNAL_BYTES / 2,
            mends: false,
        }),
        length: 5_000..150_000,
        power_lost: &shelf.power_lost,
    };
    let in_node = shelf.clone();
    lives.live(&world, &node, move || in_node.clone().live());
    world.run_for(Duration::from_secs(2));
    assert_eq!(shelf.lives.get(), LIVES + 1);
    shelf
}

/// Frames, bytes taken back, cuts, offline logs.
fn run(faults: bool) -> [u64; 4] {
    let mut sums = [0; 4];
    for seed in seeds(20) {
        let shelf = lives(seed, faults);
        let counts = [
            &shelf.frames,
            &shelf.taken_back,
            &shelf.cuts,
            &shelf.offline,
        ];
        sums.iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum += count.get());
    }
    println!("frames, bytes taken back, cuts, offline: {sums:?}");
    sums
}

#[test]
fn what_the_journal_acknowledged_survives_and_what_was_cut_is_not_raised() {
    let [frames, taken_back, ..] = run(false);
    assert!(frames > 0 && taken_back > 0, "the journal was never used");
}

/// At this seed the leader-epoch checkpoint of a log that had begun anew found no room on the disk, and
/// with it the name of the new segment never became durable.
#[test]
fn a_log_that_begins_anew_on_a_full_disk_still_begins_there_after_a_power_loss() {
    lives(1386, true);
}

#[test]
fn a_journal_on_a_failing_or_full_disk_hides_nothing() {
    let [frames, ..] = run(true);
    assert!(frames > 0, "the journal was never used");
}

#[test]
fn a_journal_file_that_is_there_after_a_clean_stop_tells_nothing() {
    // The file could not be made, or not in time, and was there again with the next start.
    lives(1875, true);
}

#[test]
fn a_flush_that_succeeds_after_another_of_its_file_has_failed_counts_nothing() {
    // Two were under way. The first failed and took the log offline, the second succeeded, for the
    // kernel had told of the lost pages already.
    lives(1476, true);
}

#[test]
fn a_cut_that_a_failed_journal_could_not_be_told_is_not_taken_for_done() {
    // The log had begun to forget what its file still held, the next cut found nothing to do, and
    // all of it came back with the next start.
    lives(1141, true);
}

/// Logs of one directory with a flush row or without, each with one batch.
async fn with_a_batch_each(shard: &Rc<LogShard>, dir: &Path, flush_messages: i64) -> Vec<Rc<Log>> {
    let mut logs = Vec::new();
    for partition in 0..6 {
        let mut open = open_of(dir, small_segments());
        open.partition = partition;
        open.config.flush_messages = flush_messages;
        logs.push(Log::open(shard, open).await.unwrap().0);
    }
    for log in &logs {
        append(log, 1, 100);
    }
    logs
}

async fn journals_in(dir: &Path) -> Vec<String> {
    let entries = crate::rt::fs::read_dir(dir).await.unwrap();
    let names = entries.into_iter().map(|entry| entry.name);
    names.filter(|name| name.contains("journal")).collect()
}

#[test]
fn no_journal_is_made_where_nobody_waits_for_a_flush() {
    in_world(5, |dir| async move {
        let shard = LogShard::new(ShardLimits {
            journal_bytes: JOURNAL_BYTES,
            ..ShardLimits::default()
        });
        let logs = with_a_batch_each(&shard, &dir, i64::MAX).await;
        // One after the other asks while others are being flushed.
        let closed = logs.iter().enumerate().map(|(at, log)| async move {
            crate::rt::sleep(Duration::from_micros(300 * at as u64)).await;
            log.close().await.unwrap();
        });
        crate::rt::join_all(closed.collect::<Vec<_>>()).await;
        crate::rt::sleep(Duration::from_secs(1)).await;
        assert_eq!(journals_in(&dir).await, Vec::<String>::new());
    });
}

#[test]
fn a_stop_leaves_no_journal_that_was_still_being_made() {
    for seed in 0..5 {
        in_world(seed, |dir| async move {
            let shard = LogShard::new(ShardLimits {
                journal_bytes: JOURNAL_BYTES,
                ..ShardLimits::default()
            });
            let _logs = with_a_batch_each(&shard, &dir, 1).await;
            // The round has begun, and wants a journal.
            crate::rt::yield_now().await;
            shard.flusher.end(&dir).await.unwrap();
            // Nor does one come: the process may be gone.
            for _ in 0..200 {
                assert_eq!(journals_in(&dir).await, Vec::<String>::new());
            }
        });
    }
}
