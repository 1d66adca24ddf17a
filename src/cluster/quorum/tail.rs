//! The end of the metadata log in memory, as the consensus sees it: batches as entries, by index.
//! It begins at a snapshot, so all that may still be asked for is here; who lacks what was before
//! is sent the snapshot. Pure; written to disk by the node.

use crate::cluster::metadata_log::Base;
use crate::types::{LeaderEpoch, NodeId, Offset};
use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Kafka's node ids begin at 0, which the consensus takes for "none".
pub fn raft_id(node: NodeId) -> u64 {
    node.0 as u64 + 1
}

/// The reverse of [`raft_id`]; `None` for none.
pub fn node_id(raft: u64) -> Option<NodeId> {
    i32::try_from(raft.checked_sub(1)?).ok().map(NodeId)
}

#[derive(Clone, Debug)]
struct Stored {
    term: u64,
    /// The offset behind its last record.
    end: Offset,
    bytes: Bytes,
}

/// A snapshot that is ready to be sent to a voter.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub base: Base,
    pub bytes: Bytes,
}

/// See the module's words.
#[derive(Debug)]
pub struct Tail {
    base: Base,
    entries: VecDeque<Stored>,
    bytes: usize,
    voters: ConfState,
    state: HardState,
    /// A voter needs a snapshot: the node loads it, and drops it when nobody asks any more.
    pub loaded: Option<Loaded>,
    pub wants_snapshot: bool,
}

impl Tail {
    pub fn new(base: Base, voters: &[NodeId], state: HardState) -> Tail {
        let mut conf = ConfState::default();
        conf.set_voters(voters.iter().map(|voter| raft_id(*voter)).collect());
        Tail {
            base,
            entries: VecDeque::new(),
            bytes: 0,
            voters: conf,
            state,
            loaded: None,
            wants_snapshot: false,
        }
    }

    pub fn conf_state(&self) -> &ConfState {
        &self.voters
    }

    pub fn base(&self) -> Base {
        self.base
    }

    pub fn last_index(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    /// The offset behind the last record.
    pub fn next_offset(&self) -> Offset {
        self.entries.back().map_or(self.base.end, |last| last.end)
    }

    fn at(&self, index: u64) -> Option<&Stored> {
        let place = index.checked_sub(self.base.index + 1)?;
        self.entries.get(usize::try_from(place).ok()?)
    }

    /// The offset behind the batch at `index`; `None` if that is not here.
    pub fn end_of(&self, index: u64) -> Option<Offset> {
        match index == self.base.index {
            true => Some(self.base.end),
            false => self.at(index).map(|stored| stored.end),
        }
    }

    pub fn term_of(&self, index: u64) -> Option<u64> {
        match index == self.base.index {
            true => Some(self.base.epoch.0 as u64),
            false => self.at(index).map(|stored| stored.term),
        }
    }

    pub fn push(&mut self, term: u64, end: Offset, bytes: Bytes) {
        self.bytes += bytes.len();
        self.entries.push_back(Stored { term, end, bytes });
    }

    /// Drops the batches behind `index`.
    pub fn truncate(&mut self, index: u64) {
        while self.last_index() > index {
            if let Some(gone) = self.entries.pop_back() {
                self.bytes -= gone.bytes.len();
            } else {
                break;
            }
        }
    }

    /// Everything before is forgotten: a snapshot stands for it.
    pub fn reset(&mut self, base: Base) {
        self.base = base;
        self.entries.clear();
        self.bytes = 0;
        self.loaded = None;
    }

    /// Forgets what is before `base`, which is in here.
    pub fn forget_before(&mut self, base: Base) {
        while self.base.index < base.index {
            let Some(gone) = self.entries.pop_front() else {
                break;
            };
            self.bytes -= gone.bytes.len();
            self.base.index += 1;
        }
        if self.base.index == base.index {
            self.base = base;
        }
    }

    /// The batches from the one that holds `offset` on that end at or before `end`: at most
    /// `max_bytes`, but at least one. `None` if `offset` is before what is here.
    pub fn read(&self, offset: Offset, end: Offset, max_bytes: usize) -> Option<Vec<Bytes>> {
        if offset < self.base.end {
            return None;
        }
        let first = self.entries.partition_point(|stored| stored.end <= offset);
        let mut size = 0;
        let fitting = self.entries.range(first..).take_while(|stored| {
            let is_first = size == 0;
            size += stored.bytes.len();
            stored.end <= end && (is_first || size <= max_bytes)
        });
        Some(fitting.map(|stored| stored.bytes.clone()).collect())
    }

    /// The snapshot's end and epoch at an index that is here.
    pub fn base_at(&self, index: u64) -> Option<Base> {
        Some(Base {
            end: self.end_of(index)?,
            epoch: LeaderEpoch(i32::try_from(self.term_of(index)?).ok()?),
            index,
        })
    }

    fn entry(&self, index: u64) -> Option<Entry> {
        let stored = self.at(index)?;
        Some(Entry {
            index,
            term: stored.term,
            data: stored.bytes.clone(),
            ..Default::default()
        })
    }
}

/// What raft is given: it reads, the node writes.
#[derive(Clone)]
pub struct Shared(pub Rc<RefCell<Tail>>);

impl Storage for Shared {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let tail = self.0.borrow();
        Ok(RaftState::new(tail.state.clone(), tail.voters.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let tail = self.0.borrow();
        if low <= tail.base.index {
            return Err(StorageError::Compacted.into());
        }
        let max_size = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0;
        let mut entries = Vec::new();
        for index in low..high {
            let entry = tail.entry(index).ok_or(StorageError::Unavailable)?;
            size += entry.data.len() as u64;
            if !entries.is_empty() && size > max_size {
                break;
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let tail = self.0.borrow();
        if index < tail.base.index {
            return Err(StorageError::Compacted.into());
        }
        tail.term_of(index)
            .ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.0.borrow().base.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.0.borrow().last_index())
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let mut tail = self.0.borrow_mut();
        let needed = request_index.max(tail.base.index);
        match &tail.loaded {
            Some(loaded) if loaded.base.index >= needed => {
                let mut snapshot = Snapshot {
                    data: loaded.bytes.clone(),
                    ..Default::default()
                };
                let meta = snapshot.mut_metadata();
                meta.index = loaded.base.index;
                meta.term = loaded.base.epoch.0 as u64;
                meta.set_conf_state(tail.voters.clone());
                Ok(snapshot)
            }
            _ => {
                tail.wants_snapshot = true;
                Err(StorageError::SnapshotTemporarilyUnavailable.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail() -> Tail {
        let base = Base {
            end: Offset(10),
            epoch: LeaderEpoch(2),
            index: 4,
        };
        let mut tail = Tail::new(base, &[NodeId(0), NodeId(1)], HardState::default());
        for (at, term) in [(0, 2), (1, 3), (2, 3)] {
            let bytes = Bytes::from(vec![at as u8; 10]);
            tail.push(term, Offset(12 + 2 * at), bytes);
        }
        tail
    }

    #[test]
    fn the_same_batch_is_found_by_index_and_by_offset() {
        let tail = tail();
        assert_eq!((tail.last_index(), tail.next_offset()), (7, Offset(16)));
        assert_eq!(tail.end_of(4), Some(Offset(10)));
        assert_eq!(
            (tail.end_of(5), tail.term_of(5)),
            (Some(Offset(12)), Some(2))
        );
        assert_eq!((tail.end_of(3), tail.end_of(8)), (None, None));
        let read = |offset, end, max| {
            let parts = tail.read(Offset(offset), Offset(end), max)?;
            Some(parts.iter().map(|part| part[0]).collect::<Vec<_>>())
        };
        assert_eq!(read(9, 16, 100), None, "before what is here");
        assert_eq!(read(10, 16, 100), Some(vec![0, 1, 2]));
        assert_eq!(
            read(11, 16, 100),
            Some(vec![0, 1, 2]),
            "from within a batch"
        );
        assert_eq!(read(12, 15, 100), Some(vec![1]), "nothing uncommitted");
        assert_eq!(read(10, 16, 1), Some(vec![0]), "always one");
        assert_eq!(read(16, 16, 100), Some(vec![]));
    }

    #[test]
    fn forgetting_and_cutting_keep_index_and_offset_together() {
        let mut tail = tail();
        let base = tail.base_at(5).unwrap();
        tail.forget_before(base);
        assert_eq!(tail.base(), base);
        assert_eq!((tail.end_of(6), tail.bytes), (Some(Offset(14)), 20));
        assert_eq!((tail.end_of(4), tail.last_index()), (None, 7));
        tail.truncate(6);
        assert_eq!((tail.last_index(), tail.next_offset()), (6, Offset(14)));
        let raft: Vec<_> = [0, 1, i32::MAX]
            .map(|id| node_id(raft_id(NodeId(id))))
            .into();
        assert_eq!(raft, [0, 1, i32::MAX].map(|id| Some(NodeId(id))));
        assert_eq!(node_id(0), None);
    }
}
