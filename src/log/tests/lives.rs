//! The lives of a simulated node whose disk fails and fills up, each ended by a kill or a power
//! loss as the test's own dice say. Knows nothing of what the node does.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use crate::rt::sim::{Fault, NodeHandle, World};

/// Lives before the one that is let alone.
pub(super) const LIVES: usize = 6;

/// How a disk goes wrong in all lives but the first and the last.
pub(super) struct Faults {
    pub(super) syncs_one_in: u64,
    pub(super) writes_one_in: u64,
    /// Bytes beyond what is used already.
    pub(super) room: u64,
    /// Space comes back in a life, or the device does; the log that went offline stays so.
    pub(super) mends: bool,
}

/// What the lives of a test have in common.
pub(super) struct Lives<'a> {
    pub(super) rng: &'a RefCell<fastrand::Rng>,
    pub(super) faults: Option<Faults>,
    /// Microseconds.
    pub(super) length: Range<u64>,
    /// Set before the life that follows a power loss, or one in which flushes may have failed: what
    /// the kernel had not written then is gone too.
    pub(super) power_lost: &'a Cell<bool>,
}

impl Lives<'_> {
    fn rng<T>(&self, draw: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        draw(&mut self.rng.borrow_mut())
    }

    /// Lives them; the node then runs on a disk without faults.
    pub(super) fn live<F>(&self, world: &World, node: &NodeHandle, main: impl Fn() -> F + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        start(node, main);
        for life in 0..LIVES {
            let inner = life > 0 && life + 1 < LIVES;
            let faults = self.faults.as_ref().filter(|_| inner);
            let mut syncs_fail = false;
            match faults {
                Some(faults) => syncs_fail = self.trouble(node, faults),
                None => node.disk().heal(),
            }
            if life > 0 {
                node.restart();
            }
            world.run_for(Duration::from_micros(
                self.rng(|rng| rng.u64(self.length.clone())),
            ));
            let mends = self.faults.as_ref().is_some_and(|faults| faults.mends);
            if mends && life > 0 && self.rng(|rng| rng.bool()) {
                node.disk().heal();
                world.run_for(Duration::from_millis(5));
            }
            if self.rng(|rng| rng.bool()) {
                node.kill();
                self.power_lost.set(self.power_lost.get() || syncs_fail);
            } else {
                self.power_lost.set(true);
                node.lose_power();
            }
        }
        node.disk().heal();
        node.restart();
    }

    /// Begins one kind of trouble; true if it is failing flushes.
    fn trouble(&self, node: &NodeHandle, faults: &Faults) -> bool {
        let disk = node.disk();
        let kind = self.rng(|rng| rng.u32(..4));
        match kind {
            0 => disk.fail_syncs(Fault::OneIn(faults.syncs_one_in)),
            1 => disk.fail_writes(Fault::OneIn(faults.writes_one_in)),
            2 => disk.set_capacity(Some(disk.used() + faults.room)),
            _ => disk.set_short_writes(3),
        }
        kind == 0
    }
}

/// Starts a process of one shard.
pub(super) fn start<F>(node: &NodeHandle, main: impl Fn() -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    node.start(1, move |executor| {
        let main = (!executor.is_control()).then(&main);
        async move {
            if let Some(main) = main {
                main.await;
            }
        }
    });
}

/// A batch that was handed to a log.
#[derive(Clone)]
pub(super) struct Sent {
    pub base: i64,
    pub last: i64,
    /// Its records, behind the header.
    pub body: Bytes,
}

impl Sent {
    pub(super) fn of(base: i64, records: usize, batch: &Bytes) -> Sent {
        Sent {
            base,
            last: base + records as i64 - 1,
            body: batch.slice(61..),
        }
    }
}

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..={}", self.base, self.last)
    }
}
