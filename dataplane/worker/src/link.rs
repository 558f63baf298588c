//! A link as the worker sees it: send slots, message slots and what waits for completions.

use crate::budget::{LLC_BACKLOG, SEND_QUEUE_MIN, SEND_SLOTS_FOR_LLC, WORK_REQUESTS_PER_TRANSMIT};
use crate::mailbox::{ConnId, InlineRule, LinkId, LlcBytes, MessageSlots};
use arrayvec::ArrayVec;
use pollux_proto::credit::{Credits, Kind, Taken, TooMany};
use pollux_proto::planted::{Bug, is_planted};
use pollux_proto::units::SentMark;
use pollux_provider::{QpCaps, QpIndex, Signal, WcStatus, WrId};
use std::collections::VecDeque;

/// A transmission whose by-reference bytes become free when the link's send queue has completed
/// up to `sequence`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    pub(crate) sequence: u64,
    pub(crate) conn: ConnId,
    pub(crate) token: u32,
    pub(crate) mark: SentMark,
}

/// Whether a link carries traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkState {
    Up,
    /// A work request failed; what came before it is still being delivered.
    Failing(WcStatus),
    /// Its connections are reset; waits for control to take the queue pair back.
    Failed(WcStatus),
}

/// What keeps a link from sending more messages than the peer has receives for.
#[derive(Clone, Debug)]
pub enum FlowControl {
    /// Credits, as both sides agreed.
    Credits(Credits),
    /// No credits: at most this many work requests are under way, a number of receives that any
    /// such peer surely has. "Receiver not ready" becomes rare by that and is not ruled out.
    UnderWay(u32),
}

/// What was counted of a link's credits since its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CreditFigures {
    /// Messages the peer can take now.
    pub held: u32,
    /// The same in the beginning.
    pub initial: u32,
    /// Receives posted anew and not returned to the peer yet.
    pub to_return: u32,
    /// Times the credits held fell to two thirds of the initial ones.
    pub low_water: u64,
    /// Announcements sent.
    pub announcements_sent: u64,
    /// Announcements received.
    pub announcements_received: u64,
    /// Credits returned on CDC messages.
    pub returned_by_cdc: u64,
    /// Credits returned by announcements.
    pub returned_by_announcement: u64,
    /// Times the link ran out of credits while somebody had something to send.
    pub waits: u64,
    /// Time spent without, in nanoseconds of the worker's clock.
    pub waited_ns: u64,
}

/// Most connections of a link group, as its handshake can agree on.
const CONNS_MAX: usize = 255;

/// The send side's accounting is in sequence numbers: `posted` work requests so far, of which
/// `completed` are known to be done. The provider frees a slot only with a completion that covers
/// it, so at least one request in every quarter of the queue asks for one.
#[derive(Debug)]
pub struct Link {
    pub(crate) id: LinkId,
    pub(crate) qp: QpIndex,
    pub(crate) state: LinkState,
    /// What goes inline: what the queue pair granted, cut by the operator's rule.
    pub(crate) inline: InlineRule,
    pub(crate) granted_inline: u32,
    depth: u32,
    posted: u64,
    completed: u64,
    last_signaled: u64,
    pub(crate) receive: MessageSlots,
    pub(crate) send: MessageSlots,
    pub(crate) covered: VecDeque<Covered>,
    pub(crate) llc_backlog: ArrayVec<LlcBytes, LLC_BACKLOG>,
    /// Connections that found no send slot, in the order in which they came.
    pub(crate) waiters: VecDeque<ConnId>,
    /// Work was posted since the last doorbell.
    pub(crate) touched: Touched,
    pub(crate) conns: u32,
    flow: FlowControl,
    credit_figures: CreditFigures,
    /// When somebody first found no credit, while nobody has got one since.
    dry_since: Option<u64>,
    /// It is among the links whose waiters go on.
    pub(crate) roomy: Roomy,
}

/// Whether the peer returned credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Regained {
    Nothing,
    Some,
}

/// Whether those who wait for a link are being served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Roomy {
    Yes,
    No,
}

/// Whether a doorbell is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touched {
    Yes,
    No,
}

impl Link {
    /// Bookkeeping for a link whose queue pair has the sizes `caps`.
    ///
    /// `receive` has at most `caps.recv_wr` slots for incoming messages; `send` has at least
    /// `caps.send_wr` slots for messages that are too long to be posted inline. With credits, no
    /// more receives have been announced to the peer than there are receive slots.
    #[must_use]
    pub fn new(
        id: LinkId,
        caps: QpCaps,
        (receive, send): (MessageSlots, MessageSlots),
        flow: FlowControl,
    ) -> Self {
        let depth = match &flow {
            FlowControl::Credits(_) => caps.send_wr,
            FlowControl::UnderWay(most) => caps.send_wr.min((*most).max(SEND_QUEUE_MIN)),
        };
        Link {
            id,
            qp: QpIndex(0),
            state: LinkState::Up,
            inline: InlineRule::ALL.within(caps.inline_bytes),
            granted_inline: caps.inline_bytes,
            depth,
            posted: 0,
            completed: 0,
            last_signaled: 0,
            receive,
            send,
            covered: VecDeque::with_capacity(depth as usize),
            llc_backlog: ArrayVec::new(),
            waiters: VecDeque::with_capacity(CONNS_MAX),
            touched: Touched::No,
            conns: 0,
            flow,
            credit_figures: CreditFigures::default(),
            dry_since: None,
            roomy: Roomy::No,
        }
    }

    /// The worker's poll group has taken the queue pair.
    pub(crate) fn adopted(&mut self, qp: QpIndex, rule: InlineRule) {
        self.qp = qp;
        self.set_inline(rule);
    }

    /// The operator has spoken.
    pub(crate) fn set_inline(&mut self, rule: InlineRule) {
        self.inline = rule.within(self.granted_inline);
    }

    /// Whether the peer can take a message.
    #[inline]
    pub(crate) fn has_credit(&self, kind: Kind) -> bool {
        match &self.flow {
            FlowControl::Credits(credits) => credits.may_send(kind),
            FlowControl::UnderWay(_) => true,
        }
    }

    /// Takes a credit for a message that is about to be posted; `None` if the peer cannot take it.
    /// Without credits there is always one, and it carries nothing.
    #[inline]
    pub(crate) fn take_credit(&mut self, kind: Kind) -> Option<Taken> {
        let FlowControl::Credits(credits) = &mut self.flow else {
            return Some(Taken { carried: 0 });
        };
        let taken = credits.take(kind)?;
        let figures = &mut self.credit_figures;
        figures.low_water += u64::from(credits.is_at_low_water());
        let carried = u64::from(taken.carried);
        match kind {
            Kind::Cdc => figures.returned_by_cdc += carried,
            Kind::Llc => {}
            Kind::Announcement => {
                figures.announcements_sent += 1;
                figures.returned_by_announcement += carried;
            }
        }
        Some(taken)
    }

    /// A message was not posted after all.
    #[cold]
    pub(crate) fn give_credit_back(&mut self, taken: Taken) {
        match &mut self.flow {
            FlowControl::Credits(credits) => credits.give_back(taken),
            FlowControl::UnderWay(_) => {}
        }
    }

    /// A receive that was used up is posted anew. Whether it has to be looked at the end of the pass
    /// if credits are to be announced.
    #[inline]
    pub(crate) fn receive_posted(&mut self) -> bool {
        match &mut self.flow {
            FlowControl::Credits(_)
                if is_planted(Bug::LostCredit) && self.posted.is_multiple_of(16) =>
            {
                false
            }
            FlowControl::Credits(credits) => credits.handle_receive_posted(),
            FlowControl::UnderWay(_) => false,
        }
    }

    /// A message of the peer returned credits. On a link without credits the field means nothing.
    #[inline]
    pub(crate) fn credits_returned(&mut self, returned: u8, now: u64) -> Result<Regained, TooMany> {
        let FlowControl::Credits(credits) = &mut self.flow else {
            return Ok(Regained::Nothing);
        };
        credits.handle_returned(returned)?;
        if let Some(since) = self.dry_since.take() {
            self.credit_figures.waited_ns += now.saturating_sub(since);
        }
        Ok(Regained::Some)
    }

    /// Whether the link has credits at all, so that an announcement means something.
    #[inline]
    pub(crate) fn counts_credits(&self) -> bool {
        matches!(self.flow, FlowControl::Credits(_))
    }

    /// Counts an announcement of the peer.
    pub(crate) fn announcement_received(&mut self) {
        self.credit_figures.announcements_received += 1;
    }

    /// Somebody had something to send and found no credit.
    #[cold]
    pub(crate) fn ran_dry(&mut self, now: u64) {
        if self.dry_since.is_none() {
            self.dry_since = Some(now);
            self.credit_figures.waits += 1;
        }
    }

    /// Credits to be returned by an announcement, if it is time to ask control for one.
    #[inline]
    pub(crate) fn announcement_due(&mut self) -> Option<u8> {
        let FlowControl::Credits(credits) = &mut self.flow else {
            return None;
        };
        let is_due = credits.ask_for_announcement();
        is_due.then(|| u8::try_from(credits.to_return()).unwrap_or(u8::MAX))
    }

    /// The announcement that was asked for is not sent.
    pub(crate) fn announcement_called_off(&mut self) {
        match &mut self.flow {
            FlowControl::Credits(credits) => credits.call_off(),
            FlowControl::UnderWay(_) => {}
        }
    }

    /// What was counted; `None` without credits.
    pub(crate) fn credit_figures(&self, now: u64) -> Option<CreditFigures> {
        let FlowControl::Credits(credits) = &self.flow else {
            return None;
        };
        let dry = self.dry_since.map_or(0, |since| now.saturating_sub(since));
        Some(CreditFigures {
            held: credits.held(),
            initial: credits.initial(),
            to_return: credits.to_return(),
            waited_ns: self.credit_figures.waited_ns + dry,
            ..self.credit_figures
        })
    }

    /// Send slots free for data: all but those kept for LLC.
    #[inline]
    pub(crate) fn free_for_data(&self) -> u32 {
        self.free().saturating_sub(SEND_SLOTS_FOR_LLC)
    }

    /// Whether a connection that wants to send may do so now. If it is for want of a credit that it
    /// may not, the time without begins.
    #[inline]
    fn finds_room(&mut self, now: u64) -> bool {
        if !self.has_credit(Kind::Cdc) {
            self.ran_dry(now);
            return false;
        }
        self.free_for_data() >= WORK_REQUESTS_PER_TRANSMIT && self.llc_backlog.is_empty()
    }

    /// Takes the connection that has waited longest, if it can be served.
    #[inline]
    pub(crate) fn next_waiter(&mut self, now: u64) -> Option<ConnId> {
        if self.waiters.is_empty() || !self.finds_room(now) {
            return None;
        }
        self.waiters.pop_front()
    }

    /// Claims what a transmission needs: send slots, and a credit for its message. `None` if it has to
    /// wait.
    #[inline]
    pub(crate) fn claim(&mut self, now: u64) -> Option<Taken> {
        if !self.finds_room(now) {
            return None;
        }
        self.take_credit(Kind::Cdc)
    }

    /// Send slots free.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        self.depth - (self.posted - self.completed) as u32
    }

    /// Identifier of the next work request.
    #[inline]
    pub(crate) fn next_wr(&self) -> WrId {
        WrId(self.posted)
    }

    /// Counts the work request just posted.
    #[inline]
    pub(crate) fn count_posted(&mut self, signal: Signal) {
        if signal == Signal::Signaled {
            self.last_signaled = self.posted;
        }
        self.posted += 1;
    }

    /// Whether the next work request, the last of its chain, should ask for a completion.
    #[inline]
    pub(crate) fn reclaim_signal(&self) -> Signal {
        if self.posted - self.last_signaled >= u64::from(self.depth / 4) {
            Signal::Signaled
        } else {
            Signal::Unsignaled
        }
    }

    /// Takes note of a successful completion, which covers all earlier requests.
    #[inline]
    pub(crate) fn complete(&mut self, wr: WrId) {
        debug_assert!(wr.0 < self.posted, "a completion for work never posted");
        self.completed = self.completed.max(wr.0 + 1).min(self.posted);
    }

    /// The next transmission whose bytes the completions so far have freed.
    #[inline]
    pub(crate) fn pop_covered(&mut self) -> Option<Covered> {
        if self.covered.front()?.sequence < self.completed {
            self.covered.pop_front()
        } else {
            None
        }
    }

    /// Offset in the send slots' region for the message with the next identifier.
    pub(crate) fn send_slot_offset(&self) -> usize {
        let slot = self.posted % u64::from(self.send.count);
        self.send.span.offset + slot as usize * self.send.bytes as usize
    }

    /// Offset in the receive slots' region of slot `slot`.
    #[inline]
    pub(crate) fn receive_slot_offset(&self, slot: u32) -> usize {
        self.receive.span.offset + slot as usize * self.receive.bytes as usize
    }
}
