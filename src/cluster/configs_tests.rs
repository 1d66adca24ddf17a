//! IncrementalAlterConfigs, AlterConfigs, DescribeConfigs: each case with the answer of Apache
//! Kafka 4.4.

use crate::cluster::config_admin::{
    alter, check_addressee, describe, incremental_alter, list_resources,
};
use crate::cluster::features::ELIGIBLE_LEADER_REPLICAS;
use crate::cluster::image::{Image, ResourceType};
use crate::cluster::record::MetadataRecord;
use crate::config::{BrokerConfig, properties};
use crate::types::Uuid;
use crate::wire::messages::alter_configs_request::{
    AlterConfigsRequest, AlterConfigsResource as FullResource, AlterableConfig as FullConfig,
};
use crate::wire::messages::feature_level_record::FeatureLevelRecord;
use crate::wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use crate::wire::messages::list_config_resources_request::ListConfigResourcesRequest;
use crate::wire::messages::topic_record::TopicRecord;
use crate::wire::{ErrorCode, Str};

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
const METRICS: i8 = 16;
const GROUP: i8 = 32;

fn config() -> BrokerConfig {
    BrokerConfig::from_properties(properties::parse("f", "node.id=1").unwrap()).unwrap()
}

fn apply(image: &mut Image, records: &[MetadataRecord]) {
    for record in records {
        image.apply(image.offset() + 1, record).unwrap();
    }
}

/// One topic, `t`.
fn cluster() -> Image {
    let mut image = Image::default();
    let topic = TopicRecord {
        name: "t".into(),
        topic_id: Uuid::from_halves(3, 3),
        ..Default::default()
    };
    apply(&mut image, &[MetadataRecord::from(topic)]);
    image
}

type Entry<'a> = (&'a str, i8, Option<&'a str>);

fn resource(kind: i8, name: &str, entries: &[Entry<'_>]) -> AlterConfigsResource {
    AlterConfigsResource {
        resource_type: kind,
        resource_name: name.into(),
        configs: entries
            .iter()
            .map(|(name, op, value)| AlterableConfig {
                name: (*name).into(),
                config_operation: *op,
                value: value.map(Str::from),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

/// Changes one resource; gives error and message.
fn change(image: &mut Image, kind: i8, name: &str, entries: &[Entry<'_>]) -> (ErrorCode, String) {
    let request = IncrementalAlterConfigsRequest {
        resources: vec![resource(kind, name, entries)],
        ..Default::default()
    };
    let (records, response) = incremental_alter(image, &config(), &request);
    let told = &response.responses[0];
    assert!(
        told.error_code == 0 || records.is_empty(),
        "what is refused writes nothing"
    );
    apply(image, &records);
    (
        ErrorCode(told.error_code),
        told.error_message.as_deref().unwrap_or_default().to_owned(),
    )
}

fn value<'a>(image: &'a Image, kind: i8, name: &str, key: &str) -> Option<&'a str> {
    image
        .config(ResourceType(kind), name)?
        .get(key)
        .map(String::as_str)
}

const FINE: (ErrorCode, String) = (ErrorCode::NONE, String::new());

#[test]
fn a_list_is_added_to_and_taken_from_beginning_with_its_default() {
    let mut image = cluster();
    assert_eq!(
        change(
            &mut image,
            TOPIC,
            "t",
            &[("cleanup.policy", APPEND, Some("compact"))]
        ),
        FINE
    );
    assert_eq!(
        value(&image, TOPIC, "t", "cleanup.policy"),
        Some("delete,compact")
    );
    assert_eq!(
        change(
            &mut image,
            TOPIC,
            "t",
            &[("cleanup.policy", APPEND, Some("compact"))]
        ),
        FINE
    );
    assert_eq!(
        value(&image, TOPIC, "t", "cleanup.policy"),
        Some("delete,compact")
    );
    assert_eq!(
        change(
            &mut image,
            TOPIC,
            "t",
            &[("cleanup.policy", SUBTRACT, Some("delete"))]
        ),
        FINE
    );
    assert_eq!(value(&image, TOPIC, "t", "cleanup.policy"), Some("compact"));
    assert_eq!(
        change(&mut image, TOPIC, "t", &[("cleanup.policy", DELETE, None)]),
        FINE
    );
    assert_eq!(value(&image, TOPIC, "t", "cleanup.policy"), None);
}

#[test]
fn changes_of_topics_are_refused_as_kafka_does() {
    let cases: [(&str, &[Entry<'_>], ErrorCode, &str); 10] = [
        (
            "nope",
            &[("flush.ms", SET, Some("1"))],
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            "The topic 'nope' does not exist.",
        ),
        (
            "",
            &[("flush.ms", SET, Some("1"))],
            ErrorCode::INVALID_REQUEST,
            "Default topic resources are not allowed.",
        ),
        (
            "t",
            &[("retention.ms", APPEND, Some("5"))],
            ErrorCode::INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            "t",
            &[("bogus.name", SUBTRACT, Some("5"))],
            ErrorCode::INVALID_CONFIG,
            "Can't SUBTRACT to key bogus.name because its type is not LIST.",
        ),
        (
            "t",
            &[("retention.ms", SET, None)],
            ErrorCode::INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
        (
            "t",
            &[("retention.ms", SET, Some("x"))],
            ErrorCode::INVALID_CONFIG,
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            "t",
            &[("bogus.name", SET, Some("x"))],
            ErrorCode::INVALID_CONFIG,
            "Unknown topic config name: bogus.name",
        ),
        (
            "t",
            &[("flush.messages", SET, Some("0"))],
            ErrorCode::INVALID_CONFIG,
            "Invalid value 0 for configuration flush.messages: Value must be at least 1",
        ),
        (
            "t",
            &[("flush.ms", SET, Some("1")), ("flush.ms", SET, Some("2"))],
            ErrorCode::INVALID_REQUEST,
            "Error due to duplicate config keys",
        ),
        (
            "t",
            &[("flush.ms", 9, Some("1"))],
            ErrorCode::INVALID_REQUEST,
            "Unknown operation type 9.",
        ),
    ];
    for (name, entries, error, why) in cases {
        assert_eq!(
            change(&mut cluster(), TOPIC, name, entries),
            (error, why.to_owned())
        );
    }
    assert_eq!(
        change(&mut cluster(), TOPIC, "t", &[("bogus.name", DELETE, None)]),
        FINE
    );
    let why = "Unknown resource type 7".to_owned();
    assert_eq!(
        change(&mut cluster(), 7, "t", &[]),
        (ErrorCode::INVALID_REQUEST, why)
    );
}

#[test]
fn settings_of_a_broker_go_to_that_broker_and_to_one_that_is_registered() {
    let config = config();
    let at_broker =
        |name: &str| check_addressee(&config, ResourceType(BROKER), name).map_err(|(_, why)| why);
    assert_eq!(at_broker("1"), Ok(()));
    assert_eq!(at_broker(""), Ok(()));
    let unexpected = "Unexpected broker id, expected 1, but received 2";
    assert_eq!(at_broker("2"), Err(unexpected.into()));
    let no_number = "Node id must be an integer, but it is: x";
    assert_eq!(at_broker("x"), Err(no_number.into()));
    let entry = ("log.retention.ms", SET, Some("1"));
    let mut image = cluster();
    let (error, why) = change(&mut image, BROKER, "2", &[entry]);
    assert_eq!(error, ErrorCode::BROKER_ID_NOT_REGISTERED);
    assert_eq!(why, "No node with id 2 found.");
    let record = crate::wire::messages::register_broker_record::RegisterBrokerRecord {
        broker_id: 2,
        ..Default::default()
    };
    let offset = image.offset() + 1;
    image.apply(offset, &MetadataRecord::from(record)).unwrap();
    assert_eq!(change(&mut image, BROKER, "2", &[entry]).0, ErrorCode::NONE);
}

#[test]
fn another_least_of_replicas_forgets_who_was_eligible() {
    for (level, cleared) in [(0, 0), (1, 1)] {
        let mut image = cluster();
        let on = crate::wire::messages::feature_level_record::FeatureLevelRecord {
            name: ELIGIBLE_LEADER_REPLICAS.into(),
            feature_level: level,
            ..Default::default()
        };
        let offset = image.offset() + 1;
        image.apply(offset, &MetadataRecord::from(on)).unwrap();
        for (kind, name, told) in [(TOPIC, "t", "t"), (BROKER, "", "")] {
            let request = IncrementalAlterConfigsRequest {
                resources: vec![resource(
                    kind,
                    name,
                    &[("min.insync.replicas", SET, Some("2"))],
                )],
                ..Default::default()
            };
            let (records, _) = incremental_alter(&image, &config(), &request);
            let names: Vec<&str> = records
                .iter()
                .filter_map(|record| match record {
                    MetadataRecord::ClearElr(clear) => Some(&*clear.topic_name),
                    _ => None,
                })
                .collect();
            assert_eq!(names.len(), cleared);
            assert!(names.iter().all(|name| *name == told));
        }
    }
}

#[test]
fn a_resource_named_twice_is_refused_both_times() {
    let one = || resource(TOPIC, "t", &[("flush.ms", SET, Some("7"))]);
    let request = IncrementalAlterConfigsRequest {
        resources: vec![one(), one()],
        ..Default::default()
    };
    let (records, response) = incremental_alter(&cluster(), &config(), &request);
    assert!(records.is_empty());
    for told in &response.responses {
        assert_eq!(
            told.error_message.as_deref(),
            Some("Each resource must appear at most once.")
        );
    }
}

#[test]
fn changes_of_brokers_are_refused_as_kafka_does() {
    let cases: [(&str, Entry<'_>, &str); 8] = [
        (
            "",
            ("log.cleaner.dedupe.buffer.size", SET, Some("1048576")),
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        ),
        (
            "x",
            ("log.retention.ms", SET, Some("1")),
            "Invalid broker name x",
        ),
        (
            "",
            ("num.partitions", SET, Some("3")),
            "Cannot update these configs dynamically: [num.partitions]",
        ),
        (
            "1",
            ("log.retention.ms", SET, Some("x")),
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        ),
        (
            "",
            ("listeners", SET, Some("PLAINTEXT://:1")),
            "Cannot update these configs at default cluster level, broker id must be specified: [listeners]",
        ),
        (
            "",
            ("log.roll.ms", SET, Some("0")),
            "log.roll.ms must be greater than or equal to 1",
        ),
        (
            "",
            ("log.retention.ms", SET, Some("0")),
            "log.retention.ms must be unlimited (-1) or, equal or greater than 1",
        ),
        (
            "1",
            ("some.unknown", SET, Some("x")),
            "Cannot update these configs dynamically: [some.unknown]",
        ),
    ];
    for (name, entry, why) in cases {
        let told = change(&mut cluster(), BROKER, name, &[entry]);
        assert_eq!(
            told,
            (ErrorCode::INVALID_REQUEST, why.to_owned()),
            "{name} {entry:?}"
        );
    }
    let mut image = cluster();
    assert_eq!(
        change(
            &mut image,
            BROKER,
            "",
            &[("log.retention.ms", SET, Some("223456"))]
        ),
        FINE
    );
    assert_eq!(
        change(
            &mut image,
            BROKER,
            "1",
            &[("log.retention.ms", SET, Some("123456"))]
        ),
        FINE
    );
    let topic = describe(&image, &config(), ResourceType(TOPIC), "t").unwrap();
    let told = topic
        .iter()
        .find(|told| told.name == "retention.ms")
        .unwrap();
    assert_eq!((told.value.as_deref(), told.source), (Some("123456"), 2));
}

#[test]
fn min_insync_replicas_is_the_clusters_while_eligible_leaders_are_on() {
    let mut image = cluster();
    let on = FeatureLevelRecord {
        name: ELIGIBLE_LEADER_REPLICAS.into(),
        feature_level: 1,
        ..Default::default()
    };
    apply(&mut image, &[MetadataRecord::from(on)]);
    let name = "min.insync.replicas";
    assert_eq!(
        change(&mut image, BROKER, "", &[(name, SET, Some("2"))]),
        FINE
    );
    let why =
        "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.".to_owned();
    assert_eq!(
        change(&mut image, BROKER, "", &[(name, DELETE, None)]),
        (ErrorCode::INVALID_CONFIG, why)
    );
    let why = "Broker-level min.insync.replicas cannot be altered while ELR is enabled.".to_owned();
    assert_eq!(
        change(&mut image, BROKER, "1", &[(name, SET, Some("1"))]),
        (ErrorCode::INVALID_CONFIG, why)
    );
}

#[test]
fn groups_and_subscriptions_keep_within_their_bounds() {
    let mut image = cluster();
    assert_eq!(
        change(
            &mut image,
            GROUP,
            "g",
            &[("consumer.session.timeout.ms", SET, Some("50000"))]
        ),
        FINE
    );
    let cases: [(i8, &str, Entry<'_>, ErrorCode, &str); 7] = [
        (
            GROUP,
            "",
            ("share.isolation.level", SET, Some("x")),
            ErrorCode::INVALID_REQUEST,
            "Default group resources are not allowed.",
        ),
        (
            GROUP,
            "g",
            ("bogus", SET, Some("5")),
            ErrorCode::INVALID_CONFIG,
            "Unknown group config name: bogus",
        ),
        (
            GROUP,
            "h",
            ("consumer.session.timeout.ms", SET, Some("5")),
            ErrorCode::INVALID_CONFIG,
            "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
        ),
        (
            METRICS,
            "",
            ("interval.ms", SET, Some("500")),
            ErrorCode::INVALID_REQUEST,
            "Subscription name can't be empty",
        ),
        (
            METRICS,
            "m",
            ("interval.ms", SET, Some("5")),
            ErrorCode::INVALID_REQUEST,
            "Invalid value 5 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        ),
        (
            METRICS,
            "m",
            ("match", SET, Some("foo=bar")),
            ErrorCode::INVALID_CONFIG,
            "Illegal client matching pattern: foo=bar",
        ),
        (
            METRICS,
            "m",
            ("bogus", SET, Some("5")),
            ErrorCode::INVALID_REQUEST,
            "Unknown client metrics configuration: bogus",
        ),
    ];
    for (kind, name, entry, error, why) in cases {
        assert_eq!(
            change(&mut image, kind, name, &[entry]),
            (error, why.to_owned())
        );
    }
    assert_eq!(
        change(
            &mut image,
            METRICS,
            "m",
            &[("match", SET, Some("client_id=a.*"))]
        ),
        FINE
    );
    let list = list_resources(&image, &config(), &ListConfigResourcesRequest::default(), 1);
    let kinds: Vec<i8> = list
        .config_resources
        .iter()
        .map(|one| one.resource_type)
        .collect();
    assert_eq!(kinds, [GROUP, METRICS, LOGGER, TOPIC]);
}

#[test]
fn replacing_all_settings_removes_what_is_not_named() {
    let mut image = cluster();
    let before = [
        ("flush.messages", SET, Some("1")),
        ("flush.ms", SET, Some("1")),
    ];
    assert_eq!(change(&mut image, TOPIC, "t", &before), FINE);
    let mut replace = |entries: &[(&str, Option<&str>)]| {
        let configs = entries.iter().map(|(name, value)| FullConfig {
            name: (*name).into(),
            value: value.map(Str::from),
            ..Default::default()
        });
        let resource = FullResource {
            resource_type: TOPIC,
            resource_name: "t".into(),
            configs: configs.collect(),
            ..Default::default()
        };
        let request = AlterConfigsRequest {
            resources: vec![resource],
            ..Default::default()
        };
        let (records, response) = alter(&image, &config(), &request);
        apply(&mut image, &records);
        (
            records.len(),
            response.responses[0]
                .error_message
                .as_deref()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    assert_eq!(
        replace(&[("flush.ms", Some("77"))]),
        (2, String::new()),
        "one changed, one removed"
    );
    assert_eq!(
        replace(&[("flush.ms", Some("77"))]),
        (0, String::new()),
        "nothing to do, nothing written"
    );
    assert_eq!(
        replace(&[("flush.ms", None)]),
        (0, "Null value not supported for : flush.ms".to_owned())
    );
    assert_eq!(image.config(ResourceType::TOPIC, "t").unwrap().len(), 1);
}

#[test]
fn descriptions_that_cannot_be_are_refused() {
    let image = cluster();
    let said = |kind, name| {
        describe(&image, &config(), ResourceType(kind), name)
            .map(|all| all.len())
            .unwrap_err()
    };
    assert_eq!(
        said(TOPIC, "nope"),
        (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, String::new())
    );
    assert_eq!(said(TOPIC, "a b").0, ErrorCode::INVALID_TOPIC_EXCEPTION);
    let invalid = |why: &str| (ErrorCode::INVALID_REQUEST, why.to_owned());
    assert_eq!(
        said(BROKER, "2"),
        invalid("Unexpected broker id, expected 1 or empty string, but received 2")
    );
    assert_eq!(
        said(BROKER, "x"),
        invalid("Broker id must be an integer, but it is: x")
    );
    assert_eq!(said(LOGGER, ""), invalid("Broker id must not be empty"));
    assert_eq!(
        said(LOGGER, "2"),
        invalid("Unexpected broker id, expected 1 but received 2")
    );
    assert_eq!(said(GROUP, ""), invalid("Group name must not be empty"));
    assert_eq!(
        describe(&image, &config(), ResourceType(LOGGER), "1").unwrap()[0].name,
        "root"
    );
    assert_eq!(
        describe(&image, &config(), ResourceType(BROKER), "")
            .unwrap()
            .len(),
        0
    );
}
