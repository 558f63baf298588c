//! A device: slow path of the driver.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_core_sys::{
    self as sys, Library, ibv_device_attr, ibv_gid_entry, ibv_port_attr, ibv_qp_cap,
};
use rustix::fd::BorrowedFd;
use rustix::process::{Resource, getrlimit};

use super::attributes::{self, Change, Source, mtu_bytes};
use super::error::OpenError;
use super::ffi::{self, Context, MemoryRegion, Pd, QueuePair};
use super::gid::{self, GidEntry, GidKind, GidTable};
use super::group::VerbsGroup;
use super::qp::{Core, Told, VerbsQp};
use super::shared::{MrEntry, Shared, lkey};
use crate::checks::{check_rtr, check_rts, check_sizes, check_span};
use crate::table::Id;
use crate::{
    Access, CreateGroupError, CreateQpError, Device, DeviceEvent, DeviceIdentity, DeviceLimits,
    Errno, GroupId, ModifyError, Mr, PollGroupSpec, QpCaps, QpKind, QpSpec, QpState, Region,
    RegisterError, Rkey, RtrAttr, RtsAttr,
};

/// Registrations at most, whatever the adapter has: each group has a list of them.
const MRS_MAX: u32 = 1 << 20;

/// Which GID stands for the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GidChoice {
    /// The RoCEv2 one with this address: the local address of the TCP connections.
    Local(IpAddr),
    /// The RoCEv2 one of the first of these addresses that has any; without, that of the port's only IPv4
    /// address, or without any, of its only IPv6 address that is not link-local.
    FirstOf(Vec<IpAddr>),
}

/// What to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// Name of the device, as `rdma link` shows it before the `/`.
    pub device: String,
    /// Port, from 1.
    pub port: u8,
    /// Address.
    pub gid: GidChoice,
}

/// Names of all RDMA devices.
///
/// # Errors
/// [`OpenError::Library`], [`OpenError::NoKernelSupport`].
pub fn device_names() -> Result<Vec<String>, OpenError> {
    let library = Library::open()?;
    ffi::device_names(&library).map_err(|errno| OpenError::NoKernelSupport { errno })
}

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
        ffi::protect_from_fork(&library).map_err(failed("protect memory from forks"))?;
        let context = open_context(&library, device)?;
        let attr = query_device(&context, device)?;
        let port_attr = usable_port(&context, device, &attr, *port)?;
        let gids = read_gids(&context, device, &attr, *port)?;
        let chosen = match gid {
            GidChoice::Local(local) => gid::choose(&gids, *local),
            GidChoice::FirstOf(addresses) => gid::first_of(&gids, addresses),
        };
        let chosen = chosen.cloned().map_err(|cause| OpenError::Gid {
            name: device.clone(),
            port: *port,
            cause,
        })?;
        let source = Source {
            port: *port,
            gid_index: u8::try_from(chosen.index).map_err(|_| {
                let (name, step) = (device.clone(), "use a GID index over 255");
                let errno = Errno::RANGE;
                OpenError::System { name, step, errno }
            })?,
            mtu: port_attr.active_mtu,
        };
        let identity = identity(device, &attr, &port_attr, (*port, &chosen));
        let limits = limits(&attr, &port_attr);
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
    let known = ffi::device_names(library).map_err(|errno| OpenError::NoKernelSupport { errno })?;
    if known.is_empty() {
        return Err(OpenError::NoDevices);
    }
    let name = device.to_owned();
    match Context::open(library, device) {
        Ok(Some(context)) => Ok(context),
        Ok(None) => Err(OpenError::NoSuchDevice { name, known }),
        Err(errno) => Err(OpenError::Open { name, errno }),
    }
}

/// The port, if it is there, up, and Ethernet.
fn usable_port(
    context: &Context,
    device: &str,
    attr: &ibv_device_attr,
    port: u8,
) -> Result<ibv_port_attr, OpenError> {
    let name = device.to_owned();
    let ports = attr.phys_port_cnt;
    if port == 0 || port > ports {
        return Err(OpenError::NoSuchPort { name, port, ports });
    }
    let port_attr = match context.query_port(port) {
        Ok(port_attr) => port_attr,
        Err(errno) => {
            let step = "query its port";
            return Err(OpenError::System { name, step, errno });
        }
    };
    match port_attr.link_layer {
        layer if u32::from(layer) == sys::IBV_LINK_LAYER_ETHERNET => {}
        _ => {
            let link_layer = "InfiniBand";
            return Err(OpenError::NotEthernet {
                name,
                port,
                link_layer,
            });
        }
    }
    let state = match port_attr.state {
        sys::IBV_PORT_ACTIVE | sys::IBV_PORT_ACTIVE_DEFER => return Ok(port_attr),
        sys::IBV_PORT_DOWN => "down",
        sys::IBV_PORT_INIT => "initialising",
        sys::IBV_PORT_ARMED => "armed",
        _ => "in no state",
    };
    Err(OpenError::PortDown { name, port, state })
}

fn query_device(context: &Context, device: &str) -> Result<ibv_device_attr, OpenError> {
    context.query_device().map_err(|errno| {
        let (name, step) = (device.to_owned(), "query it");
        OpenError::System { name, step, errno }
    })
}

fn read_gids(
    context: &Context,
    device: &str,
    attr: &ibv_device_attr,
    port: u8,
) -> Result<GidTable, OpenError> {
    let name = device.to_owned();
    let ports = attr.phys_port_cnt;
    if port == 0 || port > ports {
        return Err(OpenError::NoSuchPort { name, port, ports });
    }
    let entries = context.gid_table(gid_entries_max(context, attr));
    let entries = entries.map_err(|errno| {
        let step = "read its GID table";
        OpenError::System { name, step, errno }
    })?;
    Ok(gid_table(device, u32::from(port), &entries))
}

/// Room for the GIDs of all ports.
fn gid_entries_max(context: &Context, attr: &ibv_device_attr) -> usize {
    let of_port = |port| context.query_port(port).map_or(0, |attr| attr.gid_tbl_len);
    (1..=attr.phys_port_cnt)
        .map(|port| usize::try_from(of_port(port)).unwrap_or(0))
        .sum()
}

fn gid_table(device: &str, port: u32, entries: &[ibv_gid_entry]) -> GidTable {
    let mut table: Vec<GidEntry> = entries
        .iter()
        .filter(|entry| entry.port_num == port)
        .map(|entry| GidEntry {
            index: entry.gid_index,
            gid: entry.gid.raw,
            kind: match entry.gid_type {
                sys::IBV_GID_TYPE_IB => GidKind::InfiniBand,
                sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                other => GidKind::Other(other),
            },
            netdev: netdev(device, port, entry.gid_index),
        })
        .collect();
    table.sort_by_key(|entry| entry.index);
    GidTable(table)
}

/// Name of the network device of a GID; empty if the kernel does not say.
fn netdev(device: &str, port: u32, index: u32) -> String {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/{index}");
    read_line(Path::new(&path))
}

fn read_line(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
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

fn identity(
    device: &str,
    attr: &ibv_device_attr,
    port_attr: &ibv_port_attr,
    (port, gid): (u8, &GidEntry),
) -> DeviceIdentity {
    let address = Path::new("/sys/class/net")
        .join(&gid.netdev)
        .join("address");
    DeviceIdentity {
        name: device.to_owned(),
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        gid: gid.gid,
        mac: parse_mac(&read_line(&address)),
        port,
        // The smallest there is, for a number that does not exist.
        mtu_bytes: mtu_bytes(port_attr.active_mtu).unwrap_or(256),
        driver: "verbs",
    }
}

fn limits(attr: &ibv_device_attr, port_attr: &ibv_port_attr) -> DeviceLimits {
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
        message_bytes_max: port_attr.max_msg_sz,
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
