//! Connections that stay on TCP: the bytes go through and the reason is shown.

use std::io::{Read, Write};

use crate::support::wire::{Plain, exchange};
use crate::support::{Appliance, Pair, Place, Shape, forward, listener};

const BYTES: usize = 3 << 20;

/// The one reason shown, which must have a text.
fn only_reason(appliance: &Appliance) -> (String, String) {
    let mut shown = appliance.fallbacks();
    assert_eq!(shown.len(), 1, "{shown:?}");
    let (name, by, text) = shown.remove(0);
    assert!(!text.is_empty());
    (name, by)
}

#[test]
fn a_server_that_is_no_peer_is_reached_over_tcp_and_the_reason_is_shown() {
    let place = Place::new();
    let (target, address) = listener();
    let way = forward("in", "tcp:127.0.0.1:0", &format!("smc:{address}"));
    let a = Appliance::start(&place, "a", &way);
    let client = Plain::connect(a.listens("in"));
    let server = Plain::tcp(target.accept().expect("accept").0);
    exchange(&client, &server, 41, BYTES);
    let (name, by) = only_reason(&a);
    assert_eq!((name.as_str(), by.as_str()), ("PEERNOSMC", "local"));
    assert_eq!(a.stat("fallbacks.total"), 1);
    assert_eq!(a.stat("forward.in.fallbacks"), 1);
    assert_eq!(a.stat("worker.conns_opened"), 0);
}

#[test]
fn appliances_without_a_common_ueid_stay_on_tcp_and_both_show_the_reason() {
    let place = Place::new();
    let (target, address) = listener();
    let out = forward("out", "smc:127.0.0.1:0", &format!("tcp:{address}"));
    // The key stands in the section that the configuration begins with, so it is put there.
    let b = Appliance::start_with(&place, "b", "ueids = [\"OTHER.UEID\"]", &out);
    let way_in = forward(
        "in",
        "tcp:127.0.0.1:0",
        &format!("smc:{}", b.listens("out")),
    );
    let a = Appliance::start(&place, "a", &format!("{}{way_in}", crate::support::PEER));
    let client = Plain::connect(a.listens("in"));
    let server = Plain::tcp(target.accept().expect("accept").0);
    exchange(&client, &server, 43, BYTES);
    let (at_a, by_a) = only_reason(&a);
    let (at_b, by_b) = only_reason(&b);
    assert_eq!((by_a.as_str(), by_b.as_str()), ("peer", "local"));
    assert_eq!(at_a, at_b);
    for appliance in [&a, &b] {
        assert_eq!(appliance.stat("worker.conns_opened"), 0);
        assert_eq!(appliance.stat("fallbacks.total"), 1);
    }
}

#[test]
fn a_plain_client_of_an_smc_listener_is_served_over_tcp_whoever_speaks_first() {
    let (target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    let entry = pair.b.listens("out");
    // The client speaks first.
    let client = Plain::connect(entry);
    (&client)
        .write_all(b"hello, is this a server?")
        .expect("write");
    let server = Plain::tcp(target.accept().expect("accept").0);
    let mut heard = [0; 24];
    (&server).read_exact(&mut heard).expect("read");
    assert_eq!(&heard, b"hello, is this a server?");
    exchange(&client, &server, 45, BYTES);
    // The server speaks first, as those of mail do.
    let client = Plain::connect(entry);
    let server = Plain::tcp(target.accept().expect("accept").0);
    (&server).write_all(b"220").expect("write");
    (&client).read_exact(&mut heard[..3]).expect("read");
    assert_eq!(&heard[..3], b"220");
    exchange(&client, &server, 47, BYTES);
    assert_eq!(pair.b.stat("fallbacks.total"), 2);
    for (name, by, _) in pair.b.fallbacks() {
        assert_eq!((name.as_str(), by.as_str()), ("PEERNOSMC", "peer"));
    }
}
