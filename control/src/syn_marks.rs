//! The SMC option of TCP handshakes: on which sockets, and what peers have answered.

use crate::config::{HandshakeConfig, PathChoice, SynOptionChoice};
use crate::exit::Fatal;
use crate::plane::Syn;
use pollux_sockops::{Answer, SynOption, own_cgroup};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

/// TCP connections that may wait to be accepted; the kernel's own limit is often lower.
const BACKLOG: i32 = 4096;

/// Marks sockets whose handshakes are to carry the option, if this process can have it. Clones share
/// one program of the kernel, which goes with the last of them.
#[derive(Clone, Debug, Default)]
pub struct SynMarks(Option<Arc<SynOption>>);

impl SynMarks {
    /// Loads what it takes, as the configuration says.
    ///
    /// # Errors
    /// It is required, and cannot be had.
    pub fn attach(config: &HandshakeConfig) -> Result<SynMarks, Fatal> {
        if config.syn_option == SynOptionChoice::Off {
            return Ok(SynMarks::default());
        }
        let attached = cgroup(config).and_then(|cgroup| {
            let option = SynOption::attach(&cgroup).map_err(|error| error.to_string())?;
            Ok((option, cgroup))
        });
        match (attached, config.syn_option) {
            (Ok((option, cgroup)), _) => {
                tracing::info!(cgroup = %cgroup.display(), "TCP handshakes carry the SMC option");
                Ok(SynMarks(Some(Arc::new(option))))
            }
            (Err(why), SynOptionChoice::Required) => Err(Fatal::os(format!(
                "no SMC option in TCP handshakes: {why}; handshake.syn_option = \"auto\" goes on without"
            ))),
            (Err(why), SynOptionChoice::Auto | SynOptionChoice::Off) => {
                tracing::info!(
                    reason = why,
                    "TCP handshakes carry no SMC option: Linux's AF_SMC stays on TCP towards this host, and \
                     SMC is offered to each [[peer]] only"
                );
                Ok(SynMarks::default())
            }
        }
    }

    /// Marks a TCP socket that is about to connect or to listen. Without the mark the peer stays on TCP, so
    /// a failure costs nothing else.
    pub fn mark(&self, socket: impl AsFd) {
        if let Some(option) = &self.0
            && let Err(error) = option.mark(socket)
        {
            tracing::debug!(%error, "a socket is not marked for the SMC option");
        }
    }

    /// What the handshake of a connected socket has shown.
    #[must_use]
    pub fn of(&self, socket: impl AsFd) -> Syn {
        let answer = self.0.as_ref().map(|option| option.answer(socket));
        match answer {
            Some(Ok(Answer::Speaks)) => Syn::Smc,
            Some(Ok(Answer::Silent | Answer::Unseen) | Err(_)) | None => Syn::Plain,
        }
    }

    /// Listens on an address, with a mark on the socket; what it accepts does not block unless asked to.
    ///
    /// # Errors
    /// As those of [`TcpListener::bind`].
    pub fn listen(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        // A port is free again at once, connections of its last owner or not.
        set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &address)?;
        self.mark(&socket);
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(TcpListener::from(socket))
    }
}

/// The folder whose sockets may be marked.
fn cgroup(config: &HandshakeConfig) -> Result<PathBuf, String> {
    match &config.cgroup {
        PathChoice::At(path) => Ok(path.clone()),
        PathChoice::Auto => own_cgroup().map_err(|error| format!("{error} with handshake.cgroup")),
    }
}
