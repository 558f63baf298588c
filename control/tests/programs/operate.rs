//! `pollux` against nobody, against the dead and the hanging, and against a stand-in.

use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use crate::support::{FakeAppliance, Place, is_one_line, pollux, run, text_of};
use serde_json::Value;

fn fake(place: &Place) -> FakeAppliance {
    FakeAppliance::start(&place.path("control.sock"))
}

#[test]
fn without_an_appliance_the_missing_socket_is_named() {
    let socket = text_of(&Place::new().path("control.sock"));
    for args in [
        &["show", "links"][..],
        &["stats"],
        &["set", "poll", "busy"],
        &["latency", "127.0.0.1:1"],
        &["stop"],
        &["--json", "show", "conns"],
    ] {
        let mut all = vec!["--socket", &socket];
        all.extend(args);
        let ended = pollux(&all);
        assert_eq!(
            (ended.status, ended.out.as_str()),
            (Some(69), ""),
            "{ended:?}"
        );
        assert_eq!(
            ended.err,
            format!(
                "pollux: no appliance is running (no socket at {socket}); start polluxd or give \
                 --socket\n"
            )
        );
    }
}

#[test]
fn a_dead_socket_is_told_apart_from_a_missing_one() {
    let place = Place::new();
    let path = place.path("control.sock");
    drop(UnixListener::bind(&path).expect("bind"));
    let ended = pollux(&["--socket", &text_of(&path), "show", "links"]);
    assert_eq!(ended.status, Some(69), "{ended:?}");
    assert!(
        is_one_line(&ended.err) && ended.err.contains("its polluxd has died"),
        "{ended:?}"
    );
}

#[test]
fn what_is_no_socket_is_named() {
    let place = Place::new();
    let path = place.path("file");
    std::fs::write(&path, "").expect("file");
    let ended = pollux(&["--socket", &text_of(&path), "show", "links"]);
    assert_eq!(ended.status, Some(69), "{ended:?}");
    assert!(
        is_one_line(&ended.err) && ended.err.contains("is not a control socket"),
        "{ended:?}"
    );
}

#[test]
fn an_appliance_that_hangs_is_given_up_with_its_pid() {
    let place = Place::new();
    let path = place.path("control.sock");
    // Connections are queued by the kernel; nobody answers.
    let _hanging = UnixListener::bind(&path).expect("bind");
    let ended = pollux(&["--socket", &text_of(&path), "show", "links"]);
    assert_eq!(ended.status, Some(69), "{ended:?}");
    let expected = format!(
        "pollux: the appliance (pid {}) did not answer within 3 s on {}; it hangs or is stopped\n",
        std::process::id(),
        path.display()
    );
    assert_eq!(ended.err, expected);
}

#[test]
fn a_wrong_command_line_is_a_usage_error_and_help_is_none() {
    for args in [
        &["shwo"][..],
        &["show", "link"],
        &["set", "poll", "bussy"],
        &["--socket"],
        &[],
    ] {
        let ended = pollux(args);
        assert_eq!(
            (ended.status, ended.out.as_str()),
            (Some(64), ""),
            "{args:?} {ended:?}"
        );
    }
    assert!(pollux(&["show", "link"]).err.contains("links"));
    let ended = pollux(&["--help"]);
    assert_eq!(
        (ended.status, ended.err.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
}

#[test]
fn views_are_shown_as_text_and_as_json() {
    let place = Place::new();
    let fake = fake(&place);
    let text = pollux(&["--socket", &fake.socket, "show", "appliance"]);
    assert_eq!(text.status, Some(0), "{text:?}");
    assert!(
        text.out.starts_with("polluxd \"fake\" version 1, pid "),
        "{text:?}"
    );
    let json = pollux(&["--socket", &fake.socket, "show", "appliance", "--json"]);
    let value: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(value["uptime_s"], 61);
    let none = pollux(&["--socket", &fake.socket, "show", "links"]);
    assert_eq!((none.status, none.out.as_str()), (Some(0), "no links\n"));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let place = Place::new();
    let fake = fake(&place);
    let program = env!("CARGO_BIN_EXE_pollux");
    for arguments in [
        "show conns",
        "--json show conns",
        "--help",
        "stats --watch 0.01",
    ] {
        let script = format!(
            "set -o pipefail; {program} --socket {} {arguments} | head -n 1",
            fake.socket
        );
        let ended = run(Command::new("bash").args(["-c", &script]));
        assert_eq!(
            (ended.status, ended.err.as_str()),
            (Some(0), ""),
            "{arguments}: {ended:?}"
        );
        assert_eq!(ended.out.lines().count(), 1);
    }
    // A reader that is gone before the first byte.
    let mut child = Command::new(program)
        .args(["--socket", &fake.socket, "show", "conns"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(
        (ended.status.code(), ended.stderr.as_slice()),
        (Some(0), &b""[..])
    );
}

#[test]
fn what_the_appliance_refuses_is_one_line_and_a_failure() {
    let place = Place::new();
    let fake = fake(&place);
    let ended = pollux(&[
        "--socket",
        &fake.socket,
        "set",
        "poll",
        "busy",
        "--worker",
        "9",
    ]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert_eq!(
        ended.err,
        "pollux: worker 9 does not exist; there is worker 0\n"
    );
    let ended = pollux(&["--socket", &fake.socket, "stats", "--clear"]);
    assert_eq!(ended.status, Some(75), "{ended:?}");
}

#[test]
fn a_latency_table_has_the_columns_of_the_trade() {
    let place = Place::new();
    let fake = fake(&place);
    let ended = pollux(&[
        "--socket",
        &fake.socket,
        "latency",
        "127.0.0.1:7001",
        "--sizes",
        "64",
    ]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let columns: Vec<&str> = ended
        .out
        .lines()
        .nth(3)
        .unwrap_or("")
        .split_whitespace()
        .collect();
    assert_eq!(
        columns,
        [
            "#bytes",
            "#iterations",
            "t_min",
            "t_p50",
            "t_avg",
            "t_p90",
            "t_p99",
            "t_p99.9",
            "t_max",
            "stdev"
        ]
    );
    assert!(ended.out.contains("n/a"), "{ended:?}");
}

#[test]
fn counters_are_watched_for_a_number_of_samples() {
    let place = Place::new();
    let fake = fake(&place);
    let watch = [
        "--socket",
        &fake.socket,
        "stats",
        "--watch",
        "0.01",
        "--count",
        "3",
    ];
    let ended = pollux(&watch);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.out.contains("worker.0.passes"), "{ended:?}");
    assert_eq!(
        ended.out.matches("no counter has moved").count(),
        2,
        "{ended:?}"
    );
    let json = run(Command::new(env!("CARGO_BIN_EXE_pollux"))
        .arg("--json")
        .args(watch));
    let samples: Vec<Value> = json
        .out
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(samples.len(), 3);
}

#[test]
fn settings_are_echoed() {
    let place = Place::new();
    let fake = fake(&place);
    for (args, echo) in [
        (&["inline", "on"][..], "inline: on\n"),
        (&["inline", "off"], "inline: off\n"),
        (&["inline", "64"], "inline: 64\n"),
        (&["poll", "busy"], "poll: busy\n"),
        (&["log", "debug"], "log: debug\n"),
        (
            &["poll", "adaptive", "--worker", "0"],
            "poll: adaptive on worker 0\n",
        ),
    ] {
        let mut all = vec!["--socket", &fake.socket, "set"];
        all.extend(args);
        let ended = pollux(&all);
        assert_eq!(
            (ended.status, ended.out.as_str()),
            (Some(0), echo),
            "{ended:?}"
        );
    }
}

#[test]
fn a_stop_that_is_waited_for_and_does_not_come_is_a_failure() {
    let place = Place::new();
    let fake = fake(&place);
    let ended = pollux(&["--socket", &fake.socket, "stop"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.out.ends_with("is stopping\n"), "{ended:?}");
    // The stand-in is this very process, which stays.
    let ended = pollux(&["--socket", &fake.socket, "stop", "--wait", "0.05"]);
    assert_eq!(ended.status, Some(75), "{ended:?}");
    assert!(ended.err.contains("still runs after 0.05 s"), "{ended:?}");
}

#[test]
fn any_method_can_be_called_and_discovered() {
    let place = Place::new();
    let fake = fake(&place);
    let ended = pollux(&["--socket", &fake.socket, "rpc", "rpc.discover"]);
    let listed: Value = serde_json::from_str(&ended.out).expect("JSON");
    let names: Vec<&str> = listed["methods"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|method| method["name"].as_str())
        .collect();
    assert!(names.contains(&"latency.run") && names.contains(&"rpc.discover"));
    let ended = pollux(&["--socket", &fake.socket, "rpc", "link.lst"]);
    assert_eq!(ended.status, Some(64), "{ended:?}");
    assert!(
        ended.err.contains("did you mean \"link.list\"?"),
        "{ended:?}"
    );
    let ended = pollux(&["--socket", &fake.socket, "rpc", "link.list", "{"]);
    assert_eq!(ended.status, Some(64), "{ended:?}");
}

#[test]
fn a_configuration_is_checked_without_an_appliance() {
    let place = Place::new();
    let good = place.config("");
    let ended = pollux(&["check", "--config", &good]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(
        ended.out.starts_with(&format!("{good}: no mistakes\n")),
        "{ended:?}"
    );
    let json = pollux(&["check", "--config", &good, "--json"]);
    let plan: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(plan["workers"].as_array().map(Vec::len), Some(1));
    let bad = place.config("[attach]\nslots = 0\nrmb = 1\n");
    let ended = pollux(&["check", "--config", &bad]);
    assert_eq!(ended.status, Some(78), "{ended:?}");
    let lines: Vec<&str> = ended.err.lines().collect();
    assert_eq!(lines.len(), 3, "{ended:?}");
    assert!(
        lines[0].starts_with(&format!("{bad}:9: attach.slots: ")),
        "{ended:?}"
    );
    assert_eq!(lines[2], format!("pollux: {bad}: 2 mistakes"));
}

#[test]
fn completions_and_man_pages_are_written() {
    for shell in ["bash", "zsh", "fish"] {
        let ended = pollux(&["completions", shell]);
        assert_eq!(ended.status, Some(0), "{ended:?}");
        assert!(ended.out.contains("fallbacks"), "{shell}");
    }
    let place = Place::new();
    let dir = place.path("man");
    std::fs::create_dir(&dir).expect("folder");
    let ended = pollux(&["man", "--dir", &text_of(&dir)]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    for page in ["pollux.1", "polluxd.1", "pollux-latency.1"] {
        let text = std::fs::read_to_string(dir.join(page)).expect(page);
        assert!(text.contains(".TH"), "{page}");
    }
    let ended = pollux(&["man", "--dir", "/no/such"]);
    assert_eq!(ended.status, Some(71), "{ended:?}");
    assert!(is_one_line(&ended.err), "{ended:?}");
}
