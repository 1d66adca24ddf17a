//! What is known about a request beside its body: who sent it, under which header, and when it
//! passed each stage. Lives on the connection's shard. Decides nothing.

use super::steering::Steering;
use crate::rt::{self, Instant};
use crate::shard::Shard;
use crate::shard::quotas::Counted;
use crate::wire::Str;
use crate::wire::api::ApiKey;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The client software a connection announced in ApiVersions (KIP-511).
#[derive(Clone, Debug)]
pub struct ClientSoftware {
    pub name: String,
    pub version: String,
}

/// One connection's peer.
pub struct Peer {
    pub connection: u64,
    pub listener: Rc<str>,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    software: RefCell<ClientSoftware>,
    pub steering: Steering,
    /// A quota was exceeded: nothing more is read before then.
    muted_until: Cell<Option<Instant>>,
}

impl Peer {
    pub fn new(connection: u64, listener: Rc<str>, local: SocketAddr, remote: SocketAddr) -> Peer {
        let unknown = ClientSoftware {
            name: "unknown".into(),
            version: "unknown".into(),
        };
        Peer {
            connection,
            listener,
            local,
            remote,
            software: RefCell::new(unknown),
            steering: Steering::default(),
            muted_until: Cell::new(None),
        }
    }

    /// The same peer, whose connection has come from another shard after so many moves.
    pub fn moved(self, software: ClientSoftware, moves: u32) -> Peer {
        Peer {
            software: RefCell::new(software),
            steering: Steering::after_moves(moves),
            ..self
        }
    }

    pub fn software(&self) -> ClientSoftware {
        self.software.borrow().clone()
    }

    pub fn set_software(&self, name: &str, version: &str) {
        *self.software.borrow_mut() = ClientSoftware {
            name: name.to_owned(),
            version: version.to_owned(),
        };
    }

    /// Has nothing more read from the connection for a while (KIP-219).
    pub fn mute(&self, pause: Duration) {
        let until = rt::now() + pause;
        if !pause.is_zero() && self.muted_until.get().is_none_or(|before| before < until) {
            self.muted_until.set(Some(until));
        }
    }

    /// Until when nothing is to be read, if that is not over.
    pub fn muted_until(&self) -> Option<Instant> {
        self.muted_until.get().filter(|until| *until > rt::now())
    }

    /// Kafka's form of a client's host: a slash and the address.
    pub fn client_host(&self) -> String {
        format!("/{}", self.remote.ip())
    }
}

/// When a request passed its stages, on the monotonic clock.
pub struct Timeline {
    /// The whole frame had arrived.
    pub received: Instant,
    /// Its handling began.
    pub started: Instant,
    /// It began to wait for something else than this shard's own work: replicas, bytes, time.
    parked: Cell<Option<Instant>>,
    completed: Cell<Instant>,
}

impl Timeline {
    /// Splits the handling into local and remote (waiting) time, in milliseconds as Kafka logs.
    pub fn local_and_remote_ms(&self) -> (f64, f64) {
        let completed = self.completed.get();
        let parked = self.parked.get().unwrap_or(completed);
        (
            ms_between(self.started, parked),
            ms_between(parked, completed),
        )
    }

    pub fn completed(&self) -> Instant {
        self.completed.get()
    }
}

/// Milliseconds from `from` to `to`, to the microsecond.
pub fn ms_between(from: Instant, to: Instant) -> f64 {
    (to.since(from).as_micros() as f64) / 1000.0
}

/// One request under way.
pub struct Context {
    pub shard: Rc<Shard>,
    pub peer: Rc<Peer>,
    pub key: ApiKey,
    pub version: i16,
    pub correlation_id: i32,
    /// "" where the header had none.
    pub client_id: Str,
    /// Bytes of its frame.
    pub size: usize,
    pub timeline: Timeline,
}

impl Context {
    pub fn new(
        shard: Rc<Shard>,
        peer: Rc<Peer>,
        key: ApiKey,
        version: i16,
        correlation_id: i32,
        client_id: Str,
        size: usize,
        received: Instant,
    ) -> Rc<Context> {
        let started = rt::now();
        let timeline = Timeline {
            received,
            started,
            parked: Cell::new(None),
            completed: Cell::new(started),
        };
        Rc::new(Context {
            shard,
            peer,
            key,
            version,
            correlation_id,
            client_id,
            size,
            timeline,
        })
    }

    /// Counts the bytes of a client against its quotas: its connection is muted for as long as the
    /// answer is to say.
    pub fn count_for_quota(&self, counted: Counted, bytes: usize) -> i32 {
        let pause = self.shard.count_for_quota(counted, &self.client_id, bytes);
        self.peer.mute(pause);
        i32::try_from(pause.as_millis()).unwrap_or(i32::MAX)
    }

    /// From here on the request waits for others.
    pub fn parked(&self) {
        if self.timeline.parked.get().is_none() {
            self.timeline.parked.set(Some(rt::now()));
        }
    }

    /// The answer is known.
    pub fn complete(&self) {
        self.timeline.completed.set(rt::now());
    }
}
