//! Client and server of a handshake, joined by hand, with a clock that jumps.

mod handshake;

use handshake::*;
use pollux_proto::clc::{
    BareCredits, Client, GidRule, HandshakeError, Local, MESSAGE_WAIT, MaxConns, Outcome, Output,
    Server, Waiting,
};
use pollux_proto::diagnosis::{DecidedBy, Fallback};
use pollux_wire::clc::{
    Attachment, Contact, Decline, Diagnosis, Extension, FirstContact, Form, Kind, OsType, Oui,
    Proposal, Sync, V2Offer, VendorOptions, Version,
};
use pollux_wire::field::{BufferSizeCode, Gid, MtuCode, PeerId, RmbeIndex};
use pollux_wire::{Error, llc};

fn fell_back(by: DecidedBy, diagnosis: Diagnosis) -> Outcome {
    Outcome::Fallback(Fallback {
        diagnosis,
        by,
        sync: Sync::InSync,
    })
}

/// The server answers `proposal` with this Decline, and falls back itself.
fn assert_declines(local: Local, proposal: &[u8], version: Version, diagnosis: Diagnosis) {
    let mut server = server(local, proposal);
    let decline = decline(&sent(server.poll_output()));
    assert_eq!((decline.diagnosis, decline.version()), (diagnosis, version));
    assert_eq!(decline.sync, Sync::InSync);
    assert_eq!(
        done(server.poll_output()),
        fell_back(DecidedBy::Local, diagnosis)
    );
    assert_eq!((server.poll_output(), server.poll_timeout()), (None, None));
}

/// A Proposal of host 2, changed.
fn changed_proposal(change: impl FnOnce(&mut Proposal)) -> Vec<u8> {
    let (_, bytes) = client(local(2));
    let mut changed = proposal(&bytes);
    change(&mut changed);
    bytes_of(|out| changed.emit(out))
}

fn with_offer(change: impl FnOnce(&mut V2Offer)) -> Vec<u8> {
    changed_proposal(|proposal| match &mut proposal.form {
        Form::V2 {
            v2: Some(offer), ..
        } => change(offer),
        Form::V2 { v2: None, .. } | Form::V1 { .. } => panic!("version 2 was offered"),
    })
}

#[test]
fn first_contact_ends_connected_on_both_sides_with_the_same_terms() {
    let Met {
        mut client,
        mut server,
        candidate,
        agreed,
        ..
    } = meet(local(2), local(1), Contact::First);
    assert_eq!(
        (candidate.gid, candidate.peer_id),
        (local(2).gid, local(2).peer_id)
    );
    assert_eq!(agreed.peer.qpn, own(1).qpn);
    assert_eq!(agreed.peer.rmbe_bytes, 32768);
    client.provide(&own(2));
    server.handle_message(&sent(client.poll_output()));
    let at_server = to_connect(&mut server);
    assert_eq!(
        (at_server.terms, at_server.peer_receives),
        (agreed.terms, None)
    );
    assert_eq!(
        (at_server.peer.qpn, at_server.peer.psn),
        (own(2).qpn, own(2).psn)
    );
    assert_eq!((client.poll_output(), server.poll_output()), (None, None));
    client.handle_link_confirmed();
    server.handle_link_confirmed();
    assert_eq!(done(client.poll_output()), Outcome::Connected(agreed));
    assert_eq!(done(server.poll_output()), Outcome::Connected(at_server));
    assert!(client.is_done() && server.is_done());
    let terms = agreed.terms;
    assert_eq!(
        (terms.release, terms.max_conns, terms.max_links),
        (1, 32, 1)
    );
    assert_eq!(
        (terms.form(), terms.eid),
        (llc::Form::V2, Some(ueid("SMCV2-TEST-EID")))
    );
}

#[test]
fn subsequent_contact_ends_connected_with_the_confirm() {
    let Met {
        mut client,
        mut server,
        accept,
        agreed,
        ..
    } = meet(local(2), local(1), Contact::Subsequent);
    assert_eq!(accept.buffer_len(), 108);
    client.provide(&own(2));
    let confirm = sent(client.poll_output());
    assert_eq!(confirm.len(), 108);
    assert_eq!(done(client.poll_output()), Outcome::Connected(agreed));
    server.handle_message(&confirm);
    assert!(matches!(done(server.poll_output()), Outcome::Connected(_)));
}

#[test]
fn the_proposal_is_the_kernels_but_for_identity_mac_limits_and_features() {
    let (_, bytes) = client(local(2));
    let mut expected = golden("clc-kernel-proposal");
    expected[8..16].copy_from_slice(&local(2).peer_id.0);
    expected[32..38].copy_from_slice(&local(2).mac.0);
    expected[104..108].copy_from_slice(&[32, 1, 0, 0]);
    assert_eq!(&bytes[..], expected);
}

#[test]
fn a_kernel_server_is_understood_and_gets_the_confirm_it_checks_for() {
    let (mut client, _) = client(local(2));
    client.handle_message(&golden("clc-kernel-accept-first"));
    let agreed = asked(client.poll_output());
    assert_eq!(agreed.peer.qpn.get(), 0x13);
    let confirm = confirm(&mut client);
    let Extension::V2 {
        eid,
        first: Some(first),
    } = confirm.extension
    else {
        panic!()
    };
    assert_eq!((eid, first.release), (ueid("SMCV2-TEST-EID"), 1));
    assert_eq!((first.max_conns, first.max_links), (255, 2));
    assert_eq!(confirm.endpoint.mtu, Some(MtuCode::B1024));
    assert_eq!(confirm.gids.as_slice(), [local(2).gid]);
    assert_eq!(confirm.buffer_len(), 180);
}

#[test]
fn a_kernel_client_is_accepted_though_its_identity_is_zero() {
    let mut server = server(local(1), &golden("clc-kernel-proposal"));
    let candidate = candidate(&mut server);
    assert_eq!(
        (candidate.peer_id, candidate.gid),
        (PeerId::ZERO, local(2).gid)
    );
    assert_eq!(candidate.max_conns, 32);
    server.accept(START, Contact::First, &own(1));
    assert_eq!(sent(server.poll_output()).len(), 160);
    let mut confirm = golden("clc-kernel-confirm-first");
    confirm[140..142].copy_from_slice(&[32, 1]);
    server.handle_message(&confirm);
    let agreed = to_connect(&mut server);
    assert_eq!(
        (agreed.peer.qpn.get(), agreed.peer.gid),
        (0x13, local(2).gid)
    );
    assert_eq!(
        agreed.peer.peer_id,
        PeerId([0xc7, 0xca, 0x52, 0x54, 0, 0, 0, 2])
    );
}

#[test]
fn the_smaller_mtu_is_announced_by_the_client_and_used_by_both() {
    let small = Local {
        mtu: MtuCode::B512,
        ..local(2)
    };
    let Met {
        mut client,
        mut server,
        agreed,
        ..
    } = meet(small, local(1), Contact::First);
    assert_eq!(agreed.peer.mtu, MtuCode::B512);
    client.provide(&own(2));
    server.handle_message(&sent(client.poll_output()));
    assert_eq!(to_connect(&mut server).peer.mtu, MtuCode::B512);
}

#[test]
fn the_first_ueid_of_the_client_that_the_server_has_is_agreed_on() {
    let names = |names: &[&str]| names.iter().map(|name| ueid(name)).collect();
    let of_client = Local {
        ueids: names(&["A", "B", "C"]),
        ..local(2)
    };
    let of_server = Local {
        ueids: names(&["C", "X", "B"]),
        ..local(1)
    };
    let met = meet(of_client, of_server, Contact::First);
    assert_eq!(met.agreed.terms.eid, Some(ueid("B")));
}

#[test]
fn an_rmbe_behind_others_is_found_at_its_index() {
    let (mut client, _) = client(local(2));
    let mut accept = met_accept();
    accept.endpoint.rmbe_index = RmbeIndex::new(3).unwrap();
    client.handle_message(&bytes_of(|out| accept.emit(out)));
    let agreed = asked(client.poll_output());
    assert_eq!(agreed.peer.rmbe_address, rtoken(1).address + 2 * 32768);
    assert_eq!(agreed.peer.rtoken, rtoken(1));
}

#[test]
fn a_server_declines_each_bad_offer_with_its_own_code() {
    let cases = [
        (with_offer(|offer| offer.ueids.clear()), Diagnosis::NOUEID),
        (
            with_offer(|offer| offer.ueids[0] = ueid("OTHER")),
            Diagnosis::NOSMCDEV,
        ),
        (
            with_offer(|offer| offer.gid = Gid([0xfd; 16])),
            Diagnosis::NOSMCDEV,
        ),
        (
            with_offer(|offer| offer.max_conns = 15),
            Diagnosis::MAXCONNERR,
        ),
        (
            with_offer(|offer| offer.max_links = 0),
            Diagnosis::MAXLINKERR,
        ),
    ];
    for (proposal, diagnosis) in cases {
        assert_declines(local(1), &proposal, Version::V2, diagnosis);
    }
    let nothing = changed_proposal(|proposal| {
        let Form::V2 { v2, .. } = &mut proposal.form else {
            panic!()
        };
        *v2 = None;
    });
    assert_declines(local(1), &nothing, Version::V2, Diagnosis::PEERNOSMC);
    let everything = golden("clc-hand-proposal-everything");
    assert_declines(local(1), &everything, Version::V2, Diagnosis::NOSMCDEV);
    let rfc = golden("clc-hand-proposal-rfc");
    assert_declines(local(1), &rfc, Version::V1, Diagnosis::NOSMCDEV);
    let no_ueid = Local {
        ueids: Default::default(),
        ..local(1)
    };
    assert_declines(
        no_ueid,
        &golden("clc-kernel-proposal"),
        Version::V2,
        Diagnosis::NOSMCDEV,
    );
}

#[test]
fn limits_mean_nothing_at_release_0_and_a_later_release_is_taken_as_ours() {
    let old = with_offer(|offer| (offer.release, offer.max_conns, offer.max_links) = (0, 0, 0));
    let mut server = server(local(1), &old);
    let chosen = candidate(&mut server);
    assert_eq!((chosen.release, chosen.max_conns), (0, 255));
    server.accept(START, Contact::First, &own(1));
    let accept = pollux_wire::clc::Accept::parse(&sent(server.poll_output())).unwrap();
    let Extension::V2 {
        first: Some(first), ..
    } = accept.extension
    else {
        panic!()
    };
    assert_eq!((first.release, first.max_conns, first.max_links), (0, 0, 0));
    let new = with_offer(|offer| offer.release = 9);
    let mut server = handshake::server(local(1), &new);
    assert_eq!(candidate(&mut server).release, 1);
}

#[test]
fn a_fabric_of_our_own_may_use_any_gid() {
    let any = |n| Local {
        gid_rule: GidRule::Any,
        gid: Gid([0xfd; 16]),
        ..local(n)
    };
    let met = meet(any(2), any(1), Contact::First);
    assert_eq!(met.candidate.gid, Gid([0xfd; 16]));
}

#[test]
fn a_client_without_anything_to_offer_declines_in_place_of_a_proposal() {
    let nothing = [
        Local {
            ueids: Default::default(),
            ..local(2)
        },
        Local {
            gid: Gid([0xfd; 16]),
            ..local(2)
        },
    ];
    for nothing in nothing {
        let mut client = Client::new(nothing, START);
        let said = decline(&sent(client.poll_output()));
        assert_eq!(
            (said.diagnosis, said.version()),
            (Diagnosis::NOSMCDEV, Version::V1)
        );
        let outcome = fell_back(DecidedBy::Local, Diagnosis::NOSMCDEV);
        assert_eq!(done(client.poll_output()), outcome);
        let mut server = Server::new(local(1), START);
        server.handle_message(&bytes_of(|out| said.emit(out)));
        let outcome = fell_back(DecidedBy::Peer, Diagnosis::NOSMCDEV);
        assert_eq!(done(server.poll_output()), outcome);
    }
}

/// An Accept of host 1 for a first contact.
fn met_accept() -> pollux_wire::clc::Accept {
    meet(local(2), local(1), Contact::First).accept
}

/// A client of `local` answers `accept` with this Decline, and falls back itself.
fn assert_client_declines(local: Local, accept: &[u8], diagnosis: Diagnosis) {
    let (mut client, _) = client(local);
    client.handle_message(accept);
    let said = decline(&sent(client.poll_output()));
    assert_eq!(said.diagnosis, diagnosis);
    assert_eq!(
        done(client.poll_output()),
        fell_back(DecidedBy::Local, diagnosis)
    );
    assert_eq!((client.poll_output(), client.poll_timeout()), (None, None));
}

fn with_first(change: impl FnOnce(&mut FirstContact)) -> Vec<u8> {
    let mut accept = met_accept();
    let Extension::V2 {
        first: Some(first), ..
    } = &mut accept.extension
    else {
        panic!()
    };
    change(first);
    bytes_of(|out| accept.emit(out))
}

#[test]
fn a_client_declines_each_bad_accept_with_its_own_code() {
    let cases = [
        (with_first(|first| first.release = 2), Diagnosis::RELEASEERR),
        (
            with_first(|first| first.max_conns = 15),
            Diagnosis::MAXCONNERR,
        ),
        (
            with_first(|first| first.max_links = 0),
            Diagnosis::MAXLINKERR,
        ),
        (
            with_first(|first| first.max_links = 3),
            Diagnosis::MAXLINKERR,
        ),
        (golden("clc-hand-accept-v1-first"), Diagnosis::MODEUNSUPP),
    ];
    for (accept, diagnosis) in cases {
        assert_client_declines(local(2), &accept, diagnosis);
    }
    let mut path_d = with_first(|_| {});
    path_d[7] |= 1;
    assert_client_declines(local(2), &path_d, Diagnosis::MODEUNSUPP);
}

#[test]
fn hosts_that_disagree_on_a_gateway_stay_on_tcp() {
    let (mut client, _) = client(local(2));
    client.handle_message(&with_first(|first| first.attachment = Attachment::Indirect));
    asked(client.poll_output());
    client.provide(&own(2));
    assert_eq!(
        decline(&sent(client.poll_output())).diagnosis,
        Diagnosis::NOINDIRECT
    );
    let (mut client, _) = handshake::client(local(2));
    client.handle_message(&with_first(|first| first.attachment = Attachment::Indirect));
    asked(client.poll_output());
    client.provide(&pollux_proto::clc::LocalEndpoint {
        attachment: Attachment::Indirect,
        ..own(2)
    });
    assert!(matches!(client.poll_output(), Some(Output::Send(bytes)) if bytes[4] == 3));
}

#[test]
fn a_client_that_does_not_know_the_group_declines_out_of_sync_and_the_server_learns_it() {
    let Met {
        mut client,
        mut server,
        ..
    } = meet(local(2), local(1), Contact::Subsequent);
    client.decline(Diagnosis::SYNCERR);
    let said = sent(client.poll_output());
    assert_eq!(decline(&said).sync, Sync::OutOfSync);
    assert!(matches!(done(client.poll_output()), Outcome::Fallback(_)));
    server.handle_message(&said);
    let expected = Fallback {
        diagnosis: Diagnosis::SYNCERR,
        by: DecidedBy::Peer,
        sync: Sync::OutOfSync,
    };
    assert_eq!(done(server.poll_output()), Outcome::Fallback(expected));
}

#[test]
fn a_server_declines_when_its_owner_has_no_memory() {
    let (mut client, proposal) = client(local(2));
    let mut server = server(local(1), &proposal);
    candidate(&mut server);
    server.decline(Diagnosis::MEM);
    client.handle_message(&sent(server.poll_output()));
    assert_eq!(
        done(server.poll_output()),
        fell_back(DecidedBy::Local, Diagnosis::MEM)
    );
    assert_eq!(
        done(client.poll_output()),
        fell_back(DecidedBy::Peer, Diagnosis::MEM)
    );
}

/// The server's answer to a Confirm of a first contact that was changed.
fn after_confirm(change: impl FnOnce(&mut pollux_wire::clc::Confirm)) -> Server {
    let Met {
        mut client,
        mut server,
        ..
    } = meet(local(2), local(1), Contact::First);
    let mut confirm = confirm(&mut client);
    change(&mut confirm);
    server.handle_message(&bytes_of(|out| confirm.emit(out)));
    server
}

fn first_of(confirm: &mut pollux_wire::clc::Confirm) -> &mut FirstContact {
    match &mut confirm.extension {
        Extension::V2 {
            first: Some(first), ..
        } => first,
        Extension::V1 { .. } | Extension::V2 { first: None, .. } => panic!("first contact"),
    }
}

#[test]
fn a_confirm_must_repeat_release_and_limits_of_the_accept() {
    let mut servers = [
        (
            after_confirm(|confirm| first_of(confirm).release = 2),
            Diagnosis::RELEASEERR,
        ),
        (
            after_confirm(|confirm| first_of(confirm).max_conns = 33),
            Diagnosis::MAXCONNERR,
        ),
        (
            after_confirm(|confirm| first_of(confirm).max_links = 2),
            Diagnosis::MAXLINKERR,
        ),
        (
            after_confirm(|confirm| {
                confirm.extension = Extension::V1 {
                    contact: Contact::First,
                };
            }),
            Diagnosis::VERSMISMAT,
        ),
    ];
    for (server, diagnosis) in &mut servers {
        assert_eq!(decline(&sent(server.poll_output())).diagnosis, *diagnosis);
        assert_eq!(
            done(server.poll_output()),
            fell_back(DecidedBy::Local, *diagnosis)
        );
    }
    let mut server = after_confirm(|confirm| first_of(confirm).features = 1);
    to_connect(&mut server);
}

#[test]
fn a_confirm_for_another_contact_breaks_the_handshake() {
    let mut server = after_confirm(|confirm| {
        let Extension::V2 { first, .. } = &mut confirm.extension else {
            panic!()
        };
        *first = None;
    });
    let error = HandshakeError::ContactMismatch {
        got: Contact::Subsequent,
    };
    assert_eq!(done(server.poll_output()), Outcome::Failed(error));
}

#[test]
fn where_packets_go_was_settled_by_the_proposal() {
    let mut server = after_confirm(|confirm| confirm.endpoint.gid = Gid([1; 16]));
    assert_eq!(to_connect(&mut server).peer.gid, local(2).gid);
}

#[test]
fn six_seconds_of_silence_break_each_wait() {
    let wait = MESSAGE_WAIT;
    let (mut client, proposal) = client(local(2));
    let mut before = Server::new(local(1), START);
    let mut after = server(local(1), &proposal);
    candidate(&mut after);
    assert_eq!(after.poll_timeout(), None);
    after.accept(at(1000), Contact::First, &own(1));
    sent(after.poll_output());

    assert_eq!(client.poll_timeout(), Some(at(6000)));
    client.handle_timeout(at(5999));
    assert_eq!(client.poll_output(), None);
    client.handle_timeout(at(6000));
    let error = HandshakeError::TimedOut {
        waiting: Waiting::Accept,
        wait,
    };
    assert_eq!(done(client.poll_output()), Outcome::Failed(error));

    assert_eq!(before.poll_timeout(), Some(at(6000)));
    before.handle_timeout(at(6001));
    let error = HandshakeError::TimedOut {
        waiting: Waiting::Proposal,
        wait,
    };
    assert_eq!(done(before.poll_output()), Outcome::Failed(error));

    assert_eq!(after.poll_timeout(), Some(at(7000)));
    after.handle_timeout(at(6000));
    assert_eq!(after.poll_output(), None);
    after.handle_timeout(at(7000));
    let error = HandshakeError::TimedOut {
        waiting: Waiting::Confirm,
        wait,
    };
    assert_eq!(done(after.poll_output()), Outcome::Failed(error));
}

#[test]
fn a_link_that_is_not_confirmed_ends_in_a_decline_after_one_more_second() {
    let Met {
        mut client,
        mut server,
        ..
    } = meet(local(2), local(1), Contact::First);
    client.provide(&own(2));
    server.handle_message(&sent(client.poll_output()));
    to_connect(&mut server);
    server.handle_link_failed(at(2000), Diagnosis::TIMEOUT_CL);
    assert_eq!(server.poll_timeout(), Some(at(3000)));
    assert_eq!(server.poll_output(), None);
    server.handle_timeout(at(3000));
    let said = sent(server.poll_output());
    assert_eq!(
        done(server.poll_output()),
        fell_back(DecidedBy::Local, Diagnosis::TIMEOUT_CL)
    );
    // The client was to wait four seconds; the server's Decline comes first.
    client.handle_message(&said);
    assert_eq!(
        done(client.poll_output()),
        fell_back(DecidedBy::Peer, Diagnosis::TIMEOUT_CL)
    );
    client.handle_link_confirmed();
    assert_eq!(client.poll_output(), None);
}

#[test]
fn a_decline_that_comes_in_that_second_is_not_answered() {
    let Met { mut client, .. } = meet(local(2), local(1), Contact::First);
    confirm(&mut client);
    client.handle_link_failed(at(4000), Diagnosis::TIMEOUT_CL);
    client.handle_message(&golden("clc-hand-decline-v2"));
    assert_eq!(
        done(client.poll_output()),
        fell_back(DecidedBy::Peer, Diagnosis::RELEASEERR)
    );
    client.handle_timeout(at(9000));
    assert_eq!(client.poll_output(), None);
}

#[test]
fn the_end_of_the_stream_breaks_every_wait_and_says_which() {
    let ended = |waiting| Outcome::Failed(HandshakeError::Ended { waiting });
    let (mut waiting_client, proposal) = client(local(2));
    waiting_client.handle_end();
    assert_eq!(done(waiting_client.poll_output()), ended(Waiting::Accept));
    let mut waiting_server = Server::new(local(1), START);
    waiting_server.handle_end();
    assert_eq!(done(waiting_server.poll_output()), ended(Waiting::Proposal));
    let mut choosing = server(local(1), &proposal);
    choosing.handle_end();
    // The question is void: its answer would have no effect.
    assert_eq!(done(choosing.poll_output()), ended(Waiting::Decline));
    let Met {
        mut client,
        mut server,
        ..
    } = meet(local(2), local(1), Contact::First);
    server.handle_end();
    assert_eq!(done(server.poll_output()), ended(Waiting::Confirm));
    confirm(&mut client);
    client.handle_end();
    assert_eq!(done(client.poll_output()), ended(Waiting::Decline));
    client.handle_end();
    assert_eq!(client.poll_output(), None);
}

#[test]
fn answers_of_the_owner_that_come_too_late_have_no_effect() {
    let (_, proposal) = client(local(2));
    let mut server = server(local(1), &proposal);
    server.handle_end();
    server.accept(at(10), Contact::First, &own(1));
    server.decline(Diagnosis::MEM);
    server.handle_link_confirmed();
    server.handle_link_failed(at(10), Diagnosis::MEM);
    assert!(matches!(done(server.poll_output()), Outcome::Failed(_)));
    assert_eq!((server.poll_output(), server.poll_timeout()), (None, None));
    let Met { mut client, .. } = meet(local(2), local(1), Contact::First);
    client.handle_message(&golden("clc-hand-decline-v1"));
    client.provide(&own(2));
    client.decline(Diagnosis::MEM);
    assert_eq!(
        done(client.poll_output()),
        fell_back(DecidedBy::Peer, Diagnosis::NOSMCDEV)
    );
    assert_eq!(client.poll_output(), None);
}

#[test]
fn messages_out_of_turn_break_the_handshake_and_say_what_was_due() {
    let out_of_turn = |got, waiting| Outcome::Failed(HandshakeError::OutOfTurn { got, waiting });
    let (mut early, proposal) = client(local(2));
    early.handle_message(&proposal);
    assert_eq!(
        done(early.poll_output()),
        out_of_turn(Kind::Proposal, Waiting::Accept)
    );
    let mut twice = server(local(1), &proposal);
    candidate(&mut twice);
    twice.handle_message(&proposal);
    assert_eq!(
        done(twice.poll_output()),
        out_of_turn(Kind::Proposal, Waiting::Decline)
    );
    let mut first = Server::new(local(1), START);
    first.handle_message(&golden("clc-kernel-confirm-first"));
    assert_eq!(
        done(first.poll_output()),
        out_of_turn(Kind::Confirm, Waiting::Proposal)
    );
    let Met {
        mut client,
        mut server,
        ..
    } = meet(local(2), local(1), Contact::First);
    server.handle_message(&proposal);
    assert_eq!(
        done(server.poll_output()),
        out_of_turn(Kind::Proposal, Waiting::Confirm)
    );
    client.handle_message(&golden("clc-kernel-accept-first"));
    assert_eq!(
        done(client.poll_output()),
        out_of_turn(Kind::Accept, Waiting::Decline)
    );
}

#[test]
fn a_malformed_message_breaks_the_handshake_without_a_decline() {
    let (mut client, _) = client(local(2));
    client.handle_message(b"HTTP/1.1 400 Bad Request");
    let error = HandshakeError::Malformed(Error::BadEyeCatcher(*b"HTTP"));
    assert_eq!(done(client.poll_output()), Outcome::Failed(error));
    let mut server = server(local(1), &golden("clc-kernel-proposal")[..100]);
    let error = HandshakeError::Malformed(Error::TooShort {
        need: 156,
        got: 100,
    });
    assert_eq!(done(server.poll_output()), Outcome::Failed(error));
}

#[test]
fn a_new_link_needs_an_mtu_and_an_old_one_does_not() {
    for (contact, is_taken) in [(Contact::First, false), (Contact::Subsequent, true)] {
        let mut accept = meet(local(2), local(1), contact).accept;
        accept.endpoint.mtu = None;
        let (mut client, _) = client(local(2));
        client.handle_message(&bytes_of(|out| accept.emit(out)));
        if is_taken {
            assert_eq!(asked(client.poll_output()).peer.mtu, MtuCode::B1024);
        } else {
            let failed = Outcome::Failed(HandshakeError::NoMtu);
            assert_eq!(done(client.poll_output()), failed);
        }
    }
}

#[test]
fn an_rmb_beyond_the_address_space_is_a_lie() {
    let mut accept = met_accept();
    let mut lie = |address, size, index| {
        accept.endpoint.rmb_address = address;
        accept.endpoint.rmbe_size = BufferSizeCode::new(size).unwrap();
        accept.endpoint.rmbe_index = RmbeIndex::new(index).unwrap();
        let (mut client, _) = client(local(2));
        client.handle_message(&bytes_of(|out| accept.emit(out)));
        client.poll_output()
    };
    let outside = |address| Outcome::Failed(HandshakeError::RmbeOutside { address });
    assert_eq!(done(lie(u64::MAX - 16383, 0, 1)), outside(u64::MAX - 16383));
    assert_eq!(
        done(lie(u64::MAX - (1 << 30), 15, 255)),
        outside(u64::MAX - (1 << 30))
    );
    asked(lie(u64::MAX - 16384, 0, 1));
}

/// Options of client and server, and the Anolis word on the wire.
fn options(bits: u32) -> VendorOptions {
    VendorOptions(bits)
}

const CREDITS: u32 = 0xc000_0000;
const BOTH: u32 = 0xe000_0000;

#[test]
fn vendor_options_are_what_both_sides_want_and_credits_follow_them() {
    // client, server -> agreed, credits
    let table = [
        (0, 0, 0, None),
        (CREDITS, 0, 0, None),
        (0, CREDITS, 0, None),
        (CREDITS, CREDITS, CREDITS, Some(64)),
        (BOTH, CREDITS, CREDITS, Some(64)),
        (CREDITS, BOTH, CREDITS, Some(64)),
        (BOTH, BOTH, BOTH, Some(64)),
        (0x8000_0000, CREDITS, 0x8000_0000, None),
    ];
    for (of_client, of_server, agreed_bits, receives) in table {
        let of_client = Local {
            options: options(of_client),
            ..local(2)
        };
        let of_server = Local {
            options: options(of_server),
            ..local(1)
        };
        let Met {
            mut client,
            mut server,
            agreed,
            ..
        } = meet(of_client, of_server, Contact::First);
        assert_eq!(
            (agreed.terms.options, agreed.peer_receives),
            (options(agreed_bits), receives)
        );
        client.provide(&own(2));
        server.handle_message(&sent(client.poll_output()));
        let at_server = to_connect(&mut server);
        assert_eq!(
            (at_server.terms, at_server.peer_receives),
            (agreed.terms, receives)
        );
    }
}

#[test]
fn a_foreign_vendors_word_means_nothing() {
    let (_, bytes) = client(Local {
        options: options(BOTH),
        ..local(2)
    });
    let mut foreign = proposal(&bytes);
    let Form::V2 { oui, .. } = &mut foreign.form else {
        panic!()
    };
    assert_eq!(*oui, Oui::ALIBABA);
    *oui = Oui([1, 2, 3]);
    let of_server = Local {
        options: options(BOTH),
        ..local(1)
    };
    let mut server = server(of_server, &bytes_of(|out| foreign.emit(out)));
    assert_eq!(candidate(&mut server).options, VendorOptions::NONE);
}

#[test]
fn a_server_that_grants_more_than_was_offered_is_declined() {
    let accept = with_first(|first| first.options = options(BOTH));
    let wanted = Local {
        options: options(CREDITS),
        ..local(2)
    };
    assert_client_declines(wanted, &accept, Diagnosis::VENDORERR);
    // A client that offered nothing does not look at the word.
    let (mut client, _) = client(local(2));
    client.handle_message(&accept);
    assert_eq!(
        asked(client.poll_output()).terms.options,
        VendorOptions::NONE
    );
}

#[test]
fn a_confirm_must_repeat_the_options_and_announce_receives() {
    let wants = |n| Local {
        options: options(CREDITS),
        ..local(n)
    };
    let answer = |change: fn(&mut pollux_wire::clc::Confirm)| {
        let Met {
            mut client,
            mut server,
            ..
        } = meet(wants(2), wants(1), Contact::First);
        let mut confirm = confirm(&mut client);
        change(&mut confirm);
        server.handle_message(&bytes_of(|out| confirm.emit(out)));
        decline(&sent(server.poll_output())).diagnosis
    };
    let no_word = answer(|confirm| first_of(confirm).options = VendorOptions::NONE);
    assert_eq!(no_word, Diagnosis::VENDORERR);
    assert_eq!(
        answer(|confirm| confirm.endpoint.credits = 0),
        Diagnosis::CREDITSERR
    );
}

#[test]
fn bare_credits_need_both_sides_and_no_word() {
    let bare = |n, bare_credits| Local {
        bare_credits,
        ..local(n)
    };
    for (of_client, of_server, receives) in [
        (BareCredits::On, BareCredits::On, Some(64)),
        (BareCredits::Off, BareCredits::On, None),
        (BareCredits::On, BareCredits::Off, None),
    ] {
        let Met {
            mut client,
            mut server,
            agreed,
            ..
        } = meet(bare(2, of_client), bare(1, of_server), Contact::First);
        assert_eq!(agreed.peer_receives, receives);
        client.provide(&own(2));
        server.handle_message(&sent(client.poll_output()));
        assert_eq!(to_connect(&mut server).peer_receives, receives);
    }
}

#[test]
fn subsequent_contact_announces_no_credits() {
    let wants = |n| Local {
        options: options(CREDITS),
        ..local(n)
    };
    let Met {
        mut client, accept, ..
    } = meet(wants(2), wants(1), Contact::Subsequent);
    assert_eq!(accept.endpoint.credits, 0);
    assert_eq!(confirm(&mut client).endpoint.credits, 0);
}

#[test]
fn version_1_is_spoken_where_both_have_it_and_share_a_subnet() {
    let only_v1 = |n| Local {
        ueids: Default::default(),
        v1: Some(v1(n)),
        ..local(n)
    };
    let Met {
        mut client,
        mut server,
        candidate,
        accept,
        agreed,
    } = meet(only_v1(2), only_v1(1), Contact::First);
    assert_eq!((candidate.version, candidate.gid), (Version::V1, v1(2).gid));
    assert_eq!((accept.buffer_len(), accept.endpoint.gid), (68, v1(1).gid));
    assert_eq!(
        (agreed.terms.form(), agreed.terms.max_conns),
        (llc::Form::V1, 255)
    );
    client.provide(&own(2));
    let confirm = sent(client.poll_output());
    assert_eq!(confirm.len(), 68);
    server.handle_message(&confirm);
    assert_eq!(to_connect(&mut server).peer.gid, v1(2).gid);
}

#[test]
fn version_2_goes_before_version_1() {
    let both = |n| Local {
        v1: Some(v1(n)),
        ..local(n)
    };
    let met = meet(both(2), both(1), Contact::First);
    assert_eq!(
        (met.candidate.version, met.candidate.gid),
        (Version::V2, local(2).gid)
    );
    let other_ueid = Local {
        ueids: [ueid("OTHER")].into_iter().collect(),
        ..both(1)
    };
    let met = meet(both(2), other_ueid, Contact::First);
    assert_eq!(met.candidate.version, Version::V1);
}

#[test]
fn an_rfc_client_is_served_and_another_subnet_is_not() {
    let with_v1 = Local {
        v1: Some(v1(1)),
        ..local(1)
    };
    let mut server = server(with_v1.clone(), &golden("clc-hand-proposal-rfc"));
    assert_eq!(candidate(&mut server).version, Version::V1);
    let mut elsewhere = golden("clc-hand-proposal-rfc");
    elsewhere[42] = 78;
    assert_declines(
        with_v1.clone(),
        &elsewhere,
        Version::V1,
        Diagnosis::DIFFPREFIX,
    );
    let ipv6 = golden("clc-hand-proposal-rfc-ipv6");
    assert_declines(with_v1, &ipv6, Version::V1, Diagnosis::DIFFPREFIX);
    let Form::V1 { offer, .. } = proposal(&ipv6).form else {
        panic!()
    };
    let mut subnets = offer.ip;
    subnets.ipv6.remove(0);
    let local_v6 = pollux_proto::clc::V1Local { subnets, ..v1(1) };
    let mut server = handshake::server(
        Local {
            v1: Some(local_v6),
            ..local(1)
        },
        &ipv6,
    );
    assert_eq!(candidate(&mut server).version, Version::V1);
}

#[test]
fn the_reason_of_version_2_is_told_unless_version_1_has_a_better_one() {
    let v1_other_subnet = |proposal: &mut Proposal| {
        let Form::V2 { v1: offer, .. } = &mut proposal.form else {
            panic!()
        };
        let mut ip = v1(2).subnets;
        ip.ipv4_subnet = [10, 0, 0, 0];
        *offer = Some(pollux_wire::clc::V1Offer {
            paths: pollux_wire::clc::V1Paths::R,
            ip,
        });
    };
    let with_v1 = Local {
        v1: Some(v1(1)),
        ..local(1)
    };
    let mut no_match = changed_proposal(v1_other_subnet);
    let at = no_match
        .windows(4)
        .position(|window| window == b"SMCV")
        .unwrap();
    no_match[at] = b'T';
    assert_declines(
        with_v1.clone(),
        &no_match,
        Version::V2,
        Diagnosis::DIFFPREFIX,
    );
    let no_ueid = changed_proposal(|proposal| {
        v1_other_subnet(proposal);
        let Form::V2 {
            v2: Some(offer), ..
        } = &mut proposal.form
        else {
            panic!()
        };
        offer.ueids.clear();
    });
    assert_declines(with_v1, &no_ueid, Version::V2, Diagnosis::NOUEID);
}

#[test]
fn the_agreed_number_of_connections_is_the_smaller_one() {
    let conns = |n, count| Local {
        max_conns: MaxConns::new(count).unwrap(),
        ..local(n)
    };
    for (of_client, of_server, agreed) in [(255, 16, 16), (16, 255, 16), (40, 40, 40)] {
        let met = meet(conns(2, of_client), conns(1, of_server), Contact::First);
        assert_eq!(met.agreed.terms.max_conns, agreed);
    }
}

#[test]
fn a_decline_names_us_as_linux_and_says_who_we_are() {
    let (_, proposal) = client(local(2));
    let mut server = server(local(1), &proposal);
    candidate(&mut server);
    server.decline(Diagnosis::NOACTLINK);
    let Decline { peer_id, v2, .. } = decline(&sent(server.poll_output()));
    assert_eq!((peer_id, v2.unwrap().os), (local(1).peer_id, OsType::LINUX));
}
