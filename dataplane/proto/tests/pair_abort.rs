//! Stories of ends in bad order: resets from either side, a dead link.

use std::time::Duration;

use pollux_proto::conn::{ABORT_GUARD, Conn, ConnState, ConnTimer, PeerWrites};
use pollux_proto::error::{AbortReason, Misuse};
use pollux_proto::event::EventSet;
use pollux_proto::testing::{Pair, Side, SideParams};
use pollux_wire::cdc::ConnStateFlags;

fn pair(ring: u32) -> Pair {
    Pair::equal(SideParams::rings(ring))
}

#[test]
fn a_reset_overtakes_what_is_queued_and_is_confirmed_at_once() {
    let mut pair = pair(8);
    pair.write(Side::Left, 8);
    pair.settle();
    pair.write(Side::Left, 8);
    pair.take_events(Side::Right);
    pair.wish(Side::Left, Conn::abort);
    let batch = pair.transmit_one(Side::Left).unwrap();
    assert!(batch.writes.is_empty(), "queued bytes are discarded");
    assert_eq!(batch.cdc.state_flags, ConnStateFlags::ABNORMAL_CLOSE);
    pair.deliver(Side::Right);
    assert!(pair.take_events(Side::Right).contains(EventSet::RESET));
    assert_eq!(
        pair.conn(Side::Right).abort_reason(),
        Some(AbortReason::Peer)
    );
    assert_eq!(pair.conn_mut(Side::Right).prepare(1), Err(Misuse::PeerGone));
    assert_eq!(pair.read(Side::Right, 99), 8, "what arrived stays readable");
    assert!(
        pair.conn(Side::Right).wants_transmit(),
        "the confirmation does not wait"
    );
    pair.settle();
    assert!(pair.conn(Side::Left).is_finished());
    assert_eq!(pair.conn(Side::Left).peer_writes(), PeerWrites::Over);
    assert_eq!(
        pair.conn(Side::Left).abort_reason(),
        Some(AbortReason::Local)
    );
    pair.wish(Side::Right, Conn::close);
    assert!(pair.conn(Side::Right).is_finished());
    assert!(!pair.conn(Side::Right).wants_transmit());
}

#[test]
fn resets_that_cross_end_both_sides() {
    let mut pair = pair(8);
    for side in Side::BOTH {
        pair.wish(side, Conn::abort);
        pair.transmit(side);
    }
    pair.settle();
    for side in Side::BOTH {
        assert!(pair.conn(side).is_finished());
        assert_eq!(pair.conn(side).abort_reason(), Some(AbortReason::Local));
    }
}

#[test]
fn a_reset_that_crosses_a_close_ends_both_sides() {
    let mut pair = pair(8);
    pair.wish(Side::Left, Conn::abort);
    pair.wish(Side::Right, Conn::close);
    for side in Side::BOTH {
        pair.transmit(side);
    }
    pair.settle();
    for side in Side::BOTH {
        assert!(pair.conn(side).is_finished(), "{side:?}");
    }
}

#[test]
fn an_unconfirmed_reset_is_given_up_after_its_guard() {
    let mut pair = pair(8);
    pair.wish(Side::Left, Conn::abort);
    assert_eq!(pair.timer(Side::Left).unwrap().0, ConnTimer::Abort);
    pair.transmit(Side::Left);
    pair.advance(ABORT_GUARD - Duration::from_nanos(1));
    assert_eq!(pair.conn(Side::Left).state(), ConnState::PeerAbortWait);
    pair.advance(Duration::from_nanos(1));
    assert!(pair.conn(Side::Left).is_finished());
    assert_eq!(pair.conn(Side::Left).peer_writes(), PeerWrites::Possible);
}

#[test]
fn data_that_crosses_a_reset_is_not_taken() {
    let mut pair = pair(8);
    pair.write(Side::Right, 5);
    pair.transmit(Side::Right);
    pair.wish(Side::Left, Conn::abort);
    pair.take_events(Side::Left);
    pair.deliver(Side::Left);
    assert_eq!(pair.take_events(Side::Left), EventSet::NONE);
    assert_eq!(pair.conn_mut(Side::Left).consume(1), Err(Misuse::Ended));
}

#[test]
fn a_dead_link_ends_the_connection_and_nothing_is_said() {
    for busy in [0, 5] {
        let mut pair = pair(8);
        pair.write(Side::Left, 3);
        pair.settle();
        pair.write(Side::Right, busy);
        pair.wish(Side::Right, Conn::handle_link_down);
        let conn = pair.conn(Side::Right);
        assert!(!conn.wants_transmit());
        assert!(conn.is_finished());
        assert_eq!(conn.abort_reason(), Some(AbortReason::LinkDown));
        assert_eq!(conn.peer_writes(), PeerWrites::Over);
        let events = pair.take_events(Side::Right);
        assert!(
            events.contains(EventSet::RESET.union(EventSet::CLOSED)),
            "{events:?}"
        );
        assert_eq!(pair.conn_mut(Side::Right).prepare(1), Err(Misuse::PeerGone));
        assert_eq!(pair.read(Side::Right, 9), 3, "what arrived stays readable");
        pair.wish(Side::Right, Conn::close);
        assert_eq!(pair.take_events(Side::Right), EventSet::NONE);
        assert_eq!(pair.transmit(Side::Right), 0);
    }
}

#[test]
fn a_dead_link_after_a_reset_keeps_the_first_reason() {
    let mut pair = pair(8);
    pair.wish(Side::Left, Conn::abort);
    pair.take_events(Side::Left);
    pair.wish(Side::Left, Conn::handle_link_down);
    assert_eq!(
        pair.take_events(Side::Left),
        EventSet::CLOSED,
        "the reset was told before"
    );
    assert_eq!(
        pair.conn(Side::Left).abort_reason(),
        Some(AbortReason::Local)
    );
    assert_eq!(pair.transmit(Side::Left), 0);
}

#[test]
fn bytes_by_reference_are_reclaimed_by_completions_even_after_a_reset() {
    let mut pair = pair(8);
    pair.write(Side::Left, 6);
    let batch = pair.transmit_one(Side::Left).unwrap();
    pair.wish(Side::Left, Conn::abort);
    let conn = pair.conn_mut(Side::Left);
    assert!(
        conn.reclaimed_total() < conn.sent_total(),
        "the adapter may still read"
    );
    conn.handle_completed(batch.mark);
    assert_eq!(conn.reclaimed_total(), conn.sent_total());
}

#[test]
fn a_peer_that_withdraws_its_buffer_without_an_end_has_reset_the_connection() {
    let mut pair = pair(8);
    pair.write(Side::Right, 5);
    pair.settle();
    pair.wish(Side::Left, Conn::handle_peer_withdrew);
    assert!(pair.take_events(Side::Left).contains(EventSet::RESET));
    assert_eq!(pair.conn_mut(Side::Left).prepare(1), Err(Misuse::PeerGone));
    assert_eq!(pair.read(Side::Left, 99), 5, "what arrived stays readable");
    assert_eq!(
        pair.conn(Side::Left).peer_writes(),
        PeerWrites::Over,
        "nobody is waited for"
    );
    pair.wish(Side::Left, Conn::close);
    pair.settle();
    assert!(pair.conn(Side::Left).is_finished());
}

#[test]
fn a_peer_that_withdraws_its_buffer_after_its_end_changes_nothing() {
    let mut pair = pair(8);
    pair.wish(Side::Right, Conn::close);
    pair.settle();
    let before = format!("{:?}", pair.conn(Side::Left));
    pair.wish(Side::Left, Conn::handle_peer_withdrew);
    assert_eq!(format!("{:?}", pair.conn(Side::Left)), before);
    pair.wish(Side::Left, Conn::close);
    pair.settle();
    assert!(pair.conn(Side::Left).is_finished());
    assert_eq!(pair.conn(Side::Left).abort_reason(), None);
}
