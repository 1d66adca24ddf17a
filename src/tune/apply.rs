//! Owns changing a host and changing it back: which of the findings' changes are made, and the
//! revert file that says what was there before. Nothing it does outlives a boot.
//!
//! A change stands in the revert file before it is made, so that one that was made and not noted
//! does not exist. Changes are taken back the last one first, and only where the value is still the
//! one that was left.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::finding::{Change, Finding};
use super::host::{Host, choices, is_setting};

/// Name and version of the revert file.
pub const SCHEMA: &str = "highwater.tune.revert/1";

/// Where the revert file lies if nobody says otherwise: gone with a boot, as the changes are.
pub const REVERT_FILE: &str = "/run/highwater/tune-revert.json";

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
struct Revert {
    schema: String,
    changes: Vec<Made>,
}

/// A change that was made.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Made {
    path: String,
    before: String,
    /// What the kernel said after it; unknown if the process ended in between.
    after: Option<String>,
}

/// What became of one change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub path: String,
    pub from: String,
    pub to: String,
    /// Why it was not made.
    pub failure: Option<String>,
}

/// The changes that `findings` ask for; those of interrupts only where asked for.
pub fn changes(findings: &[Finding], interrupts: bool) -> Vec<Change> {
    let all = findings.iter().flat_map(|finding| &finding.changes);
    all.filter(|change| interrupts || !change.interrupt)
        .cloned()
        .collect()
}

/// The value of a setting as it can be written again.
fn value(host: &Host, path: &str) -> Result<String, String> {
    let text = host
        .read(path)
        .map_err(|why| why.told("no such setting any more"))?;
    let (chosen, _) = choices(&text);
    let plain = || text.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(chosen.map_or_else(plain, str::to_owned))
}

/// Makes the changes one after the other; a failed one is told and the others go on.
///
/// # Errors
/// The revert file cannot be written: then no further change is made.
pub fn apply(host: &Host, changes: &[Change], file: &Path) -> io::Result<Vec<Outcome>> {
    let mut revert = match fs::read(file) {
        Ok(bytes) => parse(&bytes, file)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Revert {
            schema: SCHEMA.to_owned(),
            changes: Vec::new(),
        },
        Err(error) => return Err(error),
    };
    let mut outcomes = Vec::new();
    for change in changes {
        let mut outcome = Outcome {
            path: change.path.clone(),
            from: change.from.clone(),
            to: change.to.clone(),
            failure: None,
        };
        let before = match value(host, &change.path) {
            Ok(before) => before,
            Err(why) => {
                outcome.failure = Some(why);
                outcomes.push(outcome);
                continue;
            }
        };
        revert.changes.push(Made {
            path: change.path.clone(),
            before: before.clone(),
            after: None,
        });
        write(file, &revert)?;
        let written = host.write(&change.path, &change.to);
        let after = value(host, &change.path);
        let failure = match (&written, &after) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(()), Err(why)) => Some(why.clone()),
            (Ok(()), Ok(after)) if *after == before && before != change.to => {
                Some("the kernel took the write and changed nothing".to_owned())
            }
            (Ok(()), Ok(_)) => None,
        };
        let untouched = after.as_ref().is_ok_and(|after| *after == before);
        if untouched {
            revert.changes.pop();
        } else if let Some(made) = revert.changes.last_mut() {
            made.after = after.ok();
        }
        write(file, &revert)?;
        outcome.failure = failure;
        outcomes.push(outcome);
    }
    if revert.changes.is_empty() {
        remove(file)?;
    }
    Ok(outcomes)
}

/// Takes back what the revert file tells. What cannot be taken back stays in it.
///
/// # Errors
/// There is no such file, or it is not one of ours.
pub fn revert(host: &Host, file: &Path) -> io::Result<Vec<Outcome>> {
    let mut told = parse(&fs::read(file)?, file)?;
    let mut outcomes = Vec::new();
    let mut left = Vec::new();
    while let Some(made) = told.changes.pop() {
        let now = value(host, &made.path);
        let mut outcome = Outcome {
            path: made.path.clone(),
            from: now.clone().unwrap_or_default(),
            to: made.before.clone(),
            failure: None,
        };
        outcome.failure = match (&now, &made.after) {
            (Err(why), _) => Some(why.clone()),
            (Ok(now), _) if *now == made.before => None,
            (Ok(now), Some(after)) if now != after => Some(format!(
                "it is {now} and not {after} as it was left: somebody else has changed it"
            )),
            (Ok(_), _) => take_back(host, &made),
        };
        if outcome.failure.is_some() {
            left.push(made);
        }
        outcomes.push(outcome);
    }
    left.reverse();
    match left.is_empty() {
        true => remove(file)?,
        false => write(
            file,
            &Revert {
                changes: left,
                ..told
            },
        )?,
    }
    Ok(outcomes)
}

/// Why it failed, if it did.
fn take_back(host: &Host, made: &Made) -> Option<String> {
    if let Err(error) = host.write(&made.path, &made.before) {
        return Some(error.to_string());
    }
    match value(host, &made.path) {
        Ok(now) if now == made.before => None,
        Ok(now) => Some(format!("it is {now} after the write")),
        Err(why) => Some(why),
    }
}

fn parse(bytes: &[u8], file: &Path) -> io::Result<Revert> {
    let bad = |what: String| {
        let text = format!("{}: {what}", file.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    let revert: Revert =
        serde_json::from_slice(bytes).map_err(|error| bad(format!("no revert file: {error}")))?;
    if revert.schema != SCHEMA {
        return Err(bad(format!("a revert file of '{}'", revert.schema)));
    }
    let foreign = revert.changes.iter().find(|made| !is_setting(&made.path));
    match foreign {
        Some(made) => Err(bad(format!("{} is no setting of the kernel", made.path))),
        None => Ok(revert),
    }
}

/// Replaces the file; a crash leaves the old or the new one.
fn write(file: &Path, revert: &Revert) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    let beside = file.with_extension("tmp");
    let mut out = fs::File::create(&beside)?;
    out.write_all(serde_json::to_string_pretty(revert)?.as_bytes())?;
    out.write_all(b"\n")?;
    out.sync_all()?;
    fs::rename(beside, file)
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, from: &str, to: &str) -> Change {
        Change {
            path: path.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            interrupt: false,
        }
    }

    fn host() -> (tempfile::TempDir, Host) {
        let home = tempfile::tempdir().unwrap();
        let vm = home.path().join("proc/sys/vm");
        fs::create_dir_all(&vm).unwrap();
        fs::write(vm.join("swappiness"), "60\n").unwrap();
        fs::write(vm.join("dirty_ratio"), "20\n").unwrap();
        let host = Host::under(home.path());
        (home, host)
    }

    const SWAPPINESS: &str = "/proc/sys/vm/swappiness";
    const DIRTY: &str = "/proc/sys/vm/dirty_ratio";

    #[test]
    fn what_was_changed_is_put_back_exactly_also_over_two_rounds() {
        let (home, host) = host();
        let file = home.path().join("run/revert.json");
        let made = apply(&host, &[change(SWAPPINESS, "60", "10")], &file).unwrap();
        assert_eq!(made[0].failure, None);
        let again = [change(SWAPPINESS, "10", "1"), change(DIRTY, "20", "40")];
        apply(&host, &again, &file).unwrap();
        assert_eq!(host.read(SWAPPINESS).unwrap(), "1");
        let back = revert(&host, &file).unwrap();
        assert_eq!(back.len(), 3);
        assert!(back.iter().all(|outcome| outcome.failure.is_none()));
        assert_eq!(host.read(SWAPPINESS).unwrap(), "60");
        assert_eq!(host.read(DIRTY).unwrap(), "20");
        assert!(!file.exists());
        assert!(revert(&host, &file).is_err(), "there is nothing left");
    }

    #[test]
    fn a_failed_write_is_told_and_the_others_go_on() {
        let (home, host) = host();
        let file = home.path().join("revert.json");
        let wanted = [
            change("/proc/sys/vm/absent", "1", "2"),
            change("/etc/passwd", "1", "2"),
            change(DIRTY, "20", "40"),
        ];
        fs::create_dir_all(home.path().join("etc")).unwrap();
        fs::write(home.path().join("etc/passwd"), "root").unwrap();
        let made = apply(&host, &wanted, &file).unwrap();
        assert!(made[0].failure.is_some() && made[1].failure.is_some());
        assert_eq!(made[2].failure, None);
        assert_eq!(host.read("/etc/passwd").unwrap(), "root");
        assert_eq!(revert(&host, &file).unwrap().len(), 1);
        assert_eq!(host.read(DIRTY).unwrap(), "20");
    }

    #[test]
    fn what_somebody_else_changed_meanwhile_is_left_and_kept_in_the_file() {
        let (home, host) = host();
        let file = home.path().join("revert.json");
        let wanted = [change(SWAPPINESS, "60", "1"), change(DIRTY, "20", "40")];
        apply(&host, &wanted, &file).unwrap();
        host.write(SWAPPINESS, "33").unwrap();
        let back = revert(&host, &file).unwrap();
        let failed: Vec<_> = back.iter().filter(|o| o.failure.is_some()).collect();
        assert_eq!(failed.len(), 1);
        assert_eq!(host.read(SWAPPINESS).unwrap(), "33");
        assert_eq!(host.read(DIRTY).unwrap(), "20");
        assert!(file.exists());
        host.write(SWAPPINESS, "1").unwrap();
        assert!(revert(&host, &file).unwrap()[0].failure.is_none());
        assert!(!file.exists());
    }

    #[test]
    fn a_file_that_is_not_ours_changes_nothing() {
        let (home, host) = host();
        let file = home.path().join("revert.json");
        let evil = r#"{"schema":"highwater.tune.revert/1","changes":[{"path":"/sys/../etc/x","before":"1","after":null}]}"#;
        for text in ["", "garbage", r#"{"schema":"other","changes":[]}"#, evil] {
            fs::write(&file, text).unwrap();
            assert!(revert(&host, &file).is_err(), "{text}");
            assert!(apply(&host, &[change(DIRTY, "20", "40")], &file).is_err());
            assert_eq!(host.read(DIRTY).unwrap(), "20");
        }
    }
}
