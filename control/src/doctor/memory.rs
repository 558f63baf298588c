//! Hugepages, locked memory, and memory as a whole.

use super::report::{Check, Group, Verdict};
use super::{Examination, Need};
use crate::config::{Hugepages, format_size};
use crate::plane::link_memory_bytes;
use crate::start::rehearsal::Step;
use crate::start::{session_bytes, session_hugepages};

const GROUP: Group = Group::Memory;

pub(super) fn checks(examination: &Examination<'_>) -> Vec<Check> {
    let mut checks = vec![hugepages(examination)];
    checks.extend(other_pools(examination));
    checks.push(memlock(examination));
    checks.extend(available(examination));
    checks
}

fn hugepages(examination: &Examination<'_>) -> Check {
    let pool = examination.machine.hugepages();
    let page = pool.page_bytes as u64;
    let needed = session_hugepages(&examination.config, pool);
    let name = format!("hugepages of {}", format_size(page));
    let nodes = nodes(examination);
    let on_nodes: Vec<String> = nodes
        .iter()
        .map(|(node, free)| format!("{free} on node {node}"))
        .collect();
    let on_nodes = match on_nodes.is_empty() {
        true => String::new(),
        false => format!(" ({})", on_nodes.join(", ")),
    };
    let found = format!("{} of {} free{on_nodes}", pool.free, pool.total);
    let cure = format!("echo {needed} > /proc/sys/vm/nr_hugepages");
    let enough = pool.free as u64 >= needed;
    let check = match (
        examination.step(Step::Hugepages),
        examination.config.memory.hugepages,
    ) {
        (Some(Err(fatal)), _) => {
            Check::failed(GROUP, name, format!("{found}; {}", fatal.message()), cure)
        }
        (_, Hugepages::Off) => {
            let found = format!("{found}; memory.hugepages is \"off\"");
            Check::of(GROUP, name, Verdict::NotApplicable, found)
        }
        (_, Hugepages::Auto | Hugepages::Required) if enough => {
            Check::ok(GROUP, name, format!("{found}, {needed} for one session"))
        }
        (_, Hugepages::Auto | Hugepages::Required) => {
            let found =
                format!("{found}, {needed} for one session; ordinary pages are used instead");
            Check::warning(GROUP, name, found, cure)
        }
    };
    let nodes: serde_json::Map<_, _> = nodes
        .into_iter()
        .map(|(node, free)| (node, free.into()))
        .collect();
    check
        .value("page_bytes", page)
        .value("free", pool.free)
        .value("total", pool.total)
        .value("needed", needed)
        .value("free_by_node", nodes)
}

/// Free hugepages of 2 MiB on each memory node.
fn nodes(examination: &Examination<'_>) -> Vec<(String, u64)> {
    const FOLDER: &str = "/sys/devices/system/node";
    let machine = examination.machine;
    let names = machine.root.names(FOLDER);
    let of_node = |name: &String| {
        let number = name.strip_prefix("node")?;
        let free = format!("{FOLDER}/{name}/hugepages/hugepages-2048kB/free_hugepages");
        Some((number.to_string(), machine.number(&free)?))
    };
    names.iter().filter_map(of_node).collect()
}

/// Hugepages of other sizes, which are not used.
fn other_pools(examination: &Examination<'_>) -> Vec<Check> {
    const FOLDER: &str = "/sys/kernel/mm/hugepages";
    let machine = examination.machine;
    let names = machine.root.names(FOLDER);
    let other = |name: &String| {
        let kib: u64 = name
            .strip_prefix("hugepages-")?
            .strip_suffix("kB")?
            .parse()
            .ok()?;
        let total = machine.number(&format!("{FOLDER}/{name}/nr_hugepages"))?;
        if kib == 2048 || total == 0 {
            return None;
        }
        let name = format!("hugepages of {}", format_size(kib * 1024));
        let found = format!("{total}, which Pollux does not use");
        Some(Check::of(GROUP, name, Verdict::NotApplicable, found).value("total", total))
    };
    names.iter().filter_map(other).collect()
}

/// Registered memory is locked memory. Nothing is registered at the start, so a low limit keeps
/// nobody from starting: the first session or link is refused.
fn memlock(examination: &Examination<'_>) -> Check {
    const NAME: &str = "locked memory";
    let limit = examination.machine.memlock;
    let device = &examination.config.device;
    let link = link_memory_bytes(device.send_wr, device.recv_wr);
    let needed = link + session_bytes(&examination.config);
    let most = link * u64::from(examination.config.workers.links_max)
        + examination.config.attach.memory_max_bytes;
    let limits = match (limit.soft, limit.hard) {
        (None, _) => "no limit".to_string(),
        (Some(soft), None) => format!("limit {}, which may be raised", format_size(soft)),
        (Some(soft), Some(hard)) => {
            format!("limit {} (hard {})", format_size(soft), format_size(hard))
        }
    };
    let found = format!(
        "{limits}; one link and one session register {}",
        format_size(needed)
    );
    let cure = "ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, or docker run --ulimit \
                memlock=-1";
    let check = match (examination.need, limit.soft) {
        (Need::Soft, _) => {
            let found = format!("{found}, but the soft driver locks none");
            Check::of(GROUP, NAME, Verdict::NotApplicable, found)
        }
        (Need::Verbs | Need::Either, _) if examination.machine.may_lock_all() => {
            let found = format!("{found}; it does not count with CAP_IPC_LOCK");
            Check::ok(GROUP, NAME, found)
        }
        (Need::Verbs | Need::Either, Some(soft)) if soft < needed => Check::warning(
            GROUP,
            NAME,
            format!("{found}: sessions will be refused"),
            cure,
        ),
        (Need::Verbs | Need::Either, Some(soft)) if soft < most => {
            let found = format!("{found}, and all that may be open {}", format_size(most));
            Check::warning(GROUP, NAME, found, cure)
        }
        (Need::Verbs | Need::Either, _) => Check::ok(GROUP, NAME, found),
    };
    check
        .value("soft_bytes", limit.soft)
        .value("hard_bytes", limit.hard)
        .value("needed_bytes", needed)
        .value("needed_bytes_max", most)
}

fn available(examination: &Examination<'_>) -> Option<Check> {
    const NAME: &str = "memory";
    let available = examination.machine.meminfo_bytes("MemAvailable")?;
    let most = examination.config.attach.memory_max_bytes;
    let session = session_bytes(&examination.config);
    let found = format!(
        "{} MiB available; one session takes {}, all together at most {}",
        available >> 20,
        format_size(session),
        format_size(most)
    );
    let check = match available < most {
        true => Check::warning(
            GROUP,
            NAME,
            found,
            "lower attach.memory_max or attach.slots",
        ),
        false => Check::ok(GROUP, NAME, found),
    };
    Some(
        check
            .value("available_bytes", available)
            .value("session_bytes", session)
            .value("sessions_bytes_max", most),
    )
}
