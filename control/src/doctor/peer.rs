//! The way to a peer: nothing is sent to it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use super::report::{Check, Group, Verdict};
use super::{Examination, Need, PeerAddress};
use crate::appliance::devices::verbs_options;

const GROUP: Group = Group::Peer;
/// Any port does: the kernel is only asked for the way.
const DISCARD: u16 = 9;

/// The local address of connections to an address.
///
/// # Errors
/// The kernel knows no way.
pub(super) fn local(to: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((to, DISCARD))?;
    Ok(socket.local_addr()?.ip())
}

pub(super) fn checks(examination: &Examination<'_>) -> Vec<Check> {
    let Some(peer) = examination.peer else {
        return Vec::new();
    };
    let mut checks = Vec::new();
    match local(peer.ip) {
        Ok(local) => {
            let found = format!("{} is reached from {local}", peer.ip);
            let check = Check::ok(GROUP, "way", found).value("local", local.to_string());
            checks.push(check);
            checks.extend(gid(examination, local));
        }
        Err(error) => checks.push(Check::warning(
            GROUP,
            "way",
            format!("no way to {}: {error}", peer.ip),
            format!("ip route get {}", peer.ip),
        )),
    }
    checks.extend(entry(examination, peer));
    checks
}

/// Whether the device stands for the address that connections to the peer come from.
fn gid(examination: &Examination<'_>, local: IpAddr) -> Option<Check> {
    const NAME: &str = "GID";
    if examination.need != Need::Verbs {
        return None;
    }
    let options = verbs_options(&examination.config);
    let (_, chosen) = examination.machine.survey.choose(&options).ok()?;
    let address = Ipv6Addr::from(chosen.gid.gid);
    if IpAddr::from(address).to_canonical() == local.to_canonical() {
        let found = format!("index {} is of this address", chosen.gid_index);
        return Some(Check::ok(GROUP, NAME, found));
    }
    let wanted = match local.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let found = format!(
        "the device stands for {address}, connections to the peer come from {local}: it may not \
         reach the peer"
    );
    Some(Check::warning(
        GROUP,
        NAME,
        found,
        format!("device.gid = \"{wanted}\""),
    ))
}

/// Whether the client side speaks SMC to the peer.
fn entry(examination: &Examination<'_>, peer: PeerAddress) -> Option<Check> {
    const NAME: &str = "[[peer]]";
    examination.rehearsal.as_ref()?;
    let address = SocketAddr::new(peer.ip, peer.port.unwrap_or(DISCARD));
    Some(match examination.config.is_peer(address) {
        true => Check::ok(GROUP, NAME, format!("connections to {} speak SMC", peer.ip)),
        false => Check::of(
            GROUP,
            NAME,
            Verdict::Warning,
            format!("no entry has {}: connections to it stay on TCP", peer.ip),
        )
        .cure(format!("[[peer]] address = \"{}\"", peer.ip)),
    })
}
