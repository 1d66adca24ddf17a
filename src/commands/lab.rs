//! `highwater lab`: experiments that start brokers of their own. `lab durability` says what each
//! row of the durability table costs and what it loses.

use super::table::Table;
use super::{Failure, print};
use crate::lab::durability::{
    Document, Filter, LabPlan, PowerPlan, Row, RowResult, highwater_rows, kafka_rows, page,
    run_lab, time,
};
use crate::lab::kafka_home::KafkaHome;
use clap::{Args, Subcommand};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What one executor of a broker needs of locked memory.
const MEMLOCK_MIN: u64 = 512 * 1024;
/// A quick run has two minutes on two cores that do other things too.
const QUICK_DEADLINE: Duration = Duration::from_secs(95);
const QUICK_KILL_BUDGET: Duration = Duration::from_secs(6);
/// Long enough for a p99.99.
const SECONDS: f64 = 34.0;
const KILLS: u64 = 20;
const SEEDS: u64 = 1000;
const QUICK_SECONDS: f64 = 1.2;
const QUICK_KILLS: u64 = 3;
/// More worlds than a quick run has time for.
const QUICK_SEEDS: u64 = 100_000;

#[derive(Args)]
pub struct Lab {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Run the matrix acks x brokers x segment I/O x flush: what each row costs, and what it loses.
    Durability(Durability),
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater lab durability --output durability\n  highwater lab durability --quick --rows acks=all,brokers=3 --output /tmp/durability\n\nProcesses are killed for real; power is lost on the simulator's disk under whole brokers with the\nsame settings, but a smaller journal and smaller caches. All rows without --quick take more than\nhalf an hour. The exit code is 1 if a row could not be measured; the others are written. Broker data lies under --data while it runs, and is removed."
)]
struct Durability {
    /// Where durability.json and durability.html are written.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// End within two minutes, with few samples and few events; Kafka's rows take two more.
    #[arg(long)]
    quick: bool,
    /// Only rows for which all these terms hold, such as acks=all,brokers=3,io=direct,flush=1; may
    /// be given several times.
    #[arg(long, value_name = "TERMS")]
    rows: Vec<String>,
    /// Apache Kafka's rows too: a directory with bin/kafka-server-start.sh, or with its jars in
    /// libs/.
    #[arg(long, value_name = "DIR")]
    kafka_home: Option<PathBuf>,
    /// Where the brokers' data lies, on the device that is asked about; --output if not given, or
    /// the system's temporary directory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How long each row's load is sent (34; quick: 1.2). A p99.99 needs 32.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// How often the brokers of each cluster are killed (20; quick: 3, or what there is time for).
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    kills: Option<u64>,
    /// Simulated worlds of each configuration and kind of power loss, each of which loses power four
    /// times (1000; quick: what there is time for).
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// The seed of the first world; the same seeds are the same worlds.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    /// Leave the brokers' data where it is.
    #[arg(long)]
    keep: bool,
}

impl Lab {
    pub fn run(self) -> Result<(), Failure> {
        match self.experiment {
            Experiment::Durability(durability) => durability.run(),
        }
    }
}

impl Durability {
    fn run(self) -> Result<(), Failure> {
        let plan = self.plan()?;
        if let Some(limits) = read_limits() {
            check_memlock(&limits)?;
        }
        let document = run_lab(&plan, &|line| eprintln!("{line}"));
        print(&table(&document))?;
        if let Some(output) = &self.output {
            let json = serde_json::to_string_pretty(&document)? + "\n";
            write(&output.join("durability.json"), &json)?;
            write(&output.join("durability.html"), &page(&document))?;
        }
        match document.unmeasured() {
            0 => Ok(()),
            count => {
                Err(format!("{count} of {} rows were not measured", document.rows.len()).into())
            }
        }
    }

    fn plan(&self) -> Result<LabPlan, Failure> {
        let quick = self.quick;
        let seconds = if quick { QUICK_SECONDS } else { SECONDS };
        let seconds = self.seconds.unwrap_or(seconds);
        if !(1.0..=86_400.0).contains(&seconds) {
            return Err(format!("--seconds {seconds}: from 1 to 86400").into());
        }
        let filter = Filter::parse(&self.rows)?;
        let kafka = self
            .kafka_home
            .as_deref()
            .map(KafkaHome::find)
            .transpose()?;
        let mut rows = highwater_rows();
        if kafka.is_some() {
            rows.extend(kafka_rows());
        }
        let rows: Vec<Row> = rows.into_iter().filter(|row| filter.takes(row)).collect();
        if rows.is_empty() {
            return Err(format!(
                "--rows {}: there is no such row{}",
                self.rows.join(" --rows "),
                if kafka.is_none() {
                    " without --kafka-home"
                } else {
                    ""
                }
            )
            .into());
        }
        let temporary = std::env::temp_dir();
        let data = self.data.as_ref().or(self.output.as_ref());
        let data = data.unwrap_or(&temporary).clone();
        let directories = [("--output", self.output.as_ref()), ("--data", Some(&data))];
        for (option, directory) in directories {
            if let Some(directory) = directory {
                writable(directory)
                    .map_err(|error| format!("{option} {}: {error}", directory.display()))?;
            }
        }
        Ok(LabPlan {
            rows,
            kafka,
            data,
            keep: self.keep,
            quick,
            time_a_row: Duration::from_secs_f64(seconds),
            kills: self
                .kills
                .unwrap_or(if quick { QUICK_KILLS } else { KILLS }),
            kill_budget: quick.then_some(QUICK_KILL_BUDGET),
            power: PowerPlan {
                first_seed: self.first_seed,
                seeds: self
                    .seeds
                    .unwrap_or(if quick { QUICK_SEEDS } else { SEEDS }),
                budget: None,
                threads: std::thread::available_parallelism().map_or(1, usize::from),
            },
            deadline: quick.then_some(QUICK_DEADLINE),
        })
    }
}

/// Makes the directory if there is none, and a file in it for a moment.
fn writable(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let probe = directory.join(format!(".highwater-{:016x}", crate::rt::random_u64()));
    std::fs::write(&probe, "")?;
    std::fs::remove_file(&probe)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn read_limits() -> Option<String> {
    std::fs::read_to_string("/proc/self/limits").ok()
}

/// Said before brokers are started that could only say it one by one.
fn check_memlock(limits: &str) -> Result<(), Failure> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    match soft {
        Some(soft) if soft < MEMLOCK_MIN => Err(format!(
            "the limit of locked memory is {soft} bytes, and every executor needs {MEMLOCK_MIN}: ulimit -l unlimited, or memlock in limits.conf"
        )
        .into()),
        // Unlimited, or not told.
        _ => Ok(()),
    }
}

fn table(document: &Document) -> String {
    let mut table = Table::new(&[
        "SYSTEM",
        "ACKS",
        ">BROKERS",
        "IO",
        "FLUSH",
        ">RECORDS/S",
        ">P50",
        ">P99",
        ">P99.9",
        ">P99.99",
        ">WRITES/BYTE",
        ">ROUNDS/1K",
        ">CPU-S/GB",
        "LOST: KILL -9",
        "ONE HOST'S POWER",
        "ALL HOSTS' POWER",
    ]);
    for row in &document.rows {
        table.row(cells(row));
    }
    let mut text = table.text();
    text.push('\n');
    for row in &document.rows {
        text += &format!("{}\n", row.meaning);
    }
    for warning in &document.warnings {
        text += &format!("note: {warning}\n");
    }
    let failures = document.rows.iter().flat_map(|row| {
        let warnings = row.warnings.iter();
        warnings.map(|warning| format!("note: {}: {warning}\n", row.name))
    });
    text.extend(failures);
    text
}

fn cells(row: &RowResult) -> Vec<String> {
    let of = |key: &str| row.configured(key);
    let percentile = |us: Option<u64>| us.map(time).unwrap_or_default();
    let percentiles = row.percentiles.as_ref();
    let rounded = |value: Option<f64>, places: usize| {
        value
            .map(|value| format!("{value:.places$}"))
            .unwrap_or_default()
    };
    vec![
        of("system"),
        of("acks"),
        of("brokers"),
        of("segment_io"),
        of("flush"),
        rounded(row.throughput.as_ref().map(|of| of.records_per_second), 0),
        percentile(percentiles.and_then(|of| of.p50_us)),
        percentile(percentiles.and_then(|of| of.p99_us)),
        percentile(percentiles.and_then(|of| of.p99_9_us)),
        percentile(percentiles.and_then(|of| of.p99_99_us)),
        rounded(row.write_amplification, 2),
        rounded(row.flush_rounds_per_1000_records, 1),
        rounded(row.cpu_seconds_per_gb, 2),
        row.losses.process_kill.short(),
        row.losses.one_host_power_loss.short(),
        row.losses.all_hosts_power_loss.short(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::durability::paced_samples;
    use crate::lab::result::has_enough_samples;
    use clap::FromArgMatches;

    fn plan(arguments: &[&str]) -> LabPlan {
        let data = tempfile::tempdir().unwrap();
        let command = Durability::augment_args(clap::Command::new("durability"));
        let data = ["durability", "--data", data.path().to_str().unwrap()];
        let matches = command.get_matches_from(data.iter().chain(arguments));
        let durability = Durability::from_arg_matches(&matches).unwrap();
        durability.plan().unwrap()
    }

    #[test]
    fn a_quick_run_of_all_rows_ends_within_two_minutes_also_on_a_busy_machine() {
        /// Until brokers serve, and a kill and a world that begin as the last of their time ends.
        const START: Duration = Duration::from_secs(1);
        const KILL: Duration = Duration::from_secs(4);
        const WORLDS: Duration = Duration::from_secs(8);
        let plan = plan(&["--quick"]);
        assert_eq!((plan.rows.len(), plan.clusters().len()), (24, 2));
        // What a row takes beside its load.
        for beside in [300, 1000, 2300].map(Duration::from_millis) {
            let mut clock = plan.clock();
            let mut elapsed = plan.floors().budget;
            for rows in plan.clusters() {
                elapsed += START;
                for _ in rows {
                    elapsed += clock.row(elapsed) + beside;
                }
                elapsed += plan.kill_budget.unwrap() + KILL;
            }
            let power = clock.power(elapsed, plan.power.budget).unwrap();
            let ended = elapsed + power + WORLDS;
            assert!(ended <= Duration::from_secs(120), "{beside:?}: {ended:?}");
        }
    }

    #[test]
    fn a_full_run_has_samples_enough_for_a_p99_99_and_says_how_long_that_takes() {
        let full = plan(&[]);
        let samples = paced_samples(full.time_a_row);
        assert!(has_enough_samples(99.99, samples), "{samples}");
        let told = plan(&["--seconds", "32"]).time_a_row;
        assert!(has_enough_samples(99.99, paced_samples(told)));
    }

    #[test]
    fn a_limit_of_locked_memory_that_is_too_low_is_said_with_the_way_out() {
        let line = |soft: &str| format!("Max locked memory         {soft}  65536   bytes\n");
        let refused = check_memlock(&line("65536")).unwrap_err().to_string();
        assert!(refused.contains("ulimit -l"), "{refused}");
        assert!(check_memlock(&line("8388608")).is_ok());
        assert!(check_memlock(&line("unlimited")).is_ok());
    }

    #[test]
    fn a_directory_that_cannot_be_written_to_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(writable(&dir.path().join("new/deep")).is_ok());
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(writable(&file).is_err());
    }
}
