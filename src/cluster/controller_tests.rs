//! The controller on a real directory, on the ring: first start, restart, order of images.

use super::*;
use crate::cluster::apis::{self, Asker, producer_ids};
use crate::cluster::image::ResourceType;
use crate::cluster::test_kit::on_ring;
use crate::cluster::topic_admin::create_topics;
use crate::config::properties;
use crate::types::{NodeId, Uuid};
use crate::wire::api::ApiKey;
use crate::wire::messages::allocate_producer_ids_request::AllocateProducerIdsRequest;
use crate::wire::messages::broker_heartbeat_request::BrokerHeartbeatRequest;
use crate::wire::messages::broker_heartbeat_response::BrokerHeartbeatResponse;
use crate::wire::messages::broker_registration_request::{BrokerRegistrationRequest, Feature};
use crate::wire::messages::broker_registration_response::BrokerRegistrationResponse;
use crate::wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use crate::wire::messages::feature_level_record::FeatureLevelRecord;
use crate::wire::messages::partition_change_record::PartitionChangeRecord;
use crate::wire::{Message, Reader};
use std::cell::RefCell;

async fn open(dir: &Path) -> Rc<Controller> {
    let config =
        BrokerConfig::from_properties(properties::parse("f", "node.id=1").unwrap()).unwrap();
    Controller::open(dir, Arc::new(config)).await.unwrap()
}

async fn ask<Q: Message, R: Message>(controller: &Rc<Controller>, request: &Q) -> R {
    let version = Q::MAX_VERSION;
    let body = Reader::new(request.to_bytes(version).unwrap());
    let asker = Asker {
        client_id: "test".into(),
        host: "/127.0.0.1".into(),
    };
    let answer = apis::answer(controller, &asker, ApiKey(Q::API_KEY), version, body).await;
    R::from_bytes(answer.unwrap(), version).unwrap()
}

/// One more life of broker 1: registered, caught up and unfenced.
async fn register(controller: &Rc<Controller>) -> i64 {
    let features = features::SUPPORTED.iter().map(|feature| Feature {
        name: feature.name.into(),
        min_supported_version: feature.min,
        max_supported_version: feature.max,
        ..Default::default()
    });
    let request = BrokerRegistrationRequest {
        broker_id: 1,
        incarnation_id: Uuid::from_halves(8, rt::random_u64()),
        features: features.collect(),
        log_dirs: vec![Uuid::from_halves(4, 4)],
        previous_broker_epoch: -1,
        ..Default::default()
    };
    let told: BrokerRegistrationResponse = ask(controller, &request).await;
    assert_eq!(told.error_code, 0);
    assert!(!beat(controller, false).await.is_fenced);
    told.broker_epoch
}

async fn beat(controller: &Rc<Controller>, want_shut_down: bool) -> BrokerHeartbeatResponse {
    let image = controller.image();
    let request = BrokerHeartbeatRequest {
        broker_id: 1,
        broker_epoch: image.broker(NodeId(1)).unwrap().epoch.0,
        current_metadata_offset: image.offset(),
        want_shut_down,
        ..Default::default()
    };
    ask(controller, &request).await
}

/// The end of a life of broker 1.
async fn leave(controller: &Rc<Controller>) {
    while !beat(controller, true).await.should_shut_down {}
    assert!(!controller.image().is_alive(NodeId(1)));
}

async fn create(controller: &Controller, name: &str) -> i16 {
    let config = controller.config.clone();
    let topic = CreatableTopic {
        name: name.into(),
        num_partitions: 2,
        replication_factor: 1,
        ..Default::default()
    };
    let request = CreateTopicsRequest {
        topics: vec![topic],
        ..Default::default()
    };
    let response = controller
        .change(move |image| dice(|dice| create_topics(image, &config, &request, dice)))
        .await;
    response.unwrap().topics[0].error_code
}

async fn allocate(controller: &Rc<Controller>) -> i64 {
    let request = AllocateProducerIdsRequest {
        broker_id: 1,
        broker_epoch: controller.image().broker(NodeId(1)).unwrap().epoch.0,
        ..Default::default()
    };
    let block = producer_ids::allocate(controller, request).await;
    assert_eq!(block.error_code, 0);
    block.producer_id_start
}

#[test]
fn a_first_start_formats_and_a_restart_finds_all_with_new_leader_epochs() {
    on_ring(|dir| async move {
        let controller = open(&dir).await;
        let image = controller.image();
        let features: Vec<_> = image.finalized_features().collect();
        let expected = [
            ("eligible.leader.replicas.version", 1),
            ("metadata.version", 33),
            ("transaction.version", 2),
        ];
        assert_eq!(features, expected);
        let cluster = image.config(ResourceType::BROKER, "").unwrap();
        assert_eq!(
            cluster.get("min.insync.replicas").map(String::as_str),
            Some("1")
        );
        let checkpoint = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint";
        assert!(dir.join(checkpoint).exists());
        assert_eq!(
            create(&controller, "early").await,
            38,
            "no broker is registered yet"
        );
        let epoch = register(&controller).await;
        let broker = controller.image().broker(NodeId(1)).unwrap().clone();
        assert_eq!((broker.epoch.0, broker.registered_at), (epoch, epoch));
        assert_eq!(create(&controller, "orders").await, 0);
        let first = allocate(&controller).await;
        assert_eq!(first, 0);
        leave(&controller).await;
        let before = controller.image();
        drop(controller);

        let controller = open(&dir).await;
        let image = controller.image();
        let topic = image.topic_by_name("orders").unwrap();
        assert_eq!(topic.id, before.topic_by_name("orders").unwrap().id);
        assert_eq!(topic.partition(1).unwrap().leader, NodeId(-1));
        assert!(register(&controller).await > epoch);
        let image = controller.image();
        let partition = image.topic_by_name("orders").unwrap().partition(1).unwrap();
        // One without a leader came between.
        assert_eq!(partition.leader, NodeId(1));
        assert_eq!(partition.leader_epoch, LeaderEpoch(2));
        assert!(controller.image().can_lead(NodeId(1)));
        let next = allocate(&controller).await;
        assert_eq!(next, PRODUCER_ID_BLOCK, "ids are never given out twice");
    });
}

#[test]
fn images_are_published_in_order_and_only_when_something_changed() {
    on_ring(|dir| async move {
        let controller = open(&dir).await;
        let seen: Rc<RefCell<Vec<i64>>> = Rc::default();
        let sink = seen.clone();
        controller.on_publish(move |image| sink.borrow_mut().push(image.offset()));
        register(&controller).await;
        let both = [create(&controller, "a"), create(&controller, "b")];
        assert_eq!(rt::join_all(both).await, [0, 0]);
        assert_eq!(
            create(&controller, "a").await,
            36,
            "refused: nothing to publish"
        );
        let seen = seen.borrow();
        assert_eq!(seen.len(), 4, "registered, unfenced, two topics");
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
        assert_eq!(controller.image().topics().count(), 2);
    });
}

#[test]
fn a_change_that_contradicts_the_metadata_never_reaches_the_log() {
    on_ring(|dir| async move {
        let controller = open(&dir).await;
        let before = controller.image().offset();
        let wrong = PartitionChangeRecord {
            topic_id: Uuid::from_halves(1, 1),
            ..Default::default()
        };
        let wrong = MetadataRecord::from(wrong);
        let error = controller
            .change(move |_| (vec![wrong], ()))
            .await
            .unwrap_err();
        assert!(
            matches!(error, MetadataLogError::Contradiction(_)),
            "{error}"
        );
        assert_eq!(controller.image().offset(), before);
        register(&controller).await;
        drop(controller);
        let controller = open(&dir).await;
        assert!(controller.image().broker(NodeId(1)).is_some());
    });
}

#[test]
fn a_cluster_of_another_version_is_refused_and_features_not_built_are_lowered() {
    on_ring(|dir| async move {
        let controller = open(&dir).await;
        let level = |name: &str, feature_level| {
            MetadataRecord::from(FeatureLevelRecord {
                name: name.into(),
                feature_level,
                ..Default::default()
            })
        };
        let record = level("group.version", 1);
        controller
            .change(move |_| (vec![record], ()))
            .await
            .unwrap();
        drop(controller);
        let controller = open(&dir).await;
        assert_eq!(controller.image().feature("group.version"), 0);
        assert_eq!(controller.image().feature("transaction.version"), 2);
        let record = level("metadata.version", 34);
        controller
            .change(move |_| (vec![record], ()))
            .await
            .unwrap();
        drop(controller);
        let config = Arc::new(BrokerConfig::from_properties(Vec::new()).unwrap());
        let error = Controller::open(&dir, config)
            .await
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, MetadataLogError::Version(_)), "{error}");
    });
}

#[test]
fn settings_of_a_deleted_topic_do_not_come_back_with_its_name() {
    on_ring(|dir| async move {
        let controller = open(&dir).await;
        register(&controller).await;
        create(&controller, "t").await;
        let config = controller.config.clone();
        controller
            .change(move |image| {
                let changes = [crate::cluster::configs::ConfigChange::set(
                    "flush.ms",
                    Some("5"),
                )];
                let (kind, before) = (ResourceType::TOPIC, Default::default());
                let after = crate::cluster::configs::alter_resource(
                    image, &config, kind, "t", &changes, false,
                )
                .unwrap();
                (
                    crate::cluster::configs::difference(kind, "t", &before, &after),
                    (),
                )
            })
            .await
            .unwrap();
        let id = controller.image().topic_by_name("t").unwrap().id;
        let removed = crate::wire::messages::remove_topic_record::RemoveTopicRecord {
            topic_id: id,
            ..Default::default()
        };
        let removed = MetadataRecord::from(removed);
        controller
            .change(move |_| (vec![removed], ()))
            .await
            .unwrap();
        create(&controller, "t").await;
        assert!(
            controller
                .image()
                .config(ResourceType::TOPIC, "t")
                .is_none()
        );
    });
}

#[test]
fn a_directory_that_kafka_formatted_begins_with_what_it_was_formatted_with() {
    use crate::cluster::snapshot::{SnapshotId, encode};
    on_ring(|dir| async move {
        let level = |name: &str, feature_level| {
            MetadataRecord::from(FeatureLevelRecord {
                name: name.into(),
                feature_level,
                ..Default::default()
            })
        };
        let formatted = [level("metadata.version", 30), level("group.version", 1)];
        let home = dir.join("__cluster_metadata-0");
        std::fs::create_dir_all(&home).unwrap();
        let bytes = encode(&formatted, SnapshotId::BOOTSTRAP, 0).unwrap();
        std::fs::write(home.join(SnapshotId::BOOTSTRAP.file_name()), bytes).unwrap();
        let controller = open(&dir).await;
        let image = controller.image();
        let features: Vec<_> = image.finalized_features().collect();
        assert_eq!(features, [("metadata.version", 30)]);
    });
}

fn topic(id: u64) -> MetadataRecord {
    MetadataRecord::from(crate::wire::messages::topic_record::TopicRecord {
        name: format!("t{id}").into(),
        topic_id: Uuid::from_halves(7, id),
        ..Default::default()
    })
}

#[test]
fn a_change_of_more_records_than_a_batch_holds_happens_as_a_whole_or_not_at_all() {
    on_ring(|dir| async move {
        let segment = dir.join("__cluster_metadata-0/00000000000000000000.log");
        let controller = open(&dir).await;
        let before = std::fs::metadata(&segment).unwrap().len();
        let many: Vec<MetadataRecord> = (0..RECORDS_PER_BATCH_MAX as u64 + 1).map(topic).collect();
        let count = many.len();
        let (offset, records) = (controller.image().offset(), many.clone());
        controller.change(move |_| (records, ())).await.unwrap();
        assert_eq!(controller.image().topics().count(), count);
        assert_eq!(controller.image().offset(), offset + count as i64 + 2);
        let whole = std::fs::read(&segment).unwrap();
        drop(controller);
        rt::yield_now().await;
        assert_eq!(open(&dir).await.image().topics().count(), count);
        // The second of its batches is lost: the whole change is, and the log says so.
        let mut rest = bytes::Bytes::from(whole[before as usize..].to_vec());
        let (first, _) = crate::wire::batch::Batch::parse(&rest).unwrap();
        rest.truncate(first.total_size());
        let cut = [&whole[..before as usize], &rest].concat();
        std::fs::write(&segment, &cut).unwrap();
        for _ in 0..2 {
            let controller = open(&dir).await;
            assert_eq!(controller.image().topics().count(), 0);
            assert!(!controller.quorum().in_transaction());
        }
        let controller = open(&dir).await;
        let next = topic(3);
        controller.change(move |_| (vec![next], ())).await.unwrap();
        drop(controller);
        assert_eq!(open(&dir).await.image().topics().count(), 1);
    });
}

#[test]
fn a_snapshot_brings_back_the_image_it_was_made_of() {
    on_ring(|dir| async move {
        let config = "node.id=1\nmetadata.log.max.record.bytes.between.snapshots=2000";
        let config =
            BrokerConfig::from_properties(properties::parse("f", config).unwrap()).unwrap();
        let config = Arc::new(config);
        let controller = Controller::open(&dir, config.clone()).await.unwrap();
        register(&controller).await;
        create(&controller, "orders").await;
        allocate(&controller).await;
        for id in 0..100 {
            let record = topic(id);
            controller
                .change(move |_| (vec![record], ()))
                .await
                .unwrap();
        }
        let before = controller.image();
        let home = dir.join("__cluster_metadata-0");
        let names = || -> Vec<String> {
            let entries = std::fs::read_dir(&home).unwrap();
            let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
            entries
                .map(|entry| name(entry).into_string().unwrap())
                .collect()
        };
        let made = names()
            .iter()
            .filter(|name| name.ends_with(".checkpoint"))
            .count();
        assert!(made > 2, "{:?}", names());
        drop(controller);
        rt::yield_now().await;
        let controller = Controller::open(&dir, config).await.unwrap();
        let after = controller.image();
        assert_eq!(after.topics().count(), before.topics().count());
        let broker = |image: &Image| image.broker(NodeId(1)).cloned();
        assert_eq!(broker(&after), broker(&before));
        let partition =
            |image: &Image| image.topic_by_name("orders").unwrap().partition(1).cloned();
        assert_eq!(
            partition(&after).unwrap().replicas,
            partition(&before).unwrap().replicas
        );
        assert_eq!(after.next_producer_id(), before.next_producer_id());
        let features: Vec<_> = after.finalized_features().collect();
        assert_eq!(features, before.finalized_features().collect::<Vec<_>>());
    });
}
