//! Writes what is about all messages at once: the table of APIs, and the enums of all requests,
//! responses and records with their dispatch by key. Build-time only.

use super::emit::line;
use super::model::{Kind, Message, snake};

pub fn emit(out: &mut String, messages: &[Message]) {
    emit_apis(out, messages);
    emit_any(out, messages, Kind::Request, "AnyRequest", "Any request.");
    emit_any(
        out,
        messages,
        Kind::Response,
        "AnyResponse",
        "Any response.",
    );
    emit_any(
        out,
        messages,
        Kind::Record,
        "AnyRecord",
        "Any record of the metadata log.",
    );
    let mut families: Vec<&str> = messages
        .iter()
        .filter(|m| m.kind == Kind::Key)
        .map(|m| m.family())
        .collect();
    families.dedup();
    for family in families {
        emit_coordinator(out, messages, family);
    }
    emit_catalog(out, messages);
}

fn emit_apis(out: &mut String, messages: &[Message]) {
    let mut requests: Vec<&Message> = messages
        .iter()
        .filter(|m| m.kind == Kind::Request)
        .collect();
    requests.sort_by_key(|m| m.key);
    line(out, format_args!("/// Every API, by rising key."));
    line(
        out,
        format_args!(
            "pub static APIS: [crate::wire::api::ApiInfo; {}] = [",
            requests.len()
        ),
    );
    for request in &requests {
        let response = messages
            .iter()
            .find(|m| m.kind == Kind::Response && m.key == request.key);
        line(
            out,
            format_args!(
                "crate::wire::api::ApiInfo {{ key: {}, name: \"{}\", min_version: {}, max_version: {}, max_stable_version: {}, \
                 request_flexible_from: {:?}, response_flexible_from: {:?}, on_broker: {}, on_controller: {} }},",
                request.key.unwrap_or(-1),
                snake(&request.base).to_uppercase(),
                request.versions.first,
                request.versions.last,
                request.versions.last - i16::from(request.unstable),
                request.flexible,
                response.and_then(|r| r.flexible),
                request.on_broker,
                request.on_controller,
            ),
        );
    }
    line(out, format_args!("];"));
    line(out, format_args!("impl crate::wire::api::ApiKey {{"));
    for request in &requests {
        let name = snake(&request.base).to_uppercase();
        line(
            out,
            format_args!(
                "pub const {name}: Self = Self({});",
                request.key.unwrap_or(-1)
            ),
        );
    }
    line(out, format_args!("}}"));
}

fn emit_any(out: &mut String, messages: &[Message], kind: Kind, name: &str, doc: &str) {
    let of_kind: Vec<&Message> = messages.iter().filter(|m| m.kind == kind).collect();
    let path = |m: &Message| format!("{}::{}", m.module(), m.name());
    line(out, format_args!("/// {doc}"));
    line(out, format_args!("#[derive(Clone, Debug, PartialEq)]"));
    line(out, format_args!("#[allow(clippy::large_enum_variant)]"));
    line(out, format_args!("pub enum {name} {{"));
    for m in &of_kind {
        line(out, format_args!("{}({}),", m.base, path(m)));
    }
    line(out, format_args!("}}"));
    for m in &of_kind {
        line(
            out,
            format_args!(
                "impl From<{}> for {name} {{ fn from(m: {0}) -> Self {{ Self::{}(m) }} }}",
                path(m),
                m.base
            ),
        );
    }
    line(out, format_args!("impl {name} {{"));
    line(
        out,
        format_args!(
            "/// Decodes the message with the key; fails if there is none or not at the version."
        ),
    );
    line(
        out,
        format_args!(
            "pub fn decode(key: i16, r: &mut crate::wire::Reader, version: i16) -> Result<Self, crate::wire::DecodeError> {{"
        ),
    );
    line(
        out,
        format_args!("use crate::wire::Message; Ok(match key {{"),
    );
    for m in &of_kind {
        line(
            out,
            format_args!(
                "{} => Self::{}(Message::decode(r, version)?),",
                m.key.unwrap_or(-1),
                m.base
            ),
        );
    }
    line(
        out,
        format_args!(
            "_ => return Err(crate::wire::DecodeError::new(crate::wire::DecodeFault::UnknownKey(key.into()), \"key\", r.position())) }}) }}"
        ),
    );
    line(
        out,
        format_args!("pub fn key(&self) -> i16 {{ match self {{"),
    );
    for m in &of_kind {
        line(
            out,
            format_args!("Self::{}(_) => {},", m.base, m.key.unwrap_or(-1)),
        );
    }
    line(out, format_args!("}} }}"));
    for (signature, call) in [
        (
            "/// Whether the version has tagged fields.\npub fn is_flexible(&self, version: i16) -> bool",
            "flexible_of(m, version)",
        ),
        (
            "pub fn encode(&self, w: &mut crate::wire::Writer, version: i16) -> Result<(), crate::wire::EncodeError>",
            "m.encode(w, version)",
        ),
        (
            "/// As Kafka's JSON converters print it.\npub fn to_json(&self, version: i16) -> serde_json::Value",
            "m.to_json(version)",
        ),
    ] {
        line(out, format_args!("{signature} {{"));
        line(
            out,
            format_args!("#[allow(unused_imports)] use crate::wire::Message; match self {{"),
        );
        for m in &of_kind {
            line(out, format_args!("Self::{}(m) => {call},", m.base));
        }
        line(out, format_args!("}} }}"));
    }
    line(out, format_args!("}}"));
}

/// The records of one coordinator: an enum of keys, each with its value or, for a tombstone,
/// none. Key and value belong together by their number.
fn emit_coordinator(out: &mut String, messages: &[Message], family: &str) {
    let name = upper_camel(family.trim_end_matches('s'));
    let path = |m: &Message| format!("{}::{}", m.module(), m.name());
    let pairs: Vec<(&Message, &Message)> = messages
        .iter()
        .filter(|m| m.kind == Kind::Key && m.family() == family)
        .filter_map(|key| {
            let value =
                |m: &&Message| m.kind == Kind::Value && m.family() == family && m.key == key.key;
            messages.iter().find(value).map(|value| (key, value))
        })
        .collect();
    line(
        out,
        format_args!(
            "/// A record of a coordinator's log: its key, and its value unless it is a tombstone."
        ),
    );
    line(out, format_args!("#[derive(Clone, Debug, PartialEq)]"));
    line(out, format_args!("#[allow(clippy::large_enum_variant)]"));
    line(out, format_args!("pub enum {name} {{"));
    for (key, value) in &pairs {
        line(
            out,
            format_args!("{}({}, Option<{}>),", key.base, path(key), path(value)),
        );
    }
    line(out, format_args!("}}"));
    line(
        out,
        format_args!(
            "impl {name} {{
/// Decodes a record. The key begins with its type, the value with its version (int16 each).
pub fn decode(key: bytes::Bytes, value: Option<bytes::Bytes>) -> Result<Self, crate::wire::DecodeError> {{
use crate::wire::coordinator_record::{{read_key, read_value}};
let mut r = crate::wire::Reader::new(key);
Ok(match r.i16(\"key type\")? {{"
        ),
    );
    for (key, _) in &pairs {
        let number = key.key.unwrap_or(-1);
        line(
            out,
            format_args!(
                "{number} => Self::{}(read_key(r)?, read_value(value)?),",
                key.base
            ),
        );
    }
    line(
        out,
        format_args!(
            "other => return Err(crate::wire::DecodeError::new(crate::wire::DecodeFault::UnknownKey(other.into()), \"key type\", 0)),
}})
}}
/// Key and value as they are stored; the value in the given version, 0 for a tombstone.
pub fn encode(&self, version: i16) -> Result<(bytes::Bytes, Option<bytes::Bytes>), crate::wire::EncodeError> {{
use crate::wire::coordinator_record::encode_pair;
match self {{"
        ),
    );
    for (key, _) in &pairs {
        line(
            out,
            format_args!(
                "Self::{}(k, v) => encode_pair(k, v.as_ref(), version),",
                key.base
            ),
        );
    }
    line(out, format_args!("}}"));
    line(out, format_args!("}}"));
    line(out, format_args!("}}"));
}

fn upper_camel(snake: &str) -> String {
    snake
        .split('_')
        .map(|word| word[..1].to_uppercase() + &word[1..])
        .collect()
}

fn emit_catalog(out: &mut String, messages: &[Message]) {
    line(
        out,
        format_args!(
            "fn flexible_of<M: crate::wire::Message>(_: &M, version: i16) -> bool {{ M::is_flexible(version) }}"
        ),
    );
    line(out, format_args!("/// Every message there is."));
    line(
        out,
        format_args!(
            "pub static CATALOG: [crate::wire::message::MessageInfo; {}] = [",
            messages.len()
        ),
    );
    for m in messages {
        line(
            out,
            format_args!(
                "crate::wire::message::MessageInfo::of::<{}::{}>(),",
                m.module(),
                m.name()
            ),
        );
    }
    line(out, format_args!("];"));
}
