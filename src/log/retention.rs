//! Owns which segments a log gives up by age, by size and below its start. On the log's shard,
//! called from the manager's tick. It never deletes a record above the high watermark, and never
//! waits for the disk: files are renamed and unlinked behind.

use std::rc::Rc;

use crate::types::Offset;

use super::journal::Change;
use super::log::{Log, LogState, Status};

/// Why a segment went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetentionCause {
    Time,
    Size,
    LogStart,
}

/// What one retention pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Base offset, bytes, and the rule that let the segment go.
    pub deleted: Vec<(Offset, u64, RetentionCause)>,
}

impl RetentionReport {
    pub fn bytes(&self) -> u64 {
        self.deleted.iter().map(|(_, bytes, _)| bytes).sum()
    }
}

impl Log {
    /// Gives up the oldest segments that `retention.ms`, `retention.bytes` or the log start let
    /// go, as long as they lie below `high_watermark`. A compact-only log keeps to its log start.
    pub fn apply_retention(&self, now_ms: i64, high_watermark: Offset) -> RetentionReport {
        let mut report = RetentionReport::default();
        {
            let mut guard = self.state_mut();
            let state = &mut *guard;
            if !matches!(state.status, Status::Open) {
                return report;
            }
            let causes = plan(state, now_ms, high_watermark);
            if causes.is_empty() {
                return report;
            }
            if causes.len() == state.segments.len() {
                // The active one goes too: the log goes on in a new, empty one.
                let base = state.marks.log_end();
                self.roll_at(state, base, now_ms);
            }
            for cause in causes {
                let Some((base, segment)) = state.segments.pop_first() else {
                    break;
                };
                report.deleted.push((base, segment.size(), cause));
                state.doomed.push_back(segment);
            }
            let first = state.segments.keys().next().copied().unwrap_or_default();
            if first > state.marks.log_start() {
                self.move_log_start(state, first);
            }
        }
        for (base, bytes, cause) in &report.deleted {
            tracing::info!(
                topic = self.topic(), partition = self.partition(), segment = %base, bytes,
                ?cause, "segment deleted"
            );
        }
        self.doom_behind();
        report
    }

    fn doom_behind(&self) {
        let log = self.rc();
        drop(crate::rt::spawn(async move {
            let _permit = log.upkeep.acquire(1).await;
            if log.check_usable().is_err() {
                return;
            }
            // Else a replay would raise what is deleted, were the new file lost with the power.
            let start = log.log_start();
            if log.tell_journal(start, Change::LogStart).await.is_err() {
                return;
            }
            // One after the other, oldest first: a hole between those that are gone and those that
            // are not would look like a loss after a power cut.
            loop {
                let Some(segment) = log.state().doomed.front().cloned() else {
                    return;
                };
                if let Err(error) = log.doom_segments(&[segment]).await {
                    log.fail("delete segments", error);
                    return;
                }
                log.state_mut().doomed.pop_front();
            }
        }));
    }
}

/// The causes for which the first segments go, one each, oldest first.
fn plan(state: &LogState, now_ms: i64, high_watermark: Offset) -> Vec<RetentionCause> {
    let config = &state.config;
    let total: u64 = state.segments.values().map(|segment| segment.size()).sum();
    let mut surplus = match config.retention_bytes {
        limit if limit >= 0 => total.checked_sub(limit as u64),
        _ => None,
    };
    let mut causes = Vec::new();
    for (base, segment) in &state.segments {
        let end = state.end_of(*base);
        let is_active = Rc::ptr_eq(segment, state.active());
        let settled = segment.written() == segment.size() && segment.handles().is_some();
        // An empty one that is not the last is what Kafka's compaction may leave.
        if end > high_watermark || !settled || (is_active && segment.size() == 0) {
            break;
        }
        let age_ms = now_ms.saturating_sub(segment.retention_timestamp());
        let by_time = config.delete && config.retention_ms >= 0 && age_ms > config.retention_ms;
        let by_size = config.delete && surplus.is_some_and(|surplus| surplus >= segment.size());
        let below_start = end <= state.marks.log_start() && !is_active;
        let cause = match (by_time, by_size, below_start) {
            (true, ..) => RetentionCause::Time,
            (_, true, _) => RetentionCause::Size,
            (.., true) => RetentionCause::LogStart,
            _ => break,
        };
        surplus = surplus.and_then(|surplus| surplus.checked_sub(segment.size()));
        causes.push(cause);
    }
    causes
}
