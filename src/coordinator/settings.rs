//! Settings and limits of one group coordinator shard. Plain values, copied in at the start;
//! nothing here reads configuration or changes by itself.

/// What Kafka calls the group coordinator's configuration, in Kafka's units and with its defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// `group.min.session.timeout.ms`.
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`: how long the first join phase of an empty group waits
    /// for more members, extended by the same step while members keep arriving.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`.
    pub max_size: usize,
    /// `offset.metadata.max.bytes`, counted as Kafka counts it: UTF-16 code units.
    pub offset_metadata_max_size: usize,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_retention_check_interval_ms: i64,
    /// How long a new member's parked JoinGroup may wait before the member is dropped; such a
    /// member cannot send heartbeats yet because it does not know its id (5 minutes in Kafka).
    pub new_member_join_timeout_ms: i32,
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings {
            min_session_timeout_ms: 6_000,
            max_session_timeout_ms: 1_800_000,
            initial_rebalance_delay_ms: 3_000,
            max_size: i32::MAX as usize,
            offset_metadata_max_size: 4_096,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1_000,
            offsets_retention_check_interval_ms: 600_000,
            new_member_join_timeout_ms: 300_000,
        }
    }
}

/// Bounds that Kafka does not have. Each is far above honest use and exists so that a client
/// cannot grow a shard's memory without end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// Groups in one shard: 200,000 groups of about 500 bytes are 100 MB. Over it, a join is
    /// answered GROUP_MAX_SIZE_REACHED and a commit POLICY_VIOLATION.
    pub groups: usize,
    /// Ids handed out with MEMBER_ID_REQUIRED whose owner has not come back, per group. Over it,
    /// a join is answered GROUP_MAX_SIZE_REACHED.
    pub pending_members_per_group: usize,
    /// Assignment protocols that one member may list; clients list up to four. Over it, a join is
    /// answered INVALID_REQUEST.
    pub protocols_per_member: usize,
    /// Partitions with a committed offset, per group. Over it, a new partition is answered
    /// POLICY_VIOLATION.
    pub offsets_per_group: usize,
    /// Records in one append of tombstones: about 100 bytes each, so that a batch stays far below
    /// `max.message.bytes` of the offsets topic (1 MiB).
    pub tombstones_per_append: usize,
    /// The same in bytes of keys, for the longest of names.
    pub tombstone_bytes_per_append: usize,
    /// Groups that one step of a retention sweep looks at, about a quarter of a millisecond; the
    /// next step follows a millisecond later.
    pub groups_per_sweep_step: usize,
}

impl Default for GroupLimits {
    fn default() -> Self {
        GroupLimits {
            groups: 200_000,
            pending_members_per_group: 10_000,
            protocols_per_member: 256,
            offsets_per_group: 500_000,
            tombstones_per_append: 1_000,
            tombstone_bytes_per_append: 512 * 1_024,
            groups_per_sweep_step: 1_000,
        }
    }
}
