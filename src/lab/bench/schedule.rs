//! When records are due: the intended send times of one producer, and which of them are measured.
//!
//! Pure. An open loop never waits for answers: the times are made from the rate alone, so a broker
//! or a tool that falls behind finds the records overdue, and their lateness is part of their
//! latency. Times are nanoseconds of the monotonic clock.

/// How the due times of an open loop are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal distances.
    Fixed,
    /// At random, independent of each other: exponential gaps, as of many independent clients.
    Poisson,
}

impl Arrivals {
    pub fn name(self) -> &'static str {
        match self {
            Arrivals::Fixed => "fixed",
            Arrivals::Poisson => "poisson",
        }
    }
}

/// The due times of one producer, rising.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    start: u64,
    /// Nanoseconds from one record to the next, on average.
    gap: f64,
    arrivals: Arrivals,
    random: fastrand::Rng,
    /// Records handed out.
    count: u64,
    /// Since the start, nanoseconds; of the record that is next.
    next: f64,
}

impl Schedule {
    /// `producer` of `producers` that together make `rate` records a second. Fixed schedules are
    /// shifted against each other, so that together they are as even as one.
    pub(super) fn new(
        start: u64,
        rate: f64,
        arrivals: Arrivals,
        (producer, producers): (usize, usize),
        seed: u64,
    ) -> Schedule {
        let gap = 1e9 * producers as f64 / rate;
        let mut schedule = Schedule {
            start,
            gap,
            arrivals,
            random: fastrand::Rng::with_seed(seed ^ (producer as u64).wrapping_mul(0x9e37_79b9)),
            count: 0,
            next: gap * producer as f64 / producers as f64,
        };
        if arrivals == Arrivals::Poisson {
            schedule.next = schedule.random_gap();
        }
        schedule
    }

    fn random_gap(&mut self) -> f64 {
        // 1 - f64() is in (0, 1], so the logarithm is finite.
        -(1.0 - self.random.f64()).ln() * self.gap
    }

    /// When the next record is due.
    pub(super) fn next_due(&self) -> u64 {
        self.start.saturating_add(self.next as u64)
    }

    /// Hands out the next record.
    pub(super) fn take(&mut self) -> u64 {
        let due = self.next_due();
        self.count += 1;
        self.next += match self.arrivals {
            // Gaps of nanoseconds added up stay exact enough: a double has 53 bits.
            Arrivals::Fixed => self.gap,
            Arrivals::Poisson => self.random_gap(),
        };
        due
    }
}

/// The parts of a run: warm-up, the measured time, and the drain behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: u64,
    /// The measured time begins.
    pub(super) from: u64,
    /// It ends; nothing is scheduled any more.
    pub(super) to: u64,
    /// What is not settled is given up.
    pub(super) until: u64,
}

impl Window {
    /// Whether a record that was due at `time` is measured.
    pub(super) fn measures(&self, time: u64) -> bool {
        (self.from..self.to).contains(&time)
    }

    /// Seconds since the measured time began; negative in the warm-up.
    pub(super) fn second(&self, time: u64) -> i64 {
        (time as i64 - self.from as i64).div_euclid(1_000_000_000)
    }

    /// Where that second begins.
    pub(super) fn second_start(&self, second: i64) -> u64 {
        (self.from as i64 + second * 1_000_000_000) as u64
    }

    /// How many seconds the measured time has, the last perhaps in part.
    pub(super) fn seconds(&self) -> i64 {
        (self.to - self.from).div_ceil(1_000_000_000) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn producers_with_fixed_schedules_interleave_evenly() {
        let mut due: Vec<u64> = (0..4)
            .flat_map(|producer| {
                let mut one = Schedule::new(1_000, 8.0, Arrivals::Fixed, (producer, 4), 1);
                (0..2).map(|_| one.take()).collect::<Vec<_>>()
            })
            .collect();
        due.sort_unstable();
        let wanted: Vec<u64> = (0..8).map(|at| 1_000 + at * 125_000_000).collect();
        assert_eq!(due, wanted);
    }

    proptest! {
        #[test]
        fn a_schedule_rises_and_keeps_its_rate(
            rate in 10.0f64..1e6,
            poisson in any::<bool>(),
            seed in any::<u64>(),
        ) {
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Fixed };
            let mut schedule = Schedule::new(5, rate, arrivals, (0, 1), seed);
            let mut last = 0;
            for _ in 0..20_000 {
                prop_assert!(schedule.next_due() >= last);
                last = schedule.take();
            }
            let made = 20_000.0 / ((last - 5) as f64 / 1e9);
            // Six standard deviations of 20,000 exponential gaps.
            let tolerance = if poisson { 0.045 } else { 0.001 };
            prop_assert!((made / rate - 1.0).abs() < tolerance, "{} of {}", made, rate);
        }

        #[test]
        fn the_seconds_of_a_window_tile_it(time in 0u64..20_000_000_000) {
            let window = Window { start: 0, from: 5_500_000_000, to: 9_000_000_000, until: 10_000_000_000 };
            let second = window.second(time);
            if second >= -5 {
                prop_assert!(window.second_start(second) <= time);
            }
            prop_assert!(time < window.second_start(second + 1));
            prop_assert_eq!(window.measures(time), second >= 0 && time < window.to);
            prop_assert_eq!(window.seconds(), 4);
        }
    }

    #[test]
    fn poisson_gaps_vary_as_much_as_their_mean() {
        let mut schedule = Schedule::new(0, 1000.0, Arrivals::Poisson, (0, 1), 7);
        let mut last = schedule.take();
        let gaps: Vec<f64> = (0..50_000)
            .map(|_| {
                let due = schedule.take();
                let gap = (due - last) as f64;
                last = due;
                gap
            })
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let ratio = variance.sqrt() / mean;
        assert!((ratio - 1.0).abs() < 0.03, "{ratio}");
    }
}
