//! How a program shares its streams with the appliance: memory, control protocol, client library.
//!
//! - [`layout`]: where everything lies in the memory of a session.
//! - [`shared`]: the two halves of that memory, [`shared::WorkerSide`] and
//!   [`shared::ProgramSide`].

pub mod layout;
pub mod shared;
