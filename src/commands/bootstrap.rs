//! What every command that talks to brokers has in common: where they are and how long to wait.

use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::client::{Admin, ClientConfig, Controllers, TopicView};

#[derive(Args, Clone)]
pub(super) struct Bootstrap {
    /// Brokers to begin with, comma-separated; any one that answers is enough.
    #[arg(
        long = "bootstrap-server",
        visible_alias = "bootstrap",
        value_name = "HOST:PORT"
    )]
    bootstrap_server: String,
    /// How long to try before giving up (default.api.timeout.ms).
    #[arg(long, value_name = "MS", default_value_t = 15_000)]
    api_timeout_ms: u64,
}

impl Bootstrap {
    /// The settings of a client that never makes a topic by looking at it.
    pub(super) fn client_config(&self) -> ClientConfig {
        ClientConfig {
            client_id: "highwater".to_owned(),
            api_timeout: self.api_timeout(),
            allow_auto_create_topics: false,
            ..ClientConfig::new(&self.bootstrap_server)
        }
    }

    pub(super) fn api_timeout(&self) -> Duration {
        Duration::from_millis(self.api_timeout_ms)
    }

    pub(super) async fn admin(&self) -> Result<Admin, Failure> {
        Ok(Admin::connect(self.client_config()).await?)
    }
}

/// Brokers, or the listeners of controllers.
#[derive(Args, Clone)]
pub(super) struct Either {
    /// Brokers to begin with, comma-separated; any one that answers is enough.
    #[arg(
        long = "bootstrap-server",
        visible_alias = "bootstrap",
        value_name = "HOST:PORT",
        required_unless_present = "bootstrap_controller",
        conflicts_with = "bootstrap_controller"
    )]
    bootstrap_server: Option<String>,
    /// Controllers to begin with, comma-separated, by their own listeners.
    #[arg(long, value_name = "HOST:PORT")]
    bootstrap_controller: Option<String>,
    /// How long to try before giving up (default.api.timeout.ms).
    #[arg(long, value_name = "MS", default_value_t = 15_000)]
    api_timeout_ms: u64,
}

/// A client of one kind or the other.
pub(super) enum Client {
    Brokers(Admin),
    Controllers(Controllers),
}

impl Either {
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        let bootstrap = |servers: &String| Bootstrap {
            bootstrap_server: servers.clone(),
            api_timeout_ms: self.api_timeout_ms,
        };
        match (&self.bootstrap_server, &self.bootstrap_controller) {
            (_, Some(controllers)) => {
                let config = bootstrap(controllers).client_config();
                Ok(Client::Controllers(Controllers::new(config)?))
            }
            (Some(brokers), None) => Ok(Client::Brokers(bootstrap(brokers).admin().await?)),
            (None, None) => Err("neither brokers nor controllers to begin with".into()),
        }
    }
}

/// A topic that exists. Asking first keeps a mistyped name from being retried as if it might still
/// come.
pub(super) async fn existing_topic(admin: &Admin, name: &str) -> Result<TopicView, Failure> {
    let view = admin.topics().await?;
    view.topic(name)
        .cloned()
        .ok_or_else(|| format!("topic '{name}' does not exist").into())
}
