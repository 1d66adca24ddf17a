//! The order in which a node comes up and goes down, on the control executor: directories, the
//! embedded controller, sockets, registration, metadata, logs, and only then clients (KIP-631).

use super::follow;
use super::{BindOrder, Bound, Seat, Seen, ServeError, Shared, Startup, listeners};
use crate::cluster::controller::Controller;
use crate::cluster::link::ActiveController;
use crate::cluster::quorum::peers;
use crate::cluster::{directories, periodic};
use crate::config::BrokerConfig;
use crate::observe::endpoint;
use crate::observe::metrics::Families;
use crate::rt::lane::{self, LaneReceiver, OnceSender};
use crate::rt::net::Listener;
use crate::rt::{self, Either2};
use crate::shard::apply::Directories;
use crate::shard::control::Control;
use crate::shard::directories::LogDirs;
use crate::shard::mesh::{self, LocalFuture};
use crate::shard::{NodeFacts, Registration};
use crate::types::Uuid;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// How long the way down may take once a disk has failed: it may never answer.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// How long a broker that goes waits until its leaderships have moved.
const LEAVE_PATIENCE: Duration = Duration::from_secs(30);

/// Runs the node until a signal or a failure ends it.
pub(super) async fn run(
    seat: Seat,
    shards: usize,
    shared: &Shared,
    seen: impl Fn(Seen<'_>),
) -> Result<(), ServeError> {
    let config = shared.config.clone();
    let Seat {
        mesh, given, stop, ..
    } = seat;
    let dirs = LogDirs::take(&config).await?;
    let cluster_id = dirs.identify(&config).await?;
    let node = Arc::new(NodeFacts {
        node: config.node_id,
        cluster_id,
        config: config.clone(),
    });
    let controller = match config.quorum.roles.controller {
        true => {
            let opened = Controller::open(&config.metadata_log_dir, config.clone()).await?;
            opened.identify(&node.cluster_id);
            rt::spawn(attend(Rc::downgrade(&opened)));
            Some(opened)
        }
        false => None,
    };
    let (mesh, inbox) = mesh.open();
    let control = Control::new(node, controller, mesh.clone(), shards, dirs);
    mesh::serve_control(&mesh, inbox, &control);
    seen(Seen::Control(&control));
    // Follows as long as it is held.
    let _follower = match control.controller {
        Some(_) => None,
        None => Some(follow::follow(&control).await?),
    };
    let up = come_up(&control, given, shared);
    let bound = match rt::select2(up, control.stopped()).await {
        Either2::First(Ok(bound)) => bound,
        Either2::First(Err(why)) | Either2::Second(why) => {
            go_down(&control).await;
            return Err(ServeError::Setup(why));
        }
    };
    seen(Seen::Ready(&bound));
    let stopped = rt::select2(signalled(stop), control.stopped()).await;
    tracing::info!("stopping");
    go_down(&control).await;
    match stopped {
        Either2::First(()) => Ok(()),
        Either2::Second(why) => Err(ServeError::Setup(why)),
    }
}

/// Takes up the talk with the other voters, and keeps the link to whoever is active.
fn take_part(control: &Rc<Control>, controller: &Rc<Controller>) {
    let quorum = controller.quorum().clone();
    let config = &control.node.config;
    if config.quorum.is_alone(config.node_id) {
        return;
    }
    let voters = config.quorum.voters.iter().map(|voter| peers::Address {
        node: voter.id,
        host: voter.host.clone(),
        port: voter.port,
    });
    let voters: Vec<peers::Address> = voters.collect();
    peers::connect(&quorum, &control.node.cluster_id, &voters);
    let control = Rc::downgrade(control);
    rt::spawn(async move {
        while let Some(control) = control.upgrade() {
            let (leader, epoch) = quorum.leader();
            let address = voters.iter().find(|voter| Some(voter.node) == leader);
            control.set_active_controller(address.map(|voter| ActiveController {
                id: voter.node,
                epoch,
                host: voter.host.clone(),
                port: voter.port,
            }));
            drop(control);
            quorum.changed().wait().await;
        }
    });
}

/// Begins what a controller does by itself each time it becomes active.
async fn attend(controller: Weak<Controller>) {
    let mut attended = None;
    while let Some(controller) = controller.upgrade() {
        let active = controller.active_epoch();
        if active.is_some() && active != attended {
            periodic::start(&controller);
        }
        attended = active;
        controller.moved().wait().await;
    }
}

/// One life of this process has one.
fn random_id() -> Uuid {
    let mut id = [0; 16];
    rt::fill_random(&mut id);
    Uuid(id)
}

async fn signalled(stop: Option<LaneReceiver<()>>) {
    match stop {
        Some(mut stop) => {
            stop.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Where a node listens once it is up.
async fn come_up(
    control: &Rc<Control>,
    given: Vec<(OnceSender<BindOrder>, OnceSender<Startup>)>,
    shared: &Shared,
) -> Result<Bound, String> {
    let config = &shared.config;
    let mut bound = Bound::new();
    let mut of_controller = Bound::new();
    if let Some(controller) = &control.controller {
        (_, of_controller) = listeners::serve_controller(controller, shared).await?;
        take_part(control, controller);
        let own = listeners::advertised(config, &of_controller);
        // A node that is its own cluster has no listener by which others could reach it.
        if !own.is_empty() {
            control.register_controller(random_id(), &own);
        }
    }
    if config.quorum.roles.broker {
        bound = be_a_broker(control, given, shared).await?;
    }
    bound.append(&mut of_controller);
    if let Some(families) = &shared.families {
        serve_metrics(control, config, families.clone())?;
    }
    Ok(bound)
}

async fn be_a_broker(
    control: &Rc<Control>,
    given: Vec<(OnceSender<BindOrder>, OnceSender<Startup>)>,
    shared: &Shared,
) -> Result<Bound, String> {
    let config = &shared.config;
    let mut bound = listeners::addresses(&config.listeners).await?;
    let mut starts = Vec::with_capacity(given.len());
    for (place, (bind, start)) in given.into_iter().enumerate() {
        let (answer, told) = lane::once();
        let order = BindOrder {
            addresses: bound,
            first: place == 0,
            answer,
        };
        let gone = || format!("shard {place} is gone");
        bind.send(order).map_err(|_| gone())?;
        bound = told.await.ok_or_else(gone)??;
        starts.push(start);
    }
    let me = Registration {
        incarnation: random_id(),
        endpoints: listeners::advertised(config, &bound),
        previous_epoch: control.dirs().previous_epoch().await,
    };
    control.register(&me).await?;
    control.start_heartbeats(me);
    // What lies in the directories is judged by metadata that has this registration.
    control.image_at(control.broker_epoch()).await;
    let facts = control.dirs().read(&control.image(), config.node_id).await;
    let facts = Arc::new(facts.map_err(|error| error.to_string())?);
    settle(control, &facts).await;
    for start in starts {
        // A shard that is gone is noticed by the executors' owner.
        let _ = start.send(Startup {
            node: control.node.clone(),
            dirs: facts.clone(),
        });
    }
    control.feed_shards();
    control.applied().await;
    control.collect_failures().await;
    end_journals(control, &facts).await;
    if let Some(why) = control.must_stop() {
        return Err(why);
    }
    control.unfenced().await;
    // Whoever connects is told of this broker: a client that hears of none forgets those it knew.
    control.sees_itself_unfenced().await;
    control.applied().await;
    control.start_checkpoints();
    control
        .ask_shards(|shard| -> LocalFuture<()> {
            shard.start_accepting();
            Box::pin(std::future::ready(()))
        })
        .await;
    Ok(bound)
}

/// The way down. With a failed disk it is not waited for longer than its patience.
async fn go_down(control: &Rc<Control>) {
    // Shards that were never told how to begin have ended by themselves.
    let began = control.is_feeding();
    let down = async {
        control.leave(LEAVE_PATIENCE).await;
        if began {
            control.shut_down().await;
        }
    };
    if control.must_stop().is_none() {
        down.await;
    } else if rt::timeout(STOP_PATIENCE, down).await.is_err() {
        tracing::error!("the way down takes too long, it is cut short");
    }
    if began {
        control.end_shards().await;
    }
}

/// Every log that could be opened has taken back what its segments lacked. The journals of a
/// directory that failed stay.
async fn end_journals(control: &Control, dirs: &Directories) {
    if dirs.online.iter().any(|dir| dir.journals.are_there()) {
        // Where a log was said to start may be noted nowhere else.
        control.write_checkpoints(true).await;
    }
    for dir in &dirs.online {
        if control.dirs().is_offline(&dir.path) {
            continue;
        }
        if let Err(error) = dir.journals.started().await {
            control
                .directory_failed(dir.path.clone(), dir.no_end_of_journals(error))
                .await;
        }
    }
}

/// Registers where the partitions lie before the shards open them.
async fn settle(control: &Rc<Control>, facts: &Directories) {
    let partitions = facts.found();
    let online = control.dirs().online_ids();
    let found = directories::Found {
        node: control.node.node,
        online: &online,
        some_offline: !facts.offline.is_empty(),
        partitions: &partitions,
        hidden: &facts.hidden(),
    };
    let wanted = directories::settle(&control.image(), &found);
    control.assign_directories(wanted).await;
}

fn serve_metrics(
    control: &Rc<Control>,
    config: &BrokerConfig,
    families: Families,
) -> Result<(), String> {
    let Some(text) = &config.metrics_listener else {
        return Ok(());
    };
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("highwater.metrics.listener: '{text}' is not host:port"))?;
    let listener = Listener::bind(address)
        .map_err(|error| format!("highwater.metrics.listener {address}: {error}"))?;
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
