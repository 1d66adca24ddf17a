//! `highwater trace`: one record through three brokers, every hop with its offsets and its time.

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::table::Table;
use super::{Failure, print, run};
use crate::client::ClientConfig;
use crate::lab::trace::{
    Facts, Flaw, Hops, Play, Step, Story, collect_here, follow_file, page, play, start_nodes,
};
use crate::rt;

/// How long hops may take from a broker's log to here once the record is through.
const HOPS_PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

#[derive(Args)]
#[command(
    after_help = "Example:\n  highwater trace --html trace.html\n\nBrokers that run on this host already tell of hops with HIGHWATER_LOG=highwater::hop=trace and\nhighwater.log.format=json; then:\n  highwater trace --bootstrap-server 127.0.0.1:9092 --broker-log 1.log --broker-log 2.log --broker-log 3.log"
)]
pub struct Trace {
    /// Brokers that run on this host; without, three are started and ended with the trace.
    #[arg(long, value_name = "HOST:PORT", requires = "broker_log")]
    bootstrap_server: Option<String>,
    /// The log file of a broker; one for each of them.
    #[arg(long, value_name = "FILE", requires = "bootstrap_server")]
    broker_log: Vec<PathBuf>,
    /// Also write the trace as a page for a browser.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write all hops that were told, a line of JSON each; also if they make no trace.
    #[arg(long, value_name = "FILE")]
    hops: Option<PathBuf>,
    /// Show the hops of the trace one by one, and wait for Enter after each.
    #[arg(long)]
    step: bool,
    /// What the record holds.
    #[arg(long, value_name = "TEXT", default_value = "one record, end to end")]
    value: String,
    /// How long the cluster may take for its part (default.api.timeout.ms).
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    api_timeout_ms: u64,
}

impl Trace {
    pub fn run(self) -> Result<(), Failure> {
        let hops = Hops::default();
        collect_here(hops.clone());
        let patience = Duration::from_millis(self.api_timeout_ms);
        let nodes = match &self.bootstrap_server {
            Some(_) => {
                for log in &self.broker_log {
                    follow_file(log, hops.clone())
                        .map_err(|error| format!("{}: {error}", log.display()))?;
                }
                None
            }
            None => Some(start_nodes(&hops, patience)?),
        };
        let bootstrap = match (&self.bootstrap_server, &nodes) {
            (Some(servers), _) => servers.clone(),
            (None, nodes) => nodes
                .as_ref()
                .map(|nodes| nodes.bootstrap())
                .unwrap_or_default(),
        };
        let what = Play {
            client: ClientConfig {
                client_id: "highwater-trace".to_owned(),
                api_timeout: patience,
                allow_auto_create_topics: false,
                ..ClientConfig::new(&bootstrap)
            },
            topic: self.topic(),
            value: self.value.clone(),
            tidy: nodes.is_none(),
        };
        let facts = {
            let hops = hops.clone();
            run::run(move || async move { Ok(play(what, hops).await?) })?
        };
        let told = tell(&hops, &facts);
        if let Some(path) = &self.hops {
            write(path, &hops.lines())?;
        }
        let story = told?;
        drop(nodes);
        print(&heading(&facts, &story))?;
        match self.step {
            true => step_by_step(&story)?,
            false => print(&table(&story))?,
        }
        if let Some(path) = &self.html {
            write(path, &page(&story, &facts, &self.value))?;
        }
        Ok(())
    }

    /// In a cluster of somebody's it must not be one that exists.
    fn topic(&self) -> String {
        match self.bootstrap_server {
            None => "trace".to_owned(),
            Some(_) => format!("highwater-trace-{:08x}", rt::random_u64() >> 32),
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// The story, once all its hops have come.
fn tell(hops: &Hops, facts: &Facts) -> Result<Story, Flaw> {
    let deadline = Instant::now() + HOPS_PATIENCE;
    loop {
        match Story::tell(&hops.so_far(), facts) {
            Err(Flaw::Missing(_)) if Instant::now() < deadline => std::thread::sleep(LOOK),
            told => return told,
        }
    }
}

fn heading(facts: &Facts, story: &Story) -> String {
    let kept = &facts.topic;
    let with_rack = |node: &i32| {
        let rack = facts.racks.get(node).map_or("no rack", String::as_str);
        format!("broker {node} in {rack}")
    };
    let followers: Vec<String> = kept.followers.iter().map(with_rack).collect();
    format!(
        "One record to {}-{} with acks=all; min.insync.replicas 2\n\
         leader {}; followers {}\n\
         acknowledged after {} µs, read after {} µs\n\n",
        kept.topic,
        kept.partition,
        with_rack(&kept.leader),
        followers.join(", "),
        story.acknowledged_micros,
        story.read_micros,
    )
}

fn table(story: &Story) -> String {
    let mut table = Table::new(&["        µs", "WHERE", "HOP", "OFFSETS"]);
    for step in &story.steps {
        table.row(cells(step));
    }
    table.text()
}

fn cells(step: &Step) -> Vec<String> {
    vec![
        format!("{:>10}", step.micros),
        step.lane.to_string(),
        step.title.clone(),
        step.offsets.clone(),
    ]
}

/// Shows one hop after the other. The end of the input lets the rest go by.
fn step_by_step(story: &Story) -> Result<(), Failure> {
    let mut input = io::stdin().lock();
    let count = story.steps.len();
    for (at, step) in story.steps.iter().enumerate() {
        print(&step_text(at + 1, count, step))?;
        if at + 1 < count {
            input.read_line(&mut String::new())?;
        }
    }
    Ok(())
}

fn step_text(number: usize, count: usize, step: &Step) -> String {
    let offsets = match step.offsets.is_empty() {
        true => String::new(),
        false => format!(" [{}]", step.offsets),
    };
    format!(
        "{number}/{count}  {} µs  {}: {}{offsets}\n    {}\n",
        step.micros, step.lane, step.title, step.why
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::trace::Lane;

    fn step(offsets: &str) -> Step {
        Step {
            micros: -12,
            lane: Lane::Shard { node: 2, shard: 0 },
            title: "follower append".to_owned(),
            offsets: offsets.to_owned(),
            why: "Because.".to_owned(),
            cause: None,
        }
    }

    #[test]
    fn a_hop_is_a_row_with_its_time_to_the_right() {
        let story = Story {
            steps: vec![step("LEO 1, HW 0"), step("")],
            acknowledged_micros: 0,
            read_micros: 0,
        };
        assert_eq!(
            table(&story),
            "        µs WHERE            HOP             OFFSETS\n\
            \x20      -12 broker 2 shard 0 follower append LEO 1, HW 0\n\
            \x20      -12 broker 2 shard 0 follower append -\n"
        );
    }

    #[test]
    fn a_step_says_what_it_means() {
        assert_eq!(
            step_text(3, 9, &step("LEO 1")),
            "3/9  -12 µs  broker 2 shard 0: follower append [LEO 1]\n    Because.\n"
        );
    }
}
