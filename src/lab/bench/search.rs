//! Several runs in a row: rates up to the knee, and the search for the highest rate that is kept.
//!
//! Which rate comes next is pure; the runs themselves are `run`'s.

use super::error::BenchError;
use super::gather::KEPT_UP;
use super::plan::{Load, Plan};
use super::run::run;
use super::schedule::Arrivals;
use crate::lab::result::{LatencyKind, Run};

/// The search ends when what is kept and what is not are this close.
const PRECISION: f64 = 1.05;
/// Steps at most: doubling finds any rate below a billion, halving the rest.
const STEPS_MAX: usize = 40;
/// A broker that does not keep this is not looked at any further.
const RATE_MIN: f64 = 1.0;
/// Where a search without a hint begins, as a share of what the closed loop reaches.
const FIRST_GUESS: f64 = 0.8;

/// When a rate counts as kept: nothing failed, at least 95% was acknowledged in time, and p99 from
/// the due time stays within the bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    pub p99_us: u64,
}

impl Goal {
    /// Why `run` missed it; `None` if it did not.
    pub fn missed(&self, run: &Run) -> Option<String> {
        let produced = run.produced.as_ref()?;
        let rate = run
            .options
            .get("rate")
            .and_then(serde_json::Value::as_f64)?;
        if produced.errors > 0 {
            return Some(format!("{} errors", produced.errors));
        }
        if produced.records_per_second < KEPT_UP * rate {
            return Some(format!(
                "{:.0}/s of {rate:.0}/s",
                produced.records_per_second
            ));
        }
        let latency = run
            .latencies
            .iter()
            .find(|one| one.kind == LatencyKind::Produce)?;
        let p99 = latency.percentiles.iter().find(|one| one.percent == 99.0);
        // With too few samples to state it, the largest of them.
        let p99 = p99.map_or(latency.max_us, |one| one.us);
        (p99 > self.p99_us).then(|| format!("p99 {p99} us"))
    }
}

/// Which rate to try next.
#[derive(Clone, Debug)]
struct Search {
    kept: Option<f64>,
    missed: Option<f64>,
    next: f64,
    steps: usize,
}

impl Search {
    fn new(first: f64) -> Search {
        Search {
            kept: None,
            missed: None,
            next: first.max(RATE_MIN),
            steps: 0,
        }
    }

    /// `None` when the answer is known.
    fn next(&self) -> Option<f64> {
        (self.steps < STEPS_MAX && self.next >= RATE_MIN).then_some(self.next)
    }

    /// What became of the rate that [`Search::next`] named.
    fn learn(&mut self, kept: bool) {
        self.steps += 1;
        let rate = self.next;
        match kept {
            true => self.kept = Some(rate),
            false => self.missed = Some(rate),
        }
        self.next = match (self.kept, self.missed) {
            (Some(kept), None) => kept * 1.5,
            (None, Some(missed)) => missed / 2.0,
            (Some(kept), Some(missed)) if missed <= kept * PRECISION => 0.0,
            (Some(kept), Some(missed)) => (kept * missed).sqrt(),
            (None, None) => 0.0,
        };
    }
}

/// A run with its judgement, as soon as it has ended.
pub struct Step<'a> {
    pub run: &'a Run,
    /// Why the goal was missed.
    pub missed: Option<&'a str>,
}

/// Finds the highest rate that meets the goal. The runs go to `runs` in their order; the last one
/// that met it is the answer. `first` is a guess; left out, the closed loop makes one.
///
/// # Errors
/// Of the first run that could not take place; those before it are in `runs`.
pub fn saturation(
    plan: &Plan,
    goal: Goal,
    first: Option<f64>,
    arrivals: Arrivals,
    runs: &mut Vec<Run>,
    mut each: impl FnMut(Step<'_>),
) -> Result<(), BenchError> {
    let first = match first {
        Some(first) => first,
        None => {
            let closed = Plan {
                load: Load::Closed,
                delete_topic: false,
                ..plan.clone()
            };
            let run = run(&closed)?;
            each(Step {
                run: &run,
                missed: None,
            });
            let reached = run.produced.as_ref().map_or(0.0, |p| p.records_per_second);
            runs.push(run);
            reached * FIRST_GUESS
        }
    };
    let mut search = Search::new(first);
    while let Some(rate) = search.next() {
        let (run, missed) = at_rate(plan, rate, arrivals, goal)?;
        each(Step {
            run: &run,
            missed: missed.as_deref(),
        });
        search.learn(missed.is_none());
        runs.push(run);
    }
    if let Some(kept) = search.kept {
        let name = Plan {
            load: Load::Open {
                records_per_second: kept,
                arrivals,
            },
            ..plan.clone()
        }
        .run_name();
        if let Some(run) = runs.iter_mut().rev().find(|run| run.name == name) {
            run.name.push_str(" (highest kept)");
        }
    }
    Ok(())
}

/// Runs at each rate until one misses the goal, which is the last.
///
/// # Errors
/// Of the first run that could not take place; those before it are in `runs`.
pub fn sweep(
    plan: &Plan,
    rates: &[f64],
    goal: Goal,
    arrivals: Arrivals,
    runs: &mut Vec<Run>,
    mut each: impl FnMut(Step<'_>),
) -> Result<(), BenchError> {
    for rate in rates {
        let (run, missed) = at_rate(plan, *rate, arrivals, goal)?;
        each(Step {
            run: &run,
            missed: missed.as_deref(),
        });
        runs.push(run);
        if missed.is_some() {
            break;
        }
    }
    Ok(())
}

fn at_rate(
    plan: &Plan,
    rate: f64,
    arrivals: Arrivals,
    goal: Goal,
) -> Result<(Run, Option<String>), BenchError> {
    let plan = Plan {
        load: Load::Open {
            records_per_second: rate,
            arrivals,
        },
        delete_topic: false, // The next rate needs it.
        ..plan.clone()
    };
    let run = run(&plan)?;
    let missed = goal.missed(&run);
    Ok((run, missed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(first: f64, limit: f64) -> (Option<f64>, usize) {
        let mut search = Search::new(first);
        while let Some(rate) = search.next() {
            search.learn(rate <= limit);
        }
        (search.kept, search.steps)
    }

    proptest! {
        #[test]
        fn the_highest_rate_is_found_from_any_guess(
            first in 1.0f64..1e6, limit in 2.0f64..1e6,
        ) {
            let (kept, steps) = found(first, limit);
            let kept = kept.unwrap();
            prop_assert!(kept <= limit && limit <= kept * PRECISION, "{} of {}", kept, limit);
            prop_assert!(steps < STEPS_MAX);
        }

        #[test]
        fn a_good_guess_takes_few_runs(limit in 100.0f64..1e6, off in 0.7f64..1.3) {
            let (_, steps) = found(limit * off, limit);
            prop_assert!(steps <= 7, "{} runs", steps);
        }
    }

    #[test]
    fn a_broker_that_keeps_nothing_ends_the_search() {
        let (kept, steps) = found(1000.0, 0.0);
        assert_eq!(kept, None);
        assert!(steps <= 11);
    }

    fn run_with(records_per_second: f64, errors: u64, p99: Option<u64>, max_us: u64) -> Run {
        use crate::lab::result::{Flow, Latency, Percentile, ToolCost};
        Run {
            name: "1000/s".to_owned(),
            options: [("rate".to_owned(), serde_json::json!(1000.0))]
                .into_iter()
                .collect(),
            seconds: 1.0,
            produced: Some(Flow {
                records_per_second,
                errors,
                ..Flow::default()
            }),
            consumed: None,
            transactions: None,
            latencies: vec![Latency {
                kind: LatencyKind::Produce,
                samples: 1,
                mean_us: 0.0,
                min_us: 0,
                max_us,
                percentiles: p99
                    .map(|us| Percentile { percent: 99.0, us })
                    .into_iter()
                    .collect(),
                histogram: String::new(),
            }],
            over_time: Vec::new(),
            tool: ToolCost::default(),
            brokers: Vec::new(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_rate_is_kept_in_every_respect_or_not_at_all() {
        let goal = Goal { p99_us: 5_000 };
        assert_eq!(goal.missed(&run_with(951.0, 0, Some(5_000), 9_000)), None);
        assert!(goal.missed(&run_with(949.0, 0, Some(1), 1)).is_some());
        assert!(goal.missed(&run_with(1000.0, 1, Some(1), 1)).is_some());
        assert!(goal.missed(&run_with(1000.0, 0, Some(5_001), 1)).is_some());
        assert!(goal.missed(&run_with(1000.0, 0, None, 5_001)).is_some());
    }
}
