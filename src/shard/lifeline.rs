//! Keeps the broker alive in its cluster: registers it, sends its heartbeats, and on the way down
//! waits until its leaderships have moved. Runs on the control executor. What follows from an
//! answer is decided in [`crate::cluster::life`]; what an image changes, by the shards.

use super::control::Control;
use crate::cluster::features;
use crate::cluster::life::Next;
use crate::rt::{self, Either2};
use crate::types::{PartitionId, Uuid};
use crate::wire::messages::assign_replicas_to_dirs_request::{
    AssignReplicasToDirsRequest, DirectoryData, PartitionData, TopicData,
};
use crate::wire::messages::broker_registration_request::{
    BrokerRegistrationRequest, Feature, Listener,
};
use crate::wire::messages::controller_registration_request as controller;
use crate::wire::{ErrorCode, Str};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Pause after a registration that did not succeed.
const REGISTER_PAUSE: Duration = Duration::from_millis(100);

/// Pause before replicas' directories are told again to a controller that did not take them.
const ASSIGN_PAUSE: Duration = Duration::from_secs(1);

/// Pause before a controller that is not registered yet tries again.
const REGISTER_CONTROLLER_PAUSE: Duration = Duration::from_secs(1);

/// Where others reach a listener: its name, host, port, security protocol.
pub type Advertised = (String, String, u16, i16);

/// What the broker says of itself when it registers.
#[derive(Clone)]
pub struct Registration {
    /// One life of this process.
    pub incarnation: Uuid,
    pub endpoints: Vec<Advertised>,
    /// The epoch of the registration under which the logs were closed cleanly; -1 if they were
    /// not.
    pub previous_epoch: i64,
}

impl Control {
    /// The epoch of the broker's registration; -1 before.
    pub fn broker_epoch(&self) -> i64 {
        self.life.borrow().epoch()
    }

    /// Registers, trying again until `initial.broker.registration.timeout.ms`; says why it could
    /// not.
    pub async fn register(&self, me: &Registration) -> Result<(), String> {
        let limit = Duration::from_millis(self.node.config.initial_registration_timeout_ms);
        let begun = rt::now();
        let mut said = None;
        loop {
            let error = match self.register_once(me).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if said.replace(error) != Some(error) {
                tracing::warn!(%error, "not registered yet");
            }
            if rt::now().since(begun) >= limit {
                return Err(format!(
                    "the controller did not register this broker within {limit:?}: {error}"
                ));
            }
            rt::sleep(REGISTER_PAUSE).await;
        }
    }

    async fn register_once(&self, me: &Registration) -> Result<(), ErrorCode> {
        let answer = self.ask_controller(&self.registration(me)).await?;
        match ErrorCode(answer.error_code) {
            ErrorCode::NONE => {}
            error => return Err(error),
        }
        self.life.borrow_mut().registered(answer.broker_epoch);
        self.life_moved.notify_all();
        tracing::info!(epoch = answer.broker_epoch, "registered");
        Ok(())
    }

    fn registration(&self, me: &Registration) -> BrokerRegistrationRequest {
        let features = features::SUPPORTED.iter().map(|feature| Feature {
            name: Str::from_static(feature.name),
            min_supported_version: feature.min,
            max_supported_version: feature.max,
            ..Default::default()
        });
        let listeners = me
            .endpoints
            .iter()
            .map(|(name, host, port, protocol)| Listener {
                name: Str::from(name),
                host: Str::from(host),
                port: *port,
                security_protocol: *protocol,
                ..Default::default()
            });
        BrokerRegistrationRequest {
            broker_id: self.node.node.0,
            cluster_id: Str::from(&self.node.cluster_id),
            incarnation_id: me.incarnation,
            listeners: listeners.collect(),
            features: features.collect(),
            rack: self.node.config.rack.as_deref().map(Str::from),
            log_dirs: self.dirs().online_ids(),
            previous_broker_epoch: me.previous_epoch,
            ..Default::default()
        }
    }

    /// Registers the embedded controller with the active one, which may be itself: tools and
    /// changes of features want to know all controllers. Tries again until it is taken.
    pub fn register_controller(self: &Rc<Self>, incarnation: Uuid, endpoints: &[Advertised]) {
        let listeners = endpoints
            .iter()
            .map(|(name, host, port, protocol)| controller::Listener {
                name: Str::from(name),
                host: Str::from(host),
                port: *port,
                security_protocol: *protocol,
                ..Default::default()
            });
        let features = features::SUPPORTED
            .iter()
            .map(|feature| controller::Feature {
                name: Str::from_static(feature.name),
                min_supported_version: feature.min,
                max_supported_version: feature.max,
                ..Default::default()
            });
        let request = controller::ControllerRegistrationRequest {
            controller_id: self.node.node.0,
            incarnation_id: incarnation,
            listeners: listeners.collect(),
            features: features.collect(),
            ..Default::default()
        };
        let control = Rc::downgrade(self);
        rt::spawn(async move {
            loop {
                let Some(control) = control.upgrade() else {
                    return;
                };
                let answer = control.ask_controller(&request).await;
                match answer.map(|answer| ErrorCode(answer.error_code)) {
                    Ok(ErrorCode::NONE) => return,
                    Ok(error) => tracing::warn!(%error, "controller not registered yet"),
                    Err(_nobody) => {}
                }
                drop(control);
                rt::sleep(REGISTER_CONTROLLER_PAUSE).await;
            }
        });
    }

    /// Sends heartbeats until the controller lets the broker go.
    pub fn start_heartbeats(self: &Rc<Self>, me: Registration) {
        let control = Rc::downgrade(self);
        rt::spawn(async move {
            loop {
                let Some(control) = control.upgrade() else {
                    return;
                };
                let pause = match control.heartbeat().await {
                    Next::Ended => return,
                    Next::Heartbeat(pause) => pause,
                    Next::Register => match control.register_once(&me).await {
                        Ok(()) => continue,
                        Err(error) => {
                            tracing::warn!(%error, "not registered yet");
                            REGISTER_PAUSE
                        }
                    },
                };
                let due = std::pin::pin!(control.heartbeat_due.notified());
                match rt::select2(due, rt::sleep(pause)).await {
                    Either2::First(()) | Either2::Second(()) => {}
                }
            }
        });
    }

    async fn heartbeat(&self) -> Next {
        let request = {
            let life = self.life.borrow();
            life.heartbeat(self.applied_offset(), self.dirs().offline_ids())
        };
        let answer = self.ask_controller(&request).await;
        let (next, before, after) = {
            let mut life = self.life.borrow_mut();
            let before = life.state();
            let next = life.answered(answer.as_ref().map_err(|error| *error));
            (next, before, life.state())
        };
        if before != after {
            tracing::info!(from = ?before, to = ?after, "broker");
        }
        self.life_moved.notify_all();
        next
    }

    /// The logs are open: the controller may unfence the broker. Returns when it has.
    pub async fn unfenced(&self) {
        self.life.borrow_mut().ready();
        self.heartbeat_due.notify_one();
        while !self.life.borrow().is_unfenced() {
            self.life_moved.wait().await;
        }
    }

    /// Has the leaderships moved to others; waits for the controller's word at most `patience`.
    pub async fn leave(&self, patience: Duration) {
        if self.broker_epoch() < 0 {
            return;
        }
        self.life.borrow_mut().shut_down();
        self.heartbeat_due.notify_one();
        let ended = async {
            while self.life.borrow().state() < crate::cluster::life::State::ShuttingDown {
                self.life_moved.wait().await;
            }
        };
        if rt::timeout(patience, ended).await.is_err() {
            tracing::warn!("the controller has not let this broker go, it goes all the same");
        }
    }

    /// Tells the controller in which directories replicas lie, until it has taken it.
    pub async fn assign_directories(self: &Rc<Self>, wanted: Vec<(PartitionId, Uuid)>) {
        if wanted.is_empty() || self.assign_once(&wanted).await {
            return;
        }
        let control = Rc::downgrade(self);
        rt::spawn(async move {
            loop {
                rt::sleep(ASSIGN_PAUSE).await;
                let Some(control) = control.upgrade() else {
                    return;
                };
                if control.assign_once(&wanted).await {
                    return;
                }
            }
        });
    }

    /// The same once; whether it was taken.
    pub(super) async fn assign_once(&self, wanted: &[(PartitionId, Uuid)]) -> bool {
        let request = AssignReplicasToDirsRequest {
            broker_id: self.node.node.0,
            broker_epoch: self.broker_epoch(),
            directories: by_directory(wanted),
            ..Default::default()
        };
        let answer = self.ask_controller(&request).await;
        let error = match answer {
            Ok(answer) => ErrorCode(answer.error_code),
            Err(error) => error,
        };
        if error != ErrorCode::NONE {
            tracing::warn!(%error, "directories of replicas are not registered yet");
        }
        error == ErrorCode::NONE
    }
}

fn by_directory(wanted: &[(PartitionId, Uuid)]) -> Vec<DirectoryData> {
    let mut sorted: BTreeMap<Uuid, BTreeMap<Uuid, Vec<PartitionData>>> = BTreeMap::new();
    for (id, dir) in wanted {
        let topics = sorted.entry(*dir).or_default();
        topics.entry(id.topic).or_default().push(PartitionData {
            partition_index: id.index,
            ..Default::default()
        });
    }
    let topic = |(topic_id, partitions)| TopicData {
        topic_id,
        partitions,
        ..Default::default()
    };
    let directory = |(id, topics): (Uuid, BTreeMap<Uuid, Vec<PartitionData>>)| DirectoryData {
        id,
        topics: topics.into_iter().map(topic).collect(),
        ..Default::default()
    };
    sorted.into_iter().map(directory).collect()
}
