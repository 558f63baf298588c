//! From completions to connections.

use crate::app::App;
use crate::clock::Clock;
use crate::conn::{Held, Reset, at};
use crate::core::Core;
use crate::link::LinkState;
use crate::mailbox::{ConnId, LinkId, LlcBytes, Report, token_index};
use pollux_provider::{Completion, PollGroup, Sge, WcOpcode, WcStatus, WrId};
use pollux_wire::cdc;

/// Marks the identifiers of receives: the low bits are the slot.
const RECEIVE: u64 = 1 << 63;

impl<G: PollGroup, A: App, C: Clock> Core<G, A, C> {
    /// Takes one completion; returns the connection that now has to be served, if any.
    #[inline]
    pub(crate) fn handle_completion(&mut self, completion: Completion) -> Option<ConnId> {
        let id = self.link_of(completion.qp)?;
        if completion.status != WcStatus::Success {
            self.fail_link(id, completion.status);
            return None;
        }
        match completion.opcode {
            WcOpcode::Recv => self.handle_message(id, completion),
            // Never agreed to, so it is the peer's violation; what it wrote is not looked at.
            WcOpcode::RecvWithImm => {
                self.figures.malformed += 1;
                self.repost(id, (completion.wr_id.0 & !RECEIVE) as u32);
                None
            }
            WcOpcode::Send | WcOpcode::Write => {
                self.handle_sent(id, completion.wr_id);
                None
            }
        }
    }

    /// Frees what a send completion covers and lets those go on that waited for it.
    fn handle_sent(&mut self, id: LinkId, wr: WrId) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        link.complete(wr);
        while let Some(covered) = self.link_mut(id).and_then(|link| link.pop_covered()) {
            let place = &mut self.conns[at(covered.conn)];
            if place.token == covered.token
                && let Some(open) = place.open()
            {
                open.proto.handle_completed(covered.mark);
                self.enqueue(covered.conn);
            }
        }
        self.flush_llc_backlog(id);
        self.wake_waiters(id);
    }

    #[inline]
    fn handle_message(&mut self, id: LinkId, completion: Completion) -> Option<ConnId> {
        let slot = (completion.wr_id.0 & !RECEIVE) as u32;
        let link = self.links[usize::from(id.0)].as_deref()?;
        if link.state != LinkState::Up {
            return None;
        }
        // Copied before it is judged: the slot is memory that the device may write again.
        let mut message = LlcBytes::new();
        let len = (completion.byte_len.min(link.receive.bytes) as usize).min(message.capacity());
        let mut bytes = [0; crate::budget::LLC_BYTES_MAX];
        let copied = link
            .receive
            .span
            .region
            .copy_out(link.receive_slot_offset(slot), &mut bytes[..len]);
        self.repost(id, slot);
        if copied.is_err() || len == 0 {
            self.figures.malformed += 1;
            return None;
        }
        if bytes[0] == cdc::CDC_TYPE {
            return self.handle_cdc(id, &bytes[..len]);
        }
        self.figures.llc_received += 1;
        message.extend(bytes[..len].iter().copied());
        self.report(Report::Llc { link: id, message });
        None
    }

    #[inline]
    fn handle_cdc(&mut self, id: LinkId, bytes: &[u8]) -> Option<ConnId> {
        let Ok(message) = cdc::Repr::parse(bytes) else {
            self.figures.malformed += 1;
            return None;
        };
        self.figures.cdc_received += 1;
        let place = token_index(message.token)
            .filter(|index| *index < self.conns.len())
            .map(|index| (index, &mut self.conns[index]));
        // A token is valid on the link of its connection only: no peer can touch another's.
        let Some((index, place)) =
            place.filter(|(_, place)| place.token == message.token && place.link == id)
        else {
            self.figures.unknown_tokens += 1;
            return None;
        };
        match &mut place.held {
            Held::Open(open) => {
                if open.proto.handle_cdc(&message).is_err() {
                    open.reset = Reset::Yes;
                }
                Some(ConnId(index as u16))
            }
            Held::Reservation(early) => {
                *early = Some(message);
                None
            }
            Held::Nothing => {
                self.figures.unknown_tokens += 1;
                None
            }
        }
    }

    /// Gives a receive slot back to the queue pair.
    #[inline]
    pub(crate) fn repost(&mut self, id: LinkId, slot: u32) {
        let Some(link) = self.links[usize::from(id.0)].as_deref() else {
            return;
        };
        let into = Sge {
            addr: link.receive.span.region.addr() + link.receive_slot_offset(slot) as u64,
            length: link.receive.bytes,
            lkey: link.receive.span.lkey,
        };
        if self
            .group
            .post_recv(link.qp, WrId(RECEIVE | u64::from(slot)), into)
            .is_err()
        {
            self.fail_link(id, WcStatus::General);
        }
    }
}
