//! The rows of the matrix: what is configured, what it is called, and the settings that make it.
//! The same settings go to real and to simulated brokers. Pure.

use crate::client::Acks;
use crate::log::SegmentIo;
use serde::Serialize;
use serde_json::{Value, json};

/// Replicas and min.insync.replicas where there are several brokers.
pub const BROKERS: usize = 3;
pub const MIN_INSYNC: usize = 2;
/// How soon a broker that says nothing any more is taken for dead: short, so that many events fit
/// into a run. It decides how long a partition is without a leader, not what is lost.
const SESSION_TIMEOUT_MS: u64 = 3000;
const HEARTBEAT_MS: u64 = 500;

/// Whose brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    Highwater,
    Kafka,
}

/// When a record is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// When the operating system writes it back.
    Os,
    /// Before it is acknowledged: flush.messages=1.
    Each,
}

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub system: System,
    pub acks: Acks,
    pub brokers: usize,
    pub io: SegmentIo,
    pub flush: Flush,
}

const ACKS: [Acks; 3] = [Acks::None, Acks::Leader, Acks::All];
const FLUSHES: [Flush; 2] = [Flush::Os, Flush::Each];

/// All 24 of them, those that share brokers beside each other.
pub fn highwater_rows() -> Vec<Row> {
    let mut rows = Vec::with_capacity(24);
    for brokers in [1, BROKERS] {
        for io in [SegmentIo::Buffered, SegmentIo::Direct] {
            for flush in FLUSHES {
                rows.extend(ACKS.map(|acks| Row {
                    system: System::Highwater,
                    acks,
                    brokers,
                    io,
                    flush,
                }));
            }
        }
    }
    rows
}

/// The rows that Apache Kafka has: it writes through the page cache only.
pub fn kafka_rows() -> Vec<Row> {
    let own = highwater_rows().into_iter();
    let buffered = own.filter(|row| row.io == SegmentIo::Buffered);
    let kafka = buffered.map(|row| Row {
        system: System::Kafka,
        ..row
    });
    kafka.collect()
}

impl Row {
    pub fn acks_name(&self) -> &'static str {
        match self.acks {
            Acks::None => "0",
            Acks::Leader => "1",
            Acks::All => "all",
        }
    }

    pub fn io_name(&self) -> &'static str {
        match self.io {
            SegmentIo::Buffered => "buffered",
            SegmentIo::Direct => "direct",
        }
    }

    pub fn flush_name(&self) -> &'static str {
        match self.flush {
            Flush::Os => "os",
            Flush::Each => "1",
        }
    }

    pub fn system_name(&self) -> &'static str {
        match self.system {
            System::Highwater => "highwater",
            System::Kafka => "kafka",
        }
    }

    /// What `--rows` is held against, such as
    /// `system=highwater acks=all brokers=3 io=direct flush=1`.
    pub fn name(&self) -> String {
        format!(
            "system={} acks={} brokers={} io={} flush={}",
            self.system_name(),
            self.acks_name(),
            self.brokers,
            self.io_name(),
            self.flush_name()
        )
    }

    /// What it is called by people.
    pub fn title(&self) -> String {
        format!(
            "{}acks={}, {}, {}, {}",
            match self.system {
                System::Highwater => "",
                System::Kafka => "Kafka, ",
            },
            self.acks_name(),
            match self.brokers {
                1 => "1 broker".to_owned(),
                count => format!("{count} brokers"),
            },
            self.io_name(),
            match self.flush {
                Flush::Os => "OS flush",
                Flush::Each => "flush.messages=1",
            }
        )
    }

    /// The topic that the row's records go to.
    pub fn topic(&self) -> String {
        format!(
            "acks-{}-{}-flush-{}",
            self.acks_name(),
            self.io_name(),
            self.flush_name()
        )
    }

    pub fn replication(&self) -> i16 {
        self.brokers as i16
    }

    /// What makes the topic this row's; the brokers are the same for all rows.
    pub fn topic_configs(&self) -> Vec<(String, String)> {
        let mut configs = Vec::new();
        if self.flush == Flush::Each {
            configs.push(("flush.messages", "1"));
        }
        if self.system == System::Highwater {
            configs.push(("highwater.segment.io", self.io_name()));
        }
        let owned = configs.into_iter();
        owned
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    /// The document's `configuration`.
    pub fn configuration(&self) -> Value {
        let flush = match self.flush {
            Flush::Os => Value::Null,
            Flush::Each => json!(1),
        };
        json!({
            "system": self.system_name(),
            "acks": self.acks_name(),
            "brokers": self.brokers,
            "replication_factor": self.brokers,
            "min_insync_replicas": min_insync(self.brokers),
            "segment_io": self.io_name(),
            "flush": match self.flush { Flush::Os => "os", Flush::Each => "flush.messages=1" },
            "flush_messages": flush,
        })
    }
}

fn min_insync(brokers: usize) -> usize {
    if brokers == 1 { 1 } else { MIN_INSYNC }
}

/// Settings of every node of a cluster of so many brokers, real or simulated, beside those that
/// say where it lies.
pub fn node_settings(brokers: usize) -> Vec<(&'static str, String)> {
    vec![
        ("min.insync.replicas", min_insync(brokers).to_string()),
        ("broker.session.timeout.ms", SESSION_TIMEOUT_MS.to_string()),
        ("broker.heartbeat.interval.ms", HEARTBEAT_MS.to_string()),
        ("unclean.leader.election.enable", "false".to_owned()),
        ("auto.create.topics.enable", "false".to_owned()),
        ("offsets.topic.num.partitions", "1".to_owned()),
        ("offsets.topic.replication.factor", brokers.to_string()),
    ]
}

/// Which rows are wanted: all, or those of which every term of one of the filters holds.
#[derive(Clone, Debug, Default)]
pub struct Filter(Vec<Vec<String>>);

impl Filter {
    /// Each text is a list of terms such as `acks=all,brokers=3`.
    ///
    /// # Errors
    /// A term that holds for no row there could be; one line.
    pub fn parse(texts: &[String]) -> Result<Filter, String> {
        let mut rows = highwater_rows();
        rows.extend(kafka_rows());
        let mut filters = Vec::with_capacity(texts.len());
        for text in texts {
            let terms = text.split([',', ' ']).map(str::trim);
            let terms: Vec<String> = terms
                .filter(|term| !term.is_empty())
                .map(str::to_owned)
                .collect();
            let known = |term: &String| rows.iter().any(|row| has(row, term));
            if let Some(term) = terms.iter().find(|term| !known(term)) {
                return Err(format!(
                    "--rows {text}: '{term}' is none of system=highwater|kafka, acks=0|1|all, brokers=1|3, io=buffered|direct, flush=os|1"
                ));
            }
            filters.push(terms);
        }
        Ok(Filter(filters))
    }

    pub fn takes(&self, row: &Row) -> bool {
        let all = |terms: &Vec<String>| terms.iter().all(|term| has(row, term));
        self.0.is_empty() || self.0.iter().any(all)
    }
}

fn has(row: &Row, term: &str) -> bool {
    row.name().split(' ').any(|part| part == term)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_matrix_has_24_different_rows_and_kafka_the_12_that_it_knows() {
        let names: BTreeSet<String> = highwater_rows().iter().map(Row::name).collect();
        assert_eq!(names.len(), 24);
        let kafka: BTreeSet<String> = kafka_rows().iter().map(Row::name).collect();
        assert_eq!(kafka.len(), 12);
        assert!(kafka.iter().all(|name| name.contains("io=buffered")));
    }

    #[test]
    fn a_filter_takes_the_rows_of_which_all_terms_hold() {
        let count = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            let filter = Filter::parse(&texts).unwrap();
            highwater_rows()
                .iter()
                .filter(|row| filter.takes(row))
                .count()
        };
        assert_eq!(count(&[]), 24);
        assert_eq!(count(&["acks=1"]), 8);
        assert_eq!(count(&["acks=1,brokers=3,io=direct,flush=1"]), 1);
        assert_eq!(count(&["acks=1,brokers=3", "acks=0"]), 12);
        assert_eq!(count(&["system=kafka"]), 0);
    }

    #[test]
    fn a_term_that_no_row_has_is_refused() {
        let refused = Filter::parse(&["acks=2".to_owned()]).unwrap_err();
        assert!(refused.contains("'acks=2'"), "{refused}");
    }

    #[test]
    fn topics_of_one_cluster_do_not_meet_and_say_what_they_are() {
        for brokers in [1, BROKERS] {
            let rows = highwater_rows();
            let rows = rows.iter().filter(|row| row.brokers == brokers);
            let topics: BTreeSet<String> = rows.map(Row::topic).collect();
            assert_eq!(topics.len(), 12);
        }
        let row = Row {
            system: System::Highwater,
            acks: Acks::All,
            brokers: 3,
            io: SegmentIo::Direct,
            flush: Flush::Each,
        };
        let configs = row.topic_configs();
        assert!(configs.contains(&("flush.messages".to_owned(), "1".to_owned())));
        assert!(configs.contains(&("highwater.segment.io".to_owned(), "direct".to_owned())));
        assert_eq!(row.configuration()["min_insync_replicas"], 2);
    }
}
