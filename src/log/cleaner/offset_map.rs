//! Owns the map that a pass builds over the dirty part of a log: key hash to the last offset of
//! that key. Fixed memory, open addressing. Pure; it moves between the shard and the threads that
//! compute for it. It never keeps a key, and never grows: when it is full, the pass cleans as far
//! as it reaches.

use super::key_hash::{HashSecret, KeyHash, hash_key};
use crate::types::Offset;

/// Bytes of a slot: the hash and the offset.
pub const SLOT_BYTES: u64 = 24;

/// Hash, and the offset plus one: 0 is an empty slot.
type Slot = [u64; 3];

/// Last offsets by key hash.
pub struct OffsetMap {
    secret: HashSecret,
    /// Zeroed memory that the kernel hands out page by page as it is touched.
    slots: Vec<Slot>,
    entries: usize,
    entries_max: usize,
    latest: Option<Offset>,
}

impl OffsetMap {
    /// A map within `memory_bytes` (`log.cleaner.dedupe.buffer.size`) that is full at the share
    /// `load_factor` (`log.cleaner.io.buffer.load.factor`), and no larger than `offsets`, the
    /// most keys that can come, needs.
    pub fn new(memory_bytes: u64, load_factor: f64, offsets: u64, secret: HashSecret) -> OffsetMap {
        // Below 1 so that a search for what is not there ends; above 0 so that a pass gets on.
        let load_factor = if load_factor > 0.0 {
            load_factor.min(1.0)
        } else {
            1.0
        };
        let needed = (offsets as f64 / load_factor) as u64 + 2;
        let slots = (memory_bytes / SLOT_BYTES).min(needed).max(2) as usize;
        let entries_max = ((slots as f64 * load_factor) as usize).clamp(1, slots - 1);
        OffsetMap {
            secret,
            slots: vec![[0; 3]; slots],
            entries: 0,
            entries_max,
            latest: None,
        }
    }

    /// Whether the next key may not be put any more.
    pub fn is_full(&self) -> bool {
        self.entries >= self.entries_max
    }

    /// Keys held.
    pub fn len(&self) -> usize {
        self.entries
    }

    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The share of its bound that is in use, 0 to 1.
    pub fn utilization(&self) -> f64 {
        self.entries as f64 / self.entries_max as f64
    }

    /// Every record up to this offset is in the map; `None` before the first.
    pub fn latest(&self) -> Option<Offset> {
        self.latest
    }

    /// The map covers everything up to `offset`, whether or not there are keys in it.
    pub fn covers(&mut self, offset: Offset) {
        self.latest = self.latest.max(Some(offset));
    }

    /// `offset` is the last one of `key` now. Offsets come in ascending order.
    ///
    /// # Panics
    /// If the map is full, or the offset is not past what the map covers.
    pub fn put(&mut self, key: &[u8], offset: Offset) {
        assert!(
            !self.is_full() && offset.0 >= 0 && self.latest < Some(offset),
            "offset map with {} of {} keys up to {:?} cannot take {offset}",
            self.entries,
            self.entries_max,
            self.latest
        );
        let hash = hash_key(self.secret, key);
        let slot = self.find(hash);
        if self.slots[slot][2] == 0 {
            self.entries += 1;
        }
        self.slots[slot] = [hash[0], hash[1], offset.0 as u64 + 1];
        self.latest = Some(offset);
    }

    /// The last offset of `key`, as far as the map covers the log.
    pub fn get(&self, key: &[u8]) -> Option<Offset> {
        if self.entries == 0 {
            return None;
        }
        let slot = self.slots[self.find(hash_key(self.secret, key))];
        slot[2].checked_sub(1).map(|offset| Offset(offset as i64))
    }

    /// The slot of `hash`, or the empty one where it would go. There is always an empty one.
    fn find(&self, hash: KeyHash) -> usize {
        let count = self.slots.len();
        let mut at = ((u128::from(hash[0]) * count as u128) >> 64) as usize;
        loop {
            let slot = &self.slots[at];
            if slot[2] == 0 || (slot[0] == hash[0] && slot[1] == hash[1]) {
                return at;
            }
            at = if at + 1 == count { 0 } else { at + 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const SECRET: HashSecret = HashSecret(1, 2);

    #[test]
    fn memory_is_bounded_and_a_full_map_says_so() {
        let mut map = OffsetMap::new(10 * SLOT_BYTES, 0.9, u64::MAX / 2, SECRET);
        for at in 0..9i64 {
            assert!(!map.is_full());
            map.put(&at.to_be_bytes(), Offset(at));
        }
        assert!(map.is_full() && map.len() == 9 && map.utilization() == 1.0);
        assert_eq!(map.slots.len(), 10);
        assert_eq!(map.get(&3i64.to_be_bytes()), Some(Offset(3)));
        assert_eq!(map.get(b"not there"), None);
    }

    #[test]
    fn a_load_factor_of_any_kind_leaves_room_to_search_and_room_to_get_on() {
        for load_factor in [f64::NAN, -1.0, 0.0, 1e-9, 1.0, 7.0, f64::INFINITY] {
            let mut map = OffsetMap::new(100 * SLOT_BYTES, load_factor, 50, SECRET);
            assert!(!map.is_full(), "{load_factor}");
            map.put(b"a", Offset(0));
            assert_eq!(map.get(b"b"), None, "{load_factor}");
        }
    }

    #[test]
    fn a_small_log_takes_a_small_map() {
        let map = OffsetMap::new(1 << 40, 0.9, 9, SECRET);
        assert!(map.slots.len() <= 12 && map.entries_max >= 9);
        assert!(OffsetMap::new(0, 0.9, 9, SECRET).entries_max == 1);
    }

    proptest! {
        #[test]
        fn the_map_answers_as_a_plain_one(
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3), 1..200),
            secret in any::<(u64, u64)>(),
        ) {
            let secret = HashSecret(secret.0, secret.1);
            let mut map = OffsetMap::new(1 << 20, 0.9, keys.len() as u64, secret);
            let mut model = HashMap::new();
            for (at, key) in keys.iter().enumerate() {
                map.put(key, Offset(at as i64));
                model.insert(key.clone(), Offset(at as i64));
                prop_assert_eq!(map.latest(), Some(Offset(at as i64)));
            }
            prop_assert_eq!(map.len(), model.len());
            for key in &keys {
                prop_assert_eq!(map.get(key), model.get(key).copied());
            }
            prop_assert_eq!(map.get(b"longer than any"), None);
        }
    }
}
