//! The wire of SMC-R: bytes to values and back.
//!
//! SMC-R (RFC 7609) carries the byte stream of a TCP connection by RDMA. Three kinds of message
//! exist, and Linux adds its version 2 (SMC-Rv2.1) to two of them:
//!
//! | module | carried by | size | purpose |
//! |---|---|---|---|
//! | [`clc`] | the TCP stream | 28 to 652 bytes | agree to leave TCP |
//! | [`llc`] | SEND on a queue pair | 44 bytes, some longer | manage links and RMBs |
//! | [`cdc`] | SEND on a queue pair | 44 bytes | move the cursors of a connection |
//! | [`imm`] | immediate of an RDMA write | 32 bits | the same, where both sides agreed to it |
//!
//! A message is a plain value. `parse` makes it from received bytes and judges everything that can
//! be judged without knowing the connection; `emit` writes it to the front of a buffer of at least
//! `buffer_len` bytes, reserved fields as zero, and never behind it. `parse(emit(x)) == x` for
//! every value that `emit` accepts. `Display` prints one line, as tcpdump would.
//!
//! This crate faces the network: it has no unsafe code, allocates nothing, and panics on no input.
//! What a message *means* is decided elsewhere (`pollux-proto`).
//!
//! ```
//! use pollux_wire::cdc::{self, CDC_BYTES, ConnStateFlags, ProducerFlags, RingCursor};
//!
//! let sent = cdc::Repr {
//!     seq: 1,
//!     token: 7,
//!     producer: RingCursor { wrap: 0, count: 200 },
//!     consumer: RingCursor::default(),
//!     producer_flags: ProducerFlags::EMPTY,
//!     state_flags: ConnStateFlags::EMPTY,
//!     credits: 0,
//! };
//! let mut bytes = [0; CDC_BYTES];
//! sent.emit(&mut bytes);
//! assert_eq!(cdc::Repr::parse(&bytes), Ok(sent));
//! assert_eq!(sent.to_string(), "CDC seq 1, token 7, producer 0:200, consumer 0:0");
//! ```
#![no_std]
#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

#[cfg(test)]
extern crate std;

pub mod cdc;
pub mod clc;
pub mod error;
pub mod field;
pub mod imm;
pub mod llc;
mod pretty;

pub use error::{Error, Field};
