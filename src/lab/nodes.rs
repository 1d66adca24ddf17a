//! Brokers on loopback, each a child process, with their logs under a directory that goes away with
//! them: of this binary, or Apache Kafka's. Runs on the main thread; a signal to end ends the
//! brokers too. Knows how they are started, found dead, killed and started again; not what for.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::kafka_home::KafkaHome;
use crate::rt;
use crate::types::Uuid;

/// Of what a broker wrote last when it failed to start.
const LINES_OF_FAILURE: usize = 3;
/// Where nodes get ports that they keep over their lives: below those of outgoing connections.
const PORTS: (u64, u64) = (15_000, 30_000);
/// Ports that are tried before it is said that there is none.
const PORT_TRIES: usize = 1000;
const LOOK: Duration = Duration::from_millis(20);

/// Whose brokers.
#[derive(Clone, Debug)]
pub enum Brand {
    /// This binary.
    Highwater,
    Kafka(KafkaHome),
}

/// Takes a broker's log; what is none of its own goes to the file.
type LogReader = Arc<dyn Fn(ChildStderr, File) + Send + Sync>;

/// A cluster before it runs.
#[derive(Clone)]
pub struct Plan {
    pub brand: Brand,
    pub brokers: usize,
    /// Of every node, beside those that make the cluster.
    pub settings: Vec<(String, String)>,
    pub environment: Vec<(String, String)>,
    /// Reads what a broker writes to standard error; without, it goes to a file.
    pub log_reader: Option<LogReader>,
    /// Under which a directory is made for this cluster; the system's temporary one if `None`.
    pub under: Option<PathBuf>,
    /// The directory stays.
    pub keep: bool,
    /// How long the brokers may take to be ready.
    pub patience: Duration,
}

impl Plan {
    pub fn new(brand: Brand, brokers: usize) -> Plan {
        Plan {
            brand,
            brokers,
            settings: Vec::new(),
            environment: Vec::new(),
            log_reader: None,
            under: None,
            keep: false,
            patience: Duration::from_secs(30),
        }
    }
}

/// The running brokers, ended when this is dropped.
pub struct Nodes {
    running: Arc<Mutex<Running>>,
    plan: Plan,
    cluster: Layout,
}

struct Running {
    home: PathBuf,
    keep: bool,
    /// By node; `None` while it is dead.
    children: Vec<Option<Child>>,
}

impl Running {
    /// Ends the processes and takes their files away.
    fn end(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
        if !self.keep {
            // What is left of it lies among the system's temporary files.
            let _ = std::fs::remove_dir_all(&self.home);
        }
    }
}

impl Nodes {
    /// Formats and starts the brokers; ready when all are.
    ///
    /// # Errors
    /// One could not be started, or was not ready in time; what it wrote last.
    pub fn start(plan: Plan) -> io::Result<Nodes> {
        let home = fresh_dir(plan.under.as_deref())?;
        let running = Arc::new(Mutex::new(Running {
            home: home.clone(),
            keep: plan.keep,
            children: (0..plan.brokers).map(|_| None).collect(),
        }));
        // From here on whatever fails leaves nothing behind.
        end_with_signals(&running)?;
        let nodes = Nodes {
            running,
            cluster: Layout::new(&home, plan.brokers)?,
            plan,
        };
        for at in 0..nodes.plan.brokers {
            nodes.format(at)?;
        }
        nodes.start_again(0..nodes.plan.brokers)?;
        Ok(nodes)
    }

    /// Starts nodes that are dead; ready when all of them are.
    ///
    /// # Errors
    /// As of [`Nodes::start`].
    pub fn start_again(&self, which: impl IntoIterator<Item = usize>) -> io::Result<()> {
        let mut starting = Vec::new();
        for at in which {
            starting.push((at, self.spawn(at)?));
        }
        let deadline = Instant::now() + self.plan.patience;
        for (at, lines) in starting {
            self.await_ready(at, &lines, deadline).map_err(|how| {
                io::Error::other(format!(
                    "broker {} {how}: {}",
                    at + 1,
                    last_lines(&self.cluster.log(at))
                ))
            })?;
        }
        Ok(())
    }

    /// kill -9; its files stay as they are.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&self, at: usize) -> io::Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let child = running.children.get_mut(at).and_then(Option::take);
        let Some(mut child) = child else {
            return Err(io::Error::other(format!("broker {} is dead", at + 1)));
        };
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Where clients may begin.
    pub fn bootstrap(&self) -> String {
        let addresses = self.cluster.clients.iter().map(|port| address(*port));
        let addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
        addresses.join(",")
    }

    /// Of the nodes that run.
    pub fn pids(&self) -> Vec<u32> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = running.children.iter().flatten();
        running.map(Child::id).collect()
    }

    /// Where each node is scraped; none where it has no such endpoint.
    pub fn metrics(&self) -> Vec<SocketAddr> {
        match self.plan.brand {
            Brand::Highwater => self.cluster.metrics.iter().copied().map(address).collect(),
            Brand::Kafka(_) => Vec::new(),
        }
    }

    fn settings(&self, at: usize) -> Vec<(String, String)> {
        let mut settings = self.cluster.settings(at, &self.plan.brand);
        for (key, value) in &self.plan.settings {
            settings.retain(|(known, _)| known != key);
            settings.push((key.clone(), value.clone()));
        }
        settings
    }

    fn format(&self, at: usize) -> io::Result<()> {
        let settings = self.settings(at);
        let mut command = match &self.plan.brand {
            // A node alone formats itself.
            Brand::Highwater if self.plan.brokers == 1 => return Ok(()),
            Brand::Highwater => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["format", "--cluster-id", &self.cluster.cluster_id]);
                command.args(as_arguments(&settings));
                command
            }
            Brand::Kafka(kafka) => {
                let file = self.cluster.properties(at);
                std::fs::write(&file, as_properties(&settings))?;
                kafka.format(&self.cluster.cluster_id, &file)
            }
        };
        let done = command.stdin(Stdio::null()).output()?;
        match done.status.success() {
            true => Ok(()),
            false => {
                let said = [done.stderr, done.stdout].concat();
                let said = String::from_utf8_lossy(&said);
                Err(io::Error::other(format!(
                    "broker {} cannot be formatted: {}",
                    at + 1,
                    ends_with(&said)
                )))
            }
        }
    }

    fn spawn(&self, at: usize) -> io::Result<mpsc::Receiver<String>> {
        let mut command = match &self.plan.brand {
            Brand::Highwater => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("serve").args(as_arguments(&self.settings(at)));
                command
            }
            Brand::Kafka(kafka) => kafka.serve(&self.cluster.properties(at), &self.cluster.home),
        };
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.cluster.log(at))?;
        let errors = match &self.plan.log_reader {
            Some(_) => Stdio::piped(),
            None => log.try_clone()?.into(),
        };
        command
            .envs(
                self.plan
                    .environment
                    .iter()
                    .map(|(key, value)| (key, value)),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors);
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match running.children.get_mut(at) {
            Some(place) => *place = Some(child),
            None => {
                // A signal has ended the others.
                child.kill()?;
                child.wait()?;
                return Err(io::Error::other("ended by a signal"));
            }
        }
        drop(running);
        let rest = log.try_clone()?;
        if let (Some(stderr), Some(reader)) = (stderr, self.plan.log_reader.clone()) {
            std::thread::spawn(move || reader(stderr, log));
        }
        let stdout = stdout.ok_or_else(|| io::Error::other("the broker has no standard output"))?;
        Ok(lines_of(stdout, rest))
    }

    /// `Err` says how it is not ready.
    fn await_ready(
        &self,
        at: usize,
        lines: &mpsc::Receiver<String>,
        deadline: Instant,
    ) -> Result<(), String> {
        match &self.plan.brand {
            Brand::Highwater => {
                let left = deadline.saturating_duration_since(Instant::now());
                let line = lines.recv_timeout(left).map_err(|error| match error {
                    RecvTimeoutError::Timeout => "is not ready in time",
                    RecvTimeoutError::Disconnected => "ended before it was ready",
                })?;
                match client_address(&line) {
                    Some(_) => Ok(()),
                    None => Err(format!("said {line:?} instead of where it listens")),
                }
            }
            Brand::Kafka(_) => loop {
                let port = self.cluster.clients[at];
                if TcpStream::connect(address(port)).is_ok() {
                    return Ok(());
                }
                if !self.is_running(at) {
                    return Err("ended before it was ready".to_owned());
                }
                if Instant::now() > deadline {
                    return Err("is not ready in time".to_owned());
                }
                std::thread::sleep(LOOK);
            },
        }
    }

    fn is_running(&self, at: usize) -> bool {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let child = running.children.get_mut(at).and_then(Option::as_mut);
        child.is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.end();
    }
}

/// What the nodes must know of each other beforehand. All of them are controllers too.
struct Layout {
    home: PathBuf,
    cluster_id: String,
    clients: Vec<u16>,
    controllers: Vec<u16>,
    metrics: Vec<u16>,
}

impl Layout {
    fn new(home: &Path, brokers: usize) -> io::Result<Layout> {
        let mut ports = free_ports(3 * brokers)?;
        let metrics = ports.split_off(2 * brokers);
        let controllers = ports.split_off(brokers);
        Ok(Layout {
            home: home.to_owned(),
            cluster_id: Uuid::from_halves(rt::random_u64() >> 1, rt::random_u64()).to_string(),
            clients: ports,
            controllers,
            metrics,
        })
    }

    fn log(&self, at: usize) -> PathBuf {
        self.home.join(format!("node-{}.log", at + 1))
    }

    fn properties(&self, at: usize) -> PathBuf {
        self.home.join(format!("node-{}.properties", at + 1))
    }

    fn settings(&self, at: usize, brand: &Brand) -> Vec<(String, String)> {
        let id = at + 1;
        let brokers = self.clients.len();
        let voters = self.controllers.iter().enumerate();
        let voters: Vec<String> = voters
            .map(|(at, port)| format!("{}@127.0.0.1:{port}", at + 1))
            .collect();
        let data = self.home.join(format!("data-{id}"));
        let mut listeners = format!("PLAINTEXT://127.0.0.1:{}", self.clients[at]);
        let mut settings = vec![
            ("node.id", id.to_string()),
            ("log.dirs", data.display().to_string()),
            (
                "offsets.topic.replication.factor",
                brokers.min(3).to_string(),
            ),
            // One more would only be more fetches to look at.
            ("offsets.topic.num.partitions", "1".to_owned()),
            ("auto.create.topics.enable", "false".to_owned()),
        ];
        let kafka = matches!(brand, Brand::Kafka(_));
        if brokers > 1 || kafka {
            listeners += &format!(",CONTROLLER://127.0.0.1:{}", self.controllers[at]);
            settings.extend([
                ("broker.rack", format!("rack-{id}")),
                ("process.roles", "broker,controller".to_owned()),
                ("controller.listener.names", "CONTROLLER".to_owned()),
                (
                    "listener.security.protocol.map",
                    "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned(),
                ),
                ("controller.quorum.voters", voters.join(",")),
            ]);
        }
        settings.push(("listeners", listeners));
        if !kafka {
            let port = self.metrics[at];
            settings.push(("highwater.metrics.listener", format!("127.0.0.1:{port}")));
        }
        let owned = settings.into_iter();
        owned.map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

fn as_arguments(settings: &[(String, String)]) -> Vec<String> {
    let pairs = settings.iter();
    pairs
        .flat_map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")])
        .collect()
}

fn as_properties(settings: &[(String, String)]) -> String {
    let lines = settings.iter();
    lines
        .map(|(key, value)| format!("{key}={value}\n"))
        .collect()
}

/// The lines that a broker prints, which go to its log too; the thread goes on until it ends.
fn lines_of(stdout: ChildStdout, mut log: File) -> mpsc::Receiver<String> {
    let (told, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            use std::io::Write;
            // Only for whoever looks for a failure's cause.
            let _ = writeln!(log, "{line}");
            // Nobody waits for a second one.
            let _ = told.send(line);
        }
    });
    lines
}

fn client_address(line: &str) -> Option<&str> {
    let mut parts = line.strip_prefix("ready ")?.split_whitespace();
    parts.find_map(|part| part.strip_prefix("PLAINTEXT="))
}

fn last_lines(log: &Path) -> String {
    ends_with(&std::fs::read_to_string(log).unwrap_or_default())
}

fn ends_with(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_OF_FAILURE)..].join(" / ")
}

fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Ports that were free a moment ago, all different.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let mut held: Vec<TcpListener> = Vec::with_capacity(count);
    for _ in 0..PORT_TRIES {
        if held.len() == count {
            break;
        }
        let port = PORTS.0 + rt::random_below(PORTS.1 - PORTS.0);
        held.extend(TcpListener::bind(address(port as u16)));
    }
    if held.len() < count {
        return Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!(
                "of {PORT_TRIES} ports between {} and {} on 127.0.0.1 less than {count} are free",
                PORTS.0, PORTS.1
            ),
        ));
    }
    let port = |listener: &TcpListener| Ok(listener.local_addr()?.port());
    held.iter().map(port).collect()
}

fn fresh_dir(under: Option<&Path>) -> io::Result<PathBuf> {
    let name = format!("highwater-lab-{:016x}", rt::random_u64());
    // Absolute: not every broker runs in the directory that the command runs in.
    let path = std::path::absolute(under.map_or_else(std::env::temp_dir, Path::to_owned))?;
    let path = path.join(name);
    std::fs::create_dir(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// Clusters of this process; those that ended are gone from memory.
static CLUSTERS: Mutex<Vec<Weak<Mutex<Running>>>> = Mutex::new(Vec::new());

/// Without this a signal would end the command and leave its brokers behind. Once taken, a signal
/// is this room's for good: it ends whatever runs, and the process, also between two clusters.
fn end_with_signals(running: &Arc<Mutex<Running>>) -> io::Result<()> {
    static TAKEN: OnceLock<Result<(), String>> = OnceLock::new();
    let mut clusters = CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner);
    clusters.retain(|cluster| cluster.strong_count() > 0);
    clusters.push(Arc::downgrade(running));
    drop(clusters);
    let taken = TAKEN.get_or_init(|| take_signals().map_err(|error| error.to_string()));
    taken.clone().map_err(io::Error::other)
}

fn take_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let clusters = CLUSTERS.lock().unwrap_or_else(PoisonError::into_inner);
                for running in clusters.iter().filter_map(Weak::upgrade) {
                    running.lock().unwrap_or_else(PoisonError::into_inner).end();
                }
                // As a shell tells of a process that a signal ended.
                std::process::exit(128 + signal);
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_clients_is_taken_from_the_line_that_a_ready_broker_prints() {
        let line = "ready CONTROLLER=127.0.0.1:9093 PLAINTEXT=127.0.0.1:9092";
        assert_eq!(client_address(line), Some("127.0.0.1:9092"));
        assert_eq!(client_address("ready CONTROLLER=127.0.0.1:1"), None);
        assert_eq!(client_address("error"), None);
    }

    #[test]
    fn every_node_knows_all_controllers_and_has_a_rack_of_its_own() {
        let layout = Layout::new(Path::new("/somewhere"), 3).unwrap();
        let nodes: Vec<Vec<(String, String)>> = (0..3)
            .map(|at| layout.settings(at, &Brand::Highwater))
            .collect();
        let values = |wanted: &str| {
            let of = |node: &Vec<(String, String)>| {
                let found = node.iter().find(|(key, _)| key == wanted);
                found.unwrap().1.clone()
            };
            let mut all: Vec<String> = nodes.iter().map(of).collect();
            all.sort();
            all.dedup();
            all
        };
        assert_eq!(values("broker.rack"), ["rack-1", "rack-2", "rack-3"]);
        assert_eq!(values("log.dirs").len(), 3);
        assert_eq!(values("listeners").len(), 3);
        let voters = values("controller.quorum.voters");
        assert_eq!(voters.len(), 1);
        assert_eq!(voters[0].split(',').count(), 3);
        for port in &layout.controllers {
            assert!(voters[0].contains(&format!(":{port}")));
        }
    }

    #[test]
    fn ports_of_nodes_differ() {
        let ports = free_ports(12).unwrap();
        let different: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(different.len(), 12);
    }
}
