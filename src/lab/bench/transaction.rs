//! The transactions of one producer of the load: when one begins, when it is to end and how, and
//! which partitions must be told to its coordinator before.
//!
//! Pure; one executor. Transactions follow one another without a gap and begin with a record, so
//! that an idle producer leaves none open. While one ends nothing is made. Sends nothing.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::error::BenchError;
use crate::wire::ErrorCode;

/// `transaction.max.timeout.ms` of a broker is far below a day.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How producers send in transactions.
#[derive(Clone, Debug, PartialEq)]
pub struct TransactionPlan {
    /// Each producer's id is this, a dash and its number.
    pub id_prefix: String,
    /// A transaction ends with so many records.
    pub records: Option<u64>,
    /// Or so long after its first record was made.
    pub duration: Option<Duration>,
    /// How many of a hundred are aborted instead of committed.
    pub abort_percent: f64,
    /// `transaction.timeout.ms`.
    pub timeout: Duration,
}

impl TransactionPlan {
    pub(super) fn validate(&self) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Invalid(text));
        if self.id_prefix.is_empty() {
            return wrong("the transactional id has no name".to_owned());
        }
        if self.records.is_none() && self.duration.is_none() {
            return wrong("a transaction ends by records or by time: neither is given".to_owned());
        }
        if self.records == Some(0) || self.duration.is_some_and(|time| time.is_zero()) {
            return wrong("a transaction of nothing: at least 1 record or 1 ms".to_owned());
        }
        if !(0.0..=100.0).contains(&self.abort_percent) {
            return wrong(format!(
                "{} percent of the transactions aborted: from 0 to 100",
                self.abort_percent
            ));
        }
        if self.timeout.is_zero() || self.timeout > TIMEOUT_MAX {
            return wrong("a transaction timeout from 1 ms to a day".to_owned());
        }
        if let Some(duration) = self.duration
            && duration >= self.timeout
        {
            return wrong(format!(
                "transactions of {} ms would be aborted by their timeout of {} ms",
                duration.as_millis(),
                self.timeout.as_millis()
            ));
        }
        Ok(())
    }

    /// As the command line names them.
    pub(super) fn options(&self, all: &mut Map<String, Value>) {
        let ms = |time: Duration| json!(time.as_secs_f64() * 1e3);
        let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
        put("transactional-id", json!(self.id_prefix));
        put("transaction-records", json!(self.records));
        put("transaction-duration-ms", json!(self.duration.map(ms)));
        put("transaction-abort-percent", json!(self.abort_percent));
        put("transaction-timeout-ms", ms(self.timeout));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next record opens one.
    Idle,
    Open,
    /// Nothing is made until all is settled and the coordinator has answered.
    Ending {
        committed: bool,
    },
    /// There will be no other.
    Dead,
}

/// One that is to end, and what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    /// When its first record was due.
    pub(super) due: u64,
    /// When it was decided.
    pub(super) decided: u64,
    pub(super) committed: bool,
    /// Measured records that were acknowledged.
    pub(super) measured: u64,
}

/// See the module's words.
#[derive(Debug)]
pub(super) struct Cycle {
    records_max: u64,
    duration: Option<u64>,
    abort_percent: f64,
    random: fastrand::Rng,
    phase: Phase,
    due: u64,
    began: u64,
    decided: u64,
    records: u64,
    measured: u64,
    /// Why it can only be aborted.
    broken: Option<ErrorCode>,
    /// The older protocol: the coordinator is told of each partition before its first batch.
    explicit: bool,
    /// By partition, with the older protocol.
    told: Vec<bool>,
    untold: Vec<usize>,
}

impl Cycle {
    pub(super) fn new(plan: &TransactionPlan, seed: u64) -> Cycle {
        Cycle {
            records_max: plan.records.unwrap_or(u64::MAX),
            duration: plan.duration.map(|time| time.as_nanos() as u64),
            abort_percent: plan.abort_percent,
            random: fastrand::Rng::with_seed(seed),
            phase: Phase::Idle,
            due: 0,
            began: 0,
            decided: 0,
            records: 0,
            measured: 0,
            broken: None,
            explicit: false,
            told: Vec::new(),
            untold: Vec::new(),
        }
    }

    pub(super) fn speak(&mut self, explicit: bool) {
        self.explicit = explicit;
    }

    /// When the first record was due of the transaction that is there.
    pub(super) fn first_due(&self) -> Option<u64> {
        matches!(self.phase, Phase::Open | Phase::Ending { .. }).then_some(self.due)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    pub(super) fn is_dead(&self) -> bool {
        self.phase == Phase::Dead
    }

    /// No other transaction is possible.
    pub(super) fn die(&mut self) {
        self.phase = Phase::Dead;
    }

    // -------------------------------------------------------------------------------- records

    /// Whether a record may be made now.
    pub(super) fn takes_records(&self, now: u64) -> bool {
        match self.phase {
            Phase::Idle => true,
            Phase::Open => !self.is_full(now),
            Phase::Ending { .. } | Phase::Dead => false,
        }
    }

    fn is_full(&self, now: u64) -> bool {
        self.broken.is_some()
            || self.records >= self.records_max
            || self.ends_at().is_some_and(|end| end <= now)
    }

    /// When an open one has lasted long enough.
    pub(super) fn ends_at(&self) -> Option<u64> {
        let duration = self.duration.filter(|_| self.phase == Phase::Open)?;
        Some(self.began.saturating_add(duration))
    }

    /// A record for a partition was made.
    pub(super) fn made(&mut self, partition: usize, due: u64, now: u64) {
        if self.phase == Phase::Idle {
            self.phase = Phase::Open;
            (self.due, self.began) = (due, now);
        }
        self.records += 1;
        if self.explicit {
            if self.told.len() <= partition {
                self.told.resize(partition + 1, false);
            }
            if !std::mem::replace(&mut self.told[partition], true) {
                self.untold.push(partition);
            }
        }
    }

    /// Measured records were acknowledged.
    pub(super) fn acknowledged(&mut self, measured: u64) {
        self.measured += measured;
    }

    /// A batch failed: it can only be aborted.
    pub(super) fn fail(&mut self, code: ErrorCode) {
        self.broken.get_or_insert(code);
        if let Phase::Ending { committed } = &mut self.phase {
            *committed = false;
        }
    }

    pub(super) fn broken(&self) -> Option<ErrorCode> {
        self.broken
    }

    /// Whether batches may leave: the coordinator knows of their partitions.
    pub(super) fn may_send(&self) -> bool {
        self.untold.is_empty() && self.phase != Phase::Dead
    }

    /// The partitions that it does not know of.
    pub(super) fn untold(&self) -> &[usize] {
        &self.untold
    }

    /// It was told of the first `count` of them.
    pub(super) fn told(&mut self, count: usize) {
        self.untold.drain(..count);
    }

    // ------------------------------------------------------------------------------------ end

    /// Whether it is decided just now that the transaction ends. `over`: no record will follow.
    pub(super) fn decide(&mut self, now: u64, over: bool) -> bool {
        if self.phase != Phase::Open || !(over || self.is_full(now)) {
            return false;
        }
        let aborted = self.random.f64() * 100.0 < self.abort_percent;
        let committed = self.broken.is_none() && !aborted;
        self.decided = now;
        self.phase = Phase::Ending { committed };
        true
    }

    pub(super) fn ending(&self) -> Option<Ending> {
        let Phase::Ending { committed } = self.phase else {
            return None;
        };
        Some(Ending {
            due: self.due,
            decided: self.decided,
            committed,
            measured: self.measured,
        })
    }

    /// The coordinator has answered: the next record opens another.
    pub(super) fn ended(&mut self) {
        self.phase = Phase::Idle;
        (self.records, self.measured) = (0, 0);
        self.broken = None;
        self.told.clear();
        self.untold.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> TransactionPlan {
        TransactionPlan {
            id_prefix: "bench".to_owned(),
            records: Some(3),
            duration: Some(Duration::from_nanos(100)),
            abort_percent: 0.0,
            timeout: Duration::from_secs(60),
        }
    }

    fn refusal(change: impl FnOnce(&mut TransactionPlan)) -> String {
        let mut plan = plan();
        change(&mut plan);
        plan.validate().unwrap_err().to_string()
    }

    #[test]
    fn contradictions_are_told() {
        assert!(plan().validate().is_ok());
        let said = refusal(|plan| (plan.records, plan.duration) = (None, None));
        assert!(said.contains("by records or by time"), "{said}");
        let said = refusal(|plan| plan.records = Some(0));
        assert!(said.contains("at least 1 record"), "{said}");
        let said = refusal(|plan| plan.id_prefix.clear());
        assert!(said.contains("no name"), "{said}");
        let said = refusal(|plan| plan.duration = Some(plan.timeout));
        assert!(said.contains("aborted by their timeout"), "{said}");
        for percent in [-1.0, 100.5, f64::NAN] {
            let said = refusal(|plan| plan.abort_percent = percent);
            assert!(said.contains("from 0 to 100"), "{said}");
        }
    }

    #[test]
    fn a_transaction_ends_with_its_records_or_its_time() {
        let mut cycle = Cycle::new(&plan(), 1);
        assert!(cycle.is_idle() && !cycle.decide(10, true), "none was begun");
        for at in 0..3 {
            assert!(cycle.takes_records(10) && !cycle.decide(10, false));
            cycle.made(at, 5 + at as u64, 10);
        }
        assert!(!cycle.takes_records(10));
        cycle.acknowledged(2);
        assert!(cycle.decide(20, false) && !cycle.decide(20, false));
        let ending = Ending {
            due: 5,
            decided: 20,
            committed: true,
            measured: 2,
        };
        assert_eq!(cycle.ending(), Some(ending));
        assert!(!cycle.takes_records(1_000));
        cycle.ended();
        cycle.made(0, 30, 31);
        assert_eq!(cycle.ends_at(), Some(131));
        assert!(cycle.takes_records(130) && !cycle.takes_records(131));
        assert!(cycle.decide(131, false));
        assert_eq!(
            cycle.ending().map(|one| (one.due, one.measured)),
            Some((30, 0))
        );
    }

    #[test]
    fn what_is_left_when_no_record_follows_ends_at_once() {
        let mut cycle = Cycle::new(&plan(), 1);
        cycle.made(0, 1, 1);
        assert!(cycle.decide(2, true));
    }

    #[test]
    fn a_failed_batch_makes_an_abort_of_a_commit() {
        let mut cycle = Cycle::new(&plan(), 1);
        cycle.made(0, 1, 1);
        cycle.fail(ErrorCode::MESSAGE_TOO_LARGE);
        assert!(!cycle.takes_records(2) && cycle.decide(2, false));
        assert_eq!(cycle.ending().map(|one| one.committed), Some(false));
        cycle.ended();
        cycle.made(0, 3, 3);
        assert!(cycle.decide(4, true));
        assert_eq!(cycle.ending().map(|one| one.committed), Some(true));
        // Also while the last batches are on their way.
        cycle.fail(ErrorCode::REQUEST_TIMED_OUT);
        assert_eq!(cycle.ending().map(|one| one.committed), Some(false));
    }

    #[test]
    fn the_share_of_aborts_is_what_was_asked_for() {
        for (percent, range) in [(0.0, 0..=0), (25.0, 200..=300), (100.0, 1_000..=1_000)] {
            let plan = TransactionPlan {
                abort_percent: percent,
                ..plan()
            };
            let mut cycle = Cycle::new(&plan, 7);
            let aborted = (0..1_000).filter(|at| {
                cycle.made(0, *at, *at);
                cycle.decide(*at, true);
                let aborted = cycle.ending().is_some_and(|one| !one.committed);
                cycle.ended();
                aborted
            });
            let aborted = aborted.count();
            assert!(range.contains(&aborted), "{percent}: {aborted}");
        }
    }

    #[test]
    fn the_older_protocol_tells_the_coordinator_of_each_partition_once() {
        let mut cycle = Cycle::new(&plan(), 1);
        cycle.made(4, 1, 1);
        assert!(cycle.may_send(), "leaders do it themselves");
        cycle.ended();
        cycle.speak(true);
        cycle.made(4, 1, 1);
        cycle.made(4, 1, 1);
        assert_eq!(cycle.untold(), [4]);
        cycle.made(2, 1, 1);
        cycle.told(1);
        assert!(!cycle.may_send());
        assert_eq!(cycle.untold(), [2]);
        cycle.told(1);
        assert!(cycle.may_send());
        cycle.ended();
        cycle.made(4, 1, 1);
        assert_eq!(cycle.untold(), [4], "the next one knows nothing of it");
    }
}
