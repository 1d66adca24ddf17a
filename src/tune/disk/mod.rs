//! Measuring what a device does for the broker, and what the broker's limits should be on it. The
//! main thread measures with plain system calls, one shard of its own through the ring; nothing of
//! it runs in a broker.
//!
//! * [`figure`] what is measured, as values;
//! * `plain`, `ring` the two ways of measuring;
//! * [`choose`] the limits that follow, with the reason of each;
//! * [`profile`] the file that the broker reads.

pub mod choose;
pub mod figure;
mod plain;
pub mod profile;
mod ring;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figure::Figure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What one run may use of the device.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Size of the file that is written and read over and over.
    pub bytes: u64,
    /// All measurements together.
    pub time: Duration,
}

/// Smallest file of use: some of the largest requests at the largest depth.
pub const BYTES_MIN: u64 = 64 << 20;

/// What is measured, for the share of the time that each gets.
const MEASUREMENTS: u32 = plain::MEASUREMENTS + ring::MEASUREMENTS;

/// Measures the device of `dir` in a directory of its own in it, which goes at the end.
///
/// # Errors
/// The directory cannot be written, is too full, or takes no direct I/O.
pub fn measure(dir: &Path, budget: Budget) -> io::Result<Vec<Figure>> {
    let bytes = budget.bytes.max(BYTES_MIN);
    let free = ring::free_bytes(dir)?;
    if free < 2 * bytes {
        let text = format!("{free} bytes are free, twice {bytes} are wanted");
        return Err(io::Error::new(io::ErrorKind::StorageFull, text));
    }
    let scratch = Scratch::make(dir)?;
    let slice = budget.time / MEASUREMENTS;
    let file = scratch.path.join("device");
    plain::fill(&file, bytes)?;
    let mut figures = plain::measure(&file, bytes, slice)?;
    figures.extend(ring::measure(&scratch.path, &file, bytes, slice)?);
    Ok(figures)
}

/// A directory that is removed however the measurement ends, but for kill -9.
struct Scratch {
    path: PathBuf,
    signals: signal_hook::iterator::Handle,
}

impl Scratch {
    fn make(dir: &Path) -> io::Result<Scratch> {
        let path = dir.join(format!("highwater-tune-{}", std::process::id()));
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        fs::create_dir(&path)?;
        let handle = signals.handle();
        let scratch = path.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    remove(&scratch);
                    std::process::exit(128 + signal);
                }
            })?;
        Ok(Scratch {
            path,
            signals: handle,
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.signals.close();
        remove(&self.path);
    }
}

fn remove(dir: &Path) {
    match fs::remove_dir_all(dir) {
        // A signal was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // No log is written in this command.
        Err(error) => eprintln!("highwater: {} is left: {error}", dir.display()),
        Ok(()) => {}
    }
}
