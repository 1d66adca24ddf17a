//! Which value holds where several layers say something: the topic, this broker's dynamic
//! settings, the cluster's dynamic default, the property file, the default; and how tools are told
//! of it (DescribeConfigs). Pure.

use super::broker::BrokerConfig;
use super::broker_table::{broker_definition, broker_definitions};
use super::definition::{Definition, Kind, items, shown};
use super::group_table::{client_metrics_definitions, group_definitions};
use super::topic_table::{TopicDefinition, topic_definition, topic_definitions};
use crate::log::validator::INFLATED_BYTES_DEFAULT;
use crate::log::{CleanerSettings, LogConfig, ProducerLimits, SegmentIo};
use crate::wire::batch::TimestampType;
use crate::wire::codec::Codec;
use std::collections::BTreeMap;
use std::time::Duration;

type Values = BTreeMap<String, String>;

/// Where a value comes from (DescribeConfigs' config_source).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum Source {
    Topic = 1,
    DynamicBroker = 2,
    DynamicDefaultBroker = 3,
    StaticBroker = 4,
    Default = 5,
    ClientMetrics = 7,
    Group = 8,
}

/// One layer's word on a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    pub name: String,
    pub value: Option<String>,
    pub source: i8,
}

impl Synonym {
    fn new(name: &str, value: &str, source: Source) -> Synonym {
        Synonym {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            source: source as i8,
        }
    }
}

/// A setting as a tool is told it.
#[derive(Clone, Debug)]
pub struct Described {
    pub name: &'static str,
    pub value: Option<String>,
    pub read_only: bool,
    pub sensitive: bool,
    pub source: i8,
    pub kind: i8,
    pub doc: &'static str,
    pub synonyms: Vec<Synonym>,
}

/// The layers below a topic.
#[derive(Clone, Copy)]
pub struct Layers<'a> {
    pub config: &'a BrokerConfig,
    /// Dynamic settings of this broker.
    pub broker: Option<&'a Values>,
    /// Dynamic settings of all brokers.
    pub cluster: Option<&'a Values>,
}

impl Layers<'_> {
    /// Every word on a broker setting, the one that holds first. A word under another of the
    /// setting's names counts only behind one under its own: that is how Kafka tells them.
    fn words(&self, name: &str, sensitive: bool) -> Vec<Synonym> {
        let names: Vec<&str> = names(name).into_iter().map(|(name, _)| name).collect();
        let mut words = Vec::new();
        let mut say = |name: &str, value: &str, source: Source| {
            let value = (!sensitive).then(|| value.to_owned());
            words.push(Synonym {
                name: name.to_owned(),
                value,
                source: source as i8,
            });
        };
        for (values, source) in [
            (self.broker, Source::DynamicBroker),
            (self.cluster, Source::DynamicDefaultBroker),
        ] {
            for name in &names {
                if let Some(value) = values.and_then(|values| values.get(*name)) {
                    say(name, value, source);
                }
            }
        }
        for name in &names {
            if let Some(value) = self.config.given(name) {
                say(name, value, Source::StaticBroker);
            }
        }
        for name in &names {
            if let Some(default) = broker_definition(name).and_then(|definition| definition.default)
            {
                say(name, default, Source::Default);
            }
        }
        let own = words
            .iter()
            .position(|word| word.name == name)
            .unwrap_or(words.len());
        words.split_off(own)
    }

    /// The value a topic's setting has, in the unit of the topic's setting.
    pub fn topic_value(&self, name: &str, topic: &Values) -> String {
        if let Some(value) = topic.get(name) {
            return value.clone();
        }
        let Some(definition) = topic_definition(name) else {
            return String::new();
        };
        self.inherited(definition).0
    }

    /// The value a topic inherits, and where it comes from.
    fn inherited(&self, definition: &TopicDefinition) -> (String, Source) {
        let names = match definition.broker_synonym {
            "" => Vec::new(),
            name => names(name),
        };
        for (values, source) in [
            (self.broker, Source::DynamicBroker),
            (self.cluster, Source::DynamicDefaultBroker),
        ] {
            for (name, unit_ms) in &names {
                if let Some(value) = values.and_then(|values| values.get(*name)) {
                    return (in_ms(value, *unit_ms), source);
                }
            }
        }
        for (name, unit_ms) in &names {
            if let Some(value) = self.config.given(name) {
                return (in_ms(value, *unit_ms), Source::StaticBroker);
            }
        }
        (definition.default.to_owned(), Source::Default)
    }

    /// All settings of a topic with its own values `topic`, as DescribeConfigs tells them.
    pub fn describe_topic(&self, topic: &Values) -> Vec<Described> {
        topic_definitions()
            .iter()
            .map(|definition| {
                let own = topic.get(definition.name);
                let mut synonyms: Vec<Synonym> = own
                    .map(|value| Synonym::new(definition.name, value, Source::Topic))
                    .into_iter()
                    .collect();
                if !definition.broker_synonym.is_empty() {
                    synonyms.extend(self.words(definition.broker_synonym, false));
                }
                let value = own.cloned().unwrap_or_else(|| self.inherited(definition).0);
                told(
                    definition.name,
                    definition.kind,
                    &value,
                    definition.doc,
                    synonyms,
                )
            })
            .collect()
    }

    /// All settings of a topic, as CreateTopics tells them: there a value inherited under another
    /// name of its broker setting counts as the property file's.
    pub fn describe_new_topic(&self, topic: &Values) -> Vec<Described> {
        let mut all = self.describe_topic(topic);
        for described in &mut all {
            if let Some(definition) = topic_definition(described.name)
                && !topic.contains_key(described.name)
            {
                described.source = self.inherited(definition).1 as i8;
            }
        }
        all
    }

    /// All settings of this broker, as DescribeConfigs tells them.
    pub fn describe_broker(&self) -> Vec<Described> {
        let known = broker_definitions()
            .into_iter()
            .filter(|known| !known.hidden || self.config.given(known.name).is_some())
            .map(|definition| self.describe_one(definition.name, definition));
        let of_listeners = self
            .config
            .listener_settings()
            .map(|(name, definition)| Described {
                read_only: true,
                ..self.describe_one(name, definition)
            });
        known.chain(of_listeners).collect()
    }

    fn describe_one(&self, name: &'static str, definition: &'static Definition) -> Described {
        let sensitive = definition.is_sensitive();
        let mut synonyms = self.words(name, sensitive);
        if name != definition.name {
            synonyms.extend(self.words(definition.name, sensitive));
        }
        let dynamic = [self.broker, self.cluster].into_iter().find_map(|values| {
            values
                .and_then(|values| values.get(name))
                .map(String::as_str)
        });
        let value = dynamic.or_else(|| self.config.value(name));
        Described {
            name,
            // What is secret is never told.
            value: value
                .filter(|_| !sensitive)
                .map(|value| shown(definition.kind, value)),
            read_only: !definition.is_dynamic(),
            sensitive,
            source: synonyms
                .first()
                .map_or(Source::Default as i8, |first| first.source),
            kind: definition.kind.code(),
            doc: definition.doc,
            synonyms,
        }
    }

    /// The dynamic settings that hold for all brokers, as DescribeConfigs of the broker "" tells
    /// them.
    pub fn describe_cluster(&self) -> Vec<Described> {
        let values = self.cluster.into_iter().flatten();
        values
            .filter_map(|(name, value)| {
                let definition = broker_definition(name)?;
                let sensitive = definition.is_sensitive();
                let mut synonym = Synonym::new(name, value, Source::DynamicDefaultBroker);
                synonym.value = synonym.value.filter(|_| !sensitive);
                Some(Described {
                    name: definition.name,
                    value: (!sensitive).then(|| shown(definition.kind, value)),
                    read_only: !definition.is_dynamic(),
                    sensitive,
                    source: Source::DynamicDefaultBroker as i8,
                    kind: definition.kind.code(),
                    doc: definition.doc,
                    synonyms: vec![synonym],
                })
            })
            .collect()
    }

    /// All settings of a group with its own values.
    pub fn describe_group(&self, group: &Values) -> Vec<Described> {
        group_definitions()
            .iter()
            .map(|definition| {
                let own = group.get(definition.name);
                let mut synonyms: Vec<Synonym> = own
                    .map(|value| Synonym::new(definition.name, value, Source::Group))
                    .into_iter()
                    .collect();
                match definition.broker_synonym {
                    "" => synonyms.push(Synonym::new(
                        definition.name,
                        definition.default,
                        Source::Default,
                    )),
                    broker => synonyms.extend(self.words(broker, false)),
                }
                let value = own
                    .cloned()
                    .unwrap_or_else(|| match definition.broker_synonym {
                        "" => definition.default.to_owned(),
                        broker => self.broker_value(broker),
                    });
                told(
                    definition.name,
                    definition.kind,
                    &value,
                    definition.doc,
                    synonyms,
                )
            })
            .collect()
    }

    /// The value that a broker setting has now; "" for null.
    pub fn broker_value(&self, name: &str) -> String {
        [self.broker, self.cluster]
            .into_iter()
            .find_map(|values| {
                values
                    .and_then(|values| values.get(name))
                    .map(String::as_str)
            })
            .or_else(|| self.config.value(name))
            .unwrap_or_default()
            .to_owned()
    }

    /// `min.insync.replicas` of a topic.
    pub fn min_in_sync(&self, topic: &Values) -> usize {
        self.topic_value("min.insync.replicas", topic)
            .parse()
            .unwrap_or(1)
    }

    /// What the cleaner of each of `shards` runs with.
    pub fn cleaner_settings(&self, shards: usize) -> CleanerSettings {
        let text = |name: &str| self.broker_value(name);
        let long = |name: &str| text(name).trim().parse::<i64>().unwrap_or(0).max(0) as u64;
        let float = |name: &str| text(name).trim().parse::<f64>().unwrap_or(f64::MAX);
        let all = CleanerSettings {
            enabled: text("log.cleaner.enable").eq_ignore_ascii_case("true"),
            backoff: Duration::from_millis(long("log.cleaner.backoff.ms")),
            dedupe_bytes: long("log.cleaner.dedupe.buffer.size"),
            load_factor: float("log.cleaner.io.buffer.load.factor"),
            io_buffer_bytes: long("log.cleaner.io.buffer.size") as usize,
            io_bytes_per_second: float("log.cleaner.io.max.bytes.per.second"),
        };
        all.shared_by(shards)
    }

    /// What the producer state of every partition runs with.
    pub fn producer_limits(&self) -> ProducerLimits {
        let text = |name: &str| self.broker_value(name);
        let usual = ProducerLimits::default();
        ProducerLimits {
            expiration_ms: text("producer.id.expiration.ms")
                .trim()
                .parse()
                .unwrap_or(usual.expiration_ms),
            verify_transactions: !text("transaction.partition.verification.enable")
                .eq_ignore_ascii_case("false"),
            ..usual
        }
    }

    /// What a partition's log runs with.
    pub fn log_config(&self, topic: &Values) -> LogConfig {
        let text = |name: &str| self.topic_value(name, topic);
        let long = |name: &str| text(name).trim().parse::<i64>().unwrap_or(i64::MAX);
        let size = |name: &str| long(name).clamp(0, i64::from(u32::MAX)) as u32;
        let policy = text("cleanup.policy");
        let (compression, compression_level) = match text("compression.type").as_str() {
            "uncompressed" => (Some(Codec::None), None),
            "gzip" => (
                Some(Codec::Gzip),
                Some(long("compression.gzip.level") as i32),
            ),
            "snappy" => (Some(Codec::Snappy), None),
            "lz4" => (Some(Codec::Lz4), Some(long("compression.lz4.level") as i32)),
            "zstd" => (
                Some(Codec::Zstd),
                Some(long("compression.zstd.level") as i32),
            ),
            _ => (None, None),
        };
        LogConfig {
            segment_bytes: size("segment.bytes"),
            segment_ms: long("segment.ms"),
            segment_jitter_ms: long("segment.jitter.ms"),
            index_interval_bytes: size("index.interval.bytes"),
            segment_index_bytes: size("segment.index.bytes"),
            max_message_bytes: size("max.message.bytes"),
            max_decompressed_message_bytes: size("max.decompressed.message.bytes"),
            inflated_batch_bytes: self
                .broker_value("highwater.inflated.batch.bytes")
                .trim()
                .parse()
                .unwrap_or(INFLATED_BYTES_DEFAULT as u32),
            compact: items(&policy).any(|item| item == "compact"),
            delete: items(&policy).any(|item| item == "delete"),
            timestamp_type: if text("message.timestamp.type") == "LogAppendTime" {
                TimestampType::LogAppendTime
            } else {
                TimestampType::CreateTime
            },
            timestamp_before_max_ms: long("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: long("message.timestamp.after.max.ms"),
            compression,
            compression_level,
            retention_ms: long("retention.ms"),
            retention_bytes: long("retention.bytes"),
            delete_retention_ms: long("delete.retention.ms"),
            min_cleanable_dirty_ratio: text("min.cleanable.dirty.ratio")
                .trim()
                .parse()
                .unwrap_or(0.5),
            min_compaction_lag_ms: long("min.compaction.lag.ms"),
            max_compaction_lag_ms: long("max.compaction.lag.ms"),
            flush_messages: long("flush.messages"),
            flush_ms: long("flush.ms"),
            file_delete_delay_ms: long("file.delete.delay.ms"),
            segment_io: if text("highwater.segment.io") == "direct" {
                SegmentIo::Direct
            } else {
                SegmentIo::Buffered
            },
            preallocate: text("preallocate").eq_ignore_ascii_case("true"),
        }
    }
}

const HOUR_MS: i64 = 3_600_000;
const MINUTE_MS: i64 = 60_000;

/// All settings of a client-metrics subscription with its own values.
pub fn describe_client_metrics(subscription: &Values) -> Vec<Described> {
    client_metrics_definitions()
        .iter()
        .map(|definition| {
            let own = subscription.get(definition.name);
            let synonym = match own {
                Some(value) => Synonym::new(definition.name, value, Source::ClientMetrics),
                None => Synonym::new(definition.name, definition.default, Source::Default),
            };
            let value = own.map_or(definition.default, String::as_str);
            told(
                definition.name,
                definition.kind,
                value,
                definition.doc,
                vec![synonym],
            )
        })
        .collect()
}

/// A setting that may always be changed and is no secret.
fn told(
    name: &'static str,
    kind: Kind,
    value: &str,
    doc: &'static str,
    synonyms: Vec<Synonym>,
) -> Described {
    Described {
        name,
        value: Some(shown(kind, value)),
        read_only: false,
        sensitive: false,
        source: synonyms
            .first()
            .map_or(Source::Default as i8, |first| first.source),
        kind: kind.code(),
        doc,
        synonyms,
    }
}

/// The names a broker setting goes by, the one that wins first, with the unit of each in
/// milliseconds where the setting is a time. Any of them is a name of all.
fn names(name: &str) -> Vec<(&str, i64)> {
    const RETENTION: [(&str, i64); 3] = [
        ("log.retention.ms", 1),
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    ];
    const ROLL: [(&str, i64); 2] = [("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)];
    const JITTER: [(&str, i64); 2] = [
        ("log.roll.jitter.ms", 1),
        ("log.roll.jitter.hours", HOUR_MS),
    ];
    const FLUSH: [(&str, i64); 2] = [
        ("log.flush.interval.ms", 1),
        ("log.flush.scheduler.interval.ms", 1),
    ];
    [&RETENTION[..], &ROLL, &JITTER, &FLUSH]
        .into_iter()
        .find(|group| group.iter().any(|(known, _)| *known == name))
        .map_or_else(|| vec![(name, 1)], <[_]>::to_vec)
}

fn in_ms(value: &str, unit: i64) -> String {
    if unit == 1 {
        return value.to_owned();
    }
    match value.trim().parse::<i64>() {
        // Without limit, in any unit.
        Ok(number) if number < 0 => "-1".to_owned(),
        Ok(number) => number.saturating_mul(unit).to_string(),
        Err(_) => value.to_owned(),
    }
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
