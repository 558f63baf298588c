//! What a search has found, and what it says about the device.

use pollux_provider::{Errno, QpCaps};

use super::Wish;
use crate::view::{Found, InlineDepths, InlineTrade, InlineTry, InlineView};

/// One queue pair that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Inline size asked for, in bytes.
    pub asked_bytes: u32,
    /// What the device answered.
    pub answer: Answer,
}

/// What a device answers to a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A queue pair with so many bytes inline.
    Granted(u32),
    /// None, for this reason.
    Refused(Errno),
}

/// Inline data that the device had no room for at the depth asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trade {
    /// Depth of the send queue, in work requests.
    pub send_wr: u32,
    /// Largest inline size that was refused for lack of room, in bytes.
    pub refused_bytes: u32,
    /// How: ENOMEM or ENOSPC.
    pub errno: Errno,
}

/// Depths as granted, where they are not those asked for. In work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherDepths {
    /// Send queue.
    pub send_wr: u32,
    /// Receive queue.
    pub recv_wr: u32,
}

/// How a queue pair came to its inline size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What was wanted.
    pub wish: Wish,
    /// Inline size asked for when the device accepted, in bytes.
    pub asked_bytes: u32,
    /// What the queue pair has. Only this counts.
    pub granted: QpCaps,
    /// How the size was found.
    pub found: Found,
    /// Every creation, in order; the last one is the queue pair's own.
    pub trials: Vec<Trial>,
}

impl Outcome {
    /// What was traded for depth: set if more than what is granted was refused for lack of room,
    /// not as a size that the device does not have.
    #[must_use]
    pub fn trade(&self) -> Option<Trade> {
        let refusals = self.trials.iter().filter_map(|trial| match trial.answer {
            Answer::Refused(errno @ (Errno::NOMEM | Errno::NOSPC)) => Some(Trade {
                send_wr: self.wish.shape.send_wr,
                refused_bytes: trial.asked_bytes,
                errno,
            }),
            Answer::Refused(_) | Answer::Granted(_) => None,
        });
        refusals
            .filter(|trade| trade.refused_bytes > self.granted.inline_bytes)
            .max_by_key(|trade| trade.refused_bytes)
    }

    /// The depths, if they are not those asked for.
    #[must_use]
    pub fn other_depths(&self) -> Option<OtherDepths> {
        let (asked, granted) = (self.wish.shape, self.granted);
        let same = (asked.send_wr, asked.recv_wr) == (granted.send_wr, granted.recv_wr);
        (!same).then_some(OtherDepths {
            send_wr: granted.send_wr,
            recv_wr: granted.recv_wr,
        })
    }
}

/// An error number as manuals name it.
pub(super) fn errno_name(errno: Errno) -> String {
    let name = match errno {
        Errno::INVAL => "EINVAL",
        Errno::NOMEM => "ENOMEM",
        Errno::NOSPC => "ENOSPC",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        other => return format!("errno {}", other.raw_os_error()),
    };
    name.to_string()
}

impl From<&Outcome> for InlineView {
    fn from(outcome: &Outcome) -> InlineView {
        let shape = outcome.wish.shape;
        let tries = outcome.trials.iter().map(|trial| {
            let (granted_bytes, errno) = match trial.answer {
                Answer::Granted(bytes) => (Some(bytes), None),
                Answer::Refused(errno) => (None, Some(errno_name(errno))),
            };
            InlineTry {
                asked_bytes: trial.asked_bytes,
                granted_bytes,
                errno,
            }
        });
        InlineView {
            asked_bytes: outcome.wish.inline_bytes,
            granted_bytes: outcome.granted.inline_bytes,
            found: outcome.found,
            attempts: u32::try_from(outcome.trials.len()).unwrap_or(u32::MAX),
            tries: tries.collect(),
            trade: outcome.trade().map(|trade| InlineTrade {
                send_wr: trade.send_wr,
                refused_bytes: trade.refused_bytes,
                errno: errno_name(trade.errno),
            }),
            depths: outcome.other_depths().map(|granted| InlineDepths {
                asked_send_wr: shape.send_wr,
                asked_recv_wr: shape.recv_wr,
                granted_send_wr: granted.send_wr,
                granted_recv_wr: granted.recv_wr,
            }),
        }
    }
}
