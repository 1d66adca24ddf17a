//! The controller's one door, on the ring: every API that is served is answered, and envelopes are
//! opened.

use super::*;
use crate::cluster::features;
use crate::cluster::test_kit::on_ring;
use crate::config::{BrokerConfig, properties};
use crate::wire::frame::{open_response, request_bytes};
use crate::wire::messages::api_versions_request::ApiVersionsRequest;
use crate::wire::messages::api_versions_response::ApiVersionsResponse;
use crate::wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use crate::wire::messages::create_topics_response::CreateTopicsResponse;
use crate::wire::{Str, Writer};
use std::sync::Arc;

fn with_controller<F>(test: impl Fn(Rc<Controller>) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + 'static,
{
    on_ring(move |path| {
        let test = test.clone();
        async move {
            let config = properties::parse("f", "node.id=1").unwrap();
            let config = Arc::new(BrokerConfig::from_properties(config).unwrap());
            let controller = Controller::open(&path, config).await.unwrap();
            controller.identify("c");
            test(controller).await;
        }
    });
}

fn asker() -> Asker {
    Asker {
        client_id: "me".into(),
        host: "/127.0.0.1".into(),
    }
}

/// Whether a request without content is answered in its newest version, and in none that is not.
async fn empty<Q: Message + Default>(controller: &Rc<Controller>) -> (ApiKey, bool) {
    let key = ApiKey(Q::API_KEY);
    let version = key.info().unwrap().max_stable_version;
    let body = || Reader::new(Q::default().to_bytes(version).unwrap());
    let newer = answer(controller, &asker(), key, version + 1, body()).await;
    assert!(newer.is_none(), "{key:?}");
    let told = answer(controller, &asker(), key, version, body()).await;
    (key, told.is_some())
}

#[test]
fn what_is_served_is_answered_and_what_is_not_is_not() {
    with_controller(|controller| async move {
        let mut writer = Writer::new();
        let request = ApiVersionsRequest {
            client_software_name: "kafka".into(),
            client_software_version: "4".into(),
            node_id: -1,
            ..Default::default()
        };
        request.encode(&mut writer, 5).unwrap();
        let body = Reader::new(writer.into_bytes());
        let told = answer(&controller, &asker(), ApiKey::API_VERSIONS, 5, body).await;
        let told = ApiVersionsResponse::from_bytes(told.unwrap(), 5).unwrap();
        let keys: Vec<i16> = told.api_keys.iter().map(|one| one.api_key).collect();
        assert!(keys.is_sorted() && keys.len() == SERVED.len(), "{keys:?}");
        let registration = told.api_keys.iter().find(|one| one.api_key == 62).unwrap();
        assert_eq!((registration.min_version, registration.max_version), (0, 4));
        assert_eq!(told.finalized_features.len(), features::SUPPORTED.len());
        macro_rules! all {
            ($($module:ident $request:ident,)*) => {
                [$(empty::<crate::wire::messages::$module::$request>(&controller).await,)*]
            };
        }
        let mut answered = all! {
            add_raft_voter_request AddRaftVoterRequest,
            allocate_producer_ids_request AllocateProducerIdsRequest,
            alter_client_quotas_request AlterClientQuotasRequest,
            alter_configs_request AlterConfigsRequest,
            alter_partition_reassignments_request AlterPartitionReassignmentsRequest,
            alter_partition_request AlterPartitionRequest,
            assign_replicas_to_dirs_request AssignReplicasToDirsRequest,
            broker_heartbeat_request BrokerHeartbeatRequest,
            broker_registration_request BrokerRegistrationRequest,
            controller_registration_request ControllerRegistrationRequest,
            create_partitions_request CreatePartitionsRequest,
            create_topics_request CreateTopicsRequest,
            delete_topics_request DeleteTopicsRequest,
            describe_cluster_request DescribeClusterRequest,
            describe_quorum_request DescribeQuorumRequest,
            elect_leaders_request ElectLeadersRequest,
            envelope_request EnvelopeRequest,
            fetch_request FetchRequest,
            fetch_snapshot_request FetchSnapshotRequest,
            incremental_alter_configs_request IncrementalAlterConfigsRequest,
            list_partition_reassignments_request ListPartitionReassignmentsRequest,
            produce_request ProduceRequest,
            unregister_broker_request UnregisterBrokerRequest,
            unregister_controller_request UnregisterControllerRequest,
            update_features_request UpdateFeaturesRequest,
        }
        .to_vec();
        answered.retain(|(_, is_answered)| *is_answered);
        answered.push((ApiKey::API_VERSIONS, true));
        answered.sort_unstable();
        let answered: Vec<ApiKey> = answered.into_iter().map(|(key, _)| key).collect();
        assert_eq!(answered, SERVED);
    });
}

fn envelope(key: ApiKey, version: i16, body: &[u8]) -> EnvelopeRequest {
    let mut principal = Writer::new();
    principal.i16(0);
    let data = DefaultPrincipalData {
        r#type: "User".into(),
        name: "ANONYMOUS".into(),
        ..Default::default()
    };
    data.encode(&mut principal, 0).unwrap();
    let client = Str::from_static("client");
    EnvelopeRequest {
        request_data: request_bytes(key, version, 17, &client, body).unwrap(),
        request_principal: Some(principal.into_bytes()),
        client_host_address: Bytes::from_static(&[10, 0, 0, 9]),
        ..Default::default()
    }
}

#[test]
fn an_envelope_is_opened_and_its_answer_goes_back_in_one() {
    with_controller(|controller| async move {
        let request = CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: "t".into(),
                num_partitions: 1,
                replication_factor: 1,
                ..Default::default()
            }],
            ..Default::default()
        };
        let body = request.to_bytes(7).unwrap();
        let whole = || envelope(ApiKey::CREATE_TOPICS, 7, &body);
        let told = open(&controller, whole()).await;
        assert_eq!(told.error_code, 0);
        let frame = told.response_data.unwrap();
        let (correlation, inner) = open_response(ApiKey::CREATE_TOPICS, 7, frame).unwrap();
        let inner = CreateTopicsResponse::from_bytes(inner, 7).unwrap();
        // There is no broker yet: refused by the decision, not by the envelope.
        assert_eq!((correlation, inner.topics[0].error_code), (17, 38));

        let error = |request| {
            let controller = controller.clone();
            async move { ErrorCode(open(&controller, request).await.error_code) }
        };
        let mut bad = whole();
        bad.request_principal = None;
        assert_eq!(
            error(bad).await,
            ErrorCode::PRINCIPAL_DESERIALIZATION_FAILURE
        );
        let mut bad = whole();
        bad.client_host_address = Bytes::from_static(&[1, 2, 3]);
        assert_eq!(error(bad).await, ErrorCode::INVALID_REQUEST);
        let mut bad = whole();
        bad.request_data = Bytes::from_static(&[0, 19, 0]);
        assert_eq!(error(bad).await, ErrorCode::UNSUPPORTED_VERSION);
        let inner = envelope(ApiKey::BROKER_HEARTBEAT, 1, &body);
        assert_eq!(
            error(inner).await,
            ErrorCode::INVALID_REQUEST,
            "not for clients"
        );
        let inner = envelope(ApiKey::ENVELOPE, 0, &body);
        assert_eq!(error(inner).await, ErrorCode::INVALID_REQUEST);
        let old = envelope(ApiKey::CREATE_TOPICS, 1, &body);
        assert_eq!(error(old).await, ErrorCode::UNSUPPORTED_VERSION);
        let cut = envelope(ApiKey::CREATE_TOPICS, 7, &body[..3]);
        assert_eq!(error(cut).await, ErrorCode::UNSUPPORTED_VERSION);
    });
}
