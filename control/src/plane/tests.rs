//! Two planes against each other: what every step of a handshake leaves behind when something goes
//! wrong there.

mod bed;
mod faults;
mod frail;
mod pipe;

use self::bed::{Heard, Home, Terms, World};
use super::{PoolId, Syn};
use pollux_proto::link::Role;
use pollux_wire::clc::{Decline, Diagnosis};
use pollux_worker::ConnOutcome;
use std::time::Duration;

#[test]
fn a_first_contact_and_a_later_one_open_carry_bytes_close_and_leave_nothing() {
    let mut world = World::new(Terms::default());
    world.check_a_new_connection_works(0, 1);
    assert_eq!(world.census(0).links, 1);
    world.check_a_new_connection_works(0, 2);
    assert_eq!(world.census(0).links, 1);
    world.check_nothing_is_left();
}

#[test]
fn two_first_contacts_at_once_share_one_link() {
    let mut world = World::new(Terms::default());
    world.connect(0, 1);
    world.connect(0, 2);
    world.seconds(2);
    assert_eq!(world.census(0).links, 1, "{}", world.story());
    assert_eq!(world.census(1).links, 1);
    world.use_and_close(1);
    world.use_and_close(2);
    world.check_nothing_is_left();
}

#[test]
fn first_contacts_in_both_directions_at_once_make_two_links() {
    let mut world = World::new(Terms::default());
    world.connect(0, 1);
    world.connect(1, 2);
    world.seconds(2);
    assert_eq!(world.census(0).links, 2, "{}", world.story());
    world.use_and_close(1);
    world.use_and_close(2);
    world.check_nothing_is_left();
}

#[test]
fn a_handshake_in_single_bytes_is_as_good_as_another() {
    let mut world = World::new(Terms::default());
    world.connect(0, 1).narrow();
    world.seconds(2);
    world.use_and_close(1);
    world.check_nothing_is_left();
}

#[test]
fn hosts_without_a_common_domain_stay_on_tcp() {
    let mut world = World::new(Terms {
        ueids: ["ONE.POLLUX", "OTHER.POLLUX"],
        ..Terms::default()
    });
    world.connect(0, 1);
    world.settle();
    for host in [0, 1] {
        let heard = world.hosts[host].heard_of(1);
        assert!(matches!(heard[..], [Heard::FellBack(1, why)] if why != Diagnosis::PEERNOSMC));
    }
    world.check_nothing_is_left();
}

#[test]
fn a_place_of_a_link_that_was_never_confirmed_is_not_given_out_before_the_worker_forgot_it() {
    let mut world = World::new(Terms {
        conns: 1,
        ..Terms::default()
    });
    world.connect(0, 1);
    // The client has the server's queue pair, and the link its worker.
    while world.census(0).links == 0 {
        world.step_or_jump();
    }
    for _ in 0..6 {
        world.step_or_jump();
    }
    world.lose_sight(0);
    world.seconds(30);
    world.check_a_new_connection_works(0, 2);
    world.check_nothing_is_left();
}

#[test]
fn a_first_contact_that_finds_no_free_slot_leaves_no_link_behind_for_others_to_wait_for() {
    let mut world = World::new(Terms {
        slots: 1,
        ..Terms::default()
    });
    // Host 1 is a client with its only slot in use; as a server it has none left.
    world.connect(1, 1);
    world.seconds(2);
    world.connect(0, 2);
    world.seconds(2);
    for host in [0, 1] {
        let heard = world.hosts[host].heard_of(2);
        assert_eq!(heard, [Heard::FellBack(2, Diagnosis::MEM)]);
        assert_eq!(world.census(host).links, 1, "{}", world.story());
    }
    world.use_and_close(1);
    world.check_a_new_connection_works(0, 3);
    world.check_nothing_is_left();
}

#[test]
fn a_handshake_that_still_waits_for_its_first_bytes_is_over_when_nobody_wants_it() {
    let mut world = World::new(Terms::default());
    let (cable, _far) = world.connect_alone(0, Role::Server, 1);
    world.settle();
    let now = world.now();
    world.hosts[0].plane.cancel(now, |user| *user == 1);
    world.settle();
    let heard = world.hosts[0].heard_of(1);
    assert_eq!(heard, [Heard::FellBack(1, Diagnosis::INTERR)]);
    assert!(!cable.is_watched(0));
    assert_eq!(
        cable.in_flight(0),
        b"",
        "nobody knows whether the other end speaks SMC"
    );
    world.check_nothing_is_left();
}

#[test]
fn a_client_that_says_too_little_keeps_nobody_busy_and_is_heard_when_it_says_more() {
    let mut world = World::new(Terms::default());
    let (cable, _far) = world.connect_alone(0, Role::Server, 1);
    // The first byte of "SMCR" as CLC writes it.
    cable.say(1, &[0xe2]);
    world.settle();
    assert_eq!(cable.ready(0), None, "the byte stays where it is");
    assert_eq!(world.hosts[0].heard_of(1), []);
    cable.say(1, b"hello");
    let soon = world.now().after(std::time::Duration::from_millis(100));
    while world.hosts[0].heard_of(1).is_empty() && world.now() < soon {
        world.step_or_jump();
    }
    let heard = world.hosts[0].heard_of(1);
    assert_eq!(heard, [Heard::FellBack(1, Diagnosis::PEERNOSMC)]);
    assert_eq!(cable.in_flight(1), b"\xe2hello");
    world.check_nothing_is_left();
}

#[test]
fn a_server_that_takes_nothing_declines_and_leaves_the_stream_as_it_was() {
    let mut world = World::new(Terms::default());
    for (user, client) in [(1, 0), (2, 1)] {
        let cable = world.connect_in_vain(client, user);
        world.settle();
        for host in [0, 1] {
            let heard = world.hosts[host].heard_of(user);
            assert_eq!(heard, [Heard::FellBack(user, Diagnosis::MEM)]);
            assert_eq!(world.census(host).links, 0, "{}", world.story());
            assert_eq!(cable.in_flight(host), b"");
        }
    }
    world.check_a_new_connection_works(0, 3);
    world.check_nothing_is_left();
}

#[test]
fn a_client_that_takes_nothing_declines_to_a_server_that_waits_for_its_word() {
    let mut world = World::new(Terms::default());
    world.syn = Syn::Smc;
    let (cable, _far) = world.connect_alone_in_vain(0, Role::Client, 1);
    world.settle();
    let heard = world.hosts[0].heard_of(1);
    assert_eq!(heard, [Heard::FellBack(1, Diagnosis::MEM)]);
    let decline = Decline::parse(&cable.in_flight(0)).expect("a Decline and nothing else");
    assert_eq!(decline.diagnosis, Diagnosis::MEM);
    // The same of a plane that stops.
    world.stop(0);
    world.settle();
    let (cable, _far) = world.connect_alone(0, Role::Client, 2);
    world.settle();
    assert_eq!(
        world.hosts[0].heard_of(2),
        [Heard::FellBack(2, Diagnosis::MEM)]
    );
    Decline::parse(&cable.in_flight(0)).expect("a Decline and nothing else");
    world.check_nothing_is_left();
}

#[test]
fn a_server_waits_longer_for_a_client_that_has_said_that_it_speaks_smc() {
    for (syn, still_waits) in [(Syn::Plain, false), (Syn::Smc, true)] {
        let mut world = World::new(Terms::default());
        world.syn = syn;
        let (_cable, _far) = world.connect_alone(0, Role::Server, 1);
        world.seconds(2);
        assert_eq!(
            world.hosts[0].heard_of(1).is_empty(),
            still_waits,
            "{syn:?}"
        );
        world.seconds(10);
        assert_eq!(world.hosts[0].heard_of(1).len(), 1, "{}", world.story());
        world.check_nothing_is_left();
    }
}

#[test]
fn a_plane_that_has_stopped_begins_no_handshake() {
    let mut world = World::new(Terms::default());
    world.stop(0);
    world.settle();
    assert!(world.hosts[0].plane.is_stopped());
    let (cable, _far) = world.connect_alone(0, Role::Client, 1);
    world.settle();
    let heard = world.hosts[0].heard_of(1);
    assert_eq!(heard, [Heard::FellBack(1, Diagnosis::INTERR)]);
    assert_eq!(cable.in_flight(0), b"");
    world.check_nothing_is_left();
}

#[test]
fn queue_pairs_that_are_kept_over_the_stop_keep_the_memory_that_peers_reach_by_them() {
    const POOL: PoolId = PoolId::Added(1);
    for keeps in [true, false] {
        let mut world = World::new(Terms::default());
        world.add_pool(0, POOL);
        world.connect(0, 1);
        world.seconds(2);
        assert!(world.hosts[0].opened(1).is_some(), "{}", world.story());
        let before = world.device(0);
        let plane = &mut world.hosts[0].plane;
        if keeps {
            plane.keep_queue_pairs();
        }
        plane.retire_pool(POOL);
        world.stop(0);
        world.seconds(4);
        assert!(world.hosts[0].plane.is_stopped());
        assert_eq!(world.hosts[0].plane.has_kept_queue_pairs(), keeps);
        let left = if keeps { before } else { (0, 0) };
        assert_eq!(world.device(0), left, "{}", world.story());
    }
}

#[test]
fn a_plane_that_stops_while_its_last_words_still_leave_holds_nothing_in_the_end() {
    let mut broke_off = 0;
    for steps in 0..800 {
        let mut world = World::new(Terms::default());
        world.check_a_new_connection_works(0, 1);
        world.connect(0, 2).narrow();
        for _ in 0..steps {
            world.step_or_jump();
        }
        world.stop(0);
        // The peer hears by TCP only, so it goes on taking what comes there.
        let deaf = world.hosts[1].workers[0].take();
        world.seconds(4);
        world.hosts[1].workers[0] = deaf;
        world.seconds(80);
        let census = world.census(0);
        let held = (
            census.handshakes,
            census.conns,
            census.conn_places,
            census.slots,
        );
        assert_eq!(held, (0, 0, 0, 0), "{steps}: {}", world.story());
        world.check_each_was_told(0, 2);
        let heard = world.hosts[0].heard_of(2);
        broke_off += usize::from(heard == [Heard::Failed(2)]);
    }
    assert!(broke_off > 50, "{broke_off}");
}

#[test]
fn a_connection_that_ends_by_itself_while_it_is_aborted_gives_its_place_back_once() {
    let mut world = World::new(Terms {
        conns: 1,
        ..Terms::default()
    });
    world.connect(0, 1);
    world.seconds(2);
    let conn = world.hosts[0].opened(1).expect("open");
    // The worker has reported the end; control has not yet heard of it.
    world.close(0, 1);
    world.run_workers();
    world.hosts[0].plane.abort(conn);
    world.seconds(2);
    assert_eq!(world.census(0).conn_places, 0, "{}", world.story());
    world.check_a_new_connection_works(0, 2);
    world.check_nothing_is_left();
}

#[test]
fn both_sides_hear_at_once_of_a_link_that_failed_whatever_they_waited_for() {
    for blind in [0, 1] {
        for steps in 0..40 {
            let mut world = World::new(Terms::default());
            world.connect(0, 1);
            for _ in 0..steps {
                world.step_or_jump();
            }
            world.lose_sight(blind);
            // CLC's own patience is six seconds for each message.
            world.seconds(4);
            for host in [0, 1] {
                let heard = world.hosts[host].heard_of(1);
                assert!(!heard.is_empty(), "{blind}, {steps}: {}", world.story());
            }
        }
    }
}

#[test]
fn a_peer_that_is_silent_counts_as_dead_after_the_period_and_the_wait_of_a_test_link() {
    for (seconds, closed) in [(4, false), (8, true)] {
        let mut world = World::new(Terms {
            test_link: Duration::from_secs(5),
            ..Terms::default()
        });
        world.connect(0, 1);
        world.seconds(1);
        assert!(world.hosts[0].opened(1).is_some(), "{}", world.story());
        world.freeze(1);
        world.seconds(seconds);
        let heard = world.hosts[0].heard_of(1);
        let told = heard
            .iter()
            .any(|heard| matches!(heard, Heard::Closed(1, _)));
        assert_eq!(told, closed, "{seconds} s: {}", world.story());
    }
}

#[test]
fn a_queue_pair_that_the_worker_cannot_take_ends_the_handshake() {
    for host in [0, 1] {
        let mut world = World::new(Terms::default());
        world.make_queue_pairs_for_nobody(host);
        world.connect(0, 1);
        world.seconds(4);
        for host in [0, 1] {
            let heard = world.hosts[host].heard_of(1);
            assert!(
                matches!(heard[..], [Heard::FellBack(1, _)]),
                "{}",
                world.story()
            );
        }
        world.check_nothing_is_left();
    }
}

#[test]
fn workers_of_one_host_have_links_of_their_own_to_each_worker_of_the_other() {
    let mut world = World::new(Terms {
        workers: 2,
        ..Terms::default()
    });
    let mut user = 0;
    // The second time all links are there.
    for _ in 0..2 {
        for (near, far) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            user += 1;
            world.homes = [Home::of(near), Home::of(far)];
            world.connect(0, user);
        }
        world.seconds(2);
        assert_eq!(world.census(0).links, 4, "{}", world.story());
    }
    for user in 1..=8 {
        let [near, far] = [0, 1].map(|host| world.hosts[host].opened(user).expect("open"));
        let expected = [(0, 0), (0, 1), (1, 0), (1, 1)][(user as usize - 1) % 4];
        assert_eq!((near.worker, far.worker), expected);
        world.use_and_close(user);
    }
    world.check_nothing_is_left();
}

#[test]
fn a_pool_that_is_given_up_at_any_step_stays_until_no_peer_can_reach_it() {
    const POOL: PoolId = PoolId::Added(1);
    for (host, steps) in (0..100).map(|count| (count % 2, count / 2)) {
        let mut world = World::new(Terms::default());
        world.add_pool(host, POOL);
        world.connect(0, 1);
        for _ in 0..steps {
            world.step_or_jump();
        }
        let now = world.now();
        let plane = &mut world.hosts[host].plane;
        plane.retire_pool(POOL);
        // As when a program goes: first its handshakes, then its connections.
        plane.cancel(now, |user| *user == 1);
        world.homes[host] = Home::of(0);
        let pool = |world: &World| world.hosts[host].plane.pool_slots(POOL);
        if world.hosts[host].opened(1).is_some() {
            assert_eq!(pool(&world), Some(1), "{host} {steps}: {}", world.story());
        }
        world.seconds(4);
        for host in [0, 1] {
            world.close(host, 1);
        }
        world.seconds(80);
        world.check_a_new_connection_works(0, 2);
        world.check_a_new_connection_works(1, 3);
        world.check_nothing_is_left();
        assert_eq!(pool(&world), None, "{host} {steps}: {}", world.story());
    }
}

#[test]
fn a_decline_that_leaves_in_single_bytes_arrives_whole_before_the_stream_goes_back() {
    let mut world = World::new(Terms {
        ueids: ["ONE.POLLUX", "OTHER.POLLUX"],
        ..Terms::default()
    });
    world.connect(0, 1).narrow();
    world.seconds(1);
    for host in [0, 1] {
        let heard = world.hosts[host].heard_of(1);
        assert!(
            matches!(heard[..], [Heard::FellBack(1, _)]),
            "{}",
            world.story()
        );
    }
    world.check_nothing_is_left();
}

#[test]
fn a_confirm_that_leaves_in_single_bytes_arrives_whole() {
    let mut world = World::new(Terms::default());
    world.check_a_new_connection_works(0, 1);
    world.connect(0, 2).narrow();
    world.seconds(2);
    world.use_and_close(2);
    world.check_nothing_is_left();
}

#[test]
fn a_decline_that_nobody_takes_is_given_up_with_the_stream() {
    let mut world = World::new(Terms {
        ueids: ["ONE.POLLUX", "OTHER.POLLUX"],
        ..Terms::default()
    });
    let cable = world.connect(0, 1);
    // The client has sent its Proposal and hears nothing more.
    while cable.in_flight(0).is_empty() {
        world.step_or_jump();
    }
    world.freeze(0);
    cable.narrow();
    world.seconds(1);
    assert_eq!(world.hosts[1].heard_of(1), [], "the Decline is on its way");
    cable.say(0, b"what nobody is going to read before");
    assert_eq!(cable.ready(1), None, "nobody is kept busy by it");
    world.seconds(30);
    assert_eq!(world.hosts[1].heard_of(1), [Heard::Failed(1)]);
    world.thaw(0);
    world.seconds(30);
    world.check_each_was_told(0, 1);
    world.check_nothing_is_left();
}

#[test]
fn a_later_contact_that_its_server_gives_up_at_any_step_ends_at_the_client_too_and_keeps_no_slot() {
    let mut broke_off_after_the_client_had_it = 0;
    for steps in 0..60 {
        let mut world = World::new(Terms::default());
        world.connect(0, 1);
        world.seconds(2);
        world.connect(0, 2);
        for _ in 0..steps {
            world.step();
        }
        let now = world.now();
        world.hosts[1].plane.cancel(now, |user| *user == 2);
        // Far less than the patience of a close that nobody answers.
        world.seconds(12);
        let [client, server] = [0, 1].map(|host| world.hosts[host].heard_of(2));
        if matches!(server[..], [Heard::Opened(..)]) {
            // It was too late to give it up.
            world.use_and_close(2);
        } else {
            world.check_each_was_told(0, 2);
            world.check_each_was_told(1, 2);
        }
        let reset = [Heard::Closed(2, ConnOutcome::Reset)];
        broke_off_after_the_client_had_it += usize::from(client[..].ends_with(&reset));
        for host in [0, 1] {
            let census = world.census(host);
            let kept = (census.quarantined, census.forgotten, census.slots);
            assert_eq!(kept, (0, 0, 1), "{steps}, host {host}: {}", world.story());
        }
        world.use_and_close(1);
        world.check_nothing_is_left();
    }
    assert!(
        broke_off_after_the_client_had_it > 0,
        "the moment was never met"
    );
}

#[test]
fn a_buffer_has_another_key_for_the_peer_of_another_group() {
    let mut world = World::new(Terms {
        slots: 1,
        ..Terms::default()
    });
    let mut keys = Vec::new();
    for user in 1..=3 {
        world.connect(0, user);
        world.seconds(2);
        let key = world.hosts[1].opened(user).expect("open");
        let conns = world.hosts[1].plane.conns();
        let rkey = conns.filter(|(conn, _)| **conn == key);
        keys.extend(rkey.map(|(_, record)| record.buffers.rkey.0));
        world.use_and_close(user);
        if user == 2 {
            // The group ends; the next connection makes another.
            world.idle();
        }
    }
    assert_eq!(keys.len(), 3);
    assert_eq!(keys[0], keys[1], "one group, one key");
    assert_ne!(keys[1], keys[2], "a peer of the past could still write");
    world.check_nothing_is_left();
}
