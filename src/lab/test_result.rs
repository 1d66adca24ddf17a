//! A made-up result for the tests of tables, pages and comparisons.

use super::histogram::Histogram;
use super::result::{
    BenchResult, BrokerCost, Floor, Flow, Host, LatencyKind, Moment, Run, SCHEMA, ToolCost,
};

/// One run of a second with so many records, whose latencies are 1, 2, 3, ... microseconds times
/// `slower`.
pub(in crate::lab) fn result(run: &str, records: u64, slower: f64) -> BenchResult {
    let mut histogram = Histogram::new();
    for at in 1..=records {
        histogram.record((at as f64 * slower) as u64);
    }
    let flow = Flow {
        records,
        bytes: records * 1024,
        requests: records,
        errors: 0,
        records_per_second: records as f64,
        bytes_per_second: records as f64 * 1024.0,
    };
    let moment = |second: u32| Moment {
        second,
        produced_records: records / 10,
        produced_bytes: records * 102,
        p50_us: (second != 4).then_some(500 + u64::from(second) * 10),
        p99_us: (second != 4).then_some(900),
        max_us: (second != 4).then_some(5000),
        ..Moment::default()
    };
    let mut options = serde_json::Map::new();
    options.insert("acks".to_owned(), "all".into());
    options.insert("record-size".to_owned(), 1024.into());
    BenchResult {
        schema: SCHEMA.to_owned(),
        tool_version: "0.1.0".to_owned(),
        started_unix_ms: 1_780_000_000_000,
        host: Host {
            kernel: "6.18".to_owned(),
            cpu_model: "A <CPU>".to_owned(),
            logical_cpus: 2,
            memory_bytes: 24 << 30,
            load_average: 0.5,
        },
        floors: vec![Floor {
            name: "device_write_flush".to_owned(),
            what: "pwrite of 1 KiB and fdatasync".to_owned(),
            unit: "us".to_owned(),
            value: 200.0,
            p99: Some(900.0),
            samples: 500,
        }],
        runs: vec![Run {
            name: run.to_owned(),
            options,
            seconds: 1.0,
            produced: Some(flow),
            consumed: None,
            transactions: None,
            latencies: vec![histogram.summary(LatencyKind::Produce)],
            over_time: (0..10).map(moment).collect(),
            tool: ToolCost {
                threads: 1,
                cpu_seconds: 0.25,
                busiest_thread: 0.25,
                busiest_thread_waited: 0.0,
            },
            brokers: vec![BrokerCost {
                pid: 42,
                cpu_seconds: 0.5,
                resident_bytes: 64 << 20,
                written_bytes: records * 1536,
            }],
            warnings: Vec::new(),
        }],
        warnings: Vec::new(),
    }
}
