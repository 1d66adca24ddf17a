//! What is stated of many events of one kind: how many there were, how many acknowledged records
//! they cost, and, where they cost none, how much that proves. Pure.

use serde::Serialize;
use std::time::Duration;

/// Events without a loss bound its probability by this over their number, with 95% confidence
/// (the rule of three).
const RULE_OF_THREE: f64 = 3.0;

/// Where the events happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Real processes on this machine, killed with SIGKILL.
    Processes,
    /// Whole brokers in a simulated world, on its disk.
    Simulator,
    /// There is no simulator for these brokers.
    NotSimulated,
}

/// What one event did to the records of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Acknowledged since the event before (with acks=0: handed to the socket).
    pub acknowledged: u64,
    /// Of all records acknowledged so far and not counted as lost before, those that cannot be
    /// read any more.
    pub lost: u64,
    /// How long before the event the oldest of them was acknowledged.
    pub oldest: Duration,
    /// From the start of what had died to the moment when it serves again.
    pub recovery: Duration,
}

/// Events of one kind, as they come.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    events: u64,
    with_loss: u64,
    acknowledged: u64,
    lost: u64,
    lost_max: u64,
    oldest: Duration,
    recoveries: Vec<Duration>,
}

impl Tally {
    pub fn add(&mut self, event: &Event) {
        self.events += 1;
        self.with_loss += u64::from(event.lost > 0);
        self.acknowledged += event.acknowledged;
        self.lost += event.lost;
        self.lost_max = self.lost_max.max(event.lost);
        self.oldest = self.oldest.max(event.oldest);
        self.recoveries.push(event.recovery);
    }

    pub fn merge(&mut self, other: &Tally) {
        self.events += other.events;
        self.with_loss += other.with_loss;
        self.acknowledged += other.acknowledged;
        self.lost += other.lost;
        self.lost_max = self.lost_max.max(other.lost_max);
        self.oldest = self.oldest.max(other.oldest);
        self.recoveries.extend(&other.recoveries);
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    pub fn state(&self, source: Source) -> Losses {
        let mut recoveries = self.recoveries.clone();
        recoveries.sort_unstable();
        let median = recoveries.get(recoveries.len() / 2);
        let of_events = |count: f64| (self.events > 0).then(|| count / self.events as f64);
        Losses {
            source,
            events: self.events,
            events_with_loss: self.with_loss,
            acknowledged_records: self.acknowledged,
            lost_records: self.lost,
            lost_records_per_event: of_events(self.lost as f64),
            lost_records_max: self.lost_max,
            lost_share: (self.acknowledged > 0)
                .then_some(self.lost as f64 / self.acknowledged as f64),
            oldest_lost_ms: (self.lost > 0).then_some(self.oldest.as_secs_f64() * 1e3),
            loss_probability_upper_bound: match self.lost {
                0 => of_events(RULE_OF_THREE).map(|bound| bound.min(1.0)),
                _ => None,
            },
            recovery_ms_p50: median.map(|median| median.as_secs_f64() * 1e3),
        }
    }
}

/// A row's losses by one kind of event, as the document has them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Losses {
    pub source: Source,
    pub events: u64,
    pub events_with_loss: u64,
    /// Over all events.
    pub acknowledged_records: u64,
    pub lost_records: u64,
    pub lost_records_per_event: Option<f64>,
    pub lost_records_max: u64,
    /// Of the acknowledged records.
    pub lost_share: Option<f64>,
    /// How long before its event the oldest lost record had been acknowledged; absent without loss.
    pub oldest_lost_ms: Option<f64>,
    /// Where nothing was lost: the probability that an event loses something is below this, with
    /// 95% confidence.
    pub loss_probability_upper_bound: Option<f64>,
    pub recovery_ms_p50: Option<f64>,
}

impl Losses {
    /// What is said of brokers that no simulator knows.
    pub fn not_simulated() -> Losses {
        Tally::default().state(Source::NotSimulated)
    }

    /// A cell of a table, such as `0 of 300` or `12.3/event`.
    pub fn short(&self) -> String {
        match (self.source, self.lost_records_per_event) {
            (Source::NotSimulated, _) => "not simulated".to_owned(),
            (_, None) => String::new(),
            (_, Some(_)) if self.lost_records == 0 => format!("0 in {} events", self.events),
            (_, Some(mean)) => format!("{mean:.1} per event ({})", self.events),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(acknowledged: u64, lost: u64) -> Event {
        Event {
            acknowledged,
            lost,
            oldest: Duration::from_millis(10 * lost),
            recovery: Duration::from_millis(100),
        }
    }

    #[test]
    fn zero_losses_are_stated_with_what_they_prove() {
        let mut tally = Tally::default();
        for _ in 0..300 {
            tally.add(&event(50, 0));
        }
        let losses = tally.state(Source::Simulator);
        assert_eq!(losses.loss_probability_upper_bound, Some(0.01));
        assert_eq!(losses.lost_records_per_event, Some(0.0));
        assert_eq!(losses.oldest_lost_ms, None);
        assert_eq!(losses.short(), "0 in 300 events");
        let mut one = Tally::default();
        one.add(&event(50, 0));
        let bound = one.state(Source::Processes).loss_probability_upper_bound;
        assert_eq!(bound, Some(1.0), "one event proves nothing");
    }

    #[test]
    fn losses_are_counted_by_event_and_have_no_upper_bound_of_zero() {
        let mut tally = Tally::default();
        tally.add(&event(100, 0));
        let mut more = Tally::default();
        more.add(&event(100, 30));
        tally.merge(&more);
        let losses = tally.state(Source::Simulator);
        assert_eq!(losses.events, 2);
        assert_eq!(losses.events_with_loss, 1);
        assert_eq!(losses.lost_records_per_event, Some(15.0));
        assert_eq!(losses.lost_records_max, 30);
        assert_eq!(losses.lost_share, Some(0.15));
        assert_eq!(losses.oldest_lost_ms, Some(300.0));
        assert_eq!(losses.loss_probability_upper_bound, None);
    }

    #[test]
    fn without_events_nothing_is_stated() {
        let losses = Losses::not_simulated();
        assert_eq!(losses.lost_records_per_event, None);
        assert_eq!(losses.loss_probability_upper_bound, None);
        assert_eq!(losses.recovery_ms_p50, None);
    }
}
