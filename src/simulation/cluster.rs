//! A world with whole brokers in it: their settings, their lives, and the probes inside them.

use super::probes::Probes;
use crate::config::BrokerConfig;
use crate::rt::sim::{NodeHandle, World};
use crate::server::simulated::{self, Life};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 9092;
/// How long a broker may take until it serves, in a world that is whole.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How the brokers of a world are set up.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) brokers: usize,
    pub(super) shards: usize,
    /// Settings beside those that make the cluster.
    pub(super) settings: Vec<(&'static str, String)>,
}

/// See the module's words.
pub(super) struct Cluster {
    pub(super) world: World,
    pub(super) probes: Rc<Probes>,
    pub(super) brokers: Vec<Broker>,
}

/// A broker's host. Its place among the nodes of the world is its place among the brokers; its
/// `node.id` is one more.
pub(super) struct Broker {
    pub(super) host: NodeHandle,
    config: BrokerConfig,
    life: RefCell<Option<Life>>,
    /// It was stopped or killed and not started since.
    pub(super) down: Cell<bool>,
}

impl Cluster {
    /// The hosts; nothing runs yet.
    pub(super) fn new(seed: u64, setup: &Setup) -> Cluster {
        let world = World::new(seed);
        let probes = Probes::of(&world);
        let brokers = (0..setup.brokers).map(|at| Broker {
            host: world.add_node(&name(at)),
            config: config(setup, at),
            life: RefCell::new(None),
            down: Cell::new(true),
        });
        let brokers = brokers.collect();
        Cluster {
            world,
            probes,
            brokers,
        }
    }

    pub(super) fn bootstrap_servers(&self) -> String {
        let hosts = (0..self.brokers.len()).map(|at| format!("{}:{PORT}", name(at)));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// Starts a broker's process.
    pub(super) fn start(&self, at: usize) {
        let broker = &self.brokers[at];
        let seen = self.probes.begin(at);
        let life = simulated::start(&broker.host, broker.config.clone(), seen);
        *broker.life.borrow_mut() = Some(life.expect("settings that were checked"));
        broker.down.set(false);
    }

    pub(super) fn start_all(&self) {
        for at in 0..self.brokers.len() {
            self.start(at);
        }
    }

    /// Waits until every broker serves.
    pub(super) fn serve(&self) {
        let all_ready = || (0..self.brokers.len()).all(|at| self.probes.is_ready(at));
        let done = self.world.run_until(START_LIMIT, all_ready);
        assert!(done, "not every broker serves: {:?}", self.failures());
    }

    /// Why brokers ended that were not told to.
    pub(super) fn failures(&self) -> Vec<String> {
        let failed = self.brokers.iter().filter_map(|broker| {
            let life = broker.life.borrow();
            Some(life.as_ref()?.failure()?.to_string())
        });
        failed.collect()
    }
}

impl Broker {
    pub(super) fn kill(&self) {
        self.host.kill();
        self.down.set(true);
    }

    pub(super) fn lose_power(&self) {
        self.host.lose_power();
        self.down.set(true);
    }

    /// What SIGTERM does: an orderly way down begins.
    pub(super) fn terminate(&self) {
        if let Some(life) = &*self.life.borrow() {
            life.terminate();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.host.is_running()
    }
}

fn name(at: usize) -> String {
    format!("broker-{}", at + 1)
}

fn config(setup: &Setup, at: usize) -> BrokerConfig {
    let mut sets = vec![
        format!("node.id={}", at + 1),
        format!("listeners=PLAINTEXT://{}:{PORT}", name(at)),
        "log.dirs=/data".to_owned(),
        format!("highwater.shards={}", setup.shards),
        format!("highwater.journal.bytes={}", 4 << 20),
        format!("highwater.recent.batch.bytes={}", 256 << 10),
        format!("highwater.read.ahead.bytes={}", 1 << 20),
        "offsets.topic.num.partitions=3".to_owned(),
        "offsets.topic.replication.factor=1".to_owned(),
        "group.initial.rebalance.delay.ms=0".to_owned(),
    ];
    let own = setup.settings.iter();
    sets.extend(own.map(|(key, value)| format!("{key}={value}")));
    BrokerConfig::load(None, &sets).expect("settings of a simulated broker")
}
