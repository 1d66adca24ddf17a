//! `highwater tune`: what of this host helps or hinders a broker, with the commands that change it;
//! applies what can be taken back, takes it back, and measures a disk.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use super::table::Table;
use super::{Failure, print, tune_disk};
use crate::config::BrokerConfig;
use crate::tune::apply::{self, Outcome, REVERT_FILE};
use crate::tune::finding::{Finding, State};
use crate::tune::host::Host;
use crate::tune::wanted::{Profile, Wanted};

/// Name and version of the JSON output.
const SCHEMA: &str = "highwater.tune/1";

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Ends with 1 if there is a problem, or if a change could not be made.\n\n\
    Examples:\n  highwater tune --config server.properties --profile durable\n  \
    highwater tune --profile latency --dry-run\n  \
    highwater tune --profile latency --apply && highwater tune --revert\n  \
    highwater tune disk --dir /var/lib/highwater --output /etc/highwater/disk.properties"
)]
pub struct Tune {
    #[command(subcommand)]
    what: Option<What>,
    /// The broker's property file: its log directories and shards are judged.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting that wins over the file; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// What the broker is wanted to be best at: latency, throughput or durable.
    #[arg(long, default_value = "throughput")]
    profile: Profile,
    /// Only this check, by the name it has in the table; may be given several times.
    #[arg(long, value_name = "CHECK")]
    only: Vec<String>,
    /// Look at the limits of this running process instead of one's own.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Make the changes that can be taken back: writes to /sys and /proc/sys, with --interrupts to
    /// /proc/irq, until the next boot.
    #[arg(long, conflicts_with = "revert")]
    apply: bool,
    /// Print what --apply would write, and write nothing.
    #[arg(long, conflicts_with_all = ["apply", "revert"])]
    dry_run: bool,
    /// With --apply and --dry-run: move interrupts too.
    #[arg(long)]
    interrupts: bool,
    /// Where --apply notes what was there before.
    #[arg(long, value_name = "FILE", default_value = REVERT_FILE)]
    revert_file: PathBuf,
    /// Take back all that --apply has changed, as that file tells.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = REVERT_FILE, conflicts_with = "only")]
    revert: Option<PathBuf>,
    /// The directory that holds /proc and /sys, for tests.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

#[derive(Subcommand)]
enum What {
    /// Measure a disk, and write what a broker should know of it.
    Disk(tune_disk::TuneDisk),
}

impl Tune {
    pub fn run(self) -> Result<(), Failure> {
        if let Some(What::Disk(disk)) = self.what {
            return disk.run();
        }
        let host = Host::under(&self.root);
        if let Some(file) = &self.revert {
            let outcomes = apply::revert(&host, file)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            return self.told(&outcomes, "taken back");
        }
        let config = BrokerConfig::load(self.config.as_deref(), &self.set)?;
        let wanted = Wanted {
            profile: self.profile,
            shards: config.shards,
            log_dirs: config.log_dirs.iter().map(|dir| absolute(dir)).collect(),
        };
        let host = match self.pid {
            // Else everything of it would be unseen, and nothing of that a problem.
            Some(pid) if !host.exists(&format!("/proc/{pid}")) => {
                let dir = self.root.join("proc");
                return Err(format!("no process {pid} under {}", dir.display()).into());
            }
            Some(pid) => host.for_process(pid),
            None => host,
        };
        let mut findings = crate::tune::check(&host, &wanted);
        for only in &self.only {
            if !findings.iter().any(|finding| finding.check == only) {
                let known: Vec<&str> = findings.iter().map(|finding| finding.check).collect();
                return Err(
                    format!("no check '{only}' here; there are {}", known.join(", ")).into(),
                );
            }
        }
        if !self.only.is_empty() {
            findings.retain(|finding| self.only.iter().any(|only| only == finding.check));
        }
        if self.apply || self.dry_run {
            return self.change(&host, &findings);
        }
        let text = match self.json {
            true => self.as_json(&host, &wanted, &findings)?,
            false => as_text(&findings),
        };
        print(&text)?;
        let problems = count(&findings, State::Problem);
        match problems {
            0 => Ok(()),
            1 => Err("there is a problem".into()),
            _ => Err(format!("there are {problems} problems").into()),
        }
    }

    fn change(&self, host: &Host, findings: &[Finding]) -> Result<(), Failure> {
        let changes = apply::changes(findings, self.interrupts);
        if self.dry_run {
            let outcomes: Vec<Outcome> = changes
                .into_iter()
                .map(|change| Outcome {
                    path: change.path,
                    from: change.from,
                    to: change.to,
                    failure: None,
                })
                .collect();
            return self.told(&outcomes, "would be changed");
        }
        if self.root == Path::new("/") && !is_root() {
            return Err("only root may change the host: run it with sudo, or see --dry-run".into());
        }
        let outcomes = apply::apply(host, &changes, &self.revert_file)
            .map_err(|error| format!("{}: {error}", self.revert_file.display()))?;
        self.told(&outcomes, "changed")
    }

    fn told(&self, outcomes: &[Outcome], done: &str) -> Result<(), Failure> {
        let failed = outcomes.iter().filter(|o| o.failure.is_some()).count();
        if self.json {
            let text = json!({ "schema": SCHEMA, "done": done, "changes": outcomes });
            print(&format!("{}\n", serde_json::to_string_pretty(&text)?))?;
        } else if outcomes.is_empty() {
            print("nothing to change\n")?;
        } else {
            let mut table = Table::new(&["SETTING", "FROM", "TO", "RESULT"]);
            for outcome in outcomes {
                let result = match &outcome.failure {
                    Some(why) => format!("failed: {why}"),
                    None => done.to_owned(),
                };
                let Outcome { path, from, to, .. } = outcome;
                table.row(vec![path.clone(), from.clone(), to.clone(), result]);
            }
            print(&table.text())?;
        }
        match failed {
            0 => Ok(()),
            _ => Err(format!("{failed} of {} could not be {done}", outcomes.len()).into()),
        }
    }

    fn as_json(
        &self,
        host: &Host,
        wanted: &Wanted,
        findings: &[Finding],
    ) -> Result<String, Failure> {
        let text = json!({
            "schema": SCHEMA,
            "profile": wanted.profile,
            "shards": wanted.shards,
            "log_dirs": wanted.log_dirs,
            "process": host.process(),
            "problems": count(findings, State::Problem),
            "advice": count(findings, State::Advice),
            "unseen": count(findings, State::Unseen),
            "findings": findings,
        });
        Ok(format!("{}\n", serde_json::to_string_pretty(&text)?))
    }
}

/// The directory as the kernel's mounts name it: absolute, links followed as far as it exists.
pub(super) fn absolute(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let mut there = absolute.as_path();
    let mut rest = Vec::new();
    loop {
        if let Ok(found) = std::fs::canonicalize(there) {
            return rest.iter().rev().fold(found, |path, name| path.join(name));
        }
        match (there.parent(), there.file_name()) {
            (Some(parent), Some(name)) => {
                rest.push(name.to_owned());
                there = parent;
            }
            _ => return absolute,
        }
    }
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut ids = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .unwrap_or_default()
        .split_whitespace();
    ids.nth(1) == Some("0")
}

fn count(findings: &[Finding], state: State) -> usize {
    findings.iter().filter(|f| f.state == state).count()
}

/// A table of all, and below it the reasons and commands of what is not good.
fn as_text(findings: &[Finding]) -> String {
    let mut table = Table::new(&["STATE", "CHECK", "OF", "FOUND", "WANTED"]);
    for finding in findings {
        table.row(vec![
            finding.state.word().to_owned(),
            finding.check.to_owned(),
            finding.subject.clone(),
            finding.found.clone(),
            finding.wanted.clone(),
        ]);
    }
    let mut text = table.text();
    for state in [State::Problem, State::Advice] {
        for finding in findings.iter().filter(|finding| finding.state == state) {
            let Finding { check, subject, .. } = finding;
            let of = match subject.is_empty() {
                true => String::new(),
                false => format!(" of {subject}"),
            };
            text.push_str(&format!("\n{}: {check}{of}\n", state.word()));
            text.push_str(&format!("  why   {}\n", finding.why));
            for (set, back) in finding.set.iter().zip(&finding.set_back) {
                text.push_str(&format!("  set   {set}\n  back  {back}\n"));
            }
        }
    }
    let counts = [State::Good, State::Advice, State::Problem, State::Unseen]
        .map(|state| format!("{} {}", count(findings, state), state.word()));
    text.push_str(&format!("\n{}\n", counts.join(", ")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_yet_is_named_by_what_is() {
        let home = tempfile::tempdir().unwrap();
        let real = std::fs::canonicalize(home.path()).unwrap();
        let found = absolute(&home.path().join("not/yet"));
        assert_eq!(found, real.join("not/yet"));
        assert!(absolute(Path::new("x")).is_absolute());
    }
}
