//! Responders and meters inside the workers: echo services and latency runs.

use super::handshakes::Origin;
use super::{Appliance, Token, millis};
use crate::plane::ConnKey;
use crate::reactor::Interest;
use crate::rpc::{InlineUse, LatencyRequest, RpcError, Ticket};
use crate::view::{LatencyRow, LatencyTable, Transport};
use pollux_proto::link::Role;
use pollux_proto::time::Instant;
use pollux_provider::Device;
use pollux_worker::{ConnId, InlineRule, PING_BYTES_MAX, PingEnd, PingRun};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

/// Most samples kept of one message size; a run with more ends early.
const SAMPLES_MAX: usize = 4_000_000;
/// Connections accepted for one event; the others have their turn then.
const ACCEPTS_MAX: usize = 64;
/// Round trips before the first that counts.
const WARMUP: u32 = 200;

/// A latency run under way.
pub(crate) struct LatencyRun {
    ticket: Ticket,
    request: LatencyRequest,
    worker: usize,
    stage: Stage,
    rows: Vec<LatencyRow>,
    /// What goes inline, as far as the link has it.
    inline: InlineRule,
    deadline: Instant,
}

enum Stage {
    /// The TCP connection is being made.
    Connecting(OwnedFd),
    /// The handshake is under way.
    Handshake,
    /// The worker measures the size with this index.
    Measuring { conn: ConnKey, size: usize },
    /// The connection is being closed.
    Closing,
}

impl LatencyRun {
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.stage {
            Stage::Connecting(_) | Stage::Handshake => Some(self.deadline),
            Stage::Measuring { .. } | Stage::Closing => None,
        }
    }
}

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// Clients wait on the listener of a service.
    pub(crate) fn accept_service(&mut self, index: usize) {
        for _ in 0..ACCEPTS_MAX {
            let accepted = match self.services.get(index) {
                Some(listener) => TcpListener::accept(listener),
                None => return,
            };
            match accepted {
                Ok((tcp, _)) => {
                    let worker = self.next_id() as usize % self.plane.workers();
                    self.begin_handshake(tcp, (Role::Server, Origin::Echo), worker);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let now = self.now();
                    if let Some(left_out) = self.throttles.losses.admit(now) {
                        tracing::error!(%error, left_out, "cannot accept a connection to a service");
                    }
                    if let Some(listener) = self.services.get(index) {
                        self.spare.turn_away(listener);
                    }
                }
            }
        }
    }

    /// Begins a latency run; its answer comes later.
    pub(crate) fn start_latency(
        &mut self,
        ticket: Ticket,
        request: LatencyRequest,
    ) -> Result<(), RpcError> {
        let ring = self
            .config
            .attach
            .rmb_bytes
            .min(self.config.attach.sndbuf_bytes);
        let most = u32::try_from(PING_BYTES_MAX).unwrap_or(u32::MAX).min(ring);
        if let Some(bytes) = request
            .sizes
            .iter()
            .find(|bytes| !(1..=most).contains(*bytes))
        {
            return Err(RpcError::params(format!(
                "sizes: {bytes} is no message size; legal: 1 to {most}"
            )));
        }
        let worker = 0;
        if self
            .latency
            .values()
            .any(|run| run.worker == worker && !matches!(run.stage, Stage::Closing))
        {
            return Err(RpcError::busy(
                "another latency run is under way; wait for its end",
            ));
        }
        let family = match request.connect {
            std::net::SocketAddr::V4(_) => AddressFamily::INET,
            std::net::SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let failed = |error: Errno| {
            RpcError::failed(format!("cannot connect to {}: {error}", request.connect))
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed)?;
        self.syn_marks.mark(&socket);
        match rustix::net::connect(&socket, &request.connect) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(failed(error)),
        }
        let id = self.next_id();
        self.reactor
            .add(&socket, Interest::Write, Token::Latency(id).into())
            .map_err(|error| RpcError::failed(format!("cannot watch the socket: {error}")))?;
        let deadline = self.now().after(millis(self.config.handshake.timeout_ms));
        let run = LatencyRun {
            ticket,
            request,
            worker,
            stage: Stage::Connecting(socket),
            rows: Vec::new(),
            inline: InlineRule::OFF,
            deadline,
        };
        self.latency.insert(id, run);
        Ok(())
    }

    /// The TCP connection of a run is made, or has failed.
    pub(crate) fn latency_socket_ready(&mut self, id: u64) {
        let deadline = self
            .now()
            .after(millis(self.config.handshake.timeout_ms) * 4);
        let Some(run) = self.latency.get_mut(&id) else {
            return;
        };
        if !matches!(run.stage, Stage::Connecting(_)) {
            return;
        }
        let Stage::Connecting(socket) = std::mem::replace(&mut run.stage, Stage::Handshake) else {
            return;
        };
        run.deadline = deadline;
        let (connect, worker) = (run.request.connect, run.worker);
        let _ = self.reactor.remove(&socket);
        if let Err(error) | Ok(Err(error)) = rustix::net::sockopt::socket_error(&socket) {
            return self.latency_failed(id, format!("cannot connect to {connect}: {error}"));
        }
        let tcp = TcpStream::from(socket);
        self.begin_handshake(tcp, (Role::Client, Origin::Latency(id)), worker);
    }

    /// The connection of a run is open.
    pub(crate) fn latency_connected(&mut self, id: u64, conn: ConnKey) {
        let link = self.plane.link_of(conn);
        let granted = link.map_or(0, |link| link.inline.granted_bytes);
        let Some(run) = self.latency.get_mut(&id) else {
            return self.plane.abort(conn);
        };
        let rule = match run.request.inline {
            InlineUse::On => self.inline_rule,
            InlineUse::Messages => InlineRule {
                writes: 0,
                ..self.inline_rule
            },
            InlineUse::Off => InlineRule::OFF,
        };
        run.inline = rule.within(granted);
        run.stage = Stage::Measuring { conn, size: 0 };
        // For the whole worker: a latency run is a measurement of an appliance at rest.
        self.plane.set_inline(conn.worker, rule);
        self.measure(id);
    }

    /// Orders the next message size from the worker, or ends the run.
    fn measure(&mut self, id: u64) {
        let Some(run) = self.latency.get_mut(&id) else {
            return;
        };
        let Stage::Measuring { conn, size } = run.stage else {
            return;
        };
        let Some(bytes) = run.request.sizes.get(size).copied() else {
            return self.finish_latency(id);
        };
        let iterations = run.request.iterations.map(|count| count as usize);
        let duration_ns = match run.request.seconds {
            Some(seconds) => (seconds * 1e9) as u64,
            None => u64::MAX,
        };
        let ping = Box::new(PingRun {
            conn: ConnId(conn.conn),
            message_bytes: bytes as usize,
            warmup: WARMUP,
            duration_ns,
            samples: Vec::with_capacity(iterations.unwrap_or(SAMPLES_MAX).min(SAMPLES_MAX)),
            end: PingEnd::Running,
        });
        self.plane.order(conn.worker, ping);
    }

    /// A worker has measured a size.
    pub(crate) fn ping_ended(&mut self, run: &PingRun) {
        let found = self.latency.iter().find(|(_, latency)| {
            matches!(latency.stage, Stage::Measuring { conn, .. } if conn.conn == run.conn.0)
        });
        let Some(id) = found.map(|(id, _)| *id) else {
            return;
        };
        match run.end {
            PingEnd::Done => {}
            PingEnd::Lost | PingEnd::Running => {
                return self.latency_failed(id, "the connection ended during the run".into());
            }
            PingEnd::Corrupt => {
                return self.latency_failed(id, "an answer was not what had been sent".into());
            }
        }
        let round_trips = run.samples.iter().map(|ns| u64::from(*ns));
        let row = LatencyRow::of(run.message_bytes as u32, round_trips);
        if let Some(latency) = self.latency.get_mut(&id) {
            latency.rows.extend(row);
            if let Stage::Measuring { size, .. } = &mut latency.stage {
                *size += 1;
            }
        }
        self.measure(id);
    }

    fn finish_latency(&mut self, id: u64) {
        let Some(run) = self.latency.get_mut(&id) else {
            return;
        };
        let worker = run.worker;
        let core = self.threads.get(worker).map(|thread| thread.core);
        let mode = self.plane.poll_mode(worker);
        let table = LatencyTable {
            connect: run.request.connect.to_string(),
            transport: Transport::SmcR,
            fallback: String::new(),
            mode: mode.map_or(String::new(), |mode| mode.name().to_string()),
            local_core: core.and_then(|core| u32::try_from(core).ok()),
            peer_core: None,
            inline_message_bytes: run.inline.messages,
            inline_write_bytes: run.inline.writes,
            bounce_ns: None,
            rows: std::mem::take(&mut run.rows),
        };
        let ticket = run.ticket;
        let conn = match std::mem::replace(&mut run.stage, Stage::Closing) {
            Stage::Measuring { conn, .. } => Some(conn),
            Stage::Connecting(_) | Stage::Handshake | Stage::Closing => None,
        };
        let answer = serde_json::to_value(&table)
            .map_err(|error| RpcError::internal(format!("cannot write the table: {error}")));
        self.complete(ticket, answer);
        self.restore_inline(worker);
        match conn {
            Some(conn) => self.plane.abort(conn),
            None => drop(self.latency.remove(&id)),
        }
    }

    fn restore_inline(&mut self, worker: usize) {
        let rule = self.inline_rule;
        self.plane.set_inline(worker, rule);
    }

    /// A run cannot go on.
    pub(crate) fn latency_failed(&mut self, id: u64, text: String) {
        let Some(run) = self.latency.remove(&id) else {
            return;
        };
        if let Stage::Connecting(socket) = &run.stage {
            let _ = self.reactor.remove(socket);
        }
        if let Stage::Measuring { conn, .. } = run.stage {
            self.plane.abort(conn);
        }
        self.restore_inline(run.worker);
        self.complete(run.ticket, Err(RpcError::failed(text)));
    }

    /// The connection of a run has ended.
    pub(crate) fn latency_ended(&mut self, id: u64) {
        match self.latency.get(&id).map(|run| &run.stage) {
            Some(Stage::Closing) => drop(self.latency.remove(&id)),
            Some(_) => self.latency_failed(id, "the connection ended during the run".into()),
            None => {}
        }
    }

    /// A run whose connection does not come about in time, or whose asker is gone.
    pub(crate) fn expire_latency(&mut self, now: Instant) {
        let expired: Vec<u64> = self
            .latency
            .iter()
            .filter(|(_, run)| run.due().is_some_and(|due| due <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in expired {
            let connect = self
                .latency
                .get(&id)
                .map(|run| run.request.connect.to_string());
            let text = format!("no connection to {} in time", connect.unwrap_or_default());
            self.latency_failed(id, text);
        }
    }

    /// The client that waits for a run is gone.
    pub(crate) fn abandon_latency(&mut self, ticket: Ticket) {
        let found = self.latency.iter().find(|(_, run)| run.ticket == ticket);
        if let Some(id) = found.map(|(id, _)| *id) {
            self.latency_failed(id, "nobody waits for the result any more".into());
        }
    }
}
