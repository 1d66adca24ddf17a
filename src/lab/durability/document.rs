//! The document that the durability lab writes: what was run on which machine, and a row for each
//! configuration with its cost and its losses. Owns the shape; measures nothing.

use super::losses::Losses;
use super::matrix::Row;
use super::meaning::meaning;
use crate::lab::result::{Floor, Host, Latency, LatencyKind, Run};
use serde::Serialize;
use serde_json::Value;

/// Name and version of the document.
pub const SCHEMA: &str = "highwater.durability/1";

/// A rate of which this part is acknowledged in time is kept.
const KEPT: f64 = 0.95;

/// What a gigabyte is where CPU time is told for one.
const GB: f64 = 1e9;

#[derive(Clone, Debug, Serialize)]
pub struct Document {
    pub schema: &'static str,
    pub tool_version: &'static str,
    pub started_unix_ms: u64,
    pub quick: bool,
    pub host: Host,
    pub floors: Vec<Floor>,
    /// What was sent while throughput and latency were measured, the same in each row.
    pub load: Value,
    /// What was sent to each row while brokers were killed.
    pub kill_load: String,
    pub simulation: Simulation,
    pub rows: Vec<RowResult>,
    /// What makes the figures doubtful, one sentence each.
    pub warnings: Vec<String>,
}

impl Document {
    /// Rows without figures of their cost.
    pub fn unmeasured(&self) -> usize {
        let measured = |row: &&RowResult| !row.is_measured();
        self.rows.iter().filter(measured).count()
    }
}

/// The worlds behind the power losses.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Simulation {
    pub first_seed: u64,
    /// Worlds of all configurations together.
    pub worlds: u64,
    pub events_per_world: u64,
    /// What was sent to each row.
    pub load: String,
    /// Worlds that did not come to their end; their events until then count.
    pub failed_worlds: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RowResult {
    /// Such as `system=highwater acks=all brokers=3 io=direct flush=1`.
    pub name: String,
    pub title: String,
    pub configuration: Value,
    /// At saturation: as fast as one producer goes.
    pub throughput: Option<Throughput>,
    /// From the intended send to the acknowledgement, at the load's fixed rate; for acks=0 until
    /// the record is handed to the socket.
    pub percentiles: Option<Percentiles>,
    pub fixed_rate: Option<FixedRate>,
    /// The whole distribution.
    pub latency: Option<Latency>,
    /// Bytes that the brokers caused to be written, over those of the records times their replicas.
    /// Below one where records are acknowledged before every replica has written them.
    pub write_amplification: Option<f64>,
    /// While the fixed rate was sent, over all brokers, with its warm-up.
    pub flush_rounds: Option<u64>,
    pub flush_rounds_per_1000_records: Option<f64>,
    /// Of all brokers, for a gigabyte of records at saturation.
    pub cpu_seconds_per_gb: Option<f64>,
    pub losses: LossSet,
    /// One sentence.
    pub meaning: String,
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Throughput {
    pub records_per_second: f64,
    pub bytes_per_second: f64,
    pub records: u64,
    pub errors: u64,
    pub seconds: f64,
}

/// The rate at which latency was taken, and what of it was acknowledged in time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FixedRate {
    pub offered_records_per_second: f64,
    pub acknowledged_records_per_second: f64,
}

impl FixedRate {
    pub fn share(&self) -> f64 {
        self.acknowledged_records_per_second / self.offered_records_per_second
    }

    /// Where it was not, records waited for others that were due before them, ever longer: the
    /// latencies say how long the run was, not what an acknowledgement takes.
    pub fn was_kept(&self) -> bool {
        self.share() >= KEPT
    }
}

/// Absent where there are too few samples above.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    pub samples: u64,
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub p99_9_us: Option<u64>,
    pub p99_99_us: Option<u64>,
    pub max_us: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossSet {
    pub process_kill: Losses,
    pub one_host_power_loss: Losses,
    pub all_hosts_power_loss: Losses,
}

/// What was measured of a row: a run at saturation and one at a fixed rate.
#[derive(Clone, Debug)]
pub struct Measured {
    pub saturated: Run,
    pub paced: Run,
    /// Records a second that the paced run was to send.
    pub rate: f64,
    /// Of all brokers during the whole of the paced run.
    pub flush_rounds: Option<u64>,
    /// The part of a run's time that is not measured.
    pub warm_up: f64,
}

impl RowResult {
    /// A value of the configuration as a table shows it.
    pub fn configured(&self, key: &str) -> String {
        let value = &self.configuration[key];
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    }

    /// Whether there are figures of its cost.
    pub fn is_measured(&self) -> bool {
        self.throughput.is_some()
    }

    /// `measured` says why there is nothing, where there is nothing.
    pub fn new(row: &Row, measured: Result<&Measured, &String>, losses: LossSet) -> Self {
        let mut result = RowResult {
            name: row.name(),
            title: row.title(),
            configuration: row.configuration(),
            throughput: None,
            percentiles: None,
            fixed_rate: None,
            latency: None,
            write_amplification: None,
            flush_rounds: None,
            flush_rounds_per_1000_records: None,
            cpu_seconds_per_gb: None,
            losses,
            meaning: String::new(),
            warnings: Vec::new(),
        };
        match measured {
            Ok(measured) => result.take(row, measured),
            Err(why) => result.warnings.push(format!("not measured: {why}")),
        }
        result.meaning = meaning(
            row,
            result.percentiles.as_ref(),
            result.fixed_rate.as_ref(),
            &result.losses,
        );
        result
    }

    fn take(&mut self, row: &Row, measured: &Measured) {
        let run = &measured.saturated;
        if let Some(flow) = &run.produced {
            self.throughput = Some(Throughput {
                records_per_second: flow.records_per_second,
                bytes_per_second: flow.bytes_per_second,
                records: flow.records,
                errors: flow.errors,
                seconds: run.seconds,
            });
            let bytes = flow.bytes as f64;
            if flow.bytes > 0 && !run.brokers.is_empty() {
                let replicated = bytes * row.brokers as f64;
                let written: u64 = run.brokers.iter().map(|cost| cost.written_bytes).sum();
                self.write_amplification = Some(written as f64 / replicated);
                let cpu: f64 = run.brokers.iter().map(|cost| cost.cpu_seconds).sum();
                self.cpu_seconds_per_gb = Some(cpu / bytes * GB);
            }
        }
        let run = &measured.paced;
        self.flush_rounds = measured.flush_rounds;
        let records = run.produced.as_ref().map(|flow| flow.records);
        if let (Some(rounds), Some(records)) = (measured.flush_rounds, records)
            && records > 0
        {
            self.flush_rounds_per_1000_records = {
                let sent = records as f64 / (1.0 - measured.warm_up);
                Some(rounds as f64 * 1e3 / sent)
            };
        }
        let produce = |latency: &&Latency| latency.kind == LatencyKind::Produce;
        self.latency = run.latencies.iter().find(produce).cloned();
        self.percentiles = self.latency.as_ref().map(Percentiles::of);
        self.fixed_rate = run.produced.as_ref().map(|flow| FixedRate {
            offered_records_per_second: measured.rate,
            acknowledged_records_per_second: flow.records_per_second,
        });
        self.warnings.extend(measured.saturated.warnings.clone());
        self.warnings.extend(run.warnings.clone());
        self.warnings.dedup();
        if self.fixed_rate.is_some_and(|rate| !rate.was_kept()) {
            self.warnings.push(
                "its percentiles are those of a queue that grew while the fixed rate was sent"
                    .to_owned(),
            );
        }
    }
}

impl Percentiles {
    fn of(latency: &Latency) -> Percentiles {
        let stated = |percent: f64| {
            let of = latency.percentiles.iter();
            let found = of.clone().find(|known| known.percent == percent);
            found.map(|known| known.us)
        };
        Percentiles {
            samples: latency.samples,
            p50_us: stated(50.0),
            p99_us: stated(99.0),
            p99_9_us: stated(99.9),
            p99_99_us: stated(99.99),
            max_us: latency.max_us,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::losses::{Event, Source, Tally};
    use super::super::matrix::highwater_rows;
    use super::*;
    use crate::lab::result::{BrokerCost, Flow, Percentile, ToolCost};
    use std::time::Duration;

    pub(in crate::lab::durability) fn losses(lost: u64) -> Losses {
        let mut tally = Tally::default();
        for _ in 0..10 {
            tally.add(&Event {
                acknowledged: 100,
                lost,
                oldest: Duration::from_millis(lost),
                recovery: Duration::from_millis(20),
            });
        }
        tally.state(Source::Simulator)
    }

    pub(in crate::lab::durability) fn loss_set(kill: u64, one: u64, all: u64) -> LossSet {
        LossSet {
            process_kill: losses(kill),
            one_host_power_loss: losses(one),
            all_hosts_power_loss: losses(all),
        }
    }

    fn run(records: u64) -> Run {
        Run {
            name: "x".to_owned(),
            options: serde_json::Map::new(),
            seconds: 2.0,
            produced: Some(Flow {
                records,
                bytes: records * 1000,
                records_per_second: records as f64 / 2.0,
                bytes_per_second: records as f64 * 500.0,
                ..Flow::default()
            }),
            consumed: None,
            transactions: None,
            latencies: vec![Latency {
                kind: LatencyKind::Produce,
                samples: records,
                mean_us: 100.0,
                min_us: 50,
                max_us: 9000,
                percentiles: vec![
                    Percentile {
                        percent: 50.0,
                        us: 90,
                    },
                    Percentile {
                        percent: 99.0,
                        us: 800,
                    },
                ],
                histogram: String::new(),
            }],
            over_time: Vec::new(),
            tool: ToolCost::default(),
            brokers: vec![BrokerCost {
                cpu_seconds: 0.5,
                written_bytes: 3_000_000,
                ..BrokerCost::default()
            }],
            warnings: Vec::new(),
        }
    }

    pub(in crate::lab::durability) fn measured() -> Measured {
        Measured {
            saturated: run(1000),
            paced: run(2000),
            rate: 1000.0,
            flush_rounds: Some(50),
            warm_up: 0.2,
        }
    }

    #[test]
    fn a_row_has_its_configuration_throughput_percentiles_and_losses() {
        let rows = highwater_rows();
        let row = rows.iter().find(|row| row.brokers == 3).unwrap();
        let result = RowResult::new(row, Ok(&measured()), loss_set(0, 1, 2));
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!(json["configuration"]["brokers"], 3);
        assert_eq!(json["throughput"]["records_per_second"], 500.0);
        assert_eq!(json["percentiles"]["samples"], 2000);
        assert_eq!(json["percentiles"]["p99_us"], 800);
        assert!(json["percentiles"]["p99_9_us"].is_null(), "too few samples");
        // 1 MB to each of three replicas.
        assert_eq!(json["write_amplification"], 1.0);
        assert_eq!(json["cpu_seconds_per_gb"], 500.0);
        assert_eq!(json["flush_rounds_per_1000_records"], 20.0);
        assert_eq!(json["losses"]["process_kill"]["lost_records"], 0);
        assert_eq!(
            json["losses"]["all_hosts_power_loss"]["lost_records_per_event"],
            2.0
        );
        assert!(json["meaning"].as_str().is_some_and(|text| text.len() > 20));
    }

    #[test]
    fn percentiles_of_a_rate_that_was_not_kept_are_said_to_be_a_queues() {
        let row = highwater_rows()[0];
        let of = |rate: f64| {
            let measured = Measured { rate, ..measured() };
            RowResult::new(&row, Ok(&measured), loss_set(0, 0, 0))
        };
        let kept = of(1050.0);
        assert!(kept.warnings.is_empty(), "{:?}", kept.warnings);
        assert!(!kept.meaning.contains("queue"), "{}", kept.meaning);
        let late = of(5000.0);
        assert!(
            late.warnings[0].contains("queue that grew"),
            "{:?}",
            late.warnings
        );
        let said = "in a queue that grew, for 1000 of 5000 records/s";
        assert!(late.meaning.contains(said), "{}", late.meaning);
    }

    #[test]
    fn a_row_that_could_not_be_measured_says_why_and_states_no_figure() {
        let row = highwater_rows()[0];
        let result = RowResult::new(&row, Err(&"it broke".to_owned()), loss_set(0, 0, 0));
        let json = serde_json::to_value(&result).unwrap();
        assert!(json["throughput"].is_null() && json["percentiles"].is_null());
        assert_eq!(json["warnings"][0], "not measured: it broke");
    }
}
