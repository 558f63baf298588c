//! What the soft driver needs, which carries an appliance on a host without any adapter.

use super::report::{Check, Group};
use super::{Examination, Machine, Need};
use crate::appliance::devices::soft_gid;
use crate::exit::Fatal;
use crate::start::rehearsal::Step;

const GROUP: Group = Group::Fabric;

pub(super) fn checks(examination: &Examination<'_>) -> Vec<Check> {
    let machine = examination.machine;
    let mut checks = vec![
        anonymous(
            "shared memory",
            &machine.shared_memory,
            "sealed memory without a name (memfd)",
        ),
        anonymous(
            "wake-ups",
            &machine.wake_ups,
            "descriptors of events (eventfd)",
        ),
    ];
    if machine.shared_memory.is_ok() && machine.wake_ups.is_ok() && examination.need != Need::Soft {
        let found = "this host can run device.driver = \"soft\", between processes of one host";
        checks.push(Check::ok(GROUP, "soft driver", found));
    }
    if examination.need == Need::Soft {
        checks.extend(address(examination));
    }
    checks
}

fn anonymous(name: &str, made: &Result<(), String>, what: &str) -> Check {
    match made {
        Ok(()) => Check::ok(GROUP, name, format!("{what} can be made")),
        Err(error) => Check::failed(
            GROUP,
            name,
            format!("{what} cannot be made: {error}"),
            "allow it in the sandbox (seccomp); raise ulimit -n and the memory limit",
        ),
    }
}

/// What keeps every appliance from running, whatever its configuration.
pub(super) fn end(machine: &Machine) -> Option<Fatal> {
    let refused = [
        ("shared memory", &machine.shared_memory),
        ("a wake descriptor", &machine.wake_ups),
    ];
    let mut refused = refused
        .into_iter()
        .filter_map(|(what, made)| Some((what, made.as_ref().err()?)));
    let (what, error) = refused.next()?;
    Some(Fatal::os(format!("cannot make {what}: {error}")))
}

/// The place of the configuration's device on the fabric.
fn address(examination: &Examination<'_>) -> Option<Check> {
    const NAME: &str = "address";
    let paths = examination.rehearsal.as_ref()?.paths.as_ref()?;
    let gid = soft_gid(&examination.config, paths);
    let check = match examination.step(Step::Device)? {
        Ok(()) => {
            let found = format!("{gid} is free in {}", paths.fabric_dir.display());
            Check::ok(GROUP, NAME, found)
        }
        Err(fatal) => {
            let cure = "another device.gid, appliance.name or device.fabric_dir";
            Check::failed(GROUP, NAME, fatal.message(), cure)
        }
    };
    Some(check.value("gid", gid.to_string()))
}
