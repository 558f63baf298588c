//! Programs' sessions as the worker serves them.

use crate::app::App;
use crate::budget::SUBMISSIONS_PER_SESSION;
use crate::clock::Clock;
use crate::core::Core;
use crate::mailbox::{ConnId, Owner, Report, SessionId};
use pollux_attach::shared::{SlotNews, Submission, SubmissionOp, Violation, WorkerSide};
use pollux_provider::PollGroup;
use pollux_ring::Wake;

/// How far the worker goes along with a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// Submissions are taken, news is published.
    Normal,
    /// The program broke a rule: nothing is taken any more, control has been told.
    Faulty,
    /// Its connections are being reset; ends when the last is gone.
    Detaching,
}

/// A program's session in a worker; made by control so that the worker allocates nothing.
#[derive(Debug)]
pub struct ServedSession {
    pub(crate) side: WorkerSide,
    pub(crate) wake: Wake,
    /// Connection of each slot.
    pub(crate) slots: Box<[Option<ConnId>]>,
    pub(crate) service: Service,
    /// News was published since the last look at whether the program sleeps.
    pub(crate) news: News,
    pub(crate) conns: u32,
}

/// Whether the program has to be thought of at the end of the pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    Yes,
    No,
}

impl ServedSession {
    /// A session of `slots` slots; `wake` wakes its program.
    #[must_use]
    pub fn new(side: WorkerSide, wake: Wake, slots: u16) -> Self {
        ServedSession {
            side,
            wake,
            slots: vec![None; usize::from(slots)].into_boxed_slice(),
            service: Service::Normal,
            news: News::No,
            conns: 0,
        }
    }
}

impl<G: PollGroup, A: App, C: Clock> Core<G, A, C> {
    #[inline]
    pub(crate) fn session_mut(&mut self, session: SessionId) -> Option<&mut ServedSession> {
        self.sessions.get_mut(usize::from(session.0))?.as_deref_mut()
    }

    pub(crate) fn session_conn(&self, session: SessionId, slot: usize) -> Option<ConnId> {
        *self.sessions.get(usize::from(session.0))?.as_deref()?.slots.get(slot)?
    }

    /// Ties a connection to a slot of its program's session.
    pub(crate) fn bind_slot(&mut self, session: SessionId, slot: u16, conn: ConnId) {
        let bound = match self.session_mut(session) {
            Some(served) if served.service == Service::Normal => {
                match served.slots.get_mut(usize::from(slot)) {
                    Some(place) => {
                        *place = Some(conn);
                        served.conns += 1;
                        true
                    }
                    None => false,
                }
            }
            Some(_) | None => false,
        };
        if !bound && let Some(open) = self.open(conn) {
            // The program died during the handshake.
            open.proto.abort();
        }
    }

    /// Frees a slot whose connection is gone.
    pub(crate) fn unbind_slot(&mut self, session: SessionId, slot: u16) {
        if let Some(served) = self.session_mut(session)
            && let Some(place) = served.slots.get_mut(usize::from(slot))
            && place.take().is_some()
        {
            served.conns -= 1;
        }
        self.finish_detach(session);
    }

    /// Ends a session that is being detached once nothing of it is left.
    pub(crate) fn finish_detach(&mut self, session: SessionId) {
        let Some(place) = self.sessions.get_mut(usize::from(session.0)) else { return };
        let gone = place
            .as_deref()
            .is_some_and(|served| served.service == Service::Detaching && served.conns == 0);
        if gone {
            let served = place.take();
            self.active_sessions.retain(|active| *active != session);
            self.report(Report::SessionDetached { session, served });
        }
    }

    /// Takes submissions of one session within the budget; the connections they concern are
    /// queued. Returns whether there were any.
    #[inline]
    pub(crate) fn poll_session(&mut self, session: SessionId) -> bool {
        let mut taken = 0;
        while taken < SUBMISSIONS_PER_SESSION {
            let Some(served) = self.session_mut(session) else { break };
            if served.service != Service::Normal {
                break;
            }
            match served.side.poll() {
                None => break,
                Some(Ok(submission)) => {
                    taken += 1;
                    self.handle_submission(session, submission);
                }
                Some(Err(violation)) => {
                    self.fault(session, violation);
                    break;
                }
            }
        }
        self.figures.submissions += taken as u64;
        taken > 0
    }

    #[cold]
    fn fault(&mut self, session: SessionId, violation: Violation) {
        if let Some(served) = self.session_mut(session) {
            served.service = Service::Faulty;
        }
        self.report(Report::SessionFault { session, violation });
    }

    #[inline]
    fn handle_submission(&mut self, session: SessionId, submission: Submission) {
        // A slot without a connection: the connection ended while the program wrote.
        let Some(conn) = self.session_conn(session, usize::from(submission.slot)) else { return };
        let Some(open) = self.open(conn) else { return };
        let proto = &mut open.proto;
        let prepared = submission.prepared_total.checked_sub(proto.prepared_total());
        let consumed = submission.consumed_total.checked_sub(proto.consumed_total());
        // Totals that go back belong to entries written before ones already taken; a program's
        // library never writes such, so it is a fault like a total beyond the ring.
        let (Some(prepared), Some(consumed)) = (prepared, consumed) else {
            self.fault(session, Violation::TotalWentBack { slot: submission.slot });
            return;
        };
        let (Ok(prepared), Ok(consumed)) = (u32::try_from(prepared), u32::try_from(consumed))
        else {
            self.fault(session, Violation::TotalBeyondRing { slot: submission.slot });
            return;
        };
        let applied = (consumed == 0 || proto.consume(consumed).is_ok())
            && (prepared == 0 || proto.may_prepare().not_or(proto.prepare(prepared)));
        if !applied {
            self.fault(session, Violation::TotalBeyondRing { slot: submission.slot });
            return;
        }
        match submission.op {
            SubmissionOp::Kick => {}
            SubmissionOp::Urgent => proto.mark_urgent(),
            SubmissionOp::ShutdownWrite => proto.shutdown_write(),
            SubmissionOp::Close => proto.close(),
            SubmissionOp::Abort => proto.abort(),
        }
        self.enqueue(conn);
    }

    /// Tells the program of a connection what is new on it.
    #[inline]
    pub(crate) fn publish(&mut self, conn: ConnId) {
        let Some(open) = self.conns.get_mut(crate::conn::at(conn)).and_then(|p| p.open()) else {
            return;
        };
        let Owner::Session { session, slot } = open.owner else { return };
        let told = open.current();
        if told == open.told {
            return;
        }
        open.told = told;
        let Some(served) =
            self.sessions.get_mut(usize::from(session.0)).and_then(Option::as_deref_mut)
        else {
            return;
        };
        served.side.publish(
            slot,
            &SlotNews { produced: told.produced, reclaimed: told.reclaimed, state: told.state },
        );
        served.news = News::Yes;
    }

    /// Wakes the programs that sleep and have news.
    #[inline]
    pub(crate) fn flush_sessions(&mut self) {
        for index in 0..self.active_sessions.len() {
            let session = self.active_sessions[index];
            let Some(served) = self.session_mut(session) else { continue };
            if served.news == News::Yes {
                served.news = News::No;
                if served.side.flush_events().is_needed() {
                    served.wake.signal();
                }
            }
        }
    }
}
