//! The state of one shard and how the rooms above reach it. Never waits.

use super::apply::{Directories, Unserved};
use super::budget::Budget;
use super::connections::Connections;
use super::control::Control;
use super::fetcher::Fetchers;
use super::groups::Groups;
use super::in_sync::InSyncChanges;
use super::marker_sender::MarkerSender;
use super::mesh::{Mesh, Place};
use super::moves::Moves;
use super::peers::Peers;
use super::producer_ids::ProducerIds;
use super::quotas::Quotas;
use super::throttles::Throttles;
use super::transactions::Transactions;
use super::verification::Verifications;
use super::waiting::Waiting;
use crate::cluster::Image;
use crate::config::BrokerConfig;
use crate::log::manager::LogManager;
use crate::observe::metrics::ShardMetrics;
use crate::replica::partition::Partition;
use crate::replica::session::Sessions;
use crate::rt;
use crate::rt::sync::{Event, Semaphore};
use crate::types::{NodeId, PartitionId, Uuid};
use crate::wire::ErrorCode;
use ahash::AHashMap;
use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

/// What is the same for every shard of this broker.
pub struct NodeFacts {
    pub node: NodeId,
    pub cluster_id: String,
    pub config: Arc<BrokerConfig>,
}

/// The settings that requests ask for on their way.
#[derive(Clone, Copy, Debug)]
pub struct ShardSettings {
    /// `fetch.max.bytes`.
    pub fetch_max_bytes: u64,
    /// `highwater.request.log`.
    pub request_log: bool,
    /// `highwater.request.memory.bytes`.
    pub request_memory_bytes: u64,
    /// This shard's share of `max.incremental.fetch.session.cache.slots`.
    pub session_slots: usize,
}

/// One core's state.
pub struct Shard {
    place: Place,
    shards: usize,
    pub node: Arc<NodeFacts>,
    settings: ShardSettings,
    mesh: Rc<Mesh<Shard, Control>>,
    image: RefCell<Arc<Image>>,
    partitions: RefCell<AHashMap<PartitionId, Rc<Partition>>>,
    sessions: RefCell<Sessions>,
    pub(super) waiting: Waiting,
    pub groups: Groups,
    pub transactions: Transactions,
    pub(super) marker_sender: MarkerSender,
    pub logs: Rc<LogManager>,
    pub(super) producer_ids: ProducerIds,
    pub(super) peers: Peers,
    pub(super) dirs: Arc<Directories>,
    pub(super) unserved: Unserved,
    pub(super) in_sync: InSyncChanges,
    pub(super) fetchers: Fetchers,
    pub(super) throttles: Throttles,
    pub(super) moves: Moves,
    pub(super) quotas: Quotas,
    pub(super) verifications: Verifications,
    /// One image at a time.
    pub(super) apply_turn: Semaphore,
    /// Offset of the newest image that room was made for; older ones are not applied any more.
    pub(super) room_made_for: Cell<i64>,
    metrics: ShardMetrics,
    budget: Rc<Budget>,
    accepting: Flag,
    draining: Flag,
    ended: Flag,
    connections: Connections,
    watch_count: Cell<u64>,
}

impl Shard {
    pub fn new(
        place: Place,
        shards: usize,
        node: Arc<NodeFacts>,
        settings: ShardSettings,
        mesh: Rc<Mesh<Shard, Control>>,
        logs: Rc<LogManager>,
        dirs: Arc<Directories>,
        metrics: ShardMetrics,
    ) -> Rc<Shard> {
        let groups = Groups::new(&node.config);
        let transactions = Transactions::new(&node.config);
        let quotas = Quotas::new(&node.config);
        for (dir, cause) in &dirs.offline {
            logs.take_directory_offline(dir, cause);
        }
        crate::observe::hop::here(node.node.0, place);
        let now = rt::now();
        Rc::new(Shard {
            place,
            shards,
            node,
            settings,
            mesh,
            image: RefCell::new(Arc::new(Image::default())),
            partitions: RefCell::new(AHashMap::new()),
            sessions: RefCell::new(Sessions::new(settings.session_slots)),
            waiting: Waiting::new(now),
            groups,
            transactions,
            marker_sender: MarkerSender::default(),
            logs,
            producer_ids: ProducerIds::default(),
            peers: Peers::default(),
            dirs,
            unserved: Unserved::default(),
            in_sync: InSyncChanges::default(),
            fetchers: Fetchers::default(),
            throttles: Throttles::default(),
            moves: Moves::default(),
            quotas,
            verifications: Verifications::default(),
            apply_turn: Semaphore::new(1),
            room_made_for: Cell::new(i64::MIN),
            metrics,
            budget: Budget::new(settings.request_memory_bytes),
            accepting: Flag::new(),
            draining: Flag::new(),
            ended: Flag::new(),
            connections: Connections::new(),
            watch_count: Cell::new(0),
        })
    }

    pub fn place(&self) -> Place {
        self.place
    }

    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Where control sits in the mesh: behind the shards.
    pub fn control_place(&self) -> Place {
        self.shards
    }

    pub fn mesh(&self) -> &Rc<Mesh<Shard, Control>> {
        &self.mesh
    }

    pub fn settings(&self) -> &ShardSettings {
        &self.settings
    }

    pub fn metrics(&self) -> &ShardMetrics {
        &self.metrics
    }

    pub fn request_log_on(&self) -> bool {
        self.settings.request_log
    }

    /// The shard that owns a partition. The partitions of one topic go round the shards, so that
    /// a topic's load spreads evenly; where it starts depends on the topic.
    pub fn owner(&self, partition: PartitionId) -> Place {
        owner(partition, self.shards)
    }

    /// The metadata as this shard knows it.
    pub fn image(&self) -> Arc<Image> {
        self.image.borrow().clone()
    }

    /// The id of the topic of this name, if the metadata has one.
    pub fn topic_id(&self, name: &str) -> Option<Uuid> {
        self.image
            .borrow()
            .topic_by_name(name)
            .map(|known| known.id)
    }

    pub(super) fn set_image(&self, image: Arc<Image>) {
        *self.image.borrow_mut() = image;
    }

    /// The epoch of this broker's registration as this shard knows it; -1 before.
    pub fn broker_epoch(&self) -> i64 {
        let image = self.image.borrow();
        image
            .broker(self.node.node)
            .map_or(-1, |broker| broker.epoch.0)
    }

    /// A partition this shard owns.
    pub fn partition(&self, id: PartitionId) -> Option<Rc<Partition>> {
        self.partitions.borrow().get(&id).cloned()
    }

    /// All partitions this shard owns, in the order of their ids, so that what is done with all of
    /// them repeats in a replay.
    pub fn partitions(&self) -> Vec<Rc<Partition>> {
        let mut all: Vec<_> = self.partitions.borrow().values().cloned().collect();
        all.sort_unstable_by_key(|partition| partition.id);
        all
    }

    pub fn partition_count(&self) -> usize {
        self.partitions.borrow().len()
    }

    pub(super) fn add_partition(&self, partition: Rc<Partition>) {
        self.partitions.borrow_mut().insert(partition.id, partition);
    }

    pub(super) fn remove_partition(&self, id: PartitionId) -> Option<Rc<Partition>> {
        self.partitions.borrow_mut().remove(&id)
    }

    /// The error for a partition that has no replica here, or none that can be used.
    pub fn missing(&self, id: PartitionId) -> ErrorCode {
        if self.unserved.contains(id) {
            return ErrorCode::KAFKA_STORAGE_ERROR;
        }
        let image = self.image.borrow();
        match image.topic_by_id(id.topic) {
            Some(topic) if topic.has_partition(id.index) => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            _ => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        }
    }

    /// The fetch sessions of this shard's connections. Not to be held across an await.
    pub fn sessions(&self) -> RefMut<'_, Sessions> {
        self.sessions.borrow_mut()
    }

    /// A name for a waiting fetch, unique in this broker.
    pub fn next_watch(&self) -> super::read::WatchToken {
        self.watch_count.set(self.watch_count.get() + 1);
        (self.place, self.watch_count.get())
    }

    /// The connections of this shard.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The memory of this shard's requests.
    pub fn budget(&self) -> &Rc<Budget> {
        &self.budget
    }

    /// From here on connections are taken.
    pub fn start_accepting(&self) {
        self.accepting.raise();
    }

    pub async fn accepting(&self) {
        self.accepting.raised().await;
    }

    /// From here on no new connection is taken and idle ones are closed; requests under way are
    /// still answered.
    pub fn start_draining(&self) {
        self.draining.raise();
        self.connections.end_all();
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_raised()
    }

    /// Waits until [`Shard::start_draining`].
    pub async fn drained(&self) {
        self.draining.raised().await;
    }

    /// Lets the shard's executor end.
    pub fn end(&self) {
        self.ended.raise();
    }

    pub async fn ended(&self) {
        self.ended.raised().await;
    }
}

/// Something that happens once.
struct Flag {
    raised: Cell<bool>,
    event: Event,
}

impl Flag {
    fn new() -> Flag {
        Flag {
            raised: Cell::new(false),
            event: Event::new(),
        }
    }

    fn raise(&self) {
        self.raised.set(true);
        self.event.notify_all();
    }

    fn is_raised(&self) -> bool {
        self.raised.get()
    }

    async fn raised(&self) {
        while !self.raised.get() {
            self.event.wait().await;
        }
    }
}

fn owner(partition: PartitionId, shards: usize) -> Place {
    // The id is random: its low bytes are as good as a hash of it.
    let start = u64::from_le_bytes(
        partition.topic.0[8..16]
            .try_into()
            .expect("eight of sixteen bytes"),
    );
    (start.wrapping_add(partition.index as u64) % shards as u64) as Place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Uuid;

    #[test]
    fn a_topics_partitions_spread_evenly_over_the_shards() {
        let topic = Uuid::from_halves(0x1234, 0xfeed_beef_0000_0007);
        let mut counts = [0; 3];
        for index in 0..30 {
            counts[owner(PartitionId { topic, index }, 3)] += 1;
        }
        assert_eq!(counts, [10, 10, 10]);
    }
}
