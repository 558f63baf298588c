//! The operator's tool.

use std::process::ExitCode;

fn main() -> ExitCode {
    pollux_control::cli::main(std::env::args_os())
}
