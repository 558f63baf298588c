//! One thread, many streams, no blocking call but the sleep of the loop.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use pollux_attach::client::{Armed, Blocking, Session, SessionOptions, Stream, StreamEvent};
use pollux_attach::message::Role;
use pollux_attach::shared::SlotState;
use rustix::event::{PollFd, PollFlags};

use crate::appliance::{Appliance, Plan, Policy, Poll};
use crate::support::{byte_at, echo, options, pair_in, read_stream, session, sleepy, tcp_pair};

/// Sleeps as an event loop does, on the session's descriptor alone and without end.
fn rest(session: &Session) {
    if session.arm() == Armed::Idle {
        let fd = session.event_fd();
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, None).expect("poll");
    }
}

/// A stream of the loop: sends a pattern and expects it back.
struct Echo {
    stream: Stream,
    seed: u64,
    sent: u64,
    received: u64,
    ended: bool,
}

const TOTAL: u64 = 20_000;

impl Echo {
    fn new(stream: Stream, seed: u64) -> Echo {
        stream.set_blocking(Blocking::Never).expect("mode");
        Echo {
            stream,
            seed,
            sent: 0,
            received: 0,
            ended: false,
        }
    }

    /// Does what can be done without waiting.
    fn drive(&mut self) {
        while self.sent < TOTAL {
            let end = TOTAL.min(self.sent + 700);
            let piece: Vec<u8> = (self.sent..end).map(|at| byte_at(self.seed, at)).collect();
            match (&self.stream).write(&piece) {
                Ok(bytes) => self.sent += bytes as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
            if self.sent == TOTAL {
                self.stream.shutdown(Shutdown::Write).expect("shutdown");
            }
        }
        let mut bytes = [0; 900];
        while !self.ended {
            match (&self.stream).read(&mut bytes) {
                Ok(0) => self.ended = true,
                Ok(read) => {
                    for &byte in &bytes[..read] {
                        assert_eq!(byte, byte_at(self.seed, self.received));
                        self.received += 1;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn serve_many(plan: Plan, options: &SessionOptions, count: usize) {
    let appliance = Appliance::start(plan);
    let session = Session::open(appliance.path(), options).expect("session");
    let mut asked = HashMap::new();
    for seed in 0..count as u64 {
        let (client, _server) = tcp_pair();
        asked.insert(
            session
                .upgrade_start(client, Role::Client)
                .expect("request"),
            seed,
        );
    }
    let mut streams: HashMap<u64, Echo> = HashMap::new();
    let mut done = 0;
    let mut events = Vec::new();
    while done < count {
        rest(&session);
        session.poll_events(&mut events);
        for event in events.drain(..) {
            match event {
                StreamEvent::Upgraded { request, stream } => {
                    let seed = asked.remove(&request).expect("asked once");
                    let echo = Echo::new(stream.expect("accelerated"), seed);
                    assert!(echo.stream.is_accelerated());
                    echo.stream.watch(seed);
                    streams.insert(seed, echo);
                }
                StreamEvent::Ready { token, .. } => {
                    let Some(echo) = streams.get_mut(&token) else {
                        continue;
                    };
                    echo.drive();
                    if echo.ended {
                        assert_eq!(echo.received, TOTAL);
                        streams.remove(&token);
                        done += 1;
                    }
                }
                StreamEvent::Gone => panic!("the appliance is gone"),
            }
        }
    }
    assert_eq!(appliance.report().violations, []);
}

#[test]
fn one_thread_serves_many_streams() {
    let plan = Plan {
        policy: Policy::Echo,
        slots: 200,
        sndbuf_bytes: 4096,
        rmbe_bytes: 4096,
        ..Plan::default()
    };
    serve_many(plan, &options(), 200);
}

#[test]
fn loop_and_worker_that_always_sleep_lose_nothing() {
    let plan = Plan {
        policy: Policy::Echo,
        poll: Poll::Sleepy,
        sndbuf_bytes: 4096,
        rmbe_bytes: 4096,
        ..Plan::default()
    };
    serve_many(plan, &sleepy(), 8);
}

#[test]
fn answers_out_of_order_find_their_requests() {
    let plan = Plan {
        policy: Policy::Shuffled,
        ..Plan::default()
    };
    serve_many(plan, &sleepy(), 8);
}

#[test]
fn answers_out_of_order_find_their_threads() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Shuffled,
        ..Plan::default()
    });
    let session = session(&appliance);
    let threads: Vec<_> = (0..8u8)
        .map(|number| {
            let session = session.clone();
            std::thread::spawn(move || {
                let mut stream = echo(&session);
                stream.write_all(&[number; 100]).expect("write");
                let mut back = [0; 100];
                stream.read_exact(&mut back).expect("read");
                assert_eq!(back, [number; 100]);
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("thread");
    }
}

#[test]
fn loop_and_blocking_threads_share_a_session() {
    let appliance = Appliance::start(Plan {
        poll: Poll::Sleepy,
        ..Plan::default()
    });
    let session = Session::open(appliance.path(), &sleepy()).expect("session");
    let total = 300_000;
    std::thread::scope(|scope| {
        // Blocking threads take events of the loop's stream out of the ring, and the other way
        // round.
        for seed in 10..13 {
            let (client, server) = pair_in(&session, &session);
            scope.spawn(move || {
                crate::support::write_stream(&client, seed, total, 3000).expect("write");
            });
            scope.spawn(move || {
                assert_eq!(read_stream(&server, seed, 3000).expect("read"), total);
            });
        }
        let (looped, blocking) = pair_in(&session, &session);
        scope.spawn(move || {
            let mut bytes = [0; 1000];
            for _ in 0..300 {
                (&blocking).read_exact(&mut bytes).expect("read");
                (&blocking).write_all(&bytes).expect("write");
            }
        });
        looped.set_blocking(Blocking::Never).expect("mode");
        looped.watch(1);
        let (mut sent, mut received) = (0u64, 0u64);
        let mut events = Vec::new();
        while received < 300_000 {
            if sent == received {
                let piece: Vec<u8> = (sent..sent + 1000).map(|at| byte_at(99, at)).collect();
                assert_eq!((&looped).write(&piece).expect("room"), 1000);
                sent += 1000;
            }
            rest(&session);
            session.poll_events(&mut events);
            for event in events.drain(..) {
                assert!(
                    matches!(event, StreamEvent::Ready { token: 1, .. }),
                    "{event:?}"
                );
            }
            let mut bytes = [0; 1000];
            while let Ok(read @ 1..) = (&looped).read(&mut bytes) {
                for &byte in &bytes[..read] {
                    assert_eq!(byte, byte_at(99, received));
                    received += 1;
                }
            }
        }
    });
    assert_eq!(appliance.report().violations, []);
}

#[test]
fn wait_reports_readiness_and_times_out_without() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        ..Plan::default()
    });
    let session = session(&appliance);
    let stream = echo(&session);
    stream.watch(42);
    let mut events = Vec::new();
    session.wait(&mut events, None).expect("wait");
    assert!(
        matches!(events[..], [StreamEvent::Ready { token: 42, .. }]),
        "{events:?}"
    );
    events.clear();
    session
        .wait(&mut events, Some(std::time::Duration::from_millis(1)))
        .expect("wait");
    assert!(events.is_empty(), "{events:?}");
    (&stream).write_all(b"seven").expect("write");
    let readable = loop {
        session.wait(&mut events, None).expect("wait");
        let Some(StreamEvent::Ready {
            token: 42,
            readiness,
        }) = events.pop()
        else {
            panic!("{events:?}");
        };
        if readiness.readable > 0 {
            break readiness.readable;
        }
    };
    assert_eq!(readable, 5);
}

#[test]
fn end_of_a_watched_stream_is_an_event() {
    let appliance = Appliance::start(Plan::default());
    let session = session(&appliance);
    let (client, server) = pair_in(&session, &session);
    client.watch(5);
    drop(server);
    let mut events = Vec::new();
    let ended = loop {
        session.wait(&mut events, None).expect("wait");
        let end = events.drain(..).any(|event| match event {
            StreamEvent::Ready {
                token: 5,
                readiness,
            } => readiness.state.contains(SlotState::END_OF_STREAM),
            StreamEvent::Ready { .. } | StreamEvent::Upgraded { .. } | StreamEvent::Gone => {
                panic!("unexpected event")
            }
        });
        if end {
            break (&client).read(&mut [0]).expect("end");
        }
    };
    assert_eq!(ended, 0);
}

#[test]
fn dropped_stream_is_not_reported_any_more() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        ..Plan::default()
    });
    let session = session(&appliance);
    let stream = echo(&session);
    stream.watch(1);
    drop(stream);
    let mut events = Vec::new();
    session
        .wait(&mut events, Some(std::time::Duration::from_millis(2)))
        .expect("wait");
    assert!(events.is_empty(), "{events:?}");
}

/// The appliance's word on a connection may be read by any call, so the loop that reads it must not
/// sleep before the listener was asked again.
#[test]
fn a_loop_does_not_sleep_over_a_connection_that_its_listener_has_to_give_out() {
    let appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        ..Plan::default()
    });
    let session = Session::open(appliance.path(), &sleepy()).expect("session");
    let listener = session.listen("127.0.0.1:0").expect("listen");
    listener.set_blocking(Blocking::Never);
    let _client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let undecided = appliance.freeze();
    // Hands the connection to the appliance.
    assert_eq!(
        listener.accept().expect_err("nothing is decided").kind(),
        ErrorKind::WouldBlock
    );
    assert_eq!(session.arm(), Armed::Idle);
    drop(undecided);
    let mut fds = [PollFd::from_borrowed_fd(session.event_fd(), PollFlags::IN)];
    rustix::event::poll(&mut fds, None).expect("poll");
    let mut events = Vec::new();
    session.poll_events(&mut events);
    assert!(events.is_empty(), "{events:?}");
    assert_eq!(session.arm(), Armed::Pending, "somebody has to accept");
    assert!(listener.accept().expect("decided").0.is_accelerated());
    assert_eq!(session.arm(), Armed::Idle);
}
