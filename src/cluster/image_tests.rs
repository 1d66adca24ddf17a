//! What each record does to an image, and that images that were handed out never change.

use super::*;
use crate::wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;
use crate::wire::messages::clear_elr_record::ClearElrRecord;
use crate::wire::messages::client_quota_record::ClientQuotaRecord;
use crate::wire::messages::config_record::ConfigRecord;
use crate::wire::messages::feature_level_record::FeatureLevelRecord;
use crate::wire::messages::fence_broker_record::FenceBrokerRecord;
use crate::wire::messages::partition_change_record::PartitionChangeRecord;
use crate::wire::messages::partition_record::PartitionRecord;
use crate::wire::messages::register_broker_record::RegisterBrokerRecord;
use crate::wire::messages::remove_topic_record::RemoveTopicRecord;
use crate::wire::messages::topic_record::TopicRecord;
use crate::wire::messages::unfence_broker_record::UnfenceBrokerRecord;
use crate::wire::messages::unregister_broker_record::UnregisterBrokerRecord;

const TOPIC_ID: Uuid = Uuid::from_halves(6, 6);

fn apply(image: &mut Image, record: impl Into<MetadataRecord>) -> Result<(), ApplyError> {
    image.apply(image.offset() + 1, &record.into())
}

fn with_topic() -> Image {
    let mut image = Image::default();
    let topic = TopicRecord {
        name: "t".into(),
        topic_id: TOPIC_ID,
        ..Default::default()
    };
    apply(&mut image, topic).unwrap();
    let partition = PartitionRecord {
        topic_id: TOPIC_ID,
        replicas: vec![1, 2],
        isr: vec![1],
        leader: 1,
        leader_epoch: 0,
        partition_epoch: 0,
        eligible_leader_replicas: Some(vec![2]),
        ..Default::default()
    };
    apply(&mut image, partition).unwrap();
    image
}

fn broker(id: i32) -> RegisterBrokerRecord {
    RegisterBrokerRecord {
        broker_id: id,
        broker_epoch: 5,
        ..Default::default()
    }
}

fn setting(name: &str, value: Option<&str>) -> ConfigRecord {
    ConfigRecord {
        resource_type: ResourceType::TOPIC.0,
        resource_name: "t".into(),
        name: name.into(),
        value: value.map(Str::from),
        ..Default::default()
    }
}

#[test]
fn an_image_that_was_handed_out_never_changes() {
    let mut image = with_topic();
    let before = image.clone();
    apply(&mut image, broker(1)).unwrap();
    apply(&mut image, setting("flush.ms", Some("1"))).unwrap();
    let change = PartitionChangeRecord {
        topic_id: TOPIC_ID,
        partition_id: 0,
        leader: 2,
        ..Default::default()
    };
    apply(&mut image, change).unwrap();
    apply(
        &mut image,
        RemoveTopicRecord {
            topic_id: TOPIC_ID,
            ..Default::default()
        },
    )
    .unwrap();
    assert_eq!(before.offset(), 1);
    let partition = before.topic_by_id(TOPIC_ID).unwrap().partition(0).unwrap();
    assert_eq!(
        (partition.leader, partition.leader_epoch),
        (NodeId(1), LeaderEpoch(0))
    );
    assert!(before.broker(NodeId(1)).is_none() && before.configs().count() == 0);
    assert!(image.topic_by_name("t").is_none() && image.topic_by_id(TOPIC_ID).is_none());
}

#[test]
fn an_untouched_part_is_shared_and_not_copied() {
    let mut image = with_topic();
    let before = image.clone();
    apply(&mut image, broker(1)).unwrap();
    assert!(Arc::ptr_eq(&before.topics, &image.topics));
    assert!(!Arc::ptr_eq(&before.brokers, &image.brokers));
}

#[test]
fn settings_come_and_go_and_go_with_their_topic() {
    let mut image = with_topic();
    apply(&mut image, setting("flush.ms", Some("1"))).unwrap();
    apply(&mut image, setting("flush.messages", Some("2"))).unwrap();
    apply(&mut image, setting("flush.ms", None)).unwrap();
    let left: Vec<_> = image
        .config(ResourceType::TOPIC, "t")
        .unwrap()
        .iter()
        .collect();
    assert_eq!(left, [(&"flush.messages".to_owned(), &"2".to_owned())]);
    apply(
        &mut image,
        RemoveTopicRecord {
            topic_id: TOPIC_ID,
            ..Default::default()
        },
    )
    .unwrap();
    assert_eq!(image.configs().count(), 0);
    apply(&mut image, setting("gone", None)).unwrap();
    assert_eq!(
        image.configs().count(),
        0,
        "removing what is not there leaves nothing behind"
    );
}

#[test]
fn brokers_are_fenced_unfenced_and_replaced() {
    let mut image = Image::default();
    apply(&mut image, broker(1)).unwrap();
    assert!(!image.is_alive(NodeId(1)), "a broker registers fenced");
    let change = |fenced, in_controlled_shutdown| BrokerRegistrationChangeRecord {
        broker_id: 1,
        broker_epoch: 5,
        fenced,
        in_controlled_shutdown,
        ..Default::default()
    };
    apply(&mut image, change(-1, 0)).unwrap();
    assert!(image.is_alive(NodeId(1)) && image.can_lead(NodeId(1)));
    apply(&mut image, change(0, 1)).unwrap();
    assert!(
        image.is_alive(NodeId(1)) && !image.can_lead(NodeId(1)),
        "shutting down"
    );
    apply(
        &mut image,
        FenceBrokerRecord {
            id: 1,
            ..Default::default()
        },
    )
    .unwrap();
    assert!(!image.is_alive(NodeId(1)));
    apply(
        &mut image,
        UnfenceBrokerRecord {
            id: 1,
            ..Default::default()
        },
    )
    .unwrap();
    assert!(image.is_alive(NodeId(1)));
    apply(&mut image, broker(1)).unwrap();
    assert!(
        !image.broker(NodeId(1)).unwrap().in_controlled_shutdown,
        "a new life begins anew"
    );
    apply(
        &mut image,
        UnregisterBrokerRecord {
            broker_id: 1,
            ..Default::default()
        },
    )
    .unwrap();
    assert_eq!(image.brokers().count(), 0);
}

#[test]
fn a_record_about_what_is_not_there_is_an_error_and_not_skipped() {
    let mut image = Image::default();
    let change = PartitionChangeRecord {
        topic_id: TOPIC_ID,
        ..Default::default()
    };
    let error = apply(&mut image, change).unwrap_err().to_string();
    assert!(
        error.starts_with("PartitionChangeRecord at offset 0: no topic"),
        "{error}"
    );
    assert!(
        apply(
            &mut image,
            RemoveTopicRecord {
                topic_id: TOPIC_ID,
                ..Default::default()
            }
        )
        .is_err()
    );
    assert!(
        apply(
            &mut image,
            FenceBrokerRecord {
                id: 1,
                ..Default::default()
            }
        )
        .is_err()
    );
    let mut image = with_topic();
    let again = TopicRecord {
        name: "t".into(),
        topic_id: Uuid::from_halves(6, 7),
        ..Default::default()
    };
    assert!(apply(&mut image, again).is_err());
    let change = PartitionChangeRecord {
        topic_id: TOPIC_ID,
        partition_id: 3,
        ..Default::default()
    };
    assert!(apply(&mut image, change).is_err());
}

#[test]
fn clearing_eligible_leaders_reaches_the_topics_meant() {
    for (name, cleared) in [("t", true), ("", true), ("other", false)] {
        let mut image = with_topic();
        apply(
            &mut image,
            ClearElrRecord {
                topic_name: name.into(),
                ..Default::default()
            },
        )
        .unwrap();
        let partition = image.topic_by_name("t").unwrap().partition(0).unwrap();
        assert_eq!(partition.elr.is_empty(), cleared, "{name:?}");
    }
}

#[test]
fn features_and_kept_records_come_and_go() {
    let mut image = Image::default();
    let level = |feature_level| FeatureLevelRecord {
        name: "group.version".into(),
        feature_level,
        ..Default::default()
    };
    apply(&mut image, level(1)).unwrap();
    assert_eq!(
        image.finalized_features().collect::<Vec<_>>(),
        [("group.version", 1)]
    );
    apply(&mut image, level(0)).unwrap();
    assert_eq!(image.finalized_features().count(), 0);
    let quota = |remove| ClientQuotaRecord {
        key: "producer_byte_rate".into(),
        remove,
        ..Default::default()
    };
    apply(&mut image, quota(false)).unwrap();
    assert_eq!(image.kept.len(), 1);
    apply(&mut image, quota(true)).unwrap();
    assert_eq!(image.kept.len(), 0);
}
