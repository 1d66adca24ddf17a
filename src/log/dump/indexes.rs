//! Owns the text of the files beside a log: offset, time and transaction indexes, producer
//! snapshots, leader epochs. Index entries are compared with the log they belong to.

use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};

use crate::log::index::{OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, decode_time_entry};
use crate::log::leader_epochs::LeaderEpochs;
use crate::log::txn_index::TxnIndex;
use crate::log::validator::STORED_INFLATED_BYTES_MAX;
use crate::wire::batch::{Batch, NO_TIMESTAMP, decrement_sequence};

use super::batches::FileBatches;
use super::{Dump, absolute, base_of, optional};

const SNAPSHOT_VERSION: i16 = 1;
const SNAPSHOT_HEADER_BYTES: usize = 10;
const SNAPSHOT_ENTRY_BYTES: usize = 46;

impl Dump<'_> {
    pub(super) fn offset_index(&mut self, path: &Path) -> io::Result<()> {
        let base = base_of(path)?;
        let bytes = std::fs::read(path)?;
        let entries = offset_entries(base, &bytes);
        if entries.is_empty() {
            return writeln!(self.out, "{} is empty.", path.display());
        }
        if self.options.index_sanity_check {
            let last = entries.last().map_or(base, |entry| entry.0);
            return self.sanity(path, bytes.len(), OFFSET_ENTRY_BYTES, last >= base);
        }
        let log = path.with_extension("log");
        for (offset, position) in entries {
            let mut batches = FileBatches::open(&log, position, u64::MAX)?;
            let found = batches
                .next()?
                .map_or(-1, |(_, batch)| batch.last_offset().0);
            if found != offset {
                let mismatches = self
                    .problems
                    .index_mismatches
                    .entry(absolute(path))
                    .or_default();
                mismatches.insert(Reverse(offset), found);
            }
            if !self.options.verify_index_only {
                writeln!(self.out, "offset: {offset} position: {position}")?;
            }
        }
        Ok(())
    }

    pub(super) fn time_index(&mut self, path: &Path) -> io::Result<()> {
        let base = base_of(path)?;
        let bytes = std::fs::read(path)?;
        let entries: Vec<(i64, i64)> = entries_before_tail(&bytes, TIME_ENTRY_BYTES)
            .map(decode_time_entry)
            .map(|entry| (entry.timestamp, base + i64::from(entry.relative)))
            .collect();
        if self.options.index_sanity_check {
            let sane = entries.last().is_none_or(|(timestamp, offset)| {
                *offset >= base && *timestamp >= entries.first().map_or(0, |first| first.0)
            });
            return self.sanity(path, bytes.len(), TIME_ENTRY_BYTES, sane);
        }
        let index = std::fs::read(path.with_extension("index"))?;
        let offsets = offset_entries(base, &index);
        let log = path.with_extension("log");
        let mut previous = NO_TIMESTAMP;
        for (timestamp, offset) in entries {
            self.check_time_entry(path, &log, &offsets, (timestamp, offset), previous)?;
            if !self.options.verify_index_only {
                writeln!(self.out, "timestamp: {timestamp} offset: {offset}")?;
            }
            previous = timestamp;
        }
        Ok(())
    }

    fn check_time_entry(
        &mut self,
        path: &Path,
        log: &Path,
        offsets: &[(i64, u64)],
        (timestamp, offset): (i64, i64),
        previous: i64,
    ) -> io::Result<()> {
        let live = offsets.iter().take_while(|entry| entry.1 > 0);
        let from = live
            .take_while(|entry| entry.0 <= offset)
            .last()
            .map_or(0, |entry| entry.1);
        let mut batches = FileBatches::open(log, from, u64::MAX)?;
        let mut found = None;
        while let Some((_, batch)) = batches.next()? {
            if batch.last_offset().0 >= offset {
                found = Some(batch);
                break;
            }
        }
        let problems = &mut self.problems;
        let Some(batch) = found.filter(|batch| batch.last_offset().0 == offset) else {
            let found = self.last_at_or_past(log, from, offset)?;
            note(&mut self.problems.offsets_not_found, path, (offset, found));
            return Ok(());
        };
        let largest = largest_timestamp(&batch);
        if largest != timestamp {
            note(&mut problems.time_mismatches, path, (timestamp, largest));
        }
        if previous >= timestamp {
            note(&mut problems.time_order, path, (timestamp, previous));
        }
        Ok(())
    }

    fn last_at_or_past(&self, log: &Path, from: u64, offset: i64) -> io::Result<i64> {
        let mut batches = FileBatches::open(log, from, u64::MAX)?;
        while let Some((_, batch)) = batches.next()? {
            if batch.last_offset().0 >= offset {
                return Ok(batch.last_offset().0);
            }
        }
        Ok(-1)
    }

    fn sanity(&mut self, path: &Path, bytes: usize, entry: usize, sane: bool) -> io::Result<()> {
        if sane && bytes.is_multiple_of(entry) {
            return writeln!(self.out, "{} passed sanity check.", path.display());
        }
        self.problems.other.push(format!(
            "Index file {} is corrupt, found {bytes} bytes of entries of {entry} bytes{}",
            absolute(path).display(),
            if sane {
                ""
            } else {
                " that do not grow from the base offset"
            },
        ));
        Ok(())
    }

    pub(super) fn txn_index(&mut self, path: &Path) -> io::Result<()> {
        let bytes = std::fs::read(path)?;
        let index = match TxnIndex::decode(&bytes) {
            Ok(index) => index,
            Err(error) => {
                self.problems
                    .other
                    .push(format!("{}: {error}", path.display()));
                return Ok(());
            }
        };
        for row in index.rows() {
            writeln!(
                self.out,
                "version: 0 producerId: {} firstOffset: {} lastOffset: {} lastStableOffset: {}",
                row.producer_id, row.first_offset, row.last_offset, row.last_stable_offset
            )?;
        }
        Ok(())
    }

    pub(super) fn snapshot(&mut self, path: &Path) -> io::Result<()> {
        let bytes = std::fs::read(path)?;
        let Some(entries) = snapshot_entries(&bytes) else {
            let line = format!("Snapshot {} is corrupt", path.display());
            self.problems.other.push(line);
            return Ok(());
        };
        for raw in entries.chunks_exact(SNAPSHOT_ENTRY_BYTES) {
            let txn_first = be64(raw, 38);
            write!(
                self.out,
                "producerId: {} producerEpoch: {} coordinatorEpoch: {} currentTxnFirstOffset: {} \
                 lastTimestamp: {}",
                be64(raw, 0),
                i16::from_be_bytes([raw[8], raw[9]]),
                be32(raw, 34),
                optional((txn_first >= 0).then_some(txn_first)),
                be64(raw, 26),
            )?;
            let (last_sequence, last_offset, delta) = (be32(raw, 10), be64(raw, 14), be32(raw, 22));
            if last_offset >= 0 {
                write!(
                    self.out,
                    " firstSequence: {} lastSequence: {last_sequence} lastOffset: {last_offset} \
                     offsetDelta: {delta} timestamp: {}",
                    decrement_sequence(last_sequence, delta),
                    be64(raw, 26),
                )?;
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    pub(super) fn epochs(&mut self, path: &Path) -> io::Result<()> {
        match LeaderEpochs::decode(&std::fs::read(path)?) {
            Ok(epochs) => {
                for entry in epochs.entries() {
                    let (epoch, start) = (entry.epoch.0, entry.start_offset);
                    writeln!(self.out, "leaderEpoch: {epoch} startOffset: {start}")?;
                }
            }
            Err(error) => self
                .problems
                .other
                .push(format!("{}: {error}", path.display())),
        }
        Ok(())
    }
}

fn note(
    problems: &mut std::collections::BTreeMap<PathBuf, Vec<(i64, i64)>>,
    path: &Path,
    pair: (i64, i64),
) {
    problems.entry(absolute(path)).or_default().push(pair);
}

/// The raw entries of an index. The zeros at the end of an active segment's are reserved space; a
/// single entry is one whatever it holds, because only a closed index is that short.
fn entries_before_tail(bytes: &[u8], entry: usize) -> std::slice::ChunksExact<'_, u8> {
    let written = match bytes.len() > entry {
        true => bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1),
        false => bytes.len(),
    };
    let end = written.next_multiple_of(entry).min(bytes.len());
    bytes[..end].chunks_exact(entry)
}

/// (offset, position) of every entry.
fn offset_entries(base: i64, bytes: &[u8]) -> Vec<(i64, u64)> {
    entries_before_tail(bytes, OFFSET_ENTRY_BYTES)
        .map(|raw| (base + i64::from(be32(raw, 0)), be32(raw, 4) as u32 as u64))
        .collect()
}

fn largest_timestamp(batch: &Batch) -> i64 {
    let records = batch
        .records(STORED_INFLATED_BYTES_MAX)
        .into_iter()
        .flatten();
    records
        .flatten()
        .map(|record| record.timestamp)
        .max()
        .unwrap_or(NO_TIMESTAMP)
}

/// The entries of a producer snapshot, if its version, checksum and length are right.
fn snapshot_entries(bytes: &[u8]) -> Option<&[u8]> {
    let header = bytes.get(..SNAPSHOT_HEADER_BYTES)?;
    let version = i16::from_be_bytes([header[0], header[1]]);
    let crc = be32(header, 2) as u32;
    let count = usize::try_from(be32(header, 6)).ok()?;
    let entries = &bytes[SNAPSHOT_HEADER_BYTES..];
    let whole = version == SNAPSHOT_VERSION
        && crc == crc32c::crc32c(&bytes[6..])
        && entries.len() == count.checked_mul(SNAPSHOT_ENTRY_BYTES)?;
    whole.then_some(entries)
}

fn be32(raw: &[u8], at: usize) -> i32 {
    let mut word = [0; 4];
    word.copy_from_slice(&raw[at..at + 4]);
    i32::from_be_bytes(word)
}

fn be64(raw: &[u8], at: usize) -> i64 {
    let mut word = [0; 8];
    word.copy_from_slice(&raw[at..at + 8]);
    i64::from_be_bytes(word)
}
