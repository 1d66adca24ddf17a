//! What a follower of a partition knows and decides: where to fetch, what an answer of the leader
//! means, where to cut its log, how far consumers may read. Pure; one value per followed
//! partition, on the partition's shard. Never touches the log; its caller does what it says.

use super::history::History;
use crate::rt::Instant;
use crate::types::{LeaderEpoch, NodeId, Offset};
use crate::wire::ErrorCode;
use std::time::Duration;

/// The first pause after a refused fetch. Right after an election the leader may not know yet
/// that it is one, which takes it milliseconds; each further pause is twice as long, up to
/// `replica.fetch.backoff.ms`.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Where a follower stands when it asks; its answer means something only for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub epoch: LeaderEpoch,
    pub from: Offset,
    /// Epoch of the last record, -1 for none.
    pub last_epoch: LeaderEpoch,
    pub log_start: Offset,
}

/// What the leader answers for one partition, beside the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub error: ErrorCode,
    pub high_watermark: Offset,
    pub log_start: Offset,
    /// Where the leader's history leaves ours: (epoch, end offset).
    pub diverging: Option<(LeaderEpoch, Offset)>,
}

/// What is to be done with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Append its records as they are, then [`Follower::settle`].
    Append,
    /// Cut the log at this offset; then fetch again.
    Truncate(Offset),
    /// Throw the log away and begin at this offset; then fetch again.
    StartOver(Offset),
    /// Ask the leader for its latest offset, for [`Follower::on_latest`].
    AskLatest,
    /// Ask the leader for its earliest offset, for [`Follower::on_earliest`].
    AskEarliest,
    /// Fetch again, after the pause if there is one.
    FetchAgain,
    /// Nothing to do: another role or position holds by now.
    Ignore,
}

/// Follower state of one partition within one leader epoch.
#[derive(Clone, Debug)]
pub struct Follower {
    epoch: LeaderEpoch,
    /// `None` while the partition has no leader.
    leader: Option<NodeId>,
    high_watermark: Offset,
    /// Records between our log's end and the leader's high watermark, at its last answer; `None`
    /// before the first.
    lag: Option<u64>,
    pause: Option<Pause>,
    /// The leader says that our epoch is over: only newer metadata helps.
    fenced: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl Follower {
    pub fn new(epoch: LeaderEpoch, leader: Option<NodeId>, high_watermark: Offset) -> Follower {
        Follower {
            epoch,
            leader,
            high_watermark,
            lag: None,
            pause: None,
            fenced: false,
        }
    }

    pub fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// How many committed records this replica lacks, as far as it knows.
    pub fn lag(&self) -> u64 {
        self.lag.unwrap_or_default()
    }

    /// Whether committed records are missing here, or may be.
    pub fn is_behind(&self) -> bool {
        self.lag != Some(0)
    }

    /// Until when there is nothing to ask; `None`: for now there is. Fenced for good.
    pub fn pause(&self, now: Instant) -> Option<Instant> {
        if self.fenced || self.leader.is_none() {
            return Some(Instant(u64::MAX));
        }
        self.pause.map(|pause| pause.until).filter(|at| *at > now)
    }

    /// What to ask the leader for. The position is what this replica counts, so `counted` must
    /// have reached the log end before a fetch may say so: `None` until then.
    pub fn ask(&self, log: &impl History, counted: Offset) -> Option<Asked> {
        (counted >= log.log_end()).then(|| Asked {
            epoch: self.epoch,
            from: log.log_end(),
            last_epoch: log.latest_epoch().unwrap_or(LeaderEpoch::UNKNOWN),
            log_start: log.log_start(),
        })
    }

    /// Where records without a known epoch must be cut before the first fetch: nothing can be said
    /// of them but that what is committed is right.
    pub fn cut_unknown(&self, log: &impl History) -> Option<Offset> {
        let unknown = log.latest_epoch().is_none() && log.log_start() < log.log_end();
        (unknown && self.high_watermark < log.log_end())
            .then(|| self.high_watermark.max(log.log_start()))
    }

    /// What an answer means for a log that has not changed since `asked`.
    pub fn on_answer(
        &mut self,
        asked: &Asked,
        answer: &Answer,
        log: &impl History,
        now: Instant,
        pause_max: Duration,
    ) -> Step {
        if asked.epoch != self.epoch || asked.from != log.log_end() {
            return Step::Ignore;
        }
        match answer.error {
            ErrorCode::NONE => match answer.diverging {
                Some((epoch, end)) => self.diverged(epoch, end, log, now, pause_max),
                None => Step::Append,
            },
            ErrorCode::OFFSET_OUT_OF_RANGE => Step::AskLatest,
            ErrorCode::FENCED_LEADER_EPOCH => {
                self.fenced = true;
                Step::FetchAgain
            }
            _ => self.back_off(now, pause_max),
        }
    }

    /// The leader's epoch ends at `end` where ours is `epoch` or an older one: keep what both have.
    fn diverged(
        &mut self,
        epoch: LeaderEpoch,
        end: Offset,
        log: &impl History,
        now: Instant,
        pause_max: Duration,
    ) -> Step {
        if end.0 < 0 {
            return self.back_off(now, pause_max);
        }
        let own = log.log_end();
        let to = match log.end_of(epoch) {
            Some((same, own_end)) if same == epoch => own_end.min(end).min(own),
            // The leader's epoch is unknown here: go back to the end of the newest one before it,
            // and ask from there.
            Some((_, own_end)) => own_end.min(own),
            None => end.min(own),
        };
        if to < log.log_start() {
            // Nothing in common is left.
            return Step::StartOver(to);
        }
        Step::Truncate(to)
    }

    /// Our log end lies outside the leader's log, which ends at `latest`.
    pub fn on_latest(&self, latest: Offset, log: &impl History) -> Step {
        if latest < log.log_end() {
            tracing::warn!(log_end = %log.log_end(), leader_end = %latest, "this replica is ahead of its leader and is cut");
            return if latest < log.log_start() {
                Step::StartOver(latest)
            } else {
                Step::Truncate(latest)
            };
        }
        Step::AskEarliest
    }

    /// The leader's log starts at `earliest` and ends where ours does or later.
    pub fn on_earliest(&self, earliest: Offset, log: &impl History) -> Step {
        if earliest > log.log_end() {
            Step::StartOver(earliest)
        } else {
            // It has moved in between.
            Step::FetchAgain
        }
    }

    /// The first batch of an answer begins at `first`, before our log's end: the leader's log
    /// starts inside it. Where to begin anew, if nothing that we have is left at the leader.
    pub fn on_straddling(
        &self,
        first: Offset,
        answer: &Answer,
        log: &impl History,
    ) -> Option<Offset> {
        let end = log.log_end();
        let nothing_left = log.log_start() == end || answer.log_start >= end;
        (first < end && nothing_left).then_some(first)
    }

    /// Waits before the next fetch; longer each time.
    pub fn back_off(&mut self, now: Instant, pause_max: Duration) -> Step {
        let length = match self.pause {
            Some(before) => before.length * 2,
            None => FIRST_PAUSE,
        };
        let length = length.min(pause_max);
        self.pause = Some(Pause {
            until: now + length,
            length,
        });
        Step::FetchAgain
    }

    /// The records of an answer are appended: takes over the leader's high watermark as far as
    /// the log has come. Returns the new one if it moved, and where the log is to start now.
    ///
    /// What was known as committed stays so, also under a leader that has not learnt it yet.
    pub fn settle(&mut self, answer: &Answer, log: &impl History) -> (Option<Offset>, Offset) {
        let (start, end) = (log.log_start(), log.log_end());
        self.pause = None;
        self.lag = Some(answer.high_watermark.since(end));
        let known = self.high_watermark.max(answer.high_watermark);
        let next = known.clamp(start, end);
        let moved = next > self.high_watermark;
        self.high_watermark = next;
        // Never past what is committed here: what the leader deleted was committed there.
        let new_start = answer.log_start.min(next).max(start);
        (moved.then_some(next), new_start)
    }

    /// The log was cut or begun anew, or its start has moved.
    pub fn on_log_changed(&mut self, log: &impl History) {
        if self.high_watermark > log.log_end() {
            tracing::warn!(high_watermark = %self.high_watermark, log_end = %log.log_end(), "cut below the high watermark");
        }
        self.high_watermark = self.high_watermark.clamp(log.log_start(), log.log_end());
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::model::Bare;
    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    fn follower(high_watermark: i64) -> Follower {
        Follower::new(LeaderEpoch(9), Some(NodeId(2)), Offset(high_watermark))
    }

    fn answer(error: ErrorCode) -> Answer {
        Answer {
            error,
            high_watermark: Offset(10),
            log_start: Offset(0),
            diverging: None,
        }
    }

    fn ask(follower: &Follower, log: &Bare) -> Asked {
        follower.ask(log, log.end).unwrap()
    }

    fn step(follower: &mut Follower, log: &Bare, answer: &Answer) -> Step {
        let asked = ask(follower, log);
        follower.on_answer(&asked, answer, log, Instant(0), PAUSE)
    }

    #[test]
    fn what_is_not_counted_yet_is_not_reported() {
        let log = Bare::new(10, &[(1, 0), (8, 6)]);
        assert_eq!(follower(0).ask(&log, Offset(9)), None);
        let asked = ask(&follower(0), &log);
        assert_eq!((asked.from, asked.last_epoch), (Offset(10), LeaderEpoch(8)));
        let empty = ask(&follower(0), &Bare::default());
        assert_eq!(
            (empty.from, empty.last_epoch),
            (Offset(0), LeaderEpoch::UNKNOWN)
        );
    }

    #[test]
    fn a_diverging_history_is_cut_where_both_agree() {
        // Ours: epoch 1 to 5, epoch 3 to 8, epoch 4 to 10.
        let log = Bare::new(10, &[(1, 0), (3, 5), (4, 8)]);
        for (told, step_wanted) in [
            // Known epoch: the earlier end of the two.
            ((3, 6), Step::Truncate(Offset(6))),
            ((3, 9), Step::Truncate(Offset(8))),
            ((4, 9), Step::Truncate(Offset(9))),
            // Unknown epoch: back to the end of the one before it.
            ((2, 7), Step::Truncate(Offset(5))),
            ((0, 0), Step::Truncate(Offset(0))),
        ] {
            let mut follower = follower(0);
            let answer = Answer {
                diverging: Some((LeaderEpoch(told.0), Offset(told.1))),
                ..answer(ErrorCode::NONE)
            };
            assert_eq!(step(&mut follower, &log, &answer), step_wanted, "{told:?}");
        }
    }

    #[test]
    fn a_history_that_left_before_our_start_is_thrown_away() {
        let mut log = Bare::new(10, &[(3, 5)]);
        log.start = Offset(5);
        let answer = Answer {
            diverging: Some((LeaderEpoch(3), Offset(3))),
            ..answer(ErrorCode::NONE)
        };
        assert_eq!(
            step(&mut follower(5), &log, &answer),
            Step::StartOver(Offset(3))
        );
    }

    #[test]
    fn out_of_range_asks_for_the_leaders_bounds() {
        let log = Bare::new(10, &[(1, 0)]);
        let mut follower = follower(4);
        assert_eq!(
            step(&mut follower, &log, &answer(ErrorCode::OFFSET_OUT_OF_RANGE)),
            Step::AskLatest
        );
        assert_eq!(
            follower.on_latest(Offset(7), &log),
            Step::Truncate(Offset(7))
        );
        assert_eq!(follower.on_latest(Offset(10), &log), Step::AskEarliest);
        assert_eq!(
            follower.on_earliest(Offset(30), &log),
            Step::StartOver(Offset(30))
        );
        assert_eq!(follower.on_earliest(Offset(10), &log), Step::FetchAgain);
    }

    #[test]
    fn refusals_pause_longer_each_time_and_a_fenced_epoch_waits_for_metadata() {
        let log = Bare::new(10, &[(1, 0)]);
        let mut follower = follower(4);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            step(
                &mut follower,
                &log,
                &answer(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            );
            pauses.push(follower.pause(Instant(0)).unwrap().0 / 1_000_000);
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        let good = answer(ErrorCode::NONE);
        step(&mut follower, &log, &good);
        assert!(
            follower.pause(Instant(0)).is_some(),
            "nothing is appended yet, or cut"
        );
        follower.settle(&good, &log);
        assert_eq!(follower.pause(Instant(0)), None);
        step(&mut follower, &log, &answer(ErrorCode::FENCED_LEADER_EPOCH));
        assert!(follower.pause(Instant(u64::MAX - 1)).is_some());
    }

    #[test]
    fn an_answer_to_another_position_or_epoch_is_ignored() {
        let log = Bare::new(10, &[(1, 0)]);
        let mut follower = follower(4);
        let mut asked = ask(&follower, &log);
        let good = answer(ErrorCode::NONE);
        asked.from = Offset(9);
        let now = Instant(0);
        assert_eq!(
            follower.on_answer(&asked, &good, &log, now, PAUSE),
            Step::Ignore
        );
        asked = ask(&follower, &log);
        asked.epoch = LeaderEpoch(8);
        assert_eq!(
            follower.on_answer(&asked, &good, &log, now, PAUSE),
            Step::Ignore
        );
    }

    #[test]
    fn the_leaders_high_watermark_holds_as_far_as_our_log_goes() {
        let mut follower = follower(4);
        let mut told = answer(ErrorCode::NONE);
        let log = Bare::new(8, &[(1, 0)]);
        assert_eq!(
            follower.settle(&told, &log),
            (Some(Offset(8)), Offset(0)),
            "no further than our end"
        );
        told.high_watermark = Offset(5);
        assert_eq!(follower.settle(&told, &log), (None, Offset(0)));
        assert_eq!(follower.high_watermark(), Offset(8), "nor back");
        told.log_start = Offset(20);
        assert_eq!(follower.settle(&told, &log).1, Offset(8));
        let cut = Bare::new(6, &[(1, 0)]);
        follower.on_log_changed(&cut);
        assert_eq!(follower.high_watermark(), Offset(6));
    }

    #[test]
    fn records_of_no_known_epoch_are_kept_as_far_as_they_are_committed() {
        let mut log = Bare::new(10, &[]);
        assert_eq!(follower(4).cut_unknown(&log), Some(Offset(4)));
        assert_eq!(follower(10).cut_unknown(&log), None);
        log.epochs.assign(LeaderEpoch(1), Offset(0));
        assert_eq!(follower(4).cut_unknown(&log), None);
    }
}
