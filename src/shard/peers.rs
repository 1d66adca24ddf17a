//! A shard's connections to the other brokers of the cluster, for the requests that coordinators
//! and leaders send each other, opened when they are first needed and again after they broke. A
//! broker answers the requests of one connection one after the other, so what may take long has
//! connections of its own. Runs on the shard. Never tries a request a second time: only who asks
//! knows whether it may be repeated.

use super::Shard;
use crate::client::{ClientError, Connection, Exchange};
use crate::rt::sync::Semaphore;
use crate::rt::{self, Instant};
use crate::types::NodeId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// What a client's request waits for; several connections, over which it is spread.
    Question(u8),
    /// The ends of transactions, which may have to wait for an in-sync set; one connection for
    /// each request under way.
    Markers(u8),
}

/// The connections of a shard, at most one for each purpose and broker that the metadata has had.
#[derive(Default)]
pub struct Peers {
    open: RefCell<BTreeMap<(NodeId, Purpose), Rc<Peer>>>,
}

struct Peer {
    connection: RefCell<Option<Connection>>,
    /// When the last attempt to connect failed, and how.
    failed: RefCell<Option<(Instant, ClientError)>>,
    /// One attempt to connect at a time.
    turn: Semaphore,
}

impl Shard {
    /// Asks another broker, in the highest version from `oldest` on that both speak.
    ///
    /// # Errors
    /// No way to the broker, or no answer within `limit`: whether it acted on the request is not
    /// known.
    pub(super) async fn ask_broker<R: Exchange>(
        &self,
        node: NodeId,
        purpose: Purpose,
        request: &R,
        oldest: i16,
        limit: Duration,
    ) -> Result<R::Response, ClientError> {
        let asked = rt::now();
        let connection = self.connection_to(node, purpose).await?;
        let version = connection.versions().choose::<R>(oldest, i16::MAX)?;
        let left = limit.saturating_sub(asked.elapsed());
        connection.start(request, version)?.answer::<R>(left).await
    }

    async fn connection_to(
        &self,
        node: NodeId,
        purpose: Purpose,
    ) -> Result<Connection, ClientError> {
        let peer = {
            let mut open = self.peers.open.borrow_mut();
            let peer = open.entry((node, purpose)).or_insert_with(|| {
                Rc::new(Peer {
                    connection: RefCell::new(None),
                    failed: RefCell::new(None),
                    turn: Semaphore::new(1),
                })
            });
            peer.clone()
        };
        let asked = rt::now();
        let _turn = peer.turn.acquire(1).await;
        // Whoever waited behind an attempt that failed does not wait for one of its own.
        if let Some((failed, error)) = &*peer.failed.borrow()
            && *failed >= asked
        {
            return Err(error.clone());
        }
        let (host, port) = self.address_of(node)?;
        let open = peer.connection.borrow().clone();
        // A broker that came back elsewhere is not asked where it was.
        if let Some(open) = open.filter(|open| open.is_open())
            && open.peer() == format!("{host}:{port}")
        {
            return Ok(open);
        }
        let client_id = format!("broker-{}-shard-{}", self.node.node.0, self.place());
        match Connection::open(&host, port, &client_id, CONNECT_TIMEOUT).await {
            Ok(connection) => {
                peer.connection.replace(Some(connection.clone()));
                Ok(connection)
            }
            Err(error) => {
                peer.failed.replace(Some((rt::now(), error.clone())));
                Err(error)
            }
        }
    }

    /// Where the metadata says that a broker is to be found by other brokers.
    pub(super) fn address_of(&self, node: NodeId) -> Result<(String, u16), ClientError> {
        let image = self.image();
        let listener = &self.node.config.inter_broker_listener;
        let endpoint = image
            .broker(node)
            .and_then(|broker| broker.endpoint(listener));
        endpoint
            .map(|(host, port)| (host.to_owned(), port))
            .ok_or_else(|| {
                ClientError::NoBroker(format!("broker {} has no listener {listener}", node.0))
            })
    }
}
