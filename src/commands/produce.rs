//! `highwater produce`: the lines of standard input as records.
//!
//! Lines are read off the executor, in whatever pieces come, so that a line typed by hand is sent
//! at once. The fates of the records are awaited beside the reading, in order; the first failure
//! ends the command.

use std::io::{self, BufRead, BufReader, Read, Stdin};
use std::time::Duration;

use clap::Args;

use super::acks::AcksName;
use super::bootstrap::Bootstrap;
use super::key_value::key_value;
use super::{Failure, print, run};
use crate::client::{Acks, Delivery, Producer, ProducerConfig, ProducerRecord};
use crate::rt::sync::queue;
use crate::rt::{self, Either2};
use crate::wire::Str;
use crate::wire::codec::Codec;

/// Records whose fate is not known yet: as many as a small batch budget holds anyway.
const UNSETTLED_MAX: usize = 100_000;
/// Lines that are taken from the input at once.
const LINES_AT_ONCE: usize = 1_000;
/// A longer line is refused before it fills the memory.
const LINE_BYTES_MAX: u64 = 64 * 1024 * 1024;

#[derive(Args)]
#[command(
    after_help = "Example:\n  printf 'k1:hello\\nk2:world\\n' | highwater produce --bootstrap-server 127.0.0.1:9092 \\\n    --topic orders --key-separator :"
)]
pub struct Produce {
    #[command(flatten)]
    bootstrap: Bootstrap,
    #[arg(long)]
    topic: String,
    /// What parts a line into key and value; without it a line is a value.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    key_separator: Option<String>,
    /// A key or value of this text is null.
    #[arg(long, value_name = "TEXT")]
    null_marker: Option<String>,
    /// Who must have a record before it counts as sent.
    #[arg(long, value_enum, default_value_t = AcksName::All)]
    acks: AcksName,
    /// none, gzip, snappy, lz4 or zstd.
    #[arg(
        long = "compression-type",
        visible_alias = "compression",
        value_name = "CODEC",
        default_value = "none",
        value_parser = codec
    )]
    compression: Codec,
    /// How long a batch waits for more records.
    #[arg(long, value_name = "MS", default_value_t = 5)]
    linger_ms: u64,
    /// Records arrive once and in order; left out: with acks=all.
    #[arg(
        long = "enable-idempotence",
        visible_alias = "idempotence",
        value_name = "BOOL"
    )]
    idempotence: Option<bool>,
    /// A header for every record; may be given several times.
    #[arg(long = "header", value_name = "KEY=VALUE", value_parser = key_value)]
    headers: Vec<(String, String)>,
    /// Print partition@offset of every record.
    #[arg(long)]
    verbose: bool,
}

fn codec(text: &str) -> Result<Codec, String> {
    let names = Codec::ALL.map(Codec::name).join(", ");
    Codec::from_name(text).ok_or_else(|| format!("not one of {names}"))
}

impl Produce {
    pub fn run(self) -> Result<(), Failure> {
        run::run(move || self.send_all())
    }

    fn config(&self) -> ProducerConfig {
        let mut client = self.bootstrap.client_config();
        // Sending to a topic may make it, if the broker lets it.
        client.allow_auto_create_topics = true;
        let linger = Duration::from_millis(self.linger_ms);
        let acks = self.acks.into();
        let defaults = ProducerConfig::default();
        ProducerConfig {
            acks,
            idempotence: self.idempotence.unwrap_or(acks == Acks::All),
            compression: self.compression,
            linger,
            block_max: self.bootstrap.api_timeout(),
            delivery_timeout: defaults
                .delivery_timeout
                .max(linger + client.request_timeout),
            client,
            ..defaults
        }
    }

    async fn send_all(self) -> Result<(), Failure> {
        let producer = Producer::connect(self.config()).await?;
        let (sent, fates) = queue::bounded(UNSETTLED_MAX);
        let mut settling = rt::spawn(settle(fates, self.verbose));
        let sending = Box::pin(self.send_lines(&producer, sent));
        // A record that failed is told at once, whatever the input is waiting for.
        let result = match rt::select2(&mut settling, sending).await {
            Either2::First(settled) => settled,
            Either2::Second(Ok(())) => {
                producer.flush().await;
                settling.await
            }
            // The fate of a record that was sent before says more.
            Either2::Second(Err(failure)) => {
                producer.flush().await;
                settling.await.and(Err(failure))
            }
        };
        producer.close(Duration::ZERO).await;
        result
    }

    async fn send_lines(
        &self,
        producer: &Producer,
        sent: queue::Sender<Delivery>,
    ) -> Result<(), Failure> {
        let topic = Str::from(self.topic.as_str());
        let mut input = Input {
            reader: BufReader::new(io::stdin()),
            ended: false,
        };
        let mut number = 0_u64;
        while !input.ended {
            let lines;
            (input, lines) = rt::blocking(move || {
                let lines = input.next_lines();
                (input, lines)
            })
            .await;
            for line in lines? {
                number += 1;
                let record = self.record(&topic, line, number)?;
                let delivery = producer.send(record).await?;
                if sent.send(delivery).await.is_err() {
                    // The other side has failed and says so.
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn record(&self, topic: &Str, line: Vec<u8>, number: u64) -> Result<ProducerRecord, Failure> {
        let (key, value) = match &self.key_separator {
            None => (None, line),
            Some(separator) => {
                let (key, value) = split(&line, separator.as_bytes())
                    .ok_or_else(|| format!("no key separator in line {number}"))?;
                (Some(key.to_vec()), value.to_vec())
            }
        };
        let is_null = |bytes: &Vec<u8>| {
            self.null_marker
                .as_ref()
                .is_some_and(|marker| marker.as_bytes() == bytes)
        };
        let headers = self.headers.iter().map(|(key, value)| {
            (
                Str::from(key.as_str()),
                Some(bytes::Bytes::copy_from_slice(value.as_bytes())),
            )
        });
        Ok(ProducerRecord {
            topic: topic.clone(),
            key: key.filter(|key| !is_null(key)).map(Into::into),
            value: Some(value).filter(|value| !is_null(value)).map(Into::into),
            headers: headers.collect(),
            ..ProducerRecord::default()
        })
    }
}

/// Waits for the records' fates in the order in which they were sent.
async fn settle(mut fates: queue::Receiver<Delivery>, verbose: bool) -> Result<(), Failure> {
    while let Some(delivery) = fates.recv().await {
        let record = delivery.await?;
        if verbose {
            let offset = record
                .offset
                .map_or_else(|| "-".to_owned(), |offset| offset.to_string());
            print(&format!("{}@{offset}\n", record.partition))?;
        }
    }
    Ok(())
}

/// What comes before and after the first `separator`.
fn split<'a>(line: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = line
        .windows(separator.len())
        .position(|window| window == separator)?;
    Some((&line[..at], &line[at + separator.len()..]))
}

/// The input and whether it has come to its end.
struct Input {
    reader: BufReader<Stdin>,
    ended: bool,
}

impl Input {
    /// Waits for one line and takes those that came with it. Line ends are left out.
    fn next_lines(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut lines = Vec::new();
        while lines.len() < LINES_AT_ONCE {
            let mut line = Vec::new();
            (&mut self.reader)
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut line)?;
            if line.last() == Some(&b'\n') {
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
            } else if line.len() as u64 == LINE_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "a line of over {LINE_BYTES_MAX} bytes"
                )));
            } else {
                self.ended = true;
                if line.is_empty() {
                    break;
                }
            }
            lines.push(line);
            // Waiting for more would keep back what is here.
            if self.ended || !self.reader.buffer().contains(&b'\n') {
                break;
            }
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_separator_parts_key_and_value() {
        assert_eq!(split(b"k::v::w", b"::"), Some((&b"k"[..], &b"v::w"[..])));
        assert_eq!(split(b"::", b"::"), Some((&b""[..], &b""[..])));
        assert_eq!(split(b"k:v", b"::"), None);
        assert_eq!(split(b"", b":"), None);
    }
}
