//! Properties of every message: what is written reads back as the same value, takes `buffer_len`
//! bytes and not one more, and is refused whole when the buffer is one byte short.

use arrayvec::ArrayVec;
use pollux_wire::cdc::{self, ConnStateFlags, ProducerFlags, RingCursor};
use pollux_wire::clc::*;
use pollux_wire::field::*;
use pollux_wire::imm::{Immediate, ImmediateToken, News};
use pollux_wire::llc::{self, Direction, Form as LlcForm, RtokenPair};
use pollux_wire::{Error, clc};
use proptest::array::{uniform3, uniform4};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const GUARD: u8 = 0xa5;

fn list<T: std::fmt::Debug, const N: usize>(
    item: impl Strategy<Value = T>,
) -> impl Strategy<Value = ArrayVec<T, N>> {
    vec(item, 0..=N).prop_map(|items| items.into_iter().collect())
}

fn gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_map(Gid)
}

fn qpn() -> impl Strategy<Value = Qpn> {
    any::<u32>().prop_map(Qpn::from_low_bits)
}

fn psn() -> impl Strategy<Value = Psn> {
    any::<u32>().prop_map(Psn::from_low_bits)
}

fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(Mac)
}

fn peer_id() -> impl Strategy<Value = PeerId> {
    any::<[u8; 8]>().prop_map(PeerId)
}

fn ueid() -> impl Strategy<Value = Ueid> {
    any::<[u8; 32]>().prop_map(Ueid::from_bytes)
}

fn mtu() -> impl Strategy<Value = Option<MtuCode>> {
    (0..=5u8).prop_map(MtuCode::new)
}

fn ip_area() -> impl Strategy<Value = IpArea> {
    let prefix = any::<([u8; 16], u8)>().prop_map(|(prefix, length)| Ipv6Prefix { prefix, length });
    (any::<([u8; 4], u8)>(), list(prefix)).prop_map(|((ipv4_subnet, ipv4_length), ipv6)| IpArea {
        ipv4_subnet,
        ipv4_length,
        ipv6,
    })
}

fn v1_offer() -> impl Strategy<Value = V1Offer> {
    let paths = prop_oneof![Just(V1Paths::R), Just(V1Paths::D), Just(V1Paths::Both)];
    (paths, ip_area()).prop_map(|(paths, ip)| V1Offer { paths, ip })
}

fn ism_v1() -> impl Strategy<Value = IsmV1> {
    any::<(u64, u16)>().prop_map(|(gid, chid)| IsmV1 { gid, chid })
}

fn v2_paths() -> impl Strategy<Value = V2Paths> {
    let ism_gid = any::<(u64, u16)>().prop_map(|(gid, chid)| IsmGid { gid, chid });
    let ism = (any::<[u8; 32]>(), list(ism_gid)).prop_map(|(seid, gids)| IsmV2 { seid, gids });
    let ism = ism.boxed();
    prop_oneof![
        Just(V2Paths::R),
        ism.clone().prop_map(V2Paths::D),
        ism.prop_map(V2Paths::Both)
    ]
}

fn v2_offer() -> impl Strategy<Value = V2Offer> {
    let seid = prop_oneof![Just(SeidUse::Unused), Just(SeidUse::Valid)];
    let limits = any::<(u8, u8, u16)>();
    (v2_paths(), list(ueid()), 0..16u8, seid, gid(), limits).prop_map(
        |(paths, ueids, release, seid, gid, (max_conns, max_links, features))| V2Offer {
            paths,
            ueids,
            release,
            seid,
            gid,
            max_conns,
            max_links,
            features,
        },
    )
}

fn proposal_form() -> impl Strategy<Value = Form> {
    let vendor = any::<([u8; 3], u32)>();
    prop_oneof![
        (v1_offer(), option::of(ism_v1())).prop_map(|(offer, ism)| Form::V1 { offer, ism }),
        (
            option::of(v1_offer()),
            ism_v1(),
            vendor,
            option::of(v2_offer())
        )
            .prop_map(|(v1, ism, (oui, options), v2)| Form::V2 {
                v1,
                ism,
                oui: Oui(oui),
                options: VendorOptions(options),
                v2,
            })
    ]
}

fn proposal() -> impl Strategy<Value = Proposal> {
    (peer_id(), gid(), mac(), proposal_form()).prop_map(|(peer_id, gid, mac, form)| Proposal {
        peer_id,
        gid,
        mac,
        form,
    })
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    let size = (0..16u8).prop_map(|code| BufferSizeCode::new(code).unwrap());
    let index = (1..=255u8).prop_map(|index| RmbeIndex::new(index).unwrap());
    let token = (1..=u32::MAX).prop_map(|token| AlertToken::new(token).unwrap());
    let rest = any::<(u32, u8, u64)>();
    (
        (peer_id(), gid(), mac()),
        (qpn(), psn()),
        (index, token, size, mtu()),
        rest,
    )
        .prop_map(
            |((peer_id, gid, mac), (qpn, psn), (rmbe_index, alert_token, rmbe_size, mtu), rest)| {
                let (rkey, credits, rmb_address) = rest;
                Endpoint {
                    peer_id,
                    gid,
                    mac,
                    qpn,
                    rkey: Rkey(rkey),
                    rmbe_index,
                    alert_token,
                    rmbe_size,
                    mtu,
                    credits,
                    rmb_address,
                    psn,
                }
            },
        )
}

/// Limits mean nothing at release 0, where they are zero as in Linux.
fn first_contact() -> impl Strategy<Value = FirstContact> {
    let attachment = prop_oneof![Just(Attachment::Direct), Just(Attachment::Indirect)];
    let release_limits = prop_oneof![
        Just((0, 0, 0, 0, 0)),
        (
            1..16u8,
            any::<u8>(),
            any::<u8>(),
            any::<u16>(),
            any::<u32>()
        )
    ];
    (attachment, 0..16u8, any::<[u8; 32]>(), release_limits).prop_map(
        |(attachment, os, host_name, (release, max_conns, max_links, features, options))| {
            FirstContact {
                attachment,
                os: OsType(os),
                release,
                host_name,
                max_conns,
                max_links,
                features,
                options: VendorOptions(options),
            }
        },
    )
}

fn extension() -> impl Strategy<Value = Extension> {
    prop_oneof![
        Just(Extension::V1 {
            contact: Contact::First
        }),
        Just(Extension::V1 {
            contact: Contact::Subsequent
        }),
        (ueid(), option::of(first_contact())).prop_map(|(eid, first)| Extension::V2 { eid, first })
    ]
}

fn confirm() -> impl Strategy<Value = Confirm> {
    (endpoint(), extension(), list(gid())).prop_map(|(endpoint, extension, gids)| {
        let gids = match extension {
            Extension::V2 { first: Some(_), .. } => gids,
            Extension::V1 { .. } | Extension::V2 { first: None, .. } => ArrayVec::new(),
        };
        Confirm {
            endpoint,
            extension,
            gids,
        }
    })
}

fn decline() -> impl Strategy<Value = Decline> {
    let sync = prop_oneof![Just(Sync::InSync), Just(Sync::OutOfSync)];
    let v2 = (0..16u8, uniform4(any::<u32>()));
    let v2 = v2.prop_map(|(os, more)| DeclineV2 {
        os: OsType(os),
        more,
    });
    (sync, peer_id(), any::<u32>(), option::of(v2)).prop_map(|(sync, peer_id, diagnosis, v2)| {
        Decline {
            sync,
            peer_id,
            diagnosis: Diagnosis(diagnosis),
            v2,
        }
    })
}

fn clc_message() -> impl Strategy<Value = clc::Message> {
    prop_oneof![
        proposal().prop_map(clc::Message::Proposal),
        (endpoint(), extension()).prop_map(|(endpoint, extension)| {
            clc::Message::Accept(Accept {
                endpoint,
                extension,
            })
        }),
        confirm().prop_map(clc::Message::Confirm),
        decline().prop_map(clc::Message::Decline),
    ]
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Request), Just(Direction::Response)]
}

fn link_number() -> impl Strategy<Value = LinkNumber> {
    any::<u8>().prop_map(LinkNumber)
}

fn confirm_link() -> impl Strategy<Value = llc::ConfirmLink> {
    let mark = prop_oneof![Just(llc::RmbeMark::Absent), Just(llc::RmbeMark::Present)];
    let rest = any::<(u32, u8, u8)>();
    (direction(), mark, mac(), gid(), qpn(), link_number(), rest).prop_map(
        |(direction, mark, mac, gid, qpn, link_number, (link_user_id, max_links, max_conns))| {
            llc::ConfirmLink {
                direction,
                mark,
                mac,
                gid,
                qpn,
                link_number,
                link_user_id,
                max_links,
                max_conns,
            }
        },
    )
}

fn rtoken_pair() -> impl Strategy<Value = RtokenPair> {
    any::<(u32, u32, u64)>().prop_map(|(rkey, new_rkey, new_address)| RtokenPair {
        rkey: Rkey(rkey),
        new_rkey: Rkey(new_rkey),
        new_address,
    })
}

fn link_rtoken() -> impl Strategy<Value = llc::LinkRtoken> {
    (link_number(), any::<(u32, u64)>()).prop_map(|(link_number, (rkey, address))| {
        llc::LinkRtoken {
            link_number,
            rkey: Rkey(rkey),
            address,
        }
    })
}

fn rkey_answer() -> impl Strategy<Value = llc::RkeyAnswer> {
    prop_oneof![
        Just(llc::RkeyAnswer::Positive),
        Just(llc::RkeyAnswer::Negative),
        Just(llc::RkeyAnswer::Retry)
    ]
}

fn confirm_rkey() -> impl Strategy<Value = llc::ConfirmRkey> {
    let rest = any::<(u32, u64, u8)>();
    (
        direction(),
        rkey_answer(),
        rest,
        link_rtoken(),
        link_rtoken(),
    )
        .prop_map(
            |(direction, answer, (rkey, address, others_count), first, second)| llc::ConfirmRkey {
                direction,
                answer,
                rkey: Rkey(rkey),
                address,
                others_count,
                others: [first, second],
            },
        )
}

fn delete_link() -> impl Strategy<Value = llc::DeleteLink> {
    let scope = prop_oneof![
        Just(llc::DeleteScope::All),
        link_number().prop_map(llc::DeleteScope::One)
    ];
    let ending = prop_oneof![Just(llc::Ending::Orderly), Just(llc::Ending::Abrupt)];
    (direction(), scope, ending, any::<u32>()).prop_map(|(direction, scope, ending, reason)| {
        llc::DeleteLink {
            direction,
            scope,
            ending,
            reason: llc::DeleteReason(reason),
        }
    })
}

fn delete_rkey() -> impl Strategy<Value = llc::DeleteRkey> {
    let verdict = prop_oneof![Just(llc::Verdict::Positive), Just(llc::Verdict::Negative)];
    let rkeys = list(any::<u32>().prop_map(Rkey));
    (direction(), verdict, any::<u8>(), rkeys).prop_map(|(direction, verdict, errors, rkeys)| {
        llc::DeleteRkey {
            direction,
            verdict,
            errors,
            rkeys,
        }
    })
}

/// Every message that exists in both forms, without borrowed parts.
fn llc_message() -> impl Strategy<Value = llc::Message<'static>> {
    prop_oneof![
        confirm_link().prop_map(llc::Message::ConfirmLink),
        delete_link().prop_map(llc::Message::DeleteLink),
        confirm_rkey().prop_map(llc::Message::ConfirmRkey),
        delete_rkey().prop_map(llc::Message::DeleteRkey),
        (direction(), any::<[u8; 16]>()).prop_map(|(direction, user_data)| {
            llc::Message::TestLink(llc::TestLink {
                direction,
                user_data,
            })
        }),
        (direction(), any::<u8>()).prop_map(|(direction, credits)| {
            llc::Message::AnnounceCredits(llc::AnnounceCredits { direction, credits })
        }),
    ]
}

fn llc_v1_message() -> impl Strategy<Value = llc::Message<'static>> {
    let cont = (
        direction(),
        link_number(),
        any::<u8>(),
        rtoken_pair(),
        rtoken_pair(),
    );
    let rkey_cont = (
        direction(),
        rkey_answer(),
        any::<u8>(),
        uniform3(link_rtoken()),
    );
    prop_oneof![
        cont.prop_map(|(direction, link_number, rtokens_left, first, second)| {
            let rtokens = [first, second];
            let message = llc::AddLinkCont {
                direction,
                link_number,
                rtokens_left,
                rtokens,
            };
            llc::Message::AddLinkCont(message)
        }),
        rkey_cont.prop_map(|(direction, answer, entries_left, entries)| {
            let message = llc::ConfirmRkeyCont {
                direction,
                answer,
                entries_left,
                entries,
            };
            llc::Message::ConfirmRkeyCont(message)
        }),
    ]
}

fn request_add_link() -> impl Strategy<Value = llc::Message<'static>> {
    (direction(), list(gid())).prop_map(|(direction, gids)| {
        llc::Message::RequestAddLink(llc::RequestAddLink { direction, gids })
    })
}

/// An ADD LINK without its version 2 part, and the rtokens for one.
fn add_link() -> impl Strategy<Value = (llc::AddLink<'static>, Vec<[u8; 16]>)> {
    let rest = (link_number(), mtu(), psn(), any::<u8>());
    let rtokens = vec(rtoken_pair().prop_map(RtokenPair::to_bytes), 0..40);
    (direction(), mac(), gid(), qpn(), rest, rtokens).prop_map(
        |(direction, mac, gid, qpn, (link_number, mtu, psn, credits), rtokens)| {
            let message = llc::AddLink {
                direction,
                answer: llc::Answer::Accepted,
                mac,
                gid,
                qpn,
                link_number,
                mtu,
                psn,
                credits,
                v2: None,
            };
            (message, rtokens)
        },
    )
}

/// Writes with `emit` into a guarded buffer; checks length, guard and the buffer that is too small
/// by one.
fn written(
    len: usize,
    emit: impl Fn(&mut [u8]) -> Result<usize, Error>,
) -> Result<Vec<u8>, TestCaseError> {
    let mut out = vec![GUARD; len + 16];
    prop_assert_eq!(emit(&mut out), Ok(len));
    prop_assert!(out[len..].iter().all(|byte| *byte == GUARD));
    let mut short = vec![GUARD; len - 1];
    prop_assert_eq!(
        emit(&mut short),
        Err(Error::NoRoom {
            need: len,
            got: len - 1
        })
    );
    prop_assert!(short.iter().all(|byte| *byte == GUARD));
    out.truncate(len);
    Ok(out)
}

fn check_llc(form: LlcForm, message: &llc::Message<'_>) -> Result<(), TestCaseError> {
    let bytes = written(message.buffer_len(form), |out| message.emit(form, out))?;
    let read = llc::Message::parse(form, &bytes);
    prop_assert_eq!(read.as_ref(), Ok(message));
    prop_assert!(!message.to_string().contains('\n'));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn clc_messages_read_back_as_they_were_written(message in clc_message()) {
        let len = message.buffer_len();
        prop_assert!(len <= clc::MESSAGE_BYTES_MAX);
        let bytes = written(len, |out| message.emit(out))?;
        prop_assert_eq!(usize::from(Header::parse(&bytes[..8]).unwrap().length), len);
        prop_assert_eq!(clc::Message::parse(&bytes), Ok(message.clone()));
        prop_assert!(!message.to_string().contains('\n'));
    }

    #[test]
    fn llc_messages_read_back_in_both_forms(message in llc_message()) {
        check_llc(LlcForm::V1, &message)?;
        check_llc(LlcForm::V2, &message)?;
    }

    #[test]
    fn llc_messages_of_version_1_exist_only_there(message in llc_v1_message()) {
        check_llc(LlcForm::V1, &message)?;
        let kind = message.kind() as u8;
        let mut out = [GUARD; 64];
        prop_assert_eq!(message.emit(LlcForm::V2, &mut out), Err(Error::NotInForm { kind }));
        prop_assert_eq!(out, [GUARD; 64]);
    }

    #[test]
    fn request_add_link_exists_only_in_version_2(message in request_add_link()) {
        check_llc(LlcForm::V2, &message)?;
        let refused = Err(Error::NotInForm { kind: 5 });
        prop_assert_eq!(message.emit(LlcForm::V1, &mut [0; 256]), refused);
    }

    #[test]
    fn add_link_reads_back_with_and_without_its_version_2_part(
        (message, rtokens) in add_link(),
        target_gid in gid(),
        reason in 0..16u8,
    ) {
        check_llc(LlcForm::V1, &llc::Message::AddLink(message))?;
        check_llc(LlcForm::V2, &llc::Message::AddLink(message))?;
        let rejected = llc::Answer::Rejected(llc::RejectReason(reason));
        let refusal = llc::AddLink { answer: rejected, ..message };
        check_llc(LlcForm::V1, &llc::Message::AddLink(refusal))?;
        let v2 = llc::AddLinkV2 { attachment: Attachment::Direct, target_gid, rtokens: &rtokens };
        check_llc(LlcForm::V2, &llc::Message::AddLink(llc::AddLink { v2: Some(v2), ..message }))?;
        // From 12 rtokens on, byte 2 is the length's and not a reason's.
        let answer = llc::Answer::Rejected(llc::RejectReason::NONE);
        let refusal = llc::AddLink { answer, v2: Some(v2), ..message };
        check_llc(LlcForm::V2, &llc::Message::AddLink(refusal))?;
        for bytes in rtokens {
            prop_assert_eq!(RtokenPair::from_bytes(bytes).to_bytes(), bytes);
        }
    }

    #[test]
    fn cdc_messages_read_back_as_they_were_written(
        (seq, token, credits) in any::<(u16, u32, u8)>(),
        cursors in any::<(u16, u32, u16, u32)>(),
        flags in any::<(u8, u8)>(),
    ) {
        let repr = cdc::Repr {
            seq,
            token,
            producer: RingCursor { wrap: cursors.0, count: cursors.1 },
            consumer: RingCursor { wrap: cursors.2, count: cursors.3 },
            producer_flags: ProducerFlags(flags.0),
            state_flags: ConnStateFlags(flags.1),
            credits,
        };
        let mut bytes = [GUARD; cdc::CDC_BYTES];
        repr.emit(&mut bytes);
        prop_assert_eq!(cdc::Repr::parse(&bytes), Ok(repr));
    }

    #[test]
    fn immediates_read_back_as_they_were_written(
        token in 1..=255u8,
        flags in 0..8u8,
        (credits, any_flags, state) in any::<(u8, u8, u8)>(),
        step in any::<u32>(),
    ) {
        let token = ImmediateToken::new(token).unwrap();
        let flags = ProducerFlags(flags << 5);
        let all = [
            News::Data { step: step & News::DATA_STEP_MAX },
            News::DataFlags { flags, step: step & News::DATA_FLAGS_STEP_MAX },
            News::Control {
                producer_flags: ProducerFlags(any_flags),
                state_flags: ConnStateFlags(state),
            },
            News::DataCredits { credits, step: step & News::DATA_CREDITS_STEP_MAX },
            News::DataFlagsCredits {
                flags,
                credits,
                step: step & News::DATA_FLAGS_CREDITS_STEP_MAX,
            },
        ];
        for news in all {
            let immediate = Immediate { token, news };
            prop_assert_eq!(Immediate::parse(immediate.emit().unwrap()), Ok(immediate));
        }
    }
}

#[test]
fn values_that_do_not_fit_their_nibble_are_refused_when_written() {
    let decline = Decline {
        sync: Sync::InSync,
        peer_id: PeerId::ZERO,
        diagnosis: Diagnosis::MEM,
        v2: Some(DeclineV2 {
            os: OsType(16),
            more: [0; 4],
        }),
    };
    let refused = Err(Error::BadField {
        field: pollux_wire::Field::OsType,
        value: 16,
    });
    assert_eq!(decline.emit(&mut [0; 64]), refused);
}

/// Where release 1 has its limits, release 0 may have the count of its GID list: with the limits of this
/// message written out, it would read as one of another length.
#[test]
fn the_limits_of_release_0_are_not_read_and_not_written() {
    let first = FirstContact {
        attachment: Attachment::Direct,
        os: OsType::LINUX,
        release: 1,
        host_name: [b' '; 32],
        max_conns: 2,
        max_links: 1,
        features: 1,
        options: VendorOptions::VALID,
    };
    let extension = |first| Extension::V2 {
        eid: Ueid::from_bytes([b'A'; 32]),
        first: Some(first),
    };
    let confirm = Confirm {
        endpoint: any_endpoint(),
        extension: extension(first),
        gids: [Gid([7; 16])].into_iter().collect(),
    };
    let mut bytes = [0; 512];
    let len = confirm.emit(&mut bytes).unwrap();
    assert_eq!(len, 180);
    // The same message, but of release 0; nine GIDs would take another length, so it is the long form.
    bytes[105] &= 0xf0;
    bytes[140] = 9;
    let read = Confirm::parse(&bytes[..len]).unwrap();
    let bare = FirstContact {
        release: 0,
        max_conns: 0,
        max_links: 0,
        features: 0,
        options: VendorOptions::NONE,
        ..first
    };
    assert_eq!(read.extension, extension(bare));
    assert_eq!(read.gids, confirm.gids);
    let len = read.emit(&mut bytes).unwrap();
    assert_eq!(Confirm::parse(&bytes[..len]), Ok(read.clone()));
    for limits in [
        FirstContact {
            max_conns: 2,
            ..bare
        },
        FirstContact {
            max_links: 1,
            ..bare
        },
        FirstContact {
            features: 1,
            ..bare
        },
        FirstContact {
            options: VendorOptions::VALID,
            ..bare
        },
    ] {
        let message = Confirm {
            extension: extension(limits),
            ..read.clone()
        };
        let refused = Error::BadField {
            field: pollux_wire::Field::ReleaseLimits,
            value: 0,
        };
        assert_eq!(message.emit(&mut bytes), Err(refused));
    }
}

fn any_endpoint() -> Endpoint {
    Endpoint {
        peer_id: PeerId([1; 8]),
        gid: Gid([2; 16]),
        mac: Mac([3; 6]),
        qpn: Qpn::from_low_bits(4),
        rkey: Rkey(5),
        rmbe_index: RmbeIndex::FIRST,
        alert_token: AlertToken::new(6).unwrap(),
        rmbe_size: BufferSizeCode::new(2).unwrap(),
        mtu: Some(MtuCode::B1024),
        credits: 0,
        rmb_address: 7,
        psn: Psn::from_low_bits(8),
    }
}
