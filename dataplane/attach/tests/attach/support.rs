//! Builders and helpers of the stories.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use pollux_attach::client::{Session, SessionOptions, Stream};
use pollux_attach::message::Role;

use crate::appliance::{Appliance, Plan};

/// Options that poll before they sleep, and give a loaded machine its time.
pub(crate) fn options() -> SessionOptions {
    let patience = Duration::from_secs(600);
    SessionOptions {
        name: "test".to_owned(),
        open_timeout: patience,
        upgrade_timeout: patience,
        ..SessionOptions::default()
    }
}

/// Options that make waits sleep at once.
pub(crate) fn sleepy() -> SessionOptions {
    SessionOptions {
        spin: Duration::ZERO,
        ..options()
    }
}

pub(crate) fn session(appliance: &Appliance) -> Session {
    Session::open(appliance.path(), &options()).expect("session")
}

/// Two ends of a TCP connection.
pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    (client, server)
}

/// Both ends of an upgraded connection, in the sessions given.
pub(crate) fn pair_in(one: &Session, other: &Session) -> (Stream, Stream) {
    let (client, server) = tcp_pair();
    let other = other.clone();
    let thread = std::thread::spawn(move || other.upgrade(server, Role::Server).expect("server"));
    let client = one.upgrade(client, Role::Client).expect("client");
    (client, thread.join().expect("server"))
}

/// An appliance and both ends of a connection over it.
pub(crate) fn pair(plan: Plan, options: &SessionOptions) -> (Appliance, Stream, Stream) {
    let appliance = Appliance::start(plan);
    let session = Session::open(appliance.path(), options).expect("session");
    let (client, server) = pair_in(&session, &session);
    (appliance, client, server)
}

/// A stream that comes back to itself.
pub(crate) fn echo(session: &Session) -> Stream {
    let (client, _server) = tcp_pair();
    session.upgrade(client, Role::Client).expect("echo")
}

/// A generator of bytes and sizes, the same for each seed.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The byte of stream `seed` at `position`.
pub(crate) fn byte_at(seed: u64, position: u64) -> u8 {
    let mixed = (position ^ seed.rotate_left(32)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 40) as u8
}

/// Writes a stream in pieces of random sizes, sometimes as two slices.
pub(crate) fn write_stream(
    mut to: &Stream,
    seed: u64,
    total: u64,
    piece_max: u64,
) -> io::Result<()> {
    let mut random = Random::new(seed);
    let mut position = 0;
    while position < total {
        let len = (1 + random.below(piece_max)).min(total - position);
        let piece: Vec<u8> = (position..position + len)
            .map(|at| byte_at(seed, at))
            .collect();
        let written = if random.below(3) == 0 {
            let (first, second) = piece.split_at(random.below(len + 1) as usize);
            to.write_vectored(&[io::IoSlice::new(first), io::IoSlice::new(second)])?
        } else {
            to.write(&piece)?
        };
        assert!(written > 0 && written as u64 <= len);
        position += written as u64;
    }
    Ok(())
}

/// Reads a stream to its end in pieces of random sizes and checks each byte; returns its length.
pub(crate) fn read_stream(mut from: &Stream, seed: u64, piece_max: u64) -> io::Result<u64> {
    let mut random = Random::new(seed ^ 77);
    let mut position = 0;
    let mut buffer = vec![0; piece_max as usize];
    loop {
        let len = 1 + random.below(piece_max) as usize;
        if random.below(8) == 0 {
            let peeked = from.peek(&mut buffer[..len])?;
            check(&buffer[..peeked], seed, position);
        }
        let read = from.read(&mut buffer[..len])?;
        if read == 0 {
            return Ok(position);
        }
        check(&buffer[..read], seed, position);
        position += read as u64;
    }
}

fn check(bytes: &[u8], seed: u64, position: u64) {
    let wrong = bytes
        .iter()
        .zip(position..)
        .find(|(byte, at)| **byte != byte_at(seed, *at));
    assert_eq!(wrong, None, "stream {seed}");
}
