//! Retention of committed offsets and of groups that nobody uses: the sweep every
//! `offsets.retention.check.interval.ms`. Part of the shard state machine on the core of the
//! partition. It only writes tombstones; what they remove goes when they are in the log.

use super::appends::Change;
use super::effects::{Clock, Effects};
use super::group::{Group, GroupState};
use super::offsets::OffsetAndMetadata;
use super::shard_state::GroupCoordinatorShard;

/// From when a group's offsets age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgesFrom {
    /// This moment, for all of them: the group became empty. `None`: an old record did not say
    /// when, so each from its own commit.
    Emptied(Option<i64>),
    Commit,
    /// They do not age: members use them.
    Never,
}

impl GroupCoordinatorShard {
    /// Writes tombstones for offsets past their retention, and for empty groups that have no
    /// offset left: one step of a sweep, over the groups below `sweep_from`, which it lowers.
    pub(super) fn sweep_step(&mut self, clock: Clock, out: &mut Effects) {
        if self.refusal().is_some() {
            return;
        }
        let end = self.sweep_from.min(self.groups.len());
        let start = end.saturating_sub(self.limits.groups_per_sweep_step.max(1));
        self.sweep_from = start;
        let mut changes = Vec::new();
        // Downwards: a group that is removed is replaced by one that was looked at already.
        for index in (start..end).rev() {
            let Some((id, group)) = self.groups.get_index(index) else {
                continue;
            };
            let id = id.clone();
            let all_expired = self.expired_offsets_of(group, clock.wall_ms, &mut changes);
            // A member that was given its id and is about to come back keeps the group.
            let is_unused = group.is_in(GroupState::Empty)
                && group.pending_join.is_empty()
                && group.appends_in_flight == 0;
            if all_expired && is_unused && group.is_durable {
                changes.extend(self.begin_removing(&id, clock, out));
            }
        }
        self.write(changes, None, false, None, clock, out);
    }

    /// Adds tombstones for the group's expired offsets; true if nothing else is left of them.
    fn expired_offsets_of(&self, group: &Group, wall_ms: i64, changes: &mut Vec<Change>) -> bool {
        let is_quiet =
            !self.offsets.has_open_transaction(&group.id) && !self.offsets.has_in_flight(&group.id);
        let Some(offsets) = self.offsets.of_group(&group.id) else {
            return is_quiet;
        };
        let ages_from = group.offsets_age_from();
        let mut all_expired = true;
        for (topic, partitions) in offsets.topics() {
            let is_subscribed = group.is_subscribed_to(topic);
            for (partition, value) in partitions {
                let is_expired = !is_subscribed
                    && is_expired(
                        value,
                        ages_from,
                        wall_ms,
                        self.settings.offsets_retention_ms,
                    )
                    && !self.offsets.is_pending(&group.id, topic, *partition)
                    && !self.offsets.is_in_flight(&group.id, topic, *partition);
                if is_expired {
                    changes.push(Change::RemoveOffset {
                        group: group.id.clone(),
                        topic: topic.clone(),
                        partition: *partition,
                    });
                } else {
                    all_expired = false;
                }
            }
        }
        all_expired && is_quiet
    }
}

impl Group {
    fn offsets_age_from(&self) -> AgesFrom {
        if self.protocol_type.is_none() {
            // Only an offset store: every partition for itself.
            AgesFrom::Commit
        } else if self.is_in(GroupState::Empty) {
            AgesFrom::Emptied(self.state_since_ms)
        } else if self.is_in(GroupState::Stable)
            && self.uses_consumer_protocol()
            && self.subscribed_topics.is_some()
        {
            AgesFrom::Commit
        } else {
            AgesFrom::Never
        }
    }
}

fn is_expired(value: &OffsetAndMetadata, from: AgesFrom, wall_ms: i64, retention_ms: i64) -> bool {
    let base_ms = match from {
        AgesFrom::Never => return false,
        AgesFrom::Commit | AgesFrom::Emptied(None) => value.commit_ms,
        AgesFrom::Emptied(Some(since_ms)) => since_ms,
    };
    match value.expire_ms {
        // An explicit retention time of an old client counts instead.
        Some(expire_ms) => wall_ms >= expire_ms,
        None => wall_ms.saturating_sub(base_ms) >= retention_ms,
    }
}
