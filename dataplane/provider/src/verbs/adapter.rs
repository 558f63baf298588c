//! What is known of an adapter before anything is made on it, and which port and GID stand for it.
//!
//! Opening a device ([`super::VerbsDevice::open`]) and looking at the host without opening one
//! ([`super::Survey`]) both decide here, so they cannot come to different ends.

use std::fmt;

use rdma_core_sys as sys;

use super::error::OpenError;
use super::gid::{self, GidChoice, GidEntry, GidTable};
use crate::Errno;

/// What to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// Name of the device, as `rdma link` shows it before the `/`.
    pub device: String,
    /// Port, from 1.
    pub port: u8,
    /// Address.
    pub gid: GidChoice,
}

/// State of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// No cable, or its network device is down.
    Down,
    /// Waits for a subnet manager.
    Initialising,
    /// Configured, not yet in use.
    Armed,
    /// Up.
    Active,
    /// A state that has no name here.
    None,
}

impl PortState {
    pub(super) fn of(state: u32) -> PortState {
        match state {
            sys::IBV_PORT_ACTIVE | sys::IBV_PORT_ACTIVE_DEFER => PortState::Active,
            sys::IBV_PORT_DOWN => PortState::Down,
            sys::IBV_PORT_INIT => PortState::Initialising,
            sys::IBV_PORT_ARMED => PortState::Armed,
            _ => PortState::None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            PortState::Down => "down",
            PortState::Initialising => "initialising",
            PortState::Armed => "armed",
            PortState::Active => "active",
            PortState::None => "in no state",
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// What a port's packets travel in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// Ethernet: RoCE.
    Ethernet,
    /// Anything else.
    InfiniBand,
}

impl LinkLayer {
    pub(super) fn of(layer: u8) -> LinkLayer {
        if u32::from(layer) == sys::IBV_LINK_LAYER_ETHERNET {
            LinkLayer::Ethernet
        } else {
            LinkLayer::InfiniBand
        }
    }

    fn text(self) -> &'static str {
        match self {
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::InfiniBand => "InfiniBand",
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// One port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Number, from 1.
    pub number: u8,
    /// State.
    pub state: PortState,
    /// Its packets travel in.
    pub link_layer: LinkLayer,
    /// Active path MTU as the verbs number it, 1 to 5; 0 where only the library tells.
    pub active_mtu: u32,
    /// Longest message, bytes; 0 where only the library tells.
    pub message_bytes_max: u32,
    /// Its valid GIDs, or why they cannot be read.
    pub gids: Result<GidTable, Errno>,
}

/// What an adapter says that it can do at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterLimits {
    /// Queue pairs.
    pub qp: u32,
    /// Requests in one queue.
    pub wr: u32,
    /// Completions in one queue.
    pub cqe: u32,
    /// Pieces of one request.
    pub sge: u32,
    /// Registrations.
    pub mr: u32,
    /// Bytes of one registration.
    pub mr_bytes: u64,
}

/// One adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// Name, as `rxe0`.
    pub name: String,
    /// Number of the maker (IEEE OUI, or its PCI number); 0 if unknown.
    pub vendor_id: u32,
    /// The maker's number of the model; 0 if unknown.
    pub vendor_part_id: u32,
    /// Version of the firmware; empty if there is none.
    pub firmware: String,
    /// Worldwide number of the adapter, big-endian.
    pub node_guid: [u8; 8],
    /// Kind of node, as `CA` (InfiniBand and RoCE) or `RNIC` (iWARP); empty if unknown.
    pub node_type: String,
    /// Limits; none where only the library tells.
    pub limits: Option<AdapterLimits>,
    /// Ports from 1 on, or why one cannot be asked.
    pub ports: Vec<Result<Port, Errno>>,
}

/// The port and the GID that stand for an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen<'a> {
    /// The port.
    pub port: &'a Port,
    /// The GID.
    pub gid: &'a GidEntry,
    /// Its index, which work requests name in 8 bits.
    pub gid_index: u8,
}

impl Adapter {
    /// The port, if it is there, up, and Ethernet.
    ///
    /// # Errors
    /// [`OpenError::NoSuchPort`], [`OpenError::System`], [`OpenError::NotEthernet`], [`OpenError::PortDown`].
    pub fn usable_port(&self, port: u8) -> Result<&Port, OpenError> {
        let name = self.name.clone();
        let answer = port
            .checked_sub(1)
            .and_then(|place| self.ports.get(usize::from(place)));
        let Some(answer) = answer else {
            let ports = u8::try_from(self.ports.len()).unwrap_or(u8::MAX);
            return Err(OpenError::NoSuchPort { name, port, ports });
        };
        let found = answer.as_ref().map_err(|errno| OpenError::System {
            name: self.name.clone(),
            step: "query its port",
            errno: *errno,
        })?;
        if found.link_layer != LinkLayer::Ethernet {
            let link_layer = found.link_layer.text();
            return Err(OpenError::NotEthernet {
                name,
                port,
                link_layer,
            });
        }
        if found.state != PortState::Active {
            let state = found.state.text();
            return Err(OpenError::PortDown { name, port, state });
        }
        Ok(found)
    }

    /// The port and the GID that the options mean.
    ///
    /// # Errors
    /// Those of [`Adapter::usable_port`], and [`OpenError::Gid`] or [`OpenError::System`]: no GID can be used.
    pub fn choose(&self, port: u8, choice: &GidChoice) -> Result<Chosen<'_>, OpenError> {
        let port = self.usable_port(port)?;
        let failed = |step, errno| OpenError::System {
            name: self.name.clone(),
            step,
            errno,
        };
        let gids = port
            .gids
            .as_ref()
            .map_err(|errno| failed("read its GID table", *errno))?;
        let gid = gid::chosen(gids, choice).map_err(|cause| OpenError::Gid {
            name: self.name.clone(),
            port: port.number,
            cause,
        })?;
        let gid_index = u8::try_from(gid.index)
            .map_err(|_| failed("use a GID index over 255", Errno::RANGE))?;
        Ok(Chosen {
            port,
            gid,
            gid_index,
        })
    }
}

/// The name, if a device has it.
///
/// # Errors
/// [`OpenError::NoDevices`], [`OpenError::NoSuchDevice`].
pub(super) fn known(name: &str, known: Vec<String>) -> Result<(), OpenError> {
    if known.is_empty() {
        return Err(OpenError::NoDevices);
    }
    if known.iter().any(|one| one == name) {
        return Ok(());
    }
    let name = name.to_owned();
    Err(OpenError::NoSuchDevice { name, known })
}

#[cfg(test)]
mod tests {
    use super::{Adapter, LinkLayer, Port, PortState, known};
    use crate::Errno;
    use crate::verbs::{GidChoice, GidEntry, GidKind, GidTable, OpenError};

    fn port(state: PortState, link_layer: LinkLayer, indices: &[u32]) -> Port {
        let gid = "::ffff:192.0.2.1".parse::<std::net::Ipv6Addr>().unwrap();
        let entry = |index: &u32| GidEntry {
            index: *index,
            gid: gid.octets(),
            kind: GidKind::RoceV2,
            netdev: "eth0".to_owned(),
        };
        Port {
            number: 1,
            state,
            link_layer,
            active_mtu: 3,
            message_bytes_max: 1 << 30,
            gids: Ok(GidTable(indices.iter().map(entry).collect())),
        }
    }

    fn adapter(port: Result<Port, Errno>) -> Adapter {
        Adapter {
            name: "rxe0".to_owned(),
            vendor_id: 0,
            vendor_part_id: 0,
            firmware: String::new(),
            node_guid: [0; 8],
            node_type: String::new(),
            limits: None,
            ports: vec![port],
        }
    }

    fn refusal(port: Result<Port, Errno>, number: u8) -> String {
        let adapter = adapter(port);
        let refused = adapter.choose(number, &GidChoice::FirstOf(Vec::new()));
        refused.expect_err("a refusal").to_string()
    }

    #[test]
    fn only_an_active_ethernet_port_with_a_gid_that_requests_can_name_is_chosen() {
        let (active, ethernet) = (PortState::Active, LinkLayer::Ethernet);
        let good = adapter(Ok(port(active, ethernet, &[255])));
        let chosen = good.choose(1, &GidChoice::FirstOf(Vec::new())).unwrap();
        assert_eq!((chosen.port.number, chosen.gid_index), (1, 255));
        for (port, number, text) in [
            (
                Ok(port(active, ethernet, &[1])),
                0,
                "has ports 1 to 1, not 0",
            ),
            (
                Ok(port(active, ethernet, &[1])),
                2,
                "has ports 1 to 1, not 2",
            ),
            (Err(Errno::NODEV), 1, "cannot query its port"),
            (
                Ok(port(active, LinkLayer::InfiniBand, &[1])),
                1,
                "is InfiniBand",
            ),
            (Ok(port(PortState::Down, ethernet, &[1])), 1, "is down"),
            (Ok(port(PortState::Armed, ethernet, &[1])), 1, "is armed"),
            (Ok(port(active, ethernet, &[])), 1, "the table is empty"),
            (
                Ok(port(active, ethernet, &[256])),
                1,
                "a GID index over 255",
            ),
        ] {
            let refused = refusal(port, number);
            assert!(refused.contains(text), "{text}: {refused}");
        }
    }

    #[test]
    fn a_device_is_known_by_its_whole_name() {
        let names = || vec!["rxe0".to_owned(), "mlx5_0".to_owned()];
        assert!(known("mlx5_0", names()).is_ok());
        assert!(matches!(
            known("rxe", names()),
            Err(OpenError::NoSuchDevice { .. })
        ));
        assert!(matches!(
            known("rxe0", Vec::new()),
            Err(OpenError::NoDevices)
        ));
    }
}
