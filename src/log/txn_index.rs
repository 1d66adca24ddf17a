//! Owns the `.txnindex` of a segment: one row per aborted transaction, 34 bytes each. Pure, on
//! the log's shard. It never decides that a transaction aborted: the producer state does.

use crate::types::Offset;

pub const ABORTED_TXN_BYTES: usize = 34;

/// An aborted transaction as a segment's index keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AbortedTxn {
    pub producer_id: i64,
    pub first_offset: Offset,
    /// Offset of the abort marker.
    pub last_offset: Offset,
    /// Last stable offset at the moment the marker was appended.
    pub last_stable_offset: Offset,
}

/// Rows of one segment in the order of their markers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TxnIndex {
    rows: Vec<AbortedTxn>,
}

/// Bytes that are not a transaction index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TxnIndexDamage {
    #[error("size {0} is no multiple of 34")]
    Size(usize),
    #[error("row {row} has version {version}")]
    Version { row: usize, version: i16 },
    #[error("row {row} does not lie behind the one before it")]
    Order { row: usize },
}

impl TxnIndex {
    pub fn rows(&self) -> &[AbortedTxn] {
        &self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn append(&mut self, row: AbortedTxn) {
        assert!(
            self.rows
                .last()
                .is_none_or(|last| row.last_offset > last.last_offset),
            "transaction index cannot take {row:?} after {:?}",
            self.rows.last()
        );
        self.rows.push(row);
    }

    /// Drops the rows whose marker is at or past `offset`.
    pub fn truncate_to(&mut self, offset: Offset) {
        self.rows.retain(|row| row.last_offset < offset);
    }

    /// Rows that overlap `[from, upper)`, and whether the scan may stop: a row whose last stable
    /// offset is at or past `upper` says that no later transaction can overlap.
    pub fn collect(&self, from: Offset, upper: Offset, found: &mut Vec<AbortedTxn>) -> bool {
        for row in &self.rows {
            if row.last_offset >= from && row.first_offset < upper {
                found.push(*row);
            }
            if row.last_stable_offset >= upper {
                return true;
            }
        }
        false
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.rows.len() * ABORTED_TXN_BYTES);
        for row in &self.rows {
            bytes.extend_from_slice(&0i16.to_be_bytes());
            for word in [
                row.producer_id,
                row.first_offset.0,
                row.last_offset.0,
                row.last_stable_offset.0,
            ] {
                bytes.extend_from_slice(&word.to_be_bytes());
            }
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<TxnIndex, TxnIndexDamage> {
        if !bytes.len().is_multiple_of(ABORTED_TXN_BYTES) {
            return Err(TxnIndexDamage::Size(bytes.len()));
        }
        let mut index = TxnIndex::default();
        for (row, raw) in bytes.chunks_exact(ABORTED_TXN_BYTES).enumerate() {
            let version = i16::from_be_bytes([raw[0], raw[1]]);
            if version != 0 {
                return Err(TxnIndexDamage::Version { row, version });
            }
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&raw[at..at + 8]);
                i64::from_be_bytes(word)
            };
            let txn = AbortedTxn {
                producer_id: word(2),
                first_offset: Offset(word(10)),
                last_offset: Offset(word(18)),
                last_stable_offset: Offset(word(26)),
            };
            if index
                .rows
                .last()
                .is_some_and(|last| txn.last_offset <= last.last_offset)
            {
                return Err(TxnIndexDamage::Order { row });
            }
            index.rows.push(txn);
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn txn(id: i64, first: i64, last: i64, stable: i64) -> AbortedTxn {
        AbortedTxn {
            producer_id: id,
            first_offset: Offset(first),
            last_offset: Offset(last),
            last_stable_offset: Offset(stable),
        }
    }

    #[test]
    fn rows_read_back_and_foreign_bytes_are_refused() {
        let mut index = TxnIndex::default();
        index.append(txn(1, 0, 10, 11));
        index.append(txn(2, 5, 20, 11));
        let bytes = index.encode();
        assert_eq!(bytes.len(), 2 * ABORTED_TXN_BYTES);
        assert_eq!(TxnIndex::decode(&bytes), Ok(index));
        assert_eq!(TxnIndex::decode(&bytes[1..]), Err(TxnIndexDamage::Size(67)));
        assert!(TxnIndex::decode(&[7; ABORTED_TXN_BYTES]).is_err());
    }

    #[test]
    fn a_read_committed_fetch_sees_every_abort_that_overlaps_it() {
        let mut index = TxnIndex::default();
        index.append(txn(1, 0, 10, 5));
        index.append(txn(2, 5, 20, 21));
        index.append(txn(3, 30, 40, 41));
        let mut found = Vec::new();
        assert!(index.collect(Offset(11), Offset(21), &mut found));
        assert_eq!(found, vec![txn(2, 5, 20, 21)]);
        found.clear();
        assert!(!index.collect(Offset(0), Offset(100), &mut found));
        assert_eq!(found.len(), 3);
        index.truncate_to(Offset(40));
        assert_eq!(index.rows().len(), 2);
    }
}
