//! Many connections, opened and closed by the program itself: nothing fails, nothing is left.

use std::process::Command;

use serde_json::Value;

fn measured(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_pollux-perf"))
        .arg("conns")
        .args(arguments)
        .arg("--json")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The descriptors of both appliances.
fn descriptors(of: &Value) -> Vec<u64> {
    let both = of.as_array().unwrap().iter();
    both.map(|one| one["descriptors"].as_u64().unwrap())
        .collect()
}

#[test]
fn connections_beyond_one_link_group_are_all_served_and_leave_no_descriptor() {
    let report = measured(&[
        "--open",
        "600",
        "--active",
        "8",
        "--rounds",
        "1",
        "--seconds",
        "0.1",
        "--cycle",
        "40",
        "--burst",
        "500",
    ]);
    // 600 connections need three groups of 255.
    assert!(report["groups"].as_u64().unwrap() >= 3, "{report}");
    for part in ["cycle", "burst"] {
        let [before, after] = ["before", "after"].map(|when| descriptors(&report[part][when]));
        assert_eq!(before, after, "{part}: {report}");
    }
    let round = &report["open"]["rounds"][0];
    for batch in ["without", "with"] {
        assert!(
            round[batch]["requests_per_second"].as_f64().unwrap() > 0.0,
            "{report}"
        );
    }
}

#[test]
fn more_active_connections_than_open_ones_are_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_pollux-perf"))
        .args(["conns", "--open", "5", "--active", "6"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("6 active connections are more than 5 open ones"),
        "{said}"
    );
}
