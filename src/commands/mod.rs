//! The commands of the `highwater` binary, one file each. They run on the main thread and talk to
//! brokers as any client does. A command that fails says why in one line and exits non-zero.

mod serve;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "highwater", version, about = "A broker that speaks the Apache Kafka protocol")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a broker.
    Serve(serve::Serve),
}

/// What a command fails with: one line for a person.
type Failure = Box<dyn std::error::Error>;

/// Parses the command line and runs what it asks for.
pub fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("highwater: {failure}");
            ExitCode::FAILURE
        }
    }
}
