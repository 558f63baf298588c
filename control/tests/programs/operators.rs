//! An appliance that is operated while it runs: settings, ends, and what it costs when nothing happens.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::Command;

use pollux_control::cores;
use rustix::process::Signal;

use crate::running::{Running, files, pair};
use crate::support::{Ended, Place, pollux, run, text_of};

/// A connection that stays on TCP, of which the log tells at its level "info".
fn fall_back(running: &Running) -> Ended {
    let target = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = target.local_addr().expect("an address").to_string();
    let ended = running.pollux(&["latency", &address, "--iterations", "1"]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    ended
}

#[test]
fn the_log_tells_more_or_less_from_the_moment_it_is_told_to() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    for level in ["info", "warn", "error", "debug"] {
        let ended = running.pollux(&["set", "log", level]);
        assert_eq!(
            (ended.status, ended.out),
            (Some(0), format!("log: {level}\n"))
        );
        fall_back(&running);
        let shown = running.pollux(&["show", "config", "--toml"]).out;
        assert!(shown.contains(&format!("log = \"{level}\"")), "{shown}");
    }
    let wrong = running.pollux(&["set", "log", "inf"]);
    assert_eq!(wrong.status, Some(64), "{wrong:?}");
    assert!(wrong.err.contains("info"), "{wrong:?}");
    running.signal(Signal::TERM);
    let (status, log) = running.end();
    assert_eq!(status, Some(0), "{log}");
    // At "info" and at "debug", and not at the two between them.
    assert_eq!(log.matches("connection stays on TCP").count(), 2, "{log}");
    assert!(log.contains("stopped"), "{log}");
}

#[test]
fn the_level_can_be_found_and_completed() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    let listed = running.json(&["rpc", "rpc.discover"]);
    let methods = listed["methods"].as_array().expect("a list");
    let found = methods.iter().find(|method| method["name"] == "log.set");
    let legal = found.expect("log.set")["params"][0]["legal"].to_string();
    assert!(legal.contains("error, warn, info, debug, trace"), "{legal}");
    for (shell, word) in [
        ("bash", "error warn info debug trace"),
        ("zsh", "trace"),
        ("fish", "log"),
    ] {
        let completions = pollux(&["completions", shell]).out;
        assert!(completions.contains(word), "{shell}");
    }
    let params = [r#"{"level": "loud"}"#, "{}"];
    for wrong in params {
        let ended = running.pollux(&["rpc", "log.set", wrong]);
        assert_eq!(ended.status, Some(64), "{ended:?}");
    }
}

#[test]
fn what_is_in_force_can_be_written_out_and_starts_again_with_the_same_values() {
    let place = Place::new();
    let sections = "poll = \"adaptive\"\nspin_us = 20\nconns_max = 77\n\
                    [attach]\nslots = 3\nsndbuf = \"32K\"\nsession_memory_max = \"1M\"\n\
                    memory_max = \"3M\"\nsessions_max = 5\nsessions_per_process_max = 2\n\
                    [handshake]\nper_peer_max = 9\nunder_way_max = 11\ncredits = \"bare\"\n\
                    [[peer]]\naddress = \"192.0.2.0/24\"\n\
                    [[service]]\nkind = \"echo\"\nlisten = \"127.0.0.1:0\"\n";
    let running = Running::start(&place, "a", sections);
    assert_eq!(
        running.pollux(&["set", "poll", "interrupt"]).status,
        Some(0)
    );
    assert_eq!(running.pollux(&["set", "log", "debug"]).status, Some(0));
    let saved = running.pollux(&["show", "config", "--toml"]).out;
    let file = place.path("saved.toml");
    fs::write(&file, &saved).expect("write");
    assert_eq!(running.pollux(&["stop", "--wait"]).status, Some(0));
    assert_eq!(running.end().0, Some(0));

    let again = Running::start_from(&place, "a", &text_of(&file));
    assert_eq!(again.pollux(&["show", "config", "--toml"]).out, saved);
    assert_eq!(again.json(&["show", "workers"])[0]["poll"], "interrupt");
    for line in [
        "log = \"debug\"",
        "poll = \"interrupt\"",
        "conns_max = 77",
        "memory_max = \"3M\"",
        "under_way_max = 11",
        "address = \"192.0.2.0/24\"",
    ] {
        assert!(saved.contains(line), "{line} is not in\n{saved}");
    }
}

/// A client of the control socket that asks and never reads: its answers cannot be delivered.
fn deaf(running: &Running) -> UnixStream {
    let mut client = UnixStream::connect(running.socket()).expect("connect");
    client.set_nonblocking(true).expect("fionbio");
    let question = b"{\"jsonrpc\":\"2.0\",\"method\":\"rpc.discover\",\"id\":1}\n";
    // Until neither the socket nor the appliance takes any more.
    let mut refused = 0;
    while refused < 100 {
        if client.write(question).is_ok_and(|count| count > 0) {
            refused = 0;
        } else {
            refused += 1;
            running.json(&["show", "appliance"]);
        }
    }
    client
}

#[test]
fn an_end_that_somebody_holds_up_comes_all_the_same() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    let _deaf = deaf(&running);
    running.signal(Signal::TERM);
    let (status, log) = running.end();
    assert_eq!(status, Some(0), "{log}");
    assert!(!place.path("a").exists());
}

#[test]
fn a_second_signal_ends_at_once_what_the_first_one_could_not() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    let _deaf = deaf(&running);
    running.signal(Signal::TERM);
    running.until_log("stopping");
    running.signal(Signal::TERM);
    let (status, log) = running.end();
    assert_eq!(status, Some(128 + 15), "{log}");
    // The next one takes over what it left.
    let next = Running::start(&place, "a", "");
    next.signal(Signal::TERM);
    assert_eq!(next.end().0, Some(0));
    assert_eq!(files(&place), Vec::<std::path::PathBuf>::new());
}

/// Nanoseconds that the first worker's thread has run, and how often it was given a core.
fn worker_time(running: &Running) -> (u64, u64) {
    let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).expect("tasks");
    for task in tasks {
        let task = task.expect("a task").path();
        let name = fs::read_to_string(task.join("comm")).expect("a name");
        if name.trim() == "pollux-w0" {
            let text = fs::read_to_string(task.join("schedstat")).expect("schedstat");
            let mut words = text
                .split_whitespace()
                .map(|word| word.parse().expect("a number"));
            let (run, _, slices) = (words.next(), words.next(), words.next());
            return (run.expect("a time"), slices.expect("a number"));
        }
    }
    panic!("there is no worker");
}

/// The time is that of the worker's thread, and the clock is what the control thread answers
/// meanwhile, so a loaded machine changes nothing.
#[test]
fn an_idle_worker_uses_no_core_where_it_may_sleep_and_all_of_it_where_it_may_not() {
    const CALLS: u64 = 100;
    let place = Place::new();
    let (server, client, address) = pair(&place, ["", ""], ["", ""]);
    let run = ["latency", &address, "--sizes", "64", "--iterations", "100"];
    client.json(&run);
    for mode in ["adaptive", "interrupt"] {
        for appliance in [&server, &client] {
            assert_eq!(appliance.pollux(&["set", "poll", mode]).status, Some(0));
            // A link is open, and nothing moves on it.
            assert_eq!(appliance.json(&["show", "links"])[0]["state"], "active");
            let mut before = worker_time(appliance);
            loop {
                appliance.json(&["show", "appliance"]);
                let now = worker_time(appliance);
                if now == before {
                    break;
                }
                before = now;
            }
            for _ in 0..CALLS {
                appliance.json(&["show", "appliance"]);
            }
            let (run, slices) = worker_time(appliance);
            let (run, slices) = (run - before.0, slices - before.1);
            assert!(
                slices <= CALLS / 4 && run < 10_000_000,
                "{mode}: woken {slices} times, {run} ns while {CALLS} calls were answered"
            );
        }
    }
    // The measure measures.
    assert_eq!(client.pollux(&["set", "poll", "busy"]).status, Some(0));
    let before = worker_time(&client).0;
    for _ in 0..CALLS {
        client.json(&["show", "appliance"]);
    }
    assert!(worker_time(&client).0 - before > 20_000_000);
    let workers = client.json(&["show", "workers"]);
    let share = workers[0]["busy_passes"].as_u64().expect("a number");
    assert!(
        share < workers[0]["passes"].as_u64().expect("a number") / 2,
        "{workers}"
    );
}

#[test]
fn busy_workers_on_every_core_warn_once_and_leave_the_machine_usable() {
    let place = Place::new();
    let all = cores::allowed().expect("a mask");
    let told = |log: &str| {
        let lines = log
            .lines()
            .filter(|line| line.contains("every allowed core"));
        lines.count()
    };
    // From the start: control and programs still get their turn.
    let keys = format!("cores = \"{all}\"\npoll = \"busy\"\n");
    let running = Running::start(&place, "a", &keys);
    for _ in 0..2 {
        assert_eq!(running.pollux(&["set", "poll", "adaptive"]).status, Some(0));
        assert_eq!(running.pollux(&["set", "poll", "busy"]).status, Some(0));
    }
    let workers = running.json(&["show", "workers"]);
    assert_eq!(
        workers.as_array().map(Vec::len),
        Some(all.len()),
        "{workers}"
    );
    running.signal(Signal::TERM);
    let (status, log) = running.end();
    assert_eq!((status, told(&log)), (Some(0), 1), "{log}");
    assert_eq!(log.matches("100 % use").count(), all.len(), "{log}");
    // On the last free core only: nothing is said.
    if all.len() > 1 {
        let running = Running::start(&place, "a", "poll = \"busy\"\n");
        running.signal(Signal::TERM);
        let (_, log) = running.end();
        assert_eq!(told(&log), 0, "{log}");
    }
}

#[test]
fn counters_of_control_begin_anew_when_they_are_cleared() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    fall_back(&running);
    assert_eq!(running.stat("fallbacks.total"), 1);
    assert_eq!(running.pollux(&["stats", "--clear"]).status, Some(0));
    assert_eq!(running.stat("fallbacks.total"), 0);
    // The list of them stays.
    let listed = running.json(&["show", "fallbacks"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
}

/// Not a story of its own: the process that
/// `a_panic_of_any_thread_ends_the_process_with_its_message` starts. Its word comes as a filter.
#[test]
fn process_that_panics() {
    if !std::env::args().any(|word| word == "in-a-thread") {
        return;
    }
    pollux_control::start::end_with_any_panic();
    let thread = std::thread::spawn(|| panic!("a bug of ours"));
    let _ = thread.join();
    println!("still alive");
}

#[test]
fn a_panic_of_any_thread_ends_the_process_with_its_message() {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([
        "--exact",
        "operators::process_that_panics",
        "--nocapture",
        "in-a-thread",
    ]);
    let ended = run(&mut command);
    assert_eq!(ended.status, None, "{ended:?}");
    assert!(ended.err.contains("a bug of ours"), "{ended:?}");
    assert!(!ended.out.contains("still alive"), "{ended:?}");
}
