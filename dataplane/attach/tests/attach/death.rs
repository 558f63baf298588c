//! The appliance dies: nobody hangs.

use std::io::{ErrorKind, Read, Write};
use std::thread::ScopedJoinHandle;

use pollux_attach::client::{Blocking, Session, SessionOptions, StreamEvent, UpgradeError};
use pollux_attach::message::Role;

use crate::appliance::{Appliance, Plan, Policy};
use crate::support::{echo, options, pair, session, sleepy, tcp_pair};

fn reset<T: std::fmt::Debug>(thread: ScopedJoinHandle<'_, std::io::Result<T>>) {
    let error = thread
        .join()
        .expect("thread")
        .expect_err("the appliance is gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

fn everybody_gets_a_reset(options: &SessionOptions) {
    let mut appliance = Appliance::start(Plan {
        policy: Policy::Echo,
        ..Plan::default()
    });
    let session = Session::open(appliance.path(), options).expect("session");
    let (reader, writer) = (echo(&session), echo(&session));
    let listener = session.listen("127.0.0.1:0").expect("listen");
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| (&reader).read(&mut [0]));
        let writes = scope.spawn(|| (&writer).write_all(&[1; 10_000_000]));
        let accepts = scope.spawn(|| listener.accept());
        while writer.readiness().expect("accelerated").writable > 0 {
            std::thread::yield_now();
        }
        appliance.kill();
        reset(reads);
        reset(writes);
        reset(accepts);
    });
    assert!(session.is_gone());
    let error = (&reader).write(b"x").expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = session
        .upgrade(tcp_pair().0, Role::Client)
        .expect_err("gone");
    assert_eq!(error, UpgradeError::Gone);
}

#[test]
fn sleeping_reader_writer_and_listener_get_a_reset() {
    everybody_gets_a_reset(&sleepy());
}

#[test]
fn polling_reader_writer_and_listener_get_a_reset() {
    everybody_gets_a_reset(&options());
}

#[test]
fn upgrade_in_progress_fails() {
    let mut appliance = Appliance::start(Plan {
        policy: Policy::Silent,
        ..Plan::default()
    });
    let session = session(&appliance);
    std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| session.upgrade(tcp_pair().0, Role::Client));
        appliance.kill();
        let error = upgrade.join().expect("thread").expect_err("gone");
        assert_eq!(error, UpgradeError::Gone);
    });
}

#[test]
fn data_that_came_before_can_still_be_read() {
    let (mut appliance, mut client, mut server) = pair(Plan::default(), &sleepy());
    client.write_all(&[3; 100]).expect("write");
    while server.readiness().expect("accelerated").readable < 100 {
        std::thread::yield_now();
    }
    appliance.kill();
    let mut bytes = [0; 100];
    server.read_exact(&mut bytes).expect("read");
    assert_eq!(bytes, [3; 100]);
    let error = server.read(&mut bytes).expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn stream_that_never_waits_notices_too() {
    let (mut appliance, mut client, _server) = pair(Plan::default(), &sleepy());
    client.set_blocking(Blocking::Never).expect("mode");
    assert_eq!(
        client.read(&mut [0]).expect_err("empty").kind(),
        ErrorKind::WouldBlock
    );
    appliance.kill();
    let error = loop {
        match client.read(&mut [0]).expect_err("nothing comes") {
            error if error.kind() == ErrorKind::WouldBlock => {}
            error => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn event_loop_is_told_once_and_all_its_streams_and_requests_with_it() {
    let mut appliance = Appliance::start(Plan {
        policy: Policy::Shuffled,
        ..Plan::default()
    });
    let session = session(&appliance);
    for _ in 0..5 {
        session
            .upgrade_start(tcp_pair().0, Role::Client)
            .expect("request");
    }
    let (mut streams, mut events) = (Vec::new(), Vec::new());
    while streams.len() < 4 {
        session.wait(&mut events, None).expect("wait");
        for event in events.drain(..) {
            if let StreamEvent::Upgraded { stream, .. } = event {
                let stream = stream.expect("accelerated");
                stream.watch(streams.len() as u64);
                streams.push(stream);
            }
        }
    }
    session.poll_events(&mut events);
    events.clear();
    appliance.kill();
    let (mut ready, mut failed, mut gone) = (0, 0, 0);
    while gone == 0 {
        session.wait(&mut events, None).expect("wait");
        for event in events.drain(..) {
            match event {
                StreamEvent::Ready { readiness, .. } => {
                    assert!(
                        readiness
                            .state
                            .contains(pollux_attach::shared::SlotState::RESET)
                    );
                    ready += 1;
                }
                StreamEvent::Upgraded { stream, .. } => {
                    assert_eq!(stream.expect_err("gone"), UpgradeError::Gone);
                    failed += 1;
                }
                StreamEvent::Gone => gone += 1,
            }
        }
    }
    assert_eq!((ready, failed, gone), (4, 1, 1));
    session.poll_events(&mut events);
    assert!(events.is_empty(), "{events:?}");
}
