//! One connection whose peer says whatever the input says, mostly next to the truth.
//!
//! What cannot be true resets the connection with that reason and leaves the rest as it was; after
//! it the peer is told once, and nothing else follows.

use pollux_proto::conn::{Conn, ConnParams, ConnState, UrgentDelivery};
use pollux_proto::event::EventSet;
use pollux_proto::units::SentMark;
use pollux_wire::cdc::{ConnStateFlags, ProducerFlags, Repr, RingCursor};

use super::{Totals, cursor, has_final, ring};
use crate::Input;

const LOCAL: u32 = 5;
const PEER: u32 = 6;
/// Messages that a connection which is told nothing more may still have to say: flags, an update.
const LAST_WORDS_MAX: usize = 3;

struct World {
    conn: Conn,
    params: ConnParams,
    totals: Totals,
    /// Sequence number of the last message of the peer.
    seq: u16,
    events: EventSet,
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let params = ConnParams {
        sndbuf_bytes: ring(input.byte()),
        rmbe_bytes: ring(input.byte()),
        peer_rmbe_bytes: ring(input.byte()),
        local_token: LOCAL,
        peer_token: PEER,
    };
    let mut world = World {
        conn: Conn::new(&params),
        params,
        totals: Totals::START,
        seq: 0,
        events: EventSet::NONE,
    };
    while !input.is_empty() {
        world.step(&mut input);
        world.judge();
    }
    world.finish();
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        match op & 0x0f {
            0..=4 => {
                let message = self.message(input);
                self.hear(&message);
            }
            5 | 6 => self.prepare(input.byte().into()),
            7 => {
                let bytes = u32::from(input.byte() % 20);
                let fits = bytes > 0 && bytes <= self.conn.writable();
                assert!(self.conn.prepare_urgent(bytes).is_err() || fits);
            }
            8 | 9 => self.consume(input.byte().into()),
            10 | 11 => drop(self.poll(u32::from(input.byte() % 24))),
            12 => {
                let mark = SentMark(self.conn.sent_total().min(input.number()));
                self.conn.handle_completed(mark);
            }
            13 => self.urgent(op >> 4),
            14 => self.conn.handle_timeout(),
            _ => match op >> 4 {
                0..=5 => self.conn.shutdown_write(),
                6..=9 => self.conn.close(),
                10..=12 => self.conn.abort(),
                13 => self.conn.handle_link_down(),
                _ => self.conn.set_urgent_delivery(UrgentDelivery::OutOfLine),
            },
        }
    }

    /// A message whose cursors are so many bytes from the truth, or anything.
    fn message(&mut self, input: &mut Input<'_>) -> Repr {
        let how = input.byte();
        let (ahead, read) = (input.number(), input.number());
        let (own, peer) = (self.params.rmbe_bytes, self.params.peer_rmbe_bytes);
        let consumed_at_peer =
            self.conn.sent_total() + u64::from(self.conn.window()) - u64::from(peer);
        let mut message = Repr {
            seq: self.seq.wrapping_add(u16::from(how & 1)),
            token: LOCAL,
            producer: cursor(self.conn.produced_total().wrapping_add(ahead), own),
            consumer: cursor(consumed_at_peer.wrapping_add(read), peer),
            producer_flags: ProducerFlags::EMPTY,
            state_flags: ConnStateFlags::EMPTY,
            credits: 0,
        };
        if how & 0x02 != 0 {
            message.producer_flags = ProducerFlags(input.byte());
        }
        if how & 0x0c == 0x0c {
            message.state_flags = ConnStateFlags(input.byte());
        }
        if how & 0x70 == 0x70 {
            message.producer = any_cursor(input);
        }
        if how & 0x70 == 0x60 {
            message.consumer = any_cursor(input);
        }
        if how & 0x70 == 0x50 {
            message.seq = input.u16();
        }
        if how & 0xf0 == 0xc0 {
            message.token = input.number32();
        }
        message
    }

    fn hear(&mut self, message: &Repr) {
        let (state, first) = (self.conn.state(), self.conn.abort_reason());
        let (readable, window) = (self.conn.readable(), self.conn.window());
        let heard = self.conn.handle_cdc(message);
        self.seq = message.seq;
        let Err(reason) = heard else { return };
        assert!(!reason.to_string().is_empty());
        assert_ne!(state, ConnState::Closed, "nobody listened");
        assert_eq!(first, None, "a reset connection does not listen");
        assert_eq!(self.conn.abort_reason(), Some(reason));
        assert_eq!(
            self.conn.readable(),
            readable,
            "something of the lie was taken"
        );
        // A consumer cursor is judged first, so it may have been true.
        assert!(self.conn.window() >= window);
        let is_told = self.conn.wants_transmit() || has_final(self.totals.said);
        assert!(is_told, "the peer is told");
        assert_eq!(self.conn.writable(), 0);
    }

    fn prepare(&mut self, bytes: u32) {
        let bytes = bytes % (self.params.sndbuf_bytes + 2);
        let writable = self.conn.writable();
        let taken = self.conn.prepare(bytes).is_ok();
        assert!(bytes == 0 || taken == (bytes <= writable));
    }

    fn consume(&mut self, bytes: u32) {
        let bytes = bytes % (self.params.rmbe_bytes + 2);
        let fits = bytes <= self.conn.readable();
        assert!(self.conn.consume(bytes).is_err() || fits);
    }

    fn poll(&mut self, inline_max: u32) -> bool {
        let (window, wants) = (self.conn.window(), self.conn.wants_transmit());
        let batch = self.conn.poll_transmit(inline_max);
        assert_eq!(batch.is_some(), wants);
        let Some(batch) = batch else { return false };
        self.totals
            .judge_batch(&batch, &self.conn, &self.params, window, inline_max);
        true
    }

    fn urgent(&mut self, how: u8) {
        match how {
            0..=3 => self.conn.set_urgent_delivery(UrgentDelivery::OutOfLine),
            4 => self.conn.set_urgent_delivery(UrgentDelivery::Inline),
            _ => {
                if let Some(offset) = self.conn.take_urgent() {
                    assert!(offset < self.params.rmbe_bytes);
                }
            }
        }
    }

    fn judge(&mut self) {
        self.totals.judge(&self.conn, &self.params);
        let fresh = self.conn.take_events();
        assert!(!(fresh.intersects(EventSet::RESET) && self.events.contains(EventSet::RESET)));
        self.events = self.events.union(fresh);
        // A violation is told as a reset; an abort reason of a silent peer is not.
        if self.events.contains(EventSet::RESET) {
            assert!(self.conn.abort_reason().is_some());
        }
        if self.conn.is_finished() {
            assert!(!self.conn.wants_transmit());
            assert_eq!(self.conn.timer(), None);
        }
    }

    /// However it was told to end, it can be polled to silence, and its own timers end it.
    fn finish(&mut self) {
        let queued = self.conn.prepared_total() - self.conn.sent_total();
        let words = (0..)
            .take_while(|_| self.poll(0))
            .take(LAST_WORDS_MAX + queued as usize + 1);
        assert!(
            words.count() <= LAST_WORDS_MAX + queued as usize,
            "it does not fall silent"
        );
        self.judge();
        self.conn.close();
        self.judge();
        for _ in 0..6 {
            while self.poll(0) {}
            self.conn.handle_timeout();
            self.judge();
        }
        while self.poll(0) {}
        self.judge();
        assert!(
            self.conn.is_finished(),
            "its timers do not end it: {:?}",
            self.conn
        );
    }
}

fn any_cursor(input: &mut Input<'_>) -> RingCursor {
    RingCursor {
        wrap: input.number() as u16,
        count: input.number32(),
    }
}
