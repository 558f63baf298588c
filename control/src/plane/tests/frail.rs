//! A device that fails when a test wants it to.

use pollux_provider::soft::{SoftDevice, SoftGroup, SoftQp};
use pollux_provider::{
    Access, CreateGroupError, CreateQpError, Device, DeviceEvent, DeviceIdentity, DeviceLimits,
    Errno, GroupId, ModifyError, Mr, PollGroup, PollGroupSpec, QpSpec, RegisterError, RtrAttr,
    RtsAttr,
};
use pollux_ring::Region;
use std::cell::{Cell, RefCell};

/// A soft device that can be made to fail.
#[derive(Debug)]
pub(super) struct Frail {
    pub(super) inner: SoftDevice,
    /// News that nobody but the test knows.
    pub(super) news: RefCell<Vec<DeviceEvent>>,
    /// Calls of `register` that still succeed.
    pub(super) registrations_left: Cell<usize>,
    /// Calls of `create_qp` that still succeed.
    pub(super) queue_pairs_left: Cell<usize>,
    /// Calls of `to_rtr` that still succeed.
    pub(super) paths_left: Cell<usize>,
    /// What queue pairs are made for in place of the worker.
    pub(super) strangers: RefCell<Option<SoftGroup>>,
}

/// Takes one of what is left, if there is any.
fn take_one(left: &Cell<usize>) -> bool {
    let one = left.get().checked_sub(1);
    left.set(one.unwrap_or(0));
    one.is_some()
}

impl Frail {
    pub(super) fn new(inner: SoftDevice) -> Self {
        Frail {
            inner,
            news: RefCell::default(),
            registrations_left: Cell::new(usize::MAX),
            queue_pairs_left: Cell::new(usize::MAX),
            paths_left: Cell::new(usize::MAX),
            strangers: RefCell::default(),
        }
    }
}

impl Device for Frail {
    type Qp = SoftQp;
    type Group = SoftGroup;

    fn identity(&self) -> &DeviceIdentity {
        self.inner.identity()
    }

    fn limits(&self) -> &DeviceLimits {
        self.inner.limits()
    }

    fn register(
        &self,
        region: &Region,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<Mr, RegisterError> {
        if !take_one(&self.registrations_left) {
            let errno = Errno::NOMEM;
            return Err(RegisterError::System { len, errno });
        }
        self.inner.register(region, offset, len, access)
    }

    fn create_poll_group(&self, spec: &PollGroupSpec) -> Result<SoftGroup, CreateGroupError> {
        self.inner.create_poll_group(spec)
    }

    fn create_qp(&self, group: GroupId, spec: &QpSpec) -> Result<SoftQp, CreateQpError> {
        if !take_one(&self.queue_pairs_left) {
            // No matter of inline data, so that it is not tried with less.
            return Err(CreateQpError {
                errno: Errno::MFILE,
                asked: spec.caps,
                hint: "the test refuses it".to_string(),
            });
        }
        let strangers = self.strangers.borrow();
        let group = strangers.as_ref().map_or(group, SoftGroup::id);
        self.inner.create_qp(group, spec)
    }

    fn to_init(&self, qp: &mut SoftQp) -> Result<(), ModifyError> {
        self.inner.to_init(qp)
    }

    fn to_rtr(&self, qp: &mut SoftQp, attr: &RtrAttr) -> Result<(), ModifyError> {
        if !take_one(&self.paths_left) {
            // What a state too many is refused with stands for all refusals.
            return self.inner.to_init(qp);
        }
        self.inner.to_rtr(qp, attr)
    }

    fn to_rts(&self, qp: &mut SoftQp, attr: &RtsAttr) -> Result<(), ModifyError> {
        self.inner.to_rts(qp, attr)
    }

    fn to_error(&self, qp: &mut SoftQp) -> Result<(), ModifyError> {
        self.inner.to_error(qp)
    }

    fn take_events(&self) -> Vec<DeviceEvent> {
        let mut events = self.inner.take_events();
        events.append(&mut self.news.borrow_mut());
        events
    }
}
