//! Which layer holds, and how tools are told: with what Apache Kafka 4.4 answers to the same.

use super::super::properties;
use super::*;

fn config(text: &str) -> BrokerConfig {
    BrokerConfig::from_properties(properties::parse("f", text).unwrap()).unwrap()
}

fn values(pairs: &[(&str, &str)]) -> Values {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn the_nearest_layer_that_speaks_wins() {
    let config = config("log.retention.hours=2\nlog.segment.bytes=2097152");
    let cluster = values(&[("log.segment.bytes", "3145728")]);
    let broker = values(&[("log.segment.bytes", "4194304")]);
    let topic = values(&[("segment.bytes", "5242880")]);
    let bare = Layers {
        config: &config,
        broker: None,
        cluster: None,
    };
    let none = Values::new();
    assert_eq!(bare.topic_value("segment.bytes", &none), "2097152");
    assert_eq!(bare.topic_value("retention.ms", &none), "7200000");
    assert_eq!(bare.topic_value("max.message.bytes", &none), "1048588");
    let all = Layers {
        config: &config,
        broker: Some(&broker),
        cluster: Some(&cluster),
    };
    assert_eq!(all.topic_value("segment.bytes", &none), "4194304");
    assert_eq!(all.topic_value("segment.bytes", &topic), "5242880");
    let told = all
        .describe_topic(&topic)
        .into_iter()
        .find(|told| told.name == "segment.bytes")
        .unwrap();
    let sources: Vec<i8> = told.synonyms.iter().map(|synonym| synonym.source).collect();
    assert_eq!(sources, [1, 2, 3, 4, 5]);
}

#[test]
fn milliseconds_win_over_minutes_over_hours() {
    let none = Values::new();
    let value = |text| {
        let config = config(text);
        Layers {
            config: &config,
            broker: None,
            cluster: None,
        }
        .topic_value("retention.ms", &none)
    };
    assert_eq!(
        value("log.retention.minutes=3\nlog.retention.hours=1"),
        "180000"
    );
    assert_eq!(value("log.retention.ms=5\nlog.retention.minutes=3"), "5");
    assert_eq!(value("log.retention.hours=-1"), "-1");
}

fn find<'a>(all: &'a [Described], name: &str) -> &'a Described {
    all.iter().find(|told| told.name == name).unwrap()
}

fn words(told: &Described) -> Vec<(&str, &str, i8)> {
    let value = |synonym: &'_ Synonym| synonym.value.as_deref().unwrap_or("null").to_owned();
    told.synonyms
        .iter()
        .map(|synonym| {
            (
                synonym.name.as_str(),
                &*value(synonym).leak(),
                synonym.source,
            )
        })
        .collect()
}

/// What Kafka 4.4 answers with the same file.
#[test]
fn a_value_under_another_name_is_told_as_kafka_tells_it() {
    let config = config(
        "log.retention.hours=2\nlog.flush.scheduler.interval.ms=5000\nlog.cleanup.policy=compact, delete\n\
         auto.create.topics.enable=FALSE",
    );
    let cluster = values(&[("log.retention.ms", "223456")]);
    let bare = Layers {
        config: &config,
        broker: None,
        cluster: None,
    };
    let none = Values::new();
    let topic = bare.describe_topic(&none);
    let told = find(&topic, "retention.ms");
    assert_eq!(
        (told.value.as_deref(), told.source, words(told)),
        (Some("7200000"), 5, vec![])
    );
    let told = find(&topic, "flush.ms");
    assert_eq!(
        (told.value.as_deref(), told.source, words(told)),
        (Some("5000"), 5, vec![])
    );
    let told = find(&topic, "cleanup.policy");
    let expected = vec![
        ("log.cleanup.policy", "compact, delete", 4),
        ("log.cleanup.policy", "delete", 5),
    ];
    assert_eq!(
        (told.value.as_deref(), told.source, words(told)),
        (Some("compact,delete"), 4, expected)
    );
    assert_eq!(
        find(&bare.describe_new_topic(&none), "retention.ms").source,
        4
    );

    let dynamic = Layers {
        cluster: Some(&cluster),
        ..bare
    };
    let topic = dynamic.describe_topic(&none);
    let expected = vec![
        ("log.retention.ms", "223456", 3),
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ];
    assert_eq!(words(find(&topic, "retention.ms")), expected);
    let broker = dynamic.describe_broker();
    let told = find(&broker, "log.retention.ms");
    assert_eq!(
        (told.value.as_deref(), told.source, told.read_only),
        (Some("223456"), 3, false)
    );
    let told = find(&broker, "log.retention.hours");
    assert_eq!(
        words(told),
        vec![
            ("log.retention.hours", "2", 4),
            ("log.retention.hours", "168", 5)
        ]
    );
    let told = find(&broker, "auto.create.topics.enable");
    assert_eq!(
        (told.value.as_deref(), told.read_only, told.kind),
        (Some("false"), true, 1)
    );
    assert_eq!(dynamic.describe_cluster().len(), 1);
}

#[test]
fn what_is_secret_is_never_told() {
    let config = config("ssl.keystore.password=hush");
    let layers = Layers {
        config: &config,
        broker: None,
        cluster: None,
    };
    let broker = layers.describe_broker();
    let told = find(&broker, "ssl.keystore.password");
    assert!(told.sensitive && told.value.is_none());
    assert!(!format!("{broker:?}").contains("hush"));
}

#[test]
fn settings_for_one_listener_are_told_with_what_they_replace() {
    let config = config("listener.name.plaintext.max.connections=7");
    let layers = Layers {
        config: &config,
        broker: None,
        cluster: None,
    };
    let broker = layers.describe_broker();
    let told = find(&broker, "listener.name.plaintext.max.connections");
    let expected = vec![
        ("listener.name.plaintext.max.connections", "7", 4),
        ("max.connections", "2147483647", 5),
    ];
    assert_eq!(
        (told.value.as_deref(), told.kind, words(told)),
        (Some("7"), 3, expected)
    );
}

#[test]
fn a_group_is_told_its_own_values_before_the_brokers() {
    let config = config("group.consumer.session.timeout.ms=46000");
    let layers = Layers {
        config: &config,
        broker: None,
        cluster: None,
    };
    let group = layers.describe_group(&values(&[("consumer.session.timeout.ms", "50000")]));
    let told = find(&group, "consumer.session.timeout.ms");
    let sources: Vec<i8> = told.synonyms.iter().map(|synonym| synonym.source).collect();
    assert_eq!(
        (told.value.as_deref(), sources),
        (Some("50000"), vec![8, 4, 5])
    );
    let group = layers.describe_group(&Values::new());
    assert_eq!(
        find(&group, "consumer.session.timeout.ms").value.as_deref(),
        Some("46000")
    );
    assert_eq!(
        words(find(&group, "share.isolation.level")),
        vec![("share.isolation.level", "read_uncommitted", 5)]
    );
    let metrics = describe_client_metrics(&values(&[("interval.ms", "100")]));
    assert_eq!(find(&metrics, "interval.ms").source, 7);
}

#[test]
fn a_log_runs_with_what_its_topic_says() {
    let config = config("");
    let layers = Layers {
        config: &config,
        broker: None,
        cluster: None,
    };
    let topic = values(&[
        ("cleanup.policy", "compact,delete"),
        ("flush.messages", "1"),
    ]);
    let log = layers.log_config(&topic);
    assert!(log.compact && log.delete);
    assert_eq!(log.flush_messages, 1);
    assert_eq!(layers.log_config(&Values::new()), LogConfig::default());
}

#[test]
fn a_topic_is_compacted_as_it_says_and_else_as_the_broker_says() {
    let config = config("log.cleaner.delete.retention.ms=5\nlog.cleaner.min.cleanable.ratio=0.25");
    let layers = Layers {
        config: &config,
        broker: None,
        cluster: None,
    };
    let topic = values(&[
        ("min.compaction.lag.ms", "10"),
        ("max.compaction.lag.ms", "20"),
        ("delete.retention.ms", "7"),
    ]);
    let log = layers.log_config(&topic);
    let lags = (log.min_compaction_lag_ms, log.max_compaction_lag_ms);
    assert_eq!((lags, log.delete_retention_ms), ((10, 20), 7));
    assert_eq!(log.min_cleanable_dirty_ratio, 0.25);
    assert_eq!(layers.log_config(&Values::new()).delete_retention_ms, 5);
}

#[test]
fn the_cleaners_of_all_shards_share_what_the_broker_gives() {
    let config = config("log.cleaner.io.max.bytes.per.second=3e6\nlog.cleaner.backoff.ms=7");
    let cluster = values(&[("log.cleaner.dedupe.buffer.size", "8388608")]);
    let layers = Layers {
        config: &config,
        broker: None,
        cluster: Some(&cluster),
    };
    let settings = layers.cleaner_settings(4);
    assert!(settings.enabled);
    assert_eq!(settings.backoff.as_millis(), 7);
    assert_eq!(settings.dedupe_bytes, 2 << 20);
    assert_eq!(settings.io_buffer_bytes, 128 << 10);
    assert_eq!(settings.io_bytes_per_second, 750_000.0);
    let plain = Layers {
        cluster: None,
        config: &super::super::BrokerConfig::load(None, &[]).unwrap(),
        ..layers
    };
    assert_eq!(plain.cleaner_settings(1), CleanerSettings::default());
}

#[test]
fn what_a_batch_may_inflate_to_is_the_brokers_setting() {
    for (line, bytes) in [
        ("", 64 << 20),
        ("highwater.inflated.batch.bytes=1073741824", 1 << 30),
    ] {
        let config = config(line);
        let layers = Layers {
            config: &config,
            broker: None,
            cluster: None,
        };
        let found = layers.log_config(&Values::new()).inflated_batch_bytes;
        assert_eq!(found, bytes);
    }
}
