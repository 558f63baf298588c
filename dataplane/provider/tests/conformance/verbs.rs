//! The verbs driver under the suite, and what only it has.
//!
//! What needs an adapter is a test with the feature `adapter` only, and fails where none is named.

use std::collections::BTreeSet;

use pollux_provider::soft::DeviceOptions;
use pollux_provider::verbs::{GidChoice, OpenOptions, VerbsDevice};

use crate::bed::Bed;

/// Names the device, for example `rxe0`.
const DEVICE: &str = "POLLUX_VERBS_DEVICE";

/// The only table of what differs on adapters.
const README: &str = include_str!("README.md");

/// Devices of one adapter: all of them are its port 1.
pub(crate) struct VerbsBed(OpenOptions);

/// The device to be used.
fn device() -> String {
    let name = std::env::var(DEVICE).unwrap_or_default();
    assert!(
        !name.is_empty(),
        "{DEVICE} has to name an RDMA device, as rxe0"
    );
    name
}

impl Bed for VerbsBed {
    type Device = VerbsDevice;

    fn new() -> Self {
        VerbsBed(OpenOptions {
            device: device(),
            port: 1,
            gid: GidChoice::FirstOf(Vec::new()),
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

/// Runs a case on the adapter, unless the table says that it cannot hold there. Either is said, for whoever
/// counts them.
pub(crate) fn on_adapter(case: &str, run: impl FnOnce()) {
    let device = device();
    match differences().find(|(name, _)| *name == case) {
        Some((_, reason)) => eprintln!("cannot hold on {device}: {case}: {reason}"),
        None => {
            run();
            eprintln!("held on {device}: {case}");
        }
    }
}

/// The table itself needs no adapter.
#[test]
fn table_of_differences_names_cases_only_and_each_once() {
    let sources = [
        include_str!("errors.rs"),
        include_str!("limits.rs"),
        include_str!("model.rs"),
        include_str!("order.rs"),
        include_str!("rnr.rs"),
        include_str!("sleep.rs"),
        include_str!("states.rs"),
        include_str!("threads.rs"),
    ];
    let mut seen = BTreeSet::new();
    for (case, reason) in differences() {
        let function = format!("fn {case}<B: Bed>()");
        assert!(
            sources.iter().any(|source| source.contains(&function)),
            "there is no case {case}"
        );
        let who = reason.split_once(": ").map(|(who, _)| who);
        assert!(matches!(who, Some("adapters" | "soft-RoCE")), "{case}");
        assert!(seen.insert(case), "{case} is there twice");
    }
    assert!(!seen.is_empty());
}

/// What only the verbs driver has, on an adapter.
#[cfg_attr(not(feature = "adapter"), expect(dead_code, reason = "no adapter"))]
mod own {
    use pollux_provider::verbs::{OpenError, VerbsDevice, device_names};
    use pollux_provider::{
        Access, Armed, Device, DeviceEvent, Payload, PollGroup, Qp, QpCaps, QpErrorCause, Region,
        RemoteSpan, Rkey, Sge, Signal, Sleep, WcStatus, WrId,
    };
    use pollux_ring::{PageKind, Pages, Segment};

    use super::VerbsBed;
    use crate::bed::{Bed, CAPS, Placement, Wish, World, group, options, spec};

    fn world() -> World<VerbsBed> {
        World::connected(Wish::default())
    }

    #[cfg_attr(feature = "adapter", test)]
    fn identity_is_that_of_the_chosen_gid() {
        let bed = VerbsBed::new();
        let device = bed.open(options(Wish::default().personality));
        let identity = device.identity();
        let index = device.gid_index();
        let entry = device.gids().0.iter().find(|entry| entry.index == index);
        assert_eq!(entry.expect("it is in the table").gid, identity.gid);
        assert_eq!((identity.driver, identity.port), ("verbs", 1));
        assert!(identity.mac != [0; 6], "the netdev has an Ethernet address");
        assert!(index != 0, "on soft-RoCE 0 is made of the Ethernet address");
    }

    #[cfg_attr(feature = "adapter", test)]
    fn what_is_missing_is_said_exactly() {
        let bed = VerbsBed::new();
        let good = &bed.0;
        assert!(device_names().expect("names").contains(&good.device));
        let refusal = |change: &dyn Fn(&mut super::OpenOptions)| {
            let mut options = good.clone();
            change(&mut options);
            VerbsDevice::open(&options).expect_err("refused")
        };
        let unknown = refusal(&|options| options.device = "nowhere7".to_owned());
        assert!(
            matches!(&unknown, OpenError::NoSuchDevice { known, .. } if known.contains(&good.device))
        );
        assert!(unknown.to_string().contains(&good.device), "{unknown}");
        for port in [0, 200] {
            let no_port = refusal(&|options| options.port = port);
            assert!(matches!(no_port, OpenError::NoSuchPort { .. }), "{no_port}");
        }
        let address = "203.0.113.99".parse().expect("an address");
        let no_gid = refusal(&|options| options.gid = super::GidChoice::Local(address));
        assert!(matches!(no_gid, OpenError::Gid { .. }));
        assert!(no_gid.to_string().contains("RoCEv2"), "{no_gid}");
    }

    #[cfg_attr(feature = "adapter", test)]
    fn inline_size_is_what_creation_grants() {
        let device = VerbsBed::new().open(options(Wish::default().personality));
        let (group, _wake) = group(&device);
        let create = |inline_bytes| {
            let caps = QpCaps {
                inline_bytes,
                ..CAPS
            };
            device.create_qp(group.id(), &spec(caps))
        };
        for asked in [0, 1, 44, 64, 256] {
            let granted = create(asked).expect("queue pair").caps();
            assert!(granted.inline_bytes >= asked, "{asked}: {granted}");
            assert_eq!(
                (granted.send_wr, granted.recv_wr),
                (CAPS.send_wr, CAPS.recv_wr)
            );
        }
        let refusal = create(1 << 20).expect_err("nobody has so much");
        assert!(refusal.may_be_inline(), "{refusal}");
        assert!(
            refusal.to_string().contains("1048576 B inline"),
            "{refusal}"
        );
    }

    #[cfg_attr(feature = "adapter", test)]
    fn failure_is_news_with_the_makers_number() {
        let mut world = world();
        let to = RemoteSpan {
            rkey: Rkey(1),
            ..world.b.place(0)
        };
        let from = world.a.piece(0, 8);
        let how = Placement::Inline;
        world.a.write(1, from, to, how, Signal::Unsignaled);
        world.a.flush();
        world.until(|world| !world.a.done.is_empty());
        let events = world.a.device.take_events();
        let cause = QpErrorCause::Requester(WcStatus::RemoteAccess);
        let qpn = world.a.qpn;
        assert!(
            events.contains(&DeviceEvent::QpError { qpn, cause }),
            "{events:?}"
        );
        let in_words = |event: &DeviceEvent| match event {
            DeviceEvent::Adapter { what } => what.contains("REM_ACCESS_ERR"),
            _ => false,
        };
        assert!(events.iter().any(in_words), "{events:?}");
        assert!(world.a.device.take_events().is_empty(), "each is told once");
    }

    #[cfg_attr(feature = "adapter", test)]
    fn huge_pages_are_registered_and_written() {
        let segment = Segment::create("huge", 4 << 20, Pages::Required)
            .expect("free huge pages: sysctl vm.nr_hugepages=8 makes some");
        assert_eq!(segment.page_kind(), PageKind::Huge2M);
        let region = Region::from(segment);
        let mut world = world();
        let bytes = region.len();
        let mr = world
            .b
            .device
            .register(&region, 0, bytes, Access::RemoteWrite)
            .expect("registration");
        world.a.fill(0, &[0x5a; 4096]);
        // Across the border of two pages.
        let offset = (2 << 20) - 2048;
        let to = RemoteSpan {
            addr: mr.addr() + offset as u64,
            rkey: mr.rkey(),
        };
        let from = world.a.piece(0, 4096);
        let how = Placement::ByReference;
        world.a.write(1, from, to, how, Signal::Signaled);
        world.a.flush();
        world.until(|world| !world.a.done.is_empty());
        assert_eq!(world.a.sends(), [(1, WcStatus::Success)]);
        let mut arrived = vec![0; 4098];
        region.copy_out(offset - 1, &mut arrived).expect("inside");
        assert!(arrived[1..4097].iter().all(|byte| *byte == 0x5a));
        assert_eq!((arrived[0], arrived[4097]), (0, 0));
    }

    #[cfg_attr(feature = "adapter", test)]
    fn memory_that_is_mapped_for_reading_only_can_be_sent_from() {
        let ours = Segment::create("read only", 4096, Pages::Off).expect("segment");
        ours.copy_in(5, b"from there").expect("inside");
        let fd = ours.fd().try_clone_to_owned().expect("descriptor");
        let access = pollux_ring::Access::ReadOnly;
        let view = Segment::from_fd(fd, access, 1 << 20).expect("view");
        let region = Region::from(view);
        let mut world = world();
        let register = |access| world.a.device.register(&region, 0, 4096, access);
        assert!(register(Access::RemoteWrite).is_err());
        let mr = register(Access::LocalOnly).expect("registration");
        let from = Sge {
            addr: mr.addr() + 5,
            length: 10,
            lkey: mr.lkey(),
        };
        let (qp, to) = (world.a.qp, world.b.place(0));
        let payload = Payload::ByReference(std::slice::from_ref(&from));
        let (wr, signal) = (WrId(1), Signal::Signaled);
        let posted = world.a.group.post_write(qp, wr, payload, to, signal);
        assert_eq!(posted, Ok(()));
        world.a.flush();
        world.until(|world| !world.a.done.is_empty());
        assert_eq!(world.a.sends(), [(1, WcStatus::Success)]);
        assert_eq!(world.b.bytes(0, 10), b"from there");
    }

    #[cfg_attr(feature = "adapter", test)]
    fn requester_that_sleeps_is_woken_when_its_send_finds_a_receive() {
        let mut world = world();
        world.a.send(1, b"patience", Signal::Signaled);
        world.a.flush();
        assert_eq!(world.a.group.arm(Sleep::May), Armed::Idle);
        world.b.recv(0);
        let patience = std::time::Duration::from_secs(60);
        assert!(world.a.wake.wait(Some(patience)).expect("eventfd"));
        world.a.group.disarm();
        world.until(|world| world.a.sends() == [(1, WcStatus::Success)]);
        assert_eq!(world.b.received(0, 8), b"patience");
    }

    #[cfg_attr(feature = "adapter", test)]
    fn completions_of_a_queue_pair_that_is_gone_are_nobodys() {
        let mut world = world();
        for slot in 0..8 {
            world.b.recv(slot);
            world.a.send(slot, b"unread", Signal::Signaled);
        }
        world.a.flush();
        let mut last = [0; 6];
        while last != *b"unread" {
            last.copy_from_slice(&world.b.received(7, 6));
        }
        // Neither end has reaped anything of it.
        drop(world.a.group.release(world.a.qp));
        drop(world.b.group.release(world.b.qp));
        world.connect_again(&Wish::default());
        world.b.recv(9);
        world.a.send(100, b"again", Signal::Signaled);
        world.a.flush();
        world.until(|world| !world.a.done.is_empty() && !world.b.done.is_empty());
        assert_eq!(world.a.sends(), [(100, WcStatus::Success)]);
        assert_eq!(world.b.recvs(), [(9, WcStatus::Success)]);
    }
}
