//! `highwater tune disk`: measures the device of a directory and writes the profile that a broker
//! reads with `highwater.disk.profile`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::json;

use super::table::Table;
use super::tune::absolute;
use super::{Failure, print};
use crate::tune::disk::figure::{Figure, Way};
use crate::tune::disk::profile::Origin;
use crate::tune::disk::{Budget, choose, measure, profile};
use crate::tune::host::Host;

#[derive(Args)]
#[command(
    after_help = "Writes into a directory of its own in DIR, which it removes at the end. Measure while nothing\n\
    else uses the device, and not in the log directory of a running broker.\n\n\
    Example:\n  highwater tune disk --dir /var/lib/highwater --output disk.properties\n  \
    highwater serve --set highwater.disk.profile=disk.properties"
)]
pub struct TuneDisk {
    /// A directory on the device.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Write the profile here; without it, it is printed.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Size of the measured file in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(64..=65536))]
    size: u64,
    /// Seconds for all measurements together, without making the file.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Take limits from measurements too whose turns disagree.
    #[arg(long)]
    accept_noise: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl TuneDisk {
    pub(super) fn run(self) -> Result<(), Failure> {
        let in_file = |file: &Path, error| format!("{}: {error}", file.display());
        if let Some(file) = &self.output {
            writable(file).map_err(|error| in_file(file, error))?;
        }
        let dir = absolute(&self.dir);
        let budget = Budget {
            bytes: self.size << 20,
            time: Duration::from_secs(self.seconds),
        };
        let host = Host::under("/");
        let load = host.read("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or_default().to_owned();
        let figures =
            measure(&dir, budget).map_err(|error| format!("{}: {error}", dir.display()))?;
        let limits = choose::limits(&figures, self.accept_noise);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let origin = Origin {
            dir: &dir.display().to_string(),
            device: &crate::tune::names_below(&host, &dir).join(","),
            kernel: &host.read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            load_average: &load,
            unix_seconds: since.map_or(0, |since| since.as_secs()),
        };
        let text = profile::text(&origin, &limits, &figures);
        let written = match &self.output {
            Some(file) => fs::write(file, &text).map_err(|error| in_file(file, error)),
            None => Ok(()),
        };
        if self.json {
            let limits: serde_json::Map<_, _> = limits
                .iter()
                .map(|limit| (limit.key.to_owned(), limit.value.into()))
                .collect();
            let document = json!({
                "schema": "highwater.tune.disk/1",
                "dir": origin.dir,
                "device": origin.device,
                "kernel": origin.kernel,
                "load_average": origin.load_average,
                "figures": figures,
                "limits": limits,
            });
            print(&format!("{}\n", serde_json::to_string_pretty(&document)?))?;
            return Ok(written?);
        }
        print(&table(&figures))?;
        let unsteady = figures.iter().filter(|figure| !figure.is_steady()).count();
        if unsteady > 0 {
            let all = figures.len();
            let rest = match self.accept_noise {
                true => "the limits below may be noise",
                false => "limits that need them are left at the broker's defaults",
            };
            print(&format!(
                "\n{unsteady} of {all} measurements did not repeat: something else was on the device; {rest}\n"
            ))?;
        }
        match &self.output {
            Some(file) if written.is_ok() => {
                let mut told = String::new();
                for limit in &limits {
                    told.push_str(&format!("{}={}\n  {}\n", limit.key, limit.value, limit.why));
                }
                let file = file.display();
                print(&format!(
                    "\n{told}\nwritten to {file}; serve with highwater.disk.profile={file}\n"
                ))?;
            }
            // Also where the file could not be written after all: what was measured is not lost.
            _ => print(&format!("\n{text}"))?,
        }
        Ok(written?)
    }
}

/// Whether a file can be written, asked before it takes long to find out. What is in it stays, and
/// a new one does not.
fn writable(file: &Path) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(found) if found.is_file() || found.is_dir() => {
            fs::OpenOptions::new().write(true).open(file)?;
        }
        // Whoever reads a pipe would see its end.
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match fs::File::create_new(file) {
                // A link that leads nowhere yet: writing through it will tell.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(_) => fs::remove_file(file)?,
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn table(figures: &[Figure]) -> String {
    let mut table = Table::new(&[
        "WHAT",
        "WAY",
        "BYTES",
        "DEPTH",
        "OPERATIONS",
        "MB/S",
        "SPREAD",
        "P50-US",
        "P99-US",
    ]);
    for figure in figures {
        let way = match figure.way {
            Way::Plain => "plain",
            Way::Ring => "ring",
        };
        table.row(vec![
            figure.words().to_owned(),
            way.to_owned(),
            figure.bytes.to_string(),
            figure.depth.to_string(),
            figure.operations.to_string(),
            format!("{:.1}", figure.bytes_per_second / 1e6),
            format!("{:.0}%", figure.spread * 100.0),
            format!("{:.0}", figure.p50_us),
            figure.p99_us.map_or(String::new(), |us| format!("{us:.0}")),
        ]);
    }
    table.text()
}
