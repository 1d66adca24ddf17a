//! What brokers count themselves and only they can: flush rounds. Runs on the main thread; asks over
//! plain sockets.

use crate::lab::nodes::Nodes;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A broker that does not answer a scrape for so long is not asked any more.
const PATIENCE: Duration = Duration::from_secs(10);
/// A scrape that is larger is none of ours.
const PAGE_MAX: u64 = 16 << 20;

/// Flush rounds of all brokers so far; none where they do not count them.
///
/// # Errors
/// A broker does not answer its scrape.
pub fn flush_rounds(nodes: &Nodes) -> io::Result<Option<u64>> {
    let endpoints = nodes.metrics();
    let mut rounds = 0;
    for endpoint in &endpoints {
        rounds += sum_of(&scrape(*endpoint)?, "highwater_log_flush_rounds_total");
    }
    Ok((!endpoints.is_empty()).then_some(rounds))
}

/// A broker's metrics page.
fn scrape(endpoint: SocketAddr) -> io::Result<String> {
    let asked = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&endpoint, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {endpoint}\r\n\r\n")?;
        let mut page = String::new();
        stream.take(PAGE_MAX).read_to_string(&mut page)?;
        Ok(page)
    };
    asked().map_err(|error| io::Error::new(error.kind(), format!("metrics of {endpoint}: {error}")))
}

/// The sum of a counter over its labels.
fn sum_of(page: &str, counter: &str) -> u64 {
    let lines = page.lines().filter_map(|line| line.strip_prefix(counter));
    let values = lines.filter(|rest| rest.starts_with(['{', ' ']));
    let values = values.filter_map(|rest| rest.rsplit(' ').next()?.parse::<u64>().ok());
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_summed_over_its_shards_and_not_taken_for_a_longer_name() {
        let page = "# TYPE rounds counter\nrounds_total{shard=\"0\"} 12\nrounds_total{shard=\"1\"} 30\nrounds_total_time{shard=\"0\"} 7\n";
        assert_eq!(sum_of(page, "rounds_total"), 42);
        assert_eq!(sum_of(page, "missing_total"), 0);
    }
}
