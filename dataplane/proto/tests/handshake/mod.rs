//! Two hosts for the handshake tests, and short ways to drive one side.
#![allow(dead_code, reason = "each test program uses its own part")]

use core::time::Duration;
use std::path::PathBuf;

use pollux_proto::clc::{
    Agreed, BareCredits, Bytes, Candidate, Client, GidRule, Local, LocalEndpoint, MESSAGE_WAIT,
    MaxConns, Outcome, Output, Question, Server, V1Local,
};
use pollux_proto::link::RToken;
use pollux_proto::time::Instant;
use pollux_wire::clc::{
    Accept, Attachment, Confirm, Contact, Decline, IpArea, Proposal, VendorOptions, host_name,
};
use pollux_wire::field::{
    AlertToken, BufferSizeCode, Gid, Mac, MtuCode, PeerId, Psn, Qpn, Rkey, RmbeIndex, Ueid,
};

/// Start of time in every story.
pub(crate) const START: Instant = Instant(77_000_000_000);

/// `START` plus milliseconds.
pub(crate) fn at(ms: u64) -> Instant {
    START.after(Duration::from_millis(ms))
}

pub(crate) fn ueid(name: &str) -> Ueid {
    Ueid::new(name).unwrap()
}

/// Facts of host `n`, version 2 only, as the hosts of the golden captures.
pub(crate) fn local(n: u8) -> Local {
    Local {
        peer_id: PeerId::from_instance(0x5000 + u16::from(n), Mac([0x52, 0x54, 0, 0, 0, n])),
        gid: Gid::from_ipv4([192, 168, 77, n].into()),
        mac: Mac([0x52, 0x54, 0, 0, 0, n]),
        mtu: MtuCode::B1024,
        host_name: host_name("story"),
        ueids: [ueid("SMCV2-TEST-EID")].into_iter().collect(),
        max_conns: MaxConns::COMMON,
        gid_rule: GidRule::Ipv4Mapped,
        options: VendorOptions::NONE,
        bare_credits: BareCredits::Off,
        wait: MESSAGE_WAIT,
        v1: None,
    }
}

/// What version 1 needs, in subnet 192.168.77.0/24.
pub(crate) fn v1(n: u8) -> V1Local {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[15] = n;
    let subnets = IpArea {
        ipv4_subnet: [192, 168, 77, 0],
        ipv4_length: 24,
        ..IpArea::default()
    };
    V1Local {
        gid: Gid(gid),
        subnets,
    }
}

/// Queue pair and RMB of host `n`.
pub(crate) fn own(n: u8) -> LocalEndpoint {
    LocalEndpoint {
        qpn: Qpn::from_low_bits(0x10 + u32::from(n)),
        psn: Psn::from_low_bits(0x1000 * u32::from(n)),
        rtoken: rtoken(n),
        rmbe_index: RmbeIndex::FIRST,
        alert_token: AlertToken::new(u32::from(n)).unwrap(),
        rmbe_size: BufferSizeCode::new(n).unwrap(),
        receives: 64,
        attachment: Attachment::Direct,
    }
}

pub(crate) fn rtoken(n: u8) -> RToken {
    RToken {
        rkey: Rkey(0x100 + u32::from(n)),
        address: 0x7f00_0000_0000 + (u64::from(n) << 20),
    }
}

/// Bytes of one of the golden messages of the wire crate.
pub(crate) fn golden(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/golden");
    let text = std::fs::read_to_string(folder.join(format!("{name}.hex"))).unwrap();
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    let pairs = digits.as_bytes().chunks_exact(2);
    pairs
        .map(|p| u8::from_str_radix(str::from_utf8(p).unwrap(), 16).unwrap())
        .collect()
}

pub(crate) fn sent<Q: std::fmt::Debug>(output: Option<Output<Q>>) -> Bytes {
    match output {
        Some(Output::Send(bytes)) => bytes,
        other => panic!("expected a message, got {other:?}"),
    }
}

pub(crate) fn asked<Q: std::fmt::Debug>(output: Option<Output<Q>>) -> Q {
    match output {
        Some(Output::Ask(question)) => question,
        other => panic!("expected a question, got {other:?}"),
    }
}

pub(crate) fn done<Q: std::fmt::Debug>(output: Option<Output<Q>>) -> Outcome {
    match output {
        Some(Output::Done(outcome)) => outcome,
        other => panic!("expected an outcome, got {other:?}"),
    }
}

pub(crate) fn candidate(server: &mut Server) -> Candidate {
    match asked(server.poll_output()) {
        Question::Choose(candidate) => candidate,
        other @ Question::Connect(_) => panic!("expected a choice, got {other:?}"),
    }
}

pub(crate) fn to_connect(server: &mut Server) -> Agreed {
    match asked(server.poll_output()) {
        Question::Connect(agreed) => agreed,
        other @ Question::Choose(_) => panic!("expected to connect, got {other:?}"),
    }
}

/// A client and the bytes of its Proposal.
pub(crate) fn client(local: Local) -> (Client, Bytes) {
    let mut client = Client::new(local, START);
    let proposal = sent(client.poll_output());
    assert_eq!(client.poll_output(), None);
    (client, proposal)
}

/// A server that has read `proposal`.
pub(crate) fn server(local: Local, proposal: &[u8]) -> Server {
    let mut server = Server::new(local, START);
    server.handle_message(proposal);
    server
}

/// Client and server after the Accept of a contact: the client has been asked to prepare.
pub(crate) struct Met {
    pub(crate) client: Client,
    pub(crate) server: Server,
    pub(crate) candidate: Candidate,
    pub(crate) accept: Accept,
    /// What the client was asked to prepare.
    pub(crate) agreed: Agreed,
}

/// Host 2 calls host 1.
pub(crate) fn meet(of_client: Local, of_server: Local, contact: Contact) -> Met {
    let (mut client, proposal) = client(of_client);
    let mut server = server(of_server, &proposal);
    let candidate = candidate(&mut server);
    server.accept(START, contact, &own(1));
    let accept = sent(server.poll_output());
    client.handle_message(&accept);
    let agreed = asked(client.poll_output());
    let accept = Accept::parse(&accept).unwrap();
    Met {
        client,
        server,
        candidate,
        accept,
        agreed,
    }
}

/// The Confirm of a client that was asked to prepare.
pub(crate) fn confirm(client: &mut Client) -> Confirm {
    client.provide(&own(2));
    Confirm::parse(&sent(client.poll_output())).unwrap()
}

pub(crate) fn bytes_of(emit: impl Fn(&mut [u8]) -> Result<usize, pollux_wire::Error>) -> Vec<u8> {
    let mut out = [0; 1024];
    let len = emit(&mut out).unwrap();
    out[..len].to_vec()
}

pub(crate) fn proposal(bytes: &[u8]) -> Proposal {
    Proposal::parse(bytes).unwrap()
}

pub(crate) fn decline(bytes: &[u8]) -> Decline {
    Decline::parse(bytes).unwrap()
}
