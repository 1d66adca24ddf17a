//! A cluster of three brokers on loopback, each a process of this binary, in three racks, with
//! their logs under a directory that goes away with them. Runs on the main thread; a signal to
//! end ends the brokers too.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::collect::Hops;
use crate::observe::hop::TARGET;
use crate::rt;
use crate::types::Uuid;

/// One a rack; so many replicas has the record.
pub const BROKERS: usize = 3;
/// Of what a broker wrote last when it failed to start.
const LINES_OF_FAILURE: usize = 3;

/// The running brokers, ended when this is dropped.
pub struct Nodes {
    running: Arc<Mutex<Running>>,
    signals: Handle,
    bootstrap: String,
}

struct Running {
    home: PathBuf,
    children: Vec<Child>,
}

impl Running {
    /// Ends the processes and takes their files away.
    fn end(&mut self) {
        for child in &mut self.children {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
        // What is left of it lies among the system's temporary files.
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

impl Nodes {
    /// Formats and starts the brokers; ready when all are. Their hops come to `hops`.
    ///
    /// # Errors
    /// One could not be started, or was not ready within `patience`.
    pub fn start(hops: &Hops, patience: Duration) -> io::Result<Nodes> {
        let binary = std::env::current_exe()?;
        let home = fresh_dir()?;
        let running = Arc::new(Mutex::new(Running {
            home: home.clone(),
            children: Vec::new(),
        }));
        let mut nodes = Nodes {
            signals: end_with_signals(running.clone())?,
            running,
            bootstrap: String::new(),
        };
        let plan = Plan::new(&home)?;
        let mut starting = Vec::with_capacity(BROKERS);
        for id in 1..=BROKERS {
            let settings = plan.settings(id);
            format(&binary, &settings, &plan.cluster_id)?;
            let log = home.join(format!("node-{id}.log"));
            let stdout = nodes.spawn(&binary, &settings, &log, hops)?;
            starting.push((id, log, ready_line(stdout)));
        }
        let deadline = Instant::now() + patience;
        let mut addresses = Vec::with_capacity(BROKERS);
        for (id, log, line) in starting {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = line.recv_timeout(left).map_err(|error| {
                let how = match error {
                    RecvTimeoutError::Timeout => "is not ready in time",
                    RecvTimeoutError::Disconnected => "ended before it was ready",
                };
                io::Error::other(format!("broker {id} {how}: {}", last_lines(&log)))
            })?;
            addresses.push(client_address(&line).ok_or_else(|| {
                io::Error::other(format!(
                    "broker {id} said {line:?} instead of where it listens"
                ))
            })?);
        }
        nodes.bootstrap = addresses.join(",");
        Ok(nodes)
    }

    /// Where clients may begin.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    fn spawn(
        &self,
        binary: &Path,
        settings: &[String],
        log: &Path,
        hops: &Hops,
    ) -> io::Result<ChildStdout> {
        let mut command = Command::new(binary);
        command.arg("serve").args(as_arguments(settings));
        let mut child = command
            .env("HIGHWATER_LOG", format!("{TARGET}=trace"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.children.push(child);
        drop(running);
        let rest = File::create(log)?;
        if let Some(stderr) = stderr {
            let hops = hops.clone();
            std::thread::spawn(move || hops.read_log(stderr, rest));
        }
        stdout.ok_or_else(|| io::Error::other("the broker has no standard output"))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.signals.close();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.end();
    }
}

/// What the nodes must know of each other beforehand.
struct Plan {
    home: PathBuf,
    cluster_id: String,
    controller_ports: Vec<u16>,
}

impl Plan {
    fn new(home: &Path) -> io::Result<Plan> {
        Ok(Plan {
            home: home.to_owned(),
            cluster_id: Uuid::from_halves(rt::random_u64() >> 1, rt::random_u64()).to_string(),
            controller_ports: free_ports(CONTROLLERS)?,
        })
    }

    fn settings(&self, id: usize) -> Vec<String> {
        let voters = self.controller_ports.iter().enumerate();
        let voters: Vec<String> = voters
            .map(|(at, port)| format!("{}@127.0.0.1:{port}", at + 1))
            .collect();
        let mut listeners = "PLAINTEXT://127.0.0.1:0".to_owned();
        let mut roles = "broker".to_owned();
        if let Some(port) = self.controller_ports.get(id - 1) {
            listeners += &format!(",CONTROLLER://127.0.0.1:{port}");
            roles += ",controller";
        }
        let data = self.home.join(format!("data-{id}"));
        let settings = [
            ("node.id", id.to_string()),
            ("broker.rack", format!("rack-{id}")),
            ("process.roles", roles),
            ("listeners", listeners),
            ("controller.listener.names", "CONTROLLER".to_owned()),
            (
                "listener.security.protocol.map",
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned(),
            ),
            ("controller.quorum.voters", voters.join(",")),
            ("log.dirs", data.display().to_string()),
            ("min.insync.replicas", "2".to_owned()),
            ("offsets.topic.replication.factor", BROKERS.to_string()),
            // One more would only be more fetches to look at.
            ("offsets.topic.num.partitions", "1".to_owned()),
            ("auto.create.topics.enable", "false".to_owned()),
            ("highwater.log.format", "json".to_owned()),
        ];
        let pairs = settings.iter();
        pairs.map(|(key, value)| format!("{key}={value}")).collect()
    }
}

/// Nodes that are controllers too.
const CONTROLLERS: usize = BROKERS;

fn as_arguments(settings: &[String]) -> impl Iterator<Item = &str> {
    settings.iter().flat_map(|setting| ["--set", setting])
}

fn format(binary: &Path, settings: &[String], cluster_id: &str) -> io::Result<()> {
    let mut command = Command::new(binary);
    command.args(["format", "--cluster-id", cluster_id]);
    let done = command.args(as_arguments(settings)).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&done.stderr).trim().to_owned(),
        )),
    }
}

/// The first line that a broker prints; the thread goes on until the broker ends.
fn ready_line(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (told, line) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Nobody waits for a second one.
            let _ = told.send(line);
        }
    });
    line
}

fn client_address(line: &str) -> Option<String> {
    let mut parts = line.strip_prefix("ready ")?.split_whitespace();
    let address = parts.find_map(|part| part.strip_prefix("PLAINTEXT="))?;
    Some(address.to_owned())
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES_OF_FAILURE)..].join(" / ")
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<io::Result<_>>()?;
    let port = |listener: &TcpListener| Ok(listener.local_addr()?.port());
    held.iter().map(port).collect()
}

fn fresh_dir() -> io::Result<PathBuf> {
    let name = format!("highwater-trace-{:016x}", rt::random_u64());
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir(&path)?;
    Ok(path)
}

/// Without this a signal would end the command and leave its brokers behind.
fn end_with_signals(running: Arc<Mutex<Running>>) -> io::Result<Handle> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            running.lock().unwrap_or_else(PoisonError::into_inner).end();
            // As a shell tells of a process that a signal ended.
            std::process::exit(128 + signal);
        }
    });
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_clients_is_taken_from_the_line_that_a_ready_broker_prints() {
        let line = "ready CONTROLLER=127.0.0.1:9093 PLAINTEXT=127.0.0.1:9092";
        assert_eq!(client_address(line).as_deref(), Some("127.0.0.1:9092"));
        assert_eq!(client_address("ready CONTROLLER=127.0.0.1:1"), None);
        assert_eq!(client_address("error"), None);
    }

    #[test]
    fn every_node_knows_all_controllers_and_has_a_rack_of_its_own() {
        let plan = Plan::new(Path::new("/somewhere")).unwrap();
        let nodes: Vec<Vec<String>> = (1..=BROKERS).map(|id| plan.settings(id)).collect();
        let value = |node: &[String], key: &str| {
            let found = node.iter().find_map(|s| s.strip_prefix(&format!("{key}=")));
            found.unwrap().to_owned()
        };
        let values = |key: &str| {
            let mut all: Vec<String> = nodes.iter().map(|node| value(node, key)).collect();
            all.sort();
            all.dedup();
            all
        };
        assert_eq!(values("broker.rack"), ["rack-1", "rack-2", "rack-3"]);
        assert_eq!(values("log.dirs").len(), BROKERS);
        let voters = values("controller.quorum.voters");
        assert_eq!(voters.len(), 1);
        assert_eq!(voters[0].split(',').count(), CONTROLLERS);
        for port in &plan.controller_ports {
            assert!(voters[0].contains(&format!(":{port}")));
        }
    }
}
