//! Everything a worker owns except its application.

use crate::app::{App, Io};
use crate::budget;
use crate::clock::Clock;
use crate::conn::{Held, OpenConn, Place, Queued, at};
use crate::link::{Link, LinkState, Roomy, Touched};
use crate::mailbox::{Command, ConnId, InlineRule, LinkId, PollMode, Report, SessionId};
use crate::session::ServedSession;
use crate::snapshot::{Snapshot, WorkerFigures};
use crate::timers::TimerWheel;
use pollux_proto::conn::Transmit;
use pollux_proto::planted::{Bug, is_planted};
use pollux_provider::{Completion, PollGroup, QpIndex, WcStatus};
use pollux_ring::Wake;
use pollux_ring::spsc::{Consumer, Producer};
use std::collections::VecDeque;

/// Sizes of a worker's tables; they are made once and never grow.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLimits {
    /// Connections, 1 to 65,535.
    pub conns: u16,
    /// Links, 1 to 4,096.
    pub links: u16,
    /// Programs' sessions.
    pub sessions: u16,
}

/// The orders a worker takes.
pub type Commands<G, A> = Consumer<Command<<G as PollGroup>::Qp, <A as App>::Order>>;
/// The news a worker gives.
pub type Reports<G, A> = Producer<Report<<G as PollGroup>::Qp, <A as App>::Report>>;

/// How a connection came to its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It has waited for its link and is the next.
    Waiter,
    /// News of its own: those who wait come first.
    Newcomer,
}

/// Whether control has to be woken at the end of the pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NewsDue {
    Yes,
    No,
}

/// A worker's ends of its mailbox, and what wakes control after news. Control is woken at most
/// once per pass and only for news about links and connections, never for data.
pub type Mailbox<G, A> = (Commands<G, A>, Reports<G, A>, Wake);

/// Tables and queues, in the order in which a pass uses them.
pub(crate) struct Core<G: PollGroup, A: App, C> {
    pub(crate) clock: C,
    /// The clock as last read.
    pub(crate) now: u64,
    pub(crate) commands: Commands<G, A>,
    pub(crate) reports: Reports<G, A>,
    /// Wakes control after news.
    pub(crate) news: Wake,
    pub(crate) news_due: NewsDue,
    /// News that found the ring full, in order.
    pub(crate) late_reports: VecDeque<Report<G::Qp, A::Report>>,
    pub(crate) group: G,
    /// Where connections put their orders: handed out in place, it is not copied.
    pub(crate) transmit: Transmit,
    pub(crate) completions: Box<[Completion]>,
    pub(crate) links: Box<[Option<Box<Link>>]>,
    /// Link of each adopted queue pair.
    pub(crate) link_of_qp: Box<[Option<LinkId>]>,
    pub(crate) conns: Box<[Place]>,
    /// Connections to be served, first come first served.
    pub(crate) ready: VecDeque<ConnId>,
    pub(crate) sessions: Box<[Option<Box<ServedSession>>]>,
    /// Indices of the sessions in use, so that a pass looks at no others.
    pub(crate) active_sessions: Vec<SessionId>,
    pub(crate) timers: TimerWheel,
    /// Links with work posted since their last doorbell.
    pub(crate) touched: Vec<LinkId>,
    /// Links that have failed and whose connections are still to be reset.
    pub(crate) failing: Vec<LinkId>,
    /// The operator's word on inline data.
    pub(crate) inline: InlineRule,
    /// Links that have room and connections that wait for it.
    pub(crate) roomy: Vec<LinkId>,
    pub(crate) poll: PollMode,
    pub(crate) snapshot: Option<(Box<Snapshot>, usize)>,
    pub(crate) figures: WorkerFigures,
}

impl<G: PollGroup, A: App, C: Clock> Core<G, A, C> {
    pub(crate) fn new(
        group: G,
        clock: C,
        limits: WorkerLimits,
        (commands, reports, news): Mailbox<G, A>,
    ) -> Self {
        let now = clock.now();
        let conns = usize::from(limits.conns);
        let qps = usize::from(limits.links) * 4;
        Core {
            clock,
            now,
            commands,
            reports,
            news,
            news_due: NewsDue::No,
            late_reports: VecDeque::with_capacity(conns + 64),
            group,
            transmit: Transmit::EMPTY,
            completions: vec![Completion::EMPTY; budget::COMPLETIONS_PER_PASS].into_boxed_slice(),
            links: std::iter::repeat_with(|| None)
                .take(usize::from(limits.links))
                .collect(),
            link_of_qp: vec![None; qps].into_boxed_slice(),
            conns: std::iter::repeat_with(Place::empty).take(conns).collect(),
            ready: VecDeque::with_capacity(conns),
            sessions: std::iter::repeat_with(|| None)
                .take(usize::from(limits.sessions))
                .collect(),
            active_sessions: Vec::with_capacity(usize::from(limits.sessions)),
            timers: TimerWheel::new(conns, now),
            touched: Vec::with_capacity(usize::from(limits.links)),
            failing: Vec::with_capacity(usize::from(limits.links)),
            inline: InlineRule::ALL,
            roomy: Vec::with_capacity(usize::from(limits.links)),
            poll: PollMode::Busy,
            snapshot: None,
            figures: WorkerFigures::default(),
        }
    }

    /// Tells control something; kept in order behind news that found the ring full.
    pub(crate) fn report(&mut self, report: Report<G::Qp, A::Report>) {
        self.news_due = NewsDue::Yes;
        if !self.late_reports.is_empty() {
            self.late_reports.push_back(report);
        } else if let Err(full) = self.reports.push(report) {
            self.late_reports.push_back(full.0);
        }
    }

    /// Tries again what found the ring full, and wakes control if there is anything for it.
    #[inline]
    pub(crate) fn flush_reports(&mut self) {
        if self.news_due == NewsDue::No {
            return;
        }
        while let Some(report) = self.late_reports.pop_front() {
            if let Err(full) = self.reports.push(report) {
                self.late_reports.push_front(full.0);
                break;
            }
        }
        if self.late_reports.is_empty() {
            self.news_due = NewsDue::No;
        }
        // The descriptor can only fail when it is closed, and then nobody listens any more.
        let _ = self.news.signal();
    }

    /// Whether control still takes news.
    pub(crate) fn reports_are_read(&self) -> bool {
        !self.reports.is_abandoned()
    }

    /// Whether nothing waits inside the worker that no descriptor will announce.
    pub(crate) fn may_sleep(&self) -> bool {
        self.ready.is_empty()
            && self.roomy.is_empty()
            && self.late_reports.is_empty()
            && self.snapshot.is_none()
            && !self.has_pending_news()
    }

    #[inline]
    pub(crate) fn link_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.links.get_mut(usize::from(link.0))?.as_deref_mut()
    }

    #[inline]
    pub(crate) fn link_of(&self, qp: QpIndex) -> Option<LinkId> {
        self.link_of_qp.get(usize::from(qp.0)).copied().flatten()
    }

    #[inline]
    pub(crate) fn open(&mut self, conn: ConnId) -> Option<&mut OpenConn> {
        self.conns.get_mut(at(conn))?.open()
    }

    /// Puts a connection into the queue of those to be served; it is there at most once.
    #[inline]
    pub(crate) fn enqueue(&mut self, conn: ConnId) {
        if let Some(place) = self.conns.get_mut(at(conn))
            && place.queued == Queued::No
        {
            place.queued = Queued::Yes;
            self.ready.push_back(conn);
        }
    }

    /// Lets a connection wait until its link has send slots and credits, behind those that wait
    /// already. It counts as queued.
    #[cold]
    pub(crate) fn wait_for_link(&mut self, conn: ConnId) {
        let Some(place) = self.conns.get_mut(at(conn)) else {
            return;
        };
        if place.queued == Queued::Yes {
            return;
        }
        let id = place.link;
        if let Some(link) = self
            .links
            .get_mut(usize::from(id.0))
            .and_then(|l| l.as_deref_mut())
        {
            place.queued = Queued::Yes;
            link.waiters.push_back(conn);
        }
    }

    /// Queues the connections that waited for a link that is dead, so that their owners learn of it.
    fn release_waiters(&mut self, id: LinkId) {
        if let Some(link) = self
            .links
            .get_mut(usize::from(id.0))
            .and_then(|l| l.as_deref_mut())
        {
            self.ready.extend(link.waiters.drain(..));
        }
    }

    /// A link has send slots or credits again: control's messages go at once, those that wait in the
    /// course of the pass.
    #[inline]
    pub(crate) fn link_has_room(&mut self, id: LinkId) {
        self.flush_llc_backlog(id);
        let Some(link) = self
            .links
            .get_mut(usize::from(id.0))
            .and_then(|l| l.as_deref_mut())
        else {
            return;
        };
        let waiters = link.waiters.len();
        let is_missed = is_planted(Bug::MissedWakeUp) && waiters == 1;
        if link.roomy == Roomy::No && waiters > 0 && !is_missed {
            link.roomy = Roomy::Yes;
            self.roomy.push(id);
        }
        // An announcement may have been called off for want of a slot.
        if link.counts_credits() {
            self.touch(id);
        }
    }

    /// Takes the next connection that waits for a link with room, in the order in which they came.
    #[inline]
    pub(crate) fn next_waiter(&mut self) -> Option<ConnId> {
        if self.roomy.is_empty() {
            return None;
        }
        self.next_of_roomy()
    }

    fn next_of_roomy(&mut self) -> Option<ConnId> {
        while let Some(id) = self.roomy.last().copied() {
            let now = self.now;
            let waiter = self.link_mut(id).and_then(|link| link.next_waiter(now));
            if let Some(conn) = waiter {
                self.conns[at(conn)].queued = Queued::No;
                return Some(conn);
            }
            self.roomy.pop();
            if let Some(link) = self.link_mut(id) {
                link.roomy = Roomy::No;
            }
        }
        None
    }

    /// Takes the next connection to be served.
    #[inline]
    pub(crate) fn dequeue(&mut self) -> Option<ConnId> {
        let conn = self.ready.pop_front()?;
        self.conns[at(conn)].queued = Queued::No;
        Some(conn)
    }

    /// Notes that a link has work for its next doorbell.
    #[inline]
    pub(crate) fn touch(&mut self, link: LinkId) {
        if let Some(entry) = self
            .links
            .get_mut(usize::from(link.0))
            .and_then(|l| l.as_deref_mut())
            && entry.touched == Touched::No
        {
            entry.touched = Touched::Yes;
            self.touched.push(link);
        }
    }

    /// Rings the doorbell of every link that has new work, and asks for an announcement where messages
    /// came in and nothing that went out has returned their credits.
    #[inline]
    pub(crate) fn flush_links(&mut self) {
        while let Some(link) = self.touched.pop() {
            let Some(entry) = self.link_mut(link) else {
                continue;
            };
            entry.touched = Touched::No;
            let qp = entry.qp;
            if let Some(credits) = entry.announcement_due() {
                self.report(Report::CreditsDue { link, credits });
            }
            if self.group.flush(qp).is_err() {
                self.fail_link(link, WcStatus::General);
            }
        }
        self.reset_failing();
    }

    /// Declares a link dead: nothing is sent on it any more, control is told once. Its connections are
    /// reset by [`Core::reset_failing`]: the messages of the same batch of completions came before.
    #[cold]
    pub(crate) fn fail_link(&mut self, link: LinkId, status: WcStatus) {
        let Some(entry) = self.link_mut(link) else {
            return;
        };
        if entry.state != LinkState::Up {
            return;
        }
        entry.state = LinkState::Failing(status);
        entry.covered.clear();
        entry.llc_backlog.clear();
        self.failing.push(link);
        self.report(Report::LinkFailed { link, status });
    }

    /// Resets the connections of links that have failed, once what had come before is delivered.
    #[inline]
    pub(crate) fn reset_failing(&mut self) {
        while let Some(link) = self.failing.pop() {
            if let Some(entry) = self.link_mut(link)
                && let LinkState::Failing(status) = entry.state
            {
                entry.state = LinkState::Failed(status);
                self.reset_conns_of(link);
            }
        }
    }

    /// Resets every connection of a link and queues it, so that its owner learns of it.
    pub(crate) fn reset_conns_of(&mut self, link: LinkId) {
        self.release_waiters(link);
        for index in 0..self.conns.len() {
            let place = &mut self.conns[index];
            if place.link != link {
                continue;
            }
            match &mut place.held {
                Held::Open(open) => {
                    open.proto.handle_link_down();
                    self.enqueue(ConnId(index as u16));
                }
                Held::Reservation(_) | Held::Nothing => {}
            }
        }
    }
}

impl<G: PollGroup, A: App, C: Clock> Io for Core<G, A, C> {
    #[inline]
    fn now(&self) -> u64 {
        self.clock.now()
    }

    #[inline]
    fn readable(&self, conn: ConnId) -> usize {
        match self.conns.get(at(conn)).map(|place| &place.held) {
            Some(Held::Open(open)) => open.proto.readable() as usize,
            Some(Held::Reservation(_) | Held::Nothing) | None => 0,
        }
    }

    #[inline]
    fn writable(&self, conn: ConnId) -> usize {
        match self.conns.get(at(conn)).map(|place| &place.held) {
            Some(Held::Open(open)) => open.proto.writable() as usize,
            Some(Held::Reservation(_) | Held::Nothing) | None => 0,
        }
    }

    #[inline]
    fn read(&mut self, conn: ConnId, into: &mut [u8]) -> usize {
        let got = self.open(conn).map_or(0, |open| open.read(into));
        if got > 0 {
            self.enqueue(conn);
        }
        got
    }

    #[inline]
    fn write(&mut self, conn: ConnId, from: &[u8]) -> usize {
        let taken = self.open(conn).map_or(0, |open| open.write(from));
        if taken > 0 {
            self.enqueue(conn);
        }
        taken
    }

    fn shutdown_write(&mut self, conn: ConnId) {
        if let Some(open) = self.open(conn) {
            open.proto.shutdown_write();
            self.enqueue(conn);
        }
    }

    fn close(&mut self, conn: ConnId) {
        if let Some(open) = self.open(conn) {
            open.proto.close();
            self.enqueue(conn);
        }
    }
}
