//! `--isolation-level` as the command line spells it, for every command that reads records.

use crate::client::Isolation;
use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsolationName {
    #[value(name = "read_uncommitted")]
    ReadUncommitted,
    #[value(name = "read_committed")]
    ReadCommitted,
}

impl From<IsolationName> for Isolation {
    fn from(name: IsolationName) -> Isolation {
        match name {
            IsolationName::ReadUncommitted => Isolation::ReadUncommitted,
            IsolationName::ReadCommitted => Isolation::ReadCommitted,
        }
    }
}
