//! What carries an AF_SMC connection, as the kernel itself says: layouts as in
//! `include/uapi/linux/smc_diag.h`.

use std::fmt;
use std::os::fd::AsFd;

use anyhow::{Context, Result, bail};
use rustix::net::netlink;

use crate::netlink::{Socket, Want, field};
use crate::stream::AF_SMC;

/// The kind of requests for a list of a family's sockets.
const BY_FAMILY: u16 = 20;
/// Length of a request: family, padding, extensions, and a socket's identity, which a list ignores.
const REQUEST_BYTES: usize = 4 + 48;
/// Where in an answer the mode and the number of the socket's file are.
const MODE_AT: usize = 2;
const INODE_AT: usize = 56;

/// What carries a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// RDMA.
    SmcR,
    /// The kernel has fallen back to it.
    Tcp,
    /// Memory shared within one machine.
    SmcD,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::SmcR => "SMC-R",
            Mode::Tcp => "TCP",
            Mode::SmcD => "SMC-D",
        })
    }
}

/// What carries the connection of this socket.
pub(crate) fn mode(socket: impl AsFd) -> Result<Mode> {
    let inode = rustix::fs::fstat(socket)
        .context("cannot ask for the number of a socket")?
        .st_ino;
    let mut request = vec![0; REQUEST_BYTES];
    request[0] = AF_SMC;
    let answer = Socket::open(netlink::SOCK_DIAG)?
        .ask(BY_FAMILY, Want::List, &request)
        .context("cannot list AF_SMC sockets: is the module smc_diag loaded?")?;
    find(&answer, inode)
}

fn find(answer: &[Vec<u8>], inode: u64) -> Result<Mode> {
    for socket in answer {
        if u64::from_ne_bytes(field(socket, INODE_AT)?) == inode {
            return match field(socket, MODE_AT)? {
                [0] => Ok(Mode::SmcR),
                [1] => Ok(Mode::Tcp),
                [2] => Ok(Mode::SmcD),
                [other] => bail!("the kernel names a mode {other} of a connection"),
            };
        }
    }
    bail!("the kernel lists no AF_SMC socket {inode}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_that_of_the_socket_with_the_number() {
        let socket = |mode: u8, inode: u64| {
            let mut bytes = vec![AF_SMC, 1, mode, 0];
            bytes.resize(INODE_AT, 0);
            bytes.extend(inode.to_ne_bytes());
            bytes
        };
        let answer = [socket(1, 7), socket(0, 8), socket(9, 9)];
        assert_eq!(find(&answer, 7).unwrap(), Mode::Tcp);
        assert_eq!(find(&answer, 8).unwrap(), Mode::SmcR);
        assert!(find(&answer, 9).is_err());
        assert!(find(&answer, 10).is_err());
        assert!(find(&[vec![0; 20]], 7).is_err());
    }
}
