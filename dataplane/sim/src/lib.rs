//! Worlds under a seed: whole stacks in one thread, faults, and checkers that know no mercy.
//!
//! A [`World`] is drawn from a seed ([`Options::draw`]): two or more stacks on the soft driver's process
//! carrier, each with its worker, driven pass by pass on simulated time. Applications write and read
//! streams whose bytes are a function of their place (`pattern.rs`, `player.rs`); one layer below the
//! workers misbehaves as an adapter may (`faults.rs`) and keeps the books that the checkers read
//! (`checker.rs`). After the faults everything has to come to an end: each connection delivers, closes
//! or is reset with a cause, and every place, ring, registration and queue pair is given back.
//!
//! The same seed is the same run, on every machine. [`swarm`] runs many of them.

#![forbid(unsafe_code)]

pub mod book;
pub mod checker;
pub mod clock;
mod device;
pub mod faults;
mod net;
pub mod numbers;
pub mod options;
pub mod pattern;
pub mod player;
mod stack;
pub mod swarm;
pub mod world;

pub use device::SimDevice;
pub use options::Options;
pub use stack::NoStack;
pub use world::{Outcome, World};
