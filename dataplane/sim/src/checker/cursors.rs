//! What a queue pair says about streams: WRITEs first, then the message that announces them.
//!
//! The checker knows nothing of connections. It takes the WRITEs between two messages of a queue
//! pair and the message behind them, and learns the rest: the message's token names the stream, the
//! first WRITE shows where the peer's ring lies, the first lap how long it is. From then on all of
//! it has to fit together.

use std::collections::BTreeMap;

use pollux_provider::RemoteSpan;
use pollux_wire::cdc;

/// A WRITE that no message has announced yet.
#[derive(Clone, Copy, Debug)]
struct Pending {
    addr: u64,
    rkey: u32,
    bytes: u32,
}

/// One direction of one connection, as the peer is told of it.
#[derive(Clone, Copy, Debug, Default)]
struct Outgoing {
    seq: u16,
    producer: cdc::RingCursor,
    consumer: cdc::RingCursor,
    /// Size of the peer's ring, once it went round.
    ring: Option<u32>,
    /// Address and key of the peer's ring, once something was written.
    base: Option<(u64, u32)>,
}

/// What one queue pair has said.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    pending: Vec<Pending>,
    streams: BTreeMap<u32, Outgoing>,
}

impl Announcements {
    /// A WRITE was posted.
    pub(crate) fn on_write(&mut self, to: RemoteSpan, bytes: u32) {
        self.pending.push(Pending {
            addr: to.addr,
            rkey: to.rkey.0,
            bytes,
        });
    }

    /// A message was posted.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub(crate) fn on_cdc(&mut self, message: &cdc::Repr) -> Result<(), String> {
        let pending = std::mem::take(&mut self.pending);
        let before = self.streams.get(&message.token).copied();
        let before = before.unwrap_or_default();
        let token = message.token;
        // Wraps from 0xffff to 0, as the first bytes of a life have 1.
        if message.seq != before.seq.checked_add(1).unwrap_or(0) {
            return Err(format!(
                "token {token:#x}: message {} follows {}",
                message.seq, before.seq
            ));
        }
        let goes_back = |from: cdc::RingCursor, to: cdc::RingCursor| {
            (to.wrap, to.count) < (from.wrap, from.count)
        };
        if goes_back(before.consumer, message.consumer) {
            return Err(format!(
                "token {token:#x}: the consumer cursor goes back from {:?} to {:?}",
                before.consumer, message.consumer
            ));
        }
        let mut after = Outgoing {
            seq: message.seq,
            producer: before.producer,
            consumer: message.consumer,
            ..before
        };
        for write in pending {
            after
                .advance(write, message.producer)
                .map_err(|wrong| format!("token {token:#x}: {wrong}"))?;
        }
        if after.producer != message.producer {
            return Err(format!(
                "token {token:#x}: the message announces {:?}, the WRITEs before it end at {:?}",
                message.producer, after.producer
            ));
        }
        self.streams.insert(token, after);
        Ok(())
    }
}

impl Outgoing {
    /// The stream goes on with a WRITE; `end` is what will be announced.
    fn advance(&mut self, write: Pending, end: cdc::RingCursor) -> Result<(), String> {
        let Pending { addr, rkey, bytes } = write;
        let count = u64::from(self.producer.count);
        let (base, key) = *self.base.get_or_insert((addr - count, rkey));
        if addr != base + count || key != rkey {
            return Err(format!(
                "a WRITE of {bytes} B goes to offset {} of key {rkey:#x}, expected is offset {count} \
                 of key {key:#x}",
                i128::from(addr) - i128::from(base)
            ));
        }
        let to = self.producer.count + bytes;
        // The first time round shows how large the ring is: whoever wraps ends there exactly.
        let wraps = match self.ring {
            Some(ring) if to > ring => {
                return Err(format!("a WRITE ends at {to} of a ring of {ring} B"));
            }
            Some(ring) => to == ring,
            None => end.wrap != self.producer.wrap,
        };
        if wraps {
            self.ring = Some(to);
            self.producer = cdc::RingCursor {
                wrap: self.producer.wrap + 1,
                count: 0,
            };
        } else {
            self.producer.count = to;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_provider::Rkey;

    fn span(addr: u64) -> RemoteSpan {
        RemoteSpan {
            addr,
            rkey: Rkey(9),
        }
    }

    fn message(seq: u16, wrap: u16, count: u32) -> cdc::Repr {
        cdc::Repr {
            seq,
            token: 5,
            producer: cdc::RingCursor { wrap, count },
            consumer: cdc::RingCursor { wrap: 0, count: 0 },
            producer_flags: cdc::ProducerFlags::EMPTY,
            state_flags: cdc::ConnStateFlags::EMPTY,
            credits: 0,
        }
    }

    #[test]
    fn a_stream_that_goes_round_is_followed() {
        let mut said = Announcements::default();
        said.on_write(span(1000), 6);
        assert_eq!(said.on_cdc(&message(1, 0, 6)), Ok(()));
        said.on_write(span(1006), 2);
        said.on_write(span(1000), 3);
        assert_eq!(said.on_cdc(&message(2, 1, 3)), Ok(()));
        said.on_write(span(1003), 5);
        assert_eq!(said.on_cdc(&message(3, 2, 0)), Ok(()));
        assert_eq!(said.on_cdc(&message(4, 2, 0)), Ok(()));
    }

    #[test]
    fn a_message_before_its_write_is_found() {
        let mut said = Announcements::default();
        assert!(said.on_cdc(&message(1, 0, 6)).is_err());
    }

    #[test]
    fn a_gap_a_wrong_ring_and_a_repeated_number_are_found() {
        let mut said = Announcements::default();
        said.on_write(span(1000), 6);
        assert_eq!(said.on_cdc(&message(1, 0, 6)), Ok(()));
        assert!(said.on_cdc(&message(1, 0, 6)).is_err(), "the number");
        said.on_write(span(1007), 1);
        assert!(said.on_cdc(&message(2, 0, 7)).is_err(), "the gap");

        let mut said = Announcements::default();
        said.on_write(span(1000), 8);
        assert_eq!(said.on_cdc(&message(1, 1, 0)), Ok(()));
        said.on_write(span(1000), 9);
        assert!(said.on_cdc(&message(2, 2, 0)).is_err(), "the ring has 8");
    }
}
