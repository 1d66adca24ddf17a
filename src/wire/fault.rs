//! What can be wrong with bytes that should be a message, or with a message that should become
//! bytes.
//!
//! Both errors are one pointer wide: a decoder returns a `Result` for every field of the record
//! path, and the unhappy case is the only one that may cost.

use std::fmt;

/// Why bytes are not the message they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeFault {
    #[error("{needed} bytes needed, {remaining} left")]
    Truncated { needed: usize, remaining: usize },
    #[error("length {0} is negative")]
    NegativeLength(i64),
    #[error("null where the version allows none")]
    UnexpectedNull,
    #[error("a string of {0} bytes is longer than 32767")]
    StringTooLong(usize),
    #[error("a count of {count} cannot be in {remaining} bytes")]
    CountTooLarge { count: usize, remaining: usize },
    #[error("a variable-length integer runs past its last byte")]
    VarintTooLong,
    #[error("a tagged field of {size} bytes left {left} of them unread")]
    TagSize { size: usize, left: usize },
    #[error("the version is not one of the message's")]
    UnsupportedVersion,
    #[error("there is no message with key {0}")]
    UnknownKey(i32),
    #[error("{0} bytes follow the message")]
    TrailingBytes(usize),
    #[error("frame version {0} is not known")]
    FrameVersion(u32),
}

/// A message could not be read.
#[derive(Clone, PartialEq, Eq)]
pub struct DecodeError(Box<DecodeDetail>);

#[derive(Clone, PartialEq, Eq)]
struct DecodeDetail {
    fault: DecodeFault,
    field: &'static str,
    position: usize,
    message: &'static str,
    version: i16,
}

impl DecodeError {
    /// `position` counts bytes from the start of what the reader was given.
    #[cold]
    pub fn new(fault: DecodeFault, field: &'static str, position: usize) -> DecodeError {
        DecodeError(Box::new(DecodeDetail {
            fault,
            field,
            position,
            message: "",
            version: -1,
        }))
    }

    /// Names the message that was being read.
    #[cold]
    pub fn within(mut self, message: &'static str, version: i16) -> DecodeError {
        self.0.message = message;
        self.0.version = version;
        self
    }

    pub fn fault(&self) -> DecodeFault {
        self.0.fault
    }

    /// `Struct.field` of the schema, or what else was being read.
    pub fn field(&self) -> &'static str {
        self.0.field
    }

    pub fn position(&self) -> usize {
        self.0.position
    }

    pub fn message(&self) -> &'static str {
        self.0.message
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &*self.0;
        if !d.message.is_empty() {
            write!(f, "{} v{}: ", d.message, d.version)?;
        }
        write!(f, "{} at byte {}: {}", d.field, d.position, d.fault)
    }
}

impl fmt::Debug for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecodeError({self})")
    }
}

impl std::error::Error for DecodeError {}

/// Why a message has no bytes at a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeFault {
    #[error("is set, but the version has no such field and it may not be left out")]
    FieldNotInVersion,
    #[error("is null, which the version does not allow")]
    UnexpectedNull,
    #[error("is {0} long, more than the protocol can say")]
    TooLong(usize),
    #[error("is not one of the message's versions")]
    UnsupportedVersion,
    #[error("are set, but the version has no tagged fields")]
    TagsNotInVersion,
    #[error("holds tag {0} out of order or twice")]
    TagOrder(u32),
}

/// A message could not be written.
#[derive(Clone, PartialEq, Eq)]
pub struct EncodeError(Box<EncodeDetail>);

#[derive(Clone, PartialEq, Eq)]
struct EncodeDetail {
    fault: EncodeFault,
    field: &'static str,
    version: i16,
}

impl EncodeError {
    #[cold]
    pub fn new(fault: EncodeFault, field: &'static str) -> EncodeError {
        EncodeError(Box::new(EncodeDetail {
            fault,
            field,
            version: -1,
        }))
    }

    #[cold]
    pub fn at_version(mut self, version: i16) -> EncodeError {
        self.0.version = version;
        self
    }

    pub fn fault(&self) -> EncodeFault {
        self.0.fault
    }

    /// `Struct.field` of the schema, or the message's name.
    pub fn field(&self) -> &'static str {
        self.0.field
    }

    pub fn version(&self) -> i16 {
        self.0.version
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "version {}: {} {}",
            self.0.version, self.0.field, self.0.fault
        )
    }
}

impl fmt::Debug for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodeError({self})")
    }
}

impl std::error::Error for EncodeError {}
