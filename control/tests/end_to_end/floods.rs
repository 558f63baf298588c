//! Storms of connections, of handshakes and of questions: bounded, counted, over by themselves, and
//! felt by nobody else.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use pollux_attach::client::{Session, SessionOptions, Stream};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::support::wire::{Plain, exchange};
use crate::support::{Appliance, PEER, Pair, Place, Shape, listener, until};

/// First bytes of every CLC message.
const EYE_CATCHER: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];
/// A proposal's header: 100 bytes are to come.
const HEADER: [u8; 8] = [0xe2, 0xd4, 0xc3, 0xd9, 1, 0, 100, 0x10];

/// A connection from an address of its own, so that it counts as another peer.
fn from_elsewhere(to: SocketAddr) -> TcpStream {
    let socket: OwnedFd =
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let own: SocketAddr = "127.0.0.9:0".parse().expect("an address");
    rustix::net::bind(&socket, &own).expect("bind");
    rustix::net::connect(&socket, &to).expect("connect");
    TcpStream::from(socket)
}

/// Ends the threads of a test, however it ends.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether the other end has closed or reset a connection.
fn is_over(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0; 512]) {
        Ok(0) => true,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
        Ok(_) => false,
    }
}

#[test]
fn handshakes_that_never_end_are_bounded_in_number_and_time_and_keep_nobody_else_out() {
    let (target, address) = listener();
    let bounds = "[handshake]\ntimeout_ms = 1500\nper_peer_max = 4\nunder_way_max = 12\n";
    let pair = Pair::start_in(Place::new(), &Shape::to(address), "", bounds);
    let through = pair.b.listens("out");
    // Four that are served, some that would be declined, and some that are too many for that.
    let slow: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = from_elsewhere(through);
            stream.set_nonblocking(true).expect("fionbio");
            let _ = stream.write_all(&EYE_CATCHER);
            stream
        })
        .collect();
    until("most are refused", || {
        (pair.b.stat("handshakes.refused") >= 30).then_some(())
    });
    assert!(pair.b.stat("handshakes.open") <= 24);
    // One says something from time to time: the time counts all the same.
    let dripping = slow[0].try_clone().expect("a descriptor");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Done(&done);
        scope.spawn(|| {
            let mut dripping = &dripping;
            for byte in HEADER[4..].iter().chain(std::iter::repeat(&0)) {
                if done.load(Ordering::Relaxed) || dripping.write_all(&[*byte]).is_err() {
                    return;
                }
                pair.b.stat("handshakes.open");
            }
        });
        for stream in &slow {
            until("it is over", || is_over(stream).then_some(()));
        }
    });
    pair.b.until_stat("handshakes.open", 0);
    // Few lines for many losses.
    let lost = pair.b.stat("handshakes.lost");
    let lines = pair.b.log().matches("a connection is lost").count();
    assert!(lost >= 20 && lines <= 10, "{lost} lost, {lines} lines");
    let client = Plain::connect(pair.entry());
    let server = Plain::tcp(target.accept().expect("accept").0);
    exchange(&client, &server, 91, 1 << 16);
    assert_eq!(pair.a.stat("fallbacks.total"), 0);
}

#[test]
fn a_peer_that_shakes_many_hands_leaves_room_for_another() {
    let (target, address) = listener();
    let bounds = "[handshake]\nper_peer_max = 4\n";
    let pair = Pair::start_in(Place::new(), &Shape::to(address), "", bounds);
    let through = pair.b.listens("out");
    let slow: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = from_elsewhere(through);
            stream.write_all(&EYE_CATCHER).expect("write");
            stream
        })
        .collect();
    until("sixteen are refused", || {
        (pair.b.stat("handshakes.refused") == 16).then_some(())
    });
    let client = Plain::connect(pair.entry());
    let server = Plain::tcp(target.accept().expect("accept").0);
    exchange(&client, &server, 92, 1 << 20);
    pair.assert_accelerated();
    drop(slow);
    pair.b.until_stat("handshakes.open", 0);
}

/// Beyond the bound an honest peer is declined, and its bytes arrive over TCP.
#[test]
fn a_storm_of_honest_connections_arrives_over_tcp_where_it_is_too_much_for_smc() {
    const CLIENTS: usize = 40;
    let (target, address) = listener();
    let bounds = "[handshake]\nper_peer_max = 1\n";
    let pair = Pair::start_in(Place::new(), &Shape::to(address), "", bounds);
    let entry = pair.entry();
    let target = &target;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..CLIENTS {
                let server = Plain::tcp(target.accept().expect("accept").0);
                scope.spawn(move || {
                    let mut bytes = [0; 7];
                    (&server).read_exact(&mut bytes).expect("read");
                    (&server).write_all(&bytes).expect("write");
                });
            }
        });
        for _ in 0..CLIENTS {
            scope.spawn(move || {
                let client = Plain::connect(entry);
                let mut got = [0; 7];
                (&client).write_all(b"a storm").expect("write");
                (&client).read_exact(&mut got).expect("read");
                assert_eq!(&got, b"a storm");
            });
        }
    });
    let refused = pair.b.stat("handshakes.refused");
    assert!(refused > 0, "all found room");
    let [at_a, at_b] = [&pair.a, &pair.b].map(|appliance| appliance.stat("fallbacks.total"));
    assert_eq!((at_a, at_b), (refused, refused));
    let why = pair.b.fallbacks();
    assert!(
        why.iter()
            .all(|(_, _, text)| text.contains("handshake.per_peer_max")),
        "{why:?}"
    );
}

#[test]
fn questions_without_end_hold_up_neither_traffic_nor_other_operators() {
    let (target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Done(&done);
        for question in [
            &b"{\"jsonrpc\":\"2.0\",\"method\":\"stats.show\",\"id\":1}\n"[..],
            b"{\"jsonrpc\":\"2.0\",\"method\":\"rpc.discover\",\"id\":2}\n",
            b"nonsense\n",
            &[b'x'; 4096],
        ] {
            let (pair, done) = (&pair, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let mut asker = UnixStream::connect(pair.a.control_socket()).expect("connect");
                    asker.set_nonblocking(true).expect("fionbio");
                    // Nothing is read: each goes on until it is not read from any more.
                    for _ in 0..2000 {
                        if asker.write(question).is_err() {
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
        for round in 0..4 {
            let client = Plain::connect(pair.entry());
            let server = Plain::tcp(target.accept().expect("accept").0);
            exchange(&client, &server, 93 + round, 1 << 18);
            // An answer in time, or the client gives up.
            assert!(pair.a.stat("conns.open") <= 4);
        }
    });
    pair.a.until_stat("conns.open", 0);
}

/// Sets the limit of descriptors of a running appliance; gives the one before.
fn limit_descriptors(appliance: &Appliance, current: Option<u64>) -> Rlimit {
    let pid = i32::try_from(appliance.pid()).ok().and_then(Pid::from_raw);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current, maximum };
    prlimit(pid, Resource::Nofile, limit).expect("a limit")
}

/// Lets an appliance have no more descriptors than it has.
fn take_descriptors(appliance: &Appliance) -> Rlimit {
    let open = |number: &u64| {
        let path = format!("/proc/{}/fd/{number}", appliance.pid());
        std::fs::symlink_metadata(path).is_err()
    };
    limit_descriptors(appliance, (0..).find(open))
}

#[test]
fn an_appliance_without_descriptors_leaves_on_tcp_what_needs_one_and_keeps_what_it_has() {
    let place = Place::new();
    let b = Appliance::start(&place, "b", PEER);
    let a = Appliance::start(&place, "a", PEER);
    let open = |appliance: &Appliance| {
        Session::open(appliance.attach_socket(), &SessionOptions::default())
    };
    let (client, server) = (open(&a).expect("a session"), open(&b).expect("a session"));
    let peer = server.listen("127.0.0.1:0").expect("listen");
    let address = peer.local_addr().expect("an address");
    let connection = || {
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| peer.accept().expect("accept").0);
            let connected = client.connect(address).expect("connect");
            (connected, accepting.join().expect("no panic"))
        })
    };
    let ping = |(mut one, mut other): (&Stream, &Stream)| {
        one.write_all(b"still").expect("write");
        other.read_exact(&mut [0; 5]).expect("read");
    };
    let first = connection();
    let old = take_descriptors(&a);
    let plain = connection();
    let why = plain.0.fallback_reason().expect("it stays on TCP");
    let why = &why.text;
    assert!(why.contains("no file descriptor left"), "{why}");
    ping((&plain.0, &plain.1));
    // A program needs one as well: it is turned away.
    assert!(open(&a).is_err());
    ping((&first.0, &first.1));
    limit_descriptors(&a, old.current);
    let second = connection();
    assert!(first.0.is_accelerated() && second.0.is_accelerated());
    ping((&second.0, &second.1));
    assert_eq!(a.stat("sessions.faults"), 0);
    assert!(a.log().lines().count() < 30, "{}", a.log());
}

/// An echo service that nobody can accept for does not fill the log.
#[test]
fn a_service_without_descriptors_turns_its_clients_away_in_few_words() {
    let place = Place::new();
    let service = "[[service]]\nkind = \"echo\"\nlisten = \"127.0.0.1:0\"\n";
    let a = Appliance::start(&place, "a", service);
    let log = a.log();
    let line = log.lines().find(|line| line.contains("echo service: "));
    let echo = line
        .and_then(|line| line.rsplit(' ').next())
        .expect("the service");
    let echo: SocketAddr = echo.trim().parse().expect("an address");
    // Who asked whether the appliance is ready has gone, and its descriptor is free, when a later client,
    // which stays, has its answer.
    let mut stays = UnixStream::connect(a.control_socket()).expect("connect");
    stays.write_all(b"\n?\n").expect("write");
    stays.read_exact(&mut [0]).expect("an answer");
    let old = take_descriptors(&a);
    for _ in 0..50 {
        let stream = TcpStream::connect(echo).expect("the kernel's queue takes it");
        until("it is turned away", || is_over(&stream).then_some(()));
    }
    limit_descriptors(&a, old.current);
    let said = a.log().matches("cannot accept a connection").count();
    assert!((1..10).contains(&said), "{said}");
}
