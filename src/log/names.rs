//! Owns the names of files and directories in a log directory, exactly Kafka's: what a name
//! means, and how one is made. Pure, any core. It never touches the disk.

use crate::types::{Offset, Uuid};

/// Longest file name the usual file systems take.
const NAME_BYTES_MAX: usize = 255;

pub const LEADER_EPOCH_CHECKPOINT: &str = "leader-epoch-checkpoint";
pub const PARTITION_METADATA: &str = "partition.metadata";
/// Ours: exists for a moment at a start.
pub const DIRECT_IO_PROBE: &str = "highwater-direct-io.tmp";

/// Ours: which journals of earlier lives say nothing of the log any more.
pub const SETTLED_JOURNALS: &str = "highwater-settled-journals";
pub const METADATA_TOPIC_DIR: &str = "__cluster_metadata-0";
pub const REMOTE_INDEX_CACHE_DIR: &str = "remote-log-index-cache";

/// What a file of a partition directory holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FileKind {
    Log,
    OffsetIndex,
    TimeIndex,
    TxnIndex,
    Snapshot,
}

impl FileKind {
    pub const ALL: [FileKind; 5] = [
        FileKind::Log,
        FileKind::OffsetIndex,
        FileKind::TimeIndex,
        FileKind::TxnIndex,
        FileKind::Snapshot,
    ];

    pub fn extension(self) -> &'static str {
        match self {
            FileKind::Log => "log",
            FileKind::OffsetIndex => "index",
            FileKind::TimeIndex => "timeindex",
            FileKind::TxnIndex => "txnindex",
            FileKind::Snapshot => "snapshot",
        }
    }
}

/// The passing state a suffix names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FileState {
    Live,
    /// Waiting to be unlinked.
    Deleted,
    /// Compaction output, incomplete.
    Cleaned,
    /// Compaction output, complete, being swapped in.
    Swap,
}

/// A segment file's name, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SegmentFile {
    pub base: Offset,
    pub kind: FileKind,
    pub state: FileState,
}

/// `00000000000000000042.log` and its siblings.
pub fn segment_file(base: Offset, kind: FileKind) -> String {
    format!("{:020}.{}", base.0, kind.extension())
}

/// The same with `.deleted`, `.cleaned` or `.swap` behind it.
pub fn segment_file_in_state(base: Offset, kind: FileKind, state: FileState) -> String {
    let mut name = segment_file(base, kind);
    name.push_str(match state {
        FileState::Live => "",
        FileState::Deleted => ".deleted",
        FileState::Cleaned => ".cleaned",
        FileState::Swap => ".swap",
    });
    name
}

/// Takes a segment file's name apart; `None` for every other file.
pub fn parse_segment_file(name: &str) -> Option<SegmentFile> {
    let (name, state) = if let Some(rest) = name.strip_suffix(".deleted") {
        (rest, FileState::Deleted)
    } else if let Some(rest) = name.strip_suffix(".cleaned") {
        (rest, FileState::Cleaned)
    } else if let Some(rest) = name.strip_suffix(".swap") {
        (rest, FileState::Swap)
    } else {
        (name, FileState::Live)
    };
    let (digits, extension) = name.split_once('.')?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let base = Offset(digits.parse().ok()?);
    let kind = FileKind::ALL
        .into_iter()
        .find(|k| k.extension() == extension)?;
    Some(SegmentFile { base, kind, state })
}

/// What a directory inside a log directory is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartitionDir {
    /// A served partition.
    Live { topic: String, partition: i32 },
    /// Renamed by a topic deletion; unlinked after `file.delete.delay.ms`.
    Delete,
    /// Not ours any more; kept, never served.
    Stray { topic: String, partition: i32 },
    /// A copy on its way from another directory.
    Future { topic: String, partition: i32 },
}

/// Reads a directory's name; `None` if it is not a partition's directory.
pub fn parse_partition_dir(name: &str) -> Option<PartitionDir> {
    if let Some(rest) = name.strip_suffix("-delete") {
        return split_unique(rest).map(|_| PartitionDir::Delete);
    }
    if let Some(rest) = name.strip_suffix("-stray") {
        let (topic, partition) = split_unique(rest)?;
        return Some(PartitionDir::Stray { topic, partition });
    }
    if let Some(rest) = name.strip_suffix("-future") {
        let (topic, partition) = split_unique(rest)?;
        return Some(PartitionDir::Future { topic, partition });
    }
    let (topic, partition) = split_partition(name)?;
    Some(PartitionDir::Live { topic, partition })
}

/// The directory of a live partition.
pub fn partition_dir(topic: &str, partition: i32) -> String {
    format!("{topic}-{partition}")
}

/// `<topic>-<partition>.<32 hex>-delete`, the topic cut so that the name stays within 255 bytes.
pub fn delete_dir(topic: &str, partition: i32, unique: Uuid) -> String {
    unique_dir(topic, partition, unique, "-delete")
}

/// `<topic>-<partition>.<32 hex>-stray`, cut likewise.
pub fn stray_dir(topic: &str, partition: i32, unique: Uuid) -> String {
    unique_dir(topic, partition, unique, "-stray")
}

/// `<topic>-<partition>.<32 hex>-future`, cut likewise.
pub fn future_dir(topic: &str, partition: i32, unique: Uuid) -> String {
    unique_dir(topic, partition, unique, "-future")
}

fn unique_dir(topic: &str, partition: i32, unique: Uuid, suffix: &str) -> String {
    let mut tail = format!("-{partition}.");
    for byte in unique.0 {
        tail.push_str(&format!("{byte:02x}"));
    }
    tail.push_str(suffix);
    let room = NAME_BYTES_MAX - tail.len();
    let mut cut = topic.len().min(room);
    while !topic.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}{tail}", &topic[..cut])
}

/// Splits `topic-partition` at the LAST dash: topics may hold dashes themselves.
fn split_partition(name: &str) -> Option<(String, i32)> {
    let (topic, partition) = name.rsplit_once('-')?;
    if topic.is_empty() || !partition.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((topic.to_owned(), partition.parse().ok()?))
}

fn split_unique(name: &str) -> Option<(String, i32)> {
    let (rest, unique) = name.rsplit_once('.')?;
    if unique.len() != 32 || !unique.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    split_partition(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_names_read_back_as_written() {
        for kind in FileKind::ALL {
            for state in [
                FileState::Live,
                FileState::Deleted,
                FileState::Cleaned,
                FileState::Swap,
            ] {
                let file = SegmentFile {
                    base: Offset(42),
                    kind,
                    state,
                };
                let name = segment_file_in_state(file.base, kind, state);
                assert_eq!(parse_segment_file(&name), Some(file), "{name}");
            }
        }
        assert_eq!(
            segment_file(Offset(42), FileKind::Log),
            "00000000000000000042.log"
        );
        for other in [
            "leader-epoch-checkpoint",
            "partition.metadata",
            ".log",
            "x1.log",
            "1.logs",
        ] {
            assert_eq!(parse_segment_file(other), None, "{other}");
        }
    }

    #[test]
    fn a_topic_with_dashes_is_split_at_the_last_one() {
        let parsed = parse_partition_dir("a-b-17");
        let want = PartitionDir::Live {
            topic: "a-b".into(),
            partition: 17,
        };
        assert_eq!(parsed, Some(want));
        for bad in [
            "",
            "-1",
            "topic",
            "topic-",
            "topic-x",
            "topic-1x",
            "topic-99999999999",
        ] {
            assert_eq!(parse_partition_dir(bad), None, "{bad}");
        }
    }

    #[test]
    fn doomed_directory_names_stay_within_the_file_system_limit() {
        let unique = Uuid([0xab; 16]);
        let name = delete_dir(&"t".repeat(249), 123, unique);
        assert!(name.len() <= 255);
        assert!(name.ends_with(&format!("-123.{}-delete", "ab".repeat(16))));
        assert_eq!(parse_partition_dir(&name), Some(PartitionDir::Delete));
        let stray = stray_dir("orders", 3, unique);
        let want = PartitionDir::Stray {
            topic: "orders".into(),
            partition: 3,
        };
        assert_eq!(parse_partition_dir(&stray), Some(want));
        let future = future_dir("orders", 3, unique);
        let want = PartitionDir::Future {
            topic: "orders".into(),
            partition: 3,
        };
        assert_eq!(parse_partition_dir(&future), Some(want));
    }

    #[test]
    fn a_topic_that_merely_ends_in_delete_is_not_doomed() {
        assert_eq!(parse_partition_dir("orders-delete"), None);
        let want = PartitionDir::Live {
            topic: "orders-delete".into(),
            partition: 0,
        };
        assert_eq!(parse_partition_dir("orders-delete-0"), Some(want));
    }
}
