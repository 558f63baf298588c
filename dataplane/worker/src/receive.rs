//! From completions to connections.

use crate::app::App;
use crate::clock::Clock;
use crate::conn::{Held, Reset, at};
use crate::core::Core;
use crate::link::{Link, LinkState, Regained};
use crate::mailbox::{ConnId, LinkId, Report, token_index};
use crate::transmit::ANNOUNCEMENT;
use pollux_provider::{Completion, PollGroup, PostError, Sge, WcOpcode, WcStatus, WrId};
use pollux_wire::cdc;
use pollux_wire::llc::{AnnounceCredits, Form};

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
        self.link_has_room(id);
    }

    #[inline]
    fn handle_message(&mut self, id: LinkId, completion: Completion) -> Option<ConnId> {
        let slot = (completion.wr_id.0 & !RECEIVE) as u32;
        let link = self.links[usize::from(id.0)].as_deref_mut()?;
        if let LinkState::Failed(_) = link.state {
            return None;
        }
        // Copied before it is judged: the slot is memory that the device may write again.
        let mut bytes = [0; crate::budget::LLC_BYTES_MAX];
        let len = (completion.byte_len.min(link.receive.bytes) as usize).min(bytes.len());
        let from = link.receive_slot_offset(slot);
        let copied = link.receive.span.region.copy_out(from, &mut bytes[..len]);
        let posted = post_receive(&mut self.group, link, slot);
        let may_announce = link.receive_posted();
        if posted.is_err() {
            self.fail_link(id, WcStatus::General);
        }
        if may_announce {
            self.touch(id);
        }
        if copied.is_err() || len == 0 {
            self.figures.malformed += 1;
            return None;
        }
        if bytes[0] == cdc::CDC_TYPE {
            return self.handle_cdc(id, &bytes[..len]);
        }
        self.figures.llc_received += 1;
        if bytes[0] == ANNOUNCEMENT && self.counts_credits(id) {
            self.handle_announcement(id, &bytes[..len]);
            return None;
        }
        let message = bytes[..len].iter().copied().collect();
        self.report(Report::Llc { link: id, message });
        None
    }

    #[inline]
    fn counts_credits(&mut self, id: LinkId) -> bool {
        self.link_mut(id).is_some_and(|link| link.counts_credits())
    }

    /// Credits returned in a message of their own. They are taken here and not by control, because
    /// senders wait for them.
    #[cold]
    fn handle_announcement(&mut self, id: LinkId, bytes: &[u8]) {
        let Ok(announcement) = AnnounceCredits::parse(Form::V1, bytes) else {
            self.figures.malformed += 1;
            return;
        };
        if let Some(link) = self.link_mut(id) {
            link.announcement_received();
        }
        self.take_returned_credits(id, announcement.credits);
    }

    /// The peer returned credits: those who waited for them go on. One that returns more than there
    /// can be has lost count, and its next message might find no receive: the link is given up.
    #[inline]
    fn take_returned_credits(&mut self, id: LinkId, credits: u8) {
        if credits == 0 {
            return;
        }
        let now = self.now;
        let Some(link) = self.link_mut(id) else {
            return;
        };
        match link.credits_returned(credits, now) {
            Ok(Regained::Nothing) => {}
            Ok(Regained::Some) => {
                let others_wait = !link.waiters.is_empty() || !link.llc_backlog.is_empty();
                if others_wait {
                    self.link_has_room(id);
                }
            }
            Err(_) => {
                self.figures.credit_faults += 1;
                self.fail_link(id, WcStatus::RemoteOperation);
            }
        }
    }

    #[inline]
    fn handle_cdc(&mut self, id: LinkId, bytes: &[u8]) -> Option<ConnId> {
        let Ok(message) = cdc::Repr::parse(bytes) else {
            self.figures.malformed += 1;
            return None;
        };
        self.figures.cdc_received += 1;
        // Whoever the message is for: the credits are the link's.
        self.take_returned_credits(id, message.credits);
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
    pub(crate) fn repost(&mut self, id: LinkId, slot: u32) {
        let Some(link) = self.links[usize::from(id.0)].as_deref() else {
            return;
        };
        if post_receive(&mut self.group, link, slot).is_err() {
            self.fail_link(id, WcStatus::General);
        }
    }
}

/// Posts a receive into a slot.
#[inline]
fn post_receive<G: PollGroup>(group: &mut G, link: &Link, slot: u32) -> Result<(), PostError> {
    let into = Sge {
        addr: link.receive.span.region.addr() + link.receive_slot_offset(slot) as u64,
        length: link.receive.bytes,
        lkey: link.receive.span.lkey,
    };
    group.post_recv(link.qp, WrId(RECEIVE | u64::from(slot)), into)
}
