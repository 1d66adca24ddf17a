//! Gives a shard's replicas the roles that the metadata image says: lead, follow, or neither.
//! Runs on the shard, after the image is in place. Who leads is decided by the controller.

use super::Shard;
use super::apply::Wanted;
use crate::cluster::{Image, OFFSETS_TOPIC, TRANSACTIONS_TOPIC};
use crate::replica::leader::{Registered, Term};
use crate::replica::mutation::{self, Mutation};
use crate::replica::partition::Partition;
use crate::types::{NodeId, Offset};
use std::rc::Rc;

/// What an image says of brokers, as leaders ask it.
pub(super) fn registered(image: &Image) -> impl Fn(NodeId) -> Option<Registered> + '_ {
    |id| {
        image.broker(id).map(|broker| Registered {
            epoch: broker.epoch.0,
            alive: !broker.fenced,
            eligible: !broker.fenced && !broker.in_controlled_shutdown,
        })
    }
}

impl Shard {
    /// Brings the roles of the wanted partitions to what `image` says.
    pub(super) async fn take_roles(
        self: &Rc<Self>,
        before: &Image,
        image: &Image,
        wanted: &[Wanted<'_>],
    ) {
        if !image.has_brokers_of(before) {
            for partition in self.partitions() {
                partition.set_registered(registered(image));
            }
        }
        for wanted in wanted {
            if let Some(partition) = self.partition(wanted.id) {
                self.take_role(image, wanted, &partition).await;
            }
        }
    }

    async fn take_role(
        self: &Rc<Self>,
        image: &Image,
        wanted: &Wanted<'_>,
        partition: &Rc<Partition>,
    ) {
        let registration = wanted.registration;
        let epoch = registration.leader_epoch;
        if registration.partition_epoch <= partition.partition_epoch()
            && epoch <= partition.leader_epoch()
            || epoch < partition.leader_epoch()
        {
            return;
        }
        if epoch == partition.leader_epoch() {
            let news = partition.on_metadata(
                &registration.replicas,
                &registration.isr,
                registration.partition_epoch,
                registered(image),
            );
            if news {
                self.progressed(partition);
            }
            return;
        }
        let mutated = mutation::is_on(Mutation::LeadUnasked);
        let leads = registration.leader == self.node.node;
        if leads || mutated && registration.isr.contains(&self.node.node) {
            let term = Term {
                epoch,
                partition_epoch: registration.partition_epoch,
                replicas: registration.replicas.clone(),
                in_sync: registration.isr.clone(),
                start: Offset::ZERO,
            };
            self.unfollow(partition, None);
            self.lead(image, partition, term).await;
        } else {
            let leader = (registration.leader.0 >= 0).then_some(registration.leader);
            let led = partition.follow(epoch, registration.partition_epoch, leader);
            if led {
                tracing::info!(topic = %partition.topic, partition = partition.id.index, epoch = epoch.0, leader = registration.leader.0, "leads no longer");
                self.stop_coordinating(partition);
            }
            self.unfollow(partition, leader);
            if let Some(leader) = leader
                && !partition.log.is_offline()
            {
                self.follow(partition, leader);
            }
        }
        // Whoever waits on the old role is answered.
        self.check_waiting(partition.id, true);
    }

    async fn lead(self: &Rc<Self>, image: &Image, partition: &Rc<Partition>, term: Term) {
        // A cut under way ends first.
        let _turn = partition.turn.acquire(1).await;
        if partition.is_gone() || partition.log.is_offline() {
            return;
        }
        let (epoch, others) = (term.epoch, term.replicas.len() > 1);
        let is_new = partition.lead(term, registered(image));
        partition.advance();
        if others {
            let bounds = partition.bounds();
            tracing::info!(
                topic = %partition.topic, partition = partition.id.index, epoch = epoch.0,
                high_watermark = bounds.high_watermark.0, log_end = bounds.log_end.0, "leads"
            );
        }
        if !is_new {
            return;
        }
        match &*partition.topic {
            OFFSETS_TOPIC => self.groups.take(self, partition.clone()),
            TRANSACTIONS_TOPIC => self.transactions.take(self, partition.clone()),
            _ => {}
        }
    }

    /// What is coordinated in a partition is coordinated by somebody else, or by nobody.
    pub(super) fn stop_coordinating(&self, partition: &Partition) {
        match &*partition.topic {
            OFFSETS_TOPIC => self.groups.release(partition.id),
            TRANSACTIONS_TOPIC => self.transactions.release(partition.id),
            _ => {}
        }
    }
}
