//! Owns which log of a shard is cleaned next and how far: dirty share, lags, and the offsets that
//! may not be passed. Pure: it is told what each log is like. It never touches a log.

use crate::types::Offset;

/// A segment as the choice sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentFacts {
    pub base: Offset,
    pub bytes: u64,
    /// Milliseconds; of the last change where no record has one.
    pub largest_timestamp: i64,
    /// Milliseconds, of the first batch; only needed with `max.compaction.lag.ms`.
    pub first_timestamp: Option<i64>,
    /// Complete and on the device, indexes included: nothing is being written to it.
    pub settled: bool,
}

/// A log as the choice sees it.
#[derive(Clone, Debug)]
pub struct LogFacts {
    /// All segments, ascending; the last one is the active one.
    pub segments: Vec<SegmentFacts>,
    pub log_start: Offset,
    pub log_end: Offset,
    /// Below it every transaction is decided and every record committed.
    pub last_stable: Offset,
    /// From the checkpoint or the last pass; `None` if the log was never cleaned.
    pub first_dirty: Option<Offset>,
}

/// The settings of a log that the choice goes by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChoiceRules {
    /// `min.cleanable.dirty.ratio`.
    pub min_dirty_ratio: f64,
    /// `min.compaction.lag.ms`.
    pub min_lag_ms: i64,
    /// `max.compaction.lag.ms`.
    pub max_lag_ms: i64,
}

/// What could be cleaned of a log.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cleanable {
    pub first_dirty: Offset,
    /// Base of the first segment that stays out of it.
    pub end: Offset,
    pub clean_bytes: u64,
    pub dirty_bytes: u64,
    /// For how long the oldest dirty record has waited beyond `max.compaction.lag.ms`.
    pub overdue_ms: i64,
}

impl Cleanable {
    /// Dirty bytes over all bytes that a pass would read.
    pub fn dirty_ratio(&self) -> f64 {
        let all = self.clean_bytes + self.dirty_bytes;
        if all == 0 {
            return 0.0;
        }
        self.dirty_bytes as f64 / all as f64
    }

    /// Whether it is worth a pass now.
    pub fn is_due(&self, rules: &ChoiceRules) -> bool {
        let forced = self.overdue_ms > 0 && self.dirty_bytes > 0;
        forced || self.dirty_ratio() > rules.min_dirty_ratio
    }
}

/// What of the log could be cleaned at `now_ms`: whole segments, never the active one, nothing at
/// or past the last stable offset, nothing younger than the lag, nothing still being written.
pub fn cleanable(log: &LogFacts, rules: &ChoiceRules, now_ms: i64) -> Cleanable {
    let first_dirty = first_dirty(log);
    let (sealed, active) = match log.segments.split_last() {
        Some((active, sealed)) => (sealed, active.base),
        None => (&[][..], log.log_end),
    };
    let dirty = |segment: &&SegmentFacts| segment_end(log, segment.base) > first_dirty;
    let too_young = sealed.iter().filter(dirty).find(|segment| {
        rules.min_lag_ms > 0 && segment.largest_timestamp > now_ms.saturating_sub(rules.min_lag_ms)
    });
    let unsettled = sealed.iter().find(|segment| !segment.settled);
    let bounds = [
        Some(active),
        too_young.map(|segment| segment.base),
        unsettled.map(|segment| segment.base),
        sealed
            .iter()
            .map(|segment| segment.base)
            .find(|base| segment_end(log, *base) > log.last_stable),
    ];
    let end = bounds.into_iter().flatten().min().unwrap_or(active);
    let bytes = |keep: &dyn Fn(&SegmentFacts) -> bool| -> u64 {
        sealed.iter().filter(|s| keep(s)).map(|s| s.bytes).sum()
    };
    let is_dirty = |segment: &SegmentFacts| segment_end(log, segment.base) > first_dirty;
    let oldest = sealed
        .iter()
        .filter(dirty)
        .filter_map(|segment| segment.first_timestamp)
        .filter(|timestamp| *timestamp > 0)
        .min();
    let overdue_ms = oldest.map_or(0, |oldest| {
        now_ms
            .saturating_sub(rules.max_lag_ms.max(0))
            .saturating_sub(oldest)
            .max(0)
    });
    Cleanable {
        first_dirty,
        end,
        clean_bytes: bytes(&|segment| !is_dirty(segment)),
        dirty_bytes: bytes(&|segment| is_dirty(segment) && segment.base < end),
        overdue_ms,
    }
}

/// The checkpoint is believed only where it lies inside the log: otherwise retention has passed
/// it, or the log lost its tail, and all of it counts as dirty.
fn first_dirty(log: &LogFacts) -> Offset {
    log.first_dirty
        .filter(|dirty| *dirty >= log.log_start && *dirty <= log.log_end)
        .unwrap_or(log.log_start)
}

fn segment_end(log: &LogFacts, base: Offset) -> Offset {
    let next = log.segments.partition_point(|segment| segment.base <= base);
    log.segments
        .get(next)
        .map_or(log.log_end, |segment| segment.base)
}

/// The dirtiest of those that are worth a pass.
pub fn dirtiest<'a, T>(
    logs: impl IntoIterator<Item = (&'a T, Cleanable, ChoiceRules)>,
) -> Option<(&'a T, Cleanable)> {
    logs.into_iter()
        .filter(|(_, cleanable, rules)| cleanable.is_due(rules))
        .map(|(log, cleanable, _)| (log, cleanable))
        .max_by(|a, b| a.1.dirty_ratio().total_cmp(&b.1.dirty_ratio()))
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
