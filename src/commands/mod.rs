//! The commands of the `highwater` binary, one file each. They run on the main thread and talk to
//! brokers as any client does. A command that fails says why in one line and exits non-zero.

mod acks;
mod bench;
mod bootstrap;
mod cluster;
mod configs;
mod consume;
mod describe_topics;
mod dump_decoder;
mod dump_log;
mod elect;
pub(crate) mod format;
mod groups;
mod isolation;
mod key_value;
mod lab;
mod log_dir_moves;
mod log_dirs;
mod partition_file;
mod produce;
mod quorum;
mod quota_entity;
mod reassign;
mod reassign_plan;
mod reset_offsets;
pub(crate) mod run;
mod serve;
pub(crate) mod table;
mod throttles;
mod topics;
mod trace;
mod tune;
mod tune_disk;

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "highwater",
    version,
    about = "A broker that speaks the Apache Kafka protocol"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a broker.
    Serve(serve::Serve),
    /// Give a node's log directories their identity in a cluster.
    Format(format::Format),
    /// List, create, describe, alter and delete topics.
    Topics(topics::Topics),
    /// Describe and alter the settings of topics, brokers and groups.
    Configs(configs::Configs),
    /// Send the lines of standard input as records.
    Produce(produce::Produce),
    /// Print the records of a topic.
    Consume(consume::Consume),
    /// List, describe, delete and reset consumer groups.
    Groups(groups::Groups),
    /// Describe the controllers' quorum.
    Quorum(quorum::Quorum),
    /// Move partitions to other replicas.
    Reassign(reassign::Reassign),
    /// Print brokers' log directories and what lies in them.
    LogDirs(log_dirs::LogDirs),
    /// Elect leaders of partitions.
    Elect(elect::Elect),
    /// Print the cluster's id and nodes; take a broker out of it.
    Cluster(cluster::Cluster),
    /// Put load on brokers and measure them.
    Bench(Box<bench::Bench>),
    /// Follow one record through three brokers, hop by hop.
    Trace(trace::Trace),
    /// Experiments that start brokers of their own.
    Lab(lab::Lab),
    /// Check and tune the host; measure a disk.
    Tune(tune::Tune),
    /// Print the files of a partition's log.
    DumpLog(dump_log::DumpLog),
}

/// What a command fails with: one line for a person.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Parses the command line and runs what it asks for.
pub fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Format(format) => format.run(),
        Command::Topics(topics) => topics.run(),
        Command::Configs(configs) => configs.run(),
        Command::Produce(produce) => produce.run(),
        Command::Consume(consume) => consume.run(),
        Command::Groups(groups) => groups.run(),
        Command::Quorum(quorum) => quorum.run(),
        Command::Reassign(reassign) => reassign.run(),
        Command::LogDirs(log_dirs) => log_dirs.run(),
        Command::Elect(elect) => elect.run(),
        Command::Cluster(cluster) => cluster.run(),
        Command::Bench(bench) => bench.run(),
        Command::Trace(trace) => trace.run(),
        Command::Lab(lab) => lab.run(),
        Command::Tune(tune) => tune.run(),
        Command::DumpLog(dump) => dump.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough, as in `| head`.
        Err(failure) if is_broken_pipe(&failure) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("highwater: {}", failure.to_string().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

/// The text of a file that the command line names.
fn read_file(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Writes a command's whole output.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn is_broken_pipe(failure: &Failure) -> bool {
    failure
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
