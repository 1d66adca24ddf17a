//! The controller of a cluster of one node: decides, writes, applies, publishes, one change at a
//! time. Runs on the control executor. What it decides is in the pure files beside it; what comes
//! between writing and applying on several nodes (consensus) has its place here.

use super::features;
use super::image::Image;
use super::leadership;
use super::metadata_log::{MetadataLog, MetadataLogError, bootstrap};
use super::periodic;
use super::record::MetadataRecord;
use super::sessions::Sessions;
use super::topic_admin::Dice;
use crate::config::BrokerConfig;
use crate::rt::sync::Semaphore;
use crate::rt::{self, Instant};
use crate::types::{NodeId, Offset, Uuid};
use crate::wire::Str;
use crate::wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;
use crate::wire::messages::register_broker_record::{
    BrokerEndpoint, BrokerFeature, RegisterBrokerRecord,
};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Producer ids handed out at once (AllocateProducerIds).
pub const PRODUCER_ID_BLOCK: i64 = 1000;

/// Called with each new image, in order.
type Publish = Box<dyn Fn(Arc<Image>)>;
/// Called when the metadata log has failed: nothing is decided any more.
type OnFailure = Box<dyn Fn(&MetadataLogError)>;

/// See the module's words.
pub struct Controller {
    pub config: Arc<BrokerConfig>,
    image: RefCell<Arc<Image>>,
    log: RefCell<Option<MetadataLog>>,
    /// One change at a time.
    turn: Semaphore,
    publish: RefCell<Option<Publish>>,
    on_failure: RefCell<Option<OnFailure>>,
    broker_epoch: Cell<i64>,
    pub(super) sessions: RefCell<Sessions>,
    cluster_id: RefCell<String>,
    /// When the log was written last.
    written: Cell<Instant>,
}

/// What a broker registers.
pub struct Registration {
    pub node: NodeId,
    pub incarnation: Uuid,
    /// Listener, host, port, security protocol.
    pub endpoints: Vec<(String, String, u16, i16)>,
    pub rack: Option<String>,
    pub log_dirs: Vec<Uuid>,
}

impl Controller {
    /// Opens the metadata log under `dir`; a new one begins with the features of a new cluster.
    /// What this node led before it leads again, in new leader epochs: images handed out from here
    /// on have them already.
    pub async fn open(
        dir: &Path,
        config: Arc<BrokerConfig>,
    ) -> Result<Rc<Controller>, MetadataLogError> {
        let (log, image) = MetadataLog::open(dir, config.node_id).await?;
        let is_new = image.offset() < 0;
        let session_ms = periodic::millis(&config, "broker.session.timeout.ms");
        let controller = Rc::new(Controller {
            config,
            sessions: RefCell::new(Sessions::new(session_ms)),
            cluster_id: RefCell::new(String::new()),
            written: Cell::new(rt::now()),
            image: RefCell::new(Arc::new(image)),
            log: RefCell::new(Some(log)),
            turn: Semaphore::new(1),
            publish: RefCell::new(None),
            on_failure: RefCell::new(None),
            broker_epoch: Cell::new(-1),
        });
        if is_new {
            let records = bootstrap(dir, features::initial()).await?;
            controller.change(|_| (records, ())).await?;
        }
        let node = controller.config.node_id;
        // Before features are lowered: without theirs the eligible replicas are forgotten.
        let lowered = features::lowered(&controller.image())?;
        controller
            .change(|image| (leadership::resumed(image, node), ()))
            .await?;
        controller.change(|_| (lowered, ())).await?;
        Ok(controller)
    }

    /// Registers who is given each new image.
    pub fn on_publish(&self, publish: impl Fn(Arc<Image>) + 'static) {
        *self.publish.borrow_mut() = Some(Box::new(publish));
    }

    /// Registers who is told that the metadata log cannot be written any more.
    pub fn on_failure(&self, tell: impl Fn(&MetadataLogError) + 'static) {
        *self.on_failure.borrow_mut() = Some(Box::new(tell));
    }

    /// Whether this controller decides for the cluster.
    pub fn is_active(&self) -> bool {
        self.log
            .borrow()
            .as_ref()
            .is_none_or(|log| !log.has_failed())
    }

    /// Says which cluster this is; brokers of another one are not registered.
    pub fn identify(&self, cluster_id: &str) {
        cluster_id.clone_into(&mut self.cluster_id.borrow_mut());
    }

    pub(super) fn cluster_id(&self) -> String {
        self.cluster_id.borrow().clone()
    }

    /// When the log was written last.
    pub(super) fn written(&self) -> Instant {
        self.written.get()
    }

    pub fn image(&self) -> Arc<Image> {
        self.image.borrow().clone()
    }

    /// The epoch of this node's registration; -1 before.
    pub fn broker_epoch(&self) -> i64 {
        self.broker_epoch.get()
    }

    /// Decides a change on the current image, writes its records, applies and publishes them;
    /// gives the answer that was decided with them once they are on disk.
    pub async fn change<R>(
        &self,
        decide: impl FnOnce(&Image) -> (Vec<MetadataRecord>, R),
    ) -> Result<R, MetadataLogError> {
        self.change_at(|image, _| decide(image)).await
    }

    /// As [`change`](Self::change); `decide` is also told the offset at which its records will
    /// stand.
    pub async fn change_at<R>(
        &self,
        decide: impl FnOnce(&Image, Offset) -> (Vec<MetadataRecord>, R),
    ) -> Result<R, MetadataLogError> {
        let _turn = self.turn.acquire(1).await;
        let image = self.image();
        let next_offset = self
            .log
            .borrow()
            .as_ref()
            .ok_or(MetadataLogError::Failed)?
            .next_offset();
        let (records, answer) = decide(&image, next_offset);
        if !records.is_empty() {
            self.write(&image, records).await?;
        }
        Ok(answer)
    }

    async fn write(
        &self,
        image: &Image,
        records: Vec<MetadataRecord>,
    ) -> Result<(), MetadataLogError> {
        let records = MetadataLog::framed(records);
        let first = self
            .log
            .borrow()
            .as_ref()
            .ok_or(MetadataLogError::Failed)?
            .next_offset();
        // Applied to a copy first: what contradicts the image must not get into the log.
        let mut next = image.clone();
        for (at, record) in records.iter().enumerate() {
            next.apply(first.0 + at as i64, record)?;
        }
        // The turn makes this the only user; the log is put back whatever happens.
        let mut log = self
            .log
            .borrow_mut()
            .take()
            .ok_or(MetadataLogError::Failed)?;
        let written = log.append(&records, rt::wall_ms()).await;
        let failed = log.has_failed();
        *self.log.borrow_mut() = Some(log);
        if let Err(error) = written {
            if failed && let Some(tell) = &*self.on_failure.borrow() {
                tell(&error);
            }
            return Err(error);
        }
        self.written.set(rt::now());
        let next = Arc::new(next);
        *self.image.borrow_mut() = next.clone();
        if let Some(publish) = &*self.publish.borrow() {
            publish(next);
        }
        Ok(())
    }

    /// Registers this broker, unfenced: it is ready when it registers. Returns its epoch.
    pub async fn register(&self, registration: Registration) -> Result<i64, MetadataLogError> {
        let features = features::SUPPORTED.iter().map(|feature| BrokerFeature {
            name: Str::from_static(feature.name),
            min_supported_version: feature.min,
            max_supported_version: feature.max,
            ..Default::default()
        });
        let mut record = RegisterBrokerRecord {
            broker_id: registration.node.0,
            incarnation_id: registration.incarnation,
            end_points: registration
                .endpoints
                .iter()
                .map(|(name, host, port, protocol)| BrokerEndpoint {
                    name: Str::from(name),
                    host: Str::from(host),
                    port: *port,
                    security_protocol: *protocol,
                    ..Default::default()
                })
                .collect(),
            features: features.collect(),
            rack: registration.rack.as_deref().map(Str::from),
            fenced: false,
            log_dirs: registration.log_dirs,
            ..Default::default()
        };
        let epoch = self
            .change_at(|_, next_offset| {
                record.broker_epoch = next_offset.0;
                (vec![MetadataRecord::from(record)], next_offset.0)
            })
            .await?;
        self.broker_epoch.set(epoch);
        Ok(epoch)
    }

    /// Fences this broker at the end of a controlled shutdown.
    pub async fn fence(&self) -> Result<(), MetadataLogError> {
        let record = BrokerRegistrationChangeRecord {
            broker_id: self.config.node_id.0,
            broker_epoch: self.broker_epoch.get(),
            fenced: 1,
            in_controlled_shutdown: 1,
            ..Default::default()
        };
        self.change(|_| (vec![MetadataRecord::from(record)], ()))
            .await
    }
}

/// Random numbers for decisions, from this executor's source.
pub fn dice<R>(decide: impl FnOnce(Dice<'_>) -> R) -> R {
    let mut roll = rt::random_u64;
    decide(Dice(&mut roll))
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
