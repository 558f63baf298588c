//! Connections under lists of operations: two honest ones joined by queues, and one that is lied to.
//!
//! What holds between any two operations, whoever the peer is ([`Totals`]):
//!
//! 1. consumed <= produced <= consumed + RMBE; reclaimed <= sent <= prepared <= reclaimed + sndbuf;
//!    none of these ever goes back.
//! 2. A message announces exactly what was written before it, and what was consumed here; both
//!    cursors follow from the totals.
//! 3. Writes cover the bytes from the old sent total to the new one, each once, inside both rings and
//!    inside the window; inline if and only if they fit.
//! 4. The flags of the end are never taken back, and no byte follows a closing one.

pub(crate) mod liar;
pub(crate) mod pair;

use pollux_proto::conn::{Conn, ConnParams, ConnState, NeedsCompletion, Placement, Transmit};
use pollux_proto::units::SentMark;
use pollux_wire::cdc::{ConnStateFlags, RingCursor};

/// A ring of 1 to 64 bytes, mostly small, by one byte of an input.
fn ring(byte: u8) -> u32 {
    match byte {
        0..=0xbf => u32::from(byte % 16) + 1,
        _ => u32::from(byte % 64) + 1,
    }
}

/// The totals of a connection and what it has said.
#[derive(Clone, Copy, Debug)]
struct Totals {
    produced: u64,
    consumed: u64,
    prepared: u64,
    sent: u64,
    reclaimed: u64,
    said: ConnStateFlags,
}

impl Totals {
    const START: Totals = Totals {
        produced: 0,
        consumed: 0,
        prepared: 0,
        sent: 0,
        reclaimed: 0,
        said: ConnStateFlags::EMPTY,
    };

    /// Compares the connection with what it was, and remembers it.
    fn judge(&mut self, conn: &Conn, params: &ConnParams) {
        let now = Totals {
            produced: conn.produced_total(),
            consumed: conn.consumed_total(),
            prepared: conn.prepared_total(),
            sent: conn.sent_total(),
            reclaimed: conn.reclaimed_total(),
            said: self.said,
        };
        assert!(now.produced >= self.produced && now.consumed >= self.consumed);
        assert!(now.prepared >= self.prepared && now.sent >= self.sent);
        assert!(now.reclaimed >= self.reclaimed);
        let (rmbe, sndbuf) = (u64::from(params.rmbe_bytes), u64::from(params.sndbuf_bytes));
        assert!(now.consumed <= now.produced && now.produced - now.consumed <= rmbe);
        assert!(now.reclaimed <= now.sent && now.sent <= now.prepared);
        assert!(now.prepared - now.reclaimed <= sndbuf);
        assert!(u64::from(conn.readable()) <= now.produced - now.consumed);
        assert!(u64::from(conn.writable()) <= sndbuf - (now.prepared - now.reclaimed));
        assert!(conn.window() <= params.peer_rmbe_bytes);
        assert_eq!(u64::from(conn.read_offset()), now.consumed % rmbe);
        assert_eq!(u64::from(conn.write_offset()), now.prepared % sndbuf);
        let is_reset = conn.state() == ConnState::PeerAbortWait;
        assert!(!is_reset || conn.abort_reason().is_some());
        *self = now;
    }

    /// Judges a batch that was polled when the window was `window` bytes.
    fn judge_batch(
        &mut self,
        batch: &Transmit,
        conn: &Conn,
        params: &ConnParams,
        window: u32,
        inline_max: u32,
    ) {
        let (sndbuf, rmbe) = (
            u64::from(params.sndbuf_bytes),
            u64::from(params.peer_rmbe_bytes),
        );
        let mut at = self.sent;
        let mut by_reference = false;
        for write in &batch.writes {
            assert_eq!(u64::from(write.to_offset), at % rmbe, "{batch:?}");
            assert!(
                u64::from(write.to_offset) + u64::from(write.len) <= rmbe,
                "{batch:?}"
            );
            for piece in &write.pieces {
                assert!(piece.len > 0, "{batch:?}");
                assert_eq!(u64::from(piece.offset), at % sndbuf, "{batch:?}");
                assert!(
                    u64::from(piece.offset) + u64::from(piece.len) <= sndbuf,
                    "{batch:?}"
                );
                at += u64::from(piece.len);
            }
            let len: u32 = write.pieces.iter().map(|piece| piece.len).sum();
            assert_eq!(len, write.len);
            let is_inline = write.placement == Placement::Inline;
            assert_eq!(is_inline, write.len <= inline_max, "{batch:?}");
            by_reference |= !is_inline;
        }
        assert_eq!(at, conn.sent_total(), "{batch:?}");
        assert!(at - self.sent <= u64::from(window), "{batch:?}");
        assert_eq!(batch.mark, SentMark(at));
        assert_eq!(batch.needs_completion == NeedsCompletion::Yes, by_reference);
        let cdc = &batch.cdc;
        assert_eq!(cdc.token, params.peer_token);
        assert_eq!(cdc.producer, cursor(at, params.peer_rmbe_bytes));
        assert_eq!(
            cdc.consumer,
            cursor(conn.consumed_total(), params.rmbe_bytes)
        );
        assert_eq!(cdc.credits, 0);
        assert!(cdc.state_flags.contains(self.said), "a flag was taken back");
        assert!(
            !has_final(self.said) || batch.writes.is_empty(),
            "bytes after the end"
        );
        self.said = cdc.state_flags;
        self.sent = at;
    }
}

fn has_final(flags: ConnStateFlags) -> bool {
    flags.contains(ConnStateFlags::CLOSED) || flags.contains(ConnStateFlags::ABNORMAL_CLOSE)
}

/// The cursor of a total, in a ring.
fn cursor(total: u64, ring: u32) -> RingCursor {
    let ring = u64::from(ring);
    RingCursor {
        wrap: (total / ring) as u16,
        count: (total % ring) as u32,
    }
}
