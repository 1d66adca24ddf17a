//! The listeners of a node: addresses looked up, sockets bound, and what others are told of them.
//! Brokers listen on every shard, controllers on the control executor. Never accepts by itself.

use super::{Bound, Shared};
use crate::cluster::controller::Controller;
use crate::config::BrokerConfig;
use crate::config::listeners::{Listener as ListenerConfig, SecurityProtocol};
use crate::net::connection::ConnectionSettings;
use crate::net::controllers::Controllers;
use crate::net::listener;
use crate::rt;
use crate::rt::net::Listener;
use crate::shard::{Advertised, Shard};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// How long a port that is in use is tried again. The sockets of a process that was killed live on
/// for a moment: the kernel takes its rings down behind it.
const IN_USE_PATIENCE: Duration = Duration::from_secs(2);
const IN_USE_PAUSE: Duration = Duration::from_millis(20);

/// Binds addresses on this executor; the first to do so takes the ports, the others share them.
pub(super) async fn bind(
    addresses: &Bound,
    first: bool,
) -> Result<(Vec<(String, Listener)>, Bound), String> {
    let mut bound = Vec::with_capacity(addresses.len());
    let mut told = Bound::new();
    let begun = rt::now();
    for (name, address) in addresses {
        let listener = loop {
            let tried = if first {
                Listener::bind(*address)
            } else {
                Listener::bind_shared(*address)
            };
            match tried {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && rt::now().since(begun) < IN_USE_PATIENCE =>
                {
                    rt::sleep(IN_USE_PAUSE).await;
                }
                tried => break tried,
            }
        };
        let listener =
            listener.map_err(|error| format!("cannot listen on {name}://{address}: {error}"))?;
        told.push((name.clone(), listener.local_addr()));
        bound.push((name.clone(), listener));
    }
    Ok((bound, told))
}

/// Serves a shard's listeners from the moment it accepts.
pub(super) fn serve(shard: &Rc<Shard>, bound: Vec<(String, Listener)>, shared: &Shared) {
    let settings = ConnectionSettings {
        request_max_bytes: shared.config.socket_request_max_bytes,
        max_in_flight: shared.config.in_flight_max,
    };
    for (name, listener) in bound {
        let (shard, admission) = (shard.clone(), shared.admission.clone());
        rt::spawn(async move {
            shard.accepting().await;
            listener::run(shard, listener, Rc::from(name), settings, admission).await;
        });
    }
}

/// Binds and serves the listeners of the embedded controller.
pub(super) async fn serve_controller(
    controller: &Rc<Controller>,
    shared: &Shared,
) -> Result<(Rc<Controllers>, Bound), String> {
    let config = &shared.config;
    let addresses = addresses(&config.quorum.listeners).await?;
    let (bound, told) = bind(&addresses, true).await?;
    let controllers = Controllers::new(
        controller.clone(),
        shared.admission.clone(),
        config.socket_request_max_bytes,
    );
    for (name, listener) in bound {
        rt::spawn(controllers.clone().run(listener, name));
    }
    Ok((controllers, told))
}

pub(super) async fn addresses(listeners: &[ListenerConfig]) -> Result<Bound, String> {
    let mut found = Bound::new();
    for listener in listeners {
        found.push((listener.name.clone(), address(listener).await?));
    }
    Ok(found)
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

/// What others are told: the advertised addresses, with the real port where 0 was asked.
pub(super) fn advertised(config: &BrokerConfig, bound: &Bound) -> Vec<Advertised> {
    let own = config.listeners.iter().chain(&config.quorum.listeners);
    let own: Vec<&ListenerConfig> = own.collect();
    let told_of = |(name, address): &(String, SocketAddr)| {
        let told = config
            .advertised
            .iter()
            .find(|listener| listener.name == *name);
        let own = own.iter().find(|listener| listener.name == *name);
        let host = match (told, own) {
            (Some(told), _) if !told.host.is_empty() => told.host.clone(),
            (_, Some(own)) if !own.host.is_empty() => own.host.clone(),
            _ => rt::net::host_name(),
        };
        let port = told
            .map(|told| told.port)
            .filter(|port| *port != 0)
            .unwrap_or(address.port());
        (name.clone(), host, port, SecurityProtocol::Plaintext.id())
    };
    bound.iter().map(told_of).collect()
}
