//! Every API that is advertised answers at every version it is advertised at: an empty request of
//! each gets a well-formed answer and never a closed connection.
#![allow(clippy::unwrap_used)]

mod support;

use highwater::broker::apis;
use highwater::wire::messages::*;
use highwater::wire::{Message, Reader};
use support::Broker;
use support::raw::Raw;

/// Sends an empty request at every version and decodes the answer.
fn every_version<Q: Message, R: Message>(broker: &Broker, request: &Q, answered: &mut Vec<i16>) {
    let range = apis::served(highwater::wire::ApiKey(Q::API_KEY)).expect("it is advertised");
    for version in range {
        let mut raw = Raw::connect(broker.address);
        let sent = raw.send(request, version);
        let frame = raw
            .read_frame()
            .unwrap_or_else(|error| panic!("{} v{version}: {error}", Q::NAME));
        let mut reader = Reader::new(frame);
        assert_eq!(reader.i32("correlation_id").unwrap(), sent);
        let header = highwater::wire::api::response_header_version(
            highwater::wire::ApiKey(Q::API_KEY),
            version,
        );
        if header == Some(1) {
            reader.unknown_tagged_fields().unwrap();
        }
        R::decode(&mut reader, version)
            .unwrap_or_else(|error| panic!("{} v{version}: {error}", R::NAME));
        assert_eq!(reader.remaining(), 0, "{} v{version}", R::NAME);
    }
    answered.push(Q::API_KEY);
}

macro_rules! apis {
    ($broker:expr, $answered:expr; $($request:ident::$q:ident => $response:ident::$r:ident,)*) => {
        $(every_version::<$request::$q, $response::$r>($broker, &Default::default(), $answered);)*
    };
}

#[test]
fn every_advertised_api_answers_at_every_advertised_version() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0"]);
    let mut answered = Vec::new();
    // With acks=0 there would be no answer.
    let produce = produce_request::ProduceRequest {
        acks: 1,
        ..Default::default()
    };
    every_version::<_, produce_response::ProduceResponse>(&broker, &produce, &mut answered);
    apis! { &broker, &mut answered;
        fetch_request::FetchRequest => fetch_response::FetchResponse,
        list_offsets_request::ListOffsetsRequest => list_offsets_response::ListOffsetsResponse,
        metadata_request::MetadataRequest => metadata_response::MetadataResponse,
        offset_commit_request::OffsetCommitRequest => offset_commit_response::OffsetCommitResponse,
        offset_fetch_request::OffsetFetchRequest => offset_fetch_response::OffsetFetchResponse,
        find_coordinator_request::FindCoordinatorRequest => find_coordinator_response::FindCoordinatorResponse,
        join_group_request::JoinGroupRequest => join_group_response::JoinGroupResponse,
        heartbeat_request::HeartbeatRequest => heartbeat_response::HeartbeatResponse,
        leave_group_request::LeaveGroupRequest => leave_group_response::LeaveGroupResponse,
        sync_group_request::SyncGroupRequest => sync_group_response::SyncGroupResponse,
        describe_groups_request::DescribeGroupsRequest => describe_groups_response::DescribeGroupsResponse,
        list_groups_request::ListGroupsRequest => list_groups_response::ListGroupsResponse,
        api_versions_request::ApiVersionsRequest => api_versions_response::ApiVersionsResponse,
        create_topics_request::CreateTopicsRequest => create_topics_response::CreateTopicsResponse,
        delete_topics_request::DeleteTopicsRequest => delete_topics_response::DeleteTopicsResponse,
        delete_records_request::DeleteRecordsRequest => delete_records_response::DeleteRecordsResponse,
        init_producer_id_request::InitProducerIdRequest => init_producer_id_response::InitProducerIdResponse,
        offset_for_leader_epoch_request::OffsetForLeaderEpochRequest => offset_for_leader_epoch_response::OffsetForLeaderEpochResponse,
        add_partitions_to_txn_request::AddPartitionsToTxnRequest => add_partitions_to_txn_response::AddPartitionsToTxnResponse,
        add_offsets_to_txn_request::AddOffsetsToTxnRequest => add_offsets_to_txn_response::AddOffsetsToTxnResponse,
        end_txn_request::EndTxnRequest => end_txn_response::EndTxnResponse,
        write_txn_markers_request::WriteTxnMarkersRequest => write_txn_markers_response::WriteTxnMarkersResponse,
        txn_offset_commit_request::TxnOffsetCommitRequest => txn_offset_commit_response::TxnOffsetCommitResponse,
        describe_configs_request::DescribeConfigsRequest => describe_configs_response::DescribeConfigsResponse,
        alter_configs_request::AlterConfigsRequest => alter_configs_response::AlterConfigsResponse,
        alter_replica_log_dirs_request::AlterReplicaLogDirsRequest => alter_replica_log_dirs_response::AlterReplicaLogDirsResponse,
        describe_client_quotas_request::DescribeClientQuotasRequest => describe_client_quotas_response::DescribeClientQuotasResponse,
        alter_client_quotas_request::AlterClientQuotasRequest => alter_client_quotas_response::AlterClientQuotasResponse,
        describe_log_dirs_request::DescribeLogDirsRequest => describe_log_dirs_response::DescribeLogDirsResponse,
        create_partitions_request::CreatePartitionsRequest => create_partitions_response::CreatePartitionsResponse,
        delete_groups_request::DeleteGroupsRequest => delete_groups_response::DeleteGroupsResponse,
        incremental_alter_configs_request::IncrementalAlterConfigsRequest => incremental_alter_configs_response::IncrementalAlterConfigsResponse,
        offset_delete_request::OffsetDeleteRequest => offset_delete_response::OffsetDeleteResponse,
        describe_cluster_request::DescribeClusterRequest => describe_cluster_response::DescribeClusterResponse,
        describe_producers_request::DescribeProducersRequest => describe_producers_response::DescribeProducersResponse,
        describe_transactions_request::DescribeTransactionsRequest => describe_transactions_response::DescribeTransactionsResponse,
        list_transactions_request::ListTransactionsRequest => list_transactions_response::ListTransactionsResponse,
        list_config_resources_request::ListConfigResourcesRequest => list_config_resources_response::ListConfigResourcesResponse,
        describe_topic_partitions_request::DescribeTopicPartitionsRequest => describe_topic_partitions_response::DescribeTopicPartitionsResponse,
        elect_leaders_request::ElectLeadersRequest => elect_leaders_response::ElectLeadersResponse,
        alter_partition_reassignments_request::AlterPartitionReassignmentsRequest => alter_partition_reassignments_response::AlterPartitionReassignmentsResponse,
        list_partition_reassignments_request::ListPartitionReassignmentsRequest => list_partition_reassignments_response::ListPartitionReassignmentsResponse,
        describe_quorum_request::DescribeQuorumRequest => describe_quorum_response::DescribeQuorumResponse,
        update_features_request::UpdateFeaturesRequest => update_features_response::UpdateFeaturesResponse,
        unregister_broker_request::UnregisterBrokerRequest => unregister_broker_response::UnregisterBrokerResponse,
        unregister_controller_request::UnregisterControllerRequest => unregister_controller_response::UnregisterControllerResponse,
    }
    answered.sort_unstable();
    let served: Vec<i16> = apis::SERVED.iter().map(|key| key.0).collect();
    assert_eq!(answered, served, "an advertised API that no test asks");
}
