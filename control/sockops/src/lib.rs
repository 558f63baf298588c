//! The SMC option in TCP handshakes, from user space.
//!
//! A host that speaks SMC says so by an experimental TCP option on its SYN and SYN-ACK (RFC 7609, 3.1), and
//! speaks it on a connection only if both carried it. The kernel writes and reads the option for sockets of
//! its AF_SMC. For others a BPF program does: it is called at the moments of a TCP handshake
//! (`BPF_PROG_TYPE_SOCK_OPS`, since Linux 5.10 with header options) of all sockets that were made in a
//! cgroup, and leaves alone those that nobody has marked.
//!
//! [`SynOption::attach`] loads the program, [`SynOption::mark`] marks a socket before it connects or listens,
//! and [`SynOption::answer`] tells what the other side's handshake carried. The program is attached by a
//! link that goes with the process, so a crash leaves nothing behind: later connections are plain TCP.

mod assembler;
mod btf;
mod cgroup;
mod program;
#[allow(
    unsafe_code,
    reason = "bpf(2) has no safe wrapper; the calls of this crate are here"
)]
mod sys;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub use cgroup::{CgroupError, own_cgroup};

/// What the handshake of a marked socket has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Both sides' segments carried the option: the peer expects SMC.
    Speaks,
    /// The peer's did not, or ours could not (SYN cookies, no room): the connection is plain TCP.
    Silent,
    /// The program was not called: the socket is outside the cgroup, or not connected.
    Unseen,
}

/// A step of [`SynOption::attach`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Types of the map.
    Types,
    /// The marks of sockets.
    Map,
    /// The program itself.
    Program,
    /// Its attachment to the cgroup.
    Link,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Step::Types => "load the types of a BPF map",
            Step::Map => "make a BPF map for sockets",
            Step::Program => "load a BPF program",
            Step::Link => "attach a BPF program to the cgroup",
        })
    }
}

/// Why there is no SMC option for sockets of this process.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The process may not.
    #[error(
        "may not {step}: {errno}; it takes CAP_BPF and CAP_NET_ADMIN (for a systemd unit: \
         AmbientCapabilities=CAP_BPF CAP_NET_ADMIN)"
    )]
    NotPermitted {
        /// What it may not do.
        step: Step,
        /// As the kernel said it.
        errno: Errno,
    },
    /// The kernel refuses a step for another reason.
    #[error("cannot {step}: {errno}; Linux 5.10 and later can, with CONFIG_CGROUP_BPF{log}")]
    Refused {
        /// What it cannot do.
        step: Step,
        /// As the kernel said it.
        errno: Errno,
        /// The last line of what the kernel's verifier printed, behind a separator; or nothing.
        log: String,
    },
    /// The folder is none of a cgroup2 file system, or cannot be opened.
    #[error("cannot open the cgroup {path:?}: {errno}; it takes a folder of a cgroup2 file system")]
    Cgroup {
        /// The folder.
        path: PathBuf,
        /// As the kernel said it.
        errno: Errno,
    },
}

/// The program, attached. It is detached when this is dropped.
#[derive(Debug)]
pub struct SynOption {
    /// The marks: a number of [`program`] for each marked socket.
    marks: OwnedFd,
    _link: OwnedFd,
}

impl SynOption {
    /// Loads the program and attaches it to a cgroup, by the path of its folder. Sockets that were made in
    /// it or below it, and from now on, can be marked.
    ///
    /// # Errors
    /// [`AttachError`]: nothing was left attached.
    pub fn attach(cgroup: &Path) -> Result<SynOption, AttachError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(cgroup, flags, Mode::empty()).map_err(|errno| {
            AttachError::Cgroup {
                path: cgroup.to_owned(),
                errno,
            }
        })?;
        let refused = |step: Step| {
            move |errno: Errno| match errno {
                Errno::PERM | Errno::ACCESS => AttachError::NotPermitted { step, errno },
                errno => AttachError::Refused {
                    step,
                    errno,
                    log: String::new(),
                },
            }
        };
        let types = sys::load_btf(&btf::int()).map_err(refused(Step::Types))?;
        let marks = sys::create_socket_map(types.as_fd(), btf::INT).map_err(refused(Step::Map))?;
        let text = program::text(marks.as_fd());
        let program = sys::load_sockops(&text).map_err(|(errno, log)| match errno {
            // A program that the verifier does not like is refused with EACCES as well.
            Errno::PERM => AttachError::NotPermitted {
                step: Step::Program,
                errno,
            },
            errno => AttachError::Refused {
                step: Step::Program,
                errno,
                log: log.map_or_else(String::new, |line| format!(" (verifier: {line})")),
            },
        })?;
        let link = sys::link_sockops(program.as_fd(), folder.as_fd()).map_err(|errno| {
            // The kernel's way of saying that the folder is no cgroup.
            if errno == Errno::BADF {
                return AttachError::Cgroup {
                    path: cgroup.to_owned(),
                    errno,
                };
            }
            refused(Step::Link)(errno)
        })?;
        Ok(SynOption { marks, _link: link })
    }

    /// Marks a TCP socket before it connects or listens: its SYN, and each SYN-ACK that answers a SYN with
    /// the option, will carry the option. Connections that a marked listener accepts need no mark.
    ///
    /// # Errors
    /// That of the kernel; `ENOMEM` mostly.
    pub fn mark(&self, socket: impl AsFd) -> io::Result<()> {
        sys::set(self.marks.as_fd(), socket.as_fd(), program::MARKED).map_err(io::Error::from)
    }

    /// What the handshake of a connection has shown: of a marked socket that has connected, or one that a
    /// marked listener has accepted.
    ///
    /// # Errors
    /// That of the kernel; `EBADF` and `ENOTSOCK` mostly.
    pub fn answer(&self, socket: impl AsFd) -> io::Result<Answer> {
        match sys::get(self.marks.as_fd(), socket.as_fd()) {
            Ok(program::SPEAKS) => Ok(Answer::Speaks),
            Ok(program::SILENT) => Ok(Answer::Silent),
            Ok(_) | Err(Errno::NOENT) => Ok(Answer::Unseen),
            Err(errno) => Err(errno.into()),
        }
    }
}
