//! One record of a v2 batch as bytes: reading it in place, and writing it.
//!
//! Layout (source: KIP-98 message format): varint length, int8 attributes, varlong timestamp
//! delta, varint offset delta, varint key length (-1 null) and key, varint value length (-1 null)
//! and value, varint header count, and per header varint key length, key, varint value length
//! (-1 null), value. Every varint is zigzag. Pure, any core; never allocates while reading.

use bytes::{BufMut, Bytes};

use crate::types::Offset;
use crate::wire::batch::BatchError;

/// A record borrowed from the (inflated) body of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Milliseconds from the batch's base timestamp.
    pub timestamp_delta: i64,
    /// Offsets from the batch's base offset.
    pub offset_delta: i32,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    /// Bytes of the record behind its length, not compressed.
    pub size: usize,
    headers: HeadersRef<'a>,
}

impl<'a> RecordRef<'a> {
    /// The record's headers in order. Keys may repeat; that is legal and kept.
    pub fn headers(&self) -> HeadersRef<'a> {
        self.headers
    }

    /// Reads the record at the start of `body` and returns what follows it. Every length must
    /// fit, every header must be whole, and the record must be consumed exactly; a header count
    /// beyond what the bytes could hold is refused before it is believed.
    pub fn read(body: &'a [u8]) -> Result<(RecordRef<'a>, &'a [u8]), &'static str> {
        let mut cursor = Cursor(body);
        let len = usize::try_from(cursor.varint()?).map_err(|_| "its length is negative")?;
        let (record, rest) = cursor
            .0
            .split_at_checked(len)
            .ok_or("it is longer than the batch")?;
        let mut cursor = Cursor(record);
        cursor.skip(1)?; // Attributes: no bit is in use.
        let timestamp_delta = cursor.varlong()?;
        let offset_delta = cursor.varint()?;
        let key = cursor.nullable()?;
        let value = cursor.nullable()?;
        let count = cursor.varint()?;
        let count = usize::try_from(count).map_err(|_| "its header count is negative")?;
        // The smallest header is two bytes: an empty key and an empty or null value.
        if count > cursor.0.len() / 2 {
            return Err("it has fewer bytes than its header count needs");
        }
        let headers = HeadersRef {
            bytes: cursor.0,
            left: count,
        };
        for _ in 0..count {
            cursor.header()?;
        }
        if !cursor.0.is_empty() {
            return Err("its length and its contents disagree");
        }
        let record = RecordRef {
            size: len,
            timestamp_delta,
            offset_delta,
            key,
            value,
            headers,
        };
        Ok((record, rest))
    }
}

/// Headers borrowed from a record: `(key, value)`, the key nominally UTF-8 but not checked, as in
/// Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadersRef<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl<'a> Iterator for HeadersRef<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let mut cursor = Cursor(self.bytes);
        // Cannot fail: the record's reader has walked these bytes. Ending is the harmless answer.
        let header = cursor.header().ok()?;
        self.bytes = cursor.0;
        Some(header)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for HeadersRef<'_> {}

/// A record that shares the memory of its batch's (inflated) body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordView {
    pub offset_delta: i32,
    pub timestamp_delta: i64,
    /// The base offset of the batch plus the delta.
    pub offset: Offset,
    /// Milliseconds since the epoch: the record's own, or the batch's where that says
    /// LogAppendTime.
    pub timestamp: i64,
    pub key: Option<Bytes>,
    pub value: Option<Bytes>,
    headers: Bytes,
    header_count: usize,
}

impl RecordView {
    /// The headers in order, duplicate keys and null values included. Zero-copy.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = (Bytes, Option<Bytes>)> + '_ {
        let headers = HeadersRef {
            bytes: &self.headers,
            left: self.header_count,
        };
        headers.map(|(key, value)| {
            (
                self.headers.slice_ref(key),
                value.map(|value| self.headers.slice_ref(value)),
            )
        })
    }

    pub(crate) fn share(record: &RecordRef<'_>, body: &Bytes) -> RecordView {
        RecordView {
            offset_delta: record.offset_delta,
            timestamp_delta: record.timestamp_delta,
            offset: Offset::UNKNOWN,
            timestamp: -1,
            key: record.key.map(|key| body.slice_ref(key)),
            value: record.value.map(|value| body.slice_ref(value)),
            headers: body.slice_ref(record.headers.bytes),
            header_count: record.headers.left,
        }
    }
}

/// Walks the `count` records of an inflated body, which must hold exactly these. Allocates
/// nothing, so it is the way to validate a batch.
pub fn walk<'a>(
    body: &'a [u8],
    count: i32,
    mut visit: impl FnMut(i32, RecordRef<'a>),
) -> Result<(), BatchError> {
    let mut rest = body;
    for index in 0..count {
        let (record, tail) = RecordRef::read(rest).map_err(|reason| {
            if rest.is_empty() {
                BatchError::RecordCount {
                    declared: count,
                    found: index,
                }
            } else {
                BatchError::Record { index, reason }
            }
        })?;
        rest = tail;
        visit(index, record);
    }
    if !rest.is_empty() {
        return Err(BatchError::RecordsLeftOver {
            declared: count,
            bytes: rest.len(),
        });
    }
    Ok(())
}

/// Appends one record to `out`.
pub fn write<'h>(
    out: &mut Vec<u8>,
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: impl Iterator<Item = (&'h [u8], Option<&'h [u8]>)> + Clone,
) {
    let mut len = 1 + varlong_len(timestamp_delta) + varint_len(offset_delta);
    len += nullable_len(key) + nullable_len(value);
    let mut header_count = 0;
    for (key, value) in headers.clone() {
        header_count += 1;
        len += nullable_len(Some(key)) + nullable_len(value);
    }
    len += varint_len(header_count);
    put_varint(out, len as i32);
    out.put_i8(0);
    put_varlong(out, timestamp_delta);
    put_varint(out, offset_delta);
    put_nullable(out, key);
    put_nullable(out, value);
    put_varint(out, header_count);
    for (key, value) in headers {
        put_nullable(out, Some(key));
        put_nullable(out, value);
    }
}

/// The most bytes a record with these parts can take, whatever its deltas.
pub fn size_bound<'h>(
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: impl Iterator<Item = (&'h [u8], Option<&'h [u8]>)>,
) -> usize {
    // Length 5, attributes 1, timestamp delta 10, offset delta 5, header count 5.
    let mut size = 26 + nullable_len(key) + nullable_len(value);
    for (key, value) in headers {
        size += nullable_len(Some(key)) + nullable_len(value);
    }
    size
}

fn nullable_len(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varint_len(bytes.len() as i32) + bytes.len())
}

fn put_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    put_varint(out, bytes.map_or(-1, |bytes| bytes.len() as i32));
    out.extend_from_slice(bytes.unwrap_or_default());
}

fn varint_len(value: i32) -> usize {
    varlong_len(i64::from(value))
}

fn varlong_len(value: i64) -> usize {
    let zigzag = ((value << 1) ^ (value >> 63)) as u64;
    // Seven bits a byte, and zero still takes one.
    (64 - (zigzag | 1).leading_zeros() as usize).div_ceil(7)
}

fn put_varint(out: &mut Vec<u8>, value: i32) {
    // Sign extension keeps the zigzag of the wider type equal to that of the narrower.
    put_varlong(out, i64::from(value));
}

fn put_varlong(out: &mut Vec<u8>, value: i64) {
    let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
    while zigzag >= 0x80 {
        out.push(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    out.push(zigzag as u8);
}

/// Reads forward through borrowed bytes. Every failure is a reason in words: the batch around it
/// says which record it was.
struct Cursor<'a>(&'a [u8]);

const CUT_SHORT: &str = "it is cut short";

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(CUT_SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, len: usize) -> Result<(), &'static str> {
        self.take(len).map(|_| ())
    }

    fn varint(&mut self) -> Result<i32, &'static str> {
        // Almost every varint of a record is a single byte.
        if let Some((&byte, rest)) = self.0.split_first()
            && byte < 0x80
        {
            self.0 = rest;
            return Ok(i32::from(byte >> 1) ^ -i32::from(byte & 1));
        }
        let raw = self.unsigned(5)? as u32;
        Ok((raw >> 1) as i32 ^ -((raw & 1) as i32))
    }

    fn varlong(&mut self) -> Result<i64, &'static str> {
        if let Some((&byte, rest)) = self.0.split_first()
            && byte < 0x80
        {
            self.0 = rest;
            return Ok(i64::from(byte >> 1) ^ -i64::from(byte & 1));
        }
        let raw = self.unsigned(10)?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    fn unsigned(&mut self, bytes_max: usize) -> Result<u64, &'static str> {
        let mut value = 0u64;
        for (at, &byte) in self.0.iter().take(bytes_max).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Ok(value);
            }
        }
        if self.0.len() < bytes_max {
            return Err(CUT_SHORT);
        }
        Err("a variable-length number is too long")
    }

    fn nullable(&mut self) -> Result<Option<&'a [u8]>, &'static str> {
        match self.varint()? {
            -1 => Ok(None),
            len => {
                let len = usize::try_from(len).map_err(|_| "a length is negative")?;
                self.take(len).map(Some)
            }
        }
    }

    fn header(&mut self) -> Result<(&'a [u8], Option<&'a [u8]>), &'static str> {
        let key = self.nullable()?.ok_or("a header key is null")?;
        Ok((key, self.nullable()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_every_length_survive_a_round_trip() {
        let mut values = vec![0i64, -1, 1, i64::MIN, i64::MAX, -64, 63, 64, -65];
        for shift in 0..63 {
            values.extend([1i64 << shift, -(1i64 << shift), (1i64 << shift) - 1]);
        }
        for value in values {
            let mut out = Vec::new();
            put_varlong(&mut out, value);
            assert_eq!(out.len(), varlong_len(value), "length of {value}");
            assert_eq!(Cursor(&out).varlong(), Ok(value));
            if let Ok(narrow) = i32::try_from(value) {
                assert_eq!(Cursor(&out).varint(), Ok(narrow));
                assert!(out.len() <= 5);
            }
        }
    }

    #[test]
    fn a_number_that_never_ends_is_refused() {
        assert!(Cursor(&[0xff; 5]).varint().is_err());
        assert!(Cursor(&[0xff; 10]).varlong().is_err());
        assert_eq!(Cursor(&[0xff; 4]).varint(), Err(CUT_SHORT));
    }

    #[test]
    fn a_header_count_beyond_the_bytes_is_refused_before_it_is_believed() {
        let mut record = Vec::new();
        put_varint(&mut record, 10);
        record.extend_from_slice(&[0, 0, 0, 1, 1]);
        put_varint(&mut record, i32::MAX);
        assert_eq!(record.len(), 11);
        assert!(RecordRef::read(&record).is_err());
    }

    #[test]
    fn a_record_longer_than_its_contents_is_refused() {
        let mut out = Vec::new();
        write(&mut out, 5, 0, Some(b"k"), None, std::iter::empty());
        assert!(RecordRef::read(&out).is_ok());
        out[0] += 2; // One byte longer, zigzag.
        out.push(0);
        assert_eq!(
            RecordRef::read(&out),
            Err("its length and its contents disagree")
        );
    }

    #[test]
    fn the_size_bound_is_never_below_the_size() {
        let headers = [(&b"h"[..], None), (&b"h"[..], Some(&b"v"[..]))];
        let mut out = Vec::new();
        write(
            &mut out,
            i64::MIN,
            i32::MAX,
            Some(b"key"),
            Some(&[0; 300]),
            headers.into_iter(),
        );
        let bound = size_bound(Some(b"key"), Some(&[0; 300]), headers.into_iter());
        assert!(out.len() <= bound, "{} > {bound}", out.len());
    }
}
