//! Checks of what the process may use: locked memory, open files, threads, its share of the cores.
//! Pure functions of a host's files.

use super::finding::{Finding, State};
use super::host::{Host, Unseen, as_list};
use super::wanted::Wanted;

/// What an executor's rings take, and its registered memory at most for each of three rings; see
/// `rt::ring::build`.
const RING_BYTES: u64 = 100 << 10;
const REGISTERED_BYTES_MAX: u64 = 3 * (4 << 20);
/// Less than this the ring runtime refuses.
const MEMLOCK_MIN: u64 = 512 << 10;
/// Two files for each of ten thousand partitions' active segments and indexes, ten thousand
/// connections, and room for sealed segments.
const FILES_WANTED: u64 = 100_000;
/// Below this a few hundred partitions are too many.
const FILES_MIN: u64 = 4096;
const THREADS_WANTED: u64 = 4096;
const CAP_IPC_LOCK: u32 = 14;

pub(super) fn check(host: &Host, wanted: &Wanted, out: &mut Vec<Finding>) {
    out.push(memlock(host, wanted));
    out.push(open_files(host));
    out.push(threads(host));
    out.push(cores(host, wanted));
    out.push(quota(host, wanted));
}

/// Soft and hard limit of a name in `/proc/<pid>/limits`; `u64::MAX` is none.
fn limit(host: &Host, name: &str) -> Result<(u64, u64), Unseen> {
    let text = host.of_process("limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let mut values = line.unwrap_or_default().split_whitespace();
    let mut value = || match values.next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    };
    match (value(), value()) {
        (Some(soft), Some(hard)) => Ok((soft, hard)),
        _ => Err(Unseen::Unreadable(format!("no limit '{name}' is told"))),
    }
}

fn told(limit: u64) -> String {
    match limit {
        u64::MAX => "unlimited".to_owned(),
        limit => limit.to_string(),
    }
}

fn may_lock_memory(host: &Host) -> bool {
    let status = host.of_process("status").unwrap_or_default();
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

fn memlock(host: &Host, wanted: &Wanted) -> Finding {
    let finding = Finding::new("memlock", "")
        .wanted("unlimited, or CAP_IPC_LOCK")
        .why(
            "the rings and the buffers registered with them count as locked memory, over all processes of \
             the user; with little of it direct writes take the slower, unregistered path, and with less than \
             512 KiB the broker does not start",
        );
    let (soft, hard) = match limit(host, "Max locked memory") {
        Ok(limits) => limits,
        Err(why) => return finding.unseen(&why, "no limits are told of the process"),
    };
    let executors = wanted.executors() as u64;
    let full = executors.saturating_mul(RING_BYTES + REGISTERED_BYTES_MAX);
    if may_lock_memory(host) {
        let found = format!("CAP_IPC_LOCK (limit {})", told(hard));
        // glommio looks at the soft limit even where the privilege makes it void.
        return finding
            .found(found)
            .judged(hard >= MEMLOCK_MIN, State::Problem);
    }
    let state = if hard < MEMLOCK_MIN {
        State::Problem
    } else {
        State::Advice
    };
    let found = format!("{} bytes, {} at most", told(soft), told(hard));
    finding
        .found(found)
        // A share of an eighth goes to buffers: see `rt::ring::build`.
        .judged(hard == u64::MAX || hard / 8 >= full, state)
        .command(
            "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited` before the start",
            format!("LimitMEMLOCK={}", told(hard)),
        )
}

fn open_files(host: &Host) -> Finding {
    let finding = Finding::new("nofile", "")
        .wanted(format!("{FILES_WANTED} or more"))
        .why("every partition keeps files open and every connection is one; beyond the limit connections are refused and segments cannot roll");
    match limit(host, "Max open files") {
        Err(why) => finding.unseen(&why, "no limits are told of the process"),
        Ok((soft, hard)) => {
            let state = if soft < FILES_MIN {
                State::Problem
            } else {
                State::Advice
            };
            finding
                .found(format!("{}, {} at most", told(soft), told(hard)))
                .judged(soft >= FILES_WANTED, state)
                .command(
                    format!("LimitNOFILE={FILES_WANTED} in the unit, or `ulimit -n {FILES_WANTED}` before the start"),
                    format!("LimitNOFILE={}", told(soft)),
                )
        }
    }
}

fn threads(host: &Host) -> Finding {
    let finding = Finding::new("nproc", "")
        .wanted(format!("{THREADS_WANTED} or more"))
        .why("the kernel makes a thread for every fdatasync and buffered write under way on a ring (io_uring workers), and they count as threads of the user");
    match limit(host, "Max processes") {
        Err(why) => finding.unseen(&why, "no limits are told of the process"),
        Ok((soft, _)) => finding
            .found(told(soft))
            .judged(soft >= THREADS_WANTED, State::Advice)
            .command(
                format!("LimitNPROC={THREADS_WANTED} in the unit"),
                format!("LimitNPROC={}", told(soft)),
            ),
    }
}

fn cores(host: &Host, wanted: &Wanted) -> Finding {
    let finding = Finding::new("cores", "")
        .wanted(format!("{} cores", wanted.shards))
        .why("each shard is pinned to a core; with fewer cores than shards nothing is pinned and shards take the time from each other");
    let allowed = Wanted::allowed_cpus(host);
    if allowed.is_empty() {
        let why = Unseen::Absent;
        return finding.unseen(
            &why,
            "the kernel does not say which cores the process may use",
        );
    }
    finding
        .found(format!("{} ({})", allowed.len(), as_list(&allowed)))
        .judged(wanted.shards <= allowed.len(), State::Problem)
        .command(
            format!(
                "highwater.shards={}, or CPUAffinity= with more cores in the unit",
                allowed.len()
            ),
            format!("highwater.shards={}", wanted.shards),
        )
}

fn quota(host: &Host, wanted: &Wanted) -> Finding {
    let finding = Finding::new("cpu quota", "")
        .wanted(format!("none, or {} cores", wanted.shards))
        .why("a group that has used up its quota stands still until the period ends, up to 100 ms: every shard at once, in the middle of an answer");
    let groups = match host.of_process("cgroup") {
        Ok(groups) => groups,
        Err(why) => return finding.unseen(&why, "the kernel has no control groups"),
    };
    let mut cores: Option<f64> = None;
    let mut seen = false;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let of_cpu = controllers.split(',').any(|name| name == "cpu");
        let mut at = path.trim_end_matches('/');
        if path.contains("..") || !(controllers.is_empty() || of_cpu) {
            continue;
        }
        loop {
            let quota = if of_cpu {
                let dir = format!("/sys/fs/cgroup/cpu{at}");
                let number = |name: &str| host.number(&format!("{dir}/{name}")).ok();
                number("cpu.cfs_quota_us").zip(number("cpu.cfs_period_us"))
            } else {
                let text = host.read(&format!("/sys/fs/cgroup{at}/cpu.max"));
                text.ok().and_then(|text| {
                    let (quota, period) = text.split_once(' ')?;
                    let quota = match quota {
                        "max" => -1,
                        quota => quota.parse().ok()?,
                    };
                    Some((quota, period.trim().parse().ok()?))
                })
            };
            if let Some((quota, period)) = quota {
                seen = true;
                if quota > 0 && period > 0 {
                    let share = quota as f64 / period as f64;
                    cores = Some(cores.map_or(share, |least| least.min(share)));
                }
            }
            match at.rfind('/') {
                Some(end) => at = &at[..end],
                None => break,
            }
        }
    }
    match cores {
        Some(cores) => finding
            .found(format!("{cores:.2} cores"))
            .judged(cores >= wanted.shards as f64, State::Problem)
            .command(
                "give the container or unit no cpu limit (CPUQuota=), and whole cores by its cpuset instead",
                format!("CPUQuota={:.0}%", cores * 100.0),
            ),
        None if seen => finding.found("none"),
        None => finding
            .found("none that can be seen here")
            .judged(host.exists("/sys/fs/cgroup"), State::Unseen),
    }
}
