//! Two connected ends, and the loop that moves them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};

use pollux_provider::soft::{DeviceOptions, Fabric, Personality, SoftDevice, open_shm};
use pollux_provider::{
    Access, Completion, Device, Mr, Payload, Piece, PollGroup, PollGroupSpec, PostError, Qp,
    QpCaps, QpIndex, QpKind, QpSpec, Region, RemoteSpan, RtrAttr, RtsAttr, Sge, Signal, Wake,
    WcOpcode, WcStatus, WrId,
};
use pollux_ring::{Pages, Pool, Segment};

/// How a test wants its bytes to reach the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    Inline,
    ByReference,
}

/// Calls `post` with a payload of pieces of these memories.
fn with_payload<T>(
    memories: [(&Region, &Mr); 2],
    from: &[Sge],
    how: Placement,
    post: impl FnOnce(Payload<'_>) -> T,
) -> T {
    match how {
        Placement::ByReference => post(Payload::ByReference(from)),
        Placement::Inline => {
            let mapped = |sge: &Sge| {
                let (region, mr) = memories
                    .into_iter()
                    .find(|(_, mr)| mr.lkey() == sge.lkey)
                    .expect("one of the two memories");
                Piece {
                    region,
                    offset: (sge.addr - mr.addr()) as usize,
                    length: sge.length,
                }
            };
            let pieces: Vec<Piece<'_>> = from.iter().map(mapped).collect();
            post(Payload::Inline(&pieces))
        }
    }
}

/// Makes tests of cases, one per carrier, and one on an adapter with the feature `adapter`. Without it those
/// are compiled and are no tests, so that none of them can count as passed where nothing ran.
macro_rules! on_every_bed {
    ($($case:ident),+ $(,)?) => {
        mod verbs {
            $(
                #[cfg_attr(feature = "adapter", test)]
                #[cfg_attr(not(feature = "adapter"), expect(dead_code, reason = "no adapter"))]
                fn $case() {
                    crate::verbs::on_adapter(
                        stringify!($case),
                        super::$case::<crate::verbs::VerbsBed>,
                    );
                }
            )+
        }
        mod process {
            $(#[test] fn $case() { super::$case::<crate::bed::ProcessBed>(); })+
        }
        mod shm {
            $(#[test] fn $case() { super::$case::<crate::bed::ShmBed>(); })+
        }
    };
}

/// Where devices come from.
pub(crate) trait Bed {
    type Device: Device<Qp: Send, Group: Send> + Send;
    fn new() -> Self;
    fn open(&self, options: DeviceOptions) -> Self::Device;
}

pub(crate) struct ProcessBed(Fabric);

impl Bed for ProcessBed {
    type Device = SoftDevice;
    fn new() -> Self {
        ProcessBed(Fabric::new())
    }
    fn open(&self, options: DeviceOptions) -> SoftDevice {
        self.0.open(options).expect("device")
    }
}

pub(crate) struct ShmBed(tempfile::TempDir);

impl Bed for ShmBed {
    type Device = SoftDevice;
    fn new() -> Self {
        ShmBed(tempfile::tempdir().expect("directory"))
    }
    fn open(&self, options: DeviceOptions) -> SoftDevice {
        open_shm(self.0.path(), options).expect("device")
    }
}

/// Sizes of the two memories of an end.
pub(crate) const MEMORY: usize = 1 << 18;
pub(crate) const SLOT: usize = 256;
/// Name of the receives and sends of the warm-up.
const WARM: WrId = WrId(0xaaaa);

/// What a test wants to be different.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) caps: QpCaps,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) personality: Personality,
}

pub(crate) const CAPS: QpCaps = QpCaps {
    send_wr: 16,
    recv_wr: 16,
    send_sge: 2,
    recv_sge: 1,
    inline_bytes: 256,
};

impl Default for Wish {
    fn default() -> Self {
        Wish {
            caps: CAPS,
            rnr_retry: 7,
            min_rnr_timer: 1,
            personality: Personality::Generic,
        }
    }
}

/// One end of a connection with all it needs.
pub(crate) struct End<D: Device> {
    pub(crate) group: D::Group,
    pub(crate) qp: QpIndex,
    pub(crate) qpn: u32,
    /// Memory that the peer may write: `mr`.
    pub(crate) shared: Region,
    pub(crate) mr: Mr,
    /// Memory of our own: `private`.
    pub(crate) pool: Region,
    pub(crate) private: Mr,
    pub(crate) wake: Wake,
    /// All completions so far, in order.
    pub(crate) done: Vec<Completion>,
    pub(crate) device: D,
}

pub(crate) fn attr(gid: [u8; 16], qpn: u32, wish: &Wish) -> RtrAttr {
    RtrAttr {
        path_mtu: 1024,
        peer_qpn: qpn,
        rq_psn: 0x123456,
        min_rnr_timer: wish.min_rnr_timer,
        peer_gid: gid,
        peer_mac: [2; 6],
        hop_limit: 1,
    }
}

pub(crate) fn rts(wish: &Wish) -> RtsAttr {
    RtsAttr {
        sq_psn: 0x123456,
        timeout: 15,
        // Soft-RoCE takes 7 for ever.
        retry_count: 6,
        rnr_retry: wish.rnr_retry,
    }
}

/// An address that no other test of this process uses.
pub(crate) fn fresh_gid() -> [u8; 16] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let mut gid = [0xfe; 16];
    gid[15] = NEXT.fetch_add(1, Ordering::Relaxed);
    gid[14] = std::process::id() as u8;
    gid
}

pub(crate) fn options(personality: Personality) -> DeviceOptions {
    DeviceOptions {
        personality,
        ..DeviceOptions::new(fresh_gid())
    }
}

pub(crate) fn group<D: Device>(device: &D) -> (D::Group, Wake) {
    let wake = Wake::new().expect("eventfd");
    let spec = PollGroupSpec {
        cq_entries: device.limits().cq_entries_max.min(65536),
        wake: wake.try_clone().expect("eventfd"),
    };
    (device.create_poll_group(&spec).expect("group"), wake)
}

pub(crate) fn spec(caps: QpCaps) -> QpSpec {
    QpSpec {
        kind: QpKind::Rc,
        caps,
    }
}

impl<D: Device> End<D> {
    pub(crate) fn new(device: D) -> End<D> {
        let (group, wake) = group(&device);
        let shared = Region::from(Segment::create("test", MEMORY, Pages::Off).expect("segment"));
        let mr = device
            .register(&shared, 0, MEMORY, Access::RemoteWrite)
            .expect("mr");
        let pool = Region::from(Pool::create(MEMORY, Pages::Off).expect("pool"));
        let private = device
            .register(&pool, 0, MEMORY, Access::LocalOnly)
            .expect("mr");
        let done = Vec::new();
        let (qp, qpn) = (QpIndex(0), 0);
        End {
            group,
            qp,
            qpn,
            shared,
            mr,
            pool,
            private,
            wake,
            done,
            device,
        }
    }

    /// A piece of the shared memory.
    pub(crate) fn piece(&self, offset: usize, length: usize) -> Sge {
        Sge {
            addr: self.mr.addr() + offset as u64,
            length: length as u32,
            lkey: self.mr.lkey(),
        }
    }

    /// A piece of the private memory.
    pub(crate) fn private_piece(&self, offset: usize, length: usize) -> Sge {
        let lkey = self.private.lkey();
        Sge {
            addr: self.private.addr() + offset as u64,
            length: length as u32,
            lkey,
        }
    }

    /// A place in the shared memory, for the peer.
    pub(crate) fn place(&self, offset: usize) -> RemoteSpan {
        RemoteSpan {
            addr: self.mr.addr() + offset as u64,
            rkey: self.mr.rkey(),
        }
    }

    pub(crate) fn fill(&self, offset: usize, bytes: &[u8]) {
        self.shared.copy_in(offset, bytes).expect("inside");
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.shared.copy_out(offset, &mut bytes).expect("inside");
        bytes
    }

    /// Bytes of receive slot `slot`.
    pub(crate) fn received(&self, slot: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.pool
            .copy_out(slot as usize * SLOT, &mut bytes)
            .expect("inside");
        bytes
    }

    /// Posts receive slot `slot` under its number.
    pub(crate) fn recv(&mut self, slot: u64) {
        let into = self.private_piece(slot as usize * SLOT, SLOT);
        self.group
            .post_recv(self.qp, WrId(slot), into)
            .expect("receive");
    }

    pub(crate) fn try_send(
        &mut self,
        wr: u64,
        from: &[Sge],
        how: Placement,
        signal: Signal,
    ) -> Result<(), PostError> {
        let memories = [(&self.shared, &self.mr), (&self.pool, &self.private)];
        let (group, qp) = (&mut self.group, self.qp);
        with_payload(memories, from, how, |payload| {
            group.post_send(qp, WrId(wr), payload, signal)
        })
    }

    pub(crate) fn try_write(
        &mut self,
        wr: u64,
        from: &[Sge],
        to: RemoteSpan,
        how: Placement,
        signal: Signal,
    ) -> Result<(), PostError> {
        let memories = [(&self.shared, &self.mr), (&self.pool, &self.private)];
        let (group, qp) = (&mut self.group, self.qp);
        with_payload(memories, from, how, |payload| {
            group.post_write(qp, WrId(wr), payload, to, signal)
        })
    }

    pub(crate) fn try_write_imm(
        &mut self,
        wr: u64,
        from: &[Sge],
        (to, imm): (RemoteSpan, u32),
        how: Placement,
        signal: Signal,
    ) -> Result<(), PostError> {
        let memories = [(&self.shared, &self.mr), (&self.pool, &self.private)];
        let (group, qp) = (&mut self.group, self.qp);
        with_payload(memories, from, how, |payload| {
            group.post_write_imm(qp, WrId(wr), payload, to, imm, signal)
        })
    }

    pub(crate) fn try_send_bytes(
        &mut self,
        wr: u64,
        message: &[u8],
        signal: Signal,
    ) -> Result<(), PostError> {
        let payload = Payload::InlineBytes(message);
        self.group.post_send(self.qp, WrId(wr), payload, signal)
    }

    pub(crate) fn send(&mut self, wr: u64, message: &[u8], signal: Signal) {
        self.try_send_bytes(wr, message, signal).expect("send");
    }

    pub(crate) fn write(
        &mut self,
        wr: u64,
        from: Sge,
        to: RemoteSpan,
        how: Placement,
        signal: Signal,
    ) {
        self.try_write(wr, &[from], to, how, signal).expect("write");
    }

    pub(crate) fn flush(&mut self) {
        self.group.flush(self.qp).expect("flush");
    }

    pub(crate) fn reap(&mut self, now: u64) {
        let mut into = [Completion::EMPTY; 8];
        let count = self.group.reap(now, &mut into);
        self.done.extend_from_slice(&into[..count]);
    }

    /// Completions of the send queue so far: name and status.
    pub(crate) fn sends(&self) -> Vec<(u64, WcStatus)> {
        let sends = self.done.iter().filter(|done| !done.opcode.is_receive());
        sends.map(|done| (done.wr_id.0, done.status)).collect()
    }

    /// Completions of the receive queue so far: name and status.
    pub(crate) fn recvs(&self) -> Vec<(u64, WcStatus)> {
        let recvs = self.done.iter().filter(|done| done.opcode.is_receive());
        recvs.map(|done| (done.wr_id.0, done.status)).collect()
    }
}

/// Two ends and a clock.
pub(crate) struct World<B: Bed> {
    pub(crate) a: End<B::Device>,
    pub(crate) b: End<B::Device>,
    pub(crate) now: u64,
    pub(crate) bed: B,
}

impl<B: Bed> World<B> {
    /// Two devices with a connection that has carried one message each way.
    pub(crate) fn connected(wish: Wish) -> World<B> {
        let bed = B::new();
        let (device_a, device_b) = (
            bed.open(options(wish.personality)),
            bed.open(options(wish.personality)),
        );
        let (mut a, mut b) = (End::new(device_a), End::new(device_b));
        connect(&mut a, &mut b, &wish);
        let mut world = World { a, b, now: 0, bed };
        world.warm_up();
        world
    }

    /// Connects a second pair of queue pairs, which the ends' helpers use from now on.
    pub(crate) fn connect_again(&mut self, wish: &Wish) {
        connect(&mut self.a, &mut self.b, wish);
        let done = (
            std::mem::take(&mut self.a.done),
            std::mem::take(&mut self.b.done),
        );
        self.warm_up();
        (self.a.done, self.b.done) = done;
    }

    fn warm_up(&mut self) {
        for end in [&mut self.a, &mut self.b] {
            let into = end.private_piece(0, 1);
            end.group.post_recv(end.qp, WARM, into).expect("receive");
        }
        for end in [&mut self.a, &mut self.b] {
            end.send(WARM.0, &[0], Signal::Signaled);
            end.flush();
        }
        self.until(|world| world.a.done.len() == 2 && world.b.done.len() == 2);
        for end in [&mut self.a, &mut self.b] {
            assert!(
                end.done.iter().all(|done| done.status == WcStatus::Success),
                "{:?}",
                end.done
            );
            end.done.clear();
        }
    }

    /// Both ends reap once.
    pub(crate) fn turn(&mut self) {
        self.a.reap(self.now);
        self.b.reap(self.now);
    }

    /// Turns until something is so. A hang guard, not a time limit.
    pub(crate) fn until(&mut self, so: impl Fn(&World<B>) -> bool) {
        for round in 0..20_000_000u64 {
            if so(self) {
                return;
            }
            self.turn();
            if round > 100 {
                std::thread::yield_now();
            }
        }
        panic!("it never came: a {:?}, b {:?}", self.a.done, self.b.done);
    }

    /// Turns long enough for everything that can happen on a connection that is up.
    pub(crate) fn settle(&mut self) {
        (0..300).for_each(|_| self.turn());
    }
}

/// Creates and connects the queue pairs of two ends.
pub(crate) fn connect<D: Device>(a: &mut End<D>, b: &mut End<D>, wish: &Wish) {
    let mut qp_a = a
        .device
        .create_qp(a.group.id(), &spec(wish.caps))
        .expect("qp");
    let mut qp_b = b
        .device
        .create_qp(b.group.id(), &spec(wish.caps))
        .expect("qp");
    (a.qpn, b.qpn) = (qp_a.qpn(), qp_b.qpn());
    let (gid_a, gid_b) = (a.device.identity().gid, b.device.identity().gid);
    for (end, qp, gid, qpn) in [
        (&*a, &mut qp_a, gid_b, b.qpn),
        (&*b, &mut qp_b, gid_a, a.qpn),
    ] {
        end.device.to_init(qp).expect("init");
        end.device.to_rtr(qp, &attr(gid, qpn, wish)).expect("rtr");
        end.device.to_rts(qp, &rts(wish)).expect("rts");
    }
    a.qp = a.group.adopt(qp_a).expect("adopt");
    b.qp = b.group.adopt(qp_b).expect("adopt");
}

/// How many completions of each status.
pub(crate) fn tally(done: &[Completion]) -> HashMap<WcStatus, usize> {
    let mut tally = HashMap::new();
    done.iter()
        .for_each(|done| *tally.entry(done.status).or_default() += 1);
    tally
}

/// The only receive completion so far.
pub(crate) fn only_recv(done: &[Completion]) -> Completion {
    let recvs: Vec<&Completion> = done
        .iter()
        .filter(|done| done.opcode.is_receive())
        .collect();
    assert_eq!(recvs.len(), 1, "{done:?}");
    assert_ne!(recvs[0].opcode, WcOpcode::Send);
    *recvs[0]
}
