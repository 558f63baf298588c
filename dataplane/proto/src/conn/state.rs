//! The states of a connection and how they follow each other (Linux `net/smc`, RFC 7609 section
//! 4.8).
//!
//! The transitions are pure functions of the state and of what both sides have said; the table of
//! all of them is in `tests/close_matrix.txt`. One departure: Linux changes its state when a close
//! flag is *sent*, here it changes when the application *wishes*, and the flag follows once the
//! send ring is drained.

use pollux_wire::cdc::ConnStateFlags;

use super::close::App;

/// State of a connection, with the kernel's numbers (as in `smcss` and the smc socket diagnosis).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ConnState {
    /// Both sides may send.
    Active = 1,
    /// Over. A last message may still be owed.
    Closed = 7,
    /// We closed or half closed first; nothing of that kind from the peer yet.
    PeerCloseWait1 = 20,
    /// As before, and the peer has half closed.
    PeerCloseWait2 = 21,
    /// The peer closed or half closed first; our application has done nothing yet.
    AppCloseWait1 = 22,
    /// As before, and we half closed.
    AppCloseWait2 = 23,
    /// We only half closed, the peer has closed; our close is outstanding.
    AppFinCloseWait = 24,
    /// The peer half closed, then we closed; the peer's close is outstanding.
    PeerFinCloseWait = 25,
    /// We reset; the peer's confirmation is outstanding.
    PeerAbortWait = 26,
    /// The peer reset; our application's close is outstanding.
    ProcessAbort = 27,
}

/// Whether `flags` hold one of the two flags after which a side takes no more data.
#[inline]
pub(super) const fn has_final(flags: ConnStateFlags) -> bool {
    flags.0 & (ConnStateFlags::CLOSED.0 | ConnStateFlags::ABNORMAL_CLOSE.0) != 0
}

impl ConnState {
    /// The kernel's number of the state.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The kernel's name of the state, without prefix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ConnState::Active => "ACTIVE",
            ConnState::Closed => "CLOSED",
            ConnState::PeerCloseWait1 => "PEERCLOSEWAIT1",
            ConnState::PeerCloseWait2 => "PEERCLOSEWAIT2",
            ConnState::AppCloseWait1 => "APPCLOSEWAIT1",
            ConnState::AppCloseWait2 => "APPCLOSEWAIT2",
            ConnState::AppFinCloseWait => "APPFINCLOSEWAIT",
            ConnState::PeerFinCloseWait => "PEERFINCLOSEWAIT",
            ConnState::PeerAbortWait => "PEERABORTWAIT",
            ConnState::ProcessAbort => "PROCESSABORT",
        }
    }

    /// After the application half closed.
    pub(super) fn after_shutdown_write(self) -> ConnState {
        match self {
            ConnState::Active => ConnState::PeerCloseWait1,
            ConnState::AppCloseWait1 => ConnState::AppCloseWait2,
            ConnState::Closed
            | ConnState::PeerCloseWait1
            | ConnState::PeerCloseWait2
            | ConnState::AppCloseWait2
            | ConnState::AppFinCloseWait
            | ConnState::PeerFinCloseWait
            | ConnState::PeerAbortWait
            | ConnState::ProcessAbort => self,
        }
    }

    /// After the application closed, the peer having said `peer`.
    pub(super) fn after_close(self, peer: ConnStateFlags) -> ConnState {
        match self {
            ConnState::Active => ConnState::PeerCloseWait1,
            ConnState::AppCloseWait1 | ConnState::AppCloseWait2 if has_final(peer) => {
                ConnState::Closed
            }
            ConnState::AppCloseWait1 | ConnState::AppCloseWait2 => ConnState::PeerFinCloseWait,
            ConnState::AppFinCloseWait | ConnState::ProcessAbort => ConnState::Closed,
            ConnState::Closed
            | ConnState::PeerCloseWait1
            | ConnState::PeerCloseWait2
            | ConnState::PeerFinCloseWait
            | ConnState::PeerAbortWait => self,
        }
    }

    /// After this side reset, the peer having said `peer`.
    ///
    /// Linux goes to closed at once. Waiting for the confirmation shows when the RMBE is free
    /// again.
    pub(super) fn after_abort(self, peer: ConnStateFlags) -> ConnState {
        match self {
            ConnState::Closed => self,
            ConnState::Active
            | ConnState::PeerCloseWait1
            | ConnState::PeerCloseWait2
            | ConnState::AppCloseWait1
            | ConnState::AppCloseWait2
            | ConnState::AppFinCloseWait
            | ConnState::PeerFinCloseWait
            | ConnState::PeerAbortWait
            | ConnState::ProcessAbort => {
                if has_final(peer) {
                    ConnState::Closed
                } else {
                    ConnState::PeerAbortWait
                }
            }
        }
    }

    /// After the peer half closed or closed, having said `peer` in all.
    pub(super) fn after_peer_end(self, peer: ConnStateFlags, app: App) -> ConnState {
        match self {
            ConnState::Active => ConnState::AppCloseWait1,
            ConnState::PeerCloseWait1 | ConnState::PeerCloseWait2 => {
                if !has_final(peer) {
                    ConnState::PeerCloseWait2
                } else if app == App::Closed {
                    ConnState::Closed
                } else {
                    ConnState::AppFinCloseWait
                }
            }
            // In the second, Linux waits for a reset. A normal close that crossed our reset ends it
            // as well.
            ConnState::PeerFinCloseWait | ConnState::PeerAbortWait if has_final(peer) => {
                ConnState::Closed
            }
            ConnState::Closed
            | ConnState::AppCloseWait1
            | ConnState::AppCloseWait2
            | ConnState::AppFinCloseWait
            | ConnState::PeerFinCloseWait
            | ConnState::PeerAbortWait
            | ConnState::ProcessAbort => self,
        }
    }

    /// After the peer reset.
    pub(super) fn after_peer_abort(self, app: App) -> ConnState {
        match self {
            ConnState::Active | ConnState::AppCloseWait1 | ConnState::AppFinCloseWait => {
                ConnState::ProcessAbort
            }
            ConnState::PeerCloseWait1 | ConnState::PeerCloseWait2 if app == App::Closed => {
                ConnState::Closed
            }
            ConnState::PeerCloseWait1 | ConnState::PeerCloseWait2 => ConnState::ProcessAbort,
            ConnState::AppCloseWait2 | ConnState::PeerFinCloseWait | ConnState::PeerAbortWait => {
                ConnState::Closed
            }
            ConnState::ProcessAbort | ConnState::Closed => self,
        }
    }
}

impl core::fmt::Display for ConnState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}
