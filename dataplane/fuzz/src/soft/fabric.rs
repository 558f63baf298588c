//! The sockets on which devices of other processes meet ours: packets of any bytes with any
//! descriptors, in any order, from several connections, while a queue pair waits for one of them.
//!
//! 1. What is no message, comes out of turn, or brings descriptors of the wrong kind, ends its own
//!    connection and is told to the operator; the other connections live.
//! 2. Of our memory nothing changes but what was opened for writing.
//! 3. When the peers are gone, nothing of them is left: no peer, no connection, no descriptor.

use std::cell::RefCell;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pollux_provider::soft::testing::Host;
use pollux_provider::soft::{DeviceOptions, SoftGroup};
use pollux_provider::{
    Access, Completion, Device, Mr, Payload, PollGroup, PollGroupSpec, Qp, QpCaps, QpIndex, QpKind,
    QpSpec, RtrAttr, RtsAttr, Sge, Signal, WrId,
};
use pollux_ring::{Pages, Region, Segment, Wake};
use rustix::event::EventfdFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use super::{
    MEMORY_BYTES, OPEN, PORT_BYTES, SLOT_BYTES, SLOTS, SLOTS_AT, line_at, line_bytes, place,
};
use crate::{Input, fds};

const OWN: [u8; 16] = [9; 16];
const MAGIC: u32 = 0x7866_6c70;
const VERSION: u16 = 1;
/// What stands at the beginning of a port.
const PORT_MAGIC: u64 = 0x0001_7274_7070_6c78;
const PSN: u32 = 77;
/// Connections that a run makes at most.
const VISITORS_MAX: usize = 4;

thread_local! {
    static BED: RefCell<Option<Bed>> = const { RefCell::new(None) };
}

/// Our device, and what a peer can hand over. Made once.
struct Bed {
    host: Host,
    group: SoftGroup,
    memory: Region,
    open: Mr,
    all: Mr,
    /// Descriptors of every kind, good and bad.
    wares: Vec<OwnedFd>,
    port: Segment,
    /// Tells the lives of peers apart.
    lives: u64,
    _folder: Folder,
}

/// A folder that goes with its owner.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Bed {
    fn new() -> Bed {
        let folder = std::env::temp_dir().join(format!("pollux-fuzz-{}", std::process::id()));
        let host = Host::open(&folder, DeviceOptions::new(OWN), 1).expect("a device");
        let spec = PollGroupSpec {
            cq_entries: 1000,
            wake: Wake::new().expect("an eventfd"),
        };
        let group = host.device().create_poll_group(&spec).expect("a group");
        let segment = Segment::create("fuzz", MEMORY_BYTES, Pages::Off).expect("memory");
        let memory = Region::from(segment);
        let register = |at, len, access| host.device().register(&memory, at, len, access);
        let open = register(OPEN.start, OPEN.len(), Access::RemoteWrite).expect("open memory");
        let all = register(0, MEMORY_BYTES, Access::LocalOnly).expect("all memory");
        let port = Segment::create("port", PORT_BYTES, Pages::Off).expect("a port");
        let wares = wares(&port);
        Bed {
            host,
            group,
            memory,
            open,
            all,
            wares,
            port,
            lives: 0,
            _folder: Folder(folder),
        }
    }
}

/// In this order: a port, an eventfd as it should be, a segment; then what is none of them.
fn wares(port: &Segment) -> Vec<OwnedFd> {
    let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let segment = Segment::create("export", 4096, Pages::Off).expect("a segment");
    let sealed = Segment::create_owner_writes("export", 8192, Pages::Off).expect("a segment");
    let wake = Wake::new().expect("an eventfd");
    let blocking = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC);
    let unsealed = unsealed.expect("a memfd");
    rustix::fs::ftruncate(&unsealed, 65536).expect("a size");
    let (pipe, _) = rustix::pipe::pipe().expect("a pipe");
    let null = File::open("/dev/null").expect("/dev/null");
    vec![
        own(port.fd()),
        own(wake.fd()),
        own(segment.fd()),
        own(sealed.fd()),
        blocking,
        unsealed,
        pipe,
        null.into(),
    ]
}

struct World<'a> {
    bed: &'a mut Bed,
    qp: QpIndex,
    qpn: u32,
    gid: [u8; 16],
    visitors: Vec<OwnedFd>,
    /// The connection that our device made.
    called: OwnedFd,
    now: u64,
    position: u64,
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    BED.with_borrow_mut(|bed| {
        let bed = bed.get_or_insert_with(Bed::new);
        let before = fds::lowest_free();
        let mut world = World::new(bed);
        let mut input = Input::new(bytes);
        while !input.is_empty() {
            world.step(&mut input);
        }
        world.finish();
        assert_eq!(fds::lowest_free(), before, "a descriptor was left open");
    });
}

impl World<'_> {
    fn new(bed: &mut Bed) -> World<'_> {
        bed.lives += 1;
        bed.memory.copy_in(0, &[0; MEMORY_BYTES]).expect("inside");
        bed.port.copy_in(0, &vec![0; PORT_BYTES]).expect("inside");
        let mut gid = [1; 16];
        gid[8..].copy_from_slice(&bed.lives.to_le_bytes());
        let called = bed.host.call(gid, bed.lives).expect("a connection");
        let caps = QpCaps {
            send_wr: 8,
            recv_wr: SLOTS as u32,
            send_sge: 2,
            recv_sge: 1,
            inline_bytes: 64,
        };
        let spec = QpSpec {
            kind: QpKind::Rc,
            caps,
        };
        let device = bed.host.device();
        let mut qp = device
            .create_qp(bed.group.id(), &spec)
            .expect("a queue pair");
        let qpn = qp.qpn();
        device.to_init(&mut qp).expect("INIT");
        let rtr = RtrAttr {
            path_mtu: 1024,
            peer_qpn: 0x55,
            rq_psn: PSN,
            min_rnr_timer: 1,
            peer_gid: gid,
            peer_mac: [0; 6],
            hop_limit: 1,
        };
        device.to_rtr(&mut qp, &rtr).expect("RTR");
        let rts = RtsAttr {
            sq_psn: PSN,
            timeout: 15,
            retry_count: 7,
            rnr_retry: 7,
        };
        device.to_rts(&mut qp, &rts).expect("RTS");
        let qp = bed.group.adopt(qp).expect("room in the group");
        World {
            bed,
            qp,
            qpn,
            gid,
            visitors: Vec::new(),
            called,
            now: 1,
            position: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        let (which, how) = (usize::from(op >> 4 & 3), op >> 6);
        match op & 0x0f {
            0 => self.visit(),
            1 => self.hello(which, how, input),
            2 | 3 => self.offer(which, how, input),
            4 => self.export(which, how, input),
            5 => self.say(which, 6, &u32::from(input.byte()).to_le_bytes(), &[]),
            6 => self.anything(which, input),
            7 | 8 => self.bed.host.turn(),
            9 | 10 => self.reap(),
            11 => self.work(how),
            12 => self.make_port(how),
            13 => self.write_line(input),
            14 => {
                let at = usize::from(input.byte() % 40) * 8;
                self.bed
                    .port
                    .word(at)
                    .expect("inside")
                    .store(input.number());
            }
            _ if self.visitors.len() > which => drop(self.visitors.swap_remove(which)),
            _ => {}
        }
        assert!(self.bed.host.connections() <= VISITORS_MAX + 1);
    }

    fn visit(&mut self) {
        // Those that have ended are counted until the device has looked.
        if self.visitors.len() < VISITORS_MAX {
            self.bed.host.turn();
            self.visitors
                .push(self.bed.host.visit().expect("a connection"));
        }
    }

    fn packet(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut packet = MAGIC.to_le_bytes().to_vec();
        packet.extend(VERSION.to_le_bytes());
        packet.extend(kind.to_le_bytes());
        packet.extend(body);
        packet
    }

    fn say(&mut self, which: usize, kind: u16, body: &[u8], wares: &[u8]) {
        self.send(which, &World::packet(kind, body), wares);
    }

    fn send(&self, which: usize, packet: &[u8], wares: &[u8]) {
        let Some(socket) = self.visitors.get(which) else {
            return;
        };
        let fds: Vec<BorrowedFd<'_>> = wares
            .iter()
            .map(|ware| self.bed.wares[usize::from(*ware) % self.bed.wares.len()].as_fd())
            .collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // A connection that was cut off takes nothing.
        let _ = rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags);
    }

    fn hello(&mut self, which: usize, how: u8, input: &mut Input<'_>) {
        let mut gid = self.gid;
        let mut life = self.bed.lives;
        match how {
            0 | 1 => {}
            2 => life = life.wrapping_add(input.byte().into()),
            _ => gid[7] = input.byte(),
        }
        let body = [&gid[..], &life.to_le_bytes()].concat();
        self.say(which, 1, &body, &[]);
    }

    fn offer(&mut self, which: usize, how: u8, input: &mut Input<'_>) {
        let to = if how == 3 { input.u32() } else { self.qpn };
        let from = if how == 2 { input.u32() } else { 0x55 };
        let body = [to.to_le_bytes(), from.to_le_bytes()].concat();
        let wares = match input.byte() {
            0..=0xbf => [0, 1],
            other => [other, input.byte()],
        };
        self.say(which, 4, &body, &wares);
    }

    fn export(&mut self, which: usize, how: u8, input: &mut Input<'_>) {
        let (id, ware) = (input.number32(), input.byte());
        let ware = if how == 3 { ware } else { 2 + (ware & 1) };
        self.say(which, 5, &id.to_le_bytes(), &[ware]);
    }

    /// A packet whose header is mostly one.
    fn anything(&mut self, which: usize, input: &mut Input<'_>) {
        let how = input.byte();
        let body = input.bytes(usize::from(how & 0x1f) * 10).to_vec();
        let wares: Vec<u8> = (0..how >> 6).collect();
        if how & 0x20 == 0 {
            self.send(
                which,
                &World::packet(u16::from(input.byte()), &body),
                &wares,
            );
        } else {
            self.send(which, &body, &wares);
        }
    }

    /// A port as our queue pair would take it, or nearly.
    fn make_port(&mut self, how: u8) {
        let run = 1_u64 << 63 | 7 << 32 | u64::from(PSN);
        let words = [PORT_MAGIC, 256, 0x55 + u64::from(how == 3), run];
        for (at, word) in words.into_iter().enumerate() {
            self.bed.port.word(at * 8).expect("inside").store(word);
        }
    }

    fn write_line(&mut self, input: &mut Input<'_>) {
        let (op, len, at) = (input.byte(), input.byte(), input.u16());
        let opcode = u64::from(op % 5);
        let form = u64::from(op >> 7);
        let (addr, rkey) = match opcode {
            1 => (0, 0),
            _ => (
                self.bed.open.addr().saturating_add_signed(place(at)),
                u64::from(self.bed.open.rkey().0),
            ),
        };
        let mut line = [
            opcode | 0x80 | form << 8 | form << 12 | rkey << 32,
            addr,
            3,
            4,
            5,
            6,
            7,
        ];
        if form == 0 {
            line[0] |= u64::from(len) << 16;
        } else {
            line[2] = u64::from(input.number32()) | u64::from(len) << 32;
            line[3] = input.number();
        }
        let bytes = line_bytes(&line, self.position);
        self.bed
            .port
            .copy_in(line_at(self.position), &bytes)
            .expect("inside");
        self.position += 1;
    }

    fn work(&mut self, how: u8) {
        let wr = WrId(self.now);
        let group = &mut self.bed.group;
        if how < 2 {
            let (addr, lkey) = (self.bed.all.addr() + SLOTS_AT as u64, self.bed.all.lkey());
            let length = SLOT_BYTES;
            let _ = group.post_recv(self.qp, wr, Sge { addr, length, lkey });
        } else {
            let payload = Payload::InlineBytes(b"to somebody");
            let _ = group.post_send(self.qp, wr, payload, Signal::Signaled);
            let _ = group.flush(self.qp);
        }
    }

    fn reap(&mut self) {
        self.now += 1_000_000;
        let mut into = [Completion::EMPTY; 16];
        self.bed.group.reap(self.now, &mut into);
    }

    fn finish(mut self) {
        for _ in 0..4 {
            self.bed.host.turn();
            self.reap();
        }
        // What we said is read, so that it is closed.
        for socket in self.visitors.iter().chain([&self.called]) {
            drain(socket);
        }
        self.visitors.clear();
        drop(self.called);
        for _ in 0..4 {
            self.bed.host.turn();
        }
        self.bed.host.hang_up();
        assert_eq!(
            self.bed.host.connections(),
            0,
            "a connection without a peer"
        );
        drop(self.bed.group.release(self.qp));
        let mut into = [Completion::EMPTY; 4];
        assert_eq!(self.bed.group.reap(self.now, &mut into), 0);
        let census = self.bed.host.device().census();
        assert_eq!((census.qps, census.peers, census.mrs), (0, 0, 2));
        self.bed.host.device().take_events();
        let mut bytes = [0; SLOTS_AT];
        self.bed.memory.copy_out(0, &mut bytes).expect("inside");
        let closed = bytes[..OPEN.start].iter().chain(&bytes[OPEN.end..]);
        assert!(
            closed.into_iter().all(|byte| *byte == 0),
            "closed memory was written"
        );
    }
}

/// Takes everything that has come on a socket, descriptors too.
fn drain(socket: &OwnedFd) {
    loop {
        let mut bytes = [0; 300];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(socket, into, &mut control, flags);
        control.drain().for_each(drop);
        if !received.is_ok_and(|received| received.bytes > 0) {
            return;
        }
    }
}
