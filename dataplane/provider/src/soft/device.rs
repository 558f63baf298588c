//! The soft device: slow path of the driver, the same for all carriers.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pollux_ring::{Region, Segment, Wake};

use super::group::SoftGroup;
use super::line_format::{MESSAGE_BYTES_MAX, PIECES_MAX};
use super::personality::Personality;
use super::port::{PortError, Run};
use super::qp::{Bound, Core, SoftQp, Told};
use super::shared::{Census, EXPORTS_MAX, FirstUse, MrEntry, Peer, Shared, keys};
use crate::checks::{check_rtr, check_rts, check_sizes, check_span, is_mtu};
use crate::table::Id;
use crate::{
    Access, CreateGroupError, CreateQpError, Device, DeviceEvent, DeviceIdentity, DeviceLimits,
    Errno, GroupId, ModifyError, Mr, PollGroupSpec, QpCaps, QpKind, QpSpec, QpState, RegisterError,
    RtrAttr, RtsAttr,
};

/// Measured with `pollux-perf lat --compare inline`, a WRITE inline against the same by reference behind an
/// inline message: up to 256 B it is not slower on cores that share a cache (a line each way takes 65 ns; 11 %
/// faster at 32 B, even at 256 B), nor on cores far apart (280 ns; 25 % and 9 % faster). At 320 B it is 5 %
/// slower on the former, at 384 B 4 % slower on the latter.
const INLINE_WORTH_BYTES: u32 = 256;

/// Largest sizes of every soft device.
const LIMITS: DeviceLimits = DeviceLimits {
    send_wr_max: 4096,
    recv_wr_max: 16_384,
    send_sge_max: PIECES_MAX as u32,
    recv_sge_max: 1,
    qp_max: 4096,
    cq_entries_max: 1 << 22,
    mr_max: 65_536,
    message_bytes_max: MESSAGE_BYTES_MAX,
    inline_worth_bytes: Some(INLINE_WORTH_BYTES),
};

/// How a soft device is to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Name for people.
    pub name: String,
    /// Address; unique on a fabric.
    pub gid: [u8; 16],
    /// Ethernet address reported.
    pub mac: [u8; 6],
    /// What it pretends to be.
    pub personality: Personality,
    /// Path MTU reported, bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu_bytes: u32,
}

impl DeviceOptions {
    /// A generic device with this address, named "soft".
    pub fn new(gid: [u8; 16]) -> DeviceOptions {
        let mac = [0x02, gid[11], gid[12], gid[13], gid[14], gid[15]];
        let (name, personality) = ("soft".to_owned(), Personality::Generic);
        DeviceOptions {
            name,
            gid,
            mac,
            personality,
            mtu_bytes: 4096,
        }
    }
}

/// Why a soft device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address is all zero.
    #[error("a device needs an address (GID) that is not all zero")]
    NoGid,
    /// Not one of the five sizes.
    #[error("a path MTU of {0} B does not exist: use 256, 512, 1024, 2048 or 4096")]
    Mtu(u32),
    /// Somebody has this address.
    #[error(
        "device {} is open already, by process {pid}, at {}: stop that one or choose another \
         address (GID)",
        std::net::Ipv6Addr::from(*gid), path.display()
    )]
    InUse {
        /// The address.
        gid: [u8; 16],
        /// Its rendezvous socket; empty on a fabric inside a process.
        path: PathBuf,
        /// Process that has it open, 0 if unknown.
        pid: i32,
    },
    /// A step of the rendezvous failed.
    #[error("cannot {step} {}: {errno}", path.display())]
    Rendezvous {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// Answer of the system.
        errno: Errno,
    },
    /// The path of the rendezvous socket does not fit into a socket address.
    #[error(
        "the path {} has {bytes} bytes, a socket address holds {limit}: choose a shorter \
         fabric directory", path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
        /// Possible.
        limit: usize,
    },
}

/// A carrier cannot reach a device.
#[derive(Debug)]
pub(super) struct NoPath {
    pub(super) place: String,
    pub(super) cause: String,
}

/// How devices find each other and hand segments over. Slow path only.
pub(super) trait Carrier: fmt::Debug + Send + Sync {
    /// Makes sure that there is a path to the device, and names its life.
    fn reach(&self, gid: [u8; 16]) -> Result<Arc<Peer>, NoPath>;
    /// Hands the port of our queue pair to the peer's queue pair `to`.
    fn offer(
        &self,
        peer: &Peer,
        to: u32,
        from: u32,
        port: &Segment,
        wake: &Wake,
    ) -> Result<(), NoPath>;
    /// Tells every peer, present and future, of a segment.
    fn exported(&self, id: Id, segment: &Segment) -> Result<(), Errno>;
    /// Takes that back.
    fn withdrawn(&self, id: Id);
    /// The device goes; peers see it die.
    fn leave(&self);
}

/// A device of the soft driver.
///
/// Dropping it is the death of the device: its socket goes, and queue pairs connected to it fail on both sides.
#[derive(Debug)]
pub struct SoftDevice {
    shared: Arc<Shared>,
    carrier: Arc<dyn Carrier>,
}

/// The part of opening that all carriers share.
pub(super) fn make_shared(
    options: DeviceOptions,
    driver: &'static str,
    seed: u64,
) -> Result<Arc<Shared>, OpenError> {
    let DeviceOptions {
        name,
        gid,
        mac,
        personality,
        mtu_bytes,
    } = options;
    check_options(gid, mtu_bytes)?;
    let (vendor_id, vendor_part_id) = (personality.vendor_id(), personality.vendor_part_id());
    let identity = DeviceIdentity {
        name,
        vendor_id,
        vendor_part_id,
        gid,
        mac,
        port: 1,
        mtu_bytes,
        driver,
    };
    Ok(Arc::new(Shared::new(identity, LIMITS, personality, seed)))
}

/// Refuses options of impossible values.
pub(super) fn check_options(gid: [u8; 16], mtu_bytes: u32) -> Result<(), OpenError> {
    if gid == [0; 16] {
        return Err(OpenError::NoGid);
    }
    if !is_mtu(mtu_bytes) {
        return Err(OpenError::Mtu(mtu_bytes));
    }
    Ok(())
}

impl SoftDevice {
    pub(super) fn new(shared: Arc<Shared>, carrier: Arc<dyn Carrier>) -> SoftDevice {
        SoftDevice { shared, carrier }
    }

    /// Live objects, for tests and diagnostics.
    pub fn census(&self) -> Census {
        self.shared.census()
    }

    /// What the device pretends to be.
    pub fn personality(&self) -> Personality {
        self.shared.personality
    }

    /// Lets the `nth` creation of a queue pair from now on fail with `errno` (1 is the next one): how callers
    /// test their error paths. Several calls add up; a second one for the same creation replaces the first.
    pub fn refuse_creation(&self, nth: u64, errno: Errno) {
        self.shared.refuse_creation(nth, errno);
    }

    fn grant(&self, asked: &QpCaps) -> Result<QpCaps, CreateQpError> {
        let refused = |errno, hint| CreateQpError {
            errno,
            asked: *asked,
            hint,
        };
        check_sizes(asked, &LIMITS).map_err(|hint| refused(Errno::INVAL, hint))?;
        let granted = self.shared.personality.grant_inline(asked);
        let inline_bytes = granted.map_err(|refusal| refused(refusal.errno, refusal.hint))?;
        Ok(QpCaps {
            inline_bytes,
            ..*asked
        })
    }

    /// Exports the segment if this is its first registration.
    fn export(&self, region: &Region, len: usize) -> Result<Option<Export>, RegisterError> {
        let Region::Shared(segment) = region else {
            return Ok(None);
        };
        let (id, first) = self
            .shared
            .export(segment)
            .map_err(|_| RegisterError::TooMany { limit: EXPORTS_MAX })?;
        let export = Export {
            shared: Arc::clone(&self.shared),
            carrier: Arc::clone(&self.carrier),
            segment_addr: segment.addr(),
            id,
        };
        if first == FirstUse::Yes {
            // On failure the export's drop takes it back.
            let exported = self.carrier.exported(id, segment);
            exported.map_err(|errno| RegisterError::System { len, errno })?;
        }
        Ok(Some(export))
    }
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        self.carrier.leave();
        self.shared.bury_all();
    }
}

/// One registration's share in an export.
#[derive(Debug)]
struct Export {
    shared: Arc<Shared>,
    carrier: Arc<dyn Carrier>,
    segment_addr: u64,
    id: Id,
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(id) = self.shared.unexport(self.segment_addr) {
            self.carrier.withdrawn(id);
        }
    }
}

/// What an [`Mr`] holds. The keys go first, then the export.
#[derive(Debug)]
struct Registration {
    shared: Arc<Shared>,
    id: Id,
    _export: Option<Export>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.mrs.remove(self.id);
        self.shared.table_changed(&self.shared.mrs);
    }
}

impl Device for SoftDevice {
    type Qp = SoftQp;
    type Group = SoftGroup;

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
        let export = self.export(region, len)?;
        let entry = |id| {
            let (lkey, rkey) = keys(id);
            MrEntry {
                lkey,
                rkey,
                region: region.clone(),
                addr: region.addr() + offset as u64,
                len: len as u64,
                access,
                export: export.as_ref().map(|export| export.id),
            }
        };
        let limit = self.shared.limits.mr_max;
        let id = self
            .shared
            .mrs
            .insert(entry)
            .map_err(|_| RegisterError::TooMany { limit })?;
        self.shared.table_changed(&self.shared.mrs);
        let (lkey, rkey) = keys(id);
        let registration = Registration {
            shared: Arc::clone(&self.shared),
            id,
            _export: export,
        };
        let addr = region.addr() + offset as u64;
        Ok(Mr::new(lkey, rkey, addr, len, Box::new(registration)))
    }

    fn create_poll_group(&self, spec: &PollGroupSpec) -> Result<SoftGroup, CreateGroupError> {
        let (asked, limit) = (spec.cq_entries, LIMITS.cq_entries_max);
        if asked == 0 || asked > limit {
            return Err(CreateGroupError::Entries { asked, limit });
        }
        let wake = spec
            .wake
            .try_clone()
            .map_err(|error| CreateGroupError::System(error.errno))?;
        let armed = Arc::new(AtomicBool::new(false));
        let id = self.shared.add_group(asked, wake, Arc::clone(&armed));
        Ok(SoftGroup::new(&self.shared, id, armed))
    }

    fn create_qp(&self, group: GroupId, spec: &QpSpec) -> Result<SoftQp, CreateQpError> {
        let QpSpec {
            kind: QpKind::Rc,
            caps: asked,
        } = spec;
        self.shared.count_creation(*asked)?;
        let caps = self.grant(asked)?;
        let door = self.shared.add_qp(group, &caps)?;
        let qpn = door.qpn;
        match Core::new(&self.shared, door, group, caps) {
            Ok(core) => Ok(SoftQp {
                core: Box::new(core),
            }),
            Err(error) => {
                self.shared.remove_qp(qpn, group, &caps);
                let errno = match &error {
                    PortError::Segment(pollux_ring::SegmentError::System { errno, .. }) => *errno,
                    PortError::Segment(_) | PortError::Access(_) => Errno::NOMEM,
                };
                Err(CreateQpError {
                    errno,
                    asked: *asked,
                    hint: error.to_string(),
                })
            }
        }
    }

    fn to_init(&self, qp: &mut SoftQp) -> Result<(), ModifyError> {
        step(qp, QpState::Reset, QpState::Init)?;
        qp.core.state = QpState::Init;
        Ok(())
    }

    fn to_rtr(&self, qp: &mut SoftQp, attr: &RtrAttr) -> Result<(), ModifyError> {
        step(qp, QpState::Init, QpState::Rtr)?;
        check_rtr(qp.core.door.qpn, attr)?;
        let core = &mut qp.core;
        let gid = attr.peer_gid;
        let no_peer = |NoPath { place, cause }| ModifyError::NoPeer { gid, place, cause };
        let (qpn, to) = (core.door.qpn, QpState::Rtr);
        let wake = self.shared.group_wake(core.group);
        let wake = wake.map_err(|errno| ModifyError::System { qpn, to, errno })?;
        let peer = self.carrier.reach(gid).map_err(no_peer)?;
        self.carrier
            .offer(&peer, attr.peer_qpn, qpn, core.port.segment(), &wake)
            .map_err(no_peer)?;
        core.bound = Some(Bound { attr: *attr, peer });
        core.state = QpState::Rtr;
        core.catch_up();
        Ok(())
    }

    fn to_rts(&self, qp: &mut SoftQp, attr: &RtsAttr) -> Result<(), ModifyError> {
        step(qp, QpState::Rtr, QpState::Rts)?;
        check_rts(qp.core.door.qpn, attr)?;
        qp.core.port.publish_run(Run {
            psn: attr.sq_psn,
            rnr_retry: attr.rnr_retry,
        });
        qp.core.state = QpState::Rts;
        Ok(())
    }

    fn to_error(&self, qp: &mut SoftQp) -> Result<(), ModifyError> {
        qp.core.fail(None, Told::Yes);
        Ok(())
    }

    fn take_events(&self) -> Vec<DeviceEvent> {
        self.shared.take_events()
    }
}

/// Whether the queue pair may take this step.
fn step(qp: &SoftQp, from: QpState, to: QpState) -> Result<(), ModifyError> {
    let core = &qp.core;
    let state = if core.failure.is_some() {
        QpState::Error
    } else {
        core.state
    };
    if state == from {
        return Ok(());
    }
    Err(ModifyError::WrongState {
        qpn: core.door.qpn,
        from: state,
        to,
    })
}
