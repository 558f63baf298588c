//! What a worker does on control's orders.

use crate::app::App;
use crate::budget;
use crate::clock::Clock;
use crate::conn::{Held, OpenConn, at};
use crate::core::Core;
use crate::link::{Link, LinkState};
use crate::mailbox::{
    Command, ConnId, ConnOutcome, InlineRule, LinkId, PeerDone, PollMode, Report,
};
use crate::session::{ServedSession, Service};
use crate::snapshot::WorkerFigures;
use pollux_provider::{PollGroup, QpStats, Sleep, WcStatus};

/// What the loop does after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    Go,
    Stop,
}

impl<G: PollGroup, A: App, C: Clock> Core<G, A, C> {
    /// Carries out one command; the application's part is done here too.
    pub(crate) fn handle_command(
        &mut self,
        app: &mut A,
        command: Command<G::Qp, A::Order>,
    ) -> Next {
        match command {
            Command::AdoptLink { qp, link } => self.adopt_link(qp, link),
            Command::ReleaseLink(link) => self.release_link(link),
            Command::SendLlc { link, message } => self.send_llc(link, message),
            Command::AttachSession { session, served } => self.attach_session(session, served),
            Command::DetachSession(session) => self.detach_session(session),
            Command::ReserveConn { conn, link, token } => self.reserve(conn, link, token),
            Command::OpenConn { conn, open } => self.open_conn(app, conn, open),
            Command::AbortConn(conn) => self.abort_conn(conn),
            Command::PeerWithdrew(conn) => self.peer_withdrew(conn),
            Command::SetPollMode(mode) => self.set_poll_mode(mode),
            Command::SetInline(rule) => self.set_inline(rule),
            Command::App(order) => {
                if let Some(report) = app.order(order, self) {
                    self.report(Report::App(report));
                }
            }
            Command::Snapshot(snapshot) => self.snapshot = Some((snapshot, 0)),
            Command::ClearStats => self.figures = WorkerFigures::default(),
            Command::Stop => return Next::Stop,
        }
        Next::Go
    }

    fn adopt_link(&mut self, qp: G::Qp, mut link: Box<Link>) {
        let id = link.id;
        let vacant = self
            .links
            .get(usize::from(id.0))
            .is_some_and(Option::is_none);
        let adopted = if vacant {
            self.group.adopt(qp).map_err(|e| e.qp)
        } else {
            Err(qp)
        };
        let index = match adopted {
            Ok(index) => index,
            Err(qp) => {
                self.report(Report::LinkReleased {
                    link: id,
                    qp: Some(qp),
                    stats: QpStats::default(),
                    bookkeeping: Some(link),
                });
                return;
            }
        };
        if let Some(of_qp) = self.link_of_qp.get_mut(usize::from(index.0)) {
            *of_qp = Some(id);
        }
        link.adopted(index, self.inline);
        let slots = link.receive.count;
        self.links[usize::from(id.0)] = Some(link);
        for slot in 0..slots {
            self.repost(id, slot);
        }
        // A receive that could not be posted has failed the link, which was reported.
        if self
            .link_mut(id)
            .is_some_and(|link| link.state == LinkState::Up)
        {
            self.touch(id);
            self.report(Report::LinkAdopted(id));
        }
    }

    fn release_link(&mut self, id: LinkId) {
        self.reset_conns_of(id);
        if let Some(link) = self.link_mut(id) {
            // The last message, a DELETE LINK, leaves before the queue pair does. Whether it
            // arrives is not waited for.
            let qp = link.qp;
            let _ = self.group.flush(qp);
        }
        let link = self.links.get_mut(usize::from(id.0)).and_then(Option::take);
        self.touched.retain(|touched| *touched != id);
        self.roomy.retain(|roomy| *roomy != id);
        let mut stats = QpStats::default();
        let qp = link.as_ref().and_then(|link| {
            stats = self.group.stats(link.qp);
            if let Some(of_qp) = self.link_of_qp.get_mut(usize::from(link.qp.0)) {
                *of_qp = None;
            }
            self.group.release(link.qp)
        });
        self.report(Report::LinkReleased {
            link: id,
            qp,
            stats,
            bookkeeping: link,
        });
    }

    fn attach_session(&mut self, session: crate::mailbox::SessionId, served: Box<ServedSession>) {
        let Some(place) = self.sessions.get_mut(usize::from(session.0)) else {
            self.report(Report::SessionDetached {
                session,
                served: Some(served),
            });
            return;
        };
        if place.is_some() {
            self.report(Report::SessionDetached {
                session,
                served: Some(served),
            });
            return;
        }
        *place = Some(served);
        self.active_sessions.push(session);
    }

    fn detach_session(&mut self, session: crate::mailbox::SessionId) {
        if self.session_mut(session).is_none() {
            self.report(Report::SessionDetached {
                session,
                served: None,
            });
            return;
        }
        // The program's last words may still be in the ring, a Close among them: a program that
        // closes its streams and ends at once must not lose what it wrote. An honest ring is empty
        // long before the limit.
        for _ in 0..budget::LAST_SUBMISSION_TURNS {
            if !self.poll_session(session) {
                break;
            }
        }
        let Some(served) = self.session_mut(session) else {
            return;
        };
        served.service = Service::Detaching;
        for slot in 0..served.slots.len() {
            let Some(conn) = self.session_conn(session, slot) else {
                continue;
            };
            if let Some(open) = self.open(conn) {
                if !open.is_closed_by_program() {
                    open.proto.abort();
                }
                self.enqueue(conn);
            }
        }
        self.finish_detach(session);
    }

    fn reserve(&mut self, conn: ConnId, link: LinkId, token: u32) {
        if let Some(place) = self.conns.get_mut(at(conn)) {
            debug_assert!(
                matches!(place.held, Held::Nothing),
                "control reuses a place too early"
            );
            place.token = token;
            place.link = link;
            place.held = Held::Reservation(None);
        }
    }

    fn open_conn(&mut self, app: &mut A, conn: ConnId, open: Box<OpenConn>) {
        let Some(place) = self.conns.get_mut(at(conn)) else {
            return;
        };
        let early = match std::mem::replace(&mut place.held, Held::Open(open)) {
            Held::Reservation(early) => early,
            Held::Nothing | Held::Open(_) => None,
        };
        let link = place.link;
        self.figures.conns_opened += 1;
        let up = match self.link_mut(link) {
            Some(link) => {
                link.conns += 1;
                link.state == LinkState::Up
            }
            None => false,
        };
        let Some(open) = self.open(conn) else { return };
        match open.owner {
            crate::mailbox::Owner::App(tag) => {
                app.opened(conn, tag, self);
            }
            crate::mailbox::Owner::Session {
                session,
                slot,
                generation,
            } => {
                self.bind_slot(session, (slot, generation), conn);
            }
        }
        if let Some(open) = self.open(conn) {
            if !up {
                open.proto.handle_link_down();
            }
            if let Some(message) = early {
                // A violation makes the connection reset itself; serving it tells the owner.
                let _ = open.proto.handle_cdc(&message);
            }
        }
        self.enqueue(conn);
        self.report(Report::ConnOpened(conn));
    }

    fn abort_conn(&mut self, conn: ConnId) {
        let Some(place) = self.conns.get_mut(at(conn)) else {
            return;
        };
        match &mut place.held {
            Held::Open(open) => {
                open.proto.abort();
                self.enqueue(conn);
            }
            Held::Reservation(_) => {
                place.held = Held::Nothing;
                place.token = 0;
                self.report(Report::ConnClosed {
                    conn,
                    outcome: ConnOutcome::Reset,
                    peer_done: PeerDone::No,
                    open: None,
                });
            }
            // It ended before control knew of it. That was reported, and a second report would free
            // the place of whoever has it by then.
            Held::Nothing => {}
        }
    }

    fn peer_withdrew(&mut self, conn: ConnId) {
        if let Some(open) = self.open(conn) {
            open.proto.handle_peer_withdrew();
            self.enqueue(conn);
        }
    }

    fn set_poll_mode(&mut self, mode: PollMode) {
        self.poll = mode;
        match mode {
            // Else peers would go on looking whether we sleep, which costs them a fence per doorbell.
            PollMode::Busy => {
                let _ = self.group.arm(Sleep::Never);
            }
            PollMode::Adaptive | PollMode::Interrupt => {}
        }
    }

    fn set_inline(&mut self, rule: InlineRule) {
        self.inline = rule;
        for link in self.links.iter_mut().flatten() {
            link.set_inline(rule);
        }
    }

    /// Resets everything; used by the loop before it ends.
    pub(crate) fn abort_all(&mut self) {
        for index in 0..self.conns.len() {
            if let Some(open) = self.conns[index].open() {
                open.proto.abort();
                self.enqueue(ConnId(index as u16));
            }
        }
    }

    /// Gives every link back; used by the loop at its end.
    pub(crate) fn release_all(&mut self) {
        for index in 0..self.links.len() {
            if self.links[index].is_some() {
                self.fail_quietly(LinkId(index as u16));
                self.release_link(LinkId(index as u16));
            }
        }
    }

    fn fail_quietly(&mut self, id: LinkId) {
        if let Some(link) = self.link_mut(id) {
            link.state = LinkState::Failed(WcStatus::WrFlush);
        }
    }
}
