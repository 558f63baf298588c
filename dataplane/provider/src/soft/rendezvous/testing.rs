//! Packets of the rendezvous as bytes.

use super::Message;

/// Reads a packet that came with so many descriptors, and writes what it says again; why it says nothing,
/// otherwise.
///
/// # Errors
/// Text for people.
pub fn packet_again(packet: &[u8], fds: usize) -> Result<Vec<u8>, String> {
    let message = Message::parse(packet, fds).map_err(|bad| bad.to_string())?;
    Ok(message.emit().to_vec())
}
