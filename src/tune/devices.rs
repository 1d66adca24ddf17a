//! Checks of the log directories: file system, mount options, and the device's queue. Pure
//! functions of a host's files.

use std::path::{Path, PathBuf};

use super::finding::{Finding, State};
use super::host::{Host, Unseen, choices};
use super::wanted::{Profile, Wanted};

/// Devices below devices (a mirror of encrypted volumes, say) that are followed.
const DEPTH_MAX: usize = 8;

/// Where a directory lies.
pub(super) struct Mount {
    pub point: PathBuf,
    pub kind: String,
    pub options: Vec<String>,
    /// Major and minor number, as `254:0`.
    pub number: String,
}

/// A block device with a queue of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub name: String,
    /// Its directory in `/sys`.
    pub dir: String,
}

pub(super) fn check(host: &Host, wanted: &Wanted, out: &mut Vec<Finding>) {
    let mounts = mounts(host);
    let mut devices: Vec<(Device, Vec<String>)> = Vec::new();
    for dir in &wanted.log_dirs {
        let told = dir.display().to_string();
        let Some(mount) = mount_of(&mounts, dir) else {
            let why = Unseen::Absent;
            let finding = Finding::new("file system", told)
                .wanted("xfs or ext4")
                .why("what the broker was tested on");
            out.push(finding.unseen(&why, "the kernel tells no mount for it"));
            continue;
        };
        out.push(file_system(&told, mount));
        out.push(mount_options(&told, mount, wanted));
        let below = devices_of(host, &mount.number);
        if below.is_empty() {
            let why = Unseen::Absent;
            let finding = Finding::new("device", told)
                .wanted("a block device whose queue can be seen")
                .why("the queue's scheduler and the device's cache decide what a flush costs");
            out.push(finding.unseen(&why, "no block device of it is shown in /sys (a file system without one, or a container)"));
            continue;
        }
        for device in below {
            match devices.iter_mut().find(|(known, _)| *known == device) {
                Some((_, dirs)) => dirs.push(told.clone()),
                None => devices.push((device, vec![told.clone()])),
            }
        }
    }
    for (device, dirs) in devices {
        out.push(scheduler(host, &device));
        out.push(merges(host, &device));
        out.push(write_cache(host, &device, wanted));
        out.push(completion(host, &device));
        if dirs.len() > 1 {
            out.push(
                Finding::new("shared device", device.name.clone())
                    .found(dirs.join(", "))
                    .wanted("one log directory a device")
                    .why("directories on one device do not add up: they wait for each other's flushes, and fail together")
                    .judged(false, State::Advice)
                    .command("log.dirs with one directory a device", "log.dirs as it is"),
            );
        }
    }
}

/// The mounts of the process, from `mountinfo`.
pub(super) fn mounts(host: &Host) -> Vec<Mount> {
    let text = host.of_process("mountinfo").unwrap_or_default();
    text.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let (number, _root, point, own) = (left.next()?, left.next()?, left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (kind, _source, shared) = (right.next()?, right.next()?, right.next().unwrap_or(""));
    let options = own.split(',').chain(shared.split(','));
    let mut options: Vec<String> = options
        .filter(|option| !option.is_empty())
        .map(str::to_owned)
        .collect();
    options.sort();
    options.dedup();
    Some(Mount {
        point: PathBuf::from(unescape(point)),
        kind: kind.to_owned(),
        options,
        number: number.to_owned(),
    })
}

/// Blanks in paths of `mountinfo` are written as `\040`.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// The innermost mount above a directory; of several at one place the last.
pub(super) fn mount_of<'a>(mounts: &'a [Mount], dir: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| dir.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.components().count())
}

/// Names of the devices below a directory.
pub fn names_below(host: &Host, dir: &Path) -> Vec<String> {
    let mounts = mounts(host);
    let number = mount_of(&mounts, dir).map_or("", |mount| &mount.number);
    let devices = devices_of(host, number).into_iter();
    devices.map(|device| device.name).collect()
}

/// The devices with queues at the bottom of a device number.
pub(super) fn devices_of(host: &Host, number: &str) -> Vec<Device> {
    let plain = !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit() || c == b':');
    let mut found = Vec::new();
    if plain && let Some(dir) = host.followed(&format!("/sys/dev/block/{number}")) {
        bottom(host, dir, 0, &mut found);
    }
    found
}

fn bottom(host: &Host, dir: String, depth: usize, found: &mut Vec<Device>) {
    if depth > DEPTH_MAX {
        return;
    }
    let below = host.names(&format!("{dir}/slaves"));
    if !below.is_empty() {
        for name in below {
            if let Some(dir) = host.followed(&format!("{dir}/slaves/{name}")) {
                bottom(host, dir, depth + 1, found);
            }
        }
        return;
    }
    // A partition has no queue; the disk above it has.
    let (parent, _) = dir.rsplit_once('/').unwrap_or_default();
    let dir = if host.exists(&format!("{dir}/queue")) {
        dir
    } else if host.exists(&format!("{parent}/queue")) {
        parent.to_owned()
    } else {
        return;
    };
    let name = dir.rsplit('/').next().unwrap_or_default().to_owned();
    let device = Device { name, dir };
    if !found.contains(&device) {
        found.push(device);
    }
}

fn file_system(dir: &str, mount: &Mount) -> Finding {
    let state = match mount.kind.as_str() {
        "ext4" | "xfs" => State::Good,
        "tmpfs" | "ramfs" | "nfs" | "nfs4" | "cifs" | "fuse" => State::Problem,
        _ => State::Advice,
    };
    Finding::new("file system", dir)
        .found(format!("{} at {}", mount.kind, mount.point.display()))
        .wanted("xfs or ext4")
        .why("tested with ext4; on overlay, btrfs and zfs direct writes and preallocation are copied or refused, network file systems answer flushes late, and memory file systems lose all")
        .judged(false, state)
        .command(
            "a file system of its own for the log directory: mkfs.xfs or mkfs.ext4, mount -o noatime,nodiratime",
            "move the directory back while the broker is stopped",
        )
}

fn mount_options(dir: &str, mount: &Mount, wanted: &Wanted) -> Finding {
    let has = |name: &str| mount.options.iter().any(|option| option == name);
    let mut bad: Vec<(&str, &str, State)> = Vec::new();
    for name in ["nobarrier", "barrier=0"] {
        if has(name) {
            let state = match wanted.profile {
                Profile::Durable => State::Problem,
                Profile::Latency | Profile::Throughput => State::Advice,
            };
            bad.push((name, "a flush does not reach the medium", state));
        }
    }
    let advice = [
        ("sync", "every write waits for the medium"),
        ("dirsync", "every roll waits for the medium"),
        (
            "data=journal",
            "every byte is written twice by the file system",
        ),
        ("strictatime", "every read writes"),
        (
            "discard",
            "deleting a segment trims at once, in front of others' writes; fstrim at night does the same",
        ),
    ];
    for (name, why) in advice {
        if has(name) {
            bad.push((name, why, State::Advice));
        }
    }
    if has("ro") {
        bad.push(("ro", "nothing can be written", State::Problem));
    }
    let state = bad.iter().map(|(_, _, state)| *state).max();
    let why: Vec<String> = bad
        .iter()
        .map(|(name, why, _)| format!("{name}: {why}"))
        .collect();
    let why = match why.is_empty() {
        true => "no option that costs a write or a flush".to_owned(),
        false => why.join("; "),
    };
    let without: Vec<&str> = bad
        .iter()
        .filter_map(|(name, _, _)| match *name {
            "nobarrier" | "barrier=0" => Some("barrier"),
            "sync" => Some("async"),
            "strictatime" => Some("noatime"),
            "discard" => Some("nodiscard"),
            "ro" => Some("rw"),
            _ => None,
        })
        .collect();
    let remount = |options: &str| format!("mount -o remount,{options} {}", mount.point.display());
    let names: Vec<&str> = bad.iter().map(|(name, _, _)| *name).collect();
    let finding = Finding::new("mount options", dir)
        .found(mount.options.join(","))
        .wanted("relatime or noatime; none of nobarrier, sync, dirsync, data=journal, discard, ro")
        .why(why)
        .judged(state.is_none(), state.unwrap_or(State::Good));
    match without.is_empty() {
        true => finding.command(
            "change the options in /etc/fstab and mount anew",
            "the former options",
        ),
        // Not for --apply: a remount touches everybody on that file system.
        false => finding.command(remount(&without.join(",")), remount(&names.join(","))),
    }
}

/// A path in the device's queue.
fn queue(device: &Device, file: &str) -> String {
    format!("{}/queue/{file}", device.dir)
}

fn scheduler(host: &Host, device: &Device) -> Finding {
    let path = queue(device, "scheduler");
    // Virtual disks say that they rotate, and cannot know.
    let virtual_disk = ["vd", "xvd", "nvme", "pmem"]
        .iter()
        .any(|start| device.name.starts_with(start));
    let rotating = !virtual_disk && host.number(&queue(device, "rotational")) == Ok(1);
    let good: &[&str] = match rotating {
        true => &["mq-deadline"],
        false => &["none"],
    };
    let finding = Finding::new("scheduler", device.name.clone())
        .wanted(good.join(" or "))
        .why(match rotating {
            true => "a disk that turns gains by sorting, and mq-deadline lets no read wait behind writes for long",
            false => "the device sorts for itself; a scheduler adds a lock and a queue in front of each flush",
        });
    match host.read(&path) {
        Err(why) => finding.unseen(&why, "the device has no queue that can be seen"),
        Ok(text) => {
            let (now, all) = choices(&text);
            let now = now.unwrap_or(text.trim()).to_owned();
            let finding = finding
                .found(now.clone())
                .judged(good.contains(&now.as_str()), State::Advice);
            match good.first().filter(|good| all.contains(*good)) {
                Some(to) => finding.change(&path, &now, to),
                None => finding,
            }
        }
    }
}

fn merges(host: &Host, device: &Device) -> Finding {
    let path = queue(device, "nomerges");
    let finding = Finding::new("nomerges", device.name.clone())
        .wanted("0")
        .why("segments are written back in order; requests that lie side by side become one");
    match host.read(&path) {
        Err(why) => finding.unseen(&why, "the device has no queue that can be seen"),
        Ok(now) => finding
            .found(now.clone())
            .judged(now == "0", State::Advice)
            .change(&path, &now, "0"),
    }
}

fn write_cache(host: &Host, device: &Device, wanted: &Wanted) -> Finding {
    let finding =
        Finding::new("write cache", device.name.clone()).wanted("what the device really has");
    let text = match host.read(&queue(device, "write_cache")) {
        Ok(text) => text,
        Err(why) => {
            return finding
                .why("what a flush reaches is decided by it")
                .unseen(&why, "the device has no queue that can be seen");
        }
    };
    let fua = match host.read(&queue(device, "fua")).as_deref() {
        Ok("1") => "with FUA",
        Ok("0") => "without FUA",
        _ => "FUA not told",
    };
    let finding = finding.found(format!("{text}, {fua}"));
    match text.as_str() {
        "write back" => finding.why(
            "volatile: every fdatasync empties it, and acknowledged records of rows without a flush are lost with the power",
        ),
        "write through" => {
            let state = match wanted.profile {
                Profile::Durable => State::Advice,
                Profile::Latency | Profile::Throughput => State::Good,
            };
            finding
                .why("the kernel sends the device no flushes: right if it has no cache or one that survives the power, else a flushed acknowledgement is worth nothing")
                .judged(false, state)
                .command(
                    format!("ask the device: nvme id-ctrl /dev/{0} (vwc), or hdparm -W /dev/{0}", device.name),
                    "nothing was changed",
                )
        }
        _ => finding
            .why("what a flush reaches is decided by it")
            .judged(false, State::Unseen),
    }
}

fn completion(host: &Host, device: &Device) -> Finding {
    let path = queue(device, "rq_affinity");
    let finding = Finding::new("rq affinity", device.name.clone())
        .wanted("1 or 2")
        .why("a completion is handled near the core that asked, so that the interrupted core does not work for all shards");
    match host.read(&path) {
        Err(why) => finding.unseen(&why, "the device has no queue that can be seen"),
        Ok(now) => finding
            .found(now.clone())
            .judged(now == "1" || now == "2", State::Advice)
            .change(&path, &now, "1"),
    }
}
