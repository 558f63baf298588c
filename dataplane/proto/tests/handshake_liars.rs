//! Peers that send anything: no machine panics, none says anything after its outcome, and what an
//! engine puts out stays bounded.
#![expect(
    clippy::disallowed_types,
    reason = "the strategies of proptest share with Arc"
)]

mod handshake;

use handshake::{START, at, confirm, golden, local, meet, own};
use pollux_proto::Role;
use pollux_proto::clc::{BareCredits, Client, Local, Output, Progress, Reader, Server};
use pollux_proto::link::{FIRST_LINK, LinkEnd, PEER_RTOKENS_MAX, RToken};
use pollux_proto::llc::{self, CreditUse, Engine, EngineParams, RkeyTag, SecondLink};
use pollux_wire::clc::{Contact, Diagnosis, VendorOptions};
use pollux_wire::field::Rkey;
use pollux_wire::llc::Form;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const CLC: [&str; 16] = [
    "clc-kernel-proposal",
    "clc-kernel-accept-first",
    "clc-kernel-accept-later",
    "clc-kernel-confirm-first",
    "clc-kernel-confirm-later",
    "clc-hand-proposal-rfc",
    "clc-hand-proposal-rfc-ipv6",
    "clc-hand-proposal-everything",
    "clc-hand-proposal-vendor",
    "clc-hand-accept-v1-first",
    "clc-hand-accept-credits",
    "clc-hand-confirm-v1-later",
    "clc-short-accept-v20",
    "clc-short-confirm-v20",
    "clc-hand-decline-v1",
    "clc-hand-decline-sync",
];

const LLC: [&str; 16] = [
    "llc2-kernel-confirm-link-request",
    "llc2-kernel-confirm-link-response",
    "llc2-kernel-add-link-request",
    "llc2-kernel-add-link-reject",
    "llc2-kernel-confirm-rkey-request-client",
    "llc2-kernel-confirm-rkey-response-client",
    "llc2-run1-delete-rkey-request",
    "llc2-run1-delete-rkey-response",
    "llc2-run1-delete-link-client",
    "llc2-hand-request-add-link",
    "llc2-hand-announce-credits",
    "llc2-hand-test-link-request",
    "llc1-hand-add-link-request",
    "llc1-hand-confirm-rkey-two-links",
    "llc1-hand-delete-rkey-negative",
    "llc1-hand-delete-link-one",
];

/// A golden message with some bytes changed. `keep` bytes at the front stay, so that it is still
/// read.
fn mutated(names: &'static [&'static str], keep: usize) -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<Index>(), any::<u8>()), 0..4);
    let messages: Vec<_> = names.iter().map(|name| golden(name)).collect();
    (select(messages), changes).prop_map(move |(mut bytes, changes)| {
        for (at, value) in changes {
            let at = keep + at.index(bytes.len() - keep);
            bytes[at] = value;
        }
        bytes
    })
}

/// A host that speaks everything.
fn open_minded(n: u8) -> Local {
    Local {
        options: VendorOptions(0xe000_0000),
        bare_credits: BareCredits::On,
        v1: Some(handshake::v1(n)),
        ..local(n)
    }
}

/// Watches that nothing follows an outcome.
#[derive(Default)]
struct Watch {
    is_done: bool,
}

impl Watch {
    /// Takes all orders of a machine.
    fn drain<Q: std::fmt::Debug>(
        &mut self,
        mut poll: impl FnMut() -> Option<Output<Q>>,
    ) -> Result<(), TestCaseError> {
        while let Some(output) = poll() {
            prop_assert!(!self.is_done, "{:?} after the outcome", output);
            self.is_done = matches!(output, Output::Done(_));
        }
        Ok(())
    }
}

/// What happens to a machine.
#[derive(Clone, Debug)]
enum Event {
    Message(Vec<u8>),
    Answer,
    Decline,
    LinkConfirmed,
    LinkFailed,
    End,
    Sleep(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => mutated(&CLC, 8).prop_map(Event::Message),
        1 => vec(any::<u8>(), 0..80).prop_map(Event::Message),
        4 => Just(Event::Answer),
        1 => Just(Event::Decline),
        2 => Just(Event::LinkConfirmed),
        1 => Just(Event::LinkFailed),
        1 => Just(Event::End),
        1 => (0..7000u64).prop_map(Event::Sleep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_client_survives_any_server_and_any_order_of_its_owner(events in vec(event(), 0..12)) {
        let mut client = Client::new(open_minded(2), START);
        let mut watch = Watch::default();
        watch.drain(|| client.poll_output())?;
        let mut now = 0;
        for event in events {
            match event {
                Event::Message(bytes) => client.handle_message(&bytes),
                Event::Answer => client.provide(&own(2)),
                Event::Decline => client.decline(Diagnosis::MEM),
                Event::LinkConfirmed => client.handle_link_confirmed(),
                Event::LinkFailed => client.handle_link_failed(at(now), Diagnosis::TIMEOUT_CL),
                Event::End => client.handle_end(),
                Event::Sleep(ms) => {
                    now += ms;
                    client.handle_timeout(at(now));
                }
            }
            watch.drain(|| client.poll_output())?;
            prop_assert_eq!(client.is_done(), watch.is_done);
            prop_assert!(!watch.is_done || client.poll_timeout().is_none());
        }
    }

    #[test]
    fn a_server_survives_any_client_and_any_order_of_its_owner(
        events in vec(event(), 0..12),
        first in any::<bool>(),
    ) {
        let contact = if first { Contact::First } else { Contact::Subsequent };
        let mut server = Server::new(open_minded(1), START);
        let mut watch = Watch::default();
        let mut now = 0;
        for event in events {
            match event {
                Event::Message(bytes) => server.handle_message(&bytes),
                Event::Answer => server.accept(at(now), contact, &own(1)),
                Event::Decline => server.decline(Diagnosis::MEM),
                Event::LinkConfirmed => server.handle_link_confirmed(),
                Event::LinkFailed => server.handle_link_failed(at(now), Diagnosis::TIMEOUT_CL),
                Event::End => server.handle_end(),
                Event::Sleep(ms) => {
                    now += ms;
                    server.handle_timeout(at(now));
                }
            }
            watch.drain(|| server.poll_output())?;
            prop_assert_eq!(server.is_done(), watch.is_done);
            prop_assert!(!watch.is_done || server.poll_timeout().is_none());
        }
    }

    #[test]
    fn a_changed_confirm_never_connects_on_other_terms_than_the_accept(
        changes in vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let met = meet(open_minded(2), open_minded(1), Contact::First);
        let (mut client, mut server) = (met.client, met.server);
        let confirm = confirm(&mut client);
        let mut bytes = handshake::bytes_of(|out| confirm.emit(out));
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        server.handle_message(&bytes);
        while let Some(output) = server.poll_output() {
            if let Output::Ask(pollux_proto::clc::Question::Connect(agreed)) = output {
                prop_assert_eq!(agreed.terms, met.agreed.terms);
                prop_assert_eq!(agreed.peer.gid, met.candidate.gid);
            }
        }
    }

    #[test]
    fn a_reader_takes_no_byte_that_does_not_belong_to_the_message(
        bytes in mutated(&CLC, 5),
        behind in vec(any::<u8>(), 0..40),
        reads in vec(1..200usize, 1..300),
    ) {
        let mut stream = bytes;
        stream.extend(&behind);
        let mut reader = Reader::new();
        let mut taken = 0;
        for count in reads {
            let space = reader.space();
            let count = space.len().min(count).min(stream.len() - taken);
            space[..count].copy_from_slice(&stream[taken..taken + count]);
            taken += count;
            match reader.filled(count) {
                Ok(Progress::More) => {}
                Ok(Progress::Complete) => {
                    let length = usize::from(u16::from_be_bytes([stream[5], stream[6]]));
                    prop_assert_eq!(reader.message(), Some(&stream[..length]));
                    prop_assert_eq!(taken, length);
                    return Ok(());
                }
                Err(_) => {
                    prop_assert_eq!(taken, 8);
                    return Ok(());
                }
            }
        }
    }

    #[test]
    fn an_engine_survives_any_peer_and_says_little(
        is_client in any::<bool>(),
        is_v2 in any::<bool>(),
        messages in vec((mutated(&LLC, 2), 0..3000u64), 0..30),
    ) {
        let (role, n) = if is_client { (Role::Client, 2) } else { (Role::Server, 1) };
        let local = local(n);
        let params = EngineParams {
            role,
            form: if is_v2 { Form::V2 } else { Form::V1 },
            local: LinkEnd { mac: local.mac, gid: local.gid, qpn: own(n).qpn },
            link_number: FIRST_LINK,
            link_user_id: 1,
            max_links: 1,
            max_conns: 32,
            second_link: SecondLink::Waved,
            credits: CreditUse::On,
            test_period: Some(core::time::Duration::from_secs(1)),
        };
        let mut engine = Engine::new(params, START);
        let mut now = 0;
        let mut waiting = 0i64;
        for (index, (bytes, ms)) in messages.into_iter().enumerate() {
            let tag = RkeyTag(index as u64);
            let rtoken = RToken { rkey: Rkey(0x6a4), address: 0xff3d_b3ee_8478_0000 };
            let wish = match index % 2 {
                0 => engine.confirm_rkey(tag, rtoken),
                _ => engine.delete_rkey(tag, rtoken.rkey),
            };
            waiting += i64::from(wish.is_ok());
            now += ms;
            engine.handle_timeout(at(now));
            engine.handle_message(at(now), &bytes);
            let waiting_before = waiting as usize;
            let mut outputs = 0;
            while let Some(output) = engine.poll_output(at(now)) {
                outputs += 1;
                waiting -= i64::from(matches!(
                    output,
                    llc::Output::RkeyConfirmed { .. }
                        | llc::Output::RkeyDeleted { .. }
                        | llc::Output::RkeyFailed { .. }
                ));
            }
            // Answers to one message: eight keys, one response, and what the timers and requests
            // had due.
            prop_assert!(outputs <= 14 + 2 * waiting_before);
            // Every request comes back exactly once.
            prop_assert_eq!(engine.rkey_requests() as i64, waiting);
            prop_assert!(engine.peer_rtokens().len() <= PEER_RTOKENS_MAX);
            prop_assert!(!engine.has_ended() || engine.poll_timeout().is_none());
        }
    }
}
