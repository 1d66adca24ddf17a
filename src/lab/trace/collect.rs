//! Hops out of the logs of brokers and out of this process. Threads of the command read; whoever
//! tells the story takes what has come so far.

use crate::observe::hop::{Hop, TARGET};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// A trace of one record has some dozens; a busy cluster that is listened to has any number.
const HOPS_MAX: usize = 1_000_000;
/// How often the end of a log file is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// All hops that have been told of; clones share them.
#[derive(Clone, Default)]
pub struct Hops(Arc<Mutex<Vec<Hop>>>);

impl Hops {
    pub fn push(&self, hop: Hop) {
        let mut hops = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What comes last is what the story ends with: that one is then told to be incomplete.
        if hops.len() < HOPS_MAX {
            hops.push(hop);
        }
    }

    /// All of them in the order of their times, a line of JSON each.
    pub fn lines(&self) -> String {
        let mut hops = self.so_far();
        hops.sort_by_key(|hop| (hop.at, hop.what));
        hops.iter()
            .map(|hop| format!("{}\n", hop.fields()))
            .collect()
    }

    /// What has come so far.
    pub fn so_far(&self) -> Vec<Hop> {
        let hops = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hops.clone()
    }

    /// Reads a broker's log to its end: hops come here, all other lines go to `rest`.
    pub(super) fn read_log(&self, log: impl Read, mut rest: impl Write) {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            match parse(&line) {
                Some(hop) => self.push(hop),
                // Only for whoever looks for a failure's cause.
                None => drop(writeln!(rest, "{line}")),
            }
        }
    }
}

/// A line of a JSON log as a hop; `None` if it is another line.
fn parse(line: &str) -> Option<Hop> {
    if !line.contains(TARGET) {
        return None;
    }
    let line: Value = serde_json::from_str(line).ok()?;
    match line.get("target")?.as_str()? {
        TARGET => Hop::read(line.get("fields")?.as_object()?),
        _ => None,
    }
}

/// Takes the hops that a broker writes into its log file from now on.
///
/// # Errors
/// The file cannot be read.
pub fn follow_file(path: &Path, hops: Hops) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(0))?;
    // It ends with the process.
    std::thread::spawn(move || {
        let mut reader = BufReader::new(file);
        let mut line = String::new();
        loop {
            match reader.read_line(&mut line) {
                Ok(0) => std::thread::sleep(LOOK),
                // A line that is still being written goes on at the next look.
                Ok(_) if !line.ends_with('\n') => {}
                Ok(_) => {
                    parse(&line).into_iter().for_each(|hop| hops.push(hop));
                    line.clear();
                }
                Err(_) => return,
            }
        }
    });
    Ok(())
}

/// Takes the hops of this process.
pub fn collect_here(hops: Hops) {
    let targets = Targets::new().with_target(TARGET, tracing::Level::TRACE);
    let here = Here(hops).with_filter(targets);
    // Logging that was set up before (in a test) stays.
    let _ = tracing_subscriber::registry().with(here).try_init();
}

struct Here(Hops);

impl<S: Subscriber> Layer<S> for Here {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        Hop::read(&fields.0)
            .into_iter()
            .for_each(|hop| self.0.push(hop));
    }
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        self.0.insert(field.name().to_owned(), text.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::hop::{self, What};
    use crate::rt::Instant;
    use std::io;
    use tracing_subscriber::fmt;

    /// What a broker with `highwater.log.format=json` writes.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn hop() -> Hop {
        Hop {
            node: 3,
            shard: 1,
            ..Hop::new(What::FetchAnswered, "a \"topic\"", 4)
        }
        .at(Instant(u64::MAX / 2))
        .peer(2)
        .offset(7)
        .log(9, 8)
        .bytes(70)
    }

    #[test]
    fn a_hop_that_is_written_to_a_log_is_read_again_and_nothing_else_is_taken_for_one() {
        let lines = Lines::default();
        let writer = lines.clone();
        let json = fmt::layer()
            .with_writer(move || writer.clone())
            .json()
            .with_filter(Targets::new().with_default(tracing::Level::TRACE));
        let here = Hops::default();
        let logged = tracing_subscriber::registry()
            .with(json)
            .with(Here(here.clone()));
        tracing::subscriber::with_default(logged, || {
            tracing::warn!("{TARGET} is only named here");
            hop::record(hop);
            tracing::warn!(target: TARGET, "no hop");
        });
        let text = lines.0.lock().unwrap().clone();
        let (hops, mut rest) = (Hops::default(), Vec::new());
        hops.read_log(&text[..], &mut rest);
        assert_eq!(hops.so_far(), [hop()]);
        assert_eq!(here.so_far(), [hop()]);
        let line: Value = serde_json::from_str(&here.lines()).unwrap();
        assert_eq!(Hop::read(line.as_object().unwrap()), Some(hop()));
        assert_eq!(String::from_utf8(rest).unwrap().lines().count(), 2);
    }

    #[test]
    fn nobody_makes_a_hop_that_nobody_listens_to() {
        tracing::subscriber::with_default(
            tracing_subscriber::registry()
                .with(fmt::layer().with_filter(Targets::new().with_default(tracing::Level::INFO))),
            || hop::record(|| panic!("made for nobody")),
        );
    }

    #[test]
    fn a_file_is_followed_from_its_end_and_half_a_line_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let line = |offset: i64| {
            format!(
                r#"{{"target":"{TARGET}","fields":{{"what":"leader_append","at_ns":1,"node":1,"shard":0,"topic":"t","partition":0,"peer":-1,"offset":{offset},"log_end":1,"high_watermark":0,"bytes":-1}}}}"#
            )
        };
        std::fs::write(&path, line(0) + "\n").unwrap();
        let hops = Hops::default();
        follow_file(&path, hops.clone()).unwrap();
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        let text = line(5) + "\n";
        let (first, second) = text.split_at(40);
        file.write_all(first.as_bytes()).unwrap();
        std::thread::sleep(3 * LOOK);
        assert_eq!(hops.so_far(), []);
        file.write_all(second.as_bytes()).unwrap();
        while hops.so_far().is_empty() {
            std::thread::sleep(LOOK);
        }
        let offsets: Vec<i64> = hops.so_far().iter().map(|hop| hop.offset).collect();
        assert_eq!(offsets, [5]);
    }
}
