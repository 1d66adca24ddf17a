//! A range of an open file that is sent from where it lies.
//!
//! Any thread: it travels to the shard of the connection with the answer, and keeps the file open,
//! also one that was unlinked. It never holds the bytes: they go from the page cache to the socket
//! ([`crate::rt::net::WriteHalf::write_all`]) as it takes them, so a slow client holds no memory.
//! What is cut off the file meanwhile ends the connection: to be used for what is never cut.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use bytes::{Bytes, BytesMut};

use crate::rt::blocking::blocking_read;
use crate::rt::current::{Current, current};
use crate::rt::{ring, sim};

/// Bytes of a file by position and length.
#[derive(Clone)]
pub struct FileRange {
    file: RangeFile,
    position: u64,
    len: usize,
}

#[derive(Clone)]
pub(super) enum RangeFile {
    Ring(ring::file::Descriptor),
    Sim(sim::FileName),
}

/// What came of handing a part of a range to a socket.
pub(crate) enum Sent {
    Bytes(usize),
    /// The socket takes nothing now.
    Full,
    /// The bytes are not in memory any more.
    Cold,
}

impl FileRange {
    pub(super) fn new(file: RangeFile, position: u64, len: usize) -> FileRange {
        FileRange {
            file,
            position,
            len,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Hands up to `len` bytes from `skip` on to a real socket, if they are in memory.
    ///
    /// # Errors
    /// As [`FileRange::read_cached`].
    pub(crate) fn send_cached(
        &self,
        socket: BorrowedFd<'_>,
        skip: usize,
        len: usize,
    ) -> io::Result<Sent> {
        let len = len.min(self.len - skip);
        match &self.file {
            RangeFile::Ring(file) => file.send_cached(socket, self.position + skip as u64, len),
            RangeFile::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// On a real disk, replaces what `into` holds by as many bytes from `skip` on as it
    /// has room for, if they are in memory; false if not.
    ///
    /// # Errors
    /// `UnexpectedEof` where the file ends before the range does, otherwise the kernel's.
    pub(crate) fn read_cached(&self, skip: usize, into: &mut BytesMut) -> io::Result<bool> {
        let len = (self.len - skip).min(into.capacity());
        let at = self.position + skip as u64;
        into.clear();
        match &self.file {
            RangeFile::Ring(file) => {
                if !file.read_cached(at, len, into)? {
                    return Ok(false);
                }
            }
            RangeFile::Sim(_) => return Err(io::ErrorKind::Unsupported.into()),
        }
        if into.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(true)
    }

    /// `len` bytes from `skip` on, from the device: on a thread that may wait for it.
    ///
    /// # Errors
    /// As [`FileRange::read_cached`].
    pub(crate) async fn read_cold(&self, skip: usize, len: usize) -> io::Result<Bytes> {
        let len = len.min(self.len - skip);
        let at = self.position + skip as u64;
        let bytes = match &self.file {
            RangeFile::Ring(file) => {
                let file = file.clone();
                blocking_read(move || file.read_blocking(at, len)).await?
            }
            RangeFile::Sim(file) => match current() {
                Current::Sim(executor) => file.read(&executor, at, len)?.into(),
                Current::Ring(_) => return Err(io::ErrorKind::Unsupported.into()),
            },
        };
        if bytes.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileRange({} from {})", self.len, self.position)
    }
}
