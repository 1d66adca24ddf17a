//! The page of a result of the load tool: what was measured, the pictures, beside each a table,
//! and what it was measured on. Pure.

use super::bench_charts::{
    knee, latency_levels, latency_over_time, percentile_curves, throughput_over_time,
};
use super::chart::SERIES_MAX;
use super::html::{document, escaped, table, warnings};
use super::quantity::{Unit, digits, utc, whole};
use crate::lab::histogram::Histogram;
use crate::lab::result::{BenchResult, Latency, LatencyKind, Run, SAMPLES_ABOVE_PERCENTILE};
use crate::lab::summary::{self, Rows, kind_name};

const KINDS: [LatencyKind; 4] = [
    LatencyKind::Produce,
    LatencyKind::EndToEnd,
    LatencyKind::Fetch,
    LatencyKind::Commit,
];

pub(super) fn page(result: &BenchResult) -> String {
    let mut body = String::new();
    body.push_str("<h1>Highwater bench</h1>\n");
    body.push_str(&format!(
        "<p class=\"note\">{} \u{b7} highwater {} \u{b7} {}</p>\n",
        utc(result.started_unix_ms),
        escaped(&result.tool_version),
        escaped(&machine(result)),
    ));
    let told = summary::warnings(result);
    body.push_str(&warnings(told.iter().map(String::as_str)));
    body.push_str(&rows(
        "Throughput and cost",
        &summary::throughput(&result.runs),
    ));
    let transactions = summary::transactions(&result.runs);
    if !transactions.rows.is_empty() {
        body.push_str(&rows("Transactions", &transactions));
    }
    let latencies = summary::latency(&result.runs);
    if !latencies.rows.is_empty() {
        let caption = format!(
            "Latency. A percentile is stated when at least {SAMPLES_ABOVE_PERCENTILE} samples lie above it."
        );
        body.push_str(&rows(&caption, &latencies));
    }
    if result.runs.len() > 1 {
        body.push_str(&together(result));
    }
    for run in &result.runs {
        body.push_str(&one(run, result));
    }
    body.push_str(
        "<h2>Floors</h2>\n<p class=\"note\">What this machine does without any broker, \
                   measured beside the runs.</p>\n",
    );
    body.push_str(&match result.floors.is_empty() {
        true => "<p>None were measured.</p>\n".to_owned(),
        false => rows("", &summary::floors(&result.floors)),
    });
    body.push_str("<h2>Machine</h2>\n");
    body.push_str(&host(result));
    document("Highwater bench", "", &body)
}

fn rows(caption: &str, rows: &Rows) -> String {
    table(caption, &rows.column_names(), &rows.rows)
}

fn machine(result: &BenchResult) -> String {
    let host = &result.host;
    format!(
        "{}, {} CPUs, load average {} at the start",
        host.cpu_model,
        host.logical_cpus,
        digits(host.load_average)
    )
}

fn host(result: &BenchResult) -> String {
    let host = &result.host;
    let rows = [
        ("kernel", host.kernel.clone()),
        ("CPU", host.cpu_model.clone()),
        ("logical CPUs", host.logical_cpus.to_string()),
        ("memory", Unit::Bytes.text(host.memory_bytes as f64)),
        ("load average at the start", digits(host.load_average)),
    ];
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    table("", &["", "value"], &rows)
}

/// The runs in one picture.
fn together(result: &BenchResult) -> String {
    let mut body = String::from("<h2>The runs together</h2>\n");
    for kind in KINDS {
        body.extend(knee(&result.runs, kind));
        let of = |run: &Run| -> Vec<Latency> {
            let all = run.latencies.iter().filter(|one| one.kind == kind);
            all.cloned().collect()
        };
        let found: Vec<(String, Vec<Latency>)> = result
            .runs
            .iter()
            .map(|run| (run.name.clone(), of(run)))
            .collect();
        let named: Vec<(String, &Latency)> = found
            .iter()
            .flat_map(|(name, all)| all.iter().map(move |one| (name.clone(), one)))
            .collect();
        let title = match named.len() {
            few if few <= SERIES_MAX => format!("Percentiles of all runs ({})", kind_name(kind)),
            many => format!(
                "Percentiles of {SERIES_MAX} of {many} runs ({})",
                kind_name(kind)
            ),
        };
        body.extend(percentile_curves(
            &title,
            &named,
            latency_levels(&result.floors),
        ));
    }
    body
}

fn one(run: &Run, result: &BenchResult) -> String {
    let mut body = format!("<h2>{}</h2>\n", escaped(&run.name));
    body.push_str(&format!("<p class=\"note\">{}</p>\n", escaped(&told(run))));
    body.push_str(&warnings(run.warnings.iter().map(String::as_str)));
    body.extend(throughput_over_time(run));
    body.extend(latency_over_time(run));
    let named: Vec<(String, &Latency)> = run
        .latencies
        .iter()
        .map(|latency| (kind_name(latency.kind).to_owned(), latency))
        .collect();
    body.extend(percentile_curves(
        "Percentiles",
        &named,
        latency_levels(&result.floors),
    ));
    if !named.is_empty() {
        body.push_str(
            "<p class=\"note\">Every further nine takes the same room. A line turns faint where \
             too few samples are above it, and ends at the slowest one.</p>\n",
        );
        body.push_str(&rows("", &summary::latency(std::slice::from_ref(run))));
        body.push_str(&slow_samples(&named));
    }
    if !run.over_time.is_empty() {
        body.push_str("<details><summary>Every second</summary>\n");
        body.push_str(&seconds(run));
        body.push_str("</details>\n");
    }
    body.push_str("<details open><summary>Options</summary>\n");
    let options = run.options.iter().map(|(name, value)| {
        let value = match value.as_str() {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        };
        vec![name.clone(), value]
    });
    let options: Vec<Vec<String>> = options.collect();
    body.push_str(&table("", &["option", "value"], &options));
    body.push_str("</details>\n");
    body
}

fn told(run: &Run) -> String {
    let mut told = format!("{} s measured", digits(run.seconds));
    let flows = [("produced", &run.produced), ("consumed", &run.consumed)];
    for (name, flow) in flows {
        let Some(flow) = flow else { continue };
        told.push_str(&format!(
            "; {} records {name} in {} requests, {} errors",
            whole(flow.records),
            whole(flow.requests),
            whole(flow.errors)
        ));
    }
    told.push_str(&format!(
        "; the tool used {} threads and {:.2} s of CPU, its busiest thread {:.0} % of the time",
        run.tool.threads,
        run.tool.cpu_seconds,
        100.0 * run.tool.busiest_thread
    ));
    for broker in &run.brokers {
        told.push_str(&format!(
            "; broker process {}: {:.2} s of CPU, {} resident, {} written",
            broker.pid,
            broker.cpu_seconds,
            Unit::Bytes.text(broker.resident_bytes as f64),
            Unit::Bytes.text(broker.written_bytes as f64)
        ));
    }
    told.push('.');
    told
}

/// How many samples were slower than round times: the figures behind the end of the curve.
fn slow_samples(latencies: &[(String, &Latency)]) -> String {
    const ROUND_MICROS: [u64; 7] = [100, 1_000, 5_000, 10_000, 100_000, 1_000_000, 10_000_000];
    let names: Vec<String> = ROUND_MICROS
        .iter()
        .map(|us| format!(">over {}", Unit::Micros.text(*us as f64)))
        .collect();
    let mut columns = vec!["latency", ">samples"];
    columns.extend(names.iter().map(String::as_str));
    let mut rows = Vec::new();
    for (name, latency) in latencies {
        let Ok(histogram) = Histogram::decode(&latency.histogram) else {
            continue;
        };
        let mut row = vec![name.clone(), whole(histogram.samples())];
        row.extend(
            ROUND_MICROS
                .iter()
                .map(|us| whole(histogram.count_over(*us))),
        );
        rows.push(row);
    }
    table("Samples slower than", &columns, &rows)
}

fn seconds(run: &Run) -> String {
    let us = |value: Option<u64>| value.map_or_else(String::new, |us| Unit::Micros.text(us as f64));
    let rows: Vec<Vec<String>> = run
        .over_time
        .iter()
        .map(|at| {
            vec![
                at.second.to_string(),
                whole(at.produced_records),
                Unit::Bytes.text(at.produced_bytes as f64),
                whole(at.consumed_records),
                Unit::Bytes.text(at.consumed_bytes as f64),
                whole(at.errors),
                us(at.p50_us),
                us(at.p99_us),
                us(at.max_us),
            ]
        })
        .collect();
    let columns = [
        ">second",
        ">produced",
        ">bytes",
        ">consumed",
        ">bytes",
        ">errors",
        ">p50",
        ">p99",
        ">max",
    ];
    table("", &columns, &rows)
}

#[cfg(test)]
mod tests {
    use super::super::html::checks::assert_well_formed;
    use super::*;
    use crate::lab::result::{Host, OtherLatency};
    use crate::lab::test_result::result;

    #[test]
    fn the_page_has_pictures_tables_and_everything_is_escaped() {
        let mut result = result("<2000/s>", 2000, 1.0);
        result.warnings.push("a & b".to_owned());
        let html = page(&result);
        assert_well_formed(&html);
        for wanted in [
            "Throughput over time</h3>",
            "Latency over time (produce)</h3>",
            "Percentiles</h3>",
            "<h2>&lt;2000/s&gt;</h2>",
            "A &lt;CPU&gt;",
            "<li>a &amp; b</li>",
            "device write flush</text>",
            "<td>record-size</td><td>1024</td>",
            "<td>acks</td><td>all</td>",
            "2026-05-28 20:26:40 UTC",
        ] {
            assert!(html.contains(wanted), "{wanted}");
        }
        assert!(!html.contains("The runs together"));
    }

    #[test]
    fn every_kind_of_latency_is_drawn_over_time() {
        let mut result = result("both", 2000, 1.0);
        let run = &mut result.runs[0];
        run.latencies.push(Latency {
            kind: LatencyKind::EndToEnd,
            ..run.latencies[0].clone()
        });
        for at in &mut run.over_time {
            at.others.push(OtherLatency {
                kind: LatencyKind::EndToEnd,
                p50_us: Some(1500),
                p99_us: Some(2500),
                max_us: Some(9000),
            });
        }
        let html = page(&result);
        assert_well_formed(&html);
        for kind in [LatencyKind::Produce, LatencyKind::EndToEnd] {
            let wanted = format!("Latency over time ({})</h3>", kind_name(kind));
            assert!(html.contains(&wanted), "{wanted}");
        }
    }

    #[test]
    fn a_sweep_has_its_knee() {
        let mut all = result("1000/s", 1000, 1.0);
        for rate in [2000, 3000, 4000] {
            let more = result(&format!("{rate}/s"), rate, 2.0);
            all.runs.extend(more.runs);
        }
        let html = page(&all);
        assert_well_formed(&html);
        assert!(html.contains("Latency against load (produce)"));
        assert!(html.contains("Percentiles of all runs (produce)"));
        assert!(!html.contains("Latency against load (fetch)"));
    }

    #[test]
    fn a_result_without_anything_is_a_page() {
        let mut empty = result("nothing", 0, 1.0);
        empty.floors.clear();
        empty.host = Host::default();
        empty.runs[0].over_time.clear();
        empty.runs[0].produced = None;
        empty.runs[0].brokers.clear();
        let html = page(&empty);
        assert_well_formed(&html);
        assert!(html.contains("None were measured."));
        empty.runs.clear();
        assert_well_formed(&page(&empty));
    }
}
