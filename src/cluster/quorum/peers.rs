//! The way to the other voters: for each a connection to its controller's listener, opened when
//! there is something to say, and a bounded queue before it. Runs on the control executor.
//!
//! A message travels as a request of an API of our own (key 0x4857, version 0) whose body is the
//! cluster's id and the message; the response is empty and only says that the connection lives.
//! Nothing is sent twice: what is lost, the consensus sends again in its own time.

use super::node::Quorum;
use crate::rt;
use crate::rt::net::{ReadHalf, Stream, WriteHalf, resolve};
use crate::rt::sync::Notify;
use crate::types::NodeId;
use crate::wire::api::ApiKey;
use crate::wire::frame::request_bytes;
use crate::wire::{Reader, Str};
use bytes::{BufMut, Bytes, BytesMut};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// "HW": not an API of Kafka's, and not told to clients.
pub const VOTER_MESSAGE: ApiKey = ApiKey(0x4857);
/// The version of the body: u8 length and text of the cluster's id, then the message.
const VERSION: i16 = 0;
/// Messages that wait for one voter; the oldest goes first, for newer ones make it needless.
const QUEUE_MAX: usize = 256;
/// Bytes that wait for one voter (32 MiB): a dead one must not hold the batches of minutes.
const QUEUE_BYTES_MAX: usize = 32 << 20;
/// Pauses between attempts to connect.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long a connect, or the sending of one message, may take: a voter that takes nothing is
/// connected to anew.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Messages on their way to one voter.
#[derive(Default)]
struct Outbox {
    waiting: RefCell<VecDeque<Bytes>>,
    bytes: Cell<usize>,
    bell: Notify,
    closed: Cell<bool>,
}

impl Outbox {
    fn push(&self, message: Bytes) {
        let mut waiting = self.waiting.borrow_mut();
        self.bytes.set(self.bytes.get() + message.len());
        waiting.push_back(message);
        while waiting.len() > QUEUE_MAX || (waiting.len() > 1 && self.bytes.get() > QUEUE_BYTES_MAX)
        {
            if let Some(oldest) = waiting.pop_front() {
                self.bytes.set(self.bytes.get() - oldest.len());
            }
        }
        drop(waiting);
        self.bell.notify_one();
    }

    fn pop(&self) -> Option<Bytes> {
        let message = self.waiting.borrow_mut().pop_front()?;
        self.bytes.set(self.bytes.get() - message.len());
        Some(message)
    }

    /// The next message; `None` once nobody sends any more.
    async fn next(&self) -> Option<Bytes> {
        loop {
            if self.closed.get() {
                return None;
            }
            match self.pop() {
                Some(message) => return Some(message),
                None => self.bell.notified().await,
            }
        }
    }
}

/// Where a voter listens.
#[derive(Clone, Debug)]
pub struct Address {
    pub node: NodeId,
    pub host: String,
    pub port: u16,
}

/// The outboxes, closed when this is dropped.
struct Outboxes(BTreeMap<NodeId, Rc<Outbox>>);

impl Drop for Outboxes {
    fn drop(&mut self) {
        for outbox in self.0.values() {
            outbox.closed.set(true);
            outbox.bell.notify_one();
        }
    }
}

/// Opens the ways to the other voters: from now on the quorum's messages are sent.
pub fn connect(quorum: &Rc<Quorum>, cluster_id: &str, voters: &[Address]) {
    quorum.set_cluster_id(cluster_id);
    let own = quorum.settings().node;
    let mut outboxes = BTreeMap::new();
    for voter in voters.iter().filter(|voter| voter.node != own) {
        let outbox = Rc::new(Outbox::default());
        outboxes.insert(voter.node, outbox.clone());
        let client = Str::from(format!("highwater-controller-{}", own.0));
        rt::spawn(carry(voter.clone(), outbox, client));
    }
    let (outboxes, cluster_id) = (Outboxes(outboxes), cluster_id.to_owned());
    quorum.on_send(move |to, message| {
        if let Some(outbox) = outboxes.0.get(&to) {
            outbox.push(body(&cluster_id, &message));
        }
    });
}

fn body(cluster_id: &str, message: &[u8]) -> Bytes {
    let id = &cluster_id.as_bytes()[..cluster_id.len().min(u8::MAX as usize)];
    let mut body = BytesMut::with_capacity(1 + id.len() + message.len());
    body.put_u8(id.len() as u8);
    body.put_slice(id);
    body.put_slice(message);
    body.freeze()
}

/// Takes in the body of a voter's request; the body of its response, or `None` to close the
/// connection.
pub fn receive_frame(quorum: &Rc<Quorum>, mut body: Reader) -> Option<Bytes> {
    let mut body = body.rest();
    let length = usize::from(*body.first()?);
    if body.len() < 1 + length {
        return None;
    }
    let id = body.split_to(1 + length);
    // Before it knows its cluster a controller listens to nobody.
    let own = quorum.cluster_id()?;
    if &id[1..] != own.as_bytes() {
        tracing::warn!(
            theirs = %String::from_utf8_lossy(&id[1..]), %own,
            "a controller of another cluster is refused"
        );
        return None;
    }
    quorum.receive(body);
    Some(Bytes::new())
}

/// Carries one voter's messages until nobody sends any.
async fn carry(voter: Address, outbox: Rc<Outbox>, client: Str) {
    let mut backoff = BACKOFF_MIN;
    let mut correlation_id = 0i32;
    let mut connection: Option<Sending> = None;
    while let Some(message) = outbox.next().await {
        let mut sending = match connection.take().filter(|open| !open.peer_gone.get()) {
            Some(open) => open,
            None => match rt::timeout(CONNECT_TIMEOUT, open(&voter)).await {
                Ok(Ok(open)) => {
                    tracing::debug!(voter = voter.node.0, "connected to a voter");
                    open
                }
                failed => {
                    if let Ok(Err(error)) = failed {
                        tracing::debug!(voter = voter.node.0, %error, "a voter cannot be reached");
                    }
                    rt::sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                    continue;
                }
            },
        };
        correlation_id = correlation_id.wrapping_add(1);
        let frame = request_bytes(VOTER_MESSAGE, VERSION, correlation_id, &client, &message);
        let Ok(frame) = frame else { continue };
        let size = Bytes::copy_from_slice(&(frame.len() as u32).to_be_bytes());
        let sent = rt::timeout(
            WRITE_TIMEOUT,
            sending.write.write_all(&[size.into(), frame.into()]),
        )
        .await;
        if matches!(sent, Ok(Ok(()))) {
            backoff = BACKOFF_MIN;
            connection = Some(sending);
        }
    }
}

/// An open connection.
struct Sending {
    write: WriteHalf,
    peer_gone: Rc<Cell<bool>>,
    reader: Option<rt::Task<()>>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.cancel_detached();
        }
    }
}

async fn open(voter: &Address) -> io::Result<Sending> {
    let addresses = resolve(&voter.host, voter.port).await?;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match Stream::connect(address).await {
            Ok(stream) => {
                let (read, write) = stream.split();
                let peer_gone = Rc::new(Cell::new(false));
                let reader = rt::spawn(drain(read, Rc::downgrade(&peer_gone)));
                return Ok(Sending {
                    write,
                    peer_gone,
                    reader: Some(reader),
                });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reads the empty answers away; tells when the voter ends the connection.
async fn drain(mut read: ReadHalf, gone: Weak<Cell<bool>>) {
    let mut buffer = BytesMut::with_capacity(4096);
    while let Ok(1..) = read.read(&mut buffer).await {
        buffer.clear();
    }
    if let Some(gone) = gone.upgrade() {
        gone.set(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_when_a_voter_takes_nothing() {
        let outbox = Outbox::default();
        for at in 0..2 * QUEUE_MAX {
            outbox.push(Bytes::from(vec![(at / 2) as u8; 3]));
        }
        assert_eq!(outbox.waiting.borrow().len(), QUEUE_MAX);
        assert_eq!(outbox.pop().unwrap()[0], (QUEUE_MAX / 2) as u8);
        // One that is larger than all that may wait still gets through, alone.
        outbox.push(Bytes::from(vec![7; QUEUE_BYTES_MAX + 1]));
        assert_eq!(outbox.waiting.borrow().len(), 1);
        assert_eq!(
            outbox.pop().map(|message| message.len()),
            Some(QUEUE_BYTES_MAX + 1)
        );
        assert_eq!((outbox.bytes.get(), outbox.pop()), (0, None));
    }
}
