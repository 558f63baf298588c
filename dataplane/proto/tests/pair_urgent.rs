//! Stories of the urgent byte, both sides, both ways of delivery.

use pollux_proto::conn::{Conn, UrgentDelivery};
use pollux_proto::error::Misuse;
use pollux_proto::event::EventSet;
use pollux_proto::testing::{Pair, Side, SideParams, stream_byte};
use pollux_wire::cdc::ProducerFlags;

const PENDING: ProducerFlags = ProducerFlags::URGENT_PENDING;
const PRESENT: ProducerFlags = ProducerFlags::URGENT_PRESENT;

/// Two machines whose right one takes urgent bytes as said.
fn pair(ring: u32, delivery: UrgentDelivery) -> Pair {
    let mut pair = Pair::equal(SideParams::rings(ring));
    pair.conn_mut(Side::Right).set_urgent_delivery(delivery);
    pair
}

#[test]
fn out_of_line_the_byte_is_taken_beside_the_stream_and_the_sender_goes_on() {
    let mut pair = pair(64, UrgentDelivery::OutOfLine);
    pair.write(Side::Left, 5);
    pair.write_urgent(Side::Left, 3).unwrap();
    pair.write(Side::Left, 4);
    let batch = pair.transmit_one(Side::Left).unwrap();
    assert_eq!(batch.cdc.producer_flags, PENDING.union(PRESENT));
    assert_eq!(batch.cdc.producer.count, 8, "what follows is held back");
    assert!(!pair.conn(Side::Left).wants_transmit());
    pair.deliver(Side::Right);
    let events = pair.take_events(Side::Right);
    assert!(
        events.contains(EventSet::URGENT.union(EventSet::READABLE)),
        "{events:?}"
    );
    assert_eq!(pair.urgent(Side::Right), [stream_byte(Side::Left, 7)]);
    assert_eq!(
        pair.conn(Side::Right).readable(),
        7,
        "the urgent byte is not counted"
    );
    pair.read(Side::Right, 6);
    assert!(!pair.conn(Side::Right).wants_transmit());
    pair.read(Side::Right, 1);
    assert_eq!(
        pair.conn(Side::Right).consumed_total(),
        8,
        "the byte was skipped"
    );
    assert!(
        pair.conn(Side::Right).wants_transmit(),
        "which is told at once"
    );
    pair.settle();
    let events = pair.take_events(Side::Left);
    assert!(events.contains(EventSet::URGENT_CONFIRMED), "{events:?}");
    assert_eq!(
        pair.read(Side::Right, 64),
        4,
        "the rest of the stream came through"
    );
}

#[test]
fn inline_the_byte_stays_in_the_stream_and_reading_pauses_behind_it_once() {
    let mut pair = pair(64, UrgentDelivery::Inline);
    pair.write_urgent(Side::Left, 6).unwrap();
    pair.write(Side::Left, 2);
    pair.settle();
    assert!(pair.take_events(Side::Right).contains(EventSet::URGENT));
    assert!(pair.urgent(Side::Right).is_empty());
    assert_eq!(pair.read(Side::Right, 64), 6);
    assert!(
        pair.conn(Side::Right).wants_transmit(),
        "passing it is told at once"
    );
    pair.settle();
    assert_eq!(pair.read(Side::Right, 64), 2);
    assert_eq!(pair.read_total(Side::Right), pair.written(Side::Left));
}

#[test]
fn an_urgent_byte_alone_is_skipped_when_it_is_taken() {
    let mut pair = pair(8, UrgentDelivery::OutOfLine);
    for round in 0..20u64 {
        pair.write_urgent(Side::Left, 1).unwrap();
        pair.transmit(Side::Left);
        pair.deliver(Side::Right);
        assert_eq!(pair.conn(Side::Right).readable(), 0);
        assert_eq!(pair.conn(Side::Right).consumed_total(), round + 1);
        pair.settle();
        assert!(
            pair.take_events(Side::Left)
                .contains(EventSet::URGENT_CONFIRMED)
        );
    }
    assert_eq!(pair.urgent(Side::Right).len(), 20);
}

#[test]
fn pending_is_said_with_a_closed_window_and_present_only_with_the_last_byte() {
    let mut pair = pair(4, UrgentDelivery::OutOfLine);
    pair.write(Side::Left, 4);
    pair.settle();
    pair.take_events(Side::Right);
    pair.write_urgent(Side::Left, 3).unwrap();
    let notice = pair.transmit_one(Side::Left).unwrap();
    assert!(notice.writes.is_empty(), "the window is closed");
    assert!(notice.cdc.producer_flags.contains(PENDING));
    assert!(!notice.cdc.producer_flags.contains(PRESENT));
    assert!(!pair.conn(Side::Left).wants_transmit(), "said once");
    pair.deliver(Side::Right);
    assert_eq!(pair.take_events(Side::Right), EventSet::URGENT_PENDING);
    // Part of it fits: still pending, and no second event.
    pair.read(Side::Right, 2);
    pair.wish(Side::Right, |conn| conn.prepare(1).unwrap());
    pair.transmit(Side::Right);
    pair.deliver(Side::Left);
    let part = pair.transmit_one(Side::Left).unwrap();
    assert_eq!(part.writes[0].len, 2);
    assert!(part.cdc.producer_flags.contains(PENDING));
    assert!(!part.cdc.producer_flags.contains(PRESENT));
    pair.deliver(Side::Right);
    assert_eq!(pair.take_events(Side::Right), EventSet::READABLE);
    pair.read(Side::Right, 4);
    pair.settle();
    assert!(pair.take_events(Side::Right).contains(EventSet::URGENT));
    assert_eq!(pair.urgent(Side::Right), [stream_byte(Side::Left, 6)]);
}

#[test]
fn a_pending_urgent_byte_makes_the_reader_report_what_it_read() {
    let mut pair = pair(16 << 10, UrgentDelivery::OutOfLine);
    pair.write(Side::Left, 100);
    pair.settle();
    pair.read(Side::Right, 100);
    assert!(!pair.conn(Side::Right).wants_transmit());
    // More urgent bytes than the window holds, so that the first batch is only pending.
    pair.write_urgent(Side::Left, 16 << 10).unwrap();
    let first = pair.transmit_one(Side::Left).unwrap();
    assert!(!first.cdc.producer_flags.contains(PRESENT));
    pair.deliver(Side::Right);
    assert!(pair.conn(Side::Right).wants_transmit());
    pair.settle();
    assert!(pair.take_events(Side::Right).contains(EventSet::URGENT));
}

#[test]
fn a_second_urgent_byte_waits_for_the_first() {
    let mut pair = pair(8, UrgentDelivery::OutOfLine);
    pair.write_urgent(Side::Left, 1).unwrap();
    let refused = pair.write_urgent(Side::Left, 1);
    assert_eq!(refused, Err(Misuse::UrgentOutstanding));
    assert_eq!(
        pair.write_urgent(Side::Right, 0),
        Err(Misuse::NothingUrgent)
    );
    let refused = pair.write_urgent(Side::Right, 9);
    assert_eq!(refused, Err(Misuse::RingFull { bytes: 9, room: 8 }));
    pair.settle();
    pair.write_urgent(Side::Left, 1).unwrap();
    pair.settle();
    assert_eq!(pair.urgent(Side::Right).len(), 2);
}

#[test]
fn the_end_of_the_stream_waits_behind_an_urgent_byte() {
    let mut pair = pair(8, UrgentDelivery::OutOfLine);
    pair.write_urgent(Side::Left, 2).unwrap();
    pair.write(Side::Left, 1);
    pair.wish(Side::Left, Conn::shutdown_write);
    pair.transmit(Side::Left);
    pair.deliver(Side::Right);
    assert!(
        !pair
            .take_events(Side::Right)
            .contains(EventSet::END_OF_STREAM)
    );
    pair.read(Side::Right, 8);
    pair.settle();
    assert!(
        pair.take_events(Side::Right)
            .contains(EventSet::END_OF_STREAM)
    );
    assert_eq!(pair.read(Side::Right, 8), 1);
}

#[test]
fn an_untaken_byte_stops_the_reader_and_is_never_overwritten() {
    let mut left = Pair::equal(SideParams::rings(8));
    left.write_urgent(Side::Left, 3).unwrap();
    let batch = left.transmit_one(Side::Left).unwrap();
    // A receiver driven by hand, so that nobody takes the byte.
    let mut conn = Pair::equal(SideParams::rings(8)).conn(Side::Right).clone();
    conn.set_urgent_delivery(UrgentDelivery::OutOfLine);
    conn.handle_cdc(&batch.cdc).unwrap();
    conn.consume(2).unwrap();
    assert_eq!((conn.readable(), conn.consumed_total()), (0, 2));
    assert!(!conn.wants_transmit());
    assert_eq!(conn.take_urgent(), Some(2));
    assert_eq!(conn.consumed_total(), 3);
    assert_eq!(conn.take_urgent(), None);
    assert_eq!(conn.poll_transmit(0).unwrap().cdc.consumer.count, 3);
}
