//! What `highwater tune disk` measured of a device, as defaults for the limits that the device
//! decides. A property file with a format and a closed set of keys; read once at start. Whatever is
//! set otherwise wins over it.

use super::broker::ConfigError;
use super::broker_table::broker_definition;
use super::definition::check;
use super::properties::{self, Origin, Property};
use std::io::Read;
use std::path::PathBuf;

/// The setting that names the file.
pub const KEY: &str = "highwater.disk.profile";
/// The first key of a profile, and its value.
pub const FORMAT_KEY: &str = "profile.format";
pub const FORMAT: &str = "highwater.disk/1";
/// Keys that begin so tell what was measured; the broker does not read them.
pub const MEASURED: &str = "measured.";

/// The settings that a profile may give, by name.
pub const LIMITS: [&str; 8] = [
    "highwater.cold.read.bytes.beside.flushes",
    "highwater.cold.reads.in.flight",
    "highwater.direct.writes.in.flight",
    "highwater.flush.segments.in.flight",
    "highwater.journal.log.bytes",
    "highwater.journal.logs.min",
    "highwater.write.bytes",
    "log.cleaner.io.max.bytes.per.second",
];

/// Most of a file that is read: a profile has some hundred lines.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Adds the limits of the profile that `properties` name, where they do not set them themselves.
///
/// # Errors
/// The file is not there, or is no profile; with file and line.
pub fn add(properties: &mut Vec<Property>) -> Result<(), ConfigError> {
    let named = properties.iter().rev().find(|property| property.key == KEY);
    let Some(name) = named.map(|property| property.value.trim().to_owned()) else {
        return Ok(());
    };
    if name.is_empty() {
        return Ok(());
    }
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(&name)?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|source| ConfigError::Unreadable {
        path: PathBuf::from(&name),
        source,
    })?;
    // Bytes that are no text are no key either; the error shall tell the line.
    let limits = parse(&name, &String::from_utf8_lossy(&bytes))?;
    for limit in limits {
        if !properties.iter().any(|property| property.key == limit.key) {
            properties.push(limit);
        }
    }
    Ok(())
}

/// The limits of a profile's text.
///
/// # Errors
/// It is no profile of a format known here, with the first line that is wrong.
pub fn parse(name: &str, text: &str) -> Result<Vec<Property>, ConfigError> {
    let bad = |origin: Origin, what: String| ConfigError::BadValue { origin, what };
    let found = properties::parse(name, text)?;
    let Some(first) = found.first() else {
        let origin = Origin::File {
            name: name.to_owned(),
            line: 1,
        };
        return Err(bad(
            origin,
            format!("no disk profile: {FORMAT_KEY} is missing"),
        ));
    };
    if first.key != FORMAT_KEY || first.value != FORMAT {
        let what = format!("no disk profile: expected {FORMAT_KEY}={FORMAT} first");
        return Err(bad(first.origin.clone(), what));
    }
    let mut limits = Vec::new();
    for property in found.into_iter().skip(1) {
        let Property { key, value, origin } = &property;
        if key.starts_with(MEASURED) {
            continue;
        }
        let definition = broker_definition(key).filter(|_| LIMITS.contains(&key.as_str()));
        let Some(definition) = definition else {
            let what = format!("'{key}' is no limit that a disk profile may set");
            return Err(bad(origin.clone(), what));
        };
        check(key, definition.kind, value).map_err(|why| bad(origin.clone(), why.to_string()))?;
        limits.push(property);
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::super::BrokerConfig;
    use super::*;
    use crate::log::ShardLimits;

    #[test]
    fn every_limit_is_a_setting_with_a_default_that_passes() {
        let mut sorted = LIMITS;
        sorted.sort_unstable();
        assert_eq!(sorted, LIMITS);
        for name in LIMITS {
            let definition = broker_definition(name).unwrap();
            check(name, definition.kind, definition.default.unwrap()).unwrap();
        }
    }

    #[test]
    fn without_a_profile_the_settings_are_the_defaults_of_the_log() {
        let config = BrokerConfig::load(None, &[]).unwrap();
        let limits = ShardLimits::default();
        assert_eq!(config.journal_logs_min, limits.flushes.journal_logs_min);
        assert_eq!(
            config.journal_log_bytes,
            limits.flushes.journal_log_bytes_max
        );
        let flushes = limits.flushes.segments_in_flight_max;
        assert_eq!(config.flush_segments_in_flight, flushes);
        assert_eq!(config.direct_writes_in_flight, limits.writes.in_flight_max);
        assert_eq!(config.write_bytes, limits.writes.merged_bytes_max);
        assert_eq!(config.cold_reads_in_flight, limits.cold_reads.in_flight_max);
        let beside = limits.cold_reads.bytes_beside_flushes;
        assert_eq!(config.cold_read_bytes_beside_flushes, beside);
    }

    #[test]
    fn a_profile_gives_defaults_and_what_is_set_wins() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("disk.properties");
        let text = "profile.format=highwater.disk/1\nmeasured.x=1\nhighwater.journal.logs.min=7\nhighwater.direct.writes.in.flight=9\nlog.cleaner.io.max.bytes.per.second=1000000\n";
        std::fs::write(&file, text).unwrap();
        let sets = [
            format!("{KEY}={}", file.display()),
            "highwater.direct.writes.in.flight=2".to_owned(),
        ];
        let config = BrokerConfig::load(None, &sets).unwrap();
        assert_eq!(config.journal_logs_min, 7);
        assert_eq!(config.direct_writes_in_flight, 2);
        assert_eq!(config.cold_reads_in_flight, 2, "the default of all");
        let rate = config.value("log.cleaner.io.max.bytes.per.second");
        assert_eq!(rate, Some("1000000"));
        let of_profile: Vec<&str> = config.of_disk_profile().map(|p| p.key.as_str()).collect();
        assert_eq!(
            of_profile,
            vec![
                "highwater.journal.logs.min",
                "log.cleaner.io.max.bytes.per.second"
            ]
        );
    }

    #[test]
    fn what_is_no_profile_is_refused_with_its_line() {
        let format = "profile.format=highwater.disk/1\n";
        for (text, told) in [
            (String::new(), "p:1: no disk profile"),
            ("\u{fffd}\u{0}\u{1}".into(), "p:1: no disk profile"),
            (
                "# x\nprofile.format=highwater.disk/2\n".into(),
                "p:2: no disk profile",
            ),
            (
                format!("{format}log.dirs=/\n"),
                "p:2: 'log.dirs' is no limit",
            ),
            (
                format!("{format}\nhighwater.journal.logs.min=0\n"),
                "p:3: Invalid value 0",
            ),
            (
                format!("{format}highwater.write.bytes=many\n"),
                "p:2: Invalid value many",
            ),
            (format!("{format}=x\n"), "p:2: a line without a key"),
        ] {
            let error = parse("p", &text).unwrap_err().to_string();
            assert!(error.starts_with(told), "{error}");
        }
        let missing = [format!("{KEY}=/nowhere/at/all")];
        let error = BrokerConfig::load(None, &missing).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/at/all: "), "{error}");
    }
}
