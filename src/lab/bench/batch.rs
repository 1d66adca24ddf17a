//! A record batch on its way: open for more records, sealed with its checksum, and numbered when
//! it is sent.
//!
//! Pure. Records are appended straight into the bytes that go out; the buffer and the list of due
//! times are used again for another batch once this one is settled.

use bytes::Bytes;

use crate::wire::batch::seal;
use crate::wire::batch_builder::{BatchBuilder, BuildError};
use crate::wire::codec::Codec;

/// Where the producer's identity stands in a batch: id (8), epoch (2), base sequence (4).
const PRODUCER_AT: usize = 43;
/// Buffers kept for the next batches: as many as one producer has in flight at most times.
const SPARES_MAX: usize = 64;

/// Who an idempotent producer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) id: i64,
    pub(super) epoch: i16,
}

/// A batch for one partition.
#[derive(Debug)]
pub(super) struct Batch {
    builder: BatchBuilder,
    /// What goes out, from the first attempt on.
    sealed: Option<Bytes>,
    /// The due time of each record, in order.
    pub(super) due: Vec<u64>,
    /// Keys and values.
    pub(super) payload: u64,
    /// When its first record was appended.
    pub(super) opened: u64,
    /// Its number, and whose: given at the first attempt.
    pub(super) sequence: Option<(Identity, i32)>,
    pub(super) attempts: u32,
    /// Its place among the batches of its producer, from when it was closed.
    pub(super) order: u64,
}

impl Batch {
    pub(super) fn records(&self) -> usize {
        self.due.len()
    }

    /// Bytes before compression, header included.
    pub(super) fn size(&self) -> usize {
        self.builder.estimated_size()
    }

    /// # Errors
    /// When the format cannot hold it.
    pub(super) fn append(
        &mut self,
        now_ms: i64,
        due: u64,
        key: Option<&[u8]>,
        value: &[u8],
    ) -> Result<(), BuildError> {
        self.builder.append(now_ms, key, Some(value), &[])?;
        self.due.push(due);
        self.payload += (key.map_or(0, <[u8]>::len) + value.len()) as u64;
        Ok(())
    }

    /// Whether a record of these sizes would make it larger than `bytes`, or too many records.
    pub(super) fn is_full_for(&self, bytes: usize, record: usize, records: Option<usize>) -> bool {
        !self.due.is_empty()
            && (self.size() + record > bytes || records.is_some_and(|max| self.due.len() >= max))
    }

    /// The bytes to send, numbered as [`Batch::sequence`] says.
    ///
    /// # Errors
    /// When the codec refuses.
    pub(super) fn seal(&mut self) -> Result<Bytes, BuildError> {
        if let Some(bytes) = &self.sealed {
            return Ok(bytes.clone());
        }
        let mut builder = std::mem::take(&mut self.builder);
        if let Some((identity, base)) = self.sequence {
            builder = builder.with_producer(identity.id, identity.epoch, base);
        }
        let bytes = builder.build()?;
        self.sealed = Some(bytes.clone());
        Ok(bytes)
    }

    /// Gives it another number, also after it was sealed.
    pub(super) fn number(&mut self, identity: Identity, base: i32) {
        if self.sequence == Some((identity, base)) {
            return;
        }
        self.sequence = Some((identity, base));
        if let Some(bytes) = self.sealed.take() {
            let mut bytes = Vec::from(bytes);
            let mut field = &mut bytes[PRODUCER_AT..PRODUCER_AT + 14];
            bytes::BufMut::put_i64(&mut field, identity.id);
            bytes::BufMut::put_i16(&mut field, identity.epoch);
            bytes::BufMut::put_i32(&mut field, base);
            seal(&mut bytes);
            self.sealed = Some(Bytes::from(bytes));
        }
    }
}

/// Makes batches out of the memory of settled ones.
#[derive(Debug)]
pub(super) struct Spares {
    codec: Codec,
    level: Option<i32>,
    transactional: bool,
    bytes: usize,
    buffers: Vec<Vec<u8>>,
    due: Vec<Vec<u64>>,
}

impl Spares {
    /// For batches of about `bytes`.
    pub(super) fn new(
        codec: Codec,
        level: Option<i32>,
        bytes: usize,
        transactional: bool,
    ) -> Spares {
        Spares {
            codec,
            level,
            transactional,
            bytes,
            buffers: Vec::new(),
            due: Vec::new(),
        }
    }

    pub(super) fn batch(&mut self, now: u64) -> Batch {
        let buffer = self.buffers.pop();
        let buffer = buffer.unwrap_or_else(|| Vec::with_capacity(self.bytes));
        let mut due = self.due.pop().unwrap_or_default();
        due.clear();
        let mut builder = BatchBuilder::new()
            .with_buffer(buffer)
            .with_codec(self.codec, self.level);
        builder.transactional = self.transactional;
        Batch {
            builder,
            sealed: None,
            due,
            payload: 0,
            opened: now,
            sequence: None,
            attempts: 0,
            order: 0,
        }
    }

    /// Takes a settled batch apart.
    pub(super) fn give_back(&mut self, batch: Batch) {
        if self.due.len() < SPARES_MAX {
            self.due.push(batch.due);
        }
        // Still shared if the connection ended before it was written: then it is not ours.
        if let Some(bytes) = batch.sealed
            && bytes.is_unique()
            && self.codec == Codec::None
            && self.buffers.len() < SPARES_MAX
        {
            self.buffers.push(Vec::from(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::batch::BatchView;

    fn contents(bytes: &[u8]) -> Vec<Vec<u8>> {
        let (view, rest) = BatchView::parse(bytes).unwrap();
        assert!(rest.is_empty());
        view.check_crc().unwrap();
        let mut scratch = Vec::new();
        let mut values = Vec::new();
        view.walk(1 << 20, &mut scratch, |_, record| {
            values.push(record.value.unwrap().to_vec());
        })
        .unwrap();
        values
    }

    #[test]
    fn memory_of_a_settled_batch_makes_the_next_one() {
        let mut spares = Spares::new(Codec::None, None, 4096, false);
        let mut first = spares.batch(0);
        for at in 0..3 {
            first.append(7, at, Some(b"k"), &[at as u8; 100]).unwrap();
        }
        assert_eq!((first.records(), first.payload), (3, 303));
        let bytes = first.seal().unwrap();
        let memory = bytes.as_ptr();
        assert_eq!(contents(&bytes).len(), 3);
        drop(bytes);
        spares.give_back(first);

        let mut second = spares.batch(1);
        assert_eq!((second.records(), second.payload), (0, 0));
        second.append(7, 9, None, b"other").unwrap();
        let bytes = second.seal().unwrap();
        assert_eq!(bytes.as_ptr(), memory);
        assert_eq!(contents(&bytes), [b"other".to_vec()]);
    }

    #[test]
    fn bytes_that_somebody_still_holds_are_not_written_over() {
        let mut spares = Spares::new(Codec::None, None, 4096, false);
        let mut first = spares.batch(0);
        first.append(7, 0, None, b"first").unwrap();
        let held = first.seal().unwrap();
        spares.give_back(first);
        let mut second = spares.batch(1);
        second.append(7, 0, None, b"second").unwrap();
        second.seal().unwrap();
        assert_eq!(contents(&held), [b"first".to_vec()]);
    }

    #[test]
    fn a_sealed_batch_can_be_numbered_anew() {
        for codec in Codec::ALL {
            let mut batch = Spares::new(codec, None, 4096, true).batch(0);
            batch.append(7, 0, None, b"value").unwrap();
            let identity = Identity { id: 5, epoch: 0 };
            batch.number(identity, 3);
            let bytes = batch.seal().unwrap();
            let (view, _) = BatchView::parse(&bytes).unwrap();
            assert_eq!((view.producer_id(), view.base_sequence()), (5, 3));
            batch.number(Identity { id: 6, epoch: 1 }, 0);
            let again = batch.seal().unwrap();
            let (view, _) = BatchView::parse(&again).unwrap();
            assert_eq!((view.producer_id(), view.producer_epoch()), (6, 1));
            assert_eq!(view.base_sequence(), 0);
            assert!(view.is_transactional());
            assert_eq!(contents(&again), [b"value".to_vec()]);
        }
    }

    #[test]
    fn a_batch_is_full_by_bytes_or_by_records_but_takes_at_least_one() {
        let mut batch = Spares::new(Codec::None, None, 100, false).batch(0);
        assert!(!batch.is_full_for(100, 1_000, Some(1)));
        batch.append(7, 0, None, &[0; 10]).unwrap();
        assert!(batch.is_full_for(100, 1_000, None));
        assert!(!batch.is_full_for(1_000, 10, Some(2)));
        assert!(batch.is_full_for(1_000, 10, Some(1)));
    }
}
