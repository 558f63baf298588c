//! The option on connections of the loopback interface. Where the kernel lets this process load a program,
//! as it does root's, connections are made with and without marks; where it does not, what is said of
//! that is tested instead.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use pollux_sockops::{Answer, AttachError, SynOption};
use rustix::net::{
    AddressFamily, RecvFlags, SocketType, accept, bind, connect, getsockname, ipproto, listen,
    recv, socket,
};

/// A cgroup2 file system of its own: the one of the machine, seen at another place. Every process is in
/// its uppermost folder or below.
struct Cgroup(tempfile::TempDir);

impl Cgroup {
    /// None if this process may not mount.
    fn mount() -> Option<Cgroup> {
        let folder = tempfile::tempdir().expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "cgroup2", "none"])
            .arg(folder.path())
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Cgroup(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(self.path()).status();
        assert!(done.is_ok_and(|status| status.success()));
    }
}

/// Runs a test with the option attached; or shows that a process that may not is told what it takes.
fn with_option(test: impl FnOnce(&SynOption)) {
    let Some(cgroup) = Cgroup::mount() else {
        let error = SynOption::attach(Path::new("/sys/fs/cgroup")).expect_err("no rights");
        assert!(error.to_string().contains("CAP_BPF"), "{error}");
        return;
    };
    match SynOption::attach(cgroup.path()) {
        Ok(option) => test(&option),
        Err(error @ AttachError::NotPermitted { .. }) => {
            assert!(error.to_string().contains("CAP_BPF"), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}

/// Who marks its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Marks {
    Neither,
    Client,
    Server,
    Both,
}

fn tcp(of: SocketAddr) -> OwnedFd {
    let family = match of {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    socket(family, SocketType::STREAM, None).expect("a socket")
}

/// A connection: its client's end and its server's.
fn pair(option: &SynOption, marks: Marks, ip: SocketAddr) -> (OwnedFd, OwnedFd) {
    let listener = tcp(ip);
    bind(&listener, &ip).expect("an address");
    if matches!(marks, Marks::Server | Marks::Both) {
        option.mark(&listener).expect("marked");
    }
    listen(&listener, 8).expect("listening");
    let address = SocketAddr::try_from(getsockname(&listener).expect("a name")).expect("an IP");
    let client = tcp(ip);
    if matches!(marks, Marks::Client | Marks::Both) {
        option.mark(&client).expect("marked");
    }
    connect(&client, &address).expect("connected");
    (client, accept(&listener).expect("accepted"))
}

fn ips() -> [SocketAddr; 2] {
    [
        (Ipv4Addr::LOCALHOST, 0).into(),
        (Ipv6Addr::LOCALHOST, 0).into(),
    ]
}

#[test]
fn both_sides_speak_if_both_are_marked_and_none_otherwise() {
    with_option(|option| {
        for ip in ips() {
            for (marks, client, server) in [
                (Marks::Neither, Answer::Unseen, Answer::Unseen),
                (Marks::Client, Answer::Silent, Answer::Unseen),
                (Marks::Server, Answer::Unseen, Answer::Silent),
                (Marks::Both, Answer::Speaks, Answer::Speaks),
            ] {
                let (near, far) = pair(option, marks, ip);
                let answers = [&near, &far].map(|end| option.answer(end).expect("an answer"));
                assert_eq!(answers, [client, server], "{ip}, {marks:?}");
            }
        }
    });
}

#[test]
fn a_listener_answers_each_client_for_itself() {
    with_option(|option| {
        let [ip, _] = ips();
        let listener = tcp(ip);
        bind(&listener, &ip).expect("an address");
        option.mark(&listener).expect("marked");
        listen(&listener, 8).expect("listening");
        let address = SocketAddr::try_from(getsockname(&listener).expect("a name")).expect("an IP");
        for round in 0..100 {
            let client = tcp(ip);
            let expected = match round % 3 {
                0 => Answer::Silent,
                _ => {
                    option.mark(&client).expect("marked");
                    Answer::Speaks
                }
            };
            connect(&client, &address).expect("connected");
            let server = accept(&listener).expect("accepted");
            assert_eq!(option.answer(&server).expect("an answer"), expected);
        }
    });
}

#[test]
fn syn_and_syn_ack_carry_the_option_of_the_rfc_and_no_other_segment_does() {
    const OPTION: [u8; 6] = [0xfe, 0x06, 0xe2, 0xd4, 0xc3, 0xd9];
    with_option(|option| {
        // Gets a copy of every TCP segment that comes over IPv4.
        let copies = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::TCP));
        let copies = copies.expect("may mount, so may this");
        let [ip, _] = ips();
        for (marks, carriers) in [
            (Marks::Both, vec![SYN, SYN | ACK]),
            (Marks::Client, vec![SYN]),
            (Marks::Server, vec![]),
        ] {
            let (near, far) = pair(option, marks, ip);
            rustix::io::write(&near, b"x").expect("written");
            rustix::io::read(&far, &mut [0; 1]).expect("read");
            let port = SocketAddr::try_from(getsockname(&near).expect("a name"));
            let port = port.expect("an IP").port();
            let segments = segments_of(&copies, port);
            assert!(segments.len() >= 4, "{segments:?}");
            let with_option = segments
                .iter()
                .filter(|(_, options)| options.windows(OPTION.len()).any(|bytes| bytes == OPTION));
            let flags: Vec<u8> = with_option.map(|(flags, _)| *flags).collect();
            assert_eq!(flags, carriers, "{marks:?}");
        }
    });
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// SYN and ACK flags, and options, of the segments to and from a port that have come so far.
fn segments_of(copies: &OwnedFd, port: u16) -> Vec<(u8, Vec<u8>)> {
    let mut segments = Vec::new();
    let mut bytes = [0; 65536];
    while let Ok((len, _)) = recv(copies, &mut bytes[..], RecvFlags::DONTWAIT) {
        let header_bytes = usize::from(bytes[0] & 0x0f) * 4;
        let tcp = &bytes[header_bytes..len];
        let ports = [0, 2].map(|at| u16::from_be_bytes([tcp[at], tcp[at + 1]]));
        if ports.contains(&port) {
            let data_at = usize::from(tcp[12] >> 4) * 4;
            segments.push((tcp[13] & (SYN | ACK), tcp[20..data_at].to_vec()));
        }
    }
    segments
}

#[test]
fn marks_are_each_programs_own_and_go_with_it() {
    with_option(|option| {
        let [ip, _] = ips();
        let (near, _far) = pair(option, Marks::Both, ip);
        let cgroup = Cgroup::mount().expect("mounted before");
        let other = SynOption::attach(cgroup.path()).expect("attached before");
        assert_eq!(other.answer(&near).expect("an answer"), Answer::Unseen);
        let (near, far) = pair(&other, Marks::Both, ip);
        assert_eq!(other.answer(&near).expect("an answer"), Answer::Speaks);
        // As when the process has ended: what it had marked is an ordinary listener from now on.
        let listener = tcp(ip);
        bind(&listener, &ip).expect("an address");
        other.mark(&listener).expect("marked");
        drop(other);
        listen(&listener, 8).expect("listening");
        let address = SocketAddr::try_from(getsockname(&listener).expect("a name"));
        let client = tcp(ip);
        option.mark(&client).expect("marked");
        connect(&client, &address.expect("an IP")).expect("connected");
        assert_eq!(option.answer(&client).expect("an answer"), Answer::Silent);
        drop((near, far));
    });
}

#[test]
fn what_is_no_cgroup_is_refused_with_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = SynOption::attach(folder.path()).expect_err("an ordinary folder");
    let told = error.to_string();
    let is_told = told.contains(&folder.path().display().to_string()) || told.contains("CAP_BPF");
    assert!(is_told, "{told}");
    let absent = folder.path().join("absent");
    let told = SynOption::attach(&absent).expect_err("absent").to_string();
    assert!(
        told.contains("absent") && told.contains("cgroup2"),
        "{told}"
    );
}

#[test]
fn what_is_no_socket_cannot_be_marked() {
    with_option(|option| {
        let (reader, _writer) = rustix::pipe::pipe().expect("a pipe");
        option.mark(reader.as_fd()).expect_err("a pipe");
        option.answer(reader.as_fd()).expect_err("a pipe");
    });
}
