//! The codec against an independent implementation of the same messages, `kafka-protocol`: every
//! message that both know, at every version that both know.
//!
//! Samples come from the schemas and not from either codec. What our codec makes of a sample and
//! what the other makes of it must be the same bytes; and both must mean the same by a default.

#[path = "../src/wire/schema/mod.rs"]
#[allow(dead_code)]
mod schema;

use bytes::{Bytes, BytesMut};
use highwater::wire::message::MessageInfo;
use highwater::wire::{Message, messages};
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Decodable, Encodable, Message as TheirMessage};

use schema::model::Message as Schema;
use schema::sample::Sampler;

const SAMPLES_PER_VERSION: u64 = 40;
const SEED: u64 = 0x6f72_6163_6c65;

/// Messages with a field `version`, which the other implementation takes for the version to read
/// at; it writes them well.
const ONLY_WRITTEN_BY_THE_ORACLE: [&str; 2] = ["LeaderChangeMessage", "VotersRecord"];

/// One message as both implementations have it.
struct Pair {
    ours: MessageInfo,
    /// The versions that both know.
    versions: std::ops::RangeInclusive<i16>,
    /// Decodes and encodes with the other implementation.
    their_pass: fn(Bytes, i16) -> Result<Bytes, String>,
    /// A default value as bytes: ours and theirs.
    our_default: fn(i16) -> Result<Bytes, String>,
    their_default: fn(i16) -> Result<Bytes, String>,
}

fn pair<O: Message + Default, T: TheirMessage + Encodable + Decodable + Default>() -> Pair {
    Pair {
        ours: MessageInfo::of::<O>(),
        versions: O::MIN_VERSION.max(T::VERSIONS.min)..=O::MAX_VERSION.min(T::VERSIONS.max),
        their_pass: |mut bytes, version| {
            let message = T::decode(&mut bytes, version).map_err(|e| e.to_string())?;
            if !bytes.is_empty() {
                return Err(format!("{} bytes left", bytes.len()));
            }
            encode_theirs(&message, version)
        },
        our_default: |version| O::default().to_bytes(version).map_err(|e| e.to_string()),
        their_default: |version| encode_theirs(&T::default(), version),
    }
}

fn encode_theirs<T: Encodable>(message: &T, version: i16) -> Result<Bytes, String> {
    let mut out = BytesMut::new();
    message
        .encode(&mut out, version)
        .map_err(|e| e.to_string())?;
    Ok(out.freeze())
}

/// Calls `test` with every pair, its schema and each common version; reports all failures.
fn for_all(test: impl Fn(&Pair, &Schema, i16) -> Result<(), String>) {
    let schemas = schema::load();
    let mut failures = Vec::new();
    for pair in &pairs() {
        let schema = schemas
            .iter()
            .find(|s| s.name() == pair.ours.name)
            .expect("every message has a schema");
        for version in pair.versions.clone() {
            if let Err(failure) = test(pair, schema, version) {
                failures.push(format!("{} v{version}: {failure}", pair.ours.name));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} failures
{}",
        failures.len(),
        failures.join(
            "
"
        )
    );
}

fn same(what: &str, left: &Bytes, right: &Bytes) -> Result<(), String> {
    if left == right {
        Ok(())
    } else {
        Err(format!(
            "{what} differ
  {left:?}
  {right:?}"
        ))
    }
}

#[test]
fn both_codecs_read_and_write_the_same_bytes() {
    for_all(|pair, schema, version| {
        if ONLY_WRITTEN_BY_THE_ORACLE.contains(&pair.ours.name) {
            return Ok(());
        }
        for seed in SEED..SEED + SAMPLES_PER_VERSION {
            let pass = |bytes: &Bytes| {
                let passed = (pair.ours.pass)(bytes.clone(), version)
                    .map_err(|e| format!("seed {seed}: {e}"))?;
                passed.encoded.map_err(|e| format!("seed {seed}: {e}"))
            };
            let sample = Bytes::from(Sampler::new(schema, version, seed).sample());
            let ours = pass(&sample)?;
            let theirs = (pair.their_pass)(ours.clone(), version)
                .map_err(|e| format!("seed {seed}: theirs: {e}"))?;
            same(&format!("seed {seed}: ours and theirs"), &ours, &theirs)?;
            same(
                &format!("seed {seed}: there and back"),
                &sample,
                &pass(&theirs)?,
            )?;
        }
        Ok(())
    });
}

#[test]
fn both_codecs_have_the_same_defaults() {
    for_all(|pair, schema, version| {
        let ours = (pair.our_default)(version)?;
        let theirs = (pair.their_default)(version).map_err(|e| format!("theirs: {e}"))?;
        same("ours and theirs", &ours, &theirs)?;
        same(
            "ours and the schema's",
            &ours,
            &Bytes::from(Sampler::default_of(schema, version)),
        )
    });
}

#[test]
fn the_oracle_covers_what_it_can() {
    let pairs = pairs();
    assert!(pairs.iter().all(|pair| !pair.versions.is_empty()));
    let versions: usize = pairs.iter().map(|pair| pair.versions.clone().count()).sum();
    assert!(
        pairs.len() > 170 && versions > 500,
        "{} messages, {versions} versions",
        pairs.len()
    );
}

macro_rules! pairs {
    ($($module:ident::$name:ident,)*) => {
        fn pairs() -> Vec<Pair> {
            vec![$(pair::<messages::$module::$name, theirs::$module::$name>(),)*]
        }
    };
}

pairs! {
    add_offsets_to_txn_request::AddOffsetsToTxnRequest,
    add_offsets_to_txn_response::AddOffsetsToTxnResponse,
    add_partitions_to_txn_request::AddPartitionsToTxnRequest,
    add_partitions_to_txn_response::AddPartitionsToTxnResponse,
    add_raft_voter_request::AddRaftVoterRequest,
    add_raft_voter_response::AddRaftVoterResponse,
    allocate_producer_ids_request::AllocateProducerIdsRequest,
    allocate_producer_ids_response::AllocateProducerIdsResponse,
    alter_client_quotas_request::AlterClientQuotasRequest,
    alter_client_quotas_response::AlterClientQuotasResponse,
    alter_configs_request::AlterConfigsRequest,
    alter_configs_response::AlterConfigsResponse,
    alter_partition_reassignments_request::AlterPartitionReassignmentsRequest,
    alter_partition_reassignments_response::AlterPartitionReassignmentsResponse,
    alter_partition_request::AlterPartitionRequest,
    alter_partition_response::AlterPartitionResponse,
    alter_replica_log_dirs_request::AlterReplicaLogDirsRequest,
    alter_replica_log_dirs_response::AlterReplicaLogDirsResponse,
    alter_share_group_offsets_request::AlterShareGroupOffsetsRequest,
    alter_share_group_offsets_response::AlterShareGroupOffsetsResponse,
    alter_user_scram_credentials_request::AlterUserScramCredentialsRequest,
    alter_user_scram_credentials_response::AlterUserScramCredentialsResponse,
    api_versions_request::ApiVersionsRequest,
    api_versions_response::ApiVersionsResponse,
    assign_replicas_to_dirs_request::AssignReplicasToDirsRequest,
    assign_replicas_to_dirs_response::AssignReplicasToDirsResponse,
    begin_quorum_epoch_request::BeginQuorumEpochRequest,
    begin_quorum_epoch_response::BeginQuorumEpochResponse,
    broker_heartbeat_request::BrokerHeartbeatRequest,
    broker_heartbeat_response::BrokerHeartbeatResponse,
    broker_registration_request::BrokerRegistrationRequest,
    broker_registration_response::BrokerRegistrationResponse,
    consumer_group_describe_request::ConsumerGroupDescribeRequest,
    consumer_group_describe_response::ConsumerGroupDescribeResponse,
    consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest,
    consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse,
    consumer_protocol_assignment::ConsumerProtocolAssignment,
    consumer_protocol_subscription::ConsumerProtocolSubscription,
    controller_registration_request::ControllerRegistrationRequest,
    controller_registration_response::ControllerRegistrationResponse,
    create_acls_request::CreateAclsRequest,
    create_acls_response::CreateAclsResponse,
    create_delegation_token_request::CreateDelegationTokenRequest,
    create_delegation_token_response::CreateDelegationTokenResponse,
    create_partitions_request::CreatePartitionsRequest,
    create_partitions_response::CreatePartitionsResponse,
    create_topics_request::CreateTopicsRequest,
    create_topics_response::CreateTopicsResponse,
    default_principal_data::DefaultPrincipalData,
    delete_acls_request::DeleteAclsRequest,
    delete_acls_response::DeleteAclsResponse,
    delete_groups_request::DeleteGroupsRequest,
    delete_groups_response::DeleteGroupsResponse,
    delete_records_request::DeleteRecordsRequest,
    delete_records_response::DeleteRecordsResponse,
    delete_share_group_offsets_request::DeleteShareGroupOffsetsRequest,
    delete_share_group_offsets_response::DeleteShareGroupOffsetsResponse,
    delete_share_group_state_request::DeleteShareGroupStateRequest,
    delete_share_group_state_response::DeleteShareGroupStateResponse,
    delete_topics_request::DeleteTopicsRequest,
    delete_topics_response::DeleteTopicsResponse,
    describe_acls_request::DescribeAclsRequest,
    describe_acls_response::DescribeAclsResponse,
    describe_client_quotas_request::DescribeClientQuotasRequest,
    describe_client_quotas_response::DescribeClientQuotasResponse,
    describe_cluster_request::DescribeClusterRequest,
    describe_cluster_response::DescribeClusterResponse,
    describe_configs_request::DescribeConfigsRequest,
    describe_configs_response::DescribeConfigsResponse,
    describe_delegation_token_request::DescribeDelegationTokenRequest,
    describe_delegation_token_response::DescribeDelegationTokenResponse,
    describe_groups_request::DescribeGroupsRequest,
    describe_groups_response::DescribeGroupsResponse,
    describe_log_dirs_request::DescribeLogDirsRequest,
    describe_log_dirs_response::DescribeLogDirsResponse,
    describe_producers_request::DescribeProducersRequest,
    describe_producers_response::DescribeProducersResponse,
    describe_quorum_request::DescribeQuorumRequest,
    describe_quorum_response::DescribeQuorumResponse,
    describe_share_group_offsets_request::DescribeShareGroupOffsetsRequest,
    describe_share_group_offsets_response::DescribeShareGroupOffsetsResponse,
    describe_topic_partitions_request::DescribeTopicPartitionsRequest,
    describe_topic_partitions_response::DescribeTopicPartitionsResponse,
    describe_transactions_request::DescribeTransactionsRequest,
    describe_transactions_response::DescribeTransactionsResponse,
    describe_user_scram_credentials_request::DescribeUserScramCredentialsRequest,
    describe_user_scram_credentials_response::DescribeUserScramCredentialsResponse,
    elect_leaders_request::ElectLeadersRequest,
    elect_leaders_response::ElectLeadersResponse,
    end_quorum_epoch_request::EndQuorumEpochRequest,
    end_quorum_epoch_response::EndQuorumEpochResponse,
    end_txn_marker::EndTxnMarker,
    end_txn_request::EndTxnRequest,
    end_txn_response::EndTxnResponse,
    envelope_request::EnvelopeRequest,
    envelope_response::EnvelopeResponse,
    expire_delegation_token_request::ExpireDelegationTokenRequest,
    expire_delegation_token_response::ExpireDelegationTokenResponse,
    fetch_request::FetchRequest,
    fetch_response::FetchResponse,
    fetch_snapshot_request::FetchSnapshotRequest,
    fetch_snapshot_response::FetchSnapshotResponse,
    find_coordinator_request::FindCoordinatorRequest,
    find_coordinator_response::FindCoordinatorResponse,
    get_telemetry_subscriptions_request::GetTelemetrySubscriptionsRequest,
    get_telemetry_subscriptions_response::GetTelemetrySubscriptionsResponse,
    heartbeat_request::HeartbeatRequest,
    heartbeat_response::HeartbeatResponse,
    incremental_alter_configs_request::IncrementalAlterConfigsRequest,
    incremental_alter_configs_response::IncrementalAlterConfigsResponse,
    init_producer_id_request::InitProducerIdRequest,
    init_producer_id_response::InitProducerIdResponse,
    initialize_share_group_state_request::InitializeShareGroupStateRequest,
    initialize_share_group_state_response::InitializeShareGroupStateResponse,
    join_group_request::JoinGroupRequest,
    join_group_response::JoinGroupResponse,
    k_raft_version_record::KRaftVersionRecord,
    leader_change_message::LeaderChangeMessage,
    leave_group_request::LeaveGroupRequest,
    leave_group_response::LeaveGroupResponse,
    list_config_resources_request::ListConfigResourcesRequest,
    list_config_resources_response::ListConfigResourcesResponse,
    list_groups_request::ListGroupsRequest,
    list_groups_response::ListGroupsResponse,
    list_offsets_request::ListOffsetsRequest,
    list_offsets_response::ListOffsetsResponse,
    list_partition_reassignments_request::ListPartitionReassignmentsRequest,
    list_partition_reassignments_response::ListPartitionReassignmentsResponse,
    list_transactions_request::ListTransactionsRequest,
    list_transactions_response::ListTransactionsResponse,
    metadata_request::MetadataRequest,
    metadata_response::MetadataResponse,
    offset_commit_request::OffsetCommitRequest,
    offset_commit_response::OffsetCommitResponse,
    offset_delete_request::OffsetDeleteRequest,
    offset_delete_response::OffsetDeleteResponse,
    offset_fetch_request::OffsetFetchRequest,
    offset_fetch_response::OffsetFetchResponse,
    offset_for_leader_epoch_request::OffsetForLeaderEpochRequest,
    offset_for_leader_epoch_response::OffsetForLeaderEpochResponse,
    produce_request::ProduceRequest,
    produce_response::ProduceResponse,
    push_telemetry_request::PushTelemetryRequest,
    push_telemetry_response::PushTelemetryResponse,
    read_share_group_state_request::ReadShareGroupStateRequest,
    read_share_group_state_response::ReadShareGroupStateResponse,
    read_share_group_state_summary_request::ReadShareGroupStateSummaryRequest,
    read_share_group_state_summary_response::ReadShareGroupStateSummaryResponse,
    remove_raft_voter_request::RemoveRaftVoterRequest,
    remove_raft_voter_response::RemoveRaftVoterResponse,
    renew_delegation_token_request::RenewDelegationTokenRequest,
    renew_delegation_token_response::RenewDelegationTokenResponse,
    request_header::RequestHeader,
    response_header::ResponseHeader,
    sasl_authenticate_request::SaslAuthenticateRequest,
    sasl_authenticate_response::SaslAuthenticateResponse,
    sasl_handshake_request::SaslHandshakeRequest,
    sasl_handshake_response::SaslHandshakeResponse,
    share_acknowledge_request::ShareAcknowledgeRequest,
    share_acknowledge_response::ShareAcknowledgeResponse,
    share_fetch_request::ShareFetchRequest,
    share_fetch_response::ShareFetchResponse,
    share_group_describe_request::ShareGroupDescribeRequest,
    share_group_describe_response::ShareGroupDescribeResponse,
    share_group_heartbeat_request::ShareGroupHeartbeatRequest,
    share_group_heartbeat_response::ShareGroupHeartbeatResponse,
    snapshot_footer_record::SnapshotFooterRecord,
    snapshot_header_record::SnapshotHeaderRecord,
    sync_group_request::SyncGroupRequest,
    sync_group_response::SyncGroupResponse,
    txn_offset_commit_request::TxnOffsetCommitRequest,
    txn_offset_commit_response::TxnOffsetCommitResponse,
    unregister_broker_request::UnregisterBrokerRequest,
    unregister_broker_response::UnregisterBrokerResponse,
    update_features_request::UpdateFeaturesRequest,
    update_features_response::UpdateFeaturesResponse,
    update_raft_voter_request::UpdateRaftVoterRequest,
    update_raft_voter_response::UpdateRaftVoterResponse,
    vote_request::VoteRequest,
    vote_response::VoteResponse,
    voters_record::VotersRecord,
    write_share_group_state_request::WriteShareGroupStateRequest,
    write_share_group_state_response::WriteShareGroupStateResponse,
    write_txn_markers_request::WriteTxnMarkersRequest,
    write_txn_markers_response::WriteTxnMarkersResponse,
}
