//! Checks of the kernel: its version, whether it lets the process have rings, its clock. Pure
//! functions of a host's files.

use super::finding::{Finding, State};
use super::host::Host;

/// What the ring runtime needs.
const VERSION_MIN: (u32, u32) = (5, 8);
/// From here on there is no advice: a long-term kernel. Only 6.18 was run.
const VERSION_GOOD: (u32, u32) = (6, 1);
const CAP_SYS_ADMIN: u32 = 21;
/// Clocks that are read without a system call.
const FAST_CLOCKS: [&str; 4] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
];

pub(super) fn check(host: &Host, out: &mut Vec<Finding>) {
    out.push(version(host));
    out.push(rings(host));
    out.push(filter(host));
    out.push(clock(host));
}

fn version(host: &Host) -> Finding {
    let finding = Finding::new("kernel", "")
        .wanted("6.1 or newer, 5.8 at least; only 6.18 was run")
        .why("io_uring as the broker uses it came with 5.8; newer kernels make fewer worker threads for the same work");
    let text = match host.read("/proc/sys/kernel/osrelease") {
        Ok(text) => text,
        Err(why) => return finding.unseen(&why, "the kernel does not tell its version"),
    };
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    let mut part = || parts.next().and_then(|part| part.parse::<u32>().ok());
    let Some(version) = part().zip(part()) else {
        let mut finding = finding.found(text);
        finding.state = State::Unseen;
        return finding;
    };
    let state = if version < VERSION_MIN {
        State::Problem
    } else {
        State::Advice
    };
    finding
        .found(text)
        .judged(version >= VERSION_GOOD, state)
        .command(
            "install a kernel of the distribution's current series, and boot it",
            "boot the former one",
        )
}

fn rings(host: &Host) -> Finding {
    let path = "/proc/sys/kernel/io_uring_disabled";
    let finding = Finding::new("io_uring", "")
        .wanted("0: allowed; or 1 with the group io_uring_group or CAP_SYS_ADMIN")
        .why("every shard is a ring; without io_uring the broker does not start");
    match host.read(path) {
        // The switch came with 6.6.
        Err(super::host::Unseen::Absent) if host.exists("/proc/sys/kernel") => finding
            .found("no switch: allowed")
            .judged(true, State::Good),
        Err(why) => finding.unseen(&why, "no /proc/sys here"),
        Ok(text) => {
            let (found, state) = match text.trim() {
                "0" => ("0: allowed".to_owned(), State::Good),
                "1" => return restricted(host, finding),
                "2" => ("2: forbidden".to_owned(), State::Problem),
                other => (other.to_owned(), State::Unseen),
            };
            finding
                .found(found)
                .judged(false, state)
                // Not for --apply: somebody decided it for the security of the whole host.
                .command(
                    "sysctl -w kernel.io_uring_disabled=0",
                    format!("sysctl -w kernel.io_uring_disabled={}", text.trim()),
                )
        }
    }
}

/// With 1 the kernel lets those have rings that have CAP_SYS_ADMIN or are in one group.
fn restricted(host: &Host, finding: Finding) -> Finding {
    let path = "/proc/sys/kernel/io_uring_group";
    // -1, as from the start, is no group.
    let group = host.number(path).unwrap_or(-1);
    let finding = match group {
        0.. => finding.found(format!("1: for CAP_SYS_ADMIN and the group {group} only")),
        _ => finding.found("1: for CAP_SYS_ADMIN only"),
    };
    let told = |finding: Finding, whether: &str| {
        let found = format!("{}; {whether}", finding.found);
        finding.found(found)
    };
    let status = match host.of_process("status") {
        Ok(status) => status,
        Err(why) => {
            let why = why.told("the process tells no status");
            return told(finding, &why).judged(false, State::Unseen);
        }
    };
    // What a process has in a user namespace of its own counts for nothing here, and its groups
    // have other numbers outside.
    let ids = host.of_process("uid_map").unwrap_or_default();
    let ids: Vec<&str> = ids.split_whitespace().collect();
    if !ids.is_empty() && ids != ["0", "0", "4294967295"] {
        let whether = "the process is in a user namespace of its own: ask outside of it";
        return told(finding, whether).judged(false, State::Unseen);
    }
    let who = match host.process() {
        "self" => "this process".to_owned(),
        pid => format!("process {pid}"),
    };
    let (whether, state) = if is_allowed(&status, group) {
        ("is one of them", State::Good)
    } else {
        ("is none of them", State::Problem)
    };
    told(finding, &format!("{who} {whether}"))
        .judged(false, state)
        // Not for --apply: somebody decided it for the security of the whole host.
        .command(
            "sysctl -w kernel.io_uring_group=GID, with a group of the broker's user",
            format!("sysctl -w kernel.io_uring_group={group}"),
        )
}

/// Whether a process with this status may have rings while they are restricted to `group`.
fn is_allowed(status: &str, group: i64) -> bool {
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_whitespace()
    };
    let set = of("CapEff:").next();
    let set = set.and_then(|set| u64::from_str_radix(set, 16).ok());
    let privileged = set.is_some_and(|set| set >> CAP_SYS_ADMIN & 1 == 1);
    // Real, effective, saved and, the one that counts, of file systems.
    let own = of("Gid:").nth(3);
    let mut groups = own.into_iter().chain(of("Groups:"));
    privileged || (group >= 0 && groups.any(|one| one.parse() == Ok(group)))
}

fn filter(host: &Host) -> Finding {
    let finding = Finding::new("seccomp", "")
        .wanted("none, or one that allows io_uring_setup, io_uring_enter, io_uring_register")
        .why("container runtimes forbid io_uring in their default filter; the broker then fails at its start");
    let status = match host.of_process("status") {
        Ok(status) => status,
        Err(why) => return finding.unseen(&why, "the process tells no status"),
    };
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"))
        .map(str::trim);
    match mode {
        Some("0") => finding.found("none"),
        Some("2") => finding
            .found("a filter; what it allows cannot be seen")
            .judged(false, State::Unseen)
            .command(
                "docker run --security-opt seccomp=FILE with a filter that allows io_uring_*",
                "leave the option out",
            ),
        mode => finding
            .found(mode.unwrap_or("not told").to_owned())
            .judged(false, State::Unseen),
    }
}

fn clock(host: &Host) -> Finding {
    let dir = "/sys/devices/system/clocksource/clocksource0";
    let finding = Finding::new("clocksource", "")
        .wanted("tsc, or arch_sys_counter on ARM; in a virtual machine also kvm-clock or Hyper-V's page")
        .why("the clock is read several times a request; hpet and acpi_pm are read by a system call and from a device, a microsecond or more each");
    let now = match host.read(&format!("{dir}/current_clocksource")) {
        Ok(now) => now,
        Err(why) => return finding.unseen(&why, "the kernel shows no clock source here"),
    };
    let there = host
        .read(&format!("{dir}/available_clocksource"))
        .unwrap_or_default();
    let better = FAST_CLOCKS
        .iter()
        .find(|clock| there.split_whitespace().any(|one| one == **clock));
    let finding = finding
        .found(now.clone())
        .judged(FAST_CLOCKS.contains(&now.trim()), State::Problem);
    match better {
        // Not for --apply: the kernel had a reason to leave a clock, and it may still hold.
        Some(clock) => finding.command(
            format!("echo {clock} > {dir}/current_clocksource"),
            format!("echo {now} > {dir}/current_clocksource"),
        ),
        None => finding.command(
            "boot with clocksource=tsc tsc=reliable where the processor's counter is constant",
            "boot without them",
        ),
    }
}
