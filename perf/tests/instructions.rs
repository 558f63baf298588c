//! What counting instructions promises: the same number every time, whatever else there is.

mod needs_valgrind {
    use std::path::Path;
    use std::process::Command;

    use pollux_control::rpc::InlineUse;
    use pollux_perf::instructions::{MESSAGES, per_message, total};
    use pollux_perf::post_path::{Level, Workload};

    fn program() -> &'static Path {
        Path::new(env!("CARGO_BIN_EXE_pollux-perf"))
    }

    fn cost(level: Level, mode: InlineUse, messages: u64, idle: u16) -> f64 {
        per_message(program(), (level, mode), messages, idle).unwrap()
    }

    #[test]
    fn two_runs_of_a_workload_take_the_same_number_of_instructions() {
        for level in Level::ALL {
            let workload = Workload {
                level,
                mode: InlineUse::On,
                messages: 300,
                idle: 5,
            };
            let first = total(program(), &workload).unwrap();
            assert_eq!(first, total(program(), &workload).unwrap(), "{level}");
        }
    }

    #[test]
    fn a_message_costs_the_same_however_many_follow_it() {
        for level in Level::ALL {
            let few = cost(level, InlineUse::On, MESSAGES, 0);
            assert_eq!(few, cost(level, InlineUse::On, 2 * MESSAGES, 0), "{level}");
        }
    }

    #[test]
    fn a_message_costs_the_same_beside_idle_connections() {
        for mode in [InlineUse::Off, InlineUse::On] {
            let beside_one = cost(Level::Worker, mode, MESSAGES, 1);
            assert_eq!(
                beside_one,
                cost(Level::Worker, mode, MESSAGES, 200),
                "{mode}"
            );
        }
    }

    #[test]
    fn the_report_has_plausible_counts_that_differ_between_the_modes() {
        let output = Command::new(program())
            .args(["instructions", "--json"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            report["tool"].as_str().unwrap().starts_with("valgrind-"),
            "{report}"
        );
        assert_eq!(report["message_bytes"], 64);
        let figure = |level: usize, mode: &str| report["levels"][level][mode].as_f64().unwrap();
        for level in 0..Level::ALL.len() {
            let modes = ["by_reference", "messages", "all"];
            let [by_reference, messages, all] = modes.map(|mode| figure(level, mode));
            for count in [by_reference, messages, all] {
                assert!(count > 50.0 && count < 100_000.0, "{report}");
            }
            assert_ne!(by_reference, messages, "{report}");
            assert_ne!(by_reference, all, "{report}");
            assert_ne!(messages, all, "{report}");
        }
        // A pass of the worker contains what the driver does.
        for mode in ["by_reference", "messages", "all"] {
            assert!(figure(1, mode) > figure(0, mode), "{report}");
            // What credits cost where they bring nothing, on a single connection.
            let (without, with) = (figure(2, mode), figure(3, mode));
            assert!(with > without && with < 1.03 * without, "{report}");
        }
    }
}
