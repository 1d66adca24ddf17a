//! What brokers tell the active controller of themselves: BrokerRegistration (key 62, v0-4) and
//! BrokerHeartbeat (63, v0-2); and what takes one off the list: UnregisterBroker (64, v0).

use crate::cluster::controller::Controller;
use crate::cluster::{fencing, heartbeat, registration};
use crate::rt;
use crate::types::NodeId;
use crate::wire::messages::broker_heartbeat_request::BrokerHeartbeatRequest;
use crate::wire::messages::broker_heartbeat_response::BrokerHeartbeatResponse;
use crate::wire::messages::broker_registration_request::BrokerRegistrationRequest;
use crate::wire::messages::broker_registration_response::BrokerRegistrationResponse;
use crate::wire::messages::unregister_broker_request::UnregisterBrokerRequest;
use crate::wire::messages::unregister_broker_response::UnregisterBrokerResponse;
use crate::wire::{ErrorCode, Str};
use std::rc::Rc;

pub async fn register(
    controller: &Rc<Controller>,
    version: i16,
    request: BrokerRegistrationRequest,
) -> BrokerRegistrationResponse {
    let cluster_id = controller.cluster_id();
    let asked = registration::Asked {
        cluster_id: &cluster_id,
        version,
        request: &request,
    };
    let decided = controller.change_at(|image, next_offset| {
        registration::decide(
            image,
            &controller.config,
            &mut controller.sessions.borrow_mut(),
            (rt::now(), next_offset),
            &asked,
        )
    });
    decided
        .await
        .unwrap_or_else(|error| registration::refused(super::unavailable(&error)))
}

pub async fn heartbeat(
    controller: &Rc<Controller>,
    request: BrokerHeartbeatRequest,
) -> BrokerHeartbeatResponse {
    let node = NodeId(request.broker_id);
    if let Ok(broker) = heartbeat::check_epoch(&controller.image(), node, request.broker_epoch) {
        controller.sessions.borrow_mut().arrived(broker, rt::now());
    }
    let decided = controller.change(|image| {
        let outcome = heartbeat::decide(
            image,
            &controller.config,
            &mut controller.sessions.borrow_mut(),
            rt::now(),
            &request,
        );
        (outcome.records, (outcome.response, outcome.is_stopping))
    });
    match decided.await {
        Ok((response, is_stopping)) => {
            if is_stopping {
                let offset = controller.image().offset();
                let mut sessions = controller.sessions.borrow_mut();
                sessions.stops_after(node, offset);
            }
            response
        }
        Err(error) => heartbeat::refused(super::unavailable(&error)),
    }
}

pub async fn unregister(
    controller: &Rc<Controller>,
    request: UnregisterBrokerRequest,
) -> UnregisterBrokerResponse {
    let refused = |error: ErrorCode, why: String| UnregisterBrokerResponse {
        error_code: error.0,
        error_message: Some(Str::from(why)),
        ..Default::default()
    };
    let node = NodeId(request.broker_id);
    let decided = controller.change(|image| {
        if image.broker(node).is_none() {
            let why = format!("Broker ID {} is not currently registered", node.0);
            let told = refused(ErrorCode::BROKER_ID_NOT_REGISTERED, why);
            return (Vec::new(), told);
        }
        controller.sessions.borrow_mut().forget(node);
        let records = fencing::records_of(image, &controller.config, |draft| {
            fencing::unregister(draft, node);
        });
        (records, UnregisterBrokerResponse::default())
    });
    decided.await.unwrap_or_else(|error| {
        let error = super::unavailable(&error);
        refused(error, error.message().to_owned())
    })
}
