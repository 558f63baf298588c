//! A running `polluxd`: how it begins and ends, and how `pollux` operates it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use pollux_control::cores;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Ended, Place, is_one_line, pollux, polluxd, text_of};

/// A `polluxd` that has said it is ready. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    socket: String,
    /// What it has said so far.
    said: Arc<Mutex<String>>,
    /// Collects the log; ends with the process.
    log: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts one named `name` in `place`, and reads its log until it is ready.
    pub(crate) fn start(place: &Place, name: &str, more: &str) -> Running {
        Running::start_from(place, name, &place.config_of(name, more))
    }

    pub(crate) fn start_from(place: &Place, name: &str, config: &str) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polluxd"));
        command.args(["--config", config]);
        Running::start_command(place, name, command)
    }

    /// As [`Running::start_from`], with these options for `prlimit`.
    pub(crate) fn start_with_limits(
        place: &Place,
        name: &str,
        config: &str,
        limits: &[&str],
    ) -> Running {
        let mut command = Command::new("prlimit");
        command.args(limits).arg(env!("CARGO_BIN_EXE_polluxd"));
        command.args(["--config", config]);
        Running::start_command(place, name, command)
    }

    /// Starts it with a command of the caller's, which ends by being it.
    pub(crate) fn start_command(place: &Place, name: &str, mut command: Command) -> Running {
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("polluxd starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut said = String::new();
        while !said.contains(" ready ") {
            let count = log.read_line(&mut said).expect("text");
            assert_ne!(count, 0, "polluxd ended before it was ready:\n{said}");
        }
        let said = Arc::new(Mutex::new(said));
        let all = Arc::clone(&said);
        let log = std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                let mut all = all.lock().expect("no panic");
                all.push_str(&line);
                all.push('\n');
            }
        });
        let socket = text_of(&place.path(name).join("control.sock"));
        Running {
            child,
            socket,
            said,
            log: Some(log),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Path of its control socket.
    pub(crate) fn socket(&self) -> &str {
        &self.socket
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a pid");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits for the end; gives the status and the log.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("it ends").code();
        self.log.take().expect("a log").join().expect("no panic");
        let log = self.said.lock().expect("no panic").clone();
        (status, log)
    }

    /// Waits until the log has a word.
    pub(crate) fn until_log(&self, word: &str) {
        while !self.said.lock().expect("no panic").contains(word) {
            std::thread::yield_now();
        }
    }

    /// One counter.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = self.json(&["stats"]);
        stats["values"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("no counter {name} in {stats}"))
    }

    pub(crate) fn pollux(&self, args: &[&str]) -> Ended {
        let mut all = vec!["--socket", &self.socket];
        all.extend(args);
        pollux(&all)
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(args);
        let ended = self.pollux(&all);
        assert_eq!(ended.status, Some(0), "{args:?} {ended:?}");
        serde_json::from_str(&ended.out).expect("JSON")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Every file below a place but its configurations, sorted.
pub(crate) fn files(place: &Place) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![place.path("")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_none_or(|extension| extension != "toml") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A server with an echo service and a client that knows it as a peer, with these device keys and
/// these further sections, and the service's address.
pub(crate) fn pair(
    place: &Place,
    [server, client]: [&str; 2],
    [more_server, more_client]: [&str; 2],
) -> (Running, Running, String) {
    // A port that was free a moment ago; the server needs to be told one.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = free.expect("a free port").to_string();
    let echo = format!("{more_server}[[service]]\nkind = \"echo\"\nlisten = \"{address}\"\n");
    let config = place.config_with("server", server, &echo);
    let server = Running::start_from(place, "server", &config);
    let peer = format!("{more_client}[[peer]]\naddress = \"{address}\"\n");
    let config = place.config_with("client", client, &peer);
    let client = Running::start_from(place, "client", &config);
    (server, client, address)
}

#[test]
fn a_signal_ends_it_in_order_with_status_0_and_nothing_is_left() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let running = Running::start(&place, "a", "");
        assert!(
            files(&place)
                .iter()
                .any(|path| path.ends_with("a/control.sock"))
        );
        running.signal(signal);
        let (status, log) = running.end();
        assert_eq!(status, Some(0), "{log}");
        assert_eq!(files(&place), Vec::<PathBuf>::new());
        assert!(!place.path("a").exists());
    }
}

#[test]
fn stop_waits_until_the_process_is_gone() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    let pid = running.child.id();
    let ended = running.pollux(&["stop", "--wait"]);
    assert_eq!(
        (ended.status, ended.out),
        (Some(0), format!("polluxd (pid {pid}) has stopped\n"))
    );
    let socket = running.socket.clone();
    assert_eq!(running.end().0, Some(0));
    let ended = pollux(&["--socket", &socket, "show", "appliance"]);
    assert_eq!(ended.status, Some(69), "{ended:?}");
}

#[test]
fn a_second_start_is_refused_and_does_not_disturb_the_first() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    let config = place.config_of("a", "");
    let second = polluxd(&["--config", &config]);
    assert_eq!(second.status, Some(75), "{second:?}");
    let expected = format!(
        "polluxd: another instance (pid {}) answers on {}; use another appliance.name or \
         runtime_dir\n",
        running.child.id(),
        running.socket
    );
    assert!(second.err.ends_with(&expected), "{second:?}");
    assert_eq!(
        running.json(&["show", "appliance"])["pid"],
        running.child.id()
    );
}

#[test]
fn a_killed_appliance_is_no_obstacle_for_the_next_and_nothing_piles_up() {
    let place = Place::new();
    let config = place.config_of("a", "");
    let mut left = Vec::new();
    for round in 0..5 {
        let running = Running::start_from(&place, "a", &config);
        running.signal(Signal::KILL);
        assert_eq!(running.end().0, None);
        let now = files(&place);
        assert!(!now.is_empty());
        if round > 0 {
            assert_eq!(now, left, "round {round}");
        }
        left = now;
    }
    let running = Running::start_from(&place, "a", &config);
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, Some(0));
    assert_eq!(files(&place), Vec::<PathBuf>::new());
}

#[test]
fn a_stopped_appliance_is_given_up_with_its_pid_and_answers_when_it_goes_on() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    running.signal(Signal::STOP);
    let ended = running.pollux(&["show", "workers"]);
    assert_eq!(ended.status, Some(69), "{ended:?}");
    let expected = format!(
        "pollux: the appliance (pid {}) did not answer",
        running.child.id()
    );
    assert!(ended.err.starts_with(&expected), "{ended:?}");
    running.signal(Signal::CONT);
    assert_eq!(
        running.json(&["show", "workers"]).as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn only_workers_run_on_the_cores_of_workers() {
    if cores::allowed().expect("a mask").len() < 2 {
        eprintln!("skipped: this process has one core only");
        return;
    }
    let place = Place::new();
    // With every thread that there can be: control, fabric, gateway, workers.
    let forward = "[[forward]]\nname = \"out\"\nlisten = \"smc:127.0.0.1:0\"\n\
                   connect = \"tcp:127.0.0.1:1\"\n";
    let running = Running::start(&place, "a", forward);
    let core = running.json(&["show", "workers"])[0]["core"].to_string();
    let mut on_it = 0;
    for task in fs::read_dir(format!("/proc/{}/task", running.child.id())).expect("tasks") {
        let status = fs::read_to_string(task.expect("a task").path().join("status"));
        let status = status.expect("a living thread");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let allowed: cores::CoreSet = line.expect("a mask").parse().expect("a list");
        if allowed.contains(core.parse().expect("a number")) {
            assert_eq!(allowed.len(), 1, "{status}");
            on_it += 1;
        }
    }
    assert_eq!(on_it, 1);
}

#[test]
fn settings_take_effect_and_unknown_workers_are_refused() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    for mode in ["interrupt", "adaptive"] {
        assert_eq!(running.pollux(&["set", "poll", mode]).status, Some(0));
        assert_eq!(running.json(&["show", "workers"])[0]["poll"], mode);
    }
    let ended = running.pollux(&["set", "poll", "busy", "--worker", "7"]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert!(ended.err.contains("no worker 7"), "{ended:?}");
    assert_eq!(running.pollux(&["set", "inline", "off"]).status, Some(0));
}

#[test]
fn everything_that_can_be_shown_is_shown_in_both_forms() {
    let place = Place::new();
    let running = Running::start(&place, "a", "");
    for what in [
        "appliance",
        "devices",
        "links",
        "groups",
        "conns",
        "workers",
        "memory",
        "config",
        "fallbacks",
    ] {
        let ended = running.pollux(&["show", what]);
        assert_eq!(
            (ended.status, ended.err.as_str()),
            (Some(0), ""),
            "{what} {ended:?}"
        );
        assert!(ended.out.ends_with('\n'), "{ended:?}");
        running.json(&["show", what]);
    }
    assert!(running.json(&["stats"])["values"].is_object());
    // What is shown as a configuration configures the same.
    let toml = running.pollux(&["show", "config", "--toml"]).out;
    let file = place.path("shown.toml");
    fs::write(&file, &toml).expect("write");
    let shown = pollux_control::config::Config::from_file(&file).expect("it loads");
    let written = place.config_of("a", "");
    let given = pollux_control::config::Config::from_file(written.as_ref()).expect("it loads");
    assert_eq!(shown, given);
}

#[test]
fn two_appliances_measure_each_other_over_smc_and_show_what_carries_it() {
    let place = Place::new();
    // A port that was free a moment ago; the server needs to be told one.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = free.expect("a free port").to_string();
    let echo = format!("[[service]]\nkind = \"echo\"\nlisten = \"{address}\"\n");
    let _server = Running::start(&place, "server", &echo);
    let peer = format!("[[peer]]\naddress = \"{address}\"\n");
    let client = Running::start(&place, "client", &peer);

    let table = client.json(&[
        "latency",
        &address,
        "--sizes",
        "1,1K",
        "--iterations",
        "200",
    ]);
    assert_eq!(table["transport"], "smc-r", "{table}");
    assert_eq!(table["rows"].as_array().map(Vec::len), Some(2));
    for (row, bytes) in [(0, 1), (1, 1024)] {
        let row = &table["rows"][row];
        assert_eq!(
            (&row["bytes"], &row["iterations"]),
            (&bytes.into(), &200.into())
        );
        // 200 samples: 20 lie above the 90th percentile, two above the 99th.
        assert!(row["p90"].is_number() && row["p99"].is_null(), "{row}");
    }
    let links = client.json(&["show", "links"]);
    assert_eq!(links.as_array().map(Vec::len), Some(1), "{links}");
    assert_eq!(
        (&links[0]["role"], &links[0]["state"]),
        (&"client".into(), &"active".into())
    );
    assert_eq!(links[0]["counters"]["rnr_naks_received"], 0);
    assert!(links[0]["inline"]["granted_bytes"].as_u64() > Some(0));
    assert_eq!(
        client.json(&["show", "groups"]).as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(
        client.json(&["show", "fallbacks"]).as_array().map(Vec::len),
        Some(0)
    );
}

#[test]
fn a_latency_run_to_nobody_is_a_failure_that_names_the_address() {
    let place = Place::new();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = free.expect("a free port").to_string();
    let running = Running::start(&place, "a", "");
    let ended = running.pollux(&["latency", &address, "--iterations", "1"]);
    assert_eq!(
        (ended.status, ended.out.as_str()),
        (Some(1), ""),
        "{ended:?}"
    );
    assert!(
        is_one_line(&ended.err) && ended.err.contains(&address),
        "{ended:?}"
    );
}
