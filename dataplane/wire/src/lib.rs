//! The wire of SMC-R (RFC 7609 and SMC-Rv2.1 as Linux speaks it): bytes to values and back.
#![no_std]
#![forbid(unsafe_code)]

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
