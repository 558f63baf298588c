//! What one program may have, and what it is told when it asks for more.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use pollux_attach::client::{Session, SessionOptions};
use pollux_attach::layout::VERSION;
use pollux_attach::message::{Reply, Request, Role};
use pollux_attach::packet::{self, ReceiveError};

use crate::support::{Appliance, Killed, PEER, Place, listener, until};

/// Asks for a session; gives what it is refused with.
fn refusal(appliance: &Appliance, options: &SessionOptions) -> String {
    let refused = Session::open(appliance.attach_socket(), options);
    refused.expect_err("a refusal").to_string()
}

fn sized(slots: u16, sndbuf_bytes: u32) -> SessionOptions {
    SessionOptions {
        name: "greedy".to_string(),
        slots,
        sndbuf_bytes,
        ..SessionOptions::default()
    }
}

/// An attach socket on which Hello has been answered.
fn attached(appliance: &Appliance, slots: u16) -> OwnedFd {
    let socket = packet::connect(&appliance.attach_socket()).expect("an attach socket");
    let hello = Request::Hello {
        version: VERSION,
        slots,
        sndbuf_bytes: 0,
        rmbe_bytes: 0,
        name: "raw".to_string(),
    };
    packet::send(&socket, &hello.emit(), &[]).expect("send");
    let welcome = until("a welcome", || packet::receive(&socket).ok());
    let reply = Reply::parse(&welcome.bytes, welcome.fds.len()).expect("a reply");
    assert!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
    socket
}

/// Asks for an upgrade of a socket, until the appliance takes the message.
fn upgrade(socket: &OwnedFd, (request, role): (u32, Role), stream: &TcpStream) {
    let message = Request::Upgrade { request, role }.emit();
    until("the message is taken", || {
        packet::send(socket, &message, &[stream.as_fd()]).ok()
    });
}

fn reply(socket: &OwnedFd) -> Reply {
    until("a reply", || match packet::receive(socket) {
        Ok(packet) => Some(Reply::parse(&packet.bytes, packet.fds.len()).expect("a reply")),
        Err(ReceiveError::WouldBlock) => None,
        Err(error) => panic!("{error}"),
    })
}

/// A pair of connected TCP sockets.
fn connected() -> (TcpStream, TcpStream) {
    let (listener, address) = listener();
    let client = TcpStream::connect(address).expect("connect");
    (client, listener.accept().expect("accept").0)
}

#[test]
fn a_program_that_asks_for_more_than_its_limits_is_told_which_and_what_to_do() {
    let place = Place::new();
    let limits = "[attach]\nslots = 8\nsndbuf = \"16K\"\nrmb = \"16K\"\n\
                  session_memory_max = \"1M\"\nmemory_max = \"2M\"\nsessions_max = 5\n\
                  sessions_per_process_max = 3\n";
    let appliance = Appliance::start(&place, "a", limits);
    let slots = refusal(&appliance, &sized(9, 0));
    assert!(
        slots.contains("9 connections at a time") && slots.contains("attach.slots allows 8"),
        "{slots}"
    );
    let memory = refusal(&appliance, &sized(8, 128 << 10));
    assert!(
        memory.contains("1179648 bytes") && memory.contains("attach.session_memory_max allows 1M"),
        "{memory}"
    );
    let fits = sized(8, 64 << 10);
    let own = || Session::open(appliance.attach_socket(), &fits).expect("a session");
    let sessions = [own(), own(), own()];
    // Three of 640 KiB each: the next one is one too many for this process.
    let process = refusal(&appliance, &sized(1, 0));
    assert!(
        process.contains("has 3 sessions") && process.contains("attach.sessions_per_process_max"),
        "{process}"
    );
    // Of another process the memory would be too much, not the number.
    let all = attach_another(&appliance, 8)
        .err()
        .expect("no memory is left");
    assert!(
        all.contains("1966080 of 2M") && all.contains("attach.memory_max"),
        "{all}"
    );
    assert_eq!(appliance.stat("sessions.open"), 3);
    assert_eq!(appliance.stat("sessions.refused"), 4);
    // What is given back can be had again.
    drop(sessions);
    appliance.until_stat("sessions.open", 0);
    drop(own());
}

#[test]
fn sessions_are_limited_in_all() {
    let place = Place::new();
    let appliance = Appliance::start(&place, "a", "[attach]\nslots = 1\nsessions_max = 2\n");
    let small = sized(1, 0);
    let _first = Session::open(appliance.attach_socket(), &small).expect("a session");
    let _second = Session::open(appliance.attach_socket(), &small).expect("a session");
    let text = refusal(&appliance, &small);
    assert!(
        text.contains("all 2 sessions are in use") && text.contains("attach.sessions_max"),
        "{text}"
    );
}

#[test]
fn programs_that_say_nothing_are_let_go_and_keep_nobody_out() {
    let place = Place::new();
    let appliance = Appliance::start(&place, "a", "[handshake]\ntimeout_ms = 300\n");
    let path = appliance.attach_socket();
    let connect = || packet::connect(&path).expect("connect");
    // As many as may be silent at a time, and some more, which are turned away at once.
    let silent: Vec<OwnedFd> = (0..80).map(|_| connect()).collect();
    for socket in &silent {
        until("it is let go", || match packet::receive(socket) {
            Err(ReceiveError::Closed) => Some(()),
            Err(ReceiveError::WouldBlock) => None,
            other => panic!("{other:?}"),
        });
    }
    let session = Session::open(&path, &SessionOptions::default()).expect("a session");
    assert_eq!(appliance.stat("sessions.open"), 1);
    drop(session);
}

/// A program that floods its session with requests and reads no answer: it is let go, and whoever
/// else asks something is answered all the time.
#[test]
fn a_program_that_asks_without_end_and_does_not_read_loses_its_session_alone() {
    let place = Place::new();
    let appliance = Appliance::start(&place, "a", "");
    let socket = attached(&appliance, 2);
    let (client, _server) = connected();
    let message = Request::Upgrade {
        request: 1,
        role: Role::Client,
    };
    let message = message.emit();
    // Not listed as a peer: each request is answered at once.
    let ended = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            (0..5_000_000_u32).find_map(|_| {
                let sent = packet::send(&socket, &message, &[client.as_fd()]);
                sent.err()
                    .filter(|error| *error != rustix::io::Errno::AGAIN)
            })
        });
        while !flood.is_finished() {
            assert_eq!(appliance.stat("conns.open"), 0);
        }
        flood.join().expect("no panic")
    });
    assert!(ended.is_some(), "it was never let go");
    appliance.until_stat("sessions.open", 0);
    assert_eq!(appliance.stat("sessions.faults"), 1);
}

/// More handshakes at a time than a program may have under way: the rest is not offered to a peer, or
/// declined in order, so that the bytes of the program arrive over TCP.
#[test]
fn handshakes_of_one_program_are_bounded_by_its_connections() {
    let place = Place::new();
    let appliance = Appliance::start(&place, "a", PEER);
    let socket = attached(&appliance, 2);
    let pairs: Vec<(TcpStream, TcpStream)> = (0..20).map(|_| connected()).collect();
    for (request, (client, _)) in (0..).zip(&pairs) {
        upgrade(&socket, (request, Role::Client), client);
    }
    // The other ends say nothing: four are under way, all others stay on TCP untouched.
    for expected in 4..20 {
        let said = reply(&socket);
        let Reply::Fallback { request, text, .. } = said else {
            panic!("{said:?}");
        };
        assert_eq!(request, expected);
        assert!(
            text.contains("4 handshakes") && text.contains("attach.slots"),
            "{text}"
        );
    }
    for (_, server) in &pairs[4..] {
        server.set_nonblocking(true).expect("fionbio");
        let mut server = server;
        let error = server.read(&mut [0]).expect_err("no byte");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
    assert_eq!(appliance.stat("handshakes.open"), 4);
    assert_eq!(appliance.stat("handshakes.refused"), 16);
    drop(pairs);
    appliance.until_stat("handshakes.open", 0);
}

/// Not a story of its own: a program that opens one session and says how that went.
#[test]
fn program_that_attaches() {
    let word = |name: &str| {
        let mut all = std::env::args();
        all.find_map(|word| word.strip_prefix(name).map(str::to_string))
    };
    let (Some(attach), Some(slots)) = (word("attach="), word("slots=")) else {
        return;
    };
    let options = sized(slots.parse().expect("a number"), 64 << 10);
    match Session::open(Path::new(&attach), &options) {
        Ok(_session) => {
            println!("\nattached");
            let _ = std::io::stdin().read(&mut [0]);
        }
        Err(error) => println!("\nrefused {error}"),
    }
}

/// Starts a program of its own that attaches; gives it, or what it was refused with.
fn attach_another(appliance: &Appliance, slots: u16) -> Result<Killed, String> {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "limits::program_that_attaches", "--nocapture"])
        .arg(format!("attach={}", appliance.attach_socket().display()))
        .arg(format!("slots={slots}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let said = BufReader::new(child.stdout.take().expect("a pipe"));
    let child = Killed(child);
    for line in said.lines().map_while(Result::ok) {
        if line == "attached" {
            return Ok(child);
        }
        if let Some(why) = line.strip_prefix("refused ") {
            return Err(why.to_string());
        }
    }
    panic!("the program says nothing");
}
