//! Messages of any kind whose fields are mostly likely.

use pollux_wire::clc::Attachment;
use pollux_wire::field::{Gid, LinkNumber, Mac, Psn, Qpn, Rkey};
use pollux_wire::llc::{
    AddLink, AddLinkV2, AnnounceCredits, Answer, ConfirmLink, ConfirmRkey, DeleteLink,
    DeleteReason, DeleteRkey, DeleteScope, Direction, Ending, Form, LinkRtoken, Message,
    RejectReason, RequestAddLink, RkeyAnswer, RmbeMark, TestLink, Verdict,
};

use super::rtoken;
use crate::Input;

/// A message in this version; one that does not exist there is written in the other's form.
pub(super) fn message(form: Form, input: &mut Input<'_>) -> Vec<u8> {
    let bits = input.byte();
    let key = rtoken(input.byte());
    let rtokens = [[bits; 16]; 2];
    let message = match input.below(9) {
        0 => Message::ConfirmLink(confirm_link(bits)),
        1 => Message::AddLink(add_link(bits, &rtokens)),
        2 => Message::DeleteLink(DeleteLink {
            direction: direction(bits),
            scope: match bits & 8 {
                0 => DeleteScope::One(number(bits)),
                _ => DeleteScope::All,
            },
            ending: match bits & 0x10 {
                0 => Ending::Orderly,
                _ => Ending::Abrupt,
            },
            reason: DeleteReason(input.u16().into()),
        }),
        3 => Message::RequestAddLink(RequestAddLink {
            direction: direction(bits),
            gids: (0..number(bits).0 * 2).map(|n| Gid([n; 16])).collect(),
        }),
        4 => Message::ConfirmRkey(ConfirmRkey {
            rkey: key.rkey,
            address: key.address,
            ..confirm_rkey(bits, input)
        }),
        5 => Message::TestLink(TestLink {
            direction: direction(bits),
            user_data: input.array(),
        }),
        6 => Message::AnnounceCredits(AnnounceCredits {
            direction: direction(bits),
            credits: input.byte(),
        }),
        // Fills the table.
        7 => Message::ConfirmRkey(ConfirmRkey {
            rkey: Rkey(input.u16().into()),
            ..confirm_rkey(0, input)
        }),
        _ => Message::DeleteRkey(DeleteRkey {
            direction: direction(bits),
            verdict: match bits & 8 {
                0 => Verdict::Positive,
                _ => Verdict::Negative,
            },
            errors: bits,
            rkeys: (0..input.below(9))
                .map(|n| Rkey(u32::from(n) ^ key.rkey.0))
                .collect(),
        }),
    };
    emit(&message, form)
}

fn emit(message: &Message<'_>, form: Form) -> Vec<u8> {
    let other = match form {
        Form::V1 => Form::V2,
        Form::V2 => Form::V1,
    };
    let form = match message.kind().type_byte(form) {
        Some(_) => form,
        None => other,
    };
    let mut out = vec![0; message.buffer_len(form)];
    let len = message.emit(form, &mut out);
    assert_eq!(len, Ok(out.len()), "{message:?}");
    out
}

fn direction(bits: u8) -> Direction {
    match bits & 1 {
        0 => Direction::Request,
        _ => Direction::Response,
    }
}

fn number(bits: u8) -> LinkNumber {
    LinkNumber(bits >> 1 & 3)
}

fn confirm_link(bits: u8) -> ConfirmLink {
    ConfirmLink {
        direction: direction(bits),
        mark: match bits & 8 {
            0 => RmbeMark::Absent,
            _ => RmbeMark::Present,
        },
        mac: Mac([bits; 6]),
        gid: Gid([bits; 16]),
        qpn: Qpn::from_low_bits(bits.into()),
        link_number: number(bits),
        link_user_id: 1,
        max_links: 1,
        max_conns: 32,
    }
}

fn add_link(bits: u8, rtokens: &[[u8; 16]]) -> AddLink<'_> {
    AddLink {
        direction: direction(bits),
        answer: match bits >> 3 & 3 {
            0 => Answer::Accepted,
            reason => Answer::Rejected(RejectReason(reason)),
        },
        mac: Mac([bits; 6]),
        gid: Gid([bits; 16]),
        qpn: Qpn::from_low_bits(bits.into()),
        link_number: number(bits),
        mtu: None,
        psn: Psn::from_low_bits(bits.into()),
        credits: bits,
        v2: (bits & 0x20 != 0).then_some(AddLinkV2 {
            attachment: Attachment::Direct,
            target_gid: Gid([bits; 16]),
            rtokens: &rtokens[..usize::from(bits >> 6).min(rtokens.len())],
        }),
    }
}

/// Without a key.
fn confirm_rkey(bits: u8, input: &mut Input<'_>) -> ConfirmRkey {
    ConfirmRkey {
        direction: direction(bits),
        answer: match bits >> 3 & 3 {
            0 | 1 => RkeyAnswer::Positive,
            2 => RkeyAnswer::Negative,
            _ => RkeyAnswer::Retry,
        },
        rkey: Rkey(0),
        address: 0,
        others_count: match bits & 0x20 {
            0 => 0,
            _ => input.byte(),
        },
        others: [LinkRtoken::default(); 2],
    }
}
