//! Builders and helpers of the stories.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use super::appliance::{Appliance, Plan, Policy};
use crate::config::{Endpoint, Forward};
use crate::gateway::{ForwardFigures, Gateway, GatewayError};
use crate::syn_marks::SynMarks;

/// Ways of the bytes between two gateways.
pub(super) const WAYS: [Policy; 2] = [Policy::Pair, Policy::Fallback];

/// Two gateways on one appliance, from a TCP listener over SMC to a target.
pub(super) struct Chain {
    pub(super) appliance: Appliance,
    pub(super) near: Gateway,
    pub(super) far: Gateway,
    pub(super) target: TcpListener,
}

pub(super) fn plan(policy: Policy) -> Plan {
    Plan {
        policy,
        slots: 256,
        sndbuf_bytes: 16384,
        rmbe_bytes: 16384,
        ..Plan::default()
    }
}

pub(super) fn forward(listen: &str, connect: &str) -> Forward {
    Forward {
        name: format!("{listen} to {connect}"),
        listen: listen.parse().expect("endpoint"),
        connect: connect.parse().expect("endpoint"),
    }
}

pub(super) fn start(appliance: &Appliance, listen: &str, connect: &str) -> Gateway {
    start_at(appliance.path(), &[forward(listen, connect)]).expect("gateway")
}

pub(super) fn start_at(
    attach_socket: &Path,
    forwards: &[Forward],
) -> Result<Gateway, GatewayError> {
    // Short, so that the stories also sleep.
    let spin = Duration::from_micros(5);
    Gateway::start(forwards, &SynMarks::default(), attach_socket, spin)
}

/// A port of this host on which nobody listens, nor will anybody: a client holds it.
pub(super) fn closed_port() -> (SocketAddr, impl Drop) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let client = TcpStream::connect(address(&listener)).expect("connect");
    let held = client.local_addr().expect("address");
    (
        held,
        Holder {
            _client: client,
            _listener: listener,
        },
    )
}

struct Holder {
    _client: TcpStream,
    _listener: TcpListener,
}

impl Drop for Holder {
    fn drop(&mut self) {}
}

pub(super) fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("address")
}

/// Where the only forward of a gateway listens.
pub(super) fn listening(gateway: &Gateway) -> SocketAddr {
    let endpoint = gateway.listening().next().expect("a forward");
    endpoint.address().expect("an address")
}

/// What was counted for the last forward of a gateway.
pub(super) fn figures(gateway: &Gateway) -> ForwardFigures {
    gateway.figures().pop().expect("a forward")
}

/// Waits until a gateway's figures are as asked.
pub(super) fn until(gateway: &Gateway, asked: impl Fn(&ForwardFigures) -> bool) -> ForwardFigures {
    loop {
        let figures = figures(gateway);
        if asked(&figures) {
            return figures;
        }
        // A yield gives away the slice, and with it the processor if there is work elsewhere.
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Chain {
    pub(super) fn new(policy: Policy) -> Chain {
        Chain::with(plan(policy))
    }

    pub(super) fn with(plan: Plan) -> Chain {
        let appliance = Appliance::start(plan);
        let target = TcpListener::bind("127.0.0.1:0").expect("listener");
        let connect = Endpoint::Tcp(address(&target)).to_string();
        let far = start(&appliance, "smc:127.0.0.1:0", &connect);
        let middle = format!("smc:{}", listening(&far));
        let near = start(&appliance, "tcp:127.0.0.1:0", &middle);
        Chain {
            appliance,
            near,
            far,
            target,
        }
    }

    /// A connection through both gateways: the client's end and the target's.
    pub(super) fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listening(&self.near)).expect("connect");
        let (server, _) = self.target.accept().expect("accept");
        client.set_nodelay(true).expect("option");
        server.set_nodelay(true).expect("option");
        (client, server)
    }

    /// Waits until no connection is left, and tells what was counted.
    pub(super) fn settle(&self) -> [ForwardFigures; 2] {
        self.settle_to(0)
    }

    /// Waits until `left` connections are left.
    pub(super) fn settle_to(&self, left: u64) -> [ForwardFigures; 2] {
        [&self.near, &self.far].map(|gateway| until(gateway, |figures| figures.active == left))
    }
}

/// The byte of stream `seed` at `position`.
fn byte_at(seed: u64, position: u64) -> u8 {
    let mixed = (position ^ seed.rotate_left(32)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed >> 40) as u8
}

/// Writes a stream in pieces of changing sizes.
pub(super) fn write_stream(mut to: impl Write, seed: u64, total: u64) -> io::Result<()> {
    let mut position = 0;
    while position < total {
        let len = (1 + position.wrapping_mul(7919) % 9001).min(total - position);
        let piece: Vec<u8> = (position..position + len)
            .map(|at| byte_at(seed, at))
            .collect();
        to.write_all(&piece)?;
        position += len;
    }
    Ok(())
}

/// Reads a stream to its end and checks each byte; returns its length.
pub(super) fn read_stream(mut from: impl Read, seed: u64) -> io::Result<u64> {
    let mut position = 0;
    let mut buffer = vec![0; 5000];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(position);
        }
        for &byte in &buffer[..read] {
            assert_eq!(byte, byte_at(seed, position), "stream {seed} at {position}");
            position += 1;
        }
    }
}

/// Both ends of a connection that can end its outgoing direction.
pub(super) trait Duplex: Send + Sync
where
    for<'a> &'a Self: Read + Write,
{
    fn end(&self);
}

impl Duplex for TcpStream {
    fn end(&self) {
        self.shutdown(Shutdown::Write).expect("shutdown");
    }
}

impl Duplex for std::os::unix::net::UnixStream {
    fn end(&self) {
        self.shutdown(Shutdown::Write).expect("shutdown");
    }
}

/// Sends streams both ways at the same time, each ended by a half close.
pub(super) fn exchange<A: Duplex, B: Duplex>(one: &A, other: &B, seed: u64, total: u64)
where
    for<'a> &'a A: Read + Write,
    for<'a> &'a B: Read + Write,
{
    std::thread::scope(|scope| {
        scope.spawn(move || {
            write_stream(one, seed, total).expect("write");
            one.end();
        });
        scope.spawn(move || {
            write_stream(other, seed + 1, total).expect("write");
            other.end();
        });
        scope.spawn(move || assert_eq!(read_stream(other, seed).expect("read"), total));
        assert_eq!(read_stream(one, seed + 1).expect("read"), total);
    });
}

/// Sends a byte from one end to the other: a connection that was accepted is not yet forwarded.
pub(super) fn assure(mut from: &TcpStream, mut to: &TcpStream) {
    from.write_all(&[0]).expect("write");
    to.read_exact(&mut [1]).expect("read");
}

/// Closes a TCP socket by a reset.
pub(super) fn reset(socket: TcpStream) {
    set_socket_linger(socket.as_fd(), Some(Duration::ZERO)).expect("option");
}

/// Reads to the end, which must be a reset; returns how many bytes came before.
pub(super) fn read_to_reset(mut from: &TcpStream) -> u64 {
    let mut buffer = vec![0; 65536];
    let mut total = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => panic!("the stream ended as if it were complete, after {total} bytes"),
            Ok(bytes) => total += bytes as u64,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return total,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A path of the file system as an endpoint.
pub(super) fn unix(path: &Path) -> String {
    format!("unix:{}", path.display())
}
