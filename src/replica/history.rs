//! What the decisions about a replica must know of its log, and what a leader answers to a fetch
//! position: whether the fetcher's history is a prefix of its own. Pure. Never reads records.

use super::mutation::{self, Mutation};
use crate::log::Log;
use crate::types::{LeaderEpoch, Offset};
use crate::wire::ErrorCode;

/// A replica's log as leader and follower see it: its bounds and its leader epochs.
pub trait History {
    fn log_start(&self) -> Offset;
    fn log_end(&self) -> Offset;
    /// The newest epoch known; `None` for a log that knows none.
    fn latest_epoch(&self) -> Option<LeaderEpoch>;
    /// The largest epoch not above `epoch` and where it ends; `None` if that is undefined.
    fn end_of(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)>;
}

impl History for Log {
    fn log_start(&self) -> Offset {
        Log::log_start(self)
    }

    fn log_end(&self) -> Offset {
        Log::log_end(self)
    }

    fn latest_epoch(&self) -> Option<LeaderEpoch> {
        Log::latest_epoch(self)
    }

    fn end_of(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        self.end_offset_for_epoch(epoch)
    }
}

/// Where a reader stands: the offset it wants next and the epoch of the record before it (-1 for
/// none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub from: Offset,
    pub last_epoch: LeaderEpoch,
}

/// Whether a log can serve `position`: the (epoch, end offset) where the reader's log leaves it
/// if it does (KIP-595, also for consumers by KIP-320).
///
/// # Errors
/// OFFSET_OUT_OF_RANGE.
pub fn divergence(
    log: &impl History,
    position: Position,
) -> Result<Option<(LeaderEpoch, Offset)>, ErrorCode> {
    let Position { from, last_epoch } = position;
    if last_epoch.0 >= 0 {
        let Some((epoch, end)) = log.end_of(last_epoch) else {
            return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
        };
        if from < log.log_start() {
            return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
        }
        let ignored = mutation::is_on(Mutation::KeepDivergence);
        if (epoch < last_epoch || end < from) && !ignored {
            return Ok(Some((epoch, end)));
        }
    }
    if from < log.log_start() || from > log.log_end() {
        return Err(ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    Ok(None)
}

#[cfg(test)]
pub(super) mod model {
    use super::*;
    use crate::log::leader_epochs::LeaderEpochs;

    /// A log of nothing but bounds and epochs.
    #[derive(Clone, Debug, Default)]
    pub struct Bare {
        pub start: Offset,
        pub end: Offset,
        pub epochs: LeaderEpochs,
    }

    impl Bare {
        /// A log from 0 to `end` with these (epoch, start offset).
        pub fn new(end: i64, epochs: &[(i32, i64)]) -> Bare {
            let mut bare = Bare {
                end: Offset(end),
                ..Bare::default()
            };
            for (epoch, start) in epochs {
                bare.epochs.assign(LeaderEpoch(*epoch), Offset(*start));
            }
            bare
        }
    }

    impl History for Bare {
        fn log_start(&self) -> Offset {
            self.start
        }

        fn log_end(&self) -> Offset {
            self.end
        }

        fn latest_epoch(&self) -> Option<LeaderEpoch> {
            self.epochs.latest_epoch()
        }

        fn end_of(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
            let end = self.epochs.end_offset_for(epoch, self.end)?;
            Some((end.epoch, end.end_offset))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::model::Bare;
    use super::*;

    fn ask(log: &Bare, from: i64, last_epoch: i32) -> Result<Option<(i32, i64)>, ErrorCode> {
        let position = Position {
            from: Offset(from),
            last_epoch: LeaderEpoch(last_epoch),
        };
        divergence(log, position).map(|found| found.map(|(epoch, end)| (epoch.0, end.0)))
    }

    #[test]
    fn a_reader_is_told_where_its_history_leaves_the_logs() {
        let mut log = Bare::new(20, &[(1, 0), (3, 10)]);
        log.start = Offset(2);
        let out = Err(ErrorCode::OFFSET_OUT_OF_RANGE);
        for (from, epoch, told) in [
            (20, 3, Ok(None)),
            (10, 1, Ok(None)),
            (12, 1, Ok(Some((1, 10)))),
            (10, 2, Ok(Some((1, 10)))),
            (21, 3, Ok(Some((3, 20)))),
            (5, 4, out),
            (1, 1, out),
            (20, -1, Ok(None)),
            (21, -1, out),
            (1, -1, out),
        ] {
            assert_eq!(ask(&log, from, epoch), told, "{from} {epoch}");
        }
    }
}
