//! Owns the two sparse indexes of a segment as they stand in memory and as bytes: offset to
//! file position, and timestamp to offset. Pure, on the log's shard. It never touches the disk:
//! entries are kept here first and persisted behind the acknowledgement path.
//!
//! Lookups answer with a lower bound; the caller scans batches from there.

use crate::types::Offset;

pub const OFFSET_ENTRY_BYTES: usize = 8;
pub const TIME_ENTRY_BYTES: usize = 12;

/// No record seen yet.
pub const NO_TIMESTAMP: i64 = -1;

/// Why index bytes are not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexDamage {
    #[error("size {bytes} is no multiple of the entry size {entry}")]
    Size { bytes: usize, entry: usize },
    #[error("entry {slot} does not follow the one before it")]
    Order { slot: usize },
}

/// Last offset of a batch and the file position where that batch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffsetEntry {
    pub relative: u32,
    pub position: u32,
}

/// Entries of one `.index` file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OffsetIndex {
    base: Offset,
    entries: Vec<OffsetEntry>,
}

impl OffsetIndex {
    pub fn new(base: Offset) -> OffsetIndex {
        OffsetIndex {
            base,
            entries: Vec::new(),
        }
    }

    /// Reads file bytes; a zero tail (a preallocated file that was never trimmed) is the end.
    pub fn decode(base: Offset, bytes: &[u8]) -> Result<OffsetIndex, IndexDamage> {
        check_size(bytes, OFFSET_ENTRY_BYTES)?;
        let mut index = OffsetIndex::new(base);
        for (slot, raw) in bytes.chunks_exact(OFFSET_ENTRY_BYTES).enumerate() {
            let entry = OffsetEntry {
                relative: be32(raw, 0),
                position: be32(raw, 4),
            };
            if entry.relative == 0 && entry.position == 0 {
                if bytes[slot * OFFSET_ENTRY_BYTES..].iter().any(|&b| b != 0) {
                    return Err(IndexDamage::Order { slot });
                }
                break;
            }
            let follows = index
                .entries
                .last()
                .is_none_or(|l| entry.relative > l.relative && entry.position > l.position);
            if !follows || entry.relative > i32::MAX as u32 || entry.position > i32::MAX as u32 {
                return Err(IndexDamage::Order { slot });
            }
            index.entries.push(entry);
        }
        Ok(index)
    }

    /// Bytes of the entries from `first` on.
    pub fn encode_from(&self, first: usize) -> Vec<u8> {
        let tail = self.entries.get(first..).unwrap_or_default();
        let mut bytes = Vec::with_capacity(tail.len() * OFFSET_ENTRY_BYTES);
        for entry in tail {
            bytes.extend_from_slice(&entry.relative.to_be_bytes());
            bytes.extend_from_slice(&entry.position.to_be_bytes());
        }
        bytes
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn entries(&self) -> impl Iterator<Item = (Offset, u32)> + '_ {
        self.entries
            .iter()
            .map(|e| (self.absolute(e.relative), e.position))
    }

    /// Adds (last offset of a batch, its position). Offsets must grow; the caller has checked
    /// that the offset fits the segment.
    pub fn append(&mut self, last_offset: Offset, position: u32) {
        let relative = last_offset.since(self.base);
        assert!(
            relative <= i32::MAX as u64
                && self
                    .entries
                    .last()
                    .is_none_or(|e| relative > u64::from(e.relative)),
            "offset index of segment {} cannot take {last_offset} at {position} after {:?}",
            self.base,
            self.entries.last()
        );
        self.entries.push(OffsetEntry {
            relative: relative as u32,
            position,
        });
    }

    /// The greatest entry at or below `target`, or the segment's beginning.
    pub fn lookup(&self, target: Offset) -> (Offset, u32) {
        let target = relative_of(self.base, target);
        let slot = self
            .entries
            .partition_point(|e| i64::from(e.relative) <= target);
        match slot.checked_sub(1).and_then(|s| self.entries.get(s)) {
            Some(entry) => (self.absolute(entry.relative), entry.position),
            None => (self.base, 0),
        }
    }

    /// Where the batch of the last entry begins.
    pub fn last_position(&self) -> Option<u32> {
        self.entries.last().map(|entry| entry.position)
    }

    /// The position of the last entry at or before `position` and below `offset`.
    pub fn last_within(&self, position: u64, offset: Offset) -> Option<u32> {
        let target = relative_of(self.base, offset);
        let within = self.entries.partition_point(|e| {
            u64::from(e.position) <= position && i64::from(e.relative) < target
        });
        let last = within.checked_sub(1)?;
        self.entries.get(last).map(|entry| entry.position)
    }

    /// Drops the entries at or past `offset`.
    pub fn truncate_to(&mut self, offset: Offset) {
        let target = relative_of(self.base, offset);
        let keep = self
            .entries
            .partition_point(|e| i64::from(e.relative) < target);
        self.entries.truncate(keep);
    }

    fn absolute(&self, relative: u32) -> Offset {
        Offset(self.base.0 + i64::from(relative))
    }
}

/// A timestamp no later record before `relative` exceeds, and that record's batch's last offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeEntry {
    pub timestamp: i64,
    pub relative: u32,
}

/// Entries of one `.timeindex` file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimeIndex {
    base: Offset,
    entries: Vec<TimeEntry>,
}

impl TimeIndex {
    pub fn new(base: Offset) -> TimeIndex {
        TimeIndex {
            base,
            entries: Vec::new(),
        }
    }

    /// Reads file bytes; a zero tail is the end. The first entry alone may be all zeros and still
    /// be one: a first record with timestamp 0. Taking reserved space for it claims no more than
    /// that nothing up to the first offset is later than 1970.
    pub fn decode(base: Offset, bytes: &[u8]) -> Result<TimeIndex, IndexDamage> {
        check_size(bytes, TIME_ENTRY_BYTES)?;
        let mut index = TimeIndex::new(base);
        for (slot, raw) in bytes.chunks_exact(TIME_ENTRY_BYTES).enumerate() {
            let entry = decode_time_entry(raw);
            if entry.timestamp == 0 && entry.relative == 0 {
                let rest = &bytes[slot * TIME_ENTRY_BYTES..];
                if rest.iter().all(|&b| b == 0) && (slot > 0 || rest.len() > TIME_ENTRY_BYTES) {
                    break;
                }
                if slot > 0 {
                    return Err(IndexDamage::Order { slot });
                }
            }
            let follows = index
                .entries
                .last()
                .is_none_or(|l| entry.timestamp > l.timestamp && entry.relative >= l.relative);
            if !follows || entry.timestamp < 0 || entry.relative > i32::MAX as u32 {
                return Err(IndexDamage::Order { slot });
            }
            index.entries.push(entry);
        }
        Ok(index)
    }

    /// Bytes of the entries from `first` on.
    pub fn encode_from(&self, first: usize) -> Vec<u8> {
        let tail = self.entries.get(first..).unwrap_or_default();
        let mut bytes = Vec::with_capacity(tail.len() * TIME_ENTRY_BYTES);
        for entry in tail {
            bytes.extend_from_slice(&entry.timestamp.to_be_bytes());
            bytes.extend_from_slice(&entry.relative.to_be_bytes());
        }
        bytes
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn entries(&self) -> impl Iterator<Item = (i64, Offset)> + '_ {
        self.entries
            .iter()
            .map(|e| (e.timestamp, self.absolute(e.relative)))
    }

    /// The largest (timestamp, offset) entered.
    pub fn last(&self) -> Option<(i64, Offset)> {
        self.entries
            .last()
            .map(|e| (e.timestamp, self.absolute(e.relative)))
    }

    /// Adds the largest timestamp so far and its offset, if it has grown since the last entry.
    pub fn maybe_append(&mut self, timestamp: i64, offset: Offset) {
        let last = self.entries.last();
        if timestamp < 0 || last.is_some_and(|l| timestamp <= l.timestamp) {
            return;
        }
        let relative = offset.since(self.base);
        assert!(
            relative <= i32::MAX as u64 && last.is_none_or(|l| relative >= u64::from(l.relative)),
            "time index of segment {} cannot take {timestamp} at {offset} after {last:?}",
            self.base
        );
        self.entries.push(TimeEntry {
            timestamp,
            relative: relative as u32,
        });
    }

    /// The greatest entry with a timestamp at or below `target`, or "none, at the base".
    pub fn lookup(&self, target: i64) -> (i64, Offset) {
        let slot = self.entries.partition_point(|e| e.timestamp <= target);
        match slot.checked_sub(1).and_then(|s| self.entries.get(s)) {
            Some(entry) => (entry.timestamp, self.absolute(entry.relative)),
            None => (NO_TIMESTAMP, self.base),
        }
    }

    /// The first entry with a timestamp at or past `target`: a batch that holds such a record ends
    /// at or before its offset.
    pub fn ceiling(&self, target: i64) -> Option<(i64, Offset)> {
        let slot = self.entries.partition_point(|e| e.timestamp < target);
        let entry = self.entries.get(slot)?;
        Some((entry.timestamp, self.absolute(entry.relative)))
    }

    /// Drops the entries at or past `offset`.
    pub fn truncate_to(&mut self, offset: Offset) {
        let target = relative_of(self.base, offset);
        let keep = self
            .entries
            .partition_point(|e| i64::from(e.relative) < target);
        self.entries.truncate(keep);
    }

    fn absolute(&self, relative: u32) -> Offset {
        Offset(self.base.0 + i64::from(relative))
    }
}

/// One time index entry's bytes.
pub fn decode_time_entry(raw: &[u8]) -> TimeEntry {
    let high = u64::from(be32(raw, 0)) << 32 | u64::from(be32(raw, 4));
    TimeEntry {
        timestamp: high as i64,
        relative: be32(raw, 8),
    }
}

fn check_size(bytes: &[u8], entry: usize) -> Result<(), IndexDamage> {
    if !bytes.len().is_multiple_of(entry) {
        return Err(IndexDamage::Size {
            bytes: bytes.len(),
            entry,
        });
    }
    Ok(())
}

fn relative_of(base: Offset, offset: Offset) -> i64 {
    offset.0.saturating_sub(base.0)
}

fn be32(raw: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&raw[at..at + 4]);
    u32::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random_index(rng: &mut fastrand::Rng) -> (OffsetIndex, Vec<(i64, u32)>) {
        let base = rng.i64(0..1_000_000);
        let mut index = OffsetIndex::new(Offset(base));
        let (mut offset, mut position) = (base, 0);
        let mut model = Vec::new();
        for _ in 0..rng.usize(0..50) {
            offset += rng.i64(1..100);
            position += rng.u32(1..10_000);
            index.append(Offset(offset), position);
            model.push((offset, position));
        }
        (index, model)
    }

    #[test]
    fn lookup_agrees_with_a_scan_and_truncation_with_a_filter() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let (mut index, mut model) = random_index(&mut rng);
            let base = index.base.0;
            for _ in 0..20 {
                let target = base + rng.i64(-10..6_000);
                let scan = model
                    .iter()
                    .rev()
                    .find(|e| e.0 <= target)
                    .copied()
                    .unwrap_or((base, 0));
                assert_eq!(index.lookup(Offset(target)), (Offset(scan.0), scan.1));
            }
            let cut = base + rng.i64(-10..6_000);
            index.truncate_to(Offset(cut));
            model.retain(|e| e.0 < cut);
            assert_eq!(
                index.entries().map(|(o, p)| (o.0, p)).collect::<Vec<_>>(),
                model
            );
            let mut bytes = index.encode_from(0);
            bytes.resize(bytes.len() + rng.usize(0..5) * OFFSET_ENTRY_BYTES, 0);
            assert_eq!(OffsetIndex::decode(index.base, &bytes), Ok(index));
        }
    }

    #[test]
    fn a_zero_tail_is_not_taken_for_entries_and_garbage_is_refused() {
        let mut time = TimeIndex::new(Offset(100));
        time.maybe_append(5, Offset(110));
        time.maybe_append(5, Offset(120));
        time.maybe_append(4, Offset(130));
        time.maybe_append(9, Offset(130));
        assert_eq!(time.len(), 2);
        let mut bytes = time.encode_from(0);
        bytes.resize(10 * TIME_ENTRY_BYTES, 0);
        assert_eq!(TimeIndex::decode(Offset(100), &bytes), Ok(time.clone()));
        *bytes.last_mut().unwrap() = 1;
        assert_eq!(
            TimeIndex::decode(Offset(100), &bytes),
            Err(IndexDamage::Order { slot: 2 })
        );
        bytes.pop();
        assert!(matches!(
            TimeIndex::decode(Offset(100), &bytes),
            Err(IndexDamage::Size { .. })
        ));
        assert_eq!(time.lookup(4), (NO_TIMESTAMP, Offset(100)));
        assert_eq!(time.lookup(8), (5, Offset(110)));
        assert_eq!(time.ceiling(5), Some((5, Offset(110))));
        assert_eq!(time.ceiling(6), Some((9, Offset(130))));
        assert_eq!(time.ceiling(10), None);
        time.truncate_to(Offset(130));
        assert_eq!(time.last(), Some((5, Offset(110))));

        let mut zero = TimeIndex::new(Offset(7));
        zero.maybe_append(0, Offset(7));
        assert_eq!(
            TimeIndex::decode(Offset(7), &zero.encode_from(0)),
            Ok(zero.clone())
        );
        zero.maybe_append(3, Offset(8));
        let bytes = zero.encode_from(0);
        assert_eq!(TimeIndex::decode(Offset(7), &bytes), Ok(zero));
        let reserved = TimeIndex::decode(Offset(7), &[0; 24]).unwrap();
        assert!(reserved.is_empty());

        let falling = [0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 10];
        assert_eq!(
            OffsetIndex::decode(Offset(0), &falling),
            Err(IndexDamage::Order { slot: 1 })
        );
    }
}
