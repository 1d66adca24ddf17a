//! Measuring with system calls of the calling thread: what the device does without any of ours.
//! Main thread only.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::rt::fs::ReadBuffer;

use super::figure::{Figure, Turn, Way, What};

/// What is done at which size.
const PLAN: [(What, u64); 9] = [
    (What::Write, 4 << 10),
    (What::Write, 64 << 10),
    (What::Write, 1 << 20),
    (What::WriteFlush, 4 << 10),
    (What::WriteFlush, 64 << 10),
    (What::WriteDsync, 4 << 10),
    (What::WriteDsync, 64 << 10),
    (What::Read, 64 << 10),
    (What::Read, 1 << 20),
];

pub(super) const MEASUREMENTS: u32 = PLAN.len() as u32;

/// How often everything is measured.
pub(super) const TURNS: u32 = 5;

/// Operations of one turn at most: enough for any percentile that is told.
pub(super) const OPERATIONS_MAX: usize = 20_000;

const FILL_BYTES: usize = 1 << 20;

fn open(file: &Path, flags: i32) -> io::Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT | flags)
        .open(file);
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => {
            let text =
                "the file system takes no direct I/O (O_DIRECT): there is no device to measure";
            io::Error::new(io::ErrorKind::Unsupported, text)
        }
        _ => error,
    })
}

/// A buffer that no device takes for zeros.
pub(super) fn noise(len: usize) -> ReadBuffer {
    let mut buffer = ReadBuffer::lone(len);
    let mut rng = fastrand::Rng::with_seed(7);
    rng.fill(buffer.as_mut_slice());
    buffer
}

/// Makes the file with all its blocks written, so that no measurement allocates any.
pub(super) fn fill(file: &Path, bytes: u64) -> io::Result<()> {
    let file = open(file, 0)?;
    let buffer = noise(FILL_BYTES);
    let mut at = 0;
    while at < bytes {
        file.write_all_at(buffer.as_ref(), at)?;
        at += FILL_BYTES as u64;
    }
    file.sync_all()
}

pub(super) fn measure(path: &Path, bytes: u64, slice: Duration) -> io::Result<Vec<Figure>> {
    let mut turns = vec![Vec::new(); PLAN.len()];
    for _ in 0..TURNS {
        for ((what, size), turns) in PLAN.iter().zip(&mut turns) {
            turns.push(turn(path, bytes, *what, *size, slice / TURNS)?);
        }
    }
    let figures = PLAN.iter().zip(&turns);
    let figures =
        figures.map(|((what, size), turns)| Figure::of(*what, Way::Plain, *size, 1, turns));
    Ok(figures.collect())
}

fn turn(path: &Path, bytes: u64, what: What, size: u64, slice: Duration) -> io::Result<Turn> {
    let flags = match what {
        What::WriteDsync => libc::O_DSYNC,
        _ => 0,
    };
    let file = open(path, flags)?;
    let mut buffer = noise(size as usize);
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut at = 0;
    loop {
        let start = Instant::now();
        match what {
            What::Read => file.read_exact_at(buffer.as_mut_slice(), at)?,
            What::WriteFlush => {
                file.write_all_at(buffer.as_ref(), at)?;
                file.sync_data()?;
            }
            _ => file.write_all_at(buffer.as_ref(), at)?,
        }
        times.push(start.elapsed());
        at = (at + size) % (bytes - bytes % size);
        if begun.elapsed() >= slice || times.len() >= OPERATIONS_MAX {
            break;
        }
    }
    let took = begun.elapsed();
    Ok(Turn { times, took })
}
