//! Receive-queue credits in the worker: never a message that the peer has no receive for, nobody
//! starves, nobody waits for ever.

mod common;

use std::convert::Infallible;

use common::{ManualClock, Node, Sizes, connect, pair};
use pollux_proto::event::EventSet;
use pollux_wire::llc::{AnnounceCredits, Direction, Form, LLC_BYTES};
use pollux_worker::{
    App, Command, ConnId, ConnOutcome, Io, LinkFigures, LinkId, Report, SEND_QUEUE_MIN, Snapshot,
    WaitSpec,
};

/// What the other side does with what it gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// Sends a byte on each connection whenever it can, up to a number for each.
    Sends,
    /// Only reads.
    Reads,
}

struct Side {
    habit: Habit,
    each: usize,
    sent: Vec<usize>,
    received: Vec<usize>,
    resets: usize,
}

impl Side {
    fn new(habit: Habit, conns: u16, each: usize) -> Side {
        Side {
            habit,
            each,
            sent: vec![0; usize::from(conns)],
            received: vec![0; usize::from(conns)],
            resets: 0,
        }
    }

    fn go_on<I: Io>(&mut self, conn: ConnId, io: &mut I) {
        let index = usize::from(conn.0);
        let mut bytes = [0; 64];
        loop {
            let got = io.read(conn, &mut bytes);
            if got == 0 {
                break;
            }
            self.received[index] += got;
        }
        if self.habit == Habit::Sends && self.sent[index] < self.each {
            self.sent[index] += io.write(conn, &[self.sent[index] as u8]);
        }
    }
}

impl App for Side {
    /// The connection that may send its next byte.
    type Order = ConnId;
    type Report = Infallible;

    fn order<I: Io>(&mut self, conn: ConnId, io: &mut I) -> Option<Infallible> {
        self.go_on(conn, io);
        None
    }

    fn opened<I: Io>(&mut self, conn: ConnId, _tag: u64, io: &mut I) {
        self.go_on(conn, io);
    }

    fn ready<I: Io>(
        &mut self,
        conn: ConnId,
        _tag: u64,
        events: EventSet,
        io: &mut I,
    ) -> Option<Infallible> {
        if events.contains(EventSet::RESET) {
            self.resets += 1;
        }
        self.go_on(conn, io);
        None
    }

    fn closed(&mut self, _conn: ConnId, _tag: u64, _outcome: ConnOutcome) -> Option<Infallible> {
        self.resets += 1;
        None
    }
}

struct World {
    nodes: [Node<Side, ManualClock>; 2],
    clock: ManualClock,
    conns: u16,
    /// Announcements that a worker has asked for and control has not ordered.
    due: [usize; 2],
}

/// Whether control does its part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    Answers,
    Sleeps,
}

impl World {
    fn new(receives: u8, conns: u16, habits: [Habit; 2], each: usize) -> World {
        let sizes = Sizes {
            recv_wr: u32::from(receives),
            send_wr: 64,
            conns,
            flow: Some(receives),
            ..Sizes::default()
        };
        World::with(sizes, habits, each)
    }

    fn with(sizes: Sizes, habits: [Habit; 2], each: usize) -> World {
        let clock = ManualClock::default();
        let apps = habits.map(|habit| Side::new(habit, sizes.conns, each));
        let mut world = World {
            nodes: pair(sizes, apps, &clock, WaitSpec::default()),
            clock,
            conns: sizes.conns,
            due: [0; 2],
        };
        for conn in 0..sizes.conns {
            connect(&mut world.nodes, conn, [0, 0]);
            for side in 0..2 {
                world.pass(side, Control::Sleeps);
            }
        }
        world
    }

    fn pass(&mut self, side: usize, control: Control) -> Option<Box<Snapshot>> {
        let node = &mut self.nodes[side];
        let _ = node.worker.pass();
        self.clock.advance(300);
        let mut taken = None;
        while let Some(report) = node.news.pop() {
            match report {
                Report::CreditsDue { link, credits } => {
                    assert!(credits > 0 && link == LinkId(0));
                    self.due[side] += 1;
                }
                Report::Snapshot(snapshot) => taken = Some(snapshot),
                Report::LinkFailed { .. } => panic!("{report:?}"),
                _ => {}
            }
        }
        if control == Control::Answers {
            for _ in 0..std::mem::take(&mut self.due[side]) {
                node.send(Command::SendLlc {
                    link: LinkId(0),
                    message: announcement(1),
                });
            }
        }
        taken
    }

    fn link(&mut self, side: usize) -> LinkFigures {
        let snapshot = Snapshot::with_room(usize::from(self.conns), 2, 2);
        self.nodes[side].send(Command::Snapshot(Box::new(snapshot)));
        for _ in 0..1000 {
            if let Some(snapshot) = self.pass(side, Control::Answers) {
                return snapshot.links[0].clone();
            }
        }
        panic!("no snapshot came");
    }

    fn app(&self, side: usize) -> &Side {
        self.nodes[side].worker.app()
    }

    fn is_done(&self, each: usize) -> bool {
        let got_all = |side: usize| self.app(side).received.iter().all(|got| *got == each);
        let sender = |side: usize| self.app(1 - side).habit == Habit::Sends;
        (0..2).all(|side| !sender(side) || got_all(side))
    }
}

/// An ANNOUNCE CREDITS as control makes it; the worker fills the number in.
fn announcement(credits: u8) -> pollux_worker::LlcBytes {
    let direction = Direction::Response;
    let mut bytes = [0; LLC_BYTES];
    AnnounceCredits { direction, credits }
        .emit(Form::V1, &mut bytes)
        .expect("room");
    bytes.into_iter().collect()
}

/// Seeded numbers (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Lets both sides run at random, each with pauses, until everything has arrived; nobody may ever
/// be told "receiver not ready".
fn run(world: &mut World, each: usize, seed: u64) {
    let mut numbers = Numbers(seed);
    for _ in 0..200_000 {
        if world.is_done(each) {
            break;
        }
        let side = numbers.below(2);
        // A pause of one side is a run of passes of the other.
        for _ in 0..1 + numbers.below(12) {
            for conn in 0..world.conns {
                let app = world.app(side);
                if app.habit == Habit::Sends && app.sent[usize::from(conn)] < each {
                    let node = &mut world.nodes[side];
                    let _ = node.orders.push(Command::App(ConnId(conn)));
                }
            }
            world.pass(side, Control::Answers);
        }
    }
    assert!(
        world.is_done(each),
        "{:?} {:?}",
        world.link(0),
        world.link(1)
    );
    for side in 0..2 {
        let link = world.link(side);
        assert_eq!(world.app(side).resets, 0);
        let credits = link.credits.expect("credits");
        assert_eq!(
            (link.stats.rnr_naks_sent, link.stats.rnr_naks_received),
            (0, 0)
        );
        assert!(credits.held <= credits.initial, "{credits:?}");
    }
}

#[test]
fn many_senders_to_a_reader_with_few_receives_are_never_told_not_ready() {
    for receives in [8, 16, 33] {
        let habits = [Habit::Sends, Habit::Reads];
        let mut world = World::new(receives, 40, habits, 30);
        run(&mut world, 30, u64::from(receives) * 77);
        let (sender, reader) = (world.link(0), world.link(1));
        let (sent, read) = (sender.credits.expect("on"), reader.credits.expect("on"));
        assert!(sent.waits > 0 && sent.waited_ns > 0, "{sent:?}");
        assert!(sent.low_water > 0, "{sent:?}");
        assert!(read.announcements_sent > 0, "{read:?}");
        assert_eq!(read.announcements_sent, sent.announcements_received);
    }
}

#[test]
fn traffic_both_ways_returns_credits_on_its_own_messages() {
    let habits = [Habit::Sends, Habit::Sends];
    let mut world = World::new(16, 20, habits, 50);
    run(&mut world, 50, 4711);
    for side in 0..2 {
        let credits = world.link(side).credits.expect("on");
        assert!(credits.returned_by_cdc > credits.returned_by_announcement);
    }
}

#[test]
fn without_control_a_sender_stops_within_the_receives_and_goes_on_with_it() {
    let mut world = World::new(8, 10, [Habit::Sends, Habit::Reads], 10);
    let passes = |world: &mut World, control: Control| {
        for _ in 0..3000 {
            for side in 0..2 {
                for conn in 0..world.conns {
                    let _ = world.nodes[0].orders.push(Command::App(ConnId(conn)));
                }
                world.pass(side, control);
            }
        }
    };
    passes(&mut world, Control::Sleeps);
    let arrived: usize = world.app(1).received.iter().sum();
    assert_eq!(arrived, 7, "all but the reserved credit");
    assert_eq!(world.due, [0, 1], "asked for once");
    passes(&mut world, Control::Answers);
    assert!(world.is_done(10), "{:?}", world.app(1).received);
    assert_eq!(world.link(1).stats.rnr_naks_sent, 0);
}

#[test]
fn the_time_without_credits_goes_on_while_somebody_waits_though_others_were_served() {
    let mut world = World::new(8, 30, [Habit::Sends, Habit::Reads], 1);
    let waited = |world: &mut World| world.link(0).credits.expect("on").waited_ns;
    // The first seven are served, then a few more each time that credits come back.
    for _ in 0..3 {
        for side in [1, 0] {
            for _ in 0..3 {
                world.pass(side, Control::Answers);
            }
        }
        let still = world.app(1).received.contains(&0);
        let before = waited(&mut world);
        world.clock.advance(1_000_000);
        let gone = waited(&mut world) - before;
        assert!(!still || gone >= 1_000_000, "{gone} ns of 1000000");
    }
}

#[test]
fn connections_that_wait_for_credits_are_served_in_their_order() {
    let mut world = World::new(8, 30, [Habit::Sends, Habit::Reads], 1);
    // All want to send a byte; the peer is not polled, so seven find a credit.
    for _ in 0..20 {
        world.pass(0, Control::Answers);
    }
    let order = |world: &World| -> Vec<usize> {
        let received = &world.app(1).received;
        (0..received.len()).filter(|i| received[*i] > 0).collect()
    };
    let mut seen = Vec::new();
    for _ in 0..2000 {
        for side in [1, 0] {
            world.pass(side, Control::Answers);
        }
        for conn in order(&world) {
            if !seen.contains(&conn) {
                seen.push(conn);
            }
        }
    }
    assert_eq!(seen, (0..30).collect::<Vec<_>>());
}

#[test]
fn a_peer_that_returns_credits_it_never_took_loses_the_link() {
    let mut world = World::new(8, 1, [Habit::Reads, Habit::Reads], 0);
    let node = &mut world.nodes[1];
    // The worker fills in what it really has, so a liar needs a message it does not know: a CDC
    // for nobody that returns nine credits.
    let lie = pollux_wire::cdc::Repr {
        seq: 1,
        token: 0x7777,
        producer: pollux_wire::cdc::RingCursor { wrap: 0, count: 0 },
        consumer: pollux_wire::cdc::RingCursor { wrap: 0, count: 0 },
        producer_flags: pollux_wire::cdc::ProducerFlags::EMPTY,
        state_flags: pollux_wire::cdc::ConnStateFlags::EMPTY,
        credits: 9,
    };
    let mut bytes = [0; pollux_wire::cdc::CDC_BYTES];
    lie.emit(&mut bytes);
    node.send(Command::SendLlc {
        link: LinkId(0),
        message: bytes.into_iter().collect(),
    });
    let mut failed = false;
    for _ in 0..100 {
        for node in &mut world.nodes {
            let _ = node.worker.pass();
        }
        while let Some(report) = world.nodes[0].news.pop() {
            failed |= matches!(report, Report::LinkFailed { .. });
        }
    }
    assert!(failed && world.app(0).resets > 0);
}

#[test]
fn a_queue_of_the_smallest_size_returns_credits_too() {
    let sizes = Sizes {
        send_wr: SEND_QUEUE_MIN,
        recv_wr: 8,
        conns: 12,
        flow: Some(8),
        inline_bytes: 0,
        ..Sizes::default()
    };
    let mut world = World::with(sizes, [Habit::Sends, Habit::Sends], 40);
    run(&mut world, 40, 99);
}
