//! One simulated connection: two ends, what is on its way between them, and how it ends.
//!
//! Packets of one direction keep their order. Unread bytes turn a close into a reset, a dead
//! process's sockets are closed by its kernel, a host without power says nothing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::task::Waker;

use bytes::Bytes;

use super::kernel::Kernel;
use super::network::NetState;

pub(super) enum Packet {
    Data(Bytes),
    Fin,
    Reset,
}

/// One end of a connection.
pub(super) struct End {
    pub(super) node: usize,
    pub(super) life: u64,
    pub(super) addr: SocketAddr,
    /// Arrived and unread.
    pub(super) inbox: RefCell<VecDeque<Bytes>>,
    pub(super) fin: Cell<bool>,
    reset: Cell<ResetState>,
    pub(super) reader: RefCell<Option<Waker>>,
    pub(super) writer: RefCell<Option<Waker>>,
    pub(super) read_shut: Cell<bool>,
    pub(super) write_shut: Cell<bool>,
    /// Bytes sent from here that the other end has not read.
    pub(super) unread: Cell<usize>,
    /// Nothing sent from here arrives before this.
    pub(super) next_arrival: Cell<u64>,
    pub(super) closed: Cell<bool>,
    /// The host lost power: nobody answers for it.
    pub(super) vanished: Cell<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ResetState {
    None,
    Arrived,
    Reported,
}

impl End {
    pub(super) fn new(node: usize, life: u64, addr: SocketAddr) -> End {
        End {
            node,
            life,
            addr,
            inbox: RefCell::default(),
            fin: Cell::new(false),
            reset: Cell::new(ResetState::None),
            reader: RefCell::default(),
            writer: RefCell::default(),
            read_shut: Cell::new(false),
            write_shut: Cell::new(false),
            unread: Cell::new(0),
            next_arrival: Cell::new(0),
            closed: Cell::new(false),
            vanished: Cell::new(false),
        }
    }

    /// True once after a reset has arrived.
    pub(super) fn take_reset(&self) -> bool {
        if self.reset.get() == ResetState::Arrived {
            self.reset.set(ResetState::Reported);
            return true;
        }
        false
    }

    pub(super) fn was_reset(&self) -> bool {
        self.reset.get() != ResetState::None
    }

    fn wake(&self) {
        let wakers = [
            self.reader.borrow_mut().take(),
            self.writer.borrow_mut().take(),
        ];
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
    }
}

pub(super) struct Conn {
    pub(super) kernel: Rc<Kernel>,
    pub(super) net: Weak<NetState>,
    pub(super) ends: [End; 2],
}

impl Conn {
    pub(super) fn send(self: &Rc<Self>, side: usize, packet: Packet) {
        let Some(net) = self.net.upgrade() else {
            return;
        };
        let (from, to) = (&self.ends[side], &self.ends[1 - side]);
        if let Packet::Data(bytes) = &packet {
            from.unread.set(from.unread.get() + bytes.len());
        }
        let conn = self.clone();
        net.carry(
            from.node,
            to.node,
            Some((self.clone(), side)),
            Box::new(move || conn.arrive(1 - side, packet)),
        );
    }

    pub(super) fn arrive(self: &Rc<Self>, side: usize, packet: Packet) {
        let end = &self.ends[side];
        if end.vanished.get() {
            // Its host answers only once it runs again, and then knows nothing of it.
            let runs = self.net.upgrade().is_some_and(|net| net.is_up(end.node));
            if runs && !matches!(packet, Packet::Reset) {
                self.send(side, Packet::Reset);
            }
            return;
        }
        match packet {
            Packet::Data(bytes) => {
                self.kernel.note(30, bytes.len() as u64);
                if end.closed.get() {
                    self.send(side, Packet::Reset);
                    return;
                }
                if end.read_shut.get() || end.was_reset() {
                    return;
                }
                end.inbox.borrow_mut().push_back(bytes);
            }
            Packet::Fin => end.fin.set(true),
            Packet::Reset => {
                if end.reset.get() == ResetState::None {
                    end.reset.set(ResetState::Arrived);
                    end.inbox.borrow_mut().clear();
                }
            }
        }
        end.wake();
    }

    /// `side` has read `count` bytes: the other side may send as many more.
    pub(super) fn consumed(&self, side: usize, count: usize) {
        let writer = &self.ends[1 - side];
        writer.unread.set(writer.unread.get().saturating_sub(count));
        let waker = writer.writer.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn end_writing(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        if !end.write_shut.replace(true) && !end.was_reset() {
            self.send(side, Packet::Fin);
        }
        end.wake();
    }

    pub(super) fn end_reading(&self, side: usize) {
        self.ends[side].read_shut.set(true);
        self.ends[side].wake();
    }

    /// Closes one end as the kernel does: unread bytes turn the orderly end into a reset.
    pub(super) fn close(self: &Rc<Self>, side: usize) {
        let end = &self.ends[side];
        if end.closed.replace(true) {
            return;
        }
        if end.inbox.borrow().is_empty() {
            self.end_writing(side);
        } else {
            end.write_shut.set(true);
            self.send(side, Packet::Reset);
        }
    }

    pub(super) fn abort(self: &Rc<Self>, side: usize) {
        if !self.ends[side].closed.replace(true) {
            self.ends[side].write_shut.set(true);
            self.send(side, Packet::Reset);
        }
    }
}
