//! Two engines joined by a link, with a clock that jumps; and one engine with a peer that lies.

mod handshake;

use core::time::Duration;
use std::collections::VecDeque;

use handshake::{at, golden, own, rtoken};
use pollux_proto::Role;
use pollux_proto::link::{FIRST_LINK, LinkEnd, PEER_RTOKENS_MAX, RToken};
use pollux_proto::llc::{
    Bytes, CreditUse, EndedBy, Engine, EngineError, EngineParams, LinkFailure, Output,
    RKEY_QUEUE_MAX, RKEY_TRIES, RkeyFailure, RkeyTag, SecondLink, TEST_LINK_PERIOD,
};
use pollux_proto::time::Instant;
use pollux_wire::clc::Diagnosis;
use pollux_wire::field::{Gid, LinkNumber, Mac, Rkey};
use pollux_wire::llc::{
    AddLink, Answer, ConfirmLink, ConfirmRkey, DeleteLink, DeleteReason, DeleteRkey, DeleteScope,
    Direction, Ending, Form, Message, RejectReason, RkeyAnswer, RmbeMark, TestLink, Verdict,
};

fn params(role: Role, form: Form) -> EngineParams {
    let n = match role {
        Role::Server => 1,
        Role::Client => 2,
    };
    EngineParams {
        role,
        form,
        local: LinkEnd {
            mac: Mac([0x52, 0x54, 0, 0, 0, n]),
            gid: Gid::from_ipv4([192, 168, 77, n].into()),
            qpn: own(n).qpn,
        },
        link_number: FIRST_LINK,
        link_user_id: 0x101,
        max_links: 1,
        max_conns: 32,
        second_link: SecondLink::Excluded,
        credits: CreditUse::Off,
        test_period: None,
    }
}

/// One side: its engine, what it has sent, and its news in order.
struct Side {
    engine: Engine,
    sent: VecDeque<Bytes>,
    news: Vec<Output>,
}

impl Side {
    fn new(params: EngineParams) -> Side {
        Side {
            engine: Engine::new(params, at(0)),
            sent: VecDeque::new(),
            news: Vec::new(),
        }
    }

    fn poll(&mut self, now: Instant) {
        while let Some(output) = self.engine.poll_output(now) {
            match output {
                Output::Send(bytes) => self.sent.push_back(bytes),
                Output::LinkConfirmed
                | Output::RkeyConfirmed { .. }
                | Output::RkeyDeleted { .. }
                | Output::RkeyFailed { .. }
                | Output::PeerRkey(_)
                | Output::PeerDeletedRkey(_)
                | Output::PeerCredits(_)
                | Output::GroupDeleted { .. }
                | Output::Failed(_) => self.news.push(output),
            }
        }
    }

    /// Hands in a message and returns what was sent in answer.
    fn receive(&mut self, now: Instant, bytes: &[u8]) -> Vec<Bytes> {
        self.engine.handle_message(now, bytes);
        self.poll(now);
        self.sent.drain(..).collect()
    }

    fn take_news(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.news)
    }

    /// Lets time pass to `now`, timers in order.
    fn sleep(&mut self, now: Instant) {
        while let Some(due) = self.engine.poll_timeout().filter(|due| *due <= now) {
            self.engine.handle_timeout(due);
            self.poll(due);
        }
        self.poll(now);
    }
}

struct Pair {
    client: Side,
    server: Side,
    now: Instant,
}

impl Pair {
    fn new(client: EngineParams, server: EngineParams) -> Pair {
        Pair {
            client: Side::new(client),
            server: Side::new(server),
            now: at(0),
        }
    }

    /// A pair whose link was confirmed at 5 ms.
    fn active(form: Form) -> Pair {
        let mut pair = Pair::new(params(Role::Client, form), params(Role::Server, form));
        pair.run_to(at(5));
        assert_eq!(pair.client.take_news(), [Output::LinkConfirmed]);
        assert_eq!(pair.server.take_news(), [Output::LinkConfirmed]);
        pair
    }

    /// Delivers until nothing is under way.
    fn exchange(&mut self) {
        loop {
            self.client.poll(self.now);
            self.server.poll(self.now);
            if let Some(bytes) = self.client.sent.pop_front() {
                self.server.engine.handle_message(self.now, &bytes);
            } else if let Some(bytes) = self.server.sent.pop_front() {
                self.client.engine.handle_message(self.now, &bytes);
            } else {
                return;
            }
        }
    }

    /// Runs to `end`, stopping at every timer.
    fn run_to(&mut self, end: Instant) {
        self.exchange();
        loop {
            let timers = [&self.client, &self.server].map(|side| side.engine.poll_timeout());
            let Some(due) = timers.into_iter().flatten().min().filter(|due| *due <= end) else {
                self.now = end;
                return self.exchange();
            };
            self.now = due;
            self.client.engine.handle_timeout(due);
            self.server.engine.handle_timeout(due);
            self.exchange();
        }
    }
}

/// An active engine of one role, alone.
fn alone(role: Role, form: Form) -> Side {
    alone_with(params(role, form))
}

fn alone_with(params: EngineParams) -> Side {
    let mut side = Side::new(params);
    let direction = match params.role {
        Role::Client => Direction::Request,
        Role::Server => {
            side.sleep(at(5));
            Direction::Response
        }
    };
    let confirm = confirm_link(direction, RmbeMark::Absent, FIRST_LINK);
    side.receive(at(5), &bytes(params.form, &Message::ConfirmLink(confirm)));
    assert_eq!(side.take_news(), [Output::LinkConfirmed]);
    side
}

fn confirm_link(direction: Direction, mark: RmbeMark, link_number: LinkNumber) -> ConfirmLink {
    ConfirmLink {
        direction,
        mark,
        mac: Mac::ZERO,
        gid: Gid::ZERO,
        qpn: own(9).qpn,
        link_number,
        link_user_id: 0,
        max_links: 1,
        max_conns: 32,
    }
}

fn bytes(form: Form, message: &Message<'_>) -> Vec<u8> {
    let mut out = [0; 128];
    let len = message.emit(form, &mut out).unwrap();
    out[..len].to_vec()
}

fn parse(form: Form, bytes: &[u8]) -> Message<'_> {
    Message::parse(form, bytes).unwrap()
}

const TAG: RkeyTag = RkeyTag(7);

#[test]
fn a_new_link_is_confirmed_by_one_exchange_a_moment_after_the_confirm() {
    let mut pair = Pair::new(
        params(Role::Client, Form::V2),
        params(Role::Server, Form::V2),
    );
    pair.run_to(at(4));
    assert!(pair.client.news.is_empty() && !pair.server.engine.is_active());
    pair.run_to(at(5));
    assert_eq!(pair.client.take_news(), [Output::LinkConfirmed]);
    assert_eq!(pair.server.take_news(), [Output::LinkConfirmed]);
    pair.run_to(at(60_000));
    assert!(pair.client.engine.is_active() && pair.server.engine.is_active());
    assert_eq!(
        (pair.client.engine.ignored(), pair.server.engine.ignored()),
        (0, 0)
    );
}

#[test]
fn the_confirm_link_messages_are_those_of_the_kernel() {
    let mut kernel = params(Role::Server, Form::V2);
    kernel.local.qpn = pollux_wire::field::Qpn::from_low_bits(0x13);
    (kernel.max_links, kernel.max_conns) = (2, 255);
    let mut server = Side::new(kernel);
    server.sleep(at(5));
    assert_eq!(
        server.sent[0][..],
        golden("llc2-kernel-confirm-link-request")
    );
    let mut client = Side::new(EngineParams {
        role: Role::Client,
        local: LinkEnd {
            mac: Mac([0x52, 0x54, 0, 0, 0, 2]),
            gid: Gid::from_ipv4([192, 168, 77, 2].into()),
            ..kernel.local
        },
        ..kernel
    });
    let answer = client.receive(at(5), &server.sent[0]);
    assert_eq!(answer[0][..], golden("llc2-kernel-confirm-link-response"));
}

#[test]
fn a_request_that_is_lost_is_repeated_every_300_ms() {
    let mut server = Side::new(params(Role::Server, Form::V2));
    let mut client = Side::new(params(Role::Client, Form::V2));
    for due in [5, 305, 605, 905] {
        assert_eq!(server.engine.poll_timeout(), Some(at(due)));
        server.sleep(at(due));
        assert_eq!(server.sent.len(), 1);
        let request = server.sent.pop_front().unwrap();
        if due == 905 {
            let answer = client.receive(at(906), &request);
            server.receive(at(907), &answer[0]);
        }
    }
    assert!(client.engine.is_active() && server.engine.is_active());
}

#[test]
fn a_repeated_request_that_crosses_the_answer_is_answered_again_and_changes_nothing() {
    let mut client = alone(Role::Client, Form::V2);
    let again = confirm_link(Direction::Request, RmbeMark::Absent, FIRST_LINK);
    let again = bytes(Form::V2, &Message::ConfirmLink(again));
    let answer = client.receive(at(300), &again);
    assert!(matches!(
        parse(Form::V2, &answer[0]),
        Message::ConfirmLink(_)
    ));
    let mut server = alone(Role::Server, Form::V2);
    assert!(server.receive(at(301), &answer[0]).is_empty());
    assert_eq!((client.take_news(), server.take_news()), (vec![], vec![]));
    assert!(client.engine.is_active() && server.engine.is_active());
}

#[test]
fn without_an_answer_the_server_gives_up_after_two_seconds_and_the_client_after_four() {
    let mut server = Side::new(params(Role::Server, Form::V2));
    server.sleep(at(1999));
    assert!(server.news.is_empty());
    assert_eq!(server.sent.len(), 7);
    server.sleep(at(2000));
    assert_eq!(
        server.take_news(),
        [Output::Failed(LinkFailure::NotConfirmed)]
    );
    let mut client = Side::new(params(Role::Client, Form::V2));
    client.sleep(at(3999));
    assert!(client.news.is_empty());
    client.sleep(at(4000));
    assert_eq!(
        client.take_news(),
        [Output::Failed(LinkFailure::NotConfirmed)]
    );
    assert_eq!(
        (client.engine.poll_timeout(), client.engine.has_ended()),
        (None, true)
    );
    assert_eq!(LinkFailure::NotConfirmed.diagnosis(), Diagnosis::TIMEOUT_CL);
}

#[test]
fn a_peer_with_eye_catchers_is_refused_by_both_sides() {
    for (role, direction) in [
        (Role::Client, Direction::Request),
        (Role::Server, Direction::Response),
    ] {
        let mut side = Side::new(params(role, Form::V1));
        side.sleep(at(5));
        let marked = confirm_link(direction, RmbeMark::Present, FIRST_LINK);
        side.sent.clear();
        let answer = side.receive(at(6), &bytes(Form::V1, &Message::ConfirmLink(marked)));
        assert!(answer.is_empty());
        assert_eq!(
            side.take_news(),
            [Output::Failed(LinkFailure::WantsEyeCatcher)]
        );
    }
    assert_eq!(LinkFailure::WantsEyeCatcher.diagnosis(), Diagnosis::RMBE_EC);
}

#[test]
fn a_client_takes_the_link_number_from_the_server_and_a_server_accepts_only_its_own() {
    let mut client = Side::new(params(Role::Client, Form::V2));
    let request = confirm_link(Direction::Request, RmbeMark::Absent, LinkNumber(9));
    let answer = client.receive(at(1), &bytes(Form::V2, &Message::ConfirmLink(request)));
    let Message::ConfirmLink(answer) = parse(Form::V2, &answer[0]) else {
        panic!()
    };
    assert_eq!(answer.link_number, LinkNumber(9));
    let mut server = Side::new(params(Role::Server, Form::V2));
    server.sleep(at(5));
    let wrong = confirm_link(Direction::Response, RmbeMark::Absent, LinkNumber(9));
    server.receive(at(6), &bytes(Form::V2, &Message::ConfirmLink(wrong)));
    assert!(!server.engine.is_active());
    assert_eq!(server.engine.ignored(), 1);
}

#[test]
fn both_sides_may_confirm_keys_at_once() {
    for form in [Form::V1, Form::V2] {
        let mut pair = Pair::active(form);
        pair.client
            .engine
            .confirm_rkey(RkeyTag(1), rtoken(2))
            .unwrap();
        pair.server
            .engine
            .confirm_rkey(RkeyTag(2), rtoken(1))
            .unwrap();
        pair.exchange();
        for (side, tag, peer) in [
            (&mut pair.client, RkeyTag(1), rtoken(1)),
            (&mut pair.server, RkeyTag(2), rtoken(2)),
        ] {
            let news = side.take_news();
            assert_eq!(news.len(), 2);
            assert!(news.contains(&Output::RkeyConfirmed { tag }));
            assert!(news.contains(&Output::PeerRkey(peer)));
        }
        assert!(pair.client.engine.peer_rtokens().contains(rtoken(1)));
        assert!(pair.server.engine.peer_rtokens().contains(rtoken(2)));
    }
}

#[test]
fn the_rkey_messages_are_those_of_the_kernel() {
    let mut server = alone(Role::Server, Form::V2);
    let kernel = RToken {
        rkey: Rkey(0x8e2),
        address: 0xff24_26d3_849a_0000,
    };
    server.engine.confirm_rkey(TAG, kernel).unwrap();
    server.poll(at(6));
    assert_eq!(
        server.sent[0][..],
        golden("llc2-kernel-confirm-rkey-request-server")
    );
    let mut client = alone(Role::Client, Form::V2);
    let answer = client.receive(at(6), &server.sent[0]);
    assert_eq!(
        answer[0][..],
        golden("llc2-kernel-confirm-rkey-response-client")
    );
    let mut client = alone(Role::Client, Form::V2);
    client.engine.delete_rkey(TAG, Rkey(0x4a3)).unwrap();
    client.poll(at(6));
    assert_eq!(client.sent[0][..], golden("llc2-run1-delete-rkey-request"));
    let known = RToken {
        rkey: Rkey(0x4a3),
        address: 0,
    };
    server.engine.learn_rtoken(known);
    server.sent.clear();
    let answer = server.receive(at(7), &client.sent[0]);
    assert_eq!(answer[0][..], golden("llc2-run1-delete-rkey-response"));
    assert_eq!(server.take_news(), [Output::PeerDeletedRkey(known)]);
}

#[test]
fn a_key_wished_before_the_link_is_confirmed_is_asked_for_afterwards() {
    let mut pair = Pair::new(
        params(Role::Client, Form::V2),
        params(Role::Server, Form::V2),
    );
    pair.server.engine.confirm_rkey(TAG, rtoken(1)).unwrap();
    pair.run_to(at(4));
    assert!(pair.server.news.is_empty() && pair.client.news.is_empty());
    pair.run_to(at(5));
    let expected = [Output::LinkConfirmed, Output::RkeyConfirmed { tag: TAG }];
    assert_eq!(pair.server.take_news(), expected);
    let expected = [Output::LinkConfirmed, Output::PeerRkey(rtoken(1))];
    assert_eq!(pair.client.take_news(), expected);
}

#[test]
fn one_request_is_under_way_at_a_time_and_the_others_follow_in_order() {
    let mut side = alone(Role::Client, Form::V2);
    for n in 0..3 {
        side.engine
            .confirm_rkey(RkeyTag(n), rtoken(n as u8))
            .unwrap();
    }
    side.engine.delete_rkey(RkeyTag(3), Rkey(0x100)).unwrap();
    assert_eq!(side.engine.rkey_requests(), 4);
    for n in 0..4 {
        side.poll(at(6));
        assert_eq!(side.sent.len(), 1, "request {n}");
        let request = side.sent.pop_front().unwrap();
        let mut response = request.to_vec();
        response[3] = 0x80;
        side.receive(at(6), &response)
            .into_iter()
            .for_each(|next| side.sent.push_back(next));
    }
    let tags = (0..3).map(|n| Output::RkeyConfirmed { tag: RkeyTag(n) });
    let expected: Vec<_> = tags
        .chain([Output::RkeyDeleted { tag: RkeyTag(3) }])
        .collect();
    assert_eq!(side.take_news(), expected);
    assert_eq!(
        (side.engine.rkey_requests(), side.engine.poll_timeout()),
        (0, None)
    );
}

#[test]
fn a_lost_answer_fails_its_request_after_two_seconds_and_the_next_one_goes_on() {
    let mut side = alone(Role::Server, Form::V2);
    side.engine.confirm_rkey(RkeyTag(1), rtoken(1)).unwrap();
    side.engine.confirm_rkey(RkeyTag(2), rtoken(2)).unwrap();
    side.poll(at(10));
    let first = side.sent.pop_front().unwrap();
    assert_eq!(side.engine.poll_timeout(), Some(at(2010)));
    side.sleep(at(2010));
    let timed_out = Output::RkeyFailed {
        tag: RkeyTag(1),
        why: RkeyFailure::TimedOut,
    };
    assert_eq!(side.take_news(), [timed_out]);
    let second = side.sent.pop_front().unwrap();
    // The answer to the first comes now: it must not be taken for the answer to the second.
    let mut late = first.to_vec();
    late[3] = 0x80;
    side.receive(at(2011), &late);
    assert_eq!(side.take_news(), []);
    assert_eq!(side.engine.ignored(), 1);
    let mut answer = second.to_vec();
    answer[3] = 0x80;
    side.receive(at(2012), &answer);
    assert_eq!(
        side.take_news(),
        [Output::RkeyConfirmed { tag: RkeyTag(2) }]
    );
}

/// Answers the outstanding CONFIRM RKEY of `side`.
fn answer(side: &mut Side, now: Instant, answer: RkeyAnswer) {
    let request = side.sent.pop_front().unwrap();
    let Message::ConfirmRkey(request) = parse(Form::V2, &request) else {
        panic!()
    };
    let response = ConfirmRkey {
        direction: Direction::Response,
        answer,
        ..request
    };
    side.engine
        .handle_message(now, &bytes(Form::V2, &Message::ConfirmRkey(response)));
    side.poll(now);
}

#[test]
fn a_key_that_is_refused_fails_at_once() {
    let mut side = alone(Role::Client, Form::V2);
    side.engine.confirm_rkey(TAG, rtoken(1)).unwrap();
    side.poll(at(10));
    answer(&mut side, at(11), RkeyAnswer::Negative);
    let refused = Output::RkeyFailed {
        tag: TAG,
        why: RkeyFailure::Refused,
    };
    assert_eq!(side.take_news(), [refused]);
}

#[test]
fn a_key_that_is_refused_for_now_is_tried_again_and_again_but_not_for_ever() {
    let mut side = alone(Role::Client, Form::V2);
    side.engine.confirm_rkey(TAG, rtoken(1)).unwrap();
    side.engine.confirm_rkey(RkeyTag(8), rtoken(2)).unwrap();
    side.poll(at(10));
    let mut now = 10;
    for _ in 1..RKEY_TRIES {
        answer(&mut side, at(now), RkeyAnswer::Retry);
        assert!(side.sent.is_empty() && side.news.is_empty());
        now += 200;
        assert_eq!(side.engine.poll_timeout(), Some(at(now)));
        side.sleep(at(now));
    }
    answer(&mut side, at(now), RkeyAnswer::Retry);
    let given_up = Output::RkeyFailed {
        tag: TAG,
        why: RkeyFailure::RefusedForNow,
    };
    assert_eq!(side.take_news(), [given_up]);
    answer(&mut side, at(now), RkeyAnswer::Positive);
    assert_eq!(
        side.take_news(),
        [Output::RkeyConfirmed { tag: RkeyTag(8) }]
    );
}

#[test]
fn an_answer_while_resting_or_to_another_kind_of_request_is_ignored() {
    let mut side = alone(Role::Client, Form::V2);
    side.engine.confirm_rkey(TAG, rtoken(1)).unwrap();
    side.poll(at(10));
    let deleted = DeleteRkey {
        direction: Direction::Response,
        verdict: Verdict::Positive,
        errors: 0,
        rkeys: Default::default(),
    };
    side.receive(at(11), &bytes(Form::V2, &Message::DeleteRkey(deleted)));
    let request = side.engine.rkey_requests();
    assert_eq!(
        (request, side.engine.ignored(), side.take_news()),
        (1, 1, vec![])
    );
}

#[test]
fn answers_that_nobody_waits_for_are_ignored() {
    let mut side = alone(Role::Server, Form::V2);
    for name in [
        "llc2-kernel-confirm-rkey-response-client",
        "llc2-run1-delete-rkey-response",
    ] {
        assert!(side.receive(at(10), &golden(name)).is_empty());
    }
    assert_eq!((side.engine.ignored(), side.take_news()), (2, vec![]));
}

#[test]
fn a_full_table_of_peer_keys_answers_try_again_and_room_helps() {
    let mut side = alone(Role::Server, Form::V2);
    for n in 0..PEER_RTOKENS_MAX {
        side.engine.learn_rtoken(RToken {
            rkey: Rkey(n as u32),
            address: 0,
        });
    }
    let request = golden("llc2-kernel-confirm-rkey-request-client");
    let answer = side.receive(at(10), &request);
    assert_eq!(answer[0][3], 0xb0);
    assert_eq!(side.take_news(), []);
    let delete = DeleteRkey {
        direction: Direction::Request,
        verdict: Verdict::Positive,
        errors: 0,
        rkeys: [Rkey(3)].into_iter().collect(),
    };
    side.receive(at(11), &bytes(Form::V2, &Message::DeleteRkey(delete)));
    assert_eq!(side.receive(at(12), &request)[0][3], 0x80);
}

#[test]
fn a_key_announced_twice_is_news_once_and_a_bad_count_is_refused_for_now() {
    let mut side = alone(Role::Server, Form::V2);
    let mut request = golden("llc2-kernel-confirm-rkey-request-client");
    assert_eq!(side.receive(at(10), &request)[0][3], 0x80);
    assert_eq!(side.receive(at(11), &request)[0][3], 0x80);
    assert_eq!(side.take_news().len(), 1);
    request[4] = 3;
    assert_eq!(side.receive(at(12), &request)[0][3], 0xb0);
    assert_eq!(side.take_news(), []);
}

#[test]
fn unknown_keys_in_a_deletion_are_named_by_mask_in_version_1_and_by_number_in_version_2() {
    for (form, errors, rkeys) in [
        (Form::V1, 0b1010_0000, [Rkey(1), Rkey(2), Rkey(3)]),
        (Form::V2, 2, [Rkey(0); 3]),
    ] {
        let mut side = alone(Role::Client, form);
        let known = RToken {
            rkey: Rkey(2),
            address: 5,
        };
        side.engine.learn_rtoken(known);
        let request = DeleteRkey {
            direction: Direction::Request,
            verdict: Verdict::Positive,
            errors: 0,
            rkeys: [Rkey(1), Rkey(2), Rkey(3)].into_iter().collect(),
        };
        let answer = side.receive(at(10), &bytes(form, &Message::DeleteRkey(request)));
        let expected = DeleteRkey {
            direction: Direction::Response,
            verdict: Verdict::Negative,
            errors,
            rkeys: rkeys.into_iter().collect(),
        };
        assert_eq!(parse(form, &answer[0]), Message::DeleteRkey(expected));
        assert_eq!(side.take_news(), [Output::PeerDeletedRkey(known)]);
    }
}

#[test]
fn the_queue_of_requests_is_bounded_and_says_so() {
    let mut side = alone(Role::Client, Form::V2);
    for n in 0..RKEY_QUEUE_MAX {
        side.engine
            .delete_rkey(RkeyTag(n as u64), Rkey(n as u32))
            .unwrap();
    }
    assert_eq!(
        side.engine.delete_rkey(TAG, Rkey(1)),
        Err(EngineError::QueueFull)
    );
    side.poll(at(10));
    assert_eq!(side.engine.delete_rkey(TAG, Rkey(1)), Ok(()));
}

#[test]
fn a_second_link_is_refused_with_the_kernels_own_bytes() {
    let mut client = alone(Role::Client, Form::V2);
    let answer = client.receive(at(10), &golden("llc2-kernel-add-link-request"));
    assert_eq!(answer[0][..], golden("llc2-kernel-add-link-reject"));
    let mut client = alone(Role::Client, Form::V1);
    let answer = client.receive(at(10), &golden("llc1-hand-add-link-request"));
    let Message::AddLink(reject) = parse(Form::V1, &answer[0]) else {
        panic!()
    };
    assert_eq!(
        reject.answer,
        Answer::Rejected(RejectReason::NO_ALTERNATE_PATH)
    );
    assert_eq!(client.take_news(), []);
}

#[test]
fn a_client_that_waits_for_a_second_link_is_waved_off_once() {
    for form in [Form::V1, Form::V2] {
        let waved = EngineParams {
            second_link: SecondLink::Waved,
            ..params(Role::Server, form)
        };
        let mut pair = Pair::new(params(Role::Client, form), waved);
        pair.run_to(at(5));
        assert_eq!(pair.server.take_news(), [Output::LinkConfirmed]);
        assert_eq!(
            (pair.client.engine.ignored(), pair.server.engine.ignored()),
            (0, 0)
        );
        let mut server = Side::new(waved);
        server.sleep(at(5));
        let confirm = confirm_link(Direction::Response, RmbeMark::Absent, FIRST_LINK);
        server.sent.clear();
        let sent = server.receive(at(6), &bytes(form, &Message::ConfirmLink(confirm)));
        let Message::AddLink(AddLink { mtu, direction, .. }) = parse(form, &sent[0]) else {
            panic!()
        };
        assert_eq!((mtu, direction, sent.len()), (None, Direction::Request, 1));
    }
}

#[test]
fn a_request_for_a_link_is_answered_empty_by_the_server_only() {
    let request = golden("llc2-hand-request-add-link");
    let answer = alone(Role::Server, Form::V2).receive(at(10), &request);
    assert_eq!(answer[0][..], golden("llc2-hand-request-add-link-response"));
    let mut client = alone(Role::Client, Form::V2);
    assert!(client.receive(at(10), &request).is_empty());
    assert_eq!(client.engine.ignored(), 1);
}

#[test]
fn a_group_ends_with_one_message_of_the_client_and_the_servers_echo() {
    let mut pair = Pair::active(Form::V2);
    pair.client
        .engine
        .delete_group(DeleteReason::OPERATOR, Ending::Abrupt);
    pair.client.poll(at(10));
    let said = pair.client.sent.pop_front().unwrap();
    assert_eq!(said[..], golden("llc2-run1-delete-link-client"));
    let reason = DeleteReason::OPERATOR;
    let by_us = Output::GroupDeleted {
        reason,
        by: EndedBy::Local,
    };
    assert_eq!(pair.client.take_news(), [by_us]);
    let echo = pair.server.receive(at(11), &said);
    assert_eq!(echo[0][..], golden("llc2-run1-delete-link-server"));
    let by_peer = Output::GroupDeleted {
        reason,
        by: EndedBy::Peer,
    };
    assert_eq!(pair.server.take_news(), [by_peer]);
    assert!(pair.client.receive(at(12), &echo[0]).is_empty());
    assert_eq!(pair.client.take_news(), []);
}

#[test]
fn a_client_does_not_answer_when_the_server_ends_the_group() {
    let mut pair = Pair::active(Form::V2);
    pair.server
        .engine
        .delete_group(DeleteReason::PROGRAM, Ending::Orderly);
    pair.server.poll(at(10));
    let said = pair.server.sent.pop_front().unwrap();
    assert!(pair.client.receive(at(11), &said).is_empty());
    let reason = DeleteReason::PROGRAM;
    assert_eq!(
        pair.client.take_news(),
        [Output::GroupDeleted {
            reason,
            by: EndedBy::Peer
        }]
    );
    assert!(pair.client.engine.has_ended() && pair.server.engine.has_ended());
}

#[test]
fn the_deletion_of_the_only_link_ends_the_group_and_of_another_is_refused() {
    let delete = |number| DeleteLink {
        direction: Direction::Request,
        scope: DeleteScope::One(LinkNumber(number)),
        ending: Ending::Abrupt,
        reason: DeleteReason::LOST_PATH,
    };
    for (role, direction, reason) in [
        (Role::Client, Direction::Response, DeleteReason::NONE),
        (Role::Server, Direction::Request, DeleteReason::LOST_PATH),
    ] {
        let mut side = alone(role, Form::V2);
        let answer = side.receive(at(10), &bytes(Form::V2, &Message::DeleteLink(delete(2))));
        let Message::DeleteLink(unknown) = parse(Form::V2, &answer[0]) else {
            panic!()
        };
        assert_eq!(unknown.reason, DeleteReason::UNKNOWN_LINK);
        assert!(side.engine.is_active());
        let answer = side.receive(at(10), &bytes(Form::V2, &Message::DeleteLink(delete(1))));
        let expected = DeleteLink {
            direction,
            reason,
            ..delete(1)
        };
        assert_eq!(parse(Form::V2, &answer[0]), Message::DeleteLink(expected));
        let ended = Output::GroupDeleted {
            reason: DeleteReason::LOST_PATH,
            by: EndedBy::Peer,
        };
        assert_eq!(side.take_news(), [ended]);
    }
}

/// An active client that tests an idle link every 30 s.
fn tested() -> Side {
    alone_with(EngineParams {
        test_period: Some(TEST_LINK_PERIOD),
        ..params(Role::Client, Form::V2)
    })
}

#[test]
fn an_idle_link_is_tested_and_lives_on_if_it_answers() {
    let mut side = tested();
    assert_eq!(side.engine.poll_timeout(), Some(at(30_005)));
    side.sleep(at(30_005));
    assert_eq!(
        side.sent.pop_front().unwrap()[..],
        golden("llc2-hand-test-link-request")
    );
    side.receive(at(31_000), &golden("llc2-hand-test-link-response"));
    assert_eq!(side.engine.poll_timeout(), Some(at(61_000)));
    assert!(side.engine.is_active());
}

#[test]
fn an_idle_link_that_does_not_answer_has_failed() {
    let mut side = tested();
    side.engine.confirm_rkey(TAG, rtoken(1)).unwrap();
    side.sleep(at(30_005));
    side.sleep(at(32_004));
    assert!(side.engine.is_active());
    side.sleep(at(32_005));
    assert_eq!(
        side.take_news().last(),
        Some(&Output::Failed(LinkFailure::Silent))
    );
}

#[test]
fn anything_received_postpones_or_passes_the_test() {
    let mut side = tested();
    side.engine.handle_activity(at(20_000));
    assert_eq!(side.engine.poll_timeout(), Some(at(50_000)));
    side.sleep(at(50_000));
    assert_eq!(side.sent.len(), 1);
    side.engine.handle_activity(at(51_000));
    side.sleep(at(60_000));
    assert!(side.engine.is_active());
    assert_eq!(side.engine.poll_timeout(), Some(at(81_000)));
}

#[test]
fn a_test_of_the_peer_is_echoed_with_its_data() {
    let mut side = alone(Role::Server, Form::V1);
    let request = golden("llc1-hand-test-link-request");
    let answer = side.receive(at(10), &request);
    let Message::TestLink(asked) = parse(Form::V1, &request) else {
        panic!()
    };
    let echo = TestLink {
        direction: Direction::Response,
        ..asked
    };
    assert_eq!(parse(Form::V1, &answer[0]), Message::TestLink(echo));
}

#[test]
fn credits_are_announced_and_taken_only_where_they_were_agreed_on() {
    let on = |role| EngineParams {
        credits: CreditUse::On,
        ..params(role, Form::V2)
    };
    let mut sender = Side::new(on(Role::Client));
    assert_eq!(
        sender.engine.announce_credits(21),
        Err(EngineError::NoCredits)
    );
    let mut sender = alone_with(on(Role::Client));
    sender.engine.announce_credits(21).unwrap();
    sender.poll(at(10));
    assert_eq!(sender.sent[0][..], golden("llc2-hand-announce-credits"));
    let mut receiver = alone_with(on(Role::Server));
    assert!(receiver.receive(at(11), &sender.sent[0]).is_empty());
    assert_eq!(receiver.take_news(), [Output::PeerCredits(21)]);
    let mut off = alone(Role::Server, Form::V2);
    off.receive(at(11), &sender.sent[0]);
    assert_eq!((off.take_news(), off.engine.ignored()), (vec![], 1));
    assert_eq!(off.engine.announce_credits(1), Err(EngineError::NoCredits));
}

#[test]
fn a_link_that_goes_down_fails_every_request_and_then_says_so() {
    let mut side = alone(Role::Client, Form::V2);
    side.engine.confirm_rkey(RkeyTag(1), rtoken(1)).unwrap();
    side.engine.delete_rkey(RkeyTag(2), Rkey(9)).unwrap();
    side.poll(at(10));
    side.engine.handle_link_down();
    side.engine.handle_link_down();
    side.poll(at(11));
    let ended = |tag| Output::RkeyFailed {
        tag: RkeyTag(tag),
        why: RkeyFailure::LinkEnded,
    };
    assert_eq!(
        side.take_news(),
        [ended(1), ended(2), Output::Failed(LinkFailure::Down)]
    );
    assert_eq!(
        side.engine.confirm_rkey(TAG, rtoken(3)),
        Err(EngineError::Ended)
    );
    side.engine
        .delete_group(DeleteReason::OPERATOR, Ending::Abrupt);
    side.engine.handle_timeout(at(99_000));
    side.sent.clear();
    let answer = side.receive(at(12), &golden("llc2-hand-test-link-request"));
    assert!(answer.is_empty());
    assert_eq!(
        (side.take_news(), side.engine.poll_timeout()),
        (vec![], None)
    );
}

#[test]
fn malformed_unknown_and_unexpected_messages_are_counted_and_ignored() {
    let mut side = alone(Role::Server, Form::V2);
    let ignored: [&[u8]; 6] = [
        &[],
        &[0x21],
        &golden("llc1-hand-test-link-request"),
        &golden("cdc-kernel-first"),
        &golden("llc2-kernel-confirm-link-request"),
        &golden("llc2-kernel-add-link-request")[..60],
    ];
    for bytes in ignored {
        assert!(side.receive(at(10), bytes).is_empty());
    }
    let mut v1 = alone(Role::Server, Form::V1);
    v1.receive(at(10), &golden("llc1-hand-add-link-cont"));
    v1.receive(at(10), &golden("llc1-hand-confirm-rkey-cont"));
    v1.receive(at(10), &golden("llc1-hand-delete-link-response"));
    assert_eq!((side.engine.ignored(), v1.engine.ignored()), (6, 3));
    assert_eq!((side.take_news(), v1.take_news()), (vec![], vec![]));
    assert!(side.engine.is_active() && v1.engine.is_active());
}

#[test]
fn requests_are_answered_before_the_link_is_confirmed_too() {
    let mut client = Side::new(params(Role::Client, Form::V2));
    let answer = client.receive(at(1), &golden("llc2-kernel-confirm-rkey-request-server"));
    assert_eq!(answer[0][3], 0x80);
    assert_eq!(client.news.len(), 1);
    client.sleep(at(3999));
    assert_eq!(
        client.engine.poll_timeout(),
        Some(at(0).after(Duration::from_secs(4)))
    );
}
