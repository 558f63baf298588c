//! The client: offers, takes the server's choice, confirms it.

use pollux_wire::clc::{
    Accept, Attachment, Confirm, Contact, Decline, Diagnosis, Extension, FirstContact, Form,
    Header, IsmV1, Kind, Oui, PathCode, Proposal, SeidUse, V1Offer, V1Paths, V2Offer, V2Paths,
    VendorOptions, Version,
};
use pollux_wire::field::Gid;

use super::{
    Agreed, BareCredits, DECLINE_WAIT, DEFAULT_MAX_CONNS, HandshakeError, LINKS_MAX, Local,
    LocalEndpoint, MAX_CONNS_LEAST, MESSAGE_WAIT, Outbox, Outcome, Output, PeerEndpoint, RELEASE,
    Terms, Waiting, fallback, sync_of,
};
use crate::diagnosis::DecidedBy;
use crate::time::Instant;

/// Most links a server may ask for; Linux knows no more.
const MAX_LINKS_MOST: u8 = 2;

/// One handshake from the client's side. See the [module text](super) for how to drive it.
#[derive(Clone, Debug)]
pub struct Client {
    local: Local,
    state: State,
    outbox: Outbox<Agreed>,
}

#[derive(Clone, Debug)]
enum State {
    /// Proposal sent.
    AcceptDue { until: Instant },
    /// The owner was asked to prepare.
    Preparing { accept: Accept, agreed: Agreed },
    /// Confirm of a first contact sent; the link is being confirmed.
    LinkDue { agreed: Agreed },
    /// The link failed; a Decline may explain it.
    DeclineDue {
        until: Instant,
        version: Version,
        diagnosis: Diagnosis,
    },
    /// The outcome was put out.
    Done,
}

impl Client {
    /// Starts a handshake: the first order sends the Proposal.
    ///
    /// Call it only when the peer is known to speak SMC, by the TCP option or by configuration. If
    /// `local` has nothing to offer, the orders are a Decline (NOSMCDEV) and the fallback, as in
    /// Linux.
    #[must_use]
    pub fn new(local: Local, now: Instant) -> Client {
        let state = State::AcceptDue {
            until: now.after(MESSAGE_WAIT),
        };
        let mut client = Client {
            local,
            state,
            outbox: Outbox::new(),
        };
        match client.proposal() {
            Some(proposal) => client.outbox.send(|out| proposal.emit(out)),
            None => client.end_with_decline(Version::V1, Diagnosis::NOSMCDEV),
        }
        client
    }

    /// The next order, until there is none. [`Output::Ask`] carries what the server chose: on first
    /// contact make a queue pair, bring it to the peer's side, post its receives, and register an
    /// RMB; on subsequent contact find the link group by peer id, GID and QPN and confirm the RMB's
    /// key there. Then call [`Client::provide`] or [`Client::decline`]; with [`Diagnosis::SYNCERR`]
    /// if there is no such group.
    pub fn poll_output(&mut self) -> Option<Output<Agreed>> {
        self.outbox.take()
    }

    /// When [`Client::handle_timeout`] is due.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::AcceptDue { until } | State::DeclineDue { until, .. } => Some(until),
            State::Preparing { .. } | State::LinkDue { .. } | State::Done => None,
        }
    }

    /// One whole message came from the server.
    pub fn handle_message(&mut self, message: &[u8]) {
        let header = match Header::parse(message) {
            Ok(header) => header,
            Err(error) => return self.fail(error.into()),
        };
        if header.kind == Kind::Decline {
            return self.on_decline(message);
        }
        match self.state {
            State::AcceptDue { .. } if header.kind == Kind::Accept => {
                self.on_accept(&header, message);
            }
            State::AcceptDue { .. } => self.fail_out_of_turn(header.kind, Waiting::Accept),
            State::Preparing { .. } | State::LinkDue { .. } | State::DeclineDue { .. } => {
                self.fail_out_of_turn(header.kind, Waiting::Decline);
            }
            State::Done => {}
        }
    }

    /// Time has come to [`Client::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.state {
            State::AcceptDue { until } if until <= now => {
                self.fail(HandshakeError::TimedOut {
                    waiting: Waiting::Accept,
                });
            }
            State::DeclineDue {
                until,
                version,
                diagnosis,
            } if until <= now => {
                self.end_with_decline(version, diagnosis);
            }
            State::AcceptDue { .. }
            | State::DeclineDue { .. }
            | State::Preparing { .. }
            | State::LinkDue { .. }
            | State::Done => {}
        }
    }

    /// The server closed the TCP stream, or it broke.
    pub fn handle_end(&mut self) {
        let waiting = match self.state {
            State::AcceptDue { .. } => Waiting::Accept,
            State::Preparing { .. } | State::LinkDue { .. } | State::DeclineDue { .. } => {
                Waiting::Decline
            }
            State::Done => return,
        };
        self.fail(HandshakeError::Ended { waiting });
    }

    /// Answers the question: sends the Confirm. Without effect if the handshake ended meanwhile.
    pub fn provide(&mut self, own: &LocalEndpoint) {
        let State::Preparing { accept, agreed } = &self.state else {
            return;
        };
        let agreed = *agreed;
        let terms = agreed.terms;
        if let Extension::V2 {
            first: Some(theirs),
            ..
        } = &accept.extension
            && theirs.attachment == Attachment::Indirect
            && own.attachment == Attachment::Direct
        {
            return self.end_with_decline(terms.version, Diagnosis::NOINDIRECT);
        }
        let mut endpoint = self.local.endpoint(terms.version, own, agreed.peer.mtu);
        if agreed.peer_receives.is_some() {
            endpoint.credits = own.receives;
        }
        let mut gids = arrayvec::ArrayVec::new();
        let extension = match &accept.extension {
            Extension::V1 { contact } => Extension::V1 { contact: *contact },
            Extension::V2 { eid, first: None } => Extension::V2 {
                eid: *eid,
                first: None,
            },
            Extension::V2 {
                eid,
                first: Some(_),
            } => {
                gids.push(endpoint.gid);
                let first = self.local.first_contact(&terms, own);
                Extension::V2 {
                    eid: *eid,
                    first: Some(first),
                }
            }
        };
        let confirm = Confirm {
            endpoint,
            extension,
            gids,
        };
        self.outbox.send(|out| confirm.emit(out));
        match terms.contact {
            Contact::First => self.state = State::LinkDue { agreed },
            Contact::Subsequent => self.finish(Outcome::Connected(agreed)),
        }
    }

    /// Refuses, in answer to the question or while the link is being confirmed. Without effect if
    /// the handshake ended meanwhile.
    pub fn decline(&mut self, diagnosis: Diagnosis) {
        match self.state {
            State::AcceptDue { .. } => self.end_with_decline(Version::V1, diagnosis),
            State::Preparing { agreed, .. } | State::LinkDue { agreed } => {
                self.end_with_decline(agreed.terms.version, diagnosis);
            }
            State::DeclineDue { version, .. } => self.end_with_decline(version, diagnosis),
            State::Done => {}
        }
    }

    /// The link of a first contact was confirmed: the handshake is complete.
    pub fn handle_link_confirmed(&mut self) {
        if let State::LinkDue { agreed } = self.state {
            self.finish(Outcome::Connected(agreed));
        }
    }

    /// The link of a first contact was not confirmed. Waits a second for the server's Decline, then
    /// sends one with `diagnosis`.
    pub fn handle_link_failed(&mut self, now: Instant, diagnosis: Diagnosis) {
        if let State::LinkDue { agreed } = self.state {
            let (until, version) = (now.after(DECLINE_WAIT), agreed.terms.version);
            self.state = State::DeclineDue {
                until,
                version,
                diagnosis,
            };
        }
    }

    /// Whether the outcome is known; it may still lie in [`Client::poll_output`].
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    fn finish(&mut self, outcome: Outcome) {
        self.state = State::Done;
        self.outbox.finish(outcome);
    }

    fn fail(&mut self, error: HandshakeError) {
        if !self.is_done() {
            self.finish(Outcome::Failed(error));
        }
    }

    fn fail_out_of_turn(&mut self, got: Kind, waiting: Waiting) {
        self.fail(HandshakeError::OutOfTurn { got, waiting });
    }

    fn end_with_decline(&mut self, version: Version, diagnosis: Diagnosis) {
        let decline = self.local.decline(version, diagnosis);
        self.outbox.send(|out| decline.emit(out));
        self.finish(fallback(diagnosis, DecidedBy::Local, sync_of(diagnosis)));
    }

    fn on_decline(&mut self, message: &[u8]) {
        match Decline::parse(message) {
            Ok(_) if self.is_done() => {}
            Ok(Decline {
                diagnosis, sync, ..
            }) => {
                self.finish(fallback(diagnosis, DecidedBy::Peer, sync));
            }
            Err(error) => self.fail(error.into()),
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
            return self.end_with_decline(header.version, Diagnosis::MODEUNSUPP);
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
            Err(diagnosis) => return self.end_with_decline(header.version, diagnosis),
        };
        let peer_receives = self.peer_receives(&terms, accept.endpoint.credits);
        let agreed = Agreed {
            terms,
            peer,
            peer_receives,
        };
        self.state = State::Preparing { accept, agreed };
        self.outbox.put(Output::Ask(agreed));
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
