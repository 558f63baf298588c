//! A soft device whose poll groups have the faulty layer over them, and which remembers what was
//! registered, so that checkers can look at the memory that work requests name.

use std::collections::HashMap;

use pollux_provider::soft::{Census, SoftDevice, SoftQp};
use pollux_provider::{
    Access, CreateGroupError, CreateQpError, Device, DeviceEvent, DeviceIdentity, DeviceLimits,
    Errno, GroupId, Layered, ModifyError, Mr, PollGroupSpec, Qp, QpSpec, QpState, Region,
    RegisterError, RtrAttr, RtsAttr,
};

use crate::book::{Shared, lock};
use crate::faults::{Adapter, Faults, FaultyGroup};

/// Registered memory by its local key.
#[derive(Debug, Default)]
pub(crate) struct Registry(HashMap<u32, Region>);

impl Registry {
    /// Copies `length` bytes at `addr` out of the registration `lkey`; `false` if there is no such memory.
    pub(crate) fn copy_out(&self, lkey: u32, addr: u64, into: &mut [u8]) -> bool {
        self.0.get(&lkey).is_some_and(|region| {
            let offset = addr.checked_sub(region.addr());
            offset.is_some_and(|offset| region.copy_out(offset as usize, into).is_ok())
        })
    }
}

/// The address of a stack.
pub(crate) fn gid(index: usize) -> [u8; 16] {
    let last = index as u8 + 1;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last]
}

/// The stack that has an address.
fn stack_of(address: [u8; 16]) -> Option<usize> {
    let index = usize::from(address[15]).checked_sub(1)?;
    (gid(index) == address).then_some(index)
}

/// Takes a registration out of the registry when it is dropped.
struct Entry {
    registry: Shared<Registry>,
    lkey: u32,
    _mr: Mr,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.registry).0.remove(&self.lkey);
    }
}

/// The device of a simulated stack.
#[derive(Debug)]
pub struct SimDevice {
    soft: SoftDevice,
    registry: Shared<Registry>,
    adapter: Shared<Adapter>,
}

impl SimDevice {
    /// A device whose groups behave as `adapter` says.
    pub(crate) fn new(soft: SoftDevice, adapter: Shared<Adapter>) -> SimDevice {
        let registry = lock(&adapter).registry();
        SimDevice {
            soft,
            registry,
            adapter,
        }
    }

    /// Whether the device refuses what it is asked for.
    fn refuses(&self, kind: &'static str) -> bool {
        lock(&self.adapter).refuses(kind)
    }

    /// Live objects.
    pub(crate) fn census(&self) -> Census {
        self.soft.census()
    }
}

impl Device for SimDevice {
    type Qp = SoftQp;
    type Group = FaultyGroup;

    fn identity(&self) -> &DeviceIdentity {
        self.soft.identity()
    }

    fn limits(&self) -> &DeviceLimits {
        self.soft.limits()
    }

    fn register(
        &self,
        region: &Region,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<Mr, RegisterError> {
        if self.refuses("registration refused") {
            let errno = Errno::NOMEM;
            return Err(RegisterError::System { len, errno });
        }
        let mr = self.soft.register(region, offset, len, access)?;
        let (lkey, rkey, addr) = (mr.lkey(), mr.rkey(), mr.addr());
        lock(&self.registry).0.insert(lkey.0, region.clone());
        let entry = Entry {
            registry: self.registry.clone(),
            lkey: lkey.0,
            _mr: mr,
        };
        Ok(Mr::new(lkey, rkey, addr, len, Box::new(entry)))
    }

    fn create_poll_group(&self, spec: &PollGroupSpec) -> Result<FaultyGroup, CreateGroupError> {
        let group = self.soft.create_poll_group(spec)?;
        Ok(Layered::new(group, Faults(self.adapter.clone())))
    }

    fn create_qp(&self, group: GroupId, spec: &QpSpec) -> Result<SoftQp, CreateQpError> {
        if self.refuses("queue pair refused") {
            // No matter of inline data, so that it is not tried with less.
            return Err(CreateQpError {
                errno: Errno::MFILE,
                asked: spec.caps,
                hint: "the world refuses it".to_owned(),
            });
        }
        self.soft.create_qp(group, spec)
    }

    fn to_init(&self, qp: &mut SoftQp) -> Result<(), ModifyError> {
        self.soft.to_init(qp)
    }

    fn to_rtr(&self, qp: &mut SoftQp, attr: &RtrAttr) -> Result<(), ModifyError> {
        if self.refuses("path refused") {
            return Err(ModifyError::System {
                qpn: qp.qpn(),
                to: QpState::Rtr,
                errno: Errno::HOSTUNREACH,
            });
        }
        self.soft.to_rtr(qp, attr)?;
        if let Some(peer) = stack_of(attr.peer_gid) {
            lock(&self.adapter).connect(qp.qpn(), (peer, attr.peer_qpn));
        }
        Ok(())
    }

    fn to_rts(&self, qp: &mut SoftQp, attr: &RtsAttr) -> Result<(), ModifyError> {
        self.soft.to_rts(qp, attr)
    }

    fn to_error(&self, qp: &mut SoftQp) -> Result<(), ModifyError> {
        self.soft.to_error(qp)
    }

    fn take_events(&self) -> Vec<DeviceEvent> {
        self.soft.take_events()
    }
}
