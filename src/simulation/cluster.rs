//! A world with whole brokers in it: their settings, their lives, and the probes inside them.

use super::probes::Probes;
use crate::commands::format::format;
use crate::config::BrokerConfig;
use crate::rt::sim::{NodeHandle, World};
use crate::server::simulated::{self, Life};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 9092;
const CONTROLLER_PORT: u16 = 9093;
const CLUSTER_ID: &str = "4L6g3nShT-eMCtK--X86sw";
/// How long a broker may take until it serves, in a world that is whole.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How the brokers of a world are set up.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) brokers: usize,
    /// The first so many brokers are controllers too.
    pub(super) controllers: usize,
    pub(super) shards: usize,
    /// `replica.lag.time.max.ms`, as the settings or their default have it.
    pub(super) lag: Duration,
    /// Settings beside those that make the cluster.
    pub(super) settings: Vec<(&'static str, String)>,
}

/// See the module's words.
pub(super) struct Cluster {
    pub(super) world: World,
    pub(super) probes: Rc<Probes>,
    pub(super) brokers: Vec<Broker>,
    /// Of each broker.
    pub(super) shards: usize,
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
            shards: setup.shards,
        }
    }

    pub(super) fn bootstrap_servers(&self) -> String {
        let hosts = (0..self.brokers.len()).map(|at| format!("{}:{PORT}", name(at)));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// Gives every node its identity, where a cluster has several.
    pub(super) fn format(&self) {
        if self.brokers.len() == 1 {
            return;
        }
        for broker in &self.brokers {
            let config = broker.config.clone();
            broker.host.start(1, move |index| {
                let config = (!index.is_control()).then(|| config.clone());
                async move {
                    if let Some(config) = config {
                        let done = format(config, CLUSTER_ID.to_owned(), false).await;
                        done.expect("an empty disk can be formatted");
                    }
                }
            });
        }
        assert!(
            self.world.run_to_end(START_LIMIT),
            "nodes are not formatted"
        );
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

    /// Brokers that run or may run again any moment.
    pub(super) fn running(&self) -> usize {
        let running = self.brokers.iter().filter(|broker| broker.is_running());
        running.count()
    }

    /// Whether every partition is with all its replicas, as some broker that runs knows it.
    pub(super) fn is_in_sync(&self) -> bool {
        let known = (0..self.brokers.len()).filter_map(|at| self.probes.control(at));
        let newest = known
            .map(|control| control.image())
            .max_by_key(|image| image.offset());
        newest.is_some_and(|image| {
            let mut partitions = image.topics().flat_map(|topic| topic.partitions());
            partitions.all(|(_, partition)| {
                let moves = !partition.adding.is_empty() || !partition.removing.is_empty();
                !moves && partition.isr.len() == partition.replicas.len()
            })
        })
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
        "highwater.sendfile.min.bytes=200".to_owned(),
        format!("highwater.read.ahead.bytes={}", 1 << 20),
        "offsets.topic.num.partitions=3".to_owned(),
        format!("offsets.topic.replication.factor={}", setup.brokers.min(3)),
        "transaction.state.log.num.partitions=3".to_owned(),
        format!(
            "transaction.state.log.replication.factor={}",
            setup.brokers.min(3)
        ),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms=1000".to_owned(),
        "group.initial.rebalance.delay.ms=0".to_owned(),
    ];
    if setup.brokers > 1 {
        let voters: Vec<String> = (0..setup.controllers)
            .map(|at| format!("{}@{}:{CONTROLLER_PORT}", at + 1, name(at)))
            .collect();
        let client = format!("PLAINTEXT://{}:{PORT}", name(at));
        let (roles, listeners) = match at < setup.controllers {
            true => (
                "broker,controller",
                format!("{client},CONTROLLER://{}:{CONTROLLER_PORT}", name(at)),
            ),
            false => ("broker", client),
        };
        sets.extend([
            format!("listeners={listeners}"),
            format!("process.roles={roles}"),
            "controller.listener.names=CONTROLLER".to_owned(),
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned(),
            format!("controller.quorum.voters={}", voters.join(",")),
            format!("broker.rack=rack-{}", at + 1),
        ]);
    }
    let own = setup.settings.iter();
    sets.extend(own.map(|(key, value)| format!("{key}={value}")));
    BrokerConfig::load(None, &sets).expect("settings of a simulated broker")
}
