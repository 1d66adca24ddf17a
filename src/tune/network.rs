//! Checks of the network: the queues of new connections, buffers, how packets reach the cores, and
//! where the interrupts of interfaces and disks go. Pure functions of a host's files.

use super::devices::{devices_of, mount_of, mounts};
use super::finding::{Finding, State};
use super::host::{Host, as_list, as_mask, cpu_list, is_empty_mask};
use super::wanted::{Profile, Wanted};

const NET: &str = "/sys/class/net";
/// What each shard's listener asks for.
const BACKLOG: i64 = 1024;
/// A fetch of 1 MiB on its way, and the next one behind it; more where the way is long.
const BUFFER_BYTES: i64 = 4 << 20;

pub(super) fn check(host: &Host, wanted: &Wanted, out: &mut Vec<Finding>) {
    let core = "/proc/sys/net/core/somaxconn";
    out.push(at_least(host, "somaxconn", core, BACKLOG,
        "a burst of connections (a restart, with all clients at once) waits in this queue; beyond it they are dropped and try again a second later"));
    let syn = "/proc/sys/net/ipv4/tcp_max_syn_backlog";
    out.push(at_least(
        host,
        "syn backlog",
        syn,
        BACKLOG,
        "connections not yet confirmed wait here first",
    ));
    for name in ["tcp_rmem", "tcp_wmem"] {
        out.push(buffers(host, name));
    }
    out.push(slow_start(host, wanted));
    for name in host.names(NET) {
        // Only what is a device: bridges and tunnels pass on what those bring.
        if host.exists(&format!("{NET}/{name}/device")) {
            out.push(spread(host, wanted, &name));
            out.push(sending(host, &name));
            out.push(interrupts(
                host,
                wanted,
                "nic interrupts",
                &name,
                &format!("{NET}/{name}/device"),
            ));
        }
    }
    let mounts = mounts(host);
    let mut disks = Vec::new();
    for dir in &wanted.log_dirs {
        let Some(mount) = mount_of(&mounts, dir) else {
            continue;
        };
        for device in devices_of(host, &mount.number) {
            if !disks.contains(&device) {
                disks.push(device);
            }
        }
    }
    for disk in disks {
        out.push(interrupts(
            host,
            wanted,
            "disk interrupts",
            &disk.name,
            &format!("{}/device", disk.dir),
        ));
    }
}

fn at_least(host: &Host, check: &'static str, path: &str, least: i64, why: &str) -> Finding {
    let finding = Finding::new(check, "")
        .wanted(format!("{least} or more"))
        .why(why);
    match host.number(path) {
        Err(why) => finding.unseen(&why, "no such setting here (another network namespace?)"),
        Ok(now) => finding
            .found(now.to_string())
            .judged(now >= least, State::Advice)
            .change(path, &now.to_string(), &least.to_string()),
    }
}

fn buffers(host: &Host, name: &'static str) -> Finding {
    let path = format!("/proc/sys/net/ipv4/{name}");
    let finding = Finding::new(name, "")
        .wanted(format!("{BUFFER_BYTES} or more at most"))
        .why("the kernel lets a connection's buffer grow up to the third number; a fetch or a follower over a long way is no faster than buffer divided by round trip");
    let text = match host.read(&path) {
        Ok(text) => text,
        Err(why) => return finding.unseen(&why, "no such setting here"),
    };
    let now: Vec<i64> = text
        .split_whitespace()
        .map_while(|n| n.parse().ok())
        .collect();
    let [least, first, most] = now[..] else {
        return finding.found(text).judged(false, State::Unseen);
    };
    finding
        .found(format!("{least} {first} {most}"))
        .judged(most >= BUFFER_BYTES, State::Advice)
        .change(
            &path,
            &format!("{least} {first} {most}"),
            &format!("{least} {first} {BUFFER_BYTES}"),
        )
}

fn slow_start(host: &Host, wanted: &Wanted) -> Finding {
    let path = "/proc/sys/net/ipv4/tcp_slow_start_after_idle";
    let finding = Finding::new("slow start after idle", "")
        .wanted(match wanted.profile {
            Profile::Latency => "0",
            Profile::Throughput | Profile::Durable => "any",
        })
        .why("a connection that was silent for a moment begins again with a small window: a large answer then takes several round trips");
    match host.read(path) {
        Err(why) => finding.unseen(&why, "no such setting here"),
        Ok(now) => finding
            .found(now.clone())
            .judged(
                now == "0" || wanted.profile != Profile::Latency,
                State::Advice,
            )
            .change(path, &now, "0"),
    }
}

/// Queues of an interface in one direction.
fn queues(host: &Host, interface: &str, direction: &str) -> Vec<String> {
    let names = host.names(&format!("{NET}/{interface}/queues")).into_iter();
    names.filter(|name| name.starts_with(direction)).collect()
}

fn spread(host: &Host, wanted: &Wanted, interface: &str) -> Finding {
    let mut finding = Finding::new("rps", interface)
        .wanted("a receiving queue a core, or packets spread over the shards' cores")
        .why("with one queue all packets are taken in by one core, and the shard on it works for all others");
    let queues = queues(host, interface, "rx-");
    let cpus = Wanted::allowed_cpus(host);
    if queues.is_empty() || cpus.is_empty() {
        finding.state = State::Unseen;
        return finding.found("no receiving queues are shown");
    }
    let mut without = Vec::new();
    for queue in &queues {
        let path = format!("{NET}/{interface}/queues/{queue}/rps_cpus");
        match host.read(&path) {
            Ok(mask) if is_empty_mask(&mask) => without.push((path, mask)),
            Ok(_) => {}
            Err(why) => return finding.unseen(&why, "the kernel is built without it"),
        }
    }
    let enough = queues.len() >= wanted.shards || without.is_empty();
    let found = match without.is_empty() {
        true => format!("queues: {}, all spread", queues.len()),
        false => format!("queues: {}, not spread: {}", queues.len(), without.len()),
    };
    finding = finding.found(found).judged(enough, State::Advice);
    for (path, mask) in without {
        finding = finding.change(&path, &mask, &as_mask(&cpus));
    }
    finding
}

fn sending(host: &Host, interface: &str) -> Finding {
    let mut finding = Finding::new("xps", interface)
        .wanted("each core sends by a queue of its own, where there are several")
        .why("two cores that send by one queue wait for its lock");
    let queues = queues(host, interface, "tx-");
    match queues.len() {
        0 => {
            finding.state = State::Unseen;
            finding.found("no sending queues are shown")
        }
        1 => finding.found("one queue: nothing to choose"),
        count => {
            let empty = queues.iter().filter(|queue| {
                let mask = host.read(&format!("{NET}/{interface}/queues/{queue}/xps_cpus"));
                mask.is_ok_and(|mask| is_empty_mask(&mask))
            });
            let empty = empty.count();
            let mut finding = finding
                .found(format!("{count} queues, {empty} for no core"))
                .judged(empty == 0, State::Advice);
            let cpus = Wanted::allowed_cpus(host);
            for (at, queue) in queues.iter().enumerate() {
                let path = format!("{NET}/{interface}/queues/{queue}/xps_cpus");
                let Ok(mask) = host.read(&path) else { continue };
                let mine: Vec<usize> = cpus.iter().copied().skip(at).step_by(count).collect();
                if is_empty_mask(&mask) && !mine.is_empty() {
                    finding = finding.change(&path, &mask, &as_mask(&mine));
                }
            }
            finding
        }
    }
}

/// An interrupt of a device that has come.
struct Interrupt {
    number: u32,
    /// Cores that may take it, and those that do.
    allowed: Vec<usize>,
    taken_by: Vec<usize>,
    count: u64,
}

fn fired(host: &Host, device: &str) -> Vec<Interrupt> {
    // A virtio device's interrupts belong to the PCI device above it.
    let dirs = ["msi_irqs", "../msi_irqs", "device/msi_irqs"];
    let dir = dirs
        .iter()
        .filter_map(|name| host.followed(&format!("{device}/{name}")))
        .next();
    let numbers = dir.map(|dir| host.names(&dir)).unwrap_or_default();
    let table = host.read("/proc/interrupts").unwrap_or_default();
    let mut found = Vec::new();
    for line in table.lines() {
        let Some((number, rest)) = line.split_once(':') else {
            continue;
        };
        let number = number.trim();
        let Ok(irq) = number.parse::<u32>() else {
            continue;
        };
        if !numbers.iter().any(|one| one == number) {
            continue;
        }
        let counts = rest.split_whitespace().map_while(|n| n.parse::<u64>().ok());
        let count: u64 = counts.fold(0, u64::saturating_add);
        let cpus = |file: &str| {
            let list = host.read(&format!("/proc/irq/{irq}/{file}"));
            cpu_list(&list.unwrap_or_default())
        };
        let allowed = cpus("smp_affinity_list");
        let mut taken_by = cpus("effective_affinity_list");
        if taken_by.is_empty() {
            taken_by = allowed.clone();
        }
        if count > 0 {
            found.push(Interrupt {
                number: irq,
                allowed,
                taken_by,
                count,
            });
        }
    }
    found
}

/// The process that moves interrupts by itself, where one runs.
fn irqbalance(host: &Host) -> Option<u32> {
    let names = host.names("/proc").into_iter();
    let mut pids = names.filter_map(|name| name.parse::<u32>().ok());
    pids.find(|pid| host.read(&format!("/proc/{pid}/comm")).as_deref() == Ok("irqbalance"))
}

fn interrupts(
    host: &Host,
    wanted: &Wanted,
    check: &'static str,
    name: &str,
    device: &str,
) -> Finding {
    let mut finding = Finding::new(check, name)
        .why("the core that takes an interrupt stops its shard for it; several of one device belong on several cores, and with cores to spare on those without a shard");
    let irqs = fired(host, device);
    let allowed = Wanted::allowed_cpus(host);
    let shards = wanted.shard_cpus(host);
    let spare: Vec<usize> = allowed
        .iter()
        .copied()
        .filter(|cpu| !shards.contains(cpu))
        .collect();
    finding.wanted = match (spare.is_empty(), irqs.len() > 1) {
        (false, _) => format!("on cores without a shard ({})", as_list(&spare)),
        (true, true) => "on different cores".to_owned(),
        (true, false) => "any core: each has a shard".to_owned(),
    };
    if irqs.is_empty() {
        finding.state = State::Unseen;
        return finding.found("no interrupts of the device are shown");
    }
    let told = irqs.iter().map(|irq| {
        let Interrupt { number, count, .. } = irq;
        format!("{number} on {} ({count} so far)", as_list(&irq.taken_by))
    });
    let told = told.collect::<Vec<_>>().join(", ");
    let one_core = irqs.len() > 1
        && irqs[0].taken_by.len() == 1
        && irqs.iter().all(|irq| irq.taken_by == irqs[0].taken_by);
    let on_shard = irqs
        .iter()
        .any(|irq| irq.taken_by.iter().any(|cpu| shards.contains(cpu)));
    let good = match spare.is_empty() {
        true => !one_core || allowed.len() < 2,
        false => !on_shard,
    };
    let balancer = irqbalance(host);
    let told = match balancer {
        Some(pid) => format!("{told}; irqbalance runs (process {pid}) and moves them"),
        None => told,
    };
    finding = finding.found(told).judged(good, State::Advice);
    if balancer.is_some() {
        // It would move them again, and --revert would find values of somebody else.
        finding = finding.command("systemctl stop irqbalance", "systemctl start irqbalance");
    }
    let targets = if spare.is_empty() { &allowed } else { &spare };
    for (at, irq) in irqs.iter().enumerate() {
        if let Some(to) = targets.get(at % targets.len().max(1))
            && !irq.allowed.is_empty()
            && irq.allowed != [*to]
        {
            let path = format!("/proc/irq/{}/smp_affinity_list", irq.number);
            finding = finding.change(&path, &as_list(&irq.allowed), &to.to_string());
        }
    }
    finding
}
