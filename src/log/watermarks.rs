//! Owns the offsets that say how far a log has come, and the inequality between them:
//! `log_start <= log_end` and `in_segments <= durable <= written <= log_end`, asserted at every change, in
//! release too. Pure, on the log's shard. It never knows the high watermark: replication does.

use crate::types::Offset;

/// How far a log has come. Every field is an exclusive end except `log_start`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    log_start: Offset,
    in_segments: Offset,
    durable: Offset,
    written: Offset,
    log_end: Offset,
}

impl Watermarks {
    /// An empty log that begins at `start`, nothing of which can be lost.
    pub fn starting_at(start: Offset) -> Watermarks {
        Watermarks {
            log_start: start,
            in_segments: start,
            durable: start,
            written: start,
            log_end: start,
        }
    }

    /// A log read back from disk: all of it written, durable up to `durable`.
    pub fn recovered(log_start: Offset, durable: Offset, log_end: Offset) -> Watermarks {
        let marks = Watermarks {
            log_start,
            in_segments: durable.min(log_end),
            durable: durable.min(log_end),
            written: log_end,
            log_end,
        };
        marks.check();
        marks
    }

    /// First offset that may be read.
    pub fn log_start(&self) -> Offset {
        self.log_start
    }

    /// Below this an fdatasync has succeeded, of the segments or of a journal that tells it.
    pub fn durable(&self) -> Offset {
        self.durable
    }

    /// Below this an fdatasync of the segments themselves has succeeded.
    pub fn in_segments(&self) -> Offset {
        self.in_segments
    }

    /// Below this the write has completed (page cache or device, by the segment's I/O).
    pub fn written(&self) -> Offset {
        self.written
    }

    /// Next offset to be assigned.
    pub fn log_end(&self) -> Offset {
        self.log_end
    }

    pub fn appended_to(&mut self, log_end: Offset) {
        assert!(
            log_end >= self.log_end,
            "log end moved back: {self:?} to {log_end}"
        );
        self.log_end = log_end;
        self.check();
    }

    pub fn written_to(&mut self, written: Offset) {
        assert!(
            written >= self.written,
            "written moved back: {self:?} to {written}"
        );
        self.written = written;
        self.check();
    }

    /// A flush that had captured `durable` succeeded. A flush may end after a truncation below
    /// what it covered, so it is bounded by what is written now. True if the mark moved.
    pub fn flushed_to(&mut self, durable: Offset) -> bool {
        let durable = durable.min(self.written);
        let moved = durable > self.durable;
        self.in_segments = self.in_segments.max(durable);
        self.durable = self.durable.max(durable);
        self.check();
        moved
    }

    /// A journal tells everything below `durable`.
    pub fn journaled_to(&mut self, durable: Offset) {
        self.durable = self.durable.max(durable.min(self.written));
        self.check();
    }

    pub fn start_moved_to(&mut self, log_start: Offset) {
        assert!(
            log_start >= self.log_start,
            "log start moved back: {self:?} to {log_start}"
        );
        self.log_start = log_start;
        self.check();
    }

    /// Cuts the end; never below the log start.
    pub fn truncated_to(&mut self, log_end: Offset) {
        self.log_end = self.log_end.min(log_end);
        self.written = self.written.min(self.log_end);
        self.durable = self.durable.min(self.written);
        self.in_segments = self.in_segments.min(self.durable);
        self.log_start = self.log_start.min(self.log_end);
        self.check();
    }

    fn check(&self) {
        assert!(
            self.log_start <= self.log_end
                && self.in_segments <= self.durable
                && self.durable <= self.written
                && self.written <= self.log_end,
            "watermark chain broken: {self:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_that_ends_after_a_truncation_does_not_claim_what_was_cut() {
        let mut marks = Watermarks::starting_at(Offset(0));
        marks.appended_to(Offset(10));
        marks.written_to(Offset(10));
        marks.truncated_to(Offset(4));
        assert!(marks.flushed_to(Offset(10)));
        assert_eq!(marks.durable(), Offset(4));
        assert!(!marks.flushed_to(Offset(3)));
        assert_eq!(marks.durable(), Offset(4));
    }

    #[test]
    fn what_only_the_journal_tells_is_durable_but_not_in_the_segments() {
        let mut marks = Watermarks::starting_at(Offset(0));
        marks.appended_to(Offset(10));
        marks.written_to(Offset(10));
        marks.journaled_to(Offset(8));
        assert_eq!(
            (marks.in_segments(), marks.durable()),
            (Offset(0), Offset(8))
        );
        assert!(!marks.flushed_to(Offset(6)));
        assert_eq!(
            (marks.in_segments(), marks.durable()),
            (Offset(6), Offset(8))
        );
        marks.truncated_to(Offset(3));
        assert_eq!(
            (marks.in_segments(), marks.durable()),
            (Offset(3), Offset(3))
        );
    }

    #[test]
    #[should_panic(expected = "watermark chain broken")]
    fn written_past_the_log_end_is_caught_in_release_too() {
        let mut marks = Watermarks::starting_at(Offset(5));
        marks.written_to(Offset(6));
    }
}
