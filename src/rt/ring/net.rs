//! TCP on the ring.
//!
//! Reading: glommio's own path is the cheapest there is with it: recv straight into the caller's
//! buffer, and after a read that did not fill it the next readiness poll is queued at once, so a
//! request-response connection pays one recv and one POLL_ADD a turn and no failed recv. Writing:
//! raw sendmsg of all parts without waiting; only when the socket is full a piece of the rest
//! goes through glommio, which knows how to wait for room.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use futures_lite::{AsyncRead, AsyncWrite};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{Executor, io_error, schedule, sys};
use crate::rt::fs::{FileRange, Sent};
use crate::rt::net::{ACCEPT_QUEUE_MAX, Piece};
use crate::rt::sync::queue;
use crate::rt::task::prepare;
use crate::rt::turn::{STEP_BYTES, turn};

/// Connections the kernel keeps for us beyond [`ACCEPT_QUEUE_MAX`].
const BACKLOG: i32 = 1024;
/// Pause of the accept task after an error such as "too many open files": it would only repeat.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// What is written through glommio to wait for room in the socket; small, because it is copied
/// by a call of its own.
const WAIT_PIECE_MAX: usize = 1024;
/// A message of which less is missing is read as it comes; of a larger one the reader is woken for
/// this much at most. Woken for every segment of loopback (64 KiB) it would spend more time on waking
/// than on reading.
const LOW_WATER_MIN: usize = 64 << 10;
const LOW_WATER_MAX: usize = 256 << 10;
/// What one step of a range moves at most, some 100 microseconds.
const RANGE_STEP_BYTES: usize = 512 << 10;

pub(crate) struct Listener {
    local: SocketAddr,
    accepted: queue::Receiver<io::Result<(Stream, SocketAddr)>>,
    /// The accept task's socket; shut down on drop.
    socket: Socket,
}

impl Listener {
    pub(crate) fn bind(executor: &Executor, addr: SocketAddr) -> io::Result<Listener> {
        let socket = new_socket(addr)?;
        socket.set_reuse_address(true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        // Without SO_REUSEPORT up to and including listen: of two brokers that start at the same
        // moment exactly one gets through. Set afterwards it lets our other shards join.
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        socket.set_reuse_port(true)?;
        Listener::start(executor, socket)
    }

    pub(crate) fn bind_shared(executor: &Executor, addr: SocketAddr) -> io::Result<Listener> {
        let socket = new_socket(addr)?;
        socket.set_reuse_address(true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_port(true)?;
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        Listener::start(executor, socket)
    }

    fn start(executor: &Executor, socket: Socket) -> io::Result<Listener> {
        let local = socket
            .local_addr()?
            .as_socket()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let (sender, accepted) = queue::bounded(ACCEPT_QUEUE_MAX);
        let keep = socket.try_clone()?;
        let fd = OwnedFd::from(socket).into_raw_fd();
        #[allow(unsafe_code)]
        // SAFETY: the descriptor was just released by its owner; the listener owns it from here.
        let listener = unsafe { glommio::net::TcpListener::from_raw_fd(fd) };
        let (task, body) = prepare(&executor.register, accept_all(listener, sender));
        schedule(body);
        drop(task);
        Ok(Listener {
            local,
            accepted,
            socket: keep,
        })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(crate) async fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        match self.accepted.recv().await {
            Some(result) => result,
            // The accept task only ends with its executor.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Ends the pending accept with an error. Cancelling it instead could lose a connection
        // that was just being accepted, and leak its descriptor.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn new_socket(addr: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))
}

/// The one task that accepts: never raced, never cancelled while the executor lives.
async fn accept_all(
    listener: glommio::net::TcpListener,
    accepted: queue::Sender<io::Result<(Stream, SocketAddr)>>,
) {
    while !accepted.is_closed() {
        let result = match listener.shared_accept().await {
            Ok(raw) => Stream::new(raw.bind_to_executor()).map(|stream| {
                let peer = stream.peer_addr();
                (stream, peer)
            }),
            Err(error) => Err(io_error(error)),
        };
        if accepted.is_closed() {
            return;
        }
        match result {
            // The peer gave up between the handshake and us.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::NotConnected
                        | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => {
                let _ = accepted.send(Err(error)).await;
                super::sleep(ACCEPT_RETRY).await;
            }
            Ok(connection) => {
                let _ = accepted.send(Ok(connection)).await;
            }
        }
    }
}

pub(crate) struct Stream {
    shared: Rc<Shared>,
}

/// Both halves' socket. Borrowed only inside polls, so the halves never meet in it.
struct Shared {
    stream: RefCell<glommio::net::TcpStream>,
    fd: RawFd,
    peer: SocketAddr,
    /// Another executor goes on with the connection.
    handed_over: Cell<bool>,
}

/// The socket of a connection between two executors.
#[derive(Debug)]
pub(crate) struct Handover(OwnedFd);

impl Shared {
    #[allow(unsafe_code)]
    fn borrow_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `stream` owns the descriptor and lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.handed_over.get() {
            return;
        }
        // A pending readiness poll holds the socket open in the kernel: without this the peer
        // would see the end of the stream only after the poll is cancelled.
        let _ = SockRef::from(&self.borrow_fd()).shutdown(Shutdown::Both);
    }
}

impl Stream {
    fn new(stream: glommio::net::TcpStream) -> io::Result<Stream> {
        stream.set_nodelay(true).map_err(io_error)?;
        let peer = stream.peer_addr().map_err(io_error)?;
        let fd = stream.as_raw_fd();
        #[allow(unsafe_code)]
        // SAFETY: `stream` owns the descriptor and is alive.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        // A peer whose host vanished is noticed some day, also without a request.
        SockRef::from(&borrowed).set_keepalive(true)?;
        // sendfile(2) takes no flag for it; glommio waits by polls either way.
        SockRef::from(&borrowed).set_nonblocking(true)?;
        Ok(Stream {
            shared: Rc::new(Shared {
                stream: RefCell::new(stream),
                fd,
                peer,
                handed_over: Cell::new(false),
            }),
        })
    }

    pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Stream> {
        let stream = glommio::net::TcpStream::connect(addr)
            .await
            .map_err(io_error)?;
        Stream::new(stream)
    }

    /// By a second descriptor: the first one stays with glommio, which closes it once the readiness
    /// poll that it may have queued on it is cancelled.
    pub(crate) fn hand_over(mut read: ReadHalf, write: WriteHalf) -> io::Result<Handover> {
        read.wake_at(1)?;
        let fd = write.shared.borrow_fd().try_clone_to_owned()?;
        read.shared.handed_over.set(true);
        Ok(Handover(fd))
    }

    pub(crate) fn take_over(handover: Handover) -> io::Result<Stream> {
        let fd = handover.0.into_raw_fd();
        #[allow(unsafe_code)]
        // SAFETY: the descriptor was just released by its owner; the stream owns it from here.
        Stream::new(unsafe { glommio::net::TcpStream::from_raw_fd(fd) })
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.shared.peer
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        SockRef::from(&self.shared.borrow_fd())
            .local_addr()
            .ok()
            .and_then(|addr| addr.as_socket())
            .unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    pub(crate) fn split(self) -> (ReadHalf, WriteHalf) {
        (
            ReadHalf {
                shared: self.shared.clone(),
                low_water: 1,
            },
            WriteHalf {
                shared: self.shared,
            },
        )
    }

    pub(crate) fn reset(self) {
        // Zero linger turns the close into a reset. The socket must go without the shutdown of
        // Shared's Drop, which would send an orderly end first.
        let fd = self.shared.borrow_fd();
        let _ = SockRef::from(&fd).set_linger(Some(Duration::ZERO));
        sys::disconnect(fd);
    }
}

pub(crate) struct ReadHalf {
    shared: Rc<Shared>,
    /// What the socket has been told to wake us for.
    low_water: usize,
}

impl ReadHalf {
    pub(crate) async fn read(&mut self, buf: &mut BytesMut, missing: usize) -> io::Result<usize> {
        self.wake_at(missing)?;
        let read = poll_fn(|cx| {
            let mut stream = self.shared.stream.borrow_mut();
            Pin::new(&mut *stream).poll_read(cx, for_recv(buf.spare_capacity_mut()))
        })
        .await?;
        #[allow(unsafe_code)]
        // SAFETY: recv has written `read` bytes to the start of the spare capacity.
        unsafe {
            buf.advance_mut(read);
        }
        Ok(read)
    }

    /// Has the kernel wake us when `missing` bytes are there, or as many as are worth it
    /// (SO_RCVLOWAT). It grows the socket's buffer to hold them, wakes earlier where it cannot, and
    /// at once where they are there already.
    fn wake_at(&mut self, missing: usize) -> io::Result<()> {
        let low_water = if missing < LOW_WATER_MIN {
            1
        } else {
            missing.min(LOW_WATER_MAX)
        };
        if low_water != self.low_water {
            sys::set_low_water(self.shared.borrow_fd(), low_water)?;
            self.low_water = low_water;
        }
        Ok(())
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.shared.peer
    }
}

#[allow(unsafe_code)]
fn for_recv(spare: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    // SAFETY: same size and layout. The slice only goes into glommio's unbuffered `poll_read`,
    // which hands pointer and length to recv(2) and reads none of it.
    unsafe { &mut *(std::ptr::from_mut(spare) as *mut [u8]) }
}

pub(crate) struct WriteHalf {
    shared: Rc<Shared>,
}

/// What a part holds in memory: nothing of a range, which is written by itself.
fn in_memory(part: &Piece) -> &[u8] {
    match part {
        Piece::Bytes(bytes) => bytes,
        Piece::File(_) => &[],
    }
}

impl WriteHalf {
    pub(crate) async fn write_all(&mut self, parts: &[Piece]) -> io::Result<()> {
        let mut rest = parts;
        while let Some(first) = rest.first() {
            if let Piece::File(range) = first {
                self.write_range(range).await?;
                rest = &rest[1..];
                continue;
            }
            let file = rest.iter().position(|part| matches!(part, Piece::File(_)));
            let (run, after) = rest.split_at(file.unwrap_or(rest.len()));
            self.write_bytes(run, !after.is_empty()).await?;
            rest = after;
        }
        Ok(())
    }

    /// Parts in memory. `more`: the message goes on at once, so nothing needs to leave by itself.
    async fn write_bytes(&self, parts: &[Piece], more: bool) -> io::Result<()> {
        let large = parts.iter().map(Piece::len).sum::<usize>() > STEP_BYTES;
        let mut rest = parts;
        // Bytes of the first part that are already out.
        let mut skip = 0;
        loop {
            while let Some(first) = rest.first()
                && first.len() == skip
            {
                rest = &rest[1..];
                skip = 0;
            }
            let Some(first) = rest.first() else {
                return Ok(());
            };
            let turn = if large { Some(turn().await) } else { None };
            let bytes = rest.iter().map(in_memory);
            let mut sent = match sys::send_parts(self.shared.fd, bytes, skip, STEP_BYTES, more) {
                Ok(sent) => {
                    if let Some(turn) = turn {
                        turn.end().await;
                    }
                    sent
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Others go on meanwhile.
                    drop(turn);
                    let piece = &in_memory(first)[skip..];
                    self.write_when_ready(&piece[..piece.len().min(WAIT_PIECE_MAX)])
                        .await?
                }
                Err(error) => return Err(error),
            };
            while let Some(first) = rest.first() {
                let left = first.len() - skip;
                if sent < left {
                    skip += sent;
                    break;
                }
                sent -= left;
                rest = &rest[1..];
                skip = 0;
            }
        }
    }

    /// By sendfile(2): the socket takes the pages of the cache, nothing is copied on this side.
    /// Measured on loopback (6.18), answers of 16 MB, GB/s and CPU seconds of the sender a GB: to a
    /// client that reads 16 KiB at a time 5.2 and 0.19, with `pread` and `send` 2.7 and 0.37; to one
    /// that reads 1 MiB at a time and so sleeps between, 2.0 and 0.5 against 3.0 and 0.33.
    async fn write_range(&self, range: &FileRange) -> io::Result<()> {
        let mut sent = 0;
        while sent < range.len() {
            let turn = turn().await;
            let step = match range.send_cached(self.shared.borrow_fd(), sent, RANGE_STEP_BYTES)? {
                Sent::Bytes(bytes) => {
                    turn.end().await;
                    bytes
                }
                Sent::Full => {
                    drop(turn);
                    let mut piece = BytesMut::with_capacity(WAIT_PIECE_MAX);
                    if range.read_cached(sent, &mut piece)? {
                        self.write_when_ready(&piece).await?
                    } else {
                        self.write_cold(range, sent).await?
                    }
                }
                Sent::Cold => {
                    drop(turn);
                    self.write_cold(range, sent).await?
                }
            };
            sent += step;
        }
        Ok(())
    }

    /// For what was in memory when the answer was made, and is not any more: the client took its
    /// time.
    async fn write_cold(&self, range: &FileRange, sent: usize) -> io::Result<usize> {
        let bytes = range.read_cold(sent, RANGE_STEP_BYTES).await?;
        let len = bytes.len();
        self.write_bytes(&[bytes.into()], sent + len < range.len())
            .await?;
        Ok(len)
    }

    /// Waits for room and writes the start of `piece`.
    async fn write_when_ready(&self, piece: &[u8]) -> io::Result<usize> {
        let written = poll_fn(|cx| {
            let mut stream = self.shared.stream.borrow_mut();
            Pin::new(&mut *stream).poll_write(cx, piece)
        })
        .await?;
        if written == 0 {
            Err(io::ErrorKind::WriteZero.into())
        } else {
            Ok(written)
        }
    }

    pub(crate) fn shutdown(&self) -> io::Result<()> {
        match SockRef::from(&self.shared.borrow_fd()).shutdown(Shutdown::Write) {
            // The peer has already torn it down.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }

    pub(crate) fn close_both(&self) {
        let _ = SockRef::from(&self.shared.borrow_fd()).shutdown(Shutdown::Both);
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.shared.peer
    }
}
