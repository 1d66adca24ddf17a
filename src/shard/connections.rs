//! The connections of one shard: how many, when each last moved, and how each is told to end.
//! Lives on its shard; never touches a socket.

use crate::rt::sync::Event;
use crate::rt::{self, Instant};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// One connection, as the shard sees it.
pub struct Life {
    key: Cell<usize>,
    last_moved: Cell<Instant>,
    /// Told to end; with true because nothing moved for too long.
    ended: Cell<Option<bool>>,
    event: Event,
}

impl Life {
    /// Bytes came or went.
    pub fn touch(&self, now: Instant) {
        self.last_moved.set(now);
    }

    /// Tells the connection to end.
    pub fn end(&self, idle: bool) {
        if self.ended.get().is_none() {
            self.ended.set(Some(idle));
            self.event.notify_all();
        }
    }

    /// Waits until the connection is told to end; true if because it was idle.
    pub async fn told_to_end(&self) -> bool {
        loop {
            if let Some(idle) = self.ended.get() {
                return idle;
            }
            self.event.wait().await;
        }
    }
}

/// See the module's words. Their number is bounded by `max.connections` at the door.
pub struct Connections {
    lives: RefCell<Slab<Rc<Life>>>,
    counted: Cell<u64>,
    ending: Cell<bool>,
    closed: Event,
}

impl Connections {
    pub fn new() -> Connections {
        Connections {
            lives: RefCell::new(Slab::new()),
            counted: Cell::new(0),
            ending: Cell::new(false),
            closed: Event::new(),
        }
    }

    /// A number for a connection, unique on this shard.
    pub fn next_id(&self) -> u64 {
        self.counted.set(self.counted.get() + 1);
        self.counted.get()
    }

    pub fn open(&self) -> Rc<Life> {
        let life = Rc::new(Life {
            key: Cell::new(0),
            last_moved: Cell::new(rt::now()),
            ended: Cell::new(self.ending.get().then_some(false)),
            event: Event::new(),
        });
        life.key.set(self.lives.borrow_mut().insert(life.clone()));
        life
    }

    pub fn closed(&self, life: &Life) {
        self.lives.borrow_mut().try_remove(life.key.get());
        self.closed.notify_all();
    }

    pub fn len(&self) -> usize {
        self.lives.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells those to end on which nothing has moved for `idle`.
    pub fn end_idle(&self, now: Instant, idle: Duration) {
        for (_, life) in self.lives.borrow().iter() {
            if now.since(life.last_moved.get()) >= idle {
                life.end(true);
            }
        }
    }

    /// Tells all to end, also those that still come.
    pub fn end_all(&self) {
        self.ending.set(true);
        for (_, life) in self.lives.borrow().iter() {
            life.end(false);
        }
    }

    /// Waits until none is left.
    pub async fn all_ended(&self) {
        while !self.is_empty() {
            self.closed.wait().await;
        }
    }
}

impl Default for Connections {
    fn default() -> Self {
        Connections::new()
    }
}
