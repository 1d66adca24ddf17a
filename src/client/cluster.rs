//! A client's way to its cluster: the current view and one connection per broker.
//!
//! One executor. Everything a producer, consumer or admin sends goes through here. Owns the view,
//! its refreshing, and the back-off of brokers that cannot be reached. Never retries a request by
//! itself except where a function says so.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use super::config::ClientConfig;
use super::connection::Connection;
use super::error::{ClientError, check};
use super::exchange::Exchange;
use super::metadata::ClusterView;
use crate::rt::sync::Semaphore;
use crate::rt::{self, Instant};
use crate::types::NodeId;
use crate::wire::messages::find_coordinator_request::FindCoordinatorRequest;
use crate::wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use crate::wire::{ErrorCode, Str};

/// Topics that a client keeps fresh. Beyond it the call that names one more is refused.
pub const TOPICS_MAX: usize = 100_000;

/// What FindCoordinator looks for (`key_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CoordinatorKind {
    Group = 0,
    Transaction = 1,
}

/// What a connection is for. A broker answers the requests of a connection one after the other: a
/// heartbeat or a commit must not wait behind a fetch that waits for records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    Any,
    /// To the coordinator of a group.
    Coordination,
}

/// A handle; clones share view and connections.
#[derive(Clone)]
pub struct Cluster {
    inner: Rc<Inner>,
}

struct Inner {
    config: ClientConfig,
    view: RefCell<Rc<ClusterView>>,
    /// Counts refreshes, so that many who want one share it.
    refreshes: Cell<u64>,
    refreshed_at: Cell<Option<Instant>>,
    refreshing: Semaphore,
    /// What refreshes ask for.
    wanted: RefCell<BTreeSet<Str>>,
    nodes: RefCell<BTreeMap<(NodeId, Purpose), Rc<Node>>>,
    /// The connection to whichever bootstrap server answered, until a broker is known.
    bootstrap: RefCell<Option<Connection>>,
    closed: Cell<bool>,
}

struct Node {
    connection: RefCell<Option<Connection>>,
    connecting: Semaphore,
    failures: Cell<u32>,
    /// No attempt before this.
    not_before: Cell<Instant>,
}

impl Node {
    fn open(&self) -> Option<Connection> {
        self.connection
            .borrow()
            .as_ref()
            .filter(|connection| connection.is_open())
            .cloned()
    }
}

impl Cluster {
    /// Connects to the first bootstrap server that answers and reads the cluster's brokers.
    ///
    /// # Errors
    /// [`ClientError::NoBroker`] when none answered within `default.api.timeout.ms`.
    pub async fn connect(config: ClientConfig) -> Result<Cluster, ClientError> {
        if config.bootstrap_servers.is_empty() {
            return Err(ClientError::Invalid(
                "bootstrap.servers is empty".to_owned(),
            ));
        }
        let cluster = Cluster {
            inner: Rc::new(Inner {
                config,
                view: RefCell::new(Rc::new(ClusterView::default())),
                refreshes: Cell::new(0),
                refreshed_at: Cell::new(None),
                refreshing: Semaphore::new(1),
                wanted: RefCell::new(BTreeSet::new()),
                nodes: RefCell::new(BTreeMap::new()),
                bootstrap: RefCell::new(None),
                closed: Cell::new(false),
            }),
        };
        let deadline = rt::now() + cluster.config().api_timeout;
        cluster
            .retry_until(deadline, async || cluster.refresh().await)
            .await?;
        Ok(cluster)
    }

    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// The view as it is known now.
    pub fn view(&self) -> Rc<ClusterView> {
        self.inner.view.borrow().clone()
    }

    /// Ends all connections.
    pub fn close(&self) {
        self.inner.closed.set(true);
        self.inner.nodes.borrow_mut().clear();
        self.inner.bootstrap.borrow_mut().take();
    }

    pub fn is_closed(&self) -> bool {
        self.inner.closed.get()
    }

    /// Repeats `attempt` while its error is retriable and `deadline` has not passed, with back-off.
    pub async fn retry_until<T>(
        &self,
        deadline: Instant,
        attempt: impl AsyncFnMut() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let given_up = || self.is_closed();
        retry_until(self.config(), deadline, given_up, attempt).await
    }

    // ------------------------------------------------------------------------------ the view

    /// Asks for brokers and the wanted topics, once for all who call meanwhile.
    ///
    /// # Errors
    /// When no broker answered.
    pub async fn refresh(&self) -> Result<Rc<ClusterView>, ClientError> {
        let seen = self.inner.refreshes.get();
        let _turn = self.inner.refreshing.acquire(1).await;
        if self.inner.refreshes.get() == seen {
            let topics: Vec<Str> = self.inner.wanted.borrow().iter().cloned().collect();
            self.read_view(Some(&topics), self.config().allow_auto_create_topics)
                .await?;
        }
        Ok(self.view())
    }

    /// Refreshes beside the caller if the view is older than `age` and no refresh is under way.
    /// Failures show in what needs the view.
    pub fn refresh_beside(&self, age: Duration) {
        let current = self.inner.refreshed_at.get().map(|at| rt::now().since(at));
        let fresh = current.is_some_and(|current| current < age);
        if fresh || self.inner.refreshing.available() == 0 || self.is_closed() {
            return;
        }
        let cluster = self.clone();
        drop(rt::spawn(async move {
            if let Err(error) = cluster.refresh().await {
                tracing::debug!(%error, "refresh failed");
            }
        }));
    }

    /// Every topic there is.
    pub async fn read_all_topics(&self) -> Result<Rc<ClusterView>, ClientError> {
        let _turn = self.inner.refreshing.acquire(1).await;
        self.read_view(None, false).await
    }

    async fn read_view(
        &self,
        topics: Option<&[Str]>,
        create: bool,
    ) -> Result<Rc<ClusterView>, ClientError> {
        let named = |name: &Str| MetadataRequestTopic {
            name: Some(name.clone()),
            ..MetadataRequestTopic::default()
        };
        let request = MetadataRequest {
            topics: topics.map(|topics| topics.iter().map(named).collect()),
            allow_auto_topic_creation: create,
            ..MetadataRequest::default()
        };
        // Version 4 is the first that can ask without creating.
        let first = if create { 1 } else { 4 };
        let connection = self.any().await?;
        let version = connection
            .versions()
            .choose::<MetadataRequest>(first, i16::MAX)?;
        let answer = connection
            .start(&request, version)?
            .answer::<MetadataRequest>(self.config().request_timeout)
            .await?;
        check(answer.error_code, || "METADATA".to_owned())?;
        let view = Rc::new(self.view().updated(&answer, topics.is_none()));
        *self.inner.view.borrow_mut() = view.clone();
        self.inner.refreshes.set(self.inner.refreshes.get() + 1);
        self.inner.refreshed_at.set(Some(rt::now()));
        Ok(view)
    }

    /// A view in which all of `topics` have partitions with leaders, refreshing until `deadline`.
    ///
    /// # Errors
    /// The last error of the topic that is missing.
    pub async fn with_topics(
        &self,
        topics: &[Str],
        deadline: Instant,
    ) -> Result<Rc<ClusterView>, ClientError> {
        self.want(topics)?;
        let view = self.view();
        if missing(&view, topics).is_none() {
            return Ok(view);
        }
        self.retry_until(deadline, async || {
            let view = self.refresh().await?;
            match missing(&view, topics) {
                None => Ok(view),
                Some((topic, code)) => Err(ClientError::broker(format!("topic {topic}"), code, "")),
            }
        })
        .await
    }

    /// Lets refreshes ask for these topics from now on.
    pub fn want(&self, topics: &[Str]) -> Result<(), ClientError> {
        let mut wanted = self.inner.wanted.borrow_mut();
        for topic in topics {
            if wanted.len() >= TOPICS_MAX {
                return Err(ClientError::Invalid(format!(
                    "more than {TOPICS_MAX} topics"
                )));
            }
            if !wanted.contains(topic) {
                wanted.insert(topic.detached());
            }
        }
        Ok(())
    }

    // --------------------------------------------------------------------------- connections

    /// The open connection to a broker, or a new one.
    ///
    /// # Errors
    /// What became of the attempt; [`ClientError::NoBroker`] if the view has no such broker.
    pub async fn node(&self, node: NodeId) -> Result<Connection, ClientError> {
        self.connection(node, Purpose::Any).await
    }

    /// The connection to a broker as the coordinator of a group; fetches take another.
    ///
    /// # Errors
    /// As [`Cluster::node`].
    pub async fn coordinator(&self, node: NodeId) -> Result<Connection, ClientError> {
        self.connection(node, Purpose::Coordination).await
    }

    async fn connection(&self, node: NodeId, purpose: Purpose) -> Result<Connection, ClientError> {
        if self.is_closed() {
            return Err(ClientError::Closed);
        }
        let entry = self.entry(node, purpose);
        if let Some(connection) = entry.open() {
            return Ok(connection);
        }
        let turn = entry.connecting.acquire(1).await;
        if let Some(connection) = entry.open() {
            return Ok(connection);
        }
        // In a task of its own: a caller with little time would else begin again and again.
        let cluster = self.clone();
        let opening = rt::spawn(async move {
            let _turn = turn;
            cluster.open_entry(node, &entry).await
        });
        opening.await
    }

    async fn open_entry(&self, node: NodeId, entry: &Node) -> Result<Connection, ClientError> {
        if entry.not_before.get() > rt::now() {
            rt::sleep_until(entry.not_before.get()).await;
        }
        let Some(broker) = self.view().broker(node).cloned() else {
            return Err(ClientError::NoBroker(format!(
                "broker {} is not known",
                node.0
            )));
        };
        match self.open(&broker.host, broker.port).await {
            Ok(_) if self.is_closed() => Err(ClientError::Closed),
            Ok(connection) => {
                entry.failures.set(0);
                *entry.connection.borrow_mut() = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                let failures = entry.failures.get().saturating_add(1);
                entry.failures.set(failures);
                let delay = self
                    .config()
                    .reconnect_backoff
                    .delay(failures, rt::random_u64());
                entry.not_before.set(rt::now() + delay);
                Err(error)
            }
        }
    }

    /// The connection to a broker if it is open.
    pub fn open_node(&self, node: NodeId) -> Option<Connection> {
        let nodes = self.inner.nodes.borrow();
        nodes.get(&(node, Purpose::Any))?.open()
    }

    fn entry(&self, node: NodeId, purpose: Purpose) -> Rc<Node> {
        let mut nodes = self.inner.nodes.borrow_mut();
        let fresh = || {
            Rc::new(Node {
                connection: RefCell::new(None),
                connecting: Semaphore::new(1),
                failures: Cell::new(0),
                not_before: Cell::new(Instant::default()),
            })
        };
        let entry = nodes.entry((node, purpose));
        entry.or_insert_with(fresh).clone()
    }

    async fn open(&self, host: &str, port: u16) -> Result<Connection, ClientError> {
        let config = self.config();
        Connection::open(
            host,
            port,
            &config.client_id,
            config.connection_setup_timeout,
        )
        .await
    }

    /// A connection to any broker: an open one if there is one, the least busy first.
    ///
    /// # Errors
    /// [`ClientError::NoBroker`] with the last failure.
    pub async fn any(&self) -> Result<Connection, ClientError> {
        if self.is_closed() {
            return Err(ClientError::Closed);
        }
        let view = self.view();
        let open = view
            .brokers
            .iter()
            .filter_map(|broker| self.open_node(broker.node));
        if let Some(connection) = open.min_by_key(Connection::in_flight) {
            return Ok(connection);
        }
        let known = self.inner.bootstrap.borrow().clone();
        if let Some(connection) = known.filter(Connection::is_open) {
            return Ok(connection);
        }
        let mut nodes: Vec<NodeId> = view.brokers.iter().map(|broker| broker.node).collect();
        shuffle(&mut nodes);
        let mut last = String::from("no broker is known");
        for node in nodes {
            match self.node(node).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error.to_string(),
            }
        }
        let mut servers = self.config().bootstrap_servers.clone();
        shuffle(&mut servers);
        for server in servers {
            let (host, port) = host_and_port(&server)?;
            match self.open(host, port).await {
                Ok(connection) => {
                    *self.inner.bootstrap.borrow_mut() = Some(connection.clone());
                    return Ok(connection);
                }
                Err(error) => last = error.to_string(),
            }
        }
        Err(ClientError::NoBroker(last))
    }

    /// Sends `request` to a broker.
    pub async fn call_node<R: Exchange>(
        &self,
        node: NodeId,
        request: &R,
    ) -> Result<R::Response, ClientError> {
        self.node(node)
            .await?
            .call(request, self.config().request_timeout)
            .await
    }

    /// Sends `request` to any broker, which forwards it to the controller if need be. `extra` is
    /// the time the request itself lets the broker take.
    pub async fn call_any<R: Exchange>(
        &self,
        request: &R,
        extra: Duration,
    ) -> Result<R::Response, ClientError> {
        self.any()
            .await?
            .call(request, self.config().request_timeout + extra)
            .await
    }

    /// Who coordinates a group or transactional id; its address enters the view if it is new.
    ///
    /// # Errors
    /// [`ClientError::Broker`] with COORDINATOR_NOT_AVAILABLE and the like, which are retriable.
    pub async fn find_coordinator(
        &self,
        kind: CoordinatorKind,
        key: &str,
    ) -> Result<NodeId, ClientError> {
        let connection = self.any().await?;
        let version = connection
            .versions()
            .choose::<FindCoordinatorRequest>(1, i16::MAX)?;
        let key = Str::from(key);
        let mut request = FindCoordinatorRequest {
            key_type: kind as i8,
            ..FindCoordinatorRequest::default()
        };
        if version >= 4 {
            request.coordinator_keys = vec![key.clone()];
        } else {
            request.key = key.clone();
        }
        let answer = connection
            .start(&request, version)?
            .answer::<FindCoordinatorRequest>(self.config().request_timeout)
            .await?;
        let (code, message, node) = match answer.coordinators.first() {
            Some(found) => (found.error_code, &found.error_message, found.node_id),
            None if version >= 4 => (ErrorCode::COORDINATOR_NOT_AVAILABLE.0, &None, -1),
            None => (answer.error_code, &answer.error_message, answer.node_id),
        };
        super::error::check_with(code, message.as_deref(), || format!("coordinator of {key}"))?;
        let node = NodeId(node);
        if self.view().broker(node).is_none() {
            self.refresh().await?;
        }
        Ok(node)
    }
}

fn missing(view: &ClusterView, topics: &[Str]) -> Option<(Str, ErrorCode)> {
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    topics.iter().find_map(|topic| match view.topic(topic) {
        Some(found) if !found.partitions.is_empty() => None,
        _ => Some((topic.clone(), view.error_of(topic).unwrap_or(unknown))),
    })
}

fn shuffle<T>(items: &mut [T]) {
    for at in (1..items.len()).rev() {
        items.swap(at, rt::random_below(at as u64 + 1) as usize);
    }
}

/// Repeats `attempt` while its error is retriable, `deadline` has not passed and nobody has given
/// up, with the back-off of `config`.
pub(super) async fn retry_until<T>(
    config: &ClientConfig,
    deadline: Instant,
    given_up: impl Fn() -> bool,
    mut attempt: impl AsyncFnMut() -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let mut failures = 0;
    loop {
        match attempt().await {
            Err(error) if error.is_retriable() && !given_up() => {
                failures += 1;
                let delay = config.retry_backoff.delay(failures, rt::random_u64());
                if rt::now() + delay >= deadline {
                    return Err(error);
                }
                rt::sleep(delay).await;
            }
            result => return result,
        }
    }
}

/// `host:port`, the host in brackets if it is an IPv6 address.
pub(super) fn host_and_port(server: &str) -> Result<(&str, u16), ClientError> {
    let invalid = || ClientError::Invalid(format!("bootstrap server {server:?} is not host:port"));
    let (host, port) = server.rsplit_once(':').ok_or_else(invalid)?;
    let port = port.parse().map_err(|_| invalid())?;
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if host.is_empty() {
        Err(invalid())
    } else {
        Ok((host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_servers_are_host_and_port() {
        assert_eq!(host_and_port("a.b:9092").ok(), Some(("a.b", 9092)));
        assert_eq!(host_and_port("[::1]:9092").ok(), Some(("::1", 9092)));
        for wrong in ["", "a", "a:", ":9092", "a:b", "a:70000", "a:-1"] {
            assert!(host_and_port(wrong).is_err(), "{wrong:?}");
        }
    }
}
