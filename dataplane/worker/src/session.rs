//! Programs' sessions as the worker serves them.

use crate::app::App;
use crate::budget::SUBMISSIONS_PER_SESSION;
use crate::clock::Clock;
use crate::conn::{Place, at};
use crate::core::Core;
use crate::mailbox::{ConnId, Owner, Report, SessionId};
use pollux_attach::shared::{Submission, Violation, WorkerSide};
use pollux_provider::PollGroup;
use pollux_ring::WakeSender;

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
    pub(crate) wake: WakeSender,
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
    /// A session without connections; `wake` wakes its program.
    #[must_use]
    pub fn new(side: WorkerSide, wake: WakeSender) -> Self {
        let slots = usize::from(side.layout().shape().slots());
        ServedSession {
            side,
            wake,
            slots: vec![None; slots].into_boxed_slice(),
            service: Service::Normal,
            news: News::No,
            conns: 0,
        }
    }
}

impl<G: PollGroup, A: App, C: Clock> Core<G, A, C> {
    #[inline]
    pub(crate) fn session_mut(&mut self, session: SessionId) -> Option<&mut ServedSession> {
        self.sessions
            .get_mut(usize::from(session.0))?
            .as_deref_mut()
    }

    pub(crate) fn session_conn(&self, session: SessionId, slot: usize) -> Option<ConnId> {
        *self
            .sessions
            .get(usize::from(session.0))?
            .as_deref()?
            .slots
            .get(slot)?
    }

    /// Ties a connection to a slot of its program's session.
    pub(crate) fn bind_slot(
        &mut self,
        session: SessionId,
        (slot, generation): (u16, u16),
        conn: ConnId,
    ) {
        let bound = self.session_mut(session).is_some_and(|served| {
            let normal = served.service == Service::Normal;
            let Some(place) = served.slots.get_mut(usize::from(slot)) else {
                return false;
            };
            *place = Some(conn);
            served.conns += 1;
            normal && served.side.open_slot(slot, generation)
        });
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
            served.side.close_slot(slot);
        }
        self.finish_detach(session);
    }

    /// Ends a session that is being detached once nothing of it is left.
    pub(crate) fn finish_detach(&mut self, session: SessionId) {
        let Some(place) = self.sessions.get_mut(usize::from(session.0)) else {
            return;
        };
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
            let Some(served) = self.session_mut(session) else {
                break;
            };
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
        let Some(conn) = self.session_conn(session, usize::from(submission.slot)) else {
            return;
        };
        let Some(open) = self.open(conn) else { return };
        if open.apply(&submission).is_err() {
            // The session's memory has checked the totals, so this is a rule of the connection:
            // the program goes on writing or reading after it ended that direction.
            open.proto.abort();
        }
        self.enqueue(conn);
    }

    /// Tells the program of a connection what is new on it.
    #[inline]
    pub(crate) fn publish(&mut self, conn: ConnId) {
        let Some(open) = self.conns.get_mut(at(conn)).and_then(Place::open) else {
            return;
        };
        let Owner::Session { session, slot, .. } = open.owner else {
            return;
        };
        let Some(news) = open.take_news() else { return };
        let Some(served) = self
            .sessions
            .get_mut(usize::from(session.0))
            .and_then(Option::as_deref_mut)
        else {
            return;
        };
        served.side.publish(slot, &news);
        served.news = News::Yes;
    }

    /// Wakes the programs that sleep and have news.
    #[inline]
    pub(crate) fn flush_sessions(&mut self) {
        for index in 0..self.active_sessions.len() {
            let session = self.active_sessions[index];
            let Some(served) = self.session_mut(session) else {
                continue;
            };
            if served.news == News::No {
                continue;
            }
            if !served.side.has_pending() {
                served.news = News::No;
            }
            if served.side.flush_events().is_needed() {
                // A program whose descriptor is gone is dying; control sees that by itself.
                let _ = served.wake.signal();
            }
        }
    }

    /// Announces to every program that the worker is about to sleep.
    pub(crate) fn arm_sessions(&mut self) {
        for session in &self.active_sessions {
            if let Some(Some(served)) = self.sessions.get(usize::from(session.0)) {
                served.side.arm();
            }
        }
    }

    /// Announces to every program that the worker polls again.
    pub(crate) fn disarm_sessions(&mut self) {
        for session in &self.active_sessions {
            if let Some(Some(served)) = self.sessions.get(usize::from(session.0)) {
                served.side.disarm();
            }
        }
    }

    /// Whether a program has kept the worker from telling it everything.
    pub(crate) fn has_pending_news(&self) -> bool {
        self.active_sessions.iter().any(|session| {
            matches!(self.sessions.get(usize::from(session.0)),
                Some(Some(served)) if served.side.has_pending())
        })
    }
}
