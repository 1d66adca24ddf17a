//! What a schema must satisfy before code is made of it. Build-time only.

use std::collections::HashSet;

use super::model::{Kind, Message, Struct, Type, Value};
use super::parse::SchemaError;

/// Names that generated code uses itself.
const RESERVED: [&str; 14] = [
    "Bytes",
    "DecodeError",
    "DecodeFault",
    "EncodeError",
    "EncodeFault",
    "Message",
    "ObjectJson",
    "Reader",
    "Records",
    "Str",
    "TaggedFields",
    "Uuid",
    "Value",
    "Writer",
];

pub fn check(messages: &[Message]) -> Result<(), SchemaError> {
    let mut names = HashSet::new();
    for message in messages {
        let fail = |line: usize, what: String| SchemaError {
            file: message.file.clone(),
            line,
            what,
        };
        if !names.insert(message.name()) {
            return Err(fail(
                message.line,
                format!("there are two messages {}", message.name()),
            ));
        }
        if matches!(
            message.kind,
            Kind::Request | Kind::Response | Kind::Record | Kind::Key
        ) && message.key.is_none()
        {
            return Err(fail(message.line, "a key number is missing".to_owned()));
        }
        check_structs(message).map_err(|(line, what)| fail(line, what))?;
        check_nesting(message, &message.structs[0], &mut Vec::new())
            .map_err(|(line, what)| fail(line, what))?;
    }
    Ok(())
}

fn check_structs(message: &Message) -> Result<(), (usize, String)> {
    let mut structs = HashSet::new();
    for one in &message.structs {
        if !structs.insert(&one.name) {
            return Err((one.line, format!("there are two structs {}", one.name)));
        }
        if one.fields.is_empty() && one.name != message.name() {
            return Err((
                one.line,
                format!("struct {} has no fields here or elsewhere", one.name),
            ));
        }
        if RESERVED.contains(&one.name.as_str()) {
            return Err((one.line, format!("the name {} is taken", one.name)));
        }
        check_fields(message, one)?;
    }
    Ok(())
}

fn check_fields(message: &Message, owner: &Struct) -> Result<(), (usize, String)> {
    let mut names = HashSet::new();
    let mut tags = HashSet::new();
    for field in &owner.fields {
        let fail = |what: &str| Err((field.line, format!("{}: {what}", field.name)));
        if !names.insert(&field.name) {
            return fail("two fields of one struct have this name");
        }
        if !owner.versions.covers(field.versions) {
            return fail("is in versions in which its struct is not");
        }
        if let Some(nullable) = field.nullable
            && (!field.versions.covers(nullable) || !field.kind.can_be_null())
        {
            return fail("cannot be null, or not in those versions");
        }
        if let Some(tag) = field.tag {
            if !tags.insert(tag) {
                return fail("two fields have this tag");
            }
            if !message.is_flexible(field.versions.first) {
                return fail("is tagged in versions that are not flexible");
            }
        }
        let fits = match (&field.default, &field.kind) {
            (Value::Zero, _) => true,
            (Value::Null, _) => field.nullable.is_some(),
            (Value::True, kind) => *kind == Type::Bool,
            (Value::Int(n), Type::Int8) => i8::try_from(*n).is_ok(),
            (Value::Int(n), Type::Int16) => i16::try_from(*n).is_ok(),
            (Value::Int(n), Type::Int32) => i32::try_from(*n).is_ok(),
            (Value::Int(n), Type::Uint16) => u16::try_from(*n).is_ok(),
            (Value::Int(n), Type::Uint32) => u32::try_from(*n).is_ok(),
            (Value::Int(_), kind) => matches!(kind, Type::Int64 | Type::Float64),
        };
        if !fits {
            return fail("the default does not fit the type");
        }
        if let Some(name) = field.kind.struct_name()
            && message.find(name).is_none()
        {
            return fail("there is no such struct in the message");
        }
        match &field.kind {
            Type::Array(element)
                if matches!(**element, Type::Array(_) | Type::Bytes | Type::Records) =>
            {
                return fail("arrays of arrays, of bytes and of records are not known");
            }
            // Or a count of two billion would fit in no bytes.
            Type::Array(element) if message.element_min(field, element) == 0 => {
                return fail("an element may take no bytes at all");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Decoding recurses as deep as structs nest: no struct may contain itself.
fn check_nesting<'a>(
    message: &'a Message,
    one: &'a Struct,
    above: &mut Vec<&'a str>,
) -> Result<(), (usize, String)> {
    if above.contains(&one.name.as_str()) {
        return Err((one.line, format!("struct {} contains itself", one.name)));
    }
    above.push(&one.name);
    for field in &one.fields {
        if let Some(inner) = field.kind.struct_name().and_then(|name| message.find(name)) {
            check_nesting(message, inner, above)?;
        }
    }
    above.pop();
    Ok(())
}
