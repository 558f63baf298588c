//! Processes that die without a word: everything they had is freed, and their peers get a reset.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use pollux_attach::client::{Listener, Session, SessionOptions, Stream};
use rustix::process::Signal;

use crate::support::wire::{Plain, exchange, expect_reset};
use crate::support::{Appliance, Killed, PEER, Pair, Place, Shape, listener, signal_process};

/// Connections of the program that is killed.
const CONNS: usize = 5;

fn open(appliance: &Appliance, name: &str) -> Session {
    let options = SessionOptions {
        name: name.to_string(),
        ..SessionOptions::default()
    };
    Session::open(appliance.attach_socket(), &options).expect("a session")
}

/// A connection between two programs: connecting waits until the other one accepts.
fn connection(from: &Session, to: &Listener) -> (Stream, Stream) {
    let address = to.local_addr().expect("an address");
    std::thread::scope(|scope| {
        let connecting = scope.spawn(move || from.connect(address).expect("connect"));
        let (accepted, _) = to.accept().expect("accept");
        let connected = connecting.join().expect("no panic");
        assert!(connected.is_accelerated() && accepted.is_accelerated());
        (connected, accepted)
    })
}

/// Sends bytes one way and has them come back.
fn ping(mut one: &Stream, mut other: &Stream, byte: u8) {
    let message = [byte; 3000];
    let mut got = [0; 3000];
    one.write_all(&message).expect("write");
    other.read_exact(&mut got).expect("read");
    assert_eq!(got, message);
    other.write_all(&message).expect("write");
    one.read_exact(&mut got).expect("read");
    assert_eq!(got, message);
}

/// Not a story of its own: what the program does that
/// `a_program_killed_with_connections_frees_them_and_its_peers_are_reset` starts and kills. The
/// test runner takes any text as a filter, which is how the program gets its two words; without
/// them there is nothing to do.
#[test]
fn program_that_is_killed() {
    let word = |name: &str| {
        let mut all = std::env::args();
        all.find_map(|word| word.strip_prefix(name).map(str::to_string))
    };
    let (Some(attach), Some(address)) = (word("attach="), word("connect=")) else {
        return;
    };
    let address: SocketAddr = address.parse().expect("an address");
    let options = SessionOptions {
        name: "victim".to_string(),
        ..SessionOptions::default()
    };
    let session = Session::open(Path::new(&attach), &options).expect("a session");
    let streams: Vec<Stream> = (0..CONNS)
        .map(|_| session.connect(address).expect("connect"))
        .collect();
    for mut stream in &streams {
        assert!(stream.is_accelerated(), "{:?}", stream.fallback_reason());
        stream.write_all(b"alive").expect("write");
    }
    for mut stream in &streams {
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).expect("read");
    }
    println!("\nholding");
    // Until it is killed, or its parent is.
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_program_killed_with_connections_frees_them_and_its_peers_are_reset() {
    let place = Place::new();
    let b = Appliance::start(&place, "b", PEER);
    let a = Appliance::start(&place, "a", PEER);
    let server = open(&b, "server");
    let listener = server.listen("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    for round in 0..3 {
        let (sessions, conns) = (a.stat("sessions.open"), a.stat("conns.open"));
        assert_eq!((sessions, conns), (0, 0), "round {round}");
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "death::program_that_is_killed", "--nocapture"])
            .arg(format!("attach={}", a.attach_socket().display()))
            .arg(format!("connect={address}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut child = Killed(child);
        let streams: Vec<Stream> = (0..CONNS)
            .map(|_| listener.accept().expect("accept").0)
            .collect();
        for mut stream in &streams {
            let mut asked = [0; 5];
            stream.read_exact(&mut asked).expect("read");
            stream.write_all(&asked).expect("write");
        }
        let said = BufReader::new(child.0.stdout.take().expect("a pipe"));
        let holding = |line: std::io::Result<String>| line.is_ok_and(|line| line == "holding");
        assert!(said.lines().any(holding), "the program failed");
        assert_eq!(a.stat("sessions.open"), 1);
        assert_eq!(a.stat("conns.open"), CONNS as u64);
        signal_process(child.0.id(), Signal::KILL);
        for mut stream in &streams {
            let error = stream.read(&mut [0]).expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
        drop(streams);
        a.until_stat("sessions.open", 0);
        a.until_stat("conns.open", 0);
        b.until_stat("conns.open", 0);
    }
    // Both go on.
    let client = open(&a, "client");
    let (one, other) = connection(&client, &listener);
    ping(&one, &other, 9);
}

#[test]
fn an_appliance_killed_resets_the_peers_connections_and_can_come_back() {
    let (target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    let fixed = format!("smc:{}", pair.b.listens("out"));
    let entry = pair.entry();
    let Pair { place, a, mut b } = pair;
    let config = place.path("b.toml");
    let text = std::fs::read_to_string(&config).expect("a configuration");
    std::fs::write(&config, text.replace("smc:127.0.0.1:0", &fixed)).expect("write");
    for round in 0..2 {
        let pairs: Vec<(Plain, Plain)> = (0..CONNS)
            .map(|_| {
                let client = Plain::connect(entry);
                let server = Plain::tcp(target.accept().expect("accept").0);
                (client, server)
            })
            .collect();
        for (client, server) in &pairs {
            let (mut client, mut server) = (client, server);
            client.write_all(b"before").expect("write");
            server.read_exact(&mut [0; 6]).expect("read");
        }
        // A program of A's own as well, with a connection whose server is B's forward.
        let session = open(&a, "own");
        let own = session.connect(b.listens("out")).expect("connect");
        let own_server = Plain::tcp(target.accept().expect("accept").0);
        assert!(own.is_accelerated());
        assert_eq!(a.stat("conns.open"), CONNS as u64 + 1);
        b.kill();
        for (client, _) in &pairs {
            expect_reset(client);
        }
        expect_reset(&own);
        drop((pairs, own, own_server, session));
        a.until_stat("conns.open", 0);
        let links = a.json(&["show", "links"]);
        assert_eq!(links.as_array().map(Vec::len), Some(0), "{links}");
        b = b.start_again(&place);
        let client = Plain::connect(entry);
        let server = Plain::tcp(target.accept().expect("accept").0);
        exchange(&client, &server, 61 + round, 1 << 20);
    }
    assert_eq!(a.stat("fallbacks.total"), 0);
}

#[test]
fn programs_of_a_killed_appliance_get_a_reset_and_can_join_the_next_one() {
    let place = Place::new();
    let b = Appliance::start(&place, "b", PEER);
    let a = Appliance::start(&place, "a", PEER);
    let (at_a, at_b) = (open(&a, "client"), open(&b, "server"));
    let listener = at_b.listen("127.0.0.1:0").expect("listen");
    let (one, other) = connection(&at_a, &listener);
    ping(&one, &other, 1);
    a.signal(Signal::KILL);
    expect_reset(&one);
    expect_reset(&other);
    assert!(at_a.is_gone());
    let a = a.start_again(&place);
    let at_a = open(&a, "client again");
    let (one, other) = connection(&at_a, &listener);
    ping(&one, &other, 2);
}
