//! Streams over AF_SMC sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{AddressFamily, Protocol, SocketType, sockopt};

use crate::diag::{self, Mode};

/// The address family of SMC (kernel, `include/linux/socket.h`).
pub(crate) const AF_SMC: u8 = 43;
/// What tells IPv6 from IPv4 among SMC sockets (kernel, `net/smc/smc.h`).
const SMCPROTO_SMC6: NonZeroU32 = NonZeroU32::MIN;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;
/// Bytes that are read or written at a time.
const CHUNK_BYTES: usize = 16 << 10;

fn socket(address: SocketAddr) -> Result<OwnedFd> {
    let protocol = match address {
        SocketAddr::V4(_) => None,
        SocketAddr::V6(_) => Some(Protocol::from_raw(SMCPROTO_SMC6)),
    };
    let family = AddressFamily::from_raw(AF_SMC.into());
    rustix::net::socket(family, SocketType::STREAM, protocol)
        .context("cannot open an AF_SMC socket: is the module smc loaded?")
}

/// Sends back what comes, on each of so many connections.
pub(crate) fn echo(listen: SocketAddr, connections: u32) -> Result<()> {
    let socket = socket(listen)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &listen).with_context(|| format!("cannot listen at {listen}"))?;
    rustix::net::listen(&socket, BACKLOG).context("cannot listen")?;
    let listener = TcpListener::from(socket);
    for _ in 0..connections {
        let (mut stream, peer) = listener.accept().context("cannot accept a connection")?;
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut bytes = 0;
        loop {
            let count = stream
                .read(&mut buffer)
                .with_context(|| format!("cannot read from {peer}"))?;
            if count == 0 {
                break;
            }
            stream
                .write_all(&buffer[..count])
                .with_context(|| format!("cannot write to {peer}"))?;
            bytes += count;
        }
        println!("{bytes} bytes from {peer} over {}", diag::mode(&stream)?);
    }
    Ok(())
}

/// Sends so many bytes to an echo, checks each that comes back, and asks what carried them.
pub(crate) fn exchange(to: SocketAddr, bytes: usize) -> Result<Mode> {
    let socket = socket(to)?;
    rustix::net::connect(&socket, &to).with_context(|| format!("cannot connect to {to}"))?;
    let stream = TcpStream::from(socket);
    let mut sender = stream.try_clone().context("cannot use the stream twice")?;
    let sending = thread::spawn(move || -> Result<()> {
        let mut sent = 0;
        while sent < bytes {
            let chunk = chunk(sent, bytes);
            sender.write_all(&chunk).context("cannot write")?;
            sent += chunk.len();
        }
        sender
            .shutdown(Shutdown::Write)
            .context("cannot end the stream")
    });
    let mut mode = None;
    let mut received = 0;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = (&stream)
            .read(&mut buffer)
            .with_context(|| format!("cannot read after {received} bytes"))?;
        if count == 0 {
            break;
        }
        for (index, byte) in buffer[..count].iter().enumerate() {
            let at = received + index;
            ensure!(*byte == pattern(at), "byte {at} came back as {byte}");
        }
        received += count;
        if mode.is_none() {
            mode = Some(diag::mode(&stream)?);
        }
    }
    match sending.join() {
        Ok(sent) => sent?,
        Err(_) => bail!("the thread that writes panicked"),
    }
    ensure!(received == bytes, "{received} of {bytes} bytes came back");
    mode.context("nothing came back, so nothing was carried")
}

/// The byte at this place of the stream. It repeats after a prime number of bytes, so that no piece
/// passes for its neighbour.
fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

fn chunk(from: usize, end: usize) -> Vec<u8> {
    let until = end.min(from + CHUNK_BYTES);
    (from..until).map(pattern).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_go_on_where_the_last_one_ended() {
        let (first, second) = (
            chunk(0, CHUNK_BYTES + 5),
            chunk(CHUNK_BYTES, CHUNK_BYTES + 5),
        );
        assert_eq!((first.len(), second.len()), (CHUNK_BYTES, 5));
        assert_eq!(second[0], pattern(first.len()));
        assert_ne!(first[..5], second[..]);
    }
}
