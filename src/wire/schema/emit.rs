//! Writes the Rust of all messages: one module each, with its structs and their defaults.
//! Build-time only.

use std::fmt::Write;

use super::emit_codec;
use super::emit_tables;
use super::model::{Field, Message, Struct, Type, Value, Versions, snake};

pub fn emit(messages: &[Message]) -> String {
    let mut out = String::new();
    for message in messages {
        emit_module(&mut out, message);
    }
    emit_tables::emit(&mut out, messages);
    out
}

fn emit_module(out: &mut String, message: &Message) {
    let name = message.name();
    line(
        out,
        format_args!("/// {name}, versions {}.", message.versions),
    );
    line(
        out,
        format_args!(
            "#[allow(unused_imports, unused_variables, unused_mut, unused_parens, clippy::all)]"
        ),
    );
    line(out, format_args!("pub mod {} {{", message.module()));
    line(out, format_args!("use crate::wire::generated::*;"));
    for one in &message.structs {
        emit_struct(out, message, one);
        emit_default(out, message, one);
        emit_codec::emit(out, message, one);
    }
    emit_message_trait(out, message);
    line(out, format_args!("}}"));
}

fn emit_struct(out: &mut String, message: &Message, one: &Struct) {
    let default = if has_plain_default(message, one) {
        "Default, "
    } else {
        ""
    };
    line(
        out,
        format_args!("#[derive(Clone, Debug, {default}PartialEq)]"),
    );
    line(out, format_args!("pub struct {} {{", one.name));
    for field in &one.fields {
        if field.versions != message.versions {
            line(out, format_args!("/// Versions {}.", field.versions));
        }
        line(
            out,
            format_args!("pub {}: {},", rust_name(field), rust_type(field)),
        );
    }
    line(
        out,
        format_args!("pub unknown_tagged_fields: TaggedFields,"),
    );
    line(out, format_args!("}}"));
}

/// Whether every field's default is what Rust would choose.
fn has_plain_default(message: &Message, one: &Struct) -> bool {
    one.fields.iter().all(|field| match field.default {
        // The struct inside may have defaults of its own; it brings its own `Default` for them.
        Value::Zero => field.nullable.is_none(),
        Value::Null => true,
        Value::True | Value::Int(_) => false,
    }) && message.structs.iter().any(|s| s.name == one.name)
}

fn emit_default(out: &mut String, message: &Message, one: &Struct) {
    if has_plain_default(message, one) {
        return;
    }
    line(out, format_args!("impl Default for {} {{", one.name));
    line(out, format_args!("fn default() -> Self {{"));
    line(out, format_args!("Self {{"));
    for field in &one.fields {
        line(
            out,
            format_args!("{}: {},", rust_name(field), default_value(field)),
        );
    }
    line(
        out,
        format_args!("unknown_tagged_fields: TaggedFields::default(),"),
    );
    line(out, format_args!("}}}}}}"));
}

fn emit_message_trait(out: &mut String, message: &Message) {
    let name = message.name();
    let Versions { first, last } = message.versions;
    let flexible = match message.flexible {
        Some(from) if from <= first => "true".to_owned(),
        Some(from) => format!("version >= {from}"),
        None => "false".to_owned(),
    };
    let range = if first == last {
        format!("version == {first}")
    } else {
        format!("({first}..={last}).contains(&version)")
    };
    line(
        out,
        format_args!(
            "impl Message for {name} {{
const NAME: &'static str = \"{name}\";
const API_KEY: i16 = {key};
const MIN_VERSION: i16 = {first};
const MAX_VERSION: i16 = {last};
fn is_flexible(version: i16) -> bool {{ {flexible} }}
fn decode(r: &mut Reader, version: i16) -> Result<Self, DecodeError> {{
if {range} {{ Self::read(r, version).map_err(|e| e.within(Self::NAME, version)) }}
else {{ Err(DecodeError::new(DecodeFault::UnsupportedVersion, \"version\", r.position()).within(Self::NAME, version)) }}
}}
fn encode(&self, w: &mut Writer, version: i16) -> Result<(), EncodeError> {{
if {range} {{ self.write(w, version).map_err(|e| e.at_version(version)) }}
else {{ Err(EncodeError::new(EncodeFault::UnsupportedVersion, Self::NAME).at_version(version)) }}
}}
fn to_json(&self, version: i16) -> Value {{ self.json(version) }}
}}",
            key = message.key.unwrap_or(-1)
        ),
    );
}

pub fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{text}");
}

pub fn rust_name(field: &Field) -> String {
    let name = snake(&field.name);
    match name.as_str() {
        "type" | "match" => format!("r#{name}"),
        _ => name,
    }
}

fn rust_type(field: &Field) -> String {
    let plain = rust_type_of(&field.kind);
    if field.nullable.is_some() {
        format!("Option<{plain}>")
    } else {
        plain
    }
}

fn rust_type_of(kind: &Type) -> String {
    match kind {
        Type::Bool => "bool".to_owned(),
        Type::Int8 => "i8".to_owned(),
        Type::Int16 => "i16".to_owned(),
        Type::Int32 => "i32".to_owned(),
        Type::Int64 => "i64".to_owned(),
        Type::Uint16 => "u16".to_owned(),
        Type::Uint32 => "u32".to_owned(),
        Type::Float64 => "f64".to_owned(),
        Type::Uuid => "Uuid".to_owned(),
        Type::String => "Str".to_owned(),
        Type::Bytes => "Bytes".to_owned(),
        Type::Records => "Records".to_owned(),
        Type::Struct(name) => name.clone(),
        Type::Array(element) => format!("Vec<{}>", rust_type_of(element)),
    }
}

pub fn default_value(field: &Field) -> String {
    match &field.default {
        Value::Null => "None".to_owned(),
        Value::True => "true".to_owned(),
        Value::Int(n) if field.kind == Type::Float64 => format!("{n}.0"),
        Value::Int(n) => n.to_string(),
        // Kafka's default for a nullable field without one is the empty value; for records, null.
        Value::Zero if field.nullable.is_some() && field.kind == Type::Records => "None".to_owned(),
        Value::Zero if field.nullable.is_some() => "Some(Default::default())".to_owned(),
        Value::Zero => match field.kind {
            Type::Bool => "false".to_owned(),
            Type::Float64 => "0.0".to_owned(),
            Type::Int8 | Type::Int16 | Type::Int32 | Type::Int64 | Type::Uint16 | Type::Uint32 => {
                "0".to_owned()
            }
            _ => "Default::default()".to_owned(),
        },
    }
}

/// A Rust condition that holds when the field's value is not its default.
pub fn is_set(field: &Field) -> String {
    let name = format!("self.{}", rust_name(field));
    let nullable = field.nullable.is_some();
    match (&field.default, &field.kind) {
        (Value::Null, _) => format!("{name}.is_some()"),
        (_, Type::Records) if nullable => format!("{name}.is_some()"),
        (_, Type::String | Type::Bytes | Type::Records | Type::Array(_)) if nullable => {
            format!("{name}.as_ref().is_none_or(|v| !v.is_empty())")
        }
        (_, Type::Struct(_)) if nullable => {
            format!("{name}.as_ref().is_none_or(|v| *v != Default::default())")
        }
        (_, Type::String | Type::Bytes | Type::Records | Type::Array(_)) => {
            format!("!{name}.is_empty()")
        }
        (_, Type::Struct(_)) => format!("{name} != Default::default()"),
        (_, Type::Uuid) => format!("!{name}.is_zero()"),
        (Value::True, _) => format!("!{name}"),
        (_, Type::Bool) => name,
        _ => format!("{name} != {}", default_value(field)),
    }
}
