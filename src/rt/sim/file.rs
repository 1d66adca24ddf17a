//! An open simulated file, a lock, and aligned memory.
//!
//! Page-cache writes act at once; everything else takes virtual time. A handle of a dead process
//! does nothing.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;

use super::disk::{DiskState, eio};
use super::exec::{Executor, IoDelay};
use super::image::{Image, SECTOR};
use super::tree::Ino;
use super::world::NodeState;
use crate::rt::fs::{AlignedBuf, OpenOptions, ReadBuffer, WRITE_NOW_MAX};

#[derive(Clone)]
pub(crate) struct File {
    handle: Rc<Handle>,
}

struct Handle {
    node: Rc<NodeState>,
    life: u64,
    ino: Ino,
    path: PathBuf,
    options: OpenOptions,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.alive() {
            self.disk().close(self.ino);
        }
    }
}

/// A file by its number, for a range that is sent from it. Unlike a descriptor it does not keep an
/// unlinked file: what reads it then fails, as it does at a file that was cut.
#[derive(Clone)]
pub(crate) struct FileName(Ino);

impl FileName {
    pub(crate) fn read(
        &self,
        executor: &Executor,
        position: u64,
        len: usize,
    ) -> io::Result<Vec<u8>> {
        let disk = &executor.node.disk;
        disk.image_by_number(self.0, |image| image.read(position, len))
    }
}

impl Handle {
    fn alive(&self) -> bool {
        self.node.life.get() == self.life
    }

    fn disk(&self) -> &DiskState {
        &self.node.disk
    }

    async fn delay(&self, low_ns: u64, high_ns: u64) {
        let delay = self.disk().delay_ns(&self.path, low_ns, high_ns);
        IoDelay::new(&self.disk().kernel, delay).await;
    }

    fn writable(&self) -> io::Result<()> {
        if !self.alive() {
            return Err(eio());
        }
        if !self.options.write {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        self.disk().check_write(&self.path)
    }

    fn note(&self, what: u64, value: u64) {
        self.disk().kernel.note(what, self.ino << 32 ^ value);
    }
}

impl File {
    pub(crate) async fn open(
        executor: &Rc<Executor>,
        path: &Path,
        options: OpenOptions,
    ) -> io::Result<File> {
        let node = executor.node.clone();
        let delay = node.disk.delay_ns(path, 10_000, 150_000);
        IoDelay::new(&executor.kernel, delay).await;
        if options.create || options.create_new {
            node.disk.check_write(path)?;
        }
        if (options.create || options.create_new || options.truncate) && !options.write {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let ino = node.disk.open(path, options.create, options.create_new)?;
        let life = executor.life;
        let handle = Handle {
            node,
            life,
            ino,
            path: path.to_owned(),
            options,
        };
        if options.truncate {
            handle.disk().image(ino, |image| image.set_len(0))?;
        }
        handle.note(10, 0);
        Ok(File {
            handle: Rc::new(handle),
        })
    }

    pub(crate) fn write_now(&self, position: u64, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let handle = &self.handle;
        if handle.options.direct {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        handle.writable()?;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        assert!(
            total <= WRITE_NOW_MAX,
            "a write of {total} bytes would block a shard"
        );
        handle.disk().check_room(total as u64)?;
        let mut left = handle.disk().accepted(total);
        handle.note(11, position ^ left as u64);
        let mut at = position;
        for part in parts {
            let piece = &part[..part.len().min(left)];
            handle
                .disk()
                .image(handle.ino, |image| image.write(at, piece))?;
            at += piece.len() as u64;
            left -= piece.len();
        }
        Ok((at - position) as usize)
    }

    /// As on a real ring nothing orders the writes in flight, of one file or of several: each
    /// reaches the disk at a moment of its own, and is told of at another.
    pub(crate) async fn write_aligned_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let handle = &self.handle;
        if !handle.options.direct || !position.is_multiple_of(SECTOR) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        handle.note(12, position);
        let disk = handle.disk();
        let takes = disk.delay_ns(&handle.path, 15_000, 300_000);
        let lands = disk.kernel.between(0, takes);
        let mut landing = Landing {
            handle,
            position,
            bytes,
            landed: false,
        };
        IoDelay::new(&disk.kernel, lands).await;
        let outcome = landing.land();
        IoDelay::new(&disk.kernel, takes - lands).await;
        outcome
    }

    pub(crate) async fn read_at(&self, position: u64, len: usize) -> io::Result<Bytes> {
        let handle = &self.handle;
        handle.delay(5_000, 200_000).await;
        self.read_ready(position, len)
    }

    fn read_ready(&self, position: u64, len: usize) -> io::Result<Bytes> {
        let handle = &self.handle;
        if !handle.alive() {
            return Err(eio());
        }
        if !handle.options.read {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        handle.disk().check_read(&handle.path)?;
        let bytes = handle
            .disk()
            .image(handle.ino, |image| image.read(position, len))?;
        handle.note(13, position ^ bytes.len() as u64);
        Ok(bytes.into())
    }

    pub(crate) async fn read_past_cache(
        &self,
        position: u64,
        mut buffer: ReadBuffer,
        part: Range<usize>,
    ) -> (io::Result<usize>, ReadBuffer) {
        self.handle.delay(40_000, 900_000).await;
        let read = self.read_ready(position, part.len()).map(|bytes| {
            buffer.as_mut_slice()[part.start..][..bytes.len()].copy_from_slice(&bytes);
            bytes.len()
        });
        (read, buffer)
    }

    pub(crate) fn try_read_cached(&self, position: u64, len: usize) -> Option<io::Result<Bytes>> {
        let cold = self.handle.options.direct || self.handle.disk().kernel.one_in(4);
        (!cold).then(|| self.read_ready(position, len))
    }

    /// For a range of the file, unless it happens not to be in memory.
    pub(crate) fn cached_name(&self) -> Option<FileName> {
        let cold = self.handle.options.direct || self.handle.disk().kernel.one_in(4);
        (!cold).then(|| FileName(self.handle.ino))
    }

    /// fsync and fdatasync are the same here: lengths are durable with the data.
    pub(crate) async fn sync(&self) -> io::Result<()> {
        let handle = &self.handle;
        let plan = handle
            .disk()
            .image(handle.ino, |image| image.begin_sync())?;
        handle.delay(60_000, 2_500_000).await;
        if !handle.alive() {
            return Err(eio());
        }
        handle.note(14, 0);
        if let Err(error) = handle.disk().check_sync(&handle.path) {
            let kernel = &handle.disk().kernel;
            handle
                .disk()
                .image(handle.ino, |image| image.fail_sync(&plan, kernel))?;
            return Err(error);
        }
        if handle.disk().lies() {
            return Ok(());
        }
        handle
            .disk()
            .image(handle.ino, |image| image.finish_sync(&plan))
    }

    pub(crate) async fn set_len(&self, len: u64) -> io::Result<()> {
        let handle = &self.handle;
        handle.delay(20_000, 300_000).await;
        handle.writable()?;
        handle.note(15, len);
        handle.disk().image(handle.ino, |image| image.set_len(len))
    }

    pub(crate) async fn preallocate(&self, len: u64, keep_size: bool) -> io::Result<()> {
        let handle = &self.handle;
        handle.delay(20_000, 1_000_000).await;
        handle.writable()?;
        handle.note(16, len);
        handle.disk().image(handle.ino, |image| {
            if !keep_size && image.len() < len {
                image.set_len(len);
            }
        })
    }

    pub(crate) fn len(&self) -> io::Result<u64> {
        self.handle
            .disk()
            .image(self.handle.ino, |image| image.len())
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.handle.options.direct
    }

    pub(crate) fn alignment(&self) -> u64 {
        if self.handle.options.direct {
            SECTOR
        } else {
            1
        }
    }
}

/// A direct write that was submitted.
struct Landing<'a> {
    handle: &'a Handle,
    position: u64,
    bytes: &'a [u8],
    landed: bool,
}

impl Landing<'_> {
    fn land(&mut self) -> io::Result<()> {
        self.landed = true;
        let handle = self.handle;
        let fault = handle.writable();
        match &fault {
            Ok(()) => handle.disk().check_room(self.bytes.len() as u64)?,
            Err(_) if !handle.alive() || !handle.options.write => return fault,
            Err(_) => {}
        }
        let reached = match &fault {
            Ok(()) => self.bytes.len(),
            Err(_) => self.some_sectors(),
        };
        self.reach(reached)?;
        fault
    }

    /// A failed write may have written some of its sectors.
    fn some_sectors(&self) -> usize {
        let sectors = self.bytes.len() as u64 / SECTOR;
        (self.handle.disk().kernel.below(sectors + 1) * SECTOR) as usize
    }

    fn reach(&self, reached: usize) -> io::Result<()> {
        let bytes = &self.bytes[..reached];
        let write = |image: &mut Image| image.write(self.position, bytes);
        self.handle.disk().image(self.handle.ino, write)
    }
}

impl Drop for Landing<'_> {
    /// The process was killed, or the task cancelled, while the write was under way: the device
    /// may still take all of it, some, or nothing.
    fn drop(&mut self) {
        if self.landed || !self.handle.options.write {
            return;
        }
        let reached = match self.handle.disk().kernel.below(3) {
            0 => 0,
            1 => self.some_sectors(),
            _ => self.bytes.len(),
        };
        // The disk is full, or gone with the world.
        if self.handle.disk().check_room(reached as u64).is_ok() {
            let _ = self.reach(reached);
        }
    }
}

/// A held lock of a live process.
pub(crate) struct Lock {
    node: Rc<NodeState>,
    life: u64,
    ino: Ino,
}

impl Lock {
    pub(super) fn take(executor: &Executor, path: &Path) -> io::Result<Lock> {
        let disk = &executor.node.disk;
        let ino = disk.open(path, true, false)?;
        disk.close(ino);
        if !disk.lock(ino) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Lock {
            node: executor.node.clone(),
            life: executor.life,
            ino,
        })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.node.life.get() == self.life {
            self.node.disk.unlock(self.ino);
        }
    }
}

/// Zeroed memory aligned as direct I/O wants it.
pub(crate) struct AlignedVec {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedVec {
    pub(crate) fn zeroed(len: usize) -> AlignedVec {
        let memory = vec![0; len + AlignedBuf::ALIGN];
        let start = memory.as_ptr().align_offset(AlignedBuf::ALIGN);
        AlignedVec { memory, start, len }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
