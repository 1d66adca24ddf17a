//! The JSON files of Kafka's tools that name partitions: reassignments and elections.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::Failure;
use crate::client::TopicPartition;
use crate::types::NodeId;

/// The only version that there is; a file without one is of it.
const VERSION: i64 = 1;
/// The replica may be in whichever directory.
const ANY_DIR: &str = "any";

/// Where every partition shall be.
pub(super) type Assignment = BTreeMap<TopicPartition, Vec<NodeId>>;

/// The directories that replicas shall lie in, where the file names them.
pub(super) type LogDirs = BTreeMap<(TopicPartition, NodeId), String>;

/// `{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]}]}`
pub(super) fn parse_assignment(text: &str) -> Result<Assignment, Failure> {
    let mut assignment = Assignment::new();
    let mut twice = BTreeSet::new();
    for entry in entries(text)? {
        let key = partition_of(&entry)?;
        let replicas = replicas_of(&entry, &key)?;
        check_dirs(&entry, &key, replicas.len())?;
        if assignment.insert(key.clone(), replicas).is_some() {
            twice.insert(key);
        }
    }
    if !twice.is_empty() {
        let twice = names(twice.iter());
        return Err(
            format!("Partition reassignment contains duplicate topic partitions: {twice}").into(),
        );
    }
    if assignment.is_empty() {
        return Err("Partition reassignment list cannot be empty".into());
    }
    Ok(assignment)
}

/// The directories of a file that [`parse_assignment`] takes.
pub(super) fn parse_log_dirs(text: &str) -> Result<LogDirs, Failure> {
    let mut found = LogDirs::new();
    for entry in entries(text)? {
        let key = partition_of(&entry)?;
        let replicas = replicas_of(&entry, &key)?;
        let dirs = entry.get("log_dirs").and_then(Value::as_array);
        for (node, dir) in replicas.into_iter().zip(dirs.into_iter().flatten()) {
            if let Some(dir) = dir.as_str().filter(|dir| *dir != ANY_DIR) {
                found.insert((key.clone(), node), dir.to_owned());
            }
        }
    }
    Ok(found)
}

/// `{"version":1,"topics":[{"topic":"t"}]}`
pub(super) fn parse_topics(text: &str) -> Result<BTreeSet<String>, Failure> {
    let file = versioned(text)?;
    let listed = file.get("topics").and_then(Value::as_array);
    let listed = listed.ok_or("the JSON has no list \"topics\"")?;
    let mut topics = BTreeSet::new();
    for entry in listed {
        let name = entry.get("topic").and_then(Value::as_str);
        let name = name.ok_or_else(|| format!("not a topic: {entry}"))?;
        if !topics.insert(name.to_owned()) {
            return Err(
                format!("List of topics to reassign contains duplicate entries: {name}").into(),
            );
        }
    }
    if topics.is_empty() {
        return Err("List of topics to reassign cannot be empty".into());
    }
    Ok(topics)
}

/// The form that [`parse_assignment`] reads.
pub(super) fn write_assignment(assignment: &Assignment) -> String {
    let partition = |(key, replicas): (&TopicPartition, &Vec<NodeId>)| {
        let ids: Vec<i32> = replicas.iter().map(|node| node.0).collect();
        let dirs = vec![ANY_DIR; ids.len()];
        json!({
            "topic": key.topic.as_str(),
            "partition": key.partition,
            "replicas": ids,
            "log_dirs": dirs,
        })
    };
    let partitions: Vec<Value> = assignment.iter().map(partition).collect();
    json!({ "version": VERSION, "partitions": partitions }).to_string()
}

/// `{"partitions":[{"topic":"t","partition":0}]}`
pub(super) fn parse_partitions(text: &str) -> Result<Vec<TopicPartition>, Failure> {
    let mut partitions = BTreeSet::new();
    for entry in entries(text)? {
        let key = partition_of(&entry)?;
        if let Some(twice) = partitions.replace(key) {
            return Err(
                format!("Replica election data contains duplicate partitions: {twice}").into(),
            );
        }
    }
    if partitions.is_empty() {
        return Err("Replica election data is empty".into());
    }
    Ok(partitions.into_iter().collect())
}

pub(super) fn names<'a>(partitions: impl Iterator<Item = &'a TopicPartition>) -> String {
    let names: Vec<String> = partitions.map(TopicPartition::to_string).collect();
    names.join(",")
}

fn versioned(text: &str) -> Result<Value, Failure> {
    let file: Value = serde_json::from_str(text)
        .map_err(|error| format!("The input string is not a valid JSON: {error}"))?;
    match file.get("version") {
        None => {}
        Some(version) if version.as_i64() == Some(VERSION) => {}
        Some(version) => {
            return Err(format!("Not supported version field value {version}").into());
        }
    }
    Ok(file)
}

fn entries(text: &str) -> Result<Vec<Value>, Failure> {
    let file = versioned(text)?;
    match file.get("partitions") {
        Some(Value::Array(entries)) => Ok(entries.clone()),
        _ => Err("the JSON has no list \"partitions\"".into()),
    }
}

fn partition_of(entry: &Value) -> Result<TopicPartition, Failure> {
    let wrong = || format!("not a topic and a partition: {entry}");
    let topic = entry.get("topic").and_then(Value::as_str);
    let partition = entry.get("partition").and_then(number);
    let topic = topic.filter(|topic| !topic.is_empty()).ok_or_else(wrong)?;
    let partition = partition.filter(|index| *index >= 0).ok_or_else(wrong)?;
    Ok(TopicPartition::new(topic.into(), partition))
}

fn number(value: &Value) -> Option<i32> {
    i32::try_from(value.as_i64()?).ok()
}

fn replicas_of(entry: &Value, key: &TopicPartition) -> Result<Vec<NodeId>, Failure> {
    let listed = entry.get("replicas").and_then(Value::as_array);
    let ids: Option<Vec<i32>> = listed.and_then(|ids| ids.iter().map(number).collect());
    let ids =
        ids.ok_or_else(|| format!("partition {key} has no list of broker ids \"replicas\""))?;
    if ids.is_empty() {
        return Err(format!("Partition replica list cannot be empty: {key}").into());
    }
    let distinct: BTreeSet<&i32> = ids.iter().collect();
    if distinct.len() < ids.len() {
        return Err(format!(
            "Partition replica lists may not contain duplicate entries: {key} {ids:?}"
        )
        .into());
    }
    Ok(ids.into_iter().map(NodeId).collect())
}

fn check_dirs(entry: &Value, key: &TopicPartition, replicas: usize) -> Result<(), Failure> {
    let Some(dirs) = entry.get("log_dirs") else {
        return Ok(());
    };
    let Some(dirs) = dirs.as_array() else {
        return Err(format!("\"log_dirs\" of partition {key} is no list").into());
    };
    if dirs.len() != replicas {
        return Err(format!(
            "Size of replicas list {replicas} is different from size of log dirs list {} for partition {key}",
            dirs.len()
        )
        .into());
    }
    let is_path = |dir: &str| dir == ANY_DIR || dir.starts_with('/');
    match dirs.iter().all(|dir| dir.as_str().is_some_and(is_path)) {
        true => Ok(()),
        false => Err(format!(
            "partition {key}: log_dirs can only be \"{ANY_DIR}\" or absolute paths"
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(topic: &str, partition: i32) -> TopicPartition {
        TopicPartition::new(topic.into(), partition)
    }

    #[test]
    fn kafkas_file_is_read_and_what_is_written_is_read_again() {
        let text = r#"{"partitions":
            [{"topic": "foo", "partition": 1, "replicas": [1,2,3], "log_dirs": ["any","any","any"] },
             {"topic": "bar", "partition": 0, "replicas": [3]}], "version":1}"#;
        let assignment = parse_assignment(text).unwrap();
        let nodes = |ids: &[i32]| ids.iter().map(|id| NodeId(*id)).collect::<Vec<_>>();
        assert_eq!(assignment[&key("foo", 1)], nodes(&[1, 2, 3]));
        assert_eq!(assignment[&key("bar", 0)], nodes(&[3]));
        let written = write_assignment(&assignment);
        assert_eq!(
            written,
            r#"{"version":1,"partitions":[{"topic":"bar","partition":0,"replicas":[3],"log_dirs":["any"]},{"topic":"foo","partition":1,"replicas":[1,2,3],"log_dirs":["any","any","any"]}]}"#
        );
        assert_eq!(parse_assignment(&written).unwrap(), assignment);
    }

    #[test]
    fn the_directories_that_a_file_names_are_read_per_replica() {
        let text = r#"{"partitions":
            [{"topic": "t", "partition": 0, "replicas": [1,2], "log_dirs": ["/a","any"] },
             {"topic": "t", "partition": 1, "replicas": [3]}]}"#;
        let want = LogDirs::from([((key("t", 0), NodeId(1)), "/a".to_owned())]);
        assert_eq!(parse_log_dirs(text).unwrap(), want);
        assert!(parse_assignment(text).is_ok());
        let topics = parse_topics(r#"{"version":1,"topics":[{"topic":"b"},{"topic":"a"}]}"#);
        assert_eq!(
            topics.unwrap(),
            BTreeSet::from(["a".to_owned(), "b".to_owned()])
        );
    }

    #[test]
    fn nonsense_is_refused_with_its_reason() {
        let part = |more: &str| {
            let text = format!(r#"{{"partitions":[{{"topic":"t","partition":0,{more}}}]}}"#);
            parse_assignment(&text).unwrap_err().to_string()
        };
        assert!(part(r#""replicas":[]"#).contains("cannot be empty: t-0"));
        assert!(part(r#""replicas":[1,1]"#).contains("duplicate entries: t-0"));
        assert!(part(r#""replicas":["1"]"#).contains("no list of broker ids"));
        assert!(part(r#""replicas":[4294967297]"#).contains("no list of broker ids"));
        assert!(part(r#""replicas":[1],"log_dirs":[]"#).contains("list 1 is different from"));
        assert!(part(r#""replicas":[1],"log_dirs":["d"]"#).contains("can only be \"any\""));
        assert!(parse_topics(r#"{"topics":[]}"#).is_err());
        let whole = |text: &str| parse_assignment(text).unwrap_err().to_string();
        assert!(whole("{").starts_with("The input string is not a valid JSON"));
        assert!(whole(r#"{"version":2,"partitions":[]}"#).contains("version field value 2"));
        assert!(whole(r#"{"partitions":[]}"#).contains("list cannot be empty"));
        assert!(whole(r#"{"version":1}"#).contains("\"partitions\""));
        assert!(whole(r#"{"partitions":[{"topic":"","partition":0}]}"#).contains("not a topic"));
        let twice = r#"{"topic":"t","partition":0,"replicas":[1]}"#;
        assert!(
            whole(&format!(r#"{{"partitions":[{twice},{twice}]}}"#))
                .ends_with("duplicate topic partitions: t-0")
        );
    }

    #[test]
    fn partitions_for_an_election_are_read_each_once() {
        let text =
            r#"{"partitions":[{"topic":"foo","partition":1},{"topic":"bar","partition":2}]}"#;
        assert_eq!(
            parse_partitions(text).unwrap(),
            [key("bar", 2), key("foo", 1)]
        );
        let twice = r#"{"partitions":[{"topic":"f","partition":1},{"topic":"f","partition":1}]}"#;
        let error = parse_partitions(twice).unwrap_err().to_string();
        assert!(error.ends_with("duplicate partitions: f-1"), "{error}");
        assert!(parse_partitions(r#"{"partitions":[]}"#).is_err());
    }
}
