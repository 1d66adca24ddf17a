//! The checks on made-up hosts: a tidy one, a bad one, one in a container that shows little, and
//! hosts whose files hold anything at all.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use proptest::prelude::*;

use super::apply;
use super::finding::{Finding, State};
use super::host::Host;
use super::wanted::{Profile, Wanted};
use crate::config::{broker_definition, disk_profile, properties};

/// A directory with files as `path` and text.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    for (path, text) in files {
        put(home.path(), path, text);
    }
    home
}

fn put(home: &Path, path: &str, text: &str) {
    let path = home.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn link(home: &Path, to: &str, path: &str) {
    let path = home.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(to, path).unwrap();
}

fn wanted(profile: Profile) -> Wanted {
    Wanted {
        profile,
        shards: 2,
        log_dirs: vec!["/data/one".into(), "/data/two".into()],
    }
}

const LIMITS: &str =
    "Limit                     Soft Limit           Hard Limit           Units     
Max processes             96365                96365                processes 
Max open files            1024                 20000                files     
Max locked memory         65536                65536                bytes     
";

const INTERRUPTS: &str = "           CPU0       CPU1       
 36:          0   10684922 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 41:      21003          0 PCI-MSIX-0000:00:04.0   1-edge      virtio3-rx
 42:          0      43427 PCI-MSIX-0000:00:04.0   2-edge      virtio3-tx
 43:          0          0 PCI-MSIX-0000:00:04.0   3-edge      virtio3-event
ERR:          0
";

const PCI_DISK: &str = "sys/devices/pci0/0000:00:02.0";
const PCI_NIC: &str = "sys/devices/pci0/0000:00:04.0";

/// A host of two cores with one disk and one interface, set up badly.
fn bad_host() -> tempfile::TempDir {
    let home = tree(&[
        ("proc/self/limits", LIMITS),
        (
            "proc/self/status",
            "Name:\tx\nCapEff:\t0000000000000000\nSeccomp:\t2\nCpus_allowed_list:\t0-1\n",
        ),
        ("proc/self/cgroup", "0::/system.slice/broker.service\n"),
        (
            "sys/fs/cgroup/system.slice/broker.service/cpu.max",
            "150000 100000\n",
        ),
        ("sys/fs/cgroup/system.slice/cpu.max", "max 100000\n"),
        (
            "proc/self/mountinfo",
            "21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,nobarrier,discard\n22 21 0:30 / /data/two rw - tmpfs tmpfs rw\n",
        ),
        ("proc/interrupts", INTERRUPTS),
        ("proc/irq/36/smp_affinity_list", "1\n"),
        ("proc/irq/41/smp_affinity_list", "0\n"),
        ("proc/irq/42/smp_affinity_list", "0\n"),
        (
            "proc/swaps",
            "Filename Type Size Used Priority\n/swap file 1 0 -2\n",
        ),
        ("proc/sys/kernel/osrelease", "4.19.0-generic\n"),
        ("proc/sys/kernel/io_uring_disabled", "2\n"),
        ("proc/sys/vm/swappiness", "60\n"),
        ("proc/sys/vm/dirty_ratio", "20\n"),
        ("proc/sys/vm/dirty_bytes", "0\n"),
        ("proc/sys/vm/dirty_background_ratio", "0\n"),
        ("proc/sys/vm/dirty_background_bytes", "1000000\n"),
        ("proc/sys/vm/max_map_count", "65530\n"),
        ("proc/sys/net/core/somaxconn", "128\n"),
        ("proc/sys/net/ipv4/tcp_max_syn_backlog", "4096\n"),
        ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t262144\n"),
        ("proc/sys/net/ipv4/tcp_slow_start_after_idle", "1\n"),
        (
            "sys/kernel/mm/transparent_hugepage/enabled",
            "[always] madvise never\n",
        ),
        (
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet\n",
        ),
        (
            "sys/devices/system/clocksource/clocksource0/available_clocksource",
            "tsc hpet acpi_pm\n",
        ),
        (
            "sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
            "powersave\n",
        ),
        (
            "sys/devices/system/cpu/cpufreq/policy1/scaling_governor",
            "performance\n",
        ),
        ("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n"),
        (
            "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
            "0-1\n",
        ),
        (
            "sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
            "0-1\n",
        ),
        ("sys/devices/system/cpu/cpu0/cpuidle/state2/name", "C6\n"),
        (
            "sys/devices/system/cpu/cpu0/cpuidle/state2/latency",
            "133\n",
        ),
        ("sys/devices/system/cpu/cpu0/cpuidle/state2/disable", "0\n"),
        ("sys/devices/system/node/online", "0-1\n"),
        ("sys/devices/system/node/node0/cpulist", "0\n"),
        ("sys/devices/system/node/node1/cpulist", "1\n"),
    ]);
    let at = home.path();
    let queue = format!("{PCI_DISK}/virtio1/block/vda/queue");
    put(
        at,
        &format!("{PCI_DISK}/virtio1/block/vda/vda1/partition"),
        "1\n",
    );
    for (file, text) in [
        ("scheduler", "none [bfq] mq-deadline\n"),
        ("rotational", "1\n"),
        ("nomerges", "2\n"),
        ("write_cache", "write back\n"),
        ("fua", "0\n"),
        ("rq_affinity", "0\n"),
    ] {
        put(at, &format!("{queue}/{file}"), text);
    }
    put(at, &format!("{PCI_DISK}/msi_irqs/36"), "msix\n");
    // As the kernel does it: the device of a disk is the one above `block`.
    link(at, "../..", &format!("{PCI_DISK}/virtio1/block/vda/device"));
    link(
        at,
        "../../devices/pci0/0000:00:02.0/virtio1/block/vda/vda1",
        "sys/dev/block/254:1",
    );
    for number in [41, 42, 43] {
        put(at, &format!("{PCI_NIC}/msi_irqs/{number}"), "msix\n");
    }
    let interface = format!("{PCI_NIC}/virtio3/net/eth0");
    put(at, &format!("{interface}/queues/rx-0/rps_cpus"), "0\n");
    put(at, &format!("{interface}/queues/tx-0/xps_cpus"), "0\n");
    link(at, "../..", &format!("{interface}/device"));
    link(
        at,
        "../../devices/pci0/0000:00:04.0/virtio3/net/eth0",
        "sys/class/net/eth0",
    );
    put(at, "sys/class/net/lo/queues/rx-0/rps_cpus", "0\n");
    home
}

fn find<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let mut found = findings.iter().filter(|finding| finding.check == check);
    found
        .next()
        .unwrap_or_else(|| panic!("no finding '{check}'"))
}

#[test]
fn a_bad_host_is_told_what_is_wrong_and_how_to_change_it() {
    let home = bad_host();
    let host = Host::under(home.path());
    let findings = super::check(&host, &wanted(Profile::Latency));
    for (check, state) in [
        ("kernel", State::Problem),
        ("io_uring", State::Problem),
        ("seccomp", State::Unseen),
        ("clocksource", State::Problem),
        ("memlock", State::Problem),
        ("nofile", State::Problem),
        ("nproc", State::Good),
        ("cores", State::Good),
        ("cpu quota", State::Problem),
        ("governor", State::Advice),
        ("turbo", State::Advice),
        ("idle states", State::Advice),
        ("smt siblings", State::Advice),
        ("numa", State::Advice),
        ("huge pages", State::Advice),
        ("swappiness", State::Advice),
        ("dirty ratio", State::Advice),
        ("dirty background ratio", State::Good),
        ("max map count", State::Good),
        ("mount options", State::Advice),
        ("scheduler", State::Advice),
        ("nomerges", State::Advice),
        ("write cache", State::Good),
        ("rq affinity", State::Advice),
        ("somaxconn", State::Advice),
        ("syn backlog", State::Good),
        ("tcp_rmem", State::Good),
        ("tcp_wmem", State::Advice),
        ("slow start after idle", State::Advice),
        ("rps", State::Advice),
        ("xps", State::Good),
        ("nic interrupts", State::Advice),
        ("disk interrupts", State::Good),
    ] {
        let finding = find(&findings, check);
        assert_eq!(finding.state, state, "{finding:?}");
        assert!(
            !finding.why.is_empty() && !finding.wanted.is_empty(),
            "{finding:?}"
        );
        assert_eq!(finding.set.len(), finding.set_back.len());
        if matches!(state, State::Advice | State::Problem) {
            assert!(!finding.set.is_empty(), "no command: {finding:?}");
        }
    }
    let of = |subject: &str| {
        findings
            .iter()
            .find(|f| f.check == "file system" && f.subject == subject)
            .map(|f| f.state)
    };
    assert_eq!(of("/data/one"), Some(State::Good));
    assert_eq!(of("/data/two"), Some(State::Problem), "tmpfs");
    let scheduler = find(&findings, "scheduler");
    assert_eq!(scheduler.subject, "vda", "the disk of the partition");
    assert!(scheduler.set[0].starts_with("echo none > /sys/devices/pci0/"));
    assert!(scheduler.set_back[0].starts_with("echo bfq > "));
    assert_eq!(find(&findings, "cpu quota").found, "1.50 cores");
    assert_eq!(find(&findings, "rps").subject, "eth0", "lo is no device");
    assert_eq!(find(&findings, "rps").changes[0].to, "3");
}

#[test]
fn a_durable_log_without_barriers_is_a_problem() {
    let home = bad_host();
    let findings = super::check(&Host::under(home.path()), &wanted(Profile::Durable));
    assert_eq!(find(&findings, "mount options").state, State::Problem);
    let options = &find(&findings, "mount options").set[0];
    assert_eq!(options, "mount -o remount,barrier,nodiscard /");
}

#[test]
fn everything_applied_makes_a_host_better_and_reverting_makes_it_the_same_again() {
    let home = bad_host();
    let host = Host::under(home.path());
    let wanted = wanted(Profile::Latency);
    let before = super::check(&host, &wanted);
    let file = home.path().join("revert.json");
    let changes = apply::changes(&before, true);
    assert!(changes.iter().any(|change| change.interrupt));
    assert!(apply::changes(&before, false).len() < changes.len());
    let outcomes = apply::apply(&host, &changes, &file).unwrap();
    assert!(outcomes.iter().all(|o| o.failure.is_none()), "{outcomes:?}");
    let after = super::check(&host, &wanted);
    for finding in before.iter().filter(|finding| !finding.changes.is_empty()) {
        // A made-up file takes what is written for the whole of its choices.
        if !["scheduler", "huge pages"].contains(&finding.check) {
            assert_eq!(
                find(&after, finding.check).state,
                State::Good,
                "{finding:?}"
            );
        }
    }
    apply::revert(&host, &file).unwrap();
    let reverted = super::check(&host, &wanted);
    for finding in &before {
        if !["scheduler", "huge pages"].contains(&finding.check) {
            assert_eq!(
                find(&reverted, finding.check).state,
                find(&before, finding.check).state
            );
        }
    }
}

#[test]
fn a_host_that_shows_nothing_is_unseen_and_no_problem() {
    let home = tree(&[]);
    let findings = super::check(&Host::under(home.path()), &wanted(Profile::Latency));
    for finding in &findings {
        assert!(finding.state <= State::Unseen, "{finding:?}");
        assert!(!finding.found.is_empty(), "{finding:?}");
    }
    let unseen = findings.iter().filter(|f| f.state == State::Unseen);
    assert!(unseen.count() > 15);
}

#[test]
fn the_limits_of_another_process_and_of_control_groups_of_the_old_kind_are_read() {
    let home = tree(&[
        (
            "proc/7/limits",
            "Max open files            200000               200000               files\nMax locked memory         unlimited            unlimited            bytes\n",
        ),
        ("proc/7/status", "Cpus_allowed_list:\t0-3\n"),
        (
            "proc/7/cgroup",
            "3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n",
        ),
        ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1\n"),
        ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n"),
    ]);
    let host = Host::under(home.path()).for_process(7);
    let findings = super::check(&host, &wanted(Profile::Throughput));
    for (check, found) in [("nofile", "200000, 200000 at most"), ("cpu quota", "none")] {
        assert_eq!(find(&findings, check).found, found);
        assert_eq!(find(&findings, check).state, State::Good);
    }
    assert_eq!(find(&findings, "memlock").state, State::Good);
}

/// What is said of io_uring where it is restricted, of a process with this status.
fn restricted(group: &str, status: &str) -> Finding {
    let home = tree(&[
        ("proc/sys/kernel/io_uring_disabled", "1\n"),
        ("proc/sys/kernel/io_uring_group", group),
        ("proc/7/status", status),
        ("proc/7/uid_map", "         0          0 4294967295\n"),
    ]);
    let host = Host::under(home.path()).for_process(7);
    let findings = super::check(&host, &wanted(Profile::Throughput));
    find(&findings, "io_uring").clone()
}

#[test]
fn restricted_rings_are_a_problem_of_a_process_outside_of_the_group_only() {
    let status = |gid: &str, groups: &str, capabilities: &str| {
        format!("Name:\tx\nGid:\t{gid}\nGroups:\t{groups} \nCapEff:\t{capabilities}\n")
    };
    let none = "0000000000000000";
    let admin = "0000000000200000";
    for (group, gid, groups, capabilities, state) in [
        ("995\n", "7\t7\t7\t7", "4 995 1000", none, State::Good),
        ("995\n", "7\t7\t7\t995", "", none, State::Good),
        ("995\n", "7\t7\t7\t7", "4", admin, State::Good),
        ("-1\n", "7\t7\t7\t7", "4", admin, State::Good),
        ("995\n", "7\t7\t7\t7", "4 1000", none, State::Problem),
        // The real one does not count, nor all other privileges.
        (
            "995\n",
            "995\t7\t7\t7",
            "",
            "000001ffffdfffff",
            State::Problem,
        ),
        ("-1\n", "0\t0\t0\t0", "0", none, State::Problem),
        ("garbage", "0\t0\t0\t0", "0", none, State::Problem),
    ] {
        let finding = restricted(group, &status(gid, groups, capabilities));
        assert_eq!(finding.state, state, "{finding:?}");
        assert_eq!(finding.set.is_empty(), state == State::Good, "{finding:?}");
        assert!(finding.changes.is_empty(), "not for --apply");
    }
}

#[test]
fn restricted_rings_of_a_process_that_cannot_be_seen_are_no_problem() {
    let home = tree(&[("proc/sys/kernel/io_uring_disabled", "1\n")]);
    let state = |home: &Path| {
        let findings = super::check(&Host::under(home), &wanted(Profile::Throughput));
        find(&findings, "io_uring").state
    };
    assert_eq!(state(home.path()), State::Unseen, "no status");
    put(
        home.path(),
        "proc/self/status",
        "CapEff:\t0000000000200000\n",
    );
    assert_eq!(state(home.path()), State::Good);
    put(home.path(), "proc/self/uid_map", "0 100000 65536\n");
    let inside = state(home.path());
    assert_eq!(inside, State::Unseen, "the privilege ends at its namespace");
}

#[test]
fn what_is_wanted_is_what_is_judged_by() {
    let home = bad_host();
    let host = Host::under(home.path());
    for (profile, pages, dirty) in [
        (Profile::Latency, "madvise or never", "30% to 90%"),
        (Profile::Throughput, "any", "30% to 90%"),
        (Profile::Durable, "madvise or never", "10% to 90%"),
    ] {
        let findings = super::check(&host, &wanted(profile));
        let found = find(&findings, "huge pages");
        assert_eq!(found.wanted, pages);
        assert_eq!(found.state == State::Good, pages == "any", "always is set");
        assert_eq!(find(&findings, "dirty ratio").wanted, dirty);
    }
    for (release, state) in [
        ("5.7.9", State::Problem),
        ("5.8.0", State::Advice),
        ("6.0.1", State::Advice),
        ("6.1.0", State::Good),
    ] {
        put(home.path(), "proc/sys/kernel/osrelease", release);
        let findings = super::check(&host, &wanted(Profile::Latency));
        assert_eq!(find(&findings, "kernel").state, state, "{release}");
    }
}

#[test]
fn irqbalance_does_not_undo_unseen_what_is_written_for_interrupts() {
    let home = bad_host();
    put(home.path(), "proc/811/comm", "irqbalance\n");
    put(home.path(), "proc/812/comm", "irqbalance-ui\n");
    let findings = super::check(&Host::under(home.path()), &wanted(Profile::Latency));
    let nic = find(&findings, "nic interrupts");
    assert!(
        nic.found.contains("irqbalance runs (process 811)"),
        "{nic:?}"
    );
    assert_eq!(nic.set[0], "systemctl stop irqbalance");
    assert_eq!(nic.set_back[0], "systemctl start irqbalance");
    assert_eq!(nic.set.len(), nic.changes.len() + 1);
    fs::remove_dir_all(home.path().join("proc/811")).unwrap();
    let findings = super::check(&Host::under(home.path()), &wanted(Profile::Latency));
    let nic = find(&findings, "nic interrupts");
    assert!(!nic.found.contains("irqbalance"), "{nic:?}");
}

#[test]
fn a_property_file_sets_no_default_and_overrides_a_disk_profile_only_where_the_readme_says_so() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tuning");
    let readme = fs::read_to_string(dir.join("README.md")).unwrap();
    for name in ["latency", "throughput", "durable"] {
        let file = format!("{name}.properties");
        let text = fs::read_to_string(dir.join(&file)).unwrap();
        let settings = properties::parse(&file, &text).unwrap();
        assert!(!settings.is_empty());
        let told = readme.lines().find_map(|line| {
            let (first, wins) = line.strip_prefix("| ")?.split_once(" | ")?;
            (first == format!("`{file}`")).then_some(wins)
        });
        let mut wins = 0;
        for setting in settings {
            let definition = broker_definition(&setting.key).unwrap();
            assert_ne!(
                definition.default,
                Some(setting.value.as_str()),
                "{file}: {}",
                setting.key
            );
            if disk_profile::LIMITS.contains(&setting.key.as_str()) {
                wins += 1;
                let key = format!("`{}`", setting.key);
                assert!(told.unwrap().contains(&key), "{file}: {key}");
            }
        }
        assert_eq!(told.unwrap().matches('`').count(), 2 * wins, "{file}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the files hold, something is said and nothing panics; what is to be written goes
    /// to settings only.
    #[test]
    fn files_with_anything_in_them_are_judged_without_a_panic(
        texts in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..80),
                "[0-9,: \\-\\[\\]a-z%/.]{0,60}".prop_map(String::into_bytes),
                "-?[0-9]{1,30}( [0-9]{1,25}){0,3}\n".prop_map(String::into_bytes),
            ],
            1..12,
        ),
        profile in prop_oneof![
            Just(Profile::Latency), Just(Profile::Throughput), Just(Profile::Durable)
        ],
        spare in any::<u64>(),
    ) {
        let home = bad_host();
        let mut at = 0;
        spoil(home.path(), &texts, spare, &mut at);
        let host = Host::under(home.path());
        let findings = super::check(&host, &wanted(profile));
        prop_assert!(findings.len() > 20);
        for change in apply::changes(&findings, true) {
            prop_assert!(super::host::is_setting(&change.path), "{}", change.path);
        }
    }
}

/// Overwrites about half of the files below a directory.
fn spoil(dir: &Path, texts: &[Vec<u8>], spare: u64, at: &mut usize) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            spoil(&path, texts, spare, at);
        } else if kind.is_file() {
            if spare >> (*at % 64) & 1 == 0 {
                fs::write(&path, &texts[*at % texts.len()]).unwrap();
            }
            *at += 1;
        }
    }
}
