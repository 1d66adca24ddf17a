//! What every generated message can do, and how its fields appear as JSON.
//!
//! Any core. The JSON has the shape of Kafka's JSON converters, because the request log prints
//! it: camelCase keys in schema order, base64 for bytes, sizes instead of records.

use base64::Engine;
use bytes::Bytes;
use serde_json::{Map, Value};

use super::fault::{DecodeError, EncodeError};
use super::reader::Reader;
use super::records::Records;
use super::str::Str;
use super::writer::Writer;
use crate::types::Uuid;

/// A message, header or record with a schema.
pub trait Message: Sized {
    /// As Kafka names the schema, e.g. `ProduceRequest`.
    const NAME: &'static str;
    /// The API key of requests and responses, the record type of metadata records, the key
    /// version of coordinator records; -1 where there is none.
    const API_KEY: i16;
    const MIN_VERSION: i16;
    const MAX_VERSION: i16;

    /// Whether the version has compact lengths and tagged fields (KIP-482).
    fn is_flexible(version: i16) -> bool;

    /// Reads the message and leaves the reader behind it. Fails on a version out of range.
    fn decode(r: &mut Reader, version: i16) -> Result<Self, DecodeError>;

    /// Fails on a version out of range, a null where the version has none, and on a field that
    /// is set, cannot be left out and is not in the version.
    fn encode(&self, w: &mut Writer, version: i16) -> Result<(), EncodeError>;

    /// As Kafka's JSON converters print it; record bytes appear as their size.
    fn to_json(&self, version: i16) -> Value;

    /// Encodes into one piece.
    fn to_bytes(&self, version: i16) -> Result<Bytes, EncodeError> {
        let mut w = Writer::new();
        self.encode(&mut w, version)?;
        Ok(w.into_bytes())
    }

    /// Decodes a value that is all of `bytes`.
    fn from_bytes(bytes: Bytes, version: i16) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let message = Self::decode(&mut r, version)?;
        r.expect_end().map_err(|e| e.within(Self::NAME, version))?;
        Ok(message)
    }
}

/// A message without its type: for what handles any of them, such as tools and tests.
#[derive(Clone, Copy, Debug)]
pub struct MessageInfo {
    pub name: &'static str,
    pub key: i16,
    pub min_version: i16,
    pub max_version: i16,
    pub is_flexible: fn(version: i16) -> bool,
    /// Decodes bytes that are one message; returns its JSON and its bytes as we encode them.
    pub pass: fn(bytes: Bytes, version: i16) -> Result<Passed, DecodeError>,
}

/// What comes out of [`MessageInfo::pass`].
#[derive(Debug)]
pub struct Passed {
    pub json: Value,
    pub encoded: Result<Bytes, EncodeError>,
}

impl MessageInfo {
    pub const fn of<M: Message>() -> MessageInfo {
        MessageInfo {
            name: M::NAME,
            key: M::API_KEY,
            min_version: M::MIN_VERSION,
            max_version: M::MAX_VERSION,
            is_flexible: M::is_flexible,
            pass: |bytes, version| {
                let message = M::from_bytes(bytes, version)?;
                Ok(Passed {
                    json: message.to_json(version),
                    encoded: message.to_bytes(version),
                })
            },
        }
    }
}

/// A field's value as JSON.
pub trait FieldJson {
    fn field_json(&self) -> Value;
}

macro_rules! plain_json {
    ($($type:ty)*) => {$(
        impl FieldJson for $type {
            fn field_json(&self) -> Value {
                Value::from(*self)
            }
        }
    )*};
}

plain_json!(bool i8 i16 i32 i64 u16 u32);

impl FieldJson for f64 {
    // JSON has no NaN and no infinities; Kafka prints them as text.
    fn field_json(&self) -> Value {
        if self.is_finite() {
            Value::from(*self)
        } else if self.is_nan() {
            Value::from("NaN")
        } else {
            Value::from(if *self > 0.0 { "Infinity" } else { "-Infinity" })
        }
    }
}

impl FieldJson for Str {
    fn field_json(&self) -> Value {
        Value::String(self.as_str().to_owned())
    }
}

impl FieldJson for Uuid {
    fn field_json(&self) -> Value {
        Value::String(self.to_string())
    }
}

impl FieldJson for Bytes {
    fn field_json(&self) -> Value {
        Value::String(base64::engine::general_purpose::STANDARD.encode(self))
    }
}

impl FieldJson for Records {
    fn field_json(&self) -> Value {
        Value::from(self.len())
    }
}

impl<T: FieldJson> FieldJson for Vec<T> {
    fn field_json(&self) -> Value {
        self.iter().map(FieldJson::field_json).collect()
    }
}

impl<T: FieldJson> FieldJson for Option<T> {
    fn field_json(&self) -> Value {
        self.as_ref().map_or(Value::Null, FieldJson::field_json)
    }
}

/// The JSON object of one struct while its fields are added.
#[derive(Debug, Default)]
pub struct ObjectJson(Map<String, Value>);

impl ObjectJson {
    pub fn put(&mut self, name: &'static str, value: &dyn FieldJson) {
        self.0.insert(name.to_owned(), value.field_json());
    }

    pub fn put_value(&mut self, name: &'static str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// An array of `len` structs, of which `element` gives each.
    pub fn put_structs(
        &mut self,
        name: &'static str,
        len: usize,
        element: &dyn Fn(usize) -> Value,
    ) {
        self.put_value(name, Value::Array((0..len).map(element).collect()));
    }

    pub fn finish(self) -> Value {
        Value::Object(self.0)
    }
}
