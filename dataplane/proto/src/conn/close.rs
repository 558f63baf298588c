//! Ending: half close, close, reset, the peer's end, a dead link, a silent peer.

use core::time::Duration;

use pollux_wire::cdc::ConnStateFlags;

use super::state::has_final;
use super::tx::{Due, Sending};
use super::{Conn, ConnState, LinkHealth};
use crate::error::AbortReason;
use crate::event::EventSet;

/// How long the peer may take no byte of what is still to be sent after a close. Linux gives up
/// after 2 s and then loses the rest silently; here the connection is reset instead, later.
pub const DRAIN_GUARD: Duration = Duration::from_secs(60);

/// As [`DRAIN_GUARD`] when the close will be a reset anyway, because unread bytes remain: the 2 s
/// of Linux. Two sides that closed with both rings full would otherwise wait for each other that
/// long.
pub const DOOMED_DRAIN_GUARD: Duration = Duration::from_secs(2);

/// How long the peer may leave our close unanswered (RFC 7609 section 4.8.3 asks for a guard, Linux
/// has none). As long as TCP waits in FIN-WAIT-2 for a peer whose program does not close.
pub const CLOSE_GUARD: Duration = Duration::from_secs(60);

/// How long the peer may leave our reset unanswered. A kernel peer confirms only when its program
/// closes.
pub const ABORT_GUARD: Duration = Duration::from_secs(5);

/// A timer that the owner runs for the connection.
///
/// The owner compares [`Conn::timer`] after its calls: a timer that appears or changes is started
/// anew, one that disappears is stopped, one that stays runs on. On expiry it calls
/// [`Conn::handle_timeout`] and, if the same timer is still wanted, starts it anew.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConnTimer {
    /// The peer has to take bytes that were prepared before the close.
    Drain,
    /// The same, where unread bytes remain and a reset follows.
    DoomedDrain,
    /// The peer has to answer our close.
    Close,
    /// The peer has to confirm our reset.
    Abort,
}

impl ConnTimer {
    /// Time from start to expiry.
    #[must_use]
    pub const fn duration(self) -> Duration {
        match self {
            ConnTimer::Drain => DRAIN_GUARD,
            ConnTimer::DoomedDrain => DOOMED_DRAIN_GUARD,
            ConnTimer::Close => CLOSE_GUARD,
            ConnTimer::Abort => ABORT_GUARD,
        }
    }
}

/// How far the application has ended the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum App {
    Open,
    HalfClosed,
    Closed,
}

impl Conn {
    /// The application sends no more: after what is prepared, the peer sees the end of the stream.
    pub fn shutdown_write(&mut self) {
        if self.app != App::Open {
            return;
        }
        self.app = App::HalfClosed;
        self.end_sending();
        let next = self.state.after_shutdown_write();
        if next != self.state {
            self.owe(ConnStateFlags::SENDING_DONE);
            self.enter(next);
        }
    }

    /// The application is done with the connection, both ways.
    ///
    /// What is prepared is sent first. If unread bytes remain when that is done, the peer sees a
    /// reset.
    pub fn close(&mut self) {
        if self.app == App::Closed {
            return;
        }
        self.app = App::Closed;
        self.end_sending();
        self.drain_mark = self.sndbuf.sent();
        match self.state {
            // A reset of either side has been said or is owed already.
            ConnState::Closed | ConnState::PeerAbortWait | ConnState::ProcessAbort => {}
            ConnState::Active
            | ConnState::PeerCloseWait1
            | ConnState::PeerCloseWait2
            | ConnState::AppCloseWait1
            | ConnState::AppCloseWait2
            | ConnState::AppFinCloseWait
            | ConnState::PeerFinCloseWait => self.owe(ConnStateFlags::CLOSED),
        }
        self.enter(self.state.after_close(self.peer_flags));
    }

    /// The application resets the connection: unsent and unread bytes are lost.
    pub fn abort(&mut self) {
        self.app = App::Closed;
        self.reset(AbortReason::Local);
    }

    /// The peer has withdrawn its receive buffer (DELETE RKEY). One that has not ended the connection
    /// before does not have it, because its side of the handshake broke off, or has given it up: it
    /// will never answer, and the buffer is not ours to write into any more. As if it had reset.
    pub fn handle_peer_withdrew(&mut self) {
        if self.state == ConnState::Closed || has_final(self.peer_flags) {
            return;
        }
        self.peer_flags = self.peer_flags.union(ConnStateFlags::ABNORMAL_CLOSE);
        self.on_peer_abort();
    }

    /// The link of the connection failed for good. Nothing will be sent or received any more.
    pub fn handle_link_down(&mut self) {
        self.link = LinkHealth::Down;
        if self.is_finished() {
            return;
        }
        if self.state != ConnState::Closed {
            self.note_reset(AbortReason::LinkDown);
        }
        self.halt();
        self.due = Due::NOTHING;
        self.owed = ConnStateFlags::EMPTY;
        self.state = ConnState::Closed;
        self.events.raise(EventSet::CLOSED);
    }

    /// The timer that should be running.
    #[inline]
    #[must_use]
    pub fn timer(&self) -> Option<ConnTimer> {
        match self.state {
            ConnState::Active
            | ConnState::Closed
            | ConnState::AppCloseWait1
            | ConnState::AppCloseWait2
            | ConnState::AppFinCloseWait
            | ConnState::ProcessAbort => None,
            ConnState::PeerAbortWait => Some(ConnTimer::Abort),
            ConnState::PeerCloseWait1 | ConnState::PeerCloseWait2 | ConnState::PeerFinCloseWait => {
                match self.app {
                    // The program half closed and may listen for as long as it likes.
                    App::Open | App::HalfClosed => None,
                    App::Closed if self.sndbuf.is_drained() => Some(ConnTimer::Close),
                    App::Closed if self.rmbe.readable() > 0 => Some(ConnTimer::DoomedDrain),
                    App::Closed => Some(ConnTimer::Drain),
                }
            }
        }
    }

    /// The timer that [`Conn::timer`] named has expired.
    pub fn handle_timeout(&mut self) {
        match self.timer() {
            None => {}
            Some(ConnTimer::Drain | ConnTimer::DoomedDrain)
                if self.sndbuf.sent() > self.drain_mark =>
            {
                self.drain_mark = self.sndbuf.sent();
            }
            Some(ConnTimer::Drain | ConnTimer::DoomedDrain) => {
                let unsent = self.sndbuf.prepared() - self.sndbuf.sent();
                self.reset(AbortReason::DrainStalled { unsent });
            }
            Some(ConnTimer::Close) => {
                self.abort_reason.get_or_insert(AbortReason::PeerSilent);
                self.enter(ConnState::Closed);
            }
            Some(ConnTimer::Abort) => self.enter(ConnState::Closed),
        }
    }

    /// This side resets: the application's wish, a violation, a drain that stands still.
    #[cold]
    pub(super) fn reset(&mut self, reason: AbortReason) {
        match self.state {
            ConnState::Closed | ConnState::PeerAbortWait => return,
            ConnState::Active
            | ConnState::PeerCloseWait1
            | ConnState::PeerCloseWait2
            | ConnState::AppCloseWait1
            | ConnState::AppCloseWait2
            | ConnState::AppFinCloseWait
            | ConnState::PeerFinCloseWait
            | ConnState::ProcessAbort => {}
        }
        self.note_reset(reason);
        self.on_peer_gone();
        self.owe(ConnStateFlags::ABNORMAL_CLOSE);
        self.enter(self.state.after_abort(self.peer_flags));
    }

    /// The peer reset.
    ///
    /// Linux says its own abnormal close when its program closes. We say it at once, so that the
    /// peer knows early that we write no more; if we ended before, the peer knows.
    #[cold]
    pub(super) fn on_peer_abort(&mut self) {
        self.note_reset(AbortReason::Peer);
        self.on_peer_gone();
        if !has_final(self.said) {
            self.owe(ConnStateFlags::ABNORMAL_CLOSE);
        }
        self.enter(self.state.after_peer_abort(self.app));
    }

    /// Keeps the first reason, which is the one that matters, and tells the application once.
    fn note_reset(&mut self, reason: AbortReason) {
        if self.abort_reason.is_none() {
            self.abort_reason = Some(reason);
            self.events.raise(EventSet::RESET);
        }
    }

    /// Nobody takes bytes or updates any more.
    pub(super) fn on_peer_gone(&mut self) {
        self.halt();
        self.due.remove(Due::UPDATE);
    }

    /// Lets the application add no more to the stream.
    fn end_sending(&mut self) {
        if self.sending != Sending::Gone {
            self.sending = Sending::Ended;
        }
    }

    /// Owes the peer a connection state flag, unless we said it or reset before.
    fn owe(&mut self, flag: ConnStateFlags) {
        if self.said.contains(ConnStateFlags::ABNORMAL_CLOSE) || self.said.contains(flag) {
            return;
        }
        self.owed = self.owed.union(flag);
        if self.owed.contains(ConnStateFlags::ABNORMAL_CLOSE) {
            // A reset says it all.
            self.owed = self.owed.without(ConnStateFlags::CLOSED);
        }
        self.due.add(Due::FLAGS);
    }

    /// Goes to another state.
    pub(super) fn enter(&mut self, next: ConnState) {
        if next == self.state {
            return;
        }
        self.state = next;
        if next == ConnState::Closed {
            self.halt();
            self.due.remove(Due::UPDATE);
            if self.due == Due::NOTHING {
                self.events.raise(EventSet::CLOSED);
            }
        }
    }
}
