//! Stories of consumer updates: when one goes out by itself, when it rides along, and the traps of
//! talking to a Linux kernel.

use pollux_proto::conn::{Conn, ConnParams, Transmit, update_watermark};
use pollux_proto::testing::{Pair, Side, SideParams};
use pollux_wire::cdc::{ConnStateFlags, ProducerFlags, Repr, RingCursor};

const RING: u32 = 16 << 10;

/// A connection with kernel sizes, to which messages are spoken by hand.
fn conn() -> Conn {
    Conn::new(&ConnParams {
        sndbuf_bytes: RING,
        rmbe_bytes: RING,
        peer_rmbe_bytes: RING,
        local_token: 7,
        peer_token: 9,
    })
}

/// A message of the peer, whose stream has come to `produced` and which has read up to `consumed`.
fn message(seq: u16, produced: u64, consumed: u64, flags: ProducerFlags) -> Repr {
    let cursor = |total: u64| RingCursor {
        wrap: (total / u64::from(RING)) as u16,
        count: (total % u64::from(RING)) as u32,
    };
    Repr {
        seq,
        token: 7,
        producer: cursor(produced),
        consumer: cursor(consumed),
        producer_flags: flags,
        state_flags: ConnStateFlags::EMPTY,
        credits: 0,
    }
}

/// The message that goes out now, which carries no data.
fn pure_update(conn: &mut Conn) -> Option<Repr> {
    let Transmit { writes, cdc, .. } = conn.poll_transmit(0)?;
    assert!(writes.is_empty(), "{writes:?}");
    assert_eq!(conn.poll_transmit(0), None, "one message says it all");
    Some(cdc)
}

#[test]
fn a_reply_carries_the_consumer_update_and_nothing_else_goes_out() {
    let mut pair = Pair::equal(SideParams::rings(RING));
    for round in 0..1000 {
        pair.write(Side::Left, 64);
        assert_eq!(pair.transmit(Side::Left), 1);
        pair.deliver(Side::Right);
        pair.read(Side::Right, 64);
        assert!(!pair.conn(Side::Right).wants_transmit(), "round {round}");
        pair.write(Side::Right, 64);
        assert_eq!(pair.transmit(Side::Right), 1);
        pair.deliver(Side::Left);
        pair.read(Side::Left, 64);
        assert!(!pair.conn(Side::Left).wants_transmit());
        assert_eq!(
            pair.conn(Side::Left).window(),
            RING,
            "the reply confirmed the request"
        );
    }
}

#[test]
fn a_reply_prepared_before_the_poll_makes_one_message_of_a_due_update_and_data() {
    let mut pair = Pair::equal(SideParams::rings(RING));
    pair.write(Side::Left, RING);
    pair.transmit(Side::Left);
    pair.deliver(Side::Right);
    pair.read(Side::Right, RING);
    assert!(
        pair.conn(Side::Right).wants_transmit(),
        "the update alone is due"
    );
    pair.write(Side::Right, 10);
    assert_eq!(pair.transmit(Side::Right), 1);
    pair.deliver(Side::Left);
    assert_eq!(pair.conn(Side::Left).window(), RING);
}

#[test]
fn an_update_needs_more_than_the_watermark_and_at_most_half_a_window() {
    let watermark = u64::from(update_watermark(RING));
    let half = u64::from(RING / 2);
    // Bytes arrived, bytes read, whether an update goes out by itself.
    let cases = [
        (half, watermark + 1, true),
        (half, watermark, false),
        (half - 1, watermark + 1, false),
        (half - 1, half - 1, false),
        (half + 1, watermark, false),
        (u64::from(RING), watermark + 1, true),
    ];
    for (arrived, read, expected) in cases {
        let mut conn = conn();
        let data = message(1, arrived, 0, ProducerFlags::EMPTY);
        conn.handle_cdc(&data).unwrap();
        conn.consume(read as u32).unwrap();
        assert_eq!(
            conn.wants_transmit(),
            expected,
            "{arrived} arrived, {read} read"
        );
        assert_eq!(pure_update(&mut conn).is_some(), expected);
    }
}

#[test]
fn a_blocked_peer_is_updated_beyond_the_watermark_whatever_its_window() {
    let watermark = update_watermark(RING);
    let mut conn = conn();
    let blocked = message(1, 4000, 0, ProducerFlags::WRITE_BLOCKED);
    conn.handle_cdc(&blocked).unwrap();
    conn.consume(watermark).unwrap();
    assert!(!conn.wants_transmit());
    conn.consume(1).unwrap();
    let update = pure_update(&mut conn).unwrap();
    assert_eq!(update.consumer.count, watermark + 1);
    assert_eq!((update.seq, update.token), (1, 9));
}

#[test]
fn write_blocked_is_forgotten_once_everything_is_read() {
    let mut conn = conn();
    let blocked = message(1, 100, 0, ProducerFlags::WRITE_BLOCKED);
    conn.handle_cdc(&blocked).unwrap();
    conn.consume(100).unwrap();
    let data = message(2, 6000, 0, ProducerFlags::EMPTY);
    conn.handle_cdc(&data).unwrap();
    conn.consume(5000).unwrap();
    assert!(
        !conn.wants_transmit(),
        "not blocked, and the window is more than half"
    );
}

#[test]
fn a_peer_that_becomes_blocked_is_answered_at_once_with_what_was_read() {
    let mut conn = conn();
    conn.handle_cdc(&message(1, 500, 0, ProducerFlags::EMPTY))
        .unwrap();
    conn.consume(500).unwrap();
    assert!(!conn.wants_transmit());
    let blocked = message(2, u64::from(RING), 0, ProducerFlags::WRITE_BLOCKED);
    conn.handle_cdc(&blocked).unwrap();
    assert_eq!(pure_update(&mut conn).unwrap().consumer.count, 500);
    // With nothing new to say there is no answer, or two blocked sides would chatter.
    let again = message(3, u64::from(RING), 0, ProducerFlags::WRITE_BLOCKED);
    conn.handle_cdc(&again).unwrap();
    assert!(!conn.wants_transmit());
}

#[test]
fn an_asked_update_is_answered_at_once_even_without_data_or_news() {
    let mut conn = conn();
    let asked = message(1, 0, 0, ProducerFlags::CURSOR_UPDATE_REQUESTED);
    conn.handle_cdc(&asked).unwrap();
    let answer = pure_update(&mut conn).unwrap();
    assert_eq!(answer.consumer, RingCursor { wrap: 0, count: 0 });
    assert_eq!(
        answer.producer_flags,
        ProducerFlags::EMPTY,
        "we ask nothing back"
    );
}

#[test]
fn half_a_buffer_read_and_not_reported_by_a_kernel_does_not_stop_us() {
    // A kernel reader that has read everything may leave up to half of its ring unreported for
    // ever.
    let mut conn = conn();
    let half = RING / 2;
    conn.prepare(half).unwrap();
    assert_eq!(conn.poll_transmit(0).unwrap().cdc.producer.count, half);
    // No update comes. The rest of the window is used, byte by byte or at once.
    conn.prepare(1).unwrap();
    let next = conn.poll_transmit(0).unwrap();
    assert_eq!(next.writes[0].to_offset, half);
    assert_eq!(next.cdc.producer_flags, ProducerFlags::EMPTY);
    conn.handle_completed(next.mark);
    conn.prepare(half - 1).unwrap();
    let last = conn.poll_transmit(0).unwrap();
    let flags = last.cdc.producer_flags;
    assert_eq!(flags, ProducerFlags::WRITE_BLOCKED, "queued equals window");
    assert_eq!(conn.window(), 0);
    // That flag makes the kernel report beyond its threshold; a partial window is used at once.
    conn.handle_completed(last.mark);
    conn.prepare(9000).unwrap();
    assert!(!conn.wants_transmit());
    conn.handle_cdc(&message(1, 0, 2305, ProducerFlags::EMPTY))
        .unwrap();
    assert!(conn.wants_transmit(), "never wait for an empty ring");
    let opened = conn.poll_transmit(0).unwrap();
    assert_eq!(
        opened.writes.iter().map(|write| write.len).sum::<u32>(),
        2305
    );
    assert!(
        opened
            .cdc
            .producer_flags
            .contains(ProducerFlags::WRITE_BLOCKED)
    );
}

#[test]
fn a_window_opened_by_one_byte_is_used() {
    let mut conn = conn();
    conn.prepare(RING).unwrap();
    let all = conn.poll_transmit(RING).unwrap();
    assert!(
        all.cdc
            .producer_flags
            .contains(ProducerFlags::WRITE_BLOCKED)
    );
    conn.prepare(5).unwrap();
    conn.handle_cdc(&message(1, 0, 1, ProducerFlags::EMPTY))
        .unwrap();
    let one = conn.poll_transmit(RING).unwrap();
    assert_eq!((one.writes[0].to_offset, one.writes[0].len), (0, 1));
    assert_eq!(one.cdc.producer, RingCursor { wrap: 1, count: 1 });
    assert!(!conn.wants_transmit());
}

#[test]
fn write_blocked_is_said_exactly_when_the_queue_is_at_least_the_window() {
    for (queued, expected) in [(RING - 1, false), (RING, true)] {
        let mut conn = conn();
        conn.prepare(queued).unwrap();
        let flags = conn.poll_transmit(0).unwrap().cdc.producer_flags;
        assert_eq!(
            flags.contains(ProducerFlags::WRITE_BLOCKED),
            expected,
            "{queued}"
        );
    }
}

#[test]
fn a_closed_window_was_always_announced_as_blocked() {
    let mut conn = conn();
    for bytes in [RING - 10, 4, 5] {
        conn.prepare(bytes).unwrap();
        let batch = conn.poll_transmit(RING).unwrap();
        assert_eq!(batch.cdc.producer_flags, ProducerFlags::EMPTY, "{bytes}");
    }
    conn.prepare(1).unwrap();
    let last = conn.poll_transmit(RING).unwrap();
    assert_eq!(last.cdc.producer_flags, ProducerFlags::WRITE_BLOCKED);
    assert_eq!(conn.window(), 0);
}

#[test]
fn the_message_sequence_starts_at_one_and_passes_its_end() {
    let mut conn = conn();
    let ask = ProducerFlags::CURSOR_UPDATE_REQUESTED;
    for expected in (1..=u16::MAX).chain([0, 1]) {
        conn.handle_cdc(&message(expected, 0, 0, ask)).unwrap();
        assert_eq!(conn.poll_transmit(0).unwrap().cdc.seq, expected);
    }
}

#[test]
fn the_first_exchange_is_byte_for_byte_what_the_kernel_sends() {
    // Two messages of a captured kernel connection: 200 bytes from the client, 4 in answer.
    let ring = 64 << 10;
    let params = ConnParams {
        sndbuf_bytes: ring,
        rmbe_bytes: ring,
        peer_rmbe_bytes: ring,
        local_token: 1,
        peer_token: 1,
    };
    let (mut client, mut server) = (Conn::new(&params), Conn::new(&params));
    let bytes = |repr: &Repr| {
        let mut out = [0u8; 44];
        repr.emit(&mut out);
        out
    };
    let captured = |head: [u8; 26]| {
        let mut out = [0u8; 44];
        out[..26].copy_from_slice(&head);
        out
    };
    client.prepare(200).unwrap();
    let request = client.poll_transmit(0).unwrap();
    let expected = captured([
        0xfe, 0x2c, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xc8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    assert_eq!(bytes(&request.cdc), expected);
    server.handle_cdc(&request.cdc).unwrap();
    server.consume(200).unwrap();
    server.prepare(4).unwrap();
    let reply = server.poll_transmit(0).unwrap();
    let expected = captured([
        0xfe, 0x2c, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0xc8, 0, 0,
    ]);
    assert_eq!(bytes(&reply.cdc), expected);
}
