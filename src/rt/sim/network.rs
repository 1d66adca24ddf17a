//! The simulated wire: delays, order, cuts between nodes, and what happens to connections when a
//! node dies.
//!
//! Packets of one direction of one connection keep their order; between connections anything may
//! overtake. A cut holds packets back, as TCP would send them again, and a heal lets them go.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::task::Waker;
use std::time::Duration;

use super::conn::{Conn, End, Packet};
use super::kernel::{Kernel, nanos};
use super::net::ListenerState;
use super::world::NodeState;

/// Connections that wait for an accept before more are refused.
const BACKLOG_MAX: usize = 1024;
const FIRST_PORT: u16 = 20_000;
const LOOPBACK_NS: (u64, u64) = (5_000, 60_000);

/// The answer to a connect that is under way.
pub(super) struct Answer {
    pub(super) result: RefCell<Option<Result<Rc<Conn>, io::ErrorKind>>>,
    pub(super) waker: RefCell<Option<Waker>>,
}

impl Answer {
    fn give(&self, result: Result<Rc<Conn>, io::ErrorKind>) {
        *self.result.borrow_mut() = Some(result);
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

type Delivery = Box<dyn FnOnce()>;
/// A connection and the side that sends.
type Direction = (Rc<Conn>, usize);
type Held = (Option<Direction>, Delivery);

pub(super) struct NetState {
    kernel: Rc<Kernel>,
    nodes: RefCell<Vec<Weak<NodeState>>>,
    inner: RefCell<Inner>,
}

struct Inner {
    cuts: BTreeSet<(usize, usize)>,
    held: BTreeMap<(usize, usize), Vec<Held>>,
    delay_ns: (u64, u64),
    spike_one_in: u64,
    spike_ns: (u64, u64),
    listeners: BTreeMap<(usize, u16), Vec<Rc<ListenerState>>>,
    next_port: u16,
    conns: Vec<Weak<Conn>>,
}

impl NetState {
    pub(super) fn new(kernel: &Rc<Kernel>) -> NetState {
        NetState {
            kernel: kernel.clone(),
            nodes: RefCell::default(),
            inner: RefCell::new(Inner {
                cuts: BTreeSet::new(),
                held: BTreeMap::new(),
                delay_ns: (50_000, 500_000),
                spike_one_in: 500,
                spike_ns: (2_000_000, 40_000_000),
                listeners: BTreeMap::new(),
                next_port: FIRST_PORT,
                conns: Vec::new(),
            }),
        }
    }

    pub(super) fn add_node(&self, node: &Rc<NodeState>) {
        self.nodes.borrow_mut().push(Rc::downgrade(node));
    }

    fn node(&self, id: usize) -> Option<Rc<NodeState>> {
        self.nodes.borrow().get(id).and_then(Weak::upgrade)
    }

    pub(super) fn is_up(&self, id: usize) -> bool {
        self.node(id).is_some_and(|node| node.powered.get())
    }

    /// Brings a delivery from one node to another, now or after a heal.
    pub(super) fn carry(
        &self,
        from: usize,
        to: usize,
        stream: Option<Direction>,
        delivery: Delivery,
    ) {
        let mut inner = self.inner.borrow_mut();
        if inner.cuts.contains(&(from, to)) {
            inner
                .held
                .entry((from, to))
                .or_default()
                .push((stream, delivery));
            return;
        }
        let (low, high) = if from == to {
            LOOPBACK_NS
        } else {
            inner.delay_ns
        };
        let mut delay = self.kernel.between(low, high);
        if from != to && inner.spike_one_in > 0 && self.kernel.one_in(inner.spike_one_in) {
            delay += self.kernel.between(inner.spike_ns.0, inner.spike_ns.1);
        }
        drop(inner);
        if let Some((conn, side)) = stream {
            let end = &conn.ends[side];
            let arrival = (self.kernel.now() + delay).max(end.next_arrival.get() + 1);
            end.next_arrival.set(arrival);
            delay = arrival - self.kernel.now();
        }
        self.kernel.after(delay, delivery);
    }

    fn heal(&self, from: usize, to: usize) {
        let held = {
            let mut inner = self.inner.borrow_mut();
            inner.cuts.remove(&(from, to));
            inner.held.remove(&(from, to)).unwrap_or_default()
        };
        for (stream, delivery) in held {
            self.carry(from, to, stream, delivery);
        }
    }

    pub(super) fn listen(
        &self,
        node: usize,
        addr: SocketAddr,
        shared: bool,
    ) -> io::Result<Rc<ListenerState>> {
        let mut inner = self.inner.borrow_mut();
        let mut addr = addr;
        if addr.port() == 0 {
            while inner.listeners.contains_key(&(node, inner.next_port)) {
                inner.next_port = inner.next_port.checked_add(1).unwrap_or(FIRST_PORT);
            }
            addr.set_port(inner.next_port);
            inner.next_port = inner.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        }
        let on_port = inner.listeners.entry((node, addr.port())).or_default();
        if !shared && !on_port.is_empty() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let state = Rc::new(ListenerState {
            node,
            addr,
            backlog: RefCell::default(),
            waker: RefCell::default(),
            closed: Cell::new(false),
        });
        on_port.push(state.clone());
        Ok(state)
    }

    pub(super) fn unlisten(&self, state: &Rc<ListenerState>) {
        state.closed.set(true);
        {
            let mut inner = self.inner.borrow_mut();
            let key = (state.node, state.addr.port());
            if let Some(on_port) = inner.listeners.get_mut(&key) {
                on_port.retain(|other| !Rc::ptr_eq(other, state));
                if on_port.is_empty() {
                    inner.listeners.remove(&key);
                }
            }
        }
        let waiting = std::mem::take(&mut *state.backlog.borrow_mut());
        for conn in waiting {
            conn.abort(1);
        }
    }

    pub(super) fn connect(self: &Rc<Self>, from: usize, life: u64, addr: SocketAddr) -> Rc<Answer> {
        let answer = Rc::new(Answer {
            result: RefCell::default(),
            waker: RefCell::default(),
        });
        let Some(source) = self.node(from) else {
            return answer;
        };
        let target = if addr.ip().is_loopback() || addr.ip().is_unspecified() {
            Some(from)
        } else {
            let nodes = self.nodes.borrow();
            let has_ip = |node: &Weak<NodeState>| {
                node.upgrade()
                    .is_some_and(|node| IpAddr::V4(node.ip) == addr.ip())
            };
            nodes.iter().position(has_ip)
        };
        let Some(target) = target else {
            answer.give(Err(io::ErrorKind::HostUnreachable));
            return answer;
        };
        let local = {
            let mut inner = self.inner.borrow_mut();
            let port = inner.next_port;
            inner.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
            SocketAddr::from((source.ip, port))
        };
        let (net, asked) = (self.clone(), Rc::downgrade(&answer));
        self.carry(
            from,
            target,
            None,
            Box::new(move || {
                // A host without power does not answer; the one who asks gives up in time.
                if net.is_up(target) {
                    let result = net.knock((from, life, local), (target, addr));
                    net.answer(from, target, asked, result);
                }
            }),
        );
        answer
    }

    /// A connect arrives.
    fn knock(
        self: &Rc<Self>,
        (from, life, local): (usize, u64, SocketAddr),
        (target, addr): (usize, SocketAddr),
    ) -> Result<Rc<Conn>, io::ErrorKind> {
        let mut inner = self.inner.borrow_mut();
        let Some(on_port) = inner.listeners.get(&(target, addr.port())) else {
            return Err(io::ErrorKind::ConnectionRefused);
        };
        let chosen = on_port[self.kernel.below(on_port.len() as u64) as usize].clone();
        let target_life = match self.node(target) {
            Some(node) if chosen.backlog.borrow().len() < BACKLOG_MAX => node.life.get(),
            _ => return Err(io::ErrorKind::ConnectionRefused),
        };
        let conn = Rc::new(Conn {
            kernel: self.kernel.clone(),
            net: Rc::downgrade(self),
            ends: [
                End::new(from, life, local),
                End::new(target, target_life, addr),
            ],
        });
        inner.conns.retain(|conn| conn.strong_count() > 0);
        inner.conns.push(Rc::downgrade(&conn));
        chosen.backlog.borrow_mut().push_back(conn.clone());
        let waker = chosen.waker.borrow_mut().take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(conn)
    }

    fn answer(
        &self,
        from: usize,
        target: usize,
        asked: Weak<Answer>,
        result: Result<Rc<Conn>, io::ErrorKind>,
    ) {
        let stream = result.as_ref().ok().map(|conn| (conn.clone(), 1));
        self.carry(
            target,
            from,
            stream,
            Box::new(move || match (asked.upgrade(), result) {
                (Some(answer), result) => answer.give(result),
                // Nobody waits for it any more.
                (None, Ok(conn)) => conn.abort(0),
                (None, Err(_)) => {}
            }),
        );
    }

    /// Drops what is held back: it holds what holds the network.
    pub(super) fn clear(&self) {
        let held = std::mem::take(&mut self.inner.borrow_mut().held);
        drop(held);
    }

    /// A process died. Its kernel closes its sockets, or nobody does if the power went.
    pub(super) fn node_died(&self, node: usize, life: u64, power_lost: bool) {
        let (conns, listeners) = {
            let mut inner = self.inner.borrow_mut();
            let conns: Vec<Rc<Conn>> = inner.conns.iter().filter_map(Weak::upgrade).collect();
            let ports: Vec<(usize, u16)> = inner
                .listeners
                .keys()
                .filter(|key| key.0 == node)
                .copied()
                .collect();
            let listeners: Vec<_> = ports
                .iter()
                .filter_map(|port| inner.listeners.remove(port))
                .flatten()
                .collect();
            (conns, listeners)
        };
        for listener in listeners {
            listener.closed.set(true);
            listener.backlog.borrow_mut().clear();
        }
        for conn in conns {
            for side in 0..2 {
                let end = &conn.ends[side];
                if end.node != node || end.life != life {
                    continue;
                }
                if power_lost {
                    end.vanished.set(true);
                } else {
                    conn.close(side);
                }
            }
        }
    }
}

/// The network as a test sees it.
#[derive(Clone)]
pub struct Network(pub(super) Rc<NetState>);

impl Network {
    /// Nothing passes between the two nodes, in either direction, until they are healed.
    pub fn cut(&self, a: usize, b: usize) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
    }

    /// Nothing passes from `from` to `to`.
    pub fn cut_one_way(&self, from: usize, to: usize) {
        self.0.inner.borrow_mut().cuts.insert((from, to));
    }

    /// Cuts a node off from all others.
    pub fn isolate(&self, node: usize) {
        for other in 0..self.0.nodes.borrow().len() {
            if other != node {
                self.cut(node, other);
            }
        }
    }

    /// Takes the cuts between two nodes back; what was held back arrives.
    pub fn heal(&self, a: usize, b: usize) {
        self.0.heal(a, b);
        self.0.heal(b, a);
    }

    pub fn heal_all(&self) {
        let cuts: Vec<(usize, usize)> = self.0.inner.borrow().cuts.iter().copied().collect();
        for (from, to) in cuts {
            self.0.heal(from, to);
        }
    }

    /// How long a packet travels between two nodes.
    pub fn set_delay(&self, min: Duration, max: Duration) {
        self.0.inner.borrow_mut().delay_ns = (nanos(min), nanos(max));
    }

    /// One packet in `one_in` takes longer by `min..=max`; 0 for none.
    pub fn set_spikes(&self, one_in: u64, min: Duration, max: Duration) {
        let mut inner = self.0.inner.borrow_mut();
        inner.spike_one_in = one_in;
        inner.spike_ns = (nanos(min), nanos(max));
    }

    /// Resets all connections between two nodes, as a firewall that lost its state would.
    pub fn reset_connections(&self, a: usize, b: usize) {
        let conns: Vec<Rc<Conn>> = self
            .0
            .inner
            .borrow()
            .conns
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for conn in conns {
            let nodes = (conn.ends[0].node, conn.ends[1].node);
            if nodes == (a, b) || nodes == (b, a) {
                for side in 0..2 {
                    conn.arrive(side, Packet::Reset);
                }
            }
        }
    }
}
