//! Netlink as far as it is needed here: one request, and all messages that answer it. Layouts as in
//! the kernel's `include/uapi/linux/netlink.h` and `genetlink.h`.

use std::io;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, bail, ensure};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketType};

/// Length of the header of a message.
const HEADER_BYTES: usize = 16;
/// Length of the header of an attribute.
const ATTRIBUTE_BYTES: usize = 4;
/// Everything in a message begins at a multiple of this.
const ALIGNMENT: usize = 4;
/// Longest part of an answer that the kernel gives at a time.
const ANSWER_BYTES_MAX: usize = 32 << 10;
/// The kinds of messages that end an answer.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Flags of a request, by itself and with a wish for an acknowledgement.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
/// Flags of a request for the whole of a list.
const LIST: u16 = 0x300;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// That something is done; an acknowledgement ends the answer.
    Deed,
    /// A list; its end is marked.
    List,
}

/// A socket to the kernel.
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// Opens one to this part of the kernel.
    pub(crate) fn open(protocol: Protocol) -> Result<Socket> {
        let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, Some(protocol));
        Ok(Socket(socket.context("cannot open a netlink socket")?))
    }

    /// Sends a request of this kind; the payloads of the messages that answer it.
    pub(crate) fn ask(&self, kind: u16, want: Want, payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        let request = message(kind, want, payload)?;
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, &request, SendFlags::empty(), &kernel)
            .context("cannot write to the kernel")?;
        let mut answer = Vec::new();
        let mut buffer = vec![0; ANSWER_BYTES_MAX];
        loop {
            let (length, whole) = rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::TRUNC)
                .context("cannot read from the kernel")?;
            ensure!(whole <= length, "an answer of {whole} bytes is too long");
            if read(&buffer[..length], &mut answer)? == Answer::Whole {
                return Ok(answer);
            }
        }
    }
}

/// Whether more of an answer is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Part,
    Whole,
}

fn message(kind: u16, want: Want, payload: &[u8]) -> Result<Vec<u8>> {
    let length = u32::try_from(HEADER_BYTES + payload.len()).context("too long a request")?;
    let flags = match want {
        Want::Deed => REQUEST | ACKNOWLEDGE,
        Want::List => REQUEST | LIST,
    };
    let mut bytes = Vec::new();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Number of the request and of the sender: there is one request at a time, and one sender.
    bytes.extend([0; 8]);
    bytes.extend(payload);
    Ok(bytes)
}

/// Adds the payloads of the messages in a datagram to the answer.
fn read(mut datagram: &[u8], answer: &mut Vec<Vec<u8>>) -> Result<Answer> {
    while !datagram.is_empty() {
        let length = u32::from_ne_bytes(field(datagram, 0)?) as usize;
        let kind = u16::from_ne_bytes(field(datagram, 4)?);
        let payload = datagram
            .get(HEADER_BYTES..length)
            .context("the kernel's answer is cut off")?;
        match kind {
            // The end of a list carries a status as an error does.
            ERROR | DONE => {
                let status = i32::from_ne_bytes(field(payload, 0)?);
                if status != 0 {
                    let error = io::Error::from_raw_os_error(status.saturating_neg());
                    return Err(error).context("the kernel refuses");
                }
                return Ok(Answer::Whole);
            }
            _ => answer.push(payload.to_vec()),
        }
        let next = length.next_multiple_of(ALIGNMENT).min(datagram.len());
        datagram = &datagram[next..];
    }
    Ok(Answer::Part)
}

/// The bytes of a field of fixed length.
pub(crate) fn field<const N: usize>(bytes: &[u8], start: usize) -> Result<[u8; N]> {
    let found = bytes.get(start..).and_then(|rest| rest.first_chunk());
    found.copied().context("the kernel's answer is too short")
}

/// An attribute with its padding.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Result<Vec<u8>> {
    let length = u16::try_from(ATTRIBUTE_BYTES + value.len()).context("too long a value")?;
    let mut bytes = Vec::new();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    Ok(bytes)
}

/// The value of the first attribute of this kind.
pub(crate) fn find_attribute(mut attributes: &[u8], wanted: u16) -> Result<&[u8]> {
    while !attributes.is_empty() {
        let length = usize::from(u16::from_ne_bytes(field(attributes, 0)?));
        let kind = u16::from_ne_bytes(field(attributes, 2)?);
        let value = attributes
            .get(ATTRIBUTE_BYTES..length)
            .context("an attribute of the kernel's answer is cut off")?;
        if kind == wanted {
            return Ok(value);
        }
        let next = length.next_multiple_of(ALIGNMENT).min(attributes.len());
        attributes = &attributes[next..];
    }
    bail!("the kernel's answer has no attribute {wanted}")
}

/// A text as the kernel reads it.
pub(crate) fn text(value: &str) -> Vec<u8> {
    value.bytes().chain([0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(datagram: &[u8]) -> (Result<Answer>, Vec<Vec<u8>>) {
        let mut answer = Vec::new();
        (read(datagram, &mut answer), answer)
    }

    fn part(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = message(kind, Want::Deed, payload).unwrap();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_list_ends_with_its_mark() {
        let datagram = [part(20, b"one"), part(20, b"twos")].concat();
        let (end, found) = answer(&datagram);
        assert_eq!(end.unwrap(), Answer::Part);
        assert_eq!(found, [b"one".to_vec(), b"twos".to_vec()]);
        let (end, found) = answer(&[datagram, part(DONE, &[0; 4])].concat());
        assert_eq!((end.unwrap(), found.len()), (Answer::Whole, 2));
    }

    #[test]
    fn an_acknowledgement_is_an_error_of_nothing() {
        assert_eq!(answer(&part(ERROR, &[0; 20])).0.unwrap(), Answer::Whole);
        let refused = answer(&part(ERROR, &(-22i32).to_ne_bytes())).0.unwrap_err();
        assert!(
            format!("{refused:#}").contains("Invalid argument"),
            "{refused:#}"
        );
    }

    #[test]
    fn whatever_is_cut_off_is_refused() {
        let datagram = part(20, b"four");
        for length in 1..datagram.len() {
            assert!(answer(&datagram[..length]).0.is_err(), "{length}");
        }
        // A length that does not even cover its header would never end.
        assert!(answer(&[0; 16]).0.is_err());
        assert!(find_attribute(&[0; 4], 1).is_err());
    }

    #[test]
    fn attributes_are_found_behind_others() {
        let attributes = [
            attribute(1, b"abc").unwrap(),
            attribute(2, &text("d")).unwrap(),
        ]
        .concat();
        assert_eq!(attributes.len(), 16);
        assert_eq!(find_attribute(&attributes, 1).unwrap(), b"abc");
        assert_eq!(find_attribute(&attributes, 2).unwrap(), b"d\0");
        assert!(find_attribute(&attributes, 3).is_err());
        assert!(find_attribute(&attributes[..13], 2).is_err());
    }
}
