//! What can go wrong between a client and its cluster, as types that a caller can act on.
//!
//! Any core. Never holds a message's payload.

use std::io;

use crate::wire::{DecodeError, EncodeError, ErrorCode};

/// Why a request got no usable answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// No TCP connection, or it ended before the answer came. The request may have been executed.
    #[error("connection to {peer}: {reason}")]
    Disconnected { peer: String, reason: String },
    /// `request.timeout.ms` or the caller's own limit passed. The request may have been executed.
    #[error("no answer from {peer} to {api} in time")]
    TimedOut { peer: String, api: &'static str },
    /// The broker and this client share no version of the API (or none that can say what is asked).
    #[error("the broker speaks no usable version of {api}")]
    UnsupportedVersion { api: &'static str },
    /// The cluster answered with an error. `message` is the broker's own text, or empty.
    #[error("{what}: {code}{}{message}", if .message.is_empty() { "" } else { ": " })]
    Broker {
        what: String,
        code: ErrorCode,
        message: String,
    },
    /// The answer does not follow the protocol; the connection is closed.
    #[error("the answer cannot be read: {0}")]
    Malformed(#[from] DecodeError),
    /// The request cannot be expressed at the version that the broker speaks.
    #[error("the request cannot be written: {0}")]
    Unwritable(#[from] EncodeError),
    /// None of the brokers could be reached.
    #[error("no broker can be reached: {0}")]
    NoBroker(String),
    /// The settings contradict themselves or the call.
    #[error("{0}")]
    Invalid(String),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

impl ClientError {
    pub(super) fn io(peer: &str, error: &io::Error) -> ClientError {
        ClientError::Disconnected {
            peer: peer.to_owned(),
            reason: error.to_string(),
        }
    }

    pub(super) fn broker(what: impl Into<String>, code: ErrorCode, message: &str) -> ClientError {
        ClientError::Broker {
            what: what.into(),
            code,
            message: message.to_owned(),
        }
    }

    /// Whether the same request may succeed if it is sent again.
    pub fn is_retriable(&self) -> bool {
        match self {
            ClientError::Disconnected { .. }
            | ClientError::TimedOut { .. }
            | ClientError::NoBroker(_) => true,
            ClientError::Broker { code, .. } => code.is_retriable(),
            _ => false,
        }
    }

    /// The broker's error code; for trouble with the connection the code that Kafka's clients use.
    pub fn code(&self) -> ErrorCode {
        match self {
            ClientError::Broker { code, .. } => *code,
            ClientError::TimedOut { .. } => ErrorCode::REQUEST_TIMED_OUT,
            ClientError::UnsupportedVersion { .. } => ErrorCode::UNSUPPORTED_VERSION,
            ClientError::Disconnected { .. } | ClientError::NoBroker(_) => {
                ErrorCode::NETWORK_EXCEPTION
            }
            _ => ErrorCode::UNKNOWN_SERVER_ERROR,
        }
    }
}

/// Turns an error code of a response into a result.
pub(super) fn check(code: i16, what: impl FnOnce() -> String) -> Result<(), ClientError> {
    match ErrorCode(code) {
        ErrorCode::NONE => Ok(()),
        code => Err(ClientError::broker(what(), code, "")),
    }
}

/// As [`check`], with the text that came with the code.
pub(super) fn check_with(
    code: i16,
    message: Option<&str>,
    what: impl FnOnce() -> String,
) -> Result<(), ClientError> {
    match ErrorCode(code) {
        ErrorCode::NONE => Ok(()),
        code => Err(ClientError::broker(
            what(),
            code,
            message.unwrap_or_default(),
        )),
    }
}
