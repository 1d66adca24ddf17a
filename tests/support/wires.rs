//! The network between the nodes of a cluster, in the test's own hands: every listener of a node is
//! reached through a port here, and what flows from one node to another can be held back, each way
//! by itself. A cut loses nothing that was sent, as TCP would not: a heal lets it arrive, late.
//!
//! Who has opened a connection is read from /proc, for all nodes have one address. Needs no rights
//! and no tools.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// What a listener of a node is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plane {
    /// Clients, and brokers that follow.
    Data,
    /// Controllers among themselves, and brokers that ask them.
    Control,
}

#[derive(Default)]
struct State {
    /// By node id.
    pids: BTreeMap<i32, u32>,
    /// From, to, and between whose listeners.
    cuts: BTreeSet<(i32, i32, Plane)>,
    /// Bytes that went from node to node.
    passed: BTreeMap<(i32, i32), u64>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module's words.
pub struct Wires(Arc<Shared>);

impl Wires {
    pub fn new() -> Wires {
        Wires(Arc::default())
    }

    /// A port that leads to `target`, a listener of `node`.
    pub fn lead_to(&self, node: i32, plane: Plane, target: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = self.0.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if shared.state.lock().unwrap().ended {
                    return;
                }
                let shared = shared.clone();
                std::thread::spawn(move || shared.join(near, node, plane, target));
            }
        });
        address
    }

    /// Which process a node is.
    pub fn is_process(&self, node: i32, pid: u32) {
        self.0.state.lock().unwrap().pids.insert(node, pid);
    }

    /// Holds back what flows from one node to another between these listeners and their callers.
    pub fn cut_one_way(&self, from: i32, to: i32, plane: Plane) {
        let mut state = self.0.state.lock().unwrap();
        state.cuts.insert((from, to, plane));
    }

    /// Holds back everything between two nodes.
    pub fn cut(&self, a: i32, b: i32) {
        for plane in [Plane::Data, Plane::Control] {
            self.cut_one_way(a, b, plane);
            self.cut_one_way(b, a, plane);
        }
    }

    pub fn heal(&self) {
        self.0.state.lock().unwrap().cuts.clear();
        self.0.changed.notify_all();
    }

    /// Bytes that went from one node to another so far.
    pub fn passed(&self, from: i32, to: i32) -> u64 {
        let state = self.0.state.lock().unwrap();
        state.passed.get(&(from, to)).copied().unwrap_or(0)
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().ended = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    /// Carries one connection to its end.
    fn join(self: Arc<Self>, near: TcpStream, node: i32, plane: Plane, target: SocketAddr) {
        let caller = near.peer_addr().ok().and_then(|peer| self.owner(peer));
        let Ok(far) = TcpStream::connect(target) else {
            return;
        };
        // Small requests must not wait for one another.
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (Ok(near_again), Ok(far_again)) = (near.try_clone(), far.try_clone()) else {
            return;
        };
        let (there, back) = ((caller, Some(node)), (Some(node), caller));
        let shared = self.clone();
        let answers = std::thread::spawn(move || shared.carry(far_again, near_again, back, plane));
        self.carry(near, far, there, plane);
        let _ = answers.join();
    }

    /// The node whose process holds the socket with this address of its own.
    fn owner(&self, address: SocketAddr) -> Option<i32> {
        let inode = inode_of(address)?;
        let pids = self.state.lock().unwrap().pids.clone();
        let link = format!("socket:[{inode}]");
        let holds = |pid: &u32| {
            let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
            let mut files = files.into_iter().flatten().map_while(Result::ok);
            files.any(|file| {
                let to = std::fs::read_link(file.path());
                to.is_ok_and(|to| to.as_os_str() == link.as_str())
            })
        };
        pids.iter()
            .find(|(_, pid)| holds(pid))
            .map(|(node, _)| *node)
    }

    fn carry(
        &self,
        mut from: TcpStream,
        mut to: TcpStream,
        way: (Option<i32>, Option<i32>),
        plane: Plane,
    ) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = from.read(&mut bytes).unwrap_or(0);
            // The end of a stream is held back like the rest of it.
            if !self.pass(way, plane, read) || read == 0 || to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = (to.shutdown(Shutdown::Write), from.shutdown(Shutdown::Read));
    }

    /// Waits until the way is free; false if the network is no more.
    fn pass(&self, way: (Option<i32>, Option<i32>), plane: Plane, bytes: usize) -> bool {
        let mut state = self.state.lock().unwrap();
        if let (Some(from), Some(to)) = way {
            while state.cuts.contains(&(from, to, plane)) && !state.ended {
                state = self.changed.wait(state).unwrap();
            }
            *state.passed.entry((from, to)).or_default() += bytes as u64;
        }
        !state.ended
    }
}

/// The inode of an IPv4 socket by its own address, from the kernel's table.
fn inode_of(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else {
        return None;
    };
    let ip = u32::from_le_bytes(address.ip().octets());
    let local = format!("{ip:08X}:{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let fields = table.lines().map(|line| line.split_whitespace());
    let mut rows = fields.filter_map(|mut fields| {
        let own = fields.nth(1)?;
        // Timers, queues and owners lie between.
        (own == local).then(|| fields.nth(7))?
    });
    rows.find(|inode| *inode != "0").map(str::to_owned)
}
