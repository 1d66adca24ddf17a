//! Checks of memory: huge pages, swapping, when written pages go to the disk, mappings. Pure
//! functions of a host's files.

use super::finding::{Finding, State};
use super::host::{Host, choices};
use super::wanted::{Profile, Wanted};

/// Dirty pages beyond this leave the kernel too little else.
const RATIO_MAX: i64 = 90;

pub(super) fn check(host: &Host, wanted: &Wanted, out: &mut Vec<Finding>) {
    out.push(huge_pages(host, wanted));
    out.push(swappiness(host));
    out.push(dirty(host, wanted));
    out.push(dirty_background(host, wanted));
    out.push(mappings(host));
}

fn huge_pages(host: &Host, wanted: &Wanted) -> Finding {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let finding = Finding::new("huge pages", "")
        .wanted(match wanted.profile {
            Profile::Throughput => "any",
            Profile::Latency | Profile::Durable => "madvise or never",
        })
        .why("with `always` a fault may stop a shard while the kernel moves pages about to make a huge one, and idle connections' memory grows");
    match host.read(path) {
        Err(why) => finding.unseen(&why, "the kernel is built without transparent huge pages"),
        Ok(text) => {
            let now = choices(&text).0.unwrap_or_default().to_owned();
            let state = match now.as_str() {
                "" => State::Unseen,
                "always" if wanted.profile != Profile::Throughput => State::Advice,
                _ => State::Good,
            };
            let found = if now.is_empty() { &text } else { &now };
            finding
                .found(found.clone())
                .judged(false, state)
                .change(path, &now, "madvise")
        }
    }
}

fn swappiness(host: &Host) -> Finding {
    let path = "/proc/sys/vm/swappiness";
    let finding = Finding::new("swappiness", "")
        .wanted("at most 10, or no swap")
        .why("under pressure the page cache of old segments shall go before the memory of the broker: a shard that waits for a page from swap answers nobody");
    // The first line is the heading.
    let swaps = host.read("/proc/swaps");
    if swaps.is_ok_and(|text| text.lines().count() <= 1) {
        return finding.found("no swap");
    }
    match host.number(path) {
        Err(why) => finding.unseen(&why, "no /proc/sys/vm here"),
        Ok(now) => finding
            .found(now.to_string())
            .judged((0..=10).contains(&now), State::Advice)
            .change(path, &now.to_string(), "1"),
    }
}

/// A threshold of dirty pages: the ratio, or the bytes where those are set. One is written only in
/// the form in which it is set: writing the other form would clear it.
fn threshold(
    host: &Host,
    name: &str,
    finding: Finding,
    ratio: std::ops::RangeInclusive<i64>,
    to: i64,
) -> Finding {
    let bytes = host.number(&format!("/proc/sys/vm/{name}_bytes"));
    if let Ok(bytes) = bytes
        && bytes > 0
    {
        return finding
            .found(format!("{bytes} bytes, set by hand: not judged"))
            .judged(true, State::Good);
    }
    let path = format!("/proc/sys/vm/{name}_ratio");
    match host.number(&path) {
        Err(why) => finding.unseen(&why, "no /proc/sys/vm here"),
        Ok(now) => finding
            .found(format!("{now}%"))
            .judged(ratio.contains(&now), State::Advice)
            .change(&path, &now.to_string(), &to.to_string()),
    }
}

fn dirty(host: &Host, wanted: &Wanted) -> Finding {
    let (least, to) = match wanted.profile {
        Profile::Latency | Profile::Throughput => (30, 40),
        Profile::Durable => (10, 20),
    };
    let finding = Finding::new("dirty ratio", "")
        .wanted(format!("{least}% to {RATIO_MAX}%"))
        .why("appends go into the page cache on the shard itself; from half way between the background threshold and this one the kernel makes the writer sleep, and the whole shard with it");
    threshold(host, "dirty", finding, least..=RATIO_MAX, to)
}

fn dirty_background(host: &Host, wanted: &Wanted) -> Finding {
    let (most, to) = match wanted.profile {
        Profile::Latency | Profile::Throughput => (5, 5),
        Profile::Durable => (10, 10),
    };
    let finding = Finding::new("dirty background ratio", "")
        .wanted(format!("1% to {most}%"))
        .why("writing back begins here; early and evenly is better than much at once, which fills the device's queue in front of every flush and cold read");
    threshold(host, "dirty_background", finding, 1..=most, to)
}

fn mappings(host: &Host) -> Finding {
    let finding = Finding::new("max map count", "")
        .wanted("any")
        .why("the broker maps neither segments nor indexes into memory, so the number of partitions does not count against it");
    match host.read("/proc/sys/vm/max_map_count") {
        Ok(now) => finding.found(now),
        Err(why) => finding.unseen(&why, "no /proc/sys/vm here"),
    }
}
