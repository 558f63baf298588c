//! One pass of the worker's loop, on one screen.

use crate::app::App;
use crate::budget::{COMMANDS_PER_PASS, WAITERS_PER_PASS};
use crate::clock::Clock;
use crate::commands::Next;
use crate::conn::{Held, Reset, at};
use crate::core::{Core, Standing};
use crate::link::LinkState;
use crate::mailbox::{ConnId, ConnOutcome, Owner, PeerDone, Report};
use crate::transmit::Turn;
use pollux_proto::conn::PeerWrites;
use pollux_proto::event::EventSet;
use pollux_provider::PollGroup;

/// What a pass found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// There was work.
    Busy,
    /// There was none.
    Idle,
    /// Control has ordered the end.
    Stopped,
}

impl<G: PollGroup, A: App, C: Clock> Core<G, A, C> {
    /// One turn: commands, completions, programs, timers, waiting connections, doorbells, news.
    #[inline]
    pub(crate) fn pass(&mut self, app: &mut A) -> Progress {
        self.figures.passes += 1;
        let mut work = 0;
        for _ in 0..COMMANDS_PER_PASS {
            let Some(command) = self.commands.pop() else {
                break;
            };
            work += 1;
            if self.handle_command(app, command) == Next::Stop {
                return Progress::Stopped;
            }
        }
        work += self.reap(app);
        for index in 0..self.active_sessions.len() {
            if self.poll_session(self.active_sessions[index]) {
                work += 1;
            }
        }
        while let Some(conn) = self.timers.pop_due(self.now) {
            work += 1;
            self.handle_conn_timeout(conn);
        }
        for turn in 0..WAITERS_PER_PASS {
            let Some((conn, standing)) = self.next_to_serve(turn) else {
                break;
            };
            work += 1;
            self.serve(app, conn, standing);
        }
        self.flush_links();
        self.flush_sessions();
        self.flush_reports();
        if self.snapshot.is_some() {
            self.continue_snapshot();
        }
        if work == 0 {
            return Progress::Idle;
        }
        self.figures.busy_passes += 1;
        Progress::Busy
    }

    /// By turns one that has waited for a link which now has room, and one with news of its own, so
    /// that neither holds up the other.
    #[inline]
    fn next_to_serve(&mut self, turn: usize) -> Option<(ConnId, Standing)> {
        let newcomer = |conn| (conn, Standing::Newcomer);
        let waiter = |conn| (conn, Standing::Waiter);
        if turn.is_multiple_of(2) {
            let next = self.next_waiter().map(waiter);
            next.or_else(|| self.dequeue().map(newcomer))
        } else {
            let next = self.dequeue().map(newcomer);
            next.or_else(|| self.next_waiter().map(waiter))
        }
    }

    /// Takes a batch of completions and serves the connections they concern at once: a message
    /// that has just come in is answered before anything else is looked at.
    #[inline]
    fn reap(&mut self, app: &mut A) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let count = self.group.reap(self.now, &mut completions);
        for completion in &completions[..count] {
            if let Some(conn) = self.handle_completion(*completion) {
                self.serve(app, conn, Standing::Newcomer);
            }
        }
        self.completions = completions;
        self.reset_failing();
        count
    }

    /// Brings a connection up to date: its owner learns the news, its orders are posted.
    #[inline]
    pub(crate) fn serve(&mut self, app: &mut A, conn: ConnId, standing: Standing) {
        let Some(open) = self.open(conn) else { return };
        let events = open.proto.take_events();
        if events.contains(EventSet::RESET) {
            open.reset = Reset::Yes;
        }
        open.note(events);
        match open.owner {
            Owner::App(tag) => {
                if !events.is_empty()
                    && let Some(report) = app.ready(conn, tag, events, self)
                {
                    self.report(Report::App(report));
                }
            }
            Owner::Session { .. } => {}
        }
        let turn = self.transmit(conn, standing);
        self.note_events(conn);
        self.publish(conn);
        match turn {
            Turn::More => self.enqueue(conn),
            Turn::NoRoom => self.wait_for_link(conn),
            Turn::Done => self.settle(app, conn),
        }
    }

    /// Events that sending itself has raised: room in the ring, or the end.
    #[inline]
    fn note_events(&mut self, conn: ConnId) {
        let Some(open) = self.open(conn) else { return };
        match open.owner {
            Owner::Session { .. } => {
                let events = open.proto.take_events();
                open.note(events);
            }
            // The application hears of them with its next turn.
            Owner::App(_) => {
                if open.proto.has_events() {
                    self.enqueue(conn);
                }
            }
        }
    }

    /// Arms the connection's timer, or takes the connection out of the table when it has ended.
    #[inline]
    fn settle(&mut self, app: &mut A, conn: ConnId) {
        let Some(open) = self.conns[at(conn)].open() else {
            return;
        };
        if open.proto.is_finished() && (open.is_reclaimed() || !self.link_is_up(conn)) {
            self.retire(app, conn);
            return;
        }
        let Some(open) = self.conns[at(conn)].open() else {
            return;
        };
        let timer = open.proto.timer();
        if timer == open.timer {
            return;
        }
        open.timer = timer;
        match timer {
            Some(timer) => {
                // Read anew: a connection that closes may have found the worker asleep for long.
                let deadline = self.clock.now() + timer.duration().as_nanos() as u64;
                self.timers.arm(u32::from(conn.0), deadline);
            }
            None => self.timers.cancel(u32::from(conn.0)),
        }
    }

    #[inline]
    fn link_is_up(&mut self, conn: ConnId) -> bool {
        let link = self.conns[at(conn)].link;
        self.link_mut(link)
            .is_some_and(|link| link.state == LinkState::Up)
    }

    fn handle_conn_timeout(&mut self, index: u32) {
        let conn = ConnId(index as u16);
        if let Some(open) = self.open(conn) {
            open.timer = None;
            open.proto.handle_timeout();
            self.enqueue(conn);
        }
    }

    #[cold]
    fn retire(&mut self, app: &mut A, conn: ConnId) {
        let place = &mut self.conns[at(conn)];
        let link = place.link;
        place.token = 0;
        let open = match std::mem::replace(&mut place.held, Held::Nothing) {
            Held::Open(open) => open,
            Held::Reservation(_) | Held::Nothing => return,
        };
        self.timers.cancel(u32::from(conn.0));
        if let Some(link) = self.link_mut(link) {
            link.conns -= 1;
        }
        let outcome = match open.reset {
            Reset::Yes => ConnOutcome::Reset,
            Reset::No => ConnOutcome::Closed,
        };
        self.figures.conns_closed += 1;
        if outcome == ConnOutcome::Reset {
            self.figures.conns_reset += 1;
        }
        let owner = open.owner;
        match owner {
            Owner::App(tag) => {
                if let Some(report) = app.closed(conn, tag, outcome) {
                    self.report(Report::App(report));
                }
            }
            Owner::Session { .. } => {}
        }
        let peer_done = match open.proto.peer_writes() {
            PeerWrites::Over => PeerDone::Yes,
            PeerWrites::Possible => PeerDone::No,
        };
        self.report(Report::ConnClosed {
            conn,
            outcome,
            peer_done,
            open: Some(open),
        });
        match owner {
            Owner::App(_) => {}
            // After the report: this may end the session, and control has to know first whether
            // the peer may still write into its memory.
            Owner::Session { session, slot, .. } => self.unbind_slot(session, slot),
        }
    }

    /// Reads the clock; called once per busy pass and now and then while idle.
    #[inline]
    pub(crate) fn read_clock(&mut self) {
        self.now = self.clock.now();
    }
}
