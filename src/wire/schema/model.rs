//! What a schema file says, once read and checked: messages, structs, fields and the versions
//! at which each of them exists. Build-time only.

use std::fmt;

/// An inclusive range of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub first: i16,
    pub last: i16,
}

impl Versions {
    pub fn contains(self, version: i16) -> bool {
        self.first <= version && version <= self.last
    }

    pub fn covers(self, other: Versions) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    pub fn iter(self) -> impl Iterator<Item = i16> {
        self.first..=self.last
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint16,
    Uint32,
    Float64,
    Uuid,
    String,
    Bytes,
    Records,
    Struct(String),
    Array(Box<Type>),
}

impl Type {
    /// The struct that the type names, directly or as an element.
    pub fn struct_name(&self) -> Option<&str> {
        match self {
            Type::Struct(name) => Some(name),
            Type::Array(element) => element.struct_name(),
            _ => None,
        }
    }

    pub fn can_be_null(&self) -> bool {
        matches!(
            self,
            Type::String | Type::Bytes | Type::Records | Type::Struct(_) | Type::Array(_)
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Zero, false, empty, or a struct of defaults.
    Zero,
    Null,
    True,
    Int(i64),
}

#[derive(Clone, Debug)]
pub struct Field {
    pub line: usize,
    /// camelCase, as in JSON.
    pub name: String,
    pub kind: Type,
    pub versions: Versions,
    pub nullable: Option<Versions>,
    pub tag: Option<u32>,
    pub ignorable: bool,
    /// Keeps its old length form in flexible versions (only the client id of the header).
    pub inflexible: bool,
    pub default: Value,
}

#[derive(Clone, Debug)]
pub struct Struct {
    pub line: usize,
    pub name: String,
    pub versions: Versions,
    pub fields: Vec<Field>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Request,
    Response,
    Header,
    Record,
    Key,
    Value,
    Data,
}

#[derive(Clone, Debug)]
pub struct Message {
    pub file: String,
    pub line: usize,
    pub kind: Kind,
    /// As in the schema, without the suffix of its kind.
    pub base: String,
    pub key: Option<i16>,
    pub versions: Versions,
    /// The first flexible version.
    pub flexible: Option<i16>,
    /// The last version is not advertised unless unstable versions are enabled.
    pub unstable: bool,
    pub on_broker: bool,
    pub on_controller: bool,
    /// The message itself is the first.
    pub structs: Vec<Struct>,
}

impl Message {
    /// As Kafka names it, e.g. `ProduceRequest`.
    pub fn name(&self) -> String {
        let suffix = match self.kind {
            Kind::Request => "Request",
            Kind::Response => "Response",
            Kind::Header => "Header",
            Kind::Key => "Key",
            Kind::Value => "Value",
            Kind::Record | Kind::Data => "",
        };
        format!("{}{suffix}", self.base)
    }

    pub fn module(&self) -> String {
        snake(&self.name())
    }

    /// The name of its file: messages of one file belong together.
    pub fn family(&self) -> &str {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        name.trim_end_matches(".hw")
    }

    pub fn is_flexible(&self, version: i16) -> bool {
        self.flexible.is_some_and(|first| version >= first)
    }

    pub fn find(&self, name: &str) -> Option<&Struct> {
        self.structs.iter().find(|s| s.name == name)
    }

    /// The least number of bytes that a value of the type takes at the version.
    pub fn size_min(&self, kind: &Type, flexible: bool, version: i16) -> usize {
        match kind {
            Type::Bool | Type::Int8 => 1,
            Type::Int16 | Type::Uint16 => 2,
            Type::Int32 | Type::Uint32 => 4,
            Type::Int64 | Type::Float64 => 8,
            Type::Uuid => 16,
            Type::String if !flexible => 2,
            Type::Bytes | Type::Records | Type::Array(_) if !flexible => 4,
            Type::String | Type::Bytes | Type::Records | Type::Array(_) => 1,
            Type::Struct(name) => {
                let fields = self.find(name).map_or(&[][..], |s| &s.fields);
                let tags = usize::from(self.is_flexible(version));
                let untagged = fields
                    .iter()
                    .filter(|f| f.tag.is_none() && f.versions.contains(version));
                tags + untagged
                    .map(|f| match (&f.kind, f.nullable) {
                        (Type::Struct(_), Some(v)) if v.contains(version) => 1,
                        _ => self.size_min(&f.kind, flexible && !f.inflexible, version),
                    })
                    .sum::<usize>()
            }
        }
    }

    /// The least over all the versions of a field's element.
    pub fn element_min(&self, field: &Field, element: &Type) -> usize {
        let sizes = field
            .versions
            .iter()
            .map(|v| self.size_min(element, self.is_flexible(v), v));
        sizes.min().unwrap_or(0)
    }
}

/// snake_case of a CamelCase or camelCase name.
pub fn snake(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (i, letter) in letters.iter().enumerate() {
        let after_small = i > 0 && !letters[i - 1].is_uppercase();
        let before_small = i > 0 && letters.get(i + 1).is_some_and(|c| c.is_lowercase());
        if letter.is_uppercase() && (after_small || before_small) {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}
