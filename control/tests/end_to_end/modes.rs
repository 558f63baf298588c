//! How workers wait changes while bytes are under way.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::wire::{Plain, exchange};
use crate::support::{Appliance, Pair, Shape, listener};

const MODES: [&str; 3] = ["busy", "adaptive", "interrupt"];

fn set(appliance: &Appliance, mode: &str) {
    assert_eq!(appliance.json(&["set", "poll", mode]), true);
    assert_eq!(appliance.json(&["show", "workers"])[0]["poll"], mode);
}

/// Answers each message as long as they come.
fn echo(mut server: &Plain) {
    let mut bytes = [0; 100];
    while server.read_exact(&mut bytes).is_ok() {
        if server.write_all(&bytes).is_err() {
            return;
        }
    }
}

#[test]
fn poll_modes_change_under_traffic_and_no_byte_is_lost() {
    let (target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            // At least so often, and until every change was made.
            for round in 0.. {
                let client = Plain::connect(pair.entry());
                let server = Plain::tcp(target.accept().expect("accept").0);
                exchange(&client, &server, 101 + round, 1 << 20);
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for round in 0..4 {
            for mode in 0..MODES.len() {
                if traffic.is_finished() {
                    break;
                }
                set(&pair.a, MODES[mode]);
                set(&pair.b, MODES[(mode + round) % MODES.len()]);
            }
        }
        done.store(true, Ordering::Relaxed);
        traffic.join().expect("every byte arrived");
    });
    pair.assert_accelerated();
}

/// A worker that goes to sleep in one mode is woken in the next, by each of those who wake it: its
/// program, its peer, control.
#[test]
fn a_message_wakes_whoever_sleeps_in_each_pair_of_modes() {
    let (target, address) = listener();
    let pair = Pair::start(&Shape::to(address));
    let client = Plain::connect(pair.entry());
    let server = Plain::tcp(target.accept().expect("accept").0);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&server));
        for at_a in MODES {
            for at_b in MODES {
                set(&pair.a, at_a);
                set(&pair.b, at_b);
                for byte in 0..20 {
                    let message = [byte; 100];
                    let mut got = [0; 100];
                    (&client).write_all(&message).expect("write");
                    (&client).read_exact(&mut got).expect("read");
                    assert_eq!(got, message, "{at_a} {at_b}");
                }
            }
        }
        client.end();
    });
}
