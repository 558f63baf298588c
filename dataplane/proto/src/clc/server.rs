//! The server: judges an offer, chooses, and checks the confirmation.

use pollux_wire::clc::{
    Accept, Confirm, Contact, Diagnosis, Extension, Form, Header, IpArea, Oui, Proposal, V1Offer,
    V2Offer, VendorOptions, Version,
};
use pollux_wire::field::{Gid, Mac, PeerId, Ueid};

use super::handshake::{Handshake, Side, State};
use super::{
    Agreed, BareCredits, DEFAULT_MAX_CONNS, HandshakeError, LINKS_MAX, Local, LocalEndpoint,
    MAX_CONNS_LEAST, Outcome, PeerEndpoint, PeerHost, RELEASE, Terms, Waiting,
};
use crate::time::Instant;

/// One handshake from the server's side.
pub type Server = Handshake<ServerSide>;

/// What the server asks its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// A client may come in: find a link group for it ([`Contact::Subsequent`]; confirm the RMB's
    /// key on its link first), or make a queue pair in state INIT with its receives posted
    /// ([`Contact::First`]). Then call [`Server::accept`] or [`Server::decline`].
    Choose(Candidate),
    /// First contact: bring the queue pair to the client's side and confirm the link, then call
    /// [`Server::handle_link_confirmed`], [`Server::handle_link_failed`] or [`Server::decline`].
    Connect(Agreed),
}

/// A client whose offer can be accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Version chosen.
    pub version: Version,
    /// Client's identity; zero from a Linux client that offers only version 2. With the GID it
    /// names the link group.
    pub peer_id: PeerId,
    /// Client's GID for the version.
    pub gid: Gid,
    /// Client's MAC; zero likewise.
    pub mac: Mac,
    /// Shared domain; version 2 only.
    pub eid: Option<Ueid>,
    /// Release of version 2.
    pub release: u8,
    /// Most connections a new group would have.
    pub max_conns: u8,
    /// Vendor options a new group would have.
    pub options: VendorOptions,
}

/// What of an Accept the Confirm is checked against.
#[derive(Clone, Copy, Debug)]
struct Accepted {
    terms: Terms,
    candidate: Candidate,
    /// Byte 51 of the Accept.
    credits: u8,
}

/// How far a server has come.
#[derive(Clone, Debug)]
pub struct ServerSide(Step);

#[derive(Clone, Debug)]
enum Step {
    /// Nothing came yet.
    ProposalDue { until: Instant },
    /// The owner was asked to choose.
    Choosing { candidate: Candidate },
    /// Accept sent.
    ConfirmDue { until: Instant, accepted: Accepted },
}

impl Side for ServerSide {
    type Question = Question;

    fn until(&self) -> Option<Instant> {
        match self.0 {
            Step::ProposalDue { until } | Step::ConfirmDue { until, .. } => Some(until),
            Step::Choosing { .. } => None,
        }
    }

    fn waiting(&self) -> Waiting {
        match self.0 {
            Step::ProposalDue { .. } => Waiting::Proposal,
            Step::Choosing { .. } => Waiting::Decline,
            Step::ConfirmDue { .. } => Waiting::Confirm,
        }
    }

    fn version(&self) -> Version {
        match self.0 {
            Step::ProposalDue { .. } => Version::V1,
            Step::Choosing { candidate } => candidate.version,
            Step::ConfirmDue { accepted, .. } => accepted.terms.version,
        }
    }

    fn on_message(server: &mut Server, header: &Header, message: &[u8]) {
        match server.state {
            State::Talking(ServerSide(Step::ConfirmDue { accepted, .. })) => {
                server.on_confirm(&accepted, header, message);
            }
            State::Talking(ServerSide(Step::ProposalDue { .. } | Step::Choosing { .. }))
            | State::LinkDue { .. }
            | State::DeclineDue { .. }
            | State::Done => server.on_proposal(message),
        }
    }
}

impl Server {
    /// Starts a handshake on a TCP connection whose client announced SMC.
    #[must_use]
    pub fn new(local: Local, now: Instant) -> Server {
        let until = now.after(local.wait);
        Handshake::start(local, ServerSide(Step::ProposalDue { until }))
    }

    /// Answers [`Question::Choose`]: sends the Accept. Without effect if the handshake ended
    /// meanwhile.
    pub fn accept(&mut self, now: Instant, contact: Contact, own: &LocalEndpoint) {
        let State::Talking(ServerSide(Step::Choosing { candidate })) = self.state else {
            return;
        };
        let terms = Terms {
            version: candidate.version,
            contact,
            eid: candidate.eid,
            release: candidate.release,
            max_conns: candidate.max_conns,
            max_links: LINKS_MAX,
            options: candidate.options,
        };
        let mut endpoint = self.local.endpoint(terms.version, own, self.local.mtu);
        endpoint.credits = self.credits_to_announce(&terms, own);
        let extension = self.local.extension(&terms, own);
        let accept = Accept {
            endpoint,
            extension,
        };
        self.send(|out| accept.emit(out));
        let accepted = Accepted {
            terms,
            candidate,
            credits: endpoint.credits,
        };
        let until = now.after(self.local.wait);
        self.state = State::Talking(ServerSide(Step::ConfirmDue { until, accepted }));
    }

    fn on_proposal(&mut self, message: &[u8]) {
        let proposal = match Proposal::parse(message) {
            Ok(proposal) => proposal,
            Err(error) => return self.fail(error.into()),
        };
        match self.choose(&proposal) {
            Ok(candidate) => {
                self.state = State::Talking(ServerSide(Step::Choosing { candidate }));
                self.ask(Question::Choose(candidate));
            }
            Err(diagnosis) => self.decline_as(proposal.version(), diagnosis),
        }
    }

    /// Version 2 first, then version 1; the diagnosis is the most specific one met on the way. The
    /// order of checks is that of Linux.
    fn choose(&self, proposal: &Proposal) -> Result<Candidate, Diagnosis> {
        match &proposal.form {
            Form::V1 { offer, .. } => self.choose_v1(proposal, offer),
            Form::V2 {
                v1: None, v2: None, ..
            } => Err(Diagnosis::PEERNOSMC),
            Form::V2 {
                v1,
                v2,
                oui,
                options,
                ..
            } => {
                let mut reason = Diagnosis::NOSMCDEV;
                if let Some(offer) = v2 {
                    let limits = self.check_limits(offer)?;
                    match self.choose_v2(proposal, offer, limits, (*oui, *options)) {
                        Ok(candidate) => return Ok(candidate),
                        Err(diagnosis) => reason = diagnosis,
                    }
                }
                match v1 {
                    Some(offer) => self.choose_v1(proposal, offer).map_err(|v1| {
                        if reason == Diagnosis::NOSMCDEV {
                            v1
                        } else {
                            reason
                        }
                    }),
                    None => Err(reason),
                }
            }
        }
    }

    /// Release and connections of a version 2 offer. A bad limit ends the handshake even if version
    /// 1 is offered too.
    fn check_limits(&self, offer: &V2Offer) -> Result<(u8, u8), Diagnosis> {
        let release = offer.release.min(RELEASE);
        if release == 0 || !offer.paths.has_r() {
            return Ok((release, DEFAULT_MAX_CONNS));
        }
        let max_conns = offer.max_conns.min(self.local.max_conns.get());
        if max_conns < MAX_CONNS_LEAST {
            return Err(Diagnosis::MAXCONNERR);
        }
        if offer.max_links.min(LINKS_MAX) < 1 {
            return Err(Diagnosis::MAXLINKERR);
        }
        Ok((release, max_conns))
    }

    fn choose_v2(
        &self,
        proposal: &Proposal,
        offer: &V2Offer,
        (release, max_conns): (u8, u8),
        (oui, options): (Oui, VendorOptions),
    ) -> Result<Candidate, Diagnosis> {
        if !offer.paths.has_r() || !self.local.speaks_v2() {
            return Err(Diagnosis::NOSMCDEV);
        }
        if offer.ueids.is_empty() {
            return Err(Diagnosis::NOUEID);
        }
        let shared = offer
            .ueids
            .iter()
            .find(|ueid| self.local.ueids.contains(ueid));
        let eid = *shared.ok_or(Diagnosis::NOSMCDEV)?;
        if !self.local.gid_rule.allows(offer.gid) {
            return Err(Diagnosis::NOSMCDEV);
        }
        let is_offered =
            release > 0 && oui == Oui::ALIBABA && options.contains(VendorOptions::VALID);
        let agreed = options.intersection(self.local.options);
        Ok(Candidate {
            version: Version::V2,
            peer_id: proposal.peer_id,
            gid: offer.gid,
            mac: proposal.mac,
            eid: Some(eid),
            release,
            max_conns,
            options: if is_offered && agreed.contains(VendorOptions::VALID) {
                agreed
            } else {
                VendorOptions::NONE
            },
        })
    }

    fn choose_v1(&self, proposal: &Proposal, offer: &V1Offer) -> Result<Candidate, Diagnosis> {
        let v1 = self.local.v1.as_ref().ok_or(Diagnosis::NOSMCDEV)?;
        if !shares_subnet(&v1.subnets, &offer.ip) {
            return Err(Diagnosis::DIFFPREFIX);
        }
        if !offer.paths.has_r() {
            return Err(Diagnosis::NOSMCDEV);
        }
        Ok(Candidate {
            version: Version::V1,
            peer_id: proposal.peer_id,
            gid: proposal.gid,
            mac: proposal.mac,
            eid: None,
            release: 0,
            max_conns: DEFAULT_MAX_CONNS,
            options: VendorOptions::NONE,
        })
    }

    /// Byte 51 of the Accept.
    fn credits_to_announce(&self, terms: &Terms, own: &LocalEndpoint) -> u8 {
        let is_agreed = terms
            .options
            .contains(VendorOptions::VALID.union(VendorOptions::CREDITS));
        let is_on = is_agreed || self.local.bare_credits == BareCredits::On;
        match terms.contact {
            Contact::First if is_on => own.receives,
            Contact::First | Contact::Subsequent => 0,
        }
    }

    fn on_confirm(&mut self, accepted: &Accepted, header: &Header, message: &[u8]) {
        let terms = accepted.terms;
        if header.version != terms.version {
            return self.decline_as(terms.version, Diagnosis::VERSMISMAT);
        }
        let confirm = match Confirm::parse(message) {
            Ok(confirm) => confirm,
            Err(error) => return self.fail(error.into()),
        };
        let got = confirm.extension.contact();
        if got != terms.contact {
            return self.fail(HandshakeError::ContactMismatch { got });
        }
        let mut peer = match PeerEndpoint::new(&confirm.endpoint, got, self.local.mtu) {
            Ok(peer) => peer,
            Err(error) => return self.fail(error),
        };
        if let Err(diagnosis) = check_confirm(&terms, &confirm.extension) {
            return self.decline_as(terms.version, diagnosis);
        }
        // Where packets go was settled by the Proposal, as in Linux.
        peer.gid = accepted.candidate.gid;
        peer.mac = accepted.candidate.mac;
        let peer_receives = match (accepted.credits, confirm.endpoint.credits) {
            (0, _) => None,
            (_, 0) if terms.options.contains(VendorOptions::CREDITS) => {
                return self.decline_as(terms.version, Diagnosis::CREDITSERR);
            }
            (_, 0) => None,
            (_, receives) => Some(receives),
        };
        let agreed = Agreed {
            terms,
            peer,
            peer_receives,
            peer_host: PeerHost::new(&confirm.extension),
        };
        match terms.contact {
            Contact::First => {
                self.state = State::LinkDue { agreed };
                self.ask(Question::Connect(agreed));
            }
            Contact::Subsequent => self.finish(Outcome::Connected(agreed)),
        }
    }
}

/// The first contact extension of a Confirm must repeat what the Accept agreed to.
fn check_confirm(terms: &Terms, extension: &Extension) -> Result<(), Diagnosis> {
    let Extension::V2 {
        first: Some(first), ..
    } = extension
    else {
        return Ok(());
    };
    if first.release != terms.release {
        return Err(Diagnosis::RELEASEERR);
    }
    if terms.release == 0 {
        return Ok(());
    }
    if first.max_conns != terms.max_conns {
        return Err(Diagnosis::MAXCONNERR);
    }
    if first.max_links != terms.max_links {
        return Err(Diagnosis::MAXLINKERR);
    }
    let is_valid = terms.options.contains(VendorOptions::VALID);
    if is_valid && first.options != terms.options {
        return Err(Diagnosis::VENDORERR);
    }
    Ok(())
}

/// The subnet check of version 1: the same IPv4 subnet, or one IPv6 prefix in common.
fn shares_subnet(own: &IpArea, offered: &IpArea) -> bool {
    if offered.ipv6.is_empty() {
        let own = (own.ipv4_subnet, own.ipv4_length);
        return own.1 != 0 && own == (offered.ipv4_subnet, offered.ipv4_length);
    }
    offered.ipv6.iter().any(|prefix| own.ipv6.contains(prefix))
}
