//! Connections that programs, services and latency runs want, and what became of them.

use super::tcp::Tcp;
use super::{Appliance, fallbacks};
use crate::plane::{Event, Failure, PoolId, Tenant, Wanted};
use pollux_attach::message::Reply;
use pollux_attach::slots::SlotRef;
use pollux_proto::diagnosis::{DecidedBy, Fallback};
use pollux_proto::link::Role;
use pollux_provider::Device;
use pollux_wire::clc::{Diagnosis, Sync};
use pollux_worker::{Builtin, ConnOutcome, TAG_ECHO, TAG_PING};
use rustix::io::Errno;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

/// Who wants the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A program that sent its socket.
    Program { session: u32, request: u32 },
    /// A connection to an echo service.
    Echo,
    /// A latency run.
    Latency(u64),
}

impl<D> Appliance<D>
where
    D: Device,
    D::Qp: 'static,
    D::Group: 'static,
{
    /// Begins a handshake on a connected TCP socket.
    pub(crate) fn begin_handshake(
        &mut self,
        socket: TcpStream,
        (role, origin): (Role, Origin),
        worker: usize,
    ) {
        let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else {
            let text = "the socket is not a connected TCP socket any more".to_string();
            self.tell_failed(origin, Errno::NOTCONN, text);
            return;
        };
        if role == Role::Client && !self.config.is_peer(peer) {
            let text = format!("{peer} is not listed as a [[peer]]; no SMC was offered");
            let fallback = Fallback {
                diagnosis: Diagnosis::PEERNOSMC,
                by: DecidedBy::Local,
                sync: Sync::InSync,
            };
            self.fall_back((origin, role), peer, fallback, text);
            return;
        }
        let (pool, tenant) = match origin {
            Origin::Program { session, .. } => {
                let Some(state) = self.sessions.get(&session) else {
                    return;
                };
                let tenant = Tenant::Program {
                    session: state.index,
                };
                (PoolId::Added(session), tenant)
            }
            Origin::Echo => (PoolId::Worker(worker), Tenant::App { tag: TAG_ECHO }),
            Origin::Latency(_) => (PoolId::Worker(worker), Tenant::App { tag: TAG_PING }),
        };
        let wanted = Wanted {
            user: origin,
            role,
            worker,
            pool,
            tenant,
            local,
            peer,
        };
        let stream = Tcp::new(socket, Rc::clone(&self.reactor));
        self.plane.begin(self.now(), stream, wanted);
    }

    /// Takes everything that the plane has to say.
    pub(crate) fn take_news(&mut self) {
        while let Some(event) = self.plane.poll_event(self.now()) {
            self.handle_news(event);
        }
    }

    fn handle_news(&mut self, event: Event<Builtin, Tcp, Origin>) {
        match event {
            Event::Opened { conn, user, slot } => match user {
                Origin::Program { session, request } => {
                    let SlotRef { slot, generation } = slot;
                    let reply = Reply::Accelerated {
                        request,
                        slot,
                        generation,
                    };
                    self.send_reply(session, &reply, &[]);
                }
                Origin::Latency(run) => self.latency_connected(run, conn),
                Origin::Echo => {}
            },
            Event::FellBack {
                user,
                role,
                peer,
                stream,
                fallback,
                text,
            } => {
                self.fall_back((user, role), peer, fallback, text);
                drop(stream);
            }
            Event::Failed { user, error } => {
                let errno = match error {
                    Failure::Watch(_) => Errno::NOMEM,
                    Failure::Handshake { .. } | Failure::Unread { .. } => Errno::CONNRESET,
                };
                self.tell_failed(user, errno, error.to_string());
            }
            Event::Closed { user, outcome, .. } => {
                match outcome {
                    ConnOutcome::Closed => self.figures.closed += 1,
                    ConnOutcome::Reset => self.figures.reset += 1,
                }
                if let Origin::Latency(run) = user {
                    self.latency_ended(run);
                }
            }
            Event::Released { pool, slot } => self.slot_released(pool, slot),
            Event::App { report, .. } => self.ping_ended(&report),
            Event::Snapshot { worker, snapshot } => self.snapshot_taken(worker, snapshot),
            Event::SessionFault {
                worker,
                session,
                violation,
            } => self.session_fault(worker, session, violation),
            Event::SessionDetached { worker, session } => self.session_detached(worker, session),
            Event::WorkerStopped { worker } => {
                if let Some(thread) = self.threads.get_mut(worker) {
                    thread.join();
                }
            }
        }
    }

    /// A connection stays on TCP: counted, logged, and told to whoever asked for it.
    fn fall_back(
        &mut self,
        (origin, role): (Origin, Role),
        peer: SocketAddr,
        fallback: Fallback,
        text: String,
    ) {
        tracing::info!(%peer, %role, reason = text, "connection stays on TCP");
        match origin {
            Origin::Program { session, request } => {
                let code = fallback.diagnosis.0;
                let reply = Reply::Fallback {
                    request,
                    code,
                    text: text.clone(),
                };
                self.send_reply(session, &reply, &[]);
            }
            Origin::Echo => {}
            Origin::Latency(run) => self.latency_failed(run, format!("fell back to TCP: {text}")),
        }
        let at = std::time::SystemTime::now();
        self.fallbacks.record(fallbacks::Fallback {
            at,
            role,
            peer,
            by: fallback.by,
            diagnosis: fallback.diagnosis,
            text,
        });
    }

    /// A connection is lost: told to whoever asked for it.
    fn tell_failed(&mut self, origin: Origin, errno: Errno, text: String) {
        match origin {
            Origin::Program { session, request } => {
                let reply = Reply::Failed {
                    request,
                    errno: errno.raw_os_error(),
                    text,
                };
                self.send_reply(session, &reply, &[]);
            }
            Origin::Echo => {}
            Origin::Latency(run) => self.latency_failed(run, text),
        }
    }
}
