//! `pollux doctor` says what `polluxd` would: what it calls a failure ends the start, with the same
//! words and status, and what it finds well starts. The table of mistakes (`mistakes.rs`) asks both too.

use std::net::TcpListener;
use std::process::Command;

use pollux_control::config::Config;
use pollux_control::host::Host;
use pollux_control::start::{Prepared, prepare};
use serde_json::Value;

use crate::running::{Running, files};
use crate::support::{Ended, Place, first_and_last_core, pollux, refused, run, text_of};

/// Takes what the configuration names, in this process, on a thread of its own.
fn hold(config: &str) -> Prepared {
    let config = Config::from_file(config.as_ref()).expect("a good configuration");
    let start = std::thread::spawn(|| prepare(config, String::new(), &Host::current()));
    start.join().expect("no panic").expect("a free host")
}

fn json(args: &[&str]) -> (Option<i32>, Value) {
    let mut all = vec!["--json", "doctor"];
    all.extend(args);
    let ended = pollux(&all);
    let report = serde_json::from_str(&ended.out).unwrap_or_else(|error| {
        panic!("{error}: {ended:?}");
    });
    (ended.status, report)
}

fn verdicts(report: &Value, verdict: &str) -> usize {
    let checks = report["checks"].as_array().expect("a list");
    checks
        .iter()
        .filter(|check| check["verdict"] == verdict)
        .count()
}

#[test]
fn what_is_found_well_starts_and_then_is_in_the_way() {
    let place = Place::new();
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let free = free.expect("a free port");
    for (name, more) in [
        ("plain", String::new()),
        ("sleeping", "poll = \"interrupt\"\n".to_string()),
        (
            "serving",
            format!(
                "[[service]]\nkind = \"echo\"\nlisten = \"{free}\"\n[[forward]]\nname = \"f\"\n\
                 listen = \"unix:{}\"\nconnect = \"smc:127.0.0.1:1\"\n",
                text_of(&place.path("f.sock"))
            ),
        ),
    ] {
        let config = place.config_of(name, &more);
        let before = files(&place);
        let told = pollux(&["doctor", "--config", &config]);
        assert_eq!((told.status, told.err.as_str()), (Some(0), ""), "{told:?}");
        assert!(told.out.contains("result: polluxd would start"), "{told:?}");
        assert_eq!(files(&place), before, "something was made");
        assert!(!place.path(name).exists());

        let running = Running::start_from(&place, name, &config);
        let told = pollux(&["doctor", "--config", &config]);
        assert_eq!(told.status, Some(75), "{told:?}");
        let expected = format!(
            "pollux: another instance (pid {}) answers on",
            running.pid()
        );
        assert!(told.err.starts_with(&expected), "{told:?}");
        assert_eq!(running.json(&["show", "appliance"])["name"], name);
    }
}

#[test]
fn an_adapter_that_is_missing_ends_both_with_the_same_words() {
    let place = Place::new();
    let device = "driver = \"verbs\"\nname = \"no-such-adapter\"\n";
    let config = place.config_with("pollux", device, "");
    let ended = refused(&config);
    let (status, report) = json(&["--config", &config]);
    assert_eq!(status, ended.status);
    assert_eq!(report["status"].as_i64(), status.map(i64::from));
    // 78 where there are adapters, and none of them is this one.
    assert!(matches!(status, Some(69 | 78)), "{report}");
    let message = report["message"].as_str().expect("text");
    assert!(
        ended.err.ends_with(&format!("polluxd: {message}\n")),
        "{ended:?}"
    );
    assert_eq!(verdicts(&report, "failure"), 1, "{report}");
    // The same host carries the software fabric.
    let config = place.config_with("pollux", "driver = \"soft\"\n", "");
    let (status, report) = json(&["--config", &config]);
    assert_eq!((status, &report["message"]), (Some(0), &Value::from("")));
    assert_eq!(verdicts(&report, "failure"), 0, "{report}");
}

#[test]
fn what_others_hold_is_told_with_who_it_is() {
    let place = Place::new();
    let (_, core) = first_and_last_core();
    let cores = format!("cores = \"{core}\"\n");
    let first = hold(&place.config_of("first", &cores));
    let ended = refused(&place.config_of("first", &cores));
    assert_eq!(ended.status, Some(75), "{ended:?}");
    let other = place.config_of("other", &cores);
    let ended = refused(&other);
    assert_eq!(ended.status, Some(75), "{ended:?}");
    assert!(
        ended.err.contains(&format!("core {core} is already owned")),
        "{ended:?}"
    );
    drop(first);
    assert_eq!(pollux(&["doctor", "--config", &other]).status, Some(0));
}

#[test]
fn mistakes_cores_and_hugepages_end_both_alike() {
    let place = Place::new();
    for (more, status) in [
        ("[attach]\nslots = 0\nrmb = 1\n", 78),
        ("cores = \"0,8191\"\n", 78),
        (
            "[attach]\nslots = 1024\nrmb = \"512K\"\nsndbuf = \"512K\"\n\
             [memory]\nhugepages = \"required\"\n",
            71,
        ),
        (
            "[handshake]\nsyn_option = \"required\"\ncgroup = \"/no/such/cgroup\"\n",
            71,
        ),
    ] {
        let ended = refused(&place.config_of("m", more));
        assert_eq!(ended.status, Some(status), "{ended:?}");
    }
    let ended = refused("/no/such.toml");
    assert_eq!(ended.status, Some(78), "{ended:?}");
}

#[test]
fn a_process_on_one_core_is_told_so() {
    let (core, _) = first_and_last_core();
    let mut taskset = Command::new("taskset");
    let doctor = [env!("CARGO_BIN_EXE_pollux"), "doctor"];
    let told: Ended = run(taskset.args(["-c", &core.to_string()]).args(doctor));
    assert_eq!(told.status, Some(0), "{told:?}");
    let line = format!("ok       allowed cores: {core} (affinity mask {core}, ");
    assert!(told.out.contains(&line), "{told:?}");
}

#[test]
fn a_limit_of_locked_memory_is_told_with_what_is_needed() {
    let place = Place::new();
    let device = "driver = \"verbs\"\nname = \"no-such-adapter\"\n";
    let config = place.config_with("pollux", device, "");
    let mut prlimit = Command::new("prlimit");
    prlimit.args(["--memlock=65536:65536", env!("CARGO_BIN_EXE_pollux")]);
    let told = run(prlimit.args(["doctor", "--json", "--config", &config]));
    let report: Value = serde_json::from_str(&told.out).expect("JSON");
    let checks = report["checks"].as_array().expect("a list");
    let memlock = checks.iter().find(|check| check["name"] == "locked memory");
    let values = &memlock.expect("a check")["values"];
    assert_eq!(values["soft_bytes"], 65536, "{report}");
    // 256 connections of two rings of 64 KiB, and 256 slots each way.
    assert_eq!(
        values["needed_bytes"],
        256 * (2 << 16) + 256 * (256 + 128),
        "{report}"
    );
}

#[test]
fn a_host_without_a_configuration_is_told_as_it_is_and_the_way_to_a_peer() {
    let (status, report) = json(&["--peer", "127.0.0.1:7"]);
    assert_eq!((status, &report["config"]), (Some(0), &Value::Null));
    let checks = report["checks"].as_array().expect("a list");
    for group in [
        "kernel and privileges",
        "libraries",
        "devices",
        "memory",
        "cores",
        "software fabric",
        "peer",
    ] {
        assert!(
            checks.iter().any(|check| check["group"] == group),
            "{group}: {report}"
        );
    }
    for check in checks {
        let is_well = check["verdict"] == "ok" || check["verdict"] == "n/a";
        assert!(
            is_well || check["do"].is_string(),
            "nothing to do about {check}"
        );
    }
    let way = checks
        .iter()
        .find(|check| check["name"] == "way")
        .expect("a way");
    assert_eq!(way["values"]["local"], "127.0.0.1");
}

#[test]
fn the_exit_status_is_documented_in_the_help_and_the_manual() {
    let wrong = pollux(&["doctor", "--peer", "nonsense"]);
    assert_eq!(wrong.status, Some(64), "{wrong:?}");
    assert!(
        wrong.err.contains("legal: an IP address, or ADDRESS:PORT"),
        "{wrong:?}"
    );
    let help = pollux(&["doctor", "--help"]).out;
    let place = Place::new();
    let man = pollux(&["man", "--dir", &text_of(&place.path(""))]);
    assert_eq!(man.status, Some(0), "{man:?}");
    let page = std::fs::read_to_string(place.path("pollux-doctor.1")).expect("a page");
    for text in [help, page] {
        for status in ["69", "71", "75", "78", "64"] {
            assert!(text.contains(status), "{status} is not in {text}");
        }
    }
}
