//! What can go wrong when a program joins the appliance or hands it a connection.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::layout::HeaderError;
use crate::message::MessageError;
use pollux_ring::{SegmentError, WakeError};

/// Why a session could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Nobody listens at the path.
    #[error(
        "no appliance answers on {}; start polluxd, or give the path of its attach socket",
        path.display()
    )]
    NoAppliance {
        /// The path tried.
        path: PathBuf,
    },
    /// The socket may not be used by this user.
    #[error(
        "the attach socket {} may not be used by this user; run as the user of polluxd or change \
         the permissions of the socket",
        path.display()
    )]
    Denied {
        /// The path tried.
        path: PathBuf,
    },
    /// Another failure of the socket.
    #[error("cannot use the attach socket {}: {error}", path.display())]
    Socket {
        /// The path tried.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Somebody listens, but does not answer.
    #[error(
        "what listens on {} did not answer within {after:?}; see whether polluxd is stopped",
        path.display()
    )]
    NoAnswer {
        /// The path tried.
        path: PathBuf,
        /// How long the program waited.
        after: Duration,
    },
    /// The appliance does not want the session.
    #[error("the appliance refuses the session: {reason}")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// The appliance is of another version.
    #[error(
        "the appliance speaks version {theirs} of the attach protocol, this program version \
         {ours}; use programs and appliance of one release"
    )]
    Version {
        /// The appliance's version.
        theirs: u32,
        /// The program's version.
        ours: u32,
    },
    /// The answer is no message.
    #[error("the appliance sent nonsense: {0}")]
    Message(#[from] MessageError),
    /// The answer is a message that does not belong here.
    #[error("the appliance answered Hello with another message than Welcome or Refused")]
    Unexpected,
    /// The session's memory cannot be mapped.
    #[error("cannot map the session's memory: {0}")]
    Segment(#[from] SegmentError),
    /// The session's memory is not what it should be.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Descriptors for waking are not to be had.
    #[error(transparent)]
    Wake(#[from] WakeError),
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        let kind = match &error {
            OpenError::NoAppliance { .. } => io::ErrorKind::NotFound,
            OpenError::Denied { .. } => io::ErrorKind::PermissionDenied,
            OpenError::Socket { error, .. } => error.kind(),
            OpenError::NoAnswer { .. } => io::ErrorKind::TimedOut,
            OpenError::Refused { .. } => io::ErrorKind::ConnectionRefused,
            OpenError::Version { .. }
            | OpenError::Message(_)
            | OpenError::Unexpected
            | OpenError::Segment(_)
            | OpenError::Header(_)
            | OpenError::Wake(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Why a TCP connection was lost while it was being upgraded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UpgradeError {
    /// The appliance is gone.
    #[error("the appliance is gone; open a new session")]
    Gone,
    /// The handshake failed in a way that leaves no TCP connection to fall back to.
    #[error("the handshake failed: {reason}")]
    Failed {
        /// What a system call would have returned.
        errno: i32,
        /// The reason in words.
        reason: String,
    },
    /// The appliance did not decide in time.
    #[error("the appliance did not decide within {after:?}; the connection was given up")]
    TimedOut {
        /// How long the program waited.
        after: Duration,
    },
    /// The program's side has no means for it.
    #[error("cannot hand the connection to the appliance: {0}")]
    System(Errno),
}

impl From<UpgradeError> for io::Error {
    fn from(error: UpgradeError) -> io::Error {
        let kind = match &error {
            UpgradeError::Gone => io::ErrorKind::ConnectionReset,
            UpgradeError::Failed { errno, .. } => io::Error::from_raw_os_error(*errno).kind(),
            UpgradeError::TimedOut { .. } => io::ErrorKind::TimedOut,
            UpgradeError::System(errno) => errno.kind(),
        };
        io::Error::new(kind, error)
    }
}
