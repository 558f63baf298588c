//! One suite of tests for every driver and carrier: the promises of the contract, one test each.
//!
//! A case is a function over a [`bed::Bed`]; the macro makes a test of it for each bed. What only the soft
//! driver has (its census, its processes) is in `soft`, what only the verbs driver has in `verbs`. How to run
//! the suite on an adapter, and what differs there, is in README.md.

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
mod verbs;
