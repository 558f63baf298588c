//! A token may be used as soon as it was announced, and it is announced as soon as control has put the
//! reservation into the mailbox.

mod common;

use std::convert::Infallible;

use common::{ManualClock, Sizes, pair};
use pollux_proto::event::EventSet;
use pollux_worker::{App, Command, ConnId, ConnOutcome, InlineRule, Io, Owner, Report, WaitSpec};

/// Says a byte on each of its connections and counts what it hears.
#[derive(Default)]
struct Side {
    heard: usize,
}

impl Side {
    fn read<I: Io>(&mut self, conn: ConnId, io: &mut I) {
        let mut bytes = [0; 8];
        self.heard += io.read(conn, &mut bytes);
    }
}

impl App for Side {
    type Order = Infallible;
    type Report = Infallible;

    fn order<I: Io>(&mut self, order: Infallible, _io: &mut I) -> Option<Infallible> {
        match order {}
    }

    fn opened<I: Io>(&mut self, conn: ConnId, _tag: u64, io: &mut I) {
        io.write(conn, &[1]);
        self.read(conn, io);
    }

    fn ready<I: Io>(
        &mut self,
        conn: ConnId,
        _tag: u64,
        _events: EventSet,
        io: &mut I,
    ) -> Option<Infallible> {
        self.read(conn, io);
        None
    }

    fn closed(&mut self, _conn: ConnId, _tag: u64, _outcome: ConnOutcome) -> Option<Infallible> {
        None
    }
}

#[test]
fn a_message_that_comes_before_its_reservation_was_looked_at_is_kept() {
    let conns = 20;
    let sizes = Sizes {
        conns,
        ..Sizes::default()
    };
    let clock = ManualClock::default();
    let mut nodes = pair(
        sizes,
        [Side::default(), Side::default()],
        &clock,
        WaitSpec::default(),
    );
    for node in &mut nodes {
        let _ = node.worker.pass();
    }
    let rmbs: Vec<_> = (0..conns).map(|conn| nodes[0].rmb(conn)).collect();
    let peer_rmbs: Vec<_> = (0..conns).map(|conn| nodes[1].rmb(conn)).collect();
    // The second worker does not get to run while control fills its mailbox, the peers hear of the
    // tokens and say their first bytes.
    for conn in 0..conns {
        nodes[1].reserve(conn);
        nodes[1].send(Command::SetInline(InlineRule::ALL));
    }
    for conn in 0..conns {
        nodes[0].open(conn, peer_rmbs[usize::from(conn)], Owner::App(0));
        let _ = nodes[0].worker.pass();
    }
    for _ in 0..20 {
        let _ = nodes[1].worker.pass();
    }
    for conn in 0..conns {
        nodes[1].open_reserved(conn, rmbs[usize::from(conn)], Owner::App(0));
        for _ in 0..4 {
            let _ = nodes[1].worker.pass();
        }
    }
    for _ in 0..20 {
        let _ = nodes[0].worker.pass();
    }
    let heard = nodes.each_ref().map(|node| node.worker.app().heard);
    assert_eq!(heard, [usize::from(conns); 2]);
    for node in &mut nodes {
        while let Some(report) = node.news.pop() {
            assert!(!matches!(report, Report::LinkFailed { .. }), "{report:?}");
        }
    }
}
