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
        (&["lat", "-t", "601"], "-t 601"),
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

/// Runs a comparison between two processes of its own, in `folder`.
fn compared(folder: &std::path::Path, more: &[&str]) -> Output {
    let locks = folder.join("locks").display().to_string();
    let out = folder.join("made/here").display().to_string();
    let line = [
        "lat",
        "--compare",
        "inline",
        "-n",
        "20",
        "--rounds",
        "3",
        "--loop",
        "msg_size:64:1K:*16",
        "--poll",
        "adaptive",
        "--without-instructions",
        "--lock-dir",
        &locks,
        "--out",
        &out,
    ];
    perf(&[&line[..], more].concat())
}

/// The median of some values, found in another way than the program does.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.split_off(values.len() / 2);
    match values.len() == upper.len() {
        true => f64::midpoint(values[values.len() - 1], upper[0]),
        false => upper[0],
    }
}

#[test]
fn a_comparison_writes_every_batch_and_the_medians_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let output = compared(folder.path(), &["--json", "--threshold", "128"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let written = std::fs::read(folder.path().join("made/here/inline.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&written).unwrap();
    assert_eq!(printed, report);
    assert_eq!(report["transport"]["kind"], "smc-r");
    assert_eq!(report["granted"]["this_end"], 256);
    assert_eq!(report["granted"]["other_end"], 256);
    assert_eq!(report["threshold"], 128);
    assert_eq!(report["batch"]["samples"], 20);
    assert!(report["instructions"]["reason"].is_string());
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, bytes) in rows.iter().zip([64, 1024]) {
        assert_eq!(row["bytes"], bytes);
        let batches = row["batches"].as_array().unwrap();
        assert_eq!(batches.len(), 9);
        let of = |mode: &str| -> Vec<f64> {
            let of_mode = batches.iter().filter(|batch| batch["mode"] == mode);
            let figures = of_mode.map(|batch| {
                assert_eq!(batch["samples"], 20);
                (
                    batch["round"].as_u64().unwrap(),
                    batch["p50_us"].as_f64().unwrap(),
                )
            });
            let (rounds, figures): (Vec<u64>, Vec<f64>) = figures.unzip();
            assert_eq!(rounds, [0, 1, 2], "{mode}");
            figures
        };
        let (off, messages, on) = (of("off"), of("messages"), of("on"));
        let ratios = on.iter().zip(&off).map(|(on, off)| on / off).collect();
        let equal = |value: &serde_json::Value, expected: f64| {
            let value = value.as_f64().unwrap();
            assert!(
                (value - expected).abs() < 1e-9 * expected,
                "{value} {expected}"
            );
        };
        equal(&row["by_reference"]["median"], median(off));
        equal(&row["messages"]["median"], median(messages));
        equal(&row["all"]["median"], median(on));
        equal(
            &row["all_to_by_reference"]["ratio"]["median"],
            median(ratios),
        );
        // On one core there is nothing to be a multiple of.
        let bounced = report["bounce_after"]["one_line"].is_object();
        assert_eq!(row["over_bounce"]["all"].is_f64(), bounced);
    }
    // No mode always has the same place in its round.
    let first = |round: usize| &rows[0]["batches"][3 * round]["mode"];
    assert_ne!(first(0), first(1));
    assert_ne!(first(1), first(2));
}

/// The names of the elements that are open at the end of `svg`, and how many there were of each.
fn elements(svg: &str) -> (Vec<&str>, std::collections::HashMap<&str, usize>) {
    let (mut open, mut counts) = (Vec::new(), std::collections::HashMap::new());
    for tag in svg.split('<').skip(1) {
        let (tag, content) = tag.split_once('>').unwrap();
        assert!(!content.contains('&') || content.contains(';'), "{content}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{svg}");
            continue;
        }
        let name = tag
            .split(|c: char| c.is_whitespace() || c == '/')
            .next()
            .unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        *counts.entry(name).or_default() += 1;
        if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
            open.push(name);
        }
    }
    (open, counts)
}

#[test]
fn a_comparison_prints_its_table_and_draws_three_series() {
    let folder = tempfile::tempdir().unwrap();
    let output = compared(
        folder.path(),
        &["--personality", "mlx5", "--threshold", "20"],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let is_row = |line: &&str| !line.trim_start().starts_with('#');
    let rows: Vec<Vec<&str>> = printed
        .lines()
        .filter(is_row)
        .map(|line| line.split_whitespace().collect())
        .collect();
    let head = printed
        .lines()
        .find(|line| line.trim_start().starts_with("#bytes"));
    let columns = head.unwrap().split_whitespace().count();
    assert_eq!(rows.len(), 2, "{printed}");
    for (row, bytes) in rows.iter().zip(["64", "1024"]) {
        assert_eq!((row.len(), row[0]), (columns, bytes), "{printed}");
    }
    for line in [
        "# transport  SMC-R\n",
        "# all inline WRITEs up to 20 bytes\n",
        "# all inline is faster than by reference at: ",
        "# all inline is slower than by reference by more than 3 % at: ",
        "# crossover: ",
        "# instructions: n/a: not asked for",
    ] {
        assert!(printed.contains(line), "{line} {printed}");
    }
    let svg = std::fs::read_to_string(folder.path().join("made/here/inline.svg")).unwrap();
    let (open, counts) = elements(&svg);
    assert_eq!(open, Vec::<&str>::new());
    assert_eq!(counts["svg"], 1);
    for (label, colour) in [
        ("by reference", "#0072B2"),
        ("inline messages", "#E69F00"),
        ("all inline", "#009E73"),
    ] {
        assert!(svg.lines().any(|line| line.trim() == label), "{label}");
        // Each series goes through both sizes, above all others or against by reference.
        let is_series = |tag: &&str| tag.starts_with("polyline") && tag.contains(colour);
        assert!(svg.split('<').filter(is_series).count() >= 2, "{label}");
    }
}

#[test]
fn a_comparison_that_cannot_be_made_or_kept_is_refused_before_it_begins() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("below").display().to_string();
    let locks = folder.path().join("locks").display().to_string();
    let compare = [
        "lat",
        "--compare",
        "inline",
        "--poll",
        "adaptive",
        "--lock-dir",
        &locks,
    ];
    for (more, reason) in [
        (&["--out", &below, "-n", "20"][..], below.as_str()),
        (&["--tcp", "127.0.0.1:7000"], "nothing is ever sent inline"),
        (
            &["--attach", "x", "127.0.0.1:7000"],
            "setting of that appliance",
        ),
        (&["--listen", "127.0.0.1:0"], "leave --compare out"),
        (&["-t", "0.009"], "-t 0.009"),
        (
            &["-n", "20", "--personality", "none"],
            "--personality at both ends",
        ),
    ] {
        let output = perf(&[&compare[..], more].concat());
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        let error = text(&output.stderr);
        assert!(error.contains(reason), "{more:?}: {error}");
        assert!(output.stdout.is_empty(), "{more:?}");
    }
}

#[test]
fn a_comparison_with_an_end_that_cannot_be_told_its_mode_fails_and_says_what_to_do() {
    let listener = Listener::start();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("meeting").display().to_string();
    let line = ["lat", &listener.address, "--compare", "inline", "-n", "20"];
    let places = [
        "--fabric-dir",
        &folder,
        "--lock-dir",
        &folder,
        "--out",
        &folder,
    ];
    let output = perf(&[&line[..], &["--poll", "adaptive"], &places].concat());
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("cannot reach the control socket"), "{error}");
    assert!(error.contains(&listener.address), "{error}");
}
