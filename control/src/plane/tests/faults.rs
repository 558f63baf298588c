//! One thing goes wrong at each step of a handshake, and of all that follows until both sides use
//! the connection. Whatever it is, everybody is told once, both hosts go on working with each
//! other, and nothing is left behind.

use super::bed::{Heard, Terms, World};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is under way when something goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scene {
    /// The first connection of two hosts.
    First,
    /// One more, on a link that works.
    Later,
    /// Two first ones of the same client.
    Twins,
    /// A first one in each direction.
    Crossed,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// One end of the stream says no more. 0 is the client.
    End(usize),
    /// The stream breaks.
    Break,
    /// Nonsense on the stream, as if one end had said it.
    Nonsense(usize),
    /// A host is told that the other one's device is gone.
    LoseSight(usize),
    /// A host does nothing for longer than anybody waits.
    Freeze(usize),
    /// Nobody at a host wants the connection any more.
    Cancel(usize),
    /// A host dies and comes back.
    Crash(usize),
    /// A host stops in order.
    Stop(usize),
    /// A host's device refuses to register memory after so many pieces.
    NoMemory(usize, usize),
    /// A host's device refuses to connect queue pairs.
    NoPath(usize),
    /// A host's device refuses queue pairs.
    NoQueuePair(usize),
}

/// The users of a scene's connections.
fn users(scene: Scene) -> &'static [u32] {
    match scene {
        Scene::First | Scene::Later => &[1],
        Scene::Twins | Scene::Crossed => &[1, 2],
    }
}

fn begin(world: &mut World, scene: Scene) {
    match scene {
        Scene::First => drop(world.connect(0, 1)),
        Scene::Later => {
            world.check_a_new_connection_works(0, 90);
            world.connect(0, 1);
        }
        Scene::Twins => {
            world.connect(0, 1);
            world.connect(0, 2);
        }
        Scene::Crossed => {
            world.connect(0, 1);
            world.connect(1, 2);
        }
    }
}

/// The world of a scene after so many steps, and whether everything was open before.
fn play(scene: Scene, steps: usize) -> (World, bool) {
    let mut world = World::new(Terms {
        // As few as will do, so that what is left behind is soon missed.
        slots: 3,
        links: 2,
        conns: 2,
        ..Terms::default()
    });
    begin(&mut world, scene);
    let mut all_open = false;
    for _ in 0..steps {
        all_open = users(scene).iter().all(|user| {
            let hosts = world.hosts.iter();
            hosts
                .map(|host| host.opened(*user))
                .all(|conn| conn.is_some())
        });
        world.step_or_jump();
    }
    (world, all_open)
}

fn inflict(world: &mut World, fault: Fault) {
    let now = world.now();
    let cable = world.cables.last().map(|(_, cable)| cable.clone());
    match (fault, cable) {
        (Fault::End(end), Some(cable)) => cable.end(end),
        (Fault::Break, Some(cable)) => cable.break_off(),
        (Fault::Nonsense(end), Some(cable)) => cable.say(end, b"GET / HTTP/1.1\r\n\r\n"),
        (Fault::End(_) | Fault::Break | Fault::Nonsense(_), None) => {}
        (Fault::LoseSight(host), _) => world.lose_sight(host),
        (Fault::Freeze(host), _) => world.freeze(host),
        (Fault::Cancel(host), _) => world.hosts[host].plane.cancel(now, |user| *user == 1),
        (Fault::Crash(host), _) => world.crash(host),
        (Fault::Stop(host), _) => world.stop(host),
        (Fault::NoMemory(host, left), _) => world.limit_registrations(host, left),
        (Fault::NoPath(host), _) => world.limit_paths(host, 0),
        (Fault::NoQueuePair(host), _) => world.limit_queue_pairs(host, 0),
    }
}

fn mend(world: &mut World, fault: Fault) {
    match fault {
        Fault::Freeze(host) => world.thaw(host),
        Fault::NoMemory(host, _) => world.limit_registrations(host, usize::MAX),
        Fault::NoPath(host) => world.limit_paths(host, usize::MAX),
        Fault::NoQueuePair(host) => world.limit_queue_pairs(host, usize::MAX),
        Fault::End(_)
        | Fault::Break
        | Fault::Nonsense(_)
        | Fault::LoseSight(_)
        | Fault::Cancel(_)
        | Fault::Crash(_)
        | Fault::Stop(_) => {}
    }
}

/// Hosts that are the same as before, and still run.
fn survivors(fault: Fault) -> &'static [usize] {
    match fault {
        Fault::Crash(0) | Fault::Stop(0) => &[1],
        Fault::Crash(_) | Fault::Stop(_) => &[0],
        _ => &[0, 1],
    }
}

/// Plays a scene in which `fault` happens after `steps` steps. Says whether all was open before that.
fn try_one(scene: Scene, fault: Fault, steps: usize) -> bool {
    let (mut world, all_open) = play(scene, steps);
    if world.was_vain() {
        // The same as one step earlier.
        return all_open;
    }
    inflict(&mut world, fault);
    world.seconds(40);
    mend(&mut world, fault);
    world.seconds(40);
    for user in users(scene) {
        for host in survivors(fault) {
            world.close(*host, *user);
        }
    }
    // A peer that does not know the connection never answers the close.
    world.seconds(80);
    for user in users(scene) {
        for host in [0, 1] {
            if fault != Fault::Crash(host) {
                world.check_each_was_told(host, *user);
            }
        }
    }
    match fault {
        Fault::Stop(host) => {
            assert!(world.hosts[host].plane.is_stopped(), "{}", world.story());
            assert!(world.hosts[host].heard.contains(&Heard::Stopped));
        }
        _ => {
            world.check_a_new_connection_works(0, 91);
            world.check_a_new_connection_works(1, 92);
        }
    }
    world.check_nothing_is_left();
    all_open
}

/// Lets `fault` happen at each step of `scene`, and tells of all that failed.
fn try_all(scene: Scene, faults: &[Fault]) {
    let mut failures = Vec::new();
    let mut tried = 0;
    for fault in faults {
        for steps in 0.. {
            tried += 1;
            let one = catch_unwind(AssertUnwindSafe(|| try_one(scene, *fault, steps)));
            match one {
                Ok(false) => {}
                Ok(true) => break,
                Err(_) => failures.push((*fault, steps)),
            }
            if steps > 400 {
                break;
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{scene:?}: of {tried} failed: {failures:?}"
    );
}

macro_rules! each_scene {
    ($($name:ident: $faults:expr;)+) => {
        $(mod $name {
            use super::{Fault::*, Scene, try_all};

            #[test]
            fn at_each_step_of_a_first_contact() {
                try_all(Scene::First, $faults);
            }

            #[test]
            fn at_each_step_of_a_later_contact() {
                try_all(Scene::Later, $faults);
            }

            #[test]
            fn at_each_step_of_two_first_contacts_of_one_client() {
                try_all(Scene::Twins, $faults);
            }

            #[test]
            fn at_each_step_of_two_first_contacts_that_cross() {
                try_all(Scene::Crossed, $faults);
            }
        })+
    };
}

each_scene! {
    an_end_of_the_stream: &[End(0), End(1), Break];
    nonsense: &[Nonsense(0), Nonsense(1)];
    a_link_that_fails: &[LoseSight(0), LoseSight(1)];
    silence: &[Freeze(0), Freeze(1)];
    a_user_who_goes: &[Cancel(0), Cancel(1)];
    a_crash: &[Crash(0), Crash(1)];
    an_orderly_stop: &[Stop(0), Stop(1)];
    memory_refused: &[NoMemory(0, 0), NoMemory(1, 0)];
    paths_refused: &[NoPath(0), NoPath(1)];
    queue_pairs_refused: &[NoQueuePair(0), NoQueuePair(1)];
}

#[test]
fn memory_refused_for_any_of_the_pieces_that_a_contact_needs() {
    for scene in [Scene::First, Scene::Later, Scene::Twins, Scene::Crossed] {
        for (host, left) in (0..8).map(|count| (count % 2, count / 2 + 1)) {
            try_one(scene, Fault::NoMemory(host, left), 0);
        }
    }
}
