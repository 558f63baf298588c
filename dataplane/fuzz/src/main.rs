//! A target under libFuzzer: `pollux-fuzz [OPTION OF LIBFUZZER]... [FOLDER]... -ignore_remaining_args=1
//! TARGET`, or `list` in the place of a target. `cargo xtask fuzz` builds and calls it.
#![no_main]

use std::sync::OnceLock;

use pollux_fuzz::{TARGETS, Target, find};

/// libFuzzer calls a function without an argument for this.
static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: choose(), |data: &[u8]| {
    if let Some(target) = CHOSEN.get() {
        (target.run)(data);
    }
});

/// Takes the target's name from the end of the command line.
fn choose() {
    let name = std::env::args().next_back().unwrap_or_default();
    if name == "list" {
        for target in TARGETS {
            println!("{} {}", target.name, target.input_bytes_max);
        }
        std::process::exit(0);
    }
    match find(&name) {
        Some(target) => {
            let _ = CHOSEN.set(target);
        }
        None => {
            let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            eprintln!(
                "no target is named `{name}`; there are {}",
                known.join(", ")
            );
            std::process::exit(2);
        }
    }
}
