//! Owns what `flush.messages` above 1 asks for: when a flush is due, and which acknowledgements wait
//! for it. Pure, on the log's shard. With 1 every acknowledgement waits, which the durability row
//! says; this is not asked then.
//!
//! Kafka flushes inside the append that makes so many records unflushed, before it answers. So this
//! append, and what comes behind it, waits here; the records before it are acknowledged from memory.

use crate::types::Offset;

use super::watermarks::Watermarks;

/// Counts records that no flush covers yet. What is acknowledged from memory stays below
/// `flush.messages` of them at any moment.
#[derive(Debug)]
pub struct FlushInterval {
    /// Records from here on count: none below is acknowledged before it is durable.
    counted_from: Offset,
    /// A flush that covers everything below is under way or done.
    planned: Offset,
    /// From the first append that made a flush due to the end of the last one.
    held: (Offset, Offset),
}

impl FlushInterval {
    /// Of a log that is durable up to `durable`.
    pub fn from(durable: Offset) -> FlushInterval {
        FlushInterval {
            counted_from: durable,
            planned: durable,
            held: (durable, durable),
        }
    }

    /// Offsets from `base` to `end` were assigned; a flush is due with every `messages` records.
    pub fn appended(&mut self, base: Offset, end: Offset, messages: i64, marks: &Watermarks) {
        // A flush that is under way may yet fail: only what is durable counts no more.
        let from = self.counted_from.max(marks.durable()).min(end);
        let counted = end.since(from);
        if i64::try_from(counted).unwrap_or(i64::MAX) >= messages {
            let first = if self.is_held(marks) {
                self.held.0
            } else {
                base
            };
            self.held = (first, end);
            self.counted_from = end;
        }
    }

    fn is_held(&self, marks: &Watermarks) -> bool {
        marks.durable() < self.held.1
    }

    /// Up to where records may be acknowledged.
    pub fn acknowledged(&self, marks: &Watermarks) -> Offset {
        if self.is_held(marks) {
            marks.durable().max(self.held.0).min(marks.written())
        } else {
            marks.written()
        }
    }

    /// Whether a flush is due that nobody has begun.
    pub fn is_due(&self) -> bool {
        self.planned < self.held.1
    }

    /// A flush of everything below `upto` begins.
    pub fn planned(&mut self, upto: Offset) {
        self.planned = self.planned.max(upto);
    }

    /// The log ends at `offset` now. A flush under way counts for nothing any more.
    pub fn cut(&mut self, offset: Offset, marks: &Watermarks) {
        self.planned = marks.durable().min(offset);
        self.counted_from = self.counted_from.min(offset);
        self.held = (self.held.0.min(offset), self.held.1.min(offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Log {
        marks: Watermarks,
        interval: FlushInterval,
    }

    impl Log {
        fn new() -> Log {
            Log {
                marks: Watermarks::starting_at(Offset(0)),
                interval: FlushInterval::from(Offset(0)),
            }
        }

        /// Appends and writes; up to where is acknowledged.
        fn append(&mut self, records: i64) -> i64 {
            let base = self.marks.log_end();
            let end = Offset(base.0 + records);
            self.interval.appended(base, end, 10, &self.marks);
            self.marks.appended_to(end);
            self.marks.written_to(end);
            self.interval.acknowledged(&self.marks).0
        }

        fn begin_flush(&mut self) -> Offset {
            self.interval.planned(self.marks.written());
            self.marks.written()
        }

        fn end_flush(&mut self, upto: Offset) -> i64 {
            self.marks.flushed_to(upto);
            self.interval.acknowledged(&self.marks).0
        }
    }

    #[test]
    fn the_append_that_makes_a_flush_due_waits_and_those_before_it_do_not() {
        let mut log = Log::new();
        assert_eq!((log.append(4), log.append(5)), (4, 9));
        assert!(!log.interval.is_due());
        assert_eq!(log.append(1), 9);
        assert!(log.interval.is_due());
        // Nor is what comes behind acknowledged before.
        assert_eq!(log.append(3), 9);
        let flush = log.begin_flush();
        assert!(!log.interval.is_due());
        assert_eq!(log.append(2), 9);
        assert_eq!(log.end_flush(flush), 15);
        // Counted from where the flush reached.
        assert_eq!(log.append(7), 22);
        assert_eq!(log.append(1), 22);
        assert!(log.interval.is_due());
    }

    #[test]
    fn a_flush_that_is_under_way_for_another_reason_lets_no_more_go_unflushed() {
        let mut log = Log::new();
        assert_eq!(log.append(9), 9);
        let flush = log.begin_flush();
        // Ten are not durable, whatever is on its way.
        assert_eq!(log.append(1), 9);
        assert!(log.interval.is_due());
        assert_eq!(log.end_flush(flush), 9);
        let flush = log.begin_flush();
        assert_eq!(log.end_flush(flush), 10);
    }

    #[test]
    fn one_flush_after_the_other_lets_acknowledgements_go_on() {
        let mut log = Log::new();
        assert_eq!(log.append(10), 0);
        for round in 1..100 {
            let flush = log.begin_flush();
            assert_eq!(log.append(10), 10 * (round - 1));
            assert_eq!(log.end_flush(flush), 10 * round);
            assert!(log.interval.is_due());
        }
    }

    #[test]
    fn a_flush_that_a_cut_overtook_is_asked_for_again() {
        let mut log = Log::new();
        log.append(4);
        log.append(8);
        log.begin_flush();
        log.marks.truncated_to(Offset(6));
        log.interval.cut(Offset(6), &log.marks);
        assert!(log.interval.is_due());
        assert_eq!(log.interval.acknowledged(&log.marks), Offset(4));
        let flush = log.begin_flush();
        assert_eq!(log.end_flush(flush), 6);
        assert_eq!(log.append(9), 15);
    }

    #[test]
    fn many_unflushed_records_of_an_earlier_life_make_the_first_append_wait() {
        let mut log = Log::new();
        log.marks = Watermarks::recovered(Offset(0), Offset(3), Offset(50));
        log.interval = FlushInterval::from(Offset(3));
        assert_eq!(log.append(1), 50);
        assert!(log.interval.is_due());
    }
}
