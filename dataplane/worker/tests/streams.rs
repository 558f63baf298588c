//! Many connections on one link: every byte arrives, and none of them starves.

mod common;

use common::{ManualClock, Node, Sizes, connect, pair};
use pollux_proto::event::EventSet;
use pollux_worker::{App, Command, ConnId, ConnOutcome, InlineRule, Io, Report, WaitSpec};
use std::convert::Infallible;

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

/// The byte of a connection's stream at a position.
fn byte_at(conn: usize, position: usize) -> u8 {
    let mixed = (position as u64 ^ (conn as u64) << 40) * 0x9e37 + 0x79b9;
    (mixed >> 7) as u8
}

/// One connection's two directions at one side.
#[derive(Clone, Copy, Default)]
struct Progress {
    sent: usize,
    received: usize,
    ended: Option<ConnOutcome>,
}

/// Sends and checks a stream on each of its connections, in pieces of random sizes; half closes
/// after the last byte, and closes after the peer's.
struct Streamer {
    conns: Vec<Progress>,
    total: usize,
    numbers: Numbers,
    /// Longest piece that is written or read at a time.
    piece_max: usize,
}

impl Streamer {
    fn new(conns: u16, total: usize, piece_max: usize, seed: u64) -> Streamer {
        Streamer {
            conns: vec![Progress::default(); usize::from(conns)],
            total,
            numbers: Numbers(seed),
            piece_max,
        }
    }

    fn go_on<I: Io>(&mut self, conn: ConnId, io: &mut I) {
        let index = usize::from(conn.0);
        let mut piece = [0; 4096];
        loop {
            let progress = &mut self.conns[index];
            let left = self.total - progress.sent;
            let len = (1 + self.numbers.below(self.piece_max)).min(left);
            for (offset, byte) in piece[..len].iter_mut().enumerate() {
                *byte = byte_at(index, progress.sent + offset);
            }
            let sent = io.write(conn, &piece[..len]);
            progress.sent += sent;
            if sent > 0 && progress.sent == self.total {
                io.shutdown_write(conn);
            }
            let len = 1 + self.numbers.below(self.piece_max);
            let got = io.read(conn, &mut piece[..len]);
            for (offset, byte) in piece[..got].iter().enumerate() {
                let at = progress.received + offset;
                assert_eq!(*byte, byte_at(index, at), "connection {index}, byte {at}");
            }
            progress.received += got;
            if sent == 0 && got == 0 {
                break;
            }
        }
        let progress = &self.conns[index];
        if progress.sent == self.total && progress.received == self.total {
            io.close(conn);
        }
    }
}

impl App for Streamer {
    type Order = Infallible;
    type Report = Infallible;

    fn order<I: Io>(&mut self, order: Infallible, _io: &mut I) -> Option<Infallible> {
        match order {}
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
        assert!(!events.contains(EventSet::RESET), "{conn:?} was reset");
        self.go_on(conn, io);
        None
    }

    fn closed(&mut self, conn: ConnId, _tag: u64, outcome: ConnOutcome) -> Option<Infallible> {
        self.conns[usize::from(conn.0)].ended = Some(outcome);
        None
    }
}

type StreamNode = Node<Streamer, ManualClock>;

fn nodes(sizes: Sizes, total: usize, piece_max: usize) -> ([StreamNode; 2], ManualClock) {
    let clock = ManualClock::default();
    let apps = [1, 2].map(|seed| Streamer::new(sizes.conns, total, piece_max, seed));
    let mut nodes = pair(sizes, apps, &clock, WaitSpec::default());
    for conn in 0..sizes.conns {
        connect(&mut nodes, conn, [0, 0]);
        step(&mut nodes, &clock);
    }
    (nodes, clock)
}

fn step(nodes: &mut [StreamNode; 2], clock: &ManualClock) {
    for node in nodes {
        let _ = node.worker.pass();
        while let Some(report) = node.news.pop() {
            assert!(!matches!(report, Report::LinkFailed { .. }), "{report:?}");
        }
    }
    clock.advance(200);
}

fn run_to_the_end(nodes: &mut [StreamNode; 2], clock: &ManualClock, total: usize) {
    let ended = |node: &StreamNode| node.worker.app().conns.iter().all(|c| c.ended.is_some());
    for _ in 0..20_000_000 {
        if nodes.iter().all(ended) {
            break;
        }
        step(nodes, clock);
    }
    for node in nodes {
        for (index, conn) in node.worker.app().conns.iter().enumerate() {
            assert_eq!((conn.sent, conn.received), (total, total), "{index}");
            assert_eq!(conn.ended, Some(ConnOutcome::Closed), "{index}");
        }
    }
}

#[test]
fn random_pieces_on_many_connections_with_tiny_rings_arrive_whole() {
    for (ring_bytes, inline_bytes) in [(1, 256), (2, 0), (7, 256), (64, 44), (100, 0), (257, 256)] {
        let sizes = Sizes {
            inline_bytes,
            conns: 12,
            ..Sizes::default()
        }
        .with_rings(ring_bytes);
        let total = (ring_bytes as usize * 97).max(500);
        let (mut nodes, clock) = nodes(sizes, total, 2 * ring_bytes as usize + 1);
        run_to_the_end(&mut nodes, &clock, total);
    }
}

#[test]
fn connections_that_exceed_the_send_queue_many_times_all_make_progress() {
    let sizes = Sizes {
        // The smallest queue that a link may have.
        send_wr: pollux_worker::SEND_QUEUE_MIN,
        recv_wr: 16,
        conns: 60,
        ..Sizes::default()
    }
    .with_rings(1024);
    let total = 100_000;
    let (mut nodes, clock) = nodes(sizes, total, 1500);
    let received = |nodes: &[StreamNode; 2]| -> Vec<usize> {
        let conns = nodes.iter().flat_map(|node| &node.worker.app().conns);
        conns.map(|conn| conn.received).collect()
    };
    loop {
        step(&mut nodes, &clock);
        let now = received(&nodes);
        let (least, most) = (now.iter().min().unwrap(), now.iter().max().unwrap());
        if *most >= total / 2 {
            assert!(*least >= total / 8, "one starves: {now:?}");
            break;
        }
    }
    run_to_the_end(&mut nodes, &clock, total);
}

#[test]
fn streams_arrive_whole_while_the_rule_of_inline_changes_all_the_time() {
    // The driver refuses a post above the grant, and the link fails.
    for (granted, ring_bytes) in [(0, 300), (44, 300), (101, 1024), (988, 2000)] {
        let sizes = Sizes {
            inline_bytes: granted,
            conns: 6,
            ..Sizes::default()
        }
        .with_rings(ring_bytes);
        let total = ring_bytes as usize * 600;
        let (mut nodes, clock) = nodes(sizes, total, 1200);
        let mut numbers = Numbers(u64::from(granted) + 7);
        let mut limit = || [0, 1, 17, 43, 44, 64, 1024, u32::MAX][numbers.below(8)];
        let ended = |node: &StreamNode| node.worker.app().conns.iter().all(|c| c.ended.is_some());
        let mut changes = 0;
        while !nodes.iter().all(ended) && changes < 1_000_000 {
            for node in &mut nodes {
                let (messages, writes) = (limit(), limit());
                node.send(Command::SetInline(InlineRule { messages, writes }));
            }
            step(&mut nodes, &clock);
            changes += 1;
        }
        assert!(changes > 100, "{changes}");
        run_to_the_end(&mut nodes, &clock, total);
    }
}
