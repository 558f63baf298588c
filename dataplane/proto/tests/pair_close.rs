//! Stories of ends in good order: half close with an answer, close from either side, drains, silent
//! peers.

use std::time::Duration;

use pollux_proto::conn::{
    CLOSE_GUARD, Conn, ConnState, ConnTimer, DOOMED_DRAIN_GUARD, DRAIN_GUARD, PeerWrites,
};
use pollux_proto::error::{AbortReason, Misuse};
use pollux_proto::event::EventSet;
use pollux_proto::testing::{Pair, Side, SideParams};
use pollux_wire::cdc::ConnStateFlags;

fn pair(ring: u32) -> Pair {
    Pair::equal(SideParams::rings(ring))
}

/// `asker` sends a request and half closes; its peer answers after the end of the request and
/// closes.
fn answer_after_end(asker: Side, ring: u32) {
    let mut pair = pair(ring);
    let server = asker.peer();
    let mut to_write = 3 * u64::from(ring);
    while to_write > 0 || !pair.conn(server).peer_is_done() || pair.conn(server).readable() > 0 {
        to_write -= u64::from(pair.write(asker, to_write.min(7) as u32));
        if to_write == 0 {
            pair.wish(asker, Conn::shutdown_write);
        }
        pair.settle();
        pair.read(server, u32::MAX);
        pair.settle();
    }
    assert_eq!(pair.read_total(server), 3 * u64::from(ring));
    assert_eq!(pair.conn(server).state(), ConnState::AppCloseWait1);
    let mut to_answer = 2 * u64::from(ring) + 1;
    while to_answer > 0 {
        to_answer -= u64::from(pair.write(server, to_answer.min(5) as u32));
        pair.settle();
        pair.read(asker, u32::MAX);
        pair.settle();
    }
    pair.wish(server, Conn::close);
    pair.settle();
    pair.read(asker, u32::MAX);
    assert_eq!(pair.read_total(asker), 2 * u64::from(ring) + 1);
    assert_eq!(pair.conn(server).state(), ConnState::PeerFinCloseWait);
    assert_eq!(pair.conn(asker).state(), ConnState::AppFinCloseWait);
    pair.wish(asker, Conn::close);
    pair.settle();
    for side in Side::BOTH {
        assert!(pair.conn(side).is_finished());
        assert_eq!(pair.conn(side).abort_reason(), None);
        assert_eq!(pair.conn(side).peer_writes(), PeerWrites::Over);
        assert!(pair.take_events(side).contains(EventSet::CLOSED));
        assert_eq!(pair.timer(side), None);
    }
}

#[test]
fn a_half_close_gets_its_answer_after_the_end_in_both_directions() {
    for asker in Side::BOTH {
        for ring in (1..=8).chain([16 << 10]) {
            answer_after_end(asker, ring);
        }
    }
}

#[test]
fn after_an_end_of_our_own_nothing_is_readable_though_bytes_lie_there() {
    for end in [Conn::close, Conn::abort] {
        let mut pair = pair(64);
        pair.write(Side::Left, 10);
        pair.settle();
        assert_eq!(pair.conn(Side::Right).readable(), 10);
        pair.wish(Side::Right, end);
        assert_eq!(pair.conn(Side::Right).readable(), 0);
    }
}

#[test]
fn the_close_flag_rides_on_the_last_data() {
    let mut pair = pair(64);
    pair.write(Side::Left, 10);
    pair.wish(Side::Left, Conn::close);
    let batch = pair.transmit_one(Side::Left).unwrap();
    assert_eq!(batch.writes[0].len, 10);
    assert_eq!(batch.cdc.state_flags, ConnStateFlags::CLOSED);
    assert_eq!(pair.transmit_one(Side::Left), None);
    pair.deliver(Side::Right);
    let events = pair.take_events(Side::Right);
    let expected = EventSet::READABLE.union(EventSet::END_OF_STREAM);
    assert!(events.contains(expected), "{events:?}");
    assert_eq!(
        pair.read(Side::Right, 64),
        10,
        "what was sent before the end stays readable"
    );
}

#[test]
fn what_is_prepared_before_a_close_is_sent_first_however_long_it_takes() {
    let mut pair = pair(4);
    pair.write(Side::Left, 4);
    pair.settle();
    pair.write(Side::Left, 4);
    pair.wish(Side::Left, Conn::close);
    pair.settle();
    let early = pair.take_events(Side::Right);
    assert!(!early.contains(EventSet::END_OF_STREAM), "{early:?}");
    assert_eq!(pair.timer(Side::Left).unwrap().0, ConnTimer::Drain);
    // A slow reader that keeps reading keeps the drain alive.
    for _ in 0..2 {
        pair.advance(DRAIN_GUARD - Duration::from_secs(1));
        pair.read(Side::Right, 3);
        pair.settle();
        pair.advance(Duration::from_secs(1));
    }
    pair.read(Side::Right, 4);
    pair.settle();
    assert_eq!(pair.read_total(Side::Right), 8);
    assert!(
        pair.take_events(Side::Right)
            .contains(EventSet::END_OF_STREAM)
    );
    assert_eq!(pair.conn(Side::Right).abort_reason(), None);
}

#[test]
fn a_drain_that_stands_still_ends_in_a_reset_and_not_in_silent_truncation() {
    let mut pair = pair(4);
    pair.write(Side::Left, 4);
    pair.settle();
    pair.write(Side::Left, 3);
    pair.wish(Side::Left, Conn::close);
    pair.settle();
    pair.advance(DRAIN_GUARD);
    assert_eq!(pair.conn(Side::Left).state(), ConnState::PeerAbortWait);
    let reason = pair.conn(Side::Left).abort_reason();
    assert_eq!(reason, Some(AbortReason::DrainStalled { unsent: 3 }));
    pair.settle();
    assert!(pair.take_events(Side::Right).contains(EventSet::RESET));
    assert_eq!(pair.read(Side::Right, 9), 4, "what arrived stays readable");
    assert!(
        pair.conn(Side::Left).is_finished(),
        "the reset was confirmed at once"
    );
}

#[test]
fn closing_with_unread_bytes_is_a_reset() {
    let mut pair = pair(16);
    pair.write(Side::Left, 1);
    pair.settle();
    pair.wish(Side::Right, Conn::close);
    let batch = pair.transmit_one(Side::Right).unwrap();
    assert_eq!(batch.cdc.state_flags, ConnStateFlags::ABNORMAL_CLOSE);
    pair.settle();
    assert!(pair.take_events(Side::Left).contains(EventSet::RESET));
    assert_eq!(
        pair.conn(Side::Left).abort_reason(),
        Some(AbortReason::Peer)
    );
    assert_eq!(pair.conn(Side::Left).state(), ConnState::ProcessAbort);
    assert!(pair.conn(Side::Right).is_finished());
}

#[test]
fn two_sides_that_close_with_both_rings_full_are_released_by_the_short_timer() {
    let mut pair = pair(4);
    for side in Side::BOTH {
        pair.write(side, 4);
        pair.settle();
        pair.write(side, 4);
    }
    pair.settle();
    for side in Side::BOTH {
        pair.wish(side, Conn::close);
    }
    pair.settle();
    assert_eq!(pair.timer(Side::Left).unwrap().0, ConnTimer::DoomedDrain);
    pair.advance(DOOMED_DRAIN_GUARD);
    pair.settle();
    for side in Side::BOTH {
        assert!(pair.conn(side).is_finished());
    }
}

#[test]
fn both_sides_closing_at_once_end_without_a_timer() {
    let mut pair = pair(16);
    for side in Side::BOTH {
        pair.wish(side, Conn::close);
        pair.transmit(side);
    }
    assert_eq!(pair.timer(Side::Left).unwrap().0, ConnTimer::Close);
    pair.settle();
    for side in Side::BOTH {
        assert!(pair.conn(side).is_finished());
        assert_eq!(pair.timer(side), None);
        assert_eq!(pair.conn(side).abort_reason(), None);
    }
}

#[test]
fn a_silent_peer_is_given_up_after_the_guard_and_its_ring_stays_reserved() {
    let mut pair = pair(16);
    pair.wish(Side::Left, Conn::close);
    pair.settle();
    assert_eq!(pair.timer(Side::Left).unwrap().0, ConnTimer::Close);
    pair.advance(CLOSE_GUARD - Duration::from_nanos(1));
    assert!(!pair.conn(Side::Left).is_finished());
    pair.advance(Duration::from_nanos(1));
    let conn = pair.conn(Side::Left);
    assert!(conn.is_finished());
    assert_eq!(conn.abort_reason(), Some(AbortReason::PeerSilent));
    assert_eq!(conn.peer_writes(), PeerWrites::Possible);
    // The late answer is ignored.
    pair.wish(Side::Right, Conn::close);
    pair.settle();
    assert!(pair.conn(Side::Right).is_finished());
}

#[test]
fn a_half_closed_side_waits_without_a_timer() {
    let mut pair = pair(16);
    pair.wish(Side::Left, Conn::shutdown_write);
    pair.settle();
    assert_eq!(pair.timer(Side::Left), None);
    pair.advance(Duration::from_secs(1_000_000));
    pair.write(Side::Right, 5);
    pair.settle();
    assert_eq!(pair.read(Side::Left, 5), 5);
}

#[test]
fn wishes_after_the_end_are_refused_and_change_nothing() {
    let mut pair = pair(16);
    pair.wish(Side::Left, Conn::shutdown_write);
    assert_eq!(pair.conn(Side::Left).writable(), 0);
    assert_eq!(pair.conn_mut(Side::Left).prepare(1), Err(Misuse::Ended));
    assert_eq!(
        pair.conn_mut(Side::Left).prepare_urgent(1),
        Err(Misuse::Ended)
    );
    let refused = Misuse::NotReadable {
        bytes: 1,
        readable: 0,
    };
    assert_eq!(pair.conn_mut(Side::Left).consume(1), Err(refused));
    pair.wish(Side::Left, Conn::close);
    assert_eq!(pair.conn_mut(Side::Left).consume(0), Err(Misuse::Ended));
    pair.settle();
    assert_eq!(pair.conn_mut(Side::Right).prepare(1), Err(Misuse::PeerGone));
    let before = pair.clone();
    pair.wish(Side::Left, Conn::shutdown_write);
    pair.wish(Side::Left, Conn::close);
    assert_eq!(pair, before);
}

#[test]
fn data_behind_a_half_close_still_counts_as_linux_may_send_it() {
    // A kernel that waited 2 s for its drain says "done" and sends the rest afterwards.
    let mut pair = pair(16);
    pair.write(Side::Left, 6);
    let mut batch = pair.transmit_one(Side::Left).unwrap();
    let mut conn = self::pair(16).conn(Side::Right).clone();
    let rest = batch.cdc;
    batch.cdc.producer.count = 0;
    batch.cdc.state_flags = ConnStateFlags::SENDING_DONE;
    conn.handle_cdc(&batch.cdc).unwrap();
    assert!(conn.take_events().contains(EventSet::END_OF_STREAM));
    let rest = pollux_wire::cdc::Repr {
        seq: 2,
        state_flags: batch.cdc.state_flags,
        ..rest
    };
    conn.handle_cdc(&rest).unwrap();
    assert_eq!(conn.take_events(), EventSet::READABLE);
    assert_eq!(conn.readable(), 6);
}
