//! The client: offers, takes the server's choice, confirms it.

use arrayvec::ArrayVec;
use pollux_wire::clc::{
    Accept, Attachment, Confirm, Contact, Diagnosis, Extension, FirstContact, Form, Header, IsmV1,
    Oui, PathCode, Proposal, SeidUse, V1Offer, V1Paths, V2Offer, V2Paths, VendorOptions, Version,
};
use pollux_wire::field::Gid;

use super::handshake::{Handshake, Side, State};
use super::{
    Agreed, BareCredits, DEFAULT_MAX_CONNS, LINKS_MAX, Local, LocalEndpoint, MAX_CONNS_LEAST,
    Outcome, PeerEndpoint, PeerHost, RELEASE, Terms, Waiting,
};
use crate::time::Instant;

/// Most links a server may ask for; Linux knows no more.
const MAX_LINKS_MOST: u8 = 2;

/// One handshake from the client's side.
///
/// [`Output::Ask`](super::Output::Ask) carries what the server chose. On first contact make a queue
/// pair, bring it to the server's side, post its receives, and register an RMB; on subsequent
/// contact find the link group by peer id, GID and QPN, and confirm the RMB's key there. Then call
/// [`Client::provide`], or [`Handshake::decline`]: with [`Diagnosis::SYNCERR`] if there is no such
/// group.
pub type Client = Handshake<ClientSide>;

/// How far a client has come.
#[derive(Clone, Debug)]
pub struct ClientSide(Step);

#[derive(Clone, Debug)]
enum Step {
    /// Proposal sent.
    AcceptDue { until: Instant },
    /// The owner was asked to prepare. How the server thinks the hosts are attached.
    Preparing {
        agreed: Agreed,
        attachment: Attachment,
    },
}

impl Side for ClientSide {
    type Question = Agreed;

    fn until(&self) -> Option<Instant> {
        match self.0 {
            Step::AcceptDue { until } => Some(until),
            Step::Preparing { .. } => None,
        }
    }

    fn waiting(&self) -> Waiting {
        match self.0 {
            Step::AcceptDue { .. } => Waiting::Accept,
            Step::Preparing { .. } => Waiting::Decline,
        }
    }

    /// Linux declines in version 1 before it has seen the server's version.
    fn version(&self) -> Version {
        match self.0 {
            Step::AcceptDue { .. } => Version::V1,
            Step::Preparing { agreed, .. } => agreed.terms.version,
        }
    }

    fn on_message(client: &mut Client, header: &Header, message: &[u8]) {
        client.on_accept(header, message);
    }
}

impl Client {
    /// Starts a handshake: the first order sends the Proposal.
    ///
    /// Call it only when the peer is known to speak SMC, by the TCP option or by configuration. If
    /// `local` has nothing to offer, the orders are a Decline (NOSMCDEV) and the fallback, as in
    /// Linux.
    #[must_use]
    pub fn new(local: Local, now: Instant) -> Client {
        let until = now.after(local.wait);
        let mut client = Handshake::start(local, ClientSide(Step::AcceptDue { until }));
        match client.proposal() {
            Some(proposal) => client.send(|out| proposal.emit(out)),
            None => client.decline(Diagnosis::NOSMCDEV),
        }
        client
    }

    /// A handshake that refuses before anything was offered: the orders are a Decline, in place of the
    /// Proposal that the server waits for, and the fallback.
    #[must_use]
    pub fn declining(local: Local, diagnosis: Diagnosis, now: Instant) -> Client {
        let mut client = Handshake::start(local, ClientSide(Step::AcceptDue { until: now }));
        client.decline(diagnosis);
        client
    }

    /// Answers the question: sends the Confirm. Without effect if the handshake ended meanwhile.
    pub fn provide(&mut self, own: &LocalEndpoint) {
        let State::Talking(ClientSide(Step::Preparing { agreed, attachment })) = self.state else {
            return;
        };
        let terms = agreed.terms;
        // Direct is taken at its word: the packets go to the server's MAC. A gateway must be on
        // both ways.
        if (attachment, own.attachment) == (Attachment::Indirect, Attachment::Direct) {
            return self.decline_as(terms.version, Diagnosis::NOINDIRECT);
        }
        let mut endpoint = self.local.endpoint(terms.version, own, agreed.peer.mtu);
        if agreed.peer_receives.is_some() {
            endpoint.credits = own.receives;
        }
        // The one GID we have; written on first contact of version 2 only.
        let gids = ArrayVec::from_iter([endpoint.gid]);
        let extension = self.local.extension(&terms, own);
        let confirm = Confirm {
            endpoint,
            extension,
            gids,
        };
        self.send(|out| confirm.emit(out));
        match terms.contact {
            Contact::First => self.state = State::LinkDue { agreed },
            Contact::Subsequent => self.finish(Outcome::Connected(agreed)),
        }
    }

    /// What we offer; `None` if that is nothing.
    fn proposal(&self) -> Option<Proposal> {
        let local = &self.local;
        let v1 = local.v1.as_ref();
        let v2 = local.speaks_v2().then(|| V2Offer {
            paths: V2Paths::R,
            ueids: local.ueids.clone(),
            release: RELEASE,
            seid: SeidUse::Unused,
            gid: local.gid,
            max_conns: local.max_conns.get(),
            max_links: LINKS_MAX,
            features: 0,
        });
        if v1.is_none() && v2.is_none() {
            return None;
        }
        let options = if v2.is_some() {
            local.options
        } else {
            VendorOptions::NONE
        };
        let oui = if options == VendorOptions::NONE {
            Oui::NONE
        } else {
            Oui::ALIBABA
        };
        // Linux leaves identity and MAC zero without version 1, but a Linux server on a real
        // adapter sends its packets to this MAC, and tells peers apart by this identity.
        Some(Proposal {
            peer_id: local.peer_id,
            gid: v1.map_or(Gid::ZERO, |v1| v1.gid),
            mac: local.mac,
            form: Form::V2 {
                v1: v1.map(|v1| V1Offer {
                    paths: V1Paths::R,
                    ip: v1.subnets.clone(),
                }),
                ism: IsmV1::default(),
                oui,
                options,
                v2,
            },
        })
    }

    fn on_accept(&mut self, header: &Header, message: &[u8]) {
        let is_offered = match header.version {
            Version::V1 => self.local.v1.is_some(),
            Version::V2 => self.local.speaks_v2(),
        };
        if !is_offered || header.path_v1() != PathCode::R {
            return self.decline_as(header.version, Diagnosis::MODEUNSUPP);
        }
        let accept = match Accept::parse(message) {
            Ok(accept) => accept,
            Err(error) => return self.fail(error.into()),
        };
        let contact = accept.extension.contact();
        let peer = match PeerEndpoint::new(&accept.endpoint, contact, self.local.mtu) {
            Ok(peer) => peer,
            Err(error) => return self.fail(error),
        };
        let terms = match self.terms(&accept.extension) {
            Ok(terms) => terms,
            Err(diagnosis) => return self.decline_as(header.version, diagnosis),
        };
        let peer_receives = self.peer_receives(&terms, accept.endpoint.credits);
        let agreed = Agreed {
            terms,
            peer,
            peer_receives,
            peer_host: PeerHost::new(&accept.extension),
        };
        let attachment = match accept.extension {
            Extension::V2 {
                first: Some(first), ..
            } => first.attachment,
            Extension::V1 { .. } | Extension::V2 { first: None, .. } => Attachment::Direct,
        };
        self.state = State::Talking(ClientSide(Step::Preparing { agreed, attachment }));
        self.ask(agreed);
    }

    /// The server's terms, or why we cannot take them.
    fn terms(&self, extension: &Extension) -> Result<Terms, Diagnosis> {
        let mut terms = Terms {
            version: extension.version(),
            contact: extension.contact(),
            eid: None,
            release: 0,
            max_conns: DEFAULT_MAX_CONNS,
            max_links: LINKS_MAX,
            options: VendorOptions::NONE,
        };
        match extension {
            Extension::V1 { .. } => {}
            Extension::V2 { eid, first } => {
                terms.eid = Some(*eid);
                if let Some(first) = first {
                    self.take_first_contact(&mut terms, first)?;
                }
            }
        }
        Ok(terms)
    }

    /// The terms in the first contact extension. Limits are taken as they are, not compared with
    /// our offer.
    fn take_first_contact(&self, terms: &mut Terms, first: &FirstContact) -> Result<(), Diagnosis> {
        if first.release > RELEASE {
            return Err(Diagnosis::RELEASEERR);
        }
        terms.release = first.release;
        if first.release == 0 {
            return Ok(());
        }
        if first.max_conns < MAX_CONNS_LEAST {
            return Err(Diagnosis::MAXCONNERR);
        }
        if !(1..=MAX_LINKS_MOST).contains(&first.max_links) {
            return Err(Diagnosis::MAXLINKERR);
        }
        terms.max_conns = first.max_conns;
        terms.max_links = first.max_links;
        // A word we did not ask for means nothing to us.
        let is_asked = self.local.options.contains(VendorOptions::VALID);
        if is_asked && first.options.contains(VendorOptions::VALID) {
            if !self.local.options.contains(first.options) {
                return Err(Diagnosis::VENDORERR);
            }
            terms.options = first.options;
        }
        Ok(())
    }

    /// Credits are on if the server announced receives and both agreed to count them.
    fn peer_receives(&self, terms: &Terms, credits: u8) -> Option<u8> {
        let is_agreed = terms
            .options
            .contains(VendorOptions::VALID.union(VendorOptions::CREDITS));
        let is_on = is_agreed || self.local.bare_credits == BareCredits::On;
        match terms.contact {
            Contact::First if is_on && credits > 0 => Some(credits),
            Contact::First | Contact::Subsequent => None,
        }
    }
}
