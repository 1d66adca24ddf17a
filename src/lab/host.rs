//! What machine this is, read from `/proc`: kernel, CPU, memory, load. A file that cannot be read
//! leaves its field empty rather than stop a measurement.

use std::fs;
use std::thread;

use super::result::Host;

/// The machine as it is now.
pub fn host() -> Host {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    Host {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpu_model: cpu_model(&read("/proc/cpuinfo")),
        logical_cpus: thread::available_parallelism().map_or(0, |cpus| cpus.get() as u32),
        memory_bytes: memory_bytes(&read("/proc/meminfo")),
        load_average: load_average(&read("/proc/loadavg")),
    }
}

/// What makes figures of this machine doubtful before anything has run.
pub fn warnings(host: &Host) -> Vec<String> {
    let cpus = f64::from(host.logical_cpus.max(1));
    // Half a CPU's worth of others' work is within the noise of a quiet machine.
    if host.load_average < 0.25 * cpus + 0.5 {
        return Vec::new();
    }
    vec![format!(
        "the load average was {:.1} on {} CPUs before the first run: others were at work",
        host.load_average, host.logical_cpus
    )]
}

fn cpu_model(cpuinfo: &str) -> String {
    // x86 and POWER name it differently; ARM names no model at all.
    let named = ["model name", "cpu model", "cpu", "Hardware"];
    let value = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    let found = named.into_iter().find_map(value);
    found.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn memory_bytes(meminfo: &str) -> u64 {
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes =
        total.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

fn load_average(loadavg: &str) -> f64 {
    let first = loadavg.split_ascii_whitespace().next();
    first.and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_understood() {
        let cpuinfo = "processor\t: 0\nvendor_id\t: X\nmodel name\t: A CPU: fast @ 2 GHz\n\n";
        assert_eq!(cpu_model(cpuinfo), "A CPU: fast @ 2 GHz");
        assert_eq!(cpu_model("processor : 0\n"), std::env::consts::ARCH);
        assert_eq!(memory_bytes("MemTotal:  1024 kB\nMemFree: 1 kB\n"), 1 << 20);
        assert_eq!(memory_bytes(""), 0);
        assert_eq!(load_average("1.25 0.5 0.1 1/200 42\n"), 1.25);
        assert_eq!(load_average(""), 0.0);
    }

    #[test]
    fn this_machine_has_cpus_memory_and_a_kernel() {
        let host = host();
        assert!(host.logical_cpus > 0 && host.memory_bytes > 1 << 20);
        assert!(!host.kernel.is_empty() && !host.cpu_model.is_empty());
    }

    #[test]
    fn a_busy_machine_is_told() {
        let busy = |load_average: f64| Host {
            logical_cpus: 2,
            load_average,
            ..Host::default()
        };
        assert_eq!(warnings(&busy(0.9)), Vec::<String>::new());
        assert_eq!(warnings(&busy(4.0)).len(), 1);
    }
}
