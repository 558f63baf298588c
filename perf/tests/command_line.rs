//! The program as an operator starts it: exit status, what goes where, and a whole run.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

fn perf(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pollux-perf"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The end that answers; it is ended with the test.
struct Listener {
    child: Child,
    address: String,
}

impl Listener {
    fn start() -> Listener {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pollux-perf"))
            .args([
                "lat",
                "--tcp",
                "--listen",
                "127.0.0.1:0",
                "--poll",
                "interrupt",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .strip_prefix("listening on ")
            .unwrap()
            .split(',')
            .next()
            .unwrap();
        Listener {
            address: address.to_owned(),
            child,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_whole_run_prints_a_row_for_each_size() {
    let listener = Listener::start();
    let line = [
        "lat",
        "--tcp",
        &listener.address,
        "--poll",
        "interrupt",
        "-n",
        "20",
    ];
    let output = perf(&[&line[..], &["--loop", "msg_size:1:1K:*4"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let rows: Vec<Vec<&str>> = printed
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 6, "{printed}");
    for (row, bytes) in rows.iter().zip(["1", "4", "16", "64", "256", "1024"]) {
        assert_eq!(row.len(), 10, "{printed}");
        assert_eq!(row[..2], [bytes, "20"]);
        // Of 20 samples ten lie above the median and two above the next percentile.
        assert!(row[3].parse::<f64>().unwrap() > 0.0, "{printed}");
        assert_eq!(row[5..8], ["n/a", "n/a", "n/a"]);
    }
    for line in [
        "# mode       interrupt",
        "# transport  TCP, as asked for",
        "# bounce     ",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
}

#[test]
fn two_runs_in_turn_are_served_and_json_is_one_object() {
    let listener = Listener::start();
    for _ in 0..2 {
        let line = [
            "lat",
            "--tcp",
            &listener.address,
            "--poll",
            "interrupt",
            "-n",
            "3",
            "-m",
            "64",
        ];
        let output = perf(&[&line[..], &["--json"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["rows"][0]["bytes"], 64);
        assert_eq!(report["rows"][0]["iterations"], 3);
        assert_eq!(report["transport"]["kind"], "tcp");
        assert!(report["inline_bytes"].is_null());
    }
}

#[test]
fn a_bounce_is_printed_as_json_or_one_core_is_named() {
    let output = perf(&["bounce", "--lines", "2", "--batches", "2", "--json"]);
    if output.status.success() {
        let bounce: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(bounce["one_line"]["median_ns"].as_f64().unwrap() > 0.0);
        assert!(bounce["two_lines"]["median_ns"].as_f64().unwrap() > 0.0);
        assert_eq!(bounce["lines"], 2);
    } else {
        assert!(
            text(&output.stderr).contains("two cores"),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn every_failure_ends_with_status_1_and_says_why() {
    for (line, reason) in [
        (&["bounce", "--cores", "0,0"][..], "named twice"),
        (&["bounce", "--cores", "0,99999"], "numbered from 0"),
        (&["bounce", "--lines", "0"], "1 or more"),
        (&["lat", "--tcp", "nowhere"], "HOST:PORT"),
        (&["lat", "nowhere"], "HOST:PORT"),
        (
            &["lat", "127.0.0.1:7000", "--attach", "/nonexistent/x"],
            "/nonexistent/x",
        ),
        (
            &["lat", "127.0.0.1:7000", "--loop", "msg_size:1:2K"],
            "msg_size:FIRST:LAST:STEP",
        ),
        (&["lat", "--tcp"], "HOST:PORT"),
        (&["fly"], "fly"),
    ] {
        let output = perf(line);
        assert_eq!(output.status.code(), Some(1), "{line:?}");
        assert!(
            text(&output.stderr).contains(reason),
            "{line:?}: {}",
            text(&output.stderr)
        );
        assert!(output.stdout.is_empty(), "{line:?}");
    }
}

#[test]
fn help_is_no_failure() {
    let output = perf(&["lat", "--help"]);
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("taskset -c 1 pollux-perf lat --listen"));
}

/// What a run in two processes of its own prints.
fn own_echo(more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let locks = folder.path().join("locks").display().to_string();
    let line = [
        "lat",
        "-n",
        "30",
        "--poll",
        "adaptive",
        "--lock-dir",
        &locks,
    ];
    perf(&[&line[..], more].concat())
}

#[test]
fn two_processes_of_its_own_measure_over_smc_with_inline_off_and_on() {
    let output = own_echo(&["--loop", "msg_size:1:64:*8", "--inline", "both", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let reports: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let inline = [&reports[0]["inline_bytes"], &reports[1]["inline_bytes"]];
    assert_eq!(
        (inline[0].as_u64(), inline[1].as_u64()),
        (Some(0), Some(256))
    );
    for report in [&reports[0], &reports[1]] {
        assert_eq!(report["transport"]["kind"], "smc-r");
        for (row, bytes) in [1, 8, 64].into_iter().enumerate() {
            assert_eq!(report["rows"][row]["bytes"], bytes);
            assert_eq!(report["rows"][row]["iterations"], 30);
            assert!(report["rows"][row]["p50"].as_f64().unwrap() > 0.0);
        }
        // On one core there is nothing to be a multiple of.
        let measured = report["bounce_after"]["one_line"].is_object();
        let ratios = report["p50_over_bounce"].as_array().unwrap();
        assert_eq!(ratios.len(), if measured { 3 } else { 0 });
    }
}

#[test]
fn a_run_against_nobody_fails_and_names_the_address() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("meeting").display().to_string();
    // The port is taken and given back, so that nobody listens on it.
    let address = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap()
        .to_string();
    let line = ["lat", &address, "-n", "1", "--fabric-dir", &folder];
    let output = perf(&[&line[..], &["--lock-dir", &folder]].concat());
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains(&address), "{error}");
    assert!(!std::path::Path::new(&folder).join("meter").exists());
}
