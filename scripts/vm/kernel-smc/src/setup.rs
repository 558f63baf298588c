//! What the kernel's SMC has to be told, by generic netlink: layouts as in
//! `include/uapi/linux/smc.h`.

use anyhow::{Context, Result, ensure};
use rustix::net::netlink;

use crate::netlink::{Socket, Want, attribute, field, find_attribute, text};

/// The kind of messages for the list of families, its request for one, and two of its attributes.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Length of the header of generic netlink.
const HEADER_BYTES: usize = 4;
/// Version of both families of SMC.
const VERSION: u8 = 1;

/// The family of everything but networks, its request for a new user EID, and its attribute.
const SMC: &str = "SMC_GEN_NETLINK";
const ADD_UEID: u8 = 10;
const EID: u16 = 1;
/// Length of an EID, which spaces fill up.
const EID_BYTES: usize = 32;

/// The family of networks, its request for a new entry, and its attributes.
const PNET: &str = "SMC_PNETID";
const ADD_PNET: u8 = 2;
const PNET_NAME: u16 = 1;
const PNET_INTERFACE: u16 = 2;
const PNET_DEVICE: u16 = 3;
const PNET_PORT: u16 = 4;

/// Adds a user EID.
pub(crate) fn add_ueid(name: &str) -> Result<()> {
    ask(SMC, ADD_UEID, &attribute(EID, &eid(name)?)?)
        .with_context(|| format!("cannot add the user EID {name}"))
}

/// Says that an interface and a device's port are on the same network.
pub(crate) fn add_pnet(name: &str, interface: &str, device: &str, port: u8) -> Result<()> {
    let attributes = [
        attribute(PNET_NAME, &text(name))?,
        attribute(PNET_INTERFACE, &text(interface))?,
        attribute(PNET_DEVICE, &text(device))?,
        attribute(PNET_PORT, &[port])?,
    ];
    ask(PNET, ADD_PNET, &attributes.concat())
        .with_context(|| format!("cannot put {interface} and {device} into the network {name}"))
}

/// An EID in its full length, with the zero byte that the kernel wants behind it.
fn eid(name: &str) -> Result<Vec<u8>> {
    ensure!(
        !name.is_empty() && name.len() <= EID_BYTES,
        "the user EID `{name}` has {} bytes; 1 to {EID_BYTES} are possible",
        name.len()
    );
    Ok(text(&format!("{name:EID_BYTES$}")))
}

/// Asks a family for something.
fn ask(family: &str, command: u8, attributes: &[u8]) -> Result<()> {
    let socket = Socket::open(netlink::GENERIC)?;
    let name = attribute(FAMILY_NAME, &text(family))?;
    let answer = socket
        .ask(CONTROLLER, Want::Deed, &request(GET_FAMILY, &name))
        .with_context(|| format!("no family {family}: is the module smc loaded?"))?;
    let answer = answer.first().context("the kernel does not answer")?;
    let answer = answer.get(HEADER_BYTES..).unwrap_or(&[]);
    let id = u16::from_ne_bytes(field(find_attribute(answer, FAMILY_ID)?, 0)?);
    socket.ask(id, Want::Deed, &request(command, attributes))?;
    Ok(())
}

/// The header of generic netlink, and the attributes.
fn request(command: u8, attributes: &[u8]) -> Vec<u8> {
    [&[command, VERSION, 0, 0], attributes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_eid_is_filled_up_with_spaces() {
        let eid = eid("POLLUX").unwrap();
        assert_eq!(eid.len(), 33);
        assert_eq!(&eid[..7], b"POLLUX ");
        assert_eq!(eid[31..], *b" \0");
    }

    #[test]
    fn an_eid_without_or_with_too_many_letters_is_refused() {
        assert!(eid("").is_err());
        assert!(eid(&"A".repeat(32)).is_ok());
        assert!(eid(&"A".repeat(33)).is_err());
    }
}
