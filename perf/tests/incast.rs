//! `pollux-perf incast` as an operator starts it: whole runs, small ones.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn incast(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pollux-perf"))
        .arg("incast")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn every_request_is_answered_in_every_mode_and_with_credits_the_receiver_is_always_ready() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("made/here");
    let line = [
        "--conns",
        "1,20",
        "--recv-depth",
        "8",
        "--requests",
        "1000",
        "--rounds",
        "1",
        "--pause-max",
        "2",
        "--pause-every",
        "5",
        "--json",
        "--out",
        out.to_str().unwrap(),
    ];
    let output = incast(&line);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let written = std::fs::read(out.join("incast.json")).unwrap();
    assert_eq!(report, serde_json::from_slice::<Value>(&written).unwrap());
    assert_eq!(report["way"], "round-trip");
    assert_eq!(report["recv_depth"], 8);
    assert_eq!(report["rnr_timer"]["us"], 60.0);
    assert_eq!(report["batch"]["requests"], 1000);
    assert_eq!(report["verdict"]["rnr_naks_with_credits"], 0);
    assert_eq!(report["verdict"]["requests_with_credits"], 2000);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, conns) in rows.iter().zip([1, 20]) {
        assert_eq!(row["conns"], conns);
        let batches = row["batches"].as_array().unwrap();
        assert_eq!(batches.len(), 3);
        for (batch, mode) in batches.iter().zip(["off", "bounded", "on"]) {
            assert_eq!(batch["mode"], mode);
            assert_eq!(batch["requests"], 1000, "{batch}");
            assert!(batch["requests_per_s"].as_f64().unwrap() > 0.0);
        }
        // Each message but the last few has returned the credit of the one before.
        assert_eq!(row["on"]["rnr_naks"], 0);
        assert!(row["on"]["returned_by_cdc"].as_u64().unwrap() > 1000);
        assert_eq!(row["off"]["returned_by_cdc"], 0);
    }
    // Twenty ask at once, and there are eight receives.
    assert!(rows[1]["off"]["rnr_naks"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn a_thousand_connections_and_the_longest_requests_fit() {
    let line = "--conns 1000 --size 1024 --requests 500 --rounds 1 --json";
    let output = incast(&line.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for mode in ["off", "bounded", "on"] {
        assert_eq!(report["rows"][0][mode]["requests"], 500);
    }
    assert_eq!(report["rows"][0]["on"]["rnr_naks"], 0);
}

#[test]
fn the_text_states_the_timer_and_ends_with_the_verdict() {
    let line = "--conns 2 --requests 50 --rounds 2 --work 1000 --rnr-timer 12";
    let output = incast(&line.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    for line in [
        "# RNR timer  code 12, 640 us: as asked for",
        "# receiver   does not pause; 1000 ns of work for each answer",
        "# receiver not ready: 0 times in 100 requests with credits, as it must be",
        "# 2 connections: requests/s with credits are those without times ",
    ] {
        assert!(printed.contains(line), "{line} {printed}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_to_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("below");
    let output = incast(&["--out", below.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--out DIR"));
    assert!(output.stdout.is_empty());
}
