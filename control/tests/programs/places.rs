//! Where an appliance has to run: as an ordinary user, in a container, with little memory to lock,
//! without hugepages, on a root that cannot be written.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::running::{Running, files, pair};
use crate::support::{Place, first_and_last_core, text_of};

#[test]
fn sixty_four_kibibytes_of_locked_memory_are_enough() {
    let place = Place::new();
    let config = place.config_of("a", "");
    let running = Running::start_with_limits(&place, "a", &config, &["--memlock=65536:65536"]);
    let memory = running.json(&["show", "memory"]);
    assert_eq!(memory["memlock_limit_bytes"], 65536, "{memory}");
    assert!(running.json(&["show", "devices"])[0]["inline"]["granted_bytes"].as_u64() > Some(0));
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, Some(0));
}

#[test]
fn without_hugepages_ordinary_ones_do_and_sizes_that_are_not_used_are_not_mentioned() {
    let place = Place::new();
    let more = "[memory]\nhugepages = \"auto\"\n";
    let (server, client, address) = pair(&place, ["", ""], [more, more]);
    let table = client.json(&["latency", &address, "--sizes", "64", "--iterations", "50"]);
    assert_eq!(table["transport"], "smc-r", "{table}");
    for running in [server, client] {
        running.signal(Signal::TERM);
        let (status, log) = running.end();
        assert_eq!(status, Some(0), "{log}");
        assert!(!log.contains("1G") && !log.contains("1048576"), "{log}");
    }
}

#[test]
fn one_core_is_enough_and_four_workers_on_it_are_refused() {
    let place = Place::new();
    let (core, _) = first_and_last_core();
    let pinned = |config: &str| {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string(), env!("CARGO_BIN_EXE_polluxd")]);
        command.args(["--config", config]);
        command
    };
    let config = place.config_of("a", "");
    let running = Running::start_command(&place, "a", pinned(&config));
    assert_eq!(running.json(&["show", "workers"])[0]["core"], core);
    let config = place.config_of("b", "cores = \"0-3\"\n");
    let ended = crate::support::run(&mut pinned(&config));
    assert_eq!(ended.status, Some(78), "{ended:?}");
    assert!(
        ended.err.contains(&format!("allowed set {core}\n")),
        "{ended:?}"
    );
}

mod needs_root {
    use super::*;

    /// Whoever has nothing.
    const NOBODY: &str = "65534";

    /// Gives a place to [`NOBODY`].
    fn give_away(place: &Place) {
        let root = text_of(&place.path(""));
        let status = Command::new("chown").args(["-R", NOBODY, &root]).status();
        assert!(status.expect("chown").success());
    }

    /// A program that nobody may read from the folder of the build.
    fn copy_of_polluxd(place: &Place) -> String {
        let copy = place.path("polluxd");
        fs::copy(env!("CARGO_BIN_EXE_polluxd"), &copy).expect("copy");
        text_of(&copy)
    }

    #[test]
    fn an_ordinary_user_runs_it_and_leaves_nothing() {
        let place = Place::new();
        let config = place.config_of("a", "");
        let program = copy_of_polluxd(&place);
        give_away(&place);
        let before = files(&place);
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            NOBODY,
            "--regid",
            NOBODY,
            "--clear-groups",
            "--no-new-privs",
        ]);
        command.args([
            "prlimit",
            "--memlock=65536:65536",
            &program,
            "--config",
            &config,
        ]);
        let running = Running::start_command(&place, "a", command);
        assert_eq!(running.json(&["show", "appliance"])["pid"], running.pid());
        running.signal(Signal::TERM);
        assert_eq!(running.end().0, Some(0));
        assert_eq!(files(&place), before);
    }

    /// A container: its own users, processes and mounts, a root that cannot be written, one folder that
    /// can.
    #[test]
    fn a_container_with_a_root_that_cannot_be_written_runs_it() {
        let place = Place::new();
        let config = place.config_of("a", "[memory]\nhugepages = \"auto\"\n");
        let at = text_of(&place.path(""));
        let script = "set -e; mount --bind \"$0\" \"$0\"; mount -o remount,bind,ro /; \
                      ! touch /is-written 2>/dev/null; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
        ]);
        command.args([
            script,
            at.trim_end_matches('/'),
            "prlimit",
            "--memlock=65536:65536",
        ]);
        command.args([env!("CARGO_BIN_EXE_polluxd"), "--config", &config]);
        let running = Running::start_command(&place, "a", command);
        // Inside it is the first process of all.
        assert_eq!(running.json(&["show", "appliance"])["pid"], 1);
        assert_eq!(running.pollux(&["stop"]).status, Some(0));
        let (status, log) = running.end();
        assert_eq!(status, Some(0), "{log}");
        assert!(!place.path("a").exists());
    }

    /// As left by a start of another user: the next one says whose it is, or takes it over.
    #[test]
    fn what_root_left_behind_is_told_to_an_ordinary_user() {
        let place = Place::new();
        let config = place.config_of("a", "");
        let running = Running::start_from(&place, "a", &config);
        running.signal(Signal::KILL);
        assert_eq!(running.end().0, None);
        let program = copy_of_polluxd(&place);
        let root = text_of(&place.path(""));
        let opened = Command::new("chmod").args(["755", &root]).status();
        assert!(opened.expect("chmod").success());
        let mut command = Command::new("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
        command.args([&program, "--config", &config]);
        let ended = crate::support::run(&mut command);
        assert!(matches!(ended.status, Some(71 | 75 | 78)), "{ended:?}");
        assert!(ended.err.contains(root.trim_end_matches('/')), "{ended:?}");
        assert!(!ended.err.contains("panicked"), "{ended:?}");
        // And root comes again.
        let again = Running::start_from(&place, "a", &config);
        again.signal(Signal::TERM);
        assert_eq!(again.end().0, Some(0));
    }
}
