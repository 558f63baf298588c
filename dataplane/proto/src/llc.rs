//! The exchanges on a link (LLC) as a state machine: one [`Engine`] per link, and so per link
//! group.
//!
//! The owner hands in received LLC messages and what it wishes for, runs the timer of
//! [`Engine::poll_timeout`], and after every call takes orders with [`Engine::poll_output`] until
//! there are none. Messages to be sent are at most 72 bytes.
//!
//! | exchange | who starts it | waits | if nothing comes |
//! |---|---|---|---|
//! | CONFIRM LINK | server, first on a link | server 2 s, repeating; client 4 s | the link failed |
//! | CONFIRM RKEY | either, one at a time | 2 s | the request failed |
//! | DELETE RKEY | either, one at a time | 2 s | the same; harmless |
//! | TEST LINK | either, when the link was idle | 2 s | the link failed |
//! | DELETE LINK of the group | either | not at all | |
//!
//! Responses carry no number and are matched by type, therefore at most one request for an rkey is
//! outstanding and the rest wait in a queue. Every request of the peer is answered at once,
//! whatever is outstanding. A second link is always refused. Messages that are malformed, unknown,
//! or that nobody waits for are counted and ignored, as in Linux.

mod add_link;
mod confirm_link;
mod delete_link;
mod rkey;
mod test_link;

use core::time::Duration;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use pollux_wire::clc::Diagnosis;
use pollux_wire::field::{LinkNumber, Rkey};
use pollux_wire::llc::{
    AnnounceCredits, DeleteReason, DeleteScope, Direction, Ending, Form, Message,
};
use thiserror::Error;

use self::rkey::Flow;
use self::test_link::Test;
use crate::clc::{Agreed, RELEASE};
use crate::link::{FIRST_LINK, LinkEnd, PeerRTokens, RToken, Role};
use crate::time::Instant;

/// How long a requester waits for its response.
pub const RESPONSE_WAIT: Duration = Duration::from_secs(2);
/// How long a client waits for the first CONFIRM LINK.
pub const CONFIRM_LINK_CLIENT_WAIT: Duration = Duration::from_secs(4);
/// How long a server holds back its first CONFIRM LINK. A Linux client that has just written its
/// Confirm drops the message if it comes before it listens.
pub const CONFIRM_LINK_DELAY: Duration = Duration::from_millis(5);
/// How often a server repeats its CONFIRM LINK.
pub const CONFIRM_LINK_REPEAT: Duration = Duration::from_millis(300);
/// How long to wait after "refused for now" before a CONFIRM RKEY is tried again.
pub const RKEY_RETRY_WAIT: Duration = Duration::from_millis(200);
/// How often a CONFIRM RKEY is tried in all.
pub const RKEY_TRIES: u8 = 5;
/// Linux's TEST LINK period.
pub const TEST_LINK_PERIOD: Duration = Duration::from_secs(30);
/// Requests for rkeys that may wait: for each connection of a full group one to announce its buffer
/// and one to withdraw that of the connection before it.
pub const RKEY_QUEUE_MAX: usize = 512;

/// An LLC message to be sent.
pub type Bytes = ArrayVec<u8, 96>;

/// What an engine is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineParams {
    /// Which side we are.
    pub role: Role,
    /// Version of the messages.
    pub form: Form,
    /// Our end of the link.
    pub local: LinkEnd,
    /// Number of the link; a client takes it over from the server.
    pub link_number: LinkNumber,
    /// Names the link in our logs, and in the peer's.
    pub link_user_id: u32,
    /// Agreed most links, for information.
    pub max_links: u8,
    /// Agreed most connections, for information.
    pub max_conns: u8,
    /// Whether a client that waits for a second link is told at once that there is none.
    pub second_link: SecondLink,
    /// Whether credits were agreed on.
    pub credits: CreditUse,
    /// How long the link may be idle before it is tested; `None`: never tested.
    pub test_period: Option<Duration>,
}

/// What a server does about a second link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SecondLink {
    /// One link was agreed on: nothing.
    Excluded,
    /// The client waits for an ADD LINK (version 1, release 0): send one without an MTU, which it
    /// refuses.
    Waved,
}

/// Whether receive-queue credits are used on the link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CreditUse {
    /// Not agreed on: ANNOUNCE CREDITS is ignored.
    Off,
    /// Agreed on.
    On,
}

impl EngineParams {
    /// The parameters that follow from a first contact, with Linux's TEST LINK period.
    #[must_use]
    pub fn new(role: Role, agreed: &Agreed, local: LinkEnd) -> EngineParams {
        let terms = &agreed.terms;
        EngineParams {
            role,
            form: terms.form(),
            local,
            link_number: FIRST_LINK,
            link_user_id: u32::from(FIRST_LINK.0),
            max_links: terms.max_links,
            max_conns: terms.max_conns,
            second_link: match role {
                Role::Server if terms.release < RELEASE => SecondLink::Waved,
                Role::Server | Role::Client => SecondLink::Excluded,
            },
            credits: if agreed.peer_receives.is_some() {
                CreditUse::On
            } else {
                CreditUse::Off
            },
            test_period: Some(TEST_LINK_PERIOD),
        }
    }
}

/// The owner's name for one of its requests; comes back with the result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RkeyTag(pub u64);

/// An order to the owner, or news for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send this on the link.
    Send(Bytes),
    /// The link works in both directions: the group may be used.
    LinkConfirmed,
    /// The peer took our RMB: connections may use it.
    RkeyConfirmed {
        /// Which request.
        tag: RkeyTag,
    },
    /// The peer has forgotten our RMB.
    RkeyDeleted {
        /// Which request.
        tag: RkeyTag,
    },
    /// A request for an rkey failed.
    RkeyFailed {
        /// Which request.
        tag: RkeyTag,
        /// Why.
        why: RkeyFailure,
    },
    /// The peer announced an RMB.
    PeerRkey(RToken),
    /// The peer withdrew an RMB: do not write into it any more.
    PeerDeletedRkey(RToken),
    /// The peer posted that many receives more for us.
    PeerCredits(u8),
    /// The link group is over: close the queue pair at once, end its connections, forget it. What
    /// stands before this order should be sent first, but need not arrive.
    GroupDeleted {
        /// Why.
        reason: DeleteReason,
        /// Who said so.
        by: EndedBy,
    },
    /// The link does not work: the group is over.
    Failed(LinkFailure),
}

/// Who ended a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EndedBy {
    /// [`Engine::delete_group`].
    Local,
    /// A DELETE LINK of the peer.
    Peer,
}

/// Why a request for an rkey failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum RkeyFailure {
    /// No answer within 2 s.
    #[error("the peer did not answer within {} s", RESPONSE_WAIT.as_secs())]
    TimedOut,
    /// The peer refused.
    #[error("the peer refused the key")]
    Refused,
    /// The peer refused for now, [`RKEY_TRIES`] times.
    #[error("the peer refused the key {RKEY_TRIES} times for lack of room; close connections")]
    RefusedForNow,
    /// The link ended first.
    #[error("the link ended before the peer answered")]
    LinkEnded,
}

/// Why a link does not work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum LinkFailure {
    /// CONFIRM LINK, or its response, did not come.
    #[error("the new link was not confirmed in time; check that the fabric connects both ports")]
    NotConfirmed,
    /// The peer wants an eye catcher at the start of each RMBE, which is not supported.
    #[error("the peer wants an eye catcher in receive rings, which neither we nor Linux support")]
    WantsEyeCatcher,
    /// TEST LINK was not answered.
    #[error(
        "the peer was silent for {} s after a link test; it died or lost its port",
        RESPONSE_WAIT.as_secs()
    )]
    Silent,
    /// The owner reported it down.
    #[error("the queue pair of the link failed")]
    Down,
}

impl LinkFailure {
    /// What a Decline says if the handshake is still under way.
    #[must_use]
    pub const fn diagnosis(self) -> Diagnosis {
        match self {
            LinkFailure::NotConfirmed | LinkFailure::Silent => Diagnosis::TIMEOUT_CL,
            LinkFailure::WantsEyeCatcher => Diagnosis::RMBE_EC,
            LinkFailure::Down => Diagnosis::ERR_RDYLNK,
        }
    }
}

/// A wish that the engine cannot take.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum EngineError {
    /// [`RKEY_QUEUE_MAX`] requests wait already.
    #[error(
        "{RKEY_QUEUE_MAX} requests for keys wait on this link; wish again after one was answered"
    )]
    QueueFull,
    /// The link group is over.
    #[error("the link has ended")]
    Ended,
    /// The link is not confirmed yet, or credits were not agreed on.
    #[error("credits cannot be announced on this link now")]
    NoCredits,
}

/// How far the link has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// The server sends CONFIRM LINK when `send` comes.
    Asking { send: Instant, until: Instant },
    /// The client waits for it.
    Listening { until: Instant },
    /// Confirmed.
    Active,
    /// Failed or deleted: messages and wishes have no effect.
    Ended,
}

/// The state machine of one link. See the module text.
#[derive(Clone, Debug)]
pub struct Engine {
    params: EngineParams,
    stage: Stage,
    flow: Flow,
    test: Test,
    peer_rtokens: PeerRTokens,
    outputs: VecDeque<Output>,
    ignored: u64,
}

impl Engine {
    /// Starts the first exchange of a link whose queue pair can receive.
    #[must_use]
    pub fn new(params: EngineParams, now: Instant) -> Engine {
        let stage = match params.role {
            Role::Server => Stage::Asking {
                send: now.after(CONFIRM_LINK_DELAY),
                until: now.after(RESPONSE_WAIT),
            },
            Role::Client => Stage::Listening {
                until: now.after(CONFIRM_LINK_CLIENT_WAIT),
            },
        };
        Engine {
            params,
            stage,
            flow: Flow::new(),
            test: Test::new(params.test_period, now),
            peer_rtokens: PeerRTokens::new(),
            outputs: VecDeque::with_capacity(16),
            ignored: 0,
        }
    }

    /// The next order, until there is none. A waiting request is sent, and its two seconds begin,
    /// when it is taken from here.
    pub fn poll_output(&mut self, now: Instant) -> Option<Output> {
        if self.outputs.is_empty() && self.stage == Stage::Active {
            self.start_next_flow(now);
        }
        self.outputs.pop_front()
    }

    /// When [`Engine::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.stage {
            Stage::Asking { send, until } => Some(send.min(until)),
            Stage::Listening { until } => Some(until),
            Stage::Active => [self.flow.due(), self.test.due()]
                .into_iter()
                .flatten()
                .min(),
            Stage::Ended => None,
        }
    }

    /// Time has come to [`Engine::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.stage {
            Stage::Asking { send, until } => self.on_asking_timeout(now, send, until),
            Stage::Listening { until } if until <= now => self.fail(LinkFailure::NotConfirmed),
            Stage::Listening { .. } | Stage::Ended => {}
            Stage::Active => {
                self.on_flow_timeout(now);
                self.on_test_timeout(now);
            }
        }
    }

    /// An LLC message was received on the link. Anything may be handed in; what is no message of
    /// this link's version is ignored.
    pub fn handle_message(&mut self, now: Instant, bytes: &[u8]) {
        if self.stage == Stage::Ended {
            return;
        }
        let Ok(message) = Message::parse(self.params.form, bytes) else {
            return self.ignore();
        };
        self.test.note_activity(now);
        match message {
            Message::ConfirmLink(message) => self.on_confirm_link(&message),
            Message::AddLink(message) => self.on_add_link(&message),
            Message::RequestAddLink(message) => self.on_request_add_link(message.direction),
            Message::DeleteLink(message) => self.on_delete_link(&message),
            Message::ConfirmRkey(message) => self.on_confirm_rkey(now, message),
            Message::DeleteRkey(message) => self.on_delete_rkey(message),
            Message::TestLink(message) => self.on_test_link(&message),
            Message::AnnounceCredits(message) => self.on_credits(message.credits),
            Message::AddLinkCont(_) | Message::ConfirmRkeyCont(_) => self.ignore(),
        }
    }

    /// Something else was received on the link, a CDC message for instance: it need not be tested
    /// yet.
    pub fn handle_activity(&mut self, now: Instant) {
        self.test.note_activity(now);
    }

    /// The queue pair failed: the group is over.
    pub fn handle_link_down(&mut self) {
        if self.stage != Stage::Ended {
            self.fail(LinkFailure::Down);
        }
    }

    /// Wishes that the peer learns an RMB of ours. The result comes with `tag`. If the link is not
    /// confirmed yet, the request waits.
    pub fn confirm_rkey(&mut self, tag: RkeyTag, rtoken: RToken) -> Result<(), EngineError> {
        self.enqueue(rkey::Wish::confirm(tag, rtoken))
    }

    /// Wishes that the peer forgets all RMBs of ours with this key; it forgets the first it finds.
    pub fn delete_rkey(&mut self, tag: RkeyTag, rkey: Rkey) -> Result<(), EngineError> {
        self.enqueue(rkey::Wish::delete(tag, rkey))
    }

    /// Notes an RMB that the peer announced in its Accept or Confirm; Linux does not confirm the
    /// key of the first one in any other way.
    pub fn learn_rtoken(&mut self, rtoken: RToken) -> crate::link::Learned {
        self.peer_rtokens.learn(rtoken)
    }

    /// The RMBs the peer has announced.
    #[must_use]
    pub fn peer_rtokens(&self) -> &PeerRTokens {
        &self.peer_rtokens
    }

    /// Tells the peer that `credits` receives were posted anew. The message takes one credit
    /// itself. On an error nothing was announced, and the credits are still to be returned.
    pub fn announce_credits(&mut self, credits: u8) -> Result<(), EngineError> {
        let is_possible = match self.params.credits {
            CreditUse::On => self.stage == Stage::Active,
            CreditUse::Off => false,
        };
        if !is_possible {
            return Err(EngineError::NoCredits);
        }
        // Known senders set the response flag.
        let direction = Direction::Response;
        self.send(&Message::AnnounceCredits(AnnounceCredits {
            direction,
            credits,
        }));
        Ok(())
    }

    /// Ends the group: orders a DELETE LINK for all links and [`Output::GroupDeleted`]. The idle
    /// timer uses [`DeleteReason::PROGRAM`] and [`Ending::Orderly`].
    pub fn delete_group(&mut self, reason: DeleteReason, ending: Ending) {
        if self.stage == Stage::Ended {
            return;
        }
        self.send_delete(Direction::Request, DeleteScope::All, ending, reason);
        self.end_deleted(reason, EndedBy::Local);
    }

    /// Whether the link was confirmed and has not ended.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.stage == Stage::Active
    }

    /// Whether the link has failed or was deleted.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// Received messages that were malformed, unknown, or unexpected.
    #[must_use]
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Requests for rkeys that are outstanding or wait.
    #[must_use]
    pub fn rkey_requests(&self) -> usize {
        self.flow.len()
    }

    fn ignore(&mut self) {
        self.ignored += 1;
    }

    fn on_credits(&mut self, credits: u8) {
        match (self.params.credits, self.stage) {
            (CreditUse::On, Stage::Active) => self.put(Output::PeerCredits(credits)),
            (CreditUse::Off, _)
            | (CreditUse::On, Stage::Asking { .. } | Stage::Listening { .. } | Stage::Ended) => {
                self.ignore()
            }
        }
    }

    fn put(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    /// Orders a message. What we make exists in our version and fits.
    fn send(&mut self, message: &Message<'_>) {
        let mut bytes = Bytes::from([0; 96]);
        let len = message.emit(self.params.form, &mut bytes);
        bytes.truncate(len.expect("our own messages exist in our version and fit"));
        self.put(Output::Send(bytes));
    }

    fn fail(&mut self, failure: LinkFailure) {
        self.end();
        self.put(Output::Failed(failure));
    }

    fn end_deleted(&mut self, reason: DeleteReason, by: EndedBy) {
        self.end();
        self.put(Output::GroupDeleted { reason, by });
    }

    /// Ends the link; all requests fail.
    fn end(&mut self) {
        self.stage = Stage::Ended;
        self.test = Test::Off;
        while let Some(tag) = self.flow.take_any() {
            self.put(Output::RkeyFailed {
                tag,
                why: RkeyFailure::LinkEnded,
            });
        }
    }
}
