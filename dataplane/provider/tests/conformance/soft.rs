//! What only the soft driver has: its census, its injected refusals, its sockets, and real processes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pollux_provider::soft::{DeviceOptions, Fabric, OpenError, Personality, SoftDevice, open_shm};
use pollux_provider::{
    Access, Device, DeviceEvent, Errno, GidHex, ModifyError, PollGroup, Qp, QpCaps, RemoteSpan,
    Rkey, Signal, WcStatus,
};

use crate::bed::{
    Bed, CAPS, End, Placement, ProcessBed, ShmBed, Wish, World, attr, fresh_gid, group, options,
    rts, spec,
};

#[test]
fn failed_creations_leave_nothing_behind() {
    for personality in Personality::NAMED {
        let device = Fabric::new().open(options(personality)).expect("device");
        let (group, _wake) = group(&device);
        let before = device.census();
        for inline_bytes in [1 << 20, u32::MAX] {
            let caps = QpCaps {
                inline_bytes,
                ..CAPS
            };
            assert!(device.create_qp(group.id(), &spec(caps)).is_err());
        }
        for errno in [Errno::NOMEM, Errno::INVAL, Errno::NOSPC, Errno::OPNOTSUPP] {
            device.refuse_creation(2, errno);
            let caps = QpCaps {
                inline_bytes: 0,
                ..CAPS
            };
            assert!(
                device.create_qp(group.id(), &spec(caps)).is_ok(),
                "the first one is not meant"
            );
            let refusal = device
                .create_qp(group.id(), &spec(caps))
                .expect_err("the second is");
            assert_eq!(refusal.errno, errno);
        }
        let after = device.census();
        assert_eq!(after.create_qp_calls - before.create_qp_calls, 10);
        assert_eq!(
            (after.qps, after.mrs, after.groups),
            (before.qps, before.mrs, before.groups)
        );
    }
}

#[test]
fn refusals_that_are_asked_for_come_in_their_turn_each_once() {
    let device = Fabric::new()
        .open(options(Personality::Generic))
        .expect("device");
    let (group, _wake) = group(&device);
    let before = device.census();
    for (nth, errno) in [(1, Errno::INVAL), (4, Errno::ACCESS), (2, Errno::NOSPC)] {
        device.refuse_creation(nth, errno);
    }
    device.refuse_creation(4, Errno::NOMEM);
    let answers: Vec<Option<Errno>> = (0..6)
        .map(|_| device.create_qp(group.id(), &spec(CAPS)).err())
        .map(|refusal| refusal.map(|refusal| refusal.errno))
        .collect();
    let expected = [
        Some(Errno::INVAL),
        Some(Errno::NOSPC),
        None,
        Some(Errno::NOMEM),
        None,
        None,
    ];
    assert_eq!(answers, expected);
    let after = device.census();
    assert_eq!((after.qps, after.groups), (before.qps, before.groups));
}

#[test]
fn everything_dropped_is_gone() {
    let world = World::<ProcessBed>::connected(Wish::default());
    let census = world.a.device.census();
    assert_eq!(
        (census.qps, census.mrs, census.exports, census.groups),
        (1, 2, 1, 1)
    );
    assert_eq!(census.peers, 1);
    let World { a, .. } = world;
    let End {
        device,
        group,
        mr,
        private,
        shared,
        ..
    } = a;
    let again = device
        .register(&shared, 0, 1, Access::LocalOnly)
        .expect("mr");
    assert_eq!(device.census().exports, 1, "one segment is exported once");
    drop((group, mr, private));
    assert_eq!(device.census().exports, 1);
    drop(again);
    let census = device.census();
    assert_eq!(
        (census.qps, census.mrs, census.exports, census.groups),
        (0, 0, 0, 0)
    );
}

#[test]
fn runs_with_one_seed_use_the_same_numbers() {
    let run = |seed| {
        let fabric = Fabric::with_seed(seed);
        let open = |last| {
            let mut gid = [7; 16];
            gid[15] = last;
            fabric.open(DeviceOptions::new(gid)).expect("device")
        };
        let (a, b) = (End::new(open(1)), End::new(open(2)));
        let qp = |end: &End<SoftDevice>| -> u32 {
            end.device
                .create_qp(end.group.id(), &spec(CAPS))
                .expect("qp")
                .qpn()
        };
        (qp(&a), qp(&b), a.mr.rkey(), b.mr.rkey())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn address_on_a_fabric_is_taken_until_its_device_goes() {
    let fabric = Fabric::new();
    let first = fabric.open(DeviceOptions::new([5; 16])).expect("device");
    let refusal = fabric.open(DeviceOptions::new([5; 16])).expect_err("taken");
    assert!(matches!(refusal, OpenError::InUse { .. }), "{refusal}");
    drop(first);
    assert!(fabric.open(DeviceOptions::new([5; 16])).is_ok());
    assert!(matches!(
        fabric.open(DeviceOptions::new([0; 16])),
        Err(OpenError::NoGid)
    ));
    let odd = DeviceOptions {
        mtu_bytes: 1500,
        ..DeviceOptions::new([6; 16])
    };
    assert!(matches!(fabric.open(odd), Err(OpenError::Mtu(1500))));
}

#[test]
fn identity_is_the_personality() {
    let device = Fabric::new()
        .open(options(Personality::Mlx5Like))
        .expect("device");
    assert_eq!(device.identity().vendor_id, 0x02c9);
    assert_eq!(device.identity().driver, "soft/process");
    assert_eq!(device.personality(), Personality::Mlx5Like);
}

// --- the shm carrier's sockets ---

fn socket_of(dir: &Path, gid: [u8; 16]) -> std::path::PathBuf {
    dir.join(GidHex(gid).to_string())
}

#[test]
fn socket_is_private_and_goes_with_its_device() {
    let dir = tempfile::tempdir().expect("directory");
    let fabric_dir = dir.path().join("made").join("on demand");
    let gid = fresh_gid();
    let device = open_shm(&fabric_dir, DeviceOptions::new(gid)).expect("device");
    let socket = socket_of(&fabric_dir, gid);
    let meta = std::fs::symlink_metadata(&socket).expect("socket");
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert_eq!(device.identity().driver, "soft/shm");
    drop(device);
    assert!(!socket.exists());
}

#[test]
fn live_address_is_refused_with_its_process_and_a_dead_one_is_taken_over() {
    let dir = tempfile::tempdir().expect("directory");
    let gid = fresh_gid();
    let device = open_shm(dir.path(), DeviceOptions::new(gid)).expect("device");
    let refusal = open_shm(dir.path(), DeviceOptions::new(gid)).expect_err("live");
    let text = refusal.to_string();
    let OpenError::InUse { pid, .. } = refusal else {
        panic!("{text}")
    };
    assert_eq!(pid, std::process::id() as i32);
    assert!(
        text.contains(&pid.to_string()) && text.contains(&GidHex(gid).to_string()),
        "{text}"
    );
    assert!(device.take_events().is_empty(), "a probe is no peer");
    drop(device);
    // What a killed process leaves behind: a bound socket that nobody listens on.
    drop(std::os::unix::net::UnixListener::bind(socket_of(dir.path(), gid)).expect("bind"));
    assert!(socket_of(dir.path(), gid).exists());
    let device = open_shm(dir.path(), DeviceOptions::new(gid)).expect("taken over");
    drop(device);
    std::fs::write(socket_of(dir.path(), gid), b"precious").expect("file");
    let refusal = open_shm(dir.path(), DeviceOptions::new(gid));
    let kept = std::fs::read(socket_of(dir.path(), gid)).expect("file");
    assert!(
        refusal.is_err() && kept == b"precious",
        "a file that is no socket stays"
    );
}

#[test]
fn path_that_does_not_fit_a_socket_address_is_named() {
    let dir = tempfile::tempdir().expect("directory");
    let fabric_dir = dir.path().join("d".repeat(90));
    let refusal = open_shm(&fabric_dir, DeviceOptions::new(fresh_gid())).expect_err("too long");
    assert!(
        matches!(refusal, OpenError::PathTooLong { limit: 107, .. }),
        "{refusal}"
    );
}

#[test]
fn missing_peer_is_named_by_its_socket() {
    let dir = tempfile::tempdir().expect("directory");
    let device = open_shm(dir.path(), DeviceOptions::new(fresh_gid())).expect("device");
    let (group, _wake) = group(&device);
    let mut qp = device.create_qp(group.id(), &spec(CAPS)).expect("qp");
    device.to_init(&mut qp).expect("init");
    let refusal = device
        .to_rtr(&mut qp, &attr([0x66; 16], 1, &Wish::default()))
        .expect_err("nobody");
    let path = socket_of(dir.path(), [0x66; 16]).display().to_string();
    assert!(refusal.to_string().contains(&path), "{refusal}");
    assert!(matches!(refusal, ModifyError::NoPeer { .. }));
}

/// Says something else than the rendezvous on a device's socket, and returns when it was cut off.
fn be_refused(path: &Path) {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let stranger =
        rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("socket");
    let address = SocketAddrUnix::new(path).expect("address");
    rustix::net::connect(&stranger, &address).expect("connect");
    rustix::io::write(&stranger, b"GET / HTTP/1.1\r\n").expect("write");
    let mut answer = [0; 300];
    // A refusal, then the end.
    while rustix::io::read(&stranger, &mut answer).expect("read") > 0 {}
}

#[test]
fn stranger_on_the_socket_is_cut_off_and_named() {
    let dir = tempfile::tempdir().expect("directory");
    let gid = fresh_gid();
    let device = open_shm(dir.path(), DeviceOptions::new(gid)).expect("device");
    be_refused(&socket_of(dir.path(), gid));
    let events = device.take_events();
    assert!(
        matches!(&events[..], [DeviceEvent::PeerRefused { what }] if what.contains("protocol")),
        "{events:?}"
    );
    assert_eq!(device.census().peers, 0);
}

#[test]
fn helper_thread_has_its_name_and_ends_with_the_device() {
    // The name of a thread that is still ending may be seen for a moment; other tests have such threads
    // too. So this looks at what only this device holds: its socket's inode is gone when drop returns.
    let dir = tempfile::tempdir().expect("directory");
    let gid = fresh_gid();
    let device = open_shm(dir.path(), DeviceOptions::new(gid)).expect("device");
    // A thread gives itself its name; one that has answered has done so.
    be_refused(&socket_of(dir.path(), gid));
    let names = std::fs::read_dir("/proc/self/task")
        .expect("tasks")
        .flatten();
    let mut names = names.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    assert!(names.any(|name| name.trim() == "pollux-fabric"));
    drop(device);
    assert_eq!(std::fs::read_dir(dir.path()).expect("directory").count(), 0);
}

#[test]
fn device_that_comes_back_is_another_life() {
    let mut world = World::<ShmBed>::connected(Wish::default());
    let gid = world.b.device.identity().gid;
    world.a.send(1, b"lost", Signal::Unsignaled);
    world.a.flush();
    let World { mut a, b, bed, .. } = world;
    drop(b);
    let mut b = End::new(bed.open(DeviceOptions::new(gid)));
    crate::bed::connect(&mut a, &mut b, &Wish::default());
    b.recv(0);
    a.send(2, b"new life", Signal::Signaled);
    a.flush();
    let mut world = World { a, b, now: 0, bed };
    world.until(|world| world.a.done.len() == 2);
    let mut ends = world.a.sends();
    ends.sort_unstable_by_key(|(wr, _)| *wr);
    assert_eq!(ends, [(1, WcStatus::RetryExceeded), (2, WcStatus::Success)]);
}

#[test]
fn device_that_comes_back_is_reached_before_its_end_was_seen() {
    let World { mut a, b, bed, .. } = World::<ShmBed>::connected(Wish::default());
    let gid = b.device.identity().gid;
    let mut last = b;
    for _ in 0..500 {
        drop(last);
        last = End::new(bed.open(DeviceOptions::new(gid)));
        crate::bed::connect(&mut a, &mut last, &Wish::default());
    }
}

// --- two processes ---

const DIR: &str = "POLLUX_TEST_FABRIC_DIR";
const CHILD_GID: [u8; 16] = [0xc1; 16];
const PARENT_GID: [u8; 16] = [0xba; 16];

/// What the two tell each other, as control does over TCP.
struct Card {
    qpn: u32,
    addr: u64,
    rkey: u32,
}

impl Card {
    fn write(&self, mut to: impl Write) {
        writeln!(to, "card {} {} {}", self.qpn, self.addr, self.rkey).expect("write");
        to.flush().expect("flush");
    }

    fn read(from: &mut impl BufRead) -> Card {
        loop {
            let mut line = String::new();
            assert_ne!(
                from.read_line(&mut line).expect("read"),
                0,
                "the other side has ended"
            );
            // The test harness prints on the same pipe.
            let Some(at) = line.find("card ") else {
                continue;
            };
            let mut words = line[at + 5..].split_whitespace();
            let mut next = || {
                words
                    .next()
                    .and_then(|word| word.parse::<u64>().ok())
                    .expect("word")
            };
            let (qpn, addr, rkey) = (next(), next(), next());
            return Card {
                qpn: qpn as u32,
                addr,
                rkey: rkey as u32,
            };
        }
    }
}

/// Connects with a peer whose card comes and goes by pipes.
fn meet<D: Device>(
    end: &mut End<D>,
    gid: [u8; 16],
    from: &mut impl BufRead,
    to: impl Write,
) -> RemoteSpan {
    let wish = Wish::default();
    let mut qp = end
        .device
        .create_qp(end.group.id(), &spec(CAPS))
        .expect("qp");
    end.device.to_init(&mut qp).expect("init");
    Card {
        qpn: qp.qpn(),
        addr: end.mr.addr(),
        rkey: end.mr.rkey().0,
    }
    .write(to);
    let card = Card::read(from);
    end.device
        .to_rtr(&mut qp, &attr(gid, card.qpn, &wish))
        .expect("rtr");
    end.device.to_rts(&mut qp, &rts(&wish)).expect("rts");
    end.qp = end.group.adopt(qp).expect("adopt");
    RemoteSpan {
        addr: card.addr,
        rkey: Rkey(card.rkey),
    }
}

/// The other process: answers each message with a WRITE of its bytes and a message, until it is killed.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let device = open_shm(Path::new(&dir), DeviceOptions::new(CHILD_GID)).expect("device");
    let mut end = End::new(device);
    let mut stdin = BufReader::new(std::io::stdin());
    let to = meet(&mut end, PARENT_GID, &mut stdin, std::io::stdout());
    (0..16).for_each(|slot| end.recv(slot));
    loop {
        end.reap(0);
        for done in std::mem::take(&mut end.done) {
            if done.status != WcStatus::Success {
                return;
            }
            if done.opcode.is_receive() {
                let message = end.received(done.wr_id.0, done.byte_len as usize);
                end.fill(0, &message);
                end.recv(done.wr_id.0);
                let from = end.piece(0, message.len());
                end.write(1, from, to, Placement::ByReference, Signal::Unsignaled);
                end.send(2, &message, Signal::Signaled);
                end.flush();
            }
        }
        std::thread::yield_now();
    }
}

fn spawn_child(dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "soft::child", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("child")
}

#[test]
fn two_processes_talk_and_the_death_of_one_is_seen_by_the_other() {
    let dir = tempfile::tempdir().expect("directory");
    let device = open_shm(dir.path(), DeviceOptions::new(PARENT_GID)).expect("device");
    let mut end = End::new(device);
    let mut child = spawn_child(dir.path());
    let mut from = BufReader::new(child.stdout.take().expect("pipe"));
    meet(
        &mut end,
        CHILD_GID,
        &mut from,
        child.stdin.take().expect("pipe"),
    );
    (0..16).for_each(|slot| end.recv(slot));
    for round in 0..500u64 {
        let message = round.to_le_bytes().repeat(1 + round as usize % 30);
        end.send(round, &message, Signal::Signaled);
        end.flush();
        let mut open = 2;
        while open > 0 {
            end.reap(0);
            for done in std::mem::take(&mut end.done) {
                assert_eq!(done.status, WcStatus::Success);
                open -= 1;
                if done.opcode.is_receive() {
                    assert_eq!(end.received(done.wr_id.0, message.len()), message);
                    assert_eq!(end.bytes(0, message.len()), message);
                    end.recv(done.wr_id.0);
                }
            }
            std::thread::yield_now();
        }
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    end.send(1000, b"anybody?", Signal::Unsignaled);
    end.flush();
    while end.sends().is_empty() {
        end.reap(0);
        std::thread::yield_now();
    }
    assert_eq!(end.sends(), [(1000, WcStatus::RetryExceeded)]);
    let events = end.device.take_events();
    assert!(
        events.contains(&DeviceEvent::PeerGone { gid: CHILD_GID }),
        "{events:?}"
    );
    // The socket of the killed process is still there and in nobody's way.
    assert!(socket_of(dir.path(), CHILD_GID).exists());
    assert!(open_shm(dir.path(), DeviceOptions::new(CHILD_GID)).is_ok());
}
