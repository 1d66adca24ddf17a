//! Owns what a host is wanted for: the profile, and what the broker's settings ask of the host.
//! Plain values.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;

use super::host::{Host, cpu_list};

/// What the broker is wanted to be best at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Short and even answers.
    Latency,
    /// Most bytes a second.
    Throughput,
    /// Every acknowledged record is on the device.
    Durable,
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Profile, String> {
        match text {
            "latency" => Ok(Profile::Latency),
            "throughput" => Ok(Profile::Throughput),
            "durable" => Ok(Profile::Durable),
            _ => Err("expected latency, throughput or durable".to_owned()),
        }
    }
}

/// What the checks judge by.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub profile: Profile,
    pub shards: usize,
    /// Absolute, links followed where they exist.
    pub log_dirs: Vec<PathBuf>,
}

impl Wanted {
    /// Rings of the process: one executor a shard, and control.
    pub fn executors(&self) -> usize {
        self.shards.saturating_add(1)
    }

    /// Cores the process may use, from the kernel's word on it.
    pub fn allowed_cpus(host: &Host) -> Vec<usize> {
        let status = host.of_process("status").unwrap_or_default();
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        cpu_list(list.unwrap_or_default())
    }

    /// The cores that the shards are pinned to: the first ones allowed; none if there are fewer
    /// than shards, for then nothing is pinned.
    pub fn shard_cpus(&self, host: &Host) -> Vec<usize> {
        let allowed = Wanted::allowed_cpus(host);
        match self.shards <= allowed.len() {
            true => allowed[..self.shards].to_vec(),
            false => Vec::new(),
        }
    }
}
