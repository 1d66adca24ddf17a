//! Looks into the brokers of a world from inside, after steps: the watermark chain of every
//! replica, watermarks that never go back, one leader for each epoch, replicas that are the same
//! below their watermarks, waiting requests that do not pile up. Holds nothing alive.

use super::committed::Committed;
use crate::replica::partition::Partition;
use crate::rt::sim::World;
use crate::server::Seen;
use crate::shard::Shard;
use crate::shard::control::Control;
use crate::types::PartitionId;
use crate::wire::Str;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// The invariants are looked at after one step in so many: most steps touch no partition.
const EVERY: u64 = 8;
/// Replicas are read on their disks after so much time.
const READ_EVERY: Duration = Duration::from_millis(250);
/// Requests that may wait on a shard: several times what the clients of a world can have sent within
/// the longest time-out.
const WAITING_MAX: usize = 500;

/// One node's process.
#[derive(Default)]
struct Node {
    life: u64,
    ready: bool,
    control: Weak<Control>,
    shards: Vec<Weak<Shard>>,
}

/// A replica's marks at the last look.
#[derive(Clone, Copy)]
struct Marks {
    life: u64,
    epoch: i32,
    leads: bool,
    high_watermark: i64,
}

/// See the module's words.
#[derive(Default)]
pub(super) struct Probes {
    nodes: RefCell<BTreeMap<usize, Node>>,
    marks: RefCell<BTreeMap<(usize, PartitionId), Marks>>,
    leaders: RefCell<BTreeMap<(PartitionId, i32), usize>>,
    /// The highest high watermark that a replica ever had, by partition.
    ends: RefCell<BTreeMap<PartitionId, (Str, i64)>>,
    committed: RefCell<Committed>,
    read_at: Cell<Duration>,
    waiting_max: Cell<usize>,
    looks: Cell<u64>,
    violations: RefCell<Vec<String>>,
}

impl Probes {
    /// The probes of a world, looking from now on.
    pub(super) fn of(world: &World) -> Rc<Probes> {
        let probes = Rc::new(Probes::default());
        let looking = probes.clone();
        world.on_step(move |world| {
            if world.steps() % EVERY == 0 {
                looking.look();
                looking.read_on(world);
            }
        });
        probes
    }

    /// A node begins a new life; what it is to report there.
    pub(super) fn begin(self: &Rc<Self>, node: usize) -> impl Fn(Seen<'_>) + Clone + 'static {
        {
            let mut nodes = self.nodes.borrow_mut();
            let known = nodes.entry(node).or_default();
            *known = Node {
                life: known.life + 1,
                ..Node::default()
            };
        }
        let probes = self.clone();
        move |seen| {
            let mut nodes = probes.nodes.borrow_mut();
            let known = nodes.entry(node).or_default();
            match seen {
                Seen::Ready(_) => known.ready = true,
                Seen::Control(control) => known.control = Rc::downgrade(control),
                Seen::Shard(shard) => known.shards.push(Rc::downgrade(shard)),
            }
        }
    }

    pub(super) fn is_ready(&self, node: usize) -> bool {
        self.nodes
            .borrow()
            .get(&node)
            .is_some_and(|node| node.ready)
    }

    pub(super) fn control(&self, node: usize) -> Option<Rc<Control>> {
        self.nodes.borrow().get(&node)?.control.upgrade()
    }

    pub(super) fn shards(&self, node: usize) -> Vec<Rc<Shard>> {
        let nodes = self.nodes.borrow();
        let shards = nodes.get(&node).map(|node| &node.shards);
        shards
            .into_iter()
            .flatten()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// The high watermarks of a node's replicas at the last look, by topic and partition.
    pub(super) fn high_watermarks(&self, node: usize) -> BTreeMap<(String, i32), i64> {
        let shards = self.shards(node);
        let partitions = shards.iter().flat_map(|shard| shard.partitions());
        partitions
            .map(|partition| {
                let key = (partition.topic.to_string(), partition.id.index);
                (key, partition.high_watermark().0)
            })
            .collect()
    }

    /// Whether an offset of a partition is below a high watermark; now, or some time ago.
    pub(super) fn is_committed(&self, topic: &str, partition: i32, offset: i64) -> bool {
        if offset < self.committed_end(topic, partition) {
            return true;
        }
        // Time may have jumped since the last look.
        self.look();
        offset < self.committed_end(topic, partition)
    }

    fn committed_end(&self, topic: &str, partition: i32) -> i64 {
        let ends = self.ends.borrow();
        let of = |(id, (name, end)): (&PartitionId, &(Str, i64))| {
            (id.index == partition && name.as_str() == topic).then_some(*end)
        };
        ends.iter().filter_map(of).max().unwrap_or(0)
    }

    /// Batches of replicas that were held against another's, and the most requests that waited on a
    /// shard.
    pub(super) fn effort(&self) -> (u64, usize) {
        (self.committed.borrow().compared(), self.waiting_max.get())
    }

    /// Requests that wait on a node, and the bytes of all that are not answered.
    pub(super) fn unanswered(&self, node: usize) -> (usize, usize, u64) {
        let shards = self.shards(node);
        shards.iter().fold((0, 0, 0), |sum, shard| {
            let (produces, fetches) = shard.waits();
            (
                sum.0 + produces,
                sum.1 + fetches,
                sum.2 + shard.budget().used(),
            )
        })
    }

    pub(super) fn looks(&self) -> u64 {
        self.looks.get()
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.violations.borrow().clone()
    }

    fn violated(&self, what: String) {
        let mut violations = self.violations.borrow_mut();
        // One that stays is told at every look.
        if violations.len() < 10 && !violations.contains(&what) {
            violations.push(what);
        }
    }

    pub(super) fn look(&self) {
        self.looks.set(self.looks.get() + 1);
        let nodes: Vec<(usize, u64)> = {
            let nodes = self.nodes.borrow();
            nodes.iter().map(|(id, node)| (*id, node.life)).collect()
        };
        for (node, life) in nodes {
            for shard in self.shards(node) {
                let (produces, fetches) = shard.waits();
                let waiting = produces.max(fetches);
                self.waiting_max.set(self.waiting_max.get().max(waiting));
                if waiting > WAITING_MAX {
                    self.violated(format!("node {node}: {waiting} requests wait on a shard"));
                }
                for partition in shard.partitions() {
                    self.look_at(node, life, &partition);
                }
            }
        }
    }

    /// Reads the replicas of several nodes on.
    fn read_on(&self, world: &World) {
        if world.elapsed() < self.read_at.get() {
            return;
        }
        self.read_at.set(world.elapsed() + READ_EVERY);
        let nodes: Vec<usize> = self.nodes.borrow().keys().copied().collect();
        if nodes.len() < 2 {
            return;
        }
        for node in nodes {
            let disk = world.node(node).disk();
            for shard in self.shards(node) {
                for partition in shard.partitions() {
                    let mut committed = self.committed.borrow_mut();
                    if let Some(what) = committed.read_on(node, &disk, &partition) {
                        let (topic, index) = (&partition.topic, partition.id.index);
                        self.violated(format!("node {node}, {topic}-{index}: {what}"));
                    }
                }
            }
        }
    }

    fn look_at(&self, node: usize, life: u64, partition: &Partition) {
        let bounds = partition.bounds();
        let name = || format!("node {node}, {}-{}", partition.topic, partition.id.index);
        let chain = bounds.log_start <= bounds.last_stable
            && bounds.last_stable <= bounds.high_watermark
            && bounds.high_watermark <= bounds.log_end;
        // A log that starts over is cut first and moved after.
        if !chain {
            self.violated(format!("{}: {bounds:?}", name()));
        }
        let epoch = partition.leader_epoch().0;
        let marks = Marks {
            life,
            epoch,
            leads: partition.is_leader(),
            high_watermark: bounds.high_watermark.0,
        };
        let before = self.marks.borrow_mut().insert((node, partition.id), marks);
        if let Some(before) = before
            && before.life == life
            && before.epoch == epoch
            && before.leads
            && marks.leads
            && before.high_watermark > marks.high_watermark
        {
            self.violated(format!(
                "{}: the high watermark went back from {} to {} in epoch {epoch}",
                name(),
                before.high_watermark,
                marks.high_watermark
            ));
        }
        if before.is_some_and(|before| before.life == life && before.epoch > epoch) {
            self.violated(format!("{}: the leader epoch went back to {epoch}", name()));
        }
        {
            let mut ends = self.ends.borrow_mut();
            let begin = || (partition.topic.clone(), 0);
            let end = &mut ends.entry(partition.id).or_insert_with(begin).1;
            *end = marks.high_watermark.max(*end);
        }
        if !marks.leads {
            return;
        }
        let mut leaders = self.leaders.borrow_mut();
        let leader = *leaders.entry((partition.id, epoch)).or_insert(node);
        if leader != node {
            self.violated(format!("{}: node {leader} leads epoch {epoch} too", name()));
        }
    }
}
