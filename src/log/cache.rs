//! Owns the batches a shard appended most recently, over all its logs, so that followers and
//! tailing consumers are answered with the very bytes that came in: no copy, no system call.
//! On the shard that owns the logs. It never holds a batch that is not in the log: truncation
//! drops entries before it cuts the file.
//!
//! Limit: bytes per shard, the oldest batch over all logs leaves first. Kept per log as one
//! contiguous run of batches that ends at the log's end.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::types::Offset;

/// What an entry costs beside its bytes: its two slots and map overhead, so that a flood of tiny
/// batches is bounded as well.
const ENTRY_OVERHEAD_BYTES: u64 = 160;

/// Spent order tokens tolerated before the order queue is rebuilt.
const STALE_TOKENS_MAX: usize = 4096;

/// One batch as it lies in a segment: header part and body part, or one piece.
#[derive(Clone, Debug)]
pub struct CachedBatch {
    pub base: Offset,
    pub last: Offset,
    /// The segment's base offset and the batch's position in it.
    pub segment: Offset,
    pub position: u64,
    pub size: u32,
    pub parts: SmallVec<[Bytes; 2]>,
}

/// Names a log within its shard.
pub type LogKey = u64;

/// The recent batches of one shard.
pub struct RecentBatches {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    logs: HashMap<LogKey, VecDeque<CachedBatch>, ahash::RandomState>,
    /// Insertion order over all logs: (log, base offset of the batch).
    order: VecDeque<(LogKey, Offset)>,
    entries: usize,
    bytes: u64,
    limit_bytes: u64,
}

impl RecentBatches {
    pub fn new(limit_bytes: u64) -> RecentBatches {
        RecentBatches {
            inner: RefCell::new(Inner {
                limit_bytes,
                ..Inner::default()
            }),
        }
    }

    /// Remembers a batch that was just appended at the end of its log.
    pub fn insert(&self, log: LogKey, batch: CachedBatch) {
        let mut inner = self.inner.borrow_mut();
        if cost(&batch) > inner.limit_bytes {
            inner.clear(log);
            return;
        }
        let contiguous = inner
            .logs
            .get(&log)
            .and_then(|run| run.back())
            .is_none_or(|back| back.last.next() == batch.base);
        if !contiguous {
            inner.clear(log);
        }
        inner.bytes += cost(&batch);
        inner.entries += 1;
        inner.order.push_back((log, batch.base));
        inner.logs.entry(log).or_default().push_back(batch);
        inner.evict();
    }

    /// Visits the batches of `log` from the one that holds `from`, in order, until `visit`
    /// answers false. False if that batch is not here (then nothing is visited).
    pub fn scan(
        &self,
        log: LogKey,
        from: Offset,
        mut visit: impl FnMut(&CachedBatch) -> bool,
    ) -> bool {
        let inner = self.inner.borrow();
        let Some(run) = inner.logs.get(&log) else {
            return false;
        };
        let start = run.partition_point(|batch| batch.last < from);
        match run.get(start) {
            // A gap before the first entry may hold `from`: only the disk knows.
            Some(first) if first.base <= from => {}
            _ => return false,
        }
        for batch in run.iter().skip(start) {
            if !visit(batch) {
                break;
            }
        }
        true
    }

    /// Where the batch that holds or follows `offset` begins, if it is here.
    pub fn position_of(&self, log: LogKey, offset: Offset) -> Option<(Offset, u64)> {
        let mut found = None;
        self.scan(log, offset, |batch| {
            found = Some((batch.segment, batch.position));
            false
        });
        found
    }

    /// Drops every batch of `log` that reaches to or past `offset`.
    pub fn truncate(&self, log: LogKey, offset: Offset) {
        self.drop_while(log, |run| {
            let goes = run.back()?.last >= offset;
            goes.then(|| run.pop_back()).flatten()
        });
    }

    /// Drops every batch of `log` that begins before `offset`.
    pub fn forget_below(&self, log: LogKey, offset: Offset) {
        self.drop_while(log, |run| {
            let goes = run.front()?.base < offset;
            goes.then(|| run.pop_front()).flatten()
        });
    }

    fn drop_while(
        &self,
        log: LogKey,
        mut next: impl FnMut(&mut VecDeque<CachedBatch>) -> Option<CachedBatch>,
    ) {
        let mut inner = self.inner.borrow_mut();
        let Inner {
            logs,
            bytes,
            entries,
            ..
        } = &mut *inner;
        if let Some(run) = logs.get_mut(&log) {
            while let Some(batch) = next(run) {
                *bytes -= cost(&batch);
                *entries -= 1;
            }
        }
        inner.tidy();
    }

    /// Drops everything of `log`.
    pub fn forget(&self, log: LogKey) {
        let mut inner = self.inner.borrow_mut();
        inner.clear(log);
        inner.logs.remove(&log);
        inner.tidy();
    }

    /// Bytes held, overhead included.
    pub fn bytes(&self) -> u64 {
        self.inner.borrow().bytes
    }
}

impl Inner {
    fn clear(&mut self, log: LogKey) {
        if let Some(run) = self.logs.get_mut(&log) {
            for batch in run.drain(..) {
                self.bytes -= cost(&batch);
                self.entries -= 1;
            }
        }
    }

    fn evict(&mut self) {
        while self.bytes > self.limit_bytes {
            let Some((log, base)) = self.order.pop_front() else {
                break;
            };
            let Some(run) = self.logs.get_mut(&log) else {
                continue;
            };
            // A token whose batch is gone (truncated) names nobody's front.
            if run.front().is_some_and(|front| front.base == base)
                && let Some(batch) = run.pop_front()
            {
                self.bytes -= cost(&batch);
                self.entries -= 1;
            }
        }
        self.tidy();
    }

    /// Rebuilds the order queue once spent tokens outnumber the live ones.
    fn tidy(&mut self) {
        if self.order.len() <= 2 * self.entries + STALE_TOKENS_MAX {
            return;
        }
        let mut live: HashMap<LogKey, VecDeque<Offset>, ahash::RandomState> = self
            .logs
            .iter()
            .map(|(log, run)| (*log, run.iter().map(|batch| batch.base).collect()))
            .collect();
        // Backwards, because of two tokens with one base the later one is the live one.
        let mut kept = VecDeque::with_capacity(self.entries);
        while let Some((log, base)) = self.order.pop_back() {
            if let Some(bases) = live.get_mut(&log)
                && bases.back() == Some(&base)
            {
                bases.pop_back();
                kept.push_front((log, base));
            }
        }
        self.order = kept;
    }
}

fn cost(batch: &CachedBatch) -> u64 {
    u64::from(batch.size) + ENTRY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(base: i64, count: i64, size: u32) -> CachedBatch {
        CachedBatch {
            base: Offset(base),
            last: Offset(base + count - 1),
            segment: Offset(0),
            position: base as u64 * 10,
            size,
            parts: SmallVec::from_iter([Bytes::from(vec![base as u8; size as usize])]),
        }
    }

    fn bases(cache: &RecentBatches, log: LogKey, from: i64) -> Option<Vec<i64>> {
        let mut seen = Vec::new();
        let hit = cache.scan(log, Offset(from), |b| {
            seen.push(b.base.0);
            true
        });
        hit.then_some(seen)
    }

    #[test]
    fn the_oldest_batch_of_all_logs_leaves_first_and_the_bound_holds() {
        let cache = RecentBatches::new(4 * (100 + ENTRY_OVERHEAD_BYTES));
        cache.insert(1, batch(0, 10, 100));
        cache.insert(2, batch(0, 5, 100));
        cache.insert(1, batch(10, 10, 100));
        cache.insert(2, batch(5, 5, 100));
        assert_eq!(bases(&cache, 1, 3), Some(vec![0, 10]));
        cache.insert(1, batch(20, 1, 100));
        assert_eq!(bases(&cache, 1, 3), None, "evicted, only the disk has it");
        assert_eq!(bases(&cache, 1, 10), Some(vec![10, 20]));
        assert_eq!(bases(&cache, 2, 0), Some(vec![0, 5]));
        assert!(cache.bytes() <= 4 * (100 + ENTRY_OVERHEAD_BYTES));
    }

    #[test]
    fn what_was_compacted_is_never_served_again() {
        let cache = RecentBatches::new(4 * (100 + ENTRY_OVERHEAD_BYTES));
        for base in [0, 10, 20] {
            cache.insert(1, batch(base, 10, 100));
        }
        cache.forget_below(1, Offset(20));
        assert_eq!(bases(&cache, 1, 10), None);
        assert_eq!(bases(&cache, 1, 20), Some(vec![20]));
        assert_eq!(cache.bytes(), 100 + ENTRY_OVERHEAD_BYTES);
        // The spent tokens evict nobody else.
        for base in [30, 40, 50] {
            cache.insert(1, batch(base, 10, 100));
        }
        assert_eq!(bases(&cache, 1, 20), Some(vec![20, 30, 40, 50]));
    }

    #[test]
    fn what_was_truncated_is_never_served_again() {
        let cache = RecentBatches::new(1 << 20);
        cache.insert(1, batch(0, 10, 100));
        cache.insert(1, batch(10, 10, 100));
        cache.truncate(1, Offset(15));
        assert_eq!(bases(&cache, 1, 0), Some(vec![0]));
        assert_eq!(bases(&cache, 1, 10), None);
        cache.insert(1, batch(10, 1, 50));
        assert_eq!(bases(&cache, 1, 10), Some(vec![10]));
        assert_eq!(cache.position_of(1, Offset(10)), Some((Offset(0), 100)));
    }

    #[test]
    fn a_gap_in_a_log_empties_its_run_so_that_no_read_skips_records() {
        let cache = RecentBatches::new(1 << 20);
        cache.insert(1, batch(0, 10, 100));
        cache.insert(1, batch(50, 10, 100));
        assert_eq!(bases(&cache, 1, 5), None);
        assert_eq!(
            bases(&cache, 1, 20),
            None,
            "offsets between the runs belong to the disk"
        );
        assert_eq!(bases(&cache, 1, 50), Some(vec![50]));
    }

    #[test]
    fn spent_tokens_do_not_pile_up() {
        let cache = RecentBatches::new(1 << 20);
        for _ in 0..20_000 {
            cache.insert(1, batch(0, 1, 10));
            cache.truncate(1, Offset(0));
        }
        cache.insert(1, batch(0, 1, 10));
        assert!(cache.inner.borrow().order.len() <= STALE_TOKENS_MAX + 8);
        assert_eq!(bases(&cache, 1, 0), Some(vec![0]));
        cache.forget(1);
        assert_eq!(cache.bytes(), 0);
    }
}
