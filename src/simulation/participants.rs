//! What leaders of partitions do in transactions, in worlds of one broker or two whose
//! transactions' coordinator is the test: batches that wait for its word, markers, offsets that wait
//! for theirs.

use super::cluster::{Cluster, Setup};
use super::seeds;
use crate::client::connection::Connection;
use crate::client::{Admin, ClientConfig, Exchange, NewTopic};
use crate::cluster::{OFFSETS_TOPIC, ResourceType, TRANSACTIONS_TOPIC};
use crate::coordinator::partition_for;
use crate::replica::partition::Bounds;
use crate::rt;
use crate::shard::transaction_calls::not_added;
use crate::wire::batch_builder::BatchBuilder;
use crate::wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use crate::wire::messages::find_coordinator_request::FindCoordinatorRequest;
use crate::wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use crate::wire::messages::offset_fetch_request::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use crate::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use crate::wire::messages::produce_response::ProduceResponse;
use crate::wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use crate::wire::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};
use crate::wire::records::Records;
use crate::wire::{ErrorCode, Str};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

const TOPIC: &str = "orders";
const PARTITIONS: i32 = 4;
const GROUP: &str = "workers";
const TRANSACTION: &str = "t";
const LIMIT: Duration = Duration::from_secs(40);
/// The Produce version of transactions v2, by name; and the last that only verifies.
const ADDS: i16 = 12;
const VERIFIES: i16 = 11;

/// What the coordinator in these worlds was asked, and what it says: to the nth question the nth
/// error, the last one from then on.
struct Coordinator {
    asked: RefCell<Vec<AddPartitionsToTxnTransaction>>,
    answers: RefCell<Vec<ErrorCode>>,
    takes: Duration,
    now: Cell<usize>,
    most: Cell<usize>,
}

impl Coordinator {
    fn saying(answers: &[ErrorCode]) -> Rc<Coordinator> {
        Rc::new(Coordinator {
            asked: RefCell::default(),
            answers: RefCell::new(answers.to_vec()),
            takes: Duration::from_millis(7),
            now: Cell::new(0),
            most: Cell::new(0),
        })
    }

    async fn answer(&self, transaction: &AddPartitionsToTxnTransaction) -> ErrorCode {
        self.now.set(self.now.get() + 1);
        self.most.set(self.most.get().max(self.now.get()));
        self.asked.borrow_mut().push(transaction.clone());
        rt::sleep(self.takes).await;
        self.now.set(self.now.get() - 1);
        let mut answers = self.answers.borrow_mut();
        match answers.len() {
            1 => answers[0],
            _ => answers.remove(0),
        }
    }

    fn questions(&self) -> usize {
        self.asked.borrow().len()
    }
}

struct Stage {
    cluster: Cluster,
    hosts: Cell<usize>,
}

impl Stage {
    fn new(seed: u64, settings: &[(&'static str, &str)]) -> Stage {
        Stage::of(seed, 1, settings)
    }

    fn of(seed: u64, brokers: usize, settings: &[(&'static str, &str)]) -> Stage {
        let own = settings.iter();
        let setup = Setup {
            brokers,
            controllers: 1,
            shards: 2,
            lag: Duration::from_secs(30),
            settings: own
                .map(|(key, value)| (*key, (*value).to_owned()))
                .collect(),
        };
        let cluster = Cluster::new(seed, &setup);
        cluster.format();
        cluster.start_all();
        cluster.serve();
        let stage = Stage {
            cluster,
            hosts: Cell::new(0),
        };
        let servers = stage.cluster.bootstrap_servers();
        stage.run(move || {
            let servers = servers.clone();
            async move {
                let admin = Admin::connect(ClientConfig::new(&servers)).await.unwrap();
                for (topic, partitions) in [(TOPIC, PARTITIONS), (TRANSACTIONS_TOPIC, 2)] {
                    let topic = NewTopic::new(topic, partitions, brokers as i16);
                    admin.create_topic(&topic, false).await.unwrap();
                }
                admin.close();
            }
        });
        let find = FindCoordinatorRequest {
            coordinator_keys: vec![Str::from(GROUP)],
            ..Default::default()
        };
        stage.ask(find, 6);
        // Until every broker knows of the topics.
        stage.cluster.world.run_for(Duration::from_secs(1));
        stage
    }

    /// Has every shard ask `coordinator`.
    fn coordinated_by(&self, coordinator: &Rc<Coordinator>) {
        let brokers = 0..self.cluster.brokers.len();
        for shard in brokers.flat_map(|at| self.cluster.probes.shards(at)) {
            let coordinator = coordinator.clone();
            shard.take_oracle(Rc::new(move |transaction| {
                let coordinator = coordinator.clone();
                Box::pin(async move {
                    let error = coordinator.answer(&transaction).await;
                    not_added(transaction, error)
                })
            }));
        }
    }

    /// Runs something to its end on a host of its own.
    fn run<T: 'static, F: Future<Output = T> + 'static>(&self, run: impl Fn() -> F + 'static) -> T {
        let outcome: Rc<RefCell<Option<T>>> = Rc::default();
        let (told, run) = (outcome.clone(), Rc::new(run));
        let host = self.hosts.get();
        self.hosts.set(host + 1);
        let node = self.cluster.world.add_node(&format!("client-{host}"));
        node.start(1, move |index| {
            let run = (!index.is_control()).then(|| run());
            let told = told.clone();
            async move {
                if let Some(run) = run {
                    let result = run.await;
                    *told.borrow_mut() = Some(result);
                }
            }
        });
        let ended = || outcome.borrow().is_some();
        assert!(self.cluster.world.run_until(LIMIT, ended), "no end");
        outcome.take().unwrap()
    }

    /// Asks the first broker.
    fn ask<R: Exchange + Clone + 'static>(&self, request: R, version: i16) -> R::Response
    where
        R::Response: 'static,
    {
        self.ask_all(0, vec![request], version).remove(0)
    }

    /// Asks a broker for everything on one connection before the first answer is looked at.
    fn ask_all<R: Exchange + Clone + 'static>(
        &self,
        broker: usize,
        requests: Vec<R>,
        version: i16,
    ) -> Vec<R::Response>
    where
        R::Response: 'static,
    {
        let requests = Rc::new(requests);
        self.run(move || {
            let requests = requests.clone();
            async move {
                let host = format!("broker-{}", broker + 1);
                let connection = Connection::open(&host, 9092, "tester", LIMIT);
                let connection = connection.await.unwrap();
                let sent = requests.iter();
                let sent: Vec<_> = sent
                    .map(|request| connection.start(request, version).unwrap())
                    .collect();
                let mut answers = Vec::new();
                for sent in sent {
                    answers.push(sent.answer::<R>(LIMIT).await.unwrap());
                }
                answers
            }
        })
    }

    /// The broker that leads a partition, as the first one knows it.
    fn leader(&self, topic: &str, index: i32) -> Option<usize> {
        let image = self.cluster.probes.control(0)?.image();
        let (leader, _) = image.leader(image.topic_by_name(topic)?.id, index)?;
        Some(leader.0 as usize - 1)
    }

    fn is_in_sync(&self) -> bool {
        let is_in_sync = || self.cluster.is_in_sync();
        self.cluster.world.run_until(LIMIT, is_in_sync)
    }

    fn bounds(&self, topic: &str, index: i32) -> Bounds {
        let shards = self.cluster.probes.shards(0);
        let mut partitions = shards.iter().flat_map(|shard| shard.partitions());
        let found = partitions.find(|p| p.topic == *topic && p.id.index == index);
        found.unwrap().bounds()
    }

    /// A marker for some partitions of a topic; the error of each.
    fn end(&self, marker: &Marker, topic: &str, partitions: &[i32]) -> Vec<ErrorCode> {
        let request = marker.request(topic, partitions);
        let answer = self.ask(request, 2);
        let topics = answer.markers.iter().flat_map(|marker| &marker.topics);
        let partitions = topics.flat_map(|topic| &topic.partitions);
        partitions.map(|p| ErrorCode(p.error_code)).collect()
    }

    /// The group's committed offset of a partition, once its transactions have ended.
    fn committed(&self, partition: i32) -> (i64, ErrorCode) {
        let request = OffsetFetchRequest {
            groups: vec![OffsetFetchRequestGroup {
                group_id: Str::from(GROUP),
                topics: Some(vec![OffsetFetchRequestTopics {
                    name: Str::from(TOPIC),
                    partition_indexes: vec![partition],
                    ..Default::default()
                }]),
                ..Default::default()
            }],
            require_stable: true,
            ..Default::default()
        };
        let answer = self.ask(request, 9);
        let found = &answer.groups[0].topics[0].partitions[0];
        (found.committed_offset, ErrorCode(found.error_code))
    }

    fn commit(&self, producer: Producer, offset: i64, version: i16) -> ErrorCode {
        self.commit_to(0, producer, offset, version)
    }

    fn commit_to(&self, broker: usize, producer: Producer, offset: i64, version: i16) -> ErrorCode {
        let request = producer.commit(offset, "");
        let answer = self.ask_all(broker, vec![request], version).remove(0);
        ErrorCode(answer.topics[0].partitions[0].error_code)
    }

    fn offsets_partition(&self) -> i32 {
        partition_for(GROUP, 3)
    }
}

#[derive(Clone, Copy)]
struct Producer {
    id: i64,
    epoch: i16,
}

impl Producer {
    const ONE: Producer = Producer { id: 7, epoch: 0 };

    fn batch(self, sequence: i32) -> Bytes {
        let mut builder = BatchBuilder::new().with_producer(self.id, self.epoch, sequence);
        builder.transactional = true;
        let now_ms = 1_700_000_000_000;
        builder.append(now_ms, None, Some(b"order"), &[]).unwrap();
        builder.build().unwrap()
    }

    fn commit(self, offset: i64, metadata: &str) -> TxnOffsetCommitRequest {
        TxnOffsetCommitRequest {
            transactional_id: Str::from(TRANSACTION),
            group_id: Str::from(GROUP),
            producer_id: self.id,
            producer_epoch: self.epoch,
            topics: vec![TxnOffsetCommitRequestTopic {
                name: Str::from(TOPIC),
                partitions: vec![TxnOffsetCommitRequestPartition {
                    committed_offset: offset,
                    committed_metadata: Some(Str::from(metadata)),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn produce(self, partitions: &[i32], sequence: i32) -> ProduceRequest {
        let data = partitions.iter().map(|index| PartitionProduceData {
            index: *index,
            records: Some(Records::from(self.batch(sequence))),
            ..Default::default()
        });
        ProduceRequest {
            transactional_id: Some(Str::from(TRANSACTION)),
            acks: -1,
            timeout_ms: 5000,
            topic_data: vec![TopicProduceData {
                name: Str::from(TOPIC),
                partition_data: data.collect(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }
}

/// Error and base offset of each partition.
fn produced(answer: &ProduceResponse) -> Vec<(ErrorCode, i64)> {
    let partitions = answer.responses[0].partition_responses.iter();
    partitions
        .map(|p| (ErrorCode(p.error_code), p.base_offset))
        .collect()
}

#[derive(Clone, Copy)]
struct Marker {
    producer: Producer,
    commit: bool,
    coordinator_epoch: i32,
    version: i8,
}

impl Marker {
    fn of(producer: Producer, commit: bool) -> Marker {
        Marker {
            producer,
            commit,
            coordinator_epoch: 3,
            version: 1,
        }
    }

    fn request(&self, topic: &str, partitions: &[i32]) -> WriteTxnMarkersRequest {
        WriteTxnMarkersRequest {
            markers: vec![WritableTxnMarker {
                producer_id: self.producer.id,
                producer_epoch: self.producer.epoch,
                transaction_result: self.commit,
                topics: vec![WritableTxnMarkerTopic {
                    name: Str::from(topic),
                    partition_indexes: partitions.to_vec(),
                    ..Default::default()
                }],
                coordinator_epoch: self.coordinator_epoch,
                transaction_version: self.version,
                ..Default::default()
            }],
            ..Default::default()
        }
    }
}

const NONE: ErrorCode = ErrorCode::NONE;

#[test]
fn readers_of_committed_records_wait_for_the_marker_and_no_longer() {
    for seed in seeds(3) {
        let stage = Stage::new(seed, &[]);
        stage.coordinated_by(&Coordinator::saying(&[NONE]));
        let all: Vec<i32> = (0..PARTITIONS).collect();
        let answer = stage.ask(Producer::ONE.produce(&all, 0), ADDS);
        assert_eq!(produced(&answer), [(NONE, 0); 4]);
        for index in 0..PARTITIONS {
            let bounds = stage.bounds(TOPIC, index);
            assert_eq!((bounds.last_stable.0, bounds.high_watermark.0), (0, 1));
        }
        let marker = Marker::of(Producer::ONE, false);
        assert_eq!(stage.end(&marker, TOPIC, &all), [NONE; 4]);
        for index in 0..PARTITIONS {
            let bounds = stage.bounds(TOPIC, index);
            assert_eq!((bounds.last_stable.0, bounds.high_watermark.0), (2, 2));
        }
        assert_eq!(stage.cluster.probes.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_marker_of_the_past_ends_nothing_and_one_for_a_stranger_is_written() {
    for seed in seeds(1) {
        let stage = Stage::new(seed, &[]);
        stage.coordinated_by(&Coordinator::saying(&[NONE]));
        let producer = Producer { id: 7, epoch: 4 };
        stage.ask(producer.produce(&[0], 0), ADDS);
        let stale = Producer { id: 7, epoch: 3 };
        let marker = |producer, version| Marker {
            version,
            ..Marker::of(producer, true)
        };
        let stale_epoch = [ErrorCode::INVALID_PRODUCER_EPOCH];
        assert_eq!(stage.end(&marker(stale, 1), TOPIC, &[0]), stale_epoch);
        // Transactions v2 end under the next epoch.
        assert_eq!(stage.end(&marker(producer, 2), TOPIC, &[0]), stale_epoch);
        let next = Producer { id: 7, epoch: 5 };
        assert_eq!(stage.end(&marker(next, 2), TOPIC, &[0]), [NONE]);
        let replaced = Marker {
            coordinator_epoch: 2,
            ..marker(next, 2)
        };
        let fenced = [ErrorCode::TRANSACTION_COORDINATOR_FENCED];
        assert_eq!(stage.end(&replaced, TOPIC, &[0]), fenced);
        let stranger = Producer { id: 99, epoch: 0 };
        assert_eq!(stage.end(&marker(stranger, 1), TOPIC, &[0]), [NONE]);
        assert_eq!(stage.bounds(TOPIC, 0).last_stable.0, 3);
        let unknown = [ErrorCode::UNKNOWN_TOPIC_OR_PARTITION];
        assert_eq!(stage.end(&marker(next, 2), "nothing", &[0]), unknown);
        assert_eq!(stage.end(&marker(next, 2), TOPIC, &[PARTITIONS]), unknown);
    }
}

#[test]
fn batches_behind_one_that_waits_for_the_coordinator_do_not_overtake_it() {
    for seed in seeds(3) {
        let stage = Stage::new(seed, &[]);
        let coordinator = Coordinator::saying(&[NONE]);
        stage.coordinated_by(&coordinator);
        let all: Vec<i32> = (0..PARTITIONS).collect();
        let requests = (0..5).map(|at| Producer::ONE.produce(&all, at));
        let answers = stage.ask_all(0, requests.collect(), ADDS);
        for (at, answer) in answers.iter().enumerate() {
            assert_eq!(produced(answer), [(NONE, at as i64); 4]);
        }
        // Two shards ask about the same transaction, one after the other.
        assert!(coordinator.questions() <= 2);
        assert_eq!(
            coordinator.most.get(),
            1,
            "a coordinator is asked twice at once"
        );
        let asked = coordinator.asked.borrow();
        let partitions = asked.iter().flat_map(|asked| &asked.topics[0].partitions);
        assert_eq!(partitions.count(), 4);
        assert!(asked.iter().all(|asked| !asked.verify_only));
        drop(asked);
        let more = stage.ask(Producer::ONE.produce(&all, 5), ADDS);
        assert_eq!(produced(&more), [(NONE, 5); 4]);
        assert!(coordinator.questions() <= 2, "its transaction is open");
    }
}

#[test]
fn a_batch_that_the_coordinator_does_not_vouch_for_is_not_appended() {
    for seed in seeds(1) {
        let stage = Stage::new(seed, &[]);
        let told = |version, error| {
            stage.coordinated_by(&Coordinator::saying(&[error]));
            let answer = stage.ask(Producer::ONE.produce(&[0], 0), version);
            produced(&answer)[0].0
        };
        let invalid = ErrorCode::INVALID_TXN_STATE;
        assert_eq!(told(VERIFIES, invalid), invalid);
        assert_eq!(told(10, ErrorCode::TRANSACTION_ABORTABLE), invalid);
        let fenced = ErrorCode::PRODUCER_FENCED;
        assert_eq!(told(ADDS, fenced), ErrorCode::INVALID_PRODUCER_EPOCH);
        let loads = ErrorCode::COORDINATOR_LOAD_IN_PROGRESS;
        assert_eq!(told(ADDS, loads), ErrorCode::NOT_ENOUGH_REPLICAS);
        assert_eq!(stage.bounds(TOPIC, 0).log_end.0, 0);
        assert_eq!(told(VERIFIES, NONE), NONE);
    }
}

#[test]
fn a_transaction_that_is_being_completed_is_waited_for_as_long_as_the_settings_say() {
    for seed in seeds(1) {
        let stage = Stage::new(seed, &[]);
        let busy = ErrorCode::CONCURRENT_TRANSACTIONS;
        let coordinator = Coordinator::saying(&[busy, busy, NONE]);
        stage.coordinated_by(&coordinator);
        let answer = stage.ask(Producer::ONE.produce(&[0], 0), ADDS);
        assert_eq!(produced(&answer), [(NONE, 0)]);
        assert_eq!(coordinator.questions(), 3);
        let coordinator = Coordinator::saying(&[busy]);
        stage.coordinated_by(&coordinator);
        let answer = stage.ask(Producer::ONE.produce(&[1], 0), ADDS);
        assert_eq!(produced(&answer), [(busy, -1)]);
        // For 100 ms, with pauses from 1 up to 20 ms and 7 ms for each answer.
        assert!((5..=10).contains(&coordinator.questions()));
        let coordinator = Coordinator::saying(&[busy, NONE]);
        stage.coordinated_by(&coordinator);
        let answer = stage.ask(Producer::ONE.produce(&[1], 0), VERIFIES);
        assert_eq!(produced(&answer), [(ErrorCode::NOT_ENOUGH_REPLICAS, -1)]);
        assert_eq!(
            coordinator.questions(),
            1,
            "an old client repeats by itself"
        );
    }
}

#[test]
fn one_transaction_has_one_producer_and_a_name() {
    for seed in seeds(1) {
        let stage = Stage::new(seed, &[]);
        let coordinator = Coordinator::saying(&[NONE]);
        stage.coordinated_by(&coordinator);
        let mut request = Producer::ONE.produce(&[0], 0);
        let other = Producer { id: 8, epoch: 0 }.produce(&[1], 0);
        let others = other.topic_data[0].partition_data.iter().cloned();
        request.topic_data[0].partition_data.extend(others);
        let mapping = (ErrorCode::INVALID_PRODUCER_ID_MAPPING, -1);
        let answer = stage.ask(request, VERIFIES);
        assert_eq!(produced(&answer), [mapping, mapping]);
        let mut request = Producer::ONE.produce(&[0], 0);
        request.transactional_id = None;
        let unnamed = ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
        let answer = stage.ask(request, ADDS);
        assert_eq!(produced(&answer), [(unnamed, -1)]);
        assert_eq!(coordinator.questions(), 0);
    }
}

#[test]
fn nobody_is_asked_where_verification_is_off_but_to_add() {
    for seed in seeds(1) {
        let off = [("transaction.partition.verification.enable", "false")];
        let stage = Stage::new(seed, &off);
        let coordinator = Coordinator::saying(&[ErrorCode::INVALID_TXN_STATE]);
        stage.coordinated_by(&coordinator);
        let answer = stage.ask(Producer::ONE.produce(&[0], 0), VERIFIES);
        assert_eq!(produced(&answer), [(NONE, 0)]);
        assert_eq!(stage.commit(Producer::ONE, 10, 4), NONE);
        assert_eq!(coordinator.questions(), 0);
        let invalid = ErrorCode::INVALID_TXN_STATE;
        let answer = stage.ask(Producer::ONE.produce(&[1], 0), ADDS);
        assert_eq!(produced(&answer)[0].0, invalid);
        // Turned on while the broker runs.
        let on = IncrementalAlterConfigsRequest {
            resources: vec![AlterConfigsResource {
                resource_type: ResourceType::BROKER.0,
                configs: vec![AlterableConfig {
                    name: Str::from(off[0].0),
                    value: Some(Str::from("true")),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        assert_eq!(stage.ask(on, 1).responses[0].error_code, NONE.0);
        stage.cluster.world.run_for(Duration::from_secs(1));
        let answer = stage.ask(Producer::ONE.produce(&[2], 0), VERIFIES);
        assert_eq!(produced(&answer)[0].0, invalid);
    }
}

#[test]
fn offsets_of_a_transaction_show_with_its_marker_and_go_with_its_abort() {
    for seed in seeds(3) {
        let stage = Stage::new(seed, &[]);
        let coordinator = Coordinator::saying(&[NONE]);
        stage.coordinated_by(&coordinator);
        assert_eq!(stage.commit(Producer::ONE, 10, 5), NONE);
        let asked = coordinator.asked.borrow()[0].clone();
        assert_eq!(asked.topics[0].name, *OFFSETS_TOPIC);
        let pending = (-1, ErrorCode::UNSTABLE_OFFSET_COMMIT);
        assert_eq!(stage.committed(0), pending);
        let at = [stage.offsets_partition()];
        let commit = Marker::of(Producer::ONE, true);
        assert_eq!(stage.end(&commit, OFFSETS_TOPIC, &at), [NONE]);
        assert_eq!(stage.committed(0), (10, NONE));
        assert_eq!(stage.commit(Producer::ONE, 20, 4), NONE);
        assert!(coordinator.asked.borrow()[1].verify_only);
        assert_eq!(stage.committed(0), pending);
        let abort = Marker::of(Producer::ONE, false);
        assert_eq!(stage.end(&abort, OFFSETS_TOPIC, &at), [NONE]);
        assert_eq!(stage.committed(0), (10, NONE));
        let bounds = stage.bounds(OFFSETS_TOPIC, at[0]);
        assert_eq!(bounds.last_stable, bounds.high_watermark);
    }
}

#[test]
fn offsets_that_the_coordinator_does_not_vouch_for_are_not_committed() {
    for seed in seeds(1) {
        let stage = Stage::new(seed, &[]);
        let told = |version, error| {
            stage.coordinated_by(&Coordinator::saying(&[error]));
            stage.commit(Producer::ONE, 10, version)
        };
        let loads = ErrorCode::COORDINATOR_LOAD_IN_PROGRESS;
        let unavailable = ErrorCode::COORDINATOR_NOT_AVAILABLE;
        assert_eq!(told(5, ErrorCode::NETWORK_EXCEPTION), loads);
        assert_eq!(told(1, ErrorCode::NETWORK_EXCEPTION), unavailable);
        let fenced = ErrorCode::PRODUCER_FENCED;
        assert_eq!(told(5, fenced), ErrorCode::INVALID_PRODUCER_EPOCH);
        let abortable = ErrorCode::TRANSACTION_ABORTABLE;
        assert_eq!(told(3, abortable), ErrorCode::INVALID_TXN_STATE);
        assert_eq!(told(4, abortable), abortable);
        assert_eq!(stage.committed(0), (-1, NONE));
    }
}

#[test]
fn a_marker_that_comes_while_groups_are_loaded_is_not_lost() {
    let (mut worlds, mut refused) = (0, 0);
    for seed in seeds(8) {
        let stage = Stage::of(seed, 2, &[]);
        let at = stage.offsets_partition();
        stage.coordinated_by(&Coordinator::saying(&[NONE]));
        assert!(stage.is_in_sync());
        let leader = stage.leader(OFFSETS_TOPIC, at).unwrap();
        // More than a broker that has just received it keeps in memory.
        let metadata = "m".repeat(4000);
        let commits = (1..=100).map(|offset| Producer::ONE.commit(offset, &metadata));
        for answer in stage.ask_all(leader, commits.collect(), 5) {
            assert_eq!(answer.topics[0].partitions[0].error_code, NONE.0);
        }
        let brokers = &stage.cluster.brokers;
        brokers[0].kill();
        stage.cluster.start(0);
        stage.cluster.serve();
        assert!(stage.is_in_sync());
        brokers[0].host.disk().set_slowness(2000);
        brokers[1].kill();
        let leads = || stage.leader(OFFSETS_TOPIC, at) == Some(0);
        assert!(stage.cluster.world.run_until(LIMIT, leads));
        let commit = Marker::of(Producer::ONE, true);
        let deadline = stage.cluster.world.elapsed() + LIMIT;
        loop {
            let [error] = stage.end(&commit, OFFSETS_TOPIC, &[at])[..] else {
                panic!("one partition has one answer")
            };
            if error == NONE {
                break;
            }
            assert_eq!(error, ErrorCode::NOT_LEADER_OR_FOLLOWER);
            refused += 1;
            assert!(stage.cluster.world.elapsed() < deadline, "never loaded");
            stage.cluster.world.run_for(Duration::from_millis(100));
        }
        assert_eq!(stage.committed(0), (100, NONE));
        worlds += 1;
    }
    // In a world here and there everything was loaded before the first marker came.
    assert!(refused > 0 || worlds < 8, "every marker came too late");
}

#[test]
fn a_marker_is_not_acknowledged_before_the_in_sync_set_has_it() {
    for seed in seeds(2) {
        let settings = [("min.insync.replicas", "2"), ("request.timeout.ms", "1500")];
        let stage = Stage::of(seed, 2, &settings);
        stage.coordinated_by(&Coordinator::saying(&[NONE]));
        assert!(stage.is_in_sync());
        let mut led = (0..PARTITIONS).filter(|at| stage.leader(TOPIC, *at) == Some(0));
        let index = led.next().unwrap();
        let answer = stage.ask(Producer::ONE.produce(&[index], 0), ADDS);
        assert_eq!(produced(&answer), [(NONE, 0)]);
        let marker = Marker::of(Producer::ONE, true);
        stage.cluster.brokers[1].kill();
        let late = [ErrorCode::REQUEST_TIMED_OUT];
        assert_eq!(stage.end(&marker, TOPIC, &[index]), late);
        assert_eq!(stage.bounds(TOPIC, index).last_stable.0, 0);
        let few = [ErrorCode::NOT_ENOUGH_REPLICAS];
        let shrunken = (0..100).any(|_| {
            stage.cluster.world.run_for(Duration::from_millis(500));
            stage.end(&marker, TOPIC, &[index]) == few
        });
        assert!(shrunken);
        let end = stage.bounds(TOPIC, index).log_end;
        assert_eq!(stage.end(&marker, TOPIC, &[index]), few);
        assert_eq!(
            stage.bounds(TOPIC, index).log_end,
            end,
            "nothing is appended"
        );
        stage.cluster.start(1);
        stage.cluster.serve();
        assert!(stage.is_in_sync());
        assert_eq!(stage.end(&marker, TOPIC, &[index]), [NONE]);
        let bounds = stage.bounds(TOPIC, index);
        assert_eq!(bounds.last_stable, bounds.log_end);
    }
}
