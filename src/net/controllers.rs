//! The listeners of an embedded controller: other nodes' requests in, the controller's answers
//! out. Runs on the control executor, which the path of records never touches; requests of one
//! connection are answered strictly one after the other, as Kafka's controllers do. Never looks
//! into a request.

use super::admission::Admission;
use super::frame::FrameReader;
use crate::broker::api_versions;
use crate::cluster::apis::{self, Asker};
use crate::cluster::controller::Controller;
use crate::rt;
use crate::rt::net::{Listener, Stream};
use crate::shard::budget::Budget;
use crate::shard::connections::Connections;
use crate::wire::Message;
use crate::wire::api::ApiKey;
use crate::wire::frame::{RequestFrame, response_bytes};
use crate::wire::messages::api_versions_request::ApiVersionsRequest;
use bytes::Bytes;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Pause after a failed accept, as for the listeners of brokers.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// An ApiVersions request of another version is told which there are, in version 0.
const KNOWN_API_VERSIONS: RangeInclusive<i16> =
    ApiVersionsRequest::MIN_VERSION..=ApiVersionsRequest::MAX_VERSION;
/// What requests to the controller may hold: they carry no records of clients.
const REQUEST_MEMORY_BYTES: u64 = 64 * 1024 * 1024;

/// What the connections of all listeners of one controller share.
pub struct Controllers {
    controller: Rc<Controller>,
    admission: Arc<Admission>,
    budget: Rc<Budget>,
    connections: Connections,
    /// `socket.request.max.bytes`.
    request_max_bytes: usize,
}

impl Controllers {
    pub fn new(
        controller: Rc<Controller>,
        admission: Arc<Admission>,
        request_max_bytes: usize,
    ) -> Rc<Controllers> {
        Rc::new(Controllers {
            controller,
            admission,
            budget: Budget::new(REQUEST_MEMORY_BYTES),
            connections: Connections::new(),
            request_max_bytes,
        })
    }

    /// Serves `listener` until its task is dropped.
    pub async fn run(self: Rc<Self>, mut listener: Listener, name: String) {
        loop {
            let (stream, remote) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(listener = %name, %error, "accept failed");
                    rt::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match self.admission.admit(remote.ip()) {
                Ok(place) => {
                    let here = self.clone();
                    rt::spawn(async move {
                        here.serve(stream, remote).await;
                        drop(place);
                    });
                }
                Err(refused) => {
                    tracing::warn!(listener = %name, %remote, %refused, "connection refused");
                }
            }
        }
    }

    /// Tells every connection to end once its request under way is answered.
    pub fn end_all(&self) {
        self.connections.end_all();
    }

    async fn serve(&self, stream: Stream, remote: SocketAddr) {
        let (read, mut write) = stream.split();
        let mut frames = FrameReader::new(read, self.request_max_bytes, self.budget.clone());
        let life = self.connections.open();
        let mut told_to_end = std::pin::pin!(life.told_to_end());
        loop {
            let frame = {
                let next = std::pin::pin!(frames.next());
                match rt::select2(next, told_to_end.as_mut()).await {
                    rt::Either2::First(frame) => frame,
                    rt::Either2::Second(_) => break,
                }
            };
            let Ok(frame) = frame.inspect_err(|error| {
                tracing::debug!(peer = %remote, %error, "controller connection closed");
            }) else {
                break;
            };
            let Some(answer) = self.answer(frame.body, remote).await else {
                break;
            };
            let size = Bytes::copy_from_slice(&(answer.len() as i32).to_be_bytes());
            if let Err(error) = write.write_all(&[size.into(), answer.into()]).await {
                tracing::debug!(peer = %remote, %error, "answer could not be sent");
                break;
            }
        }
        // The peer may be gone already; there is nobody left to tell.
        let _ = write.shutdown().await;
        self.connections.closed(&life);
    }

    /// The response with its header; `None` closes the connection.
    async fn answer(&self, frame: Bytes, remote: SocketAddr) -> Option<Bytes> {
        let request = RequestFrame::open(frame).ok()?;
        let RequestFrame {
            key,
            mut version,
            correlation_id,
            client_id,
            body,
        } = request;
        let body = if key == ApiKey::API_VERSIONS && !KNOWN_API_VERSIONS.contains(&version) {
            version = 0;
            api_versions::unsupported().to_bytes(0).ok()
        } else {
            let asker = Asker {
                client_id,
                host: format!("/{}", remote.ip()),
            };
            apis::answer(&self.controller, &asker, key, version, body).await
        };
        let Some(body) = body else {
            tracing::debug!(peer = %remote, api = key.name(), version, "request refused, connection closed");
            return None;
        };
        response_bytes(key, version, correlation_id, &body).ok()
    }
}
