//! Files on the ring.
//!
//! Buffered: an own descriptor; page-cache writes and cached reads are plain system calls on the
//! executor (a buffered write through the ring is punted to a kernel worker: 14 microseconds
//! instead of 2.4 for 4 KiB), cold reads and fdatasync go through the ring. Direct: glommio's
//! DmaFile. Opening, truncating and closing happen on pool threads: closing the last descriptor of
//! an unlinked segment frees its blocks, which takes long.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use glommio::io::{BufferedFile, DmaBuffer, DmaFile};

use super::pool::{self, Pool};
use super::{io_error, sys};
use crate::rt::blocking::{blocking_io, blocking_read};
use crate::rt::fs::{AlignedBuf, OpenOptions, ReadBuffer, Sent, WRITE_NOW_MAX};

/// Most bytes of one ring read: what is copied out of the ring's buffer in one go, some 60
/// microseconds with the page faults of fresh memory.
const RING_READ_MAX: usize = 256 << 10;

#[derive(Clone)]
pub(crate) struct File {
    body: Rc<Body>,
}

enum Body {
    Buffered(Buffered),
    Direct(DmaFile),
}

struct Buffered {
    fd: Descriptor,
    /// glommio's view of the same descriptor. Never dropped: it would close it, and it owns
    /// nothing else.
    ring: ManuallyDrop<BufferedFile>,
}

impl Buffered {
    fn new(fd: OwnedFd) -> Buffered {
        #[allow(unsafe_code)]
        // SAFETY: the descriptor is open as long as `fd`, which is dropped after the last use of
        // `ring`; ManuallyDrop keeps glommio from closing it a second time.
        let ring = ManuallyDrop::new(unsafe { BufferedFile::from_raw_fd(fd.as_raw_fd()) });
        Buffered {
            fd: Descriptor(Arc::new(Closing(Some(fd)))),
            ring,
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.fd()
    }
}

/// The open descriptor of a buffered file. Any thread; the last clone closes it, on a pool thread.
#[derive(Clone)]
pub(crate) struct Descriptor(Arc<Closing>);

struct Closing(Option<OwnedFd>);

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            pool::submit(Pool::Disk, Box::new(move || drop(fd)));
        }
    }
}

impl Descriptor {
    fn fd(&self) -> BorrowedFd<'_> {
        let fd = self.0.0.as_ref();
        fd.expect("the descriptor is only taken by Drop").as_fd()
    }

    /// Appends `len` bytes from `position` on, or as many as the file has; false, with any part of
    /// them, if not all of them are in memory.
    pub(crate) fn read_cached(
        &self,
        position: u64,
        len: usize,
        into: &mut BytesMut,
    ) -> io::Result<bool> {
        if sys::is_cached(self.fd(), position, len) == Some(false) {
            return Ok(false);
        }
        into.reserve(len);
        let mut done = 0;
        while done < len {
            let spare = &mut into.spare_capacity_mut()[..len - done];
            match sys::pread_cached(self.fd(), position + done as u64, spare) {
                Ok(0) => break,
                Ok(read) => {
                    #[allow(unsafe_code)]
                    // SAFETY: the kernel has written `read` bytes to the start of the spare
                    // capacity.
                    unsafe {
                        into.advance_mut(read);
                    }
                    done += read;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// What of a range the socket takes at once.
    pub(crate) fn send_cached(
        &self,
        socket: BorrowedFd<'_>,
        position: u64,
        len: usize,
    ) -> io::Result<Sent> {
        if sys::is_cached(self.fd(), position, len) == Some(false) {
            return Ok(Sent::Cold);
        }
        match sys::sendfile(socket, self.fd(), position, len) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => Ok(Sent::Bytes(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Sent::Full),
            Err(error) => Err(error),
        }
    }

    /// Up to `len` bytes from `position`; shorter only at the end of the file. Pool threads only.
    pub(crate) fn read_blocking(&self, position: u64, len: usize) -> io::Result<Bytes> {
        read_blocking(self.fd().try_clone_to_owned()?, position, len)
    }
}

fn read_blocking(fd: OwnedFd, position: u64, len: usize) -> io::Result<Bytes> {
    let mut bytes = vec![0; len];
    let read = read_full(&fd.into(), position, &mut bytes, 1)?;
    bytes.truncate(read);
    Ok(Bytes::from(bytes))
}

impl File {
    pub(crate) async fn open(path: &Path, options: OpenOptions) -> io::Result<File> {
        let body = if options.direct {
            probe_polling(path).await;
            let mut how = glommio::io::OpenOptions::new();
            how.read(options.read)
                .write(options.write)
                .create(options.create)
                .create_new(options.create_new)
                .truncate(options.truncate)
                .mode(0o644);
            Body::Direct(how.dma_open(path).await.map_err(io_error)?)
        } else {
            let path = path.to_owned();
            let file = blocking_io(move || {
                std::fs::OpenOptions::new()
                    .read(options.read)
                    .write(options.write)
                    .create(options.create)
                    .create_new(options.create_new)
                    .truncate(options.truncate)
                    .open(path)
            })
            .await?;
            Body::Buffered(Buffered::new(file.into()))
        };
        Ok(File {
            body: Rc::new(body),
        })
    }

    pub(crate) fn write_now(&self, position: u64, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match &*self.body {
            Body::Buffered(file) => {
                debug_assert!(parts.iter().map(|p| p.len()).sum::<usize>() <= WRITE_NOW_MAX);
                sys::pwritev(file.fd(), position, parts)
            }
            Body::Direct(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    pub(crate) async fn write_dma_at(
        &self,
        position: u64,
        buf: DmaBuf,
    ) -> (io::Result<()>, DmaBuf) {
        let file = match &*self.body {
            Body::Direct(file) => file,
            Body::Buffered(_) => return (Err(io::ErrorKind::InvalidInput.into()), buf),
        };
        if !position.is_multiple_of(file.alignment()) {
            return (Err(io::ErrorKind::InvalidInput.into()), buf);
        }
        let shared = Rc::new(buf.0);
        let len = shared.len();
        let result = match file.write_rc_at(shared.clone(), position).await {
            Ok(written) if written == len => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => Err(io_error(error)),
        };
        let buf = match Rc::try_unwrap(shared) {
            Ok(buf) => DmaBuf(buf),
            // glommio still holds its share: leave that one to it.
            Err(shared) => DmaBuf::copy_of(&shared),
        };
        (result, buf)
    }

    pub(crate) async fn read_at(&self, position: u64, len: usize) -> io::Result<Bytes> {
        let mut out = BytesMut::new();
        while out.len() < len {
            let at = position + out.len() as u64;
            let want = (len - out.len()).min(RING_READ_MAX);
            let piece = match &*self.body {
                Body::Buffered(file) => file.ring.read_at(at, want).await,
                Body::Direct(file) => file.read_at(at, want).await,
            }
            .map_err(io_error)?;
            if piece.is_empty() {
                break;
            }
            // Grows by what has been read, never by what was asked for.
            out.put_slice(&piece);
        }
        Ok(out.freeze())
    }

    pub(crate) async fn read_past_cache(
        &self,
        position: u64,
        mut buffer: ReadBuffer,
        part: Range<usize>,
    ) -> (io::Result<usize>, ReadBuffer) {
        let fd = match self.pool_fd() {
            Ok(fd) => fd,
            Err(error) => return (Err(error), buffer),
        };
        blocking_read(move || {
            let read = read_past_cache(fd, position, &mut buffer.as_mut_slice()[part]);
            (read, buffer)
        })
        .await
    }

    pub(crate) async fn read_beside(&self, position: u64, len: usize) -> io::Result<Bytes> {
        let fd = self.pool_fd()?;
        blocking_read(move || read_blocking(fd, position, len)).await
    }

    pub(crate) async fn write_beside(&self, position: u64, bytes: Bytes) -> io::Result<()> {
        let file = std::fs::File::from(self.pool_fd()?);
        blocking_read(move || file.write_all_at(&bytes, position)).await
    }

    pub(crate) fn try_read_cached(&self, position: u64, len: usize) -> Option<io::Result<Bytes>> {
        let file = match &*self.body {
            Body::Buffered(file) => file,
            Body::Direct(_) => return None,
        };
        let mut out = BytesMut::new();
        match file.fd.read_cached(position, len, &mut out) {
            Ok(true) => Some(Ok(out.freeze())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// For a range of the file; `None` for a direct one.
    pub(crate) fn descriptor(&self) -> Option<Descriptor> {
        match &*self.body {
            Body::Buffered(file) => Some(file.fd.clone()),
            Body::Direct(_) => None,
        }
    }

    /// Whether all of a range is in memory; false also where the kernel does not tell.
    pub(crate) fn is_cached(&self, position: u64, len: usize) -> bool {
        sys::is_cached(self.fd(), position, len) == Some(true)
    }

    pub(crate) fn begin_write_back(&self, range: Range<u64>) -> io::Result<()> {
        match &*self.body {
            Body::Buffered(file) => sys::begin_write_back(file.fd(), range),
            Body::Direct(_) => Ok(()),
        }
    }

    pub(crate) async fn sync_data(&self) -> io::Result<()> {
        match &*self.body {
            Body::Buffered(file) => file.ring.fdatasync().await,
            Body::Direct(file) => file.fdatasync().await,
        }
        .map_err(io_error)
    }

    pub(crate) async fn sync_all(&self) -> io::Result<()> {
        let fd = self.pool_fd()?;
        blocking_io(move || std::fs::File::from(fd).sync_all()).await
    }

    pub(crate) async fn set_len(&self, len: u64) -> io::Result<()> {
        let fd = self.pool_fd()?;
        blocking_io(move || std::fs::File::from(fd).set_len(len)).await
    }

    pub(crate) async fn preallocate(&self, len: u64, keep_size: bool) -> io::Result<()> {
        let fd = self.pool_fd()?;
        blocking_io(move || sys::fallocate(fd.as_fd(), len, keep_size)).await
    }

    /// A descriptor of its own for a pool thread, which may outlive this file.
    fn pool_fd(&self) -> io::Result<OwnedFd> {
        self.fd().try_clone_to_owned()
    }

    #[allow(unsafe_code)]
    fn fd(&self) -> BorrowedFd<'_> {
        match &*self.body {
            Body::Buffered(file) => file.fd(),
            // SAFETY: the DmaFile owns the descriptor and lives as long as `self`.
            Body::Direct(file) => unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) },
        }
    }

    pub(crate) fn len(&self) -> io::Result<u64> {
        sys::file_len(self.fd())
    }

    pub(crate) fn is_direct(&self) -> bool {
        matches!(&*self.body, Body::Direct(_))
    }

    pub(crate) fn alignment(&self) -> u64 {
        match &*self.body {
            Body::Buffered(_) => 1,
            Body::Direct(file) => file.alignment(),
        }
    }
}

/// Reads from the device into aligned memory. Pool threads only.
///
/// By O_DIRECT, on a descriptor opened for this one read (some 10 microseconds of the 700 that
/// 1 MiB takes), so that a thousand segments read once hold no second descriptor each. Chosen by
/// measurement, 1 MiB a read: O_DIRECT 90 us of CPU each and no page in the cache; a buffered read
/// 220 us, with all of the pages left there and 8 MiB more read ahead by the kernel;
/// `posix_fadvise(DONTNEED)` behind the reader drops what the kernel read ahead as well, which is
/// then read again: a fifth of the speed. The kernel keeps O_DIRECT reads and the page cache
/// coherent: dirty pages of the range are written first.
fn read_past_cache(fd: OwnedFd, position: u64, into: &mut [u8]) -> io::Result<usize> {
    // The name of the descriptor, not of the file: that may be another file's by now.
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let direct = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(name)
        .and_then(|file| read_full(&file, position, into, AlignedBuf::ALIGN));
    match direct {
        Ok(read) => Ok(read),
        Err(error) if is_refusal(&error) => read_full(&std::fs::File::from(fd), position, into, 1),
        Err(error) => Err(error),
    }
}

/// No O_DIRECT on this file system, or no way to open the file once more.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput
            | io::ErrorKind::Unsupported
            | io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
    )
}

/// Fills `into` or reads up to the end of the file, which is where a read ends out of step.
fn read_full(
    file: &std::fs::File,
    position: u64,
    into: &mut [u8],
    step: usize,
) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() && done.is_multiple_of(step) {
        match file.read_at(&mut into[done..], position + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Lets glommio find out whether the device of `path` can be polled for completions, with a file
/// fit for the question. It asks once per device, by a read of the first file it opens: from an
/// empty or merely preallocated file that succeeds without reaching the device, and from then on
/// every direct write to the device fails with `Unsupported`.
async fn probe_polling(path: &Path) {
    static PROBED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
    let parent = super::path::parent(path).to_owned();
    let sample = blocking_io(move || -> io::Result<Option<std::fs::File>> {
        let device = std::fs::metadata(&parent)?.dev();
        if PROBED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&device)
        {
            return Ok(None);
        }
        // Without a name: nothing to clean up, whatever happens.
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(&parent)?;
        file.write_all_at(&[1; 8192], 0)?;
        file.sync_all()?;
        Ok(Some(file))
    })
    .await;
    match sample {
        Ok(Some(sample)) => {
            let path = format!("/proc/self/fd/{}", sample.as_raw_fd());
            match glommio::io::OpenOptions::new()
                .read(true)
                .dma_open(path)
                .await
            {
                Ok(file) => {
                    if let Ok(meta) = sample.metadata() {
                        let mut probed = PROBED.lock().unwrap_or_else(PoisonError::into_inner);
                        probed.insert(meta.dev());
                    }
                    drop(file.close().await);
                }
                Err(error) => tracing::warn!(%error, "could not test direct I/O"),
            }
        }
        Ok(None) => {}
        // The open that follows reports what is wrong, if anything.
        Err(error) => tracing::debug!(%error, "could not make a file to test direct I/O"),
    }
}

/// Memory of the ring's registered area, or plain aligned memory when that is used up.
pub(crate) struct DmaBuf(DmaBuffer);

impl DmaBuf {
    pub(crate) fn zeroed(len: usize) -> DmaBuf {
        let mut buf = DmaBuf::unset(len);
        buf.as_mut_slice().fill(0);
        buf
    }

    /// With whatever the memory held; the caller fills all of it.
    pub(crate) fn unset(len: usize) -> DmaBuf {
        DmaBuf(glommio::allocate_dma_buffer(len))
    }

    fn copy_of(other: &DmaBuffer) -> DmaBuf {
        let mut buf = glommio::allocate_dma_buffer(other.len());
        buf.as_bytes_mut().copy_from_slice(other.as_bytes());
        DmaBuf(buf)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        self.0.as_bytes_mut()
    }
}
