//! Links, sessions and connections that end, in order or not, and workers that sleep.

mod common;

use std::convert::Infallible;
use std::sync::atomic::Ordering;

use common::{ManualClock, Node, PingNode, Sizes, connect, pair, ping};
use pollux_attach::layout::{Layout, Shape};
use pollux_attach::shared::{Inline, ProgramSide, Submission, SubmissionOp, WorkerSide};
use pollux_proto::event::EventSet;
use pollux_ring::wake_channel;
use pollux_worker::{
    App, Builtin, Command, ConnId, ConnOutcome, Io, LinkId, Owner, PeerDone, PingEnd, PollMode,
    Report, ServedSession, SessionId, TAG_ECHO, TAG_PING, Tsc, WaitSpec,
};

type Both = [Node<Builtin, ManualClock>; 2];

fn both(conns: u16) -> (Both, ManualClock) {
    let clock = ManualClock::default();
    let apps = [Builtin::default(), Builtin::default()];
    let sizes = Sizes {
        conns,
        ..Sizes::default()
    };
    (pair(sizes, apps, &clock, WaitSpec::default()), clock)
}

/// What a worker has reported, in words.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Closed(u16, ConnOutcome, PeerDone),
    LinkFailed,
    Fault(u16),
    Detached(u16),
    Ping(PingEnd),
}

fn hear(node: &mut Node<Builtin, ManualClock>) -> Vec<Heard> {
    let mut heard = Vec::new();
    while let Some(report) = node.news.pop() {
        match report {
            Report::ConnClosed {
                conn,
                outcome,
                peer_done,
                ..
            } => heard.push(Heard::Closed(conn.0, outcome, peer_done)),
            Report::LinkFailed { .. } => heard.push(Heard::LinkFailed),
            Report::SessionFault { session, .. } => heard.push(Heard::Fault(session.0)),
            Report::SessionDetached { session, .. } => heard.push(Heard::Detached(session.0)),
            Report::App(run) => heard.push(Heard::Ping(run.end)),
            Report::LinkAdopted(_)
            | Report::ConnOpened(_)
            | Report::LinkReleased { .. }
            | Report::Llc { .. }
            | Report::Snapshot(_)
            | Report::CreditsDue { .. }
            | Report::Stopped => {}
        }
    }
    heard
}

fn steps(nodes: &mut [Node<Builtin, ManualClock>], clock: &ManualClock, count: usize) {
    for _ in 0..count {
        for node in nodes.iter_mut() {
            let _ = node.worker.pass();
        }
        clock.advance(1000);
    }
}

#[test]
fn a_link_whose_peer_is_gone_fails_once_and_resets_every_connection() {
    let (mut nodes, clock) = both(3);
    for conn in 0..3 {
        connect(&mut nodes, conn, [TAG_PING, TAG_ECHO]);
    }
    steps(&mut nodes, &clock, 10);
    let [mut a, b] = nodes;
    assert_eq!(hear(&mut a), []);
    drop(b);
    // Sending is how a queue pair finds out.
    a.send(Command::App(ping(64, 10)));
    steps(std::slice::from_mut(&mut a), &clock, 10_000);
    let mut heard = hear(&mut a);
    heard.retain(|heard| *heard != Heard::Ping(PingEnd::Lost));
    assert_eq!(heard.remove(0), Heard::LinkFailed);
    let reset = |conn| Heard::Closed(conn, ConnOutcome::Reset, PeerDone::Yes);
    heard.sort_by_key(|heard| format!("{heard:?}"));
    assert_eq!(heard, [reset(0), reset(1), reset(2)]);
    // The place of the link can be given back; nothing else comes.
    a.send(Command::ReleaseLink(LinkId(0)));
    steps(std::slice::from_mut(&mut a), &clock, 10);
    assert_eq!(hear(&mut a), []);
}

#[test]
fn a_link_that_is_released_with_open_connections_resets_them() {
    let (mut nodes, clock) = both(2);
    connect(&mut nodes, 0, [TAG_PING, TAG_ECHO]);
    connect(&mut nodes, 1, [TAG_PING, TAG_ECHO]);
    steps(&mut nodes, &clock, 10);
    nodes[0].send(Command::ReleaseLink(LinkId(0)));
    steps(&mut nodes, &clock, 100);
    let resets = hear(&mut nodes[0]);
    let is_reset = |heard: &Heard| matches!(heard, Heard::Closed(_, ConnOutcome::Reset, _));
    assert_eq!(resets.len(), 2, "{resets:?}");
    assert!(resets.iter().all(is_reset), "{resets:?}");
}

#[test]
fn an_order_to_abort_that_meets_the_end_of_its_connection_frees_the_place_only_once() {
    let (mut nodes, clock) = both(1);
    connect(&mut nodes, 0, [TAG_PING, TAG_ECHO]);
    steps(&mut nodes, &clock, 10);
    nodes[1].send(Command::AbortConn(ConnId(0)));
    steps(&mut nodes, &clock, 100);
    // Control has not looked at the news yet.
    nodes[0].send(Command::AbortConn(ConnId(0)));
    steps(&mut nodes, &clock, 100);
    let ended = [Heard::Closed(0, ConnOutcome::Reset, PeerDone::Yes)];
    assert_eq!(hear(&mut nodes[0]), ended);
    // A reservation is given up once as well.
    nodes[0].reserve(0);
    nodes[0].send(Command::AbortConn(ConnId(0)));
    nodes[0].send(Command::AbortConn(ConnId(0)));
    steps(&mut nodes, &clock, 10);
    let given_up = [Heard::Closed(0, ConnOutcome::Reset, PeerDone::No)];
    assert_eq!(hear(&mut nodes[0]), given_up);
}

#[test]
fn a_connection_whose_peer_never_answers_its_end_is_guarded_by_a_timer() {
    let (mut nodes, clock) = both(1);
    connect(&mut nodes, 0, [TAG_PING, TAG_ECHO]);
    steps(&mut nodes, &clock, 10);
    // The other worker stands still from now on.
    let a = &mut nodes[..1];
    a[0].send(Command::AbortConn(ConnId(0)));
    steps(a, &clock, 1000);
    let soon = hear(&mut a[0]);
    // Far beyond any guard.
    for _ in 0..2000 {
        clock.advance(1_000_000_000);
        steps(a, &clock, 2);
    }
    let mut heard = soon;
    heard.extend(hear(&mut a[0]));
    assert_eq!(heard, [Heard::Closed(0, ConnOutcome::Reset, PeerDone::No)]);
}

/// Writes what it is ordered to and never reads.
struct Deaf;

impl App for Deaf {
    type Order = Vec<u8>;
    type Report = Infallible;

    fn order<I: Io>(&mut self, message: Vec<u8>, io: &mut I) -> Option<Infallible> {
        assert_eq!(io.write(ConnId(0), &message), message.len());
        None
    }

    fn opened<I: Io>(&mut self, _conn: ConnId, _tag: u64, _io: &mut I) {}

    fn ready<I: Io>(
        &mut self,
        _conn: ConnId,
        _tag: u64,
        _events: EventSet,
        _io: &mut I,
    ) -> Option<Infallible> {
        None
    }

    fn closed(&mut self, _conn: ConnId, _tag: u64, _outcome: ConnOutcome) -> Option<Infallible> {
        None
    }
}

/// Sends bytes that nobody reads and resets the connection; gives the completions until it had
/// ended at the first node.
fn reset_unread(inline_bytes: u32) -> u64 {
    let clock = ManualClock::default();
    let sizes = Sizes {
        inline_bytes,
        ..Sizes::default()
    };
    let mut nodes = pair(sizes, [Deaf, Deaf], &clock, WaitSpec::default());
    connect(&mut nodes, 0, [0, 0]);
    let orders = [
        Command::App(vec![7; 100]),
        Command::AbortConn(ConnId(0)),
        Command::ReleaseLink(LinkId(0)),
    ];
    let mut closed = 0;
    let mut completions = None;
    for order in orders {
        nodes[0].send(order);
        // The time stands still: no timer helps.
        for _ in 0..20 {
            for node in &mut nodes {
                let _ = node.worker.pass();
            }
        }
        while let Some(report) = nodes[0].news.pop() {
            match report {
                Report::ConnClosed { open, .. } => closed += usize::from(open.is_some()),
                // Releasing would end the connection in any case.
                Report::LinkReleased { stats, .. } => {
                    completions = Some((closed, stats.send_completions));
                }
                _ => {}
            }
        }
    }
    let (closed, completions) = completions.expect("the link is given back");
    assert_eq!(closed, 1, "{inline_bytes} bytes inline");
    completions
}

#[test]
fn a_connection_that_ends_asks_for_a_completion_only_if_bytes_by_reference_are_unread() {
    assert_eq!(reset_unread(0), 1);
    assert_eq!(reset_unread(256), 0);
}

/// A session at a node, with the program's half.
fn attach(node: &mut Node<Builtin, ManualClock>, session: u16) -> ProgramSide {
    let layout = Layout::of(Shape::new(4, 4096, 4096).expect("a shape"));
    let segment = layout.create_segment("session").expect("a segment");
    let program = ProgramSide::open(&segment).expect("a session");
    let side = WorkerSide::new(segment, layout).expect("a session");
    let (wake, _receiver) = wake_channel().expect("a wake");
    node.send(Command::AttachSession {
        session: SessionId(session),
        served: Box::new(ServedSession::new(side, wake)),
    });
    program
}

/// Opens connection `conn` at both nodes: a program's at the first, an echo at the second.
fn connect_session(nodes: &mut Both, conn: u16, session: u16, slot: u16) {
    let rmbs = [nodes[0].rmb(conn), nodes[1].rmb(conn)];
    let owner = Owner::Session {
        session: SessionId(session),
        slot,
        generation: 1,
    };
    nodes[0].open(conn, rmbs[1], owner);
    nodes[1].open(conn, rmbs[0], Owner::App(TAG_ECHO));
}

fn submission(slot: u16, prepared_total: u64) -> Submission {
    Submission {
        op: SubmissionOp::Kick,
        slot,
        generation: 1,
        prepared_total,
        consumed_total: 0,
    }
}

#[test]
fn a_session_that_is_detached_with_open_connections_resets_them_and_is_given_back() {
    let (mut nodes, clock) = both(3);
    let _program = attach(&mut nodes[0], 0);
    let _other = attach(&mut nodes[0], 1);
    for conn in 0..2 {
        connect_session(&mut nodes, conn, 0, conn);
    }
    connect_session(&mut nodes, 2, 1, 0);
    steps(&mut nodes, &clock, 10);
    nodes[0].send(Command::DetachSession(SessionId(0)));
    steps(&mut nodes, &clock, 100);
    let heard = hear(&mut nodes[0]);
    assert_eq!(heard.len(), 3, "{heard:?}");
    assert_eq!(heard[2], Heard::Detached(0));
    for (conn, heard) in heard[..2].iter().enumerate() {
        let expected = Heard::Closed(conn as u16, ConnOutcome::Reset, PeerDone::Yes);
        assert_eq!(*heard, expected);
    }
    let at_peer = hear(&mut nodes[1]);
    let reset = |conn| Heard::Closed(conn, ConnOutcome::Reset, PeerDone::Yes);
    assert_eq!(at_peer, [reset(0), reset(1)]);
    // The other session's connection goes on and can still be reset by its own end.
    nodes[0].send(Command::DetachSession(SessionId(1)));
    steps(&mut nodes, &clock, 100);
    let heard = hear(&mut nodes[0]);
    assert_eq!(heard, [reset(2), Heard::Detached(1)]);
}

#[test]
fn a_program_that_breaks_a_rule_is_reported_once_and_nobody_else_notices() {
    let violations = [
        // A slot that does not exist, and more bytes than the ring holds.
        submission(4, 0),
        submission(0, 1 << 40),
    ];
    for violation in violations {
        let (mut nodes, clock) = both(2);
        let mut program = attach(&mut nodes[0], 0);
        connect_session(&mut nodes, 0, 0, 0);
        connect(&mut nodes, 1, [TAG_PING, TAG_ECHO]);
        steps(&mut nodes, &clock, 10);
        for _ in 0..3 {
            let pushed = program.submitter.push(&violation, Inline::NONE);
            assert!(pushed.is_ok());
        }
        steps(&mut nodes, &clock, 10);
        assert_eq!(hear(&mut nodes[0]), [Heard::Fault(0)], "{violation:?}");
        // The other connection on the link still works.
        let mut run = ping(64, 10);
        run.conn = ConnId(1);
        nodes[0].send(Command::App(run));
        steps(&mut nodes, &clock, 1000);
        assert_eq!(hear(&mut nodes[0]), [Heard::Ping(PingEnd::Done)]);
        nodes[0].send(Command::DetachSession(SessionId(0)));
        steps(&mut nodes, &clock, 100);
        let reset = Heard::Closed(0, ConnOutcome::Reset, PeerDone::Yes);
        assert_eq!(hear(&mut nodes[0]), [reset, Heard::Detached(0)]);
    }
}

/// Two workers in threads of their own play ping-pong in a mode that sleeps; gives the sleeps.
fn play(mode: PollMode, spin_ns: u64, rounds: usize) -> u64 {
    let wait = WaitSpec {
        mode,
        spin_ns,
        ..WaitSpec::default()
    };
    let apps = [Builtin::default(), Builtin::default()];
    let mut nodes = pair(Sizes::default(), apps, &Tsc::new(), wait);
    connect(&mut nodes, 0, [TAG_PING, TAG_ECHO]);
    nodes[0].send(Command::App(ping(64, rounds)));
    let [a, b]: [PingNode; 2] = nodes;
    let (mut orders_a, mut news_a, worker_a, wake_a) = (a.orders, a.news, a.worker, a.wake);
    let (mut orders_b, worker_b, wake_b) = (b.orders, b.worker, b.wake);
    let mut sleeps = None;
    std::thread::scope(|scope| {
        scope.spawn(|| worker_a.run());
        scope.spawn(|| worker_b.run());
        while sleeps.is_none() {
            match news_a.pop() {
                Some(Report::App(run)) => {
                    assert_eq!((run.end, run.samples.len()), (PingEnd::Done, rounds));
                    let snapshot = pollux_worker::Snapshot::with_room(4, 4, 4);
                    let asked = orders_a.push(Command::Snapshot(Box::new(snapshot)));
                    assert!(asked.is_ok());
                    wake_a.signal().expect("signal");
                }
                Some(Report::Snapshot(snapshot)) => sleeps = Some(snapshot.figures.sleeps),
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        }
        for (orders, wake) in [(&mut orders_a, &wake_a), (&mut orders_b, &wake_b)] {
            assert!(orders.push(Command::Stop).is_ok());
            wake.signal().expect("signal");
        }
    });
    sleeps.unwrap_or(0)
}

#[test]
fn workers_that_sleep_at_once_wake_each_other_for_every_message() {
    let sleeps = play(PollMode::Interrupt, 0, 3000);
    assert!(sleeps > 0);
}

#[test]
fn workers_that_spin_just_too_short_lose_no_wake_up() {
    // About as long as an answer takes, so that arming and the answer meet at every distance.
    for spin_ns in [0, 500, 2000, 5000, 20_000] {
        play(PollMode::Adaptive, spin_ns, 1500);
    }
}

/// Writes to its connections when ordered, and counts what it reads.
#[derive(Default)]
struct Counting {
    read: usize,
}

impl App for Counting {
    /// To how many connections.
    type Order = u16;
    type Report = Infallible;

    fn order<I: Io>(&mut self, conns: u16, io: &mut I) -> Option<Infallible> {
        for conn in 0..conns {
            assert_eq!(io.write(ConnId(conn), &[7; 100]), 100);
        }
        None
    }

    fn opened<I: Io>(&mut self, _: ConnId, _: u64, _: &mut I) {}

    fn ready<I: Io>(
        &mut self,
        conn: ConnId,
        _: u64,
        _: EventSet,
        io: &mut I,
    ) -> Option<Infallible> {
        while let count @ 1.. = io.read(conn, &mut [0; 64]) {
            self.read += count;
        }
        None
    }

    fn closed(&mut self, _: ConnId, _: u64, _: ConnOutcome) -> Option<Infallible> {
        None
    }
}

#[test]
fn what_came_before_a_queue_pair_failed_is_delivered_before_the_link_fails() {
    let clock = ManualClock::default();
    for conns in 1..=4 {
        let sizes = Sizes {
            conns,
            ..Sizes::default()
        };
        let apps = [Counting::default(), Counting::default()];
        let mut nodes = pair(sizes, apps, &clock, WaitSpec::default());
        for conn in 0..conns {
            connect(&mut nodes, conn, [0, 0]);
        }
        for _ in 0..10 {
            for node in &mut nodes {
                let _ = node.worker.pass();
            }
        }
        let [mut a, mut b] = nodes;
        b.send(Command::App(conns));
        let _ = b.worker.pass();
        a.breaks.store(true, Ordering::Relaxed);
        for _ in 0..4 {
            let _ = a.worker.pass();
        }
        assert_eq!(a.worker.app().read, 100 * usize::from(conns));
        let mut failed = 0;
        while let Some(report) = a.news.pop() {
            failed += usize::from(matches!(report, Report::LinkFailed { .. }));
        }
        assert_eq!(failed, 1);
    }
}
