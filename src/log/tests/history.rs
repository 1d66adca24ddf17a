//! Random histories of a log against a plain list of batches.

use super::*;
use crate::wire::batch::Batch;

struct Known {
    base: i64,
    last: i64,
    stamps: Vec<i64>,
    body: Bytes,
}

struct History {
    rng: fastrand::Rng,
    dir: PathBuf,
    shard: Rc<LogShard>,
    config: LogConfig,
    log: Rc<Log>,
    known: Vec<Known>,
    log_start: i64,
    recovery_point: Offset,
}

impl History {
    fn end(&self) -> i64 {
        self.known
            .last()
            .map_or(0, |batch| batch.last + 1)
            .max(self.log_start)
    }

    fn append(&mut self) {
        let stamps: Vec<i64> = (0..self.rng.usize(1..4))
            .map(|_| NOW_MS + self.rng.i64(-1000..1000))
            .collect();
        let size = if self.rng.u8(..) < 10 {
            self.rng.usize(..3000)
        } else {
            self.rng.usize(..200)
        };
        let bytes = batch_of(&stamps, size);
        if bytes.len() > self.config.segment_bytes as usize {
            return;
        }
        let appended = self
            .log
            .append_as_leader(bytes.clone(), as_leader())
            .unwrap();
        assert_eq!(appended.first_offset.0, self.end());
        self.known.push(Known {
            base: appended.first_offset.0,
            last: appended.last_offset.0,
            stamps,
            body: bytes.slice(61..),
        });
    }

    async fn read(&mut self) {
        let end = self.end();
        let from = self.rng.i64(self.log_start..=end);
        let upper = self.rng.i64(self.log_start..=end + 3);
        let max = self.rng.u64(0..3000);
        let min_one = self.rng.bool();
        self.log.writer_idle().await;
        let outcome = self
            .log
            .read(Offset(from), Offset(upper), max, min_one)
            .await
            .unwrap();
        let found = batches(&outcome);
        let start = self
            .known
            .iter()
            .position(|batch| batch.last >= from)
            .unwrap_or(self.known.len());
        for (batch, want) in found.iter().zip(&self.known[start..]) {
            self.same(batch, want);
            assert!(want.last < upper);
        }
        let total = outcome.records.len() as u64;
        assert!(
            total <= max || (min_one && found.len() == 1),
            "{total} > {max}"
        );
        let readable = self
            .known
            .get(start)
            .is_some_and(|first| first.last < upper && first.last >= from);
        if readable && min_one {
            assert!(
                !found.is_empty(),
                "nothing at {from} below {upper} of {end}"
            );
        }
        let estimate = self.log.bytes_between(Offset(from), Offset(end));
        assert_eq!(estimate == 0, from == end);
    }

    fn same(&self, batch: &Batch, want: &Known) {
        assert_eq!(
            (batch.base_offset().0, batch.last_offset().0),
            (want.base, want.last)
        );
        assert_eq!(batch.body(), want.body);
        batch.check_crc().unwrap();
    }

    async fn look_up_time(&mut self) {
        self.log.writer_idle().await;
        let target = NOW_MS + self.rng.i64(-1100..1100);
        let want = self
            .known
            .iter()
            .flat_map(|batch| (batch.base..).zip(batch.stamps.iter().copied()))
            .find(|(offset, stamp)| *stamp >= target && *offset >= self.log_start);
        let found = self.log.offset_for_timestamp(target).await.unwrap();
        assert_eq!(
            found.map(|f| (f.offset.0, f.timestamp)),
            want,
            "target {target}"
        );
        let records = self.known.iter();
        let records = records.flat_map(|one| (one.base..).zip(one.stamps.iter().copied()));
        let want = records
            .filter(|(offset, _)| *offset >= self.log_start)
            .min_by_key(|(offset, stamp)| (-stamp, *offset));
        let found = self.log.max_timestamp_offset().await.unwrap();
        assert_eq!(found.map(|f| (f.offset.0, f.timestamp)), want);
    }

    async fn truncate(&mut self) {
        let to = self.rng.i64(self.log_start..=self.end());
        let whole = self.known.iter().position(|batch| batch.last >= to);
        self.log.truncate_to(Offset(to)).await.unwrap();
        if let Some(at) = whole {
            self.known.truncate(at);
        }
        assert_eq!(self.log.log_end().0, self.end(), "truncated to {to}");
    }

    async fn reopen(&mut self, clean: bool) {
        if clean {
            self.log.close().await.unwrap();
        } else {
            self.log.abandon().await;
            if self.rng.bool() {
                self.recovery_point = self.log.checkpoint_facts().recovery_point;
            }
        }
        if self.rng.u8(..) < 100 {
            self.config.segment_io = if self.rng.bool() {
                SegmentIo::Direct
            } else {
                SegmentIo::Buffered
            };
            self.config.flush_messages = if self.rng.bool() { 1 } else { i64::MAX };
        }
        let mut reopen = open_of(&self.dir, self.config.clone());
        reopen.clean_shutdown = clean;
        reopen.recovery_point = self.recovery_point.min(self.log.durable());
        reopen.log_start = Some(self.log.log_start());
        let (log, report) = Log::open(&self.shard, reopen).await.unwrap();
        // Space that an earlier life's row reserved may look like a loss to this one's.
        let zeros = |cut: &Cut| cut.reason.starts_with("nothing but zeros");
        assert!(report.cuts.iter().all(zeros), "{:?}", report.cuts);
        assert_eq!(report.segments_deleted, vec![]);
        assert_eq!(log.log_start().0, self.log_start);
        assert_eq!(log.log_end().0, self.end());
        self.log = log;
    }

    async fn read_everything(&mut self) {
        self.log.writer_idle().await;
        let first = self
            .known
            .iter()
            .position(|batch| batch.last >= self.log_start);
        let known: Vec<(i64, i64)> = first.map_or(Vec::new(), |first| {
            self.known[first..]
                .iter()
                .map(|batch| (batch.base, batch.last))
                .collect()
        });
        assert_eq!(read_all(&self.log, Offset(self.log_start)).await, known);
    }

    async fn step(&mut self) {
        match self.rng.u32(..100) {
            0..=59 => self.append(),
            60..=79 => self.read().await,
            80..=84 => self.look_up_time().await,
            85 => self.log.roll(NOW_MS),
            86..=87 => self.log.flush().await.unwrap(),
            88..=90 => self.truncate().await,
            91 => {
                let to = self.rng.i64(self.log_start..=self.end());
                self.log.delete_records_to(Offset(to)).unwrap();
                self.log_start = to;
                self.log.apply_retention(NOW_MS, self.log.log_end());
            }
            92..=93 => self.reopen(true).await,
            94..=96 => self.reopen(false).await,
            97 if self.rng.u8(..) < 40 => {
                let at = self.end() + self.rng.i64(-5..100);
                let at = at.max(0);
                self.log
                    .truncate_fully_and_start_at(Offset(at))
                    .await
                    .unwrap();
                self.known.clear();
                self.log_start = at;
                self.recovery_point = Offset(0);
            }
            _ => self.read_everything().await,
        }
    }
}

async fn run(dir: PathBuf, seed: u64, steps: usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let limits = ShardLimits {
        recent_batch_bytes: if rng.bool() { 0 } else { 3000 },
        sealed_index_bytes: if rng.bool() { 0 } else { 500 },
        read_ahead_bytes: [0, 2 << 20, 64 << 20][rng.usize(..3)],
        writes: small_writes(),
        ..ShardLimits::default()
    };
    let shard = LogShard::new(limits);
    let config = LogConfig {
        segment_io: if rng.bool() {
            SegmentIo::Direct
        } else {
            SegmentIo::Buffered
        },
        retention_ms: -1,
        ..small_segments()
    };
    let (log, _) = open(&shard, &dir, config.clone()).await;
    let mut history = History {
        rng,
        dir,
        shard,
        config,
        log,
        known: Vec::new(),
        log_start: 0,
        recovery_point: Offset(0),
    };
    for _ in 0..steps {
        history.step().await;
    }
    history.read_everything().await;
}

#[test]
fn histories_lose_invent_and_reorder_nothing() {
    for seed in seeds(40) {
        cleaning::in_world(seed, move |dir| run(dir, seed, 300));
    }
}

#[test]
fn histories_on_a_real_disk_lose_invent_and_reorder_nothing() {
    for seed in seeds(12) {
        on_shard(move |dir| run(dir, seed, 300));
    }
}
