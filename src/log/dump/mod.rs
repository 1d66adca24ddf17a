//! Owns the text form of a log's files, as Kafka's DumpLogSegments prints them: the output of
//! `highwater dump-log`. Runs in a command's own thread, on plain files, beside or without a
//! broker. It never writes to what it reads, and believes nothing it reads.
//!
//! What is printed goes to `out`; what is found wrong is collected and told by
//! [`Dump::finish`], as Kafka's tool does, on the error stream.

mod batches;
mod indexes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::wire::record::RecordView;

/// What to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpOptions {
    /// Keys and values too; implies `deep`.
    pub print_data: bool,
    /// Every record, not only batches.
    pub deep: bool,
    /// Compare an index with its log, print no entries.
    pub verify_index_only: bool,
    /// Only the check that decides at start-up whether an index is rebuilt.
    pub index_sanity_check: bool,
    /// Only keys and values.
    pub skip_record_metadata: bool,
    /// Bytes of a log file to read.
    pub max_bytes: u64,
}

impl Default for DumpOptions {
    fn default() -> DumpOptions {
        DumpOptions {
            print_data: false,
            deep: false,
            verify_index_only: false,
            index_sanity_check: false,
            skip_record_metadata: false,
            max_bytes: i32::MAX as u64,
        }
    }
}

/// The text of a record's key and value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    pub key: Option<String>,
    pub payload: Option<String>,
}

/// How keys, values and control records are put into words.
pub trait Decoder {
    fn record(&self, record: &RecordView) -> Decoded;

    /// The words for a control record beyond end-of-transaction markers: type id and value.
    /// `None` prints its bare type.
    fn control(&self, _type_id: i16, _value: &Bytes) -> Option<String> {
        None
    }
}

/// Keys and values as UTF-8 text.
pub struct TextDecoder;

impl Decoder for TextDecoder {
    fn record(&self, record: &RecordView) -> Decoded {
        let text = |bytes: &Option<Bytes>| {
            bytes
                .as_ref()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        Decoded {
            key: text(&record.key),
            payload: text(&record.value),
        }
    }
}

/// One run of the tool over any number of files.
pub struct Dump<'a> {
    options: DumpOptions,
    decoder: &'a dyn Decoder,
    out: &'a mut dyn Write,
    problems: Problems,
}

/// What was found wrong, by file.
#[derive(Default)]
struct Problems {
    /// Index offset and the last offset of the batch it points to, the largest first.
    index_mismatches: BTreeMap<PathBuf, BTreeMap<std::cmp::Reverse<i64>, i64>>,
    time_mismatches: BTreeMap<PathBuf, Vec<(i64, i64)>>,
    time_order: BTreeMap<PathBuf, Vec<(i64, i64)>>,
    offsets_not_found: BTreeMap<PathBuf, Vec<(i64, i64)>>,
    /// An offset and the one that follows it.
    gaps: BTreeMap<PathBuf, BTreeMap<i64, i64>>,
    /// Anything else, a line each.
    other: Vec<String>,
}

impl<'a> Dump<'a> {
    pub fn new(options: DumpOptions, decoder: &'a dyn Decoder, out: &'a mut dyn Write) -> Dump<'a> {
        Dump {
            options,
            decoder,
            out,
            problems: Problems::default(),
        }
    }

    /// Prints one file by what its name says it is.
    pub fn file(&mut self, path: &Path) -> io::Result<()> {
        writeln!(self.out, "Dumping {}", path.display())?;
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("log" | "checkpoint") => self.log(path, &name),
            Some("index") => self.offset_index(path),
            Some("timeindex") => self.time_index(path),
            Some("snapshot") => self.snapshot(path),
            Some("txnindex") => self.txn_index(path),
            _ if name == super::names::LEADER_EPOCH_CHECKPOINT => self.epochs(path),
            _ => {
                self.problems
                    .other
                    .push(format!("Ignoring unknown file {}", path.display()));
                Ok(())
            }
        }
    }

    /// Tells on `err` what was found wrong in all files; true if nothing was.
    pub fn finish(self, err: &mut dyn Write) -> io::Result<bool> {
        self.out.flush()?;
        let problems = self.problems;
        let clean = problems.is_empty();
        problems.tell(err)?;
        Ok(clean)
    }
}

impl Problems {
    fn is_empty(&self) -> bool {
        self.index_mismatches.is_empty()
            && self.time_mismatches.is_empty()
            && self.time_order.is_empty()
            && self.offsets_not_found.is_empty()
            && self.gaps.is_empty()
            && self.other.is_empty()
    }

    fn tell(self, err: &mut dyn Write) -> io::Result<()> {
        for line in self.other {
            writeln!(err, "{line}")?;
        }
        for (file, mismatches) in self.index_mismatches {
            writeln!(err, "Mismatches in :{}", file.display())?;
            for (index, log) in mismatches {
                writeln!(err, "  Index offset: {}, log offset: {log}", index.0)?;
            }
        }
        for (file, mismatches) in self.time_mismatches {
            writeln!(err, "Found timestamp mismatch in :{}", file.display())?;
            for (index, log) in mismatches {
                writeln!(err, "  Index timestamp: {index}, log timestamp: {log}")?;
            }
        }
        for (file, pairs) in self.time_order {
            writeln!(err, "Found out of order timestamp in :{}", file.display())?;
            for (index, previous) in pairs {
                writeln!(
                    err,
                    "  Index timestamp: {index}, Previously indexed timestamp: {previous}"
                )?;
            }
        }
        for pairs in self.offsets_not_found.into_values() {
            writeln!(
                err,
                "The following indexed offsets are not found in the log."
            )?;
            for (index, log) in pairs {
                writeln!(err, "Indexed offset: {index}, found log offset: {log}")?;
            }
        }
        for (file, pairs) in self.gaps {
            writeln!(err, "Non-consecutive offsets in {}", file.display())?;
            for (offset, next) in pairs {
                writeln!(err, "  {offset} is followed by {next}")?;
            }
        }
        Ok(())
    }
}

/// The offset a segment file's name begins with.
fn base_of(path: &Path) -> io::Result<i64> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let digits = name.split('.').next().unwrap_or_default();
    digits.parse().map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} does not begin with an offset", path.display()),
        )
    })
}

/// Java's `OptionalLong` in words.
fn optional(value: Option<i64>) -> String {
    value.map_or_else(
        || "OptionalLong.empty".to_owned(),
        |value| format!("OptionalLong[{value}]"),
    )
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
