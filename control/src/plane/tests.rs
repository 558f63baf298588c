//! Two planes against each other: what every step of a handshake leaves behind when something goes
//! wrong there.

mod bed;
mod pipe;

use self::bed::{Heard, Terms, World};
use pollux_proto::link::Role;
use pollux_wire::clc::Diagnosis;

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
