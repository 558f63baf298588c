//! Work requests: each ends exactly once, in order, and the memory of one by reference stays as it is
//! until it is executed.
//!
//! The contract says "until a completion covers it". The rules know better: what the peer has read is
//! executed, so its place may be used again at once (`proto/src/sndbuf.rs`). So the checker looks when
//! the SEND behind the WRITE completes at the target, and at completions that report a failure.

use std::collections::VecDeque;

use pollux_provider::{Completion, Sge, Signal, WcOpcode, WcStatus, WrId};

use super::cursors::Announcements;
use crate::book::{Shared, lock};
use crate::device::Registry;
use crate::numbers::mix;

/// Where the bytes of a piece lie and what they were at the post.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) registry: Shared<Registry>,
    pub(crate) lkey: u32,
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) sum: u64,
}

impl Piece {
    /// The piece as it is now; `None` if there is no such memory.
    pub(crate) fn of(registry: &Shared<Registry>, sge: &Sge) -> Option<Piece> {
        let Sge { addr, length, lkey } = *sge;
        let sum = sum(registry, lkey.0, (addr, length))?;
        Some(Piece {
            registry: registry.clone(),
            lkey: lkey.0,
            addr,
            length,
            sum,
        })
    }

    /// Whether the bytes are what they were. Memory that is gone is not looked at.
    pub(crate) fn is_unchanged(&self) -> bool {
        let now = sum(&self.registry, self.lkey, (self.addr, self.length));
        now.is_none_or(|sum| sum == self.sum)
    }
}

/// A number for the bytes of a piece.
fn sum(registry: &Shared<Registry>, lkey: u32, (addr, length): (u64, u32)) -> Option<u64> {
    let mut bytes = vec![0; length as usize];
    let found = lock(registry).copy_out(lkey, addr, &mut bytes);
    let word = |sum, chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(sum ^ u64::from_le_bytes(word))
    };
    found.then(|| bytes.chunks(8).fold(u64::from(length), word))
}

/// A posted SEND or WRITE.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) wr: WrId,
    pub(crate) opcode: WcOpcode,
    pub(crate) signal: Signal,
    /// Whether the target has executed it.
    pub(crate) executed: bool,
    /// The bytes it goes by reference to; none if inline.
    pub(crate) pieces: Vec<Piece>,
}

/// The books of one queue pair.
#[derive(Debug)]
pub(crate) struct QpBook {
    pub(crate) qpn: u32,
    pub(crate) send_wr: usize,
    pub(crate) inline_bytes: u32,
    pub(crate) sends: VecDeque<Sent>,
    pub(crate) receives: VecDeque<WrId>,
    /// A completion has told of an error.
    pub(crate) failed: bool,
    pub(crate) said: Announcements,
    /// "Receiver not ready" answers seen so far.
    pub(crate) rnrs: u64,
}

impl QpBook {
    /// Books for a queue pair with nothing posted.
    pub(crate) fn new(qpn: u32, send_wr: u32, inline_bytes: u32) -> QpBook {
        QpBook {
            qpn,
            send_wr: send_wr as usize,
            inline_bytes,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            failed: false,
            said: Announcements::default(),
            rnrs: 0,
        }
    }

    /// The target has taken one more SEND: it, and every WRITE before it, is executed. Gives the first
    /// piece that had been changed before.
    pub(crate) fn executed_send(&mut self) -> Option<Piece> {
        let mut changed = None;
        for sent in self.sends.iter_mut().filter(|sent| !sent.executed) {
            sent.executed = true;
            let piece = sent.pieces.iter().find(|piece| !piece.is_unchanged());
            changed = changed.or_else(|| piece.cloned());
            if sent.opcode == WcOpcode::Send {
                break;
            }
        }
        changed
    }

    /// Takes a completion of the driver; gives the requests that are over by it.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn complete(&mut self, completion: &Completion) -> Result<Vec<Sent>, String> {
        if completion.opcode.is_receive() {
            return self.complete_receive(completion).map(|()| Vec::new());
        }
        let wr = completion.wr_id;
        let Some(at) = self.sends.iter().position(|sent| sent.wr == wr) else {
            return Err(format!("{wr:?} ends, which is not outstanding"));
        };
        let over: Vec<Sent> = self.sends.drain(..=at).collect();
        let (last, before) = over.split_last().ok_or("nothing was outstanding")?;
        if let Some(skipped) = before.iter().find(|sent| sent.signal == Signal::Signaled) {
            return Err(format!(
                "{wr:?} ends before {:?}, posted earlier",
                skipped.wr
            ));
        }
        if completion.status == WcStatus::Success {
            if last.signal == Signal::Unsignaled {
                return Err(format!("{wr:?} completes and was not signalled"));
            }
            if self.failed {
                return Err(format!("{wr:?} succeeds after an error was reported"));
            }
        } else {
            if self.failed && !before.is_empty() {
                return Err(format!(
                    "{wr:?} is flushed, but not {:?} before it",
                    before[0].wr
                ));
            }
            self.failed = true;
        }
        if last.opcode != completion.opcode {
            return Err(format!(
                "{wr:?} was a {:?} and ends as a {:?}",
                last.opcode, completion.opcode
            ));
        }
        Ok(over)
    }

    fn complete_receive(&mut self, completion: &Completion) -> Result<(), String> {
        let wr = completion.wr_id;
        match self.receives.pop_front() {
            Some(expected) if expected == wr => {}
            other => {
                return Err(format!(
                    "receive {wr:?} ends, the oldest posted is {other:?}"
                ));
            }
        }
        self.failed |= completion.status != WcStatus::Success;
        Ok(())
    }
}
