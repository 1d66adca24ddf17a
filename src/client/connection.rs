//! One connection to one broker: versions agreed on, requests pipelined, answers matched to them.
//!
//! One executor. Owns two tasks, one that writes and one that reads; both end when the last handle
//! is dropped. A broker answers the requests of a connection in their order, so what waits for
//! answers is a queue. A late answer closes the connection: whether its request was executed is
//! unknown, and everything behind it would be late too. Never retries and never reconnects.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::error::ClientError;
use super::exchange::Exchange;
use super::versions::Versions;
use crate::rt::net::{Piece, ReadHalf, Stream, WriteHalf};
use crate::rt::sync::{Event, Notify, oneshot};
use crate::rt::{self, Either2};
use crate::wire::api::{request_header_version, response_header_version};
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::wire::messages::api_versions_request::ApiVersionsRequest;
use crate::wire::{ErrorCode, Message, Reader, Str, Writer};

#[cfg(test)]
thread_local! {
    /// Answers that came twice, unasked or out of turn: a simulated world must have none.
    pub(crate) static MISPLACED: Cell<u64> = const { Cell::new(0) };
}

/// An answer that claims to be larger closes the connection. `fetch.max.bytes` may be exceeded by
/// one batch; this leaves room for the largest the broker's own frame limit lets in.
pub const RESPONSE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Requests of one connection that wait for their answers; a caller above it is refused.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 1024;
/// The reading buffer grows by at most this at a time, whatever an answer claims as its length.
const READ_STEP: usize = 256 * 1024;

/// A handle; clones share the connection.
#[derive(Clone)]
pub struct Connection {
    handle: Rc<Handle>,
}

struct Handle {
    shared: Rc<Shared>,
    versions: Versions,
}

struct Shared {
    /// `host:port`, for messages.
    peer: String,
    client_id: Str,
    next_correlation: Cell<i32>,
    /// Encoded requests in the order of their correlation ids.
    outgoing: RefCell<VecDeque<Vec<Piece>>>,
    bell: Notify,
    waiting: RefCell<VecDeque<Waiting>>,
    /// Why the connection is over.
    over: RefCell<Option<ClientError>>,
    ended: Event,
}

struct Waiting {
    correlation: i32,
    answer: oneshot::Sender<Result<Bytes, ClientError>>,
}

/// A request that was queued; its answer is still to come.
pub struct Sent {
    shared: Rc<Shared>,
    version: i16,
    answer: oneshot::Receiver<Result<Bytes, ClientError>>,
}

impl Connection {
    /// Connects to the first address of `host` that accepts, and asks for versions.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`], [`ClientError::TimedOut`] after `setup_timeout`, or what the
    /// broker answers to ApiVersions.
    pub async fn open(
        host: &str,
        port: u16,
        client_id: &str,
        setup_timeout: Duration,
    ) -> Result<Connection, ClientError> {
        let peer = format!("{host}:{port}");
        match rt::timeout(
            setup_timeout,
            Connection::set_up(host, port, &peer, client_id),
        )
        .await
        {
            Ok(result) => result,
            Err(_) => Err(ClientError::TimedOut {
                peer,
                api: "connect",
            }),
        }
    }

    async fn set_up(
        host: &str,
        port: u16,
        peer: &str,
        client_id: &str,
    ) -> Result<Connection, ClientError> {
        let addresses = rt::net::resolve(host, port)
            .await
            .map_err(|error| ClientError::io(peer, &error))?;
        let mut stream = Err(ClientError::NoBroker(peer.to_owned()));
        for address in addresses {
            stream = Stream::connect(address)
                .await
                .map_err(|error| ClientError::io(peer, &error));
            if stream.is_ok() {
                break;
            }
        }
        let (read, write) = stream?.split();
        let shared = Rc::new(Shared {
            peer: peer.to_owned(),
            client_id: Str::from(client_id),
            next_correlation: Cell::new(0),
            outgoing: RefCell::new(VecDeque::new()),
            bell: Notify::new(),
            waiting: RefCell::new(VecDeque::new()),
            over: RefCell::new(None),
            ended: Event::new(),
        });
        drop(rt::spawn(write_requests(shared.clone(), write)));
        drop(rt::spawn(read_answers(shared.clone(), read)));
        // From here on whoever drops this ends both tasks.
        let mut handle = Handle {
            shared,
            versions: Versions::default(),
        };
        handle.versions = agree(&handle.shared).await?;
        Ok(Connection {
            handle: Rc::new(handle),
        })
    }

    /// `host:port`.
    pub fn peer(&self) -> &str {
        &self.handle.shared.peer
    }

    /// What the broker speaks.
    pub fn versions(&self) -> &Versions {
        &self.handle.versions
    }

    pub fn is_open(&self) -> bool {
        self.handle.shared.over.borrow().is_none()
    }

    /// Requests whose answers have not come.
    pub fn in_flight(&self) -> usize {
        self.handle.shared.waiting.borrow().len()
    }

    /// Sends `request` at the last version both sides speak and waits for its answer.
    ///
    /// # Errors
    /// See [`Sent::answer`] and [`Connection::start`].
    pub async fn call<R: Exchange>(
        &self,
        request: &R,
        limit: Duration,
    ) -> Result<R::Response, ClientError> {
        self.call_up_to(request, i16::MAX, limit).await
    }

    /// [`Connection::call`] at no later version than `last`.
    pub async fn call_up_to<R: Exchange>(
        &self,
        request: &R,
        last: i16,
        limit: Duration,
    ) -> Result<R::Response, ClientError> {
        let version = self.versions().choose::<R>(0, last)?;
        self.start(request, version)?.answer::<R>(limit).await
    }

    /// Queues `request` now, so that requests leave in the order of these calls.
    ///
    /// # Errors
    /// [`ClientError::Unwritable`]; the connection's end if it is over, or
    /// [`ClientError::Disconnected`] when [`REQUESTS_IN_FLIGHT_MAX`] wait.
    pub fn start<R: Exchange>(&self, request: &R, version: i16) -> Result<Sent, ClientError> {
        self.handle.shared.start(request, version)
    }

    /// Queues a request that has no answer (a produce with `acks=0`).
    ///
    /// # Errors
    /// As [`Connection::start`].
    pub fn start_unanswered<R: Exchange>(
        &self,
        request: &R,
        version: i16,
    ) -> Result<(), ClientError> {
        self.handle.shared.queue(request, version).map(|_| ())
    }

    /// Ends the connection; what waits gets [`ClientError::Closed`].
    pub fn close(&self) {
        self.handle.shared.end(&ClientError::Closed);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.end(&ClientError::Closed);
    }
}

impl Shared {
    fn start<R: Exchange>(self: &Rc<Self>, request: &R, version: i16) -> Result<Sent, ClientError> {
        if self.waiting.borrow().len() >= REQUESTS_IN_FLIGHT_MAX {
            return Err(ClientError::Disconnected {
                peer: self.peer.clone(),
                reason: format!("{REQUESTS_IN_FLIGHT_MAX} requests wait for answers already"),
            });
        }
        let correlation = self.queue(request, version)?;
        let (sender, answer) = oneshot::channel();
        self.waiting.borrow_mut().push_back(Waiting {
            correlation,
            answer: sender,
        });
        Ok(Sent {
            shared: self.clone(),
            version,
            answer,
        })
    }

    /// Encodes and queues; returns the correlation id.
    fn queue<R: Exchange>(&self, request: &R, version: i16) -> Result<i32, ClientError> {
        if let Some(over) = &*self.over.borrow() {
            return Err(over.clone());
        }
        let correlation = self.next_correlation.get();
        let unsupported = ClientError::UnsupportedVersion { api: R::KEY.name() };
        let header_version = request_header_version(R::KEY, version).ok_or(unsupported)?;
        let header = RequestHeader {
            request_api_key: R::API_KEY,
            request_api_version: version,
            correlation_id: correlation,
            client_id: Some(self.client_id.clone()),
            ..RequestHeader::default()
        };
        let mut w = Writer::new();
        header.encode(&mut w, header_version)?;
        request.encode(&mut w, version)?;
        let mut length = Writer::with_capacity(4);
        length.i32(w.len() as i32);
        let mut frame = length.finish();
        frame.extend(w.finish());
        self.next_correlation.set(correlation.wrapping_add(1));
        self.outgoing.borrow_mut().push_back(frame);
        self.bell.notify_one();
        Ok(correlation)
    }

    fn end(&self, error: &ClientError) {
        let mut over = self.over.borrow_mut();
        if over.is_some() {
            return;
        }
        *over = Some(error.clone());
        drop(over);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for waiting in waiting {
            // Nobody may wait any more.
            let _ = waiting.answer.send(Err(error.clone()));
        }
        self.outgoing.borrow_mut().clear();
        self.bell.notify_one();
        self.ended.notify_all();
    }

    fn accept(&self, frame: Bytes) -> Result<(), ClientError> {
        let correlation = frame.first_chunk::<4>().map(|id| i32::from_be_bytes(*id));
        let head = self.waiting.borrow_mut().pop_front();
        match head {
            Some(waiting) if Some(waiting.correlation) == correlation => {
                // Whoever waited may have given up.
                let _ = waiting.answer.send(Ok(frame));
                Ok(())
            }
            other => {
                // One that was given up is answered late and read by nobody.
                #[cfg(test)]
                MISPLACED.set(MISPLACED.get() + u64::from(self.over.borrow().is_none()));
                let reason = format!(
                    "answer {correlation:?} where {:?} was due",
                    other.as_ref().map(|waiting| waiting.correlation)
                );
                let error = ClientError::Disconnected {
                    peer: self.peer.clone(),
                    reason,
                };
                if let Some(waiting) = other {
                    let _ = waiting.answer.send(Err(error.clone()));
                }
                Err(error)
            }
        }
    }
}

impl Sent {
    /// The answer, decoded. After `limit` the connection is closed.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`], [`ClientError::Malformed`], or the end of the connection.
    pub async fn answer<R: Exchange>(self, limit: Duration) -> Result<R::Response, ClientError> {
        let Sent {
            shared,
            version,
            answer,
        } = self;
        let frame = match rt::timeout(limit, answer).await {
            Ok(Ok(result)) => result?,
            Ok(Err(_)) => return Err(ClientError::Closed),
            Err(_) => {
                let api = R::KEY.name();
                let error = ClientError::TimedOut {
                    peer: shared.peer.clone(),
                    api,
                };
                shared.end(&error);
                return Err(error);
            }
        };
        decode::<R>(frame, version).inspect_err(|error| shared.end(error))
    }
}

fn decode<R: Exchange>(frame: Bytes, version: i16) -> Result<R::Response, ClientError> {
    let unsupported = ClientError::UnsupportedVersion { api: R::KEY.name() };
    let header_version = response_header_version(R::KEY, version).ok_or(unsupported)?;
    let mut r = Reader::new(frame);
    ResponseHeader::decode(&mut r, header_version)?;
    Ok(R::Response::decode(&mut r, version)?)
}

/// Asks for versions, first in our newest way; a broker that does not know it says so in version 0.
async fn agree(shared: &Rc<Shared>) -> Result<Versions, ClientError> {
    let request = ApiVersionsRequest {
        client_software_name: Str::from_static("highwater"),
        client_software_version: Str::from_static(env!("CARGO_PKG_VERSION")),
        ..ApiVersionsRequest::default()
    };
    // The answer to a version that the broker does not know comes in version 0 with an error.
    let latest = ApiVersionsRequest::MAX_VERSION;
    let frame = receive(shared.start(&request, latest)?).await?;
    let code = frame
        .get(4..6)
        .map(|code| ErrorCode(i16::from_be_bytes([code[0], code[1]])));
    let answer = if code == Some(ErrorCode::UNSUPPORTED_VERSION) {
        decode::<ApiVersionsRequest>(receive(shared.start(&request, 0)?).await?, 0)?
    } else {
        decode::<ApiVersionsRequest>(frame, latest)?
    };
    super::error::check(answer.error_code, || "API_VERSIONS".to_owned())?;
    Ok(Versions::new(&answer))
}

/// The raw answer; the caller bounds the time.
async fn receive(sent: Sent) -> Result<Bytes, ClientError> {
    sent.answer.await.unwrap_or(Err(ClientError::Closed))
}

async fn write_requests(shared: Rc<Shared>, mut write: WriteHalf) {
    let ended = shared.ended.wait();
    let mut ended = std::pin::pin!(ended);
    while shared.over.borrow().is_none() {
        // All that has come together goes out in one call.
        let frames = std::mem::take(&mut *shared.outgoing.borrow_mut());
        if frames.is_empty() {
            shared.bell.notified().await;
            continue;
        }
        let parts: Vec<Piece> = frames.into_iter().flatten().collect();
        // A broker that does not read must not keep a connection that is over.
        match rt::select2(ended.as_mut(), write.write_all(&parts)).await {
            Either2::First(()) => break,
            Either2::Second(Ok(())) => {}
            Either2::Second(Err(error)) => shared.end(&ClientError::io(&shared.peer, &error)),
        }
    }
    // The reading half sees the end of the stream.
    write.close_both();
}

async fn read_answers(shared: Rc<Shared>, mut read: ReadHalf) {
    let mut buffer = BytesMut::new();
    let over = loop {
        if shared.over.borrow().is_some() {
            return;
        }
        match next_frame(&mut buffer) {
            Ok(Cut::Frame(frame)) => {
                if let Err(error) = shared.accept(frame) {
                    break error;
                }
            }
            Ok(Cut::Missing(bytes)) => match read.read_towards(&mut buffer, bytes).await {
                Ok(0) => {
                    let reason = "closed by the broker".to_owned();
                    break ClientError::Disconnected {
                        peer: shared.peer.clone(),
                        reason,
                    };
                }
                Ok(_) => {}
                Err(error) => break ClientError::io(&shared.peer, &error),
            },
            Err(length) => {
                let reason = format!("an answer of {length} bytes");
                break ClientError::Disconnected {
                    peer: shared.peer.clone(),
                    reason,
                };
            }
        }
    };
    shared.end(&over);
}

/// What there is at the front of the buffer.
#[derive(Debug, PartialEq)]
enum Cut {
    Frame(Bytes),
    /// At least so many bytes are still to come.
    Missing(usize),
}

/// Cuts one answer off the front, or makes room for more of it. Fails with a length that is not
/// acceptable.
fn next_frame(buffer: &mut BytesMut) -> Result<Cut, i32> {
    let Some(length) = buffer
        .first_chunk::<4>()
        .map(|length| i32::from_be_bytes(*length))
    else {
        buffer.reserve(4096);
        return Ok(Cut::Missing(4 - buffer.len()));
    };
    let needed = match usize::try_from(length) {
        Ok(length) if (4..=RESPONSE_BYTES_MAX).contains(&length) => 4 + length,
        _ => return Err(length),
    };
    if buffer.len() < needed {
        let missing = needed - buffer.len();
        buffer.reserve(missing.clamp(4096, READ_STEP));
        return Ok(Cut::Missing(missing));
    }
    let mut frame = buffer.split_to(needed);
    Ok(Cut::Frame(frame.split_off(4).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_cut_out_whatever_pieces_they_come_in() {
        let mut wire = BytesMut::new();
        for body in [&b"abcd"[..], b"abcdefgh", b"0123456789"] {
            wire.extend_from_slice(&(body.len() as i32).to_be_bytes());
            wire.extend_from_slice(body);
        }
        for step in 1..wire.len() {
            let mut buffer = BytesMut::new();
            let mut frames = Vec::new();
            for piece in wire.chunks(step) {
                buffer.extend_from_slice(piece);
                while let Cut::Frame(frame) = next_frame(&mut buffer).unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(
                frames,
                [&b"abcd"[..], b"abcdefgh", b"0123456789"],
                "pieces of {step}"
            );
        }
    }

    #[test]
    fn a_length_is_not_believed_before_its_bytes_are_there() {
        for length in [-1, 0, 3, i32::MIN, i32::MAX] {
            let mut buffer = BytesMut::from(&length.to_be_bytes()[..]);
            assert_eq!(next_frame(&mut buffer), Err(length));
        }
        let mut buffer = BytesMut::from(&(RESPONSE_BYTES_MAX as i32).to_be_bytes()[..]);
        assert!(matches!(next_frame(&mut buffer), Ok(Cut::Missing(_))));
        assert!(buffer.capacity() <= 2 * READ_STEP, "{}", buffer.capacity());
    }
}
