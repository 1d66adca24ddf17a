//! The settings of this broker, typed, from a property file and the command line. Read once at
//! start; any core. What changes while the broker runs comes from the metadata image instead.

use super::broker_table::{
    broker_definition, broker_definitions, is_plugin_setting, listener_setting,
};
use super::definition::{Definition, Kind, check, items};
use super::disk_profile;
use super::listeners::{self, Listener, SecurityProtocol};
use super::properties::{self, Origin, Property};
use super::quorum::{Given, Quorum};
use crate::log::journal::JOURNAL_BYTES_MIN;
use crate::types::NodeId;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a broker's settings cannot be used; one line for a person.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Syntax(#[from] properties::SyntaxError),
    #[error("--set {0}: expected KEY=VALUE")]
    Set(String),
    #[error("{origin}: unknown key '{key}'{}", suggestion.as_ref().map(|key| format!(" (did you mean '{key}'?)")).unwrap_or_default())]
    UnknownKey {
        origin: Origin,
        key: String,
        suggestion: Option<&'static str>,
    },
    #[error("{origin}: {what}")]
    BadValue { origin: Origin, what: String },
    #[error("{0}")]
    Together(String),
}

/// What this broker runs with. Names are Kafka's with underscores; times in milliseconds.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// What was given, by Kafka's name; what was not has its default.
    given: BTreeMap<String, Property>,
    /// Settings for one listener only, by their whole name. The names live as long as the process:
    /// settings are read once.
    of_listeners: Vec<(&'static str, &'static Definition)>,
    pub node_id: NodeId,
    pub rack: Option<String>,
    pub listeners: Vec<Listener>,
    /// Host and port that clients are told, by listener, where they differ.
    pub advertised: Vec<Listener>,
    /// The listener by which brokers reach each other.
    pub inter_broker_listener: String,
    pub quorum: Quorum,
    pub log_dirs: Vec<PathBuf>,
    pub metadata_log_dir: PathBuf,
    pub num_partitions: i32,
    pub default_replication_factor: i16,
    pub auto_create_topics_enable: bool,
    pub delete_topic_enable: bool,
    pub socket_request_max_bytes: usize,
    pub max_connections: usize,
    pub max_connections_per_ip: usize,
    pub max_connections_per_ip_overrides: Vec<(IpAddr, usize)>,
    /// `None`: never.
    pub connections_max_idle_ms: Option<u64>,
    pub fetch_max_bytes: u64,
    pub fetch_session_slots: usize,
    pub offsets_topic_num_partitions: i32,
    pub offsets_topic_replication_factor: i16,
    pub offsets_topic_segment_bytes: i32,
    pub offsets_commit_timeout_ms: u64,
    pub offsets_retention_ms: i64,
    pub offsets_retention_check_interval_ms: i64,
    pub offset_metadata_max_bytes: usize,
    pub group_min_session_timeout_ms: i32,
    pub group_max_session_timeout_ms: i32,
    pub group_initial_rebalance_delay_ms: i32,
    pub group_max_size: usize,
    pub producer_id_expiration_ms: i64,
    pub transaction_topic_num_partitions: i32,
    pub transaction_topic_replication_factor: i16,
    pub transaction_topic_min_isr: i32,
    pub transaction_topic_segment_bytes: i32,
    pub transaction_max_timeout_ms: i32,
    pub transaction_abort_interval_ms: u64,
    pub transaction_remove_interval_ms: u64,
    pub transactional_id_expiration_ms: i64,
    pub request_timeout_ms: u64,
    pub add_partitions_to_txn_retry_backoff_ms: u64,
    pub add_partitions_to_txn_retry_backoff_max_ms: u64,
    pub log_retention_check_interval_ms: u64,
    pub log_initial_task_delay_ms: u64,
    pub producer_id_expiration_check_interval_ms: u64,
    pub log_flush_offset_checkpoint_interval_ms: u64,
    pub high_watermark_checkpoint_interval_ms: u64,
    pub broker_heartbeat_interval_ms: u64,
    pub initial_registration_timeout_ms: u64,
    pub replica_lag_time_max_ms: u64,
    pub replica_fetch_wait_max_ms: i32,
    pub replica_fetch_min_bytes: i32,
    pub replica_fetch_max_bytes: i32,
    pub replica_fetch_response_max_bytes: i32,
    pub replica_fetch_backoff_ms: u64,
    pub replica_socket_timeout_ms: u64,
    /// Consumers are sent to a replica in their rack.
    pub rack_aware_replicas: bool,
    pub shards: usize,
    /// How long a shard polls its rings before it sleeps; `None` sleeps at once.
    pub spin: Option<Duration>,
    pub in_flight_max: usize,
    pub request_memory_bytes: u64,
    pub recent_batch_bytes: u64,
    pub sendfile_min_bytes: u64,
    pub journal_bytes: u64,
    pub read_ahead_bytes: u64,
    pub journal_logs_min: usize,
    pub journal_log_bytes: u64,
    pub flush_segments_in_flight: u64,
    pub direct_writes_in_flight: usize,
    pub write_bytes: u64,
    pub cold_reads_in_flight: u64,
    pub cold_read_bytes_beside_flushes: usize,
    pub metrics_listener: Option<String>,
    pub request_log: bool,
    pub log_json: bool,
    pub log_level: String,
}

impl BrokerConfig {
    /// From a property file, if one is given, and `key=value` settings that win over it.
    pub fn load(file: Option<&Path>, sets: &[String]) -> Result<BrokerConfig, ConfigError> {
        let mut properties = Vec::new();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
                path: path.to_owned(),
                source,
            })?;
            properties = properties::parse(&path.display().to_string(), &text)?;
        }
        for set in sets {
            let (key, value) = set
                .split_once('=')
                .ok_or_else(|| ConfigError::Set(set.clone()))?;
            properties.push(Property {
                key: key.trim().to_owned(),
                value: value.trim().to_owned(),
                origin: Origin::CommandLine,
            });
        }
        disk_profile::add(&mut properties)?;
        BrokerConfig::from_properties(properties)
    }

    pub fn from_properties(properties: Vec<Property>) -> Result<BrokerConfig, ConfigError> {
        let mut given = BTreeMap::new();
        let mut of_listeners = Vec::new();
        for property in properties {
            let one_listener = listener_setting(&property.key);
            if let Some(definition) = broker_definition(&property.key).or(one_listener) {
                check(&property.key, definition.kind, &property.value).map_err(|bad| {
                    ConfigError::BadValue {
                        origin: property.origin.clone(),
                        what: bad.to_string(),
                    }
                })?;
                if broker_definition(&property.key).is_none() && !given.contains_key(&property.key)
                {
                    of_listeners.push((&*property.key.clone().leak(), definition));
                }
            } else if !is_plugin_setting(&property.key) {
                let suggestion = nearest(&property.key);
                let Property { key, origin, .. } = property;
                return Err(ConfigError::UnknownKey {
                    origin,
                    key,
                    suggestion,
                });
            }
            given.insert(property.key.clone(), property);
        }
        // The old name and the new one are the same setting.
        for (name, other) in [("node.id", "broker.id"), ("broker.id", "node.id")] {
            if let (false, Some(property)) = (given.contains_key(name), given.get(other)) {
                given.insert(
                    name.to_owned(),
                    Property {
                        key: name.to_owned(),
                        ..property.clone()
                    },
                );
            }
        }
        build(given, of_listeners)
    }

    /// The value of a setting: given, or its default; `None` where that is null.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.given(name)
            .or_else(|| broker_definition(name)?.default)
    }

    /// The value of a setting that was given rather than defaulted.
    pub fn given(&self, name: &str) -> Option<&str> {
        self.given.get(name).map(|property| property.value.as_str())
    }

    /// Settings that were given but have no effect here.
    pub fn without_effect(&self) -> impl Iterator<Item = &Property> {
        self.given
            .values()
            .filter(|property| broker_definition(&property.key).is_none_or(|known| !known.used))
    }

    /// Settings that the disk profile gave.
    pub fn of_disk_profile(&self) -> impl Iterator<Item = &Property> {
        let profile = self.given(disk_profile::KEY).map(str::trim);
        self.given.values().filter(move |property| {
            let Origin::File { name, .. } = &property.origin else {
                return false;
            };
            disk_profile::LIMITS.contains(&property.key.as_str()) && Some(name.as_str()) == profile
        })
    }

    /// Settings for one listener only: whole name, and the setting they replace.
    pub fn listener_settings(&self) -> impl Iterator<Item = (&'static str, &'static Definition)> {
        self.of_listeners.iter().copied()
    }
}

fn build(
    given: BTreeMap<String, Property>,
    of_listeners: Vec<(&'static str, &'static Definition)>,
) -> Result<BrokerConfig, ConfigError> {
    let read = Reader { given: &given };
    check_together(&read)?;
    let all = read.listeners("listeners")?;
    let controller_names: Vec<String> =
        items(read.text("controller.listener.names").unwrap_or_default())
            .map(str::to_ascii_uppercase)
            .collect();
    let map = protocol_map(
        read.text("listener.security.protocol.map")
            .unwrap_or_default(),
    );
    for listener in &all {
        match map.get(&listener.name).copied() {
            Some(Some(SecurityProtocol::Plaintext)) => {}
            Some(_) => {
                return Err(read.bad(
                    "listeners",
                    format!(
                        "listener {} is not PLAINTEXT: TLS and SASL are not available yet",
                        listener.name
                    ),
                ));
            }
            None => {
                return Err(read.bad(
                    "listeners",
                    format!(
                        "No security protocol defined for listener {}",
                        listener.name
                    ),
                ));
            }
        }
    }
    let advertised = match given.get("advertised.listeners") {
        Some(_) => read.listeners("advertised.listeners")?,
        None => Vec::new(),
    };
    for listener in advertised
        .iter()
        .filter(|listener| !controller_names.contains(&listener.name))
    {
        if matches!(listener.host.as_str(), "0.0.0.0" | "::") {
            let what = format!(
                "advertised.listeners cannot use the nonroutable meta-address {}. Use a routable IP address.",
                listener.host
            );
            return Err(read.bad("advertised.listeners", what));
        }
        if !all.iter().any(|bound| bound.name == listener.name) {
            let what = format!(
                "advertised.listeners names {}, which is no listener",
                listener.name
            );
            return Err(read.bad("advertised.listeners", what));
        }
    }
    let (of_controllers, listeners): (Vec<Listener>, Vec<Listener>) = all
        .into_iter()
        .partition(|listener| controller_names.contains(&listener.name));
    let node_id = read.number("node.id")?;
    let quorum = Quorum::new(Given {
        roles: read.text("process.roles"),
        node: NodeId(node_id),
        listeners: of_controllers,
        listener_names: controller_names,
        voters: read.text("controller.quorum.voters").unwrap_or_default(),
        bootstrap: read
            .text("controller.quorum.bootstrap.servers")
            .unwrap_or_default(),
    })
    .map_err(|(key, what)| read.bad(key, what))?;
    if listeners.is_empty() && quorum.roles.broker {
        return Err(read.bad("listeners", "a broker needs a listener".into()));
    }
    let inter_broker_listener = inter_broker_listener(&read, &listeners, quorum.roles.broker)?;
    let mut log_dirs: Vec<PathBuf> = items(read.text("log.dirs").unwrap_or_default())
        .map(PathBuf::from)
        .collect();
    if log_dirs.is_empty() {
        log_dirs = items(read.text("log.dir").unwrap_or_default())
            .map(PathBuf::from)
            .collect();
    }
    if log_dirs.is_empty() {
        return Err(read.bad("log.dirs", "a broker needs a log directory".into()));
    }
    let metadata_log_dir = match read.text("metadata.log.dir") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => log_dirs[0].clone(),
    };
    let idle_ms: i64 = read.number("connections.max.idle.ms")?;
    let shards = match read.number::<usize>("highwater.shards")? {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        shards => shards,
    };
    let flag = |name| {
        read.text(name)
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
    };
    Ok(BrokerConfig {
        node_id: NodeId(node_id),
        rack: read.text("broker.rack").map(str::to_owned),
        advertised,
        inter_broker_listener,
        quorum,
        listeners,
        log_dirs,
        metadata_log_dir,
        num_partitions: read.number("num.partitions")?,
        default_replication_factor: read.number("default.replication.factor")?,
        auto_create_topics_enable: flag("auto.create.topics.enable"),
        delete_topic_enable: flag("delete.topic.enable"),
        socket_request_max_bytes: read.number("socket.request.max.bytes")?,
        max_connections: read.number("max.connections")?,
        max_connections_per_ip: read.number("max.connections.per.ip")?,
        max_connections_per_ip_overrides: read.overrides("max.connections.per.ip.overrides")?,
        connections_max_idle_ms: u64::try_from(idle_ms).ok(),
        fetch_max_bytes: read.number("fetch.max.bytes")?,
        fetch_session_slots: read.number("max.incremental.fetch.session.cache.slots")?,
        offsets_topic_num_partitions: read.number("offsets.topic.num.partitions")?,
        offsets_topic_replication_factor: read.number("offsets.topic.replication.factor")?,
        offsets_topic_segment_bytes: read.number("offsets.topic.segment.bytes")?,
        offsets_commit_timeout_ms: read.number("offsets.commit.timeout.ms")?,
        offsets_retention_ms: read.number::<i64>("offsets.retention.minutes")? * 60_000,
        offsets_retention_check_interval_ms: read.number("offsets.retention.check.interval.ms")?,
        offset_metadata_max_bytes: read.number::<i32>("offset.metadata.max.bytes")?.max(0) as usize,
        group_min_session_timeout_ms: read.number("group.min.session.timeout.ms")?,
        group_max_session_timeout_ms: read.number("group.max.session.timeout.ms")?,
        group_initial_rebalance_delay_ms: read.number("group.initial.rebalance.delay.ms")?,
        group_max_size: read.number("group.max.size")?,
        producer_id_expiration_ms: read.number("producer.id.expiration.ms")?,
        transaction_topic_num_partitions: read.number("transaction.state.log.num.partitions")?,
        transaction_topic_replication_factor: read
            .number("transaction.state.log.replication.factor")?,
        transaction_topic_min_isr: read.number("transaction.state.log.min.isr")?,
        transaction_topic_segment_bytes: read.number("transaction.state.log.segment.bytes")?,
        transaction_max_timeout_ms: read.number("transaction.max.timeout.ms")?,
        transaction_abort_interval_ms: read
            .number("transaction.abort.timed.out.transaction.cleanup.interval.ms")?,
        transaction_remove_interval_ms: read
            .number("transaction.remove.expired.transaction.cleanup.interval.ms")?,
        transactional_id_expiration_ms: read.number("transactional.id.expiration.ms")?,
        request_timeout_ms: read.number::<i64>("request.timeout.ms")?.max(0) as u64,
        add_partitions_to_txn_retry_backoff_ms: read
            .number("add.partitions.to.txn.retry.backoff.ms")?,
        add_partitions_to_txn_retry_backoff_max_ms: read
            .number("add.partitions.to.txn.retry.backoff.max.ms")?,
        log_retention_check_interval_ms: read.number("log.retention.check.interval.ms")?,
        log_initial_task_delay_ms: read.number("log.initial.task.delay.ms")?,
        producer_id_expiration_check_interval_ms: read
            .number("producer.id.expiration.check.interval.ms")?,
        log_flush_offset_checkpoint_interval_ms: read
            .number("log.flush.offset.checkpoint.interval.ms")?,
        high_watermark_checkpoint_interval_ms: read
            .number::<i64>("replica.high.watermark.checkpoint.interval.ms")?
            .max(1) as u64,
        broker_heartbeat_interval_ms: read.number::<i64>("broker.heartbeat.interval.ms")?.max(1)
            as u64,
        initial_registration_timeout_ms: read
            .number::<i64>("initial.broker.registration.timeout.ms")?
            .max(0) as u64,
        replica_lag_time_max_ms: read.number::<i64>("replica.lag.time.max.ms")?.max(0) as u64,
        replica_fetch_wait_max_ms: read.number("replica.fetch.wait.max.ms")?,
        replica_fetch_min_bytes: read.number("replica.fetch.min.bytes")?,
        replica_fetch_max_bytes: read.number("replica.fetch.max.bytes")?,
        replica_fetch_response_max_bytes: read.number("replica.fetch.response.max.bytes")?,
        replica_fetch_backoff_ms: read.number("replica.fetch.backoff.ms")?,
        replica_socket_timeout_ms: read.number::<i64>("replica.socket.timeout.ms")?.max(1) as u64,
        rack_aware_replicas: rack_aware(&read)?,
        shards,
        spin: match read.number("highwater.spin.us")? {
            0 => None,
            us => Some(Duration::from_micros(us)),
        },
        in_flight_max: read.number("highwater.connection.max.in.flight")?,
        request_memory_bytes: read.number("highwater.request.memory.bytes")?,
        recent_batch_bytes: read.number("highwater.recent.batch.bytes")?,
        sendfile_min_bytes: read.number("highwater.sendfile.min.bytes")?,
        journal_bytes: match read.number("highwater.journal.bytes")? {
            0 => 0,
            few if few < JOURNAL_BYTES_MIN => {
                let what = format!(
                    "highwater.journal.bytes ({few}) is neither 0 nor at least {JOURNAL_BYTES_MIN}"
                );
                return Err(read.bad("highwater.journal.bytes", what));
            }
            bytes => bytes,
        },
        read_ahead_bytes: read.number("highwater.read.ahead.bytes")?,
        journal_logs_min: read.number("highwater.journal.logs.min")?,
        journal_log_bytes: read.number("highwater.journal.log.bytes")?,
        flush_segments_in_flight: read.number("highwater.flush.segments.in.flight")?,
        direct_writes_in_flight: read.number("highwater.direct.writes.in.flight")?,
        write_bytes: read.number("highwater.write.bytes")?,
        cold_reads_in_flight: read.number("highwater.cold.reads.in.flight")?,
        cold_read_bytes_beside_flushes: read.number("highwater.cold.read.bytes.beside.flushes")?,
        metrics_listener: read.text("highwater.metrics.listener").map(str::to_owned),
        request_log: flag("highwater.request.log"),
        log_json: read.text("highwater.log.format") == Some("json"),
        log_level: read
            .text("highwater.log.level")
            .unwrap_or("info")
            .to_owned(),
        given,
        of_listeners,
    })
}

/// The class that sends consumers to a replica in their rack; the only one there is, beside none.
const RACK_AWARE: &str = "org.apache.kafka.common.replica.RackAwareReplicaSelector";

fn rack_aware(read: &Reader<'_>) -> Result<bool, ConfigError> {
    match read.text("replica.selector.class").map(str::trim) {
        None | Some("") => Ok(false),
        Some(RACK_AWARE) => Ok(true),
        Some("org.apache.kafka.common.replica.LeaderSelector") => Ok(false),
        Some(other) => {
            let key = "replica.selector.class";
            Err(read.bad(key, format!("{key}: {other} is not available here")))
        }
    }
}

/// The listener that `inter.broker.listener.name` names, or else the first of the protocol that
/// `security.inter.broker.protocol` names.
fn inter_broker_listener(
    read: &Reader<'_>,
    listeners: &[Listener],
    is_broker: bool,
) -> Result<String, ConfigError> {
    let key = "inter.broker.listener.name";
    let given = read.text(key).map(str::trim);
    let name = given
        .or(read.text("security.inter.broker.protocol"))
        .unwrap_or("PLAINTEXT")
        .to_ascii_uppercase();
    let is_bound = |listener: &&Listener| listener.name == name;
    match listeners.iter().find(is_bound).or(listeners.first()) {
        Some(listener) if given.is_none() || listener.name == name => Ok(listener.name.clone()),
        None if !is_broker => Ok(name),
        _ => {
            let what = format!("{key} names {name}, which is no listener");
            Err(read.bad(key, what))
        }
    }
}

/// Bytes of `log.cleaner.dedupe.buffer.size` that Kafka wants for each cleaner thread.
const DEDUPE_BYTES_MIN: i64 = 1024 * 1024;

/// The cleaner cannot work with a dedupe buffer that is too small for its threads.
pub fn check_dedupe_buffer(bytes: i64, threads: i64) -> Result<(), String> {
    if bytes / threads.max(1) > DEDUPE_BYTES_MIN {
        return Ok(());
    }
    Err("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.".to_owned())
}

const NODE_ID: Kind = Kind::Int(0, i32::MAX);
const TIMES: [&str; 5] = [
    "log.roll.ms",
    "log.roll.jitter.ms",
    "log.retention.ms",
    "log.retention.minutes",
    "log.retention.hours",
];

/// Limits of times that Kafka checks beside its tables of limits; fine for every other setting.
pub fn check_time(name: &str, value: &str) -> Result<(), String> {
    let Ok(value) = value.trim().parse::<i64>() else {
        return Ok(());
    };
    match name {
        "log.roll.ms" if value < 1 => Err(format!("{name} must be greater than or equal to 1")),
        "log.roll.jitter.ms" if value < 0 => {
            Err(format!("{name} must be greater than or equal to 0"))
        }
        "log.retention.ms" | "log.retention.minutes" | "log.retention.hours"
            if value == 0 || value < -1 =>
        {
            Err(format!(
                "{name} must be unlimited (-1) or, equal or greater than 1"
            ))
        }
        _ => Ok(()),
    }
}

/// What no single value shows. The rules are Kafka's (KafkaConfig.validateValues), for the settings
/// that act here.
fn check_together(read: &Reader<'_>) -> Result<(), ConfigError> {
    for name in TIMES {
        check_time(name, read.text(name).unwrap_or_default())
            .map_err(|what| read.bad(name, what))?;
    }
    let (id, old) = (read.given.get("node.id"), read.given.get("broker.id"));
    if let (Some(id), Some(old)) = (id, old)
        && id.value.trim() != old.value.trim()
    {
        let what = format!(
            "broker.id is {}, node.id is {}: they must be the same",
            old.value, id.value
        );
        return Err(read.bad("broker.id", what));
    }
    check("node.id", NODE_ID, read.text("node.id").unwrap_or_default())
        .map_err(|bad| read.bad("node.id", bad.to_string()))?;
    let dedupe = "log.cleaner.dedupe.buffer.size";
    check_dedupe_buffer(read.number(dedupe)?, read.number("log.cleaner.threads")?)
        .map_err(|what| read.bad(dedupe, what))?;
    let least: i64 = read.number("log.cleaner.min.compaction.lag.ms")?;
    let most: i64 = read.number("log.cleaner.max.compaction.lag.ms")?;
    if least > most {
        // In Kafka's words (LogConfig.validateBrokerLogConfigValues).
        let what = format!(
            "conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        );
        return Err(read.bad("log.cleaner.min.compaction.lag.ms", what));
    }
    let least: i64 = read.number("group.min.session.timeout.ms")?;
    let most: i64 = read.number("group.max.session.timeout.ms")?;
    if least > most {
        let what = format!(
            "group.min.session.timeout.ms ({least}) is above group.max.session.timeout.ms ({most})"
        );
        return Err(ConfigError::Together(what));
    }
    if read.number::<i64>("max.connections.per.ip")? == 0
        && read
            .text("max.connections.per.ip.overrides")
            .unwrap_or_default()
            .trim()
            .is_empty()
    {
        let what =
            "max.connections.per.ip can be 0 only if max.connections.per.ip.overrides is set";
        return Err(read.bad("max.connections.per.ip", what.into()));
    }
    Ok(())
}

struct Reader<'a> {
    given: &'a BTreeMap<String, Property>,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        match self.given.get(name) {
            Some(property) => Some(property.value.as_str()),
            None => broker_definition(name)?.default,
        }
    }

    fn bad(&self, name: &str, what: String) -> ConfigError {
        match self.given.get(name) {
            Some(property) => ConfigError::BadValue {
                origin: property.origin.clone(),
                what,
            },
            None => ConfigError::Together(format!("{name}: {what}")),
        }
    }

    /// A number; what was given has been checked against its bounds already.
    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, ConfigError> {
        let text = self.text(name).unwrap_or_default().trim();
        text.parse().map_err(|_| {
            self.bad(
                name,
                format!("Invalid value {text} for configuration {name}"),
            )
        })
    }

    fn listeners(&self, name: &str) -> Result<Vec<Listener>, ConfigError> {
        listeners::parse(self.text(name).unwrap_or_default()).map_err(|what| self.bad(name, what))
    }

    fn overrides(&self, name: &str) -> Result<Vec<(IpAddr, usize)>, ConfigError> {
        items(self.text(name).unwrap_or_default())
            .map(|item| {
                let parsed = item.rsplit_once(':').and_then(|(host, limit)| {
                    let host = host.trim_matches(['[', ']']);
                    Some((host.parse().ok()?, limit.parse().ok()?))
                });
                parsed.ok_or_else(|| {
                    self.bad(name, format!("'{item}' is not of the form address:number"))
                })
            })
            .collect()
    }
}

fn protocol_map(text: &str) -> BTreeMap<String, Option<SecurityProtocol>> {
    items(text)
        .filter_map(|item| item.split_once(':'))
        .map(|(name, protocol)| {
            (
                name.trim().to_ascii_uppercase(),
                SecurityProtocol::parse(protocol.trim()),
            )
        })
        .collect()
}

/// The known key that is most like `key`, if one is like it at all.
fn nearest(key: &str) -> Option<&'static str> {
    broker_definitions()
        .into_iter()
        .filter(|definition| !definition.hidden)
        .map(|definition| definition.name)
        .map(|name| (distance(key, name), name))
        .min()
        .filter(|(distance, name)| *distance <= 3.max(name.len() / 4))
        .map(|(_, name)| name)
}

/// Edits from `a` to `b` (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
#[path = "broker_tests.rs"]
mod tests;
