//! What client and server do alike: wait, decline, wait for the link, and end.

use pollux_wire::clc::{Decline, Diagnosis, Header, Kind, MESSAGE_BYTES_MAX, Version};

use super::{
    Agreed, Bytes, DECLINE_WAIT, HandshakeError, Local, Outcome, Output, Waiting, sync_of,
};
use crate::diagnosis::{DecidedBy, Fallback};
use crate::time::Instant;
use arrayvec::ArrayVec;

/// The part of a handshake in which the two sides differ. Implemented by the states of
/// [`Client`](super::Client) and [`Server`](super::Server); nothing else needs it.
pub trait Side: Clone + core::fmt::Debug {
    /// What this side asks its owner.
    type Question: Clone + PartialEq + core::fmt::Debug;

    /// When patience ends.
    fn until(&self) -> Option<Instant>;

    /// The message that is due; [`Waiting::Decline`] while the owner is asked.
    fn waiting(&self) -> Waiting;

    /// The version of a Decline sent now.
    fn version(&self) -> Version;

    /// The message that was due has come.
    fn on_message(handshake: &mut Handshake<Self>, header: &Header, message: &[u8]);
}

/// One handshake. See the [module text](super) for how to drive it.
#[derive(Clone, Debug)]
pub struct Handshake<S: Side> {
    pub(super) local: Local,
    pub(super) state: State<S>,
    /// Orders not yet taken. One call puts out at most a message and a result; the owner takes them
    /// after each.
    outbox: ArrayVec<Output<S::Question>, 4>,
}

#[derive(Clone, Debug)]
pub(super) enum State<S> {
    /// The messages of CLC are being exchanged.
    Talking(S),
    /// They were; on a first contact, the link is being confirmed.
    LinkDue { agreed: Agreed },
    /// The link failed; a Decline may explain it.
    DeclineDue {
        until: Instant,
        version: Version,
        diagnosis: Diagnosis,
    },
    /// The outcome was put out.
    Done,
}

impl<S: Side> Handshake<S> {
    pub(super) const fn start(local: Local, side: S) -> Handshake<S> {
        Handshake {
            local,
            state: State::Talking(side),
            outbox: ArrayVec::new_const(),
        }
    }

    /// The next order, until there is none.
    pub fn poll_output(&mut self) -> Option<Output<S::Question>> {
        self.outbox.pop_at(0)
    }

    /// When [`Handshake::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Talking(side) => side.until(),
            State::DeclineDue { until, .. } => Some(*until),
            State::LinkDue { .. } | State::Done => None,
        }
    }

    /// One whole message came from the peer.
    pub fn handle_message(&mut self, message: &[u8]) {
        let Some(waiting) = self.waiting() else {
            return;
        };
        let header = match Header::parse(message) {
            Ok(header) => header,
            Err(error) => return self.fail(error.into()),
        };
        let got = header.kind;
        if got == Kind::Decline {
            self.on_decline(message);
        } else if got == waiting.kind() {
            S::on_message(self, &header, message);
        } else {
            self.fail(HandshakeError::OutOfTurn { got, waiting });
        }
    }

    /// Time has come to [`Handshake::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        match &self.state {
            State::Talking(side) if side.until().is_some_and(|until| until <= now) => {
                let (waiting, wait) = (side.waiting(), self.local.wait);
                self.fail(HandshakeError::TimedOut { waiting, wait });
            }
            State::DeclineDue {
                until, diagnosis, ..
            } if *until <= now => {
                self.decline(*diagnosis);
            }
            State::Talking(_) | State::LinkDue { .. } | State::DeclineDue { .. } | State::Done => {}
        }
    }

    /// The peer closed the TCP stream, or it broke.
    pub fn handle_end(&mut self) {
        if let Some(waiting) = self.waiting() {
            self.fail(HandshakeError::Ended { waiting });
        }
    }

    /// Refuses, in answer to a question or at any time before the outcome: sends a Decline and
    /// falls back. Without effect if the handshake ended meanwhile.
    pub fn decline(&mut self, diagnosis: Diagnosis) {
        let version = match &self.state {
            State::Talking(side) => side.version(),
            State::LinkDue { agreed } => agreed.terms.version,
            State::DeclineDue { version, .. } => *version,
            State::Done => return,
        };
        self.decline_as(version, diagnosis);
    }

    /// The link of a first contact was confirmed: the handshake is complete.
    pub fn handle_link_confirmed(&mut self) {
        if let State::LinkDue { agreed } = self.state {
            self.finish(Outcome::Connected(agreed));
        }
    }

    /// The link of a first contact was not confirmed. Waits a second for the peer's Decline, then
    /// sends one with `diagnosis`.
    pub fn handle_link_failed(&mut self, now: Instant, diagnosis: Diagnosis) {
        if let State::LinkDue { agreed } = self.state {
            let (until, version) = (now.after(DECLINE_WAIT), agreed.terms.version);
            self.state = State::DeclineDue {
                until,
                version,
                diagnosis,
            };
        }
    }

    /// Whether the outcome is known; it may still lie in [`Handshake::poll_output`].
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// What is due, `None` at the end.
    fn waiting(&self) -> Option<Waiting> {
        match &self.state {
            State::Talking(side) => Some(side.waiting()),
            State::LinkDue { .. } | State::DeclineDue { .. } => Some(Waiting::Decline),
            State::Done => None,
        }
    }

    fn on_decline(&mut self, message: &[u8]) {
        match Decline::parse(message) {
            Ok(Decline {
                diagnosis, sync, ..
            }) => {
                let fallback = Fallback {
                    diagnosis,
                    by: DecidedBy::Peer,
                    sync,
                };
                self.finish(Outcome::Fallback(fallback));
            }
            Err(error) => self.fail(error.into()),
        }
    }

    /// Puts a question to the owner.
    pub(super) fn ask(&mut self, question: S::Question) {
        self.outbox.push(Output::Ask(question));
    }

    /// Sends what `emit` writes. What we emit fits and is legal by construction.
    pub(super) fn send(
        &mut self,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, pollux_wire::Error>,
    ) {
        let mut bytes = Bytes::from([0; MESSAGE_BYTES_MAX]);
        let len = emit(&mut bytes).expect("our own messages are legal and fit");
        bytes.truncate(len);
        self.outbox.push(Output::Send(bytes));
    }

    pub(super) fn decline_as(&mut self, version: Version, diagnosis: Diagnosis) {
        let decline = self.local.decline(version, diagnosis);
        self.send(|out| decline.emit(out));
        let (by, sync) = (DecidedBy::Local, sync_of(diagnosis));
        self.finish(Outcome::Fallback(Fallback {
            diagnosis,
            by,
            sync,
        }));
    }

    pub(super) fn fail(&mut self, error: HandshakeError) {
        self.finish(Outcome::Failed(error));
    }

    /// Ends the handshake: questions not yet taken are void.
    pub(super) fn finish(&mut self, outcome: Outcome) {
        self.state = State::Done;
        self.outbox
            .retain(|output| !matches!(output, Output::Ask(_)));
        self.outbox.push(Output::Done(outcome));
    }
}
