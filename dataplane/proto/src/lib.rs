//! The rules of SMC-R: news in, wishes in, orders out.
//!
//! Nothing here performs I/O, waits, or asks the time. A caller hands in what happened (a message, a
//! completion, an expired timer) and what the application wants, and takes orders: what to write where, which
//! message to send, which timer to run. So a run can be simulated, replayed, and explored exhaustively.
//!
//! | module | is |
//! |---|---|
//! | [`conn`] | one connection: data both ways, close and abort |
//! | `sndbuf`, `rmbe` | positions of the two rings of a connection |
//! | [`plan`] | from a span of the stream to at most two writes |
//! | [`cursor`], [`seq`] | the only places where numbers go round |
//! | [`event`], [`error`] | what the application learns; why a connection was reset |
//! | [`clc`], [`diagnosis`] | the handshake over TCP; why a connection stayed there |
//! | [`credit`] | how many messages the peer can take |
//! | [`llc`] | the exchanges on a link: confirm it, confirm and delete RMBs, test it, end it |
//! | [`link`], [`group`] | the ends of a link; which link group a connection joins |
//! | [`time`], [`units`] | plain numbers with a meaning
//! | [`planted`] | faults for the simulator to find, in builds made for it only |
#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

pub mod clc;
pub mod conn;
pub mod credit;
pub mod cursor;
pub mod diagnosis;
pub mod error;
pub mod event;
pub mod group;
pub mod link;
pub mod llc;
pub mod plan;
pub mod planted;
mod rmbe;
pub mod seq;
mod sndbuf;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;
pub mod units;

pub use link::Role;
