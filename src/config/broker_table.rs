//! The settings of a broker that this broker acts on: type, default, limits and what they do, as
//! Apache Kafka 4.4 has them. Facts only.
//!
//! Defaults that are not Kafka's: `node.id`, `listeners` and `log.dir`, for a broker started without
//! any setting is node 1, listens to its own host only and keeps its data beside it.

use super::definition::{Definition, Kind, Update};
use super::other_table::OTHERS;

const FIXED: Update = Update::Never;
const BROKER: Update = Update::PerBroker;
const CLUSTER: Update = Update::ClusterWide;

const fn define(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    update: Update,
    doc: &'static str,
) -> Definition {
    Definition {
        name,
        kind,
        default,
        update,
        used: true,
        hidden: false,
        doc,
    }
}

/// A setting that Kafka has in no table of a broker's: only told where it was given.
const fn unlisted(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    update: Update,
    doc: &'static str,
) -> Definition {
    Definition {
        hidden: true,
        ..define(name, kind, default, update, doc)
    }
}

/// By name.
#[rustfmt::skip]
pub(super) const USED: &[Definition] = &[
    define("add.partitions.to.txn.retry.backoff.max.ms", Kind::Int(0, i32::MAX), Some("100"), FIXED, "For how long a transaction is asked about again whose end is not known to all of its partitions yet."),
    define("add.partitions.to.txn.retry.backoff.ms", Kind::Int(1, i32::MAX), Some("20"), FIXED, "The longest pause before a transaction is asked about again whose end is not known to all of its partitions yet."),
    define("advertised.listeners", Kind::List, None, FIXED, "Addresses that clients are told, if they differ from the listeners'."),
    define("auto.create.topics.enable", Kind::Boolean, Some("true"), FIXED, "Make a topic when a client asks for its metadata and allows it."),
    define("broker.heartbeat.interval.ms", Kind::Int(i32::MIN, i32::MAX), Some("2000"), FIXED, "Pause between heartbeats to the controller."),
    define("broker.id", Kind::Int(i32::MIN, i32::MAX), Some("-1"), FIXED, "The old name of node.id."),
    define("broker.rack", Kind::Str, None, FIXED, "The rack this broker stands in; replicas are spread over racks."),
    define("compression.gzip.level", Kind::IntOr(-1, 1, 9), Some("-1"), CLUSTER, "Level for topics whose compression.type is gzip."),
    define("compression.lz4.level", Kind::Int(1, 17), Some("9"), CLUSTER, "Level for topics whose compression.type is lz4: no effect, only the fast compressor of the default level is there."),
    define("compression.type", Kind::OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]), Some("producer"), CLUSTER, "How batches are stored: as the producer sent them, or recompressed."),
    define("compression.zstd.level", Kind::Int(-131072, 22), Some("3"), CLUSTER, "Level for topics whose compression.type is zstd."),
    define("connections.max.idle.ms", Kind::Long(i64::MIN, i64::MAX), Some("600000"), FIXED, "Close a connection that has been silent this long; negative: never."),
    define("controller.listener.names", Kind::List, None, FIXED, "Names of the listeners of controllers."),
    define("controller.quorum.bootstrap.servers", Kind::List, Some(""), FIXED, "Addresses of controllers, for a broker that is none."),
    define("controller.quorum.voters", Kind::List, Some(""), FIXED, "The controllers, as id@host:port."),
    define("default.replication.factor", Kind::Int(i32::MIN, i32::MAX), Some("1"), FIXED, "Replicas of topics made without a number of them."),
    define("delete.topic.enable", Kind::Boolean, Some("true"), FIXED, "Whether topics may be deleted."),
    define("fetch.max.bytes", Kind::Int(1024, i32::MAX), Some("57671680"), FIXED, "Most bytes of records in one Fetch answer."),
    unlisted("follower.replication.throttled.rate", Kind::Long(0, i64::MAX), Some("9223372036854775807"), BROKER, "Most bytes a second that this broker copies of throttled replicas it follows."),
    define("group.initial.rebalance.delay.ms", Kind::Int(i32::MIN, i32::MAX), Some("3000"), FIXED, "How long the first join of an empty group waits for more members."),
    define("group.max.session.timeout.ms", Kind::Int(i32::MIN, i32::MAX), Some("1800000"), FIXED, "Longest session time-out a group member may ask for."),
    define("group.max.size", Kind::Int(1, i32::MAX), Some("2147483647"), FIXED, "Most members of one group."),
    define("group.min.session.timeout.ms", Kind::Int(i32::MIN, i32::MAX), Some("6000"), FIXED, "Shortest session time-out a group member may ask for."),
    define("highwater.cold.read.bytes.beside.flushes", Kind::Int(65536, 1048576), Some("262144"), FIXED, "Size of the requests in which old segments are read while flush rounds go on: what a flush may have to wait for."),
    define("highwater.cold.reads.in.flight", Kind::Int(1, 4), Some("2"), FIXED, "Reads of old segments that each shard has at the device at once."),
    define("highwater.connection.max.in.flight", Kind::Int(1, 10000), Some("64"), FIXED, "Requests of one connection that may wait for their answers at once."),
    define("highwater.direct.writes.in.flight", Kind::Int(1, 64), Some("4"), FIXED, "O_DIRECT writes of one log that are at the device at once."),
    define("highwater.disk.profile", Kind::Str, None, FIXED, "File that `highwater tune disk` wrote: defaults for the limits that the device decides; what is set otherwise wins."),
    define("highwater.flush.segments.in.flight", Kind::Int(1, 128), Some("64"), FIXED, "Segment flushes of one log directory that each shard has at the device at once."),
    define("highwater.inflated.batch.bytes", Kind::Int(1048576, 1073741824), Some("67108864"), FIXED, "What a compressed batch of a producer may inflate to; a larger one is refused with MESSAGE_TOO_LARGE."),
    define("highwater.journal.bytes", Kind::Int(0, 1073741824), Some("67108864"), FIXED, "Size of the flush journal of each shard in each log directory, at least 4 MiB; 0 is none: every flush goes to the segments."),
    define("highwater.journal.log.bytes", Kind::Int(4096, 524288), Some("65536"), FIXED, "A log with more than this to flush is flushed by its segment instead of the journal."),
    define("highwater.journal.logs.min", Kind::Int(1, 1000), Some("3"), FIXED, "Logs in a flush round from which on it goes by the journal."),
    define("highwater.log.format", Kind::OneOf(&["text", "json"]), Some("text"), FIXED, "How log lines look."),
    define("highwater.log.level", Kind::OneOf(&["error", "warn", "info", "debug", "trace"]), Some("info"), FIXED, "What is logged."),
    define("highwater.metrics.listener", Kind::Str, None, FIXED, "host:port of the Prometheus endpoint; none if not set."),
    define("highwater.read.ahead.bytes", Kind::Long(0, i64::MAX), Some("67108864"), FIXED, "Memory of each shard for reading ahead of consumers that go through old segments; 0 is no read-ahead."),
    define("highwater.recent.batch.bytes", Kind::Long(0, i64::MAX), Some("67108864"), FIXED, "Recent batches that each shard keeps in memory for readers at the end."),
    define("highwater.request.log", Kind::Boolean, Some("false"), FIXED, "Write Kafka's request log: one line for each answered request."),
    define("highwater.request.memory.bytes", Kind::Long(1048576, i64::MAX), Some("268435456"), FIXED, "Memory that requests of each shard may hold until their answers have left."),
    define("highwater.segment.io", Kind::OneOf(&["buffered", "direct"]), Some("buffered"), CLUSTER, "How segments are written: through the page cache or with O_DIRECT."),
    define("highwater.sendfile.min.bytes", Kind::Long(1, i64::MAX), Some("65536"), FIXED, "A fetch of at least so many bytes that lie in the page cache is sent from there (sendfile) instead of being read into memory first."),
    define("highwater.shards", Kind::Int(0, 1024), Some("0"), FIXED, "Shards; 0 is one for each core."),
    define("highwater.spin.us", Kind::Int(0, 1000), Some("0"), FIXED, "Microseconds that a shard polls its rings before it sleeps: a shorter way to it, for a whole core."),
    define("highwater.write.bytes", Kind::Int(65536, 4194304), Some("1048576"), FIXED, "Largest write that queued batches of a log are merged into."),
    define("initial.broker.registration.timeout.ms", Kind::Int(i32::MIN, i32::MAX), Some("60000"), FIXED, "How long the first registration with the controller may take."),
    define("inter.broker.listener.name", Kind::Str, None, FIXED, "The listener brokers use among themselves."),
    unlisted("leader.replication.throttled.rate", Kind::Long(0, i64::MAX), Some("9223372036854775807"), BROKER, "Most bytes a second that others copy of throttled replicas this broker leads."),
    define("listener.security.protocol.map", Kind::Str, Some("SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"), BROKER, "The security protocol of each listener name."),
    define("listeners", Kind::List, Some("PLAINTEXT://127.0.0.1:9092"), BROKER, "Where to listen, as NAME://host:port; port 0 takes a free one."),
    define("log.cleaner.backoff.ms", Kind::Long(0, i64::MAX), Some("15000"), CLUSTER, "Pause of the cleaner when no log is to be compacted."),
    define("log.cleaner.dedupe.buffer.size", Kind::Long(i64::MIN, i64::MAX), Some("134217728"), CLUSTER, "Memory for the keys that compaction compares, over all shards."),
    define("log.cleaner.delete.retention.ms", Kind::Long(0, i64::MAX), Some("86400000"), CLUSTER, "Broker default of delete.retention.ms."),
    define("log.cleaner.enable", Kind::Boolean, Some("true"), FIXED, "Compact the logs whose cleanup.policy says so."),
    define("log.cleaner.io.buffer.load.factor", Kind::Double(f64::MIN, f64::MAX), Some("0.9"), CLUSTER, "How full the memory for keys may get, 0 to 1."),
    define("log.cleaner.io.buffer.size", Kind::Int(0, i32::MAX), Some("524288"), CLUSTER, "Memory that compaction reads and writes through, over all shards."),
    define("log.cleaner.io.max.bytes.per.second", Kind::Double(f64::MIN, f64::MAX), Some("1.7976931348623157E308"), CLUSTER, "Bytes that compaction reads and writes in a second, over all shards."),
    define("log.cleaner.max.compaction.lag.ms", Kind::Long(1, i64::MAX), Some("9223372036854775807"), CLUSTER, "Broker default of max.compaction.lag.ms."),
    define("log.cleaner.min.cleanable.ratio", Kind::Double(0.0, 1.0), Some("0.5"), CLUSTER, "Broker default of min.cleanable.dirty.ratio."),
    define("log.cleaner.min.compaction.lag.ms", Kind::Long(0, i64::MAX), Some("0"), CLUSTER, "Broker default of min.compaction.lag.ms."),
    define("log.cleanup.policy", Kind::ListOf(&["compact", "delete"]), Some("delete"), CLUSTER, "Broker default of cleanup.policy."),
    define("log.dir", Kind::List, Some("./highwater-data"), FIXED, "The log directory, where log.dirs is not given."),
    define("log.dirs", Kind::List, None, FIXED, "The log directories."),
    define("log.flush.interval.messages", Kind::Long(1, i64::MAX), Some("9223372036854775807"), CLUSTER, "Broker default of flush.messages."),
    define("log.flush.interval.ms", Kind::Long(i64::MIN, i64::MAX), None, CLUSTER, "Broker default of flush.ms."),
    define("log.flush.offset.checkpoint.interval.ms", Kind::Int(0, i32::MAX), Some("60000"), FIXED, "How often recovery points are written."),
    define("log.flush.scheduler.interval.ms", Kind::Long(i64::MIN, i64::MAX), Some("9223372036854775807"), FIXED, "flush.ms where log.flush.interval.ms is not set; how often logs are looked at follows from the shortest flush.ms."),
    define("log.index.interval.bytes", Kind::Int(0, i32::MAX), Some("4096"), CLUSTER, "Broker default of index.interval.bytes."),
    define("log.index.size.max.bytes", Kind::Int(4, i32::MAX), Some("10485760"), CLUSTER, "Broker default of segment.index.bytes."),
    unlisted("log.initial.task.delay.ms", Kind::Long(0, i64::MAX), Some("30000"), FIXED, "Pause before the first look for what retention gives up, if it is shorter than the pause between two."),
    define("log.local.retention.bytes", Kind::Long(-2, i64::MAX), Some("-2"), CLUSTER, "Broker default of local.retention.bytes."),
    define("log.local.retention.ms", Kind::Long(-2, i64::MAX), Some("-2"), CLUSTER, "Broker default of local.retention.ms."),
    define("log.message.timestamp.after.max.ms", Kind::Long(0, i64::MAX), Some("3600000"), CLUSTER, "Broker default of message.timestamp.after.max.ms."),
    define("log.message.timestamp.before.max.ms", Kind::Long(0, i64::MAX), Some("9223372036854775807"), CLUSTER, "Broker default of message.timestamp.before.max.ms."),
    define("log.message.timestamp.type", Kind::OneOf(&["CreateTime", "LogAppendTime"]), Some("CreateTime"), CLUSTER, "Broker default of message.timestamp.type."),
    define("log.preallocate", Kind::Boolean, Some("false"), CLUSTER, "Broker default of preallocate."),
    define("log.retention.bytes", Kind::Long(i64::MIN, i64::MAX), Some("-1"), CLUSTER, "Broker default of retention.bytes."),
    define("log.retention.check.interval.ms", Kind::Long(1, i64::MAX), Some("300000"), FIXED, "How often segments are looked at for retention."),
    define("log.retention.hours", Kind::Int(i32::MIN, i32::MAX), Some("168"), FIXED, "Broker default of retention.ms, in hours."),
    define("log.retention.minutes", Kind::Int(i32::MIN, i32::MAX), None, FIXED, "Broker default of retention.ms, in minutes; wins over hours."),
    define("log.retention.ms", Kind::Long(i64::MIN, i64::MAX), None, CLUSTER, "Broker default of retention.ms; wins over minutes."),
    define("log.roll.hours", Kind::Int(1, i32::MAX), Some("168"), FIXED, "Broker default of segment.ms, in hours."),
    define("log.roll.jitter.hours", Kind::Int(0, i32::MAX), Some("0"), FIXED, "Broker default of segment.jitter.ms, in hours."),
    define("log.roll.jitter.ms", Kind::Long(i64::MIN, i64::MAX), None, CLUSTER, "Broker default of segment.jitter.ms."),
    define("log.roll.ms", Kind::Long(i64::MIN, i64::MAX), None, CLUSTER, "Broker default of segment.ms."),
    define("log.segment.bytes", Kind::Int(1048576, i32::MAX), Some("1073741824"), CLUSTER, "Broker default of segment.bytes."),
    define("log.segment.delete.delay.ms", Kind::Long(0, i64::MAX), Some("60000"), CLUSTER, "Broker default of file.delete.delay.ms."),
    define("max.connections", Kind::Int(0, i32::MAX), Some("2147483647"), CLUSTER, "Most open connections."),
    define("max.connections.per.ip", Kind::Int(0, i32::MAX), Some("2147483647"), CLUSTER, "Most open connections from one address."),
    define("max.connections.per.ip.overrides", Kind::Str, Some(""), CLUSTER, "Other limits for single addresses, as host:number."),
    define("max.incremental.fetch.session.cache.slots", Kind::Int(0, i32::MAX), Some("1000"), FIXED, "Incremental fetch sessions kept."),
    define("message.max.bytes", Kind::Int(0, i32::MAX), Some("1048588"), CLUSTER, "Broker default of max.message.bytes."),
    define("metadata.log.dir", Kind::Str, None, FIXED, "Where the metadata log is, if not in the first log directory."),
    define("min.insync.replicas", Kind::Int(1, i32::MAX), Some("1"), CLUSTER, "Broker default of the topic setting of this name."),
    define("node.id", Kind::Int(0, i32::MAX), Some("1"), FIXED, "This node's number in the cluster."),
    define("num.partitions", Kind::Int(1, i32::MAX), Some("1"), FIXED, "Partitions of topics made without a number of them."),
    define("offset.metadata.max.bytes", Kind::Int(i32::MIN, i32::MAX), Some("4096"), FIXED, "Most text a committed offset may carry."),
    define("offsets.commit.timeout.ms", Kind::Int(1, i32::MAX), Some("5000"), FIXED, "How long a commit waits for the replicas of the offsets topic."),
    define("offsets.retention.check.interval.ms", Kind::Long(1, i64::MAX), Some("600000"), FIXED, "How often committed offsets are looked at for retention."),
    define("offsets.retention.minutes", Kind::Int(1, i32::MAX), Some("10080"), FIXED, "How long the offsets of an empty group are kept."),
    define("offsets.topic.num.partitions", Kind::Int(1, i32::MAX), Some("50"), FIXED, "Partitions of the offsets topic."),
    define("offsets.topic.replication.factor", Kind::Short(1, i16::MAX), Some("3"), FIXED, "Replicas of the offsets topic; one on a node that is its own cluster."),
    define("offsets.topic.segment.bytes", Kind::Int(1, i32::MAX), Some("104857600"), FIXED, "Segment size of the offsets topic."),
    define("process.roles", Kind::ListOf(&["broker", "controller"]), None, FIXED, "What this node is."),
    unlisted("producer.id.expiration.check.interval.ms", Kind::Int(1, i32::MAX), Some("600000"), FIXED, "How often producer ids that have expired are forgotten."),
    define("producer.id.expiration.ms", Kind::Int(1, i32::MAX), Some("86400000"), CLUSTER, "How long a silent producer's sequence state is kept."),
    unlisted("replica.alter.log.dirs.io.max.bytes.per.second", Kind::Long(0, i64::MAX), Some("9223372036854775807"), BROKER, "Most bytes a second that this broker copies from one of its log directories to another."),
    define("replica.fetch.backoff.ms", Kind::Int(0, i32::MAX), Some("1000"), FIXED, "Longest pause of a follower after a fetch that its leader refused."),
    define("replica.fetch.max.bytes", Kind::Int(0, i32::MAX), Some("1048576"), FIXED, "Most bytes a follower fetches of one partition at once."),
    define("replica.fetch.min.bytes", Kind::Int(i32::MIN, i32::MAX), Some("1"), FIXED, "A follower's fetch waits for this many bytes."),
    define("replica.fetch.response.max.bytes", Kind::Int(0, i32::MAX), Some("10485760"), FIXED, "Most bytes a follower fetches at once."),
    define("replica.fetch.wait.max.ms", Kind::Int(i32::MIN, i32::MAX), Some("500"), FIXED, "How long a follower's fetch waits for bytes."),
    define("replica.high.watermark.checkpoint.interval.ms", Kind::Long(i64::MIN, i64::MAX), Some("5000"), FIXED, "How often high watermarks are written."),
    define("replica.lag.time.max.ms", Kind::Long(i64::MIN, i64::MAX), Some("30000"), FIXED, "A follower that has not had all records for this long leaves the in-sync set."),
    define("replica.selector.class", Kind::Str, None, FIXED, "Which replica consumers are sent to; org.apache.kafka.common.replica.RackAwareReplicaSelector is one in their rack."),
    define("replica.socket.timeout.ms", Kind::Int(i32::MIN, i32::MAX), Some("30000"), FIXED, "How long a follower waits for its leader's answer."),
    define("request.timeout.ms", Kind::Int(i32::MIN, i32::MAX), Some("30000"), FIXED, "How long this broker waits for another one's answer, and a transaction's marker for its replicas."),
    define("security.inter.broker.protocol", Kind::OneOf(&["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]), Some("PLAINTEXT"), FIXED, "The protocol brokers use among themselves where no listener is named for it."),
    define("socket.request.max.bytes", Kind::Int(1, i32::MAX), Some("104857600"), FIXED, "The largest request accepted."),
    define("transaction.abort.timed.out.transaction.cleanup.interval.ms", Kind::Int(1, i32::MAX), Some("10000"), FIXED, "How often transactions are looked at for time-outs."),
    define("transaction.max.timeout.ms", Kind::Int(1, i32::MAX), Some("900000"), FIXED, "The longest time-out that a transactional producer may ask for."),
    define("transaction.partition.verification.enable", Kind::Boolean, Some("true"), CLUSTER, "Ask the coordinator of a transaction before its first batch is appended to a partition."),
    define("transaction.remove.expired.transaction.cleanup.interval.ms", Kind::Int(1, i32::MAX), Some("3600000"), FIXED, "How often transactional ids are looked at for expiration."),
    define("transaction.state.log.min.isr", Kind::Int(1, i32::MAX), Some("2"), FIXED, "min.insync.replicas of the transaction state topic."),
    define("transaction.state.log.num.partitions", Kind::Int(1, i32::MAX), Some("50"), FIXED, "Partitions of the transaction state topic."),
    define("transaction.state.log.replication.factor", Kind::Short(1, i16::MAX), Some("3"), FIXED, "Replicas of the transaction state topic; one on a node that is its own cluster."),
    define("transaction.state.log.segment.bytes", Kind::Int(1, i32::MAX), Some("104857600"), FIXED, "Segment size of the transaction state topic."),
    define("transactional.id.expiration.ms", Kind::Int(1, i32::MAX), Some("604800000"), FIXED, "How long a transactional id is kept that nobody uses."),
    define("unclean.leader.election.enable", Kind::Boolean, Some("false"), CLUSTER, "Broker default of the topic setting of this name."),
];

/// What a listener may set for itself: `listener.name.<listener>.<setting>`.
const LISTENER_PREFIX: &str = "listener.name.";
/// Settings of Kafka's plugins, whose names are the plugin's own.
const PLUGIN_PREFIXES: &[&str] = &["rlmm.config.", "rsm.config.", "config.providers."];

/// The definition of a broker setting; `None` if there is no such setting.
pub fn broker_definition(name: &str) -> Option<&'static Definition> {
    [USED, OTHERS].into_iter().find_map(|table| {
        let at = table
            .binary_search_by_key(&name, |definition| definition.name)
            .ok()?;
        Some(&table[at])
    })
}

/// All settings, by name.
pub fn broker_definitions() -> Vec<&'static Definition> {
    let mut all: Vec<&'static Definition> = USED.iter().chain(OTHERS).collect();
    all.sort_by_key(|definition| definition.name);
    all
}

/// The setting that `name` sets for one listener only.
pub fn listener_setting(name: &str) -> Option<&'static Definition> {
    let (listener, setting) = name.strip_prefix(LISTENER_PREFIX)?.split_once('.')?;
    // SASL settings name the mechanism before the setting: `<listener>.<mechanism>.<setting>`.
    let inner = || {
        setting
            .split_once('.')
            .and_then(|(_, setting)| broker_definition(setting))
    };
    let known = broker_definition(setting).or_else(inner);
    known.filter(|_| !listener.is_empty())
}

/// Whether `name` belongs to a plugin of Kafka's; such settings mean nothing here.
pub fn is_plugin_setting(name: &str) -> bool {
    PLUGIN_PREFIXES
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::super::definition::check;
    use super::*;

    #[test]
    fn a_look_up_finds_every_setting_because_the_tables_are_sorted() {
        for table in [USED, OTHERS] {
            assert!(table.windows(2).all(|pair| pair[0].name < pair[1].name));
        }
        let all = broker_definitions();
        assert!(
            all.windows(2).all(|pair| pair[0].name < pair[1].name),
            "in one table only"
        );
        for definition in all {
            if let Some(default) = definition.default {
                check(definition.name, definition.kind, default).unwrap();
            }
            assert_eq!(broker_definition(definition.name), Some(definition));
        }
    }

    #[test]
    fn settings_of_one_listener_and_of_plugins_are_known() {
        assert_eq!(
            listener_setting("listener.name.external.max.connections")
                .unwrap()
                .name,
            "max.connections"
        );
        assert_eq!(
            listener_setting("listener.name.external.scram-sha-256.sasl.jaas.config")
                .unwrap()
                .name,
            "sasl.jaas.config"
        );
        assert!(listener_setting("listener.name.external.max.conections").is_none());
        assert!(listener_setting("listener.name.").is_none());
        assert!(is_plugin_setting("rsm.config.bucket") && !is_plugin_setting("rsm.bucket"));
    }
}
