//! The way to the active controller over the listeners of controllers (`bootstrap.controllers`,
//! KIP-919): they speak no Metadata, so DescribeCluster says who they are and who leads.
//!
//! One executor. Owns one connection at a time; asks anew who leads whenever an answer says that
//! the one asked does not.

use std::cell::RefCell;

use super::cluster::{host_and_port, retry_until};
use super::config::ClientConfig;
use super::connection::Connection;
use super::error::{ClientError, check_with};
use super::exchange::Exchange;
use crate::rt;
use crate::wire::ErrorCode;
use crate::wire::messages::describe_cluster_request::DescribeClusterRequest;
use crate::wire::messages::describe_cluster_response::DescribeClusterResponse;

/// `endpoint_type` of controllers.
const CONTROLLERS: i8 = 2;

/// See the module's words.
pub struct Controllers {
    config: ClientConfig,
    active: RefCell<Option<Connection>>,
}

impl Controllers {
    /// The controllers among which `config`'s bootstrap servers are; connects when it is asked.
    ///
    /// # Errors
    /// [`ClientError::Invalid`] without any server.
    pub fn new(config: ClientConfig) -> Result<Controllers, ClientError> {
        if config.bootstrap_servers.is_empty() {
            return Err(ClientError::Invalid(
                "bootstrap.controllers is empty".to_owned(),
            ));
        }
        Ok(Controllers {
            config,
            active: RefCell::new(None),
        })
    }

    /// The cluster as a controller describes it: its controllers, and which is active.
    pub async fn describe_cluster(&self) -> Result<DescribeClusterResponse, ClientError> {
        self.retry(async || Ok(self.find().await?.1)).await
    }

    /// Repeats what fails with a retriable error; each time it is asked anew who leads.
    pub(super) async fn retry<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let deadline = rt::now() + self.config.api_timeout;
        retry_until(
            &self.config,
            deadline,
            || false,
            async || {
                let result = attempt().await;
                if result.is_err() {
                    self.active.borrow_mut().take();
                }
                result
            },
        )
        .await
    }

    /// Sends `request` to the active controller.
    pub(super) async fn call_active<R: Exchange>(
        &self,
        request: &R,
    ) -> Result<R::Response, ClientError> {
        let known = self.active.borrow().clone();
        let connection = match known.filter(Connection::is_open) {
            Some(connection) => connection,
            None => {
                let (asked, answer) = self.find().await?;
                let connection = self.lead(asked, &answer).await?;
                *self.active.borrow_mut() = Some(connection.clone());
                connection
            }
        };
        connection.call(request, self.config.request_timeout).await
    }

    /// Some controller, and what it says of all.
    async fn find(&self) -> Result<(Connection, DescribeClusterResponse), ClientError> {
        let request = DescribeClusterRequest {
            endpoint_type: CONTROLLERS,
            ..DescribeClusterRequest::default()
        };
        let mut last = ClientError::NoBroker("no controller is known".to_owned());
        for server in &self.config.bootstrap_servers {
            let (host, port) = host_and_port(server)?;
            let answered = async {
                let connection = self.open(host, port).await?;
                let answer = connection
                    .call(&request, self.config.request_timeout)
                    .await?;
                let what = || "describing the controllers".to_owned();
                check_with(answer.error_code, answer.error_message.as_deref(), what)?;
                Ok((connection, answer))
            };
            match answered.await {
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The connection to the leader that `answer`, which came by `asked`, names.
    async fn lead(
        &self,
        asked: Connection,
        answer: &DescribeClusterResponse,
    ) -> Result<Connection, ClientError> {
        let leader = answer
            .brokers
            .iter()
            .find(|node| node.broker_id == answer.controller_id);
        let Some(leader) = leader else {
            let text = "the controllers have no leader";
            return Err(ClientError::broker(
                "finding the active controller",
                ErrorCode::NOT_CONTROLLER,
                text,
            ));
        };
        let port = u16::try_from(leader.port)
            .map_err(|_| ClientError::Invalid(format!("port {}", leader.port)))?;
        if asked.peer() == format!("{}:{port}", leader.host) {
            return Ok(asked);
        }
        self.open(&leader.host, port).await
    }

    async fn open(&self, host: &str, port: u16) -> Result<Connection, ClientError> {
        let setup = self.config.connection_setup_timeout;
        Connection::open(host, port, &self.config.client_id, setup).await
    }
}
