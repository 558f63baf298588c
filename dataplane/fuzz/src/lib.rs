//! Fuzz targets: what strangers can hand to Pollux, and what must hold whatever they do.
//!
//! A [`Target`] is a function over bytes that panics when something does not hold. libFuzzer looks for
//! such bytes (`cargo xtask fuzz`), and every build replays those in `corpus` and `regressions`
//! (`tests/replay.rs`). Parsers take the bytes as they are; state machines read them as a list of
//! operations, through [`Input`].
//!
//! README.md says how to run, reproduce, and add one.
#![forbid(unsafe_code)]

mod attach;
mod config;
mod conn;
mod credit;
mod fds;
mod handshake;
mod input;
mod llc;
mod rpc;
mod soft;
mod wire;

pub use input::Input;

/// One thing that is fuzzed.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// What the command line and the folders of its inputs call it.
    pub name: &'static str,
    /// Longest input that is tried, in bytes.
    pub input_bytes_max: usize,
    /// Tries one input. Panics if something does not hold.
    pub run: fn(&[u8]),
}

/// Every target, in the order of the layers from the bottom up.
pub const TARGETS: &[Target] = &[
    Target {
        name: "wire-clc",
        input_bytes_max: 1100,
        run: wire::clc,
    },
    Target {
        name: "wire-llc",
        input_bytes_max: 300,
        run: wire::llc,
    },
    Target {
        name: "wire-cdc",
        input_bytes_max: 64,
        run: wire::cdc,
    },
    Target {
        name: "handshake",
        input_bytes_max: 300,
        run: handshake::run,
    },
    Target {
        name: "llc",
        input_bytes_max: 250,
        run: llc::run,
    },
    Target {
        name: "conn-pair",
        input_bytes_max: 200,
        run: conn::pair::run,
    },
    Target {
        name: "conn-liar",
        input_bytes_max: 200,
        run: conn::liar::run,
    },
    Target {
        name: "credit",
        input_bytes_max: 200,
        run: credit::run,
    },
    Target {
        name: "attach-message",
        input_bytes_max: 600,
        run: attach::message::run,
    },
    Target {
        name: "attach-worker",
        input_bytes_max: 300,
        run: attach::worker::run,
    },
    Target {
        name: "attach-program",
        input_bytes_max: 120,
        run: attach::program::run,
    },
    Target {
        name: "soft-format",
        input_bytes_max: 400,
        run: soft::format::run,
    },
    Target {
        name: "soft-table",
        input_bytes_max: 200,
        run: soft::table::run,
    },
    Target {
        name: "soft-peer",
        input_bytes_max: 200,
        run: soft::peer::run,
    },
    Target {
        name: "soft-fabric",
        input_bytes_max: 120,
        run: soft::fabric::run,
    },
    Target {
        name: "config",
        input_bytes_max: 600,
        run: config::run,
    },
    Target {
        name: "rpc",
        input_bytes_max: 200,
        run: rpc::run,
    },
];

/// The target of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
