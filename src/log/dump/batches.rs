//! Owns the text of a `.log` (or metadata snapshot) file: one line per batch, one per record.
//! Reads the file in pieces, never as a whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::{Bytes, BytesMut};

use crate::log::validator::STORED_INFLATED_BYTES_MAX;
use crate::wire::batch::{Batch, BatchError, NO_SEQUENCE, TimestampType, increment_sequence};
use crate::wire::batch_builder::{ControlType, end_txn_coordinator_epoch};
use crate::wire::record::RecordView;

use super::{Dump, absolute, base_of, optional};

/// Bytes read at once; a larger batch is read as a whole.
const CHUNK_BYTES: usize = 1 << 20;

/// Walks the batches of a file without an executor.
pub(super) struct FileBatches {
    file: File,
    position: u64,
    end: u64,
    buffer: Bytes,
}

impl FileBatches {
    pub(super) fn open(path: &Path, from: u64, max_bytes: u64) -> io::Result<FileBatches> {
        let file = File::open(path)?;
        let end = file.metadata()?.len().min(from.saturating_add(max_bytes));
        Ok(FileBatches {
            file,
            position: from,
            end,
            buffer: Bytes::new(),
        })
    }

    /// Where the next batch would begin.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next batch and its position; `None` where the file ends or holds no batch.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Batch)>> {
        loop {
            let left = self.end.saturating_sub(self.position) as usize;
            match Batch::parse(&self.buffer) {
                Ok((batch, rest)) => {
                    let position = self.position;
                    self.position += batch.total_size() as u64;
                    self.buffer = rest;
                    return Ok(Some((position, batch)));
                }
                Err(BatchError::Partial { needed, .. })
                    if needed <= left && self.buffer.len() < left =>
                {
                    let len = needed.max(CHUNK_BYTES).min(left);
                    let mut bytes = BytesMut::zeroed(len);
                    self.file.read_exact_at(&mut bytes, self.position)?;
                    self.buffer = bytes.freeze();
                }
                Err(_) => return Ok(None),
            }
        }
    }
}

impl Dump<'_> {
    pub(super) fn log(&mut self, path: &Path, name: &str) -> io::Result<()> {
        match name.strip_suffix(".checkpoint") {
            None => writeln!(self.out, "Log starting offset: {}", base_of(path)?)?,
            Some("bootstrap") => writeln!(self.out, "KRaft bootstrap snapshot")?,
            Some(id) => {
                let (offset, epoch) = id.split_once('-').unwrap_or((id, "0"));
                let number = |text: &str| text.parse::<i64>().unwrap_or(-1);
                let (offset, epoch) = (number(offset), number(epoch));
                writeln!(self.out, "Snapshot end offset: {offset}, epoch: {epoch}")?;
            }
        }
        let mut batches = FileBatches::open(path, 0, self.options.max_bytes)?;
        let mut last_offset = -1;
        while let Some((position, batch)) = batches.next()? {
            self.batch(&batch, position)?;
            if self.options.deep || self.options.print_data {
                self.records(path, &batch, &mut last_offset)?;
            }
        }
        let trailing = std::fs::metadata(path)?.len() - batches.position();
        if trailing > 0 && self.options.max_bytes >= i32::MAX as u64 {
            writeln!(
                self.out,
                "Found {trailing} invalid bytes at the end of {name}"
            )?;
        }
        Ok(())
    }

    fn batch(&mut self, batch: &Batch, position: u64) -> io::Result<()> {
        let codec = batch.codec().map_or("unknown", |codec| codec.name());
        write!(
            self.out,
            "baseOffset: {} lastOffset: {} count: {} baseSequence: {} lastSequence: {} \
             producerId: {} producerEpoch: {} partitionLeaderEpoch: {} isTransactional: {} \
             isControl: {} deleteHorizonMs: {}",
            batch.base_offset(),
            batch.last_offset(),
            batch.record_count(),
            batch.base_sequence(),
            batch.last_sequence(),
            batch.producer_id(),
            batch.producer_epoch(),
            batch.partition_leader_epoch().0,
            batch.is_transactional(),
            batch.is_control(),
            optional(batch.delete_horizon()),
        )?;
        writeln!(
            self.out,
            " position: {position} {}: {} size: {} magic: {} compresscodec: {codec} crc: {} \
             isvalid: {}",
            timestamp_type(batch),
            batch.max_timestamp(),
            batch.total_size(),
            batch.magic(),
            batch.crc(),
            batch.check_crc().is_ok(),
        )
    }

    fn records(&mut self, path: &Path, batch: &Batch, last_offset: &mut i64) -> io::Result<()> {
        let unreadable = |error: &dyn std::fmt::Display| {
            let file = path.display();
            format!(
                "Batch at offset {} of {file} is not readable: {error}",
                batch.base_offset()
            )
        };
        let records = match batch.records(STORED_INFLATED_BYTES_MAX) {
            Ok(records) => records,
            Err(error) => {
                self.problems.other.push(unreadable(&error));
                return Ok(());
            }
        };
        for record in records {
            let record = match record {
                Ok(record) => record,
                Err(error) => {
                    self.problems.other.push(unreadable(&error));
                    return Ok(());
                }
            };
            let offset = record.offset.0;
            if offset != *last_offset + 1 {
                let gaps = self.problems.gaps.entry(absolute(path)).or_default();
                gaps.insert(*last_offset, offset);
            }
            *last_offset = offset;
            self.record(batch, &record)?;
        }
        Ok(())
    }

    fn record(&mut self, batch: &Batch, record: &RecordView) -> io::Result<()> {
        let bare = self.options.skip_record_metadata;
        if !bare {
            let size = |bytes: &Option<Bytes>| bytes.as_ref().map_or(-1, |b| b.len() as i64);
            let sequence = match batch.base_sequence() {
                base if base >= 0 => increment_sequence(base, record.offset_delta),
                _ => NO_SEQUENCE,
            };
            let keys: Vec<String> = record
                .headers()
                .map(|(key, _)| String::from_utf8_lossy(&key).into_owned())
                .collect();
            write!(
                self.out,
                "| offset: {} {}: {} keySize: {} valueSize: {} sequence: {sequence} headerKeys: [{}]",
                record.offset,
                timestamp_type(batch),
                record.timestamp,
                size(&record.key),
                size(&record.value),
                keys.join(","),
            )?;
            if batch.is_control() {
                self.control(record)?;
            }
        }
        if self.options.print_data && !batch.is_control() {
            let decoded = self.decoder.record(record);
            let mut prefix = if bare { "| " } else { " " };
            if let Some(key) = decoded.key {
                write!(self.out, "{prefix}key: {key}")?;
                prefix = " ";
            }
            if let Some(payload) = decoded.payload {
                write!(self.out, "{prefix}payload: {payload}")?;
            }
        }
        writeln!(self.out)
    }

    fn control(&mut self, record: &RecordView) -> io::Result<()> {
        let key = record.key.as_deref().unwrap_or_default();
        let type_id = match key {
            [_, _, high, low, ..] => i16::from_be_bytes([*high, *low]),
            _ => -1,
        };
        let marker = match ControlType::of_key(key) {
            Some(ControlType::Commit) => Some("COMMIT"),
            Some(ControlType::Abort) => Some("ABORT"),
            _ => None,
        };
        let value = record.value.clone().unwrap_or_default();
        if let Some(marker) = marker {
            let epoch = end_txn_coordinator_epoch(&value).unwrap_or(-1);
            return write!(
                self.out,
                " endTxnMarker: {marker} coordinatorEpoch: {epoch}"
            );
        }
        match self.decoder.control(type_id, &value) {
            Some(words) => write!(self.out, " {words}"),
            None => write!(self.out, " controlType: UNKNOWN({type_id})"),
        }
    }
}

fn timestamp_type(batch: &Batch) -> &'static str {
    match batch.timestamp_type() {
        TimestampType::CreateTime => "CreateTime",
        TimestampType::LogAppendTime => "LogAppendTime",
    }
}
