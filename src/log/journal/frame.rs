//! Owns the form of a journal frame: what one flush round writes, in bytes. Pure, any core. It
//! never touches a file, and never believes a byte that its checksum does not cover.
//!
//! A frame begins at a block boundary and is zero-padded to the next:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic and version of the format |
//! | 8..12 | CRC-32C of everything from byte 12 to the frame's length |
//! | 12..16 | length of the frame without its padding |
//! | 16..32 | id of the journal file it was written for |
//! | 32..40 | sequence number, one more than that of the frame before |
//! | 40..48 | sequence number of the oldest frame that is still needed |
//! | 48..52 | number of entries |
//! | 52..56 | zero |
//!
//! An entry is its kind (1 byte, then 3 of zero), partition (4), topic id (16), offset (8), length
//! (4) and that many bytes: whole record batches as they lie in the segment, leader epoch and all,
//! for [`Change::Batches`], none for the others. Numbers are big-endian, as everywhere in the log.

use bytes::{Buf, BufMut, Bytes};
use smallvec::SmallVec;

use crate::types::{Offset, PartitionId, Uuid};

/// Frames begin at multiples of this: what every device takes for O_DIRECT.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// Largest frame: a round with more in it flushes segments instead.
pub(super) const FRAME_BYTES_MAX: u64 = 1 << 20;

const MAGIC: u64 = u64::from_be_bytes(*b"HWJRNL\0\x02");
pub(super) const HEADER_BYTES: usize = 56;
const CHECKED_FROM: usize = 12;
pub(super) const ENTRY_BYTES: usize = 36;

/// What an entry says of its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Batches that follow each other, the first at the entry's offset, in the parts they came in.
    Batches(SmallVec<[Bytes; 2]>),
    /// Nothing at or past the offset that an earlier entry told counts any more: the log's tail is
    /// cut there.
    Cut,
    /// The log starts over at the offset: nothing that an earlier entry told counts any more.
    StartOver,
    /// The log starts at the offset: nothing below it counts any more.
    LogStart,
}

/// One change of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub partition: PartitionId,
    pub offset: Offset,
    pub change: Change,
}

impl Entry {
    /// Bytes it takes in a frame.
    pub(super) fn size(&self) -> usize {
        ENTRY_BYTES + self.body_size()
    }

    /// With memory of its own.
    pub(super) fn detached(mut self) -> Entry {
        if let Change::Batches(parts) = &mut self.change {
            for part in parts {
                *part = Bytes::copy_from_slice(part);
            }
        }
        self
    }

    fn body_size(&self) -> usize {
        match &self.change {
            Change::Batches(parts) => parts.iter().map(Bytes::len).sum(),
            Change::Cut | Change::StartOver | Change::LogStart => 0,
        }
    }

    fn kind(&self) -> u8 {
        match self.change {
            Change::Batches(_) => 1,
            Change::Cut => 2,
            Change::StartOver => 3,
            Change::LogStart => 4,
        }
    }
}

/// Which file a frame is for, and its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub journal: Uuid,
    pub sequence: u64,
    /// Number of the oldest frame, this one at the latest, that tells what the segments may lack.
    pub needed_from: u64,
}

/// Bytes of a frame with these entries, padding included.
pub(super) fn frame_size<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> u64 {
    let body: usize = entries.into_iter().map(Entry::size).sum();
    ((HEADER_BYTES + body) as u64).next_multiple_of(BLOCK_BYTES)
}

/// Writes the frame into zeroed `out`, which has [`frame_size`] bytes.
pub(super) fn encode(stamp: Stamp, entries: &[Entry], out: &mut [u8]) {
    let body: usize = entries.iter().map(Entry::size).sum();
    let length = HEADER_BYTES + body;
    let mut rest = &mut out[..length];
    rest.put_u64(MAGIC);
    rest.put_u32(0);
    rest.put_u32(length as u32);
    rest.put_slice(&stamp.journal.0);
    rest.put_u64(stamp.sequence);
    rest.put_u64(stamp.needed_from);
    rest.put_u32(entries.len() as u32);
    rest.put_u32(0);
    for entry in entries {
        rest.put_u32(u32::from(entry.kind()) << 24);
        rest.put_i32(entry.partition.index);
        rest.put_slice(&entry.partition.topic.0);
        rest.put_i64(entry.offset.0);
        rest.put_u32(entry.body_size() as u32);
        if let Change::Batches(parts) = &entry.change {
            for part in parts {
                rest.put_slice(part);
            }
        }
    }
    let crc = crc32c::crc32c(&out[CHECKED_FROM..length]);
    out[8..12].copy_from_slice(&crc.to_be_bytes());
}

/// The frame that begins with `bytes`, and how many of them it takes with its padding; `None` if
/// none begins here, or none that is whole.
pub(super) fn decode(bytes: &Bytes) -> Option<(Stamp, Vec<Entry>, u64)> {
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    let mut header = &bytes[..HEADER_BYTES];
    if header.get_u64() != MAGIC {
        return None;
    }
    let crc = header.get_u32();
    let length = header.get_u32() as usize;
    let mut journal = [0; 16];
    header.copy_to_slice(&mut journal);
    let sequence = header.get_u64();
    let needed_from = header.get_u64();
    let count = header.get_u32();
    let fits = (HEADER_BYTES..=bytes.len()).contains(&length);
    if !fits || crc32c::crc32c(&bytes[CHECKED_FROM..length]) != crc {
        return None;
    }
    let mut rest = bytes.slice(HEADER_BYTES..length);
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push(decode_entry(&mut rest)?);
    }
    let stamp = Stamp {
        journal: Uuid(journal),
        sequence,
        needed_from,
    };
    let taken = (length as u64).next_multiple_of(BLOCK_BYTES);
    rest.is_empty().then_some((stamp, entries, taken))
}

fn decode_entry(rest: &mut Bytes) -> Option<Entry> {
    if rest.len() < ENTRY_BYTES {
        return None;
    }
    let kind = rest.get_u32() >> 24;
    let index = rest.get_i32();
    let mut topic = [0; 16];
    rest.copy_to_slice(&mut topic);
    let offset = Offset(rest.get_i64());
    let length = rest.get_u32() as usize;
    if length > rest.len() {
        return None;
    }
    let body = rest.split_to(length);
    let change = match kind {
        1 => Change::Batches(SmallVec::from_iter([body])),
        2 => Change::Cut,
        3 => Change::StartOver,
        4 => Change::LogStart,
        _ => return None,
    };
    Some(Entry {
        partition: PartitionId {
            topic: Uuid(topic),
            index,
        },
        offset,
        change,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let entry = |index, offset, change| Entry {
            partition: PartitionId {
                topic: Uuid::from_halves(1, 2),
                index,
            },
            offset: Offset(offset),
            change,
        };
        let whole = |bytes: &'static [u8]| SmallVec::from_iter([Bytes::from_static(bytes)]);
        vec![
            entry(0, 7, Change::Batches(whole(b"batch"))),
            entry(1, 5, Change::Cut),
            entry(2, 9, Change::StartOver),
            entry(3, 3, Change::LogStart),
            entry(i32::MAX, i64::MAX, Change::Batches(whole(&[3; 5000]))),
        ]
    }

    fn stamp() -> Stamp {
        Stamp {
            journal: Uuid::from_halves(3, 4),
            sequence: 99,
            needed_from: 90,
        }
    }

    fn encoded() -> Vec<u8> {
        let entries = entries();
        let mut out = vec![0; frame_size(&entries) as usize];
        encode(stamp(), &entries, &mut out);
        out
    }

    #[test]
    fn a_frame_reads_back_as_it_was_written() {
        let bytes = encoded();
        assert_eq!(bytes.len(), 2 * BLOCK_BYTES as usize);
        let size = bytes.len() as u64;
        assert_eq!(
            decode(&Bytes::from(bytes)),
            Some((stamp(), entries(), size))
        );
    }

    #[test]
    fn a_frame_with_any_byte_changed_or_its_end_missing_is_none() {
        let whole = encoded();
        let length = HEADER_BYTES + entries().iter().map(Entry::size).sum::<usize>();
        for at in 0..length {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            assert_eq!(decode(&Bytes::from(bytes)), None, "byte {at}");
        }
        for len in (0..length).step_by(7) {
            let bytes = Bytes::copy_from_slice(&whole[..len]);
            assert_eq!(decode(&bytes), None, "cut at {len}");
        }
    }

    #[test]
    fn hostile_lengths_and_counts_are_no_frame() {
        for (at, value) in [(12, u32::MAX), (12, 0), (48, u32::MAX), (88, u32::MAX)] {
            let mut bytes = encoded();
            bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
            let length = u32::from_be_bytes(bytes[12..16].try_into().unwrap()) as usize;
            let end = length.clamp(CHECKED_FROM, bytes.len());
            let crc = crc32c::crc32c(&bytes[CHECKED_FROM..end]);
            bytes[8..12].copy_from_slice(&crc.to_be_bytes());
            assert_eq!(decode(&Bytes::from(bytes)), None, "{value} at {at}");
        }
    }
}
