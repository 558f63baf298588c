//! Peers that lie: every claim that cannot be true resets this connection with its reason; what is
//! merely old is ignored; nothing panics, nothing is corrupted.
#![allow(clippy::disallowed_types, reason = "inside the macros of proptest")]

use pollux_proto::conn::{Conn, ConnParams, ConnState, UrgentDelivery};
use pollux_proto::error::{AbortReason, CursorKind};
use pollux_proto::event::EventSet;
use pollux_proto::units::SentMark;
use pollux_wire::cdc::{ConnStateFlags, ProducerFlags, Repr, RingCursor};
use proptest::prelude::*;

const RMBE: u32 = 8;
const PEER_RMBE: u32 = 16;

fn conn() -> Conn {
    Conn::new(&ConnParams {
        sndbuf_bytes: 32,
        rmbe_bytes: RMBE,
        peer_rmbe_bytes: PEER_RMBE,
        local_token: 5,
        peer_token: 6,
    })
}

/// A message with these cursors, each as laps and count.
fn message(seq: u16, producer: (u16, u32), consumer: (u16, u32)) -> Repr {
    let cursor = |(wrap, count)| RingCursor { wrap, count };
    Repr {
        seq,
        token: 5,
        producer: cursor(producer),
        consumer: cursor(consumer),
        producer_flags: ProducerFlags::EMPTY,
        state_flags: ConnStateFlags::EMPTY,
        credits: 0,
    }
}

/// Tells the lie and checks that the connection resets itself for this reason, says so, and stays
/// reset.
fn caught(mut conn: Conn, lie: &Repr, reason: AbortReason) {
    let readable = conn.readable();
    assert!(reason.is_violation());
    assert_eq!(conn.handle_cdc(lie), Err(reason));
    assert_eq!(conn.abort_reason(), Some(reason));
    assert!(conn.take_events().contains(EventSet::RESET));
    assert_eq!(conn.state(), ConnState::PeerAbortWait);
    assert_eq!(conn.readable(), readable, "nothing of the lie is taken");
    let batch = conn.poll_transmit(64).unwrap();
    assert!(batch.writes.is_empty());
    assert!(
        batch
            .cdc
            .state_flags
            .contains(ConnStateFlags::ABNORMAL_CLOSE)
    );
    assert_eq!(
        conn.handle_cdc(lie),
        Ok(()),
        "further lies are not listened to"
    );
    assert_eq!(conn.poll_transmit(64), None);
    let text = reason.to_string();
    assert!(text.contains("peer violation"), "{text}");
}

#[test]
fn a_producer_beyond_the_free_space_is_caught() {
    let mut conn = conn();
    conn.handle_cdc(&message(1, (0, 6), (0, 0))).unwrap();
    conn.consume(2).unwrap();
    let most = message(2, (1, 2), (0, 0));
    assert_eq!(
        conn.clone().handle_cdc(&most),
        Ok(()),
        "exactly full is honest"
    );
    let reason = AbortReason::ProducerOverrun {
        filled: 9,
        ring: RMBE,
    };
    caught(conn, &message(2, (1, 3), (0, 0)), reason);
}

#[test]
fn a_producer_two_laps_ahead_is_caught() {
    let reason = AbortReason::CursorSkipsLaps {
        kind: CursorKind::Producer,
        laps: 2,
    };
    caught(conn(), &message(1, (2, 0), (0, 0)), reason);
}

#[test]
fn a_producer_outside_the_ring_is_caught() {
    for count in [RMBE, u32::MAX] {
        let kind = CursorKind::Producer;
        let reason = AbortReason::CursorOutsideRing {
            kind,
            count,
            ring: RMBE,
        };
        caught(conn(), &message(1, (0, count), (0, 0)), reason);
    }
}

#[test]
fn a_consumer_of_bytes_never_sent_is_caught() {
    let mut conn = conn();
    conn.prepare(10).unwrap();
    let reason = AbortReason::ConsumedUnsent {
        claimed: 1,
        outstanding: 0,
    };
    caught(conn.clone(), &message(1, (0, 0), (0, 1)), reason);
    conn.poll_transmit(64).unwrap();
    assert_eq!(
        conn.clone().handle_cdc(&message(1, (0, 0), (0, 10))),
        Ok(())
    );
    let reason = AbortReason::ConsumedUnsent {
        claimed: 11,
        outstanding: 10,
    };
    caught(conn.clone(), &message(1, (0, 0), (0, 11)), reason);
    let reason = AbortReason::ConsumedUnsent {
        claimed: 16,
        outstanding: 10,
    };
    caught(conn, &message(1, (0, 0), (1, 0)), reason);
}

#[test]
fn a_consumer_outside_the_ring_or_laps_ahead_is_caught() {
    let kind = CursorKind::Consumer;
    let outside = AbortReason::CursorOutsideRing {
        kind,
        count: 16,
        ring: PEER_RMBE,
    };
    caught(conn(), &message(1, (0, 0), (0, 16)), outside);
    let skips = AbortReason::CursorSkipsLaps { kind, laps: 0x7fff };
    caught(conn(), &message(1, (0, 0), (0x7fff, 0)), skips);
}

#[test]
fn cursors_that_go_back_are_ignored_and_the_rest_of_the_message_counts() {
    let mut conn = conn();
    conn.prepare(9).unwrap();
    conn.poll_transmit(64).unwrap();
    conn.handle_cdc(&message(1, (0, 5), (0, 4))).unwrap();
    conn.handle_cdc(&message(2, (0, 4), (0, 6))).unwrap();
    assert_eq!((conn.readable(), conn.window()), (5, 13));
    conn.handle_cdc(&message(3, (0, 7), (0, 2))).unwrap();
    assert_eq!((conn.readable(), conn.window()), (7, 13));
    // A lap back.
    conn.handle_cdc(&message(4, (0xffff, 7), (0xffff, 7)))
        .unwrap();
    assert_eq!((conn.readable(), conn.window()), (7, 13));
    assert_eq!(conn.state(), ConnState::Active);
}

#[test]
fn old_messages_and_foreign_tokens_are_ignored_and_equal_numbers_are_not() {
    let mut conn = conn();
    conn.handle_cdc(&message(10, (0, 1), (0, 0))).unwrap();
    let mut closing = message(9, (0, 3), (0, 0));
    closing.state_flags = ConnStateFlags::CLOSED;
    conn.handle_cdc(&closing).unwrap();
    let mut foreign = message(11, (0, 3), (0, 0));
    foreign.token = 6;
    conn.handle_cdc(&foreign).unwrap();
    assert_eq!((conn.readable(), conn.state()), (1, ConnState::Active));
    conn.handle_cdc(&message(10, (0, 2), (0, 0))).unwrap();
    assert_eq!(conn.readable(), 2);
    // Even a lie is not judged in a message that is ignored.
    conn.handle_cdc(&message(9, (3, 99), (9, 99))).unwrap();
    assert_eq!(conn.abort_reason(), None);
}

#[test]
fn a_final_flag_cannot_be_taken_back() {
    let mut conn = conn();
    conn.prepare(3).unwrap();
    let mut closing = message(1, (0, 2), (0, 0));
    closing.state_flags = ConnStateFlags::CLOSED;
    conn.handle_cdc(&closing).unwrap();
    conn.handle_cdc(&message(2, (0, 2), (0, 0))).unwrap();
    assert!(conn.peer_is_done());
    assert!(!conn.wants_transmit(), "unsent bytes were discarded");
    assert_eq!(conn.state(), ConnState::AppCloseWait1);
}

#[test]
fn a_lie_after_an_abnormal_close_resets_and_is_no_reason_to_say_it_again() {
    let mut conn = conn();
    conn.close();
    // A byte that nobody will read comes before the close is said.
    conn.handle_cdc(&message(1, (0, 1), (0, 0))).unwrap();
    let batch = conn.poll_transmit(0).unwrap();
    let abnormal = ConnStateFlags::ABNORMAL_CLOSE;
    assert!(batch.cdc.state_flags.contains(abnormal));
    let lie = message(2, (0, RMBE), (0, 0));
    assert_eq!(conn.handle_cdc(&lie).err(), conn.abort_reason());
    assert!(
        conn.abort_reason()
            .is_some_and(|reason| reason.is_violation())
    );
    assert_eq!(conn.poll_transmit(0), None);
}

#[test]
fn a_failover_that_lost_a_message_resets_and_one_that_did_not_goes_on() {
    let mut conn = conn();
    conn.handle_cdc(&message(7, (0, 3), (0, 0))).unwrap();
    let validation = |seq| {
        let mut message = message(seq, (0, 0), (0, 0));
        message.producer_flags = ProducerFlags::FAILOVER_VALIDATION;
        message
    };
    for seen in [6, 7] {
        assert_eq!(conn.handle_cdc(&validation(seen)), Ok(()));
    }
    // The peer starts again from what it knows to be delivered, and comes past what we have.
    conn.handle_cdc(&message(8, (0, 2), (0, 0))).unwrap();
    conn.handle_cdc(&message(9, (0, 4), (0, 0))).unwrap();
    assert_eq!(conn.readable(), 4);
    let lost = AbortReason::FailoverLoss {
        last: 9,
        confirmed: 10,
    };
    assert_eq!(conn.handle_cdc(&validation(10)), Err(lost));
    assert_eq!(conn.state(), ConnState::PeerAbortWait);
}

#[test]
fn a_producer_in_space_that_was_read_and_not_announced_closes_the_window_and_no_more() {
    let mut conn = conn();
    conn.handle_cdc(&message(1, (0, 5), (0, 0))).unwrap();
    conn.consume(4).unwrap();
    // Four bytes are free again, but the peer was told of none of them: it had room for three.
    conn.handle_cdc(&message(2, (1, 1), (0, 0))).unwrap();
    conn.consume(5).unwrap();
    let batch = conn.poll_transmit(64).expect("an update is due");
    assert_eq!(batch.cdc.consumer, RingCursor { wrap: 1, count: 1 });
    assert_eq!(conn.abort_reason(), None);
}

#[test]
fn an_urgent_byte_without_data_is_no_urgent_byte() {
    let mut conn = conn();
    conn.set_urgent_delivery(UrgentDelivery::OutOfLine);
    let mut lie = message(1, (0, 0), (0, 0));
    lie.producer_flags = ProducerFlags::URGENT_PRESENT;
    conn.handle_cdc(&lie).unwrap();
    assert_eq!(conn.take_urgent(), None);
    assert_eq!(conn.take_events(), EventSet::NONE);
}

/// One thing that happens to a connection, honest or not.
#[derive(Clone, Debug)]
enum Op {
    Message(Repr),
    Prepare(u32),
    PrepareUrgent(u32),
    Consume(u32),
    Poll(u32),
    Completed(u64),
    TakeUrgent,
    Urgent(UrgentDelivery),
    ShutdownWrite,
    Close,
    Abort,
    Timeout,
    LinkDown,
}

fn cursor() -> impl Strategy<Value = RingCursor> {
    let wrap = prop_oneof![4 => 0..4u16, 1 => any::<u16>()];
    let count = prop_oneof![8 => 0..17u32, 1 => any::<u32>()];
    (wrap, count).prop_map(|(wrap, count)| RingCursor { wrap, count })
}

/// Messages that are often nearly true.
fn any_message() -> impl Strategy<Value = Repr> {
    let flags = prop_oneof![6 => Just(0u8), 1 => any::<u8>()];
    let state = prop_oneof![20 => Just(0u8), 1 => any::<u8>()];
    (any::<u8>(), cursor(), cursor(), flags, state).prop_map(
        |(seq, producer, consumer, flags, state)| Repr {
            seq: seq.into(),
            token: 5,
            producer,
            consumer,
            producer_flags: ProducerFlags(flags),
            state_flags: ConnStateFlags(state),
            credits: 0,
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let ends = prop_oneof![
        Just(Op::ShutdownWrite),
        Just(Op::Close),
        Just(Op::Abort),
        Just(Op::Timeout),
        Just(Op::LinkDown)
    ];
    let urgent = prop_oneof![
        Just(UrgentDelivery::Inline),
        Just(UrgentDelivery::OutOfLine)
    ];
    prop_oneof![
        12 => any_message().prop_map(Op::Message),
        6 => (0..20u32).prop_map(Op::Prepare),
        2 => (0..20u32).prop_map(Op::PrepareUrgent),
        6 => (0..10u32).prop_map(Op::Consume),
        8 => (0..20u32).prop_map(Op::Poll),
        2 => (0..60u64).prop_map(Op::Completed),
        2 => Just(Op::TakeUrgent),
        1 => urgent.prop_map(Op::Urgent),
        1 => ends,
    ]
}

/// What the totals of a connection were.
#[derive(Clone, Copy)]
struct Totals {
    produced: u64,
    consumed: u64,
    prepared: u64,
    sent: u64,
    reclaimed: u64,
}

impl Totals {
    fn of(conn: &Conn) -> Totals {
        Totals {
            produced: conn.produced_total(),
            consumed: conn.consumed_total(),
            prepared: conn.prepared_total(),
            sent: conn.sent_total(),
            reclaimed: conn.reclaimed_total(),
        }
    }

    /// What holds for every connection, whatever it was told.
    fn check(self, before: Totals, conn: &Conn) {
        assert!(self.produced >= before.produced && self.consumed >= before.consumed);
        assert!(self.prepared >= before.prepared && self.sent >= before.sent);
        assert!(self.reclaimed >= before.reclaimed);
        assert!(self.consumed <= self.produced);
        assert!(self.produced - self.consumed <= u64::from(RMBE));
        assert!(self.reclaimed <= self.sent && self.sent <= self.prepared);
        assert!(self.prepared - self.reclaimed <= 32);
        assert!(u64::from(conn.readable()) <= self.produced - self.consumed);
        assert!(conn.window() <= PEER_RMBE && conn.writable() <= 32);
        assert_eq!(
            u64::from(conn.read_offset()),
            self.consumed % u64::from(RMBE)
        );
        assert_eq!(u64::from(conn.write_offset()), self.prepared % 32);
        let reset = conn.state() == ConnState::PeerAbortWait;
        assert!(!reset || conn.abort_reason().is_some());
    }
}

/// Whether the peer was told of an abnormal close.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Yes,
    No,
}

fn apply(conn: &mut Conn, op: &Op, told: &mut Told) {
    match op {
        Op::Message(message) => {
            let outcome = conn.handle_cdc(message);
            if let Err(reason) = outcome {
                // A close with unread bytes was an abnormal one, which is said once.
                let is_told = conn.wants_transmit() || *told == Told::Yes;
                assert!(is_told, "the peer is told");
                assert!(conn.abort_reason().is_some_and(|first| first == reason));
            }
        }
        Op::Prepare(bytes) => {
            let fits = *bytes <= conn.writable();
            let outcome = conn.prepare(*bytes);
            assert!(*bytes == 0 || outcome.is_ok() == fits, "{outcome:?}");
        }
        Op::PrepareUrgent(bytes) => _ = conn.prepare_urgent(*bytes),
        Op::Consume(bytes) => {
            let fits = *bytes <= conn.readable();
            assert!(!conn.consume(*bytes).is_ok_and(|()| !fits));
        }
        Op::Poll(inline_max) => {
            let window = conn.window();
            let Some(batch) = conn.poll_transmit(*inline_max) else {
                return;
            };
            let abnormal = ConnStateFlags::ABNORMAL_CLOSE;
            if batch.cdc.state_flags.contains(abnormal) {
                *told = Told::Yes;
            }
            let len: u32 = batch.writes.iter().map(|write| write.len).sum();
            assert!(len <= window, "{batch:?}");
            assert!(
                batch
                    .writes
                    .iter()
                    .all(|write| write.to_offset + write.len <= PEER_RMBE)
            );
            assert_eq!(u64::from(batch.cdc.producer.count), conn.sent_total() % 16);
            assert_eq!(batch.mark, SentMark(conn.sent_total()));
        }
        Op::Completed(mark) => conn.handle_completed(SentMark(*mark)),
        Op::TakeUrgent => {
            if let Some(offset) = conn.take_urgent() {
                assert!(offset < RMBE);
            }
        }
        Op::Urgent(delivery) => conn.set_urgent_delivery(*delivery),
        Op::ShutdownWrite => conn.shutdown_write(),
        Op::Close => conn.close(),
        Op::Abort => conn.abort(),
        Op::Timeout => conn.handle_timeout(),
        Op::LinkDown => conn.handle_link_down(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]
    #[test]
    fn no_order_of_lies_and_wishes_breaks_an_invariant(
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut conn = conn();
        let mut before = Totals::of(&conn);
        let mut told = Told::No;
        for op in &ops {
            apply(&mut conn, op, &mut told);
            let now = Totals::of(&conn);
            now.check(before, &conn);
            before = now;
        }
        // However it was told to end, it can be polled to silence.
        let rest = std::iter::from_fn(|| conn.poll_transmit(64)).count();
        prop_assert!(rest <= 3, "{} messages", rest);
    }
}
