//! The appliance.

use std::process::ExitCode;

fn main() -> ExitCode {
    pollux_control::start::main(std::env::args_os(), pollux_control::appliance::serve)
}
