//! What goes wrong in a world, chosen by its seed: processes that die, power that goes, disks that
//! fail or are slow, networks that cut, clocks that jump. Everything it does it can take back.

use super::cluster::Cluster;
use super::hosts::Host;
use super::ledger::Ledger;
use crate::rt::sim::Fault;
use std::collections::BTreeMap;
use std::time::Duration;

/// One kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    Kill,
    PowerLoss,
    Restart,
    /// One broker after the other, in good order.
    RollingRestart,
    KillActiveController,
    CutClient,
    CutOneWay,
    CutBrokers,
    /// One broker alone, cut off from everybody.
    Isolate,
    /// A follower that leaves the in-sync set and comes back, again and again.
    InSyncThrash,
    ResetConnections,
    SlowDisk,
    FailingDisk,
    /// There is hardly any space left, until somebody makes some.
    FullDisk,
    Clock,
    SlowNetwork,
    /// A client's process dies, or its host, and the same client comes again.
    ClientCrash,
}

/// Everything there is for worlds of one broker.
pub(super) const FOR_ONE: &[Trouble] = &[
    Trouble::Kill,
    Trouble::PowerLoss,
    Trouble::Restart,
    Trouble::CutClient,
    Trouble::CutOneWay,
    Trouble::ResetConnections,
    Trouble::SlowDisk,
    Trouble::FailingDisk,
    Trouble::Clock,
    Trouble::SlowNetwork,
    Trouble::ClientCrash,
];

/// Everything there is for worlds of several brokers.
pub(super) const FOR_SEVERAL: &[Trouble] = &[
    Trouble::Kill,
    Trouble::PowerLoss,
    Trouble::Restart,
    Trouble::RollingRestart,
    Trouble::KillActiveController,
    Trouble::CutClient,
    Trouble::CutOneWay,
    Trouble::CutBrokers,
    Trouble::CutBrokers,
    Trouble::Isolate,
    Trouble::InSyncThrash,
    Trouble::FailingDisk,
    Trouble::ResetConnections,
    Trouble::SlowDisk,
    Trouble::Clock,
    Trouble::SlowNetwork,
    Trouble::ClientCrash,
];

/// What coordinators of one broker go through: a log's tail that is cut because it does not fit, too.
pub(super) const FOR_COORDINATORS: &[Trouble] = &[
    Trouble::Kill,
    Trouble::PowerLoss,
    Trouble::Restart,
    Trouble::CutClient,
    Trouble::ResetConnections,
    Trouble::SlowDisk,
    Trouble::FullDisk,
    Trouble::FullDisk,
    Trouble::ClientCrash,
];

/// What is left on a disk that is nearly full.
const SPACE_LEFT_MAX: u64 = 64 << 10;
/// How much faster a clock runs after each trouble with it, and how wrong it tells the time.
const DRIFT_STEP_PPM: u64 = 3000;
const SKEW_MS_MAX: u64 = 10_000;

/// How long a broker on its orderly way down may take.
const STOP_LIMIT: Duration = Duration::from_secs(90);

/// See the module's words.
pub(super) struct Nemesis<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) ledger: &'a Ledger,
    pub(super) clients: Vec<Host>,
    /// How long a follower may be behind: `replica.lag.time.max.ms`.
    pub(super) lag: Duration,
    pub(super) done: BTreeMap<Trouble, u64>,
    /// By broker. Drift only grows: a monotonic clock does not go back.
    pub(super) drift: BTreeMap<usize, i64>,
}

impl Nemesis<'_> {
    fn below(&self, bound: u64) -> u64 {
        self.cluster.world.random_below(bound)
    }

    fn broker(&self) -> usize {
        self.below(self.cluster.brokers.len() as u64) as usize
    }

    /// Any node, broker or client, but `not`.
    fn other(&self, not: usize, nodes: usize) -> usize {
        let at = self.below(nodes as u64 - 1) as usize;
        if at >= not { at + 1 } else { at }
    }

    /// A majority goes on running.
    fn may_stop(&self, at: usize) -> bool {
        let all = self.cluster.brokers.len();
        let running = self.cluster.running();
        self.cluster.brokers[at].is_running() && (all == 1 || running - 1 > all / 2)
    }

    /// What is on one disk only, and there not synced, is promised by nobody.
    fn may_lose_power(&self, at: usize) -> bool {
        let cluster = self.cluster;
        let all_ready = || (0..cluster.brokers.len()).all(|at| cluster.probes.is_ready(at));
        let alone = cluster.brokers.len() == 1;
        self.may_stop(at) && (alone || all_ready() && cluster.is_in_sync())
    }

    /// Brings one trouble of `kinds` into a world of `nodes` nodes.
    pub(super) fn strike(&mut self, kinds: &[Trouble], nodes: usize) {
        // Whoever is about to die is looked at once more.
        self.cluster.probes.look();
        let kind = kinds[self.below(kinds.len() as u64) as usize];
        *self.done.entry(kind).or_default() += 1;
        let at = self.broker();
        let cluster = self.cluster;
        let broker = &cluster.brokers[at];
        let network = cluster.world.network();
        match kind {
            Trouble::Kill if self.may_stop(at) => broker.kill(),
            Trouble::PowerLoss if self.may_lose_power(at) => {
                broker.lose_power();
                self.ledger.loss();
            }
            Trouble::Restart if self.may_stop(at) => self.stop(at),
            Trouble::RollingRestart => {
                for at in 0..cluster.brokers.len() {
                    if self.may_stop(at) {
                        self.stop(at);
                        cluster.start(at);
                        let ready = || cluster.probes.is_ready(at);
                        cluster.world.run_until(Duration::from_secs(5), ready);
                    }
                }
            }
            Trouble::KillActiveController => {
                let is_active = |at: &usize| {
                    let control = cluster.probes.control(*at);
                    let controller = control.and_then(|control| control.controller.clone());
                    controller.is_some_and(|controller| controller.is_active())
                };
                let active = (0..cluster.brokers.len()).find(is_active);
                if let Some(active) = active.filter(|at| self.may_stop(*at)) {
                    cluster.brokers[active].kill();
                }
            }
            Trouble::Kill | Trouble::PowerLoss | Trouble::Restart => {}
            Trouble::CutClient => network.cut(at, self.other(at, nodes)),
            Trouble::CutOneWay => {
                let other = self.other(at, nodes);
                match self.below(2) {
                    0 => network.cut_one_way(at, other),
                    _ => network.cut_one_way(other, at),
                }
            }
            Trouble::CutBrokers => {
                if cluster.brokers.len() > 1 {
                    network.cut(at, self.other(at, cluster.brokers.len()));
                }
            }
            Trouble::Isolate => (0..nodes)
                .filter(|other| *other != at)
                .for_each(|other| network.cut(at, other)),
            Trouble::InSyncThrash => self.thrash(at),
            Trouble::ClientCrash => {
                let client = self.below(self.clients.len() as u64) as usize;
                self.clients[client].crash(self.below(2) == 0);
            }
            Trouble::ResetConnections => {
                network.reset_connections(at, self.other(at, nodes));
            }
            Trouble::SlowDisk => broker.host.disk().set_slowness(2 + self.below(60)),
            Trouble::FailingDisk => {
                let disk = broker.host.disk();
                match self.below(3) {
                    0 => disk.fail_syncs(Fault::OneIn(20)),
                    1 => disk.fail_writes(Fault::OneIn(200)),
                    _ => disk.set_short_writes(3),
                }
                // What a failed sync should have covered may be lost with the power only, and the
                // next power loss counts by itself. An unsynced row may lose the rest already.
                self.ledger.loss();
            }
            Trouble::FullDisk => {
                let disk = broker.host.disk();
                disk.set_capacity(Some(disk.used() + self.below(SPACE_LEFT_MAX)));
            }
            Trouble::Clock => {
                let more = self.below(DRIFT_STEP_PPM) as i64;
                let skew = self.below(2 * SKEW_MS_MAX) as i64 - SKEW_MS_MAX as i64;
                let drift = self.drift.entry(at).or_insert(100);
                *drift += more;
                broker.host.set_clock(*drift, skew);
            }
            Trouble::SlowNetwork => {
                let ms = self.below(30);
                network.set_delay(Duration::from_millis(ms / 2), Duration::from_millis(ms + 1));
            }
        }
    }

    /// Keeps a broker from hearing of another, as leader or as follower, longer than a follower may
    /// be silent, and lets it go on for a moment.
    fn thrash(&self, at: usize) {
        let world = &self.cluster.world;
        let network = world.network();
        let other = self.other(at, self.cluster.brokers.len());
        for _ in 0..2 + self.below(2) {
            match self.below(2) {
                0 => network.cut_one_way(other, at),
                _ => network.cut(at, other),
            }
            world.run_for(self.lag + self.lag / 2);
            network.heal(at, other);
            world.run_for(Duration::from_millis(self.below(1500)));
        }
    }

    /// Has a broker end in good order.
    fn stop(&self, at: usize) {
        let broker = &self.cluster.brokers[at];
        broker.terminate();
        let world = &self.cluster.world;
        world.run_until(STOP_LIMIT, || !broker.is_running());
        if broker.is_running() {
            broker.kill();
        }
        broker.down.set(true);
    }

    /// Takes some of the troubles back: brokers that are down start again.
    pub(super) fn relent(&self) {
        for (at, broker) in self.cluster.brokers.iter().enumerate() {
            if !broker.is_running() && self.below(3) > 0 {
                broker.host.disk().heal();
                self.cluster.start(at);
            }
        }
        for client in &self.clients {
            if client.crashed.get() && self.below(3) > 0 {
                client.come_back();
            }
        }
        if self.below(2) == 0 {
            self.cluster.world.network().heal_all();
        }
        if self.below(3) == 0 {
            for broker in &self.cluster.brokers {
                broker.host.disk().heal();
            }
        }
    }

    /// Takes everything back. A broker whose disk failed starts anew, as a person would do it.
    pub(super) fn heal(&self) {
        let network = self.cluster.world.network();
        network.heal_all();
        network.set_delay(Duration::from_micros(50), Duration::from_micros(500));
        self.clients.iter().for_each(Host::come_back);
        for (at, broker) in self.cluster.brokers.iter().enumerate() {
            broker.host.disk().heal();
            let control = self.cluster.probes.control(at);
            let has_failed = control.is_some_and(|control| {
                control.must_stop().is_some() || control.dirs().states().any(|(_, failed)| failed)
            });
            if has_failed && broker.is_running() {
                broker.kill();
            }
            if !broker.is_running() {
                self.cluster.start(at);
            }
        }
    }
}
