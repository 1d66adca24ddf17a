//! What one thread of the load counts and measures, second by second, on its way to the gatherer.
//!
//! One executor. A record counts where it was due: a sample belongs to the measured time if the
//! record was due in it, however late it was settled. Rates count what was settled within each
//! second.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

use super::schedule::Window;
use super::transaction::Ending;
use crate::lab::histogram::Histogram;
use crate::lab::result::{LatencyKind, Transactions};

/// Different troubles that are told apart; what is beyond is counted with the last.
const TROUBLES_MAX: usize = 32;

/// Records in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) requests: u64,
}

impl Count {
    pub(super) fn add(&mut self, other: Count) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.requests += other.requests;
    }
}

/// Latencies of the measured records, by kind; those that were not recorded take no memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies {
    kinds: [Option<Box<Histogram>>; 4],
}

impl Latencies {
    const ORDER: [LatencyKind; 4] = [
        LatencyKind::Produce,
        LatencyKind::EndToEnd,
        LatencyKind::Fetch,
        LatencyKind::Commit,
    ];

    fn record(&mut self, kind: LatencyKind, micros: u64, count: u64) {
        let slot = &mut self.kinds[Latencies::at(kind)];
        slot.get_or_insert_default().record_n(micros, count);
    }

    fn at(kind: LatencyKind) -> usize {
        match kind {
            LatencyKind::Produce => 0,
            LatencyKind::EndToEnd => 1,
            LatencyKind::Fetch => 2,
            LatencyKind::Commit => 3,
        }
    }

    pub(super) fn of(&self, kind: LatencyKind) -> Option<&Histogram> {
        self.kinds[Latencies::at(kind)].as_deref()
    }

    /// Those that have samples, in the order of the result.
    pub(super) fn iter(&self) -> impl Iterator<Item = (LatencyKind, &Histogram)> {
        let kinds = Latencies::ORDER.into_iter().zip(&self.kinds);
        kinds.filter_map(|(kind, histogram)| Some((kind, histogram.as_deref()?)))
    }

    pub(super) fn merge(&mut self, other: &Latencies) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_default().merge(theirs);
            }
        }
    }
}

/// One second of one thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Second {
    /// Since the measured time began; negative in the warm-up.
    pub(super) index: i64,
    /// Settled in this second, whenever due.
    pub(super) produced: Count,
    pub(super) consumed: Count,
    pub(super) errors: u64,
    pub(super) latencies: Latencies,
}

/// What does not belong to a second: sums over the measured records of one thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// Due in the measured time and acknowledged.
    pub(super) acknowledged: Count,
    /// Due in the measured time (without producers: arrived in it) and received.
    pub(super) received: Count,
    /// Settled within the measured time, whenever due.
    pub(super) produced_within: Count,
    pub(super) consumed_within: Count,
    /// Due in the measured time and refused or given up.
    pub(super) failed: u64,
    /// Due in the measured time and never made: the run ended before.
    pub(super) unsent: u64,
    /// Sent a second time or more often, of all records.
    pub(super) resent: u64,
    /// Acknowledged in all, with warm-up and drain.
    pub(super) acknowledged_in_all: u64,
    /// Of transactions whose first record was due in the measured time.
    pub(super) transactions: Transactions,
    /// What went wrong, and for how many records (or fetches) of the whole run.
    pub(super) troubles: BTreeMap<String, u64>,
    /// How much later than due the tool itself was when nothing held it up, microseconds.
    pub(super) lateness: Histogram,
}

impl Sums {
    pub(super) fn trouble(&mut self, what: String, count: u64) {
        let known = self.troubles.contains_key(&what) || self.troubles.len() < TROUBLES_MAX;
        let what = if known { what } else { "other".to_owned() };
        *self.troubles.entry(what).or_default() += count;
    }

    pub(super) fn merge(&mut self, other: Sums) {
        self.acknowledged.add(other.acknowledged);
        self.received.add(other.received);
        self.produced_within.add(other.produced_within);
        self.consumed_within.add(other.consumed_within);
        self.failed += other.failed;
        self.unsent += other.unsent;
        self.resent += other.resent;
        self.acknowledged_in_all += other.acknowledged_in_all;
        self.transactions.add(other.transactions);
        for (what, count) in other.troubles {
            self.trouble(what, count);
        }
        self.lateness.merge(&other.lateness);
    }
}

/// From a thread to the gatherer.
pub(super) enum Told {
    Second(Box<Second>),
    /// The thread has ended.
    End(Box<Sums>),
}

/// What a thread's producers and consumers write to.
pub(super) struct Samples {
    window: Cell<Window>,
    gatherer: Sender<Told>,
    state: RefCell<State>,
}

struct State {
    second: Second,
    /// Where that second ends.
    second_end: u64,
    sums: Sums,
}

impl Samples {
    /// Before the start nothing is measured.
    pub(super) fn new(gatherer: Sender<Told>) -> Samples {
        let never = u64::MAX;
        Samples {
            window: Cell::new(Window {
                start: never,
                from: never,
                to: never,
                until: never,
            }),
            gatherer,
            state: RefCell::new(State {
                second: Second::default(),
                second_end: never,
                sums: Sums::default(),
            }),
        }
    }

    /// The load begins.
    pub(super) fn begin(&self, window: Window) {
        self.window.set(window);
        let state = &mut *self.state.borrow_mut();
        let index = window.second(window.start);
        state.second = Second {
            index,
            ..Second::default()
        };
        state.second_end = window.second_start(index + 1);
    }

    pub(super) fn window(&self) -> Window {
        self.window.get()
    }

    /// Tells the gatherer of the seconds that are over.
    pub(super) fn turn(&self, now: u64) {
        let mut state = self.state.borrow_mut();
        while now >= state.second_end {
            self.end_second(&mut state);
        }
    }

    fn end_second(&self, state: &mut State) {
        let next = Second {
            index: state.second.index + 1,
            ..Second::default()
        };
        state.second_end = self.window().second_start(next.index + 1);
        let over = std::mem::replace(&mut state.second, next);
        // The gatherer may have ended with an error of its own.
        let _ = self.gatherer.send(Told::Second(Box::new(over)));
    }

    /// The thread ends: the last second, cut short, and the sums.
    pub(super) fn end(&self, now: u64) {
        self.turn(now);
        let mut state = self.state.borrow_mut();
        self.end_second(&mut state);
        let sums = std::mem::take(&mut state.sums);
        let _ = self.gatherer.send(Told::End(Box::new(sums)));
    }

    /// A batch was acknowledged at `at`. Returns how many of its records are measured.
    pub(super) fn acknowledged(&self, due: &[u64], payload: u64, at: u64) -> u64 {
        self.turn(at);
        let mut state = self.state.borrow_mut();
        let State { second, sums, .. } = &mut *state;
        let records = due.len() as u64;
        second.produced.records += records;
        second.produced.bytes += payload;
        sums.acknowledged_in_all += records;
        if self.window().measures(at) {
            sums.produced_within.records += records;
            sums.produced_within.bytes += payload;
        }
        let measured = self.record(second, LatencyKind::Produce, due, at);
        sums.acknowledged.records += measured;
        sums.acknowledged.bytes += share(payload, measured, records);
        measured
    }

    fn record(&self, second: &mut Second, kind: LatencyKind, due: &[u64], at: u64) -> u64 {
        let mut measured = 0;
        for same in due.chunk_by(|a, b| a == b) {
            if self.window().measures(same[0]) {
                let micros = at.saturating_sub(same[0]) / 1_000;
                second.latencies.record(kind, micros, same.len() as u64);
                measured += same.len() as u64;
            }
        }
        measured
    }

    /// A produce request went out.
    pub(super) fn requested(&self, at: u64) {
        self.turn(at);
        let mut state = self.state.borrow_mut();
        state.second.produced.requests += 1;
        if self.window().measures(at) {
            state.sums.acknowledged.requests += 1;
        }
    }

    /// Records were refused or given up.
    pub(super) fn failed(&self, due: &[u64], at: u64, why: String) {
        self.turn(at);
        let mut state = self.state.borrow_mut();
        state.second.errors += due.len() as u64;
        let measured = due
            .iter()
            .filter(|due| self.window().measures(**due))
            .count();
        state.sums.failed += measured as u64;
        state.sums.trouble(why, due.len() as u64);
    }

    /// Records are sent again.
    pub(super) fn resent(&self, records: usize, why: String) {
        let sums = &mut self.state.borrow_mut().sums;
        sums.resent += records as u64;
        sums.trouble(why, records as u64);
    }

    /// Something that is not about records.
    pub(super) fn trouble(&self, why: String) {
        self.state.borrow_mut().sums.trouble(why, 1);
    }

    /// A transaction began with a record that was due at `due`.
    pub(super) fn began(&self, due: u64) {
        if self.window().measures(due) {
            self.state.borrow_mut().sums.transactions.begun += 1;
        }
    }

    /// A transaction was ended at `at`.
    pub(super) fn ended(&self, ending: Ending, at: u64) {
        self.turn(at);
        let State { second, sums, .. } = &mut *self.state.borrow_mut();
        let all = &mut sums.transactions;
        match ending.committed {
            true => all.records_committed += ending.measured,
            false => all.records_aborted += ending.measured,
        }
        if !self.window().measures(ending.due) {
            return;
        }
        if ending.committed {
            all.committed += 1;
            let micros = at.saturating_sub(ending.decided) / 1_000;
            second.latencies.record(LatencyKind::Commit, micros, 1);
        } else {
            all.aborted += 1;
        }
    }

    pub(super) fn unsent(&self, records: u64) {
        self.state.borrow_mut().sums.unsent += records;
    }

    /// The tool could have sent a record that was due at `due` and comes to it now.
    pub(super) fn came_to(&self, due: u64, now: u64) {
        if self.window().measures(due) {
            let micros = now.saturating_sub(due) / 1_000;
            self.state.borrow_mut().sums.lateness.record(micros);
        }
    }

    /// A fetch was answered; `due` are the due times that its records carry, if they are this
    /// run's. Returns how many of them are measured.
    pub(super) fn fetched(&self, sent: u64, at: u64, arrived: Count, due: Option<&[u64]>) -> u64 {
        self.turn(at);
        let mut state = self.state.borrow_mut();
        let State { second, sums, .. } = &mut *state;
        second.consumed.add(arrived);
        if self.window().measures(at) {
            sums.consumed_within.add(arrived);
        }
        if self.window().measures(sent) {
            let micros = at.saturating_sub(sent) / 1_000;
            second.latencies.record(LatencyKind::Fetch, micros, 1);
        }
        let Some(due) = due else {
            if self.window().measures(at) {
                sums.received.add(arrived);
            }
            return 0;
        };
        let measured = self.record(second, LatencyKind::EndToEnd, due, at);
        sums.received.records += measured;
        sums.received.bytes += share(arrived.bytes, measured, arrived.records);
        if self.window().measures(at) {
            sums.received.requests += arrived.requests;
        }
        measured
    }
}

/// The part of `bytes` that belongs to `part` of `all` records.
fn share(bytes: u64, part: u64, all: u64) -> u64 {
    match part == all {
        true => bytes,
        false => (bytes as f64 * part as f64 / all as f64) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SECOND: u64 = 1_000_000_000;
    const WINDOW: Window = Window {
        start: SECOND,
        from: 3 * SECOND,
        to: 5 * SECOND,
        until: 9 * SECOND,
    };

    fn told(fill: impl FnOnce(&Samples)) -> (Vec<Second>, Sums) {
        let (sender, receiver) = mpsc::channel();
        let samples = Samples::new(sender);
        samples.begin(WINDOW);
        fill(&samples);
        samples.end(7 * SECOND);
        let mut seconds = Vec::new();
        let mut sums = None;
        for told in receiver.try_iter() {
            match told {
                Told::Second(second) => seconds.push(*second),
                Told::End(end) => sums = Some(*end),
            }
        }
        (seconds, sums.unwrap())
    }

    #[test]
    fn a_record_counts_where_it_was_due_and_a_rate_where_it_was_settled() {
        let (seconds, sums) = told(|samples| {
            // Due in the warm-up, settled in the measured time.
            samples.acknowledged(&[2 * SECOND; 3], 300, 3 * SECOND + 1);
            // Due at the end, settled in the drain, two seconds late.
            let measured = samples.acknowledged(&[4 * SECOND, 4 * SECOND], 200, 6 * SECOND);
            assert_eq!(measured, 2);
        });
        let indices: Vec<i64> = seconds.iter().map(|second| second.index).collect();
        assert_eq!(indices, [-2, -1, 0, 1, 2, 3, 4]);
        let records: Vec<u64> = seconds.iter().map(|s| s.produced.records).collect();
        assert_eq!(records, [0, 0, 3, 0, 0, 2, 0]);
        assert_eq!(
            (sums.acknowledged.records, sums.acknowledged.bytes),
            (2, 200)
        );
        assert_eq!(sums.acknowledged_in_all, 5);
        assert_eq!(sums.produced_within.records, 3);
        let mut all = Latencies::default();
        seconds
            .iter()
            .for_each(|second| all.merge(&second.latencies));
        let produce = all.of(LatencyKind::Produce).unwrap();
        assert_eq!((produce.samples(), produce.max() / 1_000), (2, 2_000));
        assert!(all.of(LatencyKind::Fetch).is_none());
    }

    #[test]
    fn a_batch_across_the_border_counts_in_part() {
        let (_, sums) = told(|samples| {
            let measured = samples.acknowledged(&[SECOND, 3 * SECOND], 100, 3 * SECOND + 5);
            assert_eq!(measured, 1);
            samples.failed(&[SECOND, 3 * SECOND], 4 * SECOND, "refused".to_owned());
        });
        assert_eq!(
            (sums.acknowledged.records, sums.acknowledged.bytes),
            (1, 50)
        );
        assert_eq!(sums.failed, 1);
        assert_eq!(sums.troubles.get("refused"), Some(&2));
    }

    #[test]
    fn a_transaction_counts_where_its_first_record_was_due() {
        let ending = |due, committed| Ending {
            due,
            decided: 4 * SECOND,
            committed,
            measured: 10,
        };
        let (seconds, sums) = told(|samples| {
            for due in [SECOND, 3 * SECOND, 4 * SECOND] {
                samples.began(due);
            }
            // Begun in the warm-up, with records of the measured time.
            samples.ended(ending(SECOND, true), 4 * SECOND);
            samples.ended(ending(3 * SECOND, true), 6 * SECOND);
            samples.ended(ending(4 * SECOND, false), 6 * SECOND);
        });
        let expected = Transactions {
            begun: 2,
            committed: 1,
            aborted: 1,
            records_committed: 20,
            records_aborted: 10,
        };
        assert_eq!(sums.transactions, expected);
        let mut all = Latencies::default();
        seconds
            .iter()
            .for_each(|second| all.merge(&second.latencies));
        let commit = all.of(LatencyKind::Commit).unwrap();
        assert_eq!((commit.samples(), commit.max() / 1_000), (1, 2_000));
    }

    #[test]
    fn troubles_without_end_take_no_memory_without_end() {
        let mut sums = Sums::default();
        for number in 0..1_000 {
            sums.trouble(format!("trouble {number}"), 1);
        }
        assert_eq!(sums.troubles.len(), TROUBLES_MAX + 1);
        assert_eq!(sums.troubles.values().sum::<u64>(), 1_000);
    }
}
