//! Owns the look at a host: the texts of its `/proc` and `/sys`, and the writes that change them.
//! Any thread. Everything below reads through it, so that a directory with a made-up `/proc` and
//! `/sys` stands for a host. Never judges what it reads.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Most of a file that is read: `/proc/interrupts` of a large host is some hundred KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Most names of a directory that are looked at: more than the cores or interrupts of any host.
const NAMES_MAX: usize = 8192;

/// A host, by its files.
pub struct Host {
    root: PathBuf,
    /// `self`, or the number of the process whose limits count.
    process: String,
}

/// Why a file of a host says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unseen {
    Absent,
    Unreadable(String),
}

impl Unseen {
    /// In words, `absent` for the file that is not there.
    pub fn told(&self, absent: &str) -> String {
        match self {
            Unseen::Absent => absent.to_owned(),
            Unseen::Unreadable(why) => why.clone(),
        }
    }
}

impl Host {
    /// The host whose `/proc` and `/sys` lie under `root`; `/` is the one we run on.
    pub fn under(root: impl Into<PathBuf>) -> Host {
        Host {
            root: root.into(),
            process: "self".to_owned(),
        }
    }

    /// The same host, seen with the limits of a process that runs already.
    pub fn for_process(self, pid: u32) -> Host {
        Host {
            process: pid.to_string(),
            ..self
        }
    }

    /// Whose limits count.
    pub fn process(&self) -> &str {
        &self.process
    }

    /// A file of the process whose limits count.
    pub fn of_process(&self, file: &str) -> Result<String, Unseen> {
        self.read(&format!("/proc/{}/{file}", self.process))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file, without blanks at its end. What is not UTF-8 is replaced.
    pub fn read(&self, path: &str) -> Result<String, Unseen> {
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            let file = fs::File::open(self.path(path))?;
            file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Unseen::Absent),
            Err(error) => Err(Unseen::Unreadable(format!("{path}: {error}"))),
        }
    }

    /// The number in a file.
    pub fn number(&self, path: &str) -> Result<i64, Unseen> {
        let text = self.read(path)?;
        text.trim()
            .parse()
            .map_err(|_| Unseen::Unreadable(format!("{path} holds no number")))
    }

    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a directory, sorted; none where there is no such directory.
    pub fn names(&self, dir: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(dir)) else {
            return Vec::new();
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.take(NAMES_MAX).collect();
        names.sort();
        names
    }

    /// Where a path leads once links are followed, as a path of the host.
    pub fn followed(&self, path: &str) -> Option<String> {
        let root = fs::canonicalize(&self.root).ok()?;
        let found = fs::canonicalize(self.path(path)).ok()?;
        let inside = found.strip_prefix(root).ok()?;
        Some(format!("/{}", inside.to_str()?))
    }

    /// Writes a value into a file that is there, as `echo` would.
    ///
    /// # Errors
    /// A path outside of [`is_setting`], or the kernel's refusal.
    pub fn write(&self, path: &str, value: &str) -> io::Result<()> {
        if !is_setting(path) {
            let text = format!("{path} is no setting of the kernel");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut file = fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.path(path))?;
        file.write_all(format!("{value}\n").as_bytes())
    }
}

/// Whether a path is one of those that are ever written: a revert file says what to write, and it
/// shall not say anything else.
pub fn is_setting(path: &str) -> bool {
    let below = ["/sys/", "/proc/sys/", "/proc/irq/"];
    let plain = Path::new(path)
        .components()
        .all(|part| part != std::path::Component::ParentDir);
    plain && below.iter().any(|start| path.starts_with(start))
}

/// Cores of a list such as `0-3,8`; what is no such list is left out.
pub fn cpu_list(text: &str) -> Vec<usize> {
    /// More cores than any kernel is built for.
    const CPUS_MAX: usize = 8192;
    let mut cpus = Vec::new();
    for range in text.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (Ok(from), Ok(to)) = (from.trim().parse::<usize>(), to.trim().parse::<usize>()) else {
            continue;
        };
        cpus.extend((from..=to.min(CPUS_MAX)).take(CPUS_MAX));
    }
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// A list such as `0-3,8` of cores in order.
pub fn as_list(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let told = ranges.iter().map(|(from, to)| match from == to {
        true => from.to_string(),
        false => format!("{from}-{to}"),
    });
    told.collect::<Vec<_>>().join(",")
}

/// The mask of cores as the kernel writes it: groups of 32 bits, the highest first.
pub fn as_mask(cpus: &[usize]) -> String {
    let groups = cpus.iter().max().map_or(1, |most| most / 32 + 1);
    let mut words = vec![0u32; groups];
    for cpu in cpus {
        words[cpu / 32] |= 1 << (cpu % 32);
    }
    let mut words = words.iter().rev();
    let first = words
        .next()
        .map_or(String::new(), |word| format!("{word:x}"));
    words.fold(first, |mask, word| format!("{mask},{word:08x}"))
}

/// Whether a mask such as `0,00000000` has no core.
pub fn is_empty_mask(text: &str) -> bool {
    text.chars()
        .all(|c| matches!(c, '0' | ',') || c.is_whitespace())
}

/// The chosen one of a file such as `none [mq-deadline] kyber`, and all of them.
pub fn choices(text: &str) -> (Option<&str>, Vec<&str>) {
    let chosen = |word: &str| word.starts_with('[') && word.ends_with(']') && word.len() > 2;
    let bare = |word| -> &str { str::trim_matches(word, ['[', ']']) };
    let words: Vec<&str> = text.split_whitespace().collect();
    let active = words
        .iter()
        .find(|word| chosen(word))
        .map(|word| bare(word));
    (active, words.iter().map(|word| bare(word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_of_cores_are_read_and_written_as_the_kernel_does() {
        assert_eq!(cpu_list("0-2,5"), vec![0, 1, 2, 5]);
        assert_eq!(cpu_list("x,3-1,,7-"), Vec::<usize>::new());
        assert!(cpu_list("0-99999999999").len() <= 8193);
        assert_eq!(as_list(&[0, 1, 2, 5]), "0-2,5");
        assert_eq!(as_mask(&[0, 1]), "3");
        assert_eq!(as_mask(&[0, 33]), "2,00000001");
        assert!(is_empty_mask("00000000,00000000"));
        assert!(!is_empty_mask("3"));
    }

    #[test]
    fn the_chosen_one_stands_in_brackets() {
        let (active, all) = choices("none [mq-deadline] kyber");
        assert_eq!(active, Some("mq-deadline"));
        assert_eq!(all, vec!["none", "mq-deadline", "kyber"]);
        assert_eq!(choices("[] ").0, None);
    }

    #[test]
    fn only_settings_of_the_kernel_are_written() {
        let home = tempfile::tempdir().unwrap();
        let host = Host::under(home.path());
        fs::create_dir_all(home.path().join("sys/a")).unwrap();
        fs::write(home.path().join("sys/a/b"), "123456\n").unwrap();
        host.write("/sys/a/b", "7").unwrap();
        assert_eq!(host.read("/sys/a/b").unwrap(), "7");
        assert!(host.write("/etc/passwd", "x").is_err());
        assert!(host.write("/sys/../etc/passwd", "x").is_err());
        assert!(host.write("/sys/a/new", "x").is_err(), "nothing is made");
    }
}
