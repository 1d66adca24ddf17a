//! Checks of the kernel: its version, whether it lets the process have rings, its clock. Pure
//! functions of a host's files.

use super::finding::{Finding, State};
use super::host::Host;

/// What the ring runtime needs.
const VERSION_MIN: (u32, u32) = (5, 8);
/// Only this one was tested; older ones lack what direct writes gain by.
const VERSION_TESTED: (u32, u32) = (6, 18);
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
        .wanted("5.8 or newer; tested with 6.18")
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
        .judged(version >= (6, 1).min(VERSION_TESTED), state)
        .command(
            "install a kernel of the distribution's current series, and boot it",
            "boot the former one",
        )
}

fn rings(host: &Host) -> Finding {
    let path = "/proc/sys/kernel/io_uring_disabled";
    let finding = Finding::new("io_uring", "")
        .wanted("0: allowed")
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
                "1" => {
                    let group = host
                        .read("/proc/sys/kernel/io_uring_group")
                        .unwrap_or_default();
                    let found = format!("1: for the group {group} and the privileged only");
                    (found, State::Advice)
                }
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
        .wanted("tsc (in a virtual machine also kvm-clock or Hyper-V's page)")
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
