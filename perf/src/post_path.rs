//! The way of a message out of the process, to be counted instruction by instruction.
//!
//! Both ends live in one thread on the process carrier, so that every run executes the same
//! instructions. What is counted is what happens inside of a `counted_` function: the sending side
//! from the order to the doorbell, or both sides until the answer is there. Between two messages both
//! ends take what came, so that no ring ever fills; that is not counted.

mod exchanging;
mod posting;
mod working;

use std::fmt;
use std::str::FromStr;

use self::exchanging::Flow;
use anyhow::{Result, ensure};
use pollux_control::rpc::InlineUse;
use pollux_provider::QpCaps;
use serde::Serialize;

/// Bytes of the stream in each message.
pub const MESSAGE_BYTES: usize = 64;

/// Most idle connections beside the one that sends: a link carries 255.
pub const IDLE_MAX: u16 = 254;

/// What is counted for each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The driver's part: a WRITE and a message are posted, the doorbell rings.
    Provider,
    /// A whole pass of a worker: an application in it writes, the worker plans, posts, rings.
    Worker,
    /// A request and its answer of the same size, both workers, without credits.
    Exchange,
    /// The same with credits.
    Credits,
}

impl Level {
    /// All, from the inside out.
    pub const ALL: [Level; 4] = [
        Level::Provider,
        Level::Worker,
        Level::Exchange,
        Level::Credits,
    ];

    /// The function that is counted; no other function has this in its name.
    #[must_use]
    pub const fn counted_function(self) -> &'static str {
        match self {
            Level::Provider => "counted_posting",
            Level::Worker => "counted_pass",
            Level::Exchange | Level::Credits => "counted_exchange",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Provider => "provider",
            Level::Worker => "worker",
            Level::Exchange => "exchange",
            Level::Credits => "credits",
        })
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Level, String> {
        let found = Level::ALL
            .into_iter()
            .find(|level| level.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is no level: provider, worker, exchange or credits"))
    }
}

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// What is counted.
    pub level: Level,
    /// What goes inline.
    pub mode: InlineUse,
    /// How many messages.
    pub messages: u64,
    /// How many connections lie idle on the worker beside the one that sends; at most
    /// [`IDLE_MAX`]. A driver knows no connections.
    pub idle: u16,
}

/// Sends the messages.
///
/// # Errors
///
/// Something was refused, or not everything arrived as it was sent.
pub fn run(workload: &Workload) -> Result<()> {
    ensure!(
        workload.idle <= IDLE_MAX,
        "{} idle connections are too many: at most {IDLE_MAX}",
        workload.idle
    );
    let exchange = |flow| exchanging::run(workload.mode, flow, workload.messages, workload.idle);
    match workload.level {
        Level::Provider => posting::run(workload.mode, workload.messages),
        Level::Worker => working::run(workload.mode, workload.messages, workload.idle),
        Level::Exchange => exchange(Flow::Without),
        Level::Credits => exchange(Flow::Credits),
    }
}

/// Sizes of both queue pairs.
const CAPS: QpCaps = QpCaps {
    send_wr: 64,
    recv_wr: 64,
    send_sge: 2,
    recv_sge: 1,
    inline_bytes: 256,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_arrives_in_every_mode() {
        for level in Level::ALL {
            for mode in InlineUse::ALL {
                let workload = Workload {
                    level,
                    mode: *mode,
                    messages: 2000,
                    idle: 3,
                };
                run(&workload).unwrap_or_else(|error| panic!("{workload:?}: {error:#}"));
            }
        }
    }

    #[test]
    fn more_idle_connections_than_a_link_carries_are_refused() {
        let workload = Workload {
            level: Level::Worker,
            mode: InlineUse::On,
            messages: 1,
            idle: IDLE_MAX + 1,
        };
        assert!(run(&workload).unwrap_err().to_string().contains("254"));
    }

    #[test]
    fn levels_are_read_as_they_are_written() {
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!("wire".parse::<Level>().is_err());
    }
}
