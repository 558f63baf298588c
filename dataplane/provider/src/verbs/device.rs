//! A device: slow path of the driver.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_core_sys::{Library, ibv_device_attr, ibv_qp_cap};
use rustix::fd::BorrowedFd;
use rustix::process::{Resource, getrlimit};

use super::adapter::{Adapter, Chosen, OpenOptions, Port, known};
use super::attributes::{self, Change, Source, mtu_bytes};
use super::error::OpenError;
use super::ffi::{self, Context, MemoryRegion, Pd, QueuePair};
use super::gid::{self, GidEntry, GidTable};
use super::group::VerbsGroup;
use super::qp::{Core, Told, VerbsQp};
use super::shared::{MrEntry, Shared, lkey};
use super::{survey, sysfs};
use crate::checks::{check_rtr, check_rts, check_sizes, check_span};
use crate::table::Id;
use crate::{
    Access, CreateGroupError, CreateQpError, Device, DeviceEvent, DeviceIdentity, DeviceLimits,
    Errno, GroupId, ModifyError, Mr, PollGroupSpec, QpCaps, QpKind, QpSpec, QpState, Region,
    RegisterError, Rkey, RtrAttr, RtsAttr,
};

/// Registrations at most, whatever the adapter has: each group has a list of them.
const MRS_MAX: u32 = 1 << 20;

/// A device of the verbs driver: one port of an adapter.
///
/// Dropping it is the death of the device: its queue pairs fail, whoever has them.
#[derive(Debug)]
pub struct VerbsDevice {
    shared: Arc<Shared>,
    gids: GidTable,
}

impl VerbsDevice {
    /// Opens a port of an adapter.
    ///
    /// # Errors
    /// [`OpenError`], with a variant for each thing that can be missing.
    pub fn open(options: &OpenOptions) -> Result<VerbsDevice, OpenError> {
        let OpenOptions { device, port, gid } = options;
        let library = Library::open()?;
        let failed = |step| {
            let name = device.clone();
            move |errno| OpenError::System { name, step, errno }
        };
        ffi::protect_from_fork(&library).map_err(|errno| survey::fork_refused(device, errno))?;
        let context = open_context(&library, device)?;
        let (adapter, attr) = survey::read_adapter(&context, device)?;
        let Chosen {
            port,
            gid,
            gid_index,
        } = adapter.choose(*port, gid)?;
        let source = Source {
            port: port.number,
            gid_index,
            mtu: port.active_mtu,
        };
        let gids = port.gids.clone().unwrap_or(GidTable(Vec::new()));
        let identity = identity(&adapter, port, gid);
        let limits = limits(&attr, port);
        let pd = Pd::new(&context).map_err(failed("make a protection domain"))?;
        let shared = Shared::new((context, pd), identity, limits, source);
        let shared = Arc::new(shared.map_err(failed("start its thread"))?);
        Ok(VerbsDevice { shared, gids })
    }

    /// The port's GIDs as they were when it was opened.
    pub fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// Index of the GID that stands for the device.
    pub fn gid_index(&self) -> u32 {
        u32::from(self.shared.source.gid_index)
    }

    fn modify(&self, core: &Core, to: QpState, change: &Change) -> Result<(), ModifyError> {
        let qpn = core.qpn;
        core.qp
            .modify(change)
            .map_err(|errno| ModifyError::System { qpn, to, errno })
    }

    /// Most likely cause of a refused creation.
    fn create_hint(&self, errno: Errno, asked: &QpCaps) -> String {
        match errno {
            Errno::NOMEM => match locked_limit() {
                Some(limit) => format!(
                    "no memory for its queues: the locked-memory limit of this process is {limit} bytes"
                ),
                None => "no memory for its queues at the device".to_owned(),
            },
            _ if asked.inline_bytes > 0 => {
                let bytes = asked.inline_bytes;
                format!("the device may not have room for {bytes} B inline; ask for less")
            }
            _ => {
                let most = self.shared.limits.send_wr_max;
                format!(
                    "the device says that it has {most} requests per queue, perhaps not so long"
                )
            }
        }
    }
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        self.shared.bury_all();
    }
}

fn open_context(library: &Library, device: &str) -> Result<Arc<Context>, OpenError> {
    let names = survey::names(library)?;
    known(device, names.clone())?;
    let name = device.to_owned();
    match Context::open(library, device) {
        Ok(Some(context)) => Ok(context),
        Ok(None) => Err(OpenError::NoSuchDevice { name, known: names }),
        Err(errno) => Err(OpenError::Open { name, errno }),
    }
}

/// The Ethernet address in text such as `52:54:00:00:00:01`; zeros if it is none.
fn parse_mac(text: &str) -> [u8; 6] {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().unwrap_or("");
        match u8::from_str_radix(part, 16) {
            Ok(value) => *byte = value,
            Err(_) => return [0; 6],
        }
    }
    match parts.next() {
        None => mac,
        Some(_) => [0; 6],
    }
}

fn identity(adapter: &Adapter, port: &Port, gid: &GidEntry) -> DeviceIdentity {
    let address = Path::new("/sys/class/net")
        .join(&gid.netdev)
        .join("address");
    DeviceIdentity {
        name: adapter.name.clone(),
        vendor_id: adapter.vendor_id,
        vendor_part_id: adapter.vendor_part_id,
        gid: gid.gid,
        mac: parse_mac(&sysfs::line(&address)),
        port: port.number,
        // The smallest there is, for a number that does not exist.
        mtu_bytes: mtu_bytes(port.active_mtu).unwrap_or(256),
        driver: "verbs",
    }
}

fn limits(attr: &ibv_device_attr, port: &Port) -> DeviceLimits {
    let positive = |limit: i32| u32::try_from(limit).unwrap_or(0);
    let (wr_max, sge_max) = (positive(attr.max_qp_wr), positive(attr.max_sge));
    DeviceLimits {
        // One is for the marker behind a failure.
        send_wr_max: wr_max.saturating_sub(1),
        recv_wr_max: wr_max,
        send_sge_max: sge_max,
        recv_sge_max: sge_max,
        qp_max: positive(attr.max_qp),
        // A third is for the markers.
        cq_entries_max: (positive(attr.max_cqe).saturating_sub(1)) / 3 * 2,
        mr_max: positive(attr.max_mr).min(MRS_MAX),
        message_bytes_max: port.message_bytes_max,
        inline_worth_bytes: None,
    }
}

/// The limit of locked memory of this process, bytes; none if there is none.
fn locked_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// What a refused registration means. With `registered` bytes registered already.
fn register_error(
    errno: Errno,
    len: usize,
    registered: u64,
    locked_limit: Option<u64>,
) -> RegisterError {
    let needed_bytes = registered + len as u64;
    match locked_limit {
        Some(limit_bytes) if errno == Errno::NOMEM && needed_bytes > limit_bytes => {
            RegisterError::Locked {
                len,
                limit_bytes,
                needed_bytes,
            }
        }
        Some(_) | None => RegisterError::System { len, errno },
    }
}

/// Whether a refused RTR means that the peer's address cannot be reached.
fn is_no_path(errno: Errno) -> bool {
    [
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::NETDOWN,
        Errno::HOSTDOWN,
        Errno::TIMEDOUT,
        Errno::ADDRNOTAVAIL,
        Errno::NODATA,
    ]
    .contains(&errno)
}

/// What an [`Mr`] holds. The key goes first, then the registration.
struct Registration {
    shared: Arc<Shared>,
    id: Id,
    bytes: u64,
    _mr: MemoryRegion,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.mrs.remove(self.id);
        self.shared
            .registered
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Whether the queue pair may take this step.
fn step(core: &Core, from: QpState, to: QpState) -> Result<(), ModifyError> {
    let state = if core.is_failing() {
        QpState::Error
    } else {
        core.state
    };
    if state == from {
        return Ok(());
    }
    Err(ModifyError::WrongState {
        qpn: core.qpn,
        from: state,
        to,
    })
}

impl Device for VerbsDevice {
    type Qp = VerbsQp;
    type Group = VerbsGroup;

    fn identity(&self) -> &DeviceIdentity {
        &self.shared.identity
    }

    fn limits(&self) -> &DeviceLimits {
        &self.shared.limits
    }

    fn register(
        &self,
        region: &Region,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<Mr, RegisterError> {
        check_span(region, offset, len)?;
        let shared = &self.shared;
        let mr = MemoryRegion::register(&shared.pd, region, offset, len, access);
        let mr = mr.map_err(|errno| {
            let registered = shared.registered.load(Ordering::Relaxed);
            register_error(errno, len, registered, locked_limit())
        })?;
        let (addr, bytes) = (region.addr() + offset as u64, len as u64);
        let (adapter_lkey, rkey) = (mr.lkey(), Rkey(mr.rkey()));
        let entry = |id| MrEntry::new(id, adapter_lkey, addr, bytes);
        let limit = shared.limits.mr_max;
        let id = shared.mrs.insert(entry);
        let id = id.map_err(|_| RegisterError::TooMany { limit })?;
        shared.registered.fetch_add(bytes, Ordering::Relaxed);
        let registration = Registration {
            shared: Arc::clone(shared),
            id,
            bytes,
            _mr: mr,
        };
        Ok(Mr::new(lkey(id), rkey, addr, len, Box::new(registration)))
    }

    fn create_poll_group(&self, spec: &PollGroupSpec) -> Result<VerbsGroup, CreateGroupError> {
        let (asked, limit) = (spec.cq_entries, self.shared.limits.cq_entries_max);
        if asked == 0 || asked > limit {
            return Err(CreateGroupError::Entries { asked, limit });
        }
        let wake = spec.wake.try_clone();
        let wake = wake.map_err(|error| CreateGroupError::System(error.errno))?;
        let armed = Arc::new(AtomicBool::new(false));
        let added = self.shared.add_group(asked, wake, &armed);
        let (id, cq) = added.map_err(CreateGroupError::System)?;
        Ok(VerbsGroup::new(&self.shared, id, cq, armed))
    }

    fn create_qp(&self, group: GroupId, spec: &QpSpec) -> Result<VerbsQp, CreateQpError> {
        let QpSpec {
            kind: QpKind::Rc,
            caps: asked,
        } = *spec;
        let refused = |errno, hint| CreateQpError { errno, asked, hint };
        check_sizes(&asked, &self.shared.limits).map_err(|hint| refused(Errno::INVAL, hint))?;
        let (seat, cq) = self.shared.take_seat(group, &asked)?;
        let cap = ibv_qp_cap {
            // One for the marker behind a failure.
            max_send_wr: asked.send_wr + 1,
            max_recv_wr: asked.recv_wr,
            max_send_sge: asked.send_sge,
            max_recv_sge: asked.recv_sge,
            max_inline_data: asked.inline_bytes,
        };
        let created = QueuePair::create(&self.shared.pd, &cq, cap);
        let (qp, granted) =
            created.map_err(|errno| refused(errno, self.create_hint(errno, &asked)))?;
        // Adapters round the other sizes up. What was asked for is used, so that the completion queue has room.
        let caps = QpCaps {
            inline_bytes: granted.max_inline_data,
            ..asked
        };
        let core = Box::new(Core::new(qp, seat, caps));
        Ok(VerbsQp { core })
    }

    fn to_init(&self, qp: &mut VerbsQp) -> Result<(), ModifyError> {
        let core = &mut qp.core;
        step(core, QpState::Reset, QpState::Init)?;
        self.modify(core, QpState::Init, &attributes::init(&self.shared.source))?;
        core.state = QpState::Init;
        Ok(())
    }

    fn to_rtr(&self, qp: &mut VerbsQp, attr: &RtrAttr) -> Result<(), ModifyError> {
        let core = &mut qp.core;
        step(core, QpState::Init, QpState::Rtr)?;
        check_rtr(core.qpn, attr)?;
        let no_peer = |cause| {
            let DeviceIdentity { name, port, .. } = &self.shared.identity;
            let index = self.shared.source.gid_index;
            Err(ModifyError::NoPeer {
                gid: attr.peer_gid,
                place: format!("the routes of port {port} of {name}, GID index {index}"),
                cause,
            })
        };
        if !gid::same_family(&self.shared.identity.gid, &attr.peer_gid) {
            return no_peer("an IPv4 and an IPv6 address do not reach each other".to_owned());
        }
        let change = attributes::rtr(&self.shared.source, attr);
        match self.modify(core, QpState::Rtr, &change) {
            Ok(()) => {}
            Err(ModifyError::System { errno, .. }) if is_no_path(errno) => {
                return no_peer(errno.to_string());
            }
            Err(error) => return Err(error),
        }
        core.state = QpState::Rtr;
        Ok(())
    }

    fn to_rts(&self, qp: &mut VerbsQp, attr: &RtsAttr) -> Result<(), ModifyError> {
        let core = &mut qp.core;
        step(core, QpState::Rtr, QpState::Rts)?;
        check_rts(core.qpn, attr)?;
        self.modify(core, QpState::Rts, &attributes::rts(attr))?;
        core.state = QpState::Rts;
        Ok(())
    }

    fn to_error(&self, qp: &mut VerbsQp) -> Result<(), ModifyError> {
        let core = &mut qp.core;
        let (qpn, to) = (core.qpn, QpState::Error);
        core.fail(None, Told::Yes)
            .map_err(|errno| ModifyError::System { qpn, to, errno })
    }

    fn take_events(&self) -> Vec<DeviceEvent> {
        self.shared.take_events()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.context.async_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::{is_no_path, parse_mac, register_error};
    use crate::{Errno, RegisterError};

    #[test]
    fn ethernet_address_is_read_and_anything_else_is_zero() {
        assert_eq!(
            parse_mac("52:54:00:12:34:ff"),
            [0x52, 0x54, 0, 0x12, 0x34, 0xff]
        );
        for wrong in ["", "52:54", "52:54:00:12:34:ff:01", "52:54:00:12:34:xx"] {
            assert_eq!(parse_mac(wrong), [0; 6], "{wrong}");
        }
    }

    #[test]
    fn locked_memory_limit_is_told_with_the_number_that_is_needed() {
        let error = register_error(Errno::NOMEM, 64 << 20, 1 << 20, Some(8 << 20));
        let text = error.to_string();
        for part in ["67108864", "8388608", "68157440", "LimitMEMLOCK"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn other_refusals_are_not_blamed_on_the_limit() {
        for (errno, limit) in [
            (Errno::NOMEM, None),
            (Errno::NOMEM, Some(1 << 30)),
            (Errno::FAULT, Some(1)),
        ] {
            let error = register_error(errno, 4096, 0, limit);
            assert!(matches!(error, RegisterError::System { .. }), "{error}");
        }
    }

    #[test]
    fn only_routing_refusals_mean_that_there_is_no_path() {
        assert!(is_no_path(Errno::NETUNREACH) && is_no_path(Errno::HOSTUNREACH));
        assert!(!is_no_path(Errno::INVAL) && !is_no_path(Errno::NOMEM));
    }
}
