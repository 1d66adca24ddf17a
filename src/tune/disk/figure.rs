//! Owns one measurement's result and how it is taken from single times. Plain values.

use std::time::Duration;

use serde::Serialize;

/// What was done over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// O_DIRECT writes one after the other.
    Write,
    /// The same, each followed by fdatasync.
    WriteFlush,
    /// The same with O_DSYNC.
    WriteDsync,
    /// O_DIRECT reads one after the other.
    Read,
    /// Half of the requests read, half write.
    Mixed,
    /// A flush round over `depth` files of a buffered write each: fdatasync of all, side by side.
    RoundBySegment,
    /// The same round by one aligned write and one fdatasync.
    RoundByJournal,
    /// Sixty-four files of a buffered write each, `depth` of their fdatasyncs side by side.
    RoundLimited,
}

/// How the device was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// System calls of one thread.
    Plain,
    /// The broker's ring.
    Ring,
}

/// One turn of a measurement: everything is measured several times over, so that a drift of the
/// device meets all of it.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    pub times: Vec<Duration>,
    pub took: Duration,
}

impl Turn {
    /// One operation more, nothing beside it.
    pub fn add(&mut self, time: Duration) {
        self.times.push(time);
        self.took += time;
    }
}

/// Turns that differ by more than this part of their median speak of something else on the device.
pub const SPREAD_MAX: f64 = 0.5;

/// What one measurement came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub what: What,
    pub way: Way,
    /// Bytes of one request; of a round, of each file.
    pub bytes: u64,
    /// Requests under way at once; files of a round.
    pub depth: u32,
    pub operations: u64,
    pub seconds: f64,
    /// The median of the turns.
    pub bytes_per_second: f64,
    /// Between the best and the worst turn but one, as a part of the median.
    pub spread: f64,
    pub p50_us: f64,
    /// Only with at least a thousand operations: ten of them lie above it then.
    pub p99_us: Option<f64>,
}

impl Figure {
    /// From its turns; each has at least one operation.
    pub fn of(what: What, way: Way, bytes: u64, depth: u32, turns: &[Turn]) -> Figure {
        let all = turns.iter().flat_map(|turn| &turn.times);
        let mut times: Vec<Duration> = all.copied().collect();
        times.sort_unstable();
        let us = |share: f64| {
            let at = (times.len() as f64 * share) as usize;
            let time = times.get(at.min(times.len().saturating_sub(1)));
            time.map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        let operations = times.len() as u64;
        let files = match what {
            What::RoundBySegment | What::RoundByJournal => u64::from(depth),
            What::RoundLimited => 64,
            _ => 1,
        };
        let rate = |turn: &Turn| {
            let bytes = turn.times.len() as u64 * files * bytes;
            bytes as f64 / turn.took.as_secs_f64().max(1e-9)
        };
        let mut rates: Vec<f64> = turns.iter().map(rate).collect();
        rates.sort_by(f64::total_cmp);
        let median = rates.get(rates.len() / 2).copied().unwrap_or(0.0);
        // One stall alone is the device's own, and of no turn of five more than that is asked.
        let middle = match rates.len() {
            0..5 => &rates[..],
            count => &rates[1..count - 1],
        };
        let spread = match (middle.first(), middle.last()) {
            (Some(worst), Some(best)) if median > 0.0 => (best - worst) / median,
            _ => 0.0,
        };
        Figure {
            what,
            way,
            bytes,
            depth,
            operations,
            seconds: turns.iter().map(|turn| turn.took.as_secs_f64()).sum(),
            bytes_per_second: median,
            spread,
            p50_us: us(0.5),
            p99_us: (operations >= 1000).then(|| us(0.99)),
        }
    }

    /// Nothing else was on the device, as far as the turns can tell.
    pub fn is_steady(&self) -> bool {
        self.spread <= SPREAD_MAX
    }

    /// What was done, in words.
    pub fn words(&self) -> &'static str {
        match self.what {
            What::Write => "write",
            What::WriteFlush => "write + fdatasync",
            What::WriteDsync => "write, O_DSYNC",
            What::Read => "read",
            What::Mixed => "read and write",
            What::RoundBySegment => "flush round by segments",
            What::RoundByJournal => "flush round by journal",
            What::RoundLimited => "64 files flushed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(times: Vec<Duration>, took_ms: u64) -> Turn {
        Turn {
            times,
            took: Duration::from_millis(took_ms),
        }
    }

    #[test]
    fn a_figure_has_the_median_and_a_far_percentile_only_with_enough_operations() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_micros).collect();
        let figure = Figure::of(What::Write, Way::Plain, 4096, 1, &[turn(times, 10)]);
        assert_eq!((figure.operations, figure.p50_us.round()), (100, 51.0));
        assert_eq!(figure.p99_us, None);
        assert_eq!(figure.bytes_per_second, 40_960_000.0);
        let times = turn(vec![Duration::from_micros(7); 1000], 10);
        let figure = Figure::of(What::RoundLimited, Way::Ring, 1024, 16, &[times]);
        assert_eq!(figure.p99_us.map(f64::round), Some(7.0));
        let empty = Figure::of(What::Read, Way::Ring, 1, 1, &[]);
        assert_eq!((empty.p50_us, empty.bytes_per_second), (0.0, 0.0));
    }

    #[test]
    fn turns_that_differ_are_told_and_their_median_counts() {
        let op = || vec![Duration::from_millis(1); 10];
        let turns = [turn(op(), 10), turn(op(), 11), turn(op(), 12)];
        let steady = Figure::of(What::Write, Way::Ring, 1100, 1, &turns);
        assert!(steady.is_steady());
        assert_eq!(steady.bytes_per_second.round(), 1_000_000.0);
        let turns = [turn(op(), 10), turn(op(), 11), turn(op(), 40)];
        let noisy = Figure::of(What::Write, Way::Ring, 1100, 1, &turns);
        assert!(!noisy.is_steady());
        assert_eq!(noisy.bytes_per_second.round(), 1_000_000.0);
    }
}
