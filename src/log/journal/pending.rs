//! Owns the batches of one log that no flush covers yet, for the shard's journal. On the log's
//! shard, pure. Empty unless the log's durability row waits for the flush: no other row pays.
//!
//! Limit: bytes per log. Past it the queue is given up: a log with that much to flush is cheaper
//! flushed by its segment, and the journal would only write it twice.

use std::collections::VecDeque;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::types::Offset;

/// Batches that no flush covers, oldest first, without a gap.
pub(in crate::log) struct Pending {
    batches: VecDeque<PendingBatch>,
    bytes: u64,
    bytes_max: u64,
}

struct PendingBatch {
    base: Offset,
    end: Offset,
    parts: SmallVec<[Bytes; 2]>,
    size: u64,
}

/// What a log has for the journal: everything from `from` to `upto`.
pub(in crate::log) struct Unflushed {
    pub from: Offset,
    pub upto: Offset,
    pub parts: SmallVec<[Bytes; 2]>,
    pub size: u64,
}

impl Pending {
    /// Holds at most `bytes_max`.
    pub fn new(bytes_max: u64) -> Pending {
        Pending {
            batches: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// A batch was appended at the log's end.
    pub fn push(&mut self, base: Offset, end: Offset, parts: SmallVec<[Bytes; 2]>, size: u64) {
        let gap = self.batches.back().is_some_and(|back| back.end != base);
        if gap || self.bytes + size > self.bytes_max {
            self.clear();
            if size > self.bytes_max {
                return;
            }
        }
        self.bytes += size;
        self.batches.push_back(PendingBatch {
            base,
            end,
            parts,
            size,
        });
    }

    /// What lies between `durable` and `written`, if all of it is here.
    pub fn between(&self, durable: Offset, written: Offset) -> Option<Unflushed> {
        let first = self.batches.front()?;
        if first.base > durable || written <= durable {
            return None;
        }
        let mut found = Unflushed {
            from: first.base,
            upto: first.base,
            parts: SmallVec::new(),
            size: 0,
        };
        for batch in &self.batches {
            if batch.end > written {
                break;
            }
            found.upto = batch.end;
            found.parts.extend(batch.parts.iter().cloned());
            found.size += batch.size;
        }
        (found.upto == written).then_some(found)
    }

    /// A flush covers everything below `durable`.
    pub fn flushed_to(&mut self, durable: Offset) {
        while let Some(front) = self.batches.front()
            && front.end <= durable
        {
            self.bytes -= front.size;
            self.batches.pop_front();
        }
    }

    /// The log's tail is cut at `offset`.
    pub fn cut(&mut self, offset: Offset) {
        while let Some(back) = self.batches.back()
            && back.end > offset
        {
            self.bytes -= back.size;
            self.batches.pop_back();
        }
    }

    pub fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG_BYTES_MAX: u64 = 64 << 10;

    fn push(pending: &mut Pending, base: i64, end: i64, size: usize) {
        let parts = SmallVec::from_iter([Bytes::from(vec![base as u8; size])]);
        pending.push(Offset(base), Offset(end), parts, size as u64);
    }

    fn between(pending: &Pending, durable: i64, written: i64) -> Option<(i64, i64, u64)> {
        let found = pending.between(Offset(durable), Offset(written))?;
        Some((found.from.0, found.upto.0, found.size))
    }

    #[test]
    fn only_a_run_that_reaches_from_durable_to_written_is_given() {
        let mut pending = Pending::new(LOG_BYTES_MAX);
        assert_eq!(between(&pending, 0, 0), None);
        push(&mut pending, 5, 7, 10);
        push(&mut pending, 7, 8, 10);
        assert_eq!(between(&pending, 5, 8), Some((5, 8, 20)));
        assert_eq!(between(&pending, 5, 7), Some((5, 7, 10)));
        assert_eq!(between(&pending, 4, 8), None, "4 is not here");
        assert_eq!(between(&pending, 5, 9), None, "8 is not here");
        pending.flushed_to(Offset(7));
        assert_eq!(between(&pending, 7, 8), Some((7, 8, 10)));
        pending.cut(Offset(7));
        assert_eq!(between(&pending, 7, 7), None);
    }

    #[test]
    fn more_than_the_limit_is_given_up_until_a_flush_caught_up() {
        let mut pending = Pending::new(LOG_BYTES_MAX);
        push(&mut pending, 0, 1, LOG_BYTES_MAX as usize);
        push(&mut pending, 1, 2, 10);
        assert_eq!(between(&pending, 0, 2), None);
        assert_eq!(between(&pending, 1, 2), Some((1, 2, 10)));
        push(&mut pending, 2, 3, LOG_BYTES_MAX as usize + 1);
        assert_eq!(between(&pending, 2, 3), None);
        push(&mut pending, 3, 4, 1);
        assert_eq!(between(&pending, 3, 4), Some((3, 4, 1)));
    }
}
