//! Work requests: each ends exactly once, in order, and the memory of one by reference stays as it is
//! until then.

use std::collections::VecDeque;

use pollux_provider::{Completion, Signal, WcOpcode, WcStatus, WrId};

use super::cursors::Announcements;

/// Where the bytes of a piece lie and what they were at the post.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) lkey: u32,
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) sum: u64,
}

/// A posted SEND or WRITE.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) wr: WrId,
    pub(crate) opcode: WcOpcode,
    pub(crate) signal: Signal,
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
