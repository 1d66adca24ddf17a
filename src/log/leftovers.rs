//! Owns what a stop in the middle of things left in a partition's directory: files waiting to be
//! unlinked, compaction output that was complete or not, indexes without a log. Runs once, before
//! the segments are opened, on the log's shard. It never looks at a live segment's contents.
//!
//! Rules: `.deleted` and `.cleaned` go. A `.swap` log at or past the smallest `.cleaned` base is
//! the half of an interrupted split and goes too; any other is complete, so the live segments in
//! its range go and it takes their place.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::rt;
use crate::rt::fs::{DirEntry, File, OpenOptions};
use crate::types::Offset;

use super::names::{self, FileKind, FileState, SegmentFile};
use super::scan::{ScanError, Scanner};

/// The live files of a directory, by segment base and kind, with their lengths.
pub(super) type LiveFiles = BTreeMap<(Offset, FileKind), u64>;

/// Tidies the directory, in which `entries` were found, and lists what is live in it.
pub(super) async fn tidy(
    dir: &Path,
    entries: impl Iterator<Item = &DirEntry>,
) -> io::Result<LiveFiles> {
    let mut live = LiveFiles::new();
    let mut passing: Vec<SegmentFile> = Vec::new();
    for entry in entries {
        if entry.is_dir {
            continue;
        }
        match names::parse_segment_file(&entry.name) {
            Some(file) if file.state == FileState::Live => {
                live.insert((file.base, file.kind), entry.len);
            }
            Some(file) => passing.push(file),
            None if entry.name.ends_with(".tmp") => {
                let path = dir.join(&entry.name);
                tracing::info!(file = %path.display(), bytes = entry.len, "half-written file removed");
                remove(&path).await?;
            }
            None => {}
        }
    }
    passing.sort();
    let split_from = passing
        .iter()
        .filter(|f| f.state == FileState::Cleaned && f.kind == FileKind::Log)
        .map(|f| f.base)
        .min();
    for file in &passing {
        let interrupted = split_from.is_some_and(|from| file.base >= from);
        if file.state != FileState::Swap || interrupted {
            let path = dir.join(name_of(file));
            tracing::info!(file = %path.display(), "leftover of an earlier life removed");
            remove(&path).await?;
        }
    }
    let complete = |f: &&SegmentFile| {
        f.state == FileState::Swap && split_from.is_none_or(|from| f.base < from)
    };
    let swaps: Vec<SegmentFile> = passing.iter().filter(complete).copied().collect();
    for swap in swaps.iter().filter(|f| f.kind == FileKind::Log) {
        drop_covered(dir, swap, &mut live).await?;
    }
    for swap in &swaps {
        let target = names::segment_file(swap.base, swap.kind);
        rt::fs::rename(&dir.join(name_of(swap)), &dir.join(&target)).await?;
        let len = rt::fs::file_len(&dir.join(&target)).await?;
        live.insert((swap.base, swap.kind), len);
    }
    drop_orphans(dir, &mut live).await?;
    if !passing.is_empty() {
        rt::fs::sync_dir(dir).await?;
    }
    Ok(live)
}

/// Removes the live segments that a complete compaction output replaces.
async fn drop_covered(dir: &Path, swap: &SegmentFile, live: &mut LiveFiles) -> io::Result<()> {
    let path = dir.join(name_of(swap));
    let end = end_offset(&path).await?.unwrap_or(swap.base);
    tracing::info!(file = %path.display(), upto = %end, "finished compaction takes the place of what it was made from");
    let covered: Vec<(Offset, FileKind)> = live
        .keys()
        .filter(|(base, kind)| *base >= swap.base && *base < end && *kind != FileKind::Snapshot)
        .copied()
        .collect();
    for (base, kind) in covered {
        remove(&dir.join(names::segment_file(base, kind))).await?;
        live.remove(&(base, kind));
    }
    Ok(())
}

/// An index whose log is gone means nothing.
async fn drop_orphans(dir: &Path, live: &mut LiveFiles) -> io::Result<()> {
    let orphans: Vec<(Offset, FileKind)> = live
        .keys()
        .filter(|(base, kind)| {
            !matches!(kind, FileKind::Log | FileKind::Snapshot)
                && !live.contains_key(&(*base, FileKind::Log))
        })
        .copied()
        .collect();
    for (base, kind) in orphans {
        let path = dir.join(names::segment_file(base, kind));
        tracing::warn!(file = %path.display(), "index without a log removed");
        remove(&path).await?;
        live.remove(&(base, kind));
    }
    Ok(())
}

/// One past the last offset in a segment file; `None` if it holds no batch.
async fn end_offset(path: &Path) -> io::Result<Option<Offset>> {
    let len = rt::fs::file_len(path).await?;
    let file = File::open(path, OpenOptions::READ).await?;
    let mut scanner = Scanner::new(file, 0, len);
    let mut end = None;
    loop {
        match scanner.next().await {
            Ok(Some((_, batch))) => end = Some(batch.last_offset().next()),
            Ok(None) | Err(ScanError::Damaged { .. }) => return Ok(end),
            Err(ScanError::Io(error)) => return Err(error),
        }
    }
}

fn name_of(file: &SegmentFile) -> String {
    names::segment_file_in_state(file.base, file.kind, file.state)
}

/// Removes a file; one that is gone already is as good.
pub(super) async fn remove(path: &Path) -> io::Result<()> {
    match rt::fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
