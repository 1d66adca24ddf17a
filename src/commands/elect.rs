//! `highwater elect`: elections of leaders, as Kafka's kafka-leader-election asks for them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::bootstrap::{Bootstrap, existing_topic};
use super::partition_file::{names, parse_partitions};
use super::{Failure, print, run};
use crate::client::{Election, PartitionOutcomes, TopicPartition};
use crate::wire::ErrorCode;

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater elect --bootstrap-server 127.0.0.1:9092 --election-type preferred --all-topic-partitions"
)]
#[command(group = clap::ArgGroup::new("scope").required(true)
    .args(["topic", "all_topic_partitions", "path_to_json_file"]))]
pub struct Elect {
    #[command(flatten)]
    bootstrap: Bootstrap,
    /// The first replica, if it is in sync; or any live one, where none is in sync.
    #[arg(long, value_enum)]
    election_type: Type,
    #[arg(long, requires = "partition")]
    topic: Option<String>,
    #[arg(long, value_name = "N", requires = "topic")]
    partition: Option<i32>,
    #[arg(long)]
    all_topic_partitions: bool,
    /// The partitions, as {"partitions":[{"topic":"orders","partition":0}]}.
    #[arg(long, value_name = "FILE")]
    path_to_json_file: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Type {
    Preferred,
    /// Records may be lost.
    Unclean,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Type::Preferred => "PREFERRED",
            Type::Unclean => "UNCLEAN",
        }
    }
}

impl Elect {
    pub fn run(self) -> Result<(), Failure> {
        let kind = self.election_type;
        let outcomes = run::run(move || self.elect())?;
        let (done, failed) = told(kind, &outcomes);
        print(&done)?;
        match failed {
            Some(failed) => Err(failed.into()),
            None => Ok(()),
        }
    }

    async fn elect(self) -> Result<PartitionOutcomes, Failure> {
        let partitions = match (&self.path_to_json_file, &self.topic, self.partition) {
            (Some(file), ..) => Some(parse_partitions(&super::read_file(file)?)?),
            (None, Some(topic), Some(partition)) => {
                Some(vec![TopicPartition::new(topic.as_str().into(), partition)])
            }
            _ => None,
        };
        let admin = self.bootstrap.admin().await?;
        // A mistyped name would be retried as if it might still come.
        for key in partitions.iter().flatten() {
            existing_topic(&admin, &key.topic).await?;
        }
        let election = match self.election_type {
            Type::Preferred => Election::Preferred,
            Type::Unclean => Election::Unclean,
        };
        Ok(admin.elect_leaders(election, partitions.as_deref()).await?)
    }
}

/// What is printed, and what the command fails with.
fn told(kind: Type, outcomes: &PartitionOutcomes) -> (String, Option<String>) {
    let not_needed = |outcome: &Result<(), (ErrorCode, String)>| {
        matches!(outcome, Err((ErrorCode::ELECTION_NOT_NEEDED, _)))
    };
    let of = |wanted: &dyn Fn(&Result<(), (ErrorCode, String)>) -> bool| {
        names(outcomes.iter().filter(|o| wanted(&o.1)).map(|o| &o.0))
    };
    let mut text = String::new();
    let done = of(&Result::is_ok);
    if !done.is_empty() {
        let kind = kind.name();
        text += &format!("Successfully completed leader election ({kind}) for partitions {done}\n");
    }
    let already = of(&not_needed);
    if !already.is_empty() {
        text += &format!("Valid replica already elected for partitions {already}\n");
    }
    let failed: Vec<String> = outcomes
        .iter()
        .filter(|(_, outcome)| !not_needed(outcome))
        .filter_map(|(key, outcome)| {
            let (code, message) = outcome.as_ref().err()?;
            Some(format!("{key}: {code}: {message}"))
        })
        .collect();
    let failed = (!failed.is_empty()).then(|| {
        format!(
            "{} replica(s) could not be elected ({}): {}",
            failed.len(),
            kind.name(),
            failed.join("; ")
        )
    });
    (text, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_elected_already_is_no_failure_and_a_failure_names_its_partition() {
        let key = |partition| TopicPartition::new("t".into(), partition);
        let error = |code: ErrorCode| Err((code, "why".to_owned()));
        let mut outcomes = vec![
            (key(0), Ok(())),
            (key(1), error(ErrorCode::ELECTION_NOT_NEEDED)),
            (key(2), Ok(())),
        ];
        let (text, failed) = told(Type::Preferred, &outcomes);
        assert_eq!(
            text,
            "Successfully completed leader election (PREFERRED) for partitions t-0,t-2\n\
             Valid replica already elected for partitions t-1\n"
        );
        assert_eq!(failed, None);
        outcomes.push((key(3), error(ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE)));
        let (_, failed) = told(Type::Preferred, &outcomes);
        assert_eq!(
            failed.unwrap(),
            "1 replica(s) could not be elected (PREFERRED): \
             t-3: PREFERRED_LEADER_NOT_AVAILABLE: why"
        );
    }
}
