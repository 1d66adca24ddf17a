//! The raw system calls that std and glommio do not offer. Any thread; each returns at once
//! except where it says so. The only file of the ring body with unsafe code besides the reads of
//! `net` and the descriptors of `file`.

use std::ffi::CString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use smallvec::SmallVec;

use crate::rt::Instant;

/// Most parts of one vectored call (UIO_MAXIOV).
pub(crate) const IOV_MAX: usize = 1024;

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// CLOCK_MONOTONIC, through the vDSO.
pub(crate) fn monotonic() -> Instant {
    let mut spec = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    #[allow(unsafe_code)]
    // SAFETY: `spec` is a valid timespec to write to; the clock id is a constant of the platform.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut spec) };
    assert_eq!(result, 0, "the monotonic clock is part of the platform");
    Instant(spec.tv_sec as u64 * 1_000_000_000 + spec.tv_nsec as u64)
}

/// Makes the calling thread weigh less than others that want its core (setpriority(2) with a
/// thread of Linux). A refusal changes nothing but speed.
pub(crate) fn lower_thread_priority(niceness: i32) {
    #[allow(unsafe_code)]
    // SAFETY: a call without memory; 0 names the calling thread.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
    if result != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(%error, niceness, "thread priority left as it is");
    }
}

/// Some of the machine's cores.
#[derive(Clone, Copy)]
pub(crate) struct Cores(libc::cpu_set_t);

impl Cores {
    /// All but one of them; `None` if that leaves none.
    pub(crate) fn without(&self, core: usize) -> Option<Cores> {
        let mut others = *self;
        #[allow(unsafe_code)]
        // SAFETY: both look at, or change, one bit of the set at most, and check its place.
        let left = unsafe {
            libc::CPU_CLR(core, &mut others.0);
            libc::CPU_COUNT(&others.0)
        };
        (left > 0).then_some(others)
    }
}

/// The cores that the calling thread may use.
pub(crate) fn allowed_cores() -> io::Result<Cores> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    #[allow(unsafe_code)]
    // SAFETY: a valid place for the answer, plain data and initialised (zeroed) in any case.
    let set = unsafe {
        let size = size_of::<libc::cpu_set_t>();
        check(libc::sched_getaffinity(0, size, set.as_mut_ptr()) as isize)?;
        set.assume_init()
    };
    Ok(Cores(set))
}

/// Lets the threads that the kernel runs for the calling thread's rings use `cores`. From a pinned
/// thread they inherit its one core.
///
/// # Errors
/// Kernels before 5.14 have no such call.
pub(crate) fn let_ring_workers_use(cores: &Cores) -> io::Result<()> {
    const REGISTER_IOWQ_AFF: libc::c_uint = 17;
    // The parameters of io_uring_setup(2), all of them 0: as the kernel likes.
    let mut parameters = [0u8; 120];
    #[allow(unsafe_code)]
    // SAFETY: the parameters are as long as the kernel's; the descriptor is new and ours.
    let ring = unsafe {
        let made = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr());
        OwnedFd::from_raw_fd(check(made as isize)? as RawFd)
    };
    #[allow(unsafe_code)]
    // SAFETY: the set is plain memory of the size that is told. Which of a thread's rings is named
    // makes no difference: they share their workers.
    let done = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            REGISTER_IOWQ_AFF,
            &cores.0,
            size_of::<libc::cpu_set_t>(),
        )
    };
    check(done as isize).map(drop)
}

/// pwritev(2): into the page cache for a buffered file.
pub(crate) fn pwritev(
    fd: BorrowedFd<'_>,
    position: u64,
    parts: &[IoSlice<'_>],
) -> io::Result<usize> {
    let position = offset(position)?;
    loop {
        #[allow(unsafe_code)]
        // SAFETY: IoSlice is ABI compatible with iovec (documented by std), the slices are
        // borrowed for the whole call, and the count is the slice's own, at most IOV_MAX.
        let result = check(unsafe {
            libc::pwritev(
                fd.as_raw_fd(),
                parts.as_ptr().cast::<libc::iovec>(),
                parts.len().min(IOV_MAX) as libc::c_int,
                position,
            )
        });
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Whether all of a range is in the page cache (cachestat(2)); `None` if this kernel does not say.
/// To be asked before [`pread_cached`]: that returns without the bytes where they are not in
/// memory, but has started to read them from the device by then, on this thread (some 70 us for
/// 128 KiB; this call takes 2) and into the page cache, where nobody wants them.
pub(crate) fn is_cached(fd: BorrowedFd<'_>, position: u64, len: usize) -> Option<bool> {
    /// The number of the call on every architecture.
    const SYS_CACHESTAT: libc::c_long = 451;
    #[repr(C)]
    struct Range {
        position: u64,
        len: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Pages {
        cached: u64,
        dirty: u64,
        under_writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    if len == 0 {
        return Some(true);
    }
    let range = Range {
        position,
        len: len as u64,
    };
    let mut pages = Pages::default();
    #[allow(unsafe_code)]
    // SAFETY: both structures have the layout the kernel documents and live for the call; the
    // kernel reads the first and writes the second.
    let answer = check(unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            fd.as_raw_fd(),
            &raw const range,
            &raw mut pages,
            0,
        )
    } as isize);
    let page = page_bytes();
    let last = (position + len as u64).div_ceil(page);
    answer.ok().map(|_| pages.cached >= last - position / page)
}

fn page_bytes() -> u64 {
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(|| {
        #[allow(unsafe_code)]
        // SAFETY: a plain question.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(bytes).unwrap_or(4096).max(1)
    })
}

/// preadv2(2) with RWF_NOWAIT: reads what is in the page cache into spare capacity. `WouldBlock`
/// if nothing of it is.
pub(crate) fn pread_cached(
    fd: BorrowedFd<'_>,
    position: u64,
    into: &mut [MaybeUninit<u8>],
) -> io::Result<usize> {
    let position = offset(position)?;
    let part = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    #[allow(unsafe_code)]
    // SAFETY: the iovec covers exactly `into`, exclusively borrowed for the call; the kernel only
    // writes to it.
    check(unsafe { libc::preadv2(fd.as_raw_fd(), &part, 1, position, libc::RWF_NOWAIT) })
}

fn offset(position: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(position).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// sendmsg(2) with MSG_DONTWAIT of as many parts as one call takes and `most` bytes hold, the first
/// one from `skip` on; `more` of the message follows. `WouldBlock` if the socket's buffer is full.
pub(crate) fn send_parts<'a>(
    fd: RawFd,
    parts: impl Iterator<Item = &'a [u8]>,
    skip: usize,
    most: usize,
    more: bool,
) -> io::Result<usize> {
    let mut iov: SmallVec<[libc::iovec; 32]> = SmallVec::new();
    let mut left = most;
    for (index, part) in parts.take(IOV_MAX).enumerate() {
        let part = if index == 0 { &part[skip..] } else { part };
        let part = &part[..part.len().min(left)];
        left -= part.len();
        if !part.is_empty() {
            iov.push(libc::iovec {
                iov_base: part.as_ptr().cast_mut().cast(),
                iov_len: part.len(),
            });
        }
    }
    if iov.is_empty() {
        return Ok(0);
    }
    loop {
        #[allow(unsafe_code)]
        // SAFETY: the header is zeroed plain data; its iovecs point into `parts`, borrowed for the
        // call, and the kernel only reads them; `fd` belongs to a socket the caller keeps open.
        let result = check(unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = iov.as_mut_ptr();
            header.msg_iovlen = iov.len() as _;
            let more = if more { libc::MSG_MORE } else { 0 };
            libc::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more)
        });
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// SO_RCVLOWAT: from how many bytes on a poll of the socket says that it is readable.
pub(crate) fn set_low_water(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    #[allow(unsafe_code)]
    // SAFETY: the value is a valid int for the call, and its size is passed along.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const value).cast(),
            std::mem::size_of::<libc::c_int>() as libc::socklen_t,
        )
    } as isize)
    .map(|_| ())
}

/// sendfile(2) into a socket that does not block; 0 at the end of the file. `WouldBlock` if the
/// socket's buffer is full. Waits for the device where the bytes are not in the page cache. A peer that is gone
/// is an error only because the standard library ignores SIGPIPE.
pub(crate) fn sendfile(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    position: u64,
    len: usize,
) -> io::Result<usize> {
    let mut position = offset(position)?;
    loop {
        #[allow(unsafe_code)]
        // SAFETY: both descriptors are borrowed for the call; the position is a place of ours.
        let result = check(unsafe {
            libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &mut position, len)
        });
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// fallocate(2) from the start of the file. May take long: pool threads only.
pub(crate) fn fallocate(fd: BorrowedFd<'_>, len: u64, keep_size: bool) -> io::Result<()> {
    let mode = if keep_size {
        libc::FALLOC_FL_KEEP_SIZE
    } else {
        0
    };
    let len = offset(len)?;
    #[allow(unsafe_code)]
    // SAFETY: plain integers and a borrowed descriptor.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), mode, 0, len) } as isize).map(|_| ())
}

/// sync_file_range(2), to begin only. Whatever does not speak of the disk speaks of the call: nothing
/// has begun then.
pub(crate) fn begin_write_back(fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<()> {
    let (from, len) = (offset(range.start)?, offset(range.end - range.start)?);
    #[allow(unsafe_code)]
    // SAFETY: plain integers and a borrowed descriptor.
    let done = check(unsafe {
        libc::sync_file_range(fd.as_raw_fd(), from, len, libc::SYNC_FILE_RANGE_WRITE)
    } as isize);
    match done {
        Err(error) => match error.raw_os_error() {
            Some(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Err(error),
            _ => Ok(()),
        },
        Ok(_) => Ok(()),
    }
}

/// Length of an open file in bytes (fstat).
pub(crate) fn file_len(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    #[allow(unsafe_code)]
    // SAFETY: a valid place for the answer, plain data and initialised (zeroed) in any case.
    let stat = unsafe {
        check(libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) as isize)?;
        stat.assume_init()
    };
    Ok(stat.st_size as u64)
}

/// Total and free bytes of the file system of `path` (statvfs). May wait for the disk.
pub(crate) fn space(path: &Path) -> io::Result<(u64, u64)> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::statvfs>::zeroed();
    #[allow(unsafe_code)]
    // SAFETY: a NUL-terminated path and a valid place for the answer, which is plain data and
    // initialised (zeroed) even if the call fails.
    let stat = unsafe {
        check(libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) as isize)?;
        stat.assume_init()
    };
    let unit = stat.f_frsize as u64;
    Ok((stat.f_blocks as u64 * unit, stat.f_bavail as u64 * unit))
}

/// Soft and hard limit of locked memory in bytes; `u64::MAX` is none.
pub(crate) fn memlock_limits() -> (u64, u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    #[allow(unsafe_code)]
    // SAFETY: a valid place for the answer.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    assert_eq!(result, 0, "a process can always read its own limits");
    (limit.rlim_cur, limit.rlim_max)
}

/// Raises the soft limit of locked memory to `wanted`, or as far as the hard limit lets us.
pub(crate) fn raise_memlock(wanted: u64, hard: u64) {
    for (soft, hard) in [(wanted, hard.max(wanted)), (wanted.min(hard), hard)] {
        let limit = libc::rlimit {
            rlim_cur: soft,
            rlim_max: hard,
        };
        #[allow(unsafe_code)]
        // SAFETY: plain data, only read.
        if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } == 0 {
            return;
        }
    }
}

/// Whether this process is exempt from the limit (CAP_IPC_LOCK).
pub(crate) fn may_lock_memory() -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

/// Tears a TCP connection down at once (connect to AF_UNSPEC): sends a reset and drops what was
/// queued.
pub(crate) fn disconnect(fd: BorrowedFd<'_>) {
    #[allow(unsafe_code)]
    // SAFETY: a zeroed sockaddr is valid plain data with family AF_UNSPEC (0); its size is passed
    // along.
    unsafe {
        let nowhere: libc::sockaddr = std::mem::zeroed();
        libc::connect(
            fd.as_raw_fd(),
            &nowhere,
            std::mem::size_of::<libc::sockaddr>() as libc::socklen_t,
        );
    }
}
