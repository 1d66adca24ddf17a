//! A hierarchical timing wheel: deadlines in slots of a millisecond, insert, cancel and expire in
//! constant time. Pure; one a purgatory, on its shard. Never reads a clock and never sleeps: the
//! owner asks for the next deadline and advances the wheel.
//!
//! Level 0 has 64 slots of 1 ms, each level above has 64 slots as wide as the whole level below;
//! eight levels reach 2^48 ms, beyond every instant that 64 bits of nanoseconds can name (2^44 ms),
//! so no level ever wraps. A timer is put on the level of the highest 6-bit digit in which its tick
//! differs from the current one, and falls to lower levels as time comes near. A bitmap a level says
//! which slots hold timers, so finding the next deadline looks at eight words.

use crate::rt::Instant;
use slab::Slab;

const LEVELS: usize = 8;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Nanoseconds of one tick.
const TICK_NS: u64 = 1_000_000;
/// Why no level wraps: the last tick there is has no digit above the top level.
const _: () = assert!(u64::MAX / TICK_NS + 1 < 1 << (SLOT_BITS * LEVELS as u32));
/// Timers pending at once; each parked operation has one, and this many would hold gigabytes.
pub const TIMERS_MAX: usize = 16 << 20;

const NONE: u32 = u32::MAX;

/// Names a pending timer; stale after it fired or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

struct Timer<T> {
    tick: u64,
    generation: u32,
    /// Neighbours in the slot's list.
    before: u32,
    after: u32,
    value: T,
}

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

struct Level {
    occupied: u64,
    slots: [List; SLOTS],
}

/// See the module's words.
pub struct TimerWheel<T> {
    timers: Slab<Timer<T>>,
    levels: Box<[Level; LEVELS]>,
    /// Every timer below this tick has fired.
    now: u64,
    generation: u32,
}

impl<T> TimerWheel<T> {
    /// An empty wheel that begins at `now`.
    pub fn new(now: Instant) -> TimerWheel<T> {
        let level = || Level {
            occupied: 0,
            slots: [EMPTY; SLOTS],
        };
        TimerWheel {
            timers: Slab::new(),
            levels: Box::new(std::array::from_fn(|_| level())),
            now: now.as_nanos() / TICK_NS,
            generation: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.timers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }

    /// Arms a timer. It fires at the first advance to or past `deadline`, rounded up to the tick;
    /// one that is past already fires at the next advance. Timers of one tick fire in the order of
    /// insertion. Gives the value back when [`TIMERS_MAX`] are pending.
    pub fn insert(&mut self, deadline: Instant, value: T) -> Result<TimerId, T> {
        if self.timers.len() >= TIMERS_MAX {
            return Err(value);
        }
        let tick = deadline.as_nanos().div_ceil(TICK_NS).max(self.now);
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let timer = Timer {
            tick,
            generation,
            before: NONE,
            after: NONE,
            value,
        };
        let index = self.timers.insert(timer) as u32;
        self.link(index, tick);
        Ok(TimerId { index, generation })
    }

    /// Disarms a timer; `None` if it has fired or was cancelled.
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let timer = self.timers.get(id.index as usize)?;
        if timer.generation != id.generation {
            return None;
        }
        let (level, slot) = self.place(timer.tick);
        self.unlink(id.index, level, slot);
        Some(self.timers.remove(id.index as usize).value)
    }

    /// Fires everything due at `now`, by deadline and then by insertion.
    pub fn advance(&mut self, now: Instant, fire: &mut impl FnMut(T)) {
        let target = now.as_nanos() / TICK_NS;
        while let Some((level, slot, start)) = self.next_slot() {
            if start > target {
                break;
            }
            self.now = self.now.max(start);
            let list = std::mem::replace(&mut self.levels[level].slots[slot], EMPTY);
            self.levels[level].occupied &= !(1 << slot);
            let mut at = list.first;
            while at != NONE {
                let timer = &mut self.timers[at as usize];
                let next = timer.after;
                (timer.before, timer.after) = (NONE, NONE);
                let tick = timer.tick;
                if level == 0 {
                    fire(self.timers.remove(at as usize).value);
                } else {
                    self.link(at, tick);
                }
                at = next;
            }
        }
        self.now = self.now.max(target);
    }

    /// When the wheel wants to be advanced next: the deadline of the next timer, or the moment a
    /// slot of a higher level must be spread over the lower ones, whichever is first. Never later
    /// than the next timer is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        let (_, _, start) = self.next_slot()?;
        Some(Instant(start.saturating_mul(TICK_NS)))
    }

    /// Where a tick belongs, seen from now.
    fn place(&self, tick: u64) -> (usize, usize) {
        let differs = tick ^ self.now;
        let level = if differs == 0 {
            0
        } else {
            (63 - differs.leading_zeros()) / SLOT_BITS
        };
        let level = level as usize;
        (
            level,
            (tick >> (SLOT_BITS * level as u32)) as usize & (SLOTS - 1),
        )
    }

    fn link(&mut self, index: u32, tick: u64) {
        let (level, slot) = self.place(tick);
        let level = &mut self.levels[level];
        level.occupied |= 1 << slot;
        let list = &mut level.slots[slot];
        let last = std::mem::replace(&mut list.last, index);
        if last == NONE {
            list.first = index;
        } else {
            self.timers[last as usize].after = index;
            self.timers[index as usize].before = last;
        }
    }

    fn unlink(&mut self, index: u32, level: usize, slot: usize) {
        let (before, after) = {
            let timer = &self.timers[index as usize];
            (timer.before, timer.after)
        };
        match before {
            NONE => self.levels[level].slots[slot].first = after,
            before => self.timers[before as usize].after = after,
        }
        match after {
            NONE => self.levels[level].slots[slot].last = before,
            after => self.timers[after as usize].before = before,
        }
        if self.levels[level].slots[slot].first == NONE {
            self.levels[level].occupied &= !(1 << slot);
        }
    }

    /// The next slot with timers and the tick at which it begins. Slots of lower levels come
    /// before those of higher ones: everything on level n + 1 lies beyond the end of level n.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        self.levels.iter().enumerate().find_map(|(level, held)| {
            if held.occupied == 0 {
                return None;
            }
            let shift = SLOT_BITS * level as u32;
            let slot = held.occupied.trailing_zeros();
            // The digits above are those of now; the lower ones are zero where a slot begins.
            let above = self.now >> shift >> SLOT_BITS << SLOT_BITS;
            let start = (above | u64::from(slot)) << shift;
            debug_assert!(
                start >= self.now,
                "a slot was passed: {start} < {}",
                self.now
            );
            Some((level, slot as usize, start))
        })
    }
}
