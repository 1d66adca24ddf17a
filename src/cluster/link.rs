//! The way to the active controller, wherever it is: in this process, or behind a connection to
//! another node. Lives on the control executor. Decides nothing, and never asks twice by itself:
//! whether a request without an answer was carried out is not known here.

use super::apis::{self, Asker};
use super::controller::Controller;
use crate::client::{Connection, Exchange};
use crate::types::{LeaderEpoch, NodeId};
use crate::wire::api::ApiKey;
use crate::wire::frame::{open_response, request_bytes};
use crate::wire::messages::default_principal_data::DefaultPrincipalData;
use crate::wire::messages::envelope_request::EnvelopeRequest;
use crate::wire::{ErrorCode, Message, Reader, Str, Writer};
use bytes::Bytes;
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

/// `controller.socket.timeout.ms`: how long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the active controller listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveController {
    pub id: NodeId,
    pub epoch: LeaderEpoch,
    pub host: String,
    pub port: u16,
}

/// See the module's words.
pub struct ControllerLink {
    local: Option<Rc<Controller>>,
    client_id: Str,
    active: RefCell<Option<ActiveController>>,
    /// One connection for each kind of request: what takes long must not hold up a heartbeat.
    lanes: [Lane; 3],
}

#[derive(Default)]
struct Lane {
    open: RefCell<Option<(ActiveController, Connection)>>,
}

/// Which connection a request takes.
fn lane_of(key: ApiKey) -> usize {
    match key {
        ApiKey::BROKER_HEARTBEAT | ApiKey::BROKER_REGISTRATION => 0,
        ApiKey::ALTER_PARTITION | ApiKey::ASSIGN_REPLICAS_TO_DIRS => 1,
        _ => 2,
    }
}

impl ControllerLink {
    pub fn new(node: NodeId, local: Option<Rc<Controller>>) -> ControllerLink {
        ControllerLink {
            local,
            client_id: Str::from(format!("highwater-{}", node.0)),
            active: RefCell::new(None),
            lanes: Default::default(),
        }
    }

    /// Who is active now, as far as this node has heard; true if that is news. Whoever still waits
    /// for an answer of the one before is told that it is no controller: it may be dead, or stopped
    /// with its sockets open.
    pub fn set_active(&self, active: Option<ActiveController>) -> bool {
        if *self.active.borrow() == active {
            return false;
        }
        *self.active.borrow_mut() = active;
        for lane in &self.lanes {
            if let Some((_, connection)) = lane.open.borrow_mut().take() {
                connection.close();
            }
        }
        true
    }

    pub fn active(&self) -> Option<ActiveController> {
        self.active.borrow().clone()
    }

    fn here(&self) -> Option<&Rc<Controller>> {
        self.local
            .as_ref()
            .filter(|controller| controller.is_active())
    }

    /// Asks the active controller as this broker. NOT_CONTROLLER if there is none that answers.
    pub async fn ask<Q: Exchange>(&self, request: &Q) -> Result<Q::Response, ErrorCode> {
        if let Some(controller) = self.here() {
            let version = newest::<Q>();
            let bad = |error: &dyn std::fmt::Display| {
                tracing::error!(api = Q::NAME, %error, "the controller could not be asked");
                ErrorCode::UNKNOWN_SERVER_ERROR
            };
            let body = request.to_bytes(version).map_err(|error| bad(&error))?;
            let asker = Asker {
                client_id: self.client_id.clone(),
                host: "/127.0.0.1".into(),
            };
            let answer = apis::answer(controller, &asker, Q::KEY, version, Reader::new(body)).await;
            let answer = answer.ok_or(ErrorCode::NOT_CONTROLLER)?;
            return Q::Response::from_bytes(answer, version).map_err(|error| bad(&error));
        }
        let connection = self.connection(lane_of(Q::KEY)).await?;
        let answer = connection.call(request, ANSWER_TIMEOUT).await;
        answer.map_err(|error| {
            tracing::debug!(api = Q::NAME, %error, "the controller did not answer");
            ErrorCode::NOT_CONTROLLER
        })
    }

    /// Has the active controller answer a client's request; gives the body of its response, or why
    /// there is none.
    pub async fn forward(
        &self,
        asker: &Asker,
        key: ApiKey,
        version: i16,
        body: Bytes,
    ) -> Result<Bytes, ErrorCode> {
        if let Some(controller) = self.here() {
            let answer = apis::answer(controller, asker, key, version, Reader::new(body)).await;
            return answer.ok_or(ErrorCode::INVALID_REQUEST);
        }
        let connection = self.connection(lane_of(key)).await?;
        let envelope = envelope(asker, key, version, &body)?;
        let answer = connection.call(&envelope, ANSWER_TIMEOUT).await;
        let answer = answer.map_err(|error| {
            tracing::debug!(api = key.name(), %error, "the controller did not answer");
            ErrorCode::NOT_CONTROLLER
        })?;
        match ErrorCode(answer.error_code) {
            ErrorCode::NONE => {}
            error => return Err(error),
        }
        let frame = answer.response_data.unwrap_or_default();
        let (_, body) = open_response(key, version, frame).map_err(|error| {
            tracing::error!(api = key.name(), %error, "the controller's answer cannot be read");
            ErrorCode::UNKNOWN_SERVER_ERROR
        })?;
        Ok(body)
    }

    async fn connection(&self, lane: usize) -> Result<Connection, ErrorCode> {
        let active = self.active().ok_or(ErrorCode::NOT_CONTROLLER)?;
        let lane = &self.lanes[lane];
        if let Some((to, connection)) = &*lane.open.borrow()
            && *to == active
            && connection.is_open()
        {
            return Ok(connection.clone());
        }
        let opened =
            Connection::open(&active.host, active.port, &self.client_id, CONNECT_TIMEOUT).await;
        let connection = opened.map_err(|error| {
            tracing::debug!(controller = active.id.0, %error, "the controller cannot be reached");
            ErrorCode::NOT_CONTROLLER
        })?;
        *lane.open.borrow_mut() = Some((active, connection.clone()));
        Ok(connection)
    }
}

/// The newest version that is not still changing.
fn newest<Q: Exchange>() -> i16 {
    Q::KEY
        .info()
        .map_or(Q::MAX_VERSION, |api| api.max_stable_version)
}

fn envelope(
    asker: &Asker,
    key: ApiKey,
    version: i16,
    body: &[u8],
) -> Result<EnvelopeRequest, ErrorCode> {
    let unwritable = |_| ErrorCode::UNKNOWN_SERVER_ERROR;
    let principal = DefaultPrincipalData {
        r#type: Str::from_static("User"),
        name: Str::from_static("ANONYMOUS"),
        ..Default::default()
    };
    // The data is preceded by its version, as Kafka's principal serde has it.
    let mut data = Writer::new();
    data.i16(0);
    principal.encode(&mut data, 0).map_err(unwritable)?;
    let host = asker.host.trim_start_matches('/');
    let address: Vec<u8> = match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.octets().to_vec(),
        Ok(IpAddr::V6(address)) => address.octets().to_vec(),
        Err(_) => vec![127, 0, 0, 1],
    };
    Ok(EnvelopeRequest {
        request_data: request_bytes(key, version, 0, &asker.client_id, body).map_err(unwritable)?,
        request_principal: Some(data.into_bytes()),
        client_host_address: Bytes::from(address),
        ..Default::default()
    })
}
