//! Streams between two programs: every byte, in order, and the ways of ending.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use pollux_attach::client::{Blocking, NoDelay, Session, SessionOptions, Stream};
use pollux_attach::shared::SlotState;

use crate::appliance::{Appliance, Plan, Policy, Poll};
use crate::support::{
    byte_at, echo, options, pair, pair_in, read_stream, session, sleepy, tcp_pair, write_stream,
};

/// Both directions at once, all rings wrapping, all sizes odd.
fn transfer(plan: Plan, options: &SessionOptions, total: u64, piece_max: u64) {
    let (appliance, client, server) = pair(plan, options);
    std::thread::scope(|scope| {
        for (seed, writer, reader) in [(1, &client, &server), (2, &server, &client)] {
            scope.spawn(move || {
                write_stream(writer, seed, total, piece_max).expect("write");
                writer.shutdown(Shutdown::Write).expect("shutdown");
            });
            scope.spawn(move || {
                assert_eq!(read_stream(reader, seed, piece_max).expect("read"), total);
            });
        }
    });
    assert_eq!(appliance.report().violations, []);
}

#[test]
fn small_rings_wrap_and_both_streams_arrive() {
    let plan = Plan {
        sndbuf_bytes: 4096,
        rmbe_bytes: 4096,
        move_max: 777,
        ..Plan::default()
    };
    transfer(plan, &options(), 1_000_000, 3000);
}

#[test]
fn messages_in_a_line_and_messages_in_the_ring_keep_their_order() {
    let plan = Plan {
        sndbuf_bytes: 4096,
        rmbe_bytes: 8192,
        ..Plan::default()
    };
    transfer(plan, &options(), 200_000, 64);
}

#[test]
fn large_copies_go_without_the_lock_and_arrive() {
    let plan = Plan {
        sndbuf_bytes: 32768,
        rmbe_bytes: 65536,
        ..Plan::default()
    };
    transfer(plan, &options(), 5_000_000, 100_000);
}

#[test]
fn two_sleepers_wake_each_other_for_every_piece() {
    let plan = Plan {
        poll: Poll::Sleepy,
        sndbuf_bytes: 4096,
        ..Plan::default()
    };
    transfer(plan, &sleepy(), 100_000, 2000);
}

#[test]
fn one_core_is_enough() {
    std::thread::spawn(|| {
        // The appliance's thread and all others inherit the core.
        let mut cores = rustix::thread::CpuSet::new();
        let allowed = rustix::thread::sched_getaffinity(None).expect("cores");
        let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|&core| allowed.is_set(core));
        cores.set(first.expect("a core"));
        rustix::thread::sched_setaffinity(None, &cores).expect("pin");
        let plan = Plan {
            sndbuf_bytes: 4096,
            rmbe_bytes: 4096,
            ..Plan::default()
        };
        transfer(plan, &options(), 200_000, 3000);
    })
    .join()
    .expect("one core");
}

#[test]
fn many_threads_share_a_session() {
    let appliance = Appliance::start(Plan {
        poll: Poll::Sleepy,
        ..Plan::default()
    });
    let ours = Session::open(appliance.path(), &sleepy()).expect("session");
    let theirs = session(&appliance);
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let (client, server) = pair_in(&ours, &theirs);
            scope.spawn(move || {
                write_stream(&client, seed, 100_000, 5000).expect("write");
                client.shutdown(Shutdown::Write).expect("shutdown");
                assert_eq!(
                    read_stream(&client, seed + 100, 5000).expect("read"),
                    50_000
                );
            });
            scope.spawn(move || {
                assert_eq!(read_stream(&server, seed, 5000).expect("read"), 100_000);
                write_stream(&server, seed + 100, 50_000, 5000).expect("write");
            });
        }
    });
    assert_eq!(appliance.report().violations, []);
}

/// Number and sum of the bytes that one of several readers gets.
fn count(mut reader: &pollux_attach::client::Stream) -> [u64; 2] {
    let mut bytes = vec![0; 7000];
    let mut sums = [0; 2];
    loop {
        match reader.read(&mut bytes).expect("read") {
            0 => return sums,
            read => {
                sums[0] += read as u64;
                sums[1] += bytes[..read]
                    .iter()
                    .map(|&byte| u64::from(byte))
                    .sum::<u64>();
            }
        }
    }
}

#[test]
fn two_threads_read_one_stream_and_together_get_every_byte_once() {
    let (_appliance, client, server) = pair(Plan::default(), &sleepy());
    let total = 500_000;
    let sum = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            write_stream(&client, 3, total, 20_000).expect("write");
            client.shutdown(Shutdown::Write).expect("shutdown");
        });
        let readers = [
            scope.spawn(|| count(&server)),
            scope.spawn(|| count(&server)),
        ];
        writer.join().expect("writer");
        readers.map(|reader| reader.join().expect("reader"))
    });
    let expected: u64 = (0..total).map(|at| u64::from(byte_at(3, at))).sum();
    assert_eq!(
        [sum[0][0] + sum[1][0], sum[0][1] + sum[1][1]],
        [total, expected]
    );
}

#[test]
fn a_slot_is_used_again_and_again_without_leftovers() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        slots: 1,
        sndbuf_bytes: 4096,
        rmbe_bytes: 4096,
        ..Plan::default()
    });
    let session = session(&appliance);
    let mut accelerated = 0;
    for round in 0..300u64 {
        let mut stream = echo(&session);
        if !stream.is_accelerated() {
            // The appliance had not yet finished the connection before.
            std::thread::yield_now();
            continue;
        }
        accelerated += 1;
        let bytes = round.to_ne_bytes();
        stream.write_all(&bytes).expect("write");
        let mut back = [0; 8];
        stream.read_exact(&mut back).expect("read");
        assert_eq!(back, bytes);
    }
    assert!(accelerated > 100, "{accelerated}");
    assert_eq!(appliance.report().violations, []);
}

#[test]
fn end_of_stream_comes_after_all_data_and_stays() {
    let (_appliance, mut client, mut server) = pair(Plan::default(), &sleepy());
    client.write_all(b"last words").expect("write");
    client.shutdown(Shutdown::Write).expect("shutdown");
    let mut all = Vec::new();
    server.read_to_end(&mut all).expect("read");
    assert_eq!(all, b"last words");
    assert_eq!(server.read(&mut [0]).expect("read"), 0);
    // The other direction is still open.
    server.write_all(b"answer").expect("write");
    drop(server);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("read");
    assert_eq!(answer, b"answer");
}

#[test]
fn write_after_the_end_of_the_own_direction_is_a_broken_pipe() {
    let (_appliance, mut client, _server) = pair(Plan::default(), &sleepy());
    client.shutdown(Shutdown::Write).expect("shutdown");
    client.shutdown(Shutdown::Write).expect("again");
    let error = client.write(b"x").expect_err("ended");
    assert_eq!(
        (error.kind(), error.raw_os_error()),
        (ErrorKind::BrokenPipe, Some(32))
    );
    assert_eq!(client.write(b"").expect("nothing"), 0);
}

#[test]
fn data_before_a_reset_can_be_read_and_then_the_reset_is_told() {
    let (_appliance, mut client, mut server) = pair(Plan::default(), &sleepy());
    client.write_all(b"before").expect("write");
    let mut bytes = [0; 6];
    server.read_exact(&mut bytes).expect("read");
    client.abort();
    let error = server.read(&mut bytes).expect_err("reset");
    assert_eq!(
        (error.kind(), error.raw_os_error()),
        (ErrorKind::ConnectionReset, Some(104))
    );
    let error = server.write(b"x").expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let state = server.readiness().expect("accelerated").state;
    assert!(state.contains(SlotState::RESET));
}

#[test]
fn closing_with_unread_data_resets_the_peer() {
    let (_appliance, mut client, server) = pair(Plan::default(), &sleepy());
    client.write_all(b"unread").expect("write");
    while server.readiness().expect("accelerated").readable == 0 {
        std::thread::yield_now();
    }
    drop(server);
    let error = client.read(&mut [0]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn closing_sends_what_was_written() {
    let (_appliance, mut client, mut server) = pair(Plan::default(), &sleepy());
    client.write_all(&[7; 50_000]).expect("write");
    drop(client);
    let mut all = Vec::new();
    server.read_to_end(&mut all).expect("read");
    assert_eq!(all, [7; 50_000]);
}

#[test]
fn ending_the_incoming_direction_wakes_a_sleeping_reader_and_is_not_told() {
    let (_appliance, client, server) = pair(Plan::default(), &sleepy());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| (&server).read(&mut [0]).expect("read"));
        server.shutdown(Shutdown::Read).expect("shutdown");
        assert_eq!(reader.join().expect("reader"), 0);
    });
    (&client).write_all(b"nobody reads it").expect("write");
    let readiness = server.readiness().expect("accelerated");
    assert!(readiness.readable == 0 && readiness.state.contains(SlotState::END_OF_STREAM));
}

#[test]
fn ending_the_outgoing_direction_wakes_a_sleeping_writer() {
    let plan = Plan {
        sndbuf_bytes: 4096,
        rmbe_bytes: 4096,
        ..Plan::default()
    };
    let (_appliance, client, _server) = pair(plan, &sleepy());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (&client).write_all(&[1; 100_000]));
        while client.readiness().expect("accelerated").writable > 0 {
            std::thread::yield_now();
        }
        client.shutdown(Shutdown::Write).expect("shutdown");
        let error = writer.join().expect("writer").expect_err("ended");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn stream_that_must_not_wait_says_so_in_both_directions() {
    let plan = Plan {
        sndbuf_bytes: 4096,
        rmbe_bytes: 4096,
        ..Plan::default()
    };
    let (_appliance, mut client, mut server) = pair(plan, &sleepy());
    client.set_blocking(Blocking::Never).expect("mode");
    let error = client.read(&mut [0]).expect_err("empty");
    assert_eq!(
        (error.kind(), error.raw_os_error()),
        (ErrorKind::WouldBlock, Some(11))
    );
    let mut written = 0;
    let error = loop {
        match client.write(&[5; 1000]) {
            Ok(bytes) => written += bytes,
            // The appliance may still be moving what is in the sndbuf.
            Err(error) if written < 8192 => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                std::thread::yield_now();
            }
            Err(error) => break error,
        }
    };
    assert_eq!((written, error.kind()), (8192, ErrorKind::WouldBlock));
    let mut all = vec![0; written];
    server.read_exact(&mut all).expect("read");
    while client.readiness().expect("accelerated").writable < 4096 {
        std::thread::yield_now();
    }
    assert_eq!(client.write(&[5; 5000]).expect("room"), 4096);
}

#[test]
fn timeouts_end_waits_in_both_directions() {
    let plan = Plan {
        sndbuf_bytes: 4096,
        rmbe_bytes: 4096,
        ..Plan::default()
    };
    let (_appliance, mut client, _server) = pair(plan, &sleepy());
    let zero = client
        .set_read_timeout(Some(Duration::ZERO))
        .expect_err("zero");
    assert_eq!(zero.kind(), ErrorKind::InvalidInput);
    let short = Some(Duration::from_millis(1));
    client.set_read_timeout(short).expect("timeout");
    client.set_write_timeout(short).expect("timeout");
    assert_eq!(
        client.read(&mut [0]).expect_err("late").kind(),
        ErrorKind::WouldBlock
    );
    let error = client.write_all(&[1; 100_000]).expect_err("late");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn more_submissions_than_the_ring_holds_are_kept_and_delivered() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        ..Plan::default()
    });
    let session = session(&appliance);
    let stream = echo(&session);
    stream.set_blocking(Blocking::Never).expect("mode");
    let thaw = appliance.freeze();
    let mut expected = Vec::new();
    for count in 0..400u32 {
        let bytes = count.to_ne_bytes();
        assert_eq!((&stream).write(&bytes).expect("room in the sndbuf"), 4);
        expected.extend(bytes);
    }
    drop(thaw);
    stream.set_blocking(Blocking::Wait).expect("mode");
    let mut back = vec![0; expected.len()];
    (&stream).read_exact(&mut back).expect("read");
    assert_eq!(back, expected);
    assert_eq!(appliance.report().violations, []);
}

/// Writes more messages without waiting than the ring of an appliance that is frozen has room for.
fn fill_ring(stream: &Stream) {
    stream.set_blocking(Blocking::Never).expect("mode");
    for _ in 0..300 {
        (&mut &*stream)
            .write_all(b"fill")
            .expect("room in the sndbuf");
    }
}

#[test]
fn close_that_finds_the_ring_full_is_delivered_by_a_later_call() {
    // A stream that waits stands by for longer, but not for ever.
    for blocking in [Blocking::Never, Blocking::Wait] {
        let appliance = Appliance::start(Plan {
            policy: Policy::Echo,
            ..Plan::default()
        });
        let session = session(&appliance);
        let (stream, other) = (echo(&session), echo(&session));
        let thaw = appliance.freeze();
        fill_ring(&stream);
        stream.set_blocking(blocking).expect("mode");
        drop(stream);
        drop(thaw);
        (&other).write_all(b"x").expect("write");
        (&other).read_exact(&mut [0]).expect("read");
        while appliance.report().used_slots > 1 {
            std::thread::yield_now();
        }
        assert_eq!(appliance.report().violations, []);
    }
}

#[test]
fn a_read_with_a_timeout_ends_in_time_although_the_ring_is_full() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        ..Plan::default()
    });
    let session = session(&appliance);
    let stream = echo(&session);
    let thaw = appliance.freeze();
    fill_ring(&stream);
    stream.set_blocking(Blocking::Wait).expect("mode");
    let timeout = Some(Duration::from_millis(5));
    stream.set_read_timeout(timeout).expect("a timeout");
    stream.set_write_timeout(timeout).expect("a timeout");
    let error = (&stream).read(&mut [0]).expect_err("nothing came");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    // What is written in the meantime counts as written: it goes when there is room.
    (&stream).write_all(b"more").expect("room in the sndbuf");
    drop(thaw);
    stream.set_read_timeout(None).expect("no timeout");
    let mut back = [0; 1204];
    (&stream).read_exact(&mut back).expect("read");
    assert!(back.ends_with(b"fillmore"));
    assert_eq!(appliance.report().violations, []);
}

#[test]
fn urgent_bytes_arrive_in_line_and_are_announced() {
    let (_appliance, client, mut server) = pair(Plan::default(), &sleepy());
    assert_eq!(client.write_urgent(b"!").expect("urgent"), 1);
    let mut byte = [0];
    server.read_exact(&mut byte).expect("read");
    assert_eq!(&byte, b"!");
    let state = server.readiness().expect("accelerated").state;
    assert!(state.contains(SlotState::URGENT));
}

#[test]
fn options_of_tcp_are_answered() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        ..Plan::default()
    });
    let session = session(&appliance);
    let (client, server) = tcp_pair();
    let stream = session
        .upgrade(client, pollux_attach::message::Role::Client)
        .expect("echo");
    stream.set_nodelay(NoDelay::Off).expect("option");
    assert!(stream.nodelay().expect("option"));
    assert_eq!(
        stream.peer_addr().expect("peer"),
        server.local_addr().expect("local")
    );
    assert_eq!(
        stream.tcp().local_addr().expect("local"),
        server.peer_addr().expect("peer")
    );
}

#[test]
fn program_that_ends_without_closing_leaves_no_slot_and_its_peer_an_end_of_stream() {
    let appliance = Appliance::start(Plan::default());
    let (ours, theirs) = (session(&appliance), session(&appliance));
    let (mut client, mut server) = pair_in(&ours, &theirs);
    client.write_all(b"bye").expect("write");
    drop((client, ours));
    let mut all = Vec::new();
    server.read_to_end(&mut all).expect("read");
    assert_eq!(all, b"bye");
    drop(server);
    while appliance.report().used_slots > 0 {
        std::thread::yield_now();
    }
    assert_eq!(appliance.report().sessions, 1);
}
