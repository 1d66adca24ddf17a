//! Which leader epoch wrote which offsets of a partition (KIP-101, KIP-279).
//!
//! Owns a partition's list of (epoch, start offset) and the text of its
//! `leader-epoch-checkpoint`. Lives on the partition's shard; pure. Never writes the file: a
//! method that changes the list says so, and the log writes it when that is due.
//!
//! Invariant: epochs and start offsets both grow strictly from entry to entry.

use crate::types::{LeaderEpoch, Offset};

/// Entries kept, 16 bytes each. A partition whose leader changes once a minute reaches it after
/// two months without retention moving its start; then the oldest epoch is forgotten, which makes
/// a follower that asks for it truncate further back than it had to, and nothing worse.
pub const ENTRIES_MAX: usize = 100_000;

/// One leader's reign: it wrote from `start_offset` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochEntry {
    pub epoch: LeaderEpoch,
    pub start_offset: Offset,
}

/// Where an epoch ended, as OffsetForLeaderEpoch and diverging Fetch answers state it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochEnd {
    pub epoch: LeaderEpoch,
    pub end_offset: Offset,
}

/// Why a `leader-epoch-checkpoint` cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EpochCheckpointError {
    #[error("the leader epoch checkpoint is not text")]
    Text,
    #[error("the leader epoch checkpoint has version {0:?}, only 0 is known")]
    Version(String),
    #[error("the leader epoch checkpoint announces {announced:?} entries but holds {found}")]
    Count { announced: String, found: usize },
    #[error("malformed leader epoch line {0:?}")]
    Line(String),
}

/// The leader epochs of one partition, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaderEpochs {
    entries: Vec<EpochEntry>,
}

impl LeaderEpochs {
    pub fn new() -> LeaderEpochs {
        LeaderEpochs::default()
    }

    /// Records that `epoch` writes from `start` on; true if that is news. Later or equal epochs
    /// and start offsets that contradict it are dropped, as the newest statement wins. Negative
    /// values are no statement.
    pub fn assign(&mut self, epoch: LeaderEpoch, start: Offset) -> bool {
        if epoch.0 < 0 || start.0 < 0 {
            return false;
        }
        if let Some(latest) = self.entries.last()
            && latest.epoch == epoch
            && start >= latest.start_offset
        {
            return false;
        }
        let stays = |entry: &EpochEntry| entry.epoch < epoch && entry.start_offset < start;
        let keep = self.entries.partition_point(stays);
        self.entries.truncate(keep);
        if self.entries.len() == ENTRIES_MAX {
            self.entries.remove(0);
        }
        self.entries.push(EpochEntry {
            epoch,
            start_offset: start,
        });
        self.check();
        true
    }

    /// Drops the epochs that start at or behind `end`: the log now ends there. True if any did.
    pub fn truncate_from_end(&mut self, end: Offset) -> bool {
        let before = self.entries.len();
        if end.0 >= 0 {
            let keep = self
                .entries
                .partition_point(|entry| entry.start_offset < end);
            self.entries.truncate(keep);
        }
        self.entries.len() != before
    }

    /// Drops the epochs that ended before `start`, and lets the one that covers it start there:
    /// the log now begins there. True if the list changed.
    pub fn truncate_from_start(&mut self, start: Offset) -> bool {
        let passed = self
            .entries
            .partition_point(|entry| entry.start_offset <= start);
        if passed == 0 {
            return false;
        }
        let changed = passed > 1 || self.entries[0].start_offset != start;
        self.entries.drain(..passed - 1);
        self.entries[0].start_offset = start;
        self.check();
        changed
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Where the log of `requested` ends, for a log that ends at `log_end`:
    /// the newest epoch ends at the log's end; one below all known ends where the first known
    /// starts; any other is answered by the largest epoch not above it, which ends where the next
    /// starts. `None` for an undefined or unheard-of newer epoch (-1, -1 on the wire).
    pub fn end_offset_for(&self, requested: LeaderEpoch, log_end: Offset) -> Option<EpochEnd> {
        if requested == LeaderEpoch::UNKNOWN {
            return None;
        }
        let end = |epoch, end_offset| Some(EpochEnd { epoch, end_offset });
        if self
            .latest()
            .is_some_and(|latest| latest.epoch == requested)
        {
            return end(requested, log_end);
        }
        let above = self
            .entries
            .partition_point(|entry| entry.epoch <= requested);
        let next = self.entries.get(above)?;
        match above.checked_sub(1) {
            None => end(requested, next.start_offset),
            Some(floor) => end(self.entries[floor].epoch, next.start_offset),
        }
    }

    /// The epoch that wrote `offset`; `None` before the first known one.
    pub fn epoch_for_offset(&self, offset: Offset) -> Option<LeaderEpoch> {
        let after = self
            .entries
            .partition_point(|entry| entry.start_offset <= offset);
        Some(self.entries.get(after.checked_sub(1)?)?.epoch)
    }

    pub fn latest(&self) -> Option<EpochEntry> {
        self.entries.last().copied()
    }

    pub fn latest_epoch(&self) -> Option<LeaderEpoch> {
        self.latest().map(|latest| latest.epoch)
    }

    pub fn earliest(&self) -> Option<EpochEntry> {
        self.entries.first().copied()
    }

    /// The entry of exactly this epoch.
    pub fn entry(&self, epoch: LeaderEpoch) -> Option<EpochEntry> {
        let at = self
            .entries
            .binary_search_by_key(&epoch, |entry| entry.epoch);
        at.ok().map(|at| self.entries[at])
    }

    /// The newest epoch below `epoch`.
    pub fn previous(&self, epoch: LeaderEpoch) -> Option<EpochEntry> {
        let at = self.entries.partition_point(|entry| entry.epoch < epoch);
        self.entries.get(at.checked_sub(1)?).copied()
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> &[EpochEntry] {
        &self.entries
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The checkpoint file: version `0`, the number of entries, then `epoch startOffset`, a line
    /// each.
    pub fn encode(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("0\n{}\n", self.entries.len());
        for entry in &self.entries {
            writeln!(text, "{} {}", entry.epoch.0, entry.start_offset).expect("a String takes all");
        }
        text
    }

    /// Reads a checkpoint file. Entries that contradict an earlier one win, as in
    /// [`assign`](Self::assign): such a file is odd, not unusable.
    pub fn decode(bytes: &[u8]) -> Result<LeaderEpochs, EpochCheckpointError> {
        let text = std::str::from_utf8(bytes).map_err(|_| EpochCheckpointError::Text)?;
        let mut lines = text.lines();
        let version = lines.next().unwrap_or_default();
        if version != "0" {
            return Err(EpochCheckpointError::Version(version.to_owned()));
        }
        let announced = lines.next().unwrap_or_default();
        let (mut epochs, mut found) = (LeaderEpochs::new(), 0);
        for line in lines {
            let (epoch, start) =
                decode_line(line).ok_or_else(|| EpochCheckpointError::Line(line.to_owned()))?;
            epochs.assign(epoch, start);
            found += 1;
        }
        if announced.parse() != Ok(found) {
            let announced = announced.to_owned();
            return Err(EpochCheckpointError::Count { announced, found });
        }
        Ok(epochs)
    }

    fn check(&self) {
        // Only the ends move, so only they need the look.
        for pair in [
            self.entries.first_chunk::<2>(),
            self.entries.last_chunk::<2>(),
        ] {
            assert!(
                pair.is_none_or(|[left, right]| left.epoch < right.epoch
                    && left.start_offset < right.start_offset),
                "leader epochs must grow: {pair:?}"
            );
        }
    }
}

fn decode_line(line: &str) -> Option<(LeaderEpoch, Offset)> {
    let (epoch, start) = line.split_once(' ')?;
    let (epoch, start) = (epoch.parse().ok()?, start.trim().parse().ok()?);
    (epoch >= 0 && start >= 0).then_some((LeaderEpoch(epoch), Offset(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(entries: &[(i32, i64)]) -> LeaderEpochs {
        let mut epochs = LeaderEpochs::new();
        for &(epoch, start) in entries {
            assert!(epochs.assign(LeaderEpoch(epoch), Offset(start)));
        }
        epochs
    }

    fn pairs(epochs: &LeaderEpochs) -> Vec<(i32, i64)> {
        let pair = |entry: &EpochEntry| (entry.epoch.0, entry.start_offset.0);
        epochs.entries().iter().map(pair).collect()
    }

    fn end(epochs: &LeaderEpochs, requested: i32, log_end: i64) -> Option<(i32, i64)> {
        let found = epochs.end_offset_for(LeaderEpoch(requested), Offset(log_end));
        found.map(|end| (end.epoch.0, end.end_offset.0))
    }

    #[test]
    fn a_follower_is_told_where_its_epoch_ended() {
        let epochs = epochs(&[(2, 10), (4, 20), (7, 30)]);
        assert_eq!(end(&epochs, 7, 42), Some((7, 42)));
        assert_eq!(end(&epochs, 4, 42), Some((4, 30)));
        assert_eq!(end(&epochs, 5, 42), Some((4, 30)));
        assert_eq!(end(&epochs, 3, 42), Some((2, 20)));
        assert_eq!(end(&epochs, 1, 42), Some((1, 10)));
        assert_eq!(end(&epochs, 8, 42), None);
        assert_eq!(end(&epochs, -1, 42), None);
        assert_eq!(end(&LeaderEpochs::new(), 0, 42), None);
    }

    #[test]
    fn a_newer_statement_replaces_what_contradicts_it() {
        let mut list = epochs(&[(2, 10), (4, 20), (7, 30)]);
        assert!(!list.assign(LeaderEpoch(7), Offset(35)), "no news");
        assert!(list.assign(LeaderEpoch(7), Offset(25)));
        assert_eq!(pairs(&list), [(2, 10), (4, 20), (7, 25)]);
        assert!(list.assign(LeaderEpoch(8), Offset(20)));
        assert_eq!(pairs(&list), [(2, 10), (8, 20)]);
        assert!(list.assign(LeaderEpoch(1), Offset(50)));
        assert_eq!(pairs(&list), [(1, 50)]);
        assert!(!list.assign(LeaderEpoch(-1), Offset(60)));
        assert!(!list.assign(LeaderEpoch(3), Offset(-1)));
    }

    #[test]
    fn truncation_keeps_the_epoch_that_still_has_records() {
        let whole = epochs(&[(2, 10), (4, 20), (7, 30)]);
        let mut list = whole.clone();
        assert!(!list.truncate_from_end(Offset(31)));
        assert!(list.truncate_from_end(Offset(30)));
        assert_eq!(pairs(&list), [(2, 10), (4, 20)]);
        assert!(list.truncate_from_end(Offset(0)));
        assert!(list.is_empty());
        let mut list = whole.clone();
        assert!(!list.truncate_from_start(Offset(9)));
        assert!(!list.truncate_from_start(Offset(10)));
        assert!(list.truncate_from_start(Offset(25)));
        assert_eq!(pairs(&list), [(4, 25), (7, 30)]);
        assert!(list.truncate_from_start(Offset(100)));
        assert_eq!(pairs(&list), [(7, 100)]);
    }

    #[test]
    fn the_checkpoint_reads_back_and_damage_is_named() {
        let list = epochs(&[(2, 10), (4, 20)]);
        assert_eq!(list.encode(), "0\n2\n2 10\n4 20\n");
        assert_eq!(LeaderEpochs::decode(list.encode().as_bytes()), Ok(list));
        assert_eq!(LeaderEpochs::decode(b"0\n0\n"), Ok(LeaderEpochs::new()));
        let fails = |text: &str| LeaderEpochs::decode(text.as_bytes()).unwrap_err();
        assert!(matches!(fails(""), EpochCheckpointError::Version(_)));
        assert!(matches!(fails("1\n0\n"), EpochCheckpointError::Version(_)));
        assert!(matches!(
            fails("0\n2\n2 10\n"),
            EpochCheckpointError::Count { found: 1, .. }
        ));
        assert!(matches!(fails("0\n1\n2\n"), EpochCheckpointError::Line(_)));
        assert!(matches!(
            fails("0\n1\n2 x\n"),
            EpochCheckpointError::Line(_)
        ));
        assert_eq!(
            LeaderEpochs::decode(&[0xff]),
            Err(EpochCheckpointError::Text)
        );
    }

    /// The epoch of every offset, as the log itself would know it.
    #[derive(Default)]
    struct Model {
        start: i64,
        written: Vec<i32>,
    }

    impl Model {
        fn end(&self) -> i64 {
            self.start + self.written.len() as i64
        }

        fn epoch_of(&self, offset: i64) -> Option<i32> {
            let at = usize::try_from(offset - self.start).ok()?;
            self.written.get(at).copied()
        }

        /// The largest epoch not above `requested` that has records, and where the next one that
        /// has records begins.
        fn end_of(&self, requested: i32) -> Option<(i32, i64)> {
            if *self.written.last()? == requested {
                return Some((requested, self.end()));
            }
            let next = self.written.iter().position(|&epoch| epoch > requested)?;
            let floor = next.checked_sub(1).map(|at| self.written[at]);
            Some((floor.unwrap_or(requested), self.start + next as i64))
        }
    }

    #[test]
    fn the_list_agrees_with_a_log_that_remembers_every_offset() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..200 {
            let (mut list, mut model, mut epoch) = (LeaderEpochs::new(), Model::default(), 0);
            for _ in 0..60 {
                match rng.u8(..10) {
                    0..6 => {
                        epoch += [0, 0, 1, 3][rng.usize(..4)];
                        list.assign(LeaderEpoch(epoch), Offset(model.end()));
                        let more = model.written.len() + rng.usize(1..6);
                        model.written.resize(more, epoch);
                    }
                    6..8 => {
                        let keep = rng.usize(..=model.written.len());
                        model.written.truncate(keep);
                        list.truncate_from_end(Offset(model.end()));
                    }
                    _ => {
                        // A log start at the very end leaves no record to compare epochs by.
                        if model.written.len() > 1 {
                            let gone = rng.usize(..model.written.len());
                            model.written.drain(..gone);
                            model.start += gone as i64;
                            list.truncate_from_start(Offset(model.start));
                        }
                    }
                }
                for offset in model.start..model.end() {
                    let found = list.epoch_for_offset(Offset(offset)).map(|epoch| epoch.0);
                    assert_eq!(found, model.epoch_of(offset), "seed {seed}");
                }
                for requested in 0..=epoch + 1 {
                    let found = end(&list, requested, model.end());
                    assert_eq!(
                        found,
                        model.end_of(requested),
                        "seed {seed} epoch {requested}"
                    );
                }
                let decoded = LeaderEpochs::decode(list.encode().as_bytes());
                assert_eq!(decoded.as_ref(), Ok(&list), "seed {seed}");
            }
        }
    }
}
