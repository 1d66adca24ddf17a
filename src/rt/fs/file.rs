//! An open file.
//!
//! Any executor; it stays on the one that opened it. Clones are the same descriptor. Positions
//! are always given by the caller: there is no cursor and no append mode.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

use super::aligned::{AlignedBody, AlignedBuf};
use super::range::{FileRange, RangeFile};
use super::read_buffer::ReadBuffer;
use super::under_way::UnderWay;
use crate::rt::current::{Current, current};
use crate::rt::{ring, sim};

/// Most bytes one [`File::write_now`] takes. A page-cache write of 1 MiB keeps the executor for
/// about 230 microseconds; more would delay every other connection of the shard.
pub const WRITE_NOW_MAX: usize = 1 << 20;

/// How to open a file. Without `write` it must exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    pub read: bool,
    pub write: bool,
    /// Create it if it is missing.
    pub create: bool,
    /// Create it, and fail if it exists.
    pub create_new: bool,
    /// Cut it to length 0.
    pub truncate: bool,
    /// O_DIRECT: past the page cache. Writes then take [`AlignedBuf`]s at aligned positions.
    pub direct: bool,
}

impl OpenOptions {
    /// An existing file, for reading.
    pub const READ: OpenOptions = OpenOptions {
        read: true,
        write: false,
        create: false,
        create_new: false,
        truncate: false,
        direct: false,
    };
    /// An existing file, for reading and writing.
    pub const READ_WRITE: OpenOptions = OpenOptions {
        write: true,
        ..OpenOptions::READ
    };
    /// For reading and writing, made if missing.
    pub const CREATE: OpenOptions = OpenOptions {
        create: true,
        ..OpenOptions::READ_WRITE
    };
    /// For reading and writing, must be new.
    pub const CREATE_NEW: OpenOptions = OpenOptions {
        create_new: true,
        ..OpenOptions::READ_WRITE
    };

    pub const fn direct(self) -> OpenOptions {
        OpenOptions {
            direct: true,
            ..self
        }
    }

    pub const fn truncate(self) -> OpenOptions {
        OpenOptions {
            truncate: true,
            ..self
        }
    }
}

/// An open file; clones share it, the last one closes it (off the executor).
#[derive(Clone)]
pub struct File(FileBody);

#[derive(Clone)]
enum FileBody {
    Ring(ring::file::File),
    Sim(sim::File),
}

impl File {
    pub async fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<File> {
        match current() {
            Current::Ring(_) => ring::file::File::open(path.as_ref(), options)
                .await
                .map(|file| File(FileBody::Ring(file))),
            Current::Sim(executor) => sim::File::open(&executor, path.as_ref(), options)
                .await
                .map(|file| File(FileBody::Sim(file))),
        }
    }

    /// Writes into the page cache on the spot, at most [`WRITE_NOW_MAX`] bytes. Buffered files
    /// only. Returns the number of bytes written, which may be short.
    ///
    /// # Errors
    /// `InvalidInput` on a direct file, otherwise the kernel's.
    pub fn write_now(&self, position: u64, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.0 {
            FileBody::Ring(file) => file.write_now(position, parts),
            FileBody::Sim(file) => file.write_now(position, parts),
        }
    }

    /// Writes all `parts` one after the other from `position` on, into the page cache, letting
    /// other tasks run after every [`WRITE_NOW_MAX`]. Buffered files only.
    pub async fn write_all_at(&self, position: u64, parts: Vec<Bytes>) -> io::Result<()> {
        let _counted = UnderWay::begin();
        let mut position = position;
        let mut rest = parts;
        rest.reverse();
        let mut since_yield = 0;
        while !rest.is_empty() {
            let mut slices: smallvec::SmallVec<[IoSlice<'_>; 16]> = smallvec::SmallVec::new();
            let mut planned = 0;
            for part in rest.iter().rev().take(ring::sys::IOV_MAX) {
                let room = WRITE_NOW_MAX - planned;
                let piece = &part[..part.len().min(room)];
                planned += piece.len();
                slices.push(IoSlice::new(piece));
                if planned == WRITE_NOW_MAX {
                    break;
                }
            }
            let mut written = self.write_now(position, &slices)?;
            drop(slices);
            if written == 0 && planned > 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            position += written as u64;
            since_yield += written;
            while let Some(part) = rest.last_mut() {
                if part.len() > written {
                    bytes::Buf::advance(part, written);
                    break;
                }
                written -= part.len();
                rest.pop();
            }
            if since_yield >= WRITE_NOW_MAX && !rest.is_empty() {
                since_yield = 0;
                crate::rt::yield_now().await;
            }
        }
        Ok(())
    }

    /// Writes the whole of `buf` at `position`, a multiple of [`File::alignment`]. Direct files
    /// only. The buffer belongs to the kernel until the write has ended and comes back then.
    pub async fn write_aligned_at(
        &self,
        position: u64,
        buf: AlignedBuf,
    ) -> (io::Result<()>, AlignedBuf) {
        let _counted = UnderWay::begin();
        match (&self.0, buf.0) {
            (FileBody::Ring(file), AlignedBody::Ring(buf)) => {
                let (result, buf) = file.write_dma_at(position, buf).await;
                (result, AlignedBuf(AlignedBody::Ring(buf)))
            }
            (FileBody::Sim(file), AlignedBody::Sim(buf)) => {
                let result = file.write_aligned_at(position, buf.as_slice()).await;
                (result, AlignedBuf(AlignedBody::Sim(buf)))
            }
            // A buffer made on another executor.
            (_, buf) => (Err(io::ErrorKind::InvalidInput.into()), AlignedBuf(buf)),
        }
    }

    /// Up to `len` bytes from `position`; shorter only at the end of the file. Any position, also
    /// on direct files.
    pub async fn read_at(&self, position: u64, len: usize) -> io::Result<Bytes> {
        let _counted = UnderWay::begin();
        match &self.0 {
            FileBody::Ring(file) => file.read_at(position, len).await,
            FileBody::Sim(file) => file.read_at(position, len).await,
        }
    }

    /// [`File::read_at`] on a thread beside the executor, which then neither waits nor copies: for
    /// whoever works through a file behind those who wait. Buffered files only.
    pub async fn read_beside(&self, position: u64, len: usize) -> io::Result<Bytes> {
        let _counted = UnderWay::begin();
        match &self.0 {
            FileBody::Ring(file) => file.read_beside(position, len).await,
            FileBody::Sim(file) => file.read_at(position, len).await,
        }
    }

    /// [`File::write_all_at`] on a thread beside the executor, see [`File::read_beside`].
    pub async fn write_beside(&self, position: u64, bytes: Bytes) -> io::Result<()> {
        let _counted = UnderWay::begin();
        match &self.0 {
            FileBody::Ring(file) => file.write_beside(position, bytes).await,
            FileBody::Sim(_) => self.write_all_at(position, vec![bytes]).await,
        }
    }

    /// What [`File::read_at`] would give, if it is in memory; `None` if the disk is needed (or the
    /// file is direct). Runs on the spot: 128 KiB take some 30 microseconds.
    pub fn try_read_cached(&self, position: u64, len: usize) -> Option<io::Result<Bytes>> {
        match &self.0 {
            FileBody::Ring(file) => file.try_read_cached(position, len),
            FileBody::Sim(file) => file.try_read_cached(position, len),
        }
    }

    /// A range of the file to be sent from the page cache; `None` if it is not all there now, or
    /// nobody can tell.
    pub fn cached_range(&self, position: u64, len: usize) -> Option<FileRange> {
        let file = match &self.0 {
            FileBody::Ring(file) if file.is_cached(position, len) => {
                RangeFile::Ring(file.descriptor()?)
            }
            FileBody::Ring(_) => return None,
            FileBody::Sim(file) => RangeFile::Sim(file.cached_name()?),
        };
        Some(FileRange::new(file, position, len))
    }

    /// Fills `part` of `buffer` from `position` on, in one request, past the page cache where the
    /// file system can do that (O_DIRECT), so that a walk through old data neither takes the place
    /// of what is read again nor is copied. Returns the bytes read; fewer than asked for only at
    /// the end of the file. Takes a thread of its own kind: few of these reads are at the device at
    /// once.
    ///
    /// # Errors
    /// `InvalidInput` for a position or part that is no multiple of [`AlignedBuf::ALIGN`] or not in
    /// the buffer, otherwise the kernel's.
    pub async fn read_past_cache(
        &self,
        position: u64,
        buffer: ReadBuffer,
        part: Range<usize>,
    ) -> (io::Result<usize>, ReadBuffer) {
        let _counted = UnderWay::begin();
        let aligned = position.is_multiple_of(AlignedBuf::ALIGN as u64)
            && part.start.is_multiple_of(AlignedBuf::ALIGN);
        if !aligned || part.start > part.end || part.end > buffer.len() {
            return (Err(io::ErrorKind::InvalidInput.into()), buffer);
        }
        match &self.0 {
            FileBody::Ring(file) => file.read_past_cache(position, buffer, part).await,
            FileBody::Sim(file) => file.read_past_cache(position, buffer, part).await,
        }
    }

    /// Has the kernel begin to write back what lies in the page cache for `range`, and does not wait
    /// for it: a [`File::sync_data`] behind it, which a thread of the kernel has to be woken for, then
    /// finds the device at work. Only for blocks that were on the device before: writing others back
    /// may have to wait, here, for the file system's journal.
    ///
    /// # Errors
    /// What could not be written may count as clean from now on: no later flush of it can be believed.
    pub fn begin_write_back(&self, range: Range<u64>) -> io::Result<()> {
        match &self.0 {
            FileBody::Ring(file) => file.begin_write_back(range),
            // Its pages go to the device when they like, anyway.
            FileBody::Sim(_) => Ok(()),
        }
    }

    /// Returns when everything written before this call, and the length that reaching it needs,
    /// is on the device (fdatasync).
    pub async fn sync_data(&self) -> io::Result<()> {
        let _counted = UnderWay::begin();
        match &self.0 {
            FileBody::Ring(file) => file.sync_data().await,
            FileBody::Sim(file) => file.sync().await,
        }
    }

    /// [`File::sync_data`] and all metadata (fsync).
    pub async fn sync_all(&self) -> io::Result<()> {
        let _counted = UnderWay::begin();
        match &self.0 {
            FileBody::Ring(file) => file.sync_all().await,
            FileBody::Sim(file) => file.sync().await,
        }
    }

    /// Cuts or extends (with zeros) to `len` bytes.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.0 {
            FileBody::Ring(file) => file.set_len(len).await,
            FileBody::Sim(file) => file.set_len(len).await,
        }
    }

    /// Reserves blocks for the first `len` bytes; with `keep_size` the length stays as it is.
    pub async fn preallocate(&self, len: u64, keep_size: bool) -> io::Result<()> {
        match &self.0 {
            FileBody::Ring(file) => file.preallocate(len, keep_size).await,
            FileBody::Sim(file) => file.preallocate(len, keep_size).await,
        }
    }

    /// Length in bytes, asked of the descriptor.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> io::Result<u64> {
        match &self.0 {
            FileBody::Ring(file) => file.len(),
            FileBody::Sim(file) => file.len(),
        }
    }

    pub fn is_direct(&self) -> bool {
        match &self.0 {
            FileBody::Ring(file) => file.is_direct(),
            FileBody::Sim(file) => file.is_direct(),
        }
    }

    /// What positions and lengths of direct writes must be multiples of; 1 for buffered files.
    pub fn alignment(&self) -> u64 {
        match &self.0 {
            FileBody::Ring(file) => file.alignment(),
            FileBody::Sim(file) => file.alignment(),
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("direct", &self.is_direct())
            .finish()
    }
}
