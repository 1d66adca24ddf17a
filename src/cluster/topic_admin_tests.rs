//! CreateTopics, DeleteTopics and CreatePartitions: each case with the answer of Apache Kafka 4.4.

use super::*;
use crate::cluster::features;
use crate::config::properties;
use crate::wire::messages::create_partitions_request::CreatePartitionsAssignment;
use crate::wire::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopicConfig,
};
use crate::wire::messages::delete_topics_request::DeleteTopicState;
use crate::wire::messages::register_broker_record::RegisterBrokerRecord;

const DIRECTORY: Uuid = Uuid::from_halves(5, 5);

fn config() -> BrokerConfig {
    BrokerConfig::from_properties(properties::parse("f", "num.partitions=2").unwrap()).unwrap()
}

/// Brokers 1 and 2 live, 3 is fenced.
fn cluster() -> Image {
    let mut image = Image::default();
    apply(&mut image, &features::initial());
    for id in 1..=3 {
        let broker = RegisterBrokerRecord {
            broker_id: id,
            broker_epoch: i64::from(id),
            fenced: id == 3,
            log_dirs: vec![DIRECTORY],
            ..Default::default()
        };
        apply(&mut image, &[MetadataRecord::from(broker)]);
    }
    image
}

fn apply(image: &mut Image, records: &[MetadataRecord]) {
    for record in records {
        image.apply(image.offset() + 1, record).unwrap();
    }
}

fn topic(name: &str, partitions: i32, factor: i16) -> CreatableTopic {
    CreatableTopic {
        name: name.into(),
        num_partitions: partitions,
        replication_factor: factor,
        ..Default::default()
    }
}

fn with(mut topic: CreatableTopic, configs: &[(&str, Option<&str>)]) -> CreatableTopic {
    topic.configs = configs
        .iter()
        .map(|(name, value)| CreatableTopicConfig {
            name: (*name).into(),
            value: value.map(Str::from),
            ..Default::default()
        })
        .collect();
    topic
}

fn assigned(name: &str, partitions: &[(i32, &[i32])]) -> CreatableTopic {
    let mut topic = topic(name, -1, -1);
    topic.assignments = partitions
        .iter()
        .map(|(index, brokers)| CreatableReplicaAssignment {
            partition_index: *index,
            broker_ids: brokers.to_vec(),
            ..Default::default()
        })
        .collect();
    topic
}

fn create(
    image: &Image,
    topics: Vec<CreatableTopic>,
) -> (Vec<MetadataRecord>, CreateTopicsResponse) {
    let mut next = 0;
    let mut roll = || {
        next += 1;
        next
    };
    let request = CreateTopicsRequest {
        topics,
        ..Default::default()
    };
    create_topics(image, &config(), &request, Dice(&mut roll))
}

/// Error and message of each topic of a request.
fn said(topics: Vec<CreatableTopic>) -> Vec<(ErrorCode, String)> {
    let (records, response) = create(&cluster(), topics);
    let all = response.topics.iter();
    let said: Vec<_> = all
        .map(|told| {
            (
                ErrorCode(told.error_code),
                told.error_message.as_deref().unwrap_or_default().to_owned(),
            )
        })
        .collect();
    assert_eq!(
        records.is_empty(),
        said.iter().all(|(error, _)| *error != ErrorCode::NONE)
    );
    said
}

fn refused(topic: CreatableTopic) -> (ErrorCode, String) {
    said(vec![topic]).remove(0)
}

#[test]
fn a_new_topic_is_told_and_recorded_with_its_defaults() {
    let mut image = cluster();
    let (records, response) = create(
        &image,
        vec![with(
            topic("a.b", -1, -1),
            &[("retention.ms", Some(" 1000 "))],
        )],
    );
    let told = &response.topics[0];
    assert_eq!(
        (
            told.error_code,
            told.num_partitions,
            told.replication_factor
        ),
        (0, 2, 1)
    );
    let configs = told.configs.as_ref().unwrap();
    let retention = configs
        .iter()
        .find(|config| config.name == "retention.ms")
        .unwrap();
    assert_eq!(
        (retention.value.as_deref(), retention.config_source),
        (Some("1000"), 1)
    );
    let segment = configs
        .iter()
        .find(|config| config.name == "segment.bytes")
        .unwrap();
    assert_eq!(
        (segment.value.as_deref(), segment.config_source),
        (Some("1073741824"), 5)
    );
    apply(&mut image, &records);
    let made = image.topic_by_id(told.topic_id).unwrap();
    assert_eq!((&*made.name, made.partition_count()), ("a.b", 2));
    let partition = made.partition(1).unwrap();
    assert_eq!(partition.isr, partition.replicas);
    assert_eq!(partition.leader, partition.replicas[0]);
    assert_eq!(
        partition.directories,
        [DIRECTORY],
        "the only directory of its broker"
    );
    assert_eq!(
        image.config(ResourceType::TOPIC, "a.b").unwrap()["retention.ms"],
        "1000"
    );
}

#[test]
fn names_that_cannot_be_or_are_taken_are_refused() {
    let mut image = cluster();
    let (records, _) = create(&image, vec![topic("a.b", 1, 1)]);
    apply(&mut image, &records);
    let again = |name| {
        let (_, response) = create(&image, vec![topic(name, 1, 1)]);
        let told = &response.topics[0];
        (
            told.error_code,
            told.error_message.as_deref().unwrap_or_default().to_owned(),
            told.num_partitions,
        )
    };
    assert_eq!(
        again("a_b"),
        (
            17,
            "Topic 'a_b' collides with existing topic: a.b".into(),
            -1
        )
    );
    assert_eq!(again("a.b"), (36, "Topic 'a.b' already exists.".into(), -1));
    assert_eq!(
        again(""),
        (
            17,
            "Topic name is invalid: the empty string is not allowed".into(),
            -1
        )
    );
    assert_eq!(
        again(".."),
        (17, "Topic name is invalid: '..' is not allowed".into(), -1)
    );
    let why = "Topic name is invalid: 'x y' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'";
    assert_eq!(again("x y"), (17, why.into(), -1));
    let why = "Creation of internal topic __cluster_metadata is prohibited.";
    assert_eq!(again("__cluster_metadata"), (42, why.into(), -1));
    assert_eq!(again("__consumer_offsets").0, 0);
}

#[test]
fn a_topic_named_twice_is_refused_once_and_others_are_made() {
    let (records, response) = create(
        &cluster(),
        vec![topic("d", 1, 1), topic("d", 3, 1), topic("e", 1, 1)],
    );
    let told: Vec<_> = response
        .topics
        .iter()
        .map(|told| (&*told.name, told.error_code))
        .collect();
    assert_eq!(told, [("d", 42), ("e", 0)]);
    assert_eq!(
        response.topics[0].error_message.as_deref(),
        Some("Duplicate topic name.")
    );
    assert_eq!(records.len(), 2);
}

#[test]
fn counts_that_cannot_be_are_refused_in_kafkas_order() {
    let partitions = "Number of partitions was set to an invalid non-positive value.";
    let factor = "Replication factor must be larger than 0, or -1 to use the default value.";
    assert_eq!(
        refused(topic("p", 0, 1)),
        (ErrorCode::INVALID_PARTITIONS, partitions.into())
    );
    assert_eq!(
        refused(topic("p", -2, 0)),
        (ErrorCode::INVALID_REPLICATION_FACTOR, factor.into())
    );
    let (error, why) = refused(topic("p", 1, 4));
    assert_eq!(error, ErrorCode::INVALID_REPLICATION_FACTOR);
    assert!(
        why.starts_with("Unable to replicate the partition 4 time(s): "),
        "{why}"
    );
    let many = "Excessively large number of partitions per request.";
    let both = said(vec![topic("p", 6000, 1), topic("q", 6000, 1)]);
    assert_eq!(
        both,
        [
            (ErrorCode::POLICY_VIOLATION, many.into()),
            (ErrorCode::POLICY_VIOLATION, many.into())
        ]
    );
}

#[test]
fn assignments_that_cannot_be_are_refused() {
    let mut both = assigned("m", &[(0, &[1])]);
    both.num_partitions = 1;
    let why = "A manual partition assignment was specified, but numPartitions was not set to -1.";
    assert_eq!(
        refused(both.clone()),
        (ErrorCode::INVALID_REQUEST, why.into())
    );
    both.replication_factor = 1;
    let why =
        "A manual partition assignment was specified, but replication factor was not set to -1.";
    assert_eq!(refused(both), (ErrorCode::INVALID_REQUEST, why.into()));
    let cases: [(&[(i32, &[i32])], &str); 7] = [
        (
            &[(0, &[9])],
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        (
            &[(0, &[1, 1])],
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            &[(0, &[])],
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            &[(1, &[1])],
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            &[(0, &[1]), (0, &[1])],
            "Found multiple manual partition assignments for partition 0",
        ),
        (
            &[(0, &[1]), (1, &[1, 2])],
            "The manual partition assignment includes a partition with 2 replica(s), but this is not consistent with previous partitions, which have 1 replica(s).",
        ),
        (
            &[(0, &[3])],
            "All brokers specified in the manual partition assignment for partition 0 are fenced or in controlled shutdown.",
        ),
    ];
    for (partitions, why) in cases {
        assert_eq!(
            refused(assigned("m", partitions)),
            (ErrorCode::INVALID_REPLICA_ASSIGNMENT, why.into())
        );
    }
}

#[test]
fn a_fenced_broker_neither_leads_nor_is_in_sync() {
    let mut image = cluster();
    let (records, _) = create(&image, vec![assigned("m", &[(0, &[3, 2])])]);
    apply(&mut image, &records);
    let partition = image.topic_by_name("m").unwrap().partition(0).unwrap();
    assert_eq!(
        (partition.leader, &partition.isr[..]),
        (NodeId(2), &[NodeId(2)][..])
    );
    assert_eq!(partition.replicas, [NodeId(3), NodeId(2)]);
}

#[test]
fn settings_that_cannot_be_are_refused_in_kafkas_words() {
    let cases: [(&[(&str, Option<&str>)], &str); 9] = [
        (&[("nope", Some("1"))], "Unknown topic config name: nope"),
        (
            &[("retention.ms", Some("abc"))],
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        (
            &[("retention.ms", Some("-5"))],
            "Invalid value -5 for configuration retention.ms: Value must be at least -1",
        ),
        (
            &[("retention.ms", None)],
            "Null value not supported for topic configs: retention.ms",
        ),
        (
            &[("cleanup.policy", Some("bogus"))],
            "Invalid value bogus for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            &[("preallocate", Some("yes"))],
            "Invalid value yes for configuration preallocate: Expected value to be either true or false",
        ),
        (
            &[("segment.bytes", Some("100"))],
            "Invalid value 100 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            &[
                ("min.compaction.lag.ms", Some("100")),
                ("max.compaction.lag.ms", Some("10")),
            ],
            "conflict topic config setting min.compaction.lag.ms (100) > max.compaction.lag.ms (10)",
        ),
        (
            &[("remote.storage.enable", Some("true"))],
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
        ),
    ];
    for (configs, why) in cases {
        assert_eq!(
            refused(with(topic("c", 1, 1), configs)),
            (ErrorCode::INVALID_CONFIG, why.into())
        );
    }
    for fine in [
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,compact"),
        ("retention.bytes", " 77 "),
    ] {
        assert_eq!(
            refused(with(topic("c", 1, 1), &[(fine.0, Some(fine.1))])).0,
            ErrorCode::NONE,
            "{fine:?}"
        );
    }
}

#[test]
fn only_validating_leaves_nothing_behind() {
    let request = CreateTopicsRequest {
        topics: vec![topic("v", -1, -1)],
        validate_only: true,
        ..Default::default()
    };
    let mut roll = || 9;
    let (records, response) = create_topics(&cluster(), &config(), &request, Dice(&mut roll));
    assert!(records.is_empty());
    assert_eq!(
        (
            response.topics[0].error_code,
            response.topics[0].num_partitions
        ),
        (0, 2)
    );
}

fn delete(
    image: &Image,
    topics: &[(Option<&str>, Uuid)],
) -> (Vec<MetadataRecord>, DeleteTopicsResponse) {
    let topics = topics
        .iter()
        .map(|(name, topic_id)| DeleteTopicState {
            name: name.map(Str::from),
            topic_id: *topic_id,
            ..Default::default()
        })
        .collect();
    delete_topics(
        image,
        &config(),
        &DeleteTopicsRequest {
            topics,
            ..Default::default()
        },
        6,
    )
}

#[test]
fn a_deleted_topic_is_gone_with_its_settings() {
    let mut image = cluster();
    let (records, _) = create(
        &image,
        vec![with(topic("e", 1, 1), &[("flush.messages", Some("1"))])],
    );
    apply(&mut image, &records);
    let (records, response) = delete(&image, &[(Some("e"), Uuid::ZERO)]);
    assert_eq!(response.responses[0].error_code, 0);
    assert!(!response.responses[0].topic_id.is_zero(), "its id is told");
    apply(&mut image, &records);
    assert!(image.topic_by_name("e").is_none() && image.config(ResourceType::TOPIC, "e").is_none());
    let mut off = config();
    off.delete_topic_enable = false;
    let request = DeleteTopicsRequest {
        topic_names: vec!["e".into()],
        ..Default::default()
    };
    let (_, response) = delete_topics(&image, &off, &request, 5);
    assert_eq!(
        response.responses[0].error_code,
        ErrorCode::TOPIC_DELETION_DISABLED.0
    );
}

#[test]
fn deletions_that_cannot_be_are_refused() {
    let mut image = cluster();
    let (records, response) = create(&image, vec![topic("e", 1, 1)]);
    apply(&mut image, &records);
    let id = response.topics[0].topic_id;
    let unknown = Uuid::from_halves(0, 9);
    let said = |topics: &[(Option<&str>, Uuid)]| {
        let (records, response) = delete(&image, topics);
        assert!(records.is_empty() || response.responses.iter().any(|told| told.error_code == 0));
        response
            .responses
            .iter()
            .map(|told| {
                (
                    told.error_code,
                    told.error_message.as_deref().unwrap_or_default().to_owned(),
                )
            })
            .collect::<Vec<_>>()
    };
    let one = |error: i16, why: &str| vec![(error, why.to_owned())];
    assert_eq!(
        said(&[(Some("x"), Uuid::ZERO)]),
        one(3, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.message())
    );
    assert_eq!(
        said(&[(None, unknown)]),
        one(100, ErrorCode::UNKNOWN_TOPIC_ID.message())
    );
    assert_eq!(
        said(&[(None, Uuid::ZERO)]),
        one(42, "Neither topic name nor id were specified.")
    );
    assert_eq!(
        said(&[(Some("e"), unknown)]),
        one(42, "You may not specify both topic name and topic id.")
    );
    assert_eq!(
        said(&[(Some("e"), Uuid::ZERO), (Some("e"), Uuid::ZERO)]),
        one(42, "Duplicate topic name.")
    );
    assert_eq!(
        said(&[(None, id), (None, id)]),
        one(42, "Duplicate topic id.")
    );
    let both = said(&[(Some("e"), Uuid::ZERO), (None, id)]);
    let why = "The provided topic name maps to an ID that was already supplied.";
    assert_eq!(both, [(42, why.to_owned()), (0, String::new())]);
}

#[test]
fn a_topic_grows_and_never_shrinks() {
    let mut image = cluster();
    let (records, _) = create(&image, vec![topic("a.b", 2, 1), topic("e", 1, 1)]);
    apply(&mut image, &records);
    let grow = |topics: &[(&str, i32, Option<&[&[i32]]>)]| {
        let topics = topics
            .iter()
            .map(|(name, count, assignments)| CreatePartitionsTopic {
                name: (*name).into(),
                count: *count,
                assignments: assignments.map(|all| {
                    let one = |ids: &&[i32]| CreatePartitionsAssignment {
                        broker_ids: ids.to_vec(),
                        ..Default::default()
                    };
                    all.iter().map(one).collect()
                }),
                ..Default::default()
            })
            .collect();
        let mut roll = || 0;
        create_partitions(
            &image,
            &CreatePartitionsRequest {
                topics,
                ..Default::default()
            },
            Dice(&mut roll),
        )
    };
    let said = |name: &str, count, assignments| {
        let (records, response) = grow(&[(name, count, assignments)]);
        assert!(records.is_empty());
        let told = &response.results[0];
        (
            told.error_code,
            told.error_message.as_deref().unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(said("nope", 2, None), (3, String::new()));
    assert_eq!(
        said("a.b", 2, None),
        (37, "Topic already has 2 partition(s).".into())
    );
    let why = "The topic a.b currently has 2 partition(s); 1 would not be an increase.";
    assert_eq!(said("a.b", 1, None), (37, why.into()));
    let why =
        "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.";
    assert_eq!(said("a.b", 4, Some(&[&[1]])), (39, why.into()));
    let why =
        "The manual partition assignment includes broker 9, but no such broker is registered.";
    assert_eq!(said("e", 2, Some(&[&[9]])), (39, why.into()));
    let why = "Excessively large number of additional partitions per request.";
    assert_eq!(said("a.b", 20_001, None), (44, why.into()));
    let (records, response) = grow(&[("a.b", 3, None), ("a.b", 4, None)]);
    assert_eq!((records.len(), response.results.len()), (0, 1));
    assert_eq!(
        response.results[0].error_message.as_deref(),
        Some("Duplicate topic name.")
    );
    let (records, response) = grow(&[("a.b", 5, None)]);
    assert_eq!(response.results[0].error_code, 0);
    apply(&mut image, &records);
    assert_eq!(image.topic_by_name("a.b").unwrap().partition_count(), 5);
}

#[test]
fn ids_are_never_reserved_and_never_begin_with_a_dash() {
    // The first candidate prints as "-...", the second is reserved, the third is fine.
    let mut rolls = [0xf8 << 56, 1, 0, 99, 7, 8].into_iter();
    let mut roll = || rolls.next().unwrap();
    assert_eq!(Dice(&mut roll).uuid(), Uuid::from_halves(7, 8));
}
