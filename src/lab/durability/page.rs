//! The page of the durability lab: what each row means, the picture, the figures, and how they were
//! come by. One file that needs nothing but itself. Pure.

use super::document::{Document, RowResult};
use super::hosts::SMALLER;
use super::losses::Losses;
use super::meaning::{digits, time};
use super::picture::picture;
use crate::lab::page::html::{document, escaped, table, warnings};

const STYLE: &str = "
svg.lab { width: 100%; height: auto; font: 12px sans-serif; }
svg.lab text { fill: currentColor; }
svg.lab text.title { font-weight: bold; font-size: 14px; }
svg.lab text.k { font-size: 9px; font-weight: bold; }
svg.lab .grid { stroke: currentColor; stroke-opacity: 0.15; }
svg.lab .band { fill: #009e73; fill-opacity: 0.12; }
.legend { font-size: 0.9em; }
ul.rows > li { margin: 0.4em 0; }
ul.doubts { color: var(--warn); font-size: 0.9em; }
";

const FIGURES: [&str; 16] = [
    "system",
    "acks",
    ">brokers",
    "I/O",
    "flush",
    ">records/s",
    ">p50",
    ">p99",
    ">p99.9",
    ">p99.99",
    ">samples",
    ">of the rate",
    ">written per byte",
    ">flush rounds",
    ">rounds per 1000 records",
    ">CPU s per GB",
];

const LOSSES: [&str; 9] = [
    "row",
    "event",
    ">events",
    ">with loss",
    ">acknowledged",
    ">lost",
    ">lost per event",
    ">at most",
    ">oldest lost",
];

/// The whole page.
pub fn page(of: &Document) -> String {
    let mut body = String::from("<h1>What durability costs, and what is lost without it</h1>\n");
    body += &paragraph(&format!(
        "{} rows on {} ({} CPUs, kernel {}), load average {:.1} at the start. Processes were killed \
         with kill -9 on this machine; power was lost in {} simulated worlds of whole brokers with \
         the same settings but for the sizes of their journal and their caches.",
        of.rows.len(),
        of.host.cpu_model,
        of.host.logical_cpus,
        of.host.kernel,
        of.host.load_average,
        of.simulation.worlds
    ));
    let told = of.warnings.iter().map(String::as_str);
    body += &warnings(told);
    body += "<h2>Latency against loss</h2>\n";
    body += &picture(&of.rows);
    body += "<h2>What each row means</h2>\n<ul class=\"rows\">\n";
    for row in &of.rows {
        let (name, rest) = row.meaning.split_once(": ").unwrap_or(("", &row.meaning));
        body += &format!(
            "<li><strong>{}</strong>: {}{}</li>\n",
            escaped(name),
            escaped(rest),
            doubts(row)
        );
    }
    body += "</ul>\n<h2>What each row costs</h2>\n";
    let rows: Vec<Vec<String>> = of.rows.iter().map(figures).collect();
    body += &table("", &FIGURES, &rows);
    body += &paragraph(
        "Latency is taken at a fixed rate from the moment a record was due until it was \
         acknowledged (with acks=0: handed to the socket); a percentile with fewer than ten samples \
         above it is not stated. Of the rate: what was acknowledged in time; where that is less than \
         95%, the latencies are those of a queue that grew. Written per byte: what the kernel says the brokers wrote, over the \
         bytes of the records times their replicas; below one where records are acknowledged before \
         every replica has written them. Flush rounds are those of the fixed rate, over \
         all brokers; one round covers every batch that waited for it.",
    );
    body += "<h2>What each row loses</h2>\n";
    let rows: Vec<Vec<String>> = of.rows.iter().flat_map(losses).collect();
    body += &table("", &LOSSES, &rows);
    body += &method(of);
    if !of.floors.is_empty() {
        body += "<h2>What this machine can do without a broker</h2>\n";
        let rows = of.floors.iter().map(|floor| {
            vec![
                floor.what.clone(),
                format!("{} {}", digits(floor.value), floor.unit),
            ]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        body += &table("", &["floor", ">median"], &rows);
    }
    document("Durability", STYLE, &body)
}

/// What makes this row's figures doubtful.
fn doubts(row: &RowResult) -> String {
    let items: String = row
        .warnings
        .iter()
        .map(|warning| format!("<li>{}</li>\n", escaped(warning)))
        .collect();
    match items.is_empty() {
        true => items,
        false => format!("\n<ul class=\"doubts\">\n{items}</ul>\n"),
    }
}

fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", escaped(text))
}

fn method(of: &Document) -> String {
    let first = of.simulation.first_seed;
    let mut text = paragraph(
        "A record is lost if it was acknowledged (with acks=0: handed to the socket) and cannot be \
         read from whoever leads its partition once all brokers serve again. \u{2018}Oldest lost\u{2019} \
         is how long before the event the oldest lost record had been acknowledged; 0 ms: all of them \
         were acknowledged after it, by a leader that was none any more. Where nothing \
         was lost in n events, an event loses something with a probability below 3/n (95% \
         confidence).",
    );
    let smaller = SMALLER.map(|(key, bytes)| format!("{key} is {} KiB", bytes >> 10));
    let smaller = smaller.join(", ");
    text += &paragraph(&format!(
        "Power losses: every world is a function of its seed (the first is {first}) and loses power \
         {} times under load. The simulated disk keeps what was synced; of the sectors written \
         since, all, none or some survive, direct writes too, as on a device with a volatile cache. \
         Nothing is written back by itself, so an unflushed record is at risk until something \
         flushes it; a real kernel writes back within about 30 seconds, and loses at most that much. \
         The brokers are as real ones, but with less memory: {}. \
         With one broker, one host and all hosts are the same event. Records lost an event depend \
         on how much is sent (simulator: {}; kill -9: {}; to each row): compare rows with each \
         other, and look at \u{2018}oldest lost\u{2019}.",
        of.simulation.events_per_world, smaller, of.simulation.load, of.kill_load
    ));
    text
}

fn figures(row: &RowResult) -> Vec<String> {
    let of = |key: &str| row.configured(key);
    let percentiles = row.percentiles.as_ref();
    let us = |value: Option<u64>| value.map(time).unwrap_or_default();
    let number = |value: Option<f64>| value.map(digits).unwrap_or_default();
    let whole = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    vec![
        of("system"),
        of("acks"),
        of("brokers"),
        of("segment_io"),
        of("flush"),
        number(row.throughput.as_ref().map(|of| of.records_per_second)),
        us(percentiles.and_then(|of| of.p50_us)),
        us(percentiles.and_then(|of| of.p99_us)),
        us(percentiles.and_then(|of| of.p99_9_us)),
        us(percentiles.and_then(|of| of.p99_99_us)),
        whole(percentiles.map(|of| of.samples)),
        row.fixed_rate
            .map(|rate| format!("{:.0}%", rate.share() * 100.0))
            .unwrap_or_default(),
        number(row.write_amplification),
        whole(row.flush_rounds),
        number(row.flush_rounds_per_1000_records),
        number(row.cpu_seconds_per_gb),
    ]
}

fn losses(row: &RowResult) -> Vec<Vec<String>> {
    let kinds = [
        ("kill -9", &row.losses.process_kill),
        ("one host's power", &row.losses.one_host_power_loss),
        ("all hosts' power", &row.losses.all_hosts_power_loss),
    ];
    let line = |(event, losses): &(&str, &Losses)| {
        let mut cells = vec![row.title.clone(), (*event).to_owned()];
        if losses.events == 0 {
            cells.push(losses.short());
            cells.resize(LOSSES.len(), String::new());
            return cells;
        }
        cells.extend([
            losses.events.to_string(),
            losses.events_with_loss.to_string(),
            losses.acknowledged_records.to_string(),
            losses.lost_records.to_string(),
            losses
                .lost_records_per_event
                .map(digits)
                .unwrap_or_default(),
            losses.lost_records_max.to_string(),
            losses
                .oldest_lost_ms
                .map(|ms| format!("{} ms", digits(ms)))
                .unwrap_or_default(),
        ]);
        cells
    };
    kinds.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::{loss_set, measured};
    use super::super::document::{SCHEMA, Simulation};
    use super::super::matrix::{highwater_rows, kafka_rows};
    use super::*;
    use crate::lab::result::Host;
    use serde_json::json;

    fn document() -> Document {
        let mut rows: Vec<RowResult> = highwater_rows()
            .iter()
            .map(|row| RowResult::new(row, Ok(&measured()), loss_set(0, 0, 7)))
            .collect();
        let mut kafka = loss_set(0, 0, 0);
        kafka.one_host_power_loss = Losses::not_simulated();
        kafka.all_hosts_power_loss = Losses::not_simulated();
        let failed = "no <answer> came".to_owned();
        rows.push(RowResult::new(&kafka_rows()[0], Err(&failed), kafka));
        Document {
            schema: SCHEMA,
            tool_version: "0",
            started_unix_ms: 0,
            quick: true,
            host: Host {
                cpu_model: "a <fast> one".to_owned(),
                ..Host::default()
            },
            floors: Vec::new(),
            load: json!({}),
            kill_load: String::new(),
            simulation: Simulation::default(),
            rows,
            warnings: vec!["a quick run".to_owned()],
        }
    }

    #[test]
    fn the_page_has_a_sentence_and_figures_for_every_row_and_needs_nothing_else() {
        let page = page(&document());
        assert_eq!(page.matches("<li><strong>").count(), 25);
        assert!(page.contains("but not a power loss everywhere"));
        assert!(page.contains("not simulated"));
        assert!(page.contains("a quick run"));
        assert!(page.contains("highwater.journal.bytes is 4096 KiB"));
        assert!(page.contains("a &lt;fast&gt; one"));
        assert!(!page.contains("http://") && !page.contains("https://"));
        assert!(!page.contains("<script"));
    }

    #[test]
    fn a_rows_warnings_stand_with_the_row() {
        let page = page(&document());
        let (_, row) = page.split_once("<strong>Kafka, acks=0").unwrap();
        let (row, _) = row.split_once("</ul>").unwrap();
        assert!(row.contains("<li>not measured: no &lt;answer&gt; came</li>"));
    }

    #[test]
    fn the_document_is_an_object_with_schema_host_floors_and_rows() {
        let json = serde_json::to_value(document()).unwrap();
        assert_eq!(json["schema"], "highwater.durability/1");
        assert!(json["host"].is_object() && json["floors"].is_array());
        assert_eq!(json["rows"].as_array().map(Vec::len), Some(25));
        let kafka = &json["rows"][24];
        assert_eq!(
            kafka["losses"]["one_host_power_loss"]["source"],
            "not_simulated"
        );
        assert!(kafka["losses"]["one_host_power_loss"]["lost_records_per_event"].is_null());
    }
}
