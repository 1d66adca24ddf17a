//! `highwater format`: gives the log directories of a node their identity in a cluster, as Kafka's
//! `kafka-storage format` does. A node that is its own cluster needs none: it formats itself.

use super::Failure;
use super::run::run;
use crate::cluster;
use crate::config::BrokerConfig;
use crate::log::dir::{LogDir, MetaProperties};
use crate::types::Uuid;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater format --config server.properties --cluster-id 4L6g3nShT-eMCtK--X86sw"
)]
pub struct Format {
    /// The node's property file.
    #[arg(long, short = 'c', value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting that wins over the file; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The cluster's id: 22 characters of base64url, the same for all its nodes.
    #[arg(long, short = 't', value_name = "ID")]
    cluster_id: String,
    /// Leave directories that are formatted already as they are, and format the others.
    #[arg(long, short = 'g')]
    ignore_formatted: bool,
}

impl Format {
    pub fn run(self) -> Result<(), Failure> {
        let config = BrokerConfig::load(self.config.as_deref(), &self.set)?;
        if Uuid::parse(&self.cluster_id).is_none() {
            return Err(format!("--cluster-id {}: not an id", self.cluster_id).into());
        }
        let (cluster_id, ignore) = (self.cluster_id, self.ignore_formatted);
        let done = run(move || format(config, cluster_id, ignore))?;
        super::print(&done)
    }
}

/// Formats what `config` names; says what was done.
pub(crate) async fn format(
    config: BrokerConfig,
    cluster_id: String,
    ignore_formatted: bool,
) -> Result<String, Failure> {
    let mut paths = config.log_dirs.clone();
    if !paths.contains(&config.metadata_log_dir) {
        paths.push(config.metadata_log_dir.clone());
    }
    let mut wanted = Vec::with_capacity(paths.len());
    let mut done = String::new();
    // Every directory is looked at before the first is written to.
    for path in paths {
        let dir = LogDir::lock(&path).await?;
        match dir.read_meta().await? {
            None => wanted.push(dir),
            Some(meta) if !ignore_formatted => {
                return Err(format!(
                    "{} is formatted already, for node {} of cluster {}; --ignore-formatted leaves it as it is",
                    path.display(),
                    meta.node_id.0,
                    meta.cluster_id
                )
                .into());
            }
            Some(meta) if meta.cluster_id != cluster_id || meta.node_id != config.node_id => {
                return Err(format!(
                    "{} belongs to node {} of cluster {}",
                    path.display(),
                    meta.node_id.0,
                    meta.cluster_id
                )
                .into());
            }
            Some(_) => {
                done.push_str(&format!("{} was formatted already\n", path.display()));
            }
        }
    }
    for dir in wanted {
        // What a cluster begins with comes before the identity: without that the directory counts
        // as not formatted, and is formatted again.
        if dir.path() == config.metadata_log_dir && config.quorum.roles.controller {
            cluster::format(dir.path()).await?;
        }
        let meta = MetaProperties::generate(cluster_id.clone(), config.node_id);
        dir.write_meta(&meta).await?;
        done.push_str(&format!(
            "{} formatted: directory {} of node {} in cluster {cluster_id}\n",
            dir.path().display(),
            meta.directory_id,
            config.node_id.0
        ));
    }
    Ok(done)
}
