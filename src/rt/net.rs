//! TCP: listeners that share a port between shards, streams split into two halves.
//!
//! Any executor; a listener and its streams stay on the executor that made them. Reads go
//! straight into the caller's buffer, writes are vectored. Nothing here frames, times out or
//! limits: that is the callers' business. Names are resolved off the executor.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};

use super::current::{Current, current};
use super::fs::FileRange;
use super::{blocking, ring, sim};

/// Accepted connections wait in a queue of this length before the kernel's backlog takes over:
/// enough for a burst of reconnecting clients, small enough to keep descriptors in sight.
pub const ACCEPT_QUEUE_MAX: usize = 64;

/// Room that [`ReadHalf::read`] makes if the caller's buffer has none, in bytes.
pub const READ_RESERVE_MIN: usize = 4096;

/// A listening socket. Dropping it stops accepting.
pub struct Listener(ListenerBody);

enum ListenerBody {
    Ring(ring::net::Listener),
    Sim(sim::net::Listener),
}

impl Listener {
    /// Listens on `addr` (port 0: any) as its only owner.
    ///
    /// # Errors
    /// `AddrInUse` if any socket listens there, also one of another broker of ours.
    pub fn bind(addr: SocketAddr) -> io::Result<Listener> {
        match current() {
            Current::Ring(executor) => {
                ring::net::Listener::bind(&executor, addr).map(|l| Listener(ListenerBody::Ring(l)))
            }
            Current::Sim(executor) => {
                sim::net::Listener::bind(&executor, addr).map(|l| Listener(ListenerBody::Sim(l)))
            }
        }
    }

    /// Joins the listeners of this process on `addr`, which a [`Listener::bind`] has claimed and
    /// whose real port is known. The kernel spreads connections over all of them.
    pub fn bind_shared(addr: SocketAddr) -> io::Result<Listener> {
        match current() {
            Current::Ring(executor) => ring::net::Listener::bind_shared(&executor, addr)
                .map(|l| Listener(ListenerBody::Ring(l))),
            Current::Sim(executor) => sim::net::Listener::bind_shared(&executor, addr)
                .map(|l| Listener(ListenerBody::Sim(l))),
        }
    }

    /// The address with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.0 {
            ListenerBody::Ring(listener) => listener.local_addr(),
            ListenerBody::Sim(listener) => listener.local_addr(),
        }
    }

    /// The next connection and its peer. Safe to drop: no connection is lost.
    ///
    /// # Errors
    /// Of one accept (for example too many open files); the listener goes on.
    pub async fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        match &mut self.0 {
            ListenerBody::Ring(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Stream(StreamBody::Ring(stream)), peer))
            }
            ListenerBody::Sim(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Stream(StreamBody::Sim(stream)), peer))
            }
        }
    }
}

/// A connection, with TCP_NODELAY set.
pub struct Stream(StreamBody);

enum StreamBody {
    Ring(ring::net::Stream),
    Sim(sim::net::Stream),
}

impl Stream {
    pub async fn connect(addr: SocketAddr) -> io::Result<Stream> {
        match current() {
            Current::Ring(_) => ring::net::Stream::connect(addr)
                .await
                .map(|s| Stream(StreamBody::Ring(s))),
            Current::Sim(executor) => sim::net::Stream::connect(&executor, addr)
                .await
                .map(|s| Stream(StreamBody::Sim(s))),
        }
    }

    pub fn peer_addr(&self) -> SocketAddr {
        match &self.0 {
            StreamBody::Ring(stream) => stream.peer_addr(),
            StreamBody::Sim(stream) => stream.peer_addr(),
        }
    }

    pub fn local_addr(&self) -> SocketAddr {
        match &self.0 {
            StreamBody::Ring(stream) => stream.local_addr(),
            StreamBody::Sim(stream) => stream.local_addr(),
        }
    }

    /// Two halves for two tasks. The connection closes when both are dropped.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        match self.0 {
            StreamBody::Ring(stream) => {
                let (read, write) = stream.split();
                (
                    ReadHalf(ReadBody::Ring(read)),
                    WriteHalf(WriteBody::Ring(write)),
                )
            }
            StreamBody::Sim(stream) => {
                let (read, write) = stream.split();
                (
                    ReadHalf(ReadBody::Sim(read)),
                    WriteHalf(WriteBody::Sim(write)),
                )
            }
        }
    }

    /// Closes with a reset instead of an orderly end: the peer sees `ConnectionReset`.
    pub fn reset(self) {
        match self.0 {
            StreamBody::Ring(stream) => stream.reset(),
            StreamBody::Sim(stream) => stream.reset(),
        }
    }
}

/// A connection on its way from one executor to another.
#[derive(Debug)]
pub struct Handover(ring::net::Handover);

impl Stream {
    /// Whether connections of this executor can be handed over to others: not in the simulator.
    pub fn can_be_handed_over() -> bool {
        matches!(current(), Current::Ring(_))
    }

    /// Takes a connection, of which nothing is being read or written, off this executor. The peer
    /// notices nothing; what it has sent waits in the kernel.
    ///
    /// # Errors
    /// The connection is lost: no descriptor is left, or it cannot be handed over at all.
    pub fn hand_over(read: ReadHalf, write: WriteHalf) -> io::Result<Handover> {
        match (read.0, write.0) {
            (ReadBody::Ring(read), WriteBody::Ring(write)) => {
                ring::net::Stream::hand_over(read, write).map(Handover)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Goes on with a connection on this executor.
    pub fn take_over(handover: Handover) -> io::Result<Stream> {
        ring::net::Stream::take_over(handover.0).map(|s| Stream(StreamBody::Ring(s)))
    }
}

/// The receiving direction of a [`Stream`].
pub struct ReadHalf(ReadBody);

enum ReadBody {
    Ring(ring::net::ReadHalf),
    Sim(sim::net::ReadHalf),
}

impl ReadHalf {
    /// Appends what has arrived, at least one byte, to the spare capacity of `buf` (which the
    /// caller reserves, see [`READ_RESERVE_MIN`]). Returns the number of bytes, 0 at the end of
    /// the stream. Safe to drop: nothing read is lost.
    pub async fn read(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        self.read_towards(buf, 1).await
    }

    /// [`ReadHalf::read`] for a caller that can do nothing before `missing` more bytes are there:
    /// it is not woken for every small part of a large message. Returns with what there is all the
    /// same.
    pub async fn read_towards(&mut self, buf: &mut BytesMut, missing: usize) -> io::Result<usize> {
        if buf.capacity() == buf.len() {
            buf.reserve(READ_RESERVE_MIN);
        }
        match &mut self.0 {
            ReadBody::Ring(half) => half.read(buf, missing).await,
            ReadBody::Sim(half) => half.read(buf).await,
        }
    }

    pub fn peer_addr(&self) -> SocketAddr {
        match &self.0 {
            ReadBody::Ring(half) => half.peer_addr(),
            ReadBody::Sim(half) => half.peer_addr(),
        }
    }
}

/// A part of a message on its way out.
#[derive(Clone, Debug)]
pub enum Piece {
    Bytes(Bytes),
    File(FileRange),
}

impl Piece {
    pub fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::File(range) => range.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for Piece {
    fn from(bytes: Bytes) -> Piece {
        Piece::Bytes(bytes)
    }
}

/// The sending direction of a [`Stream`].
pub struct WriteHalf(WriteBody);

enum WriteBody {
    Ring(ring::net::WriteHalf),
    Sim(sim::net::WriteHalf),
}

impl WriteHalf {
    /// Hands all `parts` to the kernel, in order, without joining them. Returns when the last
    /// byte is in the socket's buffer. Dropped half-way it leaves a torn message behind, as does a
    /// range of a file that cannot be read: then the connection must be closed.
    pub async fn write_all(&mut self, parts: &[Piece]) -> io::Result<()> {
        match &mut self.0 {
            WriteBody::Ring(half) => half.write_all(parts).await,
            WriteBody::Sim(half) => half.write_all(parts).await,
        }
    }

    /// Ends our direction (FIN); the peer reads end of stream, we can still read.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        match &mut self.0 {
            WriteBody::Ring(half) => half.shutdown(),
            WriteBody::Sim(half) => {
                half.shutdown();
                Ok(())
            }
        }
    }

    /// Ends both directions at once: the reading half sees the end of the stream.
    pub fn close_both(&mut self) {
        match &mut self.0 {
            WriteBody::Ring(half) => half.close_both(),
            WriteBody::Sim(half) => half.close_both(),
        }
    }

    pub fn peer_addr(&self) -> SocketAddr {
        match &self.0 {
            WriteBody::Ring(half) => half.peer_addr(),
            WriteBody::Sim(half) => half.peer_addr(),
        }
    }
}

/// The addresses of `host` (a name or a literal) with `port`, in the resolver's order, never
/// empty.
///
/// # Errors
/// `NotFound` if the name has no address.
pub async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    match current() {
        Current::Sim(executor) => sim::net::resolve(&executor, host, port),
        Current::Ring(_) => {
            let host = host.to_owned();
            let found = blocking::blocking_io(move || {
                use std::net::ToSocketAddrs;
                (host.as_str(), port).to_socket_addrs().map(Vec::from_iter)
            })
            .await?;
            if found.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    "the name has no address",
                ));
            }
            Ok(found)
        }
    }
}

/// This host's name.
pub fn host_name() -> String {
    match current() {
        Current::Sim(executor) => sim::net::host_name(&executor),
        Current::Ring(_) => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map(|name| name.trim().to_owned())
            .ok()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "localhost".to_owned()),
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.local_addr())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.peer_addr())
    }
}

impl fmt::Debug for ReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadHalf({})", self.peer_addr())
    }
}

impl fmt::Debug for WriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteHalf({})", self.peer_addr())
    }
}
