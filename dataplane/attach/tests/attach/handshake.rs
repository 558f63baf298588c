//! Joining the appliance, and what becomes of a TCP connection.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use pollux_attach::client::{OpenError, Session, SessionOptions, UpgradeError};
use pollux_attach::layout::VERSION;
use pollux_attach::message::Role;
use pollux_attach::packet;

use crate::appliance::{Appliance, Plan, Policy};
use crate::support::{echo, session, sleepy, tcp_pair};

#[test]
fn nobody_at_the_path_is_told_with_the_path_and_the_cure() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("attach.sock");
    let error = Session::open(&path, &sleepy()).expect_err("nobody");
    let text = error.to_string();
    assert!(
        text.contains(&format!("no appliance answers on {}", path.display())),
        "{text}"
    );
    assert!(text.contains("polluxd"), "{text}");
    drop(packet::listen(&path, 1).expect("socket file"));
    let error = Session::open(&path, &sleepy()).expect_err("stale socket");
    assert!(matches!(error, OpenError::NoAppliance { .. }), "{error}");
}

#[test]
fn somebody_who_does_not_answer_is_told() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("attach.sock");
    let _listener = packet::listen(&path, 1).expect("listen");
    let options = SessionOptions {
        open_timeout: Duration::from_millis(1),
        ..sleepy()
    };
    let error = Session::open(&path, &options).expect_err("silence");
    assert!(matches!(error, OpenError::NoAnswer { .. }), "{error}");
}

#[test]
fn refusal_gives_the_reason_of_the_appliance() {
    let refuse = Some("32 sessions are open, raise sessions_max".to_owned());
    let appliance = Appliance::start(Plan {
        refuse,
        ..Plan::default()
    });
    let error = Session::open(appliance.path(), &sleepy()).expect_err("refused");
    assert!(error.to_string().contains("raise sessions_max"), "{error}");
}

#[test]
fn appliance_of_another_version_is_refused_with_both_versions() {
    let appliance = Appliance::start(Plan {
        version: VERSION + 1,
        ..Plan::default()
    });
    let error = Session::open(appliance.path(), &sleepy()).expect_err("version");
    let OpenError::Version { theirs, ours } = error else {
        panic!("{error}")
    };
    assert_eq!((theirs, ours), (VERSION + 1, VERSION));
}

#[test]
fn nonsense_instead_of_a_welcome_is_an_error() {
    let (here, there) = packet::pair().expect("pair");
    packet::send(&there, &[1, 2, 3], &[]).expect("send");
    let error = Session::open_connected(here, &sleepy()).expect_err("nonsense");
    assert!(matches!(error, OpenError::Message(_)), "{error}");
}

#[test]
fn welcome_with_memory_that_is_no_session_is_refused() {
    let (here, there) = packet::pair().expect("pair");
    let segment = pollux_ring::Segment::create("odd", 4096, pollux_ring::Pages::Off).expect("odd");
    let (_sender, receiver) = pollux_ring::wake_channel().expect("pipe");
    let wake = pollux_ring::Wake::new().expect("eventfd");
    let welcome = pollux_attach::message::Reply::Welcome {
        version: VERSION,
        session: 1,
    };
    let fds = [segment.fd(), wake.fd(), receiver.fd()];
    packet::send(&there, &welcome.emit(), &fds).expect("send");
    let error = Session::open_connected(here, &sleepy()).expect_err("odd memory");
    assert!(matches!(error, OpenError::Header(_)), "{error}");
}

#[test]
fn sizes_asked_for_are_the_sizes_of_the_session() {
    let appliance = Appliance::start(Plan::default());
    let options = SessionOptions {
        slots: 3,
        sndbuf_bytes: 8192,
        rmbe_bytes: 16384,
        ..sleepy()
    };
    let session = Session::open(appliance.path(), &options).expect("session");
    let shape = session.layout().shape();
    assert_eq!(
        (shape.slots(), shape.sndbuf_bytes(), shape.rmbe_bytes()),
        (3, 8192, 16384)
    );
}

#[test]
fn fallback_goes_on_over_tcp_and_says_why() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Fallback,
        ..Plan::default()
    });
    let session = session(&appliance);
    let (client, mut server) = tcp_pair();
    let mut stream = session.upgrade(client, Role::Client).expect("fallback");
    assert!(!stream.is_accelerated());
    let reason = stream.fallback_reason().expect("reason");
    assert_eq!(
        (reason.code, reason.text.as_str()),
        (0x0303_0000, "Client asked in vain")
    );
    stream.write_all(b"ping").expect("write");
    let mut bytes = [0; 4];
    server.read_exact(&mut bytes).expect("read");
    server.write_all(&bytes).expect("write");
    stream.read_exact(&mut bytes).expect("read");
    assert_eq!(&bytes, b"ping");
    assert_eq!(stream.readiness(), None);
}

#[test]
fn failed_handshake_is_an_error_with_errno_and_reason() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Fail,
        ..Plan::default()
    });
    let session = session(&appliance);
    let error = session
        .upgrade(tcp_pair().0, Role::Client)
        .expect_err("failed");
    let reason = "the peer spoke nonsense".to_owned();
    assert_eq!(error, UpgradeError::Failed { errno: 71, reason });
    assert!(
        std::io::Error::from(error)
            .to_string()
            .contains("the peer spoke nonsense")
    );
}

#[test]
fn upgrade_that_is_never_answered_times_out() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Silent,
        ..Plan::default()
    });
    let after = Duration::from_millis(1);
    let options = SessionOptions {
        upgrade_timeout: after,
        ..sleepy()
    };
    let session = Session::open(appliance.path(), &options).expect("session");
    let error = session
        .upgrade(tcp_pair().0, Role::Client)
        .expect_err("timed out");
    assert_eq!(error, UpgradeError::TimedOut { after });
}

#[test]
fn connection_without_a_free_slot_stays_on_tcp_and_the_next_one_does_not() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        slots: 1,
        ..Plan::default()
    });
    let session = session(&appliance);
    let first = echo(&session);
    assert!(first.is_accelerated() && !echo(&session).is_accelerated());
    drop(first);
    while appliance.report().used_slots > 0 {
        std::thread::yield_now();
    }
    assert!(echo(&session).is_accelerated());
}

#[test]
fn connect_and_listen_upgrade_both_ends() {
    let appliance = Appliance::start(Plan::default());
    let (ours, theirs) = (session(&appliance), session(&appliance));
    let listener = theirs.listen("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("address");
    let thread = std::thread::spawn(move || listener.accept().expect("accept"));
    let client = ours.connect(address).expect("connect");
    let (server, peer) = thread.join().expect("server");
    assert!(client.is_accelerated() && server.is_accelerated());
    assert_eq!(client.peer_addr().expect("address"), address);
    assert_eq!(client.local_addr().expect("address"), peer);
    assert_eq!(server.local_addr().expect("address"), address);
    assert!(client.nodelay().expect("option"));
}

#[test]
fn silent_client_does_not_hold_up_the_next_one() {
    let appliance = Appliance::start(Plan::default());
    let session = session(&appliance);
    let listener = session.listen("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("address");
    // It never asks for the upgrade, so its server end waits.
    let _silent = std::net::TcpStream::connect(address).expect("connect");
    let ours = session.clone();
    let thread = std::thread::spawn(move || ours.connect(address).expect("connect"));
    let (server, peer) = listener.accept().expect("accept");
    let client = thread.join().expect("client");
    assert_eq!(client.local_addr().expect("address"), peer);
    assert!(server.is_accelerated());
}

#[test]
fn listener_that_must_not_wait_says_so() {
    let appliance = Appliance::start(Plan::default());
    let session = session(&appliance);
    let listener = session.listen("127.0.0.1:0").expect("listen");
    listener.set_blocking(pollux_attach::client::Blocking::Never);
    let error = listener.accept().expect_err("nobody");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    let taken = TcpListener::bind(listener.local_addr().expect("address"));
    assert_eq!(taken.expect_err("in use").kind(), ErrorKind::AddrInUse);
}

#[test]
fn connections_nobody_accepts_are_given_back_when_the_listener_goes() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        ..Plan::default()
    });
    let session = session(&appliance);
    let listener = session.listen("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("address");
    let clients: Vec<_> = (0..3)
        .map(|_| std::net::TcpStream::connect(address).expect("connect"))
        .collect();
    let (first, _) = listener.accept().expect("accept");
    drop(listener);
    // Requests are answered in order, so the answers to the others have come before this one.
    drop(echo(&session));
    drop((first, clients));
    while appliance.report().used_slots > 0 {
        std::thread::yield_now();
    }
}
