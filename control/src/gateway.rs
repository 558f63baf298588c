//! Gateways: forwards between plain sockets and SMC, for programs that cannot attach.
//!
//! A forward from `tcp:` or `unix:` to `smc:` is the way in: it accepts plain connections, connects
//! to the peer by TCP and lets the appliance upgrade that connection. A forward from `smc:` to
//! `tcp:` or `unix:` is the way out: it accepts TCP, upgrades, and connects to the plain target.
//! A connection that stays on TCP is forwarded all the same.
//!
//! One thread, `pollux-gw`, serves all forwards. Towards the appliance it is an ordinary program:
//! it joins by the attach socket and reads and writes streams in shared memory. Bytes of a plain
//! socket are read into one scratch buffer and written on at once; only what the other side does
//! not take is kept, and while something is kept nothing more is read. So a slow reader is felt by
//! the writer, end to end, and an idle connection costs no buffer.
//!
//! How a connection ends is passed on: the end of one direction as the end of that direction, a
//! reset as a reset. A connection that cannot be forwarded is reset, with a line in the log.
//!
//! | module | is |
//! |---|---|
//! | `listen` | the listeners of the forwards, bound before the thread starts |
//! | `port_owner` | who has taken a TCP port, for the error |
//! | `socket` | one end of a forwarded connection, whatever carries it |
//! | `flow` | moving bytes from one end to the other |
//! | `pair` | a forwarded connection from accept to end, and the table of them |
//! | `engine` | the thread: what it waits for, in which order it works |
//! | `dispatch` | what becomes of a connection at each step |
//! | `figures` | what is counted |

mod dispatch;
mod engine;
mod figures;
mod flow;
mod listen;
mod pair;
pub(crate) mod port_owner;
mod socket;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pollux_ring::{Wake, WakeError};
use rustix::net::{Shutdown, shutdown};

use self::engine::Engine;
use self::figures::Reader;
use self::listen::Front;
use crate::config::{Endpoint, Forward};
use crate::syn_marks::SynMarks;
use crate::unix_socket::SocketError;

pub use self::figures::ForwardFigures;

/// Name of the thread.
const THREAD_NAME: &str = "pollux-gw";

/// How long the thread may take to reset what exists before its session is ended, which resets
/// the rest.
const STOP_GRACE: Duration = Duration::from_millis(200);

/// All forwards of an appliance, served by one thread. Dropping the value stops them.
#[derive(Debug)]
pub struct Gateway {
    link: Arc<Link>,
    forwards: Vec<Served>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<Infallible>,
}

/// What the start of a gateway would find out about where a forward listens, without taking anything.
/// `made` are folders that will have been made before.
///
/// # Errors
/// As [`Gateway::start`].
pub(crate) fn look(forward: &Forward, made: &[&Path]) -> Result<(), GatewayError> {
    Front::look(forward, made)
}

/// A forward as it is served.
#[derive(Debug)]
struct Served {
    name: String,
    listen: Endpoint,
    reader: Reader,
}

/// Why forwards cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Neither end or both ends are SMC.
    #[error(
        "forward {name:?} goes from {listen} to {connect}; legal: tcp: or unix: to smc:, or smc: \
         to tcp: or unix:"
    )]
    Ends {
        /// The forward.
        name: String,
        /// Where it listens.
        listen: Endpoint,
        /// Where it connects.
        connect: Endpoint,
    },
    /// Somebody else listens there.
    #[error(
        "forward {name:?}: {address} is in use{}; stop that program, or choose another address \
         with forward.listen",
        by(*pid)
    )]
    InUse {
        /// The forward.
        name: String,
        /// Where it should listen.
        address: SocketAddr,
        /// Process id of the program that listens there, when it can be found.
        pid: Option<u32>,
    },
    /// The kernel refuses the address.
    #[error("forward {name:?}: cannot listen on {address} (forward.listen): {error}")]
    Listen {
        /// The forward.
        name: String,
        /// Where it should listen.
        address: SocketAddr,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Somebody serves the path.
    #[error(
        "forward {name:?}: {} is in use{}; stop that program, or choose another path with \
         forward.listen",
        path.display(),
        by(*pid)
    )]
    PathInUse {
        /// The forward.
        name: String,
        /// Where it should listen.
        path: PathBuf,
        /// Process id of the program that listens there, when the kernel tells.
        pid: Option<u32>,
    },
    /// The path cannot be listened on.
    #[error("forward {name:?}: {error}")]
    Path {
        /// The forward.
        name: String,
        /// What is wrong with it.
        error: SocketError,
    },
    /// The thread has not got what it needs.
    #[error("cannot start the gateway: {what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
    /// No descriptor for waking the thread.
    #[error("cannot start the gateway: {0}")]
    Wake(#[from] WakeError),
}

fn by(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" by process {pid}"))
}

/// What the thread and the holder of the [`Gateway`] share.
#[derive(Debug)]
struct Link {
    attach_socket: PathBuf,
    syn_marks: SynMarks,
    spin: Duration,
    stopping: AtomicBool,
    wake: Wake,
    /// The control socket of the session in use.
    control: Mutex<Option<OwnedFd>>,
}

impl Link {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn control(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread end.
    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // An eventfd that is full is a signal that is still there.
        let _ = self.wake.signal();
    }

    /// Ends the session from outside: the thread does not wait for the appliance any more.
    fn cut(&self) {
        if let Some(control) = self.control().take() {
            // A socket whose other end is gone is down already.
            let _ = shutdown(&control, Shutdown::Both);
        }
    }
}

impl Gateway {
    /// Listens for all `forwards` and starts the thread that serves them. The thread joins the
    /// appliance at `attach_socket` by itself, also later and again, should it have to wait; it
    /// accepts nothing before it has joined. It polls for `spin` before it sleeps.
    ///
    /// # Errors
    /// An address that cannot be listened on, or the kernel's refusal; nothing is left behind.
    pub fn start(
        forwards: &[Forward],
        syn_marks: &SynMarks,
        attach_socket: &Path,
        spin: Duration,
    ) -> Result<Gateway, GatewayError> {
        let fronts: Vec<Front> = {
            let bind = |forward| Front::bind(forward, syn_marks);
            forwards.iter().map(bind).collect::<Result<_, _>>()?
        };
        let mut served = Vec::with_capacity(fronts.len());
        for front in &fronts {
            let (name, listen) = (front.name.clone(), front.listen.clone());
            tracing::info!(forward = name, %listen, connect = %front.connect, "forwarding");
            served.push(Served {
                name,
                listen,
                reader: front.figures.reader(),
            });
        }
        let link = Arc::new(Link {
            attach_socket: attach_socket.to_path_buf(),
            syn_marks: syn_marks.clone(),
            spin,
            stopping: AtomicBool::new(false),
            wake: Wake::new()?,
            control: Mutex::new(None),
        });
        let engine =
            Engine::new(Arc::clone(&link), fronts).map_err(|error| GatewayError::System {
                what: "cannot make an event loop",
                error,
            })?;
        let (running, ended) = channel();
        let thread = std::thread::Builder::new()
            .name(THREAD_NAME.to_string())
            .spawn(move || {
                engine.run();
                drop(running);
            })
            .map_err(|error| GatewayError::System {
                what: "cannot start a thread",
                error,
            })?;
        Ok(Gateway {
            link,
            forwards: served,
            thread: Some(thread),
            ended,
        })
    }

    /// Ends the thread: no connection is accepted any more, those that exist are reset. Does not
    /// need the appliance's control thread and may be called by it.
    pub fn stop(self) {
        drop(self);
    }

    /// What was counted, one entry for each forward in the order of the configuration.
    #[must_use]
    pub fn figures(&self) -> Vec<ForwardFigures> {
        let figures = |served: &Served| served.reader.figures(&served.name);
        self.forwards.iter().map(figures).collect()
    }

    /// Where each forward listens, in the order of the configuration, with the port that the
    /// kernel chose for port 0.
    pub fn listening(&self) -> impl Iterator<Item = &Endpoint> {
        self.forwards.iter().map(|served| &served.listen)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.link.stop();
        // It may wait for the appliance, whose control thread may be the one that waits here.
        if self.ended.recv_timeout(STOP_GRACE) == Err(RecvTimeoutError::Timeout) {
            self.link.cut();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the gateway's thread has panicked");
        }
    }
}

#[cfg(test)]
mod tests;
