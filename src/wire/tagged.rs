//! Tagged fields that this version of the schema does not know. They are kept as bytes and
//! written again, so that a message passes through unharmed (KIP-482).

use bytes::Bytes;

/// Unknown tagged fields in the order in which they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaggedFields(pub Vec<(u32, Bytes)>);

impl TaggedFields {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn push(&mut self, tag: u32, bytes: Bytes) {
        self.0.push((tag, bytes));
    }
}
