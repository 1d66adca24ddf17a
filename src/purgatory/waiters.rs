//! Operations that wait under one or several keys. Pure, on one shard. Completed operations are
//! given back to the caller, which answers them: nothing is called from inside.
//!
//! An operation leaves all its watch lists at the moment it completes, expires or is cancelled, so
//! no list ever holds a dead entry and nothing needs purging.

use super::wheel::{TimerId, TimerWheel};
use crate::rt::Instant;
use ahash::AHashMap;
use slab::Slab;
use smallvec::SmallVec;
use std::hash::Hash;

/// Operations waiting at once in one purgatory; each is a client's request in flight, bounded
/// long before by connections and their requests in flight.
pub const OPERATIONS_MAX: usize = 4 << 20;

const NONE: u32 = u32::MAX;

/// Names a waiting operation; stale once it has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId {
    index: u32,
    generation: u32,
}

struct Waiting<O> {
    operation: O,
    generation: u32,
    timer: TimerId,
    /// Its entries in the watch lists.
    entries: SmallVec<[u32; 2]>,
}

/// One place of one operation in one key's list.
struct Entry<K> {
    key: K,
    operation: u32,
    before: u32,
    after: u32,
}

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// See the module's words.
pub struct Purgatory<K, O> {
    operations: Slab<Waiting<O>>,
    entries: Slab<Entry<K>>,
    lists: AHashMap<K, List>,
    wheel: TimerWheel<u32>,
    generation: u32,
}

impl<K: Copy + Eq + Hash, O> Purgatory<K, O> {
    pub fn new(now: Instant) -> Purgatory<K, O> {
        Purgatory {
            operations: Slab::new(),
            entries: Slab::new(),
            lists: AHashMap::new(),
            wheel: TimerWheel::new(now),
            generation: 0,
        }
    }

    /// Operations waiting.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Places in watch lists: an operation under two keys counts twice.
    pub fn watched(&self) -> usize {
        self.entries.len()
    }

    /// Lets `operation` wait under `keys` until `deadline`. The caller has found it unsatisfied
    /// just before, with nothing in between that could satisfy it. Gives it back when
    /// [`OPERATIONS_MAX`] are waiting.
    pub fn watch(&mut self, operation: O, keys: &[K], deadline: Instant) -> Result<OpId, O> {
        if self.operations.len() >= OPERATIONS_MAX {
            return Err(operation);
        }
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let vacant = self.operations.vacant_entry();
        let index = vacant.key() as u32;
        let Ok(timer) = self.wheel.insert(deadline, index) else {
            return Err(operation);
        };
        let entries = SmallVec::with_capacity(keys.len());
        vacant.insert(Waiting {
            operation,
            generation,
            timer,
            entries,
        });
        for key in keys {
            let entry = self.link(*key, index);
            self.operations[index as usize].entries.push(entry);
        }
        Ok(OpId { index, generation })
    }

    /// Asks the operations under `key`, in the order of their arrival, whether they are satisfied
    /// now; those that are leave and are returned.
    pub fn check(&mut self, key: &K, mut is_satisfied: impl FnMut(&mut O) -> bool) -> Vec<O> {
        let mut completed = Vec::new();
        let Some(list) = self.lists.get(key) else {
            return completed;
        };
        let mut at = list.first;
        while at != NONE {
            let entry = &self.entries[at as usize];
            let (operation, mut next) = (entry.operation, entry.after);
            if is_satisfied(&mut self.operations[operation as usize].operation) {
                // An operation may stand under the key more than once.
                while next != NONE && self.entries[next as usize].operation == operation {
                    next = self.entries[next as usize].after;
                }
                let waiting = self.remove(operation);
                self.wheel.cancel(waiting.timer);
                completed.push(waiting.operation);
            }
            at = next;
        }
        completed
    }

    /// Takes an operation out; `None` if it has completed already.
    pub fn cancel(&mut self, id: OpId) -> Option<O> {
        let waiting = self.operations.get(id.index as usize)?;
        if waiting.generation != id.generation {
            return None;
        }
        let waiting = self.remove(id.index);
        self.wheel.cancel(waiting.timer);
        Some(waiting.operation)
    }

    /// The operations whose time is up at `now`, earliest deadline first.
    pub fn expire(&mut self, now: Instant) -> Vec<O> {
        let mut due = Vec::new();
        self.wheel
            .advance(now, &mut |operation| due.push(operation));
        due.into_iter()
            .map(|operation| self.remove(operation).operation)
            .collect()
    }

    /// When [`Purgatory::expire`] is wanted next; never later than the next deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    fn link(&mut self, key: K, operation: u32) -> u32 {
        let list = self.lists.entry(key).or_insert(List {
            first: NONE,
            last: NONE,
        });
        let before = list.last;
        let entry = self.entries.insert(Entry {
            key,
            operation,
            before,
            after: NONE,
        }) as u32;
        list.last = entry;
        match before {
            NONE => list.first = entry,
            before => self.entries[before as usize].after = entry,
        }
        entry
    }

    fn remove(&mut self, operation: u32) -> Waiting<O> {
        let waiting = self.operations.remove(operation as usize);
        for entry in &waiting.entries {
            let Entry {
                key, before, after, ..
            } = self.entries.remove(*entry as usize);
            match before {
                NONE => {}
                before => self.entries[before as usize].after = after,
            }
            match after {
                NONE => {}
                after => self.entries[after as usize].before = before,
            }
            let list = self.lists.get_mut(&key).expect("a watched key has a list");
            if before == NONE {
                list.first = after;
            }
            if after == NONE {
                list.last = before;
            }
            if list.first == NONE {
                self.lists.remove(&key);
            }
        }
        waiting
    }
}
