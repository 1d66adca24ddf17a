//! `highwater bench`: load on a broker and what it measured; `bench compare`: two results beside
//! each other.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};

use super::acks::AcksName;
use super::isolation::IsolationName;
use super::key_value::settings;
use super::{Failure, print};
use crate::client::Isolation;
use crate::lab::bench::{
    Arrivals, Content, FetchPlan, Goal, Keys, Load, Plan, Sizes, Step, TopicToMake,
    TransactionPlan, delete_topic, run, saturation, sweep,
};
use crate::lab::compare::compare;
use crate::lab::floors::{FloorPlan, measure_telling};
use crate::lab::host::{self, host};
use crate::lab::page::bench_page;
use crate::lab::result::{BenchResult, Floor, Run, SCHEMA};
use crate::lab::summary;
use crate::wire::codec::Codec;

/// Of a transaction whose end nobody gives, as in Kafka's producer performance tool.
const TRANSACTION_DURATION: Duration = Duration::from_secs(3);
/// Rates of one sweep.
const RATES_MAX: usize = 100;

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Without --rate the loop is closed: each producer keeps --in-flight requests on their way. \
With --rate it is open: records are due at times of their own, and a latency counts from then, also \
when broker or tool are late.\n\n\
With --producers and --consumers the records carry their due time, and end-to-end latency is \
measured in the same process.\n\n\
With --transactional-id every producer sends in transactions, one after the other, with acks=all and \
idempotence; consumers receive what is committed. A latency of the kind commit counts from the decision \
to commit, with the wait for what is on its way. Without --transaction-records and \
--transaction-duration-ms a transaction lasts 3000 ms, as in Kafka's own tool.\n\n\
Examples:\n  \
highwater bench --bootstrap-server 127.0.0.1:9092 --partitions 16\n  \
highwater bench --bootstrap-server 127.0.0.1:9092 --partitions 6 --consumers 1 --rate 20000 \\\n    \
--arrivals poisson --json result.json\n  \
highwater bench --bootstrap-server 127.0.0.1:9092 --partitions 16 --search --p99-ms 20\n  \
highwater bench --bootstrap-server 127.0.0.1:9092 --producers 0 --consumers 1 --from-beginning --rewind\n  \
highwater bench compare before.json after.json"
)]
pub struct Bench {
    #[command(subcommand)]
    other: Option<Other>,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Subcommand)]
enum Other {
    /// Put two results beside each other.
    Compare(Compare),
}

#[derive(Args)]
struct Compare {
    /// Written with --json.
    before: PathBuf,
    after: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ArrivalsName {
    Fixed,
    Poisson,
}

#[derive(Args)]
struct LoadArgs {
    /// Brokers to begin with, comma-separated; any one that answers is enough.
    #[arg(
        long = "bootstrap-server",
        visible_alias = "bootstrap",
        value_name = "HOST:PORT",
        required = true
    )]
    bootstrap_server: Option<String>,
    #[arg(long, default_value = "bench")]
    topic: String,
    /// Make the topic with so many partitions if it is not there.
    #[arg(long, value_name = "N")]
    partitions: Option<i32>,
    #[arg(long, value_name = "N", default_value_t = 1)]
    replication_factor: i16,
    /// Settings of the topic that is made, as in a=1,b=2; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = settings, requires = "partitions")]
    topic_config: Vec<Vec<(String, String)>>,
    /// Delete the topic afterwards.
    #[arg(long)]
    delete_topic: bool,

    /// Producers, each with an identity and a connection to each leader.
    #[arg(
        long,
        visible_alias = "connections",
        value_name = "N",
        default_value_t = 1
    )]
    producers: usize,
    /// Consumers, which share the partitions.
    #[arg(long, value_name = "N", default_value_t = 0)]
    consumers: usize,
    /// Records a second that are due, of all producers together.
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// How due times are spread.
    #[arg(long, value_enum, default_value_t = ArrivalsName::Fixed)]
    arrivals: ArrivalsName,
    /// One run at each of these rates until one is not kept.
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', conflicts_with_all = ["rate", "search"])]
    sweep: Vec<f64>,
    /// Search the highest rate that is kept; begins at --rate, or below what the closed loop reaches.
    #[arg(long)]
    search: bool,
    /// A rate is kept if 95% are acknowledged in time and p99 is at most this.
    #[arg(long, value_name = "MS", default_value_t = 50.0)]
    p99_ms: f64,
    /// Load before the measured time, seconds.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    warm_up: f64,
    /// The measured time, seconds.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    duration: f64,
    /// How long to wait afterwards for what was due, seconds.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    drain: f64,
    /// Load threads; producers and consumers are dealt out to them.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// The CPU of each thread.
    #[arg(long, value_name = "N,N,..", value_delimiter = ',')]
    cpus: Vec<usize>,

    /// Who must have a record before it is acknowledged.
    #[arg(long, value_enum, default_value_t = AcksName::All)]
    acks: AcksName,
    /// Number the batches, so that what is sent again is not stored twice (needs acks=all).
    #[arg(long = "enable-idempotence", visible_alias = "idempotence")]
    idempotence: bool,
    /// Send in transactions: each producer's id is this, a dash and its number.
    #[arg(long, value_name = "PREFIX")]
    transactional_id: Option<String>,
    /// End a transaction with so many records.
    #[arg(long, value_name = "N", requires = "transactional_id")]
    transaction_records: Option<u64>,
    /// Or so long after its first record.
    #[arg(long, value_name = "MS", requires = "transactional_id")]
    transaction_duration_ms: Option<u64>,
    /// How many of a hundred transactions to abort instead.
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 0.0,
        requires = "transactional_id"
    )]
    transaction_abort_percent: f64,
    /// When the broker is to abort a transaction by itself (transaction.timeout.ms).
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    transaction_timeout_ms: u64,
    /// none, gzip, snappy, lz4 or zstd.
    #[arg(
        long = "compression-type",
        visible_alias = "compression",
        value_name = "CODEC",
        default_value = "none",
        value_parser = codec
    )]
    compression: Codec,
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    compression_level: Option<i32>,
    /// A batch is full at this size.
    #[arg(long, visible_alias = "batch-size", value_name = "BYTES", default_value_t = 16 * 1024)]
    batch_bytes: usize,
    /// Or at this many records.
    #[arg(long, value_name = "N")]
    batch_records: Option<usize>,
    /// How long a batch waits for more records (open loop).
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    linger_ms: f64,
    /// Requests of a producer that wait for answers on one connection.
    #[arg(long, value_name = "N", default_value_t = 5)]
    in_flight: usize,
    /// Batches for different partitions that go in one request.
    #[arg(long, value_name = "N", default_value_t = 1)]
    batches_per_request: usize,
    /// Memory of one producer for what waits or is on its way.
    #[arg(long, value_name = "BYTES", default_value_t = 32 * 1024 * 1024)]
    buffer_bytes: usize,
    /// BYTES, uniform:MIN:MAX, lognormal:MEDIAN:SIGMA[:MAX] or BYTES*WEIGHT,BYTES*WEIGHT.
    #[arg(long, value_name = "SIZES", default_value = "1024")]
    record_size: Sizes,
    /// none, uniform:KEYS or zipf:KEYS[:EXPONENT]; a key decides the partition.
    #[arg(long, value_name = "KEYS", default_value = "none")]
    keys: Keys,
    /// What values are made of: random, text or zeros.
    #[arg(long, value_name = "CONTENT", default_value = "random")]
    content: Content,
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    request_timeout_ms: u64,
    /// How long to try to begin (default.api.timeout.ms).
    #[arg(long, value_name = "MS", default_value_t = 15_000)]
    api_timeout_ms: u64,
    /// From a record's making until it is given up.
    #[arg(long, value_name = "MS", default_value_t = 120_000)]
    delivery_timeout_ms: u64,
    /// For sizes, keys, content and due times.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// What consumers see of transactions; with --transactional-id what is committed.
    #[arg(long, value_enum)]
    isolation_level: Option<IsolationName>,
    #[arg(long, value_name = "MS", default_value_t = 500)]
    fetch_max_wait_ms: u64,
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    fetch_min_bytes: i32,
    #[arg(long, value_name = "BYTES", default_value_t = 50 * 1024 * 1024)]
    fetch_max_bytes: i32,
    #[arg(long, value_name = "BYTES", default_value_t = 1024 * 1024)]
    fetch_partition_bytes: i32,
    /// Name all partitions in every fetch.
    #[arg(long)]
    no_fetch_sessions: bool,
    /// Compute the checksum of every batch.
    #[arg(long)]
    check_crc: bool,
    /// Count records by the headers of batches and bytes as they were sent.
    #[arg(long)]
    headers_only: bool,
    /// Without producers: begin with the oldest record.
    #[arg(long)]
    from_beginning: bool,
    /// Without producers: at the end of a partition begin anew.
    #[arg(long)]
    rewind: bool,

    /// Account the CPU, memory and writes of a broker on this machine; may be given several times.
    #[arg(long, value_name = "PID")]
    broker_pid: Vec<u32>,
    /// Write the result as a document.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the result as a page for a browser, with its charts.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Do not measure what the machine does without a broker.
    #[arg(long)]
    no_floors: bool,
    /// A directory on the broker's disk, for what the device does; left out: only CPU and network.
    #[arg(long, value_name = "DIR")]
    floors_dir: Option<PathBuf>,
    /// About how long the floors take, seconds.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    floors_seconds: f64,
    /// No line a second on standard error.
    #[arg(long)]
    quiet: bool,
}

fn codec(text: &str) -> Result<Codec, String> {
    let names = Codec::ALL.map(Codec::name).join(", ");
    Codec::from_name(text).ok_or_else(|| format!("not one of {names}"))
}

impl Bench {
    pub fn run(self) -> Result<(), Failure> {
        match self.other {
            Some(Other::Compare(compare)) => compare.run(),
            None => self.load.run(),
        }
    }
}

impl Compare {
    fn run(self) -> Result<(), Failure> {
        let (before, after) = (read(&self.before)?, read(&self.after)?);
        let name = |path: &Path| path.display().to_string();
        let comparison = compare(&before, &after)?;
        print(&comparison.text(&name(&self.before), &name(&self.after)))
    }
}

fn read(path: &Path) -> Result<BenchResult, Failure> {
    let wrong = |why: String| format!("{}: {why}", path.display());
    let text = super::read_file(path)?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    match value.get("schema").and_then(serde_json::Value::as_str) {
        Some(SCHEMA) => {}
        Some(other) => return Err(wrong(format!("its schema is {other}, not {SCHEMA}")).into()),
        None => return Err(wrong(format!("no document of the schema {SCHEMA}")).into()),
    }
    Ok(serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?)
}

fn time(what: &str, number: f64, unit: f64) -> Result<Duration, Failure> {
    let seconds = number * unit;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) => Ok(time),
        Err(_) => Err(format!("--{what} {number} is no time").into()),
    }
}

impl LoadArgs {
    fn arrivals(&self) -> Arrivals {
        match self.arrivals {
            ArrivalsName::Fixed => Arrivals::Fixed,
            ArrivalsName::Poisson => Arrivals::Poisson,
        }
    }

    fn transactions(&self) -> Option<TransactionPlan> {
        let duration = match (self.transaction_records, self.transaction_duration_ms) {
            (None, None) => Some(TRANSACTION_DURATION),
            (_, given) => given.map(Duration::from_millis),
        };
        Some(TransactionPlan {
            id_prefix: self.transactional_id.clone()?,
            records: self.transaction_records,
            duration,
            abort_percent: self.transaction_abort_percent,
            timeout: Duration::from_millis(self.transaction_timeout_ms),
        })
    }

    fn isolation(&self) -> Isolation {
        match (self.isolation_level, &self.transactional_id) {
            (Some(name), _) => name.into(),
            (None, Some(_)) => Isolation::ReadCommitted,
            (None, None) => Isolation::ReadUncommitted,
        }
    }

    fn plan(&self) -> Result<Plan, Failure> {
        let make_topic = self.partitions.map(|partitions| TopicToMake {
            partitions,
            replication_factor: self.replication_factor,
            configs: self.topic_config.iter().flatten().cloned().collect(),
        });
        Ok(Plan {
            name: None,
            bootstrap: self.bootstrap_server.clone().unwrap_or_default(),
            topic: self.topic.clone(),
            make_topic,
            delete_topic: self.delete_topic,
            load: match self.rate {
                Some(records_per_second) if !self.search => Load::Open {
                    records_per_second,
                    arrivals: self.arrivals(),
                },
                _ => Load::Closed,
            },
            producers: self.producers,
            consumers: self.consumers,
            warm_up: time("warm-up", self.warm_up, 1.0)?,
            duration: time("duration", self.duration, 1.0)?,
            drain: time("drain", self.drain, 1.0)?,
            threads: self.threads,
            cpus: self.cpus.clone(),
            acks: self.acks.into(),
            idempotence: self.idempotence || self.transactional_id.is_some(),
            transactions: self.transactions(),
            codec: self.compression,
            level: self.compression_level,
            batch_bytes: self.batch_bytes,
            batch_records: self.batch_records,
            linger: time("linger-ms", self.linger_ms, 1e-3)?,
            in_flight: self.in_flight,
            batches_per_request: self.batches_per_request,
            buffer_bytes: self.buffer_bytes,
            sizes: self.record_size.clone(),
            keys: self.keys,
            content: self.content,
            request_timeout: Duration::from_millis(self.request_timeout_ms),
            delivery_timeout: Duration::from_millis(self.delivery_timeout_ms),
            api_timeout: Duration::from_millis(self.api_timeout_ms),
            fetch: FetchPlan {
                max_wait: Duration::from_millis(self.fetch_max_wait_ms),
                min_bytes: self.fetch_min_bytes,
                max_bytes: self.fetch_max_bytes,
                partition_bytes: self.fetch_partition_bytes,
                isolation: self.isolation(),
                sessions: !self.no_fetch_sessions,
                check_crc: self.check_crc,
                headers_only: self.headers_only,
                from_beginning: self.from_beginning,
                rewind: self.rewind,
            },
            broker_pids: self.broker_pid.clone(),
            seed: self.seed,
            progress: !self.quiet,
        })
    }

    fn run(self) -> Result<(), Failure> {
        let plan = self.plan()?;
        plan.validate()?;
        if (self.search || !self.sweep.is_empty()) && plan.producers == 0 {
            return Err("rates are those of producers: there are none".into());
        }
        if self.sweep.len() > RATES_MAX {
            return Err(
                format!("a sweep of {} rates: at most {RATES_MAX}", self.sweep.len()).into(),
            );
        }
        let p99 = time("p99-ms", self.p99_ms, 1e-3)?;
        let goal = Goal {
            p99_us: p99.as_micros() as u64,
        };
        // A file that cannot be written is told before the load, not after it.
        for path in [&self.json, &self.html].into_iter().flatten() {
            check_writable(path)?;
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        let host = host();
        let mut warnings = host::warnings(&host);
        let floors = match self.no_floors {
            true => Vec::new(),
            false => self.floors(&mut warnings)?,
        };
        let tell = |step: Step<'_>| {
            let verdict = step
                .missed
                .map_or_else(|| "done".to_owned(), |why| format!("not kept: {why}"));
            eprintln!("{}: {verdict}", step.run.name);
        };
        let mut runs = Vec::new();
        let arrivals = self.arrivals();
        let many = self.search || !self.sweep.is_empty();
        let mut outcome: Result<(), Failure> = if self.search {
            saturation(&plan, goal, self.rate, arrivals, &mut runs, tell).map_err(Failure::from)
        } else if many {
            sweep(&plan, &self.sweep, goal, arrivals, &mut runs, tell).map_err(Failure::from)
        } else {
            let ran = run(&plan).map(|run| runs.push(run));
            ran.map_err(Failure::from)
        };
        if plan.delete_topic && many {
            outcome = outcome.and(delete_topic(&plan).map_err(Failure::from));
        }
        if runs.is_empty() {
            return outcome;
        }
        if let Err(error) = &outcome {
            warnings.push(format!("ended early: {error}"));
        }
        let result = BenchResult {
            schema: SCHEMA.to_owned(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_ms: started.map_or(0, |since| since.as_millis() as u64),
            host,
            floors,
            runs,
            warnings,
        };
        print(&text(&result))?;
        if let Some(path) = &self.json {
            let mut document = serde_json::to_string_pretty(&result)?;
            document.push('\n');
            write(path, &document)?;
        }
        if let Some(path) = &self.html {
            write(path, &bench_page(&result))?;
        }
        outcome
    }

    /// What the machine does without a broker, at the sizes of this load.
    fn floors(&self, warnings: &mut Vec<String>) -> Result<Vec<Floor>, Failure> {
        let plan = FloorPlan {
            directory: self.floors_dir.clone(),
            write_bytes: self.batch_bytes.max(1),
            message_bytes: self.record_size.typical().max(1),
            budget: time("floors-seconds", self.floors_seconds, 1.0)?,
        };
        let (floors, missing) = measure_telling(&plan);
        warnings.extend(missing);
        if self.floors_dir.is_none() {
            warnings.push(
                "what the device does without a broker was not measured: --floors-dir says where"
                    .to_owned(),
            );
        }
        Ok(floors)
    }
}

/// Leaves what is there, and nothing where nothing was: the load may come to nothing.
fn check_writable(path: &Path) -> Result<(), Failure> {
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path);
    opened.map_err(|error| format!("{}: {error}", path.display()))?;
    if is_new {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// What a person sees at the end.
fn text(result: &BenchResult) -> String {
    let mut text = summary::text(result);
    for run in &result.runs {
        text.push_str(&tool_line(run));
    }
    text
}

/// How cheap the tool was: what it can load from one core.
fn tool_line(run: &Run) -> String {
    let flows = [&run.produced, &run.consumed].into_iter().flatten();
    let records: f64 = flows
        .map(|flow| flow.records_per_second * run.seconds)
        .sum();
    let cpu = run.tool.cpu_seconds;
    if cpu <= 0.0 {
        return String::new();
    }
    format!(
        "{}: the tool handled {:.0} records for each of its CPU seconds\n",
        run.name,
        records / cpu
    )
}
