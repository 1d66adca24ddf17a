//! Which value holds where several layers say something: the topic, this broker's dynamic
//! settings, the cluster's dynamic default, the property file, the default; and how tools are told
//! of it (DescribeConfigs). Pure.

use super::broker::{BrokerConfig, kind_of};
use super::definition::{Kind, items};
use super::topic_table::{TopicDefinition, topic_definition, topic_definitions};
use crate::log::{LogConfig, SegmentIo};
use crate::wire::batch::TimestampType;
use crate::wire::codec::Codec;
use std::collections::BTreeMap;

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
}

/// One layer's word on a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    pub name: String,
    pub value: Option<String>,
    pub source: i8,
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

impl<'a> Layers<'a> {
    /// Every word on a broker setting, the one that holds first.
    fn broker_words(&self, name: &str) -> Vec<Synonym> {
        let mut words = Vec::new();
        let mut say = |name: &str, value: Option<&str>, source: Source| {
            words.push(Synonym {
                name: name.to_owned(),
                value: value.map(str::to_owned),
                source: source as i8,
            });
        };
        for (values, source) in
            [(self.broker, Source::DynamicBroker), (self.cluster, Source::DynamicDefaultBroker)]
        {
            if let Some(value) = values.and_then(|values| values.get(name)) {
                say(name, Some(value), source);
            }
        }
        for (older, _) in older_names(name) {
            if self.config.is_given(older) {
                say(older, self.config.value(older), Source::StaticBroker);
            }
        }
        let default = super::broker_definition(name).and_then(|definition| definition.default);
        if default.is_some() {
            say(name, default, Source::Default);
        }
        words
    }

    /// The value a topic's setting has, in the unit of the topic's setting.
    pub fn topic_value(&self, name: &str, topic: &Values) -> String {
        if let Some(value) = topic.get(name) {
            return value.clone();
        }
        let Some(definition) = topic_definition(name) else { return String::new() };
        self.inherited(definition).0
    }

    /// The value a topic inherits, and where it comes from.
    fn inherited(&self, definition: &TopicDefinition) -> (String, Source) {
        let name = definition.broker_synonym;
        if !name.is_empty() {
            for (values, source) in
                [(self.broker, Source::DynamicBroker), (self.cluster, Source::DynamicDefaultBroker)]
            {
                if let Some(value) = values.and_then(|values| values.get(name)) {
                    return (value.clone(), source);
                }
            }
            for (older, unit_ms) in older_names(name) {
                if let Some(value) = self.config.value(older).filter(|_| self.config.is_given(older)) {
                    return (in_ms(value, unit_ms), Source::StaticBroker);
                }
            }
        }
        (definition.default.to_owned(), Source::Default)
    }

    /// All settings of a topic with its own values `topic`.
    pub fn describe_topic(&self, topic: &Values) -> Vec<Described> {
        topic_definitions()
            .iter()
            .map(|definition| {
                let own = topic.get(definition.name);
                let (value, source) = match own {
                    Some(value) => (value.clone(), Source::Topic),
                    None => self.inherited(definition),
                };
                let mut synonyms: Vec<Synonym> = own
                    .map(|value| Synonym {
                        name: definition.name.to_owned(),
                        value: Some(value.clone()),
                        source: Source::Topic as i8,
                    })
                    .into_iter()
                    .collect();
                if !definition.broker_synonym.is_empty() {
                    synonyms.extend(self.broker_words(definition.broker_synonym));
                }
                Described {
                    name: definition.name,
                    value: Some(value),
                    read_only: false,
                    sensitive: false,
                    source: source as i8,
                    kind: definition.kind.code(),
                    doc: definition.doc,
                    synonyms,
                }
            })
            .collect()
    }

    /// All settings of this broker.
    pub fn describe_broker(&self) -> Vec<Described> {
        self.config
            .values()
            .into_iter()
            .map(|(definition, value, given)| {
                let dynamic = self.broker.and_then(|values| values.get(definition.name));
                let default = self.cluster.and_then(|values| values.get(definition.name));
                let (value, source) = match (dynamic, default) {
                    (Some(value), _) => (Some(value.clone()), Source::DynamicBroker),
                    (None, Some(value)) => (Some(value.clone()), Source::DynamicDefaultBroker),
                    (None, None) if given => (value, Source::StaticBroker),
                    (None, None) => (value, Source::Default),
                };
                let sensitive = definition.kind == Kind::Password;
                Described {
                    name: definition.name,
                    // What is secret is never told.
                    value: value.filter(|_| !sensitive),
                    read_only: !definition.dynamic,
                    sensitive,
                    source: source as i8,
                    kind: definition.kind.code(),
                    doc: definition.doc,
                    synonyms: if sensitive { Vec::new() } else { self.broker_words(definition.name) },
                }
            })
            .collect()
    }

    /// `min.insync.replicas` of a topic.
    pub fn min_in_sync(&self, topic: &Values) -> usize {
        self.topic_value("min.insync.replicas", topic).parse().unwrap_or(1)
    }

    /// What a partition's log runs with.
    pub fn log_config(&self, topic: &Values) -> LogConfig {
        let text = |name: &str| self.topic_value(name, topic);
        let long = |name: &str| text(name).trim().parse::<i64>().unwrap_or(i64::MAX);
        let size = |name: &str| long(name).clamp(0, i64::from(u32::MAX)) as u32;
        let policy = text("cleanup.policy");
        let (compression, compression_level) = match text("compression.type").as_str() {
            "uncompressed" => (Some(Codec::None), None),
            "gzip" => (Some(Codec::Gzip), Some(long("compression.gzip.level") as i32)),
            "snappy" => (Some(Codec::Snappy), None),
            "lz4" => (Some(Codec::Lz4), Some(long("compression.lz4.level") as i32)),
            "zstd" => (Some(Codec::Zstd), Some(long("compression.zstd.level") as i32)),
            _ => (None, None),
        };
        LogConfig {
            segment_bytes: size("segment.bytes"),
            segment_ms: long("segment.ms"),
            segment_jitter_ms: long("segment.jitter.ms"),
            index_interval_bytes: size("index.interval.bytes"),
            segment_index_bytes: size("segment.index.bytes"),
            max_message_bytes: size("max.message.bytes"),
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

/// The names a broker setting goes by in a property file, the one that wins first, with the unit
/// of each in the setting's own.
fn older_names(name: &str) -> Vec<(&str, i64)> {
    match name {
        "log.retention.ms" => vec![
            (name, 1),
            ("log.retention.minutes", MINUTE_MS),
            ("log.retention.hours", HOUR_MS),
        ],
        "log.roll.ms" => vec![(name, 1), ("log.roll.hours", HOUR_MS)],
        "log.roll.jitter.ms" => vec![(name, 1), ("log.roll.jitter.hours", HOUR_MS)],
        _ => vec![(name, 1)],
    }
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

/// Whether brokers may have this setting changed while they run.
pub fn is_dynamic(name: &str) -> bool {
    kind_of(name).is_some() && super::broker_definition(name).is_some_and(|known| known.dynamic)
}

#[cfg(test)]
mod tests {
    use super::super::properties;
    use super::*;

    fn config(text: &str) -> BrokerConfig {
        BrokerConfig::from_properties(properties::parse("f", text).unwrap()).unwrap()
    }

    fn values(pairs: &[(&str, &str)]) -> Values {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_nearest_layer_that_speaks_wins() {
        let config = config("log.retention.hours=2\nlog.segment.bytes=2097152");
        let cluster = values(&[("log.segment.bytes", "3145728")]);
        let broker = values(&[("log.segment.bytes", "4194304")]);
        let topic = values(&[("segment.bytes", "5242880")]);
        let bare = Layers { config: &config, broker: None, cluster: None };
        let none = Values::new();
        assert_eq!(bare.topic_value("segment.bytes", &none), "2097152");
        assert_eq!(bare.topic_value("retention.ms", &none), "7200000");
        assert_eq!(bare.topic_value("max.message.bytes", &none), "1048588");
        let all = Layers { config: &config, broker: Some(&broker), cluster: Some(&cluster) };
        assert_eq!(all.topic_value("segment.bytes", &none), "4194304");
        assert_eq!(all.topic_value("segment.bytes", &topic), "5242880");
        let told = all.describe_topic(&topic).into_iter().find(|told| told.name == "segment.bytes").unwrap();
        let sources: Vec<i8> = told.synonyms.iter().map(|synonym| synonym.source).collect();
        assert_eq!(sources, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn milliseconds_win_over_minutes_over_hours() {
        let none = Values::new();
        let value = |text| {
            let config = config(text);
            Layers { config: &config, broker: None, cluster: None }.topic_value("retention.ms", &none)
        };
        assert_eq!(value("log.retention.minutes=3\nlog.retention.hours=1"), "180000");
        assert_eq!(value("log.retention.ms=5\nlog.retention.minutes=3"), "5");
        assert_eq!(value("log.retention.hours=-1"), "-1");
    }

    #[test]
    fn a_log_runs_with_what_its_topic_says() {
        let config = config("");
        let layers = Layers { config: &config, broker: None, cluster: None };
        let topic = values(&[("cleanup.policy", "compact,delete"), ("flush.messages", "1")]);
        let log = layers.log_config(&topic);
        assert!(log.compact && log.delete);
        assert_eq!(log.flush_messages, 1);
        assert_eq!(layers.log_config(&Values::new()), LogConfig::default());
    }
}
