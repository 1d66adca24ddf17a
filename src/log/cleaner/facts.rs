//! Owns what the choice is told of a log. On the log's shard. It decides nothing.

use std::rc::Rc;

use super::super::error::LogError;
use super::super::log::{Log, LogState};
use super::super::recover::extent_of;
use super::super::scan::{ScanError, Scanner};
use super::super::segment::Segment;
use super::choice::{ChoiceRules, LogFacts, SegmentFacts};
use crate::rt::sync::Semaphore;
use crate::types::Offset;

impl Log {
    pub(super) fn choice_rules(&self) -> ChoiceRules {
        let config = self.config();
        ChoiceRules {
            min_dirty_ratio: config.min_cleanable_dirty_ratio,
            min_lag_ms: config.min_compaction_lag_ms,
            max_lag_ms: config.max_compaction_lag_ms,
        }
    }

    /// What the choice goes by, under this high watermark.
    ///
    /// # Errors
    /// A first batch cannot be read.
    pub(super) async fn choice_facts(&self, high_watermark: Offset) -> Result<LogFacts, LogError> {
        if self.choice_rules().max_lag_ms != i64::MAX {
            self.learn_first_timestamps().await?;
        }
        if self.has_unflushed_sealed() {
            // They may be cleaned once they are on the device; a roll may have missed them after
            // an unclean start. Not in the shard's rounds, whose waiters are in a hurry.
            self.flush_written(&Rc::new(Semaphore::new(1)), false).await;
        }
        let last_stable = self.last_stable_offset(high_watermark);
        let state = self.state();
        Ok(LogFacts {
            segments: state.segments.values().map(facts_of).collect(),
            log_start: state.marks.log_start(),
            log_end: state.marks.log_end(),
            last_stable,
            first_dirty: state.first_dirty,
        })
    }

    fn has_unflushed_sealed(&self) -> bool {
        let state = self.state();
        let mut segments = state.segments.values();
        segments.any(|segment| segment.is_sealed() && !segment.is_synced())
    }

    /// A sealed segment found on disk does not know when its first batch was written.
    async fn learn_first_timestamps(&self) -> Result<(), LogError> {
        for segment in self.strangers() {
            let Some(handles) = segment.handles() else {
                continue;
            };
            let mut scanner = Scanner::short(handles.reader, 0, segment.size());
            match scanner.next().await {
                Ok(Some((_, batch))) => {
                    segment.adopt_first_timestamp(extent_of(&batch).max_timestamp);
                }
                Ok(None) => {}
                Err(ScanError::Io(error)) => return Err(self.storage_error("read", error)),
                Err(ScanError::Damaged { position, error }) => {
                    return Err(self.damaged(&segment, position, &error.to_string()));
                }
            }
        }
        Ok(())
    }

    fn strangers(&self) -> Vec<Rc<Segment>> {
        let unknown = |state: &LogState| {
            state
                .segments
                .values()
                .filter(|segment| segment.is_sealed() && segment.size() > 0)
                .filter(|segment| segment.first_timestamp().is_none())
                .cloned()
                .collect()
        };
        unknown(&self.state())
    }
}

fn facts_of(segment: &Rc<Segment>) -> SegmentFacts {
    let whole = segment.written() == segment.size() && segment.file_len() == segment.size();
    SegmentFacts {
        base: segment.base(),
        bytes: segment.size(),
        largest_timestamp: segment.retention_timestamp(),
        first_timestamp: segment.first_timestamp(),
        settled: segment.is_sealed()
            && segment.is_settled()
            && whole
            && segment.handles().is_some(),
    }
}
