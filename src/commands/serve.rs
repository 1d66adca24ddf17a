//! `highwater serve`: runs a broker until SIGTERM or SIGINT.

use super::Failure;
use crate::config::BrokerConfig;
use crate::server;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater serve --set listeners=PLAINTEXT://127.0.0.1:9092 --set log.dirs=/var/lib/highwater"
)]
pub struct Serve {
    /// A property file with Kafka's names.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting that wins over the file; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Serve {
    pub fn run(self) -> Result<(), Failure> {
        let config = BrokerConfig::load(self.config.as_deref(), &self.set)?;
        server::run(config, |endpoints| {
            let endpoints: Vec<String> = endpoints
                .iter()
                .map(|(name, address)| format!("{name}={address}"))
                .collect();
            println!("ready {}", endpoints.join(" "));
        })?;
        Ok(())
    }
}
