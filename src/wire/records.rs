//! Record bytes inside a message: a rope of shared slices, so that batches from several places
//! travel in one response without being copied together, or a range of a segment file that is sent
//! from there.
//!
//! Any core. Never looks into the batches; that is `wire::batch`.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use crate::rt::fs::FileRange;

/// The bytes of zero or more record batches (protocol type `RECORDS`).
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Before the parts, and only in an answer on its way out.
    file: Option<Box<FileRange>>,
    parts: SmallVec<[Bytes; 1]>,
    len: usize,
}

impl Records {
    pub fn new() -> Records {
        Records::default()
    }

    /// Length over all parts, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The parts in order, without what lies in a file; none of them is empty.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Where the first bytes lie, if they are not in memory.
    pub fn file(&self) -> Option<&FileRange> {
        self.file.as_deref()
    }

    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push(part);
        }
    }

    /// All bytes in one slice; copies only if there is more than one part. Not for bytes in a file:
    /// those are sent, never looked into.
    pub fn to_bytes(&self) -> Bytes {
        debug_assert!(self.file.is_none(), "the bytes are not in memory");
        match self.parts.as_slice() {
            [] => Bytes::new(),
            [one] => one.clone(),
            many => {
                let mut all = BytesMut::with_capacity(self.len);
                many.iter().for_each(|part| all.extend_from_slice(part));
                all.freeze()
            }
        }
    }
}

impl From<Bytes> for Records {
    fn from(bytes: Bytes) -> Records {
        let mut records = Records::new();
        records.push(bytes);
        records
    }
}

impl From<FileRange> for Records {
    fn from(range: FileRange) -> Records {
        Records {
            len: range.len(),
            file: (!range.is_empty()).then(|| Box::new(range)),
            ..Records::default()
        }
    }
}

impl FromIterator<Bytes> for Records {
    fn from_iter<I: IntoIterator<Item = Bytes>>(parts: I) -> Records {
        let mut records = Records::new();
        parts.into_iter().for_each(|part| records.push(part));
        records
    }
}

// Equal bytes are equal records, however they are cut into parts. What a file holds is not known.
impl PartialEq for Records {
    fn eq(&self, other: &Records) -> bool {
        self.len == other.len
            && self.file.is_none()
            && other.file.is_none()
            && self
                .parts
                .iter()
                .flat_map(|p| p.iter())
                .eq(other.parts.iter().flat_map(|p| p.iter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_records_are_cut_does_not_make_them_differ() {
        let whole = Records::from(Bytes::from_static(b"abcdef"));
        let cut: Records = [&b"ab"[..], b"", b"cdef"]
            .into_iter()
            .map(Bytes::from_static)
            .collect();
        assert_eq!(whole, cut);
        assert_eq!(cut.parts().len(), 2);
        assert_eq!(cut.to_bytes(), whole.to_bytes());
        assert_ne!(whole, Records::from(Bytes::from_static(b"abcdeg")));
    }
}
