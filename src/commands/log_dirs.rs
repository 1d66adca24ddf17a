//! `highwater log-dirs`: the log directories of brokers and what lies in them, as Kafka's
//! kafka-log-dirs prints it.

use std::collections::BTreeSet;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::bootstrap::Bootstrap;
use super::describe_topics::nodes;
use super::{Failure, print, run};
use crate::client::LogDir;
use crate::types::NodeId;
use crate::wire::ErrorCode;

/// The only version of the form.
const VERSION: i64 = 1;

#[derive(Args)]
#[command(after_help = "Example:\n  highwater log-dirs describe --bootstrap-server 127.0.0.1:9092")]
pub struct LogDirs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print directories and the replicas in them, as one line of JSON.
    Describe(Describe),
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater log-dirs describe --bootstrap-server 127.0.0.1:9092 --broker-list 1,2 --topic-list orders"
)]
struct Describe {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// Left out: all brokers.
    #[arg(long, value_name = "ID[,...]", value_delimiter = ',')]
    broker_list: Vec<i32>,
    /// Left out: all topics.
    #[arg(long, value_name = "TOPIC[,...]", value_delimiter = ',')]
    topic_list: Vec<String>,
}

impl LogDirs {
    pub fn run(self) -> Result<(), Failure> {
        print(&run::run(move || async move {
            match self.action {
                Action::Describe(describe) => describe.text().await,
            }
        })?)
    }
}

impl Describe {
    async fn text(self) -> Result<String, Failure> {
        let admin = self.bootstrap.admin().await?;
        let view = admin.topics().await?;
        let all: Vec<NodeId> = view.brokers.iter().map(|broker| broker.node).collect();
        let wanted: BTreeSet<NodeId> = match self.broker_list.is_empty() {
            true => all.iter().copied().collect(),
            false => self.broker_list.iter().copied().map(NodeId).collect(),
        };
        let missing = wanted.iter().copied().filter(|node| !all.contains(node));
        let missing: Vec<NodeId> = missing.collect();
        if !missing.is_empty() {
            return Err(format!(
                "The given brokers do not exist from --broker-list: {}. Current existent brokers: {}",
                nodes(&missing),
                nodes(&all)
            )
            .into());
        }
        let mut brokers = Vec::with_capacity(wanted.len());
        for node in &wanted {
            let dirs = admin.log_dirs(*node).await?;
            let dirs: Vec<Value> = dirs.iter().map(|dir| told(dir, &self.topic_list)).collect();
            brokers.push(json!({ "broker": node.0, "logDirs": dirs }));
        }
        let asked: Vec<NodeId> = wanted.into_iter().collect();
        Ok(format!(
            "Querying brokers for log directories information\n\
             Received log directory information from brokers {}\n{}\n",
            nodes(&asked),
            json!({ "version": VERSION, "brokers": brokers })
        ))
    }
}

/// A directory with the replicas of these topics, or of all.
fn told(dir: &LogDir, topics: &[String]) -> Value {
    let shown = dir.replicas.iter().filter(|replica| {
        let mut topics = topics.iter();
        topics.len() == 0 || topics.any(|topic| *topic == *replica.key.topic)
    });
    let partitions: Vec<Value> = shown
        .map(|replica| {
            json!({
                "partition": replica.key.to_string(),
                "size": replica.bytes,
                "offsetLag": replica.offset_lag,
                "isFuture": replica.is_future,
            })
        })
        .collect();
    json!({ "logDir": dir.path, "error": error(dir.error), "partitions": partitions })
}

/// Kafka's tool names the class of the exception.
fn error(code: ErrorCode) -> Option<String> {
    match code {
        ErrorCode::NONE => None,
        ErrorCode::KAFKA_STORAGE_ERROR => {
            Some("org.apache.kafka.common.errors.KafkaStorageException".to_owned())
        }
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{ReplicaInDir, TopicPartition};

    #[test]
    fn a_directory_is_told_in_kafkas_form_with_the_wanted_topics_only() {
        let replica = |topic: &str, is_future| ReplicaInDir {
            key: TopicPartition::new(topic.into(), 3),
            bytes: 70,
            offset_lag: i64::from(is_future),
            is_future,
        };
        let mut dir = LogDir {
            path: "/d".to_owned(),
            error: ErrorCode::NONE,
            total_bytes: None,
            usable_bytes: None,
            replicas: vec![replica("t", true), replica("u", false)],
        };
        let only = told(&dir, &["t".to_owned()]);
        let partition = json!({"partition": "t-3", "size": 70, "offsetLag": 1, "isFuture": true});
        let want = json!({"logDir": "/d", "error": null, "partitions": [partition]});
        assert_eq!(only, want);
        assert_eq!(told(&dir, &[])["partitions"].as_array().unwrap().len(), 2);
        dir.error = ErrorCode::KAFKA_STORAGE_ERROR;
        let error = told(&dir, &[])["error"].as_str().unwrap().to_owned();
        assert_eq!(
            error,
            "org.apache.kafka.common.errors.KafkaStorageException"
        );
    }
}
