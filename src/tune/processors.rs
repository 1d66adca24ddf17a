//! Checks of the processors: speed, turbo, idle states, siblings of the shards' cores, nodes of
//! memory. Pure functions of a host's files.

use super::finding::{Finding, State};
use super::host::{Host, as_list, cpu_list};
use super::wanted::{Profile, Wanted};

const CPUS: &str = "/sys/devices/system/cpu";

/// Waking from an idle state that takes longer than this is felt in the answer.
const WAKE_US_MAX: i64 = 50;

pub(super) fn check(host: &Host, wanted: &Wanted, out: &mut Vec<Finding>) {
    out.push(governor(host));
    out.push(turbo(host));
    out.push(idle_states(host, wanted));
    out.push(siblings(host, wanted));
    out.push(nodes(host, wanted));
}

/// Directories below `dir` that are called `name` and a number.
fn numbered(host: &Host, dir: &str, name: &str) -> Vec<String> {
    let names = host.names(dir).into_iter();
    names
        .filter(|found| {
            let number = found.strip_prefix(name).unwrap_or_default();
            !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit())
        })
        .collect()
}

fn governor(host: &Host) -> Finding {
    let mut finding = Finding::new("governor", "")
        .wanted("performance")
        .why("the others lower the clock of a core that waits, and a shard waits between two requests: each answer begins on a slow core");
    let policies = numbered(host, &format!("{CPUS}/cpufreq"), "policy");
    let mut found: Vec<String> = Vec::new();
    let mut slow = Vec::new();
    for policy in policies {
        let path = format!("{CPUS}/cpufreq/{policy}/scaling_governor");
        let Ok(now) = host.read(&path) else { continue };
        let there = host.read(&format!(
            "{CPUS}/cpufreq/{policy}/scaling_available_governors"
        ));
        // Some drivers list none; then the write will tell.
        let can = there.map_or(true, |there| {
            there.split_whitespace().any(|one| one == "performance")
        });
        if now != "performance" && can {
            slow.push((path, now.clone()));
        }
        if !found.contains(&now) {
            found.push(now);
        }
    }
    if found.is_empty() {
        finding.state = State::Unseen;
        return finding
            .found("no cpufreq here: a virtual machine, or the firmware alone decides the clock");
    }
    let good = found.iter().all(|one| one == "performance");
    finding = finding.found(found.join(", ")).judged(good, State::Advice);
    for (path, now) in slow {
        finding = finding.change(&path, &now, "performance");
    }
    finding
}

fn turbo(host: &Host) -> Finding {
    let finding = Finding::new("turbo", "").wanted("on").why(
        "a shard's requests are served by one core after the other; single cores run faster with it",
    );
    let paths = [
        (format!("{CPUS}/intel_pstate/no_turbo"), "0", "1"),
        (format!("{CPUS}/cpufreq/boost"), "1", "0"),
    ];
    for (path, on, off) in paths {
        let Ok(now) = host.read(&path) else { continue };
        let found = match now.trim() {
            now if now == on => "on",
            now if now == off => "off",
            _ => continue,
        };
        return finding
            .found(found)
            .judged(found == "on", State::Advice)
            .change(&path, now.trim(), on);
    }
    let mut finding = finding.found("no switch here: a virtual machine, or a driver without one");
    finding.state = State::Unseen;
    finding
}

fn idle_states(host: &Host, wanted: &Wanted) -> Finding {
    let latency = wanted.profile == Profile::Latency;
    let mut finding = Finding::new("idle states", "")
        .wanted(match latency {
            true => format!("none that takes more than {WAKE_US_MAX} us to leave, on the shards' cores"),
            false => "any".to_owned(),
        })
        .why("an idle shard sleeps; leaving a deep state takes as long as a whole request, at low load for nearly each of them");
    let cpus = wanted.shard_cpus(host);
    let (mut deep, mut seen) = (Vec::new(), Vec::new());
    for cpu in &cpus {
        let dir = format!("{CPUS}/cpu{cpu}/cpuidle");
        for state in numbered(host, &dir, "state") {
            let dir = format!("{dir}/{state}");
            let name = host.read(&format!("{dir}/name")).unwrap_or_default();
            let (Ok(wake), Ok(off)) = (
                host.number(&format!("{dir}/latency")),
                host.read(&format!("{dir}/disable")),
            ) else {
                continue;
            };
            let off = off.trim().to_owned();
            if wake > WAKE_US_MAX && off == "0" {
                deep.push(format!("{dir}/disable"));
            }
            let told = format!("{name} {wake} us{}", if off == "0" { "" } else { " (off)" });
            if !seen.contains(&told) {
                seen.push(told);
            }
        }
    }
    if seen.is_empty() {
        finding.state = State::Unseen;
        return finding.found("no cpuidle here: the hypervisor, or the firmware alone, decides");
    }
    finding = finding
        .found(seen.join(", "))
        .judged(deep.is_empty() || !latency, State::Advice);
    for path in deep {
        finding = finding.change(&path, "0", "1");
    }
    finding
}

fn siblings(host: &Host, wanted: &Wanted) -> Finding {
    let mut finding = Finding::new("smt siblings", "")
        .wanted("one shard a physical core")
        .why("two shards on the two threads of one core share its units and its first caches; the second brings a fraction of a core");
    let cpus = wanted.shard_cpus(host);
    let (mut shared, mut seen) = (Vec::new(), false);
    for (at, cpu) in cpus.iter().enumerate() {
        let path = format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list");
        let Ok(text) = host.read(&path) else { continue };
        seen = true;
        let threads = cpu_list(&text);
        shared.extend(
            cpus[at + 1..]
                .iter()
                .filter(|other| threads.contains(other))
                .map(|other| format!("{cpu}+{other}")),
        );
    }
    if !seen {
        finding.state = State::Unseen;
        return finding.found("the shards are not pinned, or no topology is told");
    }
    let found = match shared.is_empty() {
        true => format!("cores {}, no two of one core", as_list(&cpus)),
        false => format!("shards on both threads: {}", shared.join(", ")),
    };
    finding
        .found(found)
        .judged(shared.is_empty(), State::Advice)
        .command(
            "CPUAffinity= with one thread of each core in the unit, and highwater.shards as many",
            "leave CPUAffinity= out",
        )
}

fn nodes(host: &Host, wanted: &Wanted) -> Finding {
    let finding = Finding::new("numa", "")
        .wanted("all shards on one node of memory")
        .why("memory of another node takes about twice as long to reach; lanes between shards and the page cache are memory");
    let dir = "/sys/devices/system/node";
    let Ok(online) = host.read(&format!("{dir}/online")) else {
        return finding
            .found("the kernel tells no nodes: one")
            .judged(true, State::Good);
    };
    let cpus = wanted.shard_cpus(host);
    let nodes = cpu_list(&online);
    let mut used = Vec::new();
    for node in &nodes {
        let list = host
            .read(&format!("{dir}/node{node}/cpulist"))
            .unwrap_or_default();
        let here = cpu_list(&list);
        if cpus.iter().any(|cpu| here.contains(cpu)) {
            used.push(*node);
        }
    }
    finding
        .found(match nodes.len() {
            1 => "one node".to_owned(),
            count => format!("{count} nodes, shards on {}", as_list(&used)),
        })
        .judged(used.len() <= 1, State::Advice)
        .command(
            "one broker a node: NUMAPolicy=bind, NUMAMask= and CPUAffinity=numa in its unit, and its log directories on that node's devices",
            "leave them out",
        )
}
