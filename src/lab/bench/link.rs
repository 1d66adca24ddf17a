//! One connection of the load: requests out, whole answers in, with the moment of their arrival.
//!
//! One executor. Leaner than `client::Connection`, which the tool uses for all that is not load:
//! no task, timer or channel per request. Nothing here matches answers to requests, retries or
//! limits time: producers and consumers do that.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::client::{ClientError, Cluster, Exchange};
use crate::rt::net::{Piece, ReadHalf, Stream, WriteHalf, resolve};
use crate::rt::{self, Instant};
use crate::types::NodeId;
use crate::wire::api::{request_header_version, response_header_version};
use crate::wire::header::{RequestHeader, ResponseHeader};
use crate::wire::{Message, Reader, Str, Writer};

/// Room that a read is offered at least; small answers come many at a time.
const READ_BYTES: usize = 64 * 1024;
/// An answer that claims to be larger ends the connection.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Opens a connection to a broker that `cluster` knows.
///
/// # Errors
/// Of the connection; [`ClientError::NoBroker`] if the broker is not known.
pub(super) async fn open(
    cluster: &Cluster,
    node: NodeId,
    limit: Duration,
) -> Result<(WriteHalf, Answers), ClientError> {
    let view = cluster.view();
    let broker = view
        .broker(node)
        .ok_or_else(|| ClientError::NoBroker(format!("broker {} is not known", node.0)))?;
    let peer = format!("{}:{}", broker.host, broker.port);
    let failed = |error: io::Error| ClientError::Disconnected {
        peer: peer.clone(),
        reason: error.to_string(),
    };
    let connecting = async {
        let addresses = resolve(&broker.host, broker.port).await?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match Stream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    let stream = match rt::timeout(limit, connecting).await {
        Ok(stream) => stream.map_err(failed)?,
        Err(_) => {
            return Err(ClientError::TimedOut {
                peer,
                api: "connect",
            });
        }
    };
    let (read, write) = stream.split();
    let answers = Answers {
        read,
        buffer: BytesMut::with_capacity(READ_BYTES),
        arrived: Instant::default(),
    };
    Ok((write, answers))
}

/// The answers of a connection, in order.
pub(super) struct Answers {
    read: ReadHalf,
    buffer: BytesMut,
    /// When the bytes that came last came.
    arrived: Instant,
}

impl Answers {
    /// The next answer, from its correlation id on, and when its last byte was here.
    ///
    /// # Errors
    /// When the connection ends or the answer has an impossible length.
    pub(super) async fn next(&mut self) -> io::Result<(Bytes, Instant)> {
        loop {
            let needed = match self.buffer.first_chunk::<4>() {
                None => 4,
                Some(length) => 4 + answer_length(i32::from_be_bytes(*length))?,
            };
            if needed > 4 && self.buffer.len() >= needed {
                let mut frame = self.buffer.split_to(needed);
                return Ok((frame.split_off(4).freeze(), self.arrived));
            }
            // The memory of answers that were dropped is used again here.
            let missing = needed - self.buffer.len();
            if self.buffer.capacity() - self.buffer.len() < missing.max(4096) {
                self.buffer.reserve(missing.max(READ_BYTES));
            }
            let read = self.read.read_towards(&mut self.buffer, missing).await?;
            self.arrived = rt::now();
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn answer_length(length: i32) -> io::Result<usize> {
    match usize::try_from(length) {
        Ok(length) if (4..=ANSWER_BYTES_MAX).contains(&length) => Ok(length),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("an answer of {length} bytes"),
        )),
    }
}

/// A request as it goes out.
///
/// # Errors
/// When the version cannot say what the request does.
pub(super) fn frame<R: Exchange>(
    request: &R,
    version: i16,
    correlation: i32,
    client_id: &Str,
    out: &mut Vec<Piece>,
) -> Result<(), ClientError> {
    let header_version = request_header_version(R::KEY, version)
        .ok_or(ClientError::UnsupportedVersion { api: R::KEY.name() })?;
    let header = RequestHeader {
        request_api_key: R::API_KEY,
        request_api_version: version,
        correlation_id: correlation,
        client_id: Some(client_id.clone()),
        ..RequestHeader::default()
    };
    let mut w = Writer::new();
    header.encode(&mut w, header_version)?;
    request.encode(&mut w, version)?;
    out.push(Bytes::copy_from_slice(&(w.len() as i32).to_be_bytes()).into());
    out.extend(w.finish());
    Ok(())
}

/// The correlation id and the body of an answer.
///
/// # Errors
/// When it does not follow the protocol.
pub(super) fn read_answer<R: Exchange>(
    answer: Bytes,
    version: i16,
) -> Result<(i32, R::Response), ClientError> {
    let header_version = response_header_version(R::KEY, version)
        .ok_or(ClientError::UnsupportedVersion { api: R::KEY.name() })?;
    let mut r = Reader::new(answer);
    let header = ResponseHeader::decode(&mut r, header_version)?;
    Ok((header.correlation_id, R::Response::decode(&mut r, version)?))
}
