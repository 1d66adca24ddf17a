//! Which response answers which request.
//!
//! Types only.

use crate::wire::messages as m;
use crate::wire::{ApiKey, Message};

/// A request and the type of its response.
pub trait Exchange: Message {
    type Response: Message;

    const KEY: ApiKey = ApiKey(Self::API_KEY);
}

macro_rules! exchanges {
    ($($module:ident $request:ident => $answer:ident $response:ident,)*) => {$(
        impl Exchange for m::$module::$request {
            type Response = m::$answer::$response;
        }
    )*};
}

exchanges! {
    add_offsets_to_txn_request AddOffsetsToTxnRequest => add_offsets_to_txn_response AddOffsetsToTxnResponse,
    add_partitions_to_txn_request AddPartitionsToTxnRequest => add_partitions_to_txn_response AddPartitionsToTxnResponse,
    allocate_producer_ids_request AllocateProducerIdsRequest => allocate_producer_ids_response AllocateProducerIdsResponse,
    alter_client_quotas_request AlterClientQuotasRequest => alter_client_quotas_response AlterClientQuotasResponse,
    alter_configs_request AlterConfigsRequest => alter_configs_response AlterConfigsResponse,
    alter_partition_reassignments_request AlterPartitionReassignmentsRequest => alter_partition_reassignments_response AlterPartitionReassignmentsResponse,
    alter_partition_request AlterPartitionRequest => alter_partition_response AlterPartitionResponse,
    alter_replica_log_dirs_request AlterReplicaLogDirsRequest => alter_replica_log_dirs_response AlterReplicaLogDirsResponse,
    api_versions_request ApiVersionsRequest => api_versions_response ApiVersionsResponse,
    assign_replicas_to_dirs_request AssignReplicasToDirsRequest => assign_replicas_to_dirs_response AssignReplicasToDirsResponse,
    broker_heartbeat_request BrokerHeartbeatRequest => broker_heartbeat_response BrokerHeartbeatResponse,
    broker_registration_request BrokerRegistrationRequest => broker_registration_response BrokerRegistrationResponse,
    controller_registration_request ControllerRegistrationRequest => controller_registration_response ControllerRegistrationResponse,
    create_partitions_request CreatePartitionsRequest => create_partitions_response CreatePartitionsResponse,
    create_topics_request CreateTopicsRequest => create_topics_response CreateTopicsResponse,
    delete_groups_request DeleteGroupsRequest => delete_groups_response DeleteGroupsResponse,
    delete_records_request DeleteRecordsRequest => delete_records_response DeleteRecordsResponse,
    delete_topics_request DeleteTopicsRequest => delete_topics_response DeleteTopicsResponse,
    describe_client_quotas_request DescribeClientQuotasRequest => describe_client_quotas_response DescribeClientQuotasResponse,
    describe_cluster_request DescribeClusterRequest => describe_cluster_response DescribeClusterResponse,
    describe_configs_request DescribeConfigsRequest => describe_configs_response DescribeConfigsResponse,
    describe_groups_request DescribeGroupsRequest => describe_groups_response DescribeGroupsResponse,
    describe_log_dirs_request DescribeLogDirsRequest => describe_log_dirs_response DescribeLogDirsResponse,
    describe_producers_request DescribeProducersRequest => describe_producers_response DescribeProducersResponse,
    describe_quorum_request DescribeQuorumRequest => describe_quorum_response DescribeQuorumResponse,
    describe_topic_partitions_request DescribeTopicPartitionsRequest => describe_topic_partitions_response DescribeTopicPartitionsResponse,
    describe_transactions_request DescribeTransactionsRequest => describe_transactions_response DescribeTransactionsResponse,
    elect_leaders_request ElectLeadersRequest => elect_leaders_response ElectLeadersResponse,
    end_txn_request EndTxnRequest => end_txn_response EndTxnResponse,
    envelope_request EnvelopeRequest => envelope_response EnvelopeResponse,
    fetch_request FetchRequest => fetch_response FetchResponse,
    fetch_snapshot_request FetchSnapshotRequest => fetch_snapshot_response FetchSnapshotResponse,
    find_coordinator_request FindCoordinatorRequest => find_coordinator_response FindCoordinatorResponse,
    heartbeat_request HeartbeatRequest => heartbeat_response HeartbeatResponse,
    incremental_alter_configs_request IncrementalAlterConfigsRequest => incremental_alter_configs_response IncrementalAlterConfigsResponse,
    init_producer_id_request InitProducerIdRequest => init_producer_id_response InitProducerIdResponse,
    join_group_request JoinGroupRequest => join_group_response JoinGroupResponse,
    leave_group_request LeaveGroupRequest => leave_group_response LeaveGroupResponse,
    list_groups_request ListGroupsRequest => list_groups_response ListGroupsResponse,
    list_offsets_request ListOffsetsRequest => list_offsets_response ListOffsetsResponse,
    list_partition_reassignments_request ListPartitionReassignmentsRequest => list_partition_reassignments_response ListPartitionReassignmentsResponse,
    list_transactions_request ListTransactionsRequest => list_transactions_response ListTransactionsResponse,
    metadata_request MetadataRequest => metadata_response MetadataResponse,
    offset_commit_request OffsetCommitRequest => offset_commit_response OffsetCommitResponse,
    offset_delete_request OffsetDeleteRequest => offset_delete_response OffsetDeleteResponse,
    offset_fetch_request OffsetFetchRequest => offset_fetch_response OffsetFetchResponse,
    offset_for_leader_epoch_request OffsetForLeaderEpochRequest => offset_for_leader_epoch_response OffsetForLeaderEpochResponse,
    produce_request ProduceRequest => produce_response ProduceResponse,
    sync_group_request SyncGroupRequest => sync_group_response SyncGroupResponse,
    txn_offset_commit_request TxnOffsetCommitRequest => txn_offset_commit_response TxnOffsetCommitResponse,
    unregister_broker_request UnregisterBrokerRequest => unregister_broker_response UnregisterBrokerResponse,
    unregister_controller_request UnregisterControllerRequest => unregister_controller_response UnregisterControllerResponse,
    update_features_request UpdateFeaturesRequest => update_features_response UpdateFeaturesResponse,
    write_txn_markers_request WriteTxnMarkersRequest => write_txn_markers_response WriteTxnMarkersResponse,
}
