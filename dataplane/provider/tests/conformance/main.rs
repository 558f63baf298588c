//! One suite of tests for every driver and carrier: the promises of the contract, one test each.
//!
//! A case is a function over a [`bed::Bed`]; the macro makes a test of it for each bed. What only the soft
//! driver has (its census, its processes) is in `soft`.

#[macro_use]
mod bed;

mod errors;
mod limits;
mod model;
mod order;
mod rnr;
mod sleep;
mod soft;
mod states;
mod threads;
