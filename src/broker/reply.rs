//! An answer on its way to the socket: its bytes, and what the request log and the metrics want
//! to know once it has left. Lives on the connection's shard.

use super::request::Context;
use crate::observe::request_log;
use crate::rt::Instant;
use crate::rt::net::Piece;
use crate::wire::{EncodeError, Message, Writer, api};
use bytes::BytesMut;
use std::rc::Rc;

/// The int32 size before every frame.
const SIZE_PREFIX: usize = 4;

/// The request and response as JSON, taken only when the request log is on.
pub struct Logged {
    pub request: serde_json::Value,
    pub response: serde_json::Value,
}

/// One request's answer. No bytes for a produce with acks=0.
pub struct Reply {
    bytes: Vec<Piece>,
    size: usize,
    /// Close the connection after these bytes.
    pub close: bool,
    context: Rc<Context>,
    logged: Option<Box<Logged>>,
}

impl Reply {
    /// Encodes `response` with its header, as the request's version wants it.
    pub fn encode<R: Message>(
        context: &Rc<Context>,
        response: &R,
        request: Option<serde_json::Value>,
    ) -> Result<Reply, EncodeError> {
        let (bytes, version) = (
            Self::frame(context, response, context.version)?,
            context.version,
        );
        let logged = request.map(|request| {
            Box::new(Logged {
                request,
                response: response.to_json(version),
            })
        });
        let size = bytes.iter().map(Piece::len).sum();
        Ok(Reply {
            bytes,
            size,
            close: false,
            context: context.clone(),
            logged,
        })
    }

    /// Encodes in another version than the request's: only for ApiVersions, whose requests of
    /// unknown versions are answered in version 0.
    pub fn encode_as<R: Message>(
        context: &Rc<Context>,
        response: &R,
        version: i16,
    ) -> Result<Reply, EncodeError> {
        let bytes = Self::frame(context, response, version)?;
        let size = bytes.iter().map(Piece::len).sum();
        Ok(Reply {
            bytes,
            size,
            close: false,
            context: context.clone(),
            logged: None,
        })
    }

    fn frame<R: Message>(
        context: &Context,
        response: &R,
        version: i16,
    ) -> Result<Vec<Piece>, EncodeError> {
        let mut writer = Writer::new();
        // The size goes here once it is known.
        writer.i32(0);
        writer.i32(context.correlation_id);
        if api::response_header_version(context.key, version) == Some(1) {
            writer.uvarint(0);
        }
        response.encode(&mut writer, version)?;
        let size = (writer.len() - SIZE_PREFIX) as i32;
        let mut parts = writer.finish();
        if let Some(Piece::Bytes(first)) = parts.first_mut() {
            // The writer's own buffer, which nobody else holds: no copy.
            let mut head = BytesMut::from(std::mem::take(first));
            head[..SIZE_PREFIX].copy_from_slice(&size.to_be_bytes());
            *first = head.freeze();
        }
        Ok(parts)
    }

    /// No answer at all (acks=0); closes the connection when the produce failed.
    pub fn none(context: &Rc<Context>, close: bool, request: Option<serde_json::Value>) -> Reply {
        let logged = request.map(|request| {
            Box::new(Logged {
                request,
                response: serde_json::Value::from(""),
            })
        });
        Reply {
            bytes: Vec::new(),
            size: 0,
            close,
            context: context.clone(),
            logged,
        }
    }

    /// The bytes to send; what is left knows only their size.
    pub fn take_bytes(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.bytes)
    }

    /// The bytes have left: `dequeued` is when their write began, `sent` when it ended.
    pub fn left(self, dequeued: Instant, sent: Instant) {
        self.context
            .shard
            .metrics()
            .on_reply(&self.context, self.size, dequeued, sent);
        if let Some(logged) = self.logged {
            request_log::write(&self.context, &logged, dequeued, sent);
        }
    }
}
