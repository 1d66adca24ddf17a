//! How a node that is no controller gets the metadata: asks the controllers over the network, and
//! hands images and the active controller on. Runs on the control executor. What is asked, and
//! what becomes of an answer, is [`crate::cluster::quorum::follow`]'s.

use crate::client::Connection;
use crate::cluster::link::ActiveController;
use crate::cluster::quorum::follow::{Answer, FollowSettings, Follower};
use crate::cluster::quorum::observer::{Ask, Target};
use crate::cluster::{MetadataLogError, MetadataLogSettings};
use crate::shard::control::Control;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// `controller.quorum.request.timeout.ms`, and what a leader without news may keep a fetch for.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(2500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Follows from now on; the follower lives as long as what this returns.
pub(super) async fn follow(control: &Rc<Control>) -> Result<Rc<Follower>, MetadataLogError> {
    let config = &control.node.config;
    let voters = config.quorum.voters.iter().map(|voter| Target {
        id: Some(voter.id),
        host: voter.host.clone(),
        port: voter.port,
    });
    let bootstrap = config.quorum.bootstrap.iter().map(|(host, port)| Target {
        id: None,
        host: host.clone(),
        port: *port,
    });
    let backoff = config.value("controller.quorum.retry.backoff.ms");
    let backoff = backoff.and_then(|text| text.trim().parse().ok());
    let settings = FollowSettings {
        node: config.node_id,
        directory: control.dirs().metadata_id(),
        cluster_id: control.node.cluster_id.clone(),
        known: voters.chain(bootstrap).collect(),
        backoff: Duration::from_millis(backoff.unwrap_or(20)),
        log: MetadataLogSettings::of(config),
    };
    let client_id = format!("highwater-{}", config.node_id.0);
    let open: Rc<RefCell<Option<(Target, Connection)>>> = Rc::default();
    let follower = Follower::start(&config.metadata_log_dir, settings, move |target, ask| {
        let (open, client_id) = (open.clone(), client_id.clone());
        async move { answer(&open, &client_id, target, ask).await }
    })
    .await?;
    let weak = Rc::downgrade(control);
    follower.on_leader(move |leader, epoch| {
        let Some(control) = weak.upgrade() else {
            return;
        };
        let active = leader.and_then(|leader| {
            Some(ActiveController {
                id: leader.id?,
                epoch,
                host: leader.host.clone(),
                port: leader.port,
            })
        });
        control.set_active_controller(active);
    });
    let weak = Rc::downgrade(control);
    follower.on_publish(move |image| {
        if let Some(control) = weak.upgrade() {
            control.take_image(image);
        }
    });
    let weak = Rc::downgrade(control);
    follower.on_failure(move |error| {
        if let Some(control) = weak.upgrade() {
            control.stop(format!("the metadata cannot be followed: {error}"));
        }
    });
    control.take_image(follower.image());
    Ok(follower)
}

/// One request to one controller; `None` if it does not answer in time.
async fn answer(
    open: &RefCell<Option<(Target, Connection)>>,
    client_id: &str,
    target: Target,
    ask: Ask,
) -> Option<Answer> {
    let known = open.borrow().clone();
    let connection = match known.filter(|(to, link)| *to == target && link.is_open()) {
        Some((_, connection)) => connection,
        None => {
            let opened =
                Connection::open(&target.host, target.port, client_id, CONNECT_TIMEOUT).await;
            let connection = opened
                .inspect_err(|error| tracing::debug!(%error, "a controller cannot be reached"))
                .ok()?;
            *open.borrow_mut() = Some((target, connection.clone()));
            connection
        }
    };
    let answered = match ask {
        Ask::Fetch(request) => {
            let answered = connection.call(&*request, ANSWER_TIMEOUT).await;
            answered.map(|answer| Answer::Fetch(Box::new(answer)))
        }
        Ask::Snapshot(request) => {
            let answered = connection.call(&*request, ANSWER_TIMEOUT).await;
            answered.map(|answer| Answer::Snapshot(Box::new(answer)))
        }
    };
    answered
        .inspect_err(|error| tracing::debug!(%error, "a controller did not answer"))
        .ok()
}
