//! How a program shares its streams with the appliance: memory, control protocol, client library.
//!
//! - [`layout`]: where everything lies in the memory of a session.
//! - [`shared`]: the two halves of that memory, [`shared::WorkerSide`] and
//!   [`shared::ProgramSide`].
//! - [`message`] and [`packet`]: the control protocol on a Unix socket.
//! - [`slots`]: which slots of a session are in use, for the appliance.
//! - [`client`]: the library that a program uses.

pub mod client;
pub mod layout;
pub mod message;
pub mod packet;
pub mod shared;
pub mod slots;
