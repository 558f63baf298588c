//! From a connection's orders to work requests.

use crate::app::App;
use crate::budget::TRANSMITS_PER_TURN;
use crate::clock::Clock;
use crate::conn::{Held, OpenConn, at};
use crate::core::{Core, Standing};
use crate::link::{Covered, Link, LinkState};
use crate::mailbox::{ConnId, LinkId, LlcBytes};
use pollux_proto::conn::{NeedsCompletion, Placement, Transmit, Write};
use pollux_proto::credit::Kind;
use pollux_proto::planted::{Bug, is_planted};
use pollux_provider::{Payload, PollGroup, PostError, RemoteSpan, Sge, Signal, WcStatus};
use pollux_wire::cdc::CDC_BYTES;
use pollux_wire::llc::{AnnounceCredits, Direction, Form, LLC_BYTES};

/// First byte of an ANNOUNCE CREDITS, in both versions.
pub(crate) const ANNOUNCEMENT: u8 = pollux_wire::llc::Kind::AnnounceCredits as u8;

/// Whether a connection has more to send than its turn allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Done,
    /// Its budget is used up: it goes to the end of the queue.
    More,
    /// The link has no send slot or no credit for it, or others wait already: it waits its turn.
    NoRoom,
}

/// Posts one chunk of a transmission.
#[inline]
fn post_write<G: PollGroup>(
    group: &mut G,
    link: &mut Link,
    open: &OpenConn,
    write: &Write,
) -> Result<(), PostError> {
    let to = RemoteSpan {
        addr: open.peer_addr + u64::from(write.to_offset),
        rkey: open.peer_rkey,
    };
    let (qp, wr, signal) = (link.qp, link.next_wr(), Signal::Unsignaled);
    match write.placement {
        Placement::Inline => {
            let pieces = open.pieces(write);
            group.post_write(qp, wr, Payload::Inline(&pieces), to, signal)?;
        }
        Placement::ByReference => {
            let pieces = open.registered_pieces(write);
            group.post_write(qp, wr, Payload::ByReference(&pieces), to, signal)?;
        }
    }
    link.count_posted(signal);
    Ok(())
}

/// Posts a message: inline if it fits, else from the link's send slots.
#[inline]
fn post_message<G: PollGroup>(
    group: &mut G,
    link: &mut Link,
    message: &[u8],
    signal: Signal,
) -> Result<(), PostError> {
    if message.len() <= link.inline.messages as usize {
        let payload = Payload::InlineBytes(message);
        group.post_send(link.qp, link.next_wr(), payload, signal)?;
    } else {
        let offset = link.send_slot_offset();
        let region = &link.send.span.region;
        if message.len() > link.send.bytes as usize || region.copy_in(offset, message).is_err() {
            let (bytes, limit) = (message.len() as u64, link.send.bytes);
            return Err(PostError::TooLong { bytes, limit });
        }
        let from = [Sge {
            addr: region.addr() + offset as u64,
            length: message.len() as u32,
            lkey: link.send.span.lkey,
        }];
        let payload = Payload::ByReference(&from);
        group.post_send(link.qp, link.next_wr(), payload, signal)?;
    }
    link.count_posted(signal);
    Ok(())
}

/// Posts one transmission: its WRITEs, then the CDC message, as one chain.
#[inline]
fn post<G: PollGroup>(
    group: &mut G,
    link: &mut Link,
    (conn, token): (ConnId, u32),
    open: &OpenConn,
    transmit: &Transmit,
) -> Result<(), PostError> {
    if is_planted(Bug::CdcBeforeWrite) {
        post_announcement(group, link, (conn, token), open, transmit)?;
        return post_writes(group, link, open, transmit);
    }
    post_writes(group, link, open, transmit)?;
    post_announcement(group, link, (conn, token), open, transmit)
}

#[inline]
fn post_writes<G: PollGroup>(
    group: &mut G,
    link: &mut Link,
    open: &OpenConn,
    transmit: &Transmit,
) -> Result<(), PostError> {
    let mut writes = transmit.writes.iter();
    writes.try_for_each(|write| post_write(group, link, open, write))
}

/// Posts the message that announces the WRITEs before it.
#[inline]
fn post_announcement<G: PollGroup>(
    group: &mut G,
    link: &mut Link,
    (conn, token): (ConnId, u32),
    open: &OpenConn,
    transmit: &Transmit,
) -> Result<(), PostError> {
    let mut message = [0; CDC_BYTES];
    transmit.cdc.emit(&mut message);
    let sequence = link.next_wr().0;
    // The peer's reading frees by-reference bytes as well, so a completion is only asked for when
    // much of the sndbuf waits for one: reading acknowledgements costs a line between cores. The
    // rest of the ring is free meanwhile, so a writer always gets to the point where it is asked.
    // With the last message it always is: only then the sndbuf may get another connection.
    let unreclaimed = open.proto.sent_total() - open.proto.reclaimed_total();
    let last = !transmit.cdc.state_flags.is_empty();
    let signal = if unreclaimed >= u64::from(open.sndbuf_bytes() / 4) || (last && unreclaimed > 0) {
        Signal::Signaled
    } else {
        link.reclaim_signal()
    };
    post_message(group, link, &message, signal)?;
    if transmit.needs_completion == NeedsCompletion::Yes || (last && unreclaimed > 0) {
        link.covered.push_back(Covered {
            sequence,
            conn,
            token,
            mark: transmit.mark,
        });
    }
    Ok(())
}

impl<G: PollGroup, A: App, C: Clock> Core<G, A, C> {
    /// Posts what a connection has to say, within the budget of one turn.
    #[inline]
    pub(crate) fn transmit(&mut self, conn: ConnId, standing: Standing) -> Turn {
        let place = &mut self.conns[at(conn)];
        let Held::Open(open) = &mut place.held else {
            return Turn::Done;
        };
        if !open.proto.wants_transmit() {
            return Turn::Done;
        }
        let id = place.link;
        let Some(link) = self
            .links
            .get_mut(usize::from(id.0))
            .and_then(|l| l.as_deref_mut())
        else {
            return Turn::Done;
        };
        if link.state != LinkState::Up {
            return Turn::Done;
        }
        if standing == Standing::Newcomer && !link.waiters.is_empty() {
            self.figures.send_waits += 1;
            return Turn::NoRoom;
        }
        let mut posted = Ok(());
        let mut more = Turn::More;
        let mut claimed = 0;
        let mut count = 0;
        while count < TRANSMITS_PER_TURN && open.proto.wants_transmit() {
            let Some(taken) = link.claim(self.now) else {
                self.figures.send_waits += 1;
                more = Turn::NoRoom;
                break;
            };
            claimed += 1;
            if !open
                .proto
                .poll_transmit_into(link.inline.writes, &mut self.transmit)
            {
                link.give_credit_back(taken);
                break;
            }
            self.transmit.cdc.credits = taken.carried;
            posted = post(
                &mut self.group,
                link,
                (conn, place.token),
                open,
                &self.transmit,
            );
            if posted.is_err() {
                link.give_credit_back(taken);
                break;
            }
            count += 1;
        }
        let turn = if open.proto.wants_transmit() {
            more
        } else {
            Turn::Done
        };
        self.figures.cdc_sent += count as u64;
        // Also where a claim was given back: the returns it carried may be worth an announcement now.
        if claimed > 0 {
            self.touch(id);
        }
        if posted.is_err() {
            // Slots were counted and spans planned here: a refusal means that the queue pair has
            // gone into error underneath us.
            self.fail_link(id, WcStatus::General);
            return Turn::Done;
        }
        turn
    }

    /// Sends an LLC message, or keeps it until a slot is free; a full backlog fails the link,
    /// because a lost answer would end it later and less clearly.
    pub(crate) fn send_llc(&mut self, id: LinkId, message: LlcBytes) {
        let Some(link) = self
            .links
            .get_mut(usize::from(id.0))
            .and_then(|l| l.as_deref_mut())
        else {
            return;
        };
        if link.state != LinkState::Up {
            return;
        }
        if link.counts_credits() && message.first() == Some(&ANNOUNCEMENT) {
            return self.send_announcement(id);
        }
        if link.free() == 0 || !link.has_credit(Kind::Llc) || !link.llc_backlog.is_empty() {
            if !link.has_credit(Kind::Llc) {
                link.ran_dry(self.now);
            }
            if link.llc_backlog.try_push(message).is_err() {
                self.fail_link(id, WcStatus::General);
            }
            return;
        }
        let Some(taken) = link.take_credit(Kind::Llc) else {
            return;
        };
        let signal = link.reclaim_signal();
        if post_message(&mut self.group, link, &message, signal).is_err() {
            link.give_credit_back(taken);
            self.fail_link(id, WcStatus::General);
            return;
        }
        self.figures.llc_sent += 1;
        self.touch(id);
    }

    /// Returns credits in a message of their own, as control has ordered: as many as there are by
    /// now. It is called off where none are left, and where there is no slot: then it is asked for
    /// again when a completion has freed some, for the peer may have no credit to send anything.
    fn send_announcement(&mut self, id: LinkId) {
        let Some(link) = self
            .links
            .get_mut(usize::from(id.0))
            .and_then(|l| l.as_deref_mut())
        else {
            return;
        };
        if link.free() == 0 {
            return link.announcement_called_off();
        }
        let Some(taken) = link.take_credit(Kind::Announcement) else {
            return link.announcement_called_off();
        };
        let announcement = AnnounceCredits {
            direction: Direction::Response,
            credits: taken.carried,
        };
        let mut message = [0; LLC_BYTES];
        let signal = link.reclaim_signal();
        let posted = match announcement.emit(Form::V1, &mut message) {
            Ok(_) => post_message(&mut self.group, link, &message, signal),
            Err(_) => Err(PostError::TooLong {
                bytes: LLC_BYTES as u64,
                limit: 0,
            }),
        };
        if posted.is_err() {
            link.give_credit_back(taken);
            self.fail_link(id, WcStatus::General);
            return;
        }
        self.figures.llc_sent += 1;
        self.touch(id);
    }

    /// Sends LLC messages that waited for slots or credits.
    pub(crate) fn flush_llc_backlog(&mut self, id: LinkId) {
        loop {
            let Some(link) = self.link_mut(id) else {
                return;
            };
            if link.free() == 0 || !link.has_credit(Kind::Llc) || link.llc_backlog.is_empty() {
                return;
            }
            let message = link.llc_backlog.remove(0);
            let rest = std::mem::take(&mut link.llc_backlog);
            self.send_llc(id, message);
            if let Some(link) = self.link_mut(id) {
                link.llc_backlog = rest;
            }
        }
    }
}
