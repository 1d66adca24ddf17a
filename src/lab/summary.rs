//! A result of the load tool as tables of text: the same rows for the terminal and the page. Pure.

use crate::commands::table::Table;

use super::page::quantity::{Unit, percentile_name, whole};
use super::result::{BenchResult, Floor, Flow, Latency, LatencyKind, PERCENTILES, Run};

/// A header and its rows. A column whose name begins with `>` holds figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Everything that a terminal shows after a run.
pub fn text(result: &BenchResult) -> String {
    let mut text = throughput(&result.runs).text();
    let transactions = transactions(&result.runs);
    if !transactions.rows.is_empty() {
        text.push('\n');
        text.push_str(&transactions.text());
    }
    let latency = latency(&result.runs);
    if !latency.rows.is_empty() {
        text.push('\n');
        text.push_str(&latency.text());
        text.push_str(&format!(
            "A percentile is stated when at least {} samples lie above it.\n",
            super::result::SAMPLES_ABOVE_PERCENTILE
        ));
    }
    if !result.floors.is_empty() {
        text.push_str("\nFloors, measured beside the runs without any broker:\n");
        text.push_str(&floors(&result.floors).text());
    }
    for warning in warnings(result) {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

impl Rows {
    fn new(columns: &[&str]) -> Rows {
        Rows {
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub fn column_names(&self) -> Vec<&str> {
        self.columns.iter().map(String::as_str).collect()
    }

    /// For a terminal: plain spaces, the header in capitals as in every other command.
    pub fn text(&self) -> String {
        let plain = |text: &str| text.replace(['\u{202f}', '\u{2009}'], " ");
        let names: Vec<String> = self
            .columns
            .iter()
            .map(|name| name.to_uppercase())
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut table = Table::new(&names);
        for row in &self.rows {
            table.row(row.iter().map(|cell| plain(cell)).collect());
        }
        table.text()
    }
}

/// How much went through, and what it cost.
pub fn throughput(runs: &[Run]) -> Rows {
    let mut rows = Rows::new(&[
        "run",
        ">produced",
        ">bytes",
        ">consumed",
        ">bytes",
        ">errors",
        ">tool cpu",
        ">busiest",
        ">broker cpu",
        ">per cpu s",
        ">written/byte",
        ">broker rss",
    ]);
    for run in runs {
        let (produced, consumed) = (run.produced.as_ref(), run.consumed.as_ref());
        let rate = |flow: Option<&Flow>| {
            flow.map_or_else(String::new, |flow| {
                // In full: three digits would hide how well a rate was kept.
                format!("{}/s", whole(flow.records_per_second.round() as u64))
            })
        };
        let bytes = |flow: Option<&Flow>| {
            flow.map_or_else(String::new, |flow| {
                Unit::BytesPerSecond.text(flow.bytes_per_second)
            })
        };
        let errors = [produced, consumed].into_iter().flatten();
        let errors: u64 = errors.map(|flow| flow.errors).sum();
        let costs = Costs::of(run);
        let or_empty = |unit: Unit, value: Option<f64>| {
            value.map_or_else(String::new, |value| unit.text(value))
        };
        rows.rows.push(vec![
            run.name.clone(),
            rate(produced),
            bytes(produced),
            rate(consumed),
            bytes(consumed),
            whole(errors),
            format!("{:.2}\u{202f}s", run.tool.cpu_seconds),
            format!("{:.0}\u{202f}%", 100.0 * run.tool.busiest_thread),
            costs
                .cpu_seconds
                .map_or_else(String::new, |cpu| format!("{cpu:.2}\u{202f}s")),
            or_empty(Unit::Count, costs.records_per_cpu_second),
            or_empty(Unit::Plain, costs.written_per_byte),
            or_empty(Unit::Bytes, costs.resident_bytes),
        ]);
    }
    rows
}

/// What became of the transactions of runs that had some.
pub fn transactions(runs: &[Run]) -> Rows {
    let mut rows = Rows::new(&[
        "run",
        ">begun",
        ">committed",
        ">aborted",
        ">records committed",
        ">records aborted",
        ">commit p50",
        ">commit p99",
    ]);
    for run in runs {
        let Some(all) = &run.transactions else {
            continue;
        };
        let mut latencies = run.latencies.iter();
        let commit = latencies.find(|one| one.kind == LatencyKind::Commit);
        let stated = |percent| commit.map_or_else(String::new, |one| stated(one, percent));
        rows.rows.push(vec![
            run.name.clone(),
            whole(all.begun),
            whole(all.committed),
            whole(all.aborted),
            whole(all.records_committed),
            whole(all.records_aborted),
            stated(50.0),
            stated(99.0),
        ]);
    }
    rows
}

/// What all brokers of a run cost together; absent where none was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    pub cpu_seconds: Option<f64>,
    /// Records that went in or out for each CPU second of the brokers.
    pub records_per_cpu_second: Option<f64>,
    /// Bytes on devices for each produced byte.
    pub written_per_byte: Option<f64>,
    pub resident_bytes: Option<f64>,
}

impl Costs {
    pub fn of(run: &Run) -> Costs {
        if run.brokers.is_empty() {
            return Costs::default();
        }
        let cpu: f64 = run.brokers.iter().map(|one| one.cpu_seconds).sum();
        let written: u64 = run.brokers.iter().map(|one| one.written_bytes).sum();
        let resident: u64 = run.brokers.iter().map(|one| one.resident_bytes).sum();
        let flows = [run.produced.as_ref(), run.consumed.as_ref()];
        let records: u64 = flows.into_iter().flatten().map(|flow| flow.records).sum();
        let produced = run.produced.as_ref().map_or(0, |flow| flow.bytes);
        Costs {
            cpu_seconds: Some(cpu),
            // Below a few ticks of the kernel's clock the quotient would be noise.
            records_per_cpu_second: (cpu >= 0.1).then(|| records as f64 / cpu),
            written_per_byte: (produced > 0).then(|| written as f64 / produced as f64),
            resident_bytes: Some(resident as f64),
        }
    }
}

pub fn latency(runs: &[Run]) -> Rows {
    let mut rows = Rows::new(&["run", "latency", ">samples", ">mean"]);
    let names = PERCENTILES
        .iter()
        .map(|percent| format!(">{}", percentile_name(*percent)));
    rows.columns.extend(names);
    rows.columns.push(">max".to_owned());
    for run in runs {
        for latency in &run.latencies {
            let mut row = vec![
                run.name.clone(),
                kind_name(latency.kind).to_owned(),
                whole(latency.samples),
                match latency.samples {
                    0 => String::new(),
                    _ => Unit::Micros.text(latency.mean_us),
                },
            ];
            row.extend(PERCENTILES.iter().map(|percent| stated(latency, *percent)));
            row.push(match latency.samples {
                0 => String::new(),
                _ => Unit::Micros.text(latency.max_us as f64),
            });
            rows.rows.push(row);
        }
    }
    rows
}

fn stated(latency: &Latency, percent: f64) -> String {
    percentile(latency, percent).map_or_else(String::new, |us| Unit::Micros.text(us as f64))
}

/// The stated percentile, if there were enough samples.
pub fn percentile(latency: &Latency, percent: f64) -> Option<u64> {
    let mut stated = latency.percentiles.iter();
    let found = stated.find(|one| (one.percent - percent).abs() < 1e-9);
    found.map(|one| one.us)
}

pub fn kind_name(kind: LatencyKind) -> &'static str {
    match kind {
        LatencyKind::Produce => "produce",
        LatencyKind::EndToEnd => "end to end",
        LatencyKind::Fetch => "fetch",
        LatencyKind::Commit => "commit",
    }
}

pub fn floors(floors: &[Floor]) -> Rows {
    let mut rows = Rows::new(&["floor", ">median", ">p99", ">samples", "what"]);
    for floor in floors {
        rows.rows.push(vec![
            floor.name.clone(),
            floor_value(floor, floor.value),
            floor
                .p99
                .map_or_else(String::new, |p99| floor_value(floor, p99)),
            whole(floor.samples),
            floor.what.clone(),
        ]);
    }
    rows
}

/// In the floor's unit: the known ones are written as people read them.
fn floor_value(floor: &Floor, value: f64) -> String {
    match floor.unit.as_str() {
        "us" => Unit::Micros.text(value),
        "bytes/s" => Unit::BytesPerSecond.text(value),
        "values/s" => Unit::PerSecond.text(value),
        other => format!("{} {other}", Unit::Plain.text(value)),
    }
}

/// Those of the result and of each run, with the run's name.
pub fn warnings(result: &BenchResult) -> Vec<String> {
    let mut all = result.warnings.clone();
    for run in &result.runs {
        let named = run
            .warnings
            .iter()
            .map(|text| format!("{}: {text}", run.name));
        all.extend(named);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::result::Transactions;
    use super::super::test_result::result;
    use super::*;

    #[test]
    fn transactions_have_a_table_where_there_are_some() {
        let mut result = result("a", 2000, 1.0);
        assert!(transactions(&result.runs).rows.is_empty());
        assert!(!text(&result).contains("COMMITTED"));
        let mut commit = result.runs[0].latencies[0].clone();
        commit.kind = LatencyKind::Commit;
        result.runs[0].latencies.push(commit);
        result.runs[0].transactions = Some(Transactions {
            begun: 20,
            committed: 15,
            aborted: 4,
            records_committed: 1500,
            records_aborted: 400,
        });
        let rows = transactions(&result.runs).rows;
        let row: Vec<&str> = rows[0].iter().map(String::as_str).collect();
        assert_eq!(row[1..4], ["20", "15", "4"]);
        assert_eq!(row[6].replace('\u{202f}', " "), "1 ms");
        assert!(text(&result).contains("RECORDS ABORTED"));
    }

    #[test]
    fn what_has_too_few_samples_is_not_stated() {
        let result = result("a", 2000, 1.0);
        let rows = latency(&result.runs);
        let names = rows.column_names();
        let cell = |name: &str| {
            let at = names.iter().position(|known| *known == name).unwrap();
            rows.rows[0][at].replace('\u{202f}', " ")
        };
        assert_eq!(cell(">samples"), "2\u{2009}000");
        assert_eq!(cell(">p50"), "1 ms");
        assert_eq!(cell(">p99"), "1.98 ms");
        assert_eq!(
            (cell(">p99.9"), cell(">p99.99")),
            (String::new(), String::new())
        );
    }

    #[test]
    fn the_terminal_has_runs_floors_and_warnings() {
        let mut result = result("2000/s", 2000, 1.0);
        result.warnings.push("the machine is busy".to_owned());
        result.runs[0].warnings.push("late".to_owned());
        let text = text(&result);
        assert!(text.starts_with("RUN    PRODUCED"), "{text}");
        for wanted in [
            "2000/s",
            "2 000/s",
            "device_write_flush",
            "200 µs",
            "warning: the machine is busy\n",
            "warning: 2000/s: late\n",
        ] {
            assert!(text.contains(wanted), "{wanted} in\n{text}");
        }
        assert!(!text.contains(['\u{202f}', '\u{2009}']));
    }

    #[test]
    fn costs_are_sums_over_brokers() {
        let run = &result("a", 2000, 1.0).runs[0];
        let costs = Costs::of(run);
        assert_eq!(costs.cpu_seconds, Some(0.5));
        assert_eq!(costs.records_per_cpu_second, Some(4000.0));
        assert_eq!(costs.written_per_byte, Some(1.5));
        let alone = Run {
            brokers: Vec::new(),
            ..run.clone()
        };
        assert_eq!(Costs::of(&alone), Costs::default());
    }
}
