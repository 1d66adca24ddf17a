//! Bytes written down by hand from the protocol's rules, for messages and versions that no other
//! Rust implementation knows yet, and for the corners of the encoding.

use bytes::Bytes;

use super::messages::add_raft_voter_request::AddRaftVoterRequest;
use super::messages::api_versions_request::ApiVersionsRequest;
use super::messages::broker_heartbeat_request::BrokerHeartbeatRequest;
use super::messages::consumer_group_member_metadata_value::{
    ClassicMemberMetadata, ConsumerGroupMemberMetadataValue,
};
use super::messages::delete_groups_response::{DeletableGroupResult, DeleteGroupsResponse};
use super::messages::describe_log_dirs_response::{DescribeLogDirsResponse, DescribeLogDirsResult};
use super::messages::fetch_response::{FetchResponse, FetchableTopicResponse, PartitionData};
use super::messages::leader_change_message::{LeaderChangeMessage, Voter};
use super::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use super::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use super::messages::offset_fetch_response::{
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
};
use super::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use super::messages::request_header::RequestHeader;
use super::messages::share_fetch_request::ShareFetchRequest;
use super::messages::streams_group_heartbeat_request::{
    Endpoint, StreamsGroupHeartbeatRequest, TaskIds,
};
use super::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use super::messages::unregister_controller_request::UnregisterControllerRequest;
use super::messages::write_share_group_state_request::{
    PartitionData as SharePartition, StateBatch, WriteShareGroupStateRequest, WriteStateData,
};
use super::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};
use super::{EncodeFault, Message, Records, Str, Writer};
use crate::types::Uuid;

const ID: Uuid = Uuid(*b"0123456789abcdef");

/// `message` at `version` is exactly `parts` one after the other, in both directions.
#[track_caller]
fn golden<M: Message + PartialEq + std::fmt::Debug>(message: M, version: i16, parts: &[&[u8]]) {
    let bytes = Bytes::from(parts.concat());
    assert_eq!(message.to_bytes(version), Ok(bytes.clone()), "encoded");
    assert_eq!(M::from_bytes(bytes, version), Ok(message), "decoded");
}

fn s(text: &str) -> Str {
    Str::from(text)
}

#[test]
fn a_request_header_keeps_the_old_client_id() {
    let header = RequestHeader {
        request_api_key: 18,
        request_api_version: 4,
        correlation_id: 7,
        client_id: Some(s("ab")),
        ..RequestHeader::default()
    };
    golden(
        header.clone(),
        1,
        &[b"\0\x12", b"\0\x04", b"\0\0\0\x07", b"\0\x02ab"],
    );
    // The second form only adds tagged fields; the client id is still behind an int16.
    golden(
        header.clone(),
        2,
        &[b"\0\x12", b"\0\x04", b"\0\0\0\x07", b"\0\x02ab", b"\0"],
    );
    golden(
        RequestHeader {
            client_id: None,
            ..header
        },
        2,
        &[b"\0\x12\0\x04\0\0\0\x07", b"\xff\xff", b"\0"],
    );
}

#[test]
fn list_offsets_11() {
    let partition = ListOffsetsPartition {
        partition_index: 1,
        timestamp: -6,
        ..Default::default()
    };
    let topic = ListOffsetsTopic {
        name: s("t"),
        partitions: vec![partition],
        ..Default::default()
    };
    let request = ListOffsetsRequest {
        replica_id: 3,
        isolation_level: 1,
        topics: vec![topic],
        timeout_ms: 500,
        ..Default::default()
    };
    golden(
        request,
        11,
        &[
            b"\0\0\0\x03", // replica
            b"\x01",       // isolation level
            b"\x02",       // one topic
            b"\x02t",
            b"\x02", // one partition
            b"\0\0\0\x01",
            b"\xff\xff\xff\xff",                 // no leader epoch
            b"\xff\xff\xff\xff\xff\xff\xff\xfa", // -6
            b"\0\0",                             // tags of partition and topic
            b"\0\0\x01\xf4",
            b"\0",
        ],
    );
}

#[test]
fn offset_commit_10_names_topics_by_id() {
    let partition = OffsetCommitRequestPartition {
        partition_index: 2,
        committed_offset: 9,
        committed_metadata: None,
        ..Default::default()
    };
    let topic = OffsetCommitRequestTopic {
        topic_id: ID,
        partitions: vec![partition],
        ..Default::default()
    };
    let request = OffsetCommitRequest {
        group_id: s("g"),
        generation_id_or_member_epoch: 4,
        member_id: s("m"),
        topics: vec![topic],
        ..Default::default()
    };
    golden(
        request,
        10,
        &[
            b"\x02g",
            b"\0\0\0\x04",
            b"\x02m",
            b"\0", // no instance id
            b"\x02",
            b"0123456789abcdef",
            b"\x02",
            b"\0\0\0\x02",
            b"\0\0\0\0\0\0\0\x09",
            b"\xff\xff\xff\xff",
            b"\0",     // no metadata
            b"\0\0\0", // tags
        ],
    );
}

#[test]
fn offset_fetch_10() {
    let partition = OffsetFetchResponsePartitions {
        partition_index: 0,
        committed_offset: 5,
        committed_leader_epoch: 1,
        metadata: Some(s("")),
        error_code: 0,
        ..Default::default()
    };
    let topic = OffsetFetchResponseTopics {
        topic_id: ID,
        partitions: vec![partition],
        ..Default::default()
    };
    let group = OffsetFetchResponseGroup {
        group_id: s("g"),
        topics: vec![topic],
        error_code: 16,
        ..Default::default()
    };
    let response = OffsetFetchResponse {
        groups: vec![group],
        ..Default::default()
    };
    golden(
        response,
        10,
        &[
            b"\0\0\0\0",
            b"\x02",
            b"\x02g",
            b"\x02",
            b"0123456789abcdef",
            b"\x02",
            b"\0\0\0\0",
            b"\0\0\0\0\0\0\0\x05",
            b"\0\0\0\x01",
            b"\x01",
            b"\0\0",
            b"\0\0",
            b"\0\x10",
            b"\0\0",
        ],
    );
}

#[test]
fn write_txn_markers_2_says_which_transaction_version() {
    let topic = WritableTxnMarkerTopic {
        name: s("t"),
        partition_indexes: vec![0, 1],
        ..Default::default()
    };
    let marker = WritableTxnMarker {
        producer_id: 1000,
        producer_epoch: 2,
        transaction_result: true,
        topics: vec![topic],
        coordinator_epoch: 3,
        transaction_version: 2,
        ..Default::default()
    };
    let request = WriteTxnMarkersRequest {
        markers: vec![marker],
        ..Default::default()
    };
    let start: [&[u8]; 6] = [
        b"\x02",
        b"\0\0\0\0\0\0\x03\xe8",
        b"\0\x02",
        b"\x01",
        b"\x02\x02t\x03\0\0\0\0\0\0\0\x01\0",
        b"\0\0\0\x03",
    ];
    golden(request.clone(), 2, &[&start.concat(), b"\x02", b"\0\0"]);
    // At version 1 the field may be left out.
    assert_eq!(
        request.to_bytes(1).unwrap(),
        [&start.concat(), &b"\0\0"[..]].concat()
    );
}

#[test]
fn describe_log_dirs_5() {
    let result = DescribeLogDirsResult {
        log_dir: s("/d"),
        total_bytes: 10,
        usable_bytes: 4,
        is_cordoned: true,
        ..Default::default()
    };
    let response = DescribeLogDirsResponse {
        results: vec![result],
        ..Default::default()
    };
    golden(
        response,
        5,
        &[
            b"\0\0\0\0",
            b"\0\0",
            b"\x02",
            b"\0\0",
            b"\x03/d",
            b"\x01", // no topics
            b"\0\0\0\0\0\0\0\x0a",
            b"\0\0\0\0\0\0\0\x04",
            b"\x01",
            b"\0\0",
        ],
    );
}

#[test]
fn share_fetch_2() {
    let request = ShareFetchRequest {
        group_id: None,
        member_id: Some(s("m")),
        share_session_epoch: 1,
        max_wait_ms: 2,
        min_bytes: 3,
        max_records: 4,
        batch_size: 5,
        share_acquire_mode: 1,
        is_renew_ack: true,
        ..Default::default()
    };
    golden(
        request.clone(),
        2,
        &[
            b"\0",
            b"\x02m",
            b"\0\0\0\x01\0\0\0\x02\0\0\0\x03",
            b"\x7f\xff\xff\xff", // the default of max bytes
            b"\0\0\0\x04\0\0\0\x05",
            b"\x01\x01",
            b"\x01\x01",
            b"\0",
        ],
    );
    // A renewal cannot be said at version 1, and leaving it out would change its meaning.
    let error = request.to_bytes(1).unwrap_err();
    assert_eq!(
        (error.fault(), error.field()),
        (
            EncodeFault::FieldNotInVersion,
            "ShareFetchRequest.isRenewAck"
        )
    );
}

#[test]
fn broker_heartbeat_2_tags_its_directories() {
    let request = BrokerHeartbeatRequest {
        broker_id: 1,
        broker_epoch: 2,
        current_metadata_offset: 3,
        ..Default::default()
    };
    let start: &[u8] = b"\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0";
    golden(request.clone(), 2, &[start, b"\0"]);
    let cordoned = BrokerHeartbeatRequest {
        cordoned_log_dirs: Some(vec![ID]),
        ..request.clone()
    };
    golden(
        cordoned.clone(),
        2,
        &[start, b"\x01", b"\x01\x11", b"\x02", b"0123456789abcdef"],
    );
    let both = BrokerHeartbeatRequest {
        offline_log_dirs: vec![ID],
        cordoned_log_dirs: Some(vec![]),
        ..request
    };
    golden(
        both,
        2,
        &[
            start,
            b"\x02",
            b"\0\x11\x020123456789abcdef",
            b"\x01\x01\x01",
        ],
    );
    assert_eq!(
        cordoned.to_bytes(1).unwrap_err().fault(),
        EncodeFault::FieldNotInVersion
    );
}

#[test]
fn api_versions_5_names_the_cluster() {
    let request = ApiVersionsRequest {
        client_software_name: s("c"),
        client_software_version: s("1"),
        cluster_id: Some(s("x")),
        node_id: 9,
        ..Default::default()
    };
    golden(
        request.clone(),
        5,
        &[b"\x02c", b"\x021", b"\x02x", b"\0\0\0\x09", b"\0"],
    );
    // Older versions leave out what they do not know.
    assert_eq!(&request.to_bytes(4).unwrap()[..], b"\x02c\x021\0");
    assert_eq!(&request.to_bytes(0).unwrap()[..], b"");
}

#[test]
fn txn_offset_commit_6_names_topics_by_id() {
    let partition = TxnOffsetCommitRequestPartition {
        partition_index: 1,
        committed_offset: 2,
        committed_metadata: Some(s("x")),
        ..Default::default()
    };
    let topic = TxnOffsetCommitRequestTopic {
        topic_id: ID,
        partitions: vec![partition],
        ..Default::default()
    };
    let request = TxnOffsetCommitRequest {
        transactional_id: s("a"),
        group_id: s("g"),
        producer_id: 1,
        producer_epoch: 2,
        member_id: s(""),
        topics: vec![topic],
        ..Default::default()
    };
    golden(
        request,
        6,
        &[
            b"\x02a\x02g",
            b"\0\0\0\0\0\0\0\x01\0\x02",
            b"\xff\xff\xff\xff\x01\0",
            b"\x02",
            b"0123456789abcdef",
            b"\x02\0\0\0\x01\0\0\0\0\0\0\0\x02\xff\xff\xff\xff\x02x",
            b"\0\0\0",
        ],
    );
}

#[test]
fn delete_groups_3_explains_its_errors() {
    let result = DeletableGroupResult {
        group_id: s("g"),
        error_code: 134,
        error_message: Some(s("no")),
        ..Default::default()
    };
    let response = DeleteGroupsResponse {
        results: vec![result],
        ..Default::default()
    };
    golden(
        response,
        3,
        &[
            b"\0\0\0\0",
            b"\x02",
            b"\x02g",
            b"\0\x86",
            b"\x03no",
            b"\0\0",
        ],
    );
}

#[test]
fn streams_group_heartbeat_1_marks_nullable_structs() {
    let endpoint = Endpoint {
        host: s("h"),
        port: 65_000,
        ..Default::default()
    };
    let tasks = TaskIds {
        subtopology_id: s("0"),
        partitions: vec![3],
        ..Default::default()
    };
    let request = StreamsGroupHeartbeatRequest {
        group_id: s("g"),
        member_id: s("m"),
        member_epoch: 1,
        endpoint_information_epoch: 2,
        active_tasks: Some(vec![tasks]),
        user_endpoint: Some(endpoint),
        ..Default::default()
    };
    golden(
        request,
        1,
        &[
            b"\x02g\x02m",
            b"\0\0\0\x01\0\0\0\x02",
            b"\0\0", // no instance, no rack
            b"\xff\xff\xff\xff",
            b"\xff", // no topology
            b"\x02\x020\x02\0\0\0\x03\0",
            b"\0\0",
            b"\0",                  // no process id
            b"\x01\x02h\xfd\xe8\0", // an endpoint
            b"\0\0\0",              // no client tags, no offsets
            b"\0",
            b"\0",
        ],
    );
}

#[test]
fn add_raft_voter_1_and_unregister_controller_0() {
    let request = AddRaftVoterRequest {
        cluster_id: None,
        timeout_ms: 1,
        voter_id: 2,
        voter_directory_id: ID,
        ack_when_committed: false,
        ..Default::default()
    };
    golden(
        request.clone(),
        1,
        &[
            b"\0",
            b"\0\0\0\x01\0\0\0\x02",
            b"0123456789abcdef",
            b"\x01",
            b"\0",
            b"\0",
        ],
    );
    // Version 0 always acknowledges when committed: anything else cannot be said.
    assert_eq!(
        request.to_bytes(0).unwrap_err().fault(),
        EncodeFault::FieldNotInVersion
    );
    let unregister = UnregisterControllerRequest {
        controller_id: 3,
        ..Default::default()
    };
    golden(unregister, 0, &[b"\0\0\0\x03", b"\0"]);
}

#[test]
fn write_share_group_state_1() {
    let batch = StateBatch {
        first_offset: 1,
        last_offset: 2,
        delivery_state: 3,
        delivery_count: 4,
        ..Default::default()
    };
    let partition = SharePartition {
        partition: 5,
        state_epoch: 6,
        leader_epoch: 7,
        start_offset: 8,
        delivery_complete_count: 9,
        state_batches: vec![batch],
        ..Default::default()
    };
    let topic = WriteStateData {
        topic_id: ID,
        partitions: vec![partition],
        ..Default::default()
    };
    let request = WriteShareGroupStateRequest {
        group_id: s("g"),
        topics: vec![topic],
        ..Default::default()
    };
    golden(
        request,
        1,
        &[
            b"\x02g",
            b"\x02",
            b"0123456789abcdef",
            b"\x02\0\0\0\x05\0\0\0\x06\0\0\0\x07\0\0\0\0\0\0\0\x08\0\0\0\x09",
            b"\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\x03\0\x04",
            b"\0\0\0\0",
        ],
    );
}

#[test]
fn a_field_named_version_does_not_change_the_version() {
    let voter = Voter {
        voter_id: 1,
        voter_directory_id: ID,
        ..Default::default()
    };
    let message = LeaderChangeMessage {
        version: 0,
        leader_id: 1,
        voters: vec![voter],
        ..Default::default()
    };
    golden(
        message,
        1,
        &[
            b"\0\0",
            b"\0\0\0\x01",
            b"\x02\0\0\0\x01",
            b"0123456789abcdef",
            b"\0",
            b"\x01",
            b"\0",
        ],
    );
}

#[test]
fn a_nullable_struct_in_a_tagged_field_has_a_mark_of_its_own() {
    let start: &[u8] = b"\x01\x01\x01\x01\x01\x01\xff\xff\xff\xff\x01";
    let value = ConsumerGroupMemberMetadataValue::default();
    golden(value.clone(), 0, &[start, b"\0"]);
    let null = ConsumerGroupMemberMetadataValue {
        classic_member_metadata: None,
        ..value.clone()
    };
    golden(null, 0, &[start, b"\x01", b"\0\x01", b"\0"]);
    let metadata = ClassicMemberMetadata {
        session_timeout_ms: 5,
        ..Default::default()
    };
    let some = ConsumerGroupMemberMetadataValue {
        classic_member_metadata: Some(metadata),
        ..value
    };
    golden(
        some,
        0,
        &[start, b"\x01", b"\0\x07", b"\x01", b"\0\0\0\x05\x01\0"],
    );
}

#[test]
fn produce_13_shares_the_records_of_the_frame() {
    let records = Bytes::from(vec![7; 600]);
    let partition = PartitionProduceData {
        index: 2,
        records: Some(Records::from(records)),
        ..Default::default()
    };
    let topic = TopicProduceData {
        topic_id: ID,
        partition_data: vec![partition],
        ..Default::default()
    };
    let request = ProduceRequest {
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![topic],
        ..Default::default()
    };
    let parts: [&[u8]; 4] = [
        b"\0\xff\xff\0\0\x75\x30\x02",
        b"0123456789abcdef\x02\0\0\0\x02",
        b"\xd9\x04", // 601 as a varint
        &[7; 600],
    ];
    golden(request, 13, &[&parts.concat(), b"\0\0\0"]);

    let frame = Bytes::from([&parts.concat(), &b"\0\0\0"[..]].concat());
    let request = ProduceRequest::from_bytes(frame.clone(), 13).unwrap();
    let records = request.topic_data[0].partition_data[0]
        .records
        .as_ref()
        .unwrap();
    let at = parts[..3].concat().len();
    assert_eq!(
        records.parts()[0].as_ptr(),
        frame[at..].as_ptr(),
        "not a copy"
    );
}

#[test]
fn a_fetch_response_leaves_without_copying_its_records() {
    let batches = [Bytes::from(vec![1; 4096]), Bytes::from(vec![2; 4096])];
    let partition = PartitionData {
        partition_index: 0,
        records: Some(batches.iter().cloned().collect()),
        ..Default::default()
    };
    let topic = FetchableTopicResponse {
        topic_id: ID,
        partitions: vec![partition],
        ..Default::default()
    };
    let response = FetchResponse {
        responses: vec![topic],
        ..Default::default()
    };
    let mut w = Writer::new();
    response.encode(&mut w, 17).unwrap();
    let parts = w.finish_in_memory();
    assert_eq!(parts.len(), 4, "head, two batches, tail");
    assert_eq!(parts[1].as_ptr(), batches[0].as_ptr());
    assert_eq!(parts[2].as_ptr(), batches[1].as_ptr());
    let json = response.to_json(17);
    let partition = &json["responses"][0]["partitions"][0];
    assert_eq!(partition["recordsSizeInBytes"], 8192);
    assert!(partition.get("records").is_none() && partition.get("divergingEpoch").is_none());
}

#[test]
fn json_is_what_the_request_log_prints() {
    let topic = TopicProduceData {
        topic_id: ID,
        partition_data: vec![PartitionProduceData {
            index: 1,
            records: None,
            ..Default::default()
        }],
        ..Default::default()
    };
    let request = ProduceRequest {
        acks: 1,
        timeout_ms: 5,
        topic_data: vec![topic],
        ..Default::default()
    };
    assert_eq!(
        request.to_json(13).to_string(),
        r#"{"transactionalId":null,"acks":1,"timeoutMs":5,"topicData":[{"topicId":"MDEyMzQ1Njc4OWFiY2RlZg","partitionData":[{"index":1,"records":null}]}]}"#
    );
}
