//! What transactions ask of a producer's batches: what may be made and sent while one is open, and
//! that all of it is settled before its end.
//!
//! Pure; one executor. When a transaction ends the cycle decides; this lets its batches go, or
//! drops them.

use super::super::transaction::Ending;
use super::{Batch, Identity, Outgoing, Samples};

impl Outgoing {
    /// Whether the transaction, if there are any, has room for a record.
    pub(super) fn takes_records(&self, now: u64) -> bool {
        let cycle = self.cycle.as_ref();
        cycle.is_none_or(|cycle| cycle.takes_records(now))
    }

    /// Decides whether the transaction ends now, and lets go what waits for more of it. One that
    /// is broken drops what has not left. Returns what ends once all of it is settled.
    pub(in super::super) fn end_transaction(
        &mut self,
        now: u64,
        end: u64,
        samples: &Samples,
    ) -> Option<Ending> {
        let over = self.is_made(now, end);
        let cycle = self.cycle.as_mut()?;
        if cycle.decide(now, over) {
            for at in 0..self.partitions.len() {
                self.close(at);
            }
        }
        if self.cycle.as_ref()?.broken().is_some() {
            self.drop_unsent(now, samples);
        }
        let settled = self.is_settled();
        self.cycle.as_ref()?.ending().filter(|_| settled)
    }

    fn drop_unsent(&mut self, now: u64, samples: &Samples) {
        let mut left: Vec<Batch> = Vec::new();
        for partition in &mut self.partitions {
            left.extend(partition.open.take());
            left.extend(std::mem::take(&mut partition.closed));
            partition.is_ready = false;
            partition.came_back = false;
        }
        for broker in &mut self.brokers {
            broker.opened.clear();
            broker.ready.clear();
        }
        for batch in left {
            self.fail(batch, now, samples, "its transaction is aborted".to_owned());
        }
    }

    /// A transaction has ended and the next one has this identity. Under another than before the
    /// numbers begin anew.
    pub(in super::super) fn renew(&mut self, identity: Identity) {
        if self.identity != Some(identity) {
            self.identify(identity);
        }
    }

    /// Whether batches can get their numbers, and their partitions are where they must be known.
    pub(super) fn may_number(&self) -> bool {
        let cycle = self.cycle.as_ref();
        (!self.plan.idempotence || self.identity.is_some())
            && cycle.is_none_or(|cycle| cycle.may_send())
    }
}
