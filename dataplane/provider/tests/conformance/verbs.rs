//! The verbs driver under the suite, and what only it has.

use pollux_provider::soft::DeviceOptions;
use pollux_provider::verbs::{GidChoice, GidKind, OpenOptions, VerbsDevice, gids};

use crate::bed::Bed;

/// Names the device, for example `rxe0`.
const DEVICE: &str = "POLLUX_VERBS_DEVICE";

/// The only table of what differs on adapters.
const README: &str = include_str!("README.md");

/// Devices of one adapter: all of them are its port 1.
pub(crate) struct VerbsBed(OpenOptions);

/// The device to be used, if any.
fn device() -> Option<String> {
    std::env::var(DEVICE).ok().filter(|name| !name.is_empty())
}

impl Bed for VerbsBed {
    type Device = VerbsDevice;

    fn new() -> Self {
        let device = device().expect("only called where there is a device");
        let table = gids(&device, 1).expect("GIDs");
        let mapped = |gid: &[u8; 16]| std::net::Ipv6Addr::from(*gid).to_ipv4_mapped();
        let entry = table
            .0
            .iter()
            .find(|entry| entry.kind == GidKind::RoceV2 && mapped(&entry.gid).is_some())
            .unwrap_or_else(|| panic!("no RoCEv2 GID with an IPv4 address: {table}"));
        let local = mapped(&entry.gid).expect("it was looked for");
        VerbsBed(OpenOptions {
            device,
            port: 1,
            gid: GidChoice::Local(local.into()),
        })
    }

    fn open(&self, _: DeviceOptions) -> VerbsDevice {
        VerbsDevice::open(&self.0).expect("device")
    }
}

/// Cases that cannot hold on an adapter, each with the reason.
fn differences() -> impl Iterator<Item = (&'static str, &'static str)> {
    README.lines().filter_map(|line| {
        let (case, reason) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((case, reason.trim_end_matches(" |")))
    })
}

/// Runs a case, if there is an adapter and nothing speaks against it.
pub(crate) fn on_adapter(case: &str, run: impl FnOnce()) {
    if device().is_none() {
        eprintln!("skipped: no device; {DEVICE}=rxe0 names one");
        return;
    }
    match differences().find(|(name, _)| *name == case) {
        Some((_, reason)) => eprintln!("skipped: {reason}"),
        None => run(),
    }
}
