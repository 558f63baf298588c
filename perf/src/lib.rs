//! Latency measurements of the data plane.
//!
//! | module | what it does |
//! |---|---|
//! | [`loop_spec`] | `msg_size:1:2K:*2`: the message sizes of one run, as qperf has them |
//! | [`table`] | prints the result, for people and as JSON |
//! | [`inprocess`] | the ping-pong inside the workers of two processes |
//! | [`embedded`] | the appliance in each of them |
//! | [`compare`] | by reference, messages inline and all inline, side by side in one run |
//! | [`incast`] | many connections, few receives: what credits are worth |
//! | [`conns`] | many connections, most of them idle, and many opened and closed |
//! | [`instructions`] | instructions of the sending path, counted by valgrind |
//! | [`modes`] | what may go inline, as all of them name it |
//! | [`post_path`] | the workload that is counted |
//! | [`attached`] | the ping-pong's stream through an appliance that runs |
//! | [`lat`] | the ping-pong itself, over any byte stream |
//! | [`tcp`] | the ping-pong's stream over plain TCP, and the echo at its other end |
//!
//! What is measured with, the histogram and the bounce, lies in `pollux_control`, whose own
//! latency runs use the same.
//!
//! Every latency that leaves this crate is one way, that is half of a round trip (but those of
//! [`incast`] and [`conns`], which say so), and stands beside the bounce of the same run: machines drift, and the
//! ratio of the two does not.

pub mod attached;
pub mod compare;
pub mod conns;
pub mod embedded;
pub mod incast;
pub mod inprocess;
pub mod instructions;
pub mod lat;
pub mod loop_spec;
pub mod modes;
mod own;
mod pair;
pub mod post_path;
pub mod table;
pub mod tcp;
