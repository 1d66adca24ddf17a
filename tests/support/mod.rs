//! A broker as a child process, and a raw protocol connection, for the tests of the real binary.
#![allow(dead_code, clippy::unwrap_used)]

pub mod client;
pub mod cluster;
pub mod load;
pub mod raw;
pub mod wires;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

/// How long a broker may take to say that it is ready, and to stop: for that alone it may take half
/// a minute of its own.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where the ports that brokers keep come from: below those that the kernel gives to connections.
const FIRST_PORT: u16 = 15_000;
const PORTS: u16 = 15_000;

/// A running broker, killed when dropped.
pub struct Broker {
    child: Child,
    pub address: SocketAddr,
    pub data: PathBuf,
    pub log: PathBuf,
    settings: Vec<String>,
    _home: Option<tempfile::TempDir>,
}

impl Broker {
    /// Starts a broker on a fresh directory, with `settings` as `key=value`.
    pub fn start(settings: &[&str]) -> Broker {
        let home = tempfile::tempdir().expect("a temporary directory");
        let data = home.path().join("data");
        let log = home.path().join("broker.log");
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        let (child, address) = launch(&data, &log, &settings);
        Broker {
            child,
            address,
            data,
            log,
            settings,
            _home: Some(home),
        }
    }

    pub fn bootstrap(&self) -> String {
        self.address.to_string()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// kill -9, as a crash of the process.
    pub fn kill(&mut self) {
        self.child.kill().expect("the broker runs");
        self.child.wait().expect("the broker is ours");
    }

    /// SIGTERM, and waits for a clean end.
    pub fn stop(&mut self) {
        let status = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status()
            .expect("kill can be run");
        assert!(status.success());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the broker is ours") {
                assert!(
                    status.success(),
                    "broker ended with {status}; its log:\n{}",
                    self.log_text()
                );
                return;
            }
            assert!(
                Instant::now() < deadline,
                "broker did not stop; its log:\n{}",
                self.log_text()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the broker has ended by itself; how.
    pub fn end(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the broker is ours") {
                return status;
            }
            assert!(Instant::now() < deadline, "broker does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts again on the same directory (and another port).
    pub fn restart(&mut self) {
        let (child, address) = launch(&self.data, &self.log, &self.settings);
        self.child = child;
        self.address = address;
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The lines of the request log for one API, as JSON, in order.
    pub fn request_log(&self, api: &str) -> Vec<serde_json::Value> {
        const MARK: &str = "Completed request:";
        let text = self.log_text();
        // The last line may still be on its way into the file.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .filter_map(|line| line.split_once(MARK))
            .map(|(_, json)| serde_json::from_str(json).expect("the request log is JSON"))
            .filter(|line: &serde_json::Value| line["requestHeader"]["requestApiKeyName"] == api)
            .collect()
    }

    /// The directory of one partition.
    pub fn partition_dir(&self, topic: &str, partition: i32) -> PathBuf {
        self.data.join(format!("{topic}-{partition}"))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.is_running() {
            // Best effort: the test has its verdict.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let text = self.log_text();
            let tail: Vec<&str> = text.lines().rev().take(60).collect();
            eprintln!("--- the broker's last lines");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// A port that a broker keeps over its lives. None is given twice: it looks free while its broker
/// is down or has not bound it yet.
pub fn fixed_port() -> u16 {
    static BEGIN: LazyLock<u16> = LazyLock::new(|| fastrand::u16(..PORTS));
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    loop {
        let given = GIVEN.fetch_add(1, Ordering::SeqCst);
        assert!(given < PORTS, "no port is left");
        let port = FIRST_PORT + (*BEGIN + given) % PORTS;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn launch(data: &Path, log: &Path, settings: &[String]) -> (Child, SocketAddr) {
    Starting::spawn(data, log, settings).ready()
}

/// A broker's process that has not said yet that it is ready.
struct Starting {
    child: Child,
    lines: mpsc::Receiver<String>,
    log: PathBuf,
}

impl Starting {
    fn spawn(data: &Path, log: &Path, settings: &[String]) -> Starting {
        let errors = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .expect("the log file can be made");
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
        command.arg("serve");
        for setting in [
            "listeners=PLAINTEXT://127.0.0.1:0".to_owned(),
            format!("log.dirs={}", data.display()),
        ]
        .iter()
        .chain(settings)
        {
            command.args(["--set", setting]);
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("the broker's binary can be run");
        let stdout = child.stdout.take().expect("it is piped");
        let (told, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test may have given up.
                let _ = told.send(line);
            }
        });
        Starting {
            child,
            lines,
            log: log.to_owned(),
        }
    }

    /// Waits for the line that says so; where clients reach it.
    fn ready(mut self) -> (Child, SocketAddr) {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            let _ = self.child.kill();
            let _ = self.child.wait();
            panic!(
                "broker not ready; its log:\n{}",
                std::fs::read_to_string(&self.log).unwrap_or_default()
            )
        });
        let address = line
            .strip_prefix("ready ")
            .and_then(|rest| {
                rest.split_whitespace()
                    .find_map(|part| part.strip_prefix("PLAINTEXT="))
            })
            .unwrap_or_else(|| panic!("unexpected first line {line:?}"))
            .parse()
            .expect("an address");
        (self.child, address)
    }
}
