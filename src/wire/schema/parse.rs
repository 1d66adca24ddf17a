//! Reads schema files. Build-time only. The language, one line for each message or field:
//!
//! ```text
//! # comment
//! request Produce 0 versions 3-13 flexible 9+ on broker
//!   transactionalId string nullable = null
//!   topicData []TopicProduceData
//!     name string 3-12 ignorable
//!   struct Common 4+
//!     id int32
//! ```
//!
//! - A message line: `request`, `response`, `header`, `record` (metadata log), `key` and `value`
//!   (coordinator logs) or `data`; the name without the kind's suffix; its key, if it has one;
//!   `versions`; `flexible` (from which version on, left out for never); `unstable` if the last
//!   version is not for production; `on` which listeners.
//! - A field line, two spaces deeper than its struct: name, type, and then what applies, in this
//!   order: versions (default: all of its struct's), `nullable` with versions (default: all of
//!   the field's), `tag` number, `ignorable`, `inflexible`, `=` default.
//! - `3+` is version 3 to the message's last, `3-5` and `3` are what they look like.
//! - Fields of a struct that is used once follow its field, indented; structs used more than
//!   once follow the fields as `struct Name [versions]`.

use super::model::{Field, Kind, Message, Struct, Type, Value, Versions};

/// What is wrong, and in which line (1 is the first).
#[derive(Debug)]
pub struct SchemaError {
    pub file: String,
    pub line: usize,
    pub what: String,
}

impl std::fmt::Display for SchemaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

impl std::error::Error for SchemaError {}

struct Line<'a> {
    number: usize,
    depth: usize,
    words: Vec<&'a str>,
}

/// All messages of one file.
pub fn parse(file: &str, text: &str) -> Result<Vec<Message>, SchemaError> {
    let mut messages: Vec<Message> = Vec::new();
    // Index of the open struct for each depth of the current message.
    let mut open: Vec<usize> = Vec::new();
    for line in text
        .lines()
        .enumerate()
        .filter_map(|(i, l)| split(i + 1, l))
    {
        let at = line.number;
        let fail = |what: String| SchemaError {
            file: file.to_owned(),
            line: at,
            what,
        };
        if line.depth == 0 {
            messages.push(message(file, &line).map_err(fail)?);
            open = vec![0];
            continue;
        }
        let Some(message) = messages.last_mut() else {
            return Err(fail("a field before the first message".to_owned()));
        };
        if line.depth > open.len() {
            return Err(fail(
                "indented deeper than the struct it belongs to".to_owned(),
            ));
        }
        open.truncate(line.depth);
        let parent = open[line.depth - 1];
        let all = message.versions;
        if line.words[0] == "struct" {
            if line.depth != 1 {
                return Err(fail(
                    "a shared struct stands directly in its message".to_owned(),
                ));
            }
            let [_, name, rest @ ..] = line.words.as_slice() else {
                return Err(fail("a struct needs a name".to_owned()));
            };
            let own = match rest {
                [] => all,
                [word] => versions(word, all).map_err(fail)?,
                _ => return Err(fail("words after the struct's versions".to_owned())),
            };
            open.push(message.structs.len());
            message.structs.push(Struct {
                line: at,
                name: name.to_string(),
                versions: own,
                fields: Vec::new(),
            });
            continue;
        }
        let scope = message.structs[parent].versions;
        let field = field(&line, scope, all).map_err(fail)?;
        if let Some(name) = field.kind.struct_name() {
            // Fields may follow, one level deeper; if none do, the struct is a shared one.
            open.push(message.structs.len());
            let inline = Struct {
                line: at,
                name: name.to_owned(),
                versions: field.versions,
                fields: Vec::new(),
            };
            message.structs.push(inline);
        }
        message.structs[parent].fields.push(field);
    }
    for message in &mut messages {
        drop_references(message);
    }
    Ok(messages)
}

/// A field without lines below it refers to a struct that stands elsewhere in the message.
fn drop_references(message: &mut Message) {
    let defined: Vec<String> = message
        .structs
        .iter()
        .filter(|s| !s.fields.is_empty())
        .map(|s| s.name.clone())
        .collect();
    let mut index = 0;
    message.structs.retain(|s| {
        index += 1;
        index == 1 || !s.fields.is_empty() || !defined.contains(&s.name)
    });
}

fn split(number: usize, text: &str) -> Option<Line<'_>> {
    let text = text.split('#').next().unwrap_or("").trim_end();
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() {
        return None;
    }
    let indent = text.len() - text.trim_start().len();
    // An odd indent lands on a depth that does not exist and is refused there.
    let depth = if indent.is_multiple_of(2) {
        indent / 2
    } else {
        usize::MAX
    };
    Some(Line {
        number,
        depth,
        words,
    })
}

fn message(file: &str, line: &Line<'_>) -> Result<Message, String> {
    let mut words = line.words.iter().copied().peekable();
    let kind = match words.next() {
        Some("request") => Kind::Request,
        Some("response") => Kind::Response,
        Some("header") => Kind::Header,
        Some("record") => Kind::Record,
        Some("key") => Kind::Key,
        Some("value") => Kind::Value,
        Some("data") => Kind::Data,
        other => return Err(format!("{other:?} is no kind of message")),
    };
    let base = words.next().ok_or("a message needs a name")?.to_owned();
    let key = match words.peek() {
        Some(word) if *word != "versions" => {
            let word = words.next().unwrap_or_default();
            Some(word.parse().map_err(|_| format!("{word:?} is no key"))?)
        }
        _ => None,
    };
    if words.next() != Some("versions") {
        return Err("`versions` is missing".to_owned());
    }
    let unbounded = Versions {
        first: 0,
        last: i16::MAX,
    };
    let all = versions(words.next().unwrap_or_default(), unbounded)?;
    let mut message = Message {
        file: file.to_owned(),
        line: line.number,
        kind,
        base,
        key,
        versions: all,
        flexible: None,
        unstable: false,
        on_broker: false,
        on_controller: false,
        structs: Vec::new(),
    };
    while let Some(word) = words.next() {
        match word {
            "flexible" => {
                message.flexible = Some(versions(words.next().unwrap_or_default(), all)?.first)
            }
            "unstable" => message.unstable = true,
            "on" => {
                for listener in words.by_ref() {
                    match listener {
                        "broker" => message.on_broker = true,
                        "controller" => message.on_controller = true,
                        other => return Err(format!("{other:?} is no listener")),
                    }
                }
            }
            other => return Err(format!("{other:?} does not belong in a message line")),
        }
    }
    let root = Struct {
        line: line.number,
        name: message.name(),
        versions: all,
        fields: Vec::new(),
    };
    message.structs.push(root);
    Ok(message)
}

fn field(line: &Line<'_>, scope: Versions, all: Versions) -> Result<Field, String> {
    let [name, kind, rest @ ..] = line.words.as_slice() else {
        return Err("a field needs a name and a type".to_owned());
    };
    let mut words = rest.iter().copied().peekable();
    let mut field = Field {
        line: line.number,
        name: name.to_string(),
        kind: kind_of(kind)?,
        versions: scope,
        nullable: None,
        tag: None,
        ignorable: false,
        inflexible: false,
        default: Value::Zero,
    };
    if let Some(word) = words.next_if(|w| is_versions(w)) {
        field.versions = versions(word, all)?;
    }
    while let Some(word) = words.next() {
        match word {
            "nullable" => {
                field.nullable = Some(match words.next_if(|w| is_versions(w)) {
                    Some(word) => versions(word, all)?,
                    None => field.versions,
                });
            }
            "tag" => {
                let number = words.next().unwrap_or_default();
                field.tag = Some(
                    number
                        .parse()
                        .map_err(|_| format!("{number:?} is no tag"))?,
                );
            }
            "ignorable" => field.ignorable = true,
            "inflexible" => field.inflexible = true,
            "=" => field.default = default(words.next().unwrap_or_default())?,
            other => return Err(format!("{other:?} does not belong in a field line")),
        }
    }
    Ok(field)
}

fn kind_of(word: &str) -> Result<Type, String> {
    if let Some(element) = word.strip_prefix("[]") {
        return Ok(Type::Array(Box::new(kind_of(element)?)));
    }
    Ok(match word {
        "bool" => Type::Bool,
        "int8" => Type::Int8,
        "int16" => Type::Int16,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "uint16" => Type::Uint16,
        "uint32" => Type::Uint32,
        "float64" => Type::Float64,
        "uuid" => Type::Uuid,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "records" => Type::Records,
        name if name.starts_with(char::is_uppercase) => Type::Struct(name.to_owned()),
        other => return Err(format!("{other:?} is no type")),
    })
}

fn default(word: &str) -> Result<Value, String> {
    Ok(match word {
        "null" => Value::Null,
        "true" => Value::True,
        _ => {
            let number = match word.strip_prefix("0x") {
                Some(hex) => i64::from_str_radix(hex, 16),
                None => word.parse(),
            };
            Value::Int(number.map_err(|_| format!("{word:?} is no default"))?)
        }
    })
}

fn is_versions(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

fn versions(word: &str, all: Versions) -> Result<Versions, String> {
    let number = |text: &str| {
        text.parse::<i16>()
            .map_err(|_| format!("{word:?} is no range of versions"))
    };
    let range = if let Some(first) = word.strip_suffix('+') {
        Versions {
            first: number(first)?,
            last: all.last,
        }
    } else if let Some((first, last)) = word.split_once('-') {
        Versions {
            first: number(first)?,
            last: number(last)?,
        }
    } else {
        Versions {
            first: number(word)?,
            last: number(word)?,
        }
    };
    if range.first > range.last || !all.covers(range) {
        return Err(format!("versions {word} are not within {all}"));
    }
    Ok(range)
}
