//! The hosts of a world's clients: each runs one, may vanish at any moment and come back as the same
//! client, which then knows nothing of what it did before.

use super::load::Load;
use crate::client::ClientError;
use crate::rt::sim::{NodeHandle, World};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// See the module's words.
pub(super) struct Host {
    node: NodeHandle,
    pub(super) crashed: Cell<bool>,
}

impl Host {
    /// Runs a client on a host of its own.
    pub(super) fn start<F: Future<Output = ()> + 'static>(
        world: &World,
        name: &str,
        load: &Rc<Load>,
        client: impl Fn(Rc<Load>) -> F + 'static,
    ) -> Host {
        let load = load.clone();
        load.running.set(load.running.get() + 1);
        let node = world.add_node(name);
        node.start(1, move |index| {
            let client = (!index.is_control()).then(|| client(load.clone()));
            let load = load.clone();
            async move {
                if let Some(client) = client {
                    client.await;
                    load.running.set(load.running.get() - 1);
                }
            }
        });
        Host {
            node,
            crashed: Cell::new(false),
        }
    }

    /// The client's process dies, or its machine: then nobody tells the brokers.
    pub(super) fn crash(&self, silently: bool) {
        // One that has ended can vanish no more.
        if !self.node.is_running() {
            return;
        }
        self.crashed.set(true);
        match silently {
            true => self.node.lose_power(),
            false => self.node.kill(),
        }
    }

    /// The same client again, in a new process.
    pub(super) fn come_back(&self) {
        if self.crashed.take() {
            self.node.restart();
        }
    }
}

/// Runs something to its end on a host of its own, in a world that is whole.
pub(super) fn at_once<F: Future<Output = Result<(), ClientError>> + 'static>(
    world: &World,
    name: &str,
    load: &Rc<Load>,
    limit: Duration,
    run: impl Fn(Rc<Load>) -> F + 'static,
) {
    let outcome: Rc<RefCell<Option<Result<(), ClientError>>>> = Rc::default();
    let told = outcome.clone();
    let run = Rc::new(run);
    Host::start(world, name, load, move |load| {
        let (run, told) = (run.clone(), told.clone());
        async move {
            let result = run(load).await;
            *told.borrow_mut() = Some(result);
        }
    });
    let ended = world.run_until(limit, || outcome.borrow().is_some());
    assert!(ended, "{name} does not end");
    if let Some(Err(error)) = outcome.take() {
        panic!("{name}: {error}");
    }
}
