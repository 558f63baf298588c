//! Every event in every state: where it leads, what is said, what the application learns.
//!
//! The whole table is the file `close_matrix.txt`. If a rule changes on purpose, replace the file
//! by what the failed test prints. A second table below holds what Linux does, row by row, so that
//! the snapshot cannot drift into a mistake unnoticed.

use std::fmt::Write;

use pollux_proto::conn::{Conn, ConnParams, ConnState};
use pollux_proto::event::EventSet;
use pollux_wire::cdc::{ConnStateFlags, ProducerFlags, Repr, RingCursor};

const DONE: u8 = ConnStateFlags::SENDING_DONE.0;
const CLOSED: u8 = ConnStateFlags::CLOSED.0;
const ABNORMAL: u8 = ConnStateFlags::ABNORMAL_CLOSE.0;

/// A connection and a peer played by hand.
#[derive(Clone)]
struct World {
    conn: Conn,
    seq: u16,
    produced: u32,
    peer_flags: u8,
}

impl World {
    fn new() -> World {
        let conn = Conn::new(&ConnParams {
            sndbuf_bytes: 64,
            rmbe_bytes: 64,
            peer_rmbe_bytes: 64,
            local_token: 1,
            peer_token: 2,
        });
        World {
            conn,
            seq: 0,
            produced: 0,
            peer_flags: 0,
        }
    }

    /// The peer sends `bytes` bytes and adds `flags`.
    fn peer_says(&mut self, bytes: u32, flags: u8) {
        self.seq += 1;
        self.produced += bytes;
        self.peer_flags |= flags;
        let message = Repr {
            seq: self.seq,
            token: 1,
            producer: RingCursor {
                wrap: 0,
                count: self.produced,
            },
            consumer: RingCursor { wrap: 0, count: 0 },
            producer_flags: ProducerFlags::EMPTY,
            state_flags: ConnStateFlags(self.peer_flags),
            credits: 0,
        };
        let _ = self.conn.handle_cdc(&message);
    }

    /// Everything the connection sends now, as the flags of its messages.
    fn said(&mut self) -> Vec<u8> {
        std::iter::from_fn(|| self.conn.poll_transmit(0))
            .map(|batch| batch.cdc.state_flags.0)
            .collect()
    }
}

/// The states, with the ways into them that differ in what follows.
fn situations() -> Vec<(&'static str, World)> {
    type Way = fn(&mut World);
    let ways: [(&str, Way); 16] = [
        ("ACTIVE", |_| {}),
        ("PEERCLOSEWAIT1 half closed", |w| w.conn.shutdown_write()),
        ("PEERCLOSEWAIT1 closed", |w| w.conn.close()),
        ("PEERCLOSEWAIT2 half closed", |w| {
            w.conn.shutdown_write();
            w.peer_says(0, DONE);
        }),
        ("PEERCLOSEWAIT2 closed", |w| {
            w.conn.close();
            w.peer_says(0, DONE);
        }),
        ("APPCLOSEWAIT1 peer half closed", |w| w.peer_says(0, DONE)),
        ("APPCLOSEWAIT1 peer closed", |w| w.peer_says(0, CLOSED)),
        ("APPCLOSEWAIT2 peer half closed", |w| {
            w.peer_says(0, DONE);
            w.conn.shutdown_write();
        }),
        ("APPCLOSEWAIT2 peer closed", |w| {
            w.peer_says(0, CLOSED);
            w.conn.shutdown_write();
        }),
        ("APPFINCLOSEWAIT", |w| {
            w.conn.shutdown_write();
            w.peer_says(0, CLOSED);
        }),
        ("PEERFINCLOSEWAIT", |w| {
            w.peer_says(0, DONE);
            w.conn.close();
        }),
        ("PEERABORTWAIT", |w| w.conn.abort()),
        ("PROCESSABORT", |w| w.peer_says(0, ABNORMAL)),
        ("CLOSED by both", |w| {
            w.conn.close();
            w.peer_says(0, CLOSED);
        }),
        ("CLOSED by peer's reset", |w| {
            w.peer_says(0, DONE);
            w.conn.shutdown_write();
            w.peer_says(0, ABNORMAL);
        }),
        ("CLOSED by link down", |w| w.conn.handle_link_down()),
    ];
    ways.into_iter()
        .map(|(name, way)| {
            let mut world = World::new();
            way(&mut world);
            world.said();
            world.conn.take_events();
            assert!(name.starts_with(world.conn.state().name()), "{name}");
            (name, world)
        })
        .collect()
}

type Happening = fn(&mut World);

const EVENTS: [(&str, Happening); 15] = [
    ("shutdown", |w| w.conn.shutdown_write()),
    ("close", |w| w.conn.close()),
    ("close, 1 unread", |w| {
        w.peer_says(1, 0);
        w.conn.take_events();
        w.conn.close();
    }),
    ("abort", |w| w.conn.abort()),
    ("receive 80", |w| w.peer_says(0, DONE)),
    ("receive 40", |w| w.peer_says(0, CLOSED)),
    ("receive 20", |w| w.peer_says(0, ABNORMAL)),
    ("receive c0", |w| w.peer_says(0, DONE | CLOSED)),
    ("receive a0", |w| w.peer_says(0, DONE | ABNORMAL)),
    ("receive 60", |w| w.peer_says(0, CLOSED | ABNORMAL)),
    ("receive 1 byte", |w| w.peer_says(1, 0)),
    ("receive 1 byte+80", |w| w.peer_says(1, DONE)),
    ("violation", |w| {
        w.produced = 999;
        w.peer_says(0, 0);
    }),
    ("link down", |w| w.conn.handle_link_down()),
    ("timeout", |w| w.conn.handle_timeout()),
];

/// Lower case hexadecimal flags of messages, or `-` for none.
fn flags_text(said: &[u8]) -> String {
    if said.is_empty() {
        return "-".to_owned();
    }
    let each: Vec<String> = said.iter().map(|flags| format!("{flags:02x}")).collect();
    each.join(" ")
}

/// The whole table.
fn table() -> String {
    let mut text = String::from("event | next state | flags said | events | timer\n");
    for (name, world) in situations() {
        writeln!(text, "\n{name}").unwrap();
        for (event, happen) in EVENTS {
            let mut world = world.clone();
            happen(&mut world);
            let said = flags_text(&world.said());
            let conn = &mut world.conn;
            let events = conn.take_events();
            let timer = match conn.timer() {
                None => "-".to_owned(),
                Some(timer) => format!("{timer:?}").to_lowercase(),
            };
            let (number, state) = (conn.state().number(), conn.state());
            let row = format!(
                "  {event:<17} | {number:>2} {state:<16} | {said:<2} | {events:?} | {timer}"
            );
            writeln!(text, "{row}").unwrap();
        }
    }
    text
}

#[test]
fn the_transition_table_is_the_one_in_the_file() {
    let table = table();
    let file = include_str!("close_matrix.txt");
    if table != file {
        let line = table.lines().zip(file.lines()).position(|(a, b)| a != b);
        panic!("close_matrix.txt differs, first in line {line:?}; the table is now:\n{table}");
    }
}

/// What Linux does: situation, event, next state, flags said (`None`: nothing said by Linux).
const LINUX: [(&str, &str, ConnState, Option<u8>); 38] = {
    use ConnState::*;
    [
        ("ACTIVE", "close", PeerCloseWait1, Some(CLOSED)),
        ("ACTIVE", "close, 1 unread", PeerCloseWait1, Some(ABNORMAL)),
        ("ACTIVE", "shutdown", PeerCloseWait1, Some(DONE)),
        (
            "PEERCLOSEWAIT1 half closed",
            "close",
            PeerCloseWait1,
            Some(DONE | CLOSED),
        ),
        (
            "PEERCLOSEWAIT1 half closed",
            "close, 1 unread",
            PeerCloseWait1,
            Some(DONE | ABNORMAL),
        ),
        (
            "PEERCLOSEWAIT2 half closed",
            "close",
            PeerCloseWait2,
            Some(DONE | CLOSED),
        ),
        ("PEERCLOSEWAIT1 closed", "close", PeerCloseWait1, None),
        (
            "APPCLOSEWAIT1 peer half closed",
            "shutdown",
            AppCloseWait2,
            Some(DONE),
        ),
        (
            "APPCLOSEWAIT1 peer closed",
            "shutdown",
            AppCloseWait2,
            Some(DONE),
        ),
        ("APPCLOSEWAIT1 peer closed", "close", Closed, Some(CLOSED)),
        (
            "APPCLOSEWAIT2 peer closed",
            "close",
            Closed,
            Some(DONE | CLOSED),
        ),
        (
            "APPCLOSEWAIT1 peer half closed",
            "close",
            PeerFinCloseWait,
            Some(CLOSED),
        ),
        (
            "APPCLOSEWAIT2 peer half closed",
            "close",
            PeerFinCloseWait,
            Some(DONE | CLOSED),
        ),
        ("APPFINCLOSEWAIT", "close", Closed, Some(DONE | CLOSED)),
        ("APPFINCLOSEWAIT", "shutdown", AppFinCloseWait, None),
        ("PEERFINCLOSEWAIT", "close", PeerFinCloseWait, None),
        ("ACTIVE", "receive 80", AppCloseWait1, None),
        ("ACTIVE", "receive 40", AppCloseWait1, None),
        (
            "APPCLOSEWAIT1 peer half closed",
            "receive 40",
            AppCloseWait1,
            None,
        ),
        (
            "APPCLOSEWAIT2 peer half closed",
            "receive 40",
            AppCloseWait2,
            None,
        ),
        (
            "PEERCLOSEWAIT1 half closed",
            "receive 80",
            PeerCloseWait2,
            None,
        ),
        ("PEERCLOSEWAIT1 closed", "receive 80", PeerCloseWait2, None),
        ("PEERCLOSEWAIT1 closed", "receive 40", Closed, None),
        ("PEERCLOSEWAIT2 closed", "receive 40", Closed, None),
        ("PEERCLOSEWAIT1 closed", "receive c0", Closed, None),
        (
            "PEERCLOSEWAIT1 half closed",
            "receive 40",
            AppFinCloseWait,
            None,
        ),
        (
            "PEERCLOSEWAIT2 half closed",
            "receive 40",
            AppFinCloseWait,
            None,
        ),
        ("PEERFINCLOSEWAIT", "receive 40", Closed, None),
        ("PEERCLOSEWAIT1 closed", "receive 20", Closed, None),
        ("PEERCLOSEWAIT2 closed", "receive 20", Closed, None),
        ("PEERFINCLOSEWAIT", "receive 20", Closed, None),
        ("PEERABORTWAIT", "receive 20", Closed, None),
        // From here on Linux says its own abnormal close later or never; here it is said at once.
        ("ACTIVE", "receive 20", ProcessAbort, Some(ABNORMAL)),
        (
            "APPCLOSEWAIT1 peer half closed",
            "receive 20",
            ProcessAbort,
            Some(ABNORMAL),
        ),
        (
            "APPFINCLOSEWAIT",
            "receive 20",
            ProcessAbort,
            Some(DONE | ABNORMAL),
        ),
        (
            "PEERCLOSEWAIT1 half closed",
            "receive 20",
            ProcessAbort,
            Some(DONE | ABNORMAL),
        ),
        (
            "APPCLOSEWAIT2 peer half closed",
            "receive 20",
            Closed,
            Some(DONE | ABNORMAL),
        ),
        // Already said on the peer's reset.
        ("PROCESSABORT", "close", Closed, None),
    ]
};

#[test]
fn the_transitions_are_those_of_linux() {
    let situations = situations();
    for (name, event, state, flags) in LINUX {
        let (_, world) = situations.iter().find(|(n, _)| *n == name).unwrap();
        let (_, happen) = EVENTS.iter().find(|(n, _)| *n == event).unwrap();
        let mut world = world.clone();
        happen(&mut world);
        assert_eq!(world.conn.state(), state, "{name}: {event}");
        let said: Vec<u8> = flags.into_iter().collect();
        assert_eq!(world.said(), said, "{name}: {event}");
    }
}

#[test]
fn no_event_leads_out_of_closed_and_final_flags_never_clear() {
    for (name, world) in situations() {
        for (first, one) in EVENTS {
            for (second, other) in EVENTS {
                let mut world = world.clone();
                let was_closed = world.conn.state() == ConnState::Closed;
                one(&mut world);
                let mut said = world.said();
                other(&mut world);
                said.extend(world.said());
                assert!(
                    !was_closed || world.conn.state() == ConnState::Closed,
                    "{name}"
                );
                for pair in said.windows(2) {
                    assert_eq!(
                        pair[0] & pair[1],
                        pair[0],
                        "{name}: {first}, {second}: {said:?}"
                    );
                }
                let finals = said
                    .iter()
                    .filter(|flags| *flags & (CLOSED | ABNORMAL) != 0);
                assert!(finals.count() <= 2, "{name}: {first}, {second}: {said:?}");
            }
        }
    }
}

#[test]
fn closed_is_raised_exactly_once_and_when_nothing_is_owed() {
    for (name, world) in situations() {
        for (first, one) in EVENTS {
            for (second, other) in EVENTS {
                let mut world = world.clone();
                let mut raised = usize::from(world.conn.is_finished());
                for happen in [one, other] {
                    happen(&mut world);
                    raised += usize::from(world.conn.take_events().contains(EventSet::CLOSED));
                    if raised == 1 {
                        assert!(world.conn.is_finished(), "{name}: {first}, {second}");
                    }
                    world.said();
                    raised += usize::from(world.conn.take_events().contains(EventSet::CLOSED));
                }
                let finished = usize::from(world.conn.is_finished());
                assert_eq!(raised, finished, "{name}: {first}, {second}");
            }
        }
    }
}
