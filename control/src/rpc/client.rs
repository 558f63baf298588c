//! The blocking end for programs that ask: one call at a time, each with a time limit.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Method, RpcError};
use crate::unix_socket::{by, peer_pid};

/// How long an appliance may take to answer a call that it answers soon.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest reply that is taken, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// How long to wait before a full queue of the listener is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no socket.
    #[error(
        "no appliance is running (no socket at {}); start polluxd or give --socket",
        path.display()
    )]
    NoSocket {
        /// Where the socket should be.
        path: PathBuf,
    },
    /// There is a socket that nobody serves.
    #[error(
        "no appliance is running (nobody answers on {}, its polluxd has died); start polluxd or \
         give --socket",
        path.display()
    )]
    Stale {
        /// The socket.
        path: PathBuf,
    },
    /// There is something else than a stream socket.
    #[error("{} is not a control socket ({error}); give another with --socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The socket belongs to somebody else.
    #[error(
        "not allowed to use {} ({error}); run as the user of the appliance, or as root",
        path.display()
    )]
    NotAllowed {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The appliance did not answer in time.
    #[error(
        "the appliance{} did not answer within {} on {}; it hangs or is stopped",
        by(*pid),
        seconds(*limit),
        path.display()
    )]
    TimedOut {
        /// Process id of the appliance, when known.
        pid: Option<u32>,
        /// The limit.
        limit: Duration,
        /// The socket.
        path: PathBuf,
    },
    /// The appliance closed the connection without an answer.
    #[error("the appliance{} closed {} without an answer; it has stopped", by(*pid), path.display())]
    Closed {
        /// Process id of the appliance, when known.
        pid: Option<u32>,
        /// The socket.
        path: PathBuf,
    },
    /// What came back is no answer to what was asked.
    #[error("{} is served by something else than polluxd: {what}", path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The appliance answered with an error.
    #[error(transparent)]
    Rpc(#[from] RpcError),
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs_f64())
}

/// A connection to the control socket of an appliance.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    path: PathBuf,
    pid: Option<u32>,
    count: u64,
    inbox: Vec<u8>,
}

impl Client {
    /// Connects, within `limit`.
    ///
    /// # Errors
    /// Nobody is there, or not in time.
    pub fn connect(path: &Path, limit: Duration) -> Result<Client, ClientError> {
        let path = path.to_path_buf();
        let io = |action, error: Errno| ClientError::Io {
            action,
            path: path.clone(),
            error: error.into(),
        };
        let deadline = Instant::now() + limit;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|error| io("make a socket for", error))?;
        let address =
            SocketAddrUnix::new(&path).map_err(|error| io("use the socket path", error))?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => break,
                // The queue of the listener is full: nobody accepts at the moment.
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY),
                Err(Errno::AGAIN) => {
                    return Err(ClientError::TimedOut {
                        pid: None,
                        limit,
                        path,
                    });
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOENT | Errno::NOTDIR) => return Err(ClientError::NoSocket { path }),
                Err(Errno::CONNREFUSED) => return Err(refused(path)),
                Err(error @ Errno::PROTOTYPE) => {
                    return Err(ClientError::NotASocket {
                        path,
                        error: error.into(),
                    });
                }
                Err(error @ (Errno::ACCESS | Errno::PERM)) => {
                    return Err(ClientError::NotAllowed {
                        path,
                        error: error.into(),
                    });
                }
                Err(error) => return Err(io("connect to", error)),
            }
        }
        let pid = peer_pid(&socket);
        Ok(Client {
            socket,
            path,
            pid,
            count: 0,
            inbox: Vec::new(),
        })
    }

    /// Process id of the appliance, as the kernel tells it.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Calls a method and waits for its answer at most for `limit`.
    ///
    /// # Errors
    /// The appliance's error, or none came.
    pub fn call(
        &mut self,
        method: Method,
        params: Value,
        limit: Duration,
    ) -> Result<Value, ClientError> {
        let deadline = Instant::now() + limit;
        self.count += 1;
        let id = self.count;
        let mut line =
            json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        line.push('\n');
        self.send(line.as_bytes(), deadline, limit)?;
        loop {
            let line = self.line(deadline, limit)?;
            let reply: Value = serde_json::from_slice(&line)
                .map_err(|error| self.no_answer(format!("its reply is no JSON: {error}")))?;
            // An error without id answers a line that the server could not read; there is only
            // ours.
            if reply["id"] != json!(id) && !reply["id"].is_null() {
                continue;
            }
            if let Some(error) = reply.get("error") {
                let error = serde_json::from_value::<RpcError>(error.clone())
                    .map_err(|error| self.no_answer(format!("its error is none: {error}")))?;
                return Err(ClientError::Rpc(error));
            }
            return match reply.get("result") {
                Some(result) => Ok(result.clone()),
                None => Err(self.no_answer("its reply has no result".to_string())),
            };
        }
    }

    /// As [`Client::call`], with the answer as its type.
    ///
    /// # Errors
    /// As [`Client::call`]; also when the answer is not of the type, as that of another version.
    pub fn call_as<T: DeserializeOwned>(
        &mut self,
        method: Method,
        params: Value,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let result = self.call(method, params, limit)?;
        serde_json::from_value(result).map_err(|error| {
            self.no_answer(format!(
                "its answer to {method} is of another version: {error}"
            ))
        })
    }

    fn send(&mut self, bytes: &[u8], by: Instant, limit: Duration) -> Result<(), ClientError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, by, limit)?,
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    // The server may have said why before it closed; reading tells.
                    return Ok(());
                }
                Err(error) => return Err(self.io("write to", error)),
            }
        }
        Ok(())
    }

    fn line(&mut self, by: Instant, limit: Duration) -> Result<Vec<u8>, ClientError> {
        let mut searched = 0;
        loop {
            let end = self.inbox[searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            if let Some(end) = end.map(|at| at + searched) {
                let mut line: Vec<u8> = self.inbox.drain(..=end).collect();
                line.truncate(end);
                return Ok(line);
            }
            searched = self.inbox.len();
            if searched > REPLY_BYTES_MAX {
                let what = format!("its reply is longer than {REPLY_BYTES_MAX} bytes");
                return Err(self.no_answer(what));
            }
            let mut bytes = [0; 16 << 10];
            match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => {
                    return Err(ClientError::Closed {
                        pid: self.pid,
                        path: self.path.clone(),
                    });
                }
                Ok((_, count)) => self.inbox.extend_from_slice(&bytes[..count]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, by, limit)?,
                Err(error) => return Err(self.io("read from", error)),
            }
        }
    }

    /// Waits until the socket is ready, or the time is over.
    fn wait(&self, what: PollFlags, by: Instant, limit: Duration) -> Result<(), ClientError> {
        let left = by.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let path = self.path.clone();
            return Err(ClientError::TimedOut {
                pid: self.pid,
                limit,
                path,
            });
        }
        let left = Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        match poll(&mut [PollFd::new(&self.socket, what)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(self.io("wait on", error)),
        }
    }

    fn io(&self, action: &'static str, error: Errno) -> ClientError {
        ClientError::Io {
            action,
            path: self.path.clone(),
            error: error.into(),
        }
    }

    fn no_answer(&self, what: String) -> ClientError {
        ClientError::NoAnswer {
            path: self.path.clone(),
            what,
        }
    }
}

/// The kernel refuses a connection both to a dead socket and to what is no socket at all.
fn refused(path: PathBuf) -> ClientError {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::metadata(&path) {
        Ok(meta) if !meta.file_type().is_socket() => ClientError::NotASocket {
            path,
            error: io::Error::other("it is no socket"),
        },
        _ => ClientError::Stale { path },
    }
}
