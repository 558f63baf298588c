//! Entries of repeated tables while they are being read: each key may still be missing.

use std::net::SocketAddr;

use super::values::{Endpoint, PeerPattern, ServiceKind};
use super::{Forward, Peer, Service};

/// A `[[...]]` entry under construction.
pub(super) trait Draft: Default {
    /// What it becomes.
    type Entry;

    /// The finished entry, or the name of a key that is missing.
    fn finish(self) -> Result<Self::Entry, &'static str>;

    /// The way back, for the writer.
    fn of(entry: &Self::Entry) -> Self;
}

#[derive(Default)]
pub(super) struct PeerDraft {
    pub(super) address: Option<PeerPattern>,
}

impl Draft for PeerDraft {
    type Entry = Peer;

    fn finish(self) -> Result<Peer, &'static str> {
        Ok(Peer {
            address: self.address.ok_or("address")?,
        })
    }

    fn of(peer: &Peer) -> PeerDraft {
        PeerDraft {
            address: Some(peer.address),
        }
    }
}

#[derive(Default)]
pub(super) struct ServiceDraft {
    pub(super) kind: Option<ServiceKind>,
    pub(super) listen: Option<SocketAddr>,
}

impl Draft for ServiceDraft {
    type Entry = Service;

    fn finish(self) -> Result<Service, &'static str> {
        Ok(Service {
            kind: self.kind.ok_or("kind")?,
            listen: self.listen.ok_or("listen")?,
        })
    }

    fn of(service: &Service) -> ServiceDraft {
        ServiceDraft {
            kind: Some(service.kind),
            listen: Some(service.listen),
        }
    }
}

#[derive(Default)]
pub(super) struct ForwardDraft {
    pub(super) name: Option<String>,
    pub(super) listen: Option<Endpoint>,
    pub(super) connect: Option<Endpoint>,
}

impl Draft for ForwardDraft {
    type Entry = Forward;

    fn finish(self) -> Result<Forward, &'static str> {
        Ok(Forward {
            name: self.name.ok_or("name")?,
            listen: self.listen.ok_or("listen")?,
            connect: self.connect.ok_or("connect")?,
        })
    }

    fn of(forward: &Forward) -> ForwardDraft {
        ForwardDraft {
            name: Some(forward.name.clone()),
            listen: Some(forward.listen.clone()),
            connect: Some(forward.connect.clone()),
        }
    }
}
