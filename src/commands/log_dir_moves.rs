//! The part of a reassignment that moves replicas between the log directories of a broker, as
//! Kafka's tool carries it out. Pure but for the asking.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use super::Failure;
use super::partition_file::LogDirs;
use super::throttles::ALTER_LOG_DIRS_RATE;
use crate::client::{Admin, AlterOp, ConfigResource, LogDir, TopicPartition};
use crate::rt;
use crate::types::NodeId;
use crate::wire::ErrorCode;

/// Pause before replicas that are not there yet are asked for again.
const PAUSE: Duration = Duration::from_millis(100);

/// Where one replica stands on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In none of the broker's directories that can be read.
    Nowhere,
    /// In another directory, and not moving.
    Stays {
        current: String,
        wanted: String,
    },
    /// Its copy is in this directory; it is in that one.
    Moves {
        to: String,
        from: String,
    },
    There,
}

/// One replica: its partition and its broker.
type Replica = (TopicPartition, NodeId);

fn name((key, node): &Replica) -> String {
    format!("{key}-{}", node.0)
}

fn names<'a>(replicas: impl Iterator<Item = &'a Replica>) -> String {
    replicas.map(name).collect::<Vec<_>>().join(",")
}

/// How far the wanted moves are.
pub(super) async fn states(
    admin: &Admin,
    wanted: &LogDirs,
) -> Result<BTreeMap<Replica, State>, Failure> {
    let brokers: BTreeSet<NodeId> = wanted.keys().map(|(_, node)| *node).collect();
    let mut found = BTreeMap::new();
    for node in brokers {
        let dirs = admin.log_dirs(node).await?;
        let of_broker = wanted.iter().filter(|((_, on), _)| *on == node);
        for (replica, dir) in of_broker {
            found.insert(replica.clone(), state(&replica.0, dir, &dirs));
        }
    }
    Ok(found)
}

fn state(key: &TopicPartition, wanted: &str, dirs: &[LogDir]) -> State {
    let holder = |is_future: bool| {
        let holds = |dir: &&LogDir| {
            let mut replicas = dir.replicas.iter();
            replicas.any(|replica| replica.key == *key && replica.is_future == is_future)
        };
        dirs.iter().find(holds).map(|dir| dir.path.clone())
    };
    match (holder(false), holder(true)) {
        (None, _) => State::Nowhere,
        (Some(current), Some(to)) => State::Moves { to, from: current },
        (Some(current), None) if current == wanted => State::There,
        (Some(current), None) => State::Stays {
            current,
            wanted: wanted.to_owned(),
        },
    }
}

pub(super) fn text(states: &BTreeMap<Replica, State>) -> Result<String, Failure> {
    let mut text = String::new();
    for (replica, state) in states {
        let ((key, node), name) = (replica, name(replica));
        match state {
            State::Nowhere => writeln!(
                text,
                "Partition {key} is not found in any live log dir on broker {}. There is likely \
                 an offline log directory on the broker.",
                node.0
            )?,
            State::Stays { current, wanted } => writeln!(
                text,
                "Partition {key} on broker {} is not being moved from log dir {current} to {wanted}.",
                node.0
            )?,
            State::Moves { .. } => {
                writeln!(text, "Reassignment of replica {name} is still in progress.")?;
            }
            State::There => {
                writeln!(
                    text,
                    "Reassignment of replica {name} completed successfully."
                )?;
            }
        }
    }
    Ok(text)
}

/// Asks for all moves, those of replicas that are not there yet again until `timeout`.
pub(super) async fn begin(
    admin: &Admin,
    wanted: &LogDirs,
    timeout: Duration,
) -> Result<String, Failure> {
    let deadline = rt::now() + timeout;
    let mut pending = wanted.clone();
    let mut text = String::new();
    loop {
        let begun = ask(admin, &pending).await?;
        for (replica, dir) in pending.iter().filter(|(one, _)| begun.contains(*one)) {
            let (key, node) = replica;
            writeln!(
                text,
                "Successfully started moving log directory to {dir} for replica {key} with broker {}",
                node.0
            )?;
        }
        pending.retain(|replica, _| !begun.contains(replica));
        if pending.is_empty() {
            return Ok(text);
        }
        if rt::now() >= deadline {
            let s = if pending.len() == 1 { "" } else { "s" };
            let names = names(pending.keys());
            return Err(format!(
                "Timed out before log directory move{s} could be started for: {names}"
            )
            .into());
        }
        rt::sleep(PAUSE).await;
    }
}

/// Those that have begun. The others are not there yet.
async fn ask(admin: &Admin, wanted: &LogDirs) -> Result<BTreeSet<Replica>, Failure> {
    let mut begun = BTreeSet::new();
    let brokers: BTreeSet<NodeId> = wanted.keys().map(|(_, node)| *node).collect();
    for node in brokers {
        let of_broker = wanted.iter().filter(|((_, on), _)| *on == node);
        let moves: Vec<_> = of_broker
            .map(|((key, _), dir)| (key.clone(), dir.clone()))
            .collect();
        for (key, outcome) in admin.alter_log_dirs(node, &moves).await? {
            match outcome {
                ErrorCode::NONE => drop(begun.insert((key, node))),
                ErrorCode::REPLICA_NOT_AVAILABLE => {}
                error => {
                    let name = name(&(key, node));
                    return Err(format!("Failed to alter dir for {name}: {error}").into());
                }
            }
        }
    }
    Ok(begun)
}

/// Has replicas that are on their way stay where they are.
pub(super) async fn cancel(admin: &Admin, wanted: &LogDirs) -> Result<String, Failure> {
    let moving: LogDirs = states(admin, wanted)
        .await?
        .into_iter()
        .filter_map(|(replica, state)| match state {
            State::Moves { from, .. } => Some((replica, from)),
            _ => None,
        })
        .collect();
    if moving.is_empty() {
        return Ok("None of the specified partition moves are active.\n".to_owned());
    }
    ask(admin, &moving).await?;
    let s = if moving.len() == 1 { "" } else { "s" };
    Ok(format!(
        "Successfully cancelled log directory move{s} for: {}\n",
        names(moving.keys())
    ))
}

/// Lets each of these brokers copy at most `rate` bytes a second between its directories.
pub(super) async fn throttle(admin: &Admin, wanted: &LogDirs, rate: u64) -> Result<(), Failure> {
    let brokers: BTreeSet<NodeId> = wanted.keys().map(|(_, node)| *node).collect();
    for node in brokers {
        let broker = ConfigResource::Broker(Some(node));
        let change = [(ALTER_LOG_DIRS_RATE, AlterOp::Set(rate.to_string()))];
        admin.alter_configs(&broker, &change).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ReplicaInDir;

    fn key() -> TopicPartition {
        TopicPartition::new("t".into(), 0)
    }

    fn dir(path: &str, holds: &[bool]) -> LogDir {
        let replica = |is_future: &bool| ReplicaInDir {
            key: key(),
            bytes: 1,
            offset_lag: 0,
            is_future: *is_future,
        };
        LogDir {
            path: path.to_owned(),
            error: ErrorCode::NONE,
            total_bytes: None,
            usable_bytes: None,
            replicas: holds.iter().map(replica).collect(),
        }
    }

    #[test]
    fn a_replica_is_there_or_on_its_way_or_stays_or_is_nowhere() {
        let told = |dirs: &[LogDir]| {
            let states = BTreeMap::from([((key(), NodeId(2)), state(&key(), "/b", dirs))]);
            text(&states).unwrap()
        };
        assert_eq!(
            told(&[dir("/a", &[false]), dir("/b", &[true])]),
            "Reassignment of replica t-0-2 is still in progress.\n"
        );
        assert_eq!(
            told(&[dir("/a", &[]), dir("/b", &[false])]),
            "Reassignment of replica t-0-2 completed successfully.\n"
        );
        assert_eq!(
            told(&[dir("/a", &[false]), dir("/b", &[])]),
            "Partition t-0 on broker 2 is not being moved from log dir /a to /b.\n"
        );
        assert!(told(&[dir("/b", &[true])]).contains("likely an offline log directory"));
    }
}
