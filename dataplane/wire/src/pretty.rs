//! One line per message, as tcpdump would print it: the message, then its fields in wire order,
//! then its length.
//!
//! Fields that are zero because the message has no use for them are left out.

use core::fmt::{Display, Formatter, Result};

use crate::cdc::{self, ConnStateFlags, ProducerFlags};
use crate::clc::{
    Accept, Attachment, Confirm, Contact, Decline, Diagnosis, Endpoint, Extension, FirstContact,
    Form as ProposalForm, IpArea, IsmV1, IsmV2, Message as ClcMessage, OsType, Oui, Proposal, Sync,
    V1Offer, V1Paths, V2Offer, V2Paths, VendorOptions, Version,
};
use crate::field::{MtuCode, Ueid, printable};
use crate::imm::{Immediate, News};
use crate::llc::{
    self, AddLink, AddLinkCont, AddLinkV2, AnnounceCredits, Answer, ConfirmLink, ConfirmRkey,
    ConfirmRkeyCont, DeleteLink, DeleteReason, DeleteRkey, DeleteScope, Direction, Ending,
    LinkRtoken, RejectReason, RequestAddLink, RkeyAnswer, RmbeMark, RtokenPair, TestLink, Verdict,
};

/// Blank-padded text: printable as it is, otherwise as hexadecimal digits.
struct Padded<'a>(&'a [u8]);

impl Display for Padded<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match printable(self.0) {
            Some(text) => write!(f, "\"{text}\""),
            None => self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

impl Display for Ueid {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        Padded(&self.to_bytes()).fmt(f)
    }
}

impl Display for Version {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Version::V1 => "v1",
            Version::V2 => "v2",
        })
    }
}

impl Display for MtuCode {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.bytes().fmt(f)
    }
}

/// An MTU nibble that may be zero.
struct Mtu(Option<MtuCode>);

impl Display for Mtu {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.0 {
            Some(code) => code.fmt(f),
            None => f.write_str("none"),
        }
    }
}

impl Display for Diagnosis {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{:#010x}", self.0)?;
        self.name().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

impl Display for OsType {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            OsType::ZOS => f.write_str("z/OS"),
            OsType::LINUX => f.write_str("Linux"),
            OsType::AIX => f.write_str("AIX"),
            OsType(other) => other.fmt(f),
        }
    }
}

impl Display for Oui {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let [a, b, c] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}")
    }
}

impl Display for Attachment {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Attachment::Direct => "direct",
            Attachment::Indirect => "indirect",
        })
    }
}

impl Display for Contact {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Contact::First => "first contact",
            Contact::Subsequent => "subsequent contact",
        })
    }
}

impl Display for V1Paths {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            V1Paths::R => "R",
            V1Paths::D => "D",
            V1Paths::Both => "R and D",
        })
    }
}

impl Display for V2Paths {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            V2Paths::R => f.write_str("R"),
            V2Paths::D(ism) => write!(f, "D {ism}"),
            V2Paths::Both(ism) => write!(f, "R and D {ism}"),
        }
    }
}

impl Display for IsmV1 {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "ism {:016x} chid {:#06x}", self.gid, self.chid)
    }
}

impl Display for IsmV2 {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "(seid {}", Padded(&self.seid))?;
        for entry in &self.gids {
            write!(f, ", ism {:016x} chid {:#06x}", entry.gid, entry.chid)?;
        }
        f.write_str(")")
    }
}

impl Display for IpArea {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let subnet = core::net::Ipv4Addr::from(self.ipv4_subnet);
        write!(f, "subnet {subnet}/{}", self.ipv4_length)?;
        for entry in &self.ipv6 {
            let prefix = core::net::Ipv6Addr::from_octets(entry.prefix);
            write!(f, " prefix {prefix}/{}", entry.length)?;
        }
        Ok(())
    }
}

impl Display for V1Offer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "v1 {} {}", self.paths, self.ip)
    }
}

impl Display for V2Offer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let V2Offer {
            paths,
            release,
            gid,
            max_conns,
            max_links,
            features,
            ..
        } = self;
        write!(
            f,
            "v2 {paths} release {release} gid {gid} conns {max_conns} links {max_links}"
        )?;
        write!(f, " features {features:#06x}")?;
        self.ueids
            .iter()
            .try_for_each(|ueid| write!(f, " ueid {ueid}"))
    }
}

impl Display for Proposal {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Proposal {
            peer_id,
            gid,
            mac,
            form,
        } = self;
        write!(
            f,
            "CLC {} Proposal, peer {peer_id}, gid {gid}, mac {mac}",
            self.version()
        )?;
        match form {
            ProposalForm::V1 { offer, ism } => {
                write!(f, ", {offer}")?;
                write_ism(f, ism.unwrap_or_default())?;
            }
            ProposalForm::V2 {
                v1,
                ism,
                oui,
                options,
                v2,
            } => {
                match v1 {
                    Some(offer) => write!(f, ", {offer}")?,
                    None => f.write_str(", v1 none")?,
                }
                write_ism(f, *ism)?;
                match v2 {
                    Some(offer) => write!(f, ", {offer}")?,
                    None => f.write_str(", v2 none")?,
                }
                if (*oui, *options) != (Oui::NONE, VendorOptions::NONE) {
                    write!(f, ", vendor {oui} options {:#010x}", options.0)?;
                }
            }
        }
        write!(f, ", length {}", self.buffer_len())
    }
}

fn write_ism(f: &mut Formatter<'_>, ism: IsmV1) -> Result {
    if ism == IsmV1::default() {
        Ok(())
    } else {
        write!(f, ", {ism}")
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Endpoint {
            peer_id,
            gid,
            mac,
            qpn,
            psn,
            rkey,
            rmb_address,
            ..
        } = self;
        write!(
            f,
            "peer {peer_id}, gid {gid}, mac {mac}, qpn {qpn}, rkey {rkey}"
        )?;
        write!(
            f,
            ", index {}, token {}",
            self.rmbe_index.get(),
            self.alert_token
        )?;
        write!(
            f,
            ", size {}, mtu {}",
            self.rmbe_size.bytes(),
            Mtu(self.mtu)
        )?;
        write_credits(f, self.credits)?;
        write!(f, ", rmb {rmb_address:#018x}, psn {psn}")
    }
}

fn write_credits(f: &mut Formatter<'_>, credits: u8) -> Result {
    if credits == 0 {
        Ok(())
    } else {
        write!(f, ", credits {credits}")
    }
}

impl Display for FirstContact {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let FirstContact {
            attachment,
            os,
            release,
            max_conns,
            max_links,
            features,
            ..
        } = self;
        write!(
            f,
            "{attachment}, os {os}, release {release}, host {}",
            Padded(&self.host_name)
        )?;
        write!(
            f,
            ", conns {max_conns}, links {max_links}, features {features:#06x}"
        )?;
        match self.options {
            VendorOptions::NONE => Ok(()),
            VendorOptions(options) => write!(f, ", options {options:#010x}"),
        }
    }
}

impl Display for Extension {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Extension::V1 { .. } => Ok(()),
            Extension::V2 { eid, first: None } => write!(f, ", eid {eid}"),
            Extension::V2 {
                eid,
                first: Some(first),
            } => write!(f, ", eid {eid}, {first}"),
        }
    }
}

impl Display for Accept {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Accept {
            endpoint,
            extension,
        } = self;
        let (version, contact) = (extension.version(), extension.contact());
        write!(f, "CLC {version} Accept, {contact}, {endpoint}{extension}")?;
        write!(f, ", length {}", self.buffer_len())
    }
}

impl Display for Confirm {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Confirm {
            endpoint,
            extension,
            gids,
        } = self;
        let (version, contact) = (extension.version(), extension.contact());
        write!(f, "CLC {version} Confirm, {contact}, {endpoint}{extension}")?;
        gids.iter()
            .try_for_each(|gid| write!(f, ", link gid {gid}"))?;
        write!(f, ", length {}", self.buffer_len())
    }
}

impl Display for Decline {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Decline {
            sync,
            peer_id,
            diagnosis,
            v2,
        } = self;
        write!(
            f,
            "CLC {} Decline, peer {peer_id}, diagnosis {diagnosis}",
            self.version()
        )?;
        match sync {
            Sync::InSync => {}
            Sync::OutOfSync => f.write_str(", out of sync")?,
        }
        if let Some(v2) = v2 {
            write!(f, ", os {}", v2.os)?;
            if v2.more != [0; 4] {
                write!(f, ", more {:x?}", v2.more)?;
            }
        }
        write!(f, ", length {}", self.buffer_len())
    }
}

impl Display for ClcMessage {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            ClcMessage::Proposal(proposal) => proposal.fmt(f),
            ClcMessage::Accept(accept) => accept.fmt(f),
            ClcMessage::Confirm(confirm) => confirm.fmt(f),
            ClcMessage::Decline(decline) => decline.fmt(f),
        }
    }
}

impl Display for Direction {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Direction::Request => "request",
            Direction::Response => "response",
        })
    }
}

impl Display for ConfirmLink {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let ConfirmLink {
            direction,
            mac,
            gid,
            qpn,
            link_number,
            max_links,
            max_conns,
            ..
        } = self;
        write!(f, "LLC CONFIRM LINK {direction}, ")?;
        f.write_str(match self.mark {
            RmbeMark::Absent => "no eye catcher",
            RmbeMark::Present => "with eye catcher",
        })?;
        write!(f, ", mac {mac}, gid {gid}, qpn {qpn}, link {link_number}")?;
        write!(
            f,
            ", user id {:08x}, links {max_links}, conns {max_conns}",
            self.link_user_id
        )
    }
}

impl Display for AddLink<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let AddLink {
            direction,
            mac,
            gid,
            qpn,
            link_number,
            mtu,
            psn,
            ..
        } = self;
        write!(f, "LLC ADD LINK {direction}")?;
        match self.answer {
            Answer::Accepted => {}
            Answer::Rejected(RejectReason(reason)) => write!(f, ", rejected (reason {reason})")?,
        }
        write!(f, ", mac {mac}, gid {gid}, qpn {qpn}, link {link_number}")?;
        write!(f, ", mtu {}, psn {psn}", Mtu(*mtu))?;
        write_credits(f, self.credits)?;
        self.v2.as_ref().map_or(Ok(()), |v2| write!(f, ", {v2}"))
    }
}

impl Display for AddLinkV2<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let AddLinkV2 {
            attachment,
            target_gid,
            rtokens,
        } = self;
        write!(f, "{attachment}, target {target_gid}")?;
        let mut pairs = rtokens.iter().map(|bytes| RtokenPair::from_bytes(*bytes));
        pairs.try_for_each(|pair| write!(f, ", {pair}"))
    }
}

impl Display for RtokenPair {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let RtokenPair {
            rkey,
            new_rkey,
            new_address,
        } = self;
        write!(
            f,
            "rkey {rkey} new rkey {new_rkey} address {new_address:#018x}"
        )
    }
}

impl Display for AddLinkCont {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let AddLinkCont {
            direction,
            link_number,
            rtokens_left,
            rtokens: [first, second],
        } = self;
        write!(
            f,
            "LLC ADD LINK CONT {direction}, link {link_number}, left {rtokens_left}"
        )?;
        write!(f, ", {first}, {second}")
    }
}

impl Display for DeleteReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{:#010x}", self.0)?;
        self.name().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

impl Display for DeleteLink {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "LLC DELETE LINK {}", self.direction)?;
        match self.scope {
            DeleteScope::All => f.write_str(", all")?,
            DeleteScope::One(number) => write!(f, ", link {number}")?,
        }
        f.write_str(match self.ending {
            Ending::Orderly => ", orderly",
            Ending::Abrupt => "",
        })?;
        write!(f, ", reason {}", self.reason)
    }
}

impl Display for RequestAddLink {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "LLC REQUEST ADD LINK {}", self.direction)?;
        self.gids
            .iter()
            .try_for_each(|gid| write!(f, ", gid {gid}"))
    }
}

impl Display for RkeyAnswer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            RkeyAnswer::Positive => "",
            RkeyAnswer::Negative => ", negative",
            RkeyAnswer::Retry => ", negative, retry",
        })
    }
}

impl Display for LinkRtoken {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let LinkRtoken {
            link_number,
            rkey,
            address,
        } = self;
        write!(
            f,
            ", link {link_number} rkey {rkey} address {address:#018x}"
        )
    }
}

impl Display for ConfirmRkey {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let ConfirmRkey {
            direction,
            answer,
            rkey,
            address,
            others_count,
            others,
        } = self;
        write!(
            f,
            "LLC CONFIRM RKEY {direction}{answer}, rkey {rkey}, address {address:#018x}"
        )?;
        if *others_count > 2 {
            write!(f, ", bad count {others_count}")?;
        }
        others
            .iter()
            .take(usize::from(*others_count))
            .try_for_each(|other| other.fmt(f))
    }
}

impl Display for ConfirmRkeyCont {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let ConfirmRkeyCont {
            direction,
            answer,
            entries_left,
            entries,
        } = self;
        write!(
            f,
            "LLC CONFIRM RKEY CONT {direction}{answer}, left {entries_left}"
        )?;
        entries
            .iter()
            .take(usize::from(*entries_left))
            .try_for_each(|entry| entry.fmt(f))
    }
}

impl Display for DeleteRkey {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let DeleteRkey {
            direction,
            verdict,
            errors,
            rkeys,
        } = self;
        write!(f, "LLC DELETE RKEY {direction}")?;
        match verdict {
            Verdict::Positive => {}
            Verdict::Negative => write!(f, ", negative, errors {errors:#04x}")?,
        }
        rkeys.iter().try_for_each(|rkey| write!(f, ", rkey {rkey}"))
    }
}

impl Display for TestLink {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let TestLink {
            direction,
            user_data,
        } = self;
        write!(
            f,
            "LLC TEST LINK {direction}, data {:032x}",
            u128::from_be_bytes(*user_data)
        )
    }
}

impl Display for AnnounceCredits {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "LLC ANNOUNCE CREDITS {}, credits {}",
            self.direction, self.credits
        )
    }
}

impl Display for llc::Message<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            llc::Message::ConfirmLink(message) => message.fmt(f),
            llc::Message::AddLink(message) => message.fmt(f),
            llc::Message::AddLinkCont(message) => message.fmt(f),
            llc::Message::DeleteLink(message) => message.fmt(f),
            llc::Message::RequestAddLink(message) => message.fmt(f),
            llc::Message::ConfirmRkey(message) => message.fmt(f),
            llc::Message::TestLink(message) => message.fmt(f),
            llc::Message::ConfirmRkeyCont(message) => message.fmt(f),
            llc::Message::DeleteRkey(message) => message.fmt(f),
            llc::Message::AnnounceCredits(message) => message.fmt(f),
        }
    }
}

/// Writes the names of the set bits, separated by `+`, then unnamed bits as a number; `none` for
/// zero.
fn write_flags(f: &mut Formatter<'_>, bits: u8, names: &[(u8, &str)]) -> Result {
    if bits == 0 {
        return f.write_str("none");
    }
    let mut rest = bits;
    let mut separator = "";
    for (bit, name) in names {
        if bits & bit != 0 {
            write!(f, "{separator}{name}")?;
            rest &= !bit;
            separator = "+";
        }
    }
    if rest == 0 {
        Ok(())
    } else {
        write!(f, "{separator}{rest:#04x}")
    }
}

impl Display for ProducerFlags {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let names = [
            (ProducerFlags::WRITE_BLOCKED.0, "blocked"),
            (ProducerFlags::URGENT_PENDING.0, "urgent-pending"),
            (ProducerFlags::URGENT_PRESENT.0, "urgent-present"),
            (ProducerFlags::CURSOR_UPDATE_REQUESTED.0, "update-requested"),
            (ProducerFlags::FAILOVER_VALIDATION.0, "failover-validation"),
        ];
        write_flags(f, self.0, &names)
    }
}

impl Display for ConnStateFlags {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let names = [
            (ConnStateFlags::SENDING_DONE.0, "done"),
            (ConnStateFlags::CLOSED.0, "closed"),
            (ConnStateFlags::ABNORMAL_CLOSE.0, "abort"),
        ];
        write_flags(f, self.0, &names)
    }
}

impl Display for cdc::RingCursor {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}:{}", self.wrap, self.count)
    }
}

impl Display for cdc::Repr {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let cdc::Repr {
            seq,
            token,
            producer,
            consumer,
            ..
        } = self;
        write!(
            f,
            "CDC seq {seq}, token {token}, producer {producer}, consumer {consumer}"
        )?;
        if !self.producer_flags.is_empty() {
            write!(f, ", flags {}", self.producer_flags)?;
        }
        if !self.state_flags.is_empty() {
            write!(f, ", state {}", self.state_flags)?;
        }
        write_credits(f, self.credits)
    }
}

impl Display for Immediate {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "IMM token {}", self.token.get())?;
        match self.news {
            News::Data { step } => write!(f, ", consumed {step}"),
            News::DataFlags { flags, step } => write!(f, ", consumed {step}, flags {flags}"),
            News::Control {
                producer_flags,
                state_flags,
            } => {
                write!(f, ", flags {producer_flags}, state {state_flags}")
            }
            News::DataCredits { credits, step } => {
                write!(f, ", consumed {step}, credits {credits}")
            }
            News::DataFlagsCredits {
                flags,
                credits,
                step,
            } => {
                write!(f, ", consumed {step}, flags {flags}, credits {credits}")
            }
        }
    }
}
