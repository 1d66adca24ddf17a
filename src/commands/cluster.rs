//! `highwater cluster`: the cluster's id and its nodes, as Kafka's kafka-cluster prints them.

use clap::{Args, Subcommand};

use super::bootstrap::{Bootstrap, Client, Either};
use super::table::Table;
use super::{Failure, print, run};
use crate::types::NodeId;
use crate::wire::messages::describe_cluster_response::DescribeClusterResponse;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater cluster list-endpoints --bootstrap-server 127.0.0.1:9092"
)]
pub struct Cluster {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print the cluster's id.
    Id(Id),
    /// Print the addresses of brokers, or of controllers.
    ListEndpoints(ListEndpoints),
    /// Take a broker that has gone for good out of the cluster.
    Unregister(Unregister),
}

#[derive(Args)]
#[command(after_help = "Example:\n  highwater cluster id --bootstrap-server 127.0.0.1:9092")]
struct Id {
    #[command(flatten)]
    bootstrap: Either,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater cluster list-endpoints --bootstrap-server 127.0.0.1:9092 --include-fenced-brokers"
)]
struct ListEndpoints {
    #[command(flatten)]
    bootstrap: Either,
    /// Also brokers that are registered and serve nobody.
    #[arg(long, conflicts_with = "bootstrap_controller")]
    include_fenced_brokers: bool,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater cluster unregister --bootstrap-server 127.0.0.1:9092 --id 3"
)]
struct Unregister {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// The broker's node.id.
    #[arg(long, value_name = "N")]
    id: i32,
}

impl Cluster {
    pub fn run(self) -> Result<(), Failure> {
        print(&run::run(move || async move {
            match self.action {
                Action::Id(id) => {
                    let cluster = describe(&id.bootstrap, false).await?;
                    Ok(format!("Cluster ID: {}\n", cluster.cluster_id))
                }
                Action::ListEndpoints(list) => {
                    let fenced_too = list.include_fenced_brokers;
                    let cluster = describe(&list.bootstrap, fenced_too).await?;
                    Ok(endpoints(&cluster, fenced_too))
                }
                Action::Unregister(unregister) => {
                    let admin = unregister.bootstrap.admin().await?;
                    admin.unregister_broker(NodeId(unregister.id)).await?;
                    Ok(format!(
                        "Broker {} is no longer registered.\n",
                        unregister.id
                    ))
                }
            }
        })?)
    }
}

async fn describe(
    bootstrap: &Either,
    fenced_too: bool,
) -> Result<DescribeClusterResponse, Failure> {
    match bootstrap.client().await? {
        Client::Brokers(admin) => Ok(admin.describe_cluster(fenced_too).await?),
        Client::Controllers(controllers) => Ok(controllers.describe_cluster().await?),
    }
}

/// `endpoint_type` of controllers.
const CONTROLLERS: i8 = 2;

fn endpoints(cluster: &DescribeClusterResponse, with_state: bool) -> String {
    let kind = match cluster.endpoint_type {
        CONTROLLERS => "controller",
        _ => "broker",
    };
    let mut table = match with_state {
        true => Table::new(&["ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"]),
        false => Table::new(&["ID", "HOST", "PORT", "RACK", "ENDPOINT_TYPE"]),
    };
    for node in &cluster.brokers {
        let rack = node.rack.as_ref().map_or("null", |rack| rack.as_str());
        let mut row = vec![
            node.broker_id.to_string(),
            node.host.as_str().to_owned(),
            node.port.to_string(),
            rack.to_owned(),
        ];
        if with_state {
            let state = if node.is_fenced { "fenced" } else { "unfenced" };
            row.push(state.to_owned());
        }
        row.push(kind.to_owned());
        table.row(row);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::describe_cluster_response::DescribeClusterBroker;

    #[test]
    fn fenced_brokers_are_told_apart_where_they_were_asked_for() {
        let broker = |broker_id, is_fenced| DescribeClusterBroker {
            broker_id,
            host: "h".into(),
            port: 9092,
            rack: (broker_id == 1).then(|| "r1".into()),
            is_fenced,
            ..Default::default()
        };
        let cluster = DescribeClusterResponse {
            brokers: vec![broker(1, false), broker(2, true)],
            endpoint_type: 1,
            ..Default::default()
        };
        assert_eq!(
            endpoints(&cluster, true),
            "ID HOST PORT RACK STATE    ENDPOINT_TYPE\n\
             1  h    9092 r1   unfenced broker\n\
             2  h    9092 null fenced   broker\n"
        );
        let controllers = DescribeClusterResponse {
            endpoint_type: CONTROLLERS,
            ..cluster
        };
        assert!(endpoints(&controllers, false).ends_with("2  h    9092 null controller\n"));
    }
}
