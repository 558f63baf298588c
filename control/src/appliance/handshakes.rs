//! Connections that programs, services and latency runs want, and what became of them.

use super::admission::{Ask, Program, Verdict};
use super::tcp::Tcp;
use super::{Appliance, fallbacks};
use crate::plane::{Event, Failure, PoolId, Syn, Tenant, Wanted};
use pollux_attach::message::Reply;
use pollux_attach::slots::SlotRef;
use pollux_proto::diagnosis::{DecidedBy, Fallback};
use pollux_proto::link::Role;
use pollux_provider::Device;
use pollux_wire::clc::{Diagnosis, Sync};
use pollux_worker::{Builtin, ConnOutcome, TAG_ECHO, TAG_PING};
use rustix::io::Errno;
use std::net::{Shutdown, SocketAddr, TcpStream};
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

/// Whoever wants a connection, and the handshake that it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asker {
    pub(crate) origin: Origin,
    ask: Ask,
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
        let syn = self.syn_marks.of(&socket);
        if role == Role::Client && syn == Syn::Plain && !self.config.is_peer(peer) {
            let text = format!(
                "{peer} is not listed as a [[peer]], and its SYN-ACK carried no SMC option; no SMC was \
                 offered"
            );
            let fallback = declined_here(Diagnosis::PEERNOSMC);
            self.fall_back((origin, role), peer, fallback, text);
            return;
        }
        let program = self.program_of(origin);
        let why = match self.admission.judge(role, peer.ip(), program) {
            Verdict::Welcome => None,
            Verdict::StayOnTcp(why) if role == Role::Server || syn == Syn::Smc => Some(why),
            Verdict::StayOnTcp(why) => {
                let fallback = declined_here(Diagnosis::MEM);
                self.fall_back((origin, role), peer, fallback, why);
                return;
            }
            Verdict::Close(why) => {
                // It may hold bytes of a handshake, which nobody but us can read.
                let _ = socket.shutdown(Shutdown::Both);
                self.tell_failed(origin, Errno::CONNRESET, why);
                return;
            }
        };
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
        let ask = self.admission.begin(peer.ip(), program);
        let wanted = Wanted {
            user: Asker { origin, ask },
            role,
            worker,
            pool,
            tenant,
            local,
            peer,
            syn,
        };
        let stream = Tcp::new(socket, Rc::clone(&self.reactor));
        let now = self.now();
        match why {
            None => self.plane.begin(now, stream, wanted),
            Some(why) => self.plane.begin_to_decline(now, stream, wanted, why),
        };
    }

    fn program_of(&self, origin: Origin) -> Option<Program> {
        let Origin::Program { session, .. } = origin else {
            return None;
        };
        let slots = self.sessions.get(&session)?.slots();
        Some(Program { session, slots })
    }

    /// Takes everything that the plane has to say.
    pub(crate) fn take_news(&mut self) {
        while let Some(event) = self.plane.poll_event(self.now()) {
            self.handle_news(event);
        }
    }

    fn handle_news(&mut self, event: Event<Builtin, Tcp, Asker>) {
        match &event {
            Event::Opened { user, .. }
            | Event::FellBack { user, .. }
            | Event::Failed { user, .. }
            | Event::Closed { user, .. } => self.admission.end(user.ask),
            Event::Released { .. }
            | Event::App { .. }
            | Event::Snapshot { .. }
            | Event::SessionFault { .. }
            | Event::SessionDetached { .. }
            | Event::WorkerStopped { .. } => {}
        }
        match event {
            Event::Opened { conn, user, slot } => match user.origin {
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
                self.fall_back((user.origin, role), peer, fallback, text);
                drop(stream);
            }
            Event::Failed { user, error } => {
                let errno = match error {
                    Failure::Watch(_) => Errno::NOMEM,
                    Failure::Handshake { .. }
                    | Failure::Unread { .. }
                    | Failure::Stopped { .. } => Errno::CONNRESET,
                };
                self.tell_failed(user.origin, errno, error.to_string());
            }
            Event::Closed { user, outcome, .. } => {
                match outcome {
                    ConnOutcome::Closed => self.figures.closed += 1,
                    ConnOutcome::Reset => self.figures.reset += 1,
                }
                if let Origin::Latency(run) = user.origin {
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
        self.figures.fallbacks += 1;
        let now = self.now();
        if let Some(left_out) = self.throttles.fallbacks.admit(now) {
            tracing::info!(%peer, %role, reason = text, left_out, "connection stays on TCP");
        }
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
    pub(super) fn tell_failed(&mut self, origin: Origin, errno: Errno, text: String) {
        self.figures.lost += 1;
        let now = self.now();
        if let Some(left_out) = self.throttles.losses.admit(now) {
            tracing::warn!(reason = text, left_out, "a connection is lost");
        }
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

/// A decision of ours before a byte was sent.
fn declined_here(diagnosis: Diagnosis) -> Fallback {
    Fallback {
        diagnosis,
        by: DecidedBy::Local,
        sync: Sync::InSync,
    }
}
