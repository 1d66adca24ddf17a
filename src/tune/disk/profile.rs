//! Owns the text of a disk profile: limits with their reasons, and the figures behind them. Pure;
//! the reader is `config::disk_profile`.

use super::choose::Limit;
use super::figure::{Figure, Way};
use crate::config::disk_profile::{FORMAT, FORMAT_KEY, MEASURED};

/// What a profile says of where and when it was measured.
pub struct Origin<'a> {
    pub dir: &'a str,
    pub device: &'a str,
    pub kernel: &'a str,
    pub load_average: &'a str,
    pub unix_seconds: u64,
}

/// The file's text.
pub fn text(origin: &Origin<'_>, limits: &[Limit], figures: &[Figure]) -> String {
    let mut text = String::from(
        "# A disk profile, written by `highwater tune disk` and read by a broker with\n\
         # highwater.disk.profile=<this file>. Its limits are defaults: what is set otherwise wins.\n",
    );
    text.push_str(&format!("{FORMAT_KEY}={FORMAT}\n"));
    let facts = [
        ("dir", origin.dir.to_owned()),
        ("device", origin.device.to_owned()),
        ("kernel", origin.kernel.to_owned()),
        ("load.average", origin.load_average.to_owned()),
        ("at.unix.seconds", origin.unix_seconds.to_string()),
    ];
    for (key, value) in facts {
        text.push_str(&format!("{MEASURED}{key}={}\n", escape(&value)));
    }
    for limit in limits {
        text.push_str(&format!(
            "\n# {}\n{}={}\n",
            limit.why, limit.key, limit.value
        ));
    }
    let unsteady = figures.iter().filter(|figure| !figure.is_steady()).count();
    if unsteady > 0 {
        text.push_str(&format!(
            "\n# {unsteady} of {} measurements did not repeat: something else was on the device.\n",
            figures.len()
        ));
    }
    text.push_str("\n# What was measured: bytes a second, spread of the turns, median and 99th percentile in\n# microseconds, operations.\n");
    for figure in figures {
        let way = match figure.way {
            Way::Plain => "plain",
            Way::Ring => "ring",
        };
        let name = figure.words().replace(" + ", ".").replace([' ', ','], ".");
        let name = name.replace("..", ".").to_ascii_lowercase();
        let p99 = figure
            .p99_us
            .map_or("-".to_owned(), |us| format!("{us:.0}"));
        text.push_str(&format!(
            "{MEASURED}{way}.{name}.{}.{}={:.0} {:.2} {:.0} {p99} {}\n",
            figure.bytes,
            figure.depth,
            figure.bytes_per_second,
            figure.spread,
            figure.p50_us,
            figure.operations
        ));
    }
    text
}

/// A value that a property file gives back as it was.
fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::choose;
    use super::*;
    use crate::config::disk_profile;

    #[test]
    fn the_broker_reads_back_every_limit() {
        let figures = choose::tests::fast_device();
        let limits = choose::limits(&figures, false);
        let origin = Origin {
            dir: "/data\\odd\n=x",
            device: "vda",
            kernel: "6.18",
            load_average: "0.1",
            unix_seconds: 1,
        };
        let text = text(&origin, &limits, &figures);
        let read = disk_profile::parse("p", &text).unwrap();
        let read: Vec<(String, String)> = read.into_iter().map(|p| (p.key, p.value)).collect();
        let wrote: Vec<(String, String)> = limits
            .iter()
            .map(|limit| (limit.key.to_owned(), limit.value.to_string()))
            .collect();
        assert_eq!(read, wrote);
    }
}
