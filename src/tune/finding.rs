//! Owns what a check says: found, wanted, why, and how to change it. Plain values.

use serde::Serialize;

use super::host::Unseen;

/// How good what was found is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Good,
    /// Cannot be seen from here; the finding says why.
    Unseen,
    /// Could be better.
    Advice,
    /// The broker fails, stalls or loses data by it.
    Problem,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Unseen => "unseen",
            State::Advice => "advice",
            State::Problem => "problem",
        }
    }
}

/// A write into a file of the kernel that changes a setting until the next boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub path: String,
    pub from: String,
    pub to: String,
    /// Moves an interrupt: only made where that was asked for.
    pub interrupt: bool,
}

/// What one check says of one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    /// A device, directory, interface; empty where there is only one.
    pub subject: String,
    pub state: State,
    pub found: String,
    pub wanted: String,
    pub why: String,
    /// Commands that change it, and those that change it back.
    pub set: Vec<String>,
    pub set_back: Vec<String>,
    /// What `--apply` writes: only what can be taken back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

impl Finding {
    pub fn new(check: &'static str, subject: impl Into<String>) -> Finding {
        Finding {
            check,
            subject: subject.into(),
            state: State::Good,
            found: String::new(),
            wanted: String::new(),
            why: String::new(),
            set: Vec::new(),
            set_back: Vec::new(),
            changes: Vec::new(),
        }
    }

    pub fn found(mut self, found: impl Into<String>) -> Finding {
        self.found = found.into();
        self
    }

    pub fn wanted(mut self, wanted: impl Into<String>) -> Finding {
        self.wanted = wanted.into();
        self
    }

    pub fn why(mut self, why: impl Into<String>) -> Finding {
        self.why = why.into();
        self
    }

    /// `state`, unless what was found is good.
    pub fn judged(mut self, good: bool, state: State) -> Finding {
        self.state = if good { State::Good } else { state };
        self
    }

    /// Cannot be seen; `absent` is the reason where the file is not there.
    pub fn unseen(mut self, why: &Unseen, absent: &str) -> Finding {
        self.state = State::Unseen;
        self.found = why.told(absent);
        self
    }

    /// Commands for a person, and back.
    pub fn command(mut self, set: impl Into<String>, back: impl Into<String>) -> Finding {
        if self.state != State::Good {
            self.set.push(set.into());
            self.set_back.push(back.into());
        }
        self
    }

    /// A write that `--apply` may make, with the commands for it. Nothing where all is good.
    pub fn change(mut self, path: &str, from: &str, to: &str) -> Finding {
        if self.state == State::Good || self.state == State::Unseen {
            return self;
        }
        self.set.push(command(path, to));
        self.set_back.push(command(path, from));
        self.changes.push(Change {
            path: path.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            interrupt: path.starts_with("/proc/irq/"),
        });
        self
    }
}

/// The command that writes a setting.
fn command(path: &str, value: &str) -> String {
    match path.strip_prefix("/proc/sys/") {
        Some(name) if value.contains(char::is_whitespace) => {
            format!("sysctl -w {}='{value}'", name.replace('/', "."))
        }
        Some(name) => format!("sysctl -w {}={value}", name.replace('/', ".")),
        None => format!("echo {value} > {path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_tells_its_commands_and_a_good_finding_has_none() {
        let bad = Finding::new("swappiness", "").judged(false, State::Advice);
        let bad = bad.change("/proc/sys/vm/swappiness", "60", "1");
        assert_eq!(bad.set, vec!["sysctl -w vm.swappiness=1"]);
        assert_eq!(bad.set_back, vec!["sysctl -w vm.swappiness=60"]);
        assert_eq!(bad.changes.len(), 1);
        let good = Finding::new("swappiness", "").judged(true, State::Advice);
        let good = good.change("/proc/sys/vm/swappiness", "1", "1");
        assert!(good.set.is_empty() && good.changes.is_empty());
    }
}
