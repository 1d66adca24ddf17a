//! One broker process from start to end: directories, metadata, executors, listeners, the line
//! that says it is ready, and the way down. Runs on the main thread and the control executor.
//! Decides nothing about requests.

use crate::cluster::controller::{Controller, Registration};
use crate::cluster::{MetadataLogError, directories};
use crate::config::BrokerConfig;
use crate::config::layers::Layers;
use crate::config::listeners::{Listener as ListenerConfig, SecurityProtocol};
use crate::log::dir::DirError;
use crate::log::manager::{LogManager, ManagerSettings};
use crate::log::{LogError, LogShard, ShardLimits};
use crate::net::admission::{Admission, ConnectionLimits};
use crate::net::connection::ConnectionSettings;
use crate::net::listener;
use crate::observe::metrics::{Families, ShardMetrics};
use crate::observe::{endpoint, logging};
use crate::rt::lane::{self, LaneReceiver, OnceReceiver, OnceSender};
use crate::rt::net::Listener;
use crate::rt::sync::queue;
use crate::rt::{self, Either2, ExecutorIndex, RingPlan, RunError};
use crate::shard::apply::Directories;
use crate::shard::control::Control;
use crate::shard::directories::{DirectoriesError, LogDirs};
use crate::shard::mesh::{self, LocalFuture, MeshEnd};
use crate::shard::{NodeFacts, Shard, ShardSettings};
use crate::types::Uuid;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
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

/// How long the way down may take once a disk has failed: it may never answer.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Listener names with the addresses they really listen on.
pub type Bound = Vec<(String, SocketAddr)>;

/// What a shard needs to begin, sent by control once the directories are read.
struct Startup {
    node: Arc<NodeFacts>,
    dirs: Arc<Directories>,
}

/// What one executor takes along to its thread.
struct Seat {
    mesh: MeshEnd<Shard, Control>,
    /// Shards: what to begin with.
    startup: Option<OnceReceiver<Startup>>,
    /// Control: one for each shard.
    startups: Vec<OnceSender<Startup>>,
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
    let shards = config.shards;
    let seats = seats(shards)?;
    let shared = Arc::new(Shared {
        admission: Admission::new(ConnectionLimits {
            total: config.max_connections,
            per_ip: config.max_connections_per_ip,
            overrides: config.max_connections_per_ip_overrides.clone(),
        }),
        families: config.metrics_listener.is_some().then(Families::new),
        config: Arc::new(config),
        failure: Mutex::new(None),
    });
    let plan = RingPlan {
        shards,
        pin: true,
        spin: None,
    };
    let seats: Arc<Vec<Mutex<Option<Seat>>>> = Arc::new(
        seats
            .into_iter()
            .map(|seat| Mutex::new(Some(seat)))
            .collect(),
    );
    let outcome = {
        let shared = shared.clone();
        rt::run_ring(plan, move |index: ExecutorIndex| {
            let seat = seats[index.index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let (shared, ready) = (shared.clone(), ready.clone());
            async move {
                let Some(seat) = seat else { return };
                if index.is_control() {
                    if let Err(error) = control_main(seat, shards, &shared, ready).await {
                        *shared
                            .failure
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner) = Some(error);
                    }
                } else {
                    shard_main(seat, shards, &shared).await;
                }
            }
        })
    };
    let failure = shared
        .failure
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    match failure {
        Some(error) => Err(error),
        None => Ok(outcome?),
    }
}

fn seats(shards: usize) -> Result<Vec<Seat>, ServeError> {
    let (stop_sender, stop) = lane::pair(1);
    watch_signals(stop_sender).map_err(|error| ServeError::Setup(format!("signals: {error}")))?;
    let mut ends = mesh::build(shards + 1);
    let control_end = ends
        .pop()
        .ok_or_else(|| ServeError::Setup("no executors".into()))?;
    let mut seats = Vec::with_capacity(shards + 1);
    let mut startups = Vec::with_capacity(shards);
    for mesh in ends {
        let (sender, receiver) = lane::once();
        startups.push(sender);
        seats.push(Seat {
            mesh,
            startup: Some(receiver),
            startups: Vec::new(),
            stop: None,
        });
    }
    seats.push(Seat {
        mesh: control_end,
        startup: None,
        startups,
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

async fn shard_main(seat: Seat, shards: usize, shared: &Arc<Shared>) {
    let place = seat.mesh.place();
    let Some(startup) = seat.startup else { return };
    // Control has failed if it never says how to begin.
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
        journal_bytes: config.journal_bytes,
        read_ahead_bytes: config.read_ahead_bytes,
        ..ShardLimits::default()
    };
    let upkeep = ManagerSettings {
        retention_check: Duration::from_millis(config.log_retention_check_interval_ms),
        // What is set dynamically comes with the metadata image.
        cleaner: Layers {
            config,
            broker: None,
            cluster: None,
        }
        .cleaner_settings(shards),
        ..ManagerSettings::default()
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
    rt::spawn(tell_failures(shard.clone(), failed));
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

async fn control_main(
    seat: Seat,
    shards: usize,
    shared: &Arc<Shared>,
    ready: impl Fn(&Bound),
) -> Result<(), ServeError> {
    let config = shared.config.clone();
    let dirs = LogDirs::take(&config).await?;
    let cluster_id = dirs.identify(&config).await?;
    let controller = Controller::open(&config.metadata_log_dir, config.clone()).await?;
    let facts = dirs.read(&controller.image()).await?;
    settle(&controller, &dirs, &facts).await?;
    let node = Arc::new(NodeFacts {
        node: config.node_id,
        cluster_id,
        config: config.clone(),
    });
    let facts = Arc::new(facts);
    let node_dirs = facts.clone();
    for startup in seat.startups {
        // A shard that is gone is noticed by the executors' owner.
        let _ = startup.send(Startup {
            node: node.clone(),
            dirs: facts.clone(),
        });
    }
    let (mesh, inbox) = seat.mesh.open();
    let control = Control::start(controller.clone(), mesh.clone(), shards, dirs);
    mesh::serve_control(&mesh, inbox, &control);
    control.applied().await;
    control.collect_failures().await;
    remove_journals(&control, &node_dirs).await;
    let bound = match control.must_stop() {
        Some(why) => Err(why),
        None => bind(&mesh, shards, shared).await,
    };
    let bound = match bound {
        Ok(bound) => bound,
        Err(why) => {
            end(&control).await;
            return Err(ServeError::Setup(why));
        }
    };
    controller
        .register(registration(&config, &bound, control.dirs().online_ids()))
        .await?;
    control.applied().await;
    control.start_checkpoints();
    if let Some(families) = &shared.families {
        serve_metrics(&control, &config, families.clone())?;
    }
    control
        .ask_shards(|shard| -> LocalFuture<()> {
            shard.start_accepting();
            Box::pin(std::future::ready(()))
        })
        .await;
    ready(&bound);
    let signal = async {
        match seat.stop {
            Some(mut stop) => stop.recv().await,
            None => std::future::pending().await,
        }
    };
    let stopped = rt::select2(signal, control.stopped()).await;
    tracing::info!("stopping");
    end(&control).await;
    match stopped {
        Either2::First(_) => Ok(()),
        Either2::Second(why) => Err(ServeError::Setup(why)),
    }
}

/// The way down. With a failed disk it is not waited for longer than its patience.
async fn end(control: &Rc<Control>) {
    if control.must_stop().is_none() {
        control.shut_down().await;
    } else if rt::timeout(STOP_PATIENCE, control.shut_down())
        .await
        .is_err()
    {
        tracing::error!("the way down takes too long, it is cut short");
    }
    control.end_shards().await;
}

/// Every log has taken back what its segments lacked. Those of a directory that failed stay.
async fn remove_journals(control: &Control, dirs: &Directories) {
    for dir in &dirs.online {
        if control.dirs().is_offline(&dir.path) {
            continue;
        }
        if let Err(error) = dir.journals.remove().await {
            let cause = DirError::Io {
                what: "remove the journals",
                path: dir.path.clone(),
                source: error,
            };
            let cause = cause.as_log_error();
            control.directory_failed(dir.path.clone(), cause).await;
        }
    }
}

/// Registers where the partitions lie before the shards open them.
async fn settle(
    controller: &Rc<Controller>,
    dirs: &LogDirs,
    facts: &Directories,
) -> Result<(), MetadataLogError> {
    let partitions = facts.found();
    let online = dirs.online_ids();
    let found = directories::Found {
        node: controller.config.node_id,
        online: &online,
        some_offline: !facts.offline.is_empty(),
        partitions: &partitions,
    };
    controller
        .change(|image| (directories::settle(image, &found), ()))
        .await
}

/// Binds every listener on every shard: the first shard takes the port, the others share it.
async fn bind(
    mesh: &Rc<mesh::Mesh<Shard, Control>>,
    shards: usize,
    shared: &Arc<Shared>,
) -> Result<Bound, String> {
    let mut wanted: Bound = Vec::new();
    for listener in &shared.config.listeners {
        wanted.push((listener.name.clone(), address(listener).await?));
    }
    for place in 0..shards {
        let (addresses, shared) = (wanted.clone(), shared.clone());
        let bound = mesh.call_shard(place, move |shard: Rc<Shard>| -> LocalFuture<_> {
            Box::pin(std::future::ready(bind_on(
                &shard,
                &shared,
                &addresses,
                place == 0,
            )))
        });
        wanted = bound.await.map_err(|gone| gone.to_string())??;
    }
    Ok(wanted)
}

fn bind_on(
    shard: &Rc<Shard>,
    shared: &Arc<Shared>,
    addresses: &Bound,
    first: bool,
) -> Result<Bound, String> {
    let config = &shared.config;
    let settings = ConnectionSettings {
        request_max_bytes: config.socket_request_max_bytes,
        max_in_flight: config.in_flight_max,
    };
    let mut bound = Bound::new();
    for (name, address) in addresses {
        let listener = if first {
            Listener::bind(*address)
        } else {
            Listener::bind_shared(*address)
        };
        let listener =
            listener.map_err(|error| format!("cannot listen on {name}://{address}: {error}"))?;
        bound.push((name.clone(), listener.local_addr()));
        let (shard, name, admission) = (
            shard.clone(),
            Rc::from(name.as_str()),
            shared.admission.clone(),
        );
        rt::spawn(async move {
            shard.accepting().await;
            listener::run(shard, listener, name, settings, admission).await;
        });
    }
    Ok(bound)
}

async fn address(listener: &ListenerConfig) -> Result<SocketAddr, String> {
    if listener.host.is_empty() {
        return Ok(SocketAddr::new(
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            listener.port,
        ));
    }
    let found = rt::net::resolve(&listener.host, listener.port)
        .await
        .map_err(|error| format!("listener {}: {}: {error}", listener.name, listener.host))?;
    found.first().copied().ok_or_else(|| {
        format!(
            "listener {}: {} has no address",
            listener.name, listener.host
        )
    })
}

/// What clients are told: the advertised addresses, with the real port where 0 was asked.
fn registration(config: &BrokerConfig, bound: &Bound, log_dirs: Vec<Uuid>) -> Registration {
    let endpoints = bound
        .iter()
        .map(|(name, address)| {
            let told = config
                .advertised
                .iter()
                .find(|listener| listener.name == *name);
            let own = config
                .listeners
                .iter()
                .find(|listener| listener.name == *name);
            let host = match (told, own) {
                (Some(told), _) if !told.host.is_empty() => told.host.clone(),
                (_, Some(own)) if !own.host.is_empty() => own.host.clone(),
                _ => host_name(),
            };
            let port = told
                .map(|told| told.port)
                .filter(|port| *port != 0)
                .unwrap_or(address.port());
            (name.clone(), host, port, SecurityProtocol::Plaintext.id())
        })
        .collect();
    let mut incarnation = [0; 16];
    rt::fill_random(&mut incarnation);
    Registration {
        node: config.node_id,
        incarnation: Uuid(incarnation),
        endpoints,
        rack: config.rack.clone(),
        log_dirs,
    }
}

/// This host's name, for listeners on every address.
fn host_name() -> String {
    std::fs::read_to_string(Path::new("/proc/sys/kernel/hostname"))
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

fn serve_metrics(
    control: &Rc<Control>,
    config: &BrokerConfig,
    families: Families,
) -> Result<(), ServeError> {
    let Some(text) = &config.metrics_listener else {
        return Ok(());
    };
    let address: SocketAddr = text.parse().map_err(|_| {
        ServeError::Setup(format!(
            "highwater.metrics.listener: '{text}' is not host:port"
        ))
    })?;
    let listener = Listener::bind(address).map_err(|error| {
        ServeError::Setup(format!("highwater.metrics.listener {address}: {error}"))
    })?;
    tracing::info!(address = %listener.local_addr(), "metrics at /metrics");
    let control = control.clone();
    let gauges = families.clone();
    rt::spawn(endpoint::run(listener, families, move || {
        let (control, gauges) = (control.clone(), gauges.clone());
        async move {
            control.refresh_gauges(&gauges);
            control
                .ask_shards(|shard| -> LocalFuture<()> {
                    shard.refresh_gauges();
                    Box::pin(std::future::ready(()))
                })
                .await;
        }
    }));
    Ok(())
}
