//! The device under a directory, by plain system calls of one thread: writes of the load's size
//! into the page cache, past it, and with a flush after each; and long sequential writes and reads
//! past the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Floor, FloorPlan, Most, latency, noise, rate, size, times, without_direct};

/// What O_DIRECT asks of memory, positions and lengths on every device.
pub(super) const BLOCK: usize = 4096;
/// One request of the sequential writes and reads.
pub(super) const STREAM_REQUEST: usize = 1 << 20;
/// A file of a floor grows no longer: it is written from its start again.
const FILE_BYTES_MAX: u64 = 256 << 20;

pub(super) fn measure(plan: &FloorPlan) -> io::Result<Most> {
    let Some(directory) = &plan.directory else {
        return Ok((Vec::new(), None));
    };
    let floors = vec![page_cache(plan, directory)?, flushed(plan, directory)?];
    let what = "the device's floors past the page cache";
    without_direct(floors, what, directory, direct(plan, directory))
}

/// A file that is gone when the floor is measured, or fails to be.
pub(super) struct Scratch {
    pub(super) path: PathBuf,
}

impl Scratch {
    pub(super) fn in_directory(directory: &Path, name: &str) -> Scratch {
        let name = format!(".highwater-floor-{}-{name}", std::process::id());
        Scratch {
            path: directory.join(name),
        }
    }

    fn create(&self, flags: i32) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags)
            .open(&self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Where the next write of `len` goes: behind the last one.
pub(super) fn advance(position: &mut u64, len: usize) -> u64 {
    if *position + len as u64 > FILE_BYTES_MAX {
        *position = 0;
    }
    let at = *position;
    *position += len as u64;
    at
}

fn page_cache(plan: &FloorPlan, directory: &Path) -> io::Result<Floor> {
    let scratch = Scratch::in_directory(directory, "cache");
    let file = scratch.create(0)?;
    let bytes = noise(plan.write_bytes.max(1));
    let mut position = 0;
    let samples = times(plan.share(4), || {
        file.write_all_at(&bytes, advance(&mut position, bytes.len()))
    })?;
    let what = format!("pwrite of {} at the end of a file", size(bytes.len()));
    Ok(latency("page_cache_write", what, &samples))
}

fn flushed(plan: &FloorPlan, directory: &Path) -> io::Result<Floor> {
    let scratch = Scratch::in_directory(directory, "flushed");
    let file = scratch.create(0)?;
    let bytes = noise(plan.write_bytes.max(1));
    let mut position = 0;
    let samples = times(plan.share(17), || {
        file.write_all_at(&bytes, advance(&mut position, bytes.len()))?;
        file.sync_data()
    })?;
    let what = format!(
        "pwrite of {} at the end of a file, and fdatasync",
        size(bytes.len())
    );
    Ok(latency("device_write_flush", what, &samples))
}

fn direct(plan: &FloorPlan, directory: &Path) -> io::Result<Vec<Floor>> {
    let scratch = Scratch::in_directory(directory, "direct");
    let file = scratch.create(libc::O_DIRECT)?;
    let mut buffer = Aligned::noise(STREAM_REQUEST);
    let (mut position, mut end) = (0, 0);
    let streamed = times(plan.share(9), || {
        let at = advance(&mut position, STREAM_REQUEST);
        end = end.max(position);
        file.write_all_at(buffer.bytes(), at)
    })?;
    // What was written is on the device, not in its cache, before it is read.
    file.sync_data()?;
    position = 0;
    let read = times(plan.share(7), || {
        if position + STREAM_REQUEST as u64 > end {
            position = 0;
        }
        let at = position;
        position += STREAM_REQUEST as u64;
        file.read_exact_at(buffer.bytes_mut(), at)
    })?;
    let block = plan.write_bytes.max(1).next_multiple_of(BLOCK);
    let small = Aligned::noise(block);
    position = 0;
    let written = times(plan.share(6), || {
        let mut at = advance(&mut position, block);
        // Over blocks that are there already: the file system has nothing to do.
        if at + block as u64 > end {
            (at, position) = (0, block as u64);
        }
        file.write_all_at(small.bytes(), at)
    })?;
    Ok(vec![
        latency(
            "device_write",
            format!("O_DIRECT pwrite of {} over written blocks", size(block)),
            &written,
        ),
        rate(
            "device_stream_write",
            format!(
                "O_DIRECT writes one after the other, {} each",
                size(STREAM_REQUEST)
            ),
            STREAM_REQUEST,
            &streamed,
        ),
        rate(
            "device_stream_read",
            format!(
                "O_DIRECT reads one after the other, {} each",
                size(STREAM_REQUEST)
            ),
            STREAM_REQUEST,
            &read,
        ),
    ])
}

/// Memory that O_DIRECT takes: a block more than is used, so that it can begin at a block.
struct Aligned {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Aligned {
    fn noise(len: usize) -> Aligned {
        let memory = noise(len + BLOCK);
        let begin = memory.as_ptr().align_offset(BLOCK);
        Aligned { memory, begin, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.len]
    }
}
