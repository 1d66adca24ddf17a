//! `highwater quorum`: the controllers' quorum and how far its voters and observers have come, as
//! Kafka's kafka-metadata-quorum prints it.

use std::fmt::Write;

use clap::{Args, Subcommand};

use super::bootstrap::{Client, Either};
use super::table::Table;
use super::{Failure, print, run};
use crate::client::{QuorumReplica, QuorumView};
use crate::rt;
use crate::types::NodeId;

#[derive(Args)]
#[command(after_help = "Example:\n  highwater quorum status --bootstrap-server 127.0.0.1:9092")]
pub struct Quorum {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print who leads, and how far the last of the voters is behind.
    Status(Status),
    /// Print every voter and observer with how far it has come.
    Replication(Replication),
}

#[derive(Args)]
#[command(after_help = "Example:\n  highwater quorum status --bootstrap-server 127.0.0.1:9092")]
struct Status {
    #[command(flatten)]
    bootstrap: Either,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater quorum replication --bootstrap-controller 127.0.0.1:9093 --human-readable"
)]
struct Replication {
    #[command(flatten)]
    bootstrap: Either,
    /// Times as how long ago.
    #[arg(long)]
    human_readable: bool,
}

impl Quorum {
    pub fn run(self) -> Result<(), Failure> {
        print(&run::run(move || async move {
            match self.action {
                Action::Status(status) => {
                    let (cluster_id, quorum) = ask(&status.bootstrap).await?;
                    status_text(&cluster_id, &quorum)
                }
                Action::Replication(replication) => {
                    let (_, quorum) = ask(&replication.bootstrap).await?;
                    let now = replication.human_readable.then(rt::wall_ms);
                    replication_text(&quorum, now)
                }
            }
        })?)
    }
}

/// The cluster's id and its quorum.
async fn ask(bootstrap: &Either) -> Result<(String, QuorumView), Failure> {
    let (cluster, quorum) = match bootstrap.client().await? {
        Client::Brokers(admin) => (
            admin.describe_cluster(false).await?,
            admin.describe_quorum().await?,
        ),
        Client::Controllers(controllers) => (
            controllers.describe_cluster().await?,
            controllers.describe_quorum().await?,
        ),
    };
    Ok((cluster.cluster_id.as_str().to_owned(), quorum))
}

fn leader(quorum: &QuorumView) -> Result<&QuorumReplica, Failure> {
    let leader = quorum.voters.iter().find(|v| v.node == quorum.leader);
    leader.ok_or_else(|| format!("leader {} is not among the voters", quorum.leader.0).into())
}

fn status_text(cluster_id: &str, quorum: &QuorumView) -> Result<String, Failure> {
    let leader = leader(quorum)?;
    let last = quorum.voters.iter().min_by_key(|voter| voter.log_end);
    let last = last.unwrap_or(leader);
    let lag_ms = if last.node == leader.node {
        0
    } else {
        let times = leader.last_caught_up_ms.zip(last.last_caught_up_ms);
        times.map_or(-1, |(leader, last)| leader - last)
    };
    Ok(format!(
        "ClusterId:              {cluster_id}\n\
         LeaderId:               {}\n\
         LeaderEpoch:            {}\n\
         HighWatermark:          {}\n\
         MaxFollowerLag:         {}\n\
         MaxFollowerLagTimeMs:   {lag_ms}\n\
         CurrentVoters:          {}\n\
         CurrentObservers:       {}\n",
        quorum.leader.0,
        quorum.leader_epoch.0,
        quorum.high_watermark,
        leader.log_end.0 - last.log_end.0,
        members(quorum, &quorum.voters)?,
        members(quorum, &quorum.observers)?,
    ))
}

/// `[{"id": 1, "directoryId": "…", "endpoints": ["CONTROLLER://host:port"]}, …]`
fn members(quorum: &QuorumView, replicas: &[QuorumReplica]) -> Result<String, std::fmt::Error> {
    let mut text = String::from("[");
    for (at, replica) in replicas.iter().enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        write!(text, "{comma}{{\"id\": {}", replica.node.0)?;
        if !replica.directory.is_zero() {
            write!(text, ", \"directoryId\": \"{}\"", replica.directory)?;
        }
        let endpoints = endpoints(quorum, replica.node);
        if !endpoints.is_empty() {
            write!(text, ", \"endpoints\": [{}]", endpoints.join(", "))?;
        }
        text.push('}');
    }
    text.push(']');
    Ok(text)
}

fn endpoints(quorum: &QuorumView, node: NodeId) -> Vec<String> {
    let found = quorum.nodes.iter().find(|found| found.node == node);
    let endpoints = found.map(|found| found.endpoints.as_slice());
    let endpoints = endpoints.unwrap_or_default().iter();
    endpoints
        .map(|at| format!("\"{}://{}:{}\"", at.listener, at.host, at.port))
        .collect()
}

/// With `now_ms` times are told as how long before it they were.
fn replication_text(quorum: &QuorumView, now_ms: Option<i64>) -> Result<String, Failure> {
    let leader = leader(quorum)?;
    let mut table = Table::new(&[
        "NodeId",
        "DirectoryId",
        "LogEndOffset",
        "Lag",
        "LastFetchTimestamp",
        "LastCaughtUpTimestamp",
        "Status",
    ]);
    let time = |time: Option<i64>| match (time, now_ms) {
        (None, _) => "-1".to_owned(),
        (Some(time), None) => time.to_string(),
        (Some(time), Some(now)) => format!("{} ms ago", (now - time).max(0)),
    };
    let mut row = |replica: &QuorumReplica, status: &str| {
        table.row(vec![
            replica.node.0.to_string(),
            replica.directory.to_string(),
            replica.log_end.to_string(),
            (leader.log_end.0 - replica.log_end.0).to_string(),
            time(replica.last_fetch_ms),
            time(replica.last_caught_up_ms),
            status.to_owned(),
        ]);
    };
    row(leader, "Leader");
    let followers = quorum.voters.iter().filter(|v| v.node != leader.node);
    followers.for_each(|voter| row(voter, "Follower"));
    let observers = quorum.observers.iter();
    observers.for_each(|observer| row(observer, "Observer"));
    Ok(table.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{QuorumEndpoint, QuorumNode};
    use crate::types::{LeaderEpoch, Offset, Uuid};

    fn replica(node: i32, log_end: i64, caught_up: Option<i64>) -> QuorumReplica {
        QuorumReplica {
            node: NodeId(node),
            directory: Uuid::from_halves(0, node as u64),
            log_end: Offset(log_end),
            last_fetch_ms: caught_up.map(|at| at + 10),
            last_caught_up_ms: caught_up,
        }
    }

    fn quorum() -> QuorumView {
        let mut observer = replica(7, 90, Some(800));
        observer.directory = Uuid::ZERO;
        let endpoint = |port| QuorumEndpoint {
            listener: "CONTROLLER".to_owned(),
            host: "localhost".to_owned(),
            port,
        };
        QuorumView {
            leader: NodeId(2),
            leader_epoch: LeaderEpoch(5),
            high_watermark: Offset(99),
            voters: vec![
                replica(1, 97, Some(900)),
                QuorumReplica {
                    last_fetch_ms: None,
                    ..replica(2, 100, Some(1000))
                },
                replica(3, 100, Some(1000)),
            ],
            observers: vec![observer],
            nodes: vec![QuorumNode {
                node: NodeId(1),
                endpoints: vec![endpoint(1), endpoint(2)],
            }],
        }
    }

    #[test]
    fn the_status_tells_how_far_the_last_voter_is_behind() {
        let text = status_text("cluster", &quorum()).unwrap();
        let want = "ClusterId:              cluster\n\
            LeaderId:               2\n\
            LeaderEpoch:            5\n\
            HighWatermark:          99\n\
            MaxFollowerLag:         3\n\
            MaxFollowerLagTimeMs:   100\n\
            CurrentVoters:          [{\"id\": 1, \"directoryId\": \"AAAAAAAAAAAAAAAAAAAAAQ\", \
            \"endpoints\": [\"CONTROLLER://localhost:1\", \"CONTROLLER://localhost:2\"]}, \
            {\"id\": 2, \"directoryId\": \"AAAAAAAAAAAAAAAAAAAAAg\"}, \
            {\"id\": 3, \"directoryId\": \"AAAAAAAAAAAAAAAAAAAAAw\"}]\n\
            CurrentObservers:       [{\"id\": 7}]\n";
        assert_eq!(text, want);
    }

    #[test]
    fn a_lag_in_time_that_is_not_known_is_minus_one_and_a_lone_leader_has_none() {
        let mut quorum = quorum();
        quorum.voters[0].last_caught_up_ms = None;
        let text = status_text("c", &quorum).unwrap();
        assert!(text.contains("MaxFollowerLagTimeMs:   -1\n"), "{text}");
        quorum.voters.remove(0);
        let text = status_text("c", &quorum).unwrap();
        assert!(text.contains("MaxFollowerLagTimeMs:   0\n"), "{text}");
        quorum.leader = NodeId(8);
        assert!(status_text("c", &quorum).is_err());
    }

    #[test]
    fn every_replica_has_a_row_the_leader_first() {
        let text = replication_text(&quorum(), None).unwrap();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let id = |node: u64| Uuid::from_halves(0, node).to_string();
        assert_eq!(rows[1], ["2", &id(2), "100", "0", "-1", "1000", "Leader"]);
        assert_eq!(rows[2], ["1", &id(1), "97", "3", "910", "900", "Follower"]);
        assert_eq!(rows[4], ["7", &id(0), "90", "10", "810", "800", "Observer"]);
        let text = replication_text(&quorum(), Some(1000)).unwrap();
        assert!(text.contains(" 90 ms ago "), "{text}");
    }
}
