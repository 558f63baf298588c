//! A program that does not use the library, and means harm.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use pollux_attach::layout::VERSION;
use pollux_attach::message::{Reply, Request};
use pollux_attach::packet;

use crate::support::{Appliance, Place, until};

/// Attaches by hand; gives the socket and the descriptor that wakes the worker.
fn attach(appliance: &Appliance) -> (OwnedFd, OwnedFd) {
    let socket = packet::connect(&appliance.attach_socket()).expect("an attach socket");
    let hello = Request::Hello {
        version: VERSION,
        slots: 1,
        sndbuf_bytes: 0,
        rmbe_bytes: 0,
        name: "thief".to_string(),
    };
    packet::send(&socket, &hello.emit(), &[]).expect("send");
    let mut welcome = until("a welcome", || packet::receive(&socket).ok());
    let reply = Reply::parse(&welcome.bytes, welcome.fds.len()).expect("a reply");
    assert!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
    (socket, welcome.fds.swap_remove(1))
}

#[test]
fn a_program_that_takes_the_workers_signals_holds_nobody_up() {
    let place = Place::new();
    let appliance = Appliance::start(&place, "a", "");
    let (_socket, wake) = attach(&appliance);
    // The open file is shared: who holds it can take signals, and make a read of it block.
    rustix::io::ioctl_fionbio(&wake, false).expect("blocking");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = rustix::io::read(&wake, &mut [0; 8]);
            }
        });
        // Each answer needs the worker, which sleeps; a worker that is stuck gives none.
        let answered = (0..100).all(|_| {
            let workers = std::panic::catch_unwind(|| appliance.json(&["show", "workers"]));
            workers.is_ok_and(|workers| workers.as_array().map(Vec::len) == Some(1))
        });
        done.store(true, Ordering::Relaxed);
        rustix::io::write(&wake, &1_u64.to_ne_bytes()).expect("the thief's own signal");
        assert!(answered, "the worker was held up");
    });
}
