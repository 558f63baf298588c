//! The two engines of a link, their owners' wishes, and a line that alters, drops, doubles and invents
//! messages, or is silent.
//!
//! 1. What an engine sends is a legal message of its version, and at most one request for a key is on
//!    its way at a time.
//! 2. Each request of the peer is answered exactly once, at once, and answers are not answered.
//! 3. Each wish that was taken comes back exactly once, whatever happens, and soon if time passes.
//! 4. The peer's keys are those that the orders told of, and no more than the table holds.
//! 5. A link ends once; after that nothing is said and no timer runs. An expired timer does not stay.
//! 6. If nobody touched the line, each side knows exactly the keys that the other was told it knows.

mod built;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pollux_proto::Role;
use pollux_proto::link::{FIRST_LINK, LinkEnd, PEER_RTOKENS_MAX, RToken};
use pollux_proto::llc::{
    CreditUse, Engine, EngineError, EngineParams, Output, RESPONSE_WAIT, RkeyTag, SecondLink,
};
use pollux_proto::time::Instant;
use pollux_wire::field::{Gid, LinkNumber, Mac, Qpn, Rkey};
use pollux_wire::llc::{
    DeleteReason, DeleteScope, Direction, Ending, Form, Kind, Message, RmbeMark,
};

use crate::Input;

/// Most orders that one call may leave, beside those for wishes: eight deleted keys, an answer, the
/// next request, and news of the link.
const ORDERS_MAX: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Untouched,
    Touched,
}

/// What an owner wished for.
#[derive(Clone, Copy)]
enum Wish {
    Confirm(RToken),
    Delete(Rkey),
}

/// One engine and what was seen of it.
struct End {
    form: Form,
    params: EngineParams,
    engine: Engine,
    /// Messages under way to it.
    inbox: VecDeque<Vec<u8>>,
    wishes: BTreeMap<u64, Wish>,
    next_tag: u64,
    /// The peer's keys, as orders told of them.
    known: Vec<RToken>,
    /// Our keys that the peer is said to know.
    announced: Vec<RToken>,
    /// The link's number, which a client takes over.
    link_number: LinkNumber,
    is_confirmed: bool,
    is_over: bool,
}

/// What one call made an engine send.
#[derive(Default)]
struct Sent {
    messages: Vec<Vec<u8>>,
    answers: Vec<Kind>,
    requests: Vec<Kind>,
    orders: usize,
}

/// Drives one target run.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.finish();
}

struct World {
    now: Instant,
    line: Line,
    ends: [End; 2],
}

fn rtoken(n: u8) -> RToken {
    // Few keys, so that they meet; two addresses for each.
    RToken {
        rkey: Rkey(u32::from(n & 7)),
        address: u64::from(n & 8) << 20,
    }
}

impl End {
    fn new(role: Role, form: Form, bits: u8, now: Instant) -> End {
        let n = if role == Role::Client { 2 } else { 1 };
        let params = EngineParams {
            role,
            form,
            local: LinkEnd {
                mac: Mac([n; 6]),
                gid: Gid([n; 16]),
                qpn: Qpn::from_low_bits(n.into()),
            },
            link_number: FIRST_LINK,
            link_user_id: n.into(),
            max_links: 1,
            max_conns: 32,
            second_link: if bits & 2 == 0 {
                SecondLink::Excluded
            } else {
                SecondLink::Waved
            },
            credits: if bits & 4 == 0 {
                CreditUse::Off
            } else {
                CreditUse::On
            },
            test_period: (bits & 8 == 0).then_some(Duration::from_secs(1)),
        };
        let mut engine = Engine::new(params, now);
        let first = rtoken(n);
        engine.learn_rtoken(first);
        End {
            form,
            params,
            engine,
            inbox: VecDeque::new(),
            wishes: BTreeMap::new(),
            next_tag: 0,
            known: vec![first],
            announced: vec![rtoken(3 - n)],
            link_number: FIRST_LINK,
            is_confirmed: false,
            is_over: false,
        }
    }

    /// Takes every order and judges it.
    fn drain(&mut self, now: Instant) -> Sent {
        let mut sent = Sent::default();
        let wishes = self.wishes.len();
        while let Some(output) = self.engine.poll_output(now) {
            assert!(!self.is_over, "{output:?} after the end");
            sent.orders += 1;
            assert!(sent.orders <= ORDERS_MAX + wishes, "no end of orders");
            match output {
                Output::Send(bytes) => self.judge_sent(&bytes, &mut sent),
                Output::LinkConfirmed => {
                    assert!(!std::mem::replace(&mut self.is_confirmed, true));
                }
                Output::RkeyConfirmed { tag } => match self.wish(tag) {
                    Wish::Confirm(rtoken) if self.announced.contains(&rtoken) => {}
                    Wish::Confirm(rtoken) => self.announced.push(rtoken),
                    Wish::Delete(rkey) => panic!("{rkey:?} was to be deleted"),
                },
                Output::RkeyDeleted { tag } => match self.wish(tag) {
                    Wish::Delete(rkey) => {
                        let at = self.announced.iter().position(|known| known.rkey == rkey);
                        at.map(|at| self.announced.remove(at));
                    }
                    Wish::Confirm(rtoken) => panic!("{rtoken:?} was to be confirmed"),
                },
                Output::RkeyFailed { tag, why } => {
                    self.wish(tag);
                    assert!(!why.to_string().is_empty());
                }
                Output::PeerRkey(rtoken) => {
                    assert!(!self.known.contains(&rtoken));
                    self.known.push(rtoken);
                }
                Output::PeerDeletedRkey(rtoken) => {
                    let at = self.known.iter().position(|known| *known == rtoken);
                    self.known
                        .remove(at.expect("only what was known is deleted"));
                }
                Output::PeerCredits(_) => {
                    assert!(self.params.credits == CreditUse::On && self.is_confirmed);
                }
                Output::GroupDeleted { .. } => self.is_over = true,
                Output::Failed(failure) => {
                    assert!(!failure.to_string().is_empty());
                    self.is_over = true;
                }
            }
        }
        self.judge(now);
        let of_keys = |kind: &&Kind| matches!(kind, Kind::ConfirmRkey | Kind::DeleteRkey);
        assert!(sent.requests.iter().filter(of_keys).count() <= 1);
        sent
    }

    fn judge_sent(&self, bytes: &[u8], sent: &mut Sent) {
        let message = Message::parse(self.form, bytes).expect("our own message is legal");
        assert_eq!(message.buffer_len(self.form), bytes.len());
        let kind = message.kind();
        match direction(&message) {
            Some(Direction::Response) => sent.answers.push(kind),
            Some(Direction::Request) => sent.requests.push(kind),
            None => {}
        }
        sent.messages.push(bytes.to_vec());
    }

    fn wish(&mut self, tag: RkeyTag) -> Wish {
        self.wishes.remove(&tag.0).expect("a wish comes back once")
    }

    /// What holds between any two calls.
    fn judge(&self, now: Instant) {
        let engine = &self.engine;
        assert_eq!(engine.rkey_requests(), self.wishes.len());
        assert_eq!(engine.peer_rtokens().len(), self.known.len());
        assert!(self.known.len() <= PEER_RTOKENS_MAX);
        assert_eq!(engine.has_ended(), self.is_over);
        assert_eq!(engine.is_active(), self.is_confirmed && !self.is_over);
        assert!(!self.is_over || engine.poll_timeout().is_none());
        assert!(self.is_over || self.is_confirmed || engine.poll_timeout() > Some(now));
    }

    /// One message arrives.
    fn receive(&mut self, now: Instant, bytes: &[u8]) -> Sent {
        let (was_over, ignored) = (self.is_over, self.engine.ignored());
        let message = Message::parse(self.form, bytes);
        let expected = message.as_ref().map_or(Vec::new(), |m| self.answers_due(m));
        self.engine.handle_message(now, bytes);
        let sent = self.drain(now);
        if was_over {
            assert_eq!((sent.orders, self.engine.ignored()), (0, ignored));
            return sent;
        }
        assert_eq!(sent.answers, expected, "to {message:?}");
        if message.is_err() {
            assert_eq!(self.engine.ignored(), ignored + 1);
        }
        sent
    }

    /// The answers that a message must have, as the engine stands before it.
    fn answers_due(&mut self, message: &Message<'_>) -> Vec<Kind> {
        let is_client = self.params.role == Role::Client;
        let is_due = direction(message) == Some(Direction::Request)
            && match message {
                Message::AddLink(_)
                | Message::ConfirmRkey(_)
                | Message::DeleteRkey(_)
                | Message::TestLink(_) => true,
                Message::RequestAddLink(_) => !is_client,
                Message::ConfirmLink(confirm) if is_client && !self.is_confirmed => {
                    let is_taken = confirm.mark == RmbeMark::Absent;
                    if is_taken {
                        self.link_number = confirm.link_number;
                    }
                    is_taken
                }
                Message::ConfirmLink(confirm) => {
                    is_client && confirm.link_number == self.link_number
                }
                Message::DeleteLink(delete) => match delete.scope {
                    DeleteScope::One(number) => is_client || number != self.link_number,
                    DeleteScope::All => false,
                },
                Message::AddLinkCont(_)
                | Message::ConfirmRkeyCont(_)
                | Message::AnnounceCredits(_) => false,
            };
        if is_due && !self.is_over {
            vec![message.kind()]
        } else {
            Vec::new()
        }
    }
}

/// Whether a message asks or answers; `None` for those that do neither.
fn direction(message: &Message<'_>) -> Option<Direction> {
    match message {
        Message::ConfirmLink(m) => Some(m.direction),
        Message::AddLink(m) => Some(m.direction),
        Message::AddLinkCont(_) | Message::ConfirmRkeyCont(_) | Message::AnnounceCredits(_) => None,
        Message::DeleteLink(m) => Some(m.direction),
        Message::RequestAddLink(m) => Some(m.direction),
        Message::ConfirmRkey(m) => Some(m.direction),
        Message::TestLink(m) => Some(m.direction),
        Message::DeleteRkey(m) => Some(m.direction),
    }
}

impl World {
    fn new(input: &mut Input<'_>) -> World {
        let (bits, of_client, of_server) = (input.byte(), input.byte(), input.byte());
        let form = if bits & 1 == 0 { Form::V2 } else { Form::V1 };
        let now = Instant(1 << 40);
        let ends = [
            End::new(Role::Client, form, of_client, now),
            End::new(Role::Server, form, of_server, now),
        ];
        World {
            now,
            line: Line::Untouched,
            ends,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.byte();
        let (side, how) = (usize::from(op >> 4 & 1), op >> 5);
        match op & 0x0f {
            0..=3 => drop(self.deliver(side)),
            4 => self.alter(side, input),
            5 => self.reorder(side, how),
            6 => {
                let bytes = input.bytes(44 + usize::from(how) * 4).to_vec();
                self.invent(side, bytes);
            }
            7 => {
                let bytes = built::message(self.ends[side].form, input);
                self.invent(side, bytes);
            }
            8 | 9 => self.wish(side, Wish::Confirm(rtoken(input.byte()))),
            10 => self.wish(side, Wish::Delete(rtoken(input.byte()).rkey)),
            11 => self.announce(side, input.byte()),
            12 => drop(self.jump()),
            13 => self.wait(Duration::from_millis(input.u16().into())),
            14 => self.rare(side, how),
            _ => self.settle(),
        }
        self.drain();
    }

    /// Takes the orders of both; what one sends is under way to the other.
    fn drain(&mut self) {
        for side in 0..2 {
            let sent = self.ends[side].drain(self.now);
            self.send(side, sent);
        }
    }

    fn send(&mut self, side: usize, sent: Sent) {
        self.ends[1 - side].inbox.extend(sent.messages);
    }

    /// The oldest message for `side` arrives; false if there is none.
    fn deliver(&mut self, side: usize) -> bool {
        let Some(bytes) = self.ends[side].inbox.pop_front() else {
            return false;
        };
        let sent = self.ends[side].receive(self.now, &bytes);
        self.send(side, sent);
        true
    }

    fn settle(&mut self) {
        // Each message has one answer, and answers have none.
        for _ in 0..1000 {
            if !(self.deliver(0) | self.deliver(1)) {
                return;
            }
        }
        panic!("the two never stop talking");
    }

    fn touch(&mut self) {
        self.line = Line::Touched;
    }

    fn alter(&mut self, side: usize, input: &mut Input<'_>) {
        let (at, value) = (usize::from(input.byte()), input.byte());
        if let Some(front) = self.ends[side].inbox.front_mut() {
            let at = at % front.len();
            front[at] ^= value;
            self.touch();
        }
    }

    /// Drops the oldest message, doubles it, or lets the next one overtake it.
    fn reorder(&mut self, side: usize, how: u8) {
        let inbox = &mut self.ends[side].inbox;
        match how & 3 {
            0 | 1 => drop(inbox.pop_front()),
            2 => inbox.extend(inbox.front().cloned()),
            _ if inbox.len() > 1 => inbox.swap(0, 1),
            _ => {}
        }
        self.touch();
    }

    fn invent(&mut self, side: usize, bytes: Vec<u8>) {
        let sent = self.ends[side].receive(self.now, &bytes);
        self.send(side, sent);
        self.touch();
    }

    fn wish(&mut self, side: usize, wish: Wish) {
        let end = &mut self.ends[side];
        let tag = RkeyTag(end.next_tag);
        let taken = match wish {
            Wish::Confirm(rtoken) => end.engine.confirm_rkey(tag, rtoken),
            Wish::Delete(rkey) => end.engine.delete_rkey(tag, rkey),
        };
        match taken {
            Ok(()) => {
                assert!(!end.is_over);
                end.wishes.insert(end.next_tag, wish);
                end.next_tag += 1;
            }
            Err(EngineError::Ended) => assert!(end.is_over),
            Err(EngineError::QueueFull) => assert!(end.wishes.len() > 500),
            Err(EngineError::NoCredits) => panic!("a wish for a key is none for credits"),
        }
    }

    fn announce(&mut self, side: usize, credits: u8) {
        let end = &mut self.ends[side];
        let is_possible = end.params.credits == CreditUse::On && end.is_confirmed && !end.is_over;
        let announced = end.engine.announce_credits(credits);
        assert_eq!(announced.is_ok(), is_possible);
    }

    fn rare(&mut self, side: usize, how: u8) {
        let engine = &mut self.ends[side].engine;
        match how {
            0 => engine.handle_link_down(),
            1 => engine.delete_group(DeleteReason::PROGRAM, Ending::Orderly),
            2 => engine.delete_group(DeleteReason::LOST_PATH, Ending::Abrupt),
            _ => return engine.handle_activity(self.now),
        }
        self.touch();
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.expire();
    }

    /// Time goes to the next timer; false if there is none.
    fn jump(&mut self) -> bool {
        let Some(next) = self
            .ends
            .iter()
            .filter_map(|end| end.engine.poll_timeout())
            .min()
        else {
            return false;
        };
        self.now = self.now.max(next);
        self.expire();
        true
    }

    fn expire(&mut self) {
        // A timer is for silence: on a good line it expires when it should and nothing is under way.
        let due = self
            .ends
            .iter()
            .filter_map(|end| end.engine.poll_timeout())
            .min();
        let is_quiet = self.ends.iter().all(|end| end.inbox.is_empty());
        if !is_quiet || due.is_some_and(|due| due < self.now) {
            self.touch();
        }
        let now = self.now;
        for end in &mut self.ends {
            end.engine.handle_timeout(now);
        }
        self.drain();
        for end in &self.ends {
            let due = end.engine.poll_timeout();
            assert!(due.is_none_or(|at| at > now), "an expired timer stays");
        }
    }

    fn finish(&mut self) {
        if self.line == Line::Untouched {
            return self.finish_untouched();
        }
        // From now on nothing arrives.
        let wishes: usize = self.ends.iter().map(|end| end.wishes.len()).sum();
        let since = self.now;
        for _ in 0..2 * wishes + 40 {
            if self.ends.iter().all(|end| end.wishes.is_empty()) {
                break;
            }
            assert!(self.jump(), "a wish waits for ever");
        }
        assert!(self.ends.iter().all(|end| end.wishes.is_empty()));
        let took = self.now.since(since);
        assert!(
            took <= RESPONSE_WAIT * (wishes as u32 + 3),
            "the end took {took:?}"
        );
    }

    fn finish_untouched(&mut self) {
        for _ in 0..4 {
            self.settle();
            if self.ends.iter().all(|end| end.is_confirmed) {
                break;
            }
            self.jump();
        }
        self.settle();
        assert!(self.line == Line::Untouched);
        for side in 0..2 {
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            assert!(
                end.is_confirmed && !end.is_over,
                "a good link is not confirmed"
            );
            assert!(end.wishes.is_empty());
            assert_eq!(end.known, peer.announced);
            assert_eq!(end.link_number, peer.link_number);
        }
    }
}
