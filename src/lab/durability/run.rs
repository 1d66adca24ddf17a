//! The whole lab, one part after the other: brokers of each kind, every row's load on them, kill
//! -9, and the simulated power losses. What is measured is measured while nothing else runs.
//! On the main thread.

use super::clock::Clock;
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
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A Java process begins slowly.
const KAFKA_PATIENCE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(30);
/// So short that a deleted topic's files can be waited for.
const DELETE_DELAY_MS: u64 = 50;
/// How long Kafka's brokers are under load before the first row.
const WARM: Duration = Duration::from_secs(20);
const QUICK_WARM: Duration = Duration::from_secs(5);

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

impl LabPlan {
    /// What the machine's floors are measured with.
    pub fn floors(&self) -> FloorPlan {
        let floors = FloorPlan {
            directory: Some(self.data.clone()),
            write_bytes: RECORD_BYTES,
            message_bytes: RECORD_BYTES,
            ..FloorPlan::default()
        };
        if self.quick { floors.quick() } else { floors }
    }

    pub fn clock(&self) -> Clock {
        Clock::new(self.deadline, self.time_a_row, self.rows.len())
    }

    fn warm_up(&self) -> Duration {
        if self.quick { QUICK_WARM } else { WARM }
    }

    /// The rows of each cluster, in the order in which clusters run.
    pub fn clusters(&self) -> Vec<Vec<Row>> {
        let mut clusters = Vec::new();
        for system in [System::Highwater, System::Kafka] {
            for brokers in [1, super::matrix::BROKERS] {
                let alike = |row: &&Row| row.system == system && row.brokers == brokers;
                clusters.push(self.rows.iter().filter(alike).copied().collect());
            }
        }
        clusters.retain(|rows: &Vec<Row>| !rows.is_empty());
        clusters
    }
}

/// A lab while it runs.
struct Lab<'a> {
    began: Instant,
    plan: &'a LabPlan,
    clock: Clock,
    warnings: Vec<String>,
}

/// What is known of a row when everything has run.
struct Known {
    row: Row,
    /// Or why not.
    measured: Result<Measured, String>,
    kills: Tally,
    /// Why there were fewer kills than planned.
    cut_short: Option<String>,
}

/// Runs all of it. `tell` hears what is going on, a line each. What fails says so in the document:
/// a row, or all rows of brokers that do not start.
pub fn run_lab(plan: &LabPlan, tell: &(impl Fn(&str) + Sync)) -> Document {
    let began = Instant::now();
    let host = host::host();
    let warnings = host::warnings(&host);
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
    let (floors, missing) = measure_telling(&plan.floors());
    document.floors = floors;
    let mut lab = Lab {
        began,
        plan,
        clock: plan.clock(),
        warnings,
    };
    lab.warnings.extend(missing);
    let mut known: Vec<Known> = Vec::new();
    for rows in plan.clusters() {
        known.extend(on_brokers(&mut lab, &rows, tell));
    }
    let ours = |known: &&Known| known.row.system == System::Highwater;
    let rows: Vec<Row> = known.iter().filter(ours).map(|known| known.row).collect();
    let power = PowerPlan {
        budget: lab.clock.power(began.elapsed(), plan.power.budget),
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
        let mut result = RowResult::new(&known.row, known.measured.as_ref(), losses);
        result.warnings.extend(known.cut_short.clone());
        document.rows.push(result);
    }
    let mut warnings = lab.warnings;
    if document.unmeasured() > 0 {
        warnings.push(format!(
            "{} of {} rows were not measured; each says why",
            document.unmeasured(),
            document.rows.len()
        ));
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
    document
}

/// One cluster: every row's load, then kill -9. A cluster that does not start leaves rows without a
/// figure; what was measured before it stays.
fn on_brokers(lab: &mut Lab<'_>, rows: &[Row], tell: &impl Fn(&str)) -> Vec<Known> {
    let plan = lab.plan;
    let (kafka, brokers) = (rows[0].system == System::Kafka, rows[0].brokers);
    let name = format!("{}: {brokers} broker(s)", rows[0].system_name());
    tell(&format!("{name} start"));
    let nodes = match start(plan, kafka, brokers) {
        Ok(nodes) => nodes,
        Err(error) => {
            let why = format!("{name} did not start: {error}");
            tell(&why);
            lab.clock.leave_out(rows.len());
            let without = rows.iter().map(|row| Known {
                row: *row,
                measured: Err(why.clone()),
                kills: Tally::default(),
                cut_short: None,
            });
            let without = without.collect();
            lab.warnings.push(why);
            return without;
        }
    };
    if kafka {
        tell(&format!("{name} warm up"));
        if let Err(error) = warm(&nodes, &plan.data, &rows[0], plan.warm_up()) {
            lab.warnings
                .push(format!("{name} did not warm up, and are slower: {error}"));
        }
    }
    let mut known = Vec::with_capacity(rows.len());
    for row in rows {
        tell(&row.name());
        let time = lab.clock.row(lab.began.elapsed());
        let measured = measure(&nodes, &plan.data, row, time);
        known.push(Known {
            row: *row,
            measured: measured.map_err(|error| error.to_string()),
            kills: Tally::default(),
            cut_short: None,
        });
    }
    tell(&format!("{name}, kill -9"));
    let kills = KillPlan {
        events: plan.kills,
        budget: plan.kill_budget,
    };
    let killed = kill_nine(&nodes, rows, &kills);
    for (known, tally) in known.iter_mut().zip(killed.tallies) {
        known.kills = tally;
        known.cut_short.clone_from(&killed.cut_short);
    }
    if let Some(why) = killed.cut_short {
        lab.warnings.push(format!("{name}: {why}"));
    }
    known
}

/// Brokers that know each other.
fn start(plan: &LabPlan, kafka: bool, brokers: usize) -> Result<Nodes, Failure> {
    let brand = match (kafka, &plan.kafka) {
        (true, Some(home)) => Brand::Kafka(home.clone()),
        (true, None) => return Err("there is no Kafka home".into()),
        (false, _) => Brand::Highwater,
    };
    let mut settings: Vec<(String, String)> = node_settings(brokers)
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    // A row's files are gone before the next row is measured.
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
    Ok(nodes)
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
