//! One process from start to end: executors, directories, metadata, listeners, the line that says
//! it is ready, and the way down. Decides nothing about requests.
//!
//! * here: the executors and what each takes along; a shard's own start;
//! * [`bring_up`] the control executor's part: the order in which a node comes up and goes down;
//! * [`follow`] the metadata of a node that is no controller;
//! * [`listeners`] addresses, binding, and what clients are told of it;
//! * `simulated` the same executors in a simulated world, for tests and for the durability lab.

mod bring_up;
mod follow;
mod listeners;
pub(crate) mod simulated;

use crate::cluster::MetadataLogError;
use crate::config::BrokerConfig;
use crate::config::layers::Layers;
use crate::log::manager::{LogManager, ManagerSettings};
use crate::log::{ColdReadLimits, FlushLimits, LogError, LogShard, ShardLimits, WriteLimits};
use crate::net::admission::{Admission, ConnectionLimits};
use crate::observe::logging;
use crate::observe::metrics::{Families, ShardMetrics};
use crate::rt::lane::{self, LaneReceiver, OnceReceiver, OnceSender};
use crate::rt::sync::queue;
use crate::rt::{self, ExecutorIndex, RingPlan, RunError};
use crate::shard::apply::Directories;
use crate::shard::control::Control;
use crate::shard::directories::DirectoriesError;
use crate::shard::mesh::{self, LocalFuture, MeshEnd};
use crate::shard::{NodeFacts, Shard, ShardSettings};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Why a broker did not start or run; one line for a person.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Directories(#[from] DirectoriesError),
    #[error(transparent)]
    Metadata(#[from] MetadataLogError),
    #[error("{0}")]
    Setup(String),
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Listener names with the addresses they really listen on.
pub type Bound = Vec<(String, SocketAddr)>;

/// Asks a shard to bind these addresses before it is anything else: the broker registers with its
/// real ports, and only then learns what the shard is to hold.
struct BindOrder {
    addresses: Bound,
    /// Takes the ports; the shards behind it share them.
    first: bool,
    answer: OnceSender<Result<Bound, String>>,
}

/// What a shard needs to begin, sent by control once the directories are read.
struct Startup {
    node: Arc<NodeFacts>,
    dirs: Arc<Directories>,
}

/// What one executor takes along to its thread.
struct Seat {
    mesh: MeshEnd<Shard, Control>,
    /// Shards: what to listen on, and what to begin with.
    orders: Option<(OnceReceiver<BindOrder>, OnceReceiver<Startup>)>,
    /// Control: one of each for each shard.
    given: Vec<(OnceSender<BindOrder>, OnceSender<Startup>)>,
    /// Control: a signal asks for the end.
    stop: Option<LaneReceiver<()>>,
}

/// What all executors share, read-only.
struct Shared {
    config: Arc<BrokerConfig>,
    admission: Arc<Admission>,
    families: Option<Families>,
    failure: Mutex<Option<ServeError>>,
}

/// What an executor of a process has come to, for those who look at it from inside.
pub enum Seen<'a> {
    /// The node serves, at these addresses.
    Ready(&'a Bound),
    Control(&'a Rc<Control>),
    Shard(&'a Rc<Shard>),
}

/// One life of a node before its executors run it. Says nothing of what runs them.
struct Process {
    seats: Vec<Mutex<Option<Seat>>>,
    shared: Shared,
}

/// Runs a broker until SIGTERM or SIGINT. `ready` is called once, when it serves.
pub fn run(
    config: BrokerConfig,
    ready: impl Fn(&Bound) + Clone + Send + 'static,
) -> Result<(), ServeError> {
    let format = if config.log_json {
        logging::Format::Json
    } else {
        logging::Format::Text
    };
    let level = config.log_level.parse().unwrap_or(tracing::Level::INFO);
    logging::start(format, level, config.request_log);
    for property in config.without_effect() {
        tracing::warn!(key = %property.key, origin = %property.origin, "setting has no effect here");
    }
    let profile = config.of_disk_profile();
    let limits: Vec<String> = profile
        .map(|limit| format!("{}={}", limit.key, limit.value))
        .collect();
    if !limits.is_empty() {
        tracing::info!(limits = limits.join(" "), "disk profile read");
    }
    let (stop_sender, stop) = lane::pair(1);
    watch_signals(stop_sender).map_err(|error| ServeError::Setup(format!("signals: {error}")))?;
    run_until(config, stop, move |seen: Seen<'_>| {
        if let Seen::Ready(bound) = seen {
            ready(bound);
        }
    })
}

/// Runs a broker until `stop` has a value or loses its sender. `seen` is called on its executors:
/// benches look at a broker from inside.
pub fn run_until(
    config: BrokerConfig,
    stop: LaneReceiver<()>,
    seen: impl Fn(Seen<'_>) + Clone + Send + 'static,
) -> Result<(), ServeError> {
    let plan = RingPlan {
        shards: config.shards,
        pin: true,
        spin: config.spin,
    };
    let process = Arc::new(Process::new(config, stop)?);
    let outcome = {
        let process = process.clone();
        rt::run_ring(plan, move |index: ExecutorIndex| {
            let (process, seen) = (process.clone(), seen.clone());
            async move { process.run(index, seen).await }
        })
    };
    match process.failure() {
        Some(error) => Err(error),
        None => Ok(outcome?),
    }
}

impl Process {
    fn new(config: BrokerConfig, stop: LaneReceiver<()>) -> Result<Process, ServeError> {
        let seats = seats(config.shards, stop)?;
        let seats = seats.into_iter().map(|seat| Mutex::new(Some(seat)));
        Ok(Process {
            seats: seats.collect(),
            shared: Shared {
                admission: Admission::new(ConnectionLimits {
                    total: config.max_connections,
                    per_ip: config.max_connections_per_ip,
                    overrides: config.max_connections_per_ip_overrides.clone(),
                }),
                families: config.metrics_listener.is_some().then(Families::new),
                config: Arc::new(config),
                failure: Mutex::new(None),
            },
        })
    }

    /// The main future of one executor.
    async fn run(&self, index: ExecutorIndex, seen: impl Fn(Seen<'_>)) {
        let seat = self.seats[index.index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(seat) = seat else { return };
        let shards = self.shared.config.shards;
        if index.is_control() {
            if let Err(error) = bring_up::run(seat, shards, &self.shared, seen).await {
                *self
                    .shared
                    .failure
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        } else {
            shard_main(seat, shards, &self.shared, seen).await;
        }
    }

    /// Why the node ended, if it did not end as it was told to.
    fn failure(&self) -> Option<ServeError> {
        self.shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

fn seats(shards: usize, stop: LaneReceiver<()>) -> Result<Vec<Seat>, ServeError> {
    let mut ends = mesh::build(shards + 1);
    let control_end = ends
        .pop()
        .ok_or_else(|| ServeError::Setup("no executors".into()))?;
    let mut seats = Vec::with_capacity(shards + 1);
    let mut given = Vec::with_capacity(shards);
    for mesh in ends {
        let (bind, to_bind) = lane::once();
        let (start, to_start) = lane::once();
        given.push((bind, start));
        seats.push(Seat {
            mesh,
            orders: Some((to_bind, to_start)),
            given: Vec::new(),
            stop: None,
        });
    }
    seats.push(Seat {
        mesh: control_end,
        orders: None,
        given,
        stop: Some(stop),
    });
    Ok(seats)
}

/// A thread that turns the first SIGTERM or SIGINT into a message; the second ends the process.
fn watch_signals(stop: lane::LaneSender<()>) -> std::io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for (count, signal) in signals.forever().enumerate() {
                if count > 0 {
                    std::process::exit(128 + signal);
                }
                // The broker has ended by itself if nobody listens.
                let _ = stop.try_send(());
            }
        })?;
    Ok(())
}

async fn shard_main(seat: Seat, shards: usize, shared: &Shared, seen: impl Fn(Seen<'_>)) {
    let place = seat.mesh.place();
    let Some((order, startup)) = seat.orders else {
        return;
    };
    // Control has failed, or this node is no broker, if it never says how to begin.
    let Some(order) = order.await else { return };
    let (bound, told) = match listeners::bind(&order.addresses, order.first).await {
        Ok((bound, told)) => (bound, Ok(told)),
        Err(error) => (Vec::new(), Err(error)),
    };
    // Control is gone if it does not listen any more; then there is no start either.
    let _ = order.answer.send(told);
    let Some(Startup { node, dirs }) = startup.await else {
        return;
    };
    let config = &shared.config;
    let settings = ShardSettings {
        fetch_max_bytes: config.fetch_max_bytes,
        request_log: config.request_log,
        session_slots: config.fetch_session_slots.div_ceil(shards),
        request_memory_bytes: config.request_memory_bytes,
    };
    let limits = ShardLimits {
        recent_batch_bytes: config.recent_batch_bytes,
        range_bytes_min: config.sendfile_min_bytes,
        journal_bytes: config.journal_bytes,
        read_ahead_bytes: config.read_ahead_bytes,
        writes: WriteLimits {
            merged_bytes_max: config.write_bytes,
            in_flight_max: config.direct_writes_in_flight,
            ..WriteLimits::default()
        },
        flushes: FlushLimits {
            segments_in_flight_max: config.flush_segments_in_flight,
            journal_logs_min: config.journal_logs_min,
            journal_log_bytes_max: config.journal_log_bytes,
        },
        cold_reads: ColdReadLimits {
            in_flight_max: config.cold_reads_in_flight,
            bytes_beside_flushes: config.cold_read_bytes_beside_flushes,
        },
        ..ShardLimits::default()
    };
    let upkeep = ManagerSettings {
        retention_check: Duration::from_millis(config.log_retention_check_interval_ms),
        initial_delay: Duration::from_millis(config.log_initial_task_delay_ms),
        producer_expiration_check: Duration::from_millis(
            config.producer_id_expiration_check_interval_ms,
        ),
        // What is set dynamically comes with the metadata image.
        cleaner: Layers {
            config,
            broker: None,
            cluster: None,
        }
        .cleaner_settings(shards),
    };
    // Each directory fails once.
    let (failures, failed) = queue::bounded(config.log_dirs.len());
    let logs = LogManager::new(LogShard::new(limits), upkeep, move |dir, error| {
        if failures.try_send((dir.to_owned(), error.clone())).is_err() {
            tracing::error!(dir = %dir.display(), %error, "nobody is told that a log directory failed");
        }
    });
    for dir in &dirs.online {
        logs.shard().found_journals(&dir.path, dir.journals.clone());
    }
    let (mesh, inbox) = seat.mesh.open();
    let metrics = ShardMetrics::new(place, shared.families.clone());
    let shard = Shard::new(
        place,
        shards,
        node,
        settings,
        mesh.clone(),
        logs,
        dirs,
        metrics,
    );
    mesh::serve_shard(&mesh, inbox, &shard);
    seen(Seen::Shard(&shard));
    rt::spawn(tell_failures(shard.clone(), failed));
    listeners::serve(&shard, bound, shared);
    shard.start_upkeep();
    shard.ended().await;
}

/// Tells control of the log directories that fail under this shard.
async fn tell_failures(shard: Rc<Shard>, mut failed: queue::Receiver<(PathBuf, LogError)>) {
    while let Some((dir, cause)) = failed.recv().await {
        shard.directory_failed(&dir, &cause);
        let told = shard
            .mesh()
            .call_control(
                shard.control_place(),
                move |control: Rc<Control>| -> LocalFuture<()> {
                    Box::pin(async move { control.directory_failed(dir, cause).await })
                },
            )
            .await;
        if told.is_err() {
            tracing::error!("control does not take the failure of a log directory any more");
        }
    }
}
