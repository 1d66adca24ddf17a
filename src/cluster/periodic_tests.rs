//! A controller on the ring that is asked as brokers ask it, by encoded requests.

use super::*;
use crate::cluster::apis::{self, Asker};
use crate::config::properties;
use crate::rt::{RingPlan, run_ring};
use crate::types::{NodeId, Uuid};
use crate::wire::api::ApiKey;
use crate::wire::messages::broker_heartbeat_request::BrokerHeartbeatRequest;
use crate::wire::messages::broker_heartbeat_response::BrokerHeartbeatResponse;
use crate::wire::messages::broker_registration_request::{BrokerRegistrationRequest, Feature};
use crate::wire::messages::broker_registration_response::BrokerRegistrationResponse;
use crate::wire::{Message, Reader};
use std::sync::Arc;

async fn ask<Q: Message, R: Message>(controller: &Rc<Controller>, request: &Q) -> R {
    let version = Q::MAX_VERSION;
    let body = Reader::new(request.to_bytes(version).unwrap());
    let asker = Asker {
        client_id: "test".into(),
        host: "/127.0.0.1".into(),
    };
    let key = ApiKey(Q::API_KEY);
    let answer = apis::answer(controller, &asker, key, version, body).await;
    R::from_bytes(answer.unwrap(), version).unwrap()
}

fn registration(id: i32, incarnation: u64) -> BrokerRegistrationRequest {
    BrokerRegistrationRequest {
        broker_id: id,
        cluster_id: "c".into(),
        incarnation_id: Uuid::from_halves(5, incarnation),
        features: crate::cluster::features::SUPPORTED
            .iter()
            .map(|feature| Feature {
                name: feature.name.into(),
                min_supported_version: feature.min,
                max_supported_version: feature.max,
                ..Default::default()
            })
            .collect(),
        log_dirs: vec![Uuid::from_halves(6, id as u64 + 500)],
        ..Default::default()
    }
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        rt::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_silent_broker_is_fenced_and_an_idle_controller_shows_that_it_lives() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_path_buf();
    run_ring(RingPlan::default(), move |executor| {
        let path = path.clone();
        async move {
            if !executor.is_control() {
                return;
            }
            // Longer than a slow disk takes between the heartbeat and the second registration.
            let settings =
                "node.id=1\nbroker.session.timeout.ms=5000\nmetadata.max.idle.interval.ms=20";
            let config = BrokerConfig::from_properties(properties::parse("f", settings).unwrap());
            let controller = Controller::open(&path, Arc::new(config.unwrap()))
                .await
                .unwrap();
            controller.identify("c");
            start(&controller);

            let told: BrokerRegistrationResponse = ask(&controller, &registration(2, 1)).await;
            assert_eq!(told.error_code, 0);
            let epoch = told.broker_epoch;
            let beat = BrokerHeartbeatRequest {
                broker_id: 2,
                broker_epoch: epoch,
                current_metadata_offset: controller.image().offset(),
                ..Default::default()
            };
            let told: BrokerHeartbeatResponse = ask(&controller, &beat).await;
            assert_eq!((told.error_code, told.is_fenced), (0, false));
            assert!(controller.image().can_lead(NodeId(2)));
            let told: BrokerRegistrationResponse = ask(&controller, &registration(2, 2)).await;
            assert_eq!(told.error_code, 101);
            // It says nothing more.
            until(|| !controller.image().is_alive(NodeId(2))).await;
            let told: BrokerRegistrationResponse = ask(&controller, &registration(2, 2)).await;
            assert!(told.error_code == 0 && told.broker_epoch > epoch);
            let told: BrokerHeartbeatResponse = ask(&controller, &beat).await;
            assert_eq!(told.error_code, 77);

            let offset = controller.image().offset();
            until(|| controller.image().offset() >= offset + 2).await;
            // Its work ends with it.
            let ended = Rc::downgrade(&controller);
            drop(controller);
            until(|| ended.upgrade().is_none()).await;
        }
    })
    .unwrap();
}
