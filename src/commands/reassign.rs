//! `highwater reassign`: moves partitions to other replicas, as Kafka's kafka-reassign-partitions
//! does from the same file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::bootstrap::Bootstrap;
use super::describe_topics::nodes;
use super::log_dir_moves::{self, State};
use super::partition_file::{
    Assignment, names, parse_assignment, parse_log_dirs, write_assignment,
};
use super::reassign_plan::Generate;
use super::throttles::{self, Moves};
use super::{Failure, print, run};
use crate::client::{Admin, ClusterView, PartitionOutcomes, Reassignment, TopicPartition};
use crate::types::NodeId;

/// A lower rate would never come to an end.
const THROTTLE_MIN: u64 = 1024;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater reassign execute --bootstrap-server 127.0.0.1:9092 --reassignment-json-file moves.json"
)]
pub struct Reassign {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Begin to move partitions to the replicas that the file names.
    Execute(Execute),
    /// Print how far it is, and take the throttles off once it is done.
    Verify(Change),
    /// Go back to the replicas before.
    Cancel(Change),
    /// Print what is being moved.
    List(List),
    /// Print a plan that spreads topics over brokers, and where they are now.
    Generate(Generate),
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater reassign execute --bootstrap-server 127.0.0.1:9092 --reassignment-json-file moves.json \\\n    --throttle 50000000"
)]
struct Execute {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// {"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,2,3]}]}; "log_dirs"
    /// beside "replicas" names a directory for each, or "any".
    #[arg(long, value_name = "FILE")]
    reassignment_json_file: PathBuf,
    /// What each broker may copy, in bytes a second; verify takes it off again.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(THROTTLE_MIN..))]
    throttle: Option<u64>,
    /// What each broker may copy between its log directories, in bytes a second.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(THROTTLE_MIN..))]
    replica_alter_log_dirs_throttle: Option<u64>,
    /// How long moves between log directories may take until they have begun.
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    timeout: u64,
    /// Also while other partitions are being moved.
    #[arg(long)]
    additional: bool,
    /// Refuse to make it more or fewer replicas.
    #[arg(long)]
    disallow_replication_factor_change: bool,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater reassign verify --bootstrap-server 127.0.0.1:9092 --reassignment-json-file moves.json\n  highwater reassign cancel --bootstrap-server 127.0.0.1:9092 --reassignment-json-file moves.json"
)]
struct Change {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// The file that was executed.
    #[arg(long, value_name = "FILE")]
    reassignment_json_file: PathBuf,
    /// Leave the throttles as they are.
    #[arg(long)]
    preserve_throttles: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n  highwater reassign list --bootstrap-server 127.0.0.1:9092")]
struct List {
    #[command(flatten)]
    bootstrap: Bootstrap,
}

type Ongoing = BTreeMap<TopicPartition, Reassignment>;

impl Reassign {
    pub fn run(self) -> Result<(), Failure> {
        print(&run::run(move || async move {
            match self.action {
                Action::Execute(execute) => execute.text().await,
                Action::Verify(verify) => verify.verify().await,
                Action::Cancel(cancel) => cancel.cancel().await,
                Action::Generate(generate) => generate.text().await,
                Action::List(list) => {
                    let admin = list.bootstrap.admin().await?;
                    Ok(list_text(&admin.list_reassignments(None).await?))
                }
            }
        })?)
    }
}

impl Execute {
    async fn text(self) -> Result<String, Failure> {
        let file = super::read_file(&self.reassignment_json_file)?;
        let (wanted, dirs) = (parse_assignment(&file)?, parse_log_dirs(&file)?);
        let admin = self.bootstrap.admin().await?;
        let ongoing = admin.list_reassignments(None).await?;
        if !self.additional && !ongoing.is_empty() {
            return Err(
                "Cannot execute because there is an existing partition assignment. Use \
                 --additional to override this and create a new partition assignment in addition \
                 to the existing one. The --additional flag can also be used to change the \
                 throttle by resubmitting the current reassignment."
                    .into(),
            );
        }
        let view = admin.topics().await?;
        check_brokers(&view, &wanted)?;
        let current = current(&view, &wanted)?;
        let mut text = format!(
            "Current partition replica assignment\n\n{}\n\nSave this to use as the \
             --reassignment-json-file option during rollback\n",
            write_assignment(&current)
        );
        if let Some(rate) = self.throttle {
            let moves = Moves::new(&ongoing, &wanted, &current);
            moves.throttle(&admin, rate).await?;
            text.push_str(
                "Warning: You must run verify periodically, until the reassignment completes, to \
                 ensure the throttle is removed.\n",
            );
            writeln!(
                text,
                "The inter-broker throttle limit was set to {rate} B/s"
            )?;
        }
        if let Some(rate) = self.replica_alter_log_dirs_throttle {
            log_dir_moves::throttle(&admin, &dirs, rate).await?;
            writeln!(
                text,
                "The replica-alter-dir throttle limit was set to {rate} B/s"
            )?;
        }
        let moves: Vec<_> = wanted.into_iter().map(|(k, r)| (k, Some(r))).collect();
        let may_change = !self.disallow_replication_factor_change;
        let outcomes = admin.alter_reassignments(&moves, may_change).await?;
        refuse_failures("Error reassigning partition(s)", &outcomes)?;
        let names = names(moves.iter().map(|(key, _)| key));
        let s = if moves.len() == 1 { "" } else { "s" };
        writeln!(
            text,
            "Successfully started partition reassignment{s} for {names}"
        )?;
        let timeout = Duration::from_millis(self.timeout);
        text += &log_dir_moves::begin(&admin, &dirs, timeout).await?;
        Ok(text)
    }
}

impl Change {
    async fn verify(self) -> Result<String, Failure> {
        let file = super::read_file(&self.reassignment_json_file)?;
        let (wanted, dirs) = (parse_assignment(&file)?, parse_log_dirs(&file)?);
        let admin = self.bootstrap.admin().await?;
        let ongoing = admin.list_reassignments(None).await?;
        let view = admin.topics().await?;
        let mut text = verify_text(&wanted, &ongoing, &view);
        let states = log_dir_moves::states(&admin, &dirs).await?;
        text += &log_dir_moves::text(&states)?;
        let moves = |state: &State| matches!(state, State::Moves { .. });
        if ongoing.is_empty() && !states.values().any(moves) && !self.preserve_throttles {
            text.push('\n');
            text += &clear_throttles(&admin, &view, &wanted).await?;
        }
        Ok(text)
    }

    async fn cancel(self) -> Result<String, Failure> {
        let file = super::read_file(&self.reassignment_json_file)?;
        let (wanted, dirs) = (parse_assignment(&file)?, parse_log_dirs(&file)?);
        let admin = self.bootstrap.admin().await?;
        let mut ongoing = admin.list_reassignments(None).await?;
        ongoing.retain(|key, _| wanted.contains_key(key));
        let mut text = if ongoing.is_empty() {
            "None of the specified partition reassignments are active.\n".to_owned()
        } else {
            let ends: Vec<_> = ongoing.keys().map(|key| (key.clone(), None)).collect();
            let outcomes = admin.alter_reassignments(&ends, true).await?;
            refuse_failures("Error cancelling partition reassignment(s) for", &outcomes)?;
            let s = if ends.len() == 1 { "" } else { "s" };
            let names = names(ongoing.keys());
            format!("Successfully cancelled partition reassignment{s} for: {names}\n")
        };
        text += &log_dir_moves::cancel(&admin, &dirs).await?;
        if !self.preserve_throttles {
            let view = admin.topics().await?;
            text += &clear_throttles(&admin, &view, &wanted).await?;
        }
        Ok(text)
    }
}

fn refuse_failures(what: &str, outcomes: &PartitionOutcomes) -> Result<(), Failure> {
    let failed = outcomes.iter().filter_map(|(key, outcome)| {
        let (code, message) = outcome.as_ref().err()?;
        Some(format!("{key}: {code}: {message}"))
    });
    let failed: Vec<String> = failed.collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("{what}: {}", failed.join("; ")).into()),
    }
}

fn check_brokers(view: &ClusterView, wanted: &Assignment) -> Result<(), Failure> {
    let mut named = wanted.values().flatten();
    match named.find(|node| view.broker(**node).is_none()) {
        Some(node) => Err(format!("Unknown broker id {}", node.0).into()),
        None => Ok(()),
    }
}

/// Where the partitions of `wanted` are now.
fn current(view: &ClusterView, wanted: &Assignment) -> Result<Assignment, Failure> {
    let replicas = |key: &TopicPartition| {
        let topic = view.topic(&key.topic)?;
        Some(topic.partition(key.partition)?.replicas.clone())
    };
    let mut current = Assignment::new();
    for key in wanted.keys() {
        let found = replicas(key).ok_or_else(|| format!("Unable to find partition: {key}"))?;
        current.insert(key.clone(), found);
    }
    Ok(current)
}

fn verify_text(wanted: &Assignment, ongoing: &Ongoing, view: &ClusterView) -> String {
    let mut text = String::from("Status of partition reassignment:\n");
    for (key, target) in wanted {
        let topic = view.topic(&key.topic);
        let now = topic.and_then(|topic| topic.partition(key.partition));
        let now = now.map(|partition| partition.replicas.as_slice());
        let now = now.unwrap_or_default();
        text += &if ongoing.contains_key(key) {
            format!("Reassignment of partition {key} is still in progress.\n")
        } else if now == target {
            format!("Reassignment of partition {key} is completed.\n")
        } else {
            format!(
                "There is no active reassignment of partition {key}, but replica set is {} \
                 rather than {}.\n",
                nodes(now),
                nodes(target)
            )
        };
    }
    text
}

fn list_text(ongoing: &Ongoing) -> String {
    if ongoing.is_empty() {
        return "No partition reassignments found.\n".to_owned();
    }
    let mut text = String::from("Current partition reassignments:\n");
    for (key, reassignment) in ongoing {
        let some = |what: &str, ids: &[NodeId]| match ids.is_empty() {
            true => String::new(),
            false => format!(" {what}: {}.", nodes(ids)),
        };
        text += &format!(
            "{key}: replicas: {}.{}{}\n",
            nodes(&reassignment.replicas),
            some("adding", &reassignment.adding),
            some("removing", &reassignment.removing),
        );
    }
    text
}

/// Takes them off every broker, since each may have been a source, and off the topics that still
/// exist.
async fn clear_throttles(
    admin: &Admin,
    view: &ClusterView,
    wanted: &Assignment,
) -> Result<String, Failure> {
    let brokers: BTreeSet<NodeId> = view.brokers.iter().map(|broker| broker.node).collect();
    let named = wanted.keys().filter(|key| view.topic(&key.topic).is_some());
    let topics: BTreeSet<String> = named.map(|key| key.topic.to_string()).collect();
    throttles::clear(admin, &brokers, &topics).await?;
    let s = |count: usize| if count == 1 { "" } else { "s" };
    let ids: Vec<NodeId> = brokers.iter().copied().collect();
    let topic_names: Vec<&str> = topics.iter().map(String::as_str).collect();
    Ok(format!(
        "Clearing broker-level throttles on broker{} {}\n\
         Clearing topic-level throttles on topic{} {}\n",
        s(ids.len()),
        nodes(&ids),
        s(topics.len()),
        topic_names.join(","),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ErrorCode;
    use crate::wire::messages::metadata_response as m;

    fn ids(ids: &[i32]) -> Vec<NodeId> {
        ids.iter().map(|id| NodeId(*id)).collect()
    }

    fn key(partition: i32) -> TopicPartition {
        TopicPartition::new("t".into(), partition)
    }

    fn moving(adding: &[i32], removing: &[i32]) -> Reassignment {
        Reassignment {
            replicas: ids(&[1, 2, 3]),
            adding: ids(adding),
            removing: ids(removing),
        }
    }

    /// Topic `t` with partitions 0 on 1,2 and 1 on 2,3; brokers 1 to 3.
    fn view() -> ClusterView {
        let partition = |partition_index, replicas: &[i32]| m::MetadataResponsePartition {
            partition_index,
            replica_nodes: replicas.to_vec(),
            ..Default::default()
        };
        let topic = m::MetadataResponseTopic {
            name: Some("t".into()),
            partitions: vec![partition(0, &[1, 2]), partition(1, &[2, 3])],
            ..Default::default()
        };
        let broker = |node_id| m::MetadataResponseBroker {
            node_id,
            ..Default::default()
        };
        let answer = m::MetadataResponse {
            brokers: (1..4).map(broker).collect(),
            topics: vec![topic],
            ..Default::default()
        };
        ClusterView::default().updated(&answer, true)
    }

    #[test]
    fn each_partition_is_done_or_on_its_way_or_somewhere_else() {
        let wanted = Assignment::from([
            (key(0), ids(&[1, 2])),
            (key(1), ids(&[3, 2])),
            (key(2), ids(&[1])),
        ]);
        let ongoing = Ongoing::from([(key(2), moving(&[1], &[]))]);
        assert_eq!(
            verify_text(&wanted, &ongoing, &view()),
            "Status of partition reassignment:\n\
             Reassignment of partition t-0 is completed.\n\
             There is no active reassignment of partition t-1, but replica set is 2,3 rather than 3,2.\n\
             Reassignment of partition t-2 is still in progress.\n"
        );
    }

    #[test]
    fn brokers_and_partitions_that_do_not_exist_are_refused_before_anything_moves() {
        let to = |partition, replicas: &[i32]| Assignment::from([(key(partition), ids(replicas))]);
        let unknown = check_brokers(&view(), &to(0, &[1, 9])).unwrap_err();
        assert_eq!(unknown.to_string(), "Unknown broker id 9");
        assert!(check_brokers(&view(), &to(0, &[1, 3])).is_ok());
        let missing = current(&view(), &to(2, &[1])).unwrap_err();
        assert_eq!(missing.to_string(), "Unable to find partition: t-2");
        assert_eq!(current(&view(), &to(1, &[1])).unwrap(), to(1, &[2, 3]));
    }

    #[test]
    fn moves_under_way_are_listed_with_who_comes_and_who_goes() {
        let ongoing = Ongoing::from([(key(0), moving(&[3], &[1, 2])), (key(1), moving(&[], &[2]))]);
        assert_eq!(
            list_text(&ongoing),
            "Current partition reassignments:\n\
             t-0: replicas: 1,2,3. adding: 3. removing: 1,2.\n\
             t-1: replicas: 1,2,3. removing: 2.\n"
        );
        assert_eq!(
            list_text(&Ongoing::new()),
            "No partition reassignments found.\n"
        );
    }

    #[test]
    fn a_partition_that_was_refused_fails_the_command_with_the_brokers_words() {
        let refused = (ErrorCode::NO_REASSIGNMENT_IN_PROGRESS, "none".to_owned());
        let outcomes = vec![(key(0), Ok(())), (key(1), Err(refused))];
        let error = refuse_failures("Error", &outcomes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Error: t-1: NO_REASSIGNMENT_IN_PROGRESS: none"
        );
    }
}
