//! What happens to transactional ids by themselves: a producer's silence ends its transaction, and
//! ids that nobody uses go. Part of the partition's state machine. A look at all of them goes in
//! steps, between which the shard does other things.

use super::effects::Effects;
use super::partition_state::{Entry, Then, TransactionCoordinatorShard};
use crate::wire::Str;

impl TransactionCoordinatorShard {
    /// Aborts the transactions whose producers have been silent for too long, of those from the
    /// `from`th id on (`transaction.abort.timed.out.transaction.cleanup.interval.ms` apart). With
    /// the effects comes where to go on, if that is not the end.
    pub fn abort_timed_out(&mut self, from: usize, now_ms: i64) -> (Effects, Option<usize>) {
        let mut out = Effects::default();
        let (silent, next) = self.step(from, |entry| entry.now.has_timed_out(now_ms));
        for id in silent {
            self.fence(&id, now_ms, None, &mut out);
        }
        (out, next)
    }

    /// Removes the ids that nobody has used for `transactional.id.expiration.ms`, of those from the
    /// `from`th on (`transaction.remove.expired.transaction.cleanup.interval.ms` apart).
    pub fn remove_expired(&mut self, from: usize, now_ms: i64) -> (Effects, Option<usize>) {
        let mut out = Effects::default();
        let oldest = now_ms.saturating_sub(self.settings.id_expiration_ms);
        let (unused, next) = self.step(from, |entry| {
            entry.now.state.is_idle() && entry.now.last_update_ms <= oldest
        });
        for id in unused {
            self.store(&id, None, Then::Remove, None, &mut out);
        }
        (out, next)
    }

    /// The ids of one step of which `is_due` holds and nothing is under way. One that moves before
    /// `from` meanwhile, because another was removed, is met by the next look.
    fn step(&self, from: usize, is_due: impl Fn(&Entry) -> bool) -> (Vec<Str>, Option<usize>) {
        if self.refusal().is_some() {
            return (Vec::new(), None);
        }
        let end = from.saturating_add(self.limits.ids_per_step);
        let (from, to) = (from.min(self.ids.len()), end.min(self.ids.len()));
        let mut due = Vec::new();
        for (at, (id, entry)) in self.ids[from..to].iter().enumerate() {
            if due.len() == self.limits.due_per_step {
                return (due, Some(from + at));
            }
            if entry.pending.is_none() && is_due(entry) {
                due.push(id.clone());
            }
        }
        (due, (to < self.ids.len()).then_some(to))
    }
}
