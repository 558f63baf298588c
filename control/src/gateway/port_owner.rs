//! Whether a TCP address is free, and who listens there, as far as the kernel lets this user see.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Number of the state LISTEN in the kernel's tables.
const LISTEN: &str = "0A";

/// Whether the kernel would let this process listen on `address`; takes nothing, since a socket that is
/// bound as those of listeners are, and does not listen, keeps no other such socket out.
///
/// # Errors
/// The kernel's refusal, as a listener would get it.
pub(crate) fn may_listen(address: SocketAddr) -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(())
}

/// Process id of whoever keeps others from listening on `address`.
pub(crate) fn port_owner(address: SocketAddr) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let inodes: Vec<String> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listeners(&table, address))
        .collect();
    if inodes.is_empty() {
        return None;
    }
    let links: Vec<String> = inodes
        .iter()
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        has_one_of(&entry.path(), &links).then_some(pid)
    })
}

/// Inodes of the sockets of a table that listen on the port of `address`, on the same address or,
/// on either side, on all.
fn listeners(table: &str, address: SocketAddr) -> Vec<String> {
    let clashes = |local: SocketAddr| {
        local.port() == address.port()
            && (local.ip() == address.ip()
                || local.ip().is_unspecified()
                || address.ip().is_unspecified())
    };
    let inode = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let local = parse_address(fields.nth(1)?)?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?;
        (state == LISTEN && clashes(local)).then(|| inode.to_string())
    };
    table.lines().skip(1).filter_map(inode).collect()
}

/// An address of the kernel's tables: 32-bit words of the address in the order of the machine,
/// and the port, both hexadecimal.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = ip.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (at, bytes) in octets.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn has_one_of(process: &Path, links: &[String]) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    descriptors
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| {
            links
                .iter()
                .any(|link| link.as_bytes() == target.as_os_str().as_bytes())
        })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_owner_of_a_port_is_found() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else {
                continue;
            };
            let address = listener.local_addr().expect("address");
            assert_eq!(port_owner(address), Some(std::process::id()), "{address}");
            drop(listener);
            assert_eq!(port_owner(address), None, "{address}");
        }
    }

    #[test]
    fn an_address_may_be_listened_on_exactly_when_listening_works() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let taken = listener.local_addr().expect("address");
        let free = "127.0.0.1:0".parse().expect("address");
        let foreign = "192.0.2.1:7".parse().expect("address");
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), taken.port());
        for address in [taken, free, foreign, any] {
            let text = |error: io::Error| error.to_string();
            let seen = may_listen(address).map_err(text);
            let bound = TcpListener::bind(address).map(|_| ()).map_err(text);
            assert_eq!(seen, bound, "{address}");
        }
        // Two that only look do not see each other, nor does a listener see them.
        drop(listener);
        may_listen(taken).expect("free again");
        TcpListener::bind(taken).expect("nothing was taken");
    }

    #[test]
    fn only_listeners_on_the_same_address_or_on_all_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
           0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0\n\
           1: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0\n\
           2: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 13 1 0\n\
           3: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 14 1 0\n\
           4: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 15 1 0\n\
           5: nonsense\n";
        let at = |text: &str| listeners(table, text.parse().expect("address"));
        if cfg!(target_endian = "little") {
            assert_eq!(at("127.0.0.1:8080"), ["11", "13"]);
            assert_eq!(at("0.0.0.0:8080"), ["11", "12", "13"]);
        }
        assert!(at("127.0.0.1:80").is_empty());
    }
}
