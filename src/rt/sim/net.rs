//! Simulated TCP: listeners, streams and their halves as the programs use them.
//!
//! The wire between them is `network`'s. Reads may return less than there is, by the seed, because
//! real ones do.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};

use super::conn::{Conn, Packet};
use super::exec::{Executor, IoDelay};
use super::network::NetState;
use crate::rt::net::Piece;
use crate::rt::{Either2, select2};

/// Bytes in flight and unread of one direction before a writer waits.
const WINDOW: usize = 256 << 10;
/// Most bytes that travel as one piece.
const SEGMENT_MAX: u64 = 64 << 10;
/// How long a connect waits for an answer, in nanoseconds.
const CONNECT_TIMEOUT_NS: u64 = 30_000_000_000;

/// One listening socket.
pub(super) struct ListenerState {
    pub(super) node: usize,
    pub(super) addr: SocketAddr,
    pub(super) backlog: RefCell<VecDeque<Rc<Conn>>>,
    pub(super) waker: RefCell<Option<Waker>>,
    pub(super) closed: Cell<bool>,
}

pub(crate) struct Listener {
    executor: Rc<Executor>,
    net: Rc<NetState>,
    state: Rc<ListenerState>,
}

impl Listener {
    pub(crate) fn bind(executor: &Rc<Executor>, addr: SocketAddr) -> io::Result<Listener> {
        Listener::start(executor, addr, false)
    }

    pub(crate) fn bind_shared(executor: &Rc<Executor>, addr: SocketAddr) -> io::Result<Listener> {
        Listener::start(executor, addr, true)
    }

    fn start(executor: &Rc<Executor>, addr: SocketAddr, shared: bool) -> io::Result<Listener> {
        let net = executor.world().network.clone();
        let state = net.listen(executor.node.id, addr, shared)?;
        Ok(Listener {
            executor: executor.clone(),
            net,
            state,
        })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.state.addr
    }

    pub(crate) async fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        poll_fn(|cx| {
            if let Some(conn) = self.state.backlog.borrow_mut().pop_front() {
                let stream = Stream::new(&self.executor, conn, 1);
                let peer = stream.peer_addr();
                return Poll::Ready(Ok((stream, peer)));
            }
            *self.state.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.executor.dead.get() {
            self.net.unlisten(&self.state);
        }
    }
}

/// One side of a connection: 0 connected, 1 accepted.
pub(crate) struct Stream {
    shared: Rc<Side>,
}

struct Side {
    executor: Rc<Executor>,
    conn: Rc<Conn>,
    side: usize,
}

impl Drop for Side {
    fn drop(&mut self) {
        if !self.executor.dead.get() {
            self.conn.close(self.side);
        }
    }
}

impl Stream {
    fn new(executor: &Rc<Executor>, conn: Rc<Conn>, side: usize) -> Stream {
        Stream {
            shared: Rc::new(Side {
                executor: executor.clone(),
                conn,
                side,
            }),
        }
    }

    pub(crate) async fn connect(executor: &Rc<Executor>, addr: SocketAddr) -> io::Result<Stream> {
        let net = executor.world().network.clone();
        let answer = net.connect(executor.node.id, executor.life, addr);
        let answered = poll_fn(|cx| {
            if let Some(result) = answer.result.borrow_mut().take() {
                return Poll::Ready(result);
            }
            *answer.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        });
        match select2(answered, IoDelay::new(&executor.kernel, CONNECT_TIMEOUT_NS)).await {
            Either2::First(Ok(conn)) => Ok(Stream::new(executor, conn, 0)),
            Either2::First(Err(kind)) => Err(kind.into()),
            Either2::Second(()) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.shared.conn.ends[1 - self.shared.side].addr
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.shared.conn.ends[self.shared.side].addr
    }

    pub(crate) fn split(self) -> (ReadHalf, WriteHalf) {
        (
            ReadHalf {
                shared: self.shared.clone(),
            },
            WriteHalf {
                shared: self.shared,
            },
        )
    }

    pub(crate) fn reset(self) {
        self.shared.conn.abort(self.shared.side);
    }
}

pub(crate) struct ReadHalf {
    shared: Rc<Side>,
}

impl ReadHalf {
    pub(crate) async fn read(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        let (conn, side) = (&self.shared.conn, self.shared.side);
        let end = &conn.ends[side];
        poll_fn(|cx| {
            if end.take_reset() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let mut inbox = end.inbox.borrow_mut();
            if inbox.is_empty() {
                if end.fin.get() || end.read_shut.get() || end.was_reset() {
                    return Poll::Ready(Ok(0));
                }
                drop(inbox);
                *end.reader.borrow_mut() = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let mut room = buf.capacity() - buf.len();
            if conn.kernel.one_in(8) {
                room = 1 + conn.kernel.below(room as u64) as usize;
            }
            let mut taken = 0;
            while taken < room
                && let Some(front) = inbox.front_mut()
            {
                let count = front.len().min(room - taken);
                buf.extend_from_slice(&front[..count]);
                front.advance(count);
                taken += count;
                if front.is_empty() {
                    inbox.pop_front();
                }
            }
            drop(inbox);
            conn.consumed(side, taken);
            Poll::Ready(Ok(taken))
        })
        .await
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.shared.conn.ends[1 - self.shared.side].addr
    }
}

pub(crate) struct WriteHalf {
    shared: Rc<Side>,
}

impl WriteHalf {
    pub(crate) async fn write_all(&mut self, parts: &[Piece]) -> io::Result<()> {
        for part in parts {
            let range = match part {
                Piece::Bytes(bytes) => {
                    self.write(bytes.clone()).await?;
                    continue;
                }
                Piece::File(range) => range,
            };
            // Read piece by piece as there is room, like on a real socket.
            let mut sent = 0;
            while sent < range.len() {
                let room = self.room().await?;
                let bytes = range.read_cold(sent, room).await?;
                sent += bytes.len();
                self.write(bytes).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, mut rest: Bytes) -> io::Result<()> {
        while !rest.is_empty() {
            let room = self.room().await?;
            let segment = 1 + self.shared.conn.kernel.below(SEGMENT_MAX) as usize;
            let piece = rest.split_to(rest.len().min(room).min(segment));
            self.shared.conn.send(self.shared.side, Packet::Data(piece));
        }
        Ok(())
    }

    /// Waits until at least a byte fits into the window.
    async fn room(&self) -> io::Result<usize> {
        let end = &self.shared.conn.ends[self.shared.side];
        poll_fn(|cx| {
            if end.take_reset() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if end.write_shut.get() || end.was_reset() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            match WINDOW.saturating_sub(end.unread.get()) {
                0 => {
                    *end.writer.borrow_mut() = Some(cx.waker().clone());
                    Poll::Pending
                }
                room => Poll::Ready(Ok(room)),
            }
        })
        .await
    }

    pub(crate) fn shutdown(&self) {
        self.shared.conn.end_writing(self.shared.side);
    }

    pub(crate) fn close_both(&self) {
        self.shared.conn.end_writing(self.shared.side);
        self.shared.conn.end_reading(self.shared.side);
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.shared.conn.ends[1 - self.shared.side].addr
    }
}

/// The address of a node's name, for [`crate::rt::net::resolve`].
pub(crate) fn resolve(executor: &Executor, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let world = executor.world();
    let found = if host == "localhost" {
        Some(executor.node.ip)
    } else {
        world
            .nodes
            .borrow()
            .iter()
            .find(|node| node.name == host)
            .map(|node| node.ip)
    };
    match found {
        Some(ip) => Ok(vec![SocketAddr::from((ip, port))]),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// The node's name, for [`crate::rt::net::host_name`].
pub(crate) fn host_name(executor: &Executor) -> String {
    executor.node.name.clone()
}
