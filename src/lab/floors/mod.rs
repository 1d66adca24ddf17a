//! What the machine does without any broker: loopback, device, checksum, copy, and the hop between
//! two cores. Measured in the same process and directory as the load, so that a result can be held
//! against what was possible. Blocks the calling thread for the plan's budget and starts threads
//! of its own; never called on an executor. A floor that cannot be measured is left out, with a
//! warning that says why.

mod device;
mod loopback;
mod memory;
mod ring;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::result::{Floor, has_enough_samples};

/// What to measure.
#[derive(Clone, Debug)]
pub struct FloorPlan {
    /// Where the files of the device's floors are made, and removed again. Without one the device
    /// is left out.
    pub directory: Option<PathBuf>,
    /// Bytes of one write, as the load's batches have.
    pub write_bytes: usize,
    /// Bytes of a message on the loopback.
    pub message_bytes: usize,
    /// Time that is measured in all; making files and threads comes on top.
    pub budget: Duration,
}

impl Default for FloorPlan {
    fn default() -> FloorPlan {
        FloorPlan {
            directory: None,
            write_bytes: 1024,
            message_bytes: 1024,
            budget: Duration::from_millis(8500),
        }
    }
}

impl FloorPlan {
    /// The same in two seconds; enough for the order of magnitude.
    pub fn quick(self) -> FloorPlan {
        FloorPlan {
            budget: Duration::from_millis(1500),
            ..self
        }
    }

    fn share(&self, percent: u32) -> Duration {
        self.budget * percent / 100
    }
}

/// A single floor takes no more samples: its median does not get better.
const SAMPLES_MAX: usize = 100_000;

/// All floors of the plan that could be measured, and a sentence for each that could not.
pub fn measure_telling(plan: &FloorPlan) -> (Vec<Floor>, Vec<String>) {
    let mut found = Found::default();
    found.add("the loopback's floors", loopback::measure(plan));
    found.add_most("the device's floors", device::measure(plan));
    found.add_most("the ring's floors", ring::measure(plan));
    found.add("the memory's floors", Ok(memory::measure(plan)));
    (found.floors, found.warnings)
}

/// Floors, and a sentence about those that were left out.
type Most = (Vec<Floor>, Option<String>);

/// Some file systems have no O_DIRECT; floors without it stand. Any other failure is one.
fn without_direct(
    floors: Vec<Floor>,
    what: &str,
    directory: &Path,
    direct: io::Result<Vec<Floor>>,
) -> io::Result<Most> {
    match direct {
        Ok(more) => Ok(([floors, more].concat(), None)),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let directory = directory.display();
            let why = format!("{what} were left out: {directory} takes no O_DIRECT ({error})");
            Ok((floors, Some(why)))
        }
        Err(error) => Err(error),
    }
}

#[derive(Default)]
struct Found {
    floors: Vec<Floor>,
    warnings: Vec<String>,
}

impl Found {
    fn add(&mut self, what: &str, measured: io::Result<Vec<Floor>>) {
        match measured {
            Ok(floors) => self.floors.extend(floors),
            Err(error) => self
                .warnings
                .push(format!("{what} were not measured: {error}")),
        }
    }

    /// Of floors of which some may be left out while the others stand.
    fn add_most(&mut self, what: &str, measured: io::Result<Most>) {
        match measured {
            Ok((floors, left_out)) => {
                self.floors.extend(floors);
                self.warnings.extend(left_out);
            }
            Err(error) => self.add(what, Err(error)),
        }
    }
}

/// The times of `work`, done again and again until the budget is spent: at least once.
fn times(budget: Duration, mut work: impl FnMut() -> io::Result<()>) -> io::Result<Vec<Duration>> {
    let mut samples = Vec::new();
    let begun = Instant::now();
    loop {
        let since = Instant::now();
        work()?;
        samples.push(since.elapsed());
        if begun.elapsed() >= budget || samples.len() == SAMPLES_MAX {
            return Ok(samples);
        }
    }
}

/// A floor in microseconds.
fn latency(name: &str, what: String, samples: &[Duration]) -> Floor {
    let micros = samples.iter().map(|time| time.as_secs_f64() * 1e6);
    let (value, p99) = median_and_p99(micros.collect());
    Floor {
        name: name.to_owned(),
        what,
        unit: "us".to_owned(),
        value,
        p99,
        samples: samples.len() as u64,
    }
}

/// A floor in bytes a second; each sample moved `bytes`.
fn rate(name: &str, what: String, bytes: usize, samples: &[Duration]) -> Floor {
    let rates = samples.iter();
    let rates = rates.map(|time| bytes as f64 / time.as_secs_f64().max(1e-9));
    let (value, _) = median_and_p99(rates.collect());
    Floor {
        name: name.to_owned(),
        what,
        unit: "bytes/s".to_owned(),
        value,
        p99: None,
        samples: samples.len() as u64,
    }
}

fn median_and_p99(mut values: Vec<f64>) -> (f64, Option<f64>) {
    values.sort_by(f64::total_cmp);
    let at = |percent: f64| {
        let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
        values.get(rank.max(1) - 1).copied()
    };
    let p99 = at(99.0).filter(|_| has_enough_samples(99.0, values.len() as u64));
    (at(50.0).unwrap_or(0.0), p99)
}

/// Bytes that no device can make smaller.
fn noise(len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

fn size(bytes: usize) -> String {
    super::page::quantity::Unit::Bytes
        .text(bytes as f64)
        .replace('\u{202f}', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_ranks_and_p99_needs_a_thousand() {
        let values = |n: u32| (1..=n).rev().map(f64::from).collect::<Vec<f64>>();
        assert_eq!(median_and_p99(values(3)), (2.0, None));
        assert_eq!(median_and_p99(values(999)), (500.0, None));
        assert_eq!(median_and_p99(values(1000)), (500.0, Some(990.0)));
        assert_eq!(median_and_p99(Vec::new()), (0.0, None));
    }

    #[test]
    fn rates_are_bytes_over_time() {
        let times = [Duration::from_millis(1), Duration::from_millis(4)];
        let floor = rate("copy", String::new(), 1000, &times);
        assert_eq!((floor.value, floor.samples), (250_000.0, 2));
        let floor = latency("hop", String::new(), &times);
        assert_eq!((floor.value, floor.p99), (1000.0, None));
    }

    #[test]
    fn all_floors_are_measured_and_leave_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let plan = FloorPlan {
            directory: Some(dir.path().to_owned()),
            budget: Duration::from_millis(200),
            ..FloorPlan::default()
        };
        let (floors, warnings) = measure_telling(&plan);
        let names: Vec<&str> = floors.iter().map(|floor| &*floor.name).collect();
        for name in [
            "loopback_round_trip",
            "loopback_stream",
            "page_cache_write",
            "device_write_flush",
            "device_write_flush_ring",
            "device_stream_write",
            "device_stream_write_ring",
            "channel_round_trip",
            "crc32c",
            "memory_copy",
        ] {
            assert!(names.contains(&name), "{name} in {names:?}, {warnings:?}");
        }
        for floor in &floors {
            assert!(floor.value > 0.0 && floor.samples > 0, "{floor:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn floors_past_the_page_cache_are_not_left_out_in_silence() {
        let refused = || Err(io::Error::from_raw_os_error(libc::EINVAL));
        let kept = vec![latency("kept", String::new(), &[])];
        let (floors, why) =
            without_direct(kept.clone(), "direct writes", Path::new("/mnt"), refused()).unwrap();
        assert_eq!(floors, kept);
        let why = why.unwrap();
        assert!(why.contains("/mnt takes no O_DIRECT"), "{why}");
        let broken = Err(io::Error::other("broken"));
        assert!(without_direct(kept, "direct writes", Path::new("/mnt"), broken).is_err());
        let mut found = Found::default();
        found.add_most("floors", Ok((floors, Some(why.clone()))));
        assert_eq!((found.floors.len(), found.warnings), (1, vec![why]));
    }

    #[test]
    fn a_directory_that_is_not_there_is_a_warning() {
        let plan = FloorPlan {
            directory: Some(PathBuf::from("/nonexistent/floors")),
            budget: Duration::from_millis(50),
            ..FloorPlan::default()
        };
        let (floors, warnings) = measure_telling(&plan);
        assert!(
            warnings.iter().any(|text| text.contains("device")),
            "{warnings:?}"
        );
        assert!(floors.iter().any(|floor| floor.name == "loopback_stream"));
        assert!(!floors.iter().any(|floor| floor.name.starts_with("device")));
    }
}
