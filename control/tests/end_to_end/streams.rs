//! Plain sockets at both ends, SMC in the middle: bytes, half closes and resets go through.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;

use crate::support::wire::{Plain, exchange, expect_reset, read_stream, write_stream};
use crate::support::{Pair, Place, Shape, listener};

/// Bytes each way, unless the environment asks for another number of MiB: `cargo xtask soak`
/// sends 1 GiB.
fn stream_bytes() -> usize {
    let mib = std::env::var("POLLUX_STREAM_MIB").ok();
    mib.map_or(64, |mib| mib.parse().expect("a number of MiB")) << 20
}

fn tcp_shape(target: SocketAddr, ring: &str) -> Shape<'_> {
    Shape {
        ring,
        ..Shape::to(target)
    }
}

fn both_ways(ring: &str) {
    let (target, address) = listener();
    let pair = Pair::start(&tcp_shape(address, ring));
    let client = Plain::connect(pair.entry());
    let server = Plain::tcp(target.accept().expect("accept").0);
    let size = stream_bytes();
    exchange(&client, &server, 1, size);
    drop((client, server));
    pair.a.until_stat("conns.open", 0);
    pair.b.until_stat("conns.open", 0);
    pair.assert_accelerated();
    for (appliance, forward) in [(&pair.a, "in"), (&pair.b, "out")] {
        let stats = appliance.stats();
        for direction in ["bytes_to_target", "bytes_to_client"] {
            let bytes = stats[&format!("forward.{forward}.{direction}")];
            assert_eq!(bytes, size as u64, "{forward} {direction}");
        }
        assert_eq!(stats[&format!("forward.{forward}.resets")], 0);
        assert_eq!(stats["conns.reset"], 0);
    }
}

#[test]
fn random_bytes_both_ways_at_once_arrive_whole_over_rings_of_16k() {
    both_ways("16K");
}

#[test]
fn random_bytes_both_ways_at_once_arrive_whole_over_rings_of_64k() {
    both_ways("64K");
}

#[test]
fn an_answer_after_the_end_of_the_request_arrives_in_either_direction() {
    let (target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    for asked_by_client in [true, false] {
        for (request, answer) in [(0, 1), (1, 0), (1, 3 << 20), (3 << 20, 1), (70_001, 70_003)] {
            let client = Plain::connect(pair.entry());
            let server = Plain::tcp(target.accept().expect("accept").0);
            let (asking, answering) = if asked_by_client {
                (&client, &server)
            } else {
                (&server, &client)
            };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    write_stream(asking, 5, request).expect("write");
                    asking.end();
                });
                assert_eq!(read_stream(answering, 5).expect("read"), request);
            });
            // The asker's direction has ended everywhere; only now the answer begins.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    write_stream(answering, 6, answer).expect("write");
                    answering.end();
                });
                assert_eq!(read_stream(asking, 6).expect("read"), answer);
            });
        }
    }
    pair.a.until_stat("conns.open", 0);
    pair.b.until_stat("conns.open", 0);
    pair.assert_accelerated();
    assert_eq!(pair.a.stat("conns.reset"), 0);
    assert_eq!(pair.b.stat("conns.reset"), 0);
}

#[test]
fn a_reset_arrives_as_a_reset_in_either_direction() {
    let (target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    for reset_by_client in [true, false] {
        for bytes in [0, 1, 200_000] {
            let client = Plain::connect(pair.entry());
            let server = Plain::tcp(target.accept().expect("accept").0);
            let (gone, left) = if reset_by_client {
                (client, server)
            } else {
                (server, client)
            };
            std::thread::scope(|scope| {
                scope.spawn(|| read_exactly(&left, bytes));
                write_stream(&gone, 7, bytes).expect("write");
            });
            gone.reset();
            expect_reset(&left);
        }
    }
    pair.a.until_stat("conns.open", 0);
    pair.b.until_stat("conns.open", 0);
    pair.assert_accelerated();
    for (appliance, forward) in [(&pair.a, "in"), (&pair.b, "out")] {
        let stats = appliance.stats();
        // One that was reset before the gateway knew that it was connected counts as failed.
        let resets = stats[&format!("forward.{forward}.resets")];
        let failed = stats[&format!("forward.{forward}.failed")];
        assert_eq!(resets + failed, 6, "{forward}: {stats:#?}");
    }
}

fn read_exactly(mut from: &Plain, bytes: usize) {
    from.read_exact(&mut vec![0; bytes]).expect("read");
}

#[test]
fn a_target_that_is_reset_while_it_is_flooded_resets_the_client() {
    let (target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    let client = Plain::connect(pair.entry());
    let server = Plain::tcp(target.accept().expect("accept").0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // More than all rings and socket buffers on the way hold.
            let ended = write_stream(&client, 8, 1 << 30).expect_err("the target is gone");
            let kind = ended.kind();
            let gone = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&kind);
            assert!(gone, "{ended}");
        });
        read_exactly(&server, 5 << 20);
        server.reset();
    });
    drop(client);
    pair.a.until_stat("conns.open", 0);
    pair.b.until_stat("conns.open", 0);
}

#[test]
fn unix_sockets_at_both_ends_carry_streams_and_half_closes() {
    let place = Place::new();
    let target = UnixListener::bind(place.path("target.sock")).expect("bind");
    let entry = place.path("entry.sock");
    let shape = Shape {
        ring: "16K",
        listen: format!("unix:{}", entry.display()),
        target: format!("unix:{}", place.path("target.sock").display()),
    };
    let pair = Pair::start_in(place, &shape, "", "");
    for seed in [21, 31] {
        let client = Plain::connect_unix(&entry);
        let server = Plain::unix(target.accept().expect("accept").0);
        exchange(&client, &server, seed, 4 << 20);
    }
    pair.a.until_stat("conns.open", 0);
    pair.b.until_stat("conns.open", 0);
    pair.assert_accelerated();
}

#[test]
fn hundreds_of_connections_share_the_link_and_each_gets_its_own_bytes() {
    const CONNS: usize = 200;
    const BYTES: usize = 40_000;
    let (target, address) = listener();
    let pair = Pair::start(&tcp_shape(address, "16K"));
    let entry = pair.entry();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::scope(|servers| {
                for _ in 0..CONNS {
                    let server = Plain::tcp(target.accept().expect("accept").0);
                    servers.spawn(move || echo(&server));
                }
            });
        });
        let clients: Vec<Plain> = (0..CONNS).map(|_| Plain::connect(entry)).collect();
        for (client, seed) in clients.into_iter().zip(100..) {
            scope.spawn(move || {
                std::thread::scope(|both| {
                    both.spawn(|| {
                        write_stream(&client, seed, BYTES).expect("write");
                        client.end();
                    });
                    assert_eq!(read_stream(&client, seed).expect("read"), BYTES);
                });
            });
        }
    });
    pair.a.until_stat("conns.open", 0);
    pair.b.until_stat("conns.open", 0);
    pair.assert_accelerated();
    assert_eq!(pair.a.stat("conns.reset"), 0);
    let groups = pair.a.json(&["show", "groups"]);
    assert_eq!(groups.as_array().map(Vec::len), Some(1), "{groups}");
}

fn echo(server: &Plain) {
    let mut bytes = [0; 8192];
    let (mut from, mut to) = (server, server);
    loop {
        let count = from.read(&mut bytes).expect("read");
        if count == 0 {
            server.end();
            return;
        }
        to.write_all(&bytes[..count]).expect("write");
    }
}
