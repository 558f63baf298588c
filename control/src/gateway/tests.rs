//! Stories of forwarded connections, over a small appliance and over TCP.

// The appliance that the attach library is tested with; not everything of it is used here.
#[allow(dead_code, missing_docs, unreachable_pub)]
#[path = "../../../dataplane/attach/tests/attach/appliance.rs"]
#[rustfmt::skip]
mod appliance;
mod shortage;
mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use self::appliance::{Appliance, Plan, Policy, Poll};
use self::support::*;
use super::GatewayError;
use super::listen::Front;
use super::socket::{Dialed, Socket, dial};
use crate::syn_marks::SynMarks;

/// Whether a socket takes bytes within the time in which a chain that moves at all would make room.
fn may_be_written(socket: &TcpStream) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    let patience = Timespec::try_from(Duration::from_millis(100)).expect("a time");
    rustix::event::poll(&mut fds, Some(&patience)).expect("poll") > 0
}

#[test]
fn bytes_and_half_closes_pass_both_ways() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (client, server) = chain.connect();
        let total = 700_000;
        exchange(&client, &server, 1, total);
        for figures in chain.settle() {
            assert_eq!(
                (figures.accepted, figures.failed, figures.resets),
                (1, 0, 0)
            );
            assert_eq!(
                (figures.bytes_to_target, figures.bytes_to_client),
                (total, total)
            );
            assert_eq!(figures.fallbacks, u64::from(policy == Policy::Fallback));
        }
        if policy == Policy::Pair {
            let report = chain.appliance.report();
            assert_eq!(report.violations, []);
        }
    }
}

#[test]
fn the_end_of_one_direction_leaves_the_other_open() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        for client_first in [true, false] {
            let (client, server) = chain.connect();
            let (first, second) = if client_first {
                (&client, &server)
            } else {
                (&server, &client)
            };
            write_stream(first, 3, 1000).expect("write");
            first.end();
            assert_eq!(read_stream(second, 3).expect("read"), 1000);
            // The first direction is over at both ends before the second one begins.
            write_stream(second, 4, 200_000).expect("write");
            second.end();
            assert_eq!(read_stream(first, 4).expect("read"), 200_000);
        }
        for figures in chain.settle() {
            assert_eq!(figures.resets, 0);
        }
    }
}

#[test]
fn small_messages_are_not_held_back() {
    let target = TcpListener::bind("127.0.0.1:0").expect("listener");
    for (listen, connect) in [("tcp", "smc"), ("smc", "tcp")] {
        let connect = format!("{connect}:{}", address(&target));
        let marks = SynMarks::default();
        let front = Front::bind(&forward(&format!("{listen}:127.0.0.1:0"), &connect), &marks);
        let front = front.expect("listener");
        let at = front.listen.address().expect("address");
        let _client = TcpStream::connect(at).expect("connect");
        let accepted = loop {
            match front.accept() {
                Ok((Socket::Tcp(tcp), _)) => break tcp,
                Ok((other, _)) => panic!("{other:?}"),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        };
        assert!(accepted.nodelay().expect("option"));
        match dial(&front.connect, &marks).expect("connect") {
            Dialed::Now(Socket::Tcp(tcp)) | Dialed::Pending(Socket::Tcp(tcp)) => {
                assert!(tcp.nodelay().expect("option"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_empty_connection_ends_as_one() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (client, server) = chain.connect();
        drop(client);
        assert_eq!(read_stream(&server, 0).expect("read"), 0);
        drop(server);
        for figures in chain.settle() {
            assert_eq!((figures.resets, figures.bytes_to_target), (0, 0));
        }
    }
}

#[test]
fn a_reset_of_the_client_reaches_the_server() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (mut client, server) = chain.connect();
        client.write_all(b"so far").expect("write");
        let mut first = [0; 6];
        (&server).read_exact(&mut first).expect("read");
        reset(client);
        assert_eq!(read_to_reset(&server), 0);
        for figures in chain.settle() {
            assert_eq!(figures.resets, 1);
        }
    }
}

#[test]
fn a_reset_of_the_server_reaches_the_client() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (client, server) = chain.connect();
        assure(&client, &server);
        reset(server);
        assert_eq!(read_to_reset(&client), 0);
        for figures in chain.settle() {
            assert_eq!(figures.resets, 1);
        }
    }
}

#[test]
fn a_reset_behind_a_half_close_reaches_the_other_side() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (client, server) = chain.connect();
        client.end();
        assert_eq!(read_stream(&server, 0).expect("read"), 0);
        reset(client);
        // No byte has to be on its way for it.
        for figures in chain.settle() {
            assert_eq!(figures.resets, 1);
        }
        let mut error = None;
        while error.is_none() {
            error = (&server).write_all(&[1; 1000]).err();
        }
        let kind = error.expect("an error").kind();
        assert!(
            matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            "{kind}"
        );
    }
}

#[test]
fn a_reset_passes_a_reader_that_takes_nothing() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (client, server) = chain.connect();
        client.set_nonblocking(true).expect("mode");
        // Everything between the two ends is filled: the socket takes nothing any more.
        let mut written = 0;
        while may_be_written(&client) {
            match (&client).write(&[7; 65536]) {
                Ok(bytes) => written += bytes as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
        reset(client);
        chain.settle();
        assert!(read_to_reset(&server) <= written);
    }
}

#[test]
fn a_slow_reader_is_felt_by_the_writer() {
    const TOTAL: u64 = 96 << 20;
    // What the kernel may keep in the sockets of up to three connections.
    const AHEAD_MAX: u64 = 48 << 20;
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (client, server) = chain.connect();
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let piece = vec![5; 1 << 16];
                for _ in 0..TOTAL >> 16 {
                    (&client).write_all(&piece).expect("write");
                    written.fetch_add(1 << 16, Ordering::Relaxed);
                }
                client.end();
            });
            let mut buffer = vec![0; 1 << 16];
            let mut read = 0;
            loop {
                let ahead = written.load(Ordering::Relaxed).saturating_sub(read);
                assert!(ahead <= AHEAD_MAX, "{ahead} bytes are on the way");
                match (&server).read(&mut buffer).expect("read") {
                    0 => break,
                    bytes => read += bytes as u64,
                }
            }
            assert_eq!(read, TOTAL);
        });
        drop(server);
        let [near, far] = chain.settle();
        assert_eq!((near.bytes_to_target, far.bytes_to_target), (TOTAL, TOTAL));
    }
}

#[test]
fn a_hundred_connections_keep_their_bytes_apart() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        let connect = |_| TcpStream::connect(listening(&chain.near)).expect("connect");
        let clients: Vec<TcpStream> = (0..100).map(connect).collect();
        std::thread::scope(|scope| {
            for (client, seed) in clients.iter().zip(0..) {
                scope.spawn(move || {
                    write_stream(client, seed, 40_000 + seed).expect("write");
                    client.end();
                });
                scope.spawn(move || {
                    assert_eq!(read_stream(client, seed).expect("read"), 40_000 + seed);
                });
            }
            for _ in 0..100 {
                let (server, _) = chain.target.accept().expect("accept");
                scope.spawn(move || {
                    std::io::copy(&mut &server, &mut &server).expect("echo");
                    server.end();
                });
            }
        });
        drop(clients);
        for figures in chain.settle() {
            assert_eq!(
                (figures.accepted, figures.resets, figures.failed),
                (100, 0, 0)
            );
            let bytes: u64 = (0..100).map(|seed| 40_000 + seed).sum();
            assert_eq!(
                (figures.bytes_to_target, figures.bytes_to_client),
                (bytes, bytes)
            );
        }
    }
}

#[test]
fn a_busy_connection_does_not_starve_a_quiet_one() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (busy, sink) = chain.connect();
        let (quiet, answering) = chain.connect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let piece = vec![1; 1 << 18];
                while !done.load(Ordering::Relaxed) {
                    (&busy).write_all(&piece).expect("write");
                }
                busy.end();
            });
            scope.spawn(|| std::io::copy(&mut &sink, &mut std::io::sink()).expect("read"));
            scope.spawn(|| {
                let mut message = [0; 32];
                while (&answering).read_exact(&mut message).is_ok() {
                    (&answering).write_all(&message).expect("write");
                }
            });
            for round in 0..200_u8 {
                let mut message = [round; 32];
                (&quiet).write_all(&message).expect("write");
                (&quiet).read_exact(&mut message).expect("read");
                assert_eq!(message, [round; 32]);
            }
            quiet.end();
            done.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_worker_that_always_sleeps_loses_nothing() {
    let chain = Chain::with(Plan {
        poll: Poll::Sleepy,
        sndbuf_bytes: 4096,
        rmbe_bytes: 4096,
        move_max: 1500,
        ..plan(Policy::Pair)
    });
    let (client, server) = chain.connect();
    exchange(&client, &server, 8, 150_000);
    chain.settle();
}

#[test]
fn unix_sockets_are_forwarded_like_tcp() {
    for policy in WAYS {
        let folder = tempfile::tempdir().expect("folder");
        let (listen, connect) = (folder.path().join("listen"), folder.path().join("connect"));
        let target = UnixListener::bind(&connect).expect("listener");
        let appliance = Appliance::start(plan(policy));
        let far = start(&appliance, "smc:127.0.0.1:0", &unix(&connect));
        let middle = format!("smc:{}", listening(&far));
        let near = start(&appliance, &unix(&listen), &middle);
        let mode = std::fs::metadata(&listen)
            .expect("socket")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let client = UnixStream::connect(&listen).expect("connect");
        let (server, _) = target.accept().expect("accept");
        exchange(&client, &server, 5, 600_000);
        until(&near, |figures| figures.active == 0);
        until(&far, |figures| figures.active == 0);

        // The next one is given up by the client with an answer unread.
        let client = UnixStream::connect(&listen).expect("connect");
        let (mut server, _) = target.accept().expect("accept");
        server.write_all(b"answer").expect("write");
        until(&near, |figures| figures.bytes_to_client == 600_006);
        drop(client);
        let ended = server.read(&mut [0; 10]);
        assert!(
            matches!(ended, Ok(0)),
            "a closed Unix socket has no other way: {ended:?}"
        );
        assert_eq!(until(&near, |figures| figures.active == 0).resets, 1);
        near.stop();
        assert!(!listen.exists());
    }
}

#[test]
fn a_target_that_is_not_there_resets_the_client() {
    for policy in WAYS {
        let appliance = Appliance::start(plan(policy));
        let (nobody, _held) = closed_port();
        let missing = unix(Path::new("/no/such/socket"));
        for connect in [format!("tcp:{nobody}"), missing] {
            let far = start(&appliance, "smc:127.0.0.1:0", &connect);
            let middle = format!("smc:{}", listening(&far));
            let near = start(&appliance, "tcp:127.0.0.1:0", &middle);
            let client = TcpStream::connect(listening(&near)).expect("connect");
            assert_eq!(read_to_reset(&client), 0);
            let failed = until(&far, |figures| figures.failed == 1 && figures.active == 0);
            assert_eq!(failed.resets, 0);
            // The reset may come while the stream to the far gateway is still being upgraded.
            let ended = until(&near, |figures| figures.active == 0);
            assert_eq!(ended.resets + ended.failed, 1, "{ended:?}");
        }
    }
}

#[test]
fn a_peer_that_is_not_there_resets_the_client() {
    let appliance = Appliance::start(plan(Policy::Pair));
    let (nobody, _held) = closed_port();
    let near = start(&appliance, "tcp:127.0.0.1:0", &format!("smc:{nobody}"));
    let client = TcpStream::connect(listening(&near)).expect("connect");
    assert_eq!(read_to_reset(&client), 0);
    let figures = until(&near, |figures| figures.active == 0);
    assert_eq!(
        (figures.accepted, figures.failed, figures.resets),
        (1, 1, 0)
    );
}

#[test]
fn an_upgrade_that_fails_resets_the_client() {
    let chain = Chain::new(Policy::Fail);
    let client = TcpStream::connect(listening(&chain.near)).expect("connect");
    assert_eq!(read_to_reset(&client), 0);
    for gateway in [&chain.near, &chain.far] {
        let failed = until(gateway, |figures| {
            figures.failed == 1 && figures.active == 0
        });
        assert_eq!(failed.resets, 0);
    }
}

#[test]
fn stop_resets_what_exists_and_refuses_what_comes() {
    for policy in WAYS {
        let chain = Chain::new(policy);
        let (client, server) = chain.connect();
        assure(&client, &server);
        let at = listening(&chain.near);
        chain.near.stop();
        assert_eq!(read_to_reset(&client), 0);
        assert_eq!(read_to_reset(&server), 0);
        let refused = TcpStream::connect(at).expect_err("nobody listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        chain.far.stop();
    }
}

#[test]
fn stop_does_not_need_the_appliance() {
    // The first is stopped while it waits for an answer to Hello, the second while a client waits
    // for an upgrade.
    let appliance = Appliance::start(plan(Policy::Silent));
    let thaw = appliance.freeze();
    start(&appliance, "tcp:127.0.0.1:0", "smc:127.0.0.1:1").stop();
    drop(thaw);
    let chain = Chain::new(Policy::Silent);
    let client = TcpStream::connect(listening(&chain.near)).expect("connect");
    until(&chain.near, |figures| figures.accepted == 1);
    let thaw = chain.appliance.freeze();
    chain.near.stop();
    assert_eq!(read_to_reset(&client), 0);
    chain.far.stop();
    drop(thaw);
}

#[test]
fn the_death_of_the_appliance_resets_only_what_depends_on_it() {
    for policy in WAYS {
        let mut chain = Chain::new(policy);
        let (client, server) = chain.connect();
        assure(&client, &server);
        chain.appliance.kill();
        if policy == Policy::Pair {
            assert_eq!(read_to_reset(&client), 0);
            assert_eq!(read_to_reset(&server), 0);
        } else {
            exchange(&client, &server, 6, 100_000);
        }
        chain.settle();
    }
}

#[test]
fn an_appliance_that_comes_later_is_joined_and_joined_again() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("attach.sock");
    let echo = TcpListener::bind("127.0.0.1:0").expect("listener");
    let connect = format!("smc:{}", address(&echo));
    let gateway = start_at(&path, &[forward("tcp:127.0.0.1:0", &connect)]);
    let gateway = gateway.expect("gateway");
    for round in 1..=2 {
        // The kernel takes the connection, the gateway does when it has joined.
        let client = TcpStream::connect(listening(&gateway)).expect("connect");
        let appliance = Appliance::start(plan(Policy::Echo));
        std::os::unix::fs::symlink(appliance.path(), &path).expect("link");
        write_stream(&client, round, 1000).expect("write");
        client.end();
        assert_eq!(read_stream(&client, round).expect("read"), 1000);
        let held = TcpStream::connect(listening(&gateway)).expect("connect");
        assure(&held, &held);
        assert_eq!(figures(&gateway).accepted, 2 * round);
        std::fs::remove_file(&path).expect("link");
        drop(appliance);
        // By then the gateway knows.
        assert_eq!(read_to_reset(&held), 0);
    }
}

#[test]
fn an_address_in_use_is_refused_with_the_process_that_has_it() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("listener");
    let at = address(&taken);
    let refused = start_at(
        Path::new("/no/such/appliance"),
        &[forward(&format!("tcp:{at}"), "smc:127.0.0.1:1")],
    );
    assert_eq!(
        refused.expect_err("in use").to_string(),
        format!(
            "forward \"tcp:{at} to smc:127.0.0.1:1\": {at} is in use by process {}; stop that \
             program, or choose another address with forward.listen",
            std::process::id()
        )
    );
}

#[test]
fn a_path_in_use_is_refused_and_a_stale_one_taken_over() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("s");
    let forwards = [forward(&unix(&path), "smc:127.0.0.1:1")];
    let start = || start_at(Path::new("/no/such/appliance"), &forwards);
    let listener = UnixListener::bind(&path).expect("listener");
    let refused = start().expect_err("in use");
    let own = std::process::id();
    assert!(
        matches!(refused, GatewayError::PathInUse { pid: Some(pid), .. } if pid == own),
        "{refused}"
    );
    drop(listener);
    start().expect("stale").stop();
}

#[test]
fn a_forward_without_smc_is_refused() {
    for (listen, connect) in [
        ("tcp:127.0.0.1:0", "tcp:127.0.0.1:1"),
        ("tcp:127.0.0.1:0", "unix:/s"),
        ("smc:127.0.0.1:0", "smc:127.0.0.1:1"),
    ] {
        let forwards = [forward(listen, connect)];
        let refused = start_at(Path::new("/no/such/appliance"), &forwards);
        assert!(
            matches!(refused, Err(GatewayError::Ends { .. })),
            "{listen} to {connect}"
        );
    }
}

#[test]
fn forwards_of_one_gateway_are_counted_apart() {
    let appliance = Appliance::start(plan(Policy::Echo));
    let peer = TcpListener::bind("127.0.0.1:0").expect("listener");
    let connect = format!("smc:{}", address(&peer));
    let forwards = [
        forward("tcp:127.0.0.1:0", &connect),
        forward("tcp:[::1]:0", &connect),
    ];
    let gateway = start_at(appliance.path(), &forwards).expect("gateway");
    let at: Vec<_> = gateway
        .listening()
        .filter_map(|endpoint| endpoint.address())
        .collect();
    let client = TcpStream::connect(at[1]).expect("connect");
    write_stream(&client, 9, 10).expect("write");
    client.end();
    assert_eq!(read_stream(&client, 9).expect("read"), 10);
    until(&gateway, |second| second.bytes_to_client == 10);
    let [first, second]: [_; 2] = gateway.figures().try_into().expect("two");
    assert_eq!(
        (first.name, second.name),
        (forwards[0].name.clone(), forwards[1].name.clone())
    );
    assert_eq!((first.accepted, second.accepted), (0, 1));
    assert_eq!((first.bytes_to_client, second.bytes_to_client), (0, 10));
}
