//! A node in a simulated world: the executors of [`super::run`] without what belongs to a real
//! process (signals, the log on standard error). For `simulation` (tests) and for
//! [`crate::lab::durability`], whose power losses are whole brokers on the simulator's disk.

use super::{Process, Seen, ServeError};
use crate::config::BrokerConfig;
use crate::rt::lane::{self, LaneSender};
use crate::rt::sim::NodeHandle;
use std::sync::Arc;

/// One life of a simulated node.
pub(crate) struct Life {
    stop: LaneSender<()>,
    process: Arc<Process>,
}

/// Starts the node's process. `seen` is called from its executors.
pub(crate) fn start(
    node: &NodeHandle,
    config: BrokerConfig,
    seen: impl Fn(Seen<'_>) + Clone + 'static,
) -> Result<Life, ServeError> {
    let (stop, signal) = lane::pair(1);
    let shards = config.shards;
    let process = Arc::new(Process::new(config, signal)?);
    let in_node = process.clone();
    node.start(shards, move |index| {
        let (process, seen) = (in_node.clone(), seen.clone());
        async move { process.run(index, seen).await }
    });
    Ok(Life { stop, process })
}

impl Life {
    /// What SIGTERM does.
    #[cfg_attr(
        not(test),
        expect(
            dead_code,
            reason = "the lab cuts the power; only tests end a node in good order"
        )
    )]
    pub(crate) fn terminate(&self) {
        // It ends by itself already if nobody listens.
        let _ = self.stop.try_send(());
    }

    /// Why the node ended, if it did not end as it was told to. Tells once.
    pub(crate) fn failure(&self) -> Option<ServeError> {
        self.process.failure()
    }
}
