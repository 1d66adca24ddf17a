//! The whole lab, one part after the other: brokers of each kind, every row's load on them, kill
//! -9, and the simulated power losses. What is measured is measured while nothing else runs.
//! On the main thread.

use super::document::{Document, LossSet, Measured, RowResult, SCHEMA, Simulation};
use super::feed::all_registered;
use super::kill::{self, KillPlan, kill_nine};
use super::losses::{Losses, Source, Tally};
use super::matrix::{Row, System, node_settings};
use super::measure::{RECORD_BYTES, load_of, measure, warm};
use super::power::{self, EVENTS_A_WORLD, Outage, PowerPlan, PowerReport, simulate};
use crate::commands::Failure;
use crate::commands::run::run;
use crate::lab::floors::{FloorPlan, measure_telling};
use crate::lab::host;
use crate::lab::kafka_home::KafkaHome;
use crate::lab::nodes::{Brand, Nodes, Plan};
use crate::rt;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A Java process begins slowly.
const KAFKA_PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(30);
const DELETE_DELAY_MS: u64 = 500;
/// How long Kafka's brokers are under load before the first row.
const WARM: Duration = Duration::from_secs(20);
const QUICK_WARM: Duration = Duration::from_secs(5);
/// Of a deadline, this part is for measuring rows; kills and power losses have the rest.
const ROWS_SHARE: f64 = 0.75;
/// Less shows nothing but the start of a load.
const TIME_A_ROW_MIN: Duration = Duration::from_millis(500);

/// What is to be done.
pub struct LabPlan {
    pub rows: Vec<Row>,
    pub kafka: Option<KafkaHome>,
    /// Under which the brokers' data lies.
    pub data: PathBuf,
    pub keep: bool,
    pub quick: bool,
    /// For both runs of a row.
    pub time_a_row: Duration,
    pub kills: u64,
    /// Of all kills on one cluster.
    pub kill_budget: Option<Duration>,
    pub power: PowerPlan,
    /// When the whole lab should have ended; what is left of it goes to the simulator.
    pub deadline: Option<Duration>,
}

/// What is known of a row when everything has run.
struct Known {
    row: Row,
    measured: Option<Result<Measured, String>>,
    kills: Tally,
}

/// Runs all of it. `tell` hears what is going on, a line each.
///
/// # Errors
/// Brokers cannot be started. A row that fails says so in its result instead.
pub fn run_lab(plan: &LabPlan, tell: &(impl Fn(&str) + Sync)) -> Result<Document, Failure> {
    let began = Instant::now();
    let host = host::host();
    let mut warnings = host::warnings(&host);
    let mut document = Document {
        schema: SCHEMA,
        tool_version: env!("CARGO_PKG_VERSION"),
        started_unix_ms: u64::try_from(rt::wall_ms()).unwrap_or_default(),
        quick: plan.quick,
        host,
        floors: Vec::new(),
        load: load_of(plan.time_a_row),
        kill_load: kill::PACE.to_string(),
        simulation: Simulation::default(),
        rows: Vec::new(),
        warnings: Vec::new(),
    };
    tell("floors of this machine");
    let floors = FloorPlan {
        directory: Some(plan.data.clone()),
        write_bytes: RECORD_BYTES,
        message_bytes: RECORD_BYTES,
        ..FloorPlan::default()
    };
    let floors = if plan.quick { floors.quick() } else { floors };
    let (floors, missing) = measure_telling(&floors);
    document.floors = floors;
    warnings.extend(missing);
    let clock = RowClock {
        began,
        plan,
        left: Cell::new(plan.rows.len() as u32),
    };
    let mut known: Vec<Known> = Vec::new();
    for system in [System::Highwater, System::Kafka] {
        for brokers in [1, super::matrix::BROKERS] {
            let alike = |row: &&Row| row.system == system && row.brokers == brokers;
            let rows: Vec<Row> = plan.rows.iter().filter(alike).copied().collect();
            if !rows.is_empty() {
                known.extend(on_brokers(&clock, system, &rows, &mut warnings, tell)?);
            }
        }
    }
    let ours = |known: &&Known| known.row.system == System::Highwater;
    let rows: Vec<Row> = known.iter().filter(ours).map(|known| known.row).collect();
    let left = plan
        .deadline
        .map(|deadline| deadline.saturating_sub(began.elapsed()));
    let power = PowerPlan {
        budget: [plan.power.budget, left].into_iter().flatten().min(),
        ..plan.power
    };
    let told = |ended: u64, of: u64| {
        if ended == 1 || ended.is_multiple_of(500) {
            tell(&format!("power losses: world {ended} of at most {of}"));
        }
    };
    let report = simulate(&rows, &power, told);
    let mut simulated = 0;
    for known in &known {
        let at = (known.row.system == System::Highwater).then_some(simulated);
        simulated += usize::from(at.is_some());
        let losses = losses_of(known, at, &report);
        let result = RowResult::new(&known.row, known.measured.as_ref(), losses);
        document.rows.push(result);
    }
    document.simulation = Simulation {
        first_seed: power.first_seed,
        worlds: report.worlds,
        events_per_world: EVENTS_A_WORLD,
        load: power::PACE.to_string(),
        failed_worlds: report.failures,
    };
    if !document.simulation.failed_worlds.is_empty() {
        let failed = document.simulation.failed_worlds.len();
        warnings.push(format!(
            "{failed} of {} simulated worlds did not come to their end; what they lost until then is counted",
            report.worlds
        ));
    }
    if plan.quick {
        warnings.push(
            "a quick run: few samples, few events; decide from a run without --quick".to_owned(),
        );
    }
    warnings.extend(on_memory(&plan.data));
    document.warnings = warnings;
    Ok(document)
}

/// How long the next row's load is sent: shorter where the machine is so busy that all the rest takes
/// longer than it should.
struct RowClock<'a> {
    began: Instant,
    plan: &'a LabPlan,
    /// Rows that have not been measured.
    left: Cell<u32>,
}

impl RowClock<'_> {
    fn next(&self) -> Duration {
        let left = self.left.get().max(1);
        self.left.set(left - 1);
        let Some(deadline) = self.plan.deadline else {
            return self.plan.time_a_row;
        };
        let rows = deadline.mul_f64(ROWS_SHARE);
        let share = rows.saturating_sub(self.began.elapsed()) / left;
        // What a row takes beside its load is about as long again.
        (share / 2).clamp(TIME_A_ROW_MIN, self.plan.time_a_row.max(TIME_A_ROW_MIN))
    }
}

/// One cluster: every row's load, then kill -9.
fn on_brokers(
    clock: &RowClock<'_>,
    system: System,
    rows: &[Row],
    warnings: &mut Vec<String>,
    tell: &impl Fn(&str),
) -> Result<Vec<Known>, Failure> {
    let plan = clock.plan;
    let brokers = rows[0].brokers;
    let name = rows[0].system_name();
    tell(&format!("{name}: {brokers} broker(s) start"));
    let brand = match (system, &plan.kafka) {
        (System::Kafka, Some(home)) => Brand::Kafka(home.clone()),
        (System::Kafka, None) => return Err("there is no Kafka home".into()),
        (System::Highwater, _) => Brand::Highwater,
    };
    let kafka = system == System::Kafka;
    let mut settings: Vec<(String, String)> = node_settings(brokers)
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    // A row's files are gone before the disk is full of them.
    settings.push((
        "log.segment.delete.delay.ms".to_owned(),
        DELETE_DELAY_MS.to_string(),
    ));
    if !kafka {
        // As in the simulator.
        settings.push(("highwater.shards".to_owned(), "1".to_owned()));
    }
    let nodes = Nodes::start(Plan {
        settings,
        under: Some(plan.data.clone()),
        keep: plan.keep,
        patience: if kafka { KAFKA_PATIENCE } else { PATIENCE },
        ..Plan::new(brand, brokers)
    })?;
    let (servers, patience) = (nodes.bootstrap(), KAFKA_PATIENCE);
    run(move || async move { Ok(all_registered(&servers, brokers, patience).await?) })?;
    if kafka {
        let time = if plan.quick { QUICK_WARM } else { WARM };
        tell(&format!("{name}: {brokers} broker(s) warm up"));
        warm(&nodes, &rows[0], time)?;
    }
    let mut known = Vec::with_capacity(rows.len());
    for row in rows {
        tell(&row.name());
        let measured = measure(&nodes, row, clock.next());
        known.push(Known {
            row: *row,
            measured: Some(measured.map_err(|error| error.to_string())),
            kills: Tally::default(),
        });
    }
    tell(&format!("{name}: {brokers} broker(s), kill -9"));
    let kills = KillPlan {
        events: plan.kills,
        budget: plan.kill_budget,
    };
    match kill_nine(&nodes, rows, &kills) {
        Ok(tallies) => {
            for (known, tally) in known.iter_mut().zip(tallies) {
                known.kills = tally;
            }
        }
        Err(error) => warnings.push(format!(
            "kill -9 of {name} with {brokers} broker(s) did not come to its end: {error}"
        )),
    }
    Ok(known)
}

/// `at` is the row's place in the report; none if it was not simulated.
fn losses_of(known: &Known, at: Option<usize>, report: &PowerReport) -> LossSet {
    let power = |outage| match at {
        None => Losses::not_simulated(),
        Some(at) => {
            let tally = report.tallies.get(&(at, outage)).cloned();
            tally.unwrap_or_default().state(Source::Simulator)
        }
    };
    LossSet {
        process_kill: known.kills.state(Source::Processes),
        one_host_power_loss: power(Outage::OneHost),
        all_hosts_power_loss: power(Outage::AllHosts),
    }
}

/// A file system in memory has no device: its flushes cost nothing.
fn on_memory(data: &Path) -> Option<String> {
    let path = std::fs::canonicalize(data).ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let kind = file_system(&mounts, &path)?;
    matches!(kind, "tmpfs" | "ramfs").then(|| {
        format!(
            "{} lies in memory ({kind}): a flush costs nothing there, so latencies and throughput of flushed rows say nothing; --data names another directory",
            path.display()
        )
    })
}

fn file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((Path::new(fields.next()?), fields.next()?))
    });
    let holding = mounts.filter(|(point, _)| path.starts_with(point));
    // Of mounts over each other the last one is seen.
    let nearest = holding.max_by_key(|(point, _)| point.components().count());
    nearest.map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_says_what_a_directory_lies_on() {
        let mounts =
            "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmp/disk xfs rw 0 0\n";
        let of = |path: &str| file_system(mounts, Path::new(path));
        assert_eq!(of("/home/x"), Some("ext4"));
        assert_eq!(of("/tmp/x"), Some("tmpfs"));
        assert_eq!(of("/tmp/disk/x"), Some("xfs"));
    }
}
