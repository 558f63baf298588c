//! Which entry of a port's GID table stands for a TCP connection.
//!
//! A RoCEv2 GID *is* an IP address: an IPv6 address as it is, an IPv4 address mapped into IPv6. Packets
//! carry it as their source, so it has to be the local address of the connection over which the two sides
//! agreed: the peer routes its answers there. Entry 0 is most often made of the Ethernet address and
//! reaches nobody behind a router, so there is no default.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Which GID stands for the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GidChoice {
    /// The RoCEv2 one with this address: the local address of the TCP connections.
    Local(IpAddr),
    /// The RoCEv2 one of the first of these addresses that has any; without, that of the port's only IPv4
    /// address, or without any, of its only IPv6 address that is not link-local.
    FirstOf(Vec<IpAddr>),
}

/// What kind of packets a GID stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE in Ethernet frames of its own; not routable, and not what SMC-Rv2 uses.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
    /// A kind that this driver does not know.
    Other(u32),
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GidKind::InfiniBand => f.write_str("InfiniBand"),
            GidKind::RoceV1 => f.write_str("RoCEv1"),
            GidKind::RoceV2 => f.write_str("RoCEv2"),
            GidKind::Other(number) => write!(f, "kind {number}"),
        }
    }
}

/// One valid entry of a port's GID table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index.
    pub index: u32,
    /// The GID.
    pub gid: [u8; 16],
    /// Packets it stands for.
    pub kind: GidKind,
    /// Name of its network device; empty if unknown.
    pub netdev: String,
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.gid);
        write!(f, "{} {} {address}", self.index, self.kind)?;
        if self.netdev.is_empty() {
            return Ok(());
        }
        write!(f, " on {}", self.netdev)
    }
}

/// A table, to be printed in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidTable(pub Vec<GidEntry>);

impl fmt::Display for GidTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the table is empty");
        }
        f.write_str("the table has: ")?;
        for (at, entry) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{entry}")?;
        }
        Ok(())
    }
}

/// Why an entry stands for the device, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidReason {
    /// Chosen: it is the first for RoCEv2 with this address, which was asked for.
    HasAddress(IpAddr),
    /// Chosen: it is for RoCEv2, and of the only IPv4 address of the port.
    OnlyIpv4,
    /// Chosen: it is for RoCEv2, and of the only IPv6 address that is not link-local; no IPv4 address is
    /// there.
    OnlyIpv6,
    /// Its packets are not those of SMC-Rv2.
    NotRoceV2,
    /// This address was asked for.
    OtherAddress(IpAddr),
    /// Nobody beyond the link reaches a link-local address.
    LinkLocal,
    /// IPv4 addresses go first.
    BehindIpv4,
    /// So many addresses could be meant.
    OneOfSeveral(usize),
    /// An entry before it has the same address.
    Twice,
}

impl GidReason {
    /// Whether this is the entry that stands for the device.
    pub fn is_chosen(self) -> bool {
        match self {
            GidReason::HasAddress(_) | GidReason::OnlyIpv4 | GidReason::OnlyIpv6 => true,
            GidReason::NotRoceV2
            | GidReason::OtherAddress(_)
            | GidReason::LinkLocal
            | GidReason::BehindIpv4
            | GidReason::OneOfSeveral(_)
            | GidReason::Twice => false,
        }
    }
}

impl fmt::Display for GidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GidReason::HasAddress(address) => write!(f, "RoCEv2, and of the address {address}"),
            GidReason::OnlyIpv4 => f.write_str("RoCEv2, IPv4-mapped, the only IPv4 address"),
            GidReason::OnlyIpv6 => {
                f.write_str("RoCEv2, the only IPv6 address that is not link-local, and no IPv4 one")
            }
            GidReason::NotRoceV2 => f.write_str("not for RoCEv2, which SMC-Rv2 uses"),
            GidReason::OtherAddress(address) => write!(f, "not of the address {address}"),
            GidReason::LinkLocal => f.write_str("link-local: nobody behind a router reaches it"),
            GidReason::BehindIpv4 => f.write_str("IPv6, and IPv4 goes first where it is there"),
            GidReason::OneOfSeveral(count) => write!(f, "one of {count} addresses to choose from"),
            GidReason::Twice => f.write_str("an entry before it has the same address"),
        }
    }
}

/// Why no entry can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GidError {
    /// Nothing in the table has the address.
    #[error(
        "no GID has the address {local}: give it to the network device of this port, or use another \
         port; {table}"
    )]
    NoSuchAddress {
        /// Local address of the connection.
        local: IpAddr,
        /// What there is.
        table: GidTable,
    },
    /// The address is there, but not for RoCEv2.
    #[error("the address {local} has a GID, but of no entry for RoCEv2; {table}")]
    NotRoceV2 {
        /// Local address of the connection.
        local: IpAddr,
        /// What there is.
        table: GidTable,
    },
    /// There are several addresses to choose from, or none.
    #[error(
        "{count} addresses of this port could be meant, so one has to be named (`device.gid`); {table}"
    )]
    NotOne {
        /// How many.
        count: usize,
        /// What there is.
        table: GidTable,
    },
}

/// The GID of an IP address.
fn gid_of(local: IpAddr) -> [u8; 16] {
    match local {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Whether two GIDs are addresses of one family, so that one may reach the other.
pub(super) fn same_family(one: &[u8; 16], other: &[u8; 16]) -> bool {
    let is_ipv4 = |gid: &[u8; 16]| Ipv6Addr::from(*gid).to_ipv4_mapped().is_some();
    is_ipv4(one) == is_ipv4(other)
}

/// The entry that a choice means.
///
/// # Errors
/// [`GidError`]: which rule no entry keeps, with the table.
pub(super) fn chosen<'a>(
    table: &'a GidTable,
    choice: &GidChoice,
) -> Result<&'a GidEntry, GidError> {
    match choice {
        GidChoice::Local(local) => choose(table, *local),
        GidChoice::FirstOf(addresses) => match first_that_fits(table, addresses) {
            Some(local) => choose(table, local),
            None => only(table),
        },
    }
}

/// For each entry of the table why it is what [`chosen`] gives, or why it is not.
pub fn reasons(table: &GidTable, choice: &GidChoice) -> Vec<GidReason> {
    let rule = match choice {
        GidChoice::Local(local) => Some(*local),
        GidChoice::FirstOf(addresses) => first_that_fits(table, addresses),
    };
    let index = chosen(table, choice).ok().map(|entry| entry.index);
    let reason = |entry: &GidEntry| match rule {
        Some(local) => for_address(entry, local, index),
        None => for_only(entry, table, index),
    };
    table.0.iter().map(reason).collect()
}

fn for_address(entry: &GidEntry, local: IpAddr, chosen: Option<u32>) -> GidReason {
    if entry.gid != gid_of(local) {
        GidReason::OtherAddress(local)
    } else if entry.kind != GidKind::RoceV2 {
        GidReason::NotRoceV2
    } else if chosen == Some(entry.index) {
        GidReason::HasAddress(local)
    } else {
        GidReason::Twice
    }
}

fn for_only(entry: &GidEntry, table: &GidTable, chosen: Option<u32>) -> GidReason {
    if entry.kind != GidKind::RoceV2 {
        GidReason::NotRoceV2
    } else if is_link_local(entry) {
        GidReason::LinkLocal
    } else {
        let candidates = reachable(table);
        if !candidates.iter().any(|one| one.index == entry.index) {
            GidReason::BehindIpv4
        } else if chosen != Some(entry.index) {
            GidReason::OneOfSeveral(candidates.len())
        } else if is_ipv4(entry) {
            GidReason::OnlyIpv4
        } else {
            GidReason::OnlyIpv6
        }
    }
}

/// The entry for a connection whose local address is `local`: the first that is for RoCEv2 and has exactly
/// this address.
///
/// # Errors
/// [`GidError::NoSuchAddress`], [`GidError::NotRoceV2`]: which of the two rules no entry keeps, with the table.
pub(super) fn choose(table: &GidTable, local: IpAddr) -> Result<&GidEntry, GidError> {
    let gid = gid_of(local);
    let of_address = || table.0.iter().filter(|entry| entry.gid == gid);
    if let Some(entry) = of_address().find(|entry| entry.kind == GidKind::RoceV2) {
        return Ok(entry);
    }
    let table = table.clone();
    Err(if of_address().next().is_some() {
        GidError::NotRoceV2 { local, table }
    } else {
        GidError::NoSuchAddress { local, table }
    })
}

fn is_ipv4(entry: &GidEntry) -> bool {
    Ipv6Addr::from(entry.gid).to_ipv4_mapped().is_some()
}

fn is_link_local(entry: &GidEntry) -> bool {
    Ipv6Addr::from(entry.gid).is_unicast_link_local()
}

/// The entries for RoCEv2 that other hosts can reach: those of IPv4 addresses, or without any, of IPv6
/// addresses that are not link-local.
fn reachable(table: &GidTable) -> Vec<&GidEntry> {
    let usable = table
        .0
        .iter()
        .filter(|entry| entry.kind == GidKind::RoceV2 && !is_link_local(entry));
    let (v4, v6): (Vec<_>, Vec<_>) = usable.partition(|entry| is_ipv4(entry));
    if v4.is_empty() { v6 } else { v4 }
}

/// The one entry that is [`reachable`].
///
/// # Errors
/// [`GidError::NotOne`].
fn only(table: &GidTable) -> Result<&GidEntry, GidError> {
    let candidates = reachable(table);
    match candidates[..] {
        [entry] => Ok(entry),
        _ => Err(GidError::NotOne {
            count: candidates.len(),
            table: table.clone(),
        }),
    }
}

/// The first of these addresses that has an entry.
fn first_that_fits(table: &GidTable, addresses: &[IpAddr]) -> Option<IpAddr> {
    let mut addresses = addresses.iter().copied();
    addresses.find(|address| choose(table, *address).is_ok())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::{
        GidChoice, GidEntry, GidError, GidKind, GidReason, GidTable, choose, chosen as chosen_by,
        only, reasons,
    };

    fn entry(index: u32, address: &str, kind: GidKind) -> GidEntry {
        let gid = super::gid_of(address.parse().unwrap());
        let netdev = "eth0".to_owned();
        GidEntry {
            index,
            gid,
            kind,
            netdev,
        }
    }

    /// As an adapter with one IPv4 and one IPv6 address has it.
    fn table() -> GidTable {
        GidTable(vec![
            entry(0, "fe80::5054:ff:fe00:1", GidKind::RoceV1),
            entry(1, "fe80::5054:ff:fe00:1", GidKind::RoceV2),
            entry(2, "192.0.2.7", GidKind::RoceV1),
            entry(3, "192.0.2.7", GidKind::RoceV2),
            entry(5, "2001:db8::7", GidKind::RoceV2),
        ])
    }

    fn chosen(local: &str) -> Result<u32, GidError> {
        choose(&table(), local.parse().unwrap()).map(|entry| entry.index)
    }

    #[test]
    fn ipv4_address_finds_its_mapped_gid_for_udp() {
        assert_eq!(chosen("192.0.2.7"), Ok(3));
    }

    #[test]
    fn mapped_address_of_an_ipv6_socket_finds_the_same() {
        assert_eq!(chosen("::ffff:192.0.2.7"), Ok(3));
    }

    #[test]
    fn ipv6_addresses_find_theirs() {
        assert_eq!(chosen("2001:db8::7"), Ok(5));
        assert_eq!(chosen("fe80::5054:ff:fe00:1"), Ok(1));
    }

    #[test]
    fn address_that_is_not_there_is_refused_with_the_table_and_never_gets_index_0() {
        let refusal = chosen("192.0.2.8").unwrap_err();
        let text = refusal.to_string();
        assert!(matches!(refusal, GidError::NoSuchAddress { .. }));
        for part in ["192.0.2.8", "3 RoCEv2 ::ffff:192.0.2.7 on eth0", "0 RoCEv1"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn address_without_udp_is_told_apart() {
        let table = GidTable(vec![entry(2, "192.0.2.7", GidKind::RoceV1)]);
        let local: IpAddr = "192.0.2.7".parse().unwrap();
        let refusal = choose(&table, local);
        assert!(matches!(refusal, Err(GidError::NotRoceV2 { .. })));
    }

    #[test]
    fn empty_table_is_said_to_be_empty() {
        let nothing = GidTable(Vec::new());
        let refusal = choose(&nothing, "192.0.2.7".parse().unwrap()).unwrap_err();
        assert!(refusal.to_string().contains("the table is empty"));
    }

    #[test]
    fn families_are_told_apart() {
        let gid = |address: &str| super::gid_of(address.parse().unwrap());
        assert!(super::same_family(&gid("192.0.2.7"), &gid("198.51.100.1")));
        assert!(super::same_family(&gid("2001:db8::7"), &gid("fe80::1")));
        assert!(!super::same_family(&gid("192.0.2.7"), &gid("fe80::1")));
    }

    #[test]
    fn a_named_address_goes_before_the_only_one() {
        let first = |addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            chosen_by(&table(), &GidChoice::FirstOf(addresses)).map(|entry| entry.index)
        };
        assert_eq!(first(&["127.0.0.1", "2001:db8::7", "192.0.2.7"]), Ok(5));
        assert_eq!(first(&["0.0.0.0"]), Ok(3));
        assert_eq!(first(&[]), Ok(3));
    }

    #[test]
    fn the_only_address_that_others_reach_is_found_and_several_are_told() {
        let v2 = GidKind::RoceV2;
        let mut table = GidTable(vec![
            entry(0, "fe80::1", GidKind::RoceV1),
            entry(1, "fe80::1", v2),
            entry(2, "192.0.2.1", GidKind::RoceV1),
        ]);
        let count = |table: &GidTable| match only(table) {
            Err(GidError::NotOne { count, .. }) => Err(count),
            other => Ok(other.expect("a choice").index),
        };
        assert_eq!(count(&table), Err(0));
        table.0.push(entry(3, "2001:db8::1", v2));
        assert_eq!(count(&table), Ok(3));
        table.0.push(entry(4, "192.0.2.1", v2));
        assert_eq!(count(&table), Ok(4));
        table.0.push(entry(5, "198.51.100.1", v2));
        assert_eq!(count(&table), Err(2));
        let text = only(&table).expect_err("two").to_string();
        assert!(
            text.contains("device.gid") && text.contains("5 RoCEv2"),
            "{text}"
        );
    }

    #[test]
    fn each_entry_is_told_why_it_is_chosen_or_not() {
        use GidReason::{LinkLocal, NotRoceV2, OnlyIpv4, OtherAddress};
        let of = |choice: &GidChoice| reasons(&table(), choice);
        assert_eq!(
            of(&GidChoice::FirstOf(Vec::new())),
            [
                NotRoceV2,
                LinkLocal,
                NotRoceV2,
                OnlyIpv4,
                GidReason::BehindIpv4
            ]
        );
        let local: IpAddr = "192.0.2.7".parse().unwrap();
        assert_eq!(
            of(&GidChoice::Local(local)),
            [
                OtherAddress(local),
                OtherAddress(local),
                NotRoceV2,
                GidReason::HasAddress(local),
                OtherAddress(local)
            ]
        );
    }

    #[test]
    fn the_reasons_tell_of_a_choice_exactly_where_there_is_one() {
        let addresses = [
            "192.0.2.7",
            "192.0.2.8",
            "2001:db8::7",
            "2001:db8::8",
            "fe80::1",
        ];
        let kinds = [GidKind::RoceV1, GidKind::RoceV2];
        let all: Vec<GidEntry> = (0..20u32)
            .map(|at| entry(at, addresses[at as usize / 4], kinds[at as usize % 2]))
            .collect();
        let choices = addresses.map(|address| address.parse::<IpAddr>().unwrap());
        let choices = choices.map(GidChoice::Local).into_iter().chain([
            GidChoice::FirstOf(Vec::new()),
            GidChoice::FirstOf(vec![
                "192.0.2.9".parse().unwrap(),
                "2001:db8::8".parse().unwrap(),
            ]),
        ]);
        for choice in choices {
            for from in 0..all.len() {
                for to in from..=all.len() {
                    let table = GidTable(all[from..to].to_vec());
                    let told: Vec<u32> = reasons(&table, &choice)
                        .iter()
                        .zip(&table.0)
                        .filter(|(reason, _)| reason.is_chosen())
                        .map(|(_, entry)| entry.index)
                        .collect();
                    let expected = chosen_by(&table, &choice).ok().map(|entry| entry.index);
                    assert_eq!(told, Vec::from_iter(expected), "{choice:?} {table}");
                }
            }
        }
    }
}
