//! What the threads tell, put together: the progress line while the load runs, the result after it.
//!
//! On the control executor. Merges histograms, never percentiles. Says what makes the figures
//! doubtful.

use std::collections::BTreeMap;

use super::plan::Plan;
use super::progress;
use super::samples::{Count, Latencies, Second, Sums, Told};
use super::schedule::Window;
use crate::lab::histogram::Histogram;
use crate::lab::result::{
    BrokerCost, Flow, LatencyKind, Moment, OtherLatency, Run, ToolCost, Transactions,
};

/// The share of the intended rate below which a broker (or the tool) did not keep up.
pub(super) const KEPT_UP: f64 = 0.95;
/// Of a core: above it a thread of the tool may have been what limited the run.
const BUSY_THREAD: f64 = 0.9;
/// The share of the time without a core from which on the tool was held up by whoever had it.
const WAITED: f64 = 0.1;

/// One second of all threads.
#[derive(Default)]
struct Whole {
    threads: usize,
    produced: Count,
    consumed: Count,
    errors: u64,
    latencies: Latencies,
}

pub(super) struct Gatherer {
    threads: usize,
    progress: bool,
    window: Window,
    /// The first kind of latency that the run has.
    kind: LatencyKind,
    /// Seconds that not all threads have told of.
    open: BTreeMap<i64, Whole>,
    latencies: Latencies,
    moments: Vec<Moment>,
    sums: Sums,
    ended: usize,
}

impl Gatherer {
    pub(super) fn new(plan: &Plan, window: Window) -> Gatherer {
        Gatherer {
            threads: plan.threads,
            progress: plan.progress,
            window,
            kind: if plan.producers > 0 {
                LatencyKind::Produce
            } else {
                LatencyKind::Fetch
            },
            open: BTreeMap::new(),
            latencies: Latencies::default(),
            moments: Vec::new(),
            sums: Sums::default(),
            ended: 0,
        }
    }

    /// Takes in what a thread tells; true when all have ended.
    pub(super) fn take_in(&mut self, told: Told) -> bool {
        match told {
            Told::Second(second) => self.add(*second),
            Told::End(sums) => {
                self.sums.merge(*sums);
                self.ended += 1;
            }
        }
        let whole: Vec<i64> = self
            .open
            .iter()
            .filter(|(_, whole)| whole.threads == self.threads)
            .map(|(index, _)| *index)
            .collect();
        for index in whole {
            self.close(index);
        }
        if self.ended < self.threads {
            return false;
        }
        // Threads end in different seconds.
        while let Some(index) = self.open.keys().next().copied() {
            self.close(index);
        }
        true
    }

    fn add(&mut self, second: Second) {
        let whole = self.open.entry(second.index).or_default();
        whole.threads += 1;
        whole.produced.add(second.produced);
        whole.consumed.add(second.consumed);
        whole.errors += second.errors;
        whole.latencies.merge(&second.latencies);
    }

    fn close(&mut self, index: i64) {
        let Some(whole) = self.open.remove(&index) else {
            return;
        };
        self.latencies.merge(&whole.latencies);
        let of = |kind, histogram: &Histogram| OtherLatency {
            kind,
            p50_us: histogram.stated_percentile(50.0),
            p99_us: histogram.stated_percentile(99.0),
            max_us: histogram.percentile(100.0),
        };
        let mut others = Vec::new();
        let mut first = None;
        for (kind, histogram) in whole.latencies.iter() {
            if kind == self.kind {
                first = Some(of(kind, histogram));
            } else {
                others.push(of(kind, histogram));
            }
        }
        let moment = Moment {
            second: u32::try_from(index).unwrap_or(0),
            produced_records: whole.produced.records,
            consumed_records: whole.consumed.records,
            produced_bytes: whole.produced.bytes,
            consumed_bytes: whole.consumed.bytes,
            errors: whole.errors,
            p50_us: first.and_then(|first| first.p50_us),
            p99_us: first.and_then(|first| first.p99_us),
            max_us: first.and_then(|first| first.max_us),
            others,
        };
        if self.progress {
            let in_all = self.window.seconds();
            eprintln!("{}", progress::line(index, in_all, &moment));
        }
        if (0..self.window.seconds()).contains(&index) {
            self.moments.push(moment);
        }
    }

    /// The result of the run.
    pub(super) fn finish(mut self, plan: &Plan, tool: ToolCost, brokers: Vec<BrokerCost>) -> Run {
        self.moments.sort_by_key(|moment| moment.second);
        let seconds = (self.window.to - self.window.from) as f64 / 1e9;
        let flow = |whole: Count, within: Count, errors: u64| Flow {
            records: whole.records,
            bytes: whole.bytes,
            requests: whole.requests,
            errors,
            records_per_second: within.records as f64 / seconds,
            bytes_per_second: within.bytes as f64 / seconds,
        };
        let sums = &self.sums;
        let produced = (plan.producers > 0)
            .then(|| flow(sums.acknowledged, sums.produced_within, sums.failed));
        let consumed = (plan.consumers > 0).then(|| flow(sums.received, sums.consumed_within, 0));
        let latencies = self.latencies.iter();
        let latencies = latencies.map(|(kind, histogram)| histogram.summary(kind));
        let mut run = Run {
            name: plan.run_name(),
            options: plan.options(),
            seconds,
            produced,
            consumed,
            transactions: plan.transactions.as_ref().map(|_| sums.transactions),
            latencies: latencies.collect(),
            over_time: std::mem::take(&mut self.moments),
            tool,
            brokers,
            warnings: Vec::new(),
        };
        run.warnings = self.warnings(plan, &run);
        run
    }

    /// Sums over the measured records, for the caller of a library.
    pub(super) fn sums(&self) -> &Sums {
        &self.sums
    }

    fn warnings(&self, plan: &Plan, run: &Run) -> Vec<String> {
        let sums = &self.sums;
        let mut all = Vec::new();
        if run.tool.busiest_thread > BUSY_THREAD {
            all.push(format!(
                "the tool's busiest thread used {:.0}% of a core: the tool may be what limited \
                 this run (try --threads or --cpus)",
                run.tool.busiest_thread * 100.0
            ));
        }
        let wanted = run.tool.busiest_thread + run.tool.busiest_thread_waited;
        if run.tool.busiest_thread <= BUSY_THREAD
            && wanted > BUSY_THREAD
            && run.tool.busiest_thread_waited > WAITED
        {
            all.push(format!(
                "the tool's busiest thread ran {:.0}% of the time and waited for a core for {:.0}%: \
                 tool and broker share too few cores, which may be what limited this run",
                run.tool.busiest_thread * 100.0,
                run.tool.busiest_thread_waited * 100.0
            ));
        }
        let produce = self.latencies.of(LatencyKind::Produce);
        if let (Some(late), Some(median)) = (
            sums.lateness.stated_percentile(99.0),
            produce.and_then(|one| one.percentile(50.0)),
        ) && late > median
        {
            all.push(format!(
                "the tool itself was late: p99 of its wake-ups {late} us after the due time, more \
                 than the median latency of {median} us"
            ));
        }
        if let (Some(rate), Some(produced)) = (plan.rate(), &run.produced)
            && produced.records_per_second < KEPT_UP * rate
        {
            all.push(format!(
                "{:.0} of {rate:.0} records/s were acknowledged in time: the rate was not kept",
                produced.records_per_second
            ));
        }
        if sums.unsent > 0 {
            all.push(format!(
                "{} records that were due were never sent: the latencies are those of the others \
                 and too low",
                sums.unsent
            ));
        }
        if sums.resent > 0 && !plan.idempotence {
            all.push(format!(
                "{} records were sent more than once; without idempotence the log may hold them \
                 twice",
                sums.resent
            ));
        }
        let (expected, what) = match plan.transactions {
            Some(_) => (sums.transactions.records_committed, "committed"),
            None => (sums.acknowledged.records, "acknowledged"),
        };
        if plan.is_end_to_end() && sums.received.records < expected {
            all.push(format!(
                "{} {what} records did not reach a consumer before the run ended",
                expected - sums.received.records
            ));
        }
        let Transactions {
            begun,
            committed,
            aborted,
            ..
        } = sums.transactions;
        if begun > committed + aborted {
            all.push(format!(
                "the outcome of {} transactions is not known: their records are not counted as \
                 committed",
                begun - committed - aborted
            ));
        }
        let saturated: u64 = self.latencies.iter().map(|(_, one)| one.saturated()).sum();
        if saturated > 0 {
            all.push(format!(
                "{saturated} latencies above an hour count as an hour"
            ));
        }
        for (what, count) in &sums.troubles {
            all.push(format!("{what}: {count}"));
        }
        all
    }
}
