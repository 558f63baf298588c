//! Findings that need more than one key.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use super::size::format_size;
use super::values::Endpoint;
use super::{Config, PathChoice};
use crate::host::SOCKET_PATH_MAX;

/// Calls `report(key, problem)` for each finding.
pub(super) fn check(config: &Config, report: &mut dyn FnMut(String, String)) {
    check_names(config, report);
    check_sizes(config, report);
    check_paths(config, report);
    check_forwards(config, report);
    check_listeners(config, report);
}

fn check_names(config: &Config, report: &mut dyn FnMut(String, String)) {
    if config.appliance.name == "fabric" {
        let problem = "reserved for the folder in which soft devices meet (\"fabric\"); choose \
                       another name";
        report("appliance.name".into(), problem.into());
    }
    let mut seen = BTreeMap::new();
    for (index, ueid) in config.appliance.ueids.iter().enumerate() {
        if seen.insert(ueid, index).is_some() {
            report(
                "appliance.ueids".into(),
                format!("named twice ({ueid:?}); drop one"),
            );
        }
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, forward) in config.forwards.iter().enumerate() {
        if let Some(other) = seen.insert(&forward.name, index) {
            let problem = format!(
                "also the name of forward[{other}] ({:?}); each forward needs its own",
                forward.name
            );
            report(format!("forward[{index}].name"), problem);
        }
    }
}

fn check_sizes(config: &Config, report: &mut dyn FnMut(String, String)) {
    let attach = &config.attach;
    let slot = u64::from(attach.sndbuf_bytes) + u64::from(attach.rmb_bytes);
    let session = u64::from(attach.slots) * slot;
    let (one, all) = (attach.session_memory_max_bytes, attach.memory_max_bytes);
    for (most, key) in [(one, "session_memory_max"), (all, "memory_max")] {
        if session > most {
            let problem = format!(
                "slots x (sndbuf + rmb) is too much ({} x {} = {session} bytes); legal: at most \
                 attach.{key}, which is {}",
                attach.slots,
                format_size(slot),
                format_size(most)
            );
            report("attach.slots".into(), problem);
            break;
        }
    }
    let handshake = &config.handshake;
    if handshake.peek_timeout_ms > handshake.timeout_ms {
        let problem = format!(
            "longer than the whole handshake ({} > handshake.timeout_ms {}); legal: at most \
             handshake.timeout_ms",
            handshake.peek_timeout_ms, handshake.timeout_ms
        );
        report("handshake.peek_timeout_ms".into(), problem);
    }
}

fn check_paths(config: &Config, report: &mut dyn FnMut(String, String)) {
    let mut sockets: Vec<(String, &Path)> = Vec::new();
    if let PathChoice::At(path) = &config.control.socket {
        sockets.push(("control.socket".into(), path));
    }
    if let PathChoice::At(path) = &config.attach.socket {
        sockets.push(("attach.socket".into(), path));
    }
    for (index, forward) in config.forwards.iter().enumerate() {
        for (key, endpoint) in [("listen", &forward.listen), ("connect", &forward.connect)] {
            if let Some(path) = endpoint.path() {
                sockets.push((format!("forward[{index}].{key}"), path));
            }
        }
    }
    let mut bound: BTreeMap<&Path, String> = BTreeMap::new();
    for (key, path) in sockets {
        let bytes = path.as_os_str().len();
        if bytes > SOCKET_PATH_MAX {
            let problem = format!(
                "too long for a socket ({} has {bytes} bytes); legal: at most {SOCKET_PATH_MAX}",
                path.display()
            );
            report(key.clone(), problem);
        }
        if key.ends_with(".connect") {
            continue;
        }
        if let Some(other) = bound.get(path) {
            let problem = format!("also the path of {other} ({}); use two", path.display());
            report(key, problem);
        } else {
            bound.insert(path, key);
        }
    }
}

fn check_forwards(config: &Config, report: &mut dyn FnMut(String, String)) {
    for (index, forward) in config.forwards.iter().enumerate() {
        let key = format!("forward[{index}].connect");
        let smc = [&forward.listen, &forward.connect]
            .into_iter()
            .filter(|endpoint| matches!(endpoint, Endpoint::Smc(_)))
            .count();
        if smc != 1 {
            let how = if smc == 0 {
                "neither end is smc:"
            } else {
                "both ends are smc:"
            };
            let problem = format!(
                "{how} ({} to {}); legal: tcp: or unix: to smc:, or smc: to tcp: or unix:",
                forward.listen, forward.connect
            );
            report(key.clone(), problem);
        }
        if forward
            .connect
            .address()
            .is_some_and(|address| address.port() == 0)
        {
            let problem = format!(
                "nobody listens on port 0 ({}); legal: port 1 to 65535",
                forward.connect
            );
            report(key, problem);
        }
    }
}

/// Two listeners on one address; an unspecified address takes the port on all of them.
fn check_listeners(config: &Config, report: &mut dyn FnMut(String, String)) {
    let services = config.services.iter().enumerate();
    let services = services.map(|(i, service)| (format!("service[{i}].listen"), service.listen));
    let forwards = config
        .forwards
        .iter()
        .enumerate()
        .filter_map(|(i, forward)| {
            Some((format!("forward[{i}].listen"), forward.listen.address()?))
        });
    let mut seen: Vec<(String, SocketAddr)> = Vec::new();
    for (key, address) in services
        .chain(forwards)
        .filter(|(_, address)| address.port() != 0)
    {
        let clash = seen.iter().find(|(_, other)| {
            other.port() == address.port()
                && other.is_ipv4() == address.is_ipv4()
                && (other.ip() == address.ip()
                    || other.ip().is_unspecified()
                    || address.ip().is_unspecified())
        });
        match clash {
            Some((other, taken)) => {
                let problem = format!("{other} already listens there ({address}, {taken})");
                report(key, format!("{problem}; use another port"));
            }
            None => seen.push((key, address)),
        }
    }
}
