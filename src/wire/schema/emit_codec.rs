//! Writes a struct's `read`, `write` and `json`, each with its branches by version. Build-time
//! only.

use super::emit::{default_value, is_set, line, rust_name};
use super::model::{Field, Message, Struct, Type, Versions, snake};

pub fn emit(out: &mut String, message: &Message, one: &Struct) {
    line(out, format_args!("impl {} {{", one.name));
    emit_read(out, message, one);
    emit_write(out, message, one);
    emit_json(out, one);
    line(out, format_args!("}}"));
}

/// The condition under which a version within `scope` is in `range`; `None` if it always is.
fn within(range: Versions, scope: Versions) -> Option<String> {
    let low = range.first > scope.first;
    let high = range.last < scope.last;
    match (low, high) {
        (false, false) => None,
        (true, false) => Some(format!("version >= {}", range.first)),
        (false, true) => Some(format!("version <= {}", range.last)),
        (true, true) => Some(format!(
            "({}..={}).contains(&version)",
            range.first, range.last
        )),
    }
}

/// Whether versions of `scope` are flexible, as a Rust expression.
fn flexible(message: &Message, scope: Versions) -> String {
    match message.flexible {
        Some(from) if from <= scope.first => "true".to_owned(),
        Some(from) if from <= scope.last => format!("version >= {from}"),
        _ => "false".to_owned(),
    }
}

/// The same for one field; `flexible` names the local variable that holds it for the struct.
fn field_flexible(message: &Message, field: &Field) -> &'static str {
    if field.inflexible {
        return "false";
    }
    match message.flexible {
        Some(from) if from <= field.versions.first => "true",
        Some(from) if from <= field.versions.last => "flexible",
        _ => "false",
    }
}

fn emit_read(out: &mut String, message: &Message, one: &Struct) {
    line(
        out,
        format_args!("fn read(r: &mut Reader, version: i16) -> Result<Self, DecodeError> {{"),
    );
    line(
        out,
        format_args!("let flexible = {};", flexible(message, one.versions)),
    );
    let tagged: Vec<&Field> = one.fields.iter().filter(|f| f.tag.is_some()).collect();
    for field in one.fields.iter().filter(|f| f.tag.is_none()) {
        let read = read_field(message, one, field);
        let value = match within(field.versions, one.versions) {
            None => read,
            Some(condition) => format!(
                "if {condition} {{ {read} }} else {{ {} }}",
                default_value(field)
            ),
        };
        line(out, format_args!("let {} = {value};", local(field)));
    }
    let unknown = match (tagged.is_empty(), message.flexible) {
        (true, Some(from)) if from <= one.versions.first => "r.unknown_tagged_fields()?",
        (true, Some(from)) if from <= one.versions.last => {
            "if flexible { r.unknown_tagged_fields()? } else { TaggedFields::default() }"
        }
        _ => "TaggedFields::default()",
    };
    let mutable = if tagged.is_empty() { "" } else { "mut " };
    line(out, format_args!("let {mutable}all = Self {{"));
    for field in &one.fields {
        match field.tag {
            None => line(out, format_args!("{}: {},", rust_name(field), local(field))),
            Some(_) => line(
                out,
                format_args!("{}: {},", rust_name(field), default_value(field)),
            ),
        }
    }
    line(out, format_args!("unknown_tagged_fields: {unknown},"));
    line(out, format_args!("}};"));
    if !tagged.is_empty() {
        line(
            out,
            format_args!("if flexible {{ for _ in 0..r.uvarint(\"{}\")? {{", one.name),
        );
        line(
            out,
            format_args!("let tag = r.begin_tag()?; match tag.number {{"),
        );
        for field in &tagged {
            let condition = within(field.versions, one.versions)
                .map(|c| format!("if {c} "))
                .unwrap_or_default();
            let number = field.tag.unwrap_or_default();
            let read = read_field(message, one, field);
            line(
                out,
                format_args!(
                    "{number} {condition}=> {{ all.{} = {read}; r.end_tag(tag, {})?; }}",
                    rust_name(field),
                    place(one, field)
                ),
            );
        }
        line(
            out,
            format_args!("_ => r.keep_tag(tag, &mut all.unknown_tagged_fields),"),
        );
        line(out, format_args!("}}}}}}"));
    }
    line(out, format_args!("Ok(all)"));
    line(out, format_args!("}}"));
}

/// The variable that holds a field until the struct is whole; no field can hide a parameter.
fn local(field: &Field) -> String {
    format!("field_{}", snake(&field.name))
}

/// `"Struct.field"`, to be named in errors.
fn place(one: &Struct, field: &Field) -> String {
    format!("\"{}.{}\"", one.name, field.name)
}

fn read_field(message: &Message, one: &Struct, field: &Field) -> String {
    let flexible = field_flexible(message, field);
    let place = place(one, field);
    let read = |nullable: bool| match &field.kind {
        Type::Array(element) => {
            let null = if nullable { "nullable_" } else { "" };
            let min = message.element_min(field, element);
            match (plain_function(element), element.struct_name()) {
                (Some(function), _) => {
                    format!("r.{null}array({flexible}, {min}, {place}, Reader::{function})?")
                }
                (None, Some(name)) => {
                    format!("r.{null}structs({flexible}, {min}, {place}, version, {name}::read)?")
                }
                (None, None) => format!("r.{null}strings({flexible}, {place})?"),
            }
        }
        Type::Struct(name) if nullable => {
            let tagged = if field.tag.is_some() { "tagged_" } else { "" };
            format!("r.nullable_{tagged}struct({place}, |r| {name}::read(r, version))?")
        }
        Type::String if nullable => format!("r.nullable_string({flexible}, {place})?"),
        Type::Bytes if nullable => format!("r.nullable_bytes({flexible}, {place})?"),
        Type::Records if nullable => format!("r.nullable_records({flexible}, {place})?"),
        kind => format!("{}?", read_one(kind, flexible, &place)),
    };
    match field.nullable {
        None => read(false),
        Some(nullable) => match within(nullable, field.versions) {
            None => read(true),
            Some(condition) => format!(
                "if {condition} {{ {} }} else {{ Some({}) }}",
                read(true),
                read(false)
            ),
        },
    }
}

fn read_one(kind: &Type, flexible: &str, place: &str) -> String {
    match kind {
        Type::String => format!("r.string({flexible}, {place})"),
        Type::Bytes => format!("r.bytes({flexible}, {place})"),
        Type::Records => format!("r.records({flexible}, {place})"),
        Type::Struct(name) => format!("{name}::read(r, version)"),
        _ => format!("r.{}({place})", plain_function(kind).unwrap_or_default()),
    }
}

/// The function of reader and writer for a type that has one form only.
fn plain_function(kind: &Type) -> Option<&'static str> {
    Some(match kind {
        Type::Bool => "bool",
        Type::Int8 => "i8",
        Type::Int16 => "i16",
        Type::Int32 => "i32",
        Type::Int64 => "i64",
        Type::Uint16 => "u16",
        Type::Uint32 => "u32",
        Type::Float64 => "f64",
        Type::Uuid => "uuid",
        _ => return None,
    })
}

fn emit_write(out: &mut String, message: &Message, one: &Struct) {
    line(
        out,
        format_args!("fn write(&self, w: &mut Writer, version: i16) -> Result<(), EncodeError> {{"),
    );
    line(
        out,
        format_args!("let flexible = {};", flexible(message, one.versions)),
    );
    for field in one.fields.iter().filter(|f| f.tag.is_none()) {
        let write = write_field(message, one, field);
        match within(field.versions, one.versions) {
            None => line(out, format_args!("{write};")),
            Some(condition) => line(
                out,
                format_args!("if {condition} {{ {write}; }} {}", refuse(one, field)),
            ),
        }
    }
    let mut tagged: Vec<&Field> = one.fields.iter().filter(|f| f.tag.is_some()).collect();
    tagged.sort_by_key(|f| f.tag);
    if tagged.is_empty() {
        line(
            out,
            format_args!("w.unknown_tagged_fields(flexible, &self.unknown_tagged_fields)"),
        );
        line(out, format_args!("}}"));
        return;
    }
    line(
        out,
        format_args!("let mut tags = self.unknown_tagged_fields.len() as u32;"),
    );
    for field in &tagged {
        let number = field.tag.unwrap_or_default();
        let set = is_set(field);
        match within(field.versions, one.versions) {
            None => line(out, format_args!("let tag{number} = {set};")),
            Some(condition) => {
                line(
                    out,
                    format_args!("let tag{number} = {condition} && ({set});"),
                );
                if !field.ignorable {
                    let place = place(one, field);
                    line(
                        out,
                        format_args!(
                            "if !({condition}) && ({set}) {{ return Err(EncodeError::new(EncodeFault::FieldNotInVersion, {place})); }}"
                        ),
                    );
                }
            }
        }
        line(out, format_args!("if tag{number} {{ tags += 1; }}"));
    }
    line(
        out,
        format_args!(
            "if !flexible {{ return w.unknown_tagged_fields(false, &self.unknown_tagged_fields); }}"
        ),
    );
    line(out, format_args!("w.uvarint(tags);"));
    line(out, format_args!("let mut next = 0;"));
    for field in &tagged {
        let number = field.tag.unwrap_or_default();
        let write = write_field(message, one, field);
        line(
            out,
            format_args!(
                "if tag{number} {{ next = w.unknown_tags_below(&self.unknown_tagged_fields, next, Some({number}))?; w.tag({number}, |w| {{ {write}; Ok(()) }})?; }}"
            ),
        );
    }
    line(
        out,
        format_args!("w.unknown_tags_below(&self.unknown_tagged_fields, next, None)?;"),
    );
    line(out, format_args!("Ok(())"));
    line(out, format_args!("}}"));
}

/// What happens to a field that is not in the version.
fn refuse(one: &Struct, field: &Field) -> String {
    if field.ignorable {
        return String::new();
    }
    format!(
        "else if {} {{ return Err(EncodeError::new(EncodeFault::FieldNotInVersion, {})); }}",
        is_set(field),
        place(one, field)
    )
}

fn write_field(message: &Message, one: &Struct, field: &Field) -> String {
    let flexible = field_flexible(message, field);
    let place = place(one, field);
    let value = format!("self.{}", rust_name(field));
    let write = |nullable: bool, value: &str| match &field.kind {
        Type::Array(element) => {
            let null = if nullable { "nullable_" } else { "" };
            match (plain_function(element), element.struct_name()) {
                (Some(function), _) => {
                    format!("w.{null}array({flexible}, {value}, {place}, Writer::{function})?")
                }
                (None, Some(name)) => {
                    format!(
                        "w.{null}structs({flexible}, {value}, {place}, version, {name}::write)?"
                    )
                }
                (None, None) => format!("w.{null}strings({flexible}, {value}, {place})?"),
            }
        }
        Type::Struct(_) if nullable => {
            let tagged = if field.tag.is_some() { "tagged_" } else { "" };
            format!("w.nullable_{tagged}struct({value}, |w, v| v.write(w, version))?")
        }
        Type::String if nullable => format!("w.nullable_string({flexible}, {value}, {place})?"),
        Type::Bytes if nullable => format!("w.nullable_bytes({flexible}, {value}, {place})?"),
        Type::Records if nullable => format!("w.nullable_records({flexible}, {value}, {place})?"),
        Type::String => format!("w.string({flexible}, {value}, {place})?"),
        Type::Bytes => format!("w.bytes({flexible}, {value}, {place})?"),
        Type::Records => format!("w.records({flexible}, {value}, {place})?"),
        Type::Struct(_) => format!("{}.write(w, version)?", value.trim_start_matches('&')),
        kind => {
            let owned = value
                .strip_prefix('&')
                .map_or_else(|| format!("*{value}"), str::to_owned);
            format!("w.{}({owned})", plain_function(kind).unwrap_or_default())
        }
    };
    let reference = format!("&{value}");
    match field.nullable {
        None => write(false, &reference),
        Some(nullable) => {
            let there = format!(
                "match &{value} {{ Some(v) => {{ {}; }} None => return Err(EncodeError::new(EncodeFault::UnexpectedNull, {place})) }}",
                write(false, "v")
            );
            match within(nullable, field.versions) {
                None => write(true, &reference),
                Some(condition) => format!(
                    "if {condition} {{ {}; }} else {{ {there} }}",
                    write(true, &reference)
                ),
            }
        }
    }
}

fn emit_json(out: &mut String, one: &Struct) {
    line(
        out,
        format_args!("fn json(&self, version: i16) -> Value {{"),
    );
    line(out, format_args!("let mut o = ObjectJson::default();"));
    for field in &one.fields {
        let name = format!("self.{}", rust_name(field));
        let nullable = field.nullable.is_some();
        let put = match &field.kind {
            Type::Struct(_) if nullable => {
                format!(
                    "o.put_value(\"{}\", {name}.as_ref().map_or(Value::Null, |v| v.json(version)));",
                    field.name
                )
            }
            Type::Struct(_) => format!("o.put_value(\"{}\", {name}.json(version));", field.name),
            // One small closure each; iterator adapters would be most of the generated code.
            Type::Array(element) if element.struct_name().is_some() && nullable => format!(
                "match &{name} {{ Some(all) => o.put_structs(\"{0}\", all.len(), &|i| all[i].json(version)), None => o.put_value(\"{0}\", Value::Null) }}",
                field.name
            ),
            Type::Array(element) if element.struct_name().is_some() => format!(
                "o.put_structs(\"{}\", {name}.len(), &|i| {name}[i].json(version));",
                field.name
            ),
            Type::Records if nullable => format!(
                "match &{name} {{ Some(v) => o.put(\"{0}SizeInBytes\", v), None => o.put_value(\"{0}\", Value::Null) }}",
                field.name
            ),
            Type::Records => format!("o.put(\"{}SizeInBytes\", &{name});", field.name),
            _ => format!("o.put(\"{}\", &{name});", field.name),
        };
        // Kafka prints a tagged field only when it is set.
        let set = field.tag.map(|_| format!("({})", is_set(field)));
        let conditions: Vec<String> = within(field.versions, one.versions)
            .into_iter()
            .chain(set)
            .collect();
        match conditions.is_empty() {
            true => line(out, format_args!("{put}")),
            false => line(
                out,
                format_args!("if {} {{ {put} }}", conditions.join(" && ")),
            ),
        }
    }
    line(out, format_args!("o.finish()"));
    line(out, format_args!("}}"));
}
