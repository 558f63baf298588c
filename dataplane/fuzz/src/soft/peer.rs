//! Two queue pairs of the embedded fabric, of which one belongs to a peer that also writes what it likes
//! into its own port: lines, half lines, counts, verdicts.
//!
//! 1. Of the honest side's memory nothing changes but what was opened for writing and the receives it
//!    has posted.
//! 2. Work ends once: every signalled send and every receive has one completion, receives in their
//!    order, none longer than its place.
//! 3. A pass executes a bounded number of requests.
//! 4. Whatever the peer did, the honest side can end its queue pair, and everything outstanding comes
//!    back.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

use pollux_provider::soft::{DeviceOptions, Fabric, SoftDevice, SoftGroup, SoftQp};
use pollux_provider::{
    Access, Completion, Device, DeviceEvent, Mr, Payload, Piece, PollGroup, PollGroupSpec, Qp,
    QpCaps, QpIndex, QpKind, QpSpec, QpState, RemoteSpan, RtrAttr, RtsAttr, Sge, Signal, Sleep,
    WcStatus, WrId,
};
use pollux_ring::{Pages, Region, Segment, Wake};

use super::{
    MEMORY_BYTES, OPEN, PORT_BYTES, REQUESTS_PER_PASS, SLOT_BYTES, SLOTS, SLOTS_AT, line_at,
    line_bytes, place,
};
use crate::Input;

const PSN: u32 = 77;
const CAPS: QpCaps = QpCaps {
    send_wr: 8,
    recv_wr: SLOTS as u32,
    send_sge: 2,
    recv_sge: 1,
    inline_bytes: 256,
};

thread_local! {
    /// Devices are made once; each run has queue pairs of its own.
    static ENDS: RefCell<Option<[End; 2]>> = const { RefCell::new(None) };
}

/// A device with a group and memory.
struct End {
    device: SoftDevice,
    group: SoftGroup,
    memory: Region,
    open: Mr,
    all: Mr,
    qp: QpIndex,
}

impl End {
    fn new(fabric: &Fabric, n: u8) -> End {
        let device = fabric.open(DeviceOptions::new([n; 16])).expect("a device");
        let spec = PollGroupSpec {
            cq_entries: 1000,
            wake: Wake::new().expect("an eventfd"),
        };
        let group = device.create_poll_group(&spec).expect("a group");
        let segment = Segment::create("fuzz", MEMORY_BYTES, Pages::Off).expect("memory");
        let memory = Region::from(segment);
        let register = |at, len, access| device.register(&memory, at, len, access);
        End {
            open: register(OPEN.start, OPEN.len(), Access::RemoteWrite).expect("open memory"),
            all: register(0, MEMORY_BYTES, Access::LocalOnly).expect("all memory"),
            device,
            group,
            memory,
            qp: QpIndex(0),
        }
    }

    fn create(&self) -> SoftQp {
        let kind = QpKind::Rc;
        self.device
            .create_qp(self.group.id(), &QpSpec { kind, caps: CAPS })
            .expect("a queue pair")
    }

    fn connect(&mut self, mut qp: SoftQp, peer_gid: [u8; 16], peer_qpn: u32) {
        self.device.to_init(&mut qp).expect("INIT");
        let rtr = RtrAttr {
            path_mtu: 1024,
            peer_qpn,
            rq_psn: PSN,
            min_rnr_timer: 1,
            peer_gid,
            peer_mac: [0; 6],
            hop_limit: 1,
        };
        self.device.to_rtr(&mut qp, &rtr).expect("RTR");
        let rts = RtsAttr {
            sq_psn: PSN,
            timeout: 15,
            retry_count: 7,
            rnr_retry: 7,
        };
        self.device.to_rts(&mut qp, &rts).expect("RTS");
        self.qp = self.group.adopt(qp).expect("room in the group");
    }

    fn sge(&self, at: usize, length: u32) -> Sge {
        let (addr, lkey) = (self.all.addr() + at as u64, self.all.lkey());
        Sge { addr, length, lkey }
    }

    fn to(&self, at: i64) -> RemoteSpan {
        RemoteSpan {
            addr: self.open.addr().saturating_add_signed(at),
            rkey: self.open.rkey(),
        }
    }
}

/// Work of the honest side that has not ended.
#[derive(Default)]
struct Outstanding {
    sends: BTreeSet<u64>,
    receives: VecDeque<u64>,
    next: u64,
}

struct World<'a> {
    liar: &'a mut End,
    honest: &'a mut End,
    work: Outstanding,
    now: u64,
    /// Where the liar writes its next line by hand.
    position: u64,
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    ENDS.with_borrow_mut(|ends| {
        let [liar, honest] = ends.get_or_insert_with(|| {
            let fabric = Fabric::new();
            [End::new(&fabric, 1), End::new(&fabric, 2)]
        });
        honest
            .memory
            .copy_in(0, &[0; MEMORY_BYTES])
            .expect("inside");
        let (of_liar, of_honest) = (liar.create(), honest.create());
        let (liar_qpn, honest_qpn) = (of_liar.qpn(), of_honest.qpn());
        liar.connect(of_liar, [2; 16], honest_qpn);
        honest.connect(of_honest, [1; 16], liar_qpn);
        let mut world = World {
            liar,
            honest,
            work: Outstanding::default(),
            now: 1,
            position: 0,
        };
        let mut input = Input::new(bytes);
        while !input.is_empty() {
            world.step(&mut input);
        }
        world.finish();
    });
}

impl World<'_> {
    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        match op & 0x0f {
            0..=3 => self.lie(op >> 4, input),
            4 => self.scribble(input),
            5 | 6 => self.receive(),
            7..=9 => self.reap(input.byte()),
            10 | 11 => self.send(op >> 4, input.byte()),
            12 => self.liar_works(op >> 4, input.byte()),
            13 => {
                let into = &mut [Completion::EMPTY; 8];
                let _ = self.liar.group.reap(self.now, into);
            }
            14 => {
                let sleep = if op & 0x10 == 0 {
                    Sleep::May
                } else {
                    Sleep::Never
                };
                let _ = self.honest.group.arm(sleep);
                self.honest.group.disarm();
            }
            _ => {
                let stats = self.honest.group.stats(self.honest.qp);
                assert!(stats.send_completions <= self.work.next);
            }
        }
    }

    /// A line by hand: mostly a request next to a legal one.
    fn lie(&mut self, how: u8, input: &mut Input<'_>) {
        let (op, len, at) = (input.byte(), input.byte(), input.u16());
        let chain = u64::from(op & 0x80);
        let opcode = u64::from(op % 5) | chain;
        let form = u64::from(op >> 5 & 3 == 3);
        let length = u64::from(len) << (if op & 0x10 == 0 { 0 } else { 5 });
        let (addr, rkey) = match op % 5 {
            1 => (0, 0),
            _ => {
                let to = self.honest.to(place(at));
                // What is registered for the honest side's own use has a key too.
                let closed = how & 0x30 == 0x30;
                let rkey = if closed {
                    self.honest.all.rkey()
                } else {
                    to.rkey
                };
                (to.addr, u64::from(rkey.0))
            }
        };
        let mut line = [
            opcode | form << 8 | form << 12 | length << 16 | rkey << 32,
            addr,
            3,
            4,
            5,
            6,
            7,
        ];
        if form == 1 {
            line[0] &= !(0xffff << 16);
            line[2] = u64::from(input.u32()) | u64::from(len) << 32;
            line[3] = input.number();
        }
        if how & 3 == 3 {
            let bit = u64::from(input.byte());
            line[(bit >> 6) as usize] ^= 1 << (bit & 63);
        }
        // Mostly where the honest side looks next.
        let position = if how & 0x0c == 0x0c {
            u64::from(input.byte())
        } else {
            self.position
        };
        self.liar.group.scribble(
            self.liar.qp,
            line_at(position),
            &line_bytes(&line, position),
        );
        self.position += 1;
    }

    fn scribble(&mut self, input: &mut Input<'_>) {
        // Half of it goes to the words in front of the ring.
        let at = match input.byte() {
            small @ 0..=0x7f => usize::from(small) % 40 * 8,
            _ => usize::from(input.u16()) % (PORT_BYTES / 8) * 8,
        };
        let word = input.number();
        self.liar
            .group
            .scribble(self.liar.qp, at, &word.to_le_bytes());
    }

    fn receive(&mut self) {
        let slot = self.work.next % SLOTS;
        let into = self
            .honest
            .sge(SLOTS_AT + slot as usize * SLOT_BYTES as usize, SLOT_BYTES);
        let wr = WrId(self.work.next);
        if self
            .honest
            .group
            .post_recv(self.honest.qp, wr, into)
            .is_ok()
        {
            self.work.receives.push_back(self.work.next);
            self.work.next += 1;
        }
    }

    /// The honest side's own work, which the liar may or may not execute.
    fn send(&mut self, how: u8, len: u8) {
        let (qp, wr) = (self.honest.qp, WrId(self.work.next));
        let signal = if how & 1 == 0 {
            Signal::Signaled
        } else {
            Signal::Unsignaled
        };
        let bytes = [len; 256];
        let length = u32::from(len) + 1;
        let sges = [self.honest.sge(0, length), self.honest.sge(8, 8)];
        let pieces = [Piece {
            region: &self.honest.memory,
            offset: OPEN.start,
            length,
        }];
        let payload = match how >> 1 & 3 {
            0 | 1 => Payload::InlineBytes(&bytes[..length as usize]),
            2 => Payload::Inline(&pieces),
            _ => Payload::ByReference(&sges),
        };
        let to = self.liar.to(0);
        let group = &mut self.honest.group;
        let posted = match how >> 3 {
            0 => group.post_send(qp, wr, payload, signal),
            _ => group.post_write(qp, wr, payload, to, signal),
        };
        match posted {
            Ok(()) => {
                if signal == Signal::Signaled {
                    self.work.sends.insert(self.work.next);
                }
                self.work.next += 1;
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        if how & 1 == 0 {
            self.honest
                .group
                .flush(qp)
                .expect("there is such a queue pair");
        }
    }

    /// What a peer that keeps to the driver does.
    fn liar_works(&mut self, how: u8, len: u8) {
        let qp = self.liar.qp;
        let length = u32::from(len) + 1;
        let bytes = [len; 256];
        let sges = [self.liar.sge(usize::from(len), length), self.liar.sge(0, 3)];
        let payload = match how & 3 {
            0 | 1 => Payload::InlineBytes(&bytes[..length as usize]),
            _ => Payload::ByReference(&sges),
        };
        let to = self.honest.to(i64::from(how >> 2) * 300);
        let (wr, signal) = (WrId(0), Signal::Signaled);
        let group = &mut self.liar.group;
        let _ = match how & 1 {
            0 => group.post_send(qp, wr, payload, signal),
            _ => group.post_write_imm(qp, wr, payload, to, 9, signal),
        };
        let _ = group.flush(qp);
        // Lines by hand go behind what the driver has written.
        self.position += 1;
    }

    fn reap(&mut self, step: u8) {
        self.now += u64::from(step) << 12;
        let before = self.honest.group.stats(self.honest.qp);
        let mut into = [Completion::EMPTY; 8];
        let count = self.honest.group.reap(self.now, &mut into);
        for done in &into[..count] {
            self.work.end(done);
        }
        let after = self.honest.group.stats(self.honest.qp);
        assert!(after.writes_executed - before.writes_executed <= REQUESTS_PER_PASS);
    }

    fn finish(mut self) {
        let mut qp = self
            .honest
            .group
            .release(self.honest.qp)
            .expect("it was adopted");
        if qp.state() != QpState::Error {
            self.honest
                .device
                .to_error(&mut qp)
                .expect("any state leads to the error state");
        }
        self.honest.qp = self.honest.group.adopt(qp).expect("room in the group");
        for _ in 0..2 * SLOTS {
            self.reap(0);
        }
        assert!(
            self.work.sends.is_empty(),
            "work without an end: {:?}",
            self.work.sends
        );
        assert!(self.work.receives.is_empty(), "receives without an end");
        assert_eq!(self.honest.group.state(self.honest.qp), QpState::Error);
        drop(self.honest.group.release(self.honest.qp));
        drop(self.liar.group.release(self.liar.qp));
        let mut bytes = [0; SLOTS_AT];
        self.honest.memory.copy_out(0, &mut bytes).expect("inside");
        let closed = bytes[..OPEN.start].iter().chain(&bytes[OPEN.end..]);
        assert!(
            closed.into_iter().all(|byte| *byte == 0),
            "closed memory was written"
        );
        for event in self.honest.device.take_events() {
            if let DeviceEvent::PeerRefused { what } = event {
                assert!(!what.is_empty());
            }
        }
        self.liar.device.take_events();
        let census = self.honest.device.census();
        assert_eq!((census.qps, census.groups, census.mrs), (0, 1, 2));
    }
}

impl Outstanding {
    /// A completion of the honest side.
    fn end(&mut self, done: &Completion) {
        if done.opcode.is_receive() {
            assert_eq!(self.receives.pop_front(), Some(done.wr_id.0), "{done:?}");
            assert!(
                done.byte_len <= SLOT_BYTES || done.imm.is_some(),
                "{done:?}"
            );
            return;
        }
        // Work that was not signalled completes only if it failed.
        let is_known = self.sends.remove(&done.wr_id.0);
        assert!(is_known || done.status != WcStatus::Success, "{done:?}");
    }
}
