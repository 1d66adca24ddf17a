//! Random bytes that are a valid message, written straight from the schema: a second, slow
//! encoder that shares no code with the generated one. For tests.
//!
//! The bytes are canonical: tags rise, and no tagged field holds its default; what decodes them
//! and encodes again must arrive at the same bytes.

use super::model::{Field, Message, Struct, Type, Value};

/// Tags that no schema uses.
const UNKNOWN_TAGS: [u32; 3] = [90, 1000, 0x7fff_fffe];

/// One to four bytes each in UTF-8.
const LETTERS: [char; 8] = ['a', 'Z', '0', '-', '.', 'ü', '→', '𝄞'];

/// Makes one message at one version.
pub struct Sampler<'a> {
    message: &'a Message,
    version: i16,
    rng: fastrand::Rng,
    /// Every field at its default; without randomness.
    defaults_only: bool,
}

impl<'a> Sampler<'a> {
    pub fn new(message: &'a Message, version: i16, seed: u64) -> Sampler<'a> {
        let rng = fastrand::Rng::with_seed(seed);
        Sampler {
            message,
            version,
            rng,
            defaults_only: false,
        }
    }

    pub fn sample(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let message = self.message;
        self.put_struct(&message.structs[0], &mut out);
        out
    }

    /// The message with every field at its default.
    pub fn default_of(message: &'a Message, version: i16) -> Vec<u8> {
        let mut sampler = Sampler::new(message, version, 0);
        sampler.defaults_only = true;
        sampler.sample()
    }

    fn flexible(&self) -> bool {
        self.message.is_flexible(self.version)
    }

    fn put_struct(&mut self, one: &Struct, out: &mut Vec<u8>) {
        let version = self.version;
        let there = |f: &&Field| f.versions.contains(version);
        for field in one.fields.iter().filter(there).filter(|f| f.tag.is_none()) {
            self.put_field(field, out);
        }
        if self.flexible() {
            let mut tagged: Vec<&Field> = one
                .fields
                .iter()
                .filter(there)
                .filter(|f| f.tag.is_some())
                .collect();
            tagged.sort_by_key(|f| f.tag);
            self.put_tags(&tagged, out);
        }
    }

    fn put_tags(&mut self, known: &[&Field], out: &mut Vec<u8>) {
        let mut tags: Vec<(u32, Vec<u8>)> = Vec::new();
        for field in known {
            let mut default = Vec::new();
            let mut sampler = Sampler::new(self.message, self.version, 0);
            sampler.defaults_only = true;
            sampler.put_field(field, &mut default);
            let mut bytes = Vec::new();
            self.put_field(field, &mut bytes);
            if bytes != default && self.rng.bool() {
                tags.push((field.tag.unwrap_or_default(), bytes));
            }
        }
        if !self.defaults_only && self.rng.u8(..) < 40 {
            for tag in UNKNOWN_TAGS {
                if self.rng.bool() {
                    let len = self.length();
                    tags.push((tag, (0..len).map(|_| self.rng.u8(..)).collect()));
                }
            }
        }
        put_uvarint(out, tags.len() as u32);
        for (tag, bytes) in tags {
            put_uvarint(out, tag);
            put_uvarint(out, bytes.len() as u32);
            out.extend(bytes);
        }
    }

    fn put_field(&mut self, field: &Field, out: &mut Vec<u8>) {
        let flexible = self.flexible() && !field.inflexible;
        let nullable = field.nullable.is_some_and(|v| v.contains(self.version));
        let null = if self.defaults_only {
            // Kafka's default for records is null even where the schema does not say so.
            nullable && (field.default == Value::Null || field.kind == Type::Records)
        } else {
            nullable && self.rng.u8(..) < 64
        };
        if let Type::Struct(_) = field.kind
            && nullable
        {
            // In a tagged field the mark is an unsigned varint, elsewhere a signed byte.
            let no = if field.tag.is_some() { 0 } else { 0xff };
            out.push(if null { no } else { 1 });
            if null {
                return;
            }
        } else if null {
            match (&field.kind, flexible) {
                (_, true) => out.push(0),
                (Type::String, false) => out.extend([0xff; 2]),
                (_, false) => out.extend([0xff; 4]),
            }
            return;
        }
        self.put_value(&field.kind, flexible, &field.default, out);
    }

    fn put_value(&mut self, kind: &Type, flexible: bool, default: &Value, out: &mut Vec<u8>) {
        match kind {
            Type::Bool => {
                let value = if self.defaults_only {
                    *default == Value::True
                } else {
                    self.rng.bool()
                };
                out.push(u8::from(value));
            }
            Type::Int8 => out.extend((self.integer(default) as i8).to_be_bytes()),
            Type::Int16 | Type::Uint16 => out.extend((self.integer(default) as i16).to_be_bytes()),
            Type::Int32 | Type::Uint32 => out.extend((self.integer(default) as i32).to_be_bytes()),
            Type::Int64 => out.extend(self.integer(default).to_be_bytes()),
            // Whole numbers: equal as values and as bytes, and never NaN.
            Type::Float64 => out.extend((self.integer(default) as i32 as f64).to_be_bytes()),
            Type::Uuid if self.defaults_only => out.extend([0; 16]),
            Type::Uuid => out.extend(self.rng.u128(..).to_be_bytes()),
            Type::String => {
                let len = self.length();
                let text: String = (0..len)
                    .map(|_| LETTERS[self.rng.usize(..LETTERS.len())])
                    .collect();
                put_length(out, flexible, true, text.len());
                out.extend(text.as_bytes());
            }
            Type::Bytes | Type::Records => {
                let len = self.length();
                put_length(out, flexible, false, len);
                out.extend((0..len).map(|_| self.rng.u8(..)).collect::<Vec<u8>>());
            }
            Type::Struct(name) => {
                let message = self.message;
                self.put_struct(message.find(name).expect("checked when it was loaded"), out);
            }
            Type::Array(element) => {
                let count = if self.defaults_only {
                    0
                } else {
                    self.rng.usize(..4)
                };
                put_length(out, flexible, false, count);
                for _ in 0..count {
                    self.put_value(element, flexible, &Value::Zero, out);
                }
            }
        }
    }

    /// Mostly short; now and then long enough for two bytes of a varint, or to be spliced.
    fn length(&mut self) -> usize {
        match self.rng.u8(..) {
            _ if self.defaults_only => 0,
            0..3 => self.rng.usize(500..1200),
            3..10 => self.rng.usize(100..300),
            _ => self.rng.usize(..9),
        }
    }

    fn integer(&mut self, default: &Value) -> i64 {
        if self.defaults_only {
            return match default {
                Value::Int(n) => *n,
                _ => 0,
            };
        }
        match self.rng.u8(..8) {
            0 => 0,
            1 => -1,
            2 => i64::MAX,
            3 => i64::MIN,
            4 => self.rng.i64(0..128),
            _ => self.rng.i64(..),
        }
    }
}

fn put_uvarint(out: &mut Vec<u8>, mut value: u32) {
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_length(out: &mut Vec<u8>, flexible: bool, short: bool, len: usize) {
    if flexible {
        put_uvarint(out, len as u32 + 1);
    } else if short {
        out.extend((len as i16).to_be_bytes());
    } else {
        out.extend((len as i32).to_be_bytes());
    }
}
