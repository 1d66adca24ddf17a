//! Owns the form of Kafka's checkpoint files: a version line, a count line, then one entry a
//! line. Encoding and decoding are pure; `write_atomic` and `read` go through `rt::fs`. It never
//! decides what is in a checkpoint: one place per directory collects the shards' facts and
//! writes them, because the file is the directory's and not a shard's.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::rt;
use crate::types::{Offset, Uuid};

pub const RECOVERY_POINT: &str = "recovery-point-offset-checkpoint";
pub const HIGH_WATERMARK: &str = "replication-offset-checkpoint";
pub const LOG_START: &str = "log-start-offset-checkpoint";
pub const CLEANER: &str = "cleaner-offset-checkpoint";

/// Entries accepted from a checkpoint file: far above any real directory, and a bound on what a
/// damaged file may cost.
const ENTRIES_MAX: usize = 10_000_000;

/// Offsets per (topic, partition), as the checkpoint files of a directory hold them.
pub type OffsetMap = BTreeMap<(String, i32), Offset>;

/// Longest piece of a damaged line that is told.
const TOLD_MAX: usize = 80;

/// A checkpoint that cannot be read as one.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CheckpointError {
    #[error("line 1: version is {0:?}, only 0 is known")]
    Version(String),
    #[error("line 2: {announced} entries are announced, {found} follow")]
    Count { announced: usize, found: usize },
    #[error("line {line} is {found:?}, which is no {wanted}")]
    Line {
        line: usize,
        found: String,
        wanted: &'static str,
    },
    #[error("checkpoint is not UTF-8 text")]
    Text,
}

impl CheckpointError {
    pub(super) fn line(line: usize, found: &str, wanted: &'static str) -> CheckpointError {
        CheckpointError::Line {
            line,
            found: found.chars().take(TOLD_MAX).collect(),
            wanted,
        }
    }
}

/// Encodes `topic partition offset` lines.
pub fn encode(offsets: &OffsetMap) -> Vec<u8> {
    let mut text = format!("0\n{}\n", offsets.len());
    for ((topic, partition), offset) in offsets {
        text.push_str(&format!("{topic} {partition} {}\n", offset.0));
    }
    text.into_bytes()
}

/// Decodes `topic partition offset` lines.
pub fn decode(bytes: &[u8]) -> Result<OffsetMap, CheckpointError> {
    let mut offsets = OffsetMap::new();
    for (number, line) in lines(bytes)? {
        let mut words = line.split_whitespace();
        let entry = (|| {
            let topic = words.next()?.to_owned();
            let partition = words.next()?.parse().ok()?;
            let offset = words.next()?.parse().ok()?;
            words
                .next()
                .is_none()
                .then_some(((topic, partition), Offset(offset)))
        })();
        let (key, offset) = entry
            .ok_or_else(|| CheckpointError::line(number, line, "topic, partition and offset"))?;
        offsets.insert(key, offset);
    }
    Ok(offsets)
}

/// Encodes `partition.metadata`. Kafka ends the file without a line break.
pub fn encode_partition_metadata(topic_id: Uuid) -> Vec<u8> {
    format!("version: 0\ntopic_id: {topic_id}").into_bytes()
}

/// Decodes `partition.metadata`.
pub fn decode_partition_metadata(bytes: &[u8]) -> Result<Uuid, CheckpointError> {
    let text = std::str::from_utf8(bytes).map_err(|_| CheckpointError::Text)?;
    let mut lines = text.lines();
    let version = lines.next().unwrap_or_default();
    if version.strip_prefix("version:").map(str::trim) != Some("0") {
        return Err(CheckpointError::Version(version.to_owned()));
    }
    let line = lines.next().unwrap_or_default();
    line.strip_prefix("topic_id:")
        .and_then(|id| Uuid::parse(id.trim()))
        .filter(|id| !id.is_zero())
        .ok_or_else(|| CheckpointError::line(2, line, "topic id"))
}

/// Replaces the file as a whole: written aside, synced, renamed, directory synced.
pub async fn write_atomic(path: &Path, bytes: Vec<u8>) -> io::Result<()> {
    rt::fs::write_atomic(path, bytes).await
}

/// Reads an offset checkpoint. A missing file is empty; a damaged one is reported and taken for
/// empty, which costs a longer recovery and never data.
pub async fn read(path: &Path) -> io::Result<OffsetMap> {
    let bytes = match rt::fs::read(path).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(OffsetMap::new()),
        Err(error) => return Err(error),
    };
    Ok(decode(&bytes).unwrap_or_else(|error| {
        tracing::warn!(
            file = %path.display(), bytes = bytes.len(), %error,
            "damaged checkpoint, all of it is ignored"
        );
        OffsetMap::new()
    }))
}

/// The entries' lines with their numbers.
pub(super) fn lines(bytes: &[u8]) -> Result<Vec<(usize, &str)>, CheckpointError> {
    let text = std::str::from_utf8(bytes).map_err(|_| CheckpointError::Text)?;
    let mut lines = text.lines();
    let version = lines.next().unwrap_or_default();
    if version.trim() != "0" {
        return Err(CheckpointError::Version(version.to_owned()));
    }
    let count = lines.next().unwrap_or_default();
    let announced: usize = count
        .trim()
        .parse()
        .map_err(|_| CheckpointError::line(2, count, "count"))?;
    if announced > ENTRIES_MAX {
        return Err(CheckpointError::line(
            2,
            count,
            "count of entries that can be",
        ));
    }
    let entries: Vec<(usize, &str)> = (3..)
        .zip(lines)
        .filter(|(_, line)| !line.trim().is_empty())
        .collect();
    if entries.len() != announced {
        return Err(CheckpointError::Count {
            announced,
            found: entries.len(),
        });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_read_back_as_written() {
        let mut offsets = OffsetMap::new();
        offsets.insert(("a-b".into(), 0), Offset(7));
        offsets.insert(("a-b".into(), 10), Offset(0));
        offsets.insert(("z".into(), 1), Offset(i64::MAX));
        let bytes = encode(&offsets);
        assert_eq!(bytes, b"0\n3\na-b 0 7\na-b 10 0\nz 1 9223372036854775807\n");
        assert_eq!(decode(&bytes), Ok(offsets));
    }

    #[test]
    fn a_cut_or_foreign_checkpoint_is_an_error_and_never_half_believed() {
        let bytes = b"0\n2\na 0 7\n";
        let want = CheckpointError::Count {
            announced: 2,
            found: 1,
        };
        assert_eq!(decode(bytes), Err(want));
        assert_eq!(decode(b"1\n0\n"), Err(CheckpointError::Version("1".into())));
        let said = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
        assert_eq!(
            said(b"0\n2\nb 0 1\na 0\n"),
            "line 4 is \"a 0\", which is no topic, partition and offset"
        );
        assert_eq!(
            said(b"0\n1\na 0 1 2\n"),
            "line 3 is \"a 0 1 2\", which is no topic, partition and offset"
        );
        assert_eq!(said(b"0\n-1\n"), "line 2 is \"-1\", which is no count");
        assert_eq!(decode(&[0xff, 0xfe]), Err(CheckpointError::Text));
        assert!(decode(b"").is_err());
    }

    #[test]
    fn topic_ids_read_back_as_written() {
        let id = Uuid::from_halves(5, 9);
        let bytes = encode_partition_metadata(id);
        assert!(bytes.starts_with(b"version: 0\ntopic_id: ") && !bytes.ends_with(b"\n"));
        assert_eq!(decode_partition_metadata(&bytes), Ok(id));
        assert!(decode_partition_metadata(b"version: 1\ntopic_id: x").is_err());
        assert!(decode_partition_metadata(b"version: 0\ntopic_id: short").is_err());
    }
}
