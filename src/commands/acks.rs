//! `--acks` as the command line spells it, for every command that sends records.

use crate::client::Acks;
use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AcksName {
    /// Nobody answers; a latency ends when the request is handed to the socket.
    #[value(name = "0")]
    None,
    /// The leader.
    #[value(name = "1")]
    Leader,
    /// Every replica in sync.
    #[value(name = "all", alias = "-1")]
    All,
}

impl From<AcksName> for Acks {
    fn from(name: AcksName) -> Acks {
        match name {
            AcksName::None => Acks::None,
            AcksName::Leader => Acks::Leader,
            AcksName::All => Acks::All,
        }
    }
}
