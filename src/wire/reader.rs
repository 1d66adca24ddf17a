//! The protocol's primitives read from a frame.
//!
//! Any core. Strings, bytes and records are slices of the frame. Nothing is ever allocated for a
//! length that the remaining bytes cannot hold, nothing panics on any input.

use bytes::Bytes;

use super::fault::{DecodeError, DecodeFault};
use super::records::Records;
use super::str::Str;
use super::tagged::TaggedFields;
use crate::types::Uuid;

type Result<T> = std::result::Result<T, DecodeError>;

/// The longest STRING the protocol knows, in bytes.
pub const STRING_LEN_MAX: usize = i16::MAX as usize;

/// An array is given room for this many elements before any of them was read, even if they are
/// larger in memory than on the wire.
const ARRAY_ROOM_MIN: usize = 16;

/// A position in a frame.
#[derive(Clone, Debug)]
pub struct Reader {
    frame: Bytes,
    at: usize,
    end: usize,
}

macro_rules! fixed_width {
    ($($name:ident: $type:ty, $width:literal;)*) => {$(
        #[inline]
        pub fn $name(&mut self, field: &'static str) -> Result<$type> {
            match self.frame[self.at..self.end].first_chunk::<$width>() {
                Some(bytes) => {
                    self.at += $width;
                    Ok(<$type>::from_be_bytes(*bytes))
                }
                None => Err(self.truncated($width, field)),
            }
        }
    )*};
}

impl Reader {
    pub fn new(frame: Bytes) -> Reader {
        let end = frame.len();
        Reader { frame, at: 0, end }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.end - self.at
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The bytes not read yet, as a slice of the frame; they count as read.
    pub fn rest(&mut self) -> Bytes {
        let rest = self.frame.slice(self.at..self.end);
        self.at = self.end;
        rest
    }

    /// Refuses bytes after the last field.
    pub fn expect_end(&self) -> Result<()> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(self.fault(DecodeFault::TrailingBytes(left), "end")),
        }
    }

    #[cold]
    fn fault(&self, fault: DecodeFault, field: &'static str) -> DecodeError {
        DecodeError::new(fault, field, self.at)
    }

    #[cold]
    fn truncated(&self, needed: usize, field: &'static str) -> DecodeError {
        self.fault(
            DecodeFault::Truncated {
                needed,
                remaining: self.remaining(),
            },
            field,
        )
    }

    fixed_width! {
        i8: i8, 1;
        i16: i16, 2;
        i32: i32, 4;
        i64: i64, 8;
        u16: u16, 2;
        u32: u32, 4;
        f64: f64, 8;
        u8: u8, 1;
    }

    /// Any non-zero byte is true, as in Kafka.
    #[inline]
    pub fn bool(&mut self, field: &'static str) -> Result<bool> {
        Ok(self.u8(field)? != 0)
    }

    #[inline]
    pub fn uuid(&mut self, field: &'static str) -> Result<Uuid> {
        match self.frame[self.at..self.end].first_chunk::<16>() {
            Some(bytes) => {
                self.at += 16;
                Ok(Uuid(*bytes))
            }
            None => Err(self.truncated(16, field)),
        }
    }

    /// UNSIGNED_VARINT: seven bits a byte, least significant first, at most five bytes.
    #[inline]
    pub fn uvarint(&mut self, field: &'static str) -> Result<u32> {
        let first = self.u8(field)?;
        if first < 0x80 {
            return Ok(u32::from(first));
        }
        self.uvarint_rest(u32::from(first & 0x7f), field)
    }

    fn uvarint_rest(&mut self, mut value: u32, field: &'static str) -> Result<u32> {
        for shift in [7, 14, 21, 28] {
            let byte = self.u8(field)?;
            // The fifth byte has room for four bits.
            if shift == 28 && byte > 0x0f {
                return Err(self.fault(DecodeFault::VarintTooLong, field));
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.fault(DecodeFault::VarintTooLong, field))
    }

    /// The length before a nullable bytes-like value; `None` is null.
    fn length(
        &mut self,
        flexible: bool,
        short: bool,
        field: &'static str,
    ) -> Result<Option<usize>> {
        let signed = if flexible {
            i64::from(self.uvarint(field)?) - 1
        } else if short {
            i64::from(self.i16(field)?)
        } else {
            i64::from(self.i32(field)?)
        };
        match signed {
            -1 => Ok(None),
            n if n < 0 => Err(self.fault(DecodeFault::NegativeLength(n), field)),
            n => Ok(Some(n as usize)),
        }
    }

    #[cold]
    fn null(&self, field: &'static str) -> DecodeError {
        self.fault(DecodeFault::UnexpectedNull, field)
    }

    /// `len` bytes as a slice of the frame.
    #[inline]
    pub fn take(&mut self, len: usize, field: &'static str) -> Result<Bytes> {
        if len > self.remaining() {
            return Err(self.truncated(len, field));
        }
        let bytes = self.frame.slice(self.at..self.at + len);
        self.at += len;
        Ok(bytes)
    }

    pub fn nullable_string(&mut self, flexible: bool, field: &'static str) -> Result<Option<Str>> {
        let Some(len) = self.length(flexible, true, field)? else {
            return Ok(None);
        };
        if len > STRING_LEN_MAX {
            return Err(self.fault(DecodeFault::StringTooLong(len), field));
        }
        Ok(Some(Str::from_utf8_lossy(self.take(len, field)?)))
    }

    pub fn string(&mut self, flexible: bool, field: &'static str) -> Result<Str> {
        self.nullable_string(flexible, field)?
            .ok_or_else(|| self.null(field))
    }

    pub fn nullable_bytes(&mut self, flexible: bool, field: &'static str) -> Result<Option<Bytes>> {
        let Some(len) = self.length(flexible, false, field)? else {
            return Ok(None);
        };
        self.take(len, field).map(Some)
    }

    pub fn bytes(&mut self, flexible: bool, field: &'static str) -> Result<Bytes> {
        self.nullable_bytes(flexible, field)?
            .ok_or_else(|| self.null(field))
    }

    pub fn nullable_records(
        &mut self,
        flexible: bool,
        field: &'static str,
    ) -> Result<Option<Records>> {
        Ok(self.nullable_bytes(flexible, field)?.map(Records::from))
    }

    pub fn records(&mut self, flexible: bool, field: &'static str) -> Result<Records> {
        Ok(Records::from(self.bytes(flexible, field)?))
    }

    /// An array of values that have one form only. `element_min` is the least number of bytes
    /// an element takes at any version, at least 1: a count that cannot be in the remaining bytes
    /// is refused before anything is allocated.
    pub fn nullable_array<T>(
        &mut self,
        flexible: bool,
        element_min: usize,
        field: &'static str,
        read: fn(&mut Reader, &'static str) -> Result<T>,
    ) -> Result<Option<Vec<T>>> {
        self.elements(flexible, element_min, field, |r| read(r, field))
    }

    pub fn array<T>(
        &mut self,
        flexible: bool,
        element_min: usize,
        field: &'static str,
        read: fn(&mut Reader, &'static str) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.nullable_array(flexible, element_min, field, read)?
            .ok_or_else(|| self.null(field))
    }

    pub fn nullable_strings(
        &mut self,
        flexible: bool,
        field: &'static str,
    ) -> Result<Option<Vec<Str>>> {
        let element_min = if flexible { 1 } else { 2 };
        self.elements(flexible, element_min, field, |r| r.string(flexible, field))
    }

    pub fn strings(&mut self, flexible: bool, field: &'static str) -> Result<Vec<Str>> {
        self.nullable_strings(flexible, field)?
            .ok_or_else(|| self.null(field))
    }

    pub fn nullable_structs<T>(
        &mut self,
        flexible: bool,
        element_min: usize,
        field: &'static str,
        version: i16,
        read: fn(&mut Reader, i16) -> Result<T>,
    ) -> Result<Option<Vec<T>>> {
        self.elements(flexible, element_min, field, |r| read(r, version))
    }

    pub fn structs<T>(
        &mut self,
        flexible: bool,
        element_min: usize,
        field: &'static str,
        version: i16,
        read: fn(&mut Reader, i16) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.nullable_structs(flexible, element_min, field, version, read)?
            .ok_or_else(|| self.null(field))
    }

    fn elements<T>(
        &mut self,
        flexible: bool,
        element_min: usize,
        field: &'static str,
        mut element: impl FnMut(&mut Reader) -> Result<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some((count, room)) = self.array_count(flexible, element_min, size_of::<T>(), field)?
        else {
            return Ok(None);
        };
        let mut all = Vec::with_capacity(room);
        for _ in 0..count {
            all.push(element(self)?);
        }
        Ok(Some(all))
    }

    /// The count, and how many elements to make room for. The room is bounded twice: by what the
    /// remaining bytes can hold, and so that it takes no more memory than those bytes do (a small
    /// element on the wire can be a large struct); a longer array grows as its elements arrive.
    fn array_count(
        &mut self,
        flexible: bool,
        element_min: usize,
        element_size: usize,
        field: &'static str,
    ) -> Result<Option<(usize, usize)>> {
        let Some(count) = self.length(flexible, false, field)? else {
            return Ok(None);
        };
        let remaining = self.remaining();
        if count > remaining / element_min.max(1) {
            return Err(self.fault(DecodeFault::CountTooLarge { count, remaining }, field));
        }
        let affordable = (remaining / element_size.max(1)).max(ARRAY_ROOM_MIN);
        Ok(Some((count, count.min(affordable))))
    }

    /// A nullable struct has a byte before it: negative for null.
    #[inline]
    pub fn nullable_struct<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Reader) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.i8(field)? < 0 {
            Ok(None)
        } else {
            read(self).map(Some)
        }
    }

    /// In a tagged field the mark before a nullable struct is another: an unsigned varint, zero
    /// for null.
    pub fn nullable_tagged_struct<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Reader) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.uvarint(field)? == 0 {
            Ok(None)
        } else {
            read(self).map(Some)
        }
    }

    /// The tag section of a struct that knows no tags.
    #[inline]
    pub fn unknown_tagged_fields(&mut self) -> Result<TaggedFields> {
        let mut unknown = TaggedFields::default();
        for _ in 0..self.uvarint("tagged fields")? {
            let tag = self.begin_tag()?;
            self.keep_tag(tag, &mut unknown);
        }
        Ok(unknown)
    }

    /// Enters the next tagged field: reading is confined to its bytes until `end_tag` or
    /// `keep_tag`.
    pub fn begin_tag(&mut self) -> Result<OpenTag> {
        let number = self.uvarint("tag")?;
        let size = self.uvarint("tag size")? as usize;
        if size > self.remaining() {
            return Err(self.truncated(size, "tagged field"));
        }
        let outer_end = self.end;
        self.end = self.at + size;
        Ok(OpenTag {
            number,
            size,
            outer_end,
        })
    }

    /// Leaves a tagged field that was read; all its bytes must have been.
    pub fn end_tag(&mut self, tag: OpenTag, field: &'static str) -> Result<()> {
        match self.remaining() {
            0 => {
                self.end = tag.outer_end;
                Ok(())
            }
            left => Err(self.fault(
                DecodeFault::TagSize {
                    size: tag.size,
                    left,
                },
                field,
            )),
        }
    }

    /// Leaves a tagged field that nobody here knows, keeping its bytes.
    pub fn keep_tag(&mut self, tag: OpenTag, unknown: &mut TaggedFields) {
        let bytes = self.rest();
        self.end = tag.outer_end;
        unknown.push(tag.number, bytes);
    }
}

/// A tagged field that is being read.
#[derive(Debug)]
pub struct OpenTag {
    pub number: u32,
    size: usize,
    outer_end: usize,
}
