//! What the kernel shows of RDMA devices below `/sys/class/infiniband`: with or without libibverbs.

use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

use super::adapter::{Adapter, LinkLayer, Port, PortState};
use super::gid::{GidEntry, GidKind, GidTable};
use crate::Errno;

/// The folder of all devices.
const DEVICES: &str = "sys/class/infiniband";
/// There once `ib_uverbs` is loaded; libibverbs looks for it as well.
const USER_ACCESS: &str = "sys/class/infiniband_verbs";

/// The text of a file of one line; empty if it cannot be read.
pub(super) fn line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// Name of the network device of a GID; empty if the kernel does not say.
pub(super) fn netdev(root: &Path, device: &str, port: u8, index: u32) -> String {
    let port = root
        .join(DEVICES)
        .join(device)
        .join(format!("ports/{port}"));
    line(&port.join(format!("gid_attrs/ndevs/{index}")))
}

/// What kind of node a device is, as `CA` (InfiniBand and RoCE) or `RNIC` (iWARP); empty if unknown.
pub(super) fn node_type(root: &Path, device: &str) -> String {
    let text = line(&root.join(DEVICES).join(device).join("node_type"));
    after_number(&text).to_owned()
}

/// Whether programs may have access to devices at all: whether the module `ib_uverbs` is loaded.
pub(super) fn has_user_access(root: &Path) -> bool {
    root.join(USER_ACCESS).is_dir()
}

/// All devices, by name. What only the library tells is left open.
pub(super) fn adapters(root: &Path) -> Vec<Adapter> {
    let mut names = names_in(&root.join(DEVICES));
    names.sort();
    names.into_iter().map(|name| adapter(root, name)).collect()
}

fn adapter(root: &Path, name: String) -> Adapter {
    let folder = root.join(DEVICES).join(&name);
    let mut numbers: Vec<u8> = names_in(&folder.join("ports"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    numbers.sort_unstable();
    let ports = numbers
        .into_iter()
        .map(|number| Ok(port(root, &name, number)))
        .collect();
    Adapter {
        vendor_id: 0,
        vendor_part_id: 0,
        firmware: line(&folder.join("fw_ver")),
        node_guid: node_guid(&line(&folder.join("node_guid"))),
        node_type: node_type(root, &name),
        limits: None,
        ports,
        name,
    }
}

fn port(root: &Path, device: &str, number: u8) -> Port {
    let folder = root
        .join(DEVICES)
        .join(device)
        .join(format!("ports/{number}"));
    let state = match after_number(&line(&folder.join("state"))) {
        "ACTIVE" | "ACTIVE_DEFER" => PortState::Active,
        "DOWN" => PortState::Down,
        "INIT" => PortState::Initialising,
        "ARMED" => PortState::Armed,
        _ => PortState::None,
    };
    let link_layer = match line(&folder.join("link_layer")).as_str() {
        "Ethernet" => LinkLayer::Ethernet,
        _ => LinkLayer::InfiniBand,
    };
    Port {
        number,
        state,
        link_layer,
        active_mtu: 0,
        message_bytes_max: 0,
        gids: gids(root, device, number),
    }
}

fn gids(root: &Path, device: &str, port: u8) -> Result<GidTable, Errno> {
    let folder = root
        .join(DEVICES)
        .join(device)
        .join(format!("ports/{port}"));
    let mut indices: Vec<u32> = names_in(&folder.join("gids"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    indices.sort_unstable();
    let entry = |index: u32| {
        let gid: Ipv6Addr = line(&folder.join(format!("gids/{index}"))).parse().ok()?;
        // Tables are long, and mostly of places that nobody uses.
        if gid.is_unspecified() {
            return None;
        }
        let kind = match line(&folder.join(format!("gid_attrs/types/{index}"))).as_str() {
            "RoCE v2" => GidKind::RoceV2,
            // The kernel has one word for both, and Ethernet has no InfiniBand.
            "IB/RoCE v1" => GidKind::RoceV1,
            _ => GidKind::InfiniBand,
        };
        Some(GidEntry {
            index,
            gid: gid.octets(),
            kind,
            netdev: netdev(root, device, port, index),
        })
    };
    Ok(GidTable(indices.into_iter().filter_map(entry).collect()))
}

/// The worldwide number in text such as `5054:00ff:fe00:0001`; zeros if it is none.
fn node_guid(text: &str) -> [u8; 8] {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    u64::from_str_radix(&digits, 16)
        .unwrap_or_default()
        .to_be_bytes()
}

/// The word in text such as `4: ACTIVE`.
fn after_number(text: &str) -> &str {
    text.split_once(':').map_or("", |(_, word)| word.trim())
}

/// The names in a folder; none if it is not there.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{PortState, adapters, after_number, has_user_access, node_guid};
    use crate::verbs::{GidKind, LinkLayer};

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join("sys/class/infiniband/rxe0").join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, format!("{text}\n")).expect("a file");
    }

    #[test]
    fn a_device_is_read_with_its_ports_and_valid_gids_in_order() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let root = dir.path();
        put(root, "node_type", "1: CA");
        put(root, "node_guid", "5054:00ff:fe00:0001");
        put(root, "ports/1/state", "4: ACTIVE");
        put(root, "ports/1/link_layer", "Ethernet");
        for (index, gid, kind) in [
            (0, "fe80:0000:0000:0000:5054:00ff:fe00:0001", "IB/RoCE v1"),
            (10, "0000:0000:0000:0000:0000:ffff:c000:0201", "RoCE v2"),
            (2, "0000:0000:0000:0000:0000:0000:0000:0000", ""),
        ] {
            put(root, &format!("ports/1/gids/{index}"), gid);
            put(root, &format!("ports/1/gid_attrs/types/{index}"), kind);
            put(root, &format!("ports/1/gid_attrs/ndevs/{index}"), "eth0");
        }
        let found = adapters(root);
        let [adapter] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(adapter.node_guid, [0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 1]);
        assert_eq!(adapter.node_type, "CA");
        let port = adapter.usable_port(1).expect("a usable port");
        assert_eq!(
            (port.state, port.link_layer),
            (PortState::Active, LinkLayer::Ethernet)
        );
        let gids = &port.gids.as_ref().expect("a table").0;
        let told: Vec<_> = gids.iter().map(|gid| (gid.index, gid.kind)).collect();
        assert_eq!(told, [(0, GidKind::RoceV1), (10, GidKind::RoceV2)]);
        assert!(!has_user_access(root));
    }

    #[test]
    fn what_is_not_there_is_empty() {
        assert!(adapters(Path::new("/no/such/root")).is_empty());
        assert_eq!(node_guid("nonsense"), [0; 8]);
        assert_eq!(after_number("ACTIVE"), "");
    }
}
