//! Kernel and privileges.

use super::Examination;
use super::report::{Check, Group, Verdict};

/// Clock sources that are read without a system call.
const FAST_CLOCKS: &[&str] = &[
    "tsc",
    "arch_sys_counter",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
];

const GROUP: Group = Group::Kernel;

pub(super) fn checks(examination: &Examination<'_>) -> Vec<Check> {
    vec![
        version(examination),
        user(examination),
        user_access(examination),
        device_files(examination),
        clock(examination),
        descriptors(examination),
    ]
}

fn version(examination: &Examination<'_>) -> Check {
    match examination.machine.root.text("/proc/sys/kernel/osrelease") {
        Some(version) => {
            Check::ok(GROUP, "kernel", format!("Linux {version}")).value("release", version)
        }
        None => Check::of(
            GROUP,
            "kernel",
            Verdict::NotApplicable,
            "/proc does not tell",
        ),
    }
}

fn user(examination: &Examination<'_>) -> Check {
    let machine = examination.machine;
    let uid = machine.host.uid;
    let names = machine.capability_names();
    let capabilities = match names.is_empty() {
        true => "no capability that counts here".to_string(),
        false => names.join(", "),
    };
    Check::ok(GROUP, "user", format!("{uid}, with {capabilities}"))
        .value("uid", uid)
        .value("capabilities", names)
}

/// The kernel's half of libibverbs.
fn user_access(examination: &Examination<'_>) -> Check {
    let root = &examination.machine.root;
    let is_loaded = |module: &str| root.path(&format!("/sys/module/{module}")).is_dir();
    let known = ["ib_uverbs", "rdma_rxe", "smc"];
    let loaded: Vec<&str> = known.into_iter().filter(|name| is_loaded(name)).collect();
    let there = root.path("/sys/class/infiniband_verbs").is_dir();
    let check = match there {
        true => Check::ok(
            GROUP,
            "RDMA for programs",
            "the kernel gives it (ib_uverbs)",
        ),
        false => Check::of(
            GROUP,
            "RDMA for programs",
            examination.lack(),
            "the kernel does not give it: ib_uverbs is not loaded",
        )
        .cure("modprobe ib_uverbs (a kernel that lacks it cannot carry driver = \"verbs\")"),
    };
    check.value("loaded", loaded).value("ib_uverbs", there)
}

fn device_files(examination: &Examination<'_>) -> Check {
    const NAME: &str = "device files";
    const FOLDER: &str = "/dev/infiniband";
    let root = &examination.machine.root;
    let mut names = root.names(FOLDER);
    names.retain(|name| name.starts_with("uverbs"));
    if names.is_empty() {
        let found = format!("no {FOLDER}/uverbs*");
        return Check::of(GROUP, NAME, Verdict::NotApplicable, found);
    }
    let closed: Vec<&String> = names
        .iter()
        .filter(|name| {
            use rustix::fs::{Access, AtFlags, CWD, accessat};
            let path = root.path(&format!("{FOLDER}/{name}"));
            accessat(
                CWD,
                path,
                Access::READ_OK | Access::WRITE_OK,
                AtFlags::EACCESS,
            )
            .is_err()
        })
        .collect();
    let check = match closed.first() {
        None => Check::ok(GROUP, NAME, format!("{FOLDER}: {}", names.join(", "))),
        Some(first) => Check::of(
            GROUP,
            NAME,
            examination.lack(),
            format!("this user may not open {FOLDER}/{first}"),
        )
        .cure(format!(
            "as root: chmod a+rw {FOLDER}/{first}, or an udev rule that does it"
        )),
    };
    check.value("files", names)
}

fn clock(examination: &Examination<'_>) -> Check {
    const NAME: &str = "clock source";
    const FOLDER: &str = "/sys/devices/system/clocksource/clocksource0";
    let root = &examination.machine.root;
    let Some(current) = root.text(&format!("{FOLDER}/current_clocksource")) else {
        return Check::of(
            GROUP,
            NAME,
            Verdict::NotApplicable,
            "the kernel does not tell",
        );
    };
    let check = match FAST_CLOCKS.contains(&current.as_str()) {
        true => Check::ok(GROUP, NAME, current.clone()),
        false => Check::warning(
            GROUP,
            NAME,
            format!("{current}: each look at the clock is a slow read or a system call"),
            format!("echo tsc > {FOLDER}/current_clocksource, if available_clocksource has it"),
        ),
    };
    check.value("clocksource", current)
}

fn descriptors(examination: &Examination<'_>) -> Check {
    let limit = examination.machine.descriptors;
    let text = |limit: Option<u64>| limit.map_or("no limit".to_string(), |n| n.to_string());
    let found = format!(
        "{}, which a start raises to {}",
        text(limit.soft),
        text(limit.hard)
    );
    let check = match limit.hard {
        Some(hard) if hard < 4096 => Check::warning(
            GROUP,
            "file descriptors",
            found,
            "LimitNOFILE=65536 in the unit, or ulimit -Hn 65536 as root",
        ),
        Some(_) | None => Check::ok(GROUP, "file descriptors", found),
    };
    check.value("soft", limit.soft).value("hard", limit.hard)
}
