//! Libraries, devices, ports and GIDs.

use std::net::{IpAddr, Ipv6Addr};

use pollux_provider::verbs::{
    Adapter, GidChoice, GidError, GidTable, LoadError, OpenError, Port, gid_reasons, mtu_bytes,
};
use serde_json::{Value, json};

use super::report::{Check, Group, Verdict};
use super::{Examination, Need, peer};
use crate::appliance::devices::verbs_options;
use crate::start::rehearsal::Step;

/// What adapters need beside the kernel: the library, and in it a driver for each maker.
const PACKAGES: &str = "apt install libibverbs1 ibverbs-providers (Fedora: dnf install libibverbs)";

pub(super) fn checks(examination: &Examination<'_>) -> Vec<Check> {
    let mut checks = vec![library(examination), providers(examination)];
    checks.extend(configured(examination));
    let refused = |name: &str, error: &OpenError| {
        let found = error.to_string();
        Check::of(Group::Devices, name, examination.lack(), found).cure(cure(error))
    };
    match known(examination) {
        Ok(adapters) => {
            for adapter in adapters {
                match adapter {
                    Ok(adapter) => of_adapter(examination, adapter, &mut checks),
                    Err(error) => checks.push(refused("adapter", error)),
                }
            }
        }
        // What the configured adapter lacks is often the same, and told already.
        Err(error) => {
            let check = refused("adapters", &error);
            if !checks.iter().any(|told| told.found == check.found) {
                checks.push(check);
            }
        }
    }
    checks
}

/// The adapters, by the library where it can be used, else by the kernel.
fn known<'a>(
    examination: &Examination<'a>,
) -> Result<Vec<Result<&'a Adapter, &'a OpenError>>, OpenError> {
    let survey = &examination.machine.survey;
    let adapters: Vec<_> = match (&survey.library, &survey.devices) {
        (Ok(_), Ok(devices)) => devices.iter().map(|one| one.adapter.as_ref()).collect(),
        (Ok(_), Err(error)) if survey.in_kernel.is_empty() => return Err(error.clone()),
        (Ok(_), Err(_)) | (Err(_), _) => survey.in_kernel.iter().map(Ok).collect(),
    };
    match adapters.is_empty() {
        true => Err(OpenError::NoDevices),
        false => Ok(adapters),
    }
}

fn library(examination: &Examination<'_>) -> Check {
    const NAME: &str = "libibverbs";
    match &examination.machine.survey.library {
        Ok(library) => {
            let path = match library.path.as_str() {
                "" => "found",
                path => path,
            };
            let fork = match library.fork {
                Ok(()) => "registered memory survives forks".to_string(),
                Err(errno) => format!("registered memory does not survive forks ({errno})"),
            };
            let versions = library.symbol_versions.join(", ");
            let found = format!("{path}; every function that is used, of {versions}; {fork}");
            let verdict = match library.fork {
                Ok(()) => Verdict::Ok,
                Err(_) => examination.lack(),
            };
            let check = Check::of(Group::Libraries, NAME, verdict, found);
            let check = match verdict {
                Verdict::Ok => check,
                _ => check.cure("a kernel from 5.12 on needs no protection; update libibverbs1"),
            };
            check
                .value("path", library.path.clone())
                .value("symbol_versions", library.symbol_versions.clone())
                .value("fork_protection", library.fork.is_ok())
        }
        Err(error) => Check::of(
            Group::Libraries,
            NAME,
            examination.lack(),
            error.to_string(),
        )
        .cure(cure(&OpenError::Library(error.clone()))),
    }
}

/// The drivers of makers that the library knows of.
fn providers(examination: &Examination<'_>) -> Check {
    const NAME: &str = "drivers of adapters";
    const FOLDER: &str = "/etc/libibverbs.d";
    let names = examination.machine.root.names(FOLDER);
    let names: Vec<&str> = names
        .iter()
        .filter_map(|name| name.strip_suffix(".driver"))
        .collect();
    if names.is_empty() {
        let found = format!("{FOLDER} names none");
        return Check::of(Group::Libraries, NAME, examination.lack(), found).cure(PACKAGES);
    }
    Check::ok(Group::Libraries, NAME, names.join(", ")).value("names", names)
}

/// The adapter that the configuration names, with the verdict of the start.
fn configured(examination: &Examination<'_>) -> Option<Check> {
    if examination.need != Need::Verbs {
        return None;
    }
    let options = verbs_options(&examination.config);
    let name = format!("{} port {}, as configured", options.device, options.port);
    let outcome = examination.step(Step::Device)?;
    Some(
        match (outcome, examination.machine.survey.choose(&options)) {
            (Ok(()), Ok((_, chosen))) => {
                let index = chosen.gid_index;
                let found = format!(
                    "can be opened, with GID {index} {}",
                    Ipv6Addr::from(chosen.gid.gid)
                );
                Check::ok(Group::Devices, name, found).value("gid_index", index)
            }
            (Ok(()), Err(error)) => failed(&name, &error.to_string(), &cure(&error)),
            (Err(fatal), Err(error)) => failed(&name, fatal.message(), &cure(&error)),
            (Err(fatal), Ok(_)) => failed(&name, fatal.message(), "look again"),
        },
    )
}

fn failed(name: &str, found: &str, cure: &str) -> Check {
    let cure = format!("{cure}; without an adapter: device.driver = \"soft\"");
    Check::failed(Group::Devices, name, found, cure)
}

fn of_adapter(examination: &Examination<'_>, adapter: &Adapter, checks: &mut Vec<Check>) {
    checks.push(device(adapter));
    for (place, port) in adapter.ports.iter().enumerate() {
        let number = u8::try_from(place + 1).unwrap_or(u8::MAX);
        checks.push(port_check(examination, adapter, number));
        if let Ok(port) = port {
            gids(examination, adapter, port, checks);
        }
    }
}

fn device(adapter: &Adapter) -> Check {
    let Adapter {
        name,
        vendor_id,
        vendor_part_id,
        ..
    } = adapter;
    let guid: Vec<String> = adapter
        .node_guid
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    let guid = guid.join(":");
    let firmware = match adapter.firmware.as_str() {
        "" => "no firmware version",
        firmware => firmware,
    };
    let transport = match adapter.node_type.as_str() {
        "CA" => "InfiniBand verbs (RoCE where the port is Ethernet)",
        "RNIC" => "iWARP, which cannot carry SMC-R",
        "" => "transport unknown",
        other => other,
    };
    let maker = match vendor_id {
        0 => "maker unknown".to_string(),
        _ => format!(
            "{}{vendor_id:#06x}:{vendor_part_id:#06x}",
            maker(*vendor_id)
        ),
    };
    let mut found = format!("{maker}, {firmware}, node {guid}, {transport}");
    if let Some(limits) = &adapter.limits {
        found.push_str(&format!(
            "; at most {} queue pairs, {} requests and {} completions per queue, {} pieces, {} \
             registrations; its inline size is not asked for here, that takes a queue pair: \
             `pollux show devices` has it once polluxd runs",
            limits.qp, limits.wr, limits.cqe, limits.sge, limits.mr
        ));
    }
    Check::ok(Group::Devices, name, found)
        .value("vendor_id", *vendor_id)
        .value("vendor_part_id", *vendor_part_id)
        .value("firmware", adapter.firmware.clone())
        .value("node_guid", guid)
        .value("node_type", adapter.node_type.clone())
        .value("limits", limits(adapter))
}

fn limits(adapter: &Adapter) -> Value {
    adapter.limits.map_or(Value::Null, |limits| {
        json!({
            "qp": limits.qp,
            "wr": limits.wr,
            "cqe": limits.cqe,
            "sge": limits.sge,
            "mr": limits.mr,
            "mr_bytes": limits.mr_bytes,
        })
    })
}

/// The maker of a number, with a blank behind it; empty for one that is not known here.
fn maker(vendor_id: u32) -> &'static str {
    match vendor_id {
        0x02c9 | 0x15b3 => "NVIDIA (Mellanox) ",
        0x14e4 => "Broadcom ",
        0x8086 => "Intel ",
        0x1077 => "Marvell ",
        0x1425 => "Chelsio ",
        0x00ff_ffff => "the kernel's soft-RoCE ",
        _ => "",
    }
}

/// Whether this is the port that the configuration needs.
fn is_needed(examination: &Examination<'_>, adapter: &Adapter, port: u8) -> bool {
    let device = &examination.config.device;
    examination.need == Need::Verbs && device.name == adapter.name && device.port == port
}

fn port_check(examination: &Examination<'_>, adapter: &Adapter, number: u8) -> Check {
    let name = format!("{} port {number}", adapter.name);
    let found = adapter
        .ports
        .get(usize::from(number) - 1)
        .and_then(|port| port.as_ref().ok());
    let described = found.map_or(String::new(), describe);
    let check = match adapter.usable_port(number) {
        Ok(_) => Check::ok(Group::Ports, name, described),
        Err(error) => {
            let verdict = match is_needed(examination, adapter, number) {
                true => Verdict::Failure,
                false => examination.lack(),
            };
            let found = match described.as_str() {
                "" => error.to_string(),
                described => format!("{described}; {error}"),
            };
            Check::of(Group::Ports, name, verdict, found).cure(cure(&error))
        }
    };
    let Some(port) = found else {
        return check;
    };
    check
        .value("state", port.state.to_string())
        .value("link_layer", port.link_layer.to_string())
        .value("mtu_bytes", mtu_bytes(port.active_mtu))
        .value("netdev", netdev(port))
}

fn describe(port: &Port) -> String {
    let mut text = format!("{}, {}", port.state, port.link_layer);
    if let Some(bytes) = mtu_bytes(port.active_mtu) {
        text.push_str(&format!(", path MTU {bytes}"));
    }
    if let Some(netdev) = netdev(port) {
        text.push_str(&format!(", network device {netdev}"));
    }
    text
}

fn netdev(port: &Port) -> Option<String> {
    let gids = port.gids.as_ref().ok()?;
    let mut names = gids.0.iter().map(|gid| &gid.netdev);
    names.find(|name| !name.is_empty()).cloned()
}

/// The table of a port with the reason for each entry, and the choice.
fn gids(examination: &Examination<'_>, adapter: &Adapter, port: &Port, checks: &mut Vec<Check>) {
    let table = match &port.gids {
        Ok(table) => table.clone(),
        Err(_) => GidTable(Vec::new()),
    };
    let is_needed = is_needed(examination, adapter, port.number);
    let choice = choice(examination);
    let at = format!("{} port {}", adapter.name, port.number);
    if port.gids.is_err() || !gid_reasons(&table, &choice).iter().any(|r| r.is_chosen()) {
        // A port that cannot be used is told above.
        if let Err(error @ (OpenError::Gid { .. } | OpenError::System { .. })) =
            adapter.choose(port.number, &choice)
        {
            let verdict = match is_needed {
                true => Verdict::Failure,
                false => examination.lack(),
            };
            let check = Check::of(Group::Gids, at.clone(), verdict, error.to_string());
            checks.push(check.cure(cure(&error)));
        }
    }
    for (entry, reason) in table.0.iter().zip(gid_reasons(&table, &choice)) {
        let (verdict, word) = match reason.is_chosen() {
            true => (Verdict::Ok, "chosen"),
            false => (Verdict::NotApplicable, "not chosen"),
        };
        let found = format!(
            "{} {}{}; {word}: {reason}",
            entry.kind,
            Ipv6Addr::from(entry.gid),
            on(&entry.netdev)
        );
        checks.push(
            Check::of(
                Group::Gids,
                format!("{at} GID {}", entry.index),
                verdict,
                found,
            )
            .value("device", adapter.name.clone())
            .value("port", port.number)
            .value("index", entry.index)
            .value("type", entry.kind.to_string())
            .value("gid", Ipv6Addr::from(entry.gid).to_string())
            .value("netdev", entry.netdev.clone())
            .value("chosen", reason.is_chosen())
            .value("reason", reason.to_string()),
        );
    }
}

fn on(netdev: &str) -> String {
    match netdev {
        "" => String::new(),
        netdev => format!(" on {netdev}"),
    }
}

/// Which GID would stand for a port: what the configuration says; without one, that of the way to the
/// peer, or the only one.
fn choice(examination: &Examination<'_>) -> GidChoice {
    if examination.need == Need::Verbs {
        return verbs_options(&examination.config).gid;
    }
    let local = examination.peer.and_then(|peer| peer::local(peer.ip).ok());
    local.map_or(GidChoice::FirstOf(Vec::new()), GidChoice::Local)
}

/// What to do about a refusal.
fn cure(error: &OpenError) -> String {
    match error {
        OpenError::Library(LoadError::NotFound { .. } | LoadError::NoSymbol { .. }) => {
            PACKAGES.to_string()
        }
        OpenError::NoKernelSupport { .. } => "modprobe ib_uverbs".to_string(),
        OpenError::NoDevices => "without an adapter: modprobe rdma_rxe && rdma link add rxe0 type \
                                 rxe netdev eth0; with one: load the driver of its maker"
            .to_string(),
        OpenError::NoSuchDevice { known, .. } => {
            let first = known.first().map_or("NAME", String::as_str);
            format!("device.name = \"{first}\"")
        }
        OpenError::Open { .. } => {
            "ls -l /dev/infiniband; run as a user who may open it".to_string()
        }
        OpenError::NoSuchPort { ports, .. } => format!("device.port = {ports}"),
        OpenError::PortDown { .. } => {
            "rdma link shows its network device; ip link set NETDEV up".to_string()
        }
        OpenError::NotEthernet { .. } => "choose a RoCE port with device.name".to_string(),
        OpenError::Gid { cause, .. } => gid_cure(cause),
        OpenError::System { .. } => "dmesg | tail may say why".to_string(),
    }
}

fn gid_cure(error: &GidError) -> String {
    match error {
        GidError::NoSuchAddress { local, .. } => {
            let bits = match local.to_canonical() {
                IpAddr::V4(_) => 24,
                IpAddr::V6(_) => 64,
            };
            let local = local.to_canonical();
            format!("ip address add {local}/{bits} dev NETDEV, or another device.gid")
        }
        GidError::NotRoceV2 { .. } => "let the port speak RoCEv2, or take another one".to_string(),
        GidError::NotOne { count: 0, .. } => {
            "ip address add ADDRESS/BITS dev NETDEV gives the port an address".to_string()
        }
        GidError::NotOne { .. } => "device.gid = \"ADDRESS\", one of those listed".to_string(),
    }
}
