//! The settings of a topic, each with the broker setting that is its default. Facts only.

use super::definition::Kind;

/// One setting of topics.
#[derive(Clone, Copy, Debug)]
pub struct TopicDefinition {
    pub name: &'static str,
    pub kind: Kind,
    /// The broker setting that holds where the topic says nothing; "" if there is none.
    pub broker_synonym: &'static str,
    pub default: &'static str,
    pub doc: &'static str,
}

const fn define(
    name: &'static str,
    kind: Kind,
    broker_synonym: &'static str,
    default: &'static str,
    doc: &'static str,
) -> TopicDefinition {
    TopicDefinition {
        name,
        kind,
        broker_synonym,
        default,
        doc,
    }
}

/// By name.
#[rustfmt::skip]
const TOPIC_SETTINGS: &[TopicDefinition] = &[
    define("cleanup.policy", Kind::ListOf(&["compact", "delete"]), "log.cleanup.policy", "delete", "What happens to old records: deleted, compacted, or both."),
    define("compression.gzip.level", Kind::IntOr(-1, 1, 9), "compression.gzip.level", "-1", "Level when compression.type is gzip."),
    define("compression.lz4.level", Kind::Int(1, 17), "compression.lz4.level", "9", "Level when compression.type is lz4: no effect, only the fast compressor of the default level is there."),
    define("compression.type", Kind::OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]), "compression.type", "producer", "How batches are stored: as the producer sent them, or recompressed."),
    define("compression.zstd.level", Kind::Int(-131072, 22), "compression.zstd.level", "3", "Level when compression.type is zstd."),
    define("delete.retention.ms", Kind::Long(0, i64::MAX), "log.cleaner.delete.retention.ms", "86400000", "How long compaction keeps tombstones."),
    define("errors.deadletterqueue.group.enable", Kind::Boolean, "", "false", "Whether the topic may be the dead letter queue of a share group."),
    define("file.delete.delay.ms", Kind::Long(0, i64::MAX), "log.segment.delete.delay.ms", "60000", "How long a deleted file stays on disk."),
    define("flush.messages", Kind::Long(1, i64::MAX), "log.flush.interval.messages", "9223372036854775807", "Records after which a flush is made; 1 acknowledges only what is on the device."),
    define("flush.ms", Kind::Long(0, i64::MAX), "log.flush.interval.ms", "9223372036854775807", "Time after which a flush is made."),
    define("follower.replication.throttled.replicas", Kind::Replicas, "", "", "Replicas whose following is throttled, as partition:broker."),
    define("highwater.segment.io", Kind::OneOf(&["buffered", "direct"]), "highwater.segment.io", "buffered", "How segments are written: through the page cache or with O_DIRECT."),
    define("index.interval.bytes", Kind::Int(0, i32::MAX), "log.index.interval.bytes", "4096", "Bytes between entries of the offset index."),
    define("leader.replication.throttled.replicas", Kind::Replicas, "", "", "Replicas whose leading is throttled, as partition:broker."),
    define("local.retention.bytes", Kind::Long(-2, i64::MAX), "log.local.retention.bytes", "-2", "Bytes kept on local disk with tiered storage."),
    define("local.retention.ms", Kind::Long(-2, i64::MAX), "log.local.retention.ms", "-2", "Time kept on local disk with tiered storage."),
    define("max.compaction.lag.ms", Kind::Long(1, i64::MAX), "log.cleaner.max.compaction.lag.ms", "9223372036854775807", "Longest a record stays uncompacted."),
    define("max.decompressed.message.bytes", Kind::Int(1, 2147483639), "max.decompressed.message.bytes", "2147483639", "Largest a record of a compressed batch may be once it is inflated."),
    define("max.message.bytes", Kind::Int(0, i32::MAX), "message.max.bytes", "1048588", "Largest batch accepted."),
    define("message.timestamp.after.max.ms", Kind::Long(0, i64::MAX), "log.message.timestamp.after.max.ms", "3600000", "How far a timestamp may be ahead of the broker's clock."),
    define("message.timestamp.before.max.ms", Kind::Long(0, i64::MAX), "log.message.timestamp.before.max.ms", "9223372036854775807", "How far a timestamp may be behind the broker's clock."),
    define("message.timestamp.type", Kind::OneOf(&["CreateTime", "LogAppendTime"]), "log.message.timestamp.type", "CreateTime", "Whose clock dates the records: the producer's or the broker's."),
    define("min.cleanable.dirty.ratio", Kind::Double(0.0, 1.0), "log.cleaner.min.cleanable.ratio", "0.5", "Share of uncompacted bytes from which on the log is compacted."),
    define("min.compaction.lag.ms", Kind::Long(0, i64::MAX), "log.cleaner.min.compaction.lag.ms", "0", "Shortest a record stays uncompacted."),
    define("min.insync.replicas", Kind::Int(1, i32::MAX), "min.insync.replicas", "1", "In-sync replicas without which acks=all is refused."),
    define("preallocate", Kind::Boolean, "log.preallocate", "false", "Make segment files at their full size."),
    define("remote.copy.lag.bytes", Kind::Long(-1, i64::MAX), "log.remote.copy.lag.bytes", "-1", "Bytes that wait before they are tiered."),
    define("remote.copy.lag.ms", Kind::Long(-1, i64::MAX), "log.remote.copy.lag.ms", "0", "Time that segments wait before they are tiered."),
    define("remote.log.copy.disable", Kind::Boolean, "", "false", "Tier no more segments."),
    define("remote.log.delete.on.disable", Kind::Boolean, "", "false", "Delete tiered segments when tiering ends."),
    define("remote.storage.enable", Kind::Boolean, "", "false", "Tiered storage; not offered here."),
    define("retention.bytes", Kind::Long(i64::MIN, i64::MAX), "log.retention.bytes", "-1", "Bytes kept in a partition; -1 without limit."),
    define("retention.ms", Kind::Long(-1, i64::MAX), "log.retention.ms", "604800000", "Time records are kept; -1 without limit."),
    define("segment.bytes", Kind::Int(1048576, i32::MAX), "log.segment.bytes", "1073741824", "Size of a segment file."),
    define("segment.index.bytes", Kind::Int(4, i32::MAX), "log.index.size.max.bytes", "10485760", "Size of a segment's offset index."),
    define("segment.jitter.ms", Kind::Long(0, i64::MAX), "log.roll.jitter.ms", "0", "Most that a segment's end is moved forward, at random."),
    define("segment.ms", Kind::Long(1, i64::MAX), "log.roll.ms", "604800000", "Time after which a segment ends."),
    define("unclean.leader.election.enable", Kind::Boolean, "unclean.leader.election.enable", "false", "Whether a replica that is not in sync may lead."),
];

/// All settings of topics, by name.
pub fn topic_definitions() -> &'static [TopicDefinition] {
    TOPIC_SETTINGS
}

/// The definition of a topic setting; `None` if there is no such setting.
pub fn topic_definition(name: &str) -> Option<&'static TopicDefinition> {
    let at = TOPIC_SETTINGS
        .binary_search_by_key(&name, |definition| definition.name)
        .ok()?;
    Some(&TOPIC_SETTINGS[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_setting_is_found_and_its_default_is_allowed() {
        for definition in TOPIC_SETTINGS {
            assert_eq!(
                topic_definition(definition.name).map(|found| found.name),
                Some(definition.name)
            );
            super::super::definition::check(definition.name, definition.kind, definition.default)
                .unwrap();
            let synonym = definition.broker_synonym;
            assert!(
                synonym.is_empty() || super::super::broker_definition(synonym).is_some(),
                "{synonym}"
            );
        }
    }
}
