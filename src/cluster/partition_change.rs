//! One change of a partition: who is in sync, who is eligible, who leads afterwards, and whether a
//! reassignment has come to its end. Pure: the partition and what is wanted in, one record out.
//!
//! The rules are Kafka's (KIP-966 for eligible leader replicas): a clean leader is in the in-sync
//! set or, while that is empty, among the eligible ones; the last known leader comes back when
//! nobody else is left; any other replica leads only where unclean elections are allowed.

use super::topics::{NO_LEADER_CHANGE, PartitionRegistration};
use crate::types::{NodeId, Uuid};
use crate::wire::messages::partition_change_record::PartitionChangeRecord;

/// PartitionRecord.leader: nobody leads.
pub(super) const NO_LEADER: NodeId = NodeId(-1);
/// LeaderRecoveryState: the leader came from an election that may have lost records.
pub(super) const RECOVERING: i8 = 1;
pub(super) const RECOVERED: i8 = 0;

/// How a leader is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Election {
    /// The leader stays while it can.
    Online,
    /// The first replica leads if it can.
    Preferred,
    /// As online; and if no replica may lead, any that lives.
    Unclean,
}

/// What a change is decided by besides the partition itself.
pub(super) struct Rules<'a> {
    /// Whether a replica's broker takes part and its directory is online.
    pub may_lead: &'a dyn Fn(NodeId, Uuid) -> bool,
    /// The effective `min.insync.replicas`.
    pub min_in_sync: usize,
    /// Eligible leader replicas are kept (feature `eligible.leader.replicas.version`).
    pub keeps_eligible: bool,
}

/// The partition as it shall be; begins as it is.
#[derive(Clone, Debug)]
pub(super) struct PartitionChange<'a> {
    before: &'a PartitionRegistration,
    pub isr: Vec<NodeId>,
    pub replicas: Vec<NodeId>,
    pub removing: Vec<NodeId>,
    pub adding: Vec<NodeId>,
    pub recovery_state: i8,
    pub election: Election,
    /// A replica that has come back from a stop in which it may have lost records.
    pub unclean_shutdown: Option<NodeId>,
    /// Directories of replicas that get one or another.
    pub directories: Vec<(NodeId, Uuid)>,
}

impl<'a> PartitionChange<'a> {
    pub fn of(before: &'a PartitionRegistration) -> PartitionChange<'a> {
        PartitionChange {
            before,
            isr: before.isr.clone(),
            replicas: before.replicas.clone(),
            removing: before.removing.clone(),
            adding: before.adding.clone(),
            recovery_state: before.leader_recovery_state,
            election: Election::Online,
            unclean_shutdown: None,
            directories: Vec::new(),
        }
    }

    /// The record that brings the partition there; `None` if it is there already.
    pub fn record(
        mut self,
        topic_id: Uuid,
        partition_id: i32,
        rules: &Rules<'_>,
    ) -> Option<PartitionChangeRecord> {
        let before = self.before;
        self.complete_reassignment();
        let mut eligible = self.eligible(rules);
        let mut forgets_eligible = !rules.keeps_eligible;
        let elected = self.elect(&eligible, rules);
        let leader = elected.node;
        let joins = leader != NO_LEADER && !self.isr.contains(&leader);
        if elected.is_unclean {
            self.isr = vec![leader];
            self.recovery_state = RECOVERING;
            forgets_eligible = true;
        } else if joins {
            self.isr = vec![leader];
            eligible.retain(|id| *id != leader);
        }
        if forgets_eligible {
            eligible.clear();
        }
        // Whoever holds a replica that goes must not be taken for a leader of this epoch.
        let loses_replica = before.replicas.iter().any(|id| !self.replicas.contains(id));
        let mut record = PartitionChangeRecord {
            topic_id,
            partition_id,
            ..Default::default()
        };
        if leader != before.leader || joins || loses_replica {
            record.leader = leader.0;
        }
        // Without eligible replicas the last in-sync ones are kept: they are all that is known of
        // who has the records.
        if self.isr != before.isr && (!self.isr.is_empty() || rules.keeps_eligible) {
            record.isr = Some(ids(&self.isr));
        }
        if eligible != before.elr {
            record.eligible_leader_replicas = Some(ids(&eligible));
        }
        if rules.keeps_eligible {
            record.last_known_elr = self.last_known(record.leader);
        } else if !before.last_known_elr.is_empty() {
            record.last_known_elr = Some(Vec::new());
        }
        let directories = self.directories_after();
        if directories != before.all_directories() {
            record.directories = Some(directories);
        }
        let set = |now: &[NodeId], then: &[NodeId]| (now != then).then(|| ids(now));
        record.replicas = set(&self.replicas, &before.replicas);
        record.removing_replicas = set(&self.removing, &before.removing);
        record.adding_replicas = set(&self.adding, &before.adding);
        if self.recovery_state != before.leader_recovery_state {
            record.leader_recovery_state = self.recovery_state;
        }
        let nothing = PartitionChangeRecord {
            topic_id,
            partition_id,
            ..Default::default()
        };
        (record != nothing).then_some(record)
    }

    /// A reassignment ends when every new replica is in sync; if fewer replicas are wanted, when
    /// all that stay are, so that the in-sync set does not shrink with it.
    fn complete_reassignment(&mut self) {
        if self.removing.is_empty() && self.adding.is_empty() {
            return;
        }
        let stays = |id: &&NodeId| !self.removing.contains(id);
        let isr: Vec<NodeId> = self.isr.iter().filter(stays).copied().collect();
        let replicas: Vec<NodeId> = self.replicas.iter().filter(stays).copied().collect();
        if replicas.is_empty() || (isr.is_empty() && !self.removing.is_empty()) {
            return;
        }
        // One that is added and removed was added by a reassignment that another one replaced.
        let mut added = self.adding.iter().filter(stays);
        let shrinks = added.clone().count() < self.removing.len();
        if !added.all(|id| isr.contains(id))
            || (shrinks && !replicas.iter().all(|id| isr.contains(id)))
        {
            return;
        }
        (self.isr, self.replicas) = (isr, replicas);
        self.removing.clear();
        self.adding.clear();
    }

    /// The eligible leader replicas: those that left an in-sync set smaller than the least, for
    /// they hold everything that was acknowledged.
    fn eligible(&self, rules: &Rules<'_>) -> Vec<NodeId> {
        if !rules.keeps_eligible || self.isr.len() >= rules.min_in_sync {
            return Vec::new();
        }
        let before = self.before;
        let mut eligible: Vec<NodeId> = Vec::new();
        for id in before.elr.iter().chain(&before.isr) {
            if !self.isr.contains(id)
                && self.replicas.contains(id)
                && self.unclean_shutdown != Some(*id)
                && !eligible.contains(id)
            {
                eligible.push(*id);
            }
        }
        eligible
    }

    fn elect(&self, eligible: &[NodeId], rules: &Rules<'_>) -> Elected {
        let clean = |node| Elected {
            node,
            is_unclean: false,
        };
        let unclean = |node| Elected {
            node,
            is_unclean: true,
        };
        let lives = |id: NodeId| (rules.may_lead)(id, self.directory_after(id));
        let is_valid = |id: NodeId| {
            (self.isr.contains(&id) || (self.isr.is_empty() && eligible.contains(&id))) && lives(id)
        };
        let first = self.replicas.first().copied();
        let candidates = first
            .filter(|_| self.election == Election::Preferred)
            .into_iter()
            .chain([self.before.leader])
            .chain(self.replicas.iter().copied());
        if let Some(node) = candidates.into_iter().find(|id| is_valid(*id)) {
            return clean(node);
        }
        let nobody = self.isr.is_empty() && eligible.is_empty();
        if let [last] = self.before.last_known_elr[..]
            && rules.keeps_eligible
            && nobody
            && self.replicas.contains(&last)
            && lives(last)
        {
            return unclean(last);
        }
        if self.election == Election::Unclean
            && let Some(node) = self.replicas.iter().copied().find(|id| lives(*id))
        {
            return unclean(node);
        }
        clean(NO_LEADER)
    }

    /// The last known leader is remembered while there is none.
    fn last_known(&self, leader: i32) -> Option<Vec<i32>> {
        let before = self.before;
        let had_leader = before.leader != NO_LEADER;
        if leader == NO_LEADER.0 && before.last_known_elr.is_empty() && had_leader {
            return Some(vec![before.leader.0]);
        }
        (leader >= 0 && !before.last_known_elr.is_empty()).then(Vec::new)
    }

    fn directory_after(&self, node: NodeId) -> Uuid {
        let set = self.directories.iter().find(|(id, _)| *id == node);
        set.map_or_else(|| self.before.directory(node), |(_, directory)| *directory)
    }

    fn directories_after(&self) -> Vec<Uuid> {
        let of = |id: &NodeId| self.directory_after(*id);
        self.replicas.iter().map(of).collect()
    }
}

struct Elected {
    node: NodeId,
    is_unclean: bool,
}

fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.0).collect()
}

impl PartitionRegistration {
    /// The directory of each replica.
    fn all_directories(&self) -> Vec<Uuid> {
        self.replicas.iter().map(|id| self.directory(*id)).collect()
    }

    pub(super) fn has_leader(&self) -> bool {
        self.leader != NO_LEADER
    }

    pub(super) fn has_preferred_leader(&self) -> bool {
        self.replicas.first() == Some(&self.leader)
    }

    pub fn is_reassigning(&self) -> bool {
        !self.removing.is_empty() || !self.adding.is_empty()
    }

    /// The partition after a change of it.
    pub(super) fn after(&self, record: &PartitionChangeRecord) -> PartitionRegistration {
        let mut after = self.clone();
        after.change(record);
        after
    }
}

// NO_LEADER_CHANGE is the record's default.
const _: () = assert!(NO_LEADER_CHANGE == -2);

#[cfg(test)]
#[path = "partition_change_tests.rs"]
mod tests;
