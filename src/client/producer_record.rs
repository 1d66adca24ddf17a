//! A record that is to be sent.

use bytes::Bytes;

use crate::wire::Str;
use crate::wire::batch_builder::Header;

/// Topic and value, and what may be left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerRecord {
    pub topic: Str,
    /// `None`: by key, or sticky without one.
    pub partition: Option<i32>,
    pub key: Option<Bytes>,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// In order; keys may repeat, values may be null.
    pub headers: Vec<(Str, Option<Bytes>)>,
    /// Milliseconds since the epoch; `None`: now.
    pub timestamp: Option<i64>,
}

impl ProducerRecord {
    pub fn new(topic: impl Into<Str>, value: impl Into<Bytes>) -> ProducerRecord {
        ProducerRecord {
            topic: topic.into(),
            value: Some(value.into()),
            ..ProducerRecord::default()
        }
    }

    pub fn with_key(mut self, key: impl Into<Bytes>) -> ProducerRecord {
        self.key = Some(key.into());
        self
    }

    pub fn with_partition(mut self, partition: i32) -> ProducerRecord {
        self.partition = Some(partition);
        self
    }

    pub fn with_header(mut self, key: impl Into<Str>, value: Option<Bytes>) -> ProducerRecord {
        self.headers.push((key.into(), value));
        self
    }

    pub(super) fn wire_headers(&self) -> Vec<Header<'_>> {
        self.headers
            .iter()
            .map(|(key, value)| (key.as_bytes(), value.as_deref()))
            .collect()
    }

    /// Bytes of key, value and headers.
    pub(super) fn payload(&self) -> usize {
        let len = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let headers: usize = self.headers.iter().map(|(k, v)| k.len() + len(v)).sum();
        len(&self.key) + len(&self.value) + headers
    }
}
