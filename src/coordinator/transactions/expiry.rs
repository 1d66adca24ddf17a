//! What happens to transactional ids by themselves: a producer's silence ends its transaction, and
//! ids that nobody uses go. Part of the partition's state machine.

use super::effects::Effects;
use super::partition_state::{Then, TransactionCoordinatorShard};
use crate::wire::Str;

impl TransactionCoordinatorShard {
    /// Aborts the transactions whose producers have been silent for too long
    /// (`transaction.abort.timed.out.transaction.cleanup.interval.ms` apart).
    pub fn abort_timed_out(&mut self, now_ms: i64) -> Effects {
        let mut out = Effects::default();
        if self.refusal().is_some() {
            return out;
        }
        let silent: Vec<Str> = self
            .ids
            .iter()
            .filter(|(_, entry)| entry.pending.is_none() && entry.now.has_timed_out(now_ms))
            .map(|(id, _)| id.clone())
            .take(self.limits.ids_per_sweep)
            .collect();
        for id in silent {
            self.fence(&id, now_ms, None, &mut out);
        }
        out
    }

    /// Removes the ids that nobody has used for `transactional.id.expiration.ms`
    /// (`transaction.remove.expired.transaction.cleanup.interval.ms` apart).
    pub fn remove_expired(&mut self, now_ms: i64) -> Effects {
        let mut out = Effects::default();
        if self.refusal().is_some() {
            return out;
        }
        let oldest = now_ms.saturating_sub(self.settings.id_expiration_ms);
        let unused: Vec<Str> = self
            .ids
            .iter()
            .filter(|(_, entry)| {
                let now = &entry.now;
                entry.pending.is_none() && now.state.is_idle() && now.last_update_ms <= oldest
            })
            .map(|(id, _)| id.clone())
            .take(self.limits.ids_per_sweep)
            .collect();
        for id in unused {
            self.store(&id, None, Then::Remove, None, &mut out);
        }
        out
    }
}
