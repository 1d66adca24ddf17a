//! `highwater consume`: the records of a topic on standard output.
//!
//! In a group it commits what it has printed, every few seconds and at the end; without one it
//! reads all partitions and leaves no trace. SIGINT and SIGTERM end it as the end of the records
//! would, so that the group learns of it.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::bootstrap::{Bootstrap, existing_topic};
use super::isolation::IsolationName;
use super::{Failure, run};
use crate::client::{
    Admin, CommittedOffset, Consumer, ConsumerConfig, ConsumerRecord, OffsetReset, TopicPartition,
};
use crate::rt::{self, Instant};
use crate::types::Offset;
use crate::wire::batch::TimestampType;

/// How often a signal is looked for.
const POLL: Duration = Duration::from_millis(200);
/// Kafka's auto.commit.interval.ms.
const COMMIT_EVERY: Duration = Duration::from_secs(5);

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater consume --bootstrap-server 127.0.0.1:9092 --topic orders --from-beginning \\\n    --max-messages 10 --print-key --print-offset"
)]
pub struct Consume {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[arg(long)]
    topic: String,
    /// Share the partitions with the other members of this group, and go on where it is.
    #[arg(long)]
    group: Option<String>,
    /// Read only this partition.
    #[arg(long, value_name = "N", conflicts_with = "group")]
    partition: Option<i32>,
    /// Where to begin in the partition.
    #[arg(
        long,
        value_name = "N",
        requires = "partition",
        conflicts_with = "from_beginning"
    )]
    offset: Option<i64>,
    /// Without a committed offset begin with the oldest record, not with the next.
    #[arg(long)]
    from_beginning: bool,
    /// End after this many records.
    #[arg(long, value_name = "N")]
    max_messages: Option<u64>,
    /// End when no record came for this long.
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u64>,
    #[arg(long, value_enum, default_value_t = IsolationName::ReadUncommitted)]
    isolation_level: IsolationName,
    #[command(flatten)]
    format: Format,
}

/// What to print of a record, in the order of Kafka's default formatter.
#[derive(Args)]
struct Format {
    #[arg(long)]
    print_timestamp: bool,
    #[arg(long)]
    print_partition: bool,
    #[arg(long)]
    print_offset: bool,
    #[arg(long)]
    print_headers: bool,
    #[arg(long)]
    print_key: bool,
    /// Leave out the value.
    #[arg(long)]
    no_value: bool,
    /// What stands between the parts of a record.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "\t",
        hide_default_value = true
    )]
    key_separator: String,
}

impl Consume {
    pub fn run(self) -> Result<(), Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, stop.clone())?;
        }
        let printed = run::run(move || self.consume(stop))?;
        eprintln!("Processed a total of {printed} messages");
        Ok(())
    }

    fn config(&self) -> ConsumerConfig {
        ConsumerConfig {
            client: self.bootstrap.client_config(),
            group_id: self.group.clone(),
            offset_reset: match self.from_beginning {
                true => OffsetReset::Earliest,
                false => OffsetReset::Latest,
            },
            isolation: self.isolation_level.into(),
            // What poll has returned is not printed yet.
            auto_commit: None,
            ..ConsumerConfig::default()
        }
    }

    async fn consume(self, stop: Arc<AtomicBool>) -> Result<u64, Failure> {
        let mut consumer = Consumer::connect(self.config()).await?;
        let admin = Admin::new(consumer.cluster().clone());
        let topic = existing_topic(&admin, &self.topic).await?;
        if self.group.is_some() {
            consumer.subscribe(&[&self.topic]).await?;
        } else {
            let mut partitions: Vec<TopicPartition> = topic
                .partitions
                .iter()
                .map(|partition| TopicPartition::new(topic.name.clone(), partition.index))
                .collect();
            partitions.retain(|key| self.partition.is_none_or(|wanted| wanted == key.partition));
            if partitions.is_empty() {
                return Err(format!("topic '{}' has no such partition", self.topic).into());
            }
            consumer.assign(&partitions).await?;
            if let (Some(offset), [key]) = (self.offset, &partitions[..]) {
                consumer.seek(key, Offset(offset))?;
            }
        }
        let printed = self.print_records(&mut consumer, &stop).await;
        let closed = consumer.close().await;
        let printed = printed?;
        closed?;
        Ok(printed)
    }

    /// Prints until there is a reason to end; returns how many.
    async fn print_records(
        &self,
        consumer: &mut Consumer,
        stop: &AtomicBool,
    ) -> Result<u64, Failure> {
        let max = self.max_messages.unwrap_or(u64::MAX);
        let patience = self.timeout_ms.map(Duration::from_millis);
        let mut out = BufWriter::new(io::stdout());
        let mut progress = Progress::new();
        let mut printed = 0;
        let mut idle_since = rt::now();
        while printed < max && !stop.load(Ordering::Relaxed) {
            let records = consumer.poll(POLL.min(patience.unwrap_or(POLL))).await?;
            if !records.is_empty() {
                idle_since = rt::now();
            } else if patience.is_some_and(|patience| rt::now().since(idle_since) >= patience) {
                break;
            }
            for record in records
                .iter()
                .take(usize::try_from(max - printed).unwrap_or(usize::MAX))
            {
                self.format.write(&mut out, record)?;
                progress.note(record);
                printed += 1;
            }
            out.flush()?;
            if self.group.is_some() && progress.is_due() {
                progress.commit(consumer).await?;
            }
        }
        if self.group.is_some() {
            progress.commit(consumer).await?;
        }
        Ok(printed)
    }
}

/// What was printed and not committed.
struct Progress {
    next: BTreeMap<TopicPartition, CommittedOffset>,
    committed_at: Instant,
}

impl Progress {
    fn new() -> Progress {
        Progress {
            next: BTreeMap::new(),
            committed_at: rt::now(),
        }
    }

    fn note(&mut self, record: &ConsumerRecord) {
        let key = TopicPartition::new(record.topic.clone(), record.partition);
        let committed = CommittedOffset {
            leader_epoch: record.leader_epoch,
            ..CommittedOffset::new(record.offset.next())
        };
        self.next.insert(key, committed);
    }

    fn is_due(&self) -> bool {
        rt::now().since(self.committed_at) >= COMMIT_EVERY
    }

    async fn commit(&mut self, consumer: &Consumer) -> Result<(), Failure> {
        self.committed_at = rt::now();
        // A partition that went to another member is that member's to commit.
        let assigned = consumer.assignment();
        let mut offsets: Vec<_> = std::mem::take(&mut self.next).into_iter().collect();
        offsets.retain(|(key, _)| assigned.contains(key));
        Ok(consumer.commit_offsets(&offsets).await?)
    }
}

impl Format {
    fn write(&self, out: &mut impl Write, record: &ConsumerRecord) -> io::Result<()> {
        let null = Bytes::from_static(b"null");
        let mut parts: Vec<Bytes> = Vec::new();
        if self.print_timestamp {
            let kind = match record.timestamp_type {
                TimestampType::CreateTime => "CreateTime",
                TimestampType::LogAppendTime => "LogAppendTime",
            };
            parts.push(format!("{kind}:{}", record.timestamp).into());
        }
        if self.print_partition {
            parts.push(format!("Partition:{}", record.partition).into());
        }
        if self.print_offset {
            parts.push(format!("Offset:{}", record.offset).into());
        }
        if self.print_headers {
            parts.push(headers(record));
        }
        if self.print_key {
            parts.push(record.key.clone().unwrap_or_else(|| null.clone()));
        }
        if !self.no_value {
            parts.push(record.value.clone().unwrap_or(null));
        }
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                out.write_all(self.key_separator.as_bytes())?;
            }
            out.write_all(part)?;
        }
        out.write_all(b"\n")
    }
}

fn headers(record: &ConsumerRecord) -> Bytes {
    if record.headers.is_empty() {
        return Bytes::from_static(b"NO_HEADERS");
    }
    let mut text = Vec::new();
    for (index, (key, value)) in record.headers.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(key.as_bytes());
        text.push(b':');
        text.extend_from_slice(value.as_deref().unwrap_or(b"null"));
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LeaderEpoch;

    fn record() -> ConsumerRecord {
        ConsumerRecord {
            topic: "t".into(),
            partition: 2,
            offset: Offset(7),
            timestamp: 5,
            timestamp_type: TimestampType::CreateTime,
            leader_epoch: LeaderEpoch(0),
            key: Some(Bytes::from_static(b"k")),
            value: None,
            headers: vec![
                ("a".into(), Some(Bytes::from_static(b"x"))),
                ("b".into(), None),
            ],
        }
    }

    #[test]
    fn the_parts_of_a_record_come_in_kafkas_order() {
        let format = Format {
            print_timestamp: true,
            print_partition: true,
            print_offset: true,
            print_headers: true,
            print_key: true,
            no_value: false,
            key_separator: "|".to_owned(),
        };
        let mut out = Vec::new();
        format.write(&mut out, &record()).unwrap();
        assert_eq!(
            out,
            b"CreateTime:5|Partition:2|Offset:7|a:x,b:null|k|null\n"
        );
    }
}
