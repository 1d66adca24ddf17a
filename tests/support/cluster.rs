//! Several nodes of one cluster as child processes, each broker and controller, formatted for it.

use super::client::Client;
use super::load::PATIENCE;
use super::wires::{Plane, Wires};
use super::{Broker, Starting, fixed_port};
use highwater::wire::ErrorCode;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Any id: every test has a cluster of its own.
const CLUSTER_ID: &str = "4L6g3nShT-eMCtK--X86sw";

/// See the module's words. Nodes have the ids 1, 2, …
pub struct Cluster {
    pub nodes: Vec<Broker>,
    /// What the nodes talk over, where the test wanted it in its hands.
    pub wires: Option<Wires>,
    _home: tempfile::TempDir,
}

impl Cluster {
    /// Formats and starts `count` nodes, every one a broker and a controller, with `settings` for
    /// all of them; ready when all are.
    pub fn start(count: usize, settings: &[&str]) -> Cluster {
        Cluster::start_with(count, count, settings)
    }

    /// The same with controllers on the first `controllers` nodes only.
    pub fn start_with(count: usize, controllers: usize, settings: &[&str]) -> Cluster {
        Cluster::start_on(None, count, controllers, settings)
    }

    /// The same with everything between nodes, and from clients, going over wires that can be cut.
    pub fn start_wired(count: usize, controllers: usize, settings: &[&str]) -> Cluster {
        Cluster::start_on(Some(Wires::new()), count, controllers, settings)
    }

    fn start_on(
        wires: Option<Wires>,
        count: usize,
        controllers: usize,
        settings: &[&str],
    ) -> Cluster {
        let home = tempfile::tempdir().expect("a temporary directory");
        let ports = ports(count + controllers);
        let (clients, quorum) = ports.split_at(count);
        let reached = |at: usize, plane: Plane, port: u16| {
            let target = SocketAddr::from(([127, 0, 0, 1], port));
            let wires = wires.as_ref();
            wires.map_or(target, |wires| wires.lead_to(at as i32 + 1, plane, target))
        };
        let voters: Vec<String> = quorum
            .iter()
            .enumerate()
            .map(|(at, port)| format!("{}@{}", at + 1, reached(at, Plane::Control, *port)))
            .collect();
        let mut starting = Vec::with_capacity(count);
        for (at, client) in clients.iter().enumerate() {
            let id = at + 1;
            let data = home.path().join(format!("data-{id}"));
            let log = home.path().join(format!("node-{id}.log"));
            let mut own = vec![
                format!("node.id={id}"),
                format!("broker.rack=rack-{id}"),
                "controller.listener.names=CONTROLLER".to_owned(),
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
                    .to_owned(),
                format!("controller.quorum.voters={}", voters.join(",")),
            ];
            if wires.is_some() {
                let advertised = reached(at, Plane::Data, *client);
                own.push(format!("advertised.listeners=PLAINTEXT://{advertised}"));
            }
            let client = format!("PLAINTEXT://127.0.0.1:{client}");
            match quorum.get(at) {
                Some(port) => own.extend([
                    "process.roles=broker,controller".to_owned(),
                    format!("listeners={client},CONTROLLER://127.0.0.1:{port}"),
                ]),
                None => own.extend([
                    "process.roles=broker".to_owned(),
                    format!("listeners={client}"),
                ]),
            }
            own.extend(settings.iter().map(|setting| (*setting).to_owned()));
            format(&data, &own);
            let process = Starting::spawn(&data, &log, &own);
            if let Some(wires) = &wires {
                wires.is_process(id as i32, process.child.id());
            }
            starting.push((process, data, log, own));
        }
        let nodes = starting
            .into_iter()
            .map(|(process, data, log, settings)| {
                let (child, address) = process.ready();
                Broker {
                    child,
                    address,
                    data,
                    log,
                    settings,
                    _home: None,
                }
            })
            .collect();
        Cluster {
            nodes,
            wires,
            _home: home,
        }
    }

    /// The network of a cluster that was started with one.
    pub fn wires(&self) -> &Wires {
        self.wires.as_ref().expect("started with wires")
    }

    /// The node with this id.
    pub fn node(&mut self, id: i32) -> &mut Broker {
        &mut self.nodes[id as usize - 1]
    }

    /// Writes one record with the leader of partition 0 that node `ask` knows: that leader, a
    /// client of it, and the record's offset. Looks again where nobody leads for a moment, or
    /// another does by now: the record was not taken then.
    pub fn produce_at_leader(&mut self, ask: i32, topic: &str, value: &[u8]) -> (i32, Client, i64) {
        let address = self.node(ask).address;
        let mut asked = Client::connect(address);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let leader = asked.partitions(topic)[&0].leader_id;
            if leader >= 0 {
                let address = self.node(leader).address;
                let mut client = Client::connect(address);
                match client.produce(topic, 0, value) {
                    Ok(offset) => return (leader, client, offset),
                    Err(ErrorCode::NOT_LEADER_OR_FOLLOWER) => {}
                    Err(other) => panic!("node {leader}: {other:?}"),
                }
            }
            assert!(Instant::now() < deadline, "nobody leads {topic}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Where clients may begin.
    pub fn bootstrap(&self) -> String {
        let addresses = self.nodes.iter().map(Broker::bootstrap);
        addresses.collect::<Vec<_>>().join(",")
    }
}

/// Ports of their own for nodes that must know each other's beforehand.
fn ports(count: usize) -> Vec<u16> {
    (0..count).map(|_| fixed_port()).collect()
}

fn format(data: &Path, settings: &[String]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(["format", "--cluster-id", CLUSTER_ID]);
    command.args(["--set", &format!("log.dirs={}", data.display())]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let done = command.output().expect("the binary can be run");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}
