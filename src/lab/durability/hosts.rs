//! Whole brokers on hosts of a simulated world: their settings, their lives, their power. The same
//! executors as in a real process ([`crate::server::simulated`]), the same settings as the real
//! brokers of the lab but for [`SMALLER`]. Runs on a thread that runs nothing else.

use super::matrix::node_settings;
use crate::commands::format::format;
use crate::config::BrokerConfig;
use crate::rt::sim::{NodeHandle, World};
use crate::server::Seen;
use crate::server::simulated::{self, Life};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 9092;
const CONTROLLER_PORT: u16 = 9093;
/// Any id: every world has a cluster of its own.
const CLUSTER_ID: &str = "4L6g3nShT-eMCtK--X86sw";
/// How long a broker may take until it serves, in a world that is whole.
const START_LIMIT: Duration = Duration::from_secs(60);

/// What is smaller than in a real process, in bytes, for there are many brokers in the memory of
/// this one: it decides when a journal is full, not what a flush promises.
pub const SMALLER: [(&str, u64); 3] = [
    ("highwater.journal.bytes", 4 << 20),
    ("highwater.recent.batch.bytes", 256 << 10),
    ("highwater.read.ahead.bytes", 1 << 20),
];

/// See the module's words.
pub struct Hosts {
    pub world: World,
    brokers: Vec<Broker>,
}

struct Broker {
    host: NodeHandle,
    config: BrokerConfig,
    /// Of this life.
    ready: RefCell<Rc<Cell<bool>>>,
    life: RefCell<Option<Life>>,
}

impl Hosts {
    /// Brokers that serve, in a world of its own.
    ///
    /// # Errors
    /// They do not come up; one line.
    pub fn start(seed: u64, brokers: usize) -> Result<Hosts, String> {
        let world = World::new(seed);
        let mut all = Vec::with_capacity(brokers);
        for at in 0..brokers {
            all.push(Broker {
                host: world.add_node(&name(at)),
                config: config(brokers, at)?,
                ready: RefCell::default(),
                life: RefCell::new(None),
            });
        }
        let hosts = Hosts {
            world,
            brokers: all,
        };
        hosts.format()?;
        for at in 0..brokers {
            hosts.switch_on(at)?;
        }
        hosts.serve()?;
        Ok(hosts)
    }

    /// Gives every node its identity, where a cluster has several.
    fn format(&self) -> Result<(), String> {
        if self.brokers.len() == 1 {
            return Ok(());
        }
        let failure: Rc<RefCell<Option<String>>> = Rc::default();
        for broker in &self.brokers {
            let (config, failure) = (broker.config.clone(), failure.clone());
            broker.host.start(1, move |index| {
                let config = (!index.is_control()).then(|| config.clone());
                let failure = failure.clone();
                async move {
                    let Some(config) = config else { return };
                    if let Err(why) = format(config, CLUSTER_ID.to_owned(), false).await {
                        *failure.borrow_mut() = Some(why.to_string());
                    }
                }
            });
        }
        let done = self.world.run_to_end(START_LIMIT);
        match failure.take() {
            Some(why) => Err(why),
            None if !done => Err("nodes are not formatted in time".to_owned()),
            None => Ok(()),
        }
    }

    pub fn servers(&self) -> String {
        let hosts = (0..self.brokers.len()).map(|at| format!("{}:{PORT}", name(at)));
        hosts.collect::<Vec<_>>().join(",")
    }

    pub fn count(&self) -> usize {
        self.brokers.len()
    }

    /// Starts a broker on a host that is off.
    ///
    /// # Errors
    /// Its settings do not hold; one line.
    pub fn switch_on(&self, at: usize) -> Result<(), String> {
        let broker = &self.brokers[at];
        let ready = Rc::new(Cell::new(false));
        *broker.ready.borrow_mut() = ready.clone();
        let seen = move |seen: Seen<'_>| {
            if let Seen::Ready(_) = seen {
                ready.set(true);
            }
        };
        let life = simulated::start(&broker.host, broker.config.clone(), seen);
        *broker.life.borrow_mut() = Some(life.map_err(|error| error.to_string())?);
        Ok(())
    }

    pub fn lose_power(&self, at: usize) {
        self.brokers[at].host.lose_power();
    }

    /// Waits until every broker serves.
    ///
    /// # Errors
    /// One does not, or has failed; one line.
    pub fn serve(&self) -> Result<(), String> {
        let ready = |broker: &Broker| broker.ready.borrow().get();
        let all = || self.brokers.iter().all(ready);
        if self.world.run_until(START_LIMIT, all) {
            return Ok(());
        }
        let lives = self.brokers.iter();
        let failed: Vec<String> = lives
            .filter_map(|broker| Some(broker.life.borrow().as_ref()?.failure()?.to_string()))
            .collect();
        Err(format!("not every broker serves again: {failed:?}"))
    }

    /// Starts what `main` makes on a host of a client's own.
    pub fn start_client<F: Future<Output = ()> + 'static>(
        &self,
        host: &NodeHandle,
        main: impl Fn() -> F + 'static,
    ) {
        host.start(1, move |index| {
            let main = (!index.is_control()).then(&main);
            async move {
                if let Some(main) = main {
                    main.await;
                }
            }
        });
    }
}

fn name(at: usize) -> String {
    format!("broker-{}", at + 1)
}

fn config(brokers: usize, at: usize) -> Result<BrokerConfig, String> {
    let client = format!("PLAINTEXT://{}:{PORT}", name(at));
    let mut sets = vec![
        format!("node.id={}", at + 1),
        "log.dirs=/data".to_owned(),
        "highwater.shards=1".to_owned(),
    ];
    sets.extend(SMALLER.map(|(key, bytes)| format!("{key}={bytes}")));
    if brokers == 1 {
        sets.push(format!("listeners={client}"));
    } else {
        let voters: Vec<String> = (0..brokers)
            .map(|at| format!("{}@{}:{CONTROLLER_PORT}", at + 1, name(at)))
            .collect();
        sets.extend([
            format!(
                "listeners={client},CONTROLLER://{}:{CONTROLLER_PORT}",
                name(at)
            ),
            "process.roles=broker,controller".to_owned(),
            "controller.listener.names=CONTROLLER".to_owned(),
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned(),
            format!("controller.quorum.voters={}", voters.join(",")),
            format!("broker.rack=rack-{}", at + 1),
        ]);
    }
    let settings = node_settings(brokers);
    sets.extend(settings.iter().map(|(key, value)| format!("{key}={value}")));
    BrokerConfig::load(None, &sets).map_err(|error| error.to_string())
}
