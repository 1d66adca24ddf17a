//! The protocol's primitives written into a list of buffers.
//!
//! Any core. Small values gather in one buffer; record bytes and other large slices are spliced
//! in between without a copy, so that a fetch response leaves as what the log handed out.

use bytes::{BufMut, Bytes, BytesMut};

use super::fault::{EncodeError, EncodeFault};
use super::reader::STRING_LEN_MAX;
use super::records::Records;
use super::str::Str;
use super::tagged::TaggedFields;
use crate::rt::net::Piece;
use crate::types::Uuid;

type Result<T> = std::result::Result<T, EncodeError>;

/// Slices from this length on are spliced. Below it a copy costs less than one more element in
/// the vector of a `sendmsg`.
const SPLICE_LEN_MIN: usize = 512;

/// Collects an encoded message.
#[derive(Debug, Default)]
pub struct Writer {
    done: Vec<Piece>,
    done_len: usize,
    current: BytesMut,
    /// Tagged fields being written: their size stands before them, so they stay in one buffer.
    open_tags: u32,
}

macro_rules! fixed_width {
    ($($name:ident: $type:ty;)*) => {$(
        #[inline]
        pub fn $name(&mut self, value: $type) {
            self.current.extend_from_slice(&value.to_be_bytes());
        }
    )*};
}

impl Writer {
    pub fn new() -> Writer {
        Writer::default()
    }

    /// A writer whose first buffer has room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer {
            current: BytesMut::with_capacity(bytes),
            ..Writer::default()
        }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.done_len + self.current.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message in pieces, none of them empty.
    pub fn finish(mut self) -> Vec<Piece> {
        self.cut();
        self.done
    }

    /// [`Writer::finish`] for what is in memory as a whole, as every request is.
    pub fn finish_in_memory(self) -> Vec<Bytes> {
        let pieces = self.finish().into_iter();
        let bytes = pieces.filter_map(|piece| match piece {
            Piece::Bytes(bytes) => Some(bytes),
            Piece::File(_) => {
                debug_assert!(false, "a range of a file outside an answer");
                None
            }
        });
        bytes.collect()
    }

    /// The message in one piece; copies if there are several.
    pub fn into_bytes(self) -> Bytes {
        Records::from_iter(self.finish_in_memory()).to_bytes()
    }

    fn cut(&mut self) {
        if !self.current.is_empty() {
            self.done_len += self.current.len();
            self.done.push(Piece::Bytes(self.current.split().freeze()));
        }
    }

    fixed_width! {
        i8: i8;
        i16: i16;
        i32: i32;
        i64: i64;
        u8: u8;
        u16: u16;
        u32: u32;
        f64: f64;
    }

    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    #[inline]
    pub fn uuid(&mut self, value: Uuid) {
        self.current.extend_from_slice(&value.0);
    }

    /// UNSIGNED_VARINT.
    #[inline]
    pub fn uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.current.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.current.put_u8(value as u8);
    }

    /// A slice as it is, without a length.
    pub fn raw(&mut self, bytes: &Bytes) {
        if bytes.len() < SPLICE_LEN_MIN || self.open_tags > 0 {
            self.current.extend_from_slice(bytes);
        } else {
            self.cut();
            self.done_len += bytes.len();
            self.done.push(Piece::Bytes(bytes.clone()));
        }
    }

    /// A slice as it is, copied.
    pub fn raw_slice(&mut self, bytes: &[u8]) {
        self.current.extend_from_slice(bytes);
    }

    fn length(&mut self, flexible: bool, len: usize, field: &'static str) -> Result<()> {
        // Kafka's lengths are signed 32-bit integers in both forms.
        let len =
            i32::try_from(len).map_err(|_| EncodeError::new(EncodeFault::TooLong(len), field))?;
        if flexible {
            self.uvarint(len as u32 + 1);
        } else {
            self.i32(len);
        }
        Ok(())
    }

    fn null_length(&mut self, flexible: bool) {
        if flexible {
            self.uvarint(0);
        } else {
            self.i32(-1);
        }
    }

    pub fn string(&mut self, flexible: bool, text: &Str, field: &'static str) -> Result<()> {
        if text.len() > STRING_LEN_MAX {
            return Err(EncodeError::new(EncodeFault::TooLong(text.len()), field));
        }
        if flexible {
            self.uvarint(text.len() as u32 + 1);
        } else {
            self.i16(text.len() as i16);
        }
        self.current.extend_from_slice(text.as_bytes());
        Ok(())
    }

    pub fn nullable_string(
        &mut self,
        flexible: bool,
        text: &Option<Str>,
        field: &'static str,
    ) -> Result<()> {
        match text {
            Some(text) => self.string(flexible, text, field)?,
            None if flexible => self.uvarint(0),
            None => self.i16(-1),
        }
        Ok(())
    }

    pub fn bytes(&mut self, flexible: bool, bytes: &Bytes, field: &'static str) -> Result<()> {
        self.length(flexible, bytes.len(), field)?;
        self.raw(bytes);
        Ok(())
    }

    pub fn nullable_bytes(
        &mut self,
        flexible: bool,
        bytes: &Option<Bytes>,
        field: &'static str,
    ) -> Result<()> {
        match bytes {
            Some(bytes) => self.bytes(flexible, bytes, field)?,
            None => self.null_length(flexible),
        }
        Ok(())
    }

    pub fn records(
        &mut self,
        flexible: bool,
        records: &Records,
        field: &'static str,
    ) -> Result<()> {
        self.length(flexible, records.len(), field)?;
        if let Some(range) = records.file() {
            self.cut();
            self.done_len += range.len();
            self.done.push(Piece::File(range.clone()));
        }
        records.parts().iter().for_each(|part| self.raw(part));
        Ok(())
    }

    pub fn nullable_records(
        &mut self,
        flexible: bool,
        records: &Option<Records>,
        field: &'static str,
    ) -> Result<()> {
        match records {
            Some(records) => self.records(flexible, records, field)?,
            None => self.null_length(flexible),
        }
        Ok(())
    }

    /// An array of values that have one form only.
    pub fn array<T: Copy>(
        &mut self,
        flexible: bool,
        all: &[T],
        field: &'static str,
        write: fn(&mut Writer, T),
    ) -> Result<()> {
        self.length(flexible, all.len(), field)?;
        all.iter().for_each(|one| write(self, *one));
        Ok(())
    }

    pub fn nullable_array<T: Copy>(
        &mut self,
        flexible: bool,
        all: &Option<Vec<T>>,
        field: &'static str,
        write: fn(&mut Writer, T),
    ) -> Result<()> {
        match all {
            Some(all) => self.array(flexible, all, field, write)?,
            None => self.null_length(flexible),
        }
        Ok(())
    }

    pub fn strings(&mut self, flexible: bool, all: &[Str], field: &'static str) -> Result<()> {
        self.length(flexible, all.len(), field)?;
        all.iter()
            .try_for_each(|one| self.string(flexible, one, field))
    }

    pub fn nullable_strings(
        &mut self,
        flexible: bool,
        all: &Option<Vec<Str>>,
        field: &'static str,
    ) -> Result<()> {
        match all {
            Some(all) => self.strings(flexible, all, field)?,
            None => self.null_length(flexible),
        }
        Ok(())
    }

    pub fn structs<T>(
        &mut self,
        flexible: bool,
        all: &[T],
        field: &'static str,
        version: i16,
        write: fn(&T, &mut Writer, i16) -> Result<()>,
    ) -> Result<()> {
        self.length(flexible, all.len(), field)?;
        for one in all {
            write(one, self, version)?;
        }
        Ok(())
    }

    pub fn nullable_structs<T>(
        &mut self,
        flexible: bool,
        all: &Option<Vec<T>>,
        field: &'static str,
        version: i16,
        write: fn(&T, &mut Writer, i16) -> Result<()>,
    ) -> Result<()> {
        match all {
            Some(all) => self.structs(flexible, all, field, version, write)?,
            None => self.null_length(flexible),
        }
        Ok(())
    }

    #[inline]
    pub fn nullable_struct<T>(
        &mut self,
        value: &Option<T>,
        write: impl FnOnce(&mut Writer, &T) -> Result<()>,
    ) -> Result<()> {
        match value {
            Some(value) => {
                self.i8(1);
                write(self, value)
            }
            None => {
                self.i8(-1);
                Ok(())
            }
        }
    }

    /// As [`Writer::nullable_struct`], but with the mark that is used in tagged fields.
    pub fn nullable_tagged_struct<T>(
        &mut self,
        value: &Option<T>,
        write: impl FnOnce(&mut Writer, &T) -> Result<()>,
    ) -> Result<()> {
        self.uvarint(u32::from(value.is_some()));
        value.as_ref().map_or(Ok(()), |value| write(self, value))
    }

    /// One tagged field: its number, the size of what `write` writes, and that.
    pub fn tag(
        &mut self,
        number: u32,
        write: impl FnOnce(&mut Writer) -> Result<()>,
    ) -> Result<()> {
        self.uvarint(number);
        let start = self.current.len();
        self.open_tags += 1;
        let written = write(self);
        self.open_tags -= 1;
        written?;
        // The size is known only now: make room before the content for its one to five bytes.
        let size = self.current.len() - start;
        let size = u32::try_from(size)
            .map_err(|_| EncodeError::new(EncodeFault::TooLong(size), "tagged field"))?;
        self.uvarint(size);
        self.current[start..].rotate_right(uvarint_len(size));
        Ok(())
    }

    /// The unknown fields from index `from` on whose number is below `limit`; returns the index
    /// of the first that is not. Numbers must rise.
    pub fn unknown_tags_below(
        &mut self,
        unknown: &TaggedFields,
        from: usize,
        limit: Option<u32>,
    ) -> Result<usize> {
        let mut index = from;
        while let Some((number, bytes)) = unknown.0.get(index) {
            if limit.is_some_and(|limit| *number > limit) {
                break;
            }
            let follows = index == 0 || unknown.0[index - 1].0 < *number;
            if !follows || limit == Some(*number) {
                return Err(EncodeError::new(
                    EncodeFault::TagOrder(*number),
                    "tagged field",
                ));
            }
            let size = u32::try_from(bytes.len())
                .map_err(|_| EncodeError::new(EncodeFault::TooLong(bytes.len()), "tagged field"))?;
            self.uvarint(*number);
            self.uvarint(size);
            self.raw(bytes);
            index += 1;
        }
        Ok(index)
    }

    /// The tag section of a struct that knows no tags, or nothing before flexible versions.
    pub fn unknown_tagged_fields(&mut self, flexible: bool, unknown: &TaggedFields) -> Result<()> {
        if flexible {
            self.uvarint(unknown.len() as u32);
            self.unknown_tags_below(unknown, 0, None)?;
        } else if !unknown.is_empty() {
            return Err(EncodeError::new(
                EncodeFault::TagsNotInVersion,
                "tagged fields",
            ));
        }
        Ok(())
    }
}

/// Bytes that `value` takes as an UNSIGNED_VARINT.
pub fn uvarint_len(value: u32) -> usize {
    (38 - (value | 1).leading_zeros() as usize) / 7
}
