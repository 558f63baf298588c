//! What goes inline: judged for each chunk of each post by its length, never above what the queue
//! pair has granted, and counted as such.

mod common;

use std::collections::BTreeSet;
use std::convert::Infallible;

use common::{ManualClock, Node, Sizes, connect, pair};
use pollux_proto::event::EventSet;
use pollux_proto::plan::{self, Placement, Spot};
use pollux_provider::QpStats;
use pollux_wire::cdc::CDC_BYTES;
use pollux_worker::{
    App, Command, ConnId, ConnOutcome, InlineRule, Io, LLC_BYTES_MAX, LinkFigures, LinkId, Report,
    Snapshot, WaitSpec,
};

/// Writes a message when ordered to, and keeps what arrives.
#[derive(Default)]
struct Courier {
    received: Vec<u8>,
}

impl App for Courier {
    type Order = Vec<u8>;
    type Report = Infallible;

    fn order<I: Io>(&mut self, message: Vec<u8>, io: &mut I) -> Option<Infallible> {
        assert_eq!(io.write(ConnId(0), &message), message.len());
        None
    }

    fn opened<I: Io>(&mut self, _conn: ConnId, _tag: u64, _io: &mut I) {}

    fn ready<I: Io>(
        &mut self,
        conn: ConnId,
        _tag: u64,
        events: EventSet,
        io: &mut I,
    ) -> Option<Infallible> {
        assert!(!events.contains(EventSet::RESET), "{conn:?} was reset");
        let mut part = [0; 600];
        loop {
            let got = io.read(conn, &mut part);
            if got == 0 {
                return None;
            }
            self.received.extend_from_slice(&part[..got]);
        }
    }

    fn closed(&mut self, conn: ConnId, _tag: u64, outcome: ConnOutcome) -> Option<Infallible> {
        panic!("{conn:?} ended with {outcome:?}");
    }
}

/// Two couriers and what they have exchanged.
struct World {
    nodes: [Node<Courier, ManualClock>; 2],
    clock: ManualClock,
    sizes: Sizes,
    sent: Vec<u8>,
}

impl World {
    fn new(sizes: Sizes) -> World {
        let clock = ManualClock::default();
        let apps = [Courier::default(), Courier::default()];
        let mut nodes = pair(sizes, apps, &clock, WaitSpec::default());
        connect(&mut nodes, 0, [0, 0]);
        let sent = Vec::new();
        let mut world = World {
            nodes,
            clock,
            sizes,
            sent,
        };
        world.settle();
        world
    }

    fn step(&mut self) -> Option<Box<Snapshot>> {
        let mut taken = None;
        for node in &mut self.nodes {
            let _ = node.worker.pass();
            while let Some(report) = node.news.pop() {
                match report {
                    Report::Snapshot(snapshot) => taken = Some(snapshot),
                    Report::LinkFailed { .. } => panic!("{report:?}"),
                    _ => {}
                }
            }
        }
        self.clock.advance(200);
        taken
    }

    /// Passes until everything that was said has been answered.
    fn settle(&mut self) {
        for _ in 0..40 {
            let _ = self.step();
        }
    }

    /// Sends a message there and waits until it has arrived; the content depends on everything
    /// sent before.
    fn deliver(&mut self, len: u32) {
        let at = self.sent.len();
        let message: Vec<u8> = (at..at + len as usize)
            .map(|at| ((at * 31) >> 2) as u8)
            .collect();
        self.sent.extend_from_slice(&message);
        self.nodes[0].send(Command::App(message));
        for _ in 0..100_000 {
            let _ = self.step();
            if self.received().len() == self.sent.len() {
                break;
            }
        }
        self.settle();
        assert!(self.received() == self.sent, "bytes differ");
    }

    fn received(&self) -> &[u8] {
        &self.nodes[1].worker.app().received
    }

    /// Figures of the sender's link.
    fn link(&mut self) -> LinkFigures {
        let snapshot = Box::new(Snapshot::with_room(4, 2, 2));
        self.nodes[0].send(Command::Snapshot(snapshot));
        for _ in 0..100 {
            if let Some(snapshot) = self.step() {
                return snapshot.links[0].clone();
            }
        }
        panic!("no snapshot came");
    }

    fn stats(&mut self) -> QpStats {
        self.link().stats
    }

    /// The writes that the next `len` bytes must become under a limit.
    fn plan(&self, len: u32, limit: u32) -> Vec<plan::Write> {
        let spot = |ring: u32| Spot {
            offset: (self.sent.len() as u64 % u64::from(ring)) as u32,
            ring,
        };
        let (source, target) = (spot(self.sizes.ring_bytes), spot(self.sizes.rmbe_bytes));
        plan::cut(len, source, target, limit).into_iter().collect()
    }
}

/// What a message must add to the counters.
fn expected(before: QpStats, writes: &[plan::Write], limit: u32) -> QpStats {
    let mut after = before;
    for write in writes {
        match write.placement {
            Placement::Inline => after.writes_inline += 1,
            Placement::ByReference => after.writes_by_reference += 1,
        }
        after.bytes_posted += u64::from(write.len);
    }
    if CDC_BYTES as u32 <= limit {
        after.sends_inline += 1;
    } else {
        after.sends_by_reference += 1;
    }
    after.bytes_posted += CDC_BYTES as u64;
    after.doorbells += 1;
    after
}

/// The counters that posts move, without those of completions and of the other direction.
fn posts(stats: QpStats) -> QpStats {
    QpStats {
        send_completions: 0,
        recvs_posted: 0,
        recv_completions: 0,
        rnr_naks_received: 0,
        writes_executed: 0,
        ..stats
    }
}

/// Number of pieces and placement of each chunk.
type Shape = Vec<(usize, Placement)>;

fn shape(writes: &[plan::Write]) -> Shape {
    let chunk = |write: &plan::Write| (write.pieces.len(), write.placement);
    writes.iter().map(chunk).collect()
}

/// Every message of the sizes around the limit, with wraps of both rings at ever other places.
fn sweep(limit: u32, seen: &mut BTreeSet<String>) {
    let sizes = Sizes {
        inline_bytes: limit,
        // Without a common divisor, so that their ends meet messages everywhere.
        ring_bytes: 641,
        rmbe_bytes: 523,
        ..Sizes::default()
    };
    let mut world = World::new(sizes);
    for round in 0..40 {
        for len in limit.saturating_sub(3).max(1)..=limit + 3 {
            // A filler in between moves the ends along. A reader may leave half of its ring
            // unreported: longer messages would be sent in parts.
            for len in [len, 1 + round * 41 % 250] {
                let writes = world.plan(len, limit);
                let before = world.stats();
                world.deliver(len);
                let after = world.stats();
                assert_eq!(
                    posts(after),
                    posts(expected(before, &writes, limit)),
                    "{len} bytes, limit {limit}, {writes:?}"
                );
                seen.insert(format!("{:?}", shape(&writes)));
            }
        }
    }
}

#[test]
fn every_size_around_every_limit_arrives_whole_and_is_posted_as_its_length_says() {
    let mut seen = BTreeSet::new();
    for limit in [0, 1, 43, 44, 45, 63, 64, 96, 101, 216, 256] {
        sweep(limit, &mut seen);
    }
    use Placement::{ByReference, Inline};
    let mut wanted = Vec::new();
    for how in [Inline, ByReference] {
        wanted.extend([vec![(1, how)], vec![(2, how)]]);
        for then in [Inline, ByReference] {
            wanted.push(vec![(1, how), (1, then)]);
            wanted.push(vec![(2, how), (1, then)]);
            wanted.push(vec![(1, how), (2, then)]);
        }
    }
    for shape in wanted {
        assert!(
            seen.contains(&format!("{shape:?}")),
            "{shape:?} of {seen:?}"
        );
    }
}

#[test]
fn each_post_is_judged_by_the_rule_of_its_moment() {
    let mut world = World::new(Sizes::default());
    let writes_only = InlineRule {
        messages: 0,
        writes: 64,
    };
    let messages_only = InlineRule {
        messages: 44,
        writes: 63,
    };
    let rules = [
        (InlineRule::OFF, [0, 0]),
        (InlineRule::ALL, [1, 1]),
        (messages_only, [0, 1]),
        (writes_only, [1, 0]),
        (
            InlineRule {
                messages: 43,
                writes: 64,
            },
            [1, 0],
        ),
    ];
    for turn in 0..25 {
        // Each rule after each other one.
        let (rule, [writes_inline, sends_inline]) = rules[(turn * (turn / 5 + 1)) % 5];
        world.nodes[0].send(Command::SetInline(rule));
        world.settle();
        let before = world.link();
        assert_eq!(before.inline, rule.within(256));
        world.deliver(64);
        let after = world.stats();
        let added = |count: fn(&QpStats) -> u64| count(&after) - count(&before.stats);
        let counted = [
            added(|stats| stats.writes_inline),
            added(|stats| stats.writes_by_reference),
            added(|stats| stats.sends_inline),
            added(|stats| stats.sends_by_reference),
        ];
        let all = [
            writes_inline,
            1 - writes_inline,
            sends_inline,
            1 - sends_inline,
        ];
        assert_eq!(counted, all, "{rule:?}");
    }
}

#[test]
fn a_link_that_is_made_later_obeys_the_rule_in_force() {
    let clock = ManualClock::default();
    let apps = [Courier::default(), Courier::default()];
    let [mut node, _peer] = pair(Sizes::default(), apps, &clock, WaitSpec::default());
    let rule = InlineRule {
        messages: 300,
        writes: 17,
    };
    node.send(Command::ReleaseLink(LinkId(0)));
    node.send(Command::SetInline(rule));
    let _ = node.worker.pass();
    let released = std::iter::from_fn(|| node.news.pop()).find_map(|report| match report {
        Report::LinkReleased {
            qp, bookkeeping, ..
        } => qp.zip(bookkeeping),
        _ => None,
    });
    let (qp, link) = released.expect("the link comes back");
    node.send(Command::AdoptLink { qp, link });
    let snapshot = Box::new(Snapshot::with_room(4, 2, 2));
    node.send(Command::Snapshot(snapshot));
    let mut taken = None;
    for _ in 0..10 {
        let _ = node.worker.pass();
        while let Some(report) = node.news.pop() {
            if let Report::Snapshot(snapshot) = report {
                taken = Some(snapshot.links[0].inline);
            }
        }
    }
    assert_eq!(taken, Some(rule.within(256)));
}

#[test]
fn a_rule_above_the_grant_changes_nothing() {
    let sizes = Sizes {
        inline_bytes: 48,
        ..Sizes::default()
    };
    let mut world = World::new(sizes);
    for rule in [InlineRule::ALL, InlineRule::ALL.within(49)] {
        world.nodes[0].send(Command::SetInline(rule));
        world.settle();
        assert_eq!(world.link().inline, InlineRule::ALL.within(48));
        let before = world.stats();
        world.deliver(49);
        assert_eq!(
            world.stats().writes_by_reference,
            before.writes_by_reference + 1
        );
    }
}

#[test]
fn control_messages_go_inline_iff_their_length_fits() {
    for limit in [0, 43, 44, 45, 87, 88, 95, 96, 256] {
        let sizes = Sizes {
            inline_bytes: limit,
            ..Sizes::default()
        };
        let mut world = World::new(sizes);
        for len in [1, 43, 44, 45, 86, 87, 88, 89, 95, LLC_BYTES_MAX] {
            let before = world.stats();
            // 0x7f is no message type that anybody has: control would be shown it as it is.
            let message = (0..len).map(|at| 0x7f ^ at as u8).collect();
            world.nodes[0].send(Command::SendLlc {
                link: LinkId(0),
                message,
            });
            let mut arrived = None;
            for _ in 0..100 {
                for node in &mut world.nodes {
                    let _ = node.worker.pass();
                }
                while let Some(report) = world.nodes[1].news.pop() {
                    if let Report::Llc { message, .. } = report {
                        arrived = Some(message);
                    }
                }
            }
            let arrived = arrived.unwrap_or_else(|| panic!("{len} bytes, limit {limit}"));
            assert!(
                (0..len).all(|at| arrived[at] == 0x7f ^ at as u8) && arrived.len() == len,
                "{arrived:?}"
            );
            let after = world.stats();
            let inline = u64::from(len <= limit as usize);
            assert_eq!(after.sends_inline - before.sends_inline, inline);
            assert_eq!(
                after.sends_by_reference - before.sends_by_reference,
                1 - inline
            );
        }
    }
}

#[test]
fn inline_work_asks_for_a_completion_only_to_reclaim_the_send_queue() {
    let mut world = World::new(Sizes::default());
    let before = world.stats();
    let messages = 1000;
    for _ in 0..messages {
        world.deliver(64);
    }
    let after = world.stats();
    let requests =
        after.writes_inline + after.sends_inline - before.writes_inline - before.sends_inline;
    assert!(requests >= 2 * messages, "{requests}");
    assert_eq!(after.writes_by_reference, before.writes_by_reference);
    assert_eq!(after.doorbells - before.doorbells, messages);
    // One in every quarter of the queue, at the end of a chain.
    let quarter = u64::from(Sizes::default().send_wr / 4);
    let completions = after.send_completions - before.send_completions;
    assert!(
        (requests / (quarter + 2)..=requests / quarter + 1).contains(&completions),
        "{completions} for {requests}"
    );
}

#[test]
fn bytes_posted_inline_are_free_at_once_and_bytes_by_reference_only_when_read_or_completed() {
    for (limit, unreclaimed) in [(256, 0), (0, 100)] {
        let sizes = Sizes {
            inline_bytes: limit,
            ..Sizes::default()
        };
        let mut world = World::new(sizes);
        world.nodes[0].send(Command::App(vec![7; 100]));
        // The other side is not polled: nobody has executed or read anything yet.
        let snapshot = Box::new(Snapshot::with_room(4, 2, 2));
        let _ = world.nodes[0].worker.pass();
        world.nodes[0].send(Command::Snapshot(snapshot));
        let mut taken = None;
        for _ in 0..100 {
            let _ = world.nodes[0].worker.pass();
            while let Some(report) = world.nodes[0].news.pop() {
                if let Report::Snapshot(snapshot) = report {
                    taken = Some(snapshot.conns[0].clone());
                }
            }
        }
        let conn = taken.expect("a snapshot");
        assert_eq!((conn.bytes_out, conn.unreclaimed), (100, unreclaimed));
    }
}

#[test]
fn a_full_ring_of_bytes_by_reference_comes_free_although_the_reader_says_nothing() {
    let sizes = Sizes {
        inline_bytes: 0,
        ring_bytes: 1000,
        rmbe_bytes: 16 << 10,
        ..Sizes::default()
    };
    let mut world = World::new(sizes);
    // Altogether less than half of the peer's ring, and far fewer requests than a quarter of the
    // send queue: neither the reader nor the queue is a reason for a completion.
    for turn in 1..=6 {
        world.deliver(1000);
        assert_eq!(world.stats().send_completions, turn);
    }
}
