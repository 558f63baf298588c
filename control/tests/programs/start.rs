//! `polluxd` refuses to start with one clear line and the documented exit status.

use std::process::Command;

use crate::support::{Place, first_and_last_core, is_one_line, polluxd, run};
use pollux_control::config::Config;
use pollux_control::cores;
use pollux_control::host::Host;
use pollux_control::start::{Prepared, prepare};

/// Takes what the configuration names, in this process, on a thread of its own.
fn hold(config: &str) -> Prepared {
    let config = Config::from_file(config.as_ref()).expect("a good configuration");
    let start = std::thread::spawn(|| prepare(config, String::new(), &Host::current()));
    start.join().expect("no panic").expect("a free host")
}

#[test]
fn a_wrong_configuration_is_one_line_with_file_line_and_key() {
    let place = Place::new();
    let config = place.config("[attach]\nslotz = 3\n");
    let ended = polluxd(&["--config", &config]);
    assert_eq!(ended.status, Some(78), "{ended:?}");
    let expected =
        format!("polluxd: {config}:9: attach.slotz: unknown key; did you mean \"slots\"?");
    assert!(
        is_one_line(&ended.err) && ended.err.starts_with(&expected),
        "{ended:?}"
    );
}

#[test]
fn several_mistakes_are_one_line_at_the_start_and_all_told_by_check() {
    let place = Place::new();
    let config = place.config("[attach]\nslots = 0\nrmb = 1\n");
    let start = polluxd(&["--config", &config]);
    assert!(
        is_one_line(&start.err) && start.err.contains("and 1 more"),
        "{start:?}"
    );
    let check = polluxd(&["--config", &config, "--check"]);
    assert_eq!((start.status, check.status), (Some(78), Some(78)));
    assert!(check.err.contains(":9: attach.slots") && check.err.contains(":10: attach.rmb"));
}

#[test]
fn a_missing_configuration_is_told_by_name() {
    let ended = polluxd(&["--config", "/no/such.toml"]);
    assert_eq!(ended.status, Some(78), "{ended:?}");
    assert_eq!(
        ended.err,
        "polluxd: /no/such.toml: cannot read the configuration: No such file or directory (os \
         error 2)\n"
    );
}

#[test]
fn what_cannot_be_a_configuration_is_told_and_not_read_to_its_end() {
    for (path, what) in [
        ("/dev/zero", "is longer than 524288 bytes"),
        ("/", "cannot read the configuration"),
        (
            env!("CARGO_BIN_EXE_polluxd"),
            "cannot read the configuration",
        ),
    ] {
        let ended = polluxd(&["--config", path]);
        assert_eq!(ended.status, Some(78), "{ended:?}");
        let expected = format!("polluxd: {path}: {what}");
        assert!(
            is_one_line(&ended.err) && ended.err.starts_with(&expected),
            "{ended:?}"
        );
    }
}

#[test]
fn an_adapter_that_is_not_there_is_one_line_that_says_what_is_missing() {
    let place = Place::new();
    let config = place.config_with(
        "pollux",
        "driver = \"verbs\"\nname = \"no-such-adapter\"\n",
        "",
    );
    let ended = polluxd(&["--config", &config]);
    assert_eq!(ended.status, Some(69), "{ended:?}");
    let last = ended.err.lines().last().unwrap_or_default();
    // Whichever comes first on this host: the library, the kernel's part, any adapter, this one.
    let missing = [
        "libibverbs",
        "ib_uverbs",
        "no RDMA device",
        "no-such-adapter",
    ];
    assert!(
        last.starts_with("polluxd: ") && missing.iter().any(|what| last.contains(what)),
        "{ended:?}"
    );
}

#[test]
fn a_core_that_is_not_allowed_is_told_with_the_allowed_set() {
    let place = Place::new();
    let config = place.config("cores = \"0,8191\"\n");
    let allowed = cores::allowed().expect("a mask");
    for args in [
        &["--config", &config][..],
        &["--config", &config, "--check"],
    ] {
        let ended = polluxd(args);
        assert_eq!(ended.status, Some(78), "{ended:?}");
        let expected =
            format!("polluxd: core 8191 is not in this process's allowed set {allowed}\n");
        assert!(ended.err.ends_with(&expected), "{ended:?}");
    }
}

#[test]
fn a_process_that_is_kept_to_one_core_may_not_take_another() {
    let (first, last) = first_and_last_core();
    if first == last {
        eprintln!("skipped: this process has one core only");
        return;
    }
    let place = Place::new();
    let config = place.config(&format!("cores = \"{last}\"\n"));
    let mut taskset = Command::new("taskset");
    taskset.args([
        "-c",
        &first.to_string(),
        env!("CARGO_BIN_EXE_polluxd"),
        "--config",
        &config,
    ]);
    let ended = run(&mut taskset);
    assert_eq!(ended.status, Some(78), "{ended:?}");
    assert!(
        ended.err.contains(&format!("core {last} is not in")),
        "{ended:?}"
    );
    assert!(
        ended.err.ends_with(&format!("allowed set {first}\n")),
        "{ended:?}"
    );
}

#[test]
fn a_second_instance_is_told_the_pid_of_the_first() {
    let place = Place::new();
    let config = place.config("");
    let first = hold(&config);
    let ended = polluxd(&["--config", &config]);
    assert_eq!(ended.status, Some(75), "{ended:?}");
    let expected = format!(
        "polluxd: another instance (pid {}) answers on {}; use another appliance.name or \
         runtime_dir\n",
        std::process::id(),
        first.paths.control_socket.display()
    );
    assert!(ended.err.ends_with(&expected), "{ended:?}");
}

#[test]
fn a_core_of_another_instance_is_told_with_its_name_and_pid() {
    let place = Place::new();
    let (_, core) = first_and_last_core();
    let config = place.config(&format!("cores = \"{core}\"\n"));
    let _first = hold(&config);
    let other = crate::support::text_of(&place.path("other"));
    let ended = polluxd(&[
        "--config",
        &config,
        "--runtime-dir",
        &other,
        "--name",
        "other",
    ]);
    assert_eq!(ended.status, Some(75), "{ended:?}");
    let expected = format!(
        "polluxd: core {core} is already owned by polluxd \"pollux\" (pid {}); choose another \
         with workers.cores\n",
        std::process::id()
    );
    assert!(ended.err.ends_with(&expected), "{ended:?}");
    assert!(!place.path("other").exists());
}

#[test]
fn something_else_at_the_path_of_a_socket_is_told_by_name() {
    let place = Place::new();
    let config = place.config("");
    std::fs::create_dir_all(place.path("run/control.sock")).expect("folder");
    let ended = polluxd(&["--config", &config]);
    assert_eq!(ended.status, Some(78), "{ended:?}");
    assert!(
        ended.err.contains("control.sock is a folder, not a socket"),
        "{ended:?}"
    );
}

#[test]
fn hugepages_that_are_required_and_missing_are_told_with_the_cure() {
    let place = Place::new();
    // More than any pool of a test machine.
    let config = place.config(
        "[attach]\nslots = 1024\nrmb = \"512K\"\nsndbuf = \"512K\"\n\
         [memory]\nhugepages = \"required\"\n",
    );
    let ended = polluxd(&["--config", &config, "--check"]);
    assert_eq!(ended.status, Some(71), "{ended:?}");
    assert!(
        ended.err.contains("needs 512 hugepages of 2M and"),
        "{ended:?}"
    );
    assert!(ended.err.contains("/proc/sys/vm/nr_hugepages"), "{ended:?}");
}

#[test]
fn a_wrong_command_line_is_a_usage_error_and_help_is_none() {
    let ended = polluxd(&["--confg", "x"]);
    assert_eq!(ended.status, Some(64), "{ended:?}");
    assert!(ended.err.contains("--config"), "{ended:?}");
    for args in [["--help"], ["--version"]] {
        let ended = polluxd(&args);
        assert_eq!((ended.status, ended.err.as_str()), (Some(0), ""));
        assert!(ended.out.contains("polluxd"));
    }
    let ended = polluxd(&["--name", "a/b"]);
    assert_eq!(ended.status, Some(78), "{ended:?}");
    assert!(
        ended
            .err
            .starts_with("polluxd: command line: appliance.name: not a name (\"a/b\")")
    );
}

#[test]
fn a_check_tells_the_plan_and_leaves_nothing() {
    let place = Place::new();
    let config = place.config("poll = \"interrupt\"\n");
    let ended = polluxd(&["--config", &config, "--check"]);
    assert_eq!(
        (ended.status, ended.err.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    assert!(
        ended
            .out
            .starts_with(&format!("{config}: no mistakes\nworker 0: core "))
    );
    assert!(ended.out.contains(", interrupt\n"), "{ended:?}");
    assert!(!place.path("run").exists());
}

#[test]
fn the_printed_default_is_the_documented_one() {
    let ended = polluxd(&["--default-config"]);
    assert_eq!(
        (ended.status, ended.out),
        (Some(0), Config::documented_default())
    );
}

#[test]
fn output_that_nobody_takes_is_told_when_it_is_a_failure() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");
    let mut command = Command::new(env!("CARGO_BIN_EXE_polluxd"));
    let child = command
        .arg("--default-config")
        .stdout(full)
        .stderr(std::process::Stdio::piped());
    let ended: crate::support::Ended = child
        .spawn()
        .and_then(|child| child.wait_with_output())
        .expect("it runs")
        .into();
    assert_eq!(ended.status, Some(71), "{ended:?}");
    assert!(
        ended.err.contains("cannot write to standard output"),
        "{ended:?}"
    );
}
