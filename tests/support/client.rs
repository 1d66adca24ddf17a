//! The few requests that the tests of disks need, each answered with its error code: what stock
//! clients hide behind retries.

use super::raw::Raw;
use bytes::Bytes;
use highwater::wire::batch::Batches;
use highwater::wire::batch_builder::BatchBuilder;
use highwater::wire::messages::alter_replica_log_dirs_request::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
};
use highwater::wire::messages::alter_replica_log_dirs_response::AlterReplicaLogDirsResponse;
use highwater::wire::messages::create_topics_request::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use highwater::wire::messages::create_topics_response::CreateTopicsResponse;
use highwater::wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use highwater::wire::messages::delete_records_response::DeleteRecordsResponse;
use highwater::wire::messages::delete_topics_request::DeleteTopicsRequest;
use highwater::wire::messages::delete_topics_response::DeleteTopicsResponse;
use highwater::wire::messages::describe_log_dirs_request::DescribeLogDirsRequest;
use highwater::wire::messages::describe_log_dirs_response::DescribeLogDirsResponse;
use highwater::wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use highwater::wire::messages::fetch_response::FetchResponse;
use highwater::wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use highwater::wire::messages::incremental_alter_configs_response::IncrementalAlterConfigsResponse;
use highwater::wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use highwater::wire::messages::list_offsets_response::ListOffsetsResponse;
use highwater::wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use highwater::wire::messages::metadata_response::{MetadataResponse, MetadataResponsePartition};
use highwater::wire::messages::produce_request::{
    PartitionProduceData, ProduceRequest, TopicProduceData,
};
use highwater::wire::messages::produce_response::ProduceResponse;
use highwater::wire::{ErrorCode, Records};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// How long a broker may take to make or delete what it is asked to.
const CHANGE_MS: i32 = 90_000;

pub struct Client {
    pub raw: Raw,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        Client {
            raw: Raw::connect(address),
        }
    }

    pub fn create_topic(&mut self, topic: &str, partitions: i32, configs: &[(&str, &str)]) {
        self.create_replicated(topic, partitions, 1, configs);
    }

    pub fn create_replicated(
        &mut self,
        topic: &str,
        partitions: i32,
        replication_factor: i16,
        configs: &[(&str, &str)],
    ) {
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: (*name).into(),
            value: Some((*value).into()),
            ..Default::default()
        });
        let request = CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: topic.into(),
                num_partitions: partitions,
                replication_factor,
                configs: configs.collect(),
                ..Default::default()
            }],
            timeout_ms: CHANGE_MS,
            ..Default::default()
        };
        let answer: CreateTopicsResponse = self.raw.call(&request, 7);
        let topic = &answer.topics[0];
        assert_eq!(topic.error_code, 0, "{:?}", topic.error_message);
    }

    /// One record with acks=all; its offset.
    pub fn produce(&mut self, topic: &str, partition: i32, value: &[u8]) -> Result<i64, ErrorCode> {
        let mut batch = BatchBuilder::new();
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        batch
            .append(now.as_millis() as i64, None, Some(value), &[])
            .unwrap();
        let request = ProduceRequest {
            acks: -1,
            timeout_ms: 15_000,
            topic_data: vec![TopicProduceData {
                name: topic.into(),
                partition_data: vec![PartitionProduceData {
                    index: partition,
                    records: Some(Records::from(batch.build().unwrap())),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer: ProduceResponse = self.raw.call(&request, 9);
        let told = &answer.responses[0].partition_responses[0];
        match told.error_code {
            0 => Ok(told.base_offset),
            code => Err(ErrorCode(code)),
        }
    }

    /// What one fetch from `from` gives: offset and value of each record, and the high watermark.
    pub fn fetch(
        &mut self,
        topic: &str,
        partition: i32,
        from: i64,
    ) -> Result<(Vec<(i64, Bytes)>, i64), ErrorCode> {
        let request = FetchRequest {
            max_wait_ms: 100,
            min_bytes: 1,
            max_bytes: 8 << 20,
            topics: vec![FetchTopic {
                topic: topic.into(),
                partitions: vec![FetchPartition {
                    partition,
                    fetch_offset: from,
                    partition_max_bytes: 8 << 20,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer: FetchResponse = self.raw.call(&request, 12);
        let told = &answer.responses[0].partitions[0];
        if told.error_code != 0 {
            return Err(ErrorCode(told.error_code));
        }
        let mut found = Vec::new();
        let records = told.records.clone().unwrap_or_default().to_bytes();
        // The last batch may be cut at the limit.
        for batch in Batches::new(records).map_while(Result::ok) {
            batch.check_crc().unwrap();
            for record in batch.records(64 << 20).unwrap() {
                let record = record.unwrap();
                if record.offset.0 >= from {
                    found.push((record.offset.0, record.value.unwrap_or_default()));
                }
            }
        }
        Ok((found, told.high_watermark))
    }

    /// Everything from the partition's start to its high watermark, by offset.
    pub fn read_all(&mut self, topic: &str, partition: i32) -> BTreeMap<i64, Bytes> {
        let mut next = self.list_offset(topic, partition, -2).unwrap();
        let mut all = BTreeMap::new();
        loop {
            let (records, high_watermark) = self.fetch(topic, partition, next).unwrap();
            if let Some((last, _)) = records.last() {
                next = last + 1;
            }
            all.extend(records);
            if next >= high_watermark {
                return all;
            }
        }
    }

    /// -1 latest, -2 earliest.
    pub fn list_offset(
        &mut self,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> Result<i64, ErrorCode> {
        let request = ListOffsetsRequest {
            replica_id: -1,
            topics: vec![ListOffsetsTopic {
                name: topic.into(),
                partitions: vec![ListOffsetsPartition {
                    partition_index: partition,
                    timestamp,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer: ListOffsetsResponse = self.raw.call(&request, 6);
        let told = &answer.topics[0].partitions[0];
        match told.error_code {
            0 => Ok(told.offset),
            code => Err(ErrorCode(code)),
        }
    }

    pub fn delete_topic(&mut self, topic: &str) {
        let request = DeleteTopicsRequest {
            topic_names: vec![topic.into()],
            timeout_ms: CHANGE_MS,
            ..Default::default()
        };
        let answer: DeleteTopicsResponse = self.raw.call(&request, 5);
        assert_eq!(answer.responses[0].error_code, 0, "{answer:?}");
    }

    pub fn delete_records(
        &mut self,
        topic: &str,
        partition: i32,
        to: i64,
    ) -> Result<(), ErrorCode> {
        let request = DeleteRecordsRequest {
            topics: vec![DeleteRecordsTopic {
                name: topic.into(),
                partitions: vec![DeleteRecordsPartition {
                    partition_index: partition,
                    offset: to,
                    ..Default::default()
                }],
                ..Default::default()
            }],
            timeout_ms: CHANGE_MS,
            ..Default::default()
        };
        let answer: DeleteRecordsResponse = self.raw.call(&request, 2);
        match answer.topics[0].partitions[0].error_code {
            0 => Ok(()),
            code => Err(ErrorCode(code)),
        }
    }

    /// The partitions of a topic as clients see them, by index.
    pub fn partitions(&mut self, topic: &str) -> BTreeMap<i32, MetadataResponsePartition> {
        let request = MetadataRequest {
            topics: Some(vec![MetadataRequestTopic {
                name: Some(topic.into()),
                ..Default::default()
            }]),
            allow_auto_topic_creation: false,
            ..Default::default()
        };
        let answer: MetadataResponse = self.raw.call(&request, 12);
        let partitions = answer.topics[0].partitions.iter();
        partitions
            .map(|partition| (partition.partition_index, partition.clone()))
            .collect()
    }

    /// Error and number of partitions of each log directory.
    pub fn log_dirs(&mut self) -> BTreeMap<String, (ErrorCode, usize)> {
        let request = DescribeLogDirsRequest {
            topics: None,
            ..Default::default()
        };
        let answer: DescribeLogDirsResponse = self.raw.call(&request, 4);
        let told = answer.results.iter().map(|result| {
            let count = result
                .topics
                .iter()
                .map(|topic| topic.partitions.len())
                .sum();
            (
                result.log_dir.to_string(),
                (ErrorCode(result.error_code), count),
            )
        });
        told.collect()
    }

    /// Asks for a replica to lie in a log directory; what is said.
    pub fn alter_log_dir(&mut self, topic: &str, partition: i32, dir: &str) -> ErrorCode {
        let request = AlterReplicaLogDirsRequest {
            dirs: vec![AlterReplicaLogDir {
                path: dir.into(),
                topics: vec![AlterReplicaLogDirTopic {
                    name: topic.into(),
                    partitions: vec![partition],
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer: AlterReplicaLogDirsResponse = self.raw.call(&request, 2);
        ErrorCode(answer.results[0].partitions[0].error_code)
    }

    /// How many records the copy of a replica lacks, if it is on its way to another directory.
    pub fn future_lag(&mut self, topic: &str, partition: i32) -> Option<i64> {
        let request = DescribeLogDirsRequest::default();
        let request = DescribeLogDirsRequest {
            topics: None,
            ..request
        };
        let answer: DescribeLogDirsResponse = self.raw.call(&request, 4);
        let topics = answer.results.iter().flat_map(|result| &result.topics);
        let partitions = topics.filter(|told| &*told.name == topic);
        let mut partitions = partitions.flat_map(|told| &told.partitions);
        let copy =
            partitions.find(|told| told.partition_index == partition && told.is_future_key)?;
        Some(copy.offset_lag)
    }

    /// Sets a dynamic setting of a broker.
    pub fn set_broker(&mut self, node: i32, name: &str, value: &str) {
        self.set(4, &node.to_string(), name, value);
    }

    /// Sets a topic's setting.
    pub fn set_topic(&mut self, topic: &str, name: &str, value: &str) {
        self.set(2, topic, name, value);
    }

    fn set(&mut self, resource_type: i8, resource: &str, name: &str, value: &str) {
        let request = IncrementalAlterConfigsRequest {
            resources: vec![AlterConfigsResource {
                resource_type,
                resource_name: resource.into(),
                configs: vec![AlterableConfig {
                    name: name.into(),
                    config_operation: 0,
                    value: Some(value.into()),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        };
        let answer: IncrementalAlterConfigsResponse = self.raw.call(&request, 1);
        let told = &answer.responses[0];
        assert_eq!(told.error_code, 0, "{:?}", told.error_message);
    }
}
