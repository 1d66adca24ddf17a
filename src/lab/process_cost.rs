//! What processes and threads of this machine cost, by the kernel's own accounting in `/proc`: CPU
//! time, resident memory, bytes that went to devices. Costs are differences of two readings. Reads
//! small files; runs on whatever thread asks, never on a broker's shard.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use super::result::{BrokerCost, ToolCost};

/// Why a process cannot be accounted.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    #[error("process {0} is gone")]
    Gone(u32),
    #[error("process {0} is gone and another one has its id now")]
    Replaced(u32),
    #[error("the accounting of process {pid} in {file} cannot be read: {why}")]
    Unreadable { pid: u32, file: String, why: String },
}

/// The account of one process at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessReading {
    pub pid: u32,
    /// User and system time of all its threads, also of those that have ended, to a hundredth.
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    /// Bytes that it caused to be written to devices, now or later, less those taken back
    /// because the file was removed before. Absent if the kernel does not tell (it tells the
    /// owner of the process and root).
    pub written_bytes: Option<u64>,
    /// Clock ticks from boot to its start: with the id, which process it is.
    started: u64,
}

impl ProcessReading {
    /// # Errors
    /// [`CostError`] if there is no such process, or its accounting cannot be read.
    pub fn of(pid: u32) -> Result<ProcessReading, CostError> {
        let stat = account(pid, "stat")?;
        let times = Times::parse(&stat).ok_or_else(|| unreadable(pid, "stat", "unknown form"))?;
        let status = account(pid, "status")?;
        let io = account(pid, "io");
        if matches!(io, Err(CostError::Gone(_))) {
            return Err(CostError::Gone(pid));
        }
        Ok(ProcessReading {
            pid,
            cpu_seconds: times.cpu_ticks as f64 / ticks_per_second(),
            // A process that has ended and waits to be reaped has no memory line.
            resident_bytes: 1024 * number_after(&status, "VmRSS:").unwrap_or(0),
            written_bytes: io.ok().as_deref().and_then(written),
            started: times.started,
        })
    }

    /// What the process cost from `earlier` until this reading; the memory is this reading's.
    ///
    /// # Errors
    /// [`CostError::Replaced`] if the two are not readings of one process.
    pub fn since(&self, earlier: &ProcessReading) -> Result<BrokerCost, CostError> {
        if (self.pid, self.started) != (earlier.pid, earlier.started) {
            return Err(CostError::Replaced(earlier.pid));
        }
        let written = self.written_bytes.zip(earlier.written_bytes);
        Ok(BrokerCost {
            pid: self.pid,
            cpu_seconds: (self.cpu_seconds - earlier.cpu_seconds).max(0.0),
            resident_bytes: self.resident_bytes,
            written_bytes: written.map_or(0, |(now, before)| now.saturating_sub(before)),
        })
    }
}

/// The CPU time of every thread of this process at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnThreads {
    threads: HashMap<u32, Spent>,
}

/// What a thread has had since its start, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spent {
    ran: u64,
    /// Ready to run, without a core.
    waited: u64,
}

impl OwnThreads {
    /// # Errors
    /// What reading `/proc/self/task` fails with.
    pub fn read() -> io::Result<OwnThreads> {
        let mut threads = HashMap::new();
        for entry in fs::read_dir("/proc/self/task")? {
            let entry = entry?;
            let Some(tid) = entry.file_name().to_str().and_then(|id| id.parse().ok()) else {
                continue;
            };
            // A thread may end while the list is read; it is then left out.
            if let Ok(spent) = spent(&entry.path()) {
                threads.insert(tid, spent);
            }
        }
        Ok(OwnThreads { threads })
    }

    /// What the threads cost from `earlier` until this reading, which took `seconds`. Threads that
    /// have ended in between are not in it: read while they live.
    pub fn since(&self, earlier: &OwnThreads, seconds: f64) -> ToolCost {
        let spent = self.threads.iter().map(|(tid, now)| {
            let before = earlier.threads.get(tid).copied().unwrap_or_default();
            Spent {
                ran: now.ran.saturating_sub(before.ran),
                waited: now.waited.saturating_sub(before.waited),
            }
        });
        let spent: Vec<Spent> = spent.collect();
        let busiest = spent.iter().max_by_key(|spent| spent.ran).copied();
        let busiest = busiest.unwrap_or_default();
        let share = |nanos: u64| match seconds > 0.0 {
            true => nanos as f64 / 1e9 / seconds,
            false => 0.0,
        };
        ToolCost {
            threads: spent.iter().filter(|spent| spent.ran > 0).count() as u32,
            cpu_seconds: spent.iter().map(|spent| spent.ran).sum::<u64>() as f64 / 1e9,
            busiest_thread: share(busiest.ran),
            busiest_thread_waited: share(busiest.waited),
        }
    }
}

/// CPU seconds that the calling thread has spent since its start.
///
/// # Errors
/// What reading `/proc/thread-self` fails with.
pub fn own_thread_seconds() -> io::Result<f64> {
    Ok(spent(Path::new("/proc/thread-self"))?.ran as f64 / 1e9)
}

/// The scheduler's account is exact to the nanosecond (of a thread that runs right now: to the
/// last tick); a kernel without it has the ticks, and does not tell who waited.
fn spent(directory: &Path) -> io::Result<Spent> {
    if let Ok(text) = fs::read_to_string(directory.join("schedstat")) {
        let mut fields = text.split_ascii_whitespace().map(str::parse);
        if let (Some(Ok(ran)), Some(Ok(waited))) = (fields.next(), fields.next()) {
            return Ok(Spent { ran, waited });
        }
    }
    let stat = fs::read_to_string(directory.join("stat"))?;
    let times = Times::parse(&stat).ok_or_else(|| io::Error::other("stat has an unknown form"))?;
    Ok(Spent {
        ran: (times.cpu_ticks as f64 / ticks_per_second() * 1e9) as u64,
        waited: 0,
    })
}

/// What stands in a `stat` file.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    cpu_ticks: u64,
    started: u64,
}

impl Times {
    fn parse(stat: &str) -> Option<Times> {
        // The name, in parentheses, may hold anything; the fields after it are counted from 3.
        let after_name = &stat[stat.rfind(')')? + 1..];
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Times {
            cpu_ticks: field(14)? + field(15)?,
            started: field(22)?,
        })
    }
}

fn account(pid: u32, file: &str) -> Result<String, CostError> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).map_err(|error| {
        // ESRCH: it went between opening and reading.
        if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) {
            CostError::Gone(pid)
        } else {
            unreadable(pid, file, &error.to_string())
        }
    })
}

fn unreadable(pid: u32, file: &str, why: &str) -> CostError {
    CostError::Unreadable {
        pid,
        file: format!("/proc/{pid}/{file}"),
        why: why.to_owned(),
    }
}

fn written(io: &str) -> Option<u64> {
    let taken_back = number_after(io, "cancelled_write_bytes:").unwrap_or(0);
    Some(number_after(io, "\nwrite_bytes:")?.saturating_sub(taken_back))
}

/// The first number behind `name`.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = &text[text.find(name)? + name.len()..];
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Clock ticks in a second, as the kernel told this process at its start (auxiliary vector entry
/// 17, `AT_CLKTCK`). It has been 100 on every machine that io_uring runs on.
fn ticks_per_second() -> f64 {
    const AT_CLKTCK: usize = 17;
    const WORD: usize = size_of::<usize>();
    let vector = fs::read("/proc/self/auxv").unwrap_or_default();
    let words: Vec<usize> = vector
        .chunks_exact(WORD)
        .filter_map(|word| Some(usize::from_ne_bytes(word.try_into().ok()?)))
        .collect();
    let mut pairs = words.chunks_exact(2);
    let ticks = pairs.find(|pair| pair[0] == AT_CLKTCK).map(|pair| pair[1]);
    ticks.filter(|ticks| *ticks > 0).unwrap_or(100) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 10 0 0 0 70 30 0 0 20 0 3 0 9876 1 2";
        let times = Times::parse(stat).unwrap();
        assert_eq!((times.cpu_ticks, times.started), (100, 9876));
        assert_eq!(Times::parse("42 (x) S 1"), None);
        assert_eq!(Times::parse(""), None);
    }

    #[test]
    fn bytes_taken_back_were_not_written() {
        let io =
            "rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: 5000\ncancelled_write_bytes: 1000\n";
        assert_eq!(written(io), Some(4000));
        assert_eq!(written("rchar: 1\n"), None);
    }

    #[test]
    fn work_costs_cpu_in_the_process_and_in_its_thread() {
        let pid = std::process::id();
        let before = ProcessReading::of(pid).unwrap();
        let threads = OwnThreads::read().unwrap();
        let own = own_thread_seconds().unwrap();
        assert!(before.resident_bytes > 100_000);
        // Until the account says so: no assertion on how long that takes.
        let mut sum = 0u64;
        while own_thread_seconds().unwrap() < own + 0.05 {
            for number in 0..100_000u64 {
                sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(number));
            }
        }
        let cost = ProcessReading::of(pid).unwrap().since(&before).unwrap();
        assert!(cost.cpu_seconds >= 0.03, "{cost:?}");
        let tool = OwnThreads::read().unwrap().since(&threads, 0.05);
        assert!(tool.cpu_seconds >= 0.04, "{tool:?}");
        assert!(tool.busiest_thread >= 0.8 && tool.threads >= 1, "{tool:?}");
    }

    #[test]
    fn written_bytes_are_told_of_an_own_process() {
        let reading = ProcessReading::of(std::process::id()).unwrap();
        assert!(reading.written_bytes.is_some());
    }

    #[test]
    fn a_process_that_ended_is_said_to_be_gone() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let reading = ProcessReading::of(pid).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        let error = ProcessReading::of(pid).unwrap_err();
        assert_eq!(error.to_string(), format!("process {pid} is gone"));

        let other = ProcessReading {
            started: reading.started + 1,
            ..reading
        };
        assert!(matches!(other.since(&reading), Err(CostError::Replaced(_))));
    }
}
