//! What a run of the load tool measured, as one document: the JSON that `bench` writes, `bench
//! compare` reads and the pages draw. The schema's name and version stand in [`SCHEMA`]; a field
//! that changes its meaning changes the version.
//!
//! Owns the shape only: whoever measures fills it in, and nothing here reads a clock or a file.
//! Every figure has its unit in its name. Histograms are kept raw, so that runs can be merged and
//! percentiles drawn later without averaging averages.

use serde::{Deserialize, Serialize};

/// Name and version of the document.
pub const SCHEMA: &str = "highwater.bench/1";

/// A percentile is stated only when at least this many samples lie above it: with fewer it is the
/// accident of one or two of them.
pub const SAMPLES_ABOVE_PERCENTILE: u64 = 10;

/// The percentiles that tables state, in percent.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// One invocation of the load tool: one or several runs against the same brokers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct BenchResult {
    pub schema: String,
    pub tool_version: String,
    /// Wall-clock time of the start, milliseconds since 1970.
    pub started_unix_ms: u64,
    pub host: Host,
    pub floors: Vec<Floor>,
    pub runs: Vec<Run>,
    /// What makes the figures doubtful, one sentence each.
    pub warnings: Vec<String>,
}

/// The machine that the load ran on.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Host {
    pub kernel: String,
    pub cpu_model: String,
    pub logical_cpus: u32,
    pub memory_bytes: u64,
    /// One-minute load average when the first run began.
    pub load_average: f64,
}

/// What the machine can do without any broker, measured beside the runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Floor {
    /// A stable name such as `loopback_round_trip` or `device_write_flush`.
    pub name: String,
    /// What was done, in words, with its sizes.
    pub what: String,
    pub unit: String,
    /// The median of the samples.
    pub value: f64,
    pub p99: Option<f64>,
    pub samples: u64,
}

/// One load with one configuration.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Run {
    /// What tells it from its neighbours, such as `2000/s`.
    pub name: String,
    /// Every option with its effective value, as the command line names them.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// Measured time, without warm-up.
    pub seconds: f64,
    pub produced: Option<Flow>,
    pub consumed: Option<Flow>,
    /// Absent without transactions, and in documents from before there were any.
    #[serde(default)]
    pub transactions: Option<Transactions>,
    pub latencies: Vec<Latency>,
    pub over_time: Vec<Moment>,
    pub tool: ToolCost,
    pub brokers: Vec<BrokerCost>,
    pub warnings: Vec<String>,
}

/// Records in one direction.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Flow {
    pub records: u64,
    /// Keys and values, before compression and framing.
    pub bytes: u64,
    pub requests: u64,
    /// Records that were refused or given up.
    pub errors: u64,
    pub records_per_second: f64,
    pub bytes_per_second: f64,
}

/// The transactions of a run: those whose first record was due in the measured time.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Transactions {
    pub begun: u64,
    pub committed: u64,
    /// On purpose, or because a record failed.
    pub aborted: u64,
    /// Measured records that consumers may see.
    pub records_committed: u64,
    /// Measured records that were acknowledged and then aborted.
    pub records_aborted: u64,
}

impl Transactions {
    pub fn add(&mut self, other: Transactions) {
        self.begun += other.begun;
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.records_committed += other.records_committed;
        self.records_aborted += other.records_aborted;
    }
}

/// Between which two moments a latency was taken.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyKind {
    /// From the intended send to the acknowledgement.
    Produce,
    /// From the intended send to the moment the consumer has the record.
    EndToEnd,
    /// From a FetchRequest's send to its answer.
    Fetch,
    /// From the decision to commit, with the wait for what is on its way, to the coordinator's
    /// answer.
    Commit,
}

/// The distribution of one kind of latency over a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Latency {
    pub kind: LatencyKind,
    pub samples: u64,
    pub mean_us: f64,
    pub min_us: u64,
    pub max_us: u64,
    /// Those of [`PERCENTILES`] that have enough samples above them.
    pub percentiles: Vec<Percentile>,
    /// The raw histogram in microseconds: HDR V2 with DEFLATE, base64.
    pub histogram: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Percentile {
    pub percent: f64,
    pub us: u64,
}

/// One second of a run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Moment {
    /// Since the start of the measured time.
    pub second: u32,
    pub produced_records: u64,
    pub consumed_records: u64,
    pub produced_bytes: u64,
    pub consumed_bytes: u64,
    pub errors: u64,
    /// Of the run's first kind of latency; absent in a second without samples.
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub max_us: Option<u64>,
    /// Of its other kinds that have samples in this second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherLatency>,
}

/// One kind of latency in one second.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct OtherLatency {
    pub kind: LatencyKind,
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    pub max_us: Option<u64>,
}

impl Moment {
    /// The latencies of a kind in this second; `first` is the run's first kind.
    pub fn latency(&self, kind: LatencyKind, first: LatencyKind) -> Option<OtherLatency> {
        if kind == first {
            return Some(OtherLatency {
                kind,
                p50_us: self.p50_us,
                p99_us: self.p99_us,
                max_us: self.max_us,
            });
        }
        self.others.iter().find(|other| other.kind == kind).copied()
    }
}

/// What the load itself cost.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ToolCost {
    pub threads: u32,
    pub cpu_seconds: f64,
    /// CPU time of the busiest thread over the run's time: near 1 the tool is the bottleneck.
    pub busiest_thread: f64,
    /// The share of the time for which that thread could have run and had no core: the tool and the
    /// brokers want more cores than there are.
    #[serde(default)]
    pub busiest_thread_waited: f64,
}

/// What a broker on the same machine cost, read from the kernel's accounting of its process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct BrokerCost {
    pub pid: u32,
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    /// Bytes the process caused to be written to devices.
    pub written_bytes: u64,
}

/// Whether `percent` may be stated of `samples` samples.
pub fn has_enough_samples(percent: f64, samples: u64) -> bool {
    samples as f64 * (100.0 - percent) / 100.0 >= SAMPLES_ABOVE_PERCENTILE as f64 - 1e-6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_from_before_there_were_transactions_are_read() {
        let result = crate::lab::test_result::result("a", 10, 1.0);
        let mut document = serde_json::to_value(&result).unwrap();
        let run = document["runs"][0].as_object_mut().unwrap();
        assert!(run.remove("transactions").is_some());
        let read: BenchResult = serde_json::from_value(document).unwrap();
        assert_eq!(read, result);
    }

    #[test]
    fn a_percentile_needs_ten_samples_above_it() {
        assert!(has_enough_samples(50.0, 20));
        assert!(!has_enough_samples(50.0, 19));
        assert!(has_enough_samples(99.0, 1_000));
        assert!(!has_enough_samples(99.0, 999));
        assert!(has_enough_samples(99.99, 100_000));
        assert!(!has_enough_samples(99.99, 99_990));
    }
}
